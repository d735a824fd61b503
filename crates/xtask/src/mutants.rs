//! Mutation testing: breaks the decision code in one place at a time and expects a test to fail.
//!
//! cargo-mutants makes the changes and runs the tests; `.cargo/mutants.toml` selects the code. This
//! task draws a random sample with a given seed, because all mutants would take days, and compares
//! the surviving mutants with a list of reasons. Everything happens in a copy of the sources below
//! `target/`, where only a single crate is rebuilt for each mutant.

mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};
use clap::Args;

use crate::shell;

/// The version of cargo-mutants to use.
const VERSION: &str = "26.2.0";

/// Changes that no test notices, with the reason. One line each: `change -- reason`.
const SURVIVORS: &str = include_str!("mutants/survivors.txt");

/// The number of simulated worlds, and of cases per property, in one test run. The first few find
/// most mutants, and all of them run for each mutant. `.cargo/mutants.toml` lists excluded tests.
const SIM_SEEDS: &str = "5";
const PROPTEST_CASES: &str = "64";

/// The time limit for the tests of one mutant: at least this many seconds, and a multiple of the
/// time that the tests of all crates take without a mutant. A busy machine slows down both, and a
/// mutant is tested by only one crate. An endless loop counts as noticed.
const TIMEOUT_MIN: &str = "60";
const TIMEOUT_MULTIPLIER: &str = "1.5";

/// Break decision code on purpose, a place at a time, and see whether tests notice; takes a minute
/// each.
#[derive(Args)]
pub(crate) struct Options {
    /// So many places.
    #[arg(long, value_name = "N", default_value_t = 36)]
    count: usize,
    /// Another sample.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Only files or functions with this in their names; can be given several times.
    #[arg(long, value_name = "PART")]
    only: Vec<String>,
    /// Only say which.
    #[arg(long)]
    list: bool,
}

/// Returns whether every mutant of the sample was noticed, or has a listed reason.
///
/// # Errors
///
/// If cargo-mutants cannot be installed or run, or if the tests fail without a mutant.
pub(crate) fn mutants(root: &Path, options: &Options) -> anyhow::Result<bool> {
    let tool = installed(root)?;
    let all = all(root, &tool)?;
    // A reason for a mutant that no longer exists would excuse the next one with the same name.
    let gone = gone(&all, &reasons(SURVIVORS));
    ensure!(
        gone.is_empty(),
        "survivors.txt has reasons for changes that are not possible any more; remove them:\n{}",
        gone.join("\n")
    );
    let chosen = sample(all, options);
    if options.list {
        crate::print(&(chosen.join("\n") + "\n"));
        return Ok(true);
    }
    let out = root.join("target/mutants");
    let copy = out.join("tree");
    std::fs::create_dir_all(&copy).with_context(|| format!("make {}", copy.display()))?;
    tree::copy_sources(root, &copy)?;
    let mut command = tool_command(&copy, &tool);
    command
        .arg("--in-place")
        .args(["--minimum-test-timeout", TIMEOUT_MIN])
        .args(["--timeout-multiplier", TIMEOUT_MULTIPLIER])
        .args(["--colors", "never", "--output"])
        .arg(&out)
        // A separate directory, so that no other build uses a broken crate.
        .env("CARGO_TARGET_DIR", out.join("build"))
        .env("HQ_SIM_SEEDS", SIM_SEEDS)
        .env("PROPTEST_CASES", PROPTEST_CASES);
    for name in &chosen {
        command.arg("--re").arg(format!("^{}$", escaped(name)));
    }
    let status = command.status().context("run cargo-mutants")?;
    let code = status.code().unwrap_or(1);
    // With 2 and 3, a mutant survived or timed out. With other codes, nothing was tested.
    ensure!(
        matches!(code, 0 | 2 | 3),
        "cargo-mutants ended with code {code}; its log is in {}",
        out.display()
    );
    report(&out.join("mutants.out"), chosen.len())
}

fn tool_command(root: &Path, tool: &Path) -> Command {
    let mut command = Command::new(tool);
    command.arg("mutants").arg("--dir").arg(root);
    command
}

/// Returns the path of cargo-mutants, and installs it below `target/` if it is missing.
fn installed(root: &Path) -> anyhow::Result<PathBuf> {
    let folder = root.join("target/tools");
    let tool = folder.join("bin/cargo-mutants");
    if !tool.exists() {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let install = ["install", "--locked", "--version", VERSION, "--root"];
        let mut command = shell::command(cargo);
        shell::run(command.args(install).arg(&folder).arg("cargo-mutants"))?;
    }
    Ok(tool)
}

