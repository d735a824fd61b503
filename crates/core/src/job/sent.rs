//! Tasks that workers are given.

use std::collections::BTreeSet;

use super::{Job, TaskSlot};
use crate::bug;
use crate::id::{InstanceId, WorkerId};
use crate::task::Phase;
use crate::time::Timestamp;

impl Job {
    /// Dispatches a waiting task to a worker, `placed` if the worker has room for it now; returns
    /// its instance. The caller marks the job as changed if users see a difference.
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

    /// Notes that a worker received something of the job.
    pub(crate) fn note_sent_to(&mut self, worker: WorkerId) {
        self.sent_to.insert(worker);
    }

    /// Workers that have, or may have, tasks or templates of it.
    pub(crate) const fn sent_to(&self) -> &BTreeSet<WorkerId> {
        &self.sent_to
    }

    /// Removes and returns these workers, to tell them that nothing more will come.
    pub(crate) fn take_sent_to(&mut self) -> BTreeSet<WorkerId> {
        std::mem::take(&mut self.sent_to)
    }
}
