//! Automatic allocation: carries out the decisions of [`hq_core::autoalloc`], a part of the core's
//! state.
//!
//! The core requests commands of batch systems. Each runs in a tokio task with a time limit, and
//! its parsed answer is an input of the core. Nothing here decides how many allocations to request.

mod answer;
mod command;
mod dirs;
mod driver;
mod parse;
mod script;
mod work;

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hq_core::autoalloc::{AutoallocState, Input, Limits, QueueRecord};
use hq_core::batch::{QueueParams, job_parts};
use hq_core::id::{AllocationKey, QueueId};
use hq_core::refusal::Refusal;
use hq_core::server_state::{Command, ServerState};
use hq_core::worker_config::WorkerConfig;
use hq_protocol::client::{self, alloc_reply, reply::Reply};
use hq_protocol::convert::AllocRequest;
use hq_protocol::{ConvertError, Message as _};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::clock::Clock;
use crate::core_handle::{CoreGone, CoreHandle, Event};
pub(crate) use driver::{BatchRequests, BatchSender, requests, run};
pub(crate) use work::BatchCommands;
use work::QueriedAllocation;

/// How long a worker in one of our allocations waits for a lost server when it has no tasks left.
const SERVER_WAIT: Duration = Duration::from_secs(120);
/// How long a server that is shutting down may spend canceling its allocations.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a shutdown waits for submissions in progress, and how often it checks them.
const LAST_SUBMIT_TIMEOUT: Duration = Duration::from_secs(10);
const LAST_SUBMIT_CHECK: Duration = Duration::from_millis(20);

/// Returns how long this worker waits for a lost server after its tasks have ended. The wait is
/// zero in a batch job that this server did not submit, because only the user may end that job.
pub(crate) fn server_wait(queues: &AutoallocState, config: &WorkerConfig) -> Duration {
    let allocation = config.allocation.as_ref();
    match allocation.is_some_and(|allocation| queues.may_own(&allocation.id)) {
        true => SERVER_WAIT,
        false => Duration::ZERO,
    }
}

/// A handle to automatic allocation.
#[derive(Clone)]
pub(crate) struct AllocHandle {
    core: CoreHandle,
    commands: Arc<BatchCommands>,
}

impl AllocHandle {
    pub(crate) const fn new(core: CoreHandle, commands: Arc<BatchCommands>) -> Self {
        Self { core, commands }
    }

    /// Returns all queues with their allocations.
    pub(crate) async fn list(
        &self,
    ) -> Result<Vec<(client::AllocQueue, Vec<client::AllocAllocation>)>, CoreGone> {
        self.core.query(|view| view.queues_and_allocations()).await
    }

    /// Sends a request and returns the reply.
    pub(crate) async fn ask(&self, request: Box<AllocRequest>) -> Reply {
        let answer = match *request {
            AllocRequest::Change(change) => {
                let changed = self.core.command(Command::Queue(change)).await;
                changed.map(|changed| match changed {
                    Ok(changed) => client::Reply::from(&changed).reply,
                    Err(refusal) => Some(refusal.into()),
                })
            }
            AllocRequest::DryRun(params) => {
                match self
                    .core
                    .look(|view| view.state.is_ending(), |_| true)
                    .await
                {
                    Ok(false) => self.try_out(params).await.map(Some),
                    Ok(true) | Err(CoreGone) => Ok(None),
                }
            }
            AllocRequest::List => self.core.query(|view| view.alloc_queues()).await.map(Some),
            AllocRequest::Info(queue) => {
                let found = self.core.query(move |view| view.allocations(queue));
                found.await.map(Some)
            }
            AllocRequest::Log(job) => {
                let found = self.core.query(move |view| view.log_dir(&job));
                found.await.map(Some)
            }
        };
        let answer = answer.ok().flatten();
        answer.unwrap_or_else(|| Refusal::shutting_down().into())
    }

