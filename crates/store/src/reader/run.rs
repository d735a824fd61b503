//! The queries of dashboards about a run, at the time `at_ns` in nanoseconds since 1970.
//!
//! Each statement scans the tasks of a job, or of all jobs, once. SQLite aggregates the tasks, so
//! the size of the result does not depend on their number.

use hq_core::job::TaskTotals;
use hq_core::task::TaskState;
use serde_json::Value;

use super::{FAILURES_MAX, run_bin_sql};
use crate::rows::RowRef;
use crate::statement::Query;

/// The state of a task at the time `?T`. Tasks that were canceled or aborted before they ran, or
/// before they ran again, count as waiting. [`dropped`] and [`dropped_sums`] select the tasks that
/// were canceled or aborted by then.
const STATE: &str = "CASE WHEN started_unix_ns IS NULL OR started_unix_ns > ?T \
     OR (state IN (:canceled, :aborted) AND run_us IS NULL) THEN :waiting \
     WHEN state IN (:finished, :failed, :canceled, :aborted) AND started_unix_ns + run_us * 1000 > ?T THEN :running \
     ELSE state END";

/// The finished or failed tasks with the same job, worker and failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndedRow {
    /// The job of these tasks.
    pub job: u32,
    /// The worker that ran the tasks.
    pub worker: u32,
    /// The host name.
    pub host: Option<String>,
    /// The short form of the failure.
    pub error: Option<String>,
    /// The number of these tasks.
    pub count: u64,
}

/// Selects finished and failed tasks by job, worker and failure. If there are very many failures,
/// only the most frequent ones are selected.
#[must_use]
pub fn ended(at_ns: i64) -> Query<EndedRow> {
    let sql = "SELECT e.job, e.worker, w.hostname, e.state, e.outcome, e.message, e.n FROM \
         (SELECT job, worker, state, outcome, max(message) AS message, count(*) AS n FROM task_data \
          WHERE state IN (:finished, :failed) \
          AND coalesce(started_unix_ns, 0) + coalesce(run_us, 0) * 1000 <= ?T \
          GROUP BY job, worker, state, outcome ORDER BY state DESC, n DESC LIMIT 5000) e \
         LEFT JOIN worker_data w ON w.id = e.worker";
    Query::new(sql, &[("?T", at_ns)], |row| EndedRow {
        job: row.small(0),
        worker: row.small(1),
        host: row.owned(2),
        error: (row.state(3) == TaskState::Failed).then(|| row.failure_words(4)),
        count: row.uint(6),
    })
}

/// The ids of the tasks that have a row, and the number of tasks of the job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TouchedRow {
    /// The lowest and the highest id.
    pub ids: Option<(u32, u32)>,
    /// The number of tasks of all submits.
    pub task_count: i64,
}

/// Selects the ids of a job's tasks, in one row.
#[must_use]
pub fn touched(job: u32) -> Query<TouchedRow> {
    let sql = "SELECT min(task), max(task), (SELECT coalesce(sum(task_count), 0) FROM submit_data \
         WHERE job = ?J) FROM task_data WHERE job = ?J";
    Query::new(sql, &[("?J", job.into())], |row| TouchedRow {
        ids: row.number(0).map(|_| (row.small(0), row.small(1))),
        task_count: row.int(2),
    })
}

/// A range of consecutive ids.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IdsRow {
    /// The lowest id.
    pub start: i64,
    /// The number of ids.
    pub count: i64,
}

/// Selects the id ranges of the submits of a job. Graphs are not included, because the journal does
/// not record their ids.
#[must_use]
pub fn submitted_ids(job: u32) -> Query<IdsRow> {
    let sql = "SELECT json_extract(r.value, '$.start'), json_extract(r.value, '$.count') FROM \
         (SELECT data FROM event_log WHERE type = 'job-created' AND job = ?J) e, \
         json_each(json_extract(e.data, '$.submit_desc.task_desc.ids.ranges')) r";
    Query::new(sql, &[("?J", job.into())], |row| IdsRow {
        start: row.int(0),
        count: row.int(1),
    })
}

