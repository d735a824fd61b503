//! Leaves finished tasks out of a submit (`--skip-done`) or a resubmit (`job resubmit --changed`).
//!
//! A task counts as finished if all its outputs exist, its worker stored a record next to the first
//! output, and a record created now would be equal ([`hq_core::done`]). Tasks that depend on a task
//! that runs also run. The same applies to tasks that wait for another job or for tasks of the open
//! job, which may still write their inputs. Several threads examine the files, because on a shared
//! file system most of the time is spent waiting.

use std::collections::HashMap;
use std::fmt;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use hq_core::done::{
    Content, Difference, KeptContents, RECORD_BYTES_MAX, Role, Stamp, Stamped, command_digest,
    difference, record, record_path, record_with_contents,
};
use hq_core::id::{JobId, TaskId};
use hq_core::placeholder::{FilePaths, PathPatterns};
use hq_core::range::{IdArray, IdRange};
use hq_core::template::{
    ArrayIds, ArraySpec, Entries, GraphSpec, SubmitBody, SubmitSpec, SubmitTarget, TaskTemplate,
};
use hq_core::words::part;

use super::files::{fleeting, paths_of};
use crate::error::{Caused as _, CliError, CliResult};
use crate::text::lossy;

/// The number of threads that examine files. A single file server hardly benefits from more.
const THREADS: usize = 16;

/// The number of tasks that a thread takes at a time.
const CHUNK: usize = 64;

/// Why a task runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum RunReason {
    /// The task has no declared outputs.
    NoOutputs,
    /// The task depends on a task that runs.
    After(TaskId),
    /// The task depends on a task that is already in the open job.
    AfterEarlier(TaskId),
    /// The task waits for an unfinished job, or for the task with the given id in that job.
    AfterJob(JobId, Option<TaskId>),
    /// An output is missing or unreadable.
    Output(String),
    /// An output belongs to another user, or a symbolic link of another user leads to it.
    Foreign(String),
    /// An input is missing or unreadable.
    Input(String),
    /// There is no record of a finished run.
    NoRecord(String),
    /// A placeholder makes the working directory differ each time.
    Fleeting(&'static str),
    /// The current record differs from the stored one.
    Changed(Difference),
}

impl fmt::Display for RunReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoOutputs => f.write_str("it has no outputs"),
            Self::After(task) => write!(f, "it depends on task {task}, which runs"),
            Self::AfterEarlier(task) => {
                write!(f, "it depends on task {task}, which the job has already")
            }
            Self::AfterJob(job, None) => write!(f, "it waits for job {job}"),
            Self::AfterJob(job, Some(task)) => write!(f, "it waits for task {task} of job {job}"),
            Self::Output(path) => write!(f, "output {path} is missing"),
            Self::Foreign(path) => write!(
                f,
                "output {path}, or a symbolic link on the way to it, belongs to another user"
            ),
            Self::Input(path) => write!(f, "input {path} is missing"),
            Self::NoRecord(path) => write!(f, "{path} records no finished run"),
            Self::Fleeting(name) => write!(f, "its working directory changes with {name}"),
            Self::Changed(Difference::Release) => {
                f.write_str("another release of hq wrote its record, in another format")
            }
            Self::Changed(Difference::Unreadable) => f.write_str("its record cannot be read"),
            Self::Changed(Difference::Command) => f.write_str("its command has changed"),
            Self::Changed(Difference::Cwd) => f.write_str("its working directory has changed"),
            Self::Changed(Difference::Input(path)) => write!(f, "input {path} has changed"),
            Self::Changed(Difference::Output(path)) => {
                write!(f, "output {path} has changed since the task finished")
            }
        }
    }
}

/// Unfinished dependencies outside the submit. Until they end, the tasks' inputs may change.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct OuterDependencies {
    /// The job that all tasks wait for.
    pub(crate) job: Option<JobId>,
    /// A job whose tasks are awaited by the tasks with the same ids, and the sorted ids of its
    /// unfinished tasks.
    pub(crate) each: Option<(JobId, Vec<u32>)>,
}

impl OuterDependencies {
    fn why(&self, task: TaskId) -> Option<RunReason> {
        let each = self.each.as_ref();
        let each = each.filter(|(_, tasks)| tasks.binary_search(&task.as_u32()).is_ok());
        let each = each.map(|(job, _)| RunReason::AfterJob(*job, Some(task)));
        each.or_else(|| self.job.map(|job| RunReason::AfterJob(job, None)))
    }
}

/// The finished tasks of a submit and the tasks to run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SkipPlan {
    /// The number of tasks that are done.
    pub(crate) left_out: usize,
    /// The tasks that run, with the reasons.
    pub(crate) runs: Vec<(u32, RunReason)>,
}

