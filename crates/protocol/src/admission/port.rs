//! Accepts TCP connections into a pool: on all five kinds of port.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinSet, yield_now};

use super::{Holder, Permit, Pool, Share};

/// Connections that the kernel holds until they are accepted. A system may allow fewer
/// (`net.core.somaxconn`).
pub const BACKLOG: i32 = 4_096;
/// Pause after a failed attempt to accept, for example without a free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Shortest time between two warnings about failed attempts.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// Most strangers at a port of the server, and silent holders of a key: at 10 000 new connections a
/// second each has a tenth of a second for its first message.
const SERVER_UNPROVEN_MAX: usize = 1_024;
/// Limit of strangers at a port of a worker, whose tasks also need descriptors.
const WORKER_UNPROVEN_MAX: usize = 128;
/// Most clients with a key that is not the owner's.
const OTHER_CLIENTS_MAX: usize = 1_024;
/// Most HTTP connections of one token: the dashboards of a group that shares one.
const TOKEN_CONNECTIONS_MAX: usize = 256;
/// Most connections to the worker port that are for the owner's workers only. Often all workers
/// have files for workers, so it is small.
const OWNER_WORKERS_MAX: usize = 64;
/// Most workers behind all relays together; they need no descriptors of the server.
const RELAYED_MAX: usize = 65_536;

impl Share {
    /// Connections of clients to a server that may have so many descriptors.
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

    /// Connections of workers and relays to a server.
    #[must_use]
    pub fn workers(descriptors: u64) -> Self {
        Self::connections(descriptors, SERVER_UNPROVEN_MAX, 14, OWNER_WORKERS_MAX)
    }

    /// Workers behind relays, at a server.
    #[must_use]
    pub const fn relayed() -> Self {
        let others = RELAYED_MAX - OWNER_WORKERS_MAX;
        Self {
            unproven: SERVER_UNPROVEN_MAX,
            ..Self::requests(others, others, RELAYED_MAX)
        }
    }

    /// HTTP connections to a server.
    #[must_use]
    pub fn http(descriptors: u64) -> Self {
        let share = Self::connections(descriptors, SERVER_UNPROVEN_MAX, 3, usize::MAX);
        Self {
            each: TOKEN_CONNECTIONS_MAX.min(share.others / 2),
            ..share
        }
    }

    /// Connections of workers to a relay that carries so many.
    #[must_use]
    pub fn relay(descriptors: u64, carried: usize) -> Self {
        let share = Self::connections(descriptors, WORKER_UNPROVEN_MAX, 1, 0);
        Self {
            unproven: share.unproven,
            ..Self::requests(carried, carried, carried)
        }
    }

    /// Connections to a worker that ask for values. All have the same right.
    #[must_use]
    pub fn values(descriptors: u64) -> Self {
        Self::connections(descriptors, WORKER_UNPROVEN_MAX, 8, 0)
    }
}

/// Tasks of the connections of a port. Dropping them ends the connections.
#[derive(Debug)]
pub struct Connections {
    pool: Pool,
    tasks: JoinSet<()>,
}

impl Connections {
    /// No connections.
    #[must_use]
    pub fn new(pool: Pool) -> Self {
        let tasks = JoinSet::new();
        Self { pool, tasks }
    }

    /// Serves one more connection in a task of its own, which ends when the connection yields to a
    /// newer one.
    pub async fn add<F>(&mut self, from: IpAddr, serve: impl FnOnce(Permit) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        while self.tasks.try_join_next().is_some() {}
        if let Ok(permit) = self.pool.try_enter(Holder::Stranger(from)) {
            let id = permit.id();
            let task = self.tasks.spawn(serve(permit));
            self.pool.set_task(id, task);
            // A connection that yielded frees its descriptor, and others send their first message,
            // before the next one is accepted.
            yield_now().await;
        }
    }
}

/// Accepts connections until dropped, which ends all of them. `what` names them in warnings.
pub async fn serve<F>(
    listener: TcpListener,
    pool: Pool,
    what: &str,
    serve: impl Fn(TcpStream, SocketAddr, Permit) -> F,
) -> Infallible
where
    F: Future<Output = ()> + Send + 'static,
{
    // The listener may have a shorter queue; if this fails, it keeps that.
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
