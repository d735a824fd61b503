//! Problems of a worker's node, and whether it therefore gets no tasks.

use super::Worker;
use crate::node_check::{ClockWatch, NodeFault};
use crate::time::Timestamp;

/// The latest look at a node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeCheck {
    /// By its own account, and by its clock.
    pub(crate) faults: Vec<NodeFault>,
    pub(crate) clock: ClockWatch,
    /// Since when there are faults.
    pub(crate) since: Option<Timestamp>,
    /// Whether it gets no tasks while there are problems.
    pub(crate) is_unfit: bool,
}

impl Worker {
    /// Problems of its node; none for a worker of an earlier release.
    #[must_use]
    pub fn node_faults(&self) -> &[NodeFault] {
        &self.check.faults
    }

    /// Since when something is wrong with its node.
    #[must_use]
    pub const fn faulty_since(&self) -> Option<Timestamp> {
        self.check.since
    }

    /// Whether it gets no tasks because of problems of its node.
    #[must_use]
    pub const fn is_unfit(&self) -> bool {
        self.check.is_unfit
    }

    pub(crate) const fn node_check_mut(&mut self) -> &mut NodeCheck {
        &mut self.check
    }
}
