//! `hq job cat`: the raw bytes of what tasks wrote.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use hq_core::range::IdArray;
use hq_protocol::client::{self, task_page};
use hq_protocol::common::stdio::Kind;

use crate::args::global::OutputMode;
use crate::args::job::{CatArgs, StreamArg};
use crate::args::task::states_to_message;
use crate::client::Client;
use crate::command::Context;
use crate::command::missing::{JOBS, Missing};
use crate::command::task::warn_about_tasks;
use crate::error::{CliError, CliResult};
use crate::output::console::Console;
use crate::output::view::stdio_kind;
use crate::parse::selector::{Selector, array_to_message};

/// `job cat`.
pub(crate) async fn cat(args: CatArgs, context: &mut Context) -> CliResult<()> {
    if context.mode() == OutputMode::Json {
        return Err(CliError::new("JSON output mode doesn't support job output"));
    }
    let tasks = args.selector.tasks(args.tasks.as_ref())?;
    let mut client = context.connect().await?;
    let jobs = client.job_list(args.selector.job.to_message()).await?;
    let missing = match &args.selector.job {
        Selector::Ids(ids) => {
            let found: BTreeSet<u32> = jobs.iter().map(|job| job.id).collect();
            let (_, missing) = ids.split(|span| found.range(span).copied());
            Missing::of(Some(&array_to_message(&missing)))
        }
        Selector::Last | Selector::All => Missing::default(),
    };
    missing.tell(
        |job| format!("Job {job} was not found"),
        |jobs| format!("Jobs {jobs} were not found"),
    );
    if jobs.is_empty() && missing.is_empty() {
        tracing::error!("No jobs were found");
    }
    let mut missing_tasks = Missing::default();
    for job in jobs {
        let missing = cat_job(job.id, tasks.as_ref(), &args, &mut client, &mut context.out).await?;
        if !missing.is_empty() {
            missing_tasks = missing;
        }
    }
    missing.end(JOBS, context)?;
    missing_tasks.end("hq task list JOB", context)
}

/// Prints the tasks of one job; returns some of those that it does not have.
async fn cat_job(
    job: u32,
    tasks: Option<&IdArray>,
    args: &CatArgs,
    client: &mut Client,
    out: &mut Console,
) -> CliResult<Missing> {
    let mut missing = Missing::default();
    let mut request = client::TaskPage {
        job: Some(task_page::Job::Id(job)),
        tasks: tasks.map(array_to_message),
        states: states_to_message(args.filter.as_deref()),
        ..client::TaskPage::default()
    };
    let mut is_empty = true;
    loop {
        let page = client.task_page(request.clone()).await?;
        if !page.job_found {
            // It was forgotten a moment ago.
            tracing::error!("Job {job} was not found");
            return Ok(missing);
        }
        let unknown = Missing::of(page.not_found.as_ref());
        warn_about_tasks(&unknown, job);
        if !unknown.is_empty() {
            missing = unknown;
        }
        for task in &page.tasks {
            is_empty = false;
            if args.print_task_header {
                writeln!(out, "# Job {}, task {}", page.job, task.id)?;
            }
            cat_task(task, args.stream, out)?;
        }
        match page.next_cursor {
            Some(cursor) => request.cursor = cursor,
            None if is_empty => {
                tracing::warn!(
                    "No tasks were selected for job {}, there is nothing to print",
                    page.job
                );
                return Ok(missing);
            }
            None => return Ok(missing),
        }
    }
}

fn cat_task(task: &client::TaskInfo, stream: StreamArg, out: &mut Console) -> CliResult<()> {
    let name = match stream {
        StreamArg::Stdout => "stdout",
        StreamArg::Stderr => "stderr",
    };
    let stdio = task.paths.as_ref().and_then(|paths| match stream {
        StreamArg::Stdout => paths.stdout.as_ref(),
        StreamArg::Stderr => paths.stderr.as_ref(),
    });
    let Some(stdio) = stdio.filter(|stdio| stdio_kind(stdio) == Kind::File) else {
        tracing::warn!("Task {} has no `{name}` stream associated with it", task.id);
        return Ok(());
    };
    let path = Path::new(OsStr::from_bytes(&stdio.path));
    match File::open(path) {
        Ok(mut file) => copy(&mut file, path, out),
        Err(error) => {
            tracing::warn!("File at `{}` cannot be opened: {error}", path.display());
            Ok(())
        }
    }
}

/// Copies a file; unlike [`io::copy`] it tells errors of the two sides apart.
fn copy(file: &mut File, path: &Path, out: &mut Console) -> CliResult<()> {
    use io::Read as _;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => out.write_all(&buffer[..length])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                tracing::warn!("File at `{}` cannot be read: {error}", path.display());
                return Ok(());
            }
        }
    }
}
