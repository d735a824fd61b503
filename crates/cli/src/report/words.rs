//! Reads the parameters of failed tasks from a journal, and the last lines that they wrote. The
//! output must be on this machine, which is common because journals are often read where they were
//! written.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use hq_core::id::{InstanceId, JobId, TaskId};
use hq_core::limits::shortened;
use hq_core::placeholder::{PathPattern, PathPatterns, PathValues, join};
use hq_core::signature::last_words;
use hq_core::template::{ArrayIds, StdioSpec, SubmitBody, SubmitSpec, TaskTemplate};
use hq_protocol::Message as _;
use hq_protocol::client;
use hq_store::reader::run;
use hq_stream::{Channel, Key, OutputReader, ReadFrom, Source};

use super::Failures;
use crate::client::tail::LOCAL_LIMIT;
use crate::error::CliResult;
use crate::source::Ask as _;
use crate::source::journal::JournalFile;
use crate::text::clean;

/// The maximum number of failure groups whose output is read.
const READ_MAX: usize = 50;
/// The number of output lines that are searched for the last words.
const LINES: u32 = 30;
/// The maximum length of a last line, in bytes.
const SAID_MAX: usize = 200;
/// The time limit for all outputs, so that a hanging file system does not block the report.
const TIME_MAX: Duration = Duration::from_secs(5);

/// Adds the parameters and last words of one task to each failure group.
pub(super) async fn add(file: &mut JournalFile, failures: &mut [Failures]) -> CliResult<()> {
    let uid = file.ask_one(run::server_uid()).await?.unwrap_or_default();
    // Failures of the same job are often adjacent.
    let mut known: Option<(u32, Arc<Vec<SubmitSpec>>)> = None;
    let deadline = Instant::now() + TIME_MAX;
    for row in failures.iter_mut().take(READ_MAX) {
        let job = row.job;
        let specs = match known.take().filter(|(of, _)| *of == job) {
            Some((_, specs)) => specs,
            None => Arc::new(specs(file, job).await?),
        };
        let instance = file.ask_one(run::instance(job, row.task)).await?;
        let key = Key {
            job,
            task: row.task,
            instance: instance.unwrap_or(0),
        };
        known = Some((job, Arc::clone(&specs)));
        row.params = specs
            .iter()
            .find_map(|spec| params(spec, key.task))
            .unwrap_or_default();
        let uid = uid.clone();
        let read = move || specs.iter().find_map(|spec| said(spec, key, &uid));
        match by(deadline, read) {
            Some(said) => row.said = said,
            None => break,
        }
    }
    Ok(())
}

/// Reads on a separate thread with a deadline. Returns `None` if the deadline passed or no thread
/// could be started. A blocked thread is abandoned.
fn by<T: Send + 'static>(
    deadline: Instant,
    read: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (tx, rx) = channel();
    let thread = std::thread::Builder::new().name("words".into());
    // The receiver may have given up.
    thread.spawn(move || drop(tx.send(read()))).ok()?;
    rx.recv_timeout(deadline.saturating_duration_since(Instant::now()))
        .ok()
}

async fn specs(file: &mut JournalFile, job: u32) -> CliResult<Vec<SubmitSpec>> {
    let decode = |bytes: Vec<u8>| SubmitSpec::try_from(client::Submit::decode(&*bytes).ok()?).ok();
    let stored = file.ask(run::submits(job)).await?;
    Ok(stored.into_iter().flatten().filter_map(decode).collect())
}

/// Returns the names and values of the parameters of a task of this submit.
fn params(spec: &SubmitSpec, task: u32) -> Option<String> {
    let params = template(spec, task)?.params.as_deref()?;
    let values = params.values(TaskId(task)).into_iter();
    let pairs = values.map(|(name, value)| {
        let value = String::from_utf8_lossy(&value.into_vec()).into_owned();
        clean(&format!("{name}={value}"))
    });
    Some(pairs.collect::<Vec<_>>().join(", "))
}

/// Returns the last words of a task of this submit. `None` if the task belongs to another submit,
/// or if its output is not on this machine.
fn said(spec: &SubmitSpec, key: Key, uid: &str) -> Option<String> {
    let template = template(spec, key.task)?;
    let values = PathValues {
        job: JobId(key.job),
        task: TaskId(key.task),
        instance: InstanceId(key.instance),
        submit_dir: &spec.submit_dir,
        server_uid: uid,
        cwd: &[],
    };
    let paths = PathPatterns::new(template).render(&values);
    let stdios = [
        (paths.stderr, Channel::Stderr),
        (paths.stdout, Channel::Stdout),
    ];
    stdios.into_iter().find_map(|(stdio, channel)| {
        let source = match stdio {
            StdioSpec::None => return None,
            StdioSpec::File { path, .. } => Source::File(as_path(path.into())),
            StdioSpec::Stream => {
                let mut dir = Vec::new();
                PathPattern::parse(spec.stream_dir.as_ref()?).render(&values, &mut dir);
                Source::Stream {
                    dir: as_path(join(&spec.submit_dir, &dir)),
                    server_uid: uid.to_owned(),
                    key,
                    channel,
                }
            }
        };
        let part = OutputReader::new(source).read(ReadFrom::LastLines(LINES), LOCAL_LIMIT);
        let text = part.ok()?.bytes;
        last_words(&String::from_utf8_lossy(&text)).map(|line| shortened(&clean(line), SAID_MAX))
    })
}

fn template(spec: &SubmitSpec, task: u32) -> Option<&TaskTemplate> {
    match &spec.body {
        SubmitBody::Array(array) => {
            let is_here = match &array.ids {
                ArrayIds::Given(ids) => ids.position(task).is_some(),
                ArrayIds::Next(count) => task < *count,
            };
            is_here.then_some(&*array.template)
        }
        SubmitBody::Graph(graph) => {
            let found = graph.tasks.iter().find(|one| one.id == TaskId(task))?;
            graph
                .templates
                .get(found.template as usize)
                .map(|one| &**one)
        }
    }
}

fn as_path(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes))
}