    /// Submits an allocation as a test, even if the client disconnects.
    async fn try_out(&self, params: Arc<QueueParams>) -> Result<Reply, CoreGone> {
        let (tx, rx) = oneshot::channel();
        let commands = self.commands.clone();
        tokio::spawn(async move {
            let outcome = commands.try_out(&params).await;
            let (answer, left) = match outcome {
                Ok(()) => (reply(alloc_reply::Reply::Done(client::AllocDone {})), None),
                // The client adds the prefix.
                Err(failed) => (Refusal::failed(failed.text).bare().into(), failed.left),
            };
            // The client may have disconnected.
            let _ = tx.send(answer);
            if let Some(left) = left {
                work::cancel_in_time(&params, &left).await;
            }
        });
        rx.await.map_err(|_| CoreGone)
    }

    /// Reads the queues, even if their last changes are not on disk yet.
    async fn find<T: Send + 'static>(
        &self,
        find: impl FnOnce(&AutoallocState) -> T + Send + 'static,
    ) -> Result<T, CoreGone> {
        let found = self.core.look(|view| find(view.state.queues()), |_| false);
        found.await
    }

    /// Cancels all allocations unless `keep` is set. Must run at the same time as
    /// [`CoreHandle::end`], which stops new submissions. Returns when that is done or has timed
    /// out.
    pub(crate) async fn shutdown(&self, keep: bool) {
        let ended = tokio::time::timeout(SHUTDOWN_TIMEOUT, self.end(keep));
        if ended.await.is_err() {
            tracing::warn!("not all allocations could be canceled in time");
        }
    }

    /// Waits for submissions in progress, and cancels all allocations that may be alive unless they
    /// are kept.
    async fn end(&self, keep: bool) -> Result<(), CoreGone> {
        let submitted = async {
            let may_submit = || {
                let state =
                    |state: &ServerState| !state.is_ending() || state.queues().is_submitting();
                self.core.look(move |view| state(view.state), |_| false)
            };
            while may_submit().await? {
                tokio::time::sleep(LAST_SUBMIT_CHECK).await;
            }
            Ok(())
        };
        match tokio::time::timeout(LAST_SUBMIT_TIMEOUT, submitted).await {
            Ok(submitted) => submitted?,
            Err(_) if self.find(AutoallocState::is_submitting).await? => {
                tracing::warn!("a submission did not end; its allocation may be left behind");
            }
            Err(_) => {}
        }
        let unsure = |queues: &AutoallocState| {
            let unsure = queues
                .unsure()
                .filter_map(|key| driver::asked(queues, key, ""));
            unsure.collect::<Vec<_>>()
        };
        for (params, asked) in self.find(unsure).await? {
            let found = work::look(&params, &asked).await;
            let found = Event::Allocation(vec![Input::Looked(asked.key, found)]);
            self.core.send(found).await?;
        }
        if keep {
            Ok(())
        } else {
            self.cancel_all().await
        }
    }

    /// Cancels all allocations, including any whose submission is answered meanwhile.
    async fn cancel_all(&self) -> Result<(), CoreGone> {
        let alive = |queues: &AutoallocState| {
            let alive = queues.alive();
            let alive = alive.filter_map(|(key, job)| driver::asked(queues, key, job));
            alive.collect::<Vec<_>>()
        };
        let mut tried = BTreeSet::new();
        loop {
            let mut found = self.find(alive).await?;
            found.retain(|(_, asked)| tried.insert(asked.key));
            if found.is_empty() {
                return Ok(());
            }
            let mut cancels = JoinSet::new();
            for (params, asked) in found {
                cancels.spawn(cancel(params, asked));
            }
            while let Some(canceled) = cancels.join_next().await {
                if let Ok(Some(key)) = canceled {
                    let closed = Event::Allocation(vec![Input::Closed(key)]);
                    self.core.send(closed).await?;
                }
            }
        }
    }
}

/// Cancels an allocation. Returns `None` if that fails.
async fn cancel(params: Arc<QueueParams>, asked: QueriedAllocation) -> Option<AllocationKey> {
    let job = job_parts(&asked.job).0;
    match work::cancel(&params, &asked).await {
        Ok(()) => {
            tracing::info!("Allocation {job} was removed");
            Some(asked.key)
        }
        Err(text) => {
            tracing::error!("Could not cancel allocation {job}: {text}");
            None
        }
    }
}

