//! Reading beside the writer: SQL of users that can only read, and what dashboards and reports share.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use serde_json::{Value, json};

use crate::lock::{expect_regular, with_suffix};
use crate::{StoreError, encode, load, schema};

/// Steps of SQLite's machine between two looks at the clock.
const PROGRESS_STEPS: i32 = 10_000;
/// Longest value that a query may make or show. One call of a function cannot be interrupted, and how long one takes follows
/// from the length of its values; a row of ours with a longer one can still be read but for that.
const VALUE_LEN_MAX: i32 = 8 << 20;
/// Bytes of a result that a server holds in memory for one query.
pub const RESULT_LEN_MAX: u64 = 64 << 20;
/// Bytes that a value takes in memory beside its text.
const VALUE_SIZE: u64 = size_of::<Value>() as u64;

/// Opens a store for reading; a server may write it at the same time.
///
/// # Errors
///
/// If there is no such file or it is not a store of ours.
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
        // SQLite would delete the log beside it, in which everything may be.
        return Err(failed("it is empty".to_owned()));
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection =
        Connection::open_with_flags(path, flags).map_err(|error| failed(error.to_string()))?;
    // SQLite is asked, and the file not opened beside it: this process may hold locks on it, which closing any
    // descriptor of it would drop.
    let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
    let numbers = number("application_id").and_then(|id| Ok((id, number("user_version")?)));
    match numbers {
        Ok((schema::APPLICATION_ID, version)) if version > schema::version() => {
            Err(failed(schema::too_new(path, version).to_string()))
        }
        Ok((schema::APPLICATION_ID, version)) if version > 0 => Ok(connection),
        Ok((0, 0)) => Err(failed("it is not a journal".to_owned())),
        Ok(_) => Err(failed(
            not_ours("it is a database of another program").to_string(),
        )),
        Err(error) => Err(failed(match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase) => not_ours("it is not an SQLite database").to_string(),
            Some(ErrorCode::DatabaseBusy) => {
                "a server has it for itself, as is necessary on a file system that several \
                 hosts share; ask that server with `hq query` or `hq journal replay`"
                    .to_owned()
            }
            _ => error.to_string(),
        })),
    }
}

/// Whether a server has ever kept its state in a file. A start that failed may have left one in which nothing is.
///
/// # Errors
///
/// If that cannot be told, because the file is damaged, in use or no store of ours.
pub fn was_used(path: &Path) -> Result<bool, StoreError> {
    let len = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.len());
    if len(path) == 0 {
        return Ok(len(&with_suffix(path, "-wal")) > 0);
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let found = Connection::open_with_flags(path, flags).and_then(|connection| {
        let version: i32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
        Ok(version > 0 && load::is_used(&connection)?)
    });
    found.map_err(StoreError::sql(path))
}

/// Number of jobs that are not completed.
///
/// # Errors
///
/// If the file is not a store of ours or cannot be read.
pub fn unfinished_jobs(path: &Path) -> Result<u64, StoreError> {
    let sql = "SELECT count(*) FROM jobs WHERE completed_unix_ns IS NULL";
    open_for_reading(path)?
        .query_row(sql, [], |row| row.get(0))
        .map(i64::unsigned_abs)
        .map_err(|error| StoreError::Open {
            path: path.to_path_buf(),
            reason: error.to_string(),
        })
}

/// What an integrity check found; empty if the file is whole.
///
/// # Errors
///
/// If the file cannot be read.
pub fn problems(connection: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare("PRAGMA integrity_check(1000)")?;
    let rows = statement.query_map([], |row| row.get(0))?;
    let mut problems: Vec<String> = rows.collect::<Result<_, _>>()?;
    problems.retain(|problem| problem != "ok");
    let mut statement =
        connection.prepare("SELECT job, number, spec, spec_check FROM submit_data")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let check: i64 = row.get(3)?;
        if encode::checksum(row.get_ref(2)?.as_blob().unwrap_or_default()) != check {
            let (job, number): (u32, u32) = (row.get(0)?, row.get(1)?);
            problems.push(format!(
                "submit {number} of job {job} is not what was written"
            ));
        }
    }
    let sql = "SELECT count(*) FROM event_log WHERE NOT json_valid(data)";
    let broken: u32 = connection.query_row(sql, [], |row| row.get(0))?;
    if broken > 0 {
        problems.push(format!("{broken} events are not what was written"));
    }
    Ok(problems)
}

/// What went wrong, in words, out of the columns `outcome` and `message` of a task that failed.
#[must_use]
pub fn failure_text(outcome: i64, message: Option<&str>) -> String {
    let text = encode::outcome_of(outcome, message.map(str::to_owned)).error_text();
    if text.is_empty() {
        "killed".to_owned()
    } else {
        text
    }
}

/// The same in a few words: `exit code 7`.
#[must_use]
pub fn failure_words(outcome: i64, message: Option<&str>) -> String {
    use hq_core::outcome::Outcome;
    match encode::outcome_of(outcome, message.map(str::to_owned)) {
        Outcome::TimeLimit => "time limit reached".to_owned(),
        Outcome::OutOfMemory(_) => "out of memory".to_owned(),
        Outcome::Message(text) => text.lines().next().unwrap_or_default().to_owned(),
        Outcome::Signal(signal) => format!("killed by signal {signal}"),
        Outcome::ExitCode(code) => format!("exit code {code}"),
        Outcome::Finished | Outcome::Killed => "killed".to_owned(),
    }
}

/// Upper bounds in µs of the bins into which run times are sorted; one more bin is without bound.
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

