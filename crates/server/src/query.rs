//! Answers to questions: pure functions from the state to messages.
//!
//! They run on the core's thread, so each costs no more than what it shows: lists of tasks come in
//! pages, and long answers are made in parts.

mod aborted;
pub(crate) mod dump;
mod job;
pub(crate) mod listed;
pub(crate) mod output;
mod parts;
mod task;
mod worker;

use hq_core::id::{JobId, TaskId};
use hq_core::job::Job;
use hq_core::server_state::{Notification, ServerState, WatchUpdate, WatchedJob};
use hq_core::time::Now;
use hq_protocol::Message as _;
use hq_protocol::client::{self, reply::Reply};
use hq_protocol::convert::{JobRef, Query};

use crate::core_handle::View;
pub(crate) use job::JobOverview;
use listed::ListedJob;
pub(crate) use parts::{Asked, ask};
pub(crate) use worker::on_request;

/// Overhead of an element of a list besides its own bytes, at most: its tag and its length.
const ELEMENT_BYTES: usize = 12;

/// Answers a query in the steps in which the core's thread does it; `between` is called between two of them.
/// For measurements and tests.
pub fn answer_in_steps(
    state: &ServerState,
    now: Now,
    query: Query,
    mut between: impl FnMut(),
) -> Reply {
    let view = View { state, now };
    let mut asked = Asked::New(query);
    loop {
        match asked.go_on(&view) {
            Ok(reply) => return reply,
            Err(rest) => asked = rest,
        }
        between();
    }
}

/// A job as dashboards show it, with what lists show of it.
pub(crate) fn job_overview(view: &View<'_>, id: JobId) -> Option<(JobOverview, ListedJob)> {
    let listed = listed::listed(view, view.state.jobs().get(&id)?);
    Some((job::overview(view, id)?, listed))
}

/// A failed task of a job, as the details of the job have it.
pub(crate) fn failed_task(
    state: &ServerState,
    job: &Job,
    task: TaskId,
) -> Option<client::FailedTask> {
    task::failed(state, job, task)
}

/// The messages for a watching client: one, or several of about `bytes_max` if much has changed. All but the last say that
/// there is more; a job may be in several, and ends with the last of them.
pub(crate) fn watch_updates(
    state: &ServerState,
    update: &WatchUpdate,
    with_paths: bool,
    bytes_max: usize,
) -> Vec<client::WatchUpdate> {
    let mut parts = WatchParts {
        bytes_max,
        bytes: 0,
        parts: Vec::new(),
        current: client::WatchUpdate {
            not_found: (!update.not_found.is_empty()).then(|| (&update.not_found).into()),
            ..client::WatchUpdate::default()
        },
    };
    for watched in &update.jobs {
        parts.add_job(state, watched, with_paths);
    }
    for sent in update.notifications.iter().map(notification) {
        parts.make_room(sent.encoded_len());
        parts.current.notifications.push(sent);
    }
    let mut last = parts.current;
    last.done = update.done;
    parts.parts.push(last);
    parts.parts
}

/// An update that is divided into messages.
struct WatchParts {
    bytes_max: usize,
    /// Of the current part, unless its first element is larger.
    bytes: usize,
    parts: Vec<client::WatchUpdate>,
    current: client::WatchUpdate,
}

impl WatchParts {
    /// Begins the next part if this one has no room for `bytes` more; returns whether it did.
    fn make_room(&mut self, bytes: usize) -> bool {
        let bytes = bytes + ELEMENT_BYTES;
        let is_full = self.bytes > 0 && self.bytes + bytes > self.bytes_max;
        if is_full {
            self.bytes = 0;
            let mut part = std::mem::take(&mut self.current);
            part.more = true;
            self.parts.push(part);
        }
        self.bytes += bytes;
        is_full
    }

    fn add_job(&mut self, state: &ServerState, watched: &WatchedJob, with_paths: bool) {
        let job = state.jobs().get(&watched.job);
        let forgotten = || client::JobSummary {
            id: watched.job.as_u32(),
            ..client::JobSummary::default()
        };
        let summary = job.map_or_else(forgotten, job::summary);
        let summary_bytes = summary.encoded_len() + ELEMENT_BYTES;
        let begin = || client::WatchedJob {
            summary: Some(summary.clone()),
            ..client::WatchedJob::default()
        };
        self.make_room(summary_bytes);
        self.current.jobs.push(begin());
        let ended = watched.ended_tasks.iter();
        for task in ended.filter_map(|task| task::ended(state, job?, *task, with_paths)) {
            if self.make_room(task.encoded_len()) {
                self.bytes += summary_bytes;
                self.current.jobs.push(begin());
            }
            if let Some(shown) = self.current.jobs.last_mut() {
                shown.ended_tasks.push(task);
            }
        }
        if let Some(shown) = self.current.jobs.last_mut() {
            shown.ended = watched.ended;
        }
    }
}

fn notification(notification: &Notification) -> client::Notification {
    client::Notification {
        job: notification.task.job.as_u32(),
        task: notification.task.task.as_u32(),
        worker: notification.worker.as_u32(),
        message: notification.message.to_vec().into(),
    }
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