/// The number of tasks of a job that have a row, by bin, state and run time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StripRow {
    /// The bin of ids.
    pub bin: i64,
    /// The state at the time of the query.
    pub state: TaskState,
    /// The bin of [`RUN_BOUNDS`](super::RUN_BOUNDS), for finished and failed tasks.
    pub took: Option<usize>,
    /// The number of these tasks.
    pub count: u64,
}

/// Selects the tasks of a job that have a row, starting with the id `first`, in `bins` that cover
/// `span` ids in total.
#[must_use]
pub fn strip(job: u32, at_ns: i64, first: u32, bins: i64, span: i64) -> Query<StripRow> {
    let sql = format!(
        "SELECT (task - ?L) * {bins} / ?S AS bin, {STATE} AS now, \
         CASE WHEN state IN (:finished, :failed) THEN {} ELSE -1 END AS took, count(*) \
         FROM task_data WHERE job = ?J GROUP BY 1, 2, 3",
        run_bin_sql()
    );
    let values = [
        ("?J", i64::from(job)),
        ("?T", at_ns),
        ("?L", i64::from(first)),
        ("?S", span),
    ];
    Query::new(&sql, &values, |row| StripRow {
        bin: row.int(0),
        state: row.state(1),
        took: usize::try_from(row.int(2)).ok(),
        count: row.uint(3),
    })
}

/// Tasks that were canceled or aborted together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DroppedRow {
    /// The lowest id.
    pub first: i64,
    /// The number of ids.
    pub count: i64,
    /// The distance between consecutive ids.
    pub step: i64,
    /// The state, either `Canceled` or `Aborted`.
    pub state: TaskState,
}

/// Selects the canceled and aborted tasks of a job.
#[must_use]
pub fn dropped(job: u32, at_ns: i64) -> Query<DroppedRow> {
    let sql =
        "SELECT first, count, step, state FROM dropped_data WHERE job = ?J AND at_unix_ns <= ?T";
    let values = [("?J", i64::from(job)), ("?T", at_ns)];
    Query::new(sql, &values, |row| DroppedRow {
        first: row.int(0),
        count: row.int(1),
        step: row.int(2),
        state: row.state(3),
    })
}

/// A started task.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TaskRow {
    /// The id of the job.
    pub job: u32,
    /// The id of the task within the job.
    pub task: u32,
    /// The state at the time of the query.
    pub state: TaskState,
    /// The host that runs or ran the task.
    pub host: Option<String>,
    /// When the task started.
    pub started_ns: i64,
    /// The run time.
    pub run_us: Option<u64>,
    /// The short form of the failure.
    pub error: Option<String>,
}

/// Selects the started tasks of a job, ordered by id.
#[must_use]
pub fn tasks_of_job(job: u32, at_ns: i64, limit: u32) -> Query<TaskRow> {
    tasks(
        "job = ?I AND started_unix_ns <= ?T",
        job,
        "task",
        at_ns,
        limit,
    )
}

/// Selects the tasks that a worker runs or ran, the latest first.
#[must_use]
pub fn tasks_of_worker(worker: u32, at_ns: i64, limit: u32) -> Query<TaskRow> {
    let which = "worker = ?I AND started_unix_ns <= ?T";
    tasks(which, worker, "started_unix_ns DESC", at_ns, limit)
}

/// Selects the last failures of a job.
#[must_use]
pub fn failures(job: u32, at_ns: i64) -> Query<TaskRow> {
    let which = "job = ?I AND state = :failed AND started_unix_ns + run_us * 1000 <= ?T";
    let order = "started_unix_ns + run_us * 1000 DESC";
    tasks(which, job, order, at_ns, FAILURES_MAX)
}

