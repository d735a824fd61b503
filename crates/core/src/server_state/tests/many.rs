//! Very many different requests: everything runs, and no round examines all of them.

mod submits;

use std::time::Duration;

use super::*;
use crate::id::TaskId;
use crate::outcome::{LostReason, Outcome, Usage};
use crate::range::IdArray;
use crate::resource::amount::Amount;
use crate::resource::descriptor::{ResourceItem, ResourceKind};
use crate::resource::request::{Policy, RequestVariants, ResourceEntry, ResourceRequest};
use crate::scheduler::worker_plan::{PATIENCE, WorkerPlan};
use crate::task::TaskState;
use crate::template::{GraphSpec, GraphTask, SubmitBody, SubmitSpec, SubmitTarget};
use crate::testing::workers_wanted;
use crate::time::Timestamp;

/// Memory of a worker; each task requests another part of it.
const MEMORY: u32 = 1_000_000;

/// Workers that end everything they start at once.
struct World {
    state: ServerState,
    now: Now,
    /// The maximum that a round examined: workers, queues, and their product.
    most: (usize, usize, usize),
    started: Vec<TaskKey>,
}

impl World {
    fn new(workers: u32) -> Self {
        let mut world = Self {
            state: ServerState::new("test"),
            now: Now {
                mono: Time(0),
                wall: Timestamp(7),
            },
            most: (0, 0, 0),
            started: Vec::new(),
        };
        for worker in 1..=workers {
            let mut config = worker_config(8);
            config.heartbeat = Duration::from_secs(1_000_000);
            config.resources.items.push(ResourceItem {
                name: "mem".into(),
                kind: ResourceKind::Sum(Amount::whole(MEMORY)),
            });
            let link = LinkId(u64::from(worker));
            world.apply(vec![Input::WorkerConnected(link, config)]);
        }
        world
    }

    /// Applies inputs, and continues until nothing is left to do at this time.
    fn apply(&mut self, inputs: Vec<Input>) {
        let mut effects = Vec::new();
        for input in inputs {
            self.state.apply(self.now, input, &mut effects);
        }
        loop {
            self.state.settle(self.now, &mut effects);
            let round = self.state.last_round();
            self.most.0 = self.most.0.max(round.workers);
            self.most.1 = self.most.1.max(round.queues);
            self.most.2 = self.most.2.max(round.workers * round.queues);
            let due = self.state.next_deadline();
            if due.is_none_or(|due| due > self.now.mono) {
                return;
            }
            self.state.apply(self.now, Input::Timer, &mut effects);
        }
    }

    /// All tasks with resources start and end.
    fn step(&mut self) {
        self.now.mono = self.now.mono + Duration::from_millis(10);
        let mut inputs = Vec::new();
        for worker in self.state.workers().values() {
            let placed = worker.assigned().iter().filter(|(_, a)| a.placed);
            let rows: Vec<(TaskKey, InstanceId)> =
                placed.map(|(task, a)| (*task, a.instance)).collect();
            self.started.extend(rows.iter().map(|(task, _)| *task));
            let ended = rows.iter().map(|(task, instance)| EndedRow {
                task: *task,
                instance: *instance,
                age: Duration::ZERO,
                run: Duration::from_millis(5),
                outcome: Outcome::Finished,
                usage: Usage::default(),
            });
            let report = Report {
                ended: ended.collect(),
                ..Report::default()
            };
            inputs.push(Input::WorkerMessage(
                worker.id,
                WorkerMessage::Report(report),
            ));
        }
        self.apply(inputs);
    }

    /// No worker has room for a waiting task of the highest priority, outside the room reserved for
    /// tasks sent to it; or it reserves room for one that has waited long.
    fn check_full(&self) {
        let Some(first) = self.state.ready_counts().next() else {
            return;
        };
        let level = self.state.ready_counts();
        for (key, _) in level.take_while(|(key, _)| key.priority == first.0.priority) {
            let class = self.state.classes().get(key.class).expect("interned");
            let mut workers = self.state.workers().values().filter(|worker| {
                let overdue = worker.oldest_reservation(self.now.mono, PATIENCE);
                overdue.is_none()
            });
            assert!(
                !workers.any(|worker| {
                    let mut plan = WorkerPlan::new(worker);
                    plan.enter(key, self.state.classes());
                    plan.room(&class.variants[0]) > 0
                }),
                "{key:?} could start"
            );
        }
    }
}

