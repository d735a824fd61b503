//! The thread that owns the state: drain a batch, apply it, carry out the effects.
//!
//! Others reach it through [`CoreHandle`]. Nothing on this thread waits for a peer: a peer that does
//! not take its messages in time is cut off.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Instant;

use hq_core::id::WorkerId;
use hq_core::refusal::Refusal;
use hq_core::server_state::{
    Change, ChangeKind, Command, Effect, Input, LinkId, NoticeKey, ROWS_PER_ROUND_MAX, Reattach,
    Reply, RequestId, ServerState, Wait, WatchSpec, WorkerCommand,
};
use hq_core::time::Now;
use hq_core::worker_config::WorkerConfig;
use hq_protocol::client;
use hq_protocol::limits::PAGE_BYTES_MAX;
use hq_store::{Health, Progress, StoreHandle};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::alloc::{News, WorkerNews};
use crate::clock::Clock;
use crate::core_handle::{CoreHandle, Event, Seen, Tell, View, WorkerSeat};
use crate::gate::StoreGate;
use crate::notify::Outbox;
use crate::query;
use crate::stats::Stats;

/// Events of one batch: large enough to share a scheduling round, small enough to stay under a few
/// milliseconds.
const BATCH_LEN: usize = 256;
/// Commands that may wait for a worker that does not read; beyond that it is cut off.
const WORKER_QUEUE_LEN: usize = 1_024;

/// Starts the core's thread. It ends when all handles are gone.
///
/// # Errors
///
/// If the thread or its timer cannot be made.
pub(crate) fn start(
    state: ServerState,
    store: Option<(StoreHandle, watch::Receiver<Progress>)>,
    failed: Arc<Notify>,
    (news, outbox): (Option<News>, Option<Outbox>),
    stats: Stats,
) -> io::Result<(CoreHandle, std::thread::JoinHandle<()>)> {
    let (handle, events) = CoreHandle::new();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    let core = Core {
        state,
        gate: StoreGate::new(store, stats.commits.clone()),
        failed,
        clock: Clock::new(),
        next_id: 0,
        replies: BTreeMap::new(),
        watches: BTreeMap::new(),
        links: BTreeMap::new(),
        workers: BTreeMap::new(),
        left: None,
        has_ended: false,
        is_demand_partial: false,
        news,
        outbox,
        stats,
    };
    let thread = std::thread::Builder::new()
        .name("core".into())
        .spawn(move || runtime.block_on(core.run(events)))?;
    Ok((handle, thread))
}

/// What leaves the core's thread once the store allows it.
enum Outgoing {
    Reply(RequestId, Reply),
    Update {
        id: RequestId,
        message: Box<client::WatchUpdate>,
    },
    Answer(Tell),
    Registered {
        link: LinkId,
        worker: WorkerId,
        reattached: bool,
    },
    ToWorker(WorkerId, WorkerCommand),
    DropWorker(WorkerId),
    Notify(NoticeKey),
}

struct Core {
    state: ServerState,
    clock: Clock,
    gate: StoreGate<Outgoing>,
    /// Told when the store can never be written again.
    failed: Arc<Notify>,
    next_id: u64,
    replies: BTreeMap<RequestId, oneshot::Sender<Result<Reply, Refusal>>>,
    watches: BTreeMap<RequestId, (bool, mpsc::Sender<client::WatchUpdate>)>,
    links: BTreeMap<LinkId, oneshot::Sender<WorkerSeat>>,
    /// The current connection of each worker that has one; without a queue it is being closed.
    workers: BTreeMap<WorkerId, (LinkId, Option<mpsc::Sender<WorkerCommand>>)>,
    /// Told when all workers that were told to end have gone.
    left: Option<oneshot::Sender<()>>,
    /// Nothing is accepted any more.
    has_ended: bool,
    /// Automatic allocation is to ask again soon.
    is_demand_partial: bool,
    /// Where automatic allocation hears of tasks and workers.
    news: Option<News>,
    /// Who sends notifications; `None` in a server without ports.
    outbox: Option<Outbox>,
    stats: Stats,
}

