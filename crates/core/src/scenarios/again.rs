//! Resubmission of jobs that waited for other jobs.

use super::bench::*;
use crate::id::{JobId, TaskId};
use crate::job::JobState;
use crate::range::{IdArray, IdRange};
use crate::selector::Selector;
use crate::server_state::{Command, Reply, Resubmitted, SubmitRefusal};
use crate::task::TaskState;

/// The states of tasks whose work is incomplete.
const NOT_DONE: [TaskState; 2] = [TaskState::Failed, TaskState::Aborted];

fn resubmit_all(bench: &mut Bench, jobs: &[JobId], states: &[TaskState]) -> Vec<Resubmitted> {
    let ids = jobs.iter().map(|job| IdRange::single(job.0)).collect();
    let effects = bench.request(Command::Resubmit {
        jobs: Selector::Ids(IdArray::new(ids).expect("job ids")),
        states: states.to_vec(),
        requests: Vec::new(),
    });
    let Reply::Resubmitted(found) = reply(&effects) else {
        panic!("about what was submitted again");
    };
    found.rows
}

fn ok(job: JobId, new: u32, task_count: u32) -> Resubmitted {
    Resubmitted::Ok {
        job,
        new: JobId(new),
        task_count,
    }
}

#[test]
fn jobs_that_are_submitted_again_together_wait_for_each_other_as_before() {
    let (mut bench, worker) = Bench::with_worker(8);
    let first = bench.submit(tasks(2));
    let each = bench.submit(after(first, Waits::TaskByTask, tasks(2)));
    let whole = bench.submit(after(first, Waits::ForJob, tasks(1)));
    bench.fail(worker, key(first, 0));
    bench.fail(worker, key(first, 1));
    assert_eq!(bench.job_state(whole), JobState::Aborted);
    let again = resubmit_all(&mut bench, &[first, each, whole], &[]);
    assert_eq!(again, [ok(first, 4, 2), ok(each, 5, 2), ok(whole, 6, 1)]);
    assert_eq!(bench.has(worker), [(4, 0), (4, 1)]);
    bench.finish(worker, key(JobId(4), 1));
    assert_eq!(bench.has(worker), [(4, 0), (5, 1)]);
    bench.fail(worker, key(JobId(4), 0));
    assert_eq!(bench.has(worker), [(5, 1)]);
    assert_eq!(bench.job_state(JobId(6)), JobState::Aborted);
}

#[test]
fn a_job_is_not_submitted_again_without_one_that_did_not_finish() {
    let (mut bench, worker) = Bench::with_worker(8);
    let first = bench.submit(tasks(2));
    let each = bench.submit(after(first, Waits::TaskByTask, tasks(2)));
    let whole = bench.submit(after(first, Waits::ForJob, tasks(1)));
    let any = bench.submit(after(first, Waits::ForJobAnyEnd, tasks(1)));
    let refused = |bench: &mut Bench, job| match resubmit(bench, job, &[]) {
        Resubmitted::Refused(_, why) => why,
        other @ (Resubmitted::Ok { .. } | Resubmitted::Nothing(_)) => panic!("{other:?}"),
    };
    let is_open = SubmitRefusal::AfterNotEnded(any, first);
    assert_eq!(refused(&mut bench, any), is_open);
    bench.finish(worker, key(first, 0));
    bench.fail(worker, key(first, 1));
    for job in [each, whole] {
        let why = SubmitRefusal::AfterNotFinished(job, first);
        assert_eq!(refused(&mut bench, job), why);
    }
    assert_eq!(resubmit(&mut bench, any, &[]), ok(any, 5, 1));
    let last = bench.state.last_job();
    assert_eq!(last, Some(JobId(5)), "nothing else was submitted");
}

#[test]
fn what_finished_before_counts_as_done() {
    let (mut bench, worker) = Bench::with_worker(8);
    let first = bench.submit(tasks(2));
    let each = bench.submit(after(first, Waits::TaskByTask, tasks(2)));
    let whole = bench.submit(after(first, Waits::ForJob, tasks(1)));
    bench.finish(worker, key(first, 0));
    bench.fail(worker, key(each, 0));
    bench.fail(worker, key(first, 1));
    // One waiting task depends on a finished task, which is not part of the new job.
    let again = resubmit_all(&mut bench, &[first, each, whole], &NOT_DONE);
    assert_eq!(again, [ok(first, 4, 1), ok(each, 5, 2), ok(whole, 6, 1)]);
    assert_eq!(bench.has(worker), [(4, 1), (5, 0)]);
    bench.finish_all();
    assert_eq!(bench.job_state(JobId(6)), JobState::Finished);
    // The new jobs have completed the missing work.
    let again = resubmit_all(&mut bench, &[each, whole], &[]);
    assert_eq!(again, [ok(each, 7, 2), ok(whole, 8, 1)]);
    assert_eq!(bench.has(worker), [(7, 0), (7, 1), (8, 0)]);
}

#[test]
fn what_was_submitted_again_before_is_waited_for_unless_something_is_left_out() {
    let (mut bench, worker) = Bench::with_worker(8);
    let first = bench.submit(tasks(2));
    let whole = bench.submit(after(first, Waits::ForJob, tasks(1)));
    bench.fail(worker, key(first, 0));
    bench.cancel(first);
    let failed = resubmit_all(&mut bench, &[first], &[TaskState::Failed]);
    assert_eq!(failed, [ok(first, 3, 1)]);
    let left_out = SubmitRefusal::AfterNotChosen(whole, TaskId(1), first);
    let again = resubmit_all(&mut bench, &[whole], &[]);
    assert_eq!(again, [Resubmitted::Refused(whole, left_out)]);
    resubmit_all(&mut bench, &[first], &[]);
    assert_eq!(resubmit(&mut bench, whole, &[]), ok(whole, 5, 1));
    assert!(!bench.has(worker).contains(&(5, 0)));
    bench.finish_all();
    assert_eq!(bench.job_state(JobId(5)), JobState::Finished);
}

#[test]
fn a_job_comes_behind_a_younger_one_that_it_waited_for() {
    let (mut bench, worker) = Bench::with_worker(8);
    let open = bench.open(None);
    let other = bench.submit(tasks(1));
    bench.submit(into(open, after(other, Waits::ForJob, tasks(1))));
    bench.request(Command::CloseJobs(one(open)));
    bench.fail(worker, key(other, 0));
    let again = resubmit_all(&mut bench, &[open, other], &[]);
    assert_eq!(again, [ok(other, 3, 1), ok(open, 4, 1)]);
    assert_eq!(bench.has(worker), [(3, 0)]);
    bench.finish_all();
    assert_eq!(bench.job_state(JobId(4)), JobState::Finished);
}
