//! Views from the store: sums over tasks, the timeline, failures, and the last lines of the
//! journal.
//!
//! They are read on separate threads and cached for a while, see
//! [`ResponseCache`](crate::http::kept::ResponseCache).

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::extract::{Path, State};
use hq_core::task::TaskState;
use hq_protocol::admission::actor;
use hq_store::StoreClient;
use hq_store::reader::timeline::{self, BarRow, BarSumRow};
use hq_store::reader::{self, FAILURES_MAX, QueryLimits, RUN_BOUNDS};
use hq_store::statement::Query;

use super::answers::{Bar, BarSum, Ended, Failure, Failures, Log, RunBin, Timeline};
use super::described::{Shown, query};
use super::json::amount;
use super::{
    Answer, ApiError, KeptAnswer, Parameters, bounded, id, look_at_job, parameters, params,
};
use crate::http::App;
use crate::http::kept::REST_MAX;
use crate::journal_link;
use crate::query::listed::cpus_of;
use crate::request_shares::TIMELINES;

/// How long a query may run.
const TIME_MAX: Duration = Duration::from_secs(20);
/// The maximum number of tasks in a timeline. If there are more, sums are returned instead, with
/// the same limit.
const TIMELINE_MAX: u64 = 100_000;
/// How many tasks of a timeline one step of the core's thread looks up.
const CPUS_STEP: usize = 8_192;
const STEPS_MAX: i64 = 1_000;
const EVENTS_MAX: u32 = 1_000;
/// The largest time in milliseconds that fits into 64 bits as nanoseconds.
pub(super) const MS_MAX: i64 = i64::MAX / 1_000_000;

/// Runs a query. Also returns whether there are more than `limit` rows.
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

/// Returns the tasks that ended by themselves, by job, worker and outcome.
pub(in crate::http) async fn ended(State(app): State<Arc<App>>) -> Answer<Ended> {
    const SHARES_MAX: usize = 5_000;
    if app.parts.store.is_none() {
        return Err(ApiError::not_found(
            "this server keeps its state in memory only",
        ));
    }
    let found = app.parts.problems.shares().await?;
    let is_cut = found.is_cut || found.shares.len() > SHARES_MAX;
    let shares = found.shares.iter().take(SHARES_MAX);
    Ok(Json(Ended {
        shares: shares.map(Shown::shown).collect(),
        is_cut,
    }))
}

/// Returns the number of failed tasks of a job, or an error if the job does not exist.
pub(super) async fn failed_count(app: &App, job: u32) -> Result<u64, ApiError> {
    look_at_job(app, job, |_, job| job.counts().failed.into()).await
}

/// Returns the last failures of a job, and all failures by reason and host.
pub(in crate::http) async fn failures(
    State(app): State<Arc<App>>,
    Path(job): Path<String>,
) -> KeptAnswer<Failures> {
    const GROUPS_MAX: u64 = 200;
    let job = id(&job, "job")?;
    // The answer is valid until another task fails.
    let version = Some(failed_count(&app, job).await?);
    let make = async {
        let (last, _) = rows(&app, timeline::failures(job), FAILURES_MAX.into()).await?;
        let (groups, _) = rows(&app, timeline::failure_groups(job), GROUPS_MAX).await?;
        let tasks = last.iter().map(|row| row.task);
        let params = params::of_tasks(&app, job, tasks.collect()).await?;
        let params = params.into_iter().chain(std::iter::repeat(None));
        let failures = last.iter().zip(params).map(|(row, params)| Failure {
            params,
            ..Failure::shown(row)
        });
        Ok::<_, ApiError>(Failures {
            failures: failures.collect(),
            groups: Shown::shown(&groups),
        })
    };
    let name = format!("failures {job}");
    app.kept.get(name, (version, REST_MAX), make).await
}

/// Counts the ended tasks of a job by run time, with a bin for each of [`RUN_BOUNDS`] and one for
/// longer run times.
pub(super) async fn run_times(app: &App, job: u32) -> Result<Vec<RunBin>, ApiError> {
    /// The maximum number of different task outcomes in a bin.
    const KINDS_MAX: u64 = 8;
    let bounds = RUN_BOUNDS.iter().copied().map(Some).chain([None]);
    let bins = bounds.map(|up_to_us| RunBin {
        up_to_us,
        count: 0,
        failed: 0,
        timed_out: 0,
        canceled: 0,
    });
    let mut bins: Vec<RunBin> = bins.collect();
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
    Ok(bins)
}

query! {
    /// A period and its steps.
    PeriodQuery {
        from_ms: i64,
        to_ms: i64,
        steps: Option<i64>,
    }
}

query! {
    /// A period, its steps, and how much is returned about it.
    TimelineQuery {
        from_ms: i64,
        to_ms: i64,
        steps: Option<i64>,
        /// The maximum number of tasks or sums.
        limit: Option<u64>,
    }
}

