//! Sends the questions of the screen to a server or a journal.
//!
//! The feed uses several connections, because some answers wait for a batch system or for workers.
//! Each action uses a separate connection, because its answer waits for the server's disk. After an
//! answer from the store, the feed does not repeat the question for a multiple of the time that the
//! answer took. The dashboard therefore uses only a small part of the server's time.

use std::path::Path;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use hq_protocol::access::ServerDir;
use hq_protocol::client::AskProblems;
use hq_store::reader::run;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::watch;

use super::act::{act, output_tail, path};
use super::app::{App, Focus, News, Replay, Topic};
use super::log::Position;
use super::model::{LogKey, TasksOf};
use super::question::Action;
use super::{job, read};
use crate::client::{Client, LimitList, ServerInfo};
use crate::command::Context;
use crate::error::{Caused as _, CliError, CliResult};
use crate::source::journal::JournalFile;
use crate::source::problems::{self, is_open};
use crate::source::{self, Ask, Snapshot};
use crate::text::clean;

/// The minimum time between two questions about the state in memory, and about the store.
const LOOK_PAUSE: Duration = Duration::from_millis(450);
const STORE_PAUSE: Duration = Duration::from_secs(2);
/// The pause after an answer from the store, as a multiple of the time that the answer took.
/// Together, such questions use less than three percent of the server's time.
const COST_FACTOR: u32 = 80;
/// The pause after an answer about all jobs, as a multiple of the time that the answer took. Most
/// of that time is spent in this process. The pause has a maximum.
const LOOK_FACTOR: u32 = 5;
const LOOK_PAUSE_MAX: Duration = Duration::from_secs(2);
/// How long a server may take to answer before it counts as lost.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// The pause after an error, and at the end of an output.
const ERROR_PAUSE: Duration = Duration::from_millis(500);
/// The maximum sleep of a lane. A change of the focus ends it.
const SLEEP_MAX: Duration = Duration::from_secs(3_600);
/// How long an action may take before the screen announces that it is slow.
const ACTION_PATIENCE: Duration = Duration::from_secs(2);
/// The recent part of the history, which has finer steps.
const RECENT_NS: i64 = 600_000_000_000;

impl Topic {
    /// Returns the number of the connection, whether an action changes the answer, and the pause
    /// after an answer that took the given time.
    fn pace(&self, took: Duration) -> (usize, bool, Duration) {
        let of_store = |least: Duration| (took * COST_FACTOR).max(least);
        match self {
            Self::Everything => {
                let pause = (took * LOOK_FACTOR).clamp(LOOK_PAUSE, LOOK_PAUSE_MAX);
                (0, true, pause)
            }
            Self::Problems => (1, true, of_store(STORE_PAUSE)),
            Self::Queues => (2, true, STORE_PAUSE),
            Self::Log(..) | Self::Path(_) => (3, false, ERROR_PAUSE),
            Self::Tasks(_) | Self::Job(_) | Self::Events => (4, true, of_store(STORE_PAUSE / 2)),
            Self::Usage(..) | Self::Output(..) | Self::Ended => (4, false, of_store(STORE_PAUSE)),
            Self::Past(_) => (4, false, SLEEP_MAX),
        }
    }

    /// Returns the time in a journal and the number of completed actions, which the answer depends
    /// on.
    fn moment(&self, focus: &Focus) -> Moment {
        let (_, is_changed, _) = self.pace(Duration::ZERO);
        let at_ns = focus.at_ns.filter(|_| !matches!(self, Self::Past(_)));
        (at_ns, if is_changed { focus.acted } else { 0 })
    }
}

type Moment = (Option<i64>, u32);
type Question = (Topic, Moment);

fn news(change: impl FnOnce(&mut App) + Send + 'static) -> Option<News> {
    Some(Box::new(change))
}

fn tell(tx: &Sender<News>, news: News) {
    // If the dashboard has ended, the process is ending.
    let _ = tx.send(news);
}

fn now_ns() -> i64 {
    i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(0)
}

fn first_line(text: &str) -> String {
    clean(text.lines().next().unwrap_or_default())
}

fn error_line(error: &CliError) -> String {
    first_line(&error.text().unwrap_or_default())
}

/// A server. The connection is opened when it is needed, and again after it broke.
struct Server {
    dir: ServerDir,
    client: Option<Client>,
    log: Option<Position>,
    /// When the first task started, and the time from which the past has been read.
    past: Option<(i64, i64)>,
}

