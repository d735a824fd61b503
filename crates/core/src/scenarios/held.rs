//! Tasks that a user holds and releases.

use std::time::Duration;

use super::bench::*;
use crate::id::JobId;
use crate::job::JobState;
use crate::outcome::LostReason;
use crate::range::IdArray;
use crate::server_state::{ChangedTasks, Command, Effect, Reply};
use crate::task::Phase;

const JOB: JobId = JobId(1);

fn ids(tasks: &[u32]) -> IdArray {
    IdArray::from_sorted(tasks.iter().copied()).expect("sorted")
}

/// Holds or releases tasks. Without tasks, this concerns the whole job. Returns the changed and the
/// running tasks.
fn change(bench: &mut Bench, tasks: &[u32], is_held: bool) -> (Vec<u32>, Vec<u32>, Vec<Effect>) {
    let effects = bench.request(Command::HoldTasks {
        job: JOB,
        tasks: (!tasks.is_empty()).then(|| ids(tasks)),
        is_held,
    });
    let Reply::Changed(Ok(ChangedTasks {
        changed, running, ..
    })) = reply(&effects)
    else {
        panic!("the answer names tasks");
    };
    (changed.iter().collect(), running.iter().collect(), effects)
}

fn held(bench: &Bench) -> Vec<u32> {
    bench.state.jobs()[&JOB].held().iter().collect()
}

#[test]
fn held_tasks_start_only_when_they_are_released_also_after_a_restart() {
    let mut bench = Bench::new();
    bench.submit(tasks(4));
    let (changed, running, _) = change(&mut bench, &[1, 2, 9], true);
    assert_eq!((changed, running), (vec![1, 2], vec![]));
    bench.commit();
    bench.restart();
    assert_eq!(held(&bench), [1, 2]);
    let worker = bench.worker(8);
    assert_eq!(bench.has(worker), [(1, 0), (1, 3)]);
    let (changed, ..) = change(&mut bench, &[0, 2, 3], false);
    assert_eq!(changed, [2], "the others were not held");
    assert_eq!(bench.has(worker), [(1, 0), (1, 2), (1, 3)]);
    bench.finish_all();
    assert_eq!(bench.phase(key(JOB, 1)), Phase::Waiting);
    change(&mut bench, &[], false);
    bench.commit();
    bench.restart();
    assert_eq!(held(&bench), []);
}

#[test]
fn what_a_worker_has_not_started_comes_back_and_what_runs_goes_on() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(tasks(3));
    bench.start(worker, key(JOB, 0));
    let behind = bench.has_behind(worker);
    assert!(bench.has(worker).len() > 1, "sent ahead: {behind:?}");
    let (changed, running, effects) = change(&mut bench, &[], true);
    assert_eq!((changed, running), (vec![0, 1, 2], vec![0]));
    let back = asked_back(&effects, worker);
    assert!(!back.is_empty() && !back.contains(&key(JOB, 0)));
    bench.give_all_back(worker, &back);
    assert_eq!(bench.has(worker), [(1, 0)]);
    bench.finish(worker, key(JOB, 0));
    assert_eq!(bench.has(worker), []);
    change(&mut bench, &[], false);
    bench.finish_all();
    assert_eq!(bench.phase(key(JOB, 2)), Phase::Finished);
}

#[test]
fn a_held_job_also_holds_what_is_submitted_later() {
    let (mut bench, worker) = Bench::with_worker(4);
    let job = bench.open(None);
    let (changed, ..) = change(&mut bench, &[], true);
    assert_eq!(changed, []);
    bench.submit(into(job, tasks(2)));
    bench.commit();
    bench.restart();
    bench.come_back(worker);
    assert_eq!(held(&bench), [0, 1]);
    assert_eq!(bench.has(worker), []);
    let (changed, ..) = change(&mut bench, &[1], false);
    assert_eq!(changed, [1]);
    assert_eq!(bench.has(worker), [(1, 1)]);
    change(&mut bench, &[], false);
    assert_eq!(bench.has(worker), [(1, 0), (1, 1)]);
}

#[test]
fn other_conditions_apply_to_released_tasks_and_a_hold_to_tasks_that_become_free() {
    let mut bench = Bench::new();
    bench.submit(graph(&[(0, &[]), (1, &[0]), (2, &[0])]));
    change(&mut bench, &[0, 1], true);
    let worker = bench.worker(4);
    assert_eq!(bench.has(worker), []);
    let (changed, ..) = change(&mut bench, &[0], false);
    assert_eq!(changed, [0]);
    assert_eq!(bench.has(worker), [(1, 0)]);
    bench.finish(worker, key(JOB, 0));
    assert_eq!(bench.has(worker), [(1, 2)], "the other is held");
    change(&mut bench, &[1], false);
    assert_eq!(bench.has(worker), [(1, 1), (1, 2)]);
}

#[test]
fn retries_and_lost_tasks_stay_held() {
    let (mut bench, worker) = Bench::with_worker(2);
    bench.submit(tasks_with(2, |task| task.retry.limit = 1));
    bench.fail(worker, key(JOB, 0));
    bench.start(worker, key(JOB, 1));
    let (changed, running, _) = change(&mut bench, &[0, 1], true);
    assert_eq!((changed, running), (vec![0], vec![1]));
    bench.wait(Duration::from_secs(60));
    assert_eq!(bench.has(worker), [(1, 1)]);
    bench.leave(worker, LostReason::ConnectionLost);
    let worker = bench.worker(2);
    assert_eq!(bench.has(worker), [(1, 1)], "it was not held");
    bench.start(worker, key(JOB, 1));
    let (changed, running, _) = change(&mut bench, &[], true);
    assert_eq!((changed, running), (vec![0, 1], vec![1]));
    bench.fail(worker, key(JOB, 1));
    bench.wait(Duration::from_secs(60));
    assert_eq!(bench.has(worker), [], "the whole job is held");
    let (changed, ..) = change(&mut bench, &[], false);
    assert_eq!(changed, [0, 1]);
    assert_eq!(bench.has(worker), [(1, 0), (1, 1)]);
}

#[test]
fn a_release_of_what_runs_is_kept_through_a_restart() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(tasks_with(1, |task| task.retry.limit = 1));
    bench.start(worker, key(JOB, 0));
    change(&mut bench, &[], true);
    let (changed, running, _) = change(&mut bench, &[0], false);
    assert_eq!((changed, running), (vec![0], vec![]));
    bench.commit();
    bench.restart();
    assert_eq!(held(&bench), []);
}

#[test]
fn held_tasks_can_be_canceled_and_do_not_hide_others() {
    let mut bench = Bench::new();
    bench.submit(tasks_with(2, |task| task.priority = 5));
    change(&mut bench, &[], true);
    let other = bench.submit(tasks(1));
    let worker = bench.worker(1);
    assert_eq!(bench.has(worker), [(other.0, 0)]);
    bench.cancel(JOB);
    assert_eq!(held(&bench), []);
    assert_eq!(bench.job_state(JOB), JobState::Canceled);
}
