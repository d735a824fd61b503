//! A server under test with its clock, its disk and simulated workers.
//!
//! A simulated worker does nothing by itself: the test decides which task starts and ends. The
//! worker learns its tasks and their instances from the messages that the server sends.

mod read;
mod specs;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

pub(super) use read::*;
pub(super) use specs::*;

use crate::autoalloc::QueueCommand;
use crate::batch::QueueParams;
use crate::id::{InstanceId, JobId, TaskId, TaskKey, WorkerId};
use crate::job::{JobState, TaskCounts, TemplateId};
use crate::outcome::{LostReason, Outcome, Usage};
use crate::range::IdArray;
use crate::selector::Selector;
use crate::server_state::{
    Change, Command, Effect, EndedRow, Gate, Input, JobResult, LinkEnd, LinkId, Reattach, Reply,
    Report, RequestId, Resubmitted, ServerState, StartedRow, SubmitRefusal, WatchSpec,
    WorkerCommand, WorkerMessage,
};
use crate::task::{Phase, TaskRecord, TaskState};
use crate::template::SubmitSpec;
use crate::testing::ledger::Ledger;
use crate::testing::sim::Disk;
use crate::testing::{queue_params, worker_config};
use crate::time::{Now, Time, Timestamp};
use crate::worker_config::{OnServerLost, SILENT_PERIODS_MAX, WorkerConfig};

/// Longer than any test, so that no heartbeat is sent by accident.
const NEVER: Duration = Duration::from_secs(1_000_000);

/// The heartbeat interval of workers that a test creates with [`Bench::mortal`].
pub(super) const HEARTBEAT: Duration = Duration::from_secs(8);
/// How long these workers may stay silent.
pub(super) const SILENCE_MAX: Duration = HEARTBEAT.saturating_mul(SILENT_PERIODS_MAX);

/// The number of rounds after which a server that still has work must be faulty.
const ROUNDS_MAX: u32 = 10_000;

/// A worker's view of a task.
#[derive(Clone, Copy, Debug)]
struct HeldTask {
    instance: InstanceId,
    is_started: bool,
    /// The unfinished dependency after which the task runs.
    follows: Option<TaskKey>,
}

/// The state of a simulated worker.
#[derive(Clone, Debug, Default)]
struct SimWorker {
    config: Option<WorkerConfig>,
    /// The job of each template that was sent to the worker.
    templates: BTreeMap<TemplateId, JobId>,
    tasks: BTreeMap<TaskKey, HeldTask>,
    registrations: u64,
    reports: u64,
}

pub(super) struct Bench {
    pub(super) state: ServerState,
    pub(super) now: Now,
    ledger: Ledger,
    gate: Gate<Effect>,
    uncommitted: Vec<Change>,
    uncommitted_since: Option<Time>,
    batch: u64,
    /// Whether commits happen only when the test asks for them.
    is_slow: bool,
    next_id: u64,
    hands: BTreeMap<WorkerId, SimWorker>,
    /// How long tasks run.
    run: Duration,
    /// Whether to skip the invariant checks, which examine every task.
    is_giant: bool,
}

impl Bench {
    pub(super) fn new() -> Self {
        Self {
            state: ServerState::new("test"),
            now: Now {
                mono: Time(1_000_000_000_000),
                wall: Timestamp(1_000_000_000_000),
            },
            ledger: Ledger::new("test"),
            gate: Gate::default(),
            uncommitted: Vec::new(),
            uncommitted_since: None,
            batch: 0,
            is_slow: false,
            next_id: 0,
            hands: BTreeMap::new(),
            run: Duration::from_secs(1),
            is_giant: false,
        }
    }

    /// Expects so many tasks from now on that nothing may examine each of them.
    pub(super) const fn expect_giants(&mut self) {
        self.is_giant = true;
    }

    fn check(&self) {
        if !self.is_giant {
            self.state.check_invariants();
        }
    }

    /// Sets how long tasks run from now on.
    pub(super) const fn run_for(&mut self, run: Duration) {
        self.run = run;
    }

