//! Reads a journal for a report. Each query is one pass over the tasks. The size of its result
//! depends neither on the number of tasks nor on the number of jobs.

use std::collections::BTreeMap;

use hq_core::command_text::without_arguments;
use hq_core::curve::Curve;
use hq_core::diagnosis;
use hq_core::resource::amount::Amount;
use hq_core::task::TaskState;
use hq_store::reader::report::{self as figures, Period};
use hq_store::reader::{self, RUN_BOUNDS};

use super::words;
use super::{Costs, Failures, JobFigures, Report, STEPS, SlowTask, Step, Totals, WorkerLife};
use crate::error::CliResult;
use crate::output::view::{total_units, totals as counts_of};
use crate::source::journal::{self, JournalFile};
use crate::source::{self, Ask as _, Obstacle, Snapshot, problems};
use crate::text::clean;

/// The maximum number of jobs that are shown, most expensive first. The rest are summarized.
pub(super) const JOBS_MAX: usize = 200;
const SLOWEST_MAX: u32 = 20;
const UNITS: f64 = 10_000.0;

/// The maximum number of resources with a chart, not counting cpus, most requested first.
const RESOURCES_MAX: u32 = 20;
/// The maximum number of jobs without started tasks that are examined.
const EXPLAINED_MAX: usize = 200;

/// Reads everything that happened between `from_ns` and `to_ns`.
pub(crate) async fn gather(
    file: &mut JournalFile,
    journal: String,
    (from_ns, to_ns): (i64, i64),
) -> CliResult<Report> {
    let mut report = Report {
        journal,
        from_ns,
        to_ns,
        ..Report::default()
    };
    let period = Period { from_ns, to_ns };
    report.workers = workers(file, period).await?;
    add_steps(file, &mut report, period).await?;
    report.totals = totals(file, period).await?;
    report.costs = costs(file, period).await?;
    report.jobs = jobs(file, period).await?;
    for job in &mut report.jobs {
        add_run_times(file, job, period).await?;
    }
    add_usage(file, &mut report, period).await?;
    report.slowest = slowest(file, period).await?;
    report.failures = failures(file, period).await?;
    let snapshot = file.snapshot(to_ns).await?;
    let queues = file.queues(to_ns).await?;
    let ended = source::ended(file, to_ns).await?;
    let obstacles = obstacles(file, &snapshot).await?;
    report.findings = problems::find(&snapshot, &queues, &ended, Some(&obstacles));
    Ok(report)
}

impl Report {
    /// Returns the width of a step.
    pub(crate) fn step_ns(&self) -> i64 {
        ((self.to_ns - self.from_ns) / STEPS).max(1)
    }

    fn step_of(&self, at_ns: i64) -> usize {
        let step = (at_ns - self.from_ns) / self.step_ns();
        usize::try_from(step.clamp(0, STEPS)).unwrap_or(0)
    }
}

/// Returns the jobs that never started although workers were connected, because no worker offers
/// what they request.
async fn obstacles(file: &mut JournalFile, snapshot: &Snapshot) -> CliResult<Vec<Obstacle>> {
    let unstarted = snapshot.jobs.iter().filter(|job| {
        let counts = counts_of(job);
        counts.waiting > 0 && counts.waiting == counts.total()
    });
    let unstarted: Vec<u32> = unstarted.take(EXPLAINED_MAX).map(|job| job.id).collect();
    let requests = file.requests(Some(&unstarted)).await?;
    let found = unstarted.into_iter().filter_map(|job| {
        let request = requests.get(&(job, 0))?;
        let asked = request
            .iter()
            .filter_map(|(name, units)| Some((name, (*units)?)));
        let why = asked.map(|(name, units)| {
            let offered = snapshot.workers.iter().flat_map(source::resources);
            let offered = offered.filter(|one| one.name == *name);
            let most = offered.map(|one| one.total).max().unwrap_or(0);
            (units > most).then(|| diagnosis::lacking(name, Amount(units), Amount(most)))
        });
        let why = why.flatten().next()?;
        Some(Obstacle { job, why })
    });
    Ok(found.collect())
}

