//! Polls a server for the dashboard.
//!
//! The feed has several connections. [`Front`] requests twice a second what the server holds in
//! memory. [`Back`] queries the store, which may take a second with a million tasks. Each action
//! has a connection of its own, because it waits for the server's disk. After each query the feed
//! waits for a multiple of the time that the query took, so that the dashboard uses only a small
//! part of the server's time, even for large jobs.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use hq_core::range::IdArray;
use hq_protocol::access::ServerDir;
use hq_protocol::client;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Notify, watch};

use super::ask::{act, output_tail, path};
use super::link::{Link, tell};
use super::{Message, PAST_STEPS, log, replay};
use crate::client::Client;
use crate::command::{Context, situation};
use crate::dashboard::app::{Ask, Focus, News, Replay};
use crate::dashboard::model::{JobRow, JobView, LogKey, clean};
use crate::dashboard::problems;
use crate::dashboard::question::Action;
use crate::dashboard::source::file::JournalFile;
use crate::dashboard::source::{job_view, live, obstacle, past, tasks, usage};
use crate::error::{CliError, CliResult};
use crate::output::console::error_line;
use crate::output::view::params_text;
use crate::parse::selector::{Selector, array_to_message};

/// Minimum time between two queries of the state in memory.
const LOOK_PAUSE: Duration = Duration::from_millis(450);
/// Minimum time between two queries of the store.
const STORE_PAUSE: Duration = Duration::from_secs(2);
/// How often the store is considered.
const STORE_TICK: Duration = Duration::from_millis(200);
/// Pause after a query of the store, as a multiple of its duration: all queries together use less
/// than three percent.
const COST_FACTOR: u32 = 80;
/// Pause after a query about all jobs, as a multiple of its duration. Most of that time is spent in
/// this process. The pause is bounded.
const LOOK_FACTOR: u32 = 5;
const LOOK_PAUSE_MAX: Duration = Duration::from_secs(2);
/// A server that does not answer for this long counts as lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause between two attempts to find the server.
const CONNECT_PAUSE: Duration = Duration::from_millis(500);
/// Time after which the screen announces a slow action.
const ACTION_PATIENCE: Duration = Duration::from_secs(2);
/// Maximum wait for confirmed actions when the dashboard ends.
const LAST_ACTIONS: Duration = Duration::from_secs(10);
/// Time after which the screen shows why it waits.
const SILENCE: Duration = Duration::from_secs(1);
/// The recent part of the history, which has finer steps.
const RECENT_NS: i64 = 600_000_000_000;

/// A started feeder.
pub(super) struct Feeder {
    pub(super) title: String,
    pub(super) replay: Option<Replay>,
    pub(super) asks: UnboundedSender<Ask>,
    /// Actions that were not answered.
    open: Arc<AtomicUsize>,
    /// Reports, when the feed has ended, why the last action was not done.
    ended: Receiver<Option<String>>,
}

impl Feeder {
    /// Waits briefly for the last confirmed actions.
    ///
    /// # Errors
    ///
    /// If an action may not have been done.
    pub(super) fn end(self) -> CliResult<()> {
        drop(self.asks);
        let is_open = || self.open.load(Ordering::SeqCst) > 0;
        let mut end = self.ended.recv_timeout(SILENCE);
        if end == Err(RecvTimeoutError::Timeout) && is_open() {
            error_line("Waiting for the server to do what was asked for last ...");
            end = self.ended.recv_timeout(LAST_ACTIONS);
        }
        match end {
            Ok(Some(error)) => Err(CliError::new(error)),
            Err(RecvTimeoutError::Timeout) if is_open() => Err(CliError::new(
                "The server has not answered; what was asked for last may not be done",
            )),
            // A feed that is busy, for example with a file that hangs, has no pending action.
            Ok(None) | Err(_) => Ok(()),
        }
    }
}

