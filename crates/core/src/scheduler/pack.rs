//! Finds the best mix of equally urgent requests for one worker.
//!
//! The value of a task is the sum of its shares of the worker's resources, weighted by scarcity
//! ("dot product" in Panigrahy et al., Heuristics for Vector Bin Packing, 2011), to the power of
//! 5/4, times the weight of the request. The exponent favors large tasks over slightly better
//! packing with small ones, which also fit later. The search tries counts, starting with the most
//! valuable request, so its first result is the greedy mix. When its budget is used up, it returns
//! the best mix found.
//!
//! For the last few tasks, the search instead takes the mix after which the remaining tasks need
//! the fewest workers like this one (exact bin packing, by dynamic programming over counts). The
//! most valuable mix may leave tasks that pack badly, and if only a few tasks are left, no later
//! mix compensates for that.

use crate::class::{Offer, VariantDemand, fitting};

/// The maximum number of counts that one search tries.
const NODES_PER_SEARCH: u32 = 256;
/// The maximum number of candidates that one search examines, counting repetitions.
const STEPS_PER_SEARCH: u32 = 8_192;
/// The maximum number of candidates in one search, most valuable first. The others are added
/// greedily.
const CANDIDATES_MAX: usize = 64;
/// The share that corresponds to a whole resource. Shares are measured in millionths.
pub(super) const SHARE_UNIT: u64 = 1_000_000;
/// The weight of the scarcest resource. Other resources weigh less, in proportion to the square of
/// the requested share.
const WORTH_MAX: u64 = 256;
/// The maximum number of tasks that are packed exactly. With more tasks, later mixes compensate for
/// remaining tasks that pack badly.
pub(super) const EXACT_TASKS_MAX: u64 = 24;
/// The maximum number of remainders in the exact comparison.
const RESTS_MAX: usize = 2_048;
/// The maximum number of mixes tried for all remainders together.
const REST_NODES: u32 = 8_192;

/// A worker to be filled.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bin<'a> {
    /// The worker's offers, by resource number.
    pub(super) offers: &'a [Offer],
    /// The available units, by resource number.
    pub(super) available: &'a [i64],
    /// The weight of each resource, see [`resource_weights`].
    pub(super) resource_weights: &'a [u64],
}

/// Returns the weight of each resource, from 1 to 256. `asked` yields the number of tasks of each
/// request.
pub(super) fn resource_weights<'a>(
    offers: &[Offer],
    asked: impl Iterator<Item = (&'a VariantDemand, u64)>,
) -> Vec<u64> {
    let mut shares = vec![0_u64; offers.len()];
    for (demand, tasks) in asked {
        for (slot, units) in costs(demand, offers) {
            if let Some(sum) = shares.get_mut(slot) {
                let share = share_of(units, total(offers, slot));
                *sum = sum.saturating_add(share.saturating_mul(tasks));
            }
        }
    }
    weights_of_shares(shares)
}

/// Converts shares of the resources to weights.
pub(super) fn weights_of_shares(shares: Vec<u64>) -> Vec<u64> {
    let most = shares.iter().copied().max().unwrap_or(0).max(1);
    let worth = |share: u64| {
        let squared = u128::from(share) * u128::from(share) * u128::from(WORTH_MAX);
        let worth = squared / (u128::from(most) * u128::from(most));
        u64::try_from(worth).unwrap_or(WORTH_MAX).max(1)
    };
    shares.into_iter().map(worth).collect()
}

/// Returns the value of a weighted sum of shares, which is the sum to the power of 5/4.
pub(super) fn value_of(share: u64) -> u64 {
    let squared = u128::from(share) * u128::from(share);
    let power = squared.saturating_mul(u128::from(share.isqrt())).isqrt();
    u64::try_from(power).unwrap_or(u64::MAX)
}

/// A request that may be placed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    /// The position of the request's queue in the round.
    pub(super) queue: usize,
    pub(super) number: u32,
    pub(super) demand: &'a VariantDemand,
    /// The number of tasks that are left.
    pub(super) left: u64,
    value: u64,
}

