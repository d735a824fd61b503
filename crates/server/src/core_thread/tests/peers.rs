//! Runs the loop with workers and clients in memory, without sockets and processes.

use std::collections::BTreeMap;

use hq_core::id::{InstanceId, JobId, TaskKey};
use hq_core::outcome::{LostReason, Outcome, Usage};
use hq_core::server_state::{
    ChangeKind, EndedRow, LinkEnd, Reattach, Report, StartedRow, WatchSpec, WorkerCommand,
    WorkerMessage,
};
use hq_core::testing::worker_config;
use hq_core::worker_config::{OnServerLost, WorkerConfig};
use tokio::sync::Semaphore;

use super::*;
use crate::core_handle::{Event, WorkerRegistration};
use crate::delivery::WORKER_QUEUE_LEN;
use crate::updates::Details;

const TASK: TaskKey = TaskKey::new(JobId(1), TaskId(0));

/// A passive worker.
pub(super) struct Peer {
    core: CoreHandle,
    registration: WorkerRegistration,
    turns: Arc<Semaphore>,
}

/// The maximum number of a worker's messages that may wait.
const TURNS: usize = 4_096;

impl Peer {
    fn config() -> Box<WorkerConfig> {
        let mut config = worker_config(1);
        config.on_server_lost = OnServerLost::Reconnect;
        Box::new(config)
    }

    pub(super) async fn join(
        core: &CoreHandle,
        reattach: Option<Box<Reattach>>,
    ) -> Result<Self, CoreGone> {
        let asked = core.register(Self::config(), reattach).await?;
        let registration = asked.await.map_err(|_| CoreGone)?;
        Ok(Self {
            core: core.clone(),
            registration,
            turns: Arc::new(Semaphore::new(TURNS)),
        })
    }

    pub(super) async fn say(&self, message: WorkerMessage) {
        let turn = Arc::clone(&self.turns).acquire_owned().await;
        let turn = turn.expect("it is never closed");
        let (id, link) = (self.registration.id, self.registration.link);
        let said = self.core.worker_message(id, link, message, turn).await;
        said.expect("the core is there");
    }

    /// Returns the counter of the worker's messages. The worker is gone afterwards.
    pub(super) fn into_turns(self) -> Arc<Semaphore> {
        self.turns
    }

    /// Returns the number of messages that the core has not handled.
    pub(super) fn unheard(&self) -> usize {
        TURNS - self.turns.available_permits()
    }

    /// Returns when the core has handled all messages of this worker.
    async fn is_heard(&self) {
        let all = u32::try_from(TURNS).expect("few");
        let heard = tokio::time::timeout(LIMIT, self.turns.acquire_many(all)).await;
        drop(
            heard
                .expect("the core gets on")
                .expect("it is never closed"),
        );
    }

    /// Receives the next command. Returns `None` when the server has closed the connection.
    async fn hear(&mut self) -> Option<WorkerCommand> {
        let heard = tokio::time::timeout(LIMIT, self.registration.commands.recv()).await;
        heard.expect("something comes")
    }

    fn reattach(&self, number: u64) -> Option<Box<Reattach>> {
        Some(Box::new(Reattach {
            worker: self.registration.id,
            server_uid: "test".into(),
            launching: Vec::new(),
            report: Report::default(),
            variants: BTreeMap::new(),
            number,
        }))
    }
}

fn finished(seq: u64) -> WorkerMessage {
    let age = Duration::ZERO;
    let (task, instance) = (TASK, InstanceId(0));
    WorkerMessage::Report(Report {
        seq,
        sent: None,
        started: vec![StartedRow {
            task,
            instance,
            age,
        }],
        ended: vec![EndedRow {
            task,
            instance,
            outcome: Outcome::Finished,
            age,
            run: Duration::from_secs(1),
            usage: Usage::default(),
        }],
        retracted: Vec::new(),
    })
}

async fn submit(core: &CoreHandle) {
    let spec = Box::new(array_submit(1, template(&["true"])));
    let reply = core.command(Command::Submit(spec)).await;
    let reply = reply.expect("the core is there");
    assert!(matches!(reply, Ok(Reply::Submitted(JobId(1)))), "{reply:?}");
}

async fn is_completed(core: &CoreHandle) -> bool {
    let look = |view: &View<'_>| view.state.jobs()[&JobId(1)].is_completed();
    core.query(look).await.expect("the core is there")
}

fn end(core: CoreHandle, thread: std::thread::JoinHandle<()>) {
    drop(core);
    thread.join().expect("a clean end");
}

fn watch_all(interval: Duration) -> WatchSpec {
    WatchSpec {
        jobs: Selector::All,
        until_idle: false,
        with_progress: true,
        with_outcomes: true,
        with_notifications: true,
        interval,
    }
}

