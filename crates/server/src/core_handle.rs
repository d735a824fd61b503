//! The handle of the thread that owns the state, and the queues to that thread.
//!
//! Handles can be cloned freely. The thread ends with the last handle. Its loop is
//! [`crate::core_thread`].
//!
//! There are two queues, each in order. One is for workers, which may send reports faster than the
//! core handles them. The other is for clients, which must not wait behind thousands of reports.
//! The two queues are not ordered relative to each other, so a request that depends on a report
//! must be sent after an effect of the report has been seen.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::blocking_pool::BlockingPool;
use crate::updates::{self, Details, UpdateReceiver, UpdateSender};
use hq_core::autoalloc;
use hq_core::id::WorkerId;
use hq_core::job::Job;
use hq_core::refusal::Refusal;
use hq_core::server_state::{
    Again, BodyEncoder, ChangeKind, Command, Input, LinkEnd, LinkId, NoticeKey, Reattach, Reply,
    RequestId, ServerState, Submission, WatchSpec, WorkerCommand, WorkerMessage, is_large,
};
use hq_core::time::Now;
use hq_core::worker_config::WorkerConfig;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

/// The maximum number of queued events of workers. Senders wait when the queue is full.
const REPORT_QUEUE_LEN: usize = 4_096;
/// The maximum number of other queued events. A client has one request at a time.
const REQUEST_QUEUE_LEN: usize = 1_024;
/// The maximum number of worker events that are taken from the queue at once.
const REPORTS_AT_ONCE: usize = 256;
/// The maximum number of requests per turn. It is small, so that dashboards cannot delay workers.
pub(crate) const REQUESTS_PER_TURN: usize = 16;
/// How long a shutdown waits for the last changes to be stored. A sync on a busy file system takes
/// seconds.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// A query, which runs on the core's thread. Returns the code that delivers the answer.
pub(crate) type QueryFn = Box<dyn FnOnce(&View<'_>) -> QueryResult + Send>;
/// Delivers an answer.
pub(crate) type SendReply = Box<dyn FnOnce() + Send>;

/// The result of a query.
pub(crate) enum QueryResult {
    /// The final answer. It may reveal changes, so it waits until they are on disk.
    Final(SendReply),
    /// A partial answer that the client does not see. The last part waits for everything seen
    /// before it.
    Partial(SendReply),
}

/// A worker that is registering.
pub(crate) struct PendingRegistration {
    pub(crate) config: Box<WorkerConfig>,
    /// The worker's previous state, if it reconnects.
    pub(crate) reattach: Option<Box<Reattach>>,
    /// Receives the registration. The channel is closed if the worker no longer waits.
    pub(crate) reply: oneshot::Sender<WorkerRegistration>,
}

/// A message to the core's thread.
pub(crate) enum Event {
    /// A request for a change, prepared as far as possible without the state. The flag says whether
    /// it may add jobs or tasks.
    Asked(bool, MakeInput, oneshot::Sender<Result<Reply, Refusal>>),
    Watch(WatchSpec, UpdateSender, oneshot::Sender<RequestId>),
    Unwatch(RequestId),
    Query(QueryFn),
    WorkerConnected(PendingRegistration),
    /// A message of a worker. The permit is released after the message has been handled.
    WorkerMessage(WorkerId, LinkId, WorkerMessage, OwnedSemaphorePermit),
    WorkerGone(WorkerId, LinkId, LinkEnd),
    /// The outcome of a notification: the number of attempts, and why delivery finally failed.
    Notified(NoticeKey, u32, Option<Box<str>>),
    /// Answers of batch systems.
    Allocation(Vec<autoalloc::Input>),
    /// The server is shutting down. Contains whether the workers stay, and a channel that reports
    /// when all workers that should end have left.
    Ending(bool, oneshot::Sender<()>),
    /// The server ends now and accepts nothing more. The channel reports when everything that was
    /// accepted has been stored and answered.
    Ended(oneshot::Sender<()>),
    /// The last changes cannot be stored in time. Requests that wait for them are rejected.
    GiveUp,
    /// Changes that the core's state does not contain, and a channel that reports their commit.
    Persist(Vec<ChangeKind>, oneshot::Sender<()>),
}

/// Creates an input from a request.
pub(crate) type MakeInput = Box<dyn FnOnce(RequestId) -> Input + Send>;

/// The data that queries can see.
pub(crate) struct View<'a> {
    /// The state between two batches.
    pub(crate) state: &'a ServerState,
    /// The time on both clocks.
    pub(crate) now: Now,
}

