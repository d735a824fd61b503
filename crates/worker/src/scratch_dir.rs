//! Temporary directories that do not outlive a killed process for long.
//!
//! A process that is killed cannot remove its directory. So each directory holds a file that its owner keeps locked;
//! the kernel unlocks it at the owner's end, however that comes. Whoever creates the next directory of the same kind
//! beside it removes those whose lock is free.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use tempfile::TempDir;

/// Name of the locked file inside the directory.
const LOCK: &str = ".lock";

/// A directory with a random name that is removed with all it holds: on drop, or by a later process.
#[derive(Debug)]
pub struct ScratchDir {
    dir: TempDir,
    /// Locked as long as the owner lives.
    _lock: File,
}

impl ScratchDir {
    /// Creates `<prefix><random>` in `parent` and removes what killed owners of the same prefix left there.
    ///
    /// # Errors
    ///
    /// If the directory or its lock cannot be created. Leftovers that cannot be removed are left.
    pub fn create_in(parent: &Path, prefix: &str) -> io::Result<Self> {
        sweep(parent, prefix);
        let dir = tempfile::Builder::new().prefix(prefix).tempdir_in(parent)?;
        // Locked before it has its name: nobody must find it free.
        let unnamed = dir.path().join(".lock-new");
        let lock = File::create(&unnamed)?;
        // A file system without locks is no reason to fail; its leftovers then stay.
        if lock.try_lock().is_ok() {
            std::fs::rename(&unnamed, dir.path().join(LOCK))?;
        } else {
            std::fs::remove_file(&unnamed)?;
        }
        Ok(Self { dir, _lock: lock })
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

/// Removes directories of this user whose owners are gone.
fn sweep(parent: &Path, prefix: &str) {
    let Ok(entries) = std::fs::read_dir(parent) else {
        return;
    };
    let user = rustix::process::geteuid().as_raw();
    for entry in entries.flatten() {
        if !entry
            .file_name()
            .as_encoded_bytes()
            .starts_with(prefix.as_bytes())
        {
            continue;
        }
        // Of the entry itself: a link is nobody's directory.
        let is_ours = entry
            .metadata()
            .is_ok_and(|found| found.is_dir() && found.uid() == user);
        if is_ours && is_abandoned(&entry.path()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether the directory has a lock and nobody holds it.
fn is_abandoned(dir: &Path) -> bool {
    File::open(dir.join(LOCK)).is_ok_and(|lock| lock.try_lock().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_owner_left_is_removed_by_the_next() {
        let parent = tempfile::tempdir().expect("temporary directory");
        let create = |prefix| ScratchDir::create_in(parent.path(), prefix).expect("can be created");
        let alive = create("kind");
        let killed = create("kind");
        let other_kind = create("other");
        std::fs::write(killed.path().join("left"), "x").expect("writable");
        let foreign = parent.path().join("kind-without-lock");
        std::fs::create_dir(&foreign).expect("can be created");
        // As a kill: the lock is gone, the directory is not.
        let [killed, other_kind] = [killed, other_kind].map(|scratch| scratch.dir.keep());

        let next = create("kind");

        assert!(!killed.exists());
        assert!(alive.path().is_dir() && next.path().is_dir());
        assert!(other_kind.is_dir() && foreign.is_dir());
    }

    #[test]
    fn a_link_is_not_followed() {
        let parent = tempfile::tempdir().expect("temporary directory");
        let elsewhere = tempfile::tempdir().expect("temporary directory");
        std::fs::write(elsewhere.path().join(LOCK), "").expect("writable");
        let link = parent.path().join("kind-link");
        std::os::unix::fs::symlink(elsewhere.path(), &link).expect("can be linked");

        let _next = ScratchDir::create_in(parent.path(), "kind").expect("can be created");

        assert!(link.is_symlink() && elsewhere.path().join(LOCK).exists());
    }
}
