//! A seeded simulation of the server's state with virtual workers and clients.
//!
//! Virtual time, a deterministic random source, links that delay, repeat and break, workers that die with
//! or without a goodbye, come back to their tasks, or come back as new ones; clients that submit, cancel and watch. After every
//! input the invariants of [`ServerState`] are checked. At the end everything is healed and each task
//! must reach a final state; the log of one seed is always the same.

mod durable;
mod finals;
mod requests;
mod rng;
mod virtual_worker;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::worker_config;
use crate::id::{InstanceId, JobId, TaskId, TaskKey, WorkerId};
use crate::outcome::{LostReason, Outcome, Usage};
use crate::server_state::{
    Command, Effect, EndedRow, Input, LinkEnd, LinkId, NoticeKey, NoticeState, Reattach, Report,
    RequestId, ServerState, StartedRow, WorkerCommand, WorkerMessage,
};
use crate::task::TaskState;
use crate::template::NotifyEvent;
use crate::time::{Now, Time, Timestamp};
use crate::worker_config::{OnServerLost, WorkerConfig};
pub use durable::Disk;
use durable::Durability;
pub use rng::Rng;
use virtual_worker::{VirtualTask, VirtualWorker};

/// What a run came to; equal for equal seeds.
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
    /// Crashes of the server.
    pub crashes: u64,
    /// Tasks that ran through a crash of the server.
    pub went_on: u64,
    /// Hash of all effects, in order.
    pub log_hash: u64,
}

