//! Workers that are lost, and workers that come back.

use super::*;
use crate::outcome::LostReason;
use std::collections::BTreeMap;

fn back(launching: &[(u32, u32)], report: Report, number: u64) -> Input {
    let mut config = worker_config(4);
    config.on_server_lost = OnServerLost::Reconnect;
    let launching = launching.iter();
    let reattach = Reattach {
        worker: WorkerId(1),
        server_uid: "test".into(),
        launching: launching
            .map(|(id, instance)| (task(*id), InstanceId(*instance)))
            .collect(),
        report,
        variants: BTreeMap::new(),
        number,
    };
    Input::WorkerReattached(LinkId(9), config, Box::new(reattach))
}

fn lose(state: &mut ServerState, reason: LostReason) -> Vec<Effect> {
    let goodbye = WorkerMessage::Goodbye(reason);
    let effects = apply(state, Input::WorkerMessage(WorkerId(1), goodbye));
    state.check_invariants();
    effects
}

#[test]
fn a_lost_worker_supersedes_all_that_it_was_sent() {
    let mut state = with_worker(1, 2, template(&["true"]));
    say(&mut state, started(&[0]));
    assert_eq!(phase(&state, task(1)), Phase::Queued, "sent ahead");
    let effects = lose(&mut state, LostReason::HeartbeatLost);
    for id in [0, 1] {
        let is_it = |kind: &ChangeKind| {
            matches!(kind, ChangeKind::TaskRequeued { task: key, instance, .. }
            if *key == task(id) && *instance == InstanceId(1))
        };
        assert!(
            is_urgently_stored(&effects, is_it),
            "task {id}: {effects:?}"
        );
        assert_eq!(record(&state, task(id)).instance(), InstanceId(1));
    }
    assert_eq!(record(&state, task(0)).crash_count(), 1);
    assert_eq!(
        record(&state, task(1)).crash_count(),
        0,
        "it was not seen to run"
    );
}

#[test]
fn what_a_worker_gave_back_before_it_went_keeps_its_number() {
    let mut state = with_worker(1, 2, template(&["true"]));
    let retracted = vec![(task(0), InstanceId(0)), (task(1), InstanceId(0))];
    let report = Report {
        retracted,
        ..Report::default()
    };
    // Nothing may be sent to it in between.
    let mut effects = Vec::new();
    let message = WorkerMessage::Report(report);
    let now = crate::testing::NOW;
    state.apply(
        now,
        Input::WorkerMessage(WorkerId(1), message),
        &mut effects,
    );
    lose(&mut state, LostReason::Stopped);
    for id in [0, 1] {
        assert_eq!(record(&state, task(id)).instance(), InstanceId(0));
        assert_eq!(phase(&state, task(id)), Phase::Waiting);
    }
}

#[test]
fn a_running_task_that_left_no_trace_gets_the_next_instance() {
    let mut state = with_worker(1, 2, template(&["true"]));
    say(&mut state, started(&[0]));
    let effects = apply(&mut state, back(&[], Report::default(), 1));
    state.check_invariants();
    let is_it = |kind: &ChangeKind| {
        matches!(kind, ChangeKind::TaskRequeued { task: key, instance, crash_count: 0, .. }
        if *key == task(0) && *instance == InstanceId(1))
    };
    assert!(is_urgently_stored(&effects, is_it), "{effects:?}");
    assert_eq!(record(&state, task(0)).instance(), InstanceId(1));
    assert_eq!(
        record(&state, task(1)).instance(),
        InstanceId(0),
        "it was given up unstarted"
    );
}

#[test]
fn ends_killed_and_missing_are_settled_in_one_report() {
    let mut state = with_worker(4, 4, template(&["true"]));
    say(&mut state, started(&[0, 1, 2]));
    let report = Report {
        seq: 7,
        sent: None,
        ended: vec![
            ended(0, 0, Outcome::Finished),
            ended(2, 5, Outcome::Finished),
        ],
        started: started(&[1]).started,
        ..Report::default()
    };
    // It also starts a task that it should not have.
    let effects = apply(&mut state, back(&[(3, 4)], report, 1));
    state.check_invariants();
    assert_eq!(phase(&state, task(0)), Phase::Finished);
    assert_eq!(phase(&state, task(1)), Phase::Running, "it goes on");
    assert_eq!(
        record(&state, task(2)).instance(),
        InstanceId(1),
        "it is missing"
    );
    let killed = effects.iter().find_map(|effect| {
        let Effect::ToWorker(_, WorkerCommand::Kill(killed)) = effect else {
            return None;
        };
        Some(killed.clone())
    });
    assert_eq!(killed, Some(vec![(task(3), InstanceId(4))]));
    let is_acknowledged =
        |effect: &Effect| matches!(effect, Effect::ToWorker(_, WorkerCommand::Acknowledge(7)));
    assert!(effects.iter().any(is_acknowledged));
}

#[test]
fn a_registration_that_comes_late_changes_nothing() {
    let mut state = with_worker(1, 2, template(&["true"]));
    apply(&mut state, back(&[(0, 0)], Report::default(), 2));
    say(&mut state, started(&[0]));
    let late = back(&[], Report::default(), 1);
    let Input::WorkerReattached(_, _, reattach) = &late else {
        unreachable!("it is one");
    };
    assert!(state.is_late(reattach));
    assert!(apply(&mut state, late).is_empty());
    assert_eq!(state.ignored().late_registrations, 1);
    assert_eq!(phase(&state, task(0)), Phase::Running);
    assert_eq!(record(&state, task(0)).instance(), InstanceId(0));
    // A worker whose state is void counts as a new one.
    assert!(!apply(&mut state, back(&[(0, 0)], Report::default(), 0)).is_empty());
}
