//! Configuration of a server, errors of its start, and kinds of stops.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use hq_core::quarantine::QuarantineMode;
use hq_core::template::NotifyTarget;
use hq_protocol::Plane;
use hq_protocol::access::{AccessError, CURRENT_LINK_NAME, ServerDir, ServerHint};

use crate::http::ReadJob;

/// How a server stops on request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// Workers end as well, and allocations are canceled.
    WithWorkers,
    /// Workers continue and wait for the next server, and allocations stay.
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
    /// Whether it is the default directory; hints then omit it.
    pub is_default_dir: bool,
    /// Name of this machine for other machines; `None` = that of the access file, else the host
    /// name.
    pub host: Option<String>,
    /// Port for clients; `None` = that of the access file, else any.
    pub client_port: Option<u16>,
    /// Port for workers; `None` = that of the access file, else any.
    pub worker_port: Option<u16>,
    /// Full access file that provides hosts, ports, keys and uid.
    pub access_file: Option<PathBuf>,
    /// Idle timeout of workers that set none.
    pub idle_timeout: Option<Duration>,
    /// Authenticate and encrypt the client plane.
    pub client_auth: bool,
    /// Authenticate and encrypt the worker plane.
    pub worker_auth: bool,
    /// Where the state is kept.
    pub journal: Journal,
    /// Size of the journal in bytes above which the oldest completed jobs are dropped from it;
    /// `None` = unlimited.
    pub journal_size_max: Option<u64>,
    /// Continue the last server of the directory, however it ended: its state, uid, keys and, if
    /// free, ports.
    pub resume: bool,
    /// Create a new instance, however the last server of the directory ended.
    pub fresh: bool,
    /// Where metrics are served over HTTP; `None` = nowhere.
    pub http: Option<SocketAddr>,
    /// Reaction to workers where tasks fail that succeed elsewhere.
    pub quarantine: QuarantineMode,
    /// Notification targets for such workers.
    pub notify: Vec<NotifyTarget>,
    /// Parses job descriptions sent over HTTP; `None` = not supported.
    pub read_job: Option<ReadJob>,
    /// Version of this program.
    pub version: String,
}

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another server of this directory lives.
    #[error("Server at {dir} is already online, please stop it first using `hq server stop{hint}`\n{state}", dir = .dir.display())]
    AlreadyOnline {
        /// The server directory.
        dir: PathBuf,
        /// How to name it in the hint.
        hint: ServerHint,
        /// Process and host, as a sentence.
        state: String,
    },
    /// Another start in the directory takes long.
    #[error("Another `hq server start` is in progress in {dir}: {owner}. Wait for its end, or end that process", dir = .dir.display())]
    Starting {
        /// The server directory.
        dir: PathBuf,
        /// Process and host.
        owner: String,
    },
    /// A server of another release answers on this directory.
    #[error("Server at {dir} is already online and is of version {version}, please stop it first using `hq server stop{hint}` of that version; if that is no longer so, remove {link}\n{state}", dir = .dir.display(), link = .dir.join(CURRENT_LINK_NAME).display())]
    OtherVersionOnline {
        /// The server directory.
        dir: PathBuf,
        /// Content of its access file.
        version: String,
        /// How to name it in the hint.
        hint: ServerHint,
        /// Process and host, as a sentence.
        state: String,
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
    /// The state of the server that the start would continue.
    #[error(
        "{source}\nTo start without that state, and leave it as it is, run `hq server start{hint} --fresh`"
    )]
    State {
        /// How to name the directory in the hint.
        hint: ServerHint,
        /// Reason, with what to do about the state.
        source: Box<hq_store::StoreError>,
    },
    /// The access file of the server that the start would continue cannot be used.
    #[error(
        "{source}\nRestore the file from a copy, or remove it: then the server creates new keys. Workers that read its directory follow by themselves; other workers, and clients with a copy of the file, need the new one"
    )]
    AccessDamaged {
        /// Reason.
        source: AccessError,
    },
    /// The journal of the server to be continued is gone.
    #[error("The last server of this directory kept its state in {}, which is missing. Put it back, or start without that state: `hq server start{hint} --fresh`{earlier}", .path.display())]
    JournalGone {
        /// The journal.
        path: PathBuf,
        /// How to name the directory in the hint.
        hint: ServerHint,
        /// State of an earlier server, as a sentence on a line of its own.
        earlier: String,
    },
    /// A new beginning with the jobs of before.
    #[error("--fresh requires an empty journal, and {} is not empty. Name another file, or omit --fresh to continue with its jobs", .path.display())]
    FreshJournal {
        /// The journal.
        path: PathBuf,
    },
    /// There is nothing to resume.
    #[error("Nothing to resume in {}: no server has kept its state there. Start without --resume", .dir.display())]
    NothingToResume {
        /// The server directory.
        dir: PathBuf,
    },
    /// The system provides no thread, key or file descriptor.
    #[error("Cannot start the server")]
    System(#[source] io::Error),
}

impl StartError {
    /// Adds how to start without the unreadable state, if it is that of the last server.
    pub(crate) fn with_way_out(self, is_continued: bool, dir: &ServerDir) -> Self {
        if !is_continued {
            return self;
        }
        let Self::Store(error) = self else {
            return self;
        };
        if let hq_store::StoreError::InUse { owner, .. } = error {
            return Self::AlreadyOnline {
                dir: dir.root().to_path_buf(),
                hint: dir.hint(),
                state: format!("It is {owner}"),
            };
        }
        Self::State {
            hint: dir.hint(),
            source: Box::new(error),
        }
    }
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
