//! The connections of workers, and requests through them for the output of tasks.
//!
//! The requests bypass the core, which only knows where a task ran. It is not an error if a worker
//! is gone or does not answer in time, because the output may be readable in another way.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use hq_core::id::WorkerId;
use hq_core::server_state::LinkId;
use hq_protocol::client::WorkerInfo;
use hq_protocol::convert::OutputRequest;
use hq_protocol::worker;
use tokio::sync::{mpsc, oneshot};

/// The maximum number of queued requests per worker connection. Further requests wait.
const QUEUE_LEN: usize = 16;

/// How long to wait for an answer, in addition to the requested wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads an output on this machine. May hang with its file system.
pub type ReadOutput = fn(OutputRequest) -> worker::Output;

/// The pending requests and the connections of workers.
#[derive(Debug)]
pub(crate) struct Questions {
    inner: Mutex<Inner>,
    /// Answers in place of workers if it is set.
    pub(crate) reader: OnceLock<ReadOutput>,
}

#[derive(Debug)]
struct Inner {
    next_id: u64,
    links: BTreeMap<WorkerId, Link>,
    waiting: BTreeMap<u64, (WorkerId, oneshot::Sender<worker::Output>)>,
}

/// A worker's connection.
#[derive(Debug)]
struct Link {
    id: LinkId,
    requests: mpsc::Sender<OutputRequest>,
    /// The address of the relay that forwards the connection.
    via: Option<Box<str>>,
}

impl Questions {
    /// Creates an empty set of requests. `start` is a time in nanoseconds that differs from that of
    /// every earlier server, so that a late answer to an earlier server is not mistaken for a
    /// current one.
    pub(crate) fn new(start: u64) -> Self {
        Self {
            inner: Mutex::new(Inner {
                next_id: start,
                links: BTreeMap::new(),
                waiting: BTreeMap::new(),
            }),
            reader: OnceLock::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // The tables are consistent between any two statements, so a poisoned lock is usable.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a worker's connection for requests. The returned queue ends when the worker opens
    /// a newer connection.
    pub(crate) fn connect(
        &self,
        worker: WorkerId,
        id: LinkId,
        via: Option<Box<str>>,
    ) -> mpsc::Receiver<OutputRequest> {
        if let Some(relay) = &via {
            tracing::info!(%worker, "The worker is connected through the relay at {relay}");
        }
        let (requests, rx) = mpsc::channel(QUEUE_LEN);
        let link = Link { id, requests, via };
        self.lock().links.insert(worker, link);
        rx
    }

    /// Removes a connection that has ended. Requests that wait for its answers fail.
    pub(crate) fn disconnect(&self, worker: WorkerId, link: LinkId) {
        let mut inner = self.lock();
        if inner
            .links
            .get(&worker)
            .is_some_and(|current| current.id == link)
        {
            inner.links.remove(&worker);
            inner.waiting.retain(|_, (asked, _)| *asked != worker);
        }
    }

    /// Sends a request to a worker. Returns `None` if the worker is not connected or does not
    /// answer.
    pub(crate) async fn ask(
        &self,
        worker: WorkerId,
        mut request: OutputRequest,
    ) -> Option<worker::Output> {
        if let Some(&read) = self.reader.get() {
            let reading = tokio::task::spawn_blocking(move || read(request));
            return tokio::time::timeout(ANSWER_TIMEOUT, reading)
                .await
                .ok()?
                .ok();
        }
        let (answer, link) = {
            let mut inner = self.lock();
            let link = inner.links.get(&worker)?.requests.clone();
            request.id = inner.next_id;
            inner.next_id = inner.next_id.wrapping_add(1);
            let (tx, rx) = oneshot::channel();
            inner.waiting.insert(request.id, (worker, tx));
            (rx, link)
        };
        let _waiting = Waiting(self, request.id);
        let limit = request.wait + ANSWER_TIMEOUT;
        let exchange = async {
            link.send(request).await.ok()?;
            answer.await.ok()
        };
        tokio::time::timeout(limit, exchange).await.ok()?
    }

    /// Passes an answer to the client, if it still waits.
    pub(crate) fn answer(&self, worker: WorkerId, output: worker::Output) {
        let mut inner = self.lock();
        if inner
            .waiting
            .get(&output.id)
            .is_some_and(|(asked, _)| *asked == worker)
            && let Some((_, waiting)) = inner.waiting.remove(&output.id)
        {
            let _ = waiting.send(output);
        }
    }

    /// Adds the relay through which each worker is connected.
    pub(crate) fn add_relays(&self, workers: &mut [WorkerInfo]) {
        let inner = self.lock();
        for worker in workers {
            let link = inner.links.get(&WorkerId(worker.id));
            worker.via = link.and_then(|link| link.via.as_deref().map(str::to_owned));
        }
    }
}

/// Forgets a request when its client no longer waits.
struct Waiting<'a>(&'a Questions, u64);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.lock().waiting.remove(&self.1);
    }
}

