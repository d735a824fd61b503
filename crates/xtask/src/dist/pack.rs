//! Builds the packages of one program: tarball, wheel, Debian package, RPM.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::Context as _;

use super::build::{Target, Tools};
use super::{Dist, Made, tree};
use crate::shell::{command, is_there, output, run};

/// Packs a directory that can be unpacked anywhere and is named like the file.
pub(super) fn tarball(dist: &Dist, target: &Target, tree: &Path) -> anyhow::Result<Made> {
    let parent = tree.parent().context("the tree is in a directory")?;
    archive(dist, parent, &tree::name(dist, target))
}

/// Packs the manual as a site.
pub(super) fn site(dist: &Dist, tools: &Tools) -> anyhow::Result<Made> {
    let name = format!("hq-{}-site", dist.version);
    let Some(zensical) = tools.zensical() else {
        let reason = "zensical is not installed (packaging/site-requirements.txt)";
        return Ok(Made::Missing(name, reason.to_owned()));
    };
    let built = crate::site::site(&dist.root, &zensical)?;
    let parent = dist.scratch("site")?;
    tree::copy_tree(&built, &parent.join(&name))?;
    archive(dist, &parent, &name)
}

/// Packs the directory with this name.
fn archive(dist: &Dist, parent: &Path, name: &str) -> anyhow::Result<Made> {
    let plain = dist.out.join(format!("{name}.tar"));
    dist.tar(parent, &[name], &plain)?;
    let level = format!("-{}", dist.compression());
    run(command("gzip").args(["--no-name", &level]).arg(&plain))?;
    Ok(Made::File(format!("{name}.tar.gz")))
}

/// Builds the wheel for `pip install`; see `packaging/wheel`.
pub(super) fn wheel(
    dist: &Dist,
    tools: &Tools,
    target: &Target,
    binary: &Path,
) -> anyhow::Result<Made> {
    let name = output(
        command(tools.python())
            .arg(dist.root.join("packaging/wheel/make_wheel.py"))
            .arg(binary)
            .args([&dist.version, target.wheel_tag])
            .arg(dist.root.join("LICENSE"))
            .arg(dist.root.join("README.md"))
            .arg(&dist.out)
            .arg(dist.compression())
            .env("SOURCE_DATE_EPOCH", &dist.epoch),
    )?;
    Ok(Made::File(name.trim().to_owned()))
}

/// Builds the platform-independent package `hyperqueue`, which requires the wheel with the program.
pub(super) fn drop_in(dist: &Dist, tools: &Tools) -> anyhow::Result<Made> {
    let name = output(
        command(tools.python())
            .arg(dist.root.join("packaging/wheel/make_wheel.py"))
            .args(["--hyperqueue", &dist.version])
            .arg(dist.root.join("LICENSE"))
            .arg(&dist.out)
            .arg(dist.compression())
            .env("SOURCE_DATE_EPOCH", &dist.epoch),
    )?;
    Ok(Made::File(name.trim().to_owned()))
}

/// Builds the package for Debian and Ubuntu.
pub(super) fn deb(dist: &Dist, target: &Target, tree: &Path) -> anyhow::Result<Made> {
    let name = format!("hq_{}_{}.deb", dist.version, target.deb_arch);
    if !is_there("dpkg-deb") {
        return Ok(Made::Missing(name, "dpkg-deb is not installed".to_owned()));
    }
    let root = dist.scratch(&format!("deb-{}", target.triple))?;
    tree::copy_tree(tree, &root.join("usr"))?;
    let control = root.join("DEBIAN");
    fs::create_dir(&control).context("make DEBIAN")?;
    fs::write(control.join("control"), debian_control(dist, target))
        .context("write DEBIAN/control")?;
    fs::write(control.join("md5sums"), md5sums(&root)?).context("write DEBIAN/md5sums")?;
    run(command("dpkg-deb")
        .args(["--root-owner-group", "-Zxz"])
        .arg(format!("-z{}", dist.package_compression()))
        .arg("--build")
        .arg(&root)
        .arg(dist.out.join(&name))
        .env("SOURCE_DATE_EPOCH", &dist.epoch))?;
    Ok(Made::File(name))
}

fn debian_control(dist: &Dist, target: &Target) -> String {
    let mut text = format!(
        "Package: hq\nVersion: {}\nArchitecture: {}\nMaintainer: The hq developers <hq@example.org>\nSection: utils\nPriority: optional\n",
        dist.version, target.deb_arch
    );
    if let Some(version) = target.glibc {
        let _ = writeln!(text, "Depends: libc6 (>= {version})");
    }
    text.push_str(
        "Description: runs very many tasks on a cluster, or on one machine\n One binary is server, worker and command line: it \
         runs millions of short\n programs, or thousands of long ones, on the nodes of a cluster, without giving\n each of them \
         to the batch system.\n",
    );
    text
}

fn md5sums(root: &Path) -> anyhow::Result<String> {
    let list = "find usr -type f -print0 | sort -z | xargs -0 md5sum";
    output(command("sh").args(["-c", list]).current_dir(root))
}

/// Builds the package for RHEL, Rocky, SLES and Fedora.
pub(super) fn rpm(dist: &Dist, target: &Target, tree: &Path) -> anyhow::Result<Made> {
    let name = format!("hq-{}-1.{}.rpm", dist.version, target.rpm_arch);
    if !is_there("rpmbuild") {
        let reason = "rpmbuild is not installed (Debian: `apt install rpm`)";
        return Ok(Made::Missing(name, reason.to_owned()));
    }
    let top = dist.scratch(&format!("rpm-{}", target.triple))?;
    let files = top.join("tree");
    tree::copy_tree(tree, &files.join("usr"))?;
    let define = |name: &str, value: &str| ["--define".to_owned(), format!("{name} {value}")];
    let top_text = top.display().to_string();
    // The rpm of RHEL 7 must be able to read the package, regardless of the local default.
    let payload = format!("w{}.xzdio", dist.package_compression());
    run(command("rpmbuild")
        .args(["-bb", "--quiet", "--target", target.rpm_arch])
        .args(define("_topdir", &top_text))
        .args(define("_rpmdir", &top_text))
        .args(define(
            "_rpmfilename",
            "%{NAME}-%{VERSION}-%{RELEASE}.%{ARCH}.rpm",
        ))
        .args(define("_binary_payload", &payload))
        .args(define("hq_version", &dist.version))
        .args(define("tree", &files.display().to_string()))
        .arg(dist.root.join("packaging/rpm/hq.spec"))
        .env("SOURCE_DATE_EPOCH", &dist.epoch))?;
    fs::copy(top.join(&name), dist.out.join(&name)).with_context(|| format!("copy {name}"))?;
    Ok(Made::File(name))
}
