//! Sets of task ids as ranges: the user's notation (`1-10,20-100:10`), and dense index sets.
//!
//! [`IdArray`] keeps ids in the given order and with the given steps; position `i` of an array is
//! the *index* of the task in the server. [`IndexSet`] is a set of such indices as disjoint ranges.
//! Neither needs memory per element.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::RangeInclusive;

/// `count` ids starting at `first`, `step` apart. `count >= 1`, `step >= 1`, the last id fits
/// `u32`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IdRange {
    first: u32,
    count: u32,
    step: u32,
    /// Distance of the written end from the last id: 1 for `1-10:2`.
    slack: u32,
}

/// A range that does not exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RangeError {
    /// Empty, step zero, or beyond `u32`.
    #[error("Invalid range")]
    Invalid,
    /// One id in two ranges.
    #[error("Ranges overlap")]
    Overlap,
    /// More ids than a `u32` counts.
    #[error("too many ids")]
    TooMany,
}

impl IdRange {
    /// Builds a range.
    ///
    /// # Errors
    ///
    /// [`RangeError::Invalid`] if `count` or `step` is 0 or the last id does not fit `u32`.
    pub fn new(first: u32, count: u32, step: u32) -> Result<Self, RangeError> {
        if count == 0 || step == 0 {
            return Err(RangeError::Invalid);
        }
        let last = u64::from(first) + u64::from(count - 1) * u64::from(step);
        if last > u64::from(u32::MAX) {
            return Err(RangeError::Invalid);
        }
        Ok(Self {
            first,
            count,
            step: if count == 1 { 1 } else { step },
            slack: 0,
        })
    }

    /// Remembers the end that the user wrote, so that `1-10:2` is shown as such. Ignores an end
    /// beyond `u32`, or one that would contain another id.
    #[must_use]
    pub const fn with_end(mut self, end: u32) -> Self {
        if let Some(slack) = end.checked_sub(self.last())
            && slack < self.step
        {
            self.slack = slack;
        }
        self
    }

    /// The end as the user wrote it; the last id unless the step skips it.
    #[must_use]
    pub const fn end(&self) -> u32 {
        self.last() + self.slack
    }

    /// A single id.
    #[must_use]
    pub const fn single(id: u32) -> Self {
        Self {
            first: id,
            count: 1,
            step: 1,
            slack: 0,
        }
    }

    /// First id.
    #[must_use]
    pub const fn first(&self) -> u32 {
        self.first
    }

    /// Number of ids.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Distance of neighbours; 1 for a single id.
    #[must_use]
    pub const fn step(&self) -> u32 {
        self.step
    }

    /// Last id.
    #[must_use]
    pub const fn last(&self) -> u32 {
        self.first + (self.count - 1) * self.step
    }

    /// Position of `id` in the range.
    #[must_use]
    pub const fn position(&self, id: u32) -> Option<u32> {
        if id < self.first || id > self.last() || !(id - self.first).is_multiple_of(self.step) {
            return None;
        }
        Some((id - self.first) / self.step)
    }

    /// The ids at positions `from..to`; `None` if there are none.
    #[must_use]
    pub const fn part(&self, from: u32, to: u32) -> Option<Self> {
        let to = if to < self.count { to } else { self.count };
        if from >= to {
            return None;
        }
        let count = to - from;
        Some(Self {
            first: self.first + from * self.step,
            count,
            step: if count == 1 { 1 } else { self.step },
            slack: 0,
        })
    }

    /// Lowest id that both ranges have, by the Chinese remainder theorem. O(log step).
    #[must_use]
    pub fn first_common(&self, other: &Self) -> Option<u32> {
        let (a, b) = (i128::from(self.step), i128::from(other.step));
        let (gcd, inverse) = gcd_with_inverse(a, b);
        let distance = i128::from(other.first) - i128::from(self.first);
        if distance % gcd != 0 {
            return None;
        }
        // `self.first + steps * a` is a member of both endless progressions, which meet every
        // `period`.
        let steps = (distance / gcd * inverse).rem_euclid(b / gcd);
        let (common, period) = (i128::from(self.first) + steps * a, a / gcd * b);
        let low = i128::from(self.first.max(other.first));
        let high = i128::from(self.last().min(other.last()));
        let found = low + (common - low).rem_euclid(period);
        u32::try_from(found).ok().filter(|_| found <= high)
    }

    /// Appends the range to a list, as a part of the last one if it continues it.
    pub fn append_to(self, ranges: &mut VecDeque<Self>) {
        if let Some(last) = ranges.back_mut()
            && last.step == 1
            && self.step == 1
            && last.last().checked_add(1) == Some(self.first)
            && let Some(count) = last.count.checked_add(self.count)
        {
            last.count = count;
        } else {
            ranges.push_back(self);
        }
    }

