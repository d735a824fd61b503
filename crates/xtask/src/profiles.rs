//! `cargo xtask profiles`: runs the tests with the kernel features of RHEL 7, RHEL 8, Ubuntu 20.04,
//! …
//!
//! Each test program runs once per profile, without the features that the profile's kernel lacks
//! (`sandbox`). `hq doctor` must report the expected mechanism for creating processes.

mod sandbox;
mod system;

use std::fmt::Write as _;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use serde_json::Value;

use crate::tidy::workspace_root;
use system::{PROFILES, Profile};

/// Run the tests of processes and of the whole program as on an old kernel, whose missing
/// system calls are disabled; needs root.
#[derive(Args)]
pub(crate) struct Options {
    /// Run only a few of the checks.
    #[arg(long)]
    short: bool,
    /// Only on this kernel, such as linux-4.18.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// No tests: run a command there, in place of this process.
    #[arg(long, value_name = "NAME", requires = "command", conflicts_with_all = ["short", "only"])]
    run: Option<String>,
    /// The same, in a process that is already in its namespace.
    #[arg(long, hide = true, requires = "command")]
    inside: Option<String>,
    /// The command for --run.
    #[arg(last = true)]
    pub(crate) command: Vec<String>,
}

/// The tests of a short run: each behavior of a process, its end, and `hq run`. Together they take
/// less than 20 s of CPU time on all profiles.
const SHORT: &[(&str, &[&str])] = &[
    ("spawn", &["behaviour::", "termination::"]),
    ("e2e", &["local::"]),
];

/// Runs the task. Returns `false` if tests failed.
pub(crate) fn profiles(options: &Options) -> anyhow::Result<bool> {
    let command: Vec<&str> = options.command.iter().map(String::as_str).collect();
    if let Some(profile) = &options.inside {
        sandbox::enter(find(profile)?, &command, &work()?)?;
        return Ok(true);
    }
    if let Some(profile) = &options.run {
        let error = inside(find(profile)?, &command)?.exec();
        return Err(error).context("run unshare (Debian: `apt install util-linux`)");
    }
    test(options.short, options.only.as_deref())
}

fn find(name: &str) -> anyhow::Result<&'static Profile> {
    if let Some(profile) = system::find(name) {
        return Ok(profile);
    }
    let names: Vec<&str> = PROFILES.iter().map(|profile| profile.name).collect();
    bail!("expected one of {}, found `{name}`", names.join(", "))
}

/// Returns the command to run on a profile. Only root gets a mount namespace; for other users, the
/// control groups stay visible.
fn inside(profile: &Profile, command: &[&str]) -> anyhow::Result<Command> {
    let own = std::env::current_exe().context("the path of this program")?;
    let own = own.to_str().context("the path of this program is text")?;
    let inside = [own, "profiles", "--inside", profile.name, "--"];
    let namespace = ["unshare", "--mount", "--propagation=private", "--"];
    let words = [&namespace[..], &inside, command].concat();
    let mut made = Command::new(words[0]);
    // Tests may skip checks that are impossible on a profile. These checks run without a profile.
    made.args(&words[1..]).env_remove("HQ_REQUIRE_ALL");
    Ok(made)
}

fn work() -> anyhow::Result<PathBuf> {
    let root = workspace_root()?;
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from);
    Ok(root.join(target).join("profiles"))
}

/// A test program and its result.
struct Suite {
    name: String,
    program: PathBuf,
    /// The directory where Cargo runs it.
    directory: PathBuf,
}

/// Runs all test programs on all profiles.
fn test(is_short: bool, only: Option<&str>) -> anyhow::Result<bool> {
    let chosen = only.map(find).transpose()?;
    let root = workspace_root()?;
    let work = work()?;
    fs::create_dir_all(&work).with_context(|| format!("make {}", work.display()))?;
    let (hq, suites) = build(&root)?;
    let mut table =
        "| kernel | as in | processes created by | tests |\n|---|---|---|---|\n".to_owned();
    let mut failures = String::new();
    for profile in PROFILES {
        if chosen.is_some_and(|chosen| chosen.name != profile.name) {
            continue;
        }
        let rung = rung(profile, &hq)?;
        if rung != profile.rung {
            let _ = writeln!(
                failures,
                "{}: expected processes to be created by {}, found {rung}",
                profile.name, profile.rung
            );
        }
        let mut told = Vec::new();
        for suite in &suites {
            let arguments = match short(&suite.name) {
                _ if !is_short => &[],
                Some(arguments) => arguments,
                None => continue,
            };
            let ran = run(profile, suite, arguments, &work)?;
            crate::print(&format!("{}: {}: {}\n", profile.name, suite.name, ran.text));
            told.push(format!("{} {}", suite.name, ran.count));
            failures.push_str(&ran.failures);
        }
        let (name, systems) = (profile.name, profile.systems);
        let _ = writeln!(
            table,
            "| {name} | {systems} | {rung} | {} |",
            told.join(", ")
        );
    }
    crate::print(&format!("\n{table}"));
    if !failures.is_empty() {
        crate::print(&format!(
            "\nFailed (logs in {}):\n{failures}",
            work.display()
        ));
    }
    Ok(failures.is_empty())
}

