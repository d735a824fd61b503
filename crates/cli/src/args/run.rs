//! `hq run …`.

use std::ffi::OsString;

use clap::Args;

use super::submit::{DirectivesMode, OUTPUT, RESOURCES, TASKS, TaskOptions};

/// Options of `run`.
///
/// When the command ends, all tasks that still run end too.
#[derive(Args, Debug)]
#[command(
    after_long_help = super::examples::RUN,
    override_usage = "hq run [OPTIONS] [--] COMMAND...\n       hq run [OPTIONS] JOB_FILE.toml"
)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) tasks: TaskOptions,

    /// Run tasks as if this machine had this many cpus [default: all cpus this process may use]
    ///
    /// With more cpus than the machine has, tasks share them. This helps tasks that mostly wait for files or the network.
    #[arg(help_heading = RESOURCES, short, long, value_name = "CPUS")]
    pub(crate) jobs: Option<std::num::NonZeroU32>,

    /// Print the output of a task when it ends [default: in the order of task ids]
    #[arg(help_heading = OUTPUT, long)]
    pub(crate) unordered: bool,

    /// Read standard input to its end, and pass it to every task
    #[arg(help_heading = TASKS, long)]
    pub(crate) stdin: bool,

    /// Show what would run, and run nothing
    ///
    /// Prints the number of tasks, their requests, and command and paths of the first and last task.
    #[arg(long)]
    pub(crate) dry_run: bool,

    /// Where to look for `#HQ` lines with options; the command line takes precedence [default: auto]
    #[arg(long, value_enum, value_name = "MODE", default_value_t = DirectivesMode::Auto, hide_default_value = true)]
    pub(crate) directives: DirectivesMode,

    /// Program and arguments of the tasks, or a single job file whose name ends in `.toml`, `.yaml` or `.json`
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    pub(crate) command: Vec<OsString>,
}
