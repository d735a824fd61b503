//! `hq doc`, `hq doctor`, `hq generate-completion` and `hq generate-man`.

use std::ffi::OsStr;
use std::path::PathBuf;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::pages;
use crate::parse::value::path_parser;

/// Options of `doc`.
#[derive(Args, Debug)]
pub(crate) struct DocArgs {
    /// Open the page in a browser, as text
    #[arg(long, conflicts_with = "search", requires = "words")]
    pub(crate) open: bool,

    /// Search the words even if a page has this name
    #[arg(long, requires = "words")]
    pub(crate) search: bool,

    /// Name of a page, or words to search in all pages [default: list all pages]
    #[arg(value_name = "PAGE|WORDS", value_parser = PageOrWord, hide_possible_values = true)]
    pub(crate) words: Vec<String>,
}

/// Accepts any word. Shells complete it with the names of pages.
#[derive(Clone)]
struct PageOrWord;

impl TypedValueParser for PageOrWord {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let pages = pages::all().map(|page| {
            let aliases = pages::aliases(page.name);
            PossibleValue::new(page.name)
                .aliases(aliases)
                .help(page.title)
        });
        Some(Box::new(pages))
    }
}

/// Options of `problems`.
#[derive(Args, Debug)]
#[command(after_long_help = super::examples::PROBLEMS)]
pub(crate) struct ProblemsArgs {
    /// Also show failures of ended jobs, and acknowledged problems
    #[arg(long)]
    pub(crate) all: bool,

    /// Hide this problem until it gets worse
    #[arg(long, value_name = "ID", conflicts_with = "take_back")]
    pub(crate) acknowledge: Option<String>,

    /// Show an acknowledged problem again
    #[arg(long, value_name = "ID")]
    pub(crate) take_back: Option<String>,
}

/// Commands that look for the cause of problems.
#[derive(Subcommand, Debug)]
pub(crate) enum DoctorCommand {
    /// Test whether this machine can reach the server, and show what is blocked
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

/// Parts of the whole check, in display order.
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

    /// Returns the name as on the command line.
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
    /// Shell of the completion script
    #[arg(value_enum, value_name = "SHELL")]
    pub(crate) shell: Shell,
}

/// Options of `generate-man`.
#[derive(Args, Debug)]
pub(crate) struct ManArgs {
    /// Directory for the pages; hq creates it if it is missing
    #[arg(value_name = "DIRECTORY", value_parser = path_parser())]
    pub(crate) directory: PathBuf,
}

/// Options of `bridge`.
#[derive(Args, Debug)]
pub(crate) struct BridgeArgs {
    /// Start a server and a worker in this process; they end with it
    #[arg(long)]
    pub(crate) local: bool,

    /// With --local: use at most this many cpus [default: all this process may use]
    #[arg(long, value_name = "CPUS", requires = "local")]
    pub(crate) cpus: Option<std::num::NonZeroU32>,
}

/// Arguments of `gpu-usage`.
#[cfg(feature = "nvml")]
#[derive(Args, Debug)]
pub(crate) struct GpuUsageArgs {
    /// Process whose end ends this process
    pub(crate) parent: u32,
}
