//! Baselines for comparison: the tightest spawn-and-reap loop in C, and `xargs`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

/// Compiles a C file of `baseline/` with `cc -O2` into `dir`.
pub(crate) fn compile(dir: &Path, name: &str, flags: &[&str]) -> Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("baseline")
        .join(format!("{name}.c"));
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

/// Runs the loop and returns how long it took.
pub(crate) fn spawn_loop(
    binary: &Path,
    count: u32,
    threads: u32,
    program: &str,
) -> Result<Duration> {
    let start = Instant::now();
    let status = Command::new(binary)
        .args([count.to_string(), threads.to_string(), program.to_owned()])
        .status()
        .context("cannot run the spawn loop")?;
    ensure!(status.success(), "the spawn loop failed");
    Ok(start.elapsed())
}

/// Runs the same processes through `xargs -P`.
pub(crate) fn xargs(count: u32, threads: u32, program: &str) -> Result<Duration> {
    let start = Instant::now();
    let script = format!("seq {count} | xargs -P{threads} -n1 {program}");
    let status = Command::new("sh")
        .args(["-c", &script])
        .stdout(Stdio::null())
        .status()
        .context("cannot run xargs")?;
    ensure!(status.success(), "xargs failed");
    Ok(start.elapsed())
}
