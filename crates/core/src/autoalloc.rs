//! Automatic allocation as a pure state machine. It decides how many allocations to request from a
//! batch system, and when to stop requesting. It runs no commands, reads no clock and accesses no
//! files: the shell reports answers of batch systems, events of workers and the demand of the
//! scheduler, and carries out the effects. The answers of a batch system are not trusted: an
//! unknown id does not prove that the job is gone, an error is not an answer, and a submission
//! without an answer may have succeeded. The place of an allocation in the quota becomes free only
//! on evidence.
//!
//! ```text
//!              accepted             worker connects, or the batch system says so
//! Submitting ───────────▶ Queued ─────────────────────────────────────────────▶ Running
//!   │  │ no clear answer     ▲ ▲──────────── requeued, without workers ────────────┤
//!   │  └──▶ Unsure ──────────┘                                                     │
//!   │ refused │ not found     └── vanished, errors ──▶ Leaving ◀── lost workers ───┤
//!   ▼         ▼                                           │ confirmed or canceled  │
//!  (dropped) (dropped)                                    ▼                        ▼
//!                                                Finished | Failed ◀──── ended ────┘
//! ```
//!
//! Invariant: when a queue submits, the batch system has at most [`QueueParams::backlog`] of its
//! allocations that have not started, and its allocations that may be alive have at most
//! [`QueueParams::max_worker_count`] workers, including the new allocation.

mod allocation;
mod events;
mod input;
mod plan;
mod queue;
mod reason;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub use allocation::{Allocation, AllocationRecord, AllocationState};
pub use input::{
    AllocationEvent, Effect, Input, LookupOutcome, QueueCommand, Report, SubmitOutcome,
};
pub use queue::{Queue, QueueFailure, QueueRecord, QueueState};
pub use reason::{Reason, ReasonKind};

use events::Loss;

use crate::batch::QueueParams;
use crate::id::{AllocationKey, QueueId, WorkerId};
use crate::refusal::{Refusal, RefusalKind};
use crate::scheduler::demand::WorkerKind;
use crate::time::{Now, Time};
use crate::worker_config::WorkerConfig;

/// Timers and limits that users can set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// The interval between status queries for all active allocations.
    pub refresh: Duration,
    /// The minimum time between two attempts to submit.
    pub tick: Duration,
    /// The time until the next attempt if nothing happens.
    pub schedule_delay: Duration,
    /// The number of consecutive failed allocations that pauses a queue.
    pub allocation_fails_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            refresh: Duration::from_secs(30 * 60),
            tick: Duration::from_secs(5),
            schedule_delay: Duration::from_secs(30),
            allocation_fails_max: 3,
        }
    }
}

/// The maximum number of remembered workers with unknown jobs. Their job may turn out to be that of
/// a submission with an unclear outcome.
const STRAYS_MAX: usize = 1_024;
/// How many allocations a search examines in the time that a row of a report takes.
const SEARCHED_PER_ROW: usize = 512;
/// How long to wait after the first event, to collect events that come with it.
const SETTLE: Duration = Duration::from_millis(200);

/// A worker and its configuration.
type StrayWorker = (WorkerId, Arc<WorkerConfig>);

/// All queues of a server.
#[derive(Clone, Debug, Default)]
pub struct AutoallocState {
    limits: Limits,
    /// The directory that contains the directories of the queues.
    dir: Box<[u8]>,
    queues: BTreeMap<QueueId, Queue>,
    last_queue: u32,
    /// The time of the first unexamined event.
    dirty_since: Option<Time>,
    last_try: Option<Time>,
    strays: BTreeMap<Box<str>, Vec<StrayWorker>>,
    /// Whether the deadline or the worker kinds may have changed in this round.
    is_touched: bool,
    /// The next deadline at the end of the last round, and the worker kinds.
    due: Option<Time>,
    offered: Vec<WorkerKind>,
}

impl AutoallocState {
    /// Creates a state without queues, whose allocations get directories below `dir`.
    #[must_use]
    pub fn new(limits: Limits, dir: &[u8]) -> Self {
        Self {
            limits,
            dir: dir.into(),
            ..Self::default()
        }
    }

    /// Creates a queue and returns its id.
    pub fn add_queue(&mut self, now: Now, params: Arc<QueueParams>) -> QueueId {
        self.last_queue = self.last_queue.saturating_add(1);
        let id = QueueId(self.last_queue);
        self.queues.insert(id, Queue::new(id, params, &self.dir));
        self.is_touched = true;
        self.note_change(now);
        id
    }

    /// Restores a queue of an earlier server. Allocations that may be alive are queried
    /// immediately.
    pub fn restore_queue(&mut self, now: Now, record: QueueRecord) {
        self.last_queue = self.last_queue.max(record.id.0);
        let queue = Queue::restore(now, record, &self.dir);
        self.queues.insert(queue.id(), queue);
        self.is_touched = true;
        self.note_change(now);
    }

