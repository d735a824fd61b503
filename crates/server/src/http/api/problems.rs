//! What is wrong, by the rules of [`hq_core::diagnosis`].

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use hq_core::diagnosis::{
    Facts, Finding, JobFacts, Obstacle, QueueFacts, Severity, Share, Subject, WorkerFacts, find,
};
use hq_core::id::{JobId, TaskId};
use hq_protocol::client::{self, alloc_reply, reply::Reply};
use hq_protocol::convert::{AllocRequest, JobRef, Query, TaskPageQuery};
use hq_protocol::why_nothing_runs;
use serde_json::{Value, json};

use super::read::{accepted, task_page};
use super::{ApiError, past, read};
use crate::core_handle::View;
use crate::http::App;

/// Findings that are told.
const SHOWN_MAX: usize = 50;
/// Jobs of which it is asked why nothing runs: the oldest, which wait for longest.
const EXPLAINED_MAX: usize = 10;

/// Jobs that are looked at in one step of the core's thread.
const JOBS_MAX: usize = 16_384;

/// What of the state is looked at, but for jobs.
struct Looked {
    connected: u64,
    lost: u64,
    ended: u64,
    /// Host of the last one that was lost.
    last_lost: String,
    unkillable: u64,
    /// Where the first of these tasks is.
    first_unkillable: String,
}

struct Job {
    id: JobId,
    name: Box<str>,
    counts: hq_core::job::TaskCounts,
}

impl Job {
    fn facts(&self) -> JobFacts<'_> {
        let counts = &self.counts;
        JobFacts {
            id: self.id.as_u32(),
            name: &self.name,
            waiting: counts.waiting.into(),
            running: counts.running.into(),
            finished: counts.finished.into(),
            failed: counts.failed.into(),
            total: counts.total().into(),
        }
    }
}

/// All findings, worst first.
pub(in crate::http) async fn problems(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    let make = async {
        let (found, is_cut) = look(&app).await?;
        let findings: Vec<Value> = found.iter().take(SHOWN_MAX).map(shape).collect();
        Ok::<_, ApiError>(json!({"problems": findings, "count": found.len(), "is_cut": is_cut}))
    };
    Ok(past::as_json(
        app.kept.get("problems".to_owned(), make).await?,
    ))
}

/// Findings; `true` if there are too many kinds of ends of tasks to look at all of them.
async fn look(app: &App) -> Result<(Vec<Finding>, bool), ApiError> {
    let looked = app.parts.core.query(read_state).await?;
    let mut troubled = Vec::new();
    let mut next = Some(JobId(0));
    while let Some(from) = next {
        let part = app
            .parts
            .core
            .query(move |view| read_jobs(view, from))
            .await?;
        troubled.extend(part.0);
        next = part.1;
    }
    let (shares, is_cut): (Vec<Share>, bool) = if app.parts.store.is_some() {
        let found = app.shares.get(app).await?;
        (found.shares, found.is_cut)
    } else {
        (Vec::new(), false)
    };
    let queues = match read::alloc(app, AllocRequest::List).await? {
        Some(alloc_reply::Reply::Queues(found)) => found.queues,
        Some(_) | None => Vec::new(),
    };
    let jobs: Vec<JobFacts<'_>> = troubled.iter().map(Job::facts).collect();
    let workers = WorkerFacts {
        connected: looked.connected,
        lost: looked.lost,
        total: looked.connected + looked.ended,
        last_lost: &looked.last_lost,
        unkillable: looked.unkillable,
        first_unkillable: &looked.first_unkillable,
    };
    let queues: Vec<QueueFacts<'_>> = queues.iter().map(queue_facts).collect();
    let obstacles = obstacles(app, &jobs).await?;
    let findings = find(&Facts {
        jobs: &jobs,
        workers,
        queues: &queues,
        shares: &shares,
        obstacles: Some(&obstacles),
        internal_errors: hq_core::bug::count(),
    });
    Ok((findings, is_cut))
}

