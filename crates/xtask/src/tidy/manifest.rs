//! Allowed dependencies: the edges of the architecture, and where each external crate may be used.
//!
//! Knows only `Cargo.toml` files. The tables below define the architecture; changing one is a
//! decision.

use anyhow::Context as _;
use toml::{Table, Value};

use super::Problem;

/// Our crates and their allowed dependencies on each other.
const EDGES: &[(&str, &[&str])] = &[
    ("hq-core", &[]),
    ("hq-spawn", &["hq-private"]),
    ("hq-private", &[]),
    ("hq-protocol", &["hq-core", "hq-private"]),
    ("hq-store", &["hq-core", "hq-private", "hq-protocol"]),
    ("hq-stream", &["hq-private"]),
    (
        "hq-server",
        &["hq-core", "hq-private", "hq-protocol", "hq-store"],
    ),
    (
        "hq-worker",
        &[
            "hq-core",
            "hq-private",
            "hq-protocol",
            "hq-spawn",
            "hq-stream",
        ],
    ),
    (
        "hq-cli",
        &[
            "hq-core",
            "hq-private",
            "hq-protocol",
            "hq-server",
            "hq-spawn",
            "hq-store",
            "hq-stream",
            "hq-worker",
        ],
    ),
    (
        "hq-benchmarks",
        &[
            "hq-core",
            "hq-protocol",
            "hq-server",
            "hq-spawn",
            "hq-store",
            "hq-stream",
        ],
    ),
    ("xtask", &[]),
    ("hq-fuzz", &["hq-cli", "hq-core", "hq-protocol", "hq-store"]),
];

/// External crates, and the only crates that may use them.
const PLACES: &[(&str, &[&str])] = &[
    ("rusqlite", &["hq-store"]),
    ("rusqlite_migration", &["hq-store"]),
    ("prost", &["hq-protocol"]),
    ("prost-build", &["hq-protocol"]),
    ("protox", &["hq-protocol"]),
    ("snow", &["hq-protocol"]),
    ("libc", &["hq-spawn"]),
    ("axum", &["hq-server"]),
    ("hyper", &["hq-server"]),
    ("hyper-util", &["hq-server"]),
    ("ring", &["hq-server", "hq-worker"]),
    ("prometheus-client", &["hq-server"]),
    // The client has no web server, but its tests run one.
    ("rustls", &["hq-server", "hq-cli"]),
    ("rcgen", &["hq-cli"]),
    ("ureq", &["hq-server"]),
    ("ratatui", &["hq-cli"]),
    ("crossterm", &["hq-cli"]),
    ("clap", &["hq-cli", "hq-benchmarks", "xtask"]),
    ("clap_complete", &["hq-cli"]),
    ("clap_mangen", &["hq-cli"]),
    (
        "tokio",
        &[
            "hq-protocol",
            "hq-server",
            "hq-spawn",
            "hq-stream",
            "hq-worker",
            "hq-cli",
            // Benchmarks simulate a thousand workers in one process.
            "hq-benchmarks",
        ],
    ),
];

/// All external crates that core may use, except in tests.
const CORE_EXTERNAL: &[&str] = &["thiserror", "tracing"];

const SECTIONS: &[&str] = &["dependencies", "dev-dependencies", "build-dependencies"];

/// Checks one manifest.
pub(super) fn check(path: &str, text: &str) -> anyhow::Result<Vec<Problem>> {
    let manifest: Table = text.parse().with_context(|| format!("parse {path}"))?;
    let mut problems = Vec::new();
    let mut add = |key: &str, message: String| {
        problems.push(Problem::new(path, line_of(text, key), message));
    };
    let Some(Value::String(package)) = manifest.get("package").and_then(|p| p.get("name")) else {
        return Ok(problems);
    };
    let Some((_, allowed)) = EDGES.iter().find(|(name, _)| name == package) else {
        add(
            "name",
            format!("`{package}` is not part of the architecture; say in EDGES what it may use"),
        );
        return Ok(problems);
    };
    // A manifest that is its own workspace cannot inherit anything.
    let is_apart = manifest.contains_key("workspace");
    let shares_lints = manifest
        .get("lints")
        .and_then(|lints| lints.get("workspace"))
        == Some(&Value::Boolean(true));
    if !is_apart && !shares_lints {
        add(
            "name",
            format!("`{package}` does not share the lints; add `[lints] workspace = true`"),
        );
    }
    for (section, name, value) in dependencies(&manifest) {
        let inherits = value.get("workspace") == Some(&Value::Boolean(true));
        if !is_apart && !inherits {
            let advice = "write `workspace = true` and put its version into the root table";
            add(
                name,
                format!("`{name}` has a version or path of its own; {advice}"),
            );
        }
        let ours = EDGES.iter().any(|(own, _)| *own == name);
        if ours && !allowed.contains(&name) && name != package {
            let advice = "move what you need to a crate that both may use";
            add(name, format!("`{package}` may not use `{name}`; {advice}"));
        }
        check_place(package, section, name, value, &mut add);
    }
    Ok(problems)
}

