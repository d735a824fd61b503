//! Builds the programs: their targets, tools, and system requirements.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};

use super::Dist;
use crate::shell::{command, is_there, output, run};

/// Tools from PyPI. Zig is a C compiler and linker that knows the symbols of each glibc version.
const PYTHON_TOOLS: &[&str] = &["cargo-zigbuild==0.24.0", "ziglang==0.15.2"];

/// The page size of the largest aarch64 machines. They refuse programs built for smaller pages.
const LARGE_PAGE: u64 = 64 * 1024;

/// One kind of program.
pub(super) struct Target {
    /// The name used by rustc and in file names.
    pub(super) triple: &'static str,
    /// The oldest glibc that has all the symbols; `None` = the program is static.
    pub(super) glibc: Option<&'static str>,
    /// The name used by Python.
    pub(super) wheel_tag: &'static str,
    /// The name of the processor in Debian and RPM packages.
    pub(super) deb_arch: &'static str,
    pub(super) rpm_arch: &'static str,
    pub(super) is_in_short: bool,
    pub(super) has_packages: bool,
    pub(super) has_image: bool,
    /// The artifacts of this target, for the report of missing ones.
    pub(super) artefacts: &'static [&'static str],
}

/// All targets.
pub(super) const TARGETS: &[Target] = &[
    Target {
        triple: "x86_64-unknown-linux-gnu",
        glibc: Some("2.17"),
        wheel_tag: "manylinux2014_x86_64",
        deb_arch: "amd64",
        rpm_arch: "x86_64",
        is_in_short: true,
        has_packages: true,
        has_image: false,
        artefacts: &["tarball, wheel, deb and rpm for x86-64"],
    },
    Target {
        triple: "x86_64-unknown-linux-musl",
        glibc: None,
        wheel_tag: "musllinux_1_2_x86_64",
        deb_arch: "amd64",
        rpm_arch: "x86_64",
        is_in_short: false,
        has_packages: false,
        has_image: true,
        artefacts: &["static tarball and wheel for x86-64", "OCI image"],
    },
    Target {
        triple: "aarch64-unknown-linux-gnu",
        glibc: Some("2.17"),
        wheel_tag: "manylinux2014_aarch64",
        deb_arch: "arm64",
        rpm_arch: "aarch64",
        is_in_short: false,
        has_packages: true,
        has_image: false,
        artefacts: &["tarball, wheel, deb and rpm for aarch64"],
    },
    Target {
        triple: "aarch64-unknown-linux-musl",
        glibc: None,
        wheel_tag: "musllinux_1_2_aarch64",
        deb_arch: "arm64",
        rpm_arch: "aarch64",
        is_in_short: false,
        has_packages: false,
        has_image: false,
        artefacts: &["static tarball and wheel for aarch64"],
    },
];

/// Python, and a virtual environment with the programs.
pub(super) struct Tools {
    python: PathBuf,
    bin: PathBuf,
}

impl Tools {
    /// Installs the tools, unless an earlier run has done so.
    pub(super) fn install(dist: &Dist) -> anyhow::Result<Self> {
        let home = dist.work.join("tools");
        let bin = home.join("bin");
        if dist.program.is_some() {
            // No tools are needed if nothing is built.
            let python = PathBuf::from("python3");
            return Ok(Self { python, bin });
        }
        let python = bin.join("python");
        let stamp = home.join("installed");
        let requirements = dist.root.join("packaging/site-requirements.txt");
        let site = fs::read_to_string(&requirements).context("read what the site needs")?;
        let wanted = format!("{}\n{site}", PYTHON_TOOLS.join(" "));
        if fs::read_to_string(&stamp).is_ok_and(|found| found == wanted) {
            return Ok(Self { python, bin });
        }
        run(command("python3")
            .args(["-m", "venv", "--clear"])
            .arg(&home))?;
        run(command(bin.join("python"))
            .args([
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
            ])
            .args(PYTHON_TOOLS)
            .arg("-r")
            .arg(&requirements))?;
        fs::write(&stamp, wanted).context("note which tools are installed")?;
        Ok(Self { python, bin })
    }

    /// Returns the Python interpreter of the environment.
    pub(super) fn python(&self) -> &Path {
        &self.python
    }

    /// Returns the program that builds the site, from the environment or from the system.
    pub(super) fn zensical(&self) -> Option<PathBuf> {
        let installed = self.bin.join("zensical");
        if installed.is_file() {
            return Some(installed);
        }
        is_there("zensical").then(|| "zensical".into())
    }

