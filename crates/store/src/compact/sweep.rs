//! Deletes rows in steps. Each step does a limited amount of work, no matter how the rows are
//! distributed over jobs.

use std::collections::{BTreeSet, VecDeque};

use rusqlite::{Transaction, params, params_from_iter};

use crate::meta;
use crate::stretch::{self, Stretch};

/// The amount of work of one step: the rows to delete and the statements to run, which take a few
/// µs each.
const STEP_WORK: u32 = 2_000;
/// The number of rows that one step only reads.
const STEP_SCAN: u32 = 20_000;
/// The number of events that one step reads.
const STEP_EVENTS: u32 = 5_000;

/// The work of deleting a stretch, relative to other rows.
const STRETCH_WORK: u32 = 20;

/// A table that contains rows of jobs: its name, its key, the number of events that a row
/// represents, and the work of deleting a row.
struct JobTable {
    name: &'static str,
    key: &'static str,
    events: &'static str,
    work: u32,
}

const fn table(name: &'static str, key: &'static str, events: &'static str) -> JobTable {
    let work = 1;
    JobTable {
        name,
        key,
        events,
        work,
    }
}

/// The table of jobs comes last, because its row records that the job was forgotten.
const JOB_TABLES: [JobTable; 13] = [
    table(
        "task_row_data",
        "task",
        "(start_seq IS NOT NULL) + (end_seq IS NOT NULL)",
    ),
    JobTable {
        name: "stretch_data",
        key: "first",
        // Each task has a start and an end.
        events: "2 * count",
        work: STRETCH_WORK,
    },
    table("attempt_data", "task, instance", "start_seq IS NOT NULL"),
    table("node_data", "task, instance, position", "0"),
    table("value_data", "task, instance, worker", "0"),
    table("curve_data", "task, instance, worker", "0"),
    table("gpu_curve_data", "task, instance, worker", "0"),
    table("grown_data", "task, instance", "0"),
    table("dropped_data", "rowid", "0"),
    table("notification_data", "number", "0"),
    table("submit_data", "rowid", "0"),
    table("event_log", "seq", "1"),
    table("job_data", "id", "0"),
];

/// The tables that refer to workers, with their keys.
const WORKER_TABLES: [(&str, &str, usize); 4] = [
    ("task_row_data", "job, task", 2),
    (STRETCHES, "job, first", 2),
    ("attempt_data", "job, task, instance", 3),
    ("node_data", "job, task, instance, position", 4),
];

/// The only one of these tables where a row refers to several workers.
const STRETCHES: &str = "stretch_data";

/// The pending deletions, in this order.
#[derive(Debug)]
enum Work {
    /// Deletes the rows of these jobs, starting with the last job. `table` is the next table of the
    /// last job.
    Jobs { jobs: Vec<u32>, table: usize },
    /// Deletes this many worker overviews, the oldest first.
    Overviews(u64),
    /// Finds ended workers that no row refers to anymore. `unused` is `None` before the search
    /// starts.
    FindWorkers {
        unused: Option<BTreeSet<u32>>,
        table: usize,
        after: Vec<i64>,
    },
    /// Deletes these workers.
    Workers(BTreeSet<u32>),
    /// Deletes the events after the number `after` of workers that no longer exist. With
    /// `is_prune`, also deletes events of workers that have ended, and all overviews.
    WorkerEvents { after: i64, is_prune: bool },
}

/// The records that a sweep deletes in addition to forgotten jobs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Scope {
    /// Whether to delete lost workers that no row refers to anymore.
    pub(super) with_workers: bool,
    /// Whether to delete everything that the journal does not need.
    pub(super) is_prune: bool,
    /// The number of worker overviews to delete.
    pub(super) overviews: u64,
}

#[derive(Debug)]
pub(super) struct Sweep(VecDeque<Work>);

impl Sweep {
    /// Reads which jobs were forgotten, without reading anything else.
    pub(super) fn new(db: &Transaction<'_>, scope: Scope) -> rusqlite::Result<Self> {
        let mut statement =
            db.prepare_cached("SELECT id FROM job_data WHERE is_forgotten ORDER BY id DESC")?;
        let jobs = statement.query_map([], |row| row.get(0))?;
        let jobs = jobs.collect::<Result<_, _>>()?;
        let mut work = VecDeque::from([Work::Jobs { jobs, table: 0 }]);
        if scope.overviews > 0 {
            work.push_back(Work::Overviews(scope.overviews));
        }
        if scope.with_workers || scope.is_prune {
            work.push_back(Work::FindWorkers {
                unused: None,
                table: 0,
                after: Vec::new(),
            });
            work.push_back(Work::WorkerEvents {
                after: 0,
                is_prune: scope.is_prune,
            });
        }
        Ok(Self(work))
    }

