//! Queries for a report about the period from `from_ns` to `to_ns`, in nanoseconds since 1970.
//!
//! Each statement scans the tasks once. The size of its result depends neither on the number of
//! tasks nor on the number of jobs.

use std::time::Duration;

use hq_core::curve::{Asked, Curve, GpuCurve, GpusGiven};
use hq_core::task::TaskState;
use serde_json::Value;

use super::run_bin_sql;
use crate::rows::RowRef;
use crate::runs::{ASKED, CHANGES, CPUS, CPUS_UNKNOWN, RUNS};
use crate::statement::Query;

/// The number of units of a whole resource, as a fractional number for SQLite.
const UNITS: &str = "10000.0";
/// The maximum number of failure reasons.
const FAILURES_MAX: u32 = 200;

/// A period of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Period {
    /// The start of the period, in ns since 1970.
    pub from_ns: i64,
    /// The end of the period (inclusive), in ns since 1970.
    pub to_ns: i64,
}

impl Period {
    const fn values(self) -> [(&'static str, i64); 2] {
        [("?F", self.from_ns), ("?T", self.to_ns)]
    }

    const fn stepped(self, width: i64) -> [(&'static str, i64); 3] {
        [("?F", self.from_ns), ("?T", self.to_ns), ("?W", width)]
    }
}

/// A worker that was connected during the period.
#[derive(Clone, PartialEq, Debug)]
pub struct WorkerRow {
    /// The id of the worker.
    pub id: u32,
    /// The host name.
    pub host: String,
    /// When the worker connected, or the start of the period if that is later.
    pub from_ns: i64,
    /// When the worker ended, or the end of the period if that is earlier.
    pub to_ns: i64,
    /// The reason why the worker ended.
    pub reason: Option<String>,
    /// The configuration, in the format of events.
    pub config: Value,
}

/// Selects the workers, ordered by id.
#[must_use]
pub fn workers(period: Period) -> Query<WorkerRow> {
    let sql = "SELECT id, hostname, max(started_unix_ns, ?F), min(coalesce(ended_unix_ns, ?T), ?T), reason, config \
               FROM worker_data WHERE started_unix_ns <= ?T AND coalesce(ended_unix_ns, ?T) >= ?F \
               ORDER BY id";
    Query::new(sql, &period.values(), |row| WorkerRow {
        id: row.small(0),
        host: row.owned(1).unwrap_or_default(),
        from_ns: row.int(2),
        to_ns: row.int(3),
        reason: row.owned(4),
        config: row.json(5),
    })
}

/// The requested amount of a resource, for tasks that started or ended in a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ResourceRow {
    /// Whether these tasks ended (rather than started).
    pub is_end: bool,
    /// The step of the period.
    pub step: i64,
    /// The name of the resource.
    pub resource: String,
    /// The number of requested units.
    pub units: u64,
}

/// Selects the use of resources in steps of `width`: the resources other than cpus that most jobs
/// request, at most `resources_max` of them.
#[must_use]
pub fn resource_steps(period: Period, width: i64, resources_max: u32) -> Query<ResourceRow> {
    let sql = format!(
        "WITH {ASKED}, {RUNS}, {CHANGES}, shown AS (SELECT name FROM asked WHERE name <> 'cpus' \
         GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT {resources_max}) \
         SELECT c.is_end, c.step, a.name, sum(c.n * a.units) FROM changes c \
         JOIN asked a ON a.job = c.job AND a.variant = c.variant JOIN shown s ON s.name = a.name GROUP BY 1, 2, 3"
    );
    Query::new(&sql, &period.stepped(width), |row| ResourceRow {
        is_end: row.int(0) != 0,
        step: row.int(1),
        resource: row.owned(2).unwrap_or_default(),
        units: row.uint(3),
    })
}

/// Returns `ended (job, state, n, core_us, rss, mem)`: the tasks that ended in the period, their
/// cost, and their used and requested memory.
fn ended() -> String {
    format!(
        "{ASKED}, {CPUS}, sums AS (SELECT job, variant, state, count(*) AS n, sum(run_us) AS us, \
         max(max_rss_kib) AS rss FROM task_data \
         WHERE state IN (:finished, :failed, :canceled, :aborted) \
         AND started_unix_ns + run_us * 1000 BETWEEN ?F AND ?T GROUP BY 1, 2, 3), \
         ended AS (SELECT e.job, e.state, sum(e.n) AS n, \
         sum(e.us * (coalesce(c.units, {CPUS_UNKNOWN}) / {UNITS})) AS core_us, max(e.rss) AS rss, \
         max(coalesce(m.units, 0)) AS mem FROM sums e \
         LEFT JOIN cpus c ON c.job = e.job AND c.variant = e.variant \
         LEFT JOIN asked m ON m.job = e.job AND m.variant = e.variant AND m.name = 'mem' GROUP BY 1, 2)"
    )
}

/// The sums over all jobs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TotalsRow {
    /// The number of jobs submitted before the end of the period.
    pub jobs: u64,
    /// The number of tasks that finished.
    pub finished: u64,
    /// The number of tasks that failed.
    pub failed: u64,
}

