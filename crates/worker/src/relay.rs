//! Lets a worker act as a relay, which carries the connections of other workers to the server over
//! a separate connection.
//!
//! The relay runs on a separate thread and runtime, so that many workers behind it do not delay the
//! tasks of this one. It connects only to the server of its access file. Connections are encrypted
//! end to end: see [`hq_protocol::relay`], `docs/network.md` and
//! `docs/adr/0020-relays-carry-what-they-cannot-read.md`.

mod addresses;
mod announcer;
mod peer;
mod serving;
mod state;

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::thread::JoinHandle;
use std::time::Duration;

use hq_core::worker_state::ExitReason;
use hq_protocol::access::RelayAddress;
use hq_protocol::admission::descriptors;
use hq_protocol::convert::RelayRequest;
use hq_protocol::relay::{CHANNELS_MAX, Terms};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};

use crate::server_link::{ConnectError, Connector, Search, ServerLocation};
use serving::{Serving, Stop};

/// The length of the listen queue.
const BACKLOG_LEN: i32 = 1_024;

/// The number of descriptors that a worker needs without relayed workers and tasks, rounded up.
const OWN_DESCRIPTORS: u64 = 64;
/// The number of workers that a relay accepts even if there are few descriptors.
const CHANNELS_MIN: usize = 4;

/// How long to wait for the thread to end, in addition to the linger time.
const END_TIMEOUT: Duration = Duration::from_secs(2);

/// The address of a relay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RelayOptions {
    /// The port, or 0 for any port.
    pub port: u16,
    /// The name or address announced to other workers. `None` means all addresses of this machine.
    pub host: Option<String>,
    /// The host name of this machine.
    pub hostname: String,
}

/// Why a worker cannot be a relay.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    /// The port cannot be used.
    #[error("listen on port {port} for other workers")]
    Listen {
        /// The port.
        port: u16,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The thread or its runtime could not be created.
    #[error("start the thread of the relay")]
    Thread(#[source] io::Error),
    /// The server cannot be reached.
    #[error(transparent)]
    Connect(ConnectError),
    /// The server does not support relays, or does not allow one here.
    #[error(
        "be a relay: the server does not support relays ({0}). Update the server, or start the worker without --relay"
    )]
    Refused(Box<str>),
    /// The connection broke before the server answered.
    #[error("be a relay: the server did not answer the request")]
    NoAnswer,
}

impl RelayError {
    /// Returns whether another attempt may succeed.
    const fn is_retryable(&self) -> bool {
        match self {
            Self::Connect(ConnectError::Handshake { source, .. }) => source.is_retryable(),
            Self::Connect(ConnectError::Tcp { .. } | ConnectError::Gone) | Self::NoAnswer => true,
            Self::Listen { .. } | Self::Thread(_) | Self::Refused(_) => false,
        }
    }
}

/// A running relay. It ends when dropped.
#[derive(Debug)]
pub struct Relay {
    address: RelayAddress,
    stop: Option<oneshot::Sender<Stop>>,
    /// The number of workers that use the relay.
    workers: watch::Receiver<usize>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Listens, connects to the server as a relay, and announces itself. Retries like a worker that
    /// registers, because the server may only just be starting. `find` looks up the server, as for
    /// [`Connector::register`]. `runtime` creates a runtime for the calling thread that has a
    /// blocking thread for its entire life.
    ///
    /// # Errors
    ///
    /// See [`RelayError`].
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the relay.
    pub async fn start(
        options: RelayOptions,
        connector: &Connector,
        find: impl Fn() -> ServerLocation + Send + Sync + 'static,
        runtime: fn() -> io::Result<Runtime>,
    ) -> Result<Self, RelayError> {
        let listener = bind(options.port).map_err(|source| RelayError::Listen {
            port: options.port,
            source,
        })?;
        let port = listener
            .local_addr()
            .map_err(|source| RelayError::Listen { port: 0, source })?
            .port();
        let at = |host| RelayAddress { host, port };
        // A name given by the user is reachable from other machines. The host name may not resolve
        // there.
        let (address, addresses) = match options.host.map(at) {
            Some(address) => (address.clone(), vec![address]),
            None => {
                let addresses = addresses::own(&options.hostname, port);
                (at(options.hostname), addresses)
            }
        };
        let (stop, stopped) = oneshot::channel();
        let (workers_tx, workers) = watch::channel(0);
        let (started_tx, started) = oneshot::channel();
        let serving = Serving {
            search: Search::new(connector, find),
            request: RelayRequest {
                window: terms().window,
                address: address.to_string().into(),
            },
            addresses,
            workers: workers_tx,
            stopped,
        };
        let run = move || serving::run(serving, listener, runtime, started_tx);
        let thread = std::thread::Builder::new().name("relay".into()).spawn(run);
        let mut relay = Self {
            address,
            stop: Some(stop),
            workers,
            thread: Some(thread.map_err(RelayError::Thread)?),
        };
        match started.await {
            Ok(Ok(())) => Ok(relay),
            Ok(Err(error)) => Err(error),
            Err(_) => {
                relay.thread = None;
                Err(RelayError::NoAnswer)
            }
        }
    }

