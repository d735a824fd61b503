//! Views that come from the store: sums over tasks, the timeline, failures, the journal's last lines.
//!
//! Read on threads of their own and kept for a while, see [`ResponseCache`](crate::http::kept::ResponseCache).

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::{Path, Query as UrlQuery, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hq_core::id::JobId;
use hq_core::task::TaskState;
use hq_store::StoreClient;
use hq_store::reader::timeline::{self, BarRow, BarSumRow, WorkerRow};
use hq_store::reader::{self, FAILURES_MAX, QueryLimits, RUN_BOUNDS};
use hq_store::statement::Query;
use serde::Deserialize;
use serde_json::{Value, json};

use super::json::amount;
use super::{Answer, ApiError, Parameters, bounded, id, parameters};
use crate::core_handle::View;
use crate::http::App;
use crate::journal_link;
use crate::query::listed::cpus_of;

/// Longest run of a query.
const TIME_MAX: Duration = Duration::from_secs(20);
/// Tasks of a timeline; of more there are sums, of which there are no more, either.
const TIMELINE_MAX: u64 = 100_000;
/// Tasks of a timeline that one step of the core's thread looks up.
const CPUS_STEP: usize = 8_192;
const STEPS_MAX: i64 = 1_000;
const EVENTS_MAX: u32 = 1_000;
/// Largest time in ms that fits as ns into 64 bits.
const MS_MAX: i64 = i64::MAX / 1_000_000;

/// Runs a query; `true` if there is more than `limit`.
pub(super) async fn rows<R: Send + 'static>(
    app: &App,
    query: Query<R>,
    limit: u64,
) -> Result<(Vec<R>, bool), ApiError> {
    let Some(store) = app.parts.store.clone() else {
        return Err(ApiError::not_found(
            "this server keeps its state in memory only",
        ));
    };
    let limits = QueryLimits {
        time: TIME_MAX,
        rows: limit,
        bytes: reader::RESULT_LEN_MAX,
    };
    let work = move |store: &StoreClient| query.run(&store.read()?, limits);
    journal_link::read_unless_it_hangs(store, work)
        .await?
        .map_err(ApiError::bad)
}

/// A body that is JSON already.
pub(super) fn as_json(body: Bytes) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], body).into_response()
}

/// Tasks that ended by themselves, by job, worker and how.
pub(in crate::http) async fn ended(State(app): State<Arc<App>>) -> Answer {
    const SHARES_MAX: usize = 5_000;
    if app.parts.store.is_none() {
        return Err(ApiError::not_found(
            "this server keeps its state in memory only",
        ));
    }
    let found = app.parts.problems.shares().await?;
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

/// How many tasks of a job have failed; an error if there is no such job.
pub(super) async fn failed_count(app: &App, job: u32) -> Result<u64, ApiError> {
    let count = move |view: &View<'_>| {
        let job = view.state.jobs().get(&JobId(job));
        job.map(|job| u64::from(job.counts().failed))
    };
    let found = app.parts.core.query(count).await?;
    found.ok_or_else(|| ApiError::not_found(format!("there is no job {job}")))
}

