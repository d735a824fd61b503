//! Opening: is it ours, is it whole, does nobody else write it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use crate::load::{self, Loaded};
use crate::pages::{MAGIC, Pages};
use crate::salvage::{self, RepairReport};
use crate::writer::{self, Progress, StoreHandle};
use crate::{lease, reader, schema};

/// Bytes of the header of an SQLite file.
const HEADER_LEN: usize = 100;

/// Longest wait for others who have the file open when it is looked through.
const FOLD_TIMEOUT: Duration = Duration::from_millis(100);

/// Types of file systems (`statfs`) that several hosts can share: NFS, SMB, CIFS, Ceph, Lustre, GPFS,
/// BeeGFS, AFS, FUSE. Shared memory between processes is not reliable there.
const NETWORK_TYPES: &[u64] = &[
    0x6969,
    0x517b,
    0xff53_4d42,
    0xfe53_4d42,
    0x00c3_6400,
    0x0bd0_0bd0,
    0x4750_4653,
    0x1983_0326,
    0x5346_414f,
    0x6573_5546,
];

/// Why a store cannot be used. `Display` is complete; causes are behind it.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file cannot be made or opened.
    #[error("Cannot create event log file at `{}`: {source}", .path.display())]
    Create {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file cannot be read.
    #[error("Cannot open event log file at `{}`: {reason}", .path.display())]
    Open {
        /// Which file.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// The file is something else, or of a later version; it was not touched.
    #[error("Cannot use `{}` as a journal: {reason}", .path.display())]
    NotOurs {
        /// Which file.
        path: PathBuf,
        /// What was found.
        reason: String,
    },
    /// Parts of the file are not what they should be.
    #[error("The journal `{}` is damaged: {}{}; run `hq journal check --repair {}`, which keeps what can be proven and says what is lost", .path.display(), .problems.first().map_or("", String::as_str), more(.problems), .path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What was found; at least one.
        problems: Vec<String>,
    },
    /// Another server writes the file.
    #[error("The journal `{}` is used by another server ({owner}); stop that server first", .path.display())]
    InUse {
        /// Which file.
        path: PathBuf,
        /// Host and process.
        owner: String,
    },
    /// SQLite refused.
    #[error("The journal `{}` cannot be read or written: {source}", .path.display())]
    Sql {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: rusqlite::Error,
    },
}

impl StoreError {
    pub(crate) fn sql(path: &Path) -> impl Fn(rusqlite::Error) -> Self + '_ {
        move |source| Self::Sql {
            path: path.to_path_buf(),
            source,
        }
    }
}

/// An open store, owned by this process.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    connection: Connection,
    fence: i64,
    size_max: Option<u64>,
}

impl Store {
    /// Opens the file, or makes it, and takes its lease. `now_unix_ms` is the wall clock.
    ///
    /// # Errors
    ///
    /// See [`StoreError`]; a file that is not ours is left untouched.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        create_private(path)?;
        check_header(path)?;
        if fold(path) {
            heal_or_refuse(path)?;
        }
        let from = check_header(path)?;
        let sql = StoreError::sql(path);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(path, flags).map_err(&sql)?;
        if from == 0 {
            schema::prepare(&connection).map_err(&sql)?;
        }
        let is_shared = is_network(path);
        if is_shared {
            // Before WAL: then no shared memory is used at all, and a second opener is refused.
            connection
                .pragma_update(None, "locking_mode", "EXCLUSIVE")
                .map_err(&sql)?;
        }
        let busy = |error: rusqlite::Error| match error.sqlite_error_code() {
            Some(rusqlite::ErrorCode::DatabaseBusy) => StoreError::InUse {
                path: path.to_path_buf(),
                owner: "it holds the lock of the file".to_owned(),
            },
            _ => sql(error),
        };
        connection
            .pragma_update(None, "journal_mode", "WAL")
            .map_err(busy)?;
        // What was dropped must not come back when a damaged file is repaired.
        for (name, value) in [("synchronous", "FULL"), ("secure_delete", "ON")] {
            connection.pragma_update(None, name, value).map_err(&sql)?;
        }
        connection.set_prepared_statement_cache_capacity(64);
        schema::migrate(&mut connection, from).map_err(busy)?;
        let fence = lease::take(&mut connection, path)?;
        Ok(Self {
            path: path.to_path_buf(),
            connection,
            fence,
            size_max: None,
        })
    }

    /// Sets how many bytes the file may have before the oldest completed jobs are dropped from it; `None` =
    /// any number. What is not completed is always kept.
    #[must_use]
    pub const fn with_size_max(mut self, size_max: Option<u64>) -> Self {
        self.size_max = size_max;
        self
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Uid of the server that made the store, if one did.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn server_uid(&self) -> Result<Option<String>, StoreError> {
        load::meta_text(&self.connection, "server_uid").map_err(StoreError::sql(&self.path))
    }

    /// Reads the state back.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn load(&self, uid: &str, now: hq_core::time::Now) -> Result<Loaded, StoreError> {
        load::load(&self.connection, uid, now).map_err(StoreError::sql(&self.path))
    }

    /// Starts the writer thread. `gone_workers` are those of [`Loaded::gone_workers`]. `report` is called on it after each commit and whenever the health of
    /// the store changes; it must not block.
    ///
    /// # Errors
    ///
    /// If the file cannot be written or there is no thread to be had.
    pub fn start(
        self,
        uid: &str,
        gone_workers: &[hq_core::id::WorkerId],
        at: hq_core::time::Timestamp,
        report: impl Fn(Progress) + Send + 'static,
    ) -> Result<StoreHandle, StoreError> {
        writer::start(
            self.path,
            self.connection,
            (self.fence, self.size_max),
            (uid, gone_workers),
            at,
            Box::new(report),
        )
    }
}

