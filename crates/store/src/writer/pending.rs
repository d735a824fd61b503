//! Changes that the writer has not stored yet.

use std::collections::VecDeque;

use hq_core::server_state::Change;

use crate::curves::TaskCurve;
use crate::values::CallValue;

/// The maximum number of changes per transaction, unless more were queued at once. If a slow disk
/// causes a backlog, it is stored in steps, each of which is far shorter than the time after which
/// a writer seems to hang.
const BATCH_LEN: usize = 16_384;
/// The maximum number of curves to keep while the disk does not accept data, about ten MiB. Workers
/// resend the curves of long tasks.
const CURVES_MAX: usize = 50_000;

/// The contents of one transaction.
#[derive(Default)]
pub(super) struct Batch {
    pub(super) changes: Vec<Change>,
    /// Values of calls. The changes that end these calls are in this batch or follow it.
    pub(super) values: Vec<CallValue>,
    pub(super) curves: Vec<TaskCurve>,
    /// The number of the last changes. `None` if there are only values and curves so far.
    pub(super) number: Option<u64>,
}

impl Batch {
    pub(super) const fn is_empty(&self) -> bool {
        self.changes.is_empty() && self.values.is_empty() && self.curves.is_empty()
    }
}

/// The changes to be stored, in the order they arrived.
#[derive(Default)]
pub(super) struct Pending(VecDeque<Batch>);

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(Batch::is_empty)
    }

    /// Returns whether there are only values and curves.
    pub(super) fn is_without_changes(&self) -> bool {
        self.0.iter().all(|batch| batch.number.is_none())
    }

    /// Returns whether the changes need more than one transaction.
    pub(super) fn is_long(&self) -> bool {
        self.0.len() > 1
    }

    pub(super) fn is_urgent(&self) -> bool {
        let mut changes = self.0.iter().flat_map(|batch| &batch.changes);
        changes.any(|change| change.kind.is_urgent())
    }

    /// Adds changes. Those of one call stay together, so that after a crash either all or none of
    /// them are stored.
    pub(super) fn push(&mut self, number: u64, changes: Vec<Change>) {
        let batch = self.open_batch();
        batch.changes.extend(changes);
        batch.number = Some(number);
    }

    pub(super) fn push_values(&mut self, values: Vec<CallValue>) {
        self.open_batch().values.extend(values);
    }

    /// Adds curves. Storing them is best effort, so any excess is dropped.
    pub(super) fn push_curves(&mut self, mut curves: Vec<TaskCurve>) {
        let waiting: usize = self.0.iter().map(|batch| batch.curves.len()).sum();
        curves.truncate(CURVES_MAX.saturating_sub(waiting));
        self.open_batch().curves.extend(curves);
    }

    fn open_batch(&mut self) -> &mut Batch {
        let has_room = |batch: &Batch| batch.changes.len() < BATCH_LEN;
        if !self.0.back().is_some_and(has_room) {
            self.0.push_back(Batch::default());
        }
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    /// Returns the next batch, which is empty if there is none.
    pub(super) fn take_first(&mut self) -> Batch {
        self.0.pop_front().unwrap_or_default()
    }

    /// Puts back a batch that could not be stored.
    pub(super) fn put_back(&mut self, batch: Batch) {
        self.0.push_front(batch);
    }
}
