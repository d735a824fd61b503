//! Question: what does it cost that there is very much of one kind of thing?
//!
//! Each case has many of one thing (requests, priorities, templates, jobs, workers that have ended, workers)
//! and little of everything else, and runs until all tasks have ended. What counts is the longest decision:
//! it must not follow the number.

use std::sync::Arc;
use std::time::Duration;

use hq_core::id::{QueueId, TaskId};
use hq_core::scheduler::demand::{QueueQuery, WorkerKind};
use hq_core::template::{GraphSpec, GraphTask, SubmitBody};
use hq_core::time::Time;

use super::cluster::Cluster;
use super::decision::{Decision, Stopwatch, percentiles};
use super::quality::worker;
use super::shapes::{array_of, request, spread, work};

/// Memory of a worker in MB.
const MEMORY: u32 = 256_000;
/// How long tasks run.
const RUN: Duration = Duration::from_millis(20);

/// One case.
#[derive(Clone, Debug)]
pub struct Row {
    /// What there is much of.
    pub name: &'static str,
    /// Tasks that started.
    pub started: usize,
    /// Decisions without a submit.
    pub decisions: usize,
    /// Their cpu time: median, 99 %, 99.9 %, longest.
    pub cpu: [Duration; 4],
    /// The longest in words.
    pub longest: Decision,
    /// The longest decision with a submit.
    pub submit: Duration,
    /// The longest answer about how many more workers would help.
    pub demand: Duration,
    /// The most requests that a round looked at.
    pub queues: usize,
}

/// Makes a cluster with very many of something, and what is submitted to it.
type Case = fn(u32) -> Cluster;

const CASES: [(&str, Case); 9] = [
    ("requests, one worker", |many| requests(1, many, 1)),
    ("requests, 8 workers, 5 priorities", |many| {
        requests(8, many, 5)
    }),
    ("requests, each with its own priority", |many| {
        requests(8, many, many)
    }),
    ("requests, canceled", |many| {
        let mut cluster = requests(0, many, 5);
        let mut second = 0;
        while cluster.server.ready_len() < u64::from(many) {
            second += 1;
            cluster.run_until(Time(0) + Duration::from_secs(1) * second);
        }
        cluster.cancel();
        cluster
    }),
    ("templates", |many| {
        let mut cluster = with_workers(8);
        cluster.submit(alike(many), spread(RUN));
        cluster
    }),
    ("jobs", |many| {
        let mut cluster = with_workers(8);
        for _ in 0..many {
            let one = array_of(1, work(vec![request(&[("cpus", "1")])], 0));
            cluster.submit(one, spread(RUN));
        }
        cluster
    }),
    ("workers that have ended", |many| {
        let mut cluster = Cluster::timed();
        for _ in 0..many {
            cluster.join(worker(16, 0, MEMORY));
            cluster.lose_one();
        }
        cluster.join(worker(16, 0, MEMORY));
        cluster.submit(alike(1_000), spread(RUN));
        cluster
    }),
    ("workers (a tenth)", |many| {
        let mut cluster = with_workers(many / 10);
        cluster.submit(alike(many), spread(RUN));
        cluster
    }),
    ("workers (a tenth) and requests", |many| {
        requests(many / 10, many, 3)
    }),
];

/// The cases whose names contain `part`, with so many of each thing; a tenth of it for workers.
pub fn measure(many: u32, part: &str) -> impl Iterator<Item = Row> {
    let cases = CASES
        .into_iter()
        .filter(move |(name, _)| name.contains(part));
    cases.map(move |(name, case)| run(name, case(many)))
}

fn requests(workers: u32, many: u32, priorities: u32) -> Cluster {
    let mut cluster = with_workers(workers);
    cluster.submit(different(many, priorities), spread(RUN));
    cluster
}

fn with_workers(count: u32) -> Cluster {
    let mut cluster = Cluster::timed();
    for _ in 0..count {
        cluster.join(worker(16, 0, MEMORY));
    }
    cluster
}

/// Another amount of memory for each task.
fn different(count: u32, priorities: u32) -> SubmitBody {
    graph(count, |number| {
        let mem = 1.0 + f64::from(number) * (f64::from(MEMORY) / 8.0 / f64::from(count));
        let mem = format!("{mem:.3}");
        let priority = i32::try_from(number % priorities).unwrap_or(0);
        (mem, priority)
    })
}

/// A template for each task, all with the same request.
fn alike(count: u32) -> SubmitBody {
    graph(count, |_| ("100".to_owned(), 0))
}

fn graph(count: u32, asked: impl Fn(u32) -> (String, i32)) -> SubmitBody {
    let templates = (0..count).map(|number| {
        let (mem, priority) = asked(number);
        let request = request(&[("cpus", "1"), ("mem", &mem)]);
        Arc::new(work(vec![request], priority))
    });
    let tasks = (0..count).map(|number| GraphTask {
        id: TaskId(number),
        template: number,
        deps: Vec::new(),
    });
    SubmitBody::Graph(GraphSpec {
        templates: templates.collect(),
        tasks: tasks.collect(),
    })
}

fn run(name: &'static str, mut cluster: Cluster) -> Row {
    let mut demand = Duration::ZERO;
    let mut second = 0;
    loop {
        second += 1;
        cluster.run_until(Time(0) + Duration::from_secs(1) * second);
        let watch = Stopwatch::start();
        let _ = cluster.server.demand(cluster.now, &[query()]);
        demand = demand.max(watch.read().cpu);
        let tasks = cluster.server.totals().tasks;
        if tasks.waiting + tasks.running == 0 {
            break;
        }
    }
    let (submits, others): (Vec<&Decision>, Vec<&Decision>) = cluster
        .decisions
        .iter()
        .partition(|decision| decision.submits > 0);
    let longest = others.iter().max_by_key(|decision| decision.took.cpu);
    Row {
        name,
        started: cluster.starts.len(),
        decisions: others.len(),
        cpu: percentiles(others.iter().map(|decision| decision.took.cpu)),
        longest: longest.map(|found| **found).unwrap_or_default(),
        submit: submits
            .iter()
            .map(|decision| decision.took.cpu)
            .max()
            .unwrap_or_default(),
        demand,
        queues: others
            .iter()
            .map(|decision| decision.round.queues)
            .max()
            .unwrap_or(0),
    }
}

fn query() -> QueueQuery {
    QueueQuery {
        queue: QueueId(1),
        kind: WorkerKind {
            resources: [("cpus", 16), ("mem", u64::from(MEMORY))]
                .map(|(name, units)| (name.into(), units * 10_000))
                .into(),
            others_plentiful: false,
            time_limit: Duration::from_secs(3_600),
            min_utilization: 0.0,
        },
        coming: Vec::new(),
        workers_max: 1_000,
        nodes_max: 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_runs_and_rounds_do_not_follow_the_number() {
        let row = run("requests", requests(3, 2_000, 2));
        assert_eq!(row.started, 2_000);
        assert!(row.queues <= 1_024, "{row:?}");
    }
}
