//! Tests what the scheduler promises on virtual clusters, with server and workers together.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use hq_core::id::{JobId, TaskId};
use hq_core::scheduler::explain::Condition;
use hq_core::time::Time;
use proptest::prelude::*;

use super::cluster::{Cluster, Runs};
use super::quality::{small_cases, worker};
use super::shapes::{array, array_of, nodes, request, spread, work};

fn fixed(run: Duration) -> Runs {
    Arc::new(move |_: TaskId| run)
}

#[test]
fn ten_thousand_tasks_start_in_the_order_of_their_priorities() {
    let mut cluster = Cluster::default();
    cluster.join(worker(8, 0, 0));
    for priority in 0..10 {
        let body = array(1_000, &[("cpus", "1")], priority);
        cluster.submit_later(body, spread(Duration::from_millis(40)));
    }
    cluster.finish();
    let order: Vec<u32> = cluster
        .starts
        .iter()
        .map(|start| start.task.job.as_u32())
        .collect();
    let expected: Vec<u32> = (1..=10).rev().flat_map(|job| [job; 1_000]).collect();
    assert_eq!(
        order, expected,
        "most urgent first, all of them before the next"
    );
}

#[test]
fn an_urgent_submit_goes_before_all_that_has_not_started() {
    let mut cluster = Cluster::default();
    for _ in 0..4 {
        cluster.join(worker(4, 0, 0));
    }
    let run = Duration::from_millis(20);
    cluster.submit(array(2_000, &[("cpus", "1")], 0), fixed(run));
    cluster.run_until(Time(0) + Duration::from_secs(1));
    cluster.submit(array(16, &[("cpus", "1")], 5), fixed(run));
    let submitted = cluster.now;
    cluster.finish();
    let starts = cluster
        .starts
        .iter()
        .filter(|start| start.task.job == JobId(2));
    let last = starts.map(|start| start.at).max().expect("started");
    let waited = last.since(submitted);
    assert!(
        waited <= run * 2,
        "one task length and what is ahead: {waited:?}"
    );
}

#[test]
fn a_gang_starts_within_one_task_length_while_small_tasks_keep_coming() {
    for small_cpus in ["1", "2"] {
        let mut cluster = Cluster::default();
        for _ in 0..8 {
            cluster.join(worker(4, 0, 0));
        }
        let mean = Duration::from_secs(4);
        cluster.submit(array(300, &[("cpus", small_cpus)], 0), spread(mean));
        cluster.run_until(Time(0) + Duration::from_secs(9));
        let gang = work(vec![nodes(4)], 0);
        cluster.submit(array_of(1, gang), fixed(mean));
        let (gang, submitted) = (JobId(2), cluster.now);
        let mut started = None;
        for _ in 0..60 {
            let next = cluster.now + Duration::from_millis(200);
            cluster.run_until(next);
            cluster.submit(array(10, &[("cpus", small_cpus)], 0), spread(mean));
            let mut starts = cluster.starts.iter();
            started = starts.find(|start| start.task.job == gang).copied();
            if started.is_some() {
                break;
            }
        }
        let waited = started.expect("the gang starts").at.since(submitted);
        assert!(
            waited <= mean.mul_f64(1.5) + Duration::from_millis(100),
            "{waited:?}"
        );
    }
}

#[test]
fn nothing_is_sent_back_and_forth_for_multi_node_tasks() {
    let mut cluster = Cluster::default();
    for number in 0..30 {
        let mut config = worker(8, 0, 0);
        config.group = format!("rack{}", number % 3).into();
        cluster.join(config);
    }
    let mut tasks = 0;
    // The least urgent tasks come first; multi-node tasks are as urgent as some of the small ones.
    for (count, priority) in [(2_000, 0), (1_000, 1)] {
        let body = array(count, &[("cpus", "1")], priority);
        cluster.submit(body, spread(Duration::from_secs(2)));
        tasks += u64::from(count);
    }
    for width in [2, 5, 7] {
        let gangs = array_of(20, work(vec![nodes(width)], 1));
        cluster.submit(gangs, spread(Duration::from_secs(4)));
        tasks += 20;
    }
    cluster.finish();
    assert!(
        cluster.handed_out <= tasks * 3,
        "{} times for {tasks} tasks",
        cluster.handed_out
    );
}

#[test]
fn small_cases_are_close_to_the_optimum() {
    let ratios = small_cases(60);
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    assert!(
        ratios.iter().all(|ratio| *ratio >= 0.999),
        "the optimum is one"
    );
    assert!(mean <= 1.05, "{mean} of the optimum on average");
}

/// A worker, as cpus and GPUs.
type Node = (u32, u32);
/// A job, as tasks, cpus, GPUs in quarters, priority, and run time in ms.
type Work = (u32, u32, u32, i32, u64);

fn some_work() -> impl Strategy<Value = (Vec<Node>, Vec<Work>)> {
    let node = (1u32..6, 0u32..3);
    let job = (1u32..30, 0u32..5, 0u32..7, -1i32..2, 1u64..1_000);
    (
        prop::collection::vec(node, 1..5),
        prop::collection::vec(job, 1..7),
    )
}

