//! Runs a single read-only statement with limits on its run time and its result.

use std::time::{Duration, Instant};

use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::limits::Limit;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, ErrorCode};
use serde_json::{Value, json};

/// The number of instructions of SQLite's virtual machine between two checks of the clock.
const PROGRESS_STEPS: i32 = 10_000;
/// The maximum size in bytes of a value that a query may create or return. A call to an SQL
/// function cannot be interrupted, and its duration depends on the length of its values. The event
/// of any submit that the server accepts is shorter. If a row contains longer values, its other
/// values can still be read.
pub(crate) const VALUE_LEN_MAX: i32 = 32 << 20;
/// The maximum size in bytes of a query's result in the server's memory.
pub const RESULT_LEN_MAX: u64 = 64 << 20;
/// The size of a value in memory without its text, in bytes.
const VALUE_SIZE: u64 = size_of::<Value>() as u64;

/// The limits of a query.
#[derive(Clone, Copy, Debug)]
pub struct QueryLimits {
    /// The maximum run time.
    pub time: Duration,
    /// The maximum number of rows. Any further rows are cut off.
    pub rows: u64,
    /// The approximate maximum size in bytes. A larger result is an error.
    pub bytes: u64,
}

/// The result of a query. Values are JSON: numbers, strings, null, and blobs as hexadecimal
/// strings.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Table {
    /// The names of the columns.
    pub columns: Vec<String>,
    /// The rows, each as long as `columns`.
    pub rows: Vec<Vec<Value>>,
    /// Whether rows were cut off.
    pub is_cut: bool,
}

/// Runs a read-only statement on a separate connection.
///
/// # Errors
///
/// Returns a human-readable message.
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
    let mut statement = connection
        .prepare(sql)
        .map_err(|error| with_candidates(connection, sql, text(error)))?;
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

/// Adds the names that exist to an error about an unknown name.
fn with_candidates(connection: &Connection, sql: &str, error: String) -> String {
    let (is_column, is_table) = (
        error.starts_with("no such column"),
        error.starts_with("no such table"),
    );
    if !is_column && !is_table {
        return error;
    }
    let list = |sql: &str, name: &str| -> rusqlite::Result<Vec<String>> {
        let mut statement = connection.prepare(sql)?;
        let names = statement.query_map([name], |row| row.get(0))?;
        names.collect()
    };
    let all = "SELECT name FROM main.sqlite_schema WHERE type = 'view' AND name NOT LIKE ?1 ORDER BY name";
    let Ok(views) = list(all, "%_data") else {
        return error;
    };
    if is_table {
        return format!("{error}; there are {}", views.join(", "));
    }
    let words: Vec<&str> = sql
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .collect();
    let named = views
        .iter()
        .filter(|view| words.iter().any(|word| word.eq_ignore_ascii_case(view)));
    let columns = named.filter_map(|view| {
        let columns = list("SELECT name FROM pragma_table_info(?1)", view).ok()?;
        Some(format!("`{view}` has {}", columns.join(", ")))
    });
    let known: Vec<String> = std::iter::once(error).chain(columns).collect();
    known.join("; ")
}

/// Returns the approximate size of a value in memory, in bytes.
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
            assert!(refused.contains("longer than 32 MiB"), "{huge}: {refused}");
        }
    }

    #[test]
    fn an_unknown_name_is_answered_with_those_that_exist() {
        let limits = QueryLimits {
            time: Duration::from_secs(60),
            rows: 10,
            bytes: 1 << 20,
        };
        for (sql, expected) in [
            ("SELECT id FROM tasks", "`tasks` has job, task, state, "),
            ("SELECT colour FROM Jobs", "`jobs` has id, name, "),
            ("SELECT * FROM task", "there are allocations, attempts, "),
        ] {
            let mut db = Connection::open_in_memory().expect("a database in memory");
            crate::schema::migrate(&mut db, 0).expect("the steps are valid");
            let refused = query(&db, sql, limits).expect_err(sql);
            assert!(refused.starts_with("no such "), "{sql}: {refused}");
            assert!(refused.contains(expected), "{sql}: {refused}");
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
