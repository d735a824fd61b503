//! `hq status` and `hq problems`: how it is going and what is wrong, by the rules that the dashboards use.

use std::collections::BTreeSet;
use std::io::Write as _;

use hq_core::diagnosis::{Finding, Severity, Subject, number};
use hq_protocol::client;
use serde_json::{Value, json};

use super::{Context, situation};
use crate::args::global::OutputMode;
use crate::args::other::ProblemsArgs;
use crate::client::Client;
use crate::dashboard::model::{Counts, JobRow, QueueRow, Snapshot, clean};
use crate::dashboard::problems;
use crate::dashboard::source::{live, obstacle};
use crate::error::CliResult;
use crate::output::format::{elapsed, short_words};
use crate::output::json::write_value;
use crate::output::pace;
use crate::output::view::is_idle;
use crate::parse::selector::Selector;
use crate::text::fit;

/// Jobs and problems that fit on a screen beside the rest.
const JOBS_SHOWN_MAX: usize = 10;
const PROBLEMS_SHOWN_MAX: usize = 5;
/// Jobs of which it is asked what they wait behind.
const ASKED_MAX: usize = 3;
/// Cells of the bar of a job.
const BAR_WIDTH: u64 = 20;
/// Columns of a job's name.
const NAME_WIDTH: usize = 24;

/// What the server was asked.
struct Found {
    info: client::ServerInfo,
    jobs: Vec<client::JobSummary>,
    snapshot: Snapshot,
    /// What is wrong now, worst first.
    findings: Vec<Finding>,
    /// Failures of jobs that have ended, which nobody can do anything about but submit them again.
    ended: Vec<Finding>,
}

/// `hq problems`.
pub(super) async fn problems(args: ProblemsArgs, context: &mut Context) -> CliResult<()> {
    let mut client = context.connect().await?;
    let mut found = gather(&mut client).await?;
    let hidden = if args.all || context.mode() != OutputMode::Cli {
        found.findings.append(&mut found.ended);
        found.findings.sort_by_key(|finding| finding.severity);
        0
    } else {
        found.ended.len()
    };
    match context.mode() {
        OutputMode::Json => {
            let rows: Vec<Value> = found.findings.iter().map(shape).collect();
            write_value(&mut context.out, &Value::from(rows))?;
            return Ok(());
        }
        OutputMode::Quiet => {
            for finding in &found.findings {
                writeln!(context.out, "{}", kind(finding))?;
            }
            return Ok(());
        }
        OutputMode::Cli => {}
    }
    if found.findings.is_empty() {
        writeln!(context.out, "Nothing is wrong.")?;
    }
    for finding in &found.findings {
        write_finding(context, finding)?;
    }
    if hidden > 0 {
        writeln!(
            context.out,
            "{}; `hq problems --all` shows them.",
            ended_text(hidden)
        )?;
    }
    Ok(())
}

/// `hq status`.
pub(super) async fn status(context: &mut Context) -> CliResult<()> {
    let mut client = context.connect().await?;
    let found = gather(&mut client).await?;
    let open: Vec<&client::JobSummary> = found
        .jobs
        .iter()
        .filter(|job| situation::is_unfinished(job))
        .collect();
    match context.mode() {
        OutputMode::Json => return write_json(&found, &open, context),
        OutputMode::Quiet => {
            let counts = found.snapshot.counts();
            let workers = found.snapshot.connected().count();
            writeln!(
                context.out,
                "{workers} {} {} {} {} {}",
                counts.running,
                counts.waiting,
                counts.finished,
                counts.failed,
                found.findings.len()
            )?;
            return Ok(());
        }
        OutputMode::Cli => {}
    }
    let out = &mut context.out;
    let info = &found.info;
    writeln!(
        out,
        "Server    {}, up {}, hq {}",
        info.client_host,
        short_words(elapsed(info.start_unix_ns, info.now_unix_ns)),
        info.version
    )?;
    writeln!(out, "Workers   {}", workers_text(&found.snapshot))?;
    writeln!(out, "Tasks     {}", tasks_text(&found.snapshot.counts()))?;
    writeln!(
        out,
        "Jobs      {} unfinished of {}",
        open.len(),
        found.jobs.len()
    )?;
    for (at, job) in open.iter().take(JOBS_SHOWN_MAX).enumerate() {
        writeln!(out, "{}", job_line(job))?;
        if let Some(text) = pace::text(std::iter::once(*job), info.now_unix_ns) {
            writeln!(out, "          {text}")?;
        }
        if at < ASKED_MAX
            && let Some(why) = situation::reason(&mut client, &[(*job).clone()]).await?
        {
            writeln!(out, "          waits: {why}")?;
        }
    }
    if open.len() > JOBS_SHOWN_MAX {
        let more = open.len() - JOBS_SHOWN_MAX;
        writeln!(out, "  … and {more} more; `hq job list` lists them")?;
    }
    write_problems(&found, context)
}

