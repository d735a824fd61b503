//! Checks that `docs/architecture.md` lists each file that creates a queue, with its bound.

use super::{Problem, codemap};

/// Heading of the table.
const HEADING: &str = "## Queues";

/// Constructors of queues.
const QUEUES: &[&str] = &[
    "mpsc::channel(",
    "mpsc::channel::<",
    "sync_channel(",
    "unbounded_channel()",
];

/// Crates whose queues are listed: those in long-lived processes.
const CRATES: &[&str] = &["server", "spawn", "store", "worker"];

/// Whether a file of the product creates a queue.
pub(super) fn has_queue(path: &str, text: &str) -> bool {
    let is_listed = CRATES
        .iter()
        .any(|name| path.starts_with(&format!("crates/{name}/src/")));
    // Tests stand at the end of a file, or in files of their own.
    let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    is_listed
        && !path.contains("tests")
        && !path.contains("two_servers")
        && code.lines().any(|line| {
            let line = line.trim_start();
            !line.starts_with("//") && QUEUES.iter().any(|queue| line.contains(queue))
        })
}

/// Compares the table with the files that create queues.
pub(super) fn check(page: &str, files: &[String]) -> Vec<Problem> {
    let section = page.split(HEADING).nth(1).unwrap_or_default();
    let section = section.split("\n## ").next().unwrap_or_default();
    let places = section
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split(" |").next());
    let rows = places.flat_map(|place| place.split(", "));
    let path = |name: &str| {
        format!(
            "crates/{}",
            name.trim_matches('`').replacen('/', "/src/", 1)
        )
    };
    let rows: Vec<String> = rows.map(path).collect();
    let missing = files.iter().filter(|file| !rows.contains(file));
    let missing = missing.map(|file| format!("`{HEADING}` has no row for {file}"));
    let gone = rows.iter().filter(|row| !files.contains(row));
    let gone = gone.map(|row| format!("`{HEADING}` has a row for {row}, which creates no queue"));
    missing
        .chain(gone)
        .map(|text| Problem::new(codemap::PATH, 1, text))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_needs_a_row_and_a_row_a_queue() {
        let code = "let (tx, rx) = mpsc::channel(8);\n";
        let path = "crates/server/src/door.rs";
        assert!(has_queue(path, code));
        assert!(!has_queue("crates/cli/src/door.rs", code));
        assert!(!has_queue("crates/server/src/door/tests.rs", code));
        assert!(!has_queue(
            path,
            &format!("#[cfg(test)]\nmod tests {{\n{code}}}\n")
        ));
        let page = "## Queues\n\n| `server/door.rs` | requests | 8 |\n\n## Next\n";
        let files = [path.to_owned()];
        assert!(check(page, &files).is_empty());
        assert_eq!(check(page, &[]).len(), 1);
        assert_eq!(check("## Next\n", &files).len(), 1);
    }
}
