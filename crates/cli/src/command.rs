//! Implementations of the commands: one file per subcommand.
//!
//! Commands that only send requests are clients: they run on one thread, print to [`Context::out`]
//! and end. Servers, workers and `hq run` build their own runtimes.

use std::future::Future;
use std::io::IsTerminal as _;

use hq_protocol::access::ServerDir;
use hq_protocol::client::TaskPage;
use tokio::runtime::Runtime;

use crate::args::Command;
use crate::args::deferred::Deferred;
use crate::args::global::{GlobalArgs, OutputMode};
use crate::args::job::JobCommand;
use crate::args::journal::JournalCommand;
use crate::args::other::DoctorCommand;
use crate::args::server::ServerCommand;
use crate::args::task::TaskCommand;
use crate::args::worker::WorkerCommand;
use crate::client::{Client, Question};
use crate::error::{CliError, CliResult};
use crate::logging::{self, Role};
use crate::output::console::{self, Console};
use crate::output::{Look, Output, View};
use crate::runtime;

mod alloc;
mod bridge;
mod changed;
mod completion;
mod config;
mod dashboard;
mod doc;
mod doctor;
mod follow;
mod hold;
mod import;
mod job;
mod journal;
mod limit;
mod manual;
mod missing;
mod notify;
mod output_log;
mod run;
mod server;
mod set;
mod situation;
mod status;
mod submit;
mod task;
mod token;
mod worker;

/// The name of the server directory inside the home directory.
const DEFAULT_DIR_NAME: &str = ".hq-server";

/// The options, the output and the other data that every command needs.
pub(crate) struct Context {
    pub(crate) global: GlobalArgs,
    pub(crate) output: Output,
    pub(crate) out: Console,
    pub(crate) colors: bool,
}

impl Context {
    /// Creates a context with the output that the global options request.
    pub(crate) fn new(global: GlobalArgs) -> Self {
        let colors = console::use_colors(global.colors);
        let look = Look {
            colors,
            columns: console::terminal_size(std::io::stdout()).map(|(columns, _)| columns),
        };
        let output = Output {
            mode: global.output_mode,
            look,
        };
        Self {
            output,
            out: Console::new(global.output_mode),
            colors,
            global,
        }
    }

    /// Returns the output format.
    pub(crate) const fn mode(&self) -> OutputMode {
        self.global.output_mode
    }

    /// Returns the server directory that the user named, or the default one below the home
    /// directory.
    ///
    /// # Errors
    ///
    /// Returns an error if the user named no directory and has no home directory. A directory for
    /// temporary files would be unsafe, because any user of the machine could create it first.
    pub(crate) fn server_dir(&self) -> CliResult<ServerDir> {
        if let Some(dir) = &self.global.server_dir {
            return Ok(ServerDir::new(dir, false));
        }
        // Without HOME, this is the home directory in the passwd entry.
        let home = std::env::home_dir().filter(|home| home.is_absolute());
        let home = home.ok_or_else(|| {
            CliError::new("Cannot find your home directory, where the server directory is")
                .with_help(
                    "name the server directory with --server-dir or HQ_SERVER_DIR, or set HOME"
                        .to_owned(),
                )
        })?;
        Ok(ServerDir::new(home.join(DEFAULT_DIR_NAME), true))
    }

    /// Connects to the server.
    pub(crate) async fn connect(&self) -> CliResult<Client> {
        Client::connect(&self.server_dir()?).await
    }

    /// Connects to the server, and sends one question.
    pub(crate) async fn ask<Q: Question>(&self, question: Q) -> CliResult<Q::Answer> {
        self.connect().await?.ask(question).await
    }

    /// Like [`Self::ask`], about automatic allocation.
    pub(crate) async fn alloc<Q: Question>(&self, question: Q) -> CliResult<Q::Answer> {
        self.connect().await?.alloc(question).await
    }

    /// Flushes all printed output.
    pub(crate) fn flush(&mut self) -> CliResult<()> {
        use std::io::Write as _;
        Ok(self.out.flush()?)
    }

    /// Says on a terminal that a list leaves out rows by default, if the list itself goes to a file
    /// or to a filter such as `grep`.
    fn note_hidden(&self, hidden: usize, what: &str) {
        use std::io::IsTerminal as _;
        let is_seen = std::io::stderr().is_terminal() && !std::io::stdout().is_terminal();
        if hidden > 0 && is_seen && self.mode() == OutputMode::Cli {
            let hidden = hq_core::words::count(hidden as u64, what);
            tracing::info!(
                "The list is without {hidden} in other states; `hq {what} list --all` has them"
            );
        }
    }

    /// Prints the result of a command.
    pub(crate) fn show(&mut self, view: &impl View) -> CliResult<()> {
        Ok(self.output.show(&mut self.out, view)?)
    }

