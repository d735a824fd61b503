//! `hq limit …`.

use clap::{Args, Subcommand};
use hq_core::bound::Bound;

use crate::parse::limit::{parse_bound, parse_limit_name};

/// Commands about limits.
#[derive(Subcommand, Debug)]
pub(crate) enum LimitCommand {
    /// Set a limit: of tasks that run at the same time, such as `10`, or that start, such as `50/s`
    ///
    /// Tasks that were submitted with `--limit NAME` count toward it, whichever job they belong to.
    /// Changing a limit does not end running tasks.
    Set(SetArgs),
    /// List limits, the jobs that use them, and how many tasks wait
    List,
    /// Remove limits; refused while unfinished tasks count toward them
    ///
    /// If some cannot be removed, the others are removed, and the exit code is 1.
    Remove(RemoveArgs),
}

/// Options of `limit set`.
#[derive(Args, Debug)]
pub(crate) struct SetArgs {
    /// Name of the limit: letters, digits, `-`, `_` and `.`
    #[arg(value_name = "NAME", value_parser = parse_limit_name)]
    pub(crate) name: Box<str>,

    /// Number of tasks that run at the same time, or rate of starts: `50/s`, `100/min` or `20/h`
    ///
    /// After a pause, the starts of one second may happen at once.
    #[arg(value_name = "LIMIT", value_parser = parse_bound, allow_negative_numbers = true)]
    pub(crate) bound: Bound,
}

/// Options of `limit remove`.
#[derive(Args, Debug)]
pub(crate) struct RemoveArgs {
    /// Names of limits
    #[arg(value_name = "NAME", required = true, value_parser = parse_limit_name)]
    pub(crate) names: Vec<Box<str>>,

    /// Also remove limits that unfinished tasks count toward, and let these tasks run
    #[arg(long)]
    pub(crate) force: bool,
}
