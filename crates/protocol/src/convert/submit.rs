//! Submits: target, directories and tasks.
//!
//! The core checks for duplicate ids, unknown dependencies and cycles, and has the error texts for
//! these.

use std::sync::Arc;

use hq_core::bound::{Bound, LIMIT_NAME, LimitUse, Rate, SubmitLimits, USES_MAX, is_limit_name};
use hq_core::id::{JobId, TaskId};
use hq_core::template::{
    After, ArrayIds, ArraySpec, Entries, GraphSpec, GraphTask, NotifyEvent, NotifySpec,
    NotifyTarget, Origin, StdioSpec, SubmitBody, SubmitSpec, SubmitTarget, TaskTemplate,
};

use super::wire::{
    FromWire, ToWire, each, field, list, once, one_of, optional, or_default, received, same_enum,
    unless_default, wire,
};
use super::{ConvertError, Within, absolute_path, at_most, known, path, required, same_len, text};
use crate::client;

/// The maximum number of tasks in a graph submit. The server keeps a record for each.
const GRAPH_TASKS_MAX: usize = 1 << 24;

/// The maximum number of dependencies in a graph submit.
const GRAPH_DEPS_MAX: usize = 1 << 28;

/// The maximum number of jobs that a submit waits for.
const AFTER_MAX: usize = 1 << 12;

/// The maximum number of notification targets of a submit.
const NOTIFY_MAX: usize = 64;
/// The maximum length of a notification's command or address in bytes.
const NOTIFY_LEN_MAX: usize = 4_096;

/// The maximum length in bytes of the name that a task gives to a submit.
const ORIGIN_KEY_MAX: usize = 256;

/// The maximum number of notes of a submit, and their maximum length in bytes.
const NOTES_MAX: usize = 64;
const NOTE_LEN_MAX: usize = 4_096;

/// The maximum number of templates in a graph submit.
const GRAPH_TEMPLATES_MAX: usize = 1 << 22;

wire! {
    SubmitSpec = client::Submit {
        body,
        target,
        submit_dir: absolute_path,
        stream_dir: optional(path),
        after: list(AFTER_MAX, received),
        notify: each(NOTIFY_MAX),
        origin,
        nonce,
        notes: list(NOTES_MAX, note),
        limits: or_default => unless_default,
    }
    check check_submit
}

wire! {
    SubmitLimits = client::SubmitLimits {
        uses: each(USES_MAX),
        max_running: optional(positive),
        max_rate: optional(rate) => |rate: &Option<Rate>| rate.map(|rate| rate.to_string()),
    }
    check check_uses
}

fn check_uses(limits: SubmitLimits) -> Result<SubmitLimits, ConvertError> {
    let names = limits.uses.iter().map(|part| &part.name);
    once(names, "uses", "each limit once")?;
    Ok(limits)
}

wire! { LimitUse = client::LimitUse { name: limit_name, amount: positive, } }

pub(super) fn limit_name(field: &str, found: String) -> Result<Box<str>, ConvertError> {
    match is_limit_name(&found) {
        true => Ok(found.into()),
        false => Err(ConvertError::invalid(field, LIMIT_NAME, found)),
    }
}

pub(super) fn positive(field: &str, found: u32) -> Result<u32, ConvertError> {
    match found {
        0 => Err(ConvertError::invalid(field, "at least 1", found)),
        found => Ok(found),
    }
}

pub(super) fn rate(field: &str, found: String) -> Result<Rate, ConvertError> {
    match found.parse() {
        Ok(Bound::Rate(rate)) => Ok(rate),
        Ok(Bound::Running(_)) | Err(_) => Err(ConvertError::invalid(field, "such as 50/s", found)),
    }
}

fn note(field: &str, found: String) -> Result<Box<str>, ConvertError> {
    at_most(field, found.len(), NOTE_LEN_MAX)?;
    Ok(found.into())
}

fn check_submit(spec: SubmitSpec) -> Result<SubmitSpec, ConvertError> {
    if spec.origin.is_some() && !matches!(spec.target, SubmitTarget::Attach(_)) {
        let expected = "a submit for the job of its task";
        return Err(ConvertError::invalid("origin", expected, "a new job"));
    }
    // Streamed output needs a directory.
    let streams = |template: &Arc<TaskTemplate>| {
        template.stdout == StdioSpec::Stream || template.stderr == StdioSpec::Stream
    };
    let is_streamed = match &spec.body {
        SubmitBody::Array(array) => streams(&array.template),
        SubmitBody::Graph(graph) => graph.templates.iter().any(streams),
    };
    if is_streamed && spec.stream_dir.is_none() {
        return Err(ConvertError::missing("stream_dir"));
    }
    Ok(spec)
}

