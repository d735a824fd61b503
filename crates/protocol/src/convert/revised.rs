//! Changes of jobs and tasks after their submit.

use hq_core::bound::Rate;
use hq_core::job::{JobChange, KeptChanges, RevisedTasks, TaskChange};

use super::resource::RESOURCES_MAX;
use super::submit::{positive, rate};
use super::wire::{FromWire, ToWire, each, field, once, optional, or_default, received, wire};
use super::{ConvertError, Within, required};
use crate::client;

wire! {
    TaskChange = client::TaskChange {
        priority,
        time_limit = time_limit_ns,
        time_request = time_request_ns,
        crash_limit,
        resources: each(RESOURCES_MAX),
    }
    check check_resources
}

wire! {
    JobChange = client::JobChange {
        name,
        max_running: optional(limit_or_none) => |max: &Option<Option<u32>>| {
            max.map(Option::unwrap_or_default)
        },
        max_rate: optional(rate_or_none) => |rate: &Option<Option<Rate>>| {
            rate.map(|rate| rate.map_or_else(String::new, |rate| rate.to_string()))
        },
        tasks: or_default => |tasks: &TaskChange| Some(tasks.to_wire()),
    }
}

wire! {
    RevisedTasks = client::RevisedTasks {
        ids,
        change,
    }
}

wire! {
    KeptChanges = client::KeptChanges {
        limits_set_at,
        max_running: optional(positive),
        max_rate: optional(rate) => |rate: &Option<Rate>| rate.map(|rate| rate.to_string()),
        tasks: each(usize::MAX),
    }
}

fn check_resources(change: TaskChange) -> Result<TaskChange, ConvertError> {
    let names = change.resources.iter().map(|entry| &entry.resource);
    once(names, "resources", "each resource once")?;
    Ok(change)
}

fn limit_or_none(_: &str, found: u32) -> Result<Option<u32>, ConvertError> {
    Ok(Some(found).filter(|found| *found > 0))
}

fn rate_or_none(field: &str, found: String) -> Result<Option<Rate>, ConvertError> {
    match found.is_empty() {
        true => Ok(None),
        false => rate(field, found).map(Some),
    }
}
