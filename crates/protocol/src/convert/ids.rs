//! Id ranges, id arrays, entries and selectors.

use hq_core::range::{ID_RANGES_MAX, IdArray, IdRange};
use hq_core::selector::Selector;
use hq_core::template::Entries;

use super::wire::{FromWire, ToWire, each, field, one_of, received};
use super::{ConvertError, Within, at_most, required};
use crate::{client, common};

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
        Self::from_user(ranges).map_err(|error| ConvertError::rule("ranges", error))
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
