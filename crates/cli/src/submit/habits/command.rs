//! Detects habits in arguments and in values of options: placeholders of other tools, and words
//! that only a shell understands.

use std::path::Path;

use hq_core::params::Param;
use hq_core::words::has_word;

use super::reader::{Reader, is_shell, is_tool, may_repeat, name};
use super::script::Script;
use super::variable::has_gap;
use super::{Remark, Source, Text, Typed, Verb};
use crate::submit::placeholder::{self, Piece};
use crate::text::{closest, quoted};

/// The placeholders for paths, and the task variables with the same values.
const VARIABLES: [(&str, &str); 6] = [
    ("TASK_ID", "$HQ_TASK_ID"),
    ("JOB_ID", "$HQ_JOB_ID"),
    ("INSTANCE_ID", "$HQ_INSTANCE_ID"),
    ("SUBMIT_DIR", "$HQ_SUBMIT_DIR"),
    ("CWD", "$PWD"),
    ("SERVER_UID", "no variable"),
];

/// Replacement strings of GNU parallel and fd, and their equivalents in a line for bash.
const PARALLEL: [(&str, &str); 6] = [
    (".", "${HQ_ENTRY%.*}"),
    ("/", "${HQ_ENTRY##*/}"),
    ("//", "$(dirname \"$HQ_ENTRY\")"),
    ("/.", "$(basename \"${HQ_ENTRY%.*}\")"),
    ("#", "$HQ_TASK_ID"),
    ("%", "$HQ_CPUS"),
];

/// The words that other tools use for the value of a task.
const USUAL: &str = "entry line item input output file arg task_id taskid task id index i n job_id jobid hq_entry hq_task_id \
    wildcards threads array_id params";

/// Detects input such as `hq run echo ::: a b c`.
pub(super) fn parallel_input(typed: &Typed<'_>, text: Text<'_>) -> Option<String> {
    let is_file = matches!(text.text, "::::" | "::::+");
    if !is_file && !matches!(text.text, ":::" | ":::+") || text.reader == Reader::Code {
        return None;
    }
    let verb = typed.verb.word();
    let command = typed.words[..text.number].iter().map(|word| quoted(word));
    let command = command.collect::<Vec<_>>().join(" ");
    let values = typed.words[text.number + 1..].iter();
    let values = values
        .take_while(|word| !word.starts_with(":::"))
        .map(|word| &**word);
    let values: Vec<&str> = values.collect();
    let instead = if is_file {
        let file = values.first().unwrap_or(&"FILE");
        let end = if command.contains("{}") { "" } else { " {}" };
        let command = command.replace("'{}'", "{}");
        format!("hq {verb} --each-line {file} -- {command}{end}")
    } else {
        let plain =
            values.len() <= 8 && !values.iter().any(|value| value.contains([',', ' ', '"']));
        let values = if plain && !values.is_empty() {
            values.join(",")
        } else {
            "a,b,c".to_owned()
        };
        let has_own = command.contains("{}");
        let command = command.replace("'{}'", "{x}").replace("{}", "{x}");
        let end = if has_own { "" } else { " {x}" };
        format!("hq {verb} --param x={values} -- {command}{end}")
    };
    let mark = text.text;
    Some(format!(
        "`{mark}` is GNU parallel syntax, which is an ordinary argument here; use `{instead}`"
    ))
}

/// Returns the names in braces with their positions.
fn braces(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices('{') {
        let inner = &text[at + 1..];
        let Some(end) = inner.find(['}', '{']) else {
            continue;
        };
        if inner[end..].starts_with('}') {
            found.push((at, &inner[..end]));
        }
    }
    found
}

