//! A journal as one HTML page: [`gather`] reads the journal, [`page`] writes the page. The page
//! loads nothing and contains no scripts.

pub(crate) mod gather;
pub(crate) mod page;
mod svg;
mod words;

use hq_core::curve::Curve;

/// Steps of the charts over time.
pub(crate) const STEPS: i64 = 400;

/// A step of the charts.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Step {
    /// Tasks that run.
    pub(crate) running: f64,
    /// Cores that they asked for.
    pub(crate) cores_used: f64,
    /// Cores of connected workers.
    pub(crate) cores: f64,
    /// Connected workers.
    pub(crate) workers: f64,
}

/// A worker's life within the report, in nanoseconds since 1970.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct WorkerLife {
    pub(crate) id: u32,
    pub(crate) host: String,
    pub(crate) from_ns: i64,
    pub(crate) to_ns: i64,
    pub(crate) cores: f64,
    /// Core-seconds that its tasks requested.
    pub(crate) used_core_s: f64,
    /// Why it ended.
    pub(crate) reason: Option<String>,
}

/// A job.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct JobFigures {
    pub(crate) id: u32,
    pub(crate) name: String,
    pub(crate) task_count: u64,
    pub(crate) finished: u64,
    pub(crate) failed: u64,
    /// Core-seconds that its tasks requested, for the time that they ran.
    pub(crate) core_s: f64,
    /// Core-seconds of its failed tasks.
    pub(crate) failed_core_s: f64,
    /// Run times in µs: median, 90 %, 99 %, longest.
    pub(crate) run_us: [u64; 4],
    /// Number of tasks by [`hq_store::reader::RUN_BOUNDS`].
    pub(crate) run_times: Vec<u64>,
    /// Memory that a task requested, in bytes; 0 if it requested none.
    pub(crate) memory_asked: u64,
    /// Largest memory use of a task, in bytes; 0 if unknown.
    pub(crate) memory_used: u64,
}

/// Use of the cores that were offered, in core-seconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Costs {
    pub(crate) finished: f64,
    pub(crate) failed: f64,
    /// Core-seconds of tasks that were canceled or aborted while they ran.
    pub(crate) dropped: f64,
    /// Of attempts that failed or lost their worker, and were repeated.
    pub(crate) repeated: f64,
    /// Core-seconds of tasks that still ran at the end.
    pub(crate) running: f64,
}

impl Costs {
    pub(crate) fn used(&self) -> f64 {
        self.finished + self.wasted() + self.running
    }

    /// Core-seconds without a result.
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
    /// Resource use over time, if known.
    pub(crate) curve: Option<Curve>,
}

/// Failures of one kind.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Failures {
    pub(crate) job: u32,
    pub(crate) error: String,
    pub(crate) host: String,
    pub(crate) count: u64,
    /// Id of one of the tasks.
    pub(crate) task: u32,
    /// Last line of its output; `None` if it wrote nothing or its output is not on this machine.
    pub(crate) said: Option<String>,
    /// Names and values of its parameters, as `lr=0.1, seed=3`; empty without parameters.
    pub(crate) params: String,
}

/// Everything that the page shows.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Report {
    /// Name of the journal's file.
    pub(crate) journal: String,
    pub(crate) from_ns: i64,
    pub(crate) to_ns: i64,
    pub(crate) steps: Vec<Step>,
    pub(crate) workers: Vec<WorkerLife>,
    pub(crate) totals: Totals,
    pub(crate) costs: Costs,
    /// The most expensive ones.
    pub(crate) jobs: Vec<JobFigures>,
    pub(crate) slowest: Vec<SlowTask>,
    pub(crate) failures: Vec<Failures>,
    /// Problems, worst first.
    pub(crate) findings: Vec<hq_core::diagnosis::Finding>,
    /// Use of resources other than cpus over time: name, amount at each step, largest offered
    /// amount.
    pub(crate) resources: Vec<(String, Vec<f64>, f64)>,
}
