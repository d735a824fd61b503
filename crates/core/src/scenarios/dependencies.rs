//! Tasks that wait for other tasks, and jobs that wait for other jobs.

use proptest::collection::vec;
use proptest::prelude::*;

use super::bench::*;
use crate::id::{JobId, TaskId};
use crate::job::JobState;
use crate::range::{IdArray, IdRange};
use crate::server_state::{ChangeKind, Command, SubmitRefusal};
use crate::task::Phase;
use crate::template::ArrayIds;
use crate::testing::template;

#[test]
fn a_task_waits_for_all_its_dependencies() {
    let (mut bench, worker) = Bench::with_worker(4);
    let job = bench.submit(graph(&[(0, &[]), (1, &[]), (2, &[0, 1])]));
    assert_eq!(bench.has(worker), [(1, 0), (1, 1)]);
    bench.finish(worker, key(job, 1));
    assert_eq!(bench.has(worker), [(1, 0)]);
    bench.finish(worker, key(job, 0));
    assert_eq!(bench.has(worker), [(1, 2)]);
}

#[test]
fn what_depends_on_a_failed_task_never_runs_and_the_rest_goes_on() {
    let (mut bench, worker) = Bench::with_worker(4);
    let job = bench.submit(graph(&[
        (0, &[]),
        (1, &[0]),
        (2, &[1]),
        (3, &[]),
        (4, &[3]),
    ]));
    let effects = bench.fail(worker, key(job, 0));
    for task in [1, 2] {
        assert_eq!(bench.phase(key(job, task)), Phase::Aborted);
    }
    let is_it = |change: &ChangeKind| matches!(change, ChangeKind::TasksDropped { ids, .. } if ids.iter().eq([1, 2]));
    assert!(is_stored_at_once(&effects, is_it), "{effects:?}");
    bench.finish_all();
    assert_eq!(bench.phase(key(job, 4)), Phase::Finished);
    assert_eq!(bench.job_state(job), JobState::Failed);
}

#[test]
fn an_end_that_another_job_waits_for_is_stored_at_once() {
    let (mut bench, worker) = Bench::with_worker(4);
    let job = bench.submit(graph(&[(0, &[]), (1, &[0]), (2, &[])]));
    let is_end = |change: &ChangeKind| matches!(change, ChangeKind::TaskEnded { .. });
    let effects = bench.finish(worker, key(job, 2));
    assert!(!is_stored_at_once(&effects, is_end), "nobody waits for it");
    let effects = bench.finish(worker, key(job, 0));
    assert!(!is_stored_at_once(&effects, is_end), "its worker keeps it");
    let follower = bench.submit(after(job, Waits::ForJob, tasks(1)));
    let effects = bench.finish(worker, key(job, 1));
    assert!(is_stored_at_once(&effects, is_end), "job 2 does");
    assert_eq!(bench.has(worker), [(follower.0, 0)]);
}

#[test]
fn a_dependency_that_is_tried_again_still_holds_the_others() {
    let (mut bench, worker) = Bench::with_worker(4);
    let mut task = template(&["true"]);
    task.retry.limit = 1;
    task.retry.delay = std::time::Duration::ZERO;
    let job = bench.submit(graph_of(task, &[(0, &[]), (1, &[0])]));
    bench.fail(worker, key(job, 0));
    assert_eq!(bench.has(worker), [(1, 0)], "again");
    bench.finish(worker, key(job, 0));
    assert_eq!(bench.has(worker), [(1, 1)]);
}

#[test]
fn a_chain_of_waiting_jobs_is_given_up_to_its_end() {
    let (mut bench, worker) = Bench::with_worker(1);
    let first = bench.submit(tasks(1));
    let second = bench.submit(after(first, Waits::ForJob, tasks(2)));
    let third = bench.submit(after(second, Waits::ForJob, tasks(2)));
    bench.fail(worker, key(first, 0));
    assert_eq!(bench.job_state(second), JobState::Aborted);
    assert_eq!(bench.job_state(third), JobState::Aborted);
    let reason = bench.state.jobs()[&third].cancel_reason.clone();
    let reason = reason.expect("it says why");
    assert!(reason.contains("Job 2"), "{reason}");
}

