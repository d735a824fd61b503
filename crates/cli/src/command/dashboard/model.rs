//! Data of the screen that is not a message of the server. Times are nanoseconds since 1970.

use hq_core::curve::Curve;
use hq_core::job::TaskTotals;
use hq_core::task::TaskState;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct EventRow {
    pub(super) at_ns: i64,
    /// The job that it is about.
    pub(super) job: Option<u32>,
    pub(super) worker: Option<u32>,
    pub(super) kind: String,
    pub(super) text: String,
}

/// Details of a job.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct JobView {
    pub(super) job: u32,
    /// Lowest and highest id; estimated for a graph before its first task starts.
    pub(super) ids: (u32, u32),
    pub(super) are_ids_known: bool,
    /// Why none of its tasks run, if the server knows.
    pub(super) waits: Option<String>,
    /// Whether more ranges of ids exist than were read.
    pub(super) is_partial: bool,
    /// The tasks in the order of their ids, in bins of equal width.
    pub(super) bins: Vec<TaskTotals>,
    /// The last failures, the latest first.
    pub(super) failures: Vec<TaskRow>,
    /// Upper bounds of run times in µs and the tasks up to them, above the bound before.
    pub(super) run_times: Vec<(u64, u64)>,
}

/// Subject of a task list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TasksOf {
    Job(u32),
    /// Tasks that a worker runs or ran.
    Worker(u32),
}

/// A task in a list.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct TaskRow {
    pub(super) job: u32,
    pub(super) task: u32,
    pub(super) state: TaskState,
    pub(super) host: String,
    pub(super) started_ns: Option<i64>,
    pub(super) ended_ns: Option<i64>,
    pub(super) error: String,
    /// Its name in a job file, or names and values of its parameters, as `lr=0.1, seed=3`; empty in
    /// a journal.
    pub(super) params: String,
}

/// A request for a task list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TasksWanted {
    pub(super) of: TasksOf,
    /// As it was typed.
    pub(super) filter: String,
    /// Number of available rows.
    pub(super) count: usize,
}

/// Tasks as they were found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TaskPage {
    pub(super) wanted: TasksWanted,
    pub(super) rows: Vec<TaskRow>,
    /// Why the list may be incomplete.
    pub(super) is_cut: Option<&'static str>,
}

/// One of the two outputs of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LogKey {
    pub(super) job: u32,
    pub(super) task: u32,
    pub(super) is_stderr: bool,
}

impl LogKey {
    pub(super) const fn stream(self) -> &'static str {
        if self.is_stderr { "stderr" } else { "stdout" }
    }
}

/// Part of an output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LogPart {
    pub(super) key: LogKey,
    /// Number of the opening to which it belongs.
    pub(super) opening: u32,
    /// Whether the part does not continue the previous one.
    pub(super) is_first: bool,
    /// Whether output before the first part was skipped.
    pub(super) is_cut: bool,
    pub(super) bytes: Vec<u8>,
    /// Why the output cannot be read, or a note that it is complete.
    pub(super) note: Option<String>,
}

/// Known resource use of a task over time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct UsageView {
    pub(super) job: u32,
    pub(super) task: u32,
    /// Number of attempts, including the current one.
    pub(super) attempts: usize,
    /// Number of each attempt, from 1, and its curve; in order.
    pub(super) curves: Vec<(usize, Curve)>,
}

/// The end of what a task wrote.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct OutputTail {
    pub(super) job: u32,
    pub(super) task: u32,
    pub(super) title: String,
    pub(super) lines: Vec<String>,
}

/// One moment of the past.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Sample {
    pub(super) at_ns: i64,
    pub(super) running: u64,
    /// Tasks that ended by themselves up to that time, or during the step that ends then.
    pub(super) ended: u64,
    /// Share of the cpus that tasks hold, in percent.
    pub(super) cpus_percent: u64,
}
