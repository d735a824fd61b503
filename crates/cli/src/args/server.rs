//! `hq server …`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use hq_core::quarantine::QuarantineMode;
use hq_core::template::NotifyTarget;

use crate::parse::duration::parse_duration;
use crate::parse::notify::parse_notify_target;
use crate::parse::size::{SizeMax, parse_size_max};
use crate::parse::value::{parse_host, parse_http_address, parse_quarantine, path_parser};

/// Commands about the server.
#[derive(Subcommand, Debug)]
pub(crate) enum ServerCommand {
    /// Start a server here, in the foreground unless told otherwise
    Start(StartArgs),
    /// Stop the running server and its workers
    ///
    /// Workers end their tasks and themselves within seconds; those with `--on-server-lost finish-running` let
    /// running tasks end first. Allocations are canceled. `hq server start` then begins anew, and `hq server start --resume`
    /// continues the jobs: what ran starts again.
    Stop(StopArgs),
    /// Show where the server is and how long it has been running
    Info,
    /// Block until a server can be reached
    Wait(WaitArgs),
    /// Make an access file in advance, with fixed ports and new keys
    GenerateAccess(GenerateAccessArgs),
    /// Let the server write its scheduling state to a file, for bug reports
    DebugDump(DebugDumpArgs),
}

/// Options of `server start`.
#[derive(Args, Debug)]
#[command(after_long_help = super::examples::SERVER_START)]
pub(crate) struct StartArgs {
    /// Name or address under which clients and workers reach this machine
    ///
    /// [default: the access file's host, else this machine's hostname]
    #[arg(long, value_name = "HOST", value_parser = parse_host)]
    pub(crate) host: Option<String>,

    /// Port for clients [default: the access file's, else a random one]
    #[arg(long, value_name = "PORT")]
    pub(crate) client_port: Option<u16>,

    /// Port for workers [default: the access file's, else a random one]
    #[arg(long, value_name = "PORT")]
    pub(crate) worker_port: Option<u16>,

    /// Take hosts, ports and keys from a file made by `hq server generate-access`
    #[arg(long, value_name = "PATH", value_parser = path_parser())]
    pub(crate) access_file: Option<PathBuf>,

    /// Keep the state in this file; it is restored from it if it exists
    ///
    /// Without the option the state is kept inside the server directory. A later start without the option opens the
    /// file again if it continues this server.
    #[arg(long, value_name = "PATH", value_parser = path_parser())]
    pub(crate) journal: Option<PathBuf>,

    /// Return as soon as the server answers; it goes on after logout, with messages in `server.log`
    /// in the server directory
    #[arg(long)]
    pub(crate) background: bool,

    /// The process behind `--background`.
    #[arg(long, hide = true, conflicts_with = "background")]
    pub(crate) detached: bool,

    /// Keep no state on disk: when the server ends, its jobs and results are gone
    #[arg(long, conflicts_with_all = ["journal", "resume"])]
    pub(crate) no_journal: bool,

    /// Continue the last server of the server directory: its jobs, keys and, if they are free, ports
    ///
    /// Without the option a server is continued unless it was stopped with `hq server stop` or Ctrl-C.
    #[arg(long, conflicts_with = "journal")]
    pub(crate) resume: bool,

    /// Begin anew, with no job, however the last server of the server directory ended
    ///
    /// The state of the last server stays as it is; the server prints the command that opens it. Batch scripts
    /// that start a server of their own use this option or a server directory for each batch job.
    #[arg(long, conflicts_with = "resume")]
    pub(crate) fresh: bool,

