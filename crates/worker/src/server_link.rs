//! The connection to the server: connects directly or through a relay, registers, and reconnects.
//!
//! This module handles connections and the first two messages, but not tasks. Every wait is
//! bounded. [`RegisterError::is_retryable`] decides whether to retry.

mod routes;

use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::BuildHasher as _;
use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hq_core::id::WorkerId;
use hq_core::worker_state::Interrupt;
use hq_protocol::access::RelayAddress;
use hq_protocol::convert::FromServer;
use hq_protocol::key::KeyError;
use hq_protocol::worker::{ToServer, ToWorker};
use hq_protocol::{
    Connection, ConvertError, HandshakeError, MessageReader, MessageWriter, Plane, ReadError,
    SecretKey, Strangers, WriteError,
};
use hq_spawn::LauncherError;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tracing::Level;

use routes::Route;

/// The timeout of one TCP connection. Without it, connecting to a host that does not answer would
/// take minutes to fail.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The timeout for the reply to the registration. The server replies in milliseconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// How long to wait for the directory with the server's location, which is often on a network file
/// system. A later result is used at the next attempt.
const FIND_TIMEOUT: Duration = Duration::from_secs(1);

/// If data stays unacknowledged for this long, the server's machine or the network is gone. A
/// worker that reconnects usually notices earlier, by `UNANSWERED_HEARTBEATS_MAX` of core. This
/// limit is for other workers, and for long heartbeat periods.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);

/// The same timeout between a worker and its relay, and between a relay and its server. It is
/// shorter than a heartbeat period, so that workers find another route before the server declares
/// them lost when a node or network vanishes silently. A connection dropped by mistake is
/// established again.
const UNACKNOWLEDGED_AT_RELAY_MAX: Duration = Duration::from_secs(5);

/// How long a connection is silent before the kernel probes it.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
/// The time between two probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// The number of unanswered probes after which the connection counts as lost.
const KEEPALIVE_PROBES: u32 = 3;

/// The number and pace of attempts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retry {
    /// The number of attempts; at least one is made.
    pub attempts: u32,
    /// The pause between two attempts.
    pub pause: Duration,
}

impl Retry {
    /// The retries for the TCP connection of a starting worker, whose server may also still be
    /// starting.
    pub const CONNECT: Self = Self {
        attempts: 20,
        pause: Duration::from_secs(2),
    };
    /// The retries for the registration as a whole.
    pub const REGISTER: Self = Self {
        attempts: 8,
        pause: Duration::from_secs(10),
    };
}

/// The location of the server, and how to retry.
#[derive(Clone, Debug)]
pub struct Connector {
    /// The host name or address.
    pub host: String,
    /// The server's worker port.
    pub port: u16,
    /// The worker key. `None` means neither authentication nor encryption.
    pub key: Option<SecretKey>,
    /// Relays that the user named. They are tried first.
    pub via: Vec<RelayAddress>,
    /// Announced relays. They are tried if the server cannot be reached soon.
    pub relays: Vec<RelayAddress>,
    /// The directory of the access file, where relays are announced.
    pub instance: Option<PathBuf>,
    /// How to retry the TCP connection.
    pub connect_retry: Retry,
    /// How to retry the registration.
    pub register_retry: Retry,
}

/// A connection could not be established.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No TCP connection could be established.
    #[error("connect to the server at {host}:{port}")]
    Tcp {
        /// The host that was tried.
        host: String,
        /// The port that was tried.
        port: u16,
        /// The failure of the last attempt.
        #[source]
        source: io::Error,
    },
    /// The handshake failed.
    #[error("agree with the server at {host}:{port} on a connection{strangers}")]
    Handshake {
        /// The host that was tried.
        host: String,
        /// The port that was tried.
        port: u16,
        /// The peers at other addresses of the host.
        strangers: Strangers,
        /// The failure.
        #[source]
        source: HandshakeError,
    },
    /// The server does not answer at its last location, and the directory with its location no
    /// longer exists.
    #[error("find the server: its directory is gone")]
    Gone,
}

/// The current location of a lost server.
#[derive(Clone, Debug)]
pub enum ServerLocation {
    /// The server is at this address.
    At(Box<Connector>),
    /// The location is unknown. The last one may still be right.
    Unknown,
    /// The server directory no longer exists, so the server cannot return elsewhere.
    Gone,
}

