//! Stretches store tasks of one job in columns. The tasks have consecutive ids and finished in the
//! same instance.
//!
//! For each column, a stretch stores the minimum and the differences from it as byte planes: the
//! lowest byte of each task, then the next byte of each task, and so on, as many as the largest
//! difference needs. Plain SQL ([`schema/0012.sql`]) decodes them into the same rows as if each
//! task had its own; the connections of this crate decode them faster ([`read_fast`]). Tasks with
//! other values are kept as rows.
//!
//! [`schema/0012.sql`]: ../../src/schema/0012.sql

use std::ops::RangeInclusive;
use std::time::Duration;

use hq_core::column;
use hq_core::outcome::OutcomeCode;
use hq_core::task::TaskState;
use hq_core::time::Timestamp;
use rusqlite::functions::FunctionFlags;
use rusqlite::types::{Value, ValueRef};
use rusqlite::{Connection, Row, params_from_iter};

use crate::statement::each;
use crate::{encode, meta};

/// The maximum number of tasks in a stretch, which is the number of rows of `place_data`. The views
/// join that table.
pub(crate) const TASKS_MAX: usize = 256;
/// The maximum size of all columns in bytes. Two such rows fill a page of 4 KiB.
const BYTES_MAX: usize = 1_950;
/// The maximum size of a difference in bytes, which allows for three days in nanoseconds. The views
/// read the same number of bytes.
const PLANES_MAX: u32 = 6;
/// The columns whose values differ between tasks, in the order of [`Values`]. Each has a companion
/// column with the suffix `_bytes`.
const COLUMNS: [&str; COLUMN_COUNT] = [
    "worker",
    "started_unix_ns",
    "run_us",
    "max_rss_kib",
    "user_ms",
    "system_ms",
    "start_seq",
    "end_seq",
];
const COLUMN_COUNT: usize = 8;
/// The number of columns of the table: job, first, count, variant, two for each of [`COLUMNS`], the
/// checksum, and the instance.
pub(crate) const WIDTH: usize = 4 + 2 * COLUMN_COUNT + 2;

/// The values of a finished task, in the order of [`COLUMNS`].
pub(crate) type Values = [i64; COLUMN_COUNT];

/// The attributes that all tasks of a stretch have in common.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shared {
    pub(crate) job: u32,
    pub(crate) variant: u32,
    /// The instance that finished.
    pub(crate) instance: u32,
}

/// One or more consecutive tasks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stretch {
    pub(crate) shared: Shared,
    pub(crate) first: u32,
    /// The values of each task, ordered by id.
    tasks: Vec<Values>,
    low: Values,
    high: Values,
}

impl Stretch {
    /// Creates a stretch of one task.
    pub(crate) fn new(shared: Shared, first: u32, values: Values) -> Self {
        Self {
            shared,
            first,
            tasks: vec![values],
            low: values,
            high: values,
        }
    }

    /// Adds the task after the last one. Returns `false` if it does not fit.
    pub(crate) fn push(&mut self, values: Values) -> bool {
        let (mut low, mut high) = (self.low, self.high);
        let mut len = 0;
        for ((low, high), value) in low.iter_mut().zip(&mut high).zip(values) {
            (*low, *high) = (value.min(*low), value.max(*high));
            let planes = column::planes(*low, *high);
            if planes > PLANES_MAX {
                return false;
            }
            len += planes as usize;
        }
        let count = self.tasks.len() + 1;
        // The next id may overflow.
        let is_id = u32::try_from(count - 1).is_ok_and(|n| self.first.checked_add(n).is_some());
        if count > TASKS_MAX || count * len > BYTES_MAX || !is_id {
            return false;
        }
        (self.low, self.high) = (low, high);
        self.tasks.push(values);
        true
    }

    pub(crate) fn len(&self) -> u32 {
        // The number of tasks is at most `TASKS_MAX`.
        u32::try_from(self.tasks.len()).unwrap_or(0)
    }

    pub(crate) fn ids(&self) -> RangeInclusive<u32> {
        self.first..=self.first + (self.len() - 1)
    }

    /// Iterates over the tasks with their ids.
    pub(crate) fn tasks(&self) -> impl Iterator<Item = (u32, &Values)> {
        self.ids().zip(&self.tasks)
    }

    /// Iterates over the workers in the order of the tasks.
    pub(crate) fn workers(&self) -> impl Iterator<Item = u32> {
        let worker = |values: &Values| u32::try_from(values[0]).unwrap_or(0);
        self.tasks.iter().map(worker)
    }

