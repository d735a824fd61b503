//! Failed attempts, lost workers, and the failures that a task survives.

use std::time::Duration;

use super::bench::*;
use crate::id::{InstanceId, JobId};
use crate::outcome::{LostReason, Outcome};
use crate::retry::RetryCause;
use crate::server_state::{ChangeKind, Report};
use crate::task::Phase;
use crate::template::{CrashLimit, SubmitSpec, TaskTemplate};

const SECOND: Duration = Duration::from_secs(1);

fn retried(limit: u16, change: impl FnOnce(&mut TaskTemplate)) -> SubmitSpec {
    tasks_with(1, |task| {
        task.retry.limit = limit;
        change(task);
    })
}

fn fragile(limit: CrashLimit) -> SubmitSpec {
    tasks_with(1, |task| task.crash_limit = limit)
}

const TASK: crate::id::TaskKey = key(JobId(1), 0);

#[test]
fn a_failed_task_runs_again_when_its_delay_is_over() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(retried(1, |_| {}));
    bench.fail(worker, TASK);
    assert_eq!(bench.phase(TASK), Phase::Waiting);
    bench.wait(SECOND - Duration::from_millis(1));
    assert_eq!(bench.has(worker), []);
    bench.wait(Duration::from_millis(1));
    assert_eq!(bench.has(worker), [(1, 0)]);
    assert_eq!(bench.instance(TASK), 1);
    bench.finish(worker, TASK);
    assert_eq!(bench.phase(TASK), Phase::Finished);
}

#[test]
fn the_delay_doubles_and_the_last_failure_counts() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(retried(2, |_| {}));
    bench.fail(worker, TASK);
    bench.wait(SECOND);
    bench.fail(worker, TASK);
    bench.wait(SECOND);
    assert_eq!(bench.has(worker), [], "it waits twice as long");
    bench.wait(SECOND);
    bench.fail(worker, TASK);
    assert_eq!(bench.phase(TASK), Phase::Failed);
    assert_eq!(bench.record(TASK).retry_count(), 2);
}

#[test]
fn only_ends_that_were_named_are_tried_again() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(retried(9, |task| {
        task.retry.on = vec![RetryCause::ExitCodes(3, 5), RetryCause::TimeLimit];
        task.retry.delay = Duration::ZERO;
    }));
    bench.end(worker, TASK, Outcome::ExitCode(4));
    bench.end(worker, TASK, Outcome::TimeLimit);
    assert_eq!(bench.has(worker), [(1, 0)], "third attempt");
    bench.end(worker, TASK, Outcome::ExitCode(6));
    assert_eq!(bench.phase(TASK), Phase::Failed);
}

#[test]
fn each_attempt_is_remembered_with_its_end() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(retried(1, |task| task.retry.delay = Duration::ZERO));
    let effects = bench.end(worker, TASK, Outcome::Signal(11));
    let is_it = |change: &ChangeKind| {
        let ChangeKind::TaskRequeued {
            instance,
            retry_count,
            attempt: Some(attempt),
            ..
        } = change
        else {
            return false;
        };
        (*instance, *retry_count) == (InstanceId(1), 1)
            && attempt.end.outcome == Outcome::Signal(11)
            && attempt.instance == InstanceId(0)
    };
    assert!(is_stored_at_once(&effects, is_it), "{effects:?}");
    bench.finish(worker, TASK);
    let submit = &bench.state.jobs()[&job].submits[0];
    let attempts = submit.tasks.attempts(0);
    assert_eq!(attempts.len(), 1);
    assert_eq!(attempts[0].worker, worker);
}

#[test]
fn a_task_that_is_canceled_while_it_waits_for_its_next_attempt_stays_canceled() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(retried(3, |_| {}));
    bench.fail(worker, TASK);
    bench.cancel(job);
    bench.wait(SECOND * 60);
    assert_eq!(bench.phase(TASK), Phase::Canceled);
    assert_eq!(bench.has(worker), []);
    assert!(bench.is_quiet(), "nothing is due any more");
}

#[test]
fn requeues_a_task_when_its_worker_is_lost() {
    let (mut bench, first) = Bench::with_worker(1);
    bench.submit(tasks(1));
    let second = bench.worker(1);
    bench.start(first, TASK);
    let effects = bench.leave(first, LostReason::ConnectionLost);
    assert_eq!(lost(&effects, first), Some(LostReason::ConnectionLost));
    assert_eq!(bench.has(second), [(1, 0)]);
    assert_eq!(bench.instance(TASK), 1, "not the one that may still run");
    assert_eq!(bench.record(TASK).crash_count(), 1);
}

#[test]
fn a_task_fails_when_its_crash_limit_is_reached() {
    let mut bench = Bench::new();
    bench.submit(fragile(CrashLimit::Max(2)));
    for crashes in 1..=2 {
        assert_eq!(bench.phase(TASK), Phase::Waiting);
        let worker = bench.worker(1);
        bench.start(worker, TASK);
        bench.leave(worker, LostReason::HeartbeatLost);
        assert_eq!(bench.record(TASK).crash_count(), crashes);
    }
    assert_eq!(bench.phase(TASK), Phase::Failed);
    let submit = &bench.state.jobs()[&JobId(1)].submits[0];
    let Some(Outcome::Message(text)) = submit.tasks.outcome(0) else {
        panic!("a text");
    };
    assert!(text.contains("occurred 2 times"), "{text}");
}

