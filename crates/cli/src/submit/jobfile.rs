//! Job files: a submit in TOML or YAML, or in JSON as sent by programs.
//!
//! [`schema`] defines the content, [`diagnostic`] draws errors, and [`graph`] checks and sorts
//! dependencies. Paths of task graphs keep all their placeholders, because tasks may have different
//! working directories. Paths of `[array]` are resolved as on the command line.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use hq_core::id::{JobId, TaskId};
use hq_core::range::IdArray;
use hq_core::template::{
    ArrayIds, ArraySpec, Entries, GraphSpec, GraphTask, StdioSpec, SubmitBody, SubmitSpec,
    SubmitTarget, TaskTemplate,
};

use super::build::{
    self, DEFAULT_CWD, Frame, Needs, PathResolver, are_retries_missing, count_of, new_job,
    stream_dir,
};
use super::entries::EntryList;
use super::files::{add_edges, check_apart};
use super::habits::{self, Typed};
use super::params::{self, tells_apart};
use super::{PreparedSubmit, SubmitContext, bare_submit, is_stdin, read_file};
use crate::args::submit::{Destination, TaskOptions};
use crate::error::{CliError, CliResult};
use crate::parse::array::ArrayArg;
use crate::parse::duration::refuse_zero;

mod advice;
mod diagnostic;
mod file;
mod format;
mod graph;
mod parts;
mod place;
mod schema;
mod yaml;

use file::Tasks;
pub(crate) use format::{Format, Source};
use graph::TaskGraphError;
use schema::{ArrayTable, TaskKey};

/// The maximum size of a file that is read only to detect a job file.
const GUESSED_BYTES_MAX: u64 = 16 << 20;

/// Reads a job file and builds its submit.
pub(crate) fn load(
    path: &Path,
    destination: Destination,
    context: SubmitContext<'_>,
) -> CliResult<PreparedSubmit> {
    let unreadable = |why: &dyn std::fmt::Display| {
        CliError::new(format!("Cannot read {}: {why}", path.display()))
    };
    let bytes = read_file(path)?;
    let content = std::str::from_utf8(&bytes)
        .map_err(|error| unreadable(&diagnostic::no_text(&bytes, error.valid_up_to())))
        .map_err(|error| match super::content::kind(&bytes) {
            Some((what, command)) if !command.is_empty() => error.with_help(format!(
                "it is {what}: `{command} {} | hq job submit-file -` reads it",
                path.display()
            )),
            Some(_) | None => error,
        })?;
    if content.starts_with("#!") {
        let shown = path.display();
        return Err(
            CliError::new(format!("{shown} is a script, not a job file"))
                .with_help(format!("submit a script with `hq submit {shown}`")),
        );
    }
    let source = Source {
        path,
        content,
        format: if is_stdin(path) {
            Format::guess(content)
        } else {
            Format::of(path)
        },
    };
    parse(source, destination, context)
}

/// Builds the submit of a job file.
pub(crate) fn parse(
    source: Source<'_>,
    destination: Destination,
    context: SubmitContext<'_>,
) -> CliResult<PreparedSubmit> {
    let mut file = source
        .read()
        .map_err(|misread| diagnostic::misread(source, misread))?;
    let target = match destination.attach {
        Some(job) => SubmitTarget::Attach(JobId(job)),
        None => new_job(file.name.into_boxed_str(), file.max_fails, destination),
    };
    let mut warnings = Vec::new();
    let mut frame = Frame {
        context,
        params: None,
        is_streamed: file.stream.is_some(),
        count: None,
    };
    let stream_dir = stream_dir(
        file.stream.as_deref().map(Path::new),
        context,
        &mut warnings,
    )?;
    let body = match (file.array, file.task.is_empty()) {
        (None, true) => {
            return Err(
                diagnostic::plain("No tasks defined").with_help(advice::a_task(source.format))
            );
        }
        (Some(_), false) => {
            return Err(diagnostic::plain(
                "Definition of array job and individual task cannot be mixed",
            ));
        }
        (Some(array), true) => SubmitBody::Array(build_array(array, &mut frame, &mut warnings)?),
        (None, false) => {
            let count = file.task.list.len();
            let wrong = |mistake: TaskGraphError| {
                let span = source.place_of(count, &mistake);
                diagnostic::mistake(source, &mistake, span)
            };
            let ids = graph::number(&mut file.task.list, destination.attach).map_err(wrong)?;
            let (templates, mut tasks) = build_tasks(file.task, ids, &frame, &mut warnings)?;
            add_edges(&templates, &mut tasks, context.submit_dir)?;
            let label = |task: &GraphTask| {
                let template = templates.get(task.template as usize);
                let name = template.and_then(|template| template.name.clone());
                name.map_or(TaskKey::Number(task.id.as_u32()), TaskKey::Name)
            };
            let tasks = graph::order(tasks, label, destination.attach.is_some()).map_err(wrong)?;
            SubmitBody::Graph(GraphSpec { templates, tasks })
        }
    };
    warnings.dedup();
    let spec = SubmitSpec {
        stream_dir,
        notes: notes_of(&body, context.submit_dir)?,
        limits: build::limits(file.limit, file.max_running, file.max_rate)?,
        ..bare_submit(target, context.submit_dir, body)
    };
    Ok(PreparedSubmit::new(spec, warnings))
}