/// A cpu and a different amount of memory for each task.
fn kinds(count: u32, priorities: u32) -> SubmitSpec {
    let templates = (0..count).map(|number| {
        let mut request = ResourceRequest::cpus(1);
        request.entries.push(ResourceEntry {
            resource: "mem".into(),
            amount: Amount::whole(1 + number * (MEMORY / count)),
            policy: Policy::Compact,
        });
        let mut template = template(&["true"]);
        template.priority = i32::try_from(number % priorities).expect("few");
        template.requests = RequestVariants::new(vec![request]).expect("valid");
        Arc::new(template)
    });
    let tasks = (0..count).map(|number| GraphTask {
        id: TaskId(number),
        template: number,
        deps: Vec::new(),
    });
    SubmitSpec {
        body: SubmitBody::Graph(GraphSpec {
            templates: templates.collect(),
            tasks: tasks.collect(),
        }),
        ..array_submit(1, template(&["true"]))
    }
}

fn run(workers: u32, count: u32, priorities: u32) -> World {
    let mut world = World::new(workers);
    let submit = Command::Submit(Box::new(kinds(count, priorities)));
    world.apply(vec![Input::Request(RequestId(1), submit)]);
    let mut steps = 0;
    while !world.state.jobs().values().all(Job::is_completed) {
        let before = world.started.len();
        world.step();
        steps += 1;
        assert!(
            world.started.len() > before,
            "nothing starts after {before}"
        );
        if steps % 16 == 0 {
            world.check_full();
        }
    }
    assert_eq!(world.started.len(), count as usize);
    assert!(world.most.0 <= 24, "{:?}", world.most);
    assert!(world.most.1 <= 1_024, "{:?}", world.most);
    world.state.check_invariants();
    world
}

#[test]
fn sixteen_thousand_requests_on_one_worker_all_run() {
    run(1, 16_000, 1);
}

#[test]
fn many_requests_of_several_priorities_on_several_workers_all_run_in_order() {
    let world = run(5, 4_000, 3);
    let priority = |task: &TaskKey| task.task.0 % 3;
    let late = world.started.iter().rev().take(500);
    assert!(
        late.clone().all(|task| priority(task) == 0),
        "urgent ones are first"
    );
}

#[test]
fn as_many_priorities_as_tasks_are_no_burden() {
    run(2, 2_000, 2_000);
}

#[test]
fn what_is_told_to_all_workers_of_a_job_costs_nothing_for_the_others() {
    let mut world = World::new(50);
    let submit = |world: &mut World| {
        let submit = Command::Submit(Box::new(array_submit(1, template(&["true"]))));
        world.apply(vec![Input::Request(RequestId(1), submit)]);
    };
    submit(&mut world);
    submit(&mut world);
    let sent_to = |world: &World, job: u32| world.state.jobs()[&JobId(job)].sent_to().len();
    assert_eq!((sent_to(&world, 1), sent_to(&world, 2)), (1, 1));
    world.step();
    assert_eq!(
        (sent_to(&world, 1), sent_to(&world, 2)),
        (0, 0),
        "all templates are dropped"
    );
    let knows = |worker: &Worker| worker.knows_templates();
    assert!(!world.state.workers().values().any(knows));
}

#[test]
fn a_late_report_does_not_move_the_end_of_a_job() {
    let mut world = World::new(1);
    let submit = Command::Submit(Box::new(array_submit(2, template(&["true"]))));
    world.apply(vec![Input::Request(RequestId(1), submit)]);
    let cancel = Command::CancelJobs {
        jobs: Selector::All,
        reason: String::new().into(),
    };
    world.now.wall = Timestamp(100);
    world.apply(vec![Input::Request(RequestId(2), cancel)]);
    let ended = |world: &World| world.state.jobs()[&JobId(1)].idle_since;
    assert_eq!(ended(&world), Timestamp(100));
    world.now.wall = Timestamp(200);
    let row = |task: u32| EndedRow {
        task: TaskKey::new(JobId(1), TaskId(task)),
        instance: InstanceId(0),
        age: Duration::ZERO,
        run: Duration::from_millis(5),
        outcome: Outcome::Killed,
        usage: Usage::default(),
    };
    let report = Report {
        ended: vec![row(0), row(1)],
        ..Report::default()
    };
    let report = WorkerMessage::Report(report);
    world.apply(vec![Input::WorkerMessage(WorkerId(1), report)]);
    assert_eq!(ended(&world), Timestamp(100));
}

