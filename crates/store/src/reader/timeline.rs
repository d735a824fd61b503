//! The queries of the web dashboard about the past: failures, run times, the tasks of each worker
//! over time, and the last events. Times are in nanoseconds since 1970; the end of a period is
//! exclusive.

use hq_core::outcome::OutcomeCode;
use hq_core::task::TaskState;
use serde_json::{Map, Value};

use super::usage::cpus_of;
use super::{FAILURES_MAX, run_bin_sql};
use crate::encode::failure_text;
use crate::rows::RowRef;
use crate::statement::Query;

/// The maximum length of the data of an event. Longer data is reduced to the fields that are
/// searched most often.
const DATA_MAX: u32 = 4_096;

/// Returns the error text of a failure, based on `outcome` and `message`.
fn words(row: RowRef<'_>, column: usize) -> String {
    failure_text(row.int(column), row.text(column + 1))
}

/// A failed task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FailureRow {
    /// The error text of the failure.
    pub error: String,
    /// The id of the task within the job.
    pub task: u32,
    /// The instance that failed.
    pub instance: u32,
    /// The host that ran the task.
    pub host: Option<String>,
    /// The worker that ran the task.
    pub worker: Option<i64>,
    /// The run time.
    pub run_us: Option<i64>,
    /// When the task ended.
    pub ended_ms: Option<i64>,
}

/// Selects the last failures of a job, the latest first.
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
        task: row.small(2),
        instance: row.small(3),
        host: row.owned(4),
        worker: row.number(5),
        run_us: row.number(6),
        ended_ms: row.number(7),
    })
}

/// Tasks of a job that failed for the same reason on one host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FailureGroupRow {
    /// The error text of the failure.
    pub error: String,
    /// The host that ran the tasks.
    pub host: Option<String>,
    /// The number of tasks.
    pub count: i64,
}

/// Selects all failures of a job by reason and host, the most frequent first.
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

/// The number of tasks of a job with similar run times and the same outcome.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunTimeRow {
    /// The bin of [`RUN_BOUNDS`](super::RUN_BOUNDS).
    pub bin: usize,
    /// The final state of the tasks.
    pub state: TaskState,
    /// Whether the tasks reached their time limit.
    pub timed_out: bool,
    /// The number of these tasks.
    pub count: u64,
}

/// Selects the run times of a job's ended tasks, including tasks that were canceled while they were
/// running.
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

/// Selects the time of the first submit in ms, or 0 if there are no jobs, in one row.
#[must_use]
pub fn first_submit() -> Query<i64> {
    let sql =
        "SELECT coalesce(min(submitted_unix_ns) / 1000000, 0) FROM job_data WHERE is_forgotten = 0";
    Query::new(sql, &[], |row| row.int(0))
}

/// Selects the number of workers that were connected in a period, in one row.
#[must_use]
pub fn worker_count(from: i64, to: i64) -> Query<i64> {
    let sql = "SELECT count(*) FROM worker_data \
         WHERE started_unix_ns < ?T AND coalesce(ended_unix_ns, ?T) >= ?F";
    Query::new(sql, &[("?F", from), ("?T", to)], |row| row.int(0))
}

/// A worker in the journal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkerRow {
    /// The id of the worker.
    pub id: i64,
    /// The host name.
    pub host: String,
    /// When the worker connected.
    pub started_ms: i64,
    /// When the worker ended.
    pub ended_ms: Option<i64>,
    /// The cpus of the worker, in units.
    pub cpus: i64,
}

/// Selects the workers that were connected at any time in a period.
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
    /// The worker that ran the task.
    pub worker: i64,
    /// The start, in ms after the start of the period.
    pub start_ms: Option<f64>,
    /// The run time. `None` if the task is still running.
    pub run_ms: Option<f64>,
    /// The state of the attempt.
    pub state: TaskState,
    /// The id of the job.
    pub job: i64,
    /// The id of the task within the job.
    pub task: i64,
}

/// Selects the attempts that ran in a period. Failed attempts and additional nodes of a multi-node
/// task have their own rows.
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

/// The tasks of a worker that started in one step.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BarSumRow {
    /// The worker that ran the tasks.
    pub worker: i64,
    /// The step of the period.
    pub step: i64,
    /// The sum of their run times.
    pub run_ms: Option<f64>,
    /// The number of tasks.
    pub count: i64,
    /// The number of failed tasks.
    pub failed: i64,
}

/// Selects the attempts that ran in a period, in steps of `width`, including failed ones.
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

/// The number of tasks that started or ended in one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HistoryRow {
    /// The state that the tasks entered. The running state stands for a start.
    pub state: TaskState,
    /// The step of the period.
    pub step: i64,
    /// The number of tasks.
    pub count: i64,
}

/// Selects the task starts and ends in a period, in steps of `width`.
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

/// An event that is not about individual tasks.
#[derive(Clone, PartialEq, Debug)]
pub struct LogRow {
    /// The sequence number.
    pub seq: i64,
    /// When the event occurred.
    pub at_ms: i64,
    /// The type of the event.
    pub kind: String,
    /// The job that the event is about.
    pub job: Option<i64>,
    /// The worker that the event is about.
    pub worker: Option<i64>,
    /// The details. Empty if they are not a JSON object.
    pub data: Map<String, Value>,
}

/// Selects the last events with a sequence number below `before` that are not about individual
/// tasks, the newest first.
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
        data: serde_json::from_str(row.text(5).unwrap_or_default()).unwrap_or_default(),
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
