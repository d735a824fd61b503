//! Detects variables that no shell replaces, that hq does not set, or that the user's shell has
//! already replaced.

use hq_core::words::has_word;

use super::option;
use super::reader::{Reader, may_repeat};
use super::{Source, Text, Typed, Verb};
use crate::text::{closest, quoted, rows};

/// The variables of tasks, in addition to `HQ_PARAM_…`, `HQ_RESOURCE_…` and the server's
/// variables.
const KNOWN: &str = "HQ_JOB_ID HQ_TASK_ID HQ_INSTANCE_ID HQ_ENTRY HQ_SUBMIT_DIR HQ_CPUS HQ_TASK_DIR HQ_ERROR_FILENAME HQ_PIN \
    HQ_NUM_NODES HQ_NODE_FILE HQ_HOST_FILE HQ_INSTANCE_KEY HQ_SERVER_DIR HQ_ACCESS_KEY HQ_DEBUG HQ_OUTPUT_MODE";

/// The variables of other tools, and their equivalents in a task.
const FOREIGN: &str = "
SLURM_ARRAY_TASK_ID SLURM_ARRAY_TASK_COUNT SLURM_PROCID PBS_ARRAY_INDEX PBS_ARRAYID SGE_TASK_ID LSB_JOBINDEX OAR_ARRAY_INDEX PARALLEL_SEQ AWS_BATCH_JOB_ARRAY_INDEX JOB_COMPLETION_INDEX TASK_ID: HQ_TASK_ID
SLURM_ARRAY_JOB_ID SLURM_JOB_ID SLURM_JOBID PBS_JOBID LSB_JOBID: HQ_JOB_ID
SLURM_NTASKS SLURM_CPUS_ON_NODE SLURM_CPUS_PER_TASK PBS_NP PBS_NCPUS NCPUS NSLOTS LSB_DJOB_NUMPROC: HQ_RESOURCE_REQUEST_cpus
SLURM_JOB_NODELIST SLURM_NODELIST PBS_NODEFILE: HQ_NODE_FILE
SLURM_SUBMIT_DIR PBS_O_WORKDIR: HQ_SUBMIT_DIR
PARALLEL_JOBSLOT: HQ_CPUS
";

/// Returns the equivalent of another tool's variable.
fn own_variable(name: &str) -> Option<&'static str> {
    let found = rows(FOREIGN).find(|(names, _)| has_word(names, name));
    found.map(|(_, own)| own)
}

/// Returns the names after `$` or `${` in a text.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.match_indices('$').filter_map(|(at, _)| {
        let rest = &text[at + 1..];
        let rest = rest.strip_prefix('{').unwrap_or(rest);
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let name = &rest[..end.unwrap_or(rest.len())];
        let is_upper = name
            .bytes()
            .all(|byte| byte == b'_' || byte.is_ascii_uppercase() || byte.is_ascii_digit());
        // `HQ_RESOURCE_VALUES_cpus`
        let is_name = is_upper || name.starts_with("HQ_");
        (name.len() > 1 && is_name && !name.as_bytes()[0].is_ascii_digit()).then_some(name)
    })
}

/// Detects input such as `hq submit --array 1-3 -- ./run '$HQ_TASK_ID'`, `--stdout '$HOME/out'`.
pub(super) fn plain(typed: &Typed<'_>, text: Text<'_>) -> Option<String> {
    if text.reader != Reader::Program {
        return None;
    }
    if text.option.is_empty() {
        return argument(typed, text);
    }
    let name = names(text.text).next()?;
    let instead = match text.key() {
        "name" => return None,
        "env" => "write the value, or set the variable in a shell command line: `bash -c 'LINE'`"
            .to_owned(),
        _ if name.starts_with("HQ_") => {
            "placeholders for paths are `%{TASK_ID}` and `%{JOB_ID}`, see `hq doc output`"
                .to_owned()
        }
        _ if text.option.starts_with("--")
            && option::given(typed, text.option).next().is_none() =>
        {
            "no shell reads a `#HQ` line: write the path itself, or `~/` for your home directory"
                .to_owned()
        }
        _ if text.option.starts_with("--") => {
            format!(
                "without single quotes this shell expands it in `{}`",
                text.option
            )
        }
        _ => "write the path itself".to_owned(),
    };
    let so = match text.key() {
        "env" => "so the program gets it as it is".to_owned(),
        _ => format!("so the name is really `{}`", text.text),
    };
    Some(format!("no shell expands `${name}` here, {so}; {instead}"))
}

