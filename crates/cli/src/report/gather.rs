//! Reads a journal for a report. Each query passes over the tasks once; what comes back grows neither with them nor with
//! the jobs.

use std::collections::BTreeMap;

use hq_core::command_text::without_arguments;
use hq_core::diagnosis;
use hq_core::resource::amount::Amount;
use serde_json::Value;

use hq_store::reader::{RUN_BOUNDS, run_bin_sql};
use hq_store::runs::{self, ASKED_SQL, CHANGES_SQL, CPUS_SQL, CPUS_UNKNOWN, RUNS_SQL};
use hq_store::statement::fill;

use super::{Failures, JobFigures, Report, STEPS, SlowTask, Step, Totals, WorkerLife};
use crate::dashboard::model::{Obstacle, Snapshot, clean};
use crate::dashboard::problems;
use crate::dashboard::source::file::JournalFile;
use crate::dashboard::source::live;
use crate::dashboard::source::{Ask as _, is_failed, outcome_words};
use crate::error::CliResult;

/// Jobs that are shown, the most expensive first; the rest is summed up in words.
pub(super) const JOBS_MAX: usize = 200;
const SLOWEST_MAX: u32 = 20;
const UNITS: f64 = 10_000.0;

/// Resources beside cpus that get a chart, those that most jobs ask for.
const RESOURCES_MAX: u32 = 20;
/// Jobs of which nothing was started that are looked at.
const EXPLAINED_MAX: usize = 200;

/// Reads what happened from `from_ns` to `to_ns`.
pub(crate) async fn gather(
    file: &mut JournalFile,
    title: String,
    (from_ns, to_ns): (i64, i64),
) -> CliResult<Report> {
    let mut report = Report {
        title,
        from_ns,
        to_ns,
        ..Report::default()
    };
    let width = report.step_ns();
    let values = [("?F", from_ns), ("?T", to_ns), ("?W", width)];
    report.workers = workers(file, &values).await?;
    add_steps(file, &mut report, &values).await?;
    report.totals = totals(file, &values).await?;
    report.jobs = jobs(file, &values).await?;
    for job in &mut report.jobs {
        add_run_times(file, job, &values).await?;
    }
    add_usage(file, &mut report, &values).await?;
    report.slowest = slowest(file, &values).await?;
    report.failures = failures(file, &values).await?;
    let snapshot = file.snapshot(to_ns).await?;
    let ended = live::ended(file, to_ns).await?;
    let obstacles = obstacles(file, &snapshot).await?;
    report.findings = problems::find(&snapshot, &ended, Some(&obstacles));
    Ok(report)
}

impl Report {
    /// Width of a step.
    pub(crate) fn step_ns(&self) -> i64 {
        ((self.to_ns - self.from_ns) / STEPS).max(1)
    }

    fn step_of(&self, at_ns: i64) -> usize {
        let step = (at_ns - self.from_ns) / self.step_ns();
        usize::try_from(step.clamp(0, STEPS)).unwrap_or(0)
    }
}

/// Jobs of which nothing was ever started although there were workers, because none offers what they ask for.
async fn obstacles(file: &mut JournalFile, snapshot: &Snapshot) -> CliResult<Vec<Obstacle>> {
    let unstarted = snapshot.jobs.iter().filter(|job| {
        let counts = &job.counts;
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
            let offered = snapshot.workers.iter().flat_map(|worker| &worker.resources);
            let offered = offered.filter(|one| one.name == *name);
            let most = offered.map(|one| one.total).max().unwrap_or(0);
            (units > most).then(|| diagnosis::lacking(name, Amount(units), Amount(most)))
        });
        let why = why.flatten().next()?;
        Some(Obstacle { job, why })
    });
    Ok(found.collect())
}

type Values<'a> = [(&'a str, i64); 3];

async fn workers(file: &mut JournalFile, values: &Values<'_>) -> CliResult<Vec<WorkerLife>> {
    let sql = "SELECT id, hostname, max(started_unix_ns, ?F), min(coalesce(ended_unix_ns, ?T), ?T), reason, config \
               FROM worker_data WHERE started_unix_ns <= ?T AND coalesce(ended_unix_ns, ?T) >= ?F \
               ORDER BY id";
    let rows = file.ask(&fill(sql, values)).await?;
    let lives = rows.iter().map(|row| {
        let config: Value = row
            .text(5)
            .and_then(|text| serde_json::from_str(text).ok())
            .unwrap_or_default();
        let resources = crate::dashboard::source::file::resources(&config);
        let cores = resources
            .iter()
            .find(|item| item.name == "cpus")
            .map_or(0, |item| item.total);
        WorkerLife {
            id: row.small(0),
            host: clean(row.text(1).unwrap_or_default()),
            from_ns: row.int(2),
            to_ns: row.int(3),
            cores: float(cores) / UNITS,
            used_core_s: 0.0,
            reason: row.text(4).map(clean),
        }
    });
    Ok(lives.collect())
}

#[expect(clippy::cast_precision_loss, reason = "for charts")]
pub(super) fn float(value: u64) -> f64 {
    value as f64
}

