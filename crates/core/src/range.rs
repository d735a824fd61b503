//! Sets of task ids as ranges: the user's notation (`1-10,20-100:10`) and dense sets of indices.
//!
//! [`IdArray`] keeps ids in the given order and with the given steps. Position `i` of an array is
//! the *index* of the task in the server. [`IndexSet`] is a set of such indices as disjoint ranges.
//! Neither of them needs memory per element.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fmt;
use std::ops::RangeInclusive;

/// `count` ids, starting at `first` and `step` apart. `count` and `step` are at least 1, and the
/// last id fits into a `u32`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct IdRange {
    first: u32,
    count: u32,
    step: u32,
    /// The distance from the last id to the end that the user wrote: 1 for `1-10:2`.
    slack: u32,
}

/// A range that is not valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RangeError {
    /// The range is empty, has a step of zero, or exceeds `u32`.
    #[error("Invalid range")]
    Invalid,
    /// An id is in two of the ranges.
    #[error("Ranges overlap")]
    Overlap,
    /// There are more ids than a `u32` can count.
    #[error("too many ids")]
    TooMany,
    /// There are more than [`ID_RANGES_MAX`] ranges.
    #[error("more than {ID_RANGES_MAX} ranges")]
    TooManyRanges,
    /// Comparing the ranges would take long, see [`IdArray::from_user`].
    #[error("Too many interleaved ranges")]
    Interleaved,
}

/// The maximum number of ranges in an id array of a user. Ids without any pattern need one range
/// each, so larger sets should be split over several requests.
pub const ID_RANGES_MAX: usize = 1 << 22;

/// The maximum number of pairs of overlapping ranges if one range of each pair has a step. Each
/// pair is compared.
const CROSSINGS_MAX: usize = 1 << 20;

/// The same limit for pairs where both ranges have a step. It also bounds how often a selector
/// scans the same existing ids: once per overlapping range.
const STEPPED_CROSSINGS_MAX: usize = 1 << 10;

impl IdRange {
    /// Creates a range.
    ///
    /// # Errors
    ///
    /// Returns [`RangeError::Invalid`] if `count` or `step` is 0, or the last id does not fit into
    /// a `u32`.
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

    /// Stores the end that the user wrote, so that `1-10:2` is shown unchanged. Ignores an end that
    /// exceeds `u32` or would include another id.
    #[must_use]
    pub const fn with_end(mut self, end: u32) -> Self {
        if let Some(slack) = end.checked_sub(self.last())
            && slack < self.step
        {
            self.slack = slack;
        }
        self
    }

    /// Returns the end that the user wrote, which is the last id unless the step skips it.
    #[must_use]
    pub const fn end(&self) -> u32 {
        self.last() + self.slack
    }

    /// Creates a range with a single id.
    #[must_use]
    pub const fn single(id: u32) -> Self {
        Self {
            first: id,
            count: 1,
            step: 1,
            slack: 0,
        }
    }

    /// Returns the first id.
    #[must_use]
    pub const fn first(&self) -> u32 {
        self.first
    }

    /// Returns the number of ids.
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Returns the distance between neighbors, which is 1 for a single id.
    #[must_use]
    pub const fn step(&self) -> u32 {
        self.step
    }

    /// Returns the last id.
    #[must_use]
    pub const fn last(&self) -> u32 {
        self.first + (self.count - 1) * self.step
    }

    /// Returns the position of `id` in the range.
    #[must_use]
    pub const fn position(&self, id: u32) -> Option<u32> {
        if id < self.first || id > self.last() || !(id - self.first).is_multiple_of(self.step) {
            return None;
        }
        Some((id - self.first) / self.step)
    }

    /// Returns the ids at positions `from..to`, or `None` if there are none.
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

    /// Returns the lowest id in both ranges, by the Chinese remainder theorem. Takes O(log step).
    #[must_use]
    pub fn first_common(&self, other: &Self) -> Option<u32> {
        let (a, b) = (i128::from(self.step), i128::from(other.step));
        let (gcd, inverse) = gcd_with_inverse(a, b);
        let distance = i128::from(other.first) - i128::from(self.first);
        if distance % gcd != 0 {
            return None;
        }
        // `self.first + steps * a` is in both infinite progressions. They meet again after every
        // `period`.
        let steps = (distance / gcd * inverse).rem_euclid(b / gcd);
        let (common, period) = (i128::from(self.first) + steps * a, a / gcd * b);
        let low = i128::from(self.first.max(other.first));
        let high = i128::from(self.last().min(other.last()));
        let found = low + (common - low).rem_euclid(period);
        u32::try_from(found).ok().filter(|_| found <= high)
    }

