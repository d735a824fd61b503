//! The hosts of an allocation's workers. Two workers on the same host are rarely intended, because
//! a multi-node task then gets that host twice.

use std::collections::{BTreeMap, BTreeSet};

use hq_core::id::{QueueId, WorkerId};

/// The hosts of connected workers, by the id of their batch job.
#[derive(Debug, Default)]
pub(super) struct Hosts {
    of_jobs: BTreeMap<Box<str>, BTreeMap<WorkerId, Box<str>>>,
    /// The queues for which a shared host has been reported.
    told: BTreeSet<QueueId>,
}

impl Hosts {
    /// Records a worker. Returns whether it shares its host with another worker and this has not
    /// yet been reported for the queue.
    pub(super) fn connected(
        &mut self,
        queue: QueueId,
        job: &str,
        worker: WorkerId,
        host: &str,
    ) -> bool {
        let of_job = self.of_jobs.entry(job.into()).or_default();
        of_job.insert(worker, host.into());
        let same = of_job.values().filter(|other| &***other == host).count();
        same > 1 && self.told.insert(queue)
    }

    /// Removes a lost worker.
    pub(super) fn lost(&mut self, job: &str, worker: WorkerId) {
        if let Some(of_job) = self.of_jobs.get_mut(job) {
            of_job.remove(&worker);
            if of_job.is_empty() {
                self.of_jobs.remove(job);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_repeats_is_told_once_a_queue() {
        let mut hosts = Hosts::default();
        let queue = QueueId(1);
        assert!(!hosts.connected(queue, "1", WorkerId(1), "a"));
        // The same worker again, another host, and another allocation.
        assert!(!hosts.connected(queue, "1", WorkerId(1), "a"));
        assert!(!hosts.connected(queue, "1", WorkerId(2), "b"));
        assert!(!hosts.connected(queue, "2", WorkerId(3), "a"));
        assert!(hosts.connected(queue, "1", WorkerId(4), "b"));
        assert!(!hosts.connected(queue, "1", WorkerId(5), "b"));
        for (job, worker) in [("1", 1), ("1", 2), ("2", 3), ("1", 4), ("1", 5), ("9", 9)] {
            hosts.lost(job, WorkerId(worker));
        }
        assert!(hosts.of_jobs.is_empty());
    }
}
