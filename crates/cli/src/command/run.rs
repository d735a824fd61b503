//! `hq run`: a server, a worker and a client in one process, without any configuration.
//!
//! ```text
//!   started process ── front (waits, passes signals on, kills what is left)
//!        └── this code: embedded server ◀─ worker ─▶ tasks
//!                              ▲ watch
//!                            client ──▶ replay thread ──▶ stdout, stderr
//! ```
//!
//! The output of tasks is captured in files and replayed task by task on a separate thread, so that
//! a slow reader such as a pager never delays the tasks. The first interrupt lets running tasks
//! end, and the second kills them.

use std::ffi::OsString;
use std::path::Path;
use std::time::Instant;

use hq_core::id::JobId;
use hq_core::job::TaskTotals;
use hq_core::template::{SubmitSpec, SubmitTarget};
use hq_core::time::nanos;
use hq_protocol::client;
use hq_server::{EmbeddedConfig, EmbeddedServer};
use hq_spawn::keeper::KeeperContext;
use hq_worker::{Interrupt, ScratchDir, WorkerEnd};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::Context;
use super::submit::{check_file_options, complete, current_dir, dry_run};
use super::worker::start::split_off_keeper;
use crate::args::run::RunArgs;
use crate::args::submit::Destination;
use crate::client::{Client, JobClose};
use crate::error::{Caused as _, CliError, CliResult, exit};
use crate::output::console::error_line;
use crate::output::view::totals;
use crate::parse::selector::Selector;
use crate::signals::Warnings;
use crate::submit::build::build;
use crate::submit::habits::Verb;
use crate::submit::plan::plan;
use crate::submit::skip::OuterDependencies;
use crate::submit::{
    PreparedSubmit, SubmitContext, is_stdin, jobfile, keep_stdin, read_for_tasks, reads_stdin,
};
use crate::version::VERSION;

mod disk_space;
pub(super) mod local;
mod replay;
mod rerun;
mod screen;
mod summary;
mod terminal;

use local::LocalMachine;
use replay::{Replay, ReplayOptions};
use rerun::RerunCommand;
use screen::Screen;
use summary::Summary;

/// The interval of reports about ended tasks. It is short enough to look immediate.
const UPDATE_INTERVAL: std::time::Duration = std::time::Duration::from_millis(50);

/// Signals within this time count as one interrupt, because wrappers such as `timeout` send a
/// signal both to the process and to its group.
const ONE_INTERRUPT: std::time::Duration = std::time::Duration::from_millis(10);

/// How long to wait until the worker has handled an interrupt. It usually takes microseconds. On a
/// very busy machine, it took more than a second, and a task started after the message that no more
/// tasks would start.
const TAKEN_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(5);

/// The maximum number of queued interrupts and other requests.
const REQUESTS_MAX: usize = 8;

/// Runs a job to its end.
pub(super) fn run(args: RunArgs, context: &mut Context) -> CliResult<()> {
    // The child cannot read from a terminal, so the parent reads standard input first.
    let stdin = read_for_tasks(args.stdin, &args.command, Verb::Run)?;
    if reads_stdin(&args.tasks, &args.command) {
        keep_stdin()?;
    }
    if args.dry_run {
        return show(args, stdin, context);
    }
    let keeper = split_off_keeper()?;
    let files = ScratchDir::create_in(&std::env::temp_dir(), "hq-run").map_err(|e| {
        CliError::caused("Cannot create a directory for the output of the tasks", &e)
    })?;
    let (limit, is_ordered) = (args.jobs, !args.unordered);
    let is_file = job_file(&args.command)?.is_some();
    let rerun = RerunCommand::of(std::env::args_os(), &args.command, is_file);
    let prepared = prepare(args, stdin, files.path())?;
    prepared.report();
    // The log level of `hq run` would hide this note.
    if let Some(skipped) = &prepared.skipped {
        error_line(&skipped.to_string());
    }
    let machine = LocalMachine::detect(limit)?;
    machine.check_fits(&prepared.spec)?;
    let runtime = crate::runtime::on_several_threads()?;
    let job = Job {
        prepared,
        machine,
        keeper,
        is_ordered,
        files: files.path(),
        rerun,
    };
    let result = runtime.block_on(execute(job, context));
    runtime.shutdown_background();
    result
}

