//! Placeholders `%{NAME}` in paths. A `%` without `{` and a `%{` without `}` are literal.

use crate::error::{CliError, CliResult};
use crate::text::lossy;

/// A part of a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Piece<'a> {
    /// Literal bytes.
    Text(&'a [u8]),
    /// The name inside `%{…}`.
    Name(&'a [u8]),
}

/// The use of a path, which determines the valid placeholders.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PathRole {
    /// The working directory of the tasks.
    Cwd,
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
    /// The stream directory.
    Stream,
    /// A file that the task reads.
    Input,
    /// A file that the task writes.
    Output,
}

impl PathRole {
    const fn label(self) -> &'static str {
        match self {
            Self::Cwd => "working directory path",
            Self::Stdout => "stdout path",
            Self::Stderr => "stderr path",
            Self::Stream => "log path",
            Self::Input => "input path",
            Self::Output => "output path",
        }
    }

    fn knows(self, name: &[u8]) -> bool {
        match name {
            b"JOB_ID" | b"SUBMIT_DIR" | b"SERVER_UID" => true,
            b"TASK_ID" | b"INSTANCE_ID" => self != Self::Stream,
            b"CWD" => !matches!(self, Self::Cwd | Self::Stream),
            _ => false,
        }
    }
}

/// Splits a path into literal text and placeholders.
pub(crate) fn pieces(path: &[u8]) -> Vec<Piece<'_>> {
    let mut found = Vec::new();
    let mut text_start = 0;
    let mut at = 0;
    while let Some(open) = find(&path[at..], b"%{") {
        let name_start = at + open + 2;
        let Some(length) = path[name_start..].iter().position(|b| *b == b'}') else {
            break;
        };
        if text_start < at + open {
            found.push(Piece::Text(&path[text_start..at + open]));
        }
        found.push(Piece::Name(&path[name_start..name_start + length]));
        at = name_start + length + 1;
        text_start = at;
    }
    if text_start < path.len() {
        found.push(Piece::Text(&path[text_start..]));
    }
    found
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack
        .windows(needle.len())
        .position(|window| window == needle)
}

/// Returns whether `%{NAME}` occurs.
pub(crate) fn contains(path: &[u8], name: &str) -> bool {
    pieces(path).contains(&Piece::Name(name.as_bytes()))
}

/// Replaces the placeholders that have a value.
pub(crate) fn replace(path: &[u8], values: &[(&str, &[u8])]) -> Vec<u8> {
    let mut replaced = Vec::with_capacity(path.len());
    for piece in pieces(path) {
        match piece {
            Piece::Text(text) => replaced.extend_from_slice(text),
            Piece::Name(name) => match values.iter().find(|(key, _)| key.as_bytes() == name) {
                Some((_, value)) => replaced.extend_from_slice(value),
                None => {
                    replaced.extend_from_slice(b"%{");
                    replaced.extend_from_slice(name);
                    replaced.push(b'}');
                }
            },
        }
    }
    replaced
}

/// All placeholders.
const KNOWN: [&str; 6] = [
    "JOB_ID",
    "TASK_ID",
    "INSTANCE_ID",
    "SUBMIT_DIR",
    "SERVER_UID",
    "CWD",
];

/// Returns the placeholder with this name, ignoring case and hyphens.
pub(crate) fn guess(name: &str) -> Option<&'static str> {
    let plain = |name: &str| name.replace(['_', '-', ' '], "").to_ascii_uppercase();
    let name = plain(name);
    let name = name.strip_prefix("HQ").unwrap_or(&name);
    KNOWN.into_iter().find(|known| plain(known) == name)
}

/// Returns a misspelled placeholder and its correction. With a misspelled one, all tasks would use
/// the same file.
pub(crate) fn misspelled(path: &[u8]) -> Option<(String, &'static str)> {
    pieces(path).into_iter().find_map(|piece| {
        let Piece::Name(name) = piece else {
            return None;
        };
        let name = lossy(name);
        let meant = guess(&name).filter(|known| *known != name)?;
        Some((name, meant))
    })
}

/// Rejects a misspelled placeholder, because all tasks would write to the same file.
pub(crate) fn refuse_misspelled(path: &[u8], role: PathRole) -> CliResult<()> {
    let Some((name, meant)) = misspelled(path) else {
        return Ok(());
    };
    let text = unknown_warning(path, role);
    let text = text.unwrap_or_else(|| format!("Found unknown placeholder `{name}`"));
    Err(CliError::new(text).with_help(format!(
        "write `%{{{meant}}}` instead of `%{{{name}}}`, see `hq doc output`"
    )))
}

/// Rejects misspelled placeholders, and warns about other unknown ones.
pub(crate) fn check(path: &[u8], role: PathRole, warnings: &mut Vec<String>) -> CliResult<()> {
    refuse_misspelled(path, role)?;
    warnings.extend(unknown_warning(path, role));
    Ok(())
}

/// Returns a warning about placeholders that have no meaning in this path.
pub(crate) fn unknown_warning(path: &[u8], role: PathRole) -> Option<String> {
    let mut names: Vec<String> = Vec::new();
    for piece in pieces(path) {
        if let Piece::Name(name) = piece
            && !role.knows(name)
        {
            let name = lossy(name);
            if !names.contains(&name) {
                names.push(name);
            }
        }
    }
    let plural = match names.len() {
        0 => return None,
        1 => "",
        _ => "s",
    };
    Some(format!(
        "Found unknown placeholder{plural} `{}` in {}",
        names.join(", "),
        role.label()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_known_names_only() {
        let values: &[(&str, &[u8])] = &[("A", b"1"), ("B", b"%{A}")];
        for (path, expected) in [
            ("%{A}/x", "1/x"),
            ("x/%{C}/%{A}%{A}", "x/%{C}/11"),
            ("%{B}", "%{A}"),
            ("100%/%{A", "100%/%{A"),
            ("%%{A}", "%1"),
            ("", ""),
        ] {
            let replaced = replace(path.as_bytes(), values);
            assert_eq!(String::from_utf8_lossy(&replaced), expected, "{path}");
        }
    }

    #[test]
    fn names_what_is_unknown() {
        for (path, role, expected) in [
            ("%{TASK_ID}/%{CWD}", PathRole::Stdout, None),
            (
                "%{FOO}",
                PathRole::Stderr,
                Some("Found unknown placeholder `FOO` in stderr path"),
            ),
            (
                "%{FOO}%{BAR}%{FOO}",
                PathRole::Cwd,
                Some("Found unknown placeholders `FOO, BAR` in working directory path"),
            ),
            (
                "%{TASK_ID}",
                PathRole::Stream,
                Some("Found unknown placeholder `TASK_ID` in log path"),
            ),
        ] {
            assert_eq!(unknown_warning(path.as_bytes(), role).as_deref(), expected);
        }
    }
}
