//! `throughput`: server and worker next to the tightest loop that spawns and reaps processes.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::Args;

use crate::baseline;
use crate::figures::Rounds;
use crate::options::Contestants;
use crate::processes::{Cluster, cpu_time, resident_kib, submit};

/// The number of tasks of the array that only waits.
const WAITING_TASKS: u64 = 1_000_000;
/// How often the latency of a single task is measured.
const LATENCY_RUNS: u32 = 31;

/// How close do N short processes through server and worker come to the tightest loop that spawns
/// and reaps them, without output files and with the two that a task has by default?
///
/// All contestants run in turn, round by round. The starting position rotates, because it matters
/// more than the differences to be measured. The figures are medians, ratios to the loop and to hq
/// with as many files in the same round, and the CPU time of server and worker per task. Also measures the time from
/// submit to finish of a single task, and the cost of a million waiting tasks. Needs a C compiler
/// and `xargs`.
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    contestants: Contestants,
    /// The number of tasks in a round.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    count: u32,
    /// The program of each task.
    #[arg(long, value_name = "PATH", default_value = "/bin/true")]
    program: String,
}

/// One contestant.
struct Row<'a> {
    label: String,
    /// Runs all tasks once, and returns the duration.
    time: Box<dyn Fn() -> Result<Duration> + 'a>,
    /// The cluster whose CPU time is measured.
    cluster: Option<&'a Cluster>,
    /// Whether each process has two output files.
    has_files: bool,
    rounds: Rounds,
    /// The CPU time of server and worker in all rounds, without the tasks.
    cpu: Duration,
}

impl<'a> Row<'a> {
    fn new(label: &str, time: impl Fn() -> Result<Duration> + 'a) -> Self {
        Self {
            label: label.to_owned(),
            time: Box::new(time),
            cluster: None,
            has_files: false,
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

pub(crate) fn run(options: &Options, dir: &Path) -> Result<()> {
    let spawn_loop = baseline::compile(dir, "spawn_loop", &["-pthread"])?;
    let contestants = options.contestants.start(dir)?;
    let Contestants { cpus, rounds, .. } = options.contestants;
    let (count, program) = (options.count, options.program.as_str());
    let outputs = dir.join("outputs");
    let mut rows = vec![Row::new("spawn loop (C)", || {
        baseline::spawn_loop(&spawn_loop, count, cpus, program, None)
    })];
    for (label, cluster) in &contestants {
        rows.push(Row {
            cluster: Some(cluster),
            ..Row::new(label, || cluster.time_array(count, program))
        });
    }
    rows.push(Row {
        has_files: true,
        ..Row::new("spawn loop, 2 files", || {
            let took = baseline::spawn_loop(&spawn_loop, count, cpus, program, Some(&outputs))?;
            std::fs::remove_dir_all(&outputs)?;
            Ok(took)
        })
    });
    for (label, cluster) in &contestants {
        rows.push(Row {
            cluster: Some(cluster),
            has_files: true,
            ..Row::new(&format!("{label}, 2 files"), || {
                cluster.time_array_with_files(count, program)
            })
        });
    }
    rows.push(Row::new(&format!("xargs -P{cpus}"), || {
        baseline::xargs(count, cpus, program)
    }));
    // Round 0 warms the caches.
    rows.iter_mut().try_for_each(|row| row.run().map(drop))?;
    for round in 0..rounds as usize {
        let turns = rows.len();
        for turn in 0..turns {
            let row = &mut rows[(round + turn) % turns];
            let (took, cpu) = row.run()?;
            row.rounds.push(took);
            row.cpu += cpu;
        }
    }
    println!("{count} x {program}, {cpus} at a time, {rounds} rounds");
    print_table(&rows, count, rounds);
    drop(rows);
    for (label, cluster) in &contestants {
        println!();
        print_latency(label, cluster, program)?;
        print_waiting(label, cluster)?;
    }
    Ok(())
}

fn print_table(rows: &[Row], count: u32, rounds: u32) {
    println!(
        "{:20} {:>12} {:>23} {:>10} {:>10} {:>12}",
        "", "tasks/s", "(min - max)", "ratio", "to hq", "CPU/task"
    );
    for row in rows {
        // The loop and hq come first among the rows with as many files.
        let mut alike = rows.iter().filter(|other| other.has_files == row.has_files);
        let (Some(baseline), Some(hq)) = (alike.next(), alike.next()) else {
            continue;
        };
        let [most, median, least] = row.rounds.rates(f64::from(count));
        let cpu = row.cpu / (count * rounds).max(1);
        println!(
            "{:20} {median:>12.0} {least:>10.0} - {most:>10.0} {:>10.2} {:>10.2} {:>12}",
            row.label,
            row.rounds.ratio_to(&baseline.rounds),
            row.rounds.ratio_to(&hq.rounds),
            row.cluster
                .map_or_else(String::new, |_| format!("{cpu:.1?}")),
        );
    }
}

fn print_latency(label: &str, cluster: &Cluster, program: &str) -> Result<()> {
    let mut rounds = Rounds::default();
    for _ in 0..LATENCY_RUNS {
        rounds.push(cluster.time_tasks(&submit(&["--wait"], program), 1)?);
    }
    let [min, median, max] = rounds.spread();
    println!("{label}: submit one task and wait: {median:.1?} ({min:.1?} - {max:.1?})");
    Ok(())
}

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
