//! Files and directories that hq makes for itself: nobody but this user can enter or read them, whatever the umask.
//!
//! Others may be able to write to the directories above, which users name: a shared directory of a project, or `/tmp`. What
//! somebody else has put there under a name of ours is not used: files are opened without following links, and owner and
//! kind of what was opened are checked. What tasks write where users asked for it is none of this: it follows the umask.
#![forbid(unsafe_code)]

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::Path;

use rustix::fs::OFlags;
use tempfile::NamedTempFile;
pub use tempfile::TempDir;

const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// Rights of group and others.
const OF_OTHERS: u32 = 0o077;

/// Makes a directory, which must not exist.
///
/// # Errors
///
/// If it cannot be made.
pub fn create_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(DIR_MODE).create(path)?;
    // The umask can only take bits away; the mode is meant exactly.
    fs::set_permissions(path, Permissions::from_mode(DIR_MODE))
}

/// Makes a directory, with those above it, unless it exists; one that others can enter is closed.
///
/// # Errors
///
/// If it cannot be made, or belongs to another user.
pub fn ensure_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(DIR_MODE)
        .create(path)?;
    take_rights(&own_dir(path)?)
}

/// Closes a directory to others.
///
/// # Errors
///
/// If it cannot be opened, is a link, or belongs to another user.
pub fn close_dir(path: &Path) -> io::Result<()> {
    take_rights(&open_dir(path, OFlags::DIRECTORY | OFlags::NOFOLLOW)?)
}

fn take_rights(dir: &File) -> io::Result<()> {
    if dir.metadata()?.mode() & OF_OTHERS != 0 {
        dir.set_permissions(Permissions::from_mode(DIR_MODE))?;
    }
    Ok(())
}

/// Opens a directory of this user, which may be behind a link.
///
/// # Errors
///
/// If it cannot be opened, or belongs to another user.
pub fn own_dir(path: &Path) -> io::Result<File> {
    open_dir(path, OFlags::DIRECTORY)
}

fn open_dir(path: &Path, flags: OFlags) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let dir = options.read(true).custom_flags(bits(flags)).open(path)?;
    check_owner(&dir.metadata()?)?;
    Ok(dir)
}

/// Removes a directory with all that it holds. Directories in it without permission to change them, such as those of Go's module
/// cache, are opened first. Links are not followed.
///
/// # Errors
///
/// If something in it cannot be removed.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            open_tree(path);
            fs::remove_dir_all(path)
        }
        removed => removed,
    }
}

/// Lets the owner read and change a directory and all below it, as far as they are his.
fn open_tree(dir: &Path) {
    let Ok(found) = fs::symlink_metadata(dir).map(|found| found.permissions()) else {
        return;
    };
    // What is not changed is left, and the removal says so.
    let _ = fs::set_permissions(dir, Permissions::from_mode(found.mode() | 0o700));
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_tree(&entry.path());
        }
    }
}

/// Makes a directory with a random name, which is removed with all it holds when the result is dropped.
///
/// # Errors
///
/// If it cannot be made.
pub fn temp_dir(parent: &Path, prefix: &str) -> io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder
        .prefix(prefix)
        .permissions(Permissions::from_mode(DIR_MODE))
        .tempdir_in(parent)
}

/// Makes a file with a random name; what is written to it goes to its end.
///
/// # Errors
///
/// If it cannot be made.
pub fn temp_file(parent: &Path, prefix: &str) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix).append(true).tempfile_in(parent)
}

/// Takes the rights of others to a socket that was made in a directory of ours.
///
/// # Errors
///
/// If the rights cannot be changed.
pub fn close(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(FILE_MODE))
}

/// Makes a file, which must not exist.
///
/// # Errors
///
/// If it cannot be made.
pub fn new_file(path: &Path) -> io::Result<File> {
    open_file(path, OpenOptions::new().write(true).create_new(true))
}

/// Makes a file that is gone when it is closed, however that comes about.
///
/// # Errors
///
/// If it cannot be made.
pub fn unnamed_file(dir: &Path) -> io::Result<File> {
    // Not `O_TMPFILE`, which some network file systems do not know.
    let file = NamedTempFile::with_prefix_in(".hq-", dir)?;
    let (file, path) = file.into_parts();
    // If it cannot be removed, nothing better can be done.
    let _ = path.close();
    Ok(file)
}

