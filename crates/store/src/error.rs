//! Why a store cannot be used, in words for people.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

/// Why a store cannot be used. `Display` is complete; causes are behind it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be made or opened.
    #[error("Cannot create event log file at `{}`: {source}", .path.display())]
    Create {
        /// Path of the file.
        path: PathBuf,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The file cannot be read.
    #[error("Cannot open event log file at `{}`: {reason}", .path.display())]
    Open {
        /// Path of the file.
        path: PathBuf,
        /// Reason, for people.
        reason: String,
    },
    /// The file is something else, or of a later version; it was not touched.
    #[error("Cannot use `{}` as a journal: {reason}", .path.display())]
    NotOurs {
        /// Path of the file.
        path: PathBuf,
        /// Content or version that was found.
        reason: String,
    },
    /// Parts of the file are not what they should be.
    #[error("The journal `{}` is damaged: {}{}; run `hq journal check --repair {}`, which keeps what can be proven and says what is lost", .path.display(), .problems.first().map_or("", String::as_str), more(.problems), .path.display())]
    Damaged {
        /// Path of the file.
        path: PathBuf,
        /// The problems; at least one.
        problems: Vec<String>,
    },
    /// The file was copied or moved without its log, in which the last commits are.
    #[error("The journal `{path}` is not whole: it was copied or moved without its write-ahead log `{log}`, which has the last changes; put the log beside it as `{path}-wal`, or, if the log is lost, run `hq journal check --repair {path}`, which does without it. (`hq journal flush` makes the file of a running server whole.)", path = .path.display(), log = .log.display())]
    LogMissing {
        /// Path of the file.
        path: PathBuf,
        /// Earlier name of the log, without its directory.
        log: PathBuf,
    },
    /// The log has commits behind damage.
    #[error("The write-ahead log `{path}-wal` of the journal `{path}` is damaged at byte {at}: the changes behind it, which were stored, cannot be read; restore both files from a copy of one time, or run `hq journal check --repair {path}`, which keeps the changes before it and sets the log aside", path = .path.display())]
    LogDamaged {
        /// Path of the file.
        path: PathBuf,
        /// Position in the log.
        at: u64,
    },
    /// File and log are of different times.
    #[error("The journal `{path}` and the write-ahead log `{path}-wal` beside it were copied at different times and do not belong together; put the log of that time there; if the file was copied after `hq journal flush`, it needs none: move `{path}-wal` and `{path}-shm` away; `hq journal check --repair {path}` does that and says what is lost", path = .path.display())]
    LogMismatch {
        /// Path of the file.
        path: PathBuf,
    },
    /// The log is there and the file is not.
    #[error("The journal `{path}` is gone, but its write-ahead log `{path}-wal` is there; put the journal back, or remove `{path}-wal` and `{path}-shm` to begin a new one", path = .path.display())]
    OnlyLog {
        /// Path of the file.
        path: PathBuf,
    },
    /// Another server writes the file.
    #[error("The journal `{}` is used by another server ({owner}); stop that server first", .path.display())]
    InUse {
        /// Path of the file.
        path: PathBuf,
        /// Host and process.
        owner: String,
    },
    /// Nothing seems wrong with the file, but it cannot be opened now.
    #[error("The journal `{}` cannot be opened at present: {source}; nothing in it was changed; {} and start again", .path.display(), advice(.source))]
    NotNow {
        /// Path of the file.
        path: PathBuf,
        /// Error of SQLite.
        source: rusqlite::Error,
    },
    /// The state does not fit into memory.
    #[error("The state in the journal `{}` is too large for the memory that is left here; nothing in it was changed; make memory available, or start the server on a machine or in a control group with more of it", .path.display())]
    TooLarge {
        /// Path of the file.
        path: PathBuf,
    },
    /// Without locks nothing keeps two servers from writing one file.
    #[error("The file system of `{}` offers no file locks ({source}), so two servers could write one journal; use `hq server start --journal PATH` with a file on another file system, such as a local disk, or have this one mounted with locks", .path.display())]
    NoLocks {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// SQLite refused.
    #[error("The journal `{}` cannot be read or written: {source}", .path.display())]
    Sql {
        /// Path of the file.
        path: PathBuf,
        /// Error of SQLite.
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

/// Remedy for an error that is not the file's.
fn advice(error: &rusqlite::Error) -> &'static str {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => "make room on its file system",
        Some(ErrorCode::OutOfMemory) => "make memory available",
        _ => "see that there is room and quota left and its file system works,",
    }
}
