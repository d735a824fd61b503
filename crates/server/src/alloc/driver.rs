//! Runs the commands of batch systems that the core requests, each in its own tokio task, and sends
//! the answers to the core.

use std::sync::Arc;

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

/// A command, with all data that it needs.
enum Request {
    Submit {
        params: Arc<QueueParams>,
        asked: QueriedAllocation,
        workers: u32,
        /// The nodes to avoid, separated by commas.
        excluded: String,
    },
    Look(Arc<QueueParams>, QueriedAllocation),
    Poll(Arc<QueueParams>, Vec<QueriedAllocation>),
    Cancel(Arc<QueueParams>, QueriedAllocation),
    /// The allocation of this directory has ended or was refused.
    Retire(Box<[u8]>),
}

/// Sends requests from the core's thread to the task that runs the commands. Sending never blocks.
pub(crate) struct BatchSender(UnboundedSender<Request>);

/// The receiving end of [`BatchSender`].
pub(crate) struct BatchRequests(UnboundedReceiver<Request>);

/// Creates both ends.
pub(crate) fn requests() -> (BatchSender, BatchRequests) {
    // The channel is unbounded, but an allocation has few requests in progress: the core repeats
    // an unanswered cancel after ten seconds or more.
    let (tx, rx) = unbounded_channel();
    (BatchSender(tx), BatchRequests(rx))
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
    pub(crate) fn send(&self, state: &ServerState, effect: Effect) {
        if let Some(request) = request(state, effect) {
            // This fails only while the server shuts down.
            let _ = self.0.send(request);
        }
    }
}

/// Returns `None` for an allocation that no queue knows, and for effects of the core itself.
fn request(state: &ServerState, effect: Effect) -> Option<Request> {
    let queues = state.queues();
    Some(match effect {
        Effect::Submit { key, workers } => {
            let (params, asked) = asked(queues, key, "")?;
            let excluded = state.nodes_to_avoid(Clock::new().now().wall).join(",");
            Request::Submit {
                params,
                asked,
                workers,
                excluded,
            }
        }
        Effect::Look(key) => {
            let (params, asked) = asked(queues, key, "")?;
            Request::Look(params, asked)
        }
        Effect::Poll { jobs, .. } => {
            let all = jobs
                .iter()
                .filter_map(|(key, job)| asked(queues, *key, job));
            let (mut params, all): (Vec<_>, Vec<_>) = all.unzip();
            Request::Poll(params.pop()?, all)
        }
        Effect::Cancel { key, job } => {
            let (params, asked) = asked(queues, key, &job)?;
            Request::Cancel(params, asked)
        }
        Effect::Retire(dir) => Request::Retire(dir),
        Effect::AskDemand(_) | Effect::Event(_) | Effect::Changed(_) => return None,
    })
}

/// Runs commands until the future is dropped. `ended` contains the directories of the allocations
/// that have ended before.
pub(crate) async fn run(
    core: CoreHandle,
    commands: Arc<BatchCommands>,
    mut requests: BatchRequests,
    ended: Vec<Box<[u8]>>,
) {
    let (mut running, mut dirs) = (JoinSet::new(), Dirs::default());
    for dir in ended {
        running.spawn(dirs::remove(dirs.retire(dir)));
    }
    loop {
        tokio::select! {
            request = requests.0.recv() => match request {
                None => return,
                Some(Request::Retire(dir)) => drop(running.spawn(dirs::remove(dirs.retire(dir)))),
                Some(request) => {
                    let (core, commands) = (core.clone(), Arc::clone(&commands));
                    running.spawn(async move {
                        let answers = answer(&commands, request).await;
                        // Fails only if the core has ended.
                        let _ = core.send(Event::Allocation(answers)).await;
                    });
                }
            },
            Some(_) = running.join_next() => {}
        }
    }
}

async fn answer(commands: &BatchCommands, request: Request) -> Vec<Input> {
    match request {
        Request::Submit {
            params,
            asked,
            workers,
            excluded,
        } => {
            let place = (&*asked.dir, &*excluded);
            let outcome = commands.submit(&params, asked.key, workers, place).await;
            vec![Input::Submitted(asked.key, outcome)]
        }
        Request::Look(params, asked) => {
            vec![Input::Looked(asked.key, work::look(&params, &asked).await)]
        }
        Request::Poll(params, all) => work::poll(&params, all).await,
        Request::Cancel(params, asked) => {
            vec![Input::Canceled(
                asked.key,
                work::cancel(&params, &asked).await,
            )]
        }
        Request::Retire(_) => Vec::new(),
    }
}
