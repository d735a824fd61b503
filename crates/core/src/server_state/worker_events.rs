//! Handlers for worker registration, reports and silence.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::{
    ChangeKind, Ctx, Effect, EndAwaited, EndedRow, LinkEnd, LinkId, Notification, Report,
    ServerState, StartedRow, WorkerCommand, WorkerMessage,
};
use crate::bug;
use crate::class::ClassId;
use crate::growth::Grant;
use crate::id::{InstanceId, JobId, TaskKey, WorkerId};
use crate::job::{Job, TaskAt};
use crate::outcome::{LostReason, Outcome};
use crate::range::IdRange;
use crate::retry::RetrySpec;
use crate::task::{Phase, TaskEnd, TaskRecord};
use crate::time::{Now, Time, Timestamp};
use crate::worker::{Assigned, Load, Turn, Worker};
use crate::worker_config::WorkerConfig;

impl ServerState {
    pub(super) fn on_worker_connected(
        &mut self,
        ctx: &mut Ctx<'_>,
        link: LinkId,
        config: WorkerConfig,
    ) {
        let Some(id) = self.workers.next_id() else {
            bug!("four billion workers have registered");
            return;
        };
        let offers = self.dispatcher.offers(&config.resources);
        let config = Arc::new(config);
        let connected = ChangeKind::WorkerConnected {
            worker: id,
            config: Arc::clone(&config),
        };
        ctx.persist(connected);
        let worker = Worker::new(id, config, offers, ctx.now.mono, ctx.now.wall);
        self.dispatcher.add_worker(&worker);
        self.offers.forget();
        self.workers.add(worker);
        self.learning.note_offers(ctx.now.mono);
        ctx.emit(Effect::Registered {
            link,
            worker: id,
            reattached: false,
        });
        self.note_worker_of_queue(ctx, id);
        self.inherit_quarantine(ctx, id);
        self.dismiss_if_ending(ctx, id);
    }

    pub(super) fn on_worker_message(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: WorkerId,
        message: WorkerMessage,
    ) {
        if self.workers.get(id).is_none() {
            self.ignored.unknown_workers += 1;
            return;
        }
        match message {
            WorkerMessage::Heartbeat {
                unkillable,
                held,
                faults,
                sent,
            } => {
                let is_own = |one: &crate::worker::Unkillable| {
                    self.has_run(id, one.task, Some(one.instance))
                };
                let (own, foreign) = unkillable.into_iter().partition::<Vec<_>, _>(is_own);
                for one in foreign {
                    self.refuse_foreign(id, one.task, "an unkillable process");
                }
                if let Some(worker) = self.workers.get_mut(id) {
                    worker.set_unkillable(&own);
                }
                self.note_node(ctx, id, faults, sent);
                self.workers.note_heartbeat(id, ctx.now.mono);
                ctx.send(id, WorkerCommand::Ping(Vec::new()));
                let is_gone = |job: &JobId| self.jobs.get(*job).is_none();
                let gone: Vec<JobId> = held.into_iter().filter(is_gone).collect();
                if !gone.is_empty() {
                    // This is a separate message because it waits for a commit, which must not
                    // delay heartbeat replies.
                    ctx.send(id, WorkerCommand::Ping(gone));
                }
            }
            WorkerMessage::Report(report) => self.on_report(ctx, id, report),
            WorkerMessage::Notify(task, message) => {
                if !self.has_run(id, task, None) {
                    self.refuse_foreign(id, task, "a message");
                    return;
                }
                let told = ChangeKind::TaskNotified {
                    task,
                    worker: id,
                    message: Arc::clone(&message),
                };
                ctx.persist(told);
                let notification = Notification {
                    task,
                    worker: id,
                    message,
                };
                self.audience.note_notification(ctx.now.mono, notification);
            }
            WorkerMessage::Overview(usage) => {
                if let Some(worker) = self.workers.get_mut(id) {
                    worker.set_load(Load::of(&usage, ctx.now.wall));
                }
                let overview = ChangeKind::WorkerOverview { worker: id, usage };
                ctx.persist(overview);
            }
            WorkerMessage::Goodbye(reason) => self.lose_worker(ctx, id, reason),
        }
    }