fn tasks(which: &str, id: u32, order: &str, at_ns: i64, limit: u32) -> Query<TaskRow> {
    // The view of workers also has a start column, so the tasks are selected before the join.
    let sql = format!(
        "SELECT t.job, t.task, t.now, w.hostname, t.started_unix_ns, t.run_us, t.outcome, t.message FROM \
         (SELECT job, task, {STATE} AS now, worker, started_unix_ns, run_us, outcome, message \
          FROM task_data WHERE {which} ORDER BY {order} LIMIT {limit}) t \
         LEFT JOIN worker_data w ON w.id = t.worker ORDER BY t.{order}"
    );
    Query::new(&sql, &[("?I", id.into()), ("?T", at_ns)], |row| {
        let state = row.state(2);
        TaskRow {
            job: row.small(0),
            task: row.small(1),
            state,
            host: row.owned(3),
            started_ns: row.int(4),
            run_us: row.number(5).and_then(|us| u64::try_from(us).ok()),
            error: (state == TaskState::Failed).then(|| row.failure_words(6)),
        }
    })
}

/// Selects the times of the first and the last record in a journal, in one row.
#[must_use]
pub fn span() -> Query<(i64, i64)> {
    let sql = "SELECT min(a), max(b) FROM (SELECT min(at_unix_ns) AS a, max(at_unix_ns) AS b FROM event_log \
               UNION ALL SELECT min(started_unix_ns), \
               max(started_unix_ns + coalesce(run_us, 0) * 1000) FROM task_data)";
    Query::new(sql, &[], |row| (row.int(0), row.int(1)))
}

/// Selects the time at which the first task started, in one row.
#[must_use]
pub fn first_start() -> Query<Option<i64>> {
    let sql = "SELECT min(started_unix_ns) FROM task_data";
    Query::new(sql, &[], |row| row.number(0))
}

/// The requested amount of a resource, per task of a job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestRow {
    /// The id of the job.
    pub job: u32,
    /// The variant of the request.
    pub variant: u32,
    /// The name of the resource.
    pub resource: String,
    /// The number of requested units. `None` stands for the whole pool.
    pub units: Option<u64>,
}

/// Selects the requests of all jobs. The journal does not record the requests of graphs.
#[must_use]
pub fn requests() -> Query<RequestRow> {
    let sql = "SELECT e.job, v.key, json_extract(r.value, '$.resource'), json_extract(r.value, '$.policy') \
         FROM event_log e, json_each(json_extract(e.data, '$.submit_desc.task_desc.resources.variants')) v, \
         json_each(json_extract(v.value, '$.resources')) r WHERE e.type = 'job-created'";
    Query::new(sql, &[], |row| RequestRow {
        job: row.small(0),
        variant: row.small(1),
        resource: row.owned(2).unwrap_or_default(),
        units: row
            .json(3)
            .as_object()
            .and_then(|policy| policy.values().next())
            .and_then(Value::as_u64),
    })
}

/// A job and its number of tasks at the time of the query.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JobRow {
    /// The id of the job.
    pub id: u32,
    /// The name of the job.
    pub name: String,
    /// Whether the job accepts more tasks.
    pub is_open: bool,
    /// The number of tasks of its submits.
    pub task_count: u64,
}

/// Selects the jobs, ordered by id, without forgotten ones.
#[must_use]
pub fn jobs(at_ns: i64) -> Query<JobRow> {
    let sql = "SELECT j.id, j.name, j.is_open, (SELECT coalesce(sum(s.task_count), 0) FROM submit_data s \
               WHERE s.job = j.id AND s.at_unix_ns <= ?T) FROM job_data j \
               WHERE j.is_forgotten = 0 AND j.submitted_unix_ns <= ?T ORDER BY j.id";
    Query::new(sql, &[("?T", at_ns)], |row| JobRow {
        id: row.small(0),
        name: row.owned(1).unwrap_or_default(),
        is_open: row.int(2) != 0,
        task_count: row.uint(3),
    })
}

