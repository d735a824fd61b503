//! Chooses how many indices each group of a pool contributes, by policy.
//!
//! First the number of groups is chosen, then the distribution of indices over them. A fraction
//! comes from one index: a partly used one if that needs no additional group, and otherwise a
//! completely free one. Every choice is deterministic. It costs O(groups²) at worst, and O(1) for
//! the usual single group.

use super::{FULL, GrantedIndex, IndexedPool, PoolEntry};
use crate::resource::amount::Amount;
use crate::resource::request::Policy;

/// A request to an indexed pool.
#[derive(Clone, Copy)]
pub(super) struct Need {
    /// The number of complete indices.
    whole: u32,
    /// The units of one further index, 0 if there is none.
    fraction: u32,
}

/// The indices that the groups contribute.
struct Choice {
    /// The number of completely free indices to take from each chosen group.
    takes: Vec<(usize, u32)>,
    /// The partly used index for the fraction. `None` if the last index is taken in part.
    partial: Option<u32>,
}

/// Distributes a number of indices over groups with the given room.
type Spread = fn(&mut [(usize, u32)], &[u32], u32) -> Option<()>;

impl Need {
    pub(super) fn new(units: u64) -> Self {
        let amount = Amount(units);
        Self {
            whole: u32::try_from(amount.whole_part()).unwrap_or(u32::MAX),
            fraction: u32::try_from(amount.fraction_units()).unwrap_or(0),
        }
    }

    /// Returns the number of completely free indices to take, including one for the fraction if
    /// needed.
    const fn whole_only(self) -> u32 {
        self.whole.saturating_add((self.fraction > 0) as u32)
    }

    /// Returns the number of completely free indices to take beside a partly used one.
    const fn beside(self, partial: Option<u32>) -> u32 {
        match partial {
            Some(_) => self.whole,
            None => self.whole_only(),
        }
    }
}

impl IndexedPool {
    /// Returns whether the pool can serve the amount now with this policy.
    pub(super) fn can_serve(&self, entry: &PoolEntry) -> bool {
        let need = Need::new(entry.units);
        let whole: u64 = self.groups.iter().map(|group| u64::from(group.whole)).sum();
        let enough = whole >= u64::from(need.whole_only())
            || (need.fraction > 0
                && whole >= u64::from(need.whole)
                && self
                    .groups
                    .iter()
                    .any(|group| self.best_partial(group, need).is_some()));
        enough
            && (entry.groups_max == u32::MAX
                || self
                    .fewest_groups(need)
                    .is_some_and(|(count, _)| count <= entry.groups_max))
    }

    /// Takes the amount of the entry. Returns `None`, without taking anything, if it cannot be
    /// served. `groups` are the groups for compact and tight policies, if they have been chosen.
    pub(super) fn take(
        &mut self,
        entry: &PoolEntry,
        groups: Option<Vec<usize>>,
    ) -> Option<Vec<GrantedIndex>> {
        let need = Need::new(entry.units);
        let choice = match entry.policy {
            Policy::Compact | Policy::ForceCompact => {
                self.choose_few(need, groups, spread_evenly)?
            }
            Policy::Tight | Policy::ForceTight => self.choose_few(need, groups, fill_in_order)?,
            Policy::Scatter | Policy::All => self.choose_many(need)?,
        };
        let mut granted = Vec::with_capacity(need.whole_only() as usize);
        for (group, count) in &choice.takes {
            for _ in 0..*count {
                granted.push(self.take_whole(*group, FULL)?);
            }
        }
        if need.fraction > 0 {
            let part = match choice.partial {
                Some(index) => self.take_partial(index, need.fraction)?,
                None => {
                    let last = granted.pop()?;
                    let units = FULL - need.fraction;
                    self.give_back(GrantedIndex {
                        index: last.index,
                        units,
                    });
                    GrantedIndex {
                        index: last.index,
                        units: need.fraction,
                    }
                }
            };
            granted.push(part);
        }
        Some(granted)
    }

