//! POSIX shell quoting of command-line words. This module does not run a shell.

use std::borrow::Cow;

/// Returns the text in double quotes, with escapes for everything that a shell would expand.
#[must_use]
pub fn double_quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        if matches!(c, '"' | '$' | '`' | '\\') {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted.push('"');
    quoted
}

/// Returns the word for pasting into a shell, quoted if necessary.
#[must_use]
pub fn pasted(text: &str) -> Cow<'_, str> {
    if is_plain(text) {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(double_quoted(text))
    }
}

/// Returns whether the word needs no quotes.
#[must_use]
pub fn is_plain(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:,=@%".contains(c);
    !text.is_empty() && text.chars().all(is_plain)
}
