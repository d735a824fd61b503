//! Files at places where others may have put a link.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::sys;

/// Creates or empties a file for output, in a directory that exists. If the file or its directory is a link of another
/// user, the file is not opened: its name can be guessed, and the link leads to what that user wants to be overwritten.
/// `fs.protected_symlinks` prevents the same in directories such as `/tmp`, but not in the directories below.
///
/// # Errors
///
/// `ELOOP` for a link of another user, and what opening a file can fail with.
pub fn create_guarded(path: &Path) -> io::Result<File> {
    let dir = path.parent().unwrap_or(Path::new("/"));
    let mut options = OpenOptions::new();
    let dir = open_guarded(dir, options.read(true), libc::O_PATH | libc::O_DIRECTORY)?;
    // The directory may be replaced from here on.
    let name = path.file_name().unwrap_or_default();
    let path = Path::new("/proc/self/fd")
        .join(dir.as_raw_fd().to_string())
        .join(name);
    let mut options = OpenOptions::new();
    let options = options.write(true).create(true).truncate(true);
    // A FIFO without a reader must not hold up the caller.
    let file = open_guarded(&path, options, libc::O_NONBLOCK | libc::O_NOCTTY)?;
    sys::set_blocking(&file)?;
    Ok(file)
}

fn open_guarded(path: &Path, options: &mut OpenOptions, flags: i32) -> io::Result<File> {
    match options.custom_flags(flags | libc::O_NOFOLLOW).open(path) {
        Err(error) if matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENOTDIR)) => {}
        other => return other,
    }
    let way = libc::O_PATH | libc::O_NOFOLLOW;
    // Of the link itself, which nobody can replace any more.
    let link = OpenOptions::new().read(true).custom_flags(way).open(path)?;
    let found = link.metadata()?;
    if !found.is_symlink() {
        return Err(io::Error::from_raw_os_error(libc::ENOTDIR));
    }
    if found.uid() != 0 && found.uid() != sys::user() {
        return Err(io::Error::from_raw_os_error(libc::ELOOP));
    }
    let target: PathBuf = sys::link_target(&link)?.into();
    let behind = path.parent().unwrap_or(Path::new("/")).join(target);
    options.custom_flags(flags).open(behind)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{lchown, symlink};

    use super::*;

    /// Another user of the machine.
    const OTHER: u32 = 65_533;

    #[test]
    fn links_of_others_are_not_followed() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("there")).expect("room");
        let is_root = sys::user() == 0;
        for (name, link, target, owner, opens) in [
            ("there/new", None, "", 0, true),
            ("there/file", Some("there/file"), "own", 0, true),
            ("dir/file", Some("dir"), "there", 0, true),
            (
                "there/planted",
                Some("there/planted"),
                "../own",
                OTHER,
                false,
            ),
            ("planted/file", Some("planted"), "there", OTHER, false),
        ] {
            if let Some(link) = link {
                symlink(target, at(link)).expect("room");
                if owner != 0 {
                    if !is_root {
                        continue;
                    }
                    lchown(at(link), Some(owner), None).expect("root may do that");
                }
            }
            let opened = create_guarded(&at(name));
            let errno = opened.as_ref().err().and_then(io::Error::raw_os_error);
            assert_eq!(opened.is_ok(), opens, "{name}: {opened:?}");
            assert!(opens || errno == Some(libc::ELOOP), "{name}: {errno:?}");
        }
        assert!(at("there/own").exists() && !at("own").exists());
    }
}
