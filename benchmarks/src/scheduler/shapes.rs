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

/// Tasks with the same request.
#[derive(Clone, Debug)]
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

/// A task of a graph under construction: its needs and the earlier tasks on which it depends.
struct Step {
    deps: Vec<u32>,
    kind: usize,
    run: Duration,
}

/// Creates a graph from its steps. `cpus` are the cpus of each kind.
fn graph(name: &'static str, cpus: &[&'static str], steps: Vec<Step>) -> Load {
    let mut ends: Vec<Duration> = Vec::with_capacity(steps.len());
    let mut kinds: Vec<Kind> = cpus
        .iter()
        .map(|cpus| Kind {
            count: 0,
            variants: vec![vec![("cpus", cpus.parse().unwrap_or(1.0))]],
            nodes: 0,
            work: Duration::ZERO,
        })
        .collect();
    for step in &steps {
        let before = step.deps.iter().map(|dep| ends[*dep as usize]).max();
        ends.push(before.unwrap_or_default() + step.run);
        kinds[step.kind].count += 1;
        kinds[step.kind].work += step.run;
    }
    let runs: Vec<Duration> = steps.iter().map(|step| step.run).collect();
    let tasks = steps.into_iter().zip(0..).map(|(step, id)| GraphTask {
        id: TaskId(id),
        template: u32::try_from(step.kind).unwrap_or(0),
        deps: step.deps.into_iter().map(TaskId).collect(),
    });
    let body = SubmitBody::Graph(GraphSpec {
        templates: cpus
            .iter()
            .map(|cpus| Arc::new(work(vec![request(&[("cpus", cpus)])], 0)))
            .collect(),
        tasks: tasks.collect(),
    });
    let run: Runs = Arc::new(move |task: TaskId| {
        runs.get(task.as_u32() as usize)
            .copied()
            .unwrap_or_default()
    });
    Load {
        name,
        jobs: vec![(body, run)],
        kinds,
        critical_path: ends.into_iter().max().unwrap_or_default(),
    }
}

fn seconds(mean: f64, seed: u64) -> Duration {
    Duration::from_secs_f64(mean * (0.5 + scatter(seed)))
}

/// Creates independent tasks of one cpu.
pub(crate) fn plain_array(cpus: u32) -> Load {
    let steps = (0..cpus * 20).map(|id| Step {
        deps: Vec::new(),
        kind: 0,
        run: seconds(10.0, u64::from(id)),
    });
    graph("array", &["1"], steps.collect())
}

/// Creates maps, then reducers that depend on all of them, twice.
pub(crate) fn map_reduce(cpus: u32) -> Load {
    let mut steps: Vec<Step> = Vec::new();
    let mut before: Vec<u32> = Vec::new();
    for _ in 0..2 {
        let first = count(&steps);
        for _ in 0..cpus * 8 {
            let deps = before.clone();
            let run = seconds(5.0, u64::from(count(&steps)));
            steps.push(Step { deps, kind: 0, run });
        }
        let maps: Vec<u32> = (first..count(&steps)).collect();
        let reducers = (cpus / 4).clamp(1, 16);
        before = (0..reducers).map(|id| count(&steps) + id).collect();
        for _ in 0..reducers {
            let run = seconds(2.0, u64::from(count(&steps)));
            let deps = maps.clone();
            steps.push(Step { deps, kind: 1, run });
        }
    }
    graph("map-reduce", &["1", "2"], steps)
}

/// Creates a tree of pairwise merges above many leaves.
pub(crate) fn merge(cpus: u32) -> Load {
    let mut steps: Vec<Step> = Vec::new();
    let leaves = (cpus * 16).next_power_of_two();
    for id in 0..leaves {
        let run = seconds(4.0, u64::from(id));
        steps.push(Step {
            deps: Vec::new(),
            kind: 0,
            run,
        });
    }
    let mut level: Vec<u32> = (0..leaves).collect();
    while level.len() > 1 {
        let mut next = Vec::new();
        for pair in level.chunks(2) {
            next.push(count(&steps));
            let run = seconds(1.0, u64::from(count(&steps)));
            steps.push(Step {
                deps: pair.to_vec(),
                kind: 0,
                run,
            });
        }
        level = next;
    }
    graph("merge tree", &["1"], steps)
}

/// Creates a ring of cells over time. Each cell depends on itself and its neighbors in the previous
/// step.
pub(crate) fn stencil(cpus: u32) -> Load {
    let (width, depth) = (cpus * 4, 12);
    let mut steps: Vec<Step> = Vec::new();
    for row in 0..depth {
        for cell in 0..width {
            let deps = if row == 0 {
                Vec::new()
            } else {
                let base = (row - 1) * width;
                let mut deps = vec![
                    base + (cell + width - 1) % width,
                    base + cell,
                    base + (cell + 1) % width,
                ];
                deps.sort_unstable();
                deps.dedup();
                deps
            };
            let run = seconds(3.0, u64::from(count(&steps)));
            steps.push(Step { deps, kind: 0, run });
        }
    }
    graph("stencil", &["1"], steps)
}

