//! What has been: sums, failures, the timeline, the log; a job as a whole.

use std::collections::BTreeMap;

use hq_core::task::TaskState;
use serde::Serialize;
use serde_json::{Map, Value};

use super::Tasks;
use crate::http::api::described::{ByState, Id, answer};

answer! {
    /// Tasks that started and ended in each step of a time
    History {
        from_ms: i64,
        to_ms: i64,
        /// Cpus in use at the end of each step
        cpus_used: Vec<f64>,
        /// Cpus that there were
        cpus_total: Vec<f64>,
        started: Vec<i64>,
        finished: Vec<i64>,
        failed: Vec<i64>,
        /// Of those that ran
        canceled: Vec<i64>,
        /// Of those that ran
        aborted: Vec<i64>,
    }
}

answer! {
    /// All tasks of a job in few bins
    Strip {
        first: Id,
        last: Id,
        /// Tasks of each bin of ids: waiting, running, finished, failed, canceled, aborted
        bins: Vec<[u64; TaskState::ALL.len()]>,
        run_times: Vec<RunBin>,
    }
}

answer! {
    /// Tasks that ran for about as long
    RunBin {
        /// None of them longer; null = the rest
        up_to_us: Option<u64>,
        /// Tasks that ended by themselves
        count: u64,
        /// How many of them failed
        failed: u64,
        /// How many of those at their time limit
        timed_out: u64,
        /// Tasks that were ended while they ran
        canceled: u64,
    }
}

answer! {
    /// The parameters of a job and the states of the tasks that have their values
    ParameterTable {
        /// In the order in which they were given; empty for a job without parameters
        parameters: Vec<Parameter>,
    }
}

answer! {
    /// A parameter
    Parameter {
        name: String,
        value_count: u64,
        /// In the order in which they were given; empty if there are more than 100
        values: Vec<ParameterValue>,
    }
}

answer! {
    /// A value of a parameter
    ParameterValue {
        /// Its first 100 characters
        value: String,
        /// The tasks that have it
        tasks: Tasks,
    }
}

answer! {
    /// The last failures of a job
    Failures {
        failures: Vec<Failure>,
        /// All of them by reason and host
        groups: Vec<FailureGroup>,
    }
}

answer! {
    /// A task that failed
    Failure {
        task: Id,
        instance: u32,
        error: String,
        host: Option<String>,
        worker: Option<i64>,
        run_us: Option<i64>,
        ended_ms: Option<i64>,
        /// Names and values of its parameters
        params: Option<BTreeMap<String, String>>,
    }
}

answer! {
    /// Tasks that failed in one way on one host
    FailureGroup {
        error: String,
        host: Option<String>,
        count: i64,
    }
}

answer! {
    /// What failed tasks said last
    Signatures {
        /// Tasks whose output was read
        read: u64,
        groups: Vec<Signature>,
    }
}

answer! {
    /// Tasks that failed in one way and said the same
    Signature {
        error: String,
        /// Of standard error, or else of standard output, with `#` for numbers; `null` = they wrote nothing
        last_words: Option<String>,
        /// The same of the first of these tasks, as it was written
        example: Option<String>,
        /// Parameters that have the same value in all of these tasks
        params: Option<BTreeMap<String, String>>,
        count: u64,
        /// One of them
        first: Id,
    }
}

answer! {
    /// What waits for what in a job
    Graph {
        templates: Vec<GraphTemplate>,
        /// Tasks of `target` wait for tasks of `source`, this many times
        edges: Vec<GraphEdge>,
    }
}

answer! {
    /// Tasks that look alike
    GraphTemplate {
        id: u32,
        /// Command; a prefix of it, or one with `#` for its numbers, if those differ
        label: String,
        /// Name of the step, or what the names of several have in common, with `#` for their numbers
        name: Option<String>,
        tasks: Tasks,
        /// The first task of each state
        first: ByState<Option<u32>>,
    }
}

answer! {
    /// What waits for what
    GraphEdge {
        source: u32,
        target: u32,
        count: u64,
    }
}

answer! {
    /// Tasks that ended by themselves
    Ended {
        shares: Vec<Share>,
        /// Whether some are left out
        is_cut: bool,
    }
}

answer! {
    /// Tasks of a job that ended in one way on one worker
    Share {
        job: Id,
        worker: Id,
        host: String,
        /// What went wrong; null = finished
        error: Option<String>,
        count: u64,
    }
}

answer! {
    /// Which worker ran what and when
    Timeline {
        from_ms: i64,
        to_ms: i64,
        /// When the first job was submitted; 0 if there is none
        first_ms: i64,
        /// What the answer took; who asks again should wait for a multiple of it
        cost_ms: u64,
        /// Those that were there in that time, also those that the server has forgotten
        workers: Vec<TimelineWorker>,
        /// Worker, start in ms behind `from_ms`, run time in ms or null, state (1 running, 2 finished, 3 failed, 4 canceled, 5 aborted), job,
        /// task, cpus or null for a whole worker
        tasks: Option<Vec<Bar>>,
        /// Width of a step; wider than asked for if there are many workers
        step_us: Option<i64>,
        /// Whether some workers are left out
        is_cut: bool,
        /// Worker, number of the step in which tasks began, how long they ran together in ms, how many, how many of them failed
        steps: Option<Vec<BarSum>>,
    }
}

answer! {
    /// A worker of a timeline
    TimelineWorker {
        id: i64,
        host: String,
        started_ms: i64,
        ended_ms: Option<i64>,
        cpus: f64,
    }
}

/// An attempt of a timeline: numbers in the order that the description of `tasks` says. There may be very many.
#[derive(Serialize, Clone, Debug)]
pub(in crate::http) struct Bar(
    pub(in crate::http) i64,
    pub(in crate::http) Option<f64>,
    pub(in crate::http) Option<f64>,
    pub(in crate::http) u8,
    pub(in crate::http) i64,
    pub(in crate::http) i64,
    pub(in crate::http) Option<f64>,
);

/// Attempts of a step of a timeline, likewise.
#[derive(Serialize, Clone, Debug)]
pub(in crate::http) struct BarSum(
    pub(in crate::http) i64,
    pub(in crate::http) i64,
    pub(in crate::http) f64,
    pub(in crate::http) i64,
    pub(in crate::http) i64,
);

answer! {
    /// The last events that are not about single tasks
    Log {
        events: Vec<LoggedEvent>,
    }
}

answer! {
    /// An event
    LoggedEvent {
        seq: i64,
        at_ms: i64,
        r#type: String,
        job: Option<i64>,
        worker: Option<i64>,
        /// What is particular to the type
        data: Map<String, Value>,
    }
}
