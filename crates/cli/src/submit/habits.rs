//! Detects habits from other tools in input that hq accepts unchanged: nothing fails immediately,
//! but the result is not what the user intended. Each habit is an entry of [`HABITS`]: a place, and
//! a function that recognizes the habit there and suggests what to write instead. Most habits cause
//! a note, which changes nothing. If nothing could run at all, the submit is rejected.

use std::borrow::Cow;
use std::ffi::OsString;
use std::path::Path;

use hq_core::params::Params;
use hq_core::resource::request::Policy;
use hq_core::template::{StdioSpec, TaskTemplate};

use crate::args::submit::TaskOptions;
use crate::error::{CliError, CliResult};
use crate::parse::param::{ParamArg, ParamItem, ParamSource};
use crate::parse::value::StdioArg;

mod command;
mod front;
mod option;
mod program;
mod reader;
mod script;
mod value;
mod variable;

pub(crate) use front::Front;
pub(crate) use option::{given_options, short_clock_here};
use reader::Reader;
use script::Script;
pub(crate) use script::interpreter_of;

/// The maximum number of notes per submit.
pub(crate) const NOTES_MAX: usize = 8;
/// The maximum number of parameter values that are examined.
const VALUES_MAX: usize = 100;
/// The maximum length of a note in bytes.
const NOTE_LEN_MAX: usize = 1_000;

/// The command that submits the tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verb {
    /// The command `hq run`.
    Run,
    /// The command `hq submit`.
    Submit,
    /// A job file.
    File,
}

impl Verb {
    /// Returns the word that users type.
    fn word(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Submit | Self::File => "submit",
        }
    }
}

/// The source of the tasks' values.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    /// There is only one task.
    One,
    /// The tasks differ only in their ids.
    Ids,
    /// The values come from `--each-line`, `--from-json`, or the entries of a job file.
    Entries,
    /// The values come from `--param`.
    Params(&'a Params),
}

/// A command as it was typed.
#[derive(Debug)]
pub(crate) struct Typed<'a> {
    pub(crate) verb: Verb,
    front: Cow<'a, Front>,
    /// The options that count, from the command line, `#HQ` lines and the user's file, with their
    /// values.
    options: Vec<(String, String)>,
    pub(crate) source: Source<'a>,
    /// The program and its arguments.
    pub(crate) words: Vec<Cow<'a, str>>,
    /// The options and their values: paths, variables, and the name.
    pub(crate) values: Vec<(&'static str, Cow<'a, str>)>,
    /// The names in `--env`.
    pub(crate) env_names: Vec<Cow<'a, str>>,
    pub(crate) has_stdin: bool,
    /// The number of cpus requested per task, if it is a number.
    cpus: Option<f64>,
    /// The parameters with a single text.
    single_params: Vec<(&'a str, Cow<'a, str>)>,
    /// The file that the command runs, if it is text.
    script: Option<Script>,
}

/// Where to look for a habit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// The first word of the command.
    Program,
    /// The other words.
    Argument,
    /// The whole command.
    Command,
    /// The values of options that tasks receive.
    Value,
    /// The code of the file that the command runs.
    Script,
}

/// A text that is examined.
#[derive(Clone, Copy, Debug)]
struct Text<'a> {
    text: &'a str,
    /// The position of the text among the words of the command.
    number: usize,
    /// The option whose value is the text.
    option: &'a str,
    /// The program that reads the text.
    reader: Reader,
}

impl<'a> Text<'a> {
    /// Returns the name of the option without hyphens, which is also the key in a job file.
    fn key(self) -> &'a str {
        self.option.trim_start_matches('-')
    }
}

/// A message about a habit.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Remark {
    Note(String),
    /// An error, because nothing could run.
    Refusal(String, String),
}

/// A function that recognizes a habit.
#[derive(Clone, Copy)]
enum Check {
    /// It returns a note.
    Note(fn(&Typed<'_>, Text<'_>) -> Option<String>),
    /// It may return an error instead.
    Either(fn(&Typed<'_>, Text<'_>) -> Option<Remark>),
}

