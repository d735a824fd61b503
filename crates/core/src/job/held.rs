//! Tasks that a user holds: they do not start until a user releases them.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{Job, Submit, TaskSlot, merge_ranges};
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

/// Tasks of a job, by submit and index.
pub(crate) type Positions = BTreeMap<u32, IndexSet>;

/// The unfinished tasks that a hold, release or change concerns.
#[derive(Clone, Debug, Default)]
pub(crate) struct Affected {
    /// The changed tasks.
    pub(crate) changed: Positions,
    /// The tasks that do not run.
    pub(crate) waiting: Positions,
    /// Those of them that workers have, which may still start as they were.
    pub(crate) sent: Positions,
    /// The running tasks, which go on.
    pub(crate) running: Positions,
}

fn add(all: &mut Positions, submit: u32, (from, to): (u32, u32)) {
    all.entry(submit).or_default().insert_range(from, to);
}

impl Affected {
    /// Marks the running tasks as changed.
    pub(super) fn change_running(&mut self) {
        for (number, running) in &self.running {
            let parts = running.ranges();
            parts.for_each(|part| add(&mut self.changed, *number, part));
        }
    }
}

impl Submit {
    /// Returns the runs of unfinished tasks with the same phase.
    fn unfinished_runs(&self, part: Range<u32>) -> impl Iterator<Item = ((u32, u32), Phase)> + '_ {
        let runs = self.tasks.runs(part.start, part.end);
        let left = runs.filter(|(_, _, phase)| !phase.is_terminal());
        left.map(|(from, to, phase)| ((from, to), phase))
    }

    /// Returns the number of unfinished tasks.
    pub(crate) fn unfinished(&self) -> u32 {
        let left = self.unfinished_runs(0..self.ids.len());
        left.map(|((from, to), _)| to - from).sum()
    }

    /// Returns whether a user holds a task or it waits for unfinished dependencies in its job.
    #[must_use]
    pub fn is_blocked(&self, index: u32) -> bool {
        let graph = self.graph();
        self.held.contains(index) || graph.is_some_and(|graph| graph.unfinished(index) > 0)
    }
}

impl Job {
    /// Returns the parts of submits that contain `tasks`, or all tasks.
    fn parts(&self, tasks: Option<&IdArray>) -> Vec<(u32, &Submit, Range<u32>)> {
        let Some(ids) = tasks else {
            let submits = self.submits.iter().zip(0..);
            let whole = submits.map(|(submit, number)| (number, submit, 0..submit.ids.len()));
            return whole.collect();
        };
        let runs = self.index.runs(ids).into_iter();
        let part = |(slot, count): (TaskSlot, u32)| {
            let submit = self.submit(slot)?;
            Some((slot.submit, submit, slot.index..slot.index + count))
        };
        runs.filter_map(part).collect()
    }

    /// Returns the unfinished tasks among `tasks`, or all of them.
    pub(super) fn affected(&self, tasks: Option<&IdArray>) -> Affected {
        let mut found = Affected::default();
        for (number, submit, part) in self.parts(tasks) {
            for (run, phase) in submit.unfinished_runs(part) {
                if phase == Phase::Running {
                    add(&mut found.running, number, run);
                    continue;
                }
                add(&mut found.waiting, number, run);
                if phase.is_sent() {
                    add(&mut found.sent, number, run);
                }
            }
        }
        found
    }

    /// Returns the unfinished tasks among `tasks`, or all of them, that a user holds.
    fn held_among(&self, tasks: Option<&IdArray>) -> Positions {
        let mut found = Positions::new();
        let parts = self.parts(tasks).into_iter();
        for (number, submit, part) in parts.filter(|(_, submit, _)| !submit.held.is_empty()) {
            for ((from, to), _) in submit.unfinished_runs(part) {
                let held = submit.held.within(from, to);
                held.for_each(|part| add(&mut found, number, part));
            }
        }
        found
    }

    /// Returns the ids of tasks.
    pub(crate) fn ids(&self, tasks: &Positions) -> IdArray {
        let mut ids: Vec<IdRange> = Vec::new();
        for (number, tasks) in tasks {
            if let Some(submit) = self.submits.get(*number as usize) {
                ids.extend(
                    tasks
                        .ranges()
                        .flat_map(|(from, to)| submit.ids.slice(from, to)),
                );
            }
        }
        merge_ranges(ids)
    }

    /// Holds or releases the waiting tasks among `tasks`. `None` means all tasks, also the next
    /// attempts of running ones, and those that are submitted later.
    pub(crate) fn hold(&mut self, tasks: Option<&IdArray>, is_held: bool) -> Affected {
        if tasks.is_none() {
            self.holds_new = is_held && self.is_open;
        }
        let mut found = Affected::default();
        if is_held {
            found = self.affected(tasks);
            found.changed = std::mem::take(&mut found.waiting);
            // A running task of a held job goes on, but it does not run again.
            if tasks.is_none() {
                found.change_running();
            }
        } else {
            found.changed = self.held_among(tasks);
        }
        for (number, changed) in &found.changed {
            for part in changed.ranges() {
                self.set_held(*number, part, is_held);
            }
        }
        found
    }

    fn set_held(&mut self, submit: u32, (from, to): (u32, u32), is_held: bool) {
        if let Some(submit) = self.submits.get_mut(submit as usize) {
            match is_held {
                true => submit.held.insert_range(from, to),
                false => submit.held.remove_range(from, to),
            }
        }
    }

    /// Returns the unfinished tasks that a user holds.
    #[must_use]
    pub fn held(&self) -> IdArray {
        self.ids(&self.held_among(None))
    }

    /// Restores a hold or release of tasks.
    pub(crate) fn restore_held(&mut self, held: &Held) {
        self.holds_new = held.holds_new;
        for (slot, count) in self.index.runs(&held.tasks) {
            let part = (slot.index, slot.index + count);
            self.set_held(slot.submit, part, held.is_held);
        }
    }
}
