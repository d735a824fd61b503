//! Conditions between jobs: submissions that wait for other jobs, and task ends that have not been
//! delivered to them yet.

use std::collections::{BTreeMap, BTreeSet};

use super::SubmitAt;
use crate::id::{JobId, TaskId};

/// The submissions that wait for other jobs, keyed by the awaited job.
#[derive(Clone, Debug, Default)]
pub(super) struct Followers {
    /// Contains only jobs that have not completed, or whose completion has not been handled yet.
    by_job: BTreeMap<JobId, Followed>,
    /// The task ends that have not been handled: each of one task, or of the rest of a job.
    ends: Vec<(JobId, Option<TaskId>)>,
}

/// The submissions that wait for one job.
#[derive(Clone, Debug, Default)]
struct Followed {
    submits: BTreeSet<SubmitAt>,
    /// Whether some of them wait task by task.
    by_task: bool,
}

impl Followers {
    /// Makes a submission wait for a job.
    pub(super) fn add(&mut self, job: JobId, follower: SubmitAt, is_each: bool) {
        let followed = self.by_job.entry(job).or_default();
        followed.submits.insert(follower);
        // If any submission waits for single tasks, each end is delivered to all followers.
        followed.by_task |= is_each;
    }

    /// Returns the submissions that wait for a job.
    pub(super) fn of(&self, job: JobId) -> Vec<SubmitAt> {
        let followed = self.by_job.get(&job);
        followed.map_or_else(Vec::new, |followed| {
            followed.submits.iter().copied().collect()
        })
    }

    /// Returns whether the end of a task of this job can release a follower.
    pub(super) fn want_end(&self, job: JobId, is_completed: bool) -> bool {
        let followed = self.by_job.get(&job);
        followed.is_some_and(|followed| followed.by_task || is_completed)
    }

    /// Returns whether any submission waits for this job, or has not been notified of its end.
    pub(super) fn is_followed(&self, job: JobId) -> bool {
        self.by_job.contains_key(&job)
    }

    /// Records an end if any submission waits for the job.
    pub(super) fn note(&mut self, job: JobId, task: Option<TaskId>) {
        // Most jobs have no followers, and their ends cost nothing.
        if self.by_job.contains_key(&job) {
            self.ends.push((job, task));
        }
    }

    /// Removes and returns the recorded ends, in their order.
    pub(super) fn take_ends(&mut self) -> Vec<(JobId, Option<TaskId>)> {
        std::mem::take(&mut self.ends)
    }

    /// Forgets a completed job whose followers have all been handled.
    pub(super) fn remove(&mut self, job: JobId) {
        self.by_job.remove(&job);
    }
}
