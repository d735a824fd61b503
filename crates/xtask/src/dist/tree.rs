//! Creates the installed layout that all packages share: program, pages, completions, units and
//! license.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};

use super::Dist;
use super::build::Target;
use super::check::in_place;
use crate::shell::{command, output, run};

/// Files in the repository, and where they are installed.
const FILES: &[(&str, &str)] = &[
    (
        "packaging/systemd/hq-server.service",
        "lib/systemd/user/hq-server.service",
    ),
    (
        "packaging/systemd/hq-worker.service",
        "lib/systemd/user/hq-worker.service",
    ),
    ("LICENSE", "share/doc/hq/copyright"),
    ("README.md", "share/doc/hq/README.md"),
    ("docs/install.md", "share/doc/hq/install.md"),
    ("CHANGELOG.md", "share/doc/hq/changelog"),
];

/// Shells, and the names of their completion files.
const COMPLETIONS: &[(&str, &str)] = &[
    ("bash", "share/bash-completion/completions/hq"),
    ("zsh", "share/zsh/site-functions/_hq"),
    ("fish", "share/fish/vendor_completions.d/hq.fish"),
];

/// Creates the layout in a directory named like the tarball, and returns that directory.
pub(super) fn make(dist: &Dist, target: &Target, binary: &Path) -> anyhow::Result<PathBuf> {
    let tree = dist
        .scratch(&format!("tree-{}", target.triple))?
        .join(name(dist, target));
    let described = describe(dist, binary)?;
    copy_tree(&described, &tree)?;
    place(binary, &tree.join("bin/hq"), 0o755)?;
    for (from, to) in FILES {
        place(&dist.root.join(from), &tree.join(to), 0o644)?;
    }
    compress(&tree.join("share/doc/hq/changelog"))?;
    Ok(tree)
}

/// Returns the name of the tarball and of its directory.
pub(super) fn name(dist: &Dist, target: &Target) -> String {
    let cpu = target.rpm_arch;
    let kind = if target.glibc.is_some() {
        ""
    } else {
        "-static"
    };
    format!("hq-{}-linux-{cpu}{kind}", dist.version)
}

/// The directory for pages and completions, for programs that cannot be run here.
const DESCRIBED: &str = "described";

/// Removes files that the program of another commit has written.
pub(super) fn forget(work: &Path) -> anyhow::Result<()> {
    match fs::remove_dir_all(work.join(DESCRIBED)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error).context("remove old pages"),
        _ => Ok(()),
    }
}

/// Generates pages and completions with the first program that can be run here. They are the same
/// for all targets.
fn describe(dist: &Dist, binary: &Path) -> anyhow::Result<PathBuf> {
    let directory = dist.work.join(DESCRIBED);
    if in_place(binary)
        .arg("--version")
        .output()
        .is_ok_and(|ran| ran.status.success())
    {
        let directory = dist.scratch(DESCRIBED)?;
        let pages = directory.join("share/man/man1");
        run(in_place(binary).arg("generate-man").arg(&pages))?;
        for page in fs::read_dir(&pages).context("list the manual pages")? {
            compress(&page.context("a page")?.path())?;
        }
        for (shell, path) in COMPLETIONS {
            let script = output(in_place(binary).args(["generate-completion", shell]))?;
            let path = directory.join(path);
            make_parent(&path)?;
            fs::write(&path, script).with_context(|| format!("write {}", path.display()))?;
        }
    }
    ensure!(
        directory.is_dir(),
        "{} cannot be run here, so it cannot write its manual pages: leave `--target` out, another program then does",
        binary.display()
    );
    Ok(directory)
}

/// Compresses a file without storing its name and time, so that the result is reproducible.
fn compress(file: &Path) -> anyhow::Result<()> {
    run(command("gzip").args(["--no-name", "-9"]).arg(file))
}

/// Copies a directory tree and makes it readable for all users.
pub(super) fn copy_tree(from: &Path, to: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(from).with_context(|| format!("list {}", from.display()))? {
        let entry = entry.with_context(|| format!("list {}", from.display()))?;
        let target = to.join(entry.file_name());
        let found = entry
            .metadata()
            .with_context(|| format!("look at {}", target.display()))?;
        if found.is_dir() {
            fs::create_dir_all(&target).with_context(|| format!("make {}", target.display()))?;
            copy_tree(&entry.path(), &target)?;
        } else {
            let is_program = found.permissions().mode() & 0o100 != 0;
            place(
                &entry.path(),
                &target,
                if is_program { 0o755 } else { 0o644 },
            )?;
        }
    }
    Ok(())
}

fn place(from: &Path, to: &Path, mode: u32) -> anyhow::Result<()> {
    make_parent(to)?;
    fs::copy(from, to).with_context(|| format!("copy {} to {}", from.display(), to.display()))?;
    let mode = fs::Permissions::from_mode(mode);
    fs::set_permissions(to, mode).with_context(|| format!("rights of {}", to.display()))
}

fn make_parent(path: &Path) -> anyhow::Result<()> {
    let parent = path.parent().context("files are in directories")?;
    fs::create_dir_all(parent).with_context(|| format!("make {}", parent.display()))
}
