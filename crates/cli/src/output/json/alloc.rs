//! Automatic allocation as JSON.

use hq_protocol::client::{self, alloc_allocation::State};
use serde_json::{Value, json};

use super::worker::resources;
use crate::output::format::{rfc3339, seconds};
use crate::output::view::{allocation_dir, batch_system_name};

/// Returns a queue as an object.
pub(super) fn queue(queue: &client::AllocQueue, is_verbose: bool) -> Value {
    let spec = queue.spec.clone().unwrap_or_default();
    let mut value = json!({
        "additional_args": spec.additional_args,
        "backlog": spec.backlog,
        "id": queue.id,
        "known_worker_resources": queue.known_resources.as_ref().map(resources),
        "manager": batch_system_name(&spec),
        "max_worker_count": spec.max_worker_count,
        "max_workers_per_alloc": spec.max_workers_per_alloc,
        "name": spec.name,
        "state": if queue.is_paused { "Paused" } else { "Active" },
        "timelimit": seconds(spec.time_limit_ns),
        "worker_args": queue.worker_args,
    });
    if is_verbose {
        value["reason"] = json!(queue.reason);
    }
    value
}

/// Returns an allocation as an object.
pub(super) fn allocation(allocation: &client::AllocAllocation, is_verbose: bool) -> Value {
    let status = match allocation.state() {
        State::Queued => "queued",
        State::Running => "running",
        State::Finished => "finished",
        State::Failed => "failed",
    };
    let mut value = json!({
        "ended_at": allocation.ended_unix_ns.map(rfc3339),
        "id": allocation.id,
        "queued_at": rfc3339(allocation.queued_unix_ns),
        "started_at": allocation.started_unix_ns.map(rfc3339),
        "status": status,
        "target_worker_count": allocation.workers,
        "workdir": allocation_dir(allocation),
    });
    if is_verbose {
        value["reason"] = json!(allocation.reason);
    }
    value
}
