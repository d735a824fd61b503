//! `hq output-log …`: reads a stream directory without a server.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use hq_core::range::IdArray;
use hq_stream::{Channel, Chunk, Index, OpenError, Stream, StreamDir};
use serde_json::json;

use crate::args::job::StreamArg;
use crate::args::output_log::{ExportArgs, LogCatArgs, OutputLogArgs, OutputLogCommand, ShowArgs};
use crate::command::Context;
use crate::command::job::{copy_stream, read_chunk};
use crate::error::{Caused as _, CliError, CliResult};
use crate::output::OutputLogView;
use crate::output::console::{Shown as _, write_prefix};
use crate::output::format::joined_ids;
use crate::parse::selector::JobTasks;

/// Runs `hq output-log`.
pub(crate) fn run(args: &OutputLogArgs, context: &mut Context) -> CliResult<()> {
    let dir = StreamDir::open(&args.path, args.server_uid.as_deref());
    let mut dir = dir.map_err(|error| open_error(&error, &args.path))?;
    let mut index = Index::default();
    let job = match &args.command {
        OutputLogCommand::Summary | OutputLogCommand::Jobs => OutputScope::Nothing,
        OutputLogCommand::Show(show) => show.job.map_or(OutputScope::All, OutputScope::Job),
        OutputLogCommand::Cat(cat) => OutputScope::Job(cat.target.job),
        OutputLogCommand::Export(export) => OutputScope::Job(export.target.job),
    };
    dir.update(&mut index, |id| job.includes(id))
        .caused(format!("Cannot read {}", args.path.display()))?;
    let damaged = dir.damaged_bytes();
    if damaged > 0 {
        tracing::warn!("{damaged} damaged bytes were skipped; their output is missing");
    }
    let log = Log { dir, index };
    match &args.command {
        OutputLogCommand::Summary => {
            let mut summary = log.index.summary();
            summary.files = log.dir.file_count();
            let path = args.path.display().to_string();
            let (path, summary) = (&*path, &summary);
            return context.show(&OutputLogView { path, summary });
        }
        OutputLogCommand::Jobs => {
            for job in log.index.jobs() {
                writeln!(context.out, "{job}")?;
            }
        }
        OutputLogCommand::Show(show) => log.show(show, context)?,
        OutputLogCommand::Cat(cat) => log.cat(cat, context)?,
        OutputLogCommand::Export(export) => log.export(export, context)?,
    }
    context.flush()
}

/// A job, a task and a channel.
type Writer = (u32, u32, usize);

/// The maximum length in bytes of an incomplete line that is held back. Tasks may write lines of
/// gigabytes.
const LINE_MAX: usize = 1 << 20;

/// The jobs whose output is read.
#[derive(Clone, Copy)]
enum OutputScope {
    Nothing,
    Job(u32),
    All,
}

impl OutputScope {
    fn includes(self, job: u32) -> bool {
        match self {
            Self::Nothing => false,
            Self::Job(wanted) => job == wanted,
            Self::All => true,
        }
    }
}

fn open_error(error: &OpenError, dir: &Path) -> CliError {
    let help = "`hq submit --stream DIR -- PROGRAM` writes such a directory; `hq job cat JOB stdout` prints the output of other jobs";
    let text = match error {
        OpenError::SeveralServers(uids) => format!(
            "{error}\n{}\nUse --server-uid=... to specify server uid",
            uids.join("\n")
        ),
        OpenError::NoFiles if !dir.exists() => {
            let help = format!("the directory `{}` does not exist", dir.display());
            return CliError::refused(&error.to_string()).with_help(help);
        }
        OpenError::NoFiles => return CliError::refused(&error.to_string()).with_help(help),
        OpenError::Io { path, source } => {
            return CliError::caused(format!("Cannot read {}", path.display()), source);
        }
    };
    CliError::refused(&text)
}

fn no_job(job: u32) -> CliError {
    CliError::refused(&format!("Job {job} not found"))
        .with_help("`hq output-log DIR jobs` lists the jobs that wrote there")
}

struct Log {
    dir: StreamDir,
    index: Index,
}