async fn workers(file: &mut JournalFile, period: Period) -> CliResult<Vec<WorkerLife>> {
    let rows = file.ask(figures::workers(period)).await?;
    let lives = rows.into_iter().map(|row| {
        let resources = journal::resources(&row.config);
        let cores = resources.iter().find(|item| item.name == "cpus");
        let cores = cores.map_or(0, total_units);
        WorkerLife {
            id: row.id,
            host: clean(&row.host),
            from_ns: row.from_ns,
            to_ns: row.to_ns,
            cores: float(cores) / UNITS,
            used_core_s: 0.0,
            reason: row.reason.as_deref().map(clean),
        }
    });
    Ok(lives.collect())
}

#[expect(clippy::cast_precision_loss, reason = "for charts")]
pub(super) fn float(value: u64) -> f64 {
    value as f64
}

async fn add_steps(file: &mut JournalFile, report: &mut Report, period: Period) -> CliResult<()> {
    let length = usize::try_from(STEPS + 1).unwrap_or(0);
    let mut changes = vec![Step::default(); length];
    let place = |step: i64| usize::try_from(step).unwrap_or(0).min(length - 1);
    let sign = |is_end: bool| if is_end { -1.0 } else { 1.0 };
    let width = report.step_ns();
    let steps = reader::steps(period.from_ns, period.to_ns, width);
    for row in file.ask(steps).await? {
        let (step, sign) = (&mut changes[place(row.step)], sign(row.is_end));
        step.running += float(row.tasks.unsigned_abs()) * sign;
        step.cores_used += float(row.units.unsigned_abs()) / UNITS * sign;
    }
    for worker in &report.workers {
        let (from, to) = (report.step_of(worker.from_ns), report.step_of(worker.to_ns));
        changes[from].workers += 1.0;
        changes[from].cores += worker.cores;
        if worker.to_ns < report.to_ns {
            changes[to].workers -= 1.0;
            changes[to].cores -= worker.cores;
        }
    }
    let mut sum = Step::default();
    for change in changes {
        sum.running += change.running;
        sum.cores_used += change.cores_used;
        sum.cores += change.cores;
        sum.workers += change.workers;
        report.steps.push(sum);
    }
    let mut others: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let resources = figures::resource_steps(period, width, RESOURCES_MAX);
    for row in file.ask(resources).await? {
        let changes = others
            .entry(clean(&row.resource))
            .or_insert_with(|| vec![0.0; length]);
        changes[place(row.step)] += float(row.units) / UNITS * sign(row.is_end);
    }
    for (name, changes) in others {
        let mut sum = 0.0;
        let values: Vec<f64> = changes
            .iter()
            .map(|change| {
                sum += change;
                sum
            })
            .collect();
        let most = values.iter().copied().fold(0.0, f64::max);
        report.resources.push((name, values, most));
    }
    Ok(())
}

async fn totals(file: &mut JournalFile, period: Period) -> CliResult<Totals> {
    let totals = file.ask_one(figures::totals(period)).await?;
    let totals = totals.map(|row| Totals {
        jobs: row.jobs,
        finished: row.finished,
        failed: row.failed,
    });
    Ok(totals.unwrap_or_default())
}

async fn costs(file: &mut JournalFile, period: Period) -> CliResult<Costs> {
    let mut costs = Costs::default();
    for (state, core_us) in file.ask(figures::costs(period)).await? {
        let place = match state {
            Some(TaskState::Finished) => &mut costs.finished,
            Some(TaskState::Failed) => &mut costs.failed,
            Some(TaskState::Canceled | TaskState::Aborted) => &mut costs.dropped,
            Some(TaskState::Running | TaskState::Waiting) => &mut costs.running,
            None => &mut costs.repeated,
        };
        *place += float(core_us) / 1e6;
    }
    Ok(costs)
}

