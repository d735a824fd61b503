//! The server crashes, and the next server starts with the stored state.

use std::time::Duration;

use super::bench::*;
use crate::id::{InstanceId, JobId, TaskKey};
use crate::job::JobState;
use crate::outcome::{LostReason, Outcome};
use crate::server_state::{Command, Input, NoticeKey};
use crate::task::{Phase, TaskState};
use crate::template::NotifyEvent;
use crate::worker_config::OnServerLost;

const TASK: TaskKey = key(JobId(1), 0);

#[test]
fn nothing_of_before_is_handed_out_until_every_worker_is_back() {
    let mut bench = Bench::new();
    let (first, second) = (bench.mortal(1), bench.mortal(1));
    bench.submit(wide(2, 2));
    bench.restart();
    assert_eq!(bench.state.awaited_workers(), 2);
    let large = bench.worker(8);
    assert_eq!(bench.has(large), [], "a worker may have them");
    bench.come_back(first);
    assert_eq!(bench.has(large), []);
    bench.come_back(second);
    assert_eq!(bench.state.awaited_workers(), 0);
    assert_eq!(bench.has(large), [(1, 0), (1, 1)]);
}

#[test]
fn a_cancel_reaches_what_runs_since_before_the_restart() {
    let mut bench = Bench::new();
    let worker = bench.mortal(1);
    let job = bench.submit(tasks(1));
    bench.start(worker, TASK);
    bench.restart();
    bench.come_back(worker);
    let effects = bench.cancel(job);
    assert_eq!(killed(&effects, worker), [(TASK, InstanceId(0))]);
}

#[test]
fn a_worker_that_is_given_up_holds_nothing_back_any_longer() {
    let mut bench = Bench::new();
    let worker = bench.mortal(1);
    bench.submit(tasks(1));
    bench.start(worker, TASK);
    bench.restart();
    let other = bench.worker(1);
    let effects = bench.wait(SILENCE_MAX);
    assert_eq!(lost(&effects, worker), Some(LostReason::ConnectionLost));
    assert_eq!(bench.has(other), [(1, 0)]);
    assert_eq!(bench.instance(TASK), 1);
    assert_eq!(
        bench.record(TASK).crash_count(),
        0,
        "the end of a server is no crash of what ran"
    );
}

#[test]
fn a_worker_that_got_no_answer_from_the_killed_server_registers_again_and_runs_the_tasks() {
    let mut bench = Bench::new();
    let digest = Some([1; 32]);
    let unanswered = bench.worker_with(1, |config| config.return_digest = digest);
    bench.submit(tasks(1));
    bench.restart();
    let stranger = bench.worker_with(1, |config| config.return_digest = Some([2; 32]));
    assert_eq!(bench.has(stranger), [], "the first worker may have it");
    let again = bench.worker_with(8, |config| config.return_digest = digest);
    assert_eq!(bench.state.awaited_workers(), 0);
    assert!(bench.state.workers().get(&unanswered).is_none());
    assert_eq!(bench.has(stranger).len() + bench.has(again).len(), 1);
    assert_eq!(
        bench.instance(TASK),
        1,
        "another worker may have shown the hash"
    );
}

#[test]
fn what_is_submitted_after_a_restart_runs_at_once() {
    let mut bench = Bench::new();
    let gone = bench.mortal(1);
    bench.submit(tasks(1));
    bench.restart();
    let other = bench.worker(1);
    let new = bench.submit(tasks(1));
    assert_eq!(bench.has(other), [(new.0, 0)]);
    assert!(bench.knows(gone));
}

#[test]
fn a_task_that_ran_through_a_restart_or_a_broken_connection_goes_on() {
    for policy in [OnServerLost::Reconnect, OnServerLost::FinishRunning] {
        let mut bench = Bench::new();
        let worker = bench.worker_with(1, |config| config.on_server_lost = policy);
        bench.submit(tasks(1));
        bench.start(worker, TASK);
        bench.restart();
        assert_eq!(bench.phase(TASK), Phase::Running);
        let effects = bench.come_back(worker);
        assert!(killed(&effects, worker).is_empty());
        assert_eq!(lost(&bench.cut(worker), worker), None);
        bench.come_back(worker);
        bench.finish(worker, TASK);
        assert_eq!(bench.instance(TASK), 0);
        assert_eq!(bench.job_state(JobId(1)), JobState::Finished);
    }
}

#[test]
fn a_start_that_was_not_stored_is_adopted_from_the_worker() {
    let (mut bench, worker) = Bench::with_worker(2);
    let job = bench.submit(tasks(2));
    bench.slow_disk();
    bench.start(worker, TASK);
    bench.restart();
    assert_eq!(bench.phase(TASK), Phase::Waiting, "nobody has noted it");
    let mut reattach = bench.reattach(worker);
    reattach.launching = vec![(key(job, 1), InstanceId(0))];
    let effects = bench.come_back_with(worker, reattach);
    assert!(killed(&effects, worker).is_empty(), "{effects:?}");
    assert_eq!(bench.phase(TASK), Phase::Running);
    assert_eq!(bench.phase(key(job, 1)), Phase::Placed);
    assert!(sent(&effects, worker).is_empty(), "it has them");
}

