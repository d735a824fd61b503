//! Checks the pages in `docs/`: all are in the navigation of the site, and lists render the same on
//! GitHub and on the site.

use std::collections::BTreeSet;

use anyhow::Context as _;

use super::Problem;

/// The settings of the site.
pub(super) const PATH: &str = "zensical.toml";

/// Checks that the navigation contains every page of the manual, and nothing else.
///
/// # Errors
///
/// If the settings are not valid.
pub(super) fn check_navigation(settings: &str, files: &[String]) -> anyhow::Result<Vec<Problem>> {
    let settings: toml::Table = settings.parse().with_context(|| format!("parse {PATH}"))?;
    let mut named = BTreeSet::new();
    let mut left = vec![&settings["project"]["nav"]];
    while let Some(value) = left.pop() {
        if let Some(page) = value.as_str() {
            named.insert(format!("docs/{page}"));
        } else if let Some(list) = value.as_array() {
            left.extend(list);
        } else if let Some(table) = value.as_table() {
            left.extend(table.values());
        }
    }
    let pages = files.iter().filter(|path| is_page(path)).cloned();
    let pages: BTreeSet<String> = pages.collect();
    let missing = pages.difference(&named);
    let missing = missing.map(|page| {
        Problem::new(
            page,
            1,
            format!("is not in `nav` of {PATH}: add it to a section"),
        )
    });
    let unknown = named.difference(&pages);
    let unknown = unknown
        .map(|page| Problem::new(PATH, 1, format!("`nav` names {page}, which does not exist")));
    Ok(missing.chain(unknown).collect())
}

fn is_page(path: &str) -> bool {
    path.starts_with("docs/") && path.ends_with(".md")
}

/// The page whose tables list tests by name.
pub(super) const TESTS: &str = "docs/testing.md";

/// Returns the tests that this page names and that do not exist.
pub(super) fn check_tests(page: &str, exists: impl Fn(&str) -> bool) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (number, line) in (1..).zip(page.lines()) {
        let words = line.split('`').skip(1).step_by(2);
        // The names of tests are sentences.
        let is_test = |word: &&str| word.matches('_').count() > 3;
        for word in words.filter(is_test).filter(|word| !exists(word)) {
            let message =
                format!("there is no test `{word}`: name the one that holds the sentence");
            problems.push(Problem::new(TESTS, number, message));
        }
    }
    problems
}

/// Checks the indentation in lists: GitHub treats a block indented by two spaces as part of the
/// item above, but the site requires four.
pub(super) fn check_lists(path: &str, text: &str) -> Vec<Problem> {
    let mut problems = Vec::new();
    if !is_page(path) {
        return problems;
    }
    let mut is_code = false;
    let mut is_after_blank = false;
    for (number, line) in (1..).zip(text.lines()) {
        let indent = line.len() - line.trim_start_matches(' ').len();
        let is_fence = line.trim_start().starts_with("```");
        if !is_code && (is_after_blank || is_fence) && (1..4).contains(&indent) {
            let message =
                "indent this by four spaces, or the site does not show it in the item above";
            problems.push(Problem::new(path, number, message));
        }
        is_code ^= is_fence;
        is_after_blank = line.trim().is_empty();
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_that_the_page_names_have_to_exist() {
        let page = "| a | `a_test_that_is_there`, `one_that_is_not_there` |\nuse `hq token`";
        let found = check_tests(page, |name| name == "a_test_that_is_there");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].to_string().contains("`one_that_is_not_there`"));
    }

    #[test]
    fn pages_and_navigation_are_the_same() {
        let files = [
            "docs/README.md",
            "docs/adr/1.md",
            "docs/new.md",
            "docs/x.png",
            "README.md",
        ];
        let settings =
            r#"project.nav = [{ Start = ["README.md", { More = ["adr/1.md"] }, "old.md"] }]"#;
        let problems = check_navigation(settings, &files.map(str::to_owned)).expect("valid");
        let found = problems.iter().map(|problem| &*problem.path);
        assert_eq!(found.collect::<Vec<_>>(), ["docs/new.md", PATH]);
    }

    #[test]
    fn blocks_in_lists_are_indented_by_four() {
        for (text, lines) in [
            (
                "* one\n  goes on\n\n    ```\n  code\n\n  code\n    ```\n",
                &[][..],
            ),
            ("* one\n\n  more\n", &[3]),
            ("* one\n  ```\n  code\n  ```\n* two\n", &[2]),
        ] {
            let problems = check_lists("docs/a.md", text);
            let found = problems.iter().map(|problem| problem.line);
            assert_eq!(found.collect::<Vec<_>>(), lines, "{text}");
        }
    }
}
