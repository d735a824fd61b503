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

/// Headings of options in the help.
const NETWORK: &str = "Network";
const STATE: &str = "State";
const WORKERS: &str = "Workers";

/// Commands about the server.
#[derive(Subcommand, Debug)]
pub(crate) enum ServerCommand {
    /// Start a server here, by default in the foreground
    Start(StartArgs),
    /// Stop the running server and its workers
    ///
    /// Workers kill their tasks and stop within seconds; workers with `--on-server-lost finish-running` first let running
    /// tasks finish. The server cancels its allocations. After that `hq server start` starts an empty server, and
    /// `hq server start --resume` continues the jobs: tasks that ran start again.
    Stop(StopArgs),
    /// Show the address, version and start time of the server
    Info,
    /// Wait until a server answers
    Wait(WaitArgs),
    /// Create an access file with fixed ports and new keys
    GenerateAccess(GenerateAccessArgs),
    /// Write the scheduling state of the server to a file, for bug reports
    DebugDump(DebugDumpArgs),
}

/// Options of `server start`.
#[derive(Args, Debug)]
#[command(after_long_help = super::examples::SERVER_START)]
pub(crate) struct StartArgs {
    /// Name or address of this machine for clients and workers
    ///
    /// [default: the access file's host, else this machine's hostname]
    #[arg(help_heading = NETWORK, long, value_name = "HOST", value_parser = parse_host)]
    pub(crate) host: Option<String>,

    /// Port for clients [default: the access file's, else a random one]
    #[arg(help_heading = NETWORK, long, value_name = "PORT")]
    pub(crate) client_port: Option<u16>,

    /// Port for workers [default: the access file's, else a random one]
    #[arg(help_heading = NETWORK, long, value_name = "PORT")]
    pub(crate) worker_port: Option<u16>,

    /// Use hosts, ports and keys from a file of `hq server generate-access`
    #[arg(help_heading = NETWORK, long, value_name = "PATH", value_parser = path_parser())]
    pub(crate) access_file: Option<PathBuf>,

    /// Store the state in this file; if the file exists, continue from it
    ///
    /// By default the server stores its state in the server directory. If the next start continues this server (see
    /// --resume), it opens the same file.
    #[arg(help_heading = STATE, long, value_name = "PATH", value_parser = path_parser())]
    pub(crate) journal: Option<PathBuf>,

    /// Return when the server answers; it continues after logout, and logs to `server.log`
    /// in the server directory
    #[arg(long)]
    pub(crate) background: bool,

    /// The process behind `--background`.
    #[arg(long, hide = true, conflicts_with = "background")]
    pub(crate) detached: bool,

    /// Store no state on disk: jobs and results are lost when the server ends
    #[arg(help_heading = STATE, long, conflicts_with_all = ["journal", "resume"])]
    pub(crate) no_journal: bool,

    /// Continue the last server of the server directory, with its jobs, its keys and, if free, its ports
    ///
    /// Without the option, hq starts an empty server after `hq server stop` or Ctrl-C, and continues the last server after
    /// every other end.
    #[arg(help_heading = STATE, long, conflicts_with = "journal")]
    pub(crate) resume: bool,

    /// Start an empty server, however the last server of the server directory ended
    ///
    /// The state of the last server stays on disk; the new server prints the command that opens it. Use this option, or a
    /// separate server directory, in batch scripts that start their own server.
    #[arg(help_heading = STATE, long, conflicts_with = "resume")]
    pub(crate) fresh: bool,

