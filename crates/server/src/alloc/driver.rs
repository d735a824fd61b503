//! The task that owns the state of automatic allocation: it passes inputs to the state and carries
//! out the effects.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hq_core::autoalloc::{AutoallocState, Effect, Input, Level, Limits, QueueRecord};
use hq_core::batch::{QueueParams, job_parts};
use hq_core::id::{AllocationKey, QueueId};
use hq_core::refusal::Refusal;
use hq_core::scheduler::demand::WorkerKind;
use hq_core::server_state::{AllocationChange, ChangeKind};
use hq_core::worker_config::WorkerConfig;
use hq_protocol::client::{self, alloc_reply, reply::Reply};
use hq_protocol::convert::AllocRequest;
use hq_protocol::{ConvertError, Message as _};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::answer::{AnswerContext, path_of};
use super::dirs::{self, Dirs};
use super::work::{self, BatchCommands, QueriedAllocation};
use super::{AllocMessage, NewsReceiver, OwnJobs, WorkerNews, reply};
use crate::clock::Clock;
use crate::core_handle::{CoreHandle, Event};

/// How long a shutdown waits for submissions in progress.
const LAST_SUBMIT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a shutdown waits for the last changes to be stored.
const LAST_STORE_TIMEOUT: Duration = Duration::from_secs(6);

pub(super) struct Driver {
    state: AutoallocState,
    own: OwnJobs,
    /// The worker kinds that the core knows.
    offered: Vec<WorkerKind>,
    dirs: Dirs,
    clock: Clock,
    core: CoreHandle,
    commands: Arc<BatchCommands>,
    /// The commands in progress.
    jobs: JoinSet<Vec<Input>>,
    /// The test submissions in progress, which send their own replies.
    trials: JoinSet<()>,
    /// The answers that wait for the store.
    answers: JoinSet<()>,
}

impl Driver {
    pub(super) fn new(core: CoreHandle, instance: &Path, limits: Limits, own: OwnJobs) -> Self {
        Self {
            state: AutoallocState::new(limits, dirs::of_server(instance).as_os_str().as_bytes()),
            own,
            offered: Vec::new(),
            dirs: Dirs::default(),
            clock: Clock::new(),
            core,
            commands: Arc::new(BatchCommands::new(instance)),
            jobs: JoinSet::new(),
            trials: JoinSet::new(),
            answers: JoinSet::new(),
        }
    }

    /// Restores the queues of an earlier run. The states of their allocations are requested
    /// immediately.
    pub(super) fn restore(&mut self, stored: Vec<(QueueId, Option<Vec<u8>>)>) {
        for (id, record) in stored {
            self.state.restore_last_queue(id.0);
            let Some(bytes) = record else { continue };
            match decode(&bytes) {
                Ok(record) => self.state.restore_queue(self.clock.now(), record),
                Err(error) => {
                    tracing::error!("Allocation queue {id} cannot be restored: {error}");
                }
            }
        }
        self.note_own();
        for queue in self.state.queues() {
            for allocation in queue.allocations().filter(|a| !a.may_be_alive()) {
                // The directories are within the limit, so none is removed.
                let _ = self.dirs.retire(allocation.record().dir.clone());
            }
        }
    }

