//! Detects habits in the first word of a command.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use hq_core::command_text::no_program;
use hq_core::words::has_word;

use super::option;
use super::reader::is_here;
use super::{Remark, Source, Text, Typed, Verb, reader, script};
use crate::args;
use crate::submit::similar_file;
use crate::text::quoted;
use crate::text::{closest, is_printed_quote, with_hyphens};

/// Detects input such as `hq submit ""`.
pub(super) fn nothing(_: &Typed<'_>, text: Text<'_>) -> Option<Remark> {
    text.text.is_empty().then(|| {
        Remark::Refusal(
            "The program has an empty name".to_owned(),
            "a variable of this shell may be empty: look at `echo \"$NAME\"`".to_owned(),
        )
    })
}

/// Detects input such as `hq submit '#HQ' --stdout=o ./s.sh`.
pub(super) fn directive(_: &Typed<'_>, text: Text<'_>) -> Option<Remark> {
    let is_one = ["#HQ", "#SBATCH", "#PBS", "#BSUB", "#$"].contains(&text.text);
    is_one.then(|| {
        Remark::Refusal(
            format!("`{}` is not a program", text.text),
            "such a line belongs into a script; leave it out on the command line: `hq submit OPTIONS ./script.sh`".to_owned(),
        )
    })
}

/// Detects words after an option that takes only one word, such as `--param lr=0.1 0.01` and
/// `--enforce-memory no`.
pub(super) fn split_value(typed: &Typed<'_>, text: Text<'_>) -> Option<Remark> {
    let word = text.text;
    if typed.front.is_fenced || typed.verb == Verb::File {
        return None;
    }
    let (option, value) = typed.front.last_option()?;
    if value.is_none() {
        return lone_value(typed, option, word);
    }
    if is_here(word) || word.contains('/') {
        return None;
    }
    let fence = typed.words.iter().position(|word| word == "--");
    let rest = &typed.words[..fence.unwrap_or(1)];
    let instead = match (option, value) {
        ("--param", Some(value)) => {
            let name = value.split('=').next().unwrap_or(value);
            let more = rest
                .iter()
                .map(|word| word.strip_prefix(&format!("{name}=")).unwrap_or(word));
            let is_value = word.starts_with(&format!("{name}="))
                || word.parse::<f64>().is_ok()
                || fence.is_some();
            let is_other = word.contains('=') && !word.starts_with(&format!("{name}="));
            match (is_value, is_other) {
                (_, true) => format!("repeat the option: `--param {value} --param {word}`"),
                (true, false) => {
                    let values = std::iter::once(value.trim_end_matches(','))
                        .chain(more.map(|word| word.trim_matches(',')));
                    let values: Vec<&str> = values.filter(|value| !value.is_empty()).collect();
                    format!(
                        "separate values with commas, without blanks: `--param {}`",
                        values.join(",")
                    )
                }
                (false, false) => return None,
            }
        }
        ("--resource" | "--env", Some(value)) if word.contains('=') => {
            let value = value.trim_end_matches([',', ';']);
            format!("repeat the option: `{option} {value} {option} {word}`")
        }
        ("--inputs" | "--outputs", Some(value)) if fence.is_some() => {
            format!("repeat the option: `{option} {value} {option} {word}`")
        }
        _ => return None,
    };
    let text = format!("`{word}` is taken as the program, because `{option}` accepts one value");
    Some(match typed.verb {
        Verb::Run => Remark::Refusal(text, instead),
        Verb::Submit | Verb::File => Remark::Note(format!("{text}; {instead}")),
    })
}

/// Detects input such as `--wait 10m true`, `--dry-run yes -- true`: the option takes no value, or
/// takes one only after `=`.
fn lone_value(typed: &Typed<'_>, option: &str, word: &str) -> Option<Remark> {
    let is_program = |word: &str| is_here(word) && (!word.contains('/') || !is_data(word));
    let next = typed.words.get(1)?;
    let is_value = next == "--" || !is_program(word) && is_program(next);
    if !is_value || !option.starts_with("--") {
        return None;
    }
    let verb = typed.verb.word();
    let instead = match args::advice(&["hq", verb, &format!("{option}={word}"), "true"]) {
        Ok(()) => format!("the value of `{option}` follows without a blank: `{option}={word}`"),
        Err(advice) => advice.unwrap_or_else(|| format!("`{option}` does not take it")),
    };
    let text = format!("`{word}` is taken as the program");
    Some(
        match word.starts_with(|c: char| c.is_ascii_digit()) && !is_here(word) {
            true => Remark::Refusal(text, instead),
            false => Remark::Note(format!("{text}; {instead}")),
        },
    )
}

