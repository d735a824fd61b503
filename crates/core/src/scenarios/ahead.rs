//! Tasks whose dependency has ended but is not committed. They are sent to the same worker, which
//! reports both tasks if the server crashes.

use std::time::Duration;

use super::bench::*;
use crate::id::{InstanceId, JobId, TaskKey, WorkerId};
use crate::job::JobState;
use crate::outcome::{LostReason, Outcome};
use crate::range::IdArray;
use crate::server_state::{Command, Report};
use crate::task::Phase;
use crate::template::CrashLimit;
use crate::testing::template;
use crate::worker_config::OnServerLost;

const FIRST: TaskKey = key(JobId(1), 0);
const SECOND: TaskKey = key(JobId(1), 1);

/// Brings a chain of three tasks to the point where the first task has ended, the second one runs,
/// and nothing is stored. Returns the report of the end.
fn second_runs(bench: &mut Bench, worker: WorkerId) -> Report {
    bench.slow_disk();
    bench.start(worker, FIRST);
    let end = bench.end_report(worker, FIRST, Outcome::Finished);
    bench.report(worker, end.clone());
    assert_eq!(bench.has(worker), [(1, 1)], "the disk is not waited for");
    bench.start(worker, SECOND);
    end
}

fn chain() -> crate::template::SubmitSpec {
    graph(&[(0, &[]), (1, &[0]), (2, &[1])])
}

/// Crashes the server. The worker reconnects with the second task running and the first one ended.
fn come_back_after_a_crash(bench: &mut Bench, worker: WorkerId) {
    bench.restart();
    assert_eq!(bench.phase(FIRST), Phase::Waiting, "nobody has noted it");
    let mut reattach = bench.reattach(worker);
    reattach.launching = vec![(FIRST, InstanceId(0))];
    let effects = bench.come_back_with(worker, reattach);
    assert!(killed(&effects, worker).is_empty(), "{effects:?}");
    assert_eq!(bench.phase(SECOND), Phase::Running);
}

#[test]
fn a_chain_goes_on_through_a_crash_that_undid_the_end_before_it() {
    let (mut bench, worker) = Bench::with_worker(2);
    bench.submit(chain());
    let end = second_runs(&mut bench, worker);
    come_back_after_a_crash(&mut bench, worker);
    assert_eq!(
        bench.has(worker),
        [(1, 1)],
        "the first one is not sent again"
    );
    bench.report(worker, end);
    assert_eq!(bench.phase(SECOND), Phase::Running, "nor is this one");
    bench.finish(worker, SECOND);
    bench.finish(worker, key(JobId(1), 2));
    assert_eq!(bench.job_state(JobId(1)), JobState::Finished);
    assert_eq!((bench.instance(FIRST), bench.instance(SECOND)), (0, 0));
}

#[test]
fn if_the_worker_is_lost_as_well_the_chain_begins_again_in_order() {
    let (mut bench, worker) = Bench::with_worker(2);
    bench.submit(chain());
    second_runs(&mut bench, worker);
    bench.restart();
    bench.fast_disk();
    let other = bench.worker(2);
    bench.leave(worker, LostReason::ConnectionLost);
    for task in 0..3 {
        assert_eq!(bench.has(other), [(1, task)]);
        bench.finish(other, key(JobId(1), task));
    }
    assert_eq!(bench.job_state(JobId(1)), JobState::Finished);
}

#[test]
fn a_task_that_lost_what_it_follows_waits_for_it_again() {
    let (mut bench, worker) = Bench::with_worker(2);
    bench.submit(chain());
    second_runs(&mut bench, worker);
    come_back_after_a_crash(&mut bench, worker);
    bench.fast_disk();
    bench.leave(worker, LostReason::ConnectionLost);
    let other = bench.worker(2);
    assert_eq!(bench.has(other), [(1, 0)], "the second one has to wait");
    bench.finish(other, FIRST);
    assert_eq!(bench.has(other), [(1, 1)]);
    assert!(bench.instance(SECOND) > 0, "what ran there does not count");
}

