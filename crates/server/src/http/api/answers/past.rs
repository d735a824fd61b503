//! Past events: sums, failures, the timeline, the log; a job as a whole.

use std::collections::BTreeMap;

use hq_core::diagnosis;
use hq_core::task::TaskState;
use hq_protocol::client;
use hq_store::reader::timeline::{FailureGroupRow, FailureRow, LogRow, WorkerRow};
use serde::Serialize;
use serde_json::{Map, Value};

use super::Tasks;
use crate::http::api::described::{ByState, Id, answers};
use crate::http::api::json::amount;

answers! {
    /// Tasks that started and ended in each step of a period
    struct History {
        from_ms: i64,
        to_ms: i64,
        /// Busy cpus at the end of each step
        cpus_used: Vec<f64>,
        /// Cpus of all workers
        cpus_total: Vec<f64>,
        started: Vec<i64>,
        finished: Vec<i64>,
        failed: Vec<i64>,
        /// Canceled while running
        canceled: Vec<i64>,
        /// Aborted while running
        aborted: Vec<i64>,
    }

    /// All tasks of a job in a few bins
    struct Strip {
        first: Id,
        last: Id,
        /// Number of tasks per bin of ids: waiting, running, finished, failed, canceled, aborted
        bins: Vec<[u64; TaskState::ALL.len()]>,
        run_times: Vec<RunBin>,
    }

    /// Tasks with similar run times
    struct RunBin {
        /// Longest run time in this bin; null for no limit
        up_to_us: Option<u64>,
        /// Tasks that ended by themselves
        count: u64,
        /// Failed tasks among them
        failed: u64,
        /// Failed tasks that reached their time limit
        timed_out: u64,
        /// Tasks that were ended while they ran
        canceled: u64,
    }

    /// The parameters of a job, with the states of the tasks for each value
    struct ParameterTable {
        /// In the given order; empty for a job without parameters
        parameters: Vec<Parameter>,
    }

    /// A parameter
    struct Parameter {
        name: String,
        value_count: u64,
        /// In the given order; empty if there are more than 100
        values: Vec<ParameterValue>,
    }

    /// A value of a parameter
    struct ParameterValue {
        /// The first 100 characters of the value
        value: String,
        /// Tasks with this value
        tasks: Tasks,
    }

    /// The last failures of a job
    struct Failures {
        failures: Vec<Failure>,
        /// All failures by reason and host
        groups: Vec<FailureGroup>,
    }

    /// A task that failed
    struct Failure = row: FailureRow {
        task: Id,
        instance: u32,
        error: String,
        host: Option<String>,
        worker: Option<i64>,
        run_us: Option<i64>,
        ended_ms: Option<i64>,
        /// Names and values of its parameters
        params: Option<BTreeMap<String, String>> = Vec::<client::Param>::new(),
    }

    /// Tasks that failed for the same reason on one host
    struct FailureGroup = row: FailureGroupRow {
        error: String,
        host: Option<String>,
        count: i64,
    }

    /// Last lines of failed tasks
    struct Signatures {
        /// Tasks whose output was read
        read: u64,
        groups: Vec<Signature>,
    }

    /// Tasks that failed for the same reason and with the same last line
    struct Signature {
        error: String,
        /// Last line of standard error or, if that is empty, of standard output, with numbers
        /// replaced by `#`; null if there is no output
        last_words: Option<String>,
        /// The unchanged last line of the first of these tasks
        example: Option<String>,
        /// Parameters with the same value in all of these tasks
        params: Option<BTreeMap<String, String>>,
        count: u64,
        /// One of these tasks
        first: Id,
    }

    /// Dependencies within a job
    struct Graph {
        templates: Vec<GraphTemplate>,
        /// Tasks of `target` wait for tasks of `source`, this many times
        edges: Vec<GraphEdge>,
    }

    /// Similar tasks
    struct GraphTemplate {
        id: u32,
        /// Command, a prefix of it, or the command with differing numbers replaced by `#`
        label: String,
        /// Name of the step, or the common part of several names, with numbers replaced by `#`
        name: Option<String>,
        tasks: Tasks,
        /// The first task in each state
        first: ByState<Option<u32>>,
    }

    /// A dependency between groups of tasks
    struct GraphEdge {
        source: u32,
        target: u32,
        count: u64,
    }

    /// Tasks that ended by themselves
    struct Ended {
        shares: Vec<Share>,
        /// Whether the list is incomplete
        is_cut: bool,
    }

    /// Tasks of a job with the same outcome on one worker
    struct Share = share: diagnosis::Share {
        job: Id,
        worker: Id,
        host: String,
        /// Reason for the failure; null if the tasks finished
        error: Option<String>,
        count: u64,
    }

    /// When each worker ran which tasks
    struct Timeline {
        from_ms: i64,
        to_ms: i64,
        /// Time of the first submission, or 0 if there is none
        first_ms: i64,
        /// Time that it took to compute the answer; wait for a multiple of it before the next
        /// request
        cost_ms: u64,
        /// Workers in this period, including workers that the server has forgotten
        workers: Vec<TimelineWorker>,
        /// Worker, start in ms after `from_ms`, run time in ms or null, state (1 running, 2
        /// finished, 3 failed, 4 canceled, 5 aborted), job, task, cpus or null for a whole worker
        tasks: Option<Vec<Bar>>,
        /// Width of a step, which is larger than requested if there are many workers
        step_us: Option<i64>,
        /// Whether some workers are missing
        is_cut: bool,
        /// Worker, index of the step when tasks started, their total run time in ms, their number,
        /// the number of failed ones
        steps: Option<Vec<BarSum>>,
    }

    /// A worker of a timeline
    struct TimelineWorker = worker: WorkerRow {
        id: i64,
        host: String,
        started_ms: i64,
        ended_ms: Option<i64>,
        cpus: f64 = amount(worker.cpus.unsigned_abs()),
    }
}

/// An attempt in a timeline, as numbers in the order given in the description of `tasks`, because
/// there may be very many attempts.
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

/// The attempts within a step of a timeline, in the same form.
#[derive(Serialize, Clone, Debug)]
pub(in crate::http) struct BarSum(
    pub(in crate::http) i64,
    pub(in crate::http) i64,
    pub(in crate::http) f64,
    pub(in crate::http) i64,
    pub(in crate::http) i64,
);

answers! {
    /// The latest events, except events of single tasks
    struct Log {
        events: Vec<LoggedEvent>,
    }

    /// An event
    struct LoggedEvent = event: LogRow {
        seq: i64,
        at_ms: i64,
        r#type: String = event.kind,
        job: Option<i64>,
        worker: Option<i64>,
        /// Fields of this type of event
        data: Map<String, Value>,
    }
}
