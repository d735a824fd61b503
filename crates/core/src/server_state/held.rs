//! Tasks that a user holds, and their release.
//!
//! A held task waits: no round, no successor and no retry sends it to a worker. What workers have
//! and have not started comes back. A running task goes on. If its whole job is held, its next
//! attempt is held, too.

use super::{ChangeKind, Ctx, HeldTasks, ServerState, WorkerCommand};
use crate::id::JobId;
use crate::job::{Held, SubmitAt};
use crate::range::IdArray;

impl ServerState {
    /// Holds or releases tasks of a job. Unknown ids are ignored. Returns `None` if the job does not exist.
    pub(super) fn hold_tasks(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: JobId,
        tasks: Option<&IdArray>,
        is_held: bool,
    ) -> Option<HeldTasks> {
        let job = self.jobs.get_mut(id)?;
        let had = job.holds_new;
        let found = job.hold(tasks, is_held);
        let (ids, holds_new) = (found.ids, job.holds_new);
        if !found.changed.is_empty() || holds_new != had {
            let held = Held {
                tasks: ids.clone(),
                is_held,
                holds_new,
                is_whole: tasks.is_none(),
            };
            ctx.persist(ChangeKind::TasksHeld(id, held));
        }
        if is_held {
            self.dispatcher.remove_held(id, &found.changed);
            self.retract_held(ctx, id);
        } else {
            for (number, released) in found.changed {
                for (from, to) in released.ranges() {
                    self.review(ctx, SubmitAt { job: id, number }, from..to, true);
                }
            }
        }
        Some(HeldTasks {
            changed: ids,
            sent: found.sent,
            running: found.running,
        })
    }

    /// Holds the tasks of a new submit, because their job is held.
    pub(super) fn hold_new(&mut self, ctx: &mut Ctx<'_>, at: SubmitAt) {
        let Some(submit) = self.jobs.submit_mut(at) else {
            return;
        };
        submit.held.insert_range(0, submit.ids.len());
        let held = Held {
            tasks: submit.ids.clone(),
            is_held: true,
            holds_new: true,
            is_whole: false,
        };
        ctx.persist(ChangeKind::TasksHeld(at.job, held));
    }

    /// Asks workers to return the held tasks of a job that they have not started.
    fn retract_held(&mut self, ctx: &mut Ctx<'_>, id: JobId) {
        let Some(job) = self.jobs.get(id) else {
            return;
        };
        for worker in job.sent_to() {
            let Some(worker) = self.workers.get_mut(*worker) else {
                continue;
            };
            // A disconnected worker reports its tasks when it is back. The nodes of a multi-node
            // task are about to start it.
            if worker.is_away() || worker.node().is_some() {
                continue;
            }
            let back = worker.take_unstarted(|task, assigned| {
                let slot = assigned.slot;
                let submit = job.submit(slot).filter(|_| task.job == id);
                submit.is_some_and(|submit| submit.held.contains(slot.index))
            });
            if !back.is_empty() {
                ctx.send(worker.id, WorkerCommand::Retract(back));
            }
        }
    }
}
