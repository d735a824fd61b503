//! A cluster in virtual time, whose nodes and tasks fail as a test prescribes: small and fast, so
//! that thousands can be played. Workers never leave, start their tasks in order, and report each
//! end at once.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use hq_core::id::{InstanceId, JobId, TaskId, TaskKey, WorkerId};
use hq_core::job::TemplateId;
use hq_core::outcome::{Outcome, Usage};
use hq_core::quarantine::QuarantineMode;
use hq_core::server_state::{
    ChangeKind, Command, Effect, EndedRow, Input, LinkId, Report, RequestId, ServerState,
    WorkerCommand, WorkerMessage,
};
use hq_core::template::SubmitSpec;
use hq_core::testing::sim::Rng;
use hq_core::testing::worker_config;
use hq_core::time::{Now, Time, Timestamp};

/// Outcome of an attempt, and its run time.
pub(super) type End = (Outcome, Duration);

/// A node of the world.
#[derive(Default)]
struct Node {
    cpus: u32,
    running: u32,
    waiting: VecDeque<(TaskKey, InstanceId)>,
}

/// History of a node.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Fate {
    /// Failures before its first quarantine; all of them, if it had none.
    pub(super) failures: u32,
    /// When the first of them was.
    pub(super) first_failure: Option<Time>,
    /// Time of its first quarantine.
    pub(super) set_aside: Option<Time>,
    /// Number of quarantines.
    pub(super) times: u32,
}

pub(super) struct World<'a> {
    pub(super) state: ServerState,
    pub(super) rng: Rng,
    now: Now,
    nodes: BTreeMap<WorkerId, Node>,
    templates: BTreeMap<TemplateId, JobId>,
    /// Future ends: time and order of the start, worker and task.
    coming: BTreeMap<(Time, u64), (WorkerId, TaskKey, InstanceId, End)>,
    started: u64,
    pub(super) fates: BTreeMap<WorkerId, Fate>,
    rule: &'a dyn Fn(&mut Rng, u32, TaskKey) -> End,
}

impl<'a> World<'a> {
    /// `rule` gives the outcome of an attempt on a worker.
    pub(super) fn new(
        seed: u64,
        workers: u32,
        cpus: u32,
        rule: &'a dyn Fn(&mut Rng, u32, TaskKey) -> End,
    ) -> Self {
        let mut state = ServerState::new("test");
        state.set_quarantine_mode(QuarantineMode::Act);
        let mut world = Self {
            state,
            rng: Rng::new(seed),
            now: Now {
                mono: Time(1_000_000_000_000),
                wall: Timestamp(1_000_000_000_000),
            },
            nodes: BTreeMap::new(),
            templates: BTreeMap::new(),
            coming: BTreeMap::new(),
            started: 0,
            fates: BTreeMap::new(),
            rule,
        };
        for number in 1..=workers {
            let mut config = worker_config(cpus);
            config.hostname = format!("n{number}").into();
            config.heartbeat = Duration::from_hours(10_000);
            let node = Node {
                cpus,
                ..Node::default()
            };
            world.nodes.insert(WorkerId(number), node);
            world.apply(Input::WorkerConnected(LinkId(number.into()), config));
        }
        world
    }

    pub(super) fn submit(&mut self, spec: SubmitSpec) {
        let command = Command::Submit(Box::new(spec));
        self.apply(Input::Request(RequestId(1), command));
    }

    /// Until nothing runs any more.
    pub(super) fn run(&mut self) {
        while self.step() {}
    }

