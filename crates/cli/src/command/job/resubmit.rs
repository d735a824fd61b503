//! `job resubmit`.

mod changed;

use std::io::IsTerminal as _;

use hq_core::range::{IdArray, IdRange};
use hq_protocol::client::{self, resubmitted_job::Result as Row};
use hq_protocol::convert::NEW_REQUESTS_MAX;

use super::suggest::Groups;
use crate::args::global::OutputMode;
use crate::args::job::ResubmitArgs;
use crate::client::{Client, JobInfo};
use crate::command::missing::{self, Missing};
use crate::command::situation::is_unfinished;
use crate::command::{Context, follow};
use crate::error::{CliError, CliResult, exit};
use crate::output::suggest::Suggestion;
use crate::output::{ResubmittedView, console};
use crate::parse::selector::Selector;

/// The error of a server that does not support changed requests in a resubmit.
const JOBS_MISSING: &str = "field `job_resubmit.jobs` is missing";

/// The error for `--dry-run` without an option that supports it.
const DRY_RUN_ALONE: &str = "error: --dry-run needs --changed\n\n\
    help: `hq job task-ids JOB --filter failed` names the tasks that `hq job resubmit JOB --filter failed` submits";

/// The maximum number of kinds of tasks whose requests are printed.
const KINDS_TOLD_MAX: usize = 16;

/// Submits jobs again. Reports the jobs that cannot be submitted, and also fails the command in
/// this case.
pub(in crate::command) async fn resubmit(
    args: ResubmitArgs,
    context: &mut Context,
) -> CliResult<()> {
    if args.dry_run {
        // The parser does not require an option if it conflicts with another option on the command
        // line.
        if !args.changed {
            console::error_line(DRY_RUN_ALONE);
            return Err(CliError::AlreadyReported(exit::USAGE));
        }
        return changed::show(&args.selector, context).await;
    }
    let is_all = args.selector == Selector::All;
    let mut client = context.connect().await?;
    let client::Resubmitted {
        jobs: results,
        not_found,
    } = ask(&args, &mut client).await?;
    let missing = Missing::of(not_found.as_ref());
    let mut jobs = Vec::new();
    let mut has_failed = !missing.is_empty();
    for client::ResubmittedJob {
        job,
        result,
        task_count,
        ..
    } in results
    {
        let problem = match result {
            Some(Row::NewJob(new_job)) => {
                jobs.push(ResubmittedView {
                    job,
                    new_job,
                    task_count,
                });
                continue;
            }
            // With `all`, some jobs have nothing left to run.
            Some(Row::Nothing(_)) if is_all => continue,
            // The command has already reported how much of each job is done.
            Some(Row::Nothing(_)) if args.changed => continue,
            Some(Row::Nothing(_)) if args.filter.is_none() => "it has no tasks".to_owned(),
            Some(Row::Nothing(_)) => "no task is in the selected states".to_owned(),
            Some(Row::Refused(why)) => why,
            None => "the server did not say why".to_owned(),
        };
        has_failed = true;
        tracing::error!("Resubmitting job {job} failed; {problem}");
    }
    missing.report_failed("Resubmitting", "job");
    if jobs.is_empty() && !has_failed {
        tracing::info!("There is nothing to resubmit");
    }
    context.show(&jobs)?;
    context.flush()?;
    if args.filter.is_none() && !args.changed {
        note_on_running(&jobs, &mut client, context).await?;
    }
    let new_jobs = jobs.iter().map(|job| IdRange::single(job.new_job));
    if let Ok(new_jobs) = IdArray::new(new_jobs.collect())
        && !jobs.is_empty()
    {
        let new_jobs = Selector::Ids(new_jobs);
        follow::wait_after_submit(&mut client, new_jobs, args.follow, context, None).await?;
    }
    missing.end(missing::JOBS, context)?;
    if has_failed {
        return Err(CliError::AlreadyReported(exit::FAILURE));
    }
    Ok(())
}

/// Warns that running tasks of these jobs now run twice.
async fn note_on_running(
    jobs: &[ResubmittedView],
    client: &mut Client,
    context: &Context,
) -> CliResult<()> {
    if context.mode() != OutputMode::Cli || !std::io::stderr().is_terminal() {
        return Ok(());
    }
    for ResubmittedView { job, new_job, .. } in jobs {
        let found = client.job(&Selector::one(*job)).await?;
        if found.as_ref().is_some_and(is_unfinished) {
            tracing::warn!(
                "Job {job} has not ended: its unfinished tasks now also run in job {new_job}. To end the earlier ones, run `hq job cancel {job}`"
            );
        }
    }
    Ok(())
}

