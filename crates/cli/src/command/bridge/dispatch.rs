//! Reads frames and passes each one to the part that handles it.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::calls::{Batch, Cancel, Release, Work, submit_calls};
use super::frame::{self, Frame, Frames};
use super::questions::{self, Question};
use super::spec::{TemplateSpec, Templates};
use super::talk::{answer, tell};
use super::watch::{Settle, follow_calls};
use super::{Dialer, Shared, values};
use crate::client::ServerInfo;
use crate::command::submit::current_dir;
use crate::error::{CliError, CliResult};
use crate::version::VERSION;

/// How long the program may take to read the frame about an error that ends the bridge.
const FATAL_PATIENCE: Duration = Duration::from_secs(1);

/// The maximum number of batches that wait for the server. Above it, the bridge stops reading, and
/// calls accumulate in the program.
const BATCHES_MAX: usize = 4;
/// How long workers have to receive the releases of values after standard input has ended.
const RELEASE_PATIENCE: Duration = Duration::from_secs(10);

/// A request to submit a call again.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct ResubmitCall {
    id: u64,
    job: u32,
    task: u32,
    t: u64,
    number: u32,
    #[serde(default)]
    swap: HashMap<String, Value>,
}

/// Calls whose results the program has lost, as first ids and counts. An earlier release of the
/// package names a single range as `first` and `count`.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct SettleAgain {
    job: u32,
    #[serde(default)]
    tasks: Vec<(u32, u32)>,
    first: Option<u32>,
    count: Option<u32>,
}

/// Values, and calls of a job that have ended, as first ids and counts. Their arguments are deleted,
/// so that they cannot be submitted again.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
struct Unneeded {
    #[serde(default)]
    id: Option<u64>,
    #[serde(default)]
    refs: Vec<Value>,
    #[serde(default)]
    job: u32,
    #[serde(default)]
    tasks: Vec<(u32, u32)>,
}

/// A request of the program. `id` identifies the answer.
#[derive(Deserialize, Debug)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
enum Op {
    /// Defines a template for calls; the blob contains their standard input.
    Template { id: u64, t: u64, spec: TemplateSpec },
    /// Follows the calls of a job from now on.
    Follow { id: u64, job: u32 },
    /// Submits calls to an open job; their payloads are in the blob.
    Calls(Batch),
    /// Stops reporting about the calls of a job.
    Unfollow { job: u32 },
    /// Cancels calls, given as first ids and counts. With `keep_running`, running calls continue.
    /// The ends of the calls are reported, and `id` is answered when they are canceled.
    Cancel(Cancel),
    /// Reports calls that have already ended once more.
    Settle(SettleAgain),
    /// Submits a call again as `number`, and replaces the references to values that `swap` names.
    /// Answered when the call is in the queue.
    Again(ResubmitCall),
    /// Writes a value that a worker holds to a new file.
    Fetch {
        id: u64,
        r#ref: Value,
        path: PathBuf,
    },
    /// Releases values and arguments that the program no longer needs.
    Release(Unneeded),
    /// A request that is answered once.
    Ask { id: u64, question: Question },
}

/// Serves until standard input ends.
pub(super) async fn serve(frames: Frames, dialer: Dialer) -> CliResult<()> {
    let (mut reader, output) = frames.open()?;
    let (out, queue) = frame::queue();
    let mut writer = tokio::spawn(frame::write(output, queue));
    let shared = Shared {
        dialer,
        out,
        templates: Arc::new(Templates::default()),
    };
    let result = serve_frames(&mut reader, &shared).await;
    if let Err(error) = &result {
        tracing::error!("{}", error.text().unwrap_or_default());
        tell(&shared, &json!({"ev": "fatal", "text": error.text()})).await;
        drop(shared);
        // The writer ends by itself only if no request is unanswered.
        let _ = tokio::time::timeout(FATAL_PATIENCE, &mut writer).await;
    }
    writer.abort();
    result
}

async fn serve_frames(reader: &mut frame::Reader, shared: &Shared) -> CliResult<()> {
    let mut client = match shared.dialer.connect().await {
        Ok(client) => client,
        Err(error) => {
            tell(shared, &json!({"ev": "fatal", "text": error.text()})).await;
            // Wait until the program has read the frame.
            while reader.next().await?.is_some() {}
            return Ok(());
        }
    };
    let info = client.ask(ServerInfo).await?;
    drop(client);
    let ready = json!({
        "ev": "ready", "version": VERSION, "server_uid": info.server_uid, "confirms_calls": true, "settles_ranges": true,
    });
    tell(shared, &ready).await;
    let (work, waiting) = mpsc::channel(BATCHES_MAX);
    tokio::spawn(submit_calls(shared.clone(), waiting));
    let mut dispatcher = Dispatcher {
        shared: shared.clone(),
        work,
        settles: HashMap::new(),
        releases: JoinSet::new(),
    };
    while let Some(Frame { json, blob }) = reader.next().await? {
        while dispatcher.releases.try_join_next().is_some() {}
        let id = json.get("id").and_then(Value::as_u64);
        let calls = calls_in(&json);
        match Op::deserialize(json) {
            Ok(op) => dispatcher.on_op(op, blob).await?,
            Err(error) => {
                let error = CliError::caused("Invalid request", &error);
                match calls {
                    // These calls have no id, and the program waits for their ends.
                    Some(mut refused) => {
                        refused["ev"] = "refused".into();
                        refused["text"] = error.text().into();
                        tell(shared, &refused).await;
                    }
                    None => answer(shared, id, Err(error)).await,
                }
            }
        }
    }
    // These values would not be released later by anything else.
    let releases = async { while dispatcher.releases.join_next().await.is_some() {} };
    if tokio::time::timeout(RELEASE_PATIENCE, releases)
        .await
        .is_err()
    {
        tracing::warn!("some workers did not learn which values to delete");
    }
    Ok(())
}