    /// Returns `PATH` with the tools first.
    fn path(&self) -> anyhow::Result<OsString> {
        let path = env::var_os("PATH").unwrap_or_default();
        let all = std::iter::once(self.bin.clone()).chain(env::split_paths(&path));
        env::join_paths(all).context("PATH with the tools")
    }
}

/// Builds the program of a target. The inner error says why this machine cannot.
pub(super) fn build(
    dist: &Dist,
    tools: &Tools,
    target: &Target,
) -> anyhow::Result<Result<PathBuf, String>> {
    if let Some(program) = &dist.program {
        return pack_given(dist, target, program);
    }
    if let Some(reason) = without_std(target)? {
        return Ok(Err(reason));
    }
    let target_dir = dist.work.join("target");
    let full = match target.glibc {
        Some(version) => format!("{}.{version}", target.triple),
        None => target.triple.to_owned(),
    };
    let prefixes = prefixes(dist)?;
    let option = |name: &str| {
        let options = prefixes
            .iter()
            .map(|(from, to)| format!("{name}={from}={to}"));
        options.collect::<Vec<_>>().join(" ")
    };
    let script = dist.root.join("packaging/no-unwind-tables.ld");
    let rust = format!(
        "{} -Clink-arg=-Wl,--no-eh-frame-hdr -Clink-arg=-Wl,-T,{}",
        option("--remap-path-prefix"),
        script.display()
    );
    // mimalloc prints its compile time, and Zig does not pass SOURCE_DATE_EPOCH on to its compiler.
    let flags = format!("CFLAGS_{}", target.triple.replace('-', "_"));
    let c = format!(
        // The variable from `.cargo/config.toml`, as for everything that cargo runs.
        "{} {} -Wno-builtin-macro-redefined -D__DATE__=\"@{}\" -D__TIME__=\"UTC\"",
        env::var(&flags).unwrap_or_default(),
        option("-ffile-prefix-map"),
        dist.epoch
    );
    run(command("cargo")
        .args([
            "zigbuild",
            "--locked",
            "--package",
            "hq-cli",
            "--profile",
            &dist.profile,
        ])
        .args(["--target", &full])
        .current_dir(&dist.root)
        .env("PATH", tools.path()?)
        .env("CARGO_TARGET_DIR", &target_dir)
        .env("SOURCE_DATE_EPOCH", &dist.epoch)
        .env("HQ_BUILD_VERSION", &dist.version)
        .env("RUSTFLAGS", rust)
        .env(flags, c))?;
    let built = target_dir
        .join(target.triple)
        .join(&dist.profile)
        .join("hq");
    check_symbols(&built, target)?;
    check_pages(&built, target)?;
    Ok(Ok(take(dist, target, &built)?))
}

/// Uses a given program as if it had just been built.
fn pack_given(
    dist: &Dist,
    target: &Target,
    program: &Path,
) -> anyhow::Result<Result<PathBuf, String>> {
    let is_own = target.rpm_arch == env::consts::ARCH;
    let is_dynamic = needs_libraries(program)?;
    let is_own = is_own && is_dynamic == target.glibc.is_some();
    if !is_own {
        return Ok(Err(format!("only {} is packed", program.display())));
    }
    // Stripped like built programs, because symbols are most of the packed bytes.
    let binary = place_of(dist, target)?;
    run(command("strip").arg("-o").arg(&binary).arg(program))?;
    Ok(Ok(binary))
}

/// Copies a program to a place that later builds do not change.
fn take(dist: &Dist, target: &Target, from: &Path) -> anyhow::Result<PathBuf> {
    let binary = place_of(dist, target)?;
    fs::copy(from, &binary).with_context(|| format!("copy {}", from.display()))?;
    Ok(binary)
}

fn place_of(dist: &Dist, target: &Target) -> anyhow::Result<PathBuf> {
    Ok(dist.scratch(&format!("bin-{}", target.triple))?.join("hq"))
}

/// Returns why there is no standard library for a target here, if it is missing.
fn without_std(target: &Target) -> anyhow::Result<Option<String>> {
    let directory =
        output(command("rustc").args(["--print", "target-libdir", "--target", target.triple]))?;
    if Path::new(directory.trim()).is_dir() {
        return Ok(None);
    }
    Ok(Some(format!(
        "Rust's standard library for {0} is not installed; `rustup target add {0}` brings it where its server is reached",
        target.triple
    )))
}

