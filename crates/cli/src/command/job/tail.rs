//! `hq job tail`: prints the output of running tasks from their workers.
//!
//! Each reader requests the output of one task over a separate connection. The server delays the
//! reply until there is output. With `--follow`, the command also watches the job and reads tasks
//! as they start. Every connection finds the server again after a restart, and readers continue at
//! their position.

mod print;
mod reader;
mod watch;

use std::collections::{BTreeSet, VecDeque};

use hq_core::range::{IdArray, IndexSet};
use hq_protocol::client;
use hq_protocol::common;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::args::global::OutputMode;
use crate::args::job::{StreamArg, TailArgs};
use crate::args::task::TaskStateArg;
use crate::client::Client;
use crate::command::missing::{JOBS, Missing};
use crate::command::task::{end_without, warn_about_tasks};
use crate::command::{Context, all_tasks};
use crate::error::{CliError, CliResult};
use crate::parse::selector::{Selector, SingleSelector};
use print::{Printer, Shape};
use reader::{OutputChunk, Reader};
use watch::{JobUpdate, Watch};

/// The maximum number of tasks that `--follow` reads at the same time. Other tasks wait in a queue,
/// and none of their output is missed.
const READERS_MAX: usize = 16;

/// The maximum number of chunks that wait to be printed. Readers wait while the terminal is slow.
const PIECES_MAX: usize = 16;

/// The states of tasks that may have written output.
const STARTED: [TaskStateArg; 5] = [
    TaskStateArg::Running,
    TaskStateArg::Finished,
    TaskStateArg::Failed,
    TaskStateArg::Canceled,
    TaskStateArg::Aborted,
];

/// Runs `hq job tail`.
pub(crate) async fn tail(args: TailArgs, context: &mut Context) -> CliResult<()> {
    let mut client = context.connect().await?;
    let Some((job, is_single)) = find_job(&args, &mut client).await? else {
        return Missing::one().end(JOBS, context);
    };
    let (pieces_tx, pieces) = mpsc::channel(PIECES_MAX);
    let shape = match context.mode() {
        OutputMode::Json => Shape::Json,
        OutputMode::Cli | OutputMode::Quiet if is_single => Shape::Raw,
        OutputMode::Cli | OutputMode::Quiet => Shape::Prefixed(context.colors),
    };
    let mut tail = Tail {
        job,
        printer: Printer::new(job, shape),
        wanted: args.target.tasks.clone().map(UnseenTasks::new),
        readers_max: if args.follow { READERS_MAX } else { 1 },
        args,
        client,
        missing: None,
        seen: BTreeSet::new(),
        queue: VecDeque::new(),
        readers: JoinSet::new(),
        idle: Vec::new(),
        pieces_tx,
    };
    let watch = tail.begin(context).await?;
    tail.run(watch, pieces, context).await
}

/// Returns the job's id and whether exactly one task was selected, or `None` if the job does not
/// exist, which has been reported.
async fn find_job(args: &TailArgs, client: &mut Client) -> CliResult<Option<(u32, bool)>> {
    let job = args.target.job;
    match (client.job(&job.into()).await?, job) {
        (Some(job), _) => {
            let count = match &args.target.tasks {
                Some(ids) => ids.len(),
                None => job.task_count,
            };
            Ok(Some((job.id, count == 1)))
        }
        (None, job) => {
            match job {
                SingleSelector::Last => tracing::error!("No jobs were found"),
                SingleSelector::Id(id) => tracing::error!("Job {id} was not found"),
            }
            Ok(None)
        }
    }
}

struct Tail {
    job: u32,
    args: TailArgs,
    client: Client,
    printer: Printer,
    /// The selected tasks that have not been seen to end. `None` selects the whole job.
    wanted: Option<UnseenTasks>,
    /// The selected tasks that do not exist, after they have been reported.
    missing: Option<Missing>,
    /// The tasks that are being read or have been read.
    seen: BTreeSet<u32>,
    /// The tasks that wait for a reader, and whether to read them from the beginning.
    queue: VecDeque<(u32, bool)>,
    readers: JoinSet<(u32, CliResult<Client>)>,
    readers_max: usize,
    idle: Vec<Client>,
    pieces_tx: mpsc::Sender<OutputChunk>,
}