    /// Runs one step. Returns whether the sweep is complete. If the transaction fails, the sweep
    /// must be started again.
    pub(super) fn step(&mut self, db: &Transaction<'_>) -> rusqlite::Result<bool> {
        let Some(work) = self.0.front_mut() else {
            return Ok(true);
        };
        let mut removed_events = 0;
        let is_done = match work {
            Work::Jobs { jobs, table } => sweep_jobs(db, jobs, table, &mut removed_events)?,
            Work::Overviews(left) => sweep_overviews(db, left, &mut removed_events)?,
            Work::FindWorkers {
                unused,
                table,
                after,
            } => {
                let found = match unused.take() {
                    Some(found) => found,
                    None => ended_workers(db)?,
                };
                let found = unused.insert(found);
                let is_done = found.is_empty() || find_used(db, found, table, after)?;
                if is_done {
                    let unused = std::mem::take(found);
                    self.0.insert(1, Work::Workers(unused));
                }
                is_done
            }
            Work::Workers(workers) => sweep_workers(db, workers)?,
            Work::WorkerEvents { after, is_prune } => {
                sweep_worker_events(db, after, *is_prune, &mut removed_events)?
            }
        };
        if is_done {
            self.0.pop_front();
        }
        if removed_events > 0 {
            let pruned = meta::number(db, "pruned_count")?;
            meta::set(db, "pruned_count", pruned + removed_events)?;
        }
        Ok(self.0.is_empty())
    }
}

fn sweep_jobs(
    db: &Transaction<'_>,
    jobs: &mut Vec<u32>,
    table: &mut usize,
    removed_events: &mut i64,
) -> rusqlite::Result<bool> {
    let mut left = STEP_WORK;
    while let Some(job) = jobs.last() {
        while let Some(found) = JOB_TABLES.get(*table) {
            if left == 0 {
                return Ok(false);
            }
            let JobTable {
                name,
                key,
                events,
                work,
            } = found;
            let rows_max = left.div_ceil(*work);
            let column = if *name == "job_data" { "id" } else { "job" };
            let sql = format!(
                "DELETE FROM {name} WHERE {column} = ?1 AND ({key}) IN \
                 (SELECT {key} FROM {name} WHERE {column} = ?1 LIMIT ?2) RETURNING {events}"
            );
            let mut statement = db.prepare_cached(&sql)?;
            let mut rows = statement.query(params![job, rows_max])?;
            let mut deleted = 0;
            while let Some(row) = rows.next()? {
                deleted += 1;
                *removed_events += row.get::<_, i64>(0)?;
            }
            if deleted < rows_max {
                *table += 1;
            }
            left = left.saturating_sub(deleted * work + 1);
        }
        jobs.pop();
        *table = 0;
    }
    Ok(true)
}

fn sweep_overviews(
    db: &Transaction<'_>,
    left: &mut u64,
    removed_events: &mut i64,
) -> rusqlite::Result<bool> {
    let count = (*left).min(STEP_WORK.into());
    let sql = "DELETE FROM event_log WHERE seq IN (SELECT seq FROM event_log INDEXED BY event_overview \
               WHERE type = 'worker-overview' ORDER BY seq LIMIT ?)";
    let removed = db.prepare_cached(sql)?.execute([count.cast_signed()])? as u64;
    *removed_events += removed.cast_signed();
    *left -= removed.min(*left);
    Ok(*left == 0 || removed < count)
}

fn ended_workers(db: &Transaction<'_>) -> rusqlite::Result<BTreeSet<u32>> {
    let mut statement =
        db.prepare_cached("SELECT id FROM worker_data WHERE ended_unix_ns IS NOT NULL")?;
    let ids = statement.query_map([], |row| row.get(0))?;
    ids.collect()
}

