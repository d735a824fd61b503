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

/// Pause between attempts to reach a lost server, like a real worker: doubled from the first to the
/// last, each shortened randomly.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// Messages handled in one turn, like a real worker.
const MESSAGES_PER_TURN: usize = 64;

/// Counters of a simulated worker.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    /// Bytes that came from the server.
    pub received: u64,
    /// Tasks that it ended.
    pub ended: u64,
    /// Why it ended.
    pub exit: Option<ExitReason>,
}

/// The way to the server.
#[expect(clippy::large_enum_variant, reason = "nearly all are of the large one")]
enum Line {
    Up(Link),
    Reaching(Attempt<Result<Reached>>),
    Introducing(Attempt<Result<Link>>),
}

/// News of it.
enum News {
    /// Messages arrived, or something was written.
    Traffic,
    Lost,
    Reached(Reached),
    Back(Link),
    /// An attempt failed; whether the server was reached.
    Failed {
        was_reached: bool,
        error: anyhow::Error,
    },
}

impl Line {
    /// Cancel safe: dropping the future loses nothing.
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

    /// Queues a message; without a connection it is dropped.
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
    /// Subscribed at the registration: the worker may run for the first time much later.
    storms: watch::Receiver<()>,
    state: WorkerState,
    line: Line,
    /// Its id, and the uid of its server.
    identity: (hq_core::id::WorkerId, Box<str>),
    /// Pause after an attempt that reached the server, and after one that did not.
    pause: Duration,
    dial_pause: Duration,
    /// Attempts to register again.
    registrations: u64,
    /// Heartbeats since the last message of the server.
    silent_heartbeats: u32,
    tasks: Tasks,
    exit: Option<ExitReason>,
    counts: Counts,
}

impl SimulatedWorker {
    /// Connects and registers.
    ///
    /// # Errors
    ///
    /// If the server rejects it.
    pub(super) async fn register(home: Home, time: TaskTime) -> Result<Self> {
        let reached = home.clone().reach(Duration::ZERO).await?;
        let link = introduce(reached, ToServer::from(&*home.config)).await?;
        home.storms.tally().note_registered();
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

    /// Works until the server stops it, or it ends by itself.
    ///
    /// # Errors
    ///
    /// If a message is invalid.
    pub(super) async fn run(mut self) -> Result<Counts> {
        let mut heartbeat = tokio::time::interval(self.home.config.heartbeat);
        let (mut batch, mut effects) = (Vec::new(), Vec::new());
        while self.exit.is_none() {
            let wake = self.state.next_deadline().into_iter();
            let wake = wake.chain(self.tasks.next_end()).min();
            let news = tokio::select! {
                // An error means that no more will come.
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
            // The server may have closed the connection already.
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
                let tally = self.home.storms.tally();
                tally.note_back(link.reattached);
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

    /// Starts to look for the server.
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

    /// Registers again at a server that was reached.
    fn introduce_again(&mut self, reached: Reached) {
        // A registration that arrives after a later one is rejected, so each has its number.
        self.registrations += 1;
        let holding = self.state.holding(now().mono);
        let (worker, uid) = &self.identity;
        // It registered without a hash, so any secret will do.
        let known = (&*self.home.config, &SecretKey::from_bytes([0; 32]));
        let message = convert::reattach(known, *worker, uid, &holding, self.registrations);
        self.line = Line::Introducing(Box::pin(introduce(reached, message)));
    }

    /// Applies due inputs, and carries out the effects.
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
                Effect::DropTemplate(_) => {}
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
        // The timer rounds up to milliseconds, the longest part of a short task.
        Some(wake) if wake <= now().mono => {}
        Some(wake) => tokio::time::sleep(wake.since(now().mono)).await,
        None => std::future::pending().await,
    }
}

/// Both clocks, as a real worker reads them.
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
