//! How users name jobs and workers: `last`, `all`, or an id array.

use std::ops::RangeInclusive;

use crate::range::IdArray;

/// Selection of jobs or workers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Selector {
    /// The highest id that was ever given out.
    Last,
    /// Everything; what that means depends on the command.
    All,
    /// These ids.
    Ids(IdArray),
}

/// Result of a selector. Ids that do not exist stay ranges: of `1-4294967295` nearly none does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Selected<T> {
    /// One row for each id that exists, in the order of the selector.
    pub rows: Vec<T>,
    /// The ids that do not exist.
    pub not_found: IdArray,
}

impl<T> Selected<T> {
    /// Rows that all exist.
    #[must_use]
    pub fn all(rows: Vec<T>) -> Self {
        Self {
            rows,
            not_found: IdArray::default(),
        }
    }

    /// Replaces each row by what `change` returns for it; rows without a result are dropped.
    pub fn filter_map<U>(self, change: impl FnMut(T) -> Option<U>) -> Selected<U> {
        Selected {
            rows: self.rows.into_iter().filter_map(change).collect(),
            not_found: self.not_found,
        }
    }
}

impl Selected<u32> {
    /// Sorts out which ids exist. `existing` returns the existing ids of a span, ascending.
    pub fn of_ids<I: IntoIterator<Item = u32>>(
        ids: &IdArray,
        existing: impl Fn(RangeInclusive<u32>) -> I,
    ) -> Self {
        let (rows, not_found) = ids.split(existing);
        Self { rows, not_found }
    }
}