/// The simulated world.
#[derive(Debug)]
pub struct World {
    rng: Rng,
    now: Now,
    state: ServerState,
    workers: BTreeMap<WorkerId, VirtualWorker>,
    /// Cpus of those that register, whether they come back, and who they were.
    joining: BTreeMap<LinkId, (u32, bool, Option<WorkerId>)>,
    next_link: u64,
    next_request: u64,
    watching: BTreeSet<RequestId>,
    /// Notifications that are under way.
    owed: BTreeSet<NoticeKey>,
    /// Final states seen once must stay: by job and submit, at the index of the task.
    finals: BTreeMap<(JobId, u32), Vec<Option<TaskState>>>,
    /// Instances that a worker really finished, for the exactly-once check.
    started_instances: BTreeMap<TaskKey, BTreeSet<(WorkerId, InstanceId)>>,
    /// Instances that succeeded, and where.
    succeeded: BTreeSet<(TaskKey, WorkerId, InstanceId)>,
    /// The disk and what waits for it; `None` = nothing is stored and the server never crashes.
    durable: Option<Durability>,
    /// Whether the last registration was that of a worker that goes on.
    was_reattached: bool,
    summary: Summary,
}

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
            state: limited(ServerState::new("SimUid")),
            workers: BTreeMap::new(),
            joining: BTreeMap::new(),
            next_link: 0,
            next_request: 0,
            watching: BTreeSet::new(),
            owed: BTreeSet::new(),
            finals: BTreeMap::new(),
            started_instances: BTreeMap::new(),
            succeeded: BTreeSet::new(),
            durable: None,
            was_reattached: false,
            summary: Summary::default(),
        }
    }

    /// Runs `steps` random steps, heals everything and requires that all work ends.
    ///
    /// # Panics
    ///
    /// If an invariant breaks or a task is left over.
    pub fn run(seed: u64, steps: u32) -> Summary {
        let mut world = Self::new(seed);
        world.join();
        for _ in 0..steps {
            world.step();
        }
        world.heal();
        world.summary
    }

    fn step(&mut self) {
        let pause = u64::from(self.rng.below(3_000_000));
        self.advance(Duration::from_nanos(pause));
        match self.rng.below(100) {
            0..6 => self.submit_array(),
            6..9 => self.submit_graph(),
            9..11 => self.cancel_some(),
            11..14 => self.join(),
            14 => self.lose_one(),
            15 | 54 => self.cut_one(),
            16 => self.say_goodbye(),
            17..19 => self.watch_some(),
            19 => self.send_nonsense(),
            97 => self.drain_some(),
            96 => self.notify_one(),
            98 => self.turn_clock(),
            99 => self.stand_still(),
            20..22 => self.come_back(),
            22..54 => self.work_somewhere(),
            55..80 => self.deliver_to_server(),
            _ => self.deliver_to_worker(),
        }
        self.store_some();
    }

    fn advance(&mut self, by: Duration) {
        self.now.mono = self.now.mono + by;
        self.now.wall = self.now.wall.plus(by);
        if self
            .state
            .next_deadline()
            .is_some_and(|deadline| deadline <= self.now.mono)
        {
            self.apply(Input::Timer);
        }
    }

    fn apply(&mut self, input: Input) {
        let mut effects = Vec::new();
        self.state.apply(self.now, input, &mut effects);
        self.state.settle(self.now, &mut effects);
        self.summary.inputs += 1;
        for effect in &effects {
            self.hash(&format!("{effect:?}"));
            if let Effect::Registered { reattached, .. } = effect {
                self.was_reattached = *reattached;
            }
        }
        self.state.check_invariants();
        self.check_finals();
        self.hand_over(effects);
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
                worker: id,
                reattached,
            } => {
                let (cpus, reconnects, was) = self
                    .joining
                    .remove(&link)
                    .expect("only links that join are answered");
                let old = was.and_then(|was| self.workers.remove(&was));
                let worker = match old {
                    Some(mut old) if reattached => {
                        assert_eq!(was, Some(id), "it keeps its id");
                        old.go_on();
                        self.summary.reattached += 1;
                        old
                    }
                    // Whatever it had is void.
                    Some(_) | None => VirtualWorker::new(cpus, reconnects),
                };
                self.workers.insert(id, worker);
            }
            Effect::ToWorker(id, command) => {
                check_frame(&command);
                if let Some(worker) = self.workers.get_mut(&id).filter(|w| !w.away) {
                    worker.inbox.push_back(command);
                }
            }
            Effect::DropWorker(id) => {
                self.summary.lost_workers += 1;
                match self.workers.get_mut(&id) {
                    // It does not know and will come back.
                    Some(worker) if worker.reconnects && !worker.stopping => worker.cut(),
                    Some(_) | None => drop(self.workers.remove(&id)),
                }
            }
            Effect::WatchUpdate(request, update) => {
                if self.durable.is_some() && !self.watching.contains(&request) {
                    // It waited for the disk longer than its reader.
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
            Effect::Persist(_) => {}
        }
    }

    fn request(&mut self, command: Command) -> RequestId {
        self.next_request += 1;
        let id = RequestId(self.next_request);
        if matches!(command, Command::Watch(_)) {
            self.watching.insert(id);
        }
        self.apply(Input::Request(id, command));
        id
    }

    fn join(&mut self) {
        if self.workers.len() >= 6 {
            return;
        }
        self.next_link += 1;
        let (link, cpus) = (LinkId(self.next_link), 1 + self.rng.below(4));
        let reconnects = self.rng.chance(60);
        self.joining.insert(link, (cpus, reconnects, None));
        self.apply(Input::WorkerConnected(link, config(cpus, reconnects)));
    }

    /// A connection breaks; the server may not have noticed when the worker comes back.
    fn cut_one(&mut self) {
        let Some(id) = self.pick() else { return };
        let worker = self.workers.get_mut(&id).expect("just picked");
        if !worker.reconnects || worker.stopping || worker.away {
            return;
        }
        worker.cut();
        let how = [LinkEnd::Closed, LinkEnd::Broken][self.rng.below(2) as usize];
        if self.rng.chance(50) {
            self.apply(Input::WorkerGone(id, how));
        }
    }

    fn come_back(&mut self) {
        let away = |(id, worker): (&WorkerId, &VirtualWorker)| worker.away.then_some(*id);
        let Some(id) = self.workers.iter().find_map(away) else {
            return;
        };
        self.reattach(id);
    }

    fn reattach(&mut self, id: WorkerId) {
        if self.is_joining(id) {
            return;
        }
        self.next_link += 1;
        let link = LinkId(self.next_link);
        let worker = &self.workers[&id];
        let cpus = worker.cpus;
        let report = worker.running();
        let launching = worker.untold();
        let mut runs: Vec<(TaskKey, InstanceId)> = report
            .started
            .iter()
            .map(|row| (row.task, row.instance))
            .chain(launching.iter().copied())
            .filter(|(task, instance)| self.is_due(id, *task, *instance))
            .collect();
        let mut through_crash = self.take_expected(id);
        let tasks = &self.workers[&id].tasks;
        through_crash.retain(|(task, instance)| {
            let still = tasks.get(task);
            still.is_some_and(|task| task.started && task.instance == *instance)
        });
        let reattach = Reattach {
            worker: id,
            server_uid: self.state.uid().into(),
            launching,
            report,
            variants: BTreeMap::new(),
        };
        self.joining.insert(link, (cpus, true, Some(id)));
        self.was_reattached = false;
        let crashes = self.summary.crashes;
        self.apply(Input::WorkerReattached(
            link,
            config(cpus, true),
            Box::new(reattach),
        ));
        if self.was_reattached && self.summary.crashes == crashes {
            self.summary.went_on += through_crash.len() as u64;
            runs.extend(through_crash);
            for (task, instance) in runs {
                let goes_on = self.is_due(id, task, instance) || self.finals_now(task);
                assert!(goes_on, "{task} instance {instance} goes on on {id}");
            }
        }
    }

    /// Whether it came back and waits for the answer, which may wait for the disk.
    fn is_joining(&self, id: WorkerId) -> bool {
        self.joining.values().any(|(_, _, was)| *was == Some(id))
    }

    /// Whether the server takes this for the current instance of an unfinished task.
    fn is_due(&self, id: WorkerId, task: TaskKey, instance: InstanceId) -> bool {
        let Some(job) = self.state.jobs().get(&task.job) else {
            return false;
        };
        let record = job.find(task.task).and_then(|slot| job.record(slot));
        record.is_some_and(|record| {
            use crate::task::Phase;
            record.worker() == id
                && record.instance() == instance
                && matches!(record.phase(), Phase::Queued | Phase::Running)
        })
    }

    /// Whether the task is over, because an end that was told at the same time ended its job.
    fn finals_now(&self, task: TaskKey) -> bool {
        self.state.jobs().get(&task.job).is_none_or(|job| {
            job.find(task.task)
                .and_then(|slot| job.phase(slot))
                .is_some_and(crate::task::Phase::is_terminal)
        })
    }

    fn pick(&mut self) -> Option<WorkerId> {
        let count = u32::try_from(self.workers.len()).expect("few");
        let nth = if count == 0 {
            return None;
        } else {
            self.rng.below(count)
        };
        self.workers.keys().nth(nth as usize).copied()
    }

    fn lose_one(&mut self) {
        let pick = self.pick();
        if let Some(id) = pick.filter(|id| !self.is_joining(*id)) {
            let away = self.workers.remove(&id).is_some_and(|worker| worker.away);
            if !away {
                self.apply(Input::WorkerGone(id, LinkEnd::Closed));
            }
        }
    }

    fn say_goodbye(&mut self) {
        if let Some(id) = self.pick() {
            let reason = [LostReason::Stopped, LostReason::IdleTimeout][self.rng.below(2) as usize];
            let worker = self.workers.get_mut(&id).expect("just picked");
            if worker.away {
                return;
            }
            let killed: Vec<EndedRow> = worker
                .tasks
                .iter()
                .map(|(task, t)| ended(*task, t.instance, Outcome::Killed))
                .collect();
            let report = Report {
                ended: killed,
                ..Report::default()
            };
            worker.send(report);
            worker.outbox.push_back(WorkerMessage::Goodbye(reason));
            worker.stopping = true;
        }
    }

    /// Somebody was told, or nobody answers.
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

    /// Each end was told, or given up.
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

    /// Messages from nobody, about nothing, or twice.
    fn send_nonsense(&mut self) {
        let task = TaskKey::new(JobId(self.rng.below(9)), TaskId(self.rng.below(9)));
        let instance = InstanceId(self.rng.below(3));
        let row = ended(task, instance, Outcome::Finished);
        let worker = WorkerId(1_000 + self.rng.below(9));
        let report = Report {
            ended: vec![row],
            ..Report::default()
        };
        self.apply(Input::WorkerMessage(worker, WorkerMessage::Report(report)));
        self.apply(Input::WorkerGone(worker, LinkEnd::Broken));
    }

    /// Somebody sets the wall clock, which nothing may depend on.
    fn turn_clock(&mut self) {
        let by = Duration::from_secs(u64::from(self.rng.below(100_000)));
        self.now.wall = if self.rng.chance(50) {
            self.now.wall.plus(by)
        } else {
            self.now.wall.minus(by)
        };
    }

    /// Sometimes the server gets no processor time for a while.
    fn stand_still(&mut self) {
        if self.rng.chance(20) {
            let millis = u64::from(self.rng.below(20_000));
            self.advance(Duration::from_millis(millis));
        }
    }

    /// A worker starts or ends something.
    fn work_somewhere(&mut self) {
        if let Some(id) = self.pick() {
            self.work_at(id);
        }
    }

    fn work_at(&mut self, id: WorkerId) {
        if self.is_joining(id) {
            return;
        }
        let end_instead = self.rng.chance(50);
        let outcome = match self.rng.below(12) {
            0 => Outcome::ExitCode(1),
            1 => Outcome::Message("cannot start".into()),
            _ => Outcome::Finished,
        };
        let Some(worker) = self.workers.get_mut(&id).filter(|w| !w.stopping) else {
            return;
        };
        let mut report = Report::default();
        if end_instead {
            let running = worker
                .tasks
                .iter()
                .find(|(_, t)| t.started)
                .map(|(k, t)| (*k, *t));
            let Some((task, found)) = running else { return };
            worker.tasks.remove(&task);
            if outcome == Outcome::Finished {
                self.succeeded.insert((task, id, found.instance));
            }
            report.ended.push(ended(task, found.instance, outcome));
        } else {
            if worker.away {
                return;
            }
            let free = worker.free();
            let next = worker
                .tasks
                .iter_mut()
                .find(|(_, t)| !t.started && t.cpus <= free);
            let Some((task, found)) = next else { return };
            found.started = true;
            let (task, instance) = (*task, found.instance);
            let is_new = self
                .started_instances
                .entry(task)
                .or_default()
                .insert((id, instance));
            assert!(is_new, "{task} instance {instance} starts once on {id}");
            report.started.push(StartedRow {
                task,
                instance,
                age: Duration::ZERO,
            });
        }
        worker.send(report);
    }

    fn deliver_to_server(&mut self) {
        let Some(id) = self.pick() else { return };
        let (heartbeat, twice) = (self.rng.chance(30), self.rng.chance(5));
        let worker = self.workers.get_mut(&id).expect("just picked");
        if worker.away {
            return;
        }
        let message = worker.outbox.pop_front();
        if heartbeat {
            self.apply(Input::WorkerMessage(id, WorkerMessage::Heartbeat));
        }
        if let Some(message) = message {
            if twice {
                let mut again = message.clone();
                if let WorkerMessage::Report(report) = &mut again {
                    // Nobody repeats these: a worker that comes back has forgotten them.
                    report.retracted.clear();
                }
                self.apply(Input::WorkerMessage(id, again));
            }
            self.apply(Input::WorkerMessage(id, message));
        }
    }

    fn deliver_to_worker(&mut self) {
        let Some(id) = self.pick() else { return };
        self.obey(id);
    }

    fn obey(&mut self, id: WorkerId) -> bool {
        let Some(worker) = self.workers.get_mut(&id) else {
            return false;
        };
        let Some(command) = worker.inbox.pop_front() else {
            return false;
        };
        match command {
            WorkerCommand::Assign {
                templates,
                assignments,
            } => {
                for shared in templates {
                    let request = &shared.task.requests.as_slice()[0];
                    let cpus = request.entries.first().map_or(0, |e| e.amount.whole_part());
                    let cpus = u32::try_from(cpus).expect("small");
                    worker.templates.insert(shared.id.0, (cpus, shared.job));
                }
                for assignment in assignments {
                    let (cpus, job) = worker.templates[&assignment.template.0];
                    for task in assignment.ids.iter() {
                        let key = TaskKey::new(job, TaskId(task));
                        let made = VirtualTask {
                            instance: assignment.instance,
                            cpus,
                            started: false,
                        };
                        let old = worker.tasks.insert(key, made);
                        assert!(old.is_none(), "{key} is assigned to {id} while it has it");
                    }
                }
            }
            WorkerCommand::DropTemplates(ids) => {
                for template in ids {
                    worker.templates.remove(&template.0);
                }
            }
            WorkerCommand::Retract(tasks) => {
                let mut report = Report::default();
                for (task, instance) in tasks {
                    let unstarted = worker.tasks.get(&task).is_some_and(|t| !t.started);
                    if unstarted {
                        worker.tasks.remove(&task);
                        report.retracted.push((task, instance));
                    }
                }
                worker.send(report);
            }
            WorkerCommand::Kill(tasks) => {
                let mut report = Report::default();
                for (task, instance) in tasks {
                    if worker.tasks.remove(&task).is_some() {
                        report.ended.push(ended(task, instance, Outcome::Killed));
                    }
                }
                worker.send(report);
            }
            WorkerCommand::Acknowledge(seq) => {
                worker.unacknowledged.retain(|(kept, _)| *kept > seq);
            }
            WorkerCommand::Ping | WorkerCommand::Hold(_) => {}
            WorkerCommand::Stop => {
                worker
                    .outbox
                    .push_back(WorkerMessage::Goodbye(LostReason::Stopped));
                worker.stopping = true;
            }
        }
        true
    }

    /// No more faults: a large worker joins, everything is delivered and run to the end.
    fn heal(&mut self) {
        self.heal_disk();
        for _ in 0..2 {
            self.next_link += 1;
            let link = LinkId(self.next_link);
            self.joining.insert(link, (8, false, None));
            self.apply(Input::WorkerConnected(link, config(8, false)));
        }
        let mut next_heartbeat = self.now.mono;
        for _ in 0..40_000 {
            if self
                .state
                .jobs()
                .values()
                .all(crate::job::Job::is_completed)
                && self.is_quiet()
            {
                self.advance(Duration::from_millis(50));
                assert!(self.watching.is_empty(), "every watch ends with its jobs");
                self.check_notices();
                return;
            }
            while !self.owed.is_empty() {
                self.notify_one();
            }
            let inputs = self.summary.inputs;
            let is_heartbeat_due = self.now.mono >= next_heartbeat;
            if is_heartbeat_due {
                next_heartbeat = self.now.mono + Duration::from_secs(1);
            }
            for id in self.workers.keys().copied().collect::<Vec<_>>() {
                if self.workers[&id].away {
                    self.reattach(id);
                    continue;
                }
                if is_heartbeat_due {
                    self.apply(Input::WorkerMessage(id, WorkerMessage::Heartbeat));
                }
                while self.obey(id) {}
                self.work_at(id);
                while let Some(message) =
                    self.workers.get_mut(&id).and_then(|w| w.outbox.pop_front())
                {
                    self.apply(Input::WorkerMessage(id, message));
                }
            }
            let is_idle = inputs == self.summary.inputs
                && self.is_quiet()
                && self.workers.values().all(|w| w.tasks.is_empty());
            let deadline = self.state.next_deadline().filter(|_| is_idle);
            let pause = deadline.map_or(Duration::ZERO, |at| at.since(self.now.mono));
            // Nothing happens until then, but workers say that they live.
            self.advance(pause.clamp(Duration::from_millis(1), Duration::from_millis(500)));
        }
        let left: u32 = self
            .state
            .jobs()
            .values()
            .map(|job| job.counts().unfinished())
            .sum();
        panic!("{left} tasks never ended although all faults were healed");
    }

    fn is_quiet(&self) -> bool {
        self.workers
            .values()
            .all(|w| w.outbox.is_empty() && w.inbox.is_empty() && w.unacknowledged.is_empty())
            && self.owed.is_empty()
    }
}

/// Most bytes of an assignment: so few that they are divided often.
const ASSIGN_BYTES: usize = 1_600;

/// Most bytes of a message to a worker. Lists of instances are not divided: they have no part that can be long.
const FRAME_BYTES: usize = 2 * ASSIGN_BYTES;

fn limited(mut state: ServerState) -> ServerState {
    state.limit_assignments(ASSIGN_BYTES);
    state
}

/// A message that is too large would break each connection to that worker.
fn check_frame(command: &WorkerCommand) {
    let bytes = command.wire_bytes();
    assert!(bytes <= FRAME_BYTES, "{bytes} bytes for {command:?}");
}

fn config(cpus: u32, reconnects: bool) -> WorkerConfig {
    let mut config = worker_config(cpus);
    if reconnects {
        config.on_server_lost = OnServerLost::Reconnect;
    }
    config
}

fn ended(task: TaskKey, instance: InstanceId, outcome: Outcome) -> EndedRow {
    EndedRow {
        task,
        instance,
        outcome,
        age: Duration::ZERO,
        run: Duration::from_micros(10),
        usage: Usage::default(),
    }
}
