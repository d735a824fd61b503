//! Messages of the client protocol as JSON. Names and units are interface, see `docs/openapi.yaml`.

use hq_core::autoalloc::ReasonKind;
use hq_core::id::TaskKey;
use hq_core::job::TaskTotals;
use hq_core::params::fill;
use hq_core::task::TaskState;
use hq_protocol::client;
use hq_protocol::common::{self, ResourceDescriptor, resource_item::Kind};
use serde_json::{Value, json};

use crate::query::JobOverview;
use crate::query::listed::ListedJob;

/// Units of one whole amount.
#[expect(
    clippy::cast_precision_loss,
    reason = "amounts are far below 2^53 units"
)]
pub(super) fn amount(units: u64) -> f64 {
    units as f64 / hq_core::resource::amount::UNITS_PER_WHOLE as f64
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Milliseconds since 1970: what fits into a number of JavaScript.
pub(super) const fn ms(unix_ns: i64) -> i64 {
    unix_ns.div_euclid(1_000_000)
}

/// Numbers of tasks by state.
pub(super) fn tasks(mut counts: TaskTotals) -> Value {
    let pairs = TaskState::ALL.map(|state| (state.name().to_owned(), json!(*counts.of(state))));
    Value::Object(pairs.into_iter().collect())
}

pub(super) fn job(job: &client::JobSummary) -> Value {
    let counts: TaskTotals = job.stats.as_ref().map(Into::into).unwrap_or_default();
    json!({
        "id": job.id,
        "name": job.name,
        "is_open": job.is_open,
        "state": counts.state(job.is_open).name(),
        "task_count": job.task_count,
        "tasks": tasks(counts),
        "cancel_reason": job.cancel_reason,
    })
}

/// A job of a list.
pub(super) fn listed(found: &ListedJob) -> Value {
    let mut value = job(&found.summary);
    value["submitted_ms"] = json!(ms(found.submitted.0));
    value["finished_ms"] = json!(found.finished.map(|at| ms(at.0)));
    value["worker_count"] = json!(found.worker_count);
    value["cpus"] = json!(found.asked.cpus.map(amount));
    value["resources"] = json!(found.asked.words);
    value["rate_per_s"] = json!(found.pace.map(|pace| pace.rate));
    let left = found.pace.and_then(|pace| pace.left);
    value["left_ms"] = json!(left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)));
    value
}

pub(super) fn job_detail((found, shown): &(JobOverview, ListedJob)) -> Value {
    let detail = &found.detail;
    let mut value = listed(shown);
    value["finished_ms"] = json!(detail.finished_unix_ns.map(ms));
    value["max_fails"] = json!(detail.max_fails);
    value["notifications"] = detail.notifications.iter().map(notification).collect();
    let counted = detail.submits.iter().zip(&found.template_counts);
    let submits = counted.map(|(submit, template_count)| {
        let command = submit.templates.first().map(command);
        json!({
            "submit_dir": lossy(&submit.submit_dir),
            "is_graph": submit.is_graph,
            "template_count": template_count,
            "command": command,
        })
    });
    value["submits"] = submits.collect();
    value
}

fn notification(found: &client::JobNotice) -> Value {
    json!({
        "target": found.target,
        "event": found.event().name(),
        "state": found.state().name(),
        "at_ms": (found.at_unix_ns > 0).then(|| ms(found.at_unix_ns)),
        "attempts": found.attempts,
        "error": (!found.error.is_empty()).then_some(&found.error),
    })
}

pub(super) fn task(task: &client::TaskInfo) -> Value {
    let state = match task.state() {
        client::TaskState::Waiting => "waiting",
        client::TaskState::Running => "running",
        client::TaskState::Finished => "finished",
        client::TaskState::Failed => "failed",
        client::TaskState::Canceled => "canceled",
        client::TaskState::Aborted => "aborted",
    };
    let worker = task.workers.first();
    let params = task.params.iter();
    let params: serde_json::Map<String, Value> = params
        .map(|param| (param.name.clone(), json!(lossy(&param.value))))
        .collect();
    json!({
        "id": task.id,
        "params": (!params.is_empty()).then_some(params),
        "state": state,
        "instance": task.instance,
        "crash_count": task.crash_count,
        "retry_count": task.retry_count,
        "started_ms": task.started_unix_ns.map(ms),
        "finished_ms": task.finished_unix_ns.map(ms),
        "worker": worker.map(|worker| worker.id),
        "host": worker.map(|worker| &worker.hostname),
        "error": task.error,
        "max_rss_bytes": task.usage.map(|usage| usage.max_rss_kib.saturating_mul(1024)),
        "cwd": task.paths.as_ref().map(|paths| lossy(&paths.cwd)),
    })
}

