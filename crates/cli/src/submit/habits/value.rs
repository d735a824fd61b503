//! Detects habits in values of options, and in values of the keys of job files.

use std::path::Path;

use super::program::in_root;
use super::reader::name;
use super::{Text, Typed};
use crate::args::known_resource;
use crate::submit::placeholder::{self, Piece};

/// Detects input such as `hq submit --name 'run-%{TASK_ID}'`, `--env X=%{TASK_ID}`.
pub(super) fn value_placeholder(_: &Typed<'_>, text: Text<'_>) -> Option<String> {
    if !matches!(text.key(), "name" | "env") {
        return None;
    }
    let pieces = placeholder::pieces(text.text.as_bytes());
    let name = pieces.into_iter().find_map(|piece| match piece {
        Piece::Name(name) => placeholder::guess(std::str::from_utf8(name).ok()?),
        Piece::Text(_) => None,
    })?;
    let why = match text.key() {
        "name" => "a job has one name for all of its tasks",
        _ => "every task has its numbers in `$HQ_TASK_ID` and `$HQ_JOB_ID`",
    };
    Some(format!(
        "`%{{{name}}}` is not replaced in `{}`; {why}",
        text.option
    ))
}

/// Detects input such as `--stdout out-%a.txt`, as in Slurm; `%I` and `%J` are from LSF.
pub(super) fn percent_letter(_: &Typed<'_>, text: Text<'_>) -> Option<String> {
    const LETTERS: [(char, &str); 10] = [
        ('a', "%{TASK_ID}"),
        ('A', "%{JOB_ID}"),
        ('j', "%{JOB_ID}"),
        ('J', "%{JOB_ID}"),
        ('I', "%{TASK_ID}"),
        ('t', "%{TASK_ID}"),
        ('x', "the name of the job, written out"),
        ('N', "the name of the node, which is not known yet"),
        ('u', "the name of the user, written out"),
        ('s', "%{INSTANCE_ID}"),
    ];
    if matches!(text.key(), "env" | "name" | "param") {
        return None;
    }
    let found = text.text.match_indices('%').filter_map(|(at, _)| {
        let mut rest = text.text[at + 1..].chars().skip_while(char::is_ascii_digit);
        let letter = rest.next()?;
        let is_alone = !rest.next().is_some_and(char::is_alphanumeric);
        LETTERS
            .iter()
            .find(|(known, _)| *known == letter && is_alone)
    });
    let found: Vec<String> = found
        .map(|(letter, instead)| match instead.starts_with('%') {
            true => format!("`%{letter}` is `{instead}`"),
            false => format!("`%{letter}` is {instead}"),
        })
        .collect();
    (!found.is_empty()).then(|| {
        let (option, found) = (text.option, found.join(", "));
        format!(
            "Slurm placeholders are not replaced in `{option}`; here {found}, see `hq doc output`"
        )
    })
}

/// Detects input such as `hq submit --each-line samples.csv`, `--each-line ./run.sh`.
pub(super) fn list_file(_: &Typed<'_>, text: Text<'_>) -> Option<String> {
    if text.option != "--each-line" {
        return None;
    }
    let file = text.text;
    let (_, end) = name(file).rsplit_once('.')?;
    let note = match end {
        "csv" | "tsv" => format!(
            "every line of {file} becomes a task, including the header; with `--each-row {file}` the header names parameters: `PROGRAM {{NAME}}`"
        ),
        "jsonl" | "ndjson" => format!(
            "the task gets a line of {file} as JSON; with `--each-row {file}` its keys name parameters: `PROGRAM {{NAME}}`"
        ),
        "json" => format!(
            "each line of {file} is a task; a task for each item of a JSON array is `--from-json {file}`"
        ),
        "sh" | "py" | "pl" | "R" => format!(
            "{file} is read as the list, a task for each of its lines; a program follows the options"
        ),
        _ => return None,
    };
    Some(note)
}

