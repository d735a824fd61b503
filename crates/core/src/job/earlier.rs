//! The dependencies of a job: within one submission, and on tasks of earlier submissions of the
//! same job.
//!
//! Dependencies on earlier submissions always point back, so submissions are processed in order.
//! Jobs without such dependencies have no overhead.

use std::collections::{BTreeMap, BTreeSet};

use super::{Job, Submit, SubmitKind, TaskSlot};
use crate::bug;
use crate::graph::Graph;
use crate::id::{TaskId, WorkerId};
use crate::task::Phase;

/// The maximum number of dependencies that are examined at dispatch. A task that joins many others
/// hardly ever has all of them on one worker.
const FOLLOWED_MAX: usize = 64;

/// The dependencies on tasks of earlier submissions.
#[derive(Clone, Debug, Default)]
pub(super) struct EarlierDeps {
    /// Pairs of a dependency and its dependent. A pair is removed when the dependency finishes.
    pairs: BTreeSet<(TaskSlot, TaskSlot)>,
}

impl EarlierDeps {
    /// Returns the dependents of a task in later submissions.
    fn of(&self, slot: TaskSlot) -> impl Iterator<Item = TaskSlot> + '_ {
        let first = TaskSlot::new(0, 0);
        let last = TaskSlot::new(u32::MAX, u32::MAX);
        let pairs = self.pairs.range((slot, first)..=(slot, last));
        pairs.map(|(_, waiting)| *waiting)
    }

    /// Removes and returns the dependents of a finished task.
    fn take(&mut self, slot: TaskSlot) -> Vec<TaskSlot> {
        let waiting: Vec<TaskSlot> = self.of(slot).collect();
        for waiting in &waiting {
            self.pairs.remove(&(slot, *waiting));
        }
        waiting
    }
}

impl Job {
    /// Adds the dependencies of a new submission on earlier ones.
    pub(super) fn note_earlier(&mut self, number: u32, submit: &mut Submit) {
        let SubmitKind::Graph { graph, earlier, .. } = &mut submit.kind else {
            return;
        };
        for (index, task) in earlier {
            let Some(slot) = self.find(*task) else {
                bug!("job {} has no task {task} to wait for", self.id);
                continue;
            };
            // A dependency that did not succeed blocks its dependent forever.
            if self.phase(slot) != Some(Phase::Finished) {
                graph.wait_outside(*index);
                let waiting = TaskSlot::new(number, *index);
                self.earlier.pairs.insert((slot, waiting));
            }
        }
    }

    /// Returns the waiting tasks of a submission with a failed dependency. The dependency is in an
    /// earlier submission, or the dependent had been dispatched before a restart and the failure
    /// was not stored.
    pub(crate) fn doomed(&self, number: u32) -> Vec<TaskSlot> {
        let submit = self.submits.get(number as usize);
        let Some((submit, SubmitKind::Graph { graph, earlier, .. })) =
            submit.map(|submit| (submit, &submit.kind))
        else {
            return Vec::new();
        };
        let has_failed = |task: TaskId| {
            let phase = self.find(task).and_then(|slot| self.phase(slot));
            phase.is_some_and(has_ended_badly)
        };
        // Most dependents were aborted together with their dependency.
        let is_waiting = |index: u32| submit.tasks.phase(index) == Some(Phase::Waiting);
        let doomed = earlier
            .iter()
            .filter(|(index, task)| is_waiting(*index) && has_failed(*task));
        let mut indices: BTreeSet<u32> = doomed.map(|(index, _)| *index).collect();
        for (from, to, phase) in submit.tasks.runs(0, submit.tasks.len()) {
            if has_ended_badly(phase) {
                let dependents = (from..to).flat_map(|index| graph.dependents(index));
                indices.extend(dependents.filter(|index| is_waiting(**index)));
            }
        }
        let slots = indices
            .into_iter()
            .map(|index| TaskSlot::new(number, index));
        slots.collect()
    }

    /// Recounts finished dependencies after phases were restored.
    pub(super) fn replay_graphs(&mut self) {
        for submit in &mut self.submits {
            let SubmitKind::Graph { graph, .. } = &mut submit.kind else {
                continue;
            };
            for (from, to, phase) in submit.tasks.runs(0, submit.tasks.len()) {
                // Failed tasks release no dependents, because those were aborted and stored as
                // aborted.
                if phase == Phase::Finished {
                    for index in from..to {
                        graph.finish(index);
                    }
                }
            }
        }
        let awaited = self.earlier.pairs.iter().map(|(slot, _)| *slot);
        let awaited: BTreeSet<TaskSlot> = awaited.collect();
        for slot in awaited {
            if self.phase(slot) == Some(Phase::Finished) {
                self.release_later(slot);
            }
        }
    }

    /// Notes that a dependency has finished, and returns the slots that became ready.
    pub(crate) fn release_dependents(&mut self, slot: TaskSlot) -> Vec<TaskSlot> {
        let graph = self.graph_mut(slot.submit);
        let free = graph.map_or_else(Vec::new, |graph| graph.finish(slot.index));
        let free = free.into_iter().map(|index| TaskSlot { index, ..slot });
        let mut free: Vec<TaskSlot> = free.collect();
        free.extend(self.release_later(slot));
        free
    }

