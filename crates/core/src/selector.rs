//! How users name jobs and workers: `last`, `all`, or an id array.

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
