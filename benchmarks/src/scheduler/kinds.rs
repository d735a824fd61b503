//! Question: what does a very large number of one kind of thing cost?
//!
//! Each case has many of one thing (requests, priorities, templates, jobs, ended workers, workers)
//! and few of everything else, and runs until all tasks have ended. The result is the longest
//! decision, which must not grow with the number.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hq_core::bound::{LimitUse, SubmitLimits};
use hq_core::id::{JobId, QueueId, TaskId};
use hq_core::range::{IdArray, IdRange};
use hq_core::scheduler::demand::{QueueQuery, WorkerKind};
use hq_core::selector::Selector;
use hq_core::server_state::HELD_RANGES_MAX;
use hq_core::task::TaskState;
use hq_core::template::{GraphSpec, GraphTask, SubmitBody};
use hq_core::time::{Now, Time, Timestamp};
use hq_protocol::client::reply::Reply;
use hq_protocol::convert::{JobRef, Query, TaskPageQuery};
use hq_server::answer_in_steps;

use super::cluster::Cluster;
use super::decision::{Decision, Stopwatch, percentiles};
use super::quality::worker;
use super::shapes::{array_of, request, spread, work};

/// The memory of a worker in MB.
const MEMORY: u32 = 256_000;
/// How long tasks run.
const RUN: Duration = Duration::from_millis(20);

/// Decisions with a submit, those that cancel or forget jobs, and those that hold, change or release
/// tasks; answers to how many more workers
/// would help, why a task is waiting, the list of jobs, and the details of the first job; submitting
/// it again; a page of tasks, and the list of workers.
pub(crate) const OPERATIONS: [&str; 10] = [
    "submit",
    "cancel, forget",
    "hold, change",
    "demand",
    "explain",
    "jobs",
    "job info",
    "resubmit",
    "tasks",
    "workers",
];

/// The result of one case: the longest step of each operation.
#[derive(Clone, Debug, Default)]
pub(crate) struct Row {
    /// The name of the case, which is the numerous thing.
    pub(crate) name: &'static str,
    /// The number of tasks that started.
    pub(crate) started: usize,
    /// The number of decisions without a command.
    pub(crate) decisions: usize,
    /// The CPU time of these decisions: median, 99 %, 99.9 %, longest.
    pub(crate) cpu: [Duration; 4],
    /// The details of the longest of them.
    pub(crate) longest: Decision,
    /// The longest step of each of [`OPERATIONS`].
    pub(crate) took: BTreeMap<&'static str, Duration>,
    /// The maximum number of requests that a round examined.
    pub(crate) queues: usize,
}

impl Row {
    fn note(&mut self, operation: &'static str, took: Duration) {
        let longest = self.took.entry(operation).or_default();
        *longest = took.max(*longest);
    }
}

/// Creates a cluster with a very large number of one thing, and submits its jobs.
type Case = fn(u32) -> Cluster;