/// Returns the calls that a request submits, as the program sent them.
fn calls_in(request: &Value) -> Option<Value> {
    let count = || request["lens"].as_array().map_or(0, Vec::len);
    (request["op"] == "calls")
        .then(|| json!({"job": request["job"], "first": request["first"], "count": count()}))
}

/// Where requests are sent.
struct Dispatcher {
    shared: Shared,
    work: mpsc::Sender<Work>,
    /// The channels of the followed jobs.
    settles: HashMap<u32, mpsc::Sender<Settle>>,
    /// The releases that are in progress.
    releases: JoinSet<()>,
}

impl Dispatcher {
    async fn on_op(&mut self, op: Op, blob: Bytes) -> CliResult<()> {
        let shared = &self.shared;
        match op {
            Op::Template { id, t, mut spec } => {
                let stdin = (!blob.is_empty()).then_some(&blob[..]);
                let made = spec.take_limits().and_then(|limits| {
                    let template = spec.build(stdin, &current_dir()?)?;
                    shared.templates.add(t, template, limits);
                    Ok(Value::Null)
                });
                answer(shared, Some(id), made).await;
            }
            Op::Follow { id, job } => {
                let (settle, settled) = mpsc::channel(BATCHES_MAX);
                self.settles.insert(job, settle);
                tokio::spawn(follow_calls(shared.clone(), id, job, settled));
            }
            Op::Calls(batch) => {
                let data = blob.into();
                self.hand_on(Work::Calls(Batch { data, ..batch })).await?;
            }
            Op::Unfollow { job } => {
                // The task that follows the job ends when its queue is closed.
                self.settles.remove(&job);
            }
            Op::Cancel(cancel) => self.hand_on(Work::Cancel(cancel)).await?,
            Op::Settle(again) => self.settle(again).await,
            Op::Again(again) => {
                tokio::spawn(submit_again(shared.clone(), self.work.clone(), again));
            }
            Op::Fetch { id, r#ref, path } => {
                tokio::spawn(values::fetch(shared.clone(), id, r#ref, path));
            }
            Op::Release(unneeded) => self.release(unneeded).await?,
            Op::Ask { id, question } => {
                tokio::spawn(ask(shared.clone(), id, question, blob));
            }
        }
        Ok(())
    }

    async fn settle(&self, again: SettleAgain) {
        let mut tasks = again.tasks;
        tasks.extend(again.first.zip(again.count));
        if let Some(settle) = self.settles.get(&again.job) {
            // The receiver has ended only if the server has ended, which has been reported.
            let _ = settle.send(Settle { tasks }).await;
        }
    }

    async fn release(&mut self, unneeded: Unneeded) -> CliResult<()> {
        let Unneeded {
            id,
            refs,
            job,
            tasks,
        } = unneeded;
        let release = values::release(self.shared.clone(), id, refs);
        self.releases.spawn(release);
        if !tasks.is_empty() {
            self.hand_on(Work::Release(Release { job, tasks })).await?;
        }
        Ok(())
    }

    async fn hand_on(&self, work: Work) -> CliResult<()> {
        let gone = |_| CliError::new("The calls can no longer be submitted");
        self.work.send(work).await.map_err(gone)
    }
}

async fn ask(shared: Shared, id: u64, question: Question, blob: Bytes) {
    let result = questions::ask(&shared, id, question, blob).await;
    answer(&shared, Some(id), result).await;
}

/// Submits a call again, after the work that is already queued.
async fn submit_again(shared: Shared, work: mpsc::Sender<Work>, again: ResubmitCall) {
    let call = (again.job, again.task);
    let result = match values::again(&shared, call, &again.swap).await {
        Ok(payload) => {
            let batch = Batch {
                job: again.job,
                template: again.t,
                first: again.number,
                lens: vec![payload.len() as u64],
                data: payload.into(),
            };
            // If the receiver has ended, the bridge is ending.
            let _ = work.send(Work::Calls(batch)).await;
            Ok(Value::Null)
        }
        Err(error) => Err(error),
    };
    answer(&shared, Some(again.id), result).await;
}
