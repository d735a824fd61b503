//! Workers, queues of automatic allocation, problems.

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
        /// It gets no new tasks and stops when its own have ended
        is_draining: bool,
        /// Why it gets no tasks, or a single one that shows whether it works; null if it gets tasks
        quarantine: Option<Quarantine>,
        /// What is wrong with its node, in words
        node_faults: Vec<String>,
        /// What the machine is busy with, other programs included; null unless the worker has an overview interval
        load: Option<Load>,
        started_ms: i64,
        ended_ms: Option<i64>,
        running_tasks: u32,
        /// Job and task of the first 20 that run there
        tasks: Vec<[u32; 2]>,
        resources: Vec<WorkerResource>,
        allocation: Option<String>,
    }
}

words! {
    /// How it is with a worker.
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
    /// Why a worker is set aside
    Quarantine {
        stage: QuarantineStage,
        since_ms: i64,
        /// When a task is tried there, if it is set aside
        until_ms: Option<i64>,
        /// Somebody asked for it
        is_asked: bool,
        reason: String,
    }
}

words! {
    /// How far that is.
    QuarantineStage {
        Suspected,
        Quarantined,
        Probed,
        Unfit,
    }
}

answer! {
    /// Hardware usage of a machine, with shares from 0 to 1
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
        /// What tasks hold; null of workers that are gone
        used: Option<f64>,
        /// Sizes of NUMA nodes, if there are several
        groups: Vec<usize>,
    }
}

answer! {
    /// The first findings, and how many there are
    ProblemList {
        problems: Vec<Problem>,
        count: usize,
        /// Those that are neither over nor acknowledged
        open_count: usize,
        /// Whether tasks ended in too many ways to look at all of them
        is_cut: bool,
    }
}

answer! {
    /// Something that is wrong
    Problem {
        /// Its name while it grows
        key: String,
        severity: ProblemSeverity,
        kind: ProblemKind,
        /// The kind in words
        heading: &'static str,
        /// Of the job or the queue
        id: Option<u32>,
        /// Of a node
        host: Option<String>,
        /// The last worker of a node
        worker: Option<u32>,
        /// What it is about: a host, or id and name
        title: String,
        /// A sentence without full stop
        text: String,
        /// Tasks that are touched
        part: u64,
        /// Number of which `part` is a part
        whole: u64,
        /// When it began, if that is known
        since_ms: Option<i64>,
        /// When it last happened, if that is known
        last_ms: Option<i64>,
        /// Failures of a job that has ended
        is_over: bool,
        /// Somebody knows of it, and nothing was added since
        is_acknowledged: bool,
        /// The last job as which tasks of the job were submitted again
        resubmitted_as: Option<u32>,
        /// What failed tasks said last, with # for numbers
        cause: Option<String>,
    }
}

words! {
    /// How bad it is.
    ProblemSeverity {
        Error,
        Warning,
    }
}

words! {
    /// What a problem is about.
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
        /// The batch system refuses, or its allocations fail
        is_failing: bool,
        /// A sentence for people
        reason: String,
        /// The same without words
        reason_kind: Option<Word<ReasonKind>>,
        allocations: Vec<Allocation>,
    }
}

answer! {
    /// A job of a batch system
    Allocation {
        id: String,
        state: AllocationState,
        workers: u32,
        queued_ms: i64,
        started_ms: Option<i64>,
        ended_ms: Option<i64>,
    }
}

words! {
    /// How it is with an allocation.
    AllocationState {
        Queued,
        Running,
        Finished,
        Failed,
    }
}
