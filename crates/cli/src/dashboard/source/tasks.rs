//! Lists of tasks: a job's tasks from the server, which includes waiting tasks; others from the
//! store.

use hq_core::range::IdArray;
use hq_core::task::TaskState;
use hq_protocol::client::{self, task_page};
use hq_store::reader::run;

use super::Ask;
use crate::client::Client;
use crate::dashboard::filter::TaskFilter;
use crate::dashboard::model::{TaskPage, TaskRow, TasksOf, TasksWanted, clean};
use crate::error::CliResult;
use crate::failures::error_words;
use crate::output::view::params_text;
use crate::parse::selector::array_to_message;

/// Maximum number of tasks in a text search: some seconds of the server's time.
const SEARCHED_MAX: usize = 100_000;
/// Maximum number of rows to read from the store for one list.
const STORED_MAX: u32 = 20_000;

/// Reads tasks of a running server.
pub(crate) async fn of_server(
    client: &mut Client,
    wanted: TasksWanted,
    now_ns: i64,
) -> CliResult<TaskPage> {
    match wanted.of {
        TasksOf::Job(job) => of_job(client, job, wanted).await,
        TasksOf::Worker(_) => of_store(client, wanted, now_ns).await,
    }
}

async fn of_job(client: &mut Client, job: u32, wanted: TasksWanted) -> CliResult<TaskPage> {
    let filter = TaskFilter::parse(&wanted.filter);
    let mut request = client::TaskPage {
        job: Some(task_page::Job::Id(job)),
        tasks: filter.ids.and_then(id_array),
        states: filter
            .states
            .iter()
            .map(|state| client::TaskState::from(*state).into())
            .collect(),
        limit: u32::try_from(wanted.count).unwrap_or(u32::MAX),
        ..client::TaskPage::default()
    };
    if filter.has_texts() {
        request.limit = 0;
    }
    let (mut rows, mut searched) = (Vec::new(), 0);
    let is_cut = loop {
        let page = client.task_page(request.clone()).await?;
        searched += page.tasks.len();
        let found = page.tasks.into_iter().map(|task| row(job, task));
        rows.extend(found.filter(|row| filter.matches(row)));
        match page.next_cursor {
            None => break None,
            Some(_) if rows.len() >= wanted.count => break Some("there are more"),
            Some(_) if searched >= SEARCHED_MAX => break Some("not all were searched"),
            Some(cursor) => request.cursor = cursor,
        }
    };
    Ok(TaskPage {
        wanted,
        rows,
        is_cut,
    })
}

/// Tasks that were started.
pub(crate) async fn of_store<A: Ask>(
    asked: &mut A,
    wanted: TasksWanted,
    at_ns: i64,
) -> Result<TaskPage, A::Error> {
    let filter = TaskFilter::parse(&wanted.filter);
    let query = match wanted.of {
        TasksOf::Job(job) => run::tasks_of_job(job, at_ns, STORED_MAX),
        TasksOf::Worker(worker) => run::tasks_of_worker(worker, at_ns, STORED_MAX),
    };
    let found = asked.ask(query).await?;
    let is_cut = found.len() >= STORED_MAX as usize;
    let rows = found.into_iter().map(|row| TaskRow {
        job: row.job,
        task: row.task,
        state: row.state,
        host: clean(row.host.as_deref().unwrap_or("?")),
        started_ns: Some(row.started_ns),
        ended_ns: row
            .run_us
            .filter(|_| row.state != TaskState::Running)
            .and_then(|us| i64::try_from(us).ok())
            .map(|us| row.started_ns.saturating_add(us.saturating_mul(1_000))),
        error: clean(&row.error.unwrap_or_default()),
        params: String::new(),
    });
    let rows = rows.filter(|row| filter.matches(row)).collect();
    Ok(TaskPage {
        wanted,
        rows,
        is_cut: is_cut.then_some("not all were searched"),
    })
}

pub(super) fn id_array((first, last): (u32, u32)) -> Option<hq_protocol::common::IdArray> {
    let count = (last - first).saturating_add(1);
    let ids = IdArray::consecutive(first, count).ok()?;
    Some(array_to_message(&ids))
}

fn row(job: u32, task: client::TaskInfo) -> TaskRow {
    let state = TaskState::from(task.state());
    let host = task.workers.first().map(|worker| clean(&worker.hostname));
    // A task of a job file has a name; a task of an array has parameters.
    let params = task
        .name
        .clone()
        .unwrap_or_else(|| params_text(&task.params));
    let params = clean(&params);
    TaskRow {
        job,
        task: task.id,
        state,
        host: host.unwrap_or_default(),
        started_ns: task.started_unix_ns,
        ended_ns: task.finished_unix_ns,
        error: clean(&error_words(task.error.as_deref().unwrap_or_default())),
        params,
    }
}
