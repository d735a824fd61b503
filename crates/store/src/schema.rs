//! The tables and views, and the migrations from older versions.
//!
//! SQLite 3.26 (2018, RHEL 8) and later can read them. SQLite parses the whole schema first, so a
//! program that does not know a single keyword of a single view cannot read any table.

use std::path::Path;

use rusqlite::Connection;

use crate::StoreError;

/// The `PRAGMA application_id` of journals: "hqst".
pub(crate) const APPLICATION_ID: i32 = 0x6871_7374;

/// The migrations in order. Step `n` creates version `n + 1`. Released steps never change.
const STEPS: &[&str] = &[
    include_str!("schema/0001.sql"),
    include_str!("schema/0002.sql"),
    include_str!("schema/0003.sql"),
    include_str!("schema/0004.sql"),
    include_str!("schema/0005.sql"),
    include_str!("schema/0006.sql"),
    include_str!("schema/0007.sql"),
    include_str!("schema/0008.sql"),
    include_str!("schema/0009.sql"),
    include_str!("schema/0010.sql"),
    include_str!("schema/0011.sql"),
    include_str!("schema/0012.sql"),
    include_str!("schema/0013.sql"),
    include_str!("schema/0014.sql"),
];

/// Returns the current version of the schema.
pub(crate) fn version() -> i32 {
    i32::try_from(STEPS.len()).unwrap_or(i32::MAX)
}

/// Returns the error for a file of a later version.
pub(crate) fn too_new(path: &Path, found: i32) -> StoreError {
    let known = version();
    StoreError::NotOurs {
        path: path.to_path_buf(),
        reason: format!(
            "it has format {found}, this version of hq knows formats up to {known}; use a newer version"
        ),
    }
}

/// Sets up an empty file so that it can shrink page by page.
pub(crate) fn prepare(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")
}

