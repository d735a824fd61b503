//! Errors of job files: a sentence with key, line and column, and a drawing for human-readable
//! output.

use std::ops::Range;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

use super::advice::{self, Place};
use super::format::{Format, Source};
use super::graph::TaskGraphError;
use super::parts::JobFileError;
use crate::error::CliError;

/// Returns the error of a rule that concerns the whole file.
pub(super) fn plain(message: &str) -> CliError {
    CliError::new(format!("Deserialization error: {message}"))
}

/// Returns the error of a file with invalid syntax or an invalid structure.
pub(super) fn misread(source: Source<'_>, error: JobFileError) -> CliError {
    let Source {
        path,
        content,
        format,
    } = source;
    if let Some((what, help)) = advice::for_other_kind(path) {
        let text = format!("{} is {what}, not a job file", path.display());
        return CliError::new(text).with_help(help);
    }
    if let Some(instead) = advice::for_bare_list(content, format) {
        let file = path.display();
        return plain(&format!(
            "expected keys such as `task`, found a list\n{file}, line 1"
        ))
        .with_help(instead.to_owned());
    }
    let message = &advice::plain_words(error.message.trim_end());
    let Some(span) = error.span.map(|span| clamp(content, span)) else {
        return plain(message);
    };
    let (line, column) = position(content, span.start);
    let value = value_at(content, &span, format, &error.message);
    let key = match format.assignment() {
        Some(sign) => key_at(content, span.start, sign),
        None => None,
    };
    let begins_table = |key: &String| {
        let rest = value.strip_prefix(key.as_str());
        format == Format::Yaml
            && !message.contains("unknown field")
            && rest.is_some_and(|rest| rest.starts_with(':'))
    };
    let (key, value) = if key.as_ref().is_some_and(begins_table) {
        let above = key_above(content, span.start);
        let is_list = above.as_deref() == Some("task");
        (above, if is_list { value } else { "{" })
    } else {
        (key, value)
    };
    let shown = key
        .as_ref()
        .map_or_else(String::new, |key| format!(" (key `{key}`)"));
    let file = path.display().to_string();
    let key = match format {
        Format::Json => json_key(content, span.start, value),
        Format::Toml | Format::Yaml => key.as_deref(),
    };
    let place = Place { key, value, format };
    plain(&format!(
        "{message}\n{file}, line {line}, column {column}{shown}"
    ))
    .with_drawing(draw(&file, content, span))
    .with_help(advice::help(message, place))
}

/// Returns the text of the rejected value, from the file or the message.
fn value_at<'a>(
    content: &'a str,
    span: &Range<usize>,
    format: Format,
    message: &'a str,
) -> &'a str {
    match format {
        Format::Toml => &content[span.clone()],
        Format::Yaml => {
            let line = content[span.start..].lines().next().unwrap_or_default();
            let line = line.split_once(" #").map_or(line, |(value, _)| value);
            // In a list or table on one line, only the item is shown.
            if line.starts_with(['[', '{', '"', '\'']) {
                line.trim_end_matches(['}', ','])
            } else {
                line.split([',', '}', ']']).next().unwrap_or_default()
            }
        }
        // The reported position is after the value.
        Format::Json => {
            let found = message
                .rsplit_once(", expected ")
                .map_or("", |(found, _)| found);
            let found = found
                .trim_start_matches("invalid type: ")
                .trim_start_matches("invalid value: ");
            match found.split_once(' ') {
                Some(("string", text)) => text,
                Some((_, other)) => other.trim_start_matches("point ").trim_matches('`'),
                None if found == "sequence" => "[",
                None if found == "map" => "{",
                None => "",
            }
        }
    }
}

/// Returns the key before a value that ends near `at`.
fn json_key<'a>(content: &'a str, at: usize, value: &str) -> Option<&'a str> {
    let near = content.len().min(at + 1);
    let near = (near..=content.len()).find(|at| content.is_char_boundary(*at))?;
    let begin = match value {
        "[" | "{" => content[..near].rfind(value)?,
        "" => return None,
        value => content[..near].rfind(value)?,
    };
    let before = content[..begin].trim_end().strip_suffix(':')?.trim_end();
    before.strip_suffix('"')?.rsplit('"').next()
}

