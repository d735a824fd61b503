//! A scheduling round: decides how many tasks of each class go to each worker.
//!
//! A round is a function from [`RoundInput`] to [`RoundPlan`]. Nothing changes until the caller
//! applies the plan. Levels of equal priority are visited from the highest, each in these phases:
//!
//! 1. *Gang scheduling* (`gang`): multi-node tasks take empty workers, or reserve the workers that
//!    will be empty soonest.
//! 2. *Fill*: each worker, lowest id first, gets the best mix of what fits (`pack`: vector bin
//!    packing).
//! 3. *Send ahead*: the remaining tasks are spread evenly over backlogs, so that no worker idles
//!    for a round trip.
//! 4. *Reserve*: workers reserve room for the most valuable requests for which they have no room.
//!
//! Lower levels *backfill* free resources, but never take what a more urgent task waits for
//! (`worker_plan`). This is conservative backfilling (Mu'alem and Feitelson, Utilization,
//! Predictability, Workloads, and User Runtime Estimates in Scheduling the IBM SP2 with
//! Backfilling, 2001) without run times: any set of running tasks may be the next to end.
//!
//! # Example
//!
//! There are two workers with 4 cpus, and a task with 2 cpus runs on the first. Two tasks with 4
//! cpus are ready at priority 1, and six tasks with 1 cpu at priority 0.
//!
//! | level | phase | worker 1 | worker 2 |
//! |---|---|---|---|
//! | 1 | fill | 2 free cpus: nothing fits | one task with 4 cpus starts |
//! | 1 | send ahead | gets the other task with 4 cpus | |
//! | 0 | fill | its 2 free cpus are reserved for the waiting task, which lacks the 2 that the running one will free | full |
//! | 0 | send ahead | 3 tasks, which start after the urgent one | 3 tasks |
//!
//! Costs O(levels + queues × workers with room), independent of the number of tasks. Of very many
//! queues, a round sees only the relevant ones (`window`).

mod ahead;
mod demanding;
mod lower_priority;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::gang::GangPlanner;
pub use super::gang::GangStart;
use super::pack::{Bin, Budget, Candidate, EXACT_TASKS_MAX, best_mix, resource_weights};
use super::worker_plan::{PATIENCE, SeenPriority, WorkerPlan};
use crate::class::{Class, ClassId, Classes, Offer, QueueKey, VariantDemand};
use crate::id::WorkerId;
use crate::time::Time;
use crate::worker::Worker;
use lower_priority::LowerPriorityBacklog;

/// The number of requests per level that a worker reserves room for.
const RESERVATIONS_MAX: usize = 2;
/// The number of workers whose reservations one round recomputes (round-robin). The others keep
/// theirs, which matter only when a task ends there.
const RESERVATION_WORKERS_MAX: usize = 32;
/// The cost of starting a multi-node task, in single tasks.
const GANG_COST: u64 = 16;
/// The number of mixes remembered for equal workers.
const MEMO_MAX: usize = 4;

/// Tasks of one class that go to one worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// The queue of the tasks.
    pub key: QueueKey,
    /// The id of the worker.
    pub worker: WorkerId,
    /// The variant of the request.
    pub variant: u32,
    /// The number of tasks.
    pub count: u64,
    /// Whether they start immediately. Otherwise they are sent ahead.
    pub placed: bool,
}

/// The input of a round.
#[derive(Clone, Copy, Debug)]
pub struct RoundInput<'a> {
    /// The ready tasks by priority, and within a priority in order of precedence.
    pub queues: &'a [(QueueKey, u64)],
    /// How many tasks of a queue may be sent ahead of their turn. For other queues, all of them.
    pub ahead: &'a BTreeMap<QueueKey, u64>,
    /// The classes of these tasks.
    pub classes: &'a Classes,
    /// All workers.
    pub workers: &'a BTreeMap<WorkerId, Worker>,
    /// The workers that may have room, and how much of `queues` matters to them.
    pub rooms: &'a BTreeMap<WorkerId, SeenPriority>,
    /// The number of workers with a reservation, by queue.
    pub reservation_counts: &'a BTreeMap<QueueKey, u64>,
    /// The round-robin cursor: the worker whose reservations were recomputed last.
    pub reservation_cursor: Option<WorkerId>,
    /// Whether to place multi-node tasks and recompute their reservations.
    pub with_gangs: bool,
    /// The maximum number of dispatched tasks. Multi-node tasks count more.
    pub tasks_max: u64,
    /// The current time.
    pub now: Time,
}

