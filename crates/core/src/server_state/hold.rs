//! After a restart: tasks that may be on workers which have not come back yet are held.
//!
//! Assignments to workers are not stored, only starts. So a task that waits, by what is
//! stored, may be running on a worker that was connected when the server ended. Nothing of an earlier
//! run is handed out until each of those workers came back and said what it has, or is given up. What is
//! submitted meanwhile runs at once.

use std::collections::BTreeMap;

use super::dispatcher::Dispatcher;
use super::{Ctx, ServerState};
use crate::bug;
use crate::id::{InstanceId, JobId, TaskKey, WorkerId};
use crate::task::{Phase, TaskRecord};
use crate::worker::Assigned;

impl ServerState {
    /// Holds the waiting tasks of a job, or queues them if there is nothing to wait for.
    pub(super) fn hold_job(&mut self, ctx: &mut Ctx<'_>, id: JobId) {
        let Some(job) = self.jobs.get(id).filter(|job| !job.is_idle()) else {
            // All of it has ended: no worker has anything of it that counts.
            return;
        };
        let submits = u32::try_from(job.submits.len()).unwrap_or(u32::MAX);
        if self.workers.awaited() == 0 {
            self.start_submits(ctx, id, submits);
        } else {
            for number in 0..submits {
                // Ends of others are noted from now on; what they mean is looked at when it is let
                // go.
                self.jobs.follow(id, number);
            }
            self.jobs.hold(id, submits);
        }
    }

    fn start_submits(&mut self, ctx: &mut Ctx<'_>, id: JobId, submits: u32) {
        self.supersede_unseen(ctx, id);
        for number in 0..submits {
            self.start_submit(ctx, id, number);
        }
    }

    /// A worker came back and said what it has, or is given up. Behind the last one nothing is held.
    pub(super) fn stop_waiting_for(&mut self, ctx: &mut Ctx<'_>, worker: WorkerId) {
        if !self.workers.stop_awaiting(worker) {
            return;
        }
        for (job, submits) in self.jobs.take_held() {
            self.start_submits(ctx, job, submits);
        }
        // Workers were tried before this was in the queue, so all are looked at once more.
        self.dispatcher.note_ready();
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
            .get(task.job)
            .and_then(|job| job.find(task.task))
            .filter(|slot| self.jobs.is_held(task.job, *slot));
        let (Some(slot), Some(job)) = (slot, self.jobs.get_mut(task.job)) else {
            // Forgotten, or never stored: the worker is told to end it.
            return;
        };
        let current = job.record(slot).map_or(InstanceId(0), TaskRecord::instance);
        // It ended or was superseded by what is stored: the worker has an attempt that does not count.
        if job.phase(slot) != Some(Phase::Waiting) || current != instance {
            return;
        }
        let Some(key) = Dispatcher::queue_key(job, slot) else {
            bug!("task {task} has no template");
            return;
        };
        let class = self.dispatcher.class(key).cloned();
        let (Some(class), Some(worker)) = (class, self.workers.get_mut(id)) else {
            bug!("worker {id} is gone while it comes back, or task {task} has no request");
            return;
        };
        // Nodes of a multi-node task are stored before it is handed out: one that waits has none.
        if class.is_multi_node() || class.variants.get(variant as usize).is_none() {
            return;
        }
        let assigned = Assigned::restored(slot, key, variant, instance);
        worker.assign(task, assigned, &class);
        // Otherwise a cancel would not reach it there, and its templates would never be dropped.
        job.note_sent_to(id);
        job.hand_out(slot, id);
    }
}
