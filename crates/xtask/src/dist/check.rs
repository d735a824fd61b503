//! Each artefact that can be used here is: installed into an empty directory, run from there, and the static ones in a root
//! that has nothing else.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use super::build::{TARGETS, Target, Tools};
use super::shell::{command, is_there, output, run};
use super::{Dist, Made, oci};

/// Runs programs for other processors (Debian: `apt install qemu-user-static`).
const EMULATOR: &str = "qemu-aarch64-static";

/// Server, worker and job in the directory `$1`, which has the program `$2` and nothing else. The shell and its tools are those
/// outside; what the system gives each process, `/proc` and `/dev`, is mounted.
const EMPTY_ROOT: &str = r#"
set -eu
root=$1 program=$2
mkdir -p "$root/proc" "$root/dev" "$root/tmp"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
PATH=$PATH:/usr/sbin:/sbin
hq() { timeout --foreground 120 chroot "$root" "$program" "$@"; }
export HOME=/tmp
unset HQ_SERVER_DIR
cd /
hq run --array 1-3 -- "$program" --version >"$root/tmp/run"
test "$(wc -l <"$root/tmp/run")" -eq 3
# There is no /etc/hosts, in which containers have their own name.
hq server start --host 127.0.0.1 >"$root/tmp/server" 2>&1 &
server=$!
hq server wait --timeout 60s >"$root/tmp/wait" 2>&1 || { cat "$root/tmp/server" "$root/tmp/wait" >&2; exit 1; }
hq worker start >"$root/tmp/worker" 2>&1 &
hq submit --wait --cwd /tmp --array 1-3 -- "$program" --version >"$root/tmp/submit" 2>&1 ||
    { cat "$root/tmp/server" "$root/tmp/worker" "$root/tmp/submit" >&2; exit 1; }
hq job cat 1 stdout
hq server stop >"$root/tmp/stop" 2>&1
wait "$server"
"#;

/// Installs and uses what can be installed here.
pub(super) fn check(dist: &Dist, tools: &Tools, made: &[Made]) -> anyhow::Result<()> {
    for artefact in made {
        let Made::File(name) = artefact else { continue };
        if let Some(target) = TARGETS.iter().find(|target| target.is_for(name)) {
            if name.ends_with("-oci.tar") {
                let (root, program) = oci::unpack(dist, name)?;
                use_alone(dist, name, &root, &program)?;
            } else if let Some(program) = install(dist, tools, target, name)? {
                use_it(dist, target, name, &program)?;
            }
        }
    }
    Ok(())
}

impl Target {
    /// Whether a file has the program for this target.
    fn is_for(&self, name: &str) -> bool {
        let (cpu, is_static) = (self.rpm_arch, self.glibc.is_none());
        let tarball = if is_static {
            "-static.tar.gz"
        } else {
            ".tar.gz"
        };
        name.ends_with(&format!("-linux-{cpu}{tarball}"))
            || name.ends_with(&format!("-{}.whl", self.wheel_tag))
            || (self.has_packages && name.ends_with(&format!("_{}.deb", self.deb_arch)))
            || (self.has_image && name.ends_with("-oci.tar"))
    }
}

/// Where the program is then; `None` for files that are not installed so.
fn install(
    dist: &Dist,
    tools: &Tools,
    target: &Target,
    name: &str,
) -> anyhow::Result<Option<PathBuf>> {
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
    if !name.ends_with(".whl") {
        return Ok(None);
    }
    let pip = ["-m", "pip", "install", "--quiet", "--no-index"];
    let is_own = target.rpm_arch == std::env::consts::ARCH && target.glibc.is_some();
    if is_own && cfg!(target_env = "gnu") {
        run(command(tools.python()).args(["-m", "venv"]).arg(&root))?;
        let mut install = command(root.join("bin/python"));
        run(install
            .args(pip)
            .arg("--disable-pip-version-check")
            .arg(&file))?;
    } else {
        // Python here is of another kind; into a directory pip installs for any.
        let mut install = command(tools.python());
        install.args(pip).args(["--no-deps", "--only-binary=:all:"]);
        install.args([
            "--disable-pip-version-check",
            "--platform",
            target.wheel_tag,
        ]);
        run(install.arg("--target").arg(&root).arg(&file))?;
    }
    Ok(Some(root.join("bin/hq")))
}

/// Tells its version and runs tasks, with a home that is empty; a static program also where nothing else is.
fn use_it(dist: &Dist, target: &Target, name: &str, program: &Path) -> anyhow::Result<()> {
    if target.rpm_arch != std::env::consts::ARCH {
        return emulate(dist, name, program);
    }
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
    expect_version(dist, name, &hq(&["--version"])?)?;
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
    if target.glibc.is_none() && name.ends_with(".tar.gz") {
        let root = dist.scratch("alone")?;
        fs::copy(program, root.join("hq")).context("copy the program")?;
        use_alone(dist, name, &root, "/hq")?;
    }
    Ok(())
}

/// Runs server, worker and a job in a root that has only the program.
fn use_alone(dist: &Dist, name: &str, root: &Path, program: &str) -> anyhow::Result<()> {
    // For root it is the same as for anybody else; who is not root needs a namespace of users, too.
    let namespaces = [
        "--map-root-user",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
    ];
    let mut unshare = command("unshare");
    unshare
        .args(namespaces)
        .args(["sh", "-c", EMPTY_ROOT, "sh"]);
    let printed = output(unshare.arg(root).arg(program))
        .with_context(|| format!("use {name} in an empty root"))?;
    ensure!(
        printed.lines().count() == 3,
        "{name}: expected 3 lines of 3 tasks, found {printed:?}"
    );
    expect_version(dist, name, &printed)
}

/// A program for another processor: what an emulator of one process can tell.
fn emulate(dist: &Dist, name: &str, program: &Path) -> anyhow::Result<()> {
    if !is_there(EMULATOR) {
        crate::print(&format!("{name}: not run, there is no {EMULATOR}\n"));
        return Ok(());
    }
    let mut hq = command(EMULATOR);
    let version = output(hq.arg(program).arg("--version"))
        .with_context(|| format!("use {name} by {EMULATOR}"))?;
    expect_version(dist, name, &version)
}

/// A program that was not built for a release has more behind the version.
fn expect_version(dist: &Dist, name: &str, found: &str) -> anyhow::Result<()> {
    let expected = format!("hq {}", dist.version);
    ensure!(
        found.starts_with(&expected),
        "{name}: expected {expected:?}, found {found:?}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_file_belongs_to_one_target() {
        let owner = |name: &str| {
            let targets = TARGETS.iter().filter(|target| target.is_for(name));
            let triples: Vec<&str> = targets.map(|target| target.triple).collect();
            triples
        };
        for (name, triple) in [
            ("hq-0.1.0-linux-x86_64.tar.gz", "x86_64-unknown-linux-gnu"),
            (
                "hq-0.1.0-linux-x86_64-static.tar.gz",
                "x86_64-unknown-linux-musl",
            ),
            ("hq-0.1.0-oci.tar", "x86_64-unknown-linux-musl"),
            ("hq_0.1.0_arm64.deb", "aarch64-unknown-linux-gnu"),
            (
                "hq_runtime-0.1.0-py3-none-musllinux_1_2_aarch64.whl",
                "aarch64-unknown-linux-musl",
            ),
        ] {
            assert_eq!(owner(name), [triple], "{name}");
        }
        assert_eq!(owner("hq-0.1.0.cdx.json"), [""; 0]);
    }
}
