//! The handle to the thread that owns the state, and what reaches it.
//!
//! Everybody may have one; it ends with the thread, or the thread with the last of them. The loop on the other side is
//! [`crate::core_thread`].
//!
//! There are two queues, each in order: one for workers, who may report faster than the core takes it, and one for
//! everybody else, who must not wait behind thousands of reports. Between the two there is no order: a request
//! that depends on a report has to be sent after what follows from the report was seen.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::beside::Beside;
use crate::updates::{self, Details, UpdateReceiver, UpdateSender};
use hq_core::id::WorkerId;
use hq_core::job::Job;
use hq_core::refusal::Refusal;
use hq_core::scheduler::demand::WorkerKind;
use hq_core::server_state::{
    Again, BodyEncoder, ChangeKind, Command, Input, LinkEnd, LinkId, NoticeKey, Reattach, Reply,
    RequestId, ServerState, Submission, WatchSpec, WorkerCommand, WorkerMessage, is_large,
};
use hq_core::time::Now;
use hq_core::worker_config::WorkerConfig;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

/// Events of workers that may wait for the core; senders wait when it is full.
const REPORT_QUEUE_LEN: usize = 4_096;
/// The same of everybody else. A client has one question at a time.
const REQUEST_QUEUE_LEN: usize = 1_024;
/// Events of workers that are taken at a time.
const REPORTS_AT_ONCE: usize = 256;
/// Requests of one turn: few, so that dashboards cannot keep workers waiting either.
pub(crate) const REQUESTS_PER_TURN: usize = 16;
/// How long a server that ends waits for its last changes to be stored; a sync on a busy file system takes seconds.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

/// A query, run on the core's thread; it returns what delivers the answer.
pub(crate) type QueryFn = Box<dyn FnOnce(&View<'_>) -> Seen + Send>;
/// Delivers an answer.
pub(crate) type SendReply = Box<dyn FnOnce() + Send>;

/// Result of a query.
pub(crate) enum Seen {
    /// An answer: it may tell of changes, so it waits until they are on disk.
    Answer(SendReply),
    /// A part of an answer, which nobody is shown: the last part waits for all that was seen before.
    Part(SendReply),
}

/// A worker that asks for a seat.
pub(crate) struct Newcomer {
    pub(crate) config: Box<WorkerConfig>,
    /// What it has of the seat that it had.
    pub(crate) reattach: Option<Box<Reattach>>,
    /// Closed when it does not wait any more.
    pub(crate) seat: oneshot::Sender<WorkerRegistration>,
}

/// Messages to the core's thread.
pub(crate) enum Event {
    Asked(Asked, oneshot::Sender<Result<Reply, Refusal>>),
    Watch(WatchSpec, UpdateSender, oneshot::Sender<RequestId>),
    Unwatch(RequestId),
    Query(QueryFn),
    WorkerConnected(Newcomer),
    /// The permit is given back when it is digested.
    WorkerMessage(WorkerId, LinkId, WorkerMessage, OwnedSemaphorePermit),
    WorkerGone(WorkerId, LinkId, LinkEnd),
    /// Outcome of a notification: attempts, and why it was given up.
    Notified(NoticeKey, u32, Option<Box<str>>),
    /// Resources of workers for which automatic allocation can ask now.
    QueueOffers(Vec<WorkerKind>),
    /// The server is to end: whether workers are kept, and who is told when those that are not have gone.
    Ending(bool, oneshot::Sender<()>),
    /// The server ends now and accepts nothing any more; notifies when all that it has accepted is stored and
    /// answered.
    Ended(oneshot::Sender<()>),
    /// The last changes cannot be stored in time; requests that wait for them are refused.
    GiveUp,
    /// Changes that automatic allocation made to its own state, and who is told when they are stored.
    Persist(Vec<ChangeKind>, oneshot::Sender<()>),
}

/// A request for a change, with what could be done for it without the state.
pub(crate) enum Asked {
    Command(Command),
    Submit(Box<Submission>),
    Resubmit(Box<Again>),
}

impl Asked {
    /// Whether it may lead to jobs or tasks that were not there.
    pub(crate) const fn adds(&self) -> bool {
        match self {
            Self::Command(command) => matches!(command, Command::OpenJob { .. }),
            Self::Submit(_) | Self::Resubmit(_) => true,
        }
    }

    /// The same for the state, answered under this id.
    pub(crate) fn input(self, id: RequestId) -> Input {
        match self {
            Self::Command(command) => Input::Request(id, command),
            Self::Submit(submission) => Input::Submit(id, submission),
            Self::Resubmit(again) => Input::Resubmit(id, again),
        }
    }
}

/// The state that queries can see.
pub(crate) struct View<'a> {
    /// The state, between two batches.
    pub(crate) state: &'a ServerState,
    /// Both clocks.
    pub(crate) now: Now,
}

