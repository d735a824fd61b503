//! Simulates a campaign of many tasks, with long-tailed memory and lognormal run times, on workers
//! with walltimes, in virtual time. The server makes decisions, and each worker starts tasks that
//! fit in the order of arrival.

mod real;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use hq_core::growth::{MEMORY, memory};
use hq_core::id::{InstanceId, JobId, TaskId, TaskKey, WorkerId};
use hq_core::job::{SharedTemplate, TemplateId};
use hq_core::outcome::{LostReason, Outcome, Usage};
use hq_core::resource::amount::Amount;
use hq_core::resource::descriptor::{ResourceItem, ResourceKind};
use hq_core::resource::request::{Policy, RequestVariants, ResourceEntry, ResourceRequest};
use hq_core::retry::RetryCause;
use hq_core::server_state::Effect;
use hq_core::server_state::{
    EndedRow, Input, LinkId, Report, RequestId, ServerState, StartedRow, Submission, WorkerCommand,
    WorkerMessage,
};
use hq_core::sizing::{FirstMemory, LearnSpec};
use hq_core::template::TaskTemplate;
use hq_core::testing::{array_submit, template, worker_config};
use hq_core::time::{Now, Time, Timestamp};

pub use real::task as run_task;

/// Tasks that have not finished by then count as never finished.
const HORIZON: Duration = Duration::from_secs(72 * 3_600);

/// How long a message takes between server and worker.
const LINK: Duration = Duration::from_millis(1);

/// The parameters of a simulated campaign.
#[derive(Clone, Copy, Debug)]
pub struct Campaign {
    /// The number of tasks.
    pub tasks: u32,
    /// The number of simultaneous workers. When one ends, another replaces it.
    pub workers: u32,
    /// The cpus of a worker. A task takes one.
    pub cpus: u32,
    /// The memory of a worker in MiB.
    pub memory: u32,
    /// The memory of the smallest task in MiB.
    pub memory_least: u32,
    /// The lifetime of a worker.
    pub walltime: Duration,
    /// The median of the run times.
    pub run: Duration,
    /// The standard deviation of the logarithms of the run times.
    pub sigma: f64,
}

/// What the user requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// Whether to use `mem=auto` instead of the largest need for all tasks.
    pub auto_memory: bool,
    /// The value of `--predict` in thousandths; 0 = `--no-predict`.
    pub predict: u16,
}

/// The results of a campaign.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Figures {
    /// The sum of reserved memory times duration over all attempts, in GiB · h.
    pub reserved: f64,
    /// The cpu hours of attempts that were cut off when their worker ended.
    pub cut_off: f64,
    /// The number of these attempts.
    pub cut_off_count: u32,
    /// The number of attempts that ran out of memory.
    pub out_of_memory: u32,
    /// The number of tasks that finished.
    pub finished: u32,
    /// Hours until the last task finished.
    pub makespan: f64,
}

/// The real needs of a task, independent of its grant.
#[derive(Clone, Copy, Debug)]
struct Need {
    mebibytes: u32,
    run: Duration,
    /// Fraction of its run after which its memory peaks.
    peak: f64,
}

struct Running {
    instance: InstanceId,
    since: Time,
    memory: Amount,
}

struct Node {
    ends: Time,
    cpus_free: u32,
    memory_free: u64,
    templates: BTreeMap<TemplateId, Arc<SharedTemplate>>,
    waiting: VecDeque<(TaskKey, InstanceId, TemplateId)>,
    running: BTreeMap<TaskKey, Running>,
    reports: u64,
}

enum Event {
    End(WorkerId, TaskKey, InstanceId, Outcome),
    NodeEnd(WorkerId),
    NodeStart,
    ToServer(Box<Input>),
    ToWorker(WorkerId, WorkerCommand),
}

struct World {
    campaign: Campaign,
    server: ServerState,
    now: Time,
    needs: Vec<Need>,
    nodes: BTreeMap<WorkerId, Node>,
    links: u64,
    times: BinaryHeap<Reverse<(Time, u64)>>,
    events: BTreeMap<u64, Event>,
    event_count: u64,
    figures: Figures,
}

