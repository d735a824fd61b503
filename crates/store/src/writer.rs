//! The only thread that writes to the store. It commits changes in batches, with one transaction
//! and one sync per batch.
//!
//! Urgent changes are committed at once, and others at most [`GROUP_SPAN`] after the last commit.
//! Values of calls and curves wait equally long for their tasks to end. A full disk does not stop
//! the writer: changes stay in memory, and it retries.

mod client;
mod failure;
mod inbox;
mod log;
mod pending;
mod recording;

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hq_core::id::WorkerId;
use hq_core::server_state::{Change, ChangeKind};
use hq_core::time::Timestamp;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, TransactionBehavior};
use serde_json::json;

use crate::compact::{self, Compactor, Pruned, StepOutcome};
use crate::curves::{self, TaskCurve};
use crate::event::Event;
use crate::group::{self, Group};
use crate::history::{self, Ending};
use crate::lock::Lock;
use crate::meta;
use crate::place::{Files, Place};
use crate::pulse::WriterProgress;
use crate::stretch::{self, StretchKey};
use crate::subscribe::{Live, Subscribers};
use crate::values::{self, CallValue};
use crate::{StoreError, lease, load};
pub use client::{FlushError, StoreClient};
use failure::{is_failed_sync, is_passing};
use inbox::Inbox;
use pending::{Batch, Pending};

/// The minimum interval between two commits without urgent changes.
const GROUP_SPAN: Duration = Duration::from_millis(20);
/// The pause between two attempts to write to a full disk.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// How long to wait for another process that has locked the file, such as `hq journal check`.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);
/// The number of pages in the write-ahead log at which the writer checkpoints it: 16 MiB.
const CHECKPOINT_PAGES: i32 = 4_096;

thread_local! {
    /// The number of pages in the write-ahead log after the last commit of this thread's writer.
    static LOG_PAGES: Cell<i32> = const { Cell::new(0) };
}

/// Whether the store accepts changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Health {
    /// The store accepts changes.
    Good,
    /// The store cannot commit at present, for example because the disk is full. The text contains
    /// the reason. The writer retries.
    Waiting(String),
    /// The store has failed permanently: the data on disk may not match what was written, or
    /// another server has taken over.
    Broken(String),
}

/// A progress report from the writer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Progress {
    /// All changes up to this number, as returned by [`StoreHandle::store`], are on disk.
    pub committed: u64,
    /// Whether the store accepts changes.
    pub health: Health,
}

/// A position in the journal.
#[derive(Debug)]
pub struct Position {
    /// The number of the last event.
    pub upto: i64,
    /// The events after the requested one, up to `upto`. `None` if they are only in the file.
    pub missed: Option<Vec<Arc<Event>>>,
}

/// A reader's subscription to the live journal.
#[derive(Debug)]
pub struct Subscription {
    /// The position in the journal at which `live` starts.
    pub past: Position,
    /// The events that follow.
    pub live: Live,
}

enum Message {
    Changes(u64, Vec<Change>),
    Values(Vec<CallValue>),
    Curves(Vec<TaskCurve>),
    Hurry,
    Flush(SyncSender<bool>),
    Prune(SyncSender<Result<Pruned, String>>),
    Position(i64, SyncSender<Position>),
    Subscribe(Option<i64>, SyncSender<Subscription>),
    Stopped,
    Stop,
}

/// Sends changes to the writer. Dropping the handle ends the writer after it has handled all
/// earlier changes.
#[derive(Debug)]
pub struct StoreHandle {
    place: Place,
    messages: Sender<Message>,
    pulse: WriterProgress,
    last: u64,
    thread: Option<JoinHandle<()>>,
}

impl StoreHandle {
    /// Returns the number that the next call to [`StoreHandle::store`] will return.
    #[must_use]
    pub const fn next_number(&self) -> u64 {
        self.last + 1
    }

