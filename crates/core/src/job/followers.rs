//! Conditions between jobs: submits that wait for other jobs, and ends that they have not heard of.

use std::collections::{BTreeMap, BTreeSet};

use crate::id::{JobId, TaskId};

/// Submits that wait for other jobs, by the job that they wait for.
#[derive(Clone, Debug, Default)]
pub(super) struct Followers {
    /// Only of jobs that have not completed, or whose completion nobody has looked at.
    by_job: BTreeMap<JobId, Followed>,
    /// Ends that nobody has looked at yet: of a task, or of the rest of a job.
    ends: Vec<(JobId, Option<TaskId>)>,
}

/// Submits that wait for one job.
#[derive(Clone, Debug, Default)]
struct Followed {
    submits: BTreeSet<(JobId, u32)>,
    /// Some of them wait task by task.
    by_task: bool,
}

impl Followers {
    /// Has a submit wait for a job.
    pub(super) fn add(&mut self, job: JobId, follower: (JobId, u32), is_each: bool) {
        let followed = self.by_job.entry(job).or_default();
        followed.submits.insert(follower);
        // One that waits for single tasks makes each end count, also for those that wait for all of
        // it.
        followed.by_task |= is_each;
    }

    /// Submits that wait for a job.
    pub(super) fn of(&self, job: JobId) -> Vec<(JobId, u32)> {
        let followed = self.by_job.get(&job);
        followed.map_or_else(Vec::new, |followed| {
            followed.submits.iter().copied().collect()
        })
    }

    /// Whether somebody can go on because of the end of a task of this job.
    pub(super) fn want_end(&self, job: JobId, is_completed: bool) -> bool {
        let followed = self.by_job.get(&job);
        followed.is_some_and(|followed| followed.by_task || is_completed)
    }

    /// Whether anybody waits for an end of this job, or has not been notified of it.
    pub(super) fn is_followed(&self, job: JobId) -> bool {
        self.by_job.contains_key(&job)
    }

    /// Notes an end, if anybody waits for the job.
    pub(super) fn note(&mut self, job: JobId, task: Option<TaskId>) {
        // Most jobs are waited for by nobody: their ends cost nothing.
        if self.by_job.contains_key(&job) {
            self.ends.push((job, task));
        }
    }

    /// Ends that were noted since the last time, in their order.
    pub(super) fn take_ends(&mut self) -> Vec<(JobId, Option<TaskId>)> {
        std::mem::take(&mut self.ends)
    }

    /// A job has completed, and everybody who waited for it was looked at.
    pub(super) fn remove(&mut self, job: JobId) {
        self.by_job.remove(&job);
    }
}
