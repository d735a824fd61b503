//! `hq import …`.

use std::path::PathBuf;

use clap::Args;

use crate::parse::value::path_parser;
use crate::script_system::System;

/// Options of `import`.
#[derive(Args, Debug)]
#[command(after_long_help = super::examples::IMPORT)]
pub(crate) struct ImportArgs {
    /// Submit the script instead of printing it
    #[arg(long)]
    pub(crate) submit: bool,

    /// Options as on the command line of `sbatch`, `qsub` or `bsub`; they override the lines of the script
    #[arg(long, value_name = "OPTIONS", allow_hyphen_values = true)]
    pub(crate) options: Option<String>,

    /// Batch system of the script [default: recognized by its lines]
    #[arg(long, value_enum, value_name = "SYSTEM")]
    pub(crate) system: Option<System>,

    /// Script with `#SBATCH`, `#PBS` or `#BSUB` lines; `-` is standard input
    #[arg(value_name = "FILE", value_parser = path_parser())]
    pub(crate) script: PathBuf,

    /// With --submit: arguments of the script
    #[arg(
        value_name = "ARGS",
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    pub(crate) args: Vec<String>,
}