/// A task with what it was asked to do. `words` say which resources.
pub(super) fn task_detail(
    found: &client::TaskInfo,
    template: Option<&common::TaskTemplate>,
    words: &str,
) -> Value {
    let mut value = task(found);
    let variables = template.iter().flat_map(|template| &template.env);
    // Variables of the user; the others are the same for every task.
    let own = variables.filter(|variable| !variable.name.starts_with(b"HQ_"));
    let cwd = found.paths.as_ref().map(|paths| &*paths.cwd);
    let path = |stdio: Option<&common::Stdio>| stdio.and_then(|stdio| path_of(stdio, cwd));
    let paths = found.paths.as_ref();
    let micros = |usage: client::TaskUsage| usage.user_us.saturating_add(usage.system_us);
    let params: Vec<(&str, &[u8])> = found
        .params
        .iter()
        .map(|param| (param.name.as_str(), &*param.value))
        .collect();
    let filled = |template: &common::TaskTemplate| -> Vec<String> {
        let args = template.args.iter();
        args.map(|arg| lossy(&fill(arg, &params))).collect()
    };
    value["command"] = json!(template.map(filled));
    value["env"] = own
        .map(|variable| json!([lossy(&variable.name), lossy(&variable.value)]))
        .collect();
    value["resources"] = json!(words);
    value["entry"] = json!(entry(found, template).map(lossy));
    value["deps"] = json!(found.deps);
    value["attempts"] = found.attempts.iter().map(attempt).collect();
    value["stdout"] = json!(path(paths.and_then(|paths| paths.stdout.as_ref())));
    value["stderr"] = json!(path(paths.and_then(|paths| paths.stderr.as_ref())));
    value["time_limit_ms"] = json!(
        template
            .and_then(|template| template.time_limit_ns)
            .map(|ns| ns / 1_000_000)
    );
    value["priority"] = json!(template.map_or(0, |template| template.priority));
    value["cpu_ms"] = json!(found.usage.map(|usage| micros(usage) / 1_000));
    value
}

/// The entry of a task as far as it is shown: that of a call is pickled, and has the key to values that workers hold. Who may
/// look may not read and drop those.
pub(super) fn entry<'a>(
    found: &'a client::TaskInfo,
    template: Option<&common::TaskTemplate>,
) -> Option<&'a [u8]> {
    let is_shown = template.is_some_and(|template| !template.is_call);
    found.entry.as_deref().filter(|_| is_shown)
}

/// Arguments of a template.
pub(super) fn command(template: &common::TaskTemplate) -> Vec<String> {
    template.args.iter().map(|arg| lossy(arg)).collect()
}

/// The file that is written; `None` if there is none, or the output goes into a stream.
fn path_of(stdio: &common::Stdio, cwd: Option<&[u8]>) -> Option<String> {
    if stdio.kind() != common::stdio::Kind::File {
        return None;
    }
    let path = lossy(&stdio.path);
    match cwd {
        Some(cwd) if !path.starts_with('/') => Some(format!("{}/{path}", lossy(cwd))),
        Some(_) | None => Some(path),
    }
}

fn attempt(attempt: &client::TaskAttempt) -> Value {
    let worker = attempt.worker.as_ref();
    json!({
        "instance": attempt.instance,
        "worker": worker.map(|worker| worker.id),
        "host": worker.map(|worker| &worker.hostname),
        "started_ms": ms(attempt.started_unix_ns),
        "finished_ms": ms(attempt.finished_unix_ns),
        "error": attempt.error,
        "memory_mib": attempt.memory_units.map(amount),
        "time_limit_ms": attempt.time_limit_ns.map(|limit| limit / 1_000_000),
    })
}

