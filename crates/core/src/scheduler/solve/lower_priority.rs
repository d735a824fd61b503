//! Finds tasks that were sent ahead and must yield to more urgent tasks.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::super::worker_plan::WorkerPlan;
use crate::class::{ClassId, QueueKey};
use crate::id::WorkerId;

/// For each class, the workers with sent-ahead tasks that are less urgent than ready tasks of the
/// class, and the lowest priority of those sent-ahead tasks.
pub(super) struct LowerPriorityBacklog(BTreeMap<ClassId, Vec<(Reverse<i32>, WorkerId)>>);

impl LowerPriorityBacklog {
    pub(super) fn new(plans: &[WorkerPlan<'_>], queues: &[(QueueKey, u64)]) -> Self {
        let mut most_urgent: Vec<(ClassId, Reverse<i32>)> = queues
            .iter()
            .map(|(key, _)| (key.class, key.priority))
            .collect();
        most_urgent.sort_unstable();
        most_urgent.dedup_by_key(|(class, _)| *class);
        let mut by_class: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for plan in plans {
            for (key, _) in plan.worker.waiting() {
                let ready = most_urgent.binary_search_by_key(&key.class, |(class, _)| *class);
                let ready = ready.ok().and_then(|at| most_urgent.get(at));
                // No task of this class that is more urgent is ready.
                if ready.is_none_or(|(_, ready)| *ready >= key.priority) {
                    continue;
                }
                let of_class = by_class.entry(key.class).or_default();
                match of_class.last_mut() {
                    Some((least, worker)) if *worker == plan.worker.id => *least = key.priority,
                    Some(_) | None => of_class.push((key.priority, plan.worker.id)),
                }
            }
        }
        Self(by_class)
    }

    /// Returns the workers with sent-ahead tasks of the queue's class that are less urgent.
    pub(super) fn less_urgent(&self, key: QueueKey) -> impl Iterator<Item = WorkerId> {
        let of_class = self.0.get(&key.class).into_iter().flatten();
        of_class
            .filter(move |(priority, _)| *priority > key.priority)
            .map(|(_, worker)| *worker)
    }
}
