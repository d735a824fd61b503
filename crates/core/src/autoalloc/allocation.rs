//! An allocation: its known state, and the evidence for it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::batch::job_parts;
use crate::id::{AllocationKey, WorkerId};
use crate::scheduler::demand::Coming;
use crate::time::{Now, Time, Timestamp};

/// A worker that is lost sooner than this counts as having done no work.
pub(super) const FAST_LOSS: Duration = Duration::from_secs(60);
/// The number of consecutive status errors after which a queued allocation counts as failed.
pub(super) const QUEUED_ERRORS_MAX: u32 = 10;
/// The number of consecutive status errors after which a running allocation counts as finished.
pub(super) const RUNNING_ERRORS_MAX: u32 = 20;
/// The number of consecutive answers without the job after which it counts as gone.
pub(super) const MISSING_MAX: u32 = 2;
/// How long to wait for missing workers after the first sign of their allocation.
const OWED_MAX: Duration = Duration::from_secs(300);
/// If a new worker has no task for this long, it is not needed, because the scheduler would have
/// assigned one otherwise.
const UNUSED_MIN: Duration = Duration::from_secs(5);
/// If a worker has been connected for longer than this, the waiting tasks may have been submitted
/// after it connected.
const UNUSED_MAX: Duration = Duration::from_secs(120);
/// How long an allocation may be unneeded before it is canceled, unless its queue keeps it.
pub(super) const UNNEEDED_MAX: Duration = Duration::from_secs(600);
/// How long a running allocation may have no workers before it is canceled.
pub(super) const LEAVE_GRACE: Duration = Duration::from_secs(120);
/// If an allocation is due to be canceled later than this, it is left to end by itself.
const RUNS_ON_MIN: Duration = Duration::from_secs(365 * 86_400);
/// How long a job may take to end, or to be requeued, after its last worker has left.
pub(super) const ENDING_MAX: Duration = Duration::from_secs(120);
/// The number of failed searches after which a submission of a removed queue counts as failed.
pub(super) const TRIES_MAX: u32 = 20;

/// The state that users see.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocationState {
    /// The allocation waits in the batch system.
    Queued,
    /// The allocation has nodes.
    Running,
    /// The allocation has ended.
    Finished,
    /// The allocation ended too early.
    Failed,
}

/// The internal state of an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// The submission is in progress.
    Submitting,
    /// It is unknown whether the submission succeeded. The next search by name is due at `next`.
    Unsure {
        since: Time,
        next: Time,
        absent: u32,
        errors: u32,
    },
    /// The allocation waits in the batch system.
    Queued,
    /// The allocation has nodes.
    Running,
    /// The allocation has ended for users, but keeps its place in the quota until the batch system
    /// confirms the end.
    Leaving {
        failed: bool,
        started: bool,
        cancel_at: Time,
        next: Time,
        tries: u32,
        asked: bool,
    },
    /// The allocation has ended.
    Ended { failed: bool },
}

/// The state after the last worker has left. The next answer of the batch system determines the
/// outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ending {
    pub(super) since: Time,
    /// Whether all workers were lost at once.
    pub(super) failed: bool,
    /// Whether the last worker left without a goodbye.
    pub(super) crashed: bool,
    /// Whether the query was sent after the last worker had left.
    pub(super) asked: bool,
}

/// The data of an allocation that is stored and shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllocationRecord {
    /// The queue and the number of the allocation.
    pub key: AllocationKey,
    /// The path of its directory, which need not exist.
    pub dir: Box<[u8]>,
    /// The number of requested workers.
    pub workers: u32,
    /// The batch system's id of the job, with the cluster. `None` while it is unknown whether a job
    /// exists.
    pub job: Option<Box<str>>,
    /// The state that users see.
    pub state: AllocationState,
    /// What the batch system last said about it, or why it ended. Empty if there is nothing to say
    /// beyond the state.
    pub reason: Box<str>,
    /// When it was requested.
    pub queued_at: Timestamp,
    /// When it started.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// Whether it has ended for users although the batch system may still have its job. Set only in
    /// stored records.
    pub is_leaving: bool,
}

/// An allocation.
#[derive(Clone, Debug)]
pub struct Allocation {
    pub(super) record: AllocationRecord,
    pub(super) phase: Phase,
    /// The connected workers and their host names.
    pub(super) connected: BTreeMap<WorkerId, Box<str>>,
    pub(super) seen: u32,
    pub(super) lost: u32,
    pub(super) lost_fast: u32,
    pub(super) errors: u32,
    pub(super) missing: u32,
    pub(super) next_poll: Time,
    /// The deadline for the answer to a status query.
    pub(super) polling: Option<Time>,
    pub(super) started: Option<Time>,
    pub(super) ending: Option<Ending>,
    /// When its newest worker connected.
    pub(super) last_came: Option<Time>,
    /// Whether a worker that left had received a task.
    pub(super) used: bool,
    /// Whether its workers took none of the waiting tasks, which is counted as a failure.
    pub(super) is_useless: bool,
    /// When tasks stopped needing it.
    pub(super) unneeded: Option<Time>,
    /// Whether it was given up only because the batch system did not answer.
    pub(super) is_doubtful: bool,
    /// Whether it started, or may have started, without a server. In that case its end says nothing
    /// about the queue, because a worker that has lost its server exits with a special code.
    pub(super) is_unwatched: bool,
}

