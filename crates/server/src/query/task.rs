//! Tasks in pages, in the order of submits and ids.

use std::collections::BTreeMap;
use std::sync::Arc;

use hq_core::growth::{GrowSpec, memory};
use hq_core::id::{JobId, TaskId};
use hq_core::job::{Job, SharedTemplate, Submit, TaskSlot, TemplateId};
use hq_core::outcome::Usage;
use hq_core::placeholder::{PathPatterns, PathValues};
use hq_core::range::IdRange;
use hq_core::server_state::ServerState;
use hq_core::task::{Phase, TaskRecord, TaskState};
use hq_core::template::{ByteText, StdioSpec, TaskTemplate};
use hq_core::time::nanos;
use hq_protocol::convert::TaskPageQuery;
use hq_protocol::limits::PAGE_BYTES_MAX;
use hq_protocol::{Message as _, client, common};

use super::{aborted, resolve, worker_ref};
use crate::core_handle::View;
use crate::curves;
use crate::updates::Details;

/// The maximum number of tasks examined or shown per page, which keeps a page below a millisecond
/// or two.
const PAGE_MAX: u32 = 4_096;
/// The maximum number of different templates in a page with definitions. Each takes 5 µs.
const TEMPLATES_MAX: usize = 512;

/// The maximum number of aborted tasks explained per page. Each explanation may follow many
/// dependencies.
const REASONS_MAX: usize = 64;

/// The maximum length in bytes of a parameter value next to an error.
const SHORT_VALUE_MAX: usize = 100;

