//! What a period cost.

use std::collections::BTreeMap;

use hq_core::command_text::without_arguments;
use hq_core::curve::Curve;
use hq_protocol::client;
use hq_store::reader::cpus_of;
use hq_store::reader::report::{FailuresRow, JobRow, SlowRow, WorkerRow};

use super::Usage;
use crate::http::api::described::{Id, answers};
use crate::http::api::json::{amount, ms, seconds};

answers! {
    /// What was done in a period, what failed, and what it cost
    struct Costs {
        from_ms: i64,
        to_ms: i64,
        /// Jobs submitted before the end of the period
        job_count: u64,
        /// Tasks that finished
        finished: u64,
        /// Tasks that failed
        failed: u64,
        /// Core time of all workers
        offered_core_s: f64,
        core_s: CoreTimes,
        /// The most expensive jobs first
        jobs: Vec<JobCost>,
        /// Upper bounds of the bins of `run_times`; one more bin has no bound
        run_bounds_us: Vec<u64>,
        /// The tasks with the longest run times
        slowest: Vec<SlowTask>,
        /// By job, reason and host, the most frequent first
        failures: Vec<CommonFailure>,
        worker_count: u64,
        /// Workers that were idle for more than half of their life, and their idle core time
        idle_workers: u64,
        idle_core_s: f64,
        workers: Vec<WorkerCost>,
        /// Running tasks at the end of each step of the period
        running: Vec<f64>,
        /// Resources other than cpus that tasks requested
        resources: Vec<ResourceLevel>,
    }

    /// Core time of tasks by what became of them, in seconds of a core
    struct CoreTimes {
        finished: f64,
        failed: f64,
        /// Canceled or aborted while they ran
        dropped: f64,
        /// Attempts that failed or lost their worker and were repeated
        repeated: f64,
        /// Still running at the end
        running: f64,
    }

    /// A job and its cost
    struct JobCost = row: JobRow {
        id: Id,
        name: String,
        task_count: u64,
        finished: u64,
        failed: u64,
        /// Core time of its ended tasks
        core_s: f64 = seconds(row.core_us),
        /// Core time of its failed tasks
        failed_core_s: f64 = seconds(row.failed_core_us),
        /// Median, 90 %, 99 % and longest run time; empty if no task ended by itself
        run_us: Vec<u64> = Vec::<u64>::new(),
        /// Number of tasks by run time
        run_times: Vec<u64> = Vec::<u64>::new(),
        /// Memory that a task requested; 0 if it requested none
        memory_asked_bytes: u64 = row.memory_units.saturating_mul(1 << 20) / 10_000,
        /// Peak memory of a task; 0 if it is unknown
        memory_used_bytes: u64 = row.rss_kib.saturating_mul(1024),
    }

    /// A task with a long run time
    struct SlowTask = row: SlowRow {
        job: Id,
        task: Id,
        host: Option<String>,
        run_us: u64,
        is_failed: bool,
        usage: Option<Usage> = None::<Curve>,
    }

    /// Tasks of a job that failed for the same reason on one host
    struct CommonFailure = row: FailuresRow {
        job: Id,
        error: String = without_arguments(&row.error).into_owned(),
        host: Option<String>,
        count: u64,
        /// One of these tasks
        task: Id,
        /// Names and values of its parameters
        params: Option<BTreeMap<String, String>> = Vec::<client::Param>::new(),
        /// The last line that it wrote, if it can be read
        last_words: Option<String> = None::<String>,
    }

    /// A worker within the period
    struct WorkerCost = row: WorkerRow {
        id: Id,
        host: String,
        from_ms: i64 = ms(row.from_ns),
        to_ms: i64 = ms(row.to_ns),
        cpus: f64 = amount(cpus_of(&row.config).unsigned_abs()),
        /// Core time of its tasks
        core_s: f64 = 0.0,
        /// Why it ended; null if it was still connected
        reason: Option<String>,
    }

    /// A resource over time
    struct ResourceLevel {
        name: String,
        /// Amount at the end of each step of the period
        used: Vec<f64>,
    }
}
