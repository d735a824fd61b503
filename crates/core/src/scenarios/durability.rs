//! Changes must be committed before a peer is notified of them.

use std::time::Duration;

use super::bench::*;
use crate::id::{JobId, TaskKey, WorkerId};
use crate::server_state::{Command, Effect, Input, WorkerCommand};
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
    assert_eq!(bench.has(worker), [(1, 0)], "no client has received the id");
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
        task.retry.delay = Duration::ZERO;
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

/// Starts all tasks of a job that were sent to this worker.
fn start_all(bench: &mut Bench, worker: WorkerId, job: JobId) {
    for (of, task) in bench.has(worker) {
        if of == job.0 {
            bench.start(worker, key(job, task));
        }
    }
}

#[test]
fn a_worker_whose_tasks_were_late_for_the_disk_has_room_for_more_of_their_kind() {
    let mut bench = Bench::new();
    let first = bench.worker(8);
    let long = bench.submit(tasks(1));
    start_all(&mut bench, first, long);
    let second = bench.worker(8);
    let long = bench.submit(tasks(1));
    for worker in [first, second] {
        start_all(&mut bench, worker, long);
    }
    bench.slow_disk();
    bench.submit_unanswered(tasks(2));
    bench.wait(Duration::from_secs(2));
    let released = bench.commit();
    assert!(asked_back(&released, first).is_empty());
    bench.fast_disk();
    for worker in [first, second] {
        start_all(&mut bench, worker, JobId(3));
    }
    bench.wait(Duration::from_secs(3));
    bench.submit(tasks(100));
    let has = |worker| bench.has(worker).len();
    assert!(has(first) >= 8 && has(second) >= 8, "a worker idles");
}

#[test]
fn a_kind_that_did_not_start_in_time_and_does_after_all_is_sent_again() {
    let mut bench = Bench::new();
    let worker = bench.worker(8);
    let long = bench.submit(tasks(1));
    start_all(&mut bench, worker, long);
    // Tasks are retracted only if another worker can take them.
    let other = bench.worker(1);
    let job = bench.submit(tasks(3));
    start_all(&mut bench, other, job);
    let asked = asked_back(&bench.wait(Duration::from_secs(2)), worker);
    let is_stuck = |bench: &Bench| bench.state.worker(worker).expect("is there").is_any_stuck();
    assert!(!is_stuck(&bench), "they may hang while they are started");
    bench.give_back(worker, asked[0]);
    assert!(is_stuck(&bench), "it was not started for two seconds");
    start_all(&mut bench, worker, job);
    assert!(!is_stuck(&bench));
}

#[test]
fn a_task_that_hangs_while_it_is_started_keeps_its_kind_from_no_free_cpu() {
    let (mut bench, worker) = Bench::with_worker(3);
    let long = bench.submit(tasks(1));
    start_all(&mut bench, worker, long);
    let hanging = bench.submit(tasks(1));
    let effects = bench.wait(Duration::from_secs(2));
    assert_eq!(asked_back(&effects, worker), [key(hanging, 0)]);
    let next = bench.submit(tasks(1));
    assert!(bench.has(worker).contains(&(next.0, 0)));
}

#[test]
fn a_chain_whose_head_waits_for_the_disk_comes_behind_it_and_goes_on_without() {
    const LINKS: u32 = 60;
    let mut bench = Bench::new();
    bench.run_for(Duration::from_millis(1));
    let worker = bench.worker(1);
    let other = bench.worker(1);
    // Two tasks that end on two workers, a task that joins them, and a chain that follows it.
    let links: Vec<(u32, Vec<u32>)> = (3..3 + LINKS).map(|id| (id, vec![id - 1])).collect();
    let mut graph_tasks: Vec<(u32, &[u32])> = vec![(0, &[]), (1, &[]), (2, &[0, 1])];
    graph_tasks.extend(links.iter().map(|(id, deps)| (*id, &deps[..])));
    let job = bench.submit(graph(&graph_tasks));
    // These tasks are for the worker that does not get the join, so that some of its ends are
    // always uncommitted.
    let (_, chain) = graph_tasks.split_at(3);
    let chain: Vec<(u32, &[u32])> = std::iter::once((2, &[][..]))
        .chain(chain.iter().copied())
        .collect();
    let elsewhere = bench.submit(graph(&chain));
    bench.slow_disk();
    for id in [worker, other] {
        let (_, task) = bench.has(id)[0];
        bench.finish(id, key(job, task));
    }
    let has_join = |bench: &Bench| [worker, other].map(|id| bench.has(id) == [(job.0, 2)]);
    assert_eq!(has_join(&bench), [false, false]);
    let behind = [worker, other].map(|id| bench.has_behind(id));
    assert!(behind.concat().iter().all(|(of, _)| *of != job.0));
    bench.commit();
    let (here, there) = match has_join(&bench) {
        [true, false] => (worker, other),
        is_sent => {
            assert_eq!(is_sent, [false, true]);
            (other, worker)
        }
    };
    assert!(!bench.has_behind(here).is_empty());
    // There are no further commits, and every task ends on the worker where it began.
    for task in 2..3 + LINKS {
        assert_eq!(bench.has(there), [(elsewhere.0, task)]);
        bench.finish(there, key(elsewhere, task));
        assert_eq!(bench.has(here), [(job.0, task)]);
        bench.finish(here, key(job, task));
    }
}

#[test]
fn what_waits_for_the_disk_since_a_moment_ago_is_not_taken_for_sent() {
    let mut bench = Bench::new();
    let workers = [bench.worker(8), bench.worker(8)];
    for _ in workers {
        let long = bench.submit(tasks(1));
        for worker in workers {
            start_all(&mut bench, worker, long);
        }
    }
    bench.slow_disk();
    // The search for stuck tasks is due in a separate round, right after the one that dispatches
    // these tasks.
    bench.skip(Duration::from_millis(249));
    bench.submit_unanswered(tasks(2));
    bench.skip(Duration::from_millis(2));
    bench.step(Input::Timer);
    bench.wait(Duration::from_secs(2));
    let released = bench.commit();
    for worker in workers {
        assert!(asked_back(&released, worker).is_empty(), "{released:?}");
    }
}
