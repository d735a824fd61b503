//! The command line as types: every command and every option of `hq`.
//!
//! Parsing needs no server, no files, and no environment except the variables of the global
//! options. Names, defaults and conflicts are part of the interface; see `docs/compatibility.md`.

use clap::{CommandFactory, Parser, Subcommand};

pub(crate) mod alloc;
pub(crate) mod bytes;
pub(crate) mod dashboard;
pub(crate) mod deferred;
pub(crate) mod examples;
pub(crate) mod explain;
pub(crate) mod global;
mod habits;
pub(crate) use explain::advice;
pub(crate) use habits::{known_resource, of_option};
pub(crate) mod import;
pub(crate) mod job;
pub(crate) mod journal;
pub(crate) mod limit;
pub(crate) mod other;
pub(crate) mod output_log;
pub(crate) mod run;
pub(crate) mod server;
pub(crate) mod set;
pub(crate) mod submit;
pub(crate) mod task;
pub(crate) mod token;
pub(crate) mod worker;

use deferred::Deferred;
use global::GlobalArgs;

/// Runs large numbers of tasks on a cluster or on this machine.
///
/// Start a server and workers, then submit jobs; or let `hq run` do everything at once on this
/// machine.
#[derive(Parser, Debug)]
#[command(
    name = "hq",
    disable_help_subcommand = true,
    disable_version_flag = true
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: GlobalArgs,

    /// Print the version and exit
    #[arg(short = 'V', long)]
    pub(crate) version: bool,

    /// With --version: also print how the program was built
    #[arg(long, requires = "version", hide_short_help = true)]
    pub(crate) verbose: bool,

    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

/// First word of the command line.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run a job on this machine, without a server
    ///
    /// Exits with 0 only if every task finished.
    Run(Deferred<Box<run::RunArgs>>),
    /// Start, stop and inspect the server
    #[command(disable_help_subcommand = true)]
    Server {
        #[command(subcommand)]
        command: Option<Deferred<server::ServerCommand>>,
    },
    /// Start, stop and inspect workers
    #[command(disable_help_subcommand = true)]
    Worker {
        #[command(subcommand)]
        command: Option<Deferred<worker::WorkerCommand>>,
    },
    /// Submit a job; the same as `hq job submit`
    Submit(Deferred<Box<submit::SubmitArgs>>),
    /// Translate a script for Slurm, PBS or LSF into one for hq, or submit it
    ///
    /// Prints the script with `#HQ` lines in place of `#SBATCH`, `#PBS` or `#BSUB` lines, and with
    /// the variables that it expects, such as SLURM_ARRAY_TASK_ID. Also lists what works
    /// differently and what could not be translated.
    Import(Deferred<import::ImportArgs>),
    /// Show an overview: workers, unfinished jobs, problems
    Status,
    /// Show problems with their cause and remedy, most severe first
    Problems(Deferred<other::ProblemsArgs>),
    /// Submit, inspect and control jobs
    #[command(disable_help_subcommand = true)]
    Job {
        #[command(subcommand)]
        command: Option<Deferred<job::JobCommand>>,
    },
    /// Inspect the tasks of jobs
    #[command(disable_help_subcommand = true)]
    Task {
        #[command(subcommand)]
        command: Option<Deferred<task::TaskCommand>>,
    },
    /// Limit how many tasks run or start, across all jobs
    #[command(disable_help_subcommand = true)]
    Limit {
        #[command(subcommand)]
        command: Option<Deferred<limit::LimitCommand>>,
    },
    /// Read and maintain the durable record of a server
    #[command(disable_help_subcommand = true)]
    Journal {
        #[command(subcommand)]
        command: Option<Deferred<journal::JournalCommand>>,
    },
    /// Write a report of the running or last server as one HTML page: utilization, run times,
    /// failures, cost
    Report(Deferred<journal::LastReportArgs>),
    /// Query the state of a server in SQL
    Query(Deferred<journal::QueryArgs>),
    /// Read the output that tasks streamed into a directory
    #[command(disable_help_subcommand = true)]
    OutputLog(Deferred<output_log::OutputLogArgs>),
    /// Let the server request workers from a batch system
    #[command(disable_help_subcommand = true)]
    Alloc {
        #[command(subcommand)]
        command: Option<Deferred<alloc::AllocCommand>>,
    },
    /// Create, list and revoke tokens for programs that use the HTTP interface
    #[command(disable_help_subcommand = true)]
    Token {
        #[command(subcommand)]
        command: Option<Deferred<token::TokenCommand>>,
    },
    /// Watch jobs, workers and allocations on a full screen
    #[command(disable_help_subcommand = true)]
    Dashboard(Deferred<dashboard::DashboardArgs>),
    /// Show the configured defaults of options, and the files that set them
    ///
    /// The files are `~/.config/hq/config.toml` and, for all users of a site,
    /// `/etc/hq/config.toml`. See `hq doc config`.
    Config,
    /// Check this installation on this machine: kernel, limits, file system, batch system, server
    ///
    /// Prints the result of each check and, if something is wrong, the remedy. Run it on the
    /// machine with the problem: the login node for the server, a compute node for workers. It
    /// takes a few seconds even if a check hangs, and exits with 1 only if hq cannot work.
    #[command(disable_help_subcommand = true)]
    Doctor {
        #[command(subcommand)]
        command: Option<Deferred<other::DoctorCommand>>,
    },
    /// Read or search the manual
    ///
    /// `hq doc` lists the pages, `hq doc resources` shows one, and `hq doc memory limit` searches
    /// all of them.
    Doc(Deferred<other::DocArgs>),
    /// Print a completion script for a shell
    GenerateCompletion(Deferred<other::CompletionArgs>),
    /// Write a manual page for each command
    GenerateMan(Deferred<other::ManArgs>),
    /// Print the reference of the command line as Markdown
    #[command(hide = true)]
    GenerateReference,
    /// Talk to a program in another language, over standard input and output
    ///
    /// The Python package starts it. docs/python/bridge.md describes the messages.
    #[command(hide = true)]
    Bridge(Deferred<other::BridgeArgs>),
    /// Answer a worker's questions about NVIDIA GPUs, over standard input and output
    #[cfg(feature = "nvml")]
    #[command(hide = true)]
    GpuUsage(Deferred<other::GpuUsageArgs>),
}

impl Command {
    /// Returns whether the command only concerns the program itself. Such a command ignores
    /// configured defaults of options.
    pub(crate) const fn is_about_itself(&self) -> bool {
        // Do not read files here, because they may be on a dead file system.
        #[cfg(feature = "nvml")]
        if matches!(self, Self::GpuUsage(_)) {
            return true;
        }
        matches!(
            self,
            Self::Doc(_)
                | Self::GenerateCompletion(_)
                | Self::GenerateMan(_)
                | Self::GenerateReference
        )
    }
}

/// Returns the command tree.
pub(crate) fn command() -> clap::Command {
    Cli::command()
}

/// Returns the complete command tree, which can render the help of any command.
pub(crate) fn built_command() -> clap::Command {
    let mut command = Cli::command();
    command.build();
    command
}

#[cfg(test)]
mod tests;
