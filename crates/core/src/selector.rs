//! How users name jobs and workers: `last`, `all`, or an id array.

use std::ops::RangeInclusive;

use crate::range::IdArray;

/// Selection of jobs or workers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Selector {
    /// The highest id ever assigned.
    Last,
    /// Everything; the command defines what that means.
    All,
    /// These ids.
    Ids(IdArray),
}

/// Result of a selector. Unknown ids stay ranges: in `1-4294967295` nearly all are unknown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Selected<T> {
    /// One row per existing id, in the order of the selector.
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
    /// Separates existing from unknown ids. `existing` returns the existing ids of a span,
    /// ascending.
    pub fn of_ids<I: IntoIterator<Item = u32>>(
        ids: &IdArray,
        existing: impl Fn(RangeInclusive<u32>) -> I,
    ) -> Self {
        let (rows, not_found) = ids.split(existing);
        Self { rows, not_found }
    }
}
