//! A server inside this process, for `hq run` and tests. It has no ports, keys or files.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use hq_core::server_state::ServerState;
use hq_protocol::access::ServerUid;
use hq_protocol::{Plane, client};
use tokio::io::DuplexStream;
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

use crate::client_link::ClientPlane;
use crate::clock::Clock;
use crate::core_thread;
use crate::parts::Parts;
use crate::stats::Stats;
use crate::worker_link::Route;
use crate::{client_link, worker_link};

/// The maximum number of bytes in flight per direction of an in-process connection.
const PIPE_LEN: usize = 256 << 10;

/// The configuration of an [`EmbeddedServer`].
#[derive(Clone, Debug)]
pub struct EmbeddedConfig {
    /// The version to report.
    pub version: String,
    /// The idle timeout of workers that did not set one.
    pub idle_timeout: Option<Duration>,
}

/// A server for connections within the process. It must be used within a tokio runtime. Dropping it
/// ends all connections.
pub struct EmbeddedServer {
    clients: ClientPlane,
    links: JoinSet<()>,
    core: JoinHandle<()>,
}

/// The planes hold channels, which have no useful debug output.
impl std::fmt::Debug for EmbeddedServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddedServer")
            .field("info", &self.clients.parts.info)
            .finish_non_exhaustive()
    }
}

impl EmbeddedServer {
    /// Starts the server.
    ///
    /// # Errors
    ///
    /// Returns an error if the system cannot provide a thread or random numbers.
    pub fn start(config: EmbeddedConfig) -> io::Result<Self> {
        let uid = ServerUid::generate().map_err(io::Error::other)?;
        let stats = Stats::new();
        let (core, thread) = core_thread::start(
            ServerState::without_store(uid.as_str()),
            None,
            Arc::new(Notify::new()),
            (None, None),
            stats.clone(),
        )?;
        let info = client::ServerInfo {
            server_uid: uid.as_str().to_owned(),
            version: config.version,
            pid: std::process::id(),
            start_unix_ns: Clock::new().now().wall.0,
            knows_nonces: true,
            knows_limits: true,
            ..client::ServerInfo::default()
        };
        let limits = (config.idle_timeout, stats);
        let parts = Parts::new(core, info, (None, None), limits);
        let clients = ClientPlane {
            parts: Arc::new(parts),
            http: None,
            // This server ends when it is dropped, not on request.
            stop: mpsc::channel(1).0,
        };
        Ok(Self {
            clients,
            links: JoinSet::new(),
            core: thread,
        })
    }

    /// Returns the server's description of itself. Hosts and ports are empty.
    #[must_use]
    pub fn info(&self) -> &client::ServerInfo {
        &self.clients.parts.info
    }

    /// Returns a stream for a client: `connect(stream, Plane::Client, None)`.
    pub fn connect_client(&mut self) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(PIPE_LEN);
        let clients = self.clients.clone();
        self.links.spawn(async move {
            if let Ok(connection) = hq_protocol::accept(ours, Plane::Client, None).await {
                client_link::serve(connection, clients, None).await;
            }
        });
        theirs
    }

    /// Returns a stream for a worker: `connect(stream, Plane::Worker, None)`.
    pub fn connect_worker(&mut self) -> DuplexStream {
        let (ours, theirs) = tokio::io::duplex(PIPE_LEN);
        let parts = Arc::clone(&self.clients.parts);
        self.links.spawn(async move {
            if let Ok(connection) = hq_protocol::accept(ours, Plane::Worker, None).await {
                worker_link::serve(connection, Route::default(), &parts, None).await;
            }
        });
        theirs
    }

    /// Ends all connections and the core's thread.
    pub async fn shutdown(mut self) {
        self.links.shutdown().await;
        drop(self.clients);
        // The last handle to the core has been dropped, so its thread is ending. The thread cannot
        // panic.
        let _ = tokio::task::spawn_blocking(move || self.core.join()).await;
    }
}