/// Selects the sums, in one row.
#[must_use]
pub fn totals(period: Period) -> Query<TotalsRow> {
    let sql = format!(
        "WITH {} SELECT (SELECT count(*) FROM job_data WHERE submitted_unix_ns <= ?T), \
         sum(CASE state WHEN :finished THEN n END), sum(CASE state WHEN :failed THEN n END) FROM ended",
        ended()
    );
    Query::new(&sql, &period.values(), |row| TotalsRow {
        jobs: row.uint(0),
        finished: row.uint(1),
        failed: row.uint(2),
    })
}

/// A job and its cost.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobRow {
    /// The id of the job.
    pub id: u32,
    /// The name of the job.
    pub name: String,
    /// The number of tasks of the job.
    pub task_count: u64,
    /// The number of tasks that finished.
    pub finished: u64,
    /// The number of tasks that failed.
    pub failed: u64,
    /// The cost of all ended tasks, including tasks that were canceled or abandoned while they were
    /// running.
    pub core_us: u64,
    /// The cost of the failed tasks.
    pub failed_core_us: u64,
    /// The peak memory of the largest task.
    pub rss_kib: u64,
    /// The largest amount of memory that a task requested, in units of a ten-thousandth of a MiB.
    pub memory_units: u64,
}

/// Selects the most expensive jobs, at most `jobs_max`, in descending order.
#[must_use]
pub fn jobs(period: Period, jobs_max: usize) -> Query<JobRow> {
    let sql = format!(
        "WITH {}, per_job AS (SELECT job, sum(CASE state WHEN :finished THEN n END) AS finished, \
         sum(CASE state WHEN :failed THEN n END) AS failed, CAST(sum(core_us) AS INTEGER) AS core_us, \
         CAST(sum(CASE state WHEN :failed THEN core_us END) AS INTEGER) AS failed_core_us, max(rss) AS rss, max(mem) AS mem \
         FROM ended GROUP BY 1) \
         SELECT j.id, j.name, (SELECT coalesce(sum(task_count), 0) FROM submit_data s WHERE s.job = j.id), \
         p.finished, p.failed, p.core_us, p.failed_core_us, p.rss, p.mem \
         FROM job_data j LEFT JOIN per_job p ON p.job = j.id WHERE j.submitted_unix_ns <= ?T \
         ORDER BY coalesce(p.core_us, 0) DESC, j.id LIMIT {jobs_max}",
        ended()
    );
    Query::new(&sql, &period.values(), |row| JobRow {
        id: row.small(0),
        name: row.owned(1).unwrap_or_default(),
        task_count: row.uint(2),
        finished: row.uint(3),
        failed: row.uint(4),
        core_us: row.uint(5),
        failed_core_us: row.uint(6),
        rss_kib: row.uint(7),
        memory_units: row.uint(8),
    })
}

