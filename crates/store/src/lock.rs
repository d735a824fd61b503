//! The lock of a store: on a file of its own beside the database, held as long as the store is.
//!
//! SQLite's own locks are POSIX locks, which belong to a process: when it closes *any* descriptor of the database, the
//! kernel drops all of them ("How To Corrupt An SQLite Database File", 2.2), and the next one who closes the database
//! believes to be its last user and removes the log. So two things hold here. The lock that says whose a store is
//! (`flock`, of an open file, not of a process) is on a file that SQLite does not know. And the database itself is
//! opened beside SQLite by [`Lock::open_raw`] only: whoever has the lock has no connection yet, and a process that has
//! the store gets no second lock.

use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use crate::StoreError;
use crate::process::Process;

/// How long the lock of an owner that is dead may last: a program that it was just starting still has a copy of the
/// descriptor until it runs.
const PATIENCE: Duration = Duration::from_secs(2);
/// Pause between two attempts.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Begins the text in a lock file, so that no file of somebody else is overwritten.
const LABEL: &str = "hq store lock";
/// Most bytes of that text: label, process, boot and host.
const TEXT_MAX: u64 = 1_024;

/// The right to a store.
#[derive(Debug)]
pub(crate) struct Lock {
    /// The database, without symbolic links.
    path: PathBuf,
    /// `None` = nobody can have the store: there is no lock file, and it was not to be made.
    file: Option<File>,
    is_new: bool,
}

impl Lock {
    /// Takes the lock of the store that `given` names. The database need not exist and is not touched.
    pub(crate) fn take(given: &Path) -> Result<Self, StoreError> {
        let path = resolve(given).map_err(create(given))?;
        let beside = lock_path(&path);
        let (file, is_new) = open_lock_file(&beside).map_err(create(&beside))?;
        check_posix_locks(&file, given)?;
        let mut lock = Self {
            path,
            file: None,
            is_new,
        };
        acquire(given, &file, || file.try_lock())?;
        // Only a help for those who are refused; a full disk must not prevent a start that needs no room.
        if let Err(error) = sign(&file) {
            tracing::debug!(%error, "the lock file does not name its owner");
        }
        lock.file = Some(file);
        Ok(lock)
    }

    /// The right to look at a database that nobody has; `None` = somebody has it. Makes no file.
    pub(crate) fn for_looking(given: &Path) -> Result<Option<Self>, StoreError> {
        let path = resolve(given).map_err(create(given))?;
        let mut lock = Self {
            path,
            file: None,
            is_new: false,
        };
        // Who has the store has made this file and can open it: without it, or without the right, it is not us.
        let Ok(file) = open_existing(&lock_path(&lock.path)) else {
            return Ok(Some(lock));
        };
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => Ok(None),
            // A file system without locks has no servers.
            Ok(()) | Err(TryLockError::Error(_)) => {
                lock.file = Some(file);
                Ok(Some(lock))
            }
        }
    }

    /// Who has the store, if somebody has it and the lock file says so; changes nothing.
    pub(crate) fn holder(given: &Path) -> Option<String> {
        let file = open_existing(&lock_path(&resolve(given).ok()?)).ok()?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                let text = text_of(&file).unwrap_or_default();
                let owner = text.lines().nth(1).and_then(Process::from_text);
                Some(owner.map_or_else(|| "an unnamed process".to_owned(), |o| o.to_string()))
            }
            Ok(()) | Err(TryLockError::Error(_)) => None,
        }
    }

    /// The database.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the database beside SQLite, which has no connection to it in this process.
    pub(crate) fn open_raw(&self) -> io::Result<File> {
        File::open(&self.path)
    }

    /// Makes an empty database that only we can read, if there is none.
    pub(crate) fn create_private(&self) -> io::Result<()> {
        let made = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&self.path);
        match made {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Takes the rights of others to read what is in a store, which are commands and environments of tasks. Refuses
    /// somebody else's file: its tasks would run as us.
    pub(crate) fn make_private(&self, given: &Path) -> Result<(), StoreError> {
        let failed = create(given);
        let found = std::fs::metadata(&self.path).map_err(&failed)?;
        let user = rustix::process::geteuid().as_raw();
        if found.uid() != user && found.uid() != 0 {
            return Err(StoreError::NotOurs {
                path: given.to_path_buf(),
                reason: format!(
                    "it belongs to user {}, not to you (user {user}), and its tasks would run as you; copy it to a file of your own",
                    found.uid()
                ),
            });
        }
        if found.mode() & 0o077 != 0 {
            std::fs::set_permissions(&self.path, Permissions::from_mode(0o600)).map_err(&failed)?;
            tracing::warn!(
                "the journal `{}` could be read by others (mode {:04o}); it is yours alone now",
                given.display(),
                found.mode() & 0o7777
            );
        }
        for companion in ["-wal", "-shm"] {
            let path = with_suffix(&self.path, companion);
            let is_open = |mode: u32| mode & 0o077 != 0;
            if std::fs::metadata(&path).is_ok_and(|found| is_open(found.mode())) {
                std::fs::set_permissions(&path, Permissions::from_mode(0o600)).map_err(&failed)?;
            }
        }
        Ok(())
    }

    /// Leaves no lock file beside a file that is no store, if there was none.
    pub(crate) fn withdraw(self) {
        if self.is_new {
            // It is empty but for our name, and nobody else can have it.
            let _ = std::fs::remove_file(lock_path(&self.path));
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            // Explicitly: a program that is just being started has a copy of the descriptor.
            let _ = file.unlock();
        }
    }
}