impl fmt::Display for SkipPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.left_out + self.runs.len();
        let part = part(self.left_out as u64, total as u64, "task");
        write!(f, "{part} already done and left out")
    }
}

/// Leaves finished tasks out of a submit.
///
/// # Errors
///
/// Returns an error if no task has outputs, or if the ids of the tasks are not known yet.
pub(crate) fn leave_out(spec: &mut SubmitSpec, unended: &OuterDependencies) -> CliResult<SkipPlan> {
    let is_attached = matches!(spec.target, SubmitTarget::Attach(_));
    let submit_dir = spec.submit_dir.to_vec();
    match &mut spec.body {
        SubmitBody::Array(array) => skip_array(array, is_attached, &submit_dir, unended),
        SubmitBody::Graph(graph) => skip_graph(graph, &submit_dir),
    }
}

/// The tasks of a job that have to run again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Changed {
    pub(crate) skipped: SkipPlan,
    /// The positions of these tasks in each submit of the job, in order.
    pub(crate) positions: Vec<IdArray>,
}

/// Determines which tasks of an ended job have to run again. `specs` contains all submits of the
/// job.
///
/// # Errors
///
/// Returns an error if no task has outputs.
pub(crate) fn changed(specs: &[SubmitSpec]) -> CliResult<Changed> {
    let has_outputs = |spec: &SubmitSpec| match &spec.body {
        SubmitBody::Array(array) => !array.template.files.outputs.is_empty(),
        SubmitBody::Graph(graph) => has_outputs(graph),
    };
    if !specs.iter().any(has_outputs) {
        return Err(CliError::new("none of its tasks names its outputs").with_help(
            "name outputs with --outputs when the tasks are submitted, in a job file with `outputs = [\"…\"]`",
        ));
    }
    let (mut runs, mut left_out) = (Vec::new(), 0);
    let mut positions = Vec::new();
    // Tasks may depend on tasks of earlier submits.
    let mut is_run: HashMap<TaskId, bool> = HashMap::new();
    for spec in specs {
        let origin = spec.origin.as_ref().map(|origin| origin.task);
        if origin.is_some_and(|task| is_run.get(&task) == Some(&true)) {
            // The task that added these tasks runs again, and adds them again with all tasks that
            // they added.
            positions.push(IdArray::default());
            is_run.extend(ids_of(spec)?.into_iter().map(|task| (task, true)));
            continue;
        }
        let whys = match &spec.body {
            SubmitBody::Array(array) => {
                let ids = given_ids(array)?;
                let whys =
                    reasons_of_array(array, &ids, &spec.submit_dir, &OuterDependencies::default());
                let whys = whys.into_iter().map(|why| why.map(|why| *why));
                ids.iter().zip(whys).collect()
            }
            SubmitBody::Graph(graph) => {
                let mut whys =
                    reasons_of_graph(graph, &spec.submit_dir, |dep| is_run.get(&dep).copied());
                // The server identifies them by their ids.
                whys.sort_unstable_by_key(|(task, _)| *task);
                whys
            }
        };
        let chosen = (0_u32..).zip(&whys).filter(|(_, (_, why))| why.is_some());
        positions.push(IdArray::from_sorted(chosen.map(|(at, _)| at)).unwrap_or_default());
        if specs.len() > 1 {
            is_run.extend(
                whys.iter()
                    .map(|(task, why)| (TaskId(*task), why.is_some())),
            );
        }
        for (task, why) in whys {
            match why {
                Some(why) => runs.push((task, why)),
                None => left_out += 1,
            }
        }
    }
    Ok(Changed {
        skipped: SkipPlan { left_out, runs },
        positions,
    })
}

/// Returns the ids of all tasks of a submit.
fn ids_of(spec: &SubmitSpec) -> CliResult<Vec<TaskId>> {
    Ok(match &spec.body {
        SubmitBody::Array(array) => given_ids(array)?.iter().map(TaskId).collect(),
        SubmitBody::Graph(graph) => graph.tasks.iter().map(|task| task.id).collect(),
    })
}

fn given_ids(array: &ArraySpec) -> CliResult<IdArray> {
    match &array.ids {
        ArrayIds::Given(ids) => Ok(ids.clone()),
        ArrayIds::Next(count) => IdArray::consecutive(0, *count).caused("Cannot number the tasks"),
    }
}

fn has_outputs(graph: &GraphSpec) -> bool {
    let mut templates = graph.templates.iter();
    templates.any(|template| !template.files.outputs.is_empty())
}

fn no_outputs() -> CliError {
    CliError::new("--skip-done requires the outputs of the tasks")
        .with_help("name the outputs with --outputs, in a job file with `outputs = [\"…\"]`")
}

