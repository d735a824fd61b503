//! Compares makespans with the bound and the optimum.

use std::sync::Arc;
use std::time::Duration;

use hq_core::id::TaskId;
use hq_core::resource::amount::Amount;
use hq_core::resource::descriptor::{ResourceDescriptor, ResourceItem, ResourceKind};
use hq_core::testing::worker_config;
use hq_core::worker_config::WorkerConfig;

use super::bound::{Capacity, makespan_min, rounds_min};
use super::cluster::Cluster;
use super::decision::percentiles;
use super::shapes::{Load, array_of, request, scatter, work};

/// The number of cpus of a worker.
pub(crate) const CPUS: u32 = 16;
/// The number of GPUs of a worker.
pub(crate) const GPUS: u32 = 4;
/// The memory of a worker in MB.
pub(crate) const MEM: u32 = 64_000;

/// The result of one load on one cluster.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quality {
    /// The number of tasks.
    pub(crate) tasks: u64,
    /// How long the cluster took.
    pub(crate) makespan: Duration,
    /// A lower bound of the makespan.
    pub(crate) bound: Duration,
    /// The share of the cpu time used while other tasks were waiting for a worker, from 0.0 to 1.0.
    /// It excludes idle time caused by chains and by the last tasks.
    pub(crate) contended_use: f64,
    /// The CPU time of decisions: median, 99 %, 99.9 %, longest.
    pub(crate) decisions: [Duration; 4],
}

impl Quality {
    /// Returns bound divided by makespan; 1.0 is optimal.
    pub(crate) fn efficiency(&self) -> f64 {
        self.bound.as_secs_f64() / self.makespan.as_secs_f64()
    }
}

/// Creates a worker with cpus, GPUs and memory.
pub(crate) fn worker(cpus: u32, gpus: u32, mem: u32) -> WorkerConfig {
    let range = |count: u32| ResourceKind::Range {
        start: 0,
        end: count - 1,
    };
    let mut items = vec![("cpus", range(cpus))];
    if gpus > 0 {
        items.push(("gpus", range(gpus)));
    }
    if mem > 0 {
        items.push(("mem", ResourceKind::Sum(Amount::whole(mem))));
    }
    let items = items.into_iter().map(|(name, kind)| ResourceItem {
        name: name.into(),
        kind,
    });
    let mut config = worker_config(1);
    config.resources =
        ResourceDescriptor::new(items.collect(), Vec::new()).unwrap_or_else(|e| panic!("{e}"));
    config
}

/// Runs a load on this many workers.
pub(crate) fn measure(load: Load, workers: u32) -> Quality {
    let mut cluster = Cluster::default();
    for _ in 0..workers {
        cluster.join(worker(CPUS, GPUS, MEM));
    }
    let whole = f64::from(workers);
    let capacity = Capacity::from([
        ("cpus", f64::from(CPUS) * whole),
        ("gpus", f64::from(GPUS) * whole),
        ("mem", f64::from(MEM) * whole),
    ]);
    let bound = makespan_min(&load, &capacity, workers);
    let tasks = load.kinds.iter().map(|kind| kind.count).sum();
    for (body, runs) in load.jobs {
        cluster.submit(body, runs);
    }
    let makespan = cluster.finish();
    Quality {
        tasks,
        makespan,
        bound,
        contended_use: cluster.contended_share(),
        decisions: percentiles(cluster.decisions.iter().map(|decision| decision.took.cpu)),
    }
}

/// Returns makespans relative to the optimum, for random small cases of tasks of equal length.
pub(crate) fn small_cases(count: u32) -> Vec<f64> {
    (0..count).map(small_case).collect()
}

fn small_case(seed: u32) -> f64 {
    let roll = |salt: u64, from: u32, to: u32| {
        let unit = scatter(u64::from(seed) * 64 + salt);
        #[expect(clippy::cast_possible_truncation, reason = "below `to`")]
        let drawn = from + (unit * f64::from(to - from + 1)) as u32;
        drawn
    };
    let (cpus, gpus) = (roll(1, 4, 8), roll(2, 1, 4));
    let workers = roll(3, 1, 2);
    let mut tasks = Vec::new();
    let mut cluster = Cluster::default();
    for _ in 0..workers {
        cluster.join(worker(cpus, gpus, 0));
    }
    let run = Duration::from_secs(10);
    let kinds = roll(4, 2, 4);
    let mut bodies = Vec::new();
    for kind in 0..u64::from(kinds) {
        let wanted = [roll(10 + kind, 1, cpus), roll(20 + kind, 0, gpus)];
        let number = roll(30 + kind, 1, 3);
        for _ in 0..number {
            tasks.push(wanted.to_vec());
        }
        let [wanted_cpus, wanted_gpus] = wanted.map(|amount| amount.to_string());
        let mut asked = vec![("cpus", wanted_cpus.as_str())];
        if wanted[1] > 0 {
            asked.push(("gpus", wanted_gpus.as_str()));
        }
        bodies.push(array_of(number, work(vec![request(&asked)], 0)));
    }
    // Submitted all at once: the workers join an idle server, and all tasks arrive before it makes
    // a decision.
    for body in bodies {
        cluster.submit_later(body, Arc::new(move |_: TaskId| run));
    }
    let makespan = cluster.finish();
    let best = run * rounds_min(&tasks, &[cpus, gpus], workers);
    makespan.as_secs_f64() / best.as_secs_f64()
}
