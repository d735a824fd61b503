//! Measures what a server costs, by the kernel's accounting, and the latencies of its clients
//! meanwhile.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow, ensure};

use super::home::Storms;
use super::pages::{self, Answers};
use crate::cluster::Cluster;

/// The pause between two queries about the job, and between two additional jobs with one task.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// The array is the first job of its server.
const ARRAY: &str = "1";

/// Returns the CPU time of a process by thread name, without trailing numbers.
///
/// # Errors
///
/// If the process is gone.
pub fn cpu_by_thread(pid: u32) -> Result<BTreeMap<String, Duration>> {
    let mut times: BTreeMap<String, Duration> = BTreeMap::new();
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let thread = thread?.path();
        // A thread may end at any moment.
        let (Ok(name), Ok(stat)) = (
            std::fs::read_to_string(thread.join("comm")),
            std::fs::read_to_string(thread.join("schedstat")),
        ) else {
            continue;
        };
        let name = name
            .trim()
            .trim_end_matches(|c: char| c.is_ascii_digit() || c == '-');
        let on_cpu = stat.split_whitespace().next().context("no time")?.parse()?;
        *times.entry(name.to_owned()).or_default() += Duration::from_nanos(on_cpu);
    }
    Ok(times)
}

/// Returns the peak resident memory of a process in KiB.
///
/// # Errors
///
/// If the process is gone.
pub fn peak_kib(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let value = line.context("no VmHWM")?.split_whitespace().next();
    value.context("no value")?.parse().context("not a number")
}

/// Returns the total size in bytes of all files below a directory.
///
/// # Errors
///
/// If the directory cannot be read.
pub fn bytes_below(dir: &Path) -> Result<u64> {
    let mut sum = 0;
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        if kind.is_dir() {
            sum += bytes_below(&entry.path())?;
        } else if kind.is_file() {
            sum += entry.metadata()?.len();
        }
    }
    Ok(sum)
}

/// What a client measured while a job ran.
#[derive(Debug)]
pub struct Watched {
    /// Durations of `job info`, in ascending order.
    pub looks: Vec<Duration>,
    /// Durations of `submit --wait` of another task, in ascending order.
    pub submits: Vec<Duration>,
    /// For each loss of all connections, the time until the last worker was back.
    pub storms: Vec<Duration>,
    /// Durations of the web page's requests.
    pub pages: Answers,
    /// Times since the start, with the number of tasks finished by then.
    pub finished: Vec<(Duration, u64)>,
}

impl Watched {
    /// Returns the tasks per second between two fractions of all tasks, or `None` if there was no
    /// observation in between.
    #[must_use]
    pub fn rate(&self, from: f64, to: f64) -> Option<f64> {
        #[expect(clippy::cast_precision_loss, reason = "a rate")]
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

/// Returns the value below which `percent` percent of the sorted durations lie.
#[must_use]
pub fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let last = sorted.len().saturating_sub(1);
    sorted
        .get(last * percent / 100)
        .copied()
        .unwrap_or_default()
}

/// The load that runs in parallel with an array.
#[derive(Debug)]
pub struct Meanwhile {
    /// Makes all workers lose their connections.
    pub storms: Storms,
    /// How often they lose their connections.
    pub storm_count: usize,
    /// The number of workers that come back.
    pub workers: usize,
    /// The port of the web page, if it is simulated.
    pub http_port: Option<u16>,
}

/// The resource of the only real worker, requested by the timed tasks.
const PROBE: &str = "probe";

/// Starts a real worker for the timed tasks. The tasks of users run on workers with their own
/// processes, while one of a thousand simulated workers has to wait for its turn on their shared
/// thread.
///
/// # Errors
///
/// If it does not start.
pub fn start_probed_worker(cluster: &mut Cluster) -> Result<()> {
    let resource = format!("--resource={PROBE}=sum(1)");
    cluster.start_worker(&["--cpus=1", &resource, "--time-limit=12h"])
}

/// Submits an array of tasks without cost, and follows it until all have finished. Meanwhile, in
/// addition to other load, submits single tasks to the real worker and waits for them.
///
/// # Errors
///
/// If a command or a task fails.
pub fn run_array(cluster: &Cluster, count: u64, meanwhile: &Meanwhile) -> Result<Watched> {
    let array = format!("--array=1-{count}");
    let begun = Instant::now();
    // The requested time is longer than the real worker's lifetime, so it gets none of these tasks.
    cluster.time(&submit(&[&array, "--time-request=24h"]))?;
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let submitting = scope.spawn(|| submit_others(cluster, &has_ended));
        let raging = scope.spawn(|| rage(meanwhile, &has_ended));
        let asking = scope.spawn(|| match meanwhile.http_port {
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

/// Returns a submit of tasks that write nothing.
pub(super) fn submit<'a>(options: &[&'a str]) -> Vec<&'a str> {
    let quiet = ["--stdout=none", "--stderr=none", "--", "true"];
    [&["submit"], options, &quiet].concat()
}

/// The time between two losses of all connections.
const STORM_INTERVAL: Duration = Duration::from_secs(2);
/// How long workers may take to come back.
const STORM_TIMEOUT: Duration = Duration::from_secs(300);

/// Makes all workers lose their connections several times. Returns for each time how long it took
/// until the last one was back. Ends early if the work ends.
fn rage(meanwhile: &Meanwhile, has_ended: &AtomicBool) -> Result<Vec<Duration>> {
    let (workers, tally) = (meanwhile.workers, meanwhile.storms.tally());
    let mut took = Vec::new();
    for storm in 1..=meanwhile.storm_count {
        std::thread::sleep(STORM_INTERVAL);
        if has_ended.load(Ordering::Relaxed) {
            break;
        }
        let (begun, losses) = (Instant::now(), tally.losses());
        meanwhile.storms.begin();
        while tally.losses() < losses + workers || tally.up() < workers {
            ensure!(
                begun.elapsed() < STORM_TIMEOUT,
                "only {} workers have come back from storm {storm}; attempts failed: {:?}",
                tally.up(),
                tally.reasons()
            );
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
        let took = cluster.time(&submit(&["--wait", &resource]))?;
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
        let stats = task_stats(cluster)?;
        let number = |name: &str| {
            stats
                .get(name)
                .and_then(serde_json::Value::as_u64)
                .unwrap_or(0)
        };
        ensure!(number("failed") == 0, "tasks failed: {stats}");
        watched.finished.push((begun.elapsed(), number("finished")));
        if number("finished") == count {
            watched.looks.sort_unstable();
            return Ok(watched);
        }
        std::thread::sleep(LOOK_INTERVAL.saturating_sub(look.elapsed()));
    }
}

/// Returns the counts of the array's tasks.
pub(super) fn task_stats(cluster: &Cluster) -> Result<serde_json::Value> {
    let list = cluster
        .command(&["job", "list", "--all", "--output-mode=json"])
        .output()
        .context("cannot run a client")?;
    let jobs: Vec<serde_json::Value> =
        serde_json::from_slice(&list.stdout).context("`job list` printed no JSON")?;
    let id = serde_json::Value::from(ARRAY.parse::<u32>()?);
    let array = jobs.iter().find(|job| job["id"] == id);
    let stats = array.and_then(|job| job.get("task_stats"));
    stats.cloned().context("`job list` printed no task_stats")
}