    /// Ends a command that prints nothing or only raw text.
    pub(crate) fn done(&mut self) -> CliResult<()> {
        self.show(&())
    }
}

/// Returns which kind of process a command runs as.
const fn role(command: &Command) -> Role {
    let is_daemon = matches!(
        command,
        Command::Server {
            command: Some(Deferred(ServerCommand::Start(_))),
        } | Command::Worker {
            command: Some(Deferred(
                WorkerCommand::Start(_) | WorkerCommand::DeploySsh(_)
            )),
        }
    );
    if is_daemon {
        Role::Daemon
    } else if matches!(command, Command::Run(_)) {
        Role::Run
    } else {
        Role::Client
    }
}

/// Returns the command of a group, or an error after printing the group's help.
fn inner<T>(group: &str, command: Option<Deferred<T>>) -> CliResult<T> {
    let command = command.ok_or_else(|| crate::incomplete(Some(group)))?;
    Ok(command.0)
}

/// Runs a command to its end.
pub(crate) fn run(command: Command, context: &mut Context) -> CliResult<()> {
    logging::init(&context.global, role(&command));
    crate::config::warn_about_missing_file();
    // Commands that run a program print this with their other notes.
    if !matches!(
        command,
        Command::Submit(_) | Command::Run(_) | Command::Import(_)
    ) && std::io::stderr().is_terminal()
        && let Some(note) = crate::submit::habits::short_clock_here()
    {
        tracing::warn!("{note}");
    }
    match command {
        Command::Server { command } => run_server(inner("server", command)?, context),
        Command::Worker { command } => run_worker(inner("worker", command)?, context),
        Command::Job { command } => as_client(run_job(inner("job", command)?, context)),
        Command::Task { command } => as_client(run_task(inner("task", command)?, context)),
        Command::Journal { command } => run_journal(inner("journal", command)?, context),
        Command::Status => as_client(status::status(context)),
        Command::Problems(Deferred(args)) => as_client(status::problems(args, context)),
        Command::Query(Deferred(args)) => as_client(journal::query(args, context)),
        Command::Report(Deferred(args)) => with_threads(journal::report_last(args, context)),
        Command::Doctor {
            command: Some(Deferred(DoctorCommand::Net)),
        } => as_client(doctor::net(context)),
        Command::Doctor {
            command: Some(Deferred(DoctorCommand::Part { part })),
        } => doctor::part(part, context),
        Command::Doctor { command: None } => doctor::all(context),
        Command::Config => config::show(context),
        Command::Alloc { command } => as_client(alloc::run(inner("alloc", command)?, context)),
        Command::Limit { command } => as_client(limit::run(inner("limit", command)?, context)),
        Command::Token { command } => as_client(token::run(inner("token", command)?, context)),
        Command::Submit(Deferred(args)) => as_client(submit::submit(*args, context)),
        Command::Import(Deferred(args)) => import::run(&args, context),
        Command::OutputLog(Deferred(args)) => output_log::run(&args, context),
        Command::Dashboard(Deferred(args)) if args.web => {
            as_client(dashboard::web::run(args.read_only, context))
        }
        Command::Dashboard(Deferred(args)) => dashboard::run(args, context),
        Command::Doc(Deferred(args)) => doc::run(&args, context),
        Command::GenerateCompletion(Deferred(args)) => completion::run(&args, context),
        Command::GenerateMan(Deferred(args)) => manual::man(&args, context),
        Command::GenerateReference => manual::reference(context),
        Command::Run(Deferred(args)) => run::run(*args, context),
        Command::Bridge(Deferred(args)) => bridge::run(args, context),
        #[cfg(feature = "nvml")]
        Command::GpuUsage(Deferred(args)) => Ok(hq_worker::serve_gpu_usage(args.parent)?),
    }
}

fn run_server(command: ServerCommand, context: &mut Context) -> CliResult<()> {
    match command {
        ServerCommand::Start(args) => server::start(args, context),
        ServerCommand::Stop(args) => as_client(server::stop(args, context)),
        ServerCommand::Info => as_client(server::info(context)),
        ServerCommand::Wait(args) => as_client(server::wait(args, context)),
        ServerCommand::GenerateAccess(args) => server::generate_access(args, context),
        ServerCommand::DebugDump(args) => as_client(server::debug_dump(args, context)),
    }
}

