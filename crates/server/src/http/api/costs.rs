//! What a period cost: core time, the most expensive jobs, the slowest tasks, common failures. Each
//! query is one pass over the tasks.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use hq_core::id::{JobId, TaskId, TaskKey};
use hq_core::limits::shortened;
use hq_core::resource::amount::UNITS_PER_WHOLE;
use hq_core::task::TaskState;
use hq_protocol::admission::actor;
use hq_store::reader::report::{self as figures, Period};
use hq_store::reader::{self, RUN_BOUNDS, run};
use hq_store::statement::Query;

use super::answers::{
    CommonFailure, CoreTimes, Costs, JobCost, ResourceLevel, SlowTask, WorkerCost,
};
use super::described::{Shown, query};
use super::json::{amount, seconds};
use super::past::{MS_MAX, period, rows};
use super::{ApiError, KeptAnswer, Parameters, parameters, params};
use crate::http::App;
use crate::http::kept::REST_MAX;
use crate::request_shares::TIMELINES;
use crate::words::{self, Words};

const STEPS: i64 = 200;
const JOBS_MAX: usize = 200;
const SLOWEST_MAX: u32 = 20;
/// The maximum number of workers that are listed. All of them count.
const WORKERS_MAX: usize = 400;
/// The maximum number of resources with a level, not counting cpus, most requested first.
const RESOURCES_MAX: u32 = 20;
/// The maximum number of failures whose parameters and output are read.
const FAILURES_READ_MAX: usize = 50;
/// The maximum length of a last line, in bytes.
const WORDS_MAX: usize = 300;
/// Enough for two rows per step and resource, and for all workers.
const ROWS_MAX: u64 = 200_000;
/// A worker counts as idle if it is idle for more than this share of its life.
const IDLE: f64 = 0.5;

query! {
    /// The period.
    CostsQuery {
        /// The start. Without it, the first event.
        from_ms: Option<i64>,
        /// The end. Without it, the last event.
        to_ms: Option<i64>,
    }
}

pub(in crate::http) async fn costs(
    State(app): State<Arc<App>>,
    asked: Parameters<CostsQuery>,
) -> KeptAnswer<Costs> {
    let CostsQuery { from_ms, to_ms } = parameters(asked)?;
    let (from, to) = period(from_ms.unwrap_or(0), to_ms.unwrap_or(MS_MAX))?;
    let make = async {
        let _permit = TIMELINES.enter(actor()).await;
        let (span, _) = rows(&app, run::span(), 1).await?;
        let (first, last) = span.first().copied().unwrap_or_default();
        let period = Period {
            from_ns: from.max(first),
            to_ns: to_ms.map_or(last, |_| to),
        };
        costs_of(&app, period).await
    };
    app.kept
        .get(
            format!("costs {from_ms:?} {to_ms:?}"),
            (None, REST_MAX),
            make,
        )
        .await
}

/// Returns all rows of a query.
async fn all<R: Send + 'static>(app: &App, query: Query<R>) -> Result<Vec<R>, ApiError> {
    let (found, _) = rows(app, query, ROWS_MAX).await?;
    Ok(found)
}

async fn costs_of(app: &App, period: Period) -> Result<Costs, ApiError> {
    let totals = all(app, figures::totals(period))
        .await?
        .pop()
        .unwrap_or_default();
    let mut workers: Vec<WorkerCost> = Shown::shown(&all(app, figures::workers(period)).await?);
    for (id, core_us) in all(app, figures::usage(period)).await? {
        if let Ok(at) = workers.binary_search_by_key(&id, |worker| worker.id.0) {
            workers[at].core_s += seconds(core_us);
        }
    }
    let times = workers
        .iter()
        .map(|worker| (worker.offered_s(), worker.core_s));
    let idle = times.filter(|(offered, used)| *used < offered * (1.0 - IDLE));
    let idle: Vec<f64> = idle.map(|(offered, used)| offered - used).collect();
    let (running, resources) = levels(app, period).await?;
    let mut costs = Costs {
        from_ms: super::json::ms(period.from_ns),
        to_ms: super::json::ms(period.to_ns),
        job_count: totals.jobs,
        finished: totals.finished,
        failed: totals.failed,
        offered_core_s: workers.iter().map(WorkerCost::offered_s).sum(),
        core_s: core_times(app, period).await?,
        jobs: jobs(app, period).await?,
        run_bounds_us: RUN_BOUNDS.to_vec(),
        slowest: slowest(app, period).await?,
        failures: failures(app, period).await?,
        worker_count: workers.len() as u64,
        idle_workers: idle.len() as u64,
        idle_core_s: idle.iter().sum(),
        workers,
        running,
        resources,
    };
    costs.workers.truncate(WORKERS_MAX);
    Ok(costs)
}

impl WorkerCost {
    /// Returns the core time that it offered.
    fn offered_s(&self) -> f64 {
        let life_ms = u64::try_from(self.to_ms - self.from_ms).unwrap_or(0);
        self.cpus * seconds(life_ms.saturating_mul(1_000))
    }
}

