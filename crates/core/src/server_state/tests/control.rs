//! Closing, cancelling and forgetting jobs; stopping workers.

use super::*;
use crate::range::IdArray;
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
        killed: 0,
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
    // A start that was in transit is too late.
    say(&mut state, started(&[2]));
    assert_eq!(phase(&state, task(2)), Phase::Canceled);
    assert_eq!(
        state.jobs()[&JobId(1)].cancel_reason.as_deref(),
        Some("enough")
    );
    assert_eq!(
        jobs(&request(&mut state, cancel())),
        [JobResult::Ok {
            job: JobId(1),
            canceled: 0,
            already_finished: 9,
            killed: 2,
        }]
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
    // Its connection ends: no crash, and it is not expected back.
    apply(&mut state, Input::WorkerGone(WorkerId(1), LinkEnd::Broken));
    assert!(state.workers().is_empty());
    assert_eq!(record(&state, task(0)).crash_count(), 0);
}

#[test]
fn a_worker_that_falls_silent_when_told_to_stop_is_no_crash_of_its_tasks() {
    let mut state = with_worker(1, 1, template(&["true"]));
    say(&mut state, started(&[0]));
    request(&mut state, Command::StopWorkers(Selector::All));
    let silence = state.workers()[&WorkerId(1)].config.silence_max();
    for moment in [silence, silence + Duration::from_secs(2)] {
        let late = Now {
            mono: NOW.mono + moment,
            ..NOW
        };
        let mut effects = Vec::new();
        state.apply(late, Input::Timer, &mut effects);
        state.check_invariants();
    }
    let gone = state.ended_workers()[&WorkerId(1)].ended();
    assert_eq!(gone.map(|(_, reason)| reason), Some(LostReason::Stopped));
    assert_eq!(record(&state, task(0)).crash_count(), 0);
}

#[test]
fn commands_about_very_many_jobs_are_carried_out_in_portions() {
    let mut state = ServerState::new("test");
    state.limit_portions(10);
    for _ in 0..35 {
        let submit = array_submit(2, template(&["true"]));
        request(&mut state, Command::Submit(Box::new(submit)));
    }
    let jobs_told = |effects: &[Effect]| {
        effects.iter().find_map(|effect| {
            let Effect::Reply(RequestId(9), Reply::Jobs(found)) = effect else {
                return None;
            };
            Some(found.rows.clone())
        })
    };
    let cancel = |jobs| Command::CancelJobs {
        jobs,
        reason: "enough".into(),
    };
    let mut effects = Vec::new();
    let all = Input::Request(RequestId(9), cancel(Selector::All));
    state.apply(NOW, all, &mut effects);
    assert_eq!(jobs_told(&effects), None);
    let is_canceled = |state: &ServerState, id| state.jobs()[&JobId(id)].is_completed();
    assert!(is_canceled(&state, 10) && !is_canceled(&state, 11));
    assert_eq!(state.unanswered(), 1);
    // Another client is not delayed, and takes one of them away.
    let one = cancel(Selector::Ids(IdArray::single(30)));
    let mut other = Vec::new();
    let one = Input::Request(RequestId(1), one);
    state.apply(NOW, one, &mut other);
    let is_answer = |effect: &Effect| matches!(effect, Effect::Reply(RequestId(1), _));
    assert!(other.iter().any(is_answer));
    let mut portions = 1;
    let rows = loop {
        let mut effects = Vec::new();
        state.settle(NOW, &mut effects);
        state.check_invariants();
        portions += 1;
        if let Some(rows) = jobs_told(&effects) {
            break rows;
        }
        let due = state.next_deadline();
        assert!(due <= Some(NOW.mono), "it goes on");
    };
    assert_eq!(portions, 4);
    let ids = (1..36).filter(|id| *id != 30).map(|id| JobResult::Ok {
        job: JobId(id),
        canceled: 2,
        already_finished: 0,
        killed: 0,
    });
    assert_eq!(rows, ids.collect::<Vec<_>>(), "what it canceled itself");
    let states = vec![TaskState::Canceled];
    let jobs = Selector::All;
    let effects = request(&mut state, Command::ForgetJobs { jobs, states });
    let (forgotten, ignored) = (35, 0);
    let reply = Reply::Forgotten { forgotten, ignored };
    let is_told = |effect: &Effect| matches!(effect, Effect::Reply(_, told) if *told == reply);
    assert!(effects.iter().any(is_told));
    assert!(state.jobs().is_empty());
}

