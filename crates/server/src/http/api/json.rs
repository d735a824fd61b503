//! Converts messages of the client protocol to answers of the API.

use std::collections::BTreeMap;

use hq_core::curve::{Curve, GpuCurve};
use hq_core::id::TaskKey;
use hq_core::job::TaskTotals;
use hq_core::params::fill;
use hq_core::task::TaskState;
use hq_protocol::client;
use hq_protocol::common::{self, ResourceDescriptor, resource_item::Kind};

use super::answers::{
    Allocation, AllocationState, Attempt, GpuMemoryOf, Job, JobDetail, ListedJob, Load,
    Notification, NotificationEvent, NotificationState, Output, OutputKind, Quarantine,
    QuarantineStage, Queue, Submit, Task, TaskDetail, Tasks, Usage, UsageOfGpus, Worker,
    WorkerResource, WorkerState,
};
use super::described::{ByState, Id, Word};
use crate::query::{JobOverview, listed as query};

/// Converts units to whole amounts.
#[expect(
    clippy::cast_precision_loss,
    reason = "amounts are far below 2^53 units"
)]
pub(super) fn amount(units: u64) -> f64 {
    units as f64 / hq_core::resource::amount::UNITS_PER_WHOLE as f64
}

/// Converts nanoseconds to milliseconds.
#[expect(
    clippy::cast_precision_loss,
    reason = "2^53 ms are longer than anything runs"
)]
pub(super) fn whole_ms(ns: u64) -> f64 {
    (ns / 1_000_000) as f64
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Converts a time to milliseconds since 1970, which fit into a JavaScript number.
pub(super) const fn ms(unix_ns: i64) -> i64 {
    unix_ns.div_euclid(1_000_000)
}

/// Converts the numbers of tasks by state.
pub(super) fn tasks(mut counts: TaskTotals) -> Tasks {
    ByState(TaskState::ALL.map(|state| *counts.of(state)))
}

pub(super) fn job(job: &client::JobSummary) -> Job {
    let counts: TaskTotals = job.stats.as_ref().map(Into::into).unwrap_or_default();
    Job {
        id: Id(job.id),
        name: job.name.clone(),
        is_open: job.is_open,
        state: Word(counts.state(job.is_open)),
        task_count: job.task_count,
        tasks: tasks(counts),
        cancel_reason: job.cancel_reason.clone(),
    }
}

/// Converts a job in a list.
pub(super) fn listed(found: &query::ListedJob) -> ListedJob {
    let left = found.pace.and_then(|pace| pace.left);
    ListedJob {
        base: job(&found.summary),
        submitted_ms: ms(found.submitted.0),
        finished_ms: found.finished.map(|at| ms(at.0)),
        worker_count: found.worker_count,
        cpus: found.asked.cpus.map(amount),
        resources: found.asked.words.clone(),
        rate_per_s: found.pace.map(|pace| pace.rate),
        left_ms: left.map(|left| u64::try_from(left.as_millis()).unwrap_or(u64::MAX)),
    }
}

pub(super) fn job_detail((found, shown): &(JobOverview, query::ListedJob)) -> JobDetail {
    let detail = &found.detail;
    let counted = detail.submits.iter().zip(&found.template_counts);
    let submits = counted.map(|(submit, template_count)| Submit {
        submit_dir: lossy(&submit.submit_dir),
        is_graph: submit.is_graph,
        template_count: *template_count,
        command: submit.templates.first().map(command),
    });
    JobDetail {
        base: ListedJob {
            finished_ms: detail.finished_unix_ns.map(ms),
            ..listed(shown)
        },
        max_fails: detail.max_fails,
        notifications: detail.notifications.iter().map(notification).collect(),
        submits: submits.collect(),
    }
}

fn notification(found: &client::JobNotice) -> Notification {
    use client::{job_notice::State, notify_target::Event};
    Notification {
        target: found.target.clone(),
        event: match found.event() {
            Event::End => NotificationEvent::End,
            Event::Failure => NotificationEvent::Failure,
        },
        state: match found.state() {
            State::Waiting => NotificationState::Waiting,
            State::Owed => NotificationState::Owed,
            State::Delivered => NotificationState::Delivered,
            State::GivenUp => NotificationState::GivenUp,
        },
        at_ms: (found.at_unix_ns > 0).then(|| ms(found.at_unix_ns)),
        attempts: found.attempts,
        error: (!found.error.is_empty()).then(|| found.error.clone()),
    }
}

pub(super) fn task(task: &client::TaskInfo) -> Task {
    let state = match task.state() {
        client::TaskState::Waiting => TaskState::Waiting,
        client::TaskState::Running => TaskState::Running,
        client::TaskState::Finished => TaskState::Finished,
        client::TaskState::Failed => TaskState::Failed,
        client::TaskState::Canceled => TaskState::Canceled,
        client::TaskState::Aborted => TaskState::Aborted,
    };
    let worker = task.workers.first();
    let params = task.params.iter();
    let params: BTreeMap<String, String> = params
        .map(|param| (param.name.clone(), lossy(&param.value)))
        .collect();
    Task {
        id: Id(task.id),
        state: Word(state),
        instance: task.instance,
        crash_count: task.crash_count,
        retry_count: task.retry_count,
        started_ms: task.started_unix_ns.map(ms),
        finished_ms: task.finished_unix_ns.map(ms),
        worker: worker.map(|worker| worker.id),
        host: worker.map(|worker| worker.hostname.clone()),
        error: task.error.clone(),
        max_rss_bytes: task
            .usage
            .map(|usage| usage.max_rss_kib.saturating_mul(1024)),
        cwd: task.paths.as_ref().map(|paths| lossy(&paths.cwd)),
        params: (!params.is_empty()).then_some(params),
        name: task.name.clone(),
    }
}

/// Converts a task with its command. `words` describes its resources.
pub(super) fn task_detail(
    found: &client::TaskInfo,
    template: Option<&common::TaskTemplate>,
    words: &str,
) -> TaskDetail {
    let variables = template.iter().flat_map(|template| &template.env);
    // Only the user's variables are kept. hq's variables are the same for every task.
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
    let time_limit_ns = template.and_then(|template| template.time_limit_ns);
    TaskDetail {
        base: task(found),
        command: template.map(filled),
        env: own
            .map(|variable| [lossy(&variable.name), lossy(&variable.value)])
            .collect(),
        resources: words.to_owned(),
        entry: entry(found, template).map(lossy),
        deps: found.deps.clone(),
        attempts: found.attempts.iter().map(attempt).collect(),
        stdout: path(paths.and_then(|paths| paths.stdout.as_ref())),
        stderr: path(paths.and_then(|paths| paths.stderr.as_ref())),
        time_limit_ms: time_limit_ns.map(|ns| ns / 1_000_000),
        priority: template.map_or(0, |template| template.priority),
        cpu_ms: found.usage.map(|usage| micros(usage) / 1_000),
        usage: curve(found.curve.as_ref()),
    }
}

/// Returns the visible part of a task's entry. The entry of a call is pickled. It contains the key
/// to values that workers hold, and readers must not be able to read or drop these values.
pub(super) fn entry<'a>(
    found: &'a client::TaskInfo,
    template: Option<&common::TaskTemplate>,
) -> Option<&'a [u8]> {
    let is_shown = template.is_some_and(|template| !template.is_call);
    found.entry.as_deref().filter(|_| is_shown)
}