/// A registered worker, as its connection sees it.
pub(crate) struct WorkerRegistration {
    pub(crate) id: WorkerId,
    /// This connection. Its id is unique among all connections of the worker.
    pub(crate) link: LinkId,
    /// Whether the server recognized the worker.
    pub(crate) reattached: bool,
    /// How long the worker waits for a lost server after its tasks have ended.
    pub(crate) server_wait: Duration,
    /// The commands for the worker. The channel ends when the server wants to close the connection.
    pub(crate) commands: mpsc::Receiver<WorkerCommand>,
}

/// The core has ended, which happens only during shutdown.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the server is shutting down")]
pub(crate) struct CoreGone;

/// The receiving end of [`CoreHandle`]: queued events, and events that were taken from the queues
/// but not handled yet.
pub(crate) struct Events {
    requests: mpsc::Receiver<Event>,
    reports: mpsc::Receiver<(Instant, Event)>,
    taken_requests: VecDeque<Event>,
    taken_reports: VecDeque<(Instant, Event)>,
    request_buffer: Vec<Event>,
    report_buffer: Vec<(Instant, Event)>,
    /// When the last handled report arrived or, before the first one, when the queues were created.
    last_heard: Instant,
}

impl Events {
    /// Waits for events. Returns `false` if there are none and all handles are gone.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing is lost.
    pub(crate) async fn take(&mut self) -> bool {
        poll_fn(|cx| {
            let room = REQUESTS_PER_TURN - self.taken_requests.len();
            let mut are_gone = false;
            if room > 0 {
                let polled = self
                    .requests
                    .poll_recv_many(cx, &mut self.request_buffer, room);
                self.taken_requests.extend(self.request_buffer.drain(..));
                are_gone = polled == Poll::Ready(0);
            }
            if self.taken_reports.is_empty() {
                let polled =
                    self.reports
                        .poll_recv_many(cx, &mut self.report_buffer, REPORTS_AT_ONCE);
                self.taken_reports.extend(self.report_buffer.drain(..));
                are_gone &= polled == Poll::Ready(0);
            }
            if self.are_left() {
                Poll::Ready(true)
            } else if are_gone {
                Poll::Ready(false)
            } else {
                Poll::Pending
            }
        })
        .await
    }

    /// Returns the next request of this turn.
    pub(crate) fn next_request(&mut self) -> Option<Event> {
        self.taken_requests.pop_front()
    }

    /// Returns the next message of a worker.
    pub(crate) fn next_report(&mut self) -> Option<Event> {
        let (arrived, report) = self.taken_reports.pop_front()?;
        self.last_heard = arrived;
        Some(report)
    }

    /// Returns the arrival time up to which all events of workers have been handled, or `None` if
    /// no events are left.
    pub(crate) fn heard_until(&self) -> Option<Instant> {
        if self.taken_reports.is_empty() && self.reports.is_empty() {
            return None;
        }
        let next = self.taken_reports.front().map(|(arrived, _)| *arrived);
        // Queued events arrived later than the one taken from the queue.
        Some(next.unwrap_or(self.last_heard))
    }

    /// Returns whether an event has been taken from a queue but not handled yet.
    fn are_left(&self) -> bool {
        !self.taken_requests.is_empty() || !self.taken_reports.is_empty()
    }
}