impl<'a> Candidate<'a> {
    pub(super) fn new(
        queue: usize,
        number: u32,
        demand: &'a VariantDemand,
        left: u64,
        bin: Bin<'_>,
    ) -> Self {
        Self {
            queue,
            number,
            demand,
            left,
            value: bin.value(demand),
        }
    }
}

impl Bin<'_> {
    /// Returns the value of a task of a variant.
    pub(super) fn value(&self, demand: &VariantDemand) -> u64 {
        let shares = costs(demand, self.offers).map(|(slot, units)| self.share(slot, units));
        value_of(shares.fold(0, u64::saturating_add))
            .saturating_mul(u64::from(demand.weight))
            .max(1)
    }

    /// Returns whether a task of a variant fits into the available amounts.
    pub(super) fn has_room(&self, demand: &VariantDemand) -> bool {
        self.room(demand, self.available) > 0
    }

    /// Returns the weighted share that `units` units of a resource represent.
    pub(super) fn share(&self, slot: usize, units: i64) -> u64 {
        let worth = self.resource_weights.get(slot).copied().unwrap_or(1);
        share_of(units, total(self.offers, slot)).saturating_mul(worth)
    }

    /// Returns how many tasks of a variant fit into the available amounts.
    fn room(&self, demand: &VariantDemand, available: &[i64]) -> u32 {
        fitting(demand, self.offers, |slot| {
            available.get(slot).copied().unwrap_or(0)
        })
    }
}

impl Candidate<'_> {
    /// Returns the sort key. The most valuable candidate comes first.
    pub(super) fn rank(&self) -> (std::cmp::Reverse<u64>, usize) {
        (std::cmp::Reverse(self.value), self.queue)
    }
}

/// Returns the units that one task takes, by resource number.
fn costs<'a>(
    demand: &'a VariantDemand,
    offers: &'a [Offer],
) -> impl Iterator<Item = (usize, i64)> + 'a {
    demand.demands.iter().map(|demand| {
        let slot = demand.resource.0 as usize;
        let units = demand.units.unwrap_or_else(|| total(offers, slot));
        (slot, i64::try_from(units).unwrap_or(i64::MAX))
    })
}

fn total(offers: &[Offer], slot: usize) -> u64 {
    offers.get(slot).map_or(0, |offer| offer.units)
}

