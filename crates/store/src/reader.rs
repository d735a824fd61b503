//! Reading beside the writer: the journal as JSON lines, and SQL of users that can only read.

use std::path::Path;
use std::time::{Duration, Instant};

use hq_core::time::Timestamp;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, Row};
use serde_json::{Map, Value, json};

use crate::{StoreError, encode, open};

/// Steps of SQLite's machine between two looks at the clock.
const PROGRESS_STEPS: i32 = 10_000;

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
    open::check_header(path).map_err(|error| failed(error.to_string()))?;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection =
        Connection::open_with_flags(path, flags).map_err(|error| failed(error.to_string()))?;
    let version: i32 = connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(|error| failed(error.to_string()))?;
    if version == 0 {
        return Err(failed("it is not a journal".to_owned()));
    }
    Ok(connection)
}

/// One event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EventLine {
    /// Its number: grows, has gaps.
    pub seq: i64,
    /// The event as JSON, without a line feed.
    pub line: String,
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
    Ok(problems)
}

/// Calls `take` with each event behind `after` up to `upto`, in order; stops early when it returns `false`. Returns the number of lines.
///
/// # Errors
///
/// If the store cannot be read.
pub fn lines_since(
    connection: &Connection,
    after: i64,
    upto: i64,
    take: &mut dyn FnMut(EventLine) -> bool,
) -> rusqlite::Result<u64> {
    let sql = "SELECT at_unix_ns, type, job, task, instance, worker, variant, data, seq FROM events \
               WHERE seq > ? AND seq <= ? ORDER BY seq";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([after, upto])?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        count += 1;
        let event = EventLine {
            seq: row.get(8)?,
            line: event_line(row)?,
        };
        if !take(event) {
            break;
        }
    }
    Ok(count)
}

fn event_line(row: &Row<'_>) -> rusqlite::Result<String> {
    let at = Timestamp(row.get(0)?);
    let kind: String = row.get(1)?;
    let number = |column| row.get::<_, Option<u32>>(column);
    let data: Option<String> = row.get(7)?;
    let mut data: Map<String, Value> = data
        .and_then(|text| serde_json::from_str(&text).ok())
        .unwrap_or_default();
    let event = match kind.as_str() {
        "task-started" => {
            let mut event = Map::new();
            event.insert("job".into(), json!(number(2)?));
            event.insert("task".into(), json!(number(3)?));
            event.insert("instance".into(), json!(number(4)?));
            event.insert("worker".into(), json!(number(5)?));
            if let Some(variant) = number(6)?.filter(|variant| *variant != 0) {
                event.insert("variant".into(), json!(variant));
            }
            event
        }
        "task-finished" | "task-failed" => {
            let mut event = Map::new();
            event.insert("job".into(), json!(number(2)?));
            event.insert("task".into(), json!(number(3)?));
            if kind == "task-failed" {
                let code = data.get("outcome").and_then(Value::as_i64).unwrap_or(0);
                let message = data
                    .get("message")
                    .and_then(Value::as_str)
                    .map(str::to_owned);
                let error = encode::outcome_of(code, message).error_text();
                event.insert("error".into(), Value::String(error));
            }
            event
        }
        "task-canceled" | "task-aborted" => {
            let tasks = Value::Array(expand(&data));
            let mut event = Map::new();
            event.insert("tasks".into(), tasks);
            event
        }
        _ => std::mem::take(&mut data),
    };
    let mut event = event;
    event.insert("type".into(), Value::String(kind));
    Ok(json!({"event": event, "time": time_text(at)}).to_string())
}

/// Tasks of `{"job": j, "ranges": [[first, count, step], …]}`.
fn expand(data: &Map<String, Value>) -> Vec<Value> {
    let job = data.get("job").cloned().unwrap_or_default();
    let ranges = data.get("ranges").and_then(Value::as_array);
    let part = |range: &Value, at: usize| range.get(at).and_then(Value::as_u64).unwrap_or(0);
    ranges
        .into_iter()
        .flatten()
        .flat_map(|range| {
            let (first, count, step) = (part(range, 0), part(range, 1), part(range, 2));
            (0..count).map(move |position| first + position * step)
        })
        .map(|task| json!({"job_id": job, "job_task_id": task}))
        .collect()
}

/// `2026-11-21T08:15:50.314Z`.
fn time_text(at: Timestamp) -> String {
    let time = jiff::Timestamp::from_nanosecond(i128::from(at.0)).unwrap_or_default();
    format!("{time:.3}")
}

/// Bounds of one query.
#[derive(Clone, Copy, Debug)]
pub struct QueryLimits {
    /// Longest run.
    pub time: Duration,
    /// Most rows; what is beyond is left out.
    pub rows: u64,
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
        Some(rusqlite::ErrorCode::OperationInterrupted) => format!(
            "the query took longer than {} s and was stopped; narrow it or raise --time-limit",
            limits.time.as_secs()
        ),
        Some(rusqlite::ErrorCode::AuthorizationForStatementDenied) => {
            "only SELECT is possible; a query cannot change, attach or read anything else"
                .to_owned()
        }
        _ => error.to_string(),
    };
    connection
        .pragma_update(None, "query_only", true)
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
    while let Some(row) = rows.next().map_err(text)? {
        if table.rows.len() as u64 >= limits.rows {
            table.is_cut = true;
            break;
        }
        let values: rusqlite::Result<Vec<Value>> =
            (0..width).map(|at| row.get_ref(at).map(value)).collect();
        table.rows.push(values.map_err(text)?);
    }
    Ok(table)
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
