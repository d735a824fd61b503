//! A shutdown on request.

use super::*;
use crate::outcome::LostReason;
use crate::range::IdArray;

fn commands(effects: &[Effect]) -> Vec<&WorkerCommand> {
    let commands = effects.iter().filter_map(|effect| {
        let Effect::ToWorker(_, command) = effect else {
            return None;
        };
        Some(command)
    });
    commands.collect()
}

#[test]
fn workers_are_told_and_what_they_ran_waits_again() {
    let mut state = with_worker(1, 2, template(&["true"]));
    say(&mut state, started(&[0]));
    let effects = apply(
        &mut state,
        Input::Ending {
            keep_workers: false,
        },
    );
    assert!(matches!(
        commands(&effects)[..],
        [WorkerCommand::ServerEnds]
    ));
    assert_eq!(state.leaving(), 1);
    connect(&mut state, 2, 1);
    assert_eq!(state.leaving(), 2, "who comes late hears it, too");
    assert!(state.workers()[&WorkerId(2)].assigned().is_empty());
    let retracted = vec![(task(1), InstanceId(0))];
    say(
        &mut state,
        Report {
            retracted,
            ..Report::default()
        },
    );
    let goodbye = WorkerMessage::Goodbye(LostReason::Stopped);
    apply(&mut state, Input::WorkerMessage(WorkerId(1), goodbye));
    state.check_invariants();
    assert_eq!(phase(&state, task(0)), Phase::Waiting);
    assert_eq!(record(&state, task(0)).crash_count(), 0);
    assert_eq!(record(&state, task(0)).instance(), InstanceId(1));
    assert_eq!(
        record(&state, task(1)).instance(),
        InstanceId(0),
        "it never ran"
    );
    let effects = apply(&mut state, Input::Ended);
    let is_it = |kind: &ChangeKind| {
        matches!(
            kind,
            ChangeKind::WorkerLost {
                worker: WorkerId(2),
                reason: LostReason::Stopped
            }
        )
    };
    assert!(is_urgently_stored(&effects, is_it), "{effects:?}");
    assert_eq!(state.leaving(), 0);
}

#[test]
fn kept_workers_hear_nothing_and_those_that_were_stopped_are_given_up() {
    let mut state = with_worker(1, 2, template(&["true"]));
    connect(&mut state, 2, 1);
    let second = Selector::Ids(IdArray::single(2));
    request(&mut state, Command::StopWorkers(second));
    let effects = apply(&mut state, Input::Ending { keep_workers: true });
    assert!(commands(&effects).is_empty(), "{effects:?}");
    assert_eq!(state.leaving(), 1);
    apply(&mut state, Input::Ended);
    state.check_invariants();
    let gone = state.ended_workers()[&WorkerId(2)].ended();
    assert_eq!(gone.map(|(_, reason)| reason), Some(LostReason::Stopped));
    assert!(
        state.workers().contains_key(&WorkerId(1)),
        "it is waited for"
    );
}

#[test]
fn of_a_worker_that_lets_tasks_end_counts_what_it_says_before_it_goes() {
    let mut state = ServerState::new("test");
    let mut config = worker_config(2);
    config.on_server_lost = OnServerLost::FinishRunning;
    apply(&mut state, Input::WorkerConnected(LinkId(1), config));
    let submit = array_submit(2, template(&["true"]));
    request(&mut state, Command::Submit(Box::new(submit)));
    say(&mut state, started(&[0, 1]));
    let effects = apply(
        &mut state,
        Input::Ending {
            keep_workers: false,
        },
    );
    assert!(matches!(
        commands(&effects)[..],
        [WorkerCommand::ServerEnds]
    ));
    assert_eq!(state.leaving(), 1);
    let ended = vec![ended(0, 0, Outcome::Finished)];
    say(
        &mut state,
        Report {
            ended,
            ..Report::default()
        },
    );
    assert_eq!(
        phase(&state, task(0)),
        Phase::Finished,
        "it was said in time"
    );
    let goodbye = WorkerMessage::Goodbye(LostReason::Stopped);
    let effects = apply(&mut state, Input::WorkerMessage(WorkerId(1), goodbye));
    let is_dropped = |effect: &Effect| matches!(effect, Effect::DropWorker(_));
    assert!(effects.iter().any(is_dropped), "{effects:?}");
    assert_eq!(state.leaving(), 0);
    assert_eq!(phase(&state, task(1)), Phase::Waiting);
    assert_eq!(record(&state, task(1)).instance(), InstanceId(1));
}
