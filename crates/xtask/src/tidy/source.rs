//! Rules about lines of text: the hygiene of every file, the headers and size of Rust files, and
//! the purity of the core.
//!
//! Works on lines, not on syntax: a rule that needs a parser should be a lint. Search texts are
//! split into two parts, so that this file obeys its own rules.

use super::Problem;

/// The maximum number of lines in a file. Longer files are hard to navigate.
const LINES_MAX: usize = 800;

/// The crate root that may contain unsafe code.
const UNSAFE_ROOT: &str = "crates/spawn/src/lib.rs";

/// Where documentation examples are compiled and run. Other libraries have `doctest = false`.
const WITH_EXAMPLES: &str = "crates/spawn/";

/// The function that tests call to report that they cannot run.
const SKIP: &str = "tests/skip.rs";

/// Markers of unfinished or disabled code, and what to do instead.
const UNFINISHED: &[(&str, &str)] = &[
    (concat!("#[ign", "ore"), "make the test pass, or remove it"),
    (concat!("tod", "o!("), "write it"),
    (concat!("unimple", "mented!("), "write it"),
    (
        concat!("FIX", "ME"),
        "fix it, or describe the limitation in docs/",
    ),
];

/// Prefixes of paths that exist only on one machine, and a home directory that examples may use.
const MACHINE_PATHS: &[&str] = &["/home/", "/root/", "/Users/"];
const EXAMPLE_HOME: &str = "/home/u/";

/// Items with which the core would see more than its inputs, or would behave nondeterministically.
const IMPURE: &[&str] = &[
    "Instant::now",
    "SystemTime::now",
    "HashMap",
    "HashSet",
    "std::thread",
    "std::net",
    "std::fs",
    "std::env",
    "std::process",
];

/// Checks a file of any kind.
pub(super) fn check_text(path: &str, text: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        if let Some(found) = machine_path(line) {
            let advice = "describe it relative to the project or by a variable";
            let message = format!("`{found}` is a path of one machine; {advice}");
            problems.push(Problem::new(path, number, message));
        }
    }
    problems
}

/// Checks a Rust file.
pub(super) fn check_rust(path: &str, text: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    if !text.starts_with("//!") {
        let advice = "begin with `//!`: what it does and what it does not know";
        problems.push(Problem::new(
            path,
            1,
            format!("the file has no header; {advice}"),
        ));
    }
    let count = text.lines().count();
    if count > LINES_MAX {
        let message = format!("{count} lines; split it below {LINES_MAX}");
        problems.push(Problem::new(path, LINES_MAX + 1, message));
    }
    let is_root =
        path.ends_with("src/lib.rs") || path.ends_with("src/main.rs") || path.contains("/src/bin/");
    if is_root && path != UNSAFE_ROOT && !text.contains("#![forbid(unsafe_code)]") {
        let message = "only spawn has unsafe code; add `#![forbid(unsafe_code)]`";
        problems.push(Problem::new(path, 1, message));
    }
    for (line, number) in text.lines().zip(1..) {
        for (word, advice) in UNFINISHED {
            if line.contains(word) {
                problems.push(Problem::new(
                    path,
                    number,
                    format!("`{word}` is not finished; {advice}"),
                ));
            }
        }
    }
    if path.starts_with("crates/core/src/") && !is_test_file(path) {
        problems.extend(check_purity(path, text));
    }
    problems.extend(check_skips(path, text));
    problems.extend(check_examples(path, text));
    problems
}

/// Checks that the documentation contains no example code that is never run.
fn check_examples(path: &str, text: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut is_inside = false;
    for (line, number) in text.lines().zip(1..) {
        let code = line.trim_start();
        let text = code.strip_prefix("//!").or(code.strip_prefix("///"));
        let Some(language) = text.and_then(|text| text.trim().strip_prefix("```")) else {
            continue;
        };
        is_inside = !is_inside;
        let is_run = !["text", "sh"].contains(&language);
        if is_inside && is_run && !path.starts_with(WITH_EXAMPLES) {
            let advice = "write ```text, or remove `doctest = false` and extend WITH_EXAMPLES";
            let message = format!("no test runs examples of this crate; {advice}");
            problems.push(Problem::new(path, number, message));
        }
    }
    problems
}

/// Checks that tests report skips through the common function, because printed text goes unnoticed.
fn check_skips(path: &str, text: &str) -> Vec<Problem> {
    let pattern = concat!('"', "skip", "ped: ");
    let lines = text.lines().zip(1..);
    let found = lines.filter(|(line, _)| path != SKIP && line.contains(pattern));
    let message = format!("a skipped test must be counted; call `skip` of {SKIP}");
    found
        .map(|(_, number)| Problem::new(path, number, message.clone()))
        .collect()
}

/// Checks that each file directly in `tests/e2e/` is part of the one test binary there.
pub(super) fn check_end_to_end(files: &[(String, String)]) -> Vec<Problem> {
    let main = files.iter().find(|(name, _)| name == "main.rs");
    let main = main.map_or("", |(_, text)| text);
    let declared = |module: &str| {
        main.lines()
            .any(|line| line.trim() == format!("mod {module};"))
    };
    let modules = files
        .iter()
        .filter_map(|(name, _)| name.strip_suffix(".rs"));
    let missing = modules.filter(|module| *module != "main" && !declared(module));
    let problem = |module: &str| {
        let message = format!("never compiled; add `mod {module};` to tests/e2e/main.rs");
        Problem::new(&format!("tests/e2e/{module}.rs"), 1, message)
    };
    missing.map(problem).collect()
}

