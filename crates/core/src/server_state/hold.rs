//! After a restart: tasks that may be on workers which have not come back yet are held.
//!
//! Assignments to workers are not stored, only starts. So a task that waits, by what is
//! stored, may be running on a worker that was connected when the server ended. Nothing of an earlier
//! run is handed out until each of those workers came back and said what it has, or is given up. What is
//! submitted meanwhile runs at once. If one is given up, all that waits gets a later instance: any of it may have started there.

use std::collections::BTreeMap;

use super::dispatcher::Dispatcher;
use super::{ChangeKind, Ctx, ServerState};
use crate::bug;
use crate::id::{InstanceId, JobId, TaskKey, WorkerId};
use crate::job::TaskSlot;
use crate::task::Phase;
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
            self.let_go(ctx, id, submits);
        } else {
            for number in 0..submits {
                // Ends of others are noted from now on; what they mean is looked at when it is let
                // go.
                self.jobs.follow(id, number);
            }
            self.jobs.hold(id, submits);
        }
    }

    fn let_go(&mut self, ctx: &mut Ctx<'_>, id: JobId, submits: u32) {
        let fresh = self.jobs.take_fresh(id);
        if self.workers.has_unheard() {
            for submit in 0..submits {
                let is_fresh = |index| fresh.contains(&TaskSlot { submit, index });
                self.supersede_waiting(ctx, (id, submit), is_fresh);
            }
        }
        self.supersede_unseen(ctx, id);
        for number in 0..submits {
            self.start_submit(ctx, id, number);
        }
    }

    /// What waits of a submit may have been started by a worker that nobody hears of any more: what starts from now on is not to be
    /// taken for that.
    fn supersede_waiting(
        &mut self,
        ctx: &mut Ctx<'_>,
        (id, number): (JobId, u32),
        is_fresh: impl Fn(u32) -> bool,
    ) {
        let job = self.jobs.get_mut(id);
        let submit = job.and_then(|job| job.submits.get_mut(number as usize));
        let Some(tasks) = submit.map(|submit| &mut submit.tasks) else {
            // Forgotten while it was held.
            return;
        };
        let is_waiting = |(_, _, phase)| phase == Phase::Waiting;
        if !tasks.runs(0, tasks.len()).any(is_waiting) {
            return;
        }
        let (first, own) = tasks.supersede_waiting(is_fresh);
        ctx.persist(ChangeKind::WaitingSuperseded {
            job: id,
            number,
            first,
        });
        for index in own {
            let slot = TaskSlot {
                submit: number,
                index,
            };
            self.note_requeued(ctx, id, slot, None);
        }
    }

    /// A worker came back and said what it has (`is_heard`), or is given up. Behind the last one nothing is held.
    pub(super) fn stop_waiting_for(&mut self, ctx: &mut Ctx<'_>, worker: WorkerId, is_heard: bool) {
        match self.workers.stop_awaiting(worker, is_heard) {
            None => return,
            Some(false) => {
                // The server may be killed before the others are back, and the next one does not wait for this worker.
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
        // Workers were tried before this was in the queue, so all are looked at once more.
        self.dispatcher.note_ready();
    }

    /// Nothing that waits is at an instance that may have started.
    pub(super) fn note_all_let_go(&mut self, ctx: &mut Ctx<'_>) {
        if self.workers.has_unheard() {
            self.workers.set_unheard(false);
            ctx.persist(ChangeKind::StartsUnknown(false));
        }
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
        let current = job.instance(slot);
        // Of what waited together with tasks that may have started elsewhere, an earlier instance can be here: nothing else is stored.
        let is_current = instance == current || instance < current && job.is_untouched(slot);
        // It ended or was superseded by what is stored: the worker has an attempt that does not count.
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
        // Nodes of a multi-node task are stored before it is handed out: one that waits has none.
        if class.is_multi_node() || class.variants.get(variant as usize).is_none() {
            return;
        }
        let assigned = Assigned::restored(slot, key, variant, instance);
        worker.assign(task, assigned, &class);
        // Otherwise a cancel would not reach it there, and its templates would never be dropped.
        job.note_sent_to(id);
        if let Some(record) = job.touch(slot) {
            record.resume(instance);
        }
        job.hand_out(slot, id, None);
    }
}