fn asked(cpus: u32, quarters: u32) -> Vec<(&'static str, String)> {
    let mut asked = Vec::new();
    if cpus > 0 || quarters == 0 {
        asked.push(("cpus", cpus.max(1).to_string()));
    }
    if quarters > 0 {
        asked.push(("gpus", (f64::from(quarters) / 4.0).to_string()));
    }
    asked
}

/// If a task waits behind others for 50 ms, the next search, every 10 ms, moves it to an idle cpu
/// with a few messages.
const LOST_MAX: Duration = Duration::from_millis(62);

/// Returns the excess over ten rounds, for ten tasks of this length per cpu of these workers.
fn lost_in_ten_rounds(all: &[u32], run: Duration) -> Duration {
    let mut cluster = Cluster::default();
    for cpus in all {
        cluster.join(worker(*cpus, 0, 0));
    }
    let cpus: u32 = all.iter().sum();
    cluster.submit(array(cpus * 10, &[("cpus", "1")], 0), fixed(run));
    cluster.finish().saturating_sub(run * 10)
}

#[test]
fn the_last_task_of_a_worker_does_not_wait_there_while_another_is_idle() {
    for run in [62, 76, 90, 111, 125, 146, 160] {
        for all in [[5, 1, 4], [3, 3, 5], [3, 1, 5]] {
            let lost = lost_in_ten_rounds(&all, Duration::from_millis(run));
            assert!(lost <= LOST_MAX, "{lost:?} with {all:?}, tasks of {run} ms");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// No resource is granted twice, tasks that fit somewhere end, and tasks that `explain` calls
    /// impossible wait.
    #[test]
    fn books_balance_and_explain_agrees((all, jobs) in some_work()) {
        let mut cluster = Cluster::checked();
        for (cpus, gpus) in &all {
            cluster.join(worker(*cpus, *gpus, 0));
        }
        for (count, cpus, quarters, priority, run) in jobs {
            let asked = asked(cpus, quarters);
            let asked: Vec<(&str, &str)> = asked.iter().map(|(n, a)| (*n, a.as_str())).collect();
            let template = work(vec![request(&asked)], priority);
            cluster.submit(array_of(count, template), fixed(Duration::from_millis(run)));
        }
        let possible = runnable(&cluster);
        cluster.run_until(Time(0) + Duration::from_secs(600));
        for job in cluster.server.jobs().values() {
            let done = job.counts().unfinished() == 0;
            prop_assert_eq!(done, possible.contains(&job.id), "job {}", job.id);
        }
    }

    /// With single-cpu tasks, from one round after the submit, no cpu idles while tasks wait.
    #[test]
    fn no_cpu_idles_while_tasks_wait(
        all in prop::collection::vec(1u32..6, 1..6),
        run in prop_oneof![1u64..300, 300u64..5_000],
    ) {
        let lost = lost_in_ten_rounds(&all, Duration::from_millis(run));
        prop_assert!(lost <= LOST_MAX, "{lost:?} with tasks of {run} ms");
    }

    /// A multi-node task has either all its nodes or none, and nothing else runs on them.
    #[test]
    fn gangs_are_whole(workers in 2u32..7, width in 1u32..5, gangs in 1u32..5, small in 0u32..60) {
        let mut cluster = Cluster::checked();
        for _ in 0..workers {
            cluster.join(worker(2, 0, 0));
        }
        let run = Duration::from_millis(700);
        if small > 0 {
            cluster.submit(array(small, &[("cpus", "1")], 0), spread(run));
        }
        let template = work(vec![nodes(width)], 0);
        cluster.submit(array_of(gangs, template), fixed(run));
        cluster.run_until(Time(0) + Duration::from_secs(300));
        let gang = cluster.server.last_job().expect("submitted");
        let unfinished = cluster.server.jobs()[&gang].counts().unfinished();
        prop_assert_eq!(unfinished == 0, width <= workers);
        // Starts of multi-node tasks that share a node are at least one run time apart.
        let mut by_root: BTreeMap<_, Vec<Time>> = BTreeMap::new();
        for start in cluster.starts.iter().filter(|start| start.task.job == gang) {
            by_root.entry(start.worker).or_default().push(start.at);
        }
        for times in by_root.values() {
            for pair in times.windows(2) {
                prop_assert!(pair[1].since(pair[0]) >= run);
            }
        }
    }
}

/// Returns the jobs that some worker could run, according to `explain`.
fn runnable(cluster: &Cluster) -> BTreeSet<JobId> {
    let server = &cluster.server;
    let can_run = |job: &&hq_core::job::Job| {
        let slot = job.find(TaskId(0)).expect("has a task");
        let template = job
            .submit(slot)
            .and_then(|submit| submit.template(0))
            .expect("has one");
        let class = server.classes().get(template.class).expect("is known");
        server.workers().values().any(|worker| {
            let now = cluster.now;
            let variants =
                hq_core::scheduler::explain::explain(class, server.classes(), worker, 1, now);
            variants
                .iter()
                .any(|conditions| conditions.iter().all(Condition::holds))
        })
    };
    server
        .jobs()
        .values()
        .filter(can_run)
        .map(|job| job.id)
        .collect()
}