/// Creates a graph like the Montage workflow: project, fit differences of neighbors, model,
/// correct, add.
pub(crate) fn montage(cpus: u32) -> Load {
    let images = cpus * 8;
    let mut steps: Vec<Step> = Vec::new();
    let run = |steps: &Vec<Step>, mean: f64| seconds(mean, u64::from(count(steps)));
    for _ in 0..images {
        let run = run(&steps, 8.0);
        steps.push(Step {
            deps: Vec::new(),
            kind: 0,
            run,
        });
    }
    let first_diff = count(&steps);
    for image in 0..images {
        for other in [1, 2] {
            let mut deps = vec![image, (image + other) % images];
            deps.sort_unstable();
            deps.dedup();
            let run = run(&steps, 2.0);
            steps.push(Step { deps, kind: 0, run });
        }
    }
    let model = count(&steps);
    let run_model = run(&steps, 3.0);
    steps.push(Step {
        deps: (first_diff..model).collect(),
        kind: 1,
        run: run_model,
    });
    let first_corrected = count(&steps);
    for image in 0..images {
        let run = run(&steps, 2.0);
        steps.push(Step {
            deps: vec![image, model],
            kind: 0,
            run,
        });
    }
    let add = run(&steps, 6.0);
    let corrected = (first_corrected..count(&steps)).collect();
    steps.push(Step {
        deps: corrected,
        kind: 2,
        run: add,
    });
    graph("montage-like", &["1", "2", "4"], steps)
}

fn count(steps: &[Step]) -> u32 {
    u32::try_from(steps.len()).unwrap_or(u32::MAX)
}

/// Creates independent tasks with different resources. One kind can use either a GPU or eight cpus.
/// For workers with 16 cpus, 4 GPUs and 64 GB.
pub(crate) fn heterogeneous(workers: u32) -> Load {
    type Part = (u32, &'static [&'static [(&'static str, &'static str)]], f64);
    let parts: [Part; 5] = [
        (120, &[&[("cpus", "1")]], 10.0),
        (40, &[&[("cpus", "3"), ("mem", "4000")]], 20.0),
        (16, &[&[("cpus", "5"), ("mem", "20000")]], 20.0),
        (
            20,
            &[&[("gpus", "1"), ("cpus", "1")], &[("cpus", "8")]],
            15.0,
        ),
        (24, &[&[("gpus", "0.5"), ("cpus", "1")]], 12.0),
    ];
    let mut load = Load {
        name: "heterogeneous",
        jobs: Vec::new(),
        kinds: Vec::new(),
        critical_path: Duration::ZERO,
    };
    for (count, variants, mean) in parts {
        let count = count * workers;
        let requests = variants.iter().map(|asked| request(asked)).collect();
        let runs = spread(Duration::from_secs_f64(mean));
        let work_sum = (0..count).map(|id| runs(TaskId(id))).sum();
        let amounts = variants.iter().map(|asked| {
            let parsed = asked
                .iter()
                .map(|(name, amount)| (*name, amount.parse::<f64>().unwrap_or(0.0)));
            parsed.collect::<Vec<_>>()
        });
        load.kinds.push(Kind {
            count: u64::from(count),
            variants: amounts.collect(),
            nodes: 0,
            work: work_sum,
        });
        load.jobs.push((array_of(count, work(requests, 0)), runs));
    }
    load
}

/// Creates multi-node tasks among small tasks of the same priority.
pub(crate) fn with_gangs(workers: u32) -> Load {
    let mean = Duration::from_secs(10);
    let small = workers * 16 * 10;
    let runs = spread(mean);
    let small_work = (0..small).map(|id| runs(TaskId(id))).sum();
    let mut load = Load {
        name: "multi-node mix",
        jobs: vec![(array(small, &[("cpus", "1")], 0), runs)],
        kinds: vec![Kind {
            count: u64::from(small),
            variants: vec![vec![("cpus", 1.0)]],
            nodes: 0,
            work: small_work,
        }],
        critical_path: Duration::ZERO,
    };
    let width = 4.min(workers);
    let gangs = (workers / width).max(1) * 2;
    let runs = spread(mean * 2);
    load.kinds.push(Kind {
        count: u64::from(gangs),
        variants: Vec::new(),
        nodes: width,
        work: (0..gangs).map(|id| runs(TaskId(id))).sum(),
    });
    load.jobs
        .push((array_of(gangs, work(vec![nodes(width)], 0)), runs));
    load
}
