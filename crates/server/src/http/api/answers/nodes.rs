//! Workers, queues of automatic allocation, and problems.

use hq_core::autoalloc::ReasonKind;

use crate::http::api::described::{Id, Word, answer, words};

answer! {
    /// All workers
    WorkerList {
        workers: Vec<Worker>,
    }
}

answer! {
    /// A worker
    Worker {
        id: Id,
        host: String,
        group: String,
        state: WorkerState,
        /// Whether it gets no new tasks and stops when its running tasks have ended
        is_draining: bool,
        /// Why the worker gets no tasks, or only a probe task; null if it gets tasks
        quarantine: Option<Quarantine>,
        /// Problems of the node, in words
        node_faults: Vec<String>,
        /// Load of the machine, including other programs; null if no overview interval is set
        load: Option<Load>,
        started_ms: i64,
        ended_ms: Option<i64>,
        running_tasks: u32,
        /// Job and task of the first 20 running tasks
        tasks: Vec<[u32; 2]>,
        resources: Vec<WorkerResource>,
        allocation: Option<String>,
    }
}

words! {
    /// The state of a worker.
    WorkerState {
        Connected,
        ConnectionLost,
        HeartbeatLost,
        IdleTimeout,
        Stopped,
        TimeLimit,
    }
}

answer! {
    /// Why a worker is in quarantine
    Quarantine {
        stage: QuarantineStage,
        since_ms: i64,
        /// Time of the next probe task, if the worker is in quarantine
        until_ms: Option<i64>,
        /// Whether a user requested it
        is_asked: bool,
        reason: String,
    }
}

words! {
    /// The stage of a quarantine.
    QuarantineStage {
        Suspected,
        Quarantined,
        Probed,
        Unfit,
    }
}

answer! {
    /// Hardware usage of a machine, as fractions from 0 to 1
    Load {
        at_ms: i64,
        cpus: f64,
        gpus: Option<f64>,
        memory_used_bytes: u64,
        memory_total_bytes: u64,
    }
}

answer! {
    /// A resource of a worker
    WorkerResource {
        name: String,
        total: f64,
        /// Amount that tasks hold; null for workers that are gone
        used: Option<f64>,
        /// Sizes of the NUMA nodes, if there are several
        groups: Vec<usize>,
    }
}

answer! {
    /// The first findings and their total number
    ProblemList {
        problems: Vec<Problem>,
        count: usize,
        /// Findings that are neither over nor acknowledged
        open_count: usize,
        /// Whether tasks ended in too many different ways to examine all
        is_cut: bool,
    }
}

answer! {
    /// A problem
    Problem {
        /// Stable name of the problem
        key: String,
        severity: ProblemSeverity,
        kind: ProblemKind,
        /// The kind of the problem, in words
        heading: &'static str,
        /// Id of the job or queue
        id: Option<u32>,
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
        since_ms: Option<i64>,
        /// Time of the last occurrence, if known
        last_ms: Option<i64>,
        /// Whether the failures belong to an ended job
        is_over: bool,
        /// Whether the problem has been acknowledged and nothing has been added since
        is_acknowledged: bool,
        /// The latest job that resubmitted tasks of this one
        resubmitted_as: Option<u32>,
        /// Last output line of the failed tasks, with numbers replaced by #
        cause: Option<String>,
    }
}

words! {
    /// The severity of a problem.
    ProblemSeverity {
        Error,
        Warning,
    }
}

words! {
    /// The subject of a problem.
    ProblemKind {
        Node,
        FailingJob,
        FailedTasks,
        LostWorkers,
        Unkillable,
        MemoryLimits,
        Queue,
        StarvingJob,
        DoubtfulJob,
        Internal,
        Journal,
    }
}

answer! {
    /// Queues of automatic allocation
    QueueList {
        queues: Vec<Queue>,
    }
}

answer! {
    /// A queue of automatic allocation
    Queue {
        id: Id,
        name: Option<String>,
        is_paused: bool,
        /// Whether the batch system rejects submissions, or allocations fail
        is_failing: bool,
        /// A human-readable message
        reason: String,
        /// The machine-readable reason
        reason_kind: Option<Word<ReasonKind>>,
        allocations: Vec<Allocation>,
    }
}

answer! {
    /// A batch job
    Allocation {
        id: String,
        state: AllocationState,
        /// The last words of the batch system, or why the allocation ended
        reason: String,
        workers: u32,
        queued_ms: i64,
        started_ms: Option<i64>,
        ended_ms: Option<i64>,
    }
}

words! {
    /// The state of an allocation.
    AllocationState {
        Queued,
        Running,
        Finished,
        Failed,
    }
}
