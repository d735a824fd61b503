//! `cargo xtask dist`: builds everything that is shipped, using only the sources and the
//! registries.
//!
//! ```text
//! target/dist-files/  hq-VERSION-TARGET.tar.gz  hq_runtime-VERSION-….whl  hq_VERSION_ARCH.deb  hq-VERSION-1.ARCH.rpm
//!                     hq-VERSION-oci.tar  hq-VERSION-site.tar.gz  hq-VERSION.cdx.json
//!                     SHA256SUMS  MISSING
//! ```
//!
//! Artifacts that this machine cannot build are listed in `MISSING` with the reason; other failures
//! are errors. Two runs of the same commit produce the same bytes: times come from the commit,
//! paths of the machine are replaced, and archives are sorted and have no owners. See
//! `docs/releasing.md`.

mod build;
mod check;
mod oci;
mod pack;
mod sbom;
mod tree;

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use clap::Args;

use crate::shell::{self, output, run};
use crate::tidy::workspace_root;
use build::{Target, Tools};

/// Make everything that is shipped: tarballs, wheels, packages, image, checksums, list of contents.
#[derive(Args)]
pub(crate) struct Options {
    /// Only tarball, wheel and deb for x86-64.
    #[arg(long)]
    short: bool,
    /// Only for this target of Rust.
    #[arg(long, value_name = "TRIPLE", value_parser = triples())]
    target: Option<String>,
    /// Another Cargo profile, for a quicker build.
    #[arg(long, value_name = "NAME", default_value = "dist")]
    profile: String,
    /// Pack this program for this machine and build none, to test the packing.
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

fn triples() -> Vec<&'static str> {
    build::TARGETS.iter().map(|target| target.triple).collect()
}

/// Paths and values common to all artifacts.
pub(crate) struct Dist {
    root: PathBuf,
    /// The program that is shipped.
    out: PathBuf,
    /// Intermediate files, which are kept for the next run.
    work: PathBuf,
    version: String,
    /// The time of all files in all archives, in seconds since 1970.
    epoch: String,
    profile: String,
    program: Option<PathBuf>,
}

/// The outcome for an artifact.
pub(crate) enum Made {
    /// The name of the file.
    File(String),
    /// The name of an artifact, and why this machine cannot build it.
    Missing(String, String),
}

/// Builds all artifacts that this machine can.
pub(crate) fn dist(options: &Options) -> anyhow::Result<()> {
    let dist = Dist::new(options)?;
    let tools = Tools::install(&dist)?;
    let mut made = vec![sbom::make(&dist)?, pack::drop_in(&dist, &tools)?];
    for target in build::TARGETS {
        let is_wanted = match &options.target {
            Some(wanted) => target.triple == wanted,
            None => target.is_in_short || !options.short,
        };
        if !is_wanted {
            continue;
        }
        made.extend(make_target(&dist, &tools, target)?);
    }
    if !options.short {
        made.push(pack::site(&dist, &tools)?);
    }
    check::check(&dist, &tools, &made)?;
    finish(&dist, &made)
}

/// Builds all artifacts of one target.
fn make_target(dist: &Dist, tools: &Tools, target: &Target) -> anyhow::Result<Vec<Made>> {
    let binary = match build::build(dist, tools, target)? {
        Ok(binary) => binary,
        Err(reason) => {
            let names = target
                .artefacts
                .iter()
                .map(|artefact| (*artefact).to_owned());
            return Ok(names
                .map(|name| Made::Missing(name, reason.clone()))
                .collect());
        }
    };
    let tree = tree::make(dist, target, &binary)?;
    let mut made = vec![pack::tarball(dist, target, &tree)?];
    made.push(pack::wheel(dist, tools, target, &binary)?);
    if target.has_packages {
        made.push(pack::deb(dist, target, &tree)?);
        made.push(pack::rpm(dist, target, &tree)?);
    }
    if target.has_image {
        made.push(oci::image(dist, target, &binary)?);
    }
    Ok(made)
}

