//! The way to the server: connect, introduce ourselves, and lose it again.
//!
//! Knows connections and the first two messages, nothing of tasks. Waiting is bounded everywhere; what
//! is worth another attempt is decided by [`RegisterError::is_retryable`].

use std::collections::hash_map::RandomState;
use std::future::Future;
use std::hash::BuildHasher as _;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hq_core::id::WorkerId;
use hq_protocol::convert::FromServer;
use hq_protocol::worker::{ToServer, ToWorker};
use hq_protocol::{
    Connection, ConvertError, HandshakeError, MessageReader, MessageWriter, Plane, ReadError,
    SecretKey, WriteError,
};
use hq_spawn::LauncherError;
use rustix::net::sockopt;
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::config::WorkerParams;
use crate::event_loop::RegisteredWorker;
use crate::launcher::TaskLauncher;

/// Longest wait for one TCP connection; a host that does not answer would take minutes.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Longest wait for the answer to the registration. The server answers in milliseconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// Longest wait for the directory that tells where the server is, which is often on a network. What comes later is
/// used at the next attempt.
const FIND_TIMEOUT: Duration = Duration::from_secs(1);

/// Unacknowledged data for longer than this means that the server's machine or the way there is gone.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);

/// Silence after which the kernel probes the connection.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(30);
/// Time between two probes.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// Unanswered probes after which the connection is gone.
const KEEPALIVE_PROBES: u32 = 3;

/// How often and how patiently something is tried.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Retry {
    /// Number of attempts, at least one is made.
    pub attempts: u32,
    /// Pause between two attempts.
    pub pause: Duration,
}

impl Retry {
    /// The TCP connection of a starting worker: its server may still be starting too.
    pub const CONNECT: Self = Self {
        attempts: 20,
        pause: Duration::from_secs(2),
    };
    /// The registration as a whole.
    pub const REGISTER: Self = Self {
        attempts: 8,
        pause: Duration::from_secs(10),
    };
}

/// Where the server is and how hard to try.
#[derive(Clone, Debug)]
pub struct Connector {
    /// Host name or address.
    pub host: String,
    /// The server's worker port.
    pub port: u16,
    /// The worker key; `None` = neither authentication nor encryption.
    pub key: Option<SecretKey>,
    /// Attempts of the TCP connection.
    pub connect_retry: Retry,
    /// Attempts of the registration.
    pub register_retry: Retry,
}

/// A connection that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// No TCP connection.
    #[error("connect to the server at {host}:{port}")]
    Tcp {
        /// Host that was tried.
        host: String,
        /// Port that was tried.
        port: u16,
        /// The last attempt's failure.
        #[source]
        source: io::Error,
    },
    /// The handshake failed.
    #[error("agree with the server at {host}:{port} on a connection")]
    Handshake {
        /// Host that was tried.
        host: String,
        /// Port that was tried.
        port: u16,
        /// What failed.
        #[source]
        source: HandshakeError,
    },
    /// Nobody is at the last place, and what told where the server is no longer exists.
    #[error("find the server: its directory is gone")]
    Gone,
}

/// Where a lost server is now.
#[derive(Clone, Debug)]
pub enum Whereabouts {
    /// There.
    At(Connector),
    /// Nothing is known; the last place may still be right.
    Unknown,
    /// What told where it is no longer exists, so that it cannot come back elsewhere.
    Gone,
}

/// A registration that failed.
#[derive(Debug, thiserror::Error)]
pub enum RegisterError {
    /// Tasks could not be started on this machine.
    #[error("start the spawn engine")]
    Launcher(#[source] LauncherError),
    /// The memory of tasks cannot be watched.
    #[error("start the thread that watches the memory of tasks")]
    MemoryWatch(#[source] io::Error),
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
    /// The answer is something else.
    #[error("register: expected the server's answer, found another message")]
    Unexpected,
    /// The server said no.
    #[error("register: the server refused: {0}")]
    Refused(Box<str>),
    /// The server closed the connection.
    #[error("register: the server closed the connection")]
    Closed,
    /// No answer.
    #[error("register: no answer from the server for {} s", ANSWER_TIMEOUT.as_secs())]
    Timeout,
}

impl RegisterError {
    /// Whether another attempt may succeed.
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
            | Self::MemoryWatch(_)
            | Self::Send(WriteError::Frame(_))
            | Self::Receive(
                ReadError::Frame(_) | ReadError::Decode(_) | ReadError::TooManyElements { .. },
            )
            | Self::Malformed(_)
            | Self::Unexpected
            | Self::Refused(_) => false,
        }
    }
}

