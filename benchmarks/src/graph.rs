//! `graph`: a very large task graph.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};
use clap::Args;

use crate::figures::waits;
use crate::options::Hq;
use crate::processes::{Cluster, peak_kib, resident_kib};

/// The largest distance between a task and its dependencies.
const REACH: u64 = 10_000;
/// The pause between two requests of the other clients.
const PAUSE: Duration = Duration::from_millis(20);
/// How long an allocator takes to return unused memory.
const REST: Duration = Duration::from_secs(10);

/// How long does a server take to accept a very large task graph, what does each waiting task cost,
/// and how long do other clients wait meanwhile?
///
/// The graph is a JSON job file where each task depends on a few tasks shortly before it. The
/// server has no worker, so all tasks wait. Meanwhile three kinds of requests are timed, each as a
/// separate process: `hq server info`, which bypasses the core's thread, `hq job list`, and small
/// submits, which are answered after their commit.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    hq: Hq,
    /// The number of tasks.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    tasks: u64,
    /// The number of tasks on which each task depends.
    #[arg(long, value_name = "N", default_value_t = 5)]
    deps: u64,
}

pub(crate) fn run(options: &Options, dir: &Path) -> Result<()> {
    ensure!(options.tasks > 0, "nothing to do");
    let file = dir.join("graph.json");
    let edges = write(&file, options)?;
    let cluster = Cluster::start_server(&options.hq.path()?, dir, &["--journal", "journal"])?;
    let pid = cluster.server_pid();
    let before = resident_kib(pid)?;
    let has_ended = AtomicBool::new(false);
    let (took, others) = std::thread::scope(|scope| {
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
    let (rested, peak) = (resident_kib(pid)?, peak_kib(pid)?);
    let per_task = rested.saturating_sub(before) as f64 * 1_024.0 / options.tasks as f64;
    println!(
        "server {per_task:.0} B a task at rest, {} MiB at most",
        peak / 1_024
    );
    for asked in others {
        let (words, took) = asked?;
        let took = took?;
        println!("{:4} x `{words}` meanwhile: {}", took.len(), waits(&took));
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

/// Repeats a request. Returns the sorted durations.
fn ask(cluster: &Cluster, words: &str, has_ended: &AtomicBool) -> Result<Vec<Duration>> {
    let words: Vec<&str> = words.split(' ').collect();
    let mut all = Vec::new();
    while !has_ended.load(Ordering::Relaxed) {
        let begun = Instant::now();
        all.push(cluster.time(&words)?);
        std::thread::sleep(PAUSE.saturating_sub(begun.elapsed()));
    }
    all.sort_unstable();
    Ok(all)
}
