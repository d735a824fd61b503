//! Folds rows of finished tasks into stretches, in key order, with a limit on the rows per step.
//!
//! A finished task never changes, and no acknowledgment depends on how it is stored, so a crash
//! between two steps does not lose anything.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use hq_core::outcome::OutcomeCode;
use hq_core::task::TaskState;
use rusqlite::{Connection, Row, params};

use crate::stretch::{Shared, Stretch, Values};

/// The number of rows that one step reads, which takes a few milliseconds.
const STEP_ROWS: u32 = 1_024;
/// The minimum length of a stretch. A shorter one takes up hardly any less space than its rows.
const LEN_MIN: u32 = 8;

/// A pass over all rows.
#[derive(Debug)]
pub(super) struct Fold {
    /// The key of the last row that was processed.
    mark: (i64, i64),
    len_min: u32,
    /// The number of tasks that were moved into stretches.
    pub(super) folded: u64,
    /// The number of rows that were left unchanged.
    pub(super) left: u64,
}

/// A row: its key and, if a stretch can hold the row, the rest of it.
struct FoldRow {
    job: u32,
    task: u32,
    is_terminal: bool,
    part: Option<(Shared, Values)>,
}

impl Fold {
    pub(super) const fn new() -> Self {
        Self {
            mark: (-1, -1),
            len_min: LEN_MIN,
            folded: 0,
            left: 0,
        }
    }

    /// Processes some rows in the caller's transaction. Returns whether the pass is complete. If
    /// the transaction fails, the pass must be started again.
    pub(super) fn step(&mut self, db: &Connection) -> rusqlite::Result<bool> {
        let rows = read(db, self.mark)?;
        let Some(last) = rows.last() else {
            return Ok(true);
        };
        let is_last = rows.len() < STEP_ROWS as usize;
        self.mark = (last.job.into(), last.task.into());
        let mut jobs = Jobs::default();
        let mut open: Option<Stretch> = None;
        for row in &rows {
            let part = match row.part {
                Some(part) if !jobs.has_more(db, row, &rows)? => part,
                _ => {
                    self.left += 1;
                    let next = open.as_ref().map(next_key);
                    // The rows after this one start another stretch, even if their tasks have
                    // ended.
                    let is_settled = row.is_terminal && next == Some((row.job, row.task));
                    self.close(db, &mut jobs, open.take(), is_settled)?;
                    continue;
                }
            };
            let (shared, values) = part;
            let is_next = open
                .as_ref()
                .is_some_and(|open| next_key(open) == (row.job, row.task) && open.shared == shared);
            if is_next && open.as_mut().is_some_and(|open| open.push(values)) {
                continue;
            }
            self.close(db, &mut jobs, open.take(), is_next)?;
            open = Some(Stretch::new(shared, row.task, values));
        }
        match open {
            // The next step may extend this stretch. The stretch is far shorter than a step, so the
            // pass makes progress.
            Some(open) if !is_last => {
                self.mark = (open.shared.job.into(), i64::from(open.first) - 1);
            }
            open => self.close(db, &mut jobs, open, false)?,
        }
        Ok(is_last)
    }

    /// Replaces rows with a stretch, unless the stretch may still grow. `is_settled` means that the
    /// row after it cannot extend it.
    fn close(
        &mut self,
        db: &Connection,
        jobs: &mut Jobs,
        stretch: Option<Stretch>,
        is_settled: bool,
    ) -> rusqlite::Result<()> {
        let Some(stretch) = stretch else {
            return Ok(());
        };
        let len = stretch.len();
        let job = stretch.shared.job;
        let can_be_folded = len >= self.len_min
            && (is_settled || jobs.is_completed(db, job)? || is_before_another(db, &stretch)?);
        if !can_be_folded {
            self.left += u64::from(len);
            return Ok(());
        }
        let sql = "DELETE FROM task_row_data WHERE job = ? AND task BETWEEN ? AND ?";
        let (first, last) = stretch.ids().into_inner();
        let deleted = db
            .prepare_cached(sql)?
            .execute(params![stretch.shared.job, first, last])?;
        if deleted != len as usize {
            // The rollback restores the rows.
            return Err(rusqlite::Error::StatementChangedRows(deleted));
        }
        self.folded += u64::from(len);
        stretch.write(db)
    }
}

/// Returns whether the next task is already in a stretch. Stretches never grow.
fn is_before_another(db: &Connection, stretch: &Stretch) -> rusqlite::Result<bool> {
    let (job, next) = next_key(stretch);
    let sql = "SELECT EXISTS (SELECT 1 FROM stretch_data WHERE job = ? AND first = ?)";
    db.prepare_cached(sql)?
        .query_row([job, next], |row| row.get(0))
}

