//! The words before a command on this process's command line.

use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::os::fd::AsFd as _;
use std::path::Path;

use super::Verb;
use super::reader::is_here;
use crate::error::{CliError, CliResult};
use crate::text::quoted;

/// The words before a command, and the source of standard input.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Front {
    /// The words, without a final `--`.
    pub(super) words: Vec<String>,
    /// The options from the user's file.
    pub(super) settings: Vec<String>,
    /// Whether `--` precedes the program. If so, options after it belong to the program.
    pub(super) is_fenced: bool,
    /// The program as typed. Its interpreter may be inserted before it later.
    pub(super) program: String,
    /// Whether standard input is a pipe or a file.
    pub(super) is_piped: bool,
    /// Whether a user sees the message.
    pub(super) is_seen: bool,
}

impl Default for Front {
    /// Creates an empty value, for a command that was not typed here.
    fn default() -> Self {
        Self {
            words: Vec::new(),
            settings: Vec::new(),
            is_fenced: true,
            program: String::new(),
            is_piped: false,
            is_seen: false,
        }
    }
}

impl Front {
    /// Returns the words before the command, which is the end of the command line.
    pub(crate) fn of(command: &[OsString]) -> Self {
        let words: Vec<OsString> = std::env::args_os().collect();
        match words.len().checked_sub(command.len()) {
            Some(at) if at > 0 && words[at..] == *command => Self {
                is_seen: std::io::stderr().is_terminal(),
                ..Self::split(&words[..at], &words[at..], is_piped())
            },
            Some(_) | None => Self::default(),
        }
    }

    /// Adds the options from the user's file.
    pub(crate) fn with_settings(self, settings: Vec<String>) -> Self {
        Self { settings, ..self }
    }

    pub(super) fn split(front: &[OsString], command: &[OsString], is_piped: bool) -> Self {
        let text = |word: &OsString| word.to_string_lossy().into_owned();
        let mut words: Vec<String> = front.iter().map(text).collect();
        let is_fenced = words.pop_if(|word| word == "--").is_some();
        Self {
            words,
            settings: Vec::new(),
            is_fenced,
            program: command.first().map(text).unwrap_or_default(),
            is_piped,
            is_seen: true,
        }
    }

    /// Rejects input such as `hq submit --stdin in.txt cat`.
    pub(crate) fn refuse_input_file(&self, verb: Verb) -> CliResult<()> {
        let file = &self.program;
        let is_value = matches!(self.last_option(), Some(("--stdin", None))) && !self.is_fenced;
        if !is_value || is_here(file) || !Path::new(file).is_file() {
            return Ok(());
        }
        let (verb, file) = (verb.word(), quoted(file));
        let text =
            format!("`{file}` is taken as the program, and is none: `--stdin` takes no value");
        Err(CliError::new(text).with_help(format!(
            "`hq {verb} --stdin -- PROGRAM < {file}` gives it to each task"
        )))
    }

    /// Returns whether a user would not see that a pipe or a file was empty.
    pub(crate) const fn is_input_unseen(&self) -> bool {
        self.is_piped && self.is_seen
    }

    /// Returns the last option in front of the command, and its value.
    pub(super) fn last_option(&self) -> Option<(&str, Option<&str>)> {
        let is_option = |word: &&String| word.starts_with('-') && word.len() > 1;
        match &self.words[..] {
            [.., option] if is_option(&option) => match option.split_once('=') {
                Some((option, value)) => Some((option, Some(value))),
                None => Some((option, None)),
            },
            [.., option, value] if is_option(&option) => Some((option, Some(value))),
            _ => None,
        }
    }
}

/// Returns whether standard input may contain data, without reading it.
fn is_piped() -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        return false;
    }
    let file = stdin.as_fd().try_clone_to_owned().map(std::fs::File::from);
    let found = file.and_then(|file| file.metadata());
    found.is_ok_and(|found| found.file_type().is_fifo() || found.is_file())
}