fn write_problems(found: &Found, context: &mut Context) -> CliResult<()> {
    let count = found.findings.len();
    match count {
        0 => writeln!(context.out, "Problems  none")?,
        _ => writeln!(context.out, "Problems  {count}")?,
    }
    for finding in found.findings.iter().take(PROBLEMS_SHOWN_MAX) {
        write_finding(context, finding)?;
    }
    if count > PROBLEMS_SHOWN_MAX {
        let more = count - PROBLEMS_SHOWN_MAX;
        writeln!(context.out, "  … and {more} more; `hq problems` lists them")?;
    }
    if !found.ended.is_empty() {
        let text = ended_text(found.ended.len());
        writeln!(context.out, "  {text}; `hq problems --all` shows them")?;
    }
    Ok(())
}

/// Everything in one pass, as of now.
async fn gather(client: &mut Client) -> CliResult<Found> {
    let info = client.server_info().await?;
    let jobs = client.job_list(Selector::All.to_message()).await?;
    let mut snapshot = live::snapshot(client, info.now_unix_ns).await?;
    snapshot.internal_errors = info.internal_error_count;
    snapshot.queues = situation::queues(client)
        .await?
        .into_iter()
        .map(queue)
        .collect();
    let shares = match live::ended(client, i64::MAX).await {
        Ok(shares) => shares,
        Err(error) if client.is_lost() => return Err(error),
        // A server without a journal knows no more than the counts.
        Err(_) => Vec::new(),
    };
    let obstacles = obstacle::obstacles(client, &snapshot.jobs).await?;
    let over: BTreeSet<u32> = jobs
        .iter()
        .filter(|job| is_idle(job))
        .map(|job| job.id)
        .collect();
    let is_over = |finding: &Finding| match &finding.subject {
        Subject::FailingJob(job) | Subject::FailedTasks(job) => over.contains(job),
        Subject::Node { .. }
        | Subject::LostWorkers
        | Subject::Unkillable
        | Subject::Internal
        | Subject::Queue(_)
        | Subject::StarvingJob(_) => false,
    };
    let all = problems::find(&snapshot, &shares, Some(&obstacles));
    let (ended, findings) = all.into_iter().partition(is_over);
    Ok(Found {
        info,
        jobs,
        snapshot,
        findings,
        ended,
    })
}

fn queue(queue: client::AllocQueue) -> QueueRow {
    QueueRow {
        id: queue.id,
        is_failing: queue.is_failing(),
        name: clean(&queue.spec.and_then(|spec| spec.name).unwrap_or_default()),
        is_paused: queue.is_paused,
        reason: clean(&queue.reason),
        allocations: Vec::new(),
    }
}

fn ended_text(count: usize) -> String {
    match count {
        1 => "1 ended job had failures".to_owned(),
        _ => format!("{count} ended jobs had failures"),
    }
}

/// `4 connected, 1 draining, 1 lost; 16 of 16 cpus busy`
fn workers_text(snapshot: &Snapshot) -> String {
    let connected = snapshot.connected().count();
    if connected == 0 {
        return "none; `hq worker start` starts one, `hq alloc add` has a batch system start them"
            .to_owned();
    }
    let mut text = format!("{connected} connected");
    let draining = snapshot
        .connected()
        .filter(|worker| worker.is_draining)
        .count();
    if draining > 0 {
        text.push_str(&format!(", {draining} draining"));
    }
    let lost = snapshot
        .workers
        .iter()
        .filter(|worker| worker.is_lost)
        .count();
    if lost > 0 {
        text.push_str(&format!(", {lost} lost"));
    }
    if let (Some(used), total) = snapshot.resource("cpus") {
        let whole = |units: u64| number(units.div_ceil(hq_core::resource::amount::UNITS_PER_WHOLE));
        text.push_str(&format!("; {} of {} cpus busy", whole(used), whole(total)));
    }
    text
}

fn tasks_text(counts: &Counts) -> String {
    let named = [
        (counts.running, "running"),
        (counts.waiting, "waiting"),
        (counts.finished, "finished"),
        (counts.failed, "failed"),
        (counts.canceled, "canceled"),
        (counts.aborted, "aborted"),
    ];
    let parts: Vec<String> = named
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, word)| format!("{} {word}", number(count)))
        .collect();
    if parts.is_empty() {
        return "none; `hq submit -- PROGRAM` submits one".to_owned();
    }
    parts.join(", ")
}

