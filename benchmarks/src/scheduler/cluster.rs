//! A server and workers in virtual time. Messages use the wire format and take [`LINK`] each way.
//! In a cluster with a clock, each decision takes its real duration, and messages that arrive
//! meanwhile wait.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use hq_core::bound::{LimitChange, SubmitLimits};
use hq_core::id::{JobId, TaskId, TaskKey, WorkerId};
use hq_core::job::{JobChange, TaskChange};
use hq_core::outcome::{LostReason, Usage};
use hq_core::range::IdArray;
use hq_core::resource::amount::UNITS_PER_WHOLE;
use hq_core::selector::Selector;
use hq_core::server_state::{
    Command, Effect, Input, LinkId, ROWS_PER_ROUND_MAX, Reply, RequestId, ServerState, Submission,
    WorkerCommand, WorkerMessage,
};
use hq_core::task::TaskState;
use hq_core::template::{SubmitBody, SubmitSpec};
use hq_core::testing::{array_submit, template};
use hq_core::time::{Now, Time, Timestamp};
use hq_core::worker_config::WorkerConfig;
use hq_core::worker_state::{
    Effect as WorkerEffect, ExitStatus, Input as WorkerInput, LaunchEvent, LaunchFailure,
    LaunchTask, LaunchToken, WorkerState,
};
use hq_protocol::convert::{FromServer, FromWorker};
use hq_protocol::worker::{ToServer, ToWorker};

use super::decision::{Decision, Stopwatch};

/// How long a message takes between server and worker.
const LINK: Duration = Duration::from_micros(100);
/// The maximum number of inputs that the server takes before it decides, as in its real loop.
const BATCH_MAX: usize = 256;

/// How long each task of a job runs.
pub(crate) type Runs = Arc<dyn Fn(TaskId) -> Duration + Send + Sync>;

/// An event of the simulation.
enum Event {
    ServerTimer,
    WorkerTimer(WorkerId),
    ToServer(WorkerId, WorkerMessage),
    ToWorker(WorkerId, WorkerInput),
    End(WorkerId, LaunchToken),
}

/// A running process, or one that waits for its turn in a lane.
struct Process {
    lane: LaunchToken,
    run: Duration,
    cpus: f64,
    is_gang: bool,
}

struct Node {
    state: WorkerState,
    cpus_pool: Option<u32>,
    processes: BTreeMap<LaunchToken, Process>,
    lanes: BTreeMap<LaunchToken, VecDeque<LaunchToken>>,
    timer: Option<Time>,
}

impl Node {
    fn cpus(&self) -> f64 {
        let all = self.cpus_pool.map(|pool| self.state.pools().total(pool));
        whole(all.unwrap_or_default().0)
    }

    /// Returns the number of cpus of the lanes that have something to run.
    fn granted(&self) -> f64 {
        let heads = self.lanes.values().filter_map(VecDeque::front);
        let held = heads.filter_map(|token| self.processes.get(token));
        held.map(|process| process.cpus).sum()
    }
}

fn whole(units: u64) -> f64 {
    units as f64 / UNITS_PER_WHOLE as f64
}

/// A start of a task.
#[cfg_attr(not(test), expect(dead_code, reason = "only tests look into it"))]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Start {
    /// When the task started.
    pub(crate) at: Time,
    /// The job and id of the task.
    pub(crate) task: TaskKey,
    /// The worker, or the root worker of a multi-node task.
    pub(crate) worker: WorkerId,
}