/// Talks to the core's thread.
#[derive(Clone)]
pub(crate) struct CoreHandle {
    requests: mpsc::Sender<Event>,
    reports: mpsc::Sender<(Instant, Event)>,
    /// `None` if nothing is stored.
    encoder: Option<BodyEncoder>,
    blocking_pool: BlockingPool,
}

impl CoreHandle {
    /// Creates a handle and the receiving end.
    pub(crate) fn new() -> (Self, Events) {
        let (requests, requests_rx) = mpsc::channel(REQUEST_QUEUE_LEN);
        let (reports, reports_rx) = mpsc::channel(REPORT_QUEUE_LEN);
        let events = Events {
            requests: requests_rx,
            reports: reports_rx,
            taken_requests: VecDeque::new(),
            taken_reports: VecDeque::new(),
            request_buffer: Vec::new(),
            report_buffer: Vec::new(),
            last_heard: Instant::now(),
        };
        let handle = Self {
            requests,
            reports,
            encoder: None,
            blocking_pool: BlockingPool::new(),
        };
        (handle, events)
    }

    /// Returns a handle that answers queries about a state which never changes, as of `now`. Other
    /// requests are ignored. Must be called within a runtime.
    pub(crate) fn of_recorded(state: ServerState, now: Now) -> Self {
        let (handle, mut events) = Self::new();
        tokio::spawn(async move {
            while events.take().await {
                while let Some(request) = events.next_request() {
                    if let Event::Query(look) = request {
                        let view = View { state: &state, now };
                        let (QueryResult::Final(send) | QueryResult::Partial(send)) = look(&view);
                        send();
                    }
                }
            }
        });
        handle
    }

    /// Returns the thread pool for long work of single clients.
    pub(crate) const fn blocking_pool(&self) -> &BlockingPool {
        &self.blocking_pool
    }

    /// Sets the encoder for large submits.
    pub(crate) const fn encode_with(&mut self, encoder: BodyEncoder) {
        self.encoder = Some(encoder);
    }

    /// Returns the number of waiting events.
    pub(crate) fn waiting(&self) -> u64 {
        fn waiting<T>(queue: &mpsc::Sender<T>) -> usize {
            queue.max_capacity() - queue.capacity()
        }
        (waiting(&self.requests) + waiting(&self.reports)) as u64
    }

    /// Sends an event through the queue of clients.
    pub(crate) async fn send(&self, event: Event) -> Result<(), CoreGone> {
        self.requests.send(event).await.map_err(|_| CoreGone)
    }

    /// Sends an event that must not overtake earlier messages of workers.
    async fn send_behind(&self, event: Event) -> Result<(), CoreGone> {
        // Events that wait for room in the queue count as arrived.
        let arrived = Instant::now();
        let sent = self.reports.send((arrived, event)).await;
        sent.map_err(|_| CoreGone)
    }

    /// Carries out a command. When this returns, the command's effects are visible to queries and
    /// on disk. The inner error is a rejection, because the store currently takes no changes.
    pub(crate) async fn command(
        &self,
        command: Command,
    ) -> Result<Result<Reply, Refusal>, CoreGone> {
        let adds = matches!(command, Command::OpenJob { .. });
        // Work on very many tasks is done here, where it delays only the client.
        match command {
            Command::Submit(spec) => {
                let listed = spec.body.listed();
                self.submit(listed, || Submission::one(spec, None)).await
            }
            Command::SubmitAll(specs) => {
                let listed = specs.iter().map(|spec| 1 + spec.body.listed()).sum();
                self.submit(listed, || Submission::list(specs)).await
            }
            Command::Resubmit {
                jobs,
                states,
                requests,
            } => self.resubmit(Again::states(jobs, states, requests)).await,
            Command::ResubmitTasks { job, positions } => {
                self.resubmit(Again::positions(job, positions)).await
            }
            Command::OpenJob { .. }
            | Command::CloseJobs(_)
            | Command::CancelJobs { .. }
            | Command::CancelTasks { .. }
            | Command::SignalTasks { .. }
            | Command::HoldTasks { .. }
            | Command::ChangeJob { .. }
            | Command::Limit(_)
            | Command::DropEntries { .. }
            | Command::ForgetJobs { .. }
            | Command::Queue(_)
            | Command::StopWorkers(_)
            | Command::DrainWorkers(_)
            | Command::QuarantineWorkers { .. }
            | Command::ReleaseWorkers(_)
            | Command::Watch(_) => self.ask(adds, |id| Input::Request(id, command)).await,
        }
    }