fn more(problems: &[String]) -> String {
    match problems.len() {
        0 | 1 => String::new(),
        count => format!(", and {} more problems", count - 1),
    }
}

/// Moves the write-ahead log into the file; says whether nobody else has it open.
fn fold(path: &Path) -> bool {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let folded = Connection::open_with_flags(path, flags).and_then(|connection| {
        connection.busy_timeout(FOLD_TIMEOUT)?;
        connection.pragma_update(None, "locking_mode", "EXCLUSIVE")?;
        connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| {
            row.get::<_, bool>(0)
        })
    });
    match folded {
        Ok(is_busy) => !is_busy,
        // If it is damaged, the log cannot be used.
        Err(error) => !matches!(
            error.sqlite_error_code(),
            Some(rusqlite::ErrorCode::DatabaseBusy | rusqlite::ErrorCode::DatabaseLocked)
        ),
    }
}

/// A quick look at the file. The missing end of a cut one is dropped, as that of a log; anything else
/// needs a decision of somebody.
fn heal_or_refuse(path: &Path) -> Result<(), StoreError> {
    let pages = Pages::open(path).map_err(|error| StoreError::Open {
        path: path.to_path_buf(),
        reason: error.to_string(),
    })?;
    if pages.is_empty() {
        return Ok(());
    }
    let problems = pages.problems();
    if problems.is_empty() {
        return Ok(());
    }
    if !pages.is_cut() {
        return Err(StoreError::Damaged {
            path: path.to_path_buf(),
            problems,
        });
    }
    tracing::warn!("Journal contains not fully written data; they will be removed from the log");
    let report = salvage::repair(path)?;
    for line in report.to_string().lines() {
        tracing::warn!("{line}");
    }
    Ok(())
}

/// What is wrong with a file, a line a problem; empty if it is whole. A server may be using it.
///
/// # Errors
///
/// If there is no such file.
pub fn check(path: &Path) -> Result<Vec<String>, StoreError> {
    let failed = |error: io::Error| StoreError::Open {
        path: path.to_path_buf(),
        reason: error.to_string(),
    };
    let by_sqlite = reader::open_for_reading(path)
        .map_err(|error| error.to_string())
        .and_then(|connection| reader::problems(&connection).map_err(|error| error.to_string()));
    match by_sqlite {
        Ok(problems) => Ok(problems),
        Err(text) => {
            let mut problems = Pages::open(path).map_err(failed)?.problems();
            problems.push(text);
            Ok(problems)
        }
    }
}

/// Repairs a file: what can be proven is kept, the damaged file is set aside. Nothing is done with a whole
/// one.
///
/// # Errors
///
/// If a server uses the file, if it is no journal, or if there is no room beside it.
pub fn repair(path: &Path) -> Result<Option<RepairReport>, StoreError> {
    Pages::open(path).map_err(|error| StoreError::Open {
        path: path.to_path_buf(),
        reason: error.to_string(),
    })?;
    if !fold(path) {
        return Err(StoreError::InUse {
            path: path.to_path_buf(),
            owner: "it holds the lock of the file".to_owned(),
        });
    }
    if check(path)?.is_empty() {
        return Ok(None);
    }
    salvage::repair(path).map(Some)
}

/// Makes an empty file that only we can read, if there is none.
fn create_private(path: &Path) -> Result<(), StoreError> {
    let failed = |source| StoreError::Create {
        path: path.to_path_buf(),
        source,
    };
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map(|_| ())
        .map_err(failed)
}

/// Version of the schema in the file; 0 of an empty one.
pub(crate) fn check_header(path: &Path) -> Result<i32, StoreError> {
    let refuse = |reason: &str| StoreError::NotOurs {
        path: path.to_path_buf(),
        reason: reason.to_owned(),
    };
    let mut head = Vec::new();
    File::open(path)
        .and_then(|file| file.take(100).read_to_end(&mut head))
        .map_err(|source| StoreError::Open {
            path: path.to_path_buf(),
            reason: source.to_string(),
        })?;
    if head.is_empty() {
        // Everything may still be in the write-ahead log.
        return Ok(wal_version(path));
    }
    if head.len() < HEADER_LEN && MAGIC.starts_with(head.get(..MAGIC.len()).unwrap_or(&head)) {
        // A journal that was cut.
        return Ok(0);
    }
    if head.iter().all(|byte| *byte == 0) {
        return Err(refuse(
            "its beginning is zero; if it was a journal, `hq journal check --repair` keeps the rest",
        ));
    }
    if !head.starts_with(MAGIC) || head.len() < HEADER_LEN {
        return Err(refuse("it is not an SQLite database"));
    }
    let number = |at: usize| {
        let bytes = head.get(at..at + 4).and_then(|b| b.try_into().ok());
        bytes.map_or(0, i32::from_be_bytes)
    };
    if number(68) == 0 && number(60) == 0 {
        return Ok(wal_version(path));
    }
    if number(68) != schema::APPLICATION_ID {
        return Err(refuse("it is a database of another program"));
    }
    if number(60) > schema::version() {
        return Err(refuse(&format!(
            "it has format {}, this version of hq knows formats up to {}; use a newer hq",
            number(60),
            schema::version()
        )));
    }
    Ok(number(60))
}

/// What SQLite itself says, the write-ahead log included.
fn wal_version(path: &Path) -> i32 {
    Connection::open(path)
        .and_then(|c| c.pragma_query_value(None, "user_version", |row| row.get(0)))
        .unwrap_or(0)
}

fn is_network(path: &Path) -> bool {
    rustix::fs::statfs(path).is_ok_and(|found| {
        u64::try_from(found.f_type).is_ok_and(|kind| NETWORK_TYPES.contains(&(kind & 0xffff_ffff)))
    })
}