/// The options or keys, without hyphens, and the check of their values.
type Check = (&'static [&'static str], fn(Text<'_>) -> Option<String>);

const OUTPUTS: &[&str] = &["stdout", "stderr"];
const DIRECTORIES: &[&str] = &["cwd", "stream"];

/// The checks of values. The first match is reported.
const CHECKS: &[Check] = &[
    (&["resource"], foreign_resource),
    (OUTPUTS, shell_syntax),
    (OUTPUTS, word_as_file),
    (OUTPUTS, |value| in_root(value.text)),
    (OUTPUTS, directory),
    (DIRECTORIES, missing_directory),
    (DIRECTORIES, |Text { option, text, .. }| {
        let is_file = Path::new(text).is_file();
        is_file.then(|| format!("`{text}` is a file; `{option}` names a directory"))
    }),
    (&["name"], |Text { option, text, .. }| {
        let is_empty = text.trim().is_empty();
        is_empty.then(|| format!("`{option}` is empty: a variable of this shell may be unset"))
    }),
    (&["inputs", "outputs"], several_paths),
    (&["inputs"], missing_input),
    (&["array"], one_id),
    (&["env"], variable),
    (&["param"], range),
    (&["param"], blanks),
    (&["param"], pattern),
    (&["param"], |Text { text, .. }| {
        text.starts_with('[').then(|| format!(
            "the bracket becomes part of the value `{text}`; separate values with commas, without brackets: `--param x=1,2,3`"
        ))
    }),
];

/// Detects input such as `--stdout -`, `--inputs '*.txt'`, `--env A=1,B=2`, `--param x=1..3`.
pub(super) fn odd_value(_: &Typed<'_>, text: Text<'_>) -> Option<String> {
    let mut checks = CHECKS
        .iter()
        .filter(|(options, _)| options.contains(&text.key()));
    checks.find_map(|(_, check)| check(text))
}

fn foreign_resource(Text { text, .. }: Text<'_>) -> Option<String> {
    let instead = known_resource(text)?;
    Some(format!(
        "`{text}` is a resource that a worker has only if it was started with `--resource {text}=…`; {instead}"
    ))
}

fn shell_syntax(Text { text, .. }: Text<'_>) -> Option<String> {
    text.starts_with(['&', '>', '|', '<']).then(|| format!(
        "`{text}` is shell syntax, and only the name of a file here; one path for both `--stdout` and `--stderr` collects both in that file"
    ))
}

/// Detects input such as `--stdout -`, `--stderr stdout`, `--stdout null`.
fn word_as_file(Text { option, text, .. }: Text<'_>) -> Option<String> {
    let what = match &*text.to_ascii_lowercase() {
        "-" => {
            "`hq job cat JOB stdout` and `hq job tail -f JOB` print what tasks write, and `hq run` does by itself".to_owned()
        }
        "stdout" | "stderr" | "1" | "2" | "tty" => {
            "one path for both `stdout` and `stderr` collects both in that file".to_owned()
        }
        "null" | "nul" | "none" | "no" | "off" | "false" | "discard" | "devnull" => {
            let sign = if option.starts_with('-') { "" } else { " =" };
            format!("`{option}{sign} none` discards what tasks write")
        }
        _ => return None,
    };
    Some(format!(
        "`{text}` is only the name of a file for `{option}`; {what}"
    ))
}

fn directory(Text { option, text, .. }: Text<'_>) -> Option<String> {
    let dir = text.trim_end_matches('/');
    (text.ends_with('/') || Path::new(text).is_dir()).then(|| {
        format!(
            "`{text}` is a directory; `{option}` names a file in it, such as `{dir}/%{{TASK_ID}}.out`"
        )
    })
}

/// Detects input such as `--cwd dta`. Workers may have directories that this machine lacks, but
/// then the whole path is usually missing.
fn missing_directory(Text { option, text, .. }: Text<'_>) -> Option<String> {
    let path = Path::new(text);
    if text.is_empty() || path.exists() || text.contains(['%', '{', '$', '~']) {
        return None;
    }
    if let Some(note) = in_root(text) {
        return Some(note);
    }
    let here = path.ancestors().find(|dir| dir.exists());
    let is_elsewhere = here == Some(Path::new("/"));
    (option.ends_with("cwd") && !is_elsewhere).then(|| {
        format!("the directory `{text}` does not exist: workers make it, and tasks start in an empty directory")
    })
}

/// Detects input such as `--inputs '*.txt'`, `--outputs a,b`.
fn several_paths(Text { option, text, .. }: Text<'_>) -> Option<String> {
    let why = if text.contains(['*', '?']) {
        "hq expands no patterns"
    } else if text.contains(',') {
        "commas separate nothing here"
    } else {
        return None;
    };
    let each = if option.starts_with('-') {
        format!("give an `{option}` for each file")
    } else {
        format!("`{option}` is a list with a string for each file")
    };
    (!Path::new(text).exists())
        .then(|| format!("`{text}` is the name of one file, because {why}; {each}"))
}

/// Detects input such as `--inputs typo.dat`. In a job file, another task may write it.
fn missing_input(Text { option, text, .. }: Text<'_>) -> Option<String> {
    let is_typed = option.starts_with('-') && !text.contains(['%', '{', '$']);
    (is_typed && !Path::new(text).exists()).then(|| {
        format!("the input `{text}` does not exist now, and `--skip-done` leaves out no task without its inputs")
    })
}

fn one_id(Text { text, .. }: Text<'_>) -> Option<String> {
    text.parse::<u64>().is_ok_and(|id| id > 1).then(|| {
        format!(
            "`--array {text}` is one task, with the id {text}; {text} tasks are `--array 1-{text}`"
        )
    })
}

/// Detects input such as `--env A=1,B=2`, `--env 'A = 1'`, `--env A=~/x`, `--env 'A="x"'`. The text
/// includes the name.
fn variable(Text { option, text, .. }: Text<'_>) -> Option<String> {
    let (name, value) = text.split_once('=')?;
    let is_name = |part: &str| {
        let mut bytes = part.bytes();
        !part.is_empty() && bytes.all(|byte| byte == b'_' || byte.is_ascii_uppercase())
    };
    let is_pair = |part: &str| part.split_once('=').is_some_and(|(name, _)| is_name(name));
    let is_quoted = |sign| value.len() > 1 && value.starts_with(sign) && value.ends_with(sign);
    if text.split(',').skip(1).any(is_pair) {
        Some(format!(
            "`{text}` sets one variable; give an `{option}` for each variable"
        ))
    } else if name.ends_with(' ') {
        let (name, value) = (name.trim(), value.trim());
        Some(format!(
            "blanks around `=` become part of the name and the value; `{name}={value}` sets `{name}`"
        ))
    } else if value == "~" || value.starts_with("~/") {
        let rest = &value[1..];
        let instead = if option.starts_with('-') {
            format!("`{name}=\"$HOME{rest}\"` in this shell does")
        } else {
            "write the whole path".to_owned()
        };
        Some(format!(
            "no shell expands `{value}` in `{option}`; {instead}"
        ))
    } else if is_quoted('"') || is_quoted('\'') {
        Some(format!(
            "the quotes become part of the value `{value}` of `{name}`; leave out one kind of quotes"
        ))
    } else {
        None
    }
}

/// Detects input such as `--param x=1..3`, `--param x=1:3`.
fn range(Text { text, .. }: Text<'_>) -> Option<String> {
    let bare = text.trim_matches(['{', '}', '[', ']']);
    let parts: Vec<&str> = bare.split("..").flat_map(|part| part.split(':')).collect();
    let is_range = parts.len() > 1 && parts.iter().all(|part| part.parse::<f64>().is_ok());
    (is_range || text.starts_with("range("))
        .then(|| format!("`{text}` is one value; a range is `1-10`, `0-1:0.25` or `10-1:-1`"))
}

/// Detects input such as `--param 'x=1 2 3'`, `--param 'x=1, 2'`.
fn blanks(Text { text, .. }: Text<'_>) -> Option<String> {
    let parts = text.split(|c: char| c.is_whitespace() || matches!(c, ';' | '|'));
    let parts: Vec<&str> = parts.filter(|part| !part.is_empty()).collect();
    let are_values = text.contains([';', '|']) && !text.contains(' ')
        || parts.iter().all(|part| part.parse::<f64>().is_ok());
    if parts.len() > 1 && are_values {
        return Some(format!(
            "`{text}` is one value; separate values by commas: `{}`",
            parts.join(",")
        ));
    }
    let trimmed = text.trim();
    (trimmed.len() < text.len() && !trimmed.is_empty()).then(|| {
        format!("the blank becomes part of the value `{text}`; separate values by commas alone: `--param x=1,2`")
    })
}

/// Detects input such as `--param x=*.txt`.
fn pattern(Text { text, .. }: Text<'_>) -> Option<String> {
    (text.contains('*') && !Path::new(text).exists()).then(|| {
        format!("no shell expands `{text}` here, so it is one value; `ls {text} | hq submit --param x=@- …` makes a value of each file")
    })
}
