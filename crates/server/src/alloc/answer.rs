//! Answers to requests about queues and allocations.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;

use hq_core::autoalloc::{Allocation, Queue, QueueState, Reason};
use hq_core::id::QueueId;
use hq_core::refusal::Refusal;
use hq_protocol::client::{self, alloc_allocation, alloc_reply, reply::Reply};

use super::reply;
use crate::core_handle::View;

/// Returns the directory of an allocation.
pub(super) fn path_of(allocation: &Allocation) -> PathBuf {
    OsStr::from_bytes(&allocation.record().dir).into()
}

impl View<'_> {
    /// Lists all queues.
    pub(super) fn alloc_queues(&self) -> Reply {
        let queues = self.state.queues().queues();
        let queues = queues.map(|queue| self.queue(queue)).collect();
        reply(alloc_reply::Reply::Queues(client::AllocQueues { queues }))
    }

    /// Returns all queues with their allocations.
    pub(super) fn queues_and_allocations(
        &self,
    ) -> Vec<(client::AllocQueue, Vec<client::AllocAllocation>)> {
        let queues = self.state.queues().queues();
        let row = |queue: &Queue| (self.queue(queue), self.of_queue(queue));
        queues.map(row).collect()
    }

    fn queue(&self, queue: &Queue) -> client::AllocQueue {
        let params = queue.params();
        let mut spec = client::AllocQueueSpec::from(&**params);
        spec.system = Some(client::AllocSystem {
            name: params.system.name.to_string(),
            manager: params.system.manager.to_string(),
            ..client::AllocSystem::default()
        });
        let reason = self.state.queues().reason(self.now, queue.id());
        let kind = reason.as_ref().map(Reason::kind);
        client::AllocQueue {
            id: queue.id().as_u32(),
            is_paused: queue.state() == QueueState::Paused,
            spec: Some(spec),
            known_resources: queue.known_resources().map(|known| (&**known).into()),
            reason: reason.map(|reason| reason.to_string()).unwrap_or_default(),
            reason_kind: kind
                .map_or(client::AllocReason::Unspecified, Into::into)
                .into(),
            worker_args: params.visible_args(),
        }
    }

    fn reason(&self, queue: QueueId) -> String {
        let reason = self.state.queues().reason(self.now, queue);
        reason.map(|reason| reason.to_string()).unwrap_or_default()
    }

    /// Lists the allocations of a queue.
    pub(super) fn allocations(&self, id: QueueId) -> Reply {
        let Some(queue) = self.state.queues().queue(id) else {
            return Refusal::not_found(format!("Queue {id} not found")).into();
        };
        reply(alloc_reply::Reply::Allocations(client::AllocAllocations {
            allocations: self.of_queue(queue),
            reason: self.reason(id),
            is_paused: queue.state() == QueueState::Paused,
        }))
    }

    fn of_queue(&self, queue: &Queue) -> Vec<client::AllocAllocation> {
        let allocations = queue.allocations().filter_map(|a| self.allocation(a));
        allocations.collect()
    }

    /// Returns an allocation for display, or `None` while it is unknown whether the allocation has
    /// a job.
    fn allocation(&self, allocation: &Allocation) -> Option<client::AllocAllocation> {
        let record = allocation.record();
        Some(client::AllocAllocation {
            id: allocation.job_id()?.to_owned(),
            state: alloc_allocation::State::from(record.state).into(),
            work_dir: record.dir.to_vec().into(),
            workers: record.workers,
            queued_unix_ns: record.queued_at.0,
            started_unix_ns: record.started_at.map(|at| at.0),
            ended_unix_ns: record.ended_at.map(|at| at.0),
            reason: record.reason.to_string(),
        })
    }

    /// Returns the directory of an allocation of any queue.
    pub(super) fn log_dir(&self, job: &str) -> Reply {
        let mut allocations = self.state.queues().queues().flat_map(Queue::allocations);
        let is_asked = |a: &Allocation| a.job() == Some(job) || a.job_id() == Some(job);
        let found = allocations.find(|allocation| is_asked(allocation));
        match found {
            Some(found) => {
                let dir = found.record().dir.to_vec();
                reply(alloc_reply::Reply::LogDir(dir.into()))
            }
            None => Refusal::not_found(format!("Allocation {job} not found")).into(),
        }
    }
}
