//! The pages of `docs/`, which every program carries along: a login node may see no web.

/// One page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page {
    /// Name of the file without its ending.
    pub(crate) name: &'static str,
    /// Markdown.
    pub(crate) text: &'static str,
}

impl Page {
    /// Its first heading.
    pub(crate) fn title(&self) -> &'static str {
        let first = self.text.lines().next().unwrap_or_default();
        first.trim_start_matches('#').trim()
    }
}

const PAGES: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/pages.rs"));

/// Other names of pages, those of HyperQueue's topics among them.
const ALIASES: &[(&str, &str)] = &[
    ("job", "jobs"),
    ("tasks", "jobs"),
    ("task", "jobs"),
    ("taskarray", "jobs"),
    ("array", "jobs"),
    ("arrays", "jobs"),
    ("submit", "jobs"),
    ("worker", "workers"),
    ("resource", "resources"),
    ("cpus", "resources"),
    ("gpu", "resources"),
    ("gpus", "resources"),
    ("memory", "resources"),
    ("autoalloc", "slurm"),
    ("alloc", "slurm"),
    ("faq", "failures"),
    ("errors", "failures"),
    ("python-api", "scripting"),
    ("python", "scripting"),
    ("json", "scripting"),
    ("start", "quickstart"),
    ("tutorial", "quickstart"),
    ("run", "quickstart"),
    ("retry", "retries"),
    ("server", "durability"),
    ("journal", "durability"),
    ("sql", "durability"),
    ("query", "durability"),
    ("stream", "streaming"),
    ("notify", "notifications"),
    ("notification", "notifications"),
    ("hyperqueue", "compatibility"),
    ("parallel", "coming-from"),
    ("xargs", "coming-from"),
    ("options", "cli"),
    ("commands", "cli"),
    ("completion", "shell"),
    ("terms", "glossary"),
    ("changes", "changelog"),
];

/// All pages by name.
pub(crate) fn all() -> impl Iterator<Item = Page> {
    PAGES.iter().map(|(name, text)| Page { name, text })
}

/// Other names of a page.
pub(crate) fn aliases(name: &str) -> impl Iterator<Item = &'static str> {
    let of_page = ALIASES.iter().filter(move |(_, page)| *page == name);
    of_page.map(|(alias, _)| *alias)
}

/// The page with this name, or with this other name.
pub(crate) fn find(topic: &str) -> Option<Page> {
    let known = ALIASES.iter().find(|(alias, _)| *alias == topic);
    let name = known.map_or(topic, |(_, page)| page);
    all().find(|page| page.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_titles_and_other_names_lead_to_pages() {
        assert!(all().count() > 25);
        for page in all() {
            assert!(!page.title().is_empty(), "{}", page.name);
        }
        for (alias, page) in ALIASES {
            assert!(all().all(|other| other.name != *alias), "{alias} is a page");
            assert!(all().any(|other| other.name == *page), "{page} is no page");
        }
    }

    /// Messages and help texts send people to pages, which have to be there.
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
