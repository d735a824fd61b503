//! Creates the directories of allocations, keeps them for a while, and removes them.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};

/// The maximum number of directories that are kept for ended allocations, across all queues.
const KEPT_MAX: usize = 20;

/// The name of the script in the directory of an allocation.
pub(super) const SCRIPT: &str = "hq-submit.sh";
/// The name of the file with the batch system's id.
const JOB_ID: &str = "jobid";

/// The names of the files with the job's output.
const STDOUT: &str = "stdout";
pub(super) const STDERR: &str = "stderr";
/// How many bytes at the end of a file are searched for its last line, and how long a shown line
/// may be.
const TAIL_MAX: u64 = 4_096;
const LINE_MAX: usize = 300;

/// Returns the last line of a file that is not blank. `None` for a link to a path of the user: other
/// jobs may write there, and its file system may hang.
pub(super) fn last_line(path: &Path) -> Option<String> {
    let found = std::fs::symlink_metadata(path).ok();
    let len = found.filter(std::fs::Metadata::is_file)?.len();
    let mut file = std::fs::File::open(path).ok()?;
    file.seek(SeekFrom::Start(len.saturating_sub(TAIL_MAX)))
        .ok()?;
    let mut bytes = Vec::new();
    file.take(TAIL_MAX).read_to_end(&mut bytes).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let line = text
        .lines()
        .rev()
        .map(str::trim)
        .find(|line| !line.is_empty())?;
    Some(
        line.chars()
            .filter(|c| !c.is_control())
            .take(LINE_MAX)
            .collect(),
    )
}

/// The directories of the last ended allocations, oldest first.
#[derive(Debug, Default)]
pub(super) struct Dirs(VecDeque<Box<[u8]>>);

impl Dirs {
    /// Notes the directory of an ended allocation. Returns the directories to remove.
    pub(super) fn retire(&mut self, dir: Box<[u8]>) -> Vec<PathBuf> {
        if !self.0.contains(&dir) {
            self.0.push_back(dir);
        }
        let surplus = self.0.len().saturating_sub(KEPT_MAX);
        let oldest = self.0.drain(..surplus);
        oldest.map(|dir| OsStr::from_bytes(&dir).into()).collect()
    }
}

/// Writes the script to an allocation's directory.
pub(super) async fn write_script(dir: &Path, script: &str) -> io::Result<PathBuf> {
    let path = dir.join(SCRIPT);
    write(path.clone(), script.to_owned()).await?;
    Ok(path)
}

/// Writes the batch system's id to the directory of an allocation, and links the names of the output
/// files to the paths that the user's options set.
pub(super) async fn note_job(
    dir: PathBuf,
    id: String,
    outputs: [Option<String>; 2],
) -> io::Result<()> {
    write(dir.join(JOB_ID), id).await?;
    let link = move || link_outputs(&dir, outputs);
    tokio::task::spawn_blocking(link)
        .await
        .map_err(io::Error::other)?
}

/// Does not access the targets, whose file system may hang.
fn link_outputs(dir: &Path, outputs: [Option<String>; 2]) -> io::Result<()> {
    let names = [STDOUT, STDERR].map(|name| dir.join(name));
    let targets = outputs.map(|path| path.map(|path| normal(&dir.join(path))));
    for (name, other, target) in [
        (&names[0], &names[1], [&targets[0], &targets[1]]),
        (&names[1], &names[0], [&targets[1], &targets[0]]),
    ] {
        let [Some(target), others] = target else {
            continue;
        };
        // In a loop of links, the batch system could not open the file.
        if target != name && (target != other || others.is_none()) {
            std::os::unix::fs::symlink(target, name)?;
        }
    }
    Ok(())
}

/// Resolves `.` and `..` without a look at the file system.
fn normal(path: &Path) -> PathBuf {
    let mut normal = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(normal.pop()),
            Component::CurDir => {}
            Component::Prefix(_) | Component::RootDir | Component::Normal(_) => normal.push(part),
        }
    }
    normal
}

/// Writes a file to the directory of an allocation, which is created if it is missing.
pub(super) async fn write(path: PathBuf, text: String) -> io::Result<()> {
    let written = move || {
        hq_private::ensure_dir(path.parent().unwrap_or(&path))?;
        hq_private::write_file(&path, text.as_bytes())
    };
    tokio::task::spawn_blocking(written)
        .await
        .map_err(io::Error::other)?
}

/// Removes directories and ignores errors.
pub(super) async fn remove(dirs: Vec<PathBuf>) {
    for dir in dirs {
        if let Err(error) = tokio::fs::remove_dir_all(&dir).await {
            tracing::debug!(%error, dir = %dir.display(), "cannot remove a directory");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_of_the_user_are_linked_but_never_in_a_circle() {
        for (stdout, stderr, linked) in [
            (Some("a"), None, [true, false]),
            (Some("stdout"), Some("../001/stderr"), [false, false]),
            (Some("stderr"), Some("stdout"), [false, false]),
            (Some("stderr"), None, [true, false]),
            (Some("/no/such/directory"), Some("a"), [true, true]),
        ] {
            let root = tempfile::tempdir().expect("a directory");
            let dir = root.path().join("001");
            std::fs::create_dir(&dir).expect("it is new");
            let outputs = [stdout, stderr].map(|path| path.map(str::to_owned));
            link_outputs(&dir, outputs).expect("it is ours");
            let is_linked = [STDOUT, STDERR].map(|name| dir.join(name).is_symlink());
            assert_eq!(is_linked, linked, "{stdout:?} {stderr:?}");
        }
    }

    #[test]
    fn the_last_line_says_why() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join(STDERR);
        assert_eq!(last_line(&path), None);
        for (text, last) in [
            ("", None),
            ("\n \n", None),
            ("a\nmodule: not found\n\n", Some("module: not found")),
        ] {
            std::fs::write(&path, text).expect("written");
            assert_eq!(last_line(&path).as_deref(), last);
        }
        std::fs::write(&path, format!("{}\nend\x1b", "x".repeat(9_000))).expect("written");
        assert_eq!(last_line(&path).as_deref(), Some("end"));
    }

    #[test]
    fn twenty_directories_of_the_past_are_kept() {
        let mut dirs = Dirs::default();
        let dir = |number: u32| format!("/s/{number}").into_bytes().into();
        for number in 1..=20 {
            assert_eq!(dirs.retire(dir(number)), Vec::<PathBuf>::new());
        }
        assert_eq!(dirs.retire(dir(21)), [Path::new("/s/1")]);
        assert!(dirs.retire(dir(21)).is_empty());
    }
}
