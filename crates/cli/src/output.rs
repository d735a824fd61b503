//! The output of commands: one trait, with one implementation per output mode.
//!
//! All methods write messages of the server to a writer and send no requests. Long lists arrive in
//! pages and are written page by page, even as JSON.

use std::io;
use std::path::Path;

use hq_core::job::JobTotals;
use hq_protocol::{client, common};

use crate::args::global::OutputMode;
use crate::submit::plan::Plan;
use crate::submit::skip::SkipPlan;

pub(crate) mod console;
pub(crate) mod curve;
pub(crate) mod format;
pub(crate) mod json;
pub(crate) mod pace;
pub(crate) mod quiet;
mod stats;
pub(crate) mod suggest;
pub(crate) mod table;
pub(crate) mod view;

pub(crate) use stats::{Distribution, JobStatsView};
use suggest::Suggestion;
pub(crate) use table::Look;

/// The destination of output.
pub(crate) type Out<'a> = &'a mut dyn console::Shown;

/// The contents of `job list`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobListView<'a> {
    /// The jobs to show, ordered by id.
    pub(crate) jobs: &'a [&'a client::JobSummary],
    /// The total number of jobs.
    pub(crate) total: usize,
    /// Whether to show why jobs were canceled.
    pub(crate) with_reason: bool,
    /// The time, by the server's clock, for which the progress of jobs is shown. `None` if progress
    /// is not shown.
    pub(crate) progress_at_ns: Option<i64>,
    /// Whether the user selected all jobs.
    pub(crate) is_all: bool,
}

/// The contents of `task list` except for the tasks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaskListView {
    /// Whether the list contains tasks of exactly one job.
    pub(crate) is_single_job: bool,
    /// Whether errors are shown in full.
    pub(crate) is_verbose: bool,
}

/// A job, and its tasks that would run again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ChangedView {
    pub(crate) job: u32,
    pub(crate) skipped: SkipPlan,
}

/// A job that was submitted again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ResubmittedView {
    /// The id of the old job.
    pub(crate) job: u32,
    /// The id of the new job.
    pub(crate) new_job: u32,
    /// The number of tasks in the new job.
    pub(crate) task_count: u32,
}

/// Prints everything in one output mode.
pub(crate) trait Output {
    /// Prints the output of `hq server info`. `hq server start` adds the directory.
    fn server_info(
        &self,
        out: Out<'_>,
        info: &client::ServerInfo,
        server_dir: Option<&Path>,
    ) -> io::Result<()>;

