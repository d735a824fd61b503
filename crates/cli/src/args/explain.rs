//! Errors of command lines that cannot be parsed: the mistake, and what to type instead.
//!
//! The parser's text is kept, but for words of the programming language and for proposals that only look alike;
//! what to do stands in a line that begins with `help:`.

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use super::{built_command, habits};

/// Texts of the standard library for values that are no numbers, and what people understand.
const NUMBERS: &[(&str, &str)] = &[
    ("invalid digit found in string", "expected a whole number"),
    (
        "number would be zero for non-zero type",
        "expected a whole number from 1",
    ),
    (
        "cannot parse integer from empty string",
        "expected a whole number, found nothing",
    ),
    (
        "number too large to fit in target type",
        "the number is too large",
    ),
    (
        "number too small to fit in target type",
        "the number is too small",
    ),
    ("invalid float literal", "expected a number such as 0.5"),
];

/// The whole text for standard error, with colours.
pub(crate) fn text(mut error: clap::Error, words: &[OsString]) -> String {
    let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    let mut root = built_command();
    let path = path_of(&root, &words);
    let help = help_for(&error, &path, &words);
    if help.is_some() {
        // Names that are only spelled alike would lead astray.
        error.remove(ContextKind::SuggestedArg);
        error.remove(ContextKind::SuggestedSubcommand);
        error.remove(ContextKind::Suggested);
    }
    if error.get(ContextKind::Usage).is_some() {
        let usage = usage_of(&mut root, &path);
        error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
    }
    let is_empty_dir = context(&error, ContextKind::InvalidArg)
        .is_some_and(|arg| arg.starts_with("--server-dir "))
        && context(&error, ContextKind::InvalidValue) == Some("");
    if is_empty_dir && let Some(help) = &help {
        // The parser names an option, which nobody may have typed.
        return format!(
            "error: the server directory is empty\n\nhelp: {help}\n\nFor more information, try '--help'.\n"
        );
    }
    let mut text = error.render().ansi().to_string();
    for (technical, plain) in NUMBERS {
        text = text.replace(technical, plain);
    }
    let Some(help) = help else { return text };
    let line = format!("\n\nhelp: {help}");
    match text.find("\n\nFor more information") {
        Some(at) => text.insert_str(at, &line),
        None => {
            text.truncate(text.trim_end().len());
            text.push_str(&line);
            text.push('\n');
        }
    }
    text
}

/// Names of the commands that the words go through.
fn path_of<'a>(root: &clap::Command, words: &[&'a str]) -> Vec<&'a str> {
    let mut path = Vec::new();
    let mut command = root;
    let mut words = words.iter().skip(1);
    while let Some(word) = words.next() {
        if let Some(found) = command.find_subcommand(word) {
            path.push(*word);
            command = found;
            continue;
        }
        if !word.starts_with("--") || *word == "--" {
            break;
        }
        // A value of a global option may follow.
        let name = word.trim_start_matches('-');
        let is_valued =
            |arg: &&clap::Arg| arg.get_long() == Some(name) && arg.get_action().takes_values();
        if root.get_arguments().any(|arg| is_valued(&arg)) {
            words.next();
        }
    }
    path
}

/// The whole usage: the parser's own leaves out what it thinks was not meant.
fn usage_of(command: &mut clap::Command, path: &[&str]) -> StyledStr {
    match path.split_first() {
        Some((name, rest)) if command.find_subcommand(name).is_some() => {
            match command.find_subcommand_mut(name) {
                Some(found) => usage_of(found, rest),
                // It was there a moment ago.
                None => StyledStr::new(),
            }
        }
        Some(_) | None => command.render_usage(),
    }
}

fn context(error: &clap::Error, kind: ContextKind) -> Option<&str> {
    let ContextValue::String(text) = error.get(kind)? else {
        return None;
    };
    Some(text)
}

/// Advice on what to type, if that is known better than by spelling.
fn help_for(error: &clap::Error, path: &[&str], words: &[&str]) -> Option<String> {
    let kind = error.kind();
    if kind == ErrorKind::UnknownArgument {
        let word = context(error, ContextKind::InvalidArg)?;
        return of_argument(path, word, words);
    }
    if kind == ErrorKind::InvalidSubcommand {
        let word = context(error, ContextKind::InvalidSubcommand)?;
        return habits::of_command(path, word).map(str::to_owned);
    }
    if kind == ErrorKind::MissingRequiredArgument {
        return of_missing(path).map(str::to_owned);
    }
    if kind != ErrorKind::ValueValidation && kind != ErrorKind::InvalidValue {
        return None;
    }
    let option = context(error, ContextKind::InvalidArg)?;
    let value = context(error, ContextKind::InvalidValue)?;
    of_value(option, value, path)
}

