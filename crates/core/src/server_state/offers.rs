//! The resources that workers and allocation queues could offer to tasks that need more.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::class::{Class, ClassId, Classes, Offer, VariantDemand, fitting};
use crate::growth::{Largest, MEMORY};
use crate::resource::amount::Amount;
use crate::scheduler::demand::{PLENTY, WorkerKind};
use crate::time::{Time, nanos};
use crate::worker::Workers;

/// How long cached offers stay valid. Very many tasks can fail at a time, but they are of few
/// kinds.
const OFFERS_AGE_MAX: Duration = Duration::from_secs(1);

/// The lower bound of a task's share. Without it, thousands of tasks could run on one worker.
const SHARE_MIN: Amount = Amount::whole(64);

/// The workers and queues that could give a task more memory or time.
#[derive(Clone, Debug, Default)]
pub(super) struct Offers {
    /// The kinds of workers that automatic allocation can request.
    queues: Vec<WorkerKind>,
    /// The kinds of connected workers and when they were computed. There may be thousands of
    /// workers.
    kinds: Option<(Time, Vec<Kind>)>,
    /// The shortest total lifetime of a connected worker.
    lifetime_min: Option<Duration>,
    /// The largest offer for tasks of each class, and when it was computed.
    known: BTreeMap<ClassId, (Time, Largest)>,
}

/// A group of connected workers with the same offers.
#[derive(Clone, Debug)]
struct Kind {
    offers: Vec<Offer>,
    /// The longest remaining lifetime of these workers, or `None` if any of them has no known end.
    left: Option<Duration>,
    /// The shortest total lifetime of these workers, or `None` if none of them has a known end.
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
    /// Clears the caches after the workers or the queues have changed.
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

    /// Returns whether there are any workers or queues.
    pub(super) fn is_any(&self, workers: &Workers) -> bool {
        !self.queues.is_empty() || !workers.live().is_empty()
    }

    /// Returns the number of kinds that must be examined for a class.
    pub(super) fn kinds_len(&mut self, now: Time, workers: &Workers) -> usize {
        self.kinds(now, workers).len() + self.queues.len()
    }

    /// Returns the memory per task of a class if as many tasks as possible run in parallel. The
    /// worker with the smallest result decides, because tasks with more memory would leave some of
    /// its cpus idle. Returns `None` if no worker could run such a task, or if the amount of memory
    /// is unknown.
    pub(super) fn share(
        &mut self,
        now: Time,
        id: ClassId,
        classes: &Classes,
        workers: &Workers,
    ) -> Option<Amount> {
        let (class, memory) = (classes.get(id)?, classes.find_resource(MEMORY)?.0 as usize);
        let all = self.all(now, classes, workers);
        let shares = all.iter().filter_map(|(offers, _)| {
            let units = offers.get(memory)?.units;
            let fit = class.variants.iter().map(|one| fits(one, offers)).max()?;
            // A queue with plentiful resources has no known amount.
            (fit > 0 && units > 0 && units < PLENTY).then(|| units / u64::from(fit))
        });
        Some(Amount(shares.min()?).max(SHARE_MIN))
    }

    /// Returns the shortest total lifetime of a worker, or `None` if no worker has a known end or
    /// there are no workers.
    pub(super) fn lifetime_min(&mut self, now: Time, workers: &Workers) -> Option<Duration> {
        self.kinds(now, workers);
        let of_queues = self.queues.iter().map(|kind| kind.time_limit);
        of_queues.chain(self.lifetime_min).min()
    }

