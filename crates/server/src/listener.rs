//! Accepting TCP connections: handshakes run aside, bounded in number and time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hq_protocol::{Connection, Plane, SecretKey};
use prometheus_client::metrics::counter::Counter;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

use crate::descriptors;
use crate::peer_stream::{PeerStream, Relayed};
use crate::stats::PlaneStats;

/// Peers that may be in the handshake at once; others wait to be accepted.
const UNAUTHENTICATED_MAX: usize = 256;
/// How long a handshake may take when others wait: many round trips between any two nodes, and the bursts of
/// workers that a batch system starts together are through by then.
const GRACE: Duration = Duration::from_secs(1);
/// Connections the kernel may hold for us.
const BACKLOG_LEN: i32 = 1_024;
/// Pause after a failed accept, e.g. when no descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Least time between two messages about that.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(10);
/// A silent connection is probed after this time, and given up by the kernel when data stays unacknowledged as long: also
/// those of clients, which send no heartbeats.
///
/// More than the silence limit of a worker with the default heartbeat (`WorkerConfig::silence_max`), so that one whose
/// machine vanished is usually lost by its heartbeat. Where the limit is longer, the kernel ends the connection first; the worker
/// then counts as away and is expected for the limit from that moment, and so is lost up to this much later.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Binds a port on all interfaces; `None` = any free port.
///
/// # Errors
///
/// If the port is taken or may not be bound.
pub(crate) fn bind(port: Option<u16>) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    let address = std::net::SocketAddr::from((Ipv4Addr::UNSPECIFIED, port.unwrap_or(0)));
    socket.bind(&address.into())?;
    socket.listen(BACKLOG_LEN)?;
    TcpListener::from_std(socket.into())
}

fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(
        &TcpKeepalive::new()
            .with_time(KEEPALIVE)
            .with_interval(KEEPALIVE / 3),
    )?;
    socket.set_tcp_user_timeout(Some(KEEPALIVE))
}

/// A handshake under way.
struct Handshake {
    task: AbortHandle,
    since: Instant,
    from: IpAddr,
    /// It was told to end; its descriptor is free when it has.
    is_dropped: bool,
}

/// Handshakes under way, oldest first.
struct Waiting {
    queue: VecDeque<Handshake>,
    max: usize,
}

impl Waiting {
    fn new() -> Self {
        Self {
            queue: VecDeque::new(),
            max: descriptors::share(UNAUTHENTICATED_MAX),
        }
    }

    fn add(&mut self, task: AbortHandle, from: IpAddr) {
        self.queue.push_back(Handshake {
            task,
            since: Instant::now(),
            from,
            is_dropped: false,
        });
    }

    /// Forgets those that are over; returns whether there is room for another one.
    fn has_room(&mut self) -> bool {
        self.queue.retain(|handshake| !handshake.task.is_finished());
        self.queue.len() < self.max
    }

    /// When the oldest has had its time; `None` while room is being made.
    fn next_due(&self) -> Option<Instant> {
        let is_busy = self.queue.iter().any(|handshake| handshake.is_dropped);
        let oldest = self.queue.front().filter(|_| !is_busy)?;
        Some(oldest.since + GRACE)
    }

    /// Drops the oldest of the address that has most of them, which is the one that takes the room of others.
    fn drop_one(&mut self, now: Instant) {
        let mut counts: BTreeMap<IpAddr, usize> = BTreeMap::new();
        for handshake in &self.queue {
            *counts.entry(handshake.from).or_default() += 1;
        }
        let is_due = |handshake: &Handshake| now.duration_since(handshake.since) >= GRACE;
        let due = self.queue.iter().enumerate();
        let due = due.filter(|(_, handshake)| is_due(handshake));
        let victim = due.max_by_key(|(position, handshake)| {
            (counts.get(&handshake.from).copied(), Reverse(*position))
        });
        let victim = victim.map(|(position, _)| position);
        if let Some(handshake) = victim.and_then(|position| self.queue.get_mut(position)) {
            handshake.is_dropped = true;
            handshake.task.abort();
        }
    }
}