fn check_purity(path: &str, text: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut after_test_attribute = false;
    for (line, number) in text.lines().zip(1..) {
        let code = line.trim_start();
        // Tests are at the end of a file.
        if after_test_attribute && code.starts_with("mod ") && code.ends_with('{') {
            break;
        }
        after_test_attribute = code.starts_with("#[cfg(test)]");
        if code.starts_with("//") {
            continue;
        }
        for word in IMPURE.iter().filter(|word| contains_word(code, word)) {
            let advice = "take it as an input, or use an ordered collection";
            let message = format!("the core decides without `{word}`; {advice}");
            problems.push(Problem::new(path, number, message));
        }
    }
    problems
}

fn is_test_file(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("tests.rs")
}

fn contains_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !after.is_some_and(is_part)
    })
}

/// Returns the prefix of a machine-specific path in this line, if there is one.
fn machine_path(line: &str) -> Option<&'static str> {
    MACHINE_PATHS.iter().copied().find(|begin| {
        line.match_indices(begin).any(|(at, _)| {
            // `src/home/` and `$DIR/home/` are not absolute paths.
            let before = line[..at].chars().next_back();
            let inside = before.is_some_and(|c| c.is_alphanumeric() || "_.-})".contains(c));
            // The lists in this file end immediately after the word.
            let ends = line[at + begin.len()..].starts_with('"');
            !inside && !ends && !line[at..].starts_with(EXAMPLE_HOME)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rust(path: &str, text: &str) -> Vec<String> {
        check_rust(path, text)
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn headers_sizes_and_unfinished_code_are_noticed() {
        assert_eq!(rust("a/b.rs", "//! B.\nfn b() {}\n"), Vec::<String>::new());
        assert_eq!(rust("a/b.rs", "fn b() {}\n").len(), 1);
        assert_eq!(
            rust("a/b.rs", &"//! Long.\n".repeat(LINES_MAX + 1)).len(),
            1
        );
        let unfinished = format!("//! B.\nfn b() {{ {}) }}\n", UNFINISHED[1].0);
        assert!(rust("a/b.rs", &unfinished)[0].starts_with("a/b.rs:2:"));
    }

    #[test]
    fn skips_that_nobody_counts_are_noticed() {
        let skips = format!(
            "//! T.\nprintln!({}no room\");\n",
            concat!('"', "skip", "ped: ")
        );
        assert!(rust("tests/e2e/t.rs", &skips)[0].starts_with("tests/e2e/t.rs:2:"));
        assert_eq!(rust(SKIP, &skips).len(), 0);
    }

    #[test]
    fn examples_that_nobody_runs_are_noticed() {
        let example = "//! T.\n//!\n//! ```\n//! one();\n//! ```\n";
        let found = rust("crates/core/src/t.rs", example);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("crates/core/src/t.rs:3:"), "{found:?}");
        assert_eq!(rust("crates/spawn/src/t.rs", example).len(), 0);
        let picture = example.replacen("```", "```text", 1);
        assert_eq!(rust("crates/core/src/t.rs", &picture).len(), 0);
    }

    #[test]
    fn crate_roots_forbid_unsafe_code() {
        assert_eq!(rust("crates/core/src/lib.rs", "//! Core.\n").len(), 1);
        assert_eq!(rust(UNSAFE_ROOT, "//! Spawn.\n").len(), 0);
    }

    #[test]
    fn the_core_is_pure_outside_tests() {
        let path = "crates/core/src/job.rs";
        assert!(rust(path, "//! Job.\nuse std::collections::HashMap;\n")[0].contains("job.rs:2:"));
        assert_eq!(
            rust(path, "//! Job.\n// No HashMap.\nstruct HashMapLike;\n").len(),
            0
        );
        let with_tests = "//! Job.\n#[cfg(test)]\nmod tests {\n    use std::fs;\n}\n";
        assert_eq!(rust(path, with_tests).len(), 0);
        assert_eq!(
            rust("crates/core/src/job/tests.rs", "//! T.\nuse std::fs;\n").len(),
            0
        );
        assert_eq!(
            rust("crates/server/src/clock.rs", "//! C.\nuse std::fs;\n").len(),
            0
        );
    }

    #[test]
    fn files_outside_the_end_to_end_binary_are_noticed() {
        let files = [
            ("main.rs", "//! E.\nmod one;\n"),
            ("one.rs", ""),
            ("two.rs", ""),
        ];
        let files = files.map(|(name, text)| (name.to_owned(), text.to_owned()));
        let found = check_end_to_end(&files);
        assert_eq!(found.len(), 1);
        assert!(found[0].to_string().starts_with("tests/e2e/two.rs:1:"));
    }

    #[test]
    fn paths_of_one_machine_are_noticed() {
        let bad = format!("cd {}ana/hq", MACHINE_PATHS[0]);
        assert_eq!(check_text("f", &bad).len(), 1);
        for good in [
            "src/home/a",
            "$DIR/home/a",
            "/home/u/.hq-server",
            "/tmp/hq/home",
        ] {
            assert_eq!(check_text("f", good).len(), 0, "{good}");
        }
    }
}