/// Shows what would run. Like a real run, rejects what could not run on this machine.
fn show(args: RunArgs, stdin: Option<Vec<u8>>, context: &mut Context) -> CliResult<()> {
    let machine = LocalMachine::detect(args.jobs)?;
    // No file is created in this directory.
    let output_dir = std::env::temp_dir().join("hq-run");
    let prepared = prepare(args, stdin, &output_dir)?;
    prepared.report();
    machine.check_fits(&prepared.spec)?;
    let submit_dir = current_dir()?;
    let place = SubmitContext {
        submit_dir: &submit_dir,
        server_uid: None,
        output_dir: Some(&output_dir),
        reads_files: true,
    };
    dry_run::print(&plan(&prepared, place), context)
}

/// The job as it is known before its first task starts.
struct Job<'a> {
    prepared: PreparedSubmit,
    machine: LocalMachine,
    keeper: KeeperContext,
    is_ordered: bool,
    files: &'a Path,
    rerun: Option<RerunCommand>,
}

fn prepare(
    mut args: RunArgs,
    stdin: Option<Vec<u8>>,
    output_dir: &Path,
) -> CliResult<PreparedSubmit> {
    let submit_dir = current_dir()?;
    let place = SubmitContext {
        submit_dir: &submit_dir,
        server_uid: None,
        output_dir: Some(output_dir),
        reads_files: true,
    };
    if let Some(path) = job_file(&args.command)? {
        check_file_options(&args.command, FILE_OPTIONS)?;
        let prepared = jobfile::load(path, Destination::default(), place)?;
        return skip_if(args.tasks.skip_done, prepared);
    }
    (args.tasks.command, args.tasks.stdin) = (args.command, stdin);
    let new_job = Destination::default();
    let request = complete(Verb::Run, args.tasks, args.directives, new_job)?;
    let prepared = skip_if(request.options.skip_done, build(request, place)?)?;
    if let Some(part) = prepared.spec.limits.uses.first() {
        let text = format!("`hq run` has no server with a limit {:?}", part.name);
        return Err(CliError::new(text)
            .with_help("`--max-running` and `--max-rate` limit the tasks of this run"));
    }
    Ok(prepared)
}

fn skip_if(skips_done: bool, prepared: PreparedSubmit) -> CliResult<PreparedSubmit> {
    if skips_done {
        prepared.skip_done(&OuterDependencies::default())
    } else {
        Ok(prepared)
    }
}

/// The options of `hq run` that may be used with a job file.
const FILE_OPTIONS: &str =
    "--jobs -j --unordered --skip-done --dry-run --output-mode --colors --debug --server-dir";

/// Returns the job file if the only argument ends in `.toml`, `.yaml` or `.json`, or has such
/// content.
fn job_file(command: &[OsString]) -> CliResult<Option<&Path>> {
    if let [path] = command
        && (is_stdin(Path::new(path)) || jobfile::Format::is_certain(Path::new(path)))
    {
        return Ok(Some(Path::new(path)));
    }
    jobfile::in_command("run", command)
}

