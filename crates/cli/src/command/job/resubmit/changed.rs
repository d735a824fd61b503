//! `job resubmit --changed`: gets the definition of a job from the server, checks the files on this
//! machine, and submits the tasks that are not done.

use hq_core::range::{IdArray, IdRange};
use hq_core::template::SubmitSpec;
use hq_core::words::count;
use hq_protocol::client::{self, resubmitted_job::Result as Row};

use super::older;
use crate::client::{Client, JobList};
use crate::command::Context;
use crate::command::missing::Missing;
use crate::error::{Caused as _, CliError, CliResult, exit};
use crate::output::{ChangedView, view};
use crate::parse::selector::Selector;
use crate::submit::skip::{Changed, changed};

/// How many successive resubmits of a job are searched for an unfinished one.
const SUCCESSORS_MAX: usize = 64;

/// A job with the tasks that run again, or why they cannot be determined.
type Decided = (u32, Result<Changed, String>);

/// Submits each job again, without the tasks that are already done.
pub(super) async fn resubmit(
    jobs: &Selector,
    client: &mut Client,
) -> CliResult<client::Resubmitted> {
    let (decided, not_found) = decide(jobs, client).await?;
    let mut results = client::Resubmitted {
        jobs: Vec::new(),
        not_found,
    };
    for (job, found) in decided {
        let row = |result| client::ResubmittedJob {
            job,
            result: Some(result),
            ..client::ResubmittedJob::default()
        };
        let found = match found {
            Ok(found) => found,
            Err(why) => {
                results.jobs.push(row(Row::Refused(why)));
                continue;
            }
        };
        tracing::info!("Job {job}: {}", found.skipped);
        if found.skipped.runs.is_empty() {
            results.jobs.push(row(Row::Nothing(client::Empty {})));
            continue;
        }
        let chosen = client::ChosenTasks {
            job,
            positions: found.positions.iter().map(Into::into).collect(),
        };
        let request = client::Resubmit {
            chosen: Some(chosen),
            ..client::Resubmit::default()
        };
        let resubmitted = client.ask(request).await.map_err(too_old)?;
        // The job may have been forgotten meanwhile.
        if resubmitted.jobs.is_empty() {
            let gone = "it no longer exists".to_owned();
            results.jobs.push(row(Row::Refused(gone)));
        }
        results.jobs.extend(resubmitted.jobs);
    }
    Ok(results)
}

/// Shows what [`resubmit`] would do.
pub(super) async fn show(jobs: &Selector, context: &mut Context) -> CliResult<()> {
    let mut client = context.connect().await?;
    let (decided, not_found) = decide(jobs, &mut client).await?;
    let missing = Missing::of(not_found.as_ref());
    missing.report_not_found("Job");
    let mut has_failed = !missing.is_empty();
    let mut views = Vec::new();
    for (job, found) in decided {
        match found {
            Ok(Changed { skipped, .. }) => views.push(ChangedView { job, skipped }),
            Err(why) => {
                has_failed = true;
                tracing::error!("Job {job} cannot be resubmitted: {why}");
            }
        }
    }
    context.show(&views)?;
    if has_failed {
        return Err(CliError::AlreadyReported(exit::FAILURE));
    }
    Ok(())
}

/// Determines which tasks of each job run again, and which jobs do not exist.
async fn decide(
    jobs: &Selector,
    client: &mut Client,
) -> CliResult<(Vec<Decided>, Option<hq_protocol::common::IdArray>)> {
    // Jobs are handled one at a time, because the details of a graph are as large as its
    // definition.
    let found = client.ask(JobList(jobs)).await?.jobs;
    if found.len() > 1 {
        let count = found.len();
        return Err(
            CliError::new(format!("--changed takes one job, found {count}"))
                .with_help("a job and its resubmissions write the same files: name one of them"),
        );
    }
    let not_found = match jobs {
        Selector::Ids(ids) => {
            let is_found = |id: u32| found.iter().any(|job| job.id == id);
            let ids = ids.ranges().iter().flat_map(IdRange::iter);
            let missing: Vec<IdRange> = ids
                .filter(|id| !is_found(*id))
                .map(IdRange::single)
                .collect();
            let missing = IdArray::new(missing).unwrap_or_default();
            (!missing.is_empty()).then(|| (&missing).into())
        }
        Selector::Last | Selector::All => None,
    };
    let mut decided = Vec::new();
    for summary in &found {
        // If another job still writes the files, two tasks would write the same files at the same
        // time.
        if let Some(why) = still_writes(summary, client).await? {
            decided.push((summary.id, Err(why)));
            continue;
        }
        let specs = specs(summary.id, client).await?;
        // This blocks on file systems, as a submit with --skip-done does.
        let found = changed(&specs).map_err(|error| error.text().unwrap_or_default());
        decided.push((summary.id, found));
    }
    Ok((decided, not_found))
}

/// Returns why the files of a job may still change: the job or its last resubmit has unfinished
/// tasks.
async fn still_writes(
    summary: &client::JobSummary,
    client: &mut Client,
) -> CliResult<Option<String>> {
    let unfinished = view::totals(summary).unfinished();
    if unfinished > 0 {
        return Ok(Some(format!(
            "it has not ended: {unfinished} of its tasks may still write files that others read. Wait with `hq job wait {}`",
            summary.id
        )));
    }
    let mut next = summary.resubmitted_as;
    for _ in 0..SUCCESSORS_MAX {
        let Some(id) = next else { break };
        // A job can only be forgotten after it has ended.
        let Some(job) = client.job(&Selector::one(id)).await? else {
            break;
        };
        let unfinished = view::totals(&job).unfinished();
        if unfinished > 0 {
            return Ok(Some(format!(
                "it was already resubmitted as job {id}: {} not ended and may still write the same files. Wait with `hq job wait {id}`",
                match unfinished {
                    1 => "1 task has".to_owned(),
                    more => format!("{} have", count(more, "task")),
                }
            )));
        }
        next = job.resubmitted_as;
    }
    Ok(None)
}

/// Returns the full definition of a job.
async fn specs(job: u32, client: &mut Client) -> CliResult<Vec<SubmitSpec>> {
    let request = client::Resubmit {
        show: Some(job),
        ..client::Resubmit::default()
    };
    let shown = client.ask(request).await.map_err(too_old)?;
    let Some(row) = shown.jobs.into_iter().next() else {
        return Err(CliError::new(format!("Job {job} no longer exists")));
    };
    let specs = row.submits.into_iter().map(SubmitSpec::try_from);
    specs
        .collect::<Result<_, _>>()
        .caused(format!("Cannot read the submits of job {job}"))
}

fn too_old(error: CliError) -> CliError {
    older(
        error,
        "--changed",
        "repeat the job's submits with --skip-done, or start a server of this release",
    )
}