/// The number of tasks of a job in a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateRow {
    /// The job of these tasks.
    pub job: u32,
    /// The state of these tasks.
    pub state: TaskState,
    /// The number of tasks.
    pub count: u64,
}

fn state_row(row: RowRef<'_>) -> StateRow {
    StateRow {
        job: row.small(0),
        state: row.state(1),
        count: row.uint(2),
    }
}

/// Selects the number of tasks that have a row, by job and by state at the time of the query.
#[must_use]
pub fn states(at_ns: i64) -> Query<StateRow> {
    let sql =
        format!("SELECT job, {STATE} AS now, count(*) FROM task_data GROUP BY 1, 2 ORDER BY 1");
    Query::new(&sql, &[("?T", at_ns)], state_row)
}

/// Selects the number of tasks that were canceled or aborted while they were waiting, by job.
#[must_use]
pub fn dropped_sums(at_ns: i64) -> Query<StateRow> {
    // Tasks that ran have a row with the same information.
    let sql = format!(
        "SELECT d.job, d.state, sum(d.count) - (SELECT count(*) FROM task_data t WHERE t.job = d.job \
         AND t.state = d.state AND {STATE} = d.state) FROM dropped_data d \
         WHERE d.at_unix_ns <= ?T GROUP BY 1, 2"
    );
    Query::new(&sql, &[("?T", at_ns)], state_row)
}

/// Counts the tasks of each of these jobs by state, using the rows of [`states`] followed by those
/// of [`dropped_sums`].
#[must_use]
pub fn counts(jobs: &[JobRow], rows: impl IntoIterator<Item = StateRow>) -> Vec<TaskTotals> {
    let all_wait = |job: &JobRow| TaskTotals {
        waiting: job.task_count,
        ..TaskTotals::default()
    };
    let mut counts: Vec<TaskTotals> = jobs.iter().map(all_wait).collect();
    for row in rows {
        // The rows of forgotten jobs remain until compaction.
        let found = jobs.binary_search_by_key(&row.job, |job| job.id);
        if let Some(of_job) = found.ok().and_then(|at| counts.get_mut(at)) {
            of_job.shift(row.count, row.state);
        }
    }
    counts
}

/// A worker.
#[derive(Clone, PartialEq, Debug)]
pub struct WorkerRow {
    /// The id of the worker.
    pub id: u32,
    /// The host name.
    pub host: String,
    /// When the worker connected.
    pub started_ns: i64,
    /// The reason why the worker ended, if it had ended at the time of the query.
    pub ended: Option<String>,
    /// The configuration, in the format of events.
    pub config: Value,
}

/// Selects the workers, ordered by id.
#[must_use]
pub fn workers(at_ns: i64) -> Query<WorkerRow> {
    let sql = "SELECT w.id, w.hostname, w.started_unix_ns, \
               CASE WHEN w.ended_unix_ns <= ?T THEN coalesce(w.reason, 'ended') END, w.config \
               FROM worker_data w WHERE w.started_unix_ns <= ?T ORDER BY w.id";
    Query::new(sql, &[("?T", at_ns)], |row| WorkerRow {
        id: row.small(0),
        host: row.owned(1).unwrap_or_default(),
        started_ns: row.int(2),
        ended: row.owned(3),
        config: row.json(4),
    })
}

/// The number of tasks that were running on a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunningRow {
    /// The worker that ran the tasks.
    pub worker: u32,
    /// The job of these tasks.
    pub job: u32,
    /// The variant of the request that they ran with.
    pub variant: u32,
    /// The number of tasks.
    pub count: u32,
}

/// Selects the running tasks by worker.
#[must_use]
pub fn running(at_ns: i64) -> Query<RunningRow> {
    let sql = format!(
        "SELECT worker, job, variant, count(*) FROM task_data WHERE {STATE} = :running GROUP BY 1, 2, 3"
    );
    Query::new(&sql, &[("?T", at_ns)], |row| RunningRow {
        worker: row.small(0),
        job: row.small(1),
        variant: row.small(2),
        count: row.small(3),
    })
}

