//! The loop that owns the worker's state. It turns every event into an input and executes every
//! effect.
//!
//! Events come from the server, the spawn engine, finished cleanups, timers and interrupts. If the
//! front process dies, the keeper ends the whole worker. Each turn has the same order: collect what
//! has arrived, apply it, and execute the effects. Writing to the server never blocks the loop:
//! unsent messages wait in the writer, and their number is bounded by the number of running tasks.

mod reaching;
mod relay_liveness;

use std::future::{Future, pending};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hq_core::error_chain::ErrorChain;
use hq_core::hardware::HardwareUsage;
use hq_core::id::WorkerId;
use hq_core::node_check::NodeFault;
use hq_core::time::{Time, Timestamp};
use hq_core::worker_config::{OnServerLost, UNANSWERED_HEARTBEATS_MAX, WorkerConfig};
use hq_core::worker_state::{Effect, ExitReason, Input, Interrupt, LaunchEvent, WorkerState};
use hq_protocol::convert::{self, FromServer, reattach};
use hq_protocol::worker::{self, ToServer, ToWorker, to_server};
use hq_protocol::{Connection, SecretKey};
use hq_spawn::keeper::{KeeperContext, kill_descendants, unreachable_descendants};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, Interval, MissedTickBehavior};

use crate::bounded::{in_time, remove_in_time};
use crate::clock;
use crate::config::WorkDir;
use crate::launcher::TaskLauncher;
use crate::node_check::NodeChecks;
use crate::notify::{Notification, NotifySocket};
use crate::output_service::OutputService;
use crate::overview::Overviews;
use crate::registration::RegisteredWorker;
use crate::relay::Relay;
use crate::reported::Reported;
use crate::server_link::{Link, Redial, RegisterError, introduce};
use reaching::{REDIAL_PAUSE_MAX, REDIAL_PAUSE_MIN, Refusals, is_stopped, reach_again};
use relay_liveness::RelayLiveness;

/// Why a worker ended.
pub type WorkerEnd = ExitReason;

/// The maximum number of server messages that the loop handles in one turn.
const MESSAGES_PER_TURN: usize = 64;

/// How long to wait for the server to accept the goodbye and close the connection.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long to wait for leftover processes of tasks when the worker ends.
const LEFTOVER_TIMEOUT: Duration = Duration::from_secs(2);

/// How long to wait for all tasks and their streams to end when the worker ends. Their file system
/// may hang.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);

/// If more bytes than this are unsent, notifications of tasks have to wait.
const NOTIFY_BUFFER_MAX: usize = 1 << 20;

/// If more bytes than this are unsent, messages of tasks are no longer sent before their ends are
/// reported. The limit fits the longest messages of four thousand tasks that end while the server
/// reads nothing.
const LAST_WORDS_BUFFER_MAX: usize = 4 << 20;

/// While the worker stops, the pause between two checks whether every leftover process is
/// unkillable. [`HUNG_LOOKS`] consecutive checks must agree, because a healthy program sleeps
/// uninterruptibly only for moments.
const HUNG_LOOK: Duration = Duration::from_millis(250);
const HUNG_LOOKS: u32 = 4;

impl<S> RegisteredWorker<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    /// Runs the worker until there is a reason to end. On return, no task is left, the goodbye has
    /// been sent if the server was reachable, and the working directory has been removed. Closing
    /// `control` does not count as an interrupt.
    pub async fn run(self, control: mpsc::Receiver<Interrupt>) -> WorkerEnd {
        let Self {
            link,
            launcher,
            notify,
            keeper,
            redial,
            relay,
            work_dir,
            config,
            secret,
            ..
        } = self;
        let mut effective = WorkerConfig::clone(&config);
        if effective.on_server_lost == OnServerLost::Reconnect && redial.is_none() {
            effective.on_server_lost = OnServerLost::Stop;
        }
        let mut state = WorkerState::new(clock::now(), &effective, link.idle_timeout_default);
        state.wait_for_server(link.server_wait);
        let identity = (link.worker, link.server_uid.clone());
        let mut heartbeat = tokio::time::interval(config.heartbeat);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let recent = Arc::clone(launcher.recent_dirs());
        let checks = NodeChecks::start(work_dir.path(), recent, config.heartbeat);
        let mut event_loop = EventLoop {
            state,
            launcher,
            notify,
            checks,
            outputs: OutputService::new(),
            overviews: Overviews::start(&config),
            link: LinkState::Up(link),
            identity,
            secret,
            redial,
            relay,
            pause: REDIAL_PAUSE_MIN,
            relay_liveness: RelayLiveness::default(),
            received: 0,
            refusals: Refusals::default(),
            silent_heartbeats: 0,
            registrations: 0,
            config,
            heartbeat,
            keeper: keeper.map(Arc::new),
            control: Some(control),
            effects: Vec::new(),
            events: Vec::new(),
            reported: Reported::default(),
            end: None,
            next_look: clock::now().mono,
            hung_looks: 0,
        };
        let reason = loop {
            let event = event_loop.wait().await;
            event_loop.handle(event);
            if let Some(reason) = event_loop.end {
                break reason;
            }
        };
        event_loop.finish(reason, work_dir).await;
        reason
    }
}

