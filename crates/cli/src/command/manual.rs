//! `hq generate-man` and `hq generate-reference`: the command line described by itself.

mod reference;

use std::io::Write as _;

use super::Context;
use crate::args;
use crate::args::other::ManArgs;
use crate::error::{CliError, CliResult};

/// Writes a manual page for each command.
pub(super) fn man(args: &ManArgs, context: &mut Context) -> CliResult<()> {
    let failed = |error: std::io::Error| {
        let directory = args.directory.display();
        CliError::caused(
            format!("Cannot write manual pages into {directory}"),
            &error,
        )
    };
    std::fs::create_dir_all(&args.directory).map_err(failed)?;
    clap_mangen::generate_to(args::command(), &args.directory).map_err(failed)?;
    tracing::info!("Manual pages written into {}", args.directory.display());
    context.done()
}

/// Prints the reference of the command line: `docs/cli.md`.
pub(super) fn reference(context: &mut Context) -> CliResult<()> {
    Ok(context
        .out
        .write_all(reference::markdown(&args::built_command()).as_bytes())?)
}
