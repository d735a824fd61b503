//! A seeded simulation of the server's state with workers, clients and the network between them.
//!
//! Time is virtual and the random source deterministic. Workers are real [`WorkerState`]s with
//! processes that take time to start and end. Workers die with or without a goodbye, reconnect to
//! their tasks, or return as new ones. Connections delay, lose and break, also silently and for
//! longer than heartbeats allow; messages on an abandoned connection may arrive after the next
//! registration. Clients submit, cancel and watch.
//!
//! The invariants of [`ServerState`] are checked after every input. No instance of a task is ever
//! started twice. At the end all faults are healed and each task must reach a final state. The log
//! of one seed is always the same.

mod action;
mod durable;
mod faults;
mod finals;
mod limits;
mod link;
mod node;
mod requests;
mod rng;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::worker_config;
use crate::id::{InstanceId, JobId, TaskKey, WorkerId};
use crate::outcome::LostReason;
use crate::server_state::{
    Again, ChangeKind, Command, Effect, Input, LinkId, NoticeKey, NoticeState, RequestId,
    ServerState, WorkerCommand,
};
use crate::task::TaskState;
use crate::template::NotifyEvent;
use crate::time::{Now, Time, Timestamp};
use crate::worker_config::{OnServerLost, SILENT_PERIODS_MAX, WorkerConfig};
pub use action::{Action, Course, Step};
pub use durable::Disk;
use durable::Durability;
use link::Link;
use node::Node;
pub use rng::Rng;

/// Silence limit of a simulated worker. Pauses and silences are drawn relative to it, and the
/// heartbeat follows from it: for any number of periods, many workers are silent for longer,
/// and most are not.
const SILENCE_MAX: Duration = Duration::from_secs(1);

/// Time between two heartbeats of a simulated worker.
const HEARTBEAT: Duration = SILENCE_MAX
    .checked_div(SILENT_PERIODS_MAX)
    .expect("it is not zero");

/// Machines at a time, unless all faults are over.
const NODES_MAX: usize = 6;

/// Result of a run; equal for equal seeds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Inputs that were applied.
    pub inputs: u64,
    /// Tasks submitted.
    pub tasks: u64,
    /// Workers lost.
    pub lost_workers: u64,
    /// Workers that came back and went on.
    pub reattached: u64,
    /// Silences longer than [`WorkerConfig::silence_max`].
    pub partitions: u64,
    /// Workers lost because of silence.
    pub lost_silent: u64,
    /// Crashes of the server.
    pub crashes: u64,
    /// Tasks that ran through a crash of the server.
    pub went_on: u64,
    /// Hash of all effects, in order; 0 = not requested.
    pub log_hash: u64,
}

/// The simulated world.
#[derive(Debug)]
pub struct World {
    rng: Rng,
    now: Now,
    state: ServerState,
    /// Machines with workers.
    nodes: BTreeMap<u32, Node>,
    next_node: u32,
    links: BTreeMap<LinkId, Link>,
    next_link: u64,
    /// The current connection of each worker that has one.
    registered: BTreeMap<WorkerId, LinkId>,
    /// Workers whose connection ended before the server answered on it.
    orphans: Vec<(WorkerId, LinkId)>,
    next_request: u64,
    watching: BTreeSet<RequestId>,
    /// Jobs being prepared for resubmission.
    looked_at: Option<Box<Again>>,
    /// Notifications that are under way.
    owed: BTreeSet<NoticeKey>,
    /// The highest id of a job that was reported to a client.
    last_told: JobId,
    /// Final states, which must not change: by job and submit, at the index of the task.
    finals: BTreeMap<(JobId, u32), Vec<Option<TaskState>>>,
    /// Jobs whose limit on running tasks was changed while more tasks had been sent.
    lowered: BTreeSet<JobId>,
    /// Instances that had a process.
    runs: BTreeSet<(TaskKey, InstanceId)>,
    /// Instances that succeeded, and where.
    succeeded: BTreeSet<(TaskKey, WorkerId, InstanceId)>,
    /// Instances whose ends were acknowledged to the worker.
    acknowledged: BTreeSet<(TaskKey, InstanceId)>,
    /// The disk and the effects that wait for it; `None` = nothing is stored and the server never
    /// crashes.
    durable: Option<Durability>,
    /// Whether the last registration was a reconnect.
    was_reattached: bool,
    /// Whether the summary includes the hash of all effects.
    is_hashed: bool,
    summary: Summary,
    /// Where to write what happens.
    trace: Option<Trace>,
}

