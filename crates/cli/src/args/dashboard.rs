//! `hq dashboard`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::parse::value::path_parser;

/// Options of `dashboard`.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct DashboardArgs {
    /// Show this journal file, or that of this server directory, instead of a server, at any time in it
    #[arg(long, value_name = "FILE", value_parser = path_parser())]
    pub(crate) journal: Option<PathBuf>,

    /// Use plain characters only; the default where the locale is not UTF-8
    #[arg(long)]
    pub(crate) ascii: bool,

    /// Show the dashboard in a browser: open the HTTP listener of the running server and print where it is
    ///
    /// It is opened on the server's machine only, unless `hq server start --http` opened it already. The link that is
    /// printed contains the token. `ssh -L` brings the port to another machine; the line for it is printed too.
    #[arg(long, conflicts_with = "journal")]
    pub(crate) web: bool,

    /// Print a link that shows everything and can change nothing: for colleagues and supervisors
    #[arg(long, requires = "web")]
    pub(crate) read_only: bool,

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
        /// The journal file, or a server directory; a server may be writing it
        #[arg(value_name = "JOURNAL")]
        journal: PathBuf,
    },
}