/// Detects input such as `./run '$SLURM_ARRAY_TASK_ID'`, `'$1'`, `'$(hostname)'`: text that a shell
/// would replace.
fn argument(typed: &Typed<'_>, text: Text<'_>) -> Option<String> {
    let name = names(text.text).next();
    let is_code = |word: &str| {
        word.contains("$(") && word.contains(')')
            || word.len() > 2 && word.starts_with('`') && word.ends_with('`')
    };
    let is_own = |word: &str| matches!(word, "$1" | "${1}" | "$@" | "$*");
    if name.is_none() && !is_code(text.text) && !is_own(text.text) {
        return None;
    }
    let foreign = name.and_then(own_variable);
    let own = typed.own_value();
    // This is the same command as a shell line.
    let words = typed.words.iter().map(|word| match names(word).next() {
        _ if is_own(word) => format!("\"{own}\""),
        None if !is_code(word) => quoted(word),
        name => {
            let foreign = name.and_then(|name| Some((name, own_variable(name)?)));
            let word = match foreign {
                Some((foreign, ours)) => word.replace(foreign, ours),
                None => word.to_string(),
            };
            format!("\"{}\"", word.replace('"', "\\\""))
        }
    });
    let line = words.collect::<Vec<_>>().join(" ");
    let instead = match typed.verb {
        Verb::File => format!("`shell = {}`", super::program::quoted_value(&line)),
        Verb::Run | Verb::Submit => format!("`bash -c '{}'`", line.replace('\'', "'\\''")),
    };
    let word = name.map_or_else(|| text.text.to_owned(), |name| format!("${name}"));
    let so = match foreign {
        Some(ours) => {
            format!("and hq does not set it: a task has `${ours}`, which a shell expands")
        }
        None => {
            "so the program gets it as it is; a shell expands it where the task runs".to_owned()
        }
    };
    let needs_array = matches!(typed.source, Source::One)
        && typed.verb != Verb::File
        && foreign == Some("HQ_TASK_ID");
    let array = if needs_array {
        "; `--array 1-10` makes ten tasks"
    } else {
        ""
    };
    Some(format!(
        "no shell expands `{word}` here, {so}: {instead}{array}"
    ))
}

/// Detects input such as `bash -c 'echo $SLURM_ARRAY_TASK_ID'`, and scripts in any language.
pub(super) fn foreign(typed: &Typed<'_>, text: Text<'_>) -> Option<String> {
    let is_script = !text.option.is_empty();
    let found: Vec<&str> = match text.reader {
        Reader::Shell => names(text.text).collect(),
        Reader::Code if is_script => quoted_names(text.text).collect(),
        Reader::Code | Reader::Program => return None,
    };
    // Processes that these programs start have the variables.
    let starts = |program: &str| {
        text.text
            .split(|c: char| !c.is_alphanumeric())
            .any(|word| word == program)
    };
    let has = |name: &str| {
        std::env::var_os(name).is_some()
            || name.starts_with("SLURM_") && !name.contains("ARRAY") && starts("srun")
            || name.starts_with("PARALLEL_") && starts("parallel")
    };
    let found = found.into_iter().find_map(|name| {
        let own = own_variable(name)?;
        (!is_set(typed, text, name) && !has(name)).then_some((name, own))
    });
    let reads = in_script(text);
    found.map(|(name, ours)| {
        let ours = match (ours, typed.source) {
            ("HQ_TASK_ID", Source::Entries) => "HQ_TASK_ID` and its line in `$HQ_ENTRY",
            (ours, _) => ours,
        };
        format!("hq does not set `${name}`{reads}; a task has `${ours}`")
    })
}

/// Returns a text which says that a script reads a variable.
fn in_script(text: Text<'_>) -> String {
    match text.option {
        "" => String::new(),
        file => format!(", which `{file}` reads"),
    }
}

/// Returns quoted variable names without a default, as in `os.environ["NAME"]`.
fn quoted_names(text: &str) -> impl Iterator<Item = &str> {
    text.split(['"', '\''])
        .zip(text.split(['"', '\'']).skip(1))
        .filter(|(name, rest)| name.contains('_') && !rest.trim_start().starts_with(','))
        .map(|(name, _)| name)
}

