//! Delivers effects of the core to clients, workers, the store and automatic allocation.
//!
//! Effects that reveal a change wait here until the store has committed the change. Nothing here
//! waits for a peer: a peer that does not read its messages in time is disconnected.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hq_core::id::WorkerId;
use hq_core::refusal::Refusal;
use hq_core::server_state::{
    AwaitedEnds, Change, Effect, Freed, LinkId, Reply, RequestId, ServerState, Wait, WorkerCommand,
};
use hq_protocol::limits::PAGE_BYTES_MAX;
use hq_store::Health;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Notify, mpsc, oneshot};

use crate::acknowledgements::Acknowledgements;
use crate::alloc::{self, BatchSender};
use crate::core_handle::{SendReply, WorkerRegistration};
use crate::gate::{STALL, StoreGate};
use crate::notify::Outbox;
use crate::query;
use crate::stats::Stats;
use crate::updates::{SendError, Update, UpdateSender};

/// The maximum number of queued commands for a worker. A worker that exceeds it is disconnected.
pub(crate) const WORKER_QUEUE_LEN: usize = 1_024;

/// A delivery that waits for a commit.
pub(crate) enum Outgoing {
    Effect(Effect),
    Update(RequestId, Box<Update>),
    Answer(SendReply),
    /// The answer to the query with this number.
    Look(u64),
    /// Reports that the external changes with this number are on disk.
    Stored(u64),
}

/// A client that waits for the reply to its command.
pub(crate) type ReplyTo = oneshot::Sender<Result<Reply, Refusal>>;

/// The connected peers and the messages that have not been delivered yet.
pub(crate) struct Delivery {
    gate: StoreGate<Outgoing>,
    /// Notified when the store can no longer be written.
    failed: Arc<Notify>,
    replies: BTreeMap<RequestId, ReplyTo>,
    /// The answers to queries, by number.
    looks: BTreeMap<u64, SendReply>,
    last_look: u64,
    /// The channels that report commits of external changes, by number.
    storing: BTreeMap<u64, oneshot::Sender<()>>,
    last_stored: u64,
    /// Set when the server ends and uncommitted changes will never be reported as committed.
    has_given_up: bool,
    watches: BTreeMap<RequestId, UpdateSender>,
    /// The registrations in progress.
    links: BTreeMap<LinkId, oneshot::Sender<WorkerRegistration>>,
    /// The current connection of each connected worker. A connection that is being closed has no
    /// queue.
    workers: BTreeMap<WorkerId, (LinkId, Option<mpsc::Sender<WorkerCommand>>)>,
    acknowledgements: Acknowledgements,
    /// The registered workers whose connections closed before the reply.
    abandoned: Vec<(WorkerId, LinkId)>,
    /// Runs commands of batch systems. `None` in a server without ports.
    batch: Option<BatchSender>,
    /// Sends notifications. `None` in a server without ports.
    outbox: Option<Outbox>,
    stats: Stats,
}

impl Delivery {
    pub(crate) fn new(
        gate: StoreGate<Outgoing>,
        failed: Arc<Notify>,
        (batch, outbox): (Option<BatchSender>, Option<Outbox>),
        stats: Stats,
    ) -> Self {
        Self {
            gate,
            failed,
            replies: BTreeMap::new(),
            looks: BTreeMap::new(),
            last_look: 0,
            storing: BTreeMap::new(),
            last_stored: 0,
            has_given_up: false,
            watches: BTreeMap::new(),
            links: BTreeMap::new(),
            workers: BTreeMap::new(),
            acknowledgements: Acknowledgements::default(),
            abandoned: Vec::new(),
            batch,
            outbox,
            stats,
        }
    }

    /// Returns the state of the store.
    pub(crate) fn health(&self) -> Health {
        self.gate.health()
    }

    /// Returns whether decisions cannot be stored at present.
    pub(crate) fn is_held(&self) -> bool {
        self.gate.is_held()
    }

