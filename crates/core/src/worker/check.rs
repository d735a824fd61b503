//! Problems of a worker's node, which may exclude it from getting tasks.

use super::Worker;
use crate::node_check::{ClockWatch, NodeFault};
use crate::time::Timestamp;

/// The result of the latest check of a node.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeCheck {
    /// The problems that the node reported or that its clock revealed.
    pub(crate) faults: Vec<NodeFault>,
    pub(crate) clock: ClockWatch,
    /// When the problems began.
    pub(crate) since: Option<Timestamp>,
    /// Whether the worker gets no tasks while there are problems.
    pub(crate) is_unfit: bool,
}

impl Worker {
    /// Returns the problems of the worker's node. Empty for a worker of an earlier release.
    #[must_use]
    pub fn node_faults(&self) -> &[NodeFault] {
        &self.check.faults
    }

    /// Returns when the problems of the worker's node began.
    #[must_use]
    pub const fn faulty_since(&self) -> Option<Timestamp> {
        self.check.since
    }

    /// Returns whether the worker gets no tasks because its node has problems.
    #[must_use]
    pub const fn is_unfit(&self) -> bool {
        self.check.is_unfit
    }

    pub(crate) const fn node_check_mut(&mut self) -> &mut NodeCheck {
        &mut self.check
    }
}