/// The simulated cluster.
pub(crate) struct Cluster {
    /// The server.
    pub(crate) server: ServerState,
    /// Virtual time.
    pub(crate) now: Time,
    /// The inputs and time of each decision of the server.
    pub(crate) decisions: Vec<Decision>,
    /// All starts, in order.
    pub(crate) starts: Vec<Start>,
    /// How often the server assigned a task to a worker.
    pub(crate) handed_out: u64,
    /// The number of tasks that the server retracted.
    pub(crate) asked_back: u64,
    /// The cpu seconds used by single-node tasks that have ended.
    pub(crate) cpu_seconds: f64,
    /// The current number of cpus of all workers, assumed to be the same as at the beginning.
    cpus: f64,
    /// The number of cpus that tasks currently have.
    granted: f64,
    granted_seconds: f64,
    /// The used and the total cpu seconds while tasks were waiting for a worker.
    contended: (f64, f64),
    nodes: BTreeMap<WorkerId, Node>,
    joining: BTreeMap<LinkId, WorkerConfig>,
    /// By time, and in the order of their creation.
    events: BTreeMap<(Time, u64), Event>,
    next_event: u64,
    next_link: u64,
    /// The key of the timer in `events`, if one is set.
    server_timer: Option<(Time, u64)>,
    runs: BTreeMap<JobId, Runs>,
    jobs: u32,
    submitted: Vec<Input>,
    check: bool,
    is_timed: bool,
    /// When the server has executed its last decision.
    busy_until: Time,
    /// The unanswered heartbeats, with their send times.
    asked: BTreeMap<WorkerId, Time>,
    /// The latency of each heartbeat.
    pub(crate) answers: Vec<Duration>,
}

impl Default for Cluster {
    fn default() -> Self {
        Self {
            server: ServerState::new("bench"),
            now: Time(0),
            decisions: Vec::new(),
            starts: Vec::new(),
            handed_out: 0,
            asked_back: 0,
            cpu_seconds: 0.0,
            cpus: 0.0,
            granted: 0.0,
            granted_seconds: 0.0,
            contended: (0.0, 0.0),
            nodes: BTreeMap::new(),
            joining: BTreeMap::new(),
            events: BTreeMap::new(),
            next_event: 0,
            next_link: 0,
            server_timer: None,
            runs: BTreeMap::new(),
            jobs: 0,
            submitted: Vec::new(),
            check: false,
            is_timed: false,
            busy_until: Time(0),
            asked: BTreeMap::new(),
            answers: Vec::new(),
        }
    }
}

impl Cluster {
    /// Creates a cluster that checks every invariant after every event.
    #[cfg(test)]
    pub(crate) fn checked() -> Self {
        Self {
            check: true,
            ..Self::default()
        }
    }

    /// Creates a cluster whose decisions take their real duration.
    pub(crate) fn timed() -> Self {
        Self {
            is_timed: true,
            ..Self::default()
        }
    }

    /// Adds a worker.
    pub(crate) fn join(&mut self, mut config: WorkerConfig) {
        // There are no heartbeats unless they are requested.
        config.heartbeat = Duration::from_secs(1_000_000);
        self.next_link += 1;
        let link = LinkId(self.next_link);
        self.joining.insert(link, config.clone());
        self.decide(vec![Input::WorkerConnected(link, config)]);
    }

    /// Makes the worker with the lowest id vanish with all its tasks.
    pub(crate) fn lose_one(&mut self) {
        if let Some((id, node)) = self.nodes.pop_first() {
            self.cpus -= node.cpus();
            self.granted -= node.granted();
            self.decide(vec![Input::WorkerMessage(
                id,
                WorkerMessage::Goodbye(LostReason::ConnectionLost),
            )]);
        }
    }

    /// Sends the heartbeats of the workers whose number has the remainder `rest` when divided by
    /// `parts`.
    pub(crate) fn heartbeat(&mut self, parts: usize, rest: usize) {
        let ids = self.nodes.keys().copied().skip(rest).step_by(parts.max(1));
        for id in ids.collect::<Vec<_>>() {
            self.asked.insert(id, self.now);
            let heartbeat = Event::ToServer(id, WorkerMessage::heartbeat());
            self.put(self.now + LINK, heartbeat);
        }
    }

    /// Submits a job whose tasks have the run times `runs`.
    pub(crate) fn submit(&mut self, body: SubmitBody, runs: Runs) {
        self.submit_limited(body, runs, SubmitLimits::default());
    }