#[tokio::test]
async fn a_task_goes_to_a_worker_and_its_end_is_acknowledged_and_told() {
    let (core, thread) = unstored(ServerState::new("test"));
    let mut worker = Peer::join(&core, None).await.expect("a registration");
    submit(&core).await;
    let command = worker.hear().await;
    assert!(
        matches!(command, Some(WorkerCommand::Assign { .. })),
        "{command:?}"
    );
    let spec = watch_all(Duration::ZERO);
    let (_, mut updates) = core
        .watch(spec, Details::default())
        .await
        .expect("the core is there");
    worker.say(finished(7)).await;
    loop {
        match worker.hear().await {
            Some(WorkerCommand::Acknowledge(seq)) => {
                assert_eq!(seq, 7);
                break;
            }
            Some(_) => {}
            None => panic!("the connection stays"),
        }
    }
    let mut last = None;
    while let Some(update) = updates.recv().await {
        last = Some(update);
    }
    assert!(
        last.is_some_and(|update| update.done),
        "and nothing follows"
    );
    assert!(is_completed(&core).await);
    drop(worker);
    end(core, thread);
}

#[tokio::test]
async fn what_an_older_connection_says_or_does_no_longer_counts() {
    let (core, thread) = unstored(ServerState::new("test"));
    let mut old = Peer::join(&core, None).await.expect("a registration");
    submit(&core).await;
    let new = Peer::join(&core, old.reattach(1))
        .await
        .expect("a registration");
    assert!(new.registration.reattached && new.registration.id == old.registration.id);
    while old.hear().await.is_some() {}
    old.say(finished(1)).await;
    old.is_heard().await;
    let (id, link) = (old.registration.id, old.registration.link);
    let gone = core.worker_gone(id, link, LinkEnd::Broken).await;
    gone.expect("the core is there");
    assert!(!is_completed(&core).await, "nobody listens to it");
    new.say(finished(1)).await;
    new.is_heard().await;
    assert!(is_completed(&core).await, "the newer one is there still");
    drop((old, new));
    end(core, thread);
}

#[tokio::test]
async fn an_overtaken_registration_gets_no_reply() {
    let (core, thread) = unstored(ServerState::new("test"));
    let first = Peer::join(&core, None).await.expect("a registration");
    let mut second = Peer::join(&core, first.reattach(2))
        .await
        .expect("a registration");
    assert!(Peer::join(&core, first.reattach(1)).await.is_err());
    second.say(WorkerMessage::heartbeat()).await;
    assert!(second.hear().await.is_some(), "the newer one stays");
    drop((first, second));
    end(core, thread);
}

#[tokio::test]
async fn a_worker_that_does_not_read_loses_its_connection() {
    let (core, thread) = unstored(ServerState::new("test"));
    let mut worker = Peer::join(&core, None).await.expect("a registration");
    for _ in 0..=WORKER_QUEUE_LEN {
        worker.say(WorkerMessage::heartbeat()).await;
    }
    // All requests are answered before the first answer is read.
    worker.is_heard().await;
    core.query(|_| ()).await.expect("the core is there");
    let mut heard = 0;
    while worker.hear().await.is_some() {
        heard += 1;
    }
    assert_eq!(heard, WORKER_QUEUE_LEN, "what was under way arrives");
    drop(worker);
    end(core, thread);
}

#[tokio::test]
async fn a_worker_that_says_goodbye_loses_its_connection_and_its_tasks_wait() {
    let (core, thread) = unstored(ServerState::new("test"));
    let mut worker = Peer::join(&core, None).await.expect("a registration");
    submit(&core).await;
    worker
        .say(WorkerMessage::Goodbye(LostReason::Stopped))
        .await;
    while worker.hear().await.is_some() {}
    let look = |view: &View<'_>| view.state.ready_len();
    assert_eq!(core.query(look).await.ok(), Some(1));
    drop(worker);
    end(core, thread);
}

#[tokio::test]
async fn a_client_that_stops_watching_hears_nothing_more() {
    let (core, thread) = unstored(ServerState::new("test"));
    submit(&core).await;
    let spec = watch_all(Duration::ZERO);
    let (id, mut updates) = core
        .watch(spec, Details::default())
        .await
        .expect("the core is there");
    assert!(updates.recv().await.is_some(), "how things are");
    core.send(Event::Unwatch(id))
        .await
        .expect("the core is there");
    assert!(updates.recv().await.is_none());
    end(core, thread);
}

