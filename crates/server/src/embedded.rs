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

use crate::answering::Answering;
use crate::client_link::ClientPlane;
use crate::clock::Clock;
use crate::core_thread;
use crate::curves::Curves;
use crate::problems::Problems;
use crate::questions::Questions;
use crate::relay_link::Routes;
use crate::stats::Stats;
use crate::values::Values;
use crate::worker_link::WorkerPlane;
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
    workers: WorkerPlane,
    links: JoinSet<()>,
    core: Option<JoinHandle<()>>,
}

/// Planes hold channels, which have no useful debug output.
impl std::fmt::Debug for EmbeddedServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EmbeddedServer")
            .field("info", &self.clients.info)
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
        let (core, thread) = core_thread::start(
            ServerState::without_store(uid.as_str()),
            None,
            Arc::new(Notify::new()),
            (None, None),
            Stats::new(),
        )?;
        let info = Arc::new(client::ServerInfo {
            server_uid: uid.as_str().to_owned(),
            version: config.version,
            pid: std::process::id(),
            start_unix_ns: Clock::new().now().wall.0,
            knows_nonces: true,
            ..client::ServerInfo::default()
        });
        let questions = Arc::new(Questions::new(info.start_unix_ns.unsigned_abs()));
        let values = Arc::new(Values::new(None));
        let curves = Curves::new(None);
        let problems = Problems::new(core.clone(), None, None, Arc::clone(&questions));
        let routes = Arc::new(Routes::default());
        let workers = WorkerPlane {
            core: core.clone(),
            info: Arc::clone(&info),
            idle_timeout: config.idle_timeout,
            values: Arc::clone(&values),
            curves: curves.clone(),
            questions: Arc::clone(&questions),
            routes: Arc::clone(&routes),
            via: None,
            relayed: None,
        };
        let clients = ClientPlane {
            core,
            info,
            values,
            curves,
            store: None,
            alloc: None,
            problems: Arc::new(problems),
            questions,
            routes,
            answering: Answering::new(),
            door: None,
            tokens: None,
            // This server ends when it is dropped, not on request.
            stop: mpsc::channel(1).0,
        };
        Ok(Self {
            clients,
            workers,
            links: JoinSet::new(),
            core: Some(thread),
        })
    }

    /// Returns the server's description of itself. Hosts and ports are empty.
    #[must_use]
    pub fn info(&self) -> &client::ServerInfo {
        &self.clients.info
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
        let workers = self.workers.clone();
        self.links.spawn(async move {
            if let Ok(connection) = hq_protocol::accept(ours, Plane::Worker, None).await {
                worker_link::serve(connection, workers, None).await;
            }
        });
        theirs
    }

    /// Ends all connections and the core's thread.
    pub async fn shutdown(mut self) {
        self.links.shutdown().await;
        let Self {
            clients,
            workers,
            core,
            ..
        } = self;
        drop((clients, workers));
        if let Some(core) = core {
            // The last handle to the core has been dropped, so its thread is ending. The thread
            // cannot panic.
            let _ = tokio::task::spawn_blocking(move || core.join()).await;
        }
    }
}
