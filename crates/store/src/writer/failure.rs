//! Classifies errors that SQLite reports while a journal is being written.

use rusqlite::ErrorCode;

/// Returns whether a retry may succeed: the disk is full, or another process has locked the file.
pub(super) fn is_passing(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    ) || is_write_refused(error)
}

/// Returns whether a write failed without doing harm, because of a full disk or a quota. A failed
/// sync is not harmless.
fn is_write_refused(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    // SQLITE_IOERR_WRITE, SQLITE_IOERR_SHMSIZE, SQLITE_IOERR_TRUNCATE
    code.is_some_and(|code| [10 | 3 << 8, 10 | 19 << 8, 10 | 6 << 8].contains(&code))
}

/// Returns whether data that should have been synced may be missing on disk.
pub(super) fn is_failed_sync(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    // SQLITE_IOERR_FSYNC, SQLITE_IOERR_DIR_FSYNC
    code.is_some_and(|code| [10 | 4 << 8, 10 | 5 << 8].contains(&code))
}
