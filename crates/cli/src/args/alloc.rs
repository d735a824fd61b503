//! `hq alloc …`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use hq_core::resource::descriptor::ResourceItem;

use super::deferred::Deferred;
use super::job::StreamArg;
use super::submit::YesNo;
use super::worker::DetectResources;
use crate::parse::ParseError;
use crate::parse::duration::{parse_duration, parse_duration_words, parse_limit};
use crate::parse::resource::{CpuDefinition, parse_cpus, parse_definition};
use crate::parse::value::{parse_utilization, path_parser};

/// Commands about automatic allocation.
#[derive(Subcommand, Debug)]
pub(crate) enum AllocCommand {
    /// List allocation queues
    List(ListArgs),
    /// Show the allocations of a queue, and what the server requests, or why it requests nothing
    Info(InfoArgs),
    /// Print the standard output or standard error of an allocation
    #[command(alias = "cat")]
    Log(LogArgs),
    /// Create a queue: the server then requests workers from the batch system while tasks wait
    ///
    /// `hq alloc add slurm --help` (or `pbs`, `other`) lists the options; --time-limit is required.
    Add {
        #[command(subcommand)]
        system: SystemCommand,
    },
    /// Submit a test allocation, and cancel it immediately
    DryRun {
        #[command(subcommand)]
        system: SystemCommand,
    },
    /// Request no more allocations; existing allocations stay
    Pause(QueueArg),
    /// Request allocations again, and forget all failures
    Resume(QueueArg),
    /// Cancel the allocations of a queue, and delete it
    Remove(RemoveArgs),
    /// Print the description of a batch system, as a start for --template
    Template(TemplateArgs),
}

/// Which batch system.
#[derive(Subcommand, Debug)]
pub(crate) enum SystemCommand {
    /// Submit jobs to OpenPBS or PBS Professional that start workers while tasks wait
    #[command(after_long_help = super::examples::ALLOC_ADD_PBS)]
    Pbs(Deferred<Box<QueueArgs>>),
    /// Submit jobs to Slurm that start workers while tasks wait
    #[command(after_long_help = super::examples::ALLOC_ADD_SLURM)]
    Slurm(Deferred<Box<QueueArgs>>),
    /// Submit jobs to another batch system; needs --template
    Other(Deferred<Box<QueueArgs>>),
}

/// Parameters of a queue.
#[derive(Args, Debug)]
pub(crate) struct QueueArgs {
    /// Wall time of each allocation (a batch job that runs workers), such as `2h`; a plain number is seconds
    #[arg(short = 't', long, value_name = "DURATION", value_parser = parse_limit)]
    pub(crate) time_limit: Duration,

    /// Number of allocations that may wait in the batch system at the same time
    #[arg(short = 'b', long, value_name = "COUNT", default_value_t = 1, value_parser = parse_backlog)]
    pub(crate) backlog: u32,

    /// Maximum number of workers (nodes) in an allocation
    #[arg(short = 'm', long, value_name = "COUNT", default_value_t = 1, value_parser = parse_workers)]
    pub(crate) max_workers_per_alloc: u32,

    /// Maximum number of workers of this queue, queued and running [default: no limit]
    #[arg(long, value_name = "COUNT")]
    pub(crate) max_worker_count: Option<u32>,

    /// Name of the queue: its batch jobs are called NAME-1, NAME-2 and so on [default: `hq-` and the id of the queue]
    #[arg(short = 'n', long, value_name = "NAME")]
    pub(crate) name: Option<String>,

    /// Shell command to run before each worker on its node, such as `module load cuda`
    ///
    /// The worker and its tasks keep its environment. If it fails, the worker does not start.
    #[arg(long, value_name = "COMMAND")]
    pub(crate) worker_start_cmd: Option<String>,

    /// Shell command to run after each worker; to leave it time, set --worker-time-limit below --time-limit
    #[arg(long, value_name = "COMMAND")]
    pub(crate) worker_stop_cmd: Option<String>,

