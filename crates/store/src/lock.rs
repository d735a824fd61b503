//! The lock of a store: a separate file next to the database, which is locked as long as a process
//! uses the store.
//!
//! SQLite's own locks are POSIX locks, which belong to a process: when the process closes *any*
//! descriptor of the database, the kernel drops all of these locks ("How To Corrupt An SQLite
//! Database File", 2.2). The next process that closes the database then assumes that it is the last
//! user and removes the log. Two rules follow:
//!
//! - The lock that determines who owns a store is a `flock`, which belongs to an open file. It is
//!   held on a file that SQLite does not open.
//! - Only [`Lock::open_raw`] opens the database without SQLite. At that point, the holder of the
//!   lock has no connection yet, and a process that uses the store cannot get a second lock.

use std::fs::{File, Metadata, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::unix::fs::{
    FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, OFlags};
use rustix::io::Errno;

use crate::StoreError;
use crate::process::Process;

/// How long a dead owner's lock may persist: a program that the owner was just starting holds a
/// copy of the descriptor until its exec.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a starting server waits for processes that only read a file without an owner.
/// `hq journal check` reads the whole file.
const LOOKERS_PATIENCE: Duration = Duration::from_secs(10);
/// The pause between two attempts.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// The prefix of the text in a lock file. A file without it belongs to another program and is not
/// overwritten.
const LABEL: &str = "hq store lock";
/// The maximum length of that text in bytes. It contains the label, the process, the boot and the
/// host.
const TEXT_MAX: u64 = 1_024;

/// How a lock is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// An exclusive lock, taken by the owner of the store.
    Own,
    /// A shared lock, taken by processes that only read.
    Look,
}

/// The owner of a store according to its lock file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Holder {
    /// The named process uses the store.
    Alive(String),
    /// The last owner was a process of this host and has ended.
    Ended,
    /// The store is not locked, but the last owner was on another host, whose locks may not be
    /// visible here.
    Elsewhere(String),
    /// The lock file does not exist or does not name an owner.
    Unknown,
}

/// Reads the owner of the store at `given` without changing anything.
#[must_use]
pub fn holder(given: &Path) -> Holder {
    let opened = resolve(given).and_then(|path| open_existing(&lock_path(&path)));
    let Ok(file) = opened else {
        return Holder::Unknown;
    };
    // This uses a shared lock, so that two concurrent readers do not mistake each other for the
    // owner.
    let is_locked = matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock));
    let text = text_of(&file).unwrap_or_default();
    match text.lines().nth(1).and_then(Process::from_text) {
        Some(owner) if is_locked => Holder::Alive(owner.to_string()),
        None if is_locked => Holder::Alive("an unnamed process".to_owned()),
        Some(owner) if !owner.is_near() => Holder::Elsewhere(owner.to_string()),
        Some(_) => Holder::Ended,
        None => Holder::Unknown,
    }
}

/// The exclusive right to use a store, or another resource that only one process may use.
#[derive(Debug)]
pub struct Lock {
    /// The path of the database, without symbolic links.
    path: PathBuf,
    /// `None` if the store has no lock file, so no process can own it.
    file: Option<File>,
    is_new: bool,
}

impl Lock {
    /// Locks the store at `given`. The database does not have to exist and is not accessed.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::InUse`] if a living process has locked the store, and
    /// [`StoreError::NoLocks`] or [`StoreError::Create`] if it cannot be locked.
    pub fn take(given: &Path) -> Result<Self, StoreError> {
        let path = resolve(given).map_err(create(given))?;
        let beside = lock_path(&path);
        let (file, is_new) = open_lock_file(&beside).map_err(create(&beside))?;
        check_posix_locks(&file, given)?;
        let mut lock = Self {
            path,
            file: None,
            is_new,
        };
        acquire(given, &file, |mode| match mode {
            Mode::Own => file.try_lock(),
            Mode::Look => file.try_lock_shared(),
        })?;
        // The text only explains to other processes why they were rejected. A full disk must not
        // prevent the server from starting.
        if let Err(error) = sign(&file) {
            tracing::debug!(%error, "cannot write the owner into the lock file");
        }
        lock.file = Some(file);
        Ok(lock)
    }

