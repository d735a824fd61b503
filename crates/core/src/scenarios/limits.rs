//! Limits on running tasks and on starts.

use std::time::Duration;

use super::bench::*;
use crate::bound::{LimitChange, LimitUse};
use crate::id::{JobId, WorkerId};
use crate::job::SubmitAt;
use crate::outcome::{LostReason, Outcome};
use crate::server_state::{Command, Input, Reply, SubmitRefusal};
use crate::task::{Phase, TaskState};
use crate::template::{ArrayIds, SubmitSpec};
use crate::worker::LinkEnd;

const JOB: JobId = JobId(1);

/// Sets a limit, or removes it if `bound` is empty.
fn set(bench: &mut Bench, name: &str, bound: &str) -> Result<(), String> {
    change(bench, name, bound, false)
}

fn change(bench: &mut Bench, name: &str, bound: &str, is_forced: bool) -> Result<(), String> {
    let effects = bench.request(Command::Limit(LimitChange {
        name: name.into(),
        bound: (!bound.is_empty()).then(|| bound.parse().expect("a limit")),
        is_forced,
    }));
    let Reply::Limit(answer) = reply(&effects) else {
        panic!("the answer to a change of a limit");
    };
    answer.map_err(|refusal| refusal.text.into())
}

fn limited(mut spec: SubmitSpec, uses: &[(&str, u32)]) -> SubmitSpec {
    let uses = uses.iter().map(|(name, amount)| LimitUse {
        name: (*name).into(),
        amount: *amount,
    });
    spec.limits.uses = uses.collect();
    spec
}

fn with_max(mut spec: SubmitSpec, max: u32) -> SubmitSpec {
    spec.limits.max_running = Some(max);
    spec
}

/// Returns the used places of a limit.
fn used(bench: &Bench, name: &str) -> u64 {
    let mut limits = bench.state.task_limits().named_limits();
    limits
        .find(|limit| &*limit.name == name)
        .expect("it exists")
        .used
}

fn why(bench: &Bench, job: JobId) -> Vec<String> {
    bench.state.blocking_limits(SubmitAt { job, number: 0 })
}

/// Returns how many ready tasks wait for a limit, and why.
fn awaited(bench: &Bench, name: &str) -> Option<(u64, String)> {
    let mut limits = bench.state.task_limits().named_limits();
    let limit = limits.find(|limit| &*limit.name == name)?;
    bench.state.awaited_limit(&limit)
}

/// Returns the number of tasks on a worker whose turn it is.
fn placed(bench: &Bench, worker: WorkerId) -> usize {
    bench.has(worker).len()
}

#[test]
fn no_more_tasks_run_than_the_limit_allows_whatever_their_job_or_request() {
    let (mut bench, worker) = Bench::with_worker(8);
    set(&mut bench, "db", "3").expect("valid");
    bench.submit(limited(tasks(2), &[("db", 1)]));
    let other = bench.submit(limited(wide(4, 2), &[("db", 1)]));
    let free = bench.submit(tasks(1));
    let expected = [(1, 0), (1, 1), (other.0, 0), (free.0, 0)];
    assert_eq!(bench.has(worker), expected);
    assert_eq!(
        why(&bench, other),
        ["limit db: 3 of 3 in use by job 1 (2) and job 2 (1)"]
    );
    bench.finish(worker, key(JOB, 0));
    assert_eq!((used(&bench, "db"), placed(&bench, worker)), (3, 4));
    bench.finish_all();
    assert_eq!((used(&bench, "db"), bench.counts(other).finished), (0, 4));
}

#[test]
fn what_waits_for_a_limit_holds_nothing_else_back() {
    let (mut bench, worker) = Bench::with_worker(2);
    set(&mut bench, "db", "1").expect("valid");
    bench.submit(limited(urgent(5, 5), &[("db", 1)]));
    let late = bench.submit(tasks(3));
    assert_eq!(
        bench.has(worker)[..2],
        [(1, 0), (late.0, 0)],
        "lower priority"
    );
    let worker = &bench.state.workers()[&worker];
    assert!(!worker.has_reservations());
}

#[test]
fn amounts_and_several_limits_apply_together() {
    let (mut bench, worker) = Bench::with_worker(9);
    set(&mut bench, "db", "5").expect("valid");
    set(&mut bench, "net", "4").expect("valid");
    bench.submit(limited(tasks(9), &[("db", 2), ("net", 1)]));
    assert_eq!((placed(&bench, worker), used(&bench, "db")), (2, 4));
    let reason = "limit db: 4 of 5 in use by job 1 (4); a task counts 2";
    assert_eq!(why(&bench, JOB), [reason], "one place is left");
    let single = bench.submit(limited(tasks(9), &[("net", 1)]));
    assert_eq!((bench.counts(single).running, used(&bench, "net")), (2, 4));
    bench.finish_all();
    let refused = bench.refused(limited(tasks(1), &[("db", 6)]));
    assert!(matches!(refused, SubmitRefusal::LimitTooSmall { .. }));
    let refused = bench.refused(limited(tasks(1), &[("dbb", 1)]));
    assert!(
        refused.to_string().contains("the limits are db, net"),
        "{refused}"
    );
}

