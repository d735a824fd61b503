//! Tasks that add tasks to their own job.

use super::bench::*;
use crate::id::{InstanceId, JobId, TaskId};
use crate::job::JobState;
use crate::outcome::LostReason;
use crate::server_state::{Command, Resubmitted, SubmitRefusal, specs};
use crate::task::{Phase, TaskState};
use crate::template::{ArrayIds, Origin, SubmitSpec, SubmitTarget};

/// Returns a job to which its tasks can add tasks.
fn open(tasks_max: Option<u32>, spec: SubmitSpec) -> SubmitSpec {
    let target = SubmitTarget::SelfClosing {
        name: "x".into(),
        max_fails: None,
        tasks_max,
    };
    SubmitSpec { target, ..spec }
}

/// Returns a submission by an attempt of a task to its own job. Submissions with the same digest
/// are equal.
fn by((task, instance): (u32, u32), digest: u64, spec: SubmitSpec) -> SubmitSpec {
    let origin = Origin {
        task: TaskId(task),
        instance: InstanceId(instance),
        key: None,
        digest,
    };
    SubmitSpec {
        origin: Some(origin),
        ..into(JobId(1), spec)
    }
}

fn once(key: &str, mut spec: SubmitSpec) -> SubmitSpec {
    if let Some(origin) = &mut spec.origin {
        origin.key = Some(key.into());
    }
    spec
}

fn one_more() -> SubmitSpec {
    numbered(ArrayIds::Next(1), tasks(1))
}

fn total(bench: &Bench) -> u32 {
    bench.counts(JobId(1)).total()
}

fn is_open(bench: &Bench) -> bool {
    bench.state.jobs()[&JobId(1)].is_open
}

#[test]
fn generations_that_depend_on_the_last_end_and_the_job_closes_by_itself() {
    let (mut bench, worker) = Bench::with_worker(4);
    let job = bench.submit(open(None, graph(&[(0, &[])])));
    for generation in 1..=1_000 {
        let last = generation - 1;
        bench.submit(by((last, 0), 0, graph(&[(generation, &[last])])));
        assert_eq!(bench.has(worker), [(job.0, last)], "{generation} waits");
        bench.finish(worker, key(job, last));
    }
    assert!(is_open(&bench));
    bench.finish(worker, key(job, 1_000));
    assert_eq!(bench.job_state(job), JobState::Finished);
    assert!(!is_open(&bench) && bench.counts(job).finished == 1_001);
    let refused = bench.refused(into(job, one_more()));
    assert_eq!(refused, SubmitRefusal::JobNotOpen(job));
}

#[test]
fn another_attempt_adds_what_the_one_before_did_not_and_nothing_else() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(open(None, tasks(1)));
    bench.start(worker, key(job, 0));
    bench.submit(by((0, 0), 7, one_more()));
    bench.submit(by((0, 0), 8, one_more()));
    // Two equal submissions of one attempt are separate submissions.
    bench.submit(by((0, 0), 8, one_more()));
    assert_eq!(total(&bench), 4);
    bench.leave(worker, LostReason::ConnectionLost);
    let worker = bench.worker(1);
    assert_eq!(bench.instance(key(job, 0)), 1);
    bench.start(worker, key(job, 0));
    let late = bench.refused(by((0, 0), 9, one_more()));
    assert_eq!(
        late,
        SubmitRefusal::OriginOver(job, TaskId(0), InstanceId(0))
    );
    bench.submit(by((0, 1), 7, one_more()));
    let other = bench.refused(by((0, 1), 9, one_more()));
    assert_eq!(other, SubmitRefusal::OriginDiffers(job, TaskId(0)));
    // After a restart, the server knows which submissions were repeated.
    bench.restart();
    bench.come_back(worker);
    bench.submit(by((0, 1), 8, one_more()));
    assert_eq!(total(&bench), 4);
    bench.submit(by((0, 1), 8, one_more()));
    assert_eq!(total(&bench), 4);
    bench.submit(by((0, 1), 8, one_more()));
    assert_eq!(total(&bench), 5, "the third one is new");
}

#[test]
fn an_attempt_whose_start_was_never_stored_is_not_taken_for_the_next_one() {
    let mut bench = Bench::new();
    let worker = bench.mortal(1);
    let job = bench.submit(open(None, tasks(1)));
    assert_eq!(bench.has(worker), [(job.0, 0)]);
    bench.submit(by((0, 0), 7, one_more()));
    bench.restart();
    let other = bench.worker(1);
    bench.wait(SILENCE_MAX);
    assert!(bench.has(other).contains(&(job.0, 0)));
    assert_eq!(bench.instance(key(job, 0)), 1);
    bench.submit(by((0, 1), 7, one_more()));
    assert_eq!(total(&bench), 2);
}

#[test]
fn a_name_tells_submits_apart_whatever_they_contain() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(open(None, tasks(1)));
    bench.start(worker, key(job, 0));
    for (name, digest, expected) in [("a", 1, 2), ("b", 1, 3), ("a", 2, 3), ("b", 1, 3)] {
        bench.submit(once(name, by((0, 0), digest, one_more())));
        assert_eq!(total(&bench), expected);
    }
    bench.restart();
    bench.come_back(worker);
    bench.submit(once("a", by((0, 0), 3, one_more())));
    assert_eq!(total(&bench), 3);
}

