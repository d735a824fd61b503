//! Totals over all jobs, updated as jobs change, so that reading them takes O(1).
//!
//! Each job remembers its contribution, so that a change is counted once. The states are those of
//! `job list`. The counters start at 0 with the server and only grow.

use std::ops::Add;
use std::time::Duration;

use super::{Job, JobState};
use crate::task::TaskState;

/// A number of tasks for each state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PerState<N> {
    /// Not started yet.
    pub waiting: N,
    /// Running.
    pub running: N,
    /// Finished with exit code 0.
    pub finished: N,
    /// Failed.
    pub failed: N,
    /// Canceled by the user.
    pub canceled: N,
    /// Aborted by the server.
    pub aborted: N,
}

/// The number of tasks per state, of one job.
pub type TaskCounts = PerState<u32>;

/// The number of tasks per state, of any number of jobs.
pub type TaskTotals = PerState<u64>;

impl<N> PerState<N> {
    /// Returns the count of a state.
    pub const fn of(&mut self, state: TaskState) -> &mut N {
        match state {
            TaskState::Waiting => &mut self.waiting,
            TaskState::Running => &mut self.running,
            TaskState::Finished => &mut self.finished,
            TaskState::Failed => &mut self.failed,
            TaskState::Canceled => &mut self.canceled,
            TaskState::Aborted => &mut self.aborted,
        }
    }
}

impl<N: Copy + Add<Output = N>> PerState<N> {
    /// Returns the sum of all counts.
    #[must_use]
    pub fn total(&self) -> N {
        self.unfinished() + self.ended()
    }

    /// Returns the number of tasks that have not ended.
    #[must_use]
    pub fn unfinished(&self) -> N {
        self.waiting + self.running
    }

    /// Returns the number of tasks that have ended in any way.
    #[must_use]
    pub fn ended(&self) -> N {
        self.finished + self.failed + self.canceled + self.aborted
    }
}

impl TaskCounts {
    /// Returns the same numbers as totals.
    #[must_use]
    pub fn totals(&self) -> TaskTotals {
        PerState {
            waiting: self.waiting.into(),
            running: self.running.into(),
            finished: self.finished.into(),
            failed: self.failed.into(),
            canceled: self.canceled.into(),
            aborted: self.aborted.into(),
        }
    }
}

impl TaskTotals {
    /// Adds other totals.
    pub fn add(&mut self, mut other: Self) {
        for state in TaskState::ALL {
            *self.of(state) += *other.of(state);
        }
    }

    /// Moves `count` waiting tasks to another state, or all of them if there are fewer.
    pub fn shift(&mut self, count: u64, to: TaskState) {
        let moved = count.min(self.waiting);
        self.waiting -= moved;
        *self.of(to) += moved;
    }

    /// Returns the state of a job with these tasks, for every display.
    #[must_use]
    pub const fn state(&self, is_open: bool) -> JobState {
        // A job with running tasks is running, even after failures. Otherwise, its worst outcome
        // decides.
        if self.running > 0 {
            JobState::Running
        } else if self.waiting > 0 {
            JobState::Waiting
        } else if self.failed > 0 {
            JobState::Failed
        } else if self.aborted > 0 {
            JobState::Aborted
        } else if self.canceled > 0 {
            JobState::Canceled
        } else if is_open {
            // An open job without a failure waits for more tasks, so it is not finished.
            JobState::Opened
        } else {
            JobState::Finished
        }
    }

    fn take(&mut self, mut other: Self) {
        for state in TaskState::ALL {
            // If the sum wrapped, it would show billions of tasks until the server ends.
            *self.of(state) = self.of(state).saturating_sub(*other.of(state));
        }
    }
}

/// The number of jobs per state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct JobTotals([u64; JobState::ALL.len()]);

impl JobTotals {
    /// Returns the count of a state.
    #[must_use]
    pub const fn of(&self, state: JobState) -> u64 {
        // The array is as long as the list of states.
        self.0[state as usize]
    }

    /// Adds a job to the count of a state.
    pub const fn add(&mut self, state: JobState) {
        self.0[state as usize] += 1;
    }

    /// Removes a job from the count of a state.
    pub(super) const fn take(&mut self, state: JobState) {
        let count = &mut self.0[state as usize];
        *count = count.saturating_sub(1);
    }
}

/// The totals over all jobs, as of the last [`Jobs::take_changed`](super::Jobs::take_changed).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// The tasks of all jobs that have not been forgotten.
    pub tasks: TaskTotals,
    /// The jobs that have not been forgotten.
    pub jobs: JobTotals,
    /// The tasks that have ended since the server started. `waiting` and `running` stay 0.
    pub ended: TaskTotals,
    /// The number of instances started since the server started.
    pub started: u64,
    /// The number of failed or lost instances that were followed by another one.
    pub superseded: u64,
    /// The cpu time (run time times cpus) of instances that were cut off by the end of their
    /// worker's lifetime since the server started.
    pub cut_off: Duration,
}

impl Totals {
    /// Updates the contribution of a job, and counts the tasks that have ended since the last
    /// update.
    pub(super) fn count(&mut self, job: &mut Job) {
        let before = job
            .counted
            .map_or(TaskCounts::default(), |(counts, _)| counts);
        // Only the difference is counted, because a job is counted after each batch that changed
        // it.
        self.replace(job);
        let now = job.counts();
        let more = |now: u32, before: u32| u64::from(now.saturating_sub(before));
        self.ended.finished += more(now.finished, before.finished);
        self.ended.failed += more(now.failed, before.failed);
        self.ended.canceled += more(now.canceled, before.canceled);
        self.ended.aborted += more(now.aborted, before.aborted);
    }

    /// Updates the contribution of a restored job, whose task ends do not count for this server
    /// run.
    pub(super) fn replace(&mut self, job: &mut Job) {
        // The previous contribution is removed first, so that a job never counts twice.
        self.forget(job);
        let (counts, state) = (*job.counts(), job.state());
        self.tasks.add(counts.totals());
        self.jobs.add(state);
        job.counted = Some((counts, state));
    }

    /// Removes a job from the totals.
    pub(super) fn forget(&mut self, job: &mut Job) {
        if let Some((counts, state)) = job.counted.take() {
            self.tasks.take(counts.totals());
            self.jobs.take(state);
        }
    }
}
