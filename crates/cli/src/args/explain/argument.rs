//! Explains words that a command does not take, and what to type instead.

use hq_core::words::has_word;

use super::super::{built_command, habits};
use super::{quoted_list, takes};
use crate::text::closest;

pub(super) fn of_argument(path: &[&str], word: &str, words: &[&str]) -> Option<String> {
    let before = words
        .iter()
        .position(|other| *other == word)
        .and_then(|at| words.get(at.checked_sub(1)?));
    let attached = || of_attached(path, word, before?);
    if let Some(answer) = of_negative(path, word, words, before).or_else(attached) {
        return Some(answer);
    }
    if let Some(answer) = habits::of_option(path, word) {
        return Some(answer);
    }
    if let Some(answer) = of_id(path, word).or_else(|| of_positional(path, word, words)) {
        return Some(answer);
    }
    match path {
        ["doc"] => {
            let typed = words.iter().skip_while(|typed| **typed != "doc").skip(1);
            let typed = typed.filter(|typed| !matches!(**typed, "--" | "--search" | "--open"));
            let typed = typed.copied().collect::<Vec<_>>().join(" ");
            Some(format!("words that begin with `-` follow `--`: `hq doc -- {typed}`"))
        }
        ["output-log", command] if words.windows(2).any(|pair| pair == ["output-log", *command]) => {
            Some(format!("the directory comes first: `hq output-log {word} {command}`"))
        }
        ["import"] if word.starts_with('-') => of_own(path, word).or_else(|| {
            let typed = words.iter().find(|typed| typed.starts_with(word))?;
            Some(format!(
                "options of the batch system are one text in front of the script: `hq import --options '{typed}' FILE`"
            ))
        }),
        ["job", "submit-file"] if !word.starts_with('-') => Some(format!(
            "a job file runs as a whole, without a program or arguments: `hq job submit-file {}`; several files are several commands",
            before.unwrap_or(&"FILE.toml")
        )),
        ["job" | "worker", command, ..] if are_files(&[word, before.unwrap_or(&"")]) => Some(format!(
            "the shell has replaced `*` with file names; to select all, type `hq {} {command} all`",
            path[0]
        )),
        // This is a second word after one that selects everything.
        ["job" | "worker" | "task", command, ..]
            if word
                .chars()
                .all(|c| c.is_ascii_digit() || matches!(c, '-' | ',' | '.' | '@')) =>
        {
            let group = path[0];
            Some(format!(
                "several ids are one word: `hq {group} {command} 1,2` or `hq {group} {command} 1-4`"
            ))
        }
        // An option with this exact name on another command is a better guess than a similar name.
        _ if word.starts_with("--") => of_other_command(path, word).or_else(|| of_own(path, word)),
        _ if !word.starts_with('-') => of_stray_word(path, word, (before.unwrap_or(&""), words)),
        _ => None,
    }
}

/// Returns advice about a negative number.
fn of_negative(path: &[&str], word: &str, words: &[&str], before: Option<&&str>) -> Option<String> {
    let is_negative = word.strip_prefix('-').is_some_and(|number| {
        !number.is_empty() && number.chars().all(|c| c.is_ascii_digit() || c == '.')
    });
    if !is_negative {
        return None;
    }
    if path == ["job", "tail"] {
        let typed = words.iter().find(|typed| typed.starts_with(word));
        let lines = typed.unwrap_or(&word).trim_start_matches('-');
        return Some(format!(
            "the number of lines is an option: `hq job tail -n {lines} JOB`"
        ));
    }
    if let Some(option) = before.filter(|option| option.starts_with('-')) {
        let name = long_of(path, option);
        return match &*name {
            "--priority" => Some(format!("write a negative number as `{option}={word}`")),
            _ if matches!(path, ["worker" | "alloc", ..]) => super::of_value(&name, word, path),
            _ => takes(&name, path),
        };
    }
    if matches!(path, ["job" | "task" | "worker", _]) {
        return Some(format!(
            "ids begin at 1; `last` is the latest: `hq {} last`",
            path.join(" ")
        ));
    }
    None
}

/// Returns advice about a word after an option that takes a value only after `=`.
fn of_attached(path: &[&str], word: &str, option: &str) -> Option<String> {
    if option == "--http" {
        let text =
            "an address follows `--http` without a blank: `--http=8080`, `--http=0.0.0.0:8080`";
        return Some(text.to_owned());
    }
    let arg = argument(path, option).filter(clap::Arg::is_require_equals_set)?;
    let values = arg.get_possible_values();
    let is_value = values.iter().any(|value| value.matches(word, false));
    is_value.then(|| format!("the value of `{option}` follows without a blank: `{option}={word}`"))
}