#[test]
fn any_end_of_another_job_is_enough_if_that_was_asked_for() {
    let (mut bench, worker) = Bench::with_worker(1);
    let first = bench.submit(tasks(1));
    let second = bench.submit(after(first, Waits::ForJobAnyEnd, tasks(1)));
    assert_eq!(bench.has(worker), [(1, 0)]);
    bench.fail(worker, key(first, 0));
    assert_eq!(bench.has(worker), [(second.0, 0)]);
}

#[test]
fn each_task_starts_with_the_end_of_its_counterpart() {
    let (mut bench, worker) = Bench::with_worker(4);
    let first = bench.submit(tasks(3));
    let second = bench.submit(after(first, Waits::TaskByTask, tasks(3)));
    let third = bench.submit(after(first, Waits::TaskByTaskAnyEnd, tasks(3)));
    bench.finish(worker, key(first, 1));
    assert_eq!(bench.has(worker), [(1, 0), (1, 2), (2, 1), (3, 1)]);
    bench.fail(worker, key(first, 2));
    assert_eq!(bench.phase(key(second, 2)), Phase::Aborted);
    assert_eq!(bench.has(worker), [(1, 0), (2, 1), (3, 1), (3, 2)]);
    bench.finish_all();
    let counts = bench.counts(second);
    assert_eq!((counts.finished, counts.aborted), (2, 1));
    assert_eq!(bench.counts(third).finished, 3);
}

#[test]
fn a_chain_of_giant_arrays_is_given_up_as_ranges() {
    const COUNT: u32 = 1_000_000;
    let mut bench = Bench::new();
    let first = bench.submit(tasks(COUNT));
    let second = bench.submit(after(first, Waits::TaskByTask, tasks(COUNT)));
    let third = bench.submit(after(second, Waits::TaskByTask, tasks(COUNT)));
    let (id, _) = bench.watch(one(third));
    let effects = bench.cancel(first);
    let dropped = changes(&effects).into_iter().filter_map(|change| {
        let ChangeKind::TasksDropped { job, ids, .. } = change else {
            return None;
        };
        Some((*job, ids.ranges().len(), ids.len()))
    });
    let expected = [first, second, third].map(|job| (job, 1, COUNT));
    assert_eq!(Vec::from_iter(dropped), expected);
    assert_eq!(updates(&effects, id)[0].jobs[0].ended_tasks.len(), 1);
    assert_eq!(bench.counts(third).aborted, COUNT);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The verdict for a range of tasks equals the verdicts for its single tasks, regardless of the
    /// ids of both jobs and the states of the awaited one.
    #[test]
    fn each_task_has_the_verdict_of_its_counterpart(
        ends in vec((0u32..600, 1u32..300, 0u8..3), 0..6),
        parts in vec((0u32..100, 1u32..200, 1u32..4), 1..4),
        is_any: bool,
    ) {
        let (mut bench, worker) = Bench::with_worker(600);
        let first = bench.submit(tasks(600));
        for (from, count, kind) in ends {
            for task in (from..from + count).take_while(|task| *task < 600) {
                if bench.phase(key(first, task)).is_terminal() {
                    continue;
                }
                match kind {
                    0 => drop(bench.finish(worker, key(first, task))),
                    1 => drop(bench.fail(worker, key(first, task))),
                    _ => drop(bench.request(Command::CancelTasks {
                        job: first,
                        tasks: IdArray::single(task),
                        keep_running: false,
                    })),
                }
            }
        }
        let mut start = 0;
        let mut ranges = Vec::new();
        for (gap, count, step) in parts {
            let range = IdRange::new(start + gap, count, step).expect("a range");
            start = range.last() + 1;
            if start <= 600 {
                ranges.push(range);
            }
        }
        prop_assume!(!ranges.is_empty());
        let ids = IdArray::new(ranges).expect("no overlap");
        let how = if is_any { Waits::TaskByTaskAnyEnd } else { Waits::TaskByTask };
        let spec = numbered(ArrayIds::Given(ids.clone()), tasks(ids.len()));
        let second = bench.submit(after(first, how, spec));
        for id in ids.iter() {
            let found = bench.phase(key(second, id));
            let is_right = match bench.phase(key(first, id)) {
                Phase::Waiting | Phase::Queued | Phase::Placed | Phase::Running => {
                    found == Phase::Waiting
                }
                Phase::Failed | Phase::Canceled | Phase::Aborted if !is_any => {
                    found == Phase::Aborted
                }
                Phase::Finished | Phase::Failed | Phase::Canceled | Phase::Aborted => {
                    matches!(found, Phase::Queued | Phase::Placed)
                }
            };
            prop_assert!(is_right, "task {id}: {found:?}");
        }
    }
}

