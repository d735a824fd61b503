//! Temporary directories that are removed soon even if their process is killed.
//!
//! A killed process cannot remove its directory. Each directory therefore contains a file that its
//! owner keeps locked, and the kernel releases the lock when the owner ends. A worker that creates
//! a directory removes neighbors of the same kind whose file is unlocked.
//!
//! On many shared file systems, locks are only effective on one machine (`localflock` of Lustre,
//! `local_lock` of NFS), so files locked on other machines seem free. Therefore the file also names
//! the machine and its boot, and only directories of the same machine and boot are removed.
//! Directories from before a reboot stay.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use hq_private::TempDir;

/// The name of the locked file inside the directory.
const LOCK: &str = ".lock";

/// A directory with a random name that only its owner can enter. It is removed with its content,
/// either on drop or by a later process.
#[derive(Debug)]
pub struct ScratchDir {
    dir: TempDir,
    /// The file stays locked as long as the owner lives.
    _lock: File,
}

impl ScratchDir {
    /// Creates `<prefix><random>` in `parent`, and removes directories of killed owners with the
    /// same prefix.
    ///
    /// # Errors
    ///
    /// Returns an error if the directory or its lock cannot be created. Leftovers that cannot be
    /// removed are not an error.
    pub fn create_in(parent: &Path, prefix: &str) -> io::Result<Self> {
        sweep(parent, prefix);
        // The directory is private regardless of the umask, because it contains programs and
        // results of calls that other users must not replace.
        let dir = hq_private::temp_dir(parent, prefix)?;
        // The file is locked before it gets its final name, so that another worker never finds it
        // unlocked.
        let unnamed = dir.path().join(".lock-new");
        let mut lock = hq_private::new_file(&unnamed)?;
        lock.write_all(this_machine().as_bytes())?;
        // A file system without locks is not a reason to fail. Leftovers on it are not removed.
        if lock.try_lock().is_ok() {
            std::fs::rename(&unnamed, dir.path().join(LOCK))?;
        } else {
            std::fs::remove_file(&unnamed)?;
        }
        Ok(Self { dir, _lock: lock })
    }

    /// Returns the path of the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        // A later process removes the rest.
        let _ = empty(self.path());
    }
}

/// Removes everything but the lock file. A later process recognizes the rest by that file.
fn empty(dir: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            hq_private::remove_tree(&entry.path())?;
        } else if entry.file_name() != LOCK {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
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
        // Reads the metadata of the entry itself, not of a link's target.
        let is_ours = entry
            .metadata()
            .is_ok_and(|found| found.is_dir() && found.uid() == user);
        if is_ours && is_abandoned(&entry.path()) {
            let _ = empty(&entry.path()).and_then(|()| std::fs::remove_dir_all(entry.path()));
        }
    }
}

/// Returns whether the directory's lock was created on this machine and is free.
fn is_abandoned(dir: &Path) -> bool {
    let machine = this_machine();
    let Ok(lock) = hq_private::read_file(&dir.join(LOCK)) else {
        return false;
    };
    let mut owner = Vec::new();
    // Reads one byte more than is valid, to detect longer files.
    let read = (&lock)
        .take(machine.len() as u64 + 1)
        .read_to_end(&mut owner);
    read.is_ok() && owner == machine.as_bytes() && lock.try_lock().is_ok()
}

/// Returns the name of this machine and its boot id. Containers on the same machine share the boot
/// id, and also the locks.
pub(crate) fn this_machine() -> String {
    let start = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let name = rustix::system::uname();
    format!("{} {}\n", name.nodename().to_string_lossy(), start.trim())
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
        // As with a kill, the lock is released and the directory stays.
        let [killed, other_kind] = [killed, other_kind].map(|scratch| {
            let path = scratch.path().to_owned();
            scratch._lock.unlock().expect("it is locked");
            std::mem::forget(scratch);
            path
        });

        let next = create("kind");

        assert!(!killed.exists());
        assert!(alive.path().is_dir() && next.path().is_dir());
        assert!(other_kind.is_dir() && foreign.is_dir());
    }

    #[test]
    fn what_another_machine_made_is_left_even_if_its_lock_seems_free() {
        let parent = tempfile::tempdir().expect("temporary directory");
        for (name, machine) in [
            ("kind-elsewhere", this_machine().replacen(' ', "x ", 1)),
            ("kind-before", this_machine().replace('\n', "0\n")),
            ("kind-unknown", String::new()),
            ("kind-here", this_machine()),
        ] {
            let dir = parent.path().join(name);
            std::fs::create_dir(&dir).expect("writable");
            std::fs::write(dir.join(LOCK), machine).expect("writable");
        }

        let _next = ScratchDir::create_in(parent.path(), "kind").expect("can be created");

        for (name, stays) in [
            ("kind-elsewhere", true),
            ("kind-before", true),
            ("kind-unknown", true),
            ("kind-here", false),
        ] {
            assert_eq!(parent.path().join(name).exists(), stays, "{name}");
        }
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
