//! The plan for one worker in one round. It contains the worker's free amounts and the reservations
//! that protect blocked tasks from less urgent ones.

use std::cmp::Reverse;
use std::time::Duration;

use crate::class::{ClassId, Classes, Demand, QueueKey, VariantDemand, fitting};
use crate::id::TaskKey;
use crate::resource::shadow::{freed_alongside, slack};
use crate::time::Time;
use crate::worker::{BACKLOG_MAX, Split, Worker};

/// The maximum number of tasks sent in front of less urgent ones regardless of their duration. This
/// many of the shortest tasks last for many round trips to the server.
const COVER_MAX: u32 = 256;
/// The maximum number of blocked requests whose needs are computed. With more, no room is left for
/// other tasks.
const BLOCKED_MAX: usize = 8;
/// A backlog is refilled when the target size divided by this number is missing. The remaining
/// tasks last for several round trips.
const TOP_UP_PART: u32 = 4;

/// The maximum number of requests in the backlog that are examined to find which ones start next.
const PROMOTED_LOOKS_MAX: usize = 256;

/// How long equally urgent tasks may overtake the most valuable request that has no room. This is
/// long enough to keep short tasks flowing, and short enough to keep large tasks from starving.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// The lowest priority down to which all relevant requests were examined for a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SeenPriority {
    /// The priority for starts, or `None` if all requests were examined.
    pub fitting: Option<Reverse<i32>>,
    /// The priority for sending ahead, or `None` if all requests were examined.
    pub ahead: Option<Reverse<i32>>,
}

impl SeenPriority {
    /// Returns whether no request that could start on the worker was examined.
    pub(crate) fn is_blind(&self) -> bool {
        self.fitting == Some(Reverse(i32::MAX))
    }
}

/// The state of a worker within one round.
#[derive(Clone, Debug)]
pub(crate) struct WorkerPlan<'a> {
    pub(crate) worker: &'a Worker,
    free: Vec<i64>,
    /// The units reserved for tasks more urgent than the current level.
    reserved_room: Vec<i64>,
    /// The tasks that wait on the worker, most urgent first. Room is reserved for the entries
    /// before `absorbed`.
    blocked: Vec<(QueueKey, u32)>,
    absorbed: usize,
    /// Whether `blocked` includes the requests that the worker reserves room for.
    reservations_noted: bool,
    /// The tasks placed in this round, by class and variant.
    placed: Vec<(ClassId, u32, u32)>,
    sent: Vec<(QueueKey, u32)>,
    /// The multi-node task for which the worker is being drained. The worker only gets more urgent
    /// tasks.
    pub(crate) reserved: Option<QueueKey>,
    /// The priority down to which the ready requests were examined.
    pub(crate) seen: SeenPriority,
    /// The index among the kinds of workers in the round.
    pub(crate) kind: usize,
    /// Whether the worker can still choose among several requests of the current level.
    pub(crate) has_choice: bool,
    /// Whether this round recomputes the worker's reservations.
    pub(crate) is_selected: bool,
    /// The target size of the worker's backlog at its current rate. It is computed on demand.
    rate_target: Option<u32>,
    /// The current level, and the worker's backlog relative to it.
    split: Option<(Reverse<i32>, Split)>,
}

impl<'a> WorkerPlan<'a> {
    pub(crate) fn new(worker: &'a Worker) -> Self {
        Self {
            worker,
            free: worker.free().to_vec(),
            reserved_room: Vec::new(),
            blocked: worker.waiting().collect(),
            absorbed: 0,
            reservations_noted: false,
            placed: Vec::new(),
            sent: Vec::new(),
            reserved: worker.reserved_for(),
            seen: SeenPriority::default(),
            kind: 0,
            has_choice: false,
            is_selected: false,
            rate_target: None,
            split: None,
        }
    }

    /// Notes the worker's reservations that still have ready tasks. Must be called before
    /// [`WorkerPlan::enter`]. Only the first call has an effect.
    pub(crate) fn note_reservations(&mut self, is_ready: impl Fn(QueueKey) -> bool) {
        // A later level would add the same reservations twice.
        if std::mem::replace(&mut self.reservations_noted, true) {
            return;
        }
        let reserved = self
            .worker
            .reserved_variants()
            .filter(|(key, _)| is_ready(*key));
        self.blocked.extend(reserved);
        self.blocked.sort_unstable();
        self.blocked.dedup();
    }

