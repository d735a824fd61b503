//! Determines how many more workers of a given kind would get tasks that existing workers cannot
//! take now.
//!
//! Packs task counts onto hypothetical workers by first fit, as in [`super::solve`]: first onto
//! workers that are on their way, and then onto new ones. One call answers all queries, so no task
//! is counted twice. Takes O(classes × hypothetical workers) time, independent of the number of
//! tasks.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::class::{Class, ClassId, Classes, Offer, VariantDemand};
use crate::id::{QueueId, WorkerId};
use crate::resource::amount::Amount;

/// The maximum number of hypothetical workers per queue and answer. The next answer adds more.
const IMAGINED_MAX: u32 = 4_096;
/// The maximum number of hypothetical workers examined for one answer, across all queues. This takes
/// a few milliseconds. Beyond this number, only the newest ones of each queue are examined.
const LOOKS_MAX: usize = 262_144;
const NEWEST: usize = 8;
/// The number of tasks that fit on a worker if no resource limits it.
const UNLIMITED: u64 = u64::MAX;

/// The resources and lifetime of the workers that an allocation queue will provide.
#[derive(Clone, PartialEq, Debug)]
pub struct WorkerKind {
    /// The units of each resource, by name.
    pub resources: BTreeMap<Box<str>, u64>,
    /// Whether workers have plenty of each resource that is not named, instead of none.
    pub others_plentiful: bool,
    /// The lifetime of a worker.
    pub time_limit: Duration,
    /// The minimum fraction of the worker's CPUs that must be busy, from 0.0 to 1.0.
    pub min_utilization: f32,
}

/// The number of units offered for a plentiful resource.
pub(crate) const PLENTY: u64 = u64::MAX >> 1;

impl WorkerKind {
    /// Returns the worker's offer for each resource, indexed by resource number.
    pub(crate) fn offers(&self, classes: &Classes) -> Vec<Offer> {
        let units = |name: &str| match self.resources.get(name) {
            Some(units) => *units,
            None if self.others_plentiful => PLENTY,
            None => 0,
        };
        let offers = classes.resource_names().iter().map(|name| Offer {
            units: units(name),
            has_items: false,
        });
        offers.collect()
    }
}

/// An allocation whose workers have not all connected yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Coming {
    /// The number of the allocation within its queue.
    pub number: u32,
    /// The number of requested workers.
    pub workers: u32,
    /// The number of workers that have not connected yet.
    pub owed: u32,
}

/// A query for one queue.
#[derive(Clone, PartialEq, Debug)]
pub struct QueueQuery {
    /// The id of the queue.
    pub queue: QueueId,
    /// The kinds of workers to expect from the queue, never empty: the kinds of its recent workers,
    /// newest last, or the assumed kind if there are none.
    pub kinds: Vec<WorkerKind>,
    /// The kind of worker that the queue is assumed to provide.
    pub assumed: WorkerKind,
    /// The allocations with missing workers, starting with the one expected first.
    pub coming: Vec<Coming>,
    /// The queue's connected workers.
    pub connected: Vec<WorkerId>,
    /// The maximum number of additional workers in the answer.
    pub workers_max: u32,
    /// The maximum number of nodes per allocation.
    pub nodes_max: u32,
}

/// The answer for one queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueDemand {
    /// The id of the queue.
    pub queue: QueueId,
    /// The number of additional workers that single-node tasks would use.
    pub workers: u32,
    /// The node counts of multi-node tasks that each need a separate allocation.
    pub gangs: Vec<u32>,
    /// The number of tasks that no existing worker can take now.
    pub waiting: u64,
    /// Whether some waiting tasks will run on workers that are on their way.
    pub covered: bool,
    /// Why some waiting tasks would not run on workers of this queue.
    pub unfit: Option<Unfit>,
    /// The number of nodes for a task that would run on workers of the assumed kind, but not on
    /// workers of the queue's recent kinds.
    pub larger: Option<u32>,
    /// The numbers of the allocations whose missing workers no task needs.
    pub unneeded: Vec<u32>,
    /// The connected workers that have never received a task.
    pub unused: Vec<WorkerId>,
}

impl QueueDemand {
    /// Returns whether tasks would use more workers.
    #[must_use]
    pub fn wants_workers(&self) -> bool {
        self.workers > 0 || !self.gangs.is_empty()
    }
}