/// An event that wakes the loop.
enum LoopEvent<S> {
    Launcher(Vec<LaunchEvent>),
    Server(Vec<ToWorker>),
    Written,
    ServerLost(Box<str>),
    Dialed(Box<Connection<S>>),
    Introduced(Box<Result<Link<S>, RegisterError>>),
    /// The server will not come back.
    ServerGone,
    Timer,
    Heartbeat,
    Notify(Notification),
    Output(Box<worker::Output>),
    Overview(Box<HardwareUsage>),
    /// The set of problems of the node has changed.
    NodeChanged,
    Interrupt(Interrupt),
    ControlClosed,
    /// It is time to check whether leftover processes can still end.
    Look,
    /// Whether other workers reach the server through this one.
    Relaying(bool),
    /// The relay that carries the connection stopped answering.
    RelayDied,
}

/// The connection to the server, or the attempt to establish one.
#[expect(clippy::large_enum_variant, reason = "there is exactly one of it")]
enum LinkState<S> {
    Up(Link<S>),
    /// The worker is trying to reach the server. The attempt yields `None` if the server is gone
    /// for good.
    Redialing(Attempt<Option<(Redial<S>, Connection<S>)>>),
    /// The worker is waiting for the reply to the registration.
    Introducing(Attempt<Result<Link<S>, RegisterError>>),
    Down,
}

/// An operation on a separate tokio task, which is aborted on drop.
struct Attempt<T>(JoinHandle<T>);

impl<T> Drop for Attempt<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl<S> LinkState<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    /// Waits for the server.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    async fn wait(
        &mut self,
        redial: &mut Option<Redial<S>>,
        liveness: &mut RelayLiveness,
    ) -> LoopEvent<S> {
        match self {
            Self::Up(Link { reader, writer, .. }) => {
                let mut batch = Vec::new();
                tokio::select! {
                    read = reader.next_batch(MESSAGES_PER_TURN, &mut batch) => match read {
                        Ok(true) => LoopEvent::Server(batch),
                        Ok(false) => LoopEvent::ServerLost("it closed the connection".into()),
                        Err(error) => LoopEvent::ServerLost(describe(&error)),
                    },
                    written = writer.flush(), if writer.buffered() > 0 => match written {
                        Ok(()) => LoopEvent::Written,
                        Err(error) => LoopEvent::ServerLost(describe(&error)),
                    },
                    () = liveness.dies(redial.as_mut()) => LoopEvent::RelayDied,
                }
            }
            Self::Redialing(attempt) => match (&mut attempt.0).await {
                Ok(Some((dial, connection))) => {
                    *redial = Some(dial);
                    LoopEvent::Dialed(Box::new(connection))
                }
                Ok(None) => LoopEvent::ServerGone,
                Err(_) => LoopEvent::ServerLost("the attempts to reach it were aborted".into()),
            },
            Self::Introducing(attempt) => match (&mut attempt.0).await {
                Ok(result) => LoopEvent::Introduced(Box::new(result)),
                Err(_) => LoopEvent::ServerLost("the registration was aborted".into()),
            },
            Self::Down => pending().await,
        }
    }

    /// Returns the number of bytes received over this connection.
    const fn received(&self) -> u64 {
        match self {
            Self::Up(link) => link.reader.received(),
            Self::Redialing(_) | Self::Introducing(_) | Self::Down => 0,
        }
    }

    /// Returns the number of unsent bytes, or 0 without a connection.
    fn buffered(&self) -> usize {
        match self {
            Self::Up(link) => link.writer.buffered(),
            Self::Redialing(_) | Self::Introducing(_) | Self::Down => 0,
        }
    }

    /// Returns whether tasks may send more messages. Otherwise their messages would fill the memory
    /// while the server is slow.
    fn has_room(&self) -> bool {
        self.buffered() < NOTIFY_BUFFER_MAX
    }

    const fn is_up(&self) -> bool {
        matches!(self, Self::Up(_))
    }

    /// Queues a message, or drops it if there is no connection.
    fn feed(&mut self, message: &ToServer) {
        if let Self::Up(link) = self
            && let Err(error) = link.writer.feed(message)
        {
            tracing::error!(%error, "a message to the server was dropped");
        }
    }
}