    /// Sends submits with `listed` tasks to the core. They are prepared outside the state, and
    /// large graphs are encoded for the store.
    pub(crate) async fn submit(
        &self,
        listed: usize,
        prepare: impl FnOnce() -> Submission + Send + 'static,
    ) -> Result<Result<Reply, Refusal>, CoreGone> {
        let encoder = self.encoder;
        let prepare = move || {
            let mut submission = prepare();
            if let Some(encoder) = encoder.filter(|_| submission.is_large()) {
                submission.encode(encoder);
            }
            submission
        };
        let submission = match is_large(listed) {
            true => self.blocking_pool.run(prepare).await.ok_or(CoreGone)?,
            false => prepare(),
        };
        self.ask(true, |id| Input::Submit(id, Box::new(submission)))
            .await
    }

    /// Resubmits jobs. Large jobs are prepared first, one by one, because each needs a copy.
    async fn resubmit(&self, mut again: Again) -> Result<Result<Reply, Refusal>, CoreGone> {
        let jobs = again.jobs().clone();
        let found = self.look(move |view| view.state.find_again(&jobs), |_| false);
        let (found, large) = found.await?;
        again.keep_to(found);
        if !large.is_empty() {
            let alone = self
                .blocking_pool
                .acquire_for_resubmit()
                .await
                .ok_or(CoreGone)?;
            // The permit is held until the state has taken the copies. It is not held until the
            // answer is sent, which waits for the disk: while the disk hangs, other requests should
            // be rejected instead of waiting here.
            again.keep(Arc::new(alone));
        }
        for id in large {
            let copy = move |view: &View<'_>| view.state.jobs().get(&id).map(Job::outline);
            // The job may have been forgotten in the meantime.
            let Some(job) = self.look(copy, |_| false).await? else {
                continue;
            };
            let encoder = self.encoder;
            let looked_at = self.blocking_pool.run(move || {
                again.look_at(&job, encoder);
                again
            });
            again = looked_at.await.ok_or(CoreGone)?;
        }
        self.ask(true, |id| Input::Resubmit(id, Box::new(again)))
            .await
    }

    async fn ask(
        &self,
        adds: bool,
        input: impl FnOnce(RequestId) -> Input + Send + 'static,
    ) -> Result<Result<Reply, Refusal>, CoreGone> {
        let (tx, rx) = oneshot::channel();
        self.send(Event::Asked(adds, Box::new(input), tx)).await?;
        rx.await.map_err(|_| CoreGone)
    }

    /// Watches jobs. The receiver ends after the update that is `done`, or earlier if the client
    /// was too slow.
    pub(crate) async fn watch(
        &self,
        spec: WatchSpec,
        details: Details,
    ) -> Result<(RequestId, UpdateReceiver), CoreGone> {
        let (tx, rx) = updates::channel(details);
        let (id_tx, id_rx) = oneshot::channel();
        self.send(Event::Watch(spec, tx, id_tx)).await?;
        Ok((id_rx.await.map_err(|_| CoreGone)?, rx))
    }

    /// Runs `look` on the core's thread; it must be short.
    pub(crate) async fn query<T: Send + 'static>(
        &self,
        look: impl FnOnce(&View<'_>) -> T + Send + 'static,
    ) -> Result<T, CoreGone> {
        self.look(look, |_| true).await
    }

