//! Creates the files and directories that hq keeps for itself. Only the current user can access
//! them, regardless of the umask.
//!
//! The user chooses the parent directories, and other users may be able to write to them: a shared
//! project directory, for example, or `/tmp`. They may have placed files or links at the paths that
//! hq uses. Files are therefore opened without following links, and the owner and the type of each
//! opened file are checked. Output of tasks follows the umask; the functions of `output` protect it.
#![forbid(unsafe_code)]

mod output;

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Seek as _, Write as _};
use std::os::unix::fs::{
    DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::Path;

use rustix::fs::{MemfdFlags, OFlags, memfd_create};
use rustix::io::Errno;
use tempfile::NamedTempFile;
pub use tempfile::TempDir;

pub use output::{
    Place, create_output, is_own_output, open_in_named_dir, open_output, open_regular,
    remove_output,
};

const DIR_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;

/// The permission bits of the group and of other users.
const OF_OTHERS: u32 = 0o077;

/// Creates a directory. It must not exist yet.
///
/// # Errors
///
/// If it cannot be created.
pub fn create_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(DIR_MODE).create(path)?;
    // The umask may have removed bits; the mode must be exact.
    fs::set_permissions(path, Permissions::from_mode(DIR_MODE))
}

/// Creates a directory and its parents if they do not exist. Denies other users access to an
/// existing directory.
///
/// # Errors
///
/// If it cannot be created or belongs to another user.
pub fn ensure_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(DIR_MODE)
        .create(path)?;
    take_rights(&own_dir(path)?)
}

/// Denies other users access to a directory.
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

/// Opens a directory of this user. The path may be a link to the directory.
///
/// # Errors
///
/// If it cannot be opened or belongs to another user.
pub fn own_dir(path: &Path) -> io::Result<File> {
    open_dir(path, OFlags::DIRECTORY)
}

fn open_dir(path: &Path, flags: OFlags) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let dir = options.read(true).custom_flags(bits(flags)).open(path)?;
    check_owner(&dir.metadata()?)?;
    Ok(dir)
}

/// Removes a directory and its contents. Read-only subdirectories, such as those of Go's module
/// cache, are made writable first. Links are not followed.
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

/// Makes a directory and everything below it that this user owns readable and writable for the
/// owner.
fn open_tree(dir: &Path) {
    let Ok(found) = fs::symlink_metadata(dir).map(|found| found.permissions()) else {
        return;
    };
    // If this fails, the removal reports the error.
    let _ = fs::set_permissions(dir, Permissions::from_mode(found.mode() | 0o700));
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            open_tree(&entry.path());
        }
    }
}

/// Creates a directory with a random name. Dropping the result removes the directory and its
/// contents.
///
/// # Errors
///
/// If it cannot be created.
pub fn temp_dir(parent: &Path, prefix: &str) -> io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    builder
        .prefix(prefix)
        .permissions(Permissions::from_mode(DIR_MODE))
        .tempdir_in(parent)
}

/// Creates a file with a random name and opens it for appending.
///
/// # Errors
///
/// If it cannot be created.
pub fn temp_file(parent: &Path, prefix: &str) -> io::Result<NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    builder.prefix(prefix).append(true).tempfile_in(parent)
}

/// Makes a file without a name that holds `bytes` in memory, to be read from its start.
///
/// # Errors
///
/// If there is no memory or descriptor for it.
pub fn memory_file(bytes: &[u8]) -> io::Result<File> {
    let mut file = match memfd_create("hq", MemfdFlags::CLOEXEC) {
        Ok(fd) => File::from(fd),
        // Before Linux 3.17, or forbidden by a sandbox.
        Err(Errno::NOSYS | Errno::PERM) => temp_file(Path::new("/dev/shm"), "hq-")?.into_file(),
        Err(error) => return Err(error.into()),
    };
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

/// Removes other users' access to a socket in a private directory.
///
/// # Errors
///
/// If the permissions cannot be changed.
pub fn close(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, Permissions::from_mode(FILE_MODE))
}

