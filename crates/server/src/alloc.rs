//! Automatic allocation: carries out the decisions of [`hq_core::autoalloc`].
//!
//! One tokio task owns the state. It receives news about workers from the core's thread, asks the
//! core for the demand, and runs the commands of batch systems, each in a tokio task with a time
//! limit. It does not decide how many allocations to request.

mod answer;
mod command;
mod dirs;
mod driver;
mod hosts;
mod parse;
mod record;
mod script;
mod work;

use std::path::Path;
use std::sync::Arc;
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
}

impl AllocHandle {
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
    let mut driver = driver::Driver::new(core, instance, limits());
    driver.restore(stored);
    tokio::spawn(driver.run(rx, news));
    AllocHandle { asks: tx }
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