/// A reproducible random generator (SplitMix64).
struct Chance(u64);

impl Chance {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        f64::from(u32::try_from((z ^ (z >> 31)) >> 32).unwrap_or(0)) / f64::from(u32::MAX)
    }

    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.next() * 0.999_999).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.next()).cos()
    }
}

impl Campaign {
    /// Returns the needs of all tasks. The memory has a Pareto distribution: every hundredth task
    /// needs about 25 times as much as the smallest one.
    fn needs(&self, seed: u64) -> Vec<Need> {
        let mut chance = Chance(seed.wrapping_mul(0x9e37_79b9));
        let need = |_| {
            let tail = (1.0 - chance.next() * 0.999_999).powf(-1.0 / 1.3);
            let most = f64::from(self.memory) * 0.9;
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "at most the memory of a worker"
            )]
            let mebibytes = (f64::from(self.memory_least) * tail).min(most) as u32;
            let factor = (self.sigma * chance.normal()).exp();
            Need {
                mebibytes,
                // A task longer than the lifetime of a worker could never end.
                run: self.run.mul_f64(factor).min(self.walltime.mul_f64(0.8)),
                peak: 0.2 + 0.8 * chance.next(),
            }
        };
        (0..self.tasks).map(need).collect()
    }

    /// Runs the campaign.
    #[must_use]
    pub fn play(&self, seed: u64, asked: Asked) -> Figures {
        let needs = self.needs(seed);
        let largest = needs.iter().map(|need| need.mebibytes).max().unwrap_or(1);
        let mut world = World {
            campaign: *self,
            server: ServerState::new("campaign"),
            now: Time(1_000_000_000),
            needs,
            nodes: BTreeMap::new(),
            links: 0,
            times: BinaryHeap::new(),
            events: BTreeMap::new(),
            event_count: 0,
            figures: Figures::default(),
        };
        let spec = array_submit(self.tasks, task(asked, largest));
        let submission = Submission::one(Box::new(spec), None);
        world.apply(Input::Submit(RequestId(1), Box::new(submission)));
        for number in 0..self.workers {
            // Allocations start one after the other, as if the batch system gradually had room.
            world.put(self.walltime * number / self.workers, Event::NodeStart);
        }
        let start = world.now;
        while world.now.since(start) < HORIZON && world.step() {}
        world.figures.makespan = hours(world.now.since(start));
        world.figures
    }
}

fn task(asked: Asked, largest: u32) -> TaskTemplate {
    let mut request = ResourceRequest::cpus(1);
    let mut task = template(&["task"]);
    task.learn = LearnSpec {
        memory: asked.auto_memory.then_some(FirstMemory::Share),
        predict: Some(asked.predict),
        ..LearnSpec::default()
    };
    if asked.auto_memory {
        task.retry.limit = 16;
        task.retry.on = vec![RetryCause::OutOfMemory];
    } else {
        request.entries.push(ResourceEntry {
            resource: MEMORY.into(),
            policy: Policy::Compact,
            amount: Amount::whole(largest),
        });
    }
    if let Ok(requests) = RequestVariants::new(vec![request]) {
        task.requests = requests;
    }
    task
}

fn hours(time: Duration) -> f64 {
    time.as_secs_f64() / 3_600.0
}

impl World {
    fn clock(&self) -> Now {
        Now {
            mono: self.now,
            wall: Timestamp(i64::try_from(self.now.0).unwrap_or(i64::MAX)),
        }
    }

    fn put(&mut self, after: Duration, event: Event) {
        self.event_count += 1;
        self.times
            .push(Reverse((self.now + after, self.event_count)));
        self.events.insert(self.event_count, event);
    }

    fn join(&mut self) {
        let mut config = worker_config(self.campaign.cpus);
        config.heartbeat = Duration::from_secs(1_000_000);
        config.time_limit = Some(self.campaign.walltime);
        config.resources.items.push(ResourceItem {
            name: MEMORY.into(),
            kind: ResourceKind::Sum(Amount::whole(self.campaign.memory)),
        });
        self.links += 1;
        let link = LinkId(self.links);
        self.apply(Input::WorkerConnected(link, config));
    }

