//! The pages in `docs/`. They are embedded in the program, because a login node may have no
//! internet access.

use std::sync::OnceLock;

use hq_core::words::has_word;

use crate::text::rows;

mod search;

pub(crate) use search::{Hit, search};

/// A page of the manual.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    /// The file name without its extension, preceded by the folder name: `quickstart`,
    /// `engines-toil`.
    pub(crate) name: &'static str,
    /// The first heading.
    pub(crate) title: &'static str,
    /// The offset and length of its text within the texts of all pages.
    place: (usize, usize),
}

impl Page {
    /// Returns the text as Markdown.
    pub(crate) fn text(&self) -> &'static str {
        let (start, len) = self.place;
        texts().get(start..start + len).unwrap_or_default()
    }

    /// Returns whether the page lists everything instead of explaining a topic.
    fn is_reference(&self) -> bool {
        matches!(self.name, "cli" | "compatibility" | "changelog")
    }
}

const PAGES: &[(&str, &str, usize)] = include!(concat!(env!("OUT_DIR"), "/pages.rs"));
/// The concatenated texts of all pages, compressed by `build.rs`.
const PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pages.deflate"));

/// Decompresses the texts on first use, because most commands do not need them.
fn texts() -> &'static str {
    static TEXTS: OnceLock<String> = OnceLock::new();
    TEXTS.get_or_init(|| {
        let size = PAGES.iter().map(|(_, _, len)| len).sum();
        let bytes = miniz_oxide::inflate::decompress_to_vec_with_limit(PACKED, size);
        let text = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok());
        text.unwrap_or_else(|| {
            hq_core::bug!("the pages of the program cannot be unpacked");
            String::new()
        })
    })
}

/// Other names of pages, including HyperQueue's topics.
const ALIASES: &str = "
jobs: job tasks task taskarray array arrays submit
workers: worker
resources: resource cpus gpu gpus memory
batch-systems: autoalloc alloc
failures: faq errors retries retry
scripting: json
python: python-api
quickstart: start tutorial run
durability: server resume
sql: query views
journal: repair
streaming: stream
notifications: notify notification
compatibility: hyperqueue
engines: workflow
engines-aiida: aiida
engines-batchtools: batchtools
engines-miniwdl: miniwdl
engines-nextflow: nextflow
engines-psij: psij
engines-python: dask joblib
engines-snakemake: snakemake
engines-streamflow: streamflow
engines-submitit: submitit hydra
engines-toil: toil
python-from-process-pool: processpool
coming-from: parallel xargs
cli: options commands
shell: completion
glossary: terms
symptoms: troubleshooting trouble
changelog: changes
";

/// Returns all pages by name.
pub(crate) fn all() -> impl Iterator<Item = Page> {
    let mut next = 0;
    PAGES.iter().map(move |(name, title, len)| {
        let place = (next, *len);
        next += len;
        Page { name, title, place }
    })
}

/// Returns the other names of a page.
pub(crate) fn aliases(name: &str) -> impl Iterator<Item = &'static str> {
    let of_page = rows(ALIASES).filter(move |(page, _)| *page == name);
    of_page.flat_map(|(_, aliases)| aliases.split(' '))
}

/// Returns the page with this name or alias, or with this file name.
pub(crate) fn find(topic: &str) -> Option<Page> {
    let file = topic.trim_end_matches('/').rsplit('/').next()?;
    let topic = &*file.trim_end_matches(".md").to_lowercase();
    let known = rows(ALIASES).find(|(_, aliases)| has_word(aliases, topic));
    let name = known.map_or(topic, |(page, _)| page);
    all().find(|page| page.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_titles_and_other_names_lead_to_pages() {
        assert!(all().count() > 25);
        for page in all() {
            let first = page.text().lines().next();
            assert_eq!(first, Some(&*format!("# {}", page.title)), "{}", page.name);
        }
        for name in ["output", "output.md", "docs/output.md", "Output/"] {
            assert_eq!(find(name).map(|page| page.name), Some("output"), "{name}");
        }
        for (page, aliases) in rows(ALIASES) {
            assert!(all().any(|other| other.name == page), "{page} is no page");
            for alias in aliases.split(' ') {
                assert!(all().all(|other| other.name != alias), "{alias} is a page");
            }
        }
    }

    /// Messages and help texts refer to pages, and these must exist.
    #[test]
    fn pages_that_are_named_anywhere_exist() {
        fn visit(folder: &std::path::Path, found: &mut Vec<String>) {
            for entry in std::fs::read_dir(folder).expect("sources") {
                let path = entry.expect("sources").path();
                if path.is_dir() {
                    visit(&path, found);
                } else if path.extension().is_some_and(|ending| ending == "rs") {
                    let text = std::fs::read_to_string(&path).expect("a source");
                    let named = text.split("`hq doc ").skip(1);
                    found.extend(named.filter_map(|rest| Some(rest.split_once('`')?.0.to_owned())));
                }
            }
        }
        let mut named = Vec::new();
        let crates = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
        for name in ["cli", "core", "protocol", "server", "worker"] {
            visit(
                &std::path::Path::new(crates).join(name).join("src"),
                &mut named,
            );
        }
        named.retain(|name| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'));
        assert!(named.len() > 10, "{named:?}");
        for name in named {
            assert!(find(&name).is_some(), "`hq doc {name}`");
        }
    }
}
