//! Published shapes of task graphs and mixes of requests. Run times are derived from the task id.

use std::sync::Arc;
use std::time::Duration;

use hq_core::id::TaskId;
use hq_core::resource::amount::Amount;
use hq_core::resource::request::{Policy, RequestVariants, ResourceEntry, ResourceRequest};
use hq_core::template::{GraphSpec, GraphTask, SubmitBody, TaskTemplate};
use hq_core::testing::{array_submit, template};

use super::cluster::Runs;
use crate::figures::{STEP, mix};

/// One request, as resources and amounts.
pub(crate) type Asked<'a> = &'a [(&'a str, &'a str)];

/// A submit and how long its tasks run.
pub(crate) struct Load {
    /// The name in tables.
    pub(crate) name: &'static str,
    /// The submits, with the run times of their tasks.
    pub(crate) jobs: Vec<(SubmitBody, Runs)>,
    /// The kinds of tasks.
    pub(crate) kinds: Vec<Kind>,
    /// The length of the longest chain.
    pub(crate) critical_path: Duration,
}

impl Load {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            jobs: Vec::new(),
            kinds: Vec::new(),
            critical_path: Duration::ZERO,
        }
    }

    /// Adds independent tasks of a kind, with the sum of their run times.
    fn add(&mut self, mut kind: Kind, requests: Vec<ResourceRequest>, mean: Duration) {
        let runs = spread(mean);
        let count = u32::try_from(kind.count).unwrap_or(u32::MAX);
        kind.work = (0..count).map(|id| runs(TaskId(id))).sum();
        self.kinds.push(kind);
        self.jobs.push((array_of(count, work(requests, 0)), runs));
    }
}

/// Tasks with the same request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Kind {
    /// The number of tasks.
    pub(crate) count: u64,
    /// The amounts that each variant uses.
    pub(crate) variants: Vec<Vec<(&'static str, f64)>>,
    /// The number of whole nodes; 0 = part of a node.
    pub(crate) nodes: u32,
    /// The sum of all run times.
    pub(crate) work: Duration,
}

/// Creates a request.
///
/// # Panics
///
/// If an amount is invalid.
pub(crate) fn request(asked: Asked<'_>) -> ResourceRequest {
    let entries = asked.iter().map(|(name, amount)| ResourceEntry {
        resource: (*name).into(),
        policy: Policy::Compact,
        amount: Amount::parse(amount).unwrap_or_else(|_| panic!("`{amount}` is an amount")),
    });
    ResourceRequest {
        entries: entries.collect(),
        ..ResourceRequest::cpus(1)
    }
}

/// Creates a template with these request variants.
///
/// # Panics
///
/// If the variants are invalid.
pub(crate) fn work(variants: Vec<ResourceRequest>, priority: i32) -> TaskTemplate {
    let mut made = template(&["true"]);
    made.requests = RequestVariants::new(variants).unwrap_or_else(|error| panic!("{error}"));
    made.priority = priority;
    made
}

/// Creates an array of tasks with one request.
#[cfg(test)]
pub(crate) fn array(count: u32, asked: Asked<'_>, priority: i32) -> SubmitBody {
    array_of(count, work(vec![request(asked)], priority))
}

/// Creates an array of tasks with this template.
pub(crate) fn array_of(count: u32, template: TaskTemplate) -> SubmitBody {
    array_submit(count, template).body
}

/// Creates a request for whole nodes.
pub(crate) fn nodes(count: u32) -> ResourceRequest {
    ResourceRequest {
        entries: Vec::new(),
        n_nodes: count,
        ..ResourceRequest::cpus(1)
    }
}

/// Returns run times between 0.5 and 1.5 times `mean`, by task id.
pub(crate) fn spread(mean: Duration) -> Runs {
    Arc::new(move |task: TaskId| mean.mul_f64(0.5 + scatter(u64::from(task.as_u32()))))
}

/// Returns a pseudorandom number in 0.0 .. 1.0 (SplitMix64).
pub(crate) fn scatter(seed: u64) -> f64 {
    let z = mix(seed.wrapping_add(1).wrapping_mul(STEP));
    // 53 bits remain.
    (z >> 11) as f64 / (1u64 << 53) as f64
}

/// A graph under construction. Run times depend on the position of a task.
#[derive(Default)]
struct Graph {
    tasks: Vec<GraphTask>,
    runs: Vec<Duration>,
}

impl Graph {
    fn len(&self) -> u32 {
        u32::try_from(self.tasks.len()).unwrap_or(u32::MAX)
    }

    /// Adds a task of a kind with a mean run time, and the earlier tasks on which it depends.
    fn add(&mut self, template: u32, mean: f64, mut deps: Vec<u32>) {
        deps.sort_unstable();
        deps.dedup();
        let id = self.len();
        let run = mean * (0.5 + scatter(u64::from(id)));
        self.runs.push(Duration::from_secs_f64(run));
        self.tasks.push(GraphTask {
            id: TaskId(id),
            template,
            deps: deps.into_iter().map(TaskId).collect(),
        });
    }

