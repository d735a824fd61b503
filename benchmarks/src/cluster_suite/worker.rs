//! One simulated worker: the real state machine and protocol, and tasks that only take time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail};
use hq_core::id::{JobId, WorkerId};
use hq_core::outcome::Usage;
use hq_core::time::{Now, Time, Timestamp, nanos};
use hq_core::worker_config::WorkerConfig;
use hq_core::worker_state::{
    Effect, ExitReason, ExitStatus, Input, LaunchEvent, LaunchTask, LaunchToken, WorkerState,
};
use hq_protocol::access::Access;
use hq_protocol::convert::{self, FromServer};
use hq_protocol::worker::{ToServer, ToWorker};
use hq_protocol::{Connection, MessageReader, MessageWriter, Plane};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Semaphore, watch};

/// How often a worker tries to come back, and its pause between two attempts.
const ATTEMPTS_MAX: u32 = 100;
const ATTEMPT_PAUSE: Duration = Duration::from_millis(100);

/// The array is the first job of its server.
const ARRAY: JobId = JobId(1);

/// Messages that are digested in one turn, as a real worker does.
const MESSAGES_PER_TURN: usize = 64;

/// How long a task takes.
#[derive(Clone, Copy, Debug)]
pub struct TaskTime {
    /// On average.
    pub mean: Duration,
    /// Largest deviation from it, as a part of it: 0 to 1. All times in between are equally likely.
    pub spread: f64,
}

impl TaskTime {
    /// The time of one task, always the same for the same token of the same worker.
    fn of(self, seed: u64, token: LaunchToken) -> Duration {
        if self.spread <= 0.0 {
            return self.mean;
        }
        // SplitMix64 (Steele, Lea, Flood 2014): cheap, and evenly spread for consecutive numbers.
        let mut z = seed ^ token.0.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let unit = f64::from(u32::try_from(z >> 32).unwrap_or(0)) / f64::from(u32::MAX);
        self.mean.mul_f64(1.0 + self.spread * (2.0 * unit - 1.0))
    }
}

/// Moments in which all workers lose their connections.
#[derive(Clone, Debug, Default)]
pub struct Storms(watch::Sender<Storm>);

/// How far the storms are.
#[derive(Clone, Copy, Debug, Default)]
struct Storm {
    /// Workers that came back, of all storms together.
    returned: usize,
}

impl Storms {
    /// All workers lose their connections now.
    pub fn begin(&self) {
        self.0.send_modify(|_| ());
    }

    /// Workers that have come back since the start.
    #[must_use]
    pub fn returned(&self) -> usize {
        self.0.borrow().returned
    }
}

/// Counters of a simulated worker.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    /// Bytes that came from the server.
    pub received: u64,
    /// Tasks that it ended.
    pub ended: u64,
}

/// How a worker reaches its server, and what it says of itself.
#[derive(Clone)]
pub(super) struct Home {
    pub(super) access: Arc<Access>,
    pub(super) config: Arc<WorkerConfig>,
    pub(super) storms: Storms,
    /// Connections that may be made at once.
    pub(super) room: Arc<Semaphore>,
}

impl Home {
    /// Connects and shakes hands.
    async fn connect(&self) -> Result<Connection<TcpStream>> {
        let stream = hq_protocol::connect_tcp(&self.access.host, self.access.port).await?;
        stream.set_nodelay(true)?;
        let key = self.access.key.as_ref();
        Ok(hq_protocol::connect(stream, Plane::Worker, key).await?)
    }

    /// Connects, and says who it is; whether the server knows it as the worker that it was.
    async fn introduce(&self, message: &ToServer) -> Result<(Link, bool)> {
        let _room = self.room.acquire().await?;
        let (mut reader, mut writer) = self.connect().await?.split_tcp();
        writer.send(message).await?;
        let answer: ToWorker = reader.next().await?.context("no answer")?;
        let FromServer::Registered {
            worker,
            server_uid,
            idle_timeout_default,
            reattached,
        } = FromServer::try_from(answer)?
        else {
            bail!("the server does not take the worker");
        };
        let link = Link {
            reader,
            writer,
            identity: (worker, server_uid),
            idle_timeout_default,
        };
        Ok((link, reattached))
    }
}

