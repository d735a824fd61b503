//! Accepting TCP connections: handshakes run aside, bounded in number and time.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hq_protocol::{Connection, Plane, SecretKey};
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

use crate::stats::PlaneStats;

/// Peers that may be in the handshake at once; beyond that the oldest is dropped.
const UNAUTHENTICATED_MAX: usize = 64;
/// Connections the kernel may hold for us.
const BACKLOG_LEN: i32 = 1_024;
/// Pause after a failed accept, e.g. when no descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Least time between two messages about that.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(10);
/// A silent connection is probed after this time, and given up when data stays unacknowledged as long.
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

/// Handshakes under way, oldest first.
#[derive(Default)]
struct Waiting(Mutex<VecDeque<AbortHandle>>);

impl Waiting {
    /// Adds one and drops the oldest if there are too many.
    fn add(&self, handle: AbortHandle) {
        let mut queue = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        queue.retain(|handle| !handle.is_finished());
        if queue.len() >= UNAUTHENTICATED_MAX
            && let Some(oldest) = queue.pop_front()
        {
            oldest.abort();
        }
        queue.push_back(handle);
    }
}

/// Accepts until dropped; each authenticated connection is handed to `serve` in a task of its own.
/// Dropping the future ends all connections.
pub(crate) async fn run<F>(
    listener: TcpListener,
    plane: Plane,
    key: Option<SecretKey>,
    stats: PlaneStats,
    serve: impl Fn(Connection<TcpStream>) -> F + Send + Sync + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let (key, serve) = (Arc::new(key), Arc::new(serve));
    let (waiting, mut links) = (Waiting::default(), JoinSet::new());
    let (ready_tx, mut ready) = tokio::sync::mpsc::channel(UNAUTHENTICATED_MAX);
    let mut complained: Option<Instant> = None;
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    let (key, ready) = (Arc::clone(&key), ready_tx.clone());
                    let refused = stats.refused.clone();
                    let handle = links.spawn(async move {
                        // A connection whose options cannot be set is closed already.
                        if tune(&stream).is_err() {
                            return;
                        }
                        match hq_protocol::accept(stream, plane, key.as_ref().as_ref()).await {
                            Ok(connection) => {
                                let _ = ready.send(connection).await;
                            }
                            Err(error) => {
                                refused.inc();
                                tracing::debug!(%peer, %plane, %error, "peer refused");
                            }
                        }
                    });
                    waiting.add(handle);
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
