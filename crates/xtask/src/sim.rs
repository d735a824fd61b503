//! Runs simulated worlds manually: the program is an example of the store, so that this crate
//! depends on no other crate of the project.

use std::process::{Command, ExitCode};

use anyhow::Context as _;

/// Runs it with these arguments. It is compiled as tests are.
///
/// # Errors
///
/// If cargo cannot be started.
pub(crate) fn sim(args: &[&str]) -> anyhow::Result<ExitCode> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["run", "--quiet", "--package", "hq-store"])
        .args(["--features", "testing", "--example", "sim", "--"])
        .args(args)
        .current_dir(crate::tidy::workspace_root()?)
        .status()
        .context("start cargo")?;
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    Ok(ExitCode::from(code.unwrap_or(1)))
}