/// Returns the arguments of a template.
pub(super) fn command(template: &common::TaskTemplate) -> Vec<String> {
    template.args.iter().map(|arg| lossy(arg)).collect()
}

/// Returns the path of the output file. `None` if there is no file or the output is streamed.
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

/// Converts the use of memory and cpus over time. Returns `None` for short tasks and without
/// samples.
fn curve(found: Option<&common::Curve>) -> Option<Usage> {
    let curve = found.and_then(|found| Curve::try_from(found.clone()).ok())?;
    let asked = curve.asked;
    let bytes = |kib: u64| kib.saturating_mul(1024);
    Some(Usage {
        spacing_ms: u64::try_from(curve.spacing.as_millis()).unwrap_or(u64::MAX),
        memory_bytes: curve
            .points()
            .map(|point| bytes(point.memory_kib))
            .collect(),
        cpu_milli: curve.points().map(|point| point.cpu_milli).collect(),
        memory_asked_bytes: (asked.memory_kib > 0).then(|| bytes(asked.memory_kib)),
        is_memory_limit: asked.is_memory_limit,
        cpu_asked_milli: (asked.cpu_units > 0).then_some(asked.cpu_units / 10),
        gpu: curve.gpu.as_deref().map(gpu_usage),
    })
}

fn gpu_usage(curve: &GpuCurve) -> UsageOfGpus {
    let bytes = |kib: u64| kib.saturating_mul(1024);
    let given = curve.given;
    UsageOfGpus {
        busy_milli: curve.points().map(|point| point.busy_milli).collect(),
        memory_bytes: curve
            .points()
            .map(|point| point.memory_kib.map(bytes))
            .collect(),
        asked_milli: given.units / 10,
        memory_of_devices_bytes: (given.memory_kib > 0).then(|| bytes(given.memory_kib)),
        memory_of: if given.is_memory_of_devices {
            GpuMemoryOf::Devices
        } else {
            GpuMemoryOf::Processes
        },
    }
}

fn attempt(attempt: &client::TaskAttempt) -> Attempt {
    let worker = attempt.worker.as_ref();
    Attempt {
        instance: attempt.instance,
        worker: worker.map(|worker| worker.id),
        host: worker.map(|worker| worker.hostname.clone()),
        started_ms: ms(attempt.started_unix_ns),
        finished_ms: ms(attempt.finished_unix_ns),
        error: attempt.error.clone(),
        memory_mib: attempt.memory_units.map(amount),
        time_limit_ms: attempt.time_limit_ns.map(|limit| limit / 1_000_000),
        usage: curve(attempt.curve.as_ref()),
    }
}

