//! Rules of the code base that neither the compiler nor clippy checks. They also run as a test.
//!
//! The rules are in these modules: `manifest` checks `Cargo.toml` files (which crate may use which
//! dependency), `source` lines of text, `between` the code between clone and exec, `calls`
//! functions that only some files may call, `sql`, `numbers` and `refusals` text that may appear in
//! only one place, `manual` the pages of the manual, `imports` which module uses which, `codemap` the
//! map of modules, and `queues` the list of queues. They are pure functions from text to problems; only this file
//! reads the tree. See `docs/architecture.md`.

mod between;
mod calls;
mod codemap;
mod exceptions;
mod imports;
mod locks;
mod manifest;
mod manual;
mod numbers;
mod queues;
mod refusals;
mod source;
mod sql;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

pub(crate) use self::imports::{Product, products};
use crate::rust_text::Layers;

/// A violation, and how to fix it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Problem {
    /// The path from the workspace root.
    path: String,
    /// The line, starting from 1.
    line: usize,
    message: String,
}

impl Problem {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self {
            path: path.to_owned(),
            line,
            message: message.into(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// Returns the root of this crate's workspace.
///
/// # Errors
///
/// If the sources are no longer where they were compiled.
pub(crate) fn workspace_root() -> anyhow::Result<PathBuf> {
    // Not the path at compile time, because another checkout may have built this program.
    let crate_dir = std::env::var_os("CARGO_MANIFEST_DIR").context("run it as `cargo xtask`")?;
    let root = Path::new(&crate_dir).join("../..");
    root.canonicalize()
        .with_context(|| format!("find the workspace at {}", root.display()))
}

/// Checks the whole tree.
///
/// # Errors
///
/// If a file cannot be read or a manifest is not valid.
pub(crate) fn check(root: &Path) -> anyhow::Result<Vec<Problem>> {
    let mut paths = Vec::new();
    collect_files(root, root, &mut paths)?;
    paths.sort();
    let mut problems = Vec::new();
    let mut end_to_end = Vec::new();
    let mut sources = Vec::new();
    let (mut code_map, mut testing) = (String::new(), String::new());
    let mut functions = BTreeSet::new();
    let mut with_queues = Vec::new();
    for path in &paths {
        // Files that are not text have no lines to check.
        let Ok(text) = String::from_utf8(read(root, path)?) else {
            continue;
        };
        problems.extend(source::check_text(path, &text));
        problems.extend(manual::check_lists(path, &text));
        if path == manual::PATH {
            problems.extend(manual::check_navigation(&text, &paths)?);
        }
        if path.ends_with("Cargo.toml") {
            problems.extend(manifest::check(path, &text)?);
        }
        if path == manual::TESTS {
            testing.clone_from(&text);
        }
        if path.ends_with(".rs") {
            let names = text
                .lines()
                .filter_map(|line| line.trim_start().strip_prefix("fn "));
            functions.extend(names.filter_map(|name| Some(name.split_once("()")?.0.to_owned())));
            problems.extend(source::check_rust(path, &text));
            problems.extend(between::check(path, &text));
            problems.extend(locks::check(path, &text));
            if queues::has_queue(path, &text) {
                with_queues.push(path.clone());
            }
            let layers = Layers::new(&text);
            problems.extend(numbers::check(path, &layers));
            problems.extend(refusals::check(path, &layers));
            problems.extend(sql::check(path, &layers));
            sources.push((path.clone(), layers));
            problems.extend(calls::check(path, &text));
        }
        problems.extend(codemap::check_paths(path, &text, &paths));
        if path == codemap::PATH {
            code_map.clone_from(&text);
        }
        if let Some(file) = path
            .strip_prefix("tests/e2e/")
            .filter(|file| !file.contains('/'))
        {
            end_to_end.push((file.to_owned(), text));
        }
    }
    problems.extend(source::check_end_to_end(&end_to_end));
    let products = products(&sources);
    problems.extend(imports::check(&products));
    problems.extend(codemap::check(&code_map, &products, &paths));
    problems.extend(sql::check_list(&paths));
    problems.extend(queues::check(&code_map, &with_queues));
    problems.extend(manual::check_tests(&testing, |test| {
        functions.contains(test)
    }));
    Ok(problems)
}

/// Returns the problems of the manual's pages and of the settings of its site.
///
/// # Errors
///
/// If a file cannot be read.
pub(crate) fn check_manual(root: &Path) -> anyhow::Result<Vec<String>> {
    let problems = check(root)?.into_iter();
    let ours = problems
        .filter(|problem| problem.path.starts_with("docs/") || problem.path == manual::PATH);
    Ok(ours.map(|problem| problem.to_string()).collect())
}

/// Reads all Rust files of the tree.
///
/// # Errors
///
/// If a file cannot be read.
pub(crate) fn sources(root: &Path) -> anyhow::Result<Vec<(String, Layers)>> {
    let mut paths = Vec::new();
    collect_files(root, root, &mut paths)?;
    paths.retain(|path| path.ends_with(".rs"));
    let source = |path: String| {
        let text = String::from_utf8(read(root, &path)?);
        let text = text.with_context(|| format!("{path} is not text"))?;
        Ok((path, Layers::new(&text)))
    };
    paths.into_iter().map(source).collect()
}

fn read(root: &Path, path: &str) -> anyhow::Result<Vec<u8>> {
    std::fs::read(root.join(path)).with_context(|| format!("read {path}"))
}

/// Appends the files below `dir` as paths from the root. Build products are left out, and so are
/// hidden folders, except folders with settings of the project.
fn collect_files(root: &Path, dir: &Path, paths: &mut Vec<String>) -> anyhow::Result<()> {
    let entries = std::fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("list {}", dir.display()))?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let hidden = name.starts_with('.') && ![".cargo", ".ci"].contains(&&*name);
        let kind = entry
            .file_type()
            .with_context(|| format!("look at {name}"))?;
        if kind.is_dir() {
            if !hidden && name != "target" && name != "__pycache__" {
                collect_files(root, &entry.path(), paths)?;
            }
        } else if kind.is_file() && name != "Cargo.lock" {
            let path = entry.path();
            let path = path
                .strip_prefix(root)
                .context("entries are below the root")?;
            paths.push(path.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_tidy() {
        let root = workspace_root().expect("tests run in the workspace");
        let problems = check(&root).expect("the tree can be read");
        let list: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert!(list.is_empty(), "broken rules:\n{}", list.join("\n"));
    }
}