/// The reason why a task cannot use a worker of a queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unfit {
    /// The task needs the worker for longer than the worker's lifetime.
    Time {
        /// The time request.
        needed: Duration,
        /// The lifetime of a worker.
        lifetime: Duration,
    },
    /// The task requests more of a resource than the worker has.
    Resource {
        /// The name of the resource.
        name: Box<str>,
        /// The requested amount.
        needed: Amount,
        /// The amount that a worker offers.
        offered: Amount,
    },
    /// The task requests more nodes than an allocation has.
    Nodes {
        /// The requested number of nodes.
        needed: u32,
        /// The maximum number of nodes of an allocation.
        most: u32,
    },
    /// The task would not keep the worker busy enough.
    Utilization,
}

/// Answers all queries. `waiting` contains the number of ready tasks of each class, most urgent
/// first.
#[must_use]
pub fn demand(
    waiting: &[(ClassId, u64)],
    classes: &Classes,
    queries: &[QueueQuery],
) -> Vec<QueueDemand> {
    let total = waiting.iter().map(|(_, count)| count).sum();
    let looks_left = Cell::new(LOOKS_MAX);
    let plan = |query| Plan::new(query, classes, &looks_left);
    let mut plans: Vec<Plan<'_>> = queries.iter().map(plan).collect();
    for (id, count) in waiting {
        let Some(class) = classes.get(*id) else {
            continue;
        };
        let mut left = *count;
        // No queue requests a worker for a task that a worker on its way to another queue can take.
        for may_request in [false, true] {
            for plan in &mut plans {
                // The queues are handled in order, so that tasks for an earlier queue are not
                // counted again.
                if left == 0 {
                    break;
                }
                plan.may_request = may_request;
                left = plan.fill(class, left);
            }
        }
    }
    plans.into_iter().map(|plan| plan.answer(total)).collect()
}

/// A hypothetical worker.
#[derive(Clone)]
struct HypotheticalWorker {
    /// The index of the worker's kind.
    kind: usize,
    /// The free units by resource number, or `None` for a plentiful resource.
    free: Vec<Option<u64>>,
}

struct Plan<'a> {
    query: &'a QueueQuery,
    classes: &'a Classes,
    cpus: Option<usize>,
    /// The free units of an empty worker of each kind.
    empty: Vec<Vec<Option<u64>>>,
    /// The free units of an empty worker of the assumed kind.
    assumed: Vec<Option<u64>>,
    larger: Option<u32>,
    coming: Vec<Coming>,
    /// Whether tasks may use more workers than those on their way.
    may_request: bool,
    workers: Vec<HypotheticalWorker>,
    looks_left: &'a Cell<usize>,
    gangs: Vec<u32>,
    covered: bool,
    unfit: Option<Unfit>,
}

impl<'a> Plan<'a> {
    fn new(query: &'a QueueQuery, classes: &'a Classes, looks_left: &'a Cell<usize>) -> Self {
        let offers = |kind: &WorkerKind| {
            let offer = |name: &str| match kind.resources.get(name) {
                Some(units) => Some(*units),
                // Nothing is known about the resource, so a task that requests it gets a chance.
                None if kind.others_plentiful => None,
                None => Some(0),
            };
            classes
                .resource_names()
                .iter()
                .map(|name| offer(name))
                .collect()
        };
        Self {
            query,
            classes,
            cpus: classes
                .resource_names()
                .iter()
                .position(|name| &**name == "cpus"),
            empty: query.kinds.iter().map(offers).collect(),
            assumed: offers(&query.assumed),
            larger: None,
            coming: query.coming.clone(),
            may_request: false,
            workers: Vec::new(),
            looks_left,
            gangs: Vec::new(),
            covered: false,
            unfit: None,
        }
    }

    /// Places tasks of a class and returns how many are left for other queues.
    fn fill(&mut self, class: &Class, mut left: u64) -> u64 {
        for variant in &class.variants {
            if left == 0 {
                break;
            }
            let kinds = (0..).zip(&self.query.kinds);
            let kinds: Vec<usize> = kinds
                .filter_map(|(index, kind)| has_time(variant, kind).then_some(index))
                .collect();
            // Workers of any kind would end before the task does, but another variant may be
            // shorter.
            if kinds.is_empty() {
                self.note_larger(variant);
                let lives = self.query.kinds.iter().map(|kind| kind.time_limit);
                self.note_unfit(Unfit::Time {
                    needed: Duration::from_nanos(variant.min_time_ns),
                    lifetime: lives.max().unwrap_or_default(),
                });
                continue;
            }
            left = match variant.n_nodes {
                0 => self.fill_single(variant, &kinds, left),
                nodes => self.fill_gangs(nodes, left),
            };
        }
        left
    }

