//! Cancellations, and aborts after too many failures.

use super::bench::*;
use crate::id::InstanceId;
use crate::id::JobId;
use crate::job::JobState;
use crate::outcome::Outcome;
use crate::range::IdArray;
use crate::selector::Selector;
use crate::server_state::{Command, Effect, JobResult, Reply, WorkerCommand};
use crate::task::Phase;

#[test]
fn a_task_that_waits_is_canceled_without_a_word_to_any_worker() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(wide(3, 2));
    let effects = bench.cancel(job);
    assert_eq!(bench.counts(job).canceled, 3);
    assert!(told(&effects, worker).is_empty(), "{effects:?}");
    assert_eq!(bench.state.ready_len(), 0);
}

#[test]
fn what_a_worker_has_is_killed_whether_it_runs_or_not() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(tasks(2));
    bench.start(worker, key(job, 0));
    assert_eq!(bench.phase(key(job, 1)), Phase::Queued);
    let effects = bench.cancel(job);
    let tasks: Vec<u32> = killed(&effects, worker)
        .iter()
        .map(|(task, _)| task.task.0)
        .collect();
    assert_eq!(tasks, [0, 1]);
    assert_eq!(bench.job_state(job), JobState::Canceled);
}

#[test]
fn an_end_that_crosses_a_cancel_changes_nothing() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(tasks(1));
    bench.start(worker, key(job, 0));
    bench.cancel(job);
    bench.finish(worker, key(job, 0));
    assert_eq!(bench.phase(key(job, 0)), Phase::Canceled);
}

#[test]
fn what_a_canceled_task_has_is_free_when_its_worker_says_so() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(tasks(1));
    bench.start(worker, key(job, 0));
    bench.cancel(job);
    let busy = bench.state.workers()[&worker].free()[0];
    assert_eq!(busy, 0, "its process has not ended");
    bench.end(worker, key(job, 0), Outcome::Killed);
    assert!(bench.state.workers()[&worker].free()[0] > 0);
}

#[test]
fn a_cancel_says_what_it_canceled_and_what_was_over() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(tasks(3));
    bench.finish(worker, key(job, 0));
    let row = job_row(&bench.cancel(job));
    let (canceled, already_finished) = (2, 1);
    assert_eq!(
        row,
        JobResult::Ok {
            job,
            canceled,
            already_finished,
            killed: 0
        }
    );
    assert_eq!(job_row(&bench.cancel(job)), JobResult::Already(job));
}

#[test]
fn a_second_cancel_kills_what_workers_have_left() {
    let (mut bench, worker) = Bench::with_worker(2);
    let job = bench.submit(tasks(3));
    bench.start(worker, key(job, 0));
    bench.start(worker, key(job, 1));
    bench.cancel(job);
    bench.end(worker, key(job, 0), Outcome::Killed);
    let effects = bench.cancel(job);
    let JobResult::Ok {
        canceled: 0,
        killed: 1,
        ..
    } = job_row(&effects)
    else {
        panic!("{:?}", job_row(&effects));
    };
    let is_kill = |command: &WorkerCommand| matches!(command, WorkerCommand::KillNow(tasks) if tasks[..] == [(key(job, 1), InstanceId(0))]);
    assert!(
        told(&effects, worker)
            .iter()
            .any(|command| is_kill(command))
    );
    bench.end(worker, key(job, 1), Outcome::Killed);
    assert_eq!(job_row(&bench.cancel(job)), JobResult::Already(job));
}

#[test]
fn the_first_cancel_of_a_job_with_too_many_failures_kills_nothing() {
    let (mut bench, worker) = Bench::with_worker(2);
    let job = bench.submit(max_fails(0, tasks(2)));
    bench.start(worker, key(job, 0));
    bench.start(worker, key(job, 1));
    bench.fail(worker, key(job, 0));
    let effects = bench.cancel(job);
    assert_eq!(job_row(&effects), JobResult::Already(job));
    assert!(told(&effects, worker).is_empty());
}

