//! The same campaign in real time, with a real server, real workers, and processes that sleep and
//! allocate memory.
//!
//! Run times and walltimes are in seconds instead of hours. All random numbers are the same as in
//! virtual time.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::{Asked, Campaign, Figures, hours};
use crate::processes::{Cluster, Process};
use crate::scratch_dir;

/// A campaign that takes longer than this counts as one that would never end.
const DEADLINE: Duration = Duration::from_secs(900);
/// The pause between two checks of the workers and the job.
const LOOK: Duration = Duration::from_millis(200);
/// The name of the file with the needs of all tasks, in the working directory of the tasks, and of
/// the file where each attempt records its grant.
const NEEDS: &str = "needs";
const GRANTS: &str = "grants";
/// The size of a memory page.
const PAGE: usize = 4_096;

/// A worker that is restarted when its lifetime is over.
struct Seat {
    number: u32,
    since: Instant,
    worker: Option<Process>,
}

/// The body of a campaign's task, called in its process.
pub(crate) fn task() -> Result<()> {
    let variable = |name: &str| std::env::var(name).with_context(|| format!("{name} is not set"));
    let number: usize = variable("HQ_TASK_ID")?.parse()?;
    let granted = variable("HQ_RESOURCE_REQUEST_mem")?;
    let granted = granted.split(' ').next().unwrap_or_default();
    let line = format!("{number} {} {granted}\n", variable("HQ_INSTANCE_ID")?);
    let mut grants = OpenOptions::new().append(true).create(true).open(GRANTS)?;
    grants.write_all(line.as_bytes())?;
    let needs = std::fs::read_to_string(NEEDS)?;
    let need = needs.lines().nth(number).context("no such task")?;
    let mut words = need.split(' ');
    let mut next = || words.next().context("too few words");
    let bytes = next()?.parse::<usize>()? << 20;
    let run = Duration::from_millis(next()?.parse()?);
    let peak: f64 = next()?.parse()?;
    std::thread::sleep(run.mul_f64(peak));
    let mut memory = vec![0_u8; bytes];
    for byte in memory.iter_mut().step_by(PAGE) {
        *byte = 1;
    }
    std::thread::sleep(run.mul_f64(1.0 - peak));
    drop(std::hint::black_box(memory));
    Ok(())
}

impl Campaign {
    /// Runs the campaign with real processes of this hq binary.
    pub(super) fn play_real(&self, hq: &Path, seed: u64, asked: Asked) -> Result<Figures> {
        let dir = scratch_dir(&std::env::temp_dir())?;
        let needs = self.needs(seed);
        let mut text = String::new();
        for need in &needs {
            let (mebibytes, ms, peak) = (need.mebibytes, need.run.as_millis(), need.peak);
            writeln!(text, "{mebibytes} {ms} {peak}")?;
        }
        std::fs::write(dir.path().join(NEEDS), text)?;
        let largest = needs.iter().map(|need| need.mebibytes).max().unwrap_or(1);
        let start = Instant::now();
        let mut seats: Vec<Seat> = (0..self.workers)
            .map(|number| Seat {
                number,
                since: start,
                worker: None,
            })
            .collect();
        let cluster = Cluster::start_server(hq, dir.path(), &[])?;
        self.submit(&cluster, asked, largest)?;
        let start = Instant::now();
        let mut figures = Figures::default();
        while start.elapsed() < DEADLINE {
            for seat in &mut seats {
                self.keep(seat, &cluster, start)?;
            }
            let stats = cluster.json(&[
                "query",
                "SELECT count(*) AS n, sum(state = 'finished') AS good, \
                 sum(state IN ('waiting', 'running')) AS left_over FROM tasks",
            ])?;
            let number = |name: &str| stats.pointer(&format!("/0/{name}")).and_then(Value::as_u64);
            figures.finished = number("good")
                .and_then(|n| u32::try_from(n).ok())
                .unwrap_or(0);
            let is_over = number("left_over") == Some(0);
            if is_over && number("n") == Some(self.tasks.into()) {
                break;
            }
            std::thread::sleep(LOOK);
        }
        figures.makespan = hours(start.elapsed());
        account(&cluster, dir.path(), &mut figures)?;
        Ok(figures)
    }

    fn submit(&self, cluster: &Cluster, asked: Asked, largest: u32) -> Result<()> {
        let exe = std::env::current_exe()?;
        let exe = exe
            .to_str()
            .context("the path of this program is no text")?;
        let array = format!("--array=0-{}", self.tasks - 1);
        let memory = if asked.auto_memory {
            "--resource=mem=auto".to_owned()
        } else {
            // The worker's own memory is added.
            format!("--resource=mem={}MiB", largest + largest / 16 + 64)
        };
        let predict = match asked.predict {
            0 => "--no-predict".to_owned(),
            permille => format!("--predict={}", f64::from(permille) / 1_000.0),
        };
        let options = ["submit", &array, &memory, &predict, "--retry-delay=10ms"];
        let rest = ["--stdout=none", "--stderr=none", "--", exe, "campaign-task"];
        let options: Vec<&str> = options
            .into_iter()
            .chain((!asked.auto_memory).then_some("--retries=0"))
            .filter(|option| asked.auto_memory || !option.starts_with("--retry-delay"))
            .chain(rest)
            .collect();
        cluster.time(&options).map(drop)
    }

    /// Starts a worker, or its replacement. Allocations start one after the other, as if the batch
    /// system gradually had room.
    fn keep(&self, seat: &mut Seat, cluster: &Cluster, start: Instant) -> Result<()> {
        if start.elapsed() < self.walltime * seat.number / self.workers {
            return Ok(());
        }
        if let Some(worker) = &mut seat.worker {
            if worker.is_running() {
                return Ok(());
            }
            ensure!(
                seat.since.elapsed() > self.walltime / 2,
                "a worker has ended long before its time"
            );
        }
        let cpus = format!("--cpus={}", self.cpus);
        let memory = format!("--resource=mem=sum({})", self.memory);
        let limit = format!("--time-limit={}ms", self.walltime.as_millis());
        let args = ["--enforce-memory", &cpus, &memory, &limit];
        seat.worker = Some(cluster.spawn_worker(&args)?);
        seat.since = Instant::now();
        Ok(())
    }
}

/// Adds up the grants of all attempts.
fn account(cluster: &Cluster, dir: &Path, figures: &mut Figures) -> Result<()> {
    let grants = std::fs::read_to_string(dir.join(GRANTS))?;
    let mut granted = BTreeMap::new();
    for line in grants.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        if let [task, instance, mebibytes] = words[..] {
            let key: (u64, u64) = (task.parse()?, instance.parse()?);
            granted.insert(key, mebibytes.parse::<f64>()?);
        }
    }
    let sql = "SELECT task, instance, state, run_us, message FROM attempts";
    let rows = cluster.json(&["query", sql])?;
    for row in rows.as_array().context("no rows")? {
        let number = |name: &str| row.get(name).and_then(Value::as_u64);
        let Some((task, instance)) = number("task").zip(number("instance")) else {
            continue;
        };
        let run = hours(Duration::from_micros(number("run_us").unwrap_or(0)));
        let mebibytes = granted.get(&(task, instance)).copied().unwrap_or(0.0);
        figures.reserved += mebibytes / 1_024.0 * run;
        let message = row.get("message").and_then(Value::as_str);
        let message = message.unwrap_or_default();
        if message.contains("time limit was reached") {
            figures.cut_off += run;
            figures.cut_off_count += 1;
        } else if row.get("state").and_then(Value::as_str) == Some("failed") {
            figures.out_of_memory += 1;
        }
    }
    Ok(())
}
