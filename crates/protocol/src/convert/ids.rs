//! Id ranges, id arrays, entries and selectors.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hq_core::range::{IdArray, IdRange};
use hq_core::selector::Selector;
use hq_core::template::Entries;

use super::wire::{FromWire, ToWire, each, field, one_of, received};
use super::{ConvertError, Within, at_most, required};
use crate::{client, common};

/// The maximum number of ranges in an id array. Ids without any pattern need one range each, so
/// larger sets should be split over several submits.
pub const ID_RANGES_MAX: usize = 1 << 22;

/// The maximum number of pairs of overlapping ranges if one range of each pair has a step. Each
/// pair is compared.
const CROSSINGS_MAX: usize = 1 << 20;

/// The same limit for pairs in which both ranges have a step. It also bounds how often a selector
/// scans the same existing ids: once per overlapping range.
const STEPPED_CROSSINGS_MAX: usize = 1 << 10;

impl TryFrom<common::IdRange> for IdRange {
    type Error = ConvertError;

    fn try_from(message: common::IdRange) -> Result<Self, ConvertError> {
        let common::IdRange {
            first,
            count,
            step,
            slack,
        } = message;
        let range = Self::new(first, count, step.max(1))
            .map_err(|error| ConvertError::rule("count", error))?;
        // The slack is only for display, so an invalid one is not a reason to reject the range.
        Ok(range.with_end(range.last().saturating_add(slack)))
    }
}

impl From<&IdRange> for common::IdRange {
    fn from(range: &IdRange) -> Self {
        // Omitting the default step saves two bytes.
        let step = if range.step() == 1 { 0 } else { range.step() };
        Self {
            first: range.first(),
            count: range.count(),
            step,
            slack: range.end() - range.last(),
        }
    }
}

impl TryFrom<common::IdArray> for IdArray {
    type Error = ConvertError;

    fn try_from(message: common::IdArray) -> Result<Self, ConvertError> {
        let ranges: Vec<IdRange> = each(ID_RANGES_MAX)("ranges", message.ranges)?;
        check_crossings(&ranges)?;
        Self::new(ranges).map_err(|error| ConvertError::rule("ranges", error))
    }
}

impl From<&IdArray> for common::IdArray {
    fn from(array: &IdArray) -> Self {
        Self {
            ranges: array.ranges().iter().map(common::IdRange::from).collect(),
        }
    }
}

field!(IdArray = common::IdArray);

/// Bounds the cost of the overlap check, which grows with the number of pairs of interleaved
/// ranges. Typical user input (`0-100:10,200`, a list of ids) has few. O(r log r).
fn check_crossings(ranges: &[IdRange]) -> Result<(), ConvertError> {
    if ranges.iter().all(|range| range.step() == 1) {
        return Ok(());
    }
    let mut sorted: Vec<&IdRange> = ranges.iter().collect();
    sorted.sort_unstable_by_key(|range| range.first());
    let mut open_stepped = BinaryHeap::new();
    let (mut crossings, mut stepped) = (0_usize, 0_usize);
    for range in sorted {
        while open_stepped
            .peek()
            .is_some_and(|Reverse(last)| *last < range.first())
        {
            open_stepped.pop();
        }
        crossings += open_stepped.len();
        if range.step() > 1 {
            stepped += open_stepped.len();
            open_stepped.push(Reverse(range.last()));
        }
        if crossings > CROSSINGS_MAX || stepped > STEPPED_CROSSINGS_MAX {
            let found = format_args!("{} ranges that are too entangled", ranges.len());
            return Err(ConvertError::invalid(
                "ranges",
                "few interleaved ranges",
                found,
            ));
        }
    }
    Ok(())
}

impl TryFrom<common::Entries> for Entries {
    type Error = ConvertError;

    fn try_from(message: common::Entries) -> Result<Self, ConvertError> {
        let common::Entries { data, lengths } = message;
        at_most("lengths", lengths.len(), u32::MAX as usize)?;
        let found = format!("{} lengths for {} bytes", lengths.len(), data.len());
        Self::new(&data[..], lengths).ok_or_else(|| {
            ConvertError::invalid("lengths", "lengths that add up to the data", found)
        })
    }
}

impl From<&Entries> for common::Entries {
    fn from(entries: &Entries) -> Self {
        let mut data = Vec::new();
        let mut lengths = Vec::with_capacity(entries.len());
        for entry in (0..=u32::MAX).map_while(|index| entries.get(index)) {
            data.extend_from_slice(entry);
            lengths.push(entry.len() as u64);
        }
        Self {
            data: data.into(),
            lengths,
        }
    }
}

field!(Entries = common::Entries);

one_of! { Selector = client::Selector, selector: client::selector::Selector { [Last All] Ids = ids, } }
