//! The largest case: many workers, many ready tasks, many kinds of requests, workers that come and
//! go.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hq_core::resource::request::ResourceRequest;
use hq_core::time::Time;

use super::cluster::Cluster;
use super::decision::{Decision, Noise, percentiles};
use super::quality::worker;
use super::shapes::{array_of, nodes, request, scatter, work};

/// The number of workers, with 64 cpus and 8 GPUs each, in groups of about a hundred.
const WORKERS: u32 = 1_000;
/// The number of ready tasks at the beginning.
const TASKS: u32 = 1_000_000;
/// The number of different requests. Every fifth has variants, every fifth has fractions, and every
/// tenth requests whole nodes.
const CLASSES: u32 = 50;
/// The number of workers that are lost per second. As many join.
const CHURN: u32 = 10;
/// The virtual time to run, in seconds.
const SECONDS: u32 = 20;
/// The number of decisions that are shown in full.
const TOLD: usize = 5;

/// Runs the case and prints what it found.
pub(super) fn run() {
    let begin = Instant::now();
    let noise = Noise::now();
    let mut cluster = Cluster::timed();
    let mut joined = 0;
    for _ in 0..WORKERS {
        join(&mut cluster, &mut joined);
    }
    for class in 0..CLASSES {
        submit(&mut cluster, class);
    }
    for step in 1..=SECONDS * CHURN {
        let at = Time(0) + Duration::from_secs(1) * step / CHURN;
        cluster.run_until(at);
        cluster.lose_one();
        join(&mut cluster, &mut joined);
        // Every worker sends one heartbeat per second.
        cluster.heartbeat(CHURN as usize, (step % CHURN) as usize);
    }
    tell(&cluster, Noise::now() - noise, begin.elapsed());
}

/// Submits the tasks of a class.
fn submit(cluster: &mut Cluster, class: u32) {
    let mean = Duration::from_secs_f64(2.0 + 18.0 * scatter(u64::from(class)));
    let salt = u64::from(class) << 32;
    let runs = Arc::new(move |task: hq_core::id::TaskId| {
        mean.mul_f64(0.5 + scatter(salt + u64::from(task.as_u32())))
    });
    let is_gang = class % 10 == 9;
    let count = if is_gang {
        200
    } else {
        TASKS / CLASSES * 10 / 9
    };
    let template = work(requests(class), i32::try_from(class % 5).unwrap_or(0));
    cluster.submit(array_of(count, template), runs);
}

fn tell(cluster: &Cluster, noise: Noise, took: Duration) {
    let all = &cluster.decisions;
    let quantiles = |of: fn(&Decision) -> Duration| quantiles(all.iter().map(of));
    let off_cpu = |decision: &Decision| decision.took.wall.saturating_sub(decision.took.cpu);
    let submits = all.iter().filter(|decision| decision.submits > 0);
    let submit = submits.map(|of| of.took).max_by_key(|took| took.cpu);
    let submit = submit.unwrap_or_default();
    println!(
        "\n1 000 workers, 1 000 000 ready tasks in 50 classes, 10 workers a second come and go, 20 s:\n\
         {} decisions: cpu time {}; on the wall {}; the longest with a submit {:.1?} ({:.1?} on the wall)\n\
         heartbeats answered in {}\n\
         not on a cpu: {:.1?} of {took:.1?}; the thread lost its cpu {} times, the host took {:.1?}",
        all.len(),
        quantiles(|decision| decision.took.cpu),
        quantiles(|decision| decision.took.wall),
        submit.cpu,
        submit.wall,
        self::quantiles(cluster.answers.iter().copied()),
        all.iter().map(off_cpu).sum::<Duration>(),
        noise.preemptions,
        noise.stolen,
    );
    let jobs = cluster.server.jobs().values();
    let gangs = jobs.filter(|job| (job.id.as_u32() - 1) % 10 == 9);
    let gangs = gangs.map(|job| job.counts().running + job.counts().finished);
    println!(
        "{} tasks started, {} of them multi-node; {} handed out, {} asked back; cpus busy {:.1} %",
        cluster.starts.len(),
        gangs.sum::<u32>(),
        cluster.handed_out,
        cluster.asked_back,
        cluster.busy_share() * 100.0,
    );
    let (hardest, longest) = (
        greatest(all, |decision| decision.took.cpu),
        greatest(all, |decision| decision.took.wall),
    );
    println!("most cpu time:");
    for (number, decision) in &hardest {
        println!("  {number}: {decision}");
    }
    let is_shared = |(number, _): &&(usize, _)| hardest.iter().any(|(other, _)| other == number);
    let shared = longest.iter().filter(is_shared).count();
    println!("longest on the wall, {shared} of them also above:");
    for (number, decision) in &longest {
        println!("  {number}: {decision}");
    }
}

fn quantiles(durations: impl Iterator<Item = Duration>) -> String {
    let [p50, p99, p999, max] = percentiles(durations);
    format!("p50 {p50:.1?}, p99 {p99:.1?}, p99.9 {p999:.1?}, max {max:.1?}")
}

/// Returns the greatest decisions by some measure, in descending order.
fn greatest(all: &[Decision], measure: impl Fn(&Decision) -> Duration) -> Vec<(usize, Decision)> {
    let mut order: Vec<(usize, Decision)> = all.iter().copied().enumerate().collect();
    order.sort_by_key(|(_, decision)| std::cmp::Reverse(measure(decision)));
    order.truncate(TOLD);
    order
}

fn join(cluster: &mut Cluster, joined: &mut u32) {
    let mut config = worker(64, 8, 256_000);
    let groups = WORKERS.div_ceil(100);
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