    /// Like [`Self::query`], but does not wait for the store if `is_answer` returns false.
    pub(crate) async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&View<'_>) -> T + Send + 'static,
        is_answer: impl FnOnce(&T) -> bool + Send + 'static,
    ) -> Result<T, CoreGone> {
        let (tx, rx) = oneshot::channel();
        let event = Event::Query(Box::new(move |view| {
            let found = look(view);
            let is_answer = is_answer(&found);
            let tell: SendReply = Box::new(move || {
                // The caller may have been dropped.
                let _ = tx.send(found);
            });
            if is_answer {
                QueryResult::Final(tell)
            } else {
                QueryResult::Partial(tell)
            }
        }));
        self.send(event).await?;
        rx.await.map_err(|_| CoreGone)
    }

    /// Registers a worker. The receiver gets the result. A caller that stops waiting must close the
    /// receiver and then check it. If a registration has arrived, it must be given up with
    /// [`CoreHandle::worker_gone`].
    pub(crate) async fn register(
        &self,
        config: Box<WorkerConfig>,
        reattach: Option<Box<Reattach>>,
    ) -> Result<oneshot::Receiver<WorkerRegistration>, CoreGone> {
        let (reply, rx) = oneshot::channel();
        let pending = PendingRegistration {
            config,
            reattach,
            reply,
        };
        self.send_behind(Event::WorkerConnected(pending)).await?;
        Ok(rx)
    }

    pub(crate) async fn worker_message(
        &self,
        worker: WorkerId,
        link: LinkId,
        message: WorkerMessage,
        waiting: OwnedSemaphorePermit,
    ) -> Result<(), CoreGone> {
        self.send_behind(Event::WorkerMessage(worker, link, message, waiting))
            .await
    }

    /// Stores changes that are not part of the core's state, in the order of the calls. The receiver
    /// completes when these and all earlier changes are on disk.
    pub(crate) async fn persist(
        &self,
        changes: Vec<ChangeKind>,
    ) -> Result<oneshot::Receiver<()>, CoreGone> {
        let (tx, rx) = oneshot::channel();
        self.send(Event::Persist(changes, tx)).await?;
        Ok(rx)
    }

    /// Stores a change like [`Self::persist`], and returns when it is on disk. `turn`, which keeps
    /// changes in order, is dropped earlier: while the disk is full, the wait is long, and other
    /// requests must work during that time.
    pub(crate) async fn store(&self, change: ChangeKind, turn: impl Send) -> Result<(), Refusal> {
        let stored = self.persist(vec![change]).await;
        let stored = stored.map_err(|_| Refusal::shutting_down())?;
        drop(turn);
        // The channel was dropped without a message: the server ended before it could store the
        // change.
        let ended = "the server ended before this was stored. Repeat the command";
        stored.await.map_err(|_| Refusal::unavailable(ended))
    }

    /// Fails all requests that wait for commits, because these commits will not happen in this run
    /// of the server.
    pub(crate) async fn give_up(&self) -> Result<(), CoreGone> {
        self.send_behind(Event::GiveUp).await
    }

    /// Lets workers leave and stops accepting anything. Returns when all workers that should end
    /// have left and everything that was accepted has been stored and answered, or after a timeout.
    pub(crate) async fn end(&self, keep_workers: bool, patience: Duration) -> Result<(), CoreGone> {
        let (tx, left) = oneshot::channel();
        self.send_behind(Event::Ending(keep_workers, tx)).await?;
        if tokio::time::timeout(patience, left).await.is_err() {
            tracing::warn!("Not all workers have ended in time; the server does not wait for them");
        }
        let (tx, stored) = oneshot::channel();
        self.send_behind(Event::Ended(tx)).await?;
        if tokio::time::timeout(STORE_TIMEOUT, stored).await.is_err() {
            tracing::warn!(
                "The last changes were not stored in time; the waiting clients get an error"
            );
            self.give_up().await?;
        }
        Ok(())
    }

    pub(crate) async fn worker_gone(
        &self,
        worker: WorkerId,
        link: LinkId,
        how: LinkEnd,
    ) -> Result<(), CoreGone> {
        self.send_behind(Event::WorkerGone(worker, link, how)).await
    }
}
