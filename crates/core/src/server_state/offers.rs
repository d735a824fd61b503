//! What workers and allocation queues offer to tasks that could ask for more.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::class::{Class, ClassId, Classes, Offer, VariantDemand, fitting};
use crate::growth::{Largest, MEMORY};
use crate::resource::amount::Amount;
use crate::scheduler::demand::{PLENTY, WorkerKind};
use crate::time::{Time, nanos};
use crate::worker::Workers;

/// How long cached offers stay valid: very many tasks can fail at a time, and they are of few
/// kinds.
const OFFERS_AGE_MAX: Duration = Duration::from_secs(1);

/// Lower bound of a task's share: tasks that request nothing else can run by the thousand.
const SHARE_MIN: Amount = Amount::whole(64);

/// Workers and queues that could give a task more.
#[derive(Clone, Debug, Default)]
pub(super) struct Offers {
    /// Workers that automatic allocation can request.
    queues: Vec<WorkerKind>,
    /// Kinds of connected workers, and when they were computed: there may be thousands of workers.
    kinds: Option<(Time, Vec<Kind>)>,
    /// The shortest total lifetime among them.
    lifetime_min: Option<Duration>,
    /// The largest offer for tasks of a class, and when it was computed.
    known: BTreeMap<ClassId, (Time, Largest)>,
}

/// Connected workers that offer the same.
#[derive(Clone, Debug)]
struct Kind {
    offers: Vec<Offer>,
    /// The longest remaining lifetime among them; `None` = no known end.
    left: Option<Duration>,
    /// The shortest total lifetime among them; `None` = no known end.
    lifetime: Option<Duration>,
}

fn kinds(workers: &Workers, now: Time) -> Vec<Kind> {
    let mut kinds: BTreeMap<&[Offer], Kind> = BTreeMap::new();
    for worker in workers.live().values() {
        let (left, lifetime) = (worker.remaining(now), worker.config.time_limit);
        let kind = kinds.entry(worker.offers()).or_insert_with(|| Kind {
            offers: worker.offers().to_vec(),
            left,
            lifetime,
        });
        kind.left = kind.left.zip(left).map(|(one, other)| one.max(other));
        kind.lifetime = [kind.lifetime, lifetime].into_iter().flatten().min();
    }
    kinds.into_values().collect()
}

impl Offers {
    /// Workers came or went.
    pub(super) fn forget(&mut self) {
        self.kinds = None;
        self.known.clear();
    }

    /// Sets the kinds of workers that automatic allocation can request.
    pub(super) fn set_queues(&mut self, queues: Vec<WorkerKind>) {
        self.queues = queues;
        self.forget();
    }

    fn kinds(&mut self, now: Time, workers: &Workers) -> &[Kind] {
        let is_old = |(at, _): &(Time, Vec<Kind>)| now.since(*at) >= OFFERS_AGE_MAX;
        if self.kinds.as_ref().is_none_or(is_old) {
            let kinds = kinds(workers, now);
            self.lifetime_min = kinds.iter().filter_map(|kind| kind.lifetime).min();
            self.kinds = Some((now, kinds));
        }
        self.kinds.as_ref().map_or(&[], |(_, kinds)| kinds)
    }

    /// Whether any worker or queue offers something.
    pub(super) fn is_any(&self, workers: &Workers) -> bool {
        !self.queues.is_empty() || !workers.live().is_empty()
    }

    /// Number of kinds that must be examined for a class.
    pub(super) fn kinds_len(&mut self, now: Time, workers: &Workers) -> usize {
        self.kinds(now, workers).len() + self.queues.len()
    }

    /// Memory per task of a class if as many as possible run in parallel, on the worker where that
    /// is least: with more, some cpus would idle. `None` = no worker could run one, or its memory
    /// is unknown.
    pub(super) fn share(
        &mut self,
        now: Time,
        id: ClassId,
        classes: &Classes,
        workers: &Workers,
    ) -> Option<Amount> {
        let (class, memory) = (classes.get(id)?, classes.find_resource(MEMORY)?.0 as usize);
        let share = |offers: &[Offer]| {
            let units = offers.get(memory)?.units;
            let all = |slot: usize| {
                let units = offers.get(slot).map_or(0, |offer| offer.units);
                i64::try_from(units).unwrap_or(i64::MAX)
            };
            let variants = class.variants.iter();
            let fit = variants
                .map(|variant| fitting(variant, offers, all))
                .max()?;
            // A queue with plentiful resources has no known amount.
            (fit > 0 && units > 0 && units < PLENTY).then(|| units / u64::from(fit))
        };
        let kinds = self.kinds(now, workers).iter();
        let of_workers = kinds.filter_map(|kind| share(&kind.offers)).min();
        let of_queues = self
            .queues
            .iter()
            .filter_map(|kind| share(&kind.offers(classes)));
        let least = of_queues.chain(of_workers).min()?;
        Some(Amount(least).max(SHARE_MIN))
    }

    /// The shortest total lifetime of a worker; `None` = no worker has an end, or there are no
    /// workers.
    pub(super) fn lifetime_min(&mut self, now: Time, workers: &Workers) -> Option<Duration> {
        self.kinds(now, workers);
        let of_queues = self.queues.iter().map(|kind| kind.time_limit);
        of_queues.chain(self.lifetime_min).min()
    }

