//! Read requests: pages of jobs and tasks, workers, queues, output, and past events.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::{Extension, Json};
use hq_core::id::{JobId, TaskId, TaskKey, WorkerId};
use hq_core::selector::Selector;
use hq_core::task::TaskState;
use hq_protocol::client::{self, TaskInfo, TaskPageReply, reply::Reply};
use hq_protocol::common::TaskTemplate;
use hq_protocol::convert::{JobRef, OutputQuery, Query, ReadFrom, Role, TaskPageQuery};
use hq_store::reader::{self, run, timeline};

use super::answers::{
    History, JobDetail, JobPage, ListedJob, Output, Queue, QueueList, Server, Summary, Task,
    TaskPage, Worker, WorkerList,
};
use super::described::{Shown, Word, query};
use super::json::{FoundTask, amount, ms};
use super::past::{PeriodQuery, period, rows};
use super::{Answer, ApiError, Parameters, bounded, id, look_at_job, parameters};
use crate::http::App;
use crate::query::listed;
use crate::{metrics, output_link, query};

/// The maximum number of jobs or tasks per page.
const PAGE_MAX: u32 = 1_000;
/// The maximum length of a search text.
const SEARCH_LEN_MAX: usize = 200;
/// The maximum number of steps of the core's thread per search. The client continues with a cursor.
const SEARCH_STEPS_MAX: usize = 64;
const HISTORY_STEPS_MAX: i64 = 1_000;
/// Enough for three rows per step, with some reserve.
const HISTORY_ROWS_MAX: u64 = 100_000;
/// The largest cursor or offset, which fits into a signed integer.
const POSITION_MAX: u64 = i64::MAX.unsigned_abs();

pub(in crate::http) async fn server(
    State(app): State<Arc<App>>,
    Extension(role): Extension<Role>,
) -> Answer<Server> {
    let info = &app.parts.info;
    Ok(Json(Server {
        role: Word(role),
        is_read_only: role == Role::Read,
        server_uid: info.server_uid.clone(),
        version: info.version.clone(),
        host: info.client_host.clone(),
        pid: info.pid,
        started_ms: ms(info.start_unix_ns),
    }))
}

pub(in crate::http) async fn summary(State(app): State<Arc<App>>) -> Answer<Summary> {
    let figures = app.parts.core.query(metrics::read).await?;
    Ok(Json(Summary::shown(&figures)))
}

query! {
    /// Which jobs to return.
    JobsQuery {
        /// Only jobs with lower ids than this one.
        before: Option<u32>,
        limit: Option<u32>,
        /// Only jobs that contain this text somewhere.
        q: Option<String>,
    }
}

/// Lists jobs, newest first.
pub(in crate::http) async fn jobs(
    State(app): State<Arc<App>>,
    asked: Parameters<JobsQuery>,
) -> Answer<JobPage> {
    let asked = parameters(asked)?;
    let limit = bounded("limit", asked.limit, PAGE_MAX, 1..=PAGE_MAX)?;
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let text: Option<Arc<str>> = searched(asked.q)?.map(Into::into);
    let mut found = Vec::new();
    let mut next = asked.before.map(JobId);
    for _ in 0..SEARCH_STEPS_MAX {
        let (text, room) = (text.clone(), limit - found.len());
        let part = app
            .parts
            .core
            .query(move |view| listed::newest(view, next, room, text.as_deref()))
            .await?;
        found.extend(part.jobs.iter().map(ListedJob::shown));
        next = part.next;
        if next.is_none() || found.len() >= limit {
            break;
        }
    }
    Ok(Json(JobPage {
        jobs: found,
        next_before: next.map(JobId::as_u32),
    }))
}

pub(in crate::http) async fn job(
    State(app): State<Arc<App>>,
    Path(job): Path<String>,
) -> Answer<JobDetail> {
    let found = look_at_job(&app, id(&job, "job")?, listed::overview).await?;
    Ok(Json(JobDetail::shown(&found)))
}

pub(super) fn unexpected() -> ApiError {
    ApiError::bad("the server has no answer to that")
}

/// Requests a page of tasks from the core.
pub(super) async fn task_page(app: &App, page: TaskPageQuery) -> Result<TaskPageReply, ApiError> {
    let answer = query::ask(&app.parts.core, Query::TaskPage(page)).await?;
    let Reply::TaskPage(page) = accepted(answer)? else {
        return Err(unexpected());
    };
    Ok(page)
}

/// Returns the answer unless it is a rejection.
pub(super) fn accepted(reply: Reply) -> Result<Reply, ApiError> {
    if let Reply::Error(error) = reply {
        return Err(error.refusal().map_or_else(unexpected, ApiError::from));
    }
    Ok(reply)
}