/// Makes a new connection to the server after the old one was lost.
pub type Redial<S> = Box<
    dyn FnMut() -> Pin<Box<dyn Future<Output = Result<Connection<S>, ConnectError>> + Send>> + Send,
>;

impl Connector {
    /// A connector with the usual patience.
    #[must_use]
    pub fn new(host: impl Into<String>, port: u16, key: Option<SecretKey>) -> Self {
        Self {
            host: host.into(),
            port,
            key,
            connect_retry: Retry::CONNECT,
            register_retry: Retry::REGISTER,
        }
    }

    /// Connects, with retries while nobody listens.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] of the last attempt.
    pub async fn connect(&self) -> Result<Connection<TcpStream>, ConnectError> {
        let mut attempt = 1;
        let stream = loop {
            match self.connect_tcp().await {
                Ok(stream) => break stream,
                Err(source) if attempt >= self.connect_retry.attempts => {
                    let (host, port) = (self.host.clone(), self.port);
                    return Err(ConnectError::Tcp { host, port, source });
                }
                Err(error) => {
                    let (host, port) = (&self.host, self.port);
                    tracing::warn!("Could not connect to {host}:{port}, will try again: {error}");
                }
            }
            attempt += 1;
            tokio::time::sleep(spread(self.connect_retry.pause)).await;
        };
        self.agree(stream).await
    }

    /// Connects and registers, with retries.
    ///
    /// # Errors
    ///
    /// [`RegisterError`] of the last attempt, or of the first one that no other could mend.
    pub async fn register(
        &self,
        params: WorkerParams,
    ) -> Result<RegisteredWorker<TcpStream>, RegisterError> {
        let launcher = start_launcher(&params)?;
        let mut attempt = 1;
        loop {
            let error = match self.connect().await {
                Ok(connection) => {
                    match introduce(connection, &ToServer::from(&params.config)).await {
                        Ok(link) => return Ok(RegisteredWorker::new(link, params, launcher)),
                        Err(error) => error,
                    }
                }
                Err(error) => RegisterError::Connect(error),
            };
            if attempt >= self.register_retry.attempts || !error.is_retryable() {
                return Err(error);
            }
            attempt += 1;
            tracing::warn!(%error, "Registration failed, will try again");
            tokio::time::sleep(spread(self.register_retry.pause)).await;
        }
    }

    /// Makes later connections, one attempt each. Before each `find` looks where the server is now, on a
    /// blocking thread; if it does not know, or not in time, the place is the last one.
    #[must_use]
    pub fn redial(
        &self,
        find: impl Fn() -> Whereabouts + Send + Sync + 'static,
    ) -> Redial<TcpStream> {
        let search = Search {
            find: Arc::new(find),
            under_way: None,
            last: self.clone(),
        };
        let search = Arc::new(tokio::sync::Mutex::new(search));
        Box::new(move || {
            let search = Arc::clone(&search);
            Box::pin(async move {
                let mut search = search.lock().await;
                let is_gone = search.look().await;
                let mut once = search.last.clone();
                drop(search);
                once.connect_retry.attempts = 1;
                let connected = once.connect().await;
                connected.map_err(|error| if is_gone { ConnectError::Gone } else { error })
            })
        })
    }

    async fn connect_tcp(&self) -> io::Result<TcpStream> {
        let connect = hq_protocol::connect_tcp(&self.host, self.port);
        let stream = tokio::time::timeout(CONNECT_TIMEOUT, connect)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        set_options(&stream)?;
        Ok(stream)
    }