/// A registered worker as its link sees it.
pub(crate) struct WorkerRegistration {
    pub(crate) id: WorkerId,
    /// This connection, among all that the worker had.
    pub(crate) link: LinkId,
    /// It goes on as the worker that it was.
    pub(crate) reattached: bool,
    /// Ends when the server wants the connection closed.
    pub(crate) commands: mpsc::Receiver<WorkerCommand>,
}

/// The core has ended; only while the server goes down.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the server is shutting down")]
pub(crate) struct CoreGone;

/// The other end of [`CoreHandle`]: what waits, and what was taken out of the queues and has not had its turn yet.
pub(crate) struct Events {
    requests: mpsc::Receiver<Event>,
    reports: mpsc::Receiver<(Instant, Event)>,
    taken_requests: VecDeque<Event>,
    taken_reports: VecDeque<(Instant, Event)>,
    request_buffer: Vec<Event>,
    report_buffer: Vec<(Instant, Event)>,
    /// When the last report arrived that had its turn; before the first one, when the queues were made.
    last_heard: Instant,
}

impl Events {
    /// Waits for events; `false` when there are none and all handles are gone.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
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

    /// A request of this turn.
    pub(crate) fn next_request(&mut self) -> Option<Event> {
        self.taken_requests.pop_front()
    }

    /// A message of a worker.
    pub(crate) fn next_report(&mut self) -> Option<Event> {
        let (arrived, report) = self.taken_reports.pop_front()?;
        self.last_heard = arrived;
        Some(report)
    }

    /// Until when all that arrived from workers has had its turn; `None` = until now.
    pub(crate) fn heard_until(&self) -> Option<Instant> {
        if self.taken_reports.is_empty() && self.reports.is_empty() {
            return None;
        }
        let next = self.taken_reports.front().map(|(arrived, _)| *arrived);
        // Events in the queue arrived later than the one that was taken from it.
        Some(next.unwrap_or(self.last_heard))
    }

    /// Whether something that was taken has not had its turn.
    fn are_left(&self) -> bool {
        !self.taken_requests.is_empty() || !self.taken_reports.is_empty()
    }
}

/// With the graphs of large submits encoded for the store, if there is one.
fn encoded(mut submission: Submission, encoder: Option<BodyEncoder>) -> Submission {
    if let Some(encoder) = encoder.filter(|_| submission.is_large()) {
        submission.encode(encoder);
    }
    submission
}

/// Talks to the core's thread.
#[derive(Clone)]
pub(crate) struct CoreHandle {
    requests: mpsc::Sender<Event>,
    reports: mpsc::Sender<(Instant, Event)>,
    /// `None` = nothing is stored.
    encoder: Option<BodyEncoder>,
    beside: Beside,
}