#[test]
fn tasks_that_wait_for_cpus_do_not_wait_for_their_limit() {
    let (mut bench, _) = Bench::with_worker(2);
    set(&mut bench, "db", "3").expect("valid");
    for amount in [1, 2, 1] {
        bench.submit(limited(tasks(2), &[("db", amount)]));
    }
    let reason = "limit db: 2 of 3 in use by job 1 (2); a task counts 2";
    assert_eq!(awaited(&bench, "db"), Some((2, reason.to_owned())));
    bench.finish_all();
    assert_eq!(awaited(&bench, "db"), None);
}

#[test]
fn a_job_has_a_limit_of_its_own_for_all_its_submits() {
    let (mut bench, worker) = Bench::with_worker(9);
    let job = bench.open(None);
    bench.submit(into(job, tasks(3)));
    assert_eq!(placed(&bench, worker), 3);
    bench.submit(with_max(into(job, numbered(given(3, 9), tasks(9))), 5));
    assert_eq!(placed(&bench, worker), 5, "those that run already count");
    assert_eq!(
        why(&bench, job),
        ["limit of the job: 5 of 5 tasks run (--max-running)"]
    );
    bench.finish(worker, key(job, 0));
    assert_eq!(placed(&bench, worker), 5);
    bench.submit(with_max(into(job, numbered(given(20, 1), tasks(1))), 7));
    assert_eq!(placed(&bench, worker), 7);
    bench.close(job);
    bench.finish_all();
    assert_eq!(bench.counts(job).finished, 13);
    resubmit(&mut bench, job, &[TaskState::Finished]);
    let again = bench.state.last_job().expect("submitted again");
    assert_eq!(placed(&bench, worker), 7, "a resubmit keeps the limit");
    bench.cancel(again);
}

#[test]
fn places_are_taken_over_by_tasks_sent_behind_others() {
    let (mut bench, worker) = Bench::with_worker(8);
    set(&mut bench, "db", "2").expect("valid");
    bench.submit(limited(tasks(100), &[("db", 1)]));
    assert_eq!(placed(&bench, worker), 2);
    let behind = bench.has_behind(worker);
    assert!(behind.len() > 20, "{behind:?}");
    bench.start(worker, key(JOB, 0));
    bench.finish(worker, key(JOB, 0));
    assert_eq!((placed(&bench, worker), used(&bench, "db")), (2, 2));
    assert!(!bench.has_behind(worker).is_empty());
    // A more urgent task of the same limit gets the next free place.
    let urgent = bench.submit(limited(urgent(1, 9), &[("db", 1)]));
    set(&mut bench, "db", "3").expect("valid");
    assert_eq!(bench.phase(key(urgent, 0)), Phase::Placed);
    bench.finish_all();
    assert_eq!(bench.counts(JOB).finished, 100);
}

#[test]
fn a_failed_task_passes_its_place_to_the_next_one_that_is_ready() {
    let (mut bench, worker) = Bench::with_worker(8);
    set(&mut bench, "db", "1").expect("valid");
    bench.submit(limited(tasks(40), &[("db", 1)]));
    assert!(!bench.has_behind(worker).is_empty());
    bench.start(worker, key(JOB, 0));
    bench.fail(worker, key(JOB, 0));
    assert_eq!((placed(&bench, worker), used(&bench, "db")), (1, 1));
    bench.finish_all();
    assert_eq!(bench.counts(JOB).finished, 39);
}

#[test]
fn a_lost_worker_keeps_its_places_until_nothing_of_it_can_run() {
    for how in [LinkEnd::Closed, LinkEnd::Broken] {
        let mut bench = Bench::new();
        let (first, second) = (bench.mortal(4), bench.worker(4));
        set(&mut bench, "db", "1").expect("valid");
        bench.submit(limited(tasks(2), &[("db", 1)]));
        bench.start(first, key(JOB, 0));
        bench.apply(Input::WorkerGone(first, how));
        while bench.knows(first) {
            bench.wait(Duration::from_millis(100));
        }
        assert_eq!(
            (used(&bench, "db"), placed(&bench, second)),
            (1, 0),
            "{how:?}"
        );
        let text = why(&bench, JOB);
        assert!(
            text[0].contains("may still run on lost worker 1"),
            "{text:?}"
        );
        bench.wait(Duration::from_millis(1_500));
        assert_eq!(placed(&bench, second), 0, "{how:?}");
        let silence = match how {
            LinkEnd::Closed => Duration::from_secs(1),
            LinkEnd::Broken => SILENCE_MAX,
        };
        bench.wait(silence);
        assert_eq!(placed(&bench, second), 1, "{how:?}");
    }
}

