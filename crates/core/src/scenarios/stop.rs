//! Stopping and draining workers, and stopping the server.

use super::bench::*;
use crate::id::{JobId, TaskKey};
use crate::outcome::LostReason;
use crate::range::IdArray;
use crate::selector::Selector;
use crate::server_state::{
    ChangeKind, Command, Effect, Input, LinkEnd, Reply, StopResult, WorkerCommand, WorkerMessage,
};
use crate::task::Phase;
use crate::worker_config::OnServerLost;

const TASK: TaskKey = key(JobId(1), 0);

fn is_stop(command: &&WorkerCommand) -> bool {
    matches!(command, WorkerCommand::Stop | WorkerCommand::StopDrained)
}

#[test]
fn a_worker_that_was_told_to_stop_gets_nothing_more() {
    let (mut bench, worker) = Bench::with_worker(1);
    let effects = bench.request(Command::StopWorkers(this(worker)));
    assert!(told(&effects, worker).iter().any(is_stop));
    bench.submit(tasks(1));
    assert_eq!(bench.has(worker), []);
}

#[test]
fn a_worker_that_goes_when_it_was_told_to_was_stopped_however_it_goes() {
    let mut bench = Bench::new();
    for how in [LinkEnd::Closed, LinkEnd::Broken] {
        let worker = bench.worker(1);
        bench.request(Command::StopWorkers(this(worker)));
        let effects = bench.apply(Input::WorkerGone(worker, how));
        assert_eq!(lost(&effects, worker), Some(LostReason::Stopped), "{how:?}");
    }
    assert_eq!(bench.state.last_lost(), None);
    assert_eq!(bench.state.ended_counts()[&LostReason::Stopped], 2);
}

#[test]
fn workers_that_do_not_exist_are_named_in_the_answer() {
    let (mut bench, worker) = Bench::with_worker(1);
    let both = Selector::Ids(IdArray::consecutive(worker.0, 2).expect("valid"));
    let Reply::Workers(found) = reply(&bench.request(Command::StopWorkers(both.clone()))) else {
        panic!("about workers");
    };
    assert_eq!(found.rows, [(worker, StopResult::Stopped)]);
    assert!(found.not_found.iter().eq([worker.0 + 1]));
    let Reply::Workers(found) = reply(&bench.request(Command::StopWorkers(both))) else {
        panic!("about workers");
    };
    assert_eq!(found.rows, [(worker, StopResult::AlreadyStopped)]);
}

#[test]
fn a_draining_worker_gives_back_what_it_has_not_started_and_stops_when_the_rest_has_ended() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(tasks(2));
    bench.start(worker, TASK);
    let effects = bench.request(Command::DrainWorkers(this(worker)));
    let is_stored = |change: &ChangeKind| matches!(change, ChangeKind::WorkerDraining(_));
    assert!(is_stored_at_once(&effects, is_stored));
    assert_eq!(asked_back(&effects, worker), [key(job, 1)]);
    assert!(!told(&effects, worker).iter().any(is_stop), "a task runs");
    bench.give_back(worker, key(job, 1));
    assert_eq!(bench.phase(key(job, 1)), Phase::Waiting, "elsewhere");
    let effects = bench.finish(worker, TASK);
    assert!(told(&effects, worker).iter().any(is_stop));
}

#[test]
fn an_idle_worker_that_is_to_drain_stops_at_once() {
    let (mut bench, worker) = Bench::with_worker(1);
    let effects = bench.request(Command::DrainWorkers(this(worker)));
    let Reply::Workers(found) = reply(&effects) else {
        panic!("about workers");
    };
    assert_eq!(found.rows, [(worker, StopResult::Draining)]);
    assert!(told(&effects, worker).iter().any(is_stop));
}