    /// Handles the next event. Returns `false` if everything has ended.
    fn step(&mut self) -> bool {
        if self.figures.finished == self.campaign.tasks
            || self.server.jobs().values().all(|job| job.is_completed())
        {
            return false;
        }
        let event = self.times.peek().map(|Reverse((time, _))| *time);
        let timer = self
            .server
            .next_deadline()
            .filter(|due| event.is_none_or(|at| *due < at));
        if let Some(due) = timer {
            self.now = self.now.max(due);
            self.apply(Input::Timer);
            return true;
        }
        let Some(Reverse((time, number))) = self.times.pop() else {
            return false;
        };
        self.now = time;
        match self.events.remove(&number) {
            Some(Event::End(worker, task, instance, outcome)) => {
                self.end(worker, task, instance, outcome);
            }
            Some(Event::NodeEnd(worker)) => self.end_node(worker),
            Some(Event::NodeStart) => self.join(),
            Some(Event::ToServer(input)) => self.apply(*input),
            Some(Event::ToWorker(id, command)) => {
                self.take(id, command);
                self.start_some(id);
            }
            None => {}
        }
        true
    }

    fn apply(&mut self, input: Input) {
        let mut effects = Vec::new();
        self.server.apply(self.clock(), input, &mut effects);
        self.server.settle(self.clock(), &mut effects);
        for effect in effects {
            match effect {
                Effect::Registered { worker, .. } => self.register(worker),
                Effect::ToWorker(worker, command) => {
                    self.put(LINK, Event::ToWorker(worker, command));
                }
                Effect::Persist(_)
                | Effect::Reply(..)
                | Effect::WatchUpdate(..)
                | Effect::Notify(_)
                | Effect::Free(_)
                | Effect::DropWorker(_) => {}
            }
        }
    }

    fn tell(&mut self, id: WorkerId, message: WorkerMessage) {
        let input = Input::WorkerMessage(id, message);
        self.put(LINK, Event::ToServer(Box::new(input)));
    }

    fn register(&mut self, worker: WorkerId) {
        let node = Node {
            ends: self.now + self.campaign.walltime,
            cpus_free: self.campaign.cpus,
            memory_free: Amount::whole(self.campaign.memory).0,
            templates: BTreeMap::new(),
            waiting: VecDeque::new(),
            running: BTreeMap::new(),
            reports: 0,
        };
        self.nodes.insert(worker, node);
        self.put(self.campaign.walltime, Event::NodeEnd(worker));
    }

    /// Makes a worker execute a command.
    fn take(&mut self, id: WorkerId, command: WorkerCommand) {
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        match command {
            WorkerCommand::Assign {
                templates,
                assignments,
                awaits: _,
            } => {
                let known = templates
                    .into_iter()
                    .map(|template| (template.id, template));
                node.templates.extend(known);
                for assignment in assignments {
                    let tasks = assignment
                        .ids
                        .iter()
                        .map(|task| TaskKey::new(JobId(1), TaskId(task)));
                    let tasks = tasks.map(|task| (task, assignment.instance, assignment.template));
                    node.waiting.extend(tasks);
                }
            }
            WorkerCommand::Retract(tasks) => {
                let is_wanted = |(task, instance, _): &(TaskKey, InstanceId, TemplateId)| {
                    tasks.contains(&(*task, *instance))
                };
                let (back, stay) = std::mem::take(&mut node.waiting)
                    .into_iter()
                    .partition(is_wanted);
                node.waiting = stay;
                let back: VecDeque<(TaskKey, InstanceId, TemplateId)> = back;
                let report = Report {
                    retracted: back
                        .into_iter()
                        .map(|(task, instance, _)| (task, instance))
                        .collect(),
                    ..Report::default()
                };
                self.tell(id, WorkerMessage::Report(report));
            }
            WorkerCommand::DropTemplates(_)
            | WorkerCommand::Kill(_)
            | WorkerCommand::KillNow(_)
            | WorkerCommand::Hold(_)
            | WorkerCommand::Stop
            | WorkerCommand::StopDrained
            | WorkerCommand::ServerEnds
            | WorkerCommand::Acknowledge(_)
            | WorkerCommand::Ping(_) => {}
        }
    }