/// The result of a round.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RoundPlan {
    /// The placements, in the order tasks are removed from their queues.
    pub placements: Vec<Placement>,
    /// The multi-node tasks that start.
    pub gangs: Vec<GangStart>,
    /// The workers reserved for multi-node tasks. Only set with [`RoundInput::with_gangs`].
    pub reserved: BTreeMap<WorkerId, QueueKey>,
    /// The new reservations of the examined workers, for requests that were not sent to them. Empty
    /// if the round was cut.
    pub reservations: BTreeMap<WorkerId, Vec<(QueueKey, u32)>>,
    /// The next value of [`RoundInput::reservation_cursor`].
    pub reservation_cursor: Option<WorkerId>,
    /// The workers whose sent-ahead tasks of lower priority must be retracted. Each has the queues
    /// of the same class that have more ready tasks than these workers were sent.
    pub overtaken: BTreeMap<WorkerId, Vec<QueueKey>>,
    /// Whether the limit of tasks was reached, so that more work remains.
    pub is_cut: bool,
}

/// Decides one round.
#[must_use]
pub fn solve(input: &RoundInput<'_>) -> RoundPlan {
    let mut round = Round::new(input);
    let mut plans: Vec<WorkerPlan<'_>> = Vec::with_capacity(input.rooms.len());
    let mut demanding: Vec<WorkerPlan<'_>> = Vec::new();
    for (id, seen) in input.rooms {
        let Some(worker) = input.workers.get(id).filter(|w| w.accepts_work()) else {
            continue;
        };
        let mut plan = WorkerPlan::new(worker);
        plan.kind = round.kind_of(worker);
        plan.seen = *seen;
        if input.with_gangs {
            // Reservations are decided again below, level by level.
            plan.reserved = None;
        }
        if worker.config.min_utilization > 0.0 {
            // The worker takes enough tasks or none, which is known only after all levels.
            demanding.push(plan);
        } else {
            plans.push(plan);
        }
    }
    let mut gangs = input.with_gangs.then(|| {
        let queues = input.queues.iter().map(|(key, _)| *key);
        GangPlanner::new(input.workers.values(), queues, input.now)
    });
    // This must happen before tasks are sent ahead to other workers. It must not take nodes of more
    // urgent multi-node tasks.
    if !input.with_gangs {
        round.fill_demanding(&mut demanding);
    }
    let reservation_cursor = select_for_reservation(input.reservation_cursor, &mut plans);
    let lower = LowerPriorityBacklog::new(&plans, input.queues);
    for level in levels(input.queues) {
        if let Some(planner) = &mut gangs
            && round.has_gangs(level)
        {
            planner.note_given(&plans);
            planner.note_given(&demanding);
            round.plan_gangs(level, planner);
            for plans in [&mut plans, &mut demanding] {
                plans.retain(|plan| !planner.is_given(plan.worker.id));
                for plan in plans {
                    plan.reserved = planner.reserved.get(&plan.worker.id).copied();
                }
            }
        }
        // Most workers are full, so workers that cannot start even the smallest task are skipped.
        let floor = round.floor(level);
        for plan in plans.iter_mut().filter(|plan| plan.reaches(&floor)) {
            round.fill(level, plan);
        }
        round.send_ahead(level, &mut plans, &lower);
        round.reserve(level, &mut plans);
        if round.is_used_up() {
            // Less urgent levels follow in the next round, which starts immediately.
            break;
        }
    }
    if input.with_gangs {
        round.fill_demanding(&mut demanding);
    }
    if round.is_used_up() {
        // In a cut round, a request without room may only have lacked time, which does not justify
        // a reservation.
        round.reservations.clear();
    }
    let (gang_starts, reserved) = gangs.map_or_else(Default::default, |g| (g.starts, g.reserved));
    RoundPlan {
        is_cut: round.is_used_up(),
        placements: round.placements,
        reservations: round.reservations,
        reservation_cursor,
        overtaken: round.overtaken,
        gangs: gang_starts,
        reserved,
    }
}

