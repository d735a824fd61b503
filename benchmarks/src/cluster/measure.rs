//! Measures what a server costs, by the kernel's accounting, and the latencies of its clients
//! meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};

use super::Options;
use super::home::Storms;
use super::pages::{self, Answers};
use crate::processes::{Cluster, submit};

/// The pause between two queries about the job, and between two additional jobs with one task.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// The array is the first job of its server.
pub(super) const ARRAY: &str = "1";

/// The measurements of a client while a job ran.
#[derive(Debug)]
pub(crate) struct Watched {
    /// Durations of `job info`, in ascending order.
    pub(crate) looks: Vec<Duration>,
    /// Durations of `submit --wait` of another task, in ascending order.
    pub(crate) submits: Vec<Duration>,
    /// For each loss of all connections, the time until the last worker was back.
    pub(crate) storms: Vec<Duration>,
    /// Durations of the web page's requests.
    pub(crate) pages: Answers,
    /// Times since the start, with the number of tasks finished by then.
    pub(crate) finished: Vec<(Duration, u64)>,
}

impl Watched {
    /// Returns the tasks per second between two fractions of all tasks, or `None` if there was no
    /// observation in between.
    pub(crate) fn rate(&self, from: f64, to: f64) -> Option<f64> {
        let float = |count: u64| count as f64;
        let all = float(self.finished.last()?.1);
        let at = |share: f64| {
            let mut points = self.finished.iter();
            points.find(|(_, count)| float(*count) >= share * all)
        };
        let ((start, before), (end, after)) = (at(from)?, at(to)?);
        let time = end.saturating_sub(*start).as_secs_f64();
        (time > 0.0).then(|| float(after - before) / time)
    }
}

/// The resource of the only real worker, requested by the timed tasks.
const PROBE: &str = "probe";

/// Starts a real worker for the timed tasks. The tasks of users run on workers with their own
/// processes, while one of a thousand simulated workers has to wait for its turn on their shared
/// thread.
pub(crate) fn start_probed_worker(cluster: &mut Cluster) -> Result<()> {
    let resource = format!("--resource={PROBE}=sum(1)");
    cluster.start_worker(&["--cpus=1", &resource, "--time-limit=12h"])
}

/// Submits an array of tasks without cost, and follows it until all have finished. Meanwhile, in
/// addition to other load, submits single tasks to the real worker and waits for them.
pub(crate) fn run_array(
    cluster: &Cluster,
    options: &Options,
    storms: &Storms,
    http_port: Option<u16>,
) -> Result<Watched> {
    let count = options.tasks;
    let array = format!("--array=1-{count}");
    let begun = Instant::now();
    // The requested time is longer than the real worker's lifetime, so it gets none of these tasks.
    cluster.time(&submit(&[&array, "--time-request=24h"], "true"))?;
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let submitting = scope.spawn(|| submit_others(cluster, &has_ended));
        let raging = scope.spawn(|| rage(options, storms, &has_ended));
        let asking = scope.spawn(|| match http_port {
            Some(port) => pages::ask_until(&cluster.server_dir(), port, &has_ended),
            None => Ok(Vec::new()),
        });
        let watched = look_until_finished(cluster, count, begun);
        has_ended.store(true, Ordering::Relaxed);
        let submits = submitting.join().map_err(|_| anyhow!("it panicked"))??;
        Ok(Watched {
            submits,
            storms: raging.join().map_err(|_| anyhow!("it panicked"))??,
            pages: asking.join().map_err(|_| anyhow!("it panicked"))??,
            ..watched?
        })
    })
}

/// The time between two losses of all connections.
const STORM_INTERVAL: Duration = Duration::from_secs(2);
/// How long workers may take to come back.
const STORM_TIMEOUT: Duration = Duration::from_secs(300);

/// Makes all workers lose their connections several times. Returns for each time how long it took
/// until the last one was back. Ends early if the work ends.
fn rage(options: &Options, storms: &Storms, has_ended: &AtomicBool) -> Result<Vec<Duration>> {
    let workers = options.workers;
    let mut took = Vec::new();
    for storm in 1..=options.storms {
        std::thread::sleep(STORM_INTERVAL);
        if has_ended.load(Ordering::Relaxed) {
            break;
        }
        let (begun, losses) = (Instant::now(), storms.tally().losses);
        storms.begin();
        loop {
            let tally = storms.tally();
            if tally.losses >= losses + workers && tally.up >= workers {
                break;
            }
            ensure!(
                begun.elapsed() < STORM_TIMEOUT,
                "only {} workers have come back from storm {storm}; attempts failed: {:?}",
                tally.up,
                tally.reasons
            );
            drop(tally);
            std::thread::sleep(Duration::from_millis(1));
        }
        took.push(begun.elapsed());
    }
    Ok(took)
}

fn submit_others(cluster: &Cluster, has_ended: &AtomicBool) -> Result<Vec<Duration>> {
    let mut submits = Vec::new();
    let resource = format!("--resource={PROBE}=1");
    while !has_ended.load(Ordering::Relaxed) {
        let took = cluster.time(&submit(&["--wait", &resource], "true"))?;
        submits.push(took);
        std::thread::sleep(LOOK_INTERVAL.saturating_sub(took));
    }
    submits.sort_unstable();
    Ok(submits)
}

fn look_until_finished(cluster: &Cluster, count: u64, begun: Instant) -> Result<Watched> {
    let mut watched = Watched {
        looks: Vec::new(),
        submits: Vec::new(),
        storms: Vec::new(),
        pages: Vec::new(),
        finished: Vec::new(),
    };
    loop {
        let look = Instant::now();
        // Requested as a table, because the JSON output lists every task of the array, which takes
        // the client longer than everything else here.
        watched.looks.push(cluster.time(&["job", "info", ARRAY])?);
        let finished = counts(cluster)?.finished;
        watched.finished.push((begun.elapsed(), finished));
        if finished == count {
            watched.looks.sort_unstable();
            return Ok(watched);
        }
        std::thread::sleep(LOOK_INTERVAL.saturating_sub(look.elapsed()));
    }
}

/// The numbers of the array's tasks. None has failed.
pub(super) struct Counts {
    pub(super) running: u64,
    pub(super) finished: u64,
}

pub(super) fn counts(cluster: &Cluster) -> Result<Counts> {
    let jobs = cluster.json(&["job", "list", "--all"])?;
    let id = serde_json::Value::from(ARRAY.parse::<u32>()?);
    let mut jobs = jobs.as_array().into_iter().flatten();
    let array = jobs.find(|job| job["id"] == id);
    let stats = array.and_then(|job| job.get("task_stats"));
    let stats = stats.context("`job list` printed no task_stats")?;
    let number = |name: &str| stats.get(name).and_then(serde_json::Value::as_u64);
    ensure!(number("failed") == Some(0), "tasks failed: {stats}");
    Ok(Counts {
        running: number("running").unwrap_or(0),
        finished: number("finished").unwrap_or(0),
    })
}
