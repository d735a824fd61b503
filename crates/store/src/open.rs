//! Opens a store and checks that the file is a journal, is intact, and has no other writer.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, ErrorCode};

use crate::examine::{self, WalState};
use crate::history::{self, History};
use crate::lease::{self, Leased};
use crate::load::{self, Loaded};
use crate::lock::Lock;
use crate::place::{FileSystem, Files, Place};
use crate::stretch::StretchKey;
use crate::writer::{self, OwnedStore, Progress, StoreHandle};
use crate::{StoreError, memory, meta, schema};

/// A locked store that has not been changed yet.
#[derive(Debug)]
pub struct InspectedStore {
    lock: Lock,
    path: PathBuf,
    last_owner: Option<i64>,
    history: Result<History, StoreError>,
}

impl InspectedStore {
    /// Returns how the last server of the store ended.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be read. [`Self::open`] may be able to repair it.
    pub const fn history(&self) -> Result<&History, &StoreError> {
        self.history.as_ref()
    }

    /// Opens the store in the same way as [`Store::open`].
    ///
    /// # Errors
    ///
    /// See [`StoreError`].
    pub fn open(self) -> Result<Store, StoreError> {
        Store::open_locked(self.lock, &self.path, None, Some(self.last_owner))
    }
}

/// An open store that this process owns.
#[derive(Debug)]
pub struct Store {
    // The order of these fields matters: the connection is closed before the lock is released.
    connection: Leased,
    /// The path as the user gave it, for messages.
    path: PathBuf,
    place: Place,
    files: Files,
    size_max: Option<u64>,
    /// The stretches that could not be read; see [`Loaded`].
    unreadable: RefCell<Vec<StretchKey>>,
    lock: Lock,
}

