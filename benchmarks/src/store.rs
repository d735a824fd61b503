//! `store`: what the state of finished tasks costs.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Result, bail};
use clap::Args;
use hq_core::id::{InstanceId, JobId, TaskId, TaskKey, WorkerId};
use hq_core::outcome::{Outcome, Usage};
use hq_core::range::IdArray;
use hq_core::server_state::{Change, ChangeKind, EndAwaited};
use hq_core::task::TaskEnd;
use hq_core::template::{ArrayIds, ArraySpec, SubmitBody, SubmitSpec};
use hq_core::testing::{array_submit, template, worker_config};
use hq_core::time::Timestamp;
use hq_store::{Store, StoreHandle, reader};

use crate::figures::Rounds;
use crate::options::Hq;
use crate::processes::{Cluster, resident_kib};

/// The number of jobs over which the tasks are spread.
const JOBS: u32 = 10;
/// The number of changes in one batch, as on a busy server.
const BATCH_LEN: usize = 1_000;
/// The timeout of compaction, and the pause between checks. Compaction is done when the file and
/// the rows no longer change.
const REST_TIMEOUT: Duration = Duration::from_secs(1_200);
const REST_INTERVAL: Duration = Duration::from_secs(4);
/// The number of rows that may remain, because they are too few for another pass.
const ROWS_AT_REST: u64 = 1_100;

/// How many bytes does a finished task cost in the store, how long does a server with many of them
/// take from its start to its first answer, and what does keeping the state cost?
///
/// The store is filled with ten jobs through its writer, as a server would do it. Then the real
/// binary starts with it. For the last question, two servers with one worker each run the same
/// array of `/bin/true` in turn: one normally, and one without a store (`--no-journal`).
#[derive(Args)]
pub(crate) struct Options {
    #[command(flatten)]
    hq: Hq,
    /// The number of finished tasks in the store; 0 leaves out the first two questions.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    tasks: u32,
    /// The number of starts, and of rounds of the last question.
    #[arg(long, value_name = "N", default_value_t = 5)]
    rounds: u32,
    /// The number of tasks in a round of the last question; 0 leaves it out.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    count: u32,
}

pub(crate) fn run(options: &Options, dir: &Path) -> Result<()> {
    let hq = options.hq.path()?;
    if options.tasks > 0 {
        size_and_restart(options, &hq, dir)?;
    }
    if options.count > 0 {
        cost(options, &hq, dir)?;
    }
    Ok(())
}

fn size_and_restart(options: &Options, hq: &Path, dir: &Path) -> Result<()> {
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
    let journal = ["--journal", &journal.to_string_lossy()];
    for round in 0..options.rounds {
        let home = dir.join(format!("server{round}"));
        let first = ["job", "info", "last"];
        let (mut cluster, took) = Cluster::start_until(hq, &home, &journal, &first)?;
        rounds.push(took);
        resident = resident_kib(cluster.server_pid())?;
        cluster.kill_server()?;
    }
    let [min, median, max] = rounds.spread();
    println!(
        "start to first answer: {median:.2?} ({min:.2?} - {max:.2?}); {resident} KiB resident"
    );
    Ok(())
}

/// Prints the throughput with a store relative to that without one in the same round.
fn cost(options: &Options, hq: &Path, dir: &Path) -> Result<()> {
    let start = |name, args: &[&str]| Cluster::start(hq, &dir.join(name), 2, args);
    let clusters = [start("stored", &[])?, start("unstored", &["--no-journal"])?];
    let mut took = [Rounds::default(), Rounds::default()];
    for round in 0..=options.rounds {
        // The two servers alternate in going first.
        for turn in 0..2 {
            let which = (round as usize + turn) % 2;
            let time = clusters[which].time_array(options.count, "/bin/true")?;
            // Round 0 warms the caches.
            if round > 0 {
                took[which].push(time);
            }
        }
    }
    let [stored, unstored] = &took;
    for (label, rounds) in [("with a store", stored), ("without", unstored)] {
        let count = options.count;
        let [most, median, least] = rounds.rates(f64::from(count));
        println!("{count} tasks {label}: {median:.0} /s ({least:.0} - {most:.0})");
    }
    println!("ratio: {:.2}", stored.ratio_to(unstored));
    Ok(())
}

/// Waits until compaction has merged finished tasks and returned the pages. Returns how long it
/// took.
pub(crate) fn wait_for_rest(journal: &Path) -> Result<Duration> {
    let start = Instant::now();
    let mut before = (0, 0);
    loop {
        let size = std::fs::metadata(journal)?.len();
        let now = (reader::task_rows(journal)?, size);
        if now == before && now.0 < ROWS_AT_REST {
            return Ok(start.elapsed());
        }
        if start.elapsed() > REST_TIMEOUT {
            bail!("{} tasks still have rows of their own", now.0);
        }
        before = now;
        std::thread::sleep(REST_INTERVAL);
    }
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
        submit_dir: Box::from(*b"/project"),
        body: SubmitBody::Array(ArraySpec {
            ids: ArrayIds::Given(ids.clone()),
            entries: None,
            template: Arc::new(template(&["/bin/true"])),
        }),
        ..array_submit(1, template(&[]))
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