    /// Queues changes. Returns the number that [`Progress::committed`] reaches when they are on
    /// disk. Never blocks.
    pub fn store(&mut self, changes: Vec<Change>) -> u64 {
        self.last += 1;
        // If the writer has ended, it has reported the reason.
        let _ = self.messages.send(Message::Changes(self.last, changes));
        self.last
    }

    /// Makes the writer commit all queued changes at once instead of with the next group.
    pub fn commit_now(&self) {
        // If the writer has ended, it has reported the reason.
        let _ = self.messages.send(Message::Hurry);
    }

    /// Returns a handle for other threads.
    #[must_use]
    pub fn client(&self) -> StoreClient {
        StoreClient::new(
            self.place.clone(),
            self.messages.clone(),
            self.pulse.clone(),
        )
    }
}

impl Drop for StoreHandle {
    fn drop(&mut self) {
        // The thread first stores all changes that are already queued.
        let _ = self.messages.send(Message::Stop);
        if let Some(thread) = self.thread.take() {
            // The thread has reported its errors itself.
            let _ = thread.join();
        }
    }
}

/// A store that this process owns.
#[derive(Debug)]
pub(crate) struct OwnedStore {
    // The order of these fields matters: the connection is closed before the lock is released.
    pub(crate) connection: Connection,
    /// The path as the user gave it, for messages.
    pub(crate) path: PathBuf,
    pub(crate) place: Place,
    /// The files that are written to.
    pub(crate) files: Files,
    pub(crate) fence: i64,
    pub(crate) size_max: Option<u64>,
    /// The stretches that cannot be read. The first commit removes them.
    pub(crate) unreadable: Vec<StretchKey>,
    pub(crate) lock: Lock,
}

struct Writer {
    connection: Connection,
    path: PathBuf,
    place: Place,
    files: Files,
    fence: i64,
    /// The number of the next event.
    next_seq: i64,
    /// The number of the next event that has not been reported yet. Events up to `next_seq` are
    /// committed, but they are only reported after [`Self::is_in_place`].
    reported_seq: i64,
    /// The events between these two numbers, for live readers. `None` if there was no reader when
    /// some of them were stored.
    unreported: Option<Vec<Event>>,
    /// The minimum size of the file in bytes, unless another program has overwritten it. 0 if it is
    /// unknown.
    len_min: u64,
    report: Box<dyn Fn(Progress) + Send>,
    committed: u64,
    health: Health,
    subscribers: Subscribers,
    compactor: Compactor,
    /// The requests that wait for the current prune.
    pruning: Vec<SyncSender<Result<Pruned, String>>>,
    /// Whether anything has been committed since the last checkpoint.
    has_log: bool,
    /// Whether a prune has returned all spare pages and nothing has been committed since.
    is_bare: bool,
    /// Whether the file itself, without its log, says that it needs its log. After a flush it does
    /// not say so until the next commit, so a copy of the file alone is complete. A reader may
    /// prevent the mark; each commit tries again.
    is_file_marked: bool,
    /// How the server ends if it shuts down properly.
    ending: Ending,
    /// Held until the writer ends.
    _lock: Lock,
}

pub(crate) fn start(
    owned: OwnedStore,
    (uid, gone_workers): (&str, &[WorkerId]),
    at: Timestamp,
    report: Box<dyn Fn(Progress) + Send>,
) -> Result<StoreHandle, StoreError> {
    let (place, path) = (owned.place.clone(), owned.path.clone());
    let writer = Writer::new(owned, (uid, gone_workers), at, report);
    let writer = writer.map_err(StoreError::sql(&path))?;
    let (tx, rx) = mpsc::channel();
    let pulse = WriterProgress::default();
    let beating = pulse.clone();
    let thread = std::thread::Builder::new()
        .name("store".into())
        .spawn(move || {
            // Covers every way the thread can end: a writer that has ended does not hang.
            let _life = beating.clone().until_dropped();
            writer.run(&rx, &beating);
        })
        .map_err(|source| StoreError::Create { path, source })?;
    Ok(StoreHandle {
        place,
        messages: tx,
        pulse,
        last: 0,
        thread: Some(thread),
    })
}

