//! Finds the modules of one crate and their dependencies.
//!
//! Follows re-exports and a parent's private imports to the module that defines a name, because
//! that module is the one used. Does not see method calls, which need no import, so `impl` blocks
//! of one type in several files can form undetected cycles. Treats an inline `mod x { … }` as part
//! of its file.

use std::collections::BTreeMap;

use super::paths::{self, Paths, Segments};
use crate::rust_text::Layers;

/// The names from the crate's root to a module. Empty for the root.
pub(super) type Module = Vec<String>;

/// The maximum number of re-exports to follow. More would be a cycle.
const STEPS_MAX: usize = 12;

/// One mention of another module.
#[derive(Debug)]
pub(super) struct Edge {
    pub(super) from: Module,
    pub(super) to: Module,
    /// The name that is used; empty for the module itself.
    pub(super) name: String,
    /// The path of the file, and the line.
    pub(super) file: String,
    pub(super) line: usize,
}

/// The shipped modules of a crate.
#[derive(Debug)]
pub(super) struct Crate {
    modules: BTreeMap<Module, (String, Paths)>,
}

impl Crate {
    /// Reads the files of a crate, each with its path below `src/` and its path from the workspace
    /// root.
    pub(super) fn new(files: &[(&str, &str, &Layers)]) -> Self {
        let roots = ["lib.rs", "main.rs"];
        let has = |root: &&str| files.iter().any(|(below, ..)| below == root);
        // The binary next to a library is a separate crate.
        let root = roots.into_iter().find(has).unwrap_or_default();
        let mut modules = BTreeMap::new();
        for (below, file, layers) in files {
            let names = || below.strip_suffix(".rs").unwrap_or(below).split('/');
            let module = if *below == root {
                Vec::new()
            } else {
                names().map(ToOwned::to_owned).collect()
            };
            modules.insert(module, ((*file).to_owned(), paths::read(layers)));
        }
        // Test-only modules are not shipped, and neither is anything below them.
        let declared: Vec<Module> = modules
            .iter()
            .flat_map(|(module, (_, paths))| {
                let child =
                    |name: &String| [module.as_slice(), std::slice::from_ref(name)].concat();
                paths.declared.iter().map(child).collect::<Vec<_>>()
            })
            .collect();
        let is_part = |module: &Module| {
            (1..=module.len()).all(|length| declared.iter().any(|known| *known == module[..length]))
        };
        modules.retain(|module, _| is_part(module));
        Self { modules }
    }

    /// Returns all modules, each with its file.
    pub(super) fn files(&self) -> impl Iterator<Item = (&Module, &str)> {
        let modules = self.modules.iter();
        modules.map(|(module, (file, _))| (module, file.as_str()))
    }

    /// Returns every mention of another module.
    pub(super) fn edges(&self) -> Vec<Edge> {
        let mut edges = Vec::new();
        for (module, (file, paths)) in &self.modules {
            for (segments, line) in &paths.mentioned {
                if let Some((to, name)) = self.resolve(module, segments, STEPS_MAX)
                    && to != *module
                {
                    edges.push(Edge {
                        from: module.clone(),
                        to,
                        name,
                        file: file.clone(),
                        line: *line,
                    });
                }
            }
        }
        edges
    }

    /// Returns the module that defines what a path means in another module, and its name there.
    fn resolve(&self, from: &Module, path: &[String], steps: usize) -> Option<(Module, String)> {
        let steps = steps.checked_sub(1)?;
        let mut base = from.clone();
        let mut rest = match path.first()?.as_str() {
            "crate" => {
                base.clear();
                &path[1..]
            }
            "self" => &path[1..],
            "super" => {
                let ups = path
                    .iter()
                    .take_while(|segment| *segment == "super")
                    .count();
                base.truncate(base.len().checked_sub(ups)?);
                &path[ups..]
            }
            first if self.child(from, first).is_some() => path,
            first => {
                let imported = self.imported(from, first)?;
                let whole = [imported, &path[1..]].concat();
                return (whole != path).then(|| self.resolve(from, &whole, steps))?;
            }
        };
        while let [first, behind @ ..] = rest
            && let Some(child) = self.child(&base, first)
        {
            base = child;
            rest = behind;
        }
        if let [name, behind @ ..] = rest
            && base != *from
            && let Some(imported) = self.imported(&base, name)
        {
            // If the name belongs to another crate, it uses no module of this one.
            return self.resolve(&base, &[imported, behind].concat(), steps);
        }
        let name = rest.first().cloned().unwrap_or_default();
        self.modules.contains_key(&base).then_some((base, name))
    }

    fn child(&self, module: &Module, name: &str) -> Option<Module> {
        let child = [module.as_slice(), &[name.to_owned()]].concat();
        self.modules.contains_key(&child).then_some(child)
    }

    fn imported(&self, module: &Module, name: &str) -> Option<&[String]> {
        let (_, paths) = self.modules.get(module)?;
        paths.imported.get(name).map(Segments::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the edges between the modules of these files, as `from -> to: name`.
    fn arrows(files: &[(&str, &str)]) -> Vec<String> {
        let layers: Vec<Layers> = files.iter().map(|(_, text)| Layers::new(text)).collect();
        let files = files.iter().zip(&layers);
        let files: Vec<_> = files
            .map(|((path, _), layers)| (*path, *path, layers))
            .collect();
        let edges = Crate::new(&files).edges();
        let show = |edge: &Edge| {
            format!(
                "{} -> {}: {}",
                edge.from.join("::"),
                edge.to.join("::"),
                edge.name
            )
        };
        edges.iter().map(show).collect()
    }

    #[test]
    fn paths_are_followed_to_the_module_that_defines_a_name() {
        let found = arrows(&[
            ("lib.rs", "mod a;\nmod b;\npub use a::inner::Deep;\n"),
            ("a.rs", "mod inner;\nmod other;\nuse inner::Deep;\n"),
            (
                "a/inner.rs",
                "use std::fmt;\npub struct Deep;\nimpl fmt::Debug for Deep {}\n",
            ),
            ("a/other.rs", "use super::Deep;\n"),
            (
                "b.rs",
                "use crate::Deep;\nuse crate::a;\nfn f(x: a::Deep) {}\n",
            ),
        ]);
        assert_eq!(
            found,
            [
                " -> a::inner: Deep",
                "a -> a::inner: Deep",
                "a::other -> a::inner: Deep",
                "b -> a::inner: Deep",
                "b -> a: ",
                "b -> a::inner: Deep",
            ]
        );
    }

    #[test]
    fn names_of_other_crates_and_modules_for_tests_are_no_arrows() {
        let found = arrows(&[
            (
                "lib.rs",
                "mod a;\n#[cfg(test)]\nmod b;\npub use other::Thing;\n",
            ),
            (
                "a.rs",
                "use crate::Thing;\nuse other::b::X;\n#[cfg(test)]\nuse crate::b::Y;\n",
            ),
            ("b.rs", "use crate::a::Z;\n"),
            ("c.rs", "use crate::a::Z;\n"),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }
}
