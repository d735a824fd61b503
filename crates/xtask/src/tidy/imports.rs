//! Dependencies between the modules of a crate: no cycles between the modules of a folder.
//!
//! `paths` reads the mentions in a file, `modules` resolves them, and `circles` finds cycles per
//! folder. Test code is left out, and so are inherent methods, which need no import.

mod circles;
mod modules;
mod paths;

use std::collections::BTreeMap;

use self::circles::Circle;
use self::modules::Crate;
use super::Problem;
use crate::rust_text::{self, Layers};

/// The only crate outside `crates/`.
const BENCHMARKS: &str = "benchmarks";

/// The number of edges in a message, beginning with those that are easiest to reverse.
const ARROWS_SHOWN: usize = 2;

/// The shipped modules of one crate.
#[derive(Debug)]
pub(crate) struct Product<'a> {
    /// The name of the crate's folder.
    pub(crate) package: &'a str,
    content: Crate,
}

impl Product<'_> {
    /// Returns the modules as paths from the crate's root. The path of the root itself is empty.
    pub(super) fn modules(&self) -> impl Iterator<Item = &Vec<String>> {
        self.files().map(|(module, _)| module)
    }

    /// Returns the modules, each with its file.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&Vec<String>, &str)> {
        self.content.files()
    }
}

/// Returns the path of a crate, with a slash at the end.
pub(super) fn folder(package: &str) -> String {
    if package == BENCHMARKS {
        format!("{package}/")
    } else {
        format!("crates/{package}/")
    }
}

/// Reads all crates. `files` are all files of the tree.
pub(crate) fn products(files: &[(String, Layers)]) -> Vec<Product<'_>> {
    let mut packages: BTreeMap<&str, Vec<(&str, &str, &Layers)>> = BTreeMap::new();
    for (path, layers) in files {
        let inside = path.strip_prefix("crates/").unwrap_or(path);
        let Some((package, below)) = inside.split_once("/src/") else {
            continue;
        };
        let is_crate = path.starts_with(&folder(package));
        // Other binaries are separate crates.
        if is_crate && !below.starts_with("bin/") && !rust_text::is_test_path(below) {
            let package = packages.entry(package).or_default();
            package.push((below, path, layers));
        }
    }
    let product = |(package, files): (_, Vec<_>)| Product {
        package,
        content: Crate::new(&files),
    };
    packages.into_iter().map(product).collect()
}

/// Checks all crates.
pub(super) fn check(products: &[Product<'_>]) -> Vec<Problem> {
    let circles = products
        .iter()
        .flat_map(|product| circles::find(product.modules(), &product.content.edges()));
    circles.map(|circle| new_circle(&circle)).collect()
}

/// Describes how a cycle closes, at the edge that is easiest to reverse.
fn new_circle(circle: &Circle) -> Problem {
    let arrow = |arrow: &circles::Arrow| {
        // A module can be used without a name: `use super::module;`.
        let names = arrow.names.iter().map(String::as_str);
        let names: Vec<&str> = names.filter(|name| !name.is_empty()).collect();
        let place = format!("{}:{}", arrow.file, arrow.line);
        format!(
            "{} uses {} ({place}: {})",
            arrow.from,
            arrow.to,
            names.join(", ")
        )
    };
    let shown: Vec<String> = circle.arrows.iter().take(ARROWS_SHOWN).map(arrow).collect();
    let message = format!(
        "the modules {} use each other: {}; move what is used below both",
        circle.members.join(", "),
        shown.join(", ")
    );
    let first = circle.arrows.first();
    let (path, line) = first.map_or(("", 1), |arrow| (&arrow.file, arrow.line));
    Problem::new(path, line, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_of_two_files_is_found_with_its_arrows() {
        let files = [
            ("crates/stream/src/lib.rs", "mod job;\nmod task;\n"),
            ("crates/stream/src/job.rs", "\nuse crate::task::Task;\n"),
            (
                "crates/stream/src/task.rs",
                "use super::job::{Job, JobId};\n",
            ),
        ];
        let files = files.map(|(path, text)| (path.to_owned(), Layers::new(text)));
        let problems = check(&products(&files));
        let messages: Vec<String> = problems.iter().map(ToString::to_string).collect();
        let [new] = messages.as_slice() else {
            panic!("{messages:?}");
        };
        assert!(
            new.starts_with("crates/stream/src/job.rs:2: the modules job, task"),
            "{new}"
        );
        assert!(
            new.contains("job uses task (crates/stream/src/job.rs:2: Task)"),
            "{new}"
        );
        assert!(
            new.contains("task uses job (crates/stream/src/task.rs:1: Job, JobId)"),
            "{new}"
        );
    }
}