/// Number of the bin of [`RUN_BOUNDS`] into which a task falls, as an expression.
#[must_use]
pub fn run_bin_sql() -> String {
    let mut bin = String::from("CASE");
    for (number, bound) in RUN_BOUNDS.iter().enumerate() {
        bin.push_str(&format!(" WHEN run_us <= {bound} THEN {number}"));
    }
    bin.push_str(&format!(" ELSE {} END", RUN_BOUNDS.len()));
    bin
}

/// Failures of a job that dashboards list.
pub const FAILURES_MAX: u32 = 200;

/// Bounds of one query.
#[derive(Clone, Copy, Debug)]
pub struct QueryLimits {
    /// Longest run.
    pub time: Duration,
    /// Most rows; what is beyond is left out.
    pub rows: u64,
    /// Most bytes, about; a larger result is an error.
    pub bytes: u64,
}

/// Result of a query; values as JSON: numbers, texts, null, and blobs as hexadecimal text.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Table {
    /// Names of the columns.
    pub columns: Vec<String>,
    /// Rows, as long as `columns` each.
    pub rows: Vec<Vec<Value>>,
    /// Whether rows were left out.
    pub is_cut: bool,
}

/// Runs one statement that only reads, on a connection of its own.
///
/// # Errors
///
/// A sentence for users.
pub fn query(connection: &Connection, sql: &str, limits: QueryLimits) -> Result<Table, String> {
    let text = |error: rusqlite::Error| match error.sqlite_error_code() {
        Some(ErrorCode::OperationInterrupted) => format!(
            "the query took longer than {} s and was stopped; narrow it or raise --time-limit",
            limits.time.as_secs()
        ),
        Some(ErrorCode::AuthorizationForStatementDenied) => {
            "only SELECT is possible; a query cannot change, attach or read anything else"
                .to_owned()
        }
        Some(ErrorCode::TooBig) => format!(
            "a value in it is longer than {} MiB; select less of it, e.g. with substr() or length()",
            VALUE_LEN_MAX >> 20
        ),
        _ => error.to_string(),
    };
    connection
        .pragma_update(None, "query_only", true)
        .map_err(text)?;
    connection
        .set_limit(Limit::SQLITE_LIMIT_LENGTH, VALUE_LEN_MAX)
        .map_err(text)?;
    connection.authorizer(Some(authorize)).map_err(text)?;
    let until = Instant::now() + limits.time;
    connection
        .progress_handler(PROGRESS_STEPS, Some(move || Instant::now() >= until))
        .map_err(text)?;
    let mut statement = connection.prepare(sql).map_err(text)?;
    let mut table = Table {
        columns: statement
            .column_names()
            .into_iter()
            .map(str::to_owned)
            .collect(),
        ..Table::default()
    };
    let width = table.columns.len();
    let mut rows = statement.query([]).map_err(text)?;
    let mut left = limits.bytes;
    while let Some(row) = rows.next().map_err(text)? {
        if table.rows.len() as u64 >= limits.rows {
            table.is_cut = true;
            break;
        }
        let values: rusqlite::Result<Vec<Value>> =
            (0..width).map(|at| row.get_ref(at).map(value)).collect();
        let values = values.map_err(text)?;
        left = match left.checked_sub(values.iter().map(size).sum()) {
            Some(left) => left,
            None => {
                return Err(format!(
                    "the result is larger than {} MiB; select fewer columns, or less with WHERE and LIMIT",
                    limits.bytes >> 20
                ));
            }
        };
        table.rows.push(values);
    }
    Ok(table)
}

/// Bytes that a value takes in memory, about.
fn size(value: &Value) -> u64 {
    VALUE_SIZE + value.as_str().map_or(0, str::len) as u64
}

fn authorize(context: AuthContext<'_>) -> Authorization {
    let is_table_info = matches!(
        context.action,
        AuthAction::Pragma { pragma_name, .. } if pragma_name == "table_info"
    );
    let is_harmless_function = matches!(
        context.action,
        AuthAction::Function { function_name }
            if !function_name.eq_ignore_ascii_case("load_extension")
    );
    let is_read = matches!(
        context.action,
        AuthAction::Select | AuthAction::Read { .. } | AuthAction::Recursive
    );
    if is_read || is_table_info || is_harmless_function {
        Authorization::Allow
    } else {
        Authorization::Deny
    }
}

fn value(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => json!(number),
        ValueRef::Real(number) => json!(number),
        ValueRef::Text(bytes) => Value::String(String::from_utf8_lossy(bytes).into_owned()),
        ValueRef::Blob(bytes) => {
            Value::String(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(sql: &str) -> Result<Table, String> {
        let db = Connection::open_in_memory().expect("a database in memory");
        let limits = QueryLimits {
            time: Duration::from_secs(60),
            rows: 1_000_000,
            bytes: 1 << 20,
        };
        query(&db, sql, limits)
    }

    #[test]
    fn no_query_makes_a_value_that_takes_all_memory() {
        for huge in [
            "SELECT hex(zeroblob(150000000))",
            "SELECT length(hex(randomblob(900000000)))",
            "SELECT length(printf('%.*c', 500000000, 'x'))",
            "WITH RECURSIVE n (x) AS (SELECT 'ab' UNION ALL SELECT x || x FROM n) SELECT max(length(x)) FROM n",
        ] {
            let refused = ask(huge).expect_err(huge);
            assert!(refused.contains("longer than 8 MiB"), "{huge}: {refused}");
        }
    }

    #[test]
    fn a_result_has_a_size() {
        let many = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 900000) SELECT i FROM n";
        let long = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 9) \
                    SELECT printf('%.*c', 200000, 'x') FROM n";
        for sql in [many, long] {
            let refused = ask(sql).expect_err(sql);
            assert!(refused.contains("larger than 1 MiB"), "{refused}");
        }
        let table = ask("SELECT 1, 'two'").expect("a small one");
        assert_eq!(table.rows, [[json!(1), json!("two")]]);
    }
}
