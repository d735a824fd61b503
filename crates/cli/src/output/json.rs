//! Prints one pretty-printed JSON value per command, with keys in alphabetical order.
//!
//! [`serde_json::Value`] keeps keys sorted. Lists of tasks are never held as a whole: [`stream`]
//! writes them element by element.

use std::io;
use std::path::Path;

use hq_core::job::{JobState, JobTotals};
use hq_protocol::{client, common};
use serde_json::{Value, json};

use super::format::rfc3339;
use super::suggest::Suggestion;
use super::{
    ChangedView, JobInfoSink, JobListView, JobStatsView, Out, Output, ResubmittedView,
    TaskInfoSink, TaskListSink, TaskListView, view,
};
use crate::submit::plan::Plan;

mod alloc;
mod job;
mod plan;
mod stream;
mod task;
mod worker;

pub(crate) use task::add_params;

/// Prints JSON.
pub(crate) struct JsonOutput;

/// Writes a pretty-printed value and a line feed.
pub(crate) fn write_value(out: Out<'_>, value: &Value) -> io::Result<()> {
    serde_json::to_writer_pretty(&mut *out, value)?;
    writeln!(out)
}

/// Returns the destination of an output: a path, `<pipe>`, or null.
fn stdio_value(stdio: &common::Stdio, path: impl Fn(&[u8]) -> String) -> Option<String> {
    match view::stdio_kind(stdio) {
        common::stdio::Kind::None => None,
        common::stdio::Kind::File => Some(path(&stdio.path)),
        common::stdio::Kind::Stream => Some("<pipe>".to_owned()),
    }
}

impl Output for JsonOutput {
    fn server_info(
        &self,
        out: Out<'_>,
        info: &client::ServerInfo,
        server_dir: Option<&Path>,
    ) -> io::Result<()> {
        let value = json!({
            "client_host": info.client_host,
            "client_port": info.client_port,
            "journal_path": info.journal_path,
            "pid": info.pid,
            "server_dir": server_dir.map(|dir| dir.display().to_string()),
            "server_uid": info.server_uid,
            "start_date": rfc3339(info.start_unix_ns),
            "version": info.version,
            "worker_host": info.worker_host,
            "worker_port": info.worker_port,
        });
        write_value(out, &value)
    }

    fn worker_list(&self, out: Out<'_>, workers: &[client::WorkerInfo]) -> io::Result<()> {
        write_value(out, &workers.iter().map(worker::worker).collect())
    }

    fn worker_infos(&self, out: Out<'_>, workers: &[client::WorkerInfo]) -> io::Result<()> {
        write_value(out, &workers.iter().map(worker::worker).collect())
    }

    fn worker_started(&self, out: Out<'_>, worker: &client::WorkerInfo) -> io::Result<()> {
        write_value(out, &worker::worker(worker))
    }

    fn hardware(&self, out: Out<'_>, resources: &common::ResourceDescriptor) -> io::Result<()> {
        write_value(out, &worker::resources(resources))
    }

    fn job_submitted(&self, out: Out<'_>, job: u32) -> io::Result<()> {
        write_value(out, &json!({ "id": job }))
    }

    fn submit_plan(&self, out: Out<'_>, plan: &Plan) -> io::Result<()> {
        write_value(out, &plan::value(plan))
    }

    fn changed_tasks(&self, out: Out<'_>, jobs: &[ChangedView]) -> io::Result<()> {
        write_value(out, &jobs.iter().map(plan::changed).collect())
    }

    fn jobs_resubmitted(&self, out: Out<'_>, jobs: &[ResubmittedView]) -> io::Result<()> {
        let row = |row: &ResubmittedView| json!({"id": row.new_job, "resubmitted": row.job, "task_count": row.task_count});
        write_value(out, &jobs.iter().map(row).collect())
    }

    fn job_opened(&self, out: Out<'_>, job: u32) -> io::Result<()> {
        write_value(out, &json!({ "id": job }))
    }

