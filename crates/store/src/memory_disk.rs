//! The disk of simulated worlds: a database of this crate in memory. A crash discards uncommitted
//! changes.

use std::cell::{Cell, RefCell};

use hq_core::id::JobId;
use hq_core::job::TaskTotals;
use hq_core::server_state::{Change, ServerState};
use hq_core::testing::sim::Disk;
use hq_core::time::Now;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row, Transaction};
use serde_json::Value;

use crate::reader::run;
use crate::rows::Rows;
use crate::statement::Query;
use crate::{compact, group, load, schema};

/// The number of prepared statements to keep, which is more than a world uses.
const STATEMENTS_MAX: usize = 128;

/// The minimum length of a stretch. It is small because the jobs of simulated worlds are small.
const FOLD_LEN_MIN: u32 = 2;
/// The minimum number of tasks that become a stretch if they finish in the same commit. Pairs are
/// left for folding.
const STRETCH_LEN_MIN: u32 = 3;
/// The number of commits between folds. A fold takes longer than the rest of a commit, and worlds
/// must also crash while some rows are not folded.
const FOLD_INTERVAL: i64 = 10;

thread_local! {
    /// An empty database from an earlier world. Creating the schema and preparing statements takes
    /// a quarter of a world's run time.
    static EMPTY: Cell<Option<Connection>> = const { Cell::new(None) };
}

/// A database that outlives the servers of one simulated world.
#[derive(Debug)]
pub struct MemoryDisk {
    /// `Some` until the world ends.
    connection: RefCell<Option<Connection>>,
    next_seq: i64,
    commits: i64,
}

impl MemoryDisk {
    /// Creates an empty disk for the server "SimUid".
    ///
    /// # Panics
    ///
    /// Panics if the schema is not valid.
    #[must_use]
    pub fn create() -> Box<dyn Disk> {
        let connection = EMPTY.take().unwrap_or_else(new_database);
        connection
            .execute("INSERT INTO meta VALUES ('server_uid', 'SimUid')", [])
            .expect("an empty database");
        Box::new(Self {
            connection: RefCell::new(Some(connection)),
            next_seq: 1,
            commits: 0,
        })
    }

    /// Writes changes and ends the transaction. Returns the number of the next event.
    fn write(&self, changes: &[Change], end: impl FnOnce(Transaction<'_>)) -> i64 {
        let mut seq = self.next_seq;
        let mut connection = self.connection.borrow_mut();
        let connection = connection.as_mut().expect("the world has not ended");
        let transaction = connection.transaction().expect("there is no other writer");
        group::write_with(STRETCH_LEN_MIN, &transaction, &mut seq, changes, None)
            .expect("every change can be written");
        end(transaction);
        seq
    }
}

fn new_database() -> Connection {
    let mut connection = Connection::open_in_memory().expect("a database in memory");
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    schema::migrate(&mut connection, 0).expect("the schema is valid");
    connection
}

/// Deletes all rows.
fn empty(connection: &Connection) -> rusqlite::Result<()> {
    // The positions in stretches are kept, because they are part of the schema.
    let mut tables = connection.prepare_cached(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> 'place_data'",
    )?;
    let names = tables.query_map([], |row| row.get::<_, String>(0))?;
    for name in names {
        let delete = format!("DELETE FROM {}", name?);
        connection.prepare_cached(&delete)?.execute([])?;
    }
    Ok(())
}

impl Drop for MemoryDisk {
    fn drop(&mut self) {
        // Discard the database of a failed world, because its rows could make the next world fail.
        if let Some(connection) = self.connection.take()
            && !std::thread::panicking()
        {
            empty(&connection).expect("it has one user");
            EMPTY.set(Some(connection));
        }
    }
}

impl Disk for MemoryDisk {
    fn commit(&mut self, changes: &[Change]) {
        self.commits += 1;
        let is_folded = self.commits % FOLD_INTERVAL == 0;
        self.next_seq = self.write(changes, |transaction| {
            if is_folded {
                compact::fold_all(&transaction, FOLD_LEN_MIN).expect("rows can become stretches");
            }
            transaction.commit().expect("memory is never full");
        });
    }

    fn fail(&mut self, changes: &[Change]) {
        self.write(changes, |transaction| {
            transaction.rollback().expect("it was begun");
        });
    }

    fn restore(&mut self, now: Now) -> ServerState {
        let connection = self.connection.borrow();
        let connection = connection.as_ref().expect("the world has not ended");
        let loaded =
            load::load(connection, "SimUid", now, false).expect("what was written can be read");
        assert_eq!(loaded.dropped_count, 0, "every record fits");
        load::note_gone(connection, &loaded.gone_workers, now.wall).expect("rows");
        compare_counts(connection, &loaded.state);
        loaded.state
    }
}

/// Panics if queries of the file and the state restored from it return different counts.
fn compare_counts(connection: &Connection, state: &ServerState) {
    let jobs = all_rows(connection, &run::jobs(i64::MAX));
    let mut rows = all_rows(connection, &run::states(i64::MAX));
    rows.extend(all_rows(connection, &run::dropped_sums(i64::MAX)));
    let counts = run::counts(&jobs, rows);
    assert_eq!(jobs.len(), state.jobs().len(), "jobs in the file");
    for (job, of_file) in jobs.iter().zip(counts) {
        let of_state = state.jobs()[&JobId(job.id)].counts().totals();
        // Interrupted tasks may wait again, and consequences of stored changes exist only in the
        // state.
        let same = |of: &TaskTotals| (of.total(), of.finished, of.failed, of.canceled);
        assert_eq!(same(&of_file), same(&of_state), "tasks of job {}", job.id);
        assert!(of_file.aborted <= of_state.aborted, "job {}", job.id);
    }
}

/// Returns the rows of a query on a connection that continues to write, which [`Query::run`] would
/// forbid.
fn all_rows<R>(connection: &Connection, query: &Query<R>) -> Vec<R> {
    let mut statement = connection.prepare_cached(query.sql()).expect("a query");
    let width = statement.column_count();
    let value = |row: &Row<'_>, at: usize| match row.get_ref(at).expect("a column") {
        ValueRef::Integer(number) => Value::from(number),
        ValueRef::Text(text) => Value::from(String::from_utf8_lossy(text)),
        ValueRef::Null | ValueRef::Real(_) | ValueRef::Blob(_) => Value::Null,
    };
    let rows = statement.query_map([], |row| Ok((0..width).map(|at| value(row, at)).collect()));
    let rows = rows.expect("no parameters").collect::<Result<_, _>>();
    query.read(&Rows::new(rows.expect("rows")))
}