impl Core {
    async fn run(mut self, mut events: mpsc::Receiver<Event>) {
        let mut batch = Vec::with_capacity(BATCH_LEN);
        let mut effects = Vec::new();
        // What a restored state owes is due now, not with the first message, which may never come.
        self.settle(self.clock.now(), &mut effects);
        self.carry_out(&mut effects);
        loop {
            let (deadline, clock) = (self.state.next_deadline(), self.clock);
            let timer = async {
                match deadline {
                    // The timer rounds up to milliseconds, and work in portions is due at once very often.
                    Some(time) if time <= clock.now().mono => {}
                    Some(time) => tokio::time::sleep_until(clock.instant(time).into()).await,
                    None => std::future::pending().await,
                }
            };
            // Messages first: a heartbeat that has arrived counts before its deadline does.
            tokio::select! {
                biased;
                count = events.recv_many(&mut batch, BATCH_LEN) => {
                    if count == 0 {
                        return;
                    }
                }
                () = self.gate.advanced() => {
                    self.release();
                    continue;
                }
                () = timer => {}
            }
            let start = Instant::now();
            let mut rows = 0;
            for event in batch.drain(..) {
                rows += self.on_event(event, &mut effects);
                if rows >= ROWS_PER_ROUND_MAX {
                    rows = 0;
                    self.settle(self.clock.now(), &mut effects);
                    self.carry_out(&mut effects);
                }
            }
            let now = self.clock.now();
            if self
                .state
                .next_deadline()
                .is_some_and(|time| time <= now.mono)
            {
                self.state.apply(now, Input::Timer, &mut effects);
            }
            self.settle(now, &mut effects);
            self.carry_out(&mut effects);
            self.note_left();
            self.stats.batches.observe(start.elapsed());
        }
    }

    /// Tells the one who ends the server that it need not wait for workers any more.
    fn note_left(&mut self) {
        if let Some(left) = self.left.take_if(|_| self.state.leaving() == 0) {
            // The one who waited may have lost patience.
            let _ = left.send(());
        }
    }

    /// Ends a batch of inputs: schedules and tells watching clients.
    fn settle(&mut self, now: Now, effects: &mut Vec<Effect>) {
        let start = Instant::now();
        self.state.settle(now, effects);
        self.stats.rounds.observe(start.elapsed());
        let was_partial =
            std::mem::replace(&mut self.is_demand_partial, self.state.is_demand_partial());
        if was_partial
            && !self.is_demand_partial
            && let Some(news) = &self.news
        {
            // What it was told meanwhile may have been too little.
            news.changed();
        }
    }

    /// Digests an event; answers with about how many rows of work that was.
    fn on_event(&mut self, event: Event, effects: &mut Vec<Effect>) -> usize {
        let now = self.clock.now();
        let input = match event {
            Event::Persist(changes, stored) => {
                self.persist(now, changes, stored);
                return 1;
            }
            Event::Command(command, reply) => {
                let adds = matches!(command, Command::OpenJob { .. });
                match self.expect_reply(adds, reply) {
                    Some(id) => Input::Request(id, command),
                    None => return 1,
                }
            }
            Event::Submit(submission, reply) => match self.expect_reply(true, reply) {
                Some(id) => Input::Submit(id, submission),
                None => return 1,
            },
            Event::Watch(spec, updates, id_reply) => self.on_watch(spec, updates, id_reply),
            Event::Unwatch(id) => {
                self.watches.remove(&id);
                Input::RequestGone(id)
            }
            Event::Query(look) => {
                // What came before in this batch must be visible, effects included.
                self.settle(now, effects);
                self.carry_out(effects);
                let seen = look(&View {
                    state: &self.state,
                    now,
                });
                match seen {
                    Seen::Answer(tell) => self.answer(tell),
                    Seen::Part(tell) => tell(),
                }
                return 1;
            }
            Event::WorkerConnected(config, reattach, seat) => {
                self.on_connected(*config, reattach, seat)
            }
            Event::Ending(keep_workers, left) => {
                self.left = Some(left);
                Input::Ending { keep_workers }
            }
            Event::Ended(told) => {
                self.on_ended(now, told, effects);
                return 1;
            }
            Event::WorkerMessage(worker, link, message, _waiting) => {
                if !self.is_current(worker, link) {
                    return 1;
                }
                Input::WorkerMessage(worker, message)
            }
            Event::Notified(key, attempts, error) => Input::Notified {
                key,
                attempts,
                error,
            },
            Event::WorkerGone(worker, link, how) => {
                if !self.is_current(worker, link) {
                    return 1;
                }
                self.workers.remove(&worker);
                Input::WorkerGone(worker, how)
            }
        };
        let rows = input.rows();
        self.state.apply(now, input, effects);
        rows
    }

    /// The server ends. Connections are closed once this is told, so what was accepted goes first, and nothing more is
    /// accepted: its answer would reach nobody.
    fn on_ended(&mut self, now: Now, told: oneshot::Sender<()>, effects: &mut Vec<Effect>) {
        self.state.apply(now, Input::Ended, effects);
        self.settle(now, effects);
        self.carry_out(effects);
        self.has_ended = true;
        self.answer(Box::new(move || {
            // The one who waits may have lost patience.
            let _ = told.send(());
        }));
        self.gate.hurry();
    }