fn is_name(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

/// Detects input such as `hq submit --each-line f -- echo {}`, and `{entry}`, `{.}`, `{1}`.
pub(super) fn braces_of(typed: &Typed<'_>, text: Text<'_>) -> Option<Remark> {
    // Code uses braces itself, and so do TeX and JSON.
    if text.reader == Reader::Code
        || text.text.contains(['\\', '"']) && text.reader == Reader::Program
    {
        return None;
    }
    for (at, name) in braces(text.text) {
        let before = text.text[..at].chars().next_back();
        if matches!(before, Some('$' | '%' | '@' | '#' | ')' | ']')) {
            continue;
        }
        let is_path = !matches!(text.key(), "" | "env" | "name" | "param" | "resource");
        // All tasks would have the same path and overwrite each other's files.
        if name.is_empty()
            && is_path
            && typed.verb == Verb::Run
            && matches!(typed.source, Source::Entries)
        {
            let (option, instead) = (text.option, text.text.replace("{}", "%{TASK_ID}"));
            return Some(Remark::Refusal(
                format!("`{{}}` is not replaced in `{option}`"),
                format!("each task has a path of its own with `{option} '{instead}'`"),
            ));
        }
        if let Some(said) = brace(typed, text, (name, before)) {
            return Some(Remark::Note(said));
        }
    }
    None
}

fn brace(
    typed: &Typed<'_>,
    text: Text<'_>,
    (name, before): (&str, Option<char>),
) -> Option<String> {
    let own = typed.own_value();
    let in_shell = match text.reader {
        Reader::Shell => "",
        Reader::Program | Reader::Code => ", which a shell expands: `bash -c 'LINE'`",
    };
    let is_path = !text.option.is_empty();
    let is_usual = has_word(USUAL, &name.to_ascii_lowercase()) || name.starts_with("wildcards.");
    if is_path {
        return brace_of_value(typed, text, (name, is_usual));
    }
    let is_single = matches!(typed.source, Source::One);
    if name.is_empty() {
        return match typed.source {
            _ if typed.takes_entry() => None,
            // This is an empty object, or an empty list in a shell.
            Source::One => None,
            Source::Entries if typed.verb == Verb::Run => None,
            Source::Entries => Some(format!(
                "`{{}}` is not replaced; the line of a task is in `$HQ_ENTRY`{in_shell}; `hq run` replaces `{{}}`"
            )),
            Source::Ids => Some(format!(
                "`{{}}` is not replaced; the id of a task is in `$HQ_TASK_ID`{in_shell}"
            )),
            Source::Params(_) => Some("`{}` is not replaced; a parameter is `{NAME}`".to_owned()),
        };
    }
    if let Some((_, instead)) = PARALLEL.iter().find(|(known, _)| *known == name) {
        return (!is_single || text.text.len() == name.len() + 2)
            .then(|| format!("`{{{name}}}` is GNU parallel syntax and is not replaced; in bash it is `{instead}`: `bash -c 'LINE'`"));
    }
    if name.bytes().all(|byte| byte.is_ascii_digit()) {
        let begins =
            before.is_none_or(|c| matches!(c, ' ' | '_' | '/' | '.' | '-' | '=' | ',' | ':' | '"'));
        return (!is_single && begins).then(|| {
            if name == "1" && matches!(typed.source, Source::Entries) {
                return "`{1}` is not replaced; the line of a task is `{}` in `hq run`, and `$HQ_ENTRY` in a shell".to_owned();
            }
            format!("`{{{name}}}` is not replaced; several values of a task are parameters: `--param x=1,2 --param y=a,b -- PROGRAM {{x}} {{y}}`")
        });
    }
    if !is_name(name) || is_single && !is_usual {
        return None;
    }
    if let Source::Params(params) = typed.source {
        let names: Vec<&str> = params.list().iter().map(|param| &*param.name).collect();
        // This is reported elsewhere, also to scripts.
        let is_told = params.position(name.as_bytes()).is_some()
            || closest(name, names.iter().copied()).is_some();
        return (!is_told).then(|| {
            format!(
                "`{{{name}}}` names no parameter and is not replaced; the parameters are `{}`",
                names.join("`, `")
            )
        });
    }
    Some(format!(
        "`{{{name}}}` is not replaced; the value of a task is in `{own}`{in_shell}"
    ))
}

/// Returns the message about a name in braces in the value of an option.
fn brace_of_value(
    typed: &Typed<'_>,
    text: Text<'_>,
    (name, is_usual): (&str, bool),
) -> Option<String> {
    let own = typed.own_value();
    let params = matches!(typed.source, Source::Params(params) if params.position(name.as_bytes()).is_some());
    let is_single = matches!(typed.source, Source::One);
    let is_foreign = is_usual || !is_single && (name.is_empty() || is_name(name));
    if params && text.key() != "env" || !is_foreign {
        return None;
    }
    let option = text.option;
    Some(match text.key() {
        "env" => {
            format!("`{{{name}}}` is not replaced in `{option}`; the value of a task is in `{own}`")
        }
        "name" => {
            format!(
                "`{{{name}}}` is not replaced in `--name`: a job has one name for all of its tasks"
            )
        }
        _ => format!(
            "`{{{name}}}` is not replaced in `{option}`; placeholders for paths are `%{{TASK_ID}}` and `%{{JOB_ID}}`, see `hq doc output`"
        ),
    })
}

/// Detects input such as `hq run --array 1-3 -- echo '%{TASK_ID}'`.
pub(super) fn path_placeholder(typed: &Typed<'_>, text: Text<'_>) -> Option<String> {
    let known = |name: &str| VARIABLES.iter().find(|(known, _)| *known == name);
    let found = placeholder::pieces(text.text.as_bytes()).into_iter().find_map(|piece| {
        let Piece::Name(name) = piece else { return None };
        let name = std::str::from_utf8(name).ok()?;
        let is_param = matches!(typed.source, Source::Params(params) if params.position(name.as_bytes()).is_some());
        let meant = placeholder::guess(name)?;
        known(meant).filter(|_| !is_param).map(|(_, variable)| (name.to_owned(), *variable))
    });
    found.map(|(name, variable)| {
        format!("`%{{{name}}}` is a placeholder for paths, such as that of `--stdout`, and is not replaced in a command; use `{variable}` in a shell command line: `bash -c 'LINE'`")
    })
}

/// Detects input such as `hq submit -- echo hi '|' wc`.
pub(super) fn operator(typed: &Typed<'_>, text: Text<'_>) -> Option<String> {
    const OPERATORS: &str = "| || && & ; > >> < << 2> 2>&1 &> 2>/dev/null >&2";
    let program = name(typed.words.first()?);
    let compares = ["test", "[", "expr", "let", "[[", "bc"].contains(&program);
    let is_one = has_word(OPERATORS, text.text) && text.reader == Reader::Program && !compares;
    is_one.then(|| format!("`{}` is passed to the program as an argument, because no shell reads the command; `bash -c 'LINE'` runs a shell command line", text.text))
}

/// `hq submit -- bash -c './run.sh &'`, or a script that ends so.
pub(super) fn background(_: &Typed<'_>, text: Text<'_>) -> Option<String> {
    const ENDS: [&str; 8] = ["done", "fi", "}", ")", "disown", "exit 0", "exit", ";"];
    let mut code = text.text.trim_end();
    while let Some(rest) = ENDS.iter().find_map(|end| code.strip_suffix(end)) {
        code = rest.trim_end();
    }
    let is_one = text.reader == Reader::Shell && code.ends_with('&') && !code.ends_with("&&");
    is_one.then(|| "the shell does not wait for the command before the last `&`: the task ends at once, and the worker kills what it left; leave out `&`, or add `wait`".to_owned())
}

/// `hq submit -- cat '*.txt'`, `'~/x'`.
pub(super) fn pattern(typed: &Typed<'_>, text: Text<'_>) -> Option<String> {
    if text.reader != Reader::Program {
        return None;
    }
    let is_home = text.text == "~" || text.text.starts_with("~/");
    let is_pattern =
        text.text.contains('*') && !text.text.starts_with('-') && is_tool(typed.words.first()?);
    let prints = matches!(
        name(typed.words.first()?),
        "echo" | "printf" | "tr" | "rsync"
    );
    (is_home || is_pattern && !prints).then(|| format!("no shell expands `{}`: leave out the quotes, or let a shell expand it where the task runs: `bash -c 'LINE'`", text.text))
}

/// Detects input such as `hq submit --array 1-3 -- ./run "$HQ_TASK_ID"`: the user's shell has
/// replaced it.
pub(super) fn empty(typed: &Typed<'_>, text: Text<'_>) -> Option<String> {
    let is_one =
        text.text.is_empty() && typed.verb != Verb::File && !matches!(typed.source, Source::One);
    is_one.then(|| {
        let own = typed.own_value();
        format!("argument {} is empty; if you typed `\"{own}\"`, this shell expanded it to nothing; with `bash -c '… \"{own}\"'` the task expands it", text.number)
    })
}

/// Detects input such as `hq submit --array 1-3 -- echo task $HQ_TASK_ID`: this shell has replaced
/// it, and no argument tells the tasks apart.
pub(super) fn nothing_to_print(typed: &Typed<'_>, text: Text<'_>) -> Option<String> {
    let own = typed.own_value();
    let is_word = |word: &str| !word.is_empty() && word.chars().all(char::is_alphanumeric);
    let mut words = typed.words.iter().skip(1);
    let is_same = matches!(typed.source, Source::Ids) && words.all(|word| is_word(word));
    let what = match typed.words.len() {
        1 => "has no arguments",
        _ if is_same => "prints the same in each task",
        _ => return None,
    };
    let prints = matches!(name(text.text), "echo" | "printf");
    (prints && typed.verb != Verb::File && !typed.front.is_piped).then(|| format!("`{}` {what}; if you typed `{own}`, this shell expanded it to nothing; with `bash -c '{} \"{own}\"'` the task expands it", text.text, typed.words.join(" ")))
}

/// Detects input such as `hq run --each-line files -- gzip`: xargs and parallel put the line at the
/// end; `hq submit --array 1-3 -- gzip "f$HQ_TASK_ID"`.
pub(super) fn unused_entry(typed: &Typed<'_>, _: Text<'_>) -> Option<String> {
    let (own, what) = match typed.source {
        Source::Entries => ("$HQ_ENTRY", "line"),
        Source::Ids => ("$HQ_TASK_ID", "number"),
        Source::One | Source::Params(_) => return None,
    };
    let is_array = what == "number";
    let uses = |word: &str| word.contains(&own[1..]) || word.contains('{');
    let first = &**typed.words.first()?;
    let line = typed.words.iter().enumerate().find_map(|(number, word)| {
        (super::reader::of(&typed.words, number) == Reader::Shell).then_some(&**word)
    });
    let program = line.map_or(first, |line| {
        line.split_whitespace().next().unwrap_or_default()
    });
    let has_dollar = line.is_some_and(|line| line.contains('$'));
    let has_cwd = typed
        .values
        .iter()
        .any(|(option, value)| option.ends_with("cwd") && value.contains("TASK_ID"));
    let is_told = is_array
        && (may_repeat(program)
            || has_cwd
            || typed.words.iter().any(|word| word.is_empty())
            || line.is_some_and(has_gap));
    if typed.words.iter().any(|word| uses(word)) || !is_tool(program) || has_dollar || is_told {
        return None;
    }
    let words: Vec<String> = typed.words.iter().map(|word| quoted(word)).collect();
    let instead = match (typed.verb, line) {
        (_, Some(_)) => format!("use `\"{own}\"` in the command line, in single quotes"),
        (Verb::Run, None) if !is_array => format!(
            "`hq run … -- {} {{}}` puts it into the command",
            words.join(" ")
        ),
        (_, None) => format!("`bash -c '{} \"{own}\"'` reads it", words.join(" ")),
    };
    Some(format!(
        "every task runs the same command: the {what} of a task is in `{own}`, which `{program}` does not read; {instead}"
    ))
}

/// Detects input such as `hq submit --param file=list.txt`.
pub(super) fn list_value(typed: &Typed<'_>, _: Text<'_>) -> Option<String> {
    let is_list = |file: &str| {
        let end = name(file).rsplit_once('.').map_or("", |(_, end)| end);
        matches!(end, "" | "txt" | "list" | "lst" | "tsv" | "csv") && Path::new(file).is_file()
    };
    let mut params = typed.single_params.iter();
    let (param, file) = params.find(|(_, value)| is_list(value))?;
    Some(format!(
        "`{file}` is the only value of `{param}`; to use each line of that file as a value, write `--param {param}=@{file}`"
    ))
}

/// Detects input such as `hq submit --param lr=1,2 -- ./train`: all tasks do the same unless the
/// program reads its environment.
pub(super) fn unused_param(typed: &Typed<'_>, _: Text<'_>) -> Option<String> {
    let Source::Params(params) = typed.source else {
        return None;
    };
    let program = typed.words.first()?;
    let script = typed
        .script
        .as_ref()
        .filter(|script| script.is_whole_text());
    let line = typed
        .words
        .get(2)
        .filter(|_| is_shell(program) && typed.words[1].ends_with('c'));
    let is_unused = |param: &Param| {
        let name = &*param.name;
        // The user's program may read its variables. A known tool does not, and neither does a line
        // that contains only the name.
        let is_misread = |line: &str| {
            line.contains(&format!("${name}")) || line.contains(&format!("${{{name}}}"))
        };
        let is_known = match (line, script) {
            (Some(line), _) => is_misread(line),
            (None, Some(_)) => true,
            (None, None) => is_tool(program) && typed.script.is_none(),
        };
        let brace = format!("{{{name}}}");
        let values = typed.values.iter().map(|(_, value)| value);
        let texts = typed.words.iter().chain(values).map(|text| &**text);
        let mut texts = texts.chain(script.map(Script::head));
        is_known
            && !texts.any(|text| {
                text.contains(&brace) && !text.contains(&format!("${brace}"))
                    || text.contains("HQ_PARAM")
            })
    };
    // Of parameters that change together, one is enough. Tables have columns for other programs.
    let mut groups = params.list().chunk_by(|_, next| next.is_along);
    let unused = groups.find(|group| group.iter().all(is_unused))?.first()?;
    let (name, variable) = (&unused.name, hq_core::params::variable(&unused.name));
    let or_so = match (line, script) {
        (Some(_), _) => format!("or `${variable}` in the line"),
        (None, Some(script)) => format!("or read `{variable}` in `{}`", script.word),
        (None, None) => format!("as in `{program} {{{name}}}`"),
    };
    Some(format!(
        "nothing uses the parameter `{name}`: write `{{{name}}}` where its value belongs, {or_so}"
    ))
}

/// The options of programs that set the number of processes or threads.
const PROCESSES: &[(&[&str], &[&str])] = &[
    (
        &["make", "gmake", "ninja", "parallel", "cargo"],
        &["-j", "--jobs"],
    ),
    (
        &["mpirun", "mpiexec", "orterun"],
        &["-np", "--np", "-n", "-c"],
    ),
    (&["samtools"], &["-@", "--threads"]),
    (&["bwa", "minimap2"], &["-t"]),
    (&["bowtie2", "pigz"], &["-p"]),
    (&["xz", "zstd"], &["-T"]),
];

/// Detects input such as `hq submit --cpus 4 -- make -j8`, `mpirun -np 8 ./x`: the cpus that a task
/// requests determine how many other tasks run at the same time.
pub(super) fn processes(typed: &Typed<'_>, text: Text<'_>) -> Option<String> {
    let (_, options) = PROCESSES
        .iter()
        .find(|(names, _)| names.contains(&name(text.text)))?;
    let cpus = typed.cpus?;
    let words = &typed.words;
    let found = (1..words.len()).find_map(|at| {
        let option = options
            .iter()
            .find(|option| words[at].starts_with(**option))?;
        let value = &words[at][option.len()..];
        let value = if value.is_empty() {
            words.get(at + 1)?
        } else {
            value.trim_start_matches('=')
        };
        let count: u32 = value.parse().ok()?;
        (f64::from(count) > cpus).then_some((option, count))
    });
    found.map(|(option, count)| {
        let cpus = match &*cpus.to_string() {
            "1" => "1 cpu".to_owned(),
            cpus => format!("{cpus} cpus"),
        };
        format!("`{option} {count}` uses {count} cpus, but a task requests {cpus}, so other tasks may run on the same cpus. Add `--cpus {count}`")
    })
}

/// Detects input such as `bash -c echo hi`: only the first word is the command line.
pub(super) fn behind_line(typed: &Typed<'_>, text: Text<'_>) -> Option<String> {
    let reads = |line: &str| {
        let reads = |sign: &str| {
            ["$", "${", "${#"]
                .iter()
                .any(|dollar| line.contains(&format!("{dollar}{sign}")))
        };
        [
            "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "@", "*", "#",
        ]
        .iter()
        .any(|sign| reads(sign))
            || ["shift", "getopts", "BASH_ARGV"]
                .iter()
                .any(|word| line.contains(word))
    };
    let rest = &typed.words[text.number + 1..];
    if text.reader != Reader::Shell
        || rest.is_empty()
        || reads(text.text)
        || text.text.starts_with('-')
    {
        return None;
    }
    let shell = &typed.words[..text.number];
    let shell: Vec<String> = shell.iter().map(|word| quoted(word)).collect();
    let line = typed.words[text.number..].join(" ").replace('\'', "'\\''");
    Some(format!(
        "the shell runs only `{}`, without the words after it; quote the line as one word: `{} '{line}'`",
        text.text,
        shell.join(" ")
    ))
}
