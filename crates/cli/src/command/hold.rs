//! `hq job hold`, `hq job release`, `hq task hold` and `hq task release`.

use hq_core::range::IdArray;
use hq_core::words::{count, number};
use hq_protocol::client;

use super::Context;
use super::changed::{Changed, Ids};
use super::missing::{self, Missing};
use super::task::{Action, end_without, named};
use crate::args::job::SelectorArgs;
use crate::args::task::ChosenArgs;
use crate::client::{Client, JobList};
use crate::error::{CliError, CliResult, exit};
use crate::output::view::totals;
use crate::parse::selector::Selector;

const HOLD: Action = Action {
    doing: "Holding",
    all: ("hq job hold", "` holds all tasks of the job"),
};

const RELEASE: Action = Action {
    doing: "Releasing",
    all: ("hq job release", "` releases all tasks of the job"),
};

/// Runs `hq job hold` and `hq job release`.
pub(super) async fn jobs(
    args: &SelectorArgs,
    is_held: bool,
    context: &mut Context,
) -> CliResult<()> {
    let mut client = context.connect().await?;
    let jobs = client.ask(JobList(&args.selector)).await?.jobs;
    let missing = Missing::among(&jobs, &args.selector);
    let mut is_any = false;
    for job in &jobs {
        let id = job.id;
        let has_ended = totals(job).unfinished() == 0 && !job.is_open;
        if has_ended && !matches!(args.selector, Selector::All) {
            tracing::error!("{} job {id} failed; it has ended", action(is_held).doing);
        }
        if has_ended {
            continue;
        }
        is_any = true;
        let answer = change(&mut client, id, None, is_held).await?;
        tracing::info!("Job {id} {}", of_job(&answer, is_held));
    }
    if jobs.is_empty() && missing.is_empty() {
        tracing::info!("There is no job");
    }
    missing.report_failed(action(is_held).doing, "job");
    context.done()?;
    missing.end(missing::JOBS, context)?;
    match is_any || matches!(args.selector, Selector::All) {
        true => Ok(()),
        false => Err(CliError::AlreadyReported(exit::FAILURE)),
    }
}

/// Says what a hold or a release of a whole job has changed.
fn of_job(answer: &Changed, is_held: bool) -> String {
    let [changed, running, sent] = [&answer.changed, &answer.running, &answer.sent].map(Ids::count);
    if !is_held {
        return format!("released: {}", count(changed, "task"));
    }
    let waiting = count(changed - running - sent, "task");
    let mut text = format!("held: {waiting} will wait");
    if sent > 0 {
        let sent = number(sent);
        text.push_str(&format!(
            ", {sent} that workers have received may still start"
        ));
    }
    if running > 0 {
        text.push_str(&format!(", {} will go on", count(running, "running task")));
    }
    text
}

/// Holds or releases a job, or one task of it. Returns the result as text.
pub(super) async fn job_or_task(
    client: &mut Client,
    (job, task): (u32, Option<u32>),
    is_held: bool,
) -> CliResult<String> {
    let tasks = task.map(IdArray::single);
    let answer = change(client, job, tasks.as_ref(), is_held).await?;
    let Some(task) = task else {
        return Ok(format!("job {job} {}", of_job(&answer, is_held)));
    };
    let has = |found: &Ids| found.count() > 0;
    let state = match (has(&answer.changed), is_held) {
        (true, true) if has(&answer.sent) => "is held, but a worker has it and may still start it",
        (true, true) => "is held",
        (true, false) => "is released",
        (false, true) if has(&answer.running) => "is running already",
        (false, true) => "has ended already",
        (false, false) => "is not held",
    };
    Ok(format!("task {task} of job {job} {state}"))
}

/// Runs `hq task hold` and `hq task release`.
pub(super) async fn tasks(
    args: &ChosenArgs,
    is_held: bool,
    context: &mut Context,
) -> CliResult<()> {
    let (selector, action) = (Selector::from(args.target.job), action(is_held));
    let tasks = named(args, action)?;
    let mut client = context.connect().await?;
    let found = client.ask(JobList(&selector)).await?.jobs;
    let Some(job) = found.first().map(|job| job.id) else {
        let name = args.target.job;
        tracing::error!("{} tasks of job {name} failed; job not found", action.doing);
        return Missing::one().end(missing::JOBS, context);
    };
    let found = change(&mut client, job, Some(&tasks), is_held).await?;
    let (others, missing) = found.others(&mut client, (job, &tasks)).await?;
    let changed = found.changed.shown(job);
    if let Some(changed) = &changed {
        let done = if is_held { "Held" } else { "Released" };
        tracing::info!("{done} {changed}");
    }
    if let Some(sent) = found.sent.shown(job) {
        tracing::warn!("Workers have received {sent}, which may still start");
    }
    let why = if is_held { "already ended" } else { "not held" };
    let running = found.running.shown(job).map(|ids| (ids, "already running"));
    let others = others.shown(job).map(|ids| (ids, why));
    for (ids, why) in running.into_iter().chain(others) {
        tracing::error!("{} {ids} failed; {why}", action.doing);
    }
    missing.report_failed(action.doing, "task");
    context.done()?;
    end_without((missing, job), &mut client, context).await?;
    match changed {
        None => Err(CliError::AlreadyReported(exit::FAILURE)),
        Some(_) => Ok(()),
    }
}

const fn action(is_held: bool) -> &'static Action {
    if is_held { &HOLD } else { &RELEASE }
}

async fn change(
    client: &mut Client,
    job: u32,
    tasks: Option<&IdArray>,
    is_held: bool,
) -> CliResult<Changed> {
    let hold = |tasks| client::HoldTasks {
        job,
        tasks,
        release: !is_held,
    };
    Changed::ask(client, tasks, hold).await
}
