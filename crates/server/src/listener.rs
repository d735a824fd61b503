//! The ports for clients and workers, and the channels of relays: performs handshakes, then starts
//! a tokio task per connection.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use hq_protocol::admission::port::{self, Connections};
use hq_protocol::admission::{Holder, Permit, Pool, Share, descriptors};
use hq_protocol::{Connection, Plane, SecretKey};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::mpsc;

use crate::peer_stream::{PeerStream, Relayed};
use crate::stats::PlaneStats;

/// How long a connection is silent before the kernel probes it, and how long data may be
/// unacknowledged before the kernel closes it. This also applies to clients, which send no
/// heartbeats.
///
/// This is longer than the silence limit of a worker with the default heartbeat
/// (`WorkerConfig::silence_max`), so that a worker on a vanished machine is usually lost by its
/// heartbeat. If a worker has a longer limit, the kernel closes the connection first. The worker
/// then counts as disconnected, and the server waits for it for the full limit from that time. The
/// worker is therefore lost up to this much later.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Binds a port on all interfaces. `None` means any free port. Listens on IPv6 as well if `host`, the
/// name of the server for others, is an IPv6 address.
///
/// # Errors
///
/// Returns an error if the port is taken or may not be bound.
pub(crate) fn bind(port: Option<u16>, host: Option<&str>) -> io::Result<TcpListener> {
    // A zone may follow: `fe80::1%eth0`.
    let address = host.and_then(|host| host.split('%').next());
    let is_ipv6 = address.is_some_and(|address| address.parse::<Ipv6Addr>().is_ok());
    let (domain, any) = if is_ipv6 {
        (Domain::IPV6, IpAddr::from(Ipv6Addr::UNSPECIFIED))
    } else {
        (Domain::IPV4, Ipv4Addr::UNSPECIFIED.into())
    };
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
    if is_ipv6 {
        socket.set_only_v6(false)?;
    }
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    let address = std::net::SocketAddr::from((any, port.unwrap_or(0)));
    socket.bind(&address.into())?;
    socket.listen(port::BACKLOG)?;
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

/// The places from which the peers of one plane connect.
pub(crate) struct Listening {
    pub(crate) listener: TcpListener,
    /// The owner's own socket.
    pub(crate) socket: Option<UnixListener>,
    pub(crate) plane: Plane,
    pub(crate) key: Option<SecretKey>,
    /// The channels of relays. `None` if this plane has no relays.
    pub(crate) relayed: Option<mpsc::Receiver<Relayed>>,
}

/// The data that all connections share.
struct ConnectionContext<S> {
    plane: Plane,
    key: Option<SecretKey>,
    stats: PlaneStats,
    serve: S,
}

impl<S, F> ConnectionContext<S>
where
    S: Fn(Connection<PeerStream>, Permit) -> F,
    F: Future<Output = ()>,
{
    /// Serves a peer that has the key of this plane.
    async fn admit(self: Arc<Self>, stream: PeerStream, peer: IpAddr, permit: Permit) {
        let plane = self.plane;
        let connection = match hq_protocol::accept(stream, plane, self.key.as_ref()).await {
            Ok(connection) => connection,
            Err(error) => {
                self.stats.refused.inc();
                return tracing::debug!(%peer, %plane, %error, "peer refused");
            }
        };
        // The socket is tuned only after the handshake, because the system calls would be wasted on
        // a peer that fails it.
        if let PeerStream::Tcp(stream) = connection.stream()
            && tune(stream).is_err()
        {
            return;
        }
        if permit.prove(Holder::Silent).is_ok() {
            let _open = self.stats.open();
            Box::pin((self.serve)(connection, permit)).await;
        }
    }
}

/// Accepts connections until the future is dropped, which ends all of them. `serve` gets each
/// authenticated connection with its permit. It uses the permit to report that the first message is
/// valid.
pub(crate) async fn run<F>(
    listening: Listening,
    stats: PlaneStats,
    serve: impl Fn(Connection<PeerStream>, Permit) -> F + Send + Sync + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let Listening {
        listener,
        socket,
        plane,
        key,
        relayed,
    } = listening;
    let (share, what) = match plane {
        Plane::Client => (Share::clients(descriptors()), "clients"),
        Plane::Worker | Plane::Relay => (Share::workers(descriptors()), "workers"),
    };
    let entrance = Arc::new(ConnectionContext {
        plane,
        key,
        stats,
        serve,
    });
    let direct = |stream, peer: std::net::SocketAddr, permit| {
        Arc::clone(&entrance).admit(PeerStream::Tcp(stream), peer.ip().to_canonical(), permit)
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
    let of_owner = async {
        let mut connections = Connections::new(Pool::new(Share::owner(descriptors())));
        let Some(socket) = socket else { return };
        let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
        loop {
            match socket.accept().await {
                Ok((stream, _)) => {
                    let stream = PeerStream::Unix(stream);
                    let serve = |permit| Arc::clone(&entrance).admit(stream, here, permit);
                    connections.add(here, serve).await;
                }
                // No file descriptor is free. The port warns about this.
                Err(_) => tokio::time::sleep(port::ACCEPT_PAUSE).await,
            }
        }
    };
    tokio::join!(
        port::serve(listener, Pool::new(share), what, direct),
        of_owner,
        behind_relays
    );
}

#[cfg(test)]
mod tests;
