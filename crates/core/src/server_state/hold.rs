//! After a restart: tasks that may be on workers which have not come back yet are held.
//!
//! What was handed to a worker is not stored, only what started there. So a task that waits, by what is
//! stored, may be running on a worker that was connected when the server ended. Nothing of an earlier
//! run is handed out until each of those workers came back and said what it has, or is given up. What is
//! submitted meanwhile runs at once.

use std::collections::BTreeMap;

use super::{Ctx, ServerState};
use crate::id::{InstanceId, JobId, TaskKey, WorkerId};
use crate::job::TaskSlot;
use crate::task::{Phase, TaskRecord};
use crate::worker::Assigned;

/// Work of an earlier run that its workers may have.
#[derive(Clone, Debug, Default)]
pub(super) struct Hold {
    /// Jobs with unfinished tasks, and how many submits they had.
    jobs: BTreeMap<JobId, u32>,
}

impl ServerState {
    /// Holds the waiting tasks of a job, or queues them if there is nothing to wait for.
    pub(super) fn hold_job(&mut self, ctx: &mut Ctx<'_>, id: JobId) {
        let Some(job) = self.jobs.get(&id).filter(|job| !job.is_idle()) else {
            return;
        };
        let submits = u32::try_from(job.submits.len()).unwrap_or(u32::MAX);
        if self.workers.awaited() == 0 {
            self.start_submits(ctx, id, submits);
        } else {
            for number in 0..submits {
                self.follow(id, number);
            }
            self.hold.jobs.insert(id, submits);
        }
    }

    fn start_submits(&mut self, ctx: &mut Ctx<'_>, id: JobId, submits: u32) {
        for number in 0..submits {
            self.start_submit(ctx, id, number);
        }
    }

    /// Whether nothing of a submit may be handed out or given up yet.
    pub(super) fn is_submit_held(&self, job: JobId, number: u32) -> bool {
        let submits = self.hold.jobs.get(&job);
        submits.is_some_and(|submits| number < *submits)
    }

    pub(super) fn is_held(&self, job: JobId, slot: TaskSlot) -> bool {
        self.is_submit_held(job, slot.submit)
    }

    /// A worker came back and said what it has, or is given up. Behind the last one nothing is held.
    pub(super) fn stop_waiting_for(&mut self, ctx: &mut Ctx<'_>, worker: WorkerId) {
        if !self.workers.stop_awaiting(worker) {
            return;
        }
        for (job, submits) in std::mem::take(&mut self.hold.jobs) {
            self.start_submits(ctx, job, submits);
        }
        self.agenda.note_ready();
    }

    /// Takes over what a worker of an earlier run has: held tasks whose next instance it was given.
    pub(super) fn adopt(
        &mut self,
        id: WorkerId,
        claims: impl Iterator<Item = (TaskKey, InstanceId)>,
        variants: &BTreeMap<TaskKey, u32>,
    ) {
        for (task, instance) in claims {
            let variant = variants.get(&task).copied().unwrap_or(0);
            self.adopt_one(id, task, instance, variant);
        }
    }

    fn adopt_one(&mut self, id: WorkerId, task: TaskKey, instance: InstanceId, variant: u32) {
        let slot = self
            .jobs
            .get(&task.job)
            .and_then(|job| job.find(task.task))
            .filter(|slot| self.is_held(task.job, *slot));
        let (Some(slot), Some(job)) = (slot, self.jobs.get_mut(&task.job)) else {
            return;
        };
        let current = job.record(slot).map_or(InstanceId(0), TaskRecord::instance);
        if job.phase(slot) != Some(Phase::Waiting) || current != instance {
            return;
        }
        let Some(key) = Self::queue_key(job, slot) else {
            return;
        };
        let class = self.classes.get(key.class).cloned();
        let (Some(class), Some(worker)) = (class, self.workers.get_mut(id)) else {
            return;
        };
        // Nodes of a multi-node task are stored before it is handed out: one that waits has none.
        if class.is_multi_node() || class.variants.get(variant as usize).is_none() {
            return;
        }
        let assigned = Assigned::restored(slot, key, variant, instance);
        worker.assign(task, assigned, &class);
        job.sent_to.insert(id);
        if let Some(record) = job.touch(slot) {
            record.assign(id);
        }
        job.set_phase(slot, Phase::Queued);
    }
}
