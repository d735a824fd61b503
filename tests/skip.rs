//! The common way for a test to report that it cannot run on this machine.
//!
//! Included in several test binaries by `#[path]`. A test that returns early without calling it
//! looks as if it had passed.

use std::io::Write as _;

/// Reports that a test cannot run here, and why. The test then returns.
///
/// Appends a line to the file named by `HQ_SKIPPED_FILE`, so that skipped checks can be counted.
/// With `HQ_REQUIRE_ALL=1`, every test must run, and this function panics.
#[track_caller]
pub(crate) fn skip(reason: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    let line = format!("skipped: {test}: {reason}\n");
    eprint!("{line}");
    if let Some(path) = std::env::var_os("HQ_SKIPPED_FILE") {
        let list = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&path);
        // Written in one call, because tests in other threads and processes append to the same
        // file.
        let written = list.and_then(|mut list| list.write_all(line.as_bytes()));
        written.unwrap_or_else(|error| panic!("HQ_SKIPPED_FILE={}: {error}", path.display()));
    }
    let must_run = std::env::var_os("HQ_REQUIRE_ALL").is_some_and(|value| value == "1");
    assert!(!must_run, "HQ_REQUIRE_ALL=1, but {}", line.trim_end());
}