#[test]
fn what_follows_a_task_that_may_not_run_again_is_given_up_with_it() {
    for ids in [[0, 1, 2], [2, 1, 0]] {
        let (mut bench, worker) = Bench::with_worker(2);
        let mut task = template(&["true"]);
        task.crash_limit = CrashLimit::NeverRestart;
        let [first, second, third] = ids;
        let links: &[(u32, &[u32])] = &[(first, &[]), (second, &[first]), (third, &[second])];
        let job = bench.submit(graph_of(task, links));
        let (first, second) = (key(job, first), key(job, second));
        bench.slow_disk();
        bench.start(worker, first);
        bench.finish(worker, first);
        // The task was sent but its start was not reported, so it may run again once it is ready.
        assert_eq!(bench.phase(second), Phase::Placed);
        bench.restart();
        let mut reattach = bench.reattach(worker);
        reattach.report.started = vec![started_row(first, InstanceId(0))];
        reattach.launching = vec![(second, InstanceId(0))];
        bench.come_back_with(worker, reattach);
        assert_eq!(bench.phase(second), Phase::Placed);
        bench.leave(worker, LostReason::ConnectionLost);
        assert_eq!(bench.phase(first), Phase::Failed);
        assert_eq!(bench.phase(second), Phase::Aborted);
        assert_eq!(bench.phase(key(job, third)), Phase::Aborted);
        assert!(bench.is_quiet());
    }
}

#[test]
fn other_workers_hear_of_it_behind_the_disk() {
    let (mut bench, worker) = Bench::with_worker(1);
    let other = bench.worker(1);
    bench.submit(graph(&[(0, &[]), (1, &[]), (2, &[0, 1])]));
    bench.slow_disk();
    // One of the two dependencies ended on the other worker.
    bench.finish(worker, bench_task(&bench, worker));
    bench.finish(other, bench_task(&bench, other));
    let third = |bench: &Bench| [worker, other].iter().any(|id| bench.has(*id) == [(1, 2)]);
    assert!(
        !third(&bench),
        "its worker would have it without what it follows"
    );
    bench.commit();
    assert!(third(&bench));
}

fn bench_task(bench: &Bench, worker: WorkerId) -> TaskKey {
    let (job, task) = bench.has(worker)[0];
    key(JobId(job), task)
}

#[test]
fn an_attempt_more_of_what_follows_a_canceled_task_is_given_up() {
    let (mut bench, worker) = Bench::with_worker(2);
    let mut task = template(&["true"]);
    task.retry.limit = 1;
    let job = bench.submit(graph_of(task, &[(0, &[]), (1, &[0]), (2, &[1])]));
    let end = second_runs(&mut bench, worker);
    come_back_after_a_crash(&mut bench, worker);
    // This happens before the worker reports the end. The running task is not affected.
    bench.request(Command::CancelTasks {
        job,
        tasks: IdArray::single(FIRST.task.0),
        keep_running: true,
    });
    bench.report(worker, end);
    assert_eq!(bench.phase(FIRST), Phase::Canceled);
    bench.fail(worker, SECOND);
    assert_eq!(
        bench.phase(SECOND),
        Phase::Aborted,
        "it would wait for ever"
    );
}

#[test]
fn a_worker_that_ends_with_its_server_hears_of_it_behind_the_disk() {
    for how in [OnServerLost::Stop, OnServerLost::FinishRunning] {
        let mut bench = Bench::new();
        let worker = bench.worker_with(2, |config| config.on_server_lost = how);
        bench.submit(chain());
        bench.slow_disk();
        bench.start(worker, FIRST);
        bench.finish(worker, FIRST);
        assert_eq!(
            bench.has(worker),
            [],
            "the next server runs the first again"
        );
        bench.commit();
        assert_eq!(bench.has(worker), [(1, 1)]);
    }
}

#[test]
fn what_follows_a_task_of_an_earlier_submit_that_ran_elsewhere_waits_for_the_disk() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.open(None);
    bench.submit(into(job, graph(&[(0, &[])])));
    bench.start(worker, FIRST);
    bench.submit(into(job, graph(&[(1, &[0])])));
    let other = bench.worker(2);
    bench.request(Command::DrainWorkers(this(worker)));
    bench.slow_disk();
    bench.finish(worker, FIRST);
    assert_eq!(
        bench.has(other),
        [],
        "it would have it without what it follows"
    );
    bench.commit();
    assert_eq!(bench.has(other), [(1, 1)]);
}