    /// Iterates over the worker, the time and the event number of each task's end.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (u32, Timestamp, i64)> {
        let ends = self.tasks.iter().map(|[_, started, run_us, .., end_seq]| {
            let run = Duration::from_micros(run_us.unsigned_abs());
            (Timestamp(*started).plus(run), *end_seq)
        });
        self.workers()
            .zip(ends)
            .map(|(worker, (at, seq))| (worker, at, seq))
    }

    pub(crate) fn write(&self, db: &Connection) -> rusqlite::Result<()> {
        let marks = vec!["?"; WIDTH].join(", ");
        let sql = format!("INSERT INTO stretch_data VALUES ({marks})");
        db.prepare_cached(&sql)?
            .execute(params_from_iter(self.row()))?;
        Ok(())
    }

    /// Stores a row for each task that does not have one.
    pub(crate) fn write_rows(&self, db: &Connection) -> rusqlite::Result<()> {
        let mut insert = db.prepare_cached(
            "INSERT OR IGNORE INTO task_row_data (job, task, state, instance, crash_count, variant, outcome, \
             worker, started_unix_ns, run_us, max_rss_kib, user_ms, system_ms, start_seq, end_seq) \
             VALUES (?, ?, ?, ?, 0, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        )?;
        let state = TaskState::Finished.number();
        let outcome = OutcomeCode::FINISHED.number();
        for (task, values) in self.tasks() {
            let head: [i64; 6] = [
                self.shared.job.into(),
                task.into(),
                state.into(),
                self.shared.instance.into(),
                self.shared.variant.into(),
                outcome.into(),
            ];
            insert.execute(params_from_iter(head.iter().chain(values)))?;
        }
        Ok(())
    }

    /// Returns the values of all columns of the table.
    pub(crate) fn row(&self) -> Vec<Value> {
        let Shared {
            job,
            variant,
            instance,
        } = self.shared;
        let head = [job, self.first, self.len(), variant];
        let mut row: Vec<Value> = head
            .iter()
            .map(|number| i64::from(*number).into())
            .collect();
        for at in 0..COLUMN_COUNT {
            row.push(self.low[at].into());
            row.push(self.bytes(at).into());
        }
        let instance = i64::from(instance);
        row.push(check_of(row.iter().map(ValueRef::from), instance).into());
        row.push(instance.into());
        row
    }

    fn bytes(&self, at: usize) -> Vec<u8> {
        let values = self.tasks.iter().map(|task| task[at]);
        column::bytes(values, self.low[at], self.high[at])
    }

    /// Reads a row with all columns of the table. Returns `None` if it is corrupt.
    pub(crate) fn read(row: &Row<'_>) -> rusqlite::Result<Option<Self>> {
        let mut values = Vec::with_capacity(WIDTH);
        for at in 0..WIDTH {
            values.push(row.get_ref(at)?);
        }
        Ok(Self::of(&values))
    }

    /// Reads a stretch from the values of a row.
    pub(crate) fn of(row: &[ValueRef<'_>]) -> Option<Self> {
        let [
            ValueRef::Integer(job),
            ValueRef::Integer(first),
            ValueRef::Integer(count),
            ValueRef::Integer(variant),
            columns @ ..,
            ValueRef::Integer(check),
            ValueRef::Integer(instance),
        ] = row
        else {
            return None;
        };
        if row.len() != WIDTH || check_of(row[..WIDTH - 2].iter().copied(), *instance) != *check {
            return None;
        }
        let shared = Shared {
            job: u32::try_from(*job).ok()?,
            variant: u32::try_from(*variant).ok()?,
            instance: u32::try_from(*instance).ok()?,
        };
        let first = u32::try_from(*first).ok()?;
        let last = u32::try_from(*count).ok()?.checked_sub(1)?;
        first.checked_add(last)?;
        let count = last as usize + 1;
        let (mut low, mut high) = (Values::default(), Values::default());
        let mut tasks = vec![Values::default(); count];
        for (at, column) in columns.chunks_exact(2).enumerate() {
            let [ValueRef::Integer(base), ValueRef::Blob(bytes)] = column else {
                return None;
            };
            if bytes.len() % count != 0 {
                return None;
            }
            low[at] = *base;
            let values = column::values(*base, bytes, count);
            high[at] = values.iter().copied().max()?;
            for (task, value) in tasks.iter_mut().zip(values) {
                task[at] = value;
            }
        }
        Some(Self {
            shared,
            first,
            tasks,
            low,
            high,
        })
    }
}

/// Computes the FNV-1a checksum of all values of a row. Rows of earlier releases have no column for
/// the instance; they contain the first instance.
fn check_of<'a>(row: impl Iterator<Item = ValueRef<'a>>, instance: i64) -> i64 {
    let mut bytes = Vec::with_capacity(2 * BYTES_MAX);
    let instance = (instance != 0).then_some(ValueRef::Integer(instance));
    for value in row.chain(instance) {
        match value {
            ValueRef::Integer(number) => bytes.extend(number.to_le_bytes()),
            ValueRef::Blob(blob) => bytes.extend(blob),
            ValueRef::Null | ValueRef::Real(_) | ValueRef::Text(_) => {}
        }
    }
    encode::checksum(&bytes)
}