#[test]
fn of_very_many_ended_workers_the_last_are_kept_and_all_are_counted() {
    let mut state = ServerState::new("test");
    let many = u32::try_from(ENDED_WORKERS_MAX).expect("few") + 10;
    for number in 1..=many {
        apply(
            &mut state,
            Input::WorkerConnected(LinkId(number.into()), worker_config(1)),
        );
        let reason = if number % 2 == 0 {
            LostReason::IdleTimeout
        } else {
            LostReason::ConnectionLost
        };
        let goodbye = WorkerMessage::Goodbye(reason);
        apply(&mut state, Input::WorkerMessage(WorkerId(number), goodbye));
    }
    assert_eq!(state.ended_workers().len(), ENDED_WORKERS_MAX);
    assert_eq!(state.ended_counts().values().sum::<u64>(), many.into());
    assert_eq!(state.hostname(WorkerId(1)), Some("node1"), "of all of them");
    assert_eq!(state.last_lost(), Some(WorkerId(many - 1)));
}

/// Settles once without inputs; returns the effects.
fn settle(world: &mut World) -> Vec<Effect> {
    let mut effects = Vec::new();
    world.state.settle(world.now, &mut effects);
    world.state.check_invariants();
    effects
}

/// Takes an input without settling.
fn take(world: &mut World, input: Input) -> Vec<Effect> {
    let mut effects = Vec::new();
    world.state.apply(world.now, input, &mut effects);
    effects
}

/// Submits, and settles until that is answered.
fn submit(world: &mut World, spec: SubmitSpec) -> JobId {
    let command = Command::Submit(Box::new(spec));
    let mut effects = take(world, Input::Request(RequestId(1), command));
    effects.extend(settle(world));
    submitted(&effects).expect("an answer")
}

fn submitted(effects: &[Effect]) -> Option<JobId> {
    effects.iter().find_map(|effect| {
        let Effect::Reply(_, Reply::Submitted(job)) = effect else {
            return None;
        };
        Some(*job)
    })
}

fn cancel_all(world: &mut World) -> Vec<JobResult> {
    let jobs = Selector::All;
    let reason = Box::default();
    let cancel = Command::CancelJobs { jobs, reason };
    let effects = take(world, Input::Request(RequestId(2), cancel));
    let rows = effects.into_iter().find_map(|effect| {
        let Effect::Reply(_, Reply::Jobs(found)) = effect else {
            return None;
        };
        Some(found.rows)
    });
    rows.expect("an answer")
}

#[test]
fn very_many_different_tasks_are_queued_in_portions_and_nothing_less_urgent_goes_first() {
    let mut world = World::new(1);
    submit(&mut world, kinds(3_000, 5));
    let mut settles = 1;
    loop {
        let again = world.state.next_deadline();
        assert!(!world.state.has_portions_left() || again <= Some(world.now.mono));
        let mut assigned = world.state.workers()[&WorkerId(1)].assigned().values();
        assert!(assigned.len() > 0);
        // Once all are queued, others may take the rest.
        if !world.state.has_portions_left() {
            break;
        }
        assert!(assigned.all(|a| a.key.priority.0 == 4));
        let before = world.state.ready_len();
        settle(&mut world);
        settles += 1;
        assert!(world.state.ready_len() <= before + 1_024);
    }
    assert_eq!(settles, 3);
    while world.started.len() < 3_000 {
        world.step();
    }
}

#[test]
fn a_canceled_job_is_queued_no_further() {
    let mut world = World::new(0);
    submit(&mut world, kinds(3_000, 5));
    cancel_all(&mut world);
    settle(&mut world);
    assert!(!world.state.has_portions_left());
    assert_eq!(world.state.ready_len(), 0);
}

/// A queued job of very many requests on workers that are busy with the first of them.
fn queued(count: u32) -> World {
    let mut world = World::new(2);
    submit(&mut world, kinds(count, 5));
    while world.state.has_portions_left() || world.state.is_queue_behind() {
        settle(&mut world);
    }
    world
}

