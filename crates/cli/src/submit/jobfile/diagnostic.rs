//! Errors of job files: one sentence with key, line and column, and a drawing for people.

use std::ops::Range;

use annotate_snippets::renderer::DecorStyle;
use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

use super::format::Source;
use super::graph::Mistake;
use super::parts::Misread;
use crate::error::CliError;
use crate::text::closest;

/// A file that breaks a rule which has no place of its own.
pub(super) fn plain(message: &str) -> CliError {
    CliError::new(format!("Deserialization error: {message}"))
}

/// A file that is not of its format, or not what a job file looks like.
pub(super) fn misread(source: Source<'_>, error: Misread) -> CliError {
    let Source {
        path,
        content,
        format,
    } = source;
    let message = error.message.trim_end();
    let Some(span) = error.span.map(|span| clamp(content, span)) else {
        return plain(message);
    };
    let (line, column) = position(content, span.start);
    let key = match format.assignment() {
        Some(sign) => key_at(content, span.start, sign),
        None => None,
    };
    let key = key.map_or_else(String::new, |key| format!(" (key `{key}`)"));
    let file = path.display().to_string();
    plain(&format!(
        "{message}\n{file}, line {line}, column {column}{key}"
    ))
    .with_drawing(draw(&file, content, span))
    .with_help(help(message))
}

/// Advice on what to write instead.
fn help(message: &str) -> String {
    const PAGE: &str = "`hq doc dependencies` describes job files";
    let quoted = |text: &str| -> Vec<String> {
        let parts = text.split('`').skip(1).step_by(2);
        parts.map(str::to_owned).collect()
    };
    if let Some((found, known)) = message.split_once(", expected one of ") {
        let (found, known) = (quoted(found), quoted(known));
        let meant = found
            .first()
            .and_then(|found| closest(found, known.iter().map(String::as_str)));
        if let Some(meant) = meant {
            return format!("did you mean `{meant}`? {PAGE}");
        }
    }
    let is_text = message.contains("invalid type: string");
    match message.split('"').nth(1) {
        Some(line) if is_text && message.contains("expected a sequence") => {
            let words: Vec<String> = line
                .split_whitespace()
                .map(|word| format!("{word:?}"))
                .collect();
            format!("write a list of words: `[{}]`; {PAGE}", words.join(", "))
        }
        Some(_) | None => PAGE.to_owned(),
    }
}

/// Tasks that cannot be ordered; `span` = what is wrong about them, where it could be found.
pub(super) fn mistake(
    Source { path, content, .. }: Source<'_>,
    mistake: &Mistake,
    span: Option<Range<usize>>,
) -> CliError {
    let (message, reason) = (mistake.message(), mistake.reason());
    let Some(span) = span.map(|span| clamp(content, span)) else {
        return CliError::refused(&format!("{message}: {reason}"));
    };
    let (line, column) = position(content, span.start);
    let file = path.display().to_string();
    CliError::refused(&format!(
        "{message}\n{file}, line {line}, column {column}: {reason}"
    ))
    .with_drawing(draw(&file, content, span))
}

/// Says what a file that is no text has at a position, the first that is none.
pub(super) fn no_text(bytes: &[u8], at: usize) -> String {
    let (before, rest) = bytes.split_at(at.min(bytes.len()));
    let (line, column) = position(&String::from_utf8_lossy(before), before.len());
    let found = rest.first().copied().unwrap_or_default();
    format!("expected UTF-8, found the byte 0x{found:02x} in line {line}, column {column}")
}

/// The place in the file; what is wrong there was said before.
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
    // Its first line is the title.
    drawing
        .split_once('\n')
        .map_or_else(String::new, |(_, rest)| rest.to_owned())
}

/// Moves a span onto character boundaries inside the text.
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

/// Line and column, both from 1, columns in characters.
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

/// The key whose value begins at `at` or around it: what stands before the last `sign` of that line.
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
        // An item of a list in YAML.
        .trim_start_matches("- ")
        .trim_matches(['"', '\'']);
    (!key.is_empty() && !key.contains('[')).then(|| key.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_help_says_what_to_write() {
        for (message, wanted) in [
            (
                "invalid type: string \"sort -u\", expected a sequence",
                "write a list of words: `[\"sort\", \"-u\"]`; ",
            ),
            (
                "unknown field `comand`, expected one of `id`, `command`",
                "did you mean `command`? ",
            ),
            (
                "unknown field `x`, expected one of `id`, `command`",
                "`hq doc",
            ),
        ] {
            let text = help(message);
            assert!(text.starts_with(wanted), "{text}");
        }
    }

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