    /// Creates a server with one worker that has this many cpus.
    pub(super) fn with_worker(cpus: u32) -> (Self, WorkerId) {
        let mut bench = Self::new();
        let worker = bench.worker(cpus);
        (bench, worker)
    }

    /// Applies an input and everything that is due at this time. Returns the executable effects.
    pub(super) fn apply(&mut self, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.note_unsent();
        self.state.apply(self.now, input, &mut effects);
        self.state.settle(self.now, &mut effects);
        for _ in 0..ROUNDS_MAX {
            let state = &self.state;
            let is_answered = state.unanswered() == 0;
            let due = self.state.next_deadline();
            if is_answered && due.is_none_or(|due| due > self.now.mono) {
                self.check();
                return self.carry_out(effects);
            }
            self.state.apply(self.now, Input::Timer, &mut effects);
            self.state.settle(self.now, &mut effects);
        }
        panic!("the server always has something more to do");
    }

    /// Applies an input and settles once, which is one portion of a large operation.
    pub(super) fn step(&mut self, input: Input) -> Vec<Effect> {
        let mut effects = Vec::new();
        self.note_unsent();
        self.state.apply(self.now, input, &mut effects);
        self.state.settle(self.now, &mut effects);
        self.check();
        self.carry_out(effects)
    }

    /// Tells the server since when messages to workers have been waiting for the disk.
    fn note_unsent(&mut self) {
        let is_any = self.gate.keeps_from_workers();
        let since = self.uncommitted_since.filter(|_| is_any);
        self.state.note_unsent(since);
    }

    fn carry_out(&mut self, effects: Vec<Effect>) -> Vec<Effect> {
        for effect in &effects {
            // An empty message to each worker would cost as much as a full one.
            if let Effect::ToWorker(_, WorkerCommand::DropTemplates(templates)) = effect {
                assert!(!templates.is_empty(), "{effect:?}");
            }
            if let Effect::ToWorker(_, WorkerCommand::Retract(tasks) | WorkerCommand::Kill(tasks)) =
                effect
            {
                assert!(!tasks.is_empty(), "{effect:?}");
            }
        }
        let changes: Vec<Change> = effects
            .iter()
            .filter_map(|effect| {
                let Effect::Persist(change) = effect else {
                    return None;
                };
                Some(change.clone())
            })
            .collect();
        if !self.is_slow {
            self.ledger.commit(&changes);
            self.hear(&effects);
            return effects;
        }
        if !changes.is_empty() {
            self.batch += 1;
            self.gate.note(self.batch, &changes);
            self.uncommitted_since.get_or_insert(self.now.mono);
            self.uncommitted.extend(changes);
        }
        let messages = effects
            .into_iter()
            .filter(|effect| !matches!(effect, Effect::Persist(_)));
        let passed: Vec<Effect> = messages
            .filter_map(|effect| self.gate.pass(effect.wait(), effect))
            .collect();
        self.hear(&passed);
        passed
    }

    /// Stops commits from now on until [`Bench::commit`].
    pub(super) fn slow_disk(&mut self) {
        self.is_slow = true;
    }

    /// Commits every change immediately from now on.
    pub(super) fn fast_disk(&mut self) {
        self.commit();
        self.is_slow = false;
    }

    /// Commits everything. Returns the effects that waited for the commit.
    pub(super) fn commit(&mut self) -> Vec<Effect> {
        self.uncommitted_since = None;
        self.ledger.commit(&std::mem::take(&mut self.uncommitted));
        self.gate.advance(self.batch);
        let released: Vec<Effect> = std::iter::from_fn(|| self.gate.next_ready()).collect();
        self.hear(&released);
        released
    }

    /// Crashes the server and starts another one from the committed state.
    pub(super) fn restart(&mut self) -> Vec<Effect> {
        self.uncommitted.clear();
        self.uncommitted_since = None;
        self.gate = Gate::default();
        self.batch = 0;
        self.state = self.ledger.restore(self.now);
        let mut effects = Vec::new();
        self.state.settle(self.now, &mut effects);
        self.check();
        self.carry_out(effects)
    }

    /// Delivers messages to the simulated workers.
    fn hear(&mut self, effects: &[Effect]) {
        for effect in effects {
            if let Effect::ToWorker(worker, command) = effect {
                self.hands.entry(*worker).or_default().hear(command);
            }
        }
    }

