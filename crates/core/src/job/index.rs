//! Task ids: their positions in the job, and sets of ids as a few ranges.

use std::collections::BTreeMap;

use super::TaskSlot;
use crate::bug;
use crate::range::{IdArray, IdRange};

/// Finds the submission and index of a task id. The ids of different submissions may interleave.
#[derive(Clone, Debug, Default)]
pub(super) struct IdIndex {
    /// The segments by their first id. Their spans do not cross.
    segments: BTreeMap<u32, Segment>,
    /// The segments whose span crosses an earlier one. They are rare, and searched linearly.
    crossing: Vec<Segment>,
    pub(super) max: Option<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    range: IdRange,
    slot: TaskSlot,
}

impl IdIndex {
    pub(super) fn find(&self, id: u32) -> Option<TaskSlot> {
        let segment = self.segment(id)?;
        let offset = segment.range.position(id)?;
        Some(TaskSlot::new(
            segment.slot.submit,
            segment.slot.index + offset,
        ))
    }

    /// Returns the segment that contains an id.
    fn segment(&self, id: u32) -> Option<&Segment> {
        let by_span = self
            .segments
            .range(..=id)
            // Spans do not cross, so only the last one that begins at or before the id can contain
            // it.
            .next_back()
            .map(|(_, segment)| segment);
        by_span
            .into_iter()
            .chain(&self.crossing)
            .find(|segment| segment.range.position(id).is_some())
    }

    /// Returns the first of `ids` that does not exist. Takes time linear in the number of ranges if
    /// these are as wide as segments.
    pub(super) fn first_missing(&self, ids: &IdArray) -> Option<u32> {
        for range in ids.ranges() {
            let mut at = 0;
            while at < range.count() {
                let id = range.first() + at * range.step();
                let Some(Segment { range: found, .. }) = self.segment(id) else {
                    return Some(id);
                };
                // In that case, the rest of the range within the segment exists, and is skipped in
                // one step.
                let is_dense = range.step().is_multiple_of(found.step());
                let covered = if is_dense {
                    (found.last() - id) / range.step()
                } else {
                    0
                };
                at = at.saturating_add(covered).saturating_add(1);
            }
        }
        None
    }

    /// Returns the positions of those `ids` that exist, as runs of neighbors in one submission.
    /// Takes time linear in the number of ranges and segments if their steps are equal.
    pub(super) fn runs(&self, ids: &IdArray) -> Vec<(TaskSlot, u32)> {
        let mut runs = Vec::new();
        for range in ids.ranges() {
            let mut rest = Some(*range);
            while let Some(wanted) = rest {
                let Some((id, segment)) = self
                    .first_in(&wanted)
                    .and_then(|id| Some((id, self.segment(id)?)))
                else {
                    break;
                };
                let offset = (id - segment.range.first()) / segment.range.step();
                let at = (id - wanted.first()) / wanted.step();
                let is_same = wanted.step() == segment.range.step();
                let count = if is_same {
                    (wanted.count() - at).min(segment.range.count() - offset)
                } else {
                    1
                };
                let slot = TaskSlot::new(segment.slot.submit, segment.slot.index + offset);
                runs.push((slot, count));
                rest = wanted.part(at + count, u32::MAX);
            }
        }
        runs
    }

    pub(super) fn insert(&mut self, submit: u32, ids: &IdArray) {
        let mut index = 0;
        for range in ids.ranges() {
            let segment = Segment {
                range: *range,
                slot: TaskSlot { submit, index },
            };
            let last_below = self.segments.range(..=range.last()).next_back();
            // The ids of two submissions may interleave, such as even and odd ones.
            if last_below.is_some_and(|(_, other)| other.range.last() >= range.first()) {
                self.crossing.push(segment);
            } else {
                self.segments.insert(range.first(), segment);
            }
            index += range.count();
        }
        self.max = self.max.max(ids.max());
    }

    /// Returns one of `ids` that already exists.
    pub(super) fn first_existing(&self, ids: &IdArray) -> Option<u32> {
        if ids
            .ranges()
            .iter()
            // The ids of a submission usually follow all others, so no search is needed.
            .all(|range| self.max.is_none_or(|max| range.first() > max))
        {
            return None;
        }
        ids.ranges().iter().find_map(|range| self.first_in(range))
    }

    /// Returns the lowest existing id in a range. The time depends on the number of segments passed
    /// over, and not on the width of the range.
    pub(super) fn first_in(&self, wanted: &IdRange) -> Option<u32> {
        let before = self.segments.range(..wanted.first()).next_back();
        let within = self.segments.range(wanted.first()..=wanted.last());
        // The spans do not cross, so the first segment with a common id contains the lowest one.
        let by_span = before
            .into_iter()
            .chain(within)
            .find_map(|(_, segment)| segment.range.first_common(wanted));
        let crossing = self.crossing.iter();
        let crossing = crossing.filter_map(|segment| segment.range.first_common(wanted));
        crossing.chain(by_span).min()
    }
}

/// The maximum number of ids in stepped ranges that are split up for merging. If there are more,
/// the ranges stay as they are.
const TAKEN_APART_MAX: u64 = 1 << 16;

/// Sorts ranges and merges neighbors. Splits up stepped ranges, unless they have too many ids.
pub(super) fn merge_ranges(mut ranges: Vec<IdRange>) -> IdArray {
    let stepped = ranges.iter().filter(|range| range.step() > 1);
    let count: u64 = stepped.map(|range| u64::from(range.count())).sum();
    if count > TAKEN_APART_MAX {
        // A list of so many single ids would take gigabytes.
        ranges.sort_unstable_by_key(IdRange::first);
        return IdArray::new(ranges).unwrap_or_default();
    }
    let mut parts: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
    for range in ranges {
        if range.step() == 1 {
            parts.push((range.first(), range.last()));
        } else {
            parts.extend(range.iter().map(|id| (id, id)));
        }
    }
    parts.sort_unstable();
    let mut merged: Vec<(u32, u32)> = Vec::with_capacity(parts.len());
    for (first, last) in parts {
        match merged.last_mut() {
            // Neighbors become one range, so that the ids of a job with gaps stay readable.
            Some(previous) if first.checked_sub(1) == Some(previous.1) => previous.1 = last,
            _ => merged.push((first, last)),
        }
    }
    let ranges = merged
        .into_iter()
        .filter_map(|(first, last)| IdRange::new(first, (last - first).checked_add(1)?, 1).ok())
        .collect();
    IdArray::new(ranges).unwrap_or_else(|error| {
        bug!("ranges that were merged are no set: {error}");
        IdArray::default()
    })
}