#[test]
fn after_a_restart_nothing_starts_before_all_places_are_known() {
    let (mut bench, first) = Bench::with_worker(1);
    let second = bench.worker(1);
    set(&mut bench, "db", "2").expect("valid");
    bench.submit(limited(tasks(5), &[("db", 1)]));
    bench.start(first, key(JOB, 0));
    assert_eq!((placed(&bench, first), placed(&bench, second)), (1, 1));
    bench.commit();
    bench.restart();
    let new = bench.submit(limited(tasks(1), &[("db", 1)]));
    let third = bench.worker(4);
    bench.come_back(second);
    assert_eq!((placed(&bench, second), placed(&bench, third)), (0, 0));
    let text = why(&bench, new);
    assert!(text[0].contains("restart"), "{text:?}");
    bench.come_back(first);
    assert_eq!(used(&bench, "db"), 2);
    bench.finish_all();
    assert_eq!(
        (bench.counts(JOB).finished, bench.counts(new).finished),
        (5, 1)
    );
}

#[test]
fn a_rate_starts_tasks_one_after_the_other() {
    let (mut bench, worker) = Bench::with_worker(16);
    set(&mut bench, "api", "10/s").expect("valid");
    bench.submit(limited(tasks(100), &[("api", 1)]));
    assert_eq!(bench.has(worker).len(), 1, "the next one waits");
    assert_eq!(why(&bench, JOB), ["limit api: 10/s"]);
    for passed in 1..=5 {
        bench.wait(Duration::from_millis(100));
        assert_eq!(bench.has(worker).len(), 1 + passed);
    }
    for task in 0..6 {
        bench.finish(worker, key(JOB, task));
    }
    // A second's worth of starts may happen at once, and no more.
    bench.skip(Duration::from_secs(60));
    bench.wait(Duration::from_millis(1));
    assert_eq!(bench.has(worker).len(), 10);
    assert_eq!(bench.has_behind(worker), []);
}

#[test]
fn a_multi_node_task_takes_one_place() {
    let mut bench = Bench::new();
    set(&mut bench, "db", "1").expect("valid");
    let workers = [1, 2, 3, 4].map(|_| bench.worker(2));
    let job = bench.submit(limited(gang(2, 2), &[("db", 1)]));
    assert_eq!((used(&bench, "db"), bench.counts(job).running), (1, 1));
    let root = workers
        .into_iter()
        .find(|worker| !bench.has(*worker).is_empty());
    bench.finish(root.expect("it starts"), key(job, 0));
    assert_eq!((used(&bench, "db"), bench.counts(job).running), (1, 1));
}

#[test]
fn a_changed_limit_applies_to_what_waits_and_a_removed_one_to_nothing() {
    let (mut bench, worker) = Bench::with_worker(9);
    set(&mut bench, "db", "1").expect("valid");
    bench.submit(limited(tasks(9), &[("db", 1)]));
    let behind: Vec<_> = bench.has_behind(worker);
    set(&mut bench, "db", "4").expect("valid");
    for (job, task) in behind {
        if bench.has_behind(worker).contains(&(job, task)) {
            bench.give_back(worker, key(JobId(job), task));
        }
    }
    assert_eq!(placed(&bench, worker), 4);
    set(&mut bench, "db", "2").expect("valid");
    for left in [3, 2, 2] {
        let (job, task) = bench.has(worker)[0];
        bench.finish(worker, key(JobId(job), task));
        assert_eq!(placed(&bench, worker), left);
    }
    let refused = set(&mut bench, "db", "").expect_err("tasks wait");
    assert!(refused.contains("6 unfinished tasks of job 1"), "{refused}");
    assert!(set(&mut bench, "dc", "").is_err(), "unknown");
    change(&mut bench, "db", "", true).expect("forced");
    assert_eq!(bench.counts(JOB).waiting, 0);
    bench.commit();
    bench.restart();
    assert_eq!(bench.state.task_limits().bound("db"), None);
}

#[test]
fn places_come_back_whatever_happens_to_a_task() {
    let (mut bench, worker) = Bench::with_worker(8);
    set(&mut bench, "db", "3").expect("valid");
    let job = bench.submit(limited(
        tasks_with(3, |task| task.retry.limit = 1),
        &[("db", 1)],
    ));
    bench.start(worker, key(job, 0));
    bench.fail(worker, key(job, 0));
    bench.wait(Duration::from_secs(60));
    assert_eq!(used(&bench, "db"), 3, "it runs again");
    bench.start(worker, key(job, 1));
    bench.cancel(job);
    assert_eq!(
        used(&bench, "db"),
        3,
        "the worker has not reported their ends"
    );
    for task in 0..3 {
        bench.end(worker, key(job, task), Outcome::Killed);
    }
    assert_eq!(used(&bench, "db"), 0);
    bench.leave(worker, LostReason::Stopped);
}