fn are_files(words: &[&str]) -> bool {
    words.iter().all(|word| std::path::Path::new(word).exists())
}

/// Returns advice about the id of a job, task, worker or queue where no id is expected, as in `hq
/// job 7` or `hq dashboard 7`.
pub(super) fn of_id(path: &[&str], word: &str) -> Option<String> {
    let is_number = |c: char| c.is_ascii_digit() || matches!(c, ',' | '-' | '.');
    let is_id = word.starts_with(|c: char| c.is_ascii_digit()) && word.chars().all(is_number);
    if !is_id && !matches!(word, "last" | "all") {
        return None;
    }
    let text = match path {
        [] | ["job" | "status" | "problems"] if word.contains('.') => {
            format!("`hq task info {word}` shows one task")
        }
        [] | ["job" | "status" | "problems"] => format!("`hq job info {word}` shows one job"),
        ["task"] if word.contains('.') => {
            format!("`hq task info {word}` shows a task, `hq task explain {word}` why it waits")
        }
        ["task"] => format!("`hq task list {word}` lists the tasks of a job"),
        ["worker"] => format!("`hq worker info {word}` shows one worker"),
        ["alloc"] => format!("`hq alloc info {word}` shows one queue"),
        ["dashboard", ..] => format!(
            "it shows all jobs, and one is chosen on the page; `hq job progress {word}` follows one job"
        ),
        _ => return None,
    };
    Some(text)
}

/// Returns advice about an option where a word is expected, as in `hq job info --job 3`.
fn of_positional(path: &[&str], word: &str, words: &[&str]) -> Option<String> {
    const FILES: &str = "file path dir directory journal input script name";
    const IDS: &str = "id number";
    let option = word.split('=').next()?;
    let name = option.strip_prefix("--")?.trim_end_matches('s');
    let is_meant = |arg: &clap::Arg| {
        let place = arg.to_string().to_lowercase();
        let has = |kinds: &str| kinds.split(' ').any(|kind| place.contains(kind));
        place.contains(name)
            || has("job worker queue allocation") && has_word(IDS, name)
            || has("file dir path journal script") && has_word(FILES, name)
    };
    // The directory of `output-log` belongs to the group.
    let (path, command) = (1..=path.len()).rev().find_map(|count| {
        let command = command_at(&path[..count])?;
        let has_it = command.get_positionals().any(is_meant);
        has_it.then_some((&path[..count], command))
    })?;
    let mut typed = words.iter().skip_while(|typed| !typed.starts_with(option));
    let value = match typed.next()?.split_once('=') {
        Some((_, value)) => Some(value),
        None => typed.next().copied().filter(|next| !next.starts_with('-')),
    };
    let at = command.get_positionals().position(is_meant)?;
    let shown = command
        .get_positionals()
        .enumerate()
        .filter_map(|(number, arg)| {
            if number == at
                && let Some(value) = value
            {
                let is_part = matches!(path, ["task", "info" | "explain"]) && !value.contains('.');
                let typed = words.iter().skip_while(|typed| Some(*typed) != path.last());
                let job = typed.copied().nth(1).filter(|job| !job.starts_with('-'));
                return Some(match name {
                    _ if !is_part => value.to_owned(),
                    "task" => format!("{}.{value}", job.unwrap_or("JOB")),
                    _ => format!("{value}.TASK"),
                });
            }
            let place = arg.to_string();
            let place = place
                .trim_matches(['<', '>', '[', ']', '.'])
                .split('[')
                .next()?;
            (number == at || arg.is_required_set()).then(|| place.to_owned())
        });
    let shown: Vec<String> = shown.collect();
    Some(format!(
        "it is a word without `{option}`: `hq {} {}`",
        path.join(" "),
        shown.join(" ")
    ))
}

/// Returns advice about an option that only other commands have.
fn of_other_command(path: &[&str], word: &str) -> Option<String> {
    let name = word.trim_start_matches('-').split('=').next()?;
    let mut found = Vec::new();
    let root = built_command();
    with_option(&root, name, &mut Vec::new(), &mut found);
    let below = format!("{} ", path.join(" "));
    let mut below = found.iter().filter(|command| command.starts_with(&below));
    if let Some(command) = below
        .clone()
        .find(|command| command.ends_with("slurm"))
        .or_else(|| below.next())
    {
        return Some(format!(
            "options follow the whole command: `hq {command} --{name} …`"
        ));
    }
    // The most likely command comes first.
    found.sort_by_key(|command| {
        (
            !matches!(&**command, "submit" | "run" | "worker start" | "job list"),
            command.len(),
        )
    });
    let known: Vec<String> = found
        .iter()
        .take(3)
        .map(|command| format!("`hq {command}`"))
        .collect();
    (!known.is_empty()).then(|| {
        format!(
            "`--{name}` is an option of {}; `hq {} --help` lists the options of this command",
            known.join(", "),
            path.join(" ")
        )
    })
}

