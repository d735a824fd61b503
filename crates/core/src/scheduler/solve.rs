//! One scheduling round: how many tasks of each class go to each worker.
//!
//! Levels of equal priority are visited from the highest. In each, multi-node tasks take empty workers
//! first; then each worker, low ids first, gets the best mix of what fits (`pack`); what is left is sent
//! ahead, spread evenly, so that nobody idles for a round trip. Tasks that wait on a worker keep from
//! less urgent ones what these would delay (`lane`). Pure: nothing changes until the caller applies the
//! answer. Cost O(levels + queues × workers with room), independent of the number of tasks; of very many
//! queues it sees only those that matter (`window`).

mod behind;
mod demanding;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::gang::GangPlanner;
pub use super::gang::GangStart;
use super::lane::{Lane, PATIENCE, Seen};
use super::pack::{Budget, Candidate, FEW, Site, best_mix, worths};
use crate::class::{Class, ClassId, Classes, Offer, QueueKey};
use crate::id::WorkerId;
use crate::time::Time;
use crate::worker::Worker;
use behind::Behind;

/// Requests of one level for which a worker keeps room.
const CLAIMS_MAX: usize = 2;
/// Workers for which a round thinks anew about what to keep room for; then it is the turn of the next.
/// Nothing is lost: what a worker keeps matters when something ends there, and it keeps what it did.
const CLAIM_WORKERS_MAX: usize = 32;
/// A multi-node task that starts takes about as much of a round's time as so many other tasks.
const GANG_COST: u64 = 16;
/// Mixes remembered for like workers.
const MEMO_MAX: usize = 4;

/// Tasks of one class for one worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Placement {
    /// Which tasks.
    pub key: QueueKey,
    /// Which worker.
    pub worker: WorkerId,
    /// Which variant of the request.
    pub variant: u32,
    /// How many.
    pub count: u64,
    /// Whether they can start at once; otherwise they are sent ahead.
    pub placed: bool,
}

/// What a round looks at.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// Ready tasks, in order of priority; within one, those that go first if all else is equal.
    pub queues: &'a [(QueueKey, u64)],
    /// Their classes.
    pub classes: &'a Classes,
    /// Every worker there is.
    pub workers: &'a BTreeMap<WorkerId, Worker>,
    /// Those that may have room, and how far `queues` are all that matters to them.
    pub rooms: &'a BTreeMap<WorkerId, Seen>,
    /// How many workers keep room for tasks of a queue.
    pub claimed: &'a BTreeMap<QueueKey, u64>,
    /// The worker that was thought of last for that; the one behind it is the first whose turn it is.
    pub claims_after: Option<WorkerId>,
    /// Look for nodes for multi-node tasks, and decide anew which workers are kept for them.
    pub with_gangs: bool,
    /// Most tasks to hand out; multi-node tasks count more.
    pub tasks_max: u64,
    /// Now.
    pub now: Time,
}

/// What a round decides.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Answer {
    /// In the order in which tasks are to be taken from their queues.
    pub placements: Vec<Placement>,
    /// Multi-node tasks that start.
    pub gangs: Vec<GangStart>,
    /// Workers kept for multi-node tasks from now on; only with [`Question::with_gangs`].
    pub kept: BTreeMap<WorkerId, QueueKey>,
    /// What workers that were looked at keep room for from now on, request and variant, without having
    /// been sent it; nothing if the round was cut.
    pub claims: BTreeMap<WorkerId, Vec<(QueueKey, u32)>>,
    /// The next value of [`Question::claims_after`].
    pub claims_after: Option<WorkerId>,
    /// What these workers were sent ahead is to be asked back if it is of the class of such a queue and
    /// less urgent: more of that queue waits here than they were sent.
    pub overtaken: BTreeMap<WorkerId, Vec<QueueKey>>,
    /// The limit of tasks was reached: there is more to do.
    pub is_cut: bool,
}