    /// Returns the time since which messages to workers may have been waiting for the store, or
    /// `None` if no message waits.
    pub(crate) fn unsent_since(&self) -> Option<Instant> {
        self.gate.unsent_since()
    }

    /// Requests a commit now, because a peer is waiting for it.
    pub(crate) fn commit_now(&self) {
        self.gate.commit_now();
    }

    /// Waits until [`Self::release`] has work.
    pub(crate) async fn advanced(&mut self) {
        self.gate.advanced().await;
    }

    /// Registers a client that waits for the reply to a request.
    pub(crate) fn expect_reply(&mut self, id: RequestId, reply: ReplyTo) {
        self.replies.insert(id, reply);
    }

    /// Registers a client that watches jobs.
    pub(crate) fn add_watch(&mut self, id: RequestId, updates: UpdateSender) {
        self.watches.insert(id, updates);
    }

    /// Removes a client that no longer watches jobs.
    pub(crate) fn remove_watch(&mut self, id: RequestId) {
        self.watches.remove(&id);
    }

    /// Registers a worker that waits for the reply to its registration.
    pub(crate) fn expect_worker(
        &mut self,
        link: LinkId,
        reply: oneshot::Sender<WorkerRegistration>,
    ) {
        self.links.insert(link, reply);
    }

    /// Forgets the current connection of a worker. Further messages from it are ignored.
    pub(crate) fn forget_link(&mut self, worker: WorkerId) {
        self.workers.remove(&worker);
    }

    /// Returns whether there may be work for [`Self::take_abandoned`].
    pub(crate) const fn has_abandoned(&self) -> bool {
        !self.abandoned.is_empty()
    }

    /// Returns a registered worker whose connection closed before the reply. No other event reports
    /// this closure.
    pub(crate) fn take_abandoned(&mut self) -> Option<WorkerId> {
        while let Some((worker, link)) = self.abandoned.pop() {
            // The worker may have reconnected.
            if self.is_current(worker, link) {
                self.forget_link(worker);
                return Some(worker);
            }
        }
        None
    }

    /// Returns whether this is the worker's current connection.
    pub(crate) fn is_current(&self, worker: WorkerId, link: LinkId) -> bool {
        let current = self.workers.get(&worker);
        current.is_some_and(|(current, _)| *current == link)
    }

    fn is_connected(&self, worker: WorkerId) -> bool {
        let queue = self.workers.get(&worker).map(|(_, queue)| queue);
        queue.is_some_and(Option::is_some)
    }

    /// Stores external changes and reports their commit. `stored` is dropped if the server ends
    /// before the commit is known.
    pub(crate) fn store(
        &mut self,
        state: &ServerState,
        changes: Vec<Change>,
        stored: oneshot::Sender<()>,
    ) {
        self.gate.store(changes, Instant::now());
        if self.has_given_up {
            return;
        }
        self.last_stored += 1;
        self.storing.insert(self.last_stored, stored);
        self.send_soon(state, Outgoing::Stored(self.last_stored));
    }

