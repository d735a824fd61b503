//! What a task was given of memory and cpus.

use hq_core::curve::Asked;
use hq_core::resource::amount::UNITS_PER_WHOLE;
use hq_core::resource::pool::PoolSet;
use hq_core::worker_state::LaunchTask;

use crate::hardware::{CPUS, MEMORY};

/// Memory in KiB that a task asked for, if it did.
pub(super) fn memory_of(task: &LaunchTask, pools: &PoolSet) -> Option<u64> {
    // Units are ten-thousandths of a MiB.
    Some(units_of(task, pools, MEMORY)?.saturating_mul(1024) / UNITS_PER_WHOLE)
}

/// Units of a resource that a task has, if it asked for some.
fn units_of(task: &LaunchTask, pools: &PoolSet, resource: &str) -> Option<u64> {
    let pool = pools.position(resource)?;
    let entry = task.grant.entries.iter().find(|entry| entry.pool == pool)?;
    Some(entry.amount.0)
}

/// What its use over time is shown beside.
pub(super) fn asked_of(task: &LaunchTask, pools: &PoolSet, is_memory_limit: bool) -> Asked {
    Asked {
        memory_kib: memory_of(task, pools).unwrap_or(0),
        is_memory_limit,
        cpu_units: units_of(task, pools, CPUS).unwrap_or(0),
    }
}
