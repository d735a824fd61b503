//! Checks each artifact that can be used on this machine: installs it into an empty directory and
//! runs it from there. Static programs run in a root directory without other files. Programs for
//! another processor run if the kernel has an emulator for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use super::build::{TARGETS, Target, Tools};
use super::{Dist, Made, oci};
use crate::shell::{command, is_there, output, run};

/// How to enable an emulator on Debian, and the path of its C library.
const EMULATION: &str = "`apt install qemu-user-static binfmt-support libc6-arm64-cross`";
const FOREIGN_ROOT: &str = "/usr/aarch64-linux-gnu";
/// The page size of the largest machines, in bytes. Only an emulator can be configured for it.
const LARGE_PAGE: &str = "65536";

/// Runs a server, a worker and a job in the directory `$1`, which contains only the program `$2`.
/// The shell and its tools come from outside; `/proc` and `/dev` are mounted.
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
# There is no /etc/hosts, which lists a container's own name.
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

/// Runs the program `$1`, built for another processor, under a slow emulator: a server stores a job
/// in a journal, the next server continues it, and a worker runs its tasks, which are native
/// programs.
const SERVE: &str = r#"
set -eu
serve() {
    "$1" server start --host 127.0.0.1 --journal jobs.db >server.log 2>&1 &
    server=$!
    "$1" server wait --timeout 60s >wait.log 2>&1 || { cat server.log wait.log >&2; exit 1; }
}
serve "$1"
"$1" submit --array 1-20 -- sh -c 'echo $HQ_TASK_ID' >submit.log
"$1" server stop >stop.log
wait "$server"
serve "$1"
"$1" worker start >worker.log 2>&1 &
timeout --foreground 120 "$1" job wait 1 >wait.log 2>&1 || { cat server.log worker.log wait.log >&2; exit 1; }
"$1" job cat 1 stdout
"$1" server stop >stop.log
wait "$server"
"#;

/// Calls a function of the standard library, and uses a package that gives way to another one with
/// the same name.
const USE_PACKAGES: &str = r#"
import hq, hyperqueue, os, sysconfig
with hq.Executor(1, local=True) as executor:
    print(executor.submit(pow, 2, 7).result(60), hyperqueue.get_version())
site = sysconfig.get_path("purelib")
assert not os.path.exists(os.path.join(site, "hyperqueue")), "the place of another package"
"#;

/// Checks the units in the directory `$1` as if it were `/usr`. The manual pages that they
/// reference must also exist.
const UNITS: &str = r#"
set -eu
mount -t overlay overlay -o "lowerdir=$1:/usr" /usr || { echo "units not checked" >&2; exit 0; }
export XDG_RUNTIME_DIR=/run
systemd-analyze verify --user hq-server.service hq-worker.service
"#;

/// Installs and uses every artifact that can be installed here.
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
    /// Returns whether an artifact contains the program for this target.
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
            || (self.has_packages && name.ends_with(&format!(".{}.rpm", self.rpm_arch)))
            || (self.has_image && name.ends_with("-oci.tar"))
    }
}

