//! `hq job cat`: the raw bytes of what tasks wrote.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use hq_protocol::client::{self, task_page};
use hq_protocol::common::stdio::Kind;

use crate::args::global::OutputMode;
use crate::args::job::{CatArgs, StreamArg};
use crate::args::task::states_to_message;
use crate::client::Client;
use crate::command::Context;
use crate::error::{CliError, CliResult};
use crate::output::console::Console;
use crate::output::view::stdio_kind;
use crate::parse::selector::{Selector, array_to_message};

/// `job cat`.
pub(crate) async fn cat(args: CatArgs, context: &mut Context) -> CliResult<()> {
    if context.mode() == OutputMode::Json {
        return Err(CliError::new("JSON output mode doesn't support job output"));
    }
    let mut client = context.connect().await?;
    let jobs: Vec<task_page::Job> = match &args.selector {
        Selector::Last | Selector::All => vec![task_page::Job::Last(client::Empty {})],
        Selector::Ids(ids) => ids.iter().map(task_page::Job::Id).collect(),
    };
    for job in jobs {
        cat_job(job, &args, &mut client, &mut context.out).await?;
    }
    Ok(())
}

async fn cat_job(
    job: task_page::Job,
    args: &CatArgs,
    client: &mut Client,
    out: &mut Console,
) -> CliResult<()> {
    let mut request = client::TaskPage {
        job: Some(job),
        tasks: args.tasks.as_ref().map(array_to_message),
        states: states_to_message(args.task_status.as_deref()),
        ..client::TaskPage::default()
    };
    let mut is_empty = true;
    loop {
        let page = client.task_page(request.clone()).await?;
        if !page.job_found {
            match (job, page.job) {
                (task_page::Job::Last(_), 0) => tracing::error!("No jobs were found"),
                (task_page::Job::Last(_), id) | (task_page::Job::Id(id), _) => {
                    tracing::error!("Job {id} was not found");
                }
            }
            return Ok(());
        }
        for task in &page.not_found {
            tracing::warn!("Task {task} of job {} not found", page.job);
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
                return Ok(());
            }
            None => return Ok(()),
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
