//! Creates output files with predictable names in directories that other users may write to.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::sys;

/// Creates or truncates an output file in an existing directory. Rejects the file if another user
/// could have placed something at its path in order to read the output, to block the task, or to
/// overwrite a file of this user. `fs.protected_symlinks` and the related settings prevent such
/// attacks in directories such as `/tmp`, but not in their subdirectories.
///
/// # Errors
///
/// Returns `ELOOP` if the file or its directory is a link of another user, and `EEXIST` if the path
/// exists but is not a regular file of this user. Otherwise, returns the errors of opening a file.
pub fn create_guarded(path: &Path) -> io::Result<File> {
    let dir = open_dir(path.parent().unwrap_or(Path::new("/")))?;
    // From here on, access the directory through the descriptor, because its path may change.
    let within = path_of(&dir);
    let at = within.join(path.file_name().unwrap_or_default());
    let mut options = OpenOptions::new();
    match options.write(true).create_new(true).open(&at) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => return other,
    }
    let existing = look(&at)?;
    let found = existing.metadata()?;
    let mut options = OpenOptions::new();
    options.write(true).truncate(true);
    if found.is_symlink() {
        let target = target_of(&existing, &at)?;
        // Opening a FIFO without a reader would block.
        options
            .create(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY);
        let file = options.open(target)?;
        sys::set_blocking(&file)?;
        return Ok(file);
    }
    if !is_own_output(&found, &dir.metadata()?, &within) {
        return Err(io::Error::from_raw_os_error(libc::EEXIST));
    }
    options.open(path_of(&existing))
}

/// Opens a directory, which may be a link that belongs to this user or root.
fn open_dir(path: &Path) -> io::Result<File> {
    let open = |path: &Path, flags: i32| {
        let flags = libc::O_PATH | libc::O_DIRECTORY | flags;
        OpenOptions::new().read(true).custom_flags(flags).open(path)
    };
    match open(path, libc::O_NOFOLLOW) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENOTDIR)) => {}
        other => return other,
    }
    let link = look(path)?;
    if !link.metadata()?.is_symlink() {
        return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
    }
    open(&target_of(&link, path)?, 0)
}

/// Opens a descriptor for a path without opening the file or following a link. The file behind the
/// descriptor cannot be replaced afterwards.
fn look(path: &Path) -> io::Result<File> {
    let flags = libc::O_PATH | libc::O_NOFOLLOW;
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Returns a path to the file behind a descriptor.
fn path_of(file: &File) -> PathBuf {
    Path::new("/proc/self/fd").join(file.as_raw_fd().to_string())
}

/// Returns the target of the link at `path`. Rejects links that belong to other users, except root.
fn target_of(link: &File, path: &Path) -> io::Result<PathBuf> {
    let owner = link.metadata()?.uid();
    if owner != 0 && owner != sys::user() {
        return Err(io::Error::from_raw_os_error(libc::ELOOP));
    }
    let target: PathBuf = sys::link_target(link)?.into();
    Ok(path.parent().unwrap_or(Path::new("/")).join(target))
}

/// Returns whether an existing file is a regular file of this user that no other user can have
/// linked here.
fn is_own_output(found: &Metadata, dir: &Metadata, within: &Path) -> bool {
    let user = sys::user();
    // On some network file systems, the owner of a file is not the user who created it: for root,
    // it may be `nobody`.
    let owner_here = || sys::unnamed_file(within).and_then(|file| file.metadata());
    let is_own = found.uid() == user || owner_here().is_ok_and(|new| new.uid() == found.uid());
    let is_dir_shared = dir.uid() != user || dir.mode() & 0o022 != 0;
    found.is_file() && is_own && (found.nlink() == 1 || !is_dir_shared)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, lchown, symlink};

    use super::*;

    /// Another user of the machine.
    const OTHER: u32 = 65_533;

    /// Creates an output file in `dir`, and expects an error if `errno` is given.
    fn check(path: &Path, errno: Option<i32>) {
        let opened = create_guarded(path);
        let found = opened.as_ref().err().and_then(io::Error::raw_os_error);
        assert_eq!(found, errno, "{}: {opened:?}", path.display());
        assert_eq!(opened.is_ok(), errno.is_none());
    }

    #[test]
    fn links_of_others_are_not_followed() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("there")).expect("room");
        for (name, link, target, owner) in [
            ("there/new", None, "", 0),
            ("there/file", Some("there/file"), "own", 0),
            ("dir/file", Some("dir"), "there", 0),
            ("there/planted", Some("there/planted"), "../own", OTHER),
            ("planted/file", Some("planted"), "there", OTHER),
        ] {
            if let Some(link) = link {
                symlink(target, at(link)).expect("room");
                if owner != 0 {
                    if sys::user() != 0 {
                        continue;
                    }
                    lchown(at(link), Some(owner), None).expect("root may do that");
                }
            }
            check(&at(name), (owner == OTHER).then_some(libc::ELOOP));
        }
        assert!(at("there/own").exists() && !at("own").exists());
    }

    #[test]
    fn only_regular_files_of_this_user_are_written_to() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let at = |name: &str| dir.path().join(name);
        let file = |name: &str| std::fs::write(at(name), "precious").expect("room");
        let _ = ["own", "target", "foreign"].map(file);
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).expect("room");
        let made = std::process::Command::new("mkfifo")
            .args([at("fifo"), at("read")])
            .status();
        assert!(made.expect("it can be run").success());
        let mut both = OpenOptions::new();
        let _reader = both
            .read(true)
            .write(true)
            .open(at("read"))
            .expect("a FIFO");
        std::fs::hard_link(at("target"), at("linked")).expect("room");
        check(&at("own"), None);
        check(&at("linked"), None);
        let open = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(dir.path(), open).expect("ours");
        file("target");
        for name in ["linked", "socket", "fifo", "read"] {
            check(&at(name), Some(libc::EEXIST));
        }
        if sys::user() == 0 {
            chown(at("foreign"), Some(OTHER), None).expect("root may do that");
            check(&at("foreign"), Some(libc::EEXIST));
        }
        let read = |name: &str| std::fs::read_to_string(at(name)).expect("a file");
        assert_eq!(
            ["own", "target", "foreign"].map(read),
            ["", "precious", "precious"]
        );
    }
}