    /// Prints the output of `hq worker list`.
    fn worker_list(&self, out: Out<'_>, workers: &[client::WorkerInfo]) -> io::Result<()>;

    /// Prints the output of `hq worker info`.
    fn worker_infos(&self, out: Out<'_>, workers: &[client::WorkerInfo]) -> io::Result<()>;

    /// Prints the output of `hq worker start` once the worker is registered.
    fn worker_started(&self, out: Out<'_>, worker: &client::WorkerInfo) -> io::Result<()>;

    /// Prints the output of `hq worker hwdetect`.
    fn hardware(&self, out: Out<'_>, resources: &common::ResourceDescriptor) -> io::Result<()>;

    /// Prints the output of `hq submit` and `hq job submit-file`.
    fn job_submitted(&self, out: Out<'_>, job: u32) -> io::Result<()>;

    /// Prints the output of `hq submit --dry-run` and similar commands.
    fn submit_plan(&self, out: Out<'_>, plan: &Plan) -> io::Result<()>;

    /// Prints the output of `hq job resubmit --changed --dry-run`.
    fn changed_tasks(&self, out: Out<'_>, jobs: &[ChangedView]) -> io::Result<()>;

    /// Prints the output of `hq job resubmit`: the old and the new job.
    fn jobs_resubmitted(&self, out: Out<'_>, jobs: &[ResubmittedView]) -> io::Result<()>;

    /// Prints the output of `hq job open`.
    fn job_opened(&self, out: Out<'_>, job: u32) -> io::Result<()>;

    /// Prints the output of `hq job list`.
    fn job_list(&self, out: Out<'_>, view: JobListView<'_>) -> io::Result<()>;

    /// Prints the output of `hq job summary`.
    fn job_summary(&self, out: Out<'_>, counts: &JobTotals) -> io::Result<()>;

    /// Prints the output of `hq job stats`.
    fn job_stats(&self, out: Out<'_>, view: &JobStatsView) -> io::Result<()>;

    /// Prints the output of `hq job stats --suggest`.
    fn job_suggestions(&self, out: Out<'_>, suggestions: &[Suggestion]) -> io::Result<()>;

    /// Returns whether `job info` needs the tasks of each job.
    fn wants_tasks_of_jobs(&self) -> bool;

    /// Starts the output of `hq job info`.
    fn job_infos<'a>(&'a self, out: Out<'a>, is_verbose: bool) -> Box<dyn JobInfoSink + 'a>;

    /// Starts the output of `hq task list`.
    fn task_list<'a>(&'a self, out: Out<'a>, view: TaskListView) -> Box<dyn TaskListSink + 'a>;

    /// Starts the output of `hq task info`.
    fn task_infos<'a>(&'a self, out: Out<'a>, is_verbose: bool) -> Box<dyn TaskInfoSink + 'a>;

    /// Prints the output of `hq job task-ids`.
    fn task_ids(&self, out: Out<'_>, reply: &client::TaskIdsReply) -> io::Result<()>;

    /// Prints the output of `hq task explain`.
    fn explanation(
        &self,
        out: Out<'_>,
        explanation: &client::Explanation,
        is_verbose: bool,
    ) -> io::Result<()>;

    /// Prints the output of `hq output-log summary`.
    fn stream_summary(
        &self,
        out: Out<'_>,
        path: &str,
        summary: &hq_stream::Summary,
    ) -> io::Result<()>;

    /// Prints the output of `hq alloc list`.
    fn alloc_list(
        &self,
        out: Out<'_>,
        queues: &[client::AllocQueue],
        is_verbose: bool,
    ) -> io::Result<()>;

    /// Prints the output of `hq alloc info`.
    fn alloc_info(
        &self,
        out: Out<'_>,
        allocations: &[client::AllocAllocation],
        is_verbose: bool,
    ) -> io::Result<()>;

    /// Prints the output of `hq token list`.
    fn token_list(&self, out: Out<'_>, tokens: &[client::Token]) -> io::Result<()>;

    /// Ends a command that prints nothing else or only raw text.
    fn done(&self, out: Out<'_>) -> io::Result<()>;
}

/// Receives jobs one by one, each with its tasks.
pub(crate) trait JobInfoSink {
    /// Starts the next job.
    fn job(&mut self, job: &client::JobDetail) -> io::Result<()>;
    /// Adds tasks of that job.
    fn tasks(&mut self, page: &client::TaskPageReply) -> io::Result<()>;
    /// Ends the output.
    fn finish(self: Box<Self>) -> io::Result<()>;
}

/// Receives jobs one by one, each with its tasks in pages.
pub(crate) trait TaskListSink {
    /// Starts the next job.
    fn job(&mut self, job: u32) -> io::Result<()>;
    /// Adds tasks of that job.
    fn tasks(&mut self, page: &client::TaskPageReply) -> io::Result<()>;
    /// Ends the output. Returns whether an error message was shortened.
    fn finish(self: Box<Self>) -> io::Result<bool>;
}

/// Receives tasks of one job in pages, with their definitions.
pub(crate) trait TaskInfoSink {
    /// Adds tasks.
    fn tasks(&mut self, page: &client::TaskPageReply) -> io::Result<()>;
    /// Ends the output.
    fn finish(self: Box<Self>) -> io::Result<()>;
}

/// Returns the implementation for an output mode.
pub(crate) fn for_mode(mode: OutputMode, look: Look) -> Box<dyn Output> {
    match mode {
        OutputMode::Cli => Box::new(table::TableOutput::new(look)),
        OutputMode::Json => Box::new(json::JsonOutput),
        OutputMode::Quiet => Box::new(quiet::QuietOutput),
    }
}

#[cfg(test)]
mod tests;
