//! Parts of statements that dashboards and reports share: the times of tasks and their requests.
//!
//! They are parts of statements (`WITH …`), so that SQLite aggregates the rows. The size of the
//! result therefore depends neither on the number of tasks nor on the number of jobs. They are
//! templates; see [`Query`].

use crate::statement::Query;

/// `asked (job, variant, name, units)`: the amount of each resource that a task requests. A whole
/// pool (`All`) counts as one unit, because its size depends on the worker. Graphs are not
/// included, because the journal does not record their requests.
pub(crate) const ASKED: &str = "asked AS MATERIALIZED (\
     SELECT e.job AS job, v.key AS variant, json_extract(r.value, '$.resource') AS name, \
     max(CASE WHEN typeof(p.value) IN ('integer', 'real') THEN p.value ELSE 10000 END) AS units \
     FROM event_log e, json_each(e.data, '$.submit_desc.task_desc.resources.variants') v, \
     json_each(v.value, '$.resources') r, json_each(r.value, '$.policy') p \
     WHERE e.type = 'job-created' GROUP BY 1, 2, 3)";

/// `cpus (job, variant, units)`, based on `asked`: 0 for tasks that only request other resources.
pub(crate) const CPUS: &str = "cpus AS MATERIALIZED (\
     SELECT job, variant, sum(CASE name WHEN 'cpus' THEN units ELSE 0 END) AS units FROM asked GROUP BY 1, 2)";

/// The cpus of a task that is not in `cpus`, in units.
pub(crate) const CPUS_UNKNOWN: i64 = 10_000;

/// `runs (job, variant, worker, state, began, ended)`: each instance that ran, in nanoseconds since
/// 1970. `ended` is null while the instance is running. `state` is -1 if a later instance replaced
/// it. A task that was canceled or aborted while it was running ended at that time. Journals of
/// earlier releases do not contain its run time, but they contain the time of the cancellation.
pub(crate) const RUNS: &str = "runs AS (\
     SELECT t.job, t.variant, t.worker, t.state, t.started_unix_ns AS began, CASE WHEN t.state = :running THEN NULL \
     WHEN t.run_us IS NOT NULL THEN t.started_unix_ns + t.run_us * 1000 \
     ELSE coalesce((SELECT min(d.at_unix_ns) FROM dropped_data d WHERE d.job = t.job AND d.state = t.state \
     AND t.task BETWEEN d.first AND d.first + (d.count - 1) * d.step AND (t.task - d.first) % d.step = 0), \
     t.started_unix_ns) END AS ended \
     FROM task_data t WHERE t.state IN (:running, :finished, :failed) OR (t.state IN (:canceled, :aborted) AND t.start_seq IS NOT NULL) \
     UNION ALL SELECT a.job, a.variant, a.worker, -1, a.started_unix_ns, a.started_unix_ns + a.run_us * 1000 \
     FROM attempt_data a WHERE a.run_us IS NOT NULL)";

/// `changes (is_end, step, job, variant, n)`, based on `runs`: the number of starts and ends in
/// each step of length `?W` from `?F` to `?T`. Instances that started earlier count in the first
/// step.
pub(crate) const CHANGES: &str = "changes AS (\
     SELECT 0 AS is_end, (max(began, ?F) - ?F) / ?W AS step, job, variant, count(*) AS n FROM runs \
     WHERE began <= ?T AND (ended IS NULL OR ended >= ?F) GROUP BY 2, 3, 4 UNION ALL \
     SELECT 1, (ended - ?F) / ?W, job, variant, count(*) FROM runs WHERE ended BETWEEN ?F AND ?T GROUP BY 2, 3, 4)";

/// The tasks that started or ended in one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StepRow {
    /// Whether these tasks ended (rather than started).
    pub is_end: bool,
    /// The step of the period.
    pub step: i64,
    /// The number of tasks.
    pub tasks: i64,
    /// The requested cpus, in units.
    pub units: i64,
}

