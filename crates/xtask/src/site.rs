//! `cargo xtask site`: builds the manual in `docs/` as a site, with Zensical and the settings in
//! `zensical.toml`.
//!
//! Zensical rejects Markdown links to missing pages and headings. It does not check links to other
//! files, images, HTML and the navigation. So all links of the built pages are checked here.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

use crate::tidy;

/// The output directory, relative to the workspace root. It is also set in `zensical.toml`.
const SITE: &str = "target/site";

/// Builds and checks the site with this Zensical program. Returns the site's directory.
///
/// # Errors
///
/// If Zensical warns, a page in `docs/` is not in the navigation, or a link is broken.
pub(crate) fn site(root: &Path, zensical: &Path) -> anyhow::Result<PathBuf> {
    let out = root.join(SITE);
    if out.exists() {
        fs::remove_dir_all(&out).with_context(|| format!("empty {}", out.display()))?;
    }
    let status = Command::new(zensical)
        .args(["build", "--clean", "--strict"])
        .current_dir(root)
        .status()
        .context("run zensical: `pip install -r packaging/site-requirements.txt`")?;
    ensure!(status.success(), "zensical failed: {status}");
    let mut problems: Vec<String> = tidy::check_manual(root)?;
    // A wrong entry in the navigation would be a broken link on every page.
    if problems.is_empty() {
        problems = check_links(&out, &read_pages(&out)?);
    }
    ensure!(problems.is_empty(), "site:\n{}", problems.join("\n"));
    Ok(out)
}

/// Returns the pages of the site, keyed by their paths relative to its root.
fn read_pages(site: &Path) -> anyhow::Result<BTreeMap<PathBuf, String>> {
    let mut found = BTreeMap::new();
    let mut left = vec![site.to_owned()];
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(&next).with_context(|| format!("list {}", next.display()))? {
            let path = entry.context("list a directory")?.path();
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|found| found == "html") {
                let text = fs::read_to_string(&path);
                let text = text.with_context(|| format!("read {}", path.display()))?;
                let path = path.strip_prefix(site).context("it is below")?;
                found.insert(path.to_owned(), text);
            }
        }
    }
    Ok(found)
}

/// Checks that each link within the site leads to an existing file, and to an element in it, and
/// that nothing is loaded from another host.
fn check_links(site: &Path, pages: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let ids = |text| tags(text).filter_map(|tag| attribute(tag, "id")).collect();
    let ids: BTreeMap<&PathBuf, BTreeSet<&str>> =
        pages.iter().map(|(page, text)| (page, ids(text))).collect();
    let mut problems = Vec::new();
    for (page, text) in pages {
        let names = ["href", "src", "srcset"];
        let links = tags(text)
            .flat_map(|tag| names.map(|name| attribute(tag, name).map(|link| (tag, link))));
        for (tag, link) in links.flatten() {
            if link.starts_with("data:") {
                continue;
            }
            if link.contains("://") || link.starts_with("mailto:") {
                if !tag.starts_with("a ") {
                    problems.push(format!("{}: loads {link}", page.display()));
                }
                continue;
            }
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = resolve(page, path);
            let is_there = if anchor.is_empty() {
                site.join(&target).is_file()
            } else {
                let ids = ids.get(&target);
                ids.is_some_and(|ids| ids.contains(anchor))
            };
            // The browser itself defines `#` as the top of the page.
            if !is_there && link != "#" {
                problems.push(format!("{}: leads to {link}", page.display()));
            }
        }
    }
    problems
}

/// Returns the tags of a page without `<`. In text, this character is escaped.
fn tags(text: &str) -> impl Iterator<Item = &str> {
    let tags = text.split('<').skip(1);
    tags.filter_map(|rest| Some(rest.split_once('>')?.0))
}

fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = tag.split_once(&format!(" {name}=\""))?;
    Some(rest.split_once('"')?.0)
}

/// Returns the path of a link in a page, relative to the root of the site.
fn resolve(page: &Path, link: &str) -> PathBuf {
    let start = match link {
        "" => page,
        _ => page.parent().unwrap_or(page),
    };
    let mut path = PathBuf::new();
    for part in start.join(link).components() {
        match part {
            Component::Normal(name) => path.push(name),
            Component::ParentDir => {
                path.pop();
            }
            Component::RootDir => path.clear(),
            Component::CurDir | Component::Prefix(_) => {}
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(files: &[(&str, &str)]) -> BTreeMap<PathBuf, String> {
        let files = files.iter();
        files
            .map(|&(path, text)| (path.into(), text.to_owned()))
            .collect()
    }

    #[test]
    fn links_lead_to_files_and_elements() {
        let site = tempfile::tempdir().expect("a directory");
        fs::create_dir(site.path().join("a")).expect("a directory");
        for name in ["x.yaml", "a/b.html", "c.html"] {
            fs::write(site.path().join(name), "").expect("a file");
        }
        let other = r#"<h2 id="there"></h2><code>&lt;a href="no"</code>"#;
        for (tag, is_good) in [
            (r#"<a href="../c.html">"#, true),
            (r#"<a href="../c.html#there">"#, true),
            (r#"<a href="/c.html">"#, true),
            (r##"<a id="x" href="#x">"##, true),
            (r#"<a href="../x.yaml">"#, true),
            (r#"<a href="https://example.org/">"#, true),
            (r#"<img src="data:image/png;base64,">"#, true),
            (r#"<a href="c.html">"#, false),
            (r#"<a href="../c.html#gone">"#, false),
            (r##"<a href="#there">"##, false),
            (r#"<a href="..">"#, false),
            (r#"<img src="none.png">"#, false),
            (r#"<source srcset="none.png">"#, false),
            (r#"<script src="https://example.org/x.js">"#, false),
            (
                r#"<link rel="preconnect" href="https://example.org">"#,
                false,
            ),
        ] {
            let pages = files(&[("a/b.html", tag), ("c.html", other)]);
            let problems = check_links(site.path(), &pages);
            assert_eq!(problems.is_empty(), is_good, "{tag}: {problems:?}");
        }
    }
}
