//! Queries of the web dashboard about the past: failures, run times, the tasks of each worker over
//! time, the last events. Times are nanoseconds since 1970; the end of a period is exclusive.

use hq_core::outcome::OutcomeCode;
use hq_core::task::TaskState;
use serde_json::Value;

use super::usage::cpus_of;
use super::{FAILURES_MAX, run_bin_sql};
use crate::encode::failure_text;
use crate::rows::RowRef;
use crate::statement::Query;

/// Longer data of events is reduced to the most searched fields.
const DATA_MAX: u32 = 4_096;

/// Short form of a failure, from `outcome` and `message`.
fn words(row: RowRef<'_>, column: usize) -> String {
    failure_text(row.int(column), row.text(column + 1))
}

/// A failed task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FailureRow {
    /// The failure.
    pub error: String,
    /// Task id within the job.
    pub task: Option<i64>,
    /// Instance that failed.
    pub instance: Option<i64>,
    /// Host that ran it.
    pub host: Option<String>,
    /// Worker that ran it.
    pub worker: Option<i64>,
    /// Run time.
    pub run_us: Option<i64>,
    /// Time of the end.
    pub ended_ms: Option<i64>,
}

/// The last failures of a job, the latest first.
#[must_use]
pub fn failures(job: u32) -> Query<FailureRow> {
    let sql = format!(
        "SELECT t.outcome, t.message, t.task, t.instance, w.hostname, t.worker, t.run_us, \
         (t.started_unix_ns + t.run_us * 1000) / 1000000 \
         FROM task_data t LEFT JOIN worker_data w ON w.id = t.worker WHERE t.job = {job} AND t.state = :failed \
         ORDER BY t.started_unix_ns + t.run_us * 1000 DESC LIMIT {FAILURES_MAX}"
    );
    Query::new(&sql, &[], |row| FailureRow {
        error: words(row, 0),
        task: row.number(2),
        instance: row.number(3),
        host: row.owned(4),
        worker: row.number(5),
        run_us: row.number(6),
        ended_ms: row.number(7),
    })
}

/// Tasks of a job that failed for the same reason on one host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FailureGroupRow {
    /// The failure.
    pub error: String,
    /// Host that ran them.
    pub host: Option<String>,
    /// Number of tasks.
    pub count: i64,
}

/// All failures of a job by reason and host, the most frequent first.
#[must_use]
pub fn failure_groups(job: u32) -> Query<FailureGroupRow> {
    let sql = format!(
        "SELECT t.outcome, t.message, w.hostname, count(*) AS n FROM task_data t \
         LEFT JOIN worker_data w ON w.id = t.worker WHERE t.job = {job} AND t.state = :failed \
         GROUP BY 1, 2, 3 ORDER BY n DESC"
    );
    Query::new(&sql, &[], |row| FailureGroupRow {
        error: words(row, 0),
        host: row.owned(2),
        count: row.int(3),
    })
}

/// Tasks of a job with similar run times and the same end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunTimeRow {
    /// Bin of [`RUN_BOUNDS`](super::RUN_BOUNDS).
    pub bin: usize,
    /// State after the end.
    pub state: TaskState,
    /// Whether they reached their time limit.
    pub timed_out: bool,
    /// Number of these tasks.
    pub count: u64,
}

/// Run times of the ended tasks of a job, including tasks that were canceled while they ran.
#[must_use]
pub fn run_times(job: u32) -> Query<RunTimeRow> {
    let sql = format!(
        "SELECT {}, state, state = :failed AND outcome = ?L, count(*) FROM task_data WHERE job = {job} \
         AND state NOT IN (:waiting, :running) AND run_us IS NOT NULL GROUP BY 1, 2, 3",
        run_bin_sql()
    );
    let values = [("?L", OutcomeCode::TIME_LIMIT.number().into())];
    Query::new(&sql, &values, |row| RunTimeRow {
        bin: usize::try_from(row.int(0)).unwrap_or(usize::MAX),
        state: row.state(1),
        timed_out: row.int(2) != 0,
        count: row.uint(3),
    })
}

