//! Runs external tools.

use std::ffi::OsStr;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

/// Returns a command that runs a program in a neutral locale.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command
        .env("LC_ALL", "C")
        .env("TZ", "UTC")
        .stdin(Stdio::null());
    command
}

/// Runs a program that must succeed. Its output is visible.
pub(crate) fn run(command: &mut Command) -> anyhow::Result<()> {
    let shown = format!("{command:?}");
    let status = command.status().with_context(|| format!("run {shown}"))?;
    if !status.success() {
        bail!("{shown} failed: {status}");
    }
    Ok(())
}

/// Runs a program that must succeed and returns its output.
pub(crate) fn output(command: &mut Command) -> anyhow::Result<String> {
    let shown = format!("{command:?}");
    let output = command.stderr(Stdio::piped()).output();
    let output = output.with_context(|| format!("run {shown}"))?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        bail!("{shown} failed: {}\n{errors}", output.status);
    }
    String::from_utf8(output.stdout).with_context(|| format!("{shown} prints text"))
}

/// Returns whether a program can be run here.
pub(crate) fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).is_file())
}