fn run_worker(command: WorkerCommand, context: &mut Context) -> CliResult<()> {
    match command {
        WorkerCommand::Start(Deferred(args)) => worker::start(*args, context),
        WorkerCommand::Hwdetect(Deferred(args)) => worker::hwdetect(&args, context),
        WorkerCommand::DeploySsh(Deferred(args)) => worker::deploy_ssh(args, context),
        WorkerCommand::Stop(Deferred(args)) => as_client(worker::stop(args, context)),
        WorkerCommand::Drain(Deferred(args)) => as_client(worker::drain(args, context)),
        WorkerCommand::Quarantine(Deferred(args)) => as_client(worker::quarantine(args, context)),
        WorkerCommand::Release(Deferred(args)) => as_client(worker::release(args, context)),
        WorkerCommand::List(Deferred(args)) => as_client(worker::list(args, context)),
        WorkerCommand::Info(Deferred(args)) => as_client(worker::info(args, context)),
        WorkerCommand::Address(Deferred(args)) => as_client(worker::address(args, context)),
        WorkerCommand::Wait(Deferred(args)) => as_client(worker::wait(args, context)),
    }
}

fn run_journal(command: JournalCommand, context: &mut Context) -> CliResult<()> {
    match command {
        JournalCommand::Export(args) => journal::export(&args, context),
        JournalCommand::Check(args) => journal::check(&args, context),
        JournalCommand::Report(args) => with_threads(journal::report(args, context)),
        JournalCommand::Replay(args) => as_client(journal::stream(args, false, context)),
        JournalCommand::Stream(args) => as_client(journal::stream(args, true, context)),
        JournalCommand::Prune => as_client(journal::prune(context)),
        JournalCommand::Flush => as_client(journal::flush(context)),
    }
}

async fn run_job(command: JobCommand, context: &mut Context) -> CliResult<()> {
    match command {
        JobCommand::List(Deferred(args)) => job::list(args, context).await,
        JobCommand::Summary => job::summary(context).await,
        JobCommand::Info(Deferred(args)) => job::info(args, context).await,
        JobCommand::Stats(Deferred(args)) => job::stats(args, context).await,
        JobCommand::Failures(Deferred(args)) => job::failures(args, context).await,
        JobCommand::Cancel(Deferred(args)) => job::cancel(args, context).await,
        JobCommand::Hold(Deferred(args)) => hold::jobs(&args, true, context).await,
        JobCommand::Release(Deferred(args)) => hold::jobs(&args, false, context).await,
        JobCommand::Set(Deferred(args)) => set::run(args, context).await,
        JobCommand::Resubmit(Deferred(args)) => job::resubmit(args, context).await,
        JobCommand::Forget(Deferred(args)) => job::forget(args, context).await,
        JobCommand::Cat(Deferred(args)) => job::cat(args, context).await,
        JobCommand::Tail(Deferred(args)) => job::tail(args, context).await,
        JobCommand::Submit(Deferred(args)) => Box::pin(submit::submit(*args, context)).await,
        JobCommand::SubmitFile(Deferred(args)) => submit::submit_file(args, context).await,
        JobCommand::Wait(Deferred(args)) => follow::wait(args, context).await,
        JobCommand::Progress(Deferred(args)) => follow::progress(args, context).await,
        JobCommand::TaskIds(Deferred(args)) => job::task_ids(args, context).await,
        JobCommand::Open(Deferred(args)) => job::open(args, context).await,
        JobCommand::Close(Deferred(args)) => job::close(args, context).await,
    }
}

async fn run_task(command: TaskCommand, context: &mut Context) -> CliResult<()> {
    match command {
        TaskCommand::List(args) => task::list(args, context).await,
        TaskCommand::Info(args) => task::info(args, context).await,
        TaskCommand::Explain(args) => task::explain(args, context).await,
        TaskCommand::Cancel(args) => task::cancel(&args, context).await,
        TaskCommand::Hold(args) => hold::tasks(&args, true, context).await,
        TaskCommand::Release(args) => hold::tasks(&args, false, context).await,
        TaskCommand::Signal(args) => task::signal(&args, context).await,
        TaskCommand::Notify(args) => notify::send(&args, context),
    }
}

/// Runs a client on the calling thread.
fn as_client(command: impl Future<Output = CliResult<()>>) -> CliResult<()> {
    run_on(runtime::of_client()?, command)
}

/// Runs a command that also reads files on other threads.
fn with_threads(command: impl Future<Output = CliResult<()>>) -> CliResult<()> {
    run_on(runtime::on_this_thread()?, command)
}

fn run_on(runtime: Runtime, command: impl Future<Output = CliResult<()>>) -> CliResult<()> {
    let result = runtime.block_on(command);
    // A pending name lookup, or a file system that hangs, must not delay the exit.
    runtime.shutdown_background();
    result
}

/// Creates a request for the first page of all tasks of a job.
pub(crate) fn all_tasks(job: u32) -> TaskPage {
    TaskPage {
        job: Some(hq_protocol::client::task_page::Job::Id(job)),
        ..TaskPage::default()
    }
}
