//! Restores ends of tasks from a store.

use super::{Job, TaskSlot};
use crate::id::{InstanceId, TaskId, WorkerId};
use crate::range::IdArray;
use crate::task::{Phase, TaskEnd};
use crate::time::Timestamp;

impl Job {
    /// Ends the unfinished tasks among `ids` with the phase `to` at the time `at`. Skips unknown
    /// ids.
    pub(super) fn restore_dropped(&mut self, ids: &IdArray, to: Phase, at: Timestamp) {
        self.idle_since = self.idle_since.max(at);
        for (begin, count) in self.index.runs(ids) {
            self.end_part(begin, count, to, at);
        }
    }

    /// Returns whether a task has no record beyond its submission.
    pub(crate) fn is_untouched(&self, slot: TaskSlot) -> bool {
        let record = self.record(slot);
        record.is_none_or(|record| !record.was_started() && record.worker() == WorkerId(0))
    }

    /// Advances the instance of a waiting task at least to that of tasks that have never been
    /// dispatched.
    pub(crate) fn skip_superseded(&mut self, slot: TaskSlot) {
        if let Some(submit) = self.submits.get_mut(slot.submit as usize) {
            submit.tasks.skip_superseded(slot.index);
        }
    }

    /// Restores the stored end of a task. Ends arrive in the order of their ids.
    pub(crate) fn restore_end(&mut self, slot: TaskSlot, end: &TaskEnd) {
        self.record_end(slot, end);
        // The latest figures need chronological order, but ends arrive in the order of ids.
        self.ends.forget_order();
    }

    /// Restores the stored ends of consecutive tasks that finished in this instance. Returns the
    /// first unknown id.
    pub(crate) fn restore_finished(
        &mut self,
        first: TaskId,
        instance: InstanceId,
        ends: impl Iterator<Item = (WorkerId, TaskEnd)>,
    ) -> Option<TaskId> {
        let (mut missing, mut last_worker) = (None, None);
        for (task, (worker, end)) in (first.0..).map(TaskId).zip(ends) {
            let slot = self.find(task);
            let restored = slot.and_then(|slot| {
                let tasks = &mut self.submits.get_mut(slot.submit as usize)?.tasks;
                tasks.restore_finished(slot.index, instance, worker, &end)
            });
            let Some(earlier) = restored else {
                missing = missing.or(Some(task));
                continue;
            };
            *self.counts.of(earlier.state()) -= 1;
            *self.counts.of(Phase::Finished.state()) += 1;
            self.ends.note(end.at, end.run);
            self.idle_since = self.idle_since.max(end.at);
            if last_worker.replace(worker) != Some(worker) {
                self.workers.insert(worker);
            }
        }
        // The latest figures need chronological order, but ends arrive in the order of ids.
        self.ends.forget_order();
        missing
    }
}