    /// Command to put before `hq worker start`
    #[arg(long, value_name = "COMMAND")]
    pub(crate) worker_wrap_cmd: Option<String>,

    /// Lifetime of each worker [default: until ten seconds before the allocation ends]
    #[arg(long, value_name = "DURATION", value_parser = parse_limit)]
    pub(crate) worker_time_limit: Option<Duration>,

    /// Reaction of workers when the server crashes or cannot be reached
    ///
    /// `hq server stop` and Ctrl-C of the server cancel the allocations with their tasks in any case; `hq server stop
    /// --keep-workers` keeps them.
    #[arg(long, value_enum, value_name = "ACTION", default_value_t = OnServerLostArg::FinishRunning)]
    pub(crate) on_server_lost: OnServerLostArg,

    /// Skip the test: without the option, hq first submits an allocation and cancels it at once
    #[arg(long)]
    pub(crate) no_dry_run: bool,

    /// File with the commands and job script for the batch system, instead of the built-in ones; see `hq alloc template`
    ///
    /// [default: `templates/slurm.toml` or `templates/pbs.toml` in the server directory, if it exists]
    #[arg(long, value_name = "FILE", value_parser = path_parser())]
    pub(crate) template: Option<PathBuf>,

    /// Cpus that workers offer, as in `hq worker start` [default: what the first workers detect]
    ///
    /// Request them from the batch system after `--`.
    #[arg(long, value_name = "CPUS", value_parser = given_cpus)]
    pub(crate) cpus: Option<TypedValue<CpuDefinition>>,

    /// Another resource that workers offer besides those they detect, as in `hq worker start`; may be repeated
    #[arg(long, value_name = "NAME=DEF", value_parser = given_definition)]
    pub(crate) resource: Vec<TypedValue<ResourceItem>>,

    /// Group of the workers [default: id of the batch job]
    #[arg(long, value_name = "NAME")]
    pub(crate) group: Option<String>,

    /// Groups of resources that are close to each other, as in `hq worker start`
    #[arg(long, value_name = "COUPLING")]
    pub(crate) coupling: Option<String>,

    /// Resources that workers detect, as in `hq worker start`
    #[arg(long, value_name = "RESOURCES", value_parser = given_detection)]
    pub(crate) detect_resources: Option<TypedValue<DetectResources>>,

    /// Offer only one cpu per physical core
    #[arg(long)]
    pub(crate) no_hyper_threading: bool,

    /// Kill tasks that use more memory than the `mem` they requested, as in `hq worker start`
    #[arg(long, value_enum, value_name = "YES|NO", num_args = 0..=1, require_equals = true, default_missing_value = "yes",
          hide_possible_values = true)]
    pub(crate) enforce_memory: Option<YesNo>,

    /// Stop workers that have been idle this long [default: 5m]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) idle_timeout: Option<Duration>,

    /// Leave allocations in the batch system when the tasks that they wait for are gone [default: cancel them after 10m]
    #[arg(long)]
    pub(crate) keep_waiting: bool,

    /// How often workers report the load of their machine [default: never]
    #[arg(long, value_name = "DURATION", value_parser = given_words)]
    pub(crate) overview_interval: Option<TypedValue<Duration>>,

    /// Request a worker, and give it tasks, only if this share of its cpus would be busy, 0.0 to 1.0 [default: 0]
    #[arg(long, value_name = "SHARE", value_parser = parse_utilization)]
    pub(crate) min_utilization: Option<f32>,

    /// Options for the command of the batch system, such as `sbatch`, after `--`. Request cpus or whole nodes here:
    /// workers offer only what the batch system grants
    #[arg(value_name = "ARGS", trailing_var_arg = true)]
    pub(crate) additional_args: Vec<String>,
}

/// A value, and how the user wrote it.
#[derive(Clone, Debug)]
pub(crate) struct TypedValue<T> {
    pub(crate) text: String,
    pub(crate) value: T,
}

