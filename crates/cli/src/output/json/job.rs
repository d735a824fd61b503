//! Jobs as JSON.

use std::io;

use hq_protocol::{client, common};
use serde_json::{Map, Value, json};

use super::stream::JsonStream;
use super::{stdio_value, task};
use crate::output::format::{lossy, rfc3339, seconds};
use crate::output::view::{self, CrashLimitView};
use crate::output::{JobInfoSink, Out};

/// Returns a job as `job list` shows it.
pub(super) fn summary(job: &client::JobSummary) -> Value {
    let stats = job.stats.unwrap_or_default();
    json!({
        "cancel_reason": job.cancel_reason,
        "id": job.id,
        "is_open": job.is_open,
        "name": job.name,
        "task_count": job.task_count,
        "task_stats": {
            "aborted": stats.aborted,
            "canceled": stats.canceled,
            "failed": stats.failed,
            "finished": stats.finished,
            "running": stats.running,
            "waiting": stats.waiting,
        },
    })
}

/// Returns a notification and its outcome.
fn notification(found: &client::JobNotice) -> Value {
    let is_over = found.at_unix_ns > 0;
    json!({
        "target": found.target,
        "event": found.event().name(),
        "state": found.state().name(),
        "at": is_over.then(|| rfc3339(found.at_unix_ns)),
        "attempts": found.attempts,
        "error": (!found.error.is_empty()).then_some(&found.error),
    })
}

/// Writes the output of `hq job info`. The tasks are written as they arrive.
pub(super) struct JobInfos<'a> {
    stream: JsonStream<'a>,
    is_verbose: bool,
}

impl<'a> JobInfos<'a> {
    pub(super) fn new(out: Out<'a>, is_verbose: bool) -> Self {
        Self {
            stream: JsonStream::new(out),
            is_verbose,
        }
    }

    fn open_list(&mut self) -> io::Result<()> {
        if self.stream.depth() == 0 {
            self.stream.open_array(None)
        } else {
            Ok(())
        }
    }

    fn close_job(&mut self) -> io::Result<()> {
        while self.stream.depth() > 1 {
            self.stream.close()?;
        }
        Ok(())
    }
}

impl JobInfoSink for JobInfos<'_> {
    fn job(&mut self, job: &client::JobDetail) -> io::Result<()> {
        self.open_list()?;
        self.close_job()?;
        let info = job.summary.clone().unwrap_or_default();
        let finished_at = view::finished_at(job).map(rfc3339);
        let submits = job
            .submits
            .iter()
            .map(|submit| submit_value(submit, info.id))
            .collect();
        self.stream.open_object(None)?;
        self.stream
            .value(Some("finished_at"), &json!(finished_at))?;
        self.stream.value(Some("info"), &summary(&info))?;
        self.stream
            .value(Some("max_fails"), &json!(job.max_fails))?;
        if !job.notifications.is_empty() {
            let notifications = job.notifications.iter().map(notification).collect();
            self.stream
                .value(Some("notifications"), &Value::Array(notifications))?;
        }
        if self.is_verbose {
            let notes = json!(view::notes(job));
            self.stream.value(Some("notes"), &notes)?;
        }
        self.stream
            .value(Some("started_at"), &json!(rfc3339(job.submitted_unix_ns)))?;
        self.stream.value(Some("submits"), &Value::Array(submits))?;
        self.stream.open_array(Some("tasks"))
    }

    fn tasks(&mut self, page: &client::TaskPageReply) -> io::Result<()> {
        for info in &page.tasks {
            self.stream.value(None, &task::task(info))?;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> io::Result<()> {
        self.open_list()?;
        self.stream.close_all()
    }
}

fn submit_value(submit: &client::SubmitInfo, job: u32) -> Value {
    if !submit.is_graph {
        let template = submit.templates.first().map(|template| {
            let mut value = definition(template, Some(job));
            task::add_params(&mut value, &submit.params);
            value
        });
        return json!({ "array": template });
    }
    let definitions: Vec<Value> = submit
        .templates
        .iter()
        .map(|template| definition(template, None))
        .collect();
    let tasks: Vec<&Value> = submit
        .graph_templates
        .iter()
        .filter_map(|index| definitions.get(usize::try_from(*index).ok()?))
        .collect();
    json!({ "graph": tasks })
}

/// Returns the definition of a task. Paths of arrays contain the job id.
pub(super) fn definition(template: &common::TaskTemplate, job: Option<u32>) -> Value {
    let path = |bytes: &[u8]| match job {
        Some(job) => view::job_path(bytes, job),
        None => lossy(bytes),
    };
    let stdio_path = |bytes: &[u8]| match job {
        Some(job) => view::stdio_path(bytes, &template.cwd, job),
        None => lossy(bytes),
    };
    let env: Map<String, Value> = template
        .env
        .iter()
        .map(|variable| (lossy(&variable.name), Value::String(lossy(&variable.value))))
        .collect();
    let args: Vec<String> = template.args.iter().map(|arg| lossy(arg)).collect();
    let pin = match view::pin(template) {
        common::PinMode::None => None,
        common::PinMode::Taskset => Some("taskset"),
        common::PinMode::OpenMp => Some("openmp"),
    };
    let crash_limit = match view::crash_limit(template) {
        CrashLimitView::Number(number) => json!(number),
        CrashLimitView::Word(word) => json!(word),
    };
    let resources: Vec<Value> = template.requests.iter().map(request).collect();
    json!({
        "crash_limit": crash_limit,
        "pin_mode": pin,
        "priority": template.priority,
        "program": {
            "args": args,
            "cwd": path(&template.cwd),
            "env": env,
            "stderr": template.stderr.as_ref().and_then(|stdio| stdio_value(stdio, stdio_path)),
            "stdout": template.stdout.as_ref().and_then(|stdio| stdio_value(stdio, stdio_path)),
        },
        "resources": resources,
        "task_dir": template.task_dir,
        "time_limit": template.time_limit_ns.map(seconds),
    })
}

fn request(request: &common::ResourceRequest) -> Value {
    let entries: Vec<Value> = request
        .entries
        .iter()
        .map(|entry| {
            let policy = match view::policy(entry) {
                common::Policy::All => {
                    return json!({ "request": "All", "resource": entry.resource });
                }
                common::Policy::Compact => "Compact",
                common::Policy::ForceCompact => "ForceCompact",
                common::Policy::Tight => "Tight",
                common::Policy::ForceTight => "ForceTight",
                common::Policy::Scatter => "Scatter",
            };
            json!({ "request": { policy: entry.amount_units }, "resource": entry.resource })
        })
        .collect();
    json!({
        "min_time": seconds(request.min_time_ns),
        "n_nodes": request.n_nodes,
        "resources": entries,
        "weight": request.weight_units,
    })
}