#[test]
fn an_instance_that_nobody_knows_is_killed() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(tasks(1));
    bench.restart();
    let mut reattach = bench.reattach(worker);
    reattach.launching = vec![(TASK, InstanceId(7))];
    let effects = bench.come_back_with(worker, reattach);
    assert_eq!(killed(&effects, worker), [(TASK, InstanceId(7))]);
}

#[test]
fn what_ended_while_there_was_no_server_counts() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(tasks(1));
    bench.start(worker, TASK);
    bench.restart();
    let ends = bench.end_report(worker, TASK, Outcome::ExitCode(3));
    let mut reattach = bench.reattach(worker);
    reattach.report.ended = ends.ended;
    bench.come_back_with(worker, reattach);
    assert_eq!(bench.phase(TASK), Phase::Failed);
}

#[test]
fn a_running_task_that_its_worker_does_not_have_runs_again_as_the_next_instance() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(tasks(1));
    bench.start(worker, TASK);
    bench.restart();
    let mut reattach = bench.reattach(worker);
    reattach.report.started.clear();
    bench.come_back_with(worker, reattach);
    assert_eq!(bench.instance(TASK), 1);
    assert_eq!(bench.phase(TASK), Phase::Placed);
}

#[test]
fn what_is_left_of_a_delay_survives() {
    let mut bench = Bench::new();
    bench.submit(tasks_with(1, |task| {
        task.retry.limit = 5;
        task.retry.delay = Duration::from_secs(60);
    }));
    let worker = bench.worker_with(1, |config| config.on_server_lost = OnServerLost::Stop);
    bench.fail(worker, TASK);
    bench.wait(Duration::from_secs(20));
    bench.leave(worker, LostReason::Stopped);
    bench.restart();
    let worker = bench.worker(1);
    bench.wait(Duration::from_secs(39));
    assert_eq!(bench.has(worker), [], "one second is left");
    bench.wait(Duration::from_secs(1));
    assert_eq!(bench.has(worker), [(1, 0)]);
}

#[test]
fn instance_crashes_retries_and_attempts_survive() {
    let mut bench = Bench::new();
    bench.submit(tasks_with(1, |task| {
        task.retry.limit = 5;
        task.retry.delay = Duration::ZERO;
    }));
    let worker = bench.worker_with(1, |config| config.on_server_lost = OnServerLost::Stop);
    bench.start(worker, TASK);
    bench.leave(worker, LostReason::ConnectionLost);
    let worker = bench.worker_with(1, |config| config.on_server_lost = OnServerLost::Stop);
    bench.fail(worker, TASK);
    bench.fail(worker, TASK);
    let before = bench.record(TASK);
    bench.leave(worker, LostReason::Stopped);
    bench.restart();
    let after = bench.record(TASK);
    assert_eq!(after.crash_count(), before.crash_count());
    assert_eq!(after.retry_count(), 2);
    assert!(after.instance() > before.instance(), "it was sent out");
    let submit = &bench.state.jobs()[&JobId(1)].submits[0];
    assert_eq!(submit.tasks.attempts(0).len(), 3);
}

#[test]
fn the_crash_limit_counts_across_restarts() {
    use crate::template::CrashLimit;
    let mut bench = Bench::new();
    bench.submit(tasks_with(1, |task| task.crash_limit = CrashLimit::Max(2)));
    let worker = bench.worker_with(1, |config| config.on_server_lost = OnServerLost::Stop);
    bench.start(worker, TASK);
    bench.leave(worker, LostReason::ConnectionLost);
    bench.restart();
    let worker = bench.worker_with(1, |config| config.on_server_lost = OnServerLost::Stop);
    bench.start(worker, TASK);
    bench.leave(worker, LostReason::ConnectionLost);
    assert_eq!(bench.phase(TASK), Phase::Failed);
}

#[test]
fn a_task_that_waited_for_its_next_attempt_gets_it_after_a_restart() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(tasks_with(1, |task| task.retry.limit = 1));
    bench.fail(worker, TASK);
    bench.restart();
    bench.come_back(worker);
    bench.wait(Duration::from_secs(1));
    assert_eq!(bench.has(worker), [(1, 0)]);
    bench.fail(worker, TASK);
    assert_eq!(bench.phase(TASK), Phase::Failed, "it had one");
}

#[test]
fn a_job_that_waits_for_another_goes_on_waiting() {
    let (mut bench, worker) = Bench::with_worker(1);
    let first = bench.submit(tasks(1));
    let second = bench.submit(after(first, Waits::ForJob, tasks(1)));
    bench.start(worker, key(first, 0));
    bench.restart();
    bench.come_back(worker);
    assert_eq!(bench.phase(key(second, 0)), Phase::Waiting);
    bench.finish(worker, key(first, 0));
    assert_eq!(bench.has(worker), [(second.0, 0)]);
}