    /// Prevents reuse of the ids of removed queues.
    pub fn restore_last_queue(&mut self, last: u32) {
        self.last_queue = self.last_queue.max(last);
    }

    /// Removes a queue and cancels its allocations.
    ///
    /// # Errors
    ///
    /// Returns the reason why nothing has changed.
    pub fn remove_queue(
        &mut self,
        now: Now,
        id: QueueId,
        force: bool,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        let missing = || Refusal::not_found("Allocation queue not found");
        let queue = self.queue_mut(id).ok_or_else(missing)?;
        if !force && queue.has_running() {
            return Err(Refusal::new(
                RefusalKind::Conflict,
                "Allocation queue has running jobs, so it will not be removed. Use `--force` if you want to \
                 remove the queue anyway",
            ));
        }
        queue.retire(now, force, effects);
        self.purge();
        Ok(())
    }

    /// Stops submitting. Returns `false` if the queue does not exist.
    pub fn pause(&mut self, id: QueueId) -> bool {
        self.queue_mut(id).is_some_and(|queue| {
            queue.pause(Reason::PausedByUser);
            true
        })
    }

    /// Resumes submitting and resets all failure counts. Returns `false` if the queue does not
    /// exist.
    pub fn resume(&mut self, now: Now, id: QueueId) -> bool {
        let found = self.queue_mut(id).is_some_and(|queue| {
            queue.resume();
            true
        });
        if found {
            self.note_change(now);
        }
        found
    }

