//! Copies of the phases of tasks.

use super::TaskTable;

impl TaskTable {
    /// Returns a copy without texts, earlier attempts and nodes.
    pub(crate) fn outline(&self) -> Self {
        Self {
            chunks: self.chunks.clone(),
            tail: self.tail,
            first_instance: self.first_instance,
            ..Self::new(self.len)
        }
    }
}