/// Selects the workers whose reservations this round recomputes (round-robin). Returns the last of
/// them.
fn select_for_reservation(
    after: Option<WorkerId>,
    plans: &mut [WorkerPlan<'_>],
) -> Option<WorkerId> {
    let first = plans.partition_point(|plan| Some(plan.worker.id) <= after);
    let (later, sooner) = plans.split_at_mut(first);
    let turns = sooner.iter_mut().chain(later).take(RESERVATION_WORKERS_MAX);
    turns.fold(after, |_, plan| {
        plan.is_selected = true;
        Some(plan.worker.id)
    })
}

/// The queues of one priority, as positions in [`RoundInput::queues`].
#[derive(Clone, Copy, Debug)]
struct Level {
    start: usize,
    end: usize,
}

impl Level {
    /// Returns the positions of the level's queues.
    const fn queues(self) -> std::ops::Range<usize> {
        self.start..self.end
    }
}

/// Returns the levels of priority, highest first.
fn levels(queues: &[(QueueKey, u64)]) -> Vec<Level> {
    let mut levels = Vec::new();
    let mut start = 0;
    for chunk in queues.chunk_by(|(a, _), (b, _)| a.priority == b.priority) {
        let end = start + chunk.len();
        levels.push(Level { start, end });
        start = end;
    }
    levels
}

/// The mix found for a worker, reused for equal workers.
struct Memo<'a> {
    available: Vec<i64>,
    worker: &'a Worker,
    mix: Vec<(usize, u32, u32)>,
}

struct Round<'a> {
    input: RoundInput<'a>,
    /// The numbers of the kinds of workers.
    kinds: BTreeMap<&'a [Offer], usize>,
    /// The number of tasks that an empty worker could run at once, by kind and variant. Variants of
    /// all queues are concatenated, see `first_variants`, because one list per queue would cost
    /// more than filling it.
    capacities: Vec<Vec<u32>>,
    /// The position of each queue's first variant.
    first_variants: Vec<usize>,
    classes: Vec<Option<&'a Class>>,
    left: Vec<u64>,
    tasks_left: u64,
    /// The number of levels that may still be skipped for workers that take enough tasks or none.
    levels_left: usize,
    budget: Budget,
    placements: Vec<Placement>,
    memo: Vec<Memo<'a>>,
    memo_level: usize,
    /// The rankings by level and kind of worker.
    rankings: BTreeMap<(usize, usize), Arc<Ranking>>,
    /// The counts that differ from [`RoundInput::reservation_counts`].
    reservation_counts: BTreeMap<QueueKey, u64>,
    reservations: BTreeMap<WorkerId, Vec<(QueueKey, u32)>>,
    /// The classes with remaining tasks that are more urgent than the current level.
    left_over: BTreeSet<ClassId>,
    overtaken: BTreeMap<WorkerId, Vec<QueueKey>>,
}

/// The requests of a level as one kind of worker sees them.
struct Ranking {
    /// The weights of shares of the worker's resources.
    resource_weights: Vec<u64>,
    /// The feasible queues, most valuable first, each with its first feasible variant.
    queues: Vec<(usize, u32)>,
}

