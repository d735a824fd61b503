//! Reservations that last between rounds: workers for multi-node tasks, and room on workers for
//! blocked requests.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Ctx;
use super::retract::retract;
use super::triggers::ROUND_TASKS_MAX;
use crate::bug;
use crate::class::QueueKey;
use crate::id::{InstanceId, TaskKey, WorkerId};
use crate::scheduler::worker_plan::PATIENCE;
use crate::time::Time;
use crate::worker::{BACKLOG_SPAN, Workers};

/// Tasks that a worker starts within this time stay there. A backlog covers the same time.
const RESERVATION_HORIZON: Duration = BACKLOG_SPAN;

/// The maximum number of tasks that one round retracts to make room for reservations, which is not
/// urgent.
const RESERVATION_TASKS_MAX: usize = 64;

/// Indexes over the workers' reservations.
#[derive(Clone, Debug, Default)]
pub(super) struct Reservations {
    /// The workers that are reserved for multi-node tasks.
    reserved: BTreeSet<WorkerId>,
    /// The reserved workers that may still have unstarted tasks that have not been retracted.
    unretracted: BTreeSet<WorkerId>,
    /// For each queue, the number of workers with reservations for its unsent tasks.
    counts: BTreeMap<QueueKey, u64>,
    /// The worker whose reservations were recomputed last. The round-robin continues after it.
    cursor: Option<WorkerId>,
}

impl Reservations {
    /// Returns the number of workers with reservations for each queue.
    pub(super) const fn counts(&self) -> &BTreeMap<QueueKey, u64> {
        &self.counts
    }

    /// Returns the worker whose reservations were recomputed last.
    pub(super) const fn cursor(&self) -> Option<WorkerId> {
        self.cursor
    }

    /// Returns the workers that are reserved for multi-node tasks.
    pub(super) const fn reserved(&self) -> &BTreeSet<WorkerId> {
        &self.reserved
    }

    /// Removes the reservations of a worker that is gone.
    pub(super) fn forget(&mut self, worker: WorkerId, queues: impl Iterator<Item = QueueKey>) {
        self.reserved.remove(&worker);
        self.unretracted.remove(&worker);
        self.uncount(queues);
    }

    fn uncount(&mut self, queues: impl Iterator<Item = QueueKey>) {
        for key in queues {
            let Some(count) = self.counts.get_mut(&key) else {
                bug!("a reservation for {key:?} is given up that was not counted");
                continue;
            };
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&key);
            }
        }
    }

    /// Reserves exactly these workers for multi-node tasks. Returns the released workers.
    pub(super) fn reserve_workers(
        &mut self,
        workers: &mut Workers,
        wanted: &BTreeMap<WorkerId, QueueKey>,
    ) -> Vec<WorkerId> {
        let wanted_ids = wanted.keys().copied().collect();
        let before = std::mem::replace(&mut self.reserved, wanted_ids);
        let freed: Vec<WorkerId> = before.difference(&self.reserved).copied().collect();
        for id in &freed {
            if let Some(worker) = workers.get_mut(*id) {
                worker.unreserve();
            }
            self.unretracted.remove(id);
        }
        for (id, key) in wanted {
            // Tasks that were retracted for an earlier reservation stay retracted.
            if workers.get_mut(*id).is_some_and(|w| w.reserve(*key)) {
                self.unretracted.insert(*id);
            }
        }
        freed
    }

    /// Retracts unstarted tasks from reserved workers. Returns whether there are more such workers.
    pub(super) fn drain_reserved(&mut self, ctx: &mut Ctx<'_>, workers: &mut Workers) -> bool {
        let mut left = usize::try_from(ROUND_TASKS_MAX).unwrap_or(usize::MAX);
        while left > 0
            && let Some(id) = self.unretracted.pop_first()
        {
            let Some(worker) = workers.get(id) else {
                bug!("worker {id} is gone, but is reserved");
                continue;
            };
            let Some(key) = worker.reserved_for() else {
                // The worker was empty, and has become a node of the task that it was reserved for.
                continue;
            };
            let back = worker.unstarted_behind(key);
            // All tasks of a worker are retracted together, so the last worker may exceed the
            // limit.
            left = left.saturating_sub(back.len());
            retract(ctx, workers, id, back);
        }
        !self.unretracted.is_empty()
    }

    /// Applies the reservations of a round. `cursor` is the last examined worker.
    pub(super) fn update(
        &mut self,
        ctx: &mut Ctx<'_>,
        workers: &mut Workers,
        by_worker: &BTreeMap<WorkerId, Vec<(QueueKey, u32)>>,
        cursor: Option<WorkerId>,
    ) {
        self.cursor = cursor;
        let mut left = RESERVATION_TASKS_MAX;
        for (id, wanted) in by_worker {
            let back = self.update_one(ctx.now.mono, workers, *id, wanted, left);
            left -= back.len();
            retract(ctx, workers, *id, back);
        }
    }

    /// Sets a worker's reservations for unsent requests. If a reservation has waited for a long
    /// time, returns the tasks to retract: tasks that were sent ahead and will not start soon.
    fn update_one(
        &mut self,
        now: Time,
        workers: &mut Workers,
        id: WorkerId,
        wanted: &[(QueueKey, u32)],
        most: usize,
    ) -> Vec<(TaskKey, InstanceId)> {
        let Some(worker) = workers.get_mut(id) else {
            bug!("worker {id} is gone, but a round reserves room on it");
            return Vec::new();
        };
        // The old reservations are subtracted before they are replaced, because only the worker
        // contains them.
        self.uncount(worker.reservations());
        for (key, _) in wanted {
            *self.counts.entry(*key).or_default() += 1;
        }
        worker.set_reservations(wanted, now);
        let overdue = worker.oldest_reservation(now, PATIENCE);
        let Some(overdue) = overdue.filter(|_| worker.backlog_len() > 0) else {
            // There is no backlog that could be retracted to make room.
            return Vec::new();
        };
        let surplus = worker.surplus(now, RESERVATION_HORIZON);
        let back = worker.backlog_last().take(surplus.min(most));
        // Priorities are reversed, so these tasks have equal or lower priority. More urgent tasks
        // may stay in the way.
        let back = back.filter(|(_, a)| a.key.priority >= overdue.priority);
        back.map(|(task, a)| (task, a.instance)).collect()
    }

    /// Panics unless the indexes agree with the workers.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn check(&self, workers: &Workers) {
        let live = || workers.live().values();
        let reserved = live().filter(|worker| worker.reserved_for().is_some());
        let reserved: BTreeSet<WorkerId> = reserved.map(|worker| worker.id).collect();
        assert_eq!(reserved, self.reserved, "reserved workers");
        let mut counts = BTreeMap::new();
        for key in live().flat_map(|worker| worker.reservations()) {
            *counts.entry(key).or_insert(0) += 1;
        }
        assert_eq!(counts, self.counts, "reservations");
    }
}