#[test]
fn workers_that_end_for_a_reason_count_no_crash() {
    let reasons = [
        LostReason::Stopped,
        LostReason::IdleTimeout,
        LostReason::TimeLimitReached,
        LostReason::AllocationEnded,
    ];
    let mut bench = Bench::new();
    bench.submit(fragile(CrashLimit::Max(1)));
    for (reason, lives) in reasons.into_iter().zip(1..) {
        let worker = bench.worker(1);
        bench.start(worker, TASK);
        bench.leave(worker, reason);
        assert_eq!(bench.phase(TASK), Phase::Waiting, "{reason:?}");
        assert_eq!(bench.record(TASK).crash_count(), 0, "{reason:?}");
        assert_eq!(bench.instance(TASK), lives, "{reason:?}");
    }
}

#[test]
fn a_task_that_is_never_restarted_fails_with_any_loss_but_not_before_it_runs() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(fragile(CrashLimit::NeverRestart));
    bench.leave(worker, LostReason::ConnectionLost);
    assert_eq!(bench.phase(TASK), Phase::Waiting, "it was not seen to run");
    let worker = bench.worker(1);
    bench.start(worker, TASK);
    bench.leave(worker, LostReason::Stopped);
    assert_eq!(bench.phase(TASK), Phase::Failed);
}

#[test]
fn an_unlimited_task_survives_every_loss() {
    let mut bench = Bench::new();
    bench.submit(fragile(CrashLimit::Unlimited));
    for _ in 0..20 {
        let worker = bench.worker(1);
        bench.start(worker, TASK);
        bench.leave(worker, LostReason::ConnectionLost);
    }
    assert_eq!(bench.phase(TASK), Phase::Waiting);
    assert_eq!(bench.record(TASK).crash_count(), 20);
}

#[test]
fn a_loss_that_the_crash_limit_does_not_forgive_can_be_tried_again() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(tasks_with(1, |task| {
        task.crash_limit = CrashLimit::NeverRestart;
        task.retry.limit = 1;
        task.retry.on = vec![RetryCause::Lost];
        task.retry.delay = Duration::ZERO;
    }));
    bench.start(worker, TASK);
    bench.leave(worker, LostReason::ConnectionLost);
    assert_eq!(bench.phase(TASK), Phase::Waiting);
    let worker = bench.worker(1);
    bench.start(worker, TASK);
    bench.leave(worker, LostReason::ConnectionLost);
    assert_eq!(bench.phase(TASK), Phase::Failed, "once");
}

#[test]
fn what_was_sent_ahead_costs_no_crash_when_its_worker_is_lost() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(tasks_with(2, |task| task.crash_limit = CrashLimit::Max(1)));
    bench.start(worker, key(job, 0));
    assert_eq!(bench.phase(key(job, 1)), Phase::Queued);
    bench.leave(worker, LostReason::ConnectionLost);
    assert_eq!(bench.phase(key(job, 0)), Phase::Failed);
    assert_eq!(bench.phase(key(job, 1)), Phase::Waiting);
    assert_eq!(bench.record(key(job, 1)).crash_count(), 0);
    assert_eq!(
        bench.instance(key(job, 1)),
        1,
        "it may have started there after all"
    );
}

#[test]
fn a_late_end_of_a_superseded_instance_is_counted_and_changes_nothing() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(retried(1, |task| task.retry.delay = Duration::ZERO));
    bench.fail(worker, TASK);
    let late = ended_row(TASK, InstanceId(0), Outcome::Finished);
    let before = bench.state.ignored().stale_rows;
    bench.report(
        worker,
        Report {
            ended: vec![late],
            ..Report::default()
        },
    );
    assert_eq!(bench.state.ignored().stale_rows, before + 1);
    assert_eq!(bench.phase(TASK), Phase::Placed);
}

#[test]
fn a_kill_that_nobody_asked_for_is_judged_when_its_worker_is_gone() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(tasks(1));
    bench.start(worker, TASK);
    bench.end(worker, TASK, Outcome::Killed);
    assert_eq!(bench.phase(TASK), Phase::Running, "only then is known why");
    bench.leave(worker, LostReason::TimeLimitReached);
    assert_eq!(bench.phase(TASK), Phase::Waiting);
    assert_eq!(bench.record(TASK).crash_count(), 0);
}

#[test]
fn a_task_waits_for_its_next_attempt_whatever_happens_to_the_job_that_it_follows() {
    let (mut bench, worker) = Bench::with_worker(4);
    let first = bench.submit(tasks(2));
    let second = tasks_with(2, |task| task.retry.limit = 1);
    let second = bench.submit(after(first, Waits::TaskByTask, second));
    bench.finish(worker, key(first, 0));
    bench.fail(worker, key(second, 0));
    // All conditions of the second job now hold, so it is examined as a whole.
    bench.finish(worker, key(first, 1));
    assert_eq!(bench.has(worker), [(second.0, 1)]);
    bench.wait(SECOND);
    assert_eq!(bench.has(worker), [(second.0, 0), (second.0, 1)]);
}