impl<'a> Round<'a> {
    fn new(input: &RoundInput<'a>) -> Self {
        let classes = input
            .queues
            .iter()
            .map(|(key, _)| input.classes.get(key.class).map(AsRef::as_ref));
        let classes: Vec<Option<&Class>> = classes.collect();
        let mut next = 0;
        let first_variants = classes.iter().map(|class| {
            let first = next;
            next += class.map_or(0, |class| class.variants.len());
            first
        });
        Self {
            input: *input,
            kinds: BTreeMap::new(),
            capacities: Vec::new(),
            first_variants: first_variants.collect(),
            classes,
            left: input.queues.iter().map(|(_, ready)| *ready).collect(),
            tasks_left: input.tasks_max,
            levels_left: demanding::MORE_LEVELS_MAX,
            budget: Budget::ROUND,
            placements: Vec::new(),
            memo: Vec::new(),
            memo_level: usize::MAX,
            rankings: BTreeMap::new(),
            reservation_counts: BTreeMap::new(),
            reservations: BTreeMap::new(),
            left_over: BTreeSet::new(),
            overtaken: BTreeMap::new(),
        }
    }

    /// Returns the kind of a worker. Workers with equal offers have the same kind.
    fn kind_of(&mut self, worker: &'a Worker) -> usize {
        if let Some(kind) = self.kinds.get(worker.offers()) {
            return *kind;
        }
        let kind = self.capacities.len();
        let mut capacities = Vec::with_capacity(self.classes.len());
        for class in self.classes.iter().flatten() {
            capacities.extend(class.variants.iter().map(|of| worker.capacity(of)));
        }
        self.capacities.push(capacities);
        self.kinds.insert(worker.offers(), kind);
        kind
    }

    /// Returns how many tasks of a variant the worker could run at once if it were empty.
    fn capacity(&self, plan: &WorkerPlan<'_>, queue: usize, number: u32) -> u32 {
        self.capacities[plan.kind][self.first_variants[queue] + number as usize]
    }

    /// Returns the position of a queue in the round. There are few lookups, so a map of all queues
    /// would cost more.
    fn position(&self, key: QueueKey) -> Option<usize> {
        let queues = self.input.queues;
        let first = queues.partition_point(|(other, _)| other.priority < key.priority);
        let mut rest = queues[first..].iter();
        let at = rest.position(|(other, _)| other.priority != key.priority || *other == key)?;
        let is_found = queues
            .get(first + at)
            .is_some_and(|(other, _)| *other == key);
        is_found.then_some(first + at)
    }

    const fn is_used_up(&self) -> bool {
        self.tasks_left == 0
    }

    fn has_gangs(&self, level: Level) -> bool {
        let mut classes = level.queues().filter_map(|queue| self.classes[queue]);
        classes.any(Class::is_multi_node)
    }

    fn plan_gangs(&mut self, level: Level, planner: &mut GangPlanner<'_>) {
        let is_gang = |class: &Option<&Class>| class.is_some_and(Class::is_multi_node);
        // If there are equally urgent small tasks, one multi-node task at a time drains workers,
        // otherwise all of them do. Tasks waiting on workers count as well, because retracting them
        // must not change the result.
        let has_small = level
            .queues()
            .any(|queue| !is_gang(&self.classes[queue]) && self.left[queue] > 0)
            || self.input.queues[level.queues()]
                .first()
                .is_some_and(|(key, _)| planner.waits_somewhere(*key));
        planner.reserve_max = if has_small { 1 } else { u32::MAX };
        for queue in level.queues() {
            let Some(class) = self.classes[queue].filter(|class| class.is_multi_node()) else {
                continue;
            };
            let key = self.input.queues[queue].0;
            for (variant, number) in class.variants.iter().zip(0..) {
                // A request may also have single-node variants, which are placed like other
                // requests.
                if variant.n_nodes > 0 && self.left[queue] > 0 {
                    let start_max = self.tasks_left.div_ceil(GANG_COST);
                    let started = planner.plan(key, number, variant, self.left[queue], start_max);
                    self.left[queue] -= started;
                    self.tasks_left = self.tasks_left.saturating_sub(started * GANG_COST);
                }
            }
        }
    }

