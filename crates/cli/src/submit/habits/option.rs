//! Detects options of hq in places where they become options of the program.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::OnceLock;

use clap::Args as _;
use hq_core::words::has_word;

use super::reader::{Reader, is_tool, name};
use super::{Front, Text, Typed, Verb};
use crate::args;

/// The programs that have options with the same names.
const HAVE_THEM: &str = "docker podman apptainer singularity srun sbatch salloc mpirun mpiexec orterun kubectl hq snakemake nextflow \
    cargo parallel qsub jsrun aprun torchrun accelerate ray dask systemd-run numactl taskset time perf stress \
    stress-ng";

/// The options that many programs have.
const COMMON: &str = "name env job progress stream inputs outputs weight priority wait open param pin debug colors stdin stdout stderr \
    once log cwd notify unordered jobs predict retries dry-run after resource check-outputs";

/// Returns the names of the options of `hq submit` and `hq run`.
fn known() -> &'static BTreeSet<String> {
    static KNOWN: OnceLock<BTreeSet<String>> = OnceLock::new();
    KNOWN.get_or_init(|| {
        let root = args::command();
        let submit = args::submit::SubmitArgs::augment_args(clap::Command::new("submit"));
        let run = args::run::RunArgs::augment_args(clap::Command::new("run"));
        let all = [&root, &submit, &run].map(|command| {
            let names = command.get_arguments().filter_map(clap::Arg::get_long);
            names.map(str::to_owned).collect::<Vec<_>>()
        });
        let all = all.into_iter().flatten();
        // Every program has these options.
        all.filter(|name| !matches!(&**name, "help" | "version" | "verbose"))
            .collect()
    })
}

/// Returns options with their values. An option of one source replaces the same option of later
/// sources.
pub(super) fn effective(sources: &[&[String]]) -> Vec<(String, String)> {
    /// These options set a value for each name.
    const NAMED: &str = "--env --param --resource";
    let name = |value: &str| value.split('=').next().map(str::to_owned);
    let mut found: Vec<(String, String)> = Vec::new();
    for words in sources {
        let pairs = words.iter().enumerate().filter_map(|(at, word)| {
            let next = || Some((word.as_str(), words.get(at + 1)?.as_str()));
            let (option, value) = word.split_once('=').or_else(next)?;
            let is_replaced = found.iter().any(|(known, other)| {
                known == option && (!has_word(NAMED, option) || name(other) == name(value))
            });
            let is_option = option.starts_with('-') && !is_replaced;
            is_option.then(|| (option.to_owned(), value.to_owned()))
        });
        let pairs: Vec<_> = pairs.collect();
        found.extend(pairs);
    }
    found
}

/// Returns the values of an option.
pub(super) fn given<'a>(typed: &'a Typed<'_>, option: &'a str) -> impl Iterator<Item = &'a str> {
    let pairs = typed.options.iter();
    pairs.filter_map(move |(name, value)| (name == option).then_some(value.as_str()))
}

/// Detects input such as `hq submit --time-limit 30 -- true`: other systems count minutes.
pub(super) fn bare_seconds(typed: &Typed<'_>, _: Text<'_>) -> Option<String> {
    /// The maximum number that may be intended as minutes.
    const MINUTES_MAX: u32 = 1_000;
    if let Some(note) = short_clock(&typed.options) {
        return Some(note);
    }
    let value = given(typed, "--time-limit").next()?;
    if let Some(number) = value.strip_suffix('M') {
        return Some(format!(
            "`M` counts months; for minutes write `--time-limit {number}min`"
        ));
    }
    let number: u32 = value.parse().ok()?;
    let is_typed = typed
        .front
        .words
        .iter()
        .any(|word| word.starts_with("--time-limit"));
    let place = if is_typed {
        ""
    } else {
        " in the `#HQ` line or in the file that `hq config` shows"
    };
    (number < MINUTES_MAX).then(|| {
        format!("a number alone is in seconds; for minutes write `--time-limit {number}min`{place}")
    })
}

/// Like [`short_clock`], of the command line of this process.
pub(crate) fn short_clock_here() -> Option<String> {
    short_clock(&effective(&[&Front::of(&[]).words]))
}