/// Decides one round.
#[must_use]
pub fn solve(question: &Question<'_>) -> Answer {
    let mut round = Round::new(question);
    let mut lanes: Vec<Lane<'_>> = Vec::with_capacity(question.rooms.len());
    let mut demanding: Vec<Lane<'_>> = Vec::new();
    for (id, seen) in question.rooms {
        let Some(worker) = question.workers.get(id).filter(|w| w.accepts_work()) else {
            continue;
        };
        let mut lane = Lane::new(worker);
        lane.kind = round.kind_of(worker);
        lane.seen = *seen;
        if question.with_gangs {
            lane.reserved = None;
        }
        if worker.config.min_utilization > 0.0 {
            demanding.push(lane);
        } else {
            lanes.push(lane);
        }
    }
    let mut gangs = question.with_gangs.then(|| {
        let queues = question.queues.iter().map(|(key, _)| *key);
        GangPlanner::new(question.workers.values(), queues, question.now)
    });
    let claims_after = give_turns(question.claims_after, &mut lanes);
    let behind = Behind::new(&lanes, question.queues);
    for level in levels(question.queues) {
        if let Some(planner) = &mut gangs
            && round.has_gangs(level.clone())
        {
            planner.note_given(&lanes);
            planner.note_given(&demanding);
            round.plan_gangs(level.clone(), planner);
            for lanes in [&mut lanes, &mut demanding] {
                lanes.retain(|lane| !planner.is_given(lane.worker.id));
                for lane in lanes {
                    lane.reserved = planner.kept.get(&lane.worker.id).copied();
                }
            }
        }
        let floor = round.floor(level.clone());
        for lane in lanes.iter_mut().filter(|lane| lane.reaches(&floor)) {
            round.fill(level.clone(), lane);
        }
        round.send_ahead(level.clone(), &mut lanes, &behind);
        round.claim(level, &mut lanes);
        if round.is_used_up() {
            break;
        }
    }
    for lane in &mut demanding {
        round.fill_demanding(lane);
    }
    if round.is_used_up() {
        round.claims.clear();
    }
    let (gang_starts, kept) = gangs.map_or_else(Default::default, |g| (g.starts, g.kept));
    Answer {
        is_cut: round.is_used_up(),
        placements: round.placements,
        claims: round.claims,
        claims_after,
        overtaken: round.overtaken,
        gangs: gang_starts,
        kept,
    }
}

/// Marks the workers that are thought of in this round; answers with the last of them.
fn give_turns(after: Option<WorkerId>, lanes: &mut [Lane<'_>]) -> Option<WorkerId> {
    let first = lanes.partition_point(|lane| Some(lane.worker.id) <= after);
    let (later, sooner) = lanes.split_at_mut(first);
    let turns = sooner.iter_mut().chain(later).take(CLAIM_WORKERS_MAX);
    turns.fold(after, |_, lane| {
        lane.has_turn = true;
        Some(lane.worker.id)
    })
}

/// Positions of queues of equal priority.
fn levels(queues: &[(QueueKey, u64)]) -> Vec<std::ops::Range<usize>> {
    let mut levels = Vec::new();
    let mut start = 0;
    for chunk in queues.chunk_by(|(a, _), (b, _)| a.priority == b.priority) {
        levels.push(start..start + chunk.len());
        start += chunk.len();
    }
    levels
}

/// A mix that was found for a worker, for the next one like it.
struct Memo<'a> {
    available: Vec<i64>,
    worker: &'a Worker,
    mix: Vec<(usize, u32, u32)>,
}

