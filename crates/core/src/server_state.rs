//! The server's decisions as a pure state machine: inputs in, effects out.
//!
//! It owns the jobs, the workers, the ready queue and the watching clients, but has no access to
//! sockets, clocks, files, threads or random sources. The shell feeds it inputs and carries out its
//! effects. For each batch of inputs, the shell calls [`ServerState::apply`] for each input and
//! then [`ServerState::settle`] once, which schedules tasks and notifies watching clients.
//! [`ServerState::check_invariants`] lists the invariants.
//!
//! Late, duplicate, unknown and impossible messages are legal inputs. They are ignored and counted.

mod after;
mod allocate;
mod asks;
mod assign;
mod attach;
mod audience;
mod change;
mod control;
mod ctx;
mod demand;
mod dispatcher;
mod drain;
mod effect;
mod ending;
mod gate;
mod held;
mod hold;
mod input;
mod lost;
mod notify;
mod offers;
mod origin;
mod prepared;
mod quarantine;
mod refusal;
mod remake;
mod requests;
mod reservations;
mod restore;
mod resubmit;
mod retract;
mod revise;
mod schedule;
mod submit;
mod submit_key;
mod successors;
mod sweep;
mod task_limits;
mod triggers;
mod worker_events;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
#[cfg(test)]
use std::sync::Arc;

pub use crate::job::{JobTotals, TaskTotals, Totals};
pub use crate::notice::{Notice, NoticeKey, NoticeOutcome, NoticeState};
pub use crate::task::{StoredNodes, StoredTask};
pub use crate::worker::{AwaitedEnds, ENDED_WORKERS_MAX, LinkEnd};
pub use change::{AllocationChange, Change, ChangeKind, EndAwaited};
pub use effect::{
    Assignment, ChangedTasks, Effect, Freed, Notification, Reply, Resubmitted, Signaled,
    StopResult, WatchUpdate, WatchedJob, WorkerCommand,
};
pub use gate::{Gate, Wait};
pub use input::{
    CANCELED_MAX, Command, EndedRow, HELD_RANGES_MAX, Input, JobResult, LinkId, ROWS_PER_ROUND_MAX,
    Reattach, Report, RequestId, StartedRow, WatchSpec, WorkerMessage,
};
pub use prepared::{BodyEncoder, EncodedBody, Prepared, Submission, is_large};
pub use quarantine::QUARANTINE;
pub use refusal::SubmitRefusal;
pub use remake::{Again, is_large_job, specs};
pub use restore::{JobRecord, RestoreError, StoredWorker};
pub use submit_key::SubmitKey;
pub use triggers::RoundSize;

use crate::autoalloc::AutoallocState;
use crate::bug;
use crate::class::{Classes, QueueKey, VariantDemand};
use crate::id::{JobId, QueueId, WorkerId};
#[cfg(any(test, feature = "testing"))]
use crate::job::TaskSlot;
use crate::job::{Job, Jobs, TaskAt};
use crate::outcome::LostReason;
use crate::scheduler::worker_plan::WorkerPlan;
use crate::selector::{Selected, Selector};
use crate::time::{Now, Time};
use crate::worker::{Worker, Workers};
use asks::Learning;
use audience::Audience;
use ctx::Ctx;
use dispatcher::Dispatcher;
use offers::Offers;
use quarantine::Suspicions;
use requests::{Pending, Work};
use submit_key::SubmitKeys;
use successors::Heads;
use sweep::JobAction;

/// The numbers of inputs that made no sense and were ignored.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Ignored {
    /// The number of reports about instances that were superseded or never sent.
    pub stale_rows: u64,
    /// The number of messages of workers that have ended.
    pub unknown_workers: u64,
    /// The number of registrations that arrived after a newer one of the same worker.
    pub late_registrations: u64,
}

