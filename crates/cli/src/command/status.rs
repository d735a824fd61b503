//! `hq status` and `hq problems`: show the state and problems by the same rules as the dashboards.

use std::io::Write as _;

use hq_core::diagnosis::SET_ASIDE;
use hq_core::job::TaskTotals;
use hq_core::words::{count, has_word, number, part};
use hq_protocol::client::{self, Problem, ask_problems::Change};
use serde_json::{Value, json};

use super::{Context, situation};
use crate::args::global::OutputMode;
use crate::args::other::ProblemsArgs;
use crate::client::{Client, LimitList, ServerInfo};
use crate::error::CliResult;
use crate::output::format::{elapsed, rfc3339, short_words};
use crate::output::json::write_value;
use crate::output::pace;
use crate::output::view::{bar, counts_value, is_idle, nonzero, task_state_word, totals};
use crate::source::problems::{is_open, sentence};
use crate::source::{Snapshot, is_lost};
use crate::text::{clean, fit, rows};

/// The maximum number of jobs and problems that fit on a screen.
const JOBS_SHOWN_MAX: usize = 10;
const PROBLEMS_SHOWN_MAX: usize = 5;
/// The maximum number of limits that tasks wait for and that are shown.
const LIMITS_SHOWN_MAX: usize = 3;
/// The maximum number of jobs whose dependencies are queried.
const ASKED_MAX: usize = 3;
/// The width of a job's bar in cells.
const BAR_WIDTH: usize = 20;
/// The width of a job's name in columns.
const NAME_WIDTH: usize = 24;

/// The answers of the server.
struct ServerAnswers {
    info: client::ServerInfo,
    snapshot: Snapshot,
    /// The problems, most urgent first.
    problems: Vec<Problem>,
    /// The limits that tasks wait for.
    limits: Vec<client::LimitInfo>,
}

/// Runs `hq problems`.
pub(super) async fn problems(args: ProblemsArgs, context: &mut Context) -> CliResult<()> {
    let mut client = context.connect().await?;
    let now_ns = client.ask(ServerInfo).await?.now_unix_ns;
    let change = args
        .acknowledge
        .map(Change::Acknowledge)
        .or(args.take_back.map(Change::TakeBack));
    let found = client.ask(client::AskProblems { change }).await.map_err(|error| {
        if !error.is_not_found() {
            return error;
        }
        error.with_help("`hq problems --all` shows the id of each, such as `job-4-waits`, in the command below it")
    })?;
    match context.mode() {
        OutputMode::Json => {
            let rows: Vec<Value> = found.problems.iter().map(shape).collect();
            write_value(&mut context.out, &Value::from(rows))?;
            return Ok(());
        }
        OutputMode::Quiet => {
            for problem in &found.problems {
                writeln!(context.out, "{}", short(problem))?;
            }
            return Ok(());
        }
        OutputMode::Cli => {}
    }
    let shown: Vec<&Problem> = found
        .problems
        .iter()
        .filter(|problem| args.all || is_open(problem))
        .collect();
    if shown.is_empty() {
        writeln!(context.out, "Nothing is wrong.")?;
    }
    for problem in &shown {
        write_problem(context, problem, now_ns)?;
    }
    if let Some(hidden) = hidden_text(&found.problems).filter(|_| !args.all) {
        writeln!(context.out, "{hidden}; `hq problems --all` shows them.")?;
    }
    Ok(())
}

/// Runs `hq status`.
pub(super) async fn status(context: &mut Context) -> CliResult<()> {
    let mut client = context.connect().await?;
    let found = gather(&mut client).await?;
    let open: Vec<&client::JobSummary> = found
        .snapshot
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
                found.open().count()
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
        found.snapshot.jobs.len()
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
    write_limits(&found.limits, context)?;
    write_problems(&found, context)
}

fn write_limits(limits: &[client::LimitInfo], context: &mut Context) -> CliResult<()> {
    for (at, limit) in limits.iter().take(LIMITS_SHOWN_MAX).enumerate() {
        let label = if at == 0 { "Limits" } else { "" };
        let tasks = count(limit.waiting, "task");
        let verb = if limit.waiting == 1 { "waits" } else { "wait" };
        let why = limit.waits.as_deref().unwrap_or_default();
        writeln!(context.out, "{label:10}{tasks} {verb} for {why}")?;
    }
    if limits.len() > LIMITS_SHOWN_MAX {
        let more = limits.len() - LIMITS_SHOWN_MAX;
        writeln!(
            context.out,
            "  … and {more} more; `hq limit list` lists them"
        )?;
    }
    Ok(())
}

