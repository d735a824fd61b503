//! Advice for job files: keys from other programs, and values of a wrong type.

use std::path::Path;

use hq_core::words::has_word;

use super::format::Format;
use crate::submit::habits::interpreter_of;
use crate::text::{closest, rows};

/// The page that describes job files.
const PAGE: &str = "`hq doc dependencies` describes job files";

/// Keys from other programs and guessed keys, with the correct key of a task or an array. `_` and
/// `-` are equal, and case does not matter.
const TASK_GUESSES: &str = r#"
cmd exec executable program args argv arguments entrypoint: `command` is a list of words, `shell` a command line for `sh -c`
run script bash sh commands commandline shellcommand line: `shell` is a command line for `sh -c`, `command` a list of words
needs need dependson depends dependencies dependency dep after requires require waitfor waitson parents parent upstream runafter prerequisites: `deps` lists the ids of the tasks that have to finish before
name label title taskid taskname key step: `id` is the number or the name of a task
resources resource require gpus gpu nodes nnodes timerequest weight: it stands in a `request` of the task, as in `resources = { cpus = 4, "gpus/nvidia" = 1 }` below `[[task.request]]`; `cpus` and `mem` alone may stand at the task itself
memory ram memmb memgb memorymb memorygb memorylimit maxmemory: `mem` is the memory of a task, such as `"4G"`
threads thread cores core cpu ncpus ncores nthreads numthreads cpuspertask ppn ntasks procs processes slots: `cpus` is the number of cpus of a task
timeout walltime time maxtime runtime limit timeoutseconds duration deadline: `time_limit` is the longest run of a task, such as `"1h 30m"`
environment envs variables vars variable export: `env` is a table of variables
workdir dir directory workingdir workingdirectory chdir wd path folder: `cwd` is the working directory
output out log logfile: `stdout` is the file for standard output, `outputs` lists files that the task writes
error err errors: `stderr` is the file for standard error
input: `inputs` lists files that the task reads, `stdin` is a text for its standard input
retry maxretries attempts restarts restarttimes maxattempts tries retrycount numretries: `retries` is how often a task is tried again
array foreach matrix params parameters loop with items: tasks that differ by a number or a text are an `[array]` with `ids` or `entries`, alone in a file; `hq submit --param` and `--each-row` know parameters
"#;

/// Like `TASK_GUESSES`, for the file as a whole.
const FILE_GUESSES: &str = "
tasks jobs job steps step stages rules rule processes process: each task of a file begins with `[[task]]` || `task` is the list of the tasks of a file
arrays: `[array]`, once in a file, describes many tasks that are alike
title jobname label: `name` is the name of the job
maxfailures maxfailed maxerrors failfast: `max_fails` is how many tasks may fail before the job is canceled
log logs output streams: `stream` is the directory for the output of all tasks
";

/// Like `TASK_GUESSES`, for `[[task.request]]`.
const REQUEST_GUESSES: &str = r#"
nodes node: `n_nodes` is the number of nodes
time timelimit walltime mintime: `time_request` is the time that a worker must have left, such as `"1h"`
cpus mem gpus gpu memory ram cores threads cpu resource: amounts stand in `resources`, as in `resources = { cpus = 4, mem = "4G", "gpus/nvidia" = 1 }`
"#;

/// Separates advice for TOML from advice for other formats.
const OF_LISTS: &str = " || ";

/// The keys of durations.
const DURATIONS: [&str; 4] = ["time_limit", "retry_delay", "stop_grace", "time_request"];

/// A rejected value, as far as it is known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    /// The key whose value contains the mistake.
    pub(super) key: Option<&'a str>,
    /// The text of the value. For a list or a table, only its beginning.
    pub(super) value: &'a str,
    pub(super) format: Format,
}

/// Returns advice for an error of a parser.
pub(super) fn help(message: &str, place: Place<'_>) -> String {
    let advice = unknown_key(message).or_else(|| right_form(message, place));
    let is_bare = place.format == Format::Yaml && message.contains('%');
    let advice = advice.or_else(|| {
        is_bare.then(|| {
            "a value that begins with `%` stands in quotes: `\"%{TASK_ID}.txt\"`".to_owned()
        })
    });
    let has_tabs = place.format == Format::Yaml && message.contains("tab");
    let advice = advice
        .or_else(|| has_tabs.then(|| "indent with blanks: YAML takes no tabs there".to_owned()));
    // Only TOML has headers.
    let advice = advice.map(|advice| match advice.split_once(OF_LISTS) {
        Some((of_toml, _)) if place.format == Format::Toml => of_toml.to_owned(),
        Some((_, of_lists)) => of_lists.to_owned(),
        None => advice,
    });
    let joined = |advice: String| {
        if advice.ends_with('?') {
            format!("{advice} {PAGE}")
        } else {
            format!("{advice}; {PAGE}")
        }
    };
    advice.map_or_else(|| PAGE.to_owned(), joined)
}