struct Round<'a> {
    question: Question<'a>,
    /// Numbers of the kinds of workers.
    kinds: BTreeMap<&'a [Offer], usize>,
    /// By kind, queue and variant: tasks that an empty worker could run at once.
    capacities: Vec<Vec<Box<[u32]>>>,
    classes: Vec<Option<&'a Class>>,
    left: Vec<u64>,
    tasks_left: u64,
    /// Levels that may still be left out for workers which take enough or nothing.
    levels_left: usize,
    budget: Budget,
    placements: Vec<Placement>,
    memo: Vec<Memo<'a>>,
    memo_level: usize,
    /// Where each queue is.
    positions: BTreeMap<QueueKey, usize>,
    /// By level and kind of worker.
    rankings: BTreeMap<(usize, usize), Arc<Ranking>>,
    /// What differs now from [`Question::claimed`].
    claimed: BTreeMap<QueueKey, u64>,
    claims: BTreeMap<WorkerId, Vec<(QueueKey, u32)>>,
    /// Classes of which some are left that are more urgent than what comes now.
    left_over: BTreeSet<ClassId>,
    overtaken: BTreeMap<WorkerId, Vec<QueueKey>>,
}

/// The requests of a level as a kind of worker sees them.
struct Ranking {
    /// What shares of its resources count.
    worths: Vec<u64>,
    /// Queues it could serve, each with the first variant that it could, the most valuable first.
    queues: Vec<(usize, u32)>,
}

impl<'a> Round<'a> {
    fn new(question: &Question<'a>) -> Self {
        let classes = question
            .queues
            .iter()
            .map(|(key, _)| question.classes.get(key.class).map(AsRef::as_ref));
        Self {
            question: *question,
            kinds: BTreeMap::new(),
            capacities: Vec::new(),
            classes: classes.collect(),
            left: question.queues.iter().map(|(_, ready)| *ready).collect(),
            tasks_left: question.tasks_max,
            levels_left: demanding::MORE_LEVELS_MAX,
            budget: Budget::ROUND,
            placements: Vec::new(),
            memo: Vec::new(),
            memo_level: usize::MAX,
            positions: question
                .queues
                .iter()
                .map(|(key, _)| *key)
                .zip(0..)
                .collect(),
            rankings: BTreeMap::new(),
            claimed: BTreeMap::new(),
            claims: BTreeMap::new(),
            left_over: BTreeSet::new(),
            overtaken: BTreeMap::new(),
        }
    }

    /// Workers that offer the same are of one kind.
    fn kind_of(&mut self, worker: &'a Worker) -> usize {
        if let Some(kind) = self.kinds.get(worker.offers()) {
            return *kind;
        }
        let kind = self.capacities.len();
        let of_class = |class: &Option<&Class>| {
            let variants = class.iter().flat_map(|class| &class.variants);
            variants.map(|variant| worker.capacity(variant)).collect()
        };
        self.capacities
            .push(self.classes.iter().map(of_class).collect());
        self.kinds.insert(worker.offers(), kind);
        kind
    }

    /// Tasks of a variant that the worker could run at once if it were empty.
    fn capacity(&self, lane: &Lane<'_>, queue: usize, number: u32) -> u32 {
        let of_queue = self.capacities.get(lane.kind).and_then(|of| of.get(queue));
        let found = of_queue.and_then(|of| of.get(number as usize));
        found.copied().unwrap_or(0)
    }

    const fn is_used_up(&self) -> bool {
        self.tasks_left == 0
    }

    fn has_gangs(&self, level: std::ops::Range<usize>) -> bool {
        let mut classes = level.filter_map(|queue| self.classes[queue]);
        classes.any(Class::is_multi_node)
    }