    /// Locks a database without an owner for reading, shared with other readers. Returns `None` if
    /// a process owns it. Does not create a file.
    pub(crate) fn for_looking(given: &Path) -> Result<Option<Self>, StoreError> {
        let path = resolve(given).map_err(create(given))?;
        let mut lock = Self {
            path,
            file: None,
            is_new: false,
        };
        // The owner created this file and can open it. If the file is missing or not accessible,
        // none of this user's servers owns the store.
        let Ok(file) = open_existing(&lock_path(&lock.path)) else {
            return Ok(Some(lock));
        };
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => Ok(None),
            // No server runs on a file system without locks.
            Ok(()) | Err(TryLockError::Error(_)) => {
                lock.file = Some(file);
                Ok(Some(lock))
            }
        }
    }

    /// Returns the path of the database.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the database without SQLite. This process must not have an SQLite connection to it.
    pub(crate) fn open_raw(&self) -> io::Result<File> {
        open_regular(&self.path)
    }

    /// Creates an empty database that only this user can read, unless it already exists.
    pub(crate) fn create_private(&self) -> io::Result<()> {
        match hq_private::new_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Removes other users' read access, because the store contains commands and environments of
    /// tasks. Rejects a file of another user, because its tasks would run as this user.
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
                "other users could read the journal `{}` (mode {:04o}); their access is now removed",
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

    /// Removes the lock file of a file that is not a store, if this process created the lock file.
    pub(crate) fn withdraw(self) {
        if self.is_new {
            // The file contains only the name of this process, and no other process can have locked
            // it.
            let _ = std::fs::remove_file(lock_path(&self.path));
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            // The file is unlocked explicitly, because a program that is just being started holds a
            // copy of the descriptor.
            let _ = file.unlock();
        }
    }
}

/// Appends a suffix to a path, for example `state.db-wal`.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Opens a regular file for reading and rejects any other type of file. Opening a FIFO would block
/// until a writer opens it.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    expect_regular(&file.metadata()?)?;
    Ok(file)
}

/// Rejects everything except regular files.
pub(crate) fn expect_regular(found: &Metadata) -> io::Result<()> {
    let kind = found.file_type();
    let name = match kind {
        _ if kind.is_file() => return Ok(()),
        _ if kind.is_dir() => "a directory",
        _ if kind.is_fifo() => "a FIFO",
        _ if kind.is_socket() => "a socket",
        _ => "a device",
    };
    let text = format!("expected a regular file, found {name}");
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
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

/// Resolves symbolic links in a path, because two names of one file must share a lock. SQLite also
/// resolves links for its log.
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

/// Returns options that neither follow links nor block, because other users may be able to replace
/// the lock file.
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
    expect_regular(&file.metadata()?)?;
    let found = text_of(&file)?;
    if !found.is_empty() && !found.starts_with(LABEL) {
        let text = "another program's file is in the place of hq's lock file; move it away";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, text));
    }
    Ok(file)
}

