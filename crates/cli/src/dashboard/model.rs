//! State of the dashboard at one moment. Times are nanoseconds since 1970.

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
    /// How fast it goes; `None` before its first task has ended, and in a journal.
    pub(crate) pace: Option<Pace>,
}

impl JobRow {
    pub(crate) const fn state(&self) -> &'static str {
        self.counts.state(self.is_open).name()
    }

    /// Until its last task ends, if that can be told.
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
    /// `None` where it is not known, as in a journal.
    pub(crate) used: Option<u64>,
    /// Sizes of its groups (NUMA nodes), if there are several.
    pub(crate) groups: Vec<usize>,
}

/// Hardware usage of a machine, tasks of others included; shares in percent.
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
    /// It ended without being asked to.
    pub(crate) is_lost: bool,
    pub(crate) started_ns: i64,
    pub(crate) running: u32,
    /// It gets no new tasks and ends when its own have.
    pub(crate) is_draining: bool,
    /// It gets none, or a single one, because tasks fail there: in one word.
    pub(crate) quarantine: Option<String>,
    /// Hardware usage of its machine; `None` = it reports none.
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
    /// Contradictions that the server found in its state, if it was asked.
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

    /// Used and offered units of a resource over all connected workers; used is `None` if not
    /// known.
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
    /// Lowest and highest id. Before a task of a graph has started they are a guess.
    pub(crate) ids: (u32, u32),
    pub(crate) are_ids_known: bool,
    /// Why none of its tasks runs, if the server can tell.
    pub(crate) waits: Option<String>,
    /// Whether there are more ranges of ids than were looked at.
    pub(crate) is_partial: bool,
    /// The tasks in the order of their ids, in bins of equal width.
    pub(crate) bins: Vec<Counts>,
    pub(crate) failures: Vec<FailureRow>,
    /// Upper bounds of run times in µs and the tasks up to them, above the bound before.
    pub(crate) run_times: Vec<(u64, u64)>,
}

/// Whose tasks are listed.
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
    /// Why there may be more than these.
    pub(crate) is_cut: Option<&'static str>,
}

/// Tasks that are to be shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct TasksWanted {
    pub(crate) of: TasksOf,
    /// As it was typed.
    pub(crate) filter: String,
    /// Rows that can be looked at so far.
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
    /// Number of the opening that it is for.
    pub(crate) opening: u32,
    /// It does not continue what was read before.
    pub(crate) is_first: bool,
    /// There is more before the first part.
    pub(crate) is_cut: bool,
    pub(crate) bytes: Vec<u8>,
    /// Reason why it cannot be read, or the note that its end is there.
    pub(crate) note: Option<String>,
}

/// What a task used over time, as far as it is known.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct UsageView {
    pub(crate) job: u32,
    pub(crate) task: u32,
    /// Attempts that it has had, with the one of now.
    pub(crate) attempts: usize,
    /// Number of an attempt, from 1, and its curve; the first one first.
    pub(crate) curves: Vec<(usize, Curve)>,
}

/// Subject of a problem, as far as it can be shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Target {
    Job(u32),
    /// A worker, if it is known, and its host.
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
    /// It needs somebody now.
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
    /// Tasks that ended by themselves up to then, or in the step of the past that ends then.
    pub(crate) ended: u64,
    /// Share of the cpus that tasks hold, in percent.
    pub(crate) cpus_percent: u64,
}

/// Texts of others, without what could move the cursor.
pub(crate) fn clean(text: &str) -> String {
    let visible = |c: char| match c {
        '\t' => ' ',
        c if is_hidden(c) => '\u{fffd}',
        c => c,
    };
    text.chars().map(visible).collect()
}
