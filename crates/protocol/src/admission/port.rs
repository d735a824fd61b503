//! Accepts TCP connections into a pool. All five kinds of port use it.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, yield_now};

use super::{Holder, Permit, Pool, Share};

/// The maximum number of connections that the kernel holds until they are accepted. A system may
/// allow fewer (`net.core.somaxconn`).
pub const BACKLOG: i32 = 4_096;
/// Pause after a failed attempt to accept, for example without a free descriptor.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Shortest time between two warnings about failed attempts.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// The maximum number of strangers, and of silent holders of a key, at a port of the server. At 10
/// 000 new connections per second, each has a tenth of a second for its first message.
const SERVER_UNPROVEN_MAX: usize = 1_024;
/// The maximum number of strangers at a port of a worker, whose tasks need file descriptors as
/// well.
const WORKER_UNPROVEN_MAX: usize = 128;
/// The maximum number of clients whose key is not the owner's.
const OTHER_CLIENTS_MAX: usize = 1_024;
/// The maximum number of HTTP connections of one token, such as the dashboards of a group that
/// shares it.
const TOKEN_CONNECTIONS_MAX: usize = 256;
/// The maximum number of connections to the worker port that are reserved for the owner's workers.
/// It is small because often all workers have access files for workers.
const OWNER_WORKERS_MAX: usize = 64;
/// The maximum number of workers behind all relays together. They need no file descriptors of the
/// server.
const RELAYED_MAX: usize = 65_536;

impl Share {
    /// The share of client connections of a server that may have this many file descriptors.
    #[must_use]
    pub fn clients(descriptors: u64) -> Self {
        let share = Self::connections(descriptors, SERVER_UNPROVEN_MAX, 5, usize::MAX);
        let others = share.others.min(OTHER_CLIENTS_MAX);
        Self {
            each: others,
            others,
            ..share
        }
    }

    /// Connections to the owner's own socket. Whoever can connect to it has the rights of the owner.
    #[must_use]
    pub fn owner(descriptors: u64) -> Self {
        Self::connections(descriptors, WORKER_UNPROVEN_MAX, 3, usize::MAX)
    }

    /// Connections of workers and relays to a server.
    #[must_use]
    pub fn workers(descriptors: u64) -> Self {
        Self::connections(descriptors, SERVER_UNPROVEN_MAX, 14, OWNER_WORKERS_MAX)
    }

    /// The share of workers behind relays at a server.
    #[must_use]
    pub const fn relayed() -> Self {
        let others = RELAYED_MAX - OWNER_WORKERS_MAX;
        Self {
            unproven: SERVER_UNPROVEN_MAX,
            ..Self::requests(others, others, RELAYED_MAX)
        }
    }

    /// The share of HTTP connections to a server.
    #[must_use]
    pub fn http(descriptors: u64) -> Self {
        let share = Self::connections(descriptors, SERVER_UNPROVEN_MAX, 3, usize::MAX);
        Self {
            each: TOKEN_CONNECTIONS_MAX.min(share.others / 2),
            ..share
        }
    }

    /// The share of worker connections to a relay that carries up to `carried` of them.
    #[must_use]
    pub fn relay(descriptors: u64, carried: usize) -> Self {
        let share = Self::connections(descriptors, WORKER_UNPROVEN_MAX, 1, 0);
        Self {
            unproven: share.unproven,
            ..Self::requests(carried, carried, carried)
        }
    }

    /// The share of connections to a worker that request values. All have the same right.
    #[must_use]
    pub fn values(descriptors: u64) -> Self {
        Self::connections(descriptors, WORKER_UNPROVEN_MAX, 8, 0)
    }
}

/// The tasks of a port's connections. Dropping this ends the connections.
#[derive(Debug)]
pub struct Connections {
    pool: Pool,
    tasks: JoinSet<()>,
}

impl Connections {
    /// Creates an empty set of connections.
    #[must_use]
    pub fn new(pool: Pool) -> Self {
        let tasks = JoinSet::new();
        Self { pool, tasks }
    }

    /// Serves another connection in a new task. The task ends when the connection yields to a newer
    /// one.
    pub async fn add<F>(&mut self, from: IpAddr, serve: impl FnOnce(Permit) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        while self.tasks.try_join_next().is_some() {}
        if let Ok(permit) = self.pool.try_enter(Holder::Stranger(from)) {
            let id = permit.id();
            let task = self.tasks.spawn(serve(permit));
            self.pool.set_task(id, task);
            // Before the next connection is accepted, a connection that yielded frees its file
            // descriptor, and other connections can send their first message.
            yield_now().await;
        }
    }
}

/// Accepts connections until the future is dropped, which ends all of them. `what` names them in
/// warnings.
pub async fn serve<F>(
    listener: TcpListener,
    pool: Pool,
    what: &str,
    serve: impl Fn(TcpStream, SocketAddr, Permit) -> F,
) -> Infallible
where
    F: Future<Output = ()> + Send + 'static,
{
    // If this fails, the listener keeps its queue, which may be shorter.
    let _ = rustix::net::listen(&listener, BACKLOG);
    let mut connections = Connections::new(pool);
    let mut warned: Option<Instant> = None;
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let from = peer.ip().to_canonical();
                connections
                    .add(from, |permit| serve(stream, peer, permit))
                    .await;
            }
            Err(error) => {
                if warned.is_none_or(|at| at.elapsed() >= WARNING_INTERVAL) {
                    warned = Some(Instant::now());
                    tracing::warn!(%error, "cannot accept a connection of {what}; trying again");
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
