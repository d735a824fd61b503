//! Errors of a store, as human-readable messages.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

/// The reason why a store cannot be used. `Display` includes the cause.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be created or opened.
    #[error("Cannot create event log file at `{}`: {source}", .path.display())]
    Create {
        /// The path of the file.
        path: PathBuf,
        /// The error reported by the operating system.
        source: io::Error,
    },
    /// The file cannot be read.
    #[error("Cannot open event log file at `{}`: {reason}", .path.display())]
    Open {
        /// The path of the file.
        path: PathBuf,
        /// The reason, as shown to the user.
        reason: String,
    },
    /// The file is not a journal, or was written by a later version. It was not changed.
    #[error("Cannot use `{}` as a journal: {reason}", .path.display())]
    NotOurs {
        /// The path of the file.
        path: PathBuf,
        /// The content or version that was found.
        reason: String,
    },
    /// The file is corrupt.
    #[error("The journal `{}` is damaged: {}{}; run `hq journal check --repair {}`, which keeps everything that it can verify and reports the losses", .path.display(), .problems.first().map_or("", String::as_str), more(.problems), .path.display())]
    Damaged {
        /// The path of the file.
        path: PathBuf,
        /// The problems found; there is at least one.
        problems: Vec<String>,
    },
    /// The file was copied or moved without its log, which holds the last commits.
    #[error("The journal `{path}` is incomplete: it was copied or moved without its write-ahead log `{log}`, which holds the last changes; put the log next to it as `{path}-wal`, or, if the log is lost, run `hq journal check --repair {path}`, which continues without it. (`hq journal flush` completes the file of a running server.)", path = .path.display(), log = .log.display())]
    LogMissing {
        /// The path of the file.
        path: PathBuf,
        /// The earlier name of the log, without its directory.
        log: PathBuf,
    },
    /// The log contains commits after a damaged frame.
    #[error("The write-ahead log `{path}-wal` of the journal `{path}` is damaged at byte {at}: the stored changes after it cannot be read; restore both files from the same copy, or run `hq journal check --repair {path}`, which keeps the earlier changes and sets the log aside", path = .path.display())]
    LogDamaged {
        /// The path of the file.
        path: PathBuf,
        /// The position in the log.
        at: u64,
    },
    /// The file and the log were copied at different times.
    #[error("The journal `{path}` and the write-ahead log `{path}-wal` were copied at different times and do not belong together; restore the log that was copied with the journal; a journal that was copied after `hq journal flush` needs no log: move `{path}-wal` and `{path}-shm` away; `hq journal check --repair {path}` does that and reports the losses", path = .path.display())]
    LogMismatch {
        /// The path of the file.
        path: PathBuf,
    },
    /// The log exists, but the file does not.
    #[error("The journal `{path}` is missing, but its write-ahead log `{path}-wal` exists; put the journal back, or remove `{path}-wal` and `{path}-shm` to start a new one", path = .path.display())]
    OnlyLog {
        /// The path of the file.
        path: PathBuf,
    },
    /// Another server uses the file.
    #[error("The journal `{}` is used by another server ({owner}); stop that server first", .path.display())]
    InUse {
        /// The path of the file.
        path: PathBuf,
        /// The host and the process.
        owner: String,
    },
    /// The file seems to be intact but cannot be opened at present.
    #[error("The journal `{}` cannot be opened at present: {source}; it was not changed; {} and start again", .path.display(), advice(.source))]
    NotNow {
        /// The path of the file.
        path: PathBuf,
        /// The error reported by SQLite.
        source: rusqlite::Error,
    },
    /// The state does not fit into memory.
    #[error("The state in the journal `{}` is too large for the available memory; it was not changed. Free memory, or start the server on a machine or in a control group with more of it", .path.display())]
    TooLarge {
        /// The path of the file.
        path: PathBuf,
    },
    /// The file system does not support file locks, so two servers could write to the same file.
    #[error("The file system of `{}` offers no file locks ({source}), so two servers could write one journal; use `hq server start --journal PATH` with a file on another file system, such as a local disk, or mount this one with locks", .path.display())]
    NoLocks {
        /// The path of the file.
        path: PathBuf,
        /// The error reported by the operating system.
        source: io::Error,
    },
    /// SQLite reported an error.
    #[error("The journal `{}` cannot be read or written: {source}", .path.display())]
    Sql {
        /// The path of the file.
        path: PathBuf,
        /// The error reported by SQLite.
        source: rusqlite::Error,
    },
}

impl StoreError {
    pub(crate) fn sql(path: &Path) -> impl Fn(rusqlite::Error) -> Self + '_ {
        move |source| Self::Sql {
            path: path.to_path_buf(),
            source,
        }
    }
}

fn more(problems: &[String]) -> String {
    match problems.len() {
        0 | 1 => String::new(),
        count => format!(", and {} more problems", count - 1),
    }
}

/// Returns advice for an error that the file did not cause.
fn advice(error: &rusqlite::Error) -> &'static str {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => "free space on its file system",
        Some(ErrorCode::OutOfMemory) => "free memory",
        _ => "check its file system, free space and quota,",
    }
}