    /// Returns whether this worker has the task, or ran its last instance. A process that a task
    /// left behind may still send messages after the end of the task. With `instance`, only this
    /// instance counts.
    fn has_run(&self, id: WorkerId, task: TaskKey, instance: Option<InstanceId>) -> bool {
        let is_meant = |found: InstanceId| instance.is_none_or(|instance| instance == found);
        let worker = self.workers.get(id);
        let assigned = worker.and_then(|worker| worker.assigned().get(&task));
        if assigned.is_some_and(|assigned| is_meant(assigned.instance)) {
            return true;
        }
        let job = self.jobs.get(task.job);
        let record = job.and_then(|job| job.record(job.find(task.task)?));
        record.is_some_and(|record| {
            // The server expects nothing of an earlier instance, but its process may still exist on a
            // worker that registered again.
            let is_earlier = instance.is_some_and(|instance| instance < record.instance());
            let is_last = record.was_started() && record.worker() == id;
            is_earlier || is_last && is_meant(record.instance())
        })
    }

    /// Drops a statement of a worker about a task that it does not have: any holder of the key of
    /// workers can send one.
    fn refuse_foreign(&mut self, id: WorkerId, task: TaskKey, what: &str) {
        self.ignored.stale_rows += 1;
        tracing::warn!(worker = %id, job = %task.job, task = %task.task,
            "A worker reported {what} of a task that it does not run. The report is ignored");
    }

    pub(super) fn on_worker_gone(&mut self, ctx: &mut Ctx<'_>, id: WorkerId, how: LinkEnd) {
        // A worker that said goodbye has already been removed, so the end of its connection is not
        // news.
        let Some(worker) = self.workers.get(id).filter(|worker| !worker.is_away()) else {
            return;
        };
        // The tasks of the worker continue meanwhile. Running them elsewhere would duplicate work.
        if worker.may_come_back() {
            self.workers.disconnect(id, ctx.now.mono, how);
            self.dispatcher.note_plans_changed();
            return;
        }
        let reason = worker.lost_reason(LostReason::ConnectionLost);
        self.workers.disconnect(id, ctx.now.mono, how);
        self.lose_worker(ctx, id, reason);
    }

    /// Handles due times. Messages of workers have been handled if they arrived before `heard`.
    /// `heard` is `None` if losses cannot be stored.
    pub(super) fn on_timer(&mut self, ctx: &mut Ctx<'_>, heard: Option<Time>) {
        self.release_delayed(ctx.now);
        self.probe_due(ctx);
        self.look_again(ctx);
        match heard {
            Some(heard) => self.lose_overdue(ctx, heard),
            None => self.spare_overdue(ctx.now.mono),
        }
    }

    /// Gives silent workers another period. They may be connected, with running tasks, and wait
    /// until the store works again. Tasks restarted elsewhere could not be stored either.
    fn spare_overdue(&mut self, now: Time) {
        for (_, id) in self.workers.overdue(now, usize::MAX) {
            self.workers.note_heartbeat(id, now);
        }
        self.overdue_left = None;
    }

    /// Declares a portion of the overdue workers lost. The deadlines of the other workers stay due.
    /// A failing switch may affect thousands of workers at the same time, with all their tasks.
    fn lose_overdue(&mut self, ctx: &mut Ctx<'_>, heard: Time) {
        let most = self.portion();
        let mut left = most;
        // A heartbeat that is still queued arrived in time.
        let overdue = self.workers.overdue(heard, most);
        let is_cut = overdue.len() == most;
        let looked_at = self.overdue_left.take().unwrap_or_default();
        for (deadline, id) in overdue {
            if left == 0 {
                self.overdue_left = Some(heard);
                return;
            }
            left -= 1;
            // The timer itself was late: this process was suspended, and the workers may have sent
            // heartbeats meanwhile. Workers that waited for the previous portion were as late then
            // as they are now.
            let late = heard.since(deadline.max(looked_at));
            // Even after a short delay, messages that arrived during the suspension are read before
            // any worker is lost.
            if self.workers.doubt(id, heard, late) {
                continue;
            }
            if self.workers.await_turn(id, heard) {
                continue;
            }
            let Some(worker) = self.workers.get(id) else {
                bug!("worker {id} is overdue, but not live");
                continue;
            };
            left = left.saturating_sub(worker.assigned().len());
            let lost = if worker.is_away() {
                LostReason::ConnectionLost
            } else {
                LostReason::HeartbeatLost
            };
            // A worker that was asked to stop may be slow to end its tasks. For its other tasks,
            // this is not a crash.
            let reason = worker.lost_reason(lost);
            self.lose_worker(ctx, id, reason);
        }
        self.overdue_left = is_cut.then_some(heard);
    }

