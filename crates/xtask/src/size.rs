//! `cargo xtask size`: counts lines of shipped code, and of comments.
//!
//! Counts lines with code or the contents of a string, and lines with only a comment. Blank lines,
//! documentation, tests, test-only code and other languages are left out. The rule is fixed, so
//! that the figures of two versions are comparable; see `docs/testing.md`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::AddAssign;
use std::path::Path;

use anyhow::ensure;

use crate::rust_text::Layers;
use crate::tidy::{self, Product};

/// The lines of a file, a module or a crate.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Lines {
    code: usize,
    comments: usize,
}

impl AddAssign for Lines {
    fn add_assign(&mut self, other: Self) {
        self.code += other.code;
        self.comments += other.comments;
    }
}

/// Returns the figures of each crate, or of each module of one crate, as lines of text.
///
/// # Errors
///
/// If a file cannot be read, or the crate does not exist.
pub(crate) fn table(root: &Path, package: Option<&str>) -> anyhow::Result<String> {
    let sources = tidy::sources(root)?;
    let counted: BTreeMap<&str, Lines> = sources
        .iter()
        .map(|(path, layers)| (path.as_str(), count(layers)))
        .collect();
    let products = tidy::products(&sources);
    let rows = sums(&products, package, &counted);
    let names: Vec<&str> = products.iter().map(|product| product.package).collect();
    ensure!(
        !rows.is_empty(),
        "no such crate; there are {}",
        names.join(", ")
    );
    Ok(render(&rows))
}

/// Adds up the files of each crate, or of each direct module of one crate.
fn sums(
    products: &[Product<'_>],
    package: Option<&str>,
    counted: &BTreeMap<&str, Lines>,
) -> BTreeMap<String, Lines> {
    let mut rows: BTreeMap<String, Lines> = BTreeMap::new();
    for product in products {
        for (module, file) in product.files() {
            let name = match package {
                // This crate is not shipped.
                None if product.package == "xtask" => continue,
                None => product.package.to_owned(),
                Some(package) if package == product.package => {
                    module.first().map_or("(root)", String::as_str).to_owned()
                }
                Some(_) => continue,
            };
            *rows.entry(name).or_default() += counted.get(file).copied().unwrap_or_default();
        }
    }
    rows
}

fn count(layers: &Layers) -> Lines {
    let mut lines = Lines::default();
    let code = layers.code.lines().zip(layers.strings.lines());
    for ((code, string), comment) in code.zip(layers.comments.lines()) {
        if !code.trim().is_empty() || !string.trim().is_empty() {
            lines.code += 1;
        } else if !comment.trim().is_empty() {
            lines.comments += 1;
        }
    }
    lines
}

fn render(rows: &BTreeMap<String, Lines>) -> String {
    let mut text = format!(
        "{:<20} {:>7} {:>9} {:>8}\n",
        "", "code", "comments", "per 100"
    );
    let mut total = Lines::default();
    let mut row = |name: &str, lines: Lines| {
        // The rate is per hundred lines with one decimal, without floating point.
        let tenths = lines.comments * 1_000 / lines.code.max(1);
        let (whole, decimal) = (tenths / 10, tenths % 10);
        let Lines { code, comments } = lines;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{name:<20} {code:>7} {comments:>9} {whole:>6}.{decimal}"
        );
    };
    for (name, lines) in rows {
        row(name, *lines);
        total += *lines;
    }
    row("total", total);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_and_comments_that_are_shipped_count() {
        let text = "//! Header.\n\n// Why.\nfn a() { // here\n    \"b\n     c\";\n}\n/// Doc.\n#[cfg(test)]\nmod tests {\n    // Not this.\n    fn b() {}\n}\n";
        let lines = count(&Layers::new(text));
        assert_eq!((lines.code, lines.comments), (4, 1));
    }

    #[test]
    fn figures_are_those_of_each_crate_or_of_the_modules_of_one() {
        let files = [
            ("crates/core/src/lib.rs", "mod a;\n"),
            ("crates/core/src/a.rs", "mod b;\nuse c;\n"),
            ("crates/core/src/a/b.rs", "// D.\nuse d;\n"),
            ("crates/stream/src/lib.rs", "use e;\n"),
            ("crates/xtask/src/main.rs", "use f;\n"),
        ];
        let files = files.map(|(path, text)| (path.to_owned(), Layers::new(text)));
        let counted = files
            .iter()
            .map(|(path, layers)| (path.as_str(), count(layers)))
            .collect();
        let products = tidy::products(&files);
        let code = |package: Option<&str>| -> Vec<(String, usize)> {
            let rows = sums(&products, package, &counted);
            rows.into_iter()
                .map(|(name, lines)| (name, lines.code))
                .collect()
        };
        let pairs = |rows: &[(&str, usize)]| -> Vec<(String, usize)> {
            rows.iter()
                .map(|(name, count)| ((*name).to_owned(), *count))
                .collect()
        };
        assert_eq!(code(None), pairs(&[("core", 4), ("stream", 1)]));
        assert_eq!(code(Some("core")), pairs(&[("(root)", 1), ("a", 3)]));
        assert_eq!(code(Some("other")), pairs(&[]));
        let lines = Lines {
            code: 16,
            comments: 1,
        };
        assert!(render(&BTreeMap::from([("core".to_owned(), lines)])).contains("6.2"));
    }
}
