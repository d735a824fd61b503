//! One simulated worker: the real state machine and protocol, and tasks that only take time.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use hq_core::time::{Now, Time, Timestamp, nanos};
use hq_core::worker_config::UNANSWERED_HEARTBEATS_MAX;
use hq_core::worker_state::{Effect, ExitReason, Input, LaunchEvent, WorkerState};
use hq_protocol::SecretKey;
use hq_protocol::convert::{self, FromServer};
use hq_protocol::worker::{ToServer, ToWorker};
use tokio::sync::watch;

use super::home::{Attempt, Home, Link, Reached, introduce};
use super::tasks::{TaskTime, Tasks};

/// The pause between attempts to reach a lost server. As in a real worker, it doubles from this
/// value up to the maximum, and each pause is shortened randomly.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The maximum number of messages that are handled in one turn, as in a real worker.
const MESSAGES_PER_TURN: usize = 64;

/// The counters of a simulated worker.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Counts {
    /// The number of bytes received from the server.
    pub(crate) received: u64,
    /// The number of tasks that it ended.
    pub(crate) ended: u64,
    /// Why the worker ended.
    pub(crate) exit: Option<ExitReason>,
}

/// The connection to the server, or the attempt to establish one.
#[expect(clippy::large_enum_variant, reason = "nearly all are of the large one")]
enum Line {
    Up(Link),
    Reaching(Attempt<Result<Reached>>),
    Introducing(Attempt<Result<Link>>),
}

/// An event of a connection.
enum News {
    /// Messages arrived, or data was written.
    Traffic,
    Lost,
    Reached(Reached),
    Back(Link),
    /// An attempt failed. Says whether the server was reached.
    Failed {
        was_reached: bool,
        error: anyhow::Error,
    },
}

impl Line {
    /// Cancel safe: nothing is lost if the future is dropped.
    async fn next(&mut self, batch: &mut Vec<ToWorker>) -> News {
        match self {
            Self::Up(Link { reader, writer, .. }) => tokio::select! {
                read = reader.next_batch::<ToWorker>(MESSAGES_PER_TURN, batch) => match read {
                    Ok(true) => News::Traffic,
                    Ok(false) | Err(_) => News::Lost,
                },
                written = writer.flush(), if writer.buffered() > 0 => match written {
                    Ok(()) => News::Traffic,
                    Err(_) => News::Lost,
                },
            },
            Self::Reaching(attempt) => match attempt.await {
                Ok(reached) => News::Reached(reached),
                Err(error) => News::Failed {
                    was_reached: false,
                    error,
                },
            },
            Self::Introducing(attempt) => match attempt.await {
                Ok(link) => News::Back(link),
                Err(error) => News::Failed {
                    was_reached: true,
                    error,
                },
            },
        }
    }

    /// Queues a message, or drops it if there is no connection.
    fn feed(&mut self, message: &ToServer) -> Result<()> {
        if let Self::Up(link) = self {
            link.writer.feed(message)?;
        }
        Ok(())
    }
}

/// A worker that the server knows.
pub(super) struct SimulatedWorker {
    home: Home,
    /// Subscribed at the registration, because the worker may first run much later.
    storms: watch::Receiver<()>,
    state: WorkerState,
    line: Line,
    /// The id of the worker, and the uid of its server.
    identity: (hq_core::id::WorkerId, Box<str>),
    /// The pause after an attempt that reached the server, and after one that did not.
    pause: Duration,
    dial_pause: Duration,
    /// The number of attempts to register again.
    registrations: u64,
    /// The number of heartbeats sent since the server's last message.
    silent_heartbeats: u32,
    tasks: Tasks,
    exit: Option<ExitReason>,
    counts: Counts,
}

impl SimulatedWorker {
    /// Connects and registers.
    pub(super) async fn register(home: Home, time: TaskTime) -> Result<Self> {
        let reached = home.clone().reach(Duration::ZERO).await?;
        let link = introduce(reached, ToServer::from(&*home.config)).await?;
        home.storms.tally().up += 1;
        let seed = u64::from(link.identity.0.as_u32());
        Ok(Self {
            state: WorkerState::new(now(), &home.config, link.idle_timeout_default),
            tasks: Tasks::new(time, seed, home.ledger.clone()),
            storms: home.storms.storm.subscribe(),
            home,
            identity: link.identity.clone(),
            line: Line::Up(link),
            pause: PAUSE_MIN,
            dial_pause: PAUSE_MIN,
            registrations: 0,
            silent_heartbeats: 0,
            exit: None,
            counts: Counts::default(),
        })
    }

    /// Runs until the server stops the worker or the worker ends by itself.
    pub(super) async fn run(mut self) -> Result<Counts> {
        let mut heartbeat = tokio::time::interval(self.home.config.heartbeat);
        let (mut batch, mut effects) = (Vec::new(), Vec::new());
        while self.exit.is_none() {
            let wake = self.state.next_deadline().into_iter();
            let wake = wake.chain(self.tasks.next_end()).min();
            let news = tokio::select! {
                // An error means that there will be no more storms.
                Ok(()) = self.storms.changed() => News::Lost,
                news = self.line.next(&mut batch) => news,
                () = sleep_until(wake) => News::Traffic,
                _ = heartbeat.tick() => self.beat()?,
            };
            self.on_news(news, &mut effects);
            if !batch.is_empty() {
                self.silent_heartbeats = 0;
                self.pause = PAUSE_MIN;
            }
            for message in batch.drain(..) {
                if let FromServer::Input(input) = FromServer::try_from(message)? {
                    self.state.apply(now(), input, &mut effects);
                }
            }
            self.turn(&mut effects)?;
        }
        if let Line::Up(link) = &mut self.line {
            // The server may already have closed the connection.
            let _ = link.writer.flush().await;
            self.counts.received += link.reader.received();
        }
        self.counts.exit = self.exit;
        Ok(self.counts)
    }

