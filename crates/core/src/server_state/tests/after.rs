//! Jobs that wait for others.

use super::*;
use crate::range::IdArray;
use crate::template::After;

fn follower(count: u32, is_each: bool, is_any: bool) -> Command {
    let mut submit = array_submit(count, template(&["true"]));
    submit.after = vec![After {
        job: JobId(1),
        is_each,
        is_any,
    }];
    Command::Submit(Box::new(submit))
}

/// A job of two tasks with one retry on a worker with room for all, and a job that waits for it.
fn pair(is_each: bool, is_any: bool) -> ServerState {
    let mut task = template(&["true"]);
    task.retry.limit = 1;
    task.retry.delay = Duration::ZERO;
    task.retry.on = vec![crate::retry::RetryCause::ExitCodes(1, u8::MAX)];
    let mut state = with_worker(4, 2, task);
    request(&mut state, follower(2, is_each, is_any));
    say(&mut state, started(&[0, 1]));
    state
}

fn end(state: &mut ServerState, id: u32, instance: u32, outcome: Outcome) {
    let ended = vec![ended(id, instance, outcome)];
    say(
        state,
        Report {
            ended,
            ..Report::default()
        },
    );
}

const fn second(id: u32) -> TaskKey {
    TaskKey::new(JobId(2), TaskId(id))
}

#[test]
fn a_task_goes_out_when_its_counterpart_has_finished_for_good() {
    let mut state = pair(true, false);
    end(&mut state, 0, 0, Outcome::ExitCode(3));
    assert_eq!(
        phase(&state, second(0)),
        Phase::Waiting,
        "it has another attempt"
    );
    end(&mut state, 0, 1, Outcome::Finished);
    assert_eq!(phase(&state, second(0)), Phase::Placed);
    assert_eq!(phase(&state, second(1)), Phase::Waiting);
    end(&mut state, 1, 0, Outcome::ExitCode(3));
    end(&mut state, 1, 1, Outcome::ExitCode(3));
    assert_eq!(phase(&state, task(1)), Phase::Failed);
    assert_eq!(
        phase(&state, second(1)),
        Phase::Aborted,
        "what it waits for failed"
    );
}

#[test]
fn a_job_waits_for_the_whole_of_another() {
    let mut state = pair(false, false);
    end(&mut state, 0, 0, Outcome::Finished);
    assert_eq!(phase(&state, second(0)), Phase::Waiting);
    end(&mut state, 1, 0, Outcome::Finished);
    assert_eq!(phase(&state, second(0)), Phase::Placed);
    assert_eq!(phase(&state, second(1)), Phase::Placed);
}

#[test]
fn whatever_became_of_it_is_enough_if_that_was_asked_for() {
    let mut state = pair(false, true);
    let jobs = Selector::Ids(IdArray::single(1));
    let reason = "why not".into();
    request(&mut state, Command::CancelJobs { jobs, reason });
    assert_eq!(phase(&state, second(0)), Phase::Placed);
}

#[test]
fn neither_can_wait_for_the_other() {
    let mut state = ServerState::new("test");
    let open = |state: &mut ServerState| {
        let (name, max_fails) = ("x".into(), None);
        request(
            state,
            Command::OpenJob {
                name,
                max_fails,
                key: None,
            },
        );
    };
    open(&mut state);
    request(&mut state, follower(1, false, false));
    let mut submit = array_submit(1, template(&["true"]));
    submit.target = crate::template::SubmitTarget::Attach(JobId(1));
    submit.after = vec![After {
        job: JobId(2),
        is_each: false,
        is_any: false,
    }];
    let effects = request(&mut state, Command::Submit(Box::new(submit)));
    let refused = effects.iter().any(|effect| {
        matches!(
            effect,
            Effect::Reply(_, Reply::Refused(SubmitRefusal::AfterCycle(JobId(2))))
        )
    });
    assert!(refused, "{effects:?}");
    state.check_invariants();
}