    /// Carries out the effects of the inputs that were handled at this time.
    pub(crate) fn carry_out(
        &mut self,
        state: &ServerState,
        effects: &mut Vec<Effect>,
        decided_at: Instant,
    ) {
        let (mut changes, mut freed) = (Vec::new(), Vec::new());
        let mut rest = Vec::with_capacity(effects.len());
        for effect in effects.drain(..) {
            if let Effect::Persist(change) = effect {
                changes.push(change);
            } else if let Effect::Free(value) = effect {
                freed.push(value);
            } else {
                rest.push(effect);
            }
        }
        free(freed);
        if let Some(outbox) = &self.outbox {
            // Notices about workers are not durable, so they do not wait for the disk.
            changes
                .iter()
                .for_each(|change| outbox.note_change(&change.kind));
        }
        self.gate.store(changes, decided_at);
        let mut is_awaited = rest.iter().any(Effect::is_awaited);
        for effect in rest {
            let wait = effect.wait();
            if let Effect::WatchUpdate(id, update) = effect {
                if let Some(updates) = self.watches.get(&id) {
                    // A Python program does nothing before it has the values of its calls.
                    is_awaited |= updates.details.with_values;
                    let update = Box::new(query::update(state, update));
                    self.send(state, wait, Outgoing::Update(id, update));
                }
                continue;
            }
            if let Effect::ToWorker(id, WorkerCommand::Stop) = effect
                && self.is_connected(id)
            {
                // A user wants the worker to end now, even while nothing can be stored. Only the
                // worker knows its unreported news. The command is not sent before the worker's
                // registration is answered.
                self.send_to_worker(id, WorkerCommand::Stop);
                continue;
            }
            if let Effect::ToWorker(id, WorkerCommand::Acknowledge(seq)) = effect {
                if self.acknowledgements.note(id, seq) {
                    self.acknowledge(state, id, seq);
                }
                continue;
            }
            let message = Outgoing::Effect(effect);
            // The worker is blocked until it gets this message, and the message may wait for an end
            // that the store collects for a later commit.
            is_awaited |= self.send(state, wait, message)
                && matches!(
                    wait,
                    Wait::Work(_, AwaitedEnds::Elsewhere | AwaitedEnds::All)
                );
        }
        if is_awaited {
            self.gate.commit_now();
        }
    }

    /// Answers a query once the state that it read is on disk, or immediately if the disk hangs or
    /// is full.
    pub(crate) fn answer(&mut self, state: &ServerState, tell: SendReply) {
        if self.gate.is_held() {
            tell();
            return;
        }
        self.last_look += 1;
        self.looks.insert(self.last_look, tell);
        self.send_soon(state, Outgoing::Look(self.last_look));
    }

    /// Handles events of [`Self::advanced`] and [`Self::stalls_at`] that are due, without waiting.
    pub(crate) fn catch_up(&mut self, state: &ServerState) {
        if self.gate.look() {
            self.release(state);
        }
        if self.stalls_at().is_some_and(|at| at <= Instant::now()) {
            self.on_stalled();
        }
    }

    /// Returns when [`Self::on_stalled`] is due unless the store makes progress before then.
    pub(crate) fn stalls_at(&self) -> Option<Instant> {
        self.gate.stalls_at().filter(|_| !self.looks.is_empty())
    }

    /// Reacts to a stalled store: from now on, queries are answered from memory.
    pub(crate) fn on_stalled(&mut self) {
        tracing::warn!(
            "The journal has stored no change for {} s: its disk or file system hangs, or is very slow. The server answers queries from memory; changes wait",
            STALL.as_secs()
        );
        self.answer_looks();
    }

    fn answer_looks(&mut self) {
        for tell in std::mem::take(&mut self.looks).into_values() {
            tell();
        }
    }

    /// Gives up the last changes when the server ends. Requests that wait for them are rejected.
    pub(crate) fn give_up(&mut self) {
        self.has_given_up = true;
        self.answer_looks();
        // Dropping these ends their receivers without a message.
        self.storing.clear();
        self.watches.clear();
        for waiting in std::mem::take(&mut self.replies).into_values() {
            // The client may have disconnected.
            let _ = waiting.send(Err(Refusal::unavailable(
                "the server ends before the change is known to be stored. Check it after the next start of the server",
            )));
        }
    }

    /// Calls `tell` when everything that was accepted is on disk, or immediately if the store has
    /// failed.
    pub(crate) fn when_stored(&mut self, state: &ServerState, tell: SendReply) {
        if self.gate.health() == Health::Good {
            self.send_soon(state, Outgoing::Answer(tell));
        } else {
            // Queries must work while the disk is full.
            tell();
        }
    }