/// Returns the names of all possible changes.
fn all(root: &Path, tool: &Path) -> anyhow::Result<Vec<String>> {
    let mut command = tool_command(root, tool);
    let text = shell::output(command.args(["--list", "--colors", "never"]))?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// Returns the sample for a seed, in the order of the files. Each file gets one mutant before any
/// file gets a second, so that even a small sample covers short modules.
fn sample(mut all: Vec<String>, options: &Options) -> Vec<String> {
    let only = &options.only;
    all.retain(|name| only.is_empty() || only.iter().any(|part| name.contains(part)));
    // Sorted by the change and not by its line, so that moved lines leave the sample unchanged.
    all.sort_by_cached_key(|name| {
        let mut hasher = DefaultHasher::new();
        (options.seed, without_place(name)).hash(&mut hasher);
        hasher.finish()
    });
    let mut turns: BTreeMap<String, usize> = BTreeMap::new();
    // The sort is stable, so mutants with the same turn keep their order.
    all.sort_by_cached_key(|name| {
        let file = name.split(':').next().unwrap_or(name).to_owned();
        let turn = turns.entry(file).or_default();
        *turn += 1;
        *turn
    });
    all.truncate(options.count);
    all.sort();
    all
}

/// Returns the name of a change without line and column: `crates/core/src/job.rs: replace …`.
fn without_place(name: &str) -> String {
    let mut parts = name.splitn(4, ':');
    match (parts.next(), parts.next(), parts.next(), parts.next()) {
        (Some(file), Some(_), Some(_), Some(what)) => format!("{file}:{what}"),
        _ => name.to_owned(),
    }
}

/// Returns a regular expression that matches only this text.
fn escaped(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars() {
        // Other characters must not be escaped: `\<` and `\>`, for example, match the start and end
        // of a word.
        if r".^$*+?()[]{}|\".contains(c) {
            text.push('\\');
        }
        text.push(c);
    }
    text
}

/// Returns the reasons for mutants that no longer exist.
fn gone<'a>(all: &[String], reasons: &BTreeMap<&'a str, &str>) -> Vec<&'a str> {
    let possible: BTreeSet<String> = all.iter().map(|name| without_place(name)).collect();
    let known = reasons.keys().copied();
    known.filter(|name| !possible.contains(*name)).collect()
}

/// Returns the reasons by change.
fn reasons(text: &str) -> BTreeMap<&str, &str> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(" -- ")).collect()
}

fn report(out: &Path, chosen: usize) -> anyhow::Result<bool> {
    let read = |file: &str| {
        let path = out.join(file);
        std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))
    };
    let (failed, endless) = (read("caught.txt")?, read("timeout.txt")?);
    let (missed, unviable) = (read("missed.txt")?, read("unviable.txt")?);
    let parts = [&failed, &endless, &missed, &unviable];
    let tried: usize = parts.map(|part| part.lines().count()).iter().sum();
    // A change that was not tried would count as noticed.
    ensure!(
        tried == chosen,
        "of {chosen} chosen changes {tried} were tried: the others were not found by their names"
    );
    let failed = failed.lines().count();
    let (text, is_good) = verdict(failed, &endless, &missed, &reasons(SURVIVORS));
    crate::print(&text);
    Ok(is_good)
}