#[test]
fn a_server_that_ends_answers_commands_about_very_many_jobs() {
    let mut state = ServerState::new("test");
    state.limit_portions(2);
    for _ in 0..5 {
        let submit = array_submit(2, template(&["true"]));
        request(&mut state, Command::Submit(Box::new(submit)));
    }
    let cancel = Command::CancelJobs {
        jobs: Selector::All,
        reason: Box::default(),
    };
    let mut effects = Vec::new();
    state.apply(NOW, Input::Request(RequestId(1), cancel), &mut effects);
    assert_eq!(state.unanswered(), 1);
    let keep_workers = true;
    state.apply(NOW, Input::Ending { keep_workers }, &mut effects);
    assert_eq!(state.unanswered(), 0);
    assert!(state.jobs().values().all(Job::is_completed));
    let is_answer = |effect: &Effect| matches!(effect, Effect::Reply(RequestId(1), _));
    assert!(effects.iter().any(is_answer));
}

/// Submits a task; with `after` it waits for another job.
fn submit_after(state: &mut ServerState, after: Option<u32>) {
    let mut spec = array_submit(1, template(&["true"]));
    let conditions = after.map(|job| crate::template::After {
        job: JobId(job),
        is_each: false,
        is_any: false,
    });
    spec.after = conditions.into_iter().collect();
    request(state, Command::Submit(Box::new(spec)));
}

fn forget(jobs: Selector) -> Command {
    let states = vec![TaskState::Canceled, TaskState::Failed];
    Command::ForgetJobs { jobs, states }
}

#[test]
fn what_waits_for_a_canceled_job_never_runs_however_the_cancel_is_divided() {
    let mut state = ServerState::new("test");
    state.limit_portions(1);
    submit_after(&mut state, None);
    submit_after(&mut state, None);
    submit_after(&mut state, Some(2));
    let jobs = Selector::Ids(IdArray::consecutive(1, 2).expect("two ids"));
    let reason = "".into();
    request(&mut state, Command::CancelJobs { jobs, reason });
    while state.unanswered() > 0 {
        state.settle(NOW, &mut Vec::new());
    }
    let last = TaskKey::new(JobId(3), TaskId(0));
    assert_eq!(
        phase(&state, last),
        Phase::Aborted,
        "at once, not with the next event"
    );
    request(&mut state, forget(Selector::Ids(IdArray::single(2))));
    connect(&mut state, 1, 4);
    assert_eq!(phase(&state, last), Phase::Aborted);
}

#[test]
fn a_job_that_fails_and_is_forgotten_in_one_batch_frees_nobody() {
    let mut state = ServerState::new("test");
    connect(&mut state, 1, 4);
    submit_after(&mut state, None);
    submit_after(&mut state, Some(1));
    let report = Report {
        ended: vec![ended(0, 0, Outcome::ExitCode(1))],
        ..Report::default()
    };
    let report = Input::WorkerMessage(WorkerId(1), WorkerMessage::Report(report));
    let mut effects = Vec::new();
    state.apply(NOW, report, &mut effects);
    let forget = Input::Request(RequestId(5), forget(Selector::All));
    state.apply(NOW, forget, &mut effects);
    state.settle(NOW, &mut effects);
    let second = TaskKey::new(JobId(2), TaskId(0));
    assert_eq!(phase(&state, second), Phase::Aborted);
    assert!(
        !state.jobs().contains_key(&JobId(1)),
        "it is forgotten all the same"
    );
}

#[test]
fn a_job_that_is_forgotten_while_others_are_canceled_is_not_found() {
    let mut state = ServerState::new("test");
    for count in [1, 1, 0] {
        let submit = array_submit(count, template(&["true"]));
        request(&mut state, Command::Submit(Box::new(submit)));
    }
    state.limit_portions(1);
    let mut effects = Vec::new();
    let ids = |first, count| Selector::Ids(IdArray::consecutive(first, count).expect("few"));
    let cancel = Command::CancelJobs {
        jobs: ids(1, 4),
        reason: "".into(),
    };
    state.apply(NOW, Input::Request(RequestId(1), cancel), &mut effects);
    let forget = Command::ForgetJobs {
        jobs: ids(3, 1),
        states: vec![TaskState::Finished],
    };
    state.apply(NOW, Input::Request(RequestId(2), forget), &mut effects);
    assert!(!state.jobs().contains_key(&JobId(3)), "it had no turn");
    while state.unanswered() > 0 {
        state.settle(NOW, &mut effects);
    }
    let found = effects.iter().find_map(|effect| {
        let Effect::Reply(_, Reply::Jobs(found)) = effect else {
            return None;
        };
        Some((found.rows.len(), found.not_found.to_string()))
    });
    assert_eq!(found, Some((2, "4,3".to_owned())), "each of them is told");
}
