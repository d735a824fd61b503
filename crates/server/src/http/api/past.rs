//! What dashboards ask of the store: sums over tasks, the timeline, failures, the journal's last lines.
//!
//! Read on threads of their own and kept for a while, see [`Kept`](crate::http::kept::Kept).

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::{Path, Query as UrlQuery, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hq_core::id::JobId;
use hq_store::reader::{self, FAILURES_MAX, QueryLimits, RUN_BOUNDS};
use hq_store::statement::fill;
use serde::Deserialize;
use serde_json::{Value, json};

use super::read::{Parameters, parameters};
use super::{Answer, ApiError, bounded, id};
use crate::core_handle::View;
use crate::http::App;

/// Longest run of a query.
const TIME_MAX: Duration = Duration::from_secs(20);
/// Tasks of a timeline; of more there are sums, of which there are no more, either.
const TIMELINE_MAX: u64 = 100_000;
const STEPS_MAX: i64 = 1_000;
const EVENTS_MAX: u32 = 1_000;
/// Largest time in ms that fits as ns into 64 bits.
const MS_MAX: i64 = i64::MAX / 1_000_000;
type Rows = Vec<Vec<Value>>;

/// Runs a query; `true` if there is more than `limit`.
pub(super) async fn rows(app: &App, sql: String, limit: u64) -> Result<(Rows, bool), ApiError> {
    let Some(store) = app.shared.store.clone() else {
        return Err(ApiError::not_found(
            "this server keeps its state in memory only",
        ));
    };
    let limits = QueryLimits {
        time: TIME_MAX,
        rows: limit,
        bytes: reader::RESULT_LEN_MAX,
    };
    let work = move || {
        let connection = store.read()?;
        reader::query(&connection, &fill(&sql, &[]), limits)
    };
    let table = tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| ApiError::gone())?
        .map_err(ApiError::bad)?;
    Ok((table.rows, table.is_cut))
}

/// A body that is JSON already.
pub(super) fn as_json(body: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

fn int(row: &[Value], at: usize) -> i64 {
    row.get(at).and_then(Value::as_i64).unwrap_or(0)
}

fn cell(row: &[Value], at: usize) -> Value {
    row.get(at).cloned().unwrap_or_default()
}

/// Words for a failure, out of `outcome` and `message`.
fn words(row: &[Value], at: usize) -> String {
    let message = row.get(at + 1).and_then(Value::as_str);
    reader::failure_text(int(row, at), message)
}

/// Tasks that ended by themselves, by job, worker and how.
pub(in crate::http) async fn ended(State(app): State<Arc<App>>) -> Answer {
    const SHARES_MAX: usize = 5_000;
    let found = app.shares.get(&app).await?;
    let is_cut = found.is_cut || found.shares.len() > SHARES_MAX;
    let shares = found.shares.iter().take(SHARES_MAX).map(|share| {
        json!({
            "job": share.job,
            "worker": share.worker,
            "host": share.host,
            "error": share.error,
            "count": share.count,
        })
    });
    let shares = shares.collect::<Vec<_>>();
    Ok(Json(json!({"shares": shares, "is_cut": is_cut})))
}

/// The last failures of a job, and all of them by reason and host.
pub(in crate::http) async fn failures(
    State(app): State<Arc<App>>,
    Path(job): Path<String>,
) -> Result<Response, ApiError> {
    const GROUPS_MAX: u64 = 200;
    let job = id(&job, "job")?;
    let from = format!(
        "FROM task_data t LEFT JOIN worker_data w ON w.id = t.worker WHERE t.job = {job} AND t.state = :failed"
    );
    let last = format!(
        "SELECT t.outcome, t.message, t.task, t.instance, w.hostname, t.worker, t.run_us, \
         (t.started_unix_ns + t.run_us * 1000) / 1000000 {from} \
         ORDER BY t.started_unix_ns + t.run_us * 1000 DESC LIMIT {FAILURES_MAX}"
    );
    let groups = format!(
        "SELECT t.outcome, t.message, w.hostname, count(*) AS n {from} GROUP BY 1, 2, 3 ORDER BY n DESC"
    );
    // Without a new failure there is nothing new to say.
    let count = move |view: &View<'_>| {
        let job = view.state.jobs().get(&JobId(job));
        job.map(|job| u64::from(job.counts().failed))
    };
    let version = app.shared.core.query(count).await?;
    let make = async {
        let (last, _) = rows(&app, last, FAILURES_MAX.into()).await?;
        let (groups, _) = rows(&app, groups, GROUPS_MAX).await?;
        let failures = last.iter().map(|row| {
            json!({
                "error": words(row, 0), "task": cell(row, 2), "instance": cell(row, 3), "host": cell(row, 4),
                "worker": cell(row, 5), "run_us": cell(row, 6), "ended_ms": cell(row, 7),
            })
        });
        let groups = groups.iter().map(
            |row| json!({"error": words(row, 0), "host": cell(row, 2), "count": cell(row, 3)}),
        );
        Ok::<_, ApiError>(json!({
            "failures": failures.collect::<Vec<_>>(),
            "groups": groups.collect::<Vec<_>>(),
        }))
    };
    Ok(as_json(
        app.kept
            .get_version(format!("failures {job}"), version, make)
            .await?,
    ))
}