#[test]
fn the_reason_of_a_cancel_is_kept_and_an_empty_one_replaces_none() {
    let mut bench = Bench::new();
    let job = bench.open(None);
    bench.submit(into(job, tasks(1)));
    bench.cancel(job);
    bench.submit(into(job, numbered(given(5, 1), tasks(0))));
    let (jobs, reason) = (one(job), "".into());
    bench.request(Command::CancelJobs { jobs, reason });
    assert_eq!(bench.counts(job).canceled, 2);
    let kept = bench.state.jobs()[&job].cancel_reason.clone();
    assert_eq!(kept.as_deref(), Some("enough"));
}

#[test]
fn an_open_job_stays_open_when_its_tasks_are_canceled() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.open(None);
    bench.submit(into(job, tasks(1)));
    bench.cancel(job);
    bench.end(worker, key(job, 0), Outcome::Killed);
    assert!(!bench.state.jobs()[&job].is_completed());
    bench.submit(into(job, numbered(given(1, 1), tasks(0))));
    assert_eq!(bench.has(worker), [(1, 1)]);
}

#[test]
fn a_cancel_of_all_jobs_leaves_alone_what_is_over() {
    let (mut bench, worker) = Bench::with_worker(1);
    let over = bench.submit(tasks(1));
    bench.finish(worker, key(over, 0));
    let other = bench.submit(tasks(1));
    let (jobs, reason) = (Selector::All, "".into());
    let effects = bench.request(Command::CancelJobs { jobs, reason });
    assert!(
        matches!(job_row(&effects), JobResult::Ok { job, .. } if job == other),
        "only that"
    );
    assert_eq!(bench.job_state(over), JobState::Finished);
}

#[test]
fn jobs_that_do_not_exist_are_named_in_the_answer() {
    let mut bench = Bench::new();
    bench.submit(tasks(1));
    let jobs = Selector::Ids(IdArray::consecutive(1, 3).expect("valid"));
    let reason = "".into();
    let effects = bench.request(Command::CancelJobs { jobs, reason });
    let Reply::Jobs(found) = reply(&effects) else {
        panic!("about jobs");
    };
    assert_eq!(found.rows.len(), 1);
    assert!(found.not_found.iter().eq([2, 3]));
}

#[test]
fn one_failure_more_than_tolerated_gives_the_rest_up() {
    let (mut bench, worker) = Bench::with_worker(2);
    let job = bench.submit(max_fails(1, tasks(6)));
    bench.start(worker, key(job, 1));
    bench.fail(worker, key(job, 0));
    assert_eq!(bench.counts(job).aborted, 0, "one is tolerated");
    let effects = bench.fail(worker, key(job, 2));
    let counts = bench.counts(job);
    assert_eq!((counts.failed, counts.aborted), (2, 4));
    let killed = killed(&effects, worker);
    assert!(
        killed.iter().any(|(task, _)| *task == key(job, 1)),
        "also what runs: {killed:?}"
    );
    assert_eq!(bench.job_state(job), JobState::Failed);
}

#[test]
fn without_a_limit_failures_stop_nothing() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(tasks(3));
    for task in 0..3 {
        bench.fail(worker, key(job, task));
    }
    assert_eq!(bench.counts(job).failed, 3);
}

#[test]
fn failures_of_all_submits_of_a_job_count_together() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.open(Some(0));
    bench.submit(into(job, tasks(1)));
    bench.submit(into(job, numbered(given(1, 2), tasks(0))));
    bench.fail(worker, key(job, 0));
    assert_eq!(bench.counts(job).aborted, 2);
    assert!(!bench.state.jobs()[&job].is_completed(), "more may come");
}

#[test]
fn a_cancel_changes_no_other_job() {
    let (mut bench, worker) = Bench::with_worker(2);
    let (first, second) = (bench.submit(tasks(1)), bench.submit(tasks(1)));
    let effects = bench.cancel(first);
    assert_eq!(killed(&effects, worker).len(), 1);
    assert_eq!(bench.phase(key(second, 0)), Phase::Placed);
    let is_about = |effect: &Effect| format!("{effect:?}").contains(&format!("{second:?}"));
    assert!(!effects.iter().any(is_about), "{effects:?}");
    assert_eq!(second, JobId(2));
}

