//! `hq output-log …`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use hq_core::range::IdArray;

use super::job::StreamArg;
use crate::parse::array::parse_id_array;
use crate::parse::selector::{JobTasks, parse_id_tasks};
use crate::parse::value::path_parser;

/// Options of `output-log`.
#[derive(Args, Debug)]
pub(crate) struct OutputLogArgs {
    /// Directory of `hq submit --stream`
    #[arg(value_name = "PATH", value_parser = path_parser())]
    pub(crate) path: PathBuf,

    /// Only output of the server with this uid; required if several servers share the directory
    #[arg(long, value_name = "UID", global = true)]
    pub(crate) server_uid: Option<String>,

    #[command(subcommand)]
    pub(crate) command: OutputLogCommand,
}

/// Requested part of an output log.
#[derive(Subcommand, Debug)]
pub(crate) enum OutputLogCommand {
    /// Count files, tasks and bytes
    Summary,
    /// Print the ids of jobs, one per line
    Jobs,
    /// Print all output in order of time, each piece after its task
    Show(ShowArgs),
    /// Print the output of the tasks of a job, and nothing else
    Cat(LogCatArgs),
    /// Print the standard output of the tasks of a job as JSON
    Export(ExportArgs),
}

/// Options of `output-log show`.
#[derive(Args, Debug)]
pub(crate) struct ShowArgs {
    /// Only this job
    #[arg(long, value_name = "ID")]
    pub(crate) job: Option<u32>,

    /// Only this channel
    #[arg(long, value_enum, value_name = "CHANNEL")]
    pub(crate) channel: Option<StreamArg>,
}

/// Options of `output-log cat`.
#[derive(Args, Debug)]
pub(crate) struct LogCatArgs {
    /// Id of the job; `3.7` and `3.1-4` select tasks
    #[arg(value_name = "JOB[.TASKS]", value_parser = parse_id_tasks)]
    pub(crate) target: JobTasks<u32>,

    /// Which channel to print
    #[arg(value_enum, value_name = "CHANNEL")]
    pub(crate) channel: StreamArg,

    /// Only tasks with these ids, in this order
    #[arg(long, alias = "tasks", value_name = "IDS", value_parser = parse_id_array)]
    pub(crate) task: Option<IdArray>,

    /// Also print the output of tasks that have not ended
    #[arg(long)]
    pub(crate) allow_unfinished: bool,
}

/// Options of `output-log export`.
#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    /// Id of the job; `3.7` and `3.1-4` select tasks
    #[arg(value_name = "JOB[.TASKS]", value_parser = parse_id_tasks)]
    pub(crate) target: JobTasks<u32>,

    /// Only tasks with these ids, in this order
    #[arg(long, alias = "tasks", value_name = "IDS", value_parser = parse_id_array)]
    pub(crate) task: Option<IdArray>,
}
