//! Baselines for comparison: the tightest spawn-and-reap loop in C, and `xargs`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// Returns the path of a file of `baseline/`.
pub(crate) fn source(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    root.join("baseline").join(name)
}

/// Compiles a C file of `baseline/` with `cc -O2` into `dir`.
pub(crate) fn compile(dir: &Path, name: &str, flags: &[&str]) -> Result<PathBuf> {
    let source = source(&format!("{name}.c"));
    let binary = dir.join(name);
    let status = Command::new("cc")
        .args(["-O2", "-o"])
        .arg(&binary)
        .arg(&source)
        .args(flags)
        .status()
        .context("cannot run `cc`; install a C compiler")?;
    ensure!(status.success(), "cc failed on {}", source.display());
    Ok(binary)
}

/// Returns how long a program takes, which must succeed.
pub(crate) fn time(command: &mut Command) -> Result<Duration> {
    let start = Instant::now();
    let status = command.status();
    let status = status.with_context(|| format!("cannot run {command:?}"))?;
    ensure!(status.success(), "{command:?} failed");
    Ok(start.elapsed())
}

/// Runs the loop. With `outputs`, a new directory, each process creates two files in it.
pub(crate) fn spawn_loop(
    binary: &Path,
    count: u32,
    cpus: u32,
    program: &str,
    outputs: Option<&Path>,
) -> Result<Duration> {
    let numbers = [count, cpus].map(|number| number.to_string());
    if let Some(outputs) = outputs {
        std::fs::create_dir(outputs)?;
    }
    time(
        Command::new(binary)
            .args(numbers)
            .arg(program)
            .args(outputs),
    )
}

/// Runs the same processes through `xargs -P`.
pub(crate) fn xargs(count: u32, cpus: u32, program: &str) -> Result<Duration> {
    let script = format!("seq {count} | xargs -P{cpus} -n1 {program}");
    time(
        Command::new("sh")
            .args(["-c", &script])
            .stdout(Stdio::null()),
    )
}
