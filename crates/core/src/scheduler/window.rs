//! The window of a round: everything, or the relevant part of very many requests and workers.
//!
//! If there are few queues, a round examines all of them. If there are many, it examines for each
//! worker the most urgent and valuable requests that fit there now, and requests that could be sent
//! ahead. If some requests were left out for a worker, it gets no task that is less urgent than the
//! examined ones. Priorities therefore stay strict, and the next round follows immediately. The
//! cost of a round depends on the number of tasks that it starts, not on the number of waiting
//! tasks.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::index::{RequestIndex, Search, View};
use super::pack::Bin;
use super::queue::{QUEUES_SEEN_MAX, ReadyQueue};
pub use super::worker_plan::SeenPriority;
use super::worker_plan::WorkerPlan;
use crate::class::{Class, Classes, Offer, QueueKey};
use crate::id::WorkerId;
use crate::time::{Time, nanos};
use crate::worker::Worker;

/// The maximum number of worker-queue pairs that one round examines, which takes a few
/// milliseconds.
const PAIRS_MAX: usize = 50_000;
/// The maximum number of workers that one round examines.
const ROOMS_MAX: usize = 1_024;
/// The number of most urgent requests that are used to find workers with room.
const URGENT_MAX: usize = 4;
/// The number of workers that a round examines if it does not examine all queues.
const WORKERS_MAX: usize = 24;
/// The number of queues that such a round examines.
const CHOSEN_MAX: usize = 384;
/// The maximum number of fitting requests per worker from which the best mix is chosen.
const FITTING_MAX: usize = 64;
/// The same limit for a worker with a minimum utilization, because its tasks must reach it.
const FITTING_DEMANDED: usize = 256;
/// The maximum number of requests examined per worker for sending ahead.
const AHEAD_MAX: usize = 256;
const AHEAD_MIN: usize = 16;
/// The maximum number of search steps per round, about 200 ns each.
const STEPS_MAX: u32 = 8_192;
/// How many times the step limit is doubled while searches end without a fit. The highest limit is
/// a quarter of a million steps, about 50 ms.
pub(crate) const SEARCH_WIDENED_MAX: u32 = 5;
/// The number of multi-node queues that such a round examines. They are the most urgent ones and
/// feasible ones.
pub(crate) const MULTI_NODE_MAX: usize = 16;
/// The maximum number of node counts examined to find feasible queues.
const SIZES_MAX: usize = 1_024;

/// The queues and workers that one round examines.
#[derive(Clone, Debug, Default)]
pub struct Window {
    /// The queues, in the form of [`super::solve::RoundInput::queues`].
    pub queues: Vec<(QueueKey, u64)>,
    /// The workers, each with the priority down to which its queues were examined.
    pub rooms: BTreeMap<WorkerId, SeenPriority>,
    /// Whether the window leaves out no request that could go to these workers.
    pub is_all: bool,
    /// Whether some queues are not in the index yet.
    pub is_behind: bool,
}

/// The state that a round chooses its window from.
#[derive(Clone, Copy)]
pub(crate) struct WindowInput<'a> {
    /// The ready tasks. [`ReadyQueue::follow`] must have been called.
    pub(crate) ready: &'a ReadyQueue,
    pub(crate) classes: &'a Classes,
    pub(crate) workers: &'a BTreeMap<WorkerId, Worker>,
    /// Whether the round plans multi-node tasks.
    pub(crate) with_gangs: bool,
    /// How many times the step limit is doubled.
    pub(crate) widened: u32,
    pub(crate) now: Time,
}

