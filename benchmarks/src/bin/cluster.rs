//! Question: what does a task cost the server, its store and its clients when a cluster is far larger than one machine?
//!
//! One process is all workers for a real server with a real store, see `cluster_suite`. Told are tasks per second, at the
//! beginning and at the end, CPU time of the server's threads for each task, memory, bytes in the store and on the wire,
//! and how long `job info` takes meanwhile. Server and workers share the machine: a rate is a lower bound.
//!
//! ```text
//! cargo run --release -p hq-benchmarks --bin cluster -- [--hq PATH] [--workers N] [--cpus N] [--tasks N]
//!     [--millis N] [--spread PART]
//! ```

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hq_benchmarks::cluster::{Cluster, resident_kib};
use hq_benchmarks::cluster_suite::TaskTime;
use hq_benchmarks::cluster_suite::measure::{bytes_below, cpu_by_thread, peak_kib, run_array};
use hq_benchmarks::cluster_suite::swarm::Swarm;
use hq_benchmarks::{options, scratch_dir};

struct Options {
    hq: PathBuf,
    workers: usize,
    cpus: u32,
    tasks: u64,
    time: TaskTime,
}

fn main() -> Result<()> {
    let options = parse(std::env::args().skip(1))?;
    let dir = scratch_dir("cluster", &std::env::temp_dir())?;
    run(&options, dir.path())
}

fn parse(args: impl Iterator<Item = String>) -> Result<Options> {
    let mut chosen = Options {
        hq: options::hq_beside()?,
        workers: 1_000,
        cpus: 16,
        tasks: 1_000_000,
        time: TaskTime {
            mean: Duration::ZERO,
            spread: 0.0,
        },
    };
    options::each(args, |name, value| {
        match name {
            "--hq" => chosen.hq = value.file()?,
            "--workers" => chosen.workers = value.get()?,
            "--cpus" => chosen.cpus = value.get()?,
            "--tasks" => chosen.tasks = value.get()?,
            "--millis" => chosen.time.mean = Duration::from_millis(value.get()?),
            "--spread" => chosen.time.spread = value.get()?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    ensure!(chosen.workers > 0 && chosen.tasks > 0, "nothing to do");
    ensure!(
        (0.0..=1.0).contains(&chosen.time.spread),
        "--spread is a part of the time: 0 to 1"
    );
    Ok(chosen)
}

#[expect(
    clippy::print_stdout,
    reason = "the figures are the product of this program"
)]
fn run(options: &Options, dir: &Path) -> Result<()> {
    let cluster = Cluster::start_server(&options.hq, dir, &["--journal", "journal"])?;
    let (pid, journal) = (cluster.server_pid(), dir.join("journal"));
    let before = resident_kib(pid)?;
    let Options { workers, cpus, .. } = *options;
    let mut swarm = Swarm::start(&cluster.server_dir(), workers, cpus, options.time)?;
    let idle = resident_kib(pid)?;
    println!(
        "{workers} workers of {cpus} cpus, {} tasks of {} ms +- {:.0} %",
        options.tasks,
        options.time.mean.as_millis(),
        options.time.spread * 100.0
    );
    println!(
        "registered in {:.2} s; server {} MiB, {:.1} KiB a worker",
        swarm.registered_in.as_secs_f64(),
        idle / 1_024,
        ratio(idle.saturating_sub(before), workers as u64)
    );

    let (stored, cpu) = (stored_bytes(&journal)?, cpu_by_thread(pid)?);
    let tasks = options.tasks;
    let (cluster, watched) = swarm.work(move || {
        let watched = run_array(&cluster, tasks)?;
        Ok((cluster, watched))
    })?;
    let took = watched.finished.last().context("nothing finished")?.0;
    let rate = |from, to| watched.rate(from, to).unwrap_or(f64::NAN);
    println!(
        "{:.0} tasks/s ({:.0} in the first tenth, {:.0} in the last), {:.2} s",
        ratio(tasks, 1) / took.as_secs_f64(),
        rate(0.0, 0.1),
        rate(0.9, 1.0),
        took.as_secs_f64()
    );
    let mut all = Duration::ZERO;
    for (thread, time) in cpu_by_thread(pid)? {
        let time = time.saturating_sub(cpu.get(&thread).copied().unwrap_or_default());
        all += time;
        let per_task = micros(time, tasks);
        if per_task >= 0.05 {
            println!("  {thread:<16} {per_task:6.2} us a task");
        }
    }
    println!(
        "  {:<16} {:6.2} us a task",
        "all threads",
        micros(all, tasks)
    );
    println!(
        "server at most {} MiB; store {:.1} B a task; `job info` p50 {:.1}, p99 {:.1}, longest {:.1} ms",
        peak_kib(pid)? / 1_024,
        ratio(stored_bytes(&journal)?.saturating_sub(stored), tasks),
        millis(watched.percentile(50)),
        millis(watched.percentile(99)),
        millis(watched.percentile(100)),
    );
    let counts = swarm.join(move || stop(&cluster))?;
    ensure!(
        counts.ended == tasks,
        "workers ended {} tasks instead of {tasks}",
        counts.ended
    );
    println!(
        "{:.1} B a task from the server to workers",
        ratio(counts.received, tasks)
    );
    Ok(())
}

fn stop(cluster: &Cluster) -> Result<()> {
    let mut stop = cluster.command(&["server", "stop"]);
    let status = stop.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
    ensure!(status.success(), "`server stop` failed");
    Ok(())
}

/// The store may be one file with others beside it, or a directory.
fn stored_bytes(journal: &Path) -> Result<u64> {
    let parent = journal.parent().context("no directory")?;
    let mut sum = 0;
    for entry in std::fs::read_dir(parent)? {
        let entry = entry?;
        if entry.file_name().to_string_lossy().starts_with("journal") {
            sum += match entry.metadata()? {
                meta if meta.is_dir() => bytes_below(&entry.path())?,
                meta => meta.len(),
            };
        }
    }
    Ok(sum)
}

#[expect(clippy::cast_precision_loss, reason = "a figure for people")]
fn ratio(count: u64, of: u64) -> f64 {
    count as f64 / of as f64
}

fn micros(time: Duration, tasks: u64) -> f64 {
    time.as_secs_f64() * 1e6 / ratio(tasks, 1)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
