//! Workers with broken connections, silent workers, and reconnecting workers.

use std::time::Duration;

use super::bench::*;
use crate::id::{InstanceId, JobId, TaskKey, WorkerId};
use crate::outcome::{LostReason, Outcome};
use crate::server_state::{Effect, Input, LinkEnd, WorkerCommand, WorkerMessage};
use crate::task::Phase;
use crate::worker_config::OnServerLost;

const TASK: TaskKey = key(JobId(1), 0);
/// If a timer fires this late, the server was suspended.
const STALL: Duration = Duration::from_millis(500);
/// The time from the suspicion to the loss of a silent worker.
const DOUBT: Duration = Duration::from_secs(2);

#[test]
fn a_running_task_goes_on_when_its_worker_comes_back() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(tasks(1));
    bench.start(worker, TASK);
    bench.cut(worker);
    assert_eq!(bench.phase(TASK), Phase::Running);
    let effects = bench.come_back(worker);
    assert_eq!(registered(&effects), Some((worker, true)));
    assert_eq!(bench.phase(TASK), Phase::Running);
    bench.finish(worker, TASK);
    assert_eq!(bench.phase(TASK), Phase::Finished);
    assert_eq!(bench.instance(TASK), 0);
}

#[test]
fn what_had_not_started_is_sent_again_with_the_same_number() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(tasks(1));
    bench.cut(worker);
    bench.come_back(worker);
    assert_eq!(bench.has(worker), [(1, 0)]);
    assert_eq!(bench.instance(TASK), 0, "it never ran");
}

#[test]
fn nothing_is_sent_to_a_worker_without_a_connection() {
    let (mut bench, worker) = Bench::with_worker(4);
    bench.cut(worker);
    bench.submit(tasks(2));
    assert_eq!(bench.has(worker), []);
    bench.come_back(worker);
    assert_eq!(bench.has(worker), [(1, 0), (1, 1)]);
}

#[test]
fn a_worker_that_does_not_come_back_is_lost_after_the_silence_limit() {
    let mut bench = Bench::new();
    let worker = bench.mortal(1);
    bench.submit(tasks(1));
    bench.start(worker, TASK);
    bench.cut(worker);
    bench.wait(SILENCE_MAX - Duration::from_millis(1));
    assert!(bench.knows(worker));
    let effects = bench.wait(Duration::from_millis(1));
    assert_eq!(lost(&effects, worker), Some(LostReason::ConnectionLost));
    assert_eq!(bench.phase(TASK), Phase::Waiting);
    assert_eq!(bench.record(TASK).crash_count(), 1);
}

#[test]
fn a_worker_that_closed_its_connection_itself_is_waited_for_less_long() {
    let mut bench = Bench::new();
    let worker = bench.mortal(1);
    bench.apply(Input::WorkerGone(worker, LinkEnd::Closed));
    bench.wait(HEARTBEAT / 2 - Duration::from_millis(1));
    assert!(bench.knows(worker));
    let effects = bench.wait(Duration::from_millis(1));
    assert_eq!(lost(&effects, worker), Some(LostReason::ConnectionLost));
}

#[test]
fn workers_that_come_back_one_after_another_keep_what_they_have() {
    let mut bench = Bench::new();
    let workers: Vec<WorkerId> = (0..20).map(|_| bench.mortal(1)).collect();
    for worker in &workers {
        bench.apply(Input::WorkerGone(*worker, LinkEnd::Closed));
    }
    // The last worker arrives long after the time limit of a single one.
    for worker in workers {
        bench.wait(HEARTBEAT / 16);
        let effects = bench.come_back(worker);
        assert_eq!(registered(&effects), Some((worker, true)));
    }
}

#[test]
fn workers_that_are_still_missing_some_time_after_the_last_return_are_lost() {
    let mut bench = Bench::new();
    let [first, second, third] = [(); 3].map(|()| bench.mortal(1));
    for worker in [first, second, third] {
        bench.cut(worker);
    }
    bench.wait(SILENCE_MAX - Duration::from_millis(300));
    bench.come_back(first);
    bench.wait(Duration::from_millis(900));
    let effects = bench.come_back(second);
    assert_eq!(registered(&effects), Some((second, true)));
    bench.wait(Duration::from_millis(4_999));
    assert!(bench.knows(third));
    let effects = bench.wait(Duration::from_millis(1));
    assert_eq!(lost(&effects, third), Some(LostReason::ConnectionLost));
}

