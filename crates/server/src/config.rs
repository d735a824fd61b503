//! Configuration of a server, reasons why it cannot start, and ways in which it ends.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use hq_core::quarantine::QuarantineMode;
use hq_core::template::NotifyTarget;
use hq_protocol::Plane;
use hq_protocol::access::{AccessError, CURRENT_LINK_NAME};

use crate::http::ReadJob;

/// How a server ends when somebody wants it to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// Workers end as well, and allocations are canceled.
    WithWorkers,
    /// Workers go on and wait for the next server, and allocations stay.
    KeepWorkers,
}

/// Where a server keeps its state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Journal {
    /// In a file in the directory of the instance.
    InServerDir,
    /// In this file.
    File(PathBuf),
    /// Nowhere: all is lost with the server.
    None,
}

/// Configuration of a [`Server`](crate::Server).
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Server directory.
    pub server_dir: PathBuf,
    /// Whether that is the default one; hints then do not name it.
    pub is_default_dir: bool,
    /// Name under which others reach this machine; `None` = access file's, else the host name.
    pub host: Option<String>,
    /// Port for clients; `None` = access file's, else any.
    pub client_port: Option<u16>,
    /// Port for workers; `None` = access file's, else any.
    pub worker_port: Option<u16>,
    /// Full access file to take hosts, ports, keys and uid from.
    pub access_file: Option<PathBuf>,
    /// Idle timeout of workers that set none.
    pub idle_timeout: Option<Duration>,
    /// Authenticate and encrypt the client plane.
    pub client_auth: bool,
    /// Authenticate and encrypt the worker plane.
    pub worker_auth: bool,
    /// Where the state is kept.
    pub journal: Journal,
    /// Bytes that this file may have before the oldest completed jobs are dropped from it; `None` = any
    /// number.
    pub journal_size_max: Option<u64>,
    /// Continue the last instance of the directory: its state, uid, keys and, if they are free, ports.
    pub resume: bool,
    /// Where metrics are served over HTTP; `None` = nowhere.
    pub http: Option<SocketAddr>,
    /// Reaction to workers on which tasks fail that go well elsewhere.
    pub quarantine: QuarantineMode,
    /// Who is told of such workers.
    pub notify: Vec<NotifyTarget>,
    /// Reads the jobs that programs describe over HTTP; `None` = they cannot.
    pub read_job: Option<ReadJob>,
    /// Version of this program.
    pub version: String,
}

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another server answers on this directory.
    #[error("Server at {dir} is already online, please stop it first using `hq server stop{hint}`", dir = .dir.display())]
    AlreadyOnline {
        /// The server directory.
        dir: PathBuf,
        /// How to name it in the hint.
        hint: hq_protocol::access::ServerHint,
    },
    /// A server of another release answers on this directory.
    #[error("Server at {dir} is already online and is of version {version}, please stop it first using `hq server stop{hint}` of that version; if that is no longer so, remove {link}", dir = .dir.display(), link = .dir.join(CURRENT_LINK_NAME).display())]
    OtherVersionOnline {
        /// The server directory.
        dir: PathBuf,
        /// Content of its access file.
        version: String,
        /// How to name it in the hint.
        hint: hq_protocol::access::ServerHint,
    },
    /// The server of this directory has its state open, but does not answer.
    #[error("Server at {dir} is still there ({owner}), but does not answer; stop that process first, or use another --server-dir", dir = .dir.display())]
    Silent {
        /// The server directory.
        dir: PathBuf,
        /// Host and process.
        owner: String,
    },
    /// Directory, access file or keys.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A port cannot be opened.
    #[error("Cannot listen on the {plane} port {port}", port = .port.map_or("(any)".to_string(), |port| port.to_string()))]
    Listen {
        /// Plane of the port.
        plane: Plane,
        /// Asked-for port.
        port: Option<u16>,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The HTTP listener, or its token.
    #[error("Cannot serve HTTP at {address}")]
    Http {
        /// Asked-for address.
        address: SocketAddr,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The file of the state.
    #[error(transparent)]
    Store(#[from] hq_store::StoreError),
    /// There is nothing to resume.
    #[error("Nothing to resume in {}: no server has kept its state there; start without --resume, or, if the last one was started with --journal, with the same --journal instead", .dir.display())]
    NothingToResume {
        /// The server directory.
        dir: PathBuf,
    },
    /// No thread, key or file descriptor to be had.
    #[error("Cannot start the server")]
    System(#[source] io::Error),
}

/// Why a server ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The link to the access file cannot be removed.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The state can no longer be written.
    #[error("The server stopped because its state could not be written; see the messages above")]
    Store,
}
