//! `cluster`: many simulated workers for one real server.
//!
//! A simulated worker is the state machine of a real worker behind the real protocol, with its
//! encryption, registration, heartbeats and reports. Only its tasks are not executed: they end
//! after a given time. So this measures the server, its store and the wire, with far more workers
//! than one machine could run.

mod home;
mod links;
mod measure;
mod pages;
mod restarts;
mod swarm;
mod tasks;
mod worker;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;

use self::links::SlowLink;
use self::measure::{Watched, run_array, start_probed_worker};
use self::pages::free_port;
use self::swarm::Swarm;
use self::tasks::{Ledger, TaskTime};
use crate::figures::{millis, waits};
use crate::options::Hq;
use crate::processes::{Cluster, cpu_by_thread, peak_kib, resident_kib};
use crate::store::wait_for_rest;

const SERVER_ARGS: [&str; 2] = ["--journal", "journal"];

/// What does a task cost the server, its store and its clients on a cluster far larger than one
/// machine?
///
/// One process simulates all workers for a real server with a real store. Prints tasks per second at
/// the beginning and at the end, the CPU time of the server's threads per task, memory, bytes in the
/// store and on the wire, and the latencies of `job info` and of `submit --wait` of one task
/// meanwhile. Server and workers share the machine, so each rate is a lower bound, and the share of
/// the workers is printed as well.
///
/// At the highest rate, with tasks that take no time, the machine is saturated, which shows in the
/// latencies; at 70 % of it (`--rate`), the latencies are those of the server alone. The single tasks
/// run on a real worker.
#[derive(Args, Clone)]
pub(crate) struct Options {
    #[command(flatten)]
    hq: Hq,
    /// The number of simulated workers.
    #[arg(long, value_name = "N", default_value_t = 1_000)]
    workers: usize,
    /// The number of cpus of each.
    #[arg(long, value_name = "N", default_value_t = 16)]
    cpus: u32,
    /// The number of tasks.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    tasks: u64,
    /// How long a task takes, in milliseconds.
    #[arg(long, value_name = "MILLIS", default_value_t = 0)]
    millis: u64,
    /// Let tasks take so long that all cpus together end N of them per second.
    #[arg(long, value_name = "N", conflicts_with = "millis")]
    rate: Option<f64>,
    /// The largest deviation of a task's time, as a part of it.
    #[arg(long, value_name = "PART", default_value_t = 0.0, value_parser = part)]
    spread: f64,
    /// How often all workers lose their connections.
    #[arg(long, value_name = "N", default_value_t = 0)]
    storms: usize,
    /// How often the server is killed while all cpus are in use, and restarted. Prints when all
    /// workers are back and what was lost. Tasks should be long.
    #[arg(long, value_name = "N", default_value_t = 0)]
    #[arg(conflicts_with_all = ["storms", "pages", "rest"])]
    restarts: usize,
    /// The delay between worker and server in each direction, in milliseconds.
    #[arg(long, value_name = "MILLIS", default_value_t = 0)]
    links: u64,
    /// The part of the packets that TCP has to send again.
    #[arg(long, value_name = "PART", default_value_t = 0.0, value_parser = part)]
    loss: f64,
    /// Time the requests of an open web page as well.
    #[arg(long)]
    pages: bool,
    /// Also print the size of the store after compaction.
    #[arg(long)]
    rest: bool,
}

fn part(text: &str) -> Result<f64> {
    let part = text.parse()?;
    ensure!((0.0..=1.0).contains(&part), "a part is from 0 to 1");
    Ok(part)
}

impl Options {
    fn link(&self) -> SlowLink {
        SlowLink {
            delay: Duration::from_millis(self.links),
            loss: self.loss,
        }
    }

    fn task_time(&self) -> Result<TaskTime> {
        let cpus = self.workers as f64 * f64::from(self.cpus);
        let mean = self
            .rate
            .map(|rate| Duration::try_from_secs_f64(cpus / rate));
        let mean = mean
            .transpose()
            .context("--rate is a number of tasks per second")?;
        Ok(TaskTime {
            mean: mean.unwrap_or(Duration::from_millis(self.millis)),
            spread: self.spread,
        })
    }
}

pub(crate) fn run(options: &Options, dir: &Path) -> Result<()> {
    ensure!(options.workers > 0 && options.tasks > 0, "nothing to do");
    let (time, link) = (options.task_time()?, options.link());
    let http = options.pages.then(free_port).transpose()?;
    let http_arg = http.map(|port| format!("--http={port}"));
    let server_args: Vec<&str> = SERVER_ARGS.into_iter().chain(http_arg.as_deref()).collect();
    let cluster = Cluster::start_server(&options.hq.path()?, dir, &server_args)?;
    let pid = cluster.server_pid();
    let before = resident_kib(pid)?;
    let Options { workers, cpus, .. } = *options;
    let ledger = Ledger::new(options.tasks)?;
    let swarm = Swarm::start(&cluster.server_dir(), options, &ledger)?;
    let idle = resident_kib(pid)?;
    println!(
        "{workers} workers of {cpus} cpus, {} tasks of {:.1} ms +- {:.0} %; links {:.0} ms, {} % lost",
        options.tasks,
        millis(time.mean),
        time.spread * 100.0,
        millis(link.delay),
        link.loss * 100.0
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
    let (storms, load) = (swarm.storms(), options.clone());
    let (cluster, watched) = swarm.work(move || {
        let watched = run_array(&cluster, &load, &storms, http_port)?;
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
    let counts = swarm.join(move || cluster.stop())?;
    if options.storms > 0 {
        let tally = storms.tally();
        let (given_up, failures) = (tally.given_up, tally.failures());
        println!("{given_up} workers gave up; {failures} attempts to come back failed");
        for (reason, count) in &tally.reasons {
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
fn restart(
    options: &Options,
    mut cluster: Cluster,
    mut swarm: Swarm,
    ledger: &Ledger,
) -> Result<()> {
    let (storms, plan) = (swarm.storms(), options.clone());
    let cluster = swarm.work(move || {
        restarts::run_array(&mut cluster, &storms, &plan)?;
        Ok(cluster)
    })?;
    let storms = swarm.storms();
    swarm.join(move || cluster.stop())?;
    let (given_up, sums) = (storms.tally().given_up, ledger.sums());
    let tasks = options.tasks;
    println!(
        "{given_up} workers gave up; of {tasks} tasks {} were started again, {} ended twice, {} were lost",
        sums.started_again,
        sums.ended_again,
        tasks - sums.ended
    );
    Ok(())
}

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

fn tell_wait(what: &str, took: &[Duration]) {
    println!("{:4} x `{what}`: {}", took.len(), waits(took));
}

/// Returns the CPU time of this process, which is the simulated side; clients are separate
/// processes.
fn own_cpu() -> Result<Duration> {
    Ok(cpu_by_thread(std::process::id())?.values().sum())
}

/// Returns the size of the store with its other files. The write-ahead log does not count: it has
/// up to 16 MiB regardless of the number of tasks, and after a flush, the file contains all of it.
fn stored_bytes(journal: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(journal.parent().context("no directory")?)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if name.starts_with("journal") && !name.ends_with("-wal") {
            sum += entry.metadata()?.len();
        }
    }
    Ok(sum)
}

fn ratio(count: u64, of: u64) -> f64 {
    count as f64 / of as f64
}

fn micros(time: Duration, tasks: u64) -> f64 {
    millis(time) * 1e3 / ratio(tasks, 1)
}