/// Starts the feed. A source that cannot be opened is an error here, not a message on the screen.
pub(super) fn start(
    journal: Option<&Path>,
    context: &Context,
    tx: Sender<Message>,
) -> CliResult<Feeder> {
    let runtime = crate::runtime::of_client()?;
    let (asks, asked) = unbounded_channel();
    let (end, ended) = channel();
    let open = Arc::new(AtomicUsize::new(0));
    type Work = Box<dyn FnOnce(&tokio::runtime::Runtime) + Send>;
    let (title, replay, work): (String, Option<Replay>, Work) = match journal {
        Some(path) => {
            let mut file = JournalFile::open(&crate::command::journal::file_of(path)?)?;
            let (from_ns, to_ns) = runtime.block_on(file.span())?;
            let replay = Replay {
                from_ns,
                to_ns,
                at_ns: to_ns,
                is_playing: false,
            };
            let to = tx.clone();
            let work = move |runtime: &tokio::runtime::Runtime| {
                runtime.block_on(replay::replay_file(file, (from_ns, to_ns), asked, &to))
            };
            (path.display().to_string(), Some(replay), Box::new(work))
        }
        None => {
            let dir = context.server_dir()?;
            let mut client = runtime.block_on(Client::connect(&dir))?;
            let info = runtime.block_on(client.server_info())?;
            let title = format!("server {} on {}", info.server_uid, info.client_host);
            let to = tx.clone();
            let counted = Arc::clone(&open);
            let work = move |runtime: &tokio::runtime::Runtime| {
                let error = runtime.block_on(watch_server(dir, client, &to, asked, &counted));
                // The dashboard may already be gone.
                let _ = end.send(error);
            };
            (clean(&title), None, Box::new(work))
        }
    };
    std::thread::Builder::new()
        .name("feed".into())
        .spawn(move || {
            runtime.spawn(end_on_signal(tx));
            work(&runtime);
        })
        .map_err(|e| CliError::caused("Cannot start", &e))?;
    Ok(Feeder {
        title,
        replay,
        asks,
        open,
        ended,
    })
}

/// Ends the dashboard on a signal, so that SIGTERM also restores the terminal.
async fn end_on_signal(tx: Sender<Message>) {
    let (Ok(mut terminate), Ok(mut hangup)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::hangup()),
    ) else {
        return;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    let _ = tx.send(Message::End);
}

fn now_ns() -> i64 {
    i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(0)
}

/// When a query may run again.
struct Pace {
    due: Instant,
    pause: Duration,
    factor: u32,
    pause_max: Duration,
}

impl Pace {
    fn new(pause: Duration) -> Self {
        Self {
            due: Instant::now(),
            pause,
            factor: COST_FACTOR,
            pause_max: Duration::MAX,
        }
    }

    /// Settings for frequent requests.
    fn frequent() -> Self {
        Self {
            factor: LOOK_FACTOR,
            pause_max: LOOK_PAUSE_MAX,
            ..Self::new(LOOK_PAUSE)
        }
    }

    fn hurry(&mut self) {
        self.due = Instant::now();
    }

    /// Runs the query if it is due.
    async fn ask<T>(
        &mut self,
        question: impl Future<Output = CliResult<T>>,
    ) -> CliResult<Option<T>> {
        let start = Instant::now();
        if start < self.due {
            return Ok(None);
        }
        let answer = match tokio::time::timeout(ANSWER_TIMEOUT, question).await {
            Ok(answer) => answer?,
            Err(_) => return Err(CliError::new("The server does not answer")),
        };
        let cost = (start.elapsed() * self.factor).min(self.pause_max);
        self.due = Instant::now() + self.pause.max(cost);
        Ok(Some(answer))
    }
}