/// A connection on which a worker is registered.
struct Link {
    reader: MessageReader<OwnedReadHalf>,
    writer: MessageWriter<OwnedWriteHalf>,
    identity: (WorkerId, Box<str>),
    idle_timeout_default: Option<Duration>,
}

/// A worker that the server knows.
pub(super) struct SimulatedWorker {
    home: Home,
    state: WorkerState,
    link: Link,
    /// How often it has come back.
    returns: u64,
    tasks: Tasks,
    exit: Option<ExitReason>,
    counts: Counts,
}

impl SimulatedWorker {
    /// Connects and registers.
    ///
    /// # Errors
    ///
    /// If the server does not take it.
    pub(super) async fn register(home: Home, time: TaskTime) -> Result<Self> {
        let (link, _) = home.introduce(&ToServer::from(&*home.config)).await?;
        Ok(Self {
            state: WorkerState::new(now(), &home.config, link.idle_timeout_default),
            tasks: Tasks::new(time, u64::from(link.identity.0.0)),
            home,
            link,
            returns: 0,
            exit: None,
            counts: Counts::default(),
        })
    }

    /// Works until the server ends it, or itself.
    ///
    /// # Errors
    ///
    /// If the connection breaks or a message makes no sense.
    pub(super) async fn run(mut self) -> Result<Counts> {
        let mut heartbeat = tokio::time::interval(self.home.config.heartbeat);
        let mut storms = self.home.storms.0.subscribe();
        let (mut batch, mut effects) = (Vec::new(), Vec::new());
        while self.exit.is_none() {
            let wake = self.state.next_deadline().into_iter();
            let wake = wake.chain(self.tasks.next_end()).min();
            tokio::select! {
                // An error tells that there will be none any more.
                Ok(()) = storms.changed() => {
                    self.come_back(&mut effects).await?;
                    self.home.storms.0.send_if_modified(|storm| {
                        storm.returned += 1;
                        false
                    });
                }
                read = self.link.reader.next_batch::<ToWorker>(MESSAGES_PER_TURN, &mut batch) => {
                    if !read? {
                        break;
                    }
                }
                written = self.link.writer.flush(), if self.link.writer.buffered() > 0 => written?,
                () = sleep_until(wake) => {}
                _ = heartbeat.tick() => {
                    self.link.writer.feed(&convert::heartbeat(std::iter::empty(), std::iter::empty(), (&[], None)))?;
                }
            }
            for message in batch.drain(..) {
                if let FromServer::Input(input) = FromServer::try_from(message)? {
                    self.state.apply(now(), input, &mut effects);
                }
            }
            self.turn(&mut effects)?;
        }
        // The server may have closed the connection already.
        let _ = self.link.writer.flush().await;
        self.counts.received += self.link.reader.received();
        Ok(self.counts)
    }

    /// Loses its connection, and registers again at once.
    async fn come_back(&mut self, effects: &mut Vec<Effect>) -> Result<()> {
        // The server may have closed its side already.
        let _ = self.link.writer.shutdown().await;
        self.state.apply(now(), Input::ServerLost, effects);
        self.turn(effects)?;
        self.counts.received += self.link.reader.received();
        let (worker, uid) = &self.link.identity;
        let (time, config) = (now().mono, &self.home.config);
        let holding = self.state.holding(time);
        let mut attempts = 0;
        let (link, reattached) = loop {
            // A registration that arrives behind a later one is refused, so each has its number.
            self.returns += 1;
            let message = convert::reattach(config, *worker, uid, &holding, self.returns);
            match self.home.introduce(&message).await {
                Ok(found) => break found,
                Err(error) if attempts == ATTEMPTS_MAX => {
                    return Err(error.context("the server does not take the worker back"));
                }
                Err(_) => attempts += 1,
            }
            tokio::time::sleep(ATTEMPT_PAUSE).await;
        };
        self.link = link;
        let back = Input::ServerBack { reattached };
        self.state.apply(now(), back, effects);
        self.turn(effects)
    }

    /// Applies what is due, and carries out what follows.
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
                Effect::Terminate(token) => self.tasks.terminate(token, time.mono),
                // Its turn in the lane comes soon enough.
                Effect::Withdraw(_) | Effect::DropTemplate(_) => {}
                Effect::Report(report) => self.link.writer.feed(&ToServer::from(&report))?,
                Effect::Farewell => self
                    .link
                    .writer
                    .feed(&ToServer::from(ExitReason::ServerEnded))?,
                Effect::Exit(reason) => {
                    self.link.writer.feed(&ToServer::from(reason))?;
                    self.exit = Some(reason);
                }
            }
        }
        Ok(())
    }
}

