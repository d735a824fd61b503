//! Loss of workers, and its consequences for their tasks.
//!
//! A loss counts toward the crash limit of a task if the task may have caused it. This is the case
//! if the task ran, if the worker had room for it, or if it only waited there but had lost a worker
//! before.

use std::collections::BTreeSet;

use super::{ChangeKind, Ctx, Effect, ServerState};
use crate::bug;
use crate::id::{JobId, TaskKey, WorkerId};
use crate::job::TaskAt;
use crate::outcome::{LostReason, Outcome, Usage};
use crate::retry::RetrySpec;
use crate::task::{Phase, TaskEnd, TaskRecord};
use crate::template::CrashLimit;
use crate::time::Now;
use crate::worker::{Assigned, LostWorker, Turn, Worker};

impl ServerState {
    /// Removes a worker. Its tasks are requeued or fail, and the worker remains listed.
    pub(super) fn lose_worker(&mut self, ctx: &mut Ctx<'_>, id: WorkerId, reason: LostReason) {
        // The worker reached its time limit while the server was away.
        let is_over = |w: &Worker| {
            let left = w.remaining(ctx.now.mono);
            w.is_restored() && left.is_some_and(|left| left.is_zero())
        };
        let was_over = self.workers.get(id).is_some_and(is_over);
        let reason = if was_over && reason.is_crash() {
            LostReason::TimeLimitReached
        } else {
            reason
        };
        let worker = self.workers.get(id);
        let survival = worker.map(|worker| worker.survival(reason));
        let until = ctx.now.mono + survival.unwrap_or_default();
        // The earlier server run may have sent tasks there that this run does not know of.
        if worker.is_some_and(Worker::is_restored) {
            self.dispatcher.limits_mut().close_until(until);
        }
        let Some(lost) = self.workers.lose(id, ctx.now.wall, reason) else {
            bug!("worker {id} is lost, but is not live");
            return;
        };
        ctx.persist(ChangeKind::WorkerLost { worker: id, reason });
        ctx.emit(Effect::DropWorker(id));
        self.note_worker_of_queue(ctx, id);
        self.note_leaver(id);
        self.offers.forget();
        self.learning.note_offers(ctx.now.mono);
        self.dispatcher.forget_worker(&lost);
        let mut touched = BTreeSet::new();
        for (task, assigned) in &lost.tasks {
            if assigned.turn == Turn::Now {
                let limits = self.dispatcher.limits_mut();
                limits.keep(id, assigned.limits, task.job, until);
            }
            self.heads.take_behind(assigned.slot.of(task.job));
            // Without its root, a multi-node task has ended, so its other nodes are free.
            self.release_gang(ctx, *task);
            if let Some(phase) = self.holds(id, task.job, assigned) {
                if phase == Phase::Running && reason.is_end_of_life() {
                    self.count_cut_off(ctx.now, task.job, assigned);
                }
                self.on_task_lost(ctx, &lost, *task, assigned, phase);
            }
            touched.insert(task.job);
        }
        // The tasks of this worker are queued by now. If it was the last expected worker, held
        // tasks follow.
        self.stop_waiting_for(ctx, id, false);
        for job in touched {
            self.note_job_progress(ctx, job);
        }
    }

    /// Counts the usage of a task that was cut off because its worker's lifetime ended.
    fn count_cut_off(&mut self, now: Now, job: JobId, assigned: &Assigned) {
        let record = self.jobs.get(job).and_then(|job| job.record(assigned.slot));
        let run = record.and_then(|record| Some(now.wall.since(record.started()?)));
        let classes = self.dispatcher.classes();
        let cpus = classes
            .cpus(assigned.key.class, assigned.variant)
            .unwrap_or(1.0);
        if let Some(run) = run {
            self.jobs.count_cut_off(run.mul_f64(cpus));
        }
    }

    /// Handles a task of a lost worker. A task without a reported start may have started and caused
    /// the loss. It is treated as running if the worker had room for it, or if it has lost a worker
    /// before.
    fn on_task_lost(
        &mut self,
        ctx: &mut Ctx<'_>,
        lost: &LostWorker,
        task: TaskKey,
        assigned: &Assigned,
        phase: Phase,
    ) {
        let (id, slot) = (task.job, assigned.slot);
        let at = slot.of(id);
        let Some(job) = self.jobs.get(id) else {
            bug!("job {id} is gone, but a lost worker had a task of it");
            return;
        };
        let definition = self.jobs.definition(at);
        let limit = definition.map_or(CrashLimit::default(), |task| task.crash_limit);
        if phase != Phase::Running {
            let is_suspect = phase == Phase::Placed || job.was_lost(slot);
            // The user permits at most one start, and no start was reported.
            if !lost.is_crash() || !is_suspect || limit == CrashLimit::NeverRestart {
                // The task may still run there, so the next start gets another instance number.
                self.requeue_unstarted(ctx, at, true);
                return;
            }
            let started = job.record(slot).and_then(TaskRecord::started);
            let started = started.unwrap_or(ctx.now.wall);
            self.note_start(ctx, lost.id, task, assigned, started);
            self.jobs.set_phase(at, Phase::Running);
        }
        self.on_started_task_lost(ctx, lost, at, limit);
    }

    fn on_started_task_lost(
        &mut self,
        ctx: &mut Ctx<'_>,
        lost: &LostWorker,
        at: TaskAt,
        limit: CrashLimit,
    ) {
        let Some(record) = self.jobs.touch(at) else {
            bug!("there is no record of {at:?}, which ran on a lost worker");
            return;
        };
        // Only losses that the task may have caused count toward its limit.
        let crashes = if lost.is_crash() {
            record.count_crash()
        } else {
            record.crash_count()
        };
        let started = record.started().unwrap_or(ctx.now.wall);
        let lost_end = |text: Box<str>| TaskEnd {
            outcome: Outcome::Message(text),
            at: ctx.now.wall,
            run: ctx.now.wall.since(started),
            usage: Usage::default(),
        };
        let text = match limit {
            // This applies even to a loss that is not a crash, because the user permits at most one
            // start.
            CrashLimit::NeverRestart => {
                Some("Task was running on a lost worker while never restart flag was set.".into())
            }
            CrashLimit::Max(max) if lost.is_crash() && crashes >= max => Some(format!(
                "Task was running on a worker that was lost; the task has occurred {crashes} times \
                 in this situation and limit was reached."
            )),
            CrashLimit::Max(_) | CrashLimit::Unlimited => None,
        };
        match text {
            Some(text) => {
                let end = lost_end(text.into());
                // According to the crash limit, the task has failed. Whether this is final depends
                // on its retries.
                if self.may_retry(at, RetrySpec::allows_loss) {
                    self.retry(ctx, at, None, end);
                } else {
                    self.end_task(ctx, at, &end);
                }
            }
            None => {
                let next = record.instance().next();
                if lost.reason.is_end_of_life() {
                    let run = ctx.now.wall.since(started);
                    self.note_cut_off(Some(ctx.now.mono), at, next, lost.id, run);
                }
                let end = lost_end(lost.reason.attempt_error().into());
                self.run_again(ctx, at, end);
            }
        }
    }
}
