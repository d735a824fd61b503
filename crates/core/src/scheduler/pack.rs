//! The best mix of equally urgent requests for one worker.
//!
//! Value of a task: the shares of the worker's resources that it takes, times its weight. A search over
//! counts, most valuable request first, so that its first answer is the greedy one; it stops when its
//! budget is used up and is then as good as what it has found.

use super::VariantDemand;
use super::lane::{Lane, fitting};

/// Counts that one search may try.
const NODES_PER_SEARCH: u32 = 256;
/// Shares are counted in millionths.
const SHARE_UNIT: u64 = 1_000_000;

/// A request that may be placed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate<'a> {
    /// Position of its queue in the round.
    pub(super) queue: usize,
    pub(super) number: u32,
    pub(super) demand: &'a VariantDemand,
    value: u64,
}

impl<'a> Candidate<'a> {
    pub(super) fn new(
        queue: usize,
        number: u32,
        demand: &'a VariantDemand,
        lane: &Lane<'_>,
    ) -> Self {
        let offers = lane.worker.offers();
        let share: u64 = lane
            .costs(demand)
            .map(|(slot, units)| {
                let total = offers.get(slot).map_or(0, |offer| offer.units).max(1);
                share_of(u64::try_from(units).unwrap_or(0), total)
            })
            .sum();
        let value = share.saturating_mul(u64::from(demand.weight)).max(1);
        Self {
            queue,
            number,
            demand,
            value,
        }
    }
}

fn share_of(units: u64, total: u64) -> u64 {
    let share = u128::from(units) * u128::from(SHARE_UNIT) / u128::from(total.max(1));
    u64::try_from(share).unwrap_or(u64::MAX)
}

/// How many tasks of each candidate to place, at most `left` of each queue. `nodes` is what all
/// searches of a round may still try.
pub(super) fn best_mix(
    lane: &Lane<'_>,
    candidates: &mut [Candidate<'_>],
    left: &[u64],
    nodes: &mut u32,
) -> Vec<u32> {
    candidates.sort_by_key(|candidate| (std::cmp::Reverse(candidate.value), candidate.queue));
    if let [only] = candidates {
        let room = u64::from(lane.room(only.demand)).min(left[only.queue]);
        return vec![u32::try_from(room).unwrap_or(u32::MAX)];
    }
    let mut used: Vec<usize> = Vec::new();
    for candidate in candidates.iter() {
        for (slot, _) in lane.costs(candidate.demand) {
            if !used.contains(&slot) {
                used.push(slot);
            }
        }
    }
    let budget = NODES_PER_SEARCH.min(*nodes);
    let weight = candidates.iter().map(|c| c.demand.weight).max();
    let mut search = Search {
        lane,
        candidates,
        left,
        used,
        weight: u64::from(weight.unwrap_or(1)),
        available: lane.available_all(),
        counts: vec![0; candidates.len()],
        best: vec![0; candidates.len()],
        best_value: 0,
        nodes: budget,
    };
    search.descend(0, 0);
    *nodes -= budget - search.nodes.min(budget);
    search.best
}

struct Search<'s, 'a> {
    lane: &'s Lane<'a>,
    candidates: &'s [Candidate<'s>],
    left: &'s [u64],
    /// Resources that any candidate takes.
    used: Vec<usize>,
    weight: u64,
    available: Vec<i64>,
    counts: Vec<u32>,
    best: Vec<u32>,
    best_value: u64,
    nodes: u32,
}

impl Search<'_, '_> {
    fn descend(&mut self, at: usize, value: u64) {
        if value > self.best_value {
            self.best_value = value;
            self.best.clone_from(&self.counts);
        }
        let Some(candidate) = self.candidates.get(at).copied() else {
            return;
        };
        if value.saturating_add(self.bound()) <= self.best_value {
            return;
        }
        let available = &self.available;
        let room = fitting(candidate.demand, self.lane.worker.offers(), |slot| {
            available.get(slot).copied().unwrap_or(0)
        });
        let most = u64::from(room).min(self.left[candidate.queue]);
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        let mut count = most;
        loop {
            self.take(&candidate, i64::from(count));
            self.counts[at] = count;
            let added = candidate.value.saturating_mul(u64::from(count));
            self.descend(at + 1, value.saturating_add(added));
            self.counts[at] = 0;
            self.take(&candidate, -i64::from(count));
            // The first way down is the greedy one and is always gone to its end.
            if count == 0 || self.nodes == 0 {
                return;
            }
            self.nodes -= 1;
            count -= 1;
        }
    }

    /// More than this cannot be gained with what is left.
    fn bound(&self) -> u64 {
        let offers = self.lane.worker.offers();
        let shares = self.used.iter().map(|slot| {
            let free = self.available.get(*slot).copied().unwrap_or(0).max(0);
            let total = offers.get(*slot).map_or(0, |offer| offer.units);
            share_of(u64::try_from(free).unwrap_or(0), total) + 1
        });
        shares
            .sum::<u64>()
            .saturating_mul(self.weight)
            .max(u64::from(self.used.is_empty()))
    }

    fn take(&mut self, candidate: &Candidate<'_>, count: i64) {
        for (slot, units) in self.lane.costs(candidate.demand) {
            if let Some(available) = self.available.get_mut(slot) {
                *available -= units * count;
            }
        }
    }
}