    /// Gives a worker tasks that can start there now.
    fn fill(&mut self, level: Level, plan: &mut WorkerPlan<'a>) {
        let Some((first, _)) = self.input.queues.get(level.start) else {
            return;
        };
        // Cheap checks come first, because most workers have no room for most levels.
        if self.is_used_up() || !plan.admits(*first) || !self.may_fill(level, plan) {
            return;
        }
        plan.note_reservations(|key| self.position(key).is_some());
        plan.enter(*first, self.input.classes);
        // The mixes of another level belong to other queues.
        if self.memo_level != level.start {
            self.memo_level = level.start;
            self.memo.clear();
        }
        let is_plain = !plan.worker.has_time_limit()
            && !plan.worker.is_any_stuck()
            && !plan.is_overdue(self.input.now);
        let available = plan.available_all();
        // Thousands of equal workers get the same mix from one search.
        if is_plain && self.repeat_mix(&available, plan) {
            return;
        }
        let before = self.placements.len();
        let before_overdue = plan.reserved_units();
        // The reservation may leave no room for any task of the level.
        if !self.reserve_overdue(level, plan)
            || self.has_ready(level, |variant| plan.room(variant) > 0)
        {
            self.fill_by_rank(level, plan);
        }
        plan.restore_reserved(before_overdue);
        if is_plain && self.memo.len() < MEMO_MAX {
            let mix = self.placements[before..].iter().filter_map(|placement| {
                let queue = self.position(placement.key)?;
                let count = u32::try_from(placement.count).ok()?;
                Some((queue, placement.variant, count))
            });
            self.memo.push(Memo {
                available,
                worker: plan.worker,
                mix: mix.collect(),
            });
        }
    }

    /// Returns whether a task of a level could start on a worker if there were no reservations.
    fn may_fill(&self, level: Level, plan: &WorkerPlan<'_>) -> bool {
        self.has_ready(level, |variant| plan.has_free(variant))
    }

    /// Returns whether a level has a ready task with such a variant.
    fn has_ready(&self, level: Level, mut is_wanted: impl FnMut(&VariantDemand) -> bool) -> bool {
        level.queues().any(|queue| {
            let class = self.classes[queue].filter(|_| self.left[queue] > 0);
            class.is_some_and(|class| class.variants.iter().any(&mut is_wanted))
        })
    }

    /// Returns the minimum units per resource over all ready tasks of a level. Most workers are
    /// full, and this quickly shows that nothing fits on them.
    fn floor(&self, level: Level) -> Vec<(usize, i64)> {
        let ready = level.queues().filter(|queue| self.left[*queue] > 0);
        let mut variants = ready
            .filter_map(|queue| self.classes[queue])
            .flat_map(|class| &class.variants)
            .filter(|variant| variant.n_nodes == 0);
        let Some(first) = variants.next() else {
            // Nothing is ready. No worker reaches this floor.
            return vec![(0, i64::MAX)];
        };
        let mut floor: Vec<(usize, i64)> = first.least().collect();
        for variant in variants {
            // The first request sets the floor, and others can only lower it.
            for (slot, least) in &mut floor {
                let same = variant.least().find(|(other, _)| other == slot);
                *least = same.map_or(0, |(_, units)| units.min(*least));
            }
        }
        floor
    }

    /// Repeats the mix of an equal worker.
    fn repeat_mix(&mut self, available: &[i64], plan: &mut WorkerPlan<'a>) -> bool {
        let found = self.memo.iter().find(|memo| {
            memo.available == available && memo.worker.offers() == plan.worker.offers()
        });
        let Some(mix) = found.map(|memo| memo.mix.clone()) else {
            return false;
        };
        let total: u64 = mix.iter().map(|(_, _, count)| u64::from(*count)).sum();
        let enough = mix.iter().all(|(queue, _, count)| {
            let same: u64 = mix
                .iter()
                .filter(|(other, ..)| other == queue)
                .map(|(_, _, count)| u64::from(*count))
                .sum();
            u64::from(*count) <= same && same <= self.left[*queue]
        });
        if !enough || total > self.tasks_left {
            // Near the end of a queue, another mix may be better.
            return false;
        }
        for (queue, number, count) in mix {
            self.place(queue, number, count, plan);
        }
        true
    }

