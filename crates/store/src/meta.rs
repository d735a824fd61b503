//! The table `meta`: one value for each key.

use hq_core::id::WorkerId;
use rusqlite::{Connection, OptionalExtension as _, params};

/// The text of a key, if it is there.
pub(crate) fn text(connection: &Connection, key: &str) -> rusqlite::Result<Option<String>> {
    let sql = "SELECT CAST(value AS TEXT) FROM meta WHERE key = ?";
    connection
        .query_row(sql, [key], |row| row.get(0))
        .optional()
}

/// The number of a key, 0 if it is not there.
pub(crate) fn number(connection: &Connection, key: &str) -> rusqlite::Result<i64> {
    let sql = "SELECT CAST(value AS INTEGER) FROM meta WHERE key = ?";
    let found = connection
        .query_row(sql, [key], |row| row.get(0))
        .optional()?;
    Ok(found.unwrap_or(0))
}

/// Sets a number of the table `meta`.
pub(crate) fn set_number(connection: &Connection, key: &str, value: i64) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO meta VALUES (?, ?)")?
        .execute(params![key, value])?;
    Ok(())
}

/// Forgets a key.
pub(crate) fn remove(connection: &Connection, key: &str) -> rusqlite::Result<()> {
    connection
        .prepare_cached("DELETE FROM meta WHERE key = ?")?
        .execute([key])?;
    Ok(())
}

/// Forgets all keys that begin with this, which ends in `_`.
pub(crate) fn remove_all(connection: &Connection, prefix: &str) -> rusqlite::Result<()> {
    // Up to the byte behind `_`: a range of the primary key.
    connection
        .prepare_cached(
            "DELETE FROM meta WHERE key >= ?1 AND key < substr(?1, 1, length(?1) - 1) || '`'",
        )?
        .execute([prefix])?;
    Ok(())
}

/// What follows this in keys, and the number of each of them.
pub(crate) fn numbers(
    connection: &Connection,
    prefix: &str,
) -> rusqlite::Result<Vec<(String, i64)>> {
    let sql = "SELECT substr(key, length(?1) + 1), CAST(value AS INTEGER) FROM meta \
               WHERE substr(key, 1, length(?1)) = ?1 ORDER BY key";
    let mut statement = connection.prepare(sql)?;
    let rows = statement.query_map([prefix], |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.collect()
}

/// Begin of the keys of problems that are acknowledged: how much of each there was.
pub(crate) const ACKNOWLEDGED: &str = "acknowledged_";
/// Begin of the keys of jobs that were submitted again: as which job.
pub(crate) const RESUBMITTED: &str = "resubmitted_";

/// Begin of the keys of submits that a later attempt of their task made once more, `<job>_<number>`: which attempt.
pub(crate) const REPEATED: &str = "repeated_";

/// Key of the table `meta` that is there while a worker drains.
pub(crate) fn draining_key(worker: WorkerId) -> String {
    format!("draining_{worker}")
}
