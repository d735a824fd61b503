//! `hq generate-man` and `hq generate-reference`: generate documentation from the definitions of
//! the command line.

mod reference;

use std::io::Write as _;
use std::path::Path;

use super::Context;
use super::journal::replace_file;
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
    write_pages(&args.directory).map_err(failed)?;
    let directory = args.directory.display();
    tracing::info!(
        "Manual pages written into the directory {directory}, one for each command; `man -l {directory}/hq.1` shows the first"
    );
    context.done()
}

/// Writes the pages, also in place of links, so that no other file is overwritten.
fn write_pages(directory: &Path) -> std::io::Result<()> {
    let fresh = hq_private::temp_dir(&std::env::temp_dir(), "hq-man-")?;
    clap_mangen::generate_to(args::command(), fresh.path())?;
    for entry in std::fs::read_dir(fresh.path())? {
        let entry = entry?;
        let page = std::fs::read_to_string(entry.path())?;
        // The usual heading. Without `.nf`, the lines would be joined into a paragraph.
        let page = page.replacen(".SH EXTRA\nEXAMPLES:", ".SH EXAMPLES\n.nf", 1);
        replace_file(&directory.join(entry.file_name()), page.as_bytes())?;
    }
    Ok(())
}

/// Prints the reference of the command line, which is `docs/cli.md`.
pub(super) fn reference(context: &mut Context) -> CliResult<()> {
    Ok(context
        .out
        .write_all(reference::markdown(&args::built_command()).as_bytes())?)
}