/// Creates a file. It must not exist yet.
///
/// # Errors
///
/// If it cannot be created.
pub fn new_file(path: &Path) -> io::Result<File> {
    open_file(path, OpenOptions::new().write(true).create_new(true))
}

/// Creates a file without a name. It disappears when its last descriptor is closed.
///
/// # Errors
///
/// If it cannot be created.
pub fn unnamed_file(dir: &Path) -> io::Result<File> {
    // Some network file systems do not support `O_TMPFILE`.
    let file = NamedTempFile::with_prefix_in(".hq-", dir)?;
    let (file, path) = file.into_parts();
    // A failed removal cannot be handled here.
    let _ = path.close();
    Ok(file)
}

/// Opens a file of this user with `options`. If other users can read the file, removes their
/// access.
///
/// # Errors
///
/// If it cannot be opened, is a link or not a regular file, or belongs to another user.
pub fn open_file(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    // Without NONBLOCK, opening a FIFO would wait for its other end.
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

/// Opens a file of this user for reading.
///
/// # Errors
///
/// Same as [`open_file`].
pub fn read_file(path: &Path) -> io::Result<File> {
    open_file(path, OpenOptions::new().read(true))
}

/// Replaces the contents of a file in place.
///
/// # Errors
///
/// Same as [`open_file`]; also if the disk is full.
pub fn write_file(path: &Path, content: &[u8]) -> io::Result<()> {
    // `truncate` would empty another user's file before the owner is checked.
    let mut file = open_file(path, OpenOptions::new().write(true).create(true))?;
    file.set_len(0)?;
    file.write_all(content)
}

/// Replaces a file atomically: readers see either the old or the new contents.
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

/// Opens a file whose contents decide what runs with the rights of this user. It may be behind
/// links.
///
/// # Errors
///
/// If it cannot be opened, is not a regular file, or another user can change it or its directory.
pub fn open_trusted(path: &Path) -> io::Result<File> {
    let file = open_regular(path)?;
    check_trusted(path, &file.metadata()?)?;
    let dir = output::parent(path);
    check_trusted(dir, &fs::metadata(dir)?)?;
    Ok(file)
}

fn check_trusted(path: &Path, found: &Metadata) -> io::Result<()> {
    let (owner, mode, shown) = (found.uid(), found.mode() & 0o7777, path.display());
    // Who installed this program, perhaps with a file of the site, can make it run anything.
    let program = || fs::metadata("/proc/self/exe").is_ok_and(|program| program.uid() == owner);
    // In a sticky directory, others cannot replace files.
    let is_sticky = found.is_dir() && mode & 0o1000 != 0;
    // A group with the number of the owner is usually his alone, and his files have its write
    // permission (umask 002).
    let others = if found.gid() == owner { 0o002 } else { 0o022 };
    let text = if !is_trusted(found) && !program() {
        format!(
            "{shown} belongs to user {owner}, and its contents would run with your rights; expected you or root"
        )
    } else if mode & others != 0 && !is_sticky {
        format!(
            "other users can write to {shown} (mode {mode:04o}), and its contents would run with your rights. Run `chmod go-w {shown}`"
        )
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

/// Rejects a link that belongs to another user. Root is outside the threat model.
///
/// # Errors
///
/// If the path is such a link.
pub fn check_link(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_symlink() && !is_trusted(&found) => Err(not_ours(&found)),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Rejects a file of another user.
///
/// # Errors
///
/// If another user owns it.
pub fn check_owner(found: &Metadata) -> io::Result<()> {
    if found.uid() == user() {
        return Ok(());
    }
    Err(not_ours(found))
}

fn not_ours(found: &Metadata) -> io::Error {
    let (owner, mode, user) = (found.uid(), found.mode() & 0o7777, user());
    let what = if found.is_symlink() {
        "a link that"
    } else {
        "it"
    };
    let text =
        format!("{what} belongs to user {owner} (mode {mode:04o}), not to you (user {user})");
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

/// Returns whether something belongs to this user or to root, who can do everything anyway.
fn is_trusted(found: &Metadata) -> bool {
    [0, user()].contains(&found.uid())
}

fn user() -> u32 {
    rustix::process::geteuid().as_raw()
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
