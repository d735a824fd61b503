//! `hq job set`.

use std::time::Duration;

use hq_core::job::{JobChange, TaskChange};
use hq_core::range::IdArray;
use hq_core::words::count;
use hq_protocol::client;

use super::Context;
use super::changed::Changed;
use super::missing::{self, Missing};
use crate::args::set::{OrNone, SetArgs};
use crate::client::{Client, JobList};
use crate::error::{CliError, CliResult, exit};
use crate::output::view::totals;

const DOING: &str = "Changing";

/// Runs `hq job set`.
pub(super) async fn run(args: SetArgs, context: &mut Context) -> CliResult<()> {
    let change = change(&args);
    if change == JobChange::default() {
        let text = "say what to change, for example with `--priority 5`";
        return Err(CliError::usage(text));
    }
    let mut client = context.connect().await?;
    let jobs = client.ask(JobList(&args.selector)).await?.jobs;
    let missing = Missing::among(&jobs, &args.selector);
    let mut has_failed = false;
    for job in &jobs {
        if totals(job).unfinished() == 0 && !job.is_open {
            tracing::error!("{DOING} job {} failed; it has ended", job.id);
            has_failed = true;
            continue;
        }
        match set(&mut client, (job.id, args.tasks.as_ref()), &change).await {
            Ok(is_done) => has_failed |= !is_done,
            // The other jobs may accept the change.
            Err(error) if error.is_refusal() => {
                has_failed = true;
                let why = error.text().unwrap_or_default();
                tracing::error!("{DOING} job {} failed; {why}", job.id);
            }
            Err(error) => return Err(error),
        }
    }
    missing.report_failed(DOING, "job");
    context.done()?;
    missing.end(missing::JOBS, context)?;
    match has_failed {
        true => Err(CliError::AlreadyReported(exit::FAILURE)),
        false => Ok(()),
    }
}

fn change(args: &SetArgs) -> JobChange {
    let time = |given: Option<OrNone<Duration>>| given.map(|OrNone(time)| time.unwrap_or_default());
    let cpus = args.cpus.map(|cpus| cpus.for_resource("cpus"));
    JobChange {
        name: args.name.as_deref().map(Into::into),
        max_running: args.max_running.map(|OrNone(max)| max),
        max_rate: args.max_rate.map(|OrNone(rate)| rate),
        tasks: TaskChange {
            priority: args.priority,
            time_limit: time(args.time_limit),
            time_request: time(args.time_request),
            crash_limit: args.crash_limit,
            resources: cpus.into_iter().chain(args.resource.clone()).collect(),
        },
    }
}

/// Changes one job. Returns whether everything that was named has changed.
async fn set(
    client: &mut Client,
    (job, tasks): (u32, Option<&IdArray>),
    change: &JobChange,
) -> CliResult<bool> {
    let asked = |tasks| client::ChangeJob {
        job,
        tasks,
        change: Some(change.into()),
    };
    let found = Changed::ask(client, tasks, asked).await?;
    let (is_whole, changed) = (!change.is_of_tasks(), found.changed.count());
    match changed {
        0 if is_whole => tracing::info!("Job {job} changed"),
        0 => {}
        changed => tracing::info!("Job {job} changed: {}", count(changed, "task")),
    }
    if let Some(sent) = found.sent.shown(job) {
        tracing::warn!(
            "Workers have received {sent}, which may still start with their earlier values"
        );
    }
    let is_none = changed == 0 && !is_whole;
    let running = found.running.shown(job);
    let running = running.filter(|_| change.tasks.is_request());
    if let Some(running) = &running {
        let text = format!("Running {running} keep their resources and time requests");
        match is_none {
            true => tracing::error!("{text}"),
            false => tracing::warn!("{text}"),
        }
    }
    let Some(tasks) = tasks else {
        if is_none && running.is_none() {
            tracing::error!("{DOING} job {job} failed; it has no unfinished tasks");
        }
        return Ok(!is_none);
    };
    let (ended, missing) = found.others(client, (job, tasks)).await?;
    let ended = ended.shown(job);
    if let Some(ended) = &ended {
        tracing::error!("{DOING} {ended} failed; already ended");
    }
    missing.report_failed(DOING, "task");
    Ok(!is_none && ended.is_none() && missing.is_empty())
}
