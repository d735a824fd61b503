//! One allocation: what is known of it, and on what evidence.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::batch::job_parts;
use crate::id::{AllocationKey, WorkerId};
use crate::scheduler::demand::Coming;
use crate::time::{Now, Time, Timestamp};

/// Workers lost sooner than this never worked.
pub(super) const FAST_LOSS: Duration = Duration::from_secs(60);
/// Status errors in a row after which a queued allocation counts as failed.
pub(super) const QUEUED_ERRORS_MAX: u32 = 10;
/// Status errors in a row after which a running allocation counts as finished.
pub(super) const RUNNING_ERRORS_MAX: u32 = 20;
/// Answers in a row that do not know a job until it counts as gone.
pub(super) const MISSING_MAX: u32 = 2;
/// Workers that have not come this long after the first sign of their allocation are not waited for.
const OWED_MAX: Duration = Duration::from_secs(300);
/// The scheduler gives a new worker its first task within this time, if there is one for it.
const UNUSED_MIN: Duration = Duration::from_secs(5);
/// What waits this long after a worker came may be work that was submitted later.
const UNUSED_MAX: Duration = Duration::from_secs(120);
/// An allocation that no task needs is canceled after this time, unless it is to be kept.
pub(super) const UNNEEDED_MAX: Duration = Duration::from_secs(600);
/// An allocation without workers that still runs is canceled after this time.
pub(super) const LEAVE_GRACE: Duration = Duration::from_secs(120);
/// A job may take this long to end, or to be requeued, after its last worker has left.
pub(super) const ENDING_MAX: Duration = Duration::from_secs(120);
/// Fruitless searches until a submission of a removed queue counts as not made.
pub(super) const TRIES_MAX: u32 = 20;

/// State as users see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AllocationState {
    /// Waits in the batch system.
    Queued,
    /// Has nodes.
    Running,
    /// Is over.
    Finished,
    /// Is over, and should not be yet.
    Failed,
}

/// Where an allocation is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// The submission is being carried out.
    Submitting,
    /// The submission may have happened: looked for by name at this time.
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
    /// Over for users, but its place in the quota is kept until the batch system agrees.
    Leaving {
        failed: bool,
        started: bool,
        cancel_at: Time,
        next: Time,
        tries: u32,
        asked: bool,
    },
    /// Over.
    Ended { failed: bool },
}

/// The last worker has left: one more answer of the batch system decides what that means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Ending {
    pub(super) since: Time,
    /// All workers were lost at once.
    pub(super) failed: bool,
    /// The last one left without a goodbye.
    pub(super) crashed: bool,
    /// The question was asked after it had left.
    pub(super) asked: bool,
}

/// An allocation as it is stored and shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllocationRecord {
    /// Queue and number.
    pub key: AllocationKey,
    /// Workers asked for.
    pub workers: u32,
    /// The batch system's id, and cluster; `None` while it is not known whether there is a job.
    pub job: Option<Box<str>>,
    /// State for users.
    pub state: AllocationState,
    /// When it was asked for.
    pub queued_at: Timestamp,
    /// When it got its nodes.
    pub started_at: Option<Timestamp>,
    /// When it was over.
    pub ended_at: Option<Timestamp>,
    /// It is over for users, and the batch system may still have its job. Only set in stored
    /// records.
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
    /// When the answer to a question is overdue.
    pub(super) polling: Option<Time>,
    pub(super) started: Option<Time>,
    pub(super) ending: Option<Ending>,
    /// When its last worker so far connected.
    pub(super) last_came: Option<Time>,
    /// One of its workers that left had been given a task.
    pub(super) used: bool,
    /// Its workers came and took nothing of what waited: it counted as a failure.
    pub(super) is_useless: bool,
    /// Since when no task needs it.
    pub(super) unneeded: Option<Time>,
    /// Last answer of the batch system.
    pub(super) hint: Box<str>,
    /// It was given up because nobody answered, not on evidence.
    pub(super) is_doubtful: bool,
    /// It started, or may have, while no server was there: how it ends says nothing about the queue. A
    /// worker that lost its server ends with an exit code of its own.
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
        // Its workers are found again when they connect; until then it counts as having had some.
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

    /// The batch system's id, with the cluster if there is one: see [`job_parts`].
    #[must_use]
    pub fn job(&self) -> Option<&str> {
        self.record.job.as_deref()
    }

    /// The same without the cluster.
    #[must_use]
    pub fn job_id(&self) -> Option<&str> {
        self.job().map(|job| job_parts(job).0)
    }

    /// How well it fits the job that a worker names: 0 = not at all. A worker, or an allocation, that knows no cluster
    /// fits every cluster.
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

    /// As it is shown.
    #[must_use]
    pub const fn record(&self) -> &AllocationRecord {
        &self.record
    }

    /// As it is stored.
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

    /// Whether it is not known if there is a job.
    pub(super) const fn is_unsure(&self) -> bool {
        matches!(self.phase, Phase::Unsure { .. })
    }

    /// Whether it takes one of the places for allocations that have not started.
    pub(super) const fn is_waiting(&self) -> bool {
        matches!(
            self.phase,
            Phase::Submitting
                | Phase::Unsure { .. }
                | Phase::Queued
                | Phase::Leaving { started: false, .. }
        )
    }

    /// Workers it may have.
    pub(super) fn workers_alive(&self) -> u32 {
        if self.may_be_alive() {
            self.record.workers
        } else {
            u32::try_from(self.connected.len()).unwrap_or(u32::MAX)
        }
    }

    /// Whether it has not brought all its workers and is not late: then it still counts with all of them.
    fn is_owing(&self, now: Time) -> bool {
        self.seen.max(self.lost) < self.record.workers
            && self.started.is_some_and(|at| now.since(at) < OWED_MAX)
    }

    /// The workers that it owes; `None` if it owes none.
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

    /// Whether its workers are here and none of them was ever given a task, although the scheduler had time to.
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

    /// Requeued by the batch system, or never gone: it starts over.
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

    /// Waits no longer for workers to come back.
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

    /// Over for users, with the times that there are.
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