/// A source of answers.
enum Source {
    Server(Box<Server>),
    /// A journal, and its first and last moments.
    Journal(JournalFile, (i64, i64)),
}

impl Source {
    async fn answer(&mut self, topic: &Topic, at_ns: Option<i64>) -> CliResult<Option<News>> {
        match self {
            Self::Server(server) => server.answer(topic).await,
            Self::Journal(file, span) => {
                of_journal(file, *span, topic, at_ns.unwrap_or(span.1)).await
            }
        }
    }
}

async fn of_journal(
    file: &mut JournalFile,
    span: (i64, i64),
    topic: &Topic,
    at_ns: i64,
) -> CliResult<Option<News>> {
    Ok(match topic {
        Topic::Everything => {
            let snapshot = file.snapshot(at_ns).await?;
            let queues = file.queues(at_ns).await?;
            let ended = source::ended(file, at_ns).await?;
            let found = problems::find(&snapshot, &queues, &ended, None);
            let found = found.into_iter().map(problems::problem).collect();
            news(move |app| {
                app.on_snapshot(snapshot);
                (app.queues, app.ended, app.problems) = (Some(queues), ended, Some(found));
            })
        }
        Topic::Job(job) => {
            let view = job::view(file, *job, at_ns).await?;
            news(move |app| app.on_job(view))
        }
        Topic::Past(_) => {
            let steps = read::past(file, span).await?;
            news(move |app| app.history.prepend(&steps))
        }
        Topic::Tasks(wanted) => {
            let page = read::started_tasks(file, wanted.clone(), at_ns).await?;
            news(move |app| app.on_tasks(page))
        }
        Topic::Events => {
            let events = file.ask(run::events(at_ns)).await?;
            news(move |app| app.events = events)
        }
        // A journal has no answer to these, or `Everything` includes it.
        Topic::Problems | Topic::Queues | Topic::Log(..) | Topic::Path(_) => None,
        Topic::Usage(..) | Topic::Output(..) | Topic::Ended => None,
    })
}

impl Server {
    const fn new(dir: ServerDir) -> Self {
        Self {
            dir,
            client: None,
            log: None,
            past: None,
        }
    }

    async fn get(&mut self) -> CliResult<&mut Client> {
        let client = match self.client.take() {
            Some(client) => client,
            None => Client::connect(&self.dir).await?,
        };
        Ok(self.client.insert(client))
    }

    /// Returns the new lines of an output. The view of the output shows an error.
    async fn read_log(&mut self, wanted: (LogKey, u32)) -> Option<News> {
        let known = self.log.take();
        let known = known.filter(|log| (log.key, log.opening) == wanted);
        let mut log = known.unwrap_or_else(|| Position::new(wanted));
        let part = match self.get().await {
            Ok(client) => log.read(client).await,
            Err(error) => Err(error),
        };
        let part = part.unwrap_or_else(|error| {
            self.client = None;
            log.say(error_line(&error))
        });
        self.log = Some(log);
        part.and_then(|part| news(move |app| app.on_log(part)))
    }

    async fn answer(&mut self, topic: &Topic) -> CliResult<Option<News>> {
        if let Topic::Log(key, opening) = topic {
            return Ok(self.read_log((*key, *opening)).await);
        }
        let now = now_ns();
        let client = self.get().await?;
        Ok(match topic {
            Topic::Everything => {
                let snapshot = Snapshot::of_server(client, now).await?;
                let limits = client.ask(LimitList).await?.limits;
                news(move |app| {
                    app.on_snapshot(snapshot);
                    app.limits = limits;
                })
            }
            Topic::Problems => {
                let mut found = client.ask(AskProblems::default()).await?.problems;
                found.sort_by_key(|problem| !is_open(problem));
                news(move |app| app.problems = Some(found))
            }
            Topic::Queues => {
                let queues = read::queues(client).await?;
                news(move |app| app.queues = Some(queues))
            }
            Topic::Path(key) => {
                let found = path(client, *key).await;
                let found = found.map_err(|error| error_line(&error));
                news(move |app| app.on_path(found))
            }
            Topic::Tasks(wanted) => {
                let wanted = wanted.clone();
                let page = match wanted.of {
                    TasksOf::Job(job) => read::tasks_of_job(client, job, wanted).await?,
                    TasksOf::Worker(_) => read::started_tasks(client, wanted, now).await?,
                };
                news(move |app| app.on_tasks(page))
            }
            Topic::Usage(job, task) => {
                let view = read::usage(client, *job, *task).await?;
                news(move |app| app.usage.on_view(view))
            }
            Topic::Job(job) => {
                let view = job::of_server(client, *job, now).await?;
                news(move |app| app.on_job(view))
            }
            Topic::Output(job, task) => {
                let output = output_tail(client, *job, *task).await?;
                news(move |app| app.output = Some(output))
            }
            Topic::Past(is_long) => return self.read_past(*is_long, now).await,
            Topic::Events => {
                let events = Ask::ask(client, run::events(now)).await?;
                news(move |app| app.events = events)
            }
            Topic::Ended => {
                let ended = source::ended(client, now).await?;
                news(move |app| app.ended = ended)
            }
            Topic::Log(..) => None,
        })
    }