/// Returns a statement that selects stretches with a condition, for [`Stretch::read`].
pub(crate) fn select(db: &Connection, condition: &str) -> rusqlite::Result<String> {
    let pairs = COLUMNS.map(|name| format!("s.{name}, s.{name}_bytes"));
    let (pairs, instance) = (pairs.join(", "), instance(db)?);
    Ok(format!(
        "SELECT s.job, s.first, s.count, s.variant, {pairs}, s.check_sum, {instance} FROM {condition}"
    ))
}

/// Returns the SQL for the instance of a stretch `s`. In files of earlier releases, it is always
/// the first one.
fn instance(db: &Connection) -> rusqlite::Result<&'static str> {
    let sql =
        "SELECT EXISTS (SELECT 1 FROM pragma_table_info('stretch_data') WHERE name = 'instance')";
    let is_known: bool = db.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
    Ok(if is_known { "s.instance" } else { "0" })
}

/// Returns whether the file has the table of stretches. Files of earlier releases do not have it.
fn is_known(db: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM main.sqlite_schema WHERE name = 'stretch_data')";
    db.query_row(sql, [], |row| row.get(0))
}

/// The job and the first task of a stretch, as stored.
pub(crate) type StretchKey = (i64, i64);

/// Removes stretches that cannot be read, and the rows that depend on them. Their tasks are waiting
/// again, so their jobs are no longer completed.
pub(crate) fn remove_unreadable(db: &Connection, keys: &[StretchKey]) -> rusqlite::Result<()> {
    let mut events = 0;
    for key in keys {
        tracing::error!(
            job = key.0,
            first = key.1,
            "unreadable results of finished tasks are removed; these tasks wait again"
        );
        let sql = "SELECT count(*) FROM stretch_data s JOIN place_data p ON p.place <= s.count \
                   WHERE s.job = ? AND s.first = ?";
        let tasks: i64 = db.query_row(sql, *key, |row| row.get(0))?;
        db.execute("DELETE FROM stretch_data WHERE job = ? AND first = ?", *key)?;
        let sql = "UPDATE job_data SET completed_unix_ns = NULL WHERE id = ?";
        db.execute(sql, [key.0])?;
        // Each task has a start and an end.
        events += 2 * tasks;
    }
    if events > 0 {
        let pruned = meta::number(db, "pruned_count")?;
        meta::set(db, "pruned_count", pruned + events)?;
    }
    Ok(())
}

/// Returns the corrupt stretches.
pub(crate) fn broken(db: &Connection) -> rusqlite::Result<Vec<StretchKey>> {
    let mut broken = Vec::new();
    if !is_known(db)? {
        return Ok(broken);
    }
    each(db, &select(db, "stretch_data s")?, |row| {
        if Stretch::read(row)?.is_none() {
            broken.push((row.get(0)?, row.get(1)?));
        }
        Ok(())
    })?;
    Ok(broken)
}

/// Replaces the views of the file on this connection with temporary ones that have the same names
/// and rows, but decode stretches with a function of this crate. Does nothing for a file of an
/// earlier release.
pub(crate) fn read_fast(db: &Connection) -> rusqlite::Result<()> {
    if !is_known(db)? {
        return Ok(());
    }
    let views: Vec<String> = {
        let sql = "SELECT sql FROM main.sqlite_schema WHERE type = 'view' AND name IN ('tasks', 'attempts', 'events') \
                   ORDER BY rowid";
        let mut statement = db.prepare(sql)?;
        let rows = statement.query_map([], |row| row.get(0))?;
        rows.collect::<Result<_, _>>()?
    };
    let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC;
    db.create_scalar_function("hq_stretch_value", 4, flags, |call| {
        let (base, count, place): (i64, u32, u32) = (call.get(0)?, call.get(2)?, call.get(3)?);
        let bytes = call.get_raw(1).as_blob().unwrap_or_default();
        // Positions start at 1.
        Ok(column::value_at(
            base,
            bytes,
            count as usize,
            (place as usize).wrapping_sub(1),
        ))
    })?;
    let [worker, started, run, rss, user, system, start_seq, end_seq] =
        COLUMNS.map(|name| format!("hq_stretch_value(s.{name}, s.{name}_bytes, s.count, p.place)"));
    let instance = instance(db)?;
    db.execute_batch(&format!(
        "CREATE TEMP VIEW task_data AS \
         SELECT job, task, state, instance, crash_count, worker, variant, started_unix_ns, run_us, outcome, message, \
         max_rss_kib, user_ms, system_ms, start_seq, end_seq, retry_count FROM main.task_row_data \
         UNION ALL SELECT s.job, s.first + p.place - 1, 2, {instance}, 0, {worker}, s.variant, {started}, {run}, 0, NULL, \
         {rss}, {user}, {system}, {start_seq}, {end_seq}, 0 \
         FROM main.stretch_data s CROSS JOIN main.place_data p ON p.place <= s.count"
    ))?;
    for sql in &views {
        if let Some(view) = sql.strip_prefix("CREATE VIEW") {
            db.execute_batch(&format!("CREATE TEMP VIEW{view}"))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