impl Writer {
    fn new(
        owned: OwnedStore,
        (uid, gone_workers): (&str, &[WorkerId]),
        at: Timestamp,
        report: Box<dyn Fn(Progress) + Send>,
    ) -> rusqlite::Result<Self> {
        let connection = owned.connection;
        // Replaces SQLite's automatic checkpoints, which do not report their errors.
        connection.wal_hook(Some(|_, pages| {
            LOG_PAGES.set(pages);
            Ok(())
        }));
        let next_seq = meta::number(&connection, "next_seq")?.max(1);
        let mut writer = Self {
            connection,
            path: owned.path,
            place: owned.place,
            files: owned.files,
            fence: owned.fence,
            next_seq,
            reported_seq: next_seq,
            unreported: Some(Vec::new()),
            len_min: 0,
            report,
            committed: 0,
            health: Health::Good,
            subscribers: Subscribers::default(),
            compactor: Compactor::new(owned.fence, owned.size_max),
            pruning: Vec::new(),
            has_log: true,
            is_bare: false,
            is_file_marked: false,
            ending: Ending::Kept,
            _lock: owned.lock,
        };
        writer.compactor.note_rows(&writer.connection)?;
        writer.note_server_start((uid, gone_workers), &owned.unreadable, at)?;
        writer.settle();
        Ok(writer)
    }

    fn note_server_start(
        &mut self,
        (uid, gone_workers): (&str, &[WorkerId]),
        unreadable: &[StretchKey],
        at: Timestamp,
    ) -> rusqlite::Result<()> {
        let mut seq = self.next_seq;
        let transaction = self.connection.transaction()?;
        transaction.execute(
            "INSERT OR REPLACE INTO meta VALUES ('server_uid', ?)",
            [uid],
        )?;
        history::set_ending(&transaction, Ending::Running)?;
        meta::remove(&transaction, meta::REPAIRED)?;
        load::note_gone(&transaction, gone_workers, at)?;
        stretch::remove_unreadable(&transaction, unreadable)?;
        let mut group = Group::new(&transaction, &mut seq);
        group.event(at, "server-start", None, None, &json!({"server_uid": uid}))?;
        meta::set(&transaction, "next_seq", seq)?;
        transaction.commit()?;
        (self.next_seq, self.reported_seq) = (seq, seq);
        Ok(())
    }

    fn run(mut self, messages: &Receiver<Message>, pulse: &WriterProgress) {
        let mut inbox = Inbox::new();
        // Changes that are not urgent are collected from this time on.
        let mut span_begin = Instant::now();
        while inbox.is_open {
            // Renew the lease even without changes, because a server that waits for this one to end
            // watches the heartbeat.
            let mut wait = lease::HEARTBEAT;
            if !inbox.pending.is_empty() || self.health != Health::Good {
                wait = self.span().saturating_sub(span_begin.elapsed());
            }
            if let Some(pause) = self.compactor.pause_len() {
                wait = wait.min(pause);
            }
            let mut is_quiet = false;
            let was_empty = inbox.pending.is_empty();
            match pulse.rest(|| messages.recv_timeout(wait)) {
                // All queued messages share a commit, unless there are very many of them.
                Ok(first) => inbox.take(first, messages, self.health == Health::Good),
                // Settle only after a long silence, because its syncs would delay commits.
                Err(RecvTimeoutError::Timeout) => is_quiet = wait == lease::HEARTBEAT,
                Err(RecvTimeoutError::Disconnected) => inbox.is_open = false,
            }
            let pending = &inbox.pending;
            if was_empty && !pending.is_empty() && pending.is_without_changes() {
                // The changes that end these tasks will follow. They share one sync with these
                // values.
                span_begin = Instant::now();
            }
            let is_due = span_begin.elapsed() >= self.span();
            let is_urgent = self.health == Health::Good
                && !pending.is_empty()
                && (inbox.is_hurried || pending.is_urgent() || pending.is_long());
            if is_due || is_urgent || !inbox.asked.is_empty() || !inbox.is_open {
                span_begin = Instant::now();
                inbox.is_hurried = false;
                self.commit_all(&mut inbox.pending, inbox.upto, pulse);
                pulse.note_trouble(match &self.health {
                    Health::Waiting(reason) => Some(reason),
                    Health::Good | Health::Broken(_) => None,
                });
            }
            if self.is_broken() {
                // Callers with requests in the same batch will notice that the writer has ended.
                // Their requests must not access the file anymore.
                self.leave();
                return;
            }
            if LOG_PAGES.get() >= CHECKPOINT_PAGES {
                self.checkpoint("PASSIVE");
            }
            for message in std::mem::take(&mut inbox.asked) {
                self.answer(message, self.committed == inbox.upto);
            }
            if is_quiet && self.health == Health::Good {
                self.settle();
            }
            // If the disk is full, only a requested prune continues, because it frees space.
            if self.health == Health::Good || !self.pruning.is_empty() {
                self.compact();
            }
            if self.is_broken() {
                self.leave();
                return;
            }
        }
        self.finish();
    }