fn of_argument(path: &[&str], word: &str, words: &[&str]) -> Option<String> {
    if let Some(answer) = habits::of_option(path, word) {
        return Some(answer.to_owned());
    }
    let is_negative = word.len() > 1 && word[1..].chars().all(|c| c.is_ascii_digit());
    if word.starts_with('-') && is_negative {
        let at = words.iter().position(|other| *other == word)?;
        let option = words.get(at.checked_sub(1)?)?;
        return Some(match *option {
            "--priority" => format!("a negative number is written `{option}={word}`"),
            _ => format!("`{option}` takes a whole number from 0"),
        });
    }
    match path {
        ["server", "start"] if words.windows(2).any(|pair| pair == ["--http", word]) => Some(
            "an address follows `--http` without a blank: `--http=8080`, `--http=0.0.0.0:8080`"
                .to_owned(),
        ),
        // A second word where one selects everything.
        ["job" | "worker" | "task", command, ..]
            if word
                .chars()
                .all(|c| c.is_ascii_digit() || c == '-' || c == ',') =>
        {
            let group = path[0];
            Some(format!(
                "several ids are one word: `hq {group} {command} 1,2` or `hq {group} {command} 1-4`"
            ))
        }
        _ => None,
    }
}

fn of_missing(path: &[&str]) -> Option<&'static str> {
    match path {
        ["submit"] | ["job", "submit"] => {
            Some("the program comes last: `hq submit --array 1-10 -- ./step`, see `hq doc jobs`")
        }
        ["run"] => Some(
            "the program comes last: `hq run --each-line FILE -- ./step`, see `hq doc quickstart`",
        ),
        ["job", "cat"] => Some("a job and a stream: `hq job cat last stdout`"),
        ["task", "info" | "explain"] => Some(
            "a task is written `JOB.TASK`, as in `hq task info 3.7`; `hq task list JOB` lists tasks",
        ),
        ["journal", "report"] => {
            Some("`hq report [OUTPUT]` writes the page of the running or the last server")
        }
        ["job" | "task", ..] => Some("jobs are chosen by id, as in `hq job list`, or by `last`"),
        ["worker", ..] => Some("workers are chosen by id, as in `hq worker list`"),
        _ => None,
    }
}

/// Values that other tools take.
fn of_value(option: &str, value: &str, path: &[&str]) -> Option<String> {
    let name = option.split([' ', '=']).next().unwrap_or(option);
    match name {
        "--resource" if path == ["submit"] && !value.contains('=') => Some(format!(
            "a resource is NAME=AMOUNT, such as `--resource gpus/nvidia=1` or `--resource mem=4G`; `{value}` has no `=`, see `hq doc resources`"
        )),
        "--resource" | "--cpus" => Some("amounts are such as `--cpus 4`, `--cpus \"8 compact!\"`, `--resource gpus/nvidia=1`, `--resource mem=4G`; see `hq doc resources`".to_owned()),
        "--array" => Some("ids are such as `--array 1-100`, `--array 0-10:2` or `--array 1,5,7-9`; see `hq doc jobs`".to_owned()),
        "--time-limit" | "--time-request" => Some(format!("durations are such as `{name} 90s`, `{name} 2h30m` or `{name} 01:30:00`")),
        "<JOBS>" | "<JOB>" => Some(of_id(value, "job", "hq job list --all", "`3`, `1-4,7`, `last` or, in most commands, `all`")),
        "<JOBS[.TASKS]>" | "<JOB[.TASKS]>" | "<JOB[.TASK]>" => Some(of_id(value, "job", "hq job list --all", "`3`, `last`, or with tasks `3.7`, `last.1-4`")),
        "<WORKERS>" | "<WORKER>" => Some(of_id(value, "worker", "hq worker list", "`3`, `1-4,7`, `last` or `all`")),
        "--server-dir" => Some("`--server-dir PATH` or the variable HQ_SERVER_DIR names it; without both it is `.hq-server` in your home directory (`unset HQ_SERVER_DIR`)".to_owned()),
        "--priority" => Some("tasks with a larger number run first: `--priority 10`".to_owned()),
        _ => None,
    }
}

/// What to write in place of a name, or of the sentence that a submit prints for people.
fn of_id(value: &str, what: &str, list: &str, examples: &str) -> String {
    let number = value.split(' ').find(|word| word.parse::<u32>().is_ok());
    match number.filter(|_| value.starts_with("Job ")) {
        Some(id) => format!(
            "the id in this sentence is {id}; with `HQ_OUTPUT_MODE=quiet`, `hq submit` prints nothing but the id"
        ),
        None if value.starts_with(char::is_alphabetic) && value != "all" => format!(
            "a {what} is chosen by its id, not by its name: `{list}` shows the id of each name; ids are written {examples}"
        ),
        None => format!("ids are those of `{list}`, written {examples}"),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    fn told(line: &str) -> String {
        let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
        let error = crate::args::Cli::try_parse_from(&words).expect_err(line);
        anstream::adapter::strip_str(&text(error, &words)).to_string()
    }

    #[test]
    fn habits_get_one_answer_and_no_proposal_of_the_parser() {
        let text = told("hq submit --job-name x -- true");
        assert!(
            text.contains("error: unexpected argument '--job-name' found"),
            "{text}"
        );
        assert!(
            text.contains("\nhelp: the name of a job is `--name TEXT`\n"),
            "{text}"
        );
        assert!(!text.contains("tip:"), "{text}");
        let text = told("hq --server-dir /x job kill 3");
        assert!(text.contains("`hq job cancel JOB`"), "{text}");
    }

    #[test]
    fn usage_is_whole_and_numbers_are_told_in_plain_words() {
        let text = told("hq --server-dir /x submit");
        assert!(
            text.contains("Usage: hq submit [OPTIONS] <COMMAND>..."),
            "{text}"
        );
        let text = told("hq submit --priority high -- true");
        assert!(text.contains("expected a whole number\n"), "{text}");
    }
}
