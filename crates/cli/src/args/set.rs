//! `hq job set`.

use std::time::Duration;

use clap::{ArgGroup, Args};
use hq_core::bound::Rate;
use hq_core::range::IdArray;
use hq_core::resource::request::ResourceEntry;
use hq_core::template::CrashLimit;

use crate::parse::array::parse_id_array;
use crate::parse::duration::{parse_duration, parse_limit};
use crate::parse::limit::{parse_rate, parse_running};
use crate::parse::request::{RequestAmount, parse_changed_resource, parse_request};
use crate::parse::selector::{Selector, parse_selector};
use crate::parse::value::{parse_crash_limit, parse_job_name};

/// Options of `job set`.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("whole").multiple(true).conflicts_with("tasks"))]
pub(crate) struct SetArgs {
    /// `last`, `all`, or ids such as `1-4,7`
    #[arg(value_name = "JOBS", value_parser = parse_selector)]
    pub(crate) selector: Selector,

    /// Change only these tasks, such as `1-10,20` [default: all that have not ended]
    #[arg(long, value_name = "IDS", value_parser = parse_id_array)]
    pub(crate) tasks: Option<IdArray>,

    /// Run tasks with a larger number first; write a negative number as --priority=-1
    #[arg(long, value_name = "NUMBER")]
    pub(crate) priority: Option<i32>,

    /// End attempts after this time, also running ones; `none` removes the limit
    #[arg(long, value_name = "DURATION", value_parser = or_none(parse_limit))]
    pub(crate) time_limit: Option<OrNone<Duration>>,

    /// Start tasks only on workers with at least this much time left; `none` removes the request
    #[arg(long, value_name = "DURATION", value_parser = or_none(parse_duration))]
    pub(crate) time_request: Option<OrNone<Duration>>,

    /// Cpus that each task requests, such as `4` or `"8 compact!"`; running tasks keep theirs
    #[arg(long, value_name = "AMOUNT", value_parser = parse_request)]
    pub(crate) cpus: Option<RequestAmount>,

    /// Another resource that each task requests, such as `mem=4G`; running tasks keep theirs
    ///
    /// May be repeated. `NAME=none` removes a request. Resources that are not named stay as they are.
    #[arg(long, value_name = "NAME=AMOUNT", value_parser = parse_changed_resource)]
    pub(crate) resource: Vec<ResourceEntry>,

    /// How many crashes of its worker a task survives: a number, `unlimited` or `never-restart`
    #[arg(long, value_name = "LIMIT", value_parser = parse_crash_limit)]
    pub(crate) crash_limit: Option<CrashLimit>,

    /// Run at most this many tasks of the job at the same time; `none` removes the limit
    #[arg(long, group = "whole", value_name = "COUNT", value_parser = or_none(parse_running))]
    pub(crate) max_running: Option<OrNone<u32>>,

    /// Start at most this many tasks of the job in a period: `20/s`, `100/min` or `50/h`; `none` removes the limit
    #[arg(long, group = "whole", value_name = "RATE", value_parser = or_none(parse_rate))]
    pub(crate) max_rate: Option<OrNone<Rate>>,

    /// Name of the job
    #[arg(long, group = "whole", value_name = "TEXT", value_parser = parse_job_name)]
    pub(crate) name: Option<String>,
}

/// A value, or `none`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OrNone<T>(pub(crate) Option<T>);

/// Parses `none` or a value.
fn or_none<T>(
    parse: fn(&str) -> Result<T, String>,
) -> impl Fn(&str) -> Result<OrNone<T>, String> + Clone {
    move |text| match text {
        "none" => Ok(OrNone(None)),
        text => parse(text).map(|value| OrNone(Some(value))),
    }
}