    fn plan_gangs(&mut self, level: std::ops::Range<usize>, planner: &mut GangPlanner<'_>) {
        let is_gang = |class: &Option<&Class>| class.is_some_and(Class::is_multi_node);
        // Beside equally urgent small tasks one multi-node task at a time empties workers, else all.
        // Those that wait on workers count too: what is asked back must not change the answer.
        let has_small = level
            .clone()
            .any(|queue| !is_gang(&self.classes[queue]) && self.left[queue] > 0)
            || self.question.queues[level.clone()]
                .first()
                .is_some_and(|(key, _)| planner.waits_somewhere(*key));
        let keep_max = if has_small { 1 } else { u32::MAX };
        for queue in level {
            let Some(class) = self.classes[queue].filter(|class| class.is_multi_node()) else {
                continue;
            };
            let key = self.question.queues[queue].0;
            for (variant, number) in class.variants.iter().zip(0..) {
                if variant.n_nodes > 0 && self.left[queue] > 0 {
                    let limits = (self.left[queue], self.tasks_left.div_ceil(GANG_COST));
                    let started = planner.plan(key, (number, variant), limits, keep_max);
                    self.left[queue] -= started;
                    self.tasks_left = self.tasks_left.saturating_sub(started * GANG_COST);
                }
            }
        }
    }

    /// Gives a worker what can start there now.
    fn fill(&mut self, level: std::ops::Range<usize>, lane: &mut Lane<'a>) {
        let Some((first, _)) = self.question.queues.get(level.start) else {
            return;
        };
        if self.is_used_up() || !lane.admits(*first) || !self.may_fill(level.clone(), lane) {
            return;
        }
        lane.note_claims(|key| self.positions.contains_key(&key));
        lane.enter(*first, self.question.classes);
        if self.memo_level != level.start {
            self.memo_level = level.start;
            self.memo.clear();
        }
        let is_plain = !lane.worker.has_time_limit()
            && !lane.worker.is_any_stuck()
            && !lane.is_overdue(self.question.now);
        let available = lane.available_all();
        if is_plain && self.repeat_mix(&available, lane) {
            return;
        }
        let before = self.placements.len();
        let kept = lane.kept_amounts();
        if !self.keep_overdue(level.clone(), lane) || self.has_room(level.clone(), lane) {
            self.fill_by_rank(level, lane);
        }
        lane.keep_only(kept);
        if is_plain && self.memo.len() < MEMO_MAX {
            let mix = self.placements[before..].iter().filter_map(|placement| {
                let queue = *self.positions.get(&placement.key)?;
                let count = u32::try_from(placement.count).ok()?;
                Some((queue, placement.variant, count))
            });
            self.memo.push(Memo {
                available,
                worker: lane.worker,
                mix: mix.collect(),
            });
        }
    }

    /// Whether a task of a level could start on a worker if nothing was kept there.
    fn may_fill(&self, mut level: std::ops::Range<usize>, lane: &Lane<'_>) -> bool {
        level.any(|queue| {
            let class = self.classes[queue].filter(|_| self.left[queue] > 0);
            let mut variants = class.iter().flat_map(|class| &class.variants);
            variants.any(|variant| lane.has_free(variant))
        })
    }

    /// Units of each resource of which every ready task of a level takes at least so many, by resource
    /// number. Most workers are full, and this tells at once that nothing fits.
    fn floor(&self, level: std::ops::Range<usize>) -> Vec<i64> {
        let ready = level.filter(|queue| self.left[*queue] > 0);
        let variants = ready
            .filter_map(|queue| self.classes[queue])
            .flat_map(|class| &class.variants)
            .filter(|variant| variant.n_nodes == 0);
        let mut floor: Option<Vec<i64>> = None;
        for variant in variants {
            let mut units: Vec<i64> = Vec::new();
            for demand in &variant.demands {
                let slot = demand.resource.0 as usize;
                if units.len() <= slot {
                    units.resize(slot + 1, 0);
                }
                let least = i64::try_from(demand.units.unwrap_or(1)).unwrap_or(i64::MAX);
                units[slot] = units[slot].max(least);
            }
            match &mut floor {
                None => floor = Some(units),
                Some(floor) => {
                    floor.truncate(units.len());
                    for (least, units) in floor.iter_mut().zip(units) {
                        *least = units.min(*least);
                    }
                }
            }
        }
        // Nothing is ready: no worker reaches that.
        floor.unwrap_or_else(|| vec![i64::MAX])
    }