/// Returns advice for a file that contains only a list of tasks, without its key.
pub(super) fn for_bare_list(content: &str, format: Format) -> Option<&'static str> {
    let mut lines = content.lines().map(str::trim_start);
    let first =
        lines.find(|line| !line.is_empty() && !line.starts_with(['#', '%']) && *line != "---")?;
    match format {
        Format::Json => first
            .starts_with('[')
            .then_some("write the list as the value of `task`: `{\"task\": [ … ]}`"),
        Format::Yaml => (first.starts_with("- ") || first.starts_with('['))
            .then_some("write `task:` in a line above the list"),
        Format::Toml => None,
    }
}

/// Returns the kind of a file that is not a job file, according to its name, and how to submit it.
pub(super) fn for_other_kind(path: &Path) -> Option<(&'static str, String)> {
    let file = path.display();
    let end = path.extension().and_then(|end| end.to_str());
    if matches!(end, Some("csv" | "tsv" | "jsonl")) {
        let help = format!("a task for each row is `hq submit --each-row {file} -- PROGRAM`");
        return Some(("a table", help));
    }
    if matches!(end, Some("txt" | "list" | "lst" | "dat")) {
        let help =
            format!("a task for each of its lines is `hq submit --each-line {file} -- PROGRAM`");
        return Some(("a list", help));
    }
    let program = interpreter_of(path.to_str()?)?;
    Some((
        "a program",
        format!("submit it with the program that reads it: `hq submit {program} {file}`"),
    ))
}

/// Returns an example task in this format.
pub(super) fn a_task(format: Format) -> String {
    let command = format.pair("command", "[\"./step\", \"input.txt\"]");
    match format {
        Format::Toml => format!("a task is a line `[[task]]`, and below it `{command}`; {PAGE}"),
        Format::Yaml => {
            format!("tasks are a list: a line `task:`, and below it `  - {command}`; {PAGE}")
        }
        Format::Json => format!("tasks are a list: `{{\"task\": [{{{command}}}]}}`; {PAGE}"),
    }
}

/// Returns the names between backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

fn unknown_key(message: &str) -> Option<String> {
    let (found, known) = message.split_once(", expected one of ")?;
    let (found, known) = (*quoted(found).first()?, quoted(known));
    let is_of = |key: &str| known.contains(&key);
    let plain = found.replace(['_', '-'], "").to_lowercase();
    let find = |guesses: &'static str| {
        let found = rows(guesses).find(|(keys, _)| has_word(keys, &plain));
        found.map(|(_, advice)| advice.to_owned())
    };
    let guessed = if is_of("command") {
        match &*plain {
            "id" | "ids" | "entries" | "deps" if is_of("ids") => Some(
                "an array has `ids` or `entries`, and no dependencies; tasks with `deps` are a `[[task]]` each".to_owned(),
            ),
            "ids" | "entries" => find(TASK_GUESSES).or_else(|| {
                Some("`ids` and `entries` are for an `[array]`; a `[[task]]` is one task".to_owned())
            }),
            _ => find(TASK_GUESSES),
        }
    } else if is_of("max_fails") {
        let is_of_task = || has_word(TASK_KEYS, found) || find(TASK_GUESSES).is_some();
        find(FILE_GUESSES).or_else(|| {
            is_of_task().then(|| {
                format!("`{found}` belongs to a task: begin that with `[[task]]`{OF_LISTS}`{found}` belongs to a task, which is an item of the list `task`")
            })
        })
    } else if is_of("resources") {
        find(REQUEST_GUESSES)
    } else {
        None
    };
    let elsewhere = rows(OTHER_TABLES).find(|(keys, _)| has_word(keys, found));
    guessed
        .or_else(|| elsewhere.map(|(_, place)| format!("`{found}` {place}")))
        .or_else(|| {
            let meant = closest(found, known.iter().copied())?;
            Some(format!("did you mean `{meant}`?"))
        })
}

