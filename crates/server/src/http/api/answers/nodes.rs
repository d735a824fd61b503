//! Workers, queues of automatic allocation, and problems.

use hq_core::autoalloc::ReasonKind;
use hq_protocol::client;
use serde::Serialize;

use crate::http::api::described::{Id, Shown, Word, answers, words};
use crate::http::api::json::{OfferedResource, amount, ms, offered, share};

/// The kind of a problem, such as `failing-job`.
#[derive(Serialize, Clone, Debug)]
pub(in crate::http) struct ProblemKind(String);

impl Shown<String> for ProblemKind {
    fn shown(from: &String) -> Self {
        Self(from.clone())
    }
}

answers! {
    /// All workers
    struct WorkerList {
        workers: Vec<Worker>,
    }

    /// A worker
    struct Worker = worker: client::WorkerInfo {
        id: Id,
        host: String = worker.config.as_ref().map_or("", |config| &config.hostname),
        group: String = worker.config.as_ref().map_or("", |config| &config.group),
        state: WorkerState,
        /// Whether it gets no new tasks and stops when its running tasks have ended
        is_draining: bool,
        /// Why the worker gets no tasks, or only a probe task; null if it gets tasks
        quarantine: Option<Quarantine>,
        /// Problems of the node, in words
        node_faults: Vec<String>,
        /// Load of the machine, including other programs; null if no overview interval is set
        load: Option<Load> = worker.runtime.as_ref().and_then(|runtime| runtime.load),
        started_ms: i64 = ms(worker.started_unix_ns),
        ended_ms: Option<i64> = worker.ended_unix_ns.map(ms),
        running_tasks: u32 = worker.runtime.as_ref().map_or(0, |runtime| runtime.running_tasks),
        /// Job and task of the first 20 running tasks
        tasks: Vec<[u32; 2]> = Vec::<[u32; 2]>::new(),
        resources: Vec<WorkerResource> = offered(worker),
        allocation: Option<String> = worker.config.as_ref()
            .and_then(|config| Some(&config.allocation.as_ref()?.id)),
    }

    /// Why a worker is in quarantine
    struct Quarantine = quarantine: client::Quarantine {
        stage: QuarantineStage,
        since_ms: i64 = ms(quarantine.since_unix_ns),
        /// Time of the next probe task, if the worker is in quarantine
        until_ms: Option<i64> = quarantine.until_unix_ns.map(ms),
        /// Whether a user requested it
        is_asked: bool,
        reason: String = quarantine.why,
    }

    /// Hardware usage of a machine, as fractions from 0 to 1
    struct Load = load: client::WorkerLoad {
        at_ms: i64 = ms(load.at_unix_ns),
        cpus: f64 = share(load.cpu_share),
        gpus: Option<f64> = load.gpu_share.map(share),
        memory_used_bytes: u64,
        memory_total_bytes: u64,
    }

    /// A resource of a worker
    struct WorkerResource = resource: OfferedResource<'_> {
        name: String = resource.item.name,
        total: f64 = resource.total(),
        /// Amount that tasks hold; null for workers that are gone
        used: Option<f64> = resource.used.map(|used| amount(used.used_units)),
        /// Sizes of the NUMA nodes, if there are several
        groups: Vec<usize> = resource.groups(),
    }

    /// The first findings and their total number
    struct ProblemList {
        problems: Vec<Problem>,
        count: usize,
        /// Findings that are neither over nor acknowledged
        open_count: usize,
        /// Whether tasks ended in too many different ways to examine all
        is_cut: bool,
    }

    /// A problem
    struct Problem = problem: client::Problem {
        /// Stable name of the problem
        key: String = problem.id,
        severity: ProblemSeverity = match problem.is_error {
            true => ProblemSeverity::Error,
            false => ProblemSeverity::Warning,
        },
        kind: ProblemKind,
        /// The kind of the problem, in words
        heading: String,
        /// Id of the job or queue
        id: Option<u32> = problem.subject,
        /// Host of the node
        host: Option<String>,
        /// The last worker of the node
        worker: Option<u32>,
        /// Subject of the problem: a host, or an id and a name
        title: String,
        /// A sentence without a full stop
        text: String,
        /// Affected tasks
        part: u64,
        /// Total number that `part` refers to
        whole: u64,
        /// Time of the first occurrence, if known
        since_ms: Option<i64> = problem.since_unix_ns.map(ms),
        /// Time of the last occurrence, if known
        last_ms: Option<i64> = problem.last_unix_ns.map(ms),
        /// Whether the failures belong to an ended job
        is_over: bool,
        /// Whether the problem has been acknowledged and nothing has been added since
        is_acknowledged: bool,
        /// The latest job that resubmitted tasks of this one
        resubmitted_as: Option<u32>,
        /// Last output line of the failed tasks, with numbers replaced by #
        cause: Option<String>,
    }

    /// Queues of automatic allocation
    struct QueueList {
        queues: Vec<Queue>,
    }

    /// A queue of automatic allocation
    struct Queue = queue: client::AllocQueue {
        id: Id,
        name: Option<String> = queue.spec.as_ref().and_then(|spec| spec.name.as_ref()),
        is_paused: bool,
        /// Whether the batch system rejects submissions, or allocations fail
        is_failing: bool = queue.is_failing(),
        /// A human-readable message
        reason: String,
        /// The machine-readable reason
        reason_kind: Option<Word<ReasonKind>> = queue.known_reason(),
        allocations: Vec<Allocation> = Vec::<client::AllocAllocation>::new(),
    }

    /// A batch job
    struct Allocation = allocation: client::AllocAllocation {
        id: String,
        state: AllocationState,
        /// What the batch system last said, or why the allocation ended
        reason: String,
        workers: u32,
        queued_ms: i64 = ms(allocation.queued_unix_ns),
        started_ms: Option<i64> = allocation.started_unix_ns.map(ms),
        ended_ms: Option<i64> = allocation.ended_unix_ns.map(ms),
    }
}

words! {
    /// The state of a worker.
    enum WorkerState = client::worker_info::State {
        Connected = Running, ConnectionLost, HeartbeatLost, IdleTimeout, Stopped,
        TimeLimit = TimeLimitReached
    }

    /// The stage of a quarantine.
    enum QuarantineStage = client::quarantine::Stage { Suspected, Quarantined, Probed, Unfit }

    /// The severity of a problem.
    enum ProblemSeverity { Error, Warning }

    /// The state of an allocation.
    enum AllocationState = client::alloc_allocation::State { Queued, Running, Finished, Failed }
}