async fn add_steps(
    file: &mut JournalFile,
    report: &mut Report,
    values: &Values<'_>,
) -> CliResult<()> {
    let length = usize::try_from(STEPS + 1).unwrap_or(0);
    let mut changes = vec![Step::default(); length];
    let place = |step: i64| usize::try_from(step).unwrap_or(0).min(length - 1);
    let sign = |is_end: i64| if is_end == 0 { 1.0 } else { -1.0 };
    for row in file.ask(&fill(&runs::steps_sql(), values)).await?.iter() {
        let (step, sign) = (&mut changes[place(row.int(1))], sign(row.int(0)));
        step.running += float(row.uint(2)) * sign;
        step.cores_used += float(row.uint(3)) / UNITS * sign;
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
    let sql = format!(
        "WITH {ASKED_SQL}, {RUNS_SQL}, {CHANGES_SQL}, shown AS (SELECT name FROM asked WHERE name <> 'cpus' \
         GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT {RESOURCES_MAX}) \
         SELECT c.is_end, c.step, a.name, sum(c.n * a.units) FROM changes c \
         JOIN asked a ON a.job = c.job AND a.variant = c.variant JOIN shown s ON s.name = a.name GROUP BY 1, 2, 3"
    );
    let mut others: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for row in file.ask(&fill(&sql, values)).await?.iter() {
        let changes = others
            .entry(clean(row.text(2).unwrap_or_default()))
            .or_insert_with(|| vec![0.0; length]);
        changes[place(row.int(1))] += float(row.uint(3)) / UNITS * sign(row.int(0));
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

/// `ended (job, state, n, core_us, rss, mem)`: tasks that ended by themselves in the report's time, what they cost, and
/// the memory that they used and had asked for.
fn ended_sql() -> String {
    format!(
        "{ASKED_SQL}, {CPUS_SQL}, sums AS (SELECT job, variant, state, count(*) AS n, sum(run_us) AS us, \
         max(max_rss_kib) AS rss FROM task_data \
         WHERE state IN (:finished, :failed) AND started_unix_ns + run_us * 1000 BETWEEN ?F AND ?T GROUP BY 1, 2, 3), \
         ended AS (SELECT e.job, e.state, sum(e.n) AS n, \
         sum(e.us * (coalesce(c.units, {CPUS_UNKNOWN}) / {UNITS:.1})) AS core_us, max(e.rss) AS rss, \
         max(coalesce(m.units, 0)) AS mem FROM sums e \
         LEFT JOIN cpus c ON c.job = e.job AND c.variant = e.variant \
         LEFT JOIN asked m ON m.job = e.job AND m.variant = e.variant AND m.name = 'mem' GROUP BY 1, 2)"
    )
}

async fn totals(file: &mut JournalFile, values: &Values<'_>) -> CliResult<Totals> {
    let sql = format!(
        "WITH {} SELECT (SELECT count(*) FROM job_data WHERE submitted_unix_ns <= ?T), \
         sum(CASE state WHEN :finished THEN n END), sum(CASE state WHEN :failed THEN n END), \
         CAST(sum(core_us) AS INTEGER), CAST(sum(CASE state WHEN :failed THEN core_us END) AS INTEGER) FROM ended",
        ended_sql()
    );
    let rows = file.ask(&fill(&sql, values)).await?;
    let totals = rows.iter().next().map(|row| Totals {
        jobs: row.uint(0),
        finished: row.uint(1),
        failed: row.uint(2),
        core_s: float(row.uint(3)) / 1e6,
        failed_core_s: float(row.uint(4)) / 1e6,
    });
    Ok(totals.unwrap_or_default())
}

/// The most expensive jobs, those first.
async fn jobs(file: &mut JournalFile, values: &Values<'_>) -> CliResult<Vec<JobFigures>> {
    let sql = format!(
        "WITH {}, per_job AS (SELECT job, sum(CASE state WHEN :finished THEN n END) AS finished, \
         sum(CASE state WHEN :failed THEN n END) AS failed, CAST(sum(core_us) AS INTEGER) AS core_us, \
         CAST(sum(CASE state WHEN :failed THEN core_us END) AS INTEGER) AS failed_core_us, max(rss) AS rss, max(mem) AS mem \
         FROM ended GROUP BY 1) \
         SELECT j.id, j.name, (SELECT coalesce(sum(task_count), 0) FROM submit_data s WHERE s.job = j.id), \
         p.finished, p.failed, p.core_us, p.failed_core_us, p.rss, p.mem \
         FROM job_data j LEFT JOIN per_job p ON p.job = j.id WHERE j.submitted_unix_ns <= ?T \
         ORDER BY coalesce(p.core_us, 0) DESC, j.id LIMIT {JOBS_MAX}",
        ended_sql()
    );
    let rows = file.ask(&fill(&sql, values)).await?;
    let jobs = rows.iter().map(|row| JobFigures {
        id: row.small(0),
        name: clean(row.text(1).unwrap_or_default()),
        task_count: row.uint(2),
        finished: row.uint(3),
        failed: row.uint(4),
        core_s: float(row.uint(5)) / 1e6,
        failed_core_s: float(row.uint(6)) / 1e6,
        run_us: [0; 4],
        run_times: vec![0; RUN_BOUNDS.len() + 1],
        memory_used: row.uint(7).saturating_mul(1024),
        // MiB are asked for, in units of a ten-thousandth.
        memory_asked: row.uint(8).saturating_mul(1 << 20) / 10_000,
    });
    Ok(jobs.collect())
}

async fn add_run_times(
    file: &mut JournalFile,
    job: &mut JobFigures,
    values: &Values<'_>,
) -> CliResult<()> {
    let count = job.finished + job.failed;
    if count == 0 {
        return Ok(());
    }
    let bin = run_bin_sql();
    let sql = format!(
        "SELECT {bin}, count(*) FROM task_data WHERE job = {} AND state IN (:finished, :failed) \
         AND started_unix_ns + run_us * 1000 BETWEEN ?F AND ?T GROUP BY 1",
        job.id
    );
    for row in file.ask(&fill(&sql, values)).await?.iter() {
        let bin = usize::try_from(row.int(0)).unwrap_or(usize::MAX);
        if let Some(tasks) = job.run_times.get_mut(bin) {
            *tasks = row.uint(1);
        }
    }
    let at = |percent: u64| (count - 1) * percent / 100;
    let wanted = [at(50), at(90), at(99), count - 1];
    let list = wanted.map(|position| position.to_string()).join(", ");
    let sql = format!(
        "SELECT n, run_us FROM (SELECT run_us, row_number() OVER (ORDER BY run_us) - 1 AS n FROM task_data \
         WHERE job = {} AND state IN (:finished, :failed) AND started_unix_ns + run_us * 1000 BETWEEN ?F AND ?T) WHERE n IN ({list})",
        job.id
    );
    for row in file.ask(&fill(&sql, values)).await?.iter() {
        for (slot, position) in job.run_us.iter_mut().zip(wanted) {
            if position == row.uint(0) {
                *slot = row.uint(1);
            }
        }
    }
    Ok(())
}

/// Core-seconds that were asked for on each worker.
async fn add_usage(
    file: &mut JournalFile,
    report: &mut Report,
    values: &Values<'_>,
) -> CliResult<()> {
    let sql = format!(
        "WITH {ASKED_SQL}, {CPUS_SQL}, {RUNS_SQL}, used AS (SELECT worker, job, variant, \
         sum(min(coalesce(ended, ?T), ?T) - max(began, ?F)) / 1000 AS us FROM runs \
         WHERE began <= ?T AND (ended IS NULL OR ended >= ?F) GROUP BY 1, 2, 3) \
         SELECT u.worker, CAST(sum(u.us * (coalesce(c.units, {CPUS_UNKNOWN}) / {UNITS:.1})) AS INTEGER) FROM used u \
         LEFT JOIN cpus c ON c.job = u.job AND c.variant = u.variant GROUP BY 1"
    );
    for row in file.ask(&fill(&sql, values)).await?.iter() {
        if let Ok(at) = report
            .workers
            .binary_search_by_key(&row.small(0), |worker| worker.id)
        {
            report.workers[at].used_core_s += float(row.uint(1)) / 1e6;
        }
    }
    Ok(())
}

async fn slowest(file: &mut JournalFile, values: &Values<'_>) -> CliResult<Vec<SlowTask>> {
    let sql = format!(
        "SELECT t.job, t.task, w.hostname, t.run_us, t.state FROM task_data t LEFT JOIN worker_data w ON w.id = t.worker \
         WHERE t.state IN (:finished, :failed) AND t.started_unix_ns + t.run_us * 1000 BETWEEN ?F AND ?T \
         ORDER BY t.run_us DESC LIMIT {SLOWEST_MAX}"
    );
    let rows = file.ask(&fill(&sql, values)).await?;
    Ok(rows
        .iter()
        .map(|row| SlowTask {
            job: row.small(0),
            task: row.small(1),
            host: clean(row.text(2).unwrap_or("?")),
            run_us: row.uint(3),
            is_failed: is_failed(row.int(4)),
        })
        .collect())
}

async fn failures(file: &mut JournalFile, values: &Values<'_>) -> CliResult<Vec<Failures>> {
    let sql = "SELECT t.job, t.outcome, max(t.message), w.hostname, count(*) FROM task_data t \
               LEFT JOIN worker_data w ON w.id = t.worker \
               WHERE t.state = :failed AND t.started_unix_ns + t.run_us * 1000 BETWEEN ?F AND ?T \
               GROUP BY 1, 2, 4 ORDER BY 5 DESC LIMIT 200";
    let rows = file.ask(&fill(sql, values)).await?;
    Ok(rows
        .iter()
        .map(|row| Failures {
            job: row.small(0),
            // The page is made to be sent around.
            error: without_arguments(&outcome_words(row.int(1), row.text(2))).into_owned(),
            host: clean(row.text(3).unwrap_or("?")),
            count: row.uint(4),
        })
        .collect())
}