    /// Sends a message or keeps it until its commit. Returns whether it was kept.
    fn send(&mut self, state: &ServerState, wait: Wait, message: Outgoing) -> bool {
        let passed = self.gate.pass(wait, message);
        let is_kept = passed.is_none();
        if let Some(message) = passed {
            self.deliver(state, message);
        }
        is_kept
    }

    /// Acknowledges a worker's reports up to `seq` once they are on disk.
    fn acknowledge(&mut self, state: &ServerState, id: WorkerId, seq: u64) {
        let acknowledge = Effect::ToWorker(id, WorkerCommand::Acknowledge(seq));
        if self.send(state, Wait::All, Outgoing::Effect(acknowledge)) {
            self.acknowledgements.keep(id);
        }
    }

    /// Sends a message that a peer is blocked on, as soon as everything before it is on disk.
    fn send_soon(&mut self, state: &ServerState, message: Outgoing) {
        match self.gate.pass(Wait::All, message) {
            Some(message) => self.deliver(state, message),
            // Otherwise the answer would have to wait while the store collects changes for a
            // commit.
            None => self.gate.commit_now(),
        }
    }

    /// Sends messages that commits have released. Notifies `failed` if there will be no further
    /// commit.
    pub(crate) fn release(&mut self, state: &ServerState) {
        while let Some(message) = self.gate.next() {
            self.deliver(state, message);
        }
        if matches!(self.gate.health(), Health::Broken(_)) {
            self.failed.notify_one();
        }
    }

    fn deliver(&mut self, state: &ServerState, message: Outgoing) {
        match message {
            Outgoing::Effect(effect) => self.deliver_effect(state, effect),
            Outgoing::Update(id, update) => {
                let Some(updates) = self.watches.get(&id) else {
                    return;
                };
                let done = update.done;
                let sent = updates.send(*update, |update| {
                    query::make_details(state, update, updates.details, PAGE_BYTES_MAX);
                });
                let is_slow = sent == Err(SendError::Slow);
                self.stats.cut_off.inc_by(u64::from(is_slow));
                if sent.is_err() || done {
                    self.watches.remove(&id);
                }
            }
            Outgoing::Answer(tell) => tell(),
            Outgoing::Look(number) => {
                if let Some(tell) = self.looks.remove(&number) {
                    tell();
                }
            }
            Outgoing::Stored(number) => {
                if let Some(stored) = self.storing.remove(&number) {
                    // The receiver may have been dropped.
                    let _ = stored.send(());
                }
            }
        }
    }

    fn deliver_effect(&mut self, state: &ServerState, effect: Effect) {
        match effect {
            Effect::Reply(id, reply) => {
                if let Some(waiting) = self.replies.remove(&id) {
                    let _ = waiting.send(Ok(reply));
                }
            }
            Effect::Registered {
                link,
                worker: id,
                reattached,
            } => {
                let (tx, commands) = mpsc::channel(WORKER_QUEUE_LEN);
                // An older connection of this worker ends with its queue.
                self.workers.insert(id, (link, Some(tx)));
                let worker = state.worker(id);
                let registration = WorkerRegistration {
                    id,
                    link,
                    reattached,
                    server_wait: worker.map_or(Duration::ZERO, |worker| {
                        alloc::server_wait(state.queues(), &worker.config)
                    }),
                    commands,
                };
                let reply = self.links.remove(&link);
                if reply.is_some_and(|reply| reply.send(registration).is_err()) {
                    self.abandoned.push((id, link));
                }
                tracing::info!(worker = %id, reattached, "worker registered");
            }
            Effect::ToWorker(id, WorkerCommand::Acknowledge(seq)) => {
                self.send_to_worker(id, WorkerCommand::Acknowledge(seq));
                if let Some(later) = self.acknowledgements.release(id) {
                    self.acknowledge(state, id, later);
                }
            }
            Effect::ToWorker(id, command) => self.send_to_worker(id, command),
            Effect::Notify(key) => {
                if let Some(outbox) = &self.outbox {
                    outbox.send(key);
                }
            }
            Effect::Allocate(effect) => {
                if let Some(batch) = &mut self.batch {
                    batch.send(state, effect);
                }
            }
            Effect::DropWorker(id) => {
                self.workers.remove(&id);
                tracing::info!(worker = %id, "worker gone");
            }
            // These effects are handled when they are carried out.
            Effect::Persist(_) | Effect::Free(_) | Effect::WatchUpdate(..) => {}
        }
    }