/// Returns whether a path names a file that cannot be started.
fn is_data(path: &str) -> bool {
    let found = std::fs::metadata(path);
    found.is_ok_and(|found| found.is_dir() || found.permissions().mode() & 0o111 == 0)
}

/// Detects input such as `hq submit --array 1,2 3 -- true`.
pub(super) fn ids(typed: &Typed<'_>, text: Text<'_>) -> Option<Remark> {
    let is_id = |c: char| c.is_ascii_digit() || matches!(c, ',' | '-' | ':');
    let is_list =
        text.text.starts_with(|c: char| c.is_ascii_digit()) && text.text.chars().all(is_id);
    let mut variables = option::given(typed, "--env");
    let help = match variables.find(|pair| !pair.contains('=')) {
        Some(name) => format!(
            "a variable and its value are one word: `--env {name}={}`",
            text.text
        ),
        None => "a list of ids is one word without blanks, as in `--array 1,2,3`".to_owned(),
    };
    (is_list && !is_here(text.text))
        .then(|| Remark::Refusal(format!("`{}` is not a program", text.text), help))
}

/// Detects input such as `hq run -j4 all`, where `make -j4 all` is meant.
pub(super) fn make_target(typed: &Typed<'_>, text: Text<'_>) -> Option<String> {
    if typed.words.len() != 1 || typed.front.is_fenced || text.text.contains('/') {
        return None;
    }
    let mut makefiles = ["GNUmakefile", "makefile", "Makefile"].into_iter();
    let file = makefiles.find(|file| {
        std::fs::read_to_string(file).is_ok_and(|rules| has_target(&rules, text.text))
    })?;
    Some(format!(
        "`{0}` is taken as the program; it is also a target of {file}, which hq does not read: `make {0}`",
        text.text
    ))
}

/// Returns whether the rules of a makefile contain a target.
fn has_target(rules: &str, target: &str) -> bool {
    let targets = rules.lines().filter_map(|line| line.split_once(':'));
    targets.map(|(targets, _)| targets).any(|targets| {
        !targets.starts_with(['\t', '#']) && targets.split_whitespace().any(|one| one == target)
    })
}

#[test]
fn targets_of_make_are_found() {
    let rules = "# all: no\nCC = gcc\nall clean: x\n\techo b: c\n";
    assert!(has_target(rules, "all") && has_target(rules, "clean"));
    assert!(!has_target(rules, "b") && !has_target(rules, "x"));
}

/// Detects input such as `hq submit --wait last`: `last` is also a program.
pub(super) fn job_word(typed: &Typed<'_>, text: Text<'_>) -> Option<String> {
    let is_one = matches!(text.text, "last" | "all") && typed.words.len() == 1;
    (is_one && !typed.front.is_fenced).then(|| format!("`{0}` is taken as the program; for jobs there are `hq job wait {0}`, `hq job info {0}` and, for one that begins later, `--after last`", text.text))
}

/// Detects input such as `hq submit –cpus 4 -- true`: word processors and web pages turn two
/// dashes into one.
pub(super) fn long_dash(_: &Typed<'_>, text: Text<'_>) -> Option<Remark> {
    if text.text.starts_with(is_printed_quote) {
        return Some(Remark::Refusal(
            format!("`{}` begins with a typographic quote", text.text),
            "the shell does not treat it as a quote: type `'` or `\"` instead".to_owned(),
        ));
    }
    with_hyphens(text.text).map(|meant| {
        Remark::Refusal(
            format!("`{}` has a long dash instead of `-`", text.text),
            format!("type it as `{meant}`"),
        )
    })
}