/// Writes the checksums, the list of missing artifacts, and a summary.
fn finish(dist: &Dist, made: &[Made]) -> anyhow::Result<()> {
    let mut files: Vec<&str> = Vec::new();
    let mut missing = String::new();
    for artefact in made {
        match artefact {
            Made::File(name) => files.push(name),
            Made::Missing(name, reason) => {
                let _ = writeln!(missing, "{name}: {reason}");
            }
        }
    }
    files.sort_unstable();
    let sums = output(
        shell::command("sha256sum")
            .args(&files)
            .current_dir(&dist.out),
    )?;
    fs::write(dist.out.join("SHA256SUMS"), &sums).context("write SHA256SUMS")?;
    fs::write(dist.out.join("MISSING"), &missing).context("write MISSING")?;
    crate::print(&format!("\nIn {}:\n{sums}", dist.out.display()));
    if !missing.is_empty() {
        crate::print(&format!("\nNot to be made on this machine:\n{missing}"));
    }
    Ok(())
}

impl Dist {
    fn new(options: &Options) -> anyhow::Result<Self> {
        let root = workspace_root()?;
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let target = root.join(target);
        let out = target.join("dist-files");
        // Files of an earlier run must not be mistaken for files of this one.
        if out.exists() {
            fs::remove_dir_all(&out).with_context(|| format!("empty {}", out.display()))?;
        }
        fs::create_dir_all(&out).with_context(|| format!("make {}", out.display()))?;
        let work = target.join("dist-work");
        tree::forget(&work)?;
        let manifest = fs::read_to_string(root.join("Cargo.toml")).context("read Cargo.toml")?;
        let manifest: toml::Table = manifest.parse().context("parse Cargo.toml")?;
        let version = manifest["workspace"]["package"]["version"].as_str();
        let version = version.context("the workspace has a version")?.to_owned();
        Ok(Self {
            epoch: epoch(&root)?,
            out,
            work,
            version,
            profile: options.profile.clone(),
            program: options.program.clone(),
            root,
        })
    }

    /// Returns the compression level of archives. A test of the packing only needs the content.
    fn compression(&self) -> &'static str {
        if self.program.is_some() { "1" } else { "9" }
    }

    /// Returns the compression level of packages that support a level below the first, which takes
    /// half the time.
    fn package_compression(&self) -> &'static str {
        if self.program.is_some() { "0" } else { "9" }
    }

    /// Creates an empty directory for intermediate files.
    fn scratch(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.work.join(name);
        if path.exists() {
            fs::remove_dir_all(&path).with_context(|| format!("empty {}", path.display()))?;
        }
        fs::create_dir_all(&path).with_context(|| format!("make {}", path.display()))?;
        Ok(path)
    }

    /// Creates a reproducible tar archive of a directory.
    fn tar(
        &self,
        directory: &std::path::Path,
        entries: &[&str],
        to: &std::path::Path,
    ) -> anyhow::Result<()> {
        run(shell::command("tar")
            .args([
                "--sort=name",
                "--owner=0",
                "--group=0",
                "--numeric-owner",
                "--format=ustar",
            ])
            .arg(format!("--mtime=@{}", self.epoch))
            .arg("-C")
            .arg(directory)
            .arg("-cf")
            .arg(to)
            .args(entries))
    }
}

/// Returns `SOURCE_DATE_EPOCH` (<https://reproducible-builds.org/specs/source-date-epoch/>), or the
/// time of the commit if it is not set.
fn epoch(root: &std::path::Path) -> anyhow::Result<String> {
    let given = std::env::var("SOURCE_DATE_EPOCH").ok();
    let text = match given {
        Some(text) => text,
        None => output(
            shell::command("git")
                .args(["log", "-1", "--format=%ct"])
                .current_dir(root),
        )
        .context("the time of the commit; without git, set SOURCE_DATE_EPOCH")?,
    };
    let text = text.trim().to_owned();
    if text.parse::<u64>().is_err() {
        bail!("SOURCE_DATE_EPOCH: expected seconds since 1970, found `{text}`");
    }
    Ok(text)
}