    fn fill_gangs(&mut self, nodes: u32, mut left: u64) -> u64 {
        if nodes > self.query.nodes_max {
            self.note_unfit(Unfit::Nodes {
                needed: nodes,
                most: self.query.nodes_max,
            });
            return left;
        }
        while left > 0 {
            let found = self
                .coming
                .iter()
                .position(|coming| coming.workers == nodes);
            // An allocation of this size is on its way, or some of its workers are missing.
            if let Some(position) = found {
                self.coming.remove(position);
                self.covered = true;
            } else if self.may_request
                && self.gang_workers().saturating_add(nodes) <= self.workers_max()
            {
                self.gangs.push(nodes);
            } else {
                break;
            }
            left -= 1;
        }
        left
    }

    fn gang_workers(&self) -> u32 {
        self.gangs.iter().fold(0, |sum, n| sum.saturating_add(*n))
    }

    fn workers_max(&self) -> u32 {
        self.query.workers_max.min(IMAGINED_MAX)
    }

    fn fill_single(&mut self, variant: &VariantDemand, kinds: &[usize], mut left: u64) -> u64 {
        let fits = |kind: usize| {
            let empty = self.empty.get(kind)?;
            Some((fitting(variant, empty, empty), kind)).filter(|(count, _)| *count > 0)
        };
        // Not even an empty worker of these kinds could run one of the tasks.
        let Some((each, best)) = kinds.iter().filter_map(|kind| fits(*kind)).max() else {
            self.note_too_small(variant, kinds);
            return left;
        };
        // If there are very many hypothetical workers, usually only the newest have room.
        let first = if self.looks_left.get() == 0 {
            self.workers.len().saturating_sub(NEWEST)
        } else {
            0
        };
        // First fit also uses workers that were added for more urgent tasks.
        for worker in self.workers.iter_mut().skip(first) {
            if left == 0 {
                return 0;
            }
            self.looks_left.set(self.looks_left.get().saturating_sub(1));
            if !kinds.contains(&worker.kind) {
                continue;
            }
            let empty = &self.empty[worker.kind];
            let count = fitting(variant, &worker.free, empty).min(left);
            take(&mut worker.free, variant, empty, count);
            left -= count;
        }
        let coming = self.owed();
        let new = if self.may_request {
            self.workers_max()
        } else {
            0
        };
        let most = coming.saturating_add(new).min(IMAGINED_MAX);
        while left > 0 && self.workers.len() < most as usize {
            let count = each.min(left);
            let mut free = self.empty[best].clone();
            take(&mut free, variant, &self.empty[best], count);
            self.workers.push(HypotheticalWorker { kind: best, free });
            left -= count;
        }
        left
    }

    /// Returns how many workers are missing from allocations that no multi-node task uses.
    fn owed(&self) -> u32 {
        self.coming
            .iter()
            .fold(0, |sum, coming| sum.saturating_add(coming.owed))
    }

    /// Notes why a task does not fit. Before the second pass, another queue may still take the task.
    fn note_unfit(&mut self, unfit: Unfit) {
        if self.may_request {
            self.unfit.get_or_insert(unfit);
        }
    }

    /// Notes that a task does not fit, and whether it would fit on workers of the assumed kind.
    fn note_larger(&mut self, variant: &VariantDemand) {
        if self.may_request
            && variant.n_nodes <= self.query.nodes_max
            && has_time(variant, &self.query.assumed)
            && fitting(variant, &self.assumed, &self.assumed) > 0
        {
            self.larger.get_or_insert(variant.n_nodes.max(1));
        }
    }

    /// Notes which resource the best-fitting workers lack.
    fn note_too_small(&mut self, variant: &VariantDemand, kinds: &[usize]) {
        self.note_larger(variant);
        let short = kinds.iter().filter_map(|kind| {
            let empty = self.empty.get(*kind)?;
            let mut short = variant.demands.iter().filter_map(|demand| {
                let offered = empty.get(demand.resource.0 as usize).copied().flatten()?;
                let needed = demand.units.unwrap_or(1);
                (offered < needed).then_some((offered, needed, demand.resource))
            });
            short.next()
        });
        if let Some((offered, needed, resource)) = short.max_by_key(|(offered, ..)| *offered) {
            self.note_unfit(Unfit::Resource {
                name: self.classes.resource_name(resource).into(),
                needed: Amount(needed),
                offered: Amount(offered),
            });
        }
    }

