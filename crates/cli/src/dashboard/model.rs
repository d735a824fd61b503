//! Data of the dashboard at one moment. Times are nanoseconds since 1970.

use std::time::Duration;

use hq_core::curve::Curve;
pub(crate) use hq_core::diagnosis::{Obstacle, Share as EndedShare};
pub(crate) use hq_core::job::TaskTotals as Counts;
use hq_core::pace::Pace;
use hq_core::task::TaskState;

use crate::text::is_hidden;

#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct JobRow {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) is_open: bool,
    pub(crate) counts: Counts,
    /// Current pace; `None` before the first task has ended, and in a journal.
    pub(crate) pace: Option<Pace>,
}

impl JobRow {
    pub(crate) const fn state(&self) -> &'static str {
        self.counts.state(self.is_open).name()
    }

    /// Time until the last task ends, if it can be estimated.
    pub(crate) fn left(&self) -> Option<Duration> {
        let goes_on = self.counts.waiting + self.counts.running > 0;
        self.pace.filter(|_| goes_on)?.left
    }

    /// Tasks wait and none runs.
    pub(crate) const fn is_starving(&self) -> bool {
        self.counts.waiting > 0 && self.counts.running == 0
    }
}

/// A resource of a worker, in units of 1/10 000.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct ResourceRow {
    pub(crate) name: String,
    pub(crate) total: u64,
    /// Units in use; `None` if unknown, as in a journal.
    pub(crate) used: Option<u64>,
    /// Sizes of the resource's groups (NUMA nodes), if it has several.
    pub(crate) groups: Vec<usize>,
}

/// Hardware usage of a machine, including processes that are not tasks; shares in percent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct LoadRow {
    pub(crate) cpus: u32,
    pub(crate) gpus: Option<u32>,
    pub(crate) memory_used_bytes: u64,
    pub(crate) memory_total_bytes: u64,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct WorkerRow {
    pub(crate) id: u32,
    pub(crate) host: String,
    /// Why it ended; `None` = connected.
    pub(crate) ended: Option<String>,
    /// The worker ended without a request.
    pub(crate) is_lost: bool,
    pub(crate) started_ns: i64,
    pub(crate) running: u32,
    /// The worker gets no new tasks, and ends after its last one.
    pub(crate) is_draining: bool,
    /// Why the worker gets no tasks or only a test task, in one word.
    pub(crate) quarantine: Option<String>,
    /// Hardware usage of the machine; `None` if the worker does not report it.
    pub(crate) load: Option<LoadRow>,
    pub(crate) resources: Vec<ResourceRow>,
    pub(crate) allocation: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct AllocationRow {
    pub(crate) id: String,
    pub(crate) state: String,
    pub(crate) workers: u32,
    pub(crate) queued_ns: Option<i64>,
    pub(crate) started_ns: Option<i64>,
    pub(crate) ended_ns: Option<i64>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct QueueRow {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) is_paused: bool,
    /// The batch system refuses, or its allocations fail.
    pub(crate) is_failing: bool,
    pub(crate) reason: String,
    pub(crate) allocations: Vec<AllocationRow>,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct EventRow {
    pub(crate) at_ns: i64,
    /// The job that it is about.
    pub(crate) job: Option<u32>,
    pub(crate) worker: Option<u32>,
    pub(crate) kind: String,
    pub(crate) text: String,
}

/// Everything but the details of a job.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Snapshot {
    pub(crate) now_ns: i64,
    pub(crate) jobs: Vec<JobRow>,
    pub(crate) workers: Vec<WorkerRow>,
    pub(crate) queues: Vec<QueueRow>,
    /// Number of contradictions that the server found in its state, if it was queried.
    pub(crate) internal_errors: u64,
}

impl Snapshot {
    pub(crate) fn counts(&self) -> Counts {
        let mut sum = Counts::default();
        for job in &self.jobs {
            sum.add(job.counts);
        }
        sum
    }

    pub(crate) fn connected(&self) -> impl Iterator<Item = &WorkerRow> + '_ {
        self.workers.iter().filter(|worker| worker.ended.is_none())
    }

    /// Units in use and offered units of a resource on all connected workers; the first is `None`
    /// if unknown.
    pub(crate) fn resource(&self, name: &str) -> (Option<u64>, u64) {
        let mut sum = (Some(0_u64), 0_u64);
        let all = self.connected().flat_map(|worker| &worker.resources);
        for item in all.filter(|item| item.name == name) {
            sum.1 = sum.1.saturating_add(item.total);
            sum.0 = sum.0.zip(item.used).map(|(a, b)| a.saturating_add(b));
        }
        sum
    }
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct FailureRow {
    pub(crate) task: u32,
    pub(crate) instance: u32,
    pub(crate) error: String,
    pub(crate) host: String,
    pub(crate) run_us: u64,
    pub(crate) ended_ns: i64,
    /// Its name in a job file, or names and values of its parameters, as `lr=0.1, seed=3`; empty in
    /// a journal.
    pub(crate) params: String,
}

/// Details of a job.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct JobView {
    pub(crate) job: u32,
    /// Lowest and highest id; estimated for a graph before its first task starts.
    pub(crate) ids: (u32, u32),
    pub(crate) are_ids_known: bool,
    /// Why none of its tasks run, if the server knows.
    pub(crate) waits: Option<String>,
    /// Whether more ranges of ids exist than were read.
    pub(crate) is_partial: bool,
    /// The tasks in the order of their ids, in bins of equal width.
    pub(crate) bins: Vec<Counts>,
    pub(crate) failures: Vec<FailureRow>,
    /// Upper bounds of run times in µs and the tasks up to them, above the bound before.
    pub(crate) run_times: Vec<(u64, u64)>,
}