fn share_of(units: i64, total: u64) -> u64 {
    let units = u128::try_from(units).unwrap_or(0);
    let share = units * u128::from(SHARE_UNIT) / u128::from(total.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// Subtracts the demand of `count` tasks from the available amounts. A negative count adds it back.
fn take(available: &mut [i64], demand: &VariantDemand, offers: &[Offer], count: i64) {
    for (slot, units) in costs(demand, offers) {
        if let Some(available) = available.get_mut(slot) {
            *available -= units.saturating_mul(count);
        }
    }
}

/// The remaining steps of all searches in a round. When they are used up, placement is greedy.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// The number of counts that may still be tried.
    nodes: u32,
    /// The number of candidates that may still be examined, about 50 ns each.
    steps: u32,
}

impl Budget {
    pub(super) const ROUND: Self = Self {
        nodes: 20_000,
        steps: 65_536,
    };
}

/// Returns how many tasks of each candidate to place. Sorts the candidates into the same order.
pub(super) fn best_mix(
    bin: Bin<'_>,
    candidates: &mut [Candidate<'_>],
    budget: &mut Budget,
) -> Vec<u32> {
    // The most valuable candidates come first, so that the first path of the search is the greedy
    // mix.
    candidates.sort_by_key(Candidate::rank);
    if let Some((searched, rest)) = candidates.split_at_checked(CANDIDATES_MAX)
        && !rest.is_empty()
    {
        let mut counts = best_of(bin, searched, budget);
        let mut available = bin.available.to_vec();
        for (candidate, count) in searched.iter().zip(&counts) {
            take(
                &mut available,
                candidate.demand,
                bin.offers,
                i64::from(*count),
            );
        }
        // The least valuable candidates fill the remaining space, in order.
        counts.extend(rest.iter().map(|candidate| {
            let room = u64::from(bin.room(candidate.demand, &available)).min(candidate.left);
            let count = u32::try_from(room).unwrap_or(u32::MAX);
            take(
                &mut available,
                candidate.demand,
                bin.offers,
                i64::from(count),
            );
            count
        }));
        return counts;
    }
    best_of(bin, candidates, budget)
}

/// Finds the best mix of a few sorted candidates.
fn best_of(bin: Bin<'_>, candidates: &[Candidate<'_>], budget: &mut Budget) -> Vec<u32> {
    // If there is only one request, which is the usual case, as many of its tasks as fit are taken.
    if let [only] = candidates {
        let room = u64::from(bin.room(only.demand, bin.available)).min(only.left);
        return vec![u32::try_from(room).unwrap_or(u32::MAX)];
    }
    // When few tasks are left, packing the rest well matters more than the value of this mix.
    if let Some(mix) = best_of_few(bin, candidates, &mut budget.nodes) {
        return mix;
    }
    search(bin, candidates, budget)
}

/// Finds the most valuable mix within the budget.
fn search(bin: Bin<'_>, candidates: &[Candidate<'_>], budget: &mut Budget) -> Vec<u32> {
    let mut used: Vec<usize> = Vec::new();
    for candidate in candidates.iter() {
        // Only requested resources can limit the value.
        for (slot, _) in costs(candidate.demand, bin.offers) {
            if !used.contains(&slot) {
                used.push(slot);
            }
        }
    }
    let weight = candidates.iter().map(|c| c.demand.weight).max();
    let mut search = Search {
        bin,
        candidates,
        used,
        weight: u64::from(weight.unwrap_or(1)),
        available: bin.available.to_vec(),
        counts: vec![0; candidates.len()],
        values: Vec::with_capacity(candidates.len()),
        best: vec![0; candidates.len()],
        best_value: 0,
        nodes: NODES_PER_SEARCH.min(budget.nodes),
        steps: STEPS_PER_SEARCH.min(budget.steps),
    };
    let before = (search.nodes, search.steps);
    search.run();
    budget.nodes -= before.0 - search.nodes;
    budget.steps -= before.1 - search.steps;
    search.best
}

/// Returns the counts that use the most of one resource. Sorts the candidates into the same order.
pub(super) fn most_cpus(
    bin: Bin<'_>,
    cpus: usize,
    candidates: &mut [Candidate<'_>],
    budget: &mut Budget,
) -> Vec<u32> {
    for candidate in candidates.iter_mut() {
        let mut costs = costs(candidate.demand, bin.offers);
        let units = costs.find(|(slot, _)| *slot == cpus);
        candidate.value = units.map_or(0, |(_, units)| bin.share(cpus, units));
    }
    candidates.sort_by_key(Candidate::rank);
    search(bin, candidates, budget)
}

struct Search<'s> {
    bin: Bin<'s>,
    candidates: &'s [Candidate<'s>],
    /// The resources that any candidate takes.
    used: Vec<usize>,
    weight: u64,
    available: Vec<i64>,
    /// The counts up to the current candidate. All later counts are 0.
    counts: Vec<u32>,
    /// The total value of all candidates before each candidate.
    values: Vec<u64>,
    best: Vec<u32>,
    best_value: u64,
    nodes: u32,
    steps: u32,
}