use Check::{Either, Note};

impl Check {
    fn look(self, typed: &Typed<'_>, text: Text<'_>) -> Option<Remark> {
        match self {
            Self::Note(look) => look(typed, text).map(Remark::Note),
            Self::Either(look) => look(typed, text),
        }
    }
}

/// All habits in groups. Each group reports its first match.
const HABITS: &[(Place, &[Check])] = &[
    (
        Place::Program,
        &[
            Either(program::nothing),
            Either(program::directive),
            Either(program::split_value),
            Either(program::ids),
            Note(program::make_target),
            Note(program::job_word),
            Either(program::long_dash),
            Note(program::elsewhere),
            Note(program::stray_word),
            Either(program::shell_line),
            Note(program::unread_input),
            Note(program::other_directory),
            Either(program::not_executable),
            Either(program::missing),
            Note(program::all_files),
            Note(option::bare_seconds),
        ],
    ),
    (Place::Program, &[Note(option::env_name)]),
    (Place::Program, &[Note(option::bare_memory)]),
    (Place::Program, &[Note(option::thousands)]),
    (Place::Argument, &[Note(option::behind_program)]),
    (Place::Argument, &[Note(command::parallel_input)]),
    (Place::Argument, &[Either(command::braces_of)]),
    (Place::Argument, &[Note(command::path_placeholder)]),
    (
        Place::Argument,
        &[Note(command::operator), Note(command::background)],
    ),
    (Place::Argument, &[Note(command::pattern)]),
    (Place::Argument, &[Note(command::empty)]),
    (Place::Argument, &[Note(variable::plain)]),
    (
        Place::Argument,
        &[Note(variable::foreign), Note(variable::unknown)],
    ),
    (Place::Argument, &[Note(variable::positional)]),
    (Place::Argument, &[Note(variable::expanded)]),
    (Place::Argument, &[Note(command::behind_line)]),
    (
        Place::Command,
        &[Note(command::nothing_to_print), Note(command::unused_entry)],
    ),
    (Place::Command, &[Note(command::list_value)]),
    (Place::Command, &[Note(command::unused_param)]),
    (Place::Command, &[Note(command::processes)]),
    (Place::Value, &[Note(value::percent_letter)]),
    (Place::Value, &[Either(command::braces_of)]),
    (Place::Value, &[Note(variable::plain)]),
    (Place::Value, &[Note(value::value_placeholder)]),
    (Place::Value, &[Note(value::list_file)]),
    (Place::Value, &[Note(value::odd_value)]),
    (Place::Script, &[Note(script::encoding)]),
    (Place::Script, &[Note(script::late_directive)]),
    (Place::Script, &[Note(script::missing_argument)]),
    (Place::Script, &[Note(command::background)]),
    (
        Place::Script,
        &[Note(variable::foreign), Note(variable::unknown)],
    ),
];

