//! The server's view of one worker: its offers, its tasks and its deadline.
//!
//! Tasks sent to a worker are either *placed* (their resources are counted as used) or in its
//! *backlog* (sent ahead so that the worker does not idle for a round trip). The worker itself
//! decides which task it starts next. Tasks are promoted from backlog to placed in the same order.
//! A worker may also be reserved for multi-node tasks, or be a node of one. Such a worker gets no
//! other tasks.

mod ahead;
mod assigned;
mod check;
mod clock;
mod life;
mod load;
mod rate;
mod stuck;
mod trial_placement;
mod unkillable;
mod workers;

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::bug;
use crate::class::{
    Class, ClassId, Classes, Demand, Offer, QueueKey, ResourceId, VariantDemand, fitting,
};
use crate::id::{InstanceId, JobId, TaskId, TaskKey, WorkerId};
use crate::job::TemplateId;
use crate::range::IndexSet;
use crate::time::{Now, Time, Timestamp};
use crate::worker_config::{OnServerLost, WorkerConfig};
pub(crate) use ahead::BACKLOG_SPAN;
pub use assigned::{Assigned, AwaitedEnds, Turn};
pub use check::NodeCheck;
use clock::WorkerClock;
pub use life::{Dedication, Duty, GangNode, Life, Standing};
pub use load::Load;
use rate::Rate;
pub(crate) use stuck::STUCK_AFTER;
pub(crate) use trial_placement::TrialPlacement;
pub use unkillable::Unkillable;
pub(crate) use workers::LostWorker;
pub use workers::{ENDED_WORKERS_MAX, Workers};

/// The maximum length of the backlog, so that one worker never holds a large part of a job.
pub(crate) const BACKLOG_MAX: u32 = 4_096;

/// How a connection ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkEnd {
    /// The other side closed the connection. Its process has ended or will reconnect in a moment.
    Closed,
    /// The connection broke, or the server gave it up.
    Broken,
}

/// The number of tasks in a worker's backlog, relative to a priority.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Split {
    /// The number of more urgent tasks.
    pub(crate) above: u32,
    /// The number of equally urgent tasks.
    pub(crate) level: u32,
    /// The number of less urgent tasks.
    pub(crate) below: u32,
}

impl Split {
    pub(crate) fn add(&mut self, level: Reverse<i32>, priority: Reverse<i32>, count: u32) {
        match priority.cmp(&level) {
            Ordering::Less => self.above += count,
            Ordering::Equal => self.level += count,
            Ordering::Greater => self.below += count,
        }
    }
}

/// A connected or former worker.
#[derive(Clone, Debug)]
pub struct Worker {
    /// The id of the worker.
    pub id: WorkerId,
    /// The configuration that the worker reported.
    pub config: Arc<WorkerConfig>,
    /// When the worker registered.
    pub started: Timestamp,
    life: Life,
    /// How many times the overdue worker was given more time since its last sign of life.
    doubts: u32,
    duty: Duty,
    dedication: Dedication,
    standing: Standing,
    check: NodeCheck,
    /// The last reported hardware usage of the machine.
    load: Option<Load>,
    /// The task that started last, and when it started.
    last_task: Option<(TaskKey, Timestamp)>,
    clock: WorkerClock,
    /// The number of the last registration. 0 if it is the first registration or if registrations
    /// are not counted.
    registration: u64,
    /// When the worker's own time limit ends its life.
    deadline: Option<Time>,
    /// The templates that the worker knows.
    templates: BTreeMap<JobId, IndexSet>,
    /// The reservations for requests without sent tasks: the variant and the start time.
    reservations: BTreeMap<QueueKey, (u32, Time)>,
    offers: Vec<Offer>,
    free: Vec<i64>,
    assigned: BTreeMap<TaskKey, Assigned>,
    backlog: BTreeSet<(QueueKey, TaskKey)>,
    /// The number of tasks in the backlog, by queue and variant.
    waiting: BTreeMap<(QueueKey, u32), u32>,
    /// The number of placed tasks, by class and variant.
    placed: BTreeMap<(ClassId, u32), u32>,
    /// The number of all placed tasks.
    placed_len: u32,
    /// The variants whose tasks did not start although they were counted as fitting. Cleared when a
    /// task ends.
    stuck: BTreeSet<(ClassId, u32)>,
    running: u32,
    rate: Rate,
    /// The unkillable instances on the worker. Each keeps its resources until it has ended.
    unkillable: Vec<Unkillable>,
}