impl Allocation {
    pub(super) fn new(key: AllocationKey, workers: u32, dir: Box<[u8]>, now: Now) -> Self {
        let record = AllocationRecord {
            key,
            dir,
            workers,
            job: None,
            state: AllocationState::Queued,
            reason: "".into(),
            queued_at: now.wall,
            started_at: None,
            ended_at: None,
            is_leaving: false,
        };
        Self::with(record, Phase::Submitting, now)
    }

    pub(super) fn restore(mut record: AllocationRecord, now: Now) -> Self {
        let is_leaving = std::mem::take(&mut record.is_leaving);
        let failed = record.state == AllocationState::Failed;
        let phase = match (record.state, &record.job) {
            (AllocationState::Finished | AllocationState::Failed, Some(_)) if is_leaving => {
                let started = record.started_at.is_some();
                Phase::leaving(now.mono, failed, started, now.mono)
            }
            (AllocationState::Finished | AllocationState::Failed, _) => Phase::Ended { failed },
            (AllocationState::Queued | AllocationState::Running, None) => Phase::unsure(now),
            (AllocationState::Queued, Some(_)) => Phase::Queued,
            (AllocationState::Running, Some(_)) => Phase::Running,
        };
        let mut allocation = Self::with(record, phase, now);
        allocation.is_unwatched = matches!(phase, Phase::Queued | Phase::Running);
        // The workers will reconnect later. Until then, the allocation counts as complete.
        if phase == Phase::Running {
            allocation.seen = allocation.record.workers;
            allocation.started = Some(now.mono);
        }
        allocation
    }

    fn with(record: AllocationRecord, phase: Phase, now: Now) -> Self {
        Self {
            record,
            phase,
            connected: BTreeMap::new(),
            seen: 0,
            lost: 0,
            lost_fast: 0,
            errors: 0,
            missing: 0,
            next_poll: now.mono,
            polling: None,
            started: None,
            ending: None,
            last_came: None,
            used: false,
            is_useless: false,
            unneeded: None,
            is_doubtful: false,
            is_unwatched: false,
        }
    }

    /// Returns the queue and the number.
    #[must_use]
    pub const fn key(&self) -> AllocationKey {
        self.record.key
    }

    /// Returns the batch system's id, with the cluster if it is known; see [`job_parts`].
    #[must_use]
    pub fn job(&self) -> Option<&str> {
        self.record.job.as_deref()
    }

    /// Returns the batch system's id without the cluster.
    #[must_use]
    pub fn job_id(&self) -> Option<&str> {
        self.job().map(|job| job_parts(job).0)
    }

    /// Returns how well the allocation matches the job that a worker reports. 0 means not at all.
    /// If either side has no cluster, it matches every cluster.
    pub(super) fn fit(&self, job: &str) -> u8 {
        let (id, cluster) = job_parts(job);
        let own = self.job().map(job_parts);
        let Some((_, own_cluster)) = own.filter(|(own, _)| *own == id) else {
            return 0;
        };
        match (own_cluster, cluster) {
            (Some(own), Some(other)) if own != other => 0,
            (Some(_), Some(_)) | (None, None) => 2,
            (Some(_), None) | (None, Some(_)) => 1,
        }
    }

    /// Returns the data that users see.
    #[must_use]
    pub const fn record(&self) -> &AllocationRecord {
        &self.record
    }

    /// Returns whether a restarted server cancels the allocation, as this server would have done.
    /// Other allocations end by themselves, or their workers come back.
    pub(super) fn is_leaving(&self, is_removed: bool) -> bool {
        match self.phase {
            Phase::Leaving { asked, .. } => {
                asked || self.is_doubtful || is_removed && !self.runs_on()
            }
            Phase::Submitting
            | Phase::Unsure { .. }
            | Phase::Queued
            | Phase::Running
            | Phase::Ended { .. } => false,
        }
    }

    /// Returns the data to store.
    pub(super) fn stored(&self, is_removed: bool) -> AllocationRecord {
        AllocationRecord {
            is_leaving: self.is_leaving(is_removed),
            ..self.record.clone()
        }
    }

    /// Returns whether the batch system may still have a job for it, or may still start one.
    #[must_use]
    pub const fn may_be_alive(&self) -> bool {
        !matches!(self.phase, Phase::Ended { .. })
    }