async fn execute(job: Job<'_>, context: &mut Context) -> CliResult<()> {
    let start = Instant::now();
    let mut requests = requests()?;
    let screen = Screen::new(context);
    let options = ReplayOptions {
        dir: job.files.to_path_buf(),
        is_ordered: job.is_ordered,
        is_printed: context.mode() != crate::args::global::OutputMode::Json,
    };
    let replay = Replay::start(
        options,
        &job.prepared.spec.body,
        screen.clone(),
        requests.sender.clone(),
    )?;
    let mut server = EmbeddedServer::start(EmbeddedConfig {
        version: VERSION.to_owned(),
        idle_timeout: None,
    })
    .caused("Cannot start the server")?;
    let templates = job.prepared.spec.body.templates();
    let has_outputs = templates
        .iter()
        .any(|template| !template.files.outputs.is_empty());
    let mut local =
        LocalJob::start(&mut server, &job.prepared.spec, job.machine, job.keeper).await?;
    let followed = local
        .follow(job.prepared.spec, &mut requests, &screen, &replay)
        .await;
    let ended = local.end().await;
    server.shutdown().await;
    let replayed = replay.finish();
    screen.finish();
    let counts = followed?;
    let failures = replayed?;
    ended?;
    let interrupted = requests.is_interrupted;
    let mut summary = Summary {
        counts,
        failures,
        elapsed: start.elapsed(),
        interrupted,
        rerun: None,
    };
    summary.rerun = job.rerun.and_then(|rerun| {
        rerun.command(
            &summary.failures.undone,
            summary.counts.total(),
            has_outputs,
        )
    });
    summary.print(context)?;
    match summary.exit_code() {
        exit::OK => Ok(()),
        code => {
            context.flush()?;
            Err(CliError::AlreadyReported(code))
        }
    }
}

/// A request to stop that arrives while the tasks run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum StopReason {
    /// A signal arrived.
    Interrupt,
    /// The reader of the tasks' output has closed it.
    OutputClosed,
    /// The disk has no space for the tasks' output.
    DiskFull,
}

struct Requests {
    sender: mpsc::Sender<StopReason>,
    receiver: mpsc::Receiver<StopReason>,
    is_interrupted: bool,
}

/// Listens for signals.
fn requests() -> CliResult<Requests> {
    let listen = |kind| signal(kind).caused("Cannot handle signals");
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hangup = listen(SignalKind::hangup())?;
    let mut warnings = Warnings::listen().caused("Cannot handle signals")?;
    let (sender, receiver) = mpsc::channel(REQUESTS_MAX);
    let signals = sender.clone();
    tokio::spawn(async move {
        loop {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
                _ = hangup.recv() => {}
                () = warnings.recv() => {}
            }
            // Signals that arrive shortly after the first one belong to it.
            tokio::time::sleep(ONE_INTERRUPT).await;
            for signal in [&mut interrupt, &mut terminate, &mut hangup] {
                // A timeout means that no further signal is pending.
                let _ = tokio::time::timeout(std::time::Duration::ZERO, signal.recv()).await;
            }
            if signals.send(StopReason::Interrupt).await.is_err() {
                return;
            }
        }
    });
    Ok(Requests {
        sender,
        receiver,
        is_interrupted: false,
    })
}

/// A submitted job, and the worker that runs it.
struct LocalJob {
    id: u32,
    client: Client,
    /// The connection for all other requests. The watch uses a separate connection.
    commander: Client,
    worker: Option<JoinHandle<WorkerEnd>>,
    control: mpsc::Sender<Interrupt>,
}

impl LocalJob {
    async fn start(
        server: &mut EmbeddedServer,
        spec: &SubmitSpec,
        machine: LocalMachine,
        keeper: KeeperContext,
    ) -> CliResult<Self> {
        let uid = server.info().server_uid.clone();
        let has_limit = super::submit::has_memory_limit(spec);
        let (worker, control) = machine.start_worker(server, keeper, has_limit).await?;
        let client = Client::in_process(server.connect_client(), uid.clone()).await?;
        let mut commander = Client::in_process(server.connect_client(), uid).await?;
        let id = commander.ask(open_request(spec)).await?.id;
        Ok(Self {
            id,
            client,
            commander,
            worker: Some(worker),
            control,
        })
    }

