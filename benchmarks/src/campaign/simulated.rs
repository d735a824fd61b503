//! The campaign in virtual time. The server makes decisions, and each worker starts tasks that fit in
//! the order of arrival.

use std::collections::{BTreeMap, VecDeque};
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

use super::{Asked, Campaign, Figures, Need, hours};

/// Tasks that have not finished by then count as never finished.
const HORIZON: Duration = Duration::from_secs(72 * 3_600);

/// How long a message takes between server and worker.
const LINK: Duration = Duration::from_millis(1);

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
    /// By time, and in the order of their creation.
    events: BTreeMap<(Time, u64), Event>,
    event_count: u64,
    figures: Figures,
}

impl Campaign {
    /// Runs the campaign.
    pub(super) fn play(&self, seed: u64, asked: Asked) -> Figures {
        let needs = self.needs(seed);
        let largest = needs.iter().map(|need| need.mebibytes).max().unwrap_or(1);
        let mut world = World {
            campaign: *self,
            server: ServerState::new("campaign"),
            now: Time(1_000_000_000),
            needs,
            nodes: BTreeMap::new(),
            links: 0,
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

impl World {
    fn clock(&self) -> Now {
        Now {
            mono: self.now,
            wall: Timestamp(i64::try_from(self.now.0).unwrap_or(i64::MAX)),
        }
    }

    fn put(&mut self, after: Duration, event: Event) {
        self.event_count += 1;
        self.events
            .insert((self.now + after, self.event_count), event);
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
        let event = self.events.first_key_value().map(|((time, _), _)| *time);
        let timer = self
            .server
            .next_deadline()
            .filter(|due| event.is_none_or(|at| *due < at));
        if let Some(due) = timer {
            self.now = self.now.max(due);
            self.apply(Input::Timer);
            return true;
        }
        let Some(((time, _), event)) = self.events.pop_first() else {
            return false;
        };
        self.now = time;
        match event {
            Event::End(worker, task, instance, outcome) => {
                self.end(worker, task, instance, outcome);
            }
            Event::NodeEnd(worker) => self.end_node(worker),
            Event::NodeStart => self.join(),
            Event::ToServer(input) => self.apply(*input),
            Event::ToWorker(id, command) => {
                self.take(id, command);
                self.start_some(id);
            }
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
                | Effect::Free(_)
                | Effect::Reply(..)
                | Effect::WatchUpdate(..)
                | Effect::Notify(_)
                | Effect::Allocate(_)
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
            | WorkerCommand::Signal(..)
            | WorkerCommand::TimeLimit(..)
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
            sent: None,
            ended: vec![row],
            ..Report::default()
        };
        self.tell(id, WorkerMessage::Report(report));
        self.start_some(id);
    }

    fn account(&mut self, running: &Running) -> f64 {
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
