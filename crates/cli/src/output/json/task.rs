//! Tasks as JSON.

use std::io;
use std::time::Duration;

use hq_protocol::client;
use serde_json::{Value, json};

use super::stdio_value;
use super::stream::JsonStream;
use crate::output::curve;
use crate::output::format::{ids, lossy, mebibytes, rfc3339};
use crate::output::view;
use crate::output::{Out, TaskInfoSink, TaskListSink};

/// Returns a task as an object. Its keys depend on the state of the task.
pub(super) fn task(info: &client::TaskInfo) -> Value {
    let state = view::task_state(info.state);
    let mut value = json!({ "id": info.id, "state": view::task_state_name(state).to_lowercase() });
    if let Some(paths) = &info.paths {
        value["cwd"] = json!(lossy(&paths.cwd));
        value["stdout"] = json!(paths.stdout.as_ref().and_then(|s| stdio_value(s, lossy)));
        value["stderr"] = json!(paths.stderr.as_ref().and_then(|s| stdio_value(s, lossy)));
    }
    if let Some(started) = info.started_unix_ns {
        value["started_at"] = json!(rfc3339(started));
        if info.multi_node {
            let workers: Vec<u32> = info.workers.iter().map(|worker| worker.id).collect();
            value["workers"] = json!(workers);
        } else if let Some(worker) = info.workers.first() {
            value["worker"] = json!(worker.id);
        }
    }
    if let Some(finished) = info.finished_unix_ns {
        value["finished_at"] = json!(rfc3339(finished));
    }
    if state == client::TaskState::Failed {
        value["error"] = json!(info.error.clone().unwrap_or_default());
    }
    add_params(&mut value, &info.params);
    value
}

/// Adds the names and values of parameters if the task has any. See `docs/jobs.md`.
pub(crate) fn add_params(value: &mut Value, params: &[client::Param]) {
    if params.is_empty() {
        return;
    }
    let pairs = params.iter();
    let map: serde_json::Map<String, Value> = pairs
        .map(|param| (param.name.clone(), json!(lossy(&param.value))))
        .collect();
    value["params"] = map.into();
}

/// Adds the name of a step if it has one.
fn add_name(value: &mut Value, info: &client::TaskInfo) {
    if let Some(name) = &info.name {
        value["name"] = json!(name);
    }
}

/// Adds the keys of `-v` to a task object. See `docs/scripting.md`.
fn add_details(value: &mut Value, info: &client::TaskInfo) {
    let usage = |usage: &client::TaskUsage| {
        json!({
            "max_rss_kib": usage.max_rss_kib,
            "system_time": Duration::from_micros(usage.system_us).as_secs_f64(),
            "user_time": Duration::from_micros(usage.user_us).as_secs_f64(),
        })
    };
    let attempt = |attempt: &client::TaskAttempt| {
        let mut value = json!({
            "error": attempt.error,
            "finished_at": rfc3339(attempt.finished_unix_ns),
            "instance": attempt.instance,
            "started_at": rfc3339(attempt.started_unix_ns),
            "usage": attempt.usage.as_ref().map(usage),
            "usage_over_time": curve::value(attempt.curve.as_ref()),
            "worker": attempt.worker.as_ref().map(|worker| worker.id),
        });
        if let Some(units) = attempt.memory_units {
            value["memory_mib"] = json!(mebibytes(units));
        }
        if let Some(limit) = attempt.time_limit_ns {
            value["time_limit"] = json!(Duration::from_nanos(limit).as_secs_f64());
        }
        value
    };
    value["attempts"] = info.attempts.iter().map(attempt).collect();
    value["crash_count"] = json!(info.crash_count);
    value["instance"] = json!(info.instance);
    add_name(value, info);
    value["usage"] = json!(info.usage.as_ref().map(usage));
    value["usage_over_time"] = curve::value(info.curve.as_ref());
}

/// Writes the output of `hq task list`: an object with one array per job.
pub(super) struct TaskLists<'a> {
    stream: JsonStream<'a>,
    is_verbose: bool,
}

impl<'a> TaskLists<'a> {
    pub(super) fn new(out: Out<'a>, is_verbose: bool) -> Self {
        Self {
            stream: JsonStream::new(out),
            is_verbose,
        }
    }

    fn open(&mut self) -> io::Result<()> {
        if self.stream.depth() == 0 {
            self.stream.open_object(None)
        } else {
            Ok(())
        }
    }
}