#[test]
fn a_worker_that_comes_and_goes_holds_nobody_up_for_more_than_a_minute() {
    let mut bench = Bench::new();
    let (gone, restless) = (bench.mortal(1), bench.mortal(1));
    bench.apply(Input::WorkerGone(gone, LinkEnd::Closed));
    let step = HEARTBEAT / 16;
    let mut waited = Duration::ZERO;
    while waited + step < Duration::from_secs(60) {
        bench.wait(step);
        waited += step;
        assert!(bench.knows(gone), "after {waited:?}");
        bench.cut(restless);
        bench.come_back(restless);
    }
    let effects = bench.wait(step);
    assert_eq!(lost(&effects, gone), Some(LostReason::ConnectionLost));
}

#[test]
fn a_worker_that_comes_back_too_late_is_a_new_one() {
    let mut bench = Bench::new();
    let worker = bench.mortal(1);
    bench.submit(tasks(1));
    bench.start(worker, TASK);
    bench.cut(worker);
    bench.wait(SILENCE_MAX);
    let effects = bench.come_back(worker);
    let (new, reattached) = registered(&effects).expect("it is registered");
    assert!(!reattached && new != worker, "what it has is void");
    assert_eq!(bench.instance(TASK), 1, "and runs again");
    assert_eq!(bench.phase(TASK), Phase::Placed);
}

#[test]
fn a_worker_that_does_not_reconnect_is_lost_with_its_connection() {
    let mut bench = Bench::new();
    let worker = bench.worker_with(1, |config| config.on_server_lost = OnServerLost::Stop);
    bench.submit(tasks(1));
    bench.start(worker, TASK);
    let effects = bench.cut(worker);
    assert_eq!(lost(&effects, worker), Some(LostReason::ConnectionLost));
    assert_eq!(bench.phase(TASK), Phase::Waiting);
}

#[test]
fn a_silent_worker_is_lost_and_its_connection_closed() {
    let mut bench = Bench::new();
    let worker = bench.mortal(1);
    let effects = bench.wait(SILENCE_MAX);
    assert_eq!(
        lost(&effects, worker),
        None,
        "what it sent may wait to be read"
    );
    let effects = bench.wait(DOUBT);
    assert_eq!(lost(&effects, worker), Some(LostReason::HeartbeatLost));
    let is_drop = |effect: &Effect| matches!(effect, Effect::DropWorker(id) if *id == worker);
    assert!(effects.iter().any(is_drop), "{effects:?}");
    assert_eq!(bench.state.last_lost(), Some(worker));
}

#[test]
fn a_heartbeat_is_answered_and_begins_the_silence_limit_again() {
    let mut bench = Bench::new();
    let worker = bench.mortal(1);
    for _ in 0..3 {
        bench.wait(SILENCE_MAX - Duration::from_millis(1));
        let effects = bench.heartbeat(worker);
        let is_ping = |command: &&WorkerCommand| matches!(command, WorkerCommand::Ping(_));
        assert!(told(&effects, worker).iter().any(is_ping));
    }
    assert!(bench.knows(worker));
}

#[test]
fn a_server_that_stood_still_blames_no_worker() {
    let mut bench = Bench::new();
    let worker = bench.mortal(1);
    bench.skip(SILENCE_MAX * 5);
    let effects = bench.wait(Duration::ZERO);
    assert_eq!(lost(&effects, worker), None);
    let effects = bench.wait(SILENCE_MAX + DOUBT);
    assert_eq!(lost(&effects, worker), Some(LostReason::HeartbeatLost));
}

/// The timer of the server is late by a short or a long time. Messages that a worker has sent in
/// the meantime are read a moment later.
#[test]
fn a_stop_of_the_server_of_any_length_costs_no_worker() {
    for late in (0..1_000).step_by(10).map(Duration::from_millis) {
        let mut bench = Bench::new();
        let worker = bench.mortal(1);
        bench.skip(SILENCE_MAX + late);
        let mut effects = bench.wait(Duration::ZERO);
        // The worker's remaining time is used up by further suspensions.
        for _ in 0..5 {
            let due = bench.state.next_deadline().expect("it is connected");
            bench.skip(due.since(bench.now.mono) + late.max(Duration::from_millis(50)));
            effects.extend(bench.wait(Duration::ZERO));
        }
        effects.extend(bench.heartbeat(worker));
        assert_eq!(lost(&effects, worker), None, "{late:?}");
    }
}

