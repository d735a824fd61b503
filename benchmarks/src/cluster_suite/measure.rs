//! What a server costs, as the kernel counts it, and how long its clients wait meanwhile.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::cluster::Cluster;

/// Pause between two looks at the job.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);

/// CPU time of a process by the names of its threads; numbers at the ends of names do not count.
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

/// Most memory that a process has had resident, in KiB.
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

/// Bytes of all files below a directory.
///
/// # Errors
///
/// If it cannot be read.
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

/// What a client saw of a job while it ran.
#[derive(Debug)]
pub struct Watched {
    /// How long `job info` took, ascending.
    pub looks: Vec<Duration>,
    /// Time since the start, and tasks that had finished by then.
    pub finished: Vec<(Duration, u64)>,
}

impl Watched {
    /// Tasks per second between two shares of all tasks; `None` if nothing was seen in between.
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

    /// The look that so many of a hundred were quicker than.
    #[must_use]
    pub fn percentile(&self, percent: usize) -> Duration {
        let last = self.looks.len().saturating_sub(1);
        let look = self.looks.get(last * percent / 100);
        look.copied().unwrap_or_default()
    }
}

/// Submits an array of tasks that cost nothing, and looks at it until all have finished.
///
/// # Errors
///
/// If a command fails, or a task does.
pub fn run_array(cluster: &Cluster, count: u64) -> Result<Watched> {
    let array = format!("--array=1-{count}");
    let submit = [
        "submit",
        &array,
        "--stdout=none",
        "--stderr=none",
        "--",
        "true",
    ];
    let begun = Instant::now();
    cluster.time(&submit)?;
    let mut watched = Watched {
        looks: Vec::new(),
        finished: Vec::new(),
    };
    loop {
        let look = Instant::now();
        let stats = task_stats(cluster)?;
        watched.looks.push(look.elapsed());
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

fn task_stats(cluster: &Cluster) -> Result<serde_json::Value> {
    let info = cluster
        .command(&["job", "info", "last", "--output-mode=json"])
        .output()
        .context("cannot run a client")?;
    let jobs: serde_json::Value =
        serde_json::from_slice(&info.stdout).context("`job info` printed no JSON")?;
    let stats = jobs.pointer("/0/info/task_stats");
    stats.cloned().context("`job info` printed no task_stats")
}