/// Keys in the wrong table, with the correct table.
const OTHER_TABLES: &str = "
max_fails stream: is for the whole file: write it above the first `[[task]]` or `[array]`
command shell deps env cwd stdin stdout stderr pin task_dir time_limit priority crash_limit retries retry_on retry_delay retry_grow stop_signal stop_grace inputs outputs: belongs to a task: write it below `[[task]]`, above its `[[task.request]]`
";

/// Keys of tasks that were written above the first task.
const TASK_KEYS: &str =
    "command shell id deps ids entries env cwd cpus mem request stdout stderr time_limit retries";

/// Returns the correct notation of a value with the wrong type.
fn right_form(message: &str, Place { key, value, format }: Place<'_>) -> Option<String> {
    if let Some(advice) = wrong_syntax(message, value.trim(), (key, format)) {
        return Some(advice);
    }
    let (_, expected) = message.rsplit_once("expected ")?;
    let value = value.trim();
    // The elements of such a list were read as fields in order.
    if value.starts_with("[[array") {
        return Some("there is one array in a file: write `[array]`".to_owned());
    }
    let place = Place { key, value, format };
    if expected.starts_with("a sequence") || expected.starts_with("a list") {
        return list_form(place);
    }
    if expected.starts_with("a string") || expected.starts_with("a text") {
        return text_form(place);
    }
    let text = bare(value);
    let pair = |value: &str| format.pair(key.unwrap_or("…"), value);
    let is_number = text.parse::<f64>().is_ok();
    if expected.starts_with("a boolean") {
        let word = match &*text.to_lowercase() {
            "true" | "yes" | "on" | "y" | "1" => "true",
            "false" | "no" | "off" | "n" | "0" => "false",
            _ => "true",
        };
        return Some(format!("write `{}`", pair(word)));
    }
    if expected.contains("number") && is_number && text != value {
        return Some(format!(
            "write the number without quotes: `{}`",
            pair(&text)
        ));
    }
    let is_table = expected.starts_with("a map") || expected.starts_with("a table");
    match key {
        Some("env") if is_table => Some(format!(
            "write `{}`",
            pair(&format.table("NAME", "\"value\""))
        )),
        Some("resources") if is_table => {
            Some(format!("write `{}`", pair(&format.table("cpus", "4"))))
        }
        Some(_) | None => None,
    }
}

/// Describes how a list is written.
fn list_form(Place { key, value, format }: Place<'_>) -> Option<String> {
    let text = bare(value);
    let pair = |value: &str| format.pair(key.unwrap_or("…"), value);
    let is_number = text.parse::<f64>().is_ok();
    match key {
        Some("command") if !value.starts_with('[') => Some(command_of(&text, format)),
        // A header has no key.
        Some("task" | "request") | None if format == Format::Toml => Some(
            "it is a list: write its header with two brackets, `[[task]]` or `[[task.request]]`"
                .to_owned(),
        ),
        Some("task" | "request") if format == Format::Yaml => {
            let line = text.strip_prefix("command:").map(str::trim);
            let command = line.filter(|line| !line.is_empty() && !line.starts_with('['));
            let command = command.map_or_else(String::new, |line| {
                format!("; {}", command_of(&bare(line), format))
            });
            Some(format!(
                "it is a list: put `- ` in front of the first key of each item{command}"
            ))
        }
        Some("task" | "request") => Some("it is a list, with an item for each".to_owned()),
        Some("deps") if is_number => {
            Some(format!("write a list: `{}`", pair(&format!("[{text}]"))))
        }
        Some(_) if !value.starts_with('{') => {
            Some(format!("write a list: `{}`", pair(&format!("[{text:?}]"))))
        }
        Some(_) | None => None,
    }
}