    /// Lets time pass and runs the timers that become due.
    pub(super) fn wait(&mut self, span: Duration) -> Vec<Effect> {
        let end = self.now.mono + span;
        let mut all = Vec::new();
        while let Some(due) = self.state.next_deadline().filter(|due| *due <= end) {
            self.skip(due.since(self.now.mono));
            all.extend(self.apply(Input::Timer));
        }
        self.skip(end.since(self.now.mono));
        all
    }

    /// Lets time pass while the server is suspended.
    pub(super) fn skip(&mut self, span: Duration) {
        self.now.mono = self.now.mono + span;
        self.now.wall = self.now.wall.plus(span);
    }

    fn next_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

impl SimWorker {
    fn hear(&mut self, command: &WorkerCommand) {
        if let WorkerCommand::DropTemplates(templates) = command {
            self.templates.retain(|id, _| !templates.contains(id));
        }
        let WorkerCommand::Assign {
            templates,
            assignments,
            awaits: _,
        } = command
        else {
            return;
        };
        let known = templates
            .iter()
            .map(|template| (template.id, template.header.job));
        self.templates.extend(known);
        for assignment in assignments {
            let job = self.templates.get(&assignment.template);
            let job = *job.expect("a worker knows the templates of its tasks");
            for id in assignment.ids.iter() {
                let follows = assignment.follows.map(|(task, instance)| {
                    let before = TaskKey::new(job, task);
                    let held = self.tasks.get(&before).map(|held| held.instance);
                    assert_eq!(
                        held,
                        Some(instance),
                        "what goes on from {before} comes in time"
                    );
                    before
                });
                let held = HeldTask {
                    instance: assignment.instance,
                    is_started: false,
                    follows,
                };
                self.tasks.insert(TaskKey::new(job, TaskId(id)), held);
            }
        }
    }

    /// Removes a task from the worker. If the task has not finished, its dependents are returned to
    /// the server.
    fn take(&mut self, task: TaskKey, is_finished: bool) -> Vec<(TaskKey, InstanceId)> {
        self.tasks.remove(&task);
        let mut back = Vec::new();
        let mut ended = vec![task];
        while let Some(before) = ended.pop() {
            let behind = self.tasks.iter_mut();
            let behind = behind.filter(|(_, held)| held.follows == Some(before));
            for (task, held) in behind {
                if is_finished {
                    held.follows = None;
                } else {
                    ended.push(*task);
                    back.push((*task, held.instance));
                }
            }
        }
        for (task, _) in &back {
            self.tasks.remove(task);
        }
        back
    }
}

/// Sends requests of clients.
impl Bench {
    /// Sends a command. Returns its effects.
    pub(super) fn request(&mut self, command: Command) -> Vec<Effect> {
        let id = RequestId(self.next_id());
        self.apply(Input::Request(id, command))
    }

    /// Sends a submit. Returns the job.
    pub(super) fn submit(&mut self, spec: SubmitSpec) -> JobId {
        let effects = self.request(Command::Submit(Box::new(spec)));
        submitted(&effects)
    }

    /// Sends a submit without a commit, so the client gets no answer.
    pub(super) fn submit_unanswered(&mut self, spec: SubmitSpec) {
        let effects = self.request(Command::Submit(Box::new(spec)));
        let is_answer = |effect: &Effect| matches!(effect, Effect::Reply(..));
        assert!(!effects.iter().any(is_answer), "nothing is stored");
    }

    /// Sends a submit that must be rejected without any other effect.
    pub(super) fn refused(&mut self, spec: SubmitSpec) -> SubmitRefusal {
        let last = self.state.last_job();
        let effects = self.request(Command::Submit(Box::new(spec)));
        assert!(changes(&effects).is_empty(), "nothing of it is stored");
        assert_eq!(self.state.last_job(), last, "no id is used up");
        let Reply::Refused(refusal) = reply(&effects) else {
            panic!("it is refused: {effects:?}");
        };
        refusal
    }