impl Store {
    /// Opens or creates the file, and takes its lock and its lease.
    ///
    /// # Errors
    ///
    /// See [`StoreError`]. A file that is not a journal is not changed.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        Self::open_on(path, None)
    }

    /// Locks an existing file, waits until no server on another host writes to it, and reads how
    /// its last server ended. The file is not changed.
    ///
    /// # Errors
    ///
    /// Returns [`StoreError::InUse`] if a server uses the store. See [`StoreError`] for other
    /// errors.
    pub fn look(path: &Path) -> Result<InspectedStore, StoreError> {
        let lock = Lock::take(path)?;
        let place = place_of(&lock, None);
        // This must precede opening the file with SQLite, which deletes the log of an empty file.
        history::check_companions(lock.path(), path)?;
        examine::check_header(&lock, &place, path)?;
        let last_owner = lease::look(&place, path)?;
        let read = place
            .open_for_peek()
            .and_then(|found| History::read(&found));
        let history = read.map_err(StoreError::sql(path));
        Ok(InspectedStore {
            lock,
            path: path.to_path_buf(),
            last_owner,
            history,
        })
    }

    /// Opens a store in the same way as [`Self::open`]. `file_system` overrides the detected file
    /// system.
    pub(crate) fn open_on(
        path: &Path,
        file_system: Option<FileSystem>,
    ) -> Result<Self, StoreError> {
        // The lock comes first, so that from here on no other process, and no other part of this
        // process, has the store.
        Self::open_locked(Lock::take(path)?, path, file_system, None)
    }

    /// Opens a store that is already locked. `last_owner` is the fencing number of the last owner,
    /// if the caller has already waited for it to end.
    fn open_locked(
        lock: Lock,
        path: &Path,
        file_system: Option<FileSystem>,
        last_owner: Option<Option<i64>>,
    ) -> Result<Self, StoreError> {
        if let Err(error) = history::check_companions(lock.path(), path) {
            lock.withdraw();
            return Err(error);
        }
        lock.create_private().map_err(|source| StoreError::Create {
            path: path.to_path_buf(),
            source,
        })?;
        let place = place_of(&lock, file_system);
        if let Err(error) = examine::check_header(&lock, &place, path) {
            lock.withdraw();
            return Err(error);
        }
        lock.make_private(path)?;
        // This must precede any access to the log, because an earlier release does not take the
        // lock.
        let last_owner = match last_owner {
            Some(seen) => seen,
            None => lease::look(&place, path)?,
        };
        let folded = examine::fold(&place, path)?;
        if folded != WalState::InUse {
            examine::heal_or_refuse(&lock, folded, path)?;
        }
        let from = examine::check_header(&lock, &place, path)?;
        let connection = connect(&place, path, from)?;
        let connection = Leased::take(connection, path, last_owner)?;
        let files = place.files().map_err(|error| error.to_string());
        let files = files.and_then(|files| {
            let gone = || "it or its write-ahead log was removed meanwhile".to_owned();
            files.are_there().then_some(files).ok_or_else(gone)
        });
        let files = files.map_err(|reason| StoreError::Open {
            path: path.to_path_buf(),
            reason,
        })?;
        Ok(Self {
            connection,
            path: path.to_path_buf(),
            place,
            files,
            size_max: None,
            unreadable: RefCell::default(),
            lock,
        })
    }

    /// Sets the maximum size of the file in bytes; `None` means unlimited. If the file is larger,
    /// the oldest completed jobs are dropped. Jobs that are not completed are always kept.
    #[must_use]
    pub const fn with_size_max(mut self, size_max: Option<u64>) -> Self {
        self.size_max = size_max;
        self
    }

    /// Records that `--fresh` created this store.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be written.
    pub fn note_fresh(&self) -> Result<(), StoreError> {
        history::note_fresh(&self.connection).map_err(StoreError::sql(&self.path))
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the uid of the server that created the store, if there is one.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read.
    pub fn server_uid(&self) -> Result<Option<String>, StoreError> {
        meta::text(&self.connection, "server_uid").map_err(StoreError::sql(&self.path))
    }

    /// Restores the state.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read.
    pub fn load(&self, uid: &str, now: hq_core::time::Now) -> Result<Loaded, StoreError> {
        let mut loaded = memory::guarded(&self.connection, &self.path, || {
            load::load(&self.connection, uid, now, false)
        })?;
        *self.unreadable.borrow_mut() = std::mem::take(&mut loaded.unreadable);
        Ok(loaded)
    }

    /// Starts the writer thread. `gone_workers` is [`Loaded::gone_workers`]. The thread calls
    /// `report` after each commit and whenever the health of the store changes. `report` must not
    /// block.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be written or no thread can be created.
    pub fn start(
        self,
        uid: &str,
        gone_workers: &[hq_core::id::WorkerId],
        at: hq_core::time::Timestamp,
        report: impl Fn(Progress) + Send + 'static,
    ) -> Result<StoreHandle, StoreError> {
        writer::start(self.owned(), (uid, gone_workers), at, Box::new(report))
    }

    pub(crate) fn owned(self) -> OwnedStore {
        let (connection, fence) = self.connection.keep();
        OwnedStore {
            connection,
            path: self.path,
            place: self.place,
            files: self.files,
            fence,
            size_max: self.size_max,
            unreadable: self.unreadable.into_inner(),
            lock: self.lock,
        }
    }
}

fn place_of(lock: &Lock, file_system: Option<FileSystem>) -> Place {
    Place {
        path: lock.path().to_path_buf(),
        file_system: file_system.unwrap_or_else(|| FileSystem::of(lock.path())),
    }
}

/// Connects for writing and migrates a file that has the version `from`.
fn connect(place: &Place, path: &Path, from: i32) -> Result<Connection, StoreError> {
    let sql = StoreError::sql(path);
    let busy = |error: rusqlite::Error| match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy) => StoreError::InUse {
            path: path.to_path_buf(),
            owner: "it holds the lock of the file".to_owned(),
        },
        _ => sql(error),
    };
    let mut connection = place.connect().map_err(&sql)?;
    if from == 0 {
        schema::prepare(&connection).map_err(&sql)?;
    }
    connection
        .pragma_update(None, "journal_mode", "WAL")
        .map_err(busy)?;
    // When a damaged file is repaired, deleted records must not reappear.
    for (name, value) in [("synchronous", "FULL"), ("secure_delete", "ON")] {
        connection.pragma_update(None, name, value).map_err(&sql)?;
    }
    connection.set_prepared_statement_cache_capacity(64);
    schema::migrate(&mut connection, from).map_err(busy)?;
    Ok(connection)
}
