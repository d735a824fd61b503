//! Tasks that finished, until the end of their group: neighbours become a stretch at once, without a row of each in between.
//!
//! What cannot be part of one is stored as a row, which compaction may fold later, with neighbours that finish in another
//! group.

use std::collections::BTreeMap;

use hq_core::id::{TaskId, TaskKey};
use hq_core::task::TaskState;
use rusqlite::{Connection, params};

use super::rows::EndRow;
use crate::stretch::{Shared, Stretch};

/// What a row tells that its end does not: the variant and the number of the start.
#[derive(Clone, Copy)]
struct Begun {
    variant: u32,
    start_seq: i64,
}

/// Stores ends, in any order: as few rows as can be.
pub(super) fn write(
    db: &Connection,
    mut ends: Vec<EndRow<'_>>,
    len_min: u32,
) -> rusqlite::Result<()> {
    // Stable: whatever two ends of one task were, the later one is stored last.
    ends.sort_by_key(|end| end.task);
    for run in ends.chunk_by(|one, next| is_next(one, next)) {
        let is_long = run.len() >= len_min as usize && run.iter().all(EndRow::is_plain);
        let is_stored = is_long && write_run(db, run, len_min)?;
        if !is_stored {
            run.iter().try_for_each(|end| end.write(db))?;
        }
    }
    Ok(())
}

fn is_next(one: &EndRow<'_>, next: &EndRow<'_>) -> bool {
    let key = |id: u32| TaskKey::new(one.task.job, TaskId(id));
    let follows = one.task.task.as_u32().checked_add(1).map(key) == Some(next.task);
    // One that failed must not keep its neighbours from being a stretch.
    follows && one.instance == next.instance && one.is_plain() == next.is_plain()
}

/// Stores neighbours as stretches; `false` if one of them has more than a stretch can hold.
fn write_run(db: &Connection, run: &[EndRow<'_>], len_min: u32) -> rusqlite::Result<bool> {
    let (Some(first), Some(last)) = (run.first(), run.last()) else {
        return Ok(true);
    };
    let range = params![
        first.task.job.as_u32(),
        first.task.task.as_u32(),
        last.task.task.as_u32()
    ];
    let sql = "SELECT EXISTS (SELECT 1 FROM node_data WHERE job = ?1 AND task BETWEEN ?2 AND ?3) \
               OR EXISTS (SELECT 1 FROM value_data WHERE job = ?1 AND task BETWEEN ?2 AND ?3)";
    if db.prepare_cached(sql)?.query_row(range, |row| row.get(0))? {
        return Ok(false);
    }
    let rows = rows(db, run)?;
    let Some(begun) = begun(&rows, run) else {
        return Ok(false);
    };
    let mut rest = run;
    let mut begun = begun.as_slice();
    while let Some(stretch) = first_stretch(rest, begun) {
        let (ends, behind) = rest.split_at(stretch.len() as usize);
        if ends.len() < len_min as usize {
            ends.iter().try_for_each(|end| end.write(db))?;
        } else {
            if !rows.is_empty() {
                delete_rows(db, &stretch)?;
            }
            stretch.write(db)?;
        }
        rest = behind;
        begun = &begun[ends.len()..];
    }
    Ok(true)
}

/// As many of the tasks as fit into one stretch; `None`: there are none.
fn first_stretch(run: &[EndRow<'_>], begun: &[Begun]) -> Option<Stretch> {
    let mut tasks = run.iter().zip(begun);
    let shared = |end: &EndRow<'_>, begun: &Begun| Shared {
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

/// How each of the tasks began; `None` if that is not known of one, or its row tells more than a stretch can.
fn begun(rows: &Rows, run: &[EndRow<'_>]) -> Option<Vec<Begun>> {
    let begun = |end: &EndRow<'_>| {
        let row = rows.get(&end.task.task.as_u32());
        match (end.start, row) {
            (_, Some(None)) => None,
            (Some((variant, start_seq)), _) => Some(Begun { variant, start_seq }),
            (None, Some(Some(row))) if row.instance == end.instance.as_u32() => row.begun,
            (None, _) => None,
        }
    };
    run.iter().map(begun).collect()
}

/// The row that a task has before its end is stored.
struct Before {
    instance: u32,
    begun: Option<Begun>,
}

/// Rows by the ids of their tasks; `None`: one that tells more than a stretch can.
type Rows = BTreeMap<u32, Option<Before>>;

fn rows(db: &Connection, run: &[EndRow<'_>]) -> rusqlite::Result<Rows> {
    let (Some(first), Some(last)) = (run.first(), run.last()) else {
        return Ok(Rows::new());
    };
    let sql = "SELECT task, state, instance, crash_count, retry_count, variant, start_seq \
               FROM task_row_data WHERE job = ? AND task BETWEEN ? AND ?";
    let mut statement = db.prepare_cached(sql)?;
    let (first, last) = (first.task, last.task.task.as_u32());
    let found = statement.query_map(
        params![first.job.as_u32(), first.task.as_u32(), last],
        |row| {
            let (crashes, retries): (i64, i64) = (row.get(3)?, row.get(4)?);
            let (variant, start_seq): (u32, Option<i64>) = (row.get(5)?, row.get(6)?);
            let is_running = TaskState::from_number(row.get(1)?) == Some(TaskState::Running);
            let before = Before {
                instance: row.get(2)?,
                begun: start_seq
                    .filter(|_| is_running)
                    .map(|start_seq| Begun { variant, start_seq }),
            };
            let is_plain = crashes == 0 && retries == 0;
            Ok((row.get(0)?, is_plain.then_some(before)))
        },
    )?;
    found.collect()
}

#[cfg(test)]
mod tests;