/// Of the first jobs from this one on those that may be in trouble, and which one comes next.
fn read_jobs(view: &View<'_>, from: JobId) -> (Vec<Job>, Option<JobId>) {
    let mut jobs = view.state.jobs().range(from..);
    let part = jobs.by_ref().take(JOBS_MAX);
    let troubled = part.filter_map(|(id, job)| {
        let counts = job.counts();
        let is_starving = counts.waiting > 0 && counts.running == 0;
        (counts.failed > 0 || is_starving).then(|| Job {
            id: *id,
            name: job.name.clone(),
            counts: *counts,
        })
    });
    (troubled.collect(), jobs.next().map(|(id, _)| *id))
}

/// How many workers there are. Those that have ended are only counted.
fn read_state(view: &View<'_>) -> Looked {
    let state = view.state;
    let ended = state.ended_counts();
    let lost = ended.iter().filter(|(reason, _)| reason.is_lost());
    let last_lost = state.last_lost().and_then(|id| state.hostname(id));
    let unkillable = || {
        let workers = state.workers().values();
        workers.flat_map(|worker| worker.unkillable().iter().map(move |one| (worker, one)))
    };
    let first_unkillable = unkillable().next().map(|(worker, one)| {
        let place = one.whereabouts(&worker.config.hostname);
        format!("{} ({place})", one.task)
    });
    Looked {
        unkillable: unkillable().count() as u64,
        first_unkillable: first_unkillable.unwrap_or_default(),
        connected: state.workers().len() as u64,
        lost: lost.map(|(_, count)| count).sum(),
        ended: ended.values().sum(),
        last_lost: last_lost.unwrap_or_default().to_owned(),
    }
}

fn queue_facts(queue: &client::AllocQueue) -> QueueFacts<'_> {
    let name = queue.spec.as_ref().and_then(|spec| spec.name.as_deref());
    QueueFacts {
        id: queue.id,
        name: name.unwrap_or_default(),
        is_paused: queue.is_paused,
        is_failing: queue.is_failing(),
        reason: &queue.reason,
    }
}

/// Why the first waiting tasks of some jobs do not run.
async fn obstacles(app: &App, jobs: &[JobFacts<'_>]) -> Result<Vec<Obstacle>, ApiError> {
    let mut found = Vec::new();
    let starving = jobs.iter().filter(|job| job.is_starving());
    for job in starving.take(EXPLAINED_MAX) {
        let page = TaskPageQuery {
            job: JobRef::Id(JobId(job.id)),
            tasks: None,
            states: vec![hq_core::task::TaskState::Waiting],
            cursor: 0,
            limit: 1,
            with_definition: false,
        };
        let Some(task) = task_page(app, page)
            .await?
            .tasks
            .first()
            .map(|task| task.id)
        else {
            continue;
        };
        let question = Query::Explain {
            job: JobRef::Id(JobId(job.id)),
            task: TaskId(task),
        };
        let answer = crate::query::ask(&app.parts.core, question).await?;
        // It may run meanwhile, or be gone.
        if let Ok(Reply::Explanation(explanation)) = accepted(answer)
            && let Some(why) = why_nothing_runs(&explanation)
        {
            found.push(Obstacle { job: job.id, why });
        }
    }
    Ok(found)
}

fn shape(finding: &Finding) -> Value {
    let (kind, id, worker) = match &finding.subject {
        Subject::Node { worker, .. } => ("node", None, Some(*worker)),
        Subject::FailingJob(job) => ("failing-job", Some(*job), None),
        Subject::FailedTasks(job) => ("failed-tasks", Some(*job), None),
        Subject::LostWorkers => ("lost-workers", None, None),
        Subject::Unkillable => ("unkillable", None, None),
        Subject::Queue(queue) => ("queue", Some(*queue), None),
        Subject::StarvingJob(job) => ("starving-job", Some(*job), None),
        Subject::Internal => ("internal", None, None),
    };
    json!({
        "severity": match finding.severity {
            Severity::Error => "error",
            Severity::Warning => "warning",
        },
        "kind": kind,
        "heading": finding.subject.heading(),
        "id": id,
        "host": matches!(kind, "node").then_some(&finding.title),
        "worker": worker,
        "title": finding.title,
        "text": finding.text,
        "part": finding.part,
        "whole": finding.whole,
    })
}