/// Returns the report of a run, and whether every survivor has a reason. `failed` mutants made a
/// test fail. For `endless` mutants, the tests were killed because they did not end.
fn verdict(
    failed: usize,
    endless: &str,
    missed: &str,
    reasons: &BTreeMap<&str, &str>,
) -> (String, bool) {
    let mut text = String::new();
    // Listed by name, because a machine that was suspended for a minute would cause one of these as
    // well.
    for name in endless.lines() {
        text += &format!("endless   {name}\n");
    }
    let hung = endless.lines().count();
    let noticed = failed + hung;
    let (mut known, mut unknown) = (0, 0);
    for name in missed.lines() {
        match reasons.get(without_place(name).as_str()) {
            Some(reason) => {
                known += 1;
                text += &format!("known     {name}\n          {reason}\n");
            }
            None => {
                unknown += 1;
                text += &format!("SURVIVED  {name}\n");
            }
        }
    }
    let all = noticed + known + unknown;
    let percent = (noticed * 100).checked_div(all).unwrap_or(100);
    text += &format!(
        "{all} careless changes: {noticed} noticed ({percent} %), {hung} of them because the tests did not end; \
         {known} survive for a known reason, {unknown} survive and need a test\n"
    );
    (text, unknown == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(count: usize, seed: u64, only: &[&str]) -> Options {
        Options {
            count,
            seed,
            only: only.iter().map(ToString::to_string).collect(),
            list: false,
        }
    }

    fn names(count: usize) -> Vec<String> {
        let name = |n| format!("crates/core/src/job.rs:{n}:5: replace part{n} with ()");
        (0..count).map(name).collect()
    }

    #[test]
    fn a_seed_stands_for_a_sample_that_moved_lines_do_not_change() {
        let options = wanted(5, 3, &[]);
        let chosen = sample(names(100), &options);
        assert_eq!(chosen.len(), 5);
        let moved: Vec<String> = names(100)
            .iter()
            .map(|name| name.replace(":5:", ":9:"))
            .collect();
        let again = sample(moved, &options);
        let what = |names: &[String]| -> Vec<String> {
            let mut all: Vec<String> = names.iter().map(|name| without_place(name)).collect();
            all.sort();
            all
        };
        assert_eq!(what(&chosen), what(&again));
        let other = wanted(5, 4, &[]);
        assert_ne!(chosen, sample(names(100), &other));
    }

    #[test]
    fn a_sample_can_be_of_some_places() {
        let options = wanted(36, 1, &["part7 ", "part9 "]);
        let chosen = sample(names(100), &options);
        let expected = [7, 9].map(|n| names(100).swap_remove(n));
        assert_eq!(chosen, expected);
    }

    #[test]
    fn each_file_has_its_turn_before_another_has_its_second() {
        let mut all = names(100);
        all.extend(["gate", "lease"].map(|file| format!("crates/{file}.rs:1:5: replace it")));
        let options = wanted(4, 1, &[]);
        let chosen = sample(all, &options);
        let of = |file: &str| chosen.iter().filter(|name| name.contains(file)).count();
        assert_eq!((of("job.rs"), of("gate.rs"), of("lease.rs")), (2, 1, 1));
    }

    #[test]
    fn a_name_is_escaped_where_a_regular_expression_means_something_else() {
        let name = "a/b.rs:1:2: replace < with -> Option<u8> in <impl T for [u8]>::f (x|y)";
        let expected =
            r"a/b\.rs:1:2: replace < with -> Option<u8> in <impl T for \[u8\]>::f \(x\|y\)";
        assert_eq!(escaped(name), expected);
    }

    #[test]
    fn survivors_without_a_reason_are_a_failure() {
        let list = "# comment\ncrates/core/src/job.rs: replace part1 with () -- invisible\n";
        let reasons = reasons(list);
        let (text, is_good) = verdict(9, "", &names(2)[1], &reasons);
        assert!(is_good && text.contains("invisible"), "{text}");
        let missed = names(2).join("\n");
        let (text, is_good) = verdict(7, "crates/a.rs:1:5: x", &missed, &reasons);
        assert!(
            !is_good && text.contains("SURVIVED  crates/core/src/job.rs:0:5"),
            "{text}"
        );
        assert!(
            text.contains("10 careless changes: 8 noticed (80 %), 1 of them because"),
            "{text}"
        );
        assert!(text.contains("endless   crates/a.rs:1:5: x"), "{text}");
    }

    #[test]
    fn a_reason_for_a_change_that_is_not_possible_any_more_is_named() {
        let list = "crates/core/src/job.rs: replace part1 with () -- invisible\n\
                    crates/core/src/job.rs: replace part9 with () -- it was there once\n";
        let gone = gone(&names(2), &reasons(list));
        assert_eq!(gone, ["crates/core/src/job.rs: replace part9 with ()"]);
    }

    #[test]
    fn each_known_survivor_has_a_reason_and_is_in_a_file_that_exists() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for line in SURVIVORS.lines().filter(|line| !line.starts_with('#')) {
            let (change, reason) = line.split_once(" -- ").expect("'change -- reason'");
            assert!(change.starts_with("crates/") && reason.len() > 10, "{line}");
            let (file, _) = change.split_once(':').expect("'file: change'");
            assert!(root.join(file).is_file(), "{line}");
        }
    }
}