impl Search<'_> {
    /// Searches depth first, largest counts first. The path is a list instead of recursion, because
    /// the number of candidates is unbounded.
    fn run(&mut self) {
        let mut next = Some(0);
        while let Some(value) = next {
            self.go_down(value);
            next = self.go_back();
        }
    }

    /// Takes as many tasks of each candidate in turn as fit, until no more value can be gained.
    fn go_down(&mut self, mut value: u64) {
        loop {
            if value > self.best_value {
                self.best_value = value;
                self.best.clone_from(&self.counts);
            }
            let at = self.values.len();
            // All candidates have counts.
            let Some(candidate) = self.candidates.get(at).copied() else {
                return;
            };
            // Branch and bound: even with all remaining resources, this branch would not beat the
            // best mix.
            if value.saturating_add(self.bound()) <= self.best_value {
                return;
            }
            // The subtraction saturates, because the first path, which is greedy, is always
            // completed.
            self.steps = self.steps.saturating_sub(1);
            let room = self.bin.room(candidate.demand, &self.available);
            let most = u64::from(room).min(candidate.left);
            let most = u32::try_from(most).unwrap_or(u32::MAX);
            self.take(&candidate, i64::from(most));
            self.counts[at] = most;
            self.values.push(value);
            value = value.saturating_add(candidate.value.saturating_mul(u64::from(most)));
        }
    }

    /// Removes one task of the last candidate with a nonzero count. Returns the new value, or
    /// `None` if the search is complete or the budget is used up.
    fn go_back(&mut self) -> Option<u64> {
        while let Some(value) = self.values.pop() {
            let at = self.values.len();
            let candidate = *self.candidates.get(at)?;
            let count = self.counts[at];
            // The first path is greedy and is always completed.
            if count > 0 && self.nodes > 0 && self.steps > 0 {
                self.nodes -= 1;
                self.take(&candidate, -1);
                self.counts[at] = count - 1;
                self.values.push(value);
                let added = candidate.value.saturating_mul(u64::from(count - 1));
                return Some(value.saturating_add(added));
            }
            self.take(&candidate, -i64::from(count));
            self.counts[at] = 0;
        }
        None
    }

    /// Returns an upper bound on the additional value.
    fn bound(&self) -> u64 {
        let shares = self.used.iter().map(|slot| {
            let free = self.available.get(*slot).copied().unwrap_or(0).max(0);
            self.bin.share(*slot, free) + WORTH_MAX
        });
        // The power of a sum is at least the sum of the powers. The added constants cover rounding
        // errors.
        (value_of(shares.sum()) + 1)
            .saturating_mul(self.weight)
            .max(u64::from(self.used.is_empty()))
    }

    fn take(&mut self, candidate: &Candidate<'_>, count: i64) {
        take(
            &mut self.available,
            candidate.demand,
            self.bin.offers,
            count,
        );
    }
}

/// Returns the mix of a few tasks after which the remaining tasks need the fewest workers. Among
/// such mixes, it is the most valuable. Returns `None` if there are too many mixes to compare.
fn best_of_few(bin: Bin<'_>, candidates: &[Candidate<'_>], nodes: &mut u32) -> Option<Vec<u32>> {
    let left: Vec<u32> = candidates
        .iter()
        .map(|candidate| u32::try_from(candidate.left).unwrap_or(u32::MAX))
        .collect();
    let few = u32::try_from(EXACT_TASKS_MAX).unwrap_or(u32::MAX);
    if left
        .iter()
        .fold(0_u32, |sum, left| sum.saturating_add(*left))
        > few
    {
        return None;
    }
    let mut strides = Vec::with_capacity(left.len());
    let mut rests = 1_usize;
    for left in &left {
        strides.push(rests);
        rests = rests.checked_mul(usize::try_from(*left).ok()? + 1)?;
        // The table would cost more than it can gain.
        if rests > RESTS_MAX {
            return None;
        }
    }
    let empty = bin.offers.iter().map(|offer| i64::try_from(offer.units));
    let budget = REST_NODES.min(*nodes);
    let mut rests = RemainderTable {
        bin,
        candidates,
        strides,
        fewest: vec![UNKNOWN; rests],
        empty: empty.map(|units| units.unwrap_or(i64::MAX)).collect(),
        nodes: budget,
    };
    let mut best: Option<(u32, std::cmp::Reverse<u64>, Vec<u32>)> = None;
    let mut available = bin.available.to_vec();
    let mut rest = left.clone();
    rests.each_mix(0, &mut available, &mut rest, &mut |rests, rest| {
        let needed = rests.fewest(rest)?;
        let counts: Vec<u32> = left.iter().zip(rest.iter()).map(|(l, r)| l - r).collect();
        let taken = counts.iter().zip(candidates);
        let value = taken.map(|(count, of)| of.value.saturating_mul(u64::from(*count)));
        let rank = (needed, std::cmp::Reverse(value.sum()));
        let is_better = best
            .as_ref()
            .is_none_or(|(needed, value, _)| rank < (*needed, *value));
        // A mix after which fewer workers are needed is better. The higher value breaks ties.
        if is_better {
            best = Some((rank.0, rank.1, counts));
        }
        Some(())
    })?;
    *nodes -= budget - rests.nodes.min(budget);
    best.map(|(_, _, counts)| counts)
}