    /// All ids in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + use<> {
        let Self {
            first, count, step, ..
        } = *self;
        (0..count).map(move |i| first + i * step)
    }
}

impl fmt::Display for IdRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.count, self.step) {
            (1, _) => write!(f, "{}", self.first),
            (_, 1) => write!(f, "{}-{}", self.first, self.last()),
            (_, step) => write!(f, "{}-{}:{step}", self.first, self.end()),
        }
    }
}

/// Disjoint id ranges in the given order; may be empty.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct IdArray {
    ranges: Vec<IdRange>,
    /// Index of the first id of each range.
    starts: Vec<u32>,
    len: u32,
}

impl IdArray {
    /// Builds an array from ranges.
    ///
    /// # Errors
    ///
    /// [`RangeError::Overlap`] if an id occurs twice, [`RangeError::TooMany`] if the total exceeds
    /// `u32`.
    pub fn new(ranges: Vec<IdRange>) -> Result<Self, RangeError> {
        if has_overlap(&ranges) {
            return Err(RangeError::Overlap);
        }
        Self::from_disjoint(ranges)
    }

    fn from_disjoint(ranges: Vec<IdRange>) -> Result<Self, RangeError> {
        let mut starts = Vec::with_capacity(ranges.len());
        let mut len = 0u32;
        for range in &ranges {
            starts.push(len);
            len = len.checked_add(range.count).ok_or(RangeError::TooMany)?;
        }
        Ok(Self {
            ranges,
            starts,
            len,
        })
    }

    /// A single id.
    #[must_use]
    pub fn single(id: u32) -> Self {
        Self {
            ranges: vec![IdRange::single(id)],
            starts: vec![0],
            len: 1,
        }
    }

    /// `first, first + 1, …`: `count` consecutive ids; empty for 0.
    ///
    /// # Errors
    ///
    /// [`RangeError::Invalid`] if the last id does not fit `u32`.
    pub fn consecutive(first: u32, count: u32) -> Result<Self, RangeError> {
        if count == 0 {
            return Ok(Self::default());
        }
        Self::from_disjoint(vec![IdRange::new(first, count, 1)?])
    }

    /// Merges sorted, distinct ids into ranges of step 1.
    ///
    /// # Errors
    ///
    /// [`RangeError::Overlap`] if the ids are not strictly ascending.
    pub fn from_sorted(ids: impl IntoIterator<Item = u32>) -> Result<Self, RangeError> {
        let mut ranges: Vec<IdRange> = Vec::new();
        for id in ids {
            match ranges.last_mut() {
                Some(range) if id <= range.last() => return Err(RangeError::Overlap),
                Some(range) if id == range.last() + 1 => range.count += 1,
                _ => ranges.push(IdRange::single(id)),
            }
        }
        Self::from_disjoint(ranges)
    }

    /// Number of ids.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether there is no id.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The ranges as given.
    #[must_use]
    pub fn ranges(&self) -> &[IdRange] {
        &self.ranges
    }

    /// Largest id.
    #[must_use]
    pub fn max(&self) -> Option<u32> {
        self.ranges.iter().map(IdRange::last).max()
    }

    /// Id at `index`. O(log ranges).
    #[must_use]
    pub fn get(&self, index: u32) -> Option<u32> {
        if index >= self.len {
            return None;
        }
        let slot = self.starts.partition_point(|start| *start <= index) - 1;
        let range = self.ranges[slot];
        Some(range.first + (index - self.starts[slot]) * range.step)
    }

    /// Index of `id`. O(ranges).
    #[must_use]
    pub fn position(&self, id: u32) -> Option<u32> {
        self.ranges
            .iter()
            .zip(&self.starts)
            .find_map(|(range, start)| range.position(id).map(|offset| start + offset))
    }

    /// All ids in index order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranges.iter().flat_map(IdRange::iter)
    }

    /// The ids from `index` on that belong to the range there; `None` beyond the end.
    #[must_use]
    pub fn range_from(&self, index: u32) -> Option<IdRange> {
        let slot = self.starts.partition_point(|start| *start <= index);
        let slot = slot.checked_sub(1)?;
        let range = self.ranges.get(slot)?;
        range.part(index - self.starts.get(slot)?, range.count)
    }

    /// Separates existing from unknown ids; both keep their order. `existing` returns the existing
    /// ids of a span, ascending. O(ranges + existing ids in their spans), however many ids the
    /// array has.
    pub fn split<I: IntoIterator<Item = u32>>(
        &self,
        existing: impl Fn(RangeInclusive<u32>) -> I,
    ) -> (Vec<u32>, Self) {
        let (mut found, mut missing) = (Vec::new(), Vec::new());
        for range in &self.ranges {
            let mut next = 0;
            for id in existing(range.first..=range.last()) {
                let Some(position) = range.position(id) else {
                    continue;
                };
                missing.extend(range.part(next, position));
                found.push(id);
                next = position + 1;
            }
            missing.extend(range.part(next, range.count));
        }
        // Parts of disjoint ranges are disjoint, and no more ids than before.
        (found, Self::from_disjoint(missing).unwrap_or_default())
    }

    /// The ids at indices `from..to` as ranges; `to` is cut at the length.
    #[must_use]
    pub fn slice(&self, from: u32, to: u32) -> Vec<IdRange> {
        let to = to.min(self.len);
        let mut slot = self
            .starts
            .partition_point(|start| *start <= from)
            .saturating_sub(1);
        let mut parts = Vec::new();
        let mut index = from;
        while index < to {
            let (range, start) = (self.ranges[slot], self.starts[slot]);
            parts.extend(range.part(index - start, to - start));
            index = start + range.count;
            slot += 1;
        }
        parts
    }
}

