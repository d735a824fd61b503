//! Overtaking: how long tasks may overtake another task, and when workers are examined again.

use std::sync::Arc;
use std::time::Duration;

use super::bench::*;
use crate::id::{JobId, WorkerId};
use crate::outcome::Outcome;
use crate::server_state::{Command, Input, WorkerMessage};
use crate::task::Phase;
use crate::template::{SubmitBody, SubmitSpec};

/// Lets half a second pass, and ends the first task that the worker has.
fn go_on(bench: &mut Bench, worker: WorkerId) {
    bench.wait(Duration::from_millis(500));
    let (job, task) = bench.has(worker)[0];
    bench.finish(worker, key(JobId(job), task));
}

/// Returns a task that needs two whole nodes.
fn gang_of(priority: i32) -> SubmitSpec {
    let mut spec = gang(1, 2);
    if let SubmitBody::Array(array) = &mut spec.body {
        Arc::make_mut(&mut array.template).priority = priority;
    }
    spec
}

/// Returns such a task with a high priority.
fn urgent_gang() -> SubmitSpec {
    gang_of(5)
}

#[test]
fn a_wide_task_is_overtaken_by_equal_ones_for_five_seconds_and_no_longer() {
    let (mut bench, worker) = Bench::with_worker(4);
    // With two different requests, nothing is sent ahead, so the server itself reserves room.
    bench.submit(tasks(400));
    let wide = bench.submit(wide(1, 4));
    let mut ends = 0;
    while bench.phase(key(wide, 0)) == Phase::Waiting {
        go_on(&mut bench, worker);
        ends += 1;
        assert!(ends < 40, "it never has its turn");
    }
    // Ten tasks end in five seconds. Then the large task gets the cpus of four of them.
    assert!(ends > 10, "small tasks went first for a while: {ends}");
}

#[test]
fn what_was_sent_ahead_of_an_equal_wide_task_is_asked_back_after_five_seconds() {
    let (mut bench, worker) = Bench::with_worker(4);
    let small = bench.submit(tasks(400));
    let ahead = |bench: &Bench| bench.has(worker).len() - 4;
    assert!(ahead(&bench) > 0, "there was nothing to choose from");
    bench.submit(wide(1, 4));
    let end_one = |bench: &mut Bench| {
        let (_, task) = bench.has(worker)[0];
        bench.finish(worker, key(small, task))
    };
    let effects = end_one(&mut bench);
    assert_eq!(
        asked_back(&effects, worker),
        [],
        "it may go first for a while"
    );
    bench.wait(Duration::from_secs(6));
    let effects = end_one(&mut bench);
    let back = asked_back(&effects, worker);
    assert!(!back.is_empty() && back.len() <= ahead(&bench), "{back:?}");
}

#[test]
fn a_worker_that_is_not_emptied_any_more_gets_small_tasks_again() {
    let mut bench = Bench::new();
    let workers = [bench.worker(1), bench.worker(1)];
    bench.submit(urgent(2, 9));
    let large = bench.submit(urgent_gang());
    let small = bench.submit(tasks(1));
    let (job, task) = bench.has(workers[0])[0];
    bench.finish(workers[0], key(JobId(job), task));
    assert_eq!(bench.has(workers[0]), [], "it is kept for two nodes");
    let effects = bench.request(Command::CancelJobs {
        jobs: one(large),
        reason: "".into(),
    });
    assert_eq!(sent(&effects, workers[0]), [0]);
    assert_eq!(bench.phase(key(small, 0)), Phase::Placed);
}

#[test]
fn a_worker_that_was_kept_for_a_canceled_task_is_used_at_once_although_another_waits_for_nodes() {
    let mut bench = Bench::new();
    let workers = [bench.worker(1), bench.worker(1)];
    let busy = bench.submit(urgent(2, 9));
    let large = bench.submit(urgent_gang());
    bench.submit(gang_of(-1));
    bench.submit(tasks(1));
    let (_, task) = bench.has(workers[0])[0];
    bench.finish(workers[0], key(busy, task));
    assert_eq!(bench.has(workers[0]), [], "it is kept for two nodes");
    // This happens immediately, and not after a quarter of a second, when plans for multi-node
    // tasks are due.
    let effects = bench.cancel(large);
    assert_eq!(sent(&effects, workers[0]), [0]);
}

#[test]
fn a_worker_that_empties_for_nodes_gives_back_what_it_has_not_started() {
    let mut bench = Bench::new();
    let workers = [bench.worker(1), bench.worker(1)];
    let small = bench.submit(tasks(4));
    for worker in workers {
        let (_, task) = bench.has(worker)[0];
        bench.start(worker, key(small, task));
    }
    let effects = bench.request(Command::Submit(Box::new(urgent_gang())));
    let back = workers.map(|worker| asked_back(&effects, worker).len());
    assert_eq!(back, [1, 1], "one waits on each");
}

#[test]
fn a_round_looks_for_nodes_again_after_a_quarter_of_a_second() {
    let (mut bench, worker) = Bench::with_worker(2);
    bench.submit(tasks(50));
    bench.submit(gang(1, 2));
    bench.wait(Duration::from_millis(300));
    let looks = |bench: &mut Bench| {
        let (job, task) = bench.has(worker)[0];
        let report = bench.end_report(worker, key(JobId(job), task), Outcome::Finished);
        let message = WorkerMessage::Report(report);
        bench.step(Input::WorkerMessage(worker, message));
        bench.state.last_round().with_gangs
    };
    assert!(!looks(&mut bench), "the worker is not empty");
    bench.skip(Duration::from_millis(260));
    assert!(looks(&mut bench));
    assert!(!looks(&mut bench), "it has just looked");
}

#[test]
fn room_that_a_worker_kept_for_a_waiting_task_is_used_when_that_task_leaves() {
    for is_canceled in [true, false] {
        let (mut bench, worker) = Bench::with_worker(2);
        let slow = bench.submit(tasks(1));
        bench.start(worker, key(slow, 0));
        let wide = bench.submit(wide(1, 2));
        let small = bench.submit(tasks(1));
        // The worker keeps its free cpu for the wide task, which has waited too long.
        bench.wait(Duration::from_secs(6));
        bench.give_back(worker, key(small, 0));
        assert_eq!(bench.phase(key(small, 0)), Phase::Waiting);
        if is_canceled {
            bench.cancel(wide);
            bench.end(worker, key(wide, 0), Outcome::Killed);
        } else {
            bench.give_back(worker, key(wide, 0));
        }
        assert_eq!(bench.phase(key(small, 0)), Phase::Placed, "{is_canceled}");
    }
}

#[test]
fn room_that_the_server_kept_for_a_waiting_task_is_used_when_that_task_is_canceled() {
    let (mut bench, worker) = Bench::with_worker(4);
    let slow = bench.submit(tasks(2));
    for task in 0..2 {
        bench.start(worker, key(slow, task));
    }
    let whole = bench.submit(wide(1, 4));
    let small = bench.submit(wide(1, 2));
    bench.wait(Duration::from_secs(6));
    bench.give_back(worker, key(small, 0));
    let large = bench.submit(wide(1, 3));
    bench.wait(Duration::from_secs(6));
    bench.cancel(whole);
    bench.end(worker, key(whole, 0), Outcome::Killed);
    bench.cancel(large);
    assert_eq!(bench.phase(key(small, 0)), Phase::Placed);
}
