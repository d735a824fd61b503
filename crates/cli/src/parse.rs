//! Small grammars for option values, and the drawing that points at a wrong character.
//!
//! Every parser is a pure function from text to a value of `hq-core` or `std`, without access to
//! the command line, the file system or the clock. [`Cursor`] moves through the text, and
//! [`ParseError`] draws it.

use std::fmt;

use crate::text::is_hidden;

pub(crate) mod after;
pub(crate) mod array;
pub(crate) mod coupling;
pub(crate) mod duration;
pub(crate) mod file_value;
pub(crate) mod learn;
pub(crate) mod limit;
pub(crate) mod notify;
pub(crate) mod param;
pub(crate) mod request;
pub(crate) mod resource;
pub(crate) mod retry;
pub(crate) mod selector;
pub(crate) mod size;
pub(crate) mod value;

/// The maximum number of characters shown before a wrong character.
const SHOWN_BEFORE: usize = 60;

/// The maximum number of characters shown after the start of the error.
const SHOWN_BEHIND: usize = 60;

/// An error about a text that does not follow its grammar.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ParseError {
    what: &'static str,
    input: String,
    /// The position in characters.
    at: usize,
    problem: Problem,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Problem {
    Token {
        found: char,
        expected: &'static [&'static str],
    },
    End {
        expected: &'static [&'static str],
    },
    Note(String),
}

impl std::error::Error for ParseError {}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            what,
            input,
            at,
            problem,
        } = self;
        let note = match problem {
            Problem::Token { found, expected } => {
                write!(
                    f,
                    "Unexpected token found while attempting to parse {what}, expected "
                )?;
                write_alternatives(f, expected)?;
                format!("Unexpected token `{found}`")
            }
            Problem::End { expected } => {
                write!(
                    f,
                    "Unexpected end of input found while attempting to parse {what}, expected "
                )?;
                write_alternatives(f, expected)?;
                "Unexpected end of input".to_owned()
            }
            Problem::Note(note) => {
                write!(f, "This is not a valid {what}")?;
                note.clone()
            }
        };
        if input.is_empty() {
            return f.write_str(":\n  (the input was empty)");
        }
        let (shown, at) = surroundings(input, *at);
        write!(f, ":\n  {shown}\n  {:at$}|\n  {:at$}--- {note}", "", "")
    }
}

/// Returns the text around a position, and the position within it. Inputs may be megabytes long,
/// but format widths are limited to 65 535.
fn surroundings(input: &str, at: usize) -> (String, usize) {
    let skipped = at.saturating_sub(SHOWN_BEFORE);
    let lead = if skipped == 0 { "" } else { "…" };
    let mut rest = input.chars().skip(skipped);
    let mut shown = String::from(lead);
    // A line feed or tab in the input would break the drawing.
    shown.extend(
        rest.by_ref()
            .take(at - skipped + SHOWN_BEHIND)
            .map(|c| if is_hidden(c) { ' ' } else { c }),
    );
    if rest.next().is_some() {
        shown.push('…');
    }
    (shown, at - skipped + lead.chars().count())
}

fn write_alternatives(f: &mut fmt::Formatter<'_>, expected: &[&str]) -> fmt::Result {
    let last = expected.len().saturating_sub(1);
    for (i, item) in expected.iter().enumerate() {
        match i {
            0 => {}
            _ if i == last => f.write_str(" or ")?,
            _ => f.write_str(", ")?,
        }
        f.write_str(item)?;
    }
    Ok(())
}

/// A position in a text that is being parsed.
#[derive(Clone, Debug)]
pub(crate) struct Cursor<'a> {
    what: &'static str,
    text: &'a str,
    /// The position in bytes, on a character boundary.
    pos: usize,
}

impl<'a> Cursor<'a> {
    /// Starts at the beginning of `text`. `what` names the expected value.
    pub(crate) const fn new(what: &'static str, text: &'a str) -> Self {
        Self { what, text, pos: 0 }
    }

    /// Changes the name of the expected value in diagnostics.
    pub(crate) const fn set_what(&mut self, what: &'static str) {
        self.what = what;
    }

