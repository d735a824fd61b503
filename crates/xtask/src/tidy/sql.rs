//! Checks that SQL is written only in the store, so that its tables can change.
//!
//! Checks the string literals of shipped code. Test-only code may query the views, which are a
//! public interface. The tables behind them (`…_data`) are not, and the end-to-end tests do not use
//! them either.

use super::Problem;
use super::exceptions::{self, Exceptions};
use crate::rust_text::{self, Layers};

/// The folder that may contain SQL.
const OWNER: &str = "crates/store/";

/// Files outside the store that contain a statement, and the number of lines.
const KNOWN: Exceptions = &[
    // The server must refuse this statement.
    ("tests/e2e/durable.rs", 1),
];

const LIST: &str = "KNOWN of tidy/sql.rs";

/// The beginnings of statements, and tables that are not an interface.
const STATEMENTS: &[&str] = &[
    concat!("SELE", "CT "),
    concat!("INSERT ", "INTO "),
    concat!("DELETE ", "FROM "),
    concat!("PRAG", "MA "),
    concat!("event", "_log"),
];

/// The ending of table names.
const TABLE: &str = concat!("_da", "ta");

/// Checks a Rust file.
pub(super) fn check(path: &str, layers: &Layers) -> Vec<Problem> {
    let is_end_to_end = path.starts_with("tests/");
    let is_product =
        path.starts_with("crates/") && path.contains("/src/") && !rust_text::is_test_path(path);
    if path.starts_with(OWNER) || !(is_product || is_end_to_end) {
        return Vec::new();
    }
    let breaks = |line: &str| {
        names_table(line) || (is_product && STATEMENTS.iter().any(|word| line.contains(word)))
    };
    let found = layers
        .strings
        .lines()
        .zip(1..)
        .filter(|(line, _)| breaks(line))
        .map(|(_, number)| {
            let message = "SQL stands in the store only; add a function to `hq_store::reader`";
            Problem::new(path, number, message)
        })
        .collect();
    exceptions::allow(KNOWN, LIST, path, found)
}

/// Returns the problems of the list itself, once all paths are known.
pub(super) fn check_list(paths: &[String]) -> Vec<Problem> {
    exceptions::gone(KNOWN, LIST, paths)
}

/// Returns whether a line reads from or writes to a table.
fn names_table(line: &str) -> bool {
    let mut words = line.split(|c: char| !c.is_alphanumeric() && c != '_');
    let mut is_after_keyword = false;
    words.any(|word| {
        let is_table = is_after_keyword && word.ends_with(TABLE);
        is_after_keyword = matches!(word, "FROM" | "JOIN" | "INTO" | "UPDATE");
        is_table
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUERY: &str = concat!("f(\"SELE", "CT id FROM jobs\");\n");
    const TABLE_QUERY: &str = concat!("f(\"a\\\n  FROM job_da", "ta j\");\n");

    #[test]
    fn statements_outside_the_store_are_noticed() {
        let count = |path: &str, text: &str| check(path, &Layers::new(text)).len();
        assert_eq!(count("crates/server/src/stop.rs", QUERY), 1);
        assert_eq!(
            count("crates/server/src/stop.rs", &format!("// {QUERY}")),
            0
        );
        assert_eq!(
            count(
                "crates/server/src/stop.rs",
                &format!("#[cfg(test)]\nmod t {{ {QUERY} }}")
            ),
            0
        );
        assert_eq!(count("crates/server/src/stop/tests.rs", QUERY), 0);
        assert_eq!(count("crates/store/src/reader.rs", QUERY), 0);
    }

    #[test]
    fn end_to_end_tests_may_query_views_but_no_tables() {
        assert_eq!(check("tests/e2e/new.rs", &Layers::new(QUERY)).len(), 0);
        let found = check("tests/e2e/new.rs", &Layers::new(TABLE_QUERY));
        assert_eq!(found.len(), 1);
        assert!(found[0].to_string().contains(":2:"), "{}", found[0]);
    }
}
