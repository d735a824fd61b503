//! Changes have to be on disk before a peer hears of them.

use super::bench::*;
use crate::id::{JobId, TaskKey, WorkerId};
use crate::server_state::{Command, Effect, WorkerCommand};
use crate::task::Phase;

const TASK: TaskKey = key(JobId(1), 0);

fn is_acknowledged(effects: &[Effect], worker: WorkerId) -> bool {
    let is_it = |command: &&WorkerCommand| matches!(command, WorkerCommand::Acknowledge(_));
    told(effects, worker).iter().any(is_it)
}

#[test]
fn an_acknowledgement_waits_for_the_commit_of_what_it_acknowledges() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(tasks(1));
    bench.start(worker, TASK);
    bench.slow_disk();
    let effects = bench.finish(worker, TASK);
    assert!(!is_acknowledged(&effects, worker), "a crash would lose it");
    assert!(is_acknowledged(&bench.commit(), worker));
}

#[test]
fn an_answer_waits_for_the_commit_of_what_it_promises() {
    let mut bench = Bench::new();
    bench.slow_disk();
    let effects = bench.request(Command::Submit(Box::new(tasks(1))));
    assert!(effects.is_empty(), "{effects:?}");
    let effects = bench.commit();
    assert!(matches!(effects[..], [Effect::Reply(..)]), "{effects:?}");
}

#[test]
fn tasks_go_out_behind_the_commit_of_their_submit() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.slow_disk();
    bench.submit_unanswered(tasks(1));
    assert_eq!(bench.has(worker), [], "a crash would undo the submit");
    bench.commit();
    assert_eq!(bench.has(worker), [(1, 0)]);
}

#[test]
fn what_a_crash_undid_never_happened() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.slow_disk();
    bench.submit_unanswered(tasks(1));
    bench.restart();
    assert!(bench.state.jobs().is_empty());
    bench.come_back(worker);
    bench.submit_unanswered(tasks(1));
    bench.commit();
    assert_eq!(bench.has(worker), [(1, 0)], "nobody was told of the id");
}

#[test]
fn an_end_that_was_not_acknowledged_is_said_again_and_counts_once() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(tasks(1));
    bench.start(worker, TASK);
    bench.slow_disk();
    let ends = bench.end_report(worker, TASK, crate::outcome::Outcome::Finished);
    bench.report(worker, ends.clone());
    bench.restart();
    assert_eq!(bench.phase(TASK), Phase::Running, "it was not stored");
    let mut reattach = bench.reattach(worker);
    reattach.report.ended = ends.ended;
    bench.come_back_with(worker, reattach);
    assert_eq!(bench.phase(TASK), Phase::Finished);
    assert_eq!(bench.instance(TASK), 0);
}

#[test]
fn starts_and_ends_that_nobody_waits_for_keep_no_message_to_a_worker_waiting() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(tasks(60));
    bench.slow_disk();
    let before = bench.has(worker).len();
    bench.start(worker, TASK);
    bench.finish(worker, TASK);
    assert_eq!(bench.has(worker).len(), before, "the next one is sent");
}

#[test]
fn what_depends_on_another_job_goes_out_behind_the_commit_of_its_end() {
    let (mut bench, worker) = Bench::with_worker(1);
    let job = bench.submit(tasks(1));
    let next = bench.submit(after(job, Waits::ForJob, tasks(1)));
    bench.slow_disk();
    bench.finish(worker, key(job, 0));
    assert_eq!(bench.has(worker), [], "the job would have no end");
    bench.commit();
    assert_eq!(bench.has(worker), [(next.0, 0)]);
}

#[test]
fn the_next_attempt_goes_out_behind_the_commit_of_the_last() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.submit(tasks_with(1, |task| {
        task.retry.limit = 1;
        task.retry.delay = std::time::Duration::ZERO;
    }));
    bench.slow_disk();
    bench.fail(worker, TASK);
    assert_eq!(bench.has(worker), []);
    bench.commit();
    assert_eq!(bench.has(worker), [(1, 0)]);
}

#[test]
fn messages_leave_in_the_order_in_which_they_were_decided() {
    let (mut bench, worker) = Bench::with_worker(1);
    bench.slow_disk();
    bench.submit_unanswered(tasks(1));
    bench.cancel(JobId(1));
    let effects = bench.commit();
    let is_command = |command: &&&WorkerCommand| {
        matches!(
            command,
            WorkerCommand::Assign { .. } | WorkerCommand::Kill(_)
        )
    };
    let commands = told(&effects, worker);
    let order: Vec<bool> = commands
        .iter()
        .filter(is_command)
        .map(|command| matches!(command, WorkerCommand::Kill(_)))
        .collect();
    assert_eq!(order, [false, true], "sent, then killed");
}
