//! The lock of a store: on a file of its own beside the database, held as long as the store is.
//!
//! SQLite's own locks are POSIX locks, which belong to a process: when it closes *any* descriptor of the database, the
//! kernel drops all of them ("How To Corrupt An SQLite Database File", 2.2), and the next one who closes the database
//! believes to be its last user and removes the log. So two things hold here. The lock that says whose a store is
//! (`flock`, of an open file, not of a process) is on a file that SQLite does not know. And the database itself is
//! opened beside SQLite by [`Lock::open_raw`] only: the holder of the lock has no connection yet, and a process that has
//! the store gets no second lock.

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

/// How long the lock of an owner that is dead may last: a program that it was just starting still has a copy of the
/// descriptor until it runs.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a start waits for those who only look at a file that nobody has; `hq journal check` reads all of it.
const LOOKERS_PATIENCE: Duration = Duration::from_secs(10);
/// Pause between two attempts.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// Begins the text in a lock file, so that no file of somebody else is overwritten.
const LABEL: &str = "hq store lock";
/// Most bytes of that text: label, process, boot and host.
const TEXT_MAX: u64 = 1_024;

/// How a lock is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// For one who has the store, alone.
    Own,
    /// For those who only look.
    Look,
}

/// Owner of a store as its lock file tells, without a look into the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Holder {
    /// This process has the store.
    Alive(String),
    /// The last owner was a process of this host, and has ended.
    Ended,
    /// Nobody has the lock, but the last owner was on another host, whose locks may not be seen here.
    Elsewhere(String),
    /// There is no lock file, or it names no owner.
    Unknown,
}

/// Holder of the store that `given` names; changes nothing.
#[must_use]
pub fn holder(given: &Path) -> Holder {
    let opened = resolve(given).and_then(|path| open_existing(&lock_path(&path)));
    let Ok(file) = opened else {
        return Holder::Unknown;
    };
    // Two processes that look must not take each other for the owner.
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

/// The right to a store, or to another thing that one process has at a time.
#[derive(Debug)]
pub struct Lock {
    /// The database, without symbolic links.
    path: PathBuf,
    /// `None` = nobody can have the store: there is no lock file, and it was not to be made.
    file: Option<File>,
    is_new: bool,
}

impl Lock {
    /// Takes the lock of the store that `given` names. The database need not exist and is not touched.
    ///
    /// # Errors
    ///
    /// [`StoreError::InUse`] if a living process has it; [`StoreError::NoLocks`] and [`StoreError::Create`].
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
        // Only a help for those who are refused; a full disk must not prevent a start that needs no room.
        if let Err(error) = sign(&file) {
            tracing::debug!(%error, "the lock file does not name its owner");
        }
        lock.file = Some(file);
        Ok(lock)
    }

    /// The right to look at a database that nobody has, which others may have, too; `None` = somebody has it. Makes no
    /// file.
    pub(crate) fn for_looking(given: &Path) -> Result<Option<Self>, StoreError> {
        let path = resolve(given).map_err(create(given))?;
        let mut lock = Self {
            path,
            file: None,
            is_new: false,
        };
        // The holder of the store has made this file and can open it: without it, or without the right, it is not us.
        let Ok(file) = open_existing(&lock_path(&lock.path)) else {
            return Ok(Some(lock));
        };
        match file.try_lock_shared() {
            Err(TryLockError::WouldBlock) => Ok(None),
            // A file system without locks has no servers.
            Ok(()) | Err(TryLockError::Error(_)) => {
                lock.file = Some(file);
                Ok(Some(lock))
            }
        }
    }

    /// The database.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the database beside SQLite, which has no connection to it in this process.
    pub(crate) fn open_raw(&self) -> io::Result<File> {
        open_regular(&self.path)
    }

    /// Makes an empty database that only we can read, if there is none.
    pub(crate) fn create_private(&self) -> io::Result<()> {
        match hq_private::new_file(&self.path) {
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

/// Opens a file to read it. Anything but a regular file is refused: to open a FIFO waits for a writer, for ever.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(flags)
        .open(path)?;
    expect_regular(&file.metadata()?)?;
    Ok(file)
}

/// Refuses what is no regular file.
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
    expect_regular(&file.metadata()?)?;
    let found = text_of(&file)?;
    if !found.is_empty() && !found.starts_with(LABEL) {
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

/// Waits for the lock of a dead owner, and for those who only look; refuses at once if the owner lives.
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
            // Nobody has it, so the text tells of an earlier owner. What was taken here is given up before the next
            // attempt: two who start at the same time would wait for each other.
            Err(TryLockError::WouldBlock) if try_lock(Mode::Look).is_ok() => {
                file.unlock().map_err(create(given))?;
                if begin.elapsed() >= LOOKERS_PATIENCE {
                    return Err(in_use("another program looks at it".to_owned()));
                }
                std::thread::sleep(LOOK_INTERVAL);
            }
            Err(TryLockError::WouldBlock) => {
                let text = text_of(file).unwrap_or_default();
                let owner = text.lines().nth(1).and_then(Process::from_text);
                let may_end = owner.as_ref().is_none_or(|owner| owner.is_gone());
                if !may_end || begin.elapsed() >= PATIENCE {
                    let unnamed = || "it holds the lock beside the file".to_owned();
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
        let lock = Lock::take(&path).expect("nobody has it");
        let refused = Lock::take(&other).expect_err("we have it").to_string();
        let ours = format!("process {}", std::process::id());
        assert!(refused.contains(&ours), "{refused}");
        assert!(Lock::for_looking(&other).expect("readable").is_none());
        drop(lock);
        Lock::take(&other).expect("nobody has it any more");
    }

    #[test]
    fn who_only_looks_holds_up_no_start_and_nobody_who_looks() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("j.db");
        std::fs::write(&path, "").expect("room");
        // It names an owner that lives, as that of a server that has ended on another host does for all that is known.
        drop(Lock::take(&path).expect("nobody has it"));
        let looking = Lock::for_looking(&path).expect("readable");
        let looking = looking.expect("nobody has it");
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
        let (holder, _lock) = start.join().expect("it ends").expect("nobody has it");
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