    fn beat(&mut self) -> Result<News> {
        let beat = convert::heartbeat(std::iter::empty(), std::iter::empty(), (&[], None));
        self.line.feed(&beat)?;
        self.silent_heartbeats += 1;
        Ok(if self.silent_heartbeats > UNANSWERED_HEARTBEATS_MAX {
            News::Lost
        } else {
            News::Traffic
        })
    }

    fn on_news(&mut self, news: News, effects: &mut Vec<Effect>) {
        match news {
            News::Traffic => {}
            News::Lost => self.on_lost(effects),
            News::Reached(reached) => self.introduce_again(reached),
            News::Back(link) => {
                let mut tally = self.home.storms.tally();
                tally.up += 1;
                tally.given_up += usize::from(!link.reattached);
                drop(tally);
                let back = Input::ServerBack {
                    reattached: link.reattached,
                };
                self.identity = link.identity.clone();
                self.line = Line::Up(link);
                self.silent_heartbeats = 0;
                self.state.apply(now(), back, effects);
            }
            News::Failed { was_reached, error } => {
                self.home.storms.tally().note_failure(&error);
                if was_reached {
                    self.dial();
                } else {
                    self.dial_pause = (self.dial_pause * 2).min(PAUSE_MAX);
                    self.reach();
                }
            }
        }
    }

    fn on_lost(&mut self, effects: &mut Vec<Effect>) {
        let Line::Up(link) = &self.line else {
            return;
        };
        self.counts.received += link.reader.received();
        self.home.storms.tally().note_loss();
        self.dial();
        self.state.apply(now(), Input::ServerLost, effects);
    }

    /// Starts to connect to the server.
    fn dial(&mut self) {
        self.dial_pause = self.pause;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        self.reach();
    }

    /// Begins an attempt to reach it.
    fn reach(&mut self) {
        let random = RandomState::new().hash_one(0) % 1_000;
        let pause = self.dial_pause * u32::try_from(random).unwrap_or(0) / 1_000;
        self.line = Line::Reaching(Box::pin(self.home.clone().reach(pause)));
    }

    /// Registers again over a new connection to the server.
    fn introduce_again(&mut self, reached: Reached) {
        // A registration that arrives after a later one is rejected, so each has a number.
        self.registrations += 1;
        let holding = self.state.holding(now().mono);
        let (worker, uid) = &self.identity;
        // The worker registered without a hash, so any secret will do.
        let known = (&*self.home.config, &SecretKey::from_bytes([0; 32]));
        let message = convert::reattach(known, *worker, uid, &holding, self.registrations);
        self.line = Line::Introducing(Box::pin(introduce(reached, message)));
    }

    /// Applies due inputs and executes the effects.
    fn turn(&mut self, effects: &mut Vec<Effect>) -> Result<()> {
        let time = now();
        let events = self.tasks.due(time.mono);
        self.counts.ended += events
            .iter()
            .map(|event| u64::from(matches!(event, LaunchEvent::Exited { .. })))
            .sum::<u64>();
        let input = if events.is_empty() {
            Input::Timer
        } else {
            Input::Launcher(events)
        };
        self.state.apply(time, input, effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::Launch(tasks) => self.tasks.launch(tasks, time.mono),
                Effect::Terminate(token) | Effect::Kill(token) => {
                    self.tasks.terminate(token, time.mono);
                }
                Effect::Withdraw(tokens) => {
                    for token in tokens {
                        self.tasks.withdraw(token);
                    }
                }
                Effect::DropTemplate(_) | Effect::Signal(..) => {}
                Effect::Report(report) => self.line.feed(&ToServer::from(&report))?,
                Effect::Farewell => self.line.feed(&ToServer::from(ExitReason::ServerEnded))?,
                Effect::Exit(reason) => {
                    self.line.feed(&ToServer::from(reason))?;
                    self.exit = Some(reason);
                }
            }
        }
        Ok(())
    }
}

async fn sleep_until(wake: Option<Time>) {
    match wake {
        // The timer rounds up to milliseconds, which would dominate the time of a short task.
        Some(wake) if wake <= now().mono => {}
        Some(wake) => tokio::time::sleep(wake.since(now().mono)).await,
        None => std::future::pending().await,
    }
}

/// Reads both clocks, as a real worker does.
fn now() -> Now {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = Duration::from_secs(u64::try_from(time.tv_sec).unwrap_or(0));
    let rest = Duration::from_nanos(u64::try_from(time.tv_nsec).unwrap_or(0));
    let wall = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, nanos);
    Now {
        mono: Time(nanos(seconds + rest)),
        wall: Timestamp(i64::try_from(wall).unwrap_or(i64::MAX)),
    }
}