impl Tail {
    /// Finds the tasks that can be read now. With `--follow`, first starts to watch, so that no
    /// task is missed.
    async fn begin(&mut self, context: &Context) -> CliResult<Option<Watch>> {
        let watch = if self.args.follow {
            let jobs = Selector::one(self.job).to_message();
            let mut watch = Watch::start(context.connect().await?, jobs);
            // The watch starts with its first update. It reports later ends, and the list below
            // contains earlier ones.
            let first = watch.next().await?;
            Some((watch, first.update))
        } else {
            None
        };
        self.list(&STARTED, false).await?;
        let is_known = self.wanted.as_ref().is_none_or(|wanted| !wanted.is_empty());
        let nothing = self.queue.is_empty() && !self.args.follow && is_known;
        if nothing {
            tracing::warn!("No selected task of job {} has started", self.job);
        }
        let Some((watch, first)) = watch else {
            return Ok(None);
        };
        self.on_update(&first).await?;
        Ok((!first.done).then_some(watch))
    }

    /// Queues the selected tasks in these states. With `from_start`, they are read from the
    /// beginning.
    async fn list(&mut self, states: &[TaskStateArg], from_start: bool) -> CliResult<()> {
        let mut next = Some(client::TaskPage {
            tasks: self.args.target.tasks.as_ref().map(Into::into),
            states: crate::args::task::states_to_message(Some(states)),
            ..all_tasks(self.job)
        });
        let mut missing = Missing::default();
        loop {
            let page = match self.client.next_page(&mut next).await {
                Ok(Some(page)) => page,
                Ok(None) => break,
                Err(error) if self.args.follow && self.client.may_return() => {
                    self.client.come_back_quietly(error).await?;
                    continue;
                }
                Err(error) => return Err(error),
            };
            missing.add(page.not_found.as_ref());
            if let Some(wanted) = &mut self.wanted {
                wanted.forget(page.not_found.as_ref());
            }
            for task in &page.tasks {
                if task.paths.is_some() {
                    self.add(task.id, from_start);
                } else {
                    // The task ended without having started.
                    self.forget(task.id);
                }
            }
        }
        if self.missing.is_none() {
            warn_about_tasks(&missing, self.job);
            self.missing = Some(missing);
        }
        Ok(())
    }

    fn add(&mut self, task: u32, from_start: bool) {
        if self.is_wanted(task) && self.seen.insert(task) {
            self.queue.push_back((task, from_start));
        }
    }

    fn is_wanted(&self, task: u32) -> bool {
        self.wanted
            .as_ref()
            .is_none_or(|wanted| wanted.contains(task))
    }

    fn forget(&mut self, task: u32) {
        if let Some(wanted) = &mut self.wanted {
            wanted.remove(task);
        }
    }

    async fn run(
        mut self,
        mut watch: Option<Watch>,
        mut pieces: mpsc::Receiver<OutputChunk>,
        context: &mut Context,
    ) -> CliResult<()> {
        loop {
            self.start_readers(context).await?;
            let all_seen = self.wanted.as_ref().is_some_and(UnseenTasks::is_empty);
            if self.readers.is_empty() && (watch.is_none() || all_seen) {
                break;
            }
            tokio::select! {
                // Chunks that have been read are printed before other events are handled.
                biased;
                Some(piece) = pieces.recv() => self.printer.print(&piece, &mut context.out)?,
                Some(ended) = self.readers.join_next() => {
                    let (task, result) = ended.map_err(|error| {
                        CliError::caused("Cannot read the output of a task", &error)
                    })?;
                    self.idle.push(result?);
                    while let Ok(piece) = pieces.try_recv() {
                        self.printer.print(&piece, &mut context.out)?;
                    }
                    self.printer.end(task, &mut context.out)?;
                    self.forget(task);
                }
                news = next(&mut watch) => {
                    let JobUpdate { update, is_back } = news?;
                    // Tasks that ended while the server was away were not reported. A forgotten job
                    // has no tasks to list.
                    if is_back && !update.jobs.is_empty() {
                        self.list(&STARTED, true).await?;
                    }
                    self.on_update(&update).await?;
                    if update.done {
                        watch = None;
                    }
                }
            }
        }
        let missing = self.missing.unwrap_or_default();
        end_without((missing, self.job), &mut self.client, context).await
    }