    /// Creates a plan that ignores the worker's backlog.
    pub(crate) fn without_backlog(worker: &'a Worker) -> Self {
        Self {
            blocked: Vec::new(),
            ..Self::new(worker)
        }
    }

    /// Returns the units of a resource that are free and not reserved.
    pub(crate) fn available(&self, slot: usize) -> i64 {
        let reserved = self.reserved_room.get(slot).copied().unwrap_or(0);
        self.free.get(slot).copied().unwrap_or(0) - reserved
    }

    pub(crate) fn available_all(&self) -> Vec<i64> {
        (0..self.free.len())
            .map(|slot| self.available(slot))
            .collect()
    }

    /// Returns whether tasks of this queue may start on this worker at all.
    pub(crate) fn admits(&self, key: QueueKey) -> bool {
        let is_seen = self.seen.fitting.is_none_or(|last| key.priority <= last);
        is_seen
            && self
                .reserved
                .is_none_or(|reserved| key.priority < reserved.priority)
    }

    /// Returns whether tasks of this queue may be sent ahead to this worker at all.
    pub(crate) fn admits_ahead(&self, key: QueueKey) -> bool {
        let is_seen = self.seen.ahead.is_none_or(|last| key.priority <= last);
        is_seen && self.reserved.is_none()
    }

    /// Returns whether tasks of a variant may go to this worker, regardless of free amounts.
    pub(crate) fn serves(
        &self,
        class: ClassId,
        number: u32,
        demand: &VariantDemand,
        now: Time,
    ) -> bool {
        self.worker.has_time(demand, now) && !self.worker.is_stuck(class, number)
    }

    /// Returns how many tasks of a variant could start now.
    pub(crate) fn room(&self, demand: &VariantDemand) -> u32 {
        fitting(demand, self.worker.offers(), |slot| self.available(slot))
    }

    /// Returns whether at least the given number of units of each of these resources is free.
    pub(crate) fn reaches(&self, floor: &[(usize, i64)]) -> bool {
        let mut floor = floor.iter();
        floor.all(|(slot, least)| self.free.get(*slot).copied().unwrap_or(0) >= *least)
    }

    /// Returns whether a task of a variant could start if there were no reservations. This is much
    /// cheaper than computing reservations.
    pub(crate) fn has_free(&self, demand: &VariantDemand) -> bool {
        let free = |slot: usize| self.free.get(slot).copied().unwrap_or(0);
        fitting(demand, self.worker.offers(), free) > 0
    }

    /// Descends to the priority level of a queue.
    pub(crate) fn enter(&mut self, key: QueueKey, classes: &Classes) {
        // Each blocked request is added once, when the round descends below its priority.
        while let Some((blocked, variant)) = self.blocked.get(self.absorbed).copied() {
            // The blocked request is not more urgent, so it competes in the mix without a
            // reservation.
            if blocked.priority >= key.priority {
                break;
            }
            // With this many blocked requests, almost no room would be left, so less urgent tasks
            // get none.
            if self.absorbed >= BLOCKED_MAX {
                let urgent = |(other, _): &(QueueKey, u32)| other.priority < key.priority;
                self.absorbed = self.blocked.partition_point(urgent);
                self.reserved_room = self.free.clone();
                break;
            }
            self.absorbed += 1;
            let demand = classes
                .get(blocked.class)
                .and_then(|class| class.variants.get(variant as usize));
            if let Some(demand) = demand {
                self.reserve(demand, classes);
            }
        }
    }

    /// Returns whether equally urgent tasks have overtaken a reserved request for too long.
    pub(crate) fn is_overdue(&self, now: Time) -> bool {
        self.worker.oldest_reservation(now, PATIENCE).is_some()
    }

    /// Reserves room for the most urgent request that has waited too long.
    pub(crate) fn reserve_for_overdue(&mut self, classes: &Classes, now: Time) {
        let overdue = self.worker.oldest_reservation(now, PATIENCE);
        let mut reservations = self.worker.reserved_variants();
        if let Some((key, number)) = reservations.find(|(key, _)| Some(*key) == overdue) {
            self.reserve_for(key, number, classes);
        }
    }

