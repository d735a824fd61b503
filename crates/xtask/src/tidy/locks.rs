//! Checks that only SQLite and a few listed places open the database of a store.
//!
//! When a process closes any descriptor of a file, the kernel drops all POSIX locks of the process
//! on that file. If a server opened its own database, it would thus admit other processes, and the
//! first of them to leave would delete the log with acknowledged work. So in the store, only code
//! that holds the lock opens files, and the server reads through `StoreClient::read`. Works on
//! lines, like `source`.

use super::Problem;

/// Calls that open a file.
const OPENERS: &[&str] = &[
    "File::open",
    "OpenOptions",
    "fs::read(",
    "fs::copy(",
    "open_regular(",
];

/// Files of the store that may open the database: the lock, the log, on which SQLite has no lock,
/// and repairs, which need the lock.
const WITH_LOCK: &[&str] = &[
    "crates/store/src/lock.rs",
    "crates/store/src/log.rs",
    "crates/store/src/salvage.rs",
];

/// Functions that open a file by its path. The server must not call them.
const BY_PATH: &[&str] = &["open_for_reading", "hq_store::check", "hq_store::repair"];

/// Modules of the store that contain tests.
const TESTS: &[&str] = &[
    "tests.rs",
    "testing.rs",
    "simulation.rs",
    "two_servers.rs",
    "two_servers/failing.rs",
];

/// Checks a file. Other crates have no such rules.
pub(super) fn check(path: &str, text: &str) -> Vec<Problem> {
    let is_test = TESTS.iter().any(|name| path.ends_with(name));
    let (words, advice) = if path.starts_with("crates/server/src/") {
        (BY_PATH, "read by `StoreClient::read`")
    } else if path.starts_with("crates/store/src/") && !is_test && !WITH_LOCK.contains(&path) {
        (OPENERS, "ask SQLite, or take the `Lock`")
    } else {
        return Vec::new();
    };
    let mut problems = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let code = line.trim_start();
        // Tests are at the end of a file.
        if code.starts_with("#[cfg(test)]") {
            break;
        }
        let found = words.iter().find(|word| code.contains(**word));
        if let Some(word) = found.filter(|_| !code.starts_with("//")) {
            let message = format!("`{word}` may drop the locks of the store; {advice}");
            problems.push(Problem::new(path, number, message));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_past_the_lock_are_noticed() {
        let by_path = "let c = reader::open_for_reading(&path)?;\n";
        assert_eq!(check("crates/server/src/journal_link.rs", by_path).len(), 1);
        assert_eq!(check("crates/cli/src/command/journal.rs", by_path).len(), 0);
        let raw = "//! Reads.\n// File::open is not called.\nlet file = File::open(path)?;\n";
        let found = check("crates/store/src/reader.rs", raw);
        assert_eq!(found.len(), 1);
        assert!(found[0].to_string().contains(":3:"), "{}", found[0]);
        assert_eq!(check("crates/store/src/lock.rs", raw).len(), 0);
        let tested = format!("#[cfg(test)]\nmod tests {{\n{raw}}}\n");
        assert_eq!(check("crates/store/src/reader.rs", &tested).len(), 0);
    }
}
