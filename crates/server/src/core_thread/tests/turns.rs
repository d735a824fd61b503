//! Single turns of the loop: no client waits behind all messages of workers.

use hq_core::id::{InstanceId, JobId, TaskKey};
use hq_core::server_state::{Report, StartedRow, WorkerMessage};

use super::peers::Peer;
use super::*;
use crate::clock::thread_cpu_time;
use crate::core_handle::{Events, REQUESTS_PER_TURN};

/// The number of rows in a report, and the number of queued reports, which need many rounds.
const ROWS: usize = 100;
const REPORTS: usize = 300;
/// The number of reports in one round.
const REPORTS_PER_ROUND: usize = ROWS_PER_ROUND_MAX.div_ceil(ROWS + 1);

/// A loop whose turns the test runs one by one.
struct Turning {
    core: CoreHandle,
    looped: Core,
    events: Events,
}

impl Turning {
    fn new(store: Option<(StoreHandle, watch::Receiver<Progress>)>) -> Self {
        let (core, events) = CoreHandle::new();
        let (state, failed) = (ServerState::new("test"), Arc::new(Notify::new()));
        Self {
            core,
            looped: Core::new(state, store, failed, (None, None), Stats::new()),
            events,
        }
    }

    async fn turn(&mut self) {
        let turned = tokio::time::timeout(LIMIT, self.looped.turn(&mut self.events)).await;
        assert!(
            turned.expect("there is something to do"),
            "a handle is there"
        );
        // The test's runtime has one thread, so all tasks that can run make progress.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }

    /// Sends a request and returns when it is queued.
    async fn ask<T, F>(&self, asking: F) -> tokio::task::JoinHandle<T>
    where
        T: Send + 'static,
        F: Future<Output = T> + Send + 'static,
    {
        let before = self.core.waiting();
        let asked = tokio::spawn(asking);
        while self.core.waiting() == before {
            tokio::task::yield_now().await;
        }
        asked
    }

    async fn worker(&mut self, progress: Option<&watch::Sender<Progress>>) -> Peer {
        let core = self.core.clone();
        let joining = self.ask(async move { Peer::join(&core, None).await }).await;
        self.turn().await;
        if let Some(progress) = progress {
            progress.send_modify(|progress| progress.committed += 1);
            self.turn().await;
        }
        joining.await.expect("no panic").expect("a registration")
    }
}

/// Sends far more from a worker than fits into a round. The tasks are unknown, but cost as much.
async fn flood(worker: &Peer) {
    let age = Duration::ZERO;
    let row = |number| StartedRow {
        task: TaskKey::new(JobId(9), TaskId(number)),
        instance: InstanceId(0),
        age,
    };
    for seq in 1..=REPORTS {
        let report = Report {
            seq: u64::try_from(seq).expect("few"),
            sent: None,
            started: (0..100).map(row).collect(),
            ..Report::default()
        };
        worker.say(WorkerMessage::Report(report)).await;
    }
    assert_eq!(worker.unheard(), REPORTS);
}

#[tokio::test]
async fn a_question_is_answered_in_the_next_turn_however_much_workers_have_said() {
    let mut turning = Turning::new(None);
    let worker = turning.worker(None).await;
    flood(&worker).await;
    turning.turn().await;
    for turn in 2..5 {
        let core = turning.core.clone();
        let asked = turning.ask(async move { core.query(|_| ()).await }).await;
        turning.turn().await;
        assert!(asked.is_finished(), "turn {turn}");
        let heard = REPORTS - worker.unheard();
        assert_eq!(heard, turn * REPORTS_PER_ROUND, "and a turn is a round");
    }
}

#[tokio::test]
async fn what_waits_for_a_commit_leaves_in_the_turn_after_it() {
    let (_dir, store, progress) = held_store();
    let mut turning = Turning::new(Some((store, progress.subscribe())));
    let worker = turning.worker(Some(&progress)).await;
    flood(&worker).await;
    let core = turning.core.clone();
    let spec = Box::new(array_submit(1, template(&["true"])));
    let submitted = async move { core.command(Command::Submit(spec)).await };
    let submitted = turning.ask(submitted).await;
    for _ in 0..3 {
        turning.turn().await;
    }
    assert!(!submitted.is_finished(), "it is not stored");
    progress.send_modify(|progress| progress.committed = u64::MAX);
    turning.turn().await;
    assert!(submitted.is_finished());
    assert!(worker.unheard() > 0, "there would be more to do");
}

#[tokio::test]
async fn many_questions_do_not_keep_workers_waiting() {
    let mut turning = Turning::new(None);
    turning.looped.requests_cpu_max = Duration::MAX;
    let worker = turning.worker(None).await;
    let mut asked = Vec::new();
    for _ in 0..3 * REQUESTS_PER_TURN {
        let core = turning.core.clone();
        let question = async move { core.query(|_| ()).await };
        asked.push(turning.ask(question).await);
    }
    flood(&worker).await;
    for turn in 1..=3 {
        turning.turn().await;
        let answered = asked.iter().filter(|asked| asked.is_finished()).count();
        assert_eq!(answered, turn * REQUESTS_PER_TURN);
        assert_eq!(REPORTS - worker.unheard(), turn * REPORTS_PER_ROUND);
    }
}

#[tokio::test]
async fn questions_that_take_long_do_not_keep_workers_waiting_either() {
    let mut turning = Turning::new(None);
    let worker = turning.worker(None).await;
    let mut asked = Vec::new();
    for _ in 0..3 {
        let core = turning.core.clone();
        let question = async move {
            core.query(|_| {
                let begin = thread_cpu_time();
                while thread_cpu_time() - begin < REQUESTS_CPU_MAX {}
            })
            .await
        };
        asked.push(turning.ask(question).await);
    }
    flood(&worker).await;
    for turn in 1..=3 {
        turning.turn().await;
        let answered = asked.iter().filter(|asked| asked.is_finished()).count();
        assert_eq!(answered, turn);
        assert_eq!(REPORTS - worker.unheard(), turn * REPORTS_PER_ROUND);
    }
}

#[tokio::test]
async fn a_loop_ends_behind_what_was_said() {
    let mut turning = Turning::new(None);
    let worker = turning.worker(None).await;
    flood(&worker).await;
    let Turning {
        core,
        mut looped,
        mut events,
    } = turning;
    let counted = worker.into_turns();
    drop(core);
    while looped.turn(&mut events).await {}
    assert_eq!(counted.available_permits(), 4_096, "nothing is lost");
}

#[tokio::test]
async fn a_sign_of_life_that_waits_behind_other_reports_is_in_time() {
    let mut turning = Turning::new(None);
    let worker = turning.worker(None).await;
    flood(&worker).await;
    worker.say(WorkerMessage::heartbeat()).await;
    // The worker's deadline passes while its messages are queued.
    let period = hq_core::testing::worker_config(1).heartbeat;
    turning.looped.clock.ahead = period * 2 + Duration::from_millis(100);
    while worker.unheard() > 0 {
        turning.turn().await;
        let workers = turning.looped.state.workers();
        assert_eq!(workers.len(), 1, "{} wait", worker.unheard());
    }
}