    /// Does for a worker what was done for one like it.
    fn repeat_mix(&mut self, available: &[i64], lane: &mut Lane<'a>) -> bool {
        let found = self.memo.iter().find(|memo| {
            memo.available == available && memo.worker.offers() == lane.worker.offers()
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
            return false;
        }
        for (queue, number, count) in mix {
            self.place(queue, number, count, lane);
        }
        true
    }

    /// First variants first: the others fill what these leave.
    fn fill_by_rank(&mut self, level: std::ops::Range<usize>, lane: &mut Lane<'a>) {
        let mut rank = 0;
        let are_few = self.left[level.clone()].iter().sum::<u64>() <= FEW;
        let ranking = self.ranking(level.clone(), lane);
        loop {
            let available = lane.available_all();
            let site = Site {
                offers: lane.worker.offers(),
                available: &available,
                worths: &ranking.worths,
            };
            let mut deeper = false;
            let mut candidates: Vec<Candidate<'a>> = Vec::new();
            for queue in level.clone() {
                let (key, _) = self.question.queues[queue];
                let Some(class) = self.classes[queue].filter(|_| self.left[queue] > 0) else {
                    continue;
                };
                let mut usable = class
                    .variants
                    .iter()
                    .zip(0_u32..)
                    .filter(|(_, number)| self.capacity(lane, queue, *number) > 0)
                    .skip(rank);
                let Some((variant, number)) = usable.next() else {
                    continue;
                };
                deeper |= usable.next().is_some();
                if lane.serves(key.class, number, variant, self.question.now)
                    && (are_few || lane.room(variant) > 0)
                {
                    let left = self.left[queue];
                    candidates.push(Candidate::new(queue, number, variant, left, site));
                }
            }
            if !candidates.is_empty() {
                let counts = best_mix(site, &mut candidates, &mut self.budget);
                for (candidate, count) in candidates.iter().zip(counts) {
                    self.place(candidate.queue, candidate.number, count, lane);
                }
            }
            if !deeper {
                return;
            }
            rank += 1;
        }
    }

    fn ranking(&mut self, level: std::ops::Range<usize>, lane: &Lane<'_>) -> Arc<Ranking> {
        let place = (level.start, lane.kind);
        if let Some(known) = self.rankings.get(&place) {
            return Arc::clone(known);
        }
        let usable = level.filter_map(|queue| {
            let class = self.classes[queue].filter(|_| self.left[queue] > 0)?;
            let mut variants = class.variants.iter().zip(0..);
            let first = variants.find(|(_, number)| self.capacity(lane, queue, *number) > 0);
            first.map(|(variant, number)| (queue, number, variant))
        });
        let usable: Vec<_> = usable.collect();
        let offers = lane.worker.offers();
        let asked = usable
            .iter()
            .map(|(queue, _, variant)| (*variant, self.left[*queue]));
        let worths = worths(offers, asked);
        let site = Site {
            offers,
            available: &[],
            worths: &worths,
        };
        let mut queues: Vec<Candidate<'_>> = usable
            .iter()
            .map(|(queue, number, variant)| Candidate::new(*queue, *number, variant, 0, site))
            .collect();
        queues.sort_by_key(Candidate::rank);
        let queues = queues.iter().map(|of| (of.queue, of.number)).collect();
        let found = Arc::new(Ranking { worths, queues });
        self.rankings.insert(place, Arc::clone(&found));
        found
    }

    /// The most valuable requests of a level that are ready and find no room on a worker.
    fn blocked(
        &mut self,
        level: std::ops::Range<usize>,
        lane: &Lane<'_>,
        most: usize,
    ) -> Vec<(QueueKey, u32)> {
        let ranking = self.ranking(level, lane);
        let blocked = ranking.queues.iter().filter_map(|(queue, number)| {
            let class = self.classes[*queue].filter(|_| self.left[*queue] > 0)?;
            let variant = class.variants.get(*number as usize)?;
            let key = self.question.queues[*queue].0;
            let waits = lane.room(variant) == 0
                && lane.serves(key.class, *number, variant, self.question.now);
            waits.then_some((key, *number))
        });
        blocked.take(most).collect()
    }

    /// Keeps room for the most valuable request of a level that waits for it, if it has done so for long;
    /// says whether that is so.
    fn keep_overdue(&mut self, level: std::ops::Range<usize>, lane: &mut Lane<'a>) -> bool {
        let now = self.question.now;
        if !lane.is_overdue(now) {
            return false;
        }
        let Some((key, number)) = self.blocked(level, lane, 1).pop() else {
            return false;
        };
        let since = lane.worker.claim_since(key);
        let is_due = since.is_some_and(|since| since + PATIENCE <= now);
        if is_due {
            lane.keep_for(key, number, self.question.classes);
        }
        is_due
    }

    /// Whether a task of a level could start on a worker, next to what is kept.
    fn has_room(&self, mut level: std::ops::Range<usize>, lane: &Lane<'_>) -> bool {
        level.any(|queue| {
            let class = self.classes[queue].filter(|_| self.left[queue] > 0);
            let mut variants = class.iter().flat_map(|class| &class.variants);
            variants.any(|variant| lane.room(variant) > 0)
        })
    }

    /// Notes what workers keep room for that were not sent it: no more of them than there are tasks.
    fn claim(&mut self, level: std::ops::Range<usize>, lanes: &mut [Lane<'a>]) {
        let choosing = lanes.iter_mut().filter(|lane| {
            let may_change = lane.has_choice || lane.worker.has_claims();
            lane.has_turn && lane.reserved.is_none() && may_change
        });
        for lane in choosing {
            self.claims.entry(lane.worker.id).or_default();
            for key in lane.worker.claims() {
                let ours = self.question.queues.get(level.start);
                if ours.is_some_and(|(first, _)| first.priority == key.priority) {
                    let claimed = self.claimed_of(key).saturating_sub(1);
                    self.claimed.insert(key, claimed);
                }
            }
            if !lane.has_choice {
                continue;
            }
            for (key, number) in self.blocked(level.clone(), lane, CLAIMS_MAX) {
                let ready = self.ready_of(key);
                let claimed = self.claimed_of(key);
                if claimed < ready {
                    self.claimed.insert(key, claimed + 1);
                    lane.block(key, number);
                    self.claims
                        .entry(lane.worker.id)
                        .or_default()
                        .push((key, number));
                }
            }
        }
    }

    /// How many workers keep room for tasks of a queue.
    fn claimed_of(&self, key: QueueKey) -> u64 {
        let changed = self.claimed.get(&key);
        let known = changed.or_else(|| self.question.claimed.get(&key));
        known.copied().unwrap_or(0)
    }

    fn place(&mut self, queue: usize, number: u32, count: u32, lane: &mut Lane<'a>) {
        let count = u64::from(count).min(self.tasks_left).min(self.left[queue]);
        let demand = self.classes[queue].and_then(|class| class.variants.get(number as usize));
        let (Some(demand), true) = (demand, count > 0) else {
            return;
        };
        let key = self.question.queues[queue].0;
        self.left[queue] -= count;
        self.tasks_left -= count;
        let counted = u32::try_from(count).unwrap_or(u32::MAX);
        lane.place(key.class, number, demand, counted);
        self.placements.push(Placement {
            key,
            worker: lane.worker.id,
            variant: number,
            count,
            placed: true,
        });
    }

    /// Sends ahead what could not start, spread evenly. A worker that can choose between requests gets
    /// only as much as it needs not to idle: what goes best with what, is better decided when something
    /// has ended.
    fn send_ahead(
        &mut self,
        level: std::ops::Range<usize>,
        lanes: &mut [Lane<'a>],
        behind: &Behind,
    ) {
        let open = self.open_lanes(level.clone(), lanes);
        for queue in level {
            let (key, _) = self.question.queues[queue];
            let Some(class) = self.classes[queue].filter(|_| self.left[queue] > 0) else {
                continue;
            };
            if self.left_over.contains(&key.class) {
                // Those go first, wherever this could go.
                continue;
            }
            let mut rooms: Vec<(usize, u32, u32)> = Vec::new();
            for at in &open {
                let lane = &mut lanes[*at];
                let mut variants = class.variants.iter().zip(0..);
                let preferred = variants.find_map(|(variant, number)| {
                    let capacity = self.capacity(lane, queue, number);
                    let serves =
                        capacity > 0 && lane.serves(key.class, number, variant, self.question.now);
                    serves.then_some((number, capacity))
                });
                if let Some((number, capacity)) = preferred {
                    let least = if lane.has_choice { 0 } else { capacity };
                    let room = lane.backlog_room(key, least, self.question.now);
                    if room > 0 {
                        rooms.push((*at, number, room));
                    }
                }
            }
            let mut remaining = rooms.len() as u64;
            for (at, number, room) in rooms {
                let fair = self.left[queue].div_ceil(remaining.max(1));
                let count = u64::from(room).min(fair).min(self.tasks_left);
                remaining -= 1;
                if count == 0 {
                    continue;
                }
                self.left[queue] -= count;
                self.tasks_left -= count;
                lanes[at].send_ahead(key, number, u32::try_from(count).unwrap_or(u32::MAX));
                self.placements.push(Placement {
                    key,
                    worker: lanes[at].worker.id,
                    variant: number,
                    count,
                    placed: false,
                });
            }
            if self.left[queue] > 0 {
                // They must not get to less urgent tasks of its class that they were sent before, however
                // long the next sending takes.
                self.left_over.insert(key.class);
                for worker in behind.less_urgent(key) {
                    self.overtaken.entry(worker).or_default().push(key);
                }
            }
        }
    }

    /// The same for one worker and all levels.
    fn send_ahead_alone(&mut self, lane: &mut Lane<'a>) {
        let lanes = std::slice::from_mut(lane);
        let behind = Behind::new(lanes, self.question.queues);
        for level in levels(self.question.queues) {
            self.send_ahead(level, lanes, &behind);
        }
    }

    /// Positions of workers that may be sent something of a level, and notes which of them can choose.
    fn open_lanes(&mut self, level: std::ops::Range<usize>, lanes: &mut [Lane<'a>]) -> Vec<usize> {
        let Some((first, _)) = self.question.queues.get(level.start) else {
            return Vec::new();
        };
        let mut choices: Vec<Option<bool>> = vec![None; self.capacities.len()];
        let mut open = Vec::new();
        for (at, lane) in lanes.iter_mut().enumerate() {
            let known = choices.get_mut(lane.kind);
            lane.has_choice = match known {
                Some(Some(known)) => *known,
                Some(unknown) => *unknown.insert(self.has_choice(level.clone(), lane)),
                None => self.has_choice(level.clone(), lane),
            };
            let is_open = lane.admits_ahead(*first)
                && (!lane.has_choice || lane.backlog_room(*first, 0, self.question.now) > 0);
            if is_open {
                open.push(at);
            }
        }
        open
    }

    /// Tasks of a queue that nobody was given.
    fn ready_of(&self, key: QueueKey) -> u64 {
        let at = self.positions.get(&key);
        at.and_then(|at| self.left.get(*at)).copied().unwrap_or(0)
    }

    /// Whether tasks of several requests of a level are left that a worker could run.
    fn has_choice(&mut self, level: std::ops::Range<usize>, lane: &Lane<'_>) -> bool {
        let ranking = self.ranking(level, lane);
        let mut left = ranking
            .queues
            .iter()
            .filter(|(queue, _)| self.left[*queue] > 0);
        left.nth(1).is_some()
    }
}

#[cfg(test)]
mod tests;
