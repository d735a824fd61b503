//! Question: how close do N short processes through server and worker come to the tightest loop
//! that spawns and reaps the same N processes on the same cores?
//!
//! All contestants run in turn, round by round. The starting position rotates, because it matters
//! more than the differences to be measured. The figures are medians, ratios to the loop and to hq
//! in the same round, and the CPU time of server and worker per task. The benchmark also measures
//! the time from submit to finish of a single task, and the cost of a million waiting tasks.
//!
//! ```text
//! cargo run --release -p hq-benchmarks --bin throughput -- [--hq PATH] [--count N] [--rounds N]
//!     [--cpus N] [--program PATH] [--peer LABEL=PATH]…
//! ```

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use hq_benchmarks::baseline;
use hq_benchmarks::cluster::{Cluster, cpu_time, resident_kib};
use hq_benchmarks::stats::Rounds;
use hq_benchmarks::{options, scratch_dir};

/// The number of tasks of the array that only waits.
const WAITING_TASKS: u64 = 1_000_000;
/// How often the latency of a single task is measured.
const LATENCY_RUNS: u32 = 31;

struct Options {
    hq: PathBuf,
    count: u32,
    rounds: u32,
    cpus: u32,
    program: String,
    peers: Vec<(String, PathBuf)>,
}

/// One contestant.
struct Row<'a> {
    label: String,
    /// Runs all tasks once, and returns the duration.
    time: Box<dyn Fn() -> Result<Duration> + 'a>,
    /// The cluster whose CPU time is measured.
    cluster: Option<&'a Cluster>,
    rounds: Rounds,
    /// The CPU time of server and worker in all rounds, without the tasks.
    cpu: Duration,
}

impl<'a> Row<'a> {
    fn new(label: &str, time: Box<dyn Fn() -> Result<Duration> + 'a>) -> Self {
        Self {
            label: label.to_owned(),
            time,
            cluster: None,
            rounds: Rounds::default(),
            cpu: Duration::ZERO,
        }
    }

    /// Returns the duration of all tasks, and the CPU time of server and worker meanwhile.
    fn run(&self) -> Result<(Duration, Duration)> {
        let used = || match self.cluster {
            Some(cluster) => {
                let worker = cluster.worker_pid().context("the worker has ended")?;
                Ok::<_, anyhow::Error>(cpu_time(cluster.server_pid())? + cpu_time(worker)?)
            }
            None => Ok(Duration::ZERO),
        };
        let before = used()?;
        let took = (self.time)()?;
        Ok((took, used()?.saturating_sub(before)))
    }
}

fn main() -> Result<()> {
    let options = parse(std::env::args().skip(1))?;
    let dir = scratch_dir("throughput", &std::env::temp_dir())?;
    run(&options, dir.path())
}