impl TaskListSink for TaskLists<'_> {
    fn job(&mut self, job: u32) -> io::Result<()> {
        self.open()?;
        if self.stream.depth() > 1 {
            self.stream.close()?;
        }
        self.stream.open_array(Some(&job.to_string()))
    }

    fn tasks(&mut self, page: &client::TaskPageReply) -> io::Result<()> {
        for info in &page.tasks {
            let mut value = task(info);
            if self.is_verbose {
                add_name(&mut value, info);
            }
            self.stream.value(None, &value)?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> io::Result<bool> {
        self.open()?;
        self.stream.close_all()?;
        Ok(false)
    }
}

/// Writes the output of `hq task info`: an array of tasks.
pub(super) struct TaskInfos<'a> {
    stream: JsonStream<'a>,
    is_verbose: bool,
}

impl<'a> TaskInfos<'a> {
    pub(super) fn new(out: Out<'a>, is_verbose: bool) -> Self {
        Self {
            stream: JsonStream::new(out),
            is_verbose,
        }
    }

    fn open(&mut self) -> io::Result<()> {
        if self.stream.depth() == 0 {
            self.stream.open_array(None)
        } else {
            Ok(())
        }
    }
}

impl TaskInfoSink for TaskInfos<'_> {
    fn tasks(&mut self, page: &client::TaskPageReply) -> io::Result<()> {
        self.open()?;
        for info in &page.tasks {
            let mut value = task(info);
            if let Some(by) = info.submitted_by {
                value["submitted_by"] = json!(by);
            }
            if self.is_verbose {
                add_details(&mut value, info);
            }
            self.stream.value(None, &value)?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> io::Result<()> {
        self.open()?;
        self.stream.close_all()
    }
}

/// Writes the output of `hq job task-ids`.
pub(super) fn write_ids(out: Out<'_>, reply: &client::TaskIdsReply) -> io::Result<()> {
    let mut stream = JsonStream::new(out);
    stream.open_object(None)?;
    for job in &reply.jobs {
        stream.open_array(Some(&job.job.to_string()))?;
        for id in job.ids.iter().flat_map(ids) {
            stream.value(None, &json!(id))?;
        }
        stream.close()?;
    }
    stream.close_all()
}

/// Returns the output of `hq task explain`.
pub(super) fn explanation(explanation: &client::Explanation) -> Value {
    let workers: Vec<Value> = explanation
        .workers
        .iter()
        .map(|worker| {
            let variants: Vec<Vec<Value>> = worker
                .variants
                .iter()
                .map(|variant| variant.items.iter().filter_map(explain_item).collect())
                .collect();
            json!({ "variants": variants, "worker_id": worker.worker })
        })
        .collect();
    let mut value = json!({
        "explanation": {
            "n_task_deps": explanation.dep_count,
            "n_waiting_deps": explanation.waiting_dep_count,
            "workers": workers,
        },
        "task_id": { "job_id": explanation.job, "job_task_id": explanation.task },
    });
    // An additional key of hq, present only if it applies.
    if let Some(place) = &explanation.unkillable {
        value["explanation"]["unkillable"] = place.as_str().into();
    }
    if let Some(overdue) = explanation.start_overdue_ns {
        value["explanation"]["start_overdue"] = duration(overdue);
    }
    if let Some(wait) = explanation.next_attempt_in_ns {
        value["explanation"]["next_attempt_in"] = duration(wait);
    }
    value
}

fn explain_item(item: &client::ExplainItem) -> Option<Value> {
    use client::explain_item::Item;
    Some(match item.item.as_ref()? {
        Item::Time(time) => json!({ "Time": {
            "min_time": duration(time.min_time_ns),
            "remaining_time": time.remaining_ns.map(duration),
        } }),
        Item::Resource(resource) => json!({ "Resources": {
            "request_amount": resource.request_units,
            "resource": resource.resource,
            "worker_amount": resource.worker_units,
        } }),
        Item::Group(group) => json!({ "WorkerGroup": {
            "group_size": group.group_size,
            "n_nodes": group.n_nodes,
        } }),
    })
}

fn duration(ns: u64) -> Value {
    let duration = Duration::from_nanos(ns);
    json!({ "nanos": duration.subsec_nanos(), "secs": duration.as_secs() })
}
