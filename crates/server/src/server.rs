//! The standalone server: checks the directory, opens the ports and publishes the access file.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hq_protocol::access::{
    ACCESS_FILE_NAME, Access, AccessError, AccessFile, OwnerSocket, ServerDir, ServerUid,
};
use hq_protocol::{Connection, Plane, SecretKey, ServerKey, client};
use hq_store::{Lock, Progress};
use rustix::process::{Resource, Rlimit};
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Notify, mpsc, watch};

use crate::alloc::{AllocHandle, BatchCommands, BatchRequests};
use crate::client_link::ClientPlane;
use crate::clock::Clock;
use crate::config::{Journal, RunError, ServerConfig, StartError, Stop};
use crate::core_thread;
use crate::http::{self, HttpParts, HttpServer, ReadJob, Tokens};
use crate::last_server::{self, Continued, StartLock};
use crate::parts::Parts;
use crate::peer_stream::PeerStream;
use crate::state_file::RestoredServer;
use crate::stats::Stats;
use crate::worker_link::Route;
use crate::{alloc, client_link, listener, notify, peer_stream, probe, state_file, worker_link};

/// How long a shutdown waits for workers. They give their tasks a second to end, and kill the rest
/// within five.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long to wait while the link in the server directory is removed: before the workers are
/// stopped, and once more at the end.
const WITHDRAW_TIMEOUT: Duration = Duration::from_secs(1);

/// How long to wait for the last answers to be written, once all of them are known.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// How long to wait for the journal to be closed. A hanging disk would block it forever.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A started server. It serves clients and workers as soon as [`Server::run`] is called.
pub struct Server {
    dir: ServerDir,
    instance: PathBuf,
    access: AccessFile,
    client_listener: TcpListener,
    worker_listener: TcpListener,
    http: Option<HttpServer>,
    asks: http::HttpControlRx,
    clients: ClientPlane,
    http_parts: HttpParts,
    stops: mpsc::Receiver<Stop>,
    owed: notify::PendingNotifications,
    alloc: AllocHandle,
    requests: BatchRequests,
    /// The core's thread.
    thread: std::thread::JoinHandle<()>,
    /// The progress of the journal.
    progress: Option<watch::Receiver<Progress>>,
    failed: Arc<Notify>,
    /// The lock of a server without a store. Other servers have the lock of their store.
    _lock: Option<Lock>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("instance", &self.instance)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Checks the directory, opens both ports and publishes the access file. Clients that connect
    /// from now on are served as soon as [`Server::run`] is polled.
    ///
    /// # Errors
    ///
    /// See [`StartError`]. No instance directory is left behind.
    pub async fn start(config: ServerConfig) -> Result<Self, StartError> {
        raise_descriptor_limit();
        let StartContext {
            dir,
            start_lock,
            config,
            mut continued,
            warnings,
            given,
        } = examine_directory(config).await?;
        let client_listener = open(Plane::Client, &config, given.as_ref())?;
        let worker_listener = open(Plane::Worker, &config, given.as_ref())?;
        let (instance, fresh) = instance_of(&dir, continued.as_ref(), &config.journal)?;
        let http = open_http(&config, &instance).await?;
        // From here on, this start owns the instance of an earlier run. Until now, a failed start
        // has changed nothing.
        let (uid, opened) = restore(&config, &instance, continued.as_mut(), given.as_ref())
            .map_err(|error| error.with_way_out(continued.is_some(), &dir))?;
        let ports = (&client_listener, &worker_listener);
        let access = access_file(uid, &config, given.as_ref(), ports)?;
        tracing::info!("No online server found, starting a new server");
        store_access(&access, &instance, continued.is_some())?;
        publish_token(&config, http.as_ref())?;
        // The warnings come before clients can find the server, because a start in the background
        // ends at that point.
        warn_all(&warnings);
        if let Some(continued) = &continued {
            continued.report(&dir, opened.state.jobs());
        }
        dir.publish(&instance)?;
        drop(start_lock);
        let (info, failed) = (server_info(&config, &access), Arc::new(Notify::new()));
        let client = opened.store.as_ref().map(|(store, _)| store.client());
        let progress = opened.store.as_ref().map(|(_, progress)| progress.clone());
        let commands = Arc::new(BatchCommands::new(&instance));
        let (batch, requests) = alloc::requests(&opened.state, Arc::clone(&commands));
        let ((door, asks), (stop, stops)) = (http::door(), mpsc::channel(1));
        let ((outbox, owed), stats) = (notify::outbox(worker_notices(&config)), Stats::new());
        let (core, thread) = core_thread::start(
            opened.state,
            opened.store,
            Arc::clone(&failed),
            (Some(batch), Some(outbox)),
            stats.clone(),
        )
        .map_err(StartError::System)?;
        if let Some(fresh) = fresh {
            fresh.keep();
        }
        let alloc = AllocHandle::new(core.clone(), commands);
        let of_parts = (client, Some(alloc.clone()));
        let parts = Parts::new(core, info, of_parts, (config.idle_timeout, stats));
        let (clients, http_parts) = planes(parts, opened.tokens, config.read_job, (door, stop));
        Ok(Self {
            dir,
            instance,
            access,
            client_listener,
            worker_listener,
            http,
            asks,
            clients,
            http_parts,
            stops,
            owed,
            alloc,
            requests,
            thread,
            progress,
            failed,
            _lock: opened.lock,
        })
    }