/// Feeds until the dashboard is gone. Returns why an action that ended afterwards was not done.
async fn watch_server(
    dir: ServerDir,
    client: Client,
    tx: &Sender<Message>,
    mut asks: UnboundedReceiver<Ask>,
    open: &AtomicUsize,
) -> Option<String> {
    let (actions, to_do) = unbounded_channel();
    let (paths, to_find) = unbounded_channel();
    let (focus, focused) = watch::channel(Focus::default());
    let (seen, jobs) = watch::channel(Vec::new());
    let acted = Acted::default();
    let front = Front {
        link: Link {
            dir: dir.clone(),
            client: Some(client),
        },
        tx,
        seen,
        everything: Pace::frequent(),
    };
    let back = Back {
        link: Link::new(&dir),
        tx,
        jobs,
        past: None,
        ended: Pace::new(STORE_PAUSE),
        events: Pace::new(STORE_PAUSE / 2),
        obstacles: Pace::new(STORE_PAUSE),
        job: Pace::new(STORE_PAUSE / 2),
        tasks: Pace::new(STORE_PAUSE / 2),
        output: Pace::new(STORE_PAUSE),
        usage: Pace::new(STORE_PAUSE),
    };
    let hand_out = async {
        while let Some(ask) = asks.recv().await {
            match ask {
                Ask::Look(wanted) => {
                    focus.send_replace(wanted);
                }
                // Both ends are in this function.
                Ask::Do(action) => {
                    open.fetch_add(1, Ordering::SeqCst);
                    drop(actions.send(action));
                }
                Ask::Path(key) => drop(paths.send(key)),
            }
        }
    };
    let last_error = RefCell::new(None);
    let done = |error: Option<String>| {
        open.fetch_sub(1, Ordering::SeqCst);
        last_error.replace(error);
    };
    let acting = act_one_by_one(&dir, tx, to_do, &acted, done);
    tokio::pin!(acting);
    tokio::select! {
        () = hand_out => {}
        () = front.run(&acted.front) => {}
        () = &mut acting => {}
        () = find_paths(&dir, tx, to_find) => {}
        () = back.run(focused.clone(), &acted.store) => {}
        () = watch_queues(Link::new(&dir), tx, &acted.queues) => {}
        () = watch_problems(Link::new(&dir), tx, &acted.problems) => {}
        () = log::watch(Link::new(&dir), tx, focused) => {}
    }
    // The task then ends after the last confirmed action.
    drop(actions);
    if open.load(Ordering::SeqCst) == 0 {
        return None;
    }
    acting.await;
    last_error.take()
}

/// Notifies the parts that query again immediately after an action.
#[derive(Clone, Default)]
struct Acted {
    front: Arc<Notify>,
    store: Arc<Notify>,
    queues: Arc<Notify>,
    problems: Arc<Notify>,
}

impl Acted {
    fn tell(&self) {
        for one in [&self.front, &self.store, &self.queues, &self.problems] {
            one.notify_one();
        }
    }
}

/// Uses its own connection: the server reads output of failed tasks from their workers, which may
/// take seconds.
async fn watch_problems(mut link: Link, tx: &Sender<Message>, acted: &Notify) {
    let mut pace = Pace::new(STORE_PAUSE);
    loop {
        let found = match link.get().await {
            Ok(client) => pace.ask(client.problems(None)).await,
            Err(error) => Err(error),
        };
        match found {
            Ok(Some(found)) => {
                let rows = problems::rows(&found.problems, now_ns());
                tell(tx, News::Problems(rows));
            }
            Ok(None) => {}
            // The thread that queries the jobs reports the loss.
            Err(_) => link.client = None,
        }
        tokio::select! {
            () = acted.notified() => pace.hurry(),
            () = tokio::time::sleep(CONNECT_PAUSE) => {}
        }
    }
}

/// Uses its own connection: the reply may wait for a batch system.
async fn watch_queues(mut link: Link, tx: &Sender<Message>, acted: &Notify) {
    loop {
        let queues = match link.get().await {
            Ok(client) => live::queues(client).await,
            Err(error) => Err(error),
        };
        match queues {
            Ok(queues) => tell(tx, News::Queues(queues)),
            Err(_) => link.client = None,
        }
        tokio::select! {
            () = acted.notified() => {}
            () = tokio::time::sleep(STORE_PAUSE) => {}
        }
    }
}

