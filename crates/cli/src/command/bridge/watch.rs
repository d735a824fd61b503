//! Follows the calls of a job and reports their results.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use hq_core::range::IdArray;
use hq_core::time::nanos;
use hq_protocol::client::{self, TaskState};
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::Shared;
use super::calls::each_id;
use super::frame::Frame;
use super::talk::{answer, come_back, tell};
use crate::client::Client;
use crate::command::all_tasks;
use crate::error::{Caused as _, CliError, CliResult};
use crate::parse::selector::Selector;

/// The minimum time between two updates. It is practically zero, because each update is reported
/// immediately.
const INTERVAL: Duration = Duration::from_nanos(1);
/// The number of tasks per request.
const PAGE: u16 = 2_000;
/// How long an update of the watch may take after another request has shown the end of a call.
const UPDATE_DELAY_MAX: Duration = Duration::from_secs(2);

/// Calls whose results the program has lost.
#[derive(Debug)]
pub(super) struct Settle {
    /// The calls, as first ids and counts.
    pub(super) tasks: Vec<(u32, u32)>,
}

/// Follows a job until it ends or the server is gone for good. Answers the request `id` once the
/// job is followed.
pub(super) async fn follow_calls(
    shared: Shared,
    id: u64,
    job: u32,
    mut settles: mpsc::Receiver<Settle>,
) {
    let mut first = Some(id);
    let mut lost = None;
    loop {
        let result = match come_back(&shared, lost.take()).await {
            Ok(client) => follow(&shared, client, (job, &mut first), &mut settles).await,
            Err(error) => Err((error, false)),
        };
        match result {
            Ok(()) => return,
            Err((error, true)) if shared.dialer.may_return() => lost = Some(error),
            Err((error, _)) => {
                if let Some(id) = first {
                    answer(&shared, Some(id), Err(error)).await;
                } else {
                    tell(
                        &shared,
                        &json!({"ev": "gone", "job": job, "text": error.text()}),
                    )
                    .await;
                }
                return;
            }
        }
    }
}

/// Follows a job over one connection. An error says whether the connection broke.
async fn follow(
    shared: &Shared,
    mut client: Client,
    (job, first): (u32, &mut Option<u64>),
    settles: &mut mpsc::Receiver<Settle>,
) -> Result<(), (CliError, bool)> {
    let fatal = |error| (error, false);
    let watch = client::Watch {
        jobs: Some(Selector::one(job).to_message()),
        with_outcomes: true,
        with_values: true,
        interval_ns: nanos(INTERVAL),
        ..client::Watch::default()
    };
    if let Err(error) = client.watch(watch).await {
        return Err((error, client.is_lost()));
    }
    let mut is_first = true;
    loop {
        tokio::select! {
            update = client.next_update() => {
                let update = match update {
                    Ok(update) => update,
                    Err(error) => return Err((error, client.is_lost())),
                };
                let is_unknown = update.not_found.as_ref().is_some_and(|ids| !ids.ranges.is_empty());
                if is_unknown {
                    return Err(fatal(CliError::new(format!("Job {job} does not exist"))));
                }
                if std::mem::replace(&mut is_first, false) {
                    match first.take() {
                        Some(id) => answer(shared, Some(id), Ok(Value::Null)).await,
                        // Updates do not report tasks that ended meanwhile.
                        None => tell(shared, &json!({"ev": "again", "job": job})).await,
                    }
                }
                let done = update.done;
                for watched in update.jobs {
                    pass_on(shared, job, watched.ended_tasks).await;
                }
                if done {
                    tell(shared, &json!({"ev": "closed", "job": job})).await;
                }
                if done {
                    // Requests for the outcomes of calls are still answered.
                    while let Some(settle) = settles.recv().await {
                        settle_calls(shared, job, settle).await.map_err(|error| (error, true))?;
                    }
                    return Ok(());
                }
            }
            settle = settles.recv() => {
                // The program no longer follows the job.
                let Some(settle) = settle else { return Ok(()) };
                settle_calls(shared, job, settle).await.map_err(|error| (error, true))?;
            }
        }
    }
}

/// Reports calls that have ended.
async fn pass_on(shared: &Shared, job: u32, tasks: Vec<client::EndedTask>) {
    if tasks.is_empty() {
        return;
    }
    let mut columns = Columns::default();
    for task in tasks {
        columns.add(task.id, task.state(), task.value, task.error);
    }
    // If the program no longer reads, it is about to close standard input.
    let _ = shared.out.send(columns.frame(job)).await;
}

