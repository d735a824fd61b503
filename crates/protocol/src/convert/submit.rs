//! Submits: target, directories and tasks.
//!
//! The core checks for duplicate ids, unknown dependencies and cycles, and has the error texts for
//! these.

use std::sync::Arc;

use hq_core::id::{InstanceId, JobId, TaskId};
use hq_core::template::{
    After, ArrayIds, ArraySpec, Entries, GraphSpec, GraphTask, NotifyEvent, NotifySpec,
    NotifyTarget, Origin, StdioSpec, SubmitBody, SubmitSpec, SubmitTarget, TaskTemplate,
};

use super::{
    ConvertError, Within, absolute_path, at_most, each, known, path, required, same_len, text,
};
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

impl TryFrom<client::Submit> for SubmitSpec {
    type Error = ConvertError;

    fn try_from(message: client::Submit) -> Result<Self, ConvertError> {
        use client::submit::Body;
        let stream_dir = message
            .stream_dir
            .as_deref()
            .map(|dir| path("stream_dir", dir));
        at_most("after", message.after.len(), AFTER_MAX)?;
        at_most("notify", message.notify.len(), NOTIFY_MAX)?;
        at_most("notes", message.notes.len(), NOTES_MAX)?;
        for note in &message.notes {
            at_most("notes", note.len(), NOTE_LEN_MAX)?;
        }
        let body = match required(message.body, "body")? {
            Body::Array(array) => SubmitBody::Array(array.try_into().within("array")?),
            Body::Graph(graph) => SubmitBody::Graph(graph.try_into().within("graph")?),
        };
        let target = required(message.target, "target")?.try_into()?;
        let origin: Option<Origin> = message.origin.map(TryInto::try_into).transpose()?;
        if origin.is_some() && !matches!(target, SubmitTarget::Attach(_)) {
            let expected = "a submit for the job of its task";
            return Err(ConvertError::invalid("origin", expected, "a new job"));
        }
        let spec = Self {
            target,
            submit_dir: absolute_path("submit_dir", &message.submit_dir)?,
            stream_dir: stream_dir.transpose()?,
            after: message.after.into_iter().map(Into::into).collect(),
            notify: each("notify", message.notify)?,
            origin,
            nonce: message.nonce,
            notes: message.notes.into_iter().map(Into::into).collect(),
            body,
        };
        check_streams(&spec)?;
        Ok(spec)
    }
}

/// Checks that there is a stream directory if output is streamed.
fn check_streams(spec: &SubmitSpec) -> Result<(), ConvertError> {
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
    Ok(())
}

impl From<&SubmitBody> for client::submit::Body {
    fn from(body: &SubmitBody) -> Self {
        match body {
            SubmitBody::Array(array) => Self::Array(array.into()),
            SubmitBody::Graph(graph) => Self::Graph(graph.into()),
        }
    }
}

impl From<&SubmitSpec> for client::Submit {
    fn from(spec: &SubmitSpec) -> Self {
        Self {
            target: Some((&spec.target).into()),
            submit_dir: spec.submit_dir.to_vec().into(),
            stream_dir: spec.stream_dir.as_ref().map(|dir| dir.to_vec().into()),
            after: spec.after.iter().map(Into::into).collect(),
            notify: spec.notify.iter().map(Into::into).collect(),
            origin: spec.origin.as_ref().map(Into::into),
            nonce: spec.nonce,
            notes: spec.notes.iter().map(|note| note.to_string()).collect(),
            body: Some((&spec.body).into()),
        }
    }
}

impl TryFrom<client::Origin> for Origin {
    type Error = ConvertError;

    fn try_from(message: client::Origin) -> Result<Self, ConvertError> {
        let key = message.key.map(|key| {
            at_most("origin.key", key.len(), ORIGIN_KEY_MAX)?;
            text("origin.key", key)
        });
        Ok(Self {
            task: TaskId(message.task),
            instance: InstanceId(message.instance),
            key: key.transpose()?,
            digest: message.digest,
        })
    }
}

impl From<&Origin> for client::Origin {
    fn from(origin: &Origin) -> Self {
        Self {
            task: origin.task.as_u32(),
            instance: origin.instance.as_u32(),
            key: origin.key.as_deref().map(str::to_owned),
            digest: origin.digest,
        }
    }
}

impl TryFrom<client::NotifyTarget> for NotifySpec {
    type Error = ConvertError;

    fn try_from(message: client::NotifyTarget) -> Result<Self, ConvertError> {
        use client::notify_target::{Event, Target};
        let target = match required(message.target, "target")? {
            Target::Command(line) => NotifyTarget::Command(notify_text("command", line)?),
            Target::Webhook(url) => {
                if !url.starts_with("http://") && !url.starts_with("https://") {
                    let expected = "an address that begins with http:// or https://";
                    return Err(ConvertError::invalid("webhook", expected, url));
                }
                NotifyTarget::Webhook(notify_text("webhook", url)?)
            }
        };
        let event = match known("event", message.event)? {
            Event::End => NotifyEvent::End,
            Event::Failure => NotifyEvent::Failure,
        };
        Ok(Self { target, event })
    }
}