/// A registration failed.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// The launcher cannot start tasks on this machine.
    #[error("start the spawn engine")]
    Launcher(#[source] LauncherError),
    /// No secret for reconnects could be generated.
    #[error("draw a secret for the worker")]
    Secret(#[source] KeyError),
    /// There is no connection.
    #[error(transparent)]
    Connect(ConnectError),
    /// The registration could not be sent.
    #[error("send the registration")]
    Send(#[source] WriteError),
    /// The answer could not be read.
    #[error("read the server's answer to the registration")]
    Receive(#[source] ReadError),
    /// The answer is malformed.
    #[error("understand the server's answer to the registration")]
    Malformed(#[source] ConvertError),
    /// The answer is a different message.
    #[error("register: expected the server's answer, found another message")]
    Unexpected,
    /// The server rejected the registration.
    #[error("register: the server refused: {0}")]
    Refused(Box<str>),
    /// The server closed the connection.
    #[error("register: the server closed the connection")]
    Closed,
    /// The server did not answer in time.
    #[error("register: no answer from the server for {} s", ANSWER_TIMEOUT.as_secs())]
    Timeout,
    /// The worker was asked to end before it started.
    #[error("register: interrupted")]
    Interrupted(Interrupt),
}

impl RegisterError {
    /// Returns whether another attempt may succeed.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Connect(ConnectError::Tcp { .. } | ConnectError::Gone)
            | Self::Send(WriteError::Io(_))
            | Self::Receive(ReadError::Io(_) | ReadError::Truncated)
            | Self::Closed
            | Self::Timeout => true,
            Self::Connect(ConnectError::Handshake { source, .. }) => source.is_retryable(),
            Self::Launcher(_)
            | Self::Secret(_)
            | Self::Send(WriteError::Frame(_))
            | Self::Receive(
                ReadError::Frame(_) | ReadError::Decode(_) | ReadError::TooManyElements { .. },
            )
            | Self::Malformed(_)
            | Self::Unexpected
            | Self::Interrupted(_)
            | Self::Refused(_) => false,
        }
    }
}

/// An attempt to connect.
pub type Dialing<S> = Pin<Box<dyn Future<Output = Result<Connection<S>, ConnectError>> + Send>>;
/// A probe that checks whether the relay of a connection is alive.
pub type Probing = Pin<Box<dyn Future<Output = bool> + Send>>;

/// Reconnects to a lost server, and probes the relay of the current connection.
pub struct Redial<S> {
    dial: Box<dyn FnMut() -> Dialing<S> + Send>,
    probe: Option<Box<dyn Fn() -> Probing + Send>>,
}

impl<S> Redial<S> {
    /// Creates a redial that uses no relay.
    pub fn new(dial: impl FnMut() -> Dialing<S> + Send + 'static) -> Self {
        Self {
            dial: Box::new(dial),
            probe: None,
        }
    }

    /// Adds a probe of the relay that carries the current connection. The probe returns `true` if
    /// there is no relay.
    #[must_use]
    pub fn with_probe(mut self, probe: impl Fn() -> Probing + Send + 'static) -> Self {
        self.probe = Some(Box::new(probe));
        self
    }

    /// Starts an attempt.
    pub(crate) fn dial(&mut self) -> Dialing<S> {
        (self.dial)()
    }

    /// Starts a probe. Returns `None` if there is no relay to probe.
    pub(crate) fn probe(&mut self) -> Option<Probing> {
        self.probe.as_mut().map(|probe| probe())
    }
}

impl Connector {
    /// Creates a connector with the default retries.
    #[must_use]
    pub fn new(host: impl Into<String>, port: u16, key: Option<SecretKey>) -> Self {
        Self {
            host: host.into(),
            port,
            key,
            via: Vec::new(),
            relays: Vec::new(),
            instance: None,
            connect_retry: Retry::CONNECT,
            register_retry: Retry::REGISTER,
        }
    }

    /// Connects to the server directly, in one attempt.
    pub(crate) async fn connect_directly(&self) -> Result<Connection<TcpStream>, ConnectError> {
        self.agree(self.reach().await?).await
    }

    /// Establishes only the TCP connection.
    async fn reach(&self) -> Result<TcpStream, ConnectError> {
        let (host, port) = (self.host.clone(), self.port);
        let stream = self.connect_tcp().await;
        stream.map_err(|source| ConnectError::Tcp { host, port, source })
    }

    /// Returns whether both connectors lead to the same server, as far as is known.
    fn is_same_place(&self, other: &Self) -> bool {
        (&self.host, self.port, &self.key) == (&other.host, other.port, &other.key)
    }

    async fn connect_tcp(&self) -> io::Result<TcpStream> {
        let connect = hq_protocol::connect_tcp(&self.host, self.port);
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, connect)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        set_options(&stream)?;
        Ok(stream)
    }

    async fn agree(&self, mut stream: TcpStream) -> Result<Connection<TcpStream>, ConnectError> {
        let (host, port) = (self.host.clone(), self.port);
        let mut strangers = Strangers::default();
        loop {
            let peer = stream.peer_addr();
            let source = match hq_protocol::connect(stream, Plane::Worker, self.key.as_ref()).await
            {
                Ok(connection) => return Ok(connection),
                Err(source) => source,
            };
            let other = match peer {
                Ok(peer) => strangers.another((&host, port), peer, &source).await,
                Err(_) => None,
            };
            match other.filter(|other| set_options(other).is_ok()) {
                Some(other) => stream = other,
                None => {
                    return Err(ConnectError::Handshake {
                        host,
                        port,
                        strangers,
                        source,
                    });
                }
            }
        }
    }
}

/// Returns a random time between half and one and a half times a pause, so that workers that were
/// started and rejected together do not all return at once.
pub(crate) fn spread(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) % 1_000;
    pause / 2 + pause * u32::try_from(random).unwrap_or(0) / 1_000
}

