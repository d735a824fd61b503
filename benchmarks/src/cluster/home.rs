//! How a simulated worker reaches its server. Like a real one, it reads the access file, connects
//! and registers.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use hq_core::id::WorkerId;
use hq_core::worker_config::WorkerConfig;
use hq_protocol::access::{Access, ServerDir};
use hq_protocol::convert::FromServer;
use hq_protocol::worker::{ToServer, ToWorker};
use hq_protocol::{Connection, MessageReader, MessageWriter, Plane};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore, watch};

use super::links::{SlowLink, Wire};
use super::tasks::Ledger;

/// The timeouts of a real worker for a connection and for the reply to its registration.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// Work in progress.
pub(super) type Attempt<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Counters that all workers share.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// The number of workers that are registered now.
    pub(super) up: usize,
    /// The number of connections lost so far.
    pub(super) losses: usize,
    /// The number of workers that gave up their tasks because the server treated them as new.
    pub(super) given_up: usize,
    /// Failed connections and registrations by error text.
    pub(super) reasons: BTreeMap<String, u64>,
}

impl Tally {
    /// Returns the number of failed connections and registrations.
    pub(super) fn failures(&self) -> u64 {
        self.reasons.values().sum()
    }

    pub(super) fn note_loss(&mut self) {
        self.up -= 1;
        self.losses += 1;
    }

    pub(super) fn note_failure(&mut self, error: &anyhow::Error) {
        // Removes the ports, which differ and are not part of the reason.
        let reason = format!("{error:#}").replace(|c: char| c.is_ascii_digit(), "");
        *self.reasons.entry(reason).or_default() += 1;
    }
}

/// Makes all workers lose their connections, and has the counters that they share.
#[derive(Clone, Debug, Default)]
pub(super) struct Storms {
    pub(super) storm: watch::Sender<()>,
    tally: Arc<Mutex<Tally>>,
}

impl Storms {
    /// Makes all workers lose their connections now.
    pub(super) fn begin(&self) {
        self.storm.send_replace(());
    }

    /// Returns the counters, which stay locked until the end of the statement.
    pub(super) fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A worker's description, and how it reaches its server.
#[derive(Clone)]
pub(super) struct Home {
    pub(super) server_dir: Arc<Path>,
    pub(super) config: Arc<WorkerConfig>,
    pub(super) storms: Storms,
    pub(super) link: SlowLink,
    /// The server's address, looked up once for all workers. Ten thousand simultaneous lookups,
    /// with a thread each, would block this process for minutes; real workers make only one each.
    pub(super) address: Arc<OnceCell<IpAddr>>,
    pub(super) ledger: Arc<Ledger>,
    /// Limits the number of simultaneous connection attempts.
    pub(super) room: Arc<Semaphore>,
}

impl Home {
    /// Looks up the server, connects and does the handshake, after a pause.
    pub(super) async fn reach(self, pause: Duration) -> Result<Reached> {
        tokio::time::sleep(pause).await;
        let room = Arc::clone(&self.room).acquire_owned().await?;
        // The file is small and is read on the one thread of all workers, which costs at most as
        // much as a handshake.
        let (path, access) = ServerDir::new(&*self.server_dir, false).load_access_any()?;
        let Access { host, port, key } = access.plane(Plane::Worker, &path)?;
        let resolve = || async {
            let found = hq_protocol::resolve(host, *port).await?;
            let address = found.first().context("the server has no address")?.ip();
            anyhow::Ok(address)
        };
        let address = *self.address.get_or_try_init(resolve).await?;
        let connecting = self.link.connect((address, *port).into());
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await;
        let stream = stream.context("no connection in time")??;
        let connection = hq_protocol::connect(stream, Plane::Worker, key.as_ref()).await?;
        Ok(Reached { connection, room })
    }
}

/// A connection on which the worker is not registered yet.
pub(super) struct Reached {
    connection: Connection<Wire>,
    /// Held until the worker is registered.
    room: OwnedSemaphorePermit,
}

/// A connection on which a worker is registered.
pub(super) struct Link {
    pub(super) reader: MessageReader<ReadHalf<Wire>>,
    pub(super) writer: MessageWriter<WriteHalf<Wire>>,
    pub(super) identity: (WorkerId, Box<str>),
    pub(super) idle_timeout_default: Option<Duration>,
    /// Whether the server recognized the worker.
    pub(super) reattached: bool,
}

/// Says who the worker is.
pub(super) async fn introduce(reached: Reached, message: ToServer) -> Result<Link> {
    let Reached { connection, room } = reached;
    let _room = room;
    let (mut reader, mut writer) = connection.split();
    writer.send(&message).await?;
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, reader.next::<ToWorker>()).await;
    let answer = answer.context("no answer to the registration in time")??;
    let FromServer::Registered {
        worker,
        server_uid,
        idle_timeout_default,
        reattached,
        server_wait: _,
    } = FromServer::try_from(answer.context("no answer")?)?
    else {
        bail!("the server does not take the worker");
    };
    Ok(Link {
        reader,
        writer,
        identity: (worker, server_uid),
        idle_timeout_default,
        reattached,
    })
}
