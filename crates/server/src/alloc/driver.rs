//! Runs the commands of batch systems that the core requests, each in its own tokio task, and sends
//! the answers to the core.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use hq_core::autoalloc::{AutoallocState, Effect, Input};
use hq_core::batch::QueueParams;
use hq_core::id::AllocationKey;
use hq_core::server_state::ServerState;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use super::answer::path_of;
use super::dirs::{self, Dirs};
use super::work::{self, BatchCommands, QueriedAllocation};
use crate::clock::Clock;
use crate::core_handle::{CoreHandle, Event};

/// Runs a command or removes directories, and returns the answers.
type Work = BoxFuture<'static, Vec<Input>>;

/// Sends work from the core's thread to the task that does it. Sending never blocks.
pub(crate) struct BatchSender {
    commands: Arc<BatchCommands>,
    dirs: Dirs,
    work: UnboundedSender<Work>,
}

/// The receiving end of [`BatchSender`].
pub(crate) struct BatchRequests(UnboundedReceiver<Work>);

/// Creates both ends for a restored state.
pub(crate) fn requests(
    state: &ServerState,
    commands: Arc<BatchCommands>,
) -> (BatchSender, BatchRequests) {
    // The channel is unbounded, but an allocation has few requests in progress: the core repeats
    // an unanswered cancel after ten seconds or more.
    let (work, requests) = unbounded_channel();
    let mut sender = BatchSender {
        commands,
        dirs: Dirs::default(),
        work,
    };
    let all = state
        .queues()
        .queues()
        .flat_map(|queue| queue.allocations());
    for ended in all.filter(|allocation| !allocation.may_be_alive()) {
        sender.send(state, Effect::Retire(ended.record().dir.clone()));
    }
    (sender, BatchRequests(requests))
}

/// Returns the parameters of an allocation's queue, and the allocation in the form that commands of
/// its batch system need.
pub(super) fn asked(
    queues: &AutoallocState,
    key: AllocationKey,
    job: &str,
) -> Option<(Arc<QueueParams>, QueriedAllocation)> {
    let (params, allocation) = queues.allocation(key)?;
    let asked = QueriedAllocation {
        key,
        job: job.into(),
        dir: path_of(allocation),
    };
    Some((params.clone(), asked))
}

impl BatchSender {
    /// Requests the command that an effect describes.
    pub(crate) fn send(&mut self, state: &ServerState, effect: Effect) {
        if let Some(work) = self.work(state, effect) {
            // This fails only while the server shuts down.
            let _ = self.work.send(work);
        }
    }

    /// Returns `None` for an allocation that no queue knows, and for effects of the core itself.
    fn work(&mut self, state: &ServerState, effect: Effect) -> Option<Work> {
        let queues = state.queues();
        Some(match effect {
            Effect::Submit { key, workers } => {
                let (params, asked) = asked(queues, key, "")?;
                let excluded = state.nodes_to_avoid(Clock::new().now().wall).join(",");
                let commands = Arc::clone(&self.commands);
                Box::pin(async move {
                    let place = (&*asked.dir, &*excluded);
                    let outcome = commands.submit(&params, key, workers, place).await;
                    vec![Input::Submitted(key, outcome)]
                })
            }
            Effect::Look(key) => {
                let (params, asked) = asked(queues, key, "")?;
                Box::pin(async move { vec![Input::Looked(key, work::look(&params, &asked).await)] })
            }
            Effect::Poll { jobs, .. } => {
                let all = jobs
                    .iter()
                    .filter_map(|(key, job)| asked(queues, *key, job));
                let (mut params, all): (Vec<_>, Vec<_>) = all.unzip();
                let params = params.pop()?;
                Box::pin(async move { work::poll(&params, all).await })
            }
            Effect::Cancel { key, job } => {
                let (params, asked) = asked(queues, key, &job)?;
                Box::pin(
                    async move { vec![Input::Canceled(key, work::cancel(&params, &asked).await)] },
                )
            }
            Effect::Retire(dir) => {
                let surplus = self.dirs.retire(dir);
                Box::pin(async move {
                    dirs::remove(surplus).await;
                    Vec::new()
                })
            }
            Effect::AskDemand(_) | Effect::Event(_) | Effect::Changed(_) => return None,
        })
    }
}

/// Does the requested work until the future is dropped.
pub(crate) async fn run(core: CoreHandle, mut requests: BatchRequests) {
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            work = requests.0.recv() => {
                let Some(work) = work else { return };
                let core = core.clone();
                running.spawn(async move {
                    let answers = work.await;
                    if !answers.is_empty() {
                        // Fails only if the core has ended.
                        let _ = core.send(Event::Allocation(answers)).await;
                    }
                });
            }
            Some(_) = running.join_next() => {}
        }
    }
}
