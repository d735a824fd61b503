//! Queries that the server answers at any time: names, numbers and totals.

use std::time::Duration;

use super::bench::*;
use crate::id::{JobId, WorkerId};
use crate::job::JobState;
use crate::outcome::LostReason;
use crate::range::IdArray;
use crate::selector::Selector;
use crate::server_state::Command;

fn ids(first: u32, count: u32) -> Selector {
    Selector::Ids(IdArray::consecutive(first, count).expect("valid"))
}

#[test]
fn last_means_the_highest_id_that_was_ever_given_out() {
    let mut bench = Bench::new();
    assert_eq!(bench.state.last_job(), None);
    assert_eq!(bench.state.last_worker(), None);
    assert!(bench.state.find_jobs(&Selector::Last).rows.is_empty());
    bench.submit(tasks(1));
    let job = bench.submit(tasks(1));
    assert_eq!(bench.state.find_jobs(&Selector::Last).rows, [job]);
    bench.worker(1);
    let worker = bench.worker(1);
    assert_eq!(bench.state.find_workers(&Selector::Last).rows, [worker]);
    assert_eq!(bench.state.last_job(), Some(JobId(2)));
    assert_eq!(bench.state.last_worker(), Some(worker));
}

#[test]
fn what_is_asked_for_is_found_or_named_as_missing() {
    let mut bench = Bench::new();
    bench.submit(tasks(1));
    bench.submit(tasks(1));
    let found = bench.state.find_jobs(&ids(2, 3));
    assert_eq!(found.rows, [JobId(2)]);
    assert!(found.not_found.iter().eq([3, 4]));
    let all = bench.state.find_jobs(&Selector::All).rows;
    assert_eq!(all, [JobId(1), JobId(2)]);
}

#[test]
fn workers_that_have_ended_can_still_be_asked_for() {
    let mut bench = Bench::new();
    let gone = bench.worker_with(1, |config| config.hostname = "old".into());
    bench.leave(gone, LostReason::IdleTimeout);
    let here = bench.worker_with(1, |config| config.hostname = "new".into());
    let all = bench.state.find_workers(&Selector::All).rows;
    assert_eq!(all, [gone, here]);
    assert_eq!(bench.state.hostname(gone), Some("old"));
    assert_eq!(bench.state.hostname(here), Some("new"));
    assert_eq!(bench.state.hostname(WorkerId(99)), None);
    assert!(bench.state.worker(gone).is_some() && !bench.knows(gone));
    assert!(bench.state.ended_workers().contains_key(&gone));
    assert_eq!(bench.state.last_lost(), None, "it said that it would go");
}

#[test]
fn sums_follow_what_happens() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(tasks(4));
    let open = bench.open(None);
    let totals = *bench.state.totals();
    assert_eq!((totals.tasks.waiting, totals.tasks.running), (3, 1));
    assert_eq!(totals.jobs.of(JobState::Opened), 1);
    bench.start(worker, key(job, 0));
    let totals = *bench.state.totals();
    assert_eq!((totals.tasks.waiting, totals.tasks.running), (3, 1));
    assert_eq!((totals.jobs.of(JobState::Running), totals.started), (1, 1));
    bench.finish(worker, key(job, 0));
    bench.fail(worker, key(job, 1));
    bench.cancel(job);
    let totals = *bench.state.totals();
    assert_eq!((totals.ended.finished, totals.ended.failed), (1, 1));
    assert_eq!((totals.ended.canceled, totals.tasks.canceled), (2, 2));
    assert_eq!((totals.jobs.of(JobState::Failed), totals.started), (1, 2));
    bench.close(open);
    assert_eq!(bench.state.totals().jobs.of(JobState::Finished), 1);
    assert_eq!(bench.state.totals().jobs.of(JobState::Opened), 0);
}

#[test]
fn attempts_that_others_follow_are_counted() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(tasks_with(1, |task| {
        task.retry.limit = 1;
        task.retry.delay = Duration::ZERO;
    }));
    assert_eq!(bench.state.totals().superseded, 0);
    bench.fail(worker, key(job, 0));
    assert_eq!(bench.state.totals().superseded, 1);
    bench.start(worker, key(job, 0));
    bench.leave(worker, LostReason::ConnectionLost);
    assert_eq!(bench.state.totals().superseded, 2);
    assert_eq!(bench.state.totals().cut_off, Duration::ZERO);
    let worker = bench.worker(1);
    bench.start(worker, key(job, 0));
    bench.wait(Duration::from_secs(90));
    bench.leave(worker, LostReason::TimeLimitReached);
    assert_eq!(bench.state.totals().cut_off, Duration::from_secs(90));
}

#[test]
fn what_waits_for_a_worker_is_counted_and_what_waits_for_others_is_not() {
    let mut bench = Bench::new();
    bench.submit(graph(&[(0, &[]), (1, &[0]), (2, &[0])]));
    assert_eq!(bench.state.ready_len(), 1);
    let first = bench.submit(tasks(5));
    bench.submit(after(first, Waits::ForJob, tasks(7)));
    assert_eq!(bench.state.ready_len(), 6);
    bench.cancel(first);
    assert_eq!(bench.state.ready_len(), 1);
}

#[test]
fn workers_that_were_told_to_end_are_counted_until_they_have_gone() {
    let mut bench = Bench::new();
    let (first, _) = (bench.worker(1), bench.worker(1));
    assert_eq!(bench.state.leaving(), 0);
    bench.request(Command::StopWorkers(Selector::All));
    assert_eq!(bench.state.leaving(), 2);
    bench.leave(first, LostReason::Stopped);
    assert_eq!(bench.state.leaving(), 1);
}

#[test]
fn a_server_knows_its_name() {
    assert_eq!(Bench::new().state.uid(), "test");
}