/// Returns the search text in lower case. `None` matches everything.
fn searched(text: Option<String>) -> Result<Option<String>, ApiError> {
    let Some(text) = text.filter(|text| !text.trim().is_empty()) else {
        return Ok(None);
    };
    let length = text.chars().count();
    if length > SEARCH_LEN_MAX {
        return Err(ApiError::bad(format!(
            "expected at most {SEARCH_LEN_MAX} characters as q, found {length}"
        )));
    }
    Ok(Some(text.trim().to_lowercase()))
}

query! {
    /// Which tasks to return.
    TasksQuery {
        /// Only tasks that contain this text in their id, host, failure, command, entry or a
        /// parameter value, or that have a parameter for which this text is `NAME=VALUE`.
        q: Option<String>,
        /// The states, separated by commas.
        state: Option<String>,
        cursor: Option<u64>,
        limit: Option<u32>,
    }
}

fn states(text: &str) -> Result<Vec<TaskState>, ApiError> {
    let words = text.split(',').filter(|word| !word.is_empty());
    let expected = "waiting, running, finished, failed, canceled or aborted";
    words
        .map(|word| {
            TaskState::from_name(word).ok_or_else(|| {
                ApiError::bad(format!("expected {expected} as state, found `{word}`"))
            })
        })
        .collect()
}

pub(in crate::http) async fn tasks(
    State(app): State<Arc<App>>,
    Path(job): Path<String>,
    asked: Parameters<TasksQuery>,
) -> Answer<TaskPage> {
    let asked = parameters(asked)?;
    let text = searched(asked.q)?;
    let limit = bounded("limit", asked.limit, PAGE_MAX, 1..=PAGE_MAX)?;
    let mut query = TaskPageQuery {
        job: JobRef::Id(JobId(id(&job, "job")?)),
        tasks: None,
        states: states(asked.state.as_deref().unwrap_or_default())?,
        cursor: bounded("cursor", asked.cursor, 0, 0..=POSITION_MAX)?,
        limit,
        with_definition: text.is_some(),
        with_curves: false,
        without_paths: false,
    };
    let mut tasks = Vec::new();
    let mut next = None;
    for _ in 0..SEARCH_STEPS_MAX {
        // No more tasks are examined than would fit if all of them matched, because the cursor
        // points after the last examined task.
        query.limit = limit - u32::try_from(tasks.len()).unwrap_or(limit);
        let page = task_page(&app, query.clone()).await?;
        if !page.job_found {
            return Err(ApiError::not_found(format!("there is no job {job}")));
        }
        let wanted = |task: &&TaskInfo| text.as_deref().is_none_or(|text| has(task, &page, text));
        tasks.extend(page.tasks.iter().filter(wanted).map(Task::shown));
        next = page.next_cursor;
        match next {
            Some(cursor) if text.is_some() && tasks.len() < limit as usize => query.cursor = cursor,
            Some(_) | None => break,
        }
    }
    Ok(Json(TaskPage {
        tasks,
        next_cursor: next,
    }))
}

/// Returns whether any field of a task contains a text in lower case.
fn has(task: &TaskInfo, page: &TaskPageReply, text: &str) -> bool {
    let is_in = |place: &str| listed::contains(place, text);
    let found = FoundTask {
        task,
        template: page.templates.get(task.template as usize),
        resources: "",
    };
    let command = |template: &TaskTemplate| <Vec<String>>::shown(&template.args).join(" ");
    task.id.to_string() == text
        || task.workers.iter().any(|worker| is_in(&worker.hostname))
        || task.error.as_deref().is_some_and(is_in)
        || found
            .entry()
            .is_some_and(|entry| is_in(&String::from_utf8_lossy(entry)))
        || task.params.iter().any(|param| {
            let value = String::from_utf8_lossy(&param.value);
            // The whole text is compared, because `seed=1` is not `seed=10`.
            is_in(&value) || format!("{}={value}", param.name).to_lowercase() == text
        })
        || found
            .template
            .is_some_and(|template| is_in(&command(template)))
}

query! {
    /// Which part of an output to return.
    OutputParameters {
        /// `stderr` or `stdout`, the default.
        stream: Option<String>,
        /// The offset of the first byte. Without it, the last lines are returned.
        from: Option<u64>,
        instance: Option<u32>,
        lines: Option<u32>,
    }
}