    fn answer(mut self, waiting: u64) -> QueueDemand {
        let coming = self.owed() as usize;
        let used = self.workers.len();
        let mut first = 0;
        let mut unneeded = Vec::new();
        for allocation in &self.coming {
            if first >= used {
                unneeded.push(allocation.number);
            }
            first += allocation.owed as usize;
        }
        self.covered |= coming > 0 && !self.workers.is_empty();
        // The first hypothetical workers stand for workers that are on their way.
        let new = self.workers.split_off(coming.min(self.workers.len()));
        let all = new.len();
        let busy = new
            .into_iter()
            .filter(|worker| self.is_busy_enough(worker))
            .count();
        // Workers below the utilization limit are not requested.
        if busy < all {
            self.unfit.get_or_insert(Unfit::Utilization);
        }
        QueueDemand {
            queue: self.query.queue,
            workers: u32::try_from(busy)
                .unwrap_or(u32::MAX)
                .min(self.workers_max()),
            gangs: self.gangs,
            waiting,
            covered: self.covered,
            unfit: self.unfit,
            larger: self.larger,
            unneeded,
            unused: Vec::new(),
        }
    }

    fn is_busy_enough(&self, worker: &HypotheticalWorker) -> bool {
        let at = |units: &[Option<u64>]| {
            self.cpus
                .and_then(|slot| units.get(slot).copied())
                .flatten()
        };
        match (at(&self.empty[worker.kind]), at(&worker.free)) {
            (Some(total), Some(free)) if total > 0 => {
                #[expect(clippy::cast_precision_loss, reason = "a share; small numbers")]
                let share = (total - free) as f64 / total as f64;
                share >= f64::from(self.query.assumed.min_utilization)
            }
            _ => true,
        }
    }
}

/// Returns whether a worker of this kind lives long enough for a task that may not be its first.
fn has_time(variant: &VariantDemand, kind: &WorkerKind) -> bool {
    variant.min_time_ns == 0 || variant.min_time_ns < crate::time::nanos(kind.time_limit)
}

fn fitting(variant: &VariantDemand, free: &[Option<u64>], empty: &[Option<u64>]) -> u64 {
    let mut fit = UNLIMITED;
    for demand in &variant.demands {
        let slot = demand.resource.0 as usize;
        let have = free.get(slot).copied().unwrap_or(Some(0));
        fit = fit.min(match (demand.units, have) {
            (Some(units), Some(have)) => have / units.max(1),
            (Some(_), None) => UNLIMITED,
            // A task that takes the whole pool fits once, provided that no other task uses the
            // pool.
            (None, have) => {
                u64::from(have != Some(0) && have == empty.get(slot).copied().flatten())
            }
        });
    }
    fit
}