/// Describes how a text is written.
fn text_form(Place { key, value, format }: Place<'_>) -> Option<String> {
    let text = bare(value);
    let pair = |value: &str| format.pair(key.unwrap_or("…"), value);
    let is_number = text.parse::<f64>().is_ok();
    let is_list = value.starts_with('[');
    match key {
        Some("command") if !is_list => Some(format!("each word is a text in quotes: `{text:?}`")),
        Some("pin") => Some(format!(
            "write `{}` or `{}`",
            pair("\"taskset\""),
            pair("\"omp\"")
        )),
        Some("ids") if is_list => {
            let ids = value.trim_matches(['[', ']']).replace([' ', '\n', '"'], "");
            Some(format!(
                "ids are one text: `{}`",
                pair(&format!("{:?}", ids.trim_end_matches(',')))
            ))
        }
        Some("shell") if is_list => {
            Some("`shell` is one text; a list of words is a `command`".to_owned())
        }
        Some("shell") => Some(format!(
            "write the command line: `{}`",
            pair("\"sort in.txt > out.txt\"")
        )),
        Some(key) if DURATIONS.contains(&key) && is_number => {
            Some(format!("write `{}`", pair(&format!("\"{text}s\""))))
        }
        Some(_) if !is_list && !value.starts_with('{') => {
            Some(format!("write a text: `{}`", pair(&format!("{text:?}"))))
        }
        Some(_) | None => None,
    }
}

/// Explains invalid syntax: typographic quotes, and words and keys without quotes.
fn wrong_syntax(
    message: &str,
    value: &str,
    (key, format): (Option<&str>, Format),
) -> Option<String> {
    const QUOTES: [char; 8] = ['“', '”', '„', '‟', '‘', '’', '«', '»'];
    if value.contains(QUOTES) || message.contains(QUOTES) {
        return Some("typographic quotes are not valid here; use `\"`".to_owned());
    }
    if format != Format::Toml {
        return None;
    }
    if message.contains("string values must be quoted") {
        let word = value.split([',', ']', '}', ' ']).next().unwrap_or(value);
        return Some(format!("write texts in quotes: `{word:?}`"));
    }
    if message.contains("unquoted key") {
        return Some(
            "a key with other characters stands in quotes: `\"gpus/nvidia\" = 1`".to_owned(),
        );
    }
    let is_number = message.contains("invalid date")
        || message.contains("invalid time")
        || message.contains("expected newline");
    let ids = Some(value).filter(|value| value.starts_with(|c: char| c.is_ascii_digit()));
    (key == Some("ids") && is_number).then(|| {
        let ids = format.pair("ids", &format!("{:?}", ids.unwrap_or("1-10,12")));
        format!("ids are one text: `{ids}`")
    })
}

/// Returns a value without its quotes.
fn bare(value: &str) -> String {
    let inner = ['"', '\'']
        .iter()
        .find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote));
    match inner {
        Some(inner) => {
            serde_json::from_str(&format!("\"{inner}\"")).unwrap_or_else(|_| inner.to_owned())
        }
        None => value.to_owned(),
    }
}

/// Returns how a command line is written.
fn command_of(line: &str, format: Format) -> String {
    let shell = format.pair("shell", &format!("{line:?}"));
    let is_plain = |word: &&str| hq_core::shell::is_plain(word);
    let words: Vec<&str> = line.split_whitespace().collect();
    // A shell would do more than split the line; variables before the program also require a shell.
    if !words.iter().all(is_plain) || words.first().is_some_and(|word| word.contains('=')) {
        return format!("write a command line for a shell: `{shell}`");
    }
    let words: Vec<String> = words.iter().map(|word| format!("{word:?}")).collect();
    let list = format.pair("command", &format!("[{}]", words.join(", ")));
    format!("write `{list}`, or a command line for a shell: `{shell}`")
}

/// Rewords an error in plain language.
pub(super) fn plain_words(message: &str) -> String {
    let (start, expected) = match message.rsplit_once("expected ") {
        Some(parts) => parts,
        // The YAML parser reports numbers and words without details.
        None => match message.strip_prefix("invalid ") {
            Some(kind) if number_words(kind).is_some() || kind == "boolean" => ("", kind),
            Some(_) | None => return message.to_owned(),
        },
    };
    let of_yaml = match expected {
        "sequence start" => "a list, such as `[a, b]`",
        "string scalar" => "a text",
        "mapping start" => "a table",
        "boolean" => "a boolean, `true` or `false`",
        other => match number_words(other) {
            Some(words) => words,
            None if other.starts_with("struct ") => "a table",
            None => other,
        },
    };
    format!("{start}expected {of_yaml}")
}

fn number_words(kind: &str) -> Option<&'static str> {
    Some(match kind {
        "u16" => "a whole number from 0 to 65535",
        "u32" => "a whole number from 0 to 4294967295",
        "i32" => "a whole number from -2147483648 to 2147483647",
        "f64" | "floating point" => "a number",
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
