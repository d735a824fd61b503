//! Changes that the writer has not stored yet.

use hq_core::server_state::Change;

use crate::values::CallValue;

/// Changes that are still to be stored.
#[derive(Default)]
pub(super) struct Pending {
    pub(super) changes: Vec<Change>,
    /// Of calls whose ends may be among the changes.
    pub(super) values: Vec<CallValue>,
}

impl Pending {
    pub(super) const fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.values.is_empty()
    }

    pub(super) fn is_urgent(&self) -> bool {
        self.changes.iter().any(|change| change.kind.is_urgent())
    }

    pub(super) fn clear(&mut self) {
        self.changes.clear();
        self.values.clear();
    }
}
