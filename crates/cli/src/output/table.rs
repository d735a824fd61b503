//! Human-readable output: tables and sentences.

use std::io;
use std::path::Path;

use hq_core::job::JobTotals;
use hq_core::words::count;
use hq_protocol::{client, common};

use super::format::id_array;
use super::suggest::Suggestion;
use super::{
    ChangedView, JobInfoSink, JobListView, JobStatsView, Out, Output, ResubmittedView,
    TaskInfoSink, TaskListSink, TaskListView,
};
use crate::submit::plan::Plan;

mod alloc;
mod explain;
mod grid;
mod job;
mod plan;
mod server;
mod stream;
mod task;
mod template;
mod worker;

pub(crate) use grid::Look;

/// Prints tables.
pub(crate) struct TableOutput {
    look: Look,
}

impl TableOutput {
    /// Creates an output with or without escape sequences.
    pub(crate) const fn new(look: Look) -> Self {
        Self { look }
    }
}

/// Writes a table of plain texts with a header.
pub(crate) fn write_plain(
    out: Out<'_>,
    header: &[String],
    rows: Vec<Vec<String>>,
) -> io::Result<()> {
    let names: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut grid = grid::Grid::horizontal(Look::default(), &names, 0);
    for row in rows {
        grid.row(row.into_iter().map(grid::Text::from));
    }
    grid.write(out)
}

/// Writes ids of tasks: only the ids for a single job, otherwise one line per job.
pub(crate) fn write_task_ids(out: Out<'_>, reply: &client::TaskIdsReply) -> io::Result<()> {
    let is_single = reply.jobs.len() == 1;
    for job in &reply.jobs {
        let ids = job.ids.as_ref().map(id_array).unwrap_or_default();
        if is_single {
            writeln!(out, "{ids}")?;
        } else {
            writeln!(out, "{}: {ids}", job.job)?;
        }
    }
    Ok(())
}

impl Output for TableOutput {
    fn server_info(
        &self,
        out: Out<'_>,
        info: &client::ServerInfo,
        server_dir: Option<&Path>,
    ) -> io::Result<()> {
        server::write_info(out, self.look, info, server_dir)
    }

    fn worker_list(&self, out: Out<'_>, workers: &[client::WorkerInfo]) -> io::Result<()> {
        worker::write_list(out, self.look, workers)
    }

    fn worker_infos(&self, out: Out<'_>, workers: &[client::WorkerInfo]) -> io::Result<()> {
        for (i, worker) in workers.iter().enumerate() {
            if i > 0 {
                writeln!(out)?;
            }
            worker::write_info(out, self.look, worker)?;
        }
        Ok(())
    }

    fn worker_started(&self, out: Out<'_>, worker: &client::WorkerInfo) -> io::Result<()> {
        worker::write_info(out, self.look, worker)
    }

    fn hardware(&self, out: Out<'_>, resources: &common::ResourceDescriptor) -> io::Result<()> {
        worker::write_hardware(out, resources)
    }

    fn job_submitted(&self, out: Out<'_>, job: u32) -> io::Result<()> {
        writeln!(out, "Job submitted successfully, job ID: {job}")
    }

    fn submit_plan(&self, out: Out<'_>, plan: &Plan) -> io::Result<()> {
        plan::write(out, self.look, plan)
    }

    fn changed_tasks(&self, out: Out<'_>, jobs: &[ChangedView]) -> io::Result<()> {
        plan::write_changed(out, self.look, jobs)
    }

    fn jobs_resubmitted(&self, out: Out<'_>, jobs: &[ResubmittedView]) -> io::Result<()> {
        for row in jobs {
            let ResubmittedView {
                job,
                new_job,
                task_count,
            } = row;
            let tasks = count((*task_count).into(), "task");
            writeln!(
                out,
                "Job {job} resubmitted successfully, job ID: {new_job} ({tasks})"
            )?;
        }
        Ok(())
    }

    fn job_opened(&self, out: Out<'_>, job: u32) -> io::Result<()> {
        writeln!(out, "Job {job} is open.")
    }

    fn job_list(&self, out: Out<'_>, view: JobListView<'_>) -> io::Result<()> {
        job::write_list(out, self.look, view)
    }

    fn job_summary(&self, out: Out<'_>, counts: &JobTotals) -> io::Result<()> {
        job::write_summary(out, self.look, counts)
    }

    fn job_stats(&self, out: Out<'_>, view: &JobStatsView) -> io::Result<()> {
        job::write_stats(out, self.look, view)
    }

    fn job_suggestions(&self, out: Out<'_>, suggestions: &[Suggestion]) -> io::Result<()> {
        job::write_suggestions(out, self.look, suggestions)
    }

    fn wants_tasks_of_jobs(&self) -> bool {
        false
    }

    fn job_infos<'a>(&'a self, out: Out<'a>, is_verbose: bool) -> Box<dyn JobInfoSink + 'a> {
        Box::new(job::JobInfos::new(out, self.look, is_verbose))
    }

    fn task_list<'a>(&'a self, out: Out<'a>, view: TaskListView) -> Box<dyn TaskListSink + 'a> {
        Box::new(task::TaskLists::new(out, self.look, view))
    }

    fn task_infos<'a>(&'a self, out: Out<'a>, is_verbose: bool) -> Box<dyn TaskInfoSink + 'a> {
        Box::new(task::TaskInfos::new(out, self.look, is_verbose))
    }

    fn task_ids(&self, out: Out<'_>, reply: &client::TaskIdsReply) -> io::Result<()> {
        write_task_ids(out, reply)
    }

    fn explanation(
        &self,
        out: Out<'_>,
        explanation: &client::Explanation,
        is_verbose: bool,
    ) -> io::Result<()> {
        explain::write(out, self.look, explanation, is_verbose)
    }

    fn stream_summary(
        &self,
        out: Out<'_>,
        path: &str,
        summary: &hq_stream::Summary,
    ) -> io::Result<()> {
        stream::write_summary(out, self.look, path, summary)
    }

    fn alloc_list(
        &self,
        out: Out<'_>,
        queues: &[client::AllocQueue],
        is_verbose: bool,
    ) -> io::Result<()> {
        alloc::write_list(out, self.look, queues, is_verbose)
    }

    fn alloc_info(
        &self,
        out: Out<'_>,
        allocations: &[client::AllocAllocation],
        is_verbose: bool,
    ) -> io::Result<()> {
        alloc::write_info(out, self.look, allocations, is_verbose)
    }

    fn token_list(&self, out: Out<'_>, tokens: &[client::Token]) -> io::Result<()> {
        server::write_tokens(out, self.look, tokens)
    }

    fn done(&self, _out: Out<'_>) -> io::Result<()> {
        Ok(())
    }
}
