//! After a restart, holds tasks that may be on workers that have not reconnected yet.
//!
//! Starts are stored, but assignments are not. A task that waits according to the store may
//! therefore be running on a worker that was connected when the server ended. Tasks of the earlier
//! run are not dispatched until each of those workers has reported its tasks or is lost. New
//! submits run immediately. If a worker is lost, all waiting tasks get later instances, because any
//! of them may have started there.

use std::collections::BTreeMap;

use super::dispatcher::Dispatcher;
use super::{ChangeKind, Ctx, ServerState};
use crate::bug;
use crate::id::{InstanceId, JobId, TaskKey, WorkerId};
use crate::job::SubmitAt;
use crate::task::Phase;
use crate::worker::Assigned;

impl ServerState {
    /// Holds the waiting tasks of a job, or queues them if no worker is expected.
    pub(super) fn hold_job(&mut self, ctx: &mut Ctx<'_>, id: JobId) {
        let Some(job) = self.jobs.get(id).filter(|job| !job.is_idle()) else {
            // The whole job has ended, so no worker has valid instances of it.
            return;
        };
        let submits = u32::try_from(job.submits.len()).unwrap_or(u32::MAX);
        if self.workers.awaited() == 0 {
            self.let_go(ctx, id, submits);
        } else {
            for number in 0..submits {
                // From now on, the completions of other jobs are recorded. They are handled when
                // this job is released.
                self.jobs.follow(SubmitAt { job: id, number });
            }
            self.jobs.hold(id, submits);
        }
    }

    fn let_go(&mut self, ctx: &mut Ctx<'_>, id: JobId, submits: u32) {
        let fresh = self.jobs.take_fresh(id);
        if self.workers.has_unheard() {
            for number in 0..submits {
                let at = SubmitAt { job: id, number };
                let is_fresh = |index| fresh.contains(&at.task(index).slot);
                self.supersede_waiting(ctx, at, is_fresh);
            }
        }
        self.supersede_unseen(ctx, id);
        for number in 0..submits {
            self.start_submit(ctx, SubmitAt { job: id, number });
        }
    }

    /// Supersedes the waiting tasks of a submit, because a lost worker may have started them. Later
    /// starts get other instance numbers.
    fn supersede_waiting(
        &mut self,
        ctx: &mut Ctx<'_>,
        at: SubmitAt,
        is_fresh: impl Fn(u32) -> bool,
    ) {
        let submit = self.jobs.submit_mut(at);
        let Some(tasks) = submit.map(|submit| &mut submit.tasks) else {
            // The job was forgotten while it was held.
            return;
        };
        let is_waiting = |(_, _, phase)| phase == Phase::Waiting;
        if !tasks.runs(0, tasks.len()).any(is_waiting) {
            return;
        }
        let (first, own) = tasks.supersede_waiting(is_fresh);
        ctx.persist(ChangeKind::WaitingSuperseded {
            job: at.job,
            number: at.number,
            first,
        });
        for index in own {
            self.note_requeued(ctx, at.task(index), None);
        }
    }

    /// Handles a worker that has reconnected and reported its tasks (`is_heard`), or that is lost.
    /// After the last such worker, no task is held anymore.
    pub(super) fn stop_waiting_for(&mut self, ctx: &mut Ctx<'_>, worker: WorkerId, is_heard: bool) {
        match self.workers.stop_awaiting(worker, is_heard) {
            None => return,
            Some(false) => {
                // The server may be killed before the other workers are back, and the next run does
                // not wait for this worker.
                if !is_heard {
                    ctx.persist(ChangeKind::StartsUnknown(true));
                }
                return;
            }
            Some(true) => {}
        }
        for (job, submits) in self.jobs.take_held() {
            self.let_go(ctx, job, submits);
        }
        self.note_all_let_go(ctx);
        self.dispatcher.limits_mut().close(false);
        // Workers were tried before these tasks were queued, so all workers are examined once more.
        self.dispatcher.note_ready();
    }

    /// Records that no waiting task has an instance that may have started.
    pub(super) fn note_all_let_go(&mut self, ctx: &mut Ctx<'_>) {
        if self.workers.has_unheard() {
            self.workers.set_unheard(false);
            ctx.persist(ChangeKind::StartsUnknown(false));
        }
    }

    /// Adopts the tasks of a worker of an earlier run: the held tasks whose next instance it
    /// received.
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
            .filter(|slot| self.jobs.is_held(slot.of(task.job)));
        let (Some(slot), Some(job)) = (slot, self.jobs.get_mut(task.job)) else {
            // The task was forgotten or never stored, so the worker is ordered to end it.
            return;
        };
        let current = job.instance(slot);
        // A task without a record may be on the worker with an earlier instance, if other tasks of
        // the submit were superseded.
        let is_current = instance == current || instance < current && job.is_untouched(slot);
        // According to the store, the task has ended or this instance was superseded, so it is
        // void.
        if job.phase(slot) != Some(Phase::Waiting) || !is_current {
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
        // The nodes of a multi-node task are stored before it is sent, so a waiting one has no
        // nodes.
        if class.is_multi_node() || class.variants.get(variant as usize).is_none() {
            return;
        }
        let limits = self.dispatcher.limits_mut();
        let set = limits.set_of(slot.of(task.job).submit());
        limits.take_place(set, task.job);
        let assigned = Assigned::restored(slot, key, variant, instance, set);
        worker.assign(task, assigned, &class);
        // Without this, a cancel would not reach the task, and its templates would never be
        // dropped.
        job.note_sent_to(id);
        if let Some(record) = job.touch(slot) {
            record.resume(instance);
        }
        job.hand_out(slot, id, None);
    }
}
