//! Automatic allocation as a part of the state.

use std::sync::Arc;

use super::*;
use crate::autoalloc::{
    self, AllocationEvent, AllocationState, QueueCommand, QueueRecord, SubmitOutcome,
};
use crate::id::AllocationKey;
use crate::range::IdArray;
use crate::template::{GraphSpec, GraphTask, SubmitBody, SubmitSpec};
use crate::testing::{NOW, queue_params};
use crate::worker_config::{Allocation, BatchSystem};

const QUEUE: QueueId = QueueId(1);
const FIRST: AllocationKey = AllocationKey {
    queue: QUEUE,
    number: 1,
};

fn at(secs: u64) -> Now {
    Now {
        mono: NOW.mono + Duration::from_secs(secs),
        ..NOW
    }
}

fn step(state: &mut ServerState, secs: u64, input: Input) -> Vec<Effect> {
    let mut effects = Vec::new();
    state.apply(at(secs), input, &mut effects);
    state.settle(at(secs), &mut effects);
    effects
}

fn change(state: &mut ServerState, command: QueueCommand) -> Reply {
    let effects = request(state, Command::Queue(command));
    let reply = effects.into_iter().find_map(|effect| match effect {
        Effect::Reply(_, reply) => Some(reply),
        Effect::Persist(_)
        | Effect::WatchUpdate(..)
        | Effect::Registered { .. }
        | Effect::ToWorker(..)
        | Effect::Notify(_)
        | Effect::Allocate(_)
        | Effect::DropWorker(_)
        | Effect::Free(_) => None,
    });
    reply.expect("an answer")
}

fn with_queue() -> ServerState {
    let mut state = ServerState::new("test");
    let add = QueueCommand::Add(Arc::new(queue_params()));
    assert_eq!(change(&mut state, add), Reply::Queue(Ok(Some(QUEUE))));
    state
}

/// Returns a server with a queue that submits an allocation for a job.
fn submitting() -> ServerState {
    let mut state = with_queue();
    let job = array_submit(1, template(&["true"]));
    request(&mut state, Command::Submit(Box::new(job)));
    let effects = step(&mut state, 1, Input::Timer);
    assert_eq!(submissions(&effects), 1);
    state
}

fn submissions(effects: &[Effect]) -> usize {
    let is_submission = |effect: &&Effect| matches!(effect, Effect::Allocate(autoalloc::Effect::Submit { key, .. }) if *key == FIRST);
    effects.iter().filter(is_submission).count()
}

/// Returns the stored records of the queue.
fn records(effects: &[Effect]) -> Vec<&QueueRecord> {
    let records = effects.iter().filter_map(|effect| {
        if let Effect::Persist(change) = effect
            && let ChangeKind::Allocation(change) = &change.kind
            && let AllocationChange::QueueStored { record, .. } = change
        {
            return record.as_deref();
        }
        None
    });
    records.collect()
}

fn events(effects: &[Effect]) -> Vec<&AllocationEvent> {
    let events = effects.iter().filter_map(|effect| {
        if let Effect::Persist(change) = effect
            && let ChangeKind::Allocation(AllocationChange::Event(event)) = &change.kind
        {
            return Some(event);
        }
        None
    });
    events.collect()
}

fn answer(input: autoalloc::Input) -> Input {
    Input::Allocation(vec![input])
}

fn accepted(job: &str) -> Input {
    let outcome = SubmitOutcome::Accepted(job.into());
    answer(autoalloc::Input::Submitted(FIRST, outcome))
}

fn batch_worker(link: u64, job: &str) -> Input {
    let mut config = worker_config(1);
    config.allocation = Some(Allocation {
        manager: BatchSystem::Slurm,
        id: job.into(),
        cluster: None,
        time_limit: None,
    });
    Input::WorkerConnected(LinkId(link), config)
}

