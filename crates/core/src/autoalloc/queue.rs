//! A queue: its parameters, allocations, failures and timers.

mod record;

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::AllocationState;
use super::allocation::{Allocation, Phase, UNNEEDED_MAX};
use super::input::{AllocationEvent, Effect};
use super::reason::Reason;
use crate::batch::{QueueParams, job_parts, worker_lifetime};
use crate::id::{AllocationKey, QueueId, WorkerId};
use crate::resource::descriptor::ResourceDescriptor;
use crate::scheduler::demand::{Coming, QueueDemand, QueueQuery, Unfit, WorkerKind};
use crate::time::{Now, Time, Timestamp};
use crate::worker_config::WorkerConfig;

pub use record::{QueueFailure, QueueRecord};

/// The pause before the next attempt, by the number of consecutive failures.
const DELAYS: [Duration; 5] = [
    Duration::ZERO,
    Duration::from_secs(60),
    Duration::from_secs(15 * 60),
    Duration::from_secs(30 * 60),
    Duration::from_secs(60 * 60),
];
/// The number of consecutive rejected submissions that pauses a queue.
const SUBMIT_FAILS_MAX: u32 = 10;
/// The maximum interval between status queries of queued allocations. It is limited because an
/// allocation that has vanished blocks other allocations.
const QUEUED_POLL: Duration = Duration::from_secs(120);
/// How long an allocation may be overdue before it is queried.
const OVERDUE: Duration = Duration::from_secs(60);
/// How long to wait for an answer of the batch system.
const POLL_TIMEOUT: Duration = Duration::from_secs(300);
/// The maximum pause between two attempts of a query.
const RETRY_MAX: Duration = Duration::from_secs(300);
/// The minimum pause between two attempts of a query.
const RETRY_MIN: Duration = Duration::from_secs(10);
/// The number of recent workers whose offers correct the assumed offer.
const OFFERS_MAX: usize = 8;
/// The maximum number of allocations requested only to see whether their workers are larger.
const PROBES_MAX: usize = 2;
/// The maximum number of remembered ended allocations.
const ENDED_MAX: usize = 1_000;

/// The resources and lifetime that a worker offered.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct WorkerOffer {
    /// The units by resource name.
    pub(super) resources: BTreeMap<Box<str>, u64>,
    /// The lifetime. `None` if it is the same as that of its allocation.
    pub(super) lifetime: Option<Duration>,
}

impl WorkerOffer {
    fn of(resources: &ResourceDescriptor, lifetime: Option<Duration>) -> Self {
        let items = resources.items.iter();
        Self {
            resources: items
                .map(|item| (item.name.clone(), item.kind.total().0))
                .collect(),
            lifetime,
        }
    }
}

/// Whether a queue submits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueState {
    /// The queue submits allocations.
    Active,
    /// The queue submits no allocations until it is resumed.
    Paused,
}

/// A queue.
#[derive(Clone, Debug)]
pub struct Queue {
    pub(super) id: QueueId,
    pub(super) params: Arc<QueueParams>,
    /// The directory that contains the directories of its allocations.
    dir: Box<[u8]>,
    paused: Option<Reason>,
    retired: bool,
    /// The offers of recent workers, newest last.
    offers: VecDeque<WorkerOffer>,
    /// The resources that the last worker offered.
    known_resources: Option<Arc<ResourceDescriptor>>,
    /// Whether a host with several workers of an allocation has been reported.
    pub(super) is_shared_host_told: bool,
    /// An allocation whose workers left without ever getting a task.
    pub(super) unused_end: Option<u32>,
    /// The number of allocations that were requested to see whether their workers are larger, and
    /// when the next one is due.
    probes: usize,
    probe_at: Option<Time>,
    last_number: u32,
    pub(super) allocations: BTreeMap<u32, Allocation>,
    /// The sizes of the allocations that this round still has to submit.
    pub(super) plan: VecDeque<u32>,
    submit_fails: u32,
    allocation_fails: u32,
    level: usize,
    retry_at: Option<Time>,
    /// When the first of the consecutive failures happened.
    failing_since: Option<Timestamp>,
    last_failure: String,
    pub(super) demand: Option<QueueDemand>,
}

