//! Submits made by tasks of the job, so that another attempt of such a task adds nothing twice.
//!
//! A submit is recognized by the key that the task gave it. Without a key it is recognized by its
//! content, among the submits of earlier attempts that this attempt has not repeated yet. If some
//! of those are left and none is equal, it is unclear whether the submit is new or a changed
//! repetition. The server rejects it, so that nothing is silently lost or done twice.

use std::collections::{BTreeMap, BTreeSet};

use super::{Job, TaskSlot};
use crate::bug;
use crate::id::{InstanceId, TaskId};
use crate::task::Phase;
use crate::template::Origin;

/// Relation of a submit to the submits of earlier attempts of its task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Repeat {
    /// A new one.
    New,
    /// The same as this submit of the job.
    Of(u32),
    /// Differs from all submits of earlier attempts that are left.
    Differs,
}

/// Submits of all tasks of a job.
#[derive(Clone, Debug, Default)]
pub(super) struct Origins {
    by_task: BTreeMap<TaskId, TaskSubmits>,
}

/// Submits of one task.
#[derive(Clone, Debug, Default)]
struct TaskSubmits {
    /// Submits without a key, in order.
    numbers: Vec<u32>,
    by_key: BTreeMap<Box<str>, u32>,
    /// The attempt that `left` belongs to.
    instance: Option<InstanceId>,
    /// Submits without a key that only other attempts have made.
    left: BTreeSet<u32>,
}

impl Origins {
    /// Notes a new submit.
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
    /// Whether a task repeats an earlier submit.
    pub(crate) fn repeat_of(&mut self, origin: &Origin) -> Repeat {
        let Some(made) = self.origins.by_task.get_mut(&origin.task) else {
            return Repeat::New;
        };
        if let Some(key) = &origin.key {
            let known = made.by_key.get(key);
            return known.map_or(Repeat::New, |number| Repeat::Of(*number));
        }
        let origin_of = |number: &u32| self.submits.get(*number as usize)?.origin.as_ref();
        // The first submit of an attempt; later ones need no search.
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

    /// Waiting tasks whose next instance has the number of one that has submitted something.
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

    /// Records that another attempt of its task repeated a submit.
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