#[test]
fn a_server_that_is_always_late_loses_workers_that_are_gone() {
    for late in [60, 600].map(Duration::from_millis) {
        let mut bench = Bench::new();
        let (silent, away) = (bench.mortal(1), bench.mortal(1));
        bench.cut(away);
        for _ in 0..40 {
            let Some(due) = bench.state.next_deadline() else {
                break;
            };
            bench.skip(due.since(bench.now.mono) + late);
            bench.wait(Duration::ZERO);
        }
        assert!(!bench.knows(silent) && !bench.knows(away), "{late:?}");
    }
}

#[test]
fn a_sign_of_life_that_waits_for_its_turn_was_in_time() {
    let mut bench = Bench::new();
    let worker = bench.mortal(1);
    let heard = bench.now.mono;
    bench.skip(SILENCE_MAX);
    let effects = bench.step(Input::TimerBehind(heard));
    assert_eq!(lost(&effects, worker), None);
    bench.step(Input::TimerBehind(bench.now.mono));
    bench.skip(DOUBT);
    let effects = bench.step(Input::TimerBehind(bench.now.mono));
    assert_eq!(lost(&effects, worker), Some(LostReason::HeartbeatLost));
}

#[test]
fn nobody_is_lost_while_the_store_takes_nothing() {
    let mut bench = Bench::new();
    let (silent, away) = (bench.mortal(1), bench.mortal(1));
    bench.step(Input::WorkerGone(away, LinkEnd::Broken));
    for _ in 0..3 {
        bench.skip(SILENCE_MAX * 2);
        let effects = bench.step(Input::TimerHeld);
        assert_eq!(lost(&effects, silent), None);
        assert_eq!(lost(&effects, away), None);
        let next = bench.state.next_deadline();
        assert!(
            next.is_none_or(|next| next > bench.now.mono),
            "it does not spin"
        );
    }
    let effects = bench.wait(SILENCE_MAX + DOUBT);
    assert_eq!(lost(&effects, silent), Some(LostReason::HeartbeatLost));
}

/// Returns the number of these workers that are lost in one step.
fn lost_in_step(bench: &mut Bench, workers: &[WorkerId]) -> usize {
    let effects = bench.step(Input::Timer);
    let is_lost = |worker: &&WorkerId| lost(&effects, **worker) == Some(LostReason::HeartbeatLost);
    workers.iter().filter(is_lost).count()
}

#[test]
fn many_silent_workers_are_lost_in_steps() {
    let mut bench = Bench::new();
    bench.state.limit_portions(4);
    let workers: Vec<WorkerId> = (0..6).map(|_| bench.mortal(1)).collect();
    bench.submit(tasks(6));
    bench.wait(SILENCE_MAX);
    bench.skip(DOUBT);
    let mut steps = Vec::new();
    while steps.iter().sum::<usize>() < workers.len() {
        steps.push(lost_in_step(&mut bench, &workers));
        assert!(!steps.ends_with(&[0]), "{steps:?}");
        // The last workers are far beyond their limit, but the server is not at fault.
        bench.skip(Duration::from_millis(49));
    }
    assert!(steps.len() > 1, "{steps:?}");
}

#[test]
fn a_server_that_stood_still_between_two_steps_blames_no_more_workers() {
    let mut bench = Bench::new();
    bench.state.limit_portions(4);
    let workers: Vec<WorkerId> = (0..6).map(|_| bench.mortal(1)).collect();
    bench.submit(tasks(6));
    bench.wait(SILENCE_MAX);
    bench.skip(DOUBT);
    let first = lost_in_step(&mut bench, &workers);
    assert!(first > 0 && first < workers.len(), "{first}");
    bench.skip(STALL);
    bench.wait(Duration::ZERO);
    let left = workers.iter().filter(|worker| bench.knows(**worker));
    assert_eq!(left.count(), workers.len() - first);
}

#[test]
fn with_a_worker_all_that_it_has_is_counted_as_work() {
    let (mut bench, worker) = Bench::with_worker(3);
    bench.submit(tasks(3));
    let gone = Input::WorkerGone(worker, LinkEnd::Broken);
    assert_eq!(bench.state.rows_of(&gone), 4);
    let bye = WorkerMessage::Goodbye(LostReason::Stopped);
    let bye = Input::WorkerMessage(worker, bye);
    assert_eq!(bench.state.rows_of(&bye), 4);
    assert_eq!(bench.state.rows_of(&Input::Timer), 1);
}