impl Queue {
    /// Creates a queue whose directory is below `root`.
    pub(super) fn new(id: QueueId, params: Arc<QueueParams>, root: &[u8]) -> Self {
        let dir = match &params.name {
            Some(name) => format!("/{id}-{name}"),
            None => format!("/{id}"),
        };
        Self {
            id,
            params,
            dir: [root, dir.as_bytes()].concat().into(),
            paused: None,
            retired: false,
            offers: VecDeque::new(),
            known_resources: None,
            is_shared_host_told: false,
            unused_end: None,
            probes: 0,
            probe_at: None,
            last_number: 0,
            allocations: BTreeMap::new(),
            plan: VecDeque::new(),
            submit_fails: 0,
            allocation_fails: 0,
            level: 0,
            retry_at: None,
            failing_since: None,
            last_failure: String::new(),
            demand: None,
        }
    }

    /// Returns the id of the queue.
    #[must_use]
    pub const fn id(&self) -> QueueId {
        self.id
    }

    /// Returns the parameters of the queue.
    #[must_use]
    pub const fn params(&self) -> &Arc<QueueParams> {
        &self.params
    }

    /// Returns whether the queue submits.
    #[must_use]
    pub const fn state(&self) -> QueueState {
        match self.paused {
            None => QueueState::Active,
            Some(_) => QueueState::Paused,
        }
    }

    /// Returns [`QueueRecord::known_resources`].
    #[must_use]
    pub const fn known_resources(&self) -> Option<&Arc<ResourceDescriptor>> {
        self.known_resources.as_ref()
    }

    pub(super) fn note_offer(&mut self, config: &WorkerConfig) {
        if self.offers.len() == OFFERS_MAX {
            self.offers.pop_front();
        }
        let offer = WorkerOffer::of(&config.resources, config.time_limit);
        self.offers.push_back(offer);
        self.known_resources = Some(config.resources.clone().into());
    }