/// The tasks of a worker. Those of one lane run one after the other.
struct Tasks {
    time: TaskTime,
    seed: u64,
    /// Running launches, by their end.
    running: BinaryHeap<Reverse<(Time, LaunchToken)>>,
    /// Of each lane that runs: the token that runs, since when, and what comes next.
    lanes: BTreeMap<LaunchToken, Lane>,
    /// Lane of each launch that has not ended.
    lane_of: BTreeMap<LaunchToken, LaunchToken>,
    /// Launches that have not started of other jobs than the array: they take no time, so that what is waited for is the server.
    others: BTreeSet<LaunchToken>,
    events: Vec<LaunchEvent>,
}

struct Lane {
    started: Time,
    next: VecDeque<LaunchToken>,
}

impl Tasks {
    fn new(time: TaskTime, seed: u64) -> Self {
        Self {
            time,
            seed,
            running: BinaryHeap::new(),
            lanes: BTreeMap::new(),
            lane_of: BTreeMap::new(),
            others: BTreeSet::new(),
            events: Vec::new(),
        }
    }

    fn next_end(&self) -> Option<Time> {
        if self.events.is_empty() {
            self.running.peek().map(|Reverse((end, _))| *end)
        } else {
            Some(Time(0))
        }
    }

    fn launch(&mut self, tasks: Vec<LaunchTask>, now: Time) {
        for LaunchTask {
            token, lane, key, ..
        } in tasks
        {
            self.lane_of.insert(token, lane);
            if key.task.job != ARRAY {
                self.others.insert(token);
            }
            if let Some(lane) = self.lanes.get_mut(&lane) {
                lane.next.push_back(token);
            } else {
                self.lanes.insert(
                    lane,
                    Lane {
                        started: now,
                        next: VecDeque::new(),
                    },
                );
                self.start(token, now);
            }
        }
    }

    fn start(&mut self, token: LaunchToken, now: Time) {
        self.events.push(LaunchEvent::Started { token, at: now });
        let time = if self.others.remove(&token) {
            Duration::ZERO
        } else {
            self.time.of(self.seed, token)
        };
        self.running.push(Reverse((now + time, token)));
    }

    /// Ends a task now.
    fn terminate(&mut self, token: LaunchToken, now: Time) {
        // Rare: a search is good enough.
        self.running
            .retain(|Reverse((_, running))| *running != token);
        self.running.push(Reverse((now, token)));
    }

    /// Events that are due by now.
    fn due(&mut self, now: Time) -> Vec<LaunchEvent> {
        while let Some(Reverse((end, token))) = self.running.peek().copied() {
            if end > now {
                break;
            }
            self.running.pop();
            self.end(token, end);
        }
        std::mem::take(&mut self.events)
    }

    fn end(&mut self, token: LaunchToken, ended: Time) {
        let Some(id) = self.lane_of.remove(&token) else {
            return;
        };
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let run = ended.since(lane.started);
        lane.started = ended;
        let next = lane.next.pop_front();
        self.events.push(LaunchEvent::Exited {
            token,
            status: ExitStatus::Code(0),
            ended,
            run,
            usage: Usage::default(),
            message: None,
        });
        match next {
            Some(next) => self.start(next, ended),
            None => {
                self.lanes.remove(&id);
            }
        }
    }
}

async fn sleep_until(wake: Option<Time>) {
    match wake {
        // The timer rounds up to milliseconds, which would be the longest part of a short task.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_of_tasks_stay_within_their_spread() {
        let time = TaskTime {
            mean: Duration::from_millis(100),
            spread: 0.5,
        };
        let all: Vec<f64> = (0..10_000)
            .map(|token| time.of(7, LaunchToken(token)).as_secs_f64())
            .collect();
        let mean = all.iter().sum::<f64>() / 10_000.0;
        assert!((0.098..0.102).contains(&mean), "{mean}");
        assert!(all.iter().all(|time| (0.05..=0.15).contains(time)));
        let even = TaskTime {
            spread: 0.0,
            ..time
        };
        assert_eq!(even.of(7, LaunchToken(1)), time.mean);
    }
}