    /// Appends the range to a list. If it continues the last range of the list, that range is
    /// extended.
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

    /// Returns all ids in order.
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

/// Disjoint id ranges in the given order. May be empty.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct IdArray {
    ranges: Vec<IdRange>,
    /// The index of the first id of each range.
    starts: Vec<u32>,
    len: u32,
}

impl IdArray {
    /// Creates an array from ranges.
    ///
    /// # Errors
    ///
    /// Returns [`RangeError::Overlap`] if an id occurs twice, and [`RangeError::TooMany`] if the
    /// total exceeds `u32`.
    pub fn new(ranges: Vec<IdRange>) -> Result<Self, RangeError> {
        if has_overlap(&ranges) {
            return Err(RangeError::Overlap);
        }
        Self::from_disjoint(ranges)
    }

    /// Like [`IdArray::new`], for ranges that a user chose. Bounds the cost of the overlap check,
    /// which grows with the number of pairs of interleaved ranges. Typical input (`0-100:10,200`,
    /// a list of ids) has few. O(r log r).
    ///
    /// # Errors
    ///
    /// Returns [`RangeError::TooManyRanges`] and [`RangeError::Interleaved`] as well.
    pub fn from_user(ranges: Vec<IdRange>) -> Result<Self, RangeError> {
        if ranges.len() > ID_RANGES_MAX {
            return Err(RangeError::TooManyRanges);
        }
        if is_interleaved(&ranges) {
            return Err(RangeError::Interleaved);
        }
        Self::new(ranges)
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

    /// Creates an array with a single id.
    #[must_use]
    pub fn single(id: u32) -> Self {
        Self {
            ranges: vec![IdRange::single(id)],
            starts: vec![0],
            len: 1,
        }
    }

    /// Creates an array of `count` consecutive ids starting at `first`. Empty if `count` is 0.
    ///
    /// # Errors
    ///
    /// Returns [`RangeError::Invalid`] if the last id does not fit into a `u32`.
    pub fn consecutive(first: u32, count: u32) -> Result<Self, RangeError> {
        if count == 0 {
            return Ok(Self::default());
        }
        Self::from_disjoint(vec![IdRange::new(first, count, 1)?])
    }

    /// Merges sorted, distinct ids into ranges with step 1.
    ///
    /// # Errors
    ///
    /// Returns [`RangeError::Overlap`] if the ids are not strictly ascending.
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

    /// Returns the number of ids.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Returns whether there are no ids.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the ranges as given.
    #[must_use]
    pub fn ranges(&self) -> &[IdRange] {
        &self.ranges
    }

    /// Returns the largest id.
    #[must_use]
    pub fn max(&self) -> Option<u32> {
        self.ranges.iter().map(IdRange::last).max()
    }

    /// Returns the id at `index`. Takes O(log ranges).
    #[must_use]
    pub fn get(&self, index: u32) -> Option<u32> {
        if index >= self.len {
            return None;
        }
        let slot = self.starts.partition_point(|start| *start <= index) - 1;
        let range = self.ranges[slot];
        Some(range.first + (index - self.starts[slot]) * range.step)
    }

    /// Returns the index of `id`. Takes O(ranges).
    #[must_use]
    pub fn position(&self, id: u32) -> Option<u32> {
        self.ranges
            .iter()
            .zip(&self.starts)
            .find_map(|(range, start)| range.position(id).map(|offset| start + offset))
    }

    /// Returns all ids in index order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranges.iter().flat_map(IdRange::iter)
    }

    /// Returns the ids from `index` to the end of the range that contains it. `None` beyond the
    /// end.
    #[must_use]
    pub fn range_from(&self, index: u32) -> Option<IdRange> {
        let slot = self.starts.partition_point(|start| *start <= index);
        let slot = slot.checked_sub(1)?;
        let range = self.ranges.get(slot)?;
        range.part(index - self.starts.get(slot)?, range.count)
    }

    /// Separates existing ids from unknown ones, both in their original order. `existing` returns
    /// the existing ids in a span in ascending order. Takes O(ranges + existing ids in their
    /// spans), no matter how many ids the array has.
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
        // Parts of disjoint ranges are disjoint, and there are no more ids than before.
        (found, Self::from_disjoint(missing).unwrap_or_default())
    }

    /// Returns the ids at indices `from..to` as ranges. `to` is limited to the length.
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