#[test]
fn what_ended_while_the_connection_was_gone_counts_once() {
    let (mut bench, worker) = Bench::with_worker(2);
    let job = bench.submit(tasks(2));
    for task in 0..2 {
        bench.start(worker, key(job, task));
    }
    bench.cut(worker);
    let ends = bench.end_report(worker, key(job, 0), Outcome::Finished);
    let mut reattach = bench.reattach(worker);
    reattach.report.ended = ends.ended.clone();
    let effects = bench.come_back_with(worker, reattach);
    assert_eq!(bench.phase(key(job, 0)), Phase::Finished);
    assert_eq!(bench.phase(key(job, 1)), Phase::Running);
    assert!(killed(&effects, worker).is_empty());
    let stale = bench.state.ignored().stale_rows;
    bench.report(worker, ends);
    assert_eq!(bench.state.ignored().stale_rows, stale + 1, "said twice");
}

#[test]
fn what_was_canceled_meanwhile_is_killed_when_its_worker_comes_back() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(tasks(1));
    bench.start(worker, TASK);
    bench.cut(worker);
    bench.cancel(job);
    let effects = bench.come_back(worker);
    assert_eq!(killed(&effects, worker), [(TASK, InstanceId(0))]);
    assert_eq!(bench.phase(TASK), Phase::Canceled);
}

#[test]
fn a_worker_of_another_server_is_a_new_one() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(tasks(1));
    bench.start(worker, TASK);
    let mut reattach = bench.reattach(worker);
    reattach.server_uid = "another".into();
    let effects = bench.come_back_with(worker, reattach);
    let (new, reattached) = registered(&effects).expect("it is registered");
    assert!(!reattached && new != worker);
    assert_eq!(bench.phase(TASK), Phase::Running, "elsewhere, as before");
}

#[test]
fn who_does_not_know_the_secret_of_a_worker_is_a_new_one() {
    const SECRET: Option<[u8; 32]> = Some([1; 32]);
    for (known, shown, is_it) in [
        (SECRET, SECRET, true),
        (SECRET, Some([2; 32]), false),
        (SECRET, None, false),
        // The worker was registered by an earlier release of the worker or the server.
        (None, None, true),
        (None, SECRET, true),
    ] {
        let mut bench = Bench::new();
        let worker = bench.worker_with(1, |config| config.return_digest = known);
        bench.submit(tasks(1));
        bench.start(worker, TASK);
        let mut reattach = bench.reattach(worker);
        reattach.number = u64::MAX;
        let effects = bench.come_back_as(worker, reattach, |config| config.return_digest = shown);
        let (new, reattached) = registered(&effects).expect("it is registered");
        assert_eq!((reattached, new == worker), (is_it, is_it), "{shown:?}");
        assert_eq!(bench.phase(TASK), Phase::Running);
        if !is_it {
            // A rejected number does not delay the worker that owns it.
            let effects = bench.come_back(worker);
            assert_eq!(registered(&effects), Some((worker, true)), "{shown:?}");
        }
    }
}

#[test]
fn an_older_registration_does_not_replace_a_newer_one() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(tasks(1));
    bench.start(worker, TASK);
    let overtaken = bench.reattach(worker);
    bench.come_back(worker);
    assert!(bench.state.is_late(&overtaken));
    let effects = bench.come_back_with(worker, overtaken);
    assert_eq!(registered(&effects), None);
    assert_eq!(bench.state.ignored().late_registrations, 1);
    assert_eq!(bench.phase(TASK), Phase::Running);
}

#[test]
fn a_worker_that_is_away_is_asked_for_nothing_back() {
    let mut bench = Bench::new();
    let worker = bench.worker(1);
    bench.submit(tasks(8));
    let queued = bench.has(worker).len();
    assert!(queued > 1, "something was sent ahead");
    bench.cut(worker);
    let other = bench.worker(8);
    let effects = bench.wait(Duration::from_secs(1));
    assert!(asked_back(&effects, worker).is_empty());
    assert_eq!(bench.has(other).len(), 8 - queued);
}

#[test]
fn messages_of_workers_that_are_gone_are_counted_and_change_nothing() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(tasks(1));
    bench.start(worker, TASK);
    let late = bench.end_report(worker, TASK, Outcome::Finished);
    bench.leave(worker, LostReason::Stopped);
    let effects = bench.say(worker, WorkerMessage::Report(late));
    assert!(effects.is_empty(), "{effects:?}");
    assert_eq!(bench.state.ignored().unknown_workers, 1);
    assert_eq!(bench.phase(TASK), Phase::Waiting);
}
