//! Resolves `--after` and `--after-each` to jobs, and to the task ids derived from them.

use std::io::IsTerminal as _;

use hq_core::id::JobId;
use hq_core::range::IdArray;
use hq_core::template::After;
use hq_protocol::client;

use crate::args::submit::SubmitArgs;
use crate::client::Client;
use crate::command::situation::is_unfinished;
use crate::error::{CliError, CliResult};
use crate::output::view;
use crate::parse::after::AfterArg;
use crate::parse::selector::{Selector, SingleSelector};
use crate::submit::skip::OuterDependencies;

/// Returns the conditions of a submit, and the ids of its tasks if its options name none.
pub(super) async fn resolve(
    args: &SubmitArgs,
    client: &mut Client,
) -> CliResult<(Vec<After>, Option<IdArray>)> {
    let mut after = Vec::new();
    for arg in &args.after {
        let condition = condition(*arg, false, client).await?;
        if !condition.is_any && std::io::stderr().is_terminal() {
            note_on_failed(condition.job, client).await?;
        }
        after.push(condition);
    }
    let Some(each) = args.after_each else {
        return Ok((after, None));
    };
    let each = condition(each, true, client).await?;
    after.push(each);
    let names_tasks = args.tasks.array.is_some()
        || args.tasks.each_line.is_some()
        || args.tasks.each_row.is_some()
        || args.tasks.from_json.is_some()
        || !args.tasks.param.is_empty();
    if names_tasks {
        return Ok((after, None));
    }
    let job = each.job.as_u32();
    match client.task_ids(job, &[]).await {
        // The error of `job task-ids` does not name the job.
        Err(error) if error.is_not_found() => Err(not_found(job)),
        ids => Ok((after, ids?)),
    }
}

/// Returns which of these jobs have not ended. They are queried before files are checked, so a job
/// that ends later counts as unfinished.
pub(super) async fn unended(after: &[After], client: &mut Client) -> CliResult<OuterDependencies> {
    let mut unended = OuterDependencies::default();
    for condition in after {
        let job = condition.job;
        if condition.is_each {
            let states = [client::TaskState::Waiting, client::TaskState::Running];
            let ids = client.task_ids(job.as_u32(), &states).await?;
            let mut tasks: Vec<u32> = ids.iter().flat_map(IdArray::iter).collect();
            tasks.sort_unstable();
            unended.each = Some((job, tasks));
        } else if unended.job.is_none() {
            let found = client.job(&Selector::one(job.as_u32())).await?;
            let is_unended = found.as_ref().is_none_or(is_unfinished);
            unended.job = is_unended.then_some(job);
        }
    }
    Ok(unended)
}

async fn condition(arg: AfterArg, is_each: bool, client: &mut Client) -> CliResult<After> {
    let job = match arg.job {
        SingleSelector::Id(id) => id,
        SingleSelector::Last => {
            let last = client.job(&Selector::Last).await?.map(|job| job.id);
            last.ok_or_else(|| CliError::new("No job to wait for: the last one is gone"))?
        }
    };
    Ok(After {
        job: JobId(job),
        is_each,
        is_any: arg.is_any,
    })
}

/// Warns that the new tasks are aborted immediately, because the earlier job did not finish.
async fn note_on_failed(id: JobId, client: &mut Client) -> CliResult<()> {
    let found = client.job(&Selector::one(id.as_u32())).await?;
    let ended = found.filter(|job| !is_unfinished(job));
    if ended.is_some_and(|job| view::totals(&job).finished < u64::from(job.task_count)) {
        tracing::warn!(
            "Not all tasks of job {id} finished, so the new tasks are aborted at once; with `--after {id}:any` they run"
        );
    }
    Ok(())
}

fn not_found(job: u32) -> CliError {
    CliError::new(format!("Job {job} not found."))
}