/// Restores the queues that an earlier run stored, for the server of this instance directory. The
/// states of their allocations are requested immediately.
pub(crate) fn restore(
    state: &mut ServerState,
    instance: &Path,
    stored: Vec<(QueueId, Option<Vec<u8>>)>,
) {
    let now = Clock::new().now();
    state.set_allocation(limits(), instance.join("autoalloc").as_os_str().as_bytes());
    for (id, record) in stored {
        let record = record.and_then(|bytes| {
            let failed =
                |error| tracing::error!("Allocation queue {id} cannot be restored: {error}");
            decode(&bytes).map_err(failed).ok()
        });
        state.restore_queue(now, id, record);
    }
}

fn decode(bytes: &[u8]) -> Result<QueueRecord, String> {
    let message = client::AllocQueueRecord::decode(bytes).map_err(|_| "it is damaged")?;
    message
        .try_into()
        .map_err(|error: ConvertError| error.to_string())
}

/// Returns the limits that the environment sets.
fn limits() -> Limits {
    let default = Limits::default();
    let millis = |name, default| variable(name).map_or(default, Duration::from_millis);
    Limits {
        refresh: millis("HQ_AUTOALLOC_REFRESH_INTERVAL_MS", default.refresh),
        tick: millis("HQ_AUTOALLOC_SCHEDULE_TICK_INTERVAL_MS", default.tick),
        schedule_delay: millis("HQ_AUTOALLOC_MAX_SCHEDULE_DELAY_MS", default.schedule_delay),
        allocation_fails_max: variable("HQ_AUTOALLOC_MAX_ALLOCATION_FAILS")
            .and_then(|fails| u32::try_from(fails).ok())
            .unwrap_or(default.allocation_fails_max),
    }
}

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    let value = text.trim().parse().ok();
    if value.is_none() {
        tracing::warn!("{name} is ignored: expected a number, found `{text}`");
    }
    value
}

fn reply(reply: alloc_reply::Reply) -> Reply {
    Reply::Alloc(client::AllocReply { reply: Some(reply) })
}

#[cfg(test)]
mod tests {
    use hq_core::autoalloc::{AllocationRecord, AllocationState, QueueFailure};
    use hq_core::resource::descriptor::ResourceDescriptor;
    use hq_core::testing::queue_params;
    use hq_core::time::Timestamp;

    use super::*;

    #[test]
    fn a_stored_queue_is_restored_as_it_was() {
        let mut params = queue_params();
        for command in [
            &mut params.system.submit,
            &mut params.system.status,
            &mut params.system.cancel,
            &mut params.system.find,
        ] {
            command.0.push(hq_core::batch::Words {
                words: vec!["true".into()],
                each_job: false,
            });
        }
        let queue = QueueId(3);
        let allocation = |number, state, job: Option<&str>| AllocationRecord {
            key: AllocationKey { queue, number },
            dir: [b"/s/\xff/", number.to_string().as_bytes()].concat().into(),
            workers: 2,
            job: job.map(Into::into),
            state,
            // Longer than what a client may send.
            reason: "x".repeat(100_000).into(),
            queued_at: Timestamp(1),
            started_at: Some(Timestamp(2)),
            ended_at: None,
            is_leaving: number == 2,
        };
        let record = QueueRecord {
            id: queue,
            params: Arc::new(params),
            paused: Some("y".repeat(100_000).into()),
            known_resources: Some(Arc::new(ResourceDescriptor::cpus(4))),
            last_number: 7,
            allocations: vec![
                allocation(1, AllocationState::Queued, None),
                allocation(2, AllocationState::Failed, Some("71;a")),
            ],
            failure: Some(QueueFailure {
                since: Timestamp(5),
                last: "z".repeat(100_000).into(),
            }),
            is_removed: true,
        };
        let bytes = client::AllocQueueRecord::from(&record).encode_to_vec();
        assert_eq!(decode(&bytes), Ok(record));
        assert_eq!(decode(&bytes[..9]), Err("it is damaged".to_owned()));
        assert!(decode(&[]).is_err(), "there are no parameters");
    }
}