    pub(super) fn on_report(&mut self, ctx: &mut Ctx<'_>, id: WorkerId, report: Report) {
        let mut touched = BTreeSet::new();
        let worker = self.workers.get_mut(id).zip(report.sent);
        let made = worker.map_or(ctx.now.wall, |(worker, sent)| worker.date(sent, ctx.now));
        // Starts are handled first, because a task can have started and ended since the last
        // report.
        for row in report.started {
            self.on_started(ctx, id, row, made);
            touched.insert(row.task.job);
        }
        let ended = u32::try_from(report.ended.len()).unwrap_or(u32::MAX);
        for row in report.ended {
            touched.insert(row.task.job);
            self.on_ended(ctx, id, row, made);
        }
        for (task, instance) in report.retracted {
            if self.on_retracted(ctx, id, task, instance) {
                touched.insert(task.job);
            }
        }
        if let Some(worker) = self.workers.get_mut(id) {
            worker.count_ended(ctx.now.mono, ended);
        }
        self.promote(ctx.now, id);
        for job in touched {
            self.note_job_progress(ctx, job);
        }
        self.dispatcher.note_room(id);
        // The worker forgets these ends when it gets the acknowledgement, which waits for the
        // commit.
        if report.seq > 0 {
            ctx.send(id, WorkerCommand::Acknowledge(report.seq));
        }
    }

    /// Handles a start. The report was made at `made`.
    fn on_started(&mut self, ctx: &mut Ctx<'_>, id: WorkerId, row: StartedRow, made: Timestamp) {
        let assigned = self
            .workers
            .get_mut(id)
            .and_then(|worker| worker.start(row.task, row.instance, self.dispatcher.classes()));
        let Some(assigned) = assigned else {
            self.ignored.stale_rows += 1;
            return;
        };
        if assigned.turn != Turn::Now {
            let limits = self.dispatcher.limits_mut();
            limits.take_place(assigned.limits, row.task.job);
        }
        if assigned.turn == Turn::LaterWithMore {
            self.heads.push(id, assigned.slot.of(row.task.job));
        }
        // The predecessor has finished, even if that is reported later.
        if let Some(job) = self.jobs.get_mut(row.task.job)
            && assigned.turn != Turn::Now
        {
            job.ahead.note_turn();
        }
        let phase = self.holds(id, row.task.job, &assigned);
        if phase.is_some_and(Phase::is_sent) {
            let at = made.minus(row.age);
            self.note_start(ctx, id, row.task, &assigned, at);
            let task = assigned.slot.of(row.task.job);
            self.jobs.set_phase(task, Phase::Running);
            self.note_probe(ctx.now.mono, id);
        }
    }

    /// Returns the phase of the task, if this worker's instance is current and has not ended.
    pub(super) fn holds(&self, id: WorkerId, job: JobId, assigned: &Assigned) -> Option<Phase> {
        let record = self.jobs.get(job)?.record(assigned.slot)?;
        let is_current = record.worker() == id
            && record.instance() == assigned.instance
            && (record.phase().is_sent() || record.phase() == Phase::Running);
        is_current.then(|| record.phase())
    }