/// Performs actions on connections of their own. A reply comes after the server has written to its
/// disk; the display continues meanwhile. A connection that has been idle since the last action may
/// lead to a server that has ended.
async fn act_one_by_one(
    dir: &ServerDir,
    tx: &Sender<Message>,
    mut actions: UnboundedReceiver<Action>,
    acted: &Acted,
    done: impl Fn(Option<String>),
) {
    while let Some(action) = actions.recv().await {
        let (text, is_done) = match act_patiently(&mut Link::new(dir), tx, action).await {
            Ok(text) => (text, true),
            Err(error) => (error.text().unwrap_or_default(), false),
        };
        let line = clean(text.lines().next().unwrap_or_default());
        done((!is_done).then(|| line.clone()));
        tell(tx, News::Told(line));
        acted.tell();
    }
}

/// Waits as long as an action takes, and announces a slow one.
async fn act_patiently(link: &mut Link, tx: &Sender<Message>, action: Action) -> CliResult<String> {
    let doing = async {
        match link.get().await {
            Ok(client) => act(client, action).await,
            Err(_) => Err(CliError::new(
                "the server does not answer; nothing was done",
            )),
        }
    };
    tokio::pin!(doing);
    if let Ok(done) = tokio::time::timeout(ACTION_PATIENCE, &mut doing).await {
        return done;
    }
    let text = "the server is slow to answer; it may be waiting for its disk";
    tell(tx, News::Told(text.to_owned()));
    doing.await
}

/// Finds files for the clipboard.
async fn find_paths(dir: &ServerDir, tx: &Sender<Message>, mut keys: UnboundedReceiver<LogKey>) {
    while let Some(key) = keys.recv().await {
        let found = match Link::new(dir).get().await {
            Ok(client) => path(client, key).await,
            Err(error) => Err(error),
        };
        let news = match found {
            Ok(path) => News::Path(path),
            Err(error) => News::Told(clean(&error.text().unwrap_or_default())),
        };
        tell(tx, news);
    }
}

/// Reads the state that the server holds in memory.
struct Front<'a> {
    link: Link,
    tx: &'a Sender<Message>,
    /// The current jobs, for the tasks that query details of them.
    seen: watch::Sender<Vec<JobRow>>,
    everything: Pace,
}

