//! Entries of tasks, and which of them are dropped.
//!
//! The entry of a call contains its arguments. The client that made the call may submit it again
//! after its end, to compute a lost value, and says when it no longer will. At the latest this is
//! so when the job is completed, because it then takes no more calls. Entries of other tasks stay
//! as long as their job.

use super::{Job, Submit, SubmitKind, TaskSlot};
use crate::bug;
use crate::id::TaskId;
use crate::range::{IdArray, IndexSet};
use crate::task::Phase;

/// Calls whose entries can be dropped but still take up memory.
#[derive(Clone, Debug, Default)]
pub struct Spent {
    calls: IndexSet,
    /// The total size of their entries.
    bytes: usize,
}

impl Submit {
    /// Returns the entry of a task.
    #[must_use]
    pub fn entry(&self, index: u32) -> Option<&[u8]> {
        match &self.kind {
            SubmitKind::Array { entries, .. } => entries.as_ref()?.get(index),
            SubmitKind::Graph { .. } => None,
        }
    }

    /// Returns whether the client still needs the arguments of a call. Every call has arguments when
    /// it is submitted.
    pub(crate) fn has_arguments(&self, index: u32) -> bool {
        let is_known = self.entry(index).is_some_and(|entry| !entry.is_empty());
        is_known && !self.spent.calls.contains(index)
    }

    /// Marks the entry of a call as unneeded. Returns `false` if the task has not ended, is not a
    /// call, or has no entry.
    fn spend(&mut self, index: u32) -> bool {
        let has_ended = self.tasks.phase(index).is_some_and(Phase::is_terminal);
        let SubmitKind::Array { asked, .. } = &self.kind else {
            return false;
        };
        let len = self.entry(index).map_or(0, <[u8]>::len);
        if !has_ended || !asked.is_call || !self.has_arguments(index) {
            return false;
        }
        self.spent.calls.insert(index);
        self.spent.bytes += len;
        true
    }

    /// Frees the memory of unneeded entries if it is at least half of the memory of all entries.
    /// The copying is then paid for by the freed memory. Returns the calls.
    fn drop_spent(&mut self) -> Option<IndexSet> {
        let SubmitKind::Array { entries, .. } = &mut self.kind else {
            return None;
        };
        let known = entries.as_ref()?;
        if 2 * self.spent.bytes < known.data_len() {
            return None;
        }
        let Spent { calls, .. } = std::mem::take(&mut self.spent);
        let left = known.without(&calls);
        *entries = (left.data_len() > 0).then_some(left);
        Some(calls)
    }
}

impl Job {
    /// Drops the entries of calls that have ended, and skips other tasks. Returns the number of
    /// these calls. Also returns the submits that store fewer entries now, with the positions of
    /// the dropped entries.
    pub(crate) fn drop_entries(&mut self, tasks: &IdArray) -> (u32, Vec<(u32, IndexSet)>) {
        let mut count = 0;
        let mut submits = IndexSet::new();
        for task in tasks.iter() {
            let Some(TaskSlot { submit, index }) = self.find(TaskId(task)) else {
                continue;
            };
            let Some(found) = self.submits.get_mut(submit as usize) else {
                bug!("job {} has no submit {submit}", self.id);
                continue;
            };
            if found.spend(index) {
                count += 1;
                submits.insert(submit);
            }
        }
        let mut dropped = Vec::new();
        for submit in submits.iter() {
            let found = self.submits.get_mut(submit as usize);
            dropped.extend(found.and_then(|found| Some((submit, found.drop_spent()?))));
        }
        (count, dropped)
    }

    /// Drops the entries of all calls. Returns the numbers of the submits that had some, with the
    /// positions of the calls.
    pub(crate) fn drop_all_entries(&mut self) -> Vec<(u32, IndexSet)> {
        let mut dropped = Vec::new();
        for (submit, number) in self.submits.iter_mut().zip(0..) {
            if let SubmitKind::Array { asked, entries, .. } = &mut submit.kind
                && asked.is_call
                && entries.take().is_some()
            {
                let mut calls = IndexSet::new();
                calls.insert_range(0, submit.ids.len());
                submit.spent = Spent::default();
                dropped.push((number, calls));
            }
        }
        dropped
    }
}