/// Returns the cursor of a page: the submit in the high half, and the index or position in the low
/// half.
fn cursor(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn split_cursor(cursor: u64) -> (u32, u32) {
    let low = u32::try_from(cursor & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    (u32::try_from(cursor >> 32).unwrap_or(u32::MAX), low)
}

/// Collects the tasks of one page.
struct Page<'a> {
    state: &'a ServerState,
    job: &'a Job,
    query: &'a TaskPageQuery,
    reply: client::TaskPageReply,
    /// The size of the reply in bytes. Definitions and paths may be long.
    bytes: usize,
    is_full_of_templates: bool,
    templates: BTreeMap<TemplateId, (u32, PathPatterns)>,
}

pub(super) fn page(view: &View<'_>, query: &TaskPageQuery) -> client::TaskPageReply {
    let id = resolve(view.state, query.job);
    let mut reply = client::TaskPageReply {
        job: id.map_or(0, JobId::as_u32),
        now_unix_ns: view.now.wall.0,
        ..client::TaskPageReply::default()
    };
    let Some(job) = id.and_then(|id| view.state.jobs().get(&id)) else {
        return reply;
    };
    reply.job_found = true;
    let mut page = Page {
        state: view.state,
        job,
        query,
        reply,
        bytes: 0,
        is_full_of_templates: false,
        templates: BTreeMap::new(),
    };
    match &query.tasks {
        Some(ids) => page.add_selected(ids),
        None => page.add_all(),
    }
    page.reply
}

impl Page<'_> {
    fn limit(&self) -> u32 {
        if self.query.limit == 0 {
            PAGE_MAX
        } else {
            self.query.limit.min(PAGE_MAX)
        }
    }

    /// Returns whether the next task must go on the next page. Each page has at least one task.
    const fn is_full(&self) -> bool {
        self.bytes >= PAGE_BYTES_MAX || self.is_full_of_templates
    }

    fn wants(&self, state: TaskState) -> bool {
        self.query.states.is_empty() || self.query.states.contains(&state)
    }

    /// Adds the tasks that the user named, in that order.
    fn add_selected(&mut self, ids: &hq_core::range::IdArray) {
        let (_, mut at) = split_cursor(self.query.cursor);
        let mut missing = Vec::new();
        // Each step finds a task or skips a range of ids.
        for _ in 0..self.limit() {
            let Some(rest) = ids.range_from(at).filter(|_| !self.is_full()) else {
                break;
            };
            let found = self.job.first_in(&rest);
            let position = found.and_then(|task| rest.position(task.as_u32()));
            missing.extend(rest.part(0, position.unwrap_or(rest.count())));
            if let Some(slot) = found.and_then(|task| self.job.find(task)) {
                self.add_slot(slot);
            }
            at += position.map_or(rest.count(), |position| position + 1);
        }
        self.reply.not_found = Some(common::IdArray {
            ranges: missing.iter().map(Into::into).collect(),
        });
        if at < ids.len() {
            self.reply.next_cursor = Some(cursor(0, at));
        }
    }

    fn add_all(&mut self) {
        let (mut number, mut index) = split_cursor(self.query.cursor);
        let mut left = self.limit();
        while let Some(submit) = self.job.submits.get(number as usize) {
            for (from, to, phase) in submit.tasks.runs(index, submit.tasks.len()) {
                if !self.wants(phase.state()) {
                    index = to;
                    continue;
                }
                let mut end = to.min(from.saturating_add(left));
                for found in from..end {
                    if self.is_full() {
                        end = found;
                        break;
                    }
                    self.add_slot(TaskSlot::new(number, found));
                }
                left -= end - from;
                if self.is_full() {
                    left = 0;
                }
                index = end;
                if left == 0 {
                    break;
                }
            }
            if left == 0 {
                let more_here = index < submit.tasks.len();
                let next = if more_here {
                    (number, index)
                } else {
                    (number + 1, 0)
                };
                if (next.0 as usize) < self.job.submits.len() {
                    self.reply.next_cursor = Some(cursor(next.0, next.1));
                }
                return;
            }
            number += 1;
            index = 0;
        }
    }

    fn add_slot(&mut self, slot: TaskSlot) {
        let Some(submit) = self.job.submit(slot) else {
            return;
        };
        let (Some(phase), Some(id), Some(template)) = (
            submit.tasks.phase(slot.index),
            submit.ids.get(slot.index),
            submit.shown_template(slot.index),
        ) else {
            return;
        };
        if !self.wants(phase.state()) {
            return;
        }
        let with_definition = self.query.with_definition;
        let number = self.number_template(&template);
        let mut info = describe(self.state, submit, slot, TaskId(id));
        info.params = params(&template.task, TaskId(id));
        info.name = template.task.name.as_deref().map(str::to_owned);
        if !self.query.without_paths
            && let Some((_, patterns)) = self.templates.get(&template.id)
        {
            info.paths = paths(self.state, self.job, submit, slot, patterns);
        }
        if with_definition {
            if phase == Phase::Aborted && self.reply.tasks.len() < REASONS_MAX {
                info.error = aborted::reason(self.state, self.job, submit, slot, TaskId(id));
            }
            info.attempts = attempts(self.state, submit, slot.index);
            info.template = number;
            info.entry = submit.entry(slot.index).map(|entry| entry.to_vec().into());
            let deps = submit.deps(slot.index);
            info.deps = deps.into_iter().map(TaskId::as_u32).collect();
            info.after = submit.after.iter().map(Into::into).collect();
            let origin = submit.origin.as_ref();
            info.submitted_by = origin.map(|origin| origin.task.as_u32());
        }
        self.bytes += info.encoded_len();
        if self.query.with_curves {
            self.bytes += curves::bytes_max(&info);
        }
        self.reply.tasks.push(info);
    }

    fn number_template(&mut self, template: &Arc<SharedTemplate>) -> u32 {
        if let Some((number, _)) = self.templates.get(&template.id) {
            return *number;
        }
        let number = u32::try_from(self.templates.len()).unwrap_or(u32::MAX);
        if self.query.with_definition {
            let shown = common::TaskTemplate::without_stdin(&template.task);
            self.bytes += shown.encoded_len();
            self.reply.templates.push(shown);
        }
        self.templates
            .insert(template.id, (number, PathPatterns::new(&template.task)));
        self.is_full_of_templates = self.templates.len() >= TEMPLATES_MAX;
        number
    }
}

