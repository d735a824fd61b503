//! Answers to queries: pure functions from the state to messages.
//!
//! They run on the core's thread, so no query may take long: lists of tasks are split into pages,
//! and long answers into parts.

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
use hq_core::server_state::{ServerState, WatchUpdate};
use hq_core::time::Now;
use hq_protocol::client::{self, reply::Reply};
use hq_protocol::convert::{JobRef, Query};

use crate::core_handle::View;
use crate::updates::{Details, Update};
pub(crate) use parts::{PartialQuery, ask};
pub(crate) use worker::on_request;

/// Answers a query in steps of the core's thread and calls `between` between two steps. For
/// measurements and tests.
pub fn answer_in_steps(
    state: &ServerState,
    now: Now,
    query: Query,
    mut between: impl FnMut(),
) -> Reply {
    let view = View { state, now };
    let mut asked = PartialQuery::New(query);
    loop {
        match asked.continue_with(&view) {
            Ok(reply) => return reply,
            Err(rest) => asked = rest,
        }
        between();
    }
}

/// Returns a failed task for the details of a job.
pub(crate) fn failed_task(
    state: &ServerState,
    job: &Job,
    task: TaskId,
) -> Option<client::FailedTask> {
    task::failed(state, job, task)
}

/// Returns an update of a watch with the current summaries of its jobs. For a forgotten job, the
/// summary contains only the id.
pub(crate) fn update(state: &ServerState, update: WatchUpdate) -> Update {
    Update::new(update, |id| {
        let forgotten = || client::JobSummary {
            id: id.as_u32(),
            ..client::JobSummary::default()
        };
        state.jobs().get(&id).map_or_else(forgotten, job::summary)
    })
}

/// Prepares the details of as many ended tasks as one message holds. If their job was forgotten in
/// the meantime, tasks count as failed for the client, because their results are lost.
pub(crate) fn make_details(
    state: &ServerState,
    update: &mut Update,
    details: Details,
    bytes_max: usize,
) {
    update.make_details(bytes_max, |id, tasks| match state.jobs().get(&id) {
        Some(job) => task::ended(state, job, tasks, details),
        None => task::forgotten(id, tasks, details),
    });
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