#[tokio::test]
async fn while_the_disk_is_full_nothing_is_submitted_and_everybody_can_look() {
    let held = Held::start(ServerState::new("test"));
    held.commit();
    held.progress
        .send_modify(|progress| progress.health = Health::Waiting("no space".into()));
    let open = |name: &str| Command::OpenJob {
        name: name.into(),
        max_fails: None,
        key: None,
    };
    loop {
        let reply = held.core.command(open("x")).await;
        // The core has to receive the store's new health first.
        if let Err(refusal) = reply.expect("the core is there") {
            assert!(
                refusal.text.contains("cannot write its state"),
                "{refusal:?}"
            );
            break;
        }
    }
    let looked = held.core.query(|view| view.state.jobs().len()).await;
    let before = looked.expect("the core is there");
    held.progress
        .send_modify(|progress| progress.health = Health::Good);
    while held
        .core
        .command(open("y"))
        .await
        .is_ok_and(|reply| reply.is_err())
    {}
    let after = held.peek(|view| view.state.jobs().len()).await;
    assert_eq!(after, before + 1, "of what was refused nothing is there");
    held.end();
}

#[tokio::test]
async fn a_store_that_can_never_be_written_again_ends_the_server() {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(&dir.path().join("state.db")).expect("a new store");
    let at = Clock::new().now().wall;
    let store = store.start("test", &[], at, |_| ()).expect("a writer");
    let (progress, seen) = watch::channel(Progress {
        committed: u64::MAX,
        health: Health::Good,
    });
    let failed = Arc::new(Notify::new());
    let state = ServerState::new("test");
    let started = start(
        state,
        Some((store, seen)),
        Arc::clone(&failed),
        (None, None),
        Stats::new(),
    );
    let (core, thread) = started.expect("a thread");
    progress.send_modify(|progress| progress.health = Health::Broken("gone".into()));
    let told = tokio::time::timeout(LIMIT, failed.notified()).await;
    told.expect("somebody has to end it");
    let cancel = Command::CloseJobs(Selector::All);
    let reply = core.command(cancel).await.expect("the core is there");
    let refusal = reply.expect_err("it would be lost");
    assert!(refusal.text.contains("gone"), "{refusal:?}");
    end(core, thread);
}

#[tokio::test]
async fn what_is_stored_beside_the_state_is_confirmed_when_it_is_on_disk() {
    let held = Held::start(ServerState::new("test"));
    let change = ChangeKind::Allocation(hq_core::server_state::AllocationChange::QueueRemoved(
        hq_core::id::QueueId(1),
    ));
    let stored = held.core.persist(vec![change]).await;
    let mut stored = stored.expect("the core is there");
    for _ in 0..20 {
        held.peek(|_| ()).await;
        assert!(stored.try_recv().is_err(), "it is not on disk");
    }
    held.commit();
    let told = tokio::time::timeout(LIMIT, stored).await;
    told.expect("it is told").expect("the core is there");
    held.end();
}

#[tokio::test]
async fn a_server_that_gives_its_last_changes_up_keeps_nobody_waiting() {
    let held = Held::start(ServerState::new("test"));
    let change = || {
        let removed = hq_core::server_state::AllocationChange::QueueRemoved;
        vec![ChangeKind::Allocation(removed(hq_core::id::QueueId(1)))]
    };
    let before = held.core.persist(change()).await;
    let before = before.expect("the core is there");
    let watched = held
        .core
        .watch(watch_all(Duration::ZERO), Details::default())
        .await;
    let (_, mut updates) = watched.expect("the core is there");
    let submitted = held.submit().await;
    held.core.give_up().await.expect("the core is there");
    let told = tokio::time::timeout(LIMIT, before).await;
    assert!(told.expect("it is told").is_err(), "it is not on disk");
    let end = async { while updates.recv().await.is_some() {} };
    let ended = tokio::time::timeout(LIMIT, end).await;
    ended.expect("who watches is not kept, either");
    let answer = submitted.await.expect("no panic");
    assert!(answer.expect("the core is there").is_err(), "not stored");
    // A later request does not start to wait.
    let after = held.core.persist(change()).await;
    let told = tokio::time::timeout(LIMIT, after.expect("the core is there")).await;
    assert!(told.expect("it is told").is_err(), "nobody will know it");
    held.end();
}

#[tokio::test]
async fn a_worker_is_registered_when_its_registration_is_on_disk() {
    let held = Held::start(ServerState::new("test"));
    let core = held.core.clone();
    let joining = tokio::spawn(async move { Peer::join(&core, None).await });
    while held.peek(|view| view.state.workers().is_empty()).await {}
    for _ in 0..20 {
        held.peek(|_| ()).await;
        assert!(!joining.is_finished(), "a crash would forget its id");
    }
    held.commit();
    let joined = joining.await.expect("no panic");
    drop(joined.expect("a registration"));
    held.end();
}