    /// Returns the largest offers that include everything else that a class requests.
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
        let found = classes.get(id).map(|class| {
            let mut found = largest(class, classes, &self.all(now, classes, workers));
            if class.is_multi_node() {
                let of_groups = lifetime_of_groups(class, workers, now);
                // The node counts of connected groups are known, but those of allocations are not.
                let limits = self.queues.iter().map(|queue| queue.time_limit).max();
                let of_queues = limits.map(|limit| (false, usable(Some(limit))));
                found.1 = found.1.max(of_groups).max(of_queues);
            }
            Largest {
                memory: found.0.map(|(_, units)| Amount(units)),
                lifetime: found.1.map(|(_, lifetime)| lifetime),
            }
        });
        let found = found.unwrap_or_default();
        self.known.insert(id, (now, found));
        found
    }

    /// Returns the offers of each kind of worker and queue, with the longest remaining lifetime.
    fn all(
        &mut self,
        now: Time,
        classes: &Classes,
        workers: &Workers,
    ) -> Vec<(Cow<'_, [Offer]>, Option<Duration>)> {
        self.kinds(now, workers);
        let kinds = self.kinds.iter().flat_map(|(_, kinds)| kinds);
        let kinds = kinds.map(|kind| (Cow::from(&*kind.offers), kind.left));
        let queues = self.queues.iter();
        let queues = queues.map(|queue| (queue.offers(classes).into(), Some(queue.time_limit)));
        kinds.chain(queues).collect()
    }
}

/// The largest of several offers, and whether it includes everything that a task requests now. An
/// incomplete offer counts only if there is no other.
type Most<T> = Option<(bool, T)>;

/// Returns the most memory, and the longest lifetime for single-node tasks.
fn largest(
    class: &Class,
    classes: &Classes,
    all: &[(Cow<'_, [Offer]>, Option<Duration>)],
) -> (Most<u64>, Most<Duration>) {
    let id = classes.find_resource(MEMORY);
    let (mut memory, mut lifetime) = (None, None);
    for variant in &class.variants {
        let mut without = variant.clone();
        without.demands.retain(|demand| Some(demand.resource) != id);
        for (offers, left) in all {
            if fits(&without, offers) == 0 {
                continue;
            }
            let offer = id.and_then(|id| offers.get(id.0 as usize));
            let units = offer.map_or(0, |offer| offer.units);
            // A worker with enough memory may have too little time, and vice versa. One worker must
            // have both.
            let has_time = left.is_none_or(|left| nanos(left) >= variant.min_time_ns);
            memory = memory.max((units > 0).then_some((has_time, units)));
            let has_room = fits(variant, offers) > 0;
            lifetime = lifetime.max(Some((has_room, usable(*left))));
        }
    }
    (memory, lifetime)
}

/// Returns the longest lifetime of the nodes of a multi-node task, which are all in one group.
fn lifetime_of_groups(class: &Class, workers: &Workers, now: Time) -> Most<Duration> {
    let mut groups: BTreeMap<&str, Vec<Option<Duration>>> = BTreeMap::new();
    for worker in workers.live().values() {
        let left = worker.remaining(now);
        groups.entry(&worker.config.group).or_default().push(left);
    }
    let lifetimes = groups.into_values().flat_map(|mut left| {
        // A node without a known end counts as the one that lives longest.
        left.sort_unstable_by_key(|left| Reverse(left.unwrap_or(Duration::MAX)));
        class.variants.iter().filter_map(move |variant| {
            let last = (variant.n_nodes as usize).checked_sub(1)?;
            Some((true, usable(*left.get(last)?)))
        })
    });
    lifetimes.max()
}

/// Returns how many times a request fits on an empty worker.
fn fits(variant: &VariantDemand, offers: &[Offer]) -> u32 {
    fitting(variant, offers, |slot| {
        let units = offers.get(slot).map_or(0, |offer| offer.units);
        i64::try_from(units).unwrap_or(i64::MAX)
    })
}

/// Returns the usable part of a lifetime. Some of the lifetime passes before a task arrives, even
/// on a new worker. A request for all of it would never be met, and automatic allocation would
/// start one worker after another without effect.
pub(super) fn usable(left: Option<Duration>) -> Duration {
    left.map_or(Duration::MAX, |left| left / 10 * 9)
}
