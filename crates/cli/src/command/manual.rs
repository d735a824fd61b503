//! `hq generate-man` and `hq generate-reference`: generate documentation from the definitions of
//! the command line.

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
    name_examples(&args.directory).map_err(failed)?;
    let directory = args.directory.display();
    tracing::info!(
        "Manual pages written into the directory {directory}, one for each command; `man -l {directory}/hq.1` shows the first"
    );
    context.done()
}

/// Adds the usual heading `EXAMPLES` to the examples.
fn name_examples(directory: &std::path::Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let is_ours =
            |name: &str| name == "hq.1" || name.starts_with("hq-") && name.ends_with(".1");
        if !path
            .file_name()
            .and_then(|name| name.to_str())
            .is_some_and(is_ours)
        {
            continue;
        }
        let page = std::fs::read_to_string(&path)?;
        if page.contains(".SH EXTRA\nEXAMPLES:") {
            // Without this, the lines would be joined into a paragraph.
            let page = page.replacen(".SH EXTRA\nEXAMPLES:", ".SH EXAMPLES\n.nf", 1);
            std::fs::write(&path, page)?;
        }
    }
    Ok(())
}

/// Prints the reference of the command line, which is `docs/cli.md`.
pub(super) fn reference(context: &mut Context) -> CliResult<()> {
    Ok(context
        .out
        .write_all(reference::markdown(&args::built_command()).as_bytes())?)
}
