//! `hq job …`.

use std::io::IsTerminal as _;

use hq_core::job::JobTotals;
use hq_core::words::{count, noun_of};
use hq_protocol::client::{self, job_result::Kind};

use super::missing::{self, Missing};
use super::{Context, all_tasks};
use crate::args::global::OutputMode;
use crate::args::job::{
    CancelArgs, ForgetArgs, InfoArgs, ListArgs, OpenArgs, SelectorArgs, TaskIdsArgs,
};
use crate::args::task::states_to_message;
use crate::client::{Client, JobClose, JobInfo, JobList, ServerInfo};
use crate::error::{CliError, CliResult};
use crate::output::console::error_line;
use crate::output::pace::{self, ServerClock};
use crate::output::view::job_state;
use crate::output::{JobInfos, JobListView, NewJob};
use crate::parse::selector::{Selector, SingleSelector};

mod cat;
mod failures;
mod resubmit;
mod stats;
pub(super) mod suggest;
mod tail;

pub(super) use cat::{cat, copy_stream, read_chunk};
pub(super) use failures::failures;
pub(super) use resubmit::resubmit;
pub(super) use stats::stats;
pub(super) use tail::tail;

/// Returns the id of a job.
pub(super) async fn last_or_id(job: SingleSelector, client: &mut Client) -> CliResult<u32> {
    match job {
        SingleSelector::Id(id) => Ok(id),
        SingleSelector::Last => {
            let last = client.job(&Selector::Last).await?.map(|job| job.id);
            last.ok_or_else(|| CliError::new("The last job is gone"))
        }
    }
}

/// Runs `hq job list`.
pub(super) async fn list(args: ListArgs, context: &mut Context) -> CliResult<()> {
    let mut client = context.connect().await?;
    let mut jobs = client.ask(JobList(&Selector::All)).await?.jobs;
    jobs.sort_unstable_by_key(|job| job.id);
    let is_shown = |job: &&client::JobSummary| match &args.filter {
        Some(states) => states.contains(&job_state(job)),
        None => args.all || job.is_open || job_state(job).is_unfinished(),
    };
    let shown: Vec<_> = jobs.iter().filter(is_shown).collect();
    let progress_at_ns = if args.progress {
        let clock = ServerClock::of(&client.ask(ServerInfo).await?);
        Some(clock.now_unix_ns())
    } else {
        None
    };
    let view = JobListView {
        jobs: &shown,
        total: jobs.len(),
        with_reason: args.verbose,
        progress_at_ns,
        is_all: args.all,
    };
    let hidden = args.filter.map_or(jobs.len() - shown.len(), |_| 0);
    context.show(&view)?;
    context.note_hidden(hidden, "job");
    Ok(())
}

/// Runs `hq job summary`.
pub(super) async fn summary(context: &mut Context) -> CliResult<()> {
    let jobs = context.ask(JobList(&Selector::All)).await?.jobs;
    let mut counts = JobTotals::default();
    for job in &jobs {
        counts.add(job_state(job));
    }
    context.show(&counts)
}

/// Runs `hq job info`. Tasks are printed page by page.
pub(super) async fn info(args: InfoArgs, context: &mut Context) -> CliResult<()> {
    let mut client = context.connect().await?;
    let infos = client.ask(JobInfo(&args.selector)).await?;
    let missing = Missing::of(infos.not_found.as_ref());
    missing.report_not_found("Job");
    let wants_tasks = context.mode() == OutputMode::Json;
    let mut shown = JobInfos::new(context.output, &mut context.out, args.verbose);
    for job in &infos.jobs {
        shown.job(job)?;
        let id = job.summary.as_ref().map_or(0, |summary| summary.id);
        let mut next = wants_tasks.then(|| all_tasks(id));
        while let Some(page) = client.next_page(&mut next).await? {
            shown.tasks(&page)?;
        }
    }
    shown.finish()?;
    print_pace(&infos.jobs, context)?;
    let missing = missing.or_none(
        &args.selector,
        infos.jobs.is_empty(),
        missing::NO_JOB,
        context,
    );
    missing.end(missing::JOBS, context)
}