/// Detects habits of other tools in the commands of a file.
fn notes_of(body: &SubmitBody, submit_dir: &Path) -> CliResult<Vec<Box<str>>> {
    let (source, templates) = match body {
        SubmitBody::Array(array) => {
            let source = match &array.template.params {
                Some(params) => habits::Source::Params(params),
                None if array.entries.is_some() => habits::Source::Entries,
                None => habits::Source::Ids,
            };
            (source, std::slice::from_ref(&array.template))
        }
        SubmitBody::Graph(graph) => (habits::Source::One, &graph.templates[..]),
    };
    let (mut notes, mut scripts) = (Vec::new(), BTreeSet::new());
    notes.extend(note_on_shared_output(body));
    if templates
        .iter()
        .any(|template| are_retries_missing(&template.retry))
    {
        let text = "no task is tried again: `retry_on` and `retry_delay` need a number of retries, such as `retries = 3`";
        notes.push(text.into());
    }
    for template in templates {
        let mut typed = Typed::of_file(source, template);
        let cwd = match &*template.cwd {
            DEFAULT_CWD => Some(submit_dir.to_owned()),
            // The directory depends on the task.
            cwd if cwd.contains(&b'%') => None,
            cwd => Some(submit_dir.join(std::ffi::OsStr::from_bytes(cwd))),
        };
        if let Some(dir) = cwd {
            typed.read_script(&dir, &mut scripts);
        }
        for note in habits::look(&typed)? {
            if !notes.contains(&note) && notes.len() < habits::NOTES_MAX {
                notes.push(note);
            }
        }
    }
    Ok(notes)
}

/// Warns if several tasks write to the same file.
fn note_on_shared_output(body: &SubmitBody) -> Option<Box<str>> {
    let counts = match body {
        SubmitBody::Array(array) => vec![count_of(&array.ids)],
        SubmitBody::Graph(graph) => {
            let mut counts = vec![0; graph.templates.len()];
            for task in &graph.tasks {
                counts[task.template as usize] += 1;
            }
            counts
        }
    };
    let mut writers = HashMap::new();
    for (template, count) in body.templates().iter().zip(counts) {
        for (key, spec) in [("stdout", &template.stdout), ("stderr", &template.stderr)] {
            let StdioSpec::File { path, .. } = spec else {
                continue;
            };
            let dir = (!path.starts_with(b"/")).then_some(&template.cwd);
            let is_device = path.starts_with(b"/dev/");
            let params = template.params.as_deref();
            if is_device
                || tells_apart(path, params)
                || dir.is_some_and(|dir| tells_apart(dir, params))
            {
                continue;
            }
            let writers: &mut u32 = writers.entry((key, dir, path)).or_default();
            *writers += count;
            if *writers > 1 {
                let path = String::from_utf8_lossy(path);
                return Some(
                    format!("several tasks write to the file of `{key} = \"{path}\"`, and each overwrites what is there; `%{{TASK_ID}}` in the path gives each task a file of its own")
                        .into(),
                );
            }
        }
    }
    None
}

/// Returns whether a file in the position of a program is a job file: it is not executable, and its
/// name or content identifies it.
fn is_one(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    let found = std::fs::metadata(path);
    let is_candidate = found.is_ok_and(|found| {
        found.is_file()
            && found.permissions().mode() & 0o111 == 0
            && found.len() <= GUESSED_BYTES_MAX
    });
    let describes_tasks = || {
        let content = std::fs::read_to_string(path).unwrap_or_default();
        let format = Format::of(path);
        let content = &*content;
        let read = Source {
            path,
            content,
            format,
        }
        .read();
        read.is_ok_and(|file| file.array.is_some() || !file.task.is_empty())
    };
    is_candidate && (Format::is_certain(path) || describes_tasks())
}

/// Returns the job file in the position of a program.
///
/// # Errors
///
/// Returns an error if the file is followed by words, which would be ignored.
pub(crate) fn in_command<'a>(verb: &str, command: &'a [OsString]) -> CliResult<Option<&'a Path>> {
    let Some((path, rest)) = command
        .split_first()
        .filter(|(path, _)| is_one(Path::new(path)))
    else {
        return Ok(None);
    };
    let Some(word) = rest.first() else {
        return Ok(Some(Path::new(path)));
    };
    let (path, word) = (path.to_string_lossy(), word.to_string_lossy());
    let help = if word.starts_with('-') {
        let such = if verb == "run" { "--jobs" } else { "--wait" };
        format!(
            "options of `hq {verb}` itself, such as `{such}`, belong before the file; options of tasks belong into the file, see `hq doc dependencies`"
        )
    } else {
        format!("a job file runs as a whole and takes no words: `hq {verb} {path}`")
    };
    Err(CliError::new(format!("{path} is a job file, and `{word}` comes after it")).with_help(help))
}