    /// Largest size of the state on disk, e.g. 500M; `none` = any
    ///
    /// Shortly before it is reached there is a warning. When it is reached, the oldest completed jobs are
    /// dropped from the file; what is not completed is always kept.
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = parse_size_max,
        default_value = "4G"
    )]
    pub(crate) journal_max_size: SizeMax,

    /// Longest time until everything is forced to disk [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) journal_flush_period: Option<Duration>,

    /// Stop workers that were idle this long, unless they chose a time of their own
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) idle_timeout: Option<Duration>,

    /// Accepted for compatibility; a scheduling round takes a few milliseconds at most [default: 5s]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) scheduler_time_limit: Option<Duration>,

    /// Serve the web dashboard and metrics for Prometheus over HTTP [default address: 127.0.0.1 and any free port]
    ///
    /// ADDR is PORT, HOST:PORT or [IPV6]:PORT; a PORT alone is of this machine only. Every request needs the token in
    /// the file `http-token` of the running server's directory. The server prints both when it starts.
    #[arg(
        long,
        value_name = "ADDR",
        value_parser = parse_http_address,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "0"
    )]
    pub(crate) http: Option<SocketAddr>,

    /// What to do about a worker on which tasks fail that go well on others
    ///
    /// `tell`: an event and a line among the problems. `act`: it gets no tasks until one that is tried on it goes well, first
    /// after 10 minutes, then after twice as long; what failed on it runs again on others, and counts neither as a retry nor as
    /// a failure. `off`: nothing.
    #[arg(long, value_name = "WHAT", value_parser = parse_quarantine, default_value = "tell")]
    pub(crate) quarantine: QuarantineMode,

    /// Tell of workers that are found to be broken: `cmd:COMMAND`, or the address of a web server; may be repeated
    ///
    /// As `--notify` of `hq submit`, with `HQ_WORKER_ID`, `HQ_WORKER_HOST` and `HQ_REASON` in the environment of a command. What people
    /// set aside themselves is not told.
    #[arg(long, value_name = "TARGET", value_parser = parse_notify_target)]
    pub(crate) notify: Vec<NotifyTarget>,

    /// Let anybody who reaches the client port control the server, without encryption
    #[arg(long)]
    pub(crate) disable_client_authentication_and_encryption: bool,

    /// Let anybody who reaches the worker port act as a worker, without encryption
    #[arg(long)]
    pub(crate) disable_worker_authentication_and_encryption: bool,
}

/// Options of `server stop`.
#[derive(Args, Debug)]
pub(crate) struct StopArgs {
    /// Leave workers, their tasks and allocations as they are, until the next `hq server start`
    ///
    /// With that a server is updated or moved to another port without the loss of a running task. A worker waits
    /// for up to an hour once its tasks have ended.
    #[arg(long)]
    pub(crate) keep_workers: bool,
}

/// Options of `server wait`.
#[derive(Args, Debug)]
pub(crate) struct WaitArgs {
    /// Give up after this time [default: 5m]
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = parse_duration,
        default_value = "5m",
        hide_default_value = true
    )]
    pub(crate) timeout: Duration,
}

/// Options of `server generate-access`.
#[derive(Args, Debug)]
pub(crate) struct GenerateAccessArgs {
    /// File to create, for `hq server start --access-file`
    #[arg(value_name = "ACCESS_FILE", value_parser = path_parser())]
    pub(crate) access_file: PathBuf,

    /// Also create a file that lets only clients connect
    #[arg(long, value_name = "PATH", value_parser = path_parser())]
    pub(crate) client_file: Option<PathBuf>,

    /// Also create a file that lets only workers connect
    #[arg(long, value_name = "PATH", value_parser = path_parser())]
    pub(crate) worker_file: Option<PathBuf>,

    /// Port for clients
    #[arg(long, value_name = "PORT")]
    pub(crate) client_port: u16,

    /// Port for workers
    #[arg(long, value_name = "PORT")]
    pub(crate) worker_port: u16,

    /// Name under which the server will be reached [default: this machine's hostname]
    #[arg(long, value_name = "HOST", value_parser = parse_host)]
    pub(crate) host: Option<String>,

    /// The same, for clients only
    #[arg(long, value_name = "HOST", value_parser = parse_host)]
    pub(crate) client_host: Option<String>,

    /// The same, for workers only
    #[arg(long, value_name = "HOST", value_parser = parse_host)]
    pub(crate) worker_host: Option<String>,
}

/// Options of `server debug-dump`.
#[derive(Args, Debug)]
pub(crate) struct DebugDumpArgs {
    /// New file to write; relative paths start at the server's working directory
    #[arg(value_name = "PATH", value_parser = path_parser())]
    pub(crate) path: PathBuf,
}
