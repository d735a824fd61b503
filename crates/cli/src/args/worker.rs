//! `hq worker …`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use hq_core::resource::descriptor::ResourceItem;
use hq_protocol::access::RelayAddress;
use hq_protocol::limits::QUARANTINE_SPANS;

use super::deferred::Deferred;
use super::submit::{RESOURCES, TASKS, YesNo};
use crate::parse::duration::{parse_duration, parse_duration_words, parse_limit};
use crate::parse::resource::{CpuDefinition, parse_cpus, parse_definition};
use crate::parse::selector::{Selector, parse_selector};
use crate::parse::size::{SizeMax, parse_size_max};
use crate::parse::value::{parse_utilization, path_parser};

/// Headings of options in the help.
const LIFETIME: &str = "Lifetime";
const CONNECTION: &str = "Connection to the server";
const IDENTITY: &str = "Identity";
const FILES: &str = "Files";

/// Commands about workers.
#[derive(Subcommand, Debug)]
pub(crate) enum WorkerCommand {
    /// Start a worker here and keep it in the foreground
    Start(Deferred<Box<StartArgs>>),
    /// Stop workers; their tasks return to the queue
    Stop(Deferred<SelectorArgs>),
    /// Let workers finish their running tasks, then stop them; they get no new tasks
    Drain(Deferred<SelectorArgs>),
    /// Give workers no new tasks for a while; running tasks continue
    Quarantine(Deferred<QuarantineArgs>),
    /// End the quarantine of workers
    Release(Deferred<SelectorArgs>),
    /// List workers
    List(Deferred<ListArgs>),
    /// Show everything about workers
    Info(Deferred<SelectorArgs>),
    /// Print the hostname of a worker
    Address(Deferred<AddressArgs>),
    /// Show what a worker on this machine would offer
    Hwdetect(Deferred<HwdetectArgs>),
    /// Wait until a number of workers are connected
    Wait(Deferred<WaitArgs>),
    /// Start a worker on each of several machines by ssh
    DeploySsh(Deferred<DeploySshArgs>),
}

/// Options of `worker start`.
#[derive(Args, Debug)]
#[command(after_long_help = super::examples::WORKER_START)]
pub(crate) struct StartArgs {
    /// Cpus to offer: a count (`4`), groups (`2x8`), or a definition as in --resource
    ///
    /// [default: every cpu this process may use, grouped by NUMA node]
    #[arg(help_heading = RESOURCES, long, value_name = "CPUS", value_parser = parse_cpus)]
    pub(crate) cpus: Option<CpuDefinition>,

    /// Another resource to offer; may be repeated
    ///
    /// DEF is `[a,b]` (named items), `[[0,1],[2,3]]` or `2x4` (items in groups), `range(0-3)`, or
    /// `sum(100.5)` (a quantity); for memory also `mem=64GiB`.
    #[arg(help_heading = RESOURCES, long, value_name = "NAME=DEF", value_parser = parse_definition)]
    pub(crate) resource: Vec<ResourceItem>,

    /// Group of the worker, for multi-node tasks
    ///
    /// [default: id of the surrounding batch job, else `default`]
    #[arg(help_heading = IDENTITY, long, value_name = "NAME")]
    pub(crate) group: Option<String>,

    /// Groups of resources that are close to each other, such as `cpus[0]:gpus[0],cpus[1]:gpus[1]=128`
    ///
    /// `[1]` is the number of a group, and `=128` the weight of the pair [default: 256]. Tasks with `compact` or `tight`
    /// prefer groups with large weights.
    #[arg(help_heading = RESOURCES, long, value_name = "COUPLING")]
    pub(crate) coupling: Option<String>,

    /// Resources to detect: `all`, `none`, or a list of `cpus`, `mem`, `gpus/nvidia`, `gpus/amd`
    ///
    /// [default: all]
    #[arg(help_heading = RESOURCES, long, value_name = "RESOURCES")]
    pub(crate) detect_resources: Option<DetectResources>,

    /// Offer only one cpu per physical core of the detected cpus; no effect with --cpus
    #[arg(help_heading = RESOURCES, long)]
    pub(crate) no_hyper_threading: bool,

