//! `hq generate-completion`.

use super::Context;
use crate::args::Cli;
use crate::args::other::CompletionArgs;
use crate::error::CliResult;
use crate::output::console::error_line;
use clap::CommandFactory;

/// Prints the completion script of a shell.
pub(super) fn run(args: &CompletionArgs, context: &mut Context) -> CliResult<()> {
    error_line(&format!("Generating completion file for {}...", args.shell));
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "hq", &mut script);
    use std::io::Write as _;
    context.out.write_all(&script)?;
    Ok(())
}