/// Selects the number of finished and failed tasks of a job for each bin of
/// [`RUN_BOUNDS`](super::RUN_BOUNDS).
#[must_use]
pub fn run_times(job: u32, period: Period) -> Query<(usize, u64)> {
    let sql = format!(
        "SELECT {}, count(*) FROM task_data WHERE job = {job} AND state IN (:finished, :failed) \
         AND started_unix_ns + run_us * 1000 BETWEEN ?F AND ?T GROUP BY 1",
        run_bin_sql()
    );
    Query::new(&sql, &period.values(), |row| {
        (
            usize::try_from(row.int(0)).unwrap_or(usize::MAX),
            row.uint(1),
        )
    })
}

/// Selects run times of the finished and failed tasks of a job. The tasks are sorted by run time,
/// starting at position 0. Each row contains a requested position and its run time in µs.
#[must_use]
pub fn run_times_at(job: u32, period: Period, positions: &[u64]) -> Query<(u64, u64)> {
    let list: Vec<String> = positions.iter().map(u64::to_string).collect();
    let sql = format!(
        "SELECT n, run_us FROM (SELECT run_us, row_number() OVER (ORDER BY run_us) - 1 AS n FROM task_data \
         WHERE job = {job} AND state IN (:finished, :failed) \
         AND started_unix_ns + run_us * 1000 BETWEEN ?F AND ?T) WHERE n IN ({})",
        list.join(", ")
    );
    Query::new(&sql, &period.values(), |row| (row.uint(0), row.uint(1)))
}

/// Returns the statement for the requested cpu time in the period by a column of `runs`, in µs of
/// one core.
fn core_us_by(column: &str) -> String {
    format!(
        "WITH {ASKED}, {CPUS}, {RUNS}, used AS (SELECT {column}, job, variant, \
         sum(min(coalesce(ended, ?T), ?T) - max(began, ?F)) / 1000 AS us FROM runs \
         WHERE began <= ?T AND (ended IS NULL OR ended >= ?F) GROUP BY 1, 2, 3) \
         SELECT u.{column}, CAST(sum(u.us * (coalesce(c.units, {CPUS_UNKNOWN}) / {UNITS})) AS INTEGER) FROM used u \
         LEFT JOIN cpus c ON c.job = u.job AND c.variant = u.variant GROUP BY 1"
    )
}

/// Selects the requested cpu time of each worker, in µs of one core.
#[must_use]
pub fn usage(period: Period) -> Query<(u32, u64)> {
    let sql = core_us_by("worker");
    Query::new(&sql, &period.values(), |row| (row.small(0), row.uint(1)))
}

/// Selects the core time used in the period by the state of the tasks, in µs of one core. `None`
/// stands for instances that were replaced by a later one.
#[must_use]
pub fn costs(period: Period) -> Query<(Option<TaskState>, u64)> {
    Query::new(&core_us_by("state"), &period.values(), |row| {
        (TaskState::from_number(row.int(0)), row.uint(1))
    })
}

/// A task with a long run time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlowRow {
    /// The id of the job.
    pub job: u32,
    /// The id of the task within the job.
    pub task: u32,
    /// The last instance of the task.
    pub instance: u32,
    /// The host that ran the task.
    pub host: Option<String>,
    /// The run time.
    pub run_us: u64,
    /// Whether the task failed.
    pub is_failed: bool,
}

/// Selects the tasks with the longest run times, in descending order.
#[must_use]
pub fn slowest(period: Period, tasks_max: u32) -> Query<SlowRow> {
    let sql = format!(
        "SELECT t.job, t.task, w.hostname, t.run_us, t.state, t.instance FROM task_data t LEFT JOIN worker_data w ON w.id = t.worker \
         WHERE t.state IN (:finished, :failed) AND t.started_unix_ns + t.run_us * 1000 BETWEEN ?F AND ?T \
         ORDER BY t.run_us DESC LIMIT {tasks_max}"
    );
    Query::new(&sql, &period.values(), |row| SlowRow {
        job: row.small(0),
        task: row.small(1),
        host: row.owned(2),
        run_us: row.uint(3),
        is_failed: row.state(4) == TaskState::Failed,
        instance: row.small(5),
    })
}