/// Programs that behave differently in a task than in a terminal, options that make them suitable,
/// and why. `SCRIPT` is the file that follows.
const ELSEWHERE: &[(&[&str], &[&str], &str)] = &[
    (
        &["srun", "aprun", "jsrun", "ibrun", "prun"],
        &[],
        "works only on workers inside an allocation of the batch system; hq places tasks itself: leave it out, and ask for whole nodes with \
         `--nodes 2`, or for several tasks with `--array 1-2`",
    ),
    (
        &["sbatch", "qsub", "bsub", "msub", "condor_submit", "salloc"],
        &[],
        "gives the work to the batch system, and hq does not learn its result. Submit the script itself: `hq submit SCRIPT`; \
         `hq import SCRIPT` turns its `#SBATCH` or `#PBS` lines into `#HQ` lines",
    ),
    (
        &[
            "vi", "vim", "nvim", "nano", "emacs", "top", "htop", "tmux", "screen", "less", "more",
            "man", "watch",
        ],
        &["-d", "-dm", "-dmS", "-b", "--batch", "-batch", "-es", "-Es"],
        "needs a terminal, and tasks have none",
    ),
    (
        &["sudo", "su", "doas"],
        &["-n", "--non-interactive"],
        "may ask for a password, and tasks have no terminal; leave it out: tasks run as the user who started their worker",
    ),
];

/// Detects input such as `hq submit srun -n 2 hostname`, `sbatch job.sh`, `vim notes.txt`,
/// `sudo ./x`, `docker run -it image`.
pub(super) fn elsewhere(typed: &Typed<'_>, text: Text<'_>) -> Option<String> {
    const TERMINAL: [&str; 4] = ["-it", "-ti", "--tty", "--pty"];
    let name = reader::name(text.text);
    let mut rest = typed.words.iter().skip(1).map(|word| &**word);
    if let Some(option) = rest.clone().find(|word| TERMINAL.contains(word))
        && ["docker", "podman", "nerdctl", "kubectl", "srun"].contains(&name)
    {
        return Some(format!("tasks have no terminal: leave out `{option}`"));
    }
    let is_inside =
        std::env::vars_os().any(|(name, _)| name == "SLURM_JOB_ID" || name == "PBS_JOBID");
    let has_nodes = || typed.cpus.is_none() || is_inside;
    let (names, meant, why) = ELSEWHERE.iter().find(|(names, ..)| names.contains(&name))?;
    let is_meant =
        rest.clone().any(|word| meant.contains(&word)) || names.contains(&"srun") && has_nodes();
    let script = rest
        .find(|word| !word.starts_with('-') && word.contains(['.', '/']))
        .unwrap_or("FILE");
    (!is_meant && typed.verb != Verb::File)
        .then(|| format!("`{name}` {}", why.replace("SCRIPT", &quoted(script))))
}

/// Detects input such as `hq submit --name my job -- true`.
pub(super) fn stray_word(typed: &Typed<'_>, text: Text<'_>) -> Option<String> {
    let fence = typed.words.iter().position(|word| word == "--");
    let next = typed.words.get(fence.map_or(1, |at| at + 1));
    // Either a program follows, or a word that looks like one.
    let is_followed = fence.is_some() || next.is_some_and(|word| is_here(word));
    // The rest of a value is preceded by its option.
    let is_stray = matches!(typed.front.last_option(), Some((_, Some(_))))
        && !typed.front.is_fenced
        && typed.verb != Verb::File
        && !text.text.contains('/')
        && !is_here(text.text);
    (is_stray && is_followed && no_program(text.text).is_none()).then(|| {
        let program = next.map_or("PROGRAM", |word| word);
        if Path::new(text.text).is_file() {
            let each = match typed.verb {
                Verb::Run => format!("hq run --each-line - -- {program} {{}}"),
                Verb::Submit | Verb::File => format!("hq submit --each-line - -- bash -c '{program} \"$HQ_ENTRY\"'"),
            };
            return format!("`{}` is taken as the program: the shell expanded a pattern to several files, and an option takes one value; `ls PATTERN | {each}` runs a task for each", text.text);
        }
        format!("`{}` is taken as the program, and this machine has no such program; a value with a blank needs quotes, as in `--name \"my job\"`; otherwise write `-- {program}` after the options", text.text)
    })
}

