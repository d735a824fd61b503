//! Records how the last server of a store ended, and whether a file still has its write-ahead log.
//!
//! Both are stored in rows of `meta`. The transactions that store the start and the end of a server
//! set `ending`. `log_of` contains the name of the file, as text if the file needs its log, and as
//! a blob if it does not. The writer commits the text and moves it into the file. The first commit
//! in the new log turns it into a blob. A file with the text but without a log has therefore lost
//! its log. If a program such as `sqlite3` moves the log into the file, the blob is moved with it.
//!
//! If the writer is killed between these two commits and such a program opens the file next, the
//! text remains although nothing was lost. `hq journal check --repair` removes it.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension as _};

use crate::lock::with_suffix;
use crate::log::Log;
use crate::place::{FileSystem, Place};
use crate::{StoreError, meta};

const ENDING: &str = "ending";
/// The key that marks a store created by `--fresh`: its server is the last one of its directory,
/// even if it is never used.
const FRESH: &str = "fresh";
/// The key for the number of the next event when the log was started. A file with its own log has
/// at least this number.
pub(crate) const LOG_BASE: &str = "log_base";
/// The key for the name of the file.
const LOG_OF: &str = "log_of";

/// How the last server of a store ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// The server is still running, or it did not shut down properly: a crash, a power loss or a
    /// failed store.
    Running,
    /// The server was stopped together with its workers.
    Stopped,
    /// The server was shut down properly, and its workers wait for the next one.
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

/// Facts about the earlier servers of a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct History {
    /// How the last server ended.
    pub ending: Ending,
    /// Whether the store has ever contained a job, a worker, an allocation queue or a token, or was
    /// created by `--fresh`.
    pub is_used: bool,
    /// Whether `--fresh` created the store.
    pub is_fresh: bool,
    /// The number of jobs that are not completed.
    pub unfinished_jobs: u64,
}

impl History {
    /// The history of an empty file.
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
            // Earlier releases do not record how a server ended. Assuming that its workers were
            // kept loses nothing.
            Some(_) | None => Ending::Kept,
        };
        let has_row = |sql| connection.query_row(sql, [], |row| row.get::<_, bool>(0));
        let is_fresh = meta::text(connection, FRESH)?.is_some();
        let is_used = meta::number(connection, "last_job")? > 0
            || meta::number(connection, "last_worker")? > 0
            || has_row("SELECT EXISTS (SELECT 1 FROM job_data)")?
            // The first versions do not have a table of queues.
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

/// Records how the server ended, or that it is running.
pub(crate) fn set_ending(connection: &Connection, ending: Ending) -> rusqlite::Result<()> {
    meta::set(connection, ENDING, ending.name())
}

/// Records that the file at this path needs its log, which starts now. With `None`, records that
/// the file does not need it.
///
/// Recording the latter changes one page, because a blob replaces text of the same length. If it is
/// committed in a separate transaction, it is one frame of the log. [`Log::damage`] relies on this.
pub(crate) fn mark_log(connection: &Connection, file: Option<&PathBuf>) -> rusqlite::Result<()> {
    match file.and_then(|file| file.file_name()) {
        Some(name) => {
            let next_seq = meta::number(connection, "next_seq")?;
            meta::set(connection, LOG_BASE, next_seq)?;
            meta::set(connection, LOG_OF, name.to_string_lossy())
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
    meta::set(connection, FRESH, "yes")
}

/// Rejects a log without its file, a file that was copied or moved without its log, a log that
/// contains commits after damage, and a file with a log from a different time.
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

/// Rejects companion files that do not belong to this user, root, or the owner of the file, because
/// SQLite would read the contents of the file from them.
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

/// Returns whether the log ends before the state of the file, or begins after it. In that case, the
/// two were copied at different times, and SQLite would mix their pages. Returns `false` if this
/// cannot be determined.
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
        // Keep this order: a server may be writing at the same time, and all three numbers only
        // increase.
        let base = meta::number(&both, LOG_BASE)?;
        let file = meta::number(&Place::read_unchanging(path)?, "next_seq")?;
        let end = meta::number(&both, "next_seq")?;
        // If the file has no tables, its log contains all of them.
        Ok(file > 0 && (file < base || file > end))
    };
    // If a file cannot be read, opening it reports the error.
    compare().unwrap_or(false)
}

fn has_content(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.is_file() && found.len() > 0)
}

/// Returns the name of the missing log of the file at `path`. Returns `None` if no log is missing
/// or the file cannot be read.
pub(crate) fn missing_log(path: &Path) -> Option<PathBuf> {
    let is_alone = || has_content(path) && !has_content(&with_suffix(path, "-wal"));
    let log = is_alone().then(|| log_of(path))??;
    // A server of an earlier release does not take the lock and may have started its log in the
    // meantime.
    is_alone().then(|| with_suffix(Path::new(&log), "-wal"))
}

/// Returns the position of damage in the log that hides commits. SQLite would drop these commits
/// without an error.
pub(crate) fn damage_of_log(path: &Path) -> Option<u64> {
    let is_needed = has_content(path) && log_of(path).is_some();
    Log::damage(&with_suffix(path, "-wal"), is_needed)
}

/// Returns the name that the file at `path` had when it began to need its log. Returns `None` if it
/// does not need a log or cannot be read.
fn log_of(path: &Path) -> Option<String> {
    // An ordinary connection would create an empty log and leave it behind.
    let connection = Place::read_unchanging(path).ok()?;
    let sql = "SELECT value FROM meta WHERE key = ? AND typeof(value) = 'text'";
    let marked = connection.query_row(sql, [LOG_OF], |row| row.get(0));
    marked.optional().ok()?
}