#[test]
fn a_job_has_never_more_tasks_than_it_may() {
    let (mut bench, worker) = Bench::with_worker(1);
    let refused = bench.refused(open(Some(2), tasks(3)));
    let too_many = |known, new| SubmitRefusal::TasksMax { max: 2, known, new };
    assert_eq!(refused, too_many(0, 3));
    let job = bench.submit(open(Some(2), tasks(1)));
    bench.restart();
    bench.come_back(worker);
    bench.start(worker, key(job, 0));
    bench.submit(by((0, 0), 1, one_more()));
    let refused = bench.refused(by((0, 0), 2, one_more()));
    assert_eq!(refused, too_many(2, 1));
    bench.finish_all();
    assert_eq!(bench.job_state(job), JobState::Finished);
}

#[test]
fn what_depends_on_an_earlier_task_that_failed_is_given_up_also_later() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(open(None, graph(&[(0, &[]), (1, &[])])));
    bench.submit(into(job, graph(&[(2, &[0]), (3, &[2])])));
    bench.submit(into(job, graph(&[(4, &[3]), (5, &[1])])));
    bench.fail(worker, key(job, 0));
    for task in [2, 3, 4] {
        assert_eq!(bench.phase(key(job, task)), Phase::Aborted, "{task}");
    }
    bench.submit(into(job, graph(&[(6, &[0]), (7, &[6]), (8, &[1])])));
    for task in [6, 7] {
        assert_eq!(bench.phase(key(job, task)), Phase::Aborted, "{task}");
    }
    bench.restart();
    bench.come_back(worker);
    bench.finish(worker, key(job, 1));
    assert!(bench.has(worker).contains(&(job.0, 5)));
    bench.finish_all();
    assert_eq!(bench.phase(key(job, 8)), Phase::Finished);
    assert!(!is_open(&bench));
}

#[test]
fn earlier_tasks_are_waited_for_through_a_restart_and_unknown_ones_are_refused() {
    let (mut bench, worker) = Bench::with_worker(4);
    let job = bench.submit(open(None, tasks(2)));
    let refused = bench.refused(into(job, graph(&[(5, &[0]), (6, &[9])])));
    let unknown = SubmitRefusal::DependencyUnknown(TaskId(6), TaskId(9), job);
    assert_eq!(refused, unknown);
    bench.submit(into(job, graph(&[(5, &[0, 1]), (6, &[5, 0])])));
    bench.finish(worker, key(job, 0));
    bench.restart();
    bench.come_back(worker);
    assert_eq!(bench.has(worker), [(job.0, 1)]);
    bench.finish(worker, key(job, 1));
    assert_eq!(bench.has(worker), [(job.0, 5)]);
    bench.cancel(job);
    assert_eq!(bench.job_state(job), JobState::Canceled);
    assert!(!is_open(&bench));
}

#[test]
fn what_a_task_adds_again_is_not_submitted_again() {
    let (mut bench, worker) = Bench::with_worker(4);
    let job = bench.submit(open(None, tasks(2)));
    bench.submit(by((0, 0), 1, one_more()));
    bench.submit(by((1, 0), 1, one_more()));
    bench.finish(worker, key(job, 0));
    for task in [1, 2, 3] {
        bench.fail(worker, key(job, task));
    }
    let again = Command::Resubmit {
        jobs: one(job),
        states: vec![TaskState::Failed],
        requests: Vec::new(),
    };
    bench.request(again);
    // Task 3 was added by task 1, which runs again. Task 2 was added by task 0, which does not.
    assert_eq!(bench.has(worker), [(2, 1), (2, 2)]);
}

#[test]
fn tasks_that_are_submitted_again_wait_for_each_other_again() {
    let (mut bench, worker) = Bench::with_worker(4);
    let job = bench.submit(open(Some(9), tasks(1)));
    bench.submit(into(job, graph(&[(1, &[0])])));
    bench.fail(worker, key(job, 0));
    let again = Command::Resubmit {
        jobs: one(job),
        states: Vec::new(),
        requests: Vec::new(),
    };
    bench.request(again);
    let new = JobId(2);
    assert_eq!(bench.has(worker), [(new.0, 0)]);
    bench.finish(worker, key(new, 0));
    assert_eq!(bench.has(worker), [(new.0, 1)]);
    bench.finish(worker, key(new, 1));
    assert_eq!(bench.job_state(new), JobState::Finished);
    assert!(!bench.state.jobs()[&new].is_open);
}

#[test]
fn a_task_that_runs_again_adds_its_tasks_again_and_these_what_they_added() {
    let (mut bench, worker) = Bench::with_worker(2);
    let job = bench.submit(open(None, graph(&[(0, &[]), (5, &[])])));
    bench.submit(by((0, 0), 0, graph(&[(1, &[])])));
    bench.fail(worker, key(job, 0));
    bench.start(worker, key(job, 1));
    bench.submit(by((1, 0), 0, graph(&[(2, &[])])));
    bench.finish(worker, key(job, 1));
    bench.fail(worker, key(job, 2));
    // Tasks that were added by other tasks are shown as submitted.
    let specs = specs(&bench.state.jobs()[&job]);
    let targets = specs.iter().map(|spec| &spec.target);
    let own = targets.filter(|target| **target == SubmitTarget::Attach(job));
    assert_eq!(own.count(), 2, "{specs:?}");
    let failed = resubmit(&mut bench, job, &[TaskState::Failed]);
    assert!(
        matches!(failed, Resubmitted::Ok { task_count: 1, .. }),
        "2 comes with 1, and 1 with 0: {failed:?}"
    );
    // A task cannot depend on one that does not exist yet.
    bench.submit(into(job, graph(&[(9, &[2])])));
    let refusal = SubmitRefusal::DependencyAddedAgain(TaskId(9), TaskId(2));
    let both = [TaskState::Failed, TaskState::Aborted];
    assert_eq!(
        resubmit(&mut bench, job, &both),
        Resubmitted::Refused(job, refusal)
    );
}
