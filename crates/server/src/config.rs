//! The configuration of a server, the errors of its start, and the ways to stop it.

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
    /// Stops the workers as well and cancels allocations.
    WithWorkers,
    /// Keeps allocations. The workers continue and wait for the next server.
    KeepWorkers,
}

/// Where a server keeps its state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Journal {
    /// The state is kept in a file in the instance directory.
    InServerDir,
    /// The state is kept in this file.
    File(PathBuf),
    /// The state is not kept, and is lost when the server ends.
    None,
}

/// The configuration of a [`Server`](crate::Server).
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The server directory.
    pub server_dir: PathBuf,
    /// Whether this is the default directory. Hints for the user omit it if it is.
    pub is_default_dir: bool,
    /// The name of this machine for other machines. `None` means the name in the access file or,
    /// without one, the host name.
    pub host: Option<String>,
    /// The port for clients. `None` means the port in the access file or, without one, any free
    /// port.
    pub client_port: Option<u16>,
    /// The port for workers. `None` means the port in the access file or, without one, any free
    /// port.
    pub worker_port: Option<u16>,
    /// A full access file that provides hosts, ports, keys and uid.
    pub access_file: Option<PathBuf>,
    /// The idle timeout of workers that did not set one.
    pub idle_timeout: Option<Duration>,
    /// Whether to authenticate and encrypt the client plane.
    pub client_auth: bool,
    /// Whether to authenticate and encrypt the worker plane.
    pub worker_auth: bool,
    /// Where the state is kept.
    pub journal: Journal,
    /// The size of the journal in bytes above which the oldest completed jobs are removed from it.
    /// `None` means unlimited.
    pub journal_size_max: Option<u64>,
    /// Whether to continue the last server of the directory, however it ended: its state, uid, keys
    /// and, if they are free, ports.
    pub resume: bool,
    /// Whether to create a new instance, however the last server of the directory ended.
    pub fresh: bool,
    /// The address of the HTTP listener. `None` means that it is not opened at the start.
    pub http: Option<SocketAddr>,
    /// How to treat workers on which tasks fail that succeed on other workers.
    pub quarantine: QuarantineMode,
    /// The targets for notifications about such workers.
    pub notify: Vec<NotifyTarget>,
    /// Parses job descriptions that are sent over HTTP. `None` if this is not supported.
    pub read_job: Option<ReadJob>,
    /// The version of this program.
    pub version: String,
}

/// The reason why a server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Another server of this directory is running.
    #[error("Server at {dir} is already online, please stop it first using `hq server stop{hint}`\n{state}", dir = .dir.display())]
    AlreadyOnline {
        /// The server directory.
        dir: PathBuf,
        /// How the hint names the directory.
        hint: ServerHint,
        /// The process and host of the server, as a sentence.
        state: String,
    },
    /// Another start in this directory takes too long.
    #[error("Another `hq server start` is in progress in {dir}: {owner}. Wait for its end, or end that process", dir = .dir.display())]
    Starting {
        /// The server directory.
        dir: PathBuf,
        /// The process and host of the other start.
        owner: String,
    },
    /// A server of another release is running in this directory.
    #[error("Server at {dir} is already online and is of version {version}, please stop it first using `hq server stop{hint}` of that version; if that is no longer so, remove {link}\n{state}", dir = .dir.display(), link = .dir.join(CURRENT_LINK_NAME).display())]
    OtherVersionOnline {
        /// The server directory.
        dir: PathBuf,
        /// The version in its access file.
        version: String,
        /// How the hint names the directory.
        hint: ServerHint,
        /// The process and host of the server, as a sentence.
        state: String,
    },
    /// The directory, the access file or the keys cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A port cannot be opened.
    #[error("Cannot listen on the {plane} port {port}", port = .port.map_or("(any)".to_string(), |port| port.to_string()))]
    Listen {
        /// The plane of the port.
        plane: Plane,
        /// The requested port.
        port: Option<u16>,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The HTTP listener cannot be opened, or its token cannot be created.
    #[error("Cannot serve HTTP at {address}")]
    Http {
        /// The requested address.
        address: SocketAddr,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The state file cannot be used.
    #[error(transparent)]
    Store(#[from] hq_store::StoreError),
    /// The state of the server to be continued cannot be used.
    #[error(
        "{source}\nTo start without that state, and leave it as it is, run `hq server start{hint} --fresh`"
    )]
    State {
        /// How the hint names the directory.
        hint: ServerHint,
        /// The reason, with advice on what to do about the state.
        source: Box<hq_store::StoreError>,
    },
    /// The access file of the server to be continued cannot be used.
    #[error(
        "{source}\nRestore the file from a copy, or remove it: then the server creates new keys. Workers that read its directory follow by themselves; other workers, and clients with a copy of the file, need the new one"
    )]
    AccessDamaged {
        /// The reason.
        source: AccessError,
    },
    /// The journal of the server to be continued is gone.
    #[error("The last server of this directory kept its state in {}, which is missing. Put it back, or start without that state: `hq server start{hint} --fresh`{earlier}", .path.display())]
    JournalGone {
        /// The journal.
        path: PathBuf,
        /// How the hint names the directory.
        hint: ServerHint,
        /// The state of an earlier server, as a sentence on a separate line.
        earlier: String,
    },
    /// A fresh start was requested with a journal that contains jobs.
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
    /// The system cannot provide a thread, key or file descriptor.
    #[error("Cannot start the server")]
    System(#[source] io::Error),
}

impl StartError {
    /// Adds advice on how to start without the unreadable state, if it is the state of the last
    /// server.
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

/// The reason why a server ended by itself.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The link to the access file cannot be removed.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The state can no longer be written.
    #[error("The server stopped because its state could not be written; see the messages above")]
    Store,
}
