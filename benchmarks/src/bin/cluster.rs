//! Question: what does a task cost the server, its store and its clients on a cluster far larger
//! than one machine?
//!
//! One process simulates all workers for a real server with a real store, see `cluster_suite`. The
//! output shows tasks per second at the beginning and at the end, the CPU time of the server's
//! threads per task, memory, bytes in the store and on the wire, and the latencies of `job info`
//! and of `submit --wait` of one task meanwhile. Server and workers share the machine, so each rate
//! is a lower bound, and the share of the workers is printed as well.
//!
//! ```text
//! cargo run --release -p hq-benchmarks --bin cluster -- [--hq PATH] [--workers N] [--cpus N] [--tasks N]
//!     [--millis N | --rate N] [--spread PART] [--storms N | --restarts N] [--links MILLIS] [--loss PART]
//!     [--pages true] [--rest true]
//! ```
//!
//! With `--rate N`, tasks take so long that all cpus together end N of them per second. At the
//! highest rate, with tasks that take no time, the machine is saturated, which shows in the
//! latencies; at 70 % of it, the latencies are those of the server alone. The single tasks run on a
//! real worker. `--rest true` also prints the size of the store after compaction.
//!
//! `--restarts N` kills the server N times while all cpus are in use and restarts it. The output
//! shows when all workers are back and what was lost. Tasks should be long in this case. `--links
//! MILLIS` is the round-trip time between worker and server, and `--loss PART` is the fraction of
//! packets that TCP has to send again. With `--pages true`, the requests of an open web page are
//! timed as well.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use hq_benchmarks::cluster::{Cluster, resident_kib};
use hq_benchmarks::cluster_suite::measure::{
    Meanwhile, Watched, bytes_below, cpu_by_thread, peak_kib, percentile, run_array,
    start_probed_worker,
};
use hq_benchmarks::cluster_suite::pages::free_port;
use hq_benchmarks::cluster_suite::restarts::{self, Plan, Restart, stop};
use hq_benchmarks::cluster_suite::swarm::{Swarm, SwarmConfig};
use hq_benchmarks::cluster_suite::{Ledger, SlowLink, TaskTime};
use hq_benchmarks::rest::wait_for_rest;
use hq_benchmarks::{options, scratch_dir};

struct Options {
    hq: PathBuf,
    workers: usize,
    cpus: u32,
    tasks: u64,
    time: TaskTime,
    /// How often all workers lose their connections.
    storms: usize,
    /// How often the server is killed and restarted.
    restarts: usize,
    link: SlowLink,
    /// Whether to simulate an open web page.
    pages: bool,
    /// Whether to wait until the store is compacted.
    rest: bool,
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
        storms: 0,
        restarts: 0,
        link: SlowLink::default(),
        pages: false,
        rest: false,
        time: TaskTime {
            mean: Duration::ZERO,
            spread: 0.0,
        },
    };
    let mut rate = None;
    options::each(args, |name, value| {
        match name {
            "--hq" => chosen.hq = value.file()?,
            "--workers" => chosen.workers = value.get()?,
            "--cpus" => chosen.cpus = value.get()?,
            "--tasks" => chosen.tasks = value.get()?,
            "--millis" => chosen.time.mean = Duration::from_millis(value.get()?),
            "--storms" => chosen.storms = value.get()?,
            "--restarts" => chosen.restarts = value.get()?,
            "--links" => chosen.link.delay = Duration::from_millis(value.get()?),
            "--loss" => chosen.link.loss = value.get()?,
            "--pages" => chosen.pages = value.get()?,
            "--rate" => rate = Some(value.get::<f64>()?),
            "--rest" => chosen.rest = value.get()?,
            "--spread" => chosen.time.spread = value.get()?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    ensure!(chosen.workers > 0 && chosen.tasks > 0, "nothing to do");
    if let Some(rate) = rate {
        ensure!(rate > 0.0, "--rate is a number of tasks per second");
        ensure!(
            chosen.time.mean.is_zero(),
            "--rate and --millis exclude each other"
        );
        let cpus = chosen.workers as f64 * f64::from(chosen.cpus);
        chosen.time.mean = Duration::from_secs_f64(cpus / rate);
    }
    ensure!(
        (0.0..=1.0).contains(&chosen.time.spread),
        "--spread is a part of the time: 0 to 1"
    );
    ensure!(
        (0.0..1.0).contains(&chosen.link.loss),
        "--loss is a part of what is sent: 0 to less than 1"
    );
    ensure!(
        chosen.restarts == 0 || (chosen.storms == 0 && !chosen.pages && !chosen.rest),
        "--restarts excludes --storms, --pages and --rest"
    );
    Ok(chosen)
}

#[expect(
    clippy::print_stdout,
    reason = "the figures are the product of this program"
)]
fn run(options: &Options, dir: &Path) -> Result<()> {
    let http = options.pages.then(free_port).transpose()?;
    let http_arg = http.map(|port| format!("--http={port}"));
    let server_args = ["--journal", "journal"].into_iter();
    let server_args: Vec<&str> = server_args.chain(http_arg.as_deref()).collect();
    let cluster = Cluster::start_server(&options.hq, dir, &server_args)?;
    let pid = cluster.server_pid();
    let before = resident_kib(pid)?;
    let Options { workers, cpus, .. } = *options;
    let ledger = Ledger::new(options.tasks)?;
    let config = SwarmConfig {
        count: workers,
        cpus,
        time: options.time,
        link: options.link,
        ledger: Arc::clone(&ledger),
    };
    let swarm = Swarm::start(&cluster.server_dir(), &config)?;
    let idle = resident_kib(pid)?;
    println!(
        "{workers} workers of {cpus} cpus, {} tasks of {:.1} ms +- {:.0} %; links {:.0} ms, {} % lost",
        options.tasks,
        millis(options.time.mean),
        options.time.spread * 100.0,
        millis(options.link.delay),
        options.link.loss * 100.0
    );
    println!(
        "registered in {:.2} s; server {} MiB, {:.1} KiB a worker",
        swarm.registered_in.as_secs_f64(),
        idle / 1_024,
        ratio(idle.saturating_sub(before), workers as u64)
    );
    if options.restarts == 0 {
        work(options, dir, cluster, swarm, http)
    } else {
        restart(options, cluster, swarm, &ledger)
    }
}