    /// Opens a job.
    pub(super) fn open(&mut self, max_fails: Option<u32>) -> JobId {
        let name = "open".into();
        let effects = self.request(Command::OpenJob {
            name,
            max_fails,
            key: None,
        });
        submitted(&effects)
    }

    /// Closes a job. Returns the job's row of the answer.
    pub(super) fn close(&mut self, job: JobId) -> JobResult {
        let effects = self.request(Command::CloseJobs(one(job)));
        job_row(&effects)
    }

    /// Cancels a job for the reason "enough".
    pub(super) fn cancel(&mut self, job: JobId) -> Vec<Effect> {
        let (jobs, reason) = (one(job), "enough".into());
        self.request(Command::CancelJobs { jobs, reason })
    }

    /// Watches jobs until they end, with all events and at most one update per second.
    pub(super) fn watch(&mut self, jobs: Selector) -> (RequestId, Vec<Effect>) {
        self.watch_with(WatchSpec {
            jobs,
            until_idle: false,
            with_progress: true,
            with_outcomes: true,
            with_notifications: true,
            interval: Duration::from_secs(1),
        })
    }

    pub(super) fn watch_with(&mut self, spec: WatchSpec) -> (RequestId, Vec<Effect>) {
        let id = RequestId(self.next_id());
        let effects = self.apply(Input::Request(id, Command::Watch(spec)));
        (id, effects)
    }
}

/// Simulates events of workers.
impl Bench {
    /// Adds a queue whose workers offer this.
    pub(super) fn add_queue(&mut self, offer: &[(&str, u64)], lifetime: Duration) {
        let offer = offer.iter().map(|(name, units)| ((*name).into(), *units));
        let params = QueueParams {
            amounts: offer.collect(),
            time_limit: lifetime * 2,
            worker_time_limit: Some(lifetime),
            ..queue_params()
        };
        let add = QueueCommand::Add(Arc::new(params));
        let effects = self.request(Command::Queue(add));
        assert!(matches!(reply(&effects), Reply::Queue(Ok(Some(_)))));
    }

    /// Connects a worker that reconnects after a lost connection and never misses a heartbeat.
    pub(super) fn worker(&mut self, cpus: u32) -> WorkerId {
        self.worker_with(cpus, |_| {})
    }

    /// Connects a worker that has to send heartbeats.
    pub(super) fn mortal(&mut self, cpus: u32) -> WorkerId {
        self.worker_with(cpus, |config| config.heartbeat = HEARTBEAT)
    }

    pub(super) fn worker_with(
        &mut self,
        cpus: u32,
        change: impl FnOnce(&mut WorkerConfig),
    ) -> WorkerId {
        let mut config = worker_config(cpus);
        config.heartbeat = NEVER;
        config.on_server_lost = OnServerLost::Reconnect;
        change(&mut config);
        let link = LinkId(self.next_id());
        let effects = self.apply(Input::WorkerConnected(link, config.clone()));
        let (worker, reattached) = registered(&effects).expect("it is registered");
        assert!(!reattached, "it is new");
        self.hands.entry(worker).or_default().config = Some(config);
        worker
    }

    /// Returns the tasks that the worker received and has neither ended nor returned, as job and
    /// task. Tasks that wait for other tasks on the worker are not included.
    pub(super) fn has(&self, worker: WorkerId) -> Vec<(u32, u32)> {
        self.tasks_of(worker, false)
    }

    /// Returns the tasks that the worker received and that wait for other tasks there.
    pub(super) fn has_behind(&self, worker: WorkerId) -> Vec<(u32, u32)> {
        self.tasks_of(worker, true)
    }

    fn tasks_of(&self, worker: WorkerId, is_behind: bool) -> Vec<(u32, u32)> {
        let tasks = self.hands.get(&worker).into_iter();
        let tasks = tasks.flat_map(|hand| &hand.tasks);
        let wanted = tasks.filter(|(_, held)| held.follows.is_some() == is_behind);
        wanted.map(|(key, _)| (key.job.0, key.task.0)).collect()
    }

    pub(super) fn say(&mut self, worker: WorkerId, message: WorkerMessage) -> Vec<Effect> {
        self.apply(Input::WorkerMessage(worker, message))
    }

