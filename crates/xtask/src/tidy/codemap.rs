//! The code map in `docs/architecture.md`: it must name every module, and none that does not exist.
//!
//! It must name the modules directly below a crate's root, except test-only ones. If the map names
//! modules of a folder (`folder/{one,two}`), it must name all of them. The check reads the rows of
//! the table whose first cell is empty or a crate in bold, and the names in backticks in their
//! second cell.
//!
//! Sections about where to begin a change contain whole paths, which must exist.

use std::collections::BTreeSet;

use super::Problem;
use super::imports::{self, Product};

/// The page that contains the map.
pub(super) const PATH: &str = "docs/architecture.md";

/// Sections that contain whole paths, as page and heading.
const WHOLE_PATHS: [(&str, &str); 2] = [
    (PATH, "## Where a change begins"),
    ("docs/new-batch-system.md", "# Adding a batch system"),
];

/// Endings of names that are files.
const EXTENSIONS: [&str; 7] = [".rs", ".toml", ".proto", ".js", ".css", ".md", ".yaml"];

/// A module that the map names.
#[derive(PartialEq, Eq, PartialOrd, Ord, Clone, Debug)]
struct Named {
    package: String,
    /// Either `module` or `folder/module`.
    name: String,
    line: usize,
}

/// Checks the map. `paths` are all paths of the tree.
pub(super) fn check(page: &str, products: &[Product], paths: &[String]) -> Vec<Problem> {
    let named = named(page);
    let mut problems = Vec::new();
    for module in &named {
        let folder = imports::folder(&module.package);
        let is_there = paths.iter().any(|path| {
            let below = path.strip_prefix(&folder);
            below.is_some_and(|below| is_at(below, &module.name))
        });
        if !is_there {
            let message = format!(
                "the code map names `{}`, which is gone from {folder}",
                module.name
            );
            problems.push(Problem::new(PATH, module.line, message));
        }
    }
    for product in products {
        let of_package: BTreeSet<&str> = named
            .iter()
            .filter(|module| module.package == product.package)
            .map(|module| module.name.as_str())
            .collect();
        for module in product.modules() {
            let name = module.join("/");
            let must_be_named = match module.as_slice() {
                [_] => true,
                [folder, _] => {
                    let folder = format!("{folder}/");
                    of_package.iter().any(|known| known.starts_with(&folder))
                }
                _ => false,
            };
            if must_be_named && !of_package.contains(name.as_str()) {
                let package = product.package;
                let message = format!("the code map does not name `{name}` of {package}; add it");
                problems.push(Problem::new(PATH, 1, message));
            }
        }
    }
    problems
}

/// Checks that every path in backticks in these sections exists.
pub(super) fn check_paths(page: &str, text: &str, paths: &[String]) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (_, heading) in WHOLE_PATHS.iter().filter(|(path, _)| *path == page) {
        let lines = text.lines().zip(1..);
        let mut section = lines.skip_while(|(line, _)| line != heading);
        if section.next().is_none() {
            let message = format!("the heading `{heading}` is gone; paths below it are checked");
            problems.push(Problem::new(page, 1, message));
        }
        let level = heading.trim_start_matches('#');
        let level = &heading[..=heading.len() - level.len()];
        for (line, number) in section.take_while(|(line, _)| !line.starts_with(level)) {
            let names = line.split('`').skip(1).step_by(2);
            for name in names.filter(|name| is_path(name) && !exists(name, paths)) {
                let message = format!(
                    "`{name}` does not exist; name the whole path from the root, a folder with `/` behind it"
                );
                problems.push(Problem::new(page, number, message));
            }
        }
    }
    problems
}

/// Returns whether a name in backticks is a file or a folder.
fn is_path(name: &str) -> bool {
    name.contains('/') || EXTENSIONS.iter().any(|extension| name.ends_with(extension))
}

fn exists(name: &str, paths: &[String]) -> bool {
    paths.iter().any(|path| {
        let rest = path.strip_prefix(name);
        // The name of a folder ends with a slash and is not empty.
        rest.is_some_and(|rest| rest.is_empty() || name.ends_with('/'))
    })
}