#[test]
fn queues_that_share_a_limit_need_a_worker_for_its_places_only() {
    let mut bench = Bench::new();
    set(&mut bench, "lic", "1").expect("valid");
    for priority in 0..5 {
        bench.submit(limited(urgent(3, priority), &[("lic", 1)]));
    }
    let needed: u64 = bench.state.needed_counts().map(|(_, count)| count).sum();
    assert_eq!(needed, 1);
}

#[test]
fn a_job_needs_workers_for_as_many_tasks_as_it_may_run_at_once() {
    let mut bench = Bench::new();
    let job = bench.open(None);
    for priority in 0..5 {
        let numbered = numbered(ArrayIds::Next(3), urgent(0, priority));
        bench.submit(with_max(into(job, numbered), 4));
    }
    let counts = bench.state.needed_counts();
    let needed: u64 = counts.map(|(_, count)| count).sum();
    assert_eq!(needed, 4, "in five queues together");
}

#[test]
fn a_task_that_counts_more_than_a_lowered_limit_runs_alone() {
    let (mut bench, worker) = Bench::with_worker(8);
    set(&mut bench, "db", "4").expect("valid");
    bench.submit(limited(tasks(2), &[("db", 4)]));
    set(&mut bench, "db", "2").expect("valid");
    bench.finish(worker, key(JOB, 0));
    assert_eq!((bench.has(worker), used(&bench, "db")), (vec![(1, 1)], 4));
}

#[test]
fn places_that_other_jobs_could_use_are_not_taken_ahead_of_time() {
    let (mut bench, worker) = Bench::with_worker(1);
    set(&mut bench, "db", "4").expect("valid");
    bench.submit(limited(tasks(30), &[("db", 1)]));
    assert_eq!((placed(&bench, worker), used(&bench, "db")), (1, 1));
    let other = bench.worker(1);
    assert_eq!((placed(&bench, other), used(&bench, "db")), (1, 2));
}

#[test]
fn a_new_rate_applies_at_once_and_a_resubmit_needs_its_limits() {
    let (mut bench, worker) = Bench::with_worker(8);
    set(&mut bench, "api", "60/min").expect("valid");
    bench.submit(limited(tasks(1), &[("api", 60)]));
    assert_eq!(placed(&bench, worker), 1);
    bench.finish_all();
    set(&mut bench, "api", "1000/s").expect("valid");
    bench.submit(limited(tasks(1), &[("api", 1)]));
    bench.wait(Duration::from_secs(1));
    assert_eq!(placed(&bench, worker), 1, "the debt is one of starts");
    bench.finish_all();
    set(&mut bench, "api", "").expect("unused");
    let effects = bench.request(Command::Resubmit {
        jobs: one(JOB),
        states: vec![TaskState::Finished],
        requests: Vec::new(),
    });
    let text = format!("{:?}", reply(&effects));
    assert!(text.contains("UnknownLimit"), "{text}");
}

#[test]
fn tasks_that_are_not_sent_ahead_hide_no_others_and_cause_no_rounds() {
    let mut bench = Bench::new();
    set(&mut bench, "db", "100000").expect("valid");
    for _ in 0..16 {
        bench.worker(64);
    }
    let limited = bench.submit(limited(urgent(5_000, 5), &[("db", 1)]));
    let late = bench.submit(wide(3_000, 2));
    assert_eq!(bench.counts(limited).running, 16 * 64);
    let workers: Vec<WorkerId> = bench.state.workers().keys().copied().collect();
    let late_ones = |worker: &WorkerId| {
        let assigned = bench.state.workers()[worker].assigned();
        assigned.keys().any(|task| task.job == late)
    };
    assert!(
        workers.iter().any(late_ones),
        "less urgent tasks wait there"
    );
}

#[test]
fn a_job_needs_workers_for_tasks_that_no_limit_of_the_server_keeps_back() {
    let mut bench = Bench::new();
    set(&mut bench, "db", "1").expect("valid");
    let worker = bench.worker(1);
    bench.submit(limited(tasks(1), &[("db", 1)]));
    assert_eq!(placed(&bench, worker), 1);
    let job = bench.open(None);
    let blocked = numbered(ArrayIds::Next(5), urgent(0, 5));
    bench.submit(with_max(into(job, limited(blocked, &[("db", 1)])), 5));
    let free = numbered(ArrayIds::Next(5), wide(0, 2));
    bench.submit(with_max(into(job, free), 5));
    let counts = bench.state.needed_counts();
    assert_eq!(counts.map(|(_, count)| count).sum::<u64>(), 5);
}