    /// Returns the reserved units, so that [`WorkerPlan::restore_reserved`] can undo later
    /// reservations.
    pub(crate) fn reserved_units(&self) -> Vec<i64> {
        self.reserved_room.clone()
    }

    /// Replaces all reservations with the given ones.
    pub(crate) fn restore_reserved(&mut self, reserved: Vec<i64>) {
        self.reserved_room = reserved;
    }

    /// Reserves room for a variant of a request.
    pub(crate) fn reserve_for(&mut self, key: QueueKey, number: u32, classes: &Classes) {
        let class = classes.get(key.class);
        if let Some(demand) = class.and_then(|class| class.variants.get(number as usize)) {
            self.reserve(demand, classes);
        }
    }

    /// Reserves what a blocked variant needs now, and the free units that it will need later.
    fn reserve(&mut self, demand: &VariantDemand, classes: &Classes) {
        let missing = |lacking: &Demand| {
            let available = self.available(lacking.resource.0 as usize).max(0);
            u64::try_from(self.need(lacking) - available).unwrap_or(0)
        };
        let lacking: Vec<(&Demand, u64)> = demand
            .demands
            .iter()
            .map(|lacking| (lacking, missing(lacking)))
            .filter(|(_, missing)| *missing > 0)
            .collect();
        let reserved: Vec<(usize, i64)> = demand
            .demands
            .iter()
            .map(|demand| {
                let units = self.units_to_reserve(demand, &lacking, classes);
                (demand.resource.0 as usize, units)
            })
            .collect();
        for (slot, units) in reserved {
            // These resources have no reservations yet.
            if self.reserved_room.len() <= slot {
                self.reserved_room.resize(slot + 1, 0);
            }
            self.reserved_room[slot] += units;
        }
    }

    fn units_to_reserve(
        &self,
        demand: &Demand,
        lacking: &[(&Demand, u64)],
        classes: &Classes,
    ) -> i64 {
        let available = self.available(demand.resource.0 as usize).max(0);
        let need = self.need(demand);
        // This resource is not the bottleneck of the blocked task.
        if available >= need {
            // The task starts when another resource is freed, which also frees some of this one.
            // The guaranteed minimum is computed for each lacking resource.
            let beside = lacking.iter().map(|(other, missing)| {
                let held = self.held(classes);
                let pairs =
                    held.map(|(held, _)| (self.held_of(held, other), self.held_of(held, demand)));
                freed_alongside(*missing, pairs)
            });
            let beside = i64::try_from(beside.max().unwrap_or(0)).unwrap_or(i64::MAX);
            return (need - beside).max(0);
        }
        // Everything is in use, so the blocked task gets the units that are freed anyway.
        if available == 0 {
            return 0;
        }
        // Any set of ending tasks that frees enough units may free more. Other tasks may use this
        // excess (slack). The rest is reserved.
        let missing = u64::try_from(need - available).unwrap_or(0);
        let held = self.held(classes);
        let held = held.map(|(held, count)| (self.held_of(held, demand), count));
        let slack = i64::try_from(slack(missing, held)).unwrap_or(i64::MAX);
        available - slack.min(available)
    }

    /// Returns the number of units that a task takes.
    fn need(&self, demand: &Demand) -> i64 {
        let need = demand.units.unwrap_or_else(|| self.worker.total(demand));
        i64::try_from(need).unwrap_or(i64::MAX)
    }