    /// Maximum size of the state on disk, such as `500M`, or `none`
    ///
    /// The server warns shortly before. At this size it drops the oldest completed jobs from the file; it always keeps
    /// jobs that are not completed.
    #[arg(help_heading = STATE,
        long,
        value_name = "SIZE",
        value_parser = parse_size_max,
        default_value = "4G"
    )]
    pub(crate) journal_max_size: SizeMax,

    /// Accepted for compatibility, without effect: the server stores each change before it answers
    #[arg(help_heading = STATE, long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) journal_flush_period: Option<Duration>,

    /// Stop workers that have been idle this long; --idle-timeout of a worker overrides it [default: never]
    #[arg(help_heading = WORKERS, long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) idle_timeout: Option<Duration>,

    /// Accepted for compatibility, without effect: a scheduling round takes a few milliseconds at most
    #[arg(help_heading = WORKERS, long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) scheduler_time_limit: Option<Duration>,

    /// Serve the web dashboard and metrics for Prometheus over HTTP [default address: 127.0.0.1 and any free port]
    ///
    /// ADDR is PORT, HOST:PORT or [IPV6]:PORT; with only a PORT, other machines cannot connect. Every request needs a
    /// token: `hq dashboard --web` prints a link with it, and programs send `Authorization: Bearer` with the text of
    /// `hq-current/http-token` in the server directory. Without the option there is no HTTP port.
    #[arg(help_heading = NETWORK,
        long,
        value_name = "ADDR",
        value_parser = parse_http_address,
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "0"
    )]
    pub(crate) http: Option<SocketAddr>,

    /// Reaction to a worker on which tasks fail that succeed on other workers
    ///
    /// `tell` reports it (`hq problems`, log and journal). `act` also gives the worker no more tasks until a test task
    /// succeeds on it: the first test runs after 10 minutes, and the wait doubles with each failure. Its failed tasks run again on other workers, which
    /// counts neither as a retry nor as a failure. `off` does nothing.
    #[arg(help_heading = WORKERS, long, value_name = "WHAT", value_parser = parse_quarantine, default_value = "tell")]
    pub(crate) quarantine: QuarantineMode,

    /// Notify when --quarantine suspects a worker or stops giving it tasks: run `cmd:COMMAND`, or send a POST request to a URL; may be repeated
    ///
    /// Works like `--notify` of `hq submit`, with `HQ_WORKER_ID`, `HQ_WORKER_HOST` and `HQ_REASON` in the environment of a
    /// command. Workers that you quarantine yourself cause no notification.
    #[arg(help_heading = WORKERS, long, value_name = "TARGET", value_parser = parse_notify_target)]
    pub(crate) notify: Vec<NotifyTarget>,

    /// Accept clients without keys and encryption: every process that reaches the client port controls the server
    #[arg(help_heading = NETWORK, long)]
    pub(crate) disable_client_authentication_and_encryption: bool,

    /// Accept workers without keys and encryption: every process that reaches the worker port can act as a worker
    #[arg(help_heading = NETWORK, long)]
    pub(crate) disable_worker_authentication_and_encryption: bool,
}

/// Options of `server stop`.
#[derive(Args, Debug)]
pub(crate) struct StopArgs {
    /// Keep workers, their tasks and allocations until the next `hq server start`
    ///
    /// Use this to update a server, or to move it to another port, without losing a running task. A worker waits up to
    /// an hour after its tasks have ended.
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

    /// Also create an access file for clients only
    #[arg(long, value_name = "PATH", value_parser = path_parser())]
    pub(crate) client_file: Option<PathBuf>,

    /// Also create an access file for workers only
    #[arg(long, value_name = "PATH", value_parser = path_parser())]
    pub(crate) worker_file: Option<PathBuf>,

    /// Port for clients
    #[arg(long, value_name = "PORT")]
    pub(crate) client_port: u16,

    /// Port for workers
    #[arg(long, value_name = "PORT")]
    pub(crate) worker_port: u16,

    /// Name or address of the server [default: this machine's hostname]
    #[arg(long, value_name = "HOST", value_parser = parse_host)]
    pub(crate) host: Option<String>,

    /// Name for clients only [default: --host]
    #[arg(long, value_name = "HOST", value_parser = parse_host)]
    pub(crate) client_host: Option<String>,

    /// Name for workers only [default: --host]
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
