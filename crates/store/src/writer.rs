//! The one thread that writes: changes in groups, one transaction and one sync a group.
//!
//! What somebody waits for is committed at once; the rest at most [`GROUP_SPAN`] after the last commit.
//! A full disk stops nothing: the changes stay in memory and are tried again.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hq_core::id::WorkerId;
use hq_core::server_state::{Change, ChangeKind};
use hq_core::time::Timestamp;
use rusqlite::{Connection, ErrorCode, TransactionBehavior, params};
use serde_json::json;

use crate::compact::Compactor;
use crate::event::Event;
use crate::group::{self, Group, set_number};
use crate::subscribe::{Live, Subscribers};
use crate::{StoreError, lease, load};

/// Least time between two commits that nobody waits for.
const GROUP_SPAN: Duration = Duration::from_millis(20);
/// Pause between two attempts to write to a full disk.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// Pause between two steps of compaction.
const COMPACT_PAUSE: Duration = Duration::from_millis(20);
/// Pages in the write-ahead log at which it is moved into the database: 16 MiB.
const CHECKPOINT_PAGES: i32 = 4_096;

/// Whether the store takes changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Health {
    /// Yes.
    Good,
    /// Not now, e.g. the disk is full; the text says why. It is tried again.
    Waiting(String),
    /// Never again: what is on disk can no longer be trusted to be what was written, or another server
    /// has taken over.
    Broken(String),
}

/// What the writer reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Everything up to this number, as counted by [`StoreHandle::store`], is on disk.
    pub committed: u64,
    /// Whether it goes on.
    pub health: Health,
}

/// How far the journal is.
#[derive(Debug)]
pub struct Position {
    /// Number of the last event.
    pub upto: i64,
    /// Events behind the one that was asked for, up to `upto`; `None` = they are in the file only.
    pub missed: Option<Vec<Arc<Event>>>,
}

/// What a reader of the live journal gets.
#[derive(Debug)]
pub struct Subscription {
    /// What came before the events of `live`.
    pub past: Position,
    /// Events from now on.
    pub live: Live,
}

/// What a prune came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pruned {
    /// Jobs that were dropped.
    pub jobs: u64,
}

enum Message {
    Changes(u64, Vec<Change>),
    Hurry,
    Flush(SyncSender<()>),
    Prune(SyncSender<Result<Pruned, String>>),
    Position(i64, SyncSender<Position>),
    Subscribe(Option<i64>, SyncSender<Subscription>),
    Stop,
}

/// Hands changes to the writer. Dropping it ends the writer behind what was handed over.
#[derive(Debug)]
pub struct StoreHandle {
    path: PathBuf,
    messages: Sender<Message>,
    last: u64,
    thread: Option<JoinHandle<()>>,
}

/// Asks the writer for things beside changes; can be cloned.
#[derive(Clone, Debug)]
pub struct StoreClient {
    path: PathBuf,
    messages: Sender<Message>,
}

impl StoreHandle {
    /// The number that the next call of [`StoreHandle::store`] returns.
    #[must_use]
    pub const fn next_number(&self) -> u64 {
        self.last + 1
    }

    /// Hands over changes; returns the number that [`Progress::committed`] reaches when they are on
    /// disk. Never blocks.
    pub fn store(&mut self, changes: Vec<Change>) -> u64 {
        self.last += 1;
        // If the writer is gone, its last report said why.
        let _ = self.messages.send(Message::Changes(self.last, changes));
        self.last
    }

    /// Somebody waits for what was handed over: it is committed now, not with the next group.
    pub fn hurry(&self) {
        // If the writer is gone, its last report said why.
        let _ = self.messages.send(Message::Hurry);
    }

    /// For other threads.
    #[must_use]
    pub fn client(&self) -> StoreClient {
        StoreClient {
            path: self.path.clone(),
            messages: self.messages.clone(),
        }
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        let _ = self.messages.send(Message::Stop);
        if let Some(thread) = self.thread.take() {
            // It reports its errors itself.
            let _ = thread.join();
        }
    }
}

impl StoreClient {
    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns when all that was handed over before is on disk; `false` if the writer is gone.
    #[must_use]
    pub fn flush(&self) -> bool {
        let (tx, rx) = mpsc::sync_channel(1);
        self.messages.send(Message::Flush(tx)).is_ok() && rx.recv().is_ok()
    }