/// Returns the values of a task's parameters.
fn params(task: &TaskTemplate, id: TaskId) -> Vec<client::Param> {
    let Some(params) = task.params.as_deref() else {
        return Vec::new();
    };
    let values = params.values(id).into_iter();
    let param = |(name, value): (&str, ByteText)| client::Param {
        name: name.to_owned(),
        value: value.into_vec().into(),
    };
    values.map(param).collect()
}

/// Returns abbreviated values, for very many ended tasks in one message and for lines about
/// failures.
fn short_params(task: &TaskTemplate, id: TaskId) -> Vec<client::Param> {
    let mut params = params(task, id);
    for param in &mut params {
        // A value may be as long as an argument.
        if param.value.len() > SHORT_VALUE_MAX {
            let mut value = param.value[..SHORT_VALUE_MAX].to_vec();
            value.extend_from_slice("…".as_bytes());
            param.value = value.into();
        }
    }
    params
}

/// Returns everything except the paths, the parameters and the definition.
fn describe(state: &ServerState, submit: &Submit, slot: TaskSlot, id: TaskId) -> client::TaskInfo {
    let task_state = submit
        .tasks
        .phase(slot.index)
        .map_or(TaskState::Waiting, Phase::state);
    let mut info = client::TaskInfo {
        id: id.as_u32(),
        state: client::TaskState::from(task_state).into(),
        instance: submit.tasks.instance(slot.index).as_u32(),
        ..client::TaskInfo::default()
    };
    let Some(record) = submit.tasks.record(slot.index) else {
        return info;
    };
    info.crash_count = record.crash_count();
    info.retry_count = u32::from(record.retry_count());
    if record.has_run() {
        info.started_unix_ns = record.started().map(|time| time.0);
        info.finished_unix_ns = record.finished().map(|time| time.0);
        info.multi_node = !submit.tasks.nodes(slot.index).is_empty();
        info.workers = workers_of(state, submit, slot, record);
    }
    if matches!(task_state, TaskState::Finished | TaskState::Failed) {
        info.usage = Some(usage_message(&record.usage()));
    }
    if task_state == TaskState::Failed {
        info.error = submit
            .tasks
            .outcome(slot.index)
            .map(|outcome| outcome.error_text());
    }
    info
}

fn usage_message(usage: &Usage) -> client::TaskUsage {
    let micros = |d: std::time::Duration| u64::try_from(d.as_micros()).unwrap_or(u64::MAX);
    client::TaskUsage {
        max_rss_kib: usage.max_rss_kib,
        user_us: micros(usage.user),
        system_us: micros(usage.system),
    }
}

/// Returns the attempts before the last one.
fn attempts(state: &ServerState, submit: &Submit, index: u32) -> Vec<client::TaskAttempt> {
    let attempts = submit.tasks.attempts(index).iter();
    attempts
        .map(|attempt| {
            // Without growth, all attempts get the same amounts, which are sent once.
            let growing = submit
                .definition_at(index, attempt.instance)
                .filter(|task| task.retry.grow != GrowSpec::default());
            client::TaskAttempt {
                instance: attempt.instance.as_u32(),
                worker: Some(worker_ref(state, attempt.worker)),
                started_unix_ns: attempt.end.at.minus(attempt.end.run).0,
                finished_unix_ns: attempt.end.at.0,
                error: attempt.end.outcome.error_text(),
                usage: Some(usage_message(&attempt.end.usage)),
                memory_units: growing
                    .as_ref()
                    .and_then(|task| Some(memory(&task.requests)?.0)),
                time_limit_ns: growing.and_then(|task| Some(nanos(task.time_limit?))),
                curve: None,
            }
        })
        .collect()
}

/// Returns the workers of the last instance. The root of a multi-node task comes first.
fn workers_of(
    state: &ServerState,
    submit: &Submit,
    slot: TaskSlot,
    record: TaskRecord,
) -> Vec<client::WorkerRef> {
    match submit.tasks.nodes(slot.index) {
        [] => vec![worker_ref(state, record.worker())],
        nodes => nodes.iter().map(|id| worker_ref(state, *id)).collect(),
    }
}