/// An allocation queue.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueRow {
    /// The id of the queue.
    pub id: u32,
    /// The encoded record of the queue. `None` if the queue was removed.
    pub record: Option<Vec<u8>>,
}

/// Selects the queues, ordered by id. Journals of the first version do not have this table.
#[must_use]
pub fn queues() -> Query<QueueRow> {
    let sql = "SELECT id, record FROM queue_data ORDER BY id LIMIT 1000";
    Query::new(sql, &[], |row| QueueRow {
        id: row.small(0),
        record: row.bytes(1).map(Vec::from),
    })
}

/// An allocation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllocationRow {
    /// The id of the queue.
    pub queue: u32,
    /// The id in the batch system.
    pub id: String,
    /// The number of requested workers.
    pub worker_count: u32,
    /// When the allocation was queued.
    pub queued_ns: Option<i64>,
    /// When the allocation started, if it had started at the time of the query.
    pub started_ns: Option<i64>,
    /// When the allocation ended, if it had ended at the time of the query.
    pub ended_ns: Option<i64>,
}

/// Selects the allocations in the order they were queued.
#[must_use]
pub fn allocations(at_ns: i64) -> Query<AllocationRow> {
    let sql = "SELECT queue, id, worker_count, queued_unix_ns, \
               CASE WHEN started_unix_ns <= ?T THEN started_unix_ns END, \
               CASE WHEN ended_unix_ns <= ?T THEN ended_unix_ns END FROM allocation_data \
               WHERE queued_unix_ns <= ?T ORDER BY queued_unix_ns LIMIT 10000";
    Query::new(sql, &[("?T", at_ns)], |row| AllocationRow {
        queue: row.small(0),
        id: row.owned(1).unwrap_or_default(),
        worker_count: row.small(2),
        queued_ns: row.number(3),
        started_ns: row.number(4),
        ended_ns: row.number(5),
    })
}

/// An event that is not about individual tasks.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct EventRow {
    /// When the event occurred.
    pub at_ns: i64,
    /// The type of the event.
    pub kind: String,
    /// The job that the event is about.
    pub job: Option<u32>,
    /// The worker that the event is about.
    pub worker: Option<u32>,
    /// The details of the event.
    pub data: Value,
}

/// Selects the last events that are not about individual tasks, the newest first.
#[must_use]
pub fn events(at_ns: i64) -> Query<EventRow> {
    let sql = "SELECT at_unix_ns, type, job, worker, data FROM event_log WHERE at_unix_ns <= ?T \
               AND type <> 'worker-overview' ORDER BY seq DESC LIMIT 500";
    Query::new(sql, &[("?T", at_ns)], |row| EventRow {
        at_ns: row.int(0),
        kind: row.owned(1).unwrap_or_default(),
        job: row.id(2),
        worker: row.id(3),
        data: row.json(4),
    })
}

/// The lifetime of a worker.
#[derive(Clone, PartialEq, Debug)]
pub struct LifeRow {
    /// When the worker connected.
    pub from_ns: i64,
    /// When the worker ended.
    pub to_ns: Option<i64>,
    /// The configuration, in the format of events.
    pub config: Value,
}

/// Selects the workers that were connected at any time from `from_ns` to `to_ns`.
#[must_use]
pub fn lives(from_ns: i64, to_ns: i64) -> Query<LifeRow> {
    let sql = "SELECT started_unix_ns, ended_unix_ns, config FROM worker_data \
         WHERE started_unix_ns <= ?T AND coalesce(ended_unix_ns, ?T) >= ?F";
    Query::new(sql, &[("?F", from_ns), ("?T", to_ns)], |row| LifeRow {
        from_ns: row.int(0),
        to_ns: row.number(1),
        config: row.json(2),
    })
}
