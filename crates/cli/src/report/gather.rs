//! Reads a journal for a report. Each query passes over the tasks once; what comes back does not grow
//! with them.

use std::collections::BTreeMap;

use hq_core::diagnosis;
use hq_core::resource::amount::Amount;
use serde_json::Value;

use hq_store::reader::{RUN_BOUNDS, run_bin_sql};

use super::{Failures, JobFigures, Report, STEPS, SlowTask, Step, WorkerLife};
use crate::dashboard::model::{Obstacle, Snapshot, clean};
use crate::dashboard::problems;
use crate::dashboard::source::file::JournalFile;
use crate::dashboard::source::live;
use crate::dashboard::source::{Ask as _, fill, outcome_words};
use crate::error::CliResult;

/// Jobs that are shown, the most expensive first; the rest is summed up in words.
pub(super) const JOBS_MAX: usize = 200;
const SLOWEST_MAX: u32 = 20;
const UNITS: f64 = 10_000.0;

/// What one task of a job and variant asks for, in whole units by resource.
type Requests = BTreeMap<(u32, u32), BTreeMap<String, f64>>;

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
    let requests = requests(file).await?;
    report.workers = workers(file, &values).await?;
    add_steps(file, &mut report, &requests, &values).await?;
    report.jobs = jobs(file, &requests, &values).await?;
    for job in report.jobs.iter_mut().take(JOBS_MAX) {
        add_run_times(file, job, &values).await?;
    }
    add_usage(file, &mut report, &requests, &values).await?;
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
    let requests = file.requests().await?;
    let unstarted = snapshot.jobs.iter().filter(|job| {
        let counts = &job.counts;
        counts.waiting > 0 && counts.waiting == counts.total()
    });
    let found = unstarted.filter_map(|job| {
        let request = requests.get(&(job.id, 0))?;
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
        Some(Obstacle { job: job.id, why })
    });
    Ok(found.collect())
}

async fn requests(file: &mut JournalFile) -> CliResult<Requests> {
    // A whole pool is not known here; it is counted as one.
    let whole = |units: Option<u64>| units.map_or(1.0, |units| float(units) / UNITS);
    let found = file.requests().await?.into_iter().map(|(key, amounts)| {
        let amounts = amounts
            .into_iter()
            .map(|(name, units)| (name, whole(units)));
        (key, amounts.collect())
    });
    Ok(found.collect())
}

/// What a task asks of a resource. Where the journal does not tell, as of graphs, a task takes one core.
fn request(requests: &Requests, job: u32, variant: u32, resource: &str) -> f64 {
    match requests.get(&(job, variant)) {
        Some(amounts) => amounts.get(resource).copied().unwrap_or(0.0),
        None if resource == "cpus" => 1.0,
        None => 0.0,
    }
}

type Values<'a> = [(&'a str, i64); 3];