    pub(crate) const fn pos(&self) -> usize {
        self.pos
    }

    pub(crate) fn rest(&self) -> &'a str {
        self.text.get(self.pos..).unwrap_or("")
    }

    pub(crate) fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    pub(crate) fn is_at_end(&self) -> bool {
        self.rest().is_empty()
    }

    pub(crate) fn bump(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.pos += c.len_utf8();
        Some(c)
    }

    /// Consumes `wanted` if it is next.
    pub(crate) fn consume(&mut self, wanted: &str) -> bool {
        let found = self.rest().starts_with(wanted);
        if found {
            self.pos += wanted.len();
        }
        found
    }

    /// Consumes characters as long as `keep` returns true, and returns them.
    pub(crate) fn take_while(&mut self, keep: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let end = rest.find(|c| !keep(c)).unwrap_or(rest.len());
        self.pos += end;
        &rest[..end]
    }

    /// Consumes blanks. Returns whether there were any.
    pub(crate) fn skip_blanks(&mut self) -> bool {
        !self.take_while(|c| c == ' ' || c == '\t').is_empty()
    }

    /// Parses a decimal `u32`. `_` may follow the first digit.
    pub(crate) fn number(&mut self, expected: &'static [&'static str]) -> Result<u32, ParseError> {
        let start = self.pos;
        if !self.peek().is_some_and(|c| c.is_ascii_digit()) {
            return Err(self.unexpected(expected));
        }
        let digits = self.take_while(|c| c.is_ascii_digit() || c == '_');
        digits
            .replace('_', "")
            .parse()
            .map_err(|_| self.note_at(start, "Number is too large, expected at most 4294967295"))
    }

    /// Fails unless the whole text was consumed.
    pub(crate) fn finish(&self, expected: &'static [&'static str]) -> Result<(), ParseError> {
        if self.is_at_end() {
            Ok(())
        } else {
            Err(self.unexpected(expected))
        }
    }

    /// Creates the error for a next token that is none of `expected`.
    pub(crate) fn unexpected(&self, expected: &'static [&'static str]) -> ParseError {
        let problem = match self.peek() {
            Some(found) => Problem::Token { found, expected },
            None => Problem::End { expected },
        };
        self.error_at(self.pos, problem)
    }

    /// Creates the error for text, starting at byte `pos`, that has the right form but an invalid
    /// value.
    pub(crate) fn note_at(&self, pos: usize, note: impl Into<String>) -> ParseError {
        self.error_at(pos, Problem::Note(note.into()))
    }

    fn error_at(&self, pos: usize, problem: Problem) -> ParseError {
        let at = self
            .text
            .get(..pos)
            .map_or(0, |before| before.chars().count());
        ParseError {
            what: self.what,
            input: self.text.to_owned(),
            at,
            problem,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the drawing for a wrong character, and the column of the mark.
    fn drawing(input: &str) -> (String, usize) {
        let error = selector::parse_selector(input).expect_err("wrong");
        let text = error.to_string();
        let lines: Vec<&str> = text.lines().collect();
        let mark = lines[2].find('|').expect("a mark");
        (lines[1].to_owned(), mark)
    }

    #[test]
    fn only_the_surroundings_of_a_wrong_character_are_drawn() {
        let ids: Vec<String> = (1..=20_000).map(|id| id.to_string()).collect();
        let input = format!("{},x,{}", ids.join(","), ids.join(","));
        let (line, mark) = drawing(&input);
        assert!(line.chars().count() < 150, "{line}");
        assert!(
            line.contains("…") && line.contains("20000,x,1,2,3"),
            "{line}"
        );
        assert_eq!(line.chars().nth(mark), Some('x'), "{line}");
        let (line, mark) = drawing(&format!("{},", ids.join(",")));
        assert!(line.ends_with("19999,20000,"), "{line}");
        assert_eq!(line.chars().count(), mark, "{line}");
        assert_eq!(drawing("1,x"), ("  1,x".to_owned(), 4));
    }
}
