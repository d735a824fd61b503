//! Stores the task ends of a group. Finished neighbors are stored directly as a stretch, without
//! storing rows first.
//!
//! Ends that do not fit into a stretch are stored as rows. Compaction may fold them later, together
//! with neighbors that finish in another group.

use std::collections::BTreeMap;

use hq_core::id::{TaskId, TaskKey};
use hq_core::task::TaskState;
use rusqlite::{Connection, params};

use super::rows::{EndRow, write_ends};
use crate::stretch::{Shared, Stretch, TASKS_MAX};

/// The maximum distance from a task to the start of its stretch.
const TASKS_BEFORE: u32 = 255;

const _: () = assert!(TASKS_BEFORE as usize == TASKS_MAX - 1);

/// Facts that are only in the row of the start: the variant and the event number.
#[derive(Clone, Copy)]
struct StartFacts {
    variant: u32,
    start_seq: i64,
}

/// Stores task ends, which may be in any order. Neighbors are stored as stretches of `len_min` or
/// more tasks, and the other tasks as rows.
pub(super) fn write(
    db: &Connection,
    mut ends: Vec<EndRow<'_>>,
    len_min: u32,
) -> rusqlite::Result<()> {
    // The sort is stable, so if a task ended twice, the later end is kept.
    ends.sort_by_key(|end| end.task);
    ends.dedup_by(|later, earlier| {
        let is_same = later.task == earlier.task;
        if is_same {
            later.start = later.start.or(earlier.start);
            std::mem::swap(later, earlier);
        }
        is_same
    });
    let mut rows: Vec<&EndRow<'_>> = Vec::new();
    for run in ends.chunk_by(is_next) {
        let is_long = run.len() >= len_min as usize && run.iter().all(EndRow::is_plain);
        if is_long {
            write_run(db, run, len_min, &mut rows)?;
        } else {
            rows.extend(run);
        }
    }
    write_ends(db, rows)
}

fn is_next(one: &EndRow<'_>, next: &EndRow<'_>) -> bool {
    let key = |id: u32| TaskKey::new(one.task.job, TaskId(id));
    let follows = one.task.task.as_u32().checked_add(1).map(key) == Some(next.task);
    // A failed task must not prevent its neighbors from forming a stretch.
    follows && one.instance == next.instance && one.is_plain() == next.is_plain()
}

/// Stores neighbors as stretches. Adds the other tasks to `rows`: tasks that do not fill a stretch,
/// and all tasks if one of them has more data than a stretch can hold.
fn write_run<'a>(
    db: &Connection,
    run: &'a [EndRow<'a>],
    len_min: u32,
    rows: &mut Vec<&'a EndRow<'a>>,
) -> rusqlite::Result<()> {
    if has_more(db, run)? {
        rows.extend(run);
        return Ok(());
    }
    let before = rows_before(db, run)?;
    let Some(begun) = begun(&before, run) else {
        rows.extend(run);
        return Ok(());
    };
    let mut tasks = (run, begun.as_slice());
    while let Some(stretch) = first_stretch(tasks) {
        let len = stretch.len() as usize;
        if len < len_min as usize {
            rows.extend(&tasks.0[..len]);
        } else {
            if !before.is_empty() {
                delete_rows(db, &stretch)?;
            }
            stretch.write(db)?;
        }
        tasks = (&tasks.0[len..], &tasks.1[len..]);
    }
    Ok(())
}

/// Returns the job and the first and last id of neighbors.
fn range(run: &[EndRow<'_>]) -> [u32; 3] {
    let id = |end: Option<&EndRow<'_>>| end.map_or(0, |end| end.task.task.as_u32());
    let job = run.first().map_or(0, |end| end.task.job.as_u32());
    [job, id(run.first()), id(run.last())]
}

/// Returns whether one of the tasks has nodes or a value, which queries find through its row, or is
/// already in a stretch.
fn has_more(db: &Connection, run: &[EndRow<'_>]) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM node_data WHERE job = ?1 AND task BETWEEN ?2 AND ?3) \
               OR EXISTS (SELECT 1 FROM value_data WHERE job = ?1 AND task BETWEEN ?2 AND ?3) \
               OR EXISTS (SELECT 1 FROM stretch_data WHERE job = ?1 \
               AND first BETWEEN ?2 - ?4 AND ?3 AND first + count > ?2)";
    let [job, first, last] = range(run);
    db.prepare_cached(sql)?
        .query_row(params![job, first, last, TASKS_BEFORE], |row| row.get(0))
}

/// Returns the longest stretch that begins with the first task. Returns `None` if there are no
/// tasks.
fn first_stretch((run, begun): (&[EndRow<'_>], &[StartFacts])) -> Option<Stretch> {
    let mut tasks = run.iter().zip(begun);
    let shared = |end: &EndRow<'_>, begun: &StartFacts| Shared {
        job: end.task.job.as_u32(),
        variant: begun.variant,
        instance: end.instance.as_u32(),
    };
    let (first, how) = tasks.next()?;
    let values = first.values(how.start_seq);
    let mut stretch = Stretch::new(shared(first, how), first.task.task.as_u32(), values);
    for (end, how) in tasks {
        let fits = shared(end, how) == stretch.shared && stretch.push(end.values(how.start_seq));
        if !fits {
            break;
        }
    }
    Some(stretch)
}

fn delete_rows(db: &Connection, stretch: &Stretch) -> rusqlite::Result<()> {
    let (first, last) = stretch.ids().into_inner();
    db.prepare_cached("DELETE FROM task_row_data WHERE job = ? AND task BETWEEN ? AND ?")?
        .execute(params![stretch.shared.job, first, last])?;
    Ok(())
}

/// Returns the start of each task. Returns `None` if a start is unknown, or if a row has more data
/// than a stretch can hold.
fn begun(before: &Rows, run: &[EndRow<'_>]) -> Option<Vec<StartFacts>> {
    let begun = |end: &EndRow<'_>| {
        let row = before.get(&end.task.task.as_u32());
        match (end.start, row) {
            (_, Some(None)) => None,
            (Some((variant, start_seq)), _) => Some(StartFacts { variant, start_seq }),
            (None, Some(Some(row))) if row.instance == end.instance.as_u32() => row.begun,
            (None, _) => None,
        }
    };
    run.iter().map(begun).collect()
}

/// The row of a task before its end is stored.
struct PreviousRow {
    instance: u32,
    begun: Option<StartFacts>,
}

/// The rows by task id. `None` if the row has more data than a stretch can hold.
type Rows = BTreeMap<u32, Option<PreviousRow>>;

fn rows_before(db: &Connection, run: &[EndRow<'_>]) -> rusqlite::Result<Rows> {
    let sql = "SELECT task, state, instance, crash_count, retry_count, variant, start_seq \
               FROM task_row_data WHERE job = ? AND task BETWEEN ? AND ?";
    let mut statement = db.prepare_cached(sql)?;
    let found = statement.query_map(range(run), |row| {
        let (crashes, retries): (i64, i64) = (row.get(3)?, row.get(4)?);
        let (variant, start_seq): (u32, Option<i64>) = (row.get(5)?, row.get(6)?);
        let is_running = TaskState::from_number(row.get(1)?) == Some(TaskState::Running);
        let before = PreviousRow {
            instance: row.get(2)?,
            begun: start_seq
                .filter(|_| is_running)
                .map(|start_seq| StartFacts { variant, start_seq }),
        };
        let is_plain = crashes == 0 && retries == 0;
        Ok((row.get(0)?, is_plain.then_some(before)))
    })?;
    found.collect()
}

#[cfg(test)]
mod tests;
