//! The answers of `/api/v1`. Names and units are a public interface: fields may be added but never
//! removed.

mod costs;
mod nodes;
mod past;

use std::collections::BTreeMap;

use hq_core::curve::{Curve, GpuCurve};
use hq_core::job::JobState;
use hq_core::refusal::RefusalKind;
use hq_core::task::TaskState;
use hq_protocol::client::{self, explain_item::Item};
use hq_protocol::convert::Role;

use super::described::{ByState, Id, Shown, Word, answers, words};
use super::json::{FoundTask, amount, bytes, counts, curve, known, millis, ms, whole_ms};
use crate::metrics::{Figures, ResourceFigures};
use crate::query::listed;
pub(in crate::http) use costs::*;
pub(in crate::http) use nodes::*;
pub(in crate::http) use past::*;

/// The number of tasks in each state.
pub(in crate::http) type Tasks = ByState<u64>;

answers! {
    /// Why a request failed
    struct Error {
        /// A human-readable message
        error: String,
        /// The machine-readable reason
        #[serde(skip_serializing_if = "Option::is_none")]
        kind: Option<ErrorKind>,
    }
}

impl From<RefusalKind> for ErrorKind {
    fn from(kind: RefusalKind) -> Self {
        match kind {
            RefusalKind::NotFound => Self::NotFound,
            RefusalKind::Conflict => Self::Conflict,
            RefusalKind::Invalid => Self::Invalid,
            RefusalKind::TooLarge => Self::TooLarge,
            RefusalKind::Unavailable => Self::Unavailable,
            RefusalKind::Failed => Self::Failed,
        }
    }
}

