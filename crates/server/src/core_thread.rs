//! The thread that owns the state. In each turn, it takes a limited batch of events, applies them
//! and carries out the effects.
//!
//! Other threads reach it through [`CoreHandle`]. Nothing on this thread waits for a peer: a peer
//! that does not read its messages in time is disconnected.
//!
//! Each turn is short and handles some work of every kind: some requests, about
//! [`ROWS_PER_ROUND_MAX`] rows of workers' messages, and the answers that waited for a commit.
//! Clients are therefore served even under a flood of reports.

mod deferred;
mod turn;

use std::io;
use std::mem::ManuallyDrop;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hq_core::refusal::Refusal;
use hq_core::server_state::{
    Change, ChangeKind, Command, Effect, Input, LinkId, ROWS_PER_ROUND_MAX, RequestId, ServerState,
    WatchSpec,
};
use hq_core::time::Now;
use hq_core::worker::LinkEnd;
use hq_store::{Health, Progress, StoreHandle};
use tokio::sync::{Notify, oneshot, watch};

use crate::alloc::BatchSender;
use crate::clock::Clock;
use crate::core_handle::{
    CoreHandle, Event, Events, PendingRegistration, QueryFn, QueryResult, SendReply, View,
};
use crate::delivery::{Delivery, ReplyTo};
use crate::gate::StoreGate;
use crate::notify::Outbox;
use crate::stats::Stats;
use crate::updates::UpdateSender;
use deferred::DeferredRegistrations;
use turn::{Part, Turn};

/// The CPU time after which a turn takes no further requests. A page of tasks takes a few
/// milliseconds, and each dashboard requests one.
const REQUESTS_CPU_MAX: Duration = Duration::from_millis(5);

/// Starts the core's thread. It ends when all handles are gone.
///
/// # Errors
///
/// Returns an error if the thread or its timer cannot be created.
pub(crate) fn start(
    state: ServerState,
    store: Option<(StoreHandle, watch::Receiver<Progress>)>,
    failed: Arc<Notify>,
    listeners: (Option<BatchSender>, Option<Outbox>),
    stats: Stats,
) -> io::Result<(CoreHandle, std::thread::JoinHandle<()>)> {
    let (mut handle, mut events) = CoreHandle::new();
    if store.is_some() {
        handle.encode_with(hq_store::body_bytes);
    }
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()?;
    // If the thread cannot be started, the caller must not drop the runtime: that panics on a
    // thread of another runtime.
    let runtime = ManuallyDrop::new(runtime);
    let mut core = Core::new(state, store, failed, listeners, stats);
    let thread = std::thread::Builder::new()
        .name("core".into())
        .spawn(move || {
            let runtime = ManuallyDrop::into_inner(runtime);
            runtime.block_on(async { while core.turn(&mut events).await {} });
        })?;
    Ok((handle, thread))
}

struct Core {
    state: ServerState,
    clock: Clock,
    /// Delivers messages to all recipients.
    delivery: Delivery,
    next_id: u64,
    /// Notified when all workers that should end have left.
    left: Option<oneshot::Sender<()>>,
    /// Set when nothing is accepted any more.
    has_ended: bool,
    deferred: DeferredRegistrations,
    /// Whether nothing has been applied since the last round.
    is_settled: bool,
    /// The effects of the inputs since the last round.
    effects: Vec<Effect>,
    turn: Turn,
    stats: Stats,
    /// [`REQUESTS_CPU_MAX`], but unlimited in tests that count requests, because time stolen by a
    /// hypervisor counts as CPU time.
    requests_cpu_max: Duration,
}