fn skip_array(
    array: &mut ArraySpec,
    is_attached: bool,
    submit_dir: &[u8],
    unended: &OuterDependencies,
) -> CliResult<SkipPlan> {
    if array.template.files.outputs.is_empty() {
        return Err(no_outputs());
    }
    if is_attached && matches!(array.ids, ArrayIds::Next(_)) {
        return Err(CliError::new("--skip-done requires the ids of the tasks")
            .with_help("give them with --array"));
    }
    let ids = given_ids(array)?;
    let whys = reasons_of_array(array, &ids, submit_dir, unended);
    let mut chosen: Vec<(u32, u32)> = Vec::new();
    let mut runs = Vec::new();
    for (index, why) in (0_u32..).zip(whys) {
        let Some(why) = why else { continue };
        runs.push((ids.get(index).unwrap_or_default(), *why));
        match chosen.last_mut() {
            Some((_, end)) if *end == index => *end = index + 1,
            _ => chosen.push((index, index + 1)),
        }
    }
    if let Some(entries) = &array.entries {
        let texts = chosen.iter().flat_map(|(from, to)| *from..*to);
        let texts: Vec<&[u8]> = texts.filter_map(|index| entries.get(index)).collect();
        let lengths = texts.iter().map(|text| text.len() as u64);
        array.entries = Entries::new(texts.concat(), lengths);
    }
    let left: Vec<IdRange> = chosen
        .iter()
        .flat_map(|(from, to)| ids.slice(*from, *to))
        .collect();
    array.ids = ArrayIds::Given(IdArray::new(left).unwrap_or_default());
    Ok(SkipPlan {
        left_out: ids.len() as usize - runs.len(),
        runs,
    })
}

/// Returns why each task of an array runs, or `None` if it is finished.
fn reasons_of_array(
    array: &ArraySpec,
    ids: &IdArray,
    submit_dir: &[u8],
    unended: &OuterDependencies,
) -> Vec<Option<Box<RunReason>>> {
    let template = &array.template;
    let patterns = PathPatterns::new(template);
    in_parallel(ids.len() as usize, |index| {
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        let task = TaskId(ids.get(index).unwrap_or_default());
        let entry = array
            .entries
            .as_ref()
            .and_then(|entries| entries.get(index));
        let waits = unended.why(task);
        let why = waits.or_else(|| why(template, &patterns, (task, entry), submit_dir));
        why.map(Box::new)
    })
}

fn skip_graph(graph: &mut GraphSpec, submit_dir: &[u8]) -> CliResult<SkipPlan> {
    if !has_outputs(graph) {
        return Err(no_outputs());
    }
    // The state of tasks in the open job is unknown, and they may still write inputs.
    let whys = reasons_of_graph(graph, submit_dir, |_| None);
    let total = whys.len();
    let is_run: HashMap<TaskId, bool> = whys
        .iter()
        .map(|(task, why)| (TaskId(*task), why.is_some()))
        .collect();
    let runs: Vec<(u32, RunReason)> = whys
        .into_iter()
        .filter_map(|(task, why)| Some((task, why?)))
        .collect();
    graph
        .tasks
        .retain(|task| is_run.get(&task.id) == Some(&true));
    for task in &mut graph.tasks {
        // A dependency on a finished task is dropped. Tasks of the open job are not in this map.
        task.deps.retain(|dep| is_run.get(dep) != Some(&false));
    }
    Ok(SkipPlan {
        left_out: total - runs.len(),
        runs,
    })
}

/// Returns why each task of a graph runs, in order, or `None` if it is finished. `earlier` returns
/// whether a task outside the graph runs, if known.
fn reasons_of_graph(
    graph: &GraphSpec,
    submit_dir: &[u8],
    earlier: impl Fn(TaskId) -> Option<bool>,
) -> Vec<(u32, Option<RunReason>)> {
    let GraphSpec { templates, tasks } = graph;
    let patterns: Vec<PathPatterns> = templates.iter().map(|t| PathPatterns::new(t)).collect();
    let whys = in_parallel(tasks.len(), |index| {
        let task = tasks.get(index)?;
        let at = task.template as usize;
        let (template, patterns) = (templates.get(at)?, patterns.get(at)?);
        why(template, patterns, (task.id, None), submit_dir).map(Box::new)
    });
    let mut is_run: HashMap<TaskId, bool> = HashMap::with_capacity(tasks.len());
    let mut found = Vec::with_capacity(tasks.len());
    // Dependencies come first, because the file was sorted when it was read.
    for (task, why) in tasks.iter().zip(whys) {
        let mut deps = task.deps.iter();
        let before =
            deps.find_map(
                |dep| match is_run.get(dep).copied().or_else(|| earlier(*dep)) {
                    Some(true) => Some(RunReason::After(*dep)),
                    Some(false) => None,
                    None => Some(RunReason::AfterEarlier(*dep)),
                },
            );
        let why = before.or(why.map(|why| *why));
        is_run.insert(task.id, why.is_some());
        found.push((task.id.as_u32(), why));
    }
    found
}

