//! One allocation: its known state, and the evidence for it.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::batch::job_parts;
use crate::id::{AllocationKey, WorkerId};
use crate::scheduler::demand::Coming;
use crate::time::{Now, Time, Timestamp};

/// Workers lost sooner than this never worked.
pub(super) const FAST_LOSS: Duration = Duration::from_secs(60);
/// Consecutive status errors after which a queued allocation counts as failed.
pub(super) const QUEUED_ERRORS_MAX: u32 = 10;
/// Consecutive status errors after which a running allocation counts as finished.
pub(super) const RUNNING_ERRORS_MAX: u32 = 20;
/// Consecutive answers without the job after which it counts as gone.
pub(super) const MISSING_MAX: u32 = 2;
/// Longest wait for missing workers after the first sign of their allocation.
const OWED_MAX: Duration = Duration::from_secs(300);
/// A new worker without a task for this time was not needed: the scheduler would have assigned one.
const UNUSED_MIN: Duration = Duration::from_secs(5);
/// After this time, waiting tasks may have been submitted after the worker came.
const UNUSED_MAX: Duration = Duration::from_secs(120);
/// Time after which an unneeded allocation is canceled, unless its queue keeps it.
pub(super) const UNNEEDED_MAX: Duration = Duration::from_secs(600);
/// Time after which a running allocation without workers is canceled.
pub(super) const LEAVE_GRACE: Duration = Duration::from_secs(120);
/// Longest time for a job to end, or to be requeued, after its last worker has left.
pub(super) const ENDING_MAX: Duration = Duration::from_secs(120);
/// Failed searches after which a submission of a removed queue counts as not made.
pub(super) const TRIES_MAX: u32 = 20;

/// State for users.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocationState {
    /// Waits in the batch system.
    Queued,
    /// Has nodes.
    Running,
    /// Has ended.
    Finished,
    /// Has ended too early.
    Failed,
}

/// Internal state of an allocation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// The submission is in progress.
    Submitting,
    /// The submission may have happened. The next search by name is due at `next`.
    Unsure {
        since: Time,
        next: Time,
        absent: u32,
        errors: u32,
    },
    /// Waits in the batch system.
    Queued,
    /// Has nodes.
    Running,
    /// Ended for users, but keeps its place in the quota until the batch system confirms the end.
    Leaving {
        failed: bool,
        started: bool,
        cancel_at: Time,
        next: Time,
        tries: u32,
        asked: bool,
    },
    /// Has ended.
    Ended { failed: bool },
}

/// The last worker has left; the next answer of the batch system decides the outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ending {
    pub(super) since: Time,
    /// All workers were lost at once.
    pub(super) failed: bool,
    /// The last one left without a goodbye.
    pub(super) crashed: bool,
    /// The query was sent after it had left.
    pub(super) asked: bool,
}

/// An allocation as it is stored and shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllocationRecord {
    /// Queue and number.
    pub key: AllocationKey,
    /// Requested workers.
    pub workers: u32,
    /// The batch system's id, and cluster; `None` while it is unknown whether a job exists.
    pub job: Option<Box<str>>,
    /// State for users.
    pub state: AllocationState,
    /// Time of the request.
    pub queued_at: Timestamp,
    /// Time of its start.
    pub started_at: Option<Timestamp>,
    /// Time of its end.
    pub ended_at: Option<Timestamp>,
    /// Over for users, although the batch system may still have its job. Set in stored records
    /// only.
    pub is_leaving: bool,
}

/// One allocation.
#[derive(Clone, Debug)]
pub struct Allocation {
    pub(super) record: AllocationRecord,
    pub(super) phase: Phase,
    pub(super) connected: BTreeSet<WorkerId>,
    pub(super) seen: u32,
    pub(super) lost: u32,
    pub(super) lost_fast: u32,
    pub(super) errors: u32,
    pub(super) missing: u32,
    pub(super) next_poll: Time,
    /// Deadline of the answer to a status query.
    pub(super) polling: Option<Time>,
    pub(super) started: Option<Time>,
    pub(super) ending: Option<Ending>,
    /// Time when its newest worker connected.
    pub(super) last_came: Option<Time>,
    /// Whether a worker that left had received a task.
    pub(super) used: bool,
    /// Whether its workers took none of the waiting tasks; counted as a failure.
    pub(super) is_useless: bool,
    /// Since when no task needs it.
    pub(super) unneeded: Option<Time>,
    /// Last answer of the batch system.
    pub(super) hint: Box<str>,
    /// Whether it was given up for lack of answers, not on evidence.
    pub(super) is_doubtful: bool,
    /// Whether it started, or may have started, without a server: its end says nothing about the
    /// queue, because a worker that lost its server exits with a special code.
    pub(super) is_unwatched: bool,
}