/// Returns whether a path below a crate is the file or the folder of a module.
fn is_at(below: &str, name: &str) -> bool {
    // The schema is next to `src/`.
    let below = below.strip_prefix("src/").unwrap_or(below);
    below
        .strip_prefix(name)
        .is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// Returns the modules that the table names.
fn named(page: &str) -> Vec<Named> {
    let mut package = None;
    let mut named = Vec::new();
    for (line, number) in page.lines().zip(1..) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let ["", first, second, _, ""] = cells.as_slice() else {
            // Other tables follow the map.
            package = None;
            continue;
        };
        if let Some(bold) = first
            .strip_prefix("**")
            .and_then(|cell| cell.strip_suffix("**"))
        {
            package = Some(bold);
        }
        let Some(package) = package else {
            continue;
        };
        for name in second.split('`').skip(1).step_by(2).flat_map(modules) {
            named.push(Named {
                package: package.to_owned(),
                name,
                line: number,
            });
        }
    }
    named
}

/// Returns the modules denoted by one name in backticks. A folder with some of its modules also
/// denotes itself.
fn modules(name: &str) -> Vec<String> {
    let group = name
        .strip_suffix('}')
        .and_then(|name| name.split_once("/{"));
    let Some((folder, inside)) = group else {
        return vec![name.trim_end_matches('/').to_owned()];
    };
    let below = inside
        .split(',')
        .map(|child| format!("{folder}/{}", child.trim()));
    std::iter::once(folder.to_owned()).chain(below).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rust_text::Layers;
    use crate::tidy::imports;

    const FILES: &[(&str, &str)] = &[
        (
            "crates/core/src/lib.rs",
            "mod id;\nmod job;\n#[cfg(test)]\nmod bench;\n",
        ),
        ("crates/core/src/id.rs", ""),
        ("crates/core/src/bench.rs", ""),
        ("crates/core/src/job.rs", "mod one;\nmod two;\n"),
        ("crates/core/src/job/one.rs", ""),
        ("crates/core/src/job/two.rs", ""),
    ];

    /// Returns the problems of a map with these rows.
    fn problems(rows: &str) -> Vec<String> {
        let files: Vec<(String, Layers)> = FILES
            .iter()
            .map(|(path, text)| ((*path).to_owned(), Layers::new(text)))
            .collect();
        let paths: Vec<String> = files.iter().map(|(path, _)| path.clone()).collect();
        let page = format!(
            "# A\n\n| crate | module | does |\n|---|---|---|\n{rows}\n\n| `x` | `y` | z |\n"
        );
        let found = check(&page, &imports::products(&files), &paths);
        found
            .iter()
            .map(|problem| problem.message.clone())
            .collect()
    }

    #[test]
    fn every_module_has_its_name_in_the_map() {
        assert_eq!(
            problems("| **core** | `id` | a |\n| | `job/` | b |"),
            Vec::<String>::new()
        );
        assert_eq!(
            problems("| **core** | `id`, `job/{one,two}` | a |"),
            Vec::<String>::new()
        );
        let found = problems("| **core** | `id` | a |");
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("`job`"), "{found:?}");
    }

    #[test]
    fn a_folder_is_named_whole_or_as_one() {
        let found = problems("| **core** | `id`, `job/{one}` | a |");
        assert_eq!(found.len(), 1);
        assert!(found[0].contains("`job/two`"), "{found:?}");
    }

    #[test]
    fn a_change_begins_at_paths_that_exist() {
        let (page, heading) = WHOLE_PATHS[0];
        let paths: Vec<String> = FILES.iter().map(|(path, _)| (*path).to_owned()).collect();
        let problems = |rows: &str| {
            let text = format!("`gone/a.rs`\n\n{heading}\n\n{rows}\n\n## B\n\n`gone/b.rs`\n");
            let found = check_paths(page, &text, &paths);
            found.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let whole = "| `hq job` | `crates/core/src/job.rs`, `crates/core/src/job/` |";
        assert_eq!(problems(whole), Vec::<String>::new());
        for short in ["job.rs", "core/job.rs", "crates/core/src/job", "src/jo/"] {
            let found = problems(&format!("{whole}\n| b | `{short}` | |"));
            assert_eq!(found.len(), 1, "{short}: {found:?}");
            let is_told = found[0].contains(":6: ") && found[0].contains(short);
            assert!(is_told, "{found:?}");
        }
        assert_eq!(check_paths(page, "# A\n", &paths).len(), 1, "no heading");
        let other = check_paths("docs/other.md", "`gone.rs`\n", &paths);
        assert_eq!(other, []);
    }

    #[test]
    fn names_of_modules_that_are_gone_are_noticed() {
        let found = problems("| **core** | `id`, `job/{one,two,three}`, `jo` | a |");
        assert_eq!(found.len(), 2);
        assert!(
            found[0].contains("`job/three`") && found[1].contains("`jo`"),
            "{found:?}"
        );
    }
}