#[test]
fn a_queue_is_stored_once_a_round_and_before_its_allocation_is_submitted() {
    let mut state = with_queue();
    let job = array_submit(1, template(&["true"]));
    request(&mut state, Command::Submit(Box::new(job)));
    let effects = step(&mut state, 1, Input::Timer);
    let [record] = records(&effects)[..] else {
        panic!("{effects:?}");
    };
    assert_eq!(record.allocations[0].key, FIRST);
    for effect in &effects {
        if let Effect::Allocate(_) = effect {
            assert_eq!(effect.wait(), Wait::All, "the store has to know it");
            assert!(effect.is_awaited());
        }
    }
    assert_eq!(submissions(&effects), 1);
    let poll = autoalloc::Effect::Look(FIRST);
    assert_eq!(Effect::Allocate(poll).wait(), Wait::Nothing);
    // Both of a round's answers change the queue.
    let workers = answer(autoalloc::Input::Changed);
    let mut effects = Vec::new();
    state.apply(at(2), accepted("7"), &mut effects);
    state.apply(at(2), workers, &mut effects);
    state.apply(at(2), batch_worker(1, "7"), &mut effects);
    assert!(records(&effects).is_empty());
    state.settle(at(2), &mut effects);
    let [record] = records(&effects)[..] else {
        panic!("{effects:?}");
    };
    assert_eq!(record.allocations[0].state, AllocationState::Running);
    assert_eq!(events(&effects).len(), 2, "queued and started");
    assert!(records(&step(&mut state, 3, Input::Timer)).is_empty());
}

#[test]
fn changes_of_an_unknown_queue_are_refused() {
    let mut state = with_queue();
    let unknown = QueueId(9);
    for (command, expected) in [
        (
            QueueCommand::Pause(unknown),
            "Queue 9 that should have been paused was not found",
        ),
        (
            QueueCommand::Resume(unknown),
            "Queue 9 that should have been resumed was not found",
        ),
        (
            QueueCommand::Remove {
                queue: unknown,
                force: true,
            },
            "Allocation queue not found",
        ),
    ] {
        let Reply::Queue(Err(refusal)) = change(&mut state, command) else {
            panic!("there is no such queue");
        };
        assert_eq!(&*refusal.text, expected);
    }
    for command in [QueueCommand::Pause(QUEUE), QueueCommand::Resume(QUEUE)] {
        assert_eq!(change(&mut state, command), Reply::Queue(Ok(None)));
    }
    let remove = QueueCommand::Remove {
        queue: QUEUE,
        force: false,
    };
    let effects = request(&mut state, Command::Queue(remove));
    let changes = effects.iter().filter_map(|effect| match effect {
        Effect::Persist(change) => Some(&change.kind),
        Effect::Reply(..)
        | Effect::WatchUpdate(..)
        | Effect::Registered { .. }
        | Effect::ToWorker(..)
        | Effect::Notify(_)
        | Effect::Allocate(_)
        | Effect::DropWorker(_)
        | Effect::Free(_) => None,
    });
    use AllocationChange::{QueueRemoved, QueueStored};
    let changes: Vec<_> = changes.collect();
    assert!(
        matches!(
            changes[..],
            [
                ChangeKind::Allocation(QueueRemoved(QUEUE)),
                ChangeKind::Allocation(QueueStored { record: None, .. })
            ]
        ),
        "{changes:?}"
    );
}