impl Worker {
    /// Creates a worker that has just registered. `offers` are by resource number.
    #[must_use]
    pub fn new(
        id: WorkerId,
        config: Arc<WorkerConfig>,
        offers: Vec<Offer>,
        now: Time,
        wall: Timestamp,
    ) -> Self {
        let free = everything(&offers);
        Self {
            id,
            started: wall,
            life: Life::Connected {
                until: now + config.silence_max(),
            },
            doubts: 0,
            duty: Duty::Serve,
            dedication: Dedication::None,
            standing: Standing::Trusted,
            check: NodeCheck::default(),
            load: None,
            registration: 0,
            last_task: None,
            clock: WorkerClock::default(),
            deadline: config.time_limit.map(|limit| now + limit),
            templates: BTreeMap::new(),
            reservations: BTreeMap::new(),
            offers,
            free,
            assigned: BTreeMap::new(),
            backlog: BTreeSet::new(),
            waiting: BTreeMap::new(),
            placed: BTreeMap::new(),
            placed_len: 0,
            stuck: BTreeSet::new(),
            running: 0,
            rate: Rate::new(now),
            unkillable: Vec::new(),
            config,
        }
    }

    /// Creates a worker that registered in an earlier run of the server and is expected back. Its
    /// time limit counts from that registration.
    pub(crate) fn restored(
        id: WorkerId,
        config: Arc<WorkerConfig>,
        offers: Vec<Offer>,
        now: Now,
        started: Timestamp,
    ) -> Self {
        let mut worker = Self::new(id, config, offers, now.mono, started);
        let age = now.wall.since(started);
        let limit = worker.config.time_limit;
        worker.deadline = limit.map(|limit| now.mono + limit.saturating_sub(age));
        worker.await_return(now.mono);
        worker
    }

    /// Returns the last reported hardware usage of the machine.
    #[must_use]
    pub const fn load(&self) -> Option<Load> {
        self.load
    }

    pub(crate) fn set_load(&mut self, load: Load) {
        self.load = Some(load);
    }

    /// Returns when a report was made that is handled now. `sent` is the worker's time.
    pub(crate) fn date(&mut self, sent: Time, now: Now) -> Timestamp {
        self.clock.date(sent, now)
    }

    /// Returns the task that started last, and when it started.
    #[must_use]
    pub const fn last_task(&self) -> Option<(TaskKey, Timestamp)> {
        self.last_task
    }

    pub(crate) fn set_last_task(&mut self, task: TaskKey, at: Timestamp) {
        self.last_task = Some((task, at));
    }

    /// Returns whether the worker's unstored task ends survive the server. A worker that ends with
    /// its server, either immediately or after its tasks, discards them, and its tasks are not
    /// expected back.
    pub(crate) fn keeps_ends(&self) -> bool {
        self.config.on_server_lost == OnServerLost::Reconnect
    }

    /// Returns the number of the last registration. 0 if it is the first registration or if
    /// registrations are not counted.
    pub(crate) const fn registration(&self) -> u64 {
        self.registration
    }

    /// Returns whether the worker has a time limit.
    pub(crate) const fn has_time_limit(&self) -> bool {
        self.deadline.is_some()
    }

    /// Returns whether the worker has ever been assigned a task.
    #[must_use]
    pub fn was_used(&self) -> bool {
        self.last_task.is_some() || !self.assigned.is_empty()
    }