    fn job_list(&self, out: Out<'_>, view: JobListView<'_>) -> io::Result<()> {
        write_value(
            out,
            &view
                .jobs
                .iter()
                .map(|summary| job::summary(summary))
                .collect(),
        )
    }

    fn job_summary(&self, out: Out<'_>, counts: &JobTotals) -> io::Result<()> {
        let shown = view::summary_states();
        let mut value = json!({});
        for state in JobState::ALL {
            let count = counts.of(state);
            // Scripts expect the states of the table. Another state appears only if a job has it.
            if count > 0 || shown.contains(&state) {
                let (first, rest) = state.name().split_at(1);
                value[first.to_uppercase() + rest] = json!(count);
            }
        }
        write_value(out, &value)
    }

    fn job_stats(&self, out: Out<'_>, view: &JobStatsView) -> io::Result<()> {
        write_value(out, &view.json())
    }

    fn job_suggestions(&self, out: Out<'_>, suggestions: &[Suggestion]) -> io::Result<()> {
        write_value(out, &suggestions.iter().map(Suggestion::json).collect())
    }

    fn wants_tasks_of_jobs(&self) -> bool {
        true
    }

    fn job_infos<'a>(&'a self, out: Out<'a>, is_verbose: bool) -> Box<dyn JobInfoSink + 'a> {
        Box::new(job::JobInfos::new(out, is_verbose))
    }

    fn task_list<'a>(&'a self, out: Out<'a>, view: TaskListView) -> Box<dyn TaskListSink + 'a> {
        Box::new(task::TaskLists::new(out, view.is_verbose))
    }

    fn task_infos<'a>(&'a self, out: Out<'a>, is_verbose: bool) -> Box<dyn TaskInfoSink + 'a> {
        Box::new(task::TaskInfos::new(out, is_verbose))
    }

    fn task_ids(&self, out: Out<'_>, reply: &client::TaskIdsReply) -> io::Result<()> {
        task::write_ids(out, reply)
    }

    fn explanation(
        &self,
        out: Out<'_>,
        explanation: &client::Explanation,
        _is_verbose: bool,
    ) -> io::Result<()> {
        write_value(out, &task::explanation(explanation))
    }

    fn stream_summary(
        &self,
        out: Out<'_>,
        path: &str,
        summary: &hq_stream::Summary,
    ) -> io::Result<()> {
        let value = json!({
            "filename": path,
            "summary": {
                "n_files": summary.files,
                "n_jobs": summary.jobs,
                "n_opened": summary.opened,
                "n_streams": summary.streams,
                "n_superseded": summary.superseded,
                "n_tasks": summary.tasks,
                "stderr_size": summary.sizes[1],
                "stdout_size": summary.sizes[0],
                "superseded_stderr_size": summary.superseded_sizes[1],
                "superseded_stdout_size": summary.superseded_sizes[0],
            },
        });
        write_value(out, &value)
    }

    fn alloc_list(
        &self,
        out: Out<'_>,
        queues: &[client::AllocQueue],
        is_verbose: bool,
    ) -> io::Result<()> {
        let queues = queues.iter().map(|queue| alloc::queue(queue, is_verbose));
        write_value(out, &queues.collect())
    }

    fn alloc_info(
        &self,
        out: Out<'_>,
        allocations: &[client::AllocAllocation],
        is_verbose: bool,
    ) -> io::Result<()> {
        let rows = allocations.iter();
        let rows = rows.map(|allocation| alloc::allocation(allocation, is_verbose));
        write_value(out, &rows.collect())
    }

    fn token_list(&self, out: Out<'_>, tokens: &[client::Token]) -> io::Result<()> {
        let rows = tokens.iter().map(|token| {
            json!({
                "name": token.name,
                "role": token.role().name(),
                "created_at": rfc3339(token.created_unix_ns),
                "used_at": token.used_unix_ns.map(rfc3339),
            })
        });
        write_value(out, &rows.collect())
    }

    fn done(&self, out: Out<'_>) -> io::Result<()> {
        writeln!(out, "{{}}")
    }
}
