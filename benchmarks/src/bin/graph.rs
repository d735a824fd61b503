//! Question: how long does a server take to accept a very large task graph, what does each waiting
//! task cost, and how long do other clients wait meanwhile?
//!
//! The graph is a JSON job file in which each task depends on a few tasks shortly before it. The
//! server has no worker, so all tasks wait. Meanwhile the benchmark times three kinds of requests,
//! each as a separate process: `hq server info`, which bypasses the core's thread, `hq job list`,
//! and small submits, which are answered after their commit.
//!
//! ```text
//! cargo run --release -p hq-benchmarks --bin graph -- [--hq PATH] [--tasks N] [--deps N]
//! ```

#![forbid(unsafe_code)]

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use hq_benchmarks::cluster::{Cluster, resident_kib};
use hq_benchmarks::cluster_suite::measure::{peak_kib, percentile};
use hq_benchmarks::{options, scratch_dir};

/// The largest distance between a task and its dependencies.
const REACH: u64 = 10_000;
/// The pause between two requests of the other clients.
const PAUSE: Duration = Duration::from_millis(20);
/// How long an allocator takes to return unused memory.
const REST: Duration = Duration::from_secs(10);

struct Options {
    hq: PathBuf,
    tasks: u64,
    deps: u64,
}

fn main() -> Result<()> {
    let mut chosen = Options {
        hq: options::hq_beside()?,
        tasks: 1_000_000,
        deps: 5,
    };
    options::each(std::env::args().skip(1), |name, value| {
        match name {
            "--hq" => chosen.hq = value.file()?,
            "--tasks" => chosen.tasks = value.get()?,
            "--deps" => chosen.deps = value.get()?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    ensure!(chosen.tasks > 0, "nothing to do");
    let dir = scratch_dir("graph", &std::env::temp_dir())?;
    run(&chosen, dir.path())
}

#[expect(
    clippy::print_stdout,
    reason = "the figures are the product of this program"
)]
fn run(options: &Options, dir: &Path) -> Result<()> {
    let file = dir.join("graph.json");
    let edges = write(&file, options)?;
    let cluster = Cluster::start_server(&options.hq, dir, &["--journal", "journal"])?;
    let before = resident_kib(cluster.server_pid())?;
    let has_ended = AtomicBool::new(false);
    let (took, mut others) = std::thread::scope(|scope| {
        let (cluster, has_ended) = (&cluster, &has_ended);
        let asking = ["server info", "job list", "submit --cpus 64 true"]
            .map(|words| scope.spawn(move || (words, ask(cluster, words, has_ended))));
        let took = cluster.time(&["job", "submit-file", &file.to_string_lossy()]);
        has_ended.store(true, Ordering::Relaxed);
        let others = asking.map(|thread| thread.join().map_err(|_| anyhow!("it panicked")));
        (took, others)
    });
    println!(
        "{} tasks with {edges} dependencies: accepted after {:.2} s",
        options.tasks,
        took?.as_secs_f64()
    );
    std::thread::sleep(REST);
    let (rested, peak) = (
        resident_kib(cluster.server_pid())?,
        peak_kib(cluster.server_pid())?,
    );
    let per_task = rested.saturating_sub(before) as f64 * 1_024.0 / options.tasks as f64;
    println!(
        "server {per_task:.0} B a task at rest, {} MiB at most",
        peak / 1_024
    );
    for asked in &mut others {
        let (words, took) = asked.as_mut().map_err(|error| anyhow!("{error}"))?;
        let took = took.as_mut().map_err(|error| anyhow!("{error}"))?;
        took.sort_unstable();
        let at = |percent| percentile(took, percent).as_secs_f64() * 1e3;
        println!(
            "{:4} x `{words}` meanwhile: p50 {:.1}, p99 {:.1}, longest {:.1} ms",
            took.len(),
            at(50),
            at(99),
            at(100)
        );
    }
    Ok(())
}

/// Writes the job file. Returns the number of dependencies.
fn write(file: &Path, options: &Options) -> Result<u64> {
    let mut out = BufWriter::new(File::create(file)?);
    let mut edges = 0;
    write!(out, "{{\"name\": \"graph\", \"task\": [")?;
    for id in 1..=options.tasks {
        let comma = if id == 1 { "" } else { "," };
        write!(
            out,
            "{comma}\n{{\"id\": {id}, \"command\": [\"true\"], \"deps\": ["
        )?;
        let reach = (id - 1).min(REACH);
        let count = options.deps.min(reach);
        for number in 0..count {
            // Spread evenly, with an odd step to vary the distances.
            let distance = 1 + (number * reach / count + id * 7_919 % (reach / count)) % reach;
            let comma = if number == 0 { "" } else { ", " };
            write!(out, "{comma}{}", id - distance)?;
        }
        edges += count;
        write!(out, "]}}")?;
    }
    writeln!(out, "\n]}}")?;
    out.flush()?;
    Ok(edges)
}

/// Repeats a request. Returns the duration of each.
fn ask(cluster: &Cluster, words: &str, has_ended: &AtomicBool) -> Result<Vec<Duration>> {
    let words: Vec<&str> = words.split(' ').collect();
    let mut all = Vec::new();
    while !has_ended.load(Ordering::Relaxed) {
        let begun = Instant::now();
        all.push(cluster.time(&words)?);
        std::thread::sleep(PAUSE.saturating_sub(begun.elapsed()));
    }
    Ok(all)
}