/// `   3  train                     [##########..........] 48/100, 16 run, 3 failed`
fn job_line(job: &client::JobSummary) -> String {
    let stats = job.stats.unwrap_or_default();
    let total = u64::from(job.task_count);
    let open = u64::from(stats.running) + u64::from(stats.waiting);
    let ended = total.saturating_sub(open);
    let filled = (ended * BAR_WIDTH).checked_div(total).unwrap_or(BAR_WIDTH);
    let cells = |count: u64| usize::try_from(count).unwrap_or(0);
    let mut line = format!(
        "{:>6}  {:NAME_WIDTH$}  [{}{}] {}/{}",
        job.id,
        fit(&clean(&job.name), NAME_WIDTH),
        "#".repeat(cells(filled)),
        ".".repeat(cells(BAR_WIDTH - filled)),
        number(ended),
        number(total)
    );
    for (count, word) in [(stats.running, "run"), (stats.failed, "failed")] {
        if count > 0 {
            line.push_str(&format!(", {} {word}", number(count.into())));
        }
    }
    if job.is_open && is_idle(job) {
        line.push_str(", open");
    }
    line
}

fn write_finding(context: &mut Context, finding: &Finding) -> CliResult<()> {
    let severity = match finding.severity {
        Severity::Error => "error",
        Severity::Warning => "warning",
    };
    writeln!(
        context.out,
        "  {severity:7}  {}",
        clean(&finding.to_string())
    )?;
    writeln!(context.out, "           {}", advice(finding))?;
    Ok(())
}

/// What to look at or to do, with the exact command.
fn advice(finding: &Finding) -> String {
    match &finding.subject {
        Subject::Node { worker, .. } => {
            format!(
                "`hq worker drain {worker}` keeps tasks away from it, `hq worker info {worker}` shows it"
            )
        }
        Subject::FailingJob(job) | Subject::FailedTasks(job) => {
            format!(
                "`hq job cat {job} stderr --task-status failed` prints what they wrote, `hq job resubmit {job} --filter failed` tries again"
            )
        }
        Subject::LostWorkers => {
            "`hq worker list --all` shows which; their tasks run again elsewhere".to_owned()
        }
        Subject::Unkillable => "`hq doc failures` says what that means".to_owned(),
        Subject::Internal => "report it with the server's log; what runs goes on".to_owned(),
        Subject::Queue(queue) => format!(
            "`hq alloc info {queue}` shows its allocations, `hq alloc resume {queue}` lets it try again"
        ),
        Subject::StarvingJob(job) => format!(
            "`hq task list {job} --task-status waiting` lists the tasks, `hq task explain -v {job} TASK` compares one with each worker"
        ),
    }
}

/// Kind and id, for scripts.
fn kind(finding: &Finding) -> String {
    match &finding.subject {
        Subject::Node { host, .. } => format!("node {host}"),
        Subject::FailingJob(job) => format!("failing-job {job}"),
        Subject::FailedTasks(job) => format!("failed-tasks {job}"),
        Subject::LostWorkers => "lost-workers".to_owned(),
        Subject::Unkillable => "unkillable".to_owned(),
        Subject::Internal => "internal".to_owned(),
        Subject::Queue(queue) => format!("queue {queue}"),
        Subject::StarvingJob(job) => format!("starving-job {job}"),
    }
}

/// As `/api/v1/problems` tells it, with the command that helps.
fn shape(finding: &Finding) -> Value {
    let kind = kind(finding);
    let (kind, id) = kind.split_once(' ').unwrap_or((&kind, ""));
    json!({
        "severity": match finding.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        },
        "kind": kind,
        "id": id.parse::<u32>().ok(),
        "host": (kind == "node").then_some(id),
        "text": finding.to_string(),
        "part": finding.part,
        "whole": finding.whole,
        "advice": advice(finding),
    })
}

fn write_json(found: &Found, open: &[&client::JobSummary], context: &mut Context) -> CliResult<()> {
    let counts = |counts: &Counts| {
        json!({
            "waiting": counts.waiting, "running": counts.running, "finished": counts.finished,
            "failed": counts.failed, "canceled": counts.canceled, "aborted": counts.aborted,
        })
    };
    let is_open = |row: &&JobRow| open.iter().any(|job| job.id == row.id);
    let jobs = found.snapshot.jobs.iter().filter(is_open);
    let rate = |id: u32| {
        let job = open.iter().find(|job| job.id == id)?;
        pace::pace(job, found.info.now_unix_ns)
    };
    let jobs: Vec<Value> = jobs
        .map(|job| (job, rate(job.id)))
        .map(|(job, pace)| json!({"tasks_per_second": pace.map(|pace| pace.rate), "elapsed": pace.map(|pace| pace.elapsed.as_secs_f64()), "left": pace.and_then(|pace| Some(pace.left?.as_secs_f64())), "id": job.id, "name": job.name, "is_open": job.is_open, "tasks": counts(&job.counts)}))
        .collect();
    let problems: Vec<Value> = found.findings.iter().map(shape).collect();
    let value = json!({
        "server": {"host": found.info.client_host, "version": found.info.version},
        "workers": found.snapshot.connected().count(),
        "tasks": counts(&found.snapshot.counts()),
        "job_count": found.jobs.len(),
        "unfinished_jobs": jobs,
        "problems": problems,
        "ended_jobs_with_failures": found.ended.len(),
    });
    Ok(write_value(&mut context.out, &value)?)
}
