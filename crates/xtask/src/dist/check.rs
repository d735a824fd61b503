//! Each package of this machine's kind is installed into an empty directory and used there.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use super::build::Tools;
use super::shell::{command, output, run};
use super::{Dist, Made};

/// Installs and uses what can be installed here.
pub(super) fn check(dist: &Dist, tools: &Tools, made: &[Made]) -> anyhow::Result<()> {
    let cpu = std::env::consts::ARCH;
    for artefact in made {
        let Made::File(name) = artefact else { continue };
        let is_for_us = name.contains(cpu) || (cpu == "x86_64" && name.contains("amd64"));
        if is_for_us && let Some(program) = install(dist, tools, name)? {
            use_it(dist, name, &program)?;
        }
    }
    Ok(())
}

/// Where the program is then; `None` for files that are not installed so.
fn install(dist: &Dist, tools: &Tools, name: &str) -> anyhow::Result<Option<PathBuf>> {
    let file = dist.out.join(name);
    let root = dist.scratch("installed")?;
    if name.ends_with(".tar.gz") {
        let mut unpack = command("tar");
        unpack.args(["--strip-components=1", "-C"]).arg(&root);
        run(unpack.arg("-xzf").arg(&file))?;
        return Ok(Some(root.join("bin/hq")));
    }
    if name.ends_with(".deb") {
        run(command("dpkg-deb").arg("-x").arg(&file).arg(&root))?;
        return Ok(Some(root.join("usr/bin/hq")));
    }
    if name.contains("manylinux") && cfg!(target_env = "gnu") {
        run(command(tools.python()).args(["-m", "venv"]).arg(&root))?;
        let pip = [
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-index",
            "--disable-pip-version-check",
        ];
        run(command(root.join("bin/python")).args(pip).arg(&file))?;
        return Ok(Some(root.join("bin/hq")));
    }
    Ok(None)
}

/// Tells its version and runs tasks, with a home that is empty.
fn use_it(dist: &Dist, name: &str, program: &Path) -> anyhow::Result<()> {
    let home = dist.scratch("home")?;
    let hq = |words: &[&str]| {
        let mut hq = command(program);
        output(
            hq.args(words)
                .env("HOME", &home)
                .env_remove("HQ_SERVER_DIR")
                .current_dir(&home),
        )
        .with_context(|| format!("use {name}"))
    };
    let version = hq(&["--version"])?;
    // A program that was not built for a release has more behind it.
    let expected = format!("hq {}", dist.version);
    ensure!(
        version.starts_with(&expected),
        "{name}: expected {expected:?}, found {version:?}"
    );
    let printed = hq(&[
        "run",
        "--array",
        "1-20",
        "--",
        "sh",
        "-c",
        "echo $HQ_TASK_ID",
    ])?;
    let count = printed.lines().count();
    ensure!(
        count == 20,
        "{name}: expected 20 lines of 20 tasks, found {count}"
    );
    Ok(())
}
