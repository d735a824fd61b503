//! Checks a file before it is used: that it is a journal, that its log has been applied and that it
//! is intact. All of these checks need the lock; see `lock`.

use std::io::{self, Read as _};
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};

use crate::lock::{Lock, with_suffix};
use crate::log::Log;
use crate::pages::{MAGIC, Pages};
use crate::place::{FileSystem, Place};
use crate::salvage::{self, RepairReport};
use crate::{StoreError, history, lease, reader, schema};

/// The length of the header of an SQLite file in bytes.
const HEADER_LEN: usize = 100;

/// How long to wait for other processes that have the file open during the check.
const FOLD_TIMEOUT: Duration = Duration::from_millis(100);

/// The state of a write-ahead log after an attempt to apply it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WalState {
    /// The log has been moved into the file.
    Whole,
    /// Another process reads the file. SQLite will apply the log later.
    InUse,
    /// SQLite reports that the file or the log is damaged, so the file may lack the contents of the
    /// log.
    Damaged,
}

/// Moves the write-ahead log into the file.
///
/// # Errors
///
/// Returns an error if the cause is not in the file itself. The file cannot be checked in that
/// case, because a half-written file may look truncated.
pub(crate) fn fold(place: &Place, given: &Path) -> Result<WalState, StoreError> {
    let folded = place.connect().and_then(|connection| {
        connection.busy_timeout(FOLD_TIMEOUT)?;
        connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
        // The last commit may be the mark that the file needs its log. If the file has errors, the
        // checkpoint reports them.
        if let Err(error) = history::mark_log(&connection, None) {
            tracing::debug!(%error, "cannot remove the mark that the journal needs its log");
        }
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| {
            row.get::<_, bool>(0)
        })
    });
    match folded {
        Ok(false) => Ok(WalState::Whole),
        Ok(true) => Ok(WalState::InUse),
        Err(error) if is_outside(&error) => Err(StoreError::NotNow {
            path: given.to_path_buf(),
            source: error,
        }),
        Err(error) => match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Ok(WalState::InUse),
            _ => Ok(WalState::Damaged),
        },
    }
}

/// Returns whether an error reveals nothing about the contents of the file.
fn is_outside(error: &rusqlite::Error) -> bool {
    // SQLITE_IOERR_SHORT_READ is a read past the end of a truncated file.
    let is_short = error
        .sqlite_error()
        .is_some_and(|error| error.extended_code == (10 | 2 << 8));
    !is_short
        && matches!(
            error.sqlite_error_code(),
            Some(
                ErrorCode::DiskFull
                    | ErrorCode::SystemIoFailure
                    | ErrorCode::CannotOpen
                    | ErrorCode::OutOfMemory
                    | ErrorCode::ReadOnly
                    | ErrorCode::PermissionDenied
                    | ErrorCode::FileLockingProtocolFailed
                    | ErrorCode::NoLargeFileSupport
            )
        )
}

/// Checks the file quickly. Drops the incomplete end of a truncated file, as is done for a log. For
/// any other damage, the user must decide.
pub(crate) fn heal_or_refuse(
    lock: &Lock,
    folded: WalState,
    given: &Path,
) -> Result<(), StoreError> {
    let pages = Pages::open(lock).map_err(unreadable(given))?;
    if pages.is_empty() {
        return Ok(());
    }
    let problems = pages.problems();
    if problems.is_empty() {
        return Ok(());
    }
    // The contents of the log were acknowledged, so only the user may decide to discard them.
    let has_log = folded == WalState::Damaged && pages.has_log();
    if !pages.is_cut() || has_log {
        return Err(StoreError::Damaged {
            path: given.to_path_buf(),
            problems,
        });
    }
    tracing::warn!("Journal contains not fully written data; they will be removed from the log");
    salvage::repair(lock, given, false).map(|_| ())
}

fn unreadable(path: &Path) -> impl Fn(io::Error) -> StoreError + '_ {
    move |error| StoreError::Open {
        path: path.to_path_buf(),
        reason: error.to_string(),
    }
}

/// Returns the problems of a file, one per line. The result is empty if the file is intact. A
/// server may be using the file.
///
/// # Errors
///
/// Returns an error if the file does not exist.
pub fn check(path: &Path) -> Result<Vec<String>, StoreError> {
    let by_sqlite = reader::open_for_reading(path)
        .map_err(|error| error.to_string())
        .and_then(|connection| reader::problems(&connection).map_err(|error| error.to_string()));
    let text = match by_sqlite {
        Ok(problems) => return Ok(problems),
        Err(text) => text,
    };
    let mut problems = match Lock::for_looking(path)? {
        Some(lock) => Pages::open(&lock).map_err(unreadable(path))?.problems(),
        // Pages that a server is currently writing would look damaged.
        None => vec!["a server uses the file; its pages cannot be checked".to_owned()],
    };
    problems.push(text);
    Ok(problems)
}

