//! `hq task …`.

use std::collections::BTreeSet;

use hq_core::range::IdArray;
use hq_protocol::client::{self, explain, task_page};

use super::Context;
use super::missing::Missing;
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
        let mut missing = Missing::default();
        loop {
            let page = client.task_page(request.clone()).await?;
            missing.add(page.not_found.as_ref());
            sink.tasks(&page)?;
            let Some(cursor) = page.next_cursor else {
                break;
            };
            request.cursor = cursor;
        }
        warn_about_tasks(&missing, job.id);
    }
    if sink.finish()? {
        context.flush()?;
        tracing::info!("An error message was truncated. Use -v to display the full error.");
    }
    Ok(())
}

fn warn_about_missing(ids: &IdArray, jobs: &[client::JobSummary]) {
    let found: BTreeSet<u32> = jobs.iter().map(|job| job.id).collect();
    let (_, missing) = ids.split(|span| found.range(span).copied());
    let lines = Missing::of(Some(&array_to_message(&missing))).lines(
        |job| format!("Job {job} not found"),
        |jobs| format!("Jobs {jobs} not found"),
    );
    for line in lines {
        tracing::warn!("{line}");
    }
}

/// Tells which tasks a job does not have.
pub(super) fn warn_about_tasks(missing: &Missing, job: u32) {
    let lines = missing.lines(
        |task| format!("Task {task} of job {job} not found"),
        |tasks| format!("Tasks {tasks} of job {job} not found"),
    );
    for line in lines {
        tracing::warn!("{line}");
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
    let (mut missing, mut missing_job) = (Missing::default(), Missing::default());
    loop {
        let page = client.task_page(request.clone()).await?;
        if !page.job_found {
            tracing::error!("Cannot find job {name}");
            missing_job = Missing::one();
            break;
        }
        missing.add(page.not_found.as_ref());
        sink.tasks(&page)?;
        let Some(cursor) = page.next_cursor else {
            break;
        };
        request.cursor = cursor;
    }
    let lines = missing.lines(
        |task| format!("Task {task} not found"),
        |tasks| format!("Tasks {tasks} not found"),
    );
    for line in lines {
        tracing::warn!("{line}");
    }
    sink.finish()?;
    missing_job.end(context)
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
    let is_verbose = args.verbose;
    let output = &context.output;
    output.explanation(&mut context.out, &explanation, is_verbose)?;
    context.flush()?;
    if is_verbose && explanation.waiting_dep_count > 0 {
        let (job, task) = (explanation.job, explanation.task);
        tracing::info!("`hq task info {job} {task}` tells what it depends on");
    }
    if is_verbose && explanation.workers.is_empty() {
        tracing::info!("No worker is connected; `hq worker start` starts one");
    }
    Ok(())
}