    pub(super) fn note_start(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: WorkerId,
        task: TaskKey,
        assigned: &Assigned,
        at: Timestamp,
    ) {
        let submit = self
            .jobs
            .get(task.job)
            .and_then(|job| job.submit(assigned.slot));
        let nodes = submit.map_or(&[][..], |submit| submit.tasks.nodes(assigned.slot.index));
        let nodes: Box<[WorkerId]> = nodes.into();
        let others = nodes.iter().copied().filter(|node| *node != id);
        for node in others.chain([id]) {
            if let Some(worker) = self.workers.get_mut(node) {
                worker.set_last_task(task, at);
            }
        }
        let started = ChangeKind::TaskStarted {
            nodes,
            task,
            instance: assigned.instance,
            variant: assigned.variant,
            worker: id,
        };
        ctx.persist_at(at, started);
        self.jobs.count_started();
        if let Some(job) = self.jobs.get_mut(task.job) {
            job.workers.insert(id);
            // The task started at this time, not when the start was reported.
            if let Some(record) = job.touch(assigned.slot) {
                record.start(at);
            }
        }
    }

    fn on_ended(&mut self, ctx: &mut Ctx<'_>, id: WorkerId, row: EndedRow, made: Timestamp) {
        let job = row.task.job;
        let worker = self.workers.get(id);
        let known = worker.and_then(|worker| worker.assignment(row.task, row.instance));
        let current = known.and_then(|assigned| self.holds(id, job, assigned));
        if row.outcome == Outcome::Killed && current.is_some() {
            // The worker is ending and kills its tasks. They are requeued when the worker has left,
            // because the reason is known only then.
            return;
        }
        let assigned = self
            .workers
            .get_mut(id)
            .and_then(|worker| worker.remove(row.task, row.instance, self.dispatcher.classes()));
        let Some(assigned) = assigned else {
            self.ignored.stale_rows += 1;
            return;
        };
        let behind = self.note_left(row.task, &assigned);
        self.release_gang(ctx, row.task);
        let Some(phase) = current else {
            // The task was canceled, or runs elsewhere as a later instance.
            return;
        };
        let at = made.minus(row.age);
        // The task started and ended between two reports, so its start was never reported.
        if phase.is_sent() {
            self.note_start(ctx, id, row.task, &assigned, at.minus(row.run));
        }
        let end = TaskEnd {
            outcome: row.outcome,
            at,
            run: row.run,
            usage: row.usage,
        };
        // This must come first, because a fault of the node is not a failure of the task.
        let at = assigned.slot.of(job);
        if self.weigh_end(ctx, id, row.task, &assigned, &end) {
            self.run_again(ctx, at, end);
            return;
        }
        let ran = !end.run.is_zero();
        // Retries are decided before the consequences of a failure for other tasks.
        if end.outcome != Outcome::Finished
            && self.may_retry(at, |retry| retry.allows(&end.outcome, ran))
            && !self.is_too_large(ctx.now.mono, at, assigned.key.class, &end.outcome)
        {
            self.retry(ctx, at, Some(assigned.key.class), end);
            return;
        }
        self.end_task(ctx, at, &end);
        let next = behind.filter(|_| end.outcome == Outcome::Finished);
        if let Some(next) = next.filter(|next| self.jobs.phase(*next) == Some(Phase::Queued)) {
            self.take_turn(ctx.now.mono, next);
        }
    }

    /// Returns whether a failed task gets another attempt.
    pub(super) fn may_retry(&self, at: TaskAt, is_allowed: impl Fn(&RetrySpec) -> bool) -> bool {
        let submit = self.jobs.submit(at.submit());
        let found = submit.and_then(|submit| {
            let retries = submit.tasks.record(at.slot.index)?.retry_count();
            let definition = submit.definition(at.slot.index)?;
            Some(retries < definition.retry.limit && is_allowed(&definition.retry))
        });
        found == Some(true)
    }