    /// Advances to the next end or deadline; `false` = nothing is left.
    fn step(&mut self) -> bool {
        let next = self.coming.first_key_value().map(|((time, _), _)| *time);
        let is_over = self.state.jobs().values().all(|job| job.is_completed());
        let due = self.state.next_deadline();
        let Some(time) = next.into_iter().chain(due).min().filter(|_| !is_over) else {
            return false;
        };
        if time > self.now.mono {
            self.now.wall = self.now.wall.plus(time.since(self.now.mono));
            self.now.mono = time;
        }
        if next.is_none_or(|next| next > time) {
            self.apply(Input::Timer);
            return true;
        }
        let Some((_, (worker, task, instance, (outcome, run)))) = self.coming.pop_first() else {
            return false;
        };
        let is_bad = outcome != Outcome::Finished;
        let fate = self.fates.entry(worker).or_default();
        if is_bad && fate.set_aside.is_none() {
            fate.failures += 1;
            fate.first_failure.get_or_insert(self.now.mono);
        }
        self.nodes.entry(worker).or_default().running -= 1;
        let row = EndedRow {
            task,
            instance,
            age: Duration::ZERO,
            run,
            outcome,
            usage: Usage::default(),
        };
        let report = Report {
            ended: vec![row],
            ..Report::default()
        };
        self.apply(Input::WorkerMessage(worker, WorkerMessage::Report(report)));
        true
    }

    fn apply(&mut self, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let mut effects = Vec::new();
            self.state.apply(self.now, input, &mut effects);
            self.state.settle(self.now, &mut effects);
            for effect in effects {
                inputs.extend(self.carry_out(effect));
            }
        }
        self.start_all();
    }

    fn carry_out(&mut self, effect: Effect) -> Option<Input> {
        match effect {
            Effect::Persist(change) => {
                if let ChangeKind::WorkerQuarantined(quarantine) = change.kind {
                    let fate = self.fates.entry(quarantine.worker).or_default();
                    fate.times += 1;
                    fate.set_aside.get_or_insert(self.now.mono);
                }
                None
            }
            Effect::ToWorker(
                id,
                WorkerCommand::Assign {
                    templates,
                    assignments,
                    awaits: _,
                },
            ) => {
                let known = templates
                    .iter()
                    .map(|template| (template.id, template.header.job));
                self.templates.extend(known);
                let node = self.nodes.entry(id).or_default();
                for assignment in assignments {
                    let job = self.templates[&assignment.template];
                    let ids = assignment.ids.iter();
                    node.waiting
                        .extend(ids.map(|id| (TaskKey::new(job, TaskId(id)), assignment.instance)));
                }
                None
            }
            Effect::ToWorker(id, WorkerCommand::Retract(tasks)) => {
                let node = self.nodes.entry(id).or_default();
                let (back, stays) = std::mem::take(&mut node.waiting)
                    .into_iter()
                    .partition(|task| tasks.contains(task));
                node.waiting = stays;
                let back: VecDeque<_> = back;
                let report = Report {
                    retracted: back.into(),
                    ..Report::default()
                };
                Some(Input::WorkerMessage(id, WorkerMessage::Report(report)))
            }
            Effect::ToWorker(..)
            | Effect::Reply(..)
            | Effect::WatchUpdate(..)
            | Effect::Registered { .. }
            | Effect::Notify(_)
            | Effect::Allocate(_)
            | Effect::DropWorker(_)
            | Effect::Free(_) => None,
        }
    }

    fn start_all(&mut self) {
        for (id, node) in &mut self.nodes {
            while node.running < node.cpus
                && let Some((task, instance)) = node.waiting.pop_front()
            {
                node.running += 1;
                self.started += 1;
                let end = (self.rule)(&mut self.rng, id.as_u32(), task);
                let at = self.now.mono + end.1;
                self.coming
                    .insert((at, self.started), (*id, task, instance, end));
            }
        }
    }

    /// Finished and failed tasks of all jobs.
    pub(super) fn ended(&self) -> (u32, u32) {
        let counts = self.state.jobs().values().map(|job| job.counts());
        counts.fold((0, 0), |(good, bad), counts| {
            (good + counts.finished, bad + counts.failed)
        })
    }

    pub(super) fn fate(&self, worker: u32) -> Fate {
        self.fates
            .get(&WorkerId(worker))
            .copied()
            .unwrap_or_default()
    }

    /// How many times any worker was set aside.
    pub(super) fn set_aside(&self) -> u32 {
        self.fates.values().map(|fate| fate.times).sum()
    }

    /// How many starts there were.
    pub(super) const fn started(&self) -> u64 {
        self.started
    }

    pub(super) fn is_completed(&self, job: u32) -> bool {
        self.state.jobs()[&JobId(job)].is_completed()
    }
}