    /// Places tasks in their first variants, and then fills the remaining room with other variants.
    fn fill_by_rank(&mut self, level: Level, plan: &mut WorkerPlan<'a>) {
        let mut rank = 0;
        let are_few = self.left[level.queues()].iter().sum::<u64>() <= EXACT_TASKS_MAX;
        let ranking = self.ranking(level, plan);
        loop {
            let available = plan.available_all();
            let bin = Bin {
                offers: plan.worker.offers(),
                available: &available,
                resource_weights: &ranking.resource_weights,
            };
            let mut deeper = false;
            let mut candidates: Vec<Candidate<'a>> = Vec::with_capacity(level.queues().len());
            for queue in level.queues() {
                let (key, _) = self.input.queues[queue];
                let Some(class) = self.classes[queue].filter(|_| self.left[queue] > 0) else {
                    continue;
                };
                let mut usable = class
                    .variants
                    .iter()
                    .zip(0_u32..)
                    .filter(|(_, number)| self.capacity(plan, queue, *number) > 0)
                    .skip(rank);
                let Some((variant, number)) = usable.next() else {
                    continue;
                };
                deeper |= usable.next().is_some();
                if plan.serves(key.class, number, variant, self.input.now)
                    && (are_few || plan.room(variant) > 0)
                {
                    let left = self.left[queue];
                    candidates.push(Candidate::new(queue, number, variant, left, bin));
                }
            }
            if !candidates.is_empty() {
                let counts = best_mix(bin, &mut candidates, &mut self.budget);
                for (candidate, count) in candidates.iter().zip(counts) {
                    self.place(candidate.queue, candidate.number, count, plan);
                }
            }
            if !deeper {
                return;
            }
            // Some request has another variant for the remaining room.
            rank += 1;
        }
    }

    fn ranking(&mut self, level: Level, plan: &WorkerPlan<'_>) -> Arc<Ranking> {
        let place = (level.start, plan.kind);
        if let Some(known) = self.rankings.get(&place) {
            return Arc::clone(known);
        }
        let mut usable = Vec::with_capacity(level.queues().len());
        usable.extend(level.queues().filter_map(|queue| {
            let class = self.classes[queue].filter(|_| self.left[queue] > 0)?;
            let mut variants = class.variants.iter().zip(0..);
            let first = variants.find(|(_, number)| self.capacity(plan, queue, *number) > 0);
            first.map(|(variant, number)| (queue, number, variant))
        }));
        let offers = plan.worker.offers();
        let asked = usable
            .iter()
            .map(|(queue, _, variant)| (*variant, self.left[*queue]));
        let resource_weights = resource_weights(offers, asked);
        let bin = Bin {
            offers,
            available: &[],
            resource_weights: &resource_weights,
        };
        let mut queues: Vec<Candidate<'_>> = usable
            .iter()
            .map(|(queue, number, variant)| Candidate::new(*queue, *number, variant, 0, bin))
            .collect();
        queues.sort_by_key(Candidate::rank);
        let queues = queues.iter().map(|of| (of.queue, of.number)).collect();
        let found = Arc::new(Ranking {
            resource_weights,
            queues,
        });
        self.rankings.insert(place, Arc::clone(&found));
        found
    }

    /// Returns the most valuable ready requests of a level for which a worker has no room.
    fn blocked(
        &mut self,
        level: Level,
        plan: &WorkerPlan<'_>,
        most: usize,
    ) -> Vec<(QueueKey, u32)> {
        let ranking = self.ranking(level, plan);
        let blocked = ranking.queues.iter().filter_map(|(queue, number)| {
            let class = self.classes[*queue].filter(|_| self.left[*queue] > 0)?;
            let variant = class.variants.get(*number as usize)?;
            let key = self.input.queues[*queue].0;
            let waits =
                plan.room(variant) == 0 && plan.serves(key.class, *number, variant, self.input.now);
            waits.then_some((key, *number))
        });
        blocked.take(most).collect()
    }

