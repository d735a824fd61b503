//! Handles reconnecting workers: compares the tasks that a worker has with those that it should
//! have.
//!
//! ```text
//!            connection broke            came back in time
//!  attached ─────────────────▶ away ───────────────────────▶ attached, reconciled
//!                               │ `WorkerConfig::silence_max`
//!                               ▼
//!                              lost; if it comes back, it is a new worker without tasks
//! ```
//!
//! After a server restart, every worker that was attached is away, see [`super::hold`].
//!
//! Tasks are compared by instance. Completions are recorded as if they had just been reported, so a
//! completion that is already known is stale and changes nothing. Surplus instances are killed, and
//! missing ones return to the queue.

use std::collections::BTreeSet;

use super::{Ctx, Effect, LinkId, Reattach, ServerState, WorkerCommand};
use crate::bug;
use crate::id::{InstanceId, TaskKey, WorkerId};
use crate::outcome::{LostReason, Outcome};
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
        // There is no answer, because the worker has abandoned this connection and waits on a newer
        // one.
        if is_late {
            self.ignored.late_registrations += 1;
            return;
        }
        // Another server may have assigned the same id to a different worker.
        let is_ours = *server_uid == *self.uid;
        let reconnected = if is_ours {
            self.workers.reconnect(id, ctx.now.mono, number)
        } else {
            None
        };
        let (Some(is_restored), Some(worker)) = (reconnected, self.workers.get(id)) else {
            // The worker was lost in the meantime, or it belongs to another server. None of its
            // tasks count, so it joins as a new worker.
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
        self.note_worker_of_queue(ctx, id);
        // The last messages may have been lost with the connection. Receiving them twice does no
        // harm.
        if is_held {
            ctx.send(id, WorkerCommand::Hold(true));
        }
        if is_stopping {
            ctx.send(id, WorkerCommand::Stop);
        }
        let mut held: BTreeSet<(TaskKey, InstanceId)> = launching.into_iter().collect();
        held.extend(report.started.iter().map(|row| (row.task, row.instance)));
        // The store does not record which unstarted tasks the earlier run had sent to the worker.
        if is_restored {
            let ended = report
                .ended
                .iter()
                // Instances that the worker killed after losing the server have no outcome, so
                // their tasks keep waiting.
                .filter(|row| row.outcome != Outcome::Killed)
                .map(|row| (row.task, row.instance));
            self.adopt(id, held.iter().copied().chain(ended), &variants);
        }
        // Completions are handled first, because an ended task is not missing.
        self.on_report(ctx, id, report);
        // After this, each instance beyond the worker's remaining assignments is surplus.
        self.compare_held(ctx, id, &held);
        self.repeat_time_limits(ctx, id);
        self.stop_waiting_for(ctx, id, true);
        self.dispatcher.note_room(id);
        self.dispatcher.note_plans_changed();
        self.dismiss_if_ending(ctx, id);
    }

    /// Forgets earlier registrations of a worker that registers again. A server that was killed had
    /// stored them, but had not answered, so the worker received no tasks. Because nothing proves
    /// that the sender is this worker, waiting tasks get later instances.
    pub(super) fn forget_unanswered(&mut self, ctx: &mut Ctx<'_>, config: &WorkerConfig) {
        while let Some(unanswered) = self.workers.awaited_with(config.return_digest) {
            self.lose_worker(ctx, unanswered, LostReason::ConnectionLost);
        }
    }

    /// Returns whether an impostor claims to be a known worker, that is, whether the hash of its
    /// secret differs. The sender of a hash has already proven that it has the secret.
    #[must_use]
    pub fn is_impostor(&self, config: &WorkerConfig, reattach: &Reattach) -> bool {
        let worker = self.workers.get(reattach.worker);
        let worker = worker.filter(|_| *reattach.server_uid == *self.uid);
        let expected = worker.and_then(|worker| worker.config.return_digest);
        expected.is_some() && expected != config.return_digest
    }

    /// Returns whether a newer registration of the same worker has been seen. In that case, the
    /// worker timed out and dialed again. This message is outdated, and its connection must not
    /// replace the newer one.
    #[must_use]
    pub fn is_late(&self, reattach: &Reattach) -> bool {
        let worker = self.workers.get(reattach.worker);
        let worker = worker.filter(|_| *reattach.server_uid == *self.uid);
        // Workers of older versions do not number their registrations.
        worker
            .is_some_and(|worker| reattach.number != 0 && reattach.number <= worker.registration())
    }

    /// Kills instances that a worker has but should not have, and requeues tasks that it should
    /// have but does not have.
    fn compare_held(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: WorkerId,
        held: &BTreeSet<(TaskKey, InstanceId)>,
    ) {
        let Some(worker) = self.workers.get(id) else {
            bug!("worker {id} is gone while it comes back");
            return;
        };
        let is_due = |(task, instance): &(TaskKey, InstanceId)| {
            let assigned = worker.assignment(*task, *instance);
            assigned.is_some_and(|assigned| self.holds(id, task.job, assigned).is_some())
        };
        let surplus: Vec<_> = held.iter().filter(|key| !is_due(key)).copied().collect();
        if !surplus.is_empty() {
            ctx.send(id, WorkerCommand::Kill(surplus));
        }
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
            self.note_left(task, &assigned);
            let had_nodes = self.release_gang(ctx, task);
            let at = assigned.slot.of(task.job);
            match self.holds(id, task.job, &assigned) {
                Some(Phase::Running) => {
                    // The task ran and left no trace, so the next attempt must have another
                    // instance number.
                    self.supersede(ctx, at);
                    self.requeue(ctx, at);
                }
                Some(_) => {
                    self.requeue_unstarted(ctx, at, had_nodes);
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