struct EventLoop<S> {
    state: WorkerState,
    launcher: TaskLauncher,
    notify: Option<NotifySocket>,
    checks: NodeChecks,
    outputs: OutputService,
    overviews: Overviews,
    link: LinkState<S>,
    /// The id of this worker, and the uid of its server.
    identity: (WorkerId, Box<str>),
    /// Lets the server recognize this worker when it reconnects.
    secret: SecretKey,
    redial: Option<Redial<S>>,
    relay: Option<Relay>,
    /// The pause before the next attempt to reach a lost server.
    pause: Duration,
    relay_liveness: RelayLiveness,
    /// The number of heartbeats sent since the server's last message.
    silent_heartbeats: u32,
    /// The number of bytes received when the last heartbeat was sent.
    received: u64,
    /// The failed registrations since the server was lost.
    refusals: Refusals,
    /// The number of attempts to register again.
    registrations: u64,
    config: Arc<WorkerConfig>,
    heartbeat: Interval,
    keeper: Option<Arc<KeeperContext>>,
    control: Option<mpsc::Receiver<Interrupt>>,
    /// A buffer that keeps its memory between turns.
    effects: Vec<Effect>,
    events: Vec<LaunchEvent>,
    reported: Reported,
    end: Option<ExitReason>,
    /// While the worker stops: the time of the next check for unkillable processes, and the number
    /// of consecutive checks that found no other processes.
    next_look: Time,
    hung_looks: u32,
}