#[test]
fn a_draining_worker_that_is_away_is_stopped_when_it_is_back() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(tasks(1));
    bench.start(worker, TASK);
    bench.cut(worker);
    let effects = bench.request(Command::DrainWorkers(this(worker)));
    assert!(told(&effects, worker).is_empty(), "it would not hear it");
    let effects = bench.come_back(worker);
    assert!(!told(&effects, worker).iter().any(is_stop), "a task runs");
    let effects = bench.finish(worker, TASK);
    assert!(told(&effects, worker).iter().any(is_stop));
}

#[test]
fn a_worker_that_missed_the_word_is_told_again_that_it_stops() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(tasks(1));
    bench.start(worker, TASK);
    bench.request(Command::StopWorkers(this(worker)));
    let effects = bench.come_back(worker);
    assert!(told(&effects, worker).iter().any(is_stop), "{effects:?}");
}

#[test]
fn all_workers_means_those_that_are_there() {
    let mut bench = Bench::new();
    let gone = bench.worker(1);
    bench.leave(gone, LostReason::IdleTimeout);
    let here = bench.worker(1);
    let effects = bench.request(Command::StopWorkers(Selector::All));
    let Reply::Workers(found) = reply(&effects) else {
        panic!("about workers");
    };
    assert_eq!(found.rows, [(here, StopResult::Stopped)]);
}

#[test]
fn a_server_that_ends_hands_out_nothing_and_tells_its_workers() {
    let (mut bench, worker) = Bench::with_worker(1);
    let keep_workers = false;
    let effects = bench.apply(Input::Ending { keep_workers });
    let is_end = |command: &&WorkerCommand| matches!(command, WorkerCommand::ServerEnds);
    assert!(told(&effects, worker).iter().any(is_end));
    bench.submit(tasks(1));
    assert_eq!(bench.has(worker), []);
    let effects = bench.apply(Input::Ended);
    assert_eq!(lost(&effects, worker), Some(LostReason::Stopped));
}

#[test]
fn workers_that_are_kept_wait_for_the_next_server() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(tasks(1));
    bench.start(worker, TASK);
    let keep_workers = true;
    let effects = bench.apply(Input::Ending { keep_workers });
    assert!(told(&effects, worker).is_empty());
    bench.apply(Input::Ended);
    bench.restart();
    bench.come_back(worker);
    bench.finish(worker, TASK);
    assert_eq!(bench.phase(TASK), Phase::Finished);
    assert_eq!(bench.instance(TASK), 0);
}

#[test]
fn a_server_whose_workers_end_with_it_waits_for_none_the_next_time() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(tasks(1));
    bench.start(worker, TASK);
    let keep_workers = false;
    bench.apply(Input::Ending { keep_workers });
    bench.apply(Input::Ended);
    bench.restart();
    assert_eq!(bench.state.awaited_workers(), 0);
    assert_eq!(bench.phase(TASK), Phase::Waiting);
    assert_eq!(bench.record(TASK).crash_count(), 0);
}

#[test]
fn a_worker_says_why_it_goes() {
    let mut bench = Bench::new();
    for reason in [
        LostReason::IdleTimeout,
        LostReason::TimeLimitReached,
        LostReason::AllocationEnded,
    ] {
        let worker = bench.worker_with(1, |c| c.on_server_lost = OnServerLost::Stop);
        let effects = bench.leave(worker, reason);
        assert_eq!(lost(&effects, worker), Some(reason));
        let is_drop = |effect: &Effect| matches!(effect, Effect::DropWorker(id) if *id == worker);
        assert!(effects.iter().any(is_drop));
        assert_eq!(bench.state.ended_counts()[&reason], 1);
    }
}

#[test]
fn a_goodbye_behind_the_end_of_a_worker_changes_nothing() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.leave(worker, LostReason::Stopped);
    let again = bench.say(worker, WorkerMessage::Goodbye(LostReason::ConnectionLost));
    assert!(again.is_empty());
    let gone = bench.apply(Input::WorkerGone(worker, LinkEnd::Closed));
    assert!(gone.is_empty(), "{gone:?}");
    assert_eq!(bench.state.ended_counts().len(), 1);
}
