//! Classifies errors of SQLite for a journal that is being written.

use rusqlite::ErrorCode;

/// Whether the same may work later: there is no room, or somebody else has the file locked.
pub(super) fn is_passing(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    ) || is_write_refused(error)
}

/// A write that failed without harm: no room, no quota. A failed sync is not one of them.
fn is_write_refused(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    // SQLITE_IOERR_WRITE, SQLITE_IOERR_SHMSIZE, SQLITE_IOERR_TRUNCATE
    code.is_some_and(|code| [10 | 3 << 8, 10 | 19 << 8, 10 | 6 << 8].contains(&code))
}

/// Whether something that was to be on disk may not be there.
pub(super) fn is_failed_sync(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    // SQLITE_IOERR_FSYNC, SQLITE_IOERR_DIR_FSYNC
    code.is_some_and(|code| [10 | 4 << 8, 10 | 5 << 8].contains(&code))
}