    fn send_to_worker(&mut self, id: WorkerId, command: WorkerCommand) {
        let Some((_, queue)) = self.workers.get_mut(&id) else {
            return;
        };
        if is_cut_off(queue, command) {
            tracing::warn!(worker = %id, "a worker does not read its messages; its connection is dropped");
        }
    }
}

/// Frees values on a separate thread, or on this thread if no thread can be started.
fn free(freed: Vec<Freed>) {
    if !freed.is_empty() {
        let thread = std::thread::Builder::new().name("free".into());
        // Without a thread the values are freed with the closure.
        let _ = thread.spawn(move || drop(freed));
    }
}

/// Queues a message for a worker's connection. Returns whether the connection must be ended because
/// the worker does not read.
fn is_cut_off<T>(queue: &mut Option<mpsc::Sender<T>>, command: T) -> bool {
    let Some(Err(error)) = queue.as_ref().map(|queue| queue.try_send(command)) else {
        return false;
    };
    *queue = None;
    match error {
        TrySendError::Full(_) => true,
        // The connection has just ended, which will arrive as an input.
        TrySendError::Closed(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use hq_core::id::JobId;
    use hq_core::server_state::ChangeKind;

    use super::*;

    #[test]
    fn only_a_worker_that_does_not_read_is_cut_off() {
        let (tx, rx) = mpsc::channel(1);
        let mut queue = Some(tx);
        assert!(!is_cut_off(&mut queue, 1));
        assert!(is_cut_off(&mut queue, 2), "the queue is full");
        assert!(queue.is_none());
        assert!(!is_cut_off(&mut queue, 3), "it is told once");
        drop(rx);
        let (tx, rx) = mpsc::channel(1);
        let mut queue = Some(tx);
        drop(rx);
        assert!(!is_cut_off(&mut queue, 4), "its connection has ended");
        assert!(queue.is_none());
    }

    #[test]
    fn a_worker_that_goes_on_through_a_long_stall_is_not_cut_off_at_its_end() {
        let (_dir, progress, gate) = crate::gate::tests::gate();
        let failed = Arc::new(Notify::new());
        let mut delivery = Delivery::new(gate, failed, (None, None), Stats::new());
        let state = ServerState::new("test");
        let worker = WorkerId(1);
        let (tx, mut queue) = mpsc::channel(WORKER_QUEUE_LEN);
        delivery.workers.insert(worker, (LinkId(1), Some(tx)));
        let reports = 4 * WORKER_QUEUE_LEN as u64;
        for seq in 1..=reports {
            let change = Change {
                at: hq_core::time::Timestamp::default(),
                kind: ChangeKind::JobCompleted(JobId(1)),
            };
            let acknowledge = WorkerCommand::Acknowledge(seq);
            let mut effects = vec![
                Effect::Persist(change),
                Effect::ToWorker(worker, acknowledge),
            ];
            delivery.carry_out(&state, &mut effects, Instant::now());
        }
        assert!(queue.try_recv().is_err(), "nothing is on disk");
        progress.send_modify(|progress| progress.committed = reports);
        delivery.catch_up(&state);
        let told = std::iter::from_fn(|| queue.try_recv().ok());
        let told: Vec<String> = told.map(|command| format!("{command:?}")).collect();
        let last = format!("Acknowledge({reports})");
        assert_eq!(told, ["Acknowledge(1)", last.as_str()]);
        assert!(delivery.is_connected(worker), "its connection stays");
    }
}