#[test]
fn conditions_that_can_never_be_met_are_refused() {
    let mut bench = Bench::new();
    let first = bench.submit(tasks(2));
    let refusal = bench.refused(after(first, Waits::TaskByTask, tasks(3)));
    assert_eq!(refusal, SubmitRefusal::AfterNoTask(TaskId(2), first));
    let refusal = bench.refused(after(JobId(7), Waits::ForJob, tasks(1)));
    assert_eq!(refusal, SubmitRefusal::JobNotFound(JobId(7)));
    let open = bench.open(None);
    let refusal = bench.refused(after(open, Waits::ForJob, into(open, tasks(1))));
    assert_eq!(refusal, SubmitRefusal::AfterCycle(open));
}

#[test]
fn an_open_job_is_waited_for_until_it_is_closed() {
    let (mut bench, worker) = Bench::with_worker(1);
    let open = bench.open(None);
    bench.submit(into(open, tasks(1)));
    bench.submit(after(open, Waits::ForJob, tasks(1)));
    bench.finish(worker, key(open, 0));
    assert_eq!(bench.has(worker), [], "more may come");
    bench.close(open);
    assert_eq!(bench.has(worker), [(2, 0)]);
}

#[test]
fn a_job_can_wait_for_one_that_has_ended_already() {
    let (mut bench, worker) = Bench::with_worker(1);
    let good = bench.submit(tasks(1));
    bench.finish(worker, key(good, 0));
    let bad = bench.submit(tasks(1));
    bench.fail(worker, key(bad, 0));
    let follower = bench.submit(after(good, Waits::ForJob, tasks(1)));
    assert_eq!(bench.has(worker), [(follower.0, 0)]);
    let doomed = bench.submit(after(bad, Waits::ForJob, tasks(1)));
    assert_eq!(bench.job_state(doomed), JobState::Aborted);
}

#[test]
fn both_conditions_of_a_submit_have_to_be_met() {
    let (mut bench, worker) = Bench::with_worker(2);
    let (first, second) = (bench.submit(tasks(1)), bench.submit(tasks(1)));
    let spec = after(first, Waits::ForJob, tasks(1));
    let both = bench.submit(after(second, Waits::ForJobAnyEnd, spec));
    let job = &bench.state.jobs()[&both];
    let slot = job.find(TaskId(0)).expect("it exists");
    assert_eq!(bench.state.awaited(job, slot), (2, 2));
    bench.fail(worker, key(second, 0));
    assert_eq!(bench.phase(key(both, 0)), Phase::Waiting);
    let job = &bench.state.jobs()[&both];
    assert_eq!(bench.state.awaited(job, slot), (2, 1));
    bench.finish(worker, key(first, 0));
    assert_eq!(bench.has(worker), [(both.0, 0)]);
}