    /// Returns the server's description of itself.
    #[must_use]
    pub fn info(&self) -> &client::ServerInfo {
        &self.clients.parts.info
    }

    /// Returns the absolute path of the server directory.
    #[must_use]
    pub fn server_dir(&self) -> &Path {
        self.dir.root()
    }

    /// Serves until a client asks the server to stop or `shutdown` completes. Then removes the
    /// access link, stops or keeps workers, and closes all connections.
    ///
    /// # Errors
    ///
    /// Returns an error if the link cannot be removed or the state can no longer be written.
    pub async fn run(mut self, shutdown: impl Future<Output = Stop>) -> Result<(), RunError> {
        let (instance, parts) = (self.instance, Arc::clone(&self.clients.parts));
        let key_of = |access: Option<Access>| access.and_then(|access| access.key);
        let clients = (self.client_listener, key_of(self.access.client));
        let workers = (self.worker_listener, key_of(self.access.worker));
        // The planes run in separate tokio tasks, so that neither waits for the other.
        let mut planes = tokio::task::JoinSet::new();
        planes.spawn(accept_clients(clients, &instance, self.clients));
        planes.spawn(accept_workers(workers, &parts));
        planes.spawn(notify::run(Arc::clone(&parts), self.owed));
        planes.spawn(alloc::run(parts.core.clone(), self.requests));
        let http = http::keep(self.http, instance.clone(), self.asks, self.http_parts);
        planes.spawn(http);
        let how = tokio::select! {
            Some(how) = self.stops.recv() => Some(how),
            // Workers and allocations are kept, so that a restarted server finds them again.
            () = self.failed.notified() => None,
            how = shutdown => Some(how),
        };
        tracing::debug!(?how, "the server ends");
        let mut withdrawing = tokio::task::spawn_blocking(move || self.dir.withdraw(&instance));
        // The link is removed immediately if the disk answers, because clients must not find a
        // stopping server.
        let mut withdrawn = in_time(&mut withdrawing).await;
        if let Some(how) = how {
            let keep = how == Stop::KeepWorkers;
            let allocations = self.alloc.shutdown(keep);
            // This fails only if the core has ended.
            let (_, ()) = tokio::join!(parts.core.end(keep, LEAVE_TIMEOUT), allocations);
            if let Some(store) = parts.store.as_ref().filter(|_| !keep) {
                store.note_stopped();
            }
            // This does not wait longer for a client that does not read.
            let _ = tokio::time::timeout(ANSWER_TIMEOUT, parts.answering.none()).await;
        }
        planes.shutdown().await;
        // The core's thread ends with its last handle.
        drop((parts, self.alloc));
        let is_closed = close(self.thread, self.progress).await;
        if withdrawn.is_none() {
            withdrawn = in_time(&mut withdrawing).await;
        }
        withdrawn.unwrap_or_else(|| {
            tracing::warn!("The server directory still leads to this server: its disk or file system does not answer");
            Ok(())
        })?;
        // If the journal is not closed, the error tells the user that changes may be missing.
        how.filter(|_| is_closed).map(|_| ()).ok_or(RunError::Store)
    }
}

