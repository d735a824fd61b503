//! Habits of other tools in what hq takes as it is written: nothing fails at once, and the result is not what was meant.
//!
//! A habit is a row of [`HABITS`]: a place, and what recognises it there and says what to write instead. Most are notes, which
//! change nothing; where nothing could run at all the submit is refused.

use std::borrow::Cow;
use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use hq_core::params::Params;
use hq_core::template::TaskTemplate;

use crate::args::submit::TaskOptions;
use crate::error::{CliError, CliResult};
use crate::parse::param::{ParamItem, ParamSource};

mod command;
mod option;
mod program;
mod reader;
mod variable;

pub(crate) use option::given_options;
use reader::Reader;

/// Most notes of a submit.
pub(crate) const NOTES_MAX: usize = 8;
/// Values of parameters that are looked at.
const VALUES_MAX: usize = 100;
/// Longest one, in bytes.
const NOTE_LEN_MAX: usize = 1_000;

/// What submits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verb {
    /// `hq run`.
    Run,
    /// `hq submit`; `is_fenced` = `--` stands in front of the program.
    Submit,
    /// A job file.
    File,
}

/// Where the values of the tasks come from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    /// There is one task.
    One,
    /// Ids only.
    Ids,
    /// `--each-line`, `--from-json`, or the entries of a job file.
    Entries,
    /// `--param`.
    Params(&'a Params),
}

/// What was typed.
#[derive(Debug)]
pub(crate) struct Typed<'a> {
    pub(crate) verb: Verb,
    /// `--` stands in front of the program: options behind it are meant for the program.
    pub(crate) is_fenced: bool,
    pub(crate) source: Source<'a>,
    /// Program and arguments.
    pub(crate) words: Vec<Cow<'a, str>>,
    /// Options and their values: paths, variables, the name.
    pub(crate) values: Vec<(&'static str, Cow<'a, str>)>,
    /// Names of `--env`.
    pub(crate) env_names: Vec<Cow<'a, str>>,
    pub(crate) has_stdin: bool,
}

/// Where a habit is looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// The first word of the command.
    Program,
    /// The other words.
    Argument,
    /// All of them together.
    Command,
    /// Values of options that tasks get.
    Value,
}

/// One text that is looked at.
#[derive(Clone, Copy, Debug)]
struct Text<'a> {
    text: &'a str,
    /// Its number among the words of the command.
    number: usize,
    /// The option whose value it is.
    option: &'a str,
    /// Who reads it.
    reader: Reader,
}

/// What is said about a habit.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Said {
    Note(String),
    /// Nothing could run.
    Refusal(String, String),
}

type Look = fn(&Typed<'_>, Text<'_>) -> Option<Said>;

/// All habits; of each the first place where it is found is told.
const HABITS: &[(Place, Look)] = &[
    (Place::Program, program::nothing),
    (Place::Program, program::directive),
    (Place::Program, program::ids),
    (Place::Program, program::stray_word),
    (Place::Program, program::shell_line),
    (Place::Program, program::reads_input),
    (Place::Program, program::missing),
    (Place::Program, program::all_files),
    (Place::Argument, option::behind_program),
    (Place::Argument, command::parallel_input),
    (Place::Argument, command::braces_of),
    (Place::Argument, command::path_placeholder),
    (Place::Argument, command::operator),
    (Place::Argument, command::pattern),
    (Place::Argument, command::empty),
    (Place::Argument, variable::plain),
    (Place::Argument, variable::foreign),
    (Place::Argument, variable::unknown),
    (Place::Argument, variable::positional),
    (Place::Argument, variable::expanded),
    (Place::Command, command::unused_entry),
    (Place::Value, command::percent_letter),
    (Place::Value, command::braces_of),
    (Place::Value, variable::plain),
    (Place::Value, command::value_placeholder),
    (Place::Value, command::list_file),
    (Place::Value, command::odd_value),
];

impl<'a> Typed<'a> {
    /// A command with its options.
    pub(crate) fn of_options(
        (verb, is_fenced): (Verb, bool),
        options: &'a TaskOptions,
        command: &'a [OsString],
        (params, has_stdin): (Option<&'a Params>, bool),
    ) -> Self {
        let lossy = |path: &'a Path| path.as_os_str().to_string_lossy();
        let stdio = |arg: &'a crate::parse::value::StdioArg| match arg {
            crate::parse::value::StdioArg::File {
                path: Some(path), ..
            } => Some(String::from_utf8_lossy(path)),
            crate::parse::value::StdioArg::File { path: None, .. }
            | crate::parse::value::StdioArg::None => None,
        };
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
        let env = env.map(|pair| ("--env", String::from_utf8_lossy(&pair.value)));
        let is_array = options.array.as_ref().is_some_and(|ids| ids.len() > 1);
        Self {
            verb,
            is_fenced,
            source: match params {
                Some(params) => Source::Params(params),
                None if options.each_line.is_some() || options.from_json.is_some() => {
                    Source::Entries
                }
                None if is_array => Source::Ids,
                None => Source::One,
            },
            words: command.iter().map(|word| word.to_string_lossy()).collect(),
            values: paths
                .chain(inputs)
                .chain(outputs)
                .chain(env)
                .chain(given)
                .chain(resources)
                .collect(),
            env_names: options
                .env
                .iter()
                .map(|pair| String::from_utf8_lossy(&pair.name))
                .collect(),
            has_stdin,
        }
    }

    /// A command of a job file.
    pub(crate) fn of_file(source: Source<'a>, template: &'a TaskTemplate) -> Self {
        Self {
            verb: Verb::File,
            is_fenced: true,
            source,
            words: template
                .args
                .iter()
                .map(|arg| String::from_utf8_lossy(arg))
                .collect(),
            values: Vec::new(),
            env_names: template
                .env
                .iter()
                .map(|(name, _)| String::from_utf8_lossy(name))
                .collect(),
            has_stdin: true,
        }
    }

    /// Whether `{}` in the command becomes the entry of a task: `hq run` does as xargs and parallel do, unless the program has
    /// braces of its own.
    pub(crate) fn takes_entry(&self) -> bool {
        let is_named = self.words.iter().any(|word| word.contains("{}"));
        self.verb == Verb::Run
            && matches!(self.source, Source::Entries)
            && is_named
            && !reader::has_own_braces(&self.words)
    }

    /// How a task learns what is its own.
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
        }
    }

    fn said(&'a self) -> impl Iterator<Item = Said> + 'a {
        HABITS.iter().filter_map(|(place, look)| {
            let texts = self.texts(*place);
            texts.into_iter().find_map(|text| look(self, text))
        })
    }
}

/// Sentences about a command that may not do what was meant.
///
/// # Errors
///
/// Nothing could run.
pub(crate) fn look<'a>(typed: &'a Typed<'a>) -> CliResult<Vec<Box<str>>> {
    let mut notes: Vec<Box<str>> = Vec::new();
    for said in typed.said() {
        match said {
            Said::Refusal(text, help) => return Err(CliError::new(text).with_help(help)),
            Said::Note(mut note) => {
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

/// Whether `--` stands in front of a command, which is the end of the command line of this process.
pub(crate) fn is_fenced(command: &[OsString]) -> bool {
    let words: Vec<OsString> = std::env::args_os().collect();
    let end = words.len().checked_sub(command.len());
    // A command that was not typed here is one by itself.
    end.filter(|at| *at > 0 && words[*at..] == *command)
        .is_none_or(|at| words[at - 1].as_bytes() == b"--")
}

#[cfg(test)]
mod tests;
