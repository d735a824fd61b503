//! Habits in the first word of a command.

use std::collections::BTreeSet;
use std::path::Path;

use hq_core::command_text::no_program;

use super::{Said, Text, Typed, Verb, reader};
use crate::submit::habits::option::quoted;
use crate::text::closest;

/// Whether a program can be found on this machine.
fn is_here(word: &str) -> bool {
    if word.contains('/') {
        return Path::new(word).exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(word).is_file())
}

/// `hq submit ""`.
pub(super) fn nothing(_: &Typed<'_>, text: Text<'_>) -> Option<Said> {
    text.text.is_empty().then(|| {
        Said::Refusal(
            "The program has an empty name".to_owned(),
            "a variable of this shell may be empty: look at `echo \"$NAME\"`".to_owned(),
        )
    })
}

/// `hq submit '#HQ' --stdout=o ./s.sh`.
pub(super) fn directive(_: &Typed<'_>, text: Text<'_>) -> Option<Said> {
    let is_one = ["#HQ", "#SBATCH", "#PBS", "#BSUB", "#$"].contains(&text.text);
    is_one.then(|| {
        Said::Refusal(
            format!("`{}` is not a program", text.text),
            "such a line belongs into a script; leave it out on the command line: `hq submit OPTIONS ./script.sh`".to_owned(),
        )
    })
}

/// `hq submit --array 1,2 3 -- true`.
pub(super) fn ids(_: &Typed<'_>, text: Text<'_>) -> Option<Said> {
    let is_id = |c: char| c.is_ascii_digit() || matches!(c, ',' | '-' | ':');
    let is_list =
        text.text.starts_with(|c: char| c.is_ascii_digit()) && text.text.chars().all(is_id);
    (is_list && !is_here(text.text)).then(|| {
        Said::Refusal(
            format!("`{}` is not a program", text.text),
            "a list of ids is one word without blanks, as in `--array 1,2,3`".to_owned(),
        )
    })
}

/// `hq submit --name my job -- true`.
pub(super) fn stray_word(typed: &Typed<'_>, text: Text<'_>) -> Option<Said> {
    let fence = typed.words.iter().position(|word| word == "--");
    let next = typed.words.get(fence.map_or(1, |at| at + 1));
    // A program that follows, or what begins like one.
    let is_followed = fence.is_some() || next.is_some_and(|word| is_here(word));
    let is_stray = !typed.is_fenced
        && typed.verb != Verb::File
        && !text.text.contains('/')
        && !is_here(text.text);
    (is_stray && is_followed && no_program(text.text).is_none()).then(|| {
        let program = next.map_or("PROGRAM", |word| word);
        if Path::new(text.text).is_file() {
            return Said::Note(format!(
                "`{}` is in the place of the program: the shell expanded a pattern to several files, and an option takes one value; `ls PATTERN | hq run --each-line - -- {program} {{}}` runs a task for each",
                text.text
            ));
        }
        let help = match text.text {
            "ok" | "end" => format!("`--wait={}` is one word", text.text),
            _ => "a value with a blank needs quotes, as in `--name \"my job\"`".to_owned(),
        };
        Said::Note(format!(
            "`{}` is in the place of the program, and this machine has no such program; {help}; the options must be followed by `-- {program}`",
            text.text
        ))
    })
}

/// `hq run "echo hi | wc -l"`.
pub(super) fn shell_line(typed: &Typed<'_>, text: Text<'_>) -> Option<Said> {
    if Path::new(text.text).is_dir() && text.text.contains('/') {
        let note = format!("`{}` is a directory; name the program in it", text.text);
        return Some(Said::Note(note));
    }
    let why = no_program(text.text).filter(|_| !is_here(text.text))?;
    let text = if text.text.contains(char::is_whitespace) {
        format!("`{}` is not a program", text.text)
    } else {
        format!("`{}` cannot be started as a program", text.text)
    };
    Some(match typed.verb {
        // Its tasks run here.
        Verb::Run => Said::Refusal(text, why),
        Verb::Submit | Verb::File => Said::Note(format!("{text}: {why}")),
    })
}

/// `cat list | hq run -- xargs gzip`.
pub(super) fn reads_input(typed: &Typed<'_>, text: Text<'_>) -> Option<Said> {
    let name = reader::name(text.text);
    let has_values = typed
        .words
        .iter()
        .any(|word| word.starts_with(":::") || *word == "-a" || word.starts_with("--arg-file"));
    let is_one = matches!(name, "xargs" | "parallel") && !has_values && !typed.has_stdin;
    is_one.then(|| {
        let verb = if typed.verb == Verb::Run { "run" } else { "submit" };
        let rest: Vec<String> = typed.words.iter().skip(1).filter(|word| !word.starts_with('-')).map(|word| quoted(word)).collect();
        Said::Note(format!(
            "tasks have no standard input, so `{name}` has nothing to read; `hq {verb} --each-line - -- {}` runs a task for each line, and `--stdin` passes all of standard input to each task",
            rest.join(" ")
        ))
    })
}

/// `hq submit ./nope`, `hq submit sim.py`, `hq submit pyhton x.py`.
pub(super) fn missing(typed: &Typed<'_>, text: Text<'_>) -> Option<Said> {
    let has_cwd = typed.values.iter().any(|(option, _)| *option == "--cwd");
    // What `hq run` cannot start is told by its tasks in a moment.
    if typed.verb != Verb::Submit || has_cwd || text.text.contains(['{', '%']) || is_here(text.text)
    {
        return None;
    }
    if text.text.starts_with("./") || text.text.starts_with("../") {
        return Some(Said::Note(format!(
            "`{}` does not exist in this directory",
            text.text
        )));
    }
    if text.text.contains('/') {
        return None;
    }
    let is_file = Path::new(text.text).is_file();
    if !is_file && let Some(meant) = similar(text.text) {
        return Some(Said::Note(format!(
            "`{}` is not in the PATH of this machine; did you mean `{meant}`?",
            text.text
        )));
    }
    is_file.then(|| {
        Said::Note(format!(
            "`{0}` is not in the PATH; to run the file in this directory, write `./{0}`",
            text.text
        ))
    })
}

/// The program of this machine whose name is most alike.
fn similar(word: &str) -> Option<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let dirs = std::env::split_paths(&path).filter_map(|dir| dir.read_dir().ok());
    let names = dirs
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let names: BTreeSet<String> = names.filter(|name| name.len() > 3).collect();
    let near = closest(word, names.iter().map(String::as_str)).filter(|_| word.len() > 3);
    near.map(str::to_owned)
}

/// `hq submit ./*.sh`: this shell makes one command of all files.
pub(super) fn all_files(typed: &Typed<'_>, text: Text<'_>) -> Option<Said> {
    let (_, end) = reader::name(text.text).rsplit_once('.')?;
    let is_same = |word: &str| Path::new(word).is_file() && word.ends_with(&format!(".{end}"));
    let are_all = typed.words.len() > 1
        && text.text.contains('/')
        && typed.words.iter().all(|word| is_same(word));
    (are_all && typed.verb != Verb::File).then(|| {
        let count = typed.words.len() - 1;
        Said::Note(format!(
            "`{}` gets the other {count} files as arguments; `ls PATTERN | hq run --each-line - -- {{}}` runs a task for each file",
            text.text
        ))
    })
}