/// Chooses what a round examines. `rooms` contains the workers that may have room, in order.
pub(crate) fn window(input: WindowInput<'_>, rooms: impl Iterator<Item = WorkerId>) -> Window {
    let WindowInput { ready, workers, .. } = input;
    if ready.queue_count() <= QUEUES_SEEN_MAX {
        let queues = ready.counts_by_age();
        let most = (PAIRS_MAX / queues.len().max(1)).min(ROOMS_MAX);
        let mut rooms: Vec<WorkerId> = rooms.collect();
        // Workers that have room now come first. The others follow in the next rounds.
        if rooms.len() > most {
            let urgent = queues.iter().take(URGENT_MAX).map(|(key, _)| key.class);
            let urgent: Vec<_> = urgent
                .filter_map(|class| input.classes.get(class))
                .collect();
            rooms = first_with_room(rooms, most, workers, &urgent);
        }
        return Window {
            queues,
            rooms: rooms
                .into_iter()
                .map(|id| (id, SeenPriority::default()))
                .collect(),
            is_all: true,
            is_behind: false,
        };
    }
    let Some(index) = ready.index() else {
        return Window::default();
    };
    let mut chooser = Chooser {
        input,
        index,
        steps: STEPS_MAX << input.widened.min(SEARCH_WIDENED_MAX),
        chosen: BTreeSet::new(),
        kinds: BTreeMap::new(),
        alike: BTreeMap::new(),
        is_all: true,
    };
    let mut seen = BTreeMap::new();
    for id in rooms.take(WORKERS_MAX) {
        let Some(worker) = workers.get(&id).filter(|worker| worker.accepts_work()) else {
            // The worker accepts no tasks and need not be examined again.
            seen.insert(id, SeenPriority::default());
            continue;
        };
        // The first worker is always examined, to ensure progress.
        let is_spent = chooser.steps == 0 || chooser.chosen.len() >= CHOSEN_MAX;
        if is_spent && !seen.is_empty() {
            break;
        }
        seen.insert(id, chooser.look(worker));
    }
    if input.with_gangs {
        chooser.find_nodes();
    }
    Window {
        queues: ready.by_age(chooser.chosen.into_iter()),
        rooms: seen,
        is_all: chooser.is_all,
        is_behind: ready.is_behind(),
    }
}

/// Selects `most` of these workers, starting with workers that have room for an urgent request. No
/// task should be sent ahead to one worker while another is idle.
fn first_with_room(
    rooms: Vec<WorkerId>,
    most: usize,
    workers: &BTreeMap<WorkerId, Worker>,
    urgent: &[&Arc<Class>],
) -> Vec<WorkerId> {
    let has_room = |id: &WorkerId| {
        let mut variants = urgent.iter().flat_map(|class| &class.variants);
        let worker = workers.get(id).filter(|worker| worker.accepts_work());
        worker.is_some_and(|worker| variants.any(|variant| worker.room(variant) > 0))
    };
    let (mut first, mut later) = (Vec::new(), Vec::new());
    for id in rooms {
        // The remaining workers do not matter in this round.
        if first.len() >= most {
            break;
        }
        if has_room(&id) {
            first.push(id);
        } else {
            later.push(id);
        }
    }
    first.into_iter().chain(later).take(most).collect()
}

/// Workers with the same offers.
struct Kind<'a> {
    resource_weights: Vec<u64>,
    /// The requests that such a worker could run and that are known so far, in the order
    /// they are sent ahead.
    ahead: Vec<QueueKey>,
    search: Search<'a>,
}

/// A worker's offers and free units.
type OfferKey<'a> = (&'a [Offer], &'a [i64]);

struct Chooser<'a> {
    input: WindowInput<'a>,
    index: &'a RequestIndex,
    steps: u32,
    chosen: BTreeSet<QueueKey>,
    kinds: BTreeMap<&'a [Offer], Kind<'a>>,
    /// The results by offers and free units, reused for equal workers.
    alike: BTreeMap<OfferKey<'a>, Option<Reverse<i32>>>,
    is_all: bool,
}