/// Tasks of a job that ended, by how long they ran: counts for [`RUN_BOUNDS`] and what is longer.
pub(super) async fn run_times(app: &App, job: u32) -> Result<Vec<u64>, ApiError> {
    let bin = reader::run_bin_sql();
    let sql = format!(
        "SELECT {bin}, count(*) FROM task_data WHERE job = {job} AND state IN (:finished, :failed) GROUP BY 1"
    );
    let mut counts = vec![0; RUN_BOUNDS.len() + 1];
    for row in rows(app, sql, RUN_BOUNDS.len() as u64 + 1).await?.0 {
        let number = usize::try_from(int(&row, 0)).unwrap_or(usize::MAX);
        if let Some(count) = counts.get_mut(number) {
            *count = int(&row, 1).unsigned_abs();
        }
    }
    Ok(counts)
}

#[derive(Deserialize)]
pub(in crate::http) struct TimelineQuery {
    from_ms: i64,
    to_ms: i64,
    steps: Option<i64>,
}

/// Which worker ran what and when: single tasks, or sums in steps if there are too many.
pub(in crate::http) async fn timeline(
    State(app): State<Arc<App>>,
    asked: Parameters<TimelineQuery>,
) -> Answer {
    let asked = parameters(asked)?;
    let span = asked.to_ms.saturating_sub(asked.from_ms);
    if span <= 0 || asked.from_ms < 0 || asked.to_ms > MS_MAX {
        return Err(ApiError::bad(
            "expected from_ms below to_ms, both in milliseconds since 1970",
        ));
    }
    // One at a time: each passes over all tasks.
    let _turn = app.timeline_turn.lock().await;
    let begun = Instant::now();
    let (from, to) = (asked.from_ms * 1_000_000, asked.to_ms * 1_000_000);
    let first =
        "SELECT coalesce(min(submitted_unix_ns) / 1000000, 0) FROM job_data WHERE is_forgotten = 0";
    let (first, _) = rows(&app, first.to_owned(), 1).await?;
    let (tasks, is_cut) = rows(&app, tasks_sql(from, to), TIMELINE_MAX).await?;
    let steps = bounded("steps", asked.steps, 400, 1..=STEPS_MAX)?;
    let mut width = ((to - from) / steps).max(1);
    let mut sums = None;
    let mut has_gaps = false;
    if is_cut {
        let (counted, _) = rows(&app, workers_sql(from, to), 1).await?;
        let workers = counted.first().map_or(0, |row| int(row, 0));
        width = ((to - from) / steps_for(workers, steps)).max(1);
        let (found, is_cut) = rows(&app, steps_sql(from, to, width), TIMELINE_MAX).await?;
        // Only if there are more workers than rows.
        has_gaps = is_cut;
        sums = Some(found);
    }
    Ok(Json(json!({
        "from_ms": asked.from_ms,
        "to_ms": asked.to_ms,
        "first_ms": first.first().map_or(0, |row| int(row, 0)),
        "cost_ms": u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        "tasks": (!is_cut).then_some(tasks),
        "step_us": sums.is_some().then_some(width / 1_000),
        "steps": sums,
        "is_cut": has_gaps,
    })))
}

/// Workers that may have run something.
fn workers_sql(from: i64, to: i64) -> String {
    format!(
        "SELECT count(*) FROM worker_data \
         WHERE started_unix_ns < {to} AND coalesce(ended_unix_ns, {to}) >= {from}"
    )
}

/// Steps of which all workers can have one row each: with many workers they are wider, and none is left out.
fn steps_for(workers: i64, steps: i64) -> i64 {
    let rows = i64::try_from(TIMELINE_MAX).unwrap_or(i64::MAX);
    // What began at the very end counts as a step of its own.
    (rows / workers.max(1) - 1).clamp(1, steps)
}

