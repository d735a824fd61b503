//! `hq job cat`: prints the unchanged output of tasks, from their files or from their job's stream.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use hq_core::range::IdArray;
use hq_protocol::client;
use hq_protocol::common::stdio::Kind;
use hq_stream::{Channel, Chunk, Index, OpenError, Stream, StreamDir};

use crate::args::global::OutputMode;
use crate::args::job::{CatArgs, StreamArg};
use crate::args::task::states_to_message;
use crate::client::{Client, JobList};
use crate::command::missing::{JOBS, Missing};
use crate::command::task::{end_without, warn_about_tasks};
use crate::command::{Context, all_tasks};
use crate::error::{Caused as _, CliError, CliResult};
use crate::output::console::{Console, Shown as _};

/// Runs `hq job cat`.
pub(crate) async fn cat(args: CatArgs, context: &mut Context) -> CliResult<()> {
    if context.mode() == OutputMode::Json {
        return Err(CliError::new("JSON output mode doesn't support job output"));
    }
    let tasks = args.selector.tasks(args.tasks.as_ref())?;
    let mut client = context.connect().await?;
    let jobs = client.ask(JobList(&args.selector.job)).await?.jobs;
    let missing = Missing::among(&jobs, &args.selector.job);
    missing.report("Job", |jobs, ids| {
        let was = if jobs == "Job" { "was" } else { "were" };
        format!("{jobs} {ids} {was} not found")
    });
    if jobs.is_empty() && missing.is_empty() {
        tracing::error!("No jobs were found");
    }
    let mut missing_tasks = (Missing::default(), 0);
    let mut streams = Streams {
        server_uid: client.server_uid().map(str::to_owned),
        jobs: jobs.iter().map(|job| job.id).collect(),
        found: BTreeMap::new(),
    };
    for job in jobs {
        let wanted = tasks.as_ref();
        let out = &mut context.out;
        let missing = cat_job(job.id, wanted, &args, &mut client, &mut streams, out).await?;
        if !missing.is_empty() {
            missing_tasks = (missing, job.id);
        }
    }
    missing.end(JOBS, context)?;
    end_without(missing_tasks, &mut client, context).await
}

/// Prints the tasks of one job. Returns some of the task ids that the job does not have.
async fn cat_job(
    job: u32,
    tasks: Option<&IdArray>,
    args: &CatArgs,
    client: &mut Client,
    streams: &mut Streams,
    out: &mut Console,
) -> CliResult<Missing> {
    let mut missing = Missing::default();
    let mut next = Some(client::TaskPage {
        tasks: tasks.map(Into::into),
        states: states_to_message(args.filter.as_deref()),
        ..all_tasks(job)
    });
    let mut is_empty = true;
    while let Some(page) = client.next_page(&mut next).await? {
        if !page.job_found {
            // The job was forgotten after it was listed.
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
            cat_task((page.job, task), args.stream, streams, out)?;
        }
    }
    if is_empty {
        tracing::warn!("No tasks were selected for job {job}, there is nothing to print");
    }
    Ok(missing)
}

fn cat_task(
    (job, task): (u32, &client::TaskInfo),
    stream: StreamArg,
    streams: &mut Streams,
    out: &mut Console,
) -> CliResult<()> {
    let stdio = task.paths.as_ref().and_then(|paths| match stream {
        StreamArg::Stdout => paths.stdout.as_ref(),
        StreamArg::Stderr => paths.stderr.as_ref(),
    });
    let path = stdio.map_or(Path::new(""), |stdio| {
        Path::new(OsStr::from_bytes(&stdio.path))
    });
    match stdio.map(|stdio| stdio.kind()) {
        Some(Kind::File) => match hq_private::open_output(path) {
            Ok(mut file) => copy(&mut file, path, out),
            Err(error) => {
                tracing::warn!("File at `{}` cannot be opened: {error}", path.display());
                Ok(())
            }
        },
        // Servers of earlier releases do not send the directory.
        Some(Kind::Stream) if !path.as_os_str().is_empty() => {
            streams.cat(path, (job, task), stream.channel(), out)
        }
        Some(Kind::Stream | Kind::None) | None => {
            let id = task.id;
            tracing::warn!("Task {id} has no `{stream}` stream associated with it");
            // Only a task that has started has paths.
            let is_unstarted = task.paths.is_none() && io::stderr().is_terminal();
            if is_unstarted && task.state() == client::TaskState::Waiting {
                tracing::warn!("It has not started: `hq task explain {job}.{id}` says why");
            } else if is_unstarted && task.state() == client::TaskState::Canceled {
                tracing::warn!("It was canceled before it started, so it wrote nothing");
            }
            Ok(())
        }
    }
}

