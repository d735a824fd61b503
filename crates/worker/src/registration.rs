//! A registered worker with its configuration, before it runs.

use std::sync::Arc;

use hq_core::id::WorkerId;
use hq_core::worker_config::{MemoryLimits, WorkerConfig};
use hq_core::worker_state::Interrupt;
use hq_protocol::worker::ToServer;
use hq_protocol::{Connection, SecretKey};
use hq_spawn::keeper::KeeperContext;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;

use crate::bounded::remove_in_time;
use crate::config::{WorkDir, WorkerParams};
use crate::launcher::TaskLauncher;
use crate::notify::NotifySocket;
use crate::relay::Relay;
use crate::server_link::{
    Connector, Link, Redial, RegisterError, Search, ServerLocation, introduce,
};

/// A worker known to the server and idle until [`Self::run`]. It ends when dropped.
pub struct RegisteredWorker<S> {
    id: WorkerId,
    server_uid: Box<str>,
    pub(crate) config: Arc<WorkerConfig>,
    /// Proves to the server after a reconnect that this is the same worker.
    pub(crate) secret: SecretKey,
    pub(crate) link: Link<S>,
    pub(crate) launcher: TaskLauncher,
    pub(crate) notify: Option<NotifySocket>,
    pub(crate) keeper: Option<KeeperContext>,
    pub(crate) redial: Option<Redial<S>>,
    pub(crate) relay: Option<Relay>,
    pub(crate) work_dir: WorkDir,
}

impl<S> RegisteredWorker<S>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    fn new(
        link: Link<S>,
        params: WorkerParams,
        (mut launcher, secret): (TaskLauncher, SecretKey),
    ) -> Self {
        launcher.set_server(link.server_uid.clone(), link.worker, link.ip);
        let notify = NotifySocket::bind(params.work_dir.tasks(), launcher.nonce());
        let notify = notify
            .inspect_err(|error| tracing::warn!(%error, "tasks cannot send notifications"))
            .ok();
        if let Some(notify) = &notify {
            launcher.set_notify(notify.access().clone());
        }
        Self {
            notify,
            id: link.worker,
            server_uid: link.server_uid.clone(),
            config: Arc::new(params.config),
            secret,
            link,
            launcher,
            keeper: params.keeper,
            redial: None,
            relay: None,
            work_dir: params.work_dir,
        }
    }

    /// Returns the id that the server assigned.
    #[must_use]
    pub const fn id(&self) -> WorkerId {
        self.id
    }

    /// Returns the uid of the server.
    #[must_use]
    pub fn server_uid(&self) -> &str {
        &self.server_uid
    }

    /// Returns the configuration reported to the server.
    #[must_use]
    pub fn config(&self) -> &WorkerConfig {
        &self.config
    }

    /// Adds a relay that serves other workers while this one runs.
    #[must_use]
    pub fn with_relay(mut self, relay: Option<Relay>) -> Self {
        self.relay = relay;
        self
    }

    /// Sets how to reach a lost server. Without it, `OnServerLost::Reconnect` acts like `Stop`.
    #[must_use]
    pub fn with_redial(mut self, redial: Redial<S>) -> Self {
        self.redial = Some(redial);
        self
    }
}

impl Connector {
    /// Connects and registers, with retries. Before each attempt except the first, and whenever the
    /// server is lost later, `find` looks up its current location, because a restarted server has
    /// another port and other keys. If the location is unknown, the last one is used.
    ///
    /// On failure, the working directory is removed before this returns, unless that takes too
    /// long.
    ///
    /// # Errors
    ///
    /// Returns the [`RegisterError`] of the last attempt, or of the first one with a permanent
    /// error. Returns [`RegisterError::Interrupted`] if one of `interrupts` arrives first.
    pub async fn register(
        &self,
        mut params: WorkerParams,
        find: impl Fn() -> ServerLocation + Send + Sync + 'static,
        interrupts: &mut mpsc::Receiver<Interrupt>,
    ) -> Result<RegisteredWorker<TcpStream>, RegisterError> {
        let prepared = prepare(&mut params)?;
        let mut search = Search::new(self, find);
        let registration = ToServer::from(&params.config);
        let result = tokio::select! {
            // If both are ready, the registration wins, because a worker that the server knows must
            // say goodbye.
            biased;
            result = search.register(&registration) => result,
            // The server may be away for minutes, and batch systems soon kill processes that do not
            // end.
            Some(interrupt) = interrupts.recv() => Err(RegisterError::Interrupted(interrupt)),
        };
        match result {
            Ok(link) => {
                let worker = RegisteredWorker::new(link, params, prepared);
                Ok(worker.with_redial(search.redial()))
            }
            Err(error) => {
                // The file system may hang by now, and this thread must handle the next signal.
                remove_in_time(params.work_dir).await;
                Err(error)
            }
        }
    }
}

/// Registers over an existing connection.
///
/// # Errors
///
/// Returns a [`RegisterError`] after a single failed attempt.
pub async fn register<S>(
    connection: Connection<S>,
    mut params: WorkerParams,
) -> Result<RegisteredWorker<S>, RegisterError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let prepared = prepare(&mut params)?;
    let link = introduce(connection, &ToServer::from(&params.config)).await?;
    Ok(RegisteredWorker::new(link, params, prepared))
}

/// Starts the launcher, generates a secret, and completes the worker's configuration.
fn prepare(params: &mut WorkerParams) -> Result<(TaskLauncher, SecretKey), RegisterError> {
    let task_dirs = params.work_dir.tasks().to_path_buf();
    let launcher = TaskLauncher::start(
        params.spawn_threads,
        params.hq_path.clone(),
        task_dirs,
        &params.config.hostname,
        params.values_limit,
    );
    let mut launcher = launcher.map_err(RegisterError::Launcher)?;
    if params.config.memory_limits == MemoryLimits::Enforced
        && let Err(error) = launcher.enforce_memory()
    {
        tracing::info!(%error, "Memory limits of tasks cannot be enforced here");
        params.config.memory_limits = MemoryLimits::Impossible;
    }
    let secret = SecretKey::generate().map_err(RegisterError::Secret)?;
    params.config.return_digest = secret.digest();
    Ok((launcher, secret))
}