    /// Stores that a started instance was given up, and the next instance.
    pub(super) fn note_requeued(&mut self, ctx: &mut Ctx<'_>, at: TaskAt, grown: Option<Grant>) {
        self.jobs.note_superseded(at);
        let Some((task, record)) = self.jobs.dispatched(at) else {
            bug!("there is no record of {at:?}, which is queued again");
            return;
        };
        let submit = self.jobs.submit(at.submit());
        let attempt = submit.and_then(|submit| submit.tasks.attempts(at.slot.index).last());
        let requeued = ChangeKind::TaskRequeued {
            task,
            instance: record.instance(),
            crash_count: record.crash_count(),
            retry_count: u32::from(record.retry_count()),
            attempt: attempt
                .filter(|attempt| attempt.instance.next() == record.instance())
                .cloned(),
            grown,
        };
        ctx.persist(requeued);
    }

    /// Schedules the next attempt of a failed task. `class` is the class of the failed attempt, if
    /// known.
    pub(super) fn retry(
        &mut self,
        ctx: &mut Ctx<'_>,
        at: TaskAt,
        class: Option<ClassId>,
        end: TaskEnd,
    ) {
        let TaskAt { job: id, slot } = at;
        let Some(job) = self.jobs.get_mut(id) else {
            bug!("job {id} is gone, but a task of it is tried again");
            return;
        };
        let outcome = end.outcome.clone();
        // This must happen before the next instance is counted, because the record is still that of
        // the instance that ended.
        job.record_attempt(slot, end);
        let count = job.touch(slot).map_or(0, TaskRecord::count_retry);
        let task = self.jobs.definition(at);
        let delay = task.map_or(Duration::ZERO, |task| task.retry.delay_before(count));
        self.jobs.set_phase(at, Phase::Waiting);
        // This must happen before the task is queued, so that it is queued with its grown request.
        let grown = self.grow(ctx.now.mono, at, class, &outcome);
        self.note_requeued(ctx, at, grown);
        if self.drop_if_doomed(ctx, at) {
            return;
        }
        if delay.is_zero() {
            self.make_ready(at);
        } else {
            self.jobs.delay(ctx.now.mono + delay, at);
        }
    }

    /// Releases tasks whose retry delay is over. Skips tasks that have ended meanwhile.
    fn release_delayed(&mut self, now: Now) {
        while let Some(at) = self.jobs.next_retry(now.mono) {
            if self.jobs.phase(at) == Some(Phase::Waiting) {
                self.make_ready(at);
            }
        }
    }

    /// Handles a task that the worker returned. Returns whether the task was aborted.
    fn on_retracted(
        &mut self,
        ctx: &mut Ctx<'_>,
        id: WorkerId,
        task: TaskKey,
        instance: InstanceId,
    ) -> bool {
        let (now, classes) = (ctx.now.mono, self.dispatcher.classes());
        let worker = self.workers.get_mut(id);
        let assigned =
            worker.and_then(|worker| worker.remove_unstarted(task, instance, now, classes));
        let Some(assigned) = assigned else {
            self.ignored.stale_rows += 1;
            return false;
        };
        self.note_left(task, &assigned);
        if let Some(job) = self.jobs.get_mut(task.job)
            && assigned.turn != Turn::Now
            && !assigned.retracting
        {
            job.ahead.note_returned(ctx.now.mono);
        }
        let had_nodes = self.release_gang(ctx, task);
        self.holds(id, task.job, &assigned).is_some()
            && self.requeue_unstarted(ctx, assigned.slot.of(task.job), had_nodes)
    }

    /// Requeues a dispatched task without a reported start. With `as_next`, the task gets a new
    /// instance, because the old instance may reappear (it may have started, or its nodes are
    /// stored). Returns whether the task was aborted instead.
    pub(super) fn requeue_unstarted(
        &mut self,
        ctx: &mut Ctx<'_>,
        at: TaskAt,
        as_next: bool,
    ) -> bool {
        // From now on, a late report about the old instance is stale.
        if as_next {
            self.supersede(ctx, at);
        } else if let Some(job) = self.jobs.get_mut(at.job) {
            job.skip_superseded(at.slot);
        }
        self.requeue(ctx, at)
    }