/// The state of the server directory before a start changes it.
struct StartContext {
    dir: ServerDir,
    /// Held until the link leads to the new server. If several starts run at the same time, one of
    /// them finds no server, and the others find the server that it started.
    start_lock: StartLock,
    /// The configuration, with the journal of the server to be continued.
    config: ServerConfig,
    continued: Option<Continued>,
    /// Warnings for the user, if the start succeeds.
    warnings: Vec<String>,
    /// The hosts, ports, keys and uid to take over.
    given: Option<AccessFile>,
}

async fn examine_directory(mut config: ServerConfig) -> Result<StartContext, StartError> {
    let root = std::path::absolute(&config.server_dir).map_err(StartError::System)?;
    let dir = ServerDir::new(root, config.is_default_dir);
    last_server::check_dir(&dir, &config)?;
    let start_lock = StartLock::take(&dir).await?;
    probe::check_not_online(&dir, &config).await?;
    last_server::check_fresh(&config)?;
    let (continued, warnings) = last_server::find(&dir, &config).await?;
    if let Some(continued) = &continued {
        config.journal = continued.journal.clone();
    }
    let given = match (&config.access_file, &continued) {
        (Some(path), _) => {
            let given = AccessFile::load(path, &config.version)?;
            given.check_for_server(path)?;
            Some(given)
        }
        (None, Some(continued)) => earlier_access(&dir, &continued.instance)?,
        (None, None) => None,
    };
    Ok(StartContext {
        dir,
        start_lock,
        config,
        continued,
        warnings,
        given,
    })
}

fn worker_notices(config: &ServerConfig) -> notify::WorkerNotices {
    notify::WorkerNotices {
        targets: config.notify.clone(),
        dir: config.server_dir.clone(),
    }
}

/// Returns the outcome of an operation on the link in the server directory. `None` if it took too
/// long.
async fn in_time(
    withdrawing: &mut tokio::task::JoinHandle<Result<(), AccessError>>,
) -> Option<Result<(), AccessError>> {
    let ended = tokio::time::timeout(WITHDRAW_TIMEOUT, withdrawing).await;
    // The task does not panic.
    ended.ok().map(|ended| ended.unwrap_or(Ok(())))
}

/// Opens the owner's socket if the file system supports sockets. Without it, all clients use the
/// port.
fn owner_socket(instance: &Path, port: &TcpListener) -> Option<UnixListener> {
    let port = port.local_addr().map(|address| address.port());
    let socket = port.and_then(|port| OwnerSocket::new(instance, port)?.listen());
    socket
        .inspect_err(|error| tracing::debug!(%error, "no socket in the directory of the instance"))
        .ok()
}

/// Serves clients until the future is dropped.
fn accept_clients(
    (listener, key): (TcpListener, Option<SecretKey>),
    instance: &Path,
    clients: ClientPlane,
) -> impl Future<Output = ()> + use<> {
    let plane = Plane::Client;
    let listening = listener::Listening {
        socket: owner_socket(instance, &listener),
        listener,
        plane,
        key,
        // No relay forwards clients.
        relayed: None,
    };
    let stats = clients.parts.stats.plane(plane).clone();
    let serve =
        move |connection, permit| client_link::serve(connection, clients.clone(), Some(permit));
    listener::run(listening, stats, serve)
}