/// Worker, start in ms behind `from`, run time in ms or null, state, job, task. Attempts that failed and other
/// nodes of a multi-node task are rows of their own.
fn tasks_sql(from: i64, to: i64) -> String {
    let start = |t: &str| format!("round(({t}.started_unix_ns - {from}) / 1e6, 1)");
    let run = |t: &str| format!("round({t}.run_us / 1e3, 1)");
    let during = |t: &str| {
        format!("{t}.started_unix_ns < {to} AND {t}.started_unix_ns + {t}.run_us * 1000 >= {from}")
    };
    let bar = format!(
        "{}, CASE WHEN t.state <> :running THEN {} END, t.state, t.job, t.task",
        start("t"),
        run("t")
    );
    let shown = format!(
        "((t.state = :running AND t.started_unix_ns < {to}) OR (t.state IN (:finished, :failed) AND {}))",
        during("t")
    );
    let (earlier, then) = (format!("{}, {}", start("a"), run("a")), during("a"));
    format!(
        "SELECT t.worker, {bar} FROM task_data t WHERE {shown} \
         UNION ALL SELECT n.worker, {bar} FROM node_data n \
         JOIN task_data t ON t.job = n.job AND t.task = n.task AND t.instance = n.instance \
         WHERE n.position > 0 AND {shown} \
         UNION ALL SELECT a.worker, {earlier}, :failed, a.job, a.task FROM attempt_data a \
         WHERE a.run_us IS NOT NULL AND {then}"
    )
}

/// Worker, step in which tasks began, how long they ran together in ms, how many, how many of them failed.
fn steps_sql(from: i64, to: i64, width: i64) -> String {
    format!(
        "SELECT worker, max(0, started_unix_ns - {from}) / {width}, round(sum(coalesce(run_us, 0)) / 1e3), \
         count(*), sum(state = :failed) FROM task_data WHERE started_unix_ns < {to} AND \
         (state = :running OR (state IN (:finished, :failed) AND started_unix_ns + run_us * 1000 >= {from})) GROUP BY 1, 2"
    )
}

#[derive(Deserialize)]
pub(in crate::http) struct LogQuery {
    limit: Option<u32>,
    /// Events with lower numbers than this one.
    before: Option<u32>,
}

/// The last events that are not about single tasks, the newest first.
pub(in crate::http) async fn log(
    State(app): State<Arc<App>>,
    asked: Result<UrlQuery<LogQuery>, axum::extract::rejection::QueryRejection>,
) -> Answer {
    /// Longer ones are reduced to what people look for.
    const DATA_MAX: usize = 4_096;
    let asked = parameters(asked)?;
    let limit = bounded("limit", asked.limit, 500, 1..=EVENTS_MAX)?;
    let before = asked.before.map_or(i64::MAX, i64::from);
    let sql = format!(
        "SELECT seq, at_unix_ns / 1000000, type, job, worker, CASE WHEN length(data) <= {DATA_MAX} THEN data \
         ELSE json_object('is_cut', json('true'), 'name', json_extract(data, '$.job_desc.name')) END \
         FROM event_log WHERE seq < {before} AND type <> 'worker-overview' ORDER BY seq DESC LIMIT {limit}"
    );
    let (found, _) = rows(&app, sql, limit.into()).await?;
    let events = found.iter().map(|row| {
        let data: Option<Value> = row
            .get(5)
            .and_then(Value::as_str)
            .and_then(|text| serde_json::from_str(text).ok());
        json!({
            "seq": cell(row, 0), "at_ms": cell(row, 1), "type": cell(row, 2), "job": cell(row, 3),
            "worker": cell(row, 4), "data": data.unwrap_or_else(|| json!({})),
        })
    });
    Ok(Json(json!({"events": events.collect::<Vec<_>>()})))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statements_are_about_the_time_that_was_asked_for() {
        let sql = tasks_sql(5, 9);
        assert!(sql.contains("t.started_unix_ns < 9"));
        assert!(sql.contains(">= 5"));
        assert!(steps_sql(5, 9, 2).contains("/ 2"));
    }

    #[test]
    fn every_worker_has_its_row_in_each_step() {
        let limit = i64::try_from(TIMELINE_MAX).expect("small");
        for (workers, steps) in [(0, 400), (1, 400), (250, 399), (400, 249), (6_000, 15)] {
            assert_eq!(steps_for(workers, 400), steps.min(400), "{workers} workers");
            // Steps are numbered from 0, and what began at the very end has a number of its own.
            assert!(workers * (steps_for(workers, 400) + 1) <= limit);
        }
        assert_eq!(
            steps_for(limit * 2, 400),
            1,
            "then some are left out, which is told"
        );
    }
}