/// What a handshake needs.
struct Entrance {
    plane: Plane,
    key: Option<SecretKey>,
    refused: Counter,
}

/// Runs a handshake; who has completed it is handed to the loop.
fn shake_hands(
    stream: PeerStream,
    peer: IpAddr,
    entrance: &Arc<Entrance>,
    ready: &mpsc::Sender<Connection<PeerStream>>,
) -> impl Future<Output = ()> + Send + 'static {
    let (entrance, ready) = (Arc::clone(entrance), ready.clone());
    async move {
        let plane = entrance.plane;
        match hq_protocol::accept(stream, plane, entrance.key.as_ref()).await {
            Ok(connection) => {
                let _ = ready.send(connection).await;
            }
            Err(error) => {
                entrance.refused.inc();
                tracing::debug!(%peer, %plane, %error, "peer refused");
            }
        }
    }
}

/// The next channel of a relay; never, where there are no relays.
async fn next_relayed(relayed: &mut Option<mpsc::Receiver<Relayed>>) -> Option<Relayed> {
    match relayed {
        Some(relayed) => relayed.recv().await,
        None => std::future::pending().await,
    }
}

/// Where peers of one plane come from.
pub(crate) struct Listening {
    pub(crate) listener: TcpListener,
    pub(crate) plane: Plane,
    pub(crate) key: Option<SecretKey>,
    /// Channels of relays; `None` = there are no relays on this plane.
    pub(crate) relayed: Option<mpsc::Receiver<Relayed>>,
}

/// Accepts until dropped; each authenticated connection is handed to `serve` in a task of its own.
/// Dropping the future ends all connections.
pub(crate) async fn run<F>(
    listening: Listening,
    stats: PlaneStats,
    serve: impl Fn(Connection<PeerStream>) -> F + Send + Sync + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let Listening {
        listener,
        plane,
        key,
        mut relayed,
    } = listening;
    let refused = stats.refused.clone();
    let entrance = Arc::new(Entrance {
        plane,
        key,
        refused,
    });
    let (mut waiting, mut links) = (Waiting::new(), JoinSet::new());
    let (ready_tx, mut ready) = mpsc::channel(UNAUTHENTICATED_MAX);
    let mut complained: Option<Instant> = None;
    loop {
        // Without room nobody is cut off: new connections wait in the kernel's queue until a handshake is over.
        let has_room = waiting.has_room();
        let due = waiting.next_due();
        tokio::select! {
            () = tokio::time::sleep_until(due.unwrap_or_else(Instant::now).into()), if !has_room && due.is_some() => {
                waiting.drop_one(Instant::now());
            }
            accepted = listener.accept(), if has_room => match accepted {
                Ok((stream, peer)) => {
                    // A connection whose options cannot be set is closed already.
                    if tune(&stream).is_ok() {
                        let stream = PeerStream::Tcp(stream);
                        let handshake = shake_hands(stream, peer.ip(), &entrance, &ready_tx);
                        let task = links.spawn(handshake);
                        waiting.add(task, peer.ip());
                    }
                }
                Err(error) => {
                    let is_news = complained.is_none_or(|at| at.elapsed() >= COMPLAINT_INTERVAL);
                    if is_news {
                        complained = Some(Instant::now());
                        tracing::warn!(%error, "cannot accept a connection; trying again");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(Relayed { stream, from, relay }) = next_relayed(&mut relayed), if has_room => {
                tracing::debug!(peer = %from, %relay, "a worker comes through a relay");
                let stream = PeerStream::Relayed(stream, relay);
                let handshake = shake_hands(stream, from, &entrance, &ready_tx);
                let task = links.spawn(handshake);
                waiting.add(task, from);
            }
            Some(connection) = ready.recv() => {
                let (served, open) = (serve(connection), stats.open());
                links.spawn(async move {
                    served.await;
                    drop(open);
                });
            }
            Some(_) = links.join_next() => {}
        }
    }
}

#[cfg(test)]
mod tests;
