//! Words of a command line as a POSIX shell reads them. Does not run a shell.

use std::borrow::Cow;

/// In double quotes; what a shell would expand inside of them is escaped.
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

/// The word as it can be pasted into a shell: in quotes if it needs them.
#[must_use]
pub fn pasted(text: &str) -> Cow<'_, str> {
    if is_plain(text) {
        Cow::Borrowed(text)
    } else {
        Cow::Owned(double_quoted(text))
    }
}

/// Whether a shell leaves the word alone when it has no quotes.
#[must_use]
pub fn is_plain(text: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:,=@%".contains(c);
    !text.is_empty() && text.chars().all(is_plain)
}