    /// Returns the number of groups that an empty pool needs for this many indices.
    pub(super) fn groups_needed_when_empty(&self, indices: u64) -> u32 {
        let mut sizes: Vec<u64> = self
            .groups
            .iter()
            .map(|group| u64::from(group.size))
            .collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        count_until(sizes.into_iter(), indices).unwrap_or(u32::MAX)
    }

    /// Returns the partly used index of the group with the smallest sufficient free part.
    fn best_partial(&self, group: &super::Group, need: Need) -> Option<u32> {
        let fitting = group.partial.iter().copied();
        fitting
            .filter(|index| self.free[*index as usize] >= need.fraction)
            .min_by_key(|index| (self.free[*index as usize], *index))
    }

    /// Returns the minimum number of groups that serve the need now, and the partly used index for
    /// its fraction.
    fn fewest_groups(&self, need: Need) -> Option<(u32, Option<u32>)> {
        let by_whole = self.groups_by_whole();
        let wholes = |skip: usize| {
            let others = by_whole.iter().copied().filter(move |group| *group != skip);
            others.map(|group| u64::from(self.groups[group].whole))
        };
        let without = count_until(wholes(usize::MAX), u64::from(need.whole_only()));
        let with_partial = (need.fraction > 0).then(|| {
            let candidates = self
                .groups
                .iter()
                .enumerate()
                .filter_map(|(position, group)| {
                    let index = self.best_partial(group, need)?;
                    let rest = need.whole.saturating_sub(group.whole);
                    let more = count_until(wholes(position), u64::from(rest))?;
                    Some((more + 1, self.free[index as usize], index))
                });
            candidates.min()
        });
        match (without, with_partial.flatten()) {
            (Some(count), Some((other, _, _))) if count < other => Some((count, None)),
            (_, Some((count, _, index))) => Some((count, Some(index))),
            (Some(count), None) => Some((count, None)),
            (None, None) => None,
        }
    }

