//! Work on very large jobs, in portions: each batch does one, so that no request waits long.
//!
//! A submit of very many different tasks enters the ready queue in portions. Until it is complete,
//! nothing less urgent than its missing tasks is dispatched. Likewise ended tasks of a large job
//! leave the queue in portions. Until they have, only tasks more urgent than the first of them are
//! dispatched.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use crate::bug;
use crate::class::QueueKey;
use crate::id::JobId;
use crate::scheduler::queue::ReadyQueue;
use crate::scheduler::window::Window;

/// Size of a portion: examined tasks of graphs, and tasks removed from the queue. About 2 µs each.
#[derive(Clone, Copy, Debug)]
pub(super) struct PortionMax(pub(super) u32);

impl Default for PortionMax {
    fn default() -> Self {
        Self(1_024)
    }
}

/// Work that is left for the next batches.
#[derive(Clone, Debug, Default)]
pub(super) struct Portions {
    /// Submits with tasks that were not examined yet.
    unqueued: BTreeMap<(JobId, u32), Rest>,
    /// Submits with ended tasks in the ready queue.
    leaving: BTreeMap<JobId, Leaving>,
    /// Number of tasks that may still leave in this batch.
    leave_left: usize,
}

/// Tasks of a job that are to leave the ready queue.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    /// Number of its first submits whose tasks leave; later ones stay.
    submits: u32,
    /// Up to this queue they have.
    done_to: Option<QueueKey>,
}

/// The unexamined tasks of a submit.
#[derive(Clone, Copy, Debug)]
struct Rest {
    /// The first of them.
    next: u32,
    /// Whether it is the first pass since the submit or the restart.
    is_start: bool,
    /// The highest priority of the submit; of a blocked one the lowest that exists.
    most_urgent: Reverse<i32>,
}

impl Portions {
    /// Whether tasks are missing in the ready queue, or ended ones are left over.
    pub(super) fn is_any_left(&self) -> bool {
        !self.unqueued.is_empty() || !self.leaving.is_empty()
    }

    /// Whether an ended task of this submit may be in the ready queue.
    pub(super) fn is_leaving(&self, id: JobId, submit: u32) -> bool {
        let leaving = self.leaving.get(&id);
        leaving.is_some_and(|leaving| submit < leaving.submits)
    }

    /// Whether a task of a submit from this index on may be missing in the ready queue.
    #[cfg(any(test, feature = "testing"))]
    pub(super) fn is_unqueued(&self, id: JobId, slot: crate::job::TaskSlot) -> bool {
        let rest = self.unqueued.get(&(id, slot.submit));
        rest.is_some_and(|rest| slot.index >= rest.next)
    }

    /// Leaves a submit to be queued in portions.
    pub(super) fn note_unqueued(&mut self, at: (JobId, u32), priority: i32, is_start: bool) {
        let rest = Rest {
            next: 0,
            is_start,
            most_urgent: Reverse(priority),
        };
        // A pass in progress continues where it is, unless the submit was blocked until now.
        let known = self.unqueued.entry(at).or_insert(rest);
        if known.most_urgent != rest.most_urgent {
            *known = rest;
        }
    }

    /// Forgets a job whose waiting tasks will never run.
    pub(super) fn forget_unqueued(&mut self, id: JobId) {
        while let Some((at, _)) = self.unqueued.range((id, 0)..=(id, u32::MAX)).next() {
            let at = *at;
            self.unqueued.remove(&at);
        }
    }

    /// Removes from a round what is less urgent than a possibly missing task, and queues that may
    /// contain ended tasks.
    pub(super) fn narrow(&self, window: &mut Window, ready: &ReadyQueue) {
        let urgencies = self.unqueued.values().map(|rest| rest.most_urgent);
        // A missing task may have this priority: nothing less urgent goes first.
        if let Some(most_urgent) = urgencies.min() {
            window.queues.retain(|(key, _)| key.priority <= most_urgent);
            window.is_behind = true;
        }
        // Counts of these queues include tasks that have ended.
        if let Some(first) = self.first_leaving(ready) {
            window.queues.retain(|(key, _)| key.priority < first);
            window.is_behind = true;
        }
    }

    /// The highest priority at which ended tasks may be left in the ready queue.
    pub(super) fn first_leaving(&self, ready: &ReadyQueue) -> Option<Reverse<i32>> {
        let leaving = self.leaving.iter();
        let next = leaving.filter_map(|(id, leaving)| ready.next_of(*id, leaving.done_to));
        next.map(|key| key.priority).min()
    }
}

/// A submit with unexamined tasks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unqueued {
    pub(super) job: JobId,
    pub(super) number: u32,
    /// The first unexamined task.
    pub(super) next: u32,
    /// Whether it is the first pass since the submit or the restart.
    pub(super) is_start: bool,
}

impl Portions {
    /// A submit with unexamined tasks.
    pub(super) fn first_unqueued(&self) -> Option<Unqueued> {
        let ((job, number), rest) = self.unqueued.first_key_value()?;
        Some(Unqueued {
            job: *job,
            number: *number,
            next: rest.next,
            is_start: rest.is_start,
        })
    }

    /// Tasks of a submit before `next` were examined; `None` = all.
    pub(super) fn note_looked_at(&mut self, at: (JobId, u32), next: Option<u32>) {
        match (self.unqueued.get_mut(&at), next) {
            (Some(rest), Some(next)) => rest.next = next,
            (Some(_), None) => {
                self.unqueued.remove(&at);
            }
            (None, _) => bug!("submit {} of job {} is not in the unqueued set", at.1, at.0),
        }
    }

    /// Removes the tasks of the first `submits` submits of a job from the ready queue, a portion at
    /// once. Returns whether rounds may examine again what these hid.
    pub(super) fn leave(&mut self, ready: &mut ReadyQueue, id: JobId, submits: u32) -> bool {
        let leaving = Leaving {
            submits,
            done_to: None,
        };
        let was_leaving = self.leaving.insert(id, leaving).is_some();
        // If many jobs end at once, the first may use up the rest of this batch.
        let mut left = self.leave_left;
        let is_done = self.leave_some(ready, id, &mut left);
        self.leave_left = left;
        is_done && was_leaving
    }

    /// Does one portion of that. Returns whether rounds may examine again what some of these hid.
    pub(super) fn leave_portion(&mut self, ready: &mut ReadyQueue, most: u32) -> bool {
        let mut left = most as usize;
        let mut is_any_done = false;
        while let Some((id, _)) = self.leaving.first_key_value() {
            if !self.leave_some(ready, *id, &mut left) {
                break;
            }
            is_any_done = true;
        }
        self.leave_left = left;
        is_any_done
    }

    /// Removes some tasks of a job from the ready queue; returns whether those were all.
    fn leave_some(&mut self, ready: &mut ReadyQueue, id: JobId, left: &mut usize) -> bool {
        let Some(leaving) = self.leaving.get_mut(&id) else {
            bug!("job {id} does not leave the ready queue");
            return true;
        };
        let is_done = ready.remove_some(id, leaving.submits, &mut leaving.done_to, left);
        if is_done {
            self.leaving.remove(&id);
        }
        is_done
    }
}
