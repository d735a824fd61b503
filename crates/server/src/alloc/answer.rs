//! Answers to questions about queues and allocations.

use hq_core::autoalloc::{Allocation, AllocationState, Queue, QueueState};
use hq_core::id::QueueId;
use hq_core::time::Now;
use hq_protocol::client::{self, alloc_allocation, alloc_reply, reply::Reply};

use super::driver::{Driver, reply};
use super::{refusal, script};

/// All queues.
pub(super) fn queues(driver: &Driver, now: Now) -> Reply {
    let queues = driver.state.queues();
    let queues = queues
        .filter_map(|queue| of_queue(driver, now, queue))
        .collect();
    reply(alloc_reply::Reply::Queues(client::AllocQueues { queues }))
}

fn of_queue(driver: &Driver, now: Now, queue: &Queue) -> Option<client::AllocQueue> {
    let shell = driver.queues.get(&queue.id())?;
    let mut spec = client::AllocQueueSpec::from(&*shell.params);
    spec.system = Some(client::AllocSystem {
        name: shell.params.system.name.to_string(),
        manager: shell.params.system.manager.to_string(),
        ..client::AllocSystem::default()
    });
    Some(client::AllocQueue {
        id: queue.id().as_u32(),
        is_paused: queue.state() == QueueState::Paused,
        spec: Some(spec),
        known_resources: shell.known.as_ref().map(Into::into),
        reason: reason(driver, now, queue.id()),
        worker_args: script::worker_args(&shell.params),
    })
}

fn reason(driver: &Driver, now: Now, queue: QueueId) -> String {
    let reason = driver.state.reason(now, queue);
    reason.map(|reason| reason.to_string()).unwrap_or_default()
}

/// Allocations of a queue.
pub(super) fn allocations(driver: &Driver, now: Now, id: QueueId) -> Reply {
    let Some(queue) = driver.state.queue(id) else {
        return refusal(format!("Error: Queue {id} not found"));
    };
    let allocations = queue.allocations().filter_map(|a| of_allocation(driver, a));
    reply(alloc_reply::Reply::Allocations(client::AllocAllocations {
        allocations: allocations.collect(),
        reason: reason(driver, now, id),
        is_paused: queue.state() == QueueState::Paused,
    }))
}

/// `None` while it is not known whether there is one.
fn of_allocation(driver: &Driver, allocation: &Allocation) -> Option<client::AllocAllocation> {
    use alloc_allocation::State;
    let record = allocation.record();
    let state = match record.state {
        AllocationState::Queued => State::Queued,
        AllocationState::Running => State::Running,
        AllocationState::Finished => State::Finished,
        AllocationState::Failed => State::Failed,
    };
    let dir = driver.dirs.get(record.key).unwrap_or("".as_ref());
    Some(client::AllocAllocation {
        id: allocation.job()?.to_owned(),
        state: state.into(),
        work_dir: std::os::unix::ffi::OsStrExt::as_bytes(dir.as_os_str())
            .to_vec()
            .into(),
        workers: record.workers,
        queued_unix_ns: record.queued_at.0,
        started_unix_ns: record.started_at.map(|at| at.0),
        ended_unix_ns: record.ended_at.map(|at| at.0),
    })
}

/// Directory of an allocation of any queue.
pub(super) fn log_dir(driver: &Driver, job: &str) -> Reply {
    let mut allocations = driver.state.queues().flat_map(Queue::allocations);
    let found = allocations.find(|allocation| allocation.job() == Some(job));
    let dir = found.and_then(|allocation| driver.dirs.get(allocation.key()));
    match dir {
        Some(dir) => {
            let bytes = std::os::unix::ffi::OsStrExt::as_bytes(dir.as_os_str());
            reply(alloc_reply::Reply::LogDir(bytes.to_vec().into()))
        }
        None => refusal(format!("Error: Allocation {job} not found")),
    }
}
