//! Runs a command without the features that an old kernel lacks.
//!
//! Hides system calls and flags with filters (seccomp(2)), version 2 control groups with a mount
//! namespace, and the lists of children with a preloaded library. The rest stays visible: `uname`
//! reports the real release, and `/proc` and `/sys` have files that old kernels lack.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, bail};
use seccompiler::{
    SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    TargetArch, apply_filter,
};

use super::system::{FEATURES, Feature, Profile, When};
use crate::shell::{command, run};

/// Higher than any system call number of today's kernels.
const HIGHEST_CALL: i64 = 600;
/// `seccomp` itself stays available (Linux 3.17), because tests install their own filters.
const SECCOMP: i64 = 317;
const ENOSYS: u32 = 38;

/// The spawn engine opens the list of children with `open`, but the standard library opens files
/// with `open64`. So the tests, which also read the list, still see it.
const NO_CHILDREN: &str = r#"
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>

int open(const char *path, int flags, ...) {
    size_t length = strlen(path);
    if (length > 9 && !strcmp(path + length - 9, "/children")) {
        errno = ENOENT;
        return -1;
    }
    va_list rest;
    va_start(rest, flags);
    int mode = va_arg(rest, int);
    va_end(rest);
    return openat(AT_FDCWD, path, flags, mode);
}
"#;

/// Replaces this process with the command, on a system with this profile. Returns only on failure.
pub(super) fn enter(profile: &Profile, command: &[&str], work: &Path) -> anyhow::Result<()> {
    let [program, arguments @ ..] = command else {
        bail!("expected a command to run on {}", profile.name);
    };
    if !cfg!(target_arch = "x86_64") {
        bail!("the system call numbers are for x86-64, and this is another processor");
    }
    if !profile.has_cgroup2 {
        unmount_cgroup2()?;
    }
    let mut command = Command::new(program);
    command.args(arguments);
    if !profile.lists_children {
        command.env("LD_PRELOAD", without_children(work)?);
    }
    for (errno, rules) in rules(profile)? {
        let filter = SeccompFilter::new(
            rules,
            SeccompAction::Allow,
            SeccompAction::Errno(errno),
            TargetArch::x86_64,
        );
        let filter: seccompiler::BpfProgram = filter
            .and_then(TryInto::try_into)
            .with_context(|| format!("the filter for errors {errno}"))?;
        apply_filter(&filter).with_context(|| format!("the filter for errors {errno}"))?;
    }
    let error = command.exec();
    Err(error).with_context(|| format!("run {program}"))
}

/// Returns the system calls, by the error number of their failure.
fn rules(profile: &Profile) -> anyhow::Result<BTreeMap<u32, BTreeMap<i64, Vec<SeccompRule>>>> {
    let mut all: BTreeMap<u32, BTreeMap<i64, Vec<SeccompRule>>> = BTreeMap::new();
    for call in (profile.last_call + 1..=HIGHEST_CALL).filter(|call| *call != SECCOMP) {
        // Without a condition, the rule applies to any arguments.
        all.entry(ENOSYS).or_default().insert(call, Vec::new());
    }
    let is_new = |feature: &&Feature| feature.since > profile.kernel;
    for feature in FEATURES.iter().filter(is_new) {
        let rules = all.entry(feature.errno).or_default();
        let rules = rules.entry(feature.call).or_default();
        let (index, test, value) = match feature.when {
            When::Always => continue,
            When::Bits(index, bits) => (index, SeccompCmpOp::MaskedEq(bits), bits),
            When::Equals(index, value) => (index, SeccompCmpOp::Eq, value),
        };
        let condition = SeccompCondition::new(index, SeccompCmpArgLen::Dword, test, value);
        rules.push(SeccompRule::new(vec![condition.context("a condition")?]).context("a rule")?);
    }
    Ok(all)
}

/// Unmounts version 2 control groups. The caller has already created a mount namespace.
fn unmount_cgroup2() -> anyhow::Result<()> {
    let mounts = fs::read_to_string("/proc/self/mounts").context("read the mounts")?;
    for mount in mounts.lines() {
        let mut words = mount.split(' ').skip(1);
        let (Some(place), Some("cgroup2")) = (words.next(), words.next()) else {
            continue;
        };
        run(command("umount").args(["--lazy", place]))?;
    }
    Ok(())
}

/// Compiles the library that hides the lists of children.
fn without_children(work: &Path) -> anyhow::Result<std::path::PathBuf> {
    let (source, library) = (work.join("no-children.c"), work.join("no-children.so"));
    if !library.exists() {
        fs::create_dir_all(work).with_context(|| format!("make {}", work.display()))?;
        fs::write(&source, NO_CHILDREN).context("write a source in C")?;
        let options = ["-shared", "-fPIC", "-O", "-o"];
        run(command("cc").args(options).args([&library, &source]))?;
    }
    Ok(library)
}

#[cfg(test)]
mod tests {
    use super::super::system::PROFILES;
    use super::*;

    #[test]
    fn each_profile_makes_filters_and_older_ones_take_more_away() {
        let mut before = usize::MAX;
        for profile in PROFILES {
            let rules = rules(profile).expect("complete");
            let count = rules.values().flat_map(BTreeMap::values).count();
            assert!(count <= before, "{}", profile.name);
            before = count;
            for (errno, rules) in rules {
                let filter = SeccompFilter::new(
                    rules,
                    SeccompAction::Allow,
                    SeccompAction::Errno(errno),
                    TargetArch::x86_64,
                );
                let filter: Result<seccompiler::BpfProgram, _> = filter.and_then(TryInto::try_into);
                filter.expect("short enough for the kernel");
            }
        }
    }
}