/// Log of a world, one line per event; survives the world, even if it fails.
pub type Trace = Arc<Mutex<Vec<String>>>;

impl World {
    /// An empty world.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            now: Now {
                mono: Time(0),
                wall: Timestamp(1_000_000_000),
            },
            state: limited(ServerState::new(UID)),
            nodes: BTreeMap::new(),
            next_node: 0,
            links: BTreeMap::new(),
            next_link: 0,
            registered: BTreeMap::new(),
            orphans: Vec::new(),
            next_request: 0,
            watching: BTreeSet::new(),
            looked_at: None,
            owed: BTreeSet::new(),
            last_told: JobId(0),
            finals: BTreeMap::new(),
            runs: BTreeSet::new(),
            lowered: BTreeSet::new(),
            succeeded: BTreeSet::new(),
            acknowledged: BTreeSet::new(),
            durable: None,
            was_reattached: false,
            is_hashed: false,
            summary: Summary::default(),
            trace: None,
        }
    }

    /// Runs `steps` random steps, heals all faults and requires that all work ends.
    ///
    /// # Panics
    ///
    /// If an invariant breaks or a task is left over.
    pub fn run(seed: u64, steps: u32) -> Summary {
        Self::play(&Course::draw(seed, steps, false), None, None)
    }

    /// Like [`World::run`], with a disk and crashes of the server.
    ///
    /// # Panics
    ///
    /// If an invariant breaks, a reported result is lost, or a task is left over.
    pub fn run_durable(seed: u64, steps: u32, disk: Box<dyn Disk>) -> Summary {
        Self::play(&Course::draw(seed, steps, true), Some(disk), None)
    }

    /// Plays a course, heals all faults and requires that all work ends. Writes the events to
    /// `trace`.
    ///
    /// # Panics
    ///
    /// Like [`World::run_durable`].
    pub fn play(course: &Course, disk: Option<Box<dyn Disk>>, trace: Option<Trace>) -> Summary {
        let mut world = Self::new(course.seed);
        world.is_hashed = true;
        world.trace = trace;
        world.live(course, disk)
    }

    /// Like [`World::play`], without the hash of all effects, which takes a tenth of the time.
    ///
    /// # Panics
    ///
    /// Like [`World::run_durable`].
    pub fn survive(course: &Course, disk: Option<Box<dyn Disk>>) -> Summary {
        Self::new(course.seed).live(course, disk)
    }

    fn live(self, course: &Course, disk: Option<Box<dyn Disk>>) -> Summary {
        let mut world = self;
        // Some servers store nothing; servers with a disk are restarted from it.
        if disk.is_none() && course.seed.is_multiple_of(3) {
            world.state = limited(ServerState::without_store(UID));
        }
        world.durable = disk.map(Durability::new);
        world.note(|| "begin".into());
        world.set_limits();
        world.join();
        for (step, number) in course.steps.iter().zip(1..) {
            world.note(|| format!("step {number}: {}", step.action.name()));
            world.rng = Rng::new(step.seed);
            if !step.pause.is_zero() {
                world.advance(step.pause);
            }
            world.act(step.action);
            world.find_orphans();
        }
        world.note(|| "heal".into());
        world.rng = Rng::new(!course.seed);
        world.heal();
        world.summary
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::SubmitArray => self.submit_array(),
            Action::SubmitGraph => self.submit_graph(),
            Action::Cancel => self.cancel_some(),
            Action::Join => self.join(),
            Action::LoseMachine => self.lose_one(),
            Action::CutConnection => self.cut_one(),
            Action::Interrupt => self.interrupt_one(),
            Action::Watch => self.watch_some(),
            Action::Nonsense => self.send_nonsense(),
            Action::Silence => self.silence_one(),
            Action::Drain => self.drain_some(),
            Action::AnswerNotice => self.notify_one(),
            Action::TurnClock => self.turn_clock(),
            Action::StandStill => self.stand_still(),
            Action::ComeBack => self.come_back(),
            Action::Forget => self.forget_some(),
            Action::Work => self.work_somewhere(),
            Action::ReadAtServer => self.read_at_server(),
            Action::ReadAtWorker => self.read_at_worker(),
            Action::Commit => self.commit(usize::MAX),
            Action::CommitSome => self.commit_some(),
            Action::PlanCrash => self.plan_crash(),
            Action::Crash => self.crash(),
            Action::FailCommit => self.fail_to_commit(),
            Action::Rest => {}
        }
    }

    /// Writes a line to the trace, if there is one.
    fn note(&self, line: impl FnOnce() -> String) {
        if let Some(trace) = &self.trace {
            let at = self.now.mono.0 / 1_000;
            let line = format!("{:>4}.{:06} {}", at / 1_000_000, at % 1_000_000, line());
            trace.lock().expect("nobody panics with it").push(line);
        }
    }

    /// Lets time pass. Timers run on time, unless the server is suspended.
    fn advance(&mut self, by: Duration) {
        let end = self.now.mono + by;
        while self.now.mono < end {
            let left = end.since(self.now.mono);
            self.skip(left.min(HEARTBEAT / 5));
            self.tick_nodes();
            self.tick_server();
        }
        self.tick_nodes();
        self.tick_server();
    }

    fn skip(&mut self, by: Duration) {
        self.now.mono = self.now.mono + by;
        self.now.wall = self.now.wall.plus(by);
    }

    fn tick_server(&mut self) {
        let deadline = self.state.next_deadline();
        if deadline.is_some_and(|deadline| deadline <= self.now.mono) {
            self.apply(Input::Timer);
        }
    }

    fn apply(&mut self, input: Input) {
        self.note(|| format!("  server <- {}", short(&input)));
        let mut effects = Vec::new();
        self.note_unsent();
        self.state.apply(self.now, input, &mut effects);
        self.state.settle(self.now, &mut effects);
        self.summary.inputs += 1;
        for effect in &effects {
            self.note(|| format!("  server -> {}", short(effect)));
            if self.is_hashed {
                self.hash(&format!("{effect:?}"));
            }
            if let Effect::Registered { reattached, .. } = effect {
                self.was_reattached = *reattached;
            }
            if let Effect::Persist(change) = effect {
                self.note_change(&change.kind);
            }
        }
        self.state.check_invariants();
        self.check_finals();
        self.check_limits();
        self.hand_over(effects);
    }

    fn note_change(&mut self, change: &ChangeKind) {
        if let ChangeKind::JobsForgotten(jobs) = change {
            self.note_forgotten(jobs);
        }
        let is_silent = |reason: &LostReason| matches!(reason, LostReason::HeartbeatLost);
        if matches!(change, ChangeKind::WorkerLost { reason, .. } if is_silent(reason)) {
            self.summary.lost_silent += 1;
        }
    }

    fn hash(&mut self, text: &str) {
        for byte in text.bytes() {
            // FNV-1a.
            self.summary.log_hash =
                (self.summary.log_hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }

    fn carry_out(&mut self, effect: Effect) {
        match effect {
            Effect::Registered {
                link,
                worker,
                reattached,
            } => self.register(link, worker, reattached),
            Effect::ToWorker(id, command) => {
                check_frame(&command);
                let link = self.registered.get(&id);
                if let Some(link) = link.and_then(|link| self.links.get_mut(link)) {
                    link.to_worker.push_back(link::ToWorker::Command(command));
                }
            }
            Effect::DropWorker(id) => {
                self.summary.lost_workers += 1;
                self.close(id);
            }
            Effect::WatchUpdate(request, update) => {
                if self.durable.is_some() && !self.watching.contains(&request) {
                    // It waited for the disk longer than its reader existed.
                    return;
                }
                assert!(
                    self.watching.contains(&request),
                    "updates go to who asked, until done"
                );
                if update.done {
                    self.watching.remove(&request);
                    assert!(
                        update.jobs.iter().all(|job| job.ended),
                        "done means all ended"
                    );
                }
            }
            Effect::Notify(key) => {
                assert!(self.owed.insert(key), "{key:?} is owed once");
            }
            Effect::Reply(_, reply) => self.note_reply(&reply),
            // There are no queues.
            Effect::Allocate(_) | Effect::Persist(_) | Effect::Free(_) => {}
        }
    }

    fn request(&mut self, command: Command) -> RequestId {
        let id = self.next_request();
        if matches!(command, Command::Watch(_)) {
            self.watching.insert(id);
        }
        self.apply(Input::Request(id, command));
        id
    }

    fn next_request(&mut self) -> RequestId {
        self.next_request += 1;
        RequestId(self.next_request)
    }

    fn join(&mut self) {
        if self.nodes.len() >= NODES_MAX {
            return;
        }
        let config = self.random_config();
        self.join_with(config);
    }

    fn random_config(&mut self) -> WorkerConfig {
        let policy = match self.rng.below(100) {
            0..65 => OnServerLost::Reconnect,
            65..85 => OnServerLost::Stop,
            _ => OnServerLost::FinishRunning,
        };
        config(1 + self.rng.below(4), policy)
    }

    fn pick_node(&mut self) -> Option<u32> {
        let count = u32::try_from(self.nodes.len()).expect("few");
        let nth = self.rng.below(count.max(1)) as usize;
        self.nodes.keys().nth(nth).copied()
    }

    fn pick_link(&mut self) -> Option<LinkId> {
        let count = u32::try_from(self.links.len()).expect("few");
        let nth = self.rng.below(count.max(1)) as usize;
        self.links.keys().nth(nth).copied()
    }

    /// A notification was delivered, or its target does not answer.
    fn notify_one(&mut self) {
        let Some(key) = self.owed.pop_first() else {
            return;
        };
        let error: Option<Box<str>> = self.rng.chance(50).then(|| "no answer".into());
        self.apply(Input::Notified {
            key,
            attempts: 1,
            error,
        });
    }

    /// Each end was reported, or given up.
    fn check_notices(&self) {
        for job in self.state.jobs().values() {
            for notice in &job.notices {
                let is_due = match notice.spec.event {
                    NotifyEvent::End => job.is_completed(),
                    NotifyEvent::Failure => job.counts().failed > 0,
                };
                let is_done = matches!(notice.state, NoticeState::Done(_));
                assert_eq!(is_due, is_done, "{} {:?}", job.id, notice.state);
            }
        }
    }

    /// A process starts or ends.
    fn work_somewhere(&mut self) {
        if let Some(number) = self.pick_node() {
            self.work_at(number);
        }
    }

    fn read_at_server(&mut self) {
        let Some(link) = self.pick_link() else { return };
        let most = 1 + self.rng.below(3);
        for _ in 0..most {
            self.deliver_to_server(link);
        }
    }

    fn read_at_worker(&mut self) {
        let Some(link) = self.pick_link() else { return };
        let most = 1 + self.rng.below(3);
        for _ in 0..most {
            self.deliver_to_worker(link);
        }
    }

    /// No more faults: large workers join, everything is delivered and run to the end.
    fn heal(&mut self) {
        self.heal_disk();
        for _ in 0..2 {
            self.join_with(config(8, OnServerLost::Stop));
        }
        for node in self.nodes.values_mut() {
            node.silent_until = Time(0);
        }
        for job in self.state.jobs().keys().copied().collect::<Vec<_>>() {
            self.request(Command::HoldTasks {
                job,
                tasks: None,
                is_held: false,
            });
        }
        for _ in 0..20_000 {
            if self.is_over() {
                self.advance(Duration::from_millis(50));
                assert!(self.watching.is_empty(), "every watch ends with its jobs");
                self.check_notices();
                self.work_beside_a_sleeper();
                return;
            }
            self.turn_all();
        }
        let left: u32 = self
            .state
            .jobs()
            .values()
            .map(|job| job.counts().unfinished())
            .sum();
        panic!("{left} tasks never ended although all faults were healed");
    }

    /// Delivers everything, and gives every machine a turn.
    fn turn_all(&mut self) {
        let inputs = self.summary.inputs;
        self.find_orphans();
        while !self.owed.is_empty() {
            self.notify_one();
        }
        for number in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.dial(number);
            self.work_at(number);
        }
        for link in self.links.keys().copied().collect::<Vec<_>>() {
            while self.deliver_to_server(link) {}
            while self.deliver_to_worker(link) {}
        }
        let is_idle = inputs == self.summary.inputs;
        self.advance(if is_idle {
            self.idle_time()
        } else {
            Duration::from_millis(1)
        });
    }

    /// One task occupies a worker forever, and another fits nowhere: all other work ends on the
    /// other workers.
    fn work_beside_a_sleeper(&mut self) {
        const TURNS_MAX: u32 = 5_000;
        let sleeper = self.submit_plain(1, 8);
        for node in self.nodes.values_mut() {
            node.sleeper = sleeper;
        }
        let is_waiting = |state: &ServerState, id: Option<JobId>| {
            let job = id.and_then(|id| state.jobs().get(&id));
            job.is_some_and(|job| job.counts().waiting > 0)
        };
        let mut turns = 0;
        while is_waiting(&self.state, sleeper) && turns < TURNS_MAX {
            self.turn_all();
            turns += 1;
        }
        let nowhere = self.submit_plain(1, 64);
        let others: Vec<Option<JobId>> = (0..6).map(|_| self.submit_plain(3, 1)).collect();
        let is_left = |state: &ServerState, id: &Option<JobId>| {
            let job = id.and_then(|id| state.jobs().get(&id));
            job.is_some_and(|job| job.counts().unfinished() > 0)
        };
        while others.iter().any(|id| is_left(&self.state, id)) {
            self.turn_all();
            turns += 1;
            assert!(
                turns < TURNS_MAX,
                "tasks wait behind {sleeper:?} or {nowhere:?}"
            );
        }
    }

    /// How long nothing will happen.
    fn idle_time(&self) -> Duration {
        let nodes = self.nodes.values();
        let times = nodes.flat_map(|node| [node.next_death(), node.state.next_deadline()]);
        let times = times.chain([self.state.next_deadline()]).flatten();
        let next = times.filter(|at| *at > self.now.mono).min();
        let pause = next.map_or(Duration::ZERO, |at| at.since(self.now.mono));
        pause.clamp(Duration::from_millis(1), Duration::from_secs(1))
    }

    fn is_over(&self) -> bool {
        let mut jobs = self.state.jobs().values();
        let state = &self.state;
        let is_idle = state.unanswered() == 0;
        jobs.all(crate::job::Job::is_completed) && is_idle && self.is_quiet()
    }

    fn is_quiet(&self) -> bool {
        let mut links = self.links.values();
        links.all(|link| link.to_server.is_empty() && link.to_worker.is_empty())
            && self.nodes.values().all(|node| node.processes.is_empty())
            && self.owed.is_empty()
    }
}