/// Returns the resolved paths of a task that was started at least once.
fn paths(
    state: &ServerState,
    job: &Job,
    submit: &Submit,
    slot: TaskSlot,
    patterns: &PathPatterns,
) -> Option<client::TaskPaths> {
    let record = submit
        .tasks
        .record(slot.index)
        .filter(|record| record.has_run() || record.was_started())?;
    let values = PathValues {
        job: job.id,
        task: job.key(slot)?.task,
        instance: record.instance(),
        submit_dir: &submit.header.submit_dir,
        server_uid: state.uid(),
        cwd: &[],
    };
    let paths = patterns.render(&values);
    let stdio = |spec: &StdioSpec| {
        let mut stdio = common::Stdio::from(spec);
        if let (StdioSpec::Stream, Some(dir)) = (spec, &submit.header.stream_dir) {
            stdio.path = super::output::stream_dir(dir, &values).into();
        }
        stdio
    };
    Some(client::TaskPaths {
        stdout: Some(stdio(&paths.stdout)),
        stderr: Some(stdio(&paths.stderr)),
        cwd: paths.cwd.into(),
    })
}

/// Returns a failed task for the overview of its job.
pub(super) fn failed(state: &ServerState, job: &Job, task: TaskId) -> Option<client::FailedTask> {
    let slot = job.find(task)?;
    let submit = job.submit(slot)?;
    let record = submit.tasks.record(slot.index)?;
    Some(client::FailedTask {
        id: task.as_u32(),
        workers: workers_of(state, submit, slot, record),
        error: submit.tasks.outcome(slot.index)?.error_text(),
        params: submit
            .definition(slot.index)
            .map_or_else(Vec::new, |definition| short_params(&definition, task)),
    })
}

/// Returns the first of these ended tasks for a watching client, and the number of tasks that it
/// stands for.
pub(super) fn ended(
    state: &ServerState,
    job: &Job,
    tasks: &IdRange,
    details: Details,
) -> (Option<client::EndedTask>, u32) {
    let task = TaskId(tasks.first());
    let slot = job.find(task);
    let Some((slot, submit)) = slot.and_then(|slot| Some((slot, job.submit(slot)?))) else {
        return (None, 1);
    };
    let info = describe(state, submit, slot, task);
    let template = submit.definition(slot.index);
    // Calls have a value instead of files.
    let paths = template
        .as_ref()
        .filter(|_| !details.with_values)
        .and_then(|template| paths(state, job, submit, slot, &PathPatterns::new(template)));
    // Clients need the parameter values only for failed tasks.
    let failed = template.filter(|_| info.error.is_some());
    let alike = match details.with_ranges && tasks.step() == 1 {
        true => untouched(submit, slot.index).clamp(1, tasks.count()),
        false => 1,
    };
    let ended = client::EndedTask {
        params: failed.map_or_else(Vec::new, |template| short_params(&template, task)),
        id: info.id,
        state: info.state,
        error: info.error,
        paths,
        instance: info.instance,
        worker: info.workers.first().map(|worker| worker.id),
        value: None,
        others: alike - 1,
    };
    (Some(ended), alike)
}

/// Does the same as [`ended`] for a job that was forgotten before its client was notified of the
/// ended tasks.
pub(super) fn forgotten(
    job: JobId,
    tasks: &IdRange,
    details: Details,
) -> (Option<client::EndedTask>, u32) {
    let alike = match details.with_ranges && tasks.step() == 1 {
        true => tasks.count(),
        false => 1,
    };
    let ended = client::EndedTask {
        id: tasks.first(),
        state: client::TaskState::Failed.into(),
        error: Some(format!(
            "job {job} was forgotten before the result was read"
        )),
        others: alike - 1,
        ..client::EndedTask::default()
    };
    (Some(ended), alike)
}

/// Returns how many consecutive tasks, starting with this one, have no record and the same state.
fn untouched(submit: &Submit, index: u32) -> u32 {
    let ids = submit.ids.range_from(index);
    let ids = ids
        .filter(|ids| ids.step() == 1)
        .map_or(1, |ids| ids.count());
    submit.tasks.untouched(index).min(ids)
}
