//! Automatic allocation: carries out the decisions of [`hq_core::autoalloc`].
//!
//! One tokio task owns the state. It receives news about workers from the core's thread, asks the
//! core for the demand, and runs the commands of batch systems, each in a tokio task with a time
//! limit. It does not decide how many allocations to request.

mod answer;
mod command;
mod dirs;
mod driver;
mod parse;
mod script;
mod work;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hq_core::autoalloc::Limits;
use hq_core::id::{QueueId, WorkerId};
use hq_core::refusal::Refusal;
use hq_core::worker_config::WorkerConfig;
use hq_protocol::client::{self, alloc_reply, reply::Reply};
use hq_protocol::convert::AllocRequest;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::core_handle::CoreHandle;

/// The maximum number of queued requests.
const REQUEST_QUEUE_LEN: usize = 64;
/// How long a worker in one of our allocations waits for a lost server when it has no tasks left.
const SERVER_WAIT: Duration = Duration::from_secs(120);
/// How long a server that is shutting down may spend canceling its allocations.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);

/// An event about a worker that runs inside a batch job.
pub(crate) enum WorkerNews {
    /// The worker has registered.
    Connected(WorkerId, Arc<WorkerConfig>),
    /// The worker is gone.
    Lost {
        worker: WorkerId,
        config: Arc<WorkerConfig>,
        crashed: bool,
        lived: Duration,
        used: bool,
    },
}

/// The channel from the core's thread to automatic allocation. Sending never blocks.
pub(crate) struct DemandNotifier {
    changed: Arc<Notify>,
    // The channel is unbounded, but it holds only two short items per worker.
    workers: mpsc::UnboundedSender<WorkerNews>,
}

impl DemandNotifier {
    /// Reports that tasks or workers may have changed.
    pub(crate) fn changed(&self) {
        self.changed.notify_one();
    }

    /// Reports that a worker inside a batch job has registered or is gone.
    pub(crate) fn worker(&self, news: WorkerNews) {
        // This fails only while the server shuts down.
        let _ = self.workers.send(news);
    }
}

/// The receiving end of [`DemandNotifier`].
pub(crate) struct NewsReceiver {
    changed: Arc<Notify>,
    workers: mpsc::UnboundedReceiver<WorkerNews>,
}

#[cfg(test)]
impl NewsReceiver {
    /// Waits until tasks or workers may have changed.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }
}

/// Creates both ends.
pub(crate) fn news() -> (DemandNotifier, NewsReceiver) {
    let changed = Arc::new(Notify::new());
    let (tx, rx) = mpsc::unbounded_channel();
    let news = DemandNotifier {
        changed: changed.clone(),
        workers: tx,
    };
    (
        news,
        NewsReceiver {
            changed,
            workers: rx,
        },
    )
}

/// The ids of batch jobs that contain, or may come to contain, this server's own workers. `None`
/// stands for a submission whose id is not known yet.
#[derive(Clone, Default)]
pub(crate) struct OwnJobs(Arc<Mutex<BTreeSet<Option<Box<str>>>>>);

impl OwnJobs {
    /// Returns how long this worker waits for a lost server after its tasks have ended. The wait is
    /// zero in a batch job that this server did not submit, because only the user may end that job.
    /// A worker may register before the answer to the submission of its job has arrived.
    pub(crate) fn server_wait(&self, config: &WorkerConfig) -> Duration {
        let is_own = config.allocation.as_ref().is_some_and(|allocation| {
            let jobs = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            jobs.contains(&None) || jobs.contains(&Some(allocation.id.clone()))
        });
        if is_own { SERVER_WAIT } else { Duration::ZERO }
    }

    fn set(&self, jobs: BTreeSet<Option<Box<str>>>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = jobs;
    }
}

enum AllocMessage {
    Request(Box<AllocRequest>, oneshot::Sender<Reply>),
    /// Stops automatic allocation. Contains whether to keep the allocations, and a channel that
    /// reports completion.
    Shutdown(bool, oneshot::Sender<()>),
}