pub(super) fn worker(worker: &client::WorkerInfo, tasks: &[TaskKey]) -> Worker {
    use client::worker_info::State;
    let state = match worker.state() {
        State::Running => WorkerState::Connected,
        State::ConnectionLost => WorkerState::ConnectionLost,
        State::HeartbeatLost => WorkerState::HeartbeatLost,
        State::IdleTimeout => WorkerState::IdleTimeout,
        State::Stopped => WorkerState::Stopped,
        State::TimeLimitReached => WorkerState::TimeLimit,
    };
    let config = worker.config.clone().unwrap_or_default();
    let mut offered = config.resources.as_ref().map(resources).unwrap_or_default();
    let runtime = worker.runtime.as_ref();
    let used = runtime.iter().flat_map(|runtime| &runtime.resources);
    for used in used {
        let found = offered.iter_mut().find(|item| item.name == used.resource);
        if let Some(item) = found {
            item.used = Some(amount(used.used_units));
        }
    }
    Worker {
        id: Id(worker.id),
        host: config.hostname,
        group: config.group,
        state,
        is_draining: worker.is_draining,
        quarantine: worker.quarantine.as_ref().map(quarantine),
        node_faults: worker.node_faults.clone(),
        load: runtime.and_then(|runtime| runtime.load).map(load),
        started_ms: ms(worker.started_unix_ns),
        ended_ms: worker.ended_unix_ns.map(ms),
        tasks: tasks
            .iter()
            .map(|key| [key.job.as_u32(), key.task.as_u32()])
            .collect(),
        running_tasks: runtime.map_or(0, |runtime| runtime.running_tasks),
        resources: offered,
        allocation: config.allocation.map(|allocation| allocation.id),
    }
}

fn quarantine(quarantine: &client::Quarantine) -> Quarantine {
    use client::quarantine::Stage;
    Quarantine {
        stage: match quarantine.stage() {
            Stage::Suspected => QuarantineStage::Suspected,
            Stage::Quarantined => QuarantineStage::Quarantined,
            Stage::Probed => QuarantineStage::Probed,
            Stage::Unfit => QuarantineStage::Unfit,
        },
        since_ms: ms(quarantine.since_unix_ns),
        until_ms: quarantine.until_unix_ns.map(ms),
        is_asked: quarantine.is_asked,
        reason: quarantine.why.clone(),
    }
}

/// Converts the hardware usage of a machine to fractions from 0 to 1.
fn load(load: client::WorkerLoad) -> Load {
    let share = |hundredths: u32| f64::from(hundredths) / 10_000.0;
    Load {
        at_ms: ms(load.at_unix_ns),
        cpus: share(load.cpu_share),
        gpus: load.gpu_share.map(share),
        memory_used_bytes: load.memory_used_bytes,
        memory_total_bytes: load.memory_total_bytes,
    }
}

fn resources(descriptor: &ResourceDescriptor) -> Vec<WorkerResource> {
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
        WorkerResource {
            name: item.name.clone(),
            total,
            used: None,
            groups,
        }
    });
    items.collect()
}

fn whole(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap_or(u32::MAX))
}

pub(super) fn queue(queue: &client::AllocQueue, allocations: &[client::AllocAllocation]) -> Queue {
    use client::alloc_allocation::State;
    let allocations = allocations.iter().map(|allocation| Allocation {
        id: allocation.id.clone(),
        state: match allocation.state() {
            State::Queued => AllocationState::Queued,
            State::Running => AllocationState::Running,
            State::Finished => AllocationState::Finished,
            State::Failed => AllocationState::Failed,
        },
        reason: allocation.reason.clone(),
        workers: allocation.workers,
        queued_ms: ms(allocation.queued_unix_ns),
        started_ms: allocation.started_unix_ns.map(ms),
        ended_ms: allocation.ended_unix_ns.map(ms),
    });
    Queue {
        id: Id(queue.id),
        name: queue.spec.as_ref().and_then(|spec| spec.name.clone()),
        is_paused: queue.is_paused,
        is_failing: queue.is_failing(),
        reason: queue.reason.clone(),
        reason_kind: queue.known_reason().map(Word),
        allocations: allocations.collect(),
    }
}

pub(super) fn output(output: &client::Output) -> Output {
    use client::output::Kind;
    Output {
        kind: match output.kind() {
            Kind::Data => OutputKind::Data,
            Kind::NotFound => OutputKind::NotFound,
            Kind::NotStarted => OutputKind::NotStarted,
            Kind::NoOutput => OutputKind::None,
            Kind::Unreachable => OutputKind::Unreachable,
        },
        instance: output.instance,
        offset: output.offset,
        next: output.next,
        is_complete: output.is_complete,
        text: lossy(&output.data),
        error: output.error.clone(),
    }
}