    /// Returns the history before the known history.
    async fn read_past(&mut self, is_long: bool, now: i64) -> CliResult<Option<News>> {
        let past = self.past;
        let client = self.get().await?;
        let (first, known) = match past {
            Some(past) => past,
            None => {
                let first = client.ask_one(run::first_start()).await?.flatten();
                (first.unwrap_or(now), now)
            }
        };
        // This query reads all tasks, so older parts are read only on request.
        let recent = if is_long { first } else { now - RECENT_NS };
        let from = recent.max(first);
        if from >= known {
            return Ok(None);
        }
        let steps = read::past(client, (from, known)).await?;
        self.past = Some((first, from));
        Ok(news(move |app| app.history.prepend(&steps)))
    }
}

/// Repeats the questions of one connection, one at a time.
struct Lane<'a> {
    /// The number of the connection. `None` if the lane asks all questions.
    number: Option<usize>,
    source: Source,
    tx: &'a Sender<News>,
    focus: watch::Receiver<Focus>,
    /// The answered questions, each with the time of the next repetition.
    asked: Vec<(Question, Instant)>,
}

impl Lane<'_> {
    async fn run(mut self) {
        loop {
            let focus = self.focus.borrow_and_update().clone();
            let pause = match self.look(&focus).await {
                Ok(()) => self.rest(),
                Err(error) => {
                    let mut trouble = error_line(&error);
                    if let Source::Server(server) = &mut self.source {
                        server.client = None;
                        trouble = format!("no server: {trouble}");
                    }
                    // Only one lane reports the loss.
                    if self.number.is_none_or(|number| number == 0) {
                        tell(self.tx, Box::new(|app| app.trouble = Some(trouble)));
                    }
                    ERROR_PAUSE
                }
            };
            tokio::select! {
                changed = self.focus.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(pause) => {}
            }
        }
    }

    /// Sends the questions that are new or due.
    async fn look(&mut self, focus: &Focus) -> CliResult<()> {
        let number = self.number;
        let own = |topic: &&Topic| number.is_none_or(|one| one == topic.pace(Duration::ZERO).0);
        let own = focus.topics.iter().filter(own);
        let wanted: Vec<Question> = own
            .map(|topic| (topic.clone(), topic.moment(focus)))
            .collect();
        self.asked.retain(|(question, _)| wanted.contains(question));
        for question in wanted {
            let (start, topic) = (Instant::now(), &question.0);
            let known = self.asked.iter().position(|(asked, _)| *asked == question);
            if known.is_some_and(|at| start < self.asked[at].1) {
                continue;
            }
            let answer = self.source.answer(topic, focus.at_ns);
            let answer = tokio::time::timeout(ANSWER_TIMEOUT, answer).await;
            let answer = answer.map_err(|_| CliError::new("The server does not answer"))?;
            if let Some(news) = answer? {
                tell(self.tx, news);
            }
            let (.., mut pause) = topic.pace(start.elapsed());
            if let (Topic::Log(..), Source::Server(server)) = (topic, &self.source)
                && server.log.as_ref().is_some_and(|log| log.is_hurried)
            {
                pause = Duration::ZERO;
            }
            known.map(|at| self.asked.swap_remove(at));
            self.asked.push((question, Instant::now() + pause));
        }
        Ok(())
    }

    /// Returns how long to wait until the next question is due. A journal does not change.
    fn rest(&self) -> Duration {
        let next = self.asked.iter().map(|(.., due)| *due).min();
        let next = next.filter(|_| matches!(self.source, Source::Server(_)));
        next.map_or(SLEEP_MAX, |due| {
            due.saturating_duration_since(Instant::now())
        })
    }
}

/// A feed that has been started.
pub(super) struct Feed {
    pub(super) title: String,
    pub(super) replay: Option<Replay>,
    focus: watch::Sender<Focus>,
    actions: UnboundedSender<Action>,
}

