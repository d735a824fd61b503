//! `hq dashboard`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Options of `dashboard`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct DashboardArgs {
    /// Show this journal file instead of a server, at any time in it
    #[arg(long, value_name = "FILE")]
    pub(crate) journal: Option<PathBuf>,

    /// Use plain characters only; the default where the locale is not UTF-8
    #[arg(long)]
    pub(crate) ascii: bool,

    #[command(subcommand)]
    pub(crate) command: Option<DashboardCommand>,
}

/// What is watched.
#[derive(Subcommand, Debug)]
pub(crate) enum DashboardCommand {
    /// Watch the running server (the default)
    Stream,
    /// Look at a journal file; the same as --journal
    Replay {
        /// The journal file; a server may be writing it
        #[arg(value_name = "JOURNAL")]
        journal: PathBuf,
    },
}
