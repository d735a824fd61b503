//! `hq job set`.

use std::time::Duration;

use hq_core::job::{JobChange, TaskChange};
use hq_core::range::{IdArray, IndexSet};
use hq_core::words::count;
use hq_protocol::client;

use super::Context;
use super::hold::{add, portions, shown, split_known};
use super::missing::{self, Missing};
use crate::args::set::{OrNone, SetArgs};
use crate::client::{Client, JobList};
use crate::error::{CliError, CliResult, exit};
use crate::output::format::joined_ids;

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
        let tasks = job.stats.unwrap_or_default();
        if tasks.waiting + tasks.running == 0 && !job.is_open {
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
    let parts = match tasks {
        Some(tasks) => portions(tasks).into_iter().map(Some).collect(),
        None => vec![None],
    };
    let (mut changed, mut running) = (IndexSet::new(), IndexSet::new());
    let mut sent = IndexSet::new();
    for part in parts {
        let asked = client::ChangeJob {
            job,
            tasks: part.as_ref().map(Into::into),
            change: Some(change.into()),
        };
        let answer = client.ask(asked).await?;
        add(&mut changed, answer.changed.as_ref());
        add(&mut running, answer.running.as_ref());
        add(&mut sent, answer.sent.as_ref());
    }
    let is_whole = !change.is_of_tasks();
    match changed.len() {
        0 if is_whole => tracing::info!("Job {job} changed"),
        0 => {}
        len => tracing::info!("Job {job} changed: {}", count(len.into(), "task")),
    }
    if !sent.is_empty() {
        let ids = shown(&joined_ids(sent.iter()), (sent.len(), job));
        tracing::warn!(
            "Workers have received {ids}, which may still start with their earlier values"
        );
    }
    let keeps_requests = change.tasks.is_request() && !running.is_empty();
    let is_none = changed.is_empty() && !is_whole;
    if keeps_requests {
        let ids = shown(&joined_ids(running.iter()), (running.len(), job));
        let text = format!("Running {ids} keep their resources and time requests");
        match is_none {
            true => tracing::error!("{text}"),
            false => tracing::warn!("{text}"),
        }
    }
    let Some(tasks) = tasks else {
        if is_none && !keeps_requests {
            tracing::error!("{DOING} job {job} failed; it has no unfinished tasks");
        }
        return Ok(!is_none);
    };
    let is_known = |id: &u32| changed.contains(*id) || running.contains(*id);
    let rest = tasks.iter().filter(|id| !is_known(id));
    let rest = IdArray::from_sorted(rest).unwrap_or_default();
    let (ended, missing) = split_known(client, job, rest).await?;
    if !ended.is_empty() {
        let ids = shown(&ended.to_string(), (ended.len(), job));
        tracing::error!("{DOING} {ids} failed; already ended");
    }
    missing.report_failed(DOING, "task");
    Ok(!is_none && ended.is_empty() && missing.is_empty())
}
