//! Stores starts and ends of tasks as rows, and prepares task ends that become part of a stretch.

use std::time::Duration;

use hq_core::id::{InstanceId, TaskKey, WorkerId};
use hq_core::outcome::OutcomeCode;
use hq_core::task::{TaskEnd, TaskState};
use hq_core::time::Timestamp;
use rusqlite::{Connection, params};

use crate::encode;
use crate::stretch::Values;

/// A task start that has not been written yet, because the task's end may follow in the same group.
pub(super) struct Start {
    pub(super) at: Timestamp,
    pub(super) instance: InstanceId,
    pub(super) variant: u32,
    pub(super) worker: WorkerId,
    pub(super) seq: i64,
}

pub(super) fn write_starts(
    db: &Connection,
    starts: impl IntoIterator<Item = (TaskKey, Start)>,
) -> rusqlite::Result<()> {
    // An existing row keeps its crashes and retries, because they belong to the task and not to an
    // instance.
    let sql = "INSERT INTO task_row_data (job, task, state, instance, crash_count, worker, variant, \
               started_unix_ns, start_seq) VALUES (?1, ?2, ?8, ?3, 0, ?4, ?5, ?6, ?7) \
               ON CONFLICT DO UPDATE SET state = ?8, instance = ?3, worker = ?4, variant = ?5, \
               started_unix_ns = ?6, start_seq = ?7";
    // The statement is prepared once for all rows: a lookup per row took about 8 % of this thread's
    // time.
    let mut insert = db.prepare_cached(sql)?;
    for (task, start) in starts {
        if start.instance != InstanceId(0) {
            keep_attempt(db, task, start.instance)?;
        }
        insert.execute(params![
            task.job.as_u32(),
            task.task.as_u32(),
            start.instance.as_u32(),
            start.worker.as_u32(),
            start.variant,
            start.at.0,
            start.seq,
            TaskState::Running.number()
        ])?;
    }
    Ok(())
}

/// Converts the row of an instance that was interrupted by the end of a server to an attempt when
/// another instance starts.
fn keep_attempt(db: &Connection, task: TaskKey, instance: InstanceId) -> rusqlite::Result<()> {
    let sql = "INSERT OR IGNORE INTO attempt_data (job, task, instance, worker, variant, \
               started_unix_ns, start_seq) SELECT job, task, instance, worker, variant, \
               started_unix_ns, start_seq FROM task_row_data \
               WHERE job = ? AND task = ? AND state = ? AND instance <> ?";
    db.prepare_cached(sql)?.execute(params![
        task.job.as_u32(),
        task.task.as_u32(),
        TaskState::Running.number(),
        instance.as_u32()
    ])?;
    Ok(())
}

/// The end of a task, to be stored.
pub(super) struct EndRow<'a> {
    pub(super) task: TaskKey,
    pub(super) instance: InstanceId,
    pub(super) worker: WorkerId,
    pub(super) crash_count: u32,
    pub(super) end: &'a TaskEnd,
    pub(super) is_finished: bool,
    /// The variant and the event number of a start in the same group.
    pub(super) start: Option<(u32, i64)>,
    pub(super) seq: i64,
}

impl EndRow<'_> {
    /// Returns whether a stretch can hold the task, based on its end.
    pub(super) fn is_plain(&self) -> bool {
        let (code, text) = encode::outcome_code(&self.end.outcome);
        let is_good = code == OutcomeCode::FINISHED.number() && text.is_none();
        self.is_finished && self.crash_count == 0 && is_good
    }

    /// Returns the start time as measured by the worker, as in the state.
    fn started(&self) -> i64 {
        self.end.at.minus(self.end.run).0
    }

    pub(super) fn values(&self, start_seq: i64) -> Values {
        let usage = &self.end.usage;
        [
            self.worker.as_u32().into(),
            self.started(),
            micros(self.end.run),
            kib(usage.max_rss_kib).into(),
            millis(usage.user).into(),
            millis(usage.system).into(),
            start_seq,
            self.seq,
        ]
    }
}

pub(super) fn write_ends<'a>(
    db: &Connection,
    ends: impl IntoIterator<Item = &'a EndRow<'a>>,
) -> rusqlite::Result<()> {
    // The row of a start in an earlier group keeps its variant and number, because the end does not
    // contain them.
    let sql = "INSERT INTO task_row_data (job, task, state, instance, crash_count, worker, variant, \
               started_unix_ns, run_us, outcome, message, max_rss_kib, user_ms, system_ms, \
               start_seq, end_seq) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, \
               ?14, ?15, ?16) ON CONFLICT DO UPDATE SET state = ?3, instance = ?4, crash_count = ?5, \
               worker = ?6, variant = CASE WHEN ?15 IS NULL THEN variant ELSE ?7 END, \
               started_unix_ns = ?8, run_us = ?9, outcome = ?10, message = ?11, \
               max_rss_kib = ?12, user_ms = ?13, system_ms = ?14, \
               start_seq = coalesce(?15, start_seq), end_seq = ?16";
    let mut insert = db.prepare_cached(sql)?;
    for row in ends {
        let state = if row.is_finished {
            TaskState::Finished
        } else {
            TaskState::Failed
        };
        let (code, message) = encode::outcome_code(&row.end.outcome);
        let usage = &row.end.usage;
        insert.execute(params![
            row.task.job.as_u32(),
            row.task.task.as_u32(),
            state.number(),
            row.instance.as_u32(),
            row.crash_count,
            row.worker.as_u32(),
            row.start.map_or(0, |(variant, _)| variant),
            row.started(),
            micros(row.end.run),
            code,
            message,
            kib(usage.max_rss_kib),
            millis(usage.user),
            millis(usage.system),
            row.start.map(|(_, seq)| seq),
            row.seq
        ])?;
    }
    Ok(())
}

pub(super) fn kib(kib: u64) -> u32 {
    u32::try_from(kib).unwrap_or(u32::MAX)
}

pub(super) fn millis(span: Duration) -> u32 {
    u32::try_from(span.as_millis()).unwrap_or(u32::MAX)
}

pub(super) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}