    pub(super) fn report(&mut self, worker: WorkerId, report: Report) -> Vec<Effect> {
        self.say(worker, WorkerMessage::Report(report))
    }

    pub(super) fn heartbeat(&mut self, worker: WorkerId) -> Vec<Effect> {
        self.say(worker, WorkerMessage::heartbeat())
    }

    fn held(&mut self, worker: WorkerId, task: TaskKey) -> &mut HeldTask {
        let hand = self.hands.entry(worker).or_default();
        let held = hand.tasks.get_mut(&task);
        held.unwrap_or_else(|| panic!("worker {worker} was sent {task}"))
    }

    /// Starts a task.
    pub(super) fn start(&mut self, worker: WorkerId, task: TaskKey) -> Vec<Effect> {
        let held = self.held(worker, task);
        held.is_started = true;
        let row = started_row(task, held.instance);
        self.report(
            worker,
            Report {
                started: vec![row],
                ..Report::default()
            },
        )
    }

    /// Returns a worker's report that a task has ended, with a number to acknowledge.
    pub(super) fn end_report(
        &mut self,
        worker: WorkerId,
        task: TaskKey,
        outcome: Outcome,
    ) -> Report {
        let instance = self.held(worker, task).instance;
        let hand = self.hands.entry(worker).or_default();
        let retracted = hand.take(task, outcome == Outcome::Finished);
        hand.reports += 1;
        let mut row = ended_row(task, instance, outcome);
        row.run = self.run;
        Report {
            seq: hand.reports,
            sent: None,
            ended: vec![row],
            retracted,
            ..Report::default()
        }
    }

    /// Ends a task.
    pub(super) fn end(&mut self, worker: WorkerId, task: TaskKey, outcome: Outcome) -> Vec<Effect> {
        let report = self.end_report(worker, task, outcome);
        self.report(worker, report)
    }

    pub(super) fn finish(&mut self, worker: WorkerId, task: TaskKey) -> Vec<Effect> {
        self.end(worker, task, Outcome::Finished)
    }

    pub(super) fn fail(&mut self, worker: WorkerId, task: TaskKey) -> Vec<Effect> {
        self.end(worker, task, Outcome::ExitCode(1))
    }

    /// Returns a task that a worker has not started to the server.
    pub(super) fn give_back(&mut self, worker: WorkerId, task: TaskKey) -> Vec<Effect> {
        self.give_all_back(worker, &[task])
    }

    /// Returns several tasks of a worker to the server in one report.
    pub(super) fn give_all_back(&mut self, worker: WorkerId, tasks: &[TaskKey]) -> Vec<Effect> {
        let mut retracted = Vec::new();
        for task in tasks {
            retracted.push((*task, self.held(worker, *task).instance));
            let hand = self.hands.entry(worker).or_default();
            retracted.extend(hand.take(*task, false));
        }
        self.report(
            worker,
            Report {
                retracted,
                ..Report::default()
            },
        )
    }

    /// Ends all tasks on all workers until none is left.
    pub(super) fn finish_all(&mut self) {
        for _ in 0..ROUNDS_MAX {
            let hands = self.hands.iter();
            let next = hands
                .filter(|(id, _)| self.state.workers().contains_key(id))
                .find_map(|(id, hand)| {
                    let mut tasks = hand.tasks.iter();
                    let (task, _) = tasks.find(|(_, held)| held.follows.is_none())?;
                    Some((*id, *task))
                });
            let Some((worker, task)) = next else { return };
            self.finish(worker, task);
        }
        panic!("the work never ends");
    }

    /// Sends a worker's goodbye. The worker leaves with all its tasks.
    pub(super) fn leave(&mut self, worker: WorkerId, reason: LostReason) -> Vec<Effect> {
        self.hands.entry(worker).or_default().tasks.clear();
        self.say(worker, WorkerMessage::Goodbye(reason))
    }

    /// Breaks the connection of a worker.
    pub(super) fn cut(&mut self, worker: WorkerId) -> Vec<Effect> {
        self.apply(Input::WorkerGone(worker, LinkEnd::Broken))
    }