    pub(super) async fn run(
        mut self,
        mut asks: mpsc::Receiver<AllocMessage>,
        mut news: NewsReceiver,
    ) {
        loop {
            let deadline = self.state.next_deadline().map(|at| self.clock.instant(at));
            let timer = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                ask = asks.recv() => match ask {
                    None => return,
                    Some(AllocMessage::Shutdown(keep, done)) => {
                        self.shutdown(keep).await;
                        // The caller may have stopped waiting.
                        let _ = done.send(());
                        return;
                    }
                    Some(AllocMessage::Request(request, reply)) => self.on_request(*request, reply).await,
                },
                Some(heard) = news.workers.recv() => self.on_worker(heard).await,
                () = news.changed.notified() => self.apply(Input::Changed).await,
                Some(done) = self.jobs.join_next() => self.on_done(done.unwrap_or_default()).await,
                Some(_) = self.trials.join_next() => {}
                Some(_) = self.answers.join_next() => {}
                () = timer => self.apply(Input::Timer).await,
            }
        }
    }

    async fn apply(&mut self, input: Input) {
        let mut effects = Vec::new();
        self.state.apply(self.clock.now(), input, &mut effects);
        self.carry_out(effects).await;
    }

    async fn on_done(&mut self, inputs: Vec<Input>) {
        for input in inputs {
            self.apply(input).await;
        }
    }

    async fn on_worker(&mut self, news: WorkerNews) {
        match news {
            WorkerNews::Connected(worker, config) => {
                let Some(job) = job_of(&config) else { return };
                self.apply(Input::WorkerConnected {
                    job,
                    worker,
                    config,
                })
                .await;
            }
            WorkerNews::Lost {
                worker,
                config,
                crashed,
                lived,
                used,
            } => {
                let Some(job) = job_of(&config) else { return };
                self.apply(Input::WorkerLost {
                    job,
                    worker,
                    crashed,
                    lived,
                    used,
                })
                .await;
            }
        }
    }

    async fn on_request(&mut self, request: AllocRequest, reply: oneshot::Sender<Reply>) {
        let now = self.clock.now();
        let only_looks = only_looks(&request);
        let answer = match request {
            AllocRequest::Add(params) => self.add(params).await,
            AllocRequest::DryRun(params) => {
                let commands = self.commands.clone();
                self.trials.spawn(async move {
                    let outcome = commands.try_out(&params).await;
                    let (answer, left) = match outcome {
                        Ok(()) => (done(), None),
                        // The client adds the prefix.
                        Err(failed) => (Refusal::failed(failed.text).bare().into(), failed.left),
                    };
                    let _ = reply.send(answer);
                    if let Some(left) = left {
                        work::cancel_in_time(&params, &left).await;
                    }
                });
                return;
            }
            AllocRequest::List => self.known().queues(),
            AllocRequest::Info(queue) => self.known().allocations(queue),
            AllocRequest::Log(job) => self.known().log_dir(&job),
            AllocRequest::Remove { queue, force } => {
                let mut effects = Vec::new();
                match self.state.remove_queue(now, queue, force, &mut effects) {
                    Ok(()) => {
                        // Both changes are stored together, because a server that restarts cancels
                        // the allocations that are left.
                        let removed = AllocationChange::QueueRemoved(queue);
                        self.persist(vec![removed, self.stored(queue)]).await;
                        self.carry_out(effects).await;
                        done()
                    }
                    Err(error) => Refusal::from(error).into(),
                }
            }
            AllocRequest::Pause(queue) if self.state.pause(queue) => {
                self.carry_out(vec![Effect::Changed(queue)]).await;
                done()
            }
            AllocRequest::Resume(queue) if self.state.resume(now, queue) => {
                self.carry_out(vec![Effect::Changed(queue)]).await;
                done()
            }
            AllocRequest::Pause(queue) => no_queue(queue, "paused"),
            AllocRequest::Resume(queue) => no_queue(queue, "resumed"),
        };
        if only_looks {
            // The core replies once the queried state is on disk, or immediately if the disk hangs.
            let core = self.core.clone();
            self.answers.spawn(async move {
                if core.query(|_| ()).await.is_ok() {
                    // The client may have disconnected.
                    let _ = reply.send(answer);
                }
            });
            return;
        }
        let Some(stored) = self.persist(Vec::new()).await else {
            return;
        };
        self.answers.spawn(async move {
            // The client gets its answer when the change is on disk. If the core has ended, no
            // client waits.
            if stored.await.is_ok() {
                // Fails only if the client has disconnected.
                let _ = reply.send(answer);
            }
        });
    }

    /// Returns the data that answers are made from.
    fn known(&self) -> AnswerContext<'_> {
        AnswerContext {
            state: &self.state,
            now: self.clock.now(),
        }
    }

    /// Stores changes. Returns `None` if the server is shutting down.
    async fn persist(&self, changes: Vec<AllocationChange>) -> Option<oneshot::Receiver<()>> {
        let changes = changes.into_iter().map(ChangeKind::Allocation).collect();
        self.core.persist(changes).await.ok()
    }

    /// Returns the stored form of a queue.
    fn stored(&self, id: QueueId) -> AllocationChange {
        let record = self.state.record(id).map(Box::new);
        AllocationChange::QueueStored { queue: id, record }
    }

    async fn add(&mut self, params: QueueParams) -> Reply {
        let params = Arc::new(params);
        let id = self.state.add_queue(self.clock.now(), params.clone());
        let created = AllocationChange::QueueCreated { queue: id, params };
        self.persist(vec![created]).await;
        self.carry_out(vec![Effect::Changed(id)]).await;
        reply(alloc_reply::Reply::Added(id.as_u32()))
    }

    async fn carry_out(&mut self, effects: Vec<Effect>) {
        self.persist_all(&effects).await;
        self.report_offers().await;
        for effect in effects {
            match effect {
                Effect::AskDemand(queries) => {
                    let core = self.core.clone();
                    self.jobs.spawn(async move {
                        let ask =
                            core.query(move |view| view.state.demand(view.now.mono, &queries));
                        // Fails only if the server has ended.
                        ask.await
                            .map_or_else(|_| Vec::new(), |found| vec![Input::Demand(found)])
                    });
                }
                Effect::Submit { key, workers } => self.submit(key, workers).await,
                Effect::Look(key) => {
                    let Some((params, asked)) = self.asked(key, "") else {
                        continue;
                    };
                    self.jobs.spawn(async move {
                        vec![Input::Looked(key, work::look(&params, &asked).await)]
                    });
                }
                Effect::Poll { jobs, .. } => {
                    let asked = jobs.iter().filter_map(|(key, job)| self.asked(*key, job));
                    let (params, jobs): (Vec<_>, Vec<_>) = asked.unzip();
                    let Some(params) = params.into_iter().next() else {
                        continue;
                    };
                    self.jobs
                        .spawn(async move { work::poll(&params, jobs).await });
                }
                Effect::Cancel { key, job } => {
                    let Some((params, asked)) = self.asked(key, &job) else {
                        continue;
                    };
                    self.jobs.spawn(async move {
                        let result = work::cancel(&params, &asked).await;
                        vec![Input::Canceled(key, result)]
                    });
                }
                Effect::Event(event) => tracing::debug!(?event, "allocation"),
                Effect::Retire(dir) => {
                    let surplus = self.dirs.retire(dir);
                    if !surplus.is_empty() {
                        self.trials.spawn(dirs::remove(surplus));
                    }
                }
                // Already stored above.
                Effect::Changed(_) => {}
                Effect::Tell(Level::Info, text) => tracing::info!("{text}"),
                Effect::Tell(Level::Warn, text) => tracing::warn!("{text}"),
                Effect::Tell(Level::Error, text) => tracing::error!("{text}"),
            }
        }
    }

    /// Reports the sizes of workers that can be requested to the core. They bound the growth of
    /// tasks' requests.
    async fn report_offers(&mut self) {
        let kinds = self.state.worker_kinds();
        if kinds == self.offered {
            return;
        }
        self.offered.clone_from(&kinds);
        // Fails only if the server has ended.
        let _ = self.core.send(Event::QueueOffers(kinds)).await;
    }

    /// Submits an allocation once all its data is stored.
    async fn submit(&mut self, key: AllocationKey, workers: u32) {
        let Some((params, asked)) = self.asked(key, "") else {
            return;
        };
        let Some(stored) = self.persist(Vec::new()).await else {
            return;
        };
        let (commands, core) = (self.commands.clone(), self.core.clone());
        self.jobs.spawn(async move {
            if stored.await.is_err() {
                return Vec::new();
            }
            let avoided = core.query(|view| view.state.nodes_to_avoid(view.now.wall));
            let excluded = avoided.await.unwrap_or_default().join(",");
            let outcome = commands
                .submit(&params, key, workers, (&asked.dir, &excluded))
                .await;
            vec![Input::Submitted(key, outcome)]
        });
    }

    /// Stores the changes of queues and allocations in these effects.
    async fn persist_all(&self, effects: &[Effect]) {
        let mut changes = Vec::new();
        let mut changed = std::collections::BTreeSet::new();
        for effect in effects {
            match effect {
                Effect::Event(event) => changes.push(AllocationChange::Event(event.clone())),
                Effect::Changed(queue) => {
                    changed.insert(*queue);
                }
                Effect::AskDemand(_)
                | Effect::Submit { .. }
                | Effect::Look(_)
                | Effect::Poll { .. }
                | Effect::Cancel { .. }
                | Effect::Retire(_)
                | Effect::Tell(..) => {}
            }
        }
        if !changed.is_empty() {
            self.note_own();
        }
        changes.extend(changed.into_iter().map(|id| self.stored(id)));
        if !changes.is_empty() {
            self.persist(changes).await;
        }
    }

    fn note_own(&self) {
        let allocations = self.state.queues().flat_map(|queue| queue.allocations());
        let alive = allocations.filter(|allocation| allocation.may_be_alive());
        self.own
            .set(alive.map(|a| a.job_id().map(Into::into)).collect());
    }

    /// Returns the parameters of an allocation's queue, and the allocation in the form that commands
    /// of its batch system need.
    fn asked(
        &self,
        key: AllocationKey,
        job: &str,
    ) -> Option<(Arc<QueueParams>, QueriedAllocation)> {
        let (params, allocation) = self.state.allocation(key)?;
        let asked = QueriedAllocation {
            key,
            job: job.into(),
            dir: path_of(allocation),
        };
        Some((params.clone(), asked))
    }

    /// Waits for submissions in progress, and cancels all allocations that may be alive unless they
    /// are kept.
    async fn shutdown(mut self, keep: bool) {
        let waiting = async {
            while self.state.is_submitting() {
                match self.jobs.join_next().await {
                    Some(done) => self.on_done(done.unwrap_or_default()).await,
                    None => break,
                }
            }
        };
        if tokio::time::timeout(LAST_SUBMIT_TIMEOUT, waiting)
            .await
            .is_err()
        {
            tracing::warn!("a submission did not end; its allocation may be left behind");
        }
        let unsure: Vec<AllocationKey> = self.state.unsure().collect();
        for key in unsure {
            if let Some((params, asked)) = self.asked(key, "") {
                let found = work::look(&params, &asked).await;
                self.apply(Input::Looked(key, found)).await;
            }
        }
        if !keep {
            self.cancel_all().await;
        }
        if let Some(stored) = self.persist(Vec::new()).await {
            // Fails only if the core has ended. On a full disk this may take forever, and a
            // stopping server must not wait for that.
            let stored = tokio::time::timeout(LAST_STORE_TIMEOUT, stored).await;
            if !matches!(stored, Ok(Ok(_))) {
                tracing::warn!("the last changes of allocation queues could not be stored");
                return;
            }
            // Earlier changes are also stored by now, and their answers only need to be forwarded.
            while self.answers.join_next().await.is_some() {}
        }
    }

    async fn cancel_all(&mut self) {
        let mut cancels = JoinSet::new();
        for (key, job) in self.state.alive() {
            let Some((params, asked)) = self.asked(key, job) else {
                continue;
            };
            cancels.spawn(async move {
                let job = job_parts(&asked.job).0;
                match work::cancel(&params, &asked).await {
                    Ok(()) => {
                        tracing::info!("Allocation {job} was removed");
                        Some(key)
                    }
                    Err(text) => {
                        tracing::error!("Could not cancel allocation {job}: {text}");
                        None
                    }
                }
            });
        }
        while let Some(canceled) = cancels.join_next().await {
            let Ok(Some(key)) = canceled else { continue };
            let mut effects = Vec::new();
            self.state.close(self.clock.now(), key, &mut effects);
            self.persist_all(&effects).await;
        }
    }
}

fn job_of(config: &WorkerConfig) -> Option<Box<str>> {
    let allocation = config.allocation.as_ref()?;
    Some(match &allocation.cluster {
        Some(cluster) => format!("{};{cluster}", allocation.id).into(),
        None => allocation.id.clone(),
    })
}

/// Returns whether a request changes nothing.
const fn only_looks(request: &AllocRequest) -> bool {
    match request {
        AllocRequest::List | AllocRequest::Info(_) | AllocRequest::Log(_) => true,
        AllocRequest::Add(_)
        | AllocRequest::DryRun(_)
        | AllocRequest::Remove { .. }
        | AllocRequest::Pause(_)
        | AllocRequest::Resume(_) => false,
    }
}

fn done() -> Reply {
    reply(alloc_reply::Reply::Done(client::AllocDone {}))
}

fn no_queue(queue: QueueId, change: &str) -> Reply {
    let text = format!("Queue {queue} that should have been {change} was not found");
    Refusal::not_found(text).into()
}

fn decode(bytes: &[u8]) -> Result<QueueRecord, String> {
    let message = client::AllocQueueRecord::decode(bytes).map_err(|_| "it is damaged")?;
    message
        .try_into()
        .map_err(|error: ConvertError| error.to_string())
}
