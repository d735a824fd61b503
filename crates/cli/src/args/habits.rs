//! Maps words that users know from Slurm, PBS, GNU parallel and other tools to their names here.
//! The command line parser suggests similar spellings, which are misleading for such habits:
//! `--job-name` does not mean `--job`. Each of these words has one answer.

mod commands;
mod options;

use hq_core::words::has_word;

use crate::text::rows;
use commands::COMMANDS;
use options::OPTIONS;

/// Words of other tools and their names here, as Markdown without line breaks.
#[derive(Clone, Copy)]
struct Habit {
    /// The commands that this answer applies to: `submit`, `job list`, or a whole group such as
    /// `worker`.
    of: &'static str,
    /// The word, or several words with the same meaning.
    words: &'static str,
    /// The text to type instead.
    answer: &'static str,
}

/// Returns the rows of a table. It has `[COMMAND, COMMAND]` before the rows of these commands, and
/// each row is `WORD WORD: ANSWER`.
fn habits(table: &'static str) -> impl Iterator<Item = Habit> {
    let mut of = "";
    table.lines().filter_map(move |line| {
        let row = line.split_once(": ");
        if row.is_none() {
            of = line.trim_matches(['[', ']']);
        }
        row.map(|(words, answer)| Habit { of, words, answer })
    })
}

impl Habit {
    fn words(self) -> impl Iterator<Item = &'static str> {
        self.words.split(' ')
    }
}

/// Returns whether a command is in a list of commands and groups.
pub(super) fn is_among(list: &str, path: &str) -> bool {
    let path = if path == "job submit" { "submit" } else { path };
    list.split(", ").any(|of| {
        let rest = path.strip_prefix(of);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    })
}

/// Returns the answer for an option of another tool. `--mem=4G` counts as `--mem`, and `-n4` as
/// `-n`.
pub(crate) fn of_option(path: &[&str], word: &str) -> Option<String> {
    let path = path.join(" ");
    if path.is_empty() {
        return Some(
            "options of tasks follow the command: `hq run -j 4 -- PROGRAM`, `hq submit --cpus 2 -- PROGRAM`; `hq --help` lists the commands".to_owned(),
        );
    }
    let name = word.split('=').next().unwrap_or(word);
    let is_number = name.starts_with(|c: char| c.is_ascii_digit())
        && word
            .chars()
            .all(|c| c.is_ascii_digit() || ",-:".contains(c));
    let is_it = |known: &str| match known {
        "#" => is_number,
        "*" => !word.starts_with('-'),
        // The value of a short option may follow it directly.
        _ => {
            known == name || known.len() == 2 && name.starts_with(known) && !name.starts_with("--")
        }
    };
    let mut about = habits(OPTIONS).filter(|habit| is_among(habit.of, &path));
    let found = about.find(|habit| habit.words().any(is_it))?;
    Some(
        found
            .answer
            .replace("{word}", word)
            .replace("{path}", &path),
    )
}

/// Returns the answer for a subcommand of another tool.
pub(super) fn of_command(path: &[&str], word: &str) -> Option<&'static str> {
    let group = *path.first().unwrap_or(&"hq");
    let mut of_group = habits(COMMANDS).filter(|habit| habit.of == group);
    let found = of_group.find(|habit| has_word(habit.words, word));
    found.map(|habit| habit.answer)
}

/// The resource names of other tools, and their names here.
const RESOURCES: &str = "
gpu gpus gres nvidia cuda: detected GPUs are `gpus/nvidia` and `gpus/amd`
cpu core cores ncpus threads thread procs slots ntasks: cpus of a task are `--cpus 4`
memory ram vmem pmem mem_mb mem_gb mem_free h_vmem rss: memory of a task is `--resource mem=4G`
time walltime runtime timeout h_rt s_rt cput time_min: the longest run of a task is `--time-limit 1h`
node nodes select: whole nodes for a task are `--nodes 2`
";

/// Returns the hq equivalent of another tool's resource.
pub(crate) fn known_resource(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    let name = match name.strip_prefix("gpus/") {
        Some(kind) if !matches!(kind, "nvidia" | "amd") => "gpu",
        Some(_) | None => &name,
    };
    let found = rows(RESOURCES).find(|(words, _)| has_word(words, name));
    found.map(|(_, answer)| answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args;

    /// Every command in an answer must exist and have the shown options.
    #[test]
    fn what_is_proposed_can_be_typed() {
        let all = habits(OPTIONS).chain(habits(COMMANDS));
        let answers = all.map(|habit| habit.answer);
        for answer in answers {
            for shown in answer.split('`').skip(1).step_by(2) {
                let Some(line) = shown.strip_prefix("hq ") else {
                    continue;
                };
                let line = line
                    .replace("channel {word}", "channel stdout")
                    .replace("{word}", "1")
                    .replace("{path} 3 1,2", "task info 3 1,2")
                    .replace("{path}", "alloc info")
                    .replace("JOB.1", "1.1")
                    .replace("JOB.TASK", "1.1")
                    .replace(" JOB", " 1")
                    .replace(" TASK", " 1")
                    .replace(" QUEUE", " 1")
                    .replace(" WORKER", " 1")
                    .replace("JOB.7", "1.7")
                    .replace("COMMAND --help", "--version");
                let words = shlex::split(&format!("hq {line}")).expect("closed quotes");
                let parsed = args::command().try_get_matches_from(&words);
                // A command line without its last word is used to show an option.
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
        for habit in habits(OPTIONS) {
            for word in habit.words() {
                // A single command may have a special answer.
                let of = habit.of;
                assert!(seen.insert(("option", of, word)), "{of} {word}");
            }
        }
        let root = args::built_command();
        for habit in habits(COMMANDS) {
            let group = habit.of;
            let command = match group {
                "hq" => &root,
                name => root.find_subcommand(name).expect("a group"),
            };
            for word in habit.words() {
                assert!(seen.insert(("command", group, word)), "{group} {word}");
                assert!(command.find_subcommand(word).is_none(), "{group} {word}");
            }
        }
    }
}