/// Returns whether any id occurs twice. Compares only ranges whose spans overlap, which takes O(r
/// log r) plus the number of such pairs.
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

/// Returns whether more pairs of ranges with steps overlap than may be compared.
fn is_interleaved(ranges: &[IdRange]) -> bool {
    if ranges.iter().all(|range| range.step == 1) {
        return false;
    }
    let mut sorted: Vec<&IdRange> = ranges.iter().collect();
    sorted.sort_unstable_by_key(|range| range.first);
    let mut open_stepped = BinaryHeap::new();
    let (mut crossings, mut stepped) = (0_usize, 0_usize);
    for range in sorted {
        while open_stepped
            .peek()
            .is_some_and(|Reverse(last)| *last < range.first)
        {
            open_stepped.pop();
        }
        crossings += open_stepped.len();
        if range.step > 1 {
            stepped += open_stepped.len();
            open_stepped.push(Reverse(range.last()));
        }
        if crossings > CROSSINGS_MAX || stepped > STEPPED_CROSSINGS_MAX {
            return true;
        }
    }
    false
}

/// Returns the greatest common divisor of two positive numbers, and the inverse of `a / gcd` modulo
/// `b / gcd` (extended Euclidean algorithm).
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
    /// Maps the start of each range to its end (exclusive).
    ranges: BTreeMap<u32, u32>,
    len: u32,
}

impl IndexSet {
    /// Creates an empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            ranges: BTreeMap::new(),
            len: 0,
        }
    }

    /// Returns the number of members.
    #[must_use]
    pub const fn len(&self) -> u32 {
        self.len
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether `index` is a member. Takes O(log ranges).
    #[must_use]
    pub fn contains(&self, index: u32) -> bool {
        self.ranges
            .range(..=index)
            .next_back()
            .is_some_and(|(_, end)| index < *end)
    }

    /// Returns the members in `from..to` as ranges.
    pub fn within(&self, from: u32, to: u32) -> impl Iterator<Item = (u32, u32)> + '_ {
        let before = self.ranges.range(..from).next_back();
        let ranges = before
            .into_iter()
            .chain(self.ranges.range(from..to.max(from)));
        let cut = ranges.map(move |(start, end)| ((*start).max(from), (*end).min(to)));
        cut.filter(|(start, end)| start < end)
    }

    /// Returns the number of consecutive indices, starting with this one and at most `count`, that
    /// are all members or all non-members.
    #[must_use]
    pub fn alike(&self, index: u32, count: u32) -> u32 {
        let before = self.ranges.range(..=index).next_back();
        let end = match before.filter(|(_, end)| index < **end) {
            Some((_, end)) => *end,
            None => match self.ranges.range(index..).next() {
                Some((start, _)) => *start,
                None => u32::MAX,
            },
        };
        count.min(end - index)
    }

    /// Adds the indices in `from..to`. Existing members stay.
    pub fn insert_range(&mut self, from: u32, to: u32) {
        if from >= to {
            return;
        }
        let (mut start, mut end) = (from, to);
        // Merges all ranges that touch `from..to`.
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

    /// Adds an index.
    pub fn insert(&mut self, index: u32) {
        if let Some(end) = index.checked_add(1) {
            self.insert_range(index, end);
        }
    }

    /// Removes the members in `from..to`.
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

    /// Removes an index. Returns whether it was a member.
    pub fn remove(&mut self, index: u32) -> bool {
        let before = self.len;
        if let Some(end) = index.checked_add(1) {
            self.remove_range(index, end);
        }
        self.len < before
    }

    /// Removes the smallest members as one range of at most `limit`. Returns `None` if the set is
    /// empty or `limit` is 0.
    pub fn pop_front(&mut self, limit: u32) -> Option<(u32, u32)> {
        if limit == 0 {
            return None;
        }
        let (&start, &end) = self.ranges.iter().next()?;
        let to = end.min(start.saturating_add(limit));
        self.remove_range(start, to);
        Some((start, to))
    }

    /// Returns the ranges `(from, to)` in ascending order, with `to` exclusive.
    pub fn ranges(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.ranges.iter().map(|(start, end)| (*start, *end))
    }

    /// Returns all members in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranges().flat_map(|(from, to)| from..to)
    }
}

#[cfg(test)]
mod tests;