/// Selects starts and ends of tasks from `from_ns` to `to_ns`, in steps of `width`. Within a step,
/// the starts come first.
#[must_use]
pub fn steps(from_ns: i64, to_ns: i64, width: i64) -> Query<StepRow> {
    let sql = format!(
        "WITH {ASKED}, {CPUS}, {RUNS}, {CHANGES} \
         SELECT c.is_end, c.step, sum(c.n), sum(c.n * coalesce(a.units, {CPUS_UNKNOWN})) FROM changes c \
         LEFT JOIN cpus a ON a.job = c.job AND a.variant = c.variant GROUP BY 1, 2"
    );
    let values = [("?F", from_ns), ("?T", to_ns), ("?W", width)];
    Query::new(&sql, &values, |row| StepRow {
        is_end: row.int(0) != 0,
        step: row.int(1),
        tasks: row.int(2),
        units: row.int(3),
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rusqlite::Connection;

    use super::*;
    use crate::query::QueryLimits;
    use crate::schema;

    /// Returns the steps with their starts, ends and units of cpus.
    fn steps(db: &Connection, (from, to, width): (i64, i64, i64)) -> Vec<(i64, i64, i64, i64)> {
        let limits = QueryLimits {
            time: Duration::from_secs(60),
            rows: 1_000_000,
            bytes: 1 << 30,
        };
        let (found, is_cut) = super::steps(from, to, width).run(db, limits).expect("rows");
        assert!(!is_cut);
        let row = |row: StepRow| (i64::from(row.is_end), row.step, row.tasks, row.units);
        found.into_iter().map(row).collect()
    }

    fn fresh(sql: &str) -> Connection {
        let mut db = Connection::open_in_memory().expect("a database in memory");
        schema::migrate(&mut db, 0).expect("the schema is valid");
        db.execute_batch(sql).expect("rows");
        db
    }

    const TASK: &str = "INSERT INTO task_row_data (job, task, state, instance, crash_count, worker, variant, \
                        started_unix_ns, run_us, start_seq)";

    #[test]
    fn what_comes_back_does_not_grow_with_the_jobs() {
        // There is one task per job. The tasks run one after another on one worker.
        let db = fresh(&format!(
            "WITH RECURSIVE n (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM n WHERE i < 69999) \
             {TASK} SELECT i + 1, 0, 2, 0, 0, 1, 0, i * 1000, 1, 1 FROM n"
        ));
        let found = steps(&db, (0, 70_000_000, 175_000));
        assert!(found.len() <= 2 * 401, "{} rows", found.len());
        let (mut running, mut most) = (0, 0);
        for step in 0..=400 {
            for (is_end, _, tasks, _) in found.iter().filter(|row| row.1 == step) {
                running += if *is_end == 0 { *tasks } else { -tasks };
                most = most.max(running.abs());
            }
        }
        // Within a step, starts count before ends.
        assert_eq!((running, most <= 180), (0, true), "at most {most}");
    }

    #[test]
    fn tasks_that_were_canceled_while_they_ran_end_and_those_that_wait_again_do_not_run() {
        // A connection can only run one query.
        let rows = format!(
            "{TASK} VALUES (1, 1, 4, 0, 0, 1, 0, 10, NULL, 1), (1, 2, 1, 0, 0, 1, 0, 10, NULL, 2), \
             (1, 3, 0, 1, 1, 0, 0, 10, NULL, NULL), (1, 4, 4, 1, 1, 0, 0, 10, NULL, NULL), \
             (1, 5, 5, 0, 0, 1, 0, 10, NULL, 3), (2, 1, 4, 0, 0, 1, 0, 5000, 4, 4); \
             INSERT INTO attempt_data (job, task, instance, worker, variant, started_unix_ns, run_us) \
             VALUES (1, 3, 0, 1, 0, 2000, 3), (1, 4, 0, 1, 0, 2000, NULL); \
             INSERT INTO dropped_data VALUES (5, 1, 1, 2, 3, 4, 50), (6, 1, 5, 1, 1, 5, 70)"
        );
        assert_eq!(
            steps(&fresh(&rows), (0, 100, 10)),
            [
                (0, 1, 3, 3 * CPUS_UNKNOWN),
                (1, 5, 1, CPUS_UNKNOWN),
                (1, 7, 1, CPUS_UNKNOWN)
            ]
        );
        let counts: Vec<_> = steps(&fresh(&rows), (0, 10_000, 1_000))
            .iter()
            .map(|(is_end, step, tasks, _)| (*is_end, *step, *tasks))
            .collect();
        assert_eq!(
            counts,
            [
                (0, 0, 3),
                (0, 2, 1),
                (0, 5, 1),
                (1, 0, 2),
                (1, 5, 1),
                (1, 9, 1)
            ],
            "with the attempt that failed, and the run time where it is known"
        );
    }

    #[test]
    fn what_tasks_asked_for_is_added_up() {
        let request = |policy: &str| {
            format!(
                r#"{{"submit_desc": {{"task_desc": {{"resources": {{"variants": [{{"resources": [{policy}]}}]}}}}}}}}"#
            )
        };
        let four = request(
            r#"{"resource": "cpus", "policy": {"Compact": 40000}}, {"resource": "mem", "policy": {"Compact": 9}}"#,
        );
        let all = request(r#"{"resource": "cpus", "policy": "All"}"#);
        let other = request(r#"{"resource": "gpus", "policy": {"Compact": 10000}}"#);
        let db = fresh(&format!(
            "INSERT INTO event_log VALUES (1, 1, 'job-created', 1, NULL, '{four}'), \
             (2, 1, 'job-created', 2, NULL, '{all}'), (3, 1, 'job-created', 3, NULL, '{other}'); \
             {TASK} VALUES (1, 1, 1, 0, 0, 1, 0, 10, NULL, 1), (2, 1, 1, 0, 0, 1, 0, 20, NULL, 1), \
             (3, 1, 1, 0, 0, 1, 0, 30, NULL, 1), (4, 1, 1, 0, 0, 1, 0, 40, NULL, 1)"
        ));
        assert_eq!(
            steps(&db, (0, 100, 10)),
            [
                (0, 1, 1, 40_000),
                (0, 2, 1, 10_000),
                (0, 3, 1, 0),
                (0, 4, 1, 10_000)
            ]
        );
    }
}