    /// Gives up the current instance of a task, which is not an attempt, and stores the next one.
    pub(super) fn supersede(&mut self, ctx: &mut Ctx<'_>, at: TaskAt) {
        if let Some(record) = self.jobs.touch(at) {
            record.supersede();
        }
        self.note_requeued(ctx, at, None);
    }

    /// Requeues a dispatched task. Returns whether it was aborted instead.
    pub(super) fn requeue(&mut self, ctx: &mut Ctx<'_>, at: TaskAt) -> bool {
        self.jobs.set_phase(at, Phase::Waiting);
        let is_dropped = self.drop_if_doomed(ctx, at);
        if !is_dropped {
            self.make_ready(at);
        }
        is_dropped
    }

    /// Aborts a requeued task and its dependents if a dependency has failed. This is possible after
    /// a crash, if a task end that was never stored had released the task.
    fn drop_if_doomed(&mut self, ctx: &mut Ctx<'_>, at: TaskAt) -> bool {
        let TaskAt { job: id, slot } = at;
        let doomed = self.jobs.get(id).filter(|job| job.is_doomed(slot));
        let Some(job) = doomed else {
            return false;
        };
        let mut slots = job.descendants(slot);
        slots.push(slot);
        self.drop_waiting(ctx, id, slots);
        true
    }

    /// Records that a task has ended for good, and handles the consequences for other tasks.
    pub(super) fn end_task(&mut self, ctx: &mut Ctx<'_>, at: TaskAt, end: &TaskEnd) {
        let TaskAt { job: id, slot } = at;
        let is_finished = end.outcome == Outcome::Finished;
        let Some(job) = self.jobs.get_mut(id) else {
            bug!("job {id} is gone, but a task of it ends");
            return;
        };
        job.record_end(slot, end);
        if is_finished {
            let has_learned = job.learn(slot, end);
            let free = job.release_dependents(slot);
            if has_learned {
                self.look_at(ctx.now.mono, at.submit());
            }
            self.jobs.set_phase(at, Phase::Finished);
            // This must happen before dependents can be dispatched, because other workers must not
            // receive them before the commit.
            self.tell_end(ctx, at, end, !free.is_empty());
            for free in free {
                // The task may have been canceled while it waited, or be blocked by another job. It
                // may also have run before its worker reported this end; see `adopt`.
                let at = free.of(id);
                let phase = self.jobs.phase(at);
                let is_waiting = phase == Some(Phase::Waiting);
                if is_waiting && self.is_free(at) && !self.jobs.is_delayed(at) {
                    self.make_ready(at);
                } else if phase == Some(Phase::Queued) {
                    self.take_turn(ctx.now.mono, at);
                }
            }
            return;
        }
        let dependents = job.descendants(slot);
        self.jobs.set_phase(at, Phase::Failed);
        self.tell_end(ctx, at, end, false);
        let exceeds = self.jobs.get(id).is_some_and(Job::exceeds_max_fails);
        self.forget_successors(id, &dependents);
        self.drop_waiting(ctx, id, dependents);
        if exceeds {
            self.end_job(ctx, id, Phase::Aborted);
        }
    }

    /// Stores the end of a task and notifies waiting clients. `frees` says whether the end releases
    /// another task.
    fn tell_end(&mut self, ctx: &mut Ctx<'_>, at: TaskAt, end: &TaskEnd, frees: bool) {
        let Some((task, record)) = self.jobs.dispatched(at) else {
            bug!("there is no record of {at:?}, which ends");
            return;
        };
        let ended = ChangeKind::TaskEnded {
            task,
            instance: record.instance(),
            worker: record.worker(),
            crash_count: record.crash_count(),
            end: end.clone(),
            is_finished: end.outcome == Outcome::Finished,
            awaited: match self.jobs.is_end_awaited(at.job) {
                true => EndAwaited::ByJobs,
                false if frees => EndAwaited::ByTasks,
                false => EndAwaited::No,
            },
        };
        ctx.persist_at(end.at, ended);
        self.audience
            .note_ended(at.job, IdRange::single(task.task.0));
        self.jobs.note_end(at.job, Some(task.task));
    }
}