/// The last failures of a job, and all of them by reason and host.
pub(in crate::http) async fn failures(
    State(app): State<Arc<App>>,
    Path(job): Path<String>,
) -> Result<Response, ApiError> {
    const GROUPS_MAX: u64 = 200;
    let job = id(&job, "job")?;
    // Without a new failure there is nothing new to say.
    let version = Some(failed_count(&app, job).await?);
    let make = async {
        let (last, _) = rows(&app, timeline::failures(job), FAILURES_MAX.into()).await?;
        let (groups, _) = rows(&app, timeline::failure_groups(job), GROUPS_MAX).await?;
        let failures = last.iter().map(|row| {
            json!({
                "error": row.error, "task": row.task, "instance": row.instance, "host": row.host,
                "worker": row.worker, "run_us": row.run_us, "ended_ms": row.ended_ms,
            })
        });
        let groups = groups
            .iter()
            .map(|row| json!({"error": row.error, "host": row.host, "count": row.count}));
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

/// Tasks that ran for about as long.
#[derive(Clone, Default)]
struct RunBin {
    /// Tasks that ended by themselves.
    count: u64,
    /// How many of these failed, and how many of those at their time limit.
    failed: u64,
    timed_out: u64,
    /// Tasks that were ended while they ran.
    canceled: u64,
}

/// Tasks of a job that have ended, by how long they ran: for [`RUN_BOUNDS`] and what is longer.
pub(super) async fn run_times(app: &App, job: u32) -> Result<Vec<Value>, ApiError> {
    /// Different ends of tasks in a bin.
    const KINDS_MAX: u64 = 8;
    let mut bins = vec![RunBin::default(); RUN_BOUNDS.len() + 1];
    let limit = KINDS_MAX * bins.len() as u64;
    for row in rows(app, timeline::run_times(job), limit).await?.0 {
        let Some(bin) = bins.get_mut(row.bin) else {
            continue;
        };
        if matches!(row.state, TaskState::Canceled | TaskState::Aborted) {
            bin.canceled += row.count;
            continue;
        }
        bin.count += row.count;
        if row.state == TaskState::Failed {
            bin.failed += row.count;
        }
        if row.timed_out {
            bin.timed_out += row.count;
        }
    }
    let bounds = RUN_BOUNDS.iter().map(Some).chain([None]);
    let shown = bounds.zip(&bins).map(|(bound, bin)| {
        json!({
            "up_to_us": bound, "count": bin.count, "failed": bin.failed, "timed_out": bin.timed_out,
            "canceled": bin.canceled,
        })
    });
    Ok(shown.collect())
}

#[derive(Deserialize)]
pub(in crate::http) struct TimelineQuery {
    from_ms: i64,
    to_ms: i64,
    steps: Option<i64>,
}

/// Attempts by worker and time: single ones, or sums in steps if there are too many.
pub(in crate::http) async fn bars(
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
    let (first, _) = rows(&app, timeline::first_submit(), 1).await?;
    let (workers, _) = rows(&app, timeline::workers(from, to), TIMELINE_MAX).await?;
    let (bars, is_cut) = rows(&app, timeline::bars(from, to), TIMELINE_MAX).await?;
    let steps = bounded("steps", asked.steps, 400, 1..=STEPS_MAX)?;
    let mut width = ((to - from) / steps).max(1);
    let mut sums = None;
    let mut has_gaps = false;
    if is_cut {
        let (counted, _) = rows(&app, timeline::worker_count(from, to), 1).await?;
        let workers = counted.first().copied().unwrap_or(0);
        width = ((to - from) / steps_for(workers, steps)).max(1);
        let sums_query = timeline::bar_sums(from, to, width);
        let (found, is_cut) = rows(&app, sums_query, TIMELINE_MAX).await?;
        // Only if there are more workers than rows.
        has_gaps = is_cut;
        sums = Some(found.iter().map(bar_sum).collect::<Vec<_>>());
    }
    let tasks = match &sums {
        Some(_) => None,
        None => Some(with_cpus(&app, &bars).await?),
    };
    Ok(Json(json!({
        "from_ms": asked.from_ms,
        "to_ms": asked.to_ms,
        "workers": workers.iter().map(worker).collect::<Vec<_>>(),
        "first_ms": first.first().copied().unwrap_or(0),
        "cost_ms": u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        "tasks": tasks,
        "step_us": sums.is_some().then_some(width / 1_000),
        "steps": sums,
        "is_cut": has_gaps,
    })))
}

fn worker(row: &WorkerRow) -> Value {
    json!({
        "id": row.id, "host": row.host, "started_ms": row.started_ms, "ended_ms": row.ended_ms,
        "cpus": amount(row.cpus.unsigned_abs()),
    })
}

/// The tasks, each with the cpus that it asked for, which the core knows.
async fn with_cpus(app: &App, bars: &[BarRow]) -> Result<Vec<Value>, ApiError> {
    let small = |number: i64| u32::try_from(number).unwrap_or(u32::MAX);
    let mut found = Vec::with_capacity(bars.len());
    for part in bars.chunks(CPUS_STEP) {
        let tasks: Vec<_> = part
            .iter()
            .map(|row| (small(row.job), small(row.task)))
            .collect();
        let asked = app
            .parts
            .core
            .query(move |view| cpus_of(view, &tasks))
            .await?;
        found.extend(part.iter().zip(asked).map(|(row, cpus)| bar(row, cpus)));
    }
    Ok(found)
}

/// Worker, start in ms behind the begin, run time in ms or null, state, job, task, cpus or null for a whole worker.
fn bar(row: &BarRow, cpus: Option<u64>) -> Value {
    let state = row.state.number();
    json!([
        row.worker,
        row.start_ms,
        row.run_ms,
        state,
        row.job,
        row.task,
        cpus.map(amount)
    ])
}

/// Worker, step in which tasks began, how long they ran together in ms, how many, how many of them failed.
fn bar_sum(row: &BarSumRow) -> Value {
    json!([row.worker, row.step, row.run_ms, row.count, row.failed])
}

/// Steps of which all workers can have one row each: with many workers they are wider, and none is left out.
fn steps_for(workers: i64, steps: i64) -> i64 {
    let rows = i64::try_from(TIMELINE_MAX).unwrap_or(i64::MAX);
    // Attempts that began at the very end count as a step of their own.
    (rows / workers.max(1) - 1).clamp(1, steps)
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
    let asked = parameters(asked)?;
    let limit = bounded("limit", asked.limit, 500, 1..=EVENTS_MAX)?;
    let before = asked.before.map_or(i64::MAX, i64::from);
    let (found, _) = rows(&app, timeline::log(before, limit), limit.into()).await?;
    let events = found.into_iter().map(|row| {
        json!({
            "seq": row.seq, "at_ms": row.at_ms, "type": row.kind, "job": row.job,
            "worker": row.worker, "data": row.data.unwrap_or_else(|| json!({})),
        })
    });
    Ok(Json(json!({"events": events.collect::<Vec<_>>()})))
}

#[cfg(test)]
mod tests {
    use super::*;

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