/// Opens a file of this user as `options` say; one that others can read is closed.
///
/// # Errors
///
/// If it cannot be opened, is a link or no regular file, or belongs to another user.
pub fn open_file(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // Nor does it wait for the other end of a FIFO.
    let flags = bits(OFlags::NOFOLLOW | OFlags::NONBLOCK);
    let file = options.mode(FILE_MODE).custom_flags(flags).open(path)?;
    let found = file.metadata()?;
    if !found.is_file() {
        let text = "expected a regular file, found something else";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    check_owner(&found)?;
    if found.mode() & 0o777 != FILE_MODE {
        file.set_permissions(Permissions::from_mode(FILE_MODE))?;
    }
    Ok(file)
}

/// Opens a file of this user to read it.
///
/// # Errors
///
/// As [`open_file`].
pub fn read_file(path: &Path) -> io::Result<File> {
    open_file(path, OpenOptions::new().read(true))
}

/// Writes a file anew, where it is.
///
/// # Errors
///
/// As [`open_file`], and if there is no room.
pub fn write_file(path: &Path, content: &[u8]) -> io::Result<()> {
    // Not `truncate`: it would empty a file of another user before its owner is checked.
    let mut file = open_file(path, OpenOptions::new().write(true).create(true))?;
    file.set_len(0)?;
    file.write_all(content)
}

/// Puts a new file into the place of another one, in one step: readers see either.
///
/// # Errors
///
/// If it cannot be written.
pub fn replace_file(path: &Path, content: &[u8]) -> io::Result<()> {
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let mut file = NamedTempFile::new_in(dir.unwrap_or(Path::new(".")))?;
    file.write_all(content)?;
    file.persist(path).map_err(|error| error.error)?;
    Ok(())
}

fn check_owner(found: &Metadata) -> io::Result<()> {
    let user = rustix::process::geteuid().as_raw();
    if found.uid() == user {
        return Ok(());
    }
    let text = format!(
        "it belongs to user {} (mode {:04o}), not to you (user {user})",
        found.uid(),
        found.mode() & 0o7777
    );
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

const fn bits(flags: OFlags) -> i32 {
    flags.bits().cast_signed()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::symlink_metadata(path).expect("it is there").mode() & 0o777
    }

    fn open_up(path: &Path) {
        fs::set_permissions(path, Permissions::from_mode(0o777)).expect("it is ours");
    }

    #[test]
    fn what_is_made_or_used_is_closed() {
        let top = tempfile::tempdir().expect("room");
        let at = |name: &str| top.path().join(name);
        create_dir(&at("dir")).expect("made");
        ensure_dir(&at("above/below")).expect("made");
        drop(new_file(&at("new")).expect("made"));
        write_file(&at("written"), b"x").expect("made");
        replace_file(&at("replaced"), b"x").expect("made");
        open_up(&at("above/below"));
        open_up(&at("written"));
        ensure_dir(&at("above/below")).expect("it is ours");
        drop(read_file(&at("written")).expect("it is ours"));
        drop(unnamed_file(top.path()).expect("made"));
        for (name, expected) in [
            ("dir", 0o700),
            ("above", 0o700),
            ("above/below", 0o700),
            ("new", 0o600),
            ("written", 0o600),
            ("replaced", 0o600),
        ] {
            assert_eq!(mode(&at(name)), expected, "{name}");
        }
        assert_eq!(fs::read_dir(top.path()).expect("it is there").count(), 5);
        create_dir(&at("dir")).expect_err("it exists");
        new_file(&at("new")).expect_err("it exists");
    }

    #[test]
    fn what_others_have_put_there_is_not_used() {
        let top = tempfile::tempdir().expect("room");
        let at = |name: &str| top.path().join(name);
        fs::write(at("ours"), "precious").expect("room");
        symlink("ours", at("link")).expect("room");
        write_file(&at("link"), b"x").expect_err("it is a link");
        read_file(&at("link")).expect_err("it is a link");
        read_file(top.path()).expect_err("it is a directory");
        let text = fs::read_to_string(at("ours")).expect("it is there");
        assert_eq!(text, "precious");
        if !rustix::process::geteuid().is_root() {
            return;
        }
        fs::create_dir(at("dir")).expect("room");
        for name in ["ours", "dir"] {
            chown(at(name), Some(65_533), None).expect("root may do that");
            open_up(&at(name));
        }
        for error in [
            read_file(&at("ours")).expect_err("it is not ours"),
            write_file(&at("ours"), b"x").expect_err("it is not ours"),
            ensure_dir(&at("dir")).expect_err("it is not ours"),
        ] {
            let text = error.to_string();
            assert!(text.contains("belongs to user 65533 (mode 0777)"), "{text}");
        }
        let text = fs::read_to_string(at("ours")).expect("root may do that");
        assert_eq!(text, "precious");
    }
}