/// Marks an unknown entry of the table.
const UNKNOWN: u32 = u32::MAX;

/// The minimum number of empty workers for each combination of remaining task counts.
struct RemainderTable<'s> {
    bin: Bin<'s>,
    candidates: &'s [Candidate<'s>],
    /// The offset in `fewest` for one more task of each candidate.
    strides: Vec<usize>,
    fewest: Vec<u32>,
    empty: Vec<i64>,
    nodes: u32,
}

/// A visitor of the task counts that a mix leaves. It returns `None` if the steps are used up.
type OnRest<'f, 's> = &'f mut dyn FnMut(&mut RemainderTable<'s>, &mut [u32]) -> Option<()>;

impl<'s> RemainderTable<'s> {
    /// Visits the task counts that each maximal mix leaves. Returns `None` if the steps are used
    /// up.
    fn each_mix(
        &mut self,
        at: usize,
        available: &mut [i64],
        rest: &mut [u32],
        visit: OnRest<'_, 's>,
    ) -> Option<()> {
        let Some(candidate) = self.candidates.get(at).copied() else {
            // A mix that is not maximal is never better.
            if self.is_full(available, rest) {
                visit(self, rest)?;
            }
            return Some(());
        };
        let most = self.bin.room(candidate.demand, available).min(rest[at]);
        for count in (0..=most).rev() {
            // If the steps are used up, the caller falls back to the search by value.
            self.nodes = self.nodes.checked_sub(1)?;
            take(
                available,
                candidate.demand,
                self.bin.offers,
                i64::from(count),
            );
            rest[at] -= count;
            let goes_on = self.each_mix(at + 1, available, rest, visit);
            rest[at] += count;
            take(
                available,
                candidate.demand,
                self.bin.offers,
                -i64::from(count),
            );
            // This must follow the restoration of the amounts, because the caller continues with
            // them.
            goes_on?;
        }
        Some(())
    }

    /// Returns whether none of the remaining tasks fits.
    fn is_full(&self, available: &[i64], rest: &[u32]) -> bool {
        let mut more = self.candidates.iter().zip(rest);
        !more.any(|(candidate, rest)| *rest > 0 && self.bin.room(candidate.demand, available) > 0)
    }

    /// Returns the number of empty workers that the remaining tasks need, or `None` if the steps
    /// are used up.
    fn fewest(&mut self, rest: &mut [u32]) -> Option<u32> {
        let place = |rest: &[u32], strides: &[usize]| -> usize {
            let parts = rest.iter().zip(strides);
            parts.map(|(count, stride)| *count as usize * stride).sum()
        };
        let at = place(rest, &self.strides);
        // No tasks are left.
        if at == 0 {
            return Some(0);
        }
        // Different mixes can leave the same counts. Their result is computed only once (dynamic
        // programming).
        if self.fewest[at] != UNKNOWN {
            return Some(self.fewest[at]);
        }
        let mut available = self.empty.clone();
        let mut fewest = UNKNOWN - 1;
        let mut left = rest.to_vec();
        self.each_mix(0, &mut available, &mut left, &mut |rests, rest| {
            // A request that does not fit on an empty worker of this kind is not counted.
            let after = if place(rest, &rests.strides) == at {
                0
            } else {
                rests.fewest(rest)?
            };
            fewest = fewest.min(after + 1);
            Some(())
        })?;
        self.fewest[at] = fewest;
        Some(fewest)
    }
}
