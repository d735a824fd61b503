//! The answers of `/api/v1`. Names and units are interface: fields may be added, and none is taken away.

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

/// Numbers of tasks by state.
pub(in crate::http) type Tasks = ByState<u64>;

answer! {
    /// Why a request is not answered
    Error {
        /// A sentence for people
        error: String,
    }
    optional {
        /// Why it was refused, for programs
        kind: ErrorKind,
    }
}

words! {
    /// Why a request was refused.
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
        /// What the token of this request may do
        role: Word<Role>,
        /// Whether the token of this request is for reading only
        is_read_only: bool,
        server_uid: String,
        version: String,
        host: String,
        pid: u32,
        started_ms: i64,
    }
}

answer! {
    /// Sums over everything
    Summary {
        now_ms: i64,
        tasks: Tasks,
        /// Tasks that finished or failed since the server started
        ended_since_start: u64,
        /// Tasks that could run if a worker had room
        ready: u64,
        workers: WorkerCounts,
        resources: Vec<ResourceSum>,
    }
}

answer! {
    /// Numbers of workers
    WorkerCounts {
        connected: u64,
        /// Connected ones whose connection is broken at present
        away: u64,
        gone: u64,
    }
}

answer! {
    /// A resource of all connected workers
    ResourceSum {
        name: String,
        /// In units of 1/10 000
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
        /// As `hq job list` says it
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
        /// Workers on which its tasks ran
        worker_count: usize,
        /// Cpus that its first task asks for; null = all that a worker has
        cpus: Option<f64>,
        /// What its first task asks for, as `2 cpus, 1 gpus/nvidia`
        resources: String,
        /// Tasks that end in a second at present; null before the first end and behind the last
        rate_per_s: Option<f64>,
        /// Expected time until it is done; null if nobody can tell
        left_ms: Option<u64>,
    }
}

answer! {
    /// Details of a job
    JobDetail: ListedJob {
        max_fails: Option<u32>,
        /// What --notify asked for, in order
        notifications: Vec<Notification>,
        submits: Vec<Submit>,
    }
}

answer! {
    /// A notification of a job
    Notification {
        /// Of an address only the host
        target: String,
        event: NotificationEvent,
        state: NotificationState,
        at_ms: Option<i64>,
        attempts: u32,
        error: Option<String>,
    }
}

words! {
    /// What a notification tells of.
    NotificationEvent {
        End,
        Failure,
    }
}

words! {
    /// How far a notification is.
    NotificationState {
        Waiting,
        Owed,
        Delivered,
        GivenUp,
    }
}

answer! {
    /// A submit of a job
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
    /// A task with what it was asked to do
    TaskDetail: Task {
        command: Option<Vec<String>>,
        /// Names and values of the variables that the user gave
        env: Vec<[String; 2]>,
        /// What it asks for, as `2 cpus, 1 gpus/nvidia`
        resources: String,
        /// What makes it different from the other tasks of its array
        entry: Option<String>,
        /// Tasks of its job that it waits or waited for
        deps: Vec<u32>,
        /// Earlier ones, the first one first
        attempts: Vec<Attempt>,
        /// The file that it writes; null before it was started, and if there is none
        stdout: Option<String>,
        stderr: Option<String>,
        time_limit_ms: Option<u64>,
        priority: i32,
        /// Processor time of an ended task
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
        /// What it got, if that grows
        memory_mib: Option<f64>,
        /// Likewise
        time_limit_ms: Option<u64>,
        usage: Option<Usage>,
    }
}

answer! {
    /// Memory and cpus of an attempt over time, in at most 64 spans of equal length. There is none of tasks of less than four seconds;
    /// that of a running task is some minutes old at most
    Usage {
        /// Length of a span
        spacing_ms: u64,
        /// Most memory seen in each span, pages of files not counted
        memory_bytes: Vec<u64>,
        /// Busy cpus on average in each span, in thousandths
        cpu_milli: Vec<u64>,
        /// Memory that it asked for
        memory_asked_bytes: Option<u64>,
        /// It is ended if it uses more
        is_memory_limit: bool,
        /// Cpus that it got, in thousandths
        cpu_asked_milli: Option<u64>,
        /// Of tasks with NVIDIA GPUs, where their driver tells
        gpu: Option<UsageOfGpus>,
    }
}

answer! {
    /// GPUs of an attempt over time, with a place for each span of its memory; null = the driver did not tell
    UsageOfGpus {
        /// Busy GPUs on average in each span, in thousandths: the utilisations of all devices that it holds added up
        busy_milli: Vec<Option<u64>>,
        /// Most memory of GPUs seen in each span
        memory_bytes: Vec<Option<u64>>,
        /// GPUs that it asked for, in thousandths
        asked_milli: u64,
        /// Memory of all devices that it holds
        memory_of_devices_bytes: Option<u64>,
        /// `processes`: memory is that of processes of the attempt. `devices`: of all that run on its devices, at least at times
        memory_of: GpuMemoryOf,
    }
}

answer! {
    /// What a task wrote
    Output {
        /// `none` was thrown away; of `unreachable` the worker is gone
        kind: OutputKind,
        instance: u32,
        offset: u64,
        /// Where the next piece begins
        next: u64,
        /// The task has ended and there is nothing behind `next`
        is_complete: bool,
        text: String,
        error: Option<String>,
    }
}

words! {
    /// Whose memory of GPUs was seen.
    GpuMemoryOf {
        Processes,
        Devices,
    }
}

words! {
    /// What there is of an output.
    OutputKind {
        Data,
        NotFound,
        NotStarted,
        None,
        Unreachable,
    }
}

answer! {
    /// A job that was submitted, or has more tasks
    Submitted {
        job: Id,
        /// What may not be as it was meant
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
    /// A job was canceled
    Canceled {
        /// How many of its tasks
        canceled: u32,
    }
}

answer! {
    /// A job was submitted again
    Resubmitted {
        /// The new job
        job: Id,
        task_count: u32,
    }
}

answer! {
    /// How a job is after a wait for it
    Waited {
        /// An open job ends when it is closed
        is_ended: bool,
        job: JobDetail,
    }
}

answer! {
    /// A worker was stopped
    Stopped {
        /// Whether it was running
        stopped: bool,
    }
}

answer! {
    /// A worker gets no new tasks
    Drained {
        /// Whether it was connected
        draining: bool,
    }
}

answer! {
    /// A worker gets tasks again
    Released {
        /// Whether it was set aside
        released: bool,
    }
}

answer! {
    /// It is done
    Done {
        done: bool,
    }
}

answer! {
    /// Somebody knows of a problem, or does not
    Acknowledged {
        acknowledged: bool,
    }
}

answer! {
    /// Why a task does not run
    Explanation {
        dep_count: u32,
        /// What it still waits for
        waiting_dep_count: u32,
        /// It waits for nothing but a worker
        is_ready: bool,
        /// The worker where it waits
        sent_to: Option<u32>,
        workers: Vec<WorkerExplanation>,
    }
}

answer! {
    /// Why it does not run on a worker
    WorkerExplanation {
        worker: Id,
        /// What this worker will never fulfil
        blocked: Vec<Blocked>,
        /// What is in the way at this moment
        hindrances: Vec<String>,
    }
}

answer! {
    /// Something of which a worker has too little
    Blocked {
        kind: BlockedKind,
        /// An amount, ms, or nodes
        requested: f64,
        offered: f64,
    }
    optional {
        /// Name of the resource
        resource: String,
    }
}

words! {
    /// What there is too little of.
    BlockedKind {
        Resource,
        Time,
        Group,
    }
}
