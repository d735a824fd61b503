//! Explains command lines that cannot be parsed: names the mistake, and what to type instead. Keeps
//! the parser's text, except terms of the programming language and suggestions that are merely
//! similar. Advice follows in a line that begins with `help:`.

use std::ffi::OsString;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use argument::of_argument;
use hq_core::words::has_word;

use super::habits::known_resource;
use super::{built_command, habits};
use crate::text::{closest, is_printed_quote, rows, with_hyphens};

mod argument;
mod repair;

/// Readable replacements for the standard library's errors about numbers.
const NUMBERS: &str = "
invalid digit found in string: expected a whole number
number would be zero for non-zero type: expected a whole number from 1
cannot parse integer from empty string: expected a whole number, found nothing
number too large to fit in target type: the number is too large
number too small to fit in target type: the number is too small
invalid float literal: expected a number such as 0.5
";

/// Returns the whole text for standard error, with colors.
pub(crate) fn text(mut error: clap::Error, words: &[OsString]) -> String {
    let words: Vec<&str> = words.iter().filter_map(|word| word.to_str()).collect();
    let mut root = built_command();
    let path = path_of(&root, &words);
    let help = help_for(&error, &path, &words);
    // The parser suggests names that are only vaguely similar, which would mislead.
    for kind in [
        ContextKind::SuggestedArg,
        ContextKind::SuggestedSubcommand,
        ContextKind::SuggestedValue,
        ContextKind::Suggested,
    ] {
        error.remove(kind);
    }
    if error.get(ContextKind::Usage).is_some() {
        let usage = usage_of(&mut root, &path);
        error.insert(ContextKind::Usage, ContextValue::StyledStr(usage));
    }
    let is_empty_dir = context(&error, ContextKind::InvalidArg)
        .is_some_and(|arg| arg.starts_with("--server-dir "))
        && context(&error, ContextKind::InvalidValue) == Some("");
    if is_empty_dir && let Some(help) = &help {
        // The parser names an option that the user may not have typed.
        return format!(
            "error: the server directory is empty\n\nhelp: {help}\n\nFor more information, try '--help'.\n"
        );
    }
    let mut text = error.render().ansi().to_string();
    for (technical, plain) in rows(NUMBERS) {
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

/// Checks whether a command line is valid. The error is a suggestion, if there is one.
pub(crate) fn advice(words: &[&str]) -> Result<(), Option<String>> {
    let mut root = built_command();
    let parsed = root.try_get_matches_from_mut(words);
    parsed
        .map(drop)
        .map_err(|error| help_for(&error, &path_of(&root, words), words))
}

/// Returns the names of the commands that the words select.
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
        // For example, `output-log DIR show`.
        let is_place = command.has_subcommands() && command.get_positionals().next().is_some();
        if is_place && !word.starts_with('-') {
            continue;
        }
        if !word.starts_with("--") || *word == "--" {
            break;
        }
        // The value of a global option may follow.
        let name = word.trim_start_matches('-');
        let is_valued =
            |arg: &&clap::Arg| arg.get_long() == Some(name) && arg.get_action().takes_values();
        if root.get_arguments().any(|arg| is_valued(&arg)) {
            words.next();
        }
    }
    path
}

