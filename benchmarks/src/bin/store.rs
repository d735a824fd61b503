//! Questions: how many bytes does a finished task cost in the store, how long does a server with
//! many such tasks take from its start to its first answer, and what does keeping the state cost?
//!
//! The store is filled with ten jobs through its writer, as a server would do it. Then the real
//! binary starts with it. For the last question, two servers with one worker each run the same
//! array of `/bin/true` in turn: one normally, and one without a store (`--no-journal`).
//!
//! ```text
//! cargo run --release -p hq-benchmarks --bin store -- [--hq PATH] [--tasks N] [--rounds N] [--count N]
//! ```
//!
//! `--tasks 0` and `--count 0` each skip a question.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, bail};
use hq_benchmarks::cluster::{Cluster, resident_kib};
use hq_benchmarks::rest::wait_for_rest;
use hq_benchmarks::stats::Rounds;
use hq_benchmarks::{options, scratch_dir};
use hq_core::id::{InstanceId, JobId, TaskId, TaskKey, WorkerId};
use hq_core::outcome::{Outcome, Usage};
use hq_core::range::IdArray;
use hq_core::server_state::{Change, ChangeKind, EndAwaited};
use hq_core::task::TaskEnd;
use hq_core::template::{ArrayIds, ArraySpec, SubmitBody, SubmitSpec, SubmitTarget};
use hq_core::testing::{template, worker_config};
use hq_core::time::Timestamp;
use hq_store::{Store, StoreHandle};

/// The number of jobs over which the tasks are spread.
const JOBS: u32 = 10;
/// The number of changes in one batch, as on a busy server.
const BATCH_LEN: usize = 1_000;
/// How long a server may take to start.
const START_TIMEOUT: Duration = Duration::from_secs(120);
/// The pause between two checks whether the server is up.
const LOOK_INTERVAL: Duration = Duration::from_millis(5);

struct Options {
    hq: PathBuf,
    tasks: u32,
    rounds: u32,
    /// The number of tasks in one round of the last question.
    count: u32,
}

fn main() -> Result<()> {
    let options = parse(std::env::args().skip(1))?;
    let dir = scratch_dir("store", &std::env::temp_dir())?;
    run(&options, dir.path())
}

fn run(options: &Options, dir: &Path) -> Result<()> {
    if options.tasks > 0 {
        size_and_restart(options, dir)?;
    }
    if options.count > 0 {
        cost(options, dir)?;
    }
    Ok(())
}

#[expect(
    clippy::print_stdout,
    reason = "the figures are the product of this program"
)]
fn size_and_restart(options: &Options, dir: &Path) -> Result<()> {
    let journal = dir.join("j.db");
    let start = Instant::now();
    let handle = fill(&journal, options.tasks)?;
    let filled = start.elapsed();
    let per_task = || -> Result<f64> {
        Ok(std::fs::metadata(&journal)?.len() as f64 / f64::from(options.tasks))
    };
    let written = per_task()?;
    let rested = wait_for_rest(&journal)?;
    drop(handle);
    println!(
        "{} finished tasks: {written:.1} bytes a task when they were written after {filled:.1?}, {:.1} at rest {rested:.1?} later",
        options.tasks,
        per_task()?
    );
    let mut rounds = Rounds::default();
    let mut resident = 0;
    for round in 0..options.rounds {
        let home = dir.join(format!("server{round}"));
        let (took, memory) = restart(&options.hq, &home, &journal)?;
        rounds.push(took);
        resident = memory;
    }
    let (min, median, max) = rounds.spread().context("no rounds")?;
    println!(
        "start to first answer: {median:.2?} ({min:.2?} - {max:.2?}); {resident} KiB resident"
    );
    Ok(())
}

/// Prints the throughput with a store relative to that without one in the same round.
#[expect(
    clippy::print_stdout,
    reason = "the figures are the product of this program"
)]
fn cost(options: &Options, dir: &Path) -> Result<()> {
    let start = |name: &str, args: &[&str]| {
        let home = dir.join(name);
        std::fs::create_dir_all(&home)?;
        Cluster::start(&options.hq, &home, 2, args)
    };
    let clusters = [start("stored", &[])?, start("unstored", &["--no-journal"])?];
    let array = format!("--array=1-{}", options.count);
    let submit = [
        "submit",
        &array,
        "--stdout=none",
        "--stderr=none",
        "--wait",
        "--",
        "/bin/true",
    ];
    let mut took = [Rounds::default(), Rounds::default()];
    for round in 0..=options.rounds {
        // The two servers alternate in going first.
        for turn in 0..2 {
            let which = (round as usize + turn) % 2;
            let time = clusters[which].time_tasks(&submit, options.count)?;
            // Round 0 warms the caches.
            if round > 0 {
                took[which].push(time);
            }
        }
    }
    let [stored, unstored] = &took;
    for (label, rounds) in [("with a store", stored), ("without", unstored)] {
        let (min, median, max) = rounds.spread().context("no rounds")?;
        let rate = |took: Duration| f64::from(options.count) / took.as_secs_f64();
        println!(
            "{} tasks {label}: {:.0} /s ({:.0} - {:.0})",
            options.count,
            rate(median),
            rate(max),
            rate(min)
        );
    }
    println!(
        "ratio: {:.2}",
        stored.ratio_to(unstored).unwrap_or_default()
    );
    Ok(())
}