/// Returns the error of tasks that cannot be sorted. `span` is the wrong part, if it was found.
pub(super) fn mistake(
    Source { path, content, .. }: Source<'_>,
    mistake: &TaskGraphError,
    span: Option<Range<usize>>,
) -> CliError {
    let (message, reason) = (mistake.message(), mistake.reason());
    let error = match span.map(|span| clamp(content, span)) {
        None => CliError::refused(&format!("{message}: {reason}")),
        Some(span) => {
            let (line, column) = position(content, span.start);
            let file = path.display().to_string();
            CliError::refused(&format!(
                "{message}\n{file}, line {line}, column {column}: {reason}"
            ))
            .with_drawing(draw(&file, content, span))
        }
    };
    match mistake.help() {
        Some(help) => error.with_help(help.to_owned()),
        None => error,
    }
}

/// Describes the first bytes at a position that are not UTF-8.
pub(super) fn no_text(bytes: &[u8], at: usize) -> String {
    let (before, rest) = bytes.split_at(at.min(bytes.len()));
    let (line, column) = position(&String::from_utf8_lossy(before), before.len());
    let found = rest.first().copied().unwrap_or_default();
    format!("expected UTF-8, found the byte 0x{found:02x} in line {line}, column {column}")
}

/// Draws the position in the file. The error text precedes the drawing.
fn draw(file: &str, content: &str, span: Range<usize>) -> String {
    let report = &[Level::ERROR.primary_title("").element(
        Snippet::source(content)
            .path(file)
            .annotation(AnnotationKind::Primary.span(span).label("here")),
    )];
    let drawing = Renderer::plain()
        .decor_style(DecorStyle::Ascii)
        .render(report)
        .to_string();
    // The first line of the drawing is the title.
    drawing
        .split_once('\n')
        .map_or_else(String::new, |(_, rest)| rest.to_owned())
}

/// Moves a span to character boundaries inside the text.
fn clamp(content: &str, span: Range<usize>) -> Range<usize> {
    let boundary = |mut at: usize| {
        at = at.min(content.len());
        while !content.is_char_boundary(at) {
            at -= 1;
        }
        at
    };
    let start = boundary(span.start);
    start..boundary(span.end).max(start)
}

/// Returns the line and the column, both starting from 1. Columns count characters.
fn position(content: &str, at: usize) -> (usize, usize) {
    let before = &content[..at];
    let line = before.matches('\n').count() + 1;
    let column = before
        .rsplit('\n')
        .next()
        .unwrap_or_default()
        .chars()
        .count()
        + 1;
    (line, column)
}

/// Returns the key of the value at or around `at`, which is the text before the last `sign` of the
/// line.
fn key_at(content: &str, at: usize, sign: char) -> Option<String> {
    let line_start = content[..at].rfind('\n').map_or(0, |end| end + 1);
    let line = content[line_start..].lines().next()?;
    let before = content[line_start..at].trim_end();
    let key = match before.strip_suffix(sign) {
        Some(key) => key,
        None => line.split_once(sign)?.0,
    };
    let key = key
        .trim_end()
        .rsplit(['{', ',', sign])
        .next()?
        .trim()
        // The line is an item of a list in YAML.
        .trim_start_matches("- ")
        .trim_matches(['"', '\'']);
    (!key.is_empty() && !key.contains('[')).then(|| key.to_owned())
}

/// Returns the key of the YAML table that starts at `at`.
fn key_above(content: &str, at: usize) -> Option<String> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let (above, line) = content[..at].rsplit_once('\n')?;
    let mut lines = above.lines().rev();
    let header = lines.find(|above| !above.trim().is_empty() && indent(above) < line.len())?;
    let key = header.trim().strip_suffix(':')?;
    Some(key.trim_start_matches("- ").to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_found_before_the_value() {
        let text = "name = \"x\"\n[[task]]\nenv = { A = 1, \"B\" = 2 }\n";
        let at = |needle: &str| text.find(needle).expect("present");
        assert_eq!(key_at(text, at("\"x\""), '=').as_deref(), Some("name"));
        assert_eq!(key_at(text, at("1,"), '=').as_deref(), Some("A"));
        assert_eq!(key_at(text, at("2 }"), '=').as_deref(), Some("B"));
        assert_eq!(key_at(text, at("env"), '=').as_deref(), Some("env"));
        assert_eq!(key_at(text, at("[[task"), '='), None);
        assert_eq!(position(text, at("env")), (3, 1));
    }
}
