//! The ports of clients and workers, and the channels of relays: handshakes, then a task for each connection.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::Duration;

use hq_protocol::admission::port::{self, Connections};
use hq_protocol::admission::{Full, Holder, Permit, Pool, Share, descriptors};
use hq_protocol::handshake::HANDSHAKE_TIMEOUT;
use hq_protocol::{Connection, HandshakeError, Plane, SecretKey};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout_at};

use crate::aside::Aside;
use crate::peer_stream::{PeerStream, Relayed};
use crate::stats::PlaneStats;

/// A silent connection is probed after this time, and given up by the kernel when data stays unacknowledged as long: also
/// those of clients, which send no heartbeats.
///
/// More than the silence limit of a worker with the default heartbeat (`WorkerConfig::silence_max`), so that one whose
/// machine vanished is usually lost by its heartbeat. Where the limit is longer, the kernel ends the connection first; the worker
/// then counts as away and is expected for the limit from that moment, and so is lost up to this much later.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// How long the connection of a refused peer stays open, unless it yields: one that comes again and again comes less often.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// How long a peer that is not the owner waits for the first messages of others before one of them yields to it.
const TURN_WAIT: Duration = Duration::from_secs(1);

/// A bound port.
pub(crate) struct Port {
    pub(crate) listener: TcpListener,
    /// Agrees on keys with peers that are not the owner, and serves such clients. Each port has its own: clients do not keep workers waiting.
    pub(crate) aside: Aside,
}

/// Binds a port on all interfaces; `None` = any free port. `runtime` makes a runtime for a thread of its own.
///
/// # Errors
///
/// If the port is taken or may not be bound, or the system gives no thread.
pub(crate) fn bind(port: Option<u16>, runtime: fn() -> io::Result<Runtime>) -> io::Result<Port> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    let address = std::net::SocketAddr::from((Ipv4Addr::UNSPECIFIED, port.unwrap_or(0)));
    socket.bind(&address.into())?;
    socket.listen(port::BACKLOG)?;
    Ok(Port {
        listener: TcpListener::from_std(socket.into())?,
        aside: Aside::start(runtime)?,
    })
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

/// Where peers of one plane come from.
pub(crate) struct Listening {
    pub(crate) port: Port,
    pub(crate) plane: Plane,
    pub(crate) key: Option<SecretKey>,
    /// Channels of relays; `None` = there are no relays on this plane.
    pub(crate) relayed: Option<mpsc::Receiver<Relayed>>,
}

/// What every connection needs.
struct Entrance<S> {
    plane: Plane,
    key: Option<SecretKey>,
    aside: Aside,
    stats: PlaneStats,
    serve: S,
}

impl<S, F> Entrance<S>
where
    S: Fn(Connection<PeerStream>, Permit) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    /// Serves a peer that has the key of this plane.
    async fn admit(self: Arc<Self>, mut stream: PeerStream, peer: IpAddr, permit: Permit) {
        let plane = self.plane;
        let deadline = Instant::now() + HANDSHAKE_TIMEOUT;
        let refused = |error: &HandshakeError| {
            self.stats.refused.inc();
            tracing::debug!(%peer, %plane, %error, "peer refused");
        };
        let identify = hq_protocol::identify(&mut stream, plane, self.key.as_ref());
        let identified = timeout_at(deadline, identify).await;
        let identified = match identified.unwrap_or(Err(HandshakeError::Timeout)) {
            Ok(identified) => identified,
            Err(error) => {
                refused(&error);
                if !error.is_retryable() {
                    sleep(REFUSED_PAUSE).await;
                }
                return;
            }
        };
        let is_lesser = identified.holder() != Holder::Owner;
        if is_lesser {
            permit.wait_for_turn(TURN_WAIT).await;
        }
        let open = async move {
            // Only now: one that waits for this takes the place of nobody.
            let proven = permit.prove(Holder::Silent);
            proven.map_err(|Full| HandshakeError::Closed)?;
            Ok((identified.agree()?.open(stream).await?, permit))
        };
        let opened = timeout_at(deadline, self.run(is_lesser, open)).await;
        let (connection, permit) = match opened.unwrap_or(Some(Err(HandshakeError::Timeout))) {
            Some(Ok(opened)) => opened,
            Some(Err(error)) => return refused(&error),
            None => return,
        };
        // Only now: a stranger is not worth the system calls.
        if let PeerStream::Tcp(stream) = connection.stream()
            && tune(stream).is_err()
        {
            return;
        }
        let _open = self.stats.open();
        let serve = Box::pin((self.serve)(connection, permit));
        self.run(is_lesser && plane == Plane::Client, serve).await;
    }

    /// Runs a part of a connection: aside if it is of a lesser right. `None` = the server ends.
    async fn run<T: Send + 'static>(
        &self,
        is_lesser: bool,
        part: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        if is_lesser {
            self.aside.run(part).await
        } else {
            Some(part.await)
        }
    }
}

/// Accepts until dropped, which ends all connections. `serve` gets each authenticated one, and proves with its permit that the first
/// message is valid.
pub(crate) async fn run<F>(
    listening: Listening,
    stats: PlaneStats,
    serve: impl Fn(Connection<PeerStream>, Permit) -> F + Send + Sync + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let Listening {
        port: Port { listener, aside },
        plane,
        key,
        relayed,
    } = listening;
    let (share, what) = match plane {
        Plane::Client => (Share::clients(descriptors()), "clients"),
        Plane::Worker | Plane::Relay => (Share::workers(descriptors()), "workers"),
    };
    let entrance = Arc::new(Entrance {
        plane,
        key,
        aside,
        stats,
        serve,
    });
    let direct = |stream, peer: std::net::SocketAddr, permit| {
        Arc::clone(&entrance).admit(PeerStream::Tcp(stream), peer.ip(), permit)
    };
    let behind_relays = async {
        let mut connections = Connections::new(Pool::new(Share::relayed()));
        let Some(mut relayed) = relayed else { return };
        while let Some(Relayed {
            stream,
            from,
            relay,
            relay_ip,
        }) = relayed.recv().await
        {
            tracing::debug!(peer = %from, %relay, "a worker comes through a relay");
            let stream = PeerStream::Relayed(stream, relay);
            let serve = |permit| Arc::clone(&entrance).admit(stream, from, permit);
            connections.add(relay_ip, serve).await;
        }
    };
    tokio::join!(
        port::serve(listener, Pool::new(share), what, direct),
        behind_relays
    );
}

#[cfg(test)]
mod tests;