/// Opens the lock file. Also returns whether it was created.
fn open_lock_file(path: &Path) -> io::Result<(File, bool)> {
    match open_options().create_new(true).open(path) {
        Ok(file) => Ok((file, true)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            let file = open_existing(path)?;
            // Its owner could keep it locked forever.
            hq_private::check_owner(&file.metadata()?)?;
            Ok((file, false))
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

/// Writes the name of the owner into the lock file.
fn sign(mut file: &File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{LABEL}\n{}", Process::this().to_text())
}

/// Takes the lock. Waits for the lock of a dead owner and for readers, but fails immediately if the
/// owner is alive.
fn acquire(
    given: &Path,
    file: &File,
    mut try_lock: impl FnMut(Mode) -> Result<(), TryLockError>,
) -> Result<(), StoreError> {
    let begin = Instant::now();
    let in_use = |owner: String| StoreError::InUse {
        path: given.to_path_buf(),
        owner,
    };
    loop {
        match try_lock(Mode::Own) {
            Ok(()) => return Ok(()),
            // A shared lock succeeds, so there is no owner, and the text names an earlier one. The
            // lock is released before the next attempt, because two processes that start at the
            // same time would otherwise wait for each other.
            Err(TryLockError::WouldBlock) if try_lock(Mode::Look).is_ok() => {
                file.unlock().map_err(create(given))?;
                if begin.elapsed() >= LOOKERS_PATIENCE {
                    return Err(in_use("another program reads it".to_owned()));
                }
                std::thread::sleep(LOOK_INTERVAL);
            }
            Err(TryLockError::WouldBlock) => {
                let text = text_of(file).unwrap_or_default();
                let owner = text.lines().nth(1).and_then(Process::from_text);
                let may_end = owner.as_ref().is_none_or(|owner| owner.is_gone());
                if !may_end || begin.elapsed() >= PATIENCE {
                    let unnamed = || "it holds the lock file".to_owned();
                    return Err(in_use(
                        owner.map_or_else(unnamed, |owner| owner.to_string()),
                    ));
                }
                std::thread::sleep(LOOK_INTERVAL);
            }
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(TryLockError::Error(source)) => return Err(refusal(given, source)),
        }
    }
}

/// Tests POSIX locks, which SQLite uses. If they do not work, SQLite would report a broken disk or
/// a busy file.
fn check_posix_locks(file: &File, given: &Path) -> Result<(), StoreError> {
    let taken = rustix::fs::fcntl_lock(file, FlockOperation::NonBlockingLockExclusive)
        .and_then(|()| rustix::fs::fcntl_lock(file, FlockOperation::NonBlockingUnlock));
    match taken {
        // Some file systems map both kinds of locks to one. In that case, another process has this
        // lock.
        Ok(()) | Err(Errno::ACCESS | Errno::AGAIN) => Ok(()),
        Err(error) => Err(refusal(given, error.into())),
    }
}

/// Returns the error for a lock that failed although no other process holds it.
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
            let refused = acquire(Path::new("j.db"), &file, |_| {
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
        let taken = acquire(&path, &file, |mode| {
            attempts += u32::from(mode == Mode::Own);
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
        let lock = Lock::take(&path).expect("it is free");
        let refused = Lock::take(&other).expect_err("we have it").to_string();
        let ours = format!("process {}", std::process::id());
        assert!(refused.contains(&ours), "{refused}");
        assert!(Lock::for_looking(&other).expect("readable").is_none());
        drop(lock);
        Lock::take(&other).expect("it is free again");
    }

    #[test]
    fn a_reader_blocks_neither_a_start_nor_other_readers() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("j.db");
        std::fs::write(&path, "").expect("room");
        // The file names an owner that may be alive, as if a server on another host had ended.
        drop(Lock::take(&path).expect("it is free"));
        let looking = Lock::for_looking(&path).expect("readable");
        let looking = looking.expect("it is free");
        assert_eq!(
            holder(&path),
            Holder::Ended,
            "a process that looks is no owner"
        );
        assert!(Lock::for_looking(&path).expect("readable").is_some());
        let (taken, is_taken) = std::sync::mpsc::channel();
        let start = std::thread::spawn(move || {
            let lock = Lock::take(&path);
            taken.send(()).expect("it is waited for");
            lock.map(|lock| (holder(&path), lock))
        });
        let waited = is_taken.recv_timeout(Duration::from_millis(100));
        waited.expect_err("it waits");
        drop(looking);
        let (holder, _lock) = start.join().expect("it ends").expect("it is free");
        assert!(matches!(holder, Holder::Alive(text) if text.starts_with("process")));
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