fn parse(args: impl Iterator<Item = String>) -> Result<Options> {
    let mut chosen = Options {
        hq: options::hq_beside()?,
        tasks: 1_000_000,
        rounds: 5,
        count: 10_000,
    };
    options::each(args, |name, value| {
        match name {
            "--hq" => chosen.hq = value.file()?,
            "--tasks" => chosen.tasks = value.get()?,
            "--count" => chosen.count = value.get()?,
            "--rounds" => chosen.rounds = value.get()?,
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(chosen)
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let nanos = since.map_or(0, |since| since.as_nanos());
    Timestamp(i64::try_from(nanos).unwrap_or(0))
}

/// Creates a store of completed jobs, fully written.
fn fill(path: &Path, tasks: u32) -> Result<StoreHandle> {
    let mut handle = Store::open(path)?.start("BenchUid", &[], now(), |_| {})?;
    let worker = WorkerId(1);
    let config = Arc::new(worker_config(64));
    let change = |kind| Change { at: now(), kind };
    handle.store(vec![change(ChangeKind::WorkerConnected { worker, config })]);
    for job in 1..=JOBS {
        let ids = IdArray::consecutive(1, tasks / JOBS)?;
        let job = JobId(job);
        handle.store(vec![change(submitted(job, &ids))]);
        let mut batch = Vec::with_capacity(BATCH_LEN);
        for id in ids.iter() {
            let task = TaskKey::new(job, TaskId(id));
            let instance = InstanceId(0);
            batch.push(change(ChangeKind::TaskStarted {
                task,
                instance,
                variant: 0,
                worker,
                nodes: Box::default(),
            }));
            let usage = Usage {
                max_rss_kib: 3_500 + u64::from(id % 100),
                user: Duration::from_millis(u64::from(id % 3)),
                system: Duration::from_millis(1),
            };
            batch.push(change(ChangeKind::TaskEnded {
                task,
                instance,
                worker,
                crash_count: 0,
                end: TaskEnd {
                    outcome: Outcome::Finished,
                    at: now(),
                    run: Duration::from_micros(900 + u64::from(id % 5_000)),
                    usage,
                },
                is_finished: true,
                awaited: EndAwaited::No,
            }));
            if batch.len() >= BATCH_LEN {
                handle.store(std::mem::take(&mut batch));
            }
        }
        batch.push(change(ChangeKind::JobCompleted(job)));
        handle.store(batch);
    }
    handle.client().flush()?;
    Ok(handle)
}

fn submitted(job: JobId, ids: &IdArray) -> ChangeKind {
    let spec = SubmitSpec {
        target: SubmitTarget::NewJob {
            name: "bench".into(),
            max_fails: None,
        },
        submit_dir: Box::from(*b"/project"),
        stream_dir: None,
        after: Vec::new(),
        notify: Vec::new(),
        origin: None,
        nonce: None,
        notes: Vec::new(),
        body: SubmitBody::Array(ArraySpec {
            ids: ArrayIds::Given(ids.clone()),
            entries: None,
            template: Arc::new(template(&["/bin/true"])),
        }),
    };
    ChangeKind::Submitted {
        job,
        is_new: true,
        name: "bench".into(),
        max_fails: None,
        number: 0,
        ids: ids.clone(),
        spec: Arc::new(spec),
        encoded: None,
    }
}

/// A server that is ended on drop.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns how long a server takes from its start to its first answer, and its memory in KiB at
/// that time.
fn restart(hq: &Path, home: &Path, journal: &Path) -> Result<(Duration, u64)> {
    let command = |args: &[&str]| {
        let mut command = Command::new(hq);
        command
            .args(args)
            .env("HQ_SERVER_DIR", home)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command
    };
    let journal = journal.to_string_lossy();
    let start = Instant::now();
    let server = Server(command(&["server", "start", "--journal", &journal]).spawn()?);
    loop {
        if command(&["job", "info", "last"]).status()?.success() {
            return Ok((start.elapsed(), resident_kib(server.0.id())?));
        }
        if start.elapsed() > START_TIMEOUT {
            bail!("the server did not answer in time");
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}
