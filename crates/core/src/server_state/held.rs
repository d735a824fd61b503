//! Tasks that a user holds, and their release.
//!
//! A held task waits: no round, no successor and no retry sends it to a worker. What workers have
//! and have not started comes back. A running task goes on. If its whole job is held, its next
//! attempt is held, too.

use super::{ChangeKind, ChangedTasks, Ctx, ServerState, WorkerCommand};
use crate::id::JobId;
use crate::job::{Affected, Held, Job, Positions, SubmitAt};
use crate::range::IdArray;
use crate::worker::Assigned;

impl ServerState {
    /// Holds or releases tasks of a job. Unknown ids are ignored. Returns `None` if the job does not exist.
    pub(super) fn hold_tasks(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: JobId,
        tasks: Option<&IdArray>,
        is_held: bool,
    ) -> Option<ChangedTasks> {
        let job = self.jobs.get_mut(id)?;
        let had = job.holds_new;
        let found = job.hold(tasks, is_held);
        let answer = ChangedTasks::of(job, &found);
        if !found.changed.is_empty() || job.holds_new != had {
            let held = Held {
                tasks: answer.changed.clone(),
                is_held,
                holds_new: job.holds_new,
                is_whole: tasks.is_none(),
            };
            ctx.persist(ChangeKind::TasksHeld(id, held));
        }
        if is_held {
            self.dispatcher.remove_tasks(id, &found.changed);
            self.retract_tasks(ctx, id, &found.changed);
        } else {
            for (number, released) in found.changed {
                for (from, to) in released.ranges() {
                    self.review(ctx, SubmitAt { job: id, number }, from..to, true);
                }
            }
        }
        Some(answer)
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

    /// Asks workers to return those of `tasks` that they have not started.
    pub(super) fn retract_tasks(&mut self, ctx: &mut Ctx<'_>, id: JobId, tasks: &Positions) {
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
            let back = worker.take_unstarted(|task, Assigned { slot, .. }| {
                let tasks = tasks.get(&slot.submit).filter(|_| task.job == id);
                tasks.is_some_and(|tasks| tasks.contains(slot.index))
            });
            if !back.is_empty() {
                ctx.send(worker.id, WorkerCommand::Retract(back));
            }
        }
    }
}

impl ChangedTasks {
    /// Returns the answer to a command about tasks of a job.
    pub(super) fn of(job: &Job, found: &Affected) -> Self {
        Self {
            changed: job.ids(&found.changed),
            sent: job.ids(&found.sent),
            running: job.ids(&found.running),
        }
    }
}