/// Returns why a task runs, apart from its dependencies, or `None` if it is finished.
fn why(
    template: &TaskTemplate,
    patterns: &PathPatterns,
    (task, entry): (TaskId, Option<&[u8]>),
    submit_dir: &[u8],
) -> Option<RunReason> {
    let (cwd, FilePaths { inputs, outputs }) = paths_of(patterns, task, submit_dir);
    let Some(first) = outputs.first() else {
        return Some(RunReason::NoOutputs);
    };
    if let Some(name) = fleeting(&template.cwd) {
        return Some(RunReason::Fleeting(name));
    }
    let at = record_path(first);
    let outputs = match stamped(outputs, hq_worker::output_stamp) {
        Ok(outputs) => outputs,
        Err(missing) => return Some(RunReason::Output(lossy(&missing))),
    };
    let mut paths = outputs.iter().map(|(path, _)| path);
    if let Some(other) = paths.find(|path| !hq_private::is_own_output(as_path(path))) {
        return Some(RunReason::Foreign(lossy(other)));
    }
    let Some(kept) = read_record(as_path(&at)) else {
        return Some(RunReason::NoRecord(lossy(&at)));
    };
    let inputs = match stamped(inputs, hq_worker::stamp) {
        Ok(inputs) => inputs,
        Err(missing) => return Some(RunReason::Input(lossy(&missing))),
    };
    let params = template.params.as_deref();
    let params = params.map_or_else(Vec::new, |params| params.values(task));
    let command = command_digest(template, &params, entry);
    let now = match KeptContents::read(&kept) {
        None => record(command, &cwd, &inputs, &outputs),
        Some(known) => {
            let reads = template.files.by_content;
            let inputs = compared(&known, Role::Input, &inputs, reads);
            let outputs = compared(&known, Role::Output, &outputs, reads);
            record_with_contents(command, &cwd, &inputs, &outputs)
        }
    };
    difference(&kept, &now).map(RunReason::Changed)
}

/// Returns the current stamps of files. A file with unchanged content keeps its earlier time. Reads
/// a file only if its time differs and the task compares contents.
fn compared(known: &KeptContents, role: Role, files: &Stamped, reads: bool) -> Vec<Content> {
    let digest = |path: &[u8]| reads.then(|| hq_worker::digest(as_path(path), || true))?;
    let files = files.iter().cloned();
    files
        .map(|(path, stamp)| known.compared(role, path, stamp, digest))
        .collect()
}

/// Returns the stamps of files, or the first file that cannot be read.
fn stamped(
    paths: Vec<Vec<u8>>,
    look: fn(&Path) -> Option<Stamp>,
) -> Result<Vec<(Vec<u8>, Stamp)>, Vec<u8>> {
    let stamped = paths.into_iter().map(|path| match look(as_path(&path)) {
        Some(stamp) => Ok((path, stamp)),
        None => Err(path),
    });
    stamped.collect()
}

fn read_record(path: &Path) -> Option<Vec<u8>> {
    let file = hq_private::open_output(path).ok()?;
    let mut kept = Vec::new();
    file.take(RECORD_BYTES_MAX).read_to_end(&mut kept).ok()?;
    Some(kept)
}

fn as_path(bytes: &[u8]) -> &Path {
    Path::new(std::ffi::OsStr::from_bytes(bytes))
}

/// Calls a function for all numbers below `count` in several threads. Returns the results in order.
fn in_parallel<T: Send>(count: usize, call: impl Fn(usize) -> Option<T> + Sync) -> Vec<Option<T>> {
    let next = AtomicUsize::new(0);
    let mut results: Vec<Option<T>> = Vec::new();
    results.resize_with(count, || None);
    let results = Mutex::new(results);
    let work = || {
        loop {
            let start = next.fetch_add(CHUNK, Ordering::Relaxed);
            if start >= count {
                return;
            }
            let part: Vec<_> = (start..count.min(start + CHUNK)).map(&call).collect();
            let mut results = results.lock().unwrap_or_else(PoisonError::into_inner);
            for (slot, result) in results.iter_mut().skip(start).zip(part) {
                *slot = result;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..THREADS.min(count.div_ceil(CHUNK)) {
            let thread = std::thread::Builder::new().spawn_scoped(scope, work);
            // If no more threads can be started, the existing ones do all the work.
            if thread.is_err() {
                break;
            }
        }
        work();
    });
    results.into_inner().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