/// Returns directories of this machine and what replaces them in the program.
fn prefixes(dist: &Dist) -> anyhow::Result<Vec<(String, String)>> {
    let sysroot = output(command("rustc").args(["--print", "sysroot"]))?;
    let home = env::var_os("HOME").map_or_else(PathBuf::new, PathBuf::from);
    let cargo = env::var_os("CARGO_HOME").map_or_else(|| home.join(".cargo"), PathBuf::from);
    // rustc uses the last match, so inner directories follow outer ones.
    Ok(vec![
        (cargo.display().to_string(), "/cargo".to_owned()),
        (sysroot.trim().to_owned(), "/rust".to_owned()),
        (dist.root.display().to_string(), "/hq".to_owned()),
        (
            dist.work.join("target").display().to_string(),
            "/build".to_owned(),
        ),
    ])
}

/// Checks that a program runs on old systems: it uses no symbol of a newer glibc, or is fully
/// static.
fn check_symbols(binary: &Path, target: &Target) -> anyhow::Result<()> {
    let is_dynamic = needs_libraries(binary)?;
    let versions = output(
        command("readelf")
            .args(["--wide", "--version-info"])
            .arg(binary),
    )?;
    match target.glibc {
        None if is_dynamic => bail!("{} needs libraries", binary.display()),
        None => Ok(()),
        Some(allowed) => check_versions(&versions, allowed)
            .with_context(|| format!("{} does not run with glibc {allowed}", binary.display())),
    }
}

fn needs_libraries(binary: &Path) -> anyhow::Result<bool> {
    let dynamic = output(command("readelf").args(["--wide", "--dynamic"]).arg(binary))?;
    Ok(dynamic.contains("(NEEDED)"))
}

/// Checks that a program can be mapped with large pages.
fn check_pages(binary: &Path, target: &Target) -> anyhow::Result<()> {
    if target.rpm_arch != "aarch64" {
        return Ok(());
    }
    let headers = output(
        command("readelf")
            .args(["--wide", "--program-headers"])
            .arg(binary),
    )?;
    let smallest = smallest_alignment(&headers)
        .with_context(|| format!("{} has nothing to be mapped", binary.display()))?;
    if smallest < LARGE_PAGE {
        bail!(
            "{} is made for pages of {smallest} bytes, some machines have {LARGE_PAGE}",
            binary.display()
        );
    }
    Ok(())
}

/// Returns the smallest alignment of mapped segments in the output of `readelf`.
fn smallest_alignment(headers: &str) -> Option<u64> {
    let parts = headers
        .lines()
        .filter(|line| line.trim_start().starts_with("LOAD"));
    let alignments = parts.filter_map(|line| {
        let last = line.split_whitespace().next_back()?;
        u64::from_str_radix(last.strip_prefix("0x")?, 16).ok()
    });
    alignments.min()
}

/// Finds versions of glibc above `allowed` in the output of `readelf`.
fn check_versions(text: &str, allowed: &str) -> anyhow::Result<()> {
    let number = |version: &str| -> Vec<u32> {
        version
            .split('.')
            .filter_map(|part| part.parse().ok())
            .collect()
    };
    let limit = number(allowed);
    let mut too_new: Vec<&str> = text
        .split("GLIBC_")
        .skip(1)
        .map(|rest| {
            rest.split(|c: char| c != '.' && !c.is_ascii_digit())
                .next()
                .unwrap_or_default()
        })
        .filter(|version| number(version) > limit)
        .collect();
    too_new.sort_unstable();
    too_new.dedup();
    if too_new.is_empty() {
        return Ok(());
    }
    bail!("it uses symbols of glibc {}", too_new.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_for_small_pages_are_found() {
        let text = "  PHDR  0x40 0x40 0x40 0x2d8 0x2d8 R 0x8\n  LOAD  0x0 0x0 0x0 0x5d0 0x5d0 R   0x10000\n";
        assert_eq!(smallest_alignment(text), Some(LARGE_PAGE));
        let small = format!("{text}  LOAD  0x0 0x0 0x0 0x5d0 0x5d0 R E 0x1000\n");
        assert_eq!(smallest_alignment(&small), Some(4096));
        assert_eq!(smallest_alignment("no program"), None);
    }

    #[test]
    fn symbols_of_a_newer_library_are_found() {
        let text = "  0x0010:   Name: GLIBC_2.17  Flags: none\n  Name: GLIBC_2.2.5  Flags: none\n";
        check_versions(text, "2.17").expect("all are old");
        let newer = format!("{text}  Name: GLIBC_2.34  Flags: none\n");
        let error = check_versions(&newer, "2.17").expect_err("one is new");
        assert_eq!(error.to_string(), "it uses symbols of glibc 2.34");
        check_versions(&newer, "2.34").expect("allowed");
    }
}