    /// Like [`Cluster::submit`], with limits on the tasks.
    pub(crate) fn submit_limited(&mut self, body: SubmitBody, runs: Runs, limits: SubmitLimits) {
        self.add_submit(body, runs, limits);
        let inputs = std::mem::take(&mut self.submitted);
        self.decide(inputs);
    }

    /// Like [`Cluster::submit`], but the server takes the job with its next inputs.
    pub(crate) fn submit_later(&mut self, body: SubmitBody, runs: Runs) {
        self.add_submit(body, runs, SubmitLimits::default());
    }

    fn add_submit(&mut self, body: SubmitBody, runs: Runs, limits: SubmitLimits) {
        let spec = SubmitSpec {
            body,
            limits,
            ..array_submit(1, template(&[]))
        };
        self.jobs += 1;
        self.runs.insert(JobId(self.jobs), runs);
        // The server prepares it on a separate thread.
        let submission = Submission::one(Box::new(spec), None);
        self.submitted
            .push(Input::Submit(RequestId(1), Box::new(submission)));
    }

    /// Cancels all jobs.
    pub(crate) fn cancel(&mut self) {
        let cancel = Command::CancelJobs {
            jobs: Selector::All,
            reason: Box::default(),
        };
        self.decide(vec![Input::Request(RequestId(2), cancel)]);
    }

    /// Sets a limit of the server.
    pub(crate) fn limit(&mut self, name: &str, max: &str) {
        let change = LimitChange {
            name: name.into(),
            bound: Some(max.parse().expect("a limit")),
            is_forced: false,
        };
        self.decide(vec![Input::Request(RequestId(5), Command::Limit(change))]);
    }

    /// Holds, changes and releases tasks of the first job, or all of them.
    pub(crate) fn change(&mut self, tasks: Option<&IdArray>) {
        let hold = |is_held| Command::HoldTasks {
            job: JobId(1),
            tasks: tasks.cloned(),
            is_held,
        };
        let change = JobChange {
            tasks: TaskChange {
                priority: Some(5),
                ..TaskChange::default()
            },
            ..JobChange::default()
        };
        let change = Command::ChangeJob {
            job: JobId(1),
            tasks: tasks.cloned(),
            change: Box::new(change),
        };
        for command in [hold(true), change, hold(false)] {
            self.decide(vec![Input::Request(RequestId(6), command)]);
        }
    }

    /// Submits the first job again.
    pub(crate) fn resubmit(&mut self) {
        let resubmit = Command::Resubmit {
            jobs: Selector::Ids(IdArray::single(1)),
            states: Vec::new(),
            requests: Vec::new(),
        };
        self.decide(vec![Input::Request(RequestId(4), resubmit)]);
    }

    /// Forgets all jobs.
    pub(crate) fn forget(&mut self) {
        let states = vec![
            TaskState::Finished,
            TaskState::Failed,
            TaskState::Canceled,
            TaskState::Aborted,
        ];
        let jobs = Selector::All;
        let forget = Command::ForgetJobs { jobs, states };
        self.decide(vec![Input::Request(RequestId(3), forget)]);
    }

    /// Returns whether every job has ended.
    pub(crate) fn is_done(&self) -> bool {
        self.server.unanswered() == 0 && self.server.jobs().values().all(|job| job.is_completed())
    }

    /// Runs until everything has ended. Returns the elapsed time.
    pub(crate) fn finish(&mut self) -> Duration {
        let start = self.now;
        let submitted = std::mem::take(&mut self.submitted);
        if !submitted.is_empty() {
            self.decide(submitted);
        }
        while !self.is_done() && self.step(Time(u64::MAX)) {}
        self.now.since(start)
    }

    /// Runs until the given time.
    pub(crate) fn run_until(&mut self, end: Time) {
        while self.step(end) {}
        self.account(end);
        self.now = self.now.max(end);
    }