/// Returns a job of `count` tasks that all have different priorities.
fn graph(count: u32) -> SubmitSpec {
    let templates = (0..count).map(|number| {
        let mut template = template(&["true"]);
        template.priority = i32::try_from(number).expect("few");
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

#[test]
fn automatic_allocation_hears_of_work_and_workers() {
    let mut state = with_queue();
    state.limit_portions(2);
    let mut secs = 1;
    // Each change is followed by a question after five seconds, instead of thirty.
    let mut hears = |state: &mut ServerState, input, of| {
        for _ in 0..2 {
            secs += 40;
            step(state, secs, Input::Timer);
        }
        let (now, due) = (at(secs).mono, |state: &ServerState| {
            state.queues().due().expect("the queue is active")
        });
        assert!(due(state) > now + Duration::from_secs(20), "before {of}");
        step(state, secs, input);
        while state.is_demand_partial() {
            step(state, secs, Input::Timer);
        }
        assert!(due(state) < now + Duration::from_secs(10), "{of}");
    };
    let command = |command| Input::Request(RequestId(1), command);
    let first = || Selector::Ids(IdArray::single(1));
    let spec = Box::new(graph(20));
    hears(&mut state, command(Command::Submit(spec)), "a job");
    let cancel = Command::CancelJobs {
        jobs: first(),
        reason: "".into(),
    };
    hears(&mut state, command(cancel), "what canceled tasks hid");
    let again = Command::Resubmit {
        jobs: first(),
        states: Vec::new(),
        requests: Vec::new(),
    };
    hears(&mut state, command(again), "a job submitted again");
    let worker = Input::WorkerConnected(LinkId(1), worker_config(1));
    hears(&mut state, worker, "a worker");
    let bye = WorkerMessage::Goodbye(LostReason::Stopped);
    let bye = Input::WorkerMessage(WorkerId(1), bye);
    hears(&mut state, bye, "the end of a worker");
}

#[test]
fn while_the_server_ends_only_answers_of_batch_systems_count() {
    let mut state = submitting();
    let ending = Input::Ending { keep_workers: true };
    step(&mut state, 2, ending);
    assert!(state.is_ending() && state.queues().is_submitting());
    let add = QueueCommand::Add(Arc::new(queue_params()));
    let refused = Reply::Queue(Err(crate::refusal::Refusal::shutting_down()));
    assert_eq!(change(&mut state, add), refused);
    let effects = step(&mut state, 2, accepted("7"));
    assert!(!state.queues().is_submitting());
    assert_eq!((records(&effects).len(), events(&effects).len()), (1, 1));
    let mut effects = step(&mut state, 3, batch_worker(1, "7"));
    let bye = WorkerMessage::Goodbye(LostReason::Stopped);
    effects.extend(step(&mut state, 4, Input::WorkerMessage(WorkerId(1), bye)));
    effects.extend(step(&mut state, 9_999, Input::Timer));
    assert!(records(&effects).is_empty());
    assert!(
        !effects
            .iter()
            .any(|effect| matches!(effect, Effect::Allocate(_)))
    );
    assert_eq!(state.queues().alive().count(), 1);
    let effects = step(&mut state, 9_999, answer(autoalloc::Input::Closed(FIRST)));
    assert_eq!(state.queues().alive().count(), 0);
    let record = records(&effects)[0];
    assert_eq!(record.allocations[0].state, AllocationState::Finished);
}

#[test]
fn nothing_more_is_submitted_once_the_server_ends() {
    for is_ending in [false, true] {
        let mut state = ServerState::new("test");
        let mut params = queue_params();
        params.backlog = 3;
        params.amounts.insert("cpus".into(), 10_000);
        let add = QueueCommand::Add(Arc::new(params));
        assert_eq!(change(&mut state, add), Reply::Queue(Ok(Some(QUEUE))));
        let job = array_submit(3, template(&["true"]));
        request(&mut state, Command::Submit(Box::new(job)));
        step(&mut state, 1, Input::Timer);
        if is_ending {
            let keep_workers = false;
            step(&mut state, 2, Input::Ending { keep_workers });
        }
        step(&mut state, 3, accepted("7"));
        assert_eq!(state.queues().is_submitting(), !is_ending);
    }
}

#[test]
fn batch_jobs_are_known_also_before_sbatch_has_answered() {
    let mut state = with_queue();
    assert!(!state.queues().may_own("105"), "nothing is submitted");
    state = submitting();
    assert!(state.queues().may_own("105"), "no answer yet");
    step(&mut state, 2, accepted("104"));
    assert!(state.queues().may_own("104"));
    assert!(!state.queues().may_own("105"));
    step(&mut state, 3, answer(autoalloc::Input::Closed(FIRST)));
    assert!(!state.queues().may_own("104"), "it has ended");
}