/// The stream directories of the jobs that are printed. Each is searched only once.
struct Streams {
    server_uid: Option<String>,
    /// The jobs whose output is printed.
    jobs: BTreeSet<u32>,
    /// The opened streams. `None` for one that cannot be read, which has been reported.
    found: BTreeMap<PathBuf, Option<(StreamDir, Index)>>,
}

impl Streams {
    fn cat(
        &mut self,
        path: &Path,
        (job, task): (u32, &client::TaskInfo),
        channel: Channel,
        out: &mut Console,
    ) -> CliResult<()> {
        if !self.found.contains_key(path) {
            let found = self.open(path);
            self.found.insert(path.to_owned(), found);
        }
        let Some(Some((dir, index))) = self.found.get(path) else {
            return Ok(());
        };
        let Some(stream) = index.stream(job, task.id) else {
            let id = task.id;
            tracing::warn!("`{}` has no output of task {id}", path.display());
            return Ok(());
        };
        copy_stream(dir, stream, channel, out)
    }

    fn open(&self, path: &Path) -> Option<(StreamDir, Index)> {
        let mut index = Index::default();
        let opened = StreamDir::open(path, self.server_uid.as_deref()).and_then(|mut dir| {
            let updated = dir.update(&mut index, |job| self.jobs.contains(&job));
            let path = path.to_owned();
            updated.map_err(|source| OpenError::Io { path, source })?;
            Ok(dir)
        });
        let shown = path.display();
        match opened {
            Ok(dir) => {
                let damaged = dir.damaged_bytes();
                if damaged > 0 {
                    tracing::warn!("{damaged} damaged bytes in `{shown}` were left out");
                }
                Some((dir, index))
            }
            Err(OpenError::NoFiles) => {
                tracing::warn!(
                    "The output was streamed into `{shown}`, where this machine finds nothing of this server; \
                     `hq job tail` reads it on the nodes of the tasks"
                );
                None
            }
            Err(OpenError::Io { source, .. }) => {
                tracing::warn!("The stream in `{shown}` cannot be read: {source}");
                None
            }
            Err(error @ OpenError::SeveralServers(_)) => {
                tracing::warn!("The stream in `{shown}` cannot be read: {error}");
                None
            }
        }
    }
}

/// Reads a piece of output, and adds it to `bytes`.
pub(crate) fn read_chunk(dir: &StreamDir, chunk: &Chunk, bytes: &mut Vec<u8>) -> CliResult<()> {
    let is_whole = dir.read(chunk, bytes).caused("Cannot read a stream file")?;
    if !is_whole {
        tracing::warn!("{} damaged bytes of output were left out", chunk.length);
    }
    Ok(())
}

/// Prints one channel of a task from a stream.
pub(crate) fn copy_stream(
    dir: &StreamDir,
    stream: &Stream,
    channel: Channel,
    out: &mut Console,
) -> CliResult<()> {
    let mut bytes = Vec::new();
    let chunks = stream.chunks.iter();
    for chunk in chunks.filter(|chunk| chunk.channel == channel) {
        bytes.clear();
        read_chunk(dir, chunk, &mut bytes)?;
        out.as_is().write_all(&bytes)?;
    }
    Ok(())
}

/// Copies a file. Unlike [`io::copy`], it distinguishes read errors from write errors.
fn copy(file: &mut File, path: &Path, out: &mut Console) -> CliResult<()> {
    use io::Read as _;
    let mut buffer = vec![0; 64 * 1024];
    loop {
        match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(length) => out.as_is().write_all(&buffer[..length])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                tracing::warn!("File at `{}` cannot be read: {error}", path.display());
                return Ok(());
            }
        }
    }
}