answers! {
    /// The server
    struct Server {
        /// The role that the token of this request grants
        role: Word<Role>,
        /// Whether the token of this request is read-only
        is_read_only: bool,
        server_uid: String,
        version: String,
        host: String,
        pid: u32,
        started_ms: i64,
    }

    /// Totals over the whole server
    struct Summary = figures: Figures {
        now_ms: i64 = ms(figures.now.0),
        tasks: Tasks = figures.totals.tasks,
        /// Tasks that finished or failed since the server started
        ended_since_start: u64 = figures.totals.ended.finished + figures.totals.ended.failed,
        /// Tasks that could run if a worker had free resources
        ready: u64,
        workers: WorkerCounts = figures,
        resources: Vec<ResourceSum>,
    }

    /// The numbers of workers
    struct WorkerCounts = figures: Figures {
        connected: u64,
        /// Workers that are currently without a connection; included in `connected`
        away: u64,
        gone: u64 = figures.lost.values().sum::<u64>(),
    }

    /// A resource, summed over all connected workers
    struct ResourceSum {
        name: String,
        /// In ten-thousandths of a unit
        total_units: u64,
        used_units: u64,
    }

    /// A page of jobs
    struct JobPage {
        jobs: Vec<ListedJob>,
        /// Value of `before` for the next page
        next_before: Option<u32>,
    }

    /// A job
    struct Job = job: client::JobSummary {
        id: Id,
        name: String,
        is_open: bool,
        /// As shown by `hq job list`
        state: Word<JobState> = counts(job).state(job.is_open),
        task_count: u32,
        tasks: Tasks = counts(job),
        cancel_reason: Option<String>,
    }

    /// A job of a list
    struct ListedJob = job: listed::ListedJob {
        ..Job = job.summary,
        submitted_ms: i64 = ms(job.submitted.0),
        finished_ms: Option<i64> = job.finished.map(|at| ms(at.0)),
        /// Number of workers that ran its tasks
        worker_count: usize,
        /// Number of cpus that its first task requests; null for a whole worker
        cpus: Option<f64> = job.asked.cpus.map(amount),
        /// Resources that its first task requests, such as `2 cpus, 1 gpus/nvidia`
        resources: String = job.asked.words,
        /// Current number of ended tasks per second; null before the first task and after the last
        /// task has ended
        rate_per_s: Option<f64> = job.pace.map(|pace| pace.rate),
        /// Expected time until the job has ended; null if unknown
        left_ms: Option<u64> = job.pace.and_then(|pace| pace.left).map(millis),
    }

    /// Details of a job
    struct JobDetail = job: listed::JobOverview {
        ..ListedJob = job.listed,
        max_fails: Option<u32>,
        /// Number of unfinished tasks that a user holds
        held_count: u32,
        /// Whether tasks that are submitted later are held
        holds_new: bool,
        /// Limits that let no ready task of it start now, with their use
        waits: Vec<String>,
        /// The notifications requested with --notify, in order
        notifications: Vec<Notification>,
        submits: Vec<Submit>,
    }

    /// A notification of a job
    struct Notification = notice: client::JobNotice {
        /// Target of the notification; only the host part of an address
        target: String,
        event: NotificationEvent,
        state: NotificationState,
        at_ms: Option<i64> = (notice.at_unix_ns > 0).then(|| ms(notice.at_unix_ns)),
        attempts: u32,
        error: Option<String> = (!notice.error.is_empty()).then_some(&notice.error),
    }

    /// A submission to a job
    struct Submit = submit: listed::SubmitOverview {
        submit_dir: String = submit.info.submit_dir,
        is_graph: bool = submit.info.is_graph,
        template_count: usize,
        command: Option<Vec<String>> = submit.info.templates.first().map(|template| &template.args),
    }

    /// A page of tasks
    struct TaskPage {
        tasks: Vec<Task>,
        /// Value of `cursor` for the next page
        next_cursor: Option<u64>,
    }

    /// A task
    struct Task = task: client::TaskInfo {
        id: Id,
        state: Word<TaskState>,
        instance: u32,
        crash_count: u32,
        retry_count: u32,
        started_ms: Option<i64> = task.started_unix_ns.map(ms),
        finished_ms: Option<i64> = task.finished_unix_ns.map(ms),
        worker: Option<u32> = task.workers.first().map(|worker| worker.id),
        host: Option<String> = task.workers.first().map(|worker| &worker.hostname),
        error: Option<String>,
        max_rss_bytes: Option<u64> = task.usage.map(|usage| bytes(usage.max_rss_kib)),
        cwd: Option<String> = task.paths.as_ref().map(|paths| &paths.cwd),
        /// Names and values of its parameters
        params: Option<BTreeMap<String, String>>,
        /// Name of the step, if its job file gives one
        name: Option<String>,
    }

    /// A task with its command and its results
    struct TaskDetail = found: FoundTask<'_> {
        ..Task = found.task,
        command: Option<Vec<String>> = found.command(),
        /// Names and values of the variables that the user set
        env: Vec<[String; 2]> = found.env(),
        /// Resources that the task requests, such as `2 cpus, 1 gpus/nvidia`
        resources: String,
        /// Entry of the task, if it belongs to an array with entries
        entry: Option<String> = found.entry(),
        /// Tasks of the same job that it depends on
        deps: Vec<u32> = found.task.deps,
        /// Earlier attempts, oldest first
        attempts: Vec<Attempt> = found.task.attempts,
        /// Output file of the task; null before it starts, or if there is no file
        stdout: Option<String> = found.path(|paths| paths.stdout.as_ref()),
        stderr: Option<String> = found.path(|paths| paths.stderr.as_ref()),
        time_limit_ms: Option<u64> = found.template
            .and_then(|task| Some(task.time_limit_ns? / 1_000_000)),
        priority: i32 = found.template.map_or(0, |task| task.priority),
        /// CPU time of an ended task
        cpu_ms: Option<u64> = found.task.usage
            .map(|usage| usage.user_us.saturating_add(usage.system_us) / 1_000),
        usage: Option<Usage> = curve(found.task.curve.as_ref()),
    }

    /// An attempt of a task
    struct Attempt = attempt: client::TaskAttempt {
        instance: u32,
        worker: Option<u32> = attempt.worker.as_ref().map(|worker| worker.id),
        host: Option<String> = attempt.worker.as_ref().map(|worker| &worker.hostname),
        started_ms: i64 = ms(attempt.started_unix_ns),
        finished_ms: i64 = ms(attempt.finished_unix_ns),
        error: String,
        /// Memory that the attempt got, if the request grows
        memory_mib: Option<f64> = attempt.memory_units.map(amount),
        /// Time limit that the attempt got, if the request grows
        time_limit_ms: Option<u64> = attempt.time_limit_ns.map(|limit| limit / 1_000_000),
        usage: Option<Usage> = curve(attempt.curve.as_ref()),
    }

    /// Memory and cpus of an attempt over time, in at most 64 spans of equal length. Missing for
    /// tasks that took less than four seconds; at most a few minutes old for a running task
    struct Usage = curve: Curve {
        /// Length of a span
        spacing_ms: u64 = millis(curve.spacing),
        /// Highest memory in each span, without pages of files
        memory_bytes: Vec<u64> = curve.points()
            .map(|point| bytes(point.memory_kib)).collect::<Vec<_>>(),
        /// Average number of busy cpus in each span, in thousandths
        cpu_milli: Vec<u64> = curve.points().map(|point| point.cpu_milli).collect::<Vec<_>>(),
        /// Memory that the attempt requested
        memory_asked_bytes: Option<u64> = known(curve.asked.memory_kib).map(bytes),
        /// Whether hq kills the attempt if it uses more
        is_memory_limit: bool = curve.asked.is_memory_limit,
        /// Cpus that the attempt got, in thousandths
        cpu_asked_milli: Option<u64> = known(curve.asked.cpu_units).map(|units| units / 10),
        /// Usage of NVIDIA GPUs, if the task has any and the driver reports their usage
        gpu: Option<UsageOfGpus> = curve.gpu.as_deref(),
    }

    /// GPUs of an attempt over time, with one value for each span of its memory; null if the driver
    /// does not report the value
    struct UsageOfGpus = curve: GpuCurve {
        /// Average number of busy GPUs in each span, in thousandths: the sum of the utilizations of
        /// its devices
        busy_milli: Vec<Option<u64>> = curve.points()
            .map(|point| point.busy_milli).collect::<Vec<_>>(),
        /// Highest GPU memory in each span
        memory_bytes: Vec<Option<u64>> = curve.points()
            .map(|point| point.memory_kib.map(bytes)).collect::<Vec<_>>(),
        /// GPUs that the attempt requested, in thousandths
        asked_milli: u64 = curve.given.units / 10,
        /// Memory of all its devices
        memory_of_devices_bytes: Option<u64> = known(curve.given.memory_kib).map(bytes),
        /// `processes`: the memory of the attempt's processes. `devices`: the memory of all
        /// processes on its devices, at least in some spans
        memory_of: GpuMemoryOf = match curve.given.is_memory_of_devices {
            true => GpuMemoryOf::Devices,
            false => GpuMemoryOf::Processes,
        },
    }

    /// Output of a task
    struct Output = output: client::Output {
        /// `none`: discarded. `unreachable`: its worker is gone
        kind: OutputKind,
        instance: u32,
        offset: u64,
        /// Offset of the next piece
        next: u64,
        /// Whether the task has ended and `next` is the end of the output
        is_complete: bool,
        text: String = output.data,
        error: Option<String>,
    }

    /// A job that was submitted or extended
    struct Submitted {
        job: Id,
        /// Warnings about parts of the job that may not do what you intended
        warnings: Vec<String>,
    }

    /// A job that was opened
    struct Opened {
        job: Id,
    }

    /// A job was closed
    struct Closed {
        /// Whether it was open
        closed: bool,
    }

    /// The job was canceled
    struct Canceled {
        /// Number of canceled tasks
        canceled: u32,
    }

    /// Tasks were held or released
    struct Held {
        /// Number of tasks that the request held or released
        changed: u32,
        /// Number of running tasks, which go on
        running: u32,
    }

    /// The job was resubmitted
    struct Resubmitted {
        /// The new job
        job: Id,
        task_count: u32,
    }

    /// State of a job after waiting for it
    struct Waited {
        /// Whether the job has ended. An open job ends when it is closed
        is_ended: bool,
        job: JobDetail,
    }

    /// The worker was stopped
    struct Stopped {
        /// Whether it was running
        stopped: bool,
    }

    /// The worker gets no new tasks
    struct Drained {
        /// Whether it was connected
        draining: bool,
    }

    /// The worker gets tasks again
    struct Released {
        /// Whether it was in quarantine
        released: bool,
    }

    /// All limits across jobs, in the order of their names
    struct LimitList = found: client::Limits {
        limits: Vec<Limit>,
    }

    /// A limit across jobs
    struct Limit = limit: client::LimitInfo {
        name: String,
        /// Number of tasks that run at the same time, such as `10`, or rate of starts: `50/s`,
        /// `100/min` or `20/h`
        bound: String,
        /// Sum of the amounts of running tasks
        used: u64,
        /// Jobs with running tasks that count toward it
        jobs: Vec<LimitUser> = limit.users,
        /// Part of `used` for tasks that may run on lost workers
        lost: u64,
        /// Number of tasks that count toward it and have no other reason to wait
        ready: u64,
        /// Number of ready tasks that wait for it, and not only for others
        waiting: u64,
        /// Why ready tasks wait for it, such as `limit db: 10 of 10 in use by job 7 (8) and job 9
        /// (2)`; null if none waits for it
        waits: Option<String>,
    }

    /// A job with running tasks that count toward a limit
    struct LimitUser = user: client::LimitUser {
        job: Id,
        /// Sum of their amounts
        used: u64,
    }

    /// The request succeeded
    struct Done {
        done: bool,
    }

    /// The acknowledgement of the problem was added or withdrawn
    struct Acknowledged {
        acknowledged: bool,
    }

    /// Why a task does not run
    struct Explanation = found: client::Explanation {
        dep_count: u32,
        /// Number of unfinished dependencies
        waiting_dep_count: u32,
        /// Whether a user holds the task
        is_held: bool,
        /// Why it waits, apart from workers, most important first
        reasons: Vec<String> = hq_protocol::reasons(found),
        /// Whether no other task, hold or delay keeps it from starting
        is_ready: bool,
        /// The worker that it was sent to
        sent_to: Option<u32>,
        workers: Vec<WorkerExplanation>,
    }

    /// Why a task does not run on a worker
    struct WorkerExplanation = row: client::WorkerExplanation {
        worker: Id,
        /// Requirements that this worker can never meet
        blocked: Vec<Blocked> = closest(row).map(blocked).unwrap_or_default(),
        /// Current obstacles
        hindrances: Vec<String> = closest(row).map_or(&[][..], |variant| &variant.hindrances),
    }

    /// A requirement that a worker cannot meet
    struct Blocked {
        kind: BlockedKind,
        /// An amount, milliseconds, or nodes
        requested: f64,
        offered: f64,
        /// Name of the resource
        #[serde(skip_serializing_if = "Option::is_none")]
        resource: Option<String>,
    }
}

