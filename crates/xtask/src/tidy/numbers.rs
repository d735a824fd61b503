//! Checks which files contain the numbers of task states and of outcomes without an exit code.
//!
//! A number that is written in two places will differ one day. The schema's own files (`*.sql`) are
//! not checked, because released ones cannot change.

use super::Problem;
use crate::rust_text::{self, Layers};

/// Where the numbers belong.
const OWNERS: &[&str] = &["crates/core/src/outcome.rs", "crates/core/src/task.rs"];

/// The numbers of outcomes without an exit code, as written in code.
const OUTCOMES: &[&str] = &[
    concat!("-10", "00"),
    concat!("-10", "01"),
    concat!("-10", "02"),
    concat!("-10", "03"),
    concat!("-1_", "000"),
    concat!("-1_", "001"),
    concat!("-1_", "002"),
    concat!("-1_", "003"),
];

/// Checks a Rust file.
pub(super) fn check(path: &str, layers: &Layers) -> Vec<Problem> {
    let is_product =
        path.starts_with("crates/") && path.contains("/src/") && !rust_text::is_test_path(path);
    if !is_product || OWNERS.contains(&path) {
        return Vec::new();
    }
    let lines = layers.code.lines().zip(layers.strings.lines()).zip(1..);
    lines
        .filter(|((code, string), _)| {
            converts_state(code)
                || compares_state(string)
                || has_outcome(code)
                || has_outcome(string)
        })
        .map(|(_, number)| {
            let message =
                "a state's or outcome's number stands with its owner only; take it from there";
            Problem::new(path, number, message)
        })
        .collect()
}

/// Returns whether code converts between a state and a number.
fn converts_state(code: &str) -> bool {
    let Some((left, right)) = code.split_once("=>") else {
        return false;
    };
    let names_state = |side: &str| side.contains("TaskState::");
    let is_number = |side: &str| {
        let side = side.trim().trim_end_matches(',');
        !side.is_empty() && side.bytes().all(|byte| byte.is_ascii_digit())
    };
    (names_state(left) && is_number(right)) || (is_number(left) && names_state(right))
}

/// Returns whether SQL compares a state with a number, or sets it to one.
fn compares_state(string: &str) -> bool {
    string.match_indices("state").any(|(at, word)| {
        let is_word = !string[..at]
            .bytes()
            .next_back()
            .is_some_and(rust_text::is_name);
        let rest = string[at + word.len()..].trim_start();
        let operand = ["IN (", "<>", "=", "<", ">"]
            .iter()
            .find_map(|operator| rest.strip_prefix(operator));
        let is_number = |text: &str| text.trim_start().starts_with(|c: char| c.is_ascii_digit());
        is_word && operand.is_some_and(is_number)
    })
}

/// Returns whether text contains the number of an outcome.
fn has_outcome(text: &str) -> bool {
    OUTCOMES.iter().any(|number| {
        text.match_indices(number).any(|(at, _)| {
            let before = text[..at].bytes().next_back();
            let after = text[at + number.len()..].bytes().next();
            !before.is_some_and(rust_text::is_name) && !after.is_some_and(rust_text::is_name)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_outside_their_owner_are_noticed() {
        let count = |line: &str| check("crates/server/src/stop.rs", &Layers::new(line)).len();
        for bad in [
            concat!("f(\"WHERE state I", "N (2, 3)\")"),
            concat!("f(\"WHERE t.state <", "> 1\")"),
            concat!("f(\"SET state =", " 0\")"),
            concat!("TaskState::Failed =", "> 3,"),
            concat!("5 =", "> TaskState::Aborted,"),
            concat!("const LIMIT: i32 = -1_0", "00;"),
            concat!("outcome == -10", "03"),
        ] {
            assert_eq!(count(bad), 1, "{bad}");
            assert_eq!(check(OWNERS[0], &Layers::new(bad)).len(), 0);
            assert_eq!(
                check("crates/server/src/stop/tests.rs", &Layers::new(bad)).len(),
                0
            );
        }
        for good in [
            "f(\"WHERE state = ?\")",
            "f(\"WHERE old_state = {old}\")",
            "TaskState::Failed => \"failed\",",
            "1..=1000",
            "f(\"1000-1001\")",
            "// state = 3 is failed.",
        ] {
            assert_eq!(count(good), 0, "{good}");
        }
    }
}