/// Logs the pace of unfinished jobs. The tables do not contain it, because scripts read them.
fn print_pace(jobs: &[client::JobDetail], context: &mut Context) -> CliResult<()> {
    if context.mode() != OutputMode::Cli {
        return Ok(());
    }
    context.flush()?;
    for job in jobs {
        let Some(summary) = &job.summary else {
            continue;
        };
        if let Some(text) = pace::text(std::iter::once(summary), job.now_unix_ns) {
            error_line(&format!("Job {}: {text}", summary.id));
        }
    }
    Ok(())
}

/// Runs `hq job cancel`.
pub(super) async fn cancel(args: CancelArgs, context: &mut Context) -> CliResult<()> {
    let cancel = client::Cancel {
        jobs: Some(args.selector.to_message()),
        reason: args.reason.unwrap_or_default(),
    };
    let client::JobResults { results, not_found } = context.ask(cancel).await?;
    let missing = Missing::of(not_found.as_ref());
    if results.is_empty() && missing.is_empty() {
        tracing::info!("There is nothing to cancel");
    }
    for result in results {
        let client::JobResult {
            job,
            canceled,
            already_finished,
            killed,
            ..
        } = result;
        match Kind::try_from(result.kind) {
            Ok(Kind::Ok) if killed > 0 => tracing::info!(
                "Job {job} was canceled before: {} in the grace period got SIGKILL",
                count(killed.into(), "task")
            ),
            Ok(Kind::Ok) => tracing::info!(
                "Job {job} canceled ({canceled} tasks canceled, {already_finished} tasks already finished)"
            ),
            Ok(Kind::Already) | Err(_) => {
                tracing::error!("Canceling job {job} failed; all tasks are already finished");
            }
        }
    }
    missing.report_failed("Canceling", "job");
    context.done()?;
    missing.end(missing::JOBS, context)
}

/// Runs `hq job close`.
pub(super) async fn close(args: SelectorArgs, context: &mut Context) -> CliResult<()> {
    let close = JobClose(&args.selector);
    let client::JobResults { results, not_found } = context.ask(close).await?;
    let missing = Missing::of(not_found.as_ref());
    if results.is_empty() && missing.is_empty() {
        tracing::info!("There is nothing to close");
    }
    for client::JobResult { job, kind, .. } in results {
        match Kind::try_from(kind) {
            Ok(Kind::Ok) => tracing::info!("Job {job} closed"),
            Ok(Kind::Already) | Err(_) => {
                tracing::error!("Closing job {job} failed; job is already closed");
            }
        }
    }
    missing.report_failed("Closing", "job");
    context.done()?;
    missing.end(missing::JOBS, context)
}

/// Runs `hq job forget`.
pub(super) async fn forget(args: ForgetArgs, context: &mut Context) -> CliResult<()> {
    let states = args.filter.unwrap_or_default();
    let forget = client::Forget {
        jobs: Some(args.selector.to_message()),
        states: states
            .into_iter()
            .map(|state| client::TaskState::from(state).into())
            .collect(),
    };
    let client::Forgotten { forgotten, ignored } = context.ask(forget).await?;
    let jobs = noun_of(forgotten.into(), "job");
    let rest = match ignored {
        0 => String::new(),
        count => format!(", {count} were ignored due to wrong state or invalid ID"),
    };
    tracing::info!("{forgotten} {jobs} were forgotten{rest}");
    if ignored > 0 && context.mode() == OutputMode::Cli && std::io::stderr().is_terminal() {
        error_line("Only jobs that have ended are forgotten; `hq job cancel JOB` ends one");
    }
    context.done()
}

/// Runs `hq job task-ids`.
pub(super) async fn task_ids(args: TaskIdsArgs, context: &mut Context) -> CliResult<()> {
    let request = client::TaskIds {
        jobs: Some(args.selector.to_message()),
        states: states_to_message(args.filter.as_deref()),
    };
    let reply = context.ask(request).await?;
    context.show(&reply)
}

/// Runs `hq job open`.
pub(super) async fn open(args: OpenArgs, context: &mut Context) -> CliResult<()> {
    let request = client::OpenJob {
        name: args.name.unwrap_or_else(|| "job".to_owned()),
        max_fails: args.max_fails,
    };
    let id = context.ask(request).await?.id;
    context.show(&NewJob { id, is_open: true })
}