one_of! { SubmitBody = client::submit::Body { Array = array, Graph = graph, } }

wire! {
    Origin = client::Origin {
        task,
        instance,
        key: optional(origin_key),
        digest,
    }
}

fn origin_key(field: &str, found: String) -> Result<Box<str>, ConvertError> {
    at_most(field, found.len(), ORIGIN_KEY_MAX)?;
    text(field, found)
}

wire! { NotifySpec = client::NotifyTarget { target, event, } }

one_of! {
    NotifyTarget = client::notify_target::Target { Command = command: one_line, Webhook = webhook: url, }
}

same_enum! { NotifyEvent = client::notify_target::Event { End Failure } }

/// Checks a shell command or an address: not empty, of bounded length, and without NUL or line
/// feeds.
fn one_line(field: &str, found: String) -> Result<Box<str>, ConvertError> {
    let found = text(field, found)?;
    at_most(field, found.len(), NOTIFY_LEN_MAX)?;
    if found.trim().is_empty() || found.contains(['\0', '\n', '\r']) {
        let expected = "one line that is not empty";
        return Err(ConvertError::invalid(field, expected, found));
    }
    Ok(found)
}

fn url(field: &str, found: String) -> Result<Box<str>, ConvertError> {
    if !found.starts_with("http://") && !found.starts_with("https://") {
        let expected = "an address that begins with http:// or https://";
        return Err(ConvertError::invalid(field, expected, found));
    }
    one_line(field, found)
}

wire! { After = client::After { job, is_each = each, is_any = any, } }

impl FromWire<Option<client::submit::Target>> for SubmitTarget {
    fn from_wire(field: &str, found: Option<client::submit::Target>) -> Result<Self, ConvertError> {
        use client::submit::Target;
        match required(found, field)? {
            Target::NewJob(client::NewJob { name, max_fails }) => Ok(Self::NewJob {
                name: text("new_job.name", name)?,
                max_fails,
            }),
            Target::SelfClosingJob(client::SelfClosingJob { job, tasks_max }) => {
                let client::NewJob { name, max_fails } = required(job, "self_closing_job.job")?;
                Ok(Self::SelfClosing {
                    name: text("self_closing_job.job.name", name)?,
                    max_fails,
                    tasks_max,
                })
            }
            Target::AttachJob(job) => Ok(Self::Attach(JobId(job))),
        }
    }
}

impl ToWire<Option<client::submit::Target>> for SubmitTarget {
    fn to_wire(&self) -> Option<client::submit::Target> {
        use client::submit::Target;
        let new_job = |name: &str, max_fails: &Option<u32>| client::NewJob {
            name: name.to_owned(),
            max_fails: *max_fails,
        };
        Some(match self {
            Self::NewJob { name, max_fails } => Target::NewJob(new_job(name, max_fails)),
            Self::SelfClosing {
                name,
                max_fails,
                tasks_max,
            } => Target::SelfClosingJob(client::SelfClosingJob {
                job: Some(new_job(name, max_fails)),
                tasks_max: *tasks_max,
            }),
            Self::Attach(job) => Target::AttachJob(job.as_u32()),
        })
    }
}

impl TryFrom<client::ArraySubmit> for ArraySpec {
    type Error = ConvertError;

    fn try_from(message: client::ArraySubmit) -> Result<Self, ConvertError> {
        use client::array_submit::Ids;
        let given = |field, ids| received(field, ids).map(ArrayIds::Given);
        let (ids, has_params) = match required(message.ids, "ids")? {
            Ids::Given(ids) => (given("given", ids)?, false),
            Ids::Next(count) => (ArrayIds::Next(count), false),
            Ids::GivenParams(ids) => (given("given_params", ids)?, true),
            Ids::NextParams(count) => (ArrayIds::Next(count), true),
        };
        let count = match &ids {
            ArrayIds::Given(ids) => ids.len(),
            ArrayIds::Next(count) => *count,
        };
        let entries: Option<Entries> = received("entries", message.entries)?;
        if let Some(entries) = &entries {
            same_len("entries", entries.len(), count as usize)?;
        }
        let template: Arc<TaskTemplate> = received("template", message.template)?;
        // An entry becomes the value of an environment variable, unless it is passed to an
        // interpreter.
        let has_nul = |entries: &Entries| {
            let mut list = (0_u32..).map_while(|index| entries.get(index));
            list.any(|entry| entry.contains(&0))
        };
        if !template.is_call && entries.as_ref().is_some_and(has_nul) {
            let expected = "entries without NUL bytes";
            return Err(ConvertError::invalid("entries.data", expected, "one"));
        }
        check_params(&template, &ids, (has_params, entries.is_some()))?;
        Ok(Self {
            ids,
            entries,
            template,
        })
    }
}