    /// Returns the allocations in the order they were requested.
    pub fn allocations(&self) -> impl Iterator<Item = &Allocation> + '_ {
        self.allocations.values()
    }

    pub(super) const fn is_retired(&self) -> bool {
        self.retired
    }

    pub(super) fn is_settled(&self) -> bool {
        !self.allocations.values().any(Allocation::may_be_alive)
    }

    pub(super) fn is_submitting(&self) -> bool {
        let mut all = self.allocations.values();
        all.any(|allocation| allocation.phase == Phase::Submitting)
    }

    pub(super) fn has_running(&self) -> bool {
        let mut all = self.allocations.values();
        all.any(|allocation| allocation.record.state == AllocationState::Running)
    }

    pub(super) fn pause(&mut self, reason: Reason) {
        self.plan.clear();
        self.paused = Some(reason);
    }

    pub(super) fn resume(&mut self) {
        self.paused = None;
        self.offers.clear();
        self.unused_end = None;
        (self.probes, self.probe_at) = (0, None);
        self.forgive();
    }

    fn forgive(&mut self) {
        self.submit_fails = 0;
        self.allocation_fails = 0;
        self.level = 0;
        self.retry_at = None;
        self.failing_since = None;
    }

    /// Cancels everything. Submissions with an unclear outcome are canceled once the outcome is
    /// clear. Allocations that keep running without workers are canceled only with `force`.
    pub(super) fn retire(&mut self, now: Now, force: bool, effects: &mut Vec<Effect>) {
        self.retired = true;
        self.plan.clear();
        let alive: Vec<u32> = self.numbers(|a| matches!(a.phase, Phase::Queued | Phase::Running));
        for number in alive {
            self.leave(now, number, true, Duration::ZERO, effects);
        }
        for allocation in self.allocations.values_mut() {
            if force || !allocation.runs_on() {
                allocation.cancel_now(now);
            }
        }
        self.on_time(now, Duration::MAX, effects);
    }

    pub(super) fn numbers(&self, mut select: impl FnMut(&Allocation) -> bool) -> Vec<u32> {
        let found = self.allocations.iter().filter(|(_, a)| select(a));
        found.map(|(number, _)| *number).collect()
    }

    /// Returns why nothing may be submitted now. `None` if submitting is allowed.
    pub(super) fn gate(&self, now: Time) -> Option<Reason> {
        if let Some(reason) = &self.paused {
            return Some(reason.clone());
        }
        if let Some(reason) = self.quota_reason() {
            return Some(reason);
        }
        self.retry_at
            .filter(|at| *at > now)
            .map(|at| Reason::BackOff {
                left: at.since(now),
                why: self.last_failure.clone(),
                is_failure: self.failing_since.is_some(),
            })
    }

    fn quota_reason(&self) -> Option<Reason> {
        if self.waiting() >= self.params.backlog {
            let mut waiting = self.allocations.values().filter(|a| a.is_waiting());
            let first = waiting.next();
            if let Some(Phase::Unsure { .. }) = first.map(|a| a.phase) {
                return Some(Reason::Unsure(self.last_failure.clone()));
            }
            return Some(Reason::Backlog {
                waiting: self.waiting(),
                max: self.params.backlog,
                hint: first.map_or_else(String::new, |a| a.record.reason.to_string()),
            });
        }
        let max = self.params.max_worker_count?;
        (self.workers_alive() >= max).then(|| Reason::WorkerCount {
            workers: self.workers_alive(),
            max,
        })
    }

    pub(super) fn waiting(&self) -> u32 {
        let count = self.allocations.values().filter(|a| a.is_waiting()).count();
        u32::try_from(count).unwrap_or(u32::MAX)
    }

    pub(super) fn workers_alive(&self) -> u32 {
        let alive = self.allocations.values().map(Allocation::workers_alive);
        alive.fold(0, u32::saturating_add)
    }

    /// Returns the kinds of workers to expect, and the assumed kind.
    pub(super) fn kinds(&self) -> (Vec<WorkerKind>, WorkerKind) {
        let assumed = WorkerKind {
            resources: self.params.amounts.clone(),
            others_plentiful: true,
            time_limit: worker_lifetime(self.params.time_limit).min(self.params.worker_limit()),
            min_utilization: self.params.min_utilization,
        };
        let mut kinds = Vec::new();
        for offer in &self.offers {
            let kind = WorkerKind {
                resources: offer.resources.clone(),
                others_plentiful: false,
                time_limit: offer.lifetime.unwrap_or(assumed.time_limit),
                ..assumed.clone()
            };
            if !kinds.contains(&kind) {
                kinds.push(kind);
            }
        }
        if kinds.is_empty() {
            kinds.push(assumed.clone());
        }
        (kinds, assumed)
    }

    /// Returns the query for the scheduler.
    pub(super) fn query(&self, now: Time) -> QueueQuery {
        // While this queue cannot submit, later queues get its demand.
        let places = match self.gate(now) {
            None => self.params.backlog.saturating_sub(self.waiting()),
            Some(_) => 0,
        };
        let by_backlog = places.saturating_mul(self.params.max_workers_per_alloc);
        let by_count = self
            .params
            .max_worker_count
            .map(|max| max.saturating_sub(self.workers_alive()));
        let (kinds, assumed) = self.kinds();
        let mut coming: Vec<Coming> = self
            .allocations
            .values()
            .filter_map(|a| a.coming(now))
            .collect();
        coming.sort_by_key(|coming| coming.owed == coming.workers);
        let connected = self.allocations.values().flat_map(|a| a.connected.keys());
        QueueQuery {
            queue: self.id,
            kinds,
            assumed,
            coming,
            connected: connected.copied().collect(),
            workers_max: by_backlog.min(by_count.unwrap_or(u32::MAX)),
            nodes_max: self.params.max_workers_per_alloc,
        }
    }

    /// Returns whether allocations wait for nodes.
    pub(super) fn has_waiting(&self) -> bool {
        self.allocations.values().any(|a| a.phase == Phase::Queued)
    }

    /// Cancels allocations that no task has needed for a long time.
    pub(super) fn cancel_unneeded(
        &mut self,
        now: Now,
        unneeded: &[u32],
        effects: &mut Vec<Effect>,
    ) {
        let mut surplus = Vec::new();
        for (number, allocation) in &mut self.allocations {
            if allocation.phase != Phase::Queued
                || self.params.keep_waiting
                || !unneeded.contains(number)
            {
                allocation.unneeded = None;
                continue;
            }
            let since = *allocation.unneeded.get_or_insert(now.mono);
            if now.mono.since(since) >= UNNEEDED_MAX {
                let id = allocation.job_id().unwrap_or_default();
                tracing::info!(
                    "Allocation {id} of queue {} is canceled: no task waits for it",
                    self.id
                );
                allocation.explain("no task waits for it");
                surplus.push(*number);
            }
        }
        for number in surplus {
            self.leave(now, number, false, Duration::ZERO, effects);
        }
    }

    /// Describes an allocation whose workers connected while tasks waited, but took none of them.
    pub(super) fn find_useless(
        &mut self,
        now: Time,
        still_waits: bool,
        unused: &[WorkerId],
    ) -> Option<String> {
        let ended = self.unused_end.take();
        if !still_waits {
            return None;
        }
        let found = self
            .allocations
            .values_mut()
            .find(|a| ended == Some(a.key().number) || a.has_idled(now, unused))?;
        found.is_useless = true;
        let id = found.job_id().unwrap_or_default();
        let (seen, workers) = (found.seen, found.record.workers);
        Some(if seen < workers {
            format!(
                "allocation {id} brought {seen} of {workers} workers, and they could take none of the waiting tasks"
            )
        } else {
            format!("the workers of allocation {id} could take none of the waiting tasks")
        })
    }

    /// Returns whether to request an allocation only to see whether its workers are larger. This
    /// requires an answer that suggests it.
    pub(super) fn may_probe(&mut self, now: Time, demand: &QueueDemand) -> bool {
        if demand.unfit.is_none() {
            (self.probes, self.probe_at) = (0, None);
        }
        if demand.larger.is_none() || !demand.unneeded.is_empty() || self.probes >= PROBES_MAX {
            return false;
        }
        let at = *self.probe_at.get_or_insert(now + DELAYS[1]);
        if at > now {
            return false;
        }
        self.probes += 1;
        self.probe_at = Some(now + DELAYS[(self.probes + 1).min(DELAYS.len() - 1)]);
        true
    }

    /// Starts the next submission of the plan, if it is still allowed.
    pub(super) fn submit_next(&mut self, now: Now, effects: &mut Vec<Effect>) {
        if self.is_submitting() {
            return;
        }
        let Some(mut workers) = self.plan.pop_front() else {
            return;
        };
        if self.retired || self.gate(now.mono).is_some() {
            self.plan.clear();
            return;
        }
        if let Some(max) = self.params.max_worker_count {
            workers = workers.min(max.saturating_sub(self.workers_alive()));
        }
        self.last_number = self.last_number.saturating_add(1);
        let key = AllocationKey {
            queue: self.id,
            number: self.last_number,
        };
        let dir = [&*self.dir, format!("/{:03}", key.number).as_bytes()].concat();
        let allocation = Allocation::new(key, workers, dir.into(), now);
        self.allocations.insert(key.number, allocation);
        effects.push(Effect::Changed(self.id));
        effects.push(Effect::Submit { key, workers });
    }

    /// Removes an allocation that the batch system does not have.
    pub(super) fn drop_refused(&mut self, number: u32, effects: &mut Vec<Effect>) {
        let dropped = self.allocations.remove(&number);
        effects.extend(dropped.map(|allocation| Effect::Retire(allocation.record.dir)));
    }

    pub(super) fn on_submit_failed(&mut self, now: Now, text: &str) {
        self.plan.clear();
        self.submit_fails += 1;
        self.back_off(now, text);
        if self.submit_fails >= SUBMIT_FAILS_MAX {
            self.pause(Reason::PausedBySubmissions(text.to_owned()));
            let id = self.id;
            tracing::error!("The queue {id} had too many failed submissions, it will be paused.");
        }
    }

    /// Retries after the shortest pause, regardless of earlier attempts, because an outage or a full
    /// limit says nothing about the request. A queue that has allocations is not failing: they may
    /// fill the limit.
    pub(super) fn on_unreachable(&mut self, now: Now, text: &str) {
        self.plan.clear();
        self.retry_at = self.retry_at.max(Some(now.mono + DELAYS[1]));
        if self.is_settled() {
            self.failing_since.get_or_insert(now.wall);
        }
        text.clone_into(&mut self.last_failure);
    }

    pub(super) fn on_submit_ok(&mut self) {
        self.submit_fails = 0;
        if self.allocation_fails == 0 {
            self.forgive();
        }
    }

    pub(super) fn on_allocation_failed(&mut self, now: Now, text: &str, fails_max: u32) {
        self.plan.clear();
        self.allocation_fails += 1;
        self.back_off(now, text);
        if self.allocation_fails >= fails_max && self.paused.is_none() {
            self.pause(Reason::PausedByAllocations(text.to_owned()));
            let id = self.id;
            tracing::error!("The queue {id} had too many failed allocations, it will be paused.");
        }
    }

    pub(super) fn on_allocation_ok(&mut self) {
        self.forgive();
    }

    fn back_off(&mut self, now: Now, text: &str) {
        self.level = (self.level + 1).min(DELAYS.len() - 1);
        self.retry_at = Some(now.mono + DELAYS[self.level]);
        self.failing_since.get_or_insert(now.wall);
        text.clone_into(&mut self.last_failure);
    }

    pub(super) fn note_failure(&mut self, text: &str) {
        text.clone_into(&mut self.last_failure);
    }

    /// Ends an allocation for users. Its place in the quota becomes free when the batch system
    /// confirms the end.
    pub(super) fn leave(
        &mut self,
        now: Now,
        number: u32,
        failed: bool,
        grace: Duration,
        effects: &mut Vec<Effect>,
    ) {
        let Some(allocation) = self.allocations.get_mut(&number) else {
            return;
        };
        let started = allocation.record.state == AllocationState::Running;
        allocation.phase = Phase::leaving(now.mono, failed, started, now.mono + grace);
        allocation.show_end(now, failed);
        Self::log_end(allocation, effects);
        effects.push(Effect::Changed(self.id));
    }

    /// Ends an allocation on evidence.
    pub(super) fn end(&mut self, now: Now, number: u32, failed: bool, effects: &mut Vec<Effect>) {
        let Some(allocation) = self.allocations.get_mut(&number) else {
            return;
        };
        let was_shown = matches!(allocation.phase, Phase::Leaving { .. });
        allocation.phase = Phase::Ended { failed };
        allocation.polling = None;
        allocation.show_end(now, failed);
        if !was_shown {
            Self::log_end(allocation, effects);
        }
        effects.push(Effect::Changed(self.id));
        self.drop_oldest();
    }

    fn log_end(allocation: &Allocation, effects: &mut Vec<Effect>) {
        if let Some(job) = &allocation.record.job {
            effects.push(Effect::Event(AllocationEvent::Finished {
                key: allocation.key(),
                job: job_parts(job).0.into(),
            }));
            effects.push(Effect::Retire(allocation.record.dir.clone()));
        }
    }

    fn drop_oldest(&mut self) {
        let over = |a: &Allocation| !a.may_be_alive() && a.connected.is_empty();
        let ended = self.numbers(over);
        let surplus = ended.len().saturating_sub(ENDED_MAX);
        for number in ended.into_iter().take(surplus) {
            self.allocations.remove(&number);
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Time> {
        let all = self.allocations.values();
        all.filter_map(|allocation| match allocation.phase {
            Phase::Submitting | Phase::Ended { .. } => None,
            Phase::Unsure { next, .. } | Phase::Leaving { next, .. } => Some(next),
            Phase::Queued | Phase::Running => {
                Some(allocation.polling.unwrap_or(allocation.next_poll))
            }
        })
        .min()
    }

    /// Carries out actions that are due.
    pub(super) fn on_time(&mut self, now: Now, refresh: Duration, effects: &mut Vec<Effect>) {
        let mut due = false;
        for allocation in self.allocations.values_mut() {
            let key = allocation.record.key;
            match &mut allocation.phase {
                Phase::Submitting | Phase::Ended { .. } => {}
                Phase::Unsure { next, errors, .. } => {
                    if *next <= now.mono {
                        // This applies until the answer arrives.
                        *next = now.mono + POLL_TIMEOUT.max(retry_pause(*errors));
                        effects.push(Effect::Look(key));
                    }
                }
                Phase::Leaving {
                    cancel_at,
                    next,
                    tries,
                    asked,
                    ..
                } => {
                    let job = &allocation.record.job;
                    let Some(job) = job.clone().filter(|_| *next <= now.mono) else {
                        continue;
                    };
                    *tries = tries.saturating_add(1);
                    *next = now.mono + retry_pause(*tries);
                    if *cancel_at <= now.mono {
                        if !std::mem::replace(asked, true) {
                            effects.push(Effect::Changed(self.id));
                        }
                        effects.push(Effect::Cancel { key, job });
                    } else {
                        *next = (*next).min(*cancel_at);
                        let jobs = vec![(key, job)];
                        effects.push(Effect::Poll {
                            queue: self.id,
                            jobs,
                        });
                    }
                }
                Phase::Queued | Phase::Running => {
                    due |= allocation.polling.unwrap_or(allocation.next_poll) <= now.mono;
                }
            }
        }
        if due {
            self.poll(now, refresh, effects);
        }
    }

    /// Queries all allocations together, because most batch systems answer for all of them as
    /// quickly as for one.
    fn poll(&mut self, now: Now, refresh: Duration, effects: &mut Vec<Effect>) {
        let mut jobs = Vec::new();
        for allocation in self.allocations.values_mut() {
            let pause = match allocation.phase {
                Phase::Queued => refresh.min(QUEUED_POLL),
                Phase::Running => refresh,
                Phase::Submitting
                | Phase::Unsure { .. }
                | Phase::Leaving { .. }
                | Phase::Ended { .. } => {
                    continue;
                }
            };
            let overdue = allocation
                .started
                .map(|at| at + self.params.time_limit + OVERDUE);
            let next = now.mono + pause;
            allocation.next_poll = match overdue {
                Some(at) if at > now.mono => next.min(at),
                Some(_) => now.mono + pause.min(QUEUED_POLL),
                None => next,
            };
            allocation.polling = Some(now.mono + POLL_TIMEOUT);
            if let Some(ending) = &mut allocation.ending {
                ending.asked = true;
            }
            if let Some(job) = &allocation.record.job {
                jobs.push((allocation.record.key, job.clone()));
            }
        }
        if !jobs.is_empty() {
            effects.push(Effect::Poll {
                queue: self.id,
                jobs,
            });
        }
    }

    /// Returns a one-line explanation of why allocations are or are not requested.
    pub(super) fn reason(&self, now: Time) -> Reason {
        if let Some(reason) = self.gate(now) {
            return reason;
        }
        match &self.demand {
            // A restored queue tries again as soon as tasks need it.
            None if self.failing_since.is_some() => Reason::Asking(Some(self.last_failure.clone())),
            None => Reason::NotAsked,
            Some(demand) if demand.waiting == 0 => Reason::NoTasks,
            Some(demand) if demand.wants_workers() => {
                let has_failed = self.submit_fails + self.allocation_fails > 0;
                Reason::Asking(has_failed.then(|| self.last_failure.clone()))
            }
            Some(demand) if demand.covered => Reason::Covered,
            Some(QueueDemand {
                unfit: Some(unfit),
                waiting,
                ..
            }) => Reason::Unfit {
                waiting: *waiting,
                unfit: unfit.clone(),
                is_failing: self.is_surprising(unfit),
            },
            Some(_) => Reason::OtherQueues,
        }
    }

    /// Returns whether the queue's options promise room for the task, so that the failure needs
    /// attention.
    fn is_surprising(&self, unfit: &Unfit) -> bool {
        let is_larger = self
            .demand
            .as_ref()
            .is_some_and(|demand| demand.larger.is_some());
        is_larger
            || matches!(unfit, Unfit::Time { needed, .. } if *needed <= self.params.time_limit)
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn check_invariants(&self) {
        let submitting = self.numbers(|a| a.phase == Phase::Submitting).len();
        assert!(submitting <= 1, "one submission at a time");
    }
}

/// Returns the pause before the next attempt of a query, which doubles each time.
pub(super) fn retry_pause(tries: u32) -> Duration {
    RETRY_MIN
        .saturating_mul(1 << tries.saturating_sub(1).min(10))
        .min(RETRY_MAX)
}
