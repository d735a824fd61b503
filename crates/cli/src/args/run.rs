//! `hq run …`.

use std::ffi::OsString;

use clap::Args;

use super::submit::{DirectivesMode, TaskOptions};

/// Options of `run`.
///
/// Everything that is running when the command ends, ends with it.
#[derive(Args, Debug)]
#[command(
    after_long_help = super::examples::RUN,
    override_usage = "hq run [OPTIONS] [--] COMMAND...\n       hq run [OPTIONS] JOB_FILE.toml"
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) tasks: TaskOptions,

    /// Run tasks as if this machine had this many cpus [default: all this process may use]
    ///
    /// More than there are let tasks share cpus, which is good for tasks that mostly wait for files or the network.
    #[arg(short, long, value_name = "CPUS")]
    pub(crate) jobs: Option<std::num::NonZeroU32>,

    /// Print the output of a task as soon as it ends [default: in the order of the task ids]
    #[arg(long)]
    pub(crate) unordered: bool,

    /// Read standard input to its end and give it to every task
    #[arg(long)]
    pub(crate) stdin: bool,

    /// Show what would run, and run nothing
    ///
    /// Number of tasks, what each asks for, command and paths of the first and the last one.
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Where to look for `#HQ` lines with more options [default: auto]
    #[arg(long, value_enum, value_name = "MODE", default_value_t = DirectivesMode::Auto, hide_default_value = true)]
    pub(crate) directives: DirectivesMode,

    /// Program and arguments of the tasks, or a single job file whose name ends in `.toml`, `.yaml` or `.json`
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,
}
