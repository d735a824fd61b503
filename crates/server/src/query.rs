//! Answers to questions: pure functions from the state to messages.
//!
//! They run on the core's thread, so each costs no more than what it shows: lists of tasks come in
//! pages.

pub(crate) mod dump;
mod job;
pub(crate) mod output;
mod task;
mod worker;

use hq_core::id::{JobId, TaskId};
use hq_core::job::Job;
use hq_core::server_state::{Notification, ServerState, WatchUpdate};
use hq_protocol::Message as _;
use hq_protocol::client::{self, reply::Reply};
use hq_protocol::convert::{JobRef, Query};

use crate::event_loop::View;
pub(crate) use job::JobOverview;

/// Answers a query.
pub(crate) fn answer(view: &View<'_>, query: &Query) -> Reply {
    match query {
        // Needs nothing of the state; the link answers it.
        Query::ServerInfo => error("Error: not a question for the core"),
        Query::JobList(jobs) => Reply::JobList(job::list(view.state, jobs)),
        Query::JobInfo(jobs) => Reply::JobInfos(job::infos(view, jobs)),
        Query::TaskPage(page) => Reply::TaskPage(task::page(view, page)),
        Query::TaskIds { jobs, states } => job::task_ids(view.state, jobs, states),
        Query::Workers {
            workers,
            with_runtime,
        } => Reply::Workers(worker::workers(view.state, workers, *with_runtime)),
        Query::Explain { job, task } => worker::explain(view, *job, *task),
    }
}

/// A job as dashboards show it.
pub(crate) fn job_overview(view: &View<'_>, id: JobId) -> Option<JobOverview> {
    job::overview(view, id)
}

/// A failed task of a job, as the details of the job have it.
pub(crate) fn failed_task(
    state: &ServerState,
    job: &Job,
    task: TaskId,
) -> Option<client::FailedTask> {
    task::failed(state, job, task)
}

/// The messages for a watching client: one, or several if many tasks have ended. All but the last only say which; jobs
/// end with the last one.
pub(crate) fn watch_updates(
    state: &ServerState,
    update: &WatchUpdate,
    with_paths: bool,
    bytes_max: usize,
) -> Vec<client::WatchUpdate> {
    let mut parts = Vec::new();
    let mut last = client::WatchUpdate {
        done: update.done,
        not_found: (!update.not_found.is_empty()).then(|| (&update.not_found).into()),
        notifications: update.notifications.iter().map(notification).collect(),
        ..client::WatchUpdate::default()
    };
    for watched in &update.jobs {
        let job = state.jobs().get(&watched.job);
        let forgotten = || client::JobSummary {
            id: watched.job.as_u32(),
            ..client::JobSummary::default()
        };
        let summary = job.map_or_else(forgotten, job::summary);
        let tasks = watched.ended_tasks.iter();
        let tasks = tasks.filter_map(|task| task::ended(state, job?, *task, with_paths));
        let mut ended_tasks = Vec::new();
        let mut bytes = 0;
        for task in tasks {
            if bytes >= bytes_max {
                bytes = 0;
                let part = client::WatchedJob {
                    summary: Some(summary.clone()),
                    ended: false,
                    ended_tasks: std::mem::take(&mut ended_tasks),
                };
                parts.push(client::WatchUpdate {
                    jobs: vec![part],
                    ..client::WatchUpdate::default()
                });
            }
            bytes += task.encoded_len();
            ended_tasks.push(task);
        }
        last.jobs.push(client::WatchedJob {
            summary: Some(summary),
            ended: watched.ended,
            ended_tasks,
        });
    }
    parts.push(last);
    parts
}

fn notification(notification: &Notification) -> client::Notification {
    client::Notification {
        job: notification.task.job.as_u32(),
        task: notification.task.task.as_u32(),
        worker: notification.worker.as_u32(),
        message: notification.message.to_vec().into(),
    }
}

/// Jobs with ids below `before`, the newest first, and whether there are more.
pub(crate) fn newest_jobs(
    view: &View<'_>,
    before: Option<JobId>,
    limit: usize,
) -> (Vec<client::JobSummary>, bool) {
    let all = view.state.jobs();
    let mut jobs = match before {
        Some(before) => all.range(..before),
        None => all.range(..),
    };
    let page = jobs
        .by_ref()
        .rev()
        .take(limit)
        .map(|(_, job)| job::summary(job));
    let page: Vec<_> = page.collect();
    (page, jobs.next().is_some())
}

fn error(message: &str) -> Reply {
    Reply::Error(client::Error {
        message: message.to_owned(),
    })
}

fn resolve(state: &ServerState, job: JobRef) -> Option<JobId> {
    match job {
        JobRef::Last => state.last_job(),
        JobRef::Id(id) => Some(id),
    }
}

fn worker_ref(state: &ServerState, id: hq_core::id::WorkerId) -> client::WorkerRef {
    let hostname = state.hostname(id).unwrap_or_default();
    client::WorkerRef {
        id: id.as_u32(),
        hostname: hostname.to_owned(),
    }
}

#[cfg(test)]
mod tests;
