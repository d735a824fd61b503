//! Chooses groups of coupled pools: among the choices with the fewest groups, one with the highest
//! coupling weight.
//!
//! The weight of a choice is the sum of the weights of all its coupled pairs of groups. Pairs of
//! forced entries (`compact!`, `tight!`) take precedence over all others. Coupling does not affect
//! `scatter` and sums. All sets of groups are tried up to fixed limits, which suffice for machines
//! with eight groups per resource. Beyond them, the best set tried is used.

use super::choose::Need;
use super::{IndexedPool, Pool, PoolEntry, PoolKind};
use crate::resource::descriptor::CouplingWeight;
use crate::resource::request::Policy;

/// The maximum number of sets of groups of one pool that are considered.
const SETS_MAX: usize = 256;
/// The maximum number of sets of groups of one pool that are examined to find candidates.
const SETS_TRIED_MAX: usize = 4_096;
/// The maximum number of combinations of sets of several pools that are compared.
const CHOICES_MAX: u32 = 4_096;

/// The groups to take for each entry of a request.
#[derive(Clone, Debug, Default)]
pub(super) struct Choice {
    /// `None` if coupling does not affect the entry.
    pub(super) groups: Vec<Option<Vec<usize>>>,
    weight: Weight,
}

/// The weight of a choice, compared by requirements first and then by preferences.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
struct Weight {
    forced: u64,
    total: u64,
}

impl Choice {
    /// Returns the weight of the pairs of entries with a forced policy.
    pub(super) const fn forced_weight(&self) -> u64 {
        self.weight.forced
    }
}

/// Returns whether coupling matters for a request with these entries.
pub(super) fn is_coupled(couplings: &[CouplingWeight], entries: &[PoolEntry]) -> bool {
    let entry = |pool: u32| entries.iter().find(|entry| entry.pool == pool);
    couplings.iter().any(
        |pair| match (entry(pair.resource1), entry(pair.resource2)) {
            (Some(a), Some(b)) => {
                a.policy != Policy::Scatter
                    && b.policy != Policy::Scatter
                    && (is_steered(a.policy) || is_steered(b.policy))
            }
            (_, None) | (None, _) => false,
        },
    )
}

/// Returns the best choice. `None` if some entry cannot be served.
pub(super) fn choose(
    pools: &[Pool],
    couplings: &[CouplingWeight],
    entries: &[PoolEntry],
) -> Option<Choice> {
    let mut candidates = Vec::with_capacity(entries.len());
    for entry in entries {
        candidates.push(candidates_of(pools.get(entry.pool as usize)?, entry)?);
    }
    let mut search = Search {
        couplings,
        entries,
        candidates: &candidates,
        picked: Vec::new(),
        best: None,
        left: CHOICES_MAX,
    };
    search.descend();
    let (picked, weight) = search.best?;
    let groups = candidates
        .into_iter()
        .zip(picked)
        .map(|(mut sets, at)| sets.swap_remove(at));
    Some(Choice {
        groups: groups.collect(),
        weight,
    })
}

const fn is_steered(policy: Policy) -> bool {
    match policy {
        Policy::Compact | Policy::ForceCompact | Policy::Tight | Policy::ForceTight => true,
        Policy::Scatter | Policy::All => false,
    }
}

pub(super) const fn is_forced(policy: Policy) -> bool {
    matches!(policy, Policy::ForceCompact | Policy::ForceTight)
}

/// Returns the sets of groups that an entry may take, the default set first. `None` if it cannot be
/// served.
fn candidates_of(pool: &Pool, entry: &PoolEntry) -> Option<Vec<Option<Vec<usize>>>> {
    let PoolKind::Indexed(indexed) = &pool.kind else {
        return Some(vec![None]);
    };
    match entry.policy {
        Policy::Scatter => Some(vec![None]),
        Policy::All => Some(vec![Some((0..indexed.groups.len()).collect())]),
        Policy::Compact | Policy::ForceCompact | Policy::Tight | Policy::ForceTight => {
            let need = Need::new(entry.units);
            let (usual, _) = indexed.fewest_chosen(need)?;
            let mut sets = vec![usual.clone()];
            sets.extend(indexed.sets_that_serve(need, usual.len(), &usual));
            Some(sets.into_iter().map(Some).collect())
        }
    }
}

struct Search<'a> {
    couplings: &'a [CouplingWeight],
    entries: &'a [PoolEntry],
    candidates: &'a [Vec<Option<Vec<usize>>>],
    picked: Vec<usize>,
    best: Option<(Vec<usize>, Weight)>,
    left: u32,
}

impl Search<'_> {
    fn descend(&mut self) {
        let Some(sets) = self.candidates.get(self.picked.len()) else {
            self.left = self.left.saturating_sub(1);
            let weight = self.weight();
            // The first choice wins a tie, because it is the default.
            if self.best.as_ref().is_none_or(|(_, best)| weight > *best) {
                self.best = Some((self.picked.clone(), weight));
            }
            return;
        };
        for at in 0..sets.len() {
            self.picked.push(at);
            self.descend();
            self.picked.pop();
            if self.left == 0 {
                return;
            }
        }
    }

    fn weight(&self) -> Weight {
        let mut weight = Weight::default();
        for pair in self.couplings {
            let first = self.taking(pair.resource1, pair.group1);
            let second = self.taking(pair.resource2, pair.group2);
            let (Some(first), Some(second)) = (first, second) else {
                continue;
            };
            weight.total += u64::from(pair.weight);
            if is_forced(first) || is_forced(second) {
                weight.forced += u64::from(pair.weight);
            }
        }
        weight
    }

    /// Returns the policy of the entry that takes this group, if any.
    fn taking(&self, pool: u32, group: u32) -> Option<Policy> {
        let at = self.entries.iter().position(|entry| entry.pool == pool)?;
        let set = self.candidates[at].get(*self.picked.get(at)?)?.as_ref()?;
        set.contains(&(group as usize))
            .then(|| self.entries[at].policy)
    }
}

impl IndexedPool {
    /// Returns other sets of `count` groups that serve a need now.
    fn sets_that_serve(&self, need: Need, count: usize, except: &[usize]) -> Vec<Vec<usize>> {
        let mut except = except.to_vec();
        except.sort_unstable();
        let mut found = Vec::new();
        let mut set: Vec<usize> = (0..count).collect();
        for _ in 0..SETS_TRIED_MAX {
            if set != except && self.serves(&set, need) {
                found.push(set.clone());
                if found.len() == SETS_MAX {
                    break;
                }
            }
            if !next_set(&mut set, self.groups.len()) {
                break;
            }
        }
        found
    }
}

/// Advances to the next set of numbers below `end` in lexical order. Returns `false` after the
/// last.
fn next_set(set: &mut [usize], end: usize) -> bool {
    let count = set.len();
    let Some(at) = (0..count).rev().find(|at| set[*at] + count - at < end) else {
        return false;
    };
    set[at] += 1;
    for next in at + 1..count {
        set[next] = set[next - 1] + 1;
    }
    true
}

#[cfg(test)]
mod tests;
