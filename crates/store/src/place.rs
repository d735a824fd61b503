//! The location of a store, and the only ways to connect to it.
//!
//! On a file system that several hosts may mount, memory shared between processes is not reliable.
//! SQLite's VFS `unix-excl` is used there: the process locks the database for itself and keeps the
//! index of the write-ahead log in its own memory, where all its connections can access it. The
//! writer and the readers of a server therefore work as on a local disk, and other processes are
//! locked out.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::lock::with_suffix;

/// The file systems (`statfs`) that only one host uses: ext2 to ext4, XFS, Btrfs, tmpfs, overlayfs,
/// ZFS, F2FS, bcachefs, JFS, NILFS, exFAT, FAT, NTFS. All others are treated as shared. If a local
/// file system is treated as shared, the only effect is that other processes cannot read the store.
/// The opposite error would corrupt it.
const LOCAL_TYPES: &[u64] = &[
    0xef53,
    0x5846_5342,
    0x9123_683e,
    0x0102_1994,
    0x794c_7630,
    0x2fc1_2fc1,
    0xf2f5_2010,
    0xca45_1a4e,
    0x3153_464a,
    0x3434,
    0x2011_bab0,
    0x4d44,
    0x5346_544e,
    0x7366_746e,
];

/// How long to wait for other processes when a store is only read.
const PEEK_TIMEOUT: Duration = Duration::from_secs(1);

/// Whether several hosts may share a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FileSystem {
    /// Only this host uses the file system.
    Local,
    /// Other hosts may have mounted the file system.
    Shared,
}

impl FileSystem {
    /// Returns the file system of an existing file.
    pub(crate) fn of(path: &Path) -> Self {
        rustix::fs::statfs(path).map_or(Self::Shared, |found| {
            Self::from_type(u64::try_from(found.f_type).unwrap_or(0))
        })
    }

    fn from_type(kind: u64) -> Self {
        if LOCAL_TYPES.contains(&(kind & 0xffff_ffff)) {
            Self::Local
        } else {
            Self::Shared
        }
    }
}

/// A store and how to connect to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    /// The path of the database, without symbolic links.
    pub(crate) path: PathBuf,
    pub(crate) file_system: FileSystem,
}

impl Place {
    /// Connects for writing.
    pub(crate) fn connect(&self) -> rusqlite::Result<Connection> {
        self.open(OpenFlags::SQLITE_OPEN_READ_WRITE)
    }