impl<T> TypedValue<T> {
    fn new<E>(text: &str, parse: impl FnOnce(&str) -> Result<T, E>) -> Result<Self, E> {
        Ok(Self {
            value: parse(text)?,
            text: text.to_owned(),
        })
    }
}

fn given_cpus(text: &str) -> Result<TypedValue<CpuDefinition>, ParseError> {
    TypedValue::new(text, parse_cpus)
}

fn given_definition(text: &str) -> Result<TypedValue<ResourceItem>, ParseError> {
    TypedValue::new(text, parse_definition)
}

fn given_detection(text: &str) -> Result<TypedValue<DetectResources>, String> {
    TypedValue::new(text, str::parse)
}

fn given_words(text: &str) -> Result<TypedValue<Duration>, String> {
    TypedValue::new(text, parse_duration_words)
}

fn parse_backlog(text: &str) -> Result<u32, String> {
    at_least_one(text, "Backlog has to be at least 1")
}

fn parse_workers(text: &str) -> Result<u32, String> {
    at_least_one(text, "An allocation has to have at least 1 worker")
}

fn at_least_one(text: &str, refusal: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(0) => Err(refusal.to_owned()),
        Ok(count) => Ok(count),
        Err(error) => Err(format!("{error}")),
    }
}

/// Reaction of a worker in an allocation to the loss of its server.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OnServerLostArg {
    /// Continue running tasks, and reconnect; after them wait up to an hour for the server
    Reconnect,
    /// Kill all tasks, and stop
    Stop,
    /// Let running tasks finish, then stop unless the server is back
    FinishRunning,
}

/// Options of `alloc list`.
#[derive(Args, Debug)]
pub(crate) struct ListArgs {
    /// Also show what the server requests, or why it requests nothing
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// Options of `alloc info`.
#[derive(Args, Debug)]
pub(crate) struct InfoArgs {
    /// Id of the queue
    #[arg(value_name = "QUEUE")]
    pub(crate) queue: u32,

    /// Show only allocations in this state
    #[arg(long, value_enum, value_name = "STATE")]
    pub(crate) filter: Option<AllocationFilter>,

    /// Also show what the batch system said last, or why the allocation ended
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// Which allocations are shown.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AllocationFilter {
    /// Waiting in the batch system
    Queued,
    /// Running on nodes
    Running,
    /// Ended successfully
    Finished,
    /// Ended with an error
    Failed,
}

/// Arguments of `alloc log`.
#[derive(Args, Debug)]
pub(crate) struct LogArgs {
    /// Id of the allocation in the batch system
    #[arg(value_name = "ALLOCATION")]
    pub(crate) allocation: String,

    /// Which stream
    #[arg(value_enum, value_name = "STREAM")]
    pub(crate) stream: StreamArg,
}

/// A queue.
#[derive(Args, Debug)]
pub(crate) struct QueueArg {
    /// Id of the queue
    #[arg(value_name = "QUEUE")]
    pub(crate) queue: u32,
}

/// Options of `alloc remove`.
#[derive(Args, Debug)]
pub(crate) struct RemoveArgs {
    /// Id of the queue
    #[arg(value_name = "QUEUE")]
    pub(crate) queue: u32,

    /// Also if allocations run; they are canceled
    #[arg(long)]
    pub(crate) force: bool,
}

/// Argument of `alloc template`.
#[derive(Args, Debug)]
pub(crate) struct TemplateArgs {
    /// Which description
    #[arg(value_enum, value_name = "NAME")]
    pub(crate) name: TemplateName,
}

/// Descriptions of batch systems that come with the program.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TemplateName {
    /// Slurm
    Slurm,
    /// OpenPBS and PBS Professional, with `-l select`
    Pbs,
    /// The same with the older `-l nodes`
    PbsNodes,
    /// Grid Engine, as an example of another batch system
    Sge,
}
