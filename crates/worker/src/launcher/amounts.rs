//! The amounts of memory, cpus and GPUs granted to a task.

use std::sync::Arc;

use hq_core::curve::Asked;
use hq_core::resource::amount::UNITS_PER_WHOLE;
use hq_core::resource::pool::PoolSet;
use hq_core::worker_state::LaunchTask;

use super::gpus::HeldGpus;
use crate::hardware::{CPUS, GPUS_NVIDIA, MEMORY};

/// Returns the memory in KiB that a task requested, if any.
pub(super) fn memory_of(task: &LaunchTask, pools: &PoolSet) -> Option<u64> {
    // Units are ten-thousandths of a MiB.
    Some(units_of(task, pools, MEMORY)?.saturating_mul(1024) / UNITS_PER_WHOLE)
}

/// Returns the granted units of a resource, if the task requested any.
fn units_of(task: &LaunchTask, pools: &PoolSet, resource: &str) -> Option<u64> {
    let pool = pools.position(resource)?;
    let entry = task.grant.entries.iter().find(|entry| entry.pool == pool)?;
    Some(entry.amount.0)
}

/// The granted amounts, shown next to the usage curve.
#[derive(Clone, Debug, Default)]
pub(super) struct GrantedAmounts {
    pub(super) asked: Asked,
    /// `None` if the task has no GPUs, or GPUs without names.
    pub(super) gpus: Option<Arc<HeldGpus>>,
}

pub(super) fn given_to(
    task: &LaunchTask,
    pools: &PoolSet,
    is_memory_limit: bool,
) -> GrantedAmounts {
    GrantedAmounts {
        asked: Asked {
            memory_kib: memory_of(task, pools).unwrap_or(0),
            is_memory_limit,
            cpu_units: units_of(task, pools, CPUS).unwrap_or(0),
        },
        gpus: gpus_of(task, pools).map(Arc::new),
    }
}

fn gpus_of(task: &LaunchTask, pools: &PoolSet) -> Option<HeldGpus> {
    let pool = pools.position(GPUS_NVIDIA)?;
    let entry = task.grant.entries.iter().find(|entry| entry.pool == pool)?;
    let indices = entry.indices.iter();
    let names = indices.map(|held| pools.index_name(pool, held.index));
    // Items of a sum have no names.
    let names: Box<[Box<str>]> = names
        .filter(|name| !name.is_empty())
        .map(Box::from)
        .collect();
    (!names.is_empty()).then_some(HeldGpus {
        names,
        units: entry.amount.0,
    })
}
