//! A state from records.

use std::sync::Arc;
use std::time::Duration;

use super::*;
use crate::outcome::{LostReason, Outcome, Usage};
use crate::range::IdArray;
use crate::resource::request::{RequestVariants, ResourceRequest};
use crate::task::{TaskEnd, TaskState};
use crate::testing::NOW;
use crate::time::Timestamp;

/// A job of `count` tasks and two workers that are expected back.
fn stored(count: u32, template: TaskTemplate) -> ServerState {
    let mut state = ServerState::new("test");
    state.restore_counters(JobId(1), WorkerId(2));
    state.restore_job(JobRecord {
        id: JobId(1),
        name: "x".into(),
        max_fails: None,
        is_open: false,
        cancel_reason: None,
        submitted: Timestamp(1),
        is_completed: false,
    });
    let ids = IdArray::consecutive(0, count).expect("fits");
    let submit = Arc::new(array_submit(count, template));
    state.restore_submit(JobId(1), ids, &submit).expect("valid");
    for id in [1, 2] {
        let mut config = worker_config(1);
        config.on_server_lost = OnServerLost::Reconnect;
        let stored = StoredWorker {
            id: WorkerId(id),
            config,
            started: Timestamp(1),
        };
        assert!(state.restore_connected_worker(NOW, stored));
    }
    state
}

fn ran(id: u32, worker: u32, nodes: Option<StoredNodes>) -> StoredTask {
    StoredTask {
        task: TaskId(id),
        state: TaskState::Running,
        instance: InstanceId(2),
        worker: WorkerId(worker),
        variant: 0,
        crash_count: 1,
        retry_count: 1,
        started: Some(Timestamp(5)),
        end: None,
        run_until_dropped: None,
        nodes,
    }
}

#[test]
fn what_ran_goes_on_where_it_was_and_elsewhere_waits_with_the_next_number() {
    let mut state = stored(3, template(&["true"]));
    state
        .restore_task(JobId(1), &ran(0, 1, None))
        .expect("known");
    state
        .restore_task(JobId(1), &ran(1, 7, None))
        .expect("known");
    state.finish_restore(NOW);
    state.check_invariants();
    let (here, gone) = (record(&state, task(0)), record(&state, task(1)));
    assert_eq!(
        (here.phase(), here.instance()),
        (Phase::Running, InstanceId(2))
    );
    assert_eq!(
        (gone.phase(), gone.instance()),
        (Phase::Waiting, InstanceId(3))
    );
    assert_eq!((gone.crash_count(), gone.retry_count()), (1, 1));
    assert_eq!(state.awaited_workers(), 2);
    assert!(matches!(
        state.restore_task(JobId(1), &ran(9, 1, None)),
        Err(RestoreError::NoTask(..))
    ));
}

#[test]
fn tasks_that_finished_are_restored_together_as_one_by_one() {
    let end = |task: u32| TaskEnd {
        outcome: Outcome::Finished,
        at: Timestamp(50_000 + i64::from(task % 7)),
        run: Duration::from_micros(u64::from(task)),
        usage: Usage::default(),
    };
    let stored_end = |task: u32| StoredTask {
        task: TaskId(task),
        state: TaskState::Finished,
        instance: InstanceId(3),
        worker: WorkerId(1 + task % 2),
        crash_count: 0,
        retry_count: 0,
        started: Some(end(task).at.minus(end(task).run)),
        end: Some(end(task)),
        ..ran(task, 1, None)
    };
    let (mut single, mut together) = (
        stored(600, template(&["true"])),
        stored(600, template(&["true"])),
    );
    for task in 10..595 {
        let restored = single.restore_task(JobId(1), &stored_end(task));
        restored.expect("known");
    }
    let ends = (10..595).map(|task| (WorkerId(1 + task % 2), end(task)));
    let restored =
        together.restore_finished(TaskKey::new(JobId(1), TaskId(10)), InstanceId(3), ends);
    restored.expect("known");
    for state in [&mut single, &mut together] {
        state.finish_restore(NOW);
        state.check_invariants();
    }
    assert_eq!(
        format!("{:?}", together.jobs()),
        format!("{:?}", single.jobs())
    );
    let beyond = (0..2).map(|task| (WorkerId(1), end(task)));
    assert_eq!(
        together.restore_finished(TaskKey::new(JobId(1), TaskId(599)), InstanceId(0), beyond),
        Err(RestoreError::NoTask(JobId(1), TaskId(600)))
    );
}

#[test]
fn nothing_of_before_goes_out_until_each_worker_is_back_or_given_up() {
    let mut state = stored(2, template(&["true"]));
    state.finish_restore(NOW);
    connect(&mut state, 3, 4);
    assert_eq!(
        phase(&state, task(0)),
        Phase::Waiting,
        "it may run elsewhere"
    );
    for id in [1, 2] {
        let goodbye = WorkerMessage::Goodbye(LostReason::Stopped);
        apply(&mut state, Input::WorkerMessage(WorkerId(id), goodbye));
    }
    state.check_invariants();
    assert_eq!(state.awaited_workers(), 0);
    assert_eq!(phase(&state, task(0)), Phase::Placed);
}

