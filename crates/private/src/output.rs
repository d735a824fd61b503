//! Accesses output files of tasks, in directories that other users may be able to write to.
//!
//! Other users can guess the paths of outputs, and place links and files there in order to read the
//! output, to block the task, or to make hq overwrite, publish or remove other files of this user.
//! `fs.protected_symlinks` and the related settings prevent this in directories such as `/tmp`, but
//! not in their subdirectories. So neither the file nor its directory may be a link of another
//! user. The user named the directories above, so links there are followed.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::{bits, check_owner, is_trusted, unnamed_file, user};

/// The maximum length of a chain of links, the same as the kernel's.
const LINKS_MAX: usize = 40;

/// A name in an open directory. The path of the directory may change without an effect on accesses
/// through [`Self::at`].
#[derive(Debug)]
pub struct Place {
    dir: File,
    path: PathBuf,
}

impl Place {
    /// Opens the directory of a path. It may be a link that belongs to this user or root.
    ///
    /// # Errors
    ///
    /// Returns `ELOOP` for a link of another user, otherwise the errors of opening a directory.
    pub fn new(path: &Path) -> io::Result<Self> {
        let mut parent = parent(path).to_path_buf();
        // Opening an automount point itself would not mount it.
        let _ = fs::metadata(parent.join("."));
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW;
        for _ in 0..LINKS_MAX {
            let mut options = OpenOptions::new();
            let opened = options.read(true).custom_flags(bits(flags)).open(&parent);
            match opened {
                Err(error) if is_one_of(&error, &[Errno::LOOP, Errno::NOTDIR]) => {}
                opened => {
                    let (dir, path) = (opened?, path.to_path_buf());
                    return Ok(Self { dir, path });
                }
            }
            parent = target_of(&parent, &parent)?.ok_or(Errno::NOTDIR)?;
        }
        Err(Errno::LOOP.into())
    }

    /// Returns the path by which the place was found.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns a path to the file that leads through the open directory.
    #[must_use]
    pub fn at(&self) -> PathBuf {
        path_of(&self.dir).join(self.path.file_name().unwrap_or_default())
    }

    /// Follows links at this place. Returns `None` if there is no link. Links of the system, such
    /// as `/dev/stdout`, are not followed: they may lead to a file of this process.
    ///
    /// # Errors
    ///
    /// Returns `ELOOP` for a link of another user.
    pub fn behind_links(&self) -> io::Result<Option<Self>> {
        let mut found: Option<Self> = None;
        for _ in 0..LINKS_MAX {
            let place = found.as_ref().unwrap_or(self);
            if place.is_of_system() {
                return Ok(found);
            }
            match target_of(&place.at(), &place.path)? {
                Some(target) => found = Some(Self::new(&target)?),
                None => return Ok(found),
            }
        }
        Err(Errno::LOOP.into())
    }

    fn is_of_system(&self) -> bool {
        self.path.starts_with("/dev") || self.path.starts_with("/proc")
    }

    /// Returns whether an output here belongs to this user or root, and no other user can have
    /// linked it here.
    fn is_own(&self, found: &Metadata) -> bool {
        // On some network file systems, the owner of a file is not the user who created it: for
        // root, it may be `nobody`.
        let owner_here = || unnamed_file(&path_of(&self.dir)).and_then(|file| file.metadata());
        let is_own = is_trusted(found) || owner_here().is_ok_and(|new| new.uid() == found.uid());
        let is_shared = |dir: Metadata| dir.uid() != user() || dir.mode() & 0o022 != 0;
        // The kernel may allow others to make a hard link.
        let is_only_name = || self.dir.metadata().is_ok_and(|dir| !is_shared(dir));
        is_own && (found.is_dir() || found.nlink() <= 1 || is_only_name())
    }
}

/// Creates or truncates an output file in an existing directory.
///
/// # Errors
///
/// Returns `ELOOP` if the file or its directory is a link of another user, and `EEXIST` if the path
/// exists but is not a regular file of this user. Otherwise, returns the errors of opening a file.
pub fn create_output(path: &Path) -> io::Result<File> {
    let place = Place::new(path)?;
    let mut options = OpenOptions::new();
    match options.write(true).create_new(true).open(place.at()) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => return other,
    }
    let mut options = OpenOptions::new();
    options.write(true).truncate(true);
    if let Some(target) = place.behind_links()? {
        let mut flags = OFlags::NONBLOCK | OFlags::NOCTTY;
        flags.set(OFlags::NOFOLLOW, !target.is_of_system());
        // Opening a FIFO without a reader would block.
        options.create(true).custom_flags(bits(flags));
        let file = options.open(target.at())?;
        rustix::fs::fcntl_setfl(&file, OFlags::empty())?;
        return Ok(file);
    }
    let existing = look(&place.at())?;
    let found = existing.metadata()?;
    if !found.is_file() || !place.is_own(&found) {
        return Err(Errno::EXIST.into());
    }
    options.open(path_of(&existing))
}

/// Opens an output file for reading. Never opens what another user may have put there in order to
/// have it published.
///
/// # Errors
///
/// If the file or its directory is a link of another user, or if it is not a regular file of this
/// user or root.
pub fn open_output(path: &Path) -> io::Result<File> {
    open_checked(path, |_, _| false)
}

/// Like [`open_output`], but the file may also belong to the owner of its directory, which the user
/// named.
///
/// # Errors
///
/// Same as [`open_output`].
pub fn open_in_named_dir(path: &Path) -> io::Result<File> {
    open_checked(path, |found, place| {
        let dir = place.dir.metadata();
        found.nlink() <= 1 && dir.is_ok_and(|dir| dir.uid() == found.uid())
    })
}