impl fmt::Display for IdArray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, range) in self.ranges.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            fmt::Display::fmt(range, f)?;
        }
        Ok(())
    }
}

/// Whether any id occurs twice. Compares ranges only where their spans cross: O(r log r) plus the
/// crossing pairs.
fn has_overlap(ranges: &[IdRange]) -> bool {
    let mut sorted: Vec<&IdRange> = ranges.iter().collect();
    sorted.sort_by_key(|range| range.first);
    let mut open: Vec<&IdRange> = Vec::new();
    for range in sorted {
        open.retain(|other| other.last() >= range.first);
        if open.iter().any(|other| other.first_common(range).is_some()) {
            return true;
        }
        open.push(range);
    }
    false
}

/// Greatest common divisor of two positive numbers, and the inverse of `a / gcd` modulo `b / gcd`
/// (extended Euclidean algorithm).
const fn gcd_with_inverse(a: i128, b: i128) -> (i128, i128) {
    let (mut rest, mut next) = (a, b);
    let (mut factor, mut next_factor) = (1, 0);
    while next != 0 {
        let quotient = rest / next;
        (rest, next) = (next, rest - quotient * next);
        (factor, next_factor) = (next_factor, factor - quotient * next_factor);
    }
    (rest, factor)
}

/// A set of `u32` indices as disjoint, non-adjacent half-open ranges.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct IndexSet {
    /// start -> end (exclusive)
    ranges: BTreeMap<u32, u32>,
    len: u32,
}

impl IndexSet {
    /// The empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            ranges: BTreeMap::new(),
            len: 0,
        }
    }

    /// Number of members.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Whether there is no member.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether `index` is a member. O(log ranges).
    #[must_use]
    pub fn contains(&self, index: u32) -> bool {
        self.ranges
            .range(..=index)
            .next_back()
            .is_some_and(|(_, end)| index < *end)
    }

    /// Adds `from..to`; existing members stay.
    pub fn insert_range(&mut self, from: u32, to: u32) {
        if from >= to {
            return;
        }
        let (mut start, mut end) = (from, to);
        // Swallow every range that touches `from..to`.
        while let Some((&s, &e)) = self.ranges.range(..=end).next_back() {
            if e < start {
                break;
            }
            self.ranges.remove(&s);
            self.len -= e - s;
            start = start.min(s);
            end = end.max(e);
        }
        self.ranges.insert(start, end);
        self.len += end - start;
    }

    /// Adds one index.
    pub fn insert(&mut self, index: u32) {
        if let Some(end) = index.checked_add(1) {
            self.insert_range(index, end);
        }
    }

    /// Removes `from..to`, as far as present.
    pub fn remove_range(&mut self, from: u32, to: u32) {
        if from >= to {
            return;
        }
        while let Some((&start, &end)) = self.ranges.range(..to).next_back() {
            if end <= from {
                break;
            }
            self.ranges.remove(&start);
            self.len -= end - start;
            if start < from {
                self.ranges.insert(start, from);
                self.len += from - start;
            }
            if end > to {
                self.ranges.insert(to, end);
                self.len += end - to;
            }
        }
    }

    /// Removes one index; returns whether it was a member.
    pub fn remove(&mut self, index: u32) -> bool {
        let before = self.len;
        if let Some(end) = index.checked_add(1) {
            self.remove_range(index, end);
        }
        self.len < before
    }

    /// Removes the smallest members as one range of at most `limit`; `None` if empty or `limit` is
    /// 0.
    pub fn pop_front(&mut self, limit: u32) -> Option<(u32, u32)> {
        if limit == 0 {
            return None;
        }
        let (&start, &end) = self.ranges.iter().next()?;
        let to = end.min(start.saturating_add(limit));
        self.remove_range(start, to);
        Some((start, to))
    }

    /// The ranges `(from, to)`, `to` exclusive, ascending.
    pub fn ranges(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.ranges.iter().map(|(start, end)| (*start, *end))
    }

    /// All members, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranges().flat_map(|(from, to)| from..to)
    }
}

#[cfg(test)]
mod tests;