    /// Kill tasks that use more memory than the `mem` they requested
    ///
    /// [default: yes if the worker detects `mem`, no if you define it with --resource]
    #[arg(help_heading = RESOURCES, long, value_enum, value_name = "YES|NO", num_args = 0..=1, require_equals = true, default_missing_value = "yes",
          hide_possible_values = true)]
    pub(crate) enforce_memory: Option<YesNo>,

    /// Stop when the worker has been idle this long [default: --idle-timeout of the server]
    #[arg(help_heading = LIFETIME, long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) idle_timeout: Option<Duration>,

    /// How often to report the load of the machine, such as `10s` [default: never]
    #[arg(help_heading = CONNECTION, long, value_name = "DURATION", value_parser = parse_duration_words)]
    pub(crate) overview_interval: Option<Duration>,

    /// Take tasks only if they keep this share of the cpus busy, 0.0 to 1.0 [default: 0]
    #[arg(help_heading = TASKS, long, value_name = "SHARE", value_parser = parse_utilization)]
    pub(crate) min_utilization: Option<f32>,

    /// How often to send a heartbeat to the server, which gives up a worker after two silent periods [default: 8s]
    #[arg(help_heading = CONNECTION, long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) heartbeat: Option<Duration>,

    /// Stop after this time, such as `2h` [default: never]
    ///
    /// A plain number is seconds. Tasks that still run are stopped, and run again on another worker. In a batch job, the
    /// worker stops at the latest ten seconds before the job's time limit, or a tenth of the remaining time if that is less.
    #[arg(help_heading = LIFETIME, long, value_name = "DURATION", value_parser = parse_limit)]
    pub(crate) time_limit: Option<Duration>,

    /// Batch system whose job contains the worker [default: detect]
    #[arg(help_heading = IDENTITY, long, value_enum, value_name = "MANAGER", default_value_t = ManagerArg::Detect, hide_default_value = true)]
    pub(crate) manager: ManagerArg,

    /// Be a relay: forward the connections of workers that cannot reach the server directly
    ///
    /// The relay listens on PORT [default: any free port]. HOST is the name or address announced to other workers
    /// [default: all addresses of this machine]. The relay also runs tasks. See `hq doc network`.
    #[arg(help_heading = CONNECTION, long, value_name = "[HOST:]PORT", value_parser = parse_relay, num_args = 0..=1, require_equals = true,
          default_missing_value = "", conflicts_with = "via")]
    pub(crate) relay: Option<RelayListen>,

    /// Connect to the server through one of these relays, in random order; if none works, try other ways
    ///
    /// [default: directly; if that fails, through a relay listed in the server directory]
    #[arg(help_heading = CONNECTION, long, value_name = "HOST:PORT,…", value_delimiter = ',')]
    pub(crate) via: Vec<RelayAddress>,

    /// Name under which others see and reach this machine [default: its hostname]
    #[arg(help_heading = IDENTITY, long, value_name = "NAME")]
    pub(crate) hostname: Option<String>,

    /// Reaction when the server crashes or cannot be reached [default: reconnect]
    ///
    /// `hq server stop` and Ctrl-C of the server end workers with their tasks in any case; workers with this option set to
    /// `finish-running` first let running tasks end. `hq server stop --keep-workers` ends none.
    #[arg(help_heading = CONNECTION, long, value_enum, value_name = "ACTION", default_value_t = OnServerLostArg::Reconnect, hide_default_value = true)]
    pub(crate) on_server_lost: OnServerLostArg,

    /// Directory for the worker's files and task directories; must be on a local disk
    ///
    /// [default: a new directory in TMPDIR, else `/tmp`]
    #[arg(help_heading = FILES, long, value_name = "PATH", value_parser = path_parser())]
    pub(crate) work_dir: Option<PathBuf>,

    /// How often to return queued tasks whose time request no longer fits [default: 30s]
    #[arg(help_heading = TASKS, long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) retract_check_interval: Option<Duration>,

    /// Maximum size of stored results of Python calls, such as `50G`, or `none`
    ///
    /// [default: half of the free space in the file system of the working directory]
    #[arg(help_heading = FILES, long, value_name = "SIZE", value_parser = parse_size_max)]
    pub(crate) values_limit: Option<SizeMax>,
}

/// Where a relay listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct RelayListen {
    /// Address announced to other workers; `None` = all addresses of this machine.
    pub(crate) host: Option<String>,
    /// The port; 0 = any free port.
    pub(crate) port: u16,
}

/// Parses `PORT`, `HOST:PORT` or an empty text.
fn parse_relay(text: &str) -> Result<RelayListen, String> {
    if text.is_empty() {
        return Ok(RelayListen {
            host: None,
            port: 0,
        });
    }
    if let Some(port) = text.parse::<u16>().ok().filter(|port| *port > 0) {
        return Ok(RelayListen { host: None, port });
    }
    match text.parse::<RelayAddress>() {
        Ok(address) => Ok(RelayListen {
            host: Some(address.host),
            port: address.port,
        }),
        Err(error) => Err(format!("{error}; a port alone is enough")),
    }
}

