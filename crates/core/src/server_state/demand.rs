//! What waits for workers: the question that automatic allocation asks.

use std::collections::BTreeMap;
use std::time::Duration;

use super::ServerState;
use crate::scheduler::ClassId;
use crate::scheduler::demand::{QueueDemand, QueueQuery, demand};
use crate::scheduler::queue::QueueKey;
use crate::time::Time;

/// Work that a worker will start within this time needs no other worker.
const SOON: Duration = Duration::from_secs(1);

impl ServerState {
    /// How many more workers of each queue would get work that existing ones cannot take now. What is
    /// ready counts, and what was sent ahead to a busy worker.
    #[must_use]
    pub fn demand(&self, now: Time, queries: &[QueueQuery]) -> Vec<QueueDemand> {
        let mut waiting: BTreeMap<QueueKey, u64> = self.ready.counts().collect();
        for worker in self.workers.values() {
            let surplus = worker.surplus(now, SOON);
            for (_, assigned) in worker.backlog_last().take(surplus) {
                *waiting.entry(assigned.key).or_default() += 1;
            }
        }
        let by_class: Vec<(ClassId, u64)> = waiting
            .into_iter()
            .map(|(key, count)| (key.class, count))
            .collect();
        demand(&by_class, &self.classes, queries)
    }
}
