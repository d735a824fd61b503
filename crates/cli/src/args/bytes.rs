//! Handles words of a command line that are not UTF-8 by finding the option that they belong to.
//! Programs, their arguments, paths and variables may contain any bytes. Where only text is
//! allowed, the parser rejects the word without naming the option.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use super::Cli;

/// Adds the option and the value to an error, as far as they can be determined.
pub(crate) fn explained(error: clap::Error, words: impl Iterator<Item = OsString>) -> clap::Error {
    if error.kind() != ErrorKind::InvalidUtf8 {
        return error;
    }
    let words: Vec<OsString> = words.collect();
    match culprit(&words) {
        Some(at) => {
            let (option, value) = option_and_value(&words, at);
            let text = format!("invalid value '{value}' for {option}: expected valid UTF-8");
            Cli::command().error(ErrorKind::InvalidUtf8, text)
        }
        None => error,
    }
}

/// Returns the first word that is rejected even if all other words are valid text.
fn culprit(words: &[OsString]) -> Option<usize> {
    let is_text = |word: &OsString| word.to_str().is_some();
    let is_refused = |at: &usize| {
        let others = words.iter().enumerate().map(|(i, word)| match i == *at {
            true => word.clone(),
            false => word.to_string_lossy().into_owned().into(),
        });
        Cli::try_parse_from(others).is_err_and(|error| error.kind() == ErrorKind::InvalidUtf8)
    };
    (0..words.len())
        .filter(|at| !is_text(&words[*at]))
        .find(is_refused)
}

fn option_and_value(words: &[OsString], at: usize) -> (String, String) {
    let shown = |bytes: &[u8]| bytes.escape_ascii().to_string();
    let bytes = words[at].as_bytes();
    let is_option = |bytes: &[u8]| bytes.starts_with(b"-") && bytes.len() > 1;
    if let Some(equals) = bytes.iter().position(|byte| *byte == b'=')
        && is_option(bytes)
    {
        let (option, value) = (&bytes[..equals], &bytes[equals + 1..]);
        return (format!("'{}'", shown(option)), shown(value));
    }
    let before = at.checked_sub(1).map(|before| words[before].as_os_str());
    let option = match before.map(OsStr::as_bytes) {
        Some(option) if is_option(option) => format!("'{}'", shown(option)),
        _ => "an argument".to_owned(),
    };
    (option, shown(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(line: &[u8]) -> String {
        let words = line.split(|byte| *byte == b' ').map(OsStr::from_bytes);
        let words: Vec<OsString> = words.map(OsStr::to_owned).collect();
        let error = Cli::try_parse_from(&words).expect_err("is refused");
        explained(error, words.into_iter()).to_string()
    }

    #[test]
    fn the_option_and_the_value_are_named() {
        for (line, wanted) in [
            (
                &b"hq submit --cwd \xfe --name a\xff -- \xfd"[..],
                "error: invalid value 'a\\xff' for '--name': expected valid UTF-8",
            ),
            (
                b"hq submit --array=\xff -- true",
                "error: invalid value '\\xff' for '--array': expected valid UTF-8",
            ),
            (
                b"hq job info \xff",
                "error: invalid value '\\xff' for an argument: expected valid UTF-8",
            ),
        ] {
            let text = told(line);
            assert!(text.starts_with(wanted), "{text}");
        }
    }
}