fn parse(args: impl Iterator<Item = String>) -> Result<Options> {
    let mut chosen = Options {
        hq: options::hq_beside()?,
        count: 10_000,
        rounds: 5,
        cpus: 2,
        program: "/bin/true".into(),
        peers: Vec::new(),
    };
    options::each(args, |name, value| {
        match name {
            "--hq" => chosen.hq = value.file()?,
            "--count" => chosen.count = value.get()?,
            "--rounds" => chosen.rounds = value.get()?,
            "--cpus" => chosen.cpus = value.get()?,
            "--program" => chosen.program = value.get()?,
            "--peer" => chosen.peers.push(value.labelled_file()?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(chosen)
}

#[expect(
    clippy::print_stdout,
    reason = "the figures are the product of this program"
)]
fn run(options: &Options, dir: &Path) -> Result<()> {
    let spawn_loop = baseline::compile(dir, "spawn_loop", &["-pthread"])?;
    let mut contestants: Vec<(String, Cluster)> = Vec::new();
    let binaries = std::iter::once(("hq".to_owned(), options.hq.clone()));
    for (label, binary) in binaries.chain(options.peers.iter().cloned()) {
        let home = dir.join(&label);
        std::fs::create_dir_all(&home)?;
        contestants.push((
            label.clone(),
            Cluster::start(&binary, &home, options.cpus, &[])?,
        ));
    }
    let array = format!("--array=1-{}", options.count);
    let submit = [
        "submit",
        &array,
        "--stdout=none",
        "--stderr=none",
        "--wait",
        "--",
        &options.program,
    ];
    let (count, cpus, program) = (options.count, options.cpus, options.program.as_str());
    let run_loop = || baseline::spawn_loop(&spawn_loop, count, cpus, program);
    let mut rows = vec![Row::new("spawn loop (C)", Box::new(run_loop))];
    for (label, cluster) in &contestants {
        let time = || cluster.time_tasks(&submit, count);
        rows.push(Row {
            cluster: Some(cluster),
            ..Row::new(label, Box::new(time))
        });
    }
    let run_xargs = || baseline::xargs(count, cpus, program);
    rows.push(Row::new(&format!("xargs -P{cpus}"), Box::new(run_xargs)));
    // Round 0 warms the caches.
    rows.iter_mut().try_for_each(|row| row.run().map(drop))?;
    for round in 0..options.rounds as usize {
        let turns = rows.len();
        for turn in 0..turns {
            let row = &mut rows[(round + turn) % turns];
            let (took, cpu) = row.run()?;
            row.rounds.push(took);
            row.cpu += cpu;
        }
    }
    println!(
        "{count} x {program}, {cpus} at a time, {} rounds",
        options.rounds
    );
    print_table(&rows, options);
    drop(rows);
    for (label, cluster) in &contestants {
        println!();
        print_latency(label, cluster, program)?;
        print_waiting(label, cluster)?;
    }
    Ok(())
}

#[expect(
    clippy::print_stdout,
    reason = "the figures are the product of this program"
)]
fn print_table(rows: &[Row], options: &Options) {
    println!(
        "{:20} {:>12} {:>23} {:>10} {:>10} {:>12}",
        "", "tasks/s", "(min - max)", "ratio", "to hq", "CPU/task"
    );
    let (baseline, hq) = (&rows[0].rounds, &rows[1].rounds);
    for row in rows {
        let Some((min, median, max)) = row.rounds.spread() else {
            continue;
        };
        let rate = |took: Duration| f64::from(options.count) / took.as_secs_f64();
        let cpu = row.cpu / (options.count * options.rounds).max(1);
        println!(
            "{:20} {:>12.0} {:>10.0} - {:>10.0} {:>10.2} {:>10.2} {:>12}",
            row.label,
            rate(median),
            rate(max),
            rate(min),
            row.rounds.ratio_to(baseline).unwrap_or_default(),
            row.rounds.ratio_to(hq).unwrap_or_default(),
            row.cluster
                .map_or_else(String::new, |_| format!("{cpu:.1?}")),
        );
    }
}

#[expect(
    clippy::print_stdout,
    reason = "the figures are the product of this program"
)]
fn print_latency(label: &str, cluster: &Cluster, program: &str) -> Result<()> {
    let mut rounds = Rounds::default();
    let submit = [
        "submit",
        "--stdout=none",
        "--stderr=none",
        "--wait",
        "--",
        program,
    ];
    for _ in 0..LATENCY_RUNS {
        rounds.push(cluster.time_tasks(&submit, 1)?);
    }
    let (min, median, max) = rounds.spread().context("no rounds")?;
    println!("{label}: submit one task and wait: {median:.1?} ({min:.1?} - {max:.1?})");
    Ok(())
}

#[expect(
    clippy::print_stdout,
    reason = "the figures are the product of this program"
)]
fn print_waiting(label: &str, cluster: &Cluster) -> Result<()> {
    let before = resident_kib(cluster.server_pid())?;
    let array = format!("--array=1-{WAITING_TASKS}");
    let ack = cluster.time(&["submit", &array, "--cpus=64", "--", "/bin/true"])?;
    let grown = resident_kib(cluster.server_pid())?.saturating_sub(before) * 1024;
    let list = cluster.time(&["job", "list"])?;
    let info = cluster.time(&["job", "info", "last"])?;
    let cancel = cluster.time(&["job", "cancel", "last"])?;
    println!(
        "{label}: {WAITING_TASKS} waiting tasks: submit {ack:.1?}, {} bytes a task, \
         job list {list:.1?}, job info {info:.1?}, cancel {cancel:.1?}",
        grown / WAITING_TASKS
    );
    Ok(())
}