    pub(super) fn largest(
        &mut self,
        now: Time,
        id: ClassId,
        classes: &Classes,
        workers: &Workers,
    ) -> Largest {
        // Very many tasks of a class can fail within a second.
        if let Some((at, known)) = self.known.get(&id)
            && now.since(*at) < OFFERS_AGE_MAX
        {
            return *known;
        }
        let found = match classes.get(id) {
            Some(class) => {
                let mut search = Search::new(class, classes);
                for kind in self.kinds(now, workers) {
                    search.add(&kind.offers, kind.left);
                }
                look(search, classes, (workers, &self.queues), now)
            }
            None => Largest::default(),
        };
        self.known.insert(id, (now, found));
        found
    }
}

/// Maximum of a resource over all offers.
#[derive(Clone, Copy, Default)]
struct Most<T> {
    /// The maximum over offers with all other resources that a task requests now.
    suited: Option<T>,
    /// The maximum over offers that lack only growable resources.
    any: Option<T>,
}

impl<T: Ord + Copy> Most<T> {
    fn add(&mut self, offered: T, is_suited: bool) {
        self.any = self.any.max(Some(offered));
        if is_suited {
            self.suited = self.suited.max(Some(offered));
        }
    }

    fn get(self) -> Option<T> {
        self.suited.or(self.any)
    }
}

/// Search for the largest offers for tasks of one class.
struct Search<'a> {
    class: &'a Class,
    /// Variants without memory.
    without: Vec<VariantDemand>,
    /// Number of memory among resources.
    slot: usize,
    memory: Most<u64>,
    lifetime: Most<Duration>,
}

impl<'a> Search<'a> {
    fn new(class: &'a Class, classes: &Classes) -> Self {
        let memory = classes.find_resource(MEMORY);
        let mut without = class.variants.clone();
        for variant in &mut without {
            let demands = &mut variant.demands;
            demands.retain(|demand| Some(demand.resource) != memory);
        }
        Self {
            class,
            without,
            slot: memory.map_or(usize::MAX, |id| id.0 as usize),
            memory: Most::default(),
            lifetime: Most::default(),
        }
    }

    /// Considers workers for single-node tasks, with the longest remaining lifetime among them.
    fn add(&mut self, offers: &[Offer], left: Option<Duration>) {
        for (variant, without) in self.class.variants.iter().zip(&self.without) {
            if !fits(without, offers) {
                continue;
            }
            let units = offers.get(self.slot).map_or(0, |offer| offer.units);
            // A worker with the memory may have too little time, and the other way around: both
            // must fit together.
            let has_time = left.is_none_or(|left| nanos(left) >= variant.min_time_ns);
            if units > 0 {
                self.memory.add(units, has_time);
            }
            // Workers without room for its present memory count only if no other exists.
            self.lifetime.add(usable(left), fits(variant, offers));
        }
    }

    /// Considers the nodes of a group for multi-node tasks, with their remaining lifetimes.
    fn add_group(&mut self, mut left: Vec<Option<Duration>>) {
        // A node without an end counts as the longest.
        left.sort_unstable_by_key(|left| Reverse(left.unwrap_or(Duration::MAX)));
        for variant in &self.class.variants {
            let last = (variant.n_nodes as usize).checked_sub(1);
            if let Some(left) = last.and_then(|last| left.get(last)) {
                self.lifetime.add(usable(*left), true);
            }
        }
    }

    /// Connected groups have known node counts, allocations do not.
    fn add_nodes(&mut self, lifetime: Duration) {
        if self.class.is_multi_node() {
            self.lifetime.add(usable(Some(lifetime)), false);
        }
    }
}

fn fits(variant: &VariantDemand, offers: &[Offer]) -> bool {
    let all = |slot: usize| {
        let units = offers.get(slot).map_or(0, |offer| offer.units);
        i64::try_from(units).unwrap_or(i64::MAX)
    };
    fitting(variant, offers, all) > 0
}

/// The usable part of a lifetime. Some of it passes before a task arrives, even on a new worker. A
/// request for all of it would never be met, and automatic allocation would start one worker after
/// another without effect.
pub(super) fn usable(left: Option<Duration>) -> Duration {
    left.map_or(Duration::MAX, |left| left / 10 * 9)
}

/// The largest offers of workers and queues that have everything else a class requests.
fn look(
    mut search: Search<'_>,
    classes: &Classes,
    (workers, queues): (&Workers, &[WorkerKind]),
    now: Time,
) -> Largest {
    // All nodes of such a task are in one group.
    if search.class.is_multi_node() {
        let mut groups: BTreeMap<&str, Vec<Option<Duration>>> = BTreeMap::new();
        for worker in workers.live().values() {
            let left = worker.remaining(now);
            groups.entry(&worker.config.group).or_default().push(left);
        }
        for left in groups.into_values() {
            search.add_group(left);
        }
    }
    for queue in queues {
        search.add(&queue.offers(classes), Some(queue.time_limit));
        search.add_nodes(queue.time_limit);
    }
    Largest {
        memory: search.memory.get().map(Amount),
        lifetime: search.lifetime.get(),
    }
}
