//! Finds cycles between the modules of each folder.
//!
//! The nodes of a folder are its direct modules, each with everything below it. `foo.rs` belongs to
//! `foo/` and is not a node among its own children: a parent and its children may use each other.
//! Modules that can reach each other form a cycle. Without cycles, every folder can be read from
//! the bottom to the top.

use std::collections::{BTreeMap, BTreeSet};

use super::modules::{Edge, Module};

/// Modules of one folder that use each other.
#[derive(Debug)]
pub(super) struct Circle {
    /// The names of the modules, in order.
    pub(super) members: Vec<String>,
    /// The mentions between them, as edges. Those with the fewest names come first.
    pub(super) arrows: Vec<Arrow>,
}

/// An edge: one module of a folder uses another.
#[derive(Debug)]
pub(super) struct Arrow {
    pub(super) from: String,
    pub(super) to: String,
    /// The names that are used.
    pub(super) names: BTreeSet<String>,
    /// The file and line of the first mention.
    pub(super) file: String,
    pub(super) line: usize,
}

/// Returns all cycles in a crate, outer folders first.
pub(super) fn find<'a>(modules: impl Iterator<Item = &'a Module>, edges: &[Edge]) -> Vec<Circle> {
    let folders: BTreeSet<(usize, &[String])> = modules
        .filter_map(|module| module.split_last())
        .map(|(_, folder)| (folder.len(), folder))
        .collect();
    let circles = folders
        .into_iter()
        .map(|(_, folder)| in_folder(folder, edges));
    circles.flatten().collect()
}

fn in_folder(folder: &[String], edges: &[Edge]) -> Vec<Circle> {
    let mut arrows: BTreeMap<(&str, &str), Arrow> = BTreeMap::new();
    for edge in edges {
        let (Some(from), Some(to)) = (node(folder, &edge.from), node(folder, &edge.to)) else {
            continue;
        };
        if from != to {
            let arrow = arrows.entry((from, to)).or_insert_with(|| Arrow {
                from: from.to_owned(),
                to: to.to_owned(),
                names: BTreeSet::new(),
                file: edge.file.clone(),
                line: edge.line,
            });
            arrow.names.insert(edge.name.clone());
        }
    }
    let mut groups = groups(&arrows.keys().copied().collect());
    let mut circles = Vec::new();
    while let Some(members) = groups.pop_first() {
        let is_inside = |(from, to): &(&str, &str)| members.contains(from) && members.contains(to);
        let inside = arrows.extract_if(.., |ends, _| is_inside(ends));
        let mut inside: Vec<Arrow> = inside.map(|(_, arrow)| arrow).collect();
        inside.sort_by_key(|arrow| arrow.names.len());
        circles.push(Circle {
            members: members.into_iter().map(ToOwned::to_owned).collect(),
            arrows: inside,
        });
    }
    circles
}

/// Returns the direct module of a folder to which a module belongs.
fn node<'a>(folder: &[String], module: &'a Module) -> Option<&'a str> {
    let below = module.strip_prefix(folder)?;
    below.first().map(String::as_str)
}

/// Returns the groups of two or more nodes that can all reach each other.
fn groups<'a>(arrows: &BTreeSet<(&'a str, &'a str)>) -> BTreeSet<BTreeSet<&'a str>> {
    let nodes: BTreeSet<&str> = arrows.iter().flat_map(|(from, to)| [*from, *to]).collect();
    let reached: BTreeMap<&str, BTreeSet<&str>> = nodes
        .iter()
        .map(|node| (*node, reached_from(node, arrows)))
        .collect();
    let group = |node: &&'a str| {
        let is_mutual = |other: &&&'a str| reached[**other].contains(*node);
        reached[*node].iter().filter(is_mutual).copied().collect()
    };
    let groups = nodes.iter().map(group);
    groups
        .filter(|group: &BTreeSet<&str>| group.len() > 1)
        .collect()
}

/// Returns the nodes that can be reached from a node.
fn reached_from<'a>(node: &str, arrows: &BTreeSet<(&'a str, &'a str)>) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![node];
    while let Some(node) = open.pop() {
        for (from, to) in arrows {
            if *from == node && reached.insert(*to) {
                open.push(to);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the cycles formed by these edges between modules, by their members.
    fn circles(arrows: &[(&str, &str)]) -> Vec<String> {
        let module = |path: &str| -> Module { path.split("::").map(ToOwned::to_owned).collect() };
        let edges: Vec<Edge> = arrows
            .iter()
            .map(|(from, to)| Edge {
                from: module(from),
                to: module(to),
                name: "X".to_owned(),
                file: "f.rs".to_owned(),
                line: 1,
            })
            .collect();
        let modules: Vec<Module> = edges
            .iter()
            .flat_map(|edge| [edge.from.clone(), edge.to.clone()])
            .collect();
        let found = find(modules.iter(), &edges);
        let show = |circle: &Circle| circle.members.join(" ");
        found.iter().map(show).collect()
    }

    #[test]
    fn modules_that_reach_each_other_are_a_circle() {
        assert_eq!(
            circles(&[("a", "b"), ("b", "c"), ("a", "c")]),
            Vec::<String>::new()
        );
        let found = circles(&[
            ("a", "b"),
            ("b", "c"),
            ("c", "a"),
            ("c", "d"),
            ("e", "f"),
            ("f", "e"),
        ]);
        assert_eq!(found, ["a b c", "e f"]);
    }

    #[test]
    fn a_module_stands_for_everything_below_it() {
        assert_eq!(circles(&[("a::b::c", "d::e"), ("d", "a")]), ["a d"]);
        assert_eq!(circles(&[("a::b::c", "a::d"), ("a::d", "a::b")]), ["b d"]);
    }

    #[test]
    fn a_parent_and_its_children_may_use_each_other() {
        assert_eq!(
            circles(&[("a", "a::b"), ("a::b", "a")]),
            Vec::<String>::new()
        );
    }
}