    /// Leaves the file and the log unchanged. SQLite would move the log into the file and delete it
    /// by name, but by now that name may belong to another server.
    fn leave(&self) {
        let option = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
        if let Err(error) = self.connection.set_db_config(option, true) {
            tracing::debug!(%error, "cannot keep SQLite from moving the write-ahead log into the journal");
        }
    }

    const fn is_broken(&self) -> bool {
        matches!(self.health, Health::Broken(_))
    }

    /// Returns the minimum interval between two commits.
    fn span(&self) -> Duration {
        if self.health == Health::Good {
            GROUP_SPAN
        } else {
            RETRY_INTERVAL
        }
    }

    fn answer(&mut self, message: Message, is_stored: bool) {
        match message {
            // Dropping `reply` reports a failure to the caller.
            Message::Stopped => self.ending = Ending::Stopped,
            Message::Flush(reply) if is_stored => {
                let is_whole = self.flush_log();
                if !self.is_broken() {
                    let _ = reply.send(is_whole);
                }
            }
            Message::Prune(reply) => {
                self.pruning.push(reply);
                match self.compactor.prune(&mut self.connection) {
                    Ok(true) => {}
                    Ok(false) => self.taken_over(),
                    Err(error) => {
                        self.note_failed_sync(&error);
                        self.end_prune(&Err(error.to_string()));
                    }
                }
            }
            Message::Position(after, reply) => {
                let _ = reply.send(self.position(Some(after)));
            }
            Message::Subscribe(after, reply) => {
                // Both parts come from the same step of the only writer, so each event is in
                // exactly one of them.
                let _ = reply.send(Subscription {
                    past: self.position(after),
                    live: self.subscribers.subscribe(),
                });
            }
            Message::Flush(_)
            | Message::Changes(..)
            | Message::Values(_)
            | Message::Curves(_)
            | Message::Hurry
            | Message::Stop => {}
        }
    }

    fn position(&self, after: Option<i64>) -> Position {
        let upto = self.reported_seq - 1;
        Position {
            upto,
            missed: after.and_then(|after| self.subscribers.since(after, upto)),
        }
    }

    fn progress(&mut self, committed: u64, health: Health) {
        if self.is_broken() {
            // Later successes cannot be trusted.
            return;
        }
        if self.committed != committed || self.health != health {
            self.committed = committed;
            self.health = health;
            (self.report)(Progress {
                committed,
                health: self.health.clone(),
            });
        }
    }

    /// Reports that everything up to this number has been stored.
    fn report_stored(&mut self, upto: u64) {
        // This must not happen earlier, because reported events must be on disk.
        let before = std::mem::replace(&mut self.reported_seq, self.next_seq) - 1;
        match self.unreported.replace(Vec::new()) {
            Some(events) => self.subscribers.publish(before, events),
            None => self.subscribers.skip(),
        }
        self.progress(upto, Health::Good);
    }

