//! `cargo xtask size`: counts lines and characters of code, and lines of comments.
//!
//! Counts lines with code or the contents of a string, with their characters that are not blank,
//! and lines with only a comment. Blank lines, documentation, tests, test-only code and other
//! languages are left out. The rule is fixed, so that the figures of two versions are comparable;
//! see `docs/testing.md`.

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
    /// The characters in these lines that are not blank.
    characters: usize,
    comments: usize,
}

/// The crates that are not shipped. They are not in the total.
const NOT_SHIPPED: [&str; 2] = ["benchmarks", "xtask"];

impl AddAssign for Lines {
    fn add_assign(&mut self, other: Self) {
        self.code += other.code;
        self.characters += other.characters;
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
        let both = code.chars().chain(string.chars());
        let characters = both.filter(|c| !c.is_whitespace()).count();
        if characters > 0 {
            lines.code += 1;
            lines.characters += characters;
        } else if !comment.trim().is_empty() {
            lines.comments += 1;
        }
    }
    lines
}

fn render(rows: &BTreeMap<String, Lines>) -> String {
    let mut text = format!(
        "{:<20} {:>7} {:>10} {:>9} {:>8}\n",
        "", "code", "characters", "comments", "per 100"
    );
    let mut total = Lines::default();
    let mut row = |name: &str, lines: Lines| {
        // The rate is per hundred lines with one decimal, without floating point.
        let tenths = lines.comments * 1_000 / lines.code.max(1);
        let (whole, decimal) = (tenths / 10, tenths % 10);
        let Lines {
            code,
            characters,
            comments,
        } = lines;
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{name:<20} {code:>7} {characters:>10} {comments:>9} {whole:>6}.{decimal}"
        );
    };
    let is_shipped = |name: &String| !NOT_SHIPPED.contains(&name.as_str());
    for (name, lines) in rows.iter().filter(|(name, _)| is_shipped(name)) {
        row(name, *lines);
        total += *lines;
    }
    row("total", total);
    for (name, lines) in rows.iter().filter(|(name, _)| !is_shipped(name)) {
        row(name, *lines);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_and_comments_that_are_shipped_count() {
        let text = "//! Header.\n\n// Why.\nfn a() { // here\n    \"b\n     c\";\n}\n/// Doc.\n#[cfg(test)]\nmod tests {\n    // Not this.\n    fn b() {}\n}\n";
        let lines = count(&Layers::new(text));
        assert_eq!((lines.code, lines.characters, lines.comments), (4, 12, 1));
    }

    #[test]
    fn figures_are_those_of_each_crate_or_of_the_modules_of_one() {
        let files = [
            ("crates/core/src/lib.rs", "mod a;\n"),
            ("crates/core/src/a.rs", "mod b;\nuse c;\n"),
            ("crates/core/src/a/b.rs", "// D.\nuse d;\n"),
            ("crates/stream/src/lib.rs", "use e;\n"),
            ("crates/xtask/src/main.rs", "use f;\n"),
            ("benchmarks/src/main.rs", "use g;\n"),
            ("fuzz/src/lib.rs", "use h;\n"),
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
        let all = [("benchmarks", 1), ("core", 4), ("stream", 1), ("xtask", 1)];
        assert_eq!(code(None), pairs(&all));
        assert_eq!(code(Some("core")), pairs(&[("(root)", 1), ("a", 3)]));
        assert_eq!(code(Some("other")), pairs(&[]));
        let lines = Lines {
            code: 16,
            characters: 90,
            comments: 1,
        };
        let rows = ["benchmarks", "core"].map(|name| (name.to_owned(), lines));
        let table = render(&rows.into());
        let expected = [("core", "6.2"), ("total", "6.2"), ("benchmarks", "6.2")];
        let shown = table.lines().skip(1).zip(expected);
        for (line, (name, rate)) in shown {
            assert!(line.starts_with(name) && line.ends_with(rate), "{table}");
        }
    }
}