impl Allocation {
    pub(super) fn new(key: AllocationKey, workers: u32, now: Now) -> Self {
        let record = AllocationRecord {
            key,
            workers,
            job: None,
            state: AllocationState::Queued,
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
        // Its workers reconnect later; until then it counts as complete.
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
            connected: BTreeSet::new(),
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
            hint: "".into(),
            is_doubtful: false,
            is_unwatched: false,
        }
    }

    /// Queue and number.
    #[must_use]
    pub const fn key(&self) -> AllocationKey {
        self.record.key
    }

    /// The batch system's id, with the cluster if known: see [`job_parts`].
    #[must_use]
    pub fn job(&self) -> Option<&str> {
        self.record.job.as_deref()
    }

    /// Likewise, without the cluster.
    #[must_use]
    pub fn job_id(&self) -> Option<&str> {
        self.job().map(|job| job_parts(job).0)
    }

    /// How well it matches the job that a worker reports: 0 = not at all. A missing cluster, on
    /// either side, matches every cluster.
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

    /// The data that users see.
    #[must_use]
    pub const fn record(&self) -> &AllocationRecord {
        &self.record
    }

    /// The data that are stored.
    pub(super) fn stored(&self) -> AllocationRecord {
        AllocationRecord {
            is_leaving: matches!(self.phase, Phase::Leaving { .. }),
            ..self.record.clone()
        }
    }

    /// Whether the batch system may still have, or start, a job for it.
    #[must_use]
    pub const fn may_be_alive(&self) -> bool {
        !matches!(self.phase, Phase::Ended { .. })
    }

    /// Whether it is unknown if a job exists.
    pub(super) const fn is_unsure(&self) -> bool {
        matches!(self.phase, Phase::Unsure { .. })
    }

    /// Whether it takes a place among the allocations that have not started.
    pub(super) const fn is_waiting(&self) -> bool {
        matches!(
            self.phase,
            Phase::Submitting
                | Phase::Unsure { .. }
                | Phase::Queued
                | Phase::Leaving { started: false, .. }
        )
    }

    /// Workers that may exist.
    pub(super) fn workers_alive(&self) -> u32 {
        if self.may_be_alive() {
            self.record.workers
        } else {
            u32::try_from(self.connected.len()).unwrap_or(u32::MAX)
        }
    }

    /// Whether some of its workers are missing and not late: then it still counts with all of them.
    fn is_owing(&self, now: Time) -> bool {
        self.seen.max(self.lost) < self.record.workers
            && self.started.is_some_and(|at| now.since(at) < OWED_MAX)
    }

    /// The missing workers; `None` if none are missing.
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

    /// Whether its workers are here and none of them ever got a task, although the scheduler had
    /// time for it.
    pub(super) fn has_idled(&self, now: Time, unused: &[WorkerId]) -> bool {
        let has_just_come = |at| (UNUSED_MIN..=UNUSED_MAX).contains(&now.since(at));
        let has_waited = self.last_came.is_some_and(has_just_come);
        self.phase == Phase::Running
            && !self.is_useless
            && !self.used
            && !self.is_owing(now)
            && has_waited
            && !self.connected.is_empty()
            && self.connected.iter().all(|worker| unused.contains(worker))
    }

    /// Requeued by the batch system, or found again: starts over.
    pub(super) fn wait_again(&mut self) {
        self.phase = Phase::Queued;
        self.record.state = AllocationState::Queued;
        (self.record.started_at, self.record.ended_at) = (None, None);
        (self.started, self.ending, self.is_doubtful) = (None, None, false);
        (self.seen, self.lost, self.lost_fast) = (0, 0, 0);
        (self.errors, self.missing) = (0, 0);
    }

    pub(super) fn start(&mut self, now: Now) {
        self.phase = Phase::Running;
        self.record.state = AllocationState::Running;
        self.record.started_at.get_or_insert(now.wall);
        self.record.ended_at = None;
        self.started.get_or_insert(now.mono);
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

    /// Ends it for users; keeps known times.
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
    /// Left at this time, and canceled at `cancel_at` unless the batch system agrees before.
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
