//! `job resubmit`.

use hq_core::range::{IdArray, IdRange};
use hq_protocol::client::{self, resubmitted_job::Result as Row};

use super::suggest::Groups;
use crate::args::job::ResubmitArgs;
use crate::client::Client;
use crate::command::missing::Missing;
use crate::command::{Context, follow};
use crate::error::{CliError, CliResult, exit};
use crate::output::ResubmittedView;
use crate::parse::selector::Selector;

/// Submits jobs again. Those that cannot be submitted are reported, and show in the exit code.
pub(in crate::command) async fn resubmit(
    args: ResubmitArgs,
    context: &mut Context,
) -> CliResult<()> {
    let is_all = args.selector == Selector::All;
    let states = args.filter.unwrap_or_default();
    let request = client::Resubmit {
        jobs: Some(args.selector.to_message()),
        states: states
            .into_iter()
            .map(|state| client::TaskState::from(state).into())
            .collect(),
        resize: None,
    };
    let mut client = context.connect().await?;
    let client::Resubmitted {
        jobs: results,
        not_found,
    } = if args.suggested {
        resubmit_suggested(request, &mut client).await?
    } else {
        client.resubmit(request).await?
    };
    let missing = Missing::of(not_found.as_ref());
    let mut jobs = Vec::new();
    let mut has_failed = !missing.is_empty();
    for client::ResubmittedJob {
        job,
        result,
        task_count,
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
            // Of all jobs some will have nothing to do.
            Some(Row::Nothing(_)) if is_all => continue,
            Some(Row::Nothing(_)) => "no task is in the selected states".to_owned(),
            Some(Row::Refused(why)) => why,
            None => "the server did not say why".to_owned(),
        };
        has_failed = true;
        tracing::error!("Resubmitting job {job} failed; {problem}");
    }
    missing.tell(
        |job| format!("Resubmitting job {job} failed; job not found"),
        |jobs| format!("Resubmitting jobs {jobs} failed; jobs not found"),
    );
    if jobs.is_empty() && !has_failed {
        tracing::info!("There is nothing to resubmit");
    }
    context.output.jobs_resubmitted(&mut context.out, &jobs)?;
    context.flush()?;
    let new_jobs = jobs.iter().map(|job| IdRange::single(job.new_job));
    if let Ok(new_jobs) = IdArray::new(new_jobs.collect())
        && !jobs.is_empty()
    {
        let new_jobs = Selector::Ids(new_jobs);
        follow::stay(&mut client, new_jobs, args.follow, context, None).await?;
    }
    if has_failed {
        return Err(CliError::Told(exit::FAILURE));
    }
    Ok(())
}

/// Submits each job with what would have fitted its tasks.
async fn resubmit_suggested(
    request: client::Resubmit,
    client: &mut Client,
) -> CliResult<client::Resubmitted> {
    let infos = client
        .job_infos(request.jobs.clone().unwrap_or_default())
        .await?;
    let mut results = client::Resubmitted {
        jobs: Vec::new(),
        not_found: infos.not_found,
    };
    for job in infos.jobs.iter().filter_map(|job| job.summary.as_ref()) {
        let groups = Groups::read(client, job.id, &[client::TaskState::Finished]).await?;
        let known = groups.unwrap_or_default().into_new_requests();
        if known.is_empty() {
            let why = "none of its tasks that could get another request has finished, so nothing is known";
            results.jobs.push(client::ResubmittedJob {
                job: job.id,
                result: Some(Row::Refused(why.to_owned())),
                task_count: 0,
            });
            continue;
        }
        for (suggestion, _) in &known {
            let options = suggestion.options().join(" ");
            tracing::info!("Job {}, {}: {options}", job.id, suggestion.title());
        }
        let resize = client::Resize {
            jobs: Some(Selector::Ids(IdArray::single(job.id)).to_message()),
            requests: known.into_iter().map(|(_, request)| request).collect(),
        };
        let resized = client::Resubmit {
            jobs: None,
            resize: Some(resize),
            ..request.clone()
        };
        results.jobs.extend(client.resubmit(resized).await?.jobs);
    }
    Ok(results)
}