fn build_array(
    mut array: ArrayTable,
    frame: &mut Frame<'_>,
    warnings: &mut Vec<String>,
) -> CliResult<ArraySpec> {
    if let Some(path) = array.each_row {
        if array.entries.is_some() {
            return Err(diagnostic::plain(
                "`entries` and `each_row` both say which tasks there are: keep one of them",
            ));
        }
        if !frame.context.reads_files {
            let text = format!("the server does not read files of clients: {path:?} in `each_row`");
            let help = "write the rows as `entries`, or submit the job file with `hq submit`";
            return Err(diagnostic::plain(&text).with_help(help));
        }
        array.options.each_row = Some(path);
        array.options.array = array.ids.take().map(ArrayArg::from);
        let mut notes = Vec::new();
        frame.params = params::build(&array.options, &mut notes)?;
        warnings.extend(notes.into_iter().map(String::from));
    }
    let (ids, entries) = match &frame.params {
        Some(params) => {
            params::check(&array.options, params, warnings)?;
            (params::ids(params, &array.options)?, None)
        }
        None => array_ids(array.ids, array.entries)?,
    };
    let mut template = build_template(array.options, frame, warnings)?;
    let resolver = PathResolver::new(&template.cwd, frame.context);
    template.stdout = resolver.stdio(template.stdout);
    template.stderr = resolver.stdio(template.stderr);
    template.cwd = resolver.cwd();
    if count_of(&ids) > 1 {
        check_apart(&template.files, &template.cwd, frame.params.as_deref())?;
    }
    Ok(ArraySpec {
        ids,
        entries,
        template: Arc::new(template),
    })
}

fn array_ids(
    ids: Option<IdArray>,
    entries: Option<Vec<String>>,
) -> CliResult<(ArrayIds, Option<Entries>)> {
    let entries = entries.map(|texts| EntryList::from_texts(texts.iter().map(String::as_str)));
    match (ids, entries) {
        (None, None) => Err(diagnostic::plain(
            "One of attributes of array must be defined: 'ids', 'entries'",
        )),
        (Some(ids), None) => Ok((ArrayIds::Given(ids), None)),
        (None, Some(list)) => Ok((ArrayIds::Next(list.count()?), Some(list.finish()?))),
        (Some(ids), Some(list)) if ids.len() as usize == list.len() => {
            Ok((ArrayIds::Given(ids), Some(list.finish()?)))
        }
        (Some(ids), Some(list)) => Err(diagnostic::plain(
            "Items 'ids' and 'entries' does not match",
        )
        .with_help(format!(
            "each entry is a task, and there are {} `ids` and {} `entries`; without `ids` the tasks are numbered from 0",
            ids.len(),
            list.len()
        ))),
    }
}

/// Returns templates, and tasks in the order of the file. Unnamed tasks of a kind share a template.
/// A named task has its own template, which contains the name.
fn build_tasks(
    tasks: Tasks,
    ids: Vec<(TaskId, Vec<TaskId>)>,
    frame: &Frame<'_>,
    warnings: &mut Vec<String>,
) -> CliResult<(Vec<Arc<TaskTemplate>>, Vec<GraphTask>)> {
    let mut kinds = Vec::with_capacity(tasks.kinds.len());
    for kind in tasks.kinds {
        let template = build_template(kind, frame, warnings)?;
        if template.learn.memory.is_some() {
            return Err(diagnostic::plain(
                "mem = \"auto\" is for the tasks of an [array], which share a command; give a size, and retry_grow",
            ));
        }
        kinds.push((Arc::new(template), None));
    }
    let mut templates: Vec<Arc<TaskTemplate>> = Vec::new();
    let mut add = |template| {
        templates.push(template);
        u32::try_from(templates.len() - 1).unwrap_or(u32::MAX)
    };
    let list = tasks.list.into_iter().zip(ids).map(|(task, (id, deps))| {
        let (kind, shared) = &mut kinds[task.kind];
        let template = match task.id {
            Some(TaskKey::Name(name)) => add(Arc::new(TaskTemplate {
                name: Some(name),
                ..TaskTemplate::clone(kind)
            })),
            Some(TaskKey::Number(_)) | None => *shared.get_or_insert_with(|| add(Arc::clone(kind))),
        };
        GraphTask { id, template, deps }
    });
    let list = list.collect();
    Ok((templates, list))
}

fn build_template(
    options: TaskOptions,
    frame: &Frame<'_>,
    warnings: &mut Vec<String>,
) -> CliResult<TaskTemplate> {
    let limit = options.time_limit.map(refuse_zero).transpose();
    limit.map_err(|error| diagnostic::plain(&format!("`time_limit`: {error}")))?;
    let needs = Needs::of(&options, diagnostic::plain)?;
    build::build_template(options, needs, frame, warnings)
}

#[cfg(test)]
mod tests;