    /// Returns whether the files are still at their paths. The writer checks this after each
    /// commit, before it acknowledges the changes: changes in a file that is not at its path cannot
    /// be found again.
    fn is_in_place(&mut self) -> bool {
        let path = self.path.display();
        let text = match self.place.files() {
            Ok(files) if !files.are(&self.files) => format!(
                "the journal `{path}` or its write-ahead log was removed or replaced while the server ran"
            ),
            Ok(files) if files.database_len() < self.len_min => format!(
                "the journal `{path}` was overwritten by another program while the server ran"
            ),
            Ok(_) => return true,
            // The file itself may be intact, so the server may be able to continue.
            Err(error) => {
                let text = format!("{path}: it cannot be seen at present: {error}");
                self.wait_with(text);
                return false;
            }
        };
        tracing::error!("{text}");
        self.progress(self.committed, Health::Broken(text));
        false
    }

    /// Temporarily suspends acknowledgments.
    fn wait_with(&mut self, text: String) {
        if self.health == Health::Good {
            tracing::error!("cannot write the journal, will try again: {text}");
        }
        self.progress(self.committed, Health::Waiting(text));
    }

    /// Stores changes and reports them. `upto` is the number of the last change. Changes that
    /// cannot be stored yet stay in `pending`.
    fn commit_all(&mut self, pending: &mut Pending, upto: u64, pulse: &WriterProgress) {
        loop {
            let batch = pending.take_first();
            if !self.commit(&batch) {
                pending.put_back(batch);
                return;
            }
            if self.is_broken() || !self.is_in_place() {
                return;
            }
            if pending.is_empty() {
                self.report_stored(upto);
                return;
            }
            self.report_stored(batch.number.unwrap_or(self.committed));
            pulse.beat();
        }
    }

    /// Stores changes in one transaction. Returns `false` if they must be retried.
    fn commit(&mut self, batch: &Batch) -> bool {
        let changes = &batch.changes;
        if !batch.is_empty() && !self.is_file_marked {
            self.checkpoint("PASSIVE");
        }
        let mut events = self.subscribers.are_there().then(Vec::new);
        match self.try_commit(batch, events.as_mut()) {
            Ok((seq, true)) => {
                self.keep_unreported(seq, events);
                let is_forgotten =
                    |change: &Change| matches!(change.kind, ChangeKind::JobsForgotten(_));
                if changes.iter().any(is_forgotten) {
                    self.compactor.want_sweep();
                }
                let is_overview =
                    |change: &&Change| matches!(change.kind, ChangeKind::WorkerOverview { .. });
                let overviews = changes.iter().filter(is_overview).count();
                self.compactor.add_overviews(overviews as u64);
                let has_finished = |change: &&Change| {
                    matches!(
                        change.kind,
                        ChangeKind::TaskEnded {
                            is_finished: true,
                            ..
                        }
                    )
                };
                let finished = changes.iter().filter(has_finished).count();
                self.compactor.add_finished(finished as u64);
                self.has_log |= !batch.is_empty();
                if !batch.is_empty() && std::mem::take(&mut self.is_bare) {
                    // Settle at once, so that the next prune shrinks the file even if it follows
                    // soon.
                    self.settle();
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
                    self.wait_with(text);
                } else {
                    self.end_with(text);
                }
                false
            }
        }
    }

    /// Keeps the events up to `next_seq` until they can be published to live readers.
    fn keep_unreported(&mut self, next_seq: i64, events: Option<Vec<Event>>) {
        let stored = next_seq - std::mem::replace(&mut self.next_seq, next_seq);
        match (events, &mut self.unreported) {
            (Some(mut events), Some(unreported)) => unreported.append(&mut events),
            // Earlier events are missing, so readers must use the file.
            (Some(_), None) => {}
            // There was no reader when these events were created. A new subscriber reads them from
            // the file.
            (None, unreported) if stored > 0 => *unreported = None,
            (None, _) => {}
        }
    }