/// Returns the complete usage, because the parser's own text omits arguments that it considers
/// unintended.
fn usage_of(command: &mut clap::Command, path: &[&str]) -> StyledStr {
    match path.split_first() {
        Some((name, rest)) if command.find_subcommand(name).is_some() => {
            match command.find_subcommand_mut(name) {
                Some(found) => usage_of(found, rest),
                // The subcommand was found a moment ago.
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

/// Returns advice about typographic dashes and quotes, and about options after `--`.
fn of_signs(wrong: Option<&str>, words: &[&str]) -> Option<String> {
    // For a short option, the parser names only the first letter.
    let typed = wrong.and_then(|wrong| words.iter().find(|word| word.starts_with(wrong)));
    let typed = typed.copied().or(wrong);
    if let Some((typed, meant)) = typed.and_then(|word| Some((word, with_hyphens(word)?))) {
        return Some(format!(
            "`{typed}` has a long dash instead of `-`; type it as `{meant}`"
        ));
    }
    if let Some(word) = words
        .iter()
        .take_while(|word| **word != "--")
        .find(|word| word.contains(is_printed_quote))
    {
        return Some(format!(
            "`{word}` has typographic quotes, which the shell does not treat as quotes; type `'` or `\"` instead"
        ));
    }
    let fence = words.iter().position(|word| *word == "--");
    if let (Some(word), Some(fence)) = (wrong, fence)
        && word.starts_with('-')
        && words[fence + 1..].contains(&word)
    {
        return Some(format!(
            "`{word}` comes after `--`, so it is not an option; leave out `--`"
        ));
    }
    None
}

/// Returns a suggestion that is better than one based on spelling.
fn help_for(error: &clap::Error, path: &[&str], words: &[&str]) -> Option<String> {
    let kind = error.kind();
    let wrong = context(error, ContextKind::InvalidValue)
        .or_else(|| context(error, ContextKind::InvalidArg))
        .or_else(|| context(error, ContextKind::InvalidSubcommand));
    if let Some(help) = of_signs(wrong, words).or_else(|| of_sentence(words)) {
        return Some(help);
    }
    if kind == ErrorKind::UnknownArgument {
        let word = context(error, ContextKind::InvalidArg)?;
        let answer = of_argument(path, word, words);
        return answer.or_else(|| argument::options_of(path).filter(|_| word.starts_with('-')));
    }
    if kind == ErrorKind::InvalidSubcommand && taken_as_dir(words).is_none() {
        let word = context(error, ContextKind::InvalidSubcommand)?;
        return Some(of_command(path, word));
    }
    if let Some(dir) = taken_as_dir(words) {
        return Some(format!(
            "`{dir}` was taken as the directory of `--server-dir`: `hq --server-dir DIR {dir} …`"
        ));
    }
    if kind == ErrorKind::TooManyValues {
        return of_flag(error, path);
    }
    if kind == ErrorKind::ArgumentConflict {
        if context(error, ContextKind::InvalidArg) == context(error, ContextKind::PriorArg) {
            let arg = context(error, ContextKind::InvalidArg).unwrap_or_default();
            let has_ids = arg.starts_with("--array") || arg.starts_with("--tasks");
            return Some(match has_ids {
                true => "write it once; several ids or ranges are one value: `1-3,7`".to_owned(),
                false => "write it once".to_owned(),
            });
        }
        let text = error.to_string();
        let has = |option: &str| text.contains(&format!("'{option}"));
        if has("--each-line") && has("--param") {
            return Some("a task has either a line or parameters; `--param x=@FILE` turns the lines of a file into a parameter".to_owned());
        }
        return Some(if has("--nodes") {
            "`--nodes` asks for whole nodes, with everything on them: leave out the other option"
                .to_owned()
        } else {
            "leave out one of the two".to_owned()
        });
    }
    if kind == ErrorKind::MissingRequiredArgument {
        return of_missing(error, path, words);
    }
    let is_about_value = matches!(kind, ErrorKind::ValueValidation | ErrorKind::InvalidValue);
    is_about_value.then(|| of_wrong_value(error, path, words))?
}

/// Returns advice about a value that the parser rejects.
fn of_wrong_value(error: &clap::Error, path: &[&str], words: &[&str]) -> Option<String> {
    let option = context(error, ContextKind::InvalidArg)?;
    let value = context(error, ContextKind::InvalidValue)?;
    // The option may be shown as `--wait[=<UNTIL>]`.
    let name = option.split([' ', '=']).next().unwrap_or(option);
    let name = name.strip_suffix('[').unwrap_or(name);
    let answer = of_number_as_stream(name, value, words).or_else(|| of_word(name, value));
    if let Some(answer) = answer.or_else(|| repair::joined(name, words)) {
        return Some(answer);
    }
    if argument::is_state(value) && !option.contains("STATE") {
        let list = match path {
            ["worker", ..] => "hq worker list",
            _ => "hq job list --all",
        };
        return Some(format!(
            "`{value}` is a state: quiet lists print an id and a state on each line, and `{list} --output-mode quiet | cut -d' ' -f1` prints only the ids"
        ));
    }
    let answer = repair::empty(name, value, (path, words))
        .or_else(|| of_listed(error, value))
        .or_else(|| of_unnamed(name, value))
        .or_else(|| repair::guess_value(name, value, words))
        .or_else(|| of_value(name, value, path))
        .or_else(|| argument::description(path, name))?;
    let end = match value.chars().last() {
        None if !repair::is_typed(words) => "nothing follows it".to_owned(),
        Some(end @ ('-' | '=' | ':' | '/')) if value.len() > 1 => {
            format!("nothing follows the `{end}`")
        }
        Some(_) | None => return Some(answer),
    };
    Some(format!(
        "{answer}; {end}: if a variable of this shell stood there, it is unset"
    ))
}

/// Returns advice about a missing name, as in `--env =1`.
fn of_unnamed(name: &str, value: &str) -> Option<String> {
    let is_unnamed = matches!(name, "--env" | "--param" | "--resource") && value.starts_with('=');
    is_unnamed.then(|| format!("a name is missing in front of `=`: `{name} NAME{value}`"))
}

/// Returns the most similar possible value.
fn of_listed(error: &clap::Error, value: &str) -> Option<String> {
    let ContextValue::Strings(valid) = error.get(ContextKind::ValidValue)? else {
        return None;
    };
    let meant = closest(value, valid.iter().map(String::as_str))?;
    Some(format!("did you mean `{meant}`?"))
}

/// Returns advice about an unknown command: its name here if other tools call it so, similar names,
/// or all commands.
fn of_command(path: &[&str], word: &str) -> String {
    let group: String = path.iter().map(|name| format!(" {name}")).collect();
    let names = argument::commands_of(path);
    let meant = || {
        // For example, `job-list`.
        let joined = word.split_once(['-', '.', '_', ':']);
        let joined = joined.filter(|&(first, rest)| {
            let inner = argument::commands_of(&[path, &[first]].concat());
            inner.iter().any(|name| name == rest)
        });
        let near = closest(word, names.iter().map(String::as_str)).map(str::to_owned);
        let joined = joined.map(|(first, rest)| format!("{first} {rest}"));
        Some(format!("did you mean `hq{group} {}`?", joined.or(near)?))
    };
    let known = habits::of_command(path, word).map(str::to_owned);
    let known = known.or_else(|| argument::of_id(path, word));
    let known = known.or_else(|| of_program(path, word)).or_else(meant);
    known.unwrap_or_else(|| match path {
        [] => "`hq --help` lists the commands".to_owned(),
        _ => format!("`hq{group}` has the commands {}", quoted_list(&names)),
    })
}

/// Joins names for a sentence.
fn quoted_list(names: &[String]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    names.join(", ")
}

/// Returns a command that was typed where a directory is expected.
fn taken_as_dir<'a>(words: &[&'a str]) -> Option<&'a str> {
    let at = words.iter().position(|word| *word == "--server-dir")?;
    let dir = words.get(at + 1)?;
    let is_command =
        built_command().find_subcommand(dir).is_some() || habits::of_command(&[], dir).is_some();
    (is_command && !std::path::Path::new(dir).exists()).then_some(dir)
}

/// Returns advice about a value for an option that takes none.
fn of_flag(error: &clap::Error, path: &[&str]) -> Option<String> {
    let option = context(error, ContextKind::InvalidArg)?;
    let option = option.split(['=', '[', ' ']).next()?;
    let value = context(error, ContextKind::InvalidValue)?;
    Some(match (option, path) {
        ("--stdin", [verb @ ("submit" | "run")]) => format!(
            "it takes no value, and reads standard input: `hq {verb} --stdin -- PROGRAM < {value}`"
        ),
        _ => format!("`{option}` takes no value"),
    })
}

/// Returns advice about a program name given in place of a command.
fn of_program(path: &[&str], word: &str) -> Option<String> {
    let dirs = std::env::var_os("PATH").unwrap_or_default();
    let is_found = std::env::split_paths(&dirs).any(|dir| dir.join(word).is_file());
    let is_path = word.contains('/') || std::path::Path::new(word).is_file() || is_found;
    (path.is_empty() && is_path).then(|| {
        format!("`hq submit -- {word}` submits a program, `hq run -- {word}` runs it here without a server")
    })
}

/// Returns the kind of value that an option takes.
fn kind_of(option: &str, path: &[&str]) -> Option<&'static str> {
    const KINDS: &str = r#"
--time-limit --time-request --stop-grace --retry-delay --idle-timeout --heartbeat --timeout --for: a duration such as `90s`, `10min`, `2h30m` or `01:30:00`
--cpus: an amount above 0, such as `4`, `0.5`, `"8 compact!"` or `all`
--resource: a name and an amount above 0, such as `gpus/nvidia=1` or `mem=4G`
--array --tasks: ids from 0, such as `1-100`, `0-10:2` or `1,5,7-9`
--weight: a number above 0, such as `0.5` or `2`
--predict: a share between 0 and 1, such as `0.9`
--crash-limit: a whole number from 1, `never-restart` or `unlimited`
--jobs --max-tasks: a whole number from 1
--nodes --retries --max-fails: a whole number from 0
--priority: a whole number, as in `--priority 10`; tasks with a larger one run first
--job: the id of an open job, as `hq job list` shows it
--after --after-each: a job, such as `3`, `3:ok`, `3:any` or `last`
<STREAM> <CHANNEL>: one stream, `stdout` or `stderr`; both are two commands
"#;
    // Other commands have options with the same names for events and for jobs that have ended.
    let is_other =
        matches!(option, "--after" | "--job") && matches!(path, ["journal" | "output-log", ..]);
    let mut kinds = rows(KINDS).filter(|_| !is_other);
    let known = kinds.find(|(options, _)| has_word(options, option));
    known.map(|(_, kind)| kind)
}