/// Returns the tests of a program in a short run; `None` = none.
fn short(name: &str) -> Option<&'static [&'static str]> {
    let found = SHORT.iter().find(|(suite, _)| *suite == name);
    found.map(|(_, arguments)| *arguments)
}

/// Builds the test programs and hq with the features of `cargo test --workspace`, so that the
/// builds are shared.
fn build(root: &Path) -> anyhow::Result<(PathBuf, Vec<Suite>)> {
    let mut command = Command::new("cargo");
    command
        .args(["test", "--no-run", "--locked", "--message-format=json"])
        .arg("--workspace")
        .args(["--test=spawn", "--test=keeper", "--test=e2e"])
        .current_dir(root)
        .stderr(Stdio::inherit());
    // `cargo run` sets these variables for this program. To build scripts that read them, such as
    // ring's, they look like changes: the scripts would run again, here and in the next build.
    let told = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(told) {
            command.env_remove(name);
        }
    }
    let output = command.output().context("run cargo")?;
    ensure!(output.status.success(), "the tests do not compile");
    let (mut hq, mut suites) = (None, Vec::new());
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let Ok(message) = serde_json::from_str::<Value>(line) else {
            continue;
        };
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let (Some(program), Some(name), Some(manifest)) = (
            text(&message["executable"]),
            text(&message["target"]["name"]),
            text(&message["manifest_path"]),
        ) else {
            continue;
        };
        if name == "hq" {
            hq = Some(PathBuf::from(program));
        } else {
            let directory = Path::new(&manifest)
                .parent()
                .context("it is in a package")?;
            suites.push(Suite {
                name,
                program: program.into(),
                directory: directory.to_owned(),
            });
        }
    }
    // The quickest come first.
    suites.sort_by_key(|suite| {
        ["keeper", "spawn", "e2e"]
            .iter()
            .position(|name| *name == suite.name)
    });
    Ok((hq.context("cargo has built hq")?, suites))
}

/// Returns how hq creates processes on a profile.
fn rung(profile: &Profile, hq: &Path) -> anyhow::Result<String> {
    let hq = hq.to_str().context("its path is text")?;
    let output = inside(profile, &[hq, "doctor"])?
        .output()
        .context("run unshare (Debian: `apt install util-linux`)")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let rung = text.split("created by ").nth(1);
    let rung = rung.and_then(|rest| rest.split_whitespace().next());
    let errors = String::from_utf8_lossy(&output.stderr);
    let rung = rung.with_context(|| format!("what `hq doctor` says: {text}{errors}"))?;
    Ok(rung.to_owned())
}

struct Ran {
    /// The number of tests that passed.
    count: String,
    text: String,
    /// A line for each failed test.
    failures: String,
}

fn run(profile: &Profile, suite: &Suite, arguments: &[&str], work: &Path) -> anyhow::Result<Ran> {
    let program = suite.program.to_str().context("its path is text")?;
    // The other programs have no tests with these names.
    let left_out = match suite.name.as_str() {
        "e2e" => profile.without,
        _ => &[],
    };
    for (tests, reason) in left_out {
        crate::print(&format!(
            "{}: {}: without `{tests}`: {reason}\n",
            profile.name, suite.name
        ));
    }
    let without: Vec<&str> = left_out
        .iter()
        .flat_map(|(tests, _)| ["--skip", tests])
        .collect();
    let words = [&[program], arguments, &without].concat();
    let log = work.join(format!("{}-{}.log", profile.name, suite.name));
    let file = fs::File::create(&log).with_context(|| format!("write {}", log.display()))?;
    let errors = file.try_clone().context("a second descriptor")?;
    let skipped = log.with_extension("skipped");
    fs::write(&skipped, "").with_context(|| format!("empty {}", skipped.display()))?;
    let began = Instant::now();
    let status = inside(profile, &words)?
        .current_dir(&suite.directory)
        .env("HQ_SKIPPED_FILE", &skipped)
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(errors)
        .status()
        .with_context(|| format!("run {program}"))?;
    let text = fs::read(&log).with_context(|| format!("read {}", log.display()))?;
    let text = String::from_utf8_lossy(&text);
    let is_passed = |line: &&str| line.starts_with("test ") && line.ends_with("... ok");
    let ended_well = text.lines().filter(is_passed).count();
    // A skipped test succeeds as well, and one test may skip several checks.
    let skipped = fs::read_to_string(&skipped).context("read what was skipped")?;
    let skipped = skipped.lines().count().min(ended_well);
    let passed = ended_well - skipped;
    let mut failures = String::new();
    for line in text.lines().filter(|line| line.ends_with("... FAILED")) {
        let _ = writeln!(failures, "{}: {}: {line}", profile.name, suite.name);
    }
    if !status.success() && failures.is_empty() {
        let _ = writeln!(failures, "{}: {}: {status}", profile.name, suite.name);
    }
    let failed = failures.lines().count();
    let seconds = began.elapsed().as_secs();
    Ok(Ran {
        count: if failed == 0 {
            passed.to_string()
        } else {
            format!("{passed}, {failed} failed")
        },
        text: format!("{passed} passed, {skipped} skipped, {failed} failed, {seconds} s"),
        failures,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_profile_is_refused_with_those_that_there_are() {
        let error = find("linux-2.6").err().expect("unknown").to_string();
        assert!(
            error.contains("linux-3.10") && error.contains("`linux-2.6`"),
            "{error}"
        );
    }
}