impl<'a> Chooser<'a> {
    fn look(&mut self, worker: &'a Worker) -> SeenPriority {
        let offers = worker.offers();
        self.kinds.entry(offers).or_insert_with(|| Kind {
            resource_weights: self.index.resource_weights(offers),
            ahead: Vec::new(),
            search: Search::new(self.index),
        });
        let is_plain = !worker.has_time_limit()
            && worker.waiting().next().is_none()
            && !worker.has_reservations()
            && !worker.is_any_stuck()
            && worker.reserved_for().is_none()
            && worker.config.min_utilization <= 0.0;
        let like = (offers, worker.free());
        let known = self.alike.get(&like).filter(|_| is_plain).copied();
        // Thousands of equal workers need only one search.
        let fitting = known.unwrap_or_else(|| self.find_fitting(worker));
        if is_plain {
            self.alike.insert(like, fitting);
        }
        let ahead = self.find_ahead(worker);
        // Some requests were left out, so the next round follows immediately.
        if fitting.is_some() || ahead.is_some() {
            self.is_all = false;
        }
        SeenPriority { fitting, ahead }
    }

    /// Finds requests that can start on a worker now without using its reservations. Returns a
    /// value for [`SeenPriority::fitting`].
    fn find_fitting(&mut self, worker: &'a Worker) -> Option<Reverse<i32>> {
        let mut plan = WorkerPlan::new(worker);
        // This round decides anew about reservations for multi-node tasks.
        if self.input.with_gangs {
            plan.reserved = None;
        }
        let WindowInput {
            ready,
            classes,
            now,
            ..
        } = self.input;
        plan.note_reservations(|key| ready.count(key) > 0);
        plan.reserve_for_overdue(classes, now);
        let kind = self.kinds.get(worker.offers())?;
        let most = if worker.config.min_utilization > 0.0 {
            FITTING_DEMANDED
        } else {
            FITTING_MAX
        };
        let mut search = Search::new(self.index);
        let mut available = plan.available_all();
        let mut level = None;
        let mut found = 0;
        loop {
            let view = View {
                bin: Bin {
                    offers: worker.offers(),
                    available: &available,
                    resource_weights: &kind.resource_weights,
                },
                time_left_ns: worker.remaining(now).map_or(u64::MAX, nanos),
            };
            let Some((key, number, class)) = search.next(&view, &mut self.steps) else {
                // The steps are used up, so requests below this priority are unknown.
                let here = level.unwrap_or(Reverse(i32::MAX));
                return (self.steps == 0).then_some(here);
            };
            // The worker is reserved, and all remaining requests are less urgent.
            if !plan.admits(key) {
                return None;
            }
            // The search descends by priority. At each new level, room for more urgent waiting
            // tasks is reserved.
            if level != Some(key.priority) {
                level = Some(key.priority);
                plan.enter(key, classes);
                available = plan.available_all();
            }
            // The index may lag behind the queue, and it ignores fractions of items.
            let fits = ready.count(key) > 0
                && class.variants.get(number as usize).is_some_and(|demand| {
                    plan.room(demand) > 0 && plan.serves(key.class, number, demand, now)
                });
            if fits {
                self.chosen.insert(key);
                found += 1;
            }
            // Less urgent requests wait for the next round, because this round gives the worker
            // nothing below this level.
            if found >= most {
                return level;
            }
        }
    }