fn of_missing(error: &clap::Error, path: &[&str], words: &[&str]) -> Option<String> {
    let Some(ContextValue::Strings(missing)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    // One of several options is shown as `<--wait[=<UNTIL>]|--progress>`.
    let bare = |name| str::strip_suffix(str::strip_prefix(name, '<')?, '>');
    let mut names = missing.iter().map(|name| bare(name).unwrap_or(name));
    if let Some(option) = names.find(|name| name.starts_with("--")) {
        let name = option.split([' ', '=']).next().unwrap_or(option);
        if argument::is_required(path, name) {
            let example = match name {
                "--time-limit" => format!("; `hq {} --time-limit 1h`", path.join(" ")),
                _ => String::new(),
            };
            return Some(argument::description(path, name)? + &example);
        }
        return Some(format!(
            "an option that you gave works only together with `{option}`: add it"
        ));
    }
    let is_list =
        |word: &&str| matches!(word.split('=').next(), Some("--each-line" | "--each-row"));
    let list = words.iter().position(is_list);
    if let (["submit" | "run"] | ["job", "submit"], Some(at)) = (path, list) {
        let file = match words[at].split_once('=') {
            Some((_, file)) => file,
            None => words.get(at + 1).unwrap_or(&"FILE"),
        };
        let verb = path.last().unwrap_or(&"run");
        if words[at].starts_with("--each-row") {
            return Some(format!(
                "`{file}` is the table, one task a row, and the program is missing: `hq {verb} --each-row {file} -- PROGRAM {{NAME}}`"
            ));
        }
        return Some(format!(
            "`{file}` is the list, one task a line, and the program is missing: `hq {verb} --each-line {file} -- PROGRAM`; lines that are commands themselves run with `-- bash -c 'eval \"$HQ_ENTRY\"'`"
        ));
    }
    let path_text = path.join(" ");
    let mut known = rows(MISSING).filter(|(commands, _)| habits::is_among(commands, &path_text));
    match (path, known.next()) {
        (["alloc", ..], _) if missing.iter().any(|name| name == "<QUEUE>") => {
            Some("name a queue by its id, which `hq alloc list` shows".to_owned())
        }
        (["job", "cat"], _) if missing.len() == 1 => {
            argument::full_description(path, &missing[0], words)
        }
        (_, Some((_, text))) => Some(text.to_owned()),
        (_, None) => argument::full_description(path, missing.first()?, words),
    }
}

/// What to say if an argument of a command is missing.
const MISSING: &str = "
submit: the program comes last: `hq submit --array 1-10 -- ./step`; a script is named, not read from standard input: `hq submit ./script.sh`; see `hq doc jobs`
run: the program comes last: `hq run --each-line FILE -- ./step`; a script is named, not read from standard input: `hq run ./script.sh`; see `hq doc quickstart`
task info, task explain: name a task as `JOB.TASK`, as in `hq task info 3.7`; `hq task list JOB` lists tasks
journal export, journal check: name a journal, or its server directory: `hq journal export DIR`; `hq journal replay` asks the running server
journal report: `hq report [OUTPUT]` writes the page of the running or the last server
job submit-file: name the file: `hq job submit-file FILE.toml`; `-` is standard input: `hq job submit-file - < FILE.toml`
worker deploy-ssh: name a file with a host in each line: `hq worker deploy-ssh HOSTFILE`
task notify: name the message: `hq task notify MESSAGE`
doc: words follow: `hq doc --search memory limit`; `hq doc` lists the pages
job, task: name a job by its id, which `hq job list` shows, or as `last`
worker: workers are chosen by id, as in `hq worker list`
";

/// The words that mean "unlimited" in other tools.
const NO_LIMIT: &str = "infinite infinity inf unlimited none never no";

/// The words for values in other tools, and their equivalents here.
const WORDS: &str = "
--filter done completed complete success succeeded ok ended passed: finished
--filter queued pending ready pd idle new: waiting
--filter cancelled killed stopped ca: canceled
--filter error errors err crashed f bad fail: failed
--filter active started r run: running
<STREAM>,<CHANNEL>,--channel err error errors 2: stderr
<STREAM>,<CHANNEL>,--channel out output log logs 1: stdout
--pin cores core cpu cpus yes true on numa socket threads affinity: taskset
--pin openmp omp_places: omp
--manager lsf sge oar flux htcondor ssh: other
--manager pbspro openpbs torque qsub: pbs
--manager sbatch srun: slurm
--on-server-lost keep continue wait run finish: finish-running
--output-mode text table human plain default: cli
--output-mode none silent ids minimal short: quiet
";

/// Returns the equivalent of another tool's word for a value.
fn of_word(name: &str, value: &str) -> Option<String> {
    let lower = value.to_ascii_lowercase();
    let (_, meant) = rows(WORDS).find(|(words, _)| {
        let (options, words) = words.split_once(' ').unwrap_or_default();
        options.split(',').any(|option| option == name) && has_word(words, &lower)
    })?;
    Some(format!("did you mean `{meant}`?"))
}

/// Returns advice about a number in place of a stream, as in `hq job cat 3 2`: the task, or the
/// number of the stream in a shell.
fn of_number_as_stream(name: &str, value: &str, words: &[&str]) -> Option<String> {
    let at = words.iter().rposition(|word| *word == value)?;
    let job = words[at.checked_sub(1)?];
    value.parse::<u32>().ok().filter(|_| name == "<STREAM>")?;
    let stream = if value == "2" { "stderr" } else { "stdout" };
    let text = format!("the stream is a word: `hq job cat {job} {stream}`");
    Some(match job.contains('.') {
        true => text,
        false => format!("{text}; task {value} is `hq job cat {job}.{value} stdout`"),
    })
}

/// Returns the equivalent of another tool's value.
fn of_value(name: &str, value: &str, path: &[&str]) -> Option<String> {
    let text = match name {
        "<QUEUE>" => "name one queue by its id, as `hq alloc list` shows it; several are several commands".to_owned(),
        "--notify" if value.contains('@') => format!("the server runs a command: `--notify 'cmd:mail -s hq {value}'`, see `hq doc notifications`"),
        "--after" | "--job" if matches!(path, ["journal" | "output-log", ..]) => return None,
        "--resource" if matches!(path, ["worker", "start"] | ["alloc", ..]) && value.starts_with("mem=") => {
            "the memory of a worker is a sum in MiB: `--resource 'mem=sum(4096)'`; without the option, the worker detects it".to_owned()
        }
        "--resource" if matches!(path, ["worker", "start"] | ["alloc", ..]) => {
            let name = value.split('=').next().unwrap_or(value);
            format!("a worker's resource is a list or a sum: `--resource '{name}=[0,1]'`, `--resource '{name}=range(1-4)'` or `--resource '{name}=sum(100)'`; see `hq doc resources`")
        }
        "--cpus" if matches!(path, ["worker", "start"] | ["alloc", ..]) => "write the cpus of a worker as a number, `--cpus 8`, as sockets and their cores, `--cpus 2x4`, or by their ids, `--cpus 'range(4-7)'` or `--cpus '[0,2]'`; see `hq doc resources`".to_owned(),
        "--resource" if !value.contains('=') => format!(
            "a resource is NAME=AMOUNT, such as `--resource gpus/nvidia=1` or `--resource mem=4G`; `{value}` has no `=`, see `hq doc resources`"
        ),
        "--resource" if let Some(instead) = value.split('=').next().and_then(known_resource) => format!("{instead}; see `hq doc resources`"),
        "--cpus" if milli_cpus(value).is_some() => format!(
            "a part of a cpu is a decimal number: `--cpus {}`",
            milli_cpus(value).unwrap_or_default()
        ),
        "--resource" | "--cpus" => "write amounts as in `--cpus 4`, `--cpus \"8 compact!\"`, `--resource gpus/nvidia=1`, `--resource mem=4G`; see `hq doc resources`".to_owned(),
        "--array" if std::path::Path::new(value).is_file() => format!("a task for each line of a file is `--each-line {value}`"),
        "--array" => "write ids as in `--array 1-100`, `--array 0-10:2`, `--array 1,5,7-9` or, with at most 5 running tasks, `--array 1-100%5`; see `hq doc jobs`".to_owned(),
        "--time-limit" if (value.trim_matches(['0', ':', 's', 'm', 'h', 'i', 'n']).is_empty() || has_word(NO_LIMIT, &value.to_ascii_lowercase())) && matches!(path, ["submit" | "run"] | ["job", "submit"] | ["worker", "start"]) => "without the option there is no time limit".to_owned(),
        "--wait" if value.starts_with(|c: char| c.is_ascii_digit()) => format!("`--wait` takes no time: `--time-limit {value}` ends tasks, `timeout {value} hq job wait last` ends a wait"),
        "--start-time" | "--end-time" => format!("it is the time since the first start of the server, not a date: `{name} 2h30m`"),
        "--time-limit" | "--time-request" | "--stop-grace" | "--retry-delay" | "--idle-timeout" => format!("write durations as in `{name} 90s`, `{name} 2h30m` or `{name} 01:30:00`"),
        "--after" | "--after-each" if value.contains("after") => "Slurm's `afterok:3` is `--after 3:ok`, `afterany:3` is `--after 3:any`, `aftercorr:3` is `--after-each 3`".to_owned(),
        "--after" | "--after-each" if value.split_once('.').is_some_and(|(job, task)| job.parse::<u32>().is_ok() && task.parse::<u32>().is_ok()) => format!(
            "`{name}` takes whole jobs; a job file describes dependencies between tasks, see `hq doc dependencies`; to wait for the task with the same id: `--after-each {}`",
            value.split('.').next().unwrap_or("3")
        ),
        "--after" if let Some((job, _)) = value.split_once(':') => format!("`--after {job}:ok` waits until all tasks have finished, and `--after {job}:any` until all have ended; no job starts only after a failure"),
        "--after" | "--after-each" if value.starts_with(char::is_alphabetic) => of_id(value, "job", "hq job list --all", "`3`, `3:ok`, `3:any` or `last`"),
        "--job" => format!("{}{ALONE}", takes(name, path)?),
        "<JOBS>" | "<JOB>" => of_job(value, path, "`3`, `1-4,7`, `last` or, in most commands, `all`"),
        "<JOBS[.TASKS]>" | "<JOB[.TASKS]>" if path.first() == Some(&"output-log") => "`hq output-log DIR cat 3 stdout` prints the output of job 3, `hq output-log DIR show` prints everything".to_owned(),
        "<JOB[.TASKS]>" | "<JOB[.TASK]>" if let Some((first, last)) = of_two(value) => format!(
            "it takes one job: `{first}`; task {last} of job {first} is `{first}.{last}`, and `{first}.1-4` are some of its tasks"
        ),
        "<JOBS[.TASKS]>" | "<JOB[.TASKS]>" | "<JOB[.TASK]>" => of_job(value, path, "`3`, `last`, or with tasks `3.7`, `last.1-4`"),
        "--server-dir" => "`--server-dir PATH` or the variable HQ_SERVER_DIR names it; without both it is `.hq-server` in your home directory (`unset HQ_SERVER_DIR`)".to_owned(),
        "<TASK>" | "<TASKS>" if value.contains(['.', '@', '/']) => "a task is a number that follows its job: `hq task info 3 12`".to_owned(),
        "<TASK>" | "<TASKS>" | "--tasks" => "tasks are chosen by number, such as `3` or `1-4,7`; `hq task list JOB` lists them".to_owned(),
        "<WORKER>" => of_id(value, "worker", "hq worker list", "`3`"),
        "<WORKERS>" => of_id(value, "worker", "hq worker list", "`3`, `1-4,7`, `last` or `all`"),
        "--each-line" | "--from-json" if value.is_empty() => format!("the file follows the option; `{name} -` reads standard input"),
        _ => return takes(name, path),
    };
    Some(text)
}

/// Returns a sentence about the values that an option takes.
fn takes(name: &str, path: &[&str]) -> Option<String> {
    kind_of(name, path).map(|kind| format!("`{name}` takes {kind}"))
}

/// A hint on how to print only the id of a job.
const ALONE: &str = "; `--output-mode quiet` makes `hq submit` and `hq job open` print only the id";

/// Returns the two ends of `3-5` or `3,5`.
fn of_two(value: &str) -> Option<(u32, u32)> {
    let (first, last) = value.split_once(['-', ','])?;
    first.parse().ok().zip(last.parse().ok())
}

/// Converts values such as `500m` and `50%`, which Kubernetes and other tools use, to cpus.
fn milli_cpus(value: &str) -> Option<f64> {
    let part = |sign, whole: f64| Some(value.strip_suffix(sign)?.parse::<f64>().ok()? / whole);
    part('m', 1_000.0).or_else(|| part('%', 100.0))
}

/// Returns advice about `last,all`, and about `all` where it is not allowed.
fn of_selector(value: &str, examples: &str) -> Option<String> {
    let mut parts = value.split([',', '-', ' ']);
    let is_joined = value.contains([',', '-', ' ']);
    parts.any(|part| matches!(part, "all" | "last")).then(|| {
        if is_joined {
            format!("`last` and `all` stand alone; ids look like {examples}")
        } else {
            format!("`{value}` is not possible here; ids look like {examples}")
        }
    })
}

/// Returns whether the rest of a text marks its number as a job, as in `job3`, `#3`, `id=3`.
fn is_word_for_job(rest: &str) -> bool {
    let word = rest.trim_matches(|c: char| !c.is_alphanumeric());
    ["", "j", "id", "job", "jobs", "jobid"].contains(&&*word.to_lowercase())
}

/// Returns advice about a text that is not a job.
fn of_job(value: &str, path: &[&str], examples: &str) -> String {
    if let Some(text) = of_selector(value, examples) {
        return text;
    }
    let digits: String = value
        .chars()
        .skip_while(|c| !c.is_ascii_digit())
        .take_while(char::is_ascii_digit)
        .collect();
    let task = value
        .split_once(['.', '@', '/', '_'])
        .filter(|(job, task)| {
            let is_number =
                |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
            is_number(job) && is_number(task)
        });
    match (path, task) {
        (["job", "cat"], _) if matches!(value, "stdout" | "stderr") => {
            format!("the job comes first: `hq job cat JOB {value}`")
        }
        (["job", "cancel"], Some((job, _))) => format!(
            "one task cannot be canceled alone; `hq job cancel {job}` cancels all tasks of job {job}"
        ),
        (["job", "resubmit"], Some((job, _))) => {
            format!("tasks are chosen by their state: `hq job resubmit {job} --filter failed`")
        }
        (["task", command], Some((job, task))) => {
            format!("name a task as `JOB.TASK`: `hq task {command} {job}.{task}`")
        }
        (_, Some((job, task))) => {
            format!(
                "this is task {task} of job {job}; a job is `{job}`, and `hq task info {job}.{task}` shows the task"
            )
        }
        // This excludes names such as `h2o`, whose number would be another job.
        _ if !digits.is_empty()
            && value != digits
            && is_word_for_job(&value.replacen(&digits, "", 1)) =>
        {
            format!("the id alone is a number: `{digits}`; ids look like {examples}")
        }
        _ => of_id(value, "job", "hq job list --all", examples),
    }
}

/// The id in a sentence that a submit prints for people, and that stands where an id is expected.
fn of_sentence(words: &[&str]) -> Option<String> {
    let line = words.join(" ");
    let (_, rest) = match line.split_once(", job ID: ") {
        Some(found) => found,
        None => line
            .split_once("Job ")
            .filter(|(_, rest)| rest.contains(" is open"))?,
    };
    let id = rest.split(|c: char| !c.is_ascii_digit()).next()?;
    (!id.is_empty()).then(|| {
        format!(
            "the id in this sentence is {id}; with `HQ_OUTPUT_MODE=quiet` or `--output-mode quiet`, `hq submit` prints only the id"
        )
    })
}

/// The value to write instead of a name.
fn of_id(value: &str, what: &str, list: &str, examples: &str) -> String {
    if let Some(text) = of_selector(value, examples) {
        return text;
    }
    if value.starts_with(char::is_alphabetic) && value != "all" {
        return format!(
            "name a {what} by its id, not by its name: `{list}` shows the id of each name; ids look like {examples}"
        );
    }
    format!("`{list}` shows the ids; write {examples}")
}

#[cfg(test)]
mod tests;
