//! The largest case: many workers, many ready tasks, many kinds of requests, workers that come and
//! go.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hq_core::resource::request::ResourceRequest;
use hq_core::time::Time;

use super::cluster::Cluster;
use super::decision::{Decision, Noise, Span, percentiles};
use super::quality::worker;
use super::shapes::{array_of, nodes, request, scatter, work};

/// The size of the case.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// The number of workers, with 64 cpus and 8 GPUs each, in groups of about a hundred.
    pub(crate) workers: u32,
    /// The number of ready tasks at the beginning.
    pub(crate) tasks: u32,
    /// The number of different requests. Every fifth has variants, every fifth has fractions, and
    /// every tenth requests whole nodes.
    pub(crate) classes: u32,
    /// The number of workers that are lost per second. As many join.
    pub(crate) churn: u32,
    /// The virtual time to run.
    pub(crate) span: Duration,
}

/// The number of decisions that are shown in full.
const TOLD: usize = 5;

/// The measurements.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    /// The number of decisions of the server.
    pub(crate) decisions: usize,
    /// The CPU time of the server's thread per decision: median, 99 %, 99.9 %, longest.
    pub(crate) cpu: [Duration; 4],
    /// The same in wall-clock time.
    pub(crate) wall: [Duration; 4],
    /// The decisions with the most CPU time, with their numbers.
    pub(crate) hardest: Vec<(usize, Decision)>,
    /// The decisions with the longest wall-clock time, with their numbers.
    pub(crate) longest: Vec<(usize, Decision)>,
    /// The total time that decisions did not run on a cpu.
    pub(crate) off_cpu: Duration,
    /// How much the rest of the machine disturbed the run.
    pub(crate) noise: Noise,
    /// The longest decision that included a submit.
    pub(crate) submit: Span,
    /// The latency of heartbeats including the link: median, 99 %, 99.9 %, longest.
    pub(crate) heartbeats: [Duration; 4],
    /// The share of all cpu time used while there was work, from 0.0 to 1.0.
    pub(crate) busy: f64,
    /// The number of tasks that started.
    pub(crate) started: usize,
    /// How often a task was sent to a worker.
    pub(crate) handed_out: u64,
    /// The number of retracted tasks.
    pub(crate) asked_back: u64,
    /// The number of multi-node tasks that started.
    pub(crate) gangs: u32,
    /// The real time of the whole run.
    pub(crate) took: Duration,
}

/// Runs the case.
pub(crate) fn measure(scale: Scale) -> Outcome {
    let begin = Instant::now();
    let noise = Noise::now();
    let mut cluster = Cluster::timed();
    let mut joined = 0;
    for _ in 0..scale.workers {
        join(&mut cluster, &mut joined, scale);
    }
    for class in 0..scale.classes {
        let mean = Duration::from_secs_f64(2.0 + 18.0 * scatter(u64::from(class)));
        let salt = u64::from(class) << 32;
        let runs = Arc::new(move |task: hq_core::id::TaskId| {
            mean.mul_f64(0.5 + scatter(salt + u64::from(task.as_u32())))
        });
        let is_gang = class % 10 == 9;
        let count = if is_gang {
            200
        } else {
            scale.tasks / scale.classes * 10 / 9
        };
        let template = work(requests(class), i32::try_from(class % 5).unwrap_or(0));
        cluster.submit(array_of(count, template), runs);
    }
    let steps = scale.churn.max(1);
    let whole = u32::try_from(scale.span.as_secs()).unwrap_or(1) * steps;
    for step in 1..=whole {
        let at = Time(0) + Duration::from_secs(1) * step / steps;
        cluster.run_until(at);
        if scale.churn > 0 {
            cluster.lose_one();
            join(&mut cluster, &mut joined, scale);
        }
        // Every worker sends one heartbeat per second.
        let (parts, rest) = (steps as usize, (step % steps) as usize);
        cluster.heartbeat(parts, rest);
    }
    let gangs = cluster
        .server
        .jobs()
        .values()
        .filter(|job| (job.id.as_u32() - 1) % 10 == 9);
    let gangs = gangs.map(|job| {
        let counts = job.counts();
        counts.running + counts.finished
    });
    let all = &cluster.decisions;
    let off_cpu = |decision: &Decision| decision.took.wall.saturating_sub(decision.took.cpu);
    let submits = all.iter().filter(|decision| decision.submits > 0);
    Outcome {
        decisions: all.len(),
        cpu: percentiles(all.iter().map(|decision| decision.took.cpu)),
        wall: percentiles(all.iter().map(|decision| decision.took.wall)),
        hardest: greatest(all, |decision| decision.took.cpu),
        longest: greatest(all, |decision| decision.took.wall),
        off_cpu: all.iter().map(off_cpu).sum(),
        noise: Noise::now() - noise,
        submit: submits
            .map(|of| of.took)
            .max_by_key(|took| took.cpu)
            .unwrap_or_default(),
        heartbeats: percentiles(cluster.answers.iter().copied()),
        busy: cluster.busy_share(),
        started: cluster.starts.len(),
        handed_out: cluster.handed_out,
        asked_back: cluster.asked_back,
        gangs: gangs.sum(),
        took: begin.elapsed(),
    }
}

/// Returns the greatest decisions by some measure, in descending order.
fn greatest(all: &[Decision], measure: impl Fn(&Decision) -> Duration) -> Vec<(usize, Decision)> {
    let mut order: Vec<(usize, Decision)> = all.iter().copied().enumerate().collect();
    order.sort_by_key(|(_, decision)| std::cmp::Reverse(measure(decision)));
    order.truncate(TOLD);
    order
}

impl Outcome {
    /// Returns how many of the slowest decisions also used the most CPU time.
    pub(crate) fn shared(&self) -> usize {
        let hardest: BTreeSet<usize> = self.hardest.iter().map(|(number, _)| *number).collect();
        let longest = self.longest.iter();
        longest
            .filter(|(number, _)| hardest.contains(number))
            .count()
    }
}

fn join(cluster: &mut Cluster, joined: &mut u32, scale: Scale) {
    let mut config = worker(64, 8, 256_000);
    let groups = scale.workers.div_ceil(100).max(1);
    config.group = format!("rack{}", *joined % groups).into();
    *joined += 1;
    cluster.join(config);
}

/// Returns the requests of a class. Sizes vary, and kinds alternate.
fn requests(class: u32) -> Vec<ResourceRequest> {
    let cpus = (1 + class % 13).to_string();
    let mem = (500 * (1 + class % 7)).to_string();
    let few = (1 + class % 3).to_string();
    match class % 10 {
        9 => vec![nodes(2 + class % 7)],
        3 | 8 => vec![
            request(&[("gpus", "1"), ("cpus", &few)]),
            request(&[("cpus", &cpus)]),
        ],
        2 | 7 => vec![request(&[
            ("gpus", ["0.25", "0.5"][(class / 10 % 2) as usize]),
            ("cpus", &few),
        ])],
        4 => vec![request(&[("cpus", "0.5"), ("mem", &mem)])],
        1 | 6 => vec![request(&[("cpus", &cpus), ("mem", &mem)])],
        _ => vec![request(&[("cpus", &cpus)])],
    }
}