/// Time of the first submit, in ms; 0 without jobs. One row.
#[must_use]
pub fn first_submit() -> Query<i64> {
    let sql =
        "SELECT coalesce(min(submitted_unix_ns) / 1000000, 0) FROM job_data WHERE is_forgotten = 0";
    Query::new(sql, &[], |row| row.int(0))
}

/// Number of workers connected in a period, in one row.
#[must_use]
pub fn worker_count(from: i64, to: i64) -> Query<i64> {
    let sql = "SELECT count(*) FROM worker_data \
         WHERE started_unix_ns < ?T AND coalesce(ended_unix_ns, ?T) >= ?F";
    Query::new(sql, &[("?F", from), ("?T", to)], |row| row.int(0))
}

/// A worker of the journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerRow {
    /// Worker id.
    pub id: i64,
    /// Host name.
    pub host: String,
    /// Time of the connection.
    pub started_ms: i64,
    /// Time of the end.
    pub ended_ms: Option<i64>,
    /// Units of its cpus.
    pub cpus: i64,
}

/// Workers connected at some time of a period.
#[must_use]
pub fn workers(from: i64, to: i64) -> Query<WorkerRow> {
    let sql = "SELECT id, hostname, started_unix_ns / 1000000, ended_unix_ns / 1000000, config FROM worker_data \
         WHERE started_unix_ns < ?T AND coalesce(ended_unix_ns, ?T) >= ?F";
    Query::new(sql, &[("?F", from), ("?T", to)], |row| WorkerRow {
        id: row.int(0),
        host: row.owned(1).unwrap_or_default(),
        started_ms: row.int(2),
        ended_ms: row.number(3),
        cpus: cpus_of(&row.json(4)),
    })
}

/// A task on a worker.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BarRow {
    /// Worker that ran it.
    pub worker: i64,
    /// Start, in ms after the start of the period.
    pub start_ms: Option<f64>,
    /// Run time; `None` = it still runs.
    pub run_ms: Option<f64>,
    /// State of the attempt.
    pub state: TaskState,
    /// Job id.
    pub job: i64,
    /// Task id within the job.
    pub task: i64,
}

/// Attempts that ran in a period. Failed attempts and further nodes of a multi-node task have rows
/// of their own.
#[must_use]
pub fn bars(from: i64, to: i64) -> Query<BarRow> {
    let start = |t: &str| format!("round(({t}.started_unix_ns - ?F) / 1e6, 1)");
    let run = |t: &str| format!("round({t}.run_us / 1e3, 1)");
    let during = |t: &str| {
        format!("{t}.started_unix_ns < ?T AND {t}.started_unix_ns + {t}.run_us * 1000 >= ?F")
    };
    let bar = format!(
        "{}, CASE WHEN t.state <> :running THEN {} END, t.state, t.job, t.task",
        start("t"),
        run("t")
    );
    // A canceled task has a run time only if it ran.
    let shown = format!(
        "((t.state = :running AND t.started_unix_ns < ?T) OR (t.state NOT IN (:waiting, :running) AND {}))",
        during("t")
    );
    let (earlier, then) = (format!("{}, {}", start("a"), run("a")), during("a"));
    let sql = format!(
        "SELECT t.worker, {bar} FROM task_data t WHERE {shown} \
         UNION ALL SELECT n.worker, {bar} FROM node_data n \
         JOIN task_data t ON t.job = n.job AND t.task = n.task AND t.instance = n.instance \
         WHERE n.position > 0 AND {shown} \
         UNION ALL SELECT a.worker, {earlier}, :failed, a.job, a.task FROM attempt_data a \
         WHERE a.run_us IS NOT NULL AND {then}"
    );
    Query::new(&sql, &[("?F", from), ("?T", to)], |row| BarRow {
        worker: row.int(0),
        start_ms: row.real(1),
        run_ms: row.real(2),
        state: row.state(3),
        job: row.int(4),
        task: row.int(5),
    })
}

/// Tasks of a worker that started in one step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BarSumRow {
    /// Worker that ran them.
    pub worker: i64,
    /// Step of the period.
    pub step: i64,
    /// Sum of their run times.
    pub run_ms: Option<f64>,
    /// Number of tasks.
    pub count: i64,
    /// Number of failed tasks.
    pub failed: i64,
}