/// Runs the workers and prints the costs.
#[expect(
    clippy::print_stdout,
    reason = "the figures are the product of this program"
)]
fn work(
    options: &Options,
    dir: &Path,
    mut cluster: Cluster,
    mut swarm: Swarm,
    http_port: Option<u16>,
) -> Result<()> {
    start_probed_worker(&mut cluster)?;
    let (pid, journal) = (cluster.server_pid(), dir.join("journal"));
    let (stored, cpu) = (stored_bytes(&journal)?, cpu_by_thread(pid)?);
    let (own, tasks) = (own_cpu()?, options.tasks);
    let meanwhile = Meanwhile {
        storms: swarm.storms(),
        storm_count: options.storms,
        workers: options.workers,
        http_port,
    };
    let (cluster, watched) = swarm.work(move || {
        let watched = run_array(&cluster, tasks, &meanwhile)?;
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
    tell_cpu(pid, &cpu, own_cpu()?.saturating_sub(own), tasks, took)?;
    cluster.time(&["journal", "flush"])?;
    println!(
        "server at most {} MiB; store {:.1} B a task",
        peak_kib(pid)? / 1_024,
        ratio(stored_bytes(&journal)?.saturating_sub(stored), tasks),
    );
    tell_waits(&watched);
    tell_turns(cluster.long_turns()?);
    if options.rest {
        let took = wait_for_rest(&journal)?;
        println!(
            "store {:.1} B a task at rest, {:.1} s later; server {} MiB",
            ratio(stored_bytes(&journal)?.saturating_sub(stored), tasks),
            took.as_secs_f64(),
            resident_kib(pid)? / 1_024,
        );
    }
    let storms = swarm.storms();
    let counts = swarm.join(move || stop(&cluster))?;
    if options.storms > 0 {
        let (given_up, failures) = (storms.tally().given_up(), storms.tally().failures());
        println!("{given_up} workers gave up; {failures} attempts to come back failed");
        for (reason, count) in storms.tally().reasons() {
            println!("  {count} x {reason}");
        }
    }
    // When a connection breaks, unstarted tasks are given up, but they may have run nevertheless.
    ensure!(
        counts.ended == tasks || (options.storms > 0 && counts.ended > tasks),
        "workers ended {} tasks instead of {tasks}",
        counts.ended
    );
    println!(
        "{:.1} B a task from the server to workers",
        ratio(counts.received, tasks)
    );
    Ok(())
}

/// Kills and restarts the server, and prints the effects on workers and tasks.
#[expect(
    clippy::print_stdout,
    reason = "the figures are the product of this program"
)]
fn restart(options: &Options, cluster: Cluster, mut swarm: Swarm, ledger: &Ledger) -> Result<()> {
    let storms = swarm.storms();
    let (tasks, count, workers) = (options.tasks, options.restarts, options.workers);
    let cpus = u64::from(options.cpus) * workers as u64;
    let mut cluster = cluster;
    let (cluster, restarts) = swarm.work(move || {
        let plan = Plan {
            count,
            workers,
            cpus,
            server_args: &["--journal", "journal"],
        };
        let tally = Arc::clone(storms.tally());
        let restarts = restarts::run_array(&mut cluster, tasks, &tally, &plan)?;
        Ok((cluster, restarts))
    })?;
    for restart in &restarts {
        tell_restart(restart);
    }
    let storms = swarm.storms();
    swarm.join(move || stop(&cluster))?;
    let (given_up, sums) = (storms.tally().given_up(), ledger.sums());
    println!(
        "{given_up} workers gave up; of {tasks} tasks {} were started again, {} ended twice, {} were lost",
        sums.started_again,
        sums.ended_again,
        tasks - sums.ended
    );
    Ok(())
}