fn take(free: &mut [Option<u64>], variant: &VariantDemand, empty: &[Option<u64>], count: u64) {
    if count == 0 {
        return;
    }
    for demand in &variant.demands {
        let slot = demand.resource.0 as usize;
        let total = empty.get(slot).copied().flatten().unwrap_or(0);
        if let Some(Some(units)) = free.get_mut(slot) {
            let each = demand.units.unwrap_or(total);
            *units = units.saturating_sub(each.saturating_mul(count));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::amount::Amount;
    use crate::resource::request::{Policy, RequestVariants, ResourceEntry, ResourceRequest};

    fn query(cpus: Option<u64>, coming: &[u32], workers_max: u32) -> QueueQuery {
        let kind = WorkerKind {
            resources: cpus
                .map(|n| ("cpus".into(), n * 10_000))
                .into_iter()
                .collect(),
            others_plentiful: true,
            time_limit: Duration::from_secs(3_600),
            min_utilization: 0.0,
        };
        let coming = (1..).zip(coming).map(|(number, workers)| Coming {
            number,
            workers: *workers,
            owed: *workers,
        });
        QueueQuery {
            queue: QueueId(1),
            assumed: kind.clone(),
            kinds: vec![kind],
            coming: coming.collect(),
            connected: Vec::new(),
            workers_max,
            nodes_max: 4,
        }
    }

    /// Returns the demand for `tasks`, given as (cpus, nodes, time request in seconds, count).
    fn ask(tasks: &[(u32, u32, u64, u64)], queries: &[QueueQuery]) -> Vec<QueueDemand> {
        let mut classes = Classes::default();
        let mut waiting = Vec::new();
        for (cpus, n_nodes, secs, count) in tasks {
            let mut request = ResourceRequest::cpus(*cpus);
            request.min_time = Duration::from_secs(*secs);
            if *n_nodes > 0 {
                request.entries.clear();
                request.n_nodes = *n_nodes;
            }
            let variants = RequestVariants::new(vec![request]).expect("valid");
            waiting.push((classes.intern(&variants), *count));
        }
        demand(&waiting, &classes, queries)
    }

    fn workers(tasks: &[(u32, u32, u64, u64)], query: QueueQuery) -> u32 {
        ask(tasks, &[query])[0].workers
    }

    #[test]
    fn counts_workers_that_would_be_used() {
        assert_eq!(workers(&[(1, 0, 0, 10)], query(Some(4), &[], 100)), 3);
        assert_eq!(workers(&[(1, 0, 0, 10)], query(Some(4), &[2], 100)), 1);
        assert_eq!(workers(&[(1, 0, 0, 10)], query(Some(4), &[3], 100)), 0);
        assert_eq!(workers(&[(1, 0, 0, 10)], query(Some(4), &[], 2)), 2);
        assert_eq!(
            workers(&[(3, 0, 0, 2), (1, 0, 0, 2)], query(Some(4), &[], 9)),
            2
        );
        assert_eq!(workers(&[], query(Some(4), &[], 9)), 0);
    }

    #[test]
    fn one_worker_of_an_unknown_kind_is_enough() {
        assert_eq!(workers(&[(1, 0, 0, 1_000_000)], query(None, &[], 100)), 1);
        assert_eq!(workers(&[(1, 0, 0, 1_000_000)], query(None, &[1], 100)), 0);
    }

    #[test]
    fn tasks_that_do_not_fit_ask_for_nothing_and_say_why() {
        let asked = |task| ask(&[task], &[query(Some(4), &[], 9)]).remove(0);
        let [needed, offered] = [5, 4].map(Amount::whole);
        let name = "cpus".into();
        let too_small = Unfit::Resource {
            name,
            needed,
            offered,
        };
        assert_eq!(asked((5, 0, 0, 1)).unfit, Some(too_small));
        let long = asked((1, 0, 7_200, 1));
        let [needed, lifetime] = [7_200, 3_600].map(Duration::from_secs);
        assert_eq!(long.unfit, Some(Unfit::Time { needed, lifetime }));
        assert_eq!((long.workers, long.waiting), (0, 1));
        let (needed, most) = (5, 4);
        assert_eq!(
            asked((0, 5, 0, 1)).unfit,
            Some(Unfit::Nodes { needed, most })
        );
    }

    #[test]
    fn gangs_ask_for_whole_allocations_unless_one_is_coming() {
        let asked = |coming: &[u32]| ask(&[(0, 3, 0, 2)], &[query(Some(4), coming, 9)]).remove(0);
        assert_eq!(asked(&[]).gangs, [3, 3]);
        assert_eq!(asked(&[3, 1]).gangs, [3]);
        assert!(asked(&[3, 3]).gangs.is_empty());
    }

    #[test]
    fn an_allocation_that_has_not_brought_all_its_workers_counts_with_all_of_them() {
        let mut query = query(Some(4), &[2, 1, 1], 9);
        query.coming[0].owed = 1;
        let answer = ask(&[(0, 2, 0, 1), (1, 0, 0, 4)], &[query]).remove(0);
        assert!(!answer.wants_workers(), "{answer:?}");
        assert_eq!(answer.unneeded, [3], "the last one has nothing to do");
    }

    #[test]
    fn what_came_corrects_what_was_assumed() {
        // (cpus of a task, its time request, assumed lifetime, nodes of a larger worker)
        for (cpus, time, assumed_life, larger) in [
            (2, 0, 3_600, None),
            (3, 0, 3_600, Some(1)),
            (5, 0, 3_600, None),
            (1, 4_000, 7_200, Some(1)),
            (1, 8_000, 7_200, None),
        ] {
            let mut query = query(Some(2), &[], 9);
            query.assumed.resources = [("cpus".into(), 40_000)].into();
            query.assumed.time_limit = Duration::from_secs(assumed_life);
            let answer = ask(&[(cpus, 0, time, 1)], &[query]).remove(0);
            assert_eq!(answer.larger, larger, "{cpus} cpus for {time} s");
        }
    }

    #[test]
    fn no_task_is_counted_for_two_queues() {
        let answers = ask(
            &[(1, 0, 0, 6)],
            &[query(Some(4), &[], 1), query(Some(4), &[], 9)],
        );
        assert_eq!((answers[0].workers, answers[1].workers), (1, 1));
    }

    #[test]
    fn no_worker_is_requested_for_a_task_that_an_allocation_of_a_later_queue_will_run() {
        let both = || [query(Some(4), &[], 9), query(Some(2), &[1], 9)];
        let asked = |tasks: &[(u32, u32, u64, u64)]| {
            let answers = ask(tasks, &both());
            let unneeded = answers[1].unneeded.len();
            (answers[0].workers, answers[1].workers, unneeded)
        };
        assert_eq!(asked(&[(1, 0, 0, 2)]), (0, 0, 0));
        assert_eq!(asked(&[(1, 0, 0, 3)]), (1, 0, 0), "one is left");
        assert_eq!(asked(&[(3, 0, 0, 1)]), (1, 0, 1), "it is too large");
        assert_eq!(asked(&[(3, 0, 0, 1), (1, 0, 0, 3)]), (1, 0, 0), "both");
    }

    #[test]
    fn a_task_that_an_earlier_queue_takes_is_not_noted_as_unfit_for_a_later_one() {
        let mut small = query(Some(4), &[], 9);
        small.assumed.resources.clear();
        let answers = ask(&[(16, 0, 0, 1)], &[query(Some(64), &[], 9), small]);
        assert_eq!((&answers[1].unfit, answers[1].larger), (&None, None));
    }

    #[test]
    fn no_larger_worker_is_tried_for_a_task_with_too_many_nodes() {
        let mut query = query(Some(4), &[], 9);
        query.kinds[0].time_limit = Duration::from_secs(60);
        let larger = |nodes| ask(&[(0, nodes, 600, 1)], std::slice::from_ref(&query))[0].larger;
        assert_eq!((larger(4), larger(5)), (Some(4), None));
    }

    #[test]
    fn workers_that_would_idle_too_much_are_not_asked_for() {
        let mut query = query(Some(4), &[], 9);
        query.assumed.min_utilization = 0.5;
        let answer = ask(&[(1, 0, 0, 5)], &[query]).remove(0);
        assert_eq!(
            (answer.workers, answer.unfit),
            (1, Some(Unfit::Utilization))
        );
    }

    #[test]
    fn an_allocation_on_its_way_covers_what_it_will_run() {
        let asked = |task, coming: &[u32]| ask(&[task], &[query(Some(4), coming, 9)]).remove(0);
        assert!(!asked((1, 0, 0, 3), &[]).covered, "nothing is coming");
        assert!(asked((1, 0, 0, 3), &[1]).covered);
        assert!(asked((1, 0, 0, 30), &[1]).covered, "some of it");
        let nothing = ask(&[], &[query(Some(4), &[1], 9)]).remove(0);
        assert!(!nothing.covered, "nothing waits");
        assert!(!asked((5, 0, 0, 1), &[1]).covered, "it is too small");
        assert!(asked((0, 3, 0, 1), &[3]).covered, "all its nodes");
        assert!(!asked((0, 3, 0, 1), &[2]).covered, "too few nodes");
    }

    #[test]
    fn what_meets_a_limit_exactly_is_within_it() {
        let asked = |task, query| ask(&[task], &[query]).remove(0);
        let long = asked((1, 0, 3_599, 1), query(Some(4), &[], 9));
        assert_eq!((long.workers, long.unfit), (1, None), "lifetime");
        let whole = asked((1, 0, 3_600, 1), query(Some(4), &[], 9));
        assert_eq!(
            whole.workers, 0,
            "some of its life passes before the task starts"
        );
        let nodes = asked((0, 4, 0, 2), query(Some(4), &[], 8));
        assert_eq!((nodes.gangs, nodes.unfit), (vec![4, 4], None));
        let nodes = asked((0, 4, 0, 2), query(Some(4), &[], 7));
        assert_eq!(nodes.gangs, [4], "the second one has no room");
        let exact = asked((4, 0, 0, 2), query(Some(4), &[], 9));
        assert_eq!((exact.workers, exact.unfit), (2, None), "its size");
        let mut half = query(Some(4), &[], 9);
        half.assumed.min_utilization = 0.5;
        let busy = asked((1, 0, 0, 2), half);
        assert_eq!((busy.workers, busy.unfit), (1, None), "utilization");
    }

    #[test]
    fn resources_and_lifetime_are_those_of_one_worker() {
        // (cpus, licences, seconds of the task, requested workers, (resource, offer) that is too
        // small)
        for (cpus, licences, time, workers, short) in [
            (8, 0, 0, 1, None),
            (1, 4, 0, 1, None),
            (1, 0, 500, 1, None),
            (8, 4, 0, 0, Some(("cpus", 20_000))),
            (1, 4, 500, 0, Some(("licences", 0))),
            (9, 0, 0, 0, Some(("cpus", 80_000))),
        ] {
            let mut request = with_entry(cpus, "licences", Policy::Compact);
            request.entries[1].amount = Amount::whole(licences);
            if licences == 0 {
                request.entries.pop();
            }
            request.min_time = Duration::from_secs(time);
            let mut query = query(None, &[], 9);
            let kind = |cpus, licences, time| WorkerKind {
                resources: [("cpus".into(), cpus), ("licences".into(), licences)].into(),
                others_plentiful: false,
                time_limit: Duration::from_secs(time),
                min_utilization: 0.0,
            };
            query.kinds = vec![kind(80_000, 0, 900), kind(20_000, 40_000, 400)];
            let mut classes = Classes::default();
            let class = classes.intern(&RequestVariants::new(vec![request]).expect("valid"));
            let answer = demand(&[(class, 1)], &classes, &[query]).remove(0);
            let found = match &answer.unfit {
                Some(Unfit::Resource { name, offered, .. }) => Some((&**name, offered.0)),
                Some(Unfit::Time { .. } | Unfit::Nodes { .. } | Unfit::Utilization) | None => None,
            };
            let case = (cpus, licences, time);
            assert_eq!((answer.workers, found), (workers, short), "{case:?}");
        }
    }

    /// Returns the answer for tasks with these variants, on workers with 4 cpus, 2 licences and
    /// nothing else.
    fn ask_variants(variants: Vec<ResourceRequest>, count: u64) -> QueueDemand {
        let mut classes = Classes::default();
        let request = RequestVariants::new(variants).expect("valid");
        let class = classes.intern(&request);
        let mut query = query(Some(4), &[], 99);
        let licences = ("licences".into(), 20_000);
        query.kinds[0].resources.extend([licences]);
        query.kinds[0].others_plentiful = false;
        demand(&[(class, count)], &classes, &[query]).remove(0)
    }

    fn with_entry(cpus: u32, name: &str, policy: Policy) -> ResourceRequest {
        let mut request = ResourceRequest::cpus(cpus);
        request.entries.push(ResourceEntry {
            resource: name.into(),
            policy,
            amount: Amount::whole(1),
        });
        request
    }

    #[test]
    fn a_second_variant_takes_what_the_first_cannot() {
        let [wide, narrow] = [8, 2].map(ResourceRequest::cpus);
        let answer = ask_variants(vec![wide, narrow], 5);
        assert_eq!((answer.workers, answer.waiting), (3, 5));
        assert!(matches!(answer.unfit, Some(Unfit::Resource { name, .. }) if &*name == "cpus"));
    }

    #[test]
    fn the_scarcest_of_several_resources_decides() {
        let both = with_entry(1, "licences", Policy::Compact);
        assert_eq!(ask_variants(vec![both], 5).workers, 3, "two in each");
    }

    #[test]
    fn a_task_that_takes_all_of_a_resource_shares_it_with_nobody() {
        let all = with_entry(1, "licences", Policy::All);
        assert_eq!(ask_variants(vec![all], 3).workers, 3);
    }

    #[test]
    fn what_such_workers_do_not_have_at_all_is_named() {
        let gpu = with_entry(1, "gpus", Policy::Compact);
        let answer = ask_variants(vec![gpu], 1);
        assert_eq!(answer.workers, 0);
        assert!(matches!(answer.unfit, Some(Unfit::Resource { name, .. }) if &*name == "gpus"));
    }
}