#[cfg(test)]
mod tests {
    use hq_protocol::convert::{OutputSource, ReadFrom};

    use super::*;

    const WORKER: WorkerId = WorkerId(3);

    fn request() -> OutputRequest {
        OutputRequest {
            id: 0,
            source: OutputSource::File(b"/out"[..].into()),
            from: ReadFrom::Offset(0),
            wait: Duration::ZERO,
        }
    }

    fn output(id: u64) -> worker::Output {
        worker::Output {
            id,
            size: 7,
            ..worker::Output::default()
        }
    }

    #[tokio::test]
    async fn answers_find_those_who_asked() {
        let questions = Questions::new(100);
        let mut asked = questions.connect(WORKER, LinkId(1), None);
        let serve = async {
            let first = asked.recv().await.expect("a question");
            let second = asked.recv().await.expect("a question");
            assert_ne!(first.id, second.id);
            questions.answer(WorkerId(9), output(first.id));
            questions.answer(WORKER, output(second.id));
            questions.answer(WORKER, output(first.id));
            questions.answer(WORKER, output(7));
        };
        let (first, second, ()) = tokio::join!(
            questions.ask(WORKER, request()),
            questions.ask(WORKER, request()),
            serve
        );
        assert_eq!(first.map(|output| output.size), Some(7));
        assert_eq!(second.map(|output| output.size), Some(7));
        assert!(questions.lock().waiting.is_empty());
    }

    #[tokio::test]
    async fn a_worker_that_goes_answers_with_nothing() {
        let questions = Questions::new(0);
        assert_eq!(questions.ask(WORKER, request()).await, None, "unknown");
        let mut asked = questions.connect(WORKER, LinkId(1), None);
        let serve = async {
            asked.recv().await.expect("a question");
            questions.disconnect(WORKER, LinkId(5));
            assert!(!questions.lock().waiting.is_empty(), "not this connection");
            questions.disconnect(WORKER, LinkId(1));
        };
        let (answer, ()) = tokio::join!(questions.ask(WORKER, request()), serve);
        assert_eq!(answer, None);
        assert!(questions.lock().waiting.is_empty());
    }
    #[test]
    fn the_latest_connection_of_a_worker_counts() {
        let questions = Questions::new(0);
        let via = || {
            let mut worker = [WorkerInfo {
                id: 3,
                ..WorkerInfo::default()
            }];
            questions.add_relays(&mut worker);
            worker[0].via.clone()
        };
        let connect = |link, relay: Option<&str>| {
            questions.connect(WORKER, LinkId(link), relay.map(Into::into));
        };
        assert_eq!(via(), None);
        connect(1, Some("a:1"));
        connect(2, Some("b:1"));
        questions.disconnect(WORKER, LinkId(1));
        assert_eq!(via().as_deref(), Some("b:1"), "the first was missed late");
        connect(3, None);
        assert_eq!(via(), None);
        connect(4, Some("c:1"));
        questions.disconnect(WORKER, LinkId(2));
        assert_eq!(via().as_deref(), Some("c:1"));
        questions.disconnect(WORKER, LinkId(4));
        assert_eq!(via(), None);
    }
}