/// Removes the workers that some row refers to from `unused`. A row that moves to another table in
/// the meantime is seen in one of the two: tasks are read first, and the tables that their rows
/// move to are read later. Rows and stretches that are added in the meantime refer to connected
/// workers.
fn find_used(
    db: &Transaction<'_>,
    unused: &mut BTreeSet<u32>,
    table: &mut usize,
    after: &mut Vec<i64>,
) -> rusqlite::Result<bool> {
    let Some((name, key, width)) = WORKER_TABLES.get(*table) else {
        return Ok(true);
    };
    after.resize(*width, -1);
    if *name == STRETCHES {
        let is_done = find_used_in_stretches(db, unused, after)?;
        if is_done {
            *table += 1;
            after.clear();
        }
        return Ok(false);
    }
    let marks = vec!["?"; *width].join(", ");
    let sql = format!(
        "SELECT worker, {key} FROM {name} WHERE ({key}) > ({marks}) ORDER BY {key} LIMIT {STEP_SCAN}"
    );
    let mut statement = db.prepare_cached(&sql)?;
    let mut rows = statement.query(params_from_iter(after.clone()))?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        count += 1;
        unused.remove(&row.get(0)?);
        for (at, value) in after.iter_mut().enumerate() {
            *value = row.get(at + 1)?;
        }
    }
    if count < STEP_SCAN {
        *table += 1;
        after.clear();
    }
    Ok(*table == WORKER_TABLES.len())
}

/// Does the same as [`find_used`], for stretches. `after` is the key of the last stretch that was
/// read. Returns whether none are left.
fn find_used_in_stretches(
    db: &Transaction<'_>,
    unused: &mut BTreeSet<u32>,
    after: &mut [i64],
) -> rusqlite::Result<bool> {
    let count_max = STEP_SCAN / u32::try_from(stretch::TASKS_MAX).unwrap_or(1);
    let condition = format!(
        "stretch_data s WHERE (s.job, s.first) > (?, ?) ORDER BY s.job, s.first LIMIT {count_max}"
    );
    let sql = stretch::select(db, &condition)?;
    let mut statement = db.prepare_cached(&sql)?;
    let mut rows = statement.query(params_from_iter(after.to_vec()))?;
    let mut count = 0;
    while let Some(row) = rows.next()? {
        count += 1;
        for (at, value) in after.iter_mut().enumerate() {
            *value = row.get(at)?;
        }
        match Stretch::read(row)? {
            Some(found) => {
                for worker in found.workers() {
                    unused.remove(&worker);
                }
            }
            // If a stretch cannot be read, its workers are unknown, so all workers are kept.
            None => unused.clear(),
        }
    }
    Ok(count < count_max)
}

fn sweep_workers(db: &Transaction<'_>, workers: &mut BTreeSet<u32>) -> rusqlite::Result<bool> {
    for _ in 0..STEP_WORK {
        let Some(worker) = workers.pop_first() else {
            return Ok(true);
        };
        db.prepare_cached("DELETE FROM worker_data WHERE id = ?")?
            .execute([worker])?;
    }
    Ok(false)
}

fn sweep_worker_events(
    db: &Transaction<'_>,
    after: &mut i64,
    is_prune: bool,
    removed_events: &mut i64,
) -> rusqlite::Result<bool> {
    let sql = format!(
        "SELECT max(seq) FROM (SELECT seq FROM event_log WHERE seq > ? ORDER BY seq LIMIT {STEP_EVENTS})"
    );
    let upto: Option<i64> = db
        .prepare_cached(&sql)?
        .query_row([*after], |row| row.get(0))?;
    let Some(upto) = upto else { return Ok(true) };
    let condition = if is_prune {
        "type = 'worker-overview' OR (worker IS NOT NULL AND NOT EXISTS \
         (SELECT 1 FROM worker_data w WHERE w.id = event_log.worker AND w.ended_unix_ns IS NULL))"
    } else {
        "worker IS NOT NULL AND NOT EXISTS (SELECT 1 FROM worker_data w WHERE w.id = event_log.worker)"
    };
    let sql = format!("DELETE FROM event_log WHERE seq > ? AND seq <= ? AND ({condition})");
    let removed = db.prepare_cached(&sql)?.execute([*after, upto])?;
    *removed_events += i64::try_from(removed).unwrap_or(0);
    *after = upto;
    Ok(false)
}