/// Uid of the server.
const UID: &str = "SimUid";

/// Size limit of an assignment: so low that they are often divided.
const ASSIGN_BYTES: usize = 1_600;

/// Size limit of a message to a worker. Lists of instances are not divided: their elements are
/// short.
const FRAME_BYTES: usize = 2 * ASSIGN_BYTES;

/// Characters per line of a trace: enough for everything but templates.
const TRACE_LINE_MAX: usize = 300;

/// Tasks and templates per portion: so few that most graphs are divided.
const PORTION: u32 = 3;

/// A line of bounded length about anything.
fn short(what: &impl std::fmt::Debug) -> String {
    let text = format!("{what:?}");
    match text.char_indices().nth(TRACE_LINE_MAX) {
        Some((end, _)) => format!("{} …", &text[..end]),
        None => text,
    }
}

fn limited(mut state: ServerState) -> ServerState {
    state.limit_assignments(ASSIGN_BYTES);
    state.limit_portions(PORTION);
    state.limit_successors(PORTION);
    state
}

/// A message that is too large would break each connection to that worker.
fn check_frame(command: &WorkerCommand) {
    let bytes = command.wire_bytes();
    assert!(bytes <= FRAME_BYTES, "{bytes} bytes for {command:?}");
}

fn config(cpus: u32, policy: OnServerLost) -> WorkerConfig {
    WorkerConfig {
        heartbeat: HEARTBEAT,
        on_server_lost: policy,
        ..worker_config(cpus)
    }
}

#[cfg(test)]
mod tests;