/// Migrates a file from the version `from` to the current version, in one transaction.
pub(crate) fn migrate(connection: &mut Connection, from: i32) -> rusqlite::Result<()> {
    let done = usize::try_from(from).unwrap_or(0);
    if done >= STEPS.len() {
        return Ok(());
    }
    let transaction = connection.transaction()?;
    for step in STEPS.iter().skip(done) {
        transaction.execute_batch(step)?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", version())?;
    transaction.commit()
}

/// Creates a file of an earlier version.
#[cfg(test)]
pub(crate) fn migrate_to(connection: &mut Connection, version: usize) -> rusqlite::Result<()> {
    STEPS[..version]
        .iter()
        .try_for_each(|step| connection.execute_batch(step))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hq_core::outcome::{Outcome, OutcomeCode};
    use hq_core::task::TaskState;

    /// Returns the names and definitions of all tables, indices and views.
    fn shape(connection: &Connection) -> Vec<(String, String)> {
        let sql = "SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY name";
        let mut statement = connection.prepare(sql).expect("a database");
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
        rows.expect("rows")
            .collect::<Result<_, _>>()
            .expect("texts")
    }

    #[test]
    fn every_earlier_version_becomes_the_present_one_and_keeps_its_rows() {
        let mut fresh = Connection::open_in_memory().expect("a database in memory");
        migrate(&mut fresh, 0).expect("the steps are valid");
        for version in 1..=STEPS.len() {
            let mut old = Connection::open_in_memory().expect("a database in memory");
            for step in &STEPS[..version] {
                old.execute_batch(step).expect("the steps are valid");
            }
            old.execute(
                "INSERT INTO job_data VALUES (7, 'kept', NULL, 0, NULL, 1, NULL, 0)",
                [],
            )
            .expect("a row of the first version");
            migrate(&mut old, i32::try_from(version).expect("small")).expect("it can be migrated");
            assert_eq!(shape(&old), shape(&fresh), "from version {version}");
            let name: String = old
                .query_row("SELECT name FROM jobs WHERE id = 7", [], |row| row.get(0))
                .expect("the row");
            assert_eq!(name, "kept");
        }
    }

    #[test]
    fn the_counts_of_a_job_add_up() {
        let mut db = Connection::open_in_memory().expect("a database in memory");
        migrate(&mut db, 0).expect("the steps are valid");
        db.execute_batch(
            "INSERT INTO job_data VALUES (1, 'a', NULL, 0, NULL, 1500000000, NULL, 0), (2, 'b', NULL, 1, NULL, 0, NULL, 0);
             INSERT INTO submit_data VALUES (1, 0, 0, 10, X'', 0);
             INSERT INTO task_row_data (job, task, state, instance, crash_count, worker, variant) VALUES
                 (1, 0, 2, 0, 0, 1, 0), (1, 1, 3, 0, 0, 1, 0), (1, 2, 0, 1, 0, 1, 0), (1, 3, 4, 0, 0, 1, 0);
             INSERT INTO dropped_data VALUES (1, 1, 3, 2, 1, 4, 0), (2, 1, 5, 4, 1, 5, 0);",
        )
        .expect("rows");
        let shown = |id: i64| {
            let sql = "SELECT state, waiting, running, finished, failed, canceled, aborted, submitted FROM jobs WHERE id = ?1";
            let row = |row: &rusqlite::Row<'_>| {
                let counts: rusqlite::Result<Vec<i64>> = (1..7).map(|at| row.get(at)).collect();
                Ok((row.get::<_, String>(0)?, counts?, row.get::<_, String>(7)?))
            };
            db.query_row(sql, [id], row).expect("a job")
        };
        let (state, counts, submitted) = shown(1);
        assert_eq!(state, "waiting", "one of them waits for another attempt");
        assert_eq!(counts, [2, 0, 1, 1, 2, 4]);
        assert_eq!(submitted, "1970-01-01T00:00:01.500Z");
        assert_eq!(shown(2).0, "opened");
        db.execute("UPDATE task_row_data SET state = 1 WHERE task = 2", [])
            .expect("it starts");
        assert_eq!(shown(1).0, "running");
    }

    #[test]
    fn tasks_that_were_canceled_get_their_run_time_from_earlier_versions() {
        let mut old = Connection::open_in_memory().expect("a database in memory");
        for step in &STEPS[..6] {
            old.execute_batch(step).expect("the steps are valid");
        }
        // Tasks 2, 4 and 6 were canceled at 9 µs, task 4 while it waited for its next instance.
        // Tasks 3 and 6 ran in other jobs.
        let rows = "INSERT INTO dropped_data VALUES (5, 1, 2, 3, 2, 4, 9000), (6, 1, 3, 1, 1, 5, 8000), (7, 2, 3, 1, 1, 4, 7000); \
                    INSERT INTO task_data (job, task, state, instance, crash_count, worker, variant, started_unix_ns, \
                    run_us, start_seq) VALUES (1, 2, 4, 0, 0, 1, 0, 1000, NULL, 1), (1, 3, 5, 0, 0, 1, 0, 1000, NULL, 2), \
                    (1, 4, 4, 1, 0, 1, 0, 1000, NULL, NULL), (1, 5, 2, 0, 0, 1, 0, 1000, 3, 3), (2, 3, 4, 0, 0, 1, 0, 9000, NULL, 4)";
        old.execute_batch(rows).expect("tables");
        migrate(&mut old, 6).expect("it can be migrated");
        let ended = |view: &str| -> Vec<(i64, i64, Option<i64>, Option<i64>)> {
            let sql = format!(
                "SELECT job, task, started_unix_ns, started_unix_ns + run_us * 1000 FROM {view} ORDER BY 1, 2"
            );
            let mut statement = old.prepare(&sql).expect("a view");
            let row =
                |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?));
            let rows = statement.query_map([], row).expect("rows");
            rows.collect::<Result<_, _>>().expect("numbers")
        };
        let mut expected = vec![
            (1, 2, Some(1_000), Some(9_000)),
            (1, 3, Some(1_000), Some(8_000)),
            (1, 4, None, None),
            (1, 5, Some(1_000), Some(4_000)),
            (2, 3, Some(9_000), Some(9_000)),
        ];
        assert_eq!(ended("tasks"), expected);
        expected.remove(2);
        assert_eq!(ended("attempts"), expected);
    }

    /// The functions used in views; SQLite 3.26 already provides them.
    const OLD_FUNCTIONS: [&str; 11] = [
        "coalesce",
        "count",
        "instr",
        "json",
        "json_group_array",
        "json_object",
        "length",
        "printf",
        "strftime",
        "substr",
        "sum",
    ];
    /// Keywords that were added in later versions.
    const NEW_WORDS: [&str; 14] = [
        "HAVING", // without GROUP BY: 3.39
        "FILTER",
        "NULLS",
        "GENERATED",
        "MATERIALIZED",
        "STRICT",
        "RETURNING",
        "RIGHT",
        "FULL",
        "DISTINCT", // IS DISTINCT FROM: 3.39
        "WITHIN",
        "GROUPS",
        "EXCLUDE",
        "->",
    ];

    /// Returns the parts of a schema that SQLite 3.26 cannot read.
    fn newer_parts(sql: &str) -> Vec<String> {
        let without_comments: Vec<&str> = sql
            .lines()
            .map(|line| line.split("--").next().unwrap_or_default())
            .collect();
        let sql = without_comments.join(" ");
        let mut found: Vec<String> = NEW_WORDS
            .iter()
            .filter(|word| sql.split([' ', '(', ')', ',']).any(|part| part == **word))
            .map(|word| (*word).to_owned())
            .collect();
        let mut calls = Vec::new();
        for (at, c) in sql.char_indices() {
            if c == '(' {
                let name = sql[..at].rsplit(|c: char| !c.is_ascii_lowercase() && c != '_');
                calls.push(name.into_iter().next().unwrap_or_default());
                let is_known = calls
                    .last()
                    .is_none_or(|name| name.is_empty() || OLD_FUNCTIONS.contains(name));
                // This is the list of columns of a table or index.
                let is_definition =
                    sql.starts_with("CREATE TABLE") || sql.starts_with("CREATE INDEX");
                if !is_known && !is_definition {
                    found.extend(calls.last().map(|name| (*name).to_owned()));
                }
            } else if c == ')' {
                calls.pop();
            } else if sql[at..].starts_with("ORDER BY")
                && calls.last().is_some_and(|name| !name.is_empty())
            {
                found.push("ORDER BY in an aggregate: 3.44".to_owned());
            }
        }
        found
    }

    /// Returns the row of the view of tasks for a task with this state and outcome.
    fn shown(db: &Connection, state: TaskState, outcome: Option<&Outcome>) -> Shown {
        let number = outcome.map(|outcome| OutcomeCode::of(outcome).number());
        let text = outcome.and_then(Outcome::text);
        db.execute("DELETE FROM task_row_data", [])
            .expect("a table");
        db.execute(
            "INSERT INTO task_row_data (job, task, state, instance, crash_count, worker, variant, started_unix_ns, \
             run_us, outcome, message, end_seq) VALUES (1, 1, ?, 0, 0, 1, 0, 5000, 2, ?, ?, 7)",
            rusqlite::params![state.number(), number, text],
        )
        .expect("a row");
        let sql = "SELECT t.state, t.ended_unix_ns, t.exit_code, t.signal, t.message, e.type, e.data IS NOT NULL \
                   FROM tasks t JOIN events e ON e.task = t.task";
        db.query_row(sql, [], |row| {
            Ok(Shown {
                state: row.get(0)?,
                ended: row.get(1)?,
                exit_code: row.get(2)?,
                signal: row.get(3)?,
                message: row.get(4)?,
                event: row.get(5)?,
                has_data: row.get(6)?,
            })
        })
        .expect("a row of the view")
    }

    #[derive(PartialEq, Debug)]
    struct Shown {
        state: String,
        ended: Option<i64>,
        exit_code: Option<i32>,
        signal: Option<i32>,
        message: Option<String>,
        event: String,
        has_data: bool,
    }

    #[test]
    fn the_views_know_the_numbers_of_states() {
        let mut db = Connection::open_in_memory().expect("a database in memory");
        migrate(&mut db, 0).expect("the steps are valid");
        for state in TaskState::ALL {
            let has_end = !matches!(state, TaskState::Waiting | TaskState::Running);
            let found = shown(&db, state, None);
            assert_eq!(found.state, state.name());
            assert_eq!(found.ended, has_end.then_some(7_000), "{state:?}");
            let is_finished = state == TaskState::Finished;
            assert_eq!(found.event == "task-finished", is_finished, "{state:?}");
            assert_eq!(found.has_data, state == TaskState::Failed, "{state:?}");
        }
    }

    #[test]
    fn the_views_know_the_numbers_of_outcomes() {
        let mut db = Connection::open_in_memory().expect("a database in memory");
        migrate(&mut db, 0).expect("the steps are valid");
        let text = |text: &str| Some(text.to_owned());
        for (outcome, exit_code, signal, message) in [
            (Outcome::Finished, Some(0), None, None),
            (Outcome::ExitCode(3), Some(3), None, None),
            (Outcome::Signal(9), None, Some(9), None),
            (Outcome::Killed, None, None, None),
            (Outcome::TimeLimit, None, None, text("Time limit reached")),
            (Outcome::Message("why".into()), None, None, text("why")),
            (
                Outcome::OutOfMemory(None),
                None,
                None,
                text("Out of memory"),
            ),
            (
                Outcome::OutOfMemory(Some("9 MiB".into())),
                None,
                None,
                text("Out of memory: 9 MiB"),
            ),
        ] {
            let found = shown(&db, TaskState::Failed, Some(&outcome));
            assert_eq!(
                (found.exit_code, found.signal, found.message),
                (exit_code, signal, message),
                "{outcome:?}"
            );
        }
    }

    #[test]
    fn the_schema_has_nothing_that_old_programs_do_not_know() {
        let mut fresh = Connection::open_in_memory().expect("a database in memory");
        migrate(&mut fresh, 0).expect("the steps are valid");
        for (name, sql) in shape(&fresh) {
            assert_eq!(newer_parts(&sql), Vec::<String>::new(), "{name}");
        }
        let earlier = STEPS[2];
        assert!(
            newer_parts(earlier).len() >= 2,
            "it finds what was there once"
        );
    }

    #[test]
    fn programs_of_the_system_read_every_view() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("j.db");
        crate::testing::filled(&path, &[300]);
        let db = Connection::open(&path).expect("a database");
        db.execute_batch(
            "INSERT INTO node_data VALUES (1, 2, 0, 1, 5, 0), (1, 2, 0, 0, 9, 0), (1, 2, 0, 2, 7, 0)",
        )
        .expect("rows");
        // The ids are used as factors to check that each value belongs to its task.
        let sums = "SELECT sum(task * (ended_unix_ns % 1000003)), sum(task * run_us), count(DISTINCT started_unix_ns) FROM tasks";
        let found = |db: &Connection| -> [i64; 3] {
            let row = db.query_row(sums, [], |row| Ok([row.get(0)?, row.get(1)?, row.get(2)?]));
            row.expect("a row")
        };
        let of_rows = found(&db);
        crate::testing::fold(&path);
        assert_eq!((found(&db), of_rows[2]), (of_rows, 300));
        let of_rows = of_rows.map(|sum| sum.to_string());
        let sql = "SELECT group_concat(name) FROM sqlite_schema WHERE type = 'view'";
        let views: String = db.query_row(sql, [], |row| row.get(0)).expect("views");
        let nodes = "SELECT json_extract(data, '$.workers') FROM events WHERE task = 2 AND type = 'task-started'";
        let ours: String = db.query_row(nodes, [], |row| row.get(0)).expect("a row");
        assert_eq!(ours, "[9,5,7]", "in the order of their positions");
        drop(db);
        let mut sql: String = views
            .split(',')
            .map(|view| format!("SELECT count(*) FROM {view};"))
            .collect();
        sql.push_str(sums);
        sql.push(';');
        sql.push_str(nodes);
        let script = "import sqlite3, sys\ndb = sqlite3.connect(sys.argv[1])\n\
                      for sql in sys.argv[2].split(';'): print(*db.execute(sql).fetchone())";
        let programs: [(&str, &[&str]); 2] = [("sqlite3", &[]), ("python3", &["-c", script])];
        for (program, args) in programs {
            let mut command = std::process::Command::new(program);
            let Ok(read) = command.args(args).arg(&path).arg(&sql).output() else {
                // The program is not installed; another test covers the rules.
                continue;
            };
            let (out, error) = (
                String::from_utf8_lossy(&read.stdout),
                String::from_utf8_lossy(&read.stderr),
            );
            assert!(read.status.success(), "{program}: {error}");
            let mut last = out.lines().rev();
            assert_eq!(last.next(), Some("[9,5,7]"), "{program}: {out}");
            let sums = last.next().unwrap_or_default();
            let sums: Vec<&str> = sums.split(['|', ' ']).collect();
            assert_eq!(sums, of_rows, "{program}");
        }
    }
}