    async fn start_readers(&mut self, context: &Context) -> CliResult<()> {
        while self.readers.len() < self.readers_max {
            let Some((task, from_start)) = self.queue.pop_front() else {
                break;
            };
            let client = match self.idle.pop() {
                Some(client) => client,
                None => self.connect(context).await?,
            };
            let channels = match self.args.channel {
                None => vec![StreamArg::Stdout, StreamArg::Stderr],
                Some(channel) => vec![channel],
            };
            let reader = Reader {
                client,
                job: self.job,
                task,
                channels,
                last_lines: (!from_start).then_some(self.args.lines),
                follow: self.args.follow,
                pieces: self.pieces_tx.clone(),
                known: None,
            };
            self.readers
                .spawn(async move { (task, reader.run().await) });
        }
        Ok(())
    }

    /// Returns a connection for a reader.
    async fn connect(&mut self, context: &Context) -> CliResult<Client> {
        match context.connect().await {
            Err(error) if self.args.follow => {
                self.client.come_back_quietly(error).await?;
                context.connect().await
            }
            connected => connected,
        }
    }

    async fn on_update(&mut self, update: &client::WatchUpdate) -> CliResult<()> {
        for ended in update.jobs.iter().flat_map(|job| &job.ended_tasks) {
            if ended.paths.is_some() {
                self.add(ended.id, true);
            } else if self.wanted.is_some() {
                for task in ended.id..=ended.id.saturating_add(ended.others) {
                    if !self.seen.contains(&task) {
                        self.forget(task);
                    }
                }
            }
        }
        // The job may have been forgotten while the server was away.
        if update.jobs.is_empty() {
            return Ok(());
        }
        self.list(&[TaskStateArg::Running], true).await
    }
}

/// The selected tasks that have not been seen to end. They are stored as ranges, so the size
/// depends on the number of ranges.
struct UnseenTasks {
    ids: IdArray,
    /// The positions in `ids` of the remaining tasks.
    left: IndexSet,
}

impl UnseenTasks {
    fn new(ids: IdArray) -> Self {
        let mut left = IndexSet::new();
        left.insert_range(0, ids.len());
        Self { ids, left }
    }

    fn contains(&self, task: u32) -> bool {
        let position = self.ids.position(task);
        position.is_some_and(|position| self.left.contains(position))
    }

    fn remove(&mut self, task: u32) {
        if let Some(position) = self.ids.position(task) {
            self.left.remove(position);
        }
    }

    /// Removes ids that do not exist. Each range of missing ids lies within one of these ranges.
    fn forget(&mut self, missing: Option<&common::IdArray>) {
        for range in missing.iter().flat_map(|missing| &missing.ranges) {
            if let Some(position) = self.ids.position(range.first) {
                let end = position.saturating_add(range.count);
                self.left.remove_range(position, end);
            }
        }
    }

    const fn is_empty(&self) -> bool {
        self.left.is_empty()
    }
}

/// Returns the next change if the job is watched.
async fn next(watch: &mut Option<Watch>) -> CliResult<JobUpdate> {
    match watch {
        Some(watch) => watch.next().await,
        None => std::future::pending().await,
    }
}