#[test]
fn a_canceled_job_leaves_the_queue_in_portions_and_none_of_it_starts() {
    let mut world = queued(5_000);
    let before = world.state.ready_len();
    assert_eq!(
        cancel_all(&mut world),
        [JobResult::Ok {
            job: JobId(1),
            canceled: 5_000,
            already_finished: 0,
            killed: 0,
        }]
    );
    assert!(world.state.jobs()[&JobId(1)].is_completed(), "at once");
    assert_eq!(world.state.ready_len(), before - 1_024);
    let assigned = |world: &World| -> Vec<TaskKey> {
        let workers = world.state.workers().values();
        workers
            .flat_map(|worker| worker.assigned().keys().copied())
            .collect()
    };
    let held = assigned(&world);
    // The last of its requests once more, as urgent as the first.
    let mut later = kinds(5_000, 5);
    if let SubmitBody::Graph(graph) = &mut later.body {
        graph.templates.drain(..4_999);
        graph.tasks.truncate(1);
    }
    let later = submit(&mut world, later);
    while world.state.has_portions_left() || world.state.is_queue_freeing() {
        settle(&mut world);
        let new = assigned(&world);
        let mut new = new.iter().filter(|task| !held.contains(task));
        assert!(
            new.all(|task| task.job == later),
            "what is canceled stays so"
        );
    }
    world.started.clear();
    world.step();
    world.step();
    assert!(world.started.iter().any(|task| task.job == later));
    assert!(world.state.jobs()[&later].is_completed());
}

#[test]
fn demand_that_a_canceled_job_hides_is_partial_until_it_has_left_the_queue() {
    let mut world = World::new(0);
    submit(&mut world, kinds(5_000, 5));
    submit(&mut world, array_submit(3, template(&["true"])));
    while world.state.is_demand_partial() {
        settle(&mut world);
    }
    let first = Command::CancelJobs {
        jobs: Selector::Ids(IdArray::single(1)),
        reason: Box::default(),
    };
    take(&mut world, Input::Request(RequestId(2), first));
    assert!(world.state.is_demand_partial());
    let wanted = |world: &World| workers_wanted(&world.state, world.now.mono, 1);
    assert_eq!(wanted(&world), 0, "what is hidden is not seen");
    while world.state.is_demand_partial() {
        settle(&mut world);
    }
    assert_eq!(wanted(&world), 3);
}

#[test]
fn what_is_submitted_to_an_open_job_while_canceled_tasks_leave_the_queue_stays() {
    let mut world = World::new(1);
    let open = Command::OpenJob {
        name: "open".into(),
        max_fails: None,
        key: None,
    };
    take(&mut world, Input::Request(RequestId(1), open));
    let attach = |spec: SubmitSpec| SubmitSpec {
        target: SubmitTarget::Attach(JobId(1)),
        ..spec
    };
    submit(&mut world, attach(kinds(5_000, 5)));
    while world.state.has_portions_left() {
        settle(&mut world);
    }
    cancel_all(&mut world);
    assert!(world.state.has_portions_left());
    // The same requests once more.
    let mut more = attach(kinds(5_000, 5));
    if let SubmitBody::Graph(graph) = &mut more.body {
        graph.templates.truncate(500);
        graph.tasks.truncate(500);
        for task in &mut graph.tasks {
            task.id.0 += 5_000;
        }
    }
    submit(&mut world, more);
    while world.state.has_portions_left() {
        settle(&mut world);
    }
    let counts = |world: &World| *world.state.jobs()[&JobId(1)].counts();
    while counts(&world).finished < 500 {
        let before = world.started.len();
        world.step();
        assert!(world.started.len() > before, "all of them start");
    }
    assert_eq!(counts(&world).canceled, 5_000);
}

#[test]
fn large_values_are_freed_outside_the_state() {
    let mut world = queued(5_000);
    cancel_all(&mut world);
    let forget = Command::ForgetJobs {
        jobs: Selector::All,
        states: vec![TaskState::Canceled],
    };
    let effects = take(&mut world, Input::Request(RequestId(3), forget));
    assert!(world.state.jobs().is_empty());
    let is_job = |effect: &Effect| matches!(effect, Effect::Free(Freed::Job(_)));
    assert!(effects.iter().any(is_job), "{effects:?}");
    // One job does not exist, the other is closed.
    submit(&mut world, array_submit(1, template(&["true"])));
    for job in [7, 2] {
        let refused = SubmitSpec {
            target: SubmitTarget::Attach(JobId(job)),
            ..kinds(5_000, 5)
        };
        let command = Command::Submit(Box::new(refused));
        let effects = take(&mut world, Input::Request(RequestId(2), command));
        let is_submit = |effect: &Effect| matches!(effect, Effect::Free(Freed::Submit(_)));
        assert!(effects.iter().any(is_submit), "{effects:?}");
    }
}

