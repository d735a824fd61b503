//! Tests of the thread with a store whose commits the test controls.

mod peers;
mod turns;

use std::time::Duration;

use hq_core::id::TaskId;
use hq_core::refusal::Refusal;
use hq_core::selector::Selector;
use hq_core::server_state::Reply;
use hq_core::testing::{array_submit, request, template};
use hq_protocol::convert::Query;
use hq_store::Store;
use tokio::sync::mpsc;

use super::*;
use crate::core_handle::CoreGone;
use crate::query::PartialQuery;

/// Longer than any step takes on a busy machine.
const LIMIT: Duration = Duration::from_secs(60);

/// Creates a store that commits when the test says so.
fn held_store() -> (tempfile::TempDir, StoreHandle, watch::Sender<Progress>) {
    let dir = tempfile::tempdir().expect("a directory");
    let store = Store::open(&dir.path().join("state.db")).expect("a new store");
    let at = Clock::new().now().wall;
    let store = store.start("test", &[], at, |_| ()).expect("a writer");
    let (progress, _) = watch::channel(Progress {
        committed: 0,
        health: Health::Good,
    });
    (dir, store, progress)
}

/// A core with such a store.
struct Held {
    core: CoreHandle,
    progress: watch::Sender<Progress>,
    thread: std::thread::JoinHandle<()>,
    _dir: tempfile::TempDir,
}

impl Held {
    fn start(state: ServerState) -> Self {
        let (dir, store, progress) = held_store();
        let (core, thread) = start(
            state,
            Some((store, progress.subscribe())),
            Arc::new(Notify::new()),
            (None, None),
            Stats::new(),
        )
        .expect("a thread");
        Self {
            core,
            progress,
            thread,
            _dir: dir,
        }
    }

    /// Marks everything as on disk.
    fn commit(&self) {
        self.progress
            .send_modify(|progress| progress.committed = u64::MAX);
    }

    /// Reads the state, committed or not.
    async fn peek<T: Send + 'static>(
        &self,
        look: impl FnOnce(&View<'_>) -> T + Send + 'static,
    ) -> T {
        let looked = tokio::time::timeout(LIMIT, self.core.look(look, |_| false)).await;
        looked.expect("not held back").expect("the core is there")
    }

    /// Submits a job and waits until it exists.
    async fn submit(&self) -> tokio::task::JoinHandle<Result<Result<Reply, Refusal>, CoreGone>> {
        let core = self.core.clone();
        let spec = Box::new(array_submit(1, template(&["true"])));
        let before = self.peek(|view| view.state.jobs().len()).await;
        let reply = tokio::spawn(async move { core.command(Command::Submit(spec)).await });
        while self.peek(|view| view.state.jobs().len()).await == before {
            tokio::task::yield_now().await;
        }
        reply
    }

    fn end(self) {
        drop(self.core);
        self.thread.join().expect("a clean end");
    }
}

#[tokio::test]
async fn a_long_answer_waits_for_the_store_once_and_not_with_each_part() {
    let mut state = ServerState::new("test");
    for _ in 0..5_000 {
        let spec = array_submit(0, template(&["true"]));
        request(&mut state, Command::Submit(Box::new(spec)));
    }
    let held = Held::start(state);
    let submitted = held.submit().await;
    let core = held.core.clone();
    let (parts_tx, mut parts) = mpsc::unbounded_channel();
    let list = tokio::spawn(async move {
        let mut asked = PartialQuery::New(Query::JobList(Selector::All));
        loop {
            match asked.next(&core).await.expect("the core is there") {
                Ok(_) => return,
                Err(rest) => asked = rest,
            }
            parts_tx.send(()).expect("somebody counts");
        }
    });
    for part in 0..2 {
        let made = tokio::time::timeout(LIMIT, parts.recv()).await;
        assert_eq!(made, Ok(Some(())), "part {part}");
    }
    held.peek(|_| ()).await;
    assert!(!list.is_finished(), "it shows a job that is not stored");
    held.commit();
    list.await.expect("an answer");
    submitted
        .await
        .expect("no panic")
        .expect("the core is there")
        .expect("accepted");
    held.end();
}

#[tokio::test]
async fn a_server_ends_behind_the_answers_to_what_it_has_accepted() {
    let held = Held::start(ServerState::new("test"));
    let submitted = held.submit().await;
    let core = held.core.clone();
    let ended = tokio::spawn(async move { core.end(false, LIMIT).await });
    for _ in 0..100 {
        held.peek(|_| ()).await;
        assert!(!ended.is_finished(), "the answer is on its way");
    }
    assert!(!submitted.is_finished(), "it is not stored");
    held.commit();
    ended.await.expect("no panic").expect("the core is there");
    let answer = submitted
        .await
        .expect("no panic")
        .expect("the core is there");
    assert!(matches!(answer, Ok(Reply::Submitted(_))), "{answer:?}");
    let open = Command::OpenJob {
        name: "late".into(),
        max_fails: None,
        key: None,
    };
    let late = held.core.command(open).await.expect("the core is there");
    let refusal = late.expect_err("nobody would hear of it");
    assert!(
        refusal.text.contains("the server is stopping"),
        "{refusal:?}"
    );
    assert_eq!(held.peek(|view| view.state.jobs().len()).await, 1);
    held.end();
}

/// Returns a core without a store.
fn unstored(state: ServerState) -> (CoreHandle, std::thread::JoinHandle<()>) {
    let failed = Arc::new(Notify::new());
    start(state, None, failed, (None, None), Stats::new()).expect("a thread")
}
