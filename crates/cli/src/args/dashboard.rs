//! `hq dashboard`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::parse::value::path_parser;

/// Options of `dashboard`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct DashboardArgs {
    /// Show a journal file, or the journal of a server directory, instead of a server
    #[arg(long, value_name = "FILE", value_parser = path_parser())]
    pub(crate) journal: Option<PathBuf>,

    /// Use ASCII characters only [default: if the locale is not UTF-8]
    #[arg(long)]
    pub(crate) ascii: bool,

    /// Show the dashboard in a browser: start the HTTP listener of the running server, and print its address
    ///
    /// Only the server's machine can connect, unless `hq server start --http` chose another address. The printed link
    /// contains the token. The command also prints an `ssh -L` line that forwards the port to another machine.
    #[arg(long, conflicts_with = "journal")]
    pub(crate) web: bool,

    /// Print a read-only link, for example for colleagues
    #[arg(long, requires = "web")]
    pub(crate) read_only: bool,

    #[command(subcommand)]
    pub(crate) command: Option<DashboardCommand>,
}

/// The subject of the dashboard.
#[derive(Subcommand, Debug)]
pub(crate) enum DashboardCommand {
    /// Watch the running server (the default)
    Stream,
    /// Show a journal file; the same as --journal
    Replay {
        /// The journal file, or a server directory; a server may be writing to it
        #[arg(value_name = "JOURNAL")]
        journal: PathBuf,
    },
}