    fn on_watch(
        &mut self,
        spec: WatchSpec,
        updates: mpsc::Sender<client::WatchUpdate>,
        id_reply: oneshot::Sender<RequestId>,
    ) -> Input {
        let id = self.next_request();
        self.watches.insert(id, (spec.with_outcomes, updates));
        // A client that is gone already is noticed with its first update.
        let _ = id_reply.send(id);
        Input::Request(id, Command::Watch(spec))
    }

    /// A worker asks for a seat, perhaps for the one that it had.
    fn on_connected(
        &mut self,
        config: WorkerConfig,
        reattach: Option<Box<Reattach>>,
        seat: oneshot::Sender<WorkerSeat>,
    ) -> Input {
        self.next_id += 1;
        let link = LinkId(self.next_id);
        let Some(reattach) = reattach else {
            self.links.insert(link, seat);
            return Input::WorkerConnected(link, config);
        };
        if self.state.is_late(&reattach) {
            // Without its seat the connection ends, and the newer one stays.
            return Input::WorkerReattached(link, config, reattach);
        }
        self.links.insert(link, seat);
        if *reattach.server_uid == *self.state.uid() {
            // What its older connection still says must not count from here on.
            self.workers.remove(&reattach.worker);
        }
        Input::WorkerReattached(link, config, reattach)
    }

    /// Stores changes that automatic allocation made, and tells it when they are on disk.
    fn persist(&mut self, now: Now, changes: Vec<ChangeKind>, stored: oneshot::Sender<()>) {
        let at = now.wall;
        let changes = changes.into_iter().map(|kind| Change { at, kind });
        self.gate.store(changes.collect());
        let tell: Tell = Box::new(move || {
            // The one who waits for it may be gone.
            let _ = stored.send(());
        });
        self.send(Wait::All, Outgoing::Answer(tell));
    }

    /// Whether the worker speaks over this connection, not over a newer one.
    fn is_current(&self, worker: WorkerId, link: LinkId) -> bool {
        self.workers
            .get(&worker)
            .is_some_and(|(current, _)| *current == link)
    }

    /// Names a request that is to be answered, unless it is refused at once.
    fn expect_reply(
        &mut self,
        adds: bool,
        reply: oneshot::Sender<Result<Reply, Refusal>>,
    ) -> Option<RequestId> {
        if let Some(refusal) = self.refusal(adds) {
            // The one who asked may be gone.
            let _ = reply.send(Err(refusal));
            return None;
        }
        let id = self.next_request();
        self.replies.insert(id, reply);
        Some(id)
    }

    fn next_request(&mut self) -> RequestId {
        self.next_id += 1;
        RequestId(self.next_id)
    }

    /// Why a command is not carried out: the server ends, or the store takes no changes; `adds` = it adds jobs or tasks.
    /// Cancelling and the like stay possible; they are acknowledged when they are stored.
    fn refusal(&self, adds: bool) -> Option<Refusal> {
        let text = match self.gate.health() {
            Health::Broken(reason) => format!("the server is stopping: {reason}"),
            Health::Good | Health::Waiting(_) if self.has_ended => {
                "the server is stopping; nothing was changed".to_owned()
            }
            Health::Good => return None,
            Health::Waiting(_) if !adds => return None,
            Health::Waiting(reason) => format!(
                "the server cannot write its state to disk ({reason}); \
                 nothing was submitted. Make room and submit again"
            ),
        };
        Some(Refusal::unavailable(text))
    }

    /// Tells automatic allocation that a worker came or went.
    fn tell_of_worker(&self, id: WorkerId) {
        let (Some(news), Some(worker)) = (&self.news, self.state.worker(id)) else {
            return;
        };
        if worker.config.allocation.is_none() {
            news.changed();
            return;
        }
        let config = worker.config.clone();
        news.worker(match worker.ended() {
            None => WorkerNews::Connected(id, config),
            Some((at, reason)) => WorkerNews::Lost {
                worker: id,
                config,
                crashed: reason.is_crash(),
                lived: at.since(worker.started),
            },
        });
    }