#[test]
fn too_many_failures_take_very_many_tasks_out_of_the_queue() {
    let mut world = World::new(1);
    let target = SubmitTarget::NewJob {
        name: "x".into(),
        max_fails: Some(0),
    };
    let large = SubmitSpec {
        target,
        ..kinds(5_000, 1)
    };
    submit(&mut world, large);
    while world.state.has_portions_left() {
        settle(&mut world);
    }
    let worker = &world.state.workers()[&WorkerId(1)];
    let (task, assigned) = worker.assigned().first_key_value().expect("some");
    let row = EndedRow {
        task: *task,
        instance: assigned.instance,
        age: Duration::ZERO,
        run: Duration::from_millis(5),
        outcome: Outcome::ExitCode(1),
        usage: Usage::default(),
    };
    let report = Report {
        ended: vec![row],
        ..Report::default()
    };
    let report = WorkerMessage::Report(report);
    take(&mut world, Input::WorkerMessage(WorkerId(1), report));
    let counts = *world.state.jobs()[&JobId(1)].counts();
    assert_eq!((counts.failed, counts.aborted), (1, 4_999));
    assert!(world.state.ready_len() > 0, "in portions");
    while world.state.has_portions_left() {
        settle(&mut world);
    }
    assert_eq!(world.state.ready_len(), 0);
}

#[test]
fn very_many_templates_are_dropped_with_one_message() {
    let mut world = World::new(1);
    let job = submit(&mut world, array_submit(1, template(&["true"])));
    world.state.teach(WorkerId(1), job, 1..10_000);
    let cancel = Command::CancelJobs {
        jobs: Selector::All,
        reason: Box::default(),
    };
    let effects = take(&mut world, Input::Request(RequestId(2), cancel));
    let dropped = effects.iter().filter_map(|effect| {
        let Effect::ToWorker(_, WorkerCommand::DropTemplates(templates)) = effect else {
            return None;
        };
        Some(templates.len())
    });
    assert_eq!(dropped.collect::<Vec<_>>(), [9_999]);
    assert!(!world.state.workers()[&WorkerId(1)].knows_templates());
}

/// Requests that barely do not fit cost a search one step each: together more than its limit.
#[test]
fn a_task_that_fits_is_found_behind_thousands_that_just_do_not() {
    let mut world = World::new(1);
    let mut never = kinds(10_000, 1);
    if let SubmitBody::Graph(graph) = &mut never.body {
        for (number, template) in (0..).zip(&mut graph.templates) {
            let mut request = ResourceRequest::cpus(1);
            // The smallest amount more memory than exists, and a different share of the cpus each.
            let amount = |text: &str| Amount::parse(text).expect("an amount");
            request.entries[0].amount = amount(&format!("1.{number:04}"));
            request.entries.push(ResourceEntry {
                resource: "mem".into(),
                amount: amount(&format!("{MEMORY}.0001")),
                policy: Policy::Compact,
            });
            Arc::make_mut(template).requests = RequestVariants::new(vec![request]).expect("valid");
        }
    }
    world.apply(vec![Input::Request(
        RequestId(1),
        Command::Submit(Box::new(never)),
    )]);
    let submit = Command::Submit(Box::new(array_submit(1, template(&["true"]))));
    world.apply(vec![Input::Request(RequestId(2), submit)]);
    for _ in 0..100 {
        world.step();
    }
    assert_eq!(world.started.len(), 1, "the one that fits");
}

#[test]
fn of_very_many_workers_a_round_looks_at_some_and_all_get_work() {
    let mut world = World::new(5_000);
    submit(&mut world, array_submit(45_000, template(&["true"])));
    while world.state.ready_len() > 0 {
        settle_once(&mut world);
        assert!(world.state.last_round().workers <= 1_024);
    }
    let busy = |worker: &&Worker| worker.assigned().len() >= 8;
    let workers = world.state.workers().values();
    assert_eq!(workers.filter(busy).count(), 5_000);
}

/// Like [`settle`], without checking everything.
fn settle_once(world: &mut World) {
    world.state.settle(world.now, &mut Vec::new());
}