    /// Returns the variants of the tasks that run on this worker, with task counts.
    fn held<'b>(&'b self, classes: &'b Classes) -> impl Iterator<Item = (&'b VariantDemand, u32)> {
        let held = self.worker.placed().chain(self.placed.iter().copied());
        held.filter_map(|(class, variant, count)| {
            let variant = classes.get(class)?.variants.get(variant as usize)?;
            Some((variant, count))
        })
    }

    /// Returns the number of units of a resource that a running task holds.
    fn held_of(&self, held: &VariantDemand, of: &Demand) -> u64 {
        let found = held.demands.iter().find(|d| d.resource == of.resource);
        found.map_or(0, |held| {
            held.units.unwrap_or_else(|| self.worker.total(held))
        })
    }

    /// Notes tasks that start on this worker now.
    pub(crate) fn place(
        &mut self,
        class: ClassId,
        number: u32,
        demand: &VariantDemand,
        count: u32,
    ) {
        let costs: Vec<(usize, i64)> = self.costs(demand).collect();
        for (slot, units) in costs {
            if let Some(free) = self.free.get_mut(slot) {
                *free -= units * i64::from(count);
            }
        }
        self.placed.push((class, number, count));
    }

    /// Returns the units that one task of a variant takes, by resource number.
    pub(crate) fn costs<'b>(
        &'b self,
        demand: &'b VariantDemand,
    ) -> impl Iterator<Item = (usize, i64)> + 'b {
        demand.demands.iter().map(|demand| {
            let units = demand.units.unwrap_or_else(|| self.worker.total(demand));
            (
                demand.resource.0 as usize,
                i64::try_from(units).unwrap_or(i64::MAX),
            )
        })
    }

    /// Notes tasks that are sent ahead to wait on this worker.
    pub(crate) fn send_ahead(&mut self, key: QueueKey, number: u32, count: u32) {
        self.sent.push((key, count));
        if let Some((level, split)) = &mut self.split {
            split.add(*level, key.priority, count);
        }
        self.block(key, number);
    }

    /// Notes that tasks of this variant wait on this worker.
    pub(crate) fn block(&mut self, key: QueueKey, number: u32) {
        // The requests before `absorbed` are more urgent than all requests that remain to be
        // decided.
        let rest = self.blocked.get(self.absorbed..).unwrap_or_default();
        // The request may be present already. One entry reserves room for all of its tasks.
        if let Err(at) = rest.binary_search(&(key, number)) {
            self.blocked.insert(self.absorbed + at, (key, number));
        }
    }

    /// Returns how many more tasks of this queue may be sent ahead. The backlog may hold `least`
    /// tasks, or more if tasks are short.
    pub(crate) fn backlog_room(&mut self, key: QueueKey, least: u32, now: Time) -> u32 {
        let split = self.backlog_split(key);
        let by_rate = *self
            .rate_target
            .get_or_insert_with(|| self.worker.backlog_by_rate(now));
        // Many short tasks are needed so that the next message arrives in time, but only as many
        // long tasks as fit at once.
        let target = by_rate.max(least).min(BACKLOG_MAX);
        // Less urgent tasks must not start before these tasks. Therefore, all of them are covered,
        // or as many as last until the next message.
        let cover = split.below.min(COVER_MAX);
        // Tasks of equal or higher priority count toward the target.
        let room = target.saturating_sub(split.above + split.level);
        // Tasks are sent in batches, because a message to an almost full backlog costs more than
        // its tasks are worth.
        let room = if room < target / TOP_UP_PART { 0 } else { room };
        // Less urgent tasks are covered even beyond the target.
        room.max(cover.saturating_sub(split.level))
    }

    fn backlog_split(&mut self, key: QueueKey) -> Split {
        // The split is valid for the whole level. Tasks sent in this round are added to it.
        if let Some((level, split)) = self.split
            && level == key.priority
        {
            return split;
        }
        let mut split = self.worker.backlog_split(key);
        for (other, count) in &self.sent {
            split.add(key.priority, other.priority, *count);
        }
        self.split = Some((key.priority, split));
        split
    }

    /// Returns whether this round has given the worker no tasks.
    pub(crate) fn is_untouched(&self) -> bool {
        self.placed.is_empty() && self.sent.is_empty()
    }

    /// Returns the used fraction of a resource, from 0.0 to 1.0.
    pub(crate) fn busy_share(&self, slot: usize) -> f64 {
        self.busy_share_with(slot, 0)
    }

    /// Returns the used fraction of a resource if `more` additional units were used.
    pub(crate) fn busy_share_with(&self, slot: usize, more: i64) -> f64 {
        let free = self.free.get(slot).copied().unwrap_or(0);
        self.worker.share_taken(slot, free.saturating_sub(more))
    }
}