/// A path with something behind it, such as `state.db-wal`.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

fn lock_path(database: &Path) -> PathBuf {
    with_suffix(database, ".lock")
}

fn create(path: &Path) -> impl Fn(io::Error) -> StoreError + '_ {
    move |source| StoreError::Create {
        path: path.to_path_buf(),
        source,
    }
}

/// The path without symbolic links: two names of one file must not have two locks. SQLite does the same for its log.
fn resolve(given: &Path) -> io::Result<PathBuf> {
    match std::fs::canonicalize(given) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if std::fs::symlink_metadata(given).is_ok() {
                let text = "it is a link to a file that does not exist";
                return Err(io::Error::new(error.kind(), text));
            }
            let name = given.file_name().ok_or(error)?;
            let parent = given
                .parent()
                .filter(|parent| !parent.as_os_str().is_empty());
            Ok(std::fs::canonicalize(parent.unwrap_or(Path::new(".")))?.join(name))
        }
        result => result,
    }
}

/// Others can write into some directories: what they put there as our lock file is not followed and not waited for.
fn open_options() -> OpenOptions {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let mut options = OpenOptions::new();
    options
        .read(true)
        .write(true)
        .mode(0o600)
        .custom_flags(flags.bits().cast_signed());
    options
}

fn open_existing(path: &Path) -> io::Result<File> {
    let file = open_options().open(path)?;
    let found = text_of(&file)?;
    if !file.metadata()?.is_file() || !(found.is_empty() || found.starts_with(LABEL)) {
        let text = "it is in the way of a lock file and none of hq; move it away";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    Ok(file)
}

/// The lock file and whether it was made.
fn open_lock_file(path: &Path) -> io::Result<(File, bool)> {
    match open_options().create_new(true).open(path) {
        Ok(file) => Ok((file, true)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            Ok((open_existing(path)?, false))
        }
        Err(error) => Err(error),
    }
}

fn text_of(mut file: &File) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.take(TEXT_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Writes who has the lock.
fn sign(mut file: &File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{LABEL}\n{}", Process::this().to_text())
}

/// Waits for the lock of a dead owner; refuses at once if the owner lives.
fn acquire(
    given: &Path,
    file: &File,
    mut try_lock: impl FnMut() -> Result<(), TryLockError>,
) -> Result<(), StoreError> {
    let until = Instant::now() + PATIENCE;
    loop {
        match try_lock() {
            Ok(()) => return Ok(()),
            Err(TryLockError::WouldBlock) => {
                let text = text_of(file).unwrap_or_default();
                let owner = text.lines().nth(1).and_then(Process::from_text);
                let may_end = owner.as_ref().is_none_or(|owner| owner.is_gone());
                if !may_end || Instant::now() >= until {
                    let unnamed = || "it holds the lock beside the file".to_owned();
                    return Err(StoreError::InUse {
                        path: given.to_path_buf(),
                        owner: owner.map_or_else(unnamed, |owner| owner.to_string()),
                    });
                }
                std::thread::sleep(LOOK_INTERVAL);
            }
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(TryLockError::Error(source)) => return Err(refusal(given, source)),
        }
    }
}

/// SQLite's locks are others than ours; where they do not work, it would say that the disk is broken or the file busy.
fn check_posix_locks(file: &File, given: &Path) -> Result<(), StoreError> {
    let taken = rustix::fs::fcntl_lock(file, FlockOperation::NonBlockingLockExclusive)
        .and_then(|()| rustix::fs::fcntl_lock(file, FlockOperation::NonBlockingUnlock));
    match taken {
        // Some file systems turn both kinds of locks into one: then somebody has ours.
        Ok(()) | Err(Errno::ACCESS | Errno::AGAIN) => Ok(()),
        Err(error) => Err(refusal(given, error.into())),
    }
}

/// No lock for a reason other than that somebody has it.
fn refusal(given: &Path, source: io::Error) -> StoreError {
    let path = given.to_path_buf();
    match Errno::from_io_error(&source) {
        Some(Errno::NOSYS | Errno::NOLCK | Errno::OPNOTSUPP) => {
            StoreError::NoLocks { path, source }
        }
        _ => StoreError::Create { path, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_without_locks_is_named_as_the_cause() {
        let file = tempfile::tempfile().expect("a file");
        for error in [Errno::NOSYS, Errno::NOLCK, Errno::OPNOTSUPP] {
            let refused = acquire(Path::new("j.db"), &file, || {
                Err(TryLockError::Error(error.into()))
            });
            let text = refused.expect_err("it cannot be locked").to_string();
            assert!(text.contains("no file locks"), "{text}");
            assert!(text.contains("--journal"), "it says what to do: {text}");
        }
    }

    #[test]
    fn the_lock_of_a_dead_owner_is_waited_for() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("j.db");
        let file = tempfile::tempfile().expect("a file");
        let mut attempts = 0;
        let taken = acquire(&path, &file, || {
            attempts += 1;
            if attempts < 5 {
                return Err(TryLockError::WouldBlock);
            }
            Ok(())
        });
        taken.expect("it was given back");
        assert_eq!(attempts, 5);
    }

    #[test]
    fn one_file_has_one_lock_whatever_it_is_called() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("j.db");
        std::fs::write(&path, "").expect("room");
        let other = dir.path().join("link");
        std::os::unix::fs::symlink(&path, &other).expect("a link");
        let lock = Lock::take(&path).expect("nobody has it");
        let refused = Lock::take(&other).expect_err("we have it").to_string();
        let ours = format!("process {}", std::process::id());
        assert!(refused.contains(&ours), "{refused}");
        assert!(Lock::for_looking(&other).expect("readable").is_none());
        drop(lock);
        Lock::take(&other).expect("nobody has it any more");
    }

    #[test]
    fn a_foreign_file_in_the_place_of_the_lock_is_left_alone() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("j.db");
        let notes = dir.path().join("notes");
        std::fs::write(&notes, "mine").expect("room");
        std::os::unix::fs::symlink(&notes, lock_path(&path)).expect("a link");
        Lock::take(&path).expect_err("a link is not followed");
        std::fs::remove_file(lock_path(&path)).expect("it is there");
        std::fs::rename(&notes, lock_path(&path)).expect("room");
        let refused = Lock::take(&path).expect_err("it is in the way").to_string();
        assert!(refused.contains("move it away"), "{refused}");
        let text = std::fs::read_to_string(lock_path(&path)).expect("it is there");
        assert_eq!(text, "mine");
    }
}
