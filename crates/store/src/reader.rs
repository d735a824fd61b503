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

/// One event.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EventLine {
    /// Its number: grows, has gaps.
    pub seq: i64,
    /// The event as JSON, without a line feed.
    pub line: String,
    /// The task of which it is the end.
    pub ended: Option<EndedTask>,
}

/// A task that ended by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndedTask {
    /// Its job.
    pub job: u32,
    /// Where it ran.
    pub worker: u32,
    /// Column `outcome` of one that failed.
    pub failure: Option<i64>,
    /// Column `message` of one that failed.
    pub message: Option<Box<str>>,
}

/// Calls `take` with each task that ended by itself up to the event `upto`. Passes over all tasks.
///
/// # Errors
///
/// If the store cannot be read.
pub fn ended_tasks(
    connection: &Connection,
    upto: i64,
    take: &mut dyn FnMut(EndedTask),
) -> rusqlite::Result<()> {
    let sql = "SELECT job, worker, state, outcome, message FROM task_data \
               WHERE state IN (2, 3) AND coalesce(end_seq, 0) <= ?";
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([upto])?;
    while let Some(row) = rows.next()? {
        let has_failed = row.get::<_, i64>(2)? == 3;
        take(EndedTask {
            job: row.get(0)?,
            worker: row.get(1)?,
            failure: if has_failed { Some(row.get(3)?) } else { None },
            message: if has_failed {
                row.get::<_, Option<String>>(4)?.map(Into::into)
            } else {
                None
            },
        });
    }
    Ok(())
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
    if after >= upto {
        // Events of tasks have no index by number: looking for nothing would pass over all tasks.
        return Ok(0);
    }
    let sql = "SELECT at_unix_ns, type, job, task, instance, worker, variant, data, seq FROM events \
               WHERE seq > ? AND seq <= ? ORDER BY seq";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([after, upto])?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        count += 1;
        if !take(EventRow::read(row)?.line()) {
            break;
        }
    }
    Ok(count)
}

/// An event as it is in the view `events`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct EventRow {
    pub(crate) seq: i64,
    pub(crate) at: Timestamp,
    /// Empty: only told to those who read live.
    pub(crate) kind: String,
    pub(crate) job: Option<u32>,
    pub(crate) task: Option<u32>,
    pub(crate) instance: Option<u32>,
    pub(crate) worker: Option<u32>,
    pub(crate) variant: Option<u32>,
    /// JSON.
    pub(crate) data: Option<String>,
}

impl EventRow {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            at: Timestamp(row.get(0)?),
            kind: row.get(1)?,
            job: row.get(2)?,
            task: row.get(3)?,
            instance: row.get(4)?,
            worker: row.get(5)?,
            variant: row.get(6)?,
            data: row.get(7)?,
            seq: row.get(8)?,
        })
    }

    /// The event as JSON.
    pub(crate) fn line(self) -> EventLine {
        let data: Option<Map<String, Value>> =
            self.data.and_then(|text| serde_json::from_str(&text).ok());
        let mut data = data.unwrap_or_default();
        let mut event = Map::new();
        let mut ended = None;
        match self.kind.as_str() {
            "task-started" => {
                event.insert("job".into(), json!(self.job));
                event.insert("task".into(), json!(self.task));
                event.insert("instance".into(), json!(self.instance));
                match data.remove("workers") {
                    Some(workers) => event.insert("workers".into(), workers),
                    None => event.insert("worker".into(), json!(self.worker)),
                };
                if let Some(variant) = self.variant.filter(|variant| *variant != 0) {
                    event.insert("variant".into(), json!(variant));
                }
            }
            "task-finished" | "task-failed" => {
                event.insert("job".into(), json!(self.job));
                event.insert("task".into(), json!(self.task));
                let mut task = EndedTask {
                    job: self.job.unwrap_or(0),
                    worker: self.worker.unwrap_or(0),
                    failure: None,
                    message: None,
                };
                if self.kind == "task-failed" {
                    let code = data.get("outcome").and_then(Value::as_i64).unwrap_or(0);
                    let message = data.get("message").and_then(Value::as_str);
                    task.failure = Some(code);
                    task.message = message.map(Into::into);
                    let outcome = encode::outcome_of(code, message.map(str::to_owned));
                    event.insert("error".into(), Value::String(outcome.error_text()));
                }
                ended = Some(task);
            }
            "task-canceled" | "task-aborted" => {
                event.insert("tasks".into(), Value::Array(expand(&data)));
            }
            _ => event.append(&mut data),
        }
        if !self.kind.is_empty() {
            event.insert("type".into(), Value::String(self.kind));
        }
        EventLine {
            seq: self.seq,
            line: json!({"event": event, "time": time_text(self.at)}).to_string(),
            ended,
        }
    }
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
