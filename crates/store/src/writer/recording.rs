//! Reads a journal that this process does not write to, as its server would after a restart.

use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;

use hq_core::time::Now;
use rusqlite::Connection;

use super::client::StoreClient;
use super::{Message, Position, Subscription};
use crate::place::{FileSystem, Place};
use crate::pulse::WriterProgress;
use crate::subscribe::Subscribers;
use crate::{Loaded, StoreError, load, memory, meta, reader, schema};

impl StoreClient {
    /// Opens a journal, which a server may be writing to, and restores the state at its end. All
    /// workers that were connected are expected back, so that their tasks still run. A journal of
    /// an earlier release is copied to memory, and the copy is migrated.
    ///
    /// # Errors
    ///
    /// Returns an error if the file cannot be read.
    pub fn of_journal(path: &Path, now: Now) -> Result<(Self, Loaded), StoreError> {
        let sql = StoreError::sql(path);
        let mut connection = reader::open_for_reading(path)?;
        let mut place = Place {
            path: path.to_path_buf(),
            file_system: FileSystem::Local,
        };
        let version: i32 = connection
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .map_err(&sql)?;
        if version < schema::version() {
            let (copied, uri) = copy(&connection, version).map_err(&sql)?;
            (connection, place.path) = (copied, uri.into());
        }
        let (upto, loaded) = memory::guarded(&connection, path, || restore(&connection, now))?;
        let (tx, rx) = mpsc::channel();
        let thread = thread::Builder::new().name("store".into());
        let answering = thread.spawn(move || answer(&rx, upto, connection));
        answering.map_err(|source| StoreError::Create {
            path: path.to_path_buf(),
            source,
        })?;
        Ok((Self::new(place, tx, WriterProgress::default()), loaded))
    }
}

/// Returns the number of the last event, and the state. Reads them in one transaction, because a
/// server may be writing to the file.
fn restore(connection: &Connection, now: Now) -> rusqlite::Result<(i64, Loaded)> {
    let transaction = connection.unchecked_transaction()?;
    let uid = meta::text(&transaction, "server_uid")?.unwrap_or_default();
    let upto = meta::number(&transaction, "next_seq")? - 1;
    Ok((upto, load::load(&transaction, &uid, now, true)?))
}

/// Copies a journal of an earlier version to memory, and migrates the copy. Returns its URI.
fn copy(connection: &Connection, version: i32) -> rusqlite::Result<(Connection, String)> {
    static COPIES: AtomicU32 = AtomicU32::new(0);
    let number = COPIES.fetch_add(1, Ordering::Relaxed);
    let uri = format!("file:/hq-journal-{number}?vfs=memdb");
    // The copy is dropped with its last connection, so this one must precede the copying.
    let mut copied = Connection::open(&uri)?;
    connection.pragma_update(None, "query_only", false)?;
    connection.execute("VACUUM INTO ?", [&uri])?;
    schema::migrate(&mut copied, version)?;
    Ok((copied, uri))
}

/// Answers in place of a writer that stores nothing more after the event `upto`, until the last
/// client is gone. Other requests fail. Holds a connection, because a copy in memory is dropped with
/// its last one.
fn answer(messages: &Receiver<Message>, upto: i64, _connection: Connection) {
    let mut subscribers = Subscribers::default();
    for message in messages {
        if let Message::Subscribe(_, reply) = message {
            let (past, live) = (Position { upto, missed: None }, subscribers.subscribe());
            // If the reader has left, it needs no answer.
            let _ = reply.send(Subscription { past, live });
        }
    }
}

#[cfg(test)]
mod tests {
    use hq_core::id::JobId;

    use super::*;
    use crate::Store;
    use crate::testing::{NOW, add_job, started};

    #[test]
    fn a_journal_is_read_while_its_server_writes() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("run.db");
        let mut handle = started(Store::open(&path).expect("a fresh file"));
        add_job(&mut handle, JobId(1), 5, true);
        handle.client().flush().expect("it is stored");
        let (client, loaded) = StoreClient::of_journal(&path, NOW).expect("a journal");
        let job = &loaded.state.jobs()[&JobId(1)];
        assert_eq!(job.counts().finished, 5);
        assert_eq!(loaded.state.workers().len(), 1, "it is expected back");
        let seen = client.subscribe(None).expect("an answer");
        assert_eq!(
            seen.past.upto, 14,
            "the start, the worker, and what the job did"
        );
        assert!(client.flush().is_err() && client.prune().is_err());
        let count = "SELECT count(*) FROM tasks";
        let count: u32 = client
            .read()
            .expect("a connection")
            .query_row(count, [], |row| row.get(0))
            .expect("a row");
        assert_eq!(count, 5);
    }

    #[test]
    fn a_journal_of_an_earlier_release_is_read_from_a_copy() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("old.db");
        let mut old = Connection::open(&path).expect("a fresh file");
        schema::migrate_to(&mut old, 6).expect("an early version");
        old.execute_batch(
            "INSERT INTO job_data VALUES (7, 'kept', NULL, 0, NULL, 1, 1, 0);
             INSERT INTO meta VALUES ('server_uid', 'OldUid');",
        )
        .expect("rows");
        old.pragma_update(None, "application_id", schema::APPLICATION_ID)
            .expect("a number");
        old.pragma_update(None, "user_version", 6)
            .expect("a number");
        drop(old);
        let (client, loaded) = StoreClient::of_journal(&path, NOW).expect("a journal");
        assert_eq!(&*loaded.state.jobs()[&JobId(7)].name, "kept");
        let name = "SELECT name FROM jobs";
        let name: String = client
            .read()
            .expect("a connection")
            .query_row(name, [], |row| row.get(0))
            .expect("a row");
        assert_eq!(name, "kept");
        let version: i32 = Connection::open(&path)
            .expect("the file")
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .expect("a number");
        assert_eq!(version, 6, "the file is as it was");
    }
}