/// Checks that each task has a combination of the parameters and that the tasks do not differ
/// otherwise.
fn check_params(
    template: &TaskTemplate,
    ids: &ArrayIds,
    (has_params, has_entries): (bool, bool),
) -> Result<(), ConvertError> {
    let refuse = |expected, found: &str| Err(ConvertError::invalid("params", expected, found));
    let Some(params) = template.params.as_deref() else {
        if has_params {
            return Err(ConvertError::missing("params"));
        }
        return Ok(());
    };
    if !has_params {
        return refuse("ids for parameters", "others");
    }
    if has_entries || template.is_call {
        return refuse("tasks without entries", "entries");
    }
    let fits = match ids {
        ArrayIds::Next(count) => params.count() == *count,
        // It is sufficient to check both ends, because all ids in between have a combination as
        // well.
        ArrayIds::Given(ids) => ids
            .ranges()
            .iter()
            .all(|range| params.has(range.first()) && params.has(range.last())),
    };
    if !fits {
        return refuse("a combination for each id", "other ids");
    }
    Ok(())
}

impl From<&ArraySpec> for client::ArraySubmit {
    fn from(spec: &ArraySpec) -> Self {
        use client::array_submit::Ids;
        let has_params = spec.template.params.is_some();
        Self {
            ids: Some(match &spec.ids {
                ArrayIds::Given(ids) if has_params => Ids::GivenParams(ids.into()),
                ArrayIds::Given(ids) => Ids::Given(ids.into()),
                ArrayIds::Next(count) if has_params => Ids::NextParams(*count),
                ArrayIds::Next(count) => Ids::Next(*count),
            }),
            entries: spec.entries.to_wire(),
            template: spec.template.to_wire(),
        }
    }
}

field!(ArraySpec = client::ArraySubmit);

impl TryFrom<client::GraphSubmit> for GraphSpec {
    type Error = ConvertError;

    fn try_from(message: client::GraphSubmit) -> Result<Self, ConvertError> {
        let client::GraphSubmit {
            templates,
            task_ids,
            task_templates,
            dep_ends,
            deps,
        } = message;
        at_most("task_ids", task_ids.len(), GRAPH_TASKS_MAX)?;
        at_most("deps", deps.len(), GRAPH_DEPS_MAX)?;
        same_len("task_templates", task_templates.len(), task_ids.len())?;
        same_len("dep_ends", dep_ends.len(), task_ids.len())?;
        let bad_template = task_templates
            .iter()
            .find(|at| **at as usize >= templates.len());
        if let Some(at) = bad_template {
            let expected = "positions in `templates`";
            return Err(ConvertError::invalid("task_templates", expected, at));
        }
        let columns = task_ids.into_iter().zip(task_templates).zip(dep_ends);
        let mut start = 0;
        let mut tasks = Vec::with_capacity(columns.len());
        for ((id, template), end) in columns {
            let part = usize::try_from(end)
                .ok()
                .and_then(|end| deps.get(start..end));
            let Some(part) = part else {
                let expected = "ascending positions in `deps`";
                return Err(ConvertError::invalid("dep_ends", expected, end));
            };
            start += part.len();
            let deps = part.iter().copied().map(TaskId).collect();
            tasks.push(GraphTask {
                id: TaskId(id),
                template,
                deps,
            });
        }
        if start != deps.len() {
            return Err(ConvertError::invalid(
                "dep_ends",
                "an end that is that of `deps`",
                start,
            ));
        }
        let templates: Vec<TaskTemplate> = each(GRAPH_TEMPLATES_MAX)("templates", templates)?;
        if templates.iter().any(|template| template.params.is_some()) {
            return Err(ConvertError::invalid("templates", "no parameters", "some"));
        }
        Ok(Self {
            templates: templates.into_iter().map(Arc::new).collect(),
            tasks,
        })
    }
}

impl From<&GraphSpec> for client::GraphSubmit {
    fn from(spec: &GraphSpec) -> Self {
        let deps: Vec<u32> = spec
            .tasks
            .iter()
            .flat_map(|task| &task.deps)
            .map(|id| id.as_u32())
            .collect();
        let mut end = 0;
        let mut dep_end = |task: &GraphTask| {
            end += task.deps.len() as u64;
            end
        };
        Self {
            templates: spec.templates.to_wire(),
            task_ids: spec.tasks.iter().map(|task| task.id.as_u32()).collect(),
            task_templates: spec.tasks.iter().map(|task| task.template).collect(),
            dep_ends: spec.tasks.iter().map(&mut dep_end).collect(),
            deps,
        }
    }
}

field!(GraphSpec = client::GraphSubmit);
