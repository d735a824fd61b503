//! A worker that comes back: what it has and what it should have are made to agree.
//!
//! ```text
//!            connection broke            came back in time
//!  attached ─────────────────▶ away ───────────────────────▶ attached, reconciled
//!                               │ `WorkerConfig::silence_max`
//!                               ▼
//!                              lost; if it comes back, it is a new worker without tasks
//! ```
//!
//! After a restart of the server every worker that was attached is away, see [`super::hold`].
//!
//! Reconciling goes by task and instance. Ends are recorded as if they had just been reported, so one
//! that was recorded before is stale and changes nothing. What the worker has and should not have is
//! killed; what it should have and has not goes back to the queue.

use std::collections::BTreeSet;

use super::{Ctx, Effect, LinkId, Reattach, ServerState, WorkerCommand};
use crate::bug;
use crate::id::{InstanceId, TaskKey, WorkerId};
use crate::outcome::Outcome;
use crate::task::Phase;
use crate::worker_config::WorkerConfig;

impl ServerState {
    pub(super) fn on_worker_reattached(
        &mut self,
        ctx: &mut Ctx<'_>,
        link: LinkId,
        config: WorkerConfig,
        reattach: Reattach,
    ) {
        if self.is_impostor(&config, &reattach) {
            self.on_worker_connected(ctx, link, config);
            return;
        }
        let is_late = self.is_late(&reattach);
        let Reattach {
            worker: id,
            server_uid,
            launching,
            report,
            variants,
            number,
        } = reattach;
        // Not answered: its worker has given that connection up and waits on a newer one.
        if is_late {
            self.ignored.late_registrations += 1;
            return;
        }
        // An id that another server gave out may be that of somebody else here.
        let is_ours = *server_uid == *self.uid;
        let reconnected = if is_ours {
            self.workers.reconnect(id, ctx.now.mono, number)
        } else {
            None
        };
        let (Some(is_restored), Some(worker)) = (reconnected, self.workers.get(id)) else {
            // Lost meanwhile, or of another server: nothing that it runs counts, so it joins as a
            // new worker.
            self.on_worker_connected(ctx, link, config);
            return;
        };
        let is_stopping = worker.is_stopping();
        let is_held = worker.node().is_some_and(|node| !node.is_root);
        ctx.emit(Effect::Registered {
            link,
            worker: id,
            reattached: true,
        });
        // The last messages may have been lost with the connection. Hearing them twice does no harm.
        if is_held {
            ctx.send(id, WorkerCommand::Hold(true));
        }
        if is_stopping {
            ctx.send(id, WorkerCommand::Stop);
        }
        let mut held: BTreeSet<(TaskKey, InstanceId)> = launching.into_iter().collect();
        held.extend(report.started.iter().map(|row| (row.task, row.instance)));
        // Nothing is known of what the earlier run sent to it but had not seen start.
        if is_restored {
            let ended = report
                .ended
                .iter()
                // Instances that it killed when it lost the server did not come to an end; those tasks
                // just wait.
                .filter(|row| row.outcome != Outcome::Killed)
                .map(|row| (row.task, row.instance));
            self.adopt(id, held.iter().copied().chain(ended), &variants);
        }
        // Ends before what is missing: a task that has ended is not missing.
        self.on_report(ctx, id, report);
        // After its ends were taken: whatever it has beyond what is still assigned to it runs in
        // vain.
        self.kill_surplus(ctx, id, &held);
        self.requeue_missing(ctx, id, &held);
        self.stop_waiting_for(ctx, id, true);
        self.dispatcher.note_room(id);
        self.dispatcher.note_plans_changed();
        self.dismiss_if_ending(ctx, id);
    }

    /// Whether somebody else claims to be a worker that is known here: the hash of its secret is another one. Who sends a hash has shown
    /// the secret.
    #[must_use]
    pub fn is_impostor(&self, config: &WorkerConfig, reattach: &Reattach) -> bool {
        let worker = self.workers.get(reattach.worker);
        let worker = worker.filter(|_| *reattach.server_uid == *self.uid);
        let expected = worker.and_then(|worker| worker.config.return_digest);
        expected.is_some() && expected != config.return_digest
    }

    /// Whether a registration is older than one that was seen. Its worker has lost patience and dialed again;
    /// what it says is no longer true, and its connection must not replace the newer one.
    #[must_use]
    pub fn is_late(&self, reattach: &Reattach) -> bool {
        let worker = self.workers.get(reattach.worker);
        let worker = worker.filter(|_| *reattach.server_uid == *self.uid);
        // Older workers do not count.
        worker
            .is_some_and(|worker| reattach.number != 0 && reattach.number <= worker.registration())
    }

    /// Tells a worker to end what it has and should not have.
    fn kill_surplus(
        &self,
        ctx: &mut Ctx<'_>,
        id: WorkerId,
        held: &BTreeSet<(TaskKey, InstanceId)>,
    ) {
        let Some(worker) = self.workers.get(id) else {
            bug!("worker {id} is gone while it comes back");
            return;
        };
        let is_due = |(task, instance): &(TaskKey, InstanceId)| {
            worker
                .assigned()
                .get(task)
                .filter(|assigned| assigned.instance == *instance)
                .is_some_and(|assigned| self.holds(id, task.job, assigned).is_some())
        };
        let surplus: Vec<_> = held.iter().filter(|key| !is_due(key)).copied().collect();
        if !surplus.is_empty() {
            ctx.send(id, WorkerCommand::Kill(surplus));
        }
    }

    /// Takes off a worker what it should have and has not.
    fn requeue_missing(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: WorkerId,
        held: &BTreeSet<(TaskKey, InstanceId)>,
    ) {
        let Some(worker) = self.workers.get(id) else {
            bug!("worker {id} is gone while it comes back");
            return;
        };
        let missing: Vec<(TaskKey, InstanceId)> = worker
            .assigned()
            .iter()
            .map(|(task, assigned)| (*task, assigned.instance))
            .filter(|key| !held.contains(key))
            .collect();
        let mut touched = BTreeSet::new();
        for (task, instance) in missing {
            let removed = self
                .workers
                .get_mut(id)
                .and_then(|worker| worker.remove(task, instance, self.dispatcher.classes()));
            let Some(assigned) = removed else {
                bug!("task {task} was taken off worker {id} in between");
                continue;
            };
            let had_nodes = self.release_gang(ctx, task);
            match self.holds(id, task.job, &assigned) {
                Some(Phase::Running) => {
                    // It ran and left no trace: the next attempt must not be taken for this one.
                    let job = self.jobs.get_mut(task.job);
                    if let Some(record) = job.and_then(|job| job.touch(assigned.slot)) {
                        record.supersede();
                    }
                    self.note_requeued(ctx, task.job, assigned.slot, None);
                    self.requeue(ctx, task.job, assigned.slot);
                }
                Some(_) => {
                    self.requeue_unstarted(ctx, task.job, assigned.slot, had_nodes);
                }
                None => {}
            }
            touched.insert(task.job);
        }
        self.promote(ctx.now, id);
        for job in touched {
            self.note_job_progress(ctx, job);
        }
    }
}