/// Returns the most expensive jobs in descending order.
async fn jobs(file: &mut JournalFile, period: Period) -> CliResult<Vec<JobFigures>> {
    let rows = file.ask(figures::jobs(period, JOBS_MAX)).await?;
    let jobs = rows.into_iter().map(|row| JobFigures {
        id: row.id,
        name: clean(&row.name),
        task_count: row.task_count,
        finished: row.finished,
        failed: row.failed,
        core_s: float(row.core_us) / 1e6,
        failed_core_s: float(row.failed_core_us) / 1e6,
        run_us: [0; 4],
        run_times: vec![0; RUN_BOUNDS.len() + 1],
        memory_used: row.rss_kib.saturating_mul(1024),
        // The request is in units of 1/10 000 MiB.
        memory_asked: row.memory_units.saturating_mul(1 << 20) / 10_000,
    });
    Ok(jobs.collect())
}

async fn add_run_times(
    file: &mut JournalFile,
    job: &mut JobFigures,
    period: Period,
) -> CliResult<()> {
    let count = job.finished + job.failed;
    if count == 0 {
        return Ok(());
    }
    for (bin, count) in file.ask(figures::run_times(job.id, period)).await? {
        if let Some(tasks) = job.run_times.get_mut(bin) {
            *tasks = count;
        }
    }
    let at = |percent: u64| (count - 1) * percent / 100;
    let wanted = [at(50), at(90), at(99), count - 1];
    let found = file
        .ask(figures::run_times_at(job.id, period, &wanted))
        .await?;
    for (found, run_us) in found {
        for (slot, position) in job.run_us.iter_mut().zip(wanted) {
            if position == found {
                *slot = run_us;
            }
        }
    }
    Ok(())
}

/// Adds the core-seconds that tasks requested on each worker.
async fn add_usage(file: &mut JournalFile, report: &mut Report, period: Period) -> CliResult<()> {
    for (id, core_us) in file.ask(figures::usage(period)).await? {
        if let Ok(at) = report.workers.binary_search_by_key(&id, |worker| worker.id) {
            report.workers[at].used_core_s += float(core_us) / 1e6;
        }
    }
    Ok(())
}

async fn slowest(file: &mut JournalFile, period: Period) -> CliResult<Vec<SlowTask>> {
    let rows = file.ask(figures::slowest(period, SLOWEST_MAX)).await?;
    let mut curves = curves(file, &rows).await?;
    let tasks = rows.into_iter().map(|row| SlowTask {
        job: row.job,
        task: row.task,
        host: clean(row.host.as_deref().unwrap_or("?")),
        run_us: row.run_us,
        is_failed: row.is_failed,
        curve: curves.remove(&(row.job, row.task)),
    });
    Ok(tasks.collect())
}

/// Returns the resource use of tasks over time.
async fn curves(
    file: &mut JournalFile,
    tasks: &[figures::SlowRow],
) -> CliResult<BTreeMap<(u32, u32), Curve>> {
    let Some(has_gpus) = file.ask(figures::has_curves()).await?.pop() else {
        return Ok(BTreeMap::new());
    };
    let instances: Vec<(u32, u32, u32)> = tasks
        .iter()
        .map(|row| (row.job, row.task, row.instance))
        .collect();
    let rows = file.ask(figures::curves(&instances, has_gpus)).await?;
    let curves = rows.into_iter();
    Ok(curves
        .filter_map(|row| Some(((row.job, row.task), row.curve?)))
        .collect())
}

async fn failures(file: &mut JournalFile, period: Period) -> CliResult<Vec<Failures>> {
    let rows = file.ask(figures::failures(period)).await?;
    let failures = rows.into_iter().map(|row| Failures {
        job: row.job,
        // Users send the page to others.
        error: without_arguments(&clean(&row.error)).into_owned(),
        host: clean(row.host.as_deref().unwrap_or("?")),
        count: row.count,
        task: row.task,
        said: None,
        params: String::new(),
    });
    let mut failures: Vec<Failures> = failures.collect();
    words::add(file, &mut failures).await?;
    Ok(failures)
}