/// Folds all rows that can be folded. In simulated worlds, even the shortest stretches are folded.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn fold_all(db: &Connection, len_min: u32) -> rusqlite::Result<u64> {
    let mut fold = Fold {
        len_min,
        ..Fold::new()
    };
    while !fold.step(db)? {}
    Ok(fold.folded)
}

/// Returns the job and the id of the task that would extend the stretch.
fn next_key(stretch: &Stretch) -> (u32, u32) {
    let last = *stretch.ids().end();
    // The highest id wraps around to an id that can never follow it.
    (stretch.shared.job, last.wrapping_add(1))
}

fn read(db: &Connection, mark: (i64, i64)) -> rusqlite::Result<Vec<FoldRow>> {
    let sql = format!(
        "SELECT job, task, state, instance, crash_count, retry_count, variant, outcome, message IS NULL, \
         worker, started_unix_ns, run_us, max_rss_kib, user_ms, system_ms, start_seq, end_seq \
         FROM task_row_data WHERE (job, task) > (?, ?) ORDER BY job, task LIMIT {STEP_ROWS}"
    );
    let mut statement = db.prepare_cached(&sql)?;
    let rows = statement.query_map([mark.0, mark.1], |row| {
        let state = TaskState::from_number(row.get(2)?);
        Ok(FoldRow {
            job: row.get(0)?,
            task: row.get(1)?,
            is_terminal: !matches!(state, Some(TaskState::Waiting | TaskState::Running) | None),
            part: part(row, state)?,
        })
    })?;
    rows.collect()
}

/// Returns the part of a row that its neighbors share, and its values. Returns `None` if a stretch
/// cannot hold the row.
fn part(row: &Row<'_>, state: Option<TaskState>) -> rusqlite::Result<Option<(Shared, Values)>> {
    let number = |at| row.get::<_, Option<i64>>(at);
    let is_plain = state == Some(TaskState::Finished)
        && number(4)? == Some(0)
        && number(5)? == Some(0)
        && number(7)? == Some(OutcomeCode::FINISHED.number().into())
        && row.get(8)?;
    if !is_plain {
        return Ok(None);
    }
    let mut values = Values::default();
    for (value, at) in values.iter_mut().zip(9..) {
        match number(at)? {
            Some(found) => *value = found,
            None => return Ok(None),
        }
    }
    let shared = Shared {
        job: row.get(0)?,
        variant: row.get(6)?,
        instance: row.get(3)?,
    };
    Ok(Some((shared, values)))
}

/// Facts about jobs, cached for one step.
#[derive(Default)]
struct Jobs {
    completed: BTreeMap<u32, bool>,
    /// The tasks that have rows in other tables.
    with_more: BTreeMap<u32, BTreeSet<u32>>,
}

impl Jobs {
    fn is_completed(&mut self, db: &Connection, job: u32) -> rusqlite::Result<bool> {
        if let Some(is_completed) = self.completed.get(&job) {
            return Ok(*is_completed);
        }
        let sql =
            "SELECT EXISTS (SELECT 1 FROM job_data WHERE id = ? AND completed_unix_ns IS NOT NULL)";
        let is_completed = db.prepare_cached(sql)?.query_row([job], |row| row.get(0))?;
        self.completed.insert(job, is_completed);
        Ok(is_completed)
    }

    /// Returns whether a task of `rows` has nodes or a value. Queries find these through the task's
    /// row.
    fn has_more(
        &mut self,
        db: &Connection,
        row: &FoldRow,
        rows: &[FoldRow],
    ) -> rusqlite::Result<bool> {
        if let Entry::Vacant(entry) = self.with_more.entry(row.job) {
            let of_job = rows.partition_point(|other| other.job <= row.job);
            let last = rows
                .get(of_job.wrapping_sub(1))
                .map_or(row.task, |last| last.task);
            let sql = "SELECT task FROM node_data WHERE job = ?1 AND task BETWEEN ?2 AND ?3 \
                       UNION SELECT task FROM value_data WHERE job = ?1 AND task BETWEEN ?2 AND ?3";
            let mut statement = db.prepare_cached(sql)?;
            let tasks = statement.query_map([row.job, row.task, last], |row| row.get(0))?;
            entry.insert(tasks.collect::<Result<_, _>>()?);
        }
        let found = self.with_more.get(&row.job);
        Ok(found.is_some_and(|tasks| tasks.contains(&row.task)))
    }
}

#[cfg(test)]
mod tests;
