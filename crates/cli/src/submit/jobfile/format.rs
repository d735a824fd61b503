//! The formats of job files.

use std::ops::Range;
use std::path::Path;

use super::graph::Mistake;
use super::parts::Misread;
use super::schema::FileTable;
use super::{parts, place};

/// How a job file is written. All formats have the same keys and values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    /// The usual one.
    Toml,
    /// What programs write.
    Json,
}

impl Format {
    /// That of a file with this name.
    pub(super) fn of(path: &Path) -> Self {
        match path.extension().and_then(|end| end.to_str()) {
            Some("json") => Self::Json,
            Some(_) | None => Self::Toml,
        }
    }

    /// What stands between a key and its value, if a mistake in the value is told with the place where that begins.
    pub(super) const fn assignment(self) -> Option<char> {
        match self {
            Self::Toml => Some('='),
            Self::Json => None,
        }
    }
}

/// A job file that was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    /// For messages.
    pub(crate) path: &'a Path,
    pub(crate) content: &'a str,
    pub(crate) format: Format,
}

impl Source<'_> {
    pub(super) fn read(self) -> Result<FileTable, Misread> {
        match self.format {
            Format::Toml => parts::read(self.content),
            Format::Json => serde_json::from_str(self.content)
                .map_err(|error| misread_json(self.content, &error)),
        }
    }

    /// Which bytes a mistake is about; `count` = tasks in the file.
    pub(super) fn place_of(self, count: usize, mistake: &Mistake) -> Option<Range<usize>> {
        match self.format {
            Format::Toml => place::of(self.content, count, mistake),
            // The message names the tasks.
            Format::Json => None,
        }
    }
}

fn misread_json(content: &str, error: &serde_json::Error) -> Misread {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    Misread {
        message: text.strip_suffix(&place).unwrap_or(&text).to_owned(),
        span: (error.line() > 0).then(|| {
            let at = offset(content, error.line(), error.column());
            at..at
        }),
    }
}

/// Where a line and a column of bytes are, both from 1.
fn offset(content: &str, line: usize, column: usize) -> usize {
    let before = content.split_inclusive('\n').take(line.saturating_sub(1));
    let start: usize = before.map(str::len).sum();
    (start + column.saturating_sub(1)).min(content.len())
}