/// Returns whether the user sets the variable or provides a default.
fn is_set(typed: &Typed<'_>, text: Text<'_>, name: &str) -> bool {
    [
        "{NAME:",
        "{NAME-",
        "{NAME+",
        "NAME=",
        "in NAME",
        "for NAME ",
        "read NAME",
        "-n \"$NAME",
        "-z \"$NAME",
        "-n \"${NAME",
        "-z \"${NAME",
    ]
    .iter()
    .any(|form| text.text.contains(&form.replace("NAME", name)))
        || typed.env_names.iter().any(|known| known == name)
}

/// Detects input such as `$HQ_TASKID`, `$HQ_ENTRY` without `--each-line`, `$HQ_PARAM_LR` without
/// such a parameter.
pub(super) fn unknown(typed: &Typed<'_>, text: Text<'_>) -> Option<String> {
    if text.reader != Reader::Shell {
        return None;
    }
    let reads = in_script(text);
    names(text.text).filter(|name| name.starts_with("HQ_")).find_map(|name| {
        if is_set(typed, text, name) || name.starts_with("HQ_RESOURCE_") {
            return None;
        }
        if name == "HQ_ENTRY" && !matches!(typed.source, Source::Entries) {
            return Some(format!("`$HQ_ENTRY`{reads} is empty without `--each-line` or `--from-json`"));
        }
        if name.starts_with("HQ_PARAM_") {
            let has = matches!(typed.source, Source::Params(params) if params.list().iter().any(|param| hq_core::params::variable(&param.name) == name));
            return (!has).then(|| format!("`${name}`{reads} is empty: no `--param` has that name"));
        }
        let meant = closest(name, KNOWN.split(' ')).map_or(String::new(), |meant| format!("; did you mean `${meant}`?"));
        (!has_word(KNOWN, name)).then(|| format!("hq does not set `${name}`{reads}{meant}"))
    })
}

/// Detects input such as `bash -c 'gzip "$1"'`, as with `xargs -n1 bash -c`.
pub(super) fn positional(typed: &Typed<'_>, text: Text<'_>) -> Option<String> {
    let names_one = ["$1", "${1}", "$@", "\"$@\"", "$*"]
        .iter()
        .any(|name| text.text.contains(name));
    let is_last = text.number + 1 == typed.words.len();
    let defines = ["()", "set --", "function ", "awk", "while read"]
        .iter()
        .any(|word| text.text.contains(word));
    (text.reader == Reader::Shell
        && names_one
        && is_last
        && !defines
        && !matches!(typed.source, Source::One))
    .then(|| {
        format!(
            "`$1` and `$@` are empty in this line; a task has its value in `{}`",
            typed.own_value()
        )
    })
}

/// Returns whether a shell may have removed a variable from a text.
pub(super) fn has_gap(text: &str) -> bool {
    let gaps = ["\"\"", " ;", "  "];
    text.ends_with([' ', '=']) || gaps.iter().any(|gap| text.contains(gap))
}

/// Detects input such as `bash -c "echo $HQ_TASK_ID"`, `echo "task $HQ_TASK_ID"`: the user's shell
/// has replaced the variable with nothing.
pub(super) fn expanded(typed: &Typed<'_>, text: Text<'_>) -> Option<String> {
    let line = text.text;
    // `out_.txt`; in a line of code, this is not a gap.
    let has_end = || line.ends_with(['_', '-', ':', '#']) || line.contains("_.");
    let is_text = text.reader == Reader::Program
        && !line.starts_with('-')
        && (has_gap(line) || has_end())
        && typed.words.first().is_some_and(|word| may_repeat(word));
    let is_one = (text.reader == Reader::Shell && has_gap(line) || is_text)
        && !line.contains('$')
        && !line.contains('{')
        && !line.contains('\n')
        && typed.verb != Verb::File
        && !matches!(typed.source, Source::One);
    is_one.then(|| {
        let own = typed.own_value();
        format!("the text `{line}` has a gap; if `{own}` was there in double quotes, this shell expanded it to nothing; with `bash -c '… {own}'` the task expands it")
    })
}