    /// Handles the next event. Returns `false` if that is later than `end`.
    fn step(&mut self, end: Time) -> bool {
        let Some((time, event)) = self.next_until(end) else {
            return false;
        };
        self.account(time);
        self.now = self.now.max(time);
        let is_for_server = matches!(event, Event::ServerTimer | Event::ToServer(..));
        if is_for_server && self.now < self.busy_until {
            self.put(self.busy_until, event);
            return true;
        }
        match event {
            Event::ServerTimer => {
                self.server_timer = None;
                self.decide(vec![Input::Timer]);
            }
            Event::ToServer(id, message) => {
                let inputs = self.batch(Input::WorkerMessage(id, message));
                self.decide(inputs);
            }
            Event::ToWorker(id, input) => self.at_node(id, input),
            Event::WorkerTimer(id) => {
                if let Some(node) = self.nodes.get_mut(&id) {
                    node.timer = None;
                }
                self.at_node(id, WorkerInput::Timer);
            }
            Event::End(id, token) => {
                let tokens = self.ends(id, token);
                self.end(id, &tokens);
            }
        }
        true
    }

    /// Returns the inputs that have arrived at the server, as many as its loop takes at once.
    fn batch(&mut self, first: Input) -> Vec<Input> {
        let mut rows = first.rows();
        let mut inputs = vec![first];
        while inputs.len() < BATCH_MAX && rows < ROWS_PER_ROUND_MAX {
            match self.next_until(self.now) {
                Some((_, Event::ToServer(id, message))) => {
                    let input = Input::WorkerMessage(id, message);
                    rows += input.rows();
                    inputs.push(input);
                }
                Some((at, other)) => {
                    self.put(at, other);
                    break;
                }
                None => break,
            }
        }
        inputs
    }

    /// Returns all launches of one worker that end at the same time as `first`.
    fn ends(&mut self, id: WorkerId, first: LaunchToken) -> Vec<LaunchToken> {
        let mut tokens = vec![first];
        while let Some(next) = self.events.first_entry()
            && next.key().0 <= self.now
            && let Event::End(other, token) = next.get()
            && *other == id
        {
            tokens.push(*token);
            next.remove();
        }
        tokens
    }

    fn next_until(&mut self, end: Time) -> Option<(Time, Event)> {
        let next = self.events.first_entry()?;
        let time = next.key().0;
        (time <= end).then(|| (time, next.remove()))
    }

    fn put(&mut self, at: Time, event: Event) -> (Time, u64) {
        self.next_event += 1;
        let key = (at, self.next_event);
        self.events.insert(key, event);
        key
    }

    /// Lets the server take some inputs and make a decision, which is timed.
    ///
    /// # Panics
    ///
    /// If the server rejects an input.
    fn decide(&mut self, inputs: Vec<Input>) {
        let now = both(self.now);
        let mut effects = Vec::new();
        let mut decision = Decision::of(&inputs);
        let watch = Stopwatch::start();
        for input in inputs {
            self.server.apply(now, input, &mut effects);
        }
        decision.digested = watch.read();
        self.server.settle(now, &mut effects);
        decision.took = watch.read();
        decision.note(&effects, self.server.last_round());
        if self.is_timed {
            self.busy_until = self.busy_until.max(self.now) + decision.took.wall;
        }
        self.handed_out += decision.handed_out;
        self.asked_back += decision.asked_back;
        self.decisions.push(decision);
        if self.check {
            self.server.check_invariants();
        }
        for effect in effects {
            self.obey(effect);
        }
        // As in the real loop, there is one timer, and each decision sets it anew.
        if let Some(timer) = self.server_timer.take() {
            self.events.remove(&timer);
        }
        let due = self.server.next_deadline();
        let due = due.map(|due| due.max(self.now).max(self.busy_until));
        self.server_timer = due.map(|due| self.put(due, Event::ServerTimer));
    }