/// A multi-node task with nodes as instance 2, started or not.
fn gang(has_started: bool, workers: &[u32]) -> ServerState {
    let mut made = template(&["true"]);
    made.requests = RequestVariants::new(vec![ResourceRequest {
        entries: Vec::new(),
        n_nodes: 2,
        ..ResourceRequest::cpus(1)
    }])
    .expect("valid");
    let mut state = stored(1, made);
    let nodes = StoredNodes {
        instance: InstanceId(2),
        variant: 0,
        workers: workers.iter().copied().map(WorkerId).collect(),
    };
    let stored = if has_started {
        ran(0, workers[0], Some(nodes))
    } else {
        StoredTask::with_nodes(TaskId(0), nodes)
    };
    state.restore_task(JobId(1), &stored).expect("known");
    state.finish_restore(NOW);
    state.check_invariants();
    state
}

#[test]
fn nodes_of_a_multi_node_task_stay_with_it() {
    for (has_started, expected) in [(true, Phase::Running), (false, Phase::Placed)] {
        let state = gang(has_started, &[1, 2]);
        let record = record(&state, task(0));
        assert_eq!(
            (record.phase(), record.instance()),
            (expected, InstanceId(2))
        );
        for id in [1, 2] {
            let node = state.workers()[&WorkerId(id)].node().expect("it is a node");
            assert_eq!(node.is_root, id == 1);
        }
    }
}

#[test]
fn a_multi_node_task_whose_root_is_gone_waits_with_a_number_that_nobody_has() {
    for has_started in [true, false] {
        let state = gang(has_started, &[7, 2]);
        let record = record(&state, task(0));
        assert_eq!(
            (record.phase(), record.instance()),
            (Phase::Waiting, InstanceId(3)),
            "whether it had started or only been handed out ({has_started})"
        );
        assert!(state.workers()[&WorkerId(2)].node().is_none());
    }
}

#[test]
fn while_workers_are_awaited_a_job_that_did_not_finish_is_not_forgotten() {
    let mut state = stored(1, template(&["true"]));
    state.restore_counters(JobId(2), WorkerId(2));
    state.restore_job(JobRecord {
        id: JobId(2),
        name: "second".into(),
        max_fails: None,
        is_open: false,
        cancel_reason: None,
        submitted: Timestamp(1),
        is_completed: false,
    });
    let mut spec = array_submit(1, template(&["true"]));
    spec.after = vec![crate::template::After {
        job: JobId(1),
        is_each: false,
        is_any: false,
    }];
    let ids = IdArray::consecutive(0, 1).expect("one id");
    let restored = state.restore_submit(JobId(2), ids, &Arc::new(spec));
    restored.expect("it was accepted before");
    state
        .restore_task(JobId(1), &ran(0, 1, None))
        .expect("known");
    state.finish_restore(NOW);
    assert!(state.awaited_workers() > 0);
    let jobs = || Selector::Ids(IdArray::single(1));
    let reason = "".into();
    request(
        &mut state,
        Command::CancelJobs {
            jobs: jobs(),
            reason,
        },
    );
    let states = vec![TaskState::Canceled];
    request(
        &mut state,
        Command::ForgetJobs {
            jobs: jobs(),
            states: states.clone(),
        },
    );
    for id in [1, 2] {
        let goodbye = WorkerMessage::Goodbye(LostReason::Stopped);
        apply(&mut state, Input::WorkerMessage(WorkerId(id), goodbye));
    }
    connect(&mut state, 3, 4);
    let waiting = TaskKey::new(JobId(2), TaskId(0));
    assert_eq!(
        phase(&state, waiting),
        Phase::Aborted,
        "its job was canceled"
    );
    request(
        &mut state,
        Command::ForgetJobs {
            jobs: jobs(),
            states,
        },
    );
    assert!(!state.jobs().contains_key(&JobId(1)), "now it can be");
}

#[test]
fn several_submits_are_submitted_again_all_or_none() {
    let mut state = ServerState::new("test");
    state.restore_job(JobRecord {
        id: JobId(1),
        name: "x".into(),
        max_fails: None,
        is_open: true,
        cancel_reason: None,
        submitted: Timestamp(1),
        is_completed: false,
    });
    let mut large = template(&["true"]);
    // An earlier release took it.
    large.cwd = vec![b'/'; 5_000].into();
    for (first, task) in [(0, template(&["true"])), (5, large)] {
        let ids = IdArray::consecutive(first, 5).expect("fits");
        let submit = Arc::new(array_submit(5, task));
        state.restore_submit(JobId(1), ids, &submit).expect("valid");
    }
    let again = Command::Resubmit {
        jobs: Selector::Last,
        states: Vec::new(),
        requests: Vec::new(),
    };
    let effects = request(&mut state, again);
    let refused = |effect: &Effect| {
        let Effect::Reply(_, Reply::Resubmitted(found)) = effect else {
            return false;
        };
        matches!(
            found.rows[..],
            [Resubmitted::Refused(JobId(1), SubmitRefusal::TooLarge(_))]
        )
    };
    assert!(effects.iter().any(refused), "{}", effects.len());
    let is_change = |effect: &Effect| matches!(effect, Effect::Persist(_));
    assert!(!effects.iter().any(is_change), "nothing is stored");
    assert_eq!(state.jobs().len(), 1);
    assert_eq!(state.last_job(), Some(JobId(1)));
}
