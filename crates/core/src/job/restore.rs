//! Tasks that come from a store.

use super::{Job, TaskSlot};
use crate::id::WorkerId;

impl Job {
    /// Whether nothing is known of a task but that it was submitted.
    pub(crate) fn is_untouched(&self, slot: TaskSlot) -> bool {
        let record = self.record(slot);
        record.is_none_or(|record| !record.was_started() && record.worker() == WorkerId(0))
    }

    /// A task waits that is not to be at an earlier instance than those that were never handed out.
    pub(crate) fn skip_superseded(&mut self, slot: TaskSlot) {
        if let Some(submit) = self.submits.get_mut(slot.submit as usize) {
            submit.tasks.skip_superseded(slot.index);
        }
    }
}