async fn workers(file: &mut JournalFile, values: &Values<'_>) -> CliResult<Vec<WorkerLife>> {
    let sql = "SELECT id, hostname, max(started_unix_ns, ?F), min(coalesce(ended_unix_ns, ?T), ?T), reason, config \
               FROM worker_data WHERE started_unix_ns <= ?T AND coalesce(ended_unix_ns, ?T) >= ?F \
               ORDER BY id LIMIT 10000";
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
    requests: &Requests,
    values: &Values<'_>,
) -> CliResult<()> {
    let sql = "SELECT 0, (max(started_unix_ns, ?F) - ?F) / ?W, job, variant, count(*) FROM task_data \
               WHERE started_unix_ns <= ?T AND (state NOT IN (2, 3) OR started_unix_ns + run_us * 1000 >= ?F) \
               GROUP BY 2, 3, 4 UNION ALL \
               SELECT 1, (started_unix_ns + run_us * 1000 - ?F) / ?W, job, variant, count(*) FROM task_data \
               WHERE state IN (2, 3) AND started_unix_ns + run_us * 1000 BETWEEN ?F AND ?T GROUP BY 2, 3, 4";
    let rows = file.ask(&fill(sql, values)).await?;
    let length = usize::try_from(STEPS + 1).unwrap_or(0);
    let mut changes = vec![Step::default(); length];
    let mut others: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for row in rows.iter() {
        let (job, variant) = (row.small(2), row.small(3));
        let sign = if row.int(0) == 0 { 1.0 } else { -1.0 };
        let count = float(row.uint(4)) * sign;
        let at = usize::try_from(row.int(1)).unwrap_or(0).min(length - 1);
        changes[at].running += count;
        changes[at].cores_used += count * request(requests, job, variant, "cpus");
        let amounts = requests.get(&(job, variant)).into_iter().flatten();
        for (name, amount) in amounts.filter(|(name, _)| *name != "cpus") {
            others
                .entry(name.clone())
                .or_insert_with(|| vec![0.0; length])[at] += count * amount;
        }
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

async fn jobs(
    file: &mut JournalFile,
    requests: &Requests,
    values: &Values<'_>,
) -> CliResult<Vec<JobFigures>> {
    let sql = "SELECT j.id, j.name, (SELECT coalesce(sum(task_count), 0) FROM submit_data s WHERE s.job = j.id) \
               FROM job_data j WHERE j.submitted_unix_ns <= ?T ORDER BY j.id";
    let mut jobs: Vec<JobFigures> = file
        .ask(&fill(sql, values))
        .await?
        .iter()
        .map(|row| JobFigures {
            id: row.small(0),
            name: clean(row.text(1).unwrap_or_default()),
            task_count: row.uint(2),
            run_times: vec![0; RUN_BOUNDS.len() + 1],
            ..JobFigures::default()
        })
        .collect();
    let sql = format!(
        "SELECT job, variant, state, {} AS took, count(*), sum(run_us), max(max_rss_kib) FROM task_data \
               WHERE state IN (2, 3) AND started_unix_ns + run_us * 1000 BETWEEN ?F AND ?T GROUP BY 1, 2, 3, 4",
        run_bin_sql()
    );
    for row in file.ask(&fill(&sql, values)).await?.iter() {
        let Ok(at) = jobs.binary_search_by_key(&row.small(0), |job| job.id) else {
            continue;
        };
        let job = &mut jobs[at];
        let (count, is_failed) = (row.uint(4), row.int(2) == 3);
        let core_s = float(row.uint(5)) / 1e6 * request(requests, job.id, row.small(1), "cpus");
        job.core_s += core_s;
        if is_failed {
            job.failed += count;
            job.failed_core_s += core_s;
        } else {
            job.finished += count;
        }
        if let Some(bin) = usize::try_from(row.int(3))
            .ok()
            .and_then(|bin| job.run_times.get_mut(bin))
        {
            *bin += count;
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "an amount of bytes"
        )]
        let asked = (request(requests, job.id, row.small(1), "mem") * 1024.0 * 1024.0) as u64;
        job.memory_asked = job.memory_asked.max(asked);
        job.memory_used = job.memory_used.max(row.uint(6).saturating_mul(1024));
    }
    jobs.sort_by(|a, b| b.core_s.total_cmp(&a.core_s));
    Ok(jobs)
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
    let at = |percent: u64| (count - 1) * percent / 100;
    let wanted = [at(50), at(90), at(99), count - 1];
    let list = wanted.map(|position| position.to_string()).join(", ");
    let sql = format!(
        "SELECT n, run_us FROM (SELECT run_us, row_number() OVER (ORDER BY run_us) - 1 AS n FROM task_data \
         WHERE job = {} AND state IN (2, 3) AND started_unix_ns + run_us * 1000 BETWEEN ?F AND ?T) WHERE n IN ({list})",
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
    requests: &Requests,
    values: &Values<'_>,
) -> CliResult<()> {
    let sql = "SELECT worker, job, variant, sum(min(CASE WHEN state IN (2, 3) \
               THEN started_unix_ns + run_us * 1000 ELSE ?T END, ?T) - max(started_unix_ns, ?F)) / 1000 \
               FROM task_data WHERE state IN (1, 2, 3) AND started_unix_ns <= ?T AND (state = 1 \
               OR started_unix_ns + run_us * 1000 >= ?F) GROUP BY 1, 2, 3";
    for row in file.ask(&fill(sql, values)).await?.iter() {
        if let Ok(at) = report
            .workers
            .binary_search_by_key(&row.small(0), |worker| worker.id)
        {
            let cores = request(requests, row.small(1), row.small(2), "cpus");
            report.workers[at].used_core_s += float(row.uint(3)) / 1e6 * cores;
        }
    }
    Ok(())
}

async fn slowest(file: &mut JournalFile, values: &Values<'_>) -> CliResult<Vec<SlowTask>> {
    let sql = format!(
        "SELECT t.job, t.task, w.hostname, t.run_us, t.state FROM task_data t LEFT JOIN worker_data w ON w.id = t.worker \
         WHERE t.state IN (2, 3) AND t.started_unix_ns + t.run_us * 1000 BETWEEN ?F AND ?T \
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
            is_failed: row.int(4) == 3,
        })
        .collect())
}

async fn failures(file: &mut JournalFile, values: &Values<'_>) -> CliResult<Vec<Failures>> {
    let sql = "SELECT t.job, t.outcome, max(t.message), w.hostname, count(*) FROM task_data t \
               LEFT JOIN worker_data w ON w.id = t.worker \
               WHERE t.state = 3 AND t.started_unix_ns + t.run_us * 1000 BETWEEN ?F AND ?T \
               GROUP BY 1, 2, 4 ORDER BY 5 DESC LIMIT 200";
    let rows = file.ask(&fill(sql, values)).await?;
    Ok(rows
        .iter()
        .map(|row| Failures {
            job: row.small(0),
            error: outcome_words(row.int(1), row.text(2)),
            host: clean(row.text(3).unwrap_or("?")),
            count: row.uint(4),
        })
        .collect())
}
