//! Records how the last server of a store ended, and whether a file still has its write-ahead log.
//!
//! Both are rows of `meta`. The transactions that store the start and the end of a server set
//! `ending`. `log_of` holds the name of the file: as a text if the file needs its log, as a blob if
//! it does not. The writer commits the text and moves it into the file. The first commit in the log
//! that follows turns it into a blob. So a file with the text and without a log has lost its log,
//! and a program that moves the log into the file, such as `sqlite3`, brings the blob along.
//!
//! If the writer is killed between these two commits and such a program opens the file next, the
//! text stays although nothing is lost. `hq journal check --repair` removes it.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension as _};

use crate::lock::with_suffix;
use crate::log::Log;
use crate::place::{FileSystem, Place};
use crate::{StoreError, meta};

const ENDING: &str = "ending";
/// Key of a store that `--fresh` created: its server is the last one of its directory, even if it
/// is never used.
const FRESH: &str = "fresh";
/// Key of the number of the next event when the log began. A file with its own log has at least
/// this number.
pub(crate) const LOG_BASE: &str = "log_base";
/// Key of the name of the file.
const LOG_OF: &str = "log_of";

/// How the last server of a store ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The server still runs, or did not end in order: a crash, a power loss, a failed store.
    Running,
    /// The server was stopped together with its workers.
    Stopped,
    /// The server ended in order, and its workers wait for the next one.
    Kept,
}

impl Ending {
    const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::Kept => "kept",
        }
    }
}

/// Facts about earlier servers of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct History {
    /// End of the last server.
    pub ending: Ending,
    /// Whether the store ever had a job, a worker, an allocation queue or a token, or `--fresh`
    /// created it.
    pub is_used: bool,
    /// Whether `--fresh` created the store.
    pub is_fresh: bool,
    /// Jobs that are not completed.
    pub unfinished_jobs: u64,
}

impl History {
    /// History of an empty file.
    pub(crate) const EMPTY: Self = Self {
        ending: Ending::Running,
        is_used: false,
        is_fresh: false,
        unfinished_jobs: 0,
    };

    pub(crate) fn read(connection: &Connection) -> rusqlite::Result<Self> {
        let version: i32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        if version == 0 {
            return Ok(Self::EMPTY);
        }
        let ending = match meta::text(connection, ENDING)?.as_deref() {
            Some("stopped") => Ending::Stopped,
            Some("running") => Ending::Running,
            // Earlier releases do not record the ending. Continuing loses nothing.
            Some(_) | None => Ending::Kept,
        };
        let has_row = |sql| connection.query_row(sql, [], |row| row.get::<_, bool>(0));
        let is_fresh = meta::text(connection, FRESH)?.is_some();
        let is_used = meta::number(connection, "last_job")? > 0
            || meta::number(connection, "last_worker")? > 0
            || has_row("SELECT EXISTS (SELECT 1 FROM job_data)")?
            // The first versions have no table of queues.
            || has_row("SELECT EXISTS (SELECT 1 FROM queue_data)").unwrap_or(false)
            || !meta::texts(connection, meta::TOKEN)?.is_empty()
            || is_fresh;
        Ok(Self {
            ending,
            is_used,
            is_fresh,
            unfinished_jobs: unfinished_jobs(connection)?,
        })
    }
}

pub(crate) fn unfinished_jobs(connection: &Connection) -> rusqlite::Result<u64> {
    let sql = "SELECT count(*) FROM job_data WHERE completed_unix_ns IS NULL AND is_forgotten = 0";
    connection.query_row(sql, [], |row| row.get::<_, i64>(0).map(i64::unsigned_abs))
}

/// Records how the server ended, or that it runs.
pub(crate) fn set_ending(connection: &Connection, ending: Ending) -> rusqlite::Result<()> {
    meta::set_text(connection, ENDING, ending.name())
}

/// Records that the file at this path needs its log, which begins now, or, with `None`, that it
/// does not.
///
/// The latter changes one page: a blob takes the place of a text of the same length. In a
/// transaction of its own it is one frame of the log, and [`Log::damage`] relies on that.
pub(crate) fn mark_log(connection: &Connection, file: Option<&PathBuf>) -> rusqlite::Result<()> {
    match file.and_then(|file| file.file_name()) {
        Some(name) => {
            let next_seq = meta::number(connection, "next_seq")?;
            meta::set_number(connection, LOG_BASE, next_seq)?;
            meta::set_text(connection, LOG_OF, &name.to_string_lossy())
        }
        None => {
            let sql = "UPDATE meta SET value = CAST(value AS BLOB) WHERE key = ? AND typeof(value) = 'text'";
            connection.prepare_cached(sql)?.execute([LOG_OF])?;
            Ok(())
        }
    }
}