/// Serves workers and relays until the future is dropped.
fn accept_workers(
    (listener, key): (TcpListener, Option<SecretKey>),
    parts: &Arc<Parts>,
) -> impl Future<Output = ()> + use<> {
    let plane = Plane::Worker;
    let (relayed_tx, relayed) = peer_stream::relayed();
    let listening = listener::Listening {
        listener,
        socket: None,
        plane,
        key,
        relayed: Some(relayed),
    };
    let parts = Arc::clone(parts);
    let stats = parts.stats.plane(plane).clone();
    let serve = move |connection: Connection<PeerStream>, permit| {
        // A peer behind a relay is a worker, never another relay.
        let ip = connection.stream().direct_ip();
        let route = Route {
            via: connection.stream().relay().map(Box::from),
            relayed: ip.map(|ip| (relayed_tx.clone(), ip)),
        };
        let parts = Arc::clone(&parts);
        async move { worker_link::serve(connection, route, &parts, Some(permit)).await }
    };
    listener::run(listening, stats, serve)
}

/// Waits until the core's thread has closed the journal, as long as it makes progress: a slow disk
/// is no reason to lose reported results. Returns whether it is closed.
async fn close(
    thread: std::thread::JoinHandle<()>,
    progress: Option<watch::Receiver<Progress>>,
) -> bool {
    let committed = || progress.as_ref().map(|seen| seen.borrow().committed);
    let mut joining = tokio::task::spawn_blocking(move || thread.join());
    loop {
        let before = committed();
        match tokio::time::timeout(CLOSE_TIMEOUT, &mut joining).await {
            Ok(Ok(Ok(()))) => return true,
            Ok(_) => {
                tracing::error!("the core thread did not end cleanly");
                return false;
            }
            Err(_) if committed() != before => {}
            Err(_) => {
                tracing::error!(
                    "The journal cannot be closed: its disk or file system hangs. The server ends without it; the last \
                     changes may be lost"
                );
                return false;
            }
        }
    }
}

/// Returns the parts of the server that connections of clients and the HTTP listener need.
fn planes(
    parts: Parts,
    tokens: Vec<(String, String)>,
    read_job: Option<ReadJob>,
    (door, stop): (http::HttpControl, mpsc::Sender<Stop>),
) -> (ClientPlane, HttpParts) {
    let tokens = Arc::new(Tokens::new(parts.core.clone(), tokens));
    let parts = Arc::new(parts);
    let clients = ClientPlane {
        parts: Arc::clone(&parts),
        http: Some((door, Arc::clone(&tokens))),
        stop,
    };
    let http_parts = HttpParts {
        parts,
        tokens,
        read_job,
    };
    (clients, http_parts)
}

/// Restores the server's uid and then its state.
fn restore(
    config: &ServerConfig,
    instance: &Path,
    continued: Option<&mut Continued>,
    given: Option<&AccessFile>,
) -> Result<(ServerUid, RestoredServer), StartError> {
    let looked = continued.and_then(|continued| continued.looked.take());
    let (uid, mut opened) = match state_file::open(config, instance, looked)? {
        Some(store) => {
            let uid = uid(given, store.server_uid()?)?;
            let opened = state_file::load(store, uid.as_str())?;
            (uid, opened)
        }
        None => {
            let uid = uid(given, None)?;
            let lock = last_server::lock_unkept(instance);
            (uid.clone(), RestoredServer::unstored(uid.as_str(), lock))
        }
    };
    opened.state.set_quarantine_mode(config.quarantine);
    let queues = std::mem::take(&mut opened.queues);
    alloc::restore(&mut opened.state, instance, queues);
    Ok((uid, opened))
}