    /// Drops everything about completed and forgotten jobs and lost workers; shrinks the file.
    ///
    /// # Errors
    ///
    /// A sentence for users.
    pub fn prune(&self) -> Result<Pruned, String> {
        let gone = || "the writer of the journal has ended".to_owned();
        let (tx, rx) = mpsc::sync_channel(1);
        self.messages.send(Message::Prune(tx)).map_err(|_| gone())?;
        rx.recv().map_err(|_| gone())?
    }

    /// How far the journal is, and the events behind the number `after` if they are not long ago. `None` if the writer
    /// has ended.
    #[must_use]
    pub fn position(&self, after: i64) -> Option<Position> {
        let (tx, rx) = mpsc::sync_channel(1);
        self.messages.send(Message::Position(after, tx)).ok()?;
        rx.recv().ok()
    }

    /// Events from now on, and those behind the number `after` if they are not long ago. `None` if the
    /// writer has ended.
    #[must_use]
    pub fn subscribe(&self, after: Option<i64>) -> Option<Subscription> {
        let (tx, rx) = mpsc::sync_channel(1);
        self.messages.send(Message::Subscribe(after, tx)).ok()?;
        rx.recv().ok()
    }
}

struct Writer {
    path: PathBuf,
    connection: Connection,
    fence: i64,
    next_seq: i64,
    report: Box<dyn Fn(Progress) + Send>,
    committed: u64,
    health: Health,
    subscribers: Subscribers,
    compactor: Compactor,
}

pub(crate) fn start(
    path: PathBuf,
    connection: Connection,
    (fence, size_max): (i64, Option<u64>),
    (uid, gone_workers): (&str, &[WorkerId]),
    at: Timestamp,
    report: Box<dyn Fn(Progress) + Send>,
) -> Result<StoreHandle, StoreError> {
    let sql = StoreError::sql(&path);
    connection
        .pragma_update(None, "wal_autocheckpoint", CHECKPOINT_PAGES)
        .map_err(&sql)?;
    let next_seq = load::meta_number(&connection, "next_seq")
        .map_err(&sql)?
        .max(1);
    let mut writer = Writer {
        path: path.clone(),
        connection,
        fence,
        next_seq,
        report,
        committed: 0,
        health: Health::Good,
        subscribers: Subscribers::default(),
        compactor: Compactor::new(size_max),
    };
    writer
        .note_server_start(uid, gone_workers, at)
        .map_err(&sql)?;
    let (tx, rx) = mpsc::channel();
    let thread = std::thread::Builder::new()
        .name("store".into())
        .spawn(move || writer.run(&rx))
        .map_err(|source| StoreError::Create {
            path: path.clone(),
            source,
        })?;
    Ok(StoreHandle {
        path: path.clone(),
        messages: tx,
        last: 0,
        thread: Some(thread),
    })
}

impl Writer {
    fn note_server_start(
        &mut self,
        uid: &str,
        gone_workers: &[WorkerId],
        at: Timestamp,
    ) -> rusqlite::Result<()> {
        let mut seq = self.next_seq;
        let transaction = self.connection.transaction()?;
        transaction.execute(
            "INSERT OR REPLACE INTO meta VALUES ('server_uid', ?)",
            [uid],
        )?;
        for worker in gone_workers {
            transaction.execute(
                "UPDATE worker_data SET ended_unix_ns = ?, reason = 'ServerLost', \
                 registration = NULL WHERE id = ?",
                params![at.0, worker.as_u32()],
            )?;
        }
        let mut group = Group::new(&transaction, &mut seq);
        group.event(at, "server-start", None, None, &json!({"server_uid": uid}))?;
        set_number(&transaction, "next_seq", seq)?;
        transaction.commit()?;
        self.next_seq = seq;
        Ok(())
    }

