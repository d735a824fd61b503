//! The copy of the sources where mutants are made, so that the original is never changed.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

use crate::shell::{command, output};

/// Makes `to` a copy of the sources below `root`. Unchanged files keep their times, so that cargo
/// rebuilds only what has changed since the last run.
pub(super) fn copy_sources(root: &Path, to: &Path) -> anyhow::Result<()> {
    let files = sources(root)?;
    for file in &files {
        copy_if_changed(&root.join(file), &to.join(file))?;
    }
    remove_others(to, &to.join("crates"), &files)
}

/// Returns the files that git tracks or would add, relative to `root`.
fn sources(root: &Path) -> anyhow::Result<BTreeSet<PathBuf>> {
    let list = [
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ];
    let text = output(command("git").args(list).current_dir(root))?;
    let files = text.split_terminator('\0').map(PathBuf::from);
    // A deleted file stays in the index until the deletion is committed.
    Ok(files.filter(|file| root.join(file).is_file()).collect())
}

fn copy_if_changed(from: &Path, to: &Path) -> anyhow::Result<()> {
    let text = fs::read(from).with_context(|| format!("read {}", from.display()))?;
    if fs::read(to).is_ok_and(|there| there == text) {
        return Ok(());
    }
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))?;
    }
    // Permissions are copied as well, because some tests run scripts. The time is the current one,
    // so that cargo notices the change.
    fs::copy(from, to).with_context(|| format!("write {}", to.display()))?;
    Ok(())
}

/// Removes files that are no longer sources: cargo would find a test or an example by its path.
fn remove_others(root: &Path, folder: &Path, files: &BTreeSet<PathBuf>) -> anyhow::Result<()> {
    for entry in fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let path = entry
            .with_context(|| format!("list {}", folder.display()))?
            .path();
        let is_source = path
            .strip_prefix(root)
            .is_ok_and(|name| files.contains(name));
        if path.is_dir() {
            remove_others(root, &path, files)?;
        } else if !is_source {
            fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_files_keep_their_time_others_are_replaced_or_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let write = |path: PathBuf, text: &str| {
            fs::create_dir_all(path.parent().expect("it has one")).expect("made");
            fs::write(path, text).expect("written");
        };
        for (name, text, there) in [("same", "1", "1"), ("changed", "2", "broken")] {
            write(from.join("crates").join(name), text);
            write(to.join("crates").join(name), there);
        }
        write(to.join("crates/a/gone"), "3");
        let time = |name: &str| {
            let file = fs::metadata(to.join("crates").join(name)).expect("there");
            file.modified().expect("a time")
        };
        let before = time("same");
        let files: BTreeSet<PathBuf> = ["same", "changed"]
            .map(|name| Path::new("crates").join(name))
            .into();
        for file in &files {
            copy_if_changed(&from.join(file), &to.join(file)).expect("copied");
        }
        remove_others(&to, &to.join("crates"), &files).expect("removed");
        assert_eq!(time("same"), before);
        let text = fs::read_to_string(to.join("crates/changed")).expect("there");
        assert_eq!(text, "2");
        assert!(!to.join("crates/a/gone").exists());
    }
}