/// Subject of a task list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TasksOf {
    Job(u32),
    /// Tasks that a worker runs or ran.
    Worker(u32),
}

/// A task in a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TaskRow {
    pub(crate) job: u32,
    pub(crate) task: u32,
    pub(crate) state: TaskState,
    pub(crate) host: String,
    pub(crate) started_ns: Option<i64>,
    pub(crate) ended_ns: Option<i64>,
    pub(crate) error: String,
    /// Its name in a job file, or names and values of its parameters, as `lr=0.1, seed=3`; empty in
    /// a journal.
    pub(crate) params: String,
}

impl Default for TaskRow {
    fn default() -> Self {
        Self {
            job: 0,
            task: 0,
            state: TaskState::Waiting,
            host: String::new(),
            started_ns: None,
            ended_ns: None,
            error: String::new(),
            params: String::new(),
        }
    }
}

/// Tasks as they were found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TaskPage {
    pub(crate) wanted: TasksWanted,
    pub(crate) rows: Vec<TaskRow>,
    /// Why the list may be incomplete.
    pub(crate) is_cut: Option<&'static str>,
}

/// A request for a task list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TasksWanted {
    pub(crate) of: TasksOf,
    /// As it was typed.
    pub(crate) filter: String,
    /// Number of available rows.
    pub(crate) count: usize,
}

/// One of the two outputs of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LogKey {
    pub(crate) job: u32,
    pub(crate) task: u32,
    pub(crate) is_stderr: bool,
}

impl LogKey {
    pub(crate) const fn stream(self) -> &'static str {
        if self.is_stderr { "stderr" } else { "stdout" }
    }
}

/// Part of an output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct LogPart {
    pub(crate) key: LogKey,
    /// Number of the opening that it belongs to.
    pub(crate) opening: u32,
    /// Whether the part does not continue the previous one.
    pub(crate) is_first: bool,
    /// Whether output before the first part was skipped.
    pub(crate) is_cut: bool,
    pub(crate) bytes: Vec<u8>,
    /// Why the output cannot be read, or a note that it is complete.
    pub(crate) note: Option<String>,
}

/// Known resource use of a task over time.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct UsageView {
    pub(crate) job: u32,
    pub(crate) task: u32,
    /// Number of attempts, including the current one.
    pub(crate) attempts: usize,
    /// Number of each attempt, from 1, and its curve; in order.
    pub(crate) curves: Vec<(usize, Curve)>,
}

/// Subject of a problem that can be opened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    Job(u32),
    /// A worker, if known, and its host.
    Node(Option<u32>, String),
    Queue(u32),
    Workers,
    Nothing,
}

/// Something that is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ProblemRow {
    /// Id at the server; `None` in a journal.
    pub(crate) id: Option<String>,
    pub(crate) is_error: bool,
    /// Whether the problem needs attention now.
    pub(crate) is_open: bool,
    pub(crate) is_acknowledged: bool,
    pub(crate) target: Target,
    /// The whole sentence.
    pub(crate) text: String,
}

/// The end of what a task wrote.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct OutputTail {
    pub(crate) job: u32,
    pub(crate) task: u32,
    pub(crate) title: String,
    pub(crate) lines: Vec<String>,
}

/// One moment of the past.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) at_ns: i64,
    pub(crate) running: u64,
    /// Tasks that ended by themselves up to that time, or during the step that ends then.
    pub(crate) ended: u64,
    /// Share of the cpus that tasks hold, in percent.
    pub(crate) cpus_percent: u64,
}

/// Removes characters that could move the cursor.
pub(crate) fn clean(text: &str) -> String {
    let visible = |c: char| match c {
        '\t' => ' ',
        c if is_hidden(c) => '\u{fffd}',
        c => c,
    };
    text.chars().map(visible).collect()
}