impl Log {
    /// Returns the selected tasks of a job, in the selected order.
    fn tasks(
        &self,
        target: &JobTasks<u32>,
        apart: Option<&IdArray>,
    ) -> CliResult<Vec<(u32, &Stream)>> {
        let (job, ids) = (target.job, target.tasks(apart)?);
        let tasks = self.index.tasks(job);
        if tasks.is_empty() {
            return Err(no_job(job));
        }
        let Some(ids) = ids else {
            return Ok(tasks.into_iter().collect());
        };
        let find = |id| match tasks.get(&id) {
            Some(stream) => Ok((id, *stream)),
            None => Err(
                CliError::refused(&format!("Task {id} not found")).with_help(format!(
                    "job {job} has the output of these tasks: {}",
                    joined_ids(tasks.keys().copied())
                )),
            ),
        };
        ids.iter().map(find).collect()
    }

    fn cat(&self, args: &LogCatArgs, context: &mut Context) -> CliResult<()> {
        let tasks = self.tasks(&args.target, args.task.as_ref())?;
        let unfinished = tasks.iter().find(|(_, stream)| !stream.is_finished());
        if let Some((id, _)) = unfinished.filter(|_| !args.allow_unfinished) {
            let text = format!("Stream for task {id} is not finished");
            return Err(CliError::refused(&text));
        }
        for (_, stream) in tasks {
            copy_stream(&self.dir, stream, args.channel.channel(), &mut context.out)?;
        }
        Ok(())
    }

    fn export(&self, args: &ExportArgs, context: &mut Context) -> CliResult<()> {
        let mut separator = "[";
        for (id, stream) in self.tasks(&args.target, args.task.as_ref())? {
            let mut bytes = Vec::new();
            for chunk in chunks(stream, Some(Channel::Stdout)) {
                read_chunk(&self.dir, chunk, &mut bytes)?;
            }
            let task = json!({
                "finished": stream.is_finished(),
                "id": id,
                "stdout": String::from_utf8_lossy(&bytes),
            });
            write!(context.out, "{separator}\n  {task}")?;
            separator = ",";
        }
        // The list is not empty, because no tasks would have been an error.
        writeln!(context.out, "\n]")?;
        Ok(())
    }

    fn show(&self, args: &ShowArgs, context: &mut Context) -> CliResult<()> {
        if let Some(job) = args.job.filter(|job| self.index.tasks(*job).is_empty()) {
            return Err(no_job(job));
        }
        let only = args.channel.map(StreamArg::channel);
        let mut found: Vec<(u32, u32, &Chunk)> = Vec::new();
        let (mut job_width, mut task_width) = (0, 0);
        for ((job, task), stream) in self.index.current() {
            if args.job.is_some_and(|wanted| wanted != job) {
                continue;
            }
            job_width = job_width.max(job.to_string().len());
            task_width = task_width.max(task.to_string().len());
            found.extend(chunks(stream, only).map(|chunk| (job, task, chunk)));
        }
        // A stable sort keeps the order of chunks that a task wrote at the same time.
        found.sort_by_key(|(_, _, chunk)| chunk.unix_ns);
        // The remaining chunks of each output. The last chunk is printed even if it does not end
        // with a newline.
        let mut left: BTreeMap<Writer, usize> = BTreeMap::new();
        for (job, task, chunk) in &found {
            *left
                .entry((*job, *task, chunk.channel.index()))
                .or_default() += 1;
        }
        let mut unended: BTreeMap<Writer, Vec<u8>> = BTreeMap::new();
        for (job, task, chunk) in found {
            let number = chunk.channel.index();
            let writer = (job, task, number);
            let mut bytes = unended.remove(&writer).unwrap_or_default();
            read_chunk(&self.dir, chunk, &mut bytes)?;
            let left = left.get_mut(&writer).map_or(0, |left| {
                *left -= 1;
                *left
            });
            if left > 0 && bytes.len() < LINE_MAX {
                let end = bytes
                    .iter()
                    .rposition(|byte| *byte == b'\n')
                    .map_or(0, |at| at + 1);
                unended.insert(writer, bytes.split_off(end));
            }
            if bytes.is_empty() {
                continue;
            }
            let prefix = format!("{job:0job_width$}.{task:0task_width$}:{number}>");
            let out = &mut context.out;
            write_prefix(out, context.colors, task, &prefix)?;
            out.lines_of_task(&bytes)?;
            if bytes.last() != Some(&b'\n') {
                writeln!(out)?;
            }
        }
        Ok(())
    }
}

fn chunks(stream: &Stream, only: Option<Channel>) -> impl Iterator<Item = &Chunk> {
    let wanted = move |chunk: &&Chunk| only.is_none_or(|channel| chunk.channel == channel);
    stream.chunks.iter().filter(wanted)
}
