//! The visible states of tasks sent to workers, and whether the loss of a worker counts for them.

use std::time::Duration;

use super::bench::*;
use crate::id::{InstanceId, JobId};
use crate::job::{JobState, TaskCounts};
use crate::outcome::{LostReason, Outcome};
use crate::server_state::{ChangeKind, Command, Effect, Report, StartedRow};
use crate::task::Phase;
use crate::template::CrashLimit;
use crate::time::Time;

/// Returns the numbers of waiting and running tasks of a job, as users see them.
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
    // The next task takes its place in the same step, and neither start was reported.
    bench.skip(Duration::from_secs(1));
    bench.finish(worker, key(job, 0));
    assert_eq!(shown(&bench, job), (1, 1));
    assert_eq!(bench.record(key(job, 1)).started(), Some(bench.now.wall));
    // The worker knows the exact start time.
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
fn the_delay_of_a_report_does_not_move_its_times() {
    let (mut bench, worker) = Bench::with_worker(3);
    let job = bench.submit(tasks(3));
    let begun = bench.now.wall;
    // The worker's clock at each report, and how late the server handles the report.
    let reports = [(7_000, 0), (7_010, 40), (7_060, 5)].map(|(sent, late)| {
        let ms = Duration::from_millis;
        (Time(0) + ms(sent), begun.plus(ms(sent - 7_000)), ms(late))
    });
    for (number, (sent, made, late)) in (0..).zip(reports) {
        let passed = bench.now.wall.since(begun);
        bench.skip(made.plus(late).since(begun).saturating_sub(passed));
        let started = Report {
            sent: Some(sent),
            started: vec![started_row(key(job, number), InstanceId(0))],
            ..Report::default()
        };
        bench.report(worker, started);
        assert_eq!(bench.record(key(job, number)).started(), Some(made));
    }
    bench.skip(Duration::from_millis(30));
    let (sent, made, _) = reports[2];
    let mut end = bench.end_report(worker, key(job, 0), Outcome::Finished);
    end.sent = Some(sent);
    let effects = bench.report(worker, end);
    let ends = effects.iter().filter_map(|effect| {
        let Effect::Persist(change) = effect else {
            return None;
        };
        let is_end = matches!(change.kind, ChangeKind::TaskEnded { .. });
        is_end.then_some(change.at)
    });
    assert_eq!(ends.collect::<Vec<_>>(), [made]);
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
    // In a chain, the next task uses the room of the previous one.
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
    // The worker chose this task before it received the urgent one.
    bench.start(worker, key(low, 0));
    assert_eq!((shown(&bench, low), shown(&bench, high)), ((0, 1), (1, 0)));
    bench.finish(worker, key(low, 0));
    assert_eq!(shown(&bench, high), (0, 1));
}

#[test]
fn a_task_that_finds_less_room_than_was_counted_waits() {
    // Free fractions of several indices do not add up to one index.
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
    // The task counts like any other.
    bench.leave(worker, LostReason::ConnectionLost);
    let crashes = [0, 1].map(|task| bench.record(key(job, task)).crash_count());
    assert_eq!(crashes, [1, 0]);
}

/// Loses several workers, each while it has the task in this phase. Returns the counted crashes and
/// the final phase.
fn lose_workers(
    (phase, limit): (Phase, CrashLimit),
    (losses, reason): (u32, LostReason),
    with_restarts: bool,
) -> (u32, Phase) {
    let mut bench = Bench::new();
    if phase == Phase::Queued {
        // This task uses the room of each worker.
        bench.submit(tasks_with(1, |task| {
            task.crash_limit = CrashLimit::Unlimited
        }));
    }
    let job = bench.submit(tasks_with(1, |task| task.crash_limit = limit));
    let task = key(job, 0);
    for loss in 0..losses {
        let worker = bench.worker(1);
        if phase == Phase::Running {
            bench.start(worker, task);
        }
        assert_eq!(bench.phase(task), phase, "before loss {loss}");
        bench.leave(worker, reason);
        if with_restarts {
            bench.restart();
        }
    }
    (bench.record(task).crash_count(), bench.phase(task))
}

#[test]
fn what_may_have_ended_its_worker_counts_towards_the_crash_limit() {
    use CrashLimit::{Max, NeverRestart, Unlimited};
    use Phase::{Failed, Placed, Queued, Running, Waiting};
    let crash = LostReason::ConnectionLost;
    let rows = [
        ((Running, Max(1)), (1, crash), (1, Failed)),
        ((Placed, Max(1)), (1, crash), (1, Failed)),
        (
            (Placed, Max(1)),
            (1, LostReason::HeartbeatLost),
            (1, Failed),
        ),
        ((Placed, Max(5)), (4, crash), (4, Waiting)),
        ((Placed, Max(5)), (5, crash), (5, Failed)),
        ((Placed, Unlimited), (7, crash), (7, Waiting)),
        ((Placed, Max(1)), (3, LostReason::Stopped), (0, Waiting)),
        // The user permits at most one start, and no start was reported.
        ((Placed, NeverRestart), (3, crash), (0, Waiting)),
        ((Queued, NeverRestart), (3, crash), (0, Waiting)),
        // The first loss may be chance, but the second one counts.
        ((Queued, Max(1)), (1, crash), (0, Waiting)),
        ((Queued, Max(1)), (2, crash), (1, Failed)),
        ((Queued, Max(5)), (5, crash), (4, Waiting)),
        ((Queued, Max(5)), (6, crash), (5, Failed)),
        (
            (Queued, Max(1)),
            (3, LostReason::TimeLimitReached),
            (0, Waiting),
        ),
    ];
    for (task, losses, expected) in rows {
        for with_restarts in [false, true] {
            let found = lose_workers(task, losses, with_restarts);
            assert_eq!(found, expected, "{task:?} {losses:?} {with_restarts}");
        }
    }
}

#[test]
fn a_loss_before_the_start_was_reported_is_an_attempt() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(tasks_with(1, |task| task.crash_limit = CrashLimit::Max(2)));
    let sent = bench.now.wall;
    bench.skip(Duration::from_secs(2));
    bench.leave(worker, LostReason::ConnectionLost);
    let submit = &bench.state.jobs()[&job].submits[0];
    let attempt = &submit.tasks.attempts(0)[0];
    assert_eq!((attempt.instance, attempt.worker), (InstanceId(0), worker));
    assert_eq!(attempt.end.at.minus(attempt.end.run), sent);
    let other = bench.worker(1);
    let sent = bench.now.wall;
    bench.leave(other, LostReason::ConnectionLost);
    let record = bench.record(key(job, 0));
    assert_eq!(
        (record.phase(), record.started()),
        (Phase::Failed, Some(sent))
    );
}