    /// Submits the job, and passes on ended tasks until all have ended.
    ///
    /// The job is opened and watched before it gets tasks, so that a task that ends immediately is
    /// not missed.
    async fn follow(
        &mut self,
        spec: SubmitSpec,
        requests: &mut Requests,
        screen: &Screen,
        replay: &Replay,
    ) -> CliResult<TaskTotals> {
        let watch = client::Watch {
            jobs: Some(Selector::one(self.id).to_message()),
            with_progress: true,
            with_outcomes: true,
            interval_ns: nanos(UPDATE_INTERVAL),
            ..client::Watch::default()
        };
        self.client.watch(watch).await?;
        self.client.next_update().await?;
        let attached = SubmitSpec {
            target: SubmitTarget::Attach(JobId(self.id)),
            ..spec
        };
        self.commander.submit((&attached).into()).await?;
        self.commander
            .ask(JobClose(&Selector::one(self.id)))
            .await?;
        let mut counts = TaskTotals::default();
        loop {
            tokio::select! {
                update = self.client.next_update() => {
                    let update = update?;
                    for job in update.jobs {
                        counts = job.summary.as_ref().map_or(counts, totals);
                        replay.add(job.ended_tasks);
                    }
                    screen.update(&counts);
                    if update.done {
                        return Ok(counts);
                    }
                }
                Some(reason) = requests.receiver.recv() => {
                    self.on_request(reason, requests, screen).await;
                }
                () = worker_end(&mut self.worker) => {
                    self.worker = None;
                    self.cancel_rest().await?;
                }
            }
        }
    }

    async fn on_request(&self, reason: StopReason, requests: &mut Requests, screen: &Screen) {
        let (interrupt, text) = match reason {
            StopReason::OutputClosed => (Interrupt::Terminate, ""),
            StopReason::DiskFull => (
                Interrupt::Drain,
                "No space is left for the output of the tasks. No new task starts; running tasks finish.",
            ),
            StopReason::Interrupt if requests.is_interrupted => (
                Interrupt::Terminate,
                "Interrupted again: killing the running tasks.",
            ),
            StopReason::Interrupt => {
                requests.is_interrupted = true;
                (
                    Interrupt::Drain,
                    "Interrupted: no new task starts, and running tasks finish. Interrupt again to kill them.",
                )
            }
        };
        // If the queue is full, it already contains enough interrupts.
        let _ = self.control.try_send(interrupt);
        // Print the message only after the worker has handled the interrupt, which the empty queue
        // shows. Until then, an ended task may make room for the next one. The message also appears
        // if the worker has ended or is slow.
        let taken = self.control.reserve_many(REQUESTS_MAX);
        let _ = tokio::time::timeout(TAKEN_TIMEOUT, taken).await;
        if !text.is_empty() {
            screen.note(text);
        }
    }

    /// Cancels all remaining tasks. They cannot run without a worker.
    async fn cancel_rest(&mut self) -> CliResult<()> {
        let cancel = client::Cancel {
            jobs: Some(Selector::one(self.id).to_message()),
            reason: String::new(),
        };
        self.commander.ask(cancel).await.map(drop)
    }

    /// Stops the worker, which has no tasks left.
    async fn end(self) -> CliResult<()> {
        let Some(worker) = self.worker else {
            return Ok(());
        };
        // A worker that does not receive this has already ended.
        let _ = self.control.send(Interrupt::Terminate).await;
        match worker.await {
            Ok(_) => Ok(()),
            Err(e) => Err(CliError::caused("The worker did not end cleanly", &e)),
        }
    }
}

/// Returns the request to open the job for a submit.
fn open_request(spec: &SubmitSpec) -> client::OpenJob {
    match &spec.target {
        SubmitTarget::NewJob { name, max_fails } => client::OpenJob {
            name: name.to_string(),
            max_fails: *max_fails,
        },
        // The server starts with this command, so it has no open job to attach to.
        SubmitTarget::Attach(_) | SubmitTarget::SelfClosing { .. } => client::OpenJob::default(),
    }
}

/// Waits for the worker to end, or forever if there is none.
async fn worker_end(worker: &mut Option<JoinHandle<WorkerEnd>>) {
    match worker {
        Some(worker) => {
            if let Err(error) = worker.await {
                tracing::error!(%error, "the worker did not end cleanly");
            }
        }
        None => std::future::pending().await,
    }
}
