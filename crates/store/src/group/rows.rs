//! The end of a task as a row, and as part of a stretch.

use std::time::Duration;

use hq_core::id::{InstanceId, TaskKey, WorkerId};
use hq_core::outcome::OutcomeCode;
use hq_core::task::{TaskEnd, TaskState};
use rusqlite::{Connection, params};

use crate::encode;
use crate::stretch::Values;

/// An end that is to be stored.
pub(super) struct EndRow<'a> {
    pub(super) task: TaskKey,
    pub(super) instance: InstanceId,
    pub(super) worker: WorkerId,
    pub(super) crash_count: u32,
    pub(super) end: &'a TaskEnd,
    pub(super) is_finished: bool,
    /// Variant and number of a start in the same group.
    pub(super) start: Option<(u32, i64)>,
    pub(super) seq: i64,
}

impl EndRow<'_> {
    /// Whether a stretch can hold it, as far as its end tells.
    pub(super) fn is_plain(&self) -> bool {
        let (code, text) = encode::outcome_code(&self.end.outcome);
        let is_good = code == OutcomeCode::FINISHED.number() && text.is_none();
        self.is_finished && self.crash_count == 0 && is_good
    }

    /// When it began, by the measure of the worker, like the record in the state.
    fn started(&self) -> i64 {
        self.end.at.minus(self.end.run).0
    }

    /// As part of a stretch.
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

    /// Stores it as a row.
    pub(super) fn write(&self, db: &Connection) -> rusqlite::Result<()> {
        let state = if self.is_finished {
            TaskState::Finished
        } else {
            TaskState::Failed
        };
        let (code, message) = encode::outcome_code(&self.end.outcome);
        let usage = &self.end.usage;
        // Of a start in an earlier group the row has variant and number already; neither is written over.
        let sql = "INSERT INTO task_row_data (job, task, state, instance, crash_count, worker, variant, \
             started_unix_ns, run_us, outcome, message, max_rss_kib, user_ms, system_ms, \
             start_seq, end_seq) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, \
             ?14, ?15, ?16) ON CONFLICT DO UPDATE SET state = ?3, instance = ?4, crash_count = ?5, \
             worker = ?6, started_unix_ns = ?8, run_us = ?9, outcome = ?10, message = ?11, \
             max_rss_kib = ?12, user_ms = ?13, system_ms = ?14, \
             start_seq = coalesce(?15, start_seq), end_seq = ?16";
        db.prepare_cached(sql)?.execute(params![
            self.task.job.as_u32(),
            self.task.task.as_u32(),
            state.number(),
            self.instance.as_u32(),
            self.crash_count,
            self.worker.as_u32(),
            self.start.map_or(0, |(variant, _)| variant),
            self.started(),
            micros(self.end.run),
            code,
            message,
            kib(usage.max_rss_kib),
            millis(usage.user),
            millis(usage.system),
            self.start.map(|(_, seq)| seq),
            self.seq
        ])?;
        Ok(())
    }
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
