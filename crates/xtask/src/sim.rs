//! Runs simulated worlds manually. The program is an example of the store crate, so that this crate
//! does not depend on any other crate of the project.

use std::process::{Command, ExitCode};

use anyhow::Context as _;

/// Runs the program with these arguments. It is compiled with the profile of tests.
///
/// # Errors
///
/// If cargo cannot be started.
pub(crate) fn sim(args: &[String]) -> anyhow::Result<ExitCode> {
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
