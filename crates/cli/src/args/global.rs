//! Options that are valid at every level.

use std::path::PathBuf;

use clap::builder::{FalseyValueParser, TypedValueParser as _};
use clap::{ArgAction, Args, ValueEnum};

use crate::parse::value::path_parser;

const HEADING: &str = "GLOBAL OPTIONS";

/// Options of every command; only the long help shows them.
#[derive(Args, Clone, Debug)]
pub(crate) struct GlobalArgs {
    /// Directory where server, workers and clients find each other
    ///
    /// The server writes its access file there. [default: `.hq-server` in your home directory]
    #[arg(
        long,
        value_name = "PATH",
        env = "HQ_SERVER_DIR",
        value_parser = path_parser().try_map(not_blank),
        hide_env_values = true,
        global = true,
        help_heading = HEADING,
        hide_short_help = true
    )]
    pub(crate) server_dir: Option<PathBuf>,

    /// When to use colors; `auto` means only on a terminal
    #[arg(
        long,
        value_enum,
        default_value_t = ColorMode::Auto,
        global = true,
        help_heading = HEADING,
        hide_short_help = true
    )]
    pub(crate) colors: ColorMode,

    /// Form of the output: text for people, JSON for programs, or only ids and states for `$(…)`
    #[arg(
        long,
        value_enum,
        default_value_t = OutputMode::Cli,
        env = "HQ_OUTPUT_MODE",
        hide_env_values = true,
        global = true,
        help_heading = HEADING,
        hide_short_help = true
    )]
    pub(crate) output_mode: OutputMode,

    /// Log in more detail
    #[arg(
        long,
        action = ArgAction::SetTrue,
        value_parser = FalseyValueParser::new(),
        env = "HQ_DEBUG",
        hide_env_values = true,
        global = true,
        help_heading = HEADING,
        hide_short_help = true
    )]
    pub(crate) debug: bool,
}

/// Rejects a blank path, which comes from a variable that is set incorrectly.
fn not_blank(path: PathBuf) -> Result<PathBuf, &'static str> {
    let is_blank = path.to_str().is_some_and(|text| text.trim().is_empty());
    if is_blank {
        return Err("it has nothing but blanks");
    }
    Ok(path)
}

/// When to use colours.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ColorMode {
    /// Only if standard output is a terminal
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// Shape of the output.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OutputMode {
    /// Tables and sentences
    Cli,
    /// One JSON value
    Json,
    /// Ids and states only
    Quiet,
}