impl Core {
    fn new(
        state: ServerState,
        store: Option<(StoreHandle, watch::Receiver<Progress>)>,
        failed: Arc<Notify>,
        listeners: (Option<BatchSender>, Option<Outbox>),
        stats: Stats,
    ) -> Self {
        let gate = StoreGate::new(store, stats.commits.clone());
        let mut core = Self {
            state,
            delivery: Delivery::new(gate, failed, listeners, stats.clone()),
            clock: Clock::new(),
            next_id: 0,
            left: None,
            has_ended: false,
            deferred: DeferredRegistrations::default(),
            is_settled: false,
            effects: Vec::new(),
            turn: Turn::begin(),
            stats,
            requests_cpu_max: REQUESTS_CPU_MAX,
        };
        // The effects of a restored state are due now. They must not wait for the first message,
        // which may never arrive.
        core.end_round();
        core
    }

    /// Waits for work and does some of it. Returns `false` when all handles are gone.
    async fn turn(&mut self, events: &mut Events) -> bool {
        let (deadline, clock) = (self.state.next_deadline(), self.clock);
        let timer = async {
            match deadline {
                // The timer rounds up to milliseconds, but work that is done in portions is often
                // due immediately.
                Some(time) if time <= clock.now().mono => {}
                Some(time) => tokio::time::sleep_until(clock.instant(time).into()).await,
                None => std::future::pending().await,
            }
        };
        let stall = self.delivery.stalls_at();
        let stalled = async {
            match stall {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        // Messages come first: a heartbeat that has arrived counts before its deadline does.
        tokio::select! {
            biased;
            has_more = events.take() => {
                if !has_more {
                    return false;
                }
            }
            () = self.delivery.advanced() => {
                self.turn = Turn::begin();
                self.delivery.release(&self.state);
                self.turn.lap(Part::Release);
                self.turn.end(0);
                return true;
            }
            () = stalled => {
                self.delivery.on_stalled();
                return true;
            }
            () = timer => {}
            () = std::future::ready(()), if self.can_register_deferred() => {}
        }
        let start = Instant::now();
        self.turn = Turn::begin();
        let rows = self.digest(events);
        // While there are events, the branches below the first one are never polled.
        self.delivery.catch_up(&self.state);
        self.turn.lap(Part::Release);
        self.stats.batches.observe(start.elapsed());
        self.turn.end(rows);
        true
    }

    /// Applies the taken requests and a round of workers' messages. The remaining messages follow
    /// in the next turn. Returns the number of rows in the workers' messages.
    fn digest(&mut self, events: &mut Events) -> usize {
        let mut rows = 0;
        while self.turn.cpu() < self.requests_cpu_max
            && let Some(request) = events.next_request()
        {
            rows += self.on_event(request);
            if rows >= ROWS_PER_ROUND_MAX {
                rows = 0;
                self.turn.lap(Part::Requests);
                self.end_round();
            }
        }
        self.turn.lap(Part::Requests);
        // Workers' messages have a separate round, because a series of large submits must not delay
        // them.
        rows = 0;
        while rows < ROWS_PER_ROUND_MAX
            && let Some(report) = events.next_report()
        {
            rows += self.on_event(report);
        }
        rows += self.register_deferred(rows);
        self.turn.lap(Part::Reports);
        let now = self.clock.now();
        if self
            .state
            .next_deadline()
            .is_some_and(|time| time <= now.mono)
        {
            let timer = match events.heard_until() {
                _ if self.delivery.is_held() => Input::TimerHeld,
                // The heartbeat may be among the queued events.
                Some(heard) => Input::TimerBehind(self.clock.time(heard)),
                None => Input::Timer,
            };
            self.apply(now, timer);
        }
        self.turn.lap(Part::Timer);
        self.end_round();
        self.note_left();
        rows
    }

    /// Ends a round of inputs: schedules tasks and carries out the effects.
    fn end_round(&mut self) {
        let now = self.clock.now();
        self.settle(now);
        self.turn.lap(Part::Round);
        let decided_at = self.clock.instant(now.mono);
        self.delivery
            .carry_out(&self.state, &mut self.effects, decided_at);
        self.turn.lap(Part::Effects);
    }

    /// Reports to the shutdown that all workers have left.
    fn note_left(&mut self) {
        if let Some(left) = self.left.take_if(|_| self.state.leaving() == 0) {
            // The receiver may have timed out.
            let _ = left.send(());
        }
    }

    /// Schedules tasks and notifies watching clients.
    fn settle(&mut self, now: Now) {
        let start = Instant::now();
        self.is_settled = true;
        // Messages of an earlier round of this turn may still be waiting.
        let unsent_since = self.delivery.unsent_since();
        self.state
            .note_unsent(unsent_since.map(|at| self.clock.time(at)));
        self.state.settle(now, &mut self.effects);
        self.stats.rounds.observe(start.elapsed());
    }

    fn apply(&mut self, now: Now, input: Input) {
        self.is_settled = false;
        self.state.apply(now, input, &mut self.effects);
    }

    /// Handles an event. Returns its approximate number of rows.
    fn on_event(&mut self, event: Event) -> usize {
        let now = self.clock.now();
        let input = match event {
            Event::Persist(changes, stored) => {
                self.persist(now, changes, stored);
                return 1;
            }
            Event::Asked(adds, input, reply) => match self.expect_reply(adds, reply) {
                Some(id) => input(id),
                None => return 1,
            },
            Event::Watch(spec, updates, id_reply) => self.on_watch(spec, updates, id_reply),
            Event::Unwatch(id) => {
                self.delivery.remove_watch(id);
                Input::RequestGone(id)
            }
            Event::Query(look) => {
                self.on_query(now, look);
                return 1;
            }
            Event::WorkerConnected(pending) if self.delivery.is_held() => {
                self.deferred.push(pending);
                return 1;
            }
            Event::WorkerConnected(pending) => self.on_connected(pending),
            Event::Allocation(inputs) => Input::Allocation(inputs),
            Event::Ending(keep_workers, left) => {
                self.left = Some(left);
                Input::Ending { keep_workers }
            }
            Event::Ended(told) => {
                self.on_ended(now, told);
                return 1;
            }
            Event::GiveUp => {
                self.delivery.give_up();
                return 1;
            }
            Event::WorkerMessage(worker, link, message, _waiting) => {
                if !self.delivery.is_current(worker, link) {
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
                if !self.delivery.is_current(worker, link) {
                    return 1;
                }
                self.delivery.forget_link(worker);
                Input::WorkerGone(worker, how)
            }
        };
        let rows = self.state.rows_of(&input);
        self.apply(now, input);
        rows
    }

    /// Handles the end of the server. Its connections are closed afterwards, so everything that was
    /// accepted is answered first, and nothing more is accepted.
    fn on_ended(&mut self, now: Now, told: oneshot::Sender<()>) {
        self.apply(now, Input::Ended);
        self.end_round();
        self.has_ended = true;
        let told: SendReply = Box::new(move || {
            // The receiver may have timed out.
            let _ = told.send(());
        });
        self.delivery.when_stored(&self.state, told);
        self.delivery.commit_now();
    }

    fn on_query(&mut self, now: Now, look: QueryFn) {
        // Earlier events of this turn and their effects must be visible. A series of queries needs
        // no further rounds.
        if !self.is_settled {
            self.turn.lap(Part::Requests);
            self.end_round();
        }
        let seen = look(&View {
            state: &self.state,
            now,
        });
        match seen {
            QueryResult::Final(tell) => self.delivery.answer(&self.state, tell),
            QueryResult::Partial(tell) => tell(),
        }
    }

    fn on_watch(
        &mut self,
        spec: WatchSpec,
        updates: UpdateSender,
        id_reply: oneshot::Sender<RequestId>,
    ) -> Input {
        let id = self.next_request();
        self.delivery.add_watch(id, updates);
        // A disconnected client is noticed at its first update.
        let _ = id_reply.send(id);
        Input::Request(id, Command::Watch(spec))
    }

    /// Returns whether there is work for [`Self::register_deferred`].
    fn can_register_deferred(&self) -> bool {
        self.delivery.has_abandoned() || !self.deferred.is_empty() && !self.delivery.is_held()
    }

    /// Registers workers whose registration was deferred while the store was stalled, as many as
    /// fit into a round that already has `rows` rows. Drops abandoned registrations. Returns the
    /// number of rows that this took.
    fn register_deferred(&mut self, rows: usize) -> usize {
        let mut taken = 0;
        while let Some(worker) = self.delivery.take_abandoned() {
            let gone = Input::WorkerGone(worker, LinkEnd::Broken);
            self.apply(self.clock.now(), gone);
            taken += 1;
        }
        while rows + taken < ROWS_PER_ROUND_MAX
            && !self.delivery.is_held()
            && let Some(pending) = self.deferred.pop()
        {
            taken += self.on_event(Event::WorkerConnected(pending));
        }
        taken
    }

    /// Registers a worker, or reconnects a known one.
    fn on_connected(&mut self, pending: PendingRegistration) -> Input {
        let PendingRegistration {
            config,
            reattach,
            reply,
        } = pending;
        let config = *config;
        self.next_id += 1;
        let link = LinkId(self.next_id);
        let is_its_own = |reattach: &Box<_>| !self.state.is_impostor(&config, reattach);
        let claimed = reattach.as_ref().map(|reattach| reattach.worker);
        let Some(reattach) = reattach.filter(is_its_own) else {
            if let Some(worker) = claimed {
                tracing::warn!(host = %config.hostname, %worker,
                    "Another process claims to be this worker without its secret; it joins as a new worker");
            }
            self.delivery.expect_worker(link, reply);
            return Input::WorkerConnected(link, config);
        };
        if self.state.is_late(&reattach) {
            // Without a reply the connection ends, and the newer one stays.
            return Input::WorkerReattached(link, config, reattach);
        }
        self.delivery.expect_worker(link, reply);
        if *reattach.server_uid == *self.state.uid() {
            // From now on, messages from the worker's older connection must not count.
            self.delivery.forget_link(reattach.worker);
        }
        Input::WorkerReattached(link, config, reattach)
    }

    /// Stores changes that the core's state does not contain, and reports their commit.
    fn persist(&mut self, now: Now, changes: Vec<ChangeKind>, stored: oneshot::Sender<()>) {
        let at = now.wall;
        let changes = changes.into_iter().map(|kind| Change { at, kind });
        self.delivery.store(&self.state, changes.collect(), stored);
    }

    /// Assigns an id to a request that needs a reply, unless the request is rejected immediately.
    fn expect_reply(&mut self, adds: bool, reply: ReplyTo) -> Option<RequestId> {
        if let Some(refusal) = self.refusal(adds) {
            // The receiver may have been dropped.
            let _ = reply.send(Err(refusal));
            return None;
        }
        let id = self.next_request();
        self.delivery.expect_reply(id, reply);
        Some(id)
    }

    fn next_request(&mut self) -> RequestId {
        self.next_id += 1;
        RequestId(self.next_id)
    }

    /// Returns why a command is rejected: the server is ending, or the store takes no changes.
    /// `adds` says whether the command adds jobs or tasks. Cancels and similar commands remain
    /// possible and are acknowledged when they are stored.
    fn refusal(&self, adds: bool) -> Option<Refusal> {
        let text = match self.delivery.health() {
            Health::Broken(reason) => format!("the server is stopping: {reason}"),
            Health::Good | Health::Waiting(_) if self.has_ended => {
                "the server is stopping; nothing was changed".to_owned()
            }
            Health::Good => return None,
            Health::Waiting(_) if !adds => return None,
            Health::Waiting(reason) => format!(
                "the server cannot write its state to disk ({reason}), so nothing was submitted. Free some space and submit again"
            ),
        };
        Some(Refusal::unavailable(text))
    }
}

#[cfg(test)]
mod tests;
