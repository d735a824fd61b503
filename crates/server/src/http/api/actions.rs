//! The actions that dashboards can request. Each returns when its change is on disk.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use hq_core::autoalloc::QueueCommand;
use hq_core::id::{JobId, QueueId};
use hq_core::outcome::SignalName;
use hq_core::range::IdArray;
use hq_core::refusal::Refusal;
use hq_core::selector::Selector;
use hq_core::server_state::{
    ChangedTasks, Command, JobResult, Reply as Outcome, Resubmitted, Signaled, StopResult,
};
use hq_core::task::TaskState;
use hq_protocol::convert::AllocRequest;

use super::answers::{
    Acknowledged, Canceled, Closed, Done, Drained, Held, Released, Resubmitted as Again, Stopped,
};
use super::described::{Id, query};
use super::read::{accepted, unexpected};
use super::{Answer, ApiError, Parameters, id, parameters};
use crate::http::App;

pub(super) async fn carry_out(app: &App, command: Command) -> Result<Outcome, ApiError> {
    app.parts
        .core
        .command(command)
        .await?
        .map_err(ApiError::from)
}

fn only(text: &str, what: &str) -> Result<Selector, ApiError> {
    Ok(Selector::Ids(IdArray::single(id(text, what)?)))
}

/// The maximum length of a cancellation reason in characters, the same as on the command line.
const REASON_MAX: usize = 200;

query! {
    /// The parameters of a cancel request.
    CancelQuery {
        /// The reason, which is shown to users who look for their tasks. It is not in the body,
        /// because signed requests have no body.
        reason: Option<String>,
    }
}

pub(in crate::http) async fn cancel(
    State(app): State<Arc<App>>,
    Path(job): Path<String>,
    asked: Parameters<CancelQuery>,
) -> Answer<Canceled> {
    let reason = parameters(asked)?.reason.unwrap_or_default();
    let length = reason.chars().count();
    if length > REASON_MAX {
        return Err(ApiError::bad(format!(
            "expected at most {REASON_MAX} characters as reason, found {length}"
        )));
    }
    let command = |jobs| Command::CancelJobs {
        jobs,
        reason: reason.into(),
    };
    let canceled = match change_job(&app, &job, command).await? {
        JobResult::Ok { canceled, .. } => canceled,
        JobResult::Already(_) => 0,
    };
    Ok(Json(Canceled { canceled }))
}

/// Cancels one task of a job.
pub(in crate::http) async fn cancel_task(
    State(app): State<Arc<App>>,
    Path((job, task)): Path<(String, String)>,
) -> Answer<Canceled> {
    let command = Command::CancelTasks {
        job: JobId(id(&job, "job")?),
        tasks: IdArray::single(id(&task, "task")?),
        keep_running: false,
    };
    match change_job(&app, &job, |_| command).await? {
        JobResult::Ok {
            canceled: 0,
            already_finished: 0,
            ..
        } => Err(ApiError::not_found(format!("job {job} has no task {task}"))),
        JobResult::Ok { canceled, .. } => Ok(Json(Canceled { canceled })),
        JobResult::Already(_) => Ok(Json(Canceled { canceled: 0 })),
    }
}

query! {
    /// The parameters of a signal request.
    SignalQuery {
        /// The name or number of the signal, such as USR1.
        signal: String,
    }
}

/// Sends a signal to a running task of a job.
pub(in crate::http) async fn signal_task(
    State(app): State<Arc<App>>,
    Path((job, task)): Path<(String, String)>,
    asked: Parameters<SignalQuery>,
) -> Answer<Done> {
    let signal = parameters(asked)?.signal.parse::<SignalName>();
    let SignalName(signal) = signal.map_err(ApiError::bad)?;
    let command = Command::SignalTasks {
        job: JobId(id(&job, "job")?),
        tasks: IdArray::single(id(&task, "task")?),
        signal,
    };
    let Outcome::Signaled(Signaled { sent, unable }) = carry_out(&app, command).await? else {
        return Err(unexpected());
    };
    if !unable.is_empty() {
        let why = format!(
            "task {task} is a Python call, or its worker is disconnected or too old to send signals"
        );
        return Err(ApiError::conflict(why));
    }
    match sent.is_empty() {
        true => Err(ApiError::conflict(format!(
            "job {job} has no running task {task}"
        ))),
        false => Ok(Json(Done { done: true })),
    }
}

/// Holds the tasks of a job, which then do not start. Running tasks go on.
pub(in crate::http) async fn hold(
    State(app): State<Arc<App>>,
    Path(job): Path<String>,
) -> Answer<Held> {
    change_held(&app, &job, None, true).await
}

/// Lets the held tasks of a job start.
pub(in crate::http) async fn release(
    State(app): State<Arc<App>>,
    Path(job): Path<String>,
) -> Answer<Held> {
    change_held(&app, &job, None, false).await
}

/// Holds one task of a job.
pub(in crate::http) async fn hold_task(
    State(app): State<Arc<App>>,
    Path((job, task)): Path<(String, String)>,
) -> Answer<Held> {
    change_held(&app, &job, Some(&task), true).await
}

/// Lets one held task of a job start.
pub(in crate::http) async fn release_task(
    State(app): State<Arc<App>>,
    Path((job, task)): Path<(String, String)>,
) -> Answer<Held> {
    change_held(&app, &job, Some(&task), false).await
}

