//! Reads the store while the writer is running: read-only SQL from users, and the queries of
//! dashboards and reports as statements with typed rows.

pub mod report;
pub mod run;
pub mod timeline;
mod usage;

use std::path::Path;

use rusqlite::{Connection, ErrorCode};

use crate::lock::expect_regular;
use crate::statement::each;
use crate::{StoreError, encode, history, meta, place, schema, stretch};

pub use crate::encode::failure_words;
pub use crate::query::{QueryLimits, RESULT_LEN_MAX, Table, query};
pub use crate::runs::{StepRow, steps};
pub use usage::{UsageStep, cpus_of, usage};

/// Opens a store for reading while a server may be writing to it.
///
/// # Errors
///
/// Returns an error if the file does not exist or is not a journal.
pub fn open_for_reading(path: &Path) -> Result<Connection, StoreError> {
    let failed = |reason: String| StoreError::Open {
        path: path.to_path_buf(),
        reason,
    };
    let not_ours = |reason: &str| StoreError::NotOurs {
        path: path.to_path_buf(),
        reason: reason.to_owned(),
    };
    let found = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?;
    expect_regular(&found).map_err(|error| failed(error.to_string()))?;
    if found.len() == 0 {
        // SQLite would delete the log, which may contain all the data.
        return Err(failed("it is empty".to_owned()));
    }
    history::check_companions(path, path)?;
    let (connection, numbers) =
        place::connect_for_reading(path).map_err(|error| failed(error.to_string()))?;
    match numbers {
        Ok((schema::APPLICATION_ID, version)) if version > schema::version() => {
            Err(failed(schema::too_new(path, version).to_string()))
        }
        Ok((schema::APPLICATION_ID, version)) if version > 0 => Ok(fast(connection)),
        Ok((0, 0)) => Err(failed("it is not a journal".to_owned())),
        Ok(_) => Err(failed(
            not_ours("it is a database of another program").to_string(),
        )),
        Err(error) => Err(failed(match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => not_ours("it is not an SQLite database").to_string(),
            Some(ErrorCode::DatabaseBusy) => {
                "a server has locked it, as required on a file system shared by several hosts. Query that server with `hq query` or `hq journal replay`"
                    .to_owned()
            }
            _ => error.to_string(),
        })),
    }
}

/// Returns the same connection with faster views.
pub(crate) fn fast(connection: Connection) -> Connection {
    if let Err(error) = stretch::read_fast(&connection) {
        // The views of the file return the same rows. If the file is damaged, queries report it.
        tracing::debug!(%error, "cannot install faster views of the journal");
    }
    connection
}

/// Returns the number of jobs that are not completed.
///
/// # Errors
///
/// Returns an error if the file is not a journal or cannot be read.
pub fn unfinished_jobs(path: &Path) -> Result<u64, StoreError> {
    history::unfinished_jobs(&open_for_reading(path)?).map_err(StoreError::sql(path))
}

/// Returns the number of tasks that have their own row. Finished tasks move into stretches, either
/// immediately or by compaction.
///
/// # Errors
///
/// Returns an error if the file is not a journal of this release or cannot be read.
pub fn task_rows(path: &Path) -> Result<u64, StoreError> {
    let sql = "SELECT count(*) FROM task_row_data";
    open_for_reading(path)?
        .query_row(sql, [], |row| row.get(0))
        .map(i64::unsigned_abs)
        .map_err(StoreError::sql(path))
}

/// Returns the findings of an integrity check. The result is empty if the file is intact.
///
/// # Errors
///
/// Returns an error if the file cannot be read.
pub fn problems(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare("PRAGMA integrity_check(1000)")?;
    let rows = statement.query_map([], |row| row.get(0))?;
    let mut problems: Vec<String> = rows.collect::<Result<_, _>>()?;
    problems.retain(|problem| problem != "ok");
    let sql = "SELECT job, number, spec, spec_check FROM submit_data";
    each(connection, sql, |row| {
        let check: i64 = row.get(3)?;
        if encode::checksum(row.get_ref(2)?.as_blob().unwrap_or_default()) != check {
            let (job, number): (u32, u32) = (row.get(0)?, row.get(1)?);
            problems.push(format!("submit {number} of job {job} is corrupt"));
        }
        Ok(())
    })?;
    for (job, first) in stretch::broken(connection)? {
        problems.push(format!(
            "results of job {job} from task {first} on are corrupt"
        ));
    }
    let sql = "SELECT count(*) FROM event_log WHERE NOT json_valid(data)";
    let broken: u32 = connection.query_row(sql, [], |row| row.get(0))?;
    if broken > 0 {
        problems.push(format!("{broken} events are corrupt"));
    }
    Ok(problems)
}

/// Returns the acknowledged problems with the extent of each.
///
/// # Errors
///
/// Returns a human-readable message, if the file cannot be read.
pub fn acknowledged(connection: &Connection) -> Result<Vec<(String, u64)>, String> {
    let found = meta::numbers(connection, meta::ACKNOWLEDGED)
        .map_err(|error| format!("the journal cannot be read: {error}"))?;
    let row = |(problem, part): (String, i64)| (problem, u64::try_from(part).unwrap_or(0));
    Ok(found.into_iter().map(row).collect())
}

/// Returns whether the reason why a worker ended means that it was lost.
#[must_use]
pub fn is_lost_name(reason: &str) -> bool {
    hq_core::outcome::LostReason::from_name(reason)
        .is_some_and(hq_core::outcome::LostReason::is_lost)
}

/// The upper bounds of the bins for run times, in µs. One more bin has no upper bound.
pub const RUN_BOUNDS: [u64; 13] = [
    1_000,
    10_000,
    100_000,
    300_000,
    1_000_000,
    3_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    300_000_000,
    1_800_000_000,
    7_200_000_000,
    86_400_000_000,
];

/// Lists the columns of all views that queries may use. Views whose names end in `_data` are
/// omitted, because they may change with each release.
pub const VIEWS: &str = "SELECT m.name AS view, c.name AS \"column\" FROM sqlite_schema m, \
                         pragma_table_info(m.name) c WHERE m.type = 'view' \
                         AND m.name NOT GLOB '*_data' ORDER BY m.name, c.cid";

/// Returns an SQL expression for a task's bin of [`RUN_BOUNDS`].
#[must_use]
fn run_bin_sql() -> String {
    let mut bin = String::from("CASE");
    for (number, bound) in RUN_BOUNDS.iter().enumerate() {
        bin.push_str(&format!(" WHEN run_us <= {bound} THEN {number}"));
    }
    bin.push_str(&format!(" ELSE {} END", RUN_BOUNDS.len()));
    bin
}

/// The maximum number of failures of a job that dashboards list.
pub const FAILURES_MAX: u32 = 200;

#[cfg(test)]
mod tests;
