//! `hq journal …` and `hq query`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::parse::duration::parse_duration;
use crate::parse::value::path_parser;

/// Commands about the journal, the durable record of a server.
#[derive(Subcommand, Debug)]
pub(crate) enum JournalCommand {
    /// Print the events of a journal file, one JSON object per line
    Export(ExportArgs),
    /// Print the events of the running server so far
    Replay(StreamArgs),
    /// Print the events of the running server so far, then new ones as they happen
    Stream(StreamArgs),
    /// Remove completed jobs and lost workers from the journal of the running server
    Prune,
    /// Write all changes to disk, then return
    Flush,
    /// Write a report of a journal file as one HTML page: utilization, run times, failures, cost
    Report(ReportArgs),
    /// Check a journal file for damage, or repair it
    Check(CheckArgs),
}

/// Options of `journal export`.
#[derive(Args, Debug)]
pub(crate) struct ExportArgs {
    /// The journal file, or a server directory; a server may be writing to it
    #[arg(value_name = "FILE", value_parser = path_parser())]
    pub(crate) file: PathBuf,
}

/// Options of `journal replay` and `journal stream`.
#[derive(Args, Debug)]
pub(crate) struct StreamArgs {
    /// Start after the event with this number
    #[arg(
        long,
        value_name = "SEQ",
        default_value_t = 0,
        hide_default_value = true
    )]
    pub(crate) after: u64,

    /// Add the number of each event as `seq`
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

/// Options of `journal report`.
#[derive(Args, Debug)]
pub(crate) struct ReportArgs {
    /// The journal file, or a server directory; a server may be writing to it
    #[arg(value_name = "JOURNAL", value_parser = path_parser())]
    pub(crate) journal: PathBuf,

    /// HTML file to write
    #[arg(value_name = "OUTPUT", value_parser = path_parser())]
    pub(crate) output: PathBuf,

    #[command(flatten)]
    pub(crate) span: SpanArgs,
}

/// Options of `report`.
#[derive(Args, Debug)]
pub(crate) struct LastReportArgs {
    /// HTML file to write
    #[arg(value_name = "OUTPUT", default_value = "hq-report.html")]
    pub(crate) output: PathBuf,

    #[command(flatten)]
    pub(crate) span: SpanArgs,
}

/// The part of a run that a report is about.
#[derive(Args, Debug)]
pub(crate) struct SpanArgs {
    /// Start of the report, as time since the first start of the server
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) start_time: Option<Duration>,

    /// End of the report, as time since the first start of the server
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub(crate) end_time: Option<Duration>,
}

/// Options of `journal check`.
#[derive(Args, Debug)]
pub(crate) struct CheckArgs {
    /// The journal file, or a server directory
    #[arg(value_name = "FILE", value_parser = path_parser())]
    pub(crate) file: PathBuf,

    /// Rebuild the file from its valid parts, keep the damaged file, and list what is lost; no server may use the file
    #[arg(long)]
    pub(crate) repair: bool,
}

/// Options of `query`.
#[derive(Args, Debug)]
pub(crate) struct QueryArgs {
    /// SELECT statement, or `-` to read it from standard input; `--list` shows the views
    #[arg(value_name = "SQL", required_unless_present = "list")]
    pub(crate) sql: Option<String>,

    /// Show the views and their columns
    #[arg(long, conflicts_with = "sql")]
    pub(crate) list: bool,

    /// Read a journal file, or the journal of a server directory, instead of asking the server
    #[arg(long, value_name = "PATH", value_parser = path_parser())]
    pub(crate) journal: Option<PathBuf>,

    /// Print comma-separated values
    #[arg(long)]
    pub(crate) csv: bool,

    /// Maximum number of rows [default: 10000]
    #[arg(
        long,
        value_name = "COUNT",
        default_value_t = 10_000,
        hide_default_value = true
    )]
    pub(crate) row_limit: u64,

    /// Maximum time of the query [default: 10s]
    #[arg(
        long,
        value_name = "DURATION",
        value_parser = parse_duration,
        default_value = "10s",
        hide_default_value = true
    )]
    pub(crate) time_limit: Duration,
}