    /// Returns whether it is unknown if a job exists.
    pub(super) const fn is_unsure(&self) -> bool {
        matches!(self.phase, Phase::Unsure { .. })
    }

    /// Returns whether it counts as an allocation that has not started.
    pub(super) const fn is_waiting(&self) -> bool {
        matches!(
            self.phase,
            Phase::Submitting
                | Phase::Unsure { .. }
                | Phase::Queued
                | Phase::Leaving { started: false, .. }
        )
    }

    /// Returns the number of workers that may exist.
    pub(super) fn workers_alive(&self) -> u32 {
        if self.may_be_alive() {
            self.record.workers
        } else {
            u32::try_from(self.connected.len()).unwrap_or(u32::MAX)
        }
    }

    /// Returns whether some of its workers are missing but not yet late, so that all of its workers
    /// still count.
    fn is_owing(&self, now: Time) -> bool {
        self.seen.max(self.lost) < self.record.workers
            && self.started.is_some_and(|at| now.since(at) < OWED_MAX)
    }

    /// Returns the missing workers, or `None` if there are none.
    pub(super) fn coming(&self, now: Time) -> Option<Coming> {
        let workers = self.record.workers;
        let owed = match self.phase {
            Phase::Submitting | Phase::Unsure { .. } | Phase::Queued => workers,
            Phase::Running if self.is_owing(now) => workers - self.seen.max(self.lost),
            Phase::Running | Phase::Leaving { .. } | Phase::Ended { .. } => return None,
        };
        Some(Coming {
            number: self.record.key.number,
            workers,
            owed,
        })
    }

    /// Returns whether its workers have connected and none of them ever got a task, although the
    /// scheduler had time for it.
    pub(super) fn has_idled(&self, now: Time, unused: &[WorkerId]) -> bool {
        let has_just_come = |at| (UNUSED_MIN..=UNUSED_MAX).contains(&now.since(at));
        let has_waited = self.last_came.is_some_and(has_just_come);
        self.phase == Phase::Running
            && !self.is_useless
            && !self.used
            && !self.is_owing(now)
            && has_waited
            && !self.connected.is_empty()
            && self.connected.keys().all(|worker| unused.contains(worker))
    }

    /// Starts over, because the batch system requeued the job or it was found again.
    pub(super) fn wait_again(&mut self) {
        self.phase = Phase::Queued;
        self.record.state = AllocationState::Queued;
        (self.record.started_at, self.record.ended_at) = (None, None);
        (self.started, self.ending, self.is_doubtful) = (None, None, false);
        (self.seen, self.lost, self.lost_fast) = (0, 0, 0);
        (self.errors, self.missing) = (0, 0);
    }

    /// Sets the reason that users see next to the state. Returns whether it has changed.
    pub(super) fn explain(&mut self, reason: &str) -> bool {
        let has_changed = &*self.record.reason != reason;
        self.record.reason = reason.into();
        has_changed
    }

    pub(super) fn start(&mut self, now: Now) {
        self.phase = Phase::Running;
        self.record.state = AllocationState::Running;
        self.record.started_at.get_or_insert(now.wall);
        self.record.ended_at = None;
        self.started.get_or_insert(now.mono);
    }

    /// Returns whether its job keeps running without workers, and ends by itself.
    pub(super) fn runs_on(&self) -> bool {
        match self.phase {
            Phase::Leaving {
                cancel_at, next, ..
            } => !self.is_doubtful && cancel_at.since(next) > RUNS_ON_MIN,
            Phase::Submitting
            | Phase::Unsure { .. }
            | Phase::Queued
            | Phase::Running
            | Phase::Ended { .. } => false,
        }
    }

    /// Stops waiting for workers to return.
    pub(super) fn cancel_now(&mut self, now: Now) {
        if let Phase::Leaving {
            cancel_at,
            next,
            asked,
            ..
        } = &mut self.phase
            && !*asked
        {
            (*cancel_at, *next) = (now.mono, now.mono);
        }
    }

    /// Ends the allocation for users. Known times are kept.
    pub(super) fn show_end(&mut self, now: Now, failed: bool) {
        self.record.state = if failed {
            AllocationState::Failed
        } else {
            AllocationState::Finished
        };
        self.record.ended_at.get_or_insert(now.wall);
    }
}

impl Phase {
    /// Returns the phase of an allocation that leaves now, and is canceled at `cancel_at` unless
    /// the batch system confirms its end before then.
    pub(super) const fn leaving(now: Time, failed: bool, started: bool, cancel_at: Time) -> Self {
        Self::Leaving {
            failed,
            started,
            cancel_at,
            next: now,
            tries: 0,
            asked: false,
        }
    }

    pub(super) fn unsure(now: Now) -> Self {
        Self::Unsure {
            since: now.mono,
            next: now.mono,
            absent: 0,
            errors: 0,
        }
    }
}
