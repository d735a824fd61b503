//! Words that people bring along from Slurm, PBS, GNU parallel and other tools, and what they are called here.
//!
//! The parser of the command line proposes what is spelled alike, which is wrong for habits: `--job-name` is not
//! `--job`. Each of these words has one answer.

mod commands;
mod options;

use commands::COMMANDS;
use options::OPTIONS;

/// A foreign word, and its name here. Both parts are Markdown without line breaks.
pub(super) struct Habit {
    /// Commands in which it has this answer: `submit`, `run`, `job list`, or a whole group as `worker`; empty = `submit` and `run`.
    of: &'static [&'static str],
    /// The word, or several that mean the same.
    words: &'static [&'static str],
    /// The text to type instead.
    answer: &'static str,
}

const fn habit(words: &'static [&'static str], answer: &'static str) -> Habit {
    habit_of(&[], words, answer)
}

const fn habit_of(
    of: &'static [&'static str],
    words: &'static [&'static str],
    answer: &'static str,
) -> Habit {
    Habit { of, words, answer }
}

/// Whether a habit has an answer in a command.
fn is_about(habit: &Habit, path: &str) -> bool {
    let path = if path == "job submit" { "submit" } else { path };
    let is_one = |of: &&str| {
        path == *of
            || path
                .strip_prefix(*of)
                .is_some_and(|rest| rest.starts_with(' '))
    };
    if habit.of.is_empty() {
        return matches!(path, "submit" | "run");
    }
    habit.of.iter().any(is_one)
}

/// The answer to an option that other tools have. `--mem=4G` counts as `--mem`, `-n4` as `-n`.
pub(crate) fn of_option(path: &[&str], word: &str) -> Option<&'static str> {
    let path = path.join(" ");
    if path.is_empty() {
        return Some(
            "options of tasks follow the command: `hq run -j 4 -- PROGRAM`, `hq submit --cpus 2 -- PROGRAM`; `hq --help` lists the commands",
        );
    }
    let name = word.split('=').next().unwrap_or(word);
    let is_one = |habit: &&Habit| {
        habit.words.iter().any(|known| {
            // The value of a short option may follow without a blank.
            *known == name
                || (known.len() == 2 && name.starts_with(known) && !name.starts_with("--"))
        })
    };
    let mut about = OPTIONS.iter().filter(|habit| is_about(habit, &path));
    about.find(is_one).map(|habit| habit.answer)
}

/// The answer to a subcommand that other tools have.
pub(super) fn of_command(path: &[&str], word: &str) -> Option<&'static str> {
    let group = path.first().copied().unwrap_or_default();
    let found = COMMANDS
        .iter()
        .find(|(of, habit)| *of == group && habit.words.contains(&word));
    found.map(|(_, habit)| habit.answer)
}

/// Names of resources in other tools, and what they are here.
const RESOURCES: &[(&[&str], &str)] = &[
    (
        &["gpu", "gpus", "gres", "nvidia", "cuda"],
        "detected GPUs are `gpus/nvidia` and `gpus/amd`",
    ),
    (
        &[
            "cpu", "core", "cores", "ncpus", "threads", "thread", "procs", "slots", "ntasks",
        ],
        "cpus of a task are `--cpus 4`",
    ),
    (
        &[
            "memory", "ram", "vmem", "pmem", "mem_mb", "mem_gb", "mem_free", "h_vmem", "rss",
        ],
        "memory of a task is `--resource mem=4G`",
    ),
    (
        &[
            "time", "walltime", "runtime", "timeout", "h_rt", "s_rt", "cput", "time_min",
        ],
        "the longest run of a task is `--time-limit 1h`",
    ),
    (
        &["node", "nodes", "select"],
        "whole nodes for a task are `--nodes 2`",
    ),
];

/// What a resource of another tool is here.
pub(crate) fn known_resource(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    let other_kind = |kind: &str| !matches!(kind, "nvidia" | "amd");
    let is_gpu = name.strip_prefix("gpus/").is_some_and(other_kind);
    let known = RESOURCES.iter().find(|(names, _)| names.contains(&&*name));
    known
        .or(is_gpu.then_some(&RESOURCES[0]))
        .map(|(_, instead)| *instead)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args;

    /// Every command that an answer names exists, with the options that it is shown with.
    #[test]
    fn what_is_proposed_can_be_typed() {
        let answers = OPTIONS
            .iter()
            .chain(COMMANDS.iter().map(|(_, habit)| habit))
            .map(|habit| habit.answer);
        for answer in answers {
            for shown in answer.split('`').skip(1).step_by(2) {
                let Some(line) = shown.strip_prefix("hq ") else {
                    continue;
                };
                let line = line
                    .replace("JOB.TASK", "1.1")
                    .replace(" JOB", " 1")
                    .replace(" TASK", " 1")
                    .replace(" QUEUE", " 1")
                    .replace(" WORKER", " 1")
                    .replace("JOB.7", "1.7")
                    .replace("COMMAND --help", "--version");
                let words = shlex::split(&format!("hq {line}")).expect("closed quotes");
                let parsed = args::command().try_get_matches_from(&words);
                // A command line without its last word is an example of an option.
                let is_part = |error: &clap::Error| {
                    use clap::error::ErrorKind;
                    matches!(
                        error.kind(),
                        ErrorKind::DisplayHelp | ErrorKind::MissingRequiredArgument
                    )
                };
                if let Err(error) = parsed {
                    assert!(is_part(&error), "`{shown}` in {answer:?}: {error}");
                }
            }
        }
    }

    #[test]
    fn no_word_has_two_answers_or_is_ours() {
        let mut seen = std::collections::BTreeSet::new();
        for habit in OPTIONS {
            for word in habit.words {
                // One command may have another answer than others.
                let of = habit.of.first().copied().unwrap_or_default();
                assert!(seen.insert(("option", of, *word)), "{of} {word}");
            }
        }
        let root = args::built_command();
        for (group, habit) in COMMANDS {
            let command = match *group {
                "" => &root,
                name => root.find_subcommand(name).expect("a group"),
            };
            for word in habit.words {
                assert!(seen.insert(("command", group, *word)), "{group} {word}");
                assert!(command.find_subcommand(word).is_none(), "{group} {word}");
            }
        }
    }
}