/// The whole state of the server.
#[derive(Clone, Debug, Default)]
pub struct ServerState {
    jobs: Jobs,
    workers: Workers,
    dispatcher: Dispatcher,
    audience: Audience,
    last_template: u32,
    /// The workers and queues that could grant tasks more than they requested.
    offers: Offers,
    /// The submits that learn from their tasks.
    learning: Learning,
    /// The queues of automatic allocation.
    autoalloc: AutoallocState,
    /// The queues that this round has to store.
    changed_queues: BTreeSet<QueueId>,
    /// [`Self::is_demand_partial`] at the end of the last round.
    was_demand_partial: bool,
    ignored: Ignored,
    /// The workers that seem broken.
    suspicions: Suspicions,
    /// When the last portion of losses was handled, if overdue workers are left.
    overdue_left: Option<Time>,
    /// Set while the server is shutting down. Says whether the workers stay.
    ending: Option<ending::Ending>,
    /// The unanswered requests that concern very many submits or jobs.
    pending: VecDeque<Pending>,
    /// The idempotency keys of submits.
    submit_keys: SubmitKeys,
    /// The effects of the restore that have not been emitted yet.
    owed: Vec<Effect>,
    /// The tasks whose successors can be sent.
    heads: Heads,
    /// Whether nothing is stored, so that no state survives the server.
    is_volatile: bool,
    /// The uid of the server, which can be part of paths.
    uid: Box<str>,
}

impl ServerState {
    /// Creates the state of an empty server with this uid.
    #[must_use]
    pub fn new(uid: &str) -> Self {
        Self {
            uid: uid.into(),
            ..Self::default()
        }
    }

    /// Creates the state of a server without a store. Its workers need not keep anything for the
    /// next server.
    #[must_use]
    pub fn without_store(uid: &str) -> Self {
        Self {
            is_volatile: true,
            ..Self::new(uid)
        }
    }

    /// Lowers the size limit of assignments, so that small tests cover divided assignments.
    #[cfg(any(test, feature = "testing"))]
    pub const fn limit_assignments(&mut self, bytes: usize) {
        self.dispatcher.limit_assignments(bytes);
    }

    /// Lowers the portion size, so that small tests cover divided work.
    #[cfg(any(test, feature = "testing"))]
    pub const fn limit_portions(&mut self, count: u32) {
        self.dispatcher.limit_portions(count);
    }

    /// Lowers the number of tasks that are sent ahead at once, regardless of the run times of the
    /// job's tasks.
    #[cfg(any(test, feature = "testing"))]
    pub const fn limit_successors(&mut self, portion: u32) {
        self.heads.limit(portion);
    }

    /// Returns whether portions of work are left.
    #[cfg(test)]
    pub(crate) fn has_portions_left(&self) -> bool {
        self.dispatcher.is_unsettled()
    }

