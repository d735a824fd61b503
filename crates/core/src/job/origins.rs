//! Submissions made by tasks of the job. Another attempt of such a task must not add anything
//! twice.
//!
//! A submission is recognized by the key that the task gave it. Without a key, it is recognized by
//! its content, among the submissions of earlier attempts that this attempt has not repeated yet.
//! If some of those are left and none is equal, the submission may be new or a changed repetition.
//! The server rejects it, so that nothing is silently lost or done twice.

use std::collections::{BTreeMap, BTreeSet};

use super::{Job, TaskSlot};
use crate::bug;
use crate::id::{InstanceId, TaskId};
use crate::task::Phase;
use crate::template::Origin;

/// The relation of a submission to those of earlier attempts of its task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Repeat {
    /// The submission is new.
    New,
    /// The submission equals this submission of the job.
    Of(u32),
    /// The submission differs from all remaining submissions of earlier attempts.
    Differs,
}

/// The submissions of all tasks of a job.
#[derive(Clone, Debug, Default)]
pub(super) struct Origins {
    by_task: BTreeMap<TaskId, TaskSubmits>,
}

/// The submissions of one task.
#[derive(Clone, Debug, Default)]
struct TaskSubmits {
    /// The numbers of the submissions without a key, in order.
    numbers: Vec<u32>,
    by_key: BTreeMap<Box<str>, u32>,
    /// The attempt that `left` belongs to.
    instance: Option<InstanceId>,
    /// The submissions without a key that only other attempts have made.
    left: BTreeSet<u32>,
}

impl Origins {
    /// Notes a new submission.
    pub(super) fn note(&mut self, number: u32, origin: &Origin) {
        let made = self.by_task.entry(origin.task).or_default();
        match &origin.key {
            Some(key) => {
                made.by_key.insert(key.clone(), number);
            }
            None => {
                made.numbers.push(number);
                if made.instance != Some(origin.instance) {
                    made.left.insert(number);
                }
            }
        }
    }
}

impl Job {
    /// Determines whether a task repeats an earlier submission.
    pub(crate) fn repeat_of(&mut self, origin: &Origin) -> Repeat {
        let Some(made) = self.origins.by_task.get_mut(&origin.task) else {
            return Repeat::New;
        };
        if let Some(key) = &origin.key {
            let known = made.by_key.get(key);
            return known.map_or(Repeat::New, |number| Repeat::Of(*number));
        }
        let origin_of = |number: &u32| self.submits.get(*number as usize)?.origin.as_ref();
        // This is the first submission of an attempt. Later ones need no search.
        if made.instance != Some(origin.instance) {
            let by_others = made.numbers.iter().filter(|number| {
                origin_of(number).is_some_and(|other| other.instance != origin.instance)
            });
            made.left = by_others.copied().collect();
            made.instance = Some(origin.instance);
        }
        let same = made
            .left
            .iter()
            .find(|number| origin_of(number).is_some_and(|other| other.digest == origin.digest));
        match same {
            Some(number) => Repeat::Of(*number),
            None if made.left.is_empty() => Repeat::New,
            None => Repeat::Differs,
        }
    }

    /// Returns the waiting tasks whose next instance has the number of an instance that has
    /// submitted something.
    pub(crate) fn unseen_origins(&self) -> Vec<TaskSlot> {
        let origins = self
            .submits
            .iter()
            .filter_map(|submit| submit.origin.as_ref());
        let slots: BTreeSet<TaskSlot> = origins
            .filter_map(|origin| {
                let slot = self.find(origin.task)?;
                let next = self.instance(slot);
                let is_unseen = self.phase(slot) == Some(Phase::Waiting) && next == origin.instance;
                is_unseen.then_some(slot)
            })
            .collect();
        slots.into_iter().collect()
    }

    /// Records that another attempt of the task repeated a submission.
    pub(crate) fn note_repeated(&mut self, number: u32, instance: InstanceId) {
        let submit = self.submits.get_mut(number as usize);
        let Some(origin) = submit.and_then(|submit| submit.origin.as_mut()) else {
            bug!(
                "submit {number} of job {} is repeated, but no task made it",
                self.id
            );
            return;
        };
        origin.instance = instance;
        if let Some(made) = self.origins.by_task.get_mut(&origin.task)
            && made.instance == Some(instance)
        {
            made.left.remove(&number);
        }
    }
}