fn write_problems(found: &ServerAnswers, context: &mut Context) -> CliResult<()> {
    let count = found.open().count();
    match count {
        0 => writeln!(context.out, "Problems  none")?,
        _ => writeln!(context.out, "Problems  {count}")?,
    }
    for problem in found.open().take(PROBLEMS_SHOWN_MAX) {
        write_problem(context, problem, found.info.now_unix_ns)?;
    }
    if count > PROBLEMS_SHOWN_MAX {
        let more = count - PROBLEMS_SHOWN_MAX;
        writeln!(context.out, "  … and {more} more; `hq problems` lists them")?;
    }
    if let Some(hidden) = hidden_text(&found.problems) {
        writeln!(context.out, "  {hidden}; `hq problems --all` shows them")?;
    }
    Ok(())
}

impl ServerAnswers {
    /// Returns the problems that need attention.
    fn open(&self) -> impl Iterator<Item = &Problem> {
        self.problems.iter().filter(|problem| is_open(problem))
    }
}

/// Collects all data at one moment.
async fn gather(client: &mut Client) -> CliResult<ServerAnswers> {
    let info = client.ask(ServerInfo).await?;
    let snapshot = Snapshot::of_server(client, info.now_unix_ns).await?;
    let problems = client.ask(client::AskProblems::default()).await?.problems;
    let mut limits = match info.knows_limits {
        true => client.ask(LimitList).await?.limits,
        false => Vec::new(),
    };
    limits.retain(|limit| limit.waits.is_some());
    Ok(ServerAnswers {
        info,
        snapshot,
        problems,
        limits,
    })
}

/// Returns the counts of the problems that are not shown, or `None` if all are shown.
fn hidden_text(problems: &[Problem]) -> Option<String> {
    let count = |wanted: &dyn Fn(&Problem) -> bool| problems.iter().filter(|p| wanted(p)).count();
    let over = count(&|problem| problem.is_over);
    let known = count(&|problem| problem.is_acknowledged && !problem.is_over);
    let over_text = match over {
        0 => None,
        1 => Some("1 ended job had problems".to_owned()),
        _ => Some(format!("{over} ended jobs had problems")),
    };
    let known_text = (known > 0).then(|| format!("{known} acknowledged"));
    let parts: Vec<String> = over_text.into_iter().chain(known_text).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Returns a text such as `4 connected, 1 draining, 1 lost; 16 of 16 cpus busy`.
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
        .filter(|worker| is_lost(worker))
        .count();
    if lost > 0 {
        text.push_str(&format!(", {lost} lost"));
    }
    if let (Some(used), total) = snapshot.resource("cpus") {
        let whole = |units: u64| units.div_ceil(hq_core::resource::amount::UNITS_PER_WHOLE);
        let cpus = part(whole(used), whole(total), "cpu");
        text.push_str(&format!("; {cpus} busy"));
    }
    text
}

fn tasks_text(counts: &TaskTotals) -> String {
    use client::TaskState::{Aborted, Canceled, Failed, Finished, Running, Waiting};
    let parts = nonzero(
        *counts,
        [Running, Waiting, Finished, Failed, Canceled, Aborted],
    )
    .map(|(state, count)| format!("{} {}", number(count), task_state_word(state)));
    let parts: Vec<String> = parts.collect();
    if parts.is_empty() {
        return "none; `hq submit -- PROGRAM` submits one".to_owned();
    }
    parts.join(", ")
}

/// Returns a line such as `   3  train                     [##########..........] 48/100, 16 run, 3
/// failed`.
fn job_line(job: &client::JobSummary) -> String {
    let counts = totals(job);
    let mut line = format!(
        "{:>6}  {:NAME_WIDTH$}  {} {}/{}",
        job.id,
        fit(&clean(&job.name), NAME_WIDTH),
        bar(&counts, BAR_WIDTH),
        number(counts.ended()),
        number(counts.total())
    );
    for (count, word) in [(counts.running, "run"), (counts.failed, "failed")] {
        if count > 0 {
            line.push_str(&format!(", {} {word}", number(count)));
        }
    }
    if job.is_open && is_idle(job) {
        line.push_str(", open");
    }
    line
}