fn open_checked(path: &Path, or: impl FnOnce(&Metadata, &Place) -> bool) -> io::Result<File> {
    let refused = |text| Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
    let opened = Place::new(path).and_then(|place| {
        let place = place.behind_links()?.unwrap_or(place);
        let file = open_to_read(&place.at(), OFlags::NOFOLLOW)?;
        Ok((file, place))
    });
    let (file, place) = match opened {
        Err(error) if is_one_of(&error, &[Errno::LOOP]) => {
            return refused("hq follows only links that belong to you or root");
        }
        opened => opened?,
    };
    let found = file.metadata()?;
    if or(&found, &place) || place.is_own(&found) {
        return Ok(file);
    }
    check_owner(&found)?;
    refused("another user may have linked the file there")
}

/// Removes an output if it is a regular file. Devices such as `/dev/null` must stay: root could
/// remove them for all users.
///
/// # Errors
///
/// If the directory is a link of another user, or the file cannot be removed.
pub fn remove_output(path: &Path) -> io::Result<()> {
    let place = Place::new(path)?;
    if fs::symlink_metadata(place.at())?.is_file() {
        fs::remove_file(place.at())?;
    }
    Ok(())
}

/// Returns whether an output is a file or directory of this user or root, reached without links of
/// other users.
#[must_use]
pub fn is_own_output(path: &Path) -> bool {
    let check = |place: Place| {
        let place = place.behind_links()?.unwrap_or(place);
        Ok(place.is_own(&fs::symlink_metadata(place.at())?))
    };
    Place::new(path).and_then(check).unwrap_or(false)
}

/// Opens a regular file for reading and rejects any other type of file. Opening a FIFO would block
/// until a writer opens it, and reading from one would take data from its reader. Follows all
/// links, so this is only for files that the user named.
///
/// # Errors
///
/// If the file cannot be opened or is not a regular file.
pub fn open_regular(path: &Path) -> io::Result<File> {
    open_to_read(path, OFlags::empty())
}

fn open_to_read(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = bits(flags | OFlags::NONBLOCK | OFlags::NOCTTY);
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(
        io::ErrorKind::InvalidInput,
        "it is not a regular file",
    ))
}

fn is_one_of(error: &io::Error, errors: &[Errno]) -> bool {
    Errno::from_io_error(error).is_some_and(|found| errors.contains(&found))
}

pub(crate) fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => Path::new("/"),
    }
}

/// Opens a descriptor for a path without opening the file or following a link. The file behind the
/// descriptor cannot be replaced afterwards.
fn look(path: &Path) -> io::Result<File> {
    let flags = bits(OFlags::PATH | OFlags::NOFOLLOW);
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

/// Returns a path to the file behind a descriptor.
fn path_of(file: &File) -> PathBuf {
    Path::new("/proc/self/fd").join(file.as_raw_fd().to_string())
}

/// Returns the target of the link at `at`, whose path is `path`. Returns `None` if there is no
/// link. Rejects links that belong to other users, except root.
fn target_of(at: &Path, path: &Path) -> io::Result<Option<PathBuf>> {
    let link = match look(at) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        link => link?,
    };
    let found = link.metadata()?;
    if !found.is_symlink() {
        return Ok(None);
    }
    if !is_trusted(&found) {
        return Err(Errno::LOOP.into());
    }
    let target = rustix::fs::readlinkat(&link, "", Vec::new())?;
    let target = std::ffi::OsString::from_vec(target.into_bytes());
    Ok(Some(parent(path).join(target)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, lchown, symlink};

    use super::*;

    const ELOOP: i32 = Errno::LOOP.raw_os_error();
    const EEXIST: i32 = Errno::EXIST.raw_os_error();

    /// Another user of the machine.
    const OTHER: u32 = 65_533;

    /// Creates an output file in `dir`, and expects an error if `errno` is given.
    fn check(path: &Path, errno: Option<i32>) {
        let opened = create_output(path);
        let found = opened.as_ref().err().and_then(io::Error::raw_os_error);
        assert_eq!(found, errno, "{}: {opened:?}", path.display());
        assert_eq!(opened.is_ok(), errno.is_none());
        let read = open_output(path);
        assert_eq!(
            read.is_ok(),
            errno.is_none(),
            "{}: {read:?}",
            path.display()
        );
    }

    #[test]
    fn links_of_others_are_not_followed() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir(at("there")).expect("room");
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
                    if user() != 0 {
                        continue;
                    }
                    lchown(at(link), Some(owner), None).expect("root may do that");
                }
            }
            check(&at(name), (owner == OTHER).then_some(ELOOP));
            assert_eq!(is_own_output(&at(name)), owner != OTHER, "{name}");
        }
        assert!(at("there/own").exists() && !at("own").exists());
    }

    #[test]
    fn only_regular_files_of_this_user_are_written_to() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let at = |name: &str| dir.path().join(name);
        let file = |name: &str| fs::write(at(name), "precious").expect("room");
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
        fs::hard_link(at("target"), at("linked")).expect("room");
        check(&at("own"), None);
        check(&at("linked"), None);
        let open = fs::Permissions::from_mode(0o777);
        fs::set_permissions(dir.path(), open).expect("ours");
        file("target");
        for name in ["linked", "socket", "fifo", "read"] {
            check(&at(name), Some(EEXIST));
        }
        if user() == 0 {
            chown(at("foreign"), Some(OTHER), None).expect("root may do that");
            check(&at("foreign"), Some(EEXIST));
            assert!(!is_own_output(&at("foreign")));
        }
        let read = |name: &str| fs::read_to_string(at(name)).expect("a file");
        assert_eq!(
            ["own", "target", "foreign"].map(read),
            ["", "precious", "precious"]
        );
    }
}