/// Marks backlog entries of a worker as placed while they fit, in the order they start.
/// Marks placed tasks as waiting if they no longer fit. Returns the changed tasks.
pub(crate) fn promote(worker: &mut Worker, classes: &Classes, now: Time) -> Vec<TaskKey> {
    let mut changed = worker.displace(classes);
    let demand = |key: QueueKey, number: u32| {
        let class = classes.get(key.class)?;
        class.variants.get(number as usize)
    };
    let fits = |key: QueueKey, number| {
        let fits = demand(key, number).is_some_and(|d| worker.room(d) > 0);
        fits && !worker.is_stuck(key.class, number)
    };
    let mut waiting = worker.waiting().take(PROMOTED_LOOKS_MAX);
    let has_room = waiting.any(|(key, number)| fits(key, number));
    drop(waiting);
    // On a full worker, which is the usual case, examining the backlog would find nothing.
    if !has_room {
        return changed;
    }
    let mut promoted: Vec<(QueueKey, u32, u32)> = Vec::new();
    let mut plan = WorkerPlan::without_backlog(worker);
    // The backlog is examined in the worker's start order, with the worker's reservations.
    for (key, number, count) in worker.waiting_counts().take(PROMOTED_LOOKS_MAX) {
        plan.enter(key, classes);
        let Some(demand) = demand(key, number) else {
            continue;
        };
        let fits = match worker.is_stuck(key.class, number) {
            true => 0,
            false => plan.room(demand).min(count),
        };
        if fits > 0 {
            plan.place(key.class, number, demand, fits);
            promoted.push((key, number, fits));
        }
        // As on the worker, a task that does not fit reserves room before less urgent tasks do.
        if fits < count {
            plan.block(key, number);
        }
    }
    for (key, number, count) in promoted {
        changed.extend(worker.promote_some(key, number, count, classes, now));
    }
    changed
}

/// Panics if there is room for the most urgent waiting task of a worker, or if a task counts as
/// placed without room. Room that is reserved against less urgent tasks is ignored.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn check_room(worker: &Worker, classes: &Classes) {
    use crate::resource::amount::UNITS_PER_WHOLE;

    let displaced = worker.clone().displace(classes);
    assert_eq!(displaced, [], "placed without room on worker {}", worker.id);
    let first = worker.waiting().next();
    if let Some((key, number)) = first.filter(|(key, n)| !worker.is_stuck(key.class, *n)) {
        let class = classes.get(key.class);
        let demand = class.and_then(|class| class.variants.get(number as usize));
        // Sums of fractions are not sufficient: two free quarters of different devices cannot hold
        // a half.
        let is_whole = |demand: &&VariantDemand| {
            let mut units = demand.demands.iter().filter_map(|demand| demand.units);
            units.all(|units| units % UNITS_PER_WHOLE == 0)
        };
        let room = demand
            .filter(is_whole)
            .map_or(0, |demand| worker.room(demand));
        assert_eq!(room, 0, "a task waits with room on worker {}", worker.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::WorkerId;
    use crate::testing::worker_config;
    use crate::time::Timestamp;
    use std::sync::Arc;

    #[test]
    fn the_least_urgent_priority_that_is_seen_is_placed_and_sent_ahead() {
        let config = Arc::new(worker_config(1));
        let worker = Worker::new(WorkerId(1), config, Vec::new(), Time(0), Timestamp(0));
        let mut plan = WorkerPlan::new(&worker);
        let last = Some(Reverse(5));
        plan.seen = SeenPriority {
            fitting: last,
            ahead: last,
        };
        for (priority, expected) in [(6, true), (5, true), (4, false)] {
            let key = QueueKey::new(priority, ClassId(0));
            let admitted = (plan.admits(key), plan.admits_ahead(key));
            assert_eq!(admitted, (expected, expected), "priority {priority}");
        }
    }

    #[test]
    fn a_backlog_that_lacks_little_gets_nothing() {
        let config = Arc::new(worker_config(16));
        let worker = Worker::new(WorkerId(1), config, Vec::new(), Time(0), Timestamp(0));
        let key = QueueKey::new(0, ClassId(0));
        let mut room_with = |sent: u32| {
            let mut plan = WorkerPlan::new(&worker);
            plan.send_ahead(key, 0, sent);
            plan.backlog_room(key, 16, Time(0))
        };
        assert_eq!([0, 12, 13, 16].map(&mut room_with), [16, 4, 0, 0]);
        // If the target is this small, every task counts.
        let mut plan = WorkerPlan::new(&worker);
        plan.send_ahead(key, 0, 2);
        assert_eq!(plan.backlog_room(key, 3, Time(0)), 1);
    }
}