/// Looks up the server and connects to it, with retries.
pub(crate) struct Search {
    /// The route of the last connection. The next attempt starts with other routes.
    route: Option<Route>,
    find: Arc<dyn Fn() -> ServerLocation + Send + Sync>,
    /// A lookup that hangs. Another one would hang as well.
    lookup: Option<JoinHandle<ServerLocation>>,
    last: Connector,
}

impl Search {
    pub(crate) fn new(
        first: &Connector,
        find: impl Fn() -> ServerLocation + Send + Sync + 'static,
    ) -> Self {
        Self {
            find: Arc::new(find),
            route: None,
            lookup: None,
            last: first.clone(),
        }
    }

    /// Returns a redial that makes later connections, one attempt each. Before each attempt, it
    /// looks up the server's location on a blocking thread. If the location is not known in time,
    /// it uses the last known location.
    pub(crate) fn redial(self) -> Redial<TcpStream> {
        let search = Arc::new(tokio::sync::Mutex::new(self));
        let probed = Arc::clone(&search);
        let redial = Redial::new(move || {
            let search = Arc::clone(&search);
            Box::pin(async move {
                let mut search = search.lock().await;
                let is_gone = search.look().await;
                let connected = search.attempt(Level::DEBUG).await;
                connected.map_err(|error| if is_gone { ConnectError::Gone } else { error })
            })
        });
        redial.with_probe(move || {
            let search = Arc::clone(&probed);
            Box::pin(async move {
                let search = search.lock().await;
                let (place, route) = (search.last.clone(), search.route.clone());
                // The next attempt may need the lock.
                drop(search);
                match route {
                    Some(Route::Relay(address)) => routes::is_relay_alive(&place, &address).await,
                    Some(Route::Direct) | None => true,
                }
            })
        })
    }

    /// Connects and registers, with retries.
    pub(crate) async fn register(
        &mut self,
        registration: &ToServer,
    ) -> Result<Link<TcpStream>, RegisterError> {
        let retry = self.last.register_retry;
        let mut attempt = 1;
        loop {
            let error = match self.connect().await {
                Ok(connection) => {
                    let ip = connection.stream().local_addr().ok();
                    match introduce(connection, registration).await {
                        Ok(link) => {
                            let ip = ip.map(|address| address.ip());
                            return Ok(Link { ip, ..link });
                        }
                        Err(error) => error,
                    }
                }
                Err(error) => RegisterError::Connect(error),
            };
            if attempt >= retry.attempts {
                return Err(error);
            }
            attempt += 1;
            let tried = self.last.clone();
            self.look().await;
            // For example, a rejected key may belong to an earlier server.
            if !error.is_retryable() && self.last.is_same_place(&tried) {
                return Err(error);
            }
            tracing::warn!(%error, "Registration failed, will try again");
            tokio::time::sleep(spread(retry.pause)).await;
        }
    }

    /// Connects, and retries while the server does not listen.
    pub(crate) async fn connect(&mut self) -> Result<Connection<TcpStream>, ConnectError> {
        let retry = self.last.connect_retry;
        let mut attempt = 1;
        loop {
            match self.attempt(Level::WARN).await {
                Err(ConnectError::Tcp { host, port, source }) if attempt < retry.attempts => {
                    tracing::warn!("Could not connect to {host}:{port}, will try again: {source}");
                }
                done => return done,
            }
            attempt += 1;
            tokio::time::sleep(spread(retry.pause)).await;
            self.look().await;
        }
    }