    /// Returns the queues in the order of their ids.
    pub fn queues(&self) -> impl Iterator<Item = &Queue> + '_ {
        self.queues.values().filter(|queue| !queue.is_retired())
    }

    /// Returns a queue.
    #[must_use]
    pub fn queue(&self, id: QueueId) -> Option<&Queue> {
        self.queues.get(&id).filter(|queue| !queue.is_retired())
    }

    /// Returns the stored form of a queue. `None` if it has been removed and its allocations have
    /// ended.
    #[must_use]
    pub fn record(&self, id: QueueId) -> Option<QueueRecord> {
        self.queues.get(&id).map(Queue::record)
    }

    fn queue_mut(&mut self, id: QueueId) -> Option<&mut Queue> {
        self.is_touched = true;
        self.queues.get_mut(&id).filter(|queue| !queue.is_retired())
    }

    /// Returns the allocations that may be alive, with the ids of their batch jobs, for example to
    /// cancel them when the server ends.
    pub fn alive(&self) -> impl Iterator<Item = (AllocationKey, &str)> + '_ {
        self.queues.values().flat_map(|queue| {
            queue
                .allocations()
                .filter(|allocation| allocation.may_be_alive())
                .filter_map(|allocation| allocation.job().map(|job| (allocation.key(), job)))
        })
    }

    /// Returns the allocation of a worker that reports this job, or the newest one if an id was
    /// reused.
    #[must_use]
    pub fn find_job(&self, job: &str) -> Option<AllocationKey> {
        let all = self.queues.values().flat_map(Queue::allocations);
        let known = all.filter(|a| a.fit(job) > 0);
        let best = known.max_by_key(|a| (a.fit(job), a.may_be_alive(), a.record().queued_at));
        best.map(Allocation::key)
    }

    /// Returns the approximate cost of [`Self::find_job`] in rows of reports.
    pub(crate) fn search_rows(&self) -> usize {
        let all = self.queues.values().map(|queue| queue.allocations.len());
        all.sum::<usize>() / SEARCHED_PER_ROW
    }

    /// Returns whether this may be the batch job of an allocation. A worker may register before the
    /// answer to the submission of its job has arrived.
    #[must_use]
    pub fn may_own(&self, id: &str) -> bool {
        let mut alive = self
            .queues()
            .flat_map(Queue::allocations)
            .filter(|allocation| allocation.may_be_alive());
        alive.any(|allocation| allocation.job_id().is_none_or(|own| own == id))
    }

    /// Returns the allocations for which a job may or may not exist, for example to search for it
    /// when the server ends.
    pub fn unsure(&self) -> impl Iterator<Item = AllocationKey> + '_ {
        self.queues.values().flat_map(|queue| {
            let all = queue.allocations();
            all.filter(|a| a.is_unsure()).map(Allocation::key)
        })
    }

    /// Returns an allocation of any queue, and the parameters of its queue.
    #[must_use]
    pub fn allocation(&self, key: AllocationKey) -> Option<(&Arc<QueueParams>, &Allocation)> {
        let queue = self.queues.get(&key.queue)?;
        Some((&queue.params, queue.allocations.get(&key.number)?))
    }

    /// Returns whether a submission is in progress.
    #[must_use]
    pub fn is_submitting(&self) -> bool {
        self.queues.values().any(Queue::is_submitting)
    }

    /// Makes the submissions that are in progress the last ones.
    pub(crate) fn stop_submitting(&mut self) {
        for queue in self.queues.values_mut() {
            queue.plan.clear();
        }
    }

    /// Returns a one-line explanation of why allocations are or are not requested.
    #[must_use]
    pub fn reason(&self, now: Now, id: QueueId) -> Option<Reason> {
        self.queue(id).map(|queue| queue.reason(now.mono))
    }

    /// Applies one input and carries out what is due. The server has rounds of several inputs.
    #[cfg(any(test, feature = "testing"))]
    pub fn apply(&mut self, now: Now, input: Input, effects: &mut Vec<Effect>) {
        self.note(now, input, effects);
        self.act(now, effects);
        self.finish_round();
    }

    /// Applies one input. Appends effects in the order they have to be carried out.
    pub(crate) fn note(&mut self, now: Now, input: Input, effects: &mut Vec<Effect>) {
        self.is_touched = true;
        match input {
            Input::Changed => self.note_change(now),
            Input::Timer => {}
            Input::Demand(answers) => self.on_demand(now, answers, effects),
            Input::Submitted(key, outcome) => self.on_submitted(now, key, outcome, effects),
            Input::Looked(key, outcome) => self.on_looked(now, key, outcome, effects),
            Input::Reported(key, report) => self.on_report(now, key, report, effects),
            Input::Canceled(key, result) => self.on_canceled(now, key, result, effects),
            Input::Closed(key) => self.end(now, key, false, effects),
            Input::WorkerConnected {
                job,
                worker,
                config,
            } => self.on_worker(now, &job, worker, config, effects),
            Input::WorkerLost {
                job,
                worker,
                crashed,
                lived,
                used,
            } => {
                let is_fast = crashed && lived < allocation::FAST_LOSS;
                self.on_worker_lost(
                    now,
                    &job,
                    worker,
                    Loss {
                        crashed,
                        is_fast,
                        used,
                    },
                );
            }
        }
    }

    /// Carries out what is due.
    pub(crate) fn act(&mut self, now: Now, effects: &mut Vec<Effect>) {
        self.is_touched |= self.due.is_some_and(|due| due <= now.mono);
        if !self.is_touched {
            return;
        }
        let refresh = self.limits.refresh;
        for queue in self.queues.values_mut() {
            queue.on_time(now, refresh, effects);
        }
        if self.next_try().is_some_and(|due| due <= now.mono) {
            self.ask_demand(now, effects);
        }
    }

    /// Ends a round of inputs. Returns the worker kinds if they have changed.
    pub(crate) fn finish_round(&mut self) -> Option<Vec<WorkerKind>> {
        if !std::mem::take(&mut self.is_touched) {
            return None;
        }
        self.purge();
        self.due = self.next_deadline();
        let kinds = self.worker_kinds();
        (kinds != self.offered).then(|| {
            self.offered.clone_from(&kinds);
            kinds
        })
    }

    /// Returns [`Self::next_deadline`] as of the end of the last round.
    pub(crate) const fn due(&self) -> Option<Time> {
        self.due
    }

    /// Returns when the next [`Input::Timer`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        let of_queues = self.queues.values().filter_map(Queue::next_deadline).min();
        [of_queues, self.next_try()].into_iter().flatten().min()
    }

    /// Notes that tasks were submitted, or that the workers changed.
    pub(crate) fn note_change(&mut self, now: Now) {
        self.is_touched |= self.dirty_since.is_none();
        self.dirty_since.get_or_insert(now.mono);
    }

    /// Returns when to check next whether workers are needed.
    fn next_try(&self) -> Option<Time> {
        self.queues()
            .find(|queue| queue.state() == QueueState::Active)?;
        let settle = SETTLE.min(self.limits.tick);
        let Some(last) = self.last_try else {
            return Some(self.dirty_since.unwrap_or_default() + settle);
        };
        Some(match self.dirty_since {
            Some(since) => (last + self.limits.tick).max(since + settle),
            None => last + self.limits.schedule_delay,
        })
    }

    /// Drops removed queues whose allocations have all ended.
    fn purge(&mut self) {
        self.queues
            .retain(|_, queue| !(queue.is_retired() && queue.is_settled()));
    }

    /// Panics if a queue has two submissions in progress. For tests.
    ///
    /// # Panics
    ///
    /// If an invariant is broken.
    #[cfg(any(test, feature = "testing"))]
    pub fn check_invariants(&self) {
        for queue in self.queues.values() {
            queue.check_invariants();
        }
    }
}

#[cfg(test)]
mod tests;