impl<'a> Typed<'a> {
    /// Describes a command with its options.
    pub(crate) fn of_options(
        (verb, front): (Verb, &'a Front),
        options: &'a TaskOptions,
        command: &'a [OsString],
        (params, has_stdin): (Option<&'a Params>, bool),
    ) -> Self {
        let is_array = options.array.as_ref().is_some_and(|ids| ids.len() > 1);
        let has_values =
            params.is_some() || options.each_line.is_some() || options.from_json.is_some();
        // In a script, the id is that of its only task.
        let id = options
            .array
            .as_ref()
            .filter(|ids| ids.len() == 1 && !has_values && front.is_seen);
        let id = id.map(|ids| ("--array", Cow::Owned(ids.to_string())));
        let words: Vec<Cow<'_, str>> = command.iter().map(|word| word.to_string_lossy()).collect();
        let script = Script::of(&words, options.cwd.as_deref().unwrap_or(Path::new("")));
        let lines = script
            .as_ref()
            .filter(|script| script.word == front.program);
        let lines = lines.map_or_else(Vec::new, Script::directives);
        Self {
            verb,
            options: option::effective(&[&front.words, &lines, &front.settings]),
            front: Cow::Borrowed(front),
            source: match params {
                Some(params) => Source::Params(params),
                None if options.each_line.is_some() || options.from_json.is_some() => {
                    Source::Entries
                }
                None if is_array => Source::Ids,
                None => Source::One,
            },
            words,
            values: values_of(options).chain(id).collect(),
            env_names: options
                .env
                .iter()
                .map(|pair| String::from_utf8_lossy(&pair.name))
                .collect(),
            has_stdin,
            cpus: cpus_of(options),
            single_params: options.param.iter().filter_map(single_text).collect(),
            script,
        }
    }

    /// Describes a command of a job file. The caller examines its script, because it knows the
    /// scripts of other tasks.
    pub(crate) fn of_file(source: Source<'a>, template: &'a TaskTemplate) -> Self {
        let output = |(key, spec): (&'static str, &'a StdioSpec)| match spec {
            StdioSpec::File { path, .. } => Some((key, String::from_utf8_lossy(path))),
            StdioSpec::None | StdioSpec::Stream => None,
        };
        let outputs = [("stdout", &template.stdout), ("stderr", &template.stderr)];
        let cwd = ("cwd", String::from_utf8_lossy(&template.cwd));
        let words = template.args.iter();
        let env = template.env.iter();
        let env = env.map(|(name, value)| ("env", pair_of(name, value)));
        let files = &template.files;
        let paths = [("inputs", &files.inputs), ("outputs", &files.outputs)].into_iter();
        let paths = paths.flat_map(|(key, paths)| {
            let texts = paths.iter().map(|path| String::from_utf8_lossy(path));
            texts.map(move |text| (key, text))
        });
        Self {
            verb: Verb::File,
            options: Vec::new(),
            front: Cow::Owned(Front::default()),
            source,
            words: words.map(|arg| String::from_utf8_lossy(arg)).collect(),
            values: outputs
                .into_iter()
                .filter_map(output)
                .chain([cwd])
                .chain(env)
                .chain(paths)
                .collect(),
            env_names: template
                .env
                .iter()
                .map(|(name, _)| String::from_utf8_lossy(name))
                .collect(),
            has_stdin: true,
            cpus: None,
            single_params: Vec::new(),
            script: None,
        }
    }

    /// Returns whether `{}` in the command becomes the entry of a task: `hq run` replaces it like
    /// xargs and parallel, unless the program uses braces itself.
    pub(crate) fn takes_entry(&self) -> bool {
        let is_named = self.words.iter().any(|word| word.contains("{}"));
        self.verb == Verb::Run
            && matches!(self.source, Source::Entries)
            && is_named
            && !reader::has_own_braces(&self.words)
    }

    /// Describes how a task gets its own value.
    fn own_value(&self) -> &'static str {
        match self.source {
            Source::Entries => "$HQ_ENTRY",
            Source::One | Source::Ids | Source::Params(_) => "$HQ_TASK_ID",
        }
    }

    fn texts(&'a self, place: Place) -> Vec<Text<'a>> {
        let of_word = |number: usize| Text {
            text: &self.words[number],
            number,
            option: "",
            reader: reader::of(&self.words, number),
        };
        let of_value = |(option, text): &'a (&'static str, Cow<'a, str>)| Text {
            text,
            number: 0,
            option,
            reader: Reader::Program,
        };
        let count = self.words.len();
        match place {
            Place::Program | Place::Command => (0..count.min(1)).map(of_word).collect(),
            Place::Argument => (1..count).map(of_word).collect(),
            Place::Value => self.values.iter().map(of_value).collect(),
            Place::Script => self.script.iter().map(Script::text).collect(),
        }
    }

    fn said(&'a self) -> impl Iterator<Item = Remark> + 'a {
        HABITS.iter().filter_map(|(place, group)| {
            let texts = self.texts(*place);
            let mut group = group.iter();
            group.find_map(|check| texts.iter().find_map(|text| check.look(self, *text)))
        })
    }
}

/// Returns notes on a command that may not do what the user intended.
///
/// # Errors
///
/// Returns an error if nothing could run.
pub(crate) fn look<'a>(typed: &'a Typed<'a>) -> CliResult<Vec<Box<str>>> {
    let mut notes: Vec<Box<str>> = Vec::new();
    for said in typed.said() {
        match said {
            Remark::Refusal(text, help) => return Err(CliError::new(text).with_help(help)),
            Remark::Note(mut note) => {
                note.truncate(note.floor_char_boundary(NOTE_LEN_MAX));
                let note = note.into_boxed_str();
                if !notes.contains(&note) {
                    notes.push(note);
                }
            }
        }
    }
    notes.truncate(NOTES_MAX);
    Ok(notes)
}

/// Returns the number of cpus requested per task, if it is a number.
fn cpus_of(options: &TaskOptions) -> Option<f64> {
    let has_more = options.nodes.is_some_and(|count| count > 0)
        || options.resource.iter().any(|asked| asked.name() == "cpus");
    match options.cpus {
        _ if has_more => None,
        None => Some(1.0),
        Some(asked) if asked.policy == Policy::All => None,
        Some(asked) => asked.amount.to_string().parse().ok(),
    }
}

/// Returns the values of options that tasks receive, and of options about tasks.
fn values_of(options: &TaskOptions) -> impl Iterator<Item = (&'static str, Cow<'_, str>)> {
    fn lossy(path: &Path) -> Cow<'_, str> {
        path.as_os_str().to_string_lossy()
    }
    fn stdio(arg: &StdioArg) -> Option<Cow<'_, str>> {
        match arg {
            StdioArg::File { path, .. } => path.as_deref().map(String::from_utf8_lossy),
            StdioArg::None => None,
        }
    }
    let paths = [
        ("--cwd", options.cwd.as_deref().map(lossy)),
        ("--stdout", options.stdout.as_ref().and_then(stdio)),
        ("--stderr", options.stderr.as_ref().and_then(stdio)),
        ("--stream", options.stream.as_deref().map(lossy)),
        ("--name", options.name.as_deref().map(Cow::Borrowed)),
        ("--each-line", options.each_line.as_deref().map(lossy)),
    ];
    let paths = paths
        .into_iter()
        .filter_map(|(option, text)| Some((option, text?)));
    let inputs = options.inputs.iter().map(|path| ("--inputs", lossy(path)));
    let outputs = options
        .outputs
        .iter()
        .map(|path| ("--outputs", lossy(path)));
    let given = options
        .param
        .iter()
        .filter_map(|param| match &param.source {
            ParamSource::Given(items) => Some(items),
            ParamSource::Lines(_) => None,
        });
    let given = given
        .flatten()
        .take(VALUES_MAX)
        .filter_map(|item| match item {
            ParamItem::Text(text) => Some(("--param", String::from_utf8_lossy(text))),
            ParamItem::Range(_) => None,
        });
    let resources = options.resource.iter();
    let resources = resources.map(|asked| ("--resource", Cow::Borrowed(asked.name())));
    let env = options.env.iter();
    let env = env.map(|pair| ("--env", pair_of(&pair.name, &pair.value)));
    paths
        .chain(inputs)
        .chain(outputs)
        .chain(env)
        .chain(given)
        .chain(resources)
}

/// Returns a variable in the form that `--env` accepts.
fn pair_of(name: &[u8], value: &[u8]) -> Cow<'static, str> {
    let (name, value) = (
        String::from_utf8_lossy(name),
        String::from_utf8_lossy(value),
    );
    Cow::Owned(format!("{name}={value}"))
}

/// Returns the name and value of a parameter with a single text.
fn single_text(param: &ParamArg) -> Option<(&str, Cow<'_, str>)> {
    let ParamSource::Given(items) = &param.source else {
        return None;
    };
    match &items[..] {
        [ParamItem::Text(text)] => Some((&param.name, String::from_utf8_lossy(text))),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