/// The resource usage of a task over time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CurveRow {
    /// The id of the job.
    pub job: u32,
    /// The id of the task within the job.
    pub task: u32,
    /// The curve. `None` if it cannot be read.
    pub curve: Option<Curve>,
}

/// Selects the curves of instances, which are given by job, task and instance number.
#[must_use]
pub fn curves(instances: &[(u32, u32, u32)]) -> Query<CurveRow> {
    let instances = instances.iter();
    let list: Vec<String> = instances
        .map(|(job, task, instance)| format!("({job}, {task}, {instance})"))
        .collect();
    // An empty list does not select any rows.
    let list = if list.is_empty() {
        "SELECT 0, 0, 0 WHERE 0".to_owned()
    } else {
        format!("VALUES {}", list.join(", "))
    };
    let sql = format!(
        "SELECT c.job, c.task, spacing_ms, c.memory_peak_kib, cpu_peak_milli, memory_asked_kib, is_memory_limit, \
         cpu_asked_units, hex(c.memory), hex(cpu), g.busy_peak_milli, g.memory_peak_kib, asked_units, \
         memory_of_devices_kib, is_memory_of_devices, hex(busy), hex(g.memory) \
         FROM curve_data c LEFT JOIN gpu_curve_data g USING (job, task, instance, worker) \
         WHERE (c.job, c.task, c.instance) IN ({list})"
    );
    Query::new(&sql, &[], |row| CurveRow {
        job: row.small(0),
        task: row.small(1),
        curve: row.bytes(8).zip(row.bytes(9)).map(|(memory, cpu)| Curve {
            spacing: Duration::from_millis(row.uint(2)),
            memory_peak_kib: row.uint(3),
            cpu_peak_milli: row.uint(4),
            asked: Asked {
                memory_kib: row.uint(5),
                is_memory_limit: row.int(6) != 0,
                cpu_units: row.uint(7),
            },
            memory,
            cpu,
            gpu: gpu_of(row),
        }),
    })
}

/// Reads the GPU curve. Returns `None` if there is no row for GPUs.
fn gpu_of(row: RowRef<'_>) -> Option<Box<GpuCurve>> {
    let (busy, memory) = row.bytes(15).zip(row.bytes(16))?;
    if busy.is_empty() {
        return None;
    }
    Some(Box::new(GpuCurve {
        busy_peak_milli: row.uint(10),
        memory_peak_kib: row.uint(11),
        given: GpusGiven {
            units: row.uint(12),
            memory_kib: row.uint(13),
            is_memory_of_devices: row.int(14) != 0,
        },
        busy,
        memory,
    }))
}

/// Tasks that failed for the same reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FailuresRow {
    /// The job of these tasks.
    pub job: u32,
    /// The short form of the failure.
    pub error: String,
    /// The host that ran the tasks.
    pub host: Option<String>,
    /// The number of tasks.
    pub count: u64,
    /// The id of one of the tasks.
    pub task: u32,
}

/// Selects the failure reasons, the most frequent first.
#[must_use]
pub fn failures(period: Period) -> Query<FailuresRow> {
    let sql = format!(
        "SELECT t.job, t.outcome, max(t.message), w.hostname, count(*), min(t.task) FROM task_data t \
         LEFT JOIN worker_data w ON w.id = t.worker \
         WHERE t.state = :failed AND t.started_unix_ns + t.run_us * 1000 BETWEEN ?F AND ?T \
         GROUP BY 1, 2, 4 ORDER BY 5 DESC LIMIT {FAILURES_MAX}"
    );
    Query::new(&sql, &period.values(), |row| FailuresRow {
        job: row.small(0),
        error: row.failure_words(1),
        host: row.owned(3),
        count: row.uint(4),
        task: row.small(5),
    })
}
