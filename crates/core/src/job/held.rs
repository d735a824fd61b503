//! Tasks that a user holds: they do not start until a user releases them.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Job, Submit, merge_ranges};
use crate::range::{IdArray, IdRange, IndexSet};
use crate::task::Phase;

/// A hold or release of tasks of a job, as it is stored.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// The tasks.
    pub tasks: IdArray,
    /// Whether the tasks are held. `false` means that they are released.
    pub is_held: bool,
    /// Whether tasks that are submitted later are held.
    pub holds_new: bool,
    /// Whether this concerns the whole job, so that earlier changes no longer matter.
    pub is_whole: bool,
}

/// The tasks that a hold or release has changed, and those that it could not change.
#[derive(Clone, Debug, Default)]
pub(crate) struct HoldParts {
    /// The indices of the changed tasks, by submit.
    pub(crate) changed: BTreeMap<u32, IndexSet>,
    /// Their ids.
    pub(crate) ids: IdArray,
    /// The ids of those that workers have, which may still start.
    pub(crate) sent: IdArray,
    /// The ids of the running tasks, which go on.
    pub(crate) running: IdArray,
}

impl Submit {
    /// Returns the number of unfinished tasks.
    pub(crate) fn unfinished(&self) -> u32 {
        let runs = self.tasks.runs(0, self.ids.len());
        let left = runs.filter(|(_, _, phase)| !phase.is_terminal());
        left.map(|(from, to, _)| to - from).sum()
    }

    /// Returns whether a user holds a task or it waits for unfinished dependencies in its job.
    #[must_use]
    pub fn is_blocked(&self, index: u32) -> bool {
        let graph = self.graph();
        self.held.contains(index) || graph.is_some_and(|graph| graph.unfinished(index) > 0)
    }
}

impl Job {
    /// Returns the positions of `tasks`, or of all tasks, as parts of submits.
    pub(super) fn parts(&self, tasks: Option<&IdArray>) -> Vec<(u32, Range<u32>)> {
        match tasks {
            None => {
                let submits = self.submits.iter().zip(0..);
                let whole = submits.map(|(submit, number)| (number, 0..submit.ids.len()));
                whole.collect()
            }
            Some(ids) => {
                let runs = self.index.runs(ids).into_iter();
                let part = |slot: super::TaskSlot, count| slot.index..slot.index + count;
                runs.map(|(slot, count)| (slot.submit, part(slot, count)))
                    .collect()
            }
        }
    }

    /// Holds or releases the waiting tasks among `tasks`. `None` means all tasks, also the next
    /// attempts of running ones, and those that are submitted later.
    pub(crate) fn hold(&mut self, tasks: Option<&IdArray>, is_held: bool) -> HoldParts {
        let parts = self.parts(tasks);
        if tasks.is_none() {
            self.holds_new = is_held && self.is_open;
        }
        let mut found = HoldParts::default();
        let (mut ids, mut sent, mut running) = (Vec::new(), Vec::new(), Vec::new());
        for (number, part) in parts {
            let Some(submit) = self.submits.get_mut(number as usize) else {
                continue;
            };
            let mut changed = IndexSet::new();
            for (from, to, phase) in submit.tasks.runs(part.start, part.end) {
                if phase.is_terminal() {
                    continue;
                }
                if !is_held {
                    let held = submit.held.within(from, to);
                    held.for_each(|(from, to)| changed.insert_range(from, to));
                    continue;
                }
                if phase == Phase::Running {
                    running.extend(submit.ids.slice(from, to));
                } else if phase.is_sent() {
                    sent.extend(submit.ids.slice(from, to));
                }
                // A running task of a held job goes on, but it does not run again.
                if phase != Phase::Running || tasks.is_none() {
                    changed.insert_range(from, to);
                }
            }
            for (from, to) in changed.ranges() {
                ids.extend(submit.ids.slice(from, to));
                match is_held {
                    true => submit.held.insert_range(from, to),
                    false => submit.held.remove_range(from, to),
                }
            }
            let all = found.changed.entry(number).or_default();
            changed
                .ranges()
                .for_each(|(from, to)| all.insert_range(from, to));
        }
        found.changed.retain(|_, changed| !changed.is_empty());
        (found.ids, found.sent) = (merge_ranges(ids), merge_ranges(sent));
        found.running = merge_ranges(running);
        found
    }

    /// Returns the unfinished tasks that a user holds.
    #[must_use]
    pub fn held(&self) -> IdArray {
        let mut ids: Vec<IdRange> = Vec::new();
        for submit in self.submits.iter().filter(|submit| !submit.held.is_empty()) {
            for (from, to, phase) in submit.tasks.runs(0, submit.ids.len()) {
                if !phase.is_terminal() {
                    let held = submit.held.within(from, to);
                    ids.extend(held.flat_map(|(from, to)| submit.ids.slice(from, to)));
                }
            }
        }
        merge_ranges(ids)
    }

    /// Restores a hold or release of tasks.
    pub(crate) fn restore_held(&mut self, held: &Held) {
        self.holds_new = held.holds_new;
        for (slot, count) in self.index.runs(&held.tasks) {
            if let Some(submit) = self.submits.get_mut(slot.submit as usize) {
                let (from, to) = (slot.index, slot.index + count);
                match held.is_held {
                    true => submit.held.insert_range(from, to),
                    false => submit.held.remove_range(from, to),
                }
            }
        }
    }
}