/// Collects the visible commands that have an option.
fn with_option<'a>(
    command: &'a clap::Command,
    name: &str,
    path: &mut Vec<&'a str>,
    found: &mut Vec<String>,
) {
    for inner in command
        .get_subcommands()
        .filter(|inner| !inner.is_hide_set())
    {
        path.push(inner.get_name());
        let has = |arg: &clap::Arg| arg.get_long() == Some(name) && !arg.is_hide_set();
        if inner.get_arguments().any(has) {
            found.push(path.join(" "));
        }
        with_option(inner, name, path, found);
        path.pop();
    }
}

/// Returns advice about a superfluous word.
fn of_stray_word(path: &[&str], word: &str, (before, words): (&str, &[&str])) -> Option<String> {
    const UNITS: &str = "s sec secs second seconds m min mins minute minutes h hour hours days";
    if has_word(UNITS, word) && before.parse::<f64>().is_ok() {
        return Some(format!("a duration is one word: `{before}{word}`"));
    }
    let command = path.join(" ");
    let is_table = !word.is_empty() && word.chars().all(|c| matches!(c, '|' | '+' | '-' | '*'));
    if is_table || is_state(word) {
        let list = match path {
            ["worker", ..] => "worker list",
            _ => "job list --filter waiting",
        };
        return Some(format!(
            "a list of hq stands there; ids are one word, such as `hq {command} 3,5-7`. As a script: `hq {command} \
             $(hq {list} --output-mode json | jq -r 'map(.id) | join(\",\")')`"
        ));
    }
    let text = match path {
        ["job", "cat"] if before.parse::<u32>().is_ok() => {
            return Some(format!(
                "a task is named with its job: `hq job cat JOB.{before} {word}`"
            ));
        }
        ["config"] => return Some(of_setting(words)),
        ["task", "notify"] => {
            let message = words.iter().skip_while(|word| **word != "notify").skip(1);
            let message = message.copied().collect::<Vec<_>>().join(" ");
            return Some(format!(
                "a message with blanks needs quotes: `hq task notify '{message}'`"
            ));
        }
        ["job", "open"] if !words.contains(&"--name") => return Some(of_name(word, words)),
        ["job", "open"] => {
            "it creates a job without tasks; `hq submit --job ID -- PROGRAM` adds tasks, and `hq job close ID` closes it"
        }
        ["output-log"] => {
            return Some(format!(
                "the commands after the directory are {}",
                quoted_list(&commands_of(path))
            ));
        }
        _ => {
            let words = positionals(path);
            return Some(match (words.is_empty(), own_options(path)) {
                (false, _) => format!("`hq {command}` takes {words} and no more words"),
                (true, Some(options)) => format!("`hq {command}` takes options only: {options}"),
                (true, None) => format!(
                    "`hq {command}` takes no words; `hq {command} --help` lists its options"
                ),
            });
        }
    };
    Some(text.to_owned())
}

/// Returns advice about a name without its option, as in `hq job open my steps`.
fn of_name(word: &str, words: &[&str]) -> String {
    let name = words.iter().skip_while(|typed| **typed != word);
    let name = name.take_while(|typed| !typed.starts_with('-'));
    let name = name.copied().collect::<Vec<_>>().join(" ");
    format!("the name is an option: `hq job open --name '{name}'`")
}

/// `hq config set submit.cpus 4`: what to write, and in which file.
fn of_setting(words: &[&str]) -> String {
    const VERBS: &str = "set get add edit show unset";
    let typed = words.iter().skip_while(|word| **word != "config").skip(1);
    let typed = typed.flat_map(|word| word.split('='));
    let mut typed = typed.filter(|word| !word.starts_with('-') && !has_word(VERBS, word));
    let key = typed.next().unwrap_or("submit.cpus");
    let (table, key) = key.rsplit_once('.').unwrap_or(("submit", key));
    let value = typed.next().unwrap_or("4");
    let is_bare = value.parse::<f64>().is_ok() || matches!(value, "true" | "false");
    let quote = if is_bare { "" } else { "\"" };
    format!(
        "it only shows defaults: to set one, write the lines `[{table}]` and `{key} = {quote}{value}{quote}` in the file that `hq config` names (`~/.config/hq/config.toml`), see `hq doc config`"
    )
}