/// Attempts that ran in a period, in steps of `width`, including failed ones.
#[must_use]
pub fn bar_sums(from: i64, to: i64, width: i64) -> Query<BarSumRow> {
    let sql = "SELECT worker, max(0, started_unix_ns - ?F) / ?W, round(sum(coalesce(run_us, 0)) / 1e3), \
         count(*), sum(state = :failed) FROM \
         (SELECT worker, state, started_unix_ns, run_us FROM task_data WHERE started_unix_ns < ?T AND (state = :running \
         OR (state NOT IN (:waiting, :running) AND started_unix_ns + run_us * 1000 >= ?F)) \
         UNION ALL SELECT worker, :failed, started_unix_ns, run_us FROM attempt_data \
         WHERE started_unix_ns < ?T AND started_unix_ns + run_us * 1000 >= ?F) GROUP BY 1, 2";
    Query::new(sql, &[("?F", from), ("?T", to), ("?W", width)], |row| {
        BarSumRow {
            worker: row.int(0),
            step: row.int(1),
            run_ms: row.real(2),
            count: row.int(3),
            failed: row.int(4),
        }
    })
}

/// Tasks that started or ended in one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HistoryRow {
    /// Their event; running represents a start.
    pub state: TaskState,
    /// Step of the period.
    pub step: i64,
    /// Number of tasks.
    pub count: i64,
}

/// Starts and ends in a period, in steps of `width`.
#[must_use]
pub fn history(from: i64, to: i64, width: i64) -> Query<HistoryRow> {
    let sql = "SELECT :running, (started_unix_ns - ?F) / ?W, count(*) FROM task_data \
         WHERE started_unix_ns BETWEEN ?F AND ?T - 1 AND (state = :running OR run_us IS NOT NULL) GROUP BY 2 \
         UNION ALL SELECT :running, (started_unix_ns - ?F) / ?W, count(*) FROM attempt_data \
         WHERE started_unix_ns BETWEEN ?F AND ?T - 1 AND run_us IS NOT NULL GROUP BY 2 \
         UNION ALL SELECT state, (started_unix_ns + run_us * 1000 - ?F) / ?W, count(*) FROM task_data \
         WHERE state NOT IN (:waiting, :running) \
         AND started_unix_ns + run_us * 1000 BETWEEN ?F AND ?T - 1 GROUP BY 1, 2";
    Query::new(sql, &[("?F", from), ("?T", to), ("?W", width)], |row| {
        HistoryRow {
            state: row.state(0),
            step: row.int(1),
            count: row.int(2),
        }
    })
}

/// An event that is not about single tasks.
#[derive(Clone, PartialEq, Debug)]
pub struct LogRow {
    /// Sequence number.
    pub seq: i64,
    /// Time of the event.
    pub at_ms: i64,
    /// Type of the event.
    pub kind: String,
    /// Job of the event.
    pub job: Option<i64>,
    /// Worker of the event.
    pub worker: Option<i64>,
    /// Details; `None` if they are not JSON.
    pub data: Option<Value>,
}

/// The last events below a number that are not about single tasks, the newest first.
#[must_use]
pub fn log(before: i64, limit: u32) -> Query<LogRow> {
    let sql = format!(
        "SELECT seq, at_unix_ns / 1000000, type, job, worker, CASE WHEN length(data) <= {DATA_MAX} THEN data \
         ELSE json_object('is_cut', json('true'), 'name', json_extract(data, '$.job_desc.name')) END \
         FROM event_log WHERE seq < {before} AND type <> 'worker-overview' ORDER BY seq DESC LIMIT {limit}"
    );
    Query::new(&sql, &[], |row| LogRow {
        seq: row.int(0),
        at_ms: row.int(1),
        kind: row.owned(2).unwrap_or_default(),
        job: row.number(3),
        worker: row.number(4),
        data: row.text(5).and_then(|text| serde_json::from_str(text).ok()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statements_are_about_the_time_that_was_asked_for() {
        let bars = bars(5, 9);
        assert!(bars.sql().contains("t.started_unix_ns < 9"));
        assert!(bars.sql().contains(">= 5"));
        assert!(bar_sums(5, 9, 2).sql().contains("/ 2"));
    }
}
