//! `hq task …`.

use hq_core::range::IdArray;
use hq_protocol::client::{self, explain, task_page};

use super::Context;
use crate::args::task::{ExplainArgs, InfoArgs, ListArgs, states_to_message};
use crate::error::CliResult;
use crate::output::TaskListView;
use crate::parse::selector::{Selector, SingleSelector, array_to_message};

/// `task list`. Tasks are printed page by page.
pub(super) async fn list(args: ListArgs, context: &mut Context) -> CliResult<()> {
    let mut client = context.connect().await?;
    let jobs = client.job_list(args.selector.to_message()).await?;
    if let Selector::Ids(ids) = &args.selector {
        warn_about_missing(ids, &jobs);
    }
    let view = TaskListView {
        is_single_job: jobs.len() == 1,
        is_verbose: args.verbose,
    };
    let mut sink = context.output.task_list(&mut context.out, view);
    for job in &jobs {
        sink.job(job.id)?;
        let mut request = client::TaskPage {
            job: Some(task_page::Job::Id(job.id)),
            tasks: args.tasks.as_ref().map(array_to_message),
            states: states_to_message(args.task_status.as_deref()),
            ..client::TaskPage::default()
        };
        loop {
            let page = client.task_page(request.clone()).await?;
            for task in &page.not_found {
                tracing::warn!("Task {task} of job {} not found", job.id);
            }
            sink.tasks(&page)?;
            let Some(cursor) = page.next_cursor else {
                break;
            };
            request.cursor = cursor;
        }
    }
    if sink.finish()? {
        context.flush()?;
        tracing::info!("An error message was truncated. Use -v to display the full error.");
    }
    Ok(())
}

fn warn_about_missing(ids: &IdArray, jobs: &[client::JobSummary]) {
    let found: std::collections::BTreeSet<u32> = jobs.iter().map(|job| job.id).collect();
    for id in ids.iter().filter(|id| !found.contains(id)) {
        tracing::warn!("Job {id} not found");
    }
}

/// `task info`.
pub(super) async fn info(args: InfoArgs, context: &mut Context) -> CliResult<()> {
    let mut client = context.connect().await?;
    let (job, name) = match args.job {
        SingleSelector::Last => (task_page::Job::Last(client::Empty {}), "last".to_owned()),
        SingleSelector::Id(id) => (task_page::Job::Id(id), id.to_string()),
    };
    let mut request = client::TaskPage {
        job: Some(job),
        tasks: Some(array_to_message(&args.tasks)),
        with_definition: true,
        ..client::TaskPage::default()
    };
    let mut sink = context.output.task_infos(&mut context.out, args.verbose);
    loop {
        let page = client.task_page(request.clone()).await?;
        if !page.job_found {
            tracing::error!("Cannot find job {name}");
            break;
        }
        for task in &page.not_found {
            tracing::warn!("Task {task} not found");
        }
        sink.tasks(&page)?;
        let Some(cursor) = page.next_cursor else {
            break;
        };
        request.cursor = cursor;
    }
    Ok(sink.finish()?)
}

/// `task explain`.
pub(super) async fn explain(args: ExplainArgs, context: &mut Context) -> CliResult<()> {
    let job = match args.job {
        SingleSelector::Last => explain::Job::Last(client::Empty {}),
        SingleSelector::Id(id) => explain::Job::Id(id),
    };
    let request = client::Explain {
        job: Some(job),
        task: args.task,
    };
    let explanation = context.connect().await?.explain(request).await?;
    context.output.explanation(&mut context.out, &explanation)?;
    context.flush()?;
    if explanation.waiting_dep_count > 0 {
        let (job, task) = (explanation.job, explanation.task);
        tracing::info!("`hq task info {job} {task}` tells what it depends on");
    }
    if explanation.workers.is_empty() {
        tracing::info!("No worker is connected; `hq worker start` starts one");
    }
    Ok(())
}