    /// Returns the number of ready tasks in each queue.
    #[cfg(test)]
    pub(crate) fn ready_counts(&self) -> impl Iterator<Item = (QueueKey, u64)> + '_ {
        self.dispatcher.ready().counts()
    }

    /// Returns the number of tasks of each queue that workers are needed for.
    #[cfg(test)]
    pub(crate) fn needed_counts(&self) -> impl Iterator<Item = (QueueKey, u64)> + '_ {
        let ready = self.dispatcher.ready();
        ready.needed(ready.keys())
    }

    /// Marks templates as known to a worker.
    #[cfg(test)]
    pub(crate) fn teach(&mut self, id: WorkerId, job: JobId, templates: std::ops::Range<u32>) {
        let worker = self.workers.get_mut(id).expect("connected");
        for template in templates {
            worker.learn_template(job, crate::job::TemplateId(template));
        }
    }

    /// Returns whether queues are missing in the request index.
    #[cfg(test)]
    pub(crate) fn is_queue_behind(&self) -> bool {
        self.dispatcher.ready().is_behind()
    }

    /// Returns whether discarded queues must still be freed.
    #[cfg(test)]
    pub(crate) fn is_queue_freeing(&self) -> bool {
        self.dispatcher.ready().is_freeing()
    }

    /// Returns the uid of the server.
    #[must_use]
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Returns the approximate cost of an input in rows. For a lost or reconnected worker, each of
    /// its tasks counts, and the search for its allocation.
    #[must_use]
    pub fn rows_of(&self, input: &Input) -> usize {
        let worker = if let Input::WorkerGone(id, _)
        | Input::WorkerMessage(id, WorkerMessage::Goodbye(_)) = input
        {
            self.workers.get(*id)
        } else if let Input::WorkerReattached(_, _, reattach) = input {
            self.workers.get(reattach.worker)
        } else {
            None
        };
        let has_search = worker.is_some()
            || matches!(
                input,
                Input::WorkerConnected(..) | Input::WorkerReattached(..)
            );
        let search = if has_search {
            self.autoalloc.search_rows()
        } else {
            0
        };
        input.rows() + worker.map_or(0, |worker| worker.assigned().len()) + search
    }

    /// Applies one input. Appends the effects in the order of their execution.
    pub fn apply(&mut self, now: Now, input: Input, effects: &mut Vec<Effect>) {
        let ctx = &mut Ctx::new(now, effects);
        match input {
            Input::Request(request, command) => {
                let reply = self.on_command(ctx, request, command);
                self.reply(ctx, request, reply);
            }
            Input::Submit(request, submission) => {
                let reply = self.begin(ctx, request, Work::Submits(*submission));
                self.reply(ctx, request, reply);
            }
            Input::Resubmit(request, again) => {
                let reply = self.resubmit(ctx, request, *again);
                self.reply(ctx, request, reply);
            }
            // Only watch requests live longer than their first answer.
            Input::RequestGone(request) => self.audience.remove(request),
            Input::WorkerConnected(link, config) => {
                self.forget_unanswered(ctx, &config);
                self.on_worker_connected(ctx, link, config);
            }
            Input::WorkerReattached(link, config, reattach) => {
                self.on_worker_reattached(ctx, link, config, *reattach);
            }
            Input::WorkerMessage(worker, message) => {
                self.on_worker_message(ctx, worker, message);
            }
            Input::WorkerGone(worker, how) => self.on_worker_gone(ctx, worker, how),
            Input::Notified {
                key,
                attempts,
                error,
            } => self.note_notified(ctx, key, attempts, error),
            Input::Allocation(inputs) => {
                for input in inputs {
                    self.allocate(ctx, input);
                }
            }
            Input::Ending { keep_workers } => self.on_ending(ctx, keep_workers),
            Input::Ended => self.give_up_leaving(ctx),
            Input::Timer => self.on_timer(ctx, Some(now.mono)),
            Input::TimerBehind(heard) => self.on_timer(ctx, Some(heard.min(now.mono))),
            Input::TimerHeld => self.on_timer(ctx, None),
        }
    }

    /// Sets the time since which messages to workers may have been waiting for the disk. `None`
    /// means that all have been sent. Must be called before each [`Self::settle`], because the time
    /// that a task has to start is counted from when it is sent.
    pub const fn note_unsent(&mut self, since: Option<Time>) {
        self.dispatcher.note_unsent(since);
    }

    /// Ends a batch of inputs: dispatches tasks and notifies watching clients.
    pub fn settle(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let ctx = &mut Ctx::new(now, effects);
        // Effects of the restore come before everything that follows from inputs.
        ctx.emit_all(std::mem::take(&mut self.owed));
        self.follow_up(ctx);
        self.go_on_draining(ctx);
        self.go_on_suspecting(ctx);
        // A server that is shutting down dispatches nothing.
        if self.ending.is_none() {
            self.go_on(ctx, self.portion());
            self.queue_portion(ctx);
            self.look_portion(ctx.now.mono);
            self.dispatcher.leave_portion();
            // Portions can end jobs as well.
            self.follow_up(ctx);
            self.schedule(ctx);
        }
        self.settle_queues(ctx);
        // This comes last, so that one update covers the whole batch.
        let changed = self.jobs.take_changed();
        self.audience.settle(ctx, &changed, &mut self.jobs);
    }

    /// Returns when the next [`Input::Timer`] is due.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Time> {
        [
            self.workers.next_deadline(),
            self.audience.next_deadline(),
            // During shutdown, no further round would clear the due time.
            self.dispatcher.due_at().filter(|_| self.ending.is_none()),
            self.jobs.next_deadline(),
            self.suspicions.next_deadline(),
            self.learning_due(),
            self.autoalloc.due().filter(|_| self.ending.is_none()),
            self.needed_due(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Returns all jobs that have not been forgotten.
    #[must_use]
    pub const fn jobs(&self) -> &BTreeMap<JobId, Job> {
        self.jobs.all()
    }

    /// Returns the time of a task's next attempt, if the attempt is delayed.
    #[must_use]
    pub fn next_attempt(&self, at: TaskAt) -> Option<Time> {
        self.jobs.next_attempt(at)
    }

    /// Returns the sums over all jobs as of the last [`ServerState::settle`].
    #[must_use]
    pub const fn totals(&self) -> &Totals {
        self.jobs.totals()
    }

    /// Returns the workers that are connected or expected back.
    #[must_use]
    pub const fn workers(&self) -> &BTreeMap<WorkerId, Worker> {
        self.workers.live()
    }

    /// Returns the last [`ENDED_WORKERS_MAX`] workers that have ended in this run of the server.
    #[must_use]
    pub const fn ended_workers(&self) -> &BTreeMap<WorkerId, Worker> {
        self.workers.ended()
    }

    /// Returns the workers that waiting tasks are compared with: the live ones, or if a state that
    /// is only read has none, the ended ones.
    #[must_use]
    pub fn comparable_workers(&self) -> &BTreeMap<WorkerId, Worker> {
        self.workers.comparable()
    }

    /// Returns the number of workers that have ended in this run of the server, by reason.
    #[must_use]
    pub const fn ended_counts(&self) -> &BTreeMap<LostReason, u64> {
        self.workers.ended_counts()
    }

    /// Returns the last worker that ended neither on request nor with a goodbye.
    #[must_use]
    pub const fn last_lost(&self) -> Option<WorkerId> {
        self.workers.last_lost()
    }

    /// Returns a live or ended worker of this run of the server.
    #[must_use]
    pub fn worker(&self, id: WorkerId) -> Option<&Worker> {
        self.workers.known(id)
    }

    /// Returns the live or ended workers that match a selector. `all` selects all known workers.
    #[must_use]
    pub fn find_workers(&self, selector: &Selector) -> Selected<WorkerId> {
        self.workers.find(selector)
    }

    /// Returns the number of workers of an earlier run that are still expected back.
    #[must_use]
    pub fn awaited_workers(&self) -> usize {
        self.workers.awaited()
    }

    /// Returns the host name of a worker, which may be a worker of an earlier run.
    #[must_use]
    pub fn hostname(&self, id: WorkerId) -> Option<&str> {
        self.workers.hostname(id)
    }

    /// Returns the interned request classes.
    #[must_use]
    pub const fn classes(&self) -> &Classes {
        self.dispatcher.classes()
    }

    /// Returns the highest job id ever assigned.
    #[must_use]
    pub const fn last_job(&self) -> Option<JobId> {
        self.jobs.last_id()
    }

    /// Returns the highest worker id ever assigned.
    #[must_use]
    pub const fn last_worker(&self) -> Option<WorkerId> {
        self.workers.last_id()
    }

    /// Returns the numbers of ignored inputs.
    #[must_use]
    pub const fn ignored(&self) -> Ignored {
        self.ignored
    }

    /// Returns the size of the last round of [`ServerState::settle`], which says how much it
    /// examined.
    #[must_use]
    pub const fn last_round(&self) -> RoundSize {
        self.dispatcher.last_round()
    }

    /// Returns the number of tasks that could run if a worker had room.
    #[must_use]
    pub fn ready_len(&self) -> u64 {
        self.dispatcher.ready().len()
    }

    /// Returns the job that a worker keeps free resources for, although a task of this queue could
    /// use them now, and whether that job is more urgent.
    #[must_use]
    pub fn kept_for(
        &self,
        key: QueueKey,
        demand: &VariantDemand,
        worker: &Worker,
    ) -> Option<(JobId, bool)> {
        let requests = worker.waiting().chain(worker.reserved_variants());
        let requests = requests
            .map(|(other, _)| other)
            .chain(worker.reserved_for());
        let other = requests.filter(|other| *other != key).min()?;
        let may_keep = other.priority <= key.priority && worker.accepts_work();
        // Without room for the task, the tasks that run there are in its way.
        if !may_keep || !WorkerPlan::new(worker).has_free(demand) {
            return None;
        }
        let mut sent = worker.assigned().iter();
        let sent = sent.find(|(_, task)| task.key == other && !task.placed);
        let job = sent.map(|(task, _)| task.job);
        let job = job.or_else(|| self.dispatcher.ready().first_job(other))?;
        Some((job, other.priority < key.priority))
    }

    fn on_command(
        &mut self,
        ctx: &mut Ctx<'_>,
        request: RequestId,
        command: Command,
    ) -> Option<Reply> {
        Some(match command {
            Command::Submit(spec) => {
                let submission = Submission::one(spec, None);
                return self.begin(ctx, request, Work::Submits(submission));
            }
            Command::SubmitAll(specs) => {
                let submission = Submission::list(specs);
                return self.begin(ctx, request, Work::Submits(submission));
            }
            Command::OpenJob {
                name,
                max_fails,
                key,
            } => match self.open_job(ctx, name, max_fails, key) {
                Ok(id) => Reply::Submitted(id),
                Err(refusal) => Reply::Refused(refusal),
            },
            Command::CloseJobs(jobs) => {
                return self.on_sweep(ctx, request, &jobs, JobAction::Close);
            }
            Command::CancelJobs { jobs, reason } => {
                return self.on_sweep(ctx, request, &jobs, JobAction::Cancel(reason));
            }
            Command::CancelTasks {
                job,
                tasks,
                keep_running,
            } => Reply::Jobs(self.cancel_tasks(ctx, job, &tasks, keep_running)),
            Command::SignalTasks { job, tasks, signal } => {
                Reply::Signaled(self.signal_tasks(ctx, job, &tasks, signal))
            }
            Command::HoldTasks {
                job,
                tasks,
                is_held,
            } => match self.hold_tasks(ctx, job, tasks.as_ref(), is_held) {
                Some(held) => Reply::Changed(Ok(held)),
                None => Reply::Refused(SubmitRefusal::JobNotFound(job)),
            },
            Command::ChangeJob { job, tasks, change } => {
                Reply::Changed(self.change_job(ctx, job, tasks.as_ref(), &change))
            }
            Command::Limit(change) => Reply::Limit(self.change_limit(ctx, &change)),
            Command::DropEntries { job, tasks } => self.drop_entries(ctx, job, &tasks),
            Command::ForgetJobs { jobs, states } => {
                return self.on_sweep(ctx, request, &jobs, JobAction::Forget(states));
            }
            Command::Resubmit {
                jobs,
                states,
                requests,
            } => {
                return self.resubmit(ctx, request, Again::states(jobs, states, requests));
            }
            Command::ResubmitTasks { job, positions } => {
                return self.resubmit(ctx, request, Again::positions(job, positions));
            }
            Command::Queue(command) => Reply::Queue(self.change_queue(ctx, command)),
            Command::StopWorkers(workers) => Reply::Workers(self.stop_workers(ctx, &workers)),
            Command::DrainWorkers(workers) => Reply::Workers(self.drain_workers(ctx, &workers)),
            Command::QuarantineWorkers { workers, span, why } => {
                Reply::Workers(self.quarantine_workers(ctx, &workers, span, &why))
            }
            Command::ReleaseWorkers(workers) => Reply::Workers(self.release_workers(ctx, &workers)),
            Command::Watch(spec) => {
                // "all" does not include completed jobs, because they have no news.
                let jobs = self.jobs.select(&spec.jobs, |job| !job.is_completed());
                self.audience.add(ctx.now.mono, request, spec, jobs);
                return None;
            }
        })
    }

    /// Answers a request, unless the answer follows later. If the request added work, automatic
    /// allocation checks the demand again.
    fn reply(&mut self, ctx: &mut Ctx<'_>, request: RequestId, reply: Option<Reply>) {
        if let Some(Reply::Submitted(_) | Reply::SubmittedAll(_) | Reply::Resubmitted(_)) = reply {
            self.autoalloc.note_change(ctx.now);
        }
        ctx.emit_all(reply.map(|reply| Effect::Reply(request, reply)));
    }

    fn on_sweep(
        &mut self,
        ctx: &mut Ctx<'_>,
        request: RequestId,
        jobs: &Selector,
        action: JobAction,
    ) -> Option<Reply> {
        let sweep = self.sweep(jobs, action);
        self.begin(ctx, request, Work::Sweep(sweep))
    }

    fn resubmit(&mut self, ctx: &mut Ctx<'_>, request: RequestId, again: Again) -> Option<Reply> {
        let jobs = again.jobs.clone();
        self.on_sweep(ctx, request, &jobs, JobAction::Resubmit(Box::new(again)))
    }

    /// Returns the jobs that match a selector. Takes O(known jobs within its ranges + ranges).
    #[must_use]
    pub fn find_jobs(&self, selector: &Selector) -> Selected<JobId> {
        self.jobs.find(selector)
    }

    /// Puts a waiting task into the ready queue. Held or blocked tasks follow later.
    fn make_ready(&mut self, at: TaskAt) {
        // A held task follows when the last expected worker has returned or is lost.
        if self.jobs.is_held(at) {
            return;
        }
        let TaskAt { job, slot } = at;
        let found = self.jobs.get(job).filter(|job| !job.is_blocked(slot));
        let key = found.and_then(|job| Dispatcher::queue_key(job, slot));
        if let Some(key) = key {
            let indices = slot.index..slot.index + 1;
            self.dispatcher.enqueue(key, at.submit(), indices);
        }
    }

    /// Tells workers to end the tasks of a job, which are already terminal in the state.
    fn kill_assigned(&self, ctx: &mut Ctx<'_>, job: JobId) {
        let sent_to = self.jobs.get(job).map(Job::sent_to);
        let ids = sent_to.into_iter().flatten();
        for worker in ids.filter_map(|id| self.workers.get(*id)) {
            let tasks = worker.assigned_of(job);
            let tasks: Vec<_> = tasks
                .map(|(task, assigned)| (*task, assigned.instance))
                .collect();
            // The worker may only know templates of the job.
            if !tasks.is_empty() {
                ctx.send(worker.id, WorkerCommand::Kill(tasks));
            }
        }
    }

    /// Kills the processes that still run in a job without unfinished tasks. Returns their number.
    fn kill_now(&self, ctx: &mut Ctx<'_>, job: JobId) -> u32 {
        let mut killed = 0;
        for worker in self.workers.live().values() {
            // The other tasks end without a process.
            let running = worker.assigned_of(job).filter(|(_, task)| task.started);
            let tasks: Vec<_> = running.map(|(key, task)| (*key, task.instance)).collect();
            if !tasks.is_empty() {
                killed += u32::try_from(tasks.len()).unwrap_or(u32::MAX);
                ctx.send(worker.id, WorkerCommand::KillNow(tasks));
            }
        }
        killed
    }

    /// Must be called after tasks of a job have ended. Notes the time, and drops the templates of
    /// completed jobs.
    fn note_job_progress(&mut self, ctx: &mut Ctx<'_>, id: JobId) {
        self.jobs.note_changed(id);
        let Some(job) = self.jobs.get_mut(id) else {
            // This is a late report about a forgotten job.
            return;
        };
        let is_new_idle = job.note_idle(ctx.now.wall);
        let (is_completed, is_new_completed) = (job.is_completed(), job.note_completed());
        if is_new_idle {
            ctx.persist(ChangeKind::JobIdle(id));
        }
        if is_new_completed {
            self.complete_job(ctx, id);
        }
        if !is_completed {
            self.close_if_over(ctx, id);
            return;
        }
        // No task needs the job's templates anymore, and waiting submits can continue.
        self.jobs.note_end(id, None);
        self.drop_templates(ctx, id);
    }

    /// Makes workers drop the templates of a job without tasks.
    fn drop_templates(&mut self, ctx: &mut Ctx<'_>, id: JobId) {
        let Some(job) = self.jobs.get_mut(id) else {
            bug!("job {id} is gone, but its templates are dropped");
            return;
        };
        for worker in job.take_sent_to() {
            // A worker that has ended needs no message.
            let found = self.workers.get_mut(worker);
            let known = found.map_or_else(Vec::new, |worker| worker.forget_templates(id));
            if !known.is_empty() {
                ctx.send(worker, WorkerCommand::DropTemplates(known));
            }
        }
    }

    /// Checks everything that must hold between two inputs. For tests only; takes O(tasks).
    ///
    /// # Panics
    ///
    /// If an invariant is broken. The message names it.
    #[cfg(any(test, feature = "testing"))]
    pub fn check_invariants(&self) {
        self.dispatcher.check(&self.workers);
        for job in self.jobs.all().values() {
            self.check_job(job);
        }
        self.jobs.check();
        self.check_suspicions();
    }

    #[cfg(any(test, feature = "testing"))]
    fn check_job(&self, job: &Job) {
        let mut counts = crate::job::TaskCounts::default();
        for (submit, number) in job.submits.iter().zip(0..) {
            for index in 0..submit.tasks.len() {
                let slot = TaskSlot::new(number, index);
                let phase = job.phase(slot).expect("index is in range");
                *counts.of(phase.state()) += 1;
                self.check_task(job, slot, phase);
            }
        }
        assert_eq!(
            &counts,
            job.counts(),
            "counters match states of job {}",
            job.id
        );
    }

    #[cfg(any(test, feature = "testing"))]
    fn check_task(&self, job: &Job, slot: TaskSlot, phase: crate::task::Phase) {
        use crate::task::Phase;
        let task = job.key(slot).expect("index is in range");
        // The order matters: most tasks have ended, and this runs for all tasks after every input.
        let at = slot.of(job.id);
        let should_be_ready = phase == Phase::Waiting
            && !job.is_blocked(slot)
            && !self.jobs.is_held(at)
            && self.is_free(at)
            && !self.jobs.is_delayed(at);
        self.dispatcher.check_task(job, slot, should_be_ready);
        if phase.is_sent() || phase == Phase::Running {
            let record = job.record(slot).expect("handed out tasks have a record");
            let worker = self
                .workers
                .get(record.worker())
                .expect("its worker exists");
            let assigned = worker
                .assigned()
                .get(&task)
                .expect("its worker has the task");
            assert_eq!(assigned.instance, record.instance(), "instance of {task}");
            assert_eq!(assigned.started, phase == Phase::Running, "start of {task}");
            assert_eq!(assigned.placed, phase != Phase::Queued, "room for {task}");
        }
    }
}

#[cfg(test)]
mod tests;
