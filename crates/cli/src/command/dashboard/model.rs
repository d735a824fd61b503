//! The data on the screen that is not a message of the server. Times are in nanoseconds since 1970.

use hq_core::curve::Curve;
use hq_core::job::TaskTotals;
use hq_core::task::TaskState;

/// The details of a job.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct JobView {
    pub(super) job: u32,
    /// The lowest and the highest id. For a graph, they are estimated before its first task starts.
    pub(super) ids: (u32, u32),
    pub(super) are_ids_known: bool,
    /// Why none of the job's tasks are running, if the server knows.
    pub(super) waits: Option<String>,
    /// Whether there are more ranges of ids than were read.
    pub(super) is_partial: bool,
    /// The tasks in the order of their ids, in bins of equal width.
    pub(super) bins: Vec<TaskTotals>,
    /// The last failures, latest first.
    pub(super) failures: Vec<TaskRow>,
    /// The upper bounds of run times in µs, each with the number of tasks between the previous
    /// bound and this one.
    pub(super) run_times: Vec<(u64, u64)>,
}

/// The subject of a task list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TasksOf {
    Job(u32),
    /// The tasks that a worker is running or has run.
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
    /// The task's name in a job file, or the names and values of its parameters, such as `lr=0.1,
    /// seed=3`. Empty in a journal.
    pub(super) params: String,
}

/// A request for a task list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TasksWanted {
    pub(super) of: TasksOf,
    /// The filter as it was typed.
    pub(super) filter: String,
    /// The number of available rows.
    pub(super) count: usize,
}

/// The tasks that were found.
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

/// A part of an output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LogPart {
    pub(super) key: LogKey,
    /// The number of the opening that requested the part.
    pub(super) opening: u32,
    /// Whether the part does not continue the previous one.
    pub(super) is_first: bool,
    /// Whether output before the first part was skipped.
    pub(super) is_cut: bool,
    pub(super) bytes: Vec<u8>,
    /// Why the output cannot be read, or a note that it is complete.
    pub(super) note: Option<String>,
}

/// The known resource usage of a task over time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct UsageView {
    pub(super) job: u32,
    pub(super) task: u32,
    /// The number of attempts, including the current one.
    pub(super) attempts: usize,
    /// The number of each attempt, starting at 1, and its curve, in order.
    pub(super) curves: Vec<(usize, Curve)>,
}

/// The end of a task's output.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct OutputTail {
    pub(super) job: u32,
    pub(super) task: u32,
    pub(super) title: String,
    pub(super) lines: Vec<String>,
}