    fn run(mut self, messages: &Receiver<Message>) {
        let mut pending: Vec<Change> = Vec::new();
        let mut upto = 0;
        let mut last_commit = Instant::now();
        let mut is_open = true;
        let mut is_hurried = false;
        while is_open {
            let mut wait = lease::HEARTBEAT;
            if !pending.is_empty() {
                let span = if self.health == Health::Good {
                    GROUP_SPAN
                } else {
                    RETRY_INTERVAL
                };
                wait = span.saturating_sub(last_commit.elapsed());
            }
            if self.compactor.is_busy() {
                wait = wait.min(COMPACT_PAUSE);
            }
            let mut asked = Vec::new();
            match messages.recv_timeout(wait) {
                Ok(first) => {
                    for message in std::iter::once(first).chain(messages.try_iter()) {
                        match message {
                            Message::Changes(number, changes) => {
                                upto = number;
                                pending.extend(changes);
                            }
                            Message::Hurry => is_hurried = true,
                            Message::Stop => is_open = false,
                            other @ (Message::Flush(_)
                            | Message::Prune(_)
                            | Message::Position(..)
                            | Message::Subscribe(..)) => {
                                asked.push(other);
                            }
                        }
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => is_open = false,
            }
            let span = if self.health == Health::Good {
                GROUP_SPAN
            } else {
                RETRY_INTERVAL
            };
            let is_due = last_commit.elapsed() >= span;
            let is_urgent = self.health == Health::Good
                && !pending.is_empty()
                && (is_hurried || pending.iter().any(|change| change.kind.is_urgent()));
            if is_due || is_urgent || !asked.is_empty() || !is_open {
                last_commit = Instant::now();
                is_hurried = false;
                if self.commit(&pending) {
                    pending.clear();
                    self.progress(upto, Health::Good);
                }
            }
            for message in asked {
                self.answer(message, pending.is_empty());
            }
            if self.health == Health::Good {
                self.compact();
            }
            if matches!(self.health, Health::Broken(_)) {
                return;
            }
        }
        self.finish();
    }

    fn answer(&mut self, message: Message, is_stored: bool) {
        match message {
            // Dropping the sender tells that it did not work out.
            Message::Flush(reply) if is_stored => {
                let _ = reply.send(());
            }
            Message::Prune(reply) => {
                let result = self.prune().map_err(|error| error.to_string());
                let _ = reply.send(result);
            }
            Message::Position(after, reply) => {
                let _ = reply.send(self.position(Some(after)));
            }
            Message::Subscribe(after, reply) => {
                let _ = reply.send(Subscription {
                    past: self.position(after),
                    live: self.subscribers.subscribe(),
                });
            }
            Message::Flush(_) | Message::Changes(..) | Message::Hurry | Message::Stop => {}
        }
    }

    fn position(&self, after: Option<i64>) -> Position {
        let upto = self.next_seq - 1;
        Position {
            upto,
            missed: after.and_then(|after| self.subscribers.since(after, upto)),
        }
    }

    fn progress(&mut self, committed: u64, health: Health) {
        if self.committed != committed || self.health != health {
            self.committed = committed;
            self.health = health;
            (self.report)(Progress {
                committed,
                health: self.health.clone(),
            });
        }
    }

    /// Stores changes in one transaction; `false` if they are still to be stored.
    fn commit(&mut self, changes: &[Change]) -> bool {
        let mut events = Vec::new();
        match self.try_commit(changes, &mut events) {
            Ok((seq, true)) => {
                let before = std::mem::replace(&mut self.next_seq, seq) - 1;
                self.subscribers.publish(before, events);
                let is_forgotten =
                    |change: &Change| matches!(change.kind, ChangeKind::JobsForgotten(_));
                if changes.iter().any(is_forgotten) {
                    self.compactor.want_sweep();
                }
                true
            }
            Ok((_, false)) => {
                self.taken_over();
                false
            }
            Err(error) => {
                let text = format!("{}: {error}", self.path.display());
                if is_passing(&error) {
                    if self.health == Health::Good {
                        tracing::error!("cannot write the journal, will try again: {text}");
                    }
                    self.progress(self.committed, Health::Waiting(text));
                } else {
                    tracing::error!("the journal cannot be written any more: {text}");
                    self.progress(self.committed, Health::Broken(text));
                }
                false
            }
        }
    }

    fn taken_over(&mut self) {
        let text = "another server has taken over the journal".to_owned();
        tracing::error!("{text}");
        self.progress(self.committed, Health::Broken(text));
    }

    /// One step of compaction, if there is something to do.
    fn compact(&mut self) {
        let stepped = self
            .compactor
            .look(&mut self.connection, &self.path)
            .and_then(|()| {
                if self.compactor.is_busy() {
                    self.compactor.step(&mut self.connection, self.fence)
                } else {
                    Ok(Some(false))
                }
            });
        match stepped {
            Ok(Some(true)) => self.checkpoint(),
            Ok(Some(false)) => {}
            Ok(None) => self.taken_over(),
            Err(error) => {
                // What matters is stored; if the file is not good any more, the next commit says so.
                tracing::warn!(%error, "the journal could not be made smaller");
                self.compactor.pause();
            }
        }
    }

    fn try_commit(
        &mut self,
        changes: &[Change],
        events: &mut Vec<Event>,
    ) -> rusqlite::Result<(i64, bool)> {
        let mut seq = self.next_seq;
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        let wanted = self.subscribers.are_there().then_some(&mut *events);
        group::write(&transaction, &mut seq, changes, wanted)?;
        if !lease::renew(&transaction, self.fence, true)? {
            return Ok((seq, false));
        }
        transaction.commit()?;
        Ok((seq, true))
    }

    fn prune(&mut self) -> rusqlite::Result<Pruned> {
        let transaction = self.connection.transaction()?;
        let dead = "SELECT id FROM job_data WHERE is_forgotten OR completed_unix_ns IS NOT NULL";
        let jobs: i64 =
            transaction.query_row(&format!("SELECT count(*) FROM ({dead})"), [], |row| {
                row.get(0)
            })?;
        for table in [
            "submit_data",
            "task_data",
            "attempt_data",
            "node_data",
            "dropped_data",
            "notification_data",
            "event_log",
        ] {
            transaction.execute(&format!("DELETE FROM {table} WHERE job IN ({dead})"), [])?;
        }
        let lost = "SELECT id FROM worker_data WHERE ended_unix_ns IS NOT NULL";
        transaction.execute(
            &format!("DELETE FROM event_log WHERE worker IN ({lost}) OR type = 'worker-overview'"),
            [],
        )?;
        transaction.execute(
            "DELETE FROM worker_data WHERE ended_unix_ns IS NOT NULL \
             AND id NOT IN (SELECT worker FROM task_data)",
            [],
        )?;
        transaction.execute(&format!("DELETE FROM job_data WHERE id IN ({dead})"), [])?;
        let events: i64 =
            transaction.query_row("SELECT count(*) FROM events", [], |row| row.get(0))?;
        set_number(&transaction, "pruned_count", self.next_seq - 1 - events)?;
        transaction.commit()?;
        self.connection.execute_batch("VACUUM")?;
        self.checkpoint();
        Ok(Pruned {
            jobs: u64::try_from(jobs).unwrap_or(0),
        })
    }

    /// Moves the write-ahead log into the database. Readers may prevent a part of it, which is no loss.
    fn checkpoint(&self) {
        let done = self
            .connection
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        if let Err(error) = done {
            tracing::debug!(%error, "the write-ahead log stays");
        }
    }

    /// Clean stop: a last event, and the lease is free.
    fn finish(mut self) {
        let stopped = || -> rusqlite::Result<()> {
            let mut seq = self.next_seq;
            let transaction = self.connection.transaction()?;
            Group::new(&transaction, &mut seq).event(
                wall(),
                "server-stop",
                None,
                None,
                &json!({}),
            )?;
            set_number(&transaction, "next_seq", seq)?;
            lease::renew(&transaction, self.fence, false)?;
            transaction.commit()
        };
        if let Err(error) = { stopped }() {
            tracing::warn!(%error, "the journal was not closed cleanly");
        }
        self.checkpoint();
    }
}

fn wall() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    let nanos = since
        .ok()
        .and_then(|since| i64::try_from(since.as_nanos()).ok());
    Timestamp(nanos.unwrap_or(0))
}

/// Whether the same may work later: there is no room, or somebody else has the file locked.
fn is_passing(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    ) || is_write_refused(error)
}

/// A write that failed without harm: no room, no quota. A failed sync is not one of them.
fn is_write_refused(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    // SQLITE_IOERR_WRITE, SQLITE_IOERR_SHMSIZE, SQLITE_IOERR_TRUNCATE
    code.is_some_and(|code| [10 | 3 << 8, 10 | 19 << 8, 10 | 6 << 8].contains(&code))
}
