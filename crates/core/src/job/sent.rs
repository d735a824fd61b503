//! Tasks that are sent to workers.

use std::collections::BTreeSet;

use super::{Job, TaskSlot};
use crate::bug;
use crate::id::{InstanceId, WorkerId};
use crate::task::Phase;
use crate::time::Timestamp;

impl Job {
    /// Dispatches a waiting task to a worker, and returns its instance. `placed` means that the
    /// worker has room for it now. The caller marks the job as changed if users see a difference.
    pub(crate) fn hand_out(
        &mut self,
        slot: TaskSlot,
        worker: WorkerId,
        placed: Option<Timestamp>,
    ) -> Option<InstanceId> {
        let id = self.id;
        let record = self.touch(slot)?;
        record.assign(worker);
        let instance = record.instance();
        if record.phase() != Phase::Waiting {
            bug!("a task of job {id} at {slot:?} did not wait, but is handed out");
        }
        let phase = match placed {
            Some(at) => {
                record.place(at);
                Phase::Placed
            }
            None => Phase::Queued,
        };
        self.set_phase(slot, phase);
        Some(instance)
    }

    /// Notes that a worker has received something of the job.
    pub(crate) fn note_sent_to(&mut self, worker: WorkerId) {
        self.sent_to.insert(worker);
    }

    /// Returns the workers that have, or may have, tasks or templates of the job.
    pub(crate) const fn sent_to(&self) -> &BTreeSet<WorkerId> {
        &self.sent_to
    }

    /// Removes and returns these workers, so that they can be notified that nothing more will come.
    pub(crate) fn take_sent_to(&mut self) -> BTreeSet<WorkerId> {
        std::mem::take(&mut self.sent_to)
    }
}