/// Returns the path of the program after installation, or `None` for files that are not installed
/// this way.
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
        check_units(name, &root)?;
        return Ok(Some(root.join("usr/bin/hq")));
    }
    if name.ends_with(".rpm") {
        // There, rpm has a separate database that knows no other package and may be for another
        // processor.
        let words = ["rpm", "--install", "--nodeps", "--ignorearch", "--root"];
        output(as_root(&words).arg(&root).arg(&file))?;
        check_units(name, &root)?;
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
        use_packages(dist, &root, name)?;
    } else {
        // The local Python is a different one, but pip can install for any Python if it installs
        // into a directory.
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

/// Uses both packages in an otherwise empty environment.
fn use_packages(dist: &Dist, root: &Path, name: &str) -> anyhow::Result<()> {
    let drop_in = format!("hq_runtime_hyperqueue-{}-py3-none-any.whl", dist.version);
    let python = || {
        let mut python = command(root.join("bin/python"));
        // Only what was installed must be visible.
        python.arg("-I").current_dir(root);
        python.env_remove("HQ_BINARY").env_remove("HQ_SERVER_DIR");
        python
    };
    let words = ["-m", "pip", "install", "--quiet", "--no-index", "--no-deps"];
    run(python()
        .args(words)
        .arg("--disable-pip-version-check")
        .arg(dist.out.join(&drop_in)))?;
    let printed = output(python().args(["-c", USE_PACKAGES]))
        .with_context(|| format!("use {name} and {drop_in} from Python"))?;
    ensure!(
        printed.starts_with("128 "),
        "{name}: expected 128 and a version, found {printed:?}"
    );
    Ok(())
}

/// Returns a command that runs as root in separate namespaces. Any user may run it.
fn as_root(words: &[&str]) -> Command {
    let mut unshare = command("unshare");
    unshare
        .args(["--map-root-user", "--mount", "--pid", "--fork"])
        .args(["--kill-child", "--"])
        .args(words);
    unshare
}

/// Verifies the units of an installed package with systemd.
fn check_units(name: &str, root: &Path) -> anyhow::Result<()> {
    if !is_there("systemd-analyze") || !is_there("man") {
        crate::print(&format!(
            "{name}: units not checked, needs systemd-analyze and man\n"
        ));
        return Ok(());
    }
    run(as_root(&["sh", "-c", UNITS, "sh"]).arg(root.join("usr")))
        .with_context(|| format!("the units of {name}"))
}

/// Uses an installed program, if that is possible here.
fn use_it(dist: &Dist, target: &Target, name: &str, program: &Path) -> anyhow::Result<()> {
    let is_own = target.rpm_arch == std::env::consts::ARCH;
    let starts = in_place(program).arg("--version").output();
    if !is_own && !starts.is_ok_and(|ran| ran.status.success()) {
        crate::print(&format!(
            "{name}: not run; {EMULATION} has it run by an emulator\n"
        ));
        return Ok(());
    }
    work(dist, name, program, is_own, &[])?;
    if !is_own {
        let pages = [("QEMU_PAGESIZE", LARGE_PAGE)];
        return work(dist, name, program, is_own, &pages);
    }
    if target.glibc.is_none() && name.ends_with(".tar.gz") {
        let root = dist.scratch("alone")?;
        fs::copy(program, root.join("hq")).context("copy the program")?;
        use_alone(dist, name, &root, "/hq")?;
    }
    Ok(())
}

/// Returns a command in a neutral directory. A program for another processor finds its libraries.
pub(super) fn in_place(program: &Path) -> Command {
    let mut hq = command(program);
    hq.env("QEMU_LD_PREFIX", FOREIGN_ROOT)
        .env_remove("HQ_SERVER_DIR");
    hq
}

/// Makes the program print its version, inspect the machine and run tasks, with an empty home.
fn work(
    dist: &Dist,
    name: &str,
    program: &Path,
    is_own: bool,
    variables: &[(&str, &str)],
) -> anyhow::Result<()> {
    let home = dist.scratch("home")?;
    let at_home = |program: &Path, words: &[&str]| {
        let mut hq = in_place(program);
        hq.args(words)
            .env("HOME", &home)
            .envs(variables.iter().copied())
            .current_dir(&home);
        hq
    };
    let hq = |words: &[&str]| at_home(program, words);
    let told = |words: &[&str]| output(&mut hq(words)).with_context(|| format!("use {name}"));
    expect_version(dist, name, &told(&["--version"])?)?;
    // Other problems of this machine do not matter here, and neither does the exit code.
    let doctor = hq(&["doctor", "--output-mode=quiet"]).output();
    let doctor = doctor.with_context(|| format!("use {name}"))?;
    let doctor = String::from_utf8_lossy(&doctor.stdout).into_owned();
    let is_told = |line: &str| doctor.lines().any(|told| told == line);
    ensure!(
        is_told("good program") && (is_told("good processes") || is_told("poor processes")),
        "{name}: expected a good program that can create processes, found {doctor:?}"
    );
    let echo = ["sh", "-c", "echo $HQ_TASK_ID"];
    expect_lines(
        name,
        &told(&[&["run", "--array", "1-20", "--"], &echo[..]].concat())?,
    )?;
    if !is_own {
        let mut serve = at_home(Path::new("sh"), &["-c", SERVE, "sh"]);
        let printed = output(serve.arg(program)).with_context(|| format!("use {name}"))?;
        expect_lines(name, &printed)?;
    }
    Ok(())
}

/// Checks that each of twenty tasks printed one line.
fn expect_lines(name: &str, printed: &str) -> anyhow::Result<()> {
    let count = printed.lines().count();
    ensure!(
        count == 20,
        "{name}: expected 20 lines of 20 tasks, found {count}"
    );
    Ok(())
}

/// Runs a server, a worker and a job in a root directory that contains only the program.
fn use_alone(dist: &Dist, name: &str, root: &Path, program: &str) -> anyhow::Result<()> {
    let mut alone = as_root(&["sh", "-c", EMPTY_ROOT, "sh"]);
    let printed = output(alone.arg(root).arg(program))
        .with_context(|| format!("use {name} in an empty root"))?;
    ensure!(
        printed.lines().count() == 3,
        "{name}: expected 3 lines of 3 tasks, found {printed:?}"
    );
    expect_version(dist, name, &printed)
}

/// Checks the version. It is longer if the program was not built for a release.
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
            ("hq-0.1.0-1.x86_64.rpm", "x86_64-unknown-linux-gnu"),
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