    /// Finds requests to send ahead to a worker. Returns a value for [`SeenPriority::ahead`].
    fn find_ahead(&mut self, worker: &'a Worker) -> Option<Reverse<i32>> {
        let kind = self.kinds.get_mut(worker.offers())?;
        let by_rate = worker.backlog_by_rate(self.input.now) as usize;
        let wanted = by_rate.saturating_sub(worker.backlog_len());
        // This many requests are enough to choose from, even for a worker with an unknown rate.
        let wanted = wanted.clamp(AHEAD_MIN, AHEAD_MAX);
        let whole = everything(worker.offers());
        let view = View {
            bin: Bin {
                offers: worker.offers(),
                available: &whole,
                resource_weights: &kind.resource_weights,
            },
            time_left_ns: u64::MAX,
        };
        // Equal workers can run the same requests, so the previous search is continued.
        while kind.ahead.len() < wanted
            && let Some((key, _, _)) = kind.search.next(&view, &mut self.steps)
        {
            if self.input.ready.count(key) > 0 {
                kind.ahead.push(key);
            }
        }
        let seen = kind.ahead.get(..wanted).unwrap_or(&kind.ahead);
        self.chosen.extend(seen);
        let is_all = seen.len() < wanted && self.steps > 0;
        match seen.last() {
            Some(last) if !is_all => Some(last.priority),
            None if !is_all => Some(Reverse(i32::MAX)),
            Some(_) | None => None,
        }
    }

    /// Chooses multi-node tasks: the most urgent ones for reservations, and feasible ones.
    fn find_nodes(&mut self) {
        let WindowInput { ready, workers, .. } = self.input;
        let mut empty: BTreeMap<&str, u32> = BTreeMap::new();
        let able = workers
            .values()
            .filter(|worker| worker.accepts_work() && worker.is_trusted());
        for worker in able.filter(|worker| worker.assigned().is_empty()) {
            *empty.entry(&worker.config.group).or_default() += 1;
        }
        let most = empty.into_values().max().unwrap_or(0);
        self.chosen.extend(ready.multi_node().take(MULTI_NODE_MAX));
        let sizes = ready.multi_node_up_to(most).take(SIZES_MAX);
        // After very many large tasks, there may be a small one that can start.
        let mut able: Vec<QueueKey> = sizes.collect();
        able.sort_by_key(|key| key.priority);
        self.chosen.extend(able.into_iter().take(MULTI_NODE_MAX));
    }
}

/// Returns at most `most` queues that a worker with these offers could run. The most urgent and
/// most valuable ones come first.
pub(crate) fn able(
    ready: &ReadyQueue,
    offers: &[Offer],
    most: usize,
    time_left_ns: u64,
) -> Vec<QueueKey> {
    let Some(index) = ready.index() else {
        return Vec::new();
    };
    let whole = everything(offers);
    let resource_weights = index.resource_weights(offers);
    let view = View {
        bin: Bin {
            offers,
            available: &whole,
            resource_weights: &resource_weights,
        },
        time_left_ns,
    };
    let mut search = Search::new(index);
    let mut steps = STEPS_MAX;
    let found = std::iter::from_fn(|| search.next(&view, &mut steps));
    let found = found.map(|(key, _, _)| key);
    found
        .filter(|key| ready.count(*key) > 0)
        .take(most)
        .collect()
}

