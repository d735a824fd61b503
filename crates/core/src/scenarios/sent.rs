//! What users see of tasks that were sent to workers.

use std::time::Duration;

use super::bench::*;
use crate::id::{InstanceId, JobId};
use crate::job::{JobState, TaskCounts};
use crate::server_state::{Command, Report, StartedRow};

/// Waiting and running tasks of a job, as users see them.
fn shown(bench: &Bench, job: JobId) -> (u32, u32) {
    let counts = bench.counts(job);
    (counts.waiting, counts.running)
}

#[test]
fn what_a_worker_has_room_for_is_shown_as_running_from_the_answer_on() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(tasks(3));
    assert_eq!(shown(&bench, job), (2, 1));
    let sent = bench.now.wall;
    let record = bench.record(key(job, 0));
    assert_eq!((record.worker(), record.started()), (worker, Some(sent)));
    assert!(!record.was_started());
    // The next one takes its place together with the end, and no start was reported of either.
    bench.skip(Duration::from_secs(1));
    bench.finish(worker, key(job, 0));
    assert_eq!(shown(&bench, job), (1, 1));
    assert_eq!(bench.record(key(job, 1)).started(), Some(bench.now.wall));
    // The worker knows better when it started.
    let (task, instance) = (key(job, 1), InstanceId(0));
    let age = Duration::from_millis(300);
    let row = StartedRow {
        age,
        ..started_row(task, instance)
    };
    let started = Report {
        started: vec![row],
        ..Report::default()
    };
    bench.report(worker, started);
    let start = bench.now.wall.minus(age);
    assert_eq!(bench.record(task).started(), Some(start));
    for task in 1..=2 {
        assert_eq!(bench.job_state(job), JobState::Running);
        bench.finish(worker, key(job, task));
    }
    assert_eq!(bench.job_state(job), JobState::Finished);
}

#[test]
fn as_many_tasks_are_shown_as_running_as_there_is_room_for_until_the_last_end() {
    let (mut bench, worker) = Bench::with_worker(2);
    let jobs = [bench.submit(tasks(5)), bench.submit(tasks(4))];
    let sum = |bench: &Bench, count: fn(&TaskCounts) -> u32| {
        let counts = jobs.map(|job| count(&bench.counts(job)));
        counts.iter().sum::<u32>()
    };
    for left in (1..=9).rev() {
        assert_eq!(sum(&bench, TaskCounts::unfinished), left);
        assert_eq!(sum(&bench, |counts| counts.running), left.min(2));
        let task = bench.state.workers()[&worker].placed_tasks().next();
        bench.finish(worker, task.expect("one runs"));
    }
    // Along a chain the next one has the room of the one before it.
    let chain = bench.submit(graph(&[(0, &[]), (1, &[0]), (2, &[1])]));
    for task in 0..3 {
        assert_eq!(shown(&bench, chain), (2 - task, 1));
        bench.finish(worker, key(chain, task));
    }
}

#[test]
fn a_task_that_another_one_overtook_on_its_worker_waits() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(tasks(1));
    bench.start(worker, key(job, 0));
    let low = bench.submit(urgent(1, 0));
    let high = bench.submit(urgent(1, 7));
    assert_eq!((shown(&bench, low), shown(&bench, high)), ((1, 0), (1, 0)));
    bench.finish(worker, key(job, 0));
    assert_eq!((shown(&bench, low), shown(&bench, high)), ((1, 0), (0, 1)));
    // The worker had not got the urgent one yet when it chose.
    bench.start(worker, key(low, 0));
    assert_eq!((shown(&bench, low), shown(&bench, high)), ((0, 1), (1, 0)));
    bench.finish(worker, key(low, 0));
    assert_eq!(shown(&bench, high), (0, 1));
}

#[test]
fn a_task_that_finds_less_room_than_was_counted_waits() {
    // Free fractions of several items do not make one.
    let (mut bench, worker) = Bench::with_worker(2);
    let job = bench.submit(tasks(2));
    bench.start(worker, key(job, 0));
    assert_eq!(shown(&bench, job), (0, 2));
    let effects = bench.wait(Duration::from_secs(2));
    assert_eq!(asked_back(&effects, worker), [key(job, 1)]);
    bench.give_back(worker, key(job, 1));
    assert_eq!(shown(&bench, job), (1, 1));
    bench.finish(worker, key(job, 0));
    assert_eq!(shown(&bench, job), (0, 1));
}

#[test]
fn what_was_given_back_or_canceled_has_not_run() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(tasks(1));
    bench.request(Command::DrainWorkers(this(worker)));
    bench.give_back(worker, key(job, 0));
    assert_eq!(shown(&bench, job), (1, 0));
    assert_eq!(bench.record(key(job, 0)).started(), None);
    bench.worker(1);
    assert_eq!(shown(&bench, job), (0, 1));
    bench.cancel(job);
    assert_eq!(bench.counts(job).canceled, 1);
    assert_eq!(bench.record(key(job, 0)).started(), None);
}

#[test]
fn a_sent_task_is_shown_as_running_again_when_its_worker_is_back() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(tasks(2));
    bench.cut(worker);
    assert_eq!(shown(&bench, job), (1, 1), "the worker goes on");
    bench.restart();
    let mut reattach = bench.reattach(worker);
    reattach.launching = vec![(key(job, 0), InstanceId(0)), (key(job, 1), InstanceId(0))];
    bench.come_back_with(worker, reattach);
    assert_eq!(shown(&bench, job), (1, 1));
    assert_eq!(bench.record(key(job, 0)).started(), Some(bench.now.wall));
}