    async fn agree(&self, stream: TcpStream) -> Result<Connection<TcpStream>, ConnectError> {
        let key = self.key.as_ref();
        hq_protocol::connect(stream, Plane::Worker, key)
            .await
            .map_err(|source| {
                let (host, port) = (self.host.clone(), self.port);
                ConnectError::Handshake { host, port, source }
            })
    }
}

/// Half to one and a half times a pause: workers that a batch system started together, and that were turned away
/// together, come back one by one.
fn spread(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) % 1_000;
    pause / 2 + pause * u32::try_from(random).unwrap_or(0) / 1_000
}

/// Looks for the server again and again.
struct Search {
    find: Arc<dyn Fn() -> Whereabouts + Send + Sync>,
    /// The file system does not answer; another look would only wait, too.
    under_way: Option<JoinHandle<Whereabouts>>,
    last: Connector,
}

impl Search {
    /// Updates the last place; says whether the server is gone for good.
    async fn look(&mut self) -> bool {
        let mut look = self.under_way.take().unwrap_or_else(|| {
            let find = Arc::clone(&self.find);
            tokio::task::spawn_blocking(move || find())
        });
        match tokio::time::timeout(FIND_TIMEOUT, &mut look).await {
            Ok(Ok(Whereabouts::At(place))) => self.last = place,
            Ok(Ok(Whereabouts::Gone)) => return true,
            Ok(Ok(Whereabouts::Unknown) | Err(_)) => {}
            Err(_) => {
                tracing::debug!("the server's directory does not answer; trying the last place");
                self.under_way = Some(look);
            }
        }
        false
    }
}

/// Small messages go at once; a dead peer is noticed.
fn set_options(stream: &TcpStream) -> io::Result<()> {
    let milliseconds = u32::try_from(UNACKNOWLEDGED_MAX.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_nodelay(stream, true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
    sockopt::set_tcp_user_timeout(stream, milliseconds)?;
    Ok(())
}

pub(crate) fn start_launcher(params: &WorkerParams) -> Result<TaskLauncher, RegisterError> {
    let task_dirs = params.work_dir.tasks().to_path_buf();
    let launcher = TaskLauncher::start(
        params.spawn_threads,
        params.hq_path.clone(),
        task_dirs,
        &params.config.hostname,
    );
    let mut launcher = launcher.map_err(RegisterError::Launcher)?;
    if params.enforce_memory {
        launcher
            .enforce_memory()
            .map_err(RegisterError::MemoryWatch)?;
    }
    Ok(launcher)
}

/// Registers over a connection that exists already.
///
/// # Errors
///
/// [`RegisterError`]; nothing is retried.
pub async fn register<S>(
    connection: Connection<S>,
    params: WorkerParams,
) -> Result<RegisteredWorker<S>, RegisterError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let launcher = start_launcher(&params)?;
    let link = introduce(connection, &ToServer::from(&params.config)).await?;
    Ok(RegisteredWorker::new(link, params, launcher))
}

/// A connection on which the server knows us, and what it said.
#[derive(Debug)]
pub(crate) struct Link<S> {
    pub(crate) worker: WorkerId,
    pub(crate) server_uid: Box<str>,
    pub(crate) idle_timeout_default: Option<Duration>,
    /// The server knows us as the worker that we were.
    pub(crate) reattached: bool,
    pub(crate) reader: MessageReader<ReadHalf<S>>,
    pub(crate) writer: MessageWriter<WriteHalf<S>>,
}

/// Sends the registration and waits for the answer.
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
        } => Ok(Link {
            worker,
            server_uid,
            idle_timeout_default,
            reattached,
            reader,
            writer,
        }),
        FromServer::Refused(reason) => Err(RegisterError::Refused(reason)),
        FromServer::Ping | FromServer::ReadOutput(_) | FromServer::Input(_) => {
            Err(RegisterError::Unexpected)
        }
    }
}

#[cfg(test)]
mod tests;