fn everything(offers: &[Offer]) -> Vec<i64> {
    let units = offers.iter().map(|offer| i64::try_from(offer.units));
    units.map(|units| units.unwrap_or(i64::MAX)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::JobId;
    use crate::resource::request::{RequestVariants, ResourceRequest};
    use crate::testing::worker_config;
    use crate::time::Timestamp;

    /// A cluster with very many multi-node requests. Requests with more nodes have higher
    /// priorities.
    struct Bench {
        classes: Classes,
        ready: ReadyQueue,
        workers: BTreeMap<WorkerId, Worker>,
    }

    impl Bench {
        fn new(groups: &[&str]) -> Self {
            let mut bench = Self {
                classes: Classes::default(),
                ready: ReadyQueue::default(),
                workers: BTreeMap::new(),
            };
            for (group, id) in groups.iter().zip(1..) {
                let mut config = worker_config(1);
                config.group = (*group).into();
                let offers = bench.classes.offers(&config.resources);
                let id = WorkerId(id);
                let worker = Worker::new(id, Arc::new(config), offers, Time(0), Timestamp(0));
                bench.workers.insert(id, worker);
            }
            for n_nodes in 0..u32::try_from(QUEUES_SEEN_MAX).expect("few") + 1 {
                bench.queue(9, 1_000 + n_nodes);
            }
            bench
        }

        fn queue(&mut self, priority: i32, n_nodes: u32) -> QueueKey {
            let request = ResourceRequest {
                entries: Vec::new(),
                n_nodes,
                ..ResourceRequest::cpus(1)
            };
            let request = RequestVariants::new(vec![request]).expect("valid");
            let key = QueueKey::new(priority, self.classes.intern(&request));
            self.ready.insert(key, JobId(1), n_nodes, 0, 1);
            self.ready.note_multi_node(key, n_nodes);
            key
        }

        fn seen(&mut self, with_gangs: bool) -> BTreeSet<QueueKey> {
            let window = self.window(std::iter::empty(), with_gangs);
            window.queues.into_iter().map(|(key, _)| key).collect()
        }

        fn follow(&mut self) {
            self.ready.follow(&self.classes);
            while self.ready.is_behind() {
                self.ready.follow(&self.classes);
            }
        }

        fn window(&mut self, rooms: impl Iterator<Item = WorkerId>, with_gangs: bool) -> Window {
            self.follow();
            let input = WindowInput {
                ready: &self.ready,
                classes: &self.classes,
                workers: &self.workers,
                with_gangs,
                widened: 0,
                now: Time(0),
            };
            window(input, rooms)
        }
    }

    #[test]
    fn of_very_many_multi_node_tasks_those_are_seen_that_could_start() {
        let mut bench = Bench::new(&["a", "b", "b", "b", "a"]);
        let (three, four) = (bench.queue(0, 3), bench.queue(0, 4));
        let seen = bench.seen(true);
        assert!(seen.contains(&three), "three of one group are empty");
        assert!(!seen.contains(&four), "no group has four");
        assert_eq!(seen.len(), MULTI_NODE_MAX + 1, "and the most urgent");
        assert!(bench.seen(false).is_empty(), "nobody asked for nodes");
    }

    #[test]
    fn of_more_tasks_that_could_start_the_most_urgent_are_seen() {
        let mut bench = Bench::new(&["a"; 40]);
        let few = i32::try_from(MULTI_NODE_MAX).expect("few");
        // Larger requests are more urgent here.
        let able: Vec<QueueKey> = (1..=few + 4)
            .map(|size| bench.queue(size - 100, size.unsigned_abs()))
            .collect();
        let seen = bench.seen(true);
        let expected: Vec<bool> = (1..=few + 4).map(|size| size > 4).collect();
        let found: Vec<bool> = able.iter().map(|key| seen.contains(key)).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn when_all_that_fits_was_seen_no_other_round_has_to_look_for_more() {
        let mut bench = Bench::new(&["a", "a"]);
        let fits = bench.queue(0, 0);
        let rooms = [WorkerId(1), WorkerId(2)];
        let window = bench.window(rooms.into_iter(), false);
        let queues: Vec<QueueKey> = window.queues.iter().map(|(key, _)| *key).collect();
        assert_eq!(queues, [fits]);
        let fitting = rooms.map(|id| window.rooms[&id].fitting);
        assert_eq!(fitting, [None; 2], "down to the least urgent");
        assert!(window.is_all);
    }

    #[test]
    fn queues_that_have_become_empty_take_no_place_of_those_that_some_worker_could_run() {
        let mut bench = Bench::new(&["a"]);
        let (urgent, other) = (bench.queue(5, 0), bench.queue(3, 0));
        bench.follow();
        let offers = bench.classes.offers(&worker_config(1).resources);
        let first = |bench: &Bench| able(&bench.ready, &offers, 1, u64::MAX);
        assert_eq!(first(&bench), [urgent]);
        // The index is updated in the next round.
        assert_eq!(bench.ready.take(urgent, 1, true).len(), 1);
        assert_eq!(first(&bench), [other]);
    }
}