    /// Does the same for dependents in later submissions.
    fn release_later(&mut self, slot: TaskSlot) -> Vec<TaskSlot> {
        let mut waiting = self.earlier.take(slot);
        waiting.retain(|waiting| {
            let graph = self.graph_mut(waiting.submit);
            graph.is_some_and(|graph| graph.finish_outside(waiting.index))
        });
        waiting
    }

    fn graph_mut(&mut self, submit: u32) -> Option<&mut Graph> {
        match self.submits.get_mut(submit as usize).map(|s| &mut s.kind) {
            Some(SubmitKind::Graph { graph, .. }) => Some(graph),
            Some(SubmitKind::Array { .. }) | None => None,
        }
    }

    /// Returns the dependencies of a task, finished or not.
    fn awaited(&self, slot: TaskSlot) -> impl Iterator<Item = TaskSlot> + '_ {
        let submit = self.submit(slot);
        let graph = submit.and_then(Submit::graph);
        let same = graph.map_or(&[][..], |graph| graph.deps(slot.index));
        let same = same
            .iter()
            .map(move |index| TaskSlot::new(slot.submit, *index));
        let earlier = submit
            .into_iter()
            .flat_map(move |submit| submit.earlier_deps(slot.index));
        same.chain(earlier.filter_map(|task| self.find(task)))
    }

    /// Returns whether a dependency of a task ran, or may have run, on a worker other than
    /// `worker`, or on any worker if `None`. Always true for tasks with many dependencies, because
    /// comparing with the uncommitted ends is cheaper than examining them.
    #[must_use]
    pub(crate) fn follows_others(&self, slot: TaskSlot, worker: Option<WorkerId>) -> bool {
        let mut awaited = self.awaited(slot);
        let mut looked_at = awaited.by_ref().take(FOLLOWED_MAX);
        let ran_on = |slot| self.record(slot).map(|record| record.worker());
        looked_at.any(|slot| worker.is_none() || ran_on(slot) != worker) || awaited.next().is_some()
    }

    /// Returns the dependent of a task if it has exactly one, in the same submission.
    #[must_use]
    pub(crate) fn sole_dependent(&self, slot: TaskSlot) -> Option<TaskSlot> {
        let graph = self.submit(slot)?.graph()?;
        let &[index] = graph.dependents(slot.index) else {
            return None;
        };
        let is_sole = self.earlier.pairs.is_empty() || self.earlier.of(slot).next().is_none();
        is_sole.then_some(TaskSlot { index, ..slot })
    }

    /// Returns whether a task has unfinished dependencies. A dispatched task can have some if a
    /// worker brought it along from an earlier server run and the store lacks the ends of its
    /// dependencies.
    #[must_use]
    pub(crate) fn is_blocked(&self, slot: TaskSlot) -> bool {
        let submit = self.submit(slot);
        submit.is_some_and(|submit| submit.is_blocked(slot.index))
    }

    /// Returns whether a task has a failed dependency.
    #[must_use]
    pub(crate) fn is_doomed(&self, slot: TaskSlot) -> bool {
        let has_failed = |slot| self.phase(slot).is_some_and(has_ended_badly);
        self.is_blocked(slot) && self.awaited(slot).any(has_failed)
    }

    /// Returns whether other tasks may depend on tasks of a submission.
    pub(crate) fn has_dependents(&self, number: u32) -> bool {
        let submit = self.submits.get(number as usize);
        !self.earlier.pairs.is_empty() || submit.is_some_and(|submit| submit.graph().is_some())
    }

    /// Returns the slots of all direct and indirect dependents of a task.
    #[must_use]
    pub fn descendants(&self, slot: TaskSlot) -> Vec<TaskSlot> {
        self.descendants_of_all(&[slot])
    }

    /// Returns the slots of all tasks that depend on any of the given tasks, each once.
    #[must_use]
    pub fn descendants_of_all(&self, slots: &[TaskSlot]) -> Vec<TaskSlot> {
        let mut roots = BTreeMap::<u32, Vec<u32>>::new();
        for slot in slots {
            roots.entry(slot.submit).or_default().push(slot.index);
        }
        let mut found = Vec::new();
        // Dependents in later submissions. A submission is processed after all submissions that
        // lead to it.
        let mut later = BTreeSet::new();
        while let Some((submit, roots_here)) = roots.pop_first() {
            let any = TaskSlot { submit, index: 0 };
            let graph = self.submit(any).and_then(Submit::graph);
            let below = graph.map_or_else(Vec::new, |graph| graph.descendants(&roots_here));
            if !self.earlier.pairs.is_empty() {
                for index in roots_here.iter().chain(&below) {
                    for waiting in self.earlier.of(TaskSlot::new(submit, *index)) {
                        if later.insert(waiting) {
                            let roots = roots.entry(waiting.submit).or_default();
                            roots.push(waiting.index);
                        }
                    }
                }
            }
            found.extend(below.into_iter().map(|index| TaskSlot { submit, index }));
        }
        if !later.is_empty() {
            found.extend(later);
            found.sort_unstable();
            found.dedup();
        }
        found
    }
}

fn has_ended_badly(phase: Phase) -> bool {
    phase.is_terminal() && phase != Phase::Finished
}