/// Detects input such as `--time-limit 01:30`: minutes and seconds, which other tools read as hours
/// and minutes.
fn short_clock(options: &[(String, String)]) -> Option<String> {
    options.iter().find_map(|(option, value)| {
        let (first, last) = value.split_once(':')?;
        let (minutes, seconds) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        Some(format!(
            "`{option} {value}` is {minutes} min {seconds} s; hours and minutes are `{option} {value}:00`"
        ))
    })
}

/// Detects input such as `hq submit --resource mem=8 -- ./x`: users mean GiB.
pub(super) fn bare_memory(typed: &Typed<'_>, _: Text<'_>) -> Option<String> {
    /// The maximum number that may be meant as GiB.
    const GIB_MAX: u32 = 256;
    let number = |text: &str| text.strip_prefix("mem=")?.parse::<u32>().ok();
    let number = given(typed, "--resource").find_map(number)?;
    (number < GIB_MAX).then(|| {
        format!("a number alone is in MiB, as in Slurm: for GiB write `--resource mem={number}G`")
    })
}

/// Detects input such as `hq submit --array 1,000 -- ./x`: a comma between thousands.
pub(super) fn thousands(typed: &Typed<'_>, _: Text<'_>) -> Option<String> {
    // Some users write all ids with leading zeros.
    let mut values = given(typed, "--array").filter(|value| !value.starts_with('0'));
    let is_group = |part: &str| part.starts_with('0') && part.len() > 2;
    let value = values.find(|value| value.split(',').skip(1).any(is_group))?;
    let number = value.replace(',', "");
    Some(format!(
        "the comma in `--array {value}` separates ids; one number is `--array {number}`"
    ))
}

/// Detects input such as `hq submit --env PATH`: docker and Slurm pass on the value of this shell.
pub(super) fn env_name(typed: &Typed<'_>, _: Text<'_>) -> Option<String> {
    let blank = |pair: &&str| {
        pair.split_once('=')
            .is_some_and(|(name, _)| name.trim().contains(' '))
    };
    if let Some(pair) = given(typed, "--env").find(blank) {
        return Some(format!(
            "the name of the variable in `--env '{pair}'` has a blank; several variables are several options: `--env A=1 --env B=2`"
        ));
    }
    let name = given(typed, "--env").find(|pair| !pair.contains('='))?;
    if let Some((name, value)) = name.split_once([':', ' ']) {
        return Some(format!("`--env` takes NAME=VALUE: `--env {name}={value}`"));
    }
    Some(format!(
        "`--env {name}` sets `{name}` to nothing; `--env {name}=\"${name}\"` passes the value of this shell, and `--env {name}=` sets it to nothing without this note"
    ))
}

/// Detects input such as `hq submit --array 1-3 true --cpus 2`.
pub(super) fn behind_program(typed: &Typed<'_>, text: Text<'_>) -> Option<String> {
    let option = text.text.split('=').next().unwrap_or_default();
    let known_name = option
        .strip_prefix("--")
        .filter(|name| known().contains(*name))?;
    // `hq import` passes arguments to its script.
    let is_typed = typed
        .front
        .words
        .iter()
        .any(|word| word == typed.verb.word());
    if !is_typed || typed.verb == Verb::File || text.reader != Reader::Program {
        return None;
    }
    let before = &typed.words[..text.number];
    if before
        .iter()
        .any(|word| has_word(HAVE_THEM, name(word)) || *word == "--")
    {
        return None;
    }
    let is_simple = is_tool(before.first()?);
    let is_fenced = typed.front.is_fenced;
    if is_fenced && !is_simple && has_word(COMMON, known_name) {
        return None;
    }
    let instead = if is_fenced || is_simple {
        ""
    } else {
        "; for an option of the program, put `--` before the program"
    };
    Some(format!(
        "`{option}` comes after the program and is passed to it; put options of hq before the program{instead}"
    ))
}

/// Returns the options of hq before a command, without their values.
pub(crate) fn given_options(command: &[OsString]) -> Vec<String> {
    let words: Vec<OsString> = std::env::args_os().collect();
    let front = words.len().saturating_sub(command.len());
    let words = words[..front].iter().filter_map(|word| word.to_str());
    let options = words.filter(|word| word.starts_with('-') && word.len() > 1 && *word != "--");
    options
        .map(|word| word.split('=').next().unwrap_or(word).to_owned())
        .collect()
}
