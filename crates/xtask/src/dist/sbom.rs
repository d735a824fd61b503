//! Writes the program's bill of materials: its packages with versions, licenses and checksums
//! (CycloneDX 1.6).
//!
//! Lists only compiled code; build and test dependencies are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::Context as _;
use serde_json::{Value, json};

use super::{Dist, Made};
use crate::shell::{command, output};

/// The package that contains the program.
const ROOT: &str = "hq-cli";

/// Writes the bill of materials.
pub(super) fn make(dist: &Dist) -> anyhow::Result<Made> {
    let metadata = output(
        command("cargo")
            .args(["metadata", "--locked", "--format-version", "1"])
            .args(["--filter-platform", "x86_64-unknown-linux-gnu"])
            .current_dir(&dist.root),
    )?;
    let metadata: Value =
        serde_json::from_str(&metadata).context("the output of cargo metadata")?;
    let lock = fs::read_to_string(dist.root.join("Cargo.lock")).context("read Cargo.lock")?;
    let lock: toml::Table = lock.parse().context("parse Cargo.lock")?;
    let list = describe(&metadata, &checksums(&lock), &dist.version)?;
    let name = format!("hq-{}.cdx.json", dist.version);
    let text = serde_json::to_string_pretty(&list).context("a list in JSON")?;
    fs::write(dist.out.join(&name), text).with_context(|| format!("write {name}"))?;
    Ok(Made::File(name))
}

/// Returns the SHA-256 checksums in the registry, by name and version.
fn checksums(lock: &toml::Table) -> BTreeMap<(String, String), String> {
    let packages = lock.get("package").and_then(toml::Value::as_array);
    let known = packages.into_iter().flatten().filter_map(|package| {
        let text = |key: &str| package.get(key)?.as_str().map(str::to_owned);
        Some(((text("name")?, text("version")?), text("checksum")?))
    });
    known.collect()
}

fn describe(
    metadata: &Value,
    checksums: &BTreeMap<(String, String), String>,
    version: &str,
) -> anyhow::Result<Value> {
    let packages = list(metadata, "packages");
    let by_id: BTreeMap<&str, &Value> = packages
        .iter()
        .map(|package| (text(package, "id"), package))
        .collect();
    let nodes = list(&metadata["resolve"], "nodes");
    let uses: BTreeMap<&str, Vec<&str>> = nodes
        .iter()
        .map(|node| (text(node, "id"), linked(node)))
        .collect();
    let root = packages
        .iter()
        .find(|package| text(package, "name") == ROOT);
    let root = text(root.context("the package of the program")?, "id");
    let mut seen = BTreeSet::from([root]);
    let mut open = vec![root];
    while let Some(id) = open.pop() {
        for next in uses.get(id).into_iter().flatten() {
            if seen.insert(next) {
                open.push(next);
            }
        }
    }
    let mut components: Vec<Value> = seen
        .iter()
        .filter(|id| **id != root)
        .filter_map(|id| by_id.get(id))
        .map(|package| component(package, checksums))
        .collect();
    components
        .sort_by_key(|component| component["bom-ref"].as_str().unwrap_or_default().to_owned());
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": { "component": {
            "type": "application",
            "bom-ref": "hq",
            "name": "hq",
            "version": version,
            "licenses": [{ "expression": "MIT" }],
        }},
        "components": components,
    }))
}

/// Returns the libraries that a package has compiled into itself.
fn linked(node: &Value) -> Vec<&str> {
    let uses = list(node, "deps").iter().filter(|used| {
        // `null` is a normal dependency; the others are `build` and `dev`.
        list(used, "dep_kinds")
            .iter()
            .any(|kind| kind["kind"].is_null())
    });
    uses.map(|used| text(used, "pkg")).collect()
}

fn component(package: &Value, checksums: &BTreeMap<(String, String), String>) -> Value {
    let (name, version) = (text(package, "name"), text(package, "version"));
    let reference = format!("pkg:cargo/{name}@{version}");
    let mut component =
        json!({ "type": "library", "bom-ref": reference, "name": name, "version": version });
    let is_public = !package["source"].is_null();
    if is_public {
        component["purl"] = json!(reference);
    }
    if let Some(license) = package["license"].as_str() {
        // This is an old notation for alternatives.
        component["licenses"] = json!([{ "expression": license.replace('/', " OR ") }]);
    }
    if let Some(sum) = checksums.get(&(name.to_owned(), version.to_owned())) {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": sum }]);
    }
    component
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_in_the_program_is_listed() {
        let dep = |id: &str, kind: Value| json!({ "pkg": id, "dep_kinds": [{ "kind": kind }] });
        let package = |name: &str| json!({ "id": name, "name": name, "version": "1.0.0", "source": "registry", "license": "MIT/Apache-2.0" });
        let metadata = json!({
            "packages": [package("hq-cli"), package("used"), package("deep"), package("builds"), package("tests")],
            "resolve": { "nodes": [
                { "id": "hq-cli", "deps": [dep("used", Value::Null), dep("tests", json!("dev"))] },
                { "id": "used", "deps": [dep("deep", Value::Null), dep("builds", json!("build"))] },
            ]},
        });
        let sums = BTreeMap::from([(("used".to_owned(), "1.0.0".to_owned()), "abc".to_owned())]);
        let list = describe(&metadata, &sums, "2.0.0").expect("complete");
        let names: Vec<&str> = list["components"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|c| text(c, "name"))
            .collect();
        assert_eq!(names, ["deep", "used"]);
        let used = &list["components"][1];
        assert_eq!(used["licenses"][0]["expression"], "MIT OR Apache-2.0");
        assert_eq!(used["hashes"][0]["content"], "abc");
        assert_eq!(list["metadata"]["component"]["version"], "2.0.0");
    }
}