fn cancel_tasks(bench: &mut Bench, job: JobId, tasks: &[u32]) -> Vec<Effect> {
    let tasks = IdArray::from_sorted(tasks.to_vec()).expect("sorted");
    bench.request(Command::CancelTasks {
        job,
        tasks,
        keep_running: false,
    })
}

#[test]
fn tasks_that_run_are_spared_if_they_are_to_be() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(tasks(3));
    bench.start(worker, key(job, 0));
    let effects = bench.request(Command::CancelTasks {
        job,
        tasks: IdArray::consecutive(0, 3).expect("valid"),
        keep_running: true,
    });
    assert!(matches!(
        job_row(&effects),
        JobResult::Ok { canceled: 2, .. }
    ));
    bench.finish(worker, key(job, 0));
    let counts = bench.counts(job);
    assert_eq!((counts.finished, counts.canceled), (1, 2));
}

#[test]
fn single_tasks_are_canceled_wherever_they_are_and_the_others_go_on() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(tasks(200));
    bench.start(worker, key(job, 0));
    assert_eq!(bench.phase(key(job, 1)), Phase::Queued);
    assert_eq!(bench.phase(key(job, 199)), Phase::Waiting);
    let effects = cancel_tasks(&mut bench, job, &[0, 1, 199, 500]);
    let (canceled, already_finished) = (3, 0);
    let expected = JobResult::Ok {
        job,
        canceled,
        already_finished,
        killed: 0,
    };
    assert_eq!(job_row(&effects), expected);
    let ended: Vec<u32> = killed(&effects, worker)
        .iter()
        .map(|(task, _)| task.task.0)
        .collect();
    assert_eq!(ended, [0, 1], "what waits is on no worker");
    for task in [0, 1] {
        bench.end(worker, key(job, task), Outcome::Killed);
    }
    bench.finish_all();
    let counts = bench.counts(job);
    assert_eq!((counts.canceled, counts.finished), (3, 197));
    assert_eq!(bench.job_state(job), JobState::Canceled);
    let again = cancel_tasks(&mut bench, job, &[0, 2]);
    let (canceled, already_finished) = (0, 2);
    assert_eq!(
        job_row(&again),
        JobResult::Ok {
            job,
            canceled,
            already_finished,
            killed: 0,
        }
    );
}

#[test]
fn what_depends_on_a_canceled_task_is_given_up() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(graph(&[(0, &[]), (1, &[0]), (2, &[1]), (3, &[])]));
    bench.start(worker, key(job, 0));
    cancel_tasks(&mut bench, job, &[0]);
    let counts = bench.counts(job);
    assert_eq!((counts.canceled, counts.aborted), (1, 2));
    bench.end(worker, key(job, 0), Outcome::Killed);
    bench.finish(worker, key(job, 3));
    assert!(bench.state.jobs()[&job].is_completed());
}

#[test]
fn a_task_that_is_canceled_while_it_waits_for_another_never_runs() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(graph(&[(0, &[]), (1, &[0]), (2, &[0])]));
    bench.start(worker, key(job, 0));
    cancel_tasks(&mut bench, job, &[1]);
    bench.finish(worker, key(job, 0));
    assert_eq!(bench.phase(key(job, 1)), Phase::Canceled);
    bench.finish_all();
    let counts = bench.counts(job);
    assert_eq!((counts.finished, counts.canceled), (2, 1));
}

#[test]
fn a_canceled_task_stays_canceled_over_a_restart_and_over_a_late_end() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(tasks(3));
    bench.start(worker, key(job, 0));
    cancel_tasks(&mut bench, job, &[0, 2]);
    bench.finish(worker, key(job, 0));
    bench.restart();
    for task in [0, 2] {
        assert_eq!(bench.phase(key(job, task)), Phase::Canceled);
    }
    assert!(bench.record(key(job, 0)).has_run(), "it ran until then");
    assert!(!bench.record(key(job, 2)).has_run());
}

#[test]
fn tasks_of_a_job_that_does_not_exist_are_none() {
    let mut bench = Bench::new();
    let effects = cancel_tasks(&mut bench, JobId(9), &[0]);
    let Reply::Jobs(found) = reply(&effects) else {
        panic!("about jobs");
    };
    assert!(found.rows.is_empty() && found.not_found.iter().eq([9]));
}