    /// Returns the last known location.
    pub(crate) const fn place(&self) -> &Connector {
        &self.last
    }

    /// Connects, with one attempt per route. Problems with relays are logged at `level`.
    async fn attempt(&mut self, level: Level) -> Result<Connection<TcpStream>, ConnectError> {
        let (connection, route) = routes::connect(&self.last, self.route.as_ref(), level).await?;
        self.route = Some(route);
        Ok(connection)
    }

    /// Updates the last location. Returns whether the server is gone for good.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lookup continues and its result is used by the next call.
    /// There is never more than one lookup.
    pub(crate) async fn look(&mut self) -> bool {
        let find = &self.find;
        let look = self.lookup.get_or_insert_with(|| {
            let find = Arc::clone(find);
            tokio::task::spawn_blocking(move || find())
        });
        let Ok(found) = tokio::time::timeout(FIND_TIMEOUT, look).await else {
            tracing::debug!("the server's directory does not answer; trying the last place");
            return false;
        };
        self.lookup = None;
        match found {
            Ok(ServerLocation::At(place)) => {
                self.last = Connector {
                    connect_retry: self.last.connect_retry,
                    register_retry: self.last.register_retry,
                    via: std::mem::take(&mut self.last.via),
                    ..*place
                };
            }
            Ok(ServerLocation::Gone) => return true,
            Ok(ServerLocation::Unknown) | Err(_) => {}
        }
        false
    }
}

/// Sets the same options as [`set_options`], for a connection that involves relays.
pub(crate) fn set_options_at_relay(stream: &TcpStream) -> io::Result<()> {
    set_options(stream)?;
    let milliseconds = u32::try_from(UNACKNOWLEDGED_AT_RELAY_MAX.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(stream, milliseconds)?;
    Ok(())
}

/// Sends small messages at once, and detects a dead peer.
pub(crate) fn set_options(stream: &TcpStream) -> io::Result<()> {
    let milliseconds = u32::try_from(UNACKNOWLEDGED_MAX.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_nodelay(stream, true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    sockopt::set_tcp_user_timeout(stream, milliseconds)?;
    Ok(())
}

/// A connection on which the server knows this worker, and the server's reply.
#[derive(Debug)]
pub(crate) struct Link<S> {
    pub(crate) worker: WorkerId,
    pub(crate) server_uid: Box<str>,
    pub(crate) idle_timeout_default: Option<Duration>,
    /// Whether the server recognized this worker.
    pub(crate) reattached: bool,
    /// How long to wait for the server if it is lost while the worker has no tasks and uses
    /// `finish-running`.
    pub(crate) server_wait: Duration,
    /// Our address on the route to the server. `None` if the server is in this process, or if this
    /// is not the first registration.
    pub(crate) ip: Option<IpAddr>,
    pub(crate) reader: MessageReader<ReadHalf<S>>,
    pub(crate) writer: MessageWriter<WriteHalf<S>>,
}

/// Sends the registration and waits for the reply.
pub(crate) async fn introduce<S>(
    connection: Connection<S>,
    registration: &ToServer,
) -> Result<Link<S>, RegisterError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let (mut reader, mut writer) = connection.split();
    writer
        .send(registration)
        .await
        .map_err(RegisterError::Send)?;
    let answer = tokio::time::timeout(ANSWER_TIMEOUT, reader.next::<ToWorker>())
        .await
        .map_err(|_| RegisterError::Timeout)?
        .map_err(RegisterError::Receive)?
        .ok_or(RegisterError::Closed)?;
    match FromServer::try_from(answer).map_err(RegisterError::Malformed)? {
        FromServer::Registered {
            worker,
            server_uid,
            idle_timeout_default,
            reattached,
            server_wait,
        } => Ok(Link {
            worker,
            server_uid,
            idle_timeout_default,
            reattached,
            server_wait,
            ip: None,
            reader,
            writer,
        }),
        FromServer::Refused(reason) => Err(RegisterError::Refused(reason)),
        FromServer::Ping(_)
        | FromServer::ReadOutput(_)
        | FromServer::RelayOpened(_)
        | FromServer::Input(_) => Err(RegisterError::Unexpected),
    }
}

#[cfg(test)]
mod tests;
