//! Closing, cancelling and forgetting jobs; stopping workers.

use super::*;
use crate::task::TaskState;
use crate::testing::NOW;

fn first() -> Selector {
    Selector::Ids(IdArray::single(1))
}

fn jobs(effects: &[Effect]) -> Vec<JobResult> {
    let found = effects.iter().find_map(|effect| {
        let Effect::Reply(_, Reply::Jobs(results)) = effect else {
            return None;
        };
        Some(results.rows.clone())
    });
    found.expect("an answer")
}

fn cancel() -> Command {
    Command::CancelJobs {
        jobs: first(),
        reason: "enough".into(),
    }
}

#[test]
fn a_cancel_ends_every_task_wherever_it_is_and_says_how_many() {
    let mut state = with_worker(1, 9, template(&["true"]));
    say(&mut state, started(&[0]));
    let ended = vec![ended(0, 0, Outcome::Finished)];
    say(
        &mut state,
        Report {
            ended,
            ..Report::default()
        },
    );
    say(&mut state, started(&[1]));
    let effects = request(&mut state, cancel());
    let expected = JobResult::Ok {
        job: JobId(1),
        canceled: 8,
        already_finished: 1,
    };
    assert_eq!(jobs(&effects), [expected]);
    let is_stored =
        |kind: &ChangeKind| matches!(kind, ChangeKind::TasksDropped { ids, .. } if ids.len() == 8);
    assert!(is_urgently_stored(&effects, is_stored), "{effects:?}");
    let killed: usize = effects
        .iter()
        .filter_map(|effect| {
            let Effect::ToWorker(_, WorkerCommand::Kill(killed)) = effect else {
                return None;
            };
            Some(killed.len())
        })
        .sum();
    assert_eq!(killed, state.workers()[&WorkerId(1)].assigned().len());
    // A start that was under way is too late.
    say(&mut state, started(&[2]));
    assert_eq!(phase(&state, task(2)), Phase::Canceled);
    assert_eq!(
        state.jobs()[&JobId(1)].cancel_reason.as_deref(),
        Some("enough")
    );
    assert_eq!(
        jobs(&request(&mut state, cancel())),
        [JobResult::Already(JobId(1))]
    );
}

#[test]
fn only_completed_jobs_in_the_chosen_states_are_forgotten() {
    let mut state = with_worker(1, 1, template(&["true"]));
    let forget = |state: &mut ServerState, states: &[TaskState]| {
        let command = Command::ForgetJobs {
            jobs: Selector::All,
            states: states.to_vec(),
        };
        request(state, command);
        state.check_invariants();
        state.jobs().len()
    };
    assert_eq!(
        forget(&mut state, &[TaskState::Canceled]),
        1,
        "it is not over"
    );
    request(&mut state, cancel());
    assert_eq!(forget(&mut state, &[TaskState::Finished]), 1);
    assert_eq!(forget(&mut state, &[TaskState::Canceled]), 0);
}

#[test]
fn a_worker_is_told_to_stop_once() {
    let mut state = with_worker(1, 1, template(&["true"]));
    let stop = || Command::StopWorkers(Selector::All);
    let told = |effects: &[Effect]| {
        let is_stop = |e: &&Effect| matches!(e, Effect::ToWorker(_, WorkerCommand::Stop));
        effects.iter().filter(is_stop).count()
    };
    assert_eq!(told(&request(&mut state, stop())), 1);
    assert_eq!(told(&request(&mut state, stop())), 0);
    // Its connection ends: it was no crash, and it is not waited for.
    apply(&mut state, Input::WorkerGone(WorkerId(1), LinkEnd::Broken));
    assert!(state.workers().is_empty());
    assert_eq!(record(&state, task(0)).crash_count(), 0);
}

#[test]
fn a_worker_that_falls_silent_when_told_to_stop_is_no_crash_of_its_tasks() {
    let mut state = with_worker(1, 1, template(&["true"]));
    say(&mut state, started(&[0]));
    request(&mut state, Command::StopWorkers(Selector::All));
    let silence = state.workers()[&WorkerId(1)].config.heartbeat * 2;
    let late = Now {
        mono: NOW.mono + silence,
        ..NOW
    };
    let mut effects = Vec::new();
    state.apply(late, Input::Timer, &mut effects);
    state.check_invariants();
    let gone = state.ended_workers()[&WorkerId(1)].ended;
    assert_eq!(gone.map(|(_, reason)| reason), Some(LostReason::Stopped));
    assert_eq!(record(&state, task(0)).crash_count(), 0);
}