    fn obey(&mut self, effect: Effect) {
        match effect {
            Effect::Registered { link, worker, .. } => {
                if let Some(config) = self.joining.remove(&link) {
                    let state = WorkerState::new(both(self.now), &config, None);
                    let node = Node {
                        cpus_pool: state.pools().position("cpus"),
                        state,
                        processes: BTreeMap::new(),
                        lanes: BTreeMap::new(),
                        timer: None,
                    };
                    self.cpus += node.cpus();
                    self.nodes.insert(worker, node);
                }
            }
            Effect::ToWorker(id, command) => {
                let sent = self.busy_until.max(self.now);
                if matches!(command, WorkerCommand::Ping(_))
                    && let Some(asked) = self.asked.remove(&id)
                {
                    self.answers.push((sent + LINK).since(asked));
                }
                let wire = ToWorker::from(&command);
                if let Ok(FromServer::Input(input)) = FromServer::try_from(wire) {
                    self.put(sent + LINK, Event::ToWorker(id, input));
                }
            }
            Effect::Reply(_, Reply::Refused(refusal)) => panic!("refused: {refusal:?}"),
            Effect::Reply(..)
            | Effect::WatchUpdate(..)
            | Effect::Persist(_)
            | Effect::Free(_)
            | Effect::Notify(_)
            | Effect::Allocate(_)
            | Effect::DropWorker(_) => {}
        }
    }