#[expect(
    clippy::print_stdout,
    reason = "the figures are the product of this program"
)]
fn tell_restart(restart: &Restart) {
    let seconds = |time: Duration| time.as_secs_f64();
    println!(
        "killed with {} running tasks; from its start the server answered after {:.2} s, all workers were back \
         after {:.2} s, tasks ended after {:.2} s; {} attempts failed",
        restart.running,
        seconds(restart.answered),
        seconds(restart.all_back),
        seconds(restart.first_end),
        restart.failures
    );
    println!(
        "  cpu until all were back: core {:.0} ms, all threads {:.0} ms; server at most {} MiB",
        millis(restart.cpu.0),
        millis(restart.cpu.1),
        restart.peak_kib / 1_024
    );
    tell_wait("  job info", &restart.looks);
    tell_turns(restart.long_turns.clone());
}

#[expect(
    clippy::print_stdout,
    reason = "the figures are the product of this program"
)]
fn tell_turns(mut turns: Vec<(Duration, String)>) {
    turns.sort_unstable();
    print!(
        "  {} turns of the core's thread took 10 ms of CPU or more",
        turns.len()
    );
    match turns.last() {
        Some((longest, parts)) => println!(
            "; the longest {:.1} ms (of a clock on the wall: {parts})",
            millis(*longest)
        ),
        None => println!(),
    }
}

/// Prints the CPU time per task since `before`, and its share of the machine.
#[expect(
    clippy::print_stdout,
    reason = "the figures are the product of this program"
)]
fn tell_cpu(
    pid: u32,
    before: &BTreeMap<String, Duration>,
    own: Duration,
    tasks: u64,
    took: Duration,
) -> Result<()> {
    let mut all = Duration::ZERO;
    for (thread, time) in cpu_by_thread(pid)? {
        let time = time.saturating_sub(before.get(&thread).copied().unwrap_or_default());
        all += time;
        let per_task = micros(time, tasks);
        if per_task >= 0.05 {
            println!("  {thread:<16} {per_task:6.2} us a task");
        }
    }
    for (what, time) in [("all threads", all), ("simulated side", own)] {
        println!("  {what:<16} {:6.2} us a task", micros(time, tasks));
    }
    println!(
        "cpus in use: server {:.2}, simulated side {:.2}",
        all.as_secs_f64() / took.as_secs_f64(),
        own.as_secs_f64() / took.as_secs_f64()
    );
    Ok(())
}

#[expect(
    clippy::print_stdout,
    reason = "the figures are the product of this program"
)]
fn tell_waits(watched: &Watched) {
    tell_wait("job info", &watched.looks);
    tell_wait("submit --wait", &watched.submits);
    for (path, took) in &watched.pages {
        tell_wait(path, took);
    }
    for took in &watched.storms {
        println!(
            "all workers were back {:.0} ms after they had lost their connections",
            millis(*took)
        );
    }
}

#[expect(
    clippy::print_stdout,
    reason = "the figures are the product of this program"
)]
fn tell_wait(what: &str, took: &[Duration]) {
    let at = |percent| millis(percentile(took, percent));
    println!(
        "{:4} x `{what}`: p50 {:.1}, p99 {:.1}, longest {:.1} ms",
        took.len(),
        at(50),
        at(99),
        at(100)
    );
}

/// Returns the CPU time of this process, which is the simulated side; clients are separate
/// processes.
fn own_cpu() -> Result<Duration> {
    Ok(cpu_by_thread(std::process::id())?.values().sum())
}

/// Returns the size of the store, which may be one file with others next to it, or a directory. The
/// write-ahead log does not count: it has up to 16 MiB regardless of the number of tasks, and after
/// a flush, the file contains all of it.
fn stored_bytes(journal: &Path) -> Result<u64> {
    let parent = journal.parent().context("no directory")?;
    let mut sum = 0;
    for entry in std::fs::read_dir(parent)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("journal") && !name.ends_with("-wal") {
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
