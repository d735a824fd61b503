//! Checks where a rejection becomes a sentence. Core, server and worker must return a value
//! instead.
//!
//! Scripts look for a prefix of these sentences. If they were written in many places, code would
//! have to parse sentences to distinguish rejections.

use super::Problem;
use crate::rust_text::{self, Layers};

/// The crates that make decisions.
const DECIDING: &[&str] = &[
    "crates/core/src/",
    "crates/server/src/",
    "crates/worker/src/",
];

const PREFIX: &str = concat!("Err", "or: ");

/// Checks a Rust file.
pub(super) fn check(path: &str, layers: &Layers) -> Vec<Problem> {
    let is_deciding = DECIDING.iter().any(|begin| path.starts_with(begin));
    if !is_deciding || rust_text::is_test_path(path) {
        return Vec::new();
    }
    let lines = layers.strings.lines().zip(1..);
    lines
        .filter(|(line, _)| line.trim_start().starts_with(PREFIX))
        .map(|(_, number)| {
            let message = "say by a value why something is refused; its text is made in protocol";
            Problem::new(path, number, message)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_as_sentences_are_noticed_where_they_are_decided() {
        let text = concat!("refuse(format!(\"Err", "or: no such job\"));\n");
        let count = |path: &str| check(path, &Layers::new(text)).len();
        assert_eq!(count("crates/server/src/stop.rs"), 1);
        assert_eq!(count("crates/server/src/stop/tests.rs"), 0);
        assert_eq!(count("crates/protocol/src/convert/refusal.rs"), 0);
        let other = Layers::new("log(\"the error: nothing\");\n");
        assert_eq!(check("crates/server/src/stop.rs", &other).len(), 0);
    }
}