pub(in crate::http) async fn output(
    State(app): State<Arc<App>>,
    Path((job, task)): Path<(String, String)>,
    asked: Parameters<OutputParameters>,
) -> Answer<Output> {
    let asked = parameters(asked)?;
    let is_stderr = match asked.stream.as_deref() {
        None | Some("stdout") => false,
        Some("stderr") => true,
        Some(other) => {
            return Err(ApiError::bad(format!(
                "expected stdout or stderr as stream, found `{other}`"
            )));
        }
    };
    let last = ReadFrom::LastLines(bounded("lines", asked.lines, 100, 0..=PAGE_MAX)?);
    let query = OutputQuery {
        task: TaskKey::new(JobId(id(&job, "job")?), TaskId(id(&task, "task")?)),
        is_stderr,
        instance: asked.instance.map(hq_core::id::InstanceId),
        from: match asked.from {
            Some(from) => ReadFrom::Offset(bounded("from", Some(from), 0, 0..=POSITION_MAX)?),
            None => last,
        },
        wait: Duration::ZERO,
    };
    let answer = output_link::read(query, &app.parts.core, &app.parts.questions).await?;
    let Reply::Output(output) = accepted(answer)? else {
        return Err(unexpected());
    };
    if output.kind() == client::output::Kind::NotFound {
        return Err(ApiError::not_found(format!(
            "there is no task {task} of job {job}"
        )));
    }
    Ok(Json(Output::shown(&output)))
}

pub(in crate::http) async fn workers(State(app): State<Arc<App>>) -> Answer<WorkerList> {
    let all = Query::Workers {
        workers: Selector::All,
        with_runtime: true,
    };
    let answer = query::ask(&app.parts.core, all).await?;
    let Reply::Workers(found) = accepted(answer)? else {
        return Err(unexpected());
    };
    let running: BTreeMap<_, _> = (app.parts.core.query(listed::running_on).await?)
        .into_iter()
        .collect();
    let workers = found.workers.iter().map(|worker| {
        let tasks = running.get(&WorkerId(worker.id)).into_iter().flatten();
        Worker {
            tasks: tasks
                .map(|key| [key.job.as_u32(), key.task.as_u32()])
                .collect(),
            ..Worker::shown(worker)
        }
    });
    Ok(Json(WorkerList {
        workers: workers.collect(),
    }))
}

pub(in crate::http) async fn queues(State(app): State<Arc<App>>) -> Answer<QueueList> {
    let found = match &app.parts.alloc {
        Some(alloc) => alloc.list().await?,
        None => Vec::new(),
    };
    let queues = found.iter().map(|(queue, allocations)| Queue {
        allocations: Shown::shown(allocations),
        ..Queue::shown(queue)
    });
    Ok(Json(QueueList {
        queues: queues.collect(),
    }))
}

/// Returns the tasks that started and ended in each step of a period.
pub(in crate::http) async fn history(
    State(app): State<Arc<App>>,
    asked: Parameters<PeriodQuery>,
) -> Answer<History> {
    let asked = parameters(asked)?;
    let steps = bounded("steps", asked.steps, 200, 1..=HISTORY_STEPS_MAX)?;
    let (from, to) = period(asked.from_ms, asked.to_ms)?;
    let width = ((to - from) / steps).max(1);
    let query = timeline::history(from, to, width);
    let (found, _) = rows(&app, query, HISTORY_ROWS_MAX).await?;
    let length = usize::try_from(steps).unwrap_or(1);
    // Started tasks are shown as running here.
    let shown = [
        TaskState::Running,
        TaskState::Finished,
        TaskState::Failed,
        TaskState::Canceled,
        TaskState::Aborted,
    ];
    let mut series = shown.map(|_| vec![0; length]);
    for row in &found {
        let kind = shown.iter().position(|kind| *kind == row.state);
        let step = usize::try_from(row.step).unwrap_or(0).min(length - 1);
        let series = kind.and_then(|kind| series.get_mut(kind));
        if let Some(count) = series.and_then(|series| series.get_mut(step)) {
            *count += row.count;
        }
    }
    let [started, finished, failed, canceled, aborted] = series;
    let (cpus_used, cpus_total) = cpus(&app, from, width, steps).await?;
    Ok(Json(History {
        from_ms: asked.from_ms,
        to_ms: asked.to_ms,
        cpus_used,
        cpus_total,
        started,
        finished,
        failed,
        canceled,
        aborted,
    }))
}

/// Returns the number of cpus in use and the total number of cpus at the end of each step.
async fn cpus(
    app: &App,
    from: i64,
    width: i64,
    steps: i64,
) -> Result<(Vec<f64>, Vec<f64>), ApiError> {
    let to = from.saturating_add(width.saturating_mul(steps));
    let (changes, _) = rows(app, reader::steps(from, to, width), HISTORY_ROWS_MAX).await?;
    let (lives, _) = rows(app, run::lives(from, to), HISTORY_ROWS_MAX).await?;
    let found = reader::usage(&changes, &lives, from, width, steps);
    let whole = |units: i64| amount(units.unsigned_abs());
    let series = found
        .iter()
        .map(|step| (whole(step.used), whole(step.offered)));
    Ok(series.unzip())
}