    /// Connects to read who owns the store. Unlike with [`Self::connect`], closing the last
    /// connection keeps the log.
    pub(crate) fn peek(&self) -> rusqlite::Result<Connection> {
        let connection = self.open(OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        connection.busy_timeout(PEEK_TIMEOUT)?;
        connection.pragma_update(None, "query_only", true)?;
        Ok(connection)
    }

    /// Connects for reading, also while the writer of this process is connected.
    pub(crate) fn read(&self) -> rusqlite::Result<Connection> {
        match self.file_system {
            FileSystem::Local => connect_for_reading(&self.path).map(|(connection, _)| connection),
            // Only writable connections share the lock and the index of `unix-excl`.
            FileSystem::Shared => self.peek(),
        }
    }

    /// Connects to read who owns the store, like [`Self::peek`]. A file without a log has no
    /// server, and SQLite then creates no files next to it.
    pub(crate) fn open_for_peek(&self) -> rusqlite::Result<Connection> {
        if fs::exists(with_suffix(&self.path, "-wal")).unwrap_or(true) {
            self.peek()
        } else {
            Self::read_unchanging(&self.path)
        }
    }

    /// Connects to read a file that no process writes to, without its log, locks or companion
    /// files.
    pub(crate) fn read_unchanging(path: &Path) -> rusqlite::Result<Connection> {
        use std::fmt::Write as _;
        let mut uri = String::from("file:");
        for byte in path.as_os_str().as_bytes() {
            // Writing to a `String` cannot fail.
            let _ = write!(uri, "%{byte:02X}");
        }
        uri.push_str("?immutable=1");
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
            | OpenFlags::SQLITE_OPEN_NO_MUTEX
            | OpenFlags::SQLITE_OPEN_URI;
        Connection::open_with_flags(uri, flags)
    }

    fn open(&self, access: OpenFlags) -> rusqlite::Result<Connection> {
        let vfs = match self.file_system {
            FileSystem::Local => c"unix",
            FileSystem::Shared => c"unix-excl",
        };
        let flags = access | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        Connection::open_with_flags_and_vfs(&self.path, flags, vfs)
    }

    /// Returns the size of the database and its log in bytes.
    pub(crate) fn len_bytes(&self) -> u64 {
        let len = |path: &Path| fs::metadata(path).map_or(0, |found| found.len());
        len(&self.path).saturating_add(len(&with_suffix(&self.path, "-wal")))
    }

    /// Returns the identities of the files at the paths of the database and its log.
    ///
    /// # Errors
    ///
    /// Returns an error if they cannot be determined at present: a network file system may fail
    /// temporarily while the files are intact.
    pub(crate) fn files(&self) -> io::Result<Files> {
        let of = |path: &Path| match fs::metadata(path) {
            Ok(found) => Ok(Some(File {
                device: found.dev(),
                inode: found.ino(),
                len: found.len(),
            })),
            Err(error) if is_absence(&error) => Ok(None),
            Err(error) => Err(error),
        };
        Ok(Files {
            database: of(&self.path)?,
            log: of(&with_suffix(&self.path, "-wal"))?,
        })
    }
}

/// A connection, the application id, and the schema version.
pub(crate) type Connected = (Connection, rusqlite::Result<(i32, i32)>);

/// Connects for reading. A file without a log has no server. In that case, the last reader removes
/// the empty log that SQLite creates, and the directory may be read-only.
pub(crate) fn connect_for_reading(path: &Path) -> rusqlite::Result<Connected> {
    // Ask SQLite instead of opening the file, because this process may hold locks on it, and
    // closing any descriptor would drop them.
    let ask = |connection: &Connection| {
        let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
        number("application_id").and_then(|id| Ok((id, number("user_version")?)))
    };
    let is_alone = !fs::exists(with_suffix(path, "-wal")).unwrap_or(true);
    let access = if is_alone {
        OpenFlags::SQLITE_OPEN_READ_WRITE
    } else {
        OpenFlags::SQLITE_OPEN_READ_ONLY
    };
    let connection = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    if is_alone {
        connection.pragma_update(None, "query_only", true)?;
    }
    let numbers = ask(&connection);
    let is_barred = numbers.as_ref().is_err_and(|error| {
        matches!(
            error.sqlite_error_code(),
            Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen)
        )
    });
    if !is_alone || !is_barred {
        return Ok((connection, numbers));
    }
    let connection = Place::read_unchanging(path)?;
    let numbers = ask(&connection);
    Ok((connection, numbers))
}

/// Returns whether an error means that no file has this name.
fn is_absence(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

/// The identities of the files of a database and its log. `None` means that the file does not
/// exist.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Files {
    database: Option<File>,
    log: Option<File>,
}

#[derive(Clone, Copy, Debug)]
struct File {
    device: u64,
    inode: u64,
    len: u64,
}

impl File {
    const fn is(self, other: Self) -> bool {
        self.device == other.device && self.inode == other.inode
    }
}

impl Files {
    /// Returns whether both files exist.
    pub(crate) const fn are_there(&self) -> bool {
        self.database.is_some() && self.log.is_some()
    }

    /// Returns whether they are the same files as in `earlier`.
    pub(crate) fn are(&self, earlier: &Self) -> bool {
        let is_same = |now: Option<File>, then: Option<File>| {
            now.zip(then).is_some_and(|(now, then)| now.is(then))
        };
        is_same(self.database, earlier.database) && is_same(self.log, earlier.log)
    }

    /// Returns the size of the database in bytes, or 0 if it does not exist.
    pub(crate) fn database_len(&self) -> u64 {
        self.database.map_or(0, |database| database.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_to_be_local_is_taken_for_it() {
        let directory = std::env::current_dir().expect("a directory");
        // The result depends on where the test runs.
        let _ = FileSystem::of(&directory);
        assert_eq!(FileSystem::from_type(0xef53), FileSystem::Local);
        assert_eq!(FileSystem::from_type(0x0102_1994), FileSystem::Local);
        // NFS, Lustre, GPFS, BeeGFS, FUSE, 9p, PanFS, OCFS2, GFS2.
        for shared in [
            0x6969,
            0x0bd0_0bd0,
            0x4750_4653,
            0x1983_0326,
            0x6573_5546,
            0x0102_1997,
            0xaad7_aaea,
            0x7461_636f,
            0x0116_1970,
        ] {
            assert_eq!(FileSystem::from_type(shared), FileSystem::Shared);
        }
    }
}
