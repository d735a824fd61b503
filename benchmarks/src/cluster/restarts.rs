//! A server that is killed under load and restarted: when are all workers back, and is anything
//! lost?

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};

use super::home::Storms;
use super::measure::{ARRAY, counts};
use super::{Options, SERVER_ARGS, tell_turns, tell_wait};
use crate::figures::millis;
use crate::processes::{Cluster, cpu_by_thread, peak_kib, submit};

/// The pause between two checks.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// How long the server stays away. Batch systems and users do not restart it faster.
const AWAY: Duration = Duration::from_secs(1);
/// The timeout of one step.
const STEP_TIMEOUT: Duration = Duration::from_secs(600);
/// How long clients are timed after all workers are back. The pause before the next kill is the
/// same.
const AFTER: Duration = Duration::from_secs(2);
/// The fraction of all cpus that must be in use before the server is killed.
const LOAD: f64 = 0.9;

/// Submits an array of long tasks, kills and restarts the server as often as planned, and waits
/// until all tasks have ended.
pub(crate) fn run_array(cluster: &mut Cluster, storms: &Storms, options: &Options) -> Result<()> {
    let tasks = options.tasks;
    cluster.time(&submit(&[&format!("--array=1-{tasks}")], "true"))?;
    for _ in 0..options.restarts {
        restart(cluster, storms, options)?;
        std::thread::sleep(AFTER);
    }
    wait("all tasks have finished", || {
        Ok(counts(cluster)?.finished == tasks)
    })
}

/// Kills and restarts the server once, and prints what followed. Times are measured from its start.
fn restart(cluster: &mut Cluster, storms: &Storms, options: &Options) -> Result<()> {
    let cpus = u64::from(options.cpus) * options.workers as u64;
    let mut running = 0;
    wait("nearly all cpus are in use", || {
        let counts = counts(cluster)?;
        running = counts.running;
        let possible = cpus.min(options.tasks.saturating_sub(counts.finished));
        let share = running as f64 / possible.max(1) as f64;
        Ok(share >= LOAD)
    })?;
    let losses = storms.tally().losses;
    let failures = storms.tally().failures();
    let turns = cluster.long_turns()?.len();
    cluster.kill_server()?;
    wait("all workers have noticed", || {
        Ok(storms.tally().losses >= losses + options.workers)
    })?;
    std::thread::sleep(AWAY);
    let begun = Instant::now();
    let answered = cluster.start_server_again(&SERVER_ARGS)?;
    let before = counts(cluster)?.finished;
    let (all_back, first_end, looks, cpu) =
        watch(cluster, storms, options.workers, (begun, before))?;
    let [answered, all_back, first_end] =
        [answered, all_back, first_end].map(|time| time.as_secs_f64());
    println!(
        "killed with {running} running tasks; from its start the server answered after {answered:.2} s, all workers \
         were back after {all_back:.2} s, tasks ended after {first_end:.2} s; {} attempts failed",
        storms.tally().failures() - failures
    );
    println!(
        "  cpu until all were back: core {:.0} ms, all threads {:.0} ms; server at most {} MiB",
        millis(cpu.0),
        millis(cpu.1),
        peak_kib(cluster.server_pid())? / 1_024
    );
    tell_wait("  job info", &looks);
    tell_turns(cluster.long_turns()?.split_off(turns));
    Ok(())
}

type Seen = (Duration, Duration, Vec<Duration>, (Duration, Duration));

/// Waits until all workers are back and tasks end, while a client follows the job.
fn watch(
    cluster: &Cluster,
    storms: &Storms,
    workers: usize,
    (begun, finished): (Instant, u64),
) -> Result<Seen> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut looks = Vec::new();
            while !is_over.load(Ordering::Relaxed) {
                looks.push(cluster.time(&["job", "info", ARRAY])?);
                std::thread::sleep(LOOK_INTERVAL);
            }
            looks.sort_unstable();
            anyhow::Ok(looks)
        });
        let ending = scope.spawn(|| {
            wait("tasks end again", || {
                Ok(counts(cluster)?.finished > finished)
            })?;
            anyhow::Ok(begun.elapsed())
        });
        let back =
            wait("all workers are back", || Ok(storms.tally().up == workers)).and_then(|()| {
                let all_back = begun.elapsed();
                Ok((all_back, cpu(cluster.server_pid())?))
            });
        let first_end = ending.join();
        std::thread::sleep(AFTER);
        is_over.store(true, Ordering::Relaxed);
        let looks = looking.join().map_err(|_| anyhow!("it panicked"))??;
        let (all_back, cpu) = back?;
        let first_end = first_end.map_err(|_| anyhow!("it panicked"))??;
        Ok((all_back, first_end, looks, cpu))
    })
}

/// Returns the CPU time of the core's thread, and of all threads.
fn cpu(pid: u32) -> Result<(Duration, Duration)> {
    let threads = cpu_by_thread(pid)?;
    let core = threads.get("core").copied().unwrap_or_default();
    Ok((core, threads.values().sum()))
}

fn wait(what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
    let begun = Instant::now();
    while !is_so()? {
        ensure!(
            begun.elapsed() < STEP_TIMEOUT,
            "timeout of the wait until {what}"
        );
        std::thread::sleep(LOOK_INTERVAL);
    }
    Ok(())
}