/// Records that `--fresh` created the store.
pub(crate) fn note_fresh(connection: &Connection) -> rusqlite::Result<()> {
    meta::set_text(connection, FRESH, "yes")
}

/// Refuses a log without its file, a file that was copied or moved without its log, a log with
/// commits after damage, and a file with a log from another time.
pub(crate) fn check_companions(path: &Path, given: &Path) -> Result<(), StoreError> {
    check_owners(path, given)?;
    let is_there = |path: &Path| std::fs::symlink_metadata(path).is_ok();
    if !is_there(path) && Log::open(&with_suffix(path, "-wal")).is_some() {
        return Err(StoreError::OnlyLog {
            path: given.to_path_buf(),
        });
    }
    if let Some(log) = missing_log(path) {
        return Err(StoreError::LogMissing {
            path: given.to_path_buf(),
            log,
        });
    }
    if let Some(at) = damage_of_log(path) {
        return Err(StoreError::LogDamaged {
            path: given.to_path_buf(),
            at,
        });
    }
    if is_log_of_another_time(path) {
        return Err(StoreError::LogMismatch {
            path: given.to_path_buf(),
        });
    }
    Ok(())
}

/// Refuses companion files of any user but this one, root, or the owner of the file: SQLite would
/// take the content of the file from them.
fn check_owners(path: &Path, given: &Path) -> Result<(), StoreError> {
    let owner = |path: &Path| Some(std::fs::symlink_metadata(path).ok()?.uid());
    let user = rustix::process::geteuid().as_raw();
    let trusted = [Some(user), Some(0), owner(path)];
    for suffix in ["-wal", "-shm", "-journal"] {
        let companion = with_suffix(path, suffix);
        let found = owner(&companion);
        if let Some(other) = found.filter(|_| !trusted.contains(&found)) {
            return Err(StoreError::NotOurs {
                path: given.to_path_buf(),
                reason: format!(
                    "`{}` belongs to user {other}, who could change the journal through it; remove that file",
                    companion.display()
                ),
            });
        }
    }
    Ok(())
}

/// Whether the log ends before the state of the file, or begins after it. One of them was copied at
/// another time, and SQLite would mix pages of both. `false` if that cannot be determined.
pub(crate) fn is_log_of_another_time(path: &Path) -> bool {
    if !has_content(path) || !has_content(&with_suffix(path, "-wal")) {
        return false;
    }
    let place = Place {
        path: path.to_path_buf(),
        file_system: FileSystem::of(path),
    };
    let compare = || -> rusqlite::Result<bool> {
        let both = place.peek()?;
        // Keep this order: a server may write meanwhile, and all three numbers only grow.
        let base = meta::number(&both, LOG_BASE)?;
        let file = meta::number(&Place::read_unchanging(path)?, "next_seq")?;
        let end = meta::number(&both, "next_seq")?;
        // The log of a file without tables contains all of them.
        Ok(file > 0 && (file < base || file > end))
    };
    // The open reports unreadable files.
    compare().unwrap_or(false)
}

fn has_content(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() > 0)
}

/// Name of the log that belongs to the file at `path` and is missing; `None` = no log is missing,
/// or the file cannot be read.
pub(crate) fn missing_log(path: &Path) -> Option<PathBuf> {
    let is_alone = || has_content(path) && !has_content(&with_suffix(path, "-wal"));
    let log = is_alone().then(|| log_of(path))??;
    // A server of an earlier release takes no lock and may have begun its log meanwhile.
    is_alone().then(|| with_suffix(Path::new(&log), "-wal"))
}

/// Position of damage in the log that hides commits. SQLite would drop them without an error.
pub(crate) fn damage_of_log(path: &Path) -> Option<u64> {
    let is_needed = has_content(path) && log_of(path).is_some();
    Log::damage(&with_suffix(path, "-wal"), is_needed)
}

/// Name of the file at `path` when it began to need its log; `None` = it needs none, or cannot be
/// read.
fn log_of(path: &Path) -> Option<String> {
    // An ordinary connection would create an empty log and leave it behind.
    let connection = Place::read_unchanging(path).ok()?;
    let sql = "SELECT value FROM meta WHERE key = ? AND typeof(value) = 'text'";
    let marked = connection.query_row(sql, [LOG_OF], |row| row.get(0));
    marked.optional().ok()?
}