/// Submits the selected tasks.
async fn ask(args: &ResubmitArgs, client: &mut Client) -> CliResult<client::Resubmitted> {
    if args.changed {
        return changed::resubmit(&args.selector, client).await;
    }
    let states = args.filter.iter().flatten();
    let request = client::Resubmit {
        jobs: Some(args.selector.to_message()),
        states: states
            .map(|state| client::TaskState::from(*state).into())
            .collect(),
        ..client::Resubmit::default()
    };
    if args.suggested {
        return resubmit_suggested(&args.selector, request, client).await;
    }
    client.ask(request).await
}

/// Prints the new requests of a job's tasks.
fn print_sizes(job: u32, known: &[(Suggestion, client::NewRequest)]) {
    for (suggestion, _) in known.iter().take(KINDS_TOLD_MAX) {
        let options = suggestion.options().join(" ");
        tracing::info!("Job {job}, {}: {options}", suggestion.title());
    }
    let more = known.len().min(NEW_REQUESTS_MAX);
    let more = more.saturating_sub(KINDS_TOLD_MAX);
    if more > 0 {
        tracing::info!(
            "Job {job}: {more} other kinds of tasks, as `hq job stats {job} --suggest` shows"
        );
    }
    let rest = known.len().saturating_sub(NEW_REQUESTS_MAX);
    if rest > 0 {
        tracing::warn!(
            "Job {job}: {rest} more kinds of tasks keep their requests, because at most {NEW_REQUESTS_MAX} can change"
        );
    }
}

/// Explains the error of a server that does not support changed requests.
fn too_old(error: CliError) -> CliError {
    older(
        error,
        "--suggested",
        "type what `hq job stats JOB --suggest` prints in a new submit, or start a server of this release",
    )
}

/// Explains the error of a server that does not know a field of the request.
fn older(error: CliError, option: &str, help: &str) -> CliError {
    // Rejections by the server start with a word that identifies them.
    let text = error.text().unwrap_or_default();
    if text.trim_start_matches("Error: ") != JOBS_MISSING {
        return error;
    }
    CliError::new(format!(
        "The server is of an earlier release and does not know {option}"
    ))
    .with_help(help)
}

/// Submits each job with requests that would have fit its tasks.
async fn resubmit_suggested(
    jobs: &Selector,
    request: client::Resubmit,
    client: &mut Client,
) -> CliResult<client::Resubmitted> {
    let infos = client.ask(JobInfo(jobs)).await?;
    let mut results = client::Resubmitted {
        jobs: Vec::new(),
        not_found: infos.not_found,
    };
    for job in infos.jobs.iter().filter_map(|job| job.summary.as_ref()) {
        let states = [client::TaskState::Finished, client::TaskState::Failed];
        let groups = Groups::read(client, job.id, &states).await?;
        let mut known = groups.unwrap_or_default().into_new_requests();
        if known.is_empty() {
            let why = "none of the tasks with a changeable request has finished or run out of memory, so their needs are unknown";
            results.jobs.push(client::ResubmittedJob {
                job: job.id,
                result: Some(Row::Refused(why.to_owned())),
                task_count: 0,
                submits: Vec::new(),
            });
            continue;
        }
        // If there are too many kinds, only the kinds with the most tasks are printed.
        known.sort_by_key(|(suggestion, _)| std::cmp::Reverse(suggestion.needs.count()));
        print_sizes(job.id, &known);
        known.truncate(NEW_REQUESTS_MAX);
        let resize = client::Resize {
            jobs: Some(Selector::one(job.id).to_message()),
            requests: known.into_iter().map(|(_, request)| request).collect(),
        };
        let resized = client::Resubmit {
            jobs: None,
            resize: Some(resize),
            ..request.clone()
        };
        let resubmitted = client.ask(resized).await.map_err(too_old)?;
        results.jobs.extend(resubmitted.jobs);
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_server_is_told_from_other_refusals() {
        let said = |message: &str| {
            let error = client::Error {
                message: message.to_owned(),
                ..client::Error::default()
            };
            let error = too_old(CliError::from_server(error));
            error.text().expect("it is a failure")
        };
        for message in [JOBS_MISSING.to_owned(), format!("Error: {JOBS_MISSING}")] {
            let older = said(&message);
            assert!(older.contains("does not know --suggested"), "{older}");
        }
        let other = "field `job_resubmit.resize.jobs` is missing";
        assert_eq!(said(other), other);
    }
}