/// Returns a period in nanoseconds.
pub(super) fn period(from_ms: i64, to_ms: i64) -> Result<(i64, i64), ApiError> {
    if from_ms < 0 || to_ms <= from_ms || to_ms > MS_MAX {
        return Err(ApiError::bad(
            "expected from_ms below to_ms, both in milliseconds since 1970",
        ));
    }
    Ok((from_ms * 1_000_000, to_ms * 1_000_000))
}

/// Returns attempts by worker and time: single attempts, or sums in steps if there are too many.
pub(in crate::http) async fn bars(
    State(app): State<Arc<App>>,
    asked: Parameters<TimelineQuery>,
) -> Answer<Timeline> {
    let asked = parameters(asked)?;
    let (from, to) = period(asked.from_ms, asked.to_ms)?;
    let _permit = TIMELINES.enter(actor()).await;
    let begun = Instant::now();
    let (first, _) = rows(&app, timeline::first_submit(), 1).await?;
    let (workers, _) = rows(&app, timeline::workers(from, to), TIMELINE_MAX).await?;
    let limit = bounded("limit", asked.limit, TIMELINE_MAX, 1..=TIMELINE_MAX)?;
    let (bars, is_cut) = rows(&app, timeline::bars(from, to), limit).await?;
    let steps = bounded("steps", asked.steps, 400, 1..=STEPS_MAX)?;
    let mut width = ((to - from) / steps).max(1);
    let mut sums = None;
    let mut has_gaps = false;
    if is_cut {
        let (counted, _) = rows(&app, timeline::worker_count(from, to), 1).await?;
        let workers = counted.first().copied().unwrap_or(0);
        width = ((to - from) / steps_for(workers, steps, limit)).max(1);
        let sums_query = timeline::bar_sums(from, to, width);
        let (found, is_cut) = rows(&app, sums_query, limit).await?;
        // Sums are missing only if there are more workers than rows.
        has_gaps = is_cut;
        sums = Some(found.iter().map(bar_sum).collect::<Vec<_>>());
    }
    let tasks = match &sums {
        Some(_) => None,
        None => Some(with_cpus(&app, &bars).await?),
    };
    Ok(Json(Timeline {
        from_ms: asked.from_ms,
        to_ms: asked.to_ms,
        first_ms: first.first().copied().unwrap_or(0),
        cost_ms: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        workers: Shown::shown(&workers),
        tasks,
        step_us: sums.is_some().then_some(width / 1_000),
        is_cut: has_gaps,
        steps: sums,
    }))
}

/// Adds the cpus that tasks requested, which are looked up in the core.
async fn with_cpus(app: &App, bars: &[BarRow]) -> Result<Vec<Bar>, ApiError> {
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

fn bar(row: &BarRow, cpus: Option<u64>) -> Bar {
    Bar(
        row.worker,
        row.start_ms,
        row.run_ms,
        row.state.number(),
        row.job,
        row.task,
        cpus.map(amount),
    )
}

fn bar_sum(row: &BarSumRow) -> BarSum {
    BarSum(
        row.worker,
        row.step,
        row.run_ms.unwrap_or(0.0),
        row.count,
        row.failed,
    )
}

/// Returns the largest number of steps for which every worker can have one row per step. With many
/// workers, steps are fewer and wider, so that no worker is left out.
fn steps_for(workers: i64, steps: i64, limit: u64) -> i64 {
    let rows = i64::try_from(limit).unwrap_or(i64::MAX);
    // Attempts that started at the very end count as an additional step.
    (rows / workers.max(1) - 1).clamp(1, steps)
}

query! {
    /// Which events to return.
    LogQuery {
        limit: Option<u32>,
        /// Only events with lower numbers than this one.
        before: Option<u32>,
    }
}

/// Returns the last events that are not about single tasks, newest first.
pub(in crate::http) async fn log(
    State(app): State<Arc<App>>,
    asked: Parameters<LogQuery>,
) -> Answer<Log> {
    let asked = parameters(asked)?;
    let limit = bounded("limit", asked.limit, 500, 1..=EVENTS_MAX)?;
    let before = asked.before.map_or(i64::MAX, i64::from);
    let (found, _) = rows(&app, timeline::log(before, limit), limit.into()).await?;
    Ok(Json(Log {
        events: Shown::shown(&found),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_has_its_row_in_each_step() {
        let limit = i64::try_from(TIMELINE_MAX).expect("small");
        for (workers, steps) in [(0, 400), (1, 400), (250, 399), (400, 249), (6_000, 15)] {
            assert_eq!(
                steps_for(workers, 400, TIMELINE_MAX),
                steps.min(400),
                "{workers} workers"
            );
            // Steps are numbered from 0, and a task that started at the very end counts as an
            // additional step.
            assert!(workers * (steps_for(workers, 400, TIMELINE_MAX) + 1) <= limit);
        }
        assert_eq!(
            steps_for(limit * 2, 400, TIMELINE_MAX),
            1,
            "then some are left out, and the answer says so"
        );
    }
}
