//! Shows a journal as one HTML page: [`gather`] reads the journal, and [`page`] writes the page.
//! The page loads nothing and contains no scripts.

pub(crate) mod gather;
pub(crate) mod page;
mod svg;
mod words;

use hq_core::curve::Curve;

/// The number of steps of the charts over time.
pub(crate) const STEPS: i64 = 400;

/// One step of the charts.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Step {
    /// The number of running tasks.
    pub(crate) running: f64,
    /// The number of cores that they requested.
    pub(crate) cores_used: f64,
    /// The number of cores of connected workers.
    pub(crate) cores: f64,
    /// The number of connected workers.
    pub(crate) workers: f64,
}

/// The life of a worker within the report, in nanoseconds since 1970.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct WorkerLife {
    pub(crate) id: u32,
    pub(crate) host: String,
    pub(crate) from_ns: i64,
    pub(crate) to_ns: i64,
    pub(crate) cores: f64,
    /// The core-seconds that its tasks requested.
    pub(crate) used_core_s: f64,
    /// Why the worker ended.
    pub(crate) reason: Option<String>,
}

/// The figures of a job.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct JobFigures {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) task_count: u64,
    pub(crate) finished: u64,
    pub(crate) failed: u64,
    /// The core-seconds that its tasks requested, for the time that they ran.
    pub(crate) core_s: f64,
    /// The core-seconds of its failed tasks.
    pub(crate) failed_core_s: f64,
    /// The run times in µs: median, 90 %, 99 %, longest.
    pub(crate) run_us: [u64; 4],
    /// The number of tasks by [`hq_store::reader::RUN_BOUNDS`].
    pub(crate) run_times: Vec<u64>,
    /// The memory that a task requested, in bytes, or 0 if it requested none.
    pub(crate) memory_asked: u64,
    /// The largest memory usage of a task, in bytes, or 0 if it is unknown.
    pub(crate) memory_used: u64,
}

/// How the offered cores were used, in core-seconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Costs {
    pub(crate) finished: f64,
    pub(crate) failed: f64,
    /// The time used by tasks that were canceled or aborted while they were running.
    pub(crate) dropped: f64,
    /// The time used by attempts that failed or lost their worker, and were repeated.
    pub(crate) repeated: f64,
    /// The time used by tasks that were still running at the end.
    pub(crate) running: f64,
}

impl Costs {
    pub(crate) fn used(&self) -> f64 {
        self.finished + self.wasted() + self.running
    }

    /// Returns the core-seconds that were used without a result.
    pub(crate) fn wasted(&self) -> f64 {
        self.failed + self.dropped + self.repeated
    }
}

/// Sums over all jobs.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Totals {
    pub(crate) jobs: u64,
    pub(crate) finished: u64,
    pub(crate) failed: u64,
}

/// One of the slowest tasks.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct SlowTask {
    pub(crate) job: u32,
    pub(crate) task: u32,
    pub(crate) host: String,
    pub(crate) run_us: u64,
    pub(crate) is_failed: bool,
    /// The task's resource usage over time, if known.
    pub(crate) curve: Option<Curve>,
}

/// Failures of the same kind.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Failures {
    pub(crate) job: u32,
    pub(crate) error: String,
    pub(crate) host: String,
    pub(crate) count: u64,
    /// The id of one of the tasks.
    pub(crate) task: u32,
    /// The last line of its output. `None` if it wrote nothing or its output is not on this
    /// machine.
    pub(crate) said: Option<String>,
    /// The names and values of the task's parameters, such as `lr=0.1, seed=3`. Empty if it has
    /// none.
    pub(crate) params: String,
}

/// Everything that the page shows.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Report {
    /// The name of the journal's file.
    pub(crate) journal: String,
    pub(crate) from_ns: i64,
    pub(crate) to_ns: i64,
    pub(crate) steps: Vec<Step>,
    pub(crate) workers: Vec<WorkerLife>,
    pub(crate) totals: Totals,
    pub(crate) costs: Costs,
    /// The most expensive jobs.
    pub(crate) jobs: Vec<JobFigures>,
    pub(crate) slowest: Vec<SlowTask>,
    pub(crate) failures: Vec<Failures>,
    /// The problems, worst first.
    pub(crate) findings: Vec<hq_core::diagnosis::Finding>,
    /// The usage of resources other than cpus over time: the name, the amount at each step, and the
    /// largest offered amount.
    pub(crate) resources: Vec<(String, Vec<f64>, f64)>,
}