impl Shown<BTreeMap<String, ResourceFigures>> for Vec<ResourceSum> {
    fn shown(from: &BTreeMap<String, ResourceFigures>) -> Self {
        let sums = from.iter().map(|(name, sum)| ResourceSum {
            name: name.clone(),
            total_units: sum.total,
            used_units: sum.used,
        });
        sums.collect()
    }
}

/// Returns the variant that comes closest to running on the worker.
fn closest(row: &client::WorkerExplanation) -> Option<&client::VariantExplanation> {
    let variants = row.variants.iter();
    variants.min_by_key(|variant| (blocked(variant).len(), variant.hindrances.len()))
}

fn blocked(variant: &client::VariantExplanation) -> Vec<Blocked> {
    variant.items.iter().filter_map(blocking).collect()
}

/// Converts a condition that does not hold, or returns `None` if it holds.
fn blocking(item: &client::ExplainItem) -> Option<Blocked> {
    match item.item.as_ref()? {
        Item::Time(time) => {
            let left = time.remaining_ns.filter(|left| *left < time.min_time_ns)?;
            Some(Blocked {
                kind: BlockedKind::Time,
                requested: whole_ms(time.min_time_ns),
                offered: whole_ms(left),
                resource: None,
            })
        }
        Item::Resource(found) => (found.request_units > found.worker_units).then(|| Blocked {
            kind: BlockedKind::Resource,
            requested: amount(found.request_units),
            offered: amount(found.worker_units),
            resource: Some(found.resource.clone()),
        }),
        Item::Group(group) => (group.n_nodes > group.group_size).then(|| Blocked {
            kind: BlockedKind::Group,
            requested: f64::from(group.n_nodes),
            offered: f64::from(group.group_size),
            resource: None,
        }),
    }
}

words! {
    /// The reason why a request was rejected.
    enum ErrorKind {
        NotFound, Conflict, Invalid, TooLarge, Unavailable, Failed, ReadOnly, Forbidden
    }

    /// The event of a notification.
    enum NotificationEvent = client::notify_target::Event { End, Failure }

    /// The progress of a notification.
    enum NotificationState = client::job_notice::State { Waiting, Owed, Delivered, GivenUp }

    /// Whose GPU memory the figures cover.
    enum GpuMemoryOf { Processes, Devices }

    /// The availability of an output.
    enum OutputKind = client::output::Kind {
        Data, NotFound, NotStarted, None = NoOutput, Unreachable
    }

    /// The kind of a requirement.
    enum BlockedKind { Resource, Time, Group }
}
