//! Question: how close does running N short processes through server and worker come to the tightest
//! loop that spawns and reaps the same N processes on the same cores?
//!
//! All contestants take turns, round by round; figures are medians and ratios to the loop of the same
//! round. Also measured: submit-to-finish of a single task, and the cost of a million waiting tasks.
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
use hq_benchmarks::cluster::{Cluster, resident_kib};
use hq_benchmarks::stats::Rounds;
use hq_benchmarks::{options, scratch_dir};

/// Tasks of the array that only waits.
const WAITING_TASKS: u64 = 1_000_000;
/// Repetitions of the single-task latency.
const LATENCY_RUNS: u32 = 31;

struct Options {
    hq: PathBuf,
    count: u32,
    rounds: u32,
    cpus: u32,
    program: String,
    peers: Vec<(String, PathBuf)>,
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
    let mut rows: Vec<(String, Rounds)> = vec![("spawn loop (C)".into(), Rounds::default())];
    rows.extend(
        contestants
            .iter()
            .map(|(label, _)| (label.clone(), Rounds::default())),
    );
    rows.push((format!("xargs -P{}", options.cpus), Rounds::default()));
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
    for round in 0..=options.rounds {
        let mut took = vec![baseline::spawn_loop(&spawn_loop, count, cpus, program)?];
        for (_, cluster) in &contestants {
            took.push(cluster.time_tasks(&submit, options.count)?);
        }
        took.push(baseline::xargs(count, cpus, program)?);
        // Round 0 warms caches.
        if round > 0 {
            rows.iter_mut()
                .zip(took)
                .for_each(|((_, rounds), took)| rounds.push(took));
        }
    }
    println!(
        "{count} x {program}, {cpus} at a time, {} rounds",
        options.rounds
    );
    print_table(&rows, count);
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
fn print_table(rows: &[(String, Rounds)], count: u32) {
    println!(
        "{:20} {:>12} {:>23} {:>10}",
        "", "tasks/s", "(min - max)", "ratio"
    );
    let baseline = &rows[0].1;
    for (label, rounds) in rows {
        let Some((min, median, max)) = rounds.spread() else {
            continue;
        };
        let rate = |took: Duration| f64::from(count) / took.as_secs_f64();
        println!(
            "{label:20} {:>12.0} {:>10.0} - {:>10.0} {:>10.2}",
            rate(median),
            rate(max),
            rate(min),
            rounds.ratio_to(baseline).unwrap_or_default()
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
