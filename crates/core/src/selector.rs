//! How users select jobs and workers: `last`, `all`, or an id array.

use std::ops::RangeInclusive;

use crate::range::IdArray;

/// A selection of jobs or workers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Selector {
    /// The highest id ever assigned.
    Last,
    /// All of them. The command defines what that means.
    All,
    /// The given ids.
    Ids(IdArray),
}

impl Selector {
    /// Separates existing ids from unknown ones. `last` is the highest id ever assigned, and
    /// `existing` returns the existing ids of a span in ascending order.
    pub(crate) fn find<I: IntoIterator<Item = u32>>(
        &self,
        last: Option<u32>,
        existing: impl Fn(RangeInclusive<u32>) -> I,
    ) -> Selected<u32> {
        let (rows, not_found) = match self {
            Self::All => return Selected::all(existing(0..=u32::MAX).into_iter().collect()),
            // The last one may have been forgotten: another one would surprise the user.
            Self::Last => last
                .map_or_else(IdArray::default, IdArray::single)
                .split(existing),
            Self::Ids(ids) => ids.split(existing),
        };
        Selected { rows, not_found }
    }
}

/// The result of a selector. Unknown ids are kept as ranges, because in `1-4294967295` nearly all
/// ids are unknown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Selected<T> {
    /// One row per existing id, in the order of the selector.
    pub rows: Vec<T>,
    /// The ids that do not exist.
    pub not_found: IdArray,
}

impl<T> Selected<T> {
    /// Creates a result where all rows exist.
    #[must_use]
    pub fn all(rows: Vec<T>) -> Self {
        Self {
            rows,
            not_found: IdArray::default(),
        }
    }

    /// Replaces each row with the result of `change`, and drops rows if it returns `None`.
    pub fn filter_map<U>(self, change: impl FnMut(T) -> Option<U>) -> Selected<U> {
        Selected {
            rows: self.rows.into_iter().filter_map(change).collect(),
            not_found: self.not_found,
        }
    }
}