impl<S> EventLoop<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    async fn wait(&mut self) -> LoopEvent<S> {
        let deadline = self.state.next_deadline();
        let control = &mut self.control;
        let (has_room, is_up) = (self.link.has_room(), self.link.is_up());
        let killed_at = self.state.all_killed_at();
        let look_at = killed_at.map(|time| time.max(self.next_look));
        tokio::select! {
            events = self.launcher.news() => LoopEvent::Launcher(events),
            event = self.link.wait(&mut self.redial, &mut self.relay_liveness) => event,
            () = sleep_until(deadline) => LoopEvent::Timer,
            _ = self.heartbeat.tick() => LoopEvent::Heartbeat,
            () = sleep_until(look_at), if look_at.is_some() => LoopEvent::Look,
            notification = next_notification(&mut self.notify), if has_room && is_up => {
                LoopEvent::Notify(notification)
            }
            output = self.outputs.next(), if has_room => LoopEvent::Output(Box::new(output)),
            () = self.checks.changed() => LoopEvent::NodeChanged,
            is_relaying = Relay::changed(&mut self.relay) => LoopEvent::Relaying(is_relaying),
            usage = self.overviews.next(), if has_room => LoopEvent::Overview(Box::new(usage)),
            interrupt = receive(control) => match interrupt {
                Some(interrupt) => LoopEvent::Interrupt(interrupt),
                None => LoopEvent::ControlClosed,
            },
        }
    }

    fn handle(&mut self, event: LoopEvent<S>) {
        match event {
            LoopEvent::Launcher(mut events) => self.events.append(&mut events),
            LoopEvent::Server(messages) => {
                self.silent_heartbeats = 0;
                self.relay_liveness.on_reply();
                self.pause = REDIAL_PAUSE_MIN;
                // End events come first: a task that has already exited must not be killed or count
                // as ended by the worker.
                self.collect_news();
                for message in messages {
                    self.on_message(message);
                }
            }
            LoopEvent::Written => {}
            LoopEvent::ServerLost(why) => self.on_server_lost(&why),
            LoopEvent::Dialed(connection) => self.introduce_again(*connection),
            LoopEvent::Introduced(result) => match *result {
                Ok(link) => self.on_server_back(link),
                Err(error) => {
                    self.refusals.note(&describe(&error));
                    self.dial();
                }
            },
            LoopEvent::ServerGone => {
                tracing::warn!(
                    "The directory of the server is gone; the worker ends when its tasks have ended"
                );
                self.link = LinkState::Down;
                self.apply(Input::ServerGone);
            }
            LoopEvent::Timer => {
                // Pending end events are applied before overdue timers.
                self.collect_news();
                self.apply(Input::Timer);
            }
            LoopEvent::Heartbeat => self.send_heartbeat(),
            LoopEvent::Notify(notification) => self.link.feed(&notification.into()),
            LoopEvent::Output(output) => self.link.feed(&ToServer {
                message: Some(to_server::Message::Output(*output)),
            }),
            // This does not count toward the turn limit.
            LoopEvent::NodeChanged => {
                self.feed_heartbeat();
            }
            LoopEvent::Overview(usage) => self.link.feed(&(&*usage).into()),
            LoopEvent::Interrupt(interrupt) => {
                self.collect_news();
                self.apply(Input::Interrupt(interrupt));
            }
            LoopEvent::ControlClosed => self.control = None,
            LoopEvent::Look => self.check_hung(),
            LoopEvent::Relaying(is_relaying) => self.apply(Input::Relaying(is_relaying)),
            LoopEvent::RelayDied => self.on_relay_died(),
        }
        self.collect_news();
        if self.launcher.take_unkillable_changed() {
            // This does not count toward the turn limit.
            self.feed_heartbeat();
        }
        self.act();
    }

    /// Ends the worker at once if every leftover process has received SIGKILL and does not react.
    /// This requires a front process: without one, there may be processes that the worker does not
    /// know about.
    fn check_hung(&mut self) {
        self.next_look = clock::now().mono + HUNG_LOOK;
        let left = unreachable_descendants().filter(|_| self.keeper.is_some());
        self.hung_looks = left.as_ref().map_or(0, |_| self.hung_looks + 1);
        if let Some(left) = left.filter(|_| self.hung_looks == HUNG_LOOKS) {
            tracing::warn!(
                "Processes of tasks cannot be killed: {left}. The worker ends without waiting for them"
            );
            self.apply(Input::Interrupt(Interrupt::Terminate));
        }
    }

    fn apply(&mut self, input: Input) {
        self.state.apply(clock::now(), input, &mut self.effects);
    }

    fn collect_news(&mut self) {
        let mut events = std::mem::take(&mut self.events);
        let state = &self.state;
        self.launcher
            .collect(&mut events, |token| state.is_ending(token));
        if events.is_empty() {
            self.events = events;
        } else {
            self.forward_messages();
            self.apply(Input::Launcher(events));
        }
    }

    /// Sends messages of tasks before their ends are reported, because a waiting client leaves when
    /// its job ends.
    fn forward_messages(&mut self) {
        let mut arrived = self.notify.iter_mut().flat_map(NotifySocket::arrived);
        // With each end of a task, all messages are taken from the queue. They would fill the
        // memory while the server reads nothing, so the rest waits until there is room.
        while self.link.is_up()
            && self.link.buffered() < LAST_WORDS_BUFFER_MAX
            && let Some(notification) = arrived.next()
        {
            self.link.feed(&notification.into());
        }
    }

    fn on_message(&mut self, message: ToWorker) {
        match FromServer::try_from(message) {
            Ok(FromServer::Input(input)) => {
                if let Input::Acknowledged(seq) = input {
                    let keys = self.reported.acknowledge(seq);
                    self.launcher.calls().forget_values(keys);
                    self.launcher.curves().acknowledge(seq);
                }
                self.apply(input);
            }
            Ok(FromServer::Ping(forgotten)) => {
                if !forgotten.is_empty() {
                    self.launcher.calls().long.forget_jobs(Some(&forgotten));
                }
            }
            Ok(FromServer::ReadOutput(request)) => self.outputs.read(request),
            Ok(
                FromServer::Registered { .. } | FromServer::Refused(_) | FromServer::RelayOpened(_),
            ) => {
                tracing::warn!("the server answered a registration that was not requested");
            }
            Err(error) => {
                self.on_server_lost(&format!("it sent a malformed message: {error}"));
            }
        }
    }

    fn on_server_lost(&mut self, why: &str) {
        if !matches!(self.link, LinkState::Up(_)) {
            return;
        }
        tracing::warn!("Lost the server: {why}");
        self.link = LinkState::Down;
        if self.config.on_server_lost != OnServerLost::Stop && !self.state.is_dismissed() {
            self.dial();
        }
        self.apply(Input::ServerLost);
    }

    /// Starts to connect to the server.
    fn dial(&mut self) {
        self.link = LinkState::Down;
        if let Some(redial) = self.redial.take() {
            let pause = self.pause;
            self.pause = (pause * 2).min(REDIAL_PAUSE_MAX);
            let attempts = reach_again(redial, pause, self.keeper.clone());
            self.link = LinkState::Redialing(Attempt(tokio::spawn(attempts)));
        }
    }

    /// Registers again over a new connection to the server.
    fn introduce_again(&mut self, connection: Connection<S>) {
        let holding = self.state.holding(clock::now().mono);
        let (worker, server_uid) = &self.identity;
        self.registrations += 1;
        let number = self.registrations;
        let registration = reattach(
            (&self.config, &self.secret),
            *worker,
            server_uid,
            &holding,
            number,
        );
        let attempt = async move { introduce(connection, &registration).await };
        self.link = LinkState::Introducing(Attempt(tokio::spawn(attempt)));
    }

    fn on_server_back(&mut self, link: Link<S>) {
        self.refusals = Refusals::default();
        let reattached = link.reattached;
        if reattached {
            tracing::info!(worker = %link.worker, "Connected to the server again");
        } else {
            tracing::warn!(worker = %link.worker, was = %self.identity.0,
                "Registered as a new worker; the server rejected the running tasks, which are killed");
        }
        self.silent_heartbeats = 0;
        self.relay_liveness.on_reply();
        if link.server_uid != self.identity.1 {
            // At a new server, the same job ids belong to different jobs.
            self.launcher.calls().long.forget_jobs(None);
        }
        self.identity = (link.worker, link.server_uid.clone());
        self.launcher
            .set_server(link.server_uid.clone(), link.worker, link.ip);
        self.link = LinkState::Up(link);
        if !reattached {
            self.reported = Reported::default();
            self.launcher.calls().forget_all_values();
        }
        self.launcher.curves().on_server_back(reattached);
        self.apply(Input::ServerBack { reattached });
    }

    /// Queues a heartbeat. If the front process is suspended, the worker sends none, as if it were
    /// suspended itself.
    fn feed_heartbeat(&mut self) -> bool {
        if is_stopped(self.keeper.as_deref()) {
            return false;
        }
        let now = clock::now();
        let node = (&*self.checks.faults(), Some(now.wall));
        let mut message = heartbeat(&mut self.launcher, node);
        // Without a connection, the curves would be dropped and not sent again for minutes.
        if matches!(self.link, LinkState::Up(_)) {
            convert::add_curves(&mut message, &self.launcher.curves().news(now.mono));
        }
        self.link.feed(&message);
        true
    }

    fn send_heartbeat(&mut self) {
        self.launcher.end_surplus();
        if self.feed_heartbeat() {
            self.silent_heartbeats += 1;
        }
        // A large message takes long on a slow network. A server that still sends bytes is alive.
        let received = self.link.received();
        if std::mem::replace(&mut self.received, received) != received {
            self.silent_heartbeats = 0;
            self.relay_liveness.on_reply();
        }
        if self.config.on_server_lost == OnServerLost::Reconnect {
            self.relay_liveness.on_heartbeat(self.config.heartbeat);
        }
        if self.silent_heartbeats > UNANSWERED_HEARTBEATS_MAX
            && matches!(self.link, LinkState::Up(_))
            && self.config.on_server_lost == OnServerLost::Reconnect
        {
            self.silent_heartbeats = 0;
            self.on_server_lost("it has not answered for several heartbeats");
        }
    }

    fn on_relay_died(&mut self) {
        if self.link.received() == self.received {
            self.on_server_lost("neither the server nor the relay in front of it answers");
        } else {
            // A part of a large message has arrived.
            self.relay_liveness.on_reply();
        }
    }

    fn act(&mut self) {
        for effect in self.effects.drain(..) {
            match effect {
                Effect::Launch(tasks) => self.launcher.launch(tasks, self.state.pools()),
                Effect::Withdraw(tokens) => {
                    for token in tokens {
                        self.launcher.withdraw(token);
                    }
                }
                Effect::Terminate(token) => self.launcher.terminate(token),
                Effect::Kill(token) => self.launcher.kill(token),
                Effect::Signal(token, signal) => self.launcher.signal(token, signal),
                Effect::Report(report) => {
                    for values in self.reported.values(&report, self.launcher.calls()) {
                        self.link.feed(&values);
                    }
                    let mut message = ToServer::from(&report);
                    convert::add_curves(&mut message, &self.launcher.curves().of_report(&report));
                    self.link.feed(&message);
                }
                Effect::DropTemplate(id) => self.launcher.drop_template(id),
                Effect::Farewell => self.link.feed(&ToServer::from(ExitReason::ServerEnded)),
                Effect::Exit(reason) => self.end = Some(reason),
            }
        }
    }

    /// Ends all tasks, sends the goodbye and removes the working directory.
    async fn finish(self, reason: ExitReason, work_dir: WorkDir) {
        let Self {
            mut launcher,
            mut link,
            heartbeat: mut ticks,
            keeper,
            notify,
            checks,
            relay,
            ..
        } = self;
        // The same heartbeat is sent repeatedly, so it carries no time.
        let alive = heartbeat(&mut launcher, (&checks.faults(), None));
        let has_keeper = keeper.is_some();
        let end_tasks = move || {
            launcher.shutdown();
            if has_keeper {
                let left = kill_descendants(LEFTOVER_TIMEOUT);
                if left > 0 {
                    tracing::error!("{left} processes of tasks could not be killed");
                }
            }
        };
        let ending = in_time("ending the tasks", SHUTDOWN_TIMEOUT, end_tasks);
        let beat = || (!is_stopped(keeper.as_deref())).then_some(&alive);
        stay_alive(&mut link, &mut ticks, beat, ending).await;
        // The notification socket is in that directory.
        let removal = remove_in_time((notify, work_dir));
        if reason != ExitReason::ServerLost {
            link.feed(&ToServer::from(reason));
        }
        let goodbye = async {
            if let LinkState::Up(link) = link {
                say_goodbye(link).await;
            }
        };
        tokio::join!(removal, goodbye, Relay::end(relay, reason));
    }
}