/// Repairs a file: keeps all rows that can be verified, and sets the damaged file aside. Does not
/// change an intact file, and returns `None` in that case.
///
/// # Errors
///
/// Returns an error if a server uses the file, if it is not a journal, or if there is not enough
/// disk space for the copy.
pub fn repair(path: &Path) -> Result<Option<RepairReport>, StoreError> {
    // This check comes first, so that no lock file is created next to a missing file.
    std::fs::metadata(path).map_err(unreadable(path))?;
    let lock = Lock::take(path)?;
    let place = Place {
        path: lock.path().to_path_buf(),
        file_system: FileSystem::of(lock.path()),
    };
    if std::fs::metadata(lock.path()).is_ok_and(|found| found.len() == 0) {
        // SQLite would delete the log.
        return salvage::repair(&lock, path, false).map(Some);
    }
    let is_mixed = history::is_log_of_another_time(lock.path());
    if is_mixed {
        salvage::set_log_aside(lock.path(), path)?;
    }
    let has_lost_log = history::missing_log(lock.path()).is_some();
    let has_damaged_log = history::damage_of_log(lock.path()).is_some();
    lease::look(&place, path)?;
    if has_damaged_log {
        // SQLite would delete the frames after the damage.
        return salvage::repair(&lock, path, true).map(Some);
    }
    if fold(&place, path)? == WalState::InUse {
        return Err(StoreError::InUse {
            path: path.to_path_buf(),
            owner: "it holds the lock of the file".to_owned(),
        });
    }
    let by_sqlite = place
        .read()
        .and_then(|connection| reader::problems(&connection));
    if by_sqlite.is_ok_and(|problems| problems.is_empty()) && !has_lost_log && !is_mixed {
        return Ok(None);
    }
    salvage::repair(&lock, path, has_lost_log).map(Some)
}

/// Returns the schema version of the file, or 0 if the file is empty.
pub(crate) fn check_header(lock: &Lock, place: &Place, given: &Path) -> Result<i32, StoreError> {
    let refuse = |reason: &str| StoreError::NotOurs {
        path: given.to_path_buf(),
        reason: reason.to_owned(),
    };
    let mut head = Vec::new();
    lock.open_raw()
        .and_then(|file| file.take(100).read_to_end(&mut head))
        .map_err(unreadable(given))?;
    if head.is_empty() {
        // SQLite deletes the log of an empty file. The store never creates an empty file that has a
        // log, so a valid log here indicates damage.
        return match Log::open(&with_suffix(lock.path(), "-wal")) {
            None => Ok(0),
            Some(_) => Err(StoreError::Damaged {
                path: given.to_path_buf(),
                problems: vec!["the file is empty, but its write-ahead log is not".to_owned()],
            }),
        };
    }
    if head.len() < HEADER_LEN && MAGIC.starts_with(head.get(..MAGIC.len()).unwrap_or(&head)) {
        // The file is a truncated journal.
        return Ok(0);
    }
    if head.iter().all(|byte| *byte == 0) {
        return Err(refuse(
            "it begins with zeros; if it was a journal, `hq journal check --repair` keeps the rest",
        ));
    }
    if !head.starts_with(MAGIC) || head.len() < HEADER_LEN {
        return Err(refuse("it is not an SQLite database"));
    }
    let number = |at: usize| {
        let bytes = head.get(at..at + 4).and_then(|b| b.try_into().ok());
        bytes.map_or(0, i32::from_be_bytes)
    };
    if number(68) == 0 && number(60) == 0 {
        // Either the first transaction of a journal is still in its log, or the database was
        // created by a program that does not set either number.
        return match place
            .open_for_peek()
            .and_then(|found| version_with_log(&found))
        {
            Ok(None) => Err(refuse("it is a database of another program")),
            Ok(Some(version)) => Ok(version),
            // Opening the file will report the error.
            Err(_) => Ok(0),
        };
    }
    if number(68) != schema::APPLICATION_ID {
        return Err(refuse("it is a database of another program"));
    }
    if number(60) > schema::version() {
        return Err(schema::too_new(given, number(60)));
    }
    Ok(number(60))
}

/// Returns the schema version, taking the write-ahead log into account. Returns `None` if the
/// database belongs to another program.
fn version_with_log(connection: &Connection) -> rusqlite::Result<Option<i32>> {
    let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
    let (id, version) = (number("application_id")?, number("user_version")?);
    let sql = "SELECT EXISTS (SELECT 1 FROM sqlite_schema)";
    let is_empty = !connection.query_row(sql, [], |row| row.get::<_, bool>(0))?;
    let is_ours = id == schema::APPLICATION_ID || (id == 0 && version == 0 && is_empty);
    Ok(is_ours.then_some(version))
}