impl Front<'_> {
    async fn run(mut self, acted: &Notify) {
        loop {
            let pause = match self.look().await {
                Ok(()) => LOOK_PAUSE / 3,
                Err(error) => {
                    self.link.client = None;
                    let why = error.text().unwrap_or_default();
                    let why = clean(why.lines().next().unwrap_or_default());
                    tell(self.tx, News::Trouble(Some(format!("no server: {why}"))));
                    CONNECT_PAUSE
                }
            };
            tokio::select! {
                () = acted.notified() => self.everything.hurry(),
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    async fn look(&mut self) -> CliResult<()> {
        let client = self.link.get().await?;
        let snapshot = self.everything.ask(live::snapshot(client, now_ns()));
        if let Some(snapshot) = snapshot.await? {
            self.seen.send_replace(snapshot.jobs.clone());
            tell(self.tx, News::Snapshot(Box::new(snapshot)));
        }
        Ok(())
    }
}

/// Reads the store, and the state of single jobs.
struct Back<'a> {
    link: Link,
    tx: &'a Sender<Message>,
    jobs: watch::Receiver<Vec<JobRow>>,
    /// When the first task started, and from when on the past has been read.
    past: Option<(i64, i64)>,
    ended: Pace,
    events: Pace,
    obstacles: Pace,
    job: Pace,
    tasks: Pace,
    output: Pace,
    usage: Pace,
}

impl Back<'_> {
    async fn run(mut self, mut focused: watch::Receiver<Focus>, acted: &Notify) {
        let mut focus = Focus::default();
        loop {
            let pause = match self.look(&focus).await {
                Ok(()) => STORE_TICK,
                Err(_) => {
                    // The other connection tells.
                    self.link.client = None;
                    CONNECT_PAUSE
                }
            };
            tokio::select! {
                changed = focused.changed() => match changed {
                    Ok(()) => {
                        let wanted = focused.borrow_and_update().clone();
                        if wanted.job != focus.job {
                            self.job.hurry();
                        }
                        if wanted.tasks != focus.tasks {
                            self.tasks.hurry();
                        }
                        let task_of = |focus: &Focus| focus.log.map(|(key, _)| (key.job, key.task));
                        if task_of(&wanted) != task_of(&focus) {
                            self.usage.hurry();
                        }
                        self.output.hurry();
                        focus = wanted;
                    }
                    Err(_) => return,
                },
                () = acted.notified() => {
                    self.job.hurry();
                    self.tasks.hurry();
                    self.events.hurry();
                    self.obstacles.hurry();
                }
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Runs the queries that are due; queries that the user waits for come first.
    async fn look(&mut self, focus: &Focus) -> CliResult<()> {
        let (client, tx, now) = (self.link.get().await?, self.tx, now_ns());
        if let Some(wanted) = focus.tasks.clone() {
            let page = tasks::of_server(client, wanted, now);
            if let Some(page) = self.tasks.ask(page).await? {
                tell(tx, News::Tasks(Box::new(page)));
            }
        }
        if let Some((key, _)) = focus.log {
            let used = usage::of_server(client, key.job, key.task);
            if let Some(used) = self.usage.ask(used).await? {
                tell(tx, News::Usage(Box::new(used)));
            }
        }
        if let Some(job) = focus.job {
            if let Some(view) = self.job.ask(live_job(client, job, now)).await? {
                tell(tx, News::Job(Box::new(view)));
            }
            if let Some(task) = focus.task
                && let Some(output) = self.output.ask(output_tail(client, job, task)).await?
            {
                tell(tx, News::Output(Box::new(output)));
            }
        }
        if let Some(events) = self.events.ask(live::events(client, now)).await? {
            tell(tx, News::Events(events));
        }
        let jobs = self.jobs.borrow().clone();
        let obstacles = self.obstacles.ask(obstacle::obstacles(client, &jobs));
        if let Some(obstacles) = obstacles.await? {
            tell(tx, News::Obstacles(obstacles));
        }
        if let Some(ended) = self.ended.ask(live::ended(client, now)).await? {
            tell(tx, News::Ended(ended));
        }
        match self.past {
            None => {
                let first = past::first_start(client).await?.unwrap_or(now);
                let from = first.max(now - RECENT_NS);
                let steps = past::past(client, (from, now), PAST_STEPS).await?;
                tell(tx, News::Past(steps));
                self.past = Some((first, from));
            }
            // This query reads all tasks of a job, so it runs only on request.
            Some((first, from)) if focus.is_long && first < from => {
                let steps = past::past(client, (first, from), PAST_STEPS).await?;
                tell(tx, News::Past(steps));
                self.past = Some((first, first));
            }
            Some(_) => {}
        }
        Ok(())
    }
}

/// Details of a job, and information that only a running server has: why none of its tasks run, and
/// the parameters of its failed tasks.
async fn live_job(client: &mut Client, job: u32, now_ns: i64) -> CliResult<JobView> {
    let mut view = job_view(client, job, now_ns).await?;
    let found = client.job_list(Selector::Ids(IdArray::single(job)).to_message());
    if let Some(summary) = found.await?.into_iter().next() {
        view.waits = situation::reason(client, &[summary])
            .await?
            .map(|why| clean(&why));
    }
    let failed: BTreeSet<u32> = view.failures.iter().map(|failure| failure.task).collect();
    if failed.is_empty() {
        return Ok(view);
    }
    let ids = IdArray::from_sorted(failed).unwrap_or_default();
    let page = client::TaskPage {
        job: Some(client::task_page::Job::Id(job)),
        tasks: Some(array_to_message(&ids)),
        ..client::TaskPage::default()
    };
    let page = client.task_page(page).await?;
    let params = page
        .tasks
        .iter()
        .map(|task| (task.id, clean(&params_text(&task.params))));
    let params: BTreeMap<u32, String> = params.collect();
    for failure in &mut view.failures {
        failure.params = params.get(&failure.task).cloned().unwrap_or_default();
    }
    Ok(view)
}