/// A handle to automatic allocation.
#[derive(Clone)]
pub(crate) struct AllocHandle {
    asks: mpsc::Sender<AllocMessage>,
    own: OwnJobs,
}

impl AllocHandle {
    /// Returns the batch jobs that this server's workers run in.
    pub(crate) fn own_jobs(&self) -> OwnJobs {
        self.own.clone()
    }

    /// Sends a request and returns the reply.
    pub(crate) async fn ask(&self, request: Box<AllocRequest>) -> Reply {
        let (tx, rx) = oneshot::channel();
        let sent = self.asks.send(AllocMessage::Request(request, tx)).await;
        let gone = || Refusal::shutting_down().into();
        if sent.is_err() {
            return gone();
        }
        rx.await.unwrap_or_else(|_| gone())
    }

    /// Stops automatic allocation and, unless `keep` is set, cancels all allocations. Returns when
    /// that is done or has timed out.
    pub(crate) async fn shutdown(&self, keep: bool) {
        let (tx, rx) = oneshot::channel();
        if self
            .asks
            .send(AllocMessage::Shutdown(keep, tx))
            .await
            .is_ok()
            && tokio::time::timeout(SHUTDOWN_TIMEOUT, rx).await.is_err()
        {
            tracing::warn!("not all allocations could be canceled in time");
        }
    }
}

/// Starts automatic allocation for the server of this instance directory, with the queues that an
/// earlier run stored.
pub(crate) fn start(
    core: CoreHandle,
    news: NewsReceiver,
    instance: &Path,
    stored: Vec<(QueueId, Option<Vec<u8>>)>,
) -> AllocHandle {
    let (tx, rx) = mpsc::channel(REQUEST_QUEUE_LEN);
    let own = OwnJobs::default();
    let mut driver = driver::Driver::new(core, instance, limits(), own.clone());
    driver.restore(stored);
    tokio::spawn(driver.run(rx, news));
    AllocHandle { asks: tx, own }
}

/// Returns the limits that the environment sets.
fn limits() -> Limits {
    let default = Limits::default();
    let millis = |name, default| variable(name).map_or(default, Duration::from_millis);
    Limits {
        refresh: millis("HQ_AUTOALLOC_REFRESH_INTERVAL_MS", default.refresh),
        tick: millis("HQ_AUTOALLOC_SCHEDULE_TICK_INTERVAL_MS", default.tick),
        schedule_delay: millis("HQ_AUTOALLOC_MAX_SCHEDULE_DELAY_MS", default.schedule_delay),
        allocation_fails_max: variable("HQ_AUTOALLOC_MAX_ALLOCATION_FAILS")
            .and_then(|fails| u32::try_from(fails).ok())
            .unwrap_or(default.allocation_fails_max),
    }
}

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    let value = text.trim().parse().ok();
    if value.is_none() {
        tracing::warn!("{name} is ignored: expected a number, found `{text}`");
    }
    value
}

fn reply(reply: alloc_reply::Reply) -> Reply {
    Reply::Alloc(client::AllocReply { reply: Some(reply) })
}

#[cfg(test)]
mod tests {
    use hq_core::testing::worker_config;
    use hq_core::worker_config::{Allocation, BatchSystem};

    use super::*;

    #[test]
    fn workers_of_own_allocations_wait_for_the_server_also_before_sbatch_has_answered() {
        let known = || Some("104".into());
        for (jobs, in_allocation, wait) in [
            (vec![Some("105".into())], true, SERVER_WAIT),
            (vec![known(), None], true, SERVER_WAIT),
            (vec![known()], true, Duration::ZERO),
            (vec![None], false, Duration::ZERO),
        ] {
            let own = OwnJobs::default();
            own.set(jobs.into_iter().collect());
            let mut config = worker_config(1);
            config.allocation = in_allocation.then(|| Allocation {
                manager: BatchSystem::Slurm,
                id: "105".into(),
                cluster: None,
                time_limit: None,
            });
            assert_eq!(own.server_wait(&config), wait);
        }
    }
}