    /// Returns the positions of the groups, those with the most completely free indices first.
    fn groups_by_whole(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.groups.len()).collect();
        order.sort_by_key(|group| std::cmp::Reverse(self.groups[*group].whole));
        order
    }

    /// Returns the default groups for policies that use few groups, and the partly used index.
    pub(super) fn fewest_chosen(&self, need: Need) -> Option<(Vec<usize>, Option<u32>)> {
        let (count, partial) = self.fewest_groups(need)?;
        let wanted = need.beside(partial);
        let home = partial.map(|index| self.group_of[index as usize] as usize);
        let mut chosen: Vec<usize> = home.into_iter().collect();
        let others = self
            .groups_by_whole()
            .into_iter()
            .filter(|group| Some(*group) != home);
        chosen.extend(others.take(count as usize - chosen.len()));
        self.swap_last_for_closest_fit(&mut chosen, home, wanted);
        Some((chosen, partial))
    }

    /// Returns whether exactly these groups serve the need.
    pub(super) fn serves(&self, groups: &[usize], need: Need) -> bool {
        let whole: u64 = groups
            .iter()
            .map(|group| u64::from(self.groups[*group].whole))
            .sum();
        whole >= u64::from(need.whole_only())
            || whole >= u64::from(need.whole) && self.partial_of(groups, need).is_some()
    }

    /// Returns the partly used index of these groups with the smallest sufficient free part.
    fn partial_of(&self, groups: &[usize], need: Need) -> Option<u32> {
        if need.fraction == 0 {
            return None;
        }
        let partials = groups
            .iter()
            .filter_map(|group| self.best_partial(&self.groups[*group], need));
        partials.min_by_key(|index| (self.free[*index as usize], *index))
    }

    /// Chooses as few groups as possible. `spread` distributes the indices over them.
    fn choose_few(&self, need: Need, groups: Option<Vec<usize>>, spread: Spread) -> Option<Choice> {
        let (mut chosen, partial) = match groups {
            Some(groups) => {
                let partial = self.partial_of(&groups, need);
                (groups, partial)
            }
            None => self.fewest_chosen(need)?,
        };
        let wanted = need.beside(partial);
        chosen.sort_by_key(|group| (std::cmp::Reverse(self.groups[*group].whole), *group));
        let rooms: Vec<u32> = chosen
            .iter()
            .map(|group| self.groups[*group].whole)
            .collect();
        let mut takes: Vec<(usize, u32)> = chosen.into_iter().map(|group| (group, 0)).collect();
        spread(&mut takes, &rooms, wanted)?;
        Some(Choice { takes, partial })
    }

    /// Replaces the smallest chosen group with the smallest one that is still sufficient, so that
    /// large groups stay free for requests that need them.
    fn swap_last_for_closest_fit(&self, chosen: &mut Vec<usize>, home: Option<usize>, wanted: u32) {
        if chosen.last().copied() == home {
            return;
        }
        let Some(last) = chosen.pop() else { return };
        let kept: u32 = chosen.iter().map(|group| self.groups[*group].whole).sum();
        let rest = wanted.saturating_sub(kept);
        let candidates = (0..self.groups.len()).filter(|group| !chosen.contains(group));
        let fitting = candidates.filter(|group| self.groups[*group].whole >= rest.max(1));
        let best = fitting.min_by_key(|group| (self.groups[*group].whole, *group));
        chosen.push(best.unwrap_or(last));
    }

    /// Chooses as many groups as possible, with one index from each in turn.
    fn choose_many(&self, need: Need) -> Option<Choice> {
        let partials = self.groups.iter().filter_map(|group| {
            let index = self.best_partial(group, need)?;
            Some((group.whole > 0, self.free[index as usize], index))
        });
        let partial = if need.fraction > 0 {
            partials.min().map(|best| best.2)
        } else {
            None
        };
        let wanted = need.beside(partial);
        // The group with the fraction had its turn in the first round.
        let served = partial.map(|index| self.group_of[index as usize] as usize);
        let mut takes: Vec<(usize, u32)> = (0..self.groups.len()).map(|group| (group, 0)).collect();
        let mut left = wanted;
        let mut first_round = true;
        while left > 0 {
            let before = left;
            for (group, count) in &mut takes {
                let skipped = first_round && Some(*group) == served;
                if left > 0 && !skipped && *count < self.groups[*group].whole {
                    *count += 1;
                    left -= 1;
                }
            }
            if left == before && !first_round {
                return None;
            }
            first_round = false;
        }
        Some(Choice { takes, partial })
    }
}

/// Returns the length of the shortest prefix with a sum of at least `goal`, which is 0 for a goal
/// of 0.
fn count_until(numbers: impl Iterator<Item = u64>, goal: u64) -> Option<u32> {
    if goal == 0 {
        return Some(0);
    }
    let mut sum = 0;
    for (position, number) in numbers.enumerate() {
        sum += number;
        if sum >= goal {
            return u32::try_from(position + 1).ok();
        }
    }
    None
}

/// Gives all groups equal shares, as far as they have room.
fn spread_evenly(takes: &mut [(usize, u32)], rooms: &[u32], mut left: u32) -> Option<()> {
    while left > 0 {
        let before = left;
        for ((_, count), room) in takes.iter_mut().zip(rooms) {
            if left > 0 && *count < *room {
                *count += 1;
                left -= 1;
            }
        }
        if left == before {
            return None;
        }
    }
    Some(())
}

/// Uses up one group before the next.
fn fill_in_order(takes: &mut [(usize, u32)], rooms: &[u32], mut left: u32) -> Option<()> {
    for ((_, count), room) in takes.iter_mut().zip(rooms) {
        *count = left.min(*room);
        left -= *count;
    }
    (left == 0).then_some(())
}