impl Feed {
    /// Sends the confirmed actions, and the questions of the screen if they have changed.
    pub(super) fn ask(&self, app: &mut App) {
        app.acting += app.actions.len();
        for action in app.actions.drain(..) {
            // If the receiver has ended, its last message says why.
            let _ = self.actions.send(action);
        }
        let focus = app.focus();
        self.focus.send_if_modified(|known| {
            let is_new = *known != focus;
            *known = focus;
            is_new
        });
    }
}

/// Starts the feed. Returns an error if the source cannot be opened, instead of showing a message
/// on the screen.
pub(super) fn start(
    journal: Option<&Path>,
    context: &Context,
    tx: Sender<News>,
) -> CliResult<Feed> {
    let runtime = crate::runtime::of_client()?;
    let (source, title, replay) = if let Some(path) = journal {
        let mut file = JournalFile::open(&crate::command::journal::file_of(path)?)?;
        let (from_ns, to_ns) = runtime.block_on(file.span())?;
        let replay = Replay {
            from_ns,
            to_ns,
            at_ns: to_ns,
            is_playing: false,
        };
        let source = Source::Journal(file, (from_ns, to_ns));
        (source, path.display().to_string(), Some(replay))
    } else {
        let mut server = Server::new(context.server_dir()?);
        let info = runtime.block_on(async { server.get().await?.ask(ServerInfo).await })?;
        let title = format!("server {} on {}", info.server_uid, info.client_host);
        (Source::Server(Box::new(server)), clean(&title), None)
    };
    let (focus, focused) = watch::channel(Focus::default());
    let (actions, to_do) = unbounded_channel();
    let work = move || {
        runtime.spawn(end_on_signal(tx.clone()));
        runtime.block_on(feed(source, focused, to_do, &tx));
    };
    std::thread::Builder::new()
        .name("feed".into())
        .spawn(work)
        .caused("Cannot start")?;
    Ok(Feed {
        title,
        replay,
        focus,
        actions,
    })
}

/// Ends the dashboard on a signal, so that SIGTERM also restores the terminal.
async fn end_on_signal(tx: Sender<News>) {
    let (terminate, hangup) = (SignalKind::terminate(), SignalKind::hangup());
    let (Ok(mut terminate), Ok(mut hangup)) = (signal(terminate), signal(hangup)) else {
        return;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    tell(&tx, Box::new(|app| app.has_quit = true));
}

/// Runs the feed until the dashboard has ended.
async fn feed(
    source: Source,
    focus: watch::Receiver<Focus>,
    actions: UnboundedReceiver<Action>,
    tx: &Sender<News>,
) {
    let lane = |number, source| {
        let lane = Lane {
            number,
            source,
            tx,
            focus: focus.clone(),
            asked: Vec::new(),
        };
        lane.run()
    };
    let Source::Server(server) = source else {
        return lane(None, source).await;
    };
    let lane = |number| {
        let server = Server::new(server.dir.clone());
        lane(Some(number), Source::Server(Box::new(server)))
    };
    let acting = act_one_by_one(&server.dir, tx, actions);
    tokio::join!(acting, lane(0), lane(1), lane(2), lane(3), lane(4));
}

/// Performs actions on separate connections. A reply arrives after the server has written to its
/// disk, and the display continues meanwhile. A connection that has been idle since the last action
/// may lead to a server that has ended.
async fn act_one_by_one(
    dir: &ServerDir,
    tx: &Sender<News>,
    mut actions: UnboundedReceiver<Action>,
) {
    while let Some(action) = actions.recv().await {
        let result = act_patiently(dir, tx, action).await;
        let (text, is_done) = match &result {
            Ok(text) => (first_line(text), true),
            Err(error) => (error_line(error), false),
        };
        tell(tx, Box::new(move |app| app.on_act(text, is_done)));
    }
}

/// Waits until an action is done, and announces a slow action.
async fn act_patiently(dir: &ServerDir, tx: &Sender<News>, action: Action) -> CliResult<String> {
    let doing = async {
        let mut client = Client::connect(dir)
            .await
            .map_err(|_| CliError::new("the server does not answer; nothing was done"))?;
        act(&mut client, action).await
    };
    tokio::pin!(doing);
    if let Ok(done) = tokio::time::timeout(ACTION_PATIENCE, &mut doing).await {
        return done;
    }
    let text = "the server is slow to answer; it may be waiting for its disk";
    tell(tx, Box::new(|app| app.told = Some(text.to_owned())));
    doing.await
}