#[test]
fn what_runs_ahead_of_a_canceled_task_does_not_wait_for_it_after_another_restart() {
    for is_back in [false, true] {
        let (mut bench, worker) = Bench::with_worker(2);
        let job = bench.submit(chain());
        bench.slow_disk();
        bench.start(worker, FIRST);
        bench.finish(worker, FIRST);
        bench.start(worker, SECOND);
        bench.restart();
        let mut reattach = bench.reattach(worker);
        reattach.launching = vec![(FIRST, InstanceId(0))];
        bench.come_back_with(worker, reattach);
        bench.request(Command::CancelTasks {
            job,
            tasks: IdArray::single(FIRST.task.0),
            keep_running: true,
        });
        bench.commit();
        bench.restart();
        bench.fast_disk();
        if is_back {
            bench.come_back(worker);
            assert_eq!(bench.phase(SECOND), Phase::Running, "it is left alone");
            bench.finish(worker, SECOND);
        } else {
            bench.leave(worker, LostReason::ConnectionLost);
            let phase = bench.phase(SECOND);
            assert_eq!(phase, Phase::Aborted, "it would wait for ever");
        }
        bench.finish_all();
        assert_eq!(bench.counts(job).unfinished(), 0);
    }
}

#[test]
fn an_attempt_more_waits_for_its_delay_also_if_what_it_follows_is_told_meanwhile() {
    let (mut bench, worker) = Bench::with_worker(2);
    let mut task = template(&["true"]);
    task.retry.limit = 1;
    task.retry.delay = Duration::from_secs(60);
    bench.submit(graph_of(task, &[(0, &[]), (1, &[0])]));
    let end = second_runs(&mut bench, worker);
    come_back_after_a_crash(&mut bench, worker);
    bench.fast_disk();
    bench.fail(worker, SECOND);
    bench.report(worker, end);
    assert_eq!(bench.phase(FIRST), Phase::Finished);
    assert_eq!(bench.has(worker), [], "not yet");
    bench.wait(Duration::from_secs(61));
    assert_eq!(bench.has(worker), [(1, 1)]);
}

#[test]
fn a_join_of_many_that_ran_on_its_worker_waits_for_no_disk() {
    const MANY: u32 = 100;
    let (mut bench, worker) = Bench::with_worker(MANY);
    let before: Vec<u32> = (0..MANY).collect();
    let mut tasks: Vec<(u32, &[u32])> = before.iter().map(|id| (*id, &[][..])).collect();
    tasks.push((MANY, &before));
    bench.submit(graph(&tasks));
    bench.slow_disk();
    for task in before.iter().copied() {
        bench.finish(worker, key(JobId(1), task));
    }
    assert_eq!(bench.has(worker), [(1, MANY)]);
}

#[test]
fn a_join_that_waits_for_the_disk_holds_up_nothing_else() {
    const OTHERS: u32 = 200;
    let (mut bench, worker) = Bench::with_worker(1);
    let other = bench.worker(1);
    // The join is more urgent because of its number, and is sent as soon as possible.
    let mut tasks: Vec<(u32, &[u32])> = vec![(0, &[]), (1, &[]), (2, &[0, 1])];
    tasks.extend((3..3 + OTHERS).map(|id| (id, &[][..])));
    bench.submit(graph(&tasks));
    bench.slow_disk();
    let mut finished = 0;
    while !bench.has(worker).is_empty() && !bench.has(other).is_empty() {
        for id in [worker, other] {
            let task = bench_task(&bench, id);
            assert_ne!(task, key(JobId(1), 2), "it goes on from another one");
            bench.finish(id, task);
            finished += 1;
        }
    }
    assert!(finished >= OTHERS, "one worker idles after {finished}");
    bench.finish_all();
    assert_eq!(bench.phase(key(JobId(1), 2)), Phase::Placed);
    bench.commit();
    assert!(bench.has(worker) == [(1, 2)] || bench.has(other) == [(1, 2)]);
}