    /// Creates the message of a reconnecting worker. It reports the running tasks; the worker gives
    /// up tasks that it has not started.
    pub(super) fn reattach(&mut self, worker: WorkerId) -> Reattach {
        let hand = self.hands.entry(worker).or_default();
        hand.tasks.retain(|_, held| held.is_started);
        hand.registrations += 1;
        let started = hand.tasks.iter();
        let started = started.map(|(task, held)| started_row(*task, held.instance));
        Reattach {
            worker,
            server_uid: "test".into(),
            launching: Vec::new(),
            report: Report {
                started: started.collect(),
                ..Report::default()
            },
            variants: BTreeMap::new(),
            number: hand.registrations,
        }
    }

    /// Reconnects a worker.
    pub(super) fn come_back(&mut self, worker: WorkerId) -> Vec<Effect> {
        let reattach = self.reattach(worker);
        self.come_back_with(worker, reattach)
    }

    pub(super) fn come_back_with(&mut self, worker: WorkerId, reattach: Reattach) -> Vec<Effect> {
        self.come_back_as(worker, reattach, |_| ())
    }

    pub(super) fn come_back_as(
        &mut self,
        worker: WorkerId,
        reattach: Reattach,
        change: impl FnOnce(&mut WorkerConfig),
    ) -> Vec<Effect> {
        let hand = self.hands.entry(worker).or_default();
        let mut config = hand.config.clone().expect("it was here before");
        change(&mut config);
        hand.templates.clear();
        let link = LinkId(self.next_id());
        self.apply(Input::WorkerReattached(link, config, Box::new(reattach)))
    }
}

/// Queries of the server's state.
impl Bench {
    pub(super) fn phase(&self, task: TaskKey) -> Phase {
        let job = &self.state.jobs()[&task.job];
        let slot = job.find(task.task).expect("the task exists");
        job.phase(slot).expect("the task exists")
    }

    pub(super) fn record(&self, task: TaskKey) -> TaskRecord {
        let job = &self.state.jobs()[&task.job];
        let slot = job.find(task.task).expect("the task exists");
        job.record(slot).expect("the task was handed out")
    }

    pub(super) fn instance(&self, task: TaskKey) -> u32 {
        self.record(task).instance().0
    }

    pub(super) fn counts(&self, job: JobId) -> TaskCounts {
        *self.state.jobs()[&job].counts()
    }

    pub(super) fn job_state(&self, job: JobId) -> JobState {
        self.state.jobs()[&job].state()
    }

    /// Returns whether no timer is due within an hour.
    pub(super) fn is_quiet(&self) -> bool {
        let due = self.state.next_deadline();
        due.is_none_or(|due| due.since(self.now.mono) > Duration::from_secs(3_600))
    }

    pub(super) fn knows(&self, worker: WorkerId) -> bool {
        self.state.workers().contains_key(&worker)
    }
}

/// Resubmits the tasks of a job that are in these states, or all tasks if `states` is empty.
pub(super) fn resubmit(bench: &mut Bench, job: JobId, states: &[TaskState]) -> Resubmitted {
    let (jobs, states) = (one(job), states.to_vec());
    let effects = bench.request(Command::Resubmit {
        jobs,
        states,
        requests: Vec::new(),
    });
    let Reply::Resubmitted(found) = reply(&effects) else {
        panic!("about what was submitted again");
    };
    found.rows[0].clone()
}

pub(super) const fn key(job: JobId, task: u32) -> TaskKey {
    TaskKey::new(job, TaskId(task))
}

pub(super) fn one(job: JobId) -> Selector {
    Selector::Ids(IdArray::single(job.0))
}

pub(super) fn this(worker: WorkerId) -> Selector {
    Selector::Ids(IdArray::single(worker.0))
}

pub(super) fn started_row(task: TaskKey, instance: InstanceId) -> StartedRow {
    StartedRow {
        task,
        instance,
        age: Duration::ZERO,
    }
}

pub(super) fn ended_row(task: TaskKey, instance: InstanceId, outcome: Outcome) -> EndedRow {
    EndedRow {
        task,
        instance,
        outcome,
        age: Duration::ZERO,
        run: Duration::from_secs(1),
        usage: Usage::default(),
    }
}