/// Detects input such as `hq run "echo hi | wc -l"`.
pub(super) fn shell_line(typed: &Typed<'_>, text: Text<'_>) -> Option<Remark> {
    if Path::new(text.text).is_dir() && text.text.contains('/') {
        let note = format!("`{}` is a directory; name the program in it", text.text);
        return Some(Remark::Note(note));
    }
    let why = no_program(text.text).filter(|_| !is_here(text.text))?;
    let line = quoted_value(text.text);
    let next = typed.words.get(1).filter(|_| typed.verb == Verb::Submit);
    if text.text == "conda" && next.is_some_and(|word| word == "run") {
        return None;
    }
    // `conda activate`
    let next = next.map_or_else(String::new, |word| format!(" {word}"));
    let text = format!("`{}{next}` is not a program", text.text);
    Some(match typed.verb {
        // These tasks run on this machine.
        Verb::Run => Remark::Refusal(text, why),
        Verb::Submit => Remark::Note(format!("{text}: {why}")),
        Verb::File => Remark::Note(format!(
            "{text}; `command` is a list of the program and its arguments, and a command line for a shell is `shell = {line}`"
        )),
    })
}

/// Returns a text in the notation of TOML, YAML and JSON.
pub(super) fn quoted_value(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// Programs that read standard input unless their arguments name a file, with the number of
/// arguments before the files.
const FILTERS: &[(&str, usize)] = &[
    (
        "cat tac rev nl wc sort uniq head tail cut column paste fold fmt shuf md5sum sha1sum sha256sum sha512sum b2sum \
         base64 od xxd hexdump gzip gunzip zcat xz zstd bzip2 less more bc sh bash zsh python python3 perl Rscript node",
        0,
    ),
    ("awk gawk mawk sed grep egrep rg jq yq sqlite3", 1),
    ("tr tee", usize::MAX),
];

/// The programs that have neither input nor operands.
const SILENT: &str =
    "true false hostname date ls pwd env printenv id whoami uptime nproc uname sleep";

/// Detects input such as `… -- xargs gzip` without input.
fn unread_list(typed: &Typed<'_>, (name, rest): (&str, &[String])) -> Option<String> {
    let has_values = typed
        .words
        .iter()
        .any(|word| word.starts_with(":::") || *word == "-a" || word.starts_with("--arg-file"));
    if !matches!(name, "xargs" | "parallel") || has_values {
        return None;
    }
    let words: Vec<&str> = rest
        .iter()
        .map(String::as_str)
        .filter(|word| !word.starts_with('-'))
        .collect();
    Some(format!(
        "tasks have no standard input, so `{name}` has nothing to read; `hq {} --each-line - -- {}` runs a task for each line, and `--stdin` passes all of standard input to each task",
        typed.verb.word(),
        words.join(" ")
    ))
}

/// Detects input such as `seq 3 | hq run -- echo {}`, `cat list | hq run -- wc -l`,
/// `… -- xargs gzip`.
pub(super) fn unread_input(typed: &Typed<'_>, _: Text<'_>) -> Option<String> {
    if typed.has_stdin {
        return None;
    }
    // The interpreter from the first line may precede the typed word.
    let own = typed
        .words
        .iter()
        .position(|word| **word == *typed.front.program);
    let words = &typed.words[own.unwrap_or(0)..];
    let program = &*words[0];
    let (name, verb) = (reader::name(program), typed.verb.word());
    let rest: Vec<String> = words
        .iter()
        .skip(1)
        .map(|word| quoted(word).replace("'{}'", "{}"))
        .collect();
    let command = |words: &[String]| {
        format!("{} {}", quoted(program), words.join(" "))
            .trim_end()
            .to_owned()
    };
    if let Some(note) = unread_list(typed, (name, &rest)) {
        return Some(note);
    }
    if !typed.front.is_piped || !matches!(typed.source, Source::One | Source::Ids) {
        return None;
    }
    let places = ["{}", "{.}", "{/}", "{#}", "{1}", "{line}"];
    let place = places
        .iter()
        .find(|place| rest.iter().any(|word| word.contains(**place)));
    if let Some(place) = place.filter(|_| !reader::has_own_braces(&typed.words)) {
        let shown = match typed.verb {
            Verb::Run => command(&rest).replace(place, "{}").replace("'{}'", "{}"),
            Verb::Submit | Verb::File => "bash -c 'LINE'` with the line in `$HQ_ENTRY".to_owned(),
        };
        return Some(format!(
            "hq does not read piped input without an option; to run a task for each line, use `hq {verb} --each-line - -- {shown}`"
        ));
    }
    let known = FILTERS.iter().find(|(names, _)| has_word(names, name));
    let skipped = known.map_or(0, |(_, skipped)| *skipped);
    let mut operands = words
        .iter()
        .skip(1)
        .filter(|word| !word.starts_with('-'))
        .skip(skipped);
    let is_file = |word: &str| Path::new(word).exists() || word.contains(['/', '.', '{', '$', '%']);
    let takes_code =
        (1..words.len()).any(|at| skipped == 0 && reader::of(words, at) != reader::Reader::Program);
    let reads = match known {
        Some(_) => !operands.any(|word| is_file(word)),
        // This is any program without operands, except programs that read no input.
        None => operands.next().is_none() && !has_word(SILENT, name),
    };
    (reads && !takes_code).then(|| {
        let command = command(&rest);
        match known {
            Some(_) => format!(
                "tasks have no standard input, so `{name}` has nothing to read; `hq {verb} --stdin -- {command}` passes all of standard input to each task, and `--each-line -` runs a task for each line"
            ),
            None => format!(
                "hq does not read piped input without an option: `hq run --each-line - -- {command} {{}}` runs a task for each line, and `hq {verb} --stdin -- {command}` passes all of it to each task"
            ),
        }
    })
}

/// Detects input such as `hq submit --cwd sub -- ./t.sh` where the file is here and not in `sub`,
/// or `cwd = "sub"` in a job file.
pub(super) fn other_directory(typed: &Typed<'_>, _: Text<'_>) -> Option<String> {
    let (_, cwd) = typed
        .values
        .iter()
        .find(|(option, _)| option.ends_with("cwd"))?;
    let word = &*typed.words[script::place(&typed.words)?];
    let is_fixed = !cwd.contains(['%', '{', '$', '~']) && !word.starts_with('/');
    let is_program = word == typed.words[0] && is_here(word) && !word.contains('/');
    if !is_fixed
        || is_program
        || !Path::new(word).is_file()
        || Path::new(&**cwd).join(word).exists()
    {
        return None;
    }
    let here = std::env::current_dir().unwrap_or_default();
    let here = here.join(word.trim_start_matches("./"));
    Some(format!(
        "`{word}` does not exist in the working directory of the tasks, `{cwd}`; the file of this directory is `{}`",
        quoted(&here.to_string_lossy())
    ))
}

/// Detects input such as `hq submit sim.py 3`, `hq run Makefile`, and a script without `#!`.
pub(super) fn not_executable(typed: &Typed<'_>, text: Text<'_>) -> Option<Remark> {
    let script = typed.script.as_ref().filter(|script| script.number == 0)?;
    let interpreter = script.interpreter();
    // A file without an extension may be a shell script.
    let is_shell = match &interpreter {
        Some(interpreter) => reader::is_shell(interpreter),
        None => Path::new(text.text).extension().is_none(),
    };
    let is_found = text.text.contains('/');
    if script.is_empty() {
        return Some(Remark::Note(format!("`{}` is an empty file", text.text)));
    }
    if script.is_executable
        && let Some(missing) = script.missing_interpreter()
    {
        return Some(Remark::Note(format!(
            "the first line of `{}` names `{missing}`, which this machine does not have; correct that line, or put the program in front: `PROGRAM {}`",
            text.text,
            quoted(text.text)
        )));
    }
    let why = if !script.is_executable {
        "is not executable"
    } else if !script.has_first_line() && !is_shell && script.is_text() {
        "does not begin with a line such as `#!/usr/bin/env python3`, so that /bin/sh would run it"
    } else {
        return None;
    };
    let words: Vec<String> = typed.words.iter().map(|word| quoted(word)).collect();
    let instead = match (interpreter, is_found) {
        (Some(interpreter), _) if script.is_text() => format!(
            "put the interpreter in front: `{interpreter} {}`",
            words.join(" ")
        ),
        (None, _) if script.is_executable => {
            format!("name the program that reads it: `PROGRAM {}`", words[0])
        }
        (None, _) if let Some(instead) = reader_of(text.text) => instead,
        (None, _) if !script.is_program() => format!(
            "it does not look like a program or a script; the program that reads it comes first: `hq {} PROGRAM {}`",
            typed.verb.word(),
            words.join(" ")
        ),
        (_, true) => format!("`chmod +x {}` makes it so", words[0]),
        (_, false) => format!(
            "`chmod +x {0}` makes it so, and `./{0}` runs a program of this directory",
            words[0]
        ),
    };
    let text = format!("`{}` {why}", text.text);
    Some(match typed.verb {
        Verb::Run if !script.is_executable => Remark::Refusal(text, instead),
        Verb::Run | Verb::Submit | Verb::File => Remark::Note(format!("{text}; {instead}")),
    })
}

/// Returns the interpreter for a file that `chmod` cannot turn into a program.
fn reader_of(file: &str) -> Option<String> {
    let (_, end) = reader::name(file).rsplit_once('.')?;
    let file = quoted(file);
    match end {
        "ipynb" => Some(format!(
            "a notebook is run by `jupyter nbconvert --to notebook --execute {file}`"
        )),
        "csv" | "tsv" => Some(format!(
            "`hq run --each-row {file} -- PROGRAM {{NAME}}` runs a task for each of its rows"
        )),
        "txt" | "list" | "lst" | "dat" => Some(format!(
            "`hq run --each-line {file} -- PROGRAM {{}}` runs a task for each of its lines"
        )),
        _ => None,
    }
}

/// Detects input such as `hq submit ./nope`, `hq submit sim.py`, `hq submit pyhton x.py`.
pub(super) fn missing(typed: &Typed<'_>, text: Text<'_>) -> Option<Remark> {
    let has_cwd = typed.values.iter().any(|(option, _)| *option == "--cwd");
    let path = Path::new(text.text);
    let end = path.extension().and_then(|end| end.to_str());
    let is_job_file = matches!(end, Some("toml" | "yaml" | "yml" | "json"));
    if typed.verb != Verb::File && is_job_file && !path.exists() && !is_here(text.text) && !has_cwd
    {
        return Some(Remark::Refusal(
            format!("{} does not exist", text.text),
            similar_file(path).map_or_else(
                || "a job file is named by its path: `hq submit FILE.toml`".to_owned(),
                |meant| format!("did you mean `{}`?", meant.display()),
            ),
        ));
    }
    // The tasks of `hq run` report a moment later why they cannot start.
    if typed.verb != Verb::Submit || has_cwd || text.text.contains(['{', '%']) {
        return None;
    }
    // This is the program, or the script that it runs.
    let file = &*typed.words[script::place(&typed.words).unwrap_or(0)];
    let is_named = file.starts_with("./") || file.starts_with("../");
    let is_script = file != text.text && !file.contains(['{', '%', '$', '/']) && file.contains('.');
    if (is_named || is_script) && !Path::new(file).exists() {
        return Some(Remark::Note(format!(
            "`{file}` does not exist in this directory"
        )));
    }
    if text.text.contains('/') || is_here(text.text) {
        return None;
    }
    if path.is_dir() {
        return Some(Remark::Note(format!(
            "`{}` is a directory, and no program of that name is in the PATH",
            text.text
        )));
    }
    let is_file = path.is_file();
    if !is_file && text.text.contains('.') {
        return Some(Remark::Note(format!(
            "`{}` is neither in this directory nor in the PATH of this machine",
            text.text
        )));
    }
    if !is_file && let Some(meant) = similar(text.text) {
        return Some(Remark::Note(format!(
            "`{}` is not in the PATH of this machine; did you mean `{meant}`?",
            text.text
        )));
    }
    is_file.then(|| {
        Remark::Note(format!(
            "`{0}` is not in the PATH; to run the file in this directory, write `./{0}`",
            text.text
        ))
    })
}

/// Detects input such as `$NOPE/out.txt`: a path directly below `/`.
pub(super) fn in_root(path: &str) -> Option<String> {
    let name = path.strip_prefix('/')?;
    let is_direct = !name.is_empty() && !name.contains('/');
    is_direct.then(|| {
        format!("`{path}` is in the root directory; if a variable stood in front of it, it is empty in this shell: `echo \"$NAME\"`")
    })
}

/// Returns the installed program with the most similar name.
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

/// Detects input such as `hq submit ./*.sh`: this shell turns all files into one command.
pub(super) fn all_files(typed: &Typed<'_>, text: Text<'_>) -> Option<String> {
    let (_, end) = reader::name(text.text).rsplit_once('.')?;
    let is_same = |word: &str| Path::new(word).is_file() && word.ends_with(&format!(".{end}"));
    let are_all = typed.words.len() > 1
        && text.text.contains('/')
        && typed.words.iter().all(|word| is_same(word));
    (are_all && typed.verb != Verb::File).then(|| {
        let count = typed.words.len() - 1;
        format!("`{}` gets the other {count} files as arguments; `ls PATTERN | hq run --each-line - -- {{}}` runs a task for each file", text.text)
    })
}