    /// Reserves room for the most valuable request of a level that has waited long for this worker.
    /// Returns whether there is one.
    fn reserve_overdue(&mut self, level: Level, plan: &mut WorkerPlan<'a>) -> bool {
        let now = self.input.now;
        if !plan.is_overdue(now) {
            return false;
        }
        let Some((key, number)) = self.blocked(level, plan, 1).pop() else {
            return false;
        };
        let since = plan.worker.reserved_since(key);
        let is_due = since.is_some_and(|since| since + PATIENCE <= now);
        if is_due {
            plan.reserve_for(key, number, self.input.classes);
        }
        is_due
    }

    /// Records reservations for unsent requests, at most one for each task.
    fn reserve(&mut self, level: Level, plans: &mut [WorkerPlan<'a>]) {
        let choosing = plans.iter_mut().filter(|plan| {
            let may_change = plan.has_choice || plan.worker.has_reservations();
            plan.is_selected && plan.reserved.is_none() && may_change
        });
        for plan in choosing {
            self.reservations.entry(plan.worker.id).or_default();
            for key in plan.worker.reservations() {
                let ours = self.input.queues.get(level.start);
                if ours.is_some_and(|(first, _)| first.priority == key.priority) {
                    let count = self.reservation_count(key).saturating_sub(1);
                    self.reservation_counts.insert(key, count);
                }
            }
            if !plan.has_choice {
                // Tasks of this request were sent ahead, which reserves room for them.
                continue;
            }
            for (key, number) in self.blocked(level, plan, RESERVATIONS_MAX) {
                let ready = self.ready_of(key);
                let count = self.reservation_count(key);
                // A task starts on only one worker, so the other workers need no reservation.
                if count < ready {
                    self.reservation_counts.insert(key, count + 1);
                    plan.block(key, number);
                    self.reservations
                        .entry(plan.worker.id)
                        .or_default()
                        .push((key, number));
                }
            }
        }
    }

    /// Returns the number of workers with reservations for a queue.
    fn reservation_count(&self, key: QueueKey) -> u64 {
        let changed = self.reservation_counts.get(&key);
        let known = changed.or_else(|| self.input.reservation_counts.get(&key));
        known.copied().unwrap_or(0)
    }

    fn place(&mut self, queue: usize, number: u32, count: u32, plan: &mut WorkerPlan<'a>) {
        let count = u64::from(count).min(self.tasks_left).min(self.left[queue]);
        let demand = self.classes[queue].and_then(|class| class.variants.get(number as usize));
        // A mix may contain a request with count 0.
        let (Some(demand), true) = (demand, count > 0) else {
            return;
        };
        let key = self.input.queues[queue].0;
        self.left[queue] -= count;
        self.tasks_left -= count;
        let counted = u32::try_from(count).unwrap_or(u32::MAX);
        plan.place(key.class, number, demand, counted);
        self.placements.push(Placement {
            key,
            worker: plan.worker.id,
            variant: number,
            count,
            placed: true,
        });
    }

    /// Returns the number of tasks of a queue that are not dispatched.
    fn ready_of(&self, key: QueueKey) -> u64 {
        let at = self.position(key);
        at.and_then(|at| self.left.get(at)).copied().unwrap_or(0)
    }

    /// Returns whether tasks of several feasible requests of a level are left for a worker.
    fn has_choice(&mut self, level: Level, plan: &WorkerPlan<'_>) -> bool {
        let ranking = self.ranking(level, plan);
        let mut left = ranking
            .queues
            .iter()
            .filter(|(queue, _)| self.left[*queue] > 0);
        left.nth(1).is_some()
    }
}

#[cfg(test)]
mod tests;
