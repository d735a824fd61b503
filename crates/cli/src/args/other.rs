//! `hq doc`, `hq doctor`, `hq generate-completion` and `hq generate-man`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use clap_complete::Shell;

/// Options of `doc`.
#[derive(Args, Debug)]
pub(crate) struct DocArgs {
    /// Also open the page in a browser
    #[arg(long)]
    pub(crate) open: bool,

    /// What to read about [default: the front page]
    #[arg(value_enum, value_name = "TOPIC")]
    pub(crate) topic: Option<DocTopic>,
}

/// Parts of the documentation.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DocTopic {
    /// Jobs and their tasks
    #[value(aliases = ["jobs", "tasks"])]
    Job,
    /// Many similar tasks in one job
    Taskarray,
    /// What tasks need and workers offer
    Resources,
    /// Workers
    #[value(alias = "workers")]
    Worker,
    /// Workers that are asked for automatically
    #[value(aliases = ["pbs", "slurm"])]
    Autoalloc,
    /// The interface for Python
    #[value(alias = "python")]
    PythonApi,
    /// The most useful commands on one page
    Cheatsheet,
    /// What changed
    Changelog,
    /// Questions and answers
    Faq,
}

/// Commands that look for the cause of problems.
#[derive(Subcommand, Debug)]
pub(crate) enum DoctorCommand {
    /// Test from here whether the server can be reached, and say what is blocked
    ///
    /// Run it on a compute node if workers cannot connect, or on a login node if clients cannot.
    Net,
    /// One part of the whole check, as JSON
    #[command(hide = true)]
    Part {
        #[arg(value_enum)]
        part: DoctorPart,
    },
}

/// What the whole check consists of, in the order in which it is shown.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DoctorPart {
    /// Program, kernel, control groups, limits
    System,
    /// Server directory
    Files,
    /// Commands of batch systems
    Batch,
    /// The server that runs
    Server,
}

impl DoctorPart {
    pub(crate) const ALL: [Self; 4] = [Self::System, Self::Files, Self::Batch, Self::Server];

    /// As on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Files => "files",
            Self::Batch => "batch",
            Self::Server => "server",
        }
    }
}

/// Options of `generate-completion`.
#[derive(Args, Debug)]
pub(crate) struct CompletionArgs {
    /// Shell to make the script for
    #[arg(value_enum, value_name = "SHELL")]
    pub(crate) shell: Shell,
}

/// Options of `generate-man`.
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// Directory for the pages; made if it is missing
    #[arg(value_name = "DIRECTORY")]
    pub(crate) directory: PathBuf,
}
