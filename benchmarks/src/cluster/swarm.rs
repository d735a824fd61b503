//! Simulates any number of workers in this process.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use hq_core::testing::worker_config;
use hq_core::worker_config::{OnServerLost, WorkerConfig};
use rustix::process::{Resource, Rlimit, getrlimit, setpriority_process, setrlimit};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::Options;
use super::home::{Home, Storms};
use super::tasks::{Ledger, TaskTime};
use super::worker::{Counts, SimulatedWorker};

/// The maximum number of simultaneous connection attempts. More would only wait in the server's
/// queue and be penalized, because all come from one address, and a single thread is slow with a
/// thousand handshakes.
const CONNECTING_MAX: usize = 192;
/// The heartbeat period of real workers.
const HEARTBEAT: Duration = Duration::from_secs(8);

/// How long a failed run may take to stop the server.
const END_TIMEOUT: Duration = Duration::from_secs(20);

/// The priority of the workers' thread, which yields to everything else.
const LOWEST_PRIORITY: i32 = 19;

/// Simulated workers that have registered.
#[derive(Debug)]
pub(super) struct Swarm {
    runtime: Runtime,
    workers: JoinSet<Result<Counts>>,
    storms: Storms,
    /// The time from the first connection to the last registration.
    pub(crate) registered_in: Duration,
}

impl Swarm {
    /// Registers the workers with the server of a directory.
    pub(crate) fn start(
        server_dir: &Path,
        options: &Options,
        ledger: &Arc<Ledger>,
    ) -> Result<Self> {
        let (count, time) = (options.workers, options.task_time()?);
        raise_descriptor_limit(count)?;
        // One thread is used because the server needs the other CPUs.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let worker_config = Arc::new(WorkerConfig {
            heartbeat: HEARTBEAT,
            on_server_lost: OnServerLost::Reconnect,
            // Simulated workers do not run task graphs.
            takes_successors: false,
            ..worker_config(options.cpus)
        });
        let storms = Storms::default();
        let home = Home {
            server_dir: server_dir.into(),
            config: worker_config,
            link: options.link(),
            address: Arc::default(),
            ledger: Arc::clone(ledger),
            storms: storms.clone(),
            room: Arc::new(Semaphore::new(CONNECTING_MAX)),
        };
        let begun = Instant::now();
        let registered = runtime.block_on(register_all(&home, count, time))?;
        let registered_in = begun.elapsed();
        let mut workers = JoinSet::new();
        for worker in registered {
            workers.spawn_on(worker.run(), runtime.handle());
        }
        Ok(Self {
            runtime,
            workers,
            storms,
            registered_in,
        })
    }

    /// Returns the means to make all workers lose their connections.
    pub(super) fn storms(&self) -> Storms {
        self.storms.clone()
    }

    /// Runs the workers until `done` returns, which runs on a separate thread.
    pub(crate) fn work<T: Send + 'static>(
        &mut self,
        done: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let workers = &mut self.workers;
        self.runtime.block_on(async {
            let mut done = tokio::task::spawn_blocking(done);
            // Set after the thread of `done` was started, which must not inherit it. The workers
            // stand for other machines, so they must not take cpus from the server and from timed
            // commands. Failure does not matter.
            let _ = setpriority_process(None, LOWEST_PRIORITY);
            let ended = tokio::select! {
                result = &mut done => return result.context("it panicked")?,
                Some(ended) = workers.join_next() => ended,
            };
            // When `done` fails, it stops the server and the workers before it returns.
            if let Ok(Ok(Err(error))) = tokio::time::timeout(END_TIMEOUT, done).await {
                return Err(error);
            }
            let counts = ended.context("a worker panicked")??;
            bail!("a worker ended too early: {counts:?}");
        })
    }

    /// Waits until the server has stopped all workers that it knows. Returns their counters.
    pub(crate) fn join(
        mut self,
        stop: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<Counts> {
        let workers = &mut self.workers;
        self.runtime.block_on(async {
            let stopped = tokio::task::spawn_blocking(stop);
            stopped.await.context("it panicked")??;
            let mut all = Counts::default();
            // A worker that lost its connection just before would look for the server forever.
            while let Ok(Some(ended)) = tokio::time::timeout(END_TIMEOUT, workers.join_next()).await
            {
                let counts = ended.context("a worker panicked")??;
                all.received += counts.received;
                all.ended += counts.ended;
            }
            workers.abort_all();
            Ok(all)
        })
    }
}

async fn register_all(home: &Home, count: usize, time: TaskTime) -> Result<Vec<SimulatedWorker>> {
    let mut attempts = JoinSet::new();
    for _ in 0..count {
        attempts.spawn(SimulatedWorker::register(home.clone(), time));
    }
    let mut registered = Vec::with_capacity(count);
    while let Some(attempt) = attempts.join_next().await {
        registered.push(attempt.context("a registration panicked")??);
    }
    Ok(registered)
}

/// Each worker needs one descriptor, and the rest of the process some.
fn raise_descriptor_limit(count: usize) -> Result<()> {
    let wanted = u64::try_from(count)? + 200;
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_none_or(|current| current >= wanted) {
        return Ok(());
    }
    if limit.maximum.is_some_and(|maximum| maximum < wanted) {
        bail!("{count} workers need {wanted} descriptors; the hard limit is lower (`ulimit -Hn`)");
    }
    let raised = Rlimit {
        current: Some(wanted),
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).context("cannot raise the limit of descriptors")
}