    /// Permanently stops writing.
    fn end_with(&mut self, text: String) {
        tracing::error!("the journal can no longer be written: {text}");
        self.progress(self.committed, Health::Broken(text));
    }

    /// Stops all acknowledgments after a failed sync of any data. The kernel drops the pages that
    /// it could not write, so the next sync succeeds ("Can Applications Recover from fsync
    /// Failures?", USENIX ATC 2020). Other errors of optional work do not affect commits.
    fn note_failed_sync(&mut self, error: &rusqlite::Error) {
        if is_failed_sync(error) {
            let text = format!("{}: {error}", self.path.display());
            self.end_with(text);
        }
    }

    fn taken_over(&mut self) {
        let text = "another server has taken over the journal".to_owned();
        tracing::error!("{text}");
        self.progress(self.committed, Health::Broken(text));
    }

    /// Runs one step of compaction if there is work to do.
    fn compact(&mut self) {
        match self.try_compact() {
            Ok(Some(StepOutcome {
                has_finished,
                pruned,
            })) => {
                if has_finished && !self.checkpoint("TRUNCATE") {
                    // A reader blocks the checkpoint, and there may be no further commit. The
                    // writer retries, so the file shrinks when the reader has left.
                    self.has_log = true;
                }
                if let Some(pruned) = pruned.filter(|_| !self.is_broken()) {
                    self.is_bare = true;
                    self.end_prune(&Ok(pruned));
                }
            }
            Ok(None) => self.taken_over(),
            Err(error) => {
                self.note_failed_sync(&error);
                // All changes have been stored. If the file is damaged, the next commit reports it.
                tracing::warn!(%error, "cannot compact the journal");
                self.compactor.give_up();
                self.end_prune(&Err(error.to_string()));
            }
        }
    }

    fn try_compact(&mut self) -> rusqlite::Result<Option<StepOutcome>> {
        if !self.compactor.look(&mut self.connection, &self.path)? {
            return Ok(None);
        }
        if !self.compactor.is_busy() {
            return Ok(Some(StepOutcome::default()));
        }
        let len_min = std::mem::take(&mut self.len_min);
        let stepped = self.compactor.step(&mut self.connection)?;
        // The next checkpoint, which another process may perform, makes the file shorter.
        self.len_min = len_min.min(compact::file_len(&self.connection)?);
        Ok(stepped)
    }

    fn end_prune(&mut self, result: &Result<Pruned, String>) {
        for reply in self.pruning.drain(..) {
            let _ = reply.send(result.clone());
        }
    }

    fn try_commit(
        &mut self,
        batch: &Batch,
        events: Option<&mut Vec<Event>>,
    ) -> rusqlite::Result<(i64, bool)> {
        let mut seq = self.next_seq;
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        // The values are stored in the same transaction as the task ends that refer to them.
        values::write(&transaction, &batch.values)?;
        curves::write(&transaction, &batch.curves)?;
        group::write(&transaction, &mut seq, &batch.changes, events)?;
        // This is part of the transaction: if another server has taken over, everything is rolled
        // back.
        if !lease::renew(&transaction, self.fence, true)? {
            return Ok((seq, false));
        }
        transaction.commit()?;
        Ok((seq, true))
    }

    /// Shuts down properly: stores a last event and releases the lease.
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
            meta::set(&transaction, "next_seq", seq)?;
            history::set_ending(&transaction, self.ending)?;
            lease::renew(&transaction, self.fence, false)?;
            transaction.commit()
        };
        if let Err(error) = { stopped }() {
            tracing::warn!(%error, "the journal was not closed cleanly");
        }
        self.move_log("TRUNCATE");
    }
}

fn wall() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::SystemTime::UNIX_EPOCH);
    let nanos = since
        .ok()
        .and_then(|since| i64::try_from(since.as_nanos()).ok());
    Timestamp(nanos.unwrap_or(0))
}

#[cfg(test)]
mod tests;