/// Checks a shell command or an address: not empty, of bounded length, and without NUL or line
/// feeds.
fn notify_text(field: &'static str, value: String) -> Result<Box<str>, ConvertError> {
    let value = text(field, value)?;
    at_most(field, value.len(), NOTIFY_LEN_MAX)?;
    if value.trim().is_empty() || value.contains(['\0', '\n', '\r']) {
        return Err(ConvertError::invalid(
            field,
            "one line that is not empty",
            value,
        ));
    }
    Ok(value)
}

impl From<&NotifySpec> for client::NotifyTarget {
    fn from(spec: &NotifySpec) -> Self {
        use client::notify_target::{Event, Target};
        Self {
            target: Some(match &spec.target {
                NotifyTarget::Command(line) => Target::Command(line.to_string()),
                NotifyTarget::Webhook(url) => Target::Webhook(url.to_string()),
            }),
            event: Event::from(spec.event).into(),
        }
    }
}

impl From<NotifyEvent> for client::notify_target::Event {
    fn from(event: NotifyEvent) -> Self {
        match event {
            NotifyEvent::End => Self::End,
            NotifyEvent::Failure => Self::Failure,
        }
    }
}

impl From<client::After> for After {
    fn from(message: client::After) -> Self {
        Self {
            job: JobId(message.job),
            is_each: message.each,
            is_any: message.any,
        }
    }
}

impl From<&After> for client::After {
    fn from(after: &After) -> Self {
        Self {
            job: after.job.as_u32(),
            each: after.is_each,
            any: after.is_any,
        }
    }
}

impl TryFrom<client::submit::Target> for SubmitTarget {
    type Error = ConvertError;

    fn try_from(message: client::submit::Target) -> Result<Self, ConvertError> {
        use client::submit::Target;
        match message {
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

impl From<&SubmitTarget> for client::submit::Target {
    fn from(target: &SubmitTarget) -> Self {
        match target {
            SubmitTarget::NewJob { name, max_fails } => Self::NewJob(client::NewJob {
                name: name.to_string(),
                max_fails: *max_fails,
            }),
            SubmitTarget::SelfClosing {
                name,
                max_fails,
                tasks_max,
            } => Self::SelfClosingJob(client::SelfClosingJob {
                job: Some(client::NewJob {
                    name: name.to_string(),
                    max_fails: *max_fails,
                }),
                tasks_max: *tasks_max,
            }),
            SubmitTarget::Attach(job) => Self::AttachJob(job.as_u32()),
        }
    }
}

impl TryFrom<client::ArraySubmit> for ArraySpec {
    type Error = ConvertError;

    fn try_from(message: client::ArraySubmit) -> Result<Self, ConvertError> {
        use client::array_submit::Ids;
        let (ids, has_params) = match required(message.ids, "ids")? {
            Ids::Given(ids) => (ArrayIds::Given(ids.try_into().within("given")?), false),
            Ids::Next(count) => (ArrayIds::Next(count), false),
            Ids::GivenParams(ids) => {
                let ids = ids.try_into().within("given_params")?;
                (ArrayIds::Given(ids), true)
            }
            Ids::NextParams(count) => (ArrayIds::Next(count), true),
        };
        let count = match &ids {
            ArrayIds::Given(ids) => ids.len(),
            ArrayIds::Next(count) => *count,
        };
        let entries: Option<Entries> = message
            .entries
            .map(TryInto::try_into)
            .transpose()
            .within("entries")?;
        if let Some(entries) = &entries {
            same_len("entries", entries.len(), count as usize)?;
        }
        let template: TaskTemplate = required(message.template, "template")?
            .try_into()
            .within("template")?;
        // An entry becomes the value of an environment variable, unless it is passed to an
        // interpreter.
        let has_nul = |entries: &Entries| {
            let mut list = (0_u32..).map_while(|index| entries.get(index));
            list.any(|entry| entry.contains(&0))
        };
        if !template.is_call && entries.as_ref().is_some_and(has_nul) {
            let refusal = ConvertError::invalid("data", "entries without NUL bytes", "one");
            return Err(refusal).within("entries");
        }
        check_params(&template, &ids, (has_params, entries.is_some()))?;
        Ok(Self {
            ids,
            entries,
            template: Arc::new(template),
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
            entries: spec.entries.as_ref().map(Into::into),
            template: Some(spec.template.as_ref().into()),
        }
    }
}

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
        at_most("templates", templates.len(), GRAPH_TEMPLATES_MAX)?;
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
        let templates: Vec<TaskTemplate> = each("templates", templates)?;
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
            templates: spec
                .templates
                .iter()
                .map(|template| template.as_ref().into())
                .collect(),
            task_ids: spec.tasks.iter().map(|task| task.id.as_u32()).collect(),
            task_templates: spec.tasks.iter().map(|task| task.template).collect(),
            dep_ends: spec.tasks.iter().map(&mut dep_end).collect(),
            deps,
        }
    }
}