/// Returns the number of running tasks over time, and the resources that they requested.
async fn levels(app: &App, period: Period) -> Result<(Vec<f64>, Vec<ResourceLevel>), ApiError> {
    let Period { from_ns, to_ns } = period;
    let width = ((to_ns - from_ns) / STEPS).max(1);
    let units = |tasks: i64| tasks.unsigned_abs() * UNITS_PER_WHOLE;
    let steps = all(app, reader::steps(from_ns, to_ns, width)).await?;
    let running = steps
        .iter()
        .map(|row| (row.is_end, row.step, units(row.tasks)));
    let mut resources = BTreeMap::<String, Vec<_>>::new();
    for row in all(app, figures::resource_steps(period, width, RESOURCES_MAX)).await? {
        let changes = resources.entry(row.resource).or_default();
        changes.push((row.is_end, row.step, row.units));
    }
    let resources = resources.into_iter().map(|(name, changes)| ResourceLevel {
        name,
        used: over_time(changes),
    });
    Ok((over_time(running), resources.collect()))
}

/// Returns an amount at the end of each step. The changes contain whether units are released, the
/// step, and the units.
fn over_time(changes: impl IntoIterator<Item = (bool, i64, u64)>) -> Vec<f64> {
    let mut by_step = BTreeMap::<i64, i64>::new();
    for (is_end, step, units) in changes {
        let units = i64::try_from(units).unwrap_or(i64::MAX);
        *by_step.entry(step).or_default() += if is_end { -units } else { units };
    }
    let amounts = (0..STEPS).scan(0_i64, |sum, step| {
        *sum += by_step.get(&step).unwrap_or(&0);
        Some(amount(sum.unsigned_abs()))
    });
    amounts.collect()
}

async fn core_times(app: &App, period: Period) -> Result<CoreTimes, ApiError> {
    let times = all(app, figures::costs(period)).await?;
    let sum = |states: &[Option<TaskState>]| {
        let times = times.iter().filter(|(state, _)| states.contains(state));
        seconds(times.map(|(_, core_us)| core_us).sum())
    };
    Ok(CoreTimes {
        finished: sum(&[Some(TaskState::Finished)]),
        failed: sum(&[Some(TaskState::Failed)]),
        dropped: sum(&[Some(TaskState::Canceled), Some(TaskState::Aborted)]),
        repeated: sum(&[None]),
        running: sum(&[Some(TaskState::Running)]),
    })
}

/// Returns the most expensive jobs with their run times.
async fn jobs(app: &App, period: Period) -> Result<Vec<JobCost>, ApiError> {
    let mut jobs: Vec<JobCost> = Shown::shown(&all(app, figures::jobs(period, JOBS_MAX)).await?);
    for job in &mut jobs {
        let Some(last) = (job.finished + job.failed).checked_sub(1) else {
            continue;
        };
        let id = job.id.0;
        job.run_times = vec![0; RUN_BOUNDS.len() + 1];
        for (bin, count) in all(app, figures::run_times(id, period)).await? {
            if let Some(tasks) = job.run_times.get_mut(bin) {
                *tasks = count;
            }
        }
        let wanted = [50, 90, 99, 100].map(|percent| last * percent / 100);
        let found = all(app, figures::run_times_at(id, period, &wanted)).await?;
        let found = BTreeMap::from_iter(found);
        job.run_us = wanted
            .map(|at| found.get(&at).copied().unwrap_or(0))
            .to_vec();
    }
    Ok(jobs)
}

/// Returns the slowest tasks with their use over time.
async fn slowest(app: &App, period: Period) -> Result<Vec<SlowTask>, ApiError> {
    let found = all(app, figures::slowest(period, SLOWEST_MAX)).await?;
    let instances = found.iter().map(|row| (row.job, row.task, row.instance));
    let curves = all(app, figures::curves(&instances.collect::<Vec<_>>())).await?;
    let tasks = found.iter().map(|row| {
        let mut curves = curves.iter();
        let curve = curves.find(|curve| (curve.job, curve.task) == (row.job, row.task));
        SlowTask {
            usage: curve.and_then(|row| Shown::shown(&row.curve)),
            ..SlowTask::shown(row)
        }
    });
    Ok(tasks.collect())
}

/// Returns the most frequent failures, with the parameters and the last line of one task of each.
async fn failures(app: &App, period: Period) -> Result<Vec<CommonFailure>, ApiError> {
    let mut failures: Vec<CommonFailure> =
        Shown::shown(&all(app, figures::failures(period)).await?);
    let read = failures.iter().take(FAILURES_READ_MAX);
    let tasks: Vec<TaskKey> = read
        .map(|one| TaskKey::new(JobId(one.job.0), TaskId(one.task.0)))
        .collect();
    let said = words::read(&app.parts.core, &app.parts.questions, &tasks).await;
    for (one, said) in failures.iter_mut().zip(said) {
        let found = params::of_tasks(app, one.job.0, vec![one.task.0]).await?;
        one.params = found.into_iter().next().flatten();
        if let Words::Said(line) = said {
            one.last_words = Some(shortened(&line, WORDS_MAX));
        }
    }
    Ok(failures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn starts_and_ends_add_up_to_amounts() {
        let values = over_time([
            (false, 0, 1_000),
            (false, 1, 2_000),
            (true, 1, 1_000),
            (true, STEPS, 2_000),
        ]);
        assert_eq!(values.len(), 200);
        assert_eq!((values[0], values[1], values[199]), (0.1, 0.2, 0.2));
    }
}