    /// Creates the load. `cpus` are the cpus of each kind.
    fn load(self, name: &'static str, cpus: &[&'static str]) -> Load {
        let Self { tasks, runs } = self;
        let mut ends: Vec<Duration> = Vec::with_capacity(tasks.len());
        let kind = |cpus: &&'static str| Kind {
            variants: vec![vec![("cpus", cpus.parse().unwrap_or(1.0))]],
            ..Kind::default()
        };
        let mut kinds: Vec<Kind> = cpus.iter().map(kind).collect();
        for (task, run) in tasks.iter().zip(&runs) {
            let before = task.deps.iter().map(|dep| ends[dep.as_u32() as usize]);
            ends.push(before.max().unwrap_or_default() + *run);
            let kind = &mut kinds[task.template as usize];
            kind.count += 1;
            kind.work += *run;
        }
        let template = |cpus: &&str| Arc::new(work(vec![request(&[("cpus", cpus)])], 0));
        let templates = cpus.iter().map(template).collect();
        let body = SubmitBody::Graph(GraphSpec { templates, tasks });
        let run = move |task: TaskId| runs.get(task.as_u32() as usize).copied();
        let runs: Runs = Arc::new(move |task| run(task).unwrap_or_default());
        Load {
            name,
            jobs: vec![(body, runs)],
            kinds,
            critical_path: ends.into_iter().max().unwrap_or_default(),
        }
    }
}

/// Creates independent tasks of one cpu.
pub(crate) fn plain_array(cpus: u32) -> Load {
    let mut graph = Graph::default();
    for _ in 0..cpus * 20 {
        graph.add(0, 10.0, Vec::new());
    }
    graph.load("array", &["1"])
}

/// Creates maps, then reducers that depend on all of them, twice.
pub(crate) fn map_reduce(cpus: u32) -> Load {
    let mut graph = Graph::default();
    let mut before: Vec<u32> = Vec::new();
    for _ in 0..2 {
        let first = graph.len();
        for _ in 0..cpus * 8 {
            graph.add(0, 5.0, before.clone());
        }
        let maps = graph.len();
        let reducers = (cpus / 4).clamp(1, 16);
        before = (maps..maps + reducers).collect();
        for _ in 0..reducers {
            graph.add(1, 2.0, (first..maps).collect());
        }
    }
    graph.load("map-reduce", &["1", "2"])
}

/// Creates a tree of pairwise merges above many leaves.
pub(crate) fn merge(cpus: u32) -> Load {
    let mut graph = Graph::default();
    let leaves = (cpus * 16).next_power_of_two();
    for _ in 0..leaves {
        graph.add(0, 4.0, Vec::new());
    }
    let mut level: Vec<u32> = (0..leaves).collect();
    while level.len() > 1 {
        let first = graph.len();
        for pair in level.chunks(2) {
            graph.add(0, 1.0, pair.to_vec());
        }
        level = (first..graph.len()).collect();
    }
    graph.load("merge tree", &["1"])
}

/// Creates a ring of cells over time. Each cell depends on itself and its neighbors in the previous
/// step.
pub(crate) fn stencil(cpus: u32) -> Load {
    let (width, depth) = (cpus * 4, 12);
    let mut graph = Graph::default();
    for _ in 0..width {
        graph.add(0, 3.0, Vec::new());
    }
    for row in 0..depth - 1 {
        for cell in 0..width {
            let near = [cell + width - 1, cell, cell + 1];
            graph.add(0, 3.0, near.map(|cell| row * width + cell % width).into());
        }
    }
    graph.load("stencil", &["1"])
}

/// Creates a graph like the Montage workflow: project, fit differences of neighbors, model,
/// correct, add.
pub(crate) fn montage(cpus: u32) -> Load {
    let images = cpus * 8;
    let mut graph = Graph::default();
    for _ in 0..images {
        graph.add(0, 8.0, Vec::new());
    }
    for image in 0..images {
        for other in [1, 2] {
            graph.add(0, 2.0, vec![image, (image + other) % images]);
        }
    }
    let model = graph.len();
    graph.add(1, 3.0, (images..model).collect());
    for image in 0..images {
        graph.add(0, 2.0, vec![image, model]);
    }
    graph.add(2, 6.0, (model + 1..graph.len()).collect());
    graph.load("montage-like", &["1", "2", "4"])
}

/// Creates independent tasks with different resources. One kind can use either a GPU or eight cpus.
/// For workers with 16 cpus, 4 GPUs and 64 GB.
pub(crate) fn heterogeneous(workers: u32) -> Load {
    let parts: [(u32, &[Asked<'static>], u64); 5] = [
        (120, &[&[("cpus", "1")]], 10),
        (40, &[&[("cpus", "3"), ("mem", "4000")]], 20),
        (16, &[&[("cpus", "5"), ("mem", "20000")]], 20),
        (20, &[&[("gpus", "1"), ("cpus", "1")], &[("cpus", "8")]], 15),
        (24, &[&[("gpus", "0.5"), ("cpus", "1")]], 12),
    ];
    let mut load = Load::new("heterogeneous");
    for (count, variants, mean) in parts {
        let requests = variants.iter().map(|asked| request(asked)).collect();
        let amount = |(name, amount): &(&'static str, &str)| (*name, amount.parse().unwrap_or(0.0));
        let amounts = variants
            .iter()
            .map(|asked| asked.iter().map(amount).collect());
        let kind = Kind {
            count: u64::from(count * workers),
            variants: amounts.collect(),
            ..Kind::default()
        };
        load.add(kind, requests, Duration::from_secs(mean));
    }
    load
}

/// Creates multi-node tasks among small tasks of the same priority.
pub(crate) fn with_gangs(workers: u32) -> Load {
    let mean = Duration::from_secs(10);
    let small = Kind {
        count: u64::from(workers * 16 * 10),
        variants: vec![vec![("cpus", 1.0)]],
        ..Kind::default()
    };
    let width = 4.min(workers);
    let gangs = Kind {
        count: u64::from((workers / width).max(1) * 2),
        nodes: width,
        ..Kind::default()
    };
    let mut load = Load::new("multi-node mix");
    load.add(small, vec![request(&[("cpus", "1")])], mean);
    load.add(gangs, vec![nodes(width)], mean * 2);
    load
}
