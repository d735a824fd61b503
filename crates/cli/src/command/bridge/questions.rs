//! Requests that are answered once.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use hq_core::id::TaskId;
use hq_core::range::IdArray;
use hq_core::resource::amount::UNITS_PER_WHOLE;
use hq_core::template::{GraphSpec, GraphTask, SubmitBody, SubmitSpec, SubmitTarget};
use hq_core::time::nanos;
use hq_protocol::client::{self, TaskState};
use serde::Deserialize;
use serde_json::{Value, json};

use super::Shared;
use super::spec::TemplateSpec;
use super::talk::{come_back, ids_of, tell};
use crate::client::{Client, JobClose};
use crate::command::all_tasks;
use crate::command::submit::current_dir;
use crate::error::{Caused as _, CliError, CliResult};
use crate::parse::selector::Selector;
use crate::source::{is_connected, resources};
use crate::submit::bare_submit;
use crate::text::lossy;

/// The interval of progress reports while the counts of jobs change.
const PROGRESS_INTERVAL: std::time::Duration = std::time::Duration::from_millis(200);
/// The maximum number of rows of a query, and its time limit.
const ROWS_MAX: u64 = 1_000_000;
const QUERY_TIME_NS: u64 = 60_000_000_000;

/// Requests of the program that have one answer.
#[derive(Deserialize, Debug)]
#[serde(tag = "what", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Question {
    /// Creates an open job.
    Open {
        name: String,
        #[serde(default)]
        max_fails: Option<u32>,
    },
    /// Closes an open job, so that it ends when its tasks have ended.
    Close {
        job: u32,
    },
    /// Submits a job with dependencies between its tasks.
    Graph(GraphText),
    /// Waits for jobs and reports their counts meanwhile.
    Wait {
        jobs: Vec<u32>,
    },
    /// Returns failed tasks with their errors and output.
    Failed {
        job: u32,
    },
    Cancel {
        job: u32,
        reason: String,
    },
    Forget {
        job: u32,
    },
    Info {
        job: u32,
    },
    Sql {
        sql: String,
    },
    StopServer,
    Workers,
    /// Returns the number of allocation queues.
    Queues,
}

/// A job with dependencies between its tasks.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(super) struct GraphText {
    name: String,
    max_fails: Option<u32>,
    templates: Vec<TemplateSpec>,
    /// The length of the standard input of each template's tasks, or -1 if there is none. The bytes
    /// are in the blob.
    stdin: Vec<i64>,
    tasks: Vec<GraphTaskText>,
    /// The directory of the submit.
    dir: String,
}

#[derive(Deserialize, Debug)]
struct GraphTaskText {
    id: u32,
    template: u32,
    deps: Vec<u32>,
}

fn selector(jobs: Vec<u32>) -> CliResult<client::Selector> {
    let mut jobs = jobs;
    jobs.sort_unstable();
    jobs.dedup();
    let ids = IdArray::from_sorted(jobs).caused("Invalid job ids")?;
    Ok(Selector::Ids(ids).to_message())
}

/// Sends a request to the server.
pub(super) async fn ask(
    shared: &Shared,
    id: u64,
    question: Question,
    blob: Bytes,
) -> CliResult<Value> {
    let mut client = come_back(shared, None).await?;
    match question {
        Question::Open { name, max_fails } => {
            let open = client::OpenJob { name, max_fails };
            Ok(client.ask(open).await?.id.into())
        }
        Question::Close { job } => {
            client.ask(JobClose(&Selector::one(job))).await?;
            Ok(Value::Null)
        }
        Question::Graph(graph) => {
            let spec = graph.build(&blob)?;
            Ok(client.submit((&spec).into()).await?.into())
        }
        Question::Wait { jobs } => wait(shared, &mut client, id, jobs).await,
        Question::Failed { job } => failed(&mut client, job).await,
        Question::Cancel { job, reason } => {
            let jobs = Some(Selector::one(job).to_message());
            let results = client.ask(client::Cancel { jobs, reason }).await?;
            Ok(json!(
                results.not_found.is_none_or(|ids| ids.ranges.is_empty())
            ))
        }
        Question::Forget { job } => {
            let forget = client::Forget {
                jobs: Some(Selector::one(job).to_message()),
                states: Vec::new(),
            };
            Ok(client.ask(forget).await?.forgotten.into())
        }
        Question::Info { job } => info(&mut client, job).await,
        Question::Sql { sql } => query(&mut client, sql).await,
        Question::StopServer => {
            client.server_stop(false).await?;
            Ok(Value::Null)
        }
        Question::Workers => workers(&mut client).await,
        Question::Queues => queues(&mut client).await,
    }
}

async fn query(client: &mut Client, sql: String) -> CliResult<Value> {
    let query = client::SqlQuery {
        sql,
        time_limit_ns: QUERY_TIME_NS,
        row_limit: ROWS_MAX,
    };
    let table = client.ask(query).await?;
    let rows: Value =
        serde_json::from_str(&table.rows_json).caused("The server sent rows that are not JSON")?;
    Ok(json!({"columns": table.columns, "rows": rows, "is_cut": table.is_cut}))
}

