//! Minimal output for `$(…)`: ids and states.

use std::io;
use std::path::Path;

use hq_core::job::JobTotals;
use hq_protocol::{client, common};

use super::suggest::Suggestion;
use super::view::{job_state, job_state_name, summary_states, worker_state_word};
use super::{
    ChangedView, JobInfoSink, JobListView, JobStatsView, Out, Output, ResubmittedView,
    TaskInfoSink, TaskListSink, TaskListView,
};
use crate::submit::plan::Plan;

/// Prints ids and states. Prints nothing if a command has neither.
pub(crate) struct QuietOutput;

struct Nothing;

impl Output for QuietOutput {
    fn server_info(
        &self,
        out: Out<'_>,
        _info: &client::ServerInfo,
        server_dir: Option<&Path>,
    ) -> io::Result<()> {
        match server_dir {
            Some(dir) => writeln!(out, "{}", dir.display()),
            None => Ok(()),
        }
    }

    fn worker_list(&self, out: Out<'_>, workers: &[client::WorkerInfo]) -> io::Result<()> {
        for worker in workers {
            writeln!(out, "{} {}", worker.id, worker_state_word(worker))?;
        }
        Ok(())
    }

    fn worker_infos(&self, _out: Out<'_>, _workers: &[client::WorkerInfo]) -> io::Result<()> {
        Ok(())
    }

    fn worker_started(&self, _out: Out<'_>, _worker: &client::WorkerInfo) -> io::Result<()> {
        Ok(())
    }

    fn hardware(&self, _out: Out<'_>, _resources: &common::ResourceDescriptor) -> io::Result<()> {
        Ok(())
    }

    fn job_submitted(&self, out: Out<'_>, job: u32) -> io::Result<()> {
        writeln!(out, "{job}")
    }

    fn submit_plan(&self, out: Out<'_>, plan: &Plan) -> io::Result<()> {
        writeln!(out, "{}", plan.task_count)
    }

    fn changed_tasks(&self, out: Out<'_>, jobs: &[ChangedView]) -> io::Result<()> {
        for ChangedView { job, skipped } in jobs {
            for (task, _) in &skipped.runs {
                writeln!(out, "{job}.{task}")?;
            }
        }
        Ok(())
    }

    fn jobs_resubmitted(&self, out: Out<'_>, jobs: &[ResubmittedView]) -> io::Result<()> {
        for row in jobs {
            writeln!(out, "{}", row.new_job)?;
        }
        Ok(())
    }

    fn job_opened(&self, out: Out<'_>, job: u32) -> io::Result<()> {
        writeln!(out, "{job}")
    }

    fn job_list(&self, out: Out<'_>, view: JobListView<'_>) -> io::Result<()> {
        for job in view.jobs {
            writeln!(out, "{} {}", job.id, job_state_name(job_state(job)))?;
        }
        Ok(())
    }

    fn job_summary(&self, out: Out<'_>, counts: &JobTotals) -> io::Result<()> {
        for state in summary_states() {
            writeln!(out, "{} {}", job_state_name(state), counts.of(state))?;
        }
        Ok(())
    }

    fn job_stats(&self, out: Out<'_>, view: &JobStatsView) -> io::Result<()> {
        view.write_csv(out)
    }

    fn job_suggestions(&self, out: Out<'_>, suggestions: &[Suggestion]) -> io::Result<()> {
        for option in suggestions.iter().flat_map(Suggestion::options) {
            writeln!(out, "{option}")?;
        }
        Ok(())
    }

    fn wants_tasks_of_jobs(&self) -> bool {
        false
    }

    fn job_infos<'a>(&'a self, _out: Out<'a>, _is_verbose: bool) -> Box<dyn JobInfoSink + 'a> {
        Box::new(Nothing)
    }

    fn task_list<'a>(&'a self, _out: Out<'a>, _view: TaskListView) -> Box<dyn TaskListSink + 'a> {
        Box::new(Nothing)
    }

    fn task_infos<'a>(&'a self, _out: Out<'a>, _is_verbose: bool) -> Box<dyn TaskInfoSink + 'a> {
        Box::new(Nothing)
    }

    fn task_ids(&self, out: Out<'_>, reply: &client::TaskIdsReply) -> io::Result<()> {
        super::table::write_task_ids(out, reply)
    }

    fn explanation(
        &self,
        _out: Out<'_>,
        _explanation: &client::Explanation,
        _is_verbose: bool,
    ) -> io::Result<()> {
        Ok(())
    }

    fn stream_summary(
        &self,
        _out: Out<'_>,
        _path: &str,
        _summary: &hq_stream::Summary,
    ) -> io::Result<()> {
        Ok(())
    }

    fn alloc_list(
        &self,
        _out: Out<'_>,
        _queues: &[client::AllocQueue],
        _is_verbose: bool,
    ) -> io::Result<()> {
        Ok(())
    }

    fn alloc_info(
        &self,
        _out: Out<'_>,
        _allocations: &[client::AllocAllocation],
        _is_verbose: bool,
    ) -> io::Result<()> {
        Ok(())
    }

    fn token_list(&self, out: Out<'_>, tokens: &[client::Token]) -> io::Result<()> {
        for token in tokens {
            writeln!(out, "{} {}", token.name, token.role().name())?;
        }
        Ok(())
    }

    fn done(&self, _out: Out<'_>) -> io::Result<()> {
        Ok(())
    }
}

impl JobInfoSink for Nothing {
    fn job(&mut self, _job: &client::JobDetail) -> io::Result<()> {
        Ok(())
    }

    fn tasks(&mut self, _page: &client::TaskPageReply) -> io::Result<()> {
        Ok(())
    }

    fn finish(self: Box<Self>) -> io::Result<()> {
        Ok(())
    }
}

impl TaskListSink for Nothing {
    fn job(&mut self, _job: u32) -> io::Result<()> {
        Ok(())
    }

    fn tasks(&mut self, _page: &client::TaskPageReply) -> io::Result<()> {
        Ok(())
    }

    fn finish(self: Box<Self>) -> io::Result<bool> {
        Ok(false)
    }
}

impl TaskInfoSink for Nothing {
    fn tasks(&mut self, _page: &client::TaskPageReply) -> io::Result<()> {
        Ok(())
    }

    fn finish(self: Box<Self>) -> io::Result<()> {
        Ok(())
    }
}