#[test]
fn a_graph_goes_on_where_it_was() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(graph(&[(0, &[]), (1, &[0]), (2, &[1])]));
    bench.finish(worker, key(job, 0));
    bench.start(worker, key(job, 1));
    bench.restart();
    bench.come_back(worker);
    assert_eq!(bench.phase(key(job, 0)), Phase::Finished);
    bench.finish(worker, key(job, 1));
    assert_eq!(bench.has(worker), [(1, 2)]);
}

#[test]
fn canceled_aborted_and_failed_tasks_stay_what_they_are() {
    let (mut bench, worker) = Bench::with_worker(1);
    let graph = bench.submit(graph(&[(0, &[]), (1, &[0])]));
    bench.fail(worker, key(graph, 0));
    let canceled = bench.submit(tasks(3));
    bench.finish(worker, key(canceled, 0));
    bench.cancel(canceled);
    let before = (bench.counts(graph), bench.counts(canceled));
    bench.restart();
    assert_eq!((bench.counts(graph), bench.counts(canceled)), before);
    let reason = bench.state.jobs()[&canceled].cancel_reason.clone();
    assert_eq!(reason.as_deref(), Some("enough"));
    let end = bench.state.jobs()[&graph].submits[0].tasks.outcome(0);
    assert_eq!(end, Some(Outcome::ExitCode(1)));
}

#[test]
fn a_forgotten_job_stays_forgotten_and_its_id_is_not_used_again() {
    let mut bench = Bench::new();
    let job = bench.submit(tasks(1));
    bench.cancel(job);
    let (jobs, states) = (one(job), vec![TaskState::Canceled]);
    bench.request(Command::ForgetJobs { jobs, states });
    bench.restart();
    assert!(bench.state.jobs().is_empty());
    assert_eq!(bench.submit(tasks(1)), JobId(2));
}

#[test]
fn ids_go_on_behind_the_last_job_although_only_an_earlier_one_is_kept() {
    let mut bench = Bench::new();
    let kept = bench.submit(tasks(1));
    let last = bench.submit(tasks(1));
    bench.cancel(last);
    let (jobs, states) = (one(last), vec![TaskState::Canceled]);
    bench.request(Command::ForgetJobs { jobs, states });
    bench.restart();
    assert!(bench.state.jobs().keys().eq([&kept]));
    assert_eq!(bench.submit(tasks(1)), JobId(3));
}

#[test]
fn workers_that_do_not_reconnect_are_not_waited_for() {
    let mut bench = Bench::new();
    let worker = bench.worker_with(1, |config| config.on_server_lost = OnServerLost::Stop);
    bench.submit(tasks(1));
    bench.start(worker, TASK);
    bench.restart();
    assert_eq!(bench.state.awaited_workers(), 0);
    assert!(!bench.knows(worker));
    let other = bench.worker(1);
    assert!(other > worker, "no id is used twice");
    assert_eq!(bench.has(other), [(1, 0)]);
    assert_eq!(bench.instance(TASK), 1);
    assert_eq!(bench.state.hostname(worker), Some("node1"));
}

#[test]
fn a_draining_worker_drains_on() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(tasks(2));
    bench.start(worker, TASK);
    bench.request(Command::DrainWorkers(this(worker)));
    bench.restart();
    bench.come_back(worker);
    bench.submit(tasks(1));
    assert_eq!(bench.has(worker), [(1, 0)], "nothing new");
    let effects = bench.finish(worker, TASK);
    let is_stop = |c: &&crate::server_state::WorkerCommand| {
        matches!(c, crate::server_state::WorkerCommand::StopDrained)
    };
    assert!(told(&effects, worker).iter().any(is_stop), "{effects:?}");
}

#[test]
fn a_notification_of_which_nothing_is_known_is_sent_again_and_one_that_was_sent_is_not() {
    let mut bench = Bench::new();
    let job = bench.submit(notifying(NotifyEvent::End, tasks(1)));
    let first = NoticeKey { job, number: 0 };
    assert_eq!(notices(&bench.cancel(job)), [first]);
    assert_eq!(notices(&bench.restart()), [first]);
    bench.apply(Input::Notified {
        key: first,
        attempts: 1,
        error: None,
    });
    assert!(notices(&bench.restart()).is_empty());
}

#[test]
fn an_open_job_stays_open_and_takes_more() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.open(Some(0));
    bench.submit(into(job, tasks(2)));
    bench.restart();
    bench.come_back(worker);
    bench.submit(into(job, numbered(given(2, 1), tasks(0))));
    bench.fail(worker, key(job, 0));
    assert_eq!(bench.counts(job).aborted, 2, "its limit is known, too");
}

#[test]
fn the_end_of_a_job_is_told_once_whatever_happens_afterwards() {
    use crate::server_state::ChangeKind;
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(tasks(1));
    bench.finish(worker, TASK);
    let effects = bench.restart();
    let is_end =
        |c: &&ChangeKind| matches!(c, ChangeKind::JobCompleted(_) | ChangeKind::JobIdle(_));
    assert!(!changes(&effects).iter().any(is_end), "{effects:?}");
}
