//! The formats of job files.

use std::ops::Range;
use std::path::Path;

use super::file::FileTable;
use super::graph::TaskGraphError;
use super::parts::JobFileError;
use super::yaml::{offset, yaml, yaml_offset};
use super::{parts, place};

/// The format of a job file. All formats have the same keys and values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// The usual format.
    Toml,
    /// The format for programs.
    Json,
    /// The format for users who know it from other programs.
    Yaml,
}

impl Format {
    /// Returns the format of a file with this name.
    pub(super) fn of(path: &Path) -> Self {
        match path.extension().and_then(|end| end.to_str()) {
            Some("json") => Self::Json,
            Some("yaml" | "yml") => Self::Yaml,
            Some(_) | None => Self::Toml,
        }
    }

    /// Returns the format of a text without a name.
    pub(super) fn guess(content: &str) -> Self {
        let mut lines = content.lines().map(str::trim);
        let first = lines.find(|line| !line.is_empty() && !line.starts_with('#'));
        let first = first.unwrap_or_default();
        let is_pair = |line: &str| {
            line.find(':')
                .is_some_and(|at| !line[..at].contains(['=', '[', '"']))
        };
        if first.starts_with('{') {
            Self::Json
        } else if first == "---" || is_pair(first) {
            Self::Yaml
        } else {
            Self::Toml
        }
    }

    /// Returns whether a file with this name can only be a job file.
    pub(crate) fn is_certain(path: &Path) -> bool {
        let known = ["toml", "json", "yaml", "yml"];
        path.extension()
            .is_some_and(|end| known.iter().any(|known| end == *known))
    }

    /// Returns the sign between key and value, if errors in a value are reported at the start of
    /// the value.
    pub(super) const fn assignment(self) -> Option<char> {
        match self {
            Self::Toml => Some('='),
            Self::Yaml => Some(':'),
            Self::Json => None,
        }
    }

    /// Returns a key with its value, as written in a file.
    pub(super) fn pair(self, key: &str, value: &str) -> String {
        match self {
            Self::Toml => format!("{key} = {value}"),
            Self::Yaml => format!("{key}: {value}"),
            Self::Json => format!("{key:?}: {value}"),
        }
    }

    /// Returns a table with one key.
    pub(super) fn table(self, key: &str, value: &str) -> String {
        format!("{{ {} }}", self.pair(key, value))
    }
}

/// A job file that has been read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    /// The path, for messages.
    pub(crate) path: &'a Path,
    pub(crate) content: &'a str,
    pub(crate) format: Format,
}

impl Source<'_> {
    pub(super) fn read(self) -> Result<FileTable, JobFileError> {
        match self.format {
            Format::Toml => parts::read(self.content),
            Format::Json => serde_json::from_str(self.content)
                .map_err(|error| misread_json(self.content, &error)),
            Format::Yaml => yaml(self.content).map_err(|error| misread_yaml(self.content, &error)),
        }
    }

    /// Returns the bytes of the file that are affected by a mistake. `count` is the number of tasks
    /// in the file.
    pub(super) fn place_of(self, count: usize, mistake: &TaskGraphError) -> Option<Range<usize>> {
        match self.format {
            Format::Toml => place::of(mistake, |task| place::toml_task(self.content, count, task)),
            Format::Yaml => {
                let tasks = place::yaml_tasks(self.content)?;
                place::of(mistake, |task| tasks.into_iter().nth(task))
            }
            // The message names the tasks.
            Format::Json => None,
        }
    }
}

fn misread_yaml(content: &str, error: &serde_saphyr::Error) -> JobFileError {
    let text = error.to_string();
    let Some(place) = error.location() else {
        return JobFileError {
            message: text,
            span: None,
        };
    };
    let suffix = format!(" at line {}, column {}", place.line(), place.column());
    let at = yaml_offset(content, place);
    JobFileError {
        message: quoted_names(text.strip_suffix(&suffix).unwrap_or(&text)),
        span: Some(at..at),
    }
}

/// Quotes the names in an error of the YAML parser, as the other parsers do.
fn quoted_names(message: &str) -> String {
    match message.split_once(", expected one of ") {
        Some((found, known)) if !known.contains('`') => {
            let known: Vec<String> = known.split(", ").map(|name| format!("`{name}`")).collect();
            format!("{found}, expected one of {}", known.join(", "))
        }
        Some(_) | None => message.to_owned(),
    }
}

fn misread_json(content: &str, error: &serde_json::Error) -> JobFileError {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    JobFileError {
        message: text.strip_suffix(&place).unwrap_or(&text).to_owned(),
        span: (error.line() > 0).then(|| {
            let at = offset(content, error.line(), error.column());
            at..at
        }),
    }
}