/// Which resources are detected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DetectResources {
    /// Cpus and their groups.
    pub(crate) cpus: bool,
    /// Main memory.
    pub(crate) mem: bool,
    /// NVIDIA gpus.
    pub(crate) gpus_nvidia: bool,
    /// AMD gpus.
    pub(crate) gpus_amd: bool,
}

impl DetectResources {
    /// Everything.
    pub(crate) const ALL: Self = Self {
        cpus: true,
        mem: true,
        gpus_nvidia: true,
        gpus_amd: true,
    };
    /// Nothing.
    pub(crate) const NONE: Self = Self {
        cpus: false,
        mem: false,
        gpus_nvidia: false,
        gpus_amd: false,
    };
}

impl FromStr for DetectResources {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "all" => return Ok(Self::ALL),
            "none" => return Ok(Self::NONE),
            _ => {}
        }
        let mut chosen = Self::NONE;
        for word in text.split(',') {
            match word.trim() {
                "cpus" => chosen.cpus = true,
                "mem" => chosen.mem = true,
                "gpus/nvidia" => chosen.gpus_nvidia = true,
                "gpus/amd" => chosen.gpus_amd = true,
                other => return Err(format!("invalid variant: {other}")),
            }
        }
        Ok(chosen)
    }
}

/// Where the worker looks for a batch job around it.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ManagerArg {
    /// Look for PBS, then for Slurm
    Detect,
    /// Ignore any batch system
    None,
    /// Expect PBS
    Pbs,
    /// Expect Slurm
    Slurm,
    /// Expect another batch system, with the job id in HQ_ALLOCATION_ID
    Other,
}

/// Reaction of a worker to the loss of its server.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OnServerLostArg {
    /// Continue running tasks, and reconnect; after them wait up to an hour for the server
    Reconnect,
    /// Kill all tasks, and stop
    Stop,
    /// Let running tasks finish, then stop unless the server is back
    FinishRunning,
}

/// A choice of workers.
#[derive(Args, Debug)]
pub(crate) struct SelectorArgs {
    /// `last`, `all`, or ids such as `1-4,7`
    #[arg(value_name = "WORKERS", value_parser = parse_selector)]
    pub(crate) selector: Selector,
}

/// Options of `worker quarantine`.
#[derive(Args, Debug)]
pub(crate) struct QuarantineArgs {
    /// `last`, `all`, or ids such as `1-4,7`
    #[arg(value_name = "WORKERS", value_parser = parse_selector)]
    pub(crate) selector: Selector,

    /// Time until the server tries one task on them; if it succeeds, the quarantine ends
    #[arg(long = "for", value_name = "DURATION", value_parser = parse_quarantine, default_value = "1h")]
    pub(crate) span: Duration,

    /// Reason to show in lists of workers
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,
}

/// Parses the duration of a quarantine.
fn parse_quarantine(text: &str) -> Result<Duration, String> {
    let span = parse_duration(text)?;
    if QUARANTINE_SPANS.contains(&span) {
        return Ok(span);
    }
    Err(format!(
        "expected a second to a year, found `{text}`; `hq worker release` ends a quarantine"
    ))
}

/// Options of `worker list`.
#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Also list workers that are gone
    #[arg(long, conflicts_with = "filter")]
    pub(crate) all: bool,

    /// List only workers in this state [default: running]
    #[arg(long, value_enum, value_name = "STATE")]
    pub(crate) filter: Option<WorkerFilter>,
}

/// Which workers are listed.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WorkerFilter {
    /// Connected
    Running,
    /// Gone for any reason
    Offline,
}

/// Argument of `worker address`.
#[derive(Args, Debug)]
pub(crate) struct AddressArgs {
    /// Id of the worker
    #[arg(value_name = "WORKER")]
    pub(crate) worker: u32,
}

/// Options of `worker hwdetect`.
#[derive(Args, Debug)]
pub(crate) struct HwdetectArgs {
    /// Count one cpu per physical core
    #[arg(long)]
    pub(crate) no_hyper_threading: bool,
}

/// Argument of `worker wait`.
#[derive(Args, Debug)]
pub(crate) struct WaitArgs {
    /// Number of workers
    #[arg(value_name = "COUNT")]
    pub(crate) count: u32,
}

/// Options of `worker deploy-ssh`.
#[derive(Args, Debug)]
pub(crate) struct DeploySshArgs {
    /// Show the output of the workers
    #[arg(long)]
    pub(crate) show_output: bool,

    /// File with one `HOST`, `HOST:PORT` or `[IPV6]:PORT` per line; hq skips blank lines and lines with `#`
    #[arg(value_name = "HOSTFILE", value_parser = path_parser())]
    pub(crate) hostfile: PathBuf,

    /// Options for `hq worker start`, including --server-dir
    #[arg(
        value_name = "WORKER START ARGS",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) worker_args: Vec<OsString>,
}