/// Returns whether a word is a state as shown in a list, such as `WAITING`.
pub(super) fn is_state(word: &str) -> bool {
    const STATES: &str =
        "WAITING RUNNING FINISHED FAILED CANCELED ABORTED OPENED STOPPED LOST OFFLINE";
    has_word(STATES, word)
}

/// Returns the command that a path names.
fn command_at(path: &[&str]) -> Option<clap::Command> {
    let mut command = built_command();
    for name in path {
        command = command.find_subcommand(name)?.clone();
    }
    Some(command)
}

/// Returns the names of the positional arguments of a command.
fn positionals(path: &[&str]) -> String {
    let command = command_at(path);
    let words = command.iter().flat_map(clap::Command::get_positionals);
    let words: Vec<String> = words.map(|word| format!("`{word}`")).collect();
    words.join(" ")
}

/// Returns the names of the visible commands of a group.
pub(super) fn commands_of(path: &[&str]) -> Vec<String> {
    let command = command_at(path);
    let commands = command.iter().flat_map(clap::Command::get_subcommands);
    let commands = commands.filter(|command| !command.is_hide_set());
    commands
        .map(|command| command.get_name().to_owned())
        .collect()
}

/// Returns the argument of a command with this name: `--long`, `-s` or `<PLACE>`.
fn argument(path: &[&str], name: &str) -> Option<clap::Arg> {
    let command = command_at(path)?;
    let is_it = |arg: &&clap::Arg| match (name.strip_prefix("--"), name.strip_prefix('-')) {
        (Some(long), _) => arg.get_long() == Some(long),
        (None, Some(short)) => arg.get_short() == short.chars().next(),
        (None, None) => arg.is_positional() && name.starts_with(&arg.to_string()),
    };
    command.get_arguments().find(is_it).cloned()
}

/// Returns the long name of an option.
fn long_of(path: &[&str], option: &str) -> String {
    let long = argument(path, option).and_then(|arg| Some(format!("--{}", arg.get_long()?)));
    long.unwrap_or_else(|| option.to_owned())
}

/// Returns whether an option of a command is required.
pub(super) fn is_required(path: &[&str], name: &str) -> bool {
    argument(path, name).is_some_and(|arg| arg.is_required_set())
}

/// Returns the description of an argument from `--help`.
pub(super) fn description(path: &[&str], name: &str) -> Option<String> {
    let arg = argument(path, name)?;
    let text = arg.get_help()?.to_string();
    let (shown, command) = (arg.to_string(), path.join(" "));
    let line = text.lines().next()?.trim_end_matches('.');
    Some(format!("`{shown}` of `hq {command}` is: {line}"))
}

/// Like `description`, with the possible values, which the parser does not show for a missing
/// argument, and the command line completed with one of them.
pub(super) fn full_description(path: &[&str], name: &str, words: &[&str]) -> Option<String> {
    let text = description(path, name)?;
    let values = argument(path, name)?.get_possible_values();
    let values: Vec<String> = values
        .iter()
        .map(|value| value.get_name().to_owned())
        .collect();
    let Some(first) = values.first() else {
        return Some(text);
    };
    let line = [words.get(1..).unwrap_or_default(), &[first]]
        .concat()
        .join(" ");
    Some(format!(
        "{text}: {}, as in `hq {line}`",
        quoted_list(&values)
    ))
}

/// Returns an option of the command itself that is spelled almost like this word.
fn of_own(path: &[&str], word: &str) -> Option<String> {
    let (name, value) = word
        .split_once('=')
        .map_or((word, ""), |(name, value)| (name, value));
    let command = command_at(path)?;
    let names = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let names = names.filter_map(clap::Arg::get_long);
    let meant = closest(name.trim_start_matches('-'), names)?;
    let sign = if value.is_empty() { "" } else { "=" };
    Some(format!("did you mean `--{meant}{sign}{value}`?"))
}

/// Returns a sentence with the options of a command, if it has only a few.
pub(super) fn options_of(path: &[&str]) -> Option<String> {
    let command = path.join(" ");
    Some(match own_options(path) {
        Some(options) => format!("`hq {command}` has the options {options}"),
        None => format!("`hq {command} --help` lists its options"),
    })
}

fn own_options(path: &[&str]) -> Option<String> {
    const SHOWN_MAX: usize = 8;
    let command = command_at(path).filter(|_| !path.is_empty())?;
    let options = command
        .get_arguments()
        .filter(|option| !option.is_hide_set() && !option.is_global_set());
    let options = options
        .filter_map(clap::Arg::get_long)
        .filter(|long| *long != "help");
    let options: Vec<String> = options.map(|long| format!("`--{long}`")).collect();
    (!options.is_empty() && options.len() <= SHOWN_MAX).then(|| options.join(", "))
}