async fn change_held(app: &App, job: &str, task: Option<&str>, is_held: bool) -> Answer<Held> {
    let task = task.map(|task| id(task, "task")).transpose()?;
    let command = Command::HoldTasks {
        job: JobId(id(job, "job")?),
        tasks: task.map(IdArray::single),
        is_held,
    };
    let outcome = carry_out(app, command).await?;
    if let Outcome::Refused(why) = &outcome {
        return Err(Refusal::from(why).into());
    }
    let Outcome::Changed(Ok(ChangedTasks {
        changed, running, ..
    })) = outcome
    else {
        return Err(unexpected());
    };
    let (changed, running) = (changed.len(), running.len());
    if let Some(task) = task
        && changed + running == 0
    {
        let kind = if is_held { "unfinished" } else { "held" };
        let why = format!("job {job} has no {kind} task {task}");
        return Err(ApiError::conflict(why));
    }
    Ok(Json(Held { changed, running }))
}

/// Closes an open job, which then accepts no more tasks.
pub(in crate::http) async fn close(
    State(app): State<Arc<App>>,
    Path(job): Path<String>,
) -> Answer<Closed> {
    let result = change_job(&app, &job, Command::CloseJobs).await?;
    let closed = matches!(result, JobResult::Ok { .. });
    Ok(Json(Closed { closed }))
}

async fn change_job(
    app: &App,
    job: &str,
    command: impl FnOnce(Selector) -> Command,
) -> Result<JobResult, ApiError> {
    let Outcome::Jobs(results) = carry_out(app, command(only(job, "job")?)).await? else {
        return Err(unexpected());
    };
    let missing = || ApiError::not_found(format!("there is no job {job}"));
    results.rows.into_iter().next().ok_or_else(missing)
}

/// Resubmits the failed tasks as a new job.
pub(in crate::http) async fn resubmit(
    State(app): State<Arc<App>>,
    Path(job): Path<String>,
) -> Answer<Again> {
    let command = Command::Resubmit {
        jobs: only(&job, "job")?,
        states: vec![TaskState::Failed],
        requests: Vec::new(),
    };
    let Outcome::Resubmitted(results) = carry_out(&app, command).await? else {
        return Err(unexpected());
    };
    match results.rows.first() {
        Some(Resubmitted::Ok {
            new, task_count, ..
        }) => Ok(Json(Again {
            job: Id(new.as_u32()),
            task_count: *task_count,
        })),
        Some(Resubmitted::Nothing(_)) => Err(ApiError::conflict(format!(
            "no task of job {job} has failed"
        ))),
        Some(Resubmitted::Refused(_, why)) => Err(Refusal::from(why).into()),
        None => Err(ApiError::not_found(format!("there is no job {job}"))),
    }
}

/// Acknowledges a problem.
pub(in crate::http) async fn acknowledge(
    State(app): State<Arc<App>>,
    Path(problem): Path<String>,
) -> Answer<Acknowledged> {
    app.parts.problems.acknowledge(&problem, true).await?;
    Ok(Json(Acknowledged { acknowledged: true }))
}

/// Withdraws an acknowledgement.
pub(in crate::http) async fn take_back(
    State(app): State<Arc<App>>,
    Path(problem): Path<String>,
) -> Answer<Acknowledged> {
    app.parts.problems.acknowledge(&problem, false).await?;
    Ok(Json(Acknowledged {
        acknowledged: false,
    }))
}

pub(in crate::http) async fn stop_worker(
    State(app): State<Arc<App>>,
    Path(worker): Path<String>,
) -> Answer<Stopped> {
    let result = change_worker(&app, &worker, Command::StopWorkers).await?;
    let stopped = matches!(result, StopResult::Stopped | StopResult::Draining);
    Ok(Json(Stopped { stopped }))
}

/// Drains a worker: it gets no new tasks, and stops when its running tasks have ended.
pub(in crate::http) async fn drain_worker(
    State(app): State<Arc<App>>,
    Path(worker): Path<String>,
) -> Answer<Drained> {
    let result = change_worker(&app, &worker, Command::DrainWorkers).await?;
    let draining = matches!(result, StopResult::Draining | StopResult::Stopped);
    Ok(Json(Drained { draining }))
}

/// Releases a worker from quarantine, so that it gets tasks again.
pub(in crate::http) async fn release_worker(
    State(app): State<Arc<App>>,
    Path(worker): Path<String>,
) -> Answer<Released> {
    let result = change_worker(&app, &worker, Command::ReleaseWorkers).await?;
    let released = result == StopResult::Released;
    Ok(Json(Released { released }))
}

async fn change_worker(
    app: &App,
    worker: &str,
    command: fn(Selector) -> Command,
) -> Result<StopResult, ApiError> {
    let Outcome::Workers(results) = carry_out(app, command(only(worker, "worker")?)).await? else {
        return Err(unexpected());
    };
    let missing = || ApiError::not_found(format!("there is no worker {worker}"));
    let (_, result) = results.rows.into_iter().next().ok_or_else(missing)?;
    Ok(result)
}

pub(in crate::http) async fn pause_queue(
    State(app): State<Arc<App>>,
    Path(queue): Path<String>,
) -> Answer<Done> {
    let queue = QueueId(id(&queue, "queue")?);
    change_queue(&app, QueueCommand::Pause(queue)).await
}

pub(in crate::http) async fn resume_queue(
    State(app): State<Arc<App>>,
    Path(queue): Path<String>,
) -> Answer<Done> {
    let queue = QueueId(id(&queue, "queue")?);
    change_queue(&app, QueueCommand::Resume(queue)).await
}

async fn change_queue(app: &App, change: QueueCommand) -> Answer<Done> {
    let Some(alloc) = &app.parts.alloc else {
        return Err(ApiError::not_found(
            "this server has no automatic allocation",
        ));
    };
    accepted(alloc.ask(Box::new(AllocRequest::Change(change))).await)?;
    Ok(Json(Done { done: true }))
}
