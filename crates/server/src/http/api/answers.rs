//! The answers of `/api/v1`. Names and units are a public interface: fields may be added but never
//! removed.

mod nodes;
mod past;

use std::collections::BTreeMap;

use hq_core::job::JobState;
use hq_core::refusal::RefusalKind;
use hq_core::task::TaskState;
use hq_protocol::convert::Role;

use super::described::{ByState, Id, Word, answer, words};
pub(in crate::http) use nodes::*;
pub(in crate::http) use past::*;

/// The number of tasks in each state.
pub(in crate::http) type Tasks = ByState<u64>;

answer! {
    /// Why a request failed
    Error {
        /// A human-readable message
        error: String,
    }
    optional {
        /// The machine-readable reason
        kind: ErrorKind,
    }
}

words! {
    /// The reason why a request was rejected.
    ErrorKind {
        NotFound,
        Conflict,
        Invalid,
        TooLarge,
        Unavailable,
        Failed,
        ReadOnly,
        Forbidden,
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

answer! {
    /// The server
    Server {
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
}

answer! {
    /// Totals over the whole server
    Summary {
        now_ms: i64,
        tasks: Tasks,
        /// Tasks that finished or failed since the server started
        ended_since_start: u64,
        /// Tasks that could run if a worker had free resources
        ready: u64,
        workers: WorkerCounts,
        resources: Vec<ResourceSum>,
    }
}

answer! {
    /// The numbers of workers
    WorkerCounts {
        connected: u64,
        /// Workers that are currently without a connection; included in `connected`
        away: u64,
        gone: u64,
    }
}

answer! {
    /// A resource, summed over all connected workers
    ResourceSum {
        name: String,
        /// In ten-thousandths of a unit
        total_units: u64,
        used_units: u64,
    }
}

answer! {
    /// A page of jobs
    JobPage {
        jobs: Vec<ListedJob>,
        /// Value of `before` for the next page
        next_before: Option<u32>,
    }
}

answer! {
    /// A job
    Job {
        id: Id,
        name: String,
        is_open: bool,
        /// As shown by `hq job list`
        state: Word<JobState>,
        task_count: u32,
        tasks: Tasks,
        cancel_reason: Option<String>,
    }
}

answer! {
    /// A job of a list
    ListedJob: Job {
        submitted_ms: i64,
        finished_ms: Option<i64>,
        /// Number of workers that ran its tasks
        worker_count: usize,
        /// Number of cpus that its first task requests; null for a whole worker
        cpus: Option<f64>,
        /// Resources that its first task requests, such as `2 cpus, 1 gpus/nvidia`
        resources: String,
        /// Current number of ended tasks per second; null before the first task and after the last
        /// task has ended
        rate_per_s: Option<f64>,
        /// Expected time until the job has ended; null if unknown
        left_ms: Option<u64>,
    }
}

answer! {
    /// Details of a job
    JobDetail: ListedJob {
        max_fails: Option<u32>,
        /// The notifications requested with --notify, in order
        notifications: Vec<Notification>,
        submits: Vec<Submit>,
    }
}

answer! {
    /// A notification of a job
    Notification {
        /// Target of the notification; only the host part of an address
        target: String,
        event: NotificationEvent,
        state: NotificationState,
        at_ms: Option<i64>,
        attempts: u32,
        error: Option<String>,
    }
}

words! {
    /// The event of a notification.
    NotificationEvent {
        End,
        Failure,
    }
}

words! {
    /// The progress of a notification.
    NotificationState {
        Waiting,
        Owed,
        Delivered,
        GivenUp,
    }
}

answer! {
    /// A submission to a job
    Submit {
        submit_dir: String,
        is_graph: bool,
        template_count: usize,
        command: Option<Vec<String>>,
    }
}

answer! {
    /// A page of tasks
    TaskPage {
        tasks: Vec<Task>,
        /// Value of `cursor` for the next page
        next_cursor: Option<u64>,
    }
}

answer! {
    /// A task
    Task {
        id: Id,
        state: Word<TaskState>,
        instance: u32,
        crash_count: u32,
        retry_count: u32,
        started_ms: Option<i64>,
        finished_ms: Option<i64>,
        worker: Option<u32>,
        host: Option<String>,
        error: Option<String>,
        max_rss_bytes: Option<u64>,
        cwd: Option<String>,
        /// Names and values of its parameters
        params: Option<BTreeMap<String, String>>,
        /// Name of the step, if its job file gives one
        name: Option<String>,
    }
}

answer! {
    /// A task with its command and its results
    TaskDetail: Task {
        command: Option<Vec<String>>,
        /// Names and values of the variables that the user set
        env: Vec<[String; 2]>,
        /// Resources that the task requests, such as `2 cpus, 1 gpus/nvidia`
        resources: String,
        /// Entry of the task, if it belongs to an array with entries
        entry: Option<String>,
        /// Tasks of the same job that it depends on
        deps: Vec<u32>,
        /// Earlier attempts, oldest first
        attempts: Vec<Attempt>,
        /// Output file of the task; null before it starts, or if there is no file
        stdout: Option<String>,
        stderr: Option<String>,
        time_limit_ms: Option<u64>,
        priority: i32,
        /// CPU time of an ended task
        cpu_ms: Option<u64>,
        usage: Option<Usage>,
    }
}

answer! {
    /// An attempt of a task
    Attempt {
        instance: u32,
        worker: Option<u32>,
        host: Option<String>,
        started_ms: i64,
        finished_ms: i64,
        error: String,
        /// Memory that the attempt got, if the request grows
        memory_mib: Option<f64>,
        /// Time limit that the attempt got, if the request grows
        time_limit_ms: Option<u64>,
        usage: Option<Usage>,
    }
}

answer! {
    /// Memory and cpus of an attempt over time, in at most 64 spans of equal length. Missing for
    /// tasks that took less than four seconds; at most a few minutes old for a running task
    Usage {
        /// Length of a span
        spacing_ms: u64,
        /// Highest memory in each span, without pages of files
        memory_bytes: Vec<u64>,
        /// Average number of busy cpus in each span, in thousandths
        cpu_milli: Vec<u64>,
        /// Memory that the attempt requested
        memory_asked_bytes: Option<u64>,
        /// Whether hq kills the attempt if it uses more
        is_memory_limit: bool,
        /// Cpus that the attempt got, in thousandths
        cpu_asked_milli: Option<u64>,
        /// Usage of NVIDIA GPUs, if the task has any and the driver reports their usage
        gpu: Option<UsageOfGpus>,
    }
}

answer! {
    /// GPUs of an attempt over time, with one value for each span of its memory; null if the driver
    /// does not report the value
    UsageOfGpus {
        /// Average number of busy GPUs in each span, in thousandths: the sum of the utilizations of
        /// its devices
        busy_milli: Vec<Option<u64>>,
        /// Highest GPU memory in each span
        memory_bytes: Vec<Option<u64>>,
        /// GPUs that the attempt requested, in thousandths
        asked_milli: u64,
        /// Memory of all its devices
        memory_of_devices_bytes: Option<u64>,
        /// `processes`: the memory of the attempt's processes. `devices`: the memory of all
        /// processes on its devices, at least in some spans
        memory_of: GpuMemoryOf,
    }
}

answer! {
    /// Output of a task
    Output {
        /// `none`: discarded. `unreachable`: its worker is gone
        kind: OutputKind,
        instance: u32,
        offset: u64,
        /// Offset of the next piece
        next: u64,
        /// Whether the task has ended and `next` is the end of the output
        is_complete: bool,
        text: String,
        error: Option<String>,
    }
}

words! {
    /// Whose GPU memory the figures cover.
    GpuMemoryOf {
        Processes,
        Devices,
    }
}

words! {
    /// The availability of an output.
    OutputKind {
        Data,
        NotFound,
        NotStarted,
        None,
        Unreachable,
    }
}

answer! {
    /// A job that was submitted or extended
    Submitted {
        job: Id,
        /// Warnings about parts of the job that may not do what you intended
        warnings: Vec<String>,
    }
}

answer! {
    /// A job that was opened
    Opened {
        job: Id,
    }
}

answer! {
    /// A job was closed
    Closed {
        /// Whether it was open
        closed: bool,
    }
}

answer! {
    /// The job was canceled
    Canceled {
        /// Number of canceled tasks
        canceled: u32,
    }
}

answer! {
    /// The job was resubmitted
    Resubmitted {
        /// The new job
        job: Id,
        task_count: u32,
    }
}

answer! {
    /// State of a job after waiting for it
    Waited {
        /// Whether the job has ended. An open job ends when it is closed
        is_ended: bool,
        job: JobDetail,
    }
}

answer! {
    /// The worker was stopped
    Stopped {
        /// Whether it was running
        stopped: bool,
    }
}

answer! {
    /// The worker gets no new tasks
    Drained {
        /// Whether it was connected
        draining: bool,
    }
}

answer! {
    /// The worker gets tasks again
    Released {
        /// Whether it was in quarantine
        released: bool,
    }
}

answer! {
    /// The request succeeded
    Done {
        done: bool,
    }
}

answer! {
    /// The acknowledgement of the problem was added or withdrawn
    Acknowledged {
        acknowledged: bool,
    }
}

answer! {
    /// Why a task does not run
    Explanation {
        dep_count: u32,
        /// Number of unfinished dependencies
        waiting_dep_count: u32,
        /// Whether the task only waits for a worker
        is_ready: bool,
        /// The worker that it was sent to
        sent_to: Option<u32>,
        workers: Vec<WorkerExplanation>,
    }
}

answer! {
    /// Why a task does not run on a worker
    WorkerExplanation {
        worker: Id,
        /// Requirements that this worker can never meet
        blocked: Vec<Blocked>,
        /// Current obstacles
        hindrances: Vec<String>,
    }
}

answer! {
    /// A requirement that a worker cannot meet
    Blocked {
        kind: BlockedKind,
        /// An amount, milliseconds, or nodes
        requested: f64,
        offered: f64,
    }
    optional {
        /// Name of the resource
        resource: String,
    }
}

words! {
    /// The kind of a requirement.
    BlockedKind {
        Resource,
        Time,
        Group,
    }
}