    /// Makes a worker start the tasks that fit and return the tasks that would take too long.
    fn start_some(&mut self, id: WorkerId) {
        let (mut started, mut retracted) = (Vec::new(), Vec::new());
        let mut ends = Vec::new();
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        let waiting = std::mem::take(&mut node.waiting);
        for (task, instance, template) in waiting {
            let Some(known) = node.templates.get(&template) else {
                continue;
            };
            let requests = &known.task.requests;
            let min_time = requests.as_slice().first().map(|variant| variant.min_time);
            if min_time.unwrap_or_default() > node.ends.since(self.now) {
                retracted.push((task, instance));
                continue;
            }
            let granted = memory(requests).unwrap_or_default();
            if node.cpus_free == 0 || node.memory_free < granted.0 {
                node.waiting.push_back((task, instance, template));
                continue;
            }
            node.cpus_free -= 1;
            node.memory_free -= granted.0;
            node.running.insert(
                task,
                Running {
                    instance,
                    since: self.now,
                    memory: granted,
                },
            );
            started.push(StartedRow {
                task,
                instance,
                age: Duration::ZERO,
            });
            let Some(need) = self.needs.get(task.task.as_u32() as usize) else {
                continue;
            };
            let (outcome, run) = if granted < Amount::whole(need.mebibytes) {
                (Outcome::OutOfMemory(None), need.run.mul_f64(need.peak))
            } else {
                (Outcome::Finished, need.run)
            };
            ends.push((run, Event::End(id, task, instance, outcome)));
        }
        for (run, end) in ends {
            self.put(run, end);
        }
        if started.is_empty() && retracted.is_empty() {
            return;
        }
        let report = Report {
            started,
            retracted,
            ..Report::default()
        };
        self.tell(id, WorkerMessage::Report(report));
    }

    fn end(&mut self, id: WorkerId, task: TaskKey, instance: InstanceId, outcome: Outcome) {
        // The worker may be gone.
        let Some(node) = self.nodes.get_mut(&id) else {
            return;
        };
        let is_this = |running: &Running| running.instance == instance;
        if !node.running.get(&task).is_some_and(is_this) {
            return;
        }
        let Some(running) = node.running.remove(&task) else {
            return;
        };
        node.cpus_free += 1;
        node.memory_free += running.memory.0;
        node.reports += 1;
        let (seq, run) = (node.reports, self.now.since(running.since));
        self.account(&running);
        if outcome == Outcome::Finished {
            self.figures.finished += 1;
        } else {
            self.figures.out_of_memory += 1;
        }
        let need = self.needs.get(task.task.as_u32() as usize);
        let used = need.map_or(0, |need| u64::from(need.mebibytes) * 1_024);
        let row = EndedRow {
            task,
            instance,
            outcome,
            age: Duration::ZERO,
            run,
            usage: Usage {
                max_rss_kib: used,
                ..Usage::default()
            },
        };
        let report = Report {
            seq,
            ended: vec![row],
            ..Report::default()
        };
        self.tell(id, WorkerMessage::Report(report));
        self.start_some(id);
    }

    fn account(&mut self, running: &Running) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "figures")]
        let gibibytes = running.memory.whole_part() as f64 / 1_024.0;
        let run = hours(self.now.since(running.since));
        self.figures.reserved += gibibytes * run;
        run
    }

    fn end_node(&mut self, id: WorkerId) {
        let Some(node) = self.nodes.remove(&id) else {
            return;
        };
        for running in node.running.values() {
            let run = self.account(running);
            self.figures.cut_off += run;
            self.figures.cut_off_count += 1;
        }
        self.tell(id, WorkerMessage::Goodbye(LostReason::TimeLimitReached));
        self.join();
    }
}