fn heartbeat(launcher: &mut TaskLauncher, node: (&[NodeFault], Option<Timestamp>)) -> ToServer {
    let held = launcher.calls().long.held_jobs();
    convert::heartbeat(launcher.unkillable(), held.into_iter(), node)
}

/// Sends heartbeats until `done` completes, so that the server does not declare the worker lost
/// during a slow shutdown.
async fn stay_alive<'a, S>(
    link: &mut LinkState<S>,
    heartbeat: &mut Interval,
    beat: impl Fn() -> Option<&'a ToServer>,
    done: impl Future<Output = ()>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut done = pin!(done);
    loop {
        let LinkState::Up(up) = &mut *link else {
            return done.await;
        };
        tokio::select! {
            () = &mut done => return,
            _ = heartbeat.tick() => {
                if let Some(message) = beat() {
                    link.feed(message);
                }
            }
            written = up.writer.flush(), if up.writer.buffered() > 0 => {
                if let Err(error) = written {
                    tracing::debug!("the server is lost: {}", describe(&error));
                    *link = LinkState::Down;
                }
            }
        }
    }
}

/// Sends queued messages and waits until the server closes the connection. If the worker closed it
/// first while data was unread, the kernel would discard the goodbye.
async fn say_goodbye<S: AsyncRead + AsyncWrite + Unpin>(mut link: Link<S>) {
    let goodbye = async {
        link.writer
            .shutdown()
            .await
            .map_err(|error| describe(&error))?;
        while link
            .reader
            .next::<ToWorker>()
            .await
            .map_err(|error| describe(&error))?
            .is_some()
        {}
        Ok::<(), Box<str>>(())
    };
    match tokio::time::timeout(GOODBYE_TIMEOUT, goodbye).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("goodbye: {error}"),
        Err(_) => tracing::debug!("goodbye: the server did not close the connection"),
    }
}

async fn sleep_until(deadline: Option<Time>) {
    match deadline {
        Some(deadline) => {
            let left = deadline.since(clock::now().mono);
            tokio::time::sleep_until(Instant::now() + left).await;
        }
        None => pending().await,
    }
}

async fn next_notification(socket: &mut Option<NotifySocket>) -> Notification {
    match socket {
        Some(socket) => match socket.next().await {
            Some(notification) => notification,
            None => pending().await,
        },
        None => pending().await,
    }
}

async fn receive(control: &mut Option<mpsc::Receiver<Interrupt>>) -> Option<Interrupt> {
    match control {
        Some(control) => control.recv().await,
        None => pending().await,
    }
}

fn describe(error: &dyn std::error::Error) -> Box<str> {
    ErrorChain(error).to_string().into()
}

#[cfg(test)]
mod tests;