    fn carry_out(&mut self, effects: &mut Vec<Effect>) {
        let mut changes = Vec::new();
        let mut rest = Vec::with_capacity(effects.len());
        for effect in effects.drain(..) {
            match effect {
                Effect::Persist(change) => changes.push(change),
                Effect::Reply(..)
                | Effect::WatchUpdate(..)
                | Effect::Registered { .. }
                | Effect::ToWorker(..)
                | Effect::Notify(_)
                | Effect::DropWorker(..) => rest.push(effect),
            }
        }
        self.gate.store(changes);
        let is_awaited = rest.iter().any(Effect::is_awaited);
        for effect in rest {
            let wait = effect.wait();
            let message = match effect {
                Effect::Persist(_) => continue,
                Effect::Reply(id, reply) => {
                    let is_more = match &reply {
                        Reply::Submitted(_) | Reply::SubmittedAll(_) | Reply::Resubmitted(_) => {
                            true
                        }
                        Reply::Refused(_)
                        | Reply::Jobs(_)
                        | Reply::Forgotten { .. }
                        | Reply::Workers(_) => false,
                    };
                    if let Some(news) = self.news.as_ref().filter(|_| is_more) {
                        news.changed();
                    }
                    Outgoing::Reply(id, reply)
                }
                Effect::WatchUpdate(id, update) => {
                    let Some((with_paths, _)) = self.watches.get(&id) else {
                        continue;
                    };
                    let parts =
                        query::watch_updates(&self.state, &update, *with_paths, PAGE_BYTES_MAX);
                    for message in parts {
                        let message = Box::new(message);
                        self.send(wait, Outgoing::Update { id, message });
                    }
                    continue;
                }
                Effect::Registered {
                    link,
                    worker,
                    reattached,
                } => Outgoing::Registered {
                    link,
                    worker,
                    reattached,
                },
                Effect::ToWorker(id, command) => Outgoing::ToWorker(id, command),
                Effect::Notify(key) => Outgoing::Notify(key),
                Effect::DropWorker(id) => Outgoing::DropWorker(id),
            };
            self.send(wait, message);
        }
        if is_awaited {
            self.gate.hurry();
        }
    }

    /// Answers once what was seen is on disk.
    fn answer(&mut self, tell: Tell) {
        if self.gate.health() == Health::Good {
            self.send(Wait::All, Outgoing::Answer(tell));
        } else {
            // People must be able to look while the disk is full.
            tell();
        }
    }

    fn send(&mut self, wait: Wait, message: Outgoing) {
        if let Some(message) = self.gate.pass(wait, message) {
            self.deliver(message);
        }
    }

    /// Sends what waited for a commit; tells when there will be none any more.
    fn release(&mut self) {
        while let Some(message) = self.gate.next() {
            self.deliver(message);
        }
        if matches!(self.gate.health(), Health::Broken(_)) {
            self.failed.notify_one();
        }
    }

    fn deliver(&mut self, message: Outgoing) {
        match message {
            Outgoing::Reply(id, reply) => {
                if let Some(waiting) = self.replies.remove(&id) {
                    let _ = waiting.send(Ok(reply));
                }
            }
            Outgoing::Update { id, message } => {
                let Some((_, updates)) = self.watches.get(&id) else {
                    return;
                };
                let done = message.done;
                let is_slow = updates.try_send(*message).is_err();
                self.stats
                    .cut_off
                    .inc_by(u64::from(is_slow && !updates.is_closed()));
                if is_slow || done {
                    self.watches.remove(&id);
                }
            }
            Outgoing::Answer(tell) => tell(),
            Outgoing::Registered {
                link,
                worker: id,
                reattached,
            } => {
                let (tx, commands) = mpsc::channel(WORKER_QUEUE_LEN);
                // An older connection of it ends with its queue.
                self.workers.insert(id, (link, Some(tx)));
                if let Some(seat) = self.links.remove(&link) {
                    // If the connection is gone meanwhile, the dropped receiver tells.
                    let _ = seat.send(WorkerSeat {
                        id,
                        link,
                        reattached,
                        commands,
                    });
                }
                tracing::info!(worker = %id, reattached, "worker registered");
                self.tell_of_worker(id);
            }
            Outgoing::ToWorker(id, command) => {
                let Some((_, queue)) = self.workers.get_mut(&id) else {
                    return;
                };
                if is_cut_off(queue, command) {
                    tracing::warn!(worker = %id, "worker does not read; connection dropped");
                }
            }
            Outgoing::Notify(key) => {
                if let Some(outbox) = &self.outbox {
                    outbox.send(key);
                }
            }
            Outgoing::DropWorker(id) => {
                self.workers.remove(&id);
                tracing::info!(worker = %id, "worker gone");
                self.tell_of_worker(id);
            }
        }
    }
}

/// Hands something to the task of a worker's connection. Says whether that ends the connection because the
/// worker does not read.
fn is_cut_off<T>(queue: &mut Option<mpsc::Sender<T>>, command: T) -> bool {
    let Some(Err(error)) = queue.as_ref().map(|queue| queue.try_send(command)) else {
        return false;
    };
    *queue = None;
    match error {
        TrySendError::Full(_) => true,
        // Its connection has just ended, which is on its way here as an input.
        TrySendError::Closed(_) => false,
    }
}

#[cfg(test)]
mod tests;