    fn at_node(&mut self, id: WorkerId, input: WorkerInput) {
        let now = self.now;
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            let Some(node) = self.nodes.get_mut(&id) else {
                return;
            };
            let mut effects = Vec::new();
            node.state.apply(both(now), input, &mut effects);
            for effect in effects {
                match effect {
                    WorkerEffect::Launch(tasks) => {
                        let started = self.launch(id, tasks);
                        inputs.push_back(WorkerInput::Launcher(started));
                    }
                    WorkerEffect::Withdraw(tokens) => {
                        let failed = self.withdraw(id, &tokens);
                        inputs.push_back(WorkerInput::Launcher(failed));
                    }
                    WorkerEffect::Terminate(token) => {
                        self.put(now, Event::End(id, token));
                    }
                    WorkerEffect::Report(report) => {
                        let wire = ToServer::from(&report);
                        if let Ok(FromWorker::Message(message)) = FromWorker::try_from(wire) {
                            self.put(now + LINK, Event::ToServer(id, message));
                        }
                    }
                    // The server is not stopped in a benchmark.
                    WorkerEffect::DropTemplate(_)
                    | WorkerEffect::Farewell
                    | WorkerEffect::Kill(_)
                    | WorkerEffect::Signal(..)
                    | WorkerEffect::Exit(_) => {}
                }
            }
        }
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        if self.check {
            node.state.check_invariants();
        }
        if let Some(due) = node.state.next_deadline()
            && node.timer.is_none_or(|set| due < set)
        {
            node.timer = Some(due);
            self.put(due.max(now), Event::WorkerTimer(id));
        }
    }

    fn launch(&mut self, id: WorkerId, tasks: Vec<LaunchTask>) -> Vec<LaunchEvent> {
        let mut started = Vec::new();
        for task in tasks {
            let run = self
                .runs
                .get(&task.key.task.job)
                .map_or(Duration::ZERO, |run| run(task.task_id()));
            let Some(node) = self.nodes.get_mut(&id) else {
                break;
            };
            let cpus = task
                .grant
                .entries
                .iter()
                .find(|entry| Some(entry.pool) == node.cpus_pool);
            let nodes = u32::try_from(task.nodes.len()).unwrap_or(0);
            let cpus = match cpus {
                // A multi-node task has all cpus of its workers, which are equal here.
                _ if nodes > 0 => f64::from(nodes) * node.cpus(),
                Some(entry) => whole(entry.amount.0),
                None => 0.0,
            };
            let process = Process {
                lane: task.lane,
                run,
                cpus,
                is_gang: nodes > 0,
            };
            node.processes.insert(task.token, process);
            let queue = node.lanes.entry(task.lane).or_default();
            queue.push_back(task.token);
            let is_first = queue.len() == 1;
            self.starts.push(Start {
                at: self.now,
                task: task.key.task,
                worker: id,
            });
            if is_first {
                self.granted += cpus;
                started.push(LaunchEvent::Started {
                    token: task.token,
                    at: self.now,
                });
                self.put(self.now + run, Event::End(id, task.token));
            }
        }
        started
    }

    fn withdraw(&mut self, id: WorkerId, tokens: &[LaunchToken]) -> Vec<LaunchEvent> {
        let Some(node) = self.nodes.get_mut(&id) else {
            return Vec::new();
        };
        let mut failed = Vec::new();
        for token in tokens {
            let Some(process) = node.processes.get(token) else {
                continue;
            };
            let Some(queue) = node.lanes.get_mut(&process.lane) else {
                continue;
            };
            if queue.front() == Some(token) {
                continue;
            }
            queue.retain(|other| other != token);
            node.processes.remove(token);
            failed.push(LaunchEvent::Failed {
                token: *token,
                failure: LaunchFailure::Cancelled,
            });
        }
        failed
    }

    fn end(&mut self, id: WorkerId, tokens: &[LaunchToken]) {
        let mut events = Vec::new();
        for token in tokens {
            self.end_one(id, *token, &mut events);
        }
        if !events.is_empty() {
            self.at_node(id, WorkerInput::Launcher(events));
        }
    }

    fn end_one(&mut self, id: WorkerId, token: LaunchToken, events: &mut Vec<LaunchEvent>) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        let Some(process) = node.processes.remove(&token) else {
            return;
        };
        if !process.is_gang {
            self.cpu_seconds += process.cpus * process.run.as_secs_f64();
        }
        events.push(LaunchEvent::Exited {
            token,
            status: ExitStatus::Code(0),
            ended: now,
            run: process.run,
            usage: Usage::default(),
            message: None,
        });
        let queue = node.lanes.entry(process.lane).or_default();
        let was_first = queue.front() == Some(&token);
        queue.retain(|other| *other != token);
        if !was_first {
            return;
        }
        let next = queue.front().copied();
        match next.and_then(|next| Some((next, node.processes.get(&next)?.run))) {
            Some((next, run)) => {
                events.push(LaunchEvent::Started {
                    token: next,
                    at: now,
                });
                self.put(now + run, Event::End(id, next));
            }
            None => {
                node.lanes.remove(&process.lane);
                self.granted -= process.cpus;
            }
        }
    }

    /// Returns the share of all cpu time so far that single-node tasks used, from 0.0 to 1.0.
    pub(crate) fn busy_share(&self) -> f64 {
        let span = self.now.since(Time(0)).as_secs_f64();
        self.granted_seconds / (self.cpus * span).max(f64::MIN_POSITIVE)
    }

    /// Returns this share for the time while tasks were waiting for a worker; 1.0 if none ever
    /// waited.
    pub(crate) fn contended_share(&self) -> f64 {
        let (granted, all) = self.contended;
        if all > 0.0 { granted / all } else { 1.0 }
    }

    /// Accounts for the current grants until the time `at`.
    fn account(&mut self, at: Time) {
        let span = at.since(self.now).as_secs_f64();
        self.granted_seconds += self.granted * span;
        if span > 0.0 && self.server.ready_len() > 0 {
            self.contended.0 += self.granted * span;
            self.contended.1 += self.cpus * span;
        }
    }
}

fn both(mono: Time) -> Now {
    Now {
        mono,
        wall: Timestamp(i64::try_from(mono.0).unwrap_or(i64::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::shapes::array;
    use hq_core::testing::worker_config;

    #[test]
    fn time_passes_as_tasks_say() {
        let mut cluster = Cluster::default();
        cluster.join(worker_config(2));
        let run = Duration::from_secs(3);
        cluster.submit(array(5, &[("cpus", "1")], 0), Arc::new(move |_| run));
        let took = cluster.finish();
        assert!(
            took >= run * 3 && took < run * 3 + Duration::from_millis(300),
            "{took:?}"
        );
        assert!((cluster.cpu_seconds - 15.0).abs() < 0.01);
        assert_eq!(cluster.starts.len(), 5);
    }
}