async fn workers(client: &mut Client) -> CliResult<Value> {
    let found = client.workers(&Selector::All, false).await?;
    let rows = found.workers.iter().map(|worker| {
        let cpus = resources(worker).find(|one| one.name == "cpus");
        let cpus = cpus.map(|cpus| cpus.total / UNITS_PER_WHOLE);
        json!({"id": worker.id, "is_running": is_connected(worker), "cpus": cpus})
    });
    Ok(rows.collect())
}

async fn queues(client: &mut Client) -> CliResult<Value> {
    let found = client.ask(client::AllocListQuery {}).await?;
    Ok(found.queues.len().into())
}

impl GraphText {
    /// Returns the submit. `blob` contains the standard input of its tasks.
    fn build(self, blob: &Bytes) -> CliResult<SubmitSpec> {
        let uneven = || CliError::new("The lengths of what tasks read do not add up");
        if self.stdin.len() != self.templates.len() {
            return Err(uneven());
        }
        let dir = match &*self.dir {
            "" => current_dir()?,
            dir => dir.into(),
        };
        let mut rest = &blob[..];
        let mut templates = Vec::with_capacity(self.templates.len());
        for (template, len) in self.templates.into_iter().zip(self.stdin) {
            let content = match usize::try_from(len) {
                Ok(len) => {
                    let (content, after) = rest.split_at_checked(len).ok_or_else(uneven)?;
                    rest = after;
                    Some(content)
                }
                Err(_) => None,
            };
            templates.push(Arc::new(template.build(content, &dir)?));
        }
        let tasks = self.tasks.into_iter().map(|task| GraphTask {
            id: TaskId(task.id),
            template: task.template,
            deps: task.deps.into_iter().map(TaskId).collect(),
        });
        let tasks = tasks.collect();
        let target = SubmitTarget::NewJob {
            name: self.name.into(),
            max_fails: self.max_fails,
        };
        let body = SubmitBody::Graph(GraphSpec { templates, tasks });
        Ok(bare_submit(target, Path::new(&self.dir), body))
    }
}

/// Follows jobs until they end, even across a restart of the server.
async fn wait(shared: &Shared, client: &mut Client, id: u64, jobs: Vec<u32>) -> CliResult<Value> {
    let watch = client::Watch {
        jobs: Some(selector(jobs)?),
        with_progress: true,
        interval_ns: nanos(PROGRESS_INTERVAL),
        ..client::Watch::default()
    };
    let mut counts = serde_json::Map::new();
    let (progress, mut told) = tokio::sync::mpsc::unbounded_channel();
    let out = shared.clone();
    let telling = tokio::spawn(async move {
        while let Some(jobs) = told.recv().await {
            tell(&out, &json!({"ev": "progress", "id": id, "jobs": jobs})).await;
        }
    });
    let followed = client
        .follow(watch, |update| {
            for job in &update.jobs {
                let Some(summary) = &job.summary else {
                    continue;
                };
                let stats = summary.stats.unwrap_or_default();
                let row = json!({
                    "finished": stats.finished, "failed": stats.failed, "canceled": stats.canceled,
                    "aborted": stats.aborted, "total": summary.task_count, "completed": job.ended,
                });
                counts.insert(summary.id.to_string(), row);
            }
            // The receiver ends after this sender.
            let _ = progress.send(Value::Object(counts.clone()));
            Ok(())
        })
        .await;
    drop(progress);
    // The task cannot panic, and it ends when its queue is closed.
    let _ = telling.await;
    followed?;
    Ok(Value::Object(counts))
}

async fn failed(client: &mut Client, job: u32) -> CliResult<Value> {
    let mut rows = Vec::new();
    let mut next = Some(client::TaskPage {
        states: vec![TaskState::Failed.into()],
        ..all_tasks(job)
    });
    while let Some(page) = client.next_page(&mut next).await? {
        rows.extend(page.tasks.iter().map(failed_row));
    }
    Ok(rows.into())
}

fn failed_row(task: &client::TaskInfo) -> Value {
    let paths = task.paths.as_ref();
    let file = |stdio: Option<&hq_protocol::common::Stdio>| {
        let stdio = stdio.filter(|stdio| !stdio.path.is_empty());
        stdio.map(|stdio| lossy(&stdio.path))
    };
    json!({
        "id": task.id,
        "error": task.error,
        "cwd": paths.map(|paths| lossy(&paths.cwd)),
        "stdout": file(paths.and_then(|paths| paths.stdout.as_ref())),
        "stderr": file(paths.and_then(|paths| paths.stderr.as_ref())),
    })
}

async fn info(client: &mut Client, job: u32) -> CliResult<Value> {
    let Some(summary) = client.job(&Selector::one(job)).await? else {
        return Ok(Value::Null);
    };
    let stats = summary.stats.unwrap_or_default();
    let ids = ids_of(client, job).await?;
    let ranges = ids.iter().flat_map(IdArray::ranges);
    let ids: Value = ranges
        .map(|ids| json!([ids.first(), ids.count(), ids.step()]))
        .collect();
    Ok(json!({
        "id": summary.id, "name": summary.name, "is_open": summary.is_open, "total": summary.task_count, "ids": ids,
        "running": stats.running, "finished": stats.finished, "failed": stats.failed,
        "canceled": stats.canceled, "aborted": stats.aborted, "waiting": stats.waiting,
    }))
}