/// Returns the instance directory: that of the server to be continued, or a new one.
fn instance_of(
    dir: &ServerDir,
    continued: Option<&Continued>,
    journal: &Journal,
) -> Result<(PathBuf, Option<FreshInstance>), StartError> {
    if let Some(continued) = continued {
        return Ok((continued.instance.clone(), None));
    }
    let instance = dir.create_instance()?;
    let fresh = FreshInstance(Some(instance.clone()));
    state_file::note_journal(dir, &instance, journal).map_err(StartError::System)?;
    Ok((instance, Some(fresh)))
}

/// The directory of an instance that is being started. Dropping this removes the directory, so that
/// a failed start does not count as the last server.
struct FreshInstance(Option<PathBuf>);

impl FreshInstance {
    /// Keeps the directory, because the server has started.
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for FreshInstance {
    fn drop(&mut self) {
        let Some(path) = self.0.take() else {
            return;
        };
        if let Err(error) = std::fs::remove_dir_all(&path) {
            tracing::debug!(%error, "the directory of a failed start stays");
        }
    }
}

/// Returns the keys, hosts, ports and uid of the run to be resumed. `None` if it has no access
/// file.
fn earlier_access(dir: &ServerDir, instance: &Path) -> Result<Option<AccessFile>, StartError> {
    let path = instance.join(ACCESS_FILE_NAME);
    if !path.exists() {
        tracing::info!("there is no '{}'; the server gets new keys", path.display());
        return Ok(None);
    }
    if last_server::was_interrupted(dir, instance) {
        tracing::warn!(
            "'{}' is incomplete: the start that wrote it was interrupted. The server gets new keys",
            path.display()
        );
        return Ok(None);
    }
    // Accepts the file of any release, because workers and copies of the file have these keys. If
    // it cannot be read, the user has to decide.
    let loaded = AccessFile::load_any(&path).and_then(|earlier| {
        earlier.check_for_server(&path)?;
        Ok(earlier)
    });
    match loaded {
        Err(source) if source.is_damage() => Err(StartError::AccessDamaged { source }),
        loaded => Ok(Some(loaded?)),
    }
}

/// Writes the access file. If `replace` is set, replaces the file of the earlier run, which has the
/// same keys.
fn store_access(access: &AccessFile, instance: &Path, replace: bool) -> Result<(), StartError> {
    let path = instance.join(ACCESS_FILE_NAME);
    if replace {
        access.replace(&path)?;
    } else {
        access.create(&path)?;
    }
    tracing::info!("Storing access file as '{}'", path.display());
    Ok(())
}

async fn open_http(
    config: &ServerConfig,
    instance: &Path,
) -> Result<Option<HttpServer>, StartError> {
    let Some(address) = config.http else {
        return Ok(None);
    };
    let opened = HttpServer::open(address, instance).await;
    opened
        .map(Some)
        .map_err(|source| StartError::Http { address, source })
}

fn publish_token(config: &ServerConfig, http: Option<&HttpServer>) -> Result<(), StartError> {
    let Some((address, http)) = config.http.zip(http) else {
        return Ok(());
    };
    http.publish()
        .map_err(|source| StartError::Http { address, source })
}

/// Raises the soft limit of file descriptors to the hard limit, because many connections need many
/// descriptors.
fn raise_descriptor_limit() {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = rustix::process::setrlimit(Resource::Nofile, raised) {
        tracing::debug!(%error, "cannot raise the limit of open files");
    }
}

fn part(plane: Plane, file: &AccessFile) -> Option<&Access> {
    match plane {
        Plane::Client => file.client.as_ref(),
        Plane::Worker | Plane::Relay => file.worker.as_ref(),
    }
}

fn open(
    plane: Plane,
    config: &ServerConfig,
    given: Option<&AccessFile>,
) -> Result<TcpListener, StartError> {
    let asked = match plane {
        Plane::Client => config.client_port,
        Plane::Worker | Plane::Relay => config.worker_port,
    };
    let earlier = given.and_then(|file| part(plane, file));
    let port = asked.or(earlier.map(|access| access.port));
    let host = config.host.as_deref();
    let host = host.or(earlier.map(|access| &*access.host));
    let bound = listener::bind(port, host);
    // No client knows this port yet.
    let bound = if bound.is_err() && asked.is_none() && config.access_file.is_none() {
        listener::bind(None, host)
    } else {
        bound
    };
    bound.map_err(|source| StartError::Listen {
        plane,
        port,
        source,
    })
}

fn warn_all(warnings: &[String]) {
    for warning in warnings {
        tracing::warn!("{warning}");
    }
}

fn access_file(
    uid: ServerUid,
    config: &ServerConfig,
    given: Option<&AccessFile>,
    (clients, workers): (&TcpListener, &TcpListener),
) -> Result<AccessFile, StartError> {
    let pair = key_pair(given)?;
    let part = |plane, listener| plane_access((plane, &pair), config, given, listener);
    let (clients, workers) = (part(Plane::Client, clients)?, part(Plane::Worker, workers)?);
    Ok(AccessFile::full(&config.version, uid, clients, workers))
}

/// Returns the server's key pair: that of the access file or, without one, a new one.
fn key_pair(given: Option<&AccessFile>) -> Result<ServerKey, StartError> {
    if let Some(pair) = given.and_then(AccessFile::server_key) {
        return Ok(pair.clone());
    }
    if given.is_some_and(AccessFile::has_secret) {
        tracing::warn!(
            "The access file is from an earlier release: the server adds a key pair that proves its identity. Workers of that release continue; clients with a copy of the file need a new one"
        );
    }
    ServerKey::generate().map_err(|e| StartError::System(io::Error::other(e)))
}

fn plane_access(
    (plane, pair): (Plane, &ServerKey),
    config: &ServerConfig,
    given: Option<&AccessFile>,
    listener: &TcpListener,
) -> Result<Access, StartError> {
    let given = given.and_then(|file| part(plane, file));
    let wants_key = match plane {
        Plane::Client => config.client_auth,
        Plane::Worker | Plane::Relay => config.worker_auth,
    };
    let key = match given {
        Some(access) => access.key.clone().filter(|_| wants_key),
        None if wants_key => {
            Some(SecretKey::generate().map_err(|e| StartError::System(io::Error::other(e)))?)
        }
        None => None,
    };
    let key = key.map(|key| key.with_server(pair));
    let host = config
        .host
        .clone()
        .or_else(|| given.map(|access| access.host.clone()))
        .unwrap_or_else(hostname);
    let port = listener.local_addr().map_err(StartError::System)?.port();
    Ok(Access { host, port, key })
}

/// Returns the uid from the access file or, without one, from the stored state. If neither has a
/// uid, creates a new one.
fn uid(given: Option<&AccessFile>, stored: Option<String>) -> Result<ServerUid, AccessError> {
    let stored = stored.map(ServerUid::from_text);
    match given.and_then(|file| file.server_uid.clone()).or(stored) {
        Some(uid) => Ok(uid),
        None => ServerUid::generate(),
    }
}

fn hostname() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

fn server_info(config: &ServerConfig, access: &AccessFile) -> client::ServerInfo {
    let (client, worker) = (access.client.as_ref(), access.worker.as_ref());
    let host = |access: Option<&Access>| access.map_or(String::new(), |a| a.host.clone());
    let port = |access: Option<&Access>| access.map_or(0, |a| u32::from(a.port));
    client::ServerInfo {
        server_uid: access
            .server_uid
            .as_ref()
            .map_or("", ServerUid::as_str)
            .to_owned(),
        client_host: host(client),
        client_port: port(client),
        worker_host: host(worker),
        worker_port: port(worker),
        version: config.version.clone(),
        pid: std::process::id(),
        start_unix_ns: Clock::new().now().wall.0,
        // Each answer sets these fields.
        now_unix_ns: 0,
        internal_error_count: 0,
        knows_nonces: true,
        knows_limits: true,
        journal_path: match &config.journal {
            Journal::File(path) => Some(path.display().to_string()),
            Journal::InServerDir | Journal::None => None,
        },
    }
}