fn write_problem(context: &mut Context, problem: &Problem, now_ns: i64) -> CliResult<()> {
    let severity = match (problem.is_over || problem.is_acknowledged, problem.is_error) {
        (true, _) => "-",
        (false, true) => "error",
        (false, false) => "warning",
    };
    writeln!(context.out, "  {severity:7}  {}", sentence(problem, now_ns))?;
    let id = &problem.id;
    let known = if problem.is_acknowledged {
        format!("acknowledged; `hq problems --take-back {id}` shows it again")
    } else if problem.is_over {
        return Ok(writeln!(context.out, "           {}", advice(problem))?);
    } else {
        format!("`hq problems --acknowledge {id}` hides it")
    };
    writeln!(context.out, "           {}", advice(problem))?;
    Ok(writeln!(context.out, "           {known}")?)
}

/// The advice on problems, with the exact command, by kind.
const ADVICE: &str = "
set-aside: `hq worker info {worker}` shows it, `hq worker release {worker}` gives it tasks again
node: `hq worker info {worker}` shows it, `hq worker quarantine {worker}` keeps tasks away from it, `hq worker release {worker}` gives it tasks again
failing-job failed-tasks: `hq job failures {id}` shows why, `hq job resubmit {id} --filter failed` tries again
lost-workers: `hq worker list --all` shows which; their tasks run again elsewhere
unkillable: `hq doc failures` explains this
memory-limits: `hq doc resources` explains memory limits
journal: everything that was confirmed is on disk; the server continues when the disk works again
queue: `hq alloc info {id}` shows its allocations, `hq alloc resume {id}` lets it try again
starving-job: `hq task list {id} --filter waiting` lists the tasks, `hq task explain -v {id}.TASK` compares one with each worker
doubtful-job: `hq job info -v {id}` shows it, `hq job cancel {id}` ends the job
";

/// Returns advice on a problem.
fn advice(problem: &Problem) -> String {
    let kind = match &*problem.kind {
        "node" if problem.heading == SET_ASIDE => "set-aside",
        kind => kind,
    };
    let known = rows(ADVICE).find(|(kinds, _)| has_word(kinds, kind));
    let text = known.map_or(
        "report it with the server's log; running tasks continue",
        |(_, text)| text,
    );
    let shown = |number: Option<u32>| number.unwrap_or(0).to_string();
    text.replace("{id}", &shown(problem.subject))
        .replace("{worker}", &shown(problem.worker))
}

/// Returns the kind and the subject, for scripts.
fn short(problem: &Problem) -> String {
    let kind = &problem.kind;
    match (&problem.host, problem.subject) {
        (Some(host), _) => format!("{kind} {}", clean(host)),
        (None, Some(id)) => format!("{kind} {id}"),
        (None, None) => kind.clone(),
    }
}

/// Returns the form used by `/api/v1/problems`, with the command that helps.
fn shape(problem: &Problem) -> Value {
    json!({
        "key": problem.id,
        "severity": if problem.is_error { "error" } else { "warning" },
        "kind": problem.kind,
        "id": problem.subject,
        "host": problem.host,
        "text": format!("{} {}: {}", problem.heading, problem.title, problem.text),
        "part": problem.part,
        "whole": problem.whole,
        "since": problem.since_unix_ns.map(rfc3339),
        "last": problem.last_unix_ns.map(rfc3339),
        "is_over": problem.is_over,
        "is_acknowledged": problem.is_acknowledged,
        "resubmitted_as": problem.resubmitted_as,
        "cause": problem.cause,
        "advice": advice(problem),
    })
}

fn write_json(
    found: &ServerAnswers,
    open: &[&client::JobSummary],
    context: &mut Context,
) -> CliResult<()> {
    let job = |job: &&client::JobSummary| {
        let pace = pace::pace(job, found.info.now_unix_ns);
        json!({
            "tasks_per_second": pace.map(|pace| pace.rate), "elapsed": pace.map(|pace| pace.elapsed.as_secs_f64()),
            "left": pace.and_then(|pace| Some(pace.left?.as_secs_f64())), "id": job.id, "name": job.name,
            "is_open": job.is_open, "tasks": counts_value(&totals(job)),
        })
    };
    let jobs: Vec<Value> = open.iter().map(job).collect();
    let problems: Vec<Value> = found.open().map(shape).collect();
    let ended = found.problems.iter().filter(|problem| problem.is_over);
    let value = json!({
        "server": {"host": found.info.client_host, "version": found.info.version},
        "workers": found.snapshot.connected().count(),
        "tasks": counts_value(&found.snapshot.counts()),
        "job_count": found.snapshot.jobs.len(),
        "unfinished_jobs": jobs,
        "problems": problems,
        "ended_jobs_with_failures": ended.count(),
    });
    Ok(write_value(&mut context.out, &value)?)
}