fn check_place(
    package: &str,
    section: &str,
    name: &str,
    value: &Value,
    add: &mut impl FnMut(&str, String),
) {
    let place = PLACES.iter().find(|(external, _)| *external == name);
    if let Some((_, places)) = place.filter(|(_, places)| !places.contains(&package)) {
        let places = places.join(", ");
        add(
            name,
            format!("`{name}` belongs to {places}; use what they offer instead"),
        );
    }
    let is_ours = EDGES.iter().any(|(own, _)| *own == name);
    if package == "hq-core"
        && section == "dependencies"
        && !is_ours
        && !CORE_EXTERNAL.contains(&name)
    {
        add(
            name,
            format!("core does not need `{name}`; keep it to the standard library"),
        );
    }
    let is_optional = value.get("optional") == Some(&Value::Boolean(true));
    if package == "hq-spawn" && name == "tokio" && section == "dependencies" && !is_optional {
        add(
            name,
            "spawn works without a runtime; make `tokio` optional".to_owned(),
        );
    }
}

/// Returns all dependencies with their section, including platform-specific ones.
fn dependencies(manifest: &Table) -> Vec<(&'static str, &str, &Value)> {
    let platforms = manifest.get("target").and_then(Value::as_table);
    let tables = platforms
        .into_iter()
        .flat_map(Table::values)
        .filter_map(Value::as_table);
    let mut found = Vec::new();
    for table in std::iter::once(manifest).chain(tables) {
        for section in SECTIONS.iter().copied() {
            let entries = table.get(section).and_then(Value::as_table);
            let entries = entries.into_iter().flatten();
            found.extend(entries.map(|(name, value)| (section, name.as_str(), value)));
        }
    }
    found
}

/// Returns the first line that starts with this key, or 1 if there is none.
fn line_of(text: &str, key: &str) -> usize {
    let begins = |line: &str| {
        let rest = line.trim_start().strip_prefix(key);
        rest.is_some_and(|rest| rest.starts_with(['.', ' ', '=']))
    };
    text.lines().position(begins).map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(manifest: &str) -> Vec<String> {
        let found = check("m", manifest).expect("valid manifest");
        found.iter().map(ToString::to_string).collect()
    }

    fn member(name: &str, rest: &str) -> Vec<String> {
        messages(&format!(
            "[package]\nname = \"{name}\"\n[lints]\nworkspace = true\n{rest}"
        ))
    }

    #[test]
    fn accepts_the_arrows_of_the_architecture() {
        let rest = "[dependencies]\nhq-core.workspace = true\nprost.workspace = true\n";
        assert_eq!(member("hq-protocol", rest), Vec::<String>::new());
    }

    #[test]
    fn refuses_other_arrows_and_places() {
        let server = member("hq-server", "[dependencies]\nhq-worker.workspace = true\n");
        assert_eq!(server.len(), 1);
        assert!(
            server[0].starts_with("m:6: `hq-server` may not use `hq-worker`"),
            "{server:?}"
        );
        let unix = "[target.'cfg(unix)'.dependencies]\nlibc.workspace = true\n";
        assert_eq!(member("hq-worker", unix).len(), 1);
        assert_eq!(
            member("hq-core", "[dependencies]\nserde.workspace = true\n").len(),
            1
        );
        assert_eq!(
            member("hq-spawn", "[dependencies]\ntokio.workspace = true\n").len(),
            1
        );
        assert_eq!(
            member("hq-spawn", "[dev-dependencies]\ntokio.workspace = true\n").len(),
            0
        );
    }

    #[test]
    fn refuses_versions_outside_the_root_table() {
        assert_eq!(member("hq-cli", "[dependencies]\nserde = \"1\"\n").len(), 1);
    }

    #[test]
    fn a_workspace_of_its_own_has_its_own_versions_but_the_same_arrows() {
        let manifest = |uses: &str| {
            messages(&format!(
                "[package]\nname = \"hq-fuzz\"\n[workspace]\n[dependencies]\n{uses}\n"
            ))
        };
        assert_eq!(manifest("bytes = \"1\""), Vec::<String>::new());
        assert_eq!(manifest("hq-spawn = { path = \"x\" }").len(), 1);
    }

    #[test]
    fn refuses_unknown_crates_and_missing_lints() {
        assert_eq!(member("hq-new", "").len(), 1);
        assert_eq!(messages("[package]\nname = \"hq-core\"\n").len(), 1);
    }
}