    /// Returns the address at which the relay listens.
    #[must_use]
    pub const fn address(&self) -> &RelayAddress {
        &self.address
    }

    /// Waits until the relay gets its first worker or loses its last one. Returns whether it has
    /// any.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub(crate) async fn changed(relay: &mut Option<Self>) -> bool {
        if let Some(relay) = relay
            && relay.workers.changed().await.is_ok()
        {
            return *relay.workers.borrow_and_update() > 0;
        }
        // There is no relay, or its thread has ended and with it all connections.
        std::future::pending().await
    }

    /// Ends the relay at once. Connected workers look for another route.
    pub async fn finish(self) {
        self.stop(Stop::Now).await;
    }

    /// Ends the relay together with its worker.
    pub(crate) async fn end(relay: Option<Self>, reason: ExitReason) {
        let how = match reason {
            // Workers behind the relay may end for the same reason (`worker stop all`, the end of
            // their allocation). They need the relay to receive the stop request and to say
            // goodbye. Without a goodbye they would count as lost, and their tasks as crashed.
            // Other workers can reconnect either way.
            ExitReason::Stopped
            | ExitReason::IdleTimeout
            | ExitReason::TimeLimit
            | ExitReason::Interrupted
            | ExitReason::Preempted
            | ExitReason::ServerEnded => Stop::Linger,
            ExitReason::ServerLost => Stop::Now,
        };
        if let Some(relay) = relay {
            relay.stop(how).await;
        }
    }

    async fn stop(mut self, how: Stop) {
        let (Some(stop), Some(thread)) = (self.stop.take(), self.thread.take()) else {
            return;
        };
        let _ = stop.send(how);
        let limit = serving::LINGER_MAX + END_TIMEOUT;
        let ended = tokio::task::spawn_blocking(move || thread.join());
        if tokio::time::timeout(limit, ended).await.is_err() {
            tracing::warn!("the relay does not end; the worker ends without waiting for it");
        }
    }
}

/// Returns the limits of the relay.
fn terms() -> Terms {
    let all = descriptors();
    Terms {
        channels_max: channels_max(all),
        ..Terms::OURS
    }
}

/// Returns how many workers fit into this limit of descriptors. Each needs one, and this worker
/// needs some for itself and its tasks.
fn channels_max(descriptors: u64) -> usize {
    let half = descriptors.saturating_sub(OWN_DESCRIPTORS) / 2;
    let half = usize::try_from(half).unwrap_or(usize::MAX);
    half.clamp(CHANNELS_MIN, CHANNELS_MAX)
}

/// Listens on both IPv6 and IPv4 where possible.
fn bind(port: u16) -> io::Result<TcpListener> {
    let any_v6 = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    let any_v4 = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
    listen(any_v6).or_else(|_| listen(any_v4))
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let (family, is_v6) = match address {
        SocketAddr::V6(_) => (AddressFamily::INET6, true),
        SocketAddr::V4(_) => (AddressFamily::INET, false),
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    net::sockopt::set_socket_reuseaddr(&socket, true)?;
    if is_v6 {
        // Otherwise a system setting (`net.ipv6.bindv6only`) would decide.
        net::sockopt::set_ipv6_v6only(&socket, false)?;
    }
    net::bind(&socket, &address)?;
    // The queue is longer than std's, for workers that a batch system starts at the same time.
    net::listen(&socket, BACKLOG_LEN)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests;