pub(super) fn worker(worker: &client::WorkerInfo, tasks: &[TaskKey]) -> Value {
    use client::worker_info::State;
    let state = match worker.state() {
        State::Running => "connected",
        State::ConnectionLost => "connection-lost",
        State::HeartbeatLost => "heartbeat-lost",
        State::IdleTimeout => "idle-timeout",
        State::Stopped => "stopped",
        State::TimeLimitReached => "time-limit",
    };
    let config = worker.config.clone().unwrap_or_default();
    let mut offered = config.resources.as_ref().map(resources).unwrap_or_default();
    let used = worker.runtime.iter().flat_map(|runtime| &runtime.resources);
    for used in used {
        let found = offered
            .iter_mut()
            .find(|item| item["name"] == used.resource);
        if let Some(item) = found {
            item["used"] = json!(amount(used.used_units));
        }
    }
    json!({
        "id": worker.id,
        "host": config.hostname,
        "group": config.group,
        "state": state,
        "is_draining": worker.is_draining,
        "quarantine": worker.quarantine.as_ref().map(quarantine),
        "node_faults": worker.node_faults,
        "load": worker.runtime.as_ref().and_then(|runtime| runtime.load).map(load),
        "started_ms": ms(worker.started_unix_ns),
        "ended_ms": worker.ended_unix_ns.map(ms),
        "tasks": tasks.iter().map(|key| [key.job.as_u32(), key.task.as_u32()]).collect::<Vec<_>>(),
        "running_tasks": worker.runtime.as_ref().map_or(0, |runtime| runtime.running_tasks),
        "resources": offered,
        "allocation": config.allocation.map(|allocation| allocation.id),
    })
}

fn quarantine(quarantine: &client::Quarantine) -> Value {
    use client::quarantine::Stage;
    json!({
        "stage": match quarantine.stage() {
            Stage::Suspected => "suspected",
            Stage::Quarantined => "quarantined",
            Stage::Probed => "probed",
            Stage::Unfit => "unfit",
        },
        "since_ms": ms(quarantine.since_unix_ns),
        "until_ms": quarantine.until_unix_ns.map(ms),
        "is_asked": quarantine.is_asked,
        "reason": quarantine.why,
    })
}

/// Hardware usage of a machine; shares from 0 to 1.
fn load(load: client::WorkerLoad) -> Value {
    let share = |hundredths: u32| f64::from(hundredths) / 10_000.0;
    json!({
        "at_ms": ms(load.at_unix_ns),
        "cpus": share(load.cpu_share),
        "gpus": load.gpu_share.map(share),
        "memory_used_bytes": load.memory_used_bytes,
        "memory_total_bytes": load.memory_total_bytes,
    })
}

fn resources(descriptor: &ResourceDescriptor) -> Vec<Value> {
    let items = descriptor.items.iter().map(|item| {
        let (total, groups) = match &item.kind {
            Some(Kind::List(list)) => (whole(list.values.len()), Vec::new()),
            Some(Kind::Range(span)) => (
                f64::from(span.end.saturating_sub(span.start)) + 1.0,
                Vec::new(),
            ),
            Some(Kind::Groups(groups)) => {
                let sizes: Vec<usize> = groups
                    .groups
                    .iter()
                    .map(|group| group.values.len())
                    .collect();
                (whole(sizes.iter().sum()), sizes)
            }
            Some(Kind::SumUnits(units)) => (amount(*units), Vec::new()),
            None => (0.0, Vec::new()),
        };
        json!({"name": item.name, "total": total, "used": null, "groups": groups})
    });
    items.collect()
}

fn whole(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

pub(super) fn queue(queue: &client::AllocQueue, allocations: &[client::AllocAllocation]) -> Value {
    use client::alloc_allocation::State;
    let allocations = allocations.iter().map(|allocation| {
        let state = match allocation.state() {
            State::Queued => "queued",
            State::Running => "running",
            State::Finished => "finished",
            State::Failed => "failed",
        };
        json!({
            "id": allocation.id,
            "state": state,
            "workers": allocation.workers,
            "queued_ms": ms(allocation.queued_unix_ns),
            "started_ms": allocation.started_unix_ns.map(ms),
            "ended_ms": allocation.ended_unix_ns.map(ms),
        })
    });
    json!({
        "id": queue.id,
        "name": queue.spec.as_ref().and_then(|spec| spec.name.clone()),
        "is_paused": queue.is_paused,
        "reason": queue.reason,
        "reason_kind": queue.known_reason().map(ReasonKind::name),
        "is_failing": queue.is_failing(),
        "allocations": allocations.collect::<Vec<_>>(),
    })
}

pub(super) fn output(output: &client::Output) -> Value {
    use client::output::Kind;
    let kind = match output.kind() {
        Kind::Data => "data",
        Kind::NotFound => "not-found",
        Kind::NotStarted => "not-started",
        Kind::NoOutput => "none",
        Kind::Unreachable => "unreachable",
    };
    json!({
        "kind": kind,
        "instance": output.instance,
        "offset": output.offset,
        "next": output.next,
        "is_complete": output.is_complete,
        "text": String::from_utf8_lossy(&output.data),
        "error": output.error,
    })
}