/// The results of ended calls, as columns.
#[derive(Default)]
struct Columns {
    ids: Vec<u32>,
    states: Vec<i32>,
    /// The lengths of the values, or -1 for calls without a value.
    lens: Vec<i64>,
    errors: Map<String, Value>,
    blob: BytesMut,
}

impl Columns {
    fn add(&mut self, id: u32, state: TaskState, value: Option<Bytes>, error: Option<String>) {
        if let Some(error) = error {
            self.errors.insert(self.ids.len().to_string(), error.into());
        }
        self.ids.push(id);
        self.states.push(state.into());
        match value {
            Some(value) => {
                self.lens
                    .push(i64::try_from(value.len()).unwrap_or(i64::MAX));
                self.blob.extend_from_slice(&value);
            }
            None => self.lens.push(-1),
        }
    }

    fn frame(self, job: u32) -> Frame {
        let json = json!({
            "ev": "ended", "job": job, "ids": self.ids, "states": self.states, "lens": self.lens,
            "errors": self.errors,
        });
        Frame {
            json,
            blob: self.blob.freeze(),
        }
    }
}

/// Requests the state of calls, and reports those that have ended.
async fn settle_calls(shared: &Shared, job: u32, settle: Settle) -> CliResult<()> {
    let mut client = come_back(shared, None).await?;
    let mut without_value = Columns::default();
    // Ids may be far apart, so the ids between them are not requested.
    for ids in each_id(&settle.tasks).chunks(usize::from(PAGE)) {
        settle_page(shared, &mut client, job, ids, &mut without_value).await?;
    }
    let settled = json!({"ev": "settled", "job": job, "tasks": settle.tasks});
    if without_value.ids.is_empty() {
        tell(shared, &settled).await;
        return Ok(());
    }
    // The watch may be about to report these calls with their values. The program uses the first
    // report of a call.
    let shared = shared.clone();
    tokio::spawn(async move {
        tokio::time::sleep(UPDATE_DELAY_MAX).await;
        let _ = shared.out.send(without_value.frame(job)).await;
        tell(&shared, &settled).await;
    });
    Ok(())
}

/// Reports the calls among `ids` that have ended, except for finished calls without a value, which
/// it adds to `without_value`.
async fn settle_page(
    shared: &Shared,
    client: &mut Client,
    job: u32,
    ids: &[u32],
    without_value: &mut Columns,
) -> CliResult<()> {
    let tasks = IdArray::from_sorted(ids.to_vec()).caused("Invalid ids of calls")?;
    let ends = [
        TaskState::Finished,
        TaskState::Failed,
        TaskState::Canceled,
        TaskState::Aborted,
    ];
    let mut next = Some(client::TaskPage {
        tasks: Some((&tasks).into()),
        states: ends.map(Into::into).to_vec(),
        limit: PAGE.into(),
        ..all_tasks(job)
    });
    while let Some(page) = client.next_page(&mut next).await? {
        if !page.job_found {
            return Err(CliError::new(format!("Job {job} no longer exists")));
        }
        let mut ids: Vec<u32> = page.tasks.iter().map(|task| task.id).collect();
        ids.sort_unstable();
        let mut values = read_values(client, job, ids).await?;
        let mut columns = Columns::default();
        for task in page.tasks {
            let value = values.remove(&task.id);
            let is_unclear = value.is_none() && task.state() == TaskState::Finished;
            let columns = if is_unclear {
                &mut *without_value
            } else {
                &mut columns
            };
            columns.add(task.id, task.state(), value, task.error);
        }
        if !columns.ids.is_empty() {
            let _ = shared.out.send(columns.frame(job)).await;
        }
    }
    Ok(())
}

async fn read_values(
    client: &mut Client,
    job: u32,
    mut ids: Vec<u32>,
) -> CliResult<std::collections::HashMap<u32, Bytes>> {
    let mut found = std::collections::HashMap::new();
    while !ids.is_empty() {
        let tasks = IdArray::from_sorted(ids.clone()).caused("Invalid ids of calls")?;
        let read = client::ReadValues {
            job,
            tasks: Some((&tasks).into()),
        };
        let reply = client.ask(read).await?;
        found.extend(reply.tasks.into_iter().zip(reply.values));
        match reply.next {
            Some(next) => ids.retain(|id| *id >= next),
            None => break,
        }
    }
    Ok(found)
}