impl CoreHandle {
    /// A handle, and what reaches the other end.
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
            beside: Beside::new(),
        };
        (handle, events)
    }

    /// Where work is done for which only one client waits.
    pub(crate) const fn beside(&self) -> &Beside {
        &self.beside
    }

    /// Has large submits encoded for the store before the state gets them.
    pub(crate) const fn encode_with(&mut self, encoder: BodyEncoder) {
        self.encoder = Some(encoder);
    }

    /// Events that wait at this moment.
    pub(crate) fn waiting(&self) -> u64 {
        fn waiting<T>(queue: &mpsc::Sender<T>) -> usize {
            queue.max_capacity() - queue.capacity()
        }
        (waiting(&self.requests) + waiting(&self.reports)) as u64
    }

    async fn send(&self, event: Event) -> Result<(), CoreGone> {
        self.requests.send(event).await.map_err(|_| CoreGone)
    }

    /// Sends something that must not overtake what workers have said.
    async fn send_behind(&self, event: Event) -> Result<(), CoreGone> {
        // Events that wait for room in the queue have arrived, too.
        let arrived = Instant::now();
        let sent = self.reports.send((arrived, event)).await;
        sent.map_err(|_| CoreGone)
    }

    /// Has a command carried out. When this returns, its consequences are visible to queries and on
    /// disk. The inner error is a refusal: the store takes no changes at present.
    pub(crate) async fn command(
        &self,
        command: Command,
    ) -> Result<Result<Reply, Refusal>, CoreGone> {
        // Work that takes long with very many tasks is done here, where only the client waits for it.
        let asked = match command {
            Command::Submit(spec) => {
                let is_large = is_large(spec.body.listed());
                self.prepare(is_large, || Submission::one(spec)).await?
            }
            Command::SubmitAll(specs) => {
                let listed = specs.iter().map(|spec| 1 + spec.body.listed());
                let is_large = is_large(listed.sum());
                self.prepare(is_large, || Submission::list(specs)).await?
            }
            Command::Resubmit {
                jobs,
                states,
                requests,
            } => return self.resubmit(Again::states(jobs, states, requests)).await,
            Command::ResubmitTasks { job, positions } => {
                return self.resubmit(Again::positions(job, positions)).await;
            }
            Command::OpenJob { .. }
            | Command::CloseJobs(_)
            | Command::CancelJobs { .. }
            | Command::CancelTasks { .. }
            | Command::ForgetJobs { .. }
            | Command::StopWorkers(_)
            | Command::DrainWorkers(_)
            | Command::QuarantineWorkers { .. }
            | Command::ReleaseWorkers(_)
            | Command::Watch(_) => Asked::Command(command),
        };
        self.ask(asked).await
    }

    /// Does for submits what needs no state.
    async fn prepare(
        &self,
        is_large: bool,
        prepare: impl FnOnce() -> Submission + Send + 'static,
    ) -> Result<Asked, CoreGone> {
        if !is_large {
            return Ok(Asked::Submit(Box::new(prepare())));
        }
        let encoder = self.encoder;
        let prepared = self.beside.run(move || encoded(prepare(), encoder)).await;
        Ok(Asked::Submit(Box::new(prepared.ok_or(CoreGone)?)))
    }

    /// Has prepared submits accepted.
    pub(crate) async fn submit(
        &self,
        submission: Submission,
    ) -> Result<Result<Reply, Refusal>, CoreGone> {
        let is_large = submission.is_large();
        let asked = self.prepare(is_large, || submission).await?;
        self.ask(asked).await
    }

    /// Submits jobs again. Large ones are looked at before, one by one: each needs a copy.
    async fn resubmit(&self, mut again: Again) -> Result<Result<Reply, Refusal>, CoreGone> {
        let jobs = again.jobs().clone();
        let found = self.look(move |view| view.state.find_again(&jobs), |_| false);
        let (found, large) = found.await?;
        again.keep_to(found);
        if !large.is_empty() {
            let alone = self.beside.alone().await.ok_or(CoreGone)?;
            // Until the state has taken the copies, and not until the answer, which waits for the disk: while that takes
            // nothing, others are to be refused and not to wait here.
            again.keep(Arc::new(alone));
        }
        for id in large {
            let copy = move |view: &View<'_>| view.state.jobs().get(&id).map(Job::outline);
            // It may have been forgotten meanwhile.
            let Some(job) = self.look(copy, |_| false).await? else {
                continue;
            };
            let encoder = self.encoder;
            let looked_at = self.beside.run(move || {
                again.look_at(&job, encoder);
                again
            });
            again = looked_at.await.ok_or(CoreGone)?;
        }
        self.ask(Asked::Resubmit(Box::new(again))).await
    }

    async fn ask(&self, asked: Asked) -> Result<Result<Reply, Refusal>, CoreGone> {
        let (tx, rx) = oneshot::channel();
        self.send(Event::Asked(asked, tx)).await?;
        rx.await.map_err(|_| CoreGone)
    }

    /// Follows jobs. The receiver ends behind the update that is `done`, or early when the client was
    /// too slow.
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

    pub(crate) async fn unwatch(&self, request: RequestId) -> Result<(), CoreGone> {
        self.send(Event::Unwatch(request)).await
    }

    /// Runs `look` on the core's thread; it must not take long.
    pub(crate) async fn query<T: Send + 'static>(
        &self,
        look: impl FnOnce(&View<'_>) -> T + Send + 'static,
    ) -> Result<T, CoreGone> {
        self.look(look, |_| true).await
    }

    /// The same as [`Self::query`], but what `is_answer` denies does not wait for the store.
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
                // The one who asked may be gone.
                let _ = tx.send(found);
            });
            if is_answer {
                Seen::Answer(tell)
            } else {
                Seen::Part(tell)
            }
        }));
        self.send(event).await?;
        rx.await.map_err(|_| CoreGone)
    }

    /// A worker asks for a seat, which the receiver gets. Who stops waiting must look into the receiver after it has closed it: a seat
    /// that was taken is left with [`CoreHandle::worker_gone`].
    pub(crate) async fn ask_for_seat(
        &self,
        config: Box<WorkerConfig>,
        reattach: Option<Box<Reattach>>,
    ) -> Result<oneshot::Receiver<WorkerRegistration>, CoreGone> {
        let (seat, rx) = oneshot::channel();
        let newcomer = Newcomer {
            config,
            reattach,
            seat,
        };
        self.send_behind(Event::WorkerConnected(newcomer)).await?;
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

    /// Has changes of automatic allocation stored, in the order of the calls. The receiver ends when
    /// they, and all before them, are on disk.
    pub(crate) async fn persist(
        &self,
        changes: Vec<ChangeKind>,
    ) -> Result<oneshot::Receiver<()>, CoreGone> {
        let (tx, rx) = oneshot::channel();
        self.send(Event::Persist(changes, tx)).await?;
        Ok(rx)
    }

    /// Outcome of a notification.
    pub(crate) async fn notified(
        &self,
        key: NoticeKey,
        attempts: u32,
        error: Option<Box<str>>,
    ) -> Result<(), CoreGone> {
        self.send(Event::Notified(key, attempts, error)).await
    }

    /// Resources of workers for which automatic allocation can ask now.
    pub(crate) async fn queue_offers(&self, kinds: Vec<WorkerKind>) -> Result<(), CoreGone> {
        self.send(Event::QueueOffers(kinds)).await
    }

    /// Tells those who wait for changes that these will not be stored as long as the server lives.
    pub(crate) async fn give_up(&self) -> Result<(), CoreGone> {
        self.send_behind(Event::GiveUp).await
    }

    /// Lets workers go, and accepts nothing from then on. Returns when all that were told to end have and what was
    /// accepted is stored and answered, or after a time.
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
                "The last changes were not stored in time; clients that wait for them get an error"
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