const CASES: [(&str, Case); 14] = [
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
    ("jobs", |many| jobs(8, many)),
    ("jobs, canceled", |many| {
        let mut cluster = jobs(0, many);
        cluster.cancel();
        cluster
    }),
    (
        "jobs with --max-running and a hundredth of limits",
        |many| limited_jobs(8, many),
    ),
    ("tasks of an array, changed", |many| {
        let mut cluster = with_workers(0);
        let work = work(vec![request(&[("cpus", "1")])], 0);
        cluster.submit(array_of(many, work), spread(RUN));
        cluster.change(None);
        cluster.join(worker(16, 0, MEMORY));
        cluster
    }),
    ("half of the tasks of an array, changed", |many| {
        let mut cluster = with_workers(0);
        let work = work(vec![request(&[("cpus", "1")])], 0);
        cluster.submit(array_of(many, work), spread(RUN));
        // The server accepts this many ranges in one command.
        for first in (0..many).step_by(2 * HELD_RANGES_MAX) {
            let count = u32::try_from(HELD_RANGES_MAX).unwrap_or(u32::MAX);
            let range = IdRange::new(first, count.min((many - first) / 2), 2);
            let range = range.and_then(|range| IdArray::new(vec![range]));
            cluster.change(range.ok().as_ref());
        }
        cluster.join(worker(16, 0, MEMORY));
        cluster
    }),
    ("templates, changed", |many| {
        let mut cluster = with_workers(0);
        cluster.submit(alike(many), spread(RUN));
        cluster.change(None);
        cluster.join(worker(16, 0, MEMORY));
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

/// Runs the cases whose names contain `part`, with `many` of each thing, or a tenth of that for
/// workers.
pub(crate) fn measure(many: u32, part: &str) -> impl Iterator<Item = Row> {
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

fn jobs(workers: u32, many: u32) -> Cluster {
    let mut cluster = with_workers(workers);
    for _ in 0..many {
        let one = array_of(1, work(vec![request(&[("cpus", "1")])], 0));
        cluster.submit(one, spread(RUN));
    }
    cluster
}

/// Submits jobs that may run one task at a time. Each counts toward one of the server's limits.
fn limited_jobs(workers: u32, many: u32) -> Cluster {
    let mut cluster = with_workers(workers);
    let limits = (many / 100).clamp(1, 10_000);
    for limit in 0..limits {
        cluster.limit(&format!("limit-{limit}"), "10");
    }
    for job in 0..many {
        let one = array_of(2, work(vec![request(&[("cpus", "1")])], 0));
        let limits = SubmitLimits {
            uses: vec![LimitUse {
                name: format!("limit-{}", job % limits).into(),
                amount: 1,
            }],
            max_running: Some(1),
            max_rate: None,
        };
        cluster.submit_limited(one, spread(RUN), limits);
    }
    cluster
}

fn with_workers(count: u32) -> Cluster {
    let mut cluster = Cluster::timed();
    for _ in 0..count {
        cluster.join(worker(16, 0, MEMORY));
    }
    cluster
}

/// Creates tasks that each request a different amount of memory.
fn different(count: u32, priorities: u32) -> SubmitBody {
    graph(count, |number| {
        let mem = 1.0 + f64::from(number) * (f64::from(MEMORY) / 8.0 / f64::from(count));
        let mem = format!("{mem:.3}");
        let priority = i32::try_from(number % priorities).unwrap_or(0);
        (mem, priority)
    })
}

/// Creates a template per task, all with the same request.
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
    let mut row = Row {
        name,
        ..Row::default()
    };
    let mut second = 0;
    loop {
        second += 1;
        cluster.run_until(Time(0) + Duration::from_secs(1) * second);
        // Later queries would see less.
        if second < 4 || second % 64 == 0 {
            ask(&cluster, &mut row);
        }
        let tasks = cluster.server.totals().tasks;
        if tasks.waiting + tasks.running == 0 && cluster.server.unanswered() == 0 {
            break;
        }
    }
    row.started = cluster.starts.len();
    let before = cluster.decisions.len();
    cluster.resubmit();
    while cluster.server.unanswered() > 0 {
        second += 1;
        cluster.run_until(Time(0) + Duration::from_secs(1) * second);
    }
    let steps = cluster.decisions[before..].iter();
    steps.for_each(|step| row.note("resubmit", step.took.cpu));
    cluster.decisions.truncate(before);
    cluster.forget();
    while cluster
        .server
        .next_deadline()
        .is_some_and(|due| due <= cluster.now)
    {
        second += 1;
        cluster.run_until(Time(0) + Duration::from_secs(1) * second);
    }
    let mut others = Vec::new();
    for decision in &cluster.decisions {
        let took = decision.took.cpu;
        if decision.submits > 0 {
            row.note("submit", took);
        } else if decision.sweeps > 0 {
            row.note("cancel, forget", took);
        } else if decision.changes > 0 {
            row.note("hold, change", took);
        } else {
            others.push(decision);
        }
    }
    let longest = others.iter().max_by_key(|decision| decision.took.cpu);
    row.longest = longest.map(|found| **found).unwrap_or_default();
    row.decisions = others.len();
    row.cpu = percentiles(others.iter().map(|decision| decision.took.cpu));
    let queues = others.iter().map(|decision| decision.round.queues);
    row.queues = queues.max().unwrap_or(0);
    row
}

/// Runs clients' queries, and records the longest step of each answer.
fn ask(cluster: &Cluster, row: &mut Row) {
    let watch = Stopwatch::start();
    let _ = cluster.server.demand(cluster.now, &[query()]);
    row.note("demand", watch.read().cpu);
    let page = |states: Vec<TaskState>| {
        Query::TaskPage(TaskPageQuery {
            job: JobRef::Id(JobId(1)),
            tasks: None,
            states,
            cursor: 0,
            limit: 0,
            with_definition: true,
            with_curves: false,
            without_paths: false,
        })
    };
    let workers = Query::Workers {
        workers: Selector::All,
        with_runtime: true,
    };
    let first = Selector::Ids(IdArray::single(1));
    for (operation, query) in [
        ("jobs", Query::JobList(Selector::All)),
        ("job info", Query::JobInfo(first)),
        ("workers", workers),
        ("tasks", page(Vec::new())),
    ] {
        row.note(operation, longest_step(cluster, query).0);
    }
    let (took, found) = longest_step(cluster, page(vec![TaskState::Waiting]));
    row.note("tasks", took);
    if let Reply::TaskPage(found) = found
        && let Some(task) = found.tasks.last()
    {
        let explain = Query::Explain {
            until_able: false,
            job: JobRef::Id(JobId(1)),
            task: TaskId(task.id),
        };
        row.note("explain", longest_step(cluster, explain).0);
    }
}

fn longest_step(cluster: &Cluster, query: Query) -> (Duration, Reply) {
    let now = Now {
        mono: cluster.now,
        wall: Timestamp(0),
    };
    let (mut watch, mut longest) = (Stopwatch::start(), Duration::ZERO);
    let reply = answer_in_steps(&cluster.server, now, query, || {
        longest = longest.max(watch.read().cpu);
        watch = Stopwatch::start();
    });
    (longest.max(watch.read().cpu), reply)
}

fn query() -> QueueQuery {
    let kind = WorkerKind {
        resources: [("cpus", 16), ("mem", u64::from(MEMORY))]
            .map(|(name, units)| (name.into(), units * 10_000))
            .into(),
        others_plentiful: false,
        time_limit: Duration::from_secs(3_600),
        min_utilization: 0.0,
    };
    QueueQuery {
        queue: QueueId(1),
        assumed: kind.clone(),
        kinds: vec![kind],
        coming: Vec::new(),
        connected: Vec::new(),
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