    /// Returns the tasks that have been sent to the worker.
    #[must_use]
    pub const fn assigned(&self) -> &BTreeMap<TaskKey, Assigned> {
        &self.assigned
    }

    /// Returns the number of tasks that the worker has reported as started but not as ended.
    #[must_use]
    pub const fn running(&self) -> u32 {
        self.running
    }

    /// Returns the number of tasks whose resources are counted as used, which excludes the backlog.
    #[must_use]
    pub const fn placed_len(&self) -> usize {
        self.placed_len as usize
    }

    /// Returns the length of the backlog.
    #[must_use]
    pub fn backlog_len(&self) -> usize {
        self.backlog.len()
    }

    /// Returns the worker's offers, by resource number.
    #[must_use]
    pub fn offers(&self) -> &[Offer] {
        &self.offers
    }

    /// Returns the units that are not counted as used, by resource number.
    #[must_use]
    pub fn free(&self) -> &[i64] {
        &self.free
    }

    /// Returns the queue and the variant of each request in the backlog, most urgent first.
    pub(crate) fn waiting(&self) -> impl DoubleEndedIterator<Item = (QueueKey, u32)> + '_ {
        self.waiting.keys().copied()
    }

    /// Like [`Self::waiting`], with the number of tasks per variant.
    pub(crate) fn waiting_counts(&self) -> impl Iterator<Item = (QueueKey, u32, u32)> + '_ {
        self.waiting
            .iter()
            .map(|((key, variant), count)| (*key, *variant, *count))
    }

    /// Returns the queues that have a reservation on the worker.
    pub(crate) fn reservations(&self) -> impl Iterator<Item = QueueKey> + '_ {
        self.reservations.keys().copied()
    }

    /// Returns the requests with reservations on the worker, and their variants.
    pub(crate) fn reserved_variants(&self) -> impl Iterator<Item = (QueueKey, u32)> + '_ {
        self.reservations
            .iter()
            .map(|(key, (variant, _))| (*key, *variant))
    }

    pub(crate) fn has_reservations(&self) -> bool {
        !self.reservations.is_empty()
    }

    /// Returns when the worker's reservation for a queue was made.
    pub(crate) fn reserved_since(&self, key: QueueKey) -> Option<Time> {
        self.reservations.get(&key).map(|(_, since)| *since)
    }

    /// Returns the most urgent reservation that is at least this old.
    pub(crate) fn oldest_reservation(&self, now: Time, span: Duration) -> Option<QueueKey> {
        let mut reservations = self.reservations.iter();
        // Keys start with the priority, so this is the most urgent overdue reservation.
        let found = reservations.find(|(_, (_, since))| *since + span <= now);
        found.map(|(key, _)| *key)
    }

    /// Replaces the worker's reservations.
    pub(crate) fn set_reservations(&mut self, wanted: &[(QueueKey, u32)], now: Time) {
        let before = std::mem::take(&mut self.reservations);
        let reservations = wanted.iter().map(|(key, variant)| {
            // Reservations are recomputed in each round, but their age counts from their first
            // computation.
            let since = before.get(key).map_or(now, |(_, since)| *since);
            (*key, (*variant, since))
        });
        self.reservations = reservations.collect();
    }

    /// Returns the number of placed tasks, by class and variant.
    pub(crate) fn placed(&self) -> impl Iterator<Item = (ClassId, u32, u32)> + '_ {
        self.placed
            .iter()
            .map(|((class, variant), count)| (*class, *variant, *count))
    }

    /// Returns how many units of a resource the worker offers for a demand.
    #[must_use]
    pub fn total(&self, demand: &Demand) -> u64 {
        self.offers
            .get(demand.resource.0 as usize)
            .map_or(0, |offer| offer.units)
    }

    /// Returns the remaining lifetime, or `None` if it is unlimited.
    #[must_use]
    pub fn remaining(&self, now: Time) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.since(now))
    }

    /// Returns the offered resources with their total and free units. A node of a multi-node task
    /// has no free units.
    pub fn units(&self) -> impl Iterator<Item = (ResourceId, u64, i64)> + '_ {
        let is_free = self.node().is_none();
        let pairs = self.offers.iter().zip(&self.free);
        (0..).zip(pairs).map(move |(number, (offer, free))| {
            (
                ResourceId(number),
                offer.units,
                // A node has no free units, although the task is only charged to its root.
                if is_free { *free } else { 0 },
            )
        })
    }

    /// Returns whether the remaining lifetime covers the time request.
    #[must_use]
    pub fn has_time(&self, variant: &VariantDemand, now: Time) -> bool {
        variant.min_time_ns == 0
            || self
                .remaining(now)
                .is_none_or(|left| crate::time::nanos(left) >= variant.min_time_ns)
    }

    /// Returns how many tasks of a variant an empty worker could run at once.
    #[must_use]
    pub fn capacity(&self, variant: &VariantDemand) -> u32 {
        fitting(variant, &self.offers, |slot| {
            let units = self.offers.get(slot).map_or(0, |offer| offer.units);
            i64::try_from(units).unwrap_or(i64::MAX)
        })
    }

    /// Returns how many tasks of a variant the worker could start now.
    #[must_use]
    pub fn room(&self, variant: &VariantDemand) -> u32 {
        fitting(variant, &self.offers, |slot| {
            self.free.get(slot).copied().unwrap_or(0)
        })
    }

    /// Returns the backlog by urgency relative to a queue.
    pub(crate) fn backlog_split(&self, key: QueueKey) -> Split {
        let mut split = Split::default();
        for ((other, _), count) in &self.waiting {
            split.add(key.priority, other.priority, *count);
        }
        split
    }

    /// Returns the placed tasks in the order of their ids. Users see these tasks as running.
    pub fn placed_tasks(&self) -> impl Iterator<Item = TaskKey> + '_ {
        let placed = self.assigned.iter().filter(|(_, assigned)| assigned.placed);
        placed.map(|(key, _)| *key)
    }

    /// Returns the number of tasks of a job with a reported start, among the first `max` tasks.
    pub(crate) fn running_of(&self, job: JobId, max: usize) -> u32 {
        let first = TaskKey {
            job,
            task: TaskId(0),
        };
        let tasks = self.assigned.range(first..).take(max);
        let tasks = tasks.take_while(|(key, _)| key.job == job);
        tasks.map(|(_, assigned)| u32::from(assigned.started)).sum()
    }

    /// Returns the backlog entries in reverse starting order, except those that are being
    /// retracted.
    pub fn backlog_last(&self) -> impl Iterator<Item = (TaskKey, &Assigned)> + '_ {
        self.backlog
            .iter()
            .rev()
            .filter_map(|(_, key)| self.assigned.get(key).map(|assigned| (*key, assigned)))
            // The worker is about to return these. If they were requested twice, they would be
            // counted twice.
            .filter(|(_, assigned)| !assigned.retracting)
    }

    /// Returns the number of waiting tasks per queue, in reverse starting order. Takes O(queues).
    pub(crate) fn waiting_last(&self) -> impl Iterator<Item = (QueueKey, u32)> + '_ {
        let waiting = self.waiting.iter().rev();
        waiting.map(|((key, _), count)| (*key, *count))
    }

    /// Marks all unstarted tasks that are `wanted` as being retracted. Returns those that were not
    /// marked before.
    pub(crate) fn take_unstarted(
        &mut self,
        wanted: impl Fn(TaskKey, &Assigned) -> bool,
    ) -> Vec<(TaskKey, InstanceId)> {
        let mut back = Vec::new();
        for (key, assigned) in &mut self.assigned {
            // Each task is retracted only once, because the answer is already on its way.
            let is_wanted = !assigned.started && wanted(*key, assigned);
            if is_wanted && !std::mem::replace(&mut assigned.retracting, true) {
                back.push((*key, assigned.instance));
            }
        }
        back
    }

    /// Marks a task as being retracted, unless it has started or was marked before. Returns its
    /// instance.
    pub(crate) fn take_unstarted_one(&mut self, key: TaskKey) -> Option<(TaskKey, InstanceId)> {
        let assigned = self.assigned.get_mut(&key)?;
        let is_wanted = !assigned.started && !assigned.retracting;
        assigned.retracting |= is_wanted;
        is_wanted.then_some((key, assigned.instance))
    }

    pub(crate) fn mark_retracting(&mut self, key: TaskKey) {
        let Some(assigned) = self.assigned.get_mut(&key) else {
            bug!(
                "worker {} is asked for task {key}, which it does not have",
                self.id
            );
            return;
        };
        assigned.retracting = true;
    }

    /// Notes that the worker receives a template of a job. Returns whether the template is new to
    /// it.
    pub(crate) fn learn_template(&mut self, job: JobId, id: TemplateId) -> bool {
        let known = self.templates.entry(job).or_default();
        let is_new = !known.contains(id.0);
        if is_new {
            known.insert(id.0);
        }
        is_new
    }

    /// Returns whether the worker knows any template.
    #[cfg(test)]
    pub(crate) fn knows_templates(&self) -> bool {
        !self.templates.is_empty()
    }

    /// Forgets the templates of a job. Returns those that the worker knew. Each takes a few
    /// nanoseconds.
    pub(crate) fn forget_templates(&mut self, job: JobId) -> Vec<TemplateId> {
        let known = self.templates.remove(&job).unwrap_or_default();
        known.iter().map(TemplateId).collect()
    }

    pub(crate) fn assign(&mut self, task: TaskKey, assigned: Assigned, class: &Class) {
        // A task in the backlog uses no resources yet, because running tasks still use them.
        if assigned.placed {
            self.take(class, assigned.key.class, assigned.variant, 1);
        } else if assigned.turn == Turn::Now {
            self.join_backlog(task, &assigned);
        }
        self.assigned.insert(task, assigned);
    }

    /// Notes that the predecessor of a task has finished on the worker. The task now waits for
    /// room, if it has not started. Returns the task's previous turn.
    pub(crate) fn take_turn(&mut self, task: TaskKey, now: Time) -> Turn {
        let Some(assigned) = self.assigned.get_mut(&task) else {
            return Turn::Now;
        };
        let turn = std::mem::take(&mut assigned.turn);
        if turn != Turn::Now {
            // The task could not start before now.
            assigned.at = now;
            assigned.awaits = AwaitedEnds::None;
            let copy = *assigned;
            self.join_backlog(task, &copy);
        }
        turn
    }

    /// Returns whether a task waits on the worker for another task.
    pub(crate) fn has_later(&self, task: TaskKey) -> bool {
        let assigned = self.assigned.get(&task);
        assigned.is_some_and(|assigned| assigned.turn != Turn::Now)
    }

    /// Returns the assignment of an instance of a task.
    pub(crate) fn assignment(&self, task: TaskKey, instance: InstanceId) -> Option<&Assigned> {
        let assigned = self.assigned.get(&task);
        assigned.filter(|assigned| assigned.instance == instance)
    }

    /// Notes that a task has started. Returns the task with its previous turn, or `None` if the
    /// task was not sent to this worker with that instance or its start is already known.
    pub(crate) fn start(
        &mut self,
        task: TaskKey,
        instance: InstanceId,
        classes: &Classes,
    ) -> Option<Assigned> {
        let assigned = self
            .assigned
            .get_mut(&task)
            .filter(|a| a.instance == instance)?;
        // The worker repeats the report after its connection broke.
        if assigned.started {
            return None;
        }
        let before = *assigned;
        assigned.placed = true;
        assigned.turn = Turn::Now;
        assigned.started = true;
        assigned.awaits = AwaitedEnds::None;
        let mut copy = *assigned;
        copy.turn = before.turn;
        // There is room for this kind of task after all.
        self.stuck.remove(&(copy.key.class, copy.variant));
        // The worker chose the task itself, ahead of the expected order.
        if !before.placed {
            self.leave_backlog(task, &before);
            if let Some(class) = classes.get(copy.key.class) {
                self.take(class, copy.key.class, copy.variant, 1);
            }
        }
        self.running += 1;
        Some(copy)
    }

    /// Removes an ended task. Returns `None` if it was not sent to this worker with that instance.
    pub(crate) fn remove(
        &mut self,
        task: TaskKey,
        instance: InstanceId,
        classes: &Classes,
    ) -> Option<Assigned> {
        let assigned = self.take_out(task, instance, classes)?;
        // Requests that did not fit may fit now.
        self.stuck.clear();
        Some(assigned)
    }

    fn take_out(
        &mut self,
        task: TaskKey,
        instance: InstanceId,
        classes: &Classes,
    ) -> Option<Assigned> {
        let assigned = *self.assignment(task, instance)?;
        self.assigned.remove(&task);
        if assigned.placed {
            if let Some(class) = classes.get(assigned.key.class) {
                self.take(class, assigned.key.class, assigned.variant, -1);
            }
        } else {
            self.leave_backlog(task, &assigned);
        }
        self.running = self.running.saturating_sub(u32::from(assigned.started));
        Some(assigned)
    }

    fn join_backlog(&mut self, task: TaskKey, assigned: &Assigned) {
        self.backlog.insert((assigned.key, task));
        let of = (assigned.key, assigned.variant);
        *self.waiting.entry(of).or_default() += 1;
    }

    fn leave_backlog(&mut self, task: TaskKey, assigned: &Assigned) {
        // Before its turn, a task is not in the backlog.
        if assigned.turn != Turn::Now {
            return;
        }
        self.backlog.remove(&(assigned.key, task));
        let of = (assigned.key, assigned.variant);
        if let Some(count) = self.waiting.get_mut(&of) {
            *count -= 1;
            if *count == 0 {
                self.waiting.remove(&of);
            }
        }
    }

    /// Marks `count` backlog entries of a variant as placed. Returns these entries.
    pub(crate) fn promote_some(
        &mut self,
        key: QueueKey,
        number: u32,
        count: u32,
        classes: &Classes,
        now: Time,
    ) -> Vec<TaskKey> {
        const FIRST: TaskKey = TaskKey::new(JobId(0), TaskId(0));
        const LAST: TaskKey = TaskKey::new(JobId(u32::MAX), TaskId(u32::MAX));
        let first: Vec<TaskKey> = self
            .backlog
            .range((key, FIRST)..=(key, LAST))
            .map(|(_, task)| *task)
            .filter(|task| self.assigned.get(task).is_some_and(|a| a.variant == number))
            .take(count as usize)
            .collect();
        let Some(class) = classes.get(key.class) else {
            return Vec::new();
        };
        for task in &first {
            let Some(assigned) = self.assigned.get_mut(task) else {
                continue;
            };
            assigned.placed = true;
            // The time waited so far does not count, because the task could not start and was
            // retracted for lack of room.
            assigned.at = now;
            assigned.retracting = false;
            let copy = *assigned;
            self.leave_backlog(*task, &copy);
            self.take(class, key.class, number, 1);
        }
        first
    }

    /// Moves placed tasks that have no room back to the backlog, because the worker has started
    /// other tasks instead. Returns them in reverse starting order.
    pub(crate) fn displace(&mut self, classes: &Classes) -> Vec<TaskKey> {
        let mut displaced = Vec::new();
        // The usual case: the expected tasks run. A multi-node task keeps its nodes in any case.
        let is_overbooked =
            self.placed_len > self.running && self.free.iter().any(|free| *free < 0);
        if !is_overbooked || self.node().is_some() {
            return displaced;
        }
        let unstarted = self.assigned.iter().filter(|(_, a)| a.placed && !a.started);
        let mut unstarted: Vec<_> = unstarted.map(|(task, a)| (a.key, *task)).collect();
        unstarted.sort_unstable();
        for (key, task) in unstarted.into_iter().rev() {
            let (Some(class), Some(assigned)) =
                (classes.get(key.class), self.assigned.get_mut(&task))
            else {
                continue;
            };
            let lacks = |demand: &Demand| {
                let free = self.free.get(demand.resource.0 as usize);
                free.is_some_and(|free| *free < 0)
            };
            let variant = class.variants.get(assigned.variant as usize);
            if !variant.is_some_and(|variant| variant.demands.iter().any(lacks)) {
                continue;
            }
            assigned.placed = false;
            let copy = *assigned;
            self.take(class, key.class, copy.variant, -1);
            self.join_backlog(task, &copy);
            displaced.push(task);
        }
        displaced
    }

    /// Returns the tasks that have not started and are no more urgent than a queue.
    pub(crate) fn unstarted_behind(&self, key: QueueKey) -> Vec<(TaskKey, InstanceId)> {
        self.assigned
            .iter()
            // Priorities are reversed, so tasks more urgent than the queue stay.
            .filter(|(_, a)| !a.started && !a.retracting && a.key.priority >= key.priority)
            .map(|(task, assigned)| (*task, assigned.instance))
            .collect()
    }

    /// Counts the resources of a variant as used (`sign` 1) or free (-1).
    fn take(&mut self, class: &Class, id: ClassId, number: u32, sign: i64) {
        let Some(variant) = class.variants.get(number as usize) else {
            return;
        };
        let placed = self.placed.entry((id, number)).or_default();
        if sign > 0 {
            *placed += 1;
            self.placed_len += 1;
        } else {
            *placed = placed.saturating_sub(1);
            self.placed_len = self.placed_len.saturating_sub(1);
            if *placed == 0 {
                self.placed.remove(&(id, number));
            }
        }
        for demand in &variant.demands {
            // A demand for the whole pool means everything that this worker has.
            let units = demand.units.unwrap_or_else(|| self.total(demand));
            if let Some(free) = self.free.get_mut(demand.resource.0 as usize) {
                *free -= sign * i64::try_from(units).unwrap_or(i64::MAX);
            }
        }
    }

    /// Panics if free and used units do not add up to the total. For tests only.
    ///
    /// # Panics
    ///
    /// If the accounting is wrong.
    #[cfg(any(test, feature = "testing"))]
    pub fn check_books(&self, classes: &Classes) {
        let mut copy = self.clone();
        for assigned in self.assigned.values().filter(|assigned| assigned.placed) {
            let class = classes
                .get(assigned.key.class)
                .expect("class of an assigned task exists");
            copy.take(class, assigned.key.class, assigned.variant, -1);
        }
        assert!(copy.placed.is_empty(), "placed tasks of {}", self.id);
        assert_eq!(copy.placed_len, 0, "number of placed tasks of {}", self.id);
        for (free, offer) in copy.free.iter().zip(&self.offers) {
            assert_eq!(
                u64::try_from(*free),
                Ok(offer.units),
                "free + taken = total on {}",
                self.id
            );
        }
        let backlog = self
            .assigned
            .iter()
            .filter(|(_, a)| !a.placed && a.turn == Turn::Now)
            .map(|(k, a)| (a.key, *k));
        assert_eq!(
            backlog.collect::<BTreeSet<_>>(),
            self.backlog,
            "backlog of {}",
            self.id
        );
        let mut waiting = BTreeMap::new();
        let backlog = self.assigned.values();
        let backlog = backlog.filter(|a| !a.placed && a.turn == Turn::Now);
        for assigned in backlog {
            *waiting.entry((assigned.key, assigned.variant)).or_insert(0) += 1;
        }
        assert_eq!(
            waiting, self.waiting,
            "counts of the backlog of {}",
            self.id
        );
    }
}

fn everything(offers: &[Offer]) -> Vec<i64> {
    offers
        .iter()
        .map(|offer| i64::try_from(offer.units).unwrap_or(i64::MAX))
        .collect()
}
