//! The one thread that writes: changes in groups, one transaction and one sync a group.
//!
//! What somebody waits for is committed at once; the rest at most [`GROUP_SPAN`] after the last commit.
//! A full disk stops nothing: the changes stay in memory and are tried again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hq_core::id::{InstanceId, JobId, TaskKey, WorkerId};
use hq_core::server_state::{Change, ChangeKind};
use hq_core::task::{TaskEnd, TaskState};
use hq_core::time::Timestamp;
use rusqlite::{Connection, ErrorCode, TransactionBehavior, params};
use serde_json::{Value, json};

use crate::{StoreError, encode, lease, load, reader};

/// Least time between two commits that nobody waits for.
const GROUP_SPAN: Duration = Duration::from_millis(20);
/// Pause between two attempts to write to a full disk.
const RETRY_INTERVAL: Duration = Duration::from_millis(250);
/// Pages in the write-ahead log at which it is moved into the database: 16 MiB.
const CHECKPOINT_PAGES: i32 = 4_096;
/// Lines that may wait for a reader of the live journal; beyond that it is cut off.
const STREAM_QUEUE_LEN: usize = 65_536;

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

/// What a prune came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pruned {
    /// Jobs that were dropped.
    pub jobs: u64,
}

enum Message {
    Changes(u64, Vec<Change>),
    Flush(SyncSender<()>),
    Prune(SyncSender<Result<Pruned, String>>),
    Subscribe(SyncSender<(i64, Receiver<String>)>),
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
    /// Hands over changes; returns the number that [`Progress::committed`] reaches when they are on
    /// disk. Never blocks.
    pub fn store(&mut self, changes: Vec<Change>) -> u64 {
        self.last += 1;
        // If the writer is gone, its last report said why.
        let _ = self.messages.send(Message::Changes(self.last, changes));
        self.last
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

    /// Events from now on as lines, and the number of the last one before. The receiver ends when the
    /// server ends or the reader is too slow.
    #[must_use]
    pub fn subscribe(&self) -> Option<(i64, Receiver<String>)> {
        let (tx, rx) = mpsc::sync_channel(1);
        self.messages.send(Message::Subscribe(tx)).ok()?;
        rx.recv().ok()
    }
}

/// A start that is not written yet, because its end may follow in the same group.
struct Start {
    at: Timestamp,
    instance: InstanceId,
    variant: u32,
    worker: WorkerId,
    seq: i64,
}

struct Writer {
    path: PathBuf,
    connection: Connection,
    fence: i64,
    next_seq: i64,
    report: Box<dyn Fn(Progress) + Send>,
    committed: u64,
    health: Health,
    streams: Vec<SyncSender<String>>,
}

pub(crate) fn start(
    path: PathBuf,
    connection: Connection,
    fence: i64,
    uid: &str,
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
        streams: Vec::new(),
    };
    writer.note_server_start(uid, at).map_err(&sql)?;
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
    fn note_server_start(&mut self, uid: &str, at: Timestamp) -> rusqlite::Result<()> {
        let mut seq = self.next_seq;
        let transaction = self.connection.transaction()?;
        transaction.execute(
            "INSERT OR REPLACE INTO meta VALUES ('server_uid', ?)",
            [uid],
        )?;
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
            let mut asked = Vec::new();
            match messages.recv_timeout(wait) {
                Ok(first) => {
                    for message in std::iter::once(first).chain(messages.try_iter()) {
                        match message {
                            Message::Changes(number, changes) => {
                                upto = number;
                                pending.extend(changes);
                            }
                            Message::Stop => is_open = false,
                            other @ (Message::Flush(_)
                            | Message::Prune(_)
                            | Message::Subscribe(_)) => {
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
            let is_urgent =
                self.health == Health::Good && pending.iter().any(|change| change.kind.is_urgent());
            if is_due || is_urgent || !asked.is_empty() || !is_open {
                last_commit = Instant::now();
                if self.commit(&pending) {
                    pending.clear();
                    self.progress(upto, Health::Good);
                }
            }
            for message in asked {
                self.answer(message, pending.is_empty());
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
            Message::Subscribe(reply) => {
                let (tx, rx) = mpsc::sync_channel(STREAM_QUEUE_LEN);
                self.streams.push(tx);
                let _ = reply.send((self.next_seq - 1, rx));
            }
            Message::Flush(_) | Message::Changes(..) | Message::Stop => {}
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
        match self.try_commit(changes) {
            Ok((seq, true)) => {
                let first = std::mem::replace(&mut self.next_seq, seq);
                if !self.streams.is_empty() && seq > first {
                    self.publish(first);
                }
                true
            }
            Ok((_, false)) => {
                let text = "another server has taken over the journal".to_owned();
                tracing::error!("{text}");
                self.progress(self.committed, Health::Broken(text));
                false
            }
            Err(error) => {
                let is_full = matches!(
                    error.sqlite_error_code(),
                    Some(ErrorCode::DiskFull | ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
                ) || is_write_refused(&error);
                let text = format!("{}: {error}", self.path.display());
                if is_full {
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

    fn try_commit(&mut self, changes: &[Change]) -> rusqlite::Result<(i64, bool)> {
        let mut seq = self.next_seq;
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut group = Group::new(&transaction, &mut seq);
        for change in changes {
            group.apply(change)?;
        }
        group.write_starts()?;
        if !changes.is_empty() {
            set_number(&transaction, "next_seq", seq)?;
        }
        if !lease::renew(&transaction, self.fence, true)? {
            return Ok((seq, false));
        }
        transaction.commit()?;
        Ok((seq, true))
    }

    /// Sends the events from `first` on to the live readers.
    fn publish(&mut self, first: i64) {
        let Self {
            connection,
            streams,
            ..
        } = self;
        let sent = reader::lines_since(connection, first - 1, i64::MAX, &mut |line| {
            streams.retain(|stream| stream.try_send(line.to_owned()).is_ok());
            !streams.is_empty()
        });
        if let Err(error) = sent {
            tracing::warn!(%error, "live readers of the journal are cut off");
            self.streams.clear();
        }
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
            "dropped_data",
            "event_log",
        ] {
            transaction.execute(&format!("DELETE FROM {table} WHERE job IN ({dead})"), [])?;
        }
        let lost = "SELECT id FROM worker_data WHERE ended_unix_ns IS NOT NULL";
        transaction.execute(
            &format!("DELETE FROM event_log WHERE worker IN ({lost})"),
            [],
        )?;
        transaction.execute(
            "DELETE FROM worker_data WHERE ended_unix_ns IS NOT NULL \
             AND id NOT IN (SELECT worker FROM task_data)",
            [],
        )?;
        transaction.execute(&format!("DELETE FROM job_data WHERE id IN ({dead})"), [])?;
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

/// A write that failed without harm: no room, no quota. A failed sync is not one of them.
fn is_write_refused(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error().map(|error| error.extended_code);
    // SQLITE_IOERR_WRITE, SQLITE_IOERR_SHMSIZE, SQLITE_IOERR_TRUNCATE
    code.is_some_and(|code| [10 | 3 << 8, 10 | 19 << 8, 10 | 6 << 8].contains(&code))
}

fn set_number(connection: &Connection, key: &str, value: i64) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO meta VALUES (?, ?)")?
        .execute(params![key, value])?;
    Ok(())
}

/// The changes of one transaction.
struct Group<'a> {
    connection: &'a Connection,
    seq: &'a mut i64,
    starts: BTreeMap<TaskKey, Start>,
}

impl<'a> Group<'a> {
    fn new(connection: &'a Connection, seq: &'a mut i64) -> Self {
        Self {
            connection,
            seq,
            starts: BTreeMap::new(),
        }
    }

    fn next_seq(&mut self) -> i64 {
        let seq = *self.seq;
        *self.seq += 1;
        seq
    }

    fn run(&self, sql: &str, values: impl rusqlite::Params) -> rusqlite::Result<usize> {
        self.connection.prepare_cached(sql)?.execute(values)
    }

    fn event(
        &mut self,
        at: Timestamp,
        kind: &str,
        job: Option<JobId>,
        worker: Option<WorkerId>,
        data: &Value,
    ) -> rusqlite::Result<()> {
        let seq = self.next_seq();
        let (job, worker) = (job.map(JobId::as_u32), worker.map(WorkerId::as_u32));
        let values = params![seq, at.0, kind, job, worker, data.to_string()];
        self.run("INSERT INTO event_log VALUES (?, ?, ?, ?, ?, ?)", values)?;
        Ok(())
    }

    fn apply(&mut self, change: &Change) -> rusqlite::Result<()> {
        let at = change.at;
        match &change.kind {
            ChangeKind::TaskStarted {
                task,
                instance,
                variant,
                worker,
            } => {
                let seq = self.next_seq();
                let start = Start {
                    at,
                    instance: *instance,
                    variant: *variant,
                    worker: *worker,
                    seq,
                };
                if let Some(earlier) = self.starts.insert(*task, start) {
                    self.write_start(*task, &earlier)?;
                }
                Ok(())
            }
            ChangeKind::TaskEnded {
                task,
                crash_count,
                end,
                is_finished,
                instance,
                worker,
            } => self.write_end(*task, (*instance, *worker, *crash_count), end, *is_finished),
            ChangeKind::TaskRequeued {
                task,
                instance,
                crash_count,
            } => {
                self.write_starts()?;
                self.requeue(*task, *instance, *crash_count)
            }
            ChangeKind::TasksDropped { job, ids, to } => {
                self.write_starts()?;
                self.drop_tasks(at, *job, ids, *to)
            }
            ChangeKind::WorkerConnected { .. } | ChangeKind::WorkerLost { .. } => {
                self.apply_worker(change)
            }
            ChangeKind::JobOpened { .. }
            | ChangeKind::Submitted { .. }
            | ChangeKind::JobClosed(_)
            | ChangeKind::JobCanceled { .. }
            | ChangeKind::JobCompleted(_)
            | ChangeKind::JobsForgotten(_) => self.apply_job(change),
        }
    }

    fn apply_worker(&mut self, change: &Change) -> rusqlite::Result<()> {
        let at = change.at;
        if let ChangeKind::WorkerConnected { worker, config } = &change.kind {
            let configuration = encode::worker_json(config);
            self.run(
                "INSERT OR REPLACE INTO worker_data VALUES (?, ?, ?, NULL, NULL, ?)",
                params![
                    worker.as_u32(),
                    config.hostname,
                    at.0,
                    configuration.to_string()
                ],
            )?;
            set_number(self.connection, "last_worker", i64::from(worker.as_u32()))?;
            let data = json!({"id": worker.as_u32(), "configuration": configuration});
            self.event(at, "worker-connected", None, Some(*worker), &data)?;
        }
        if let ChangeKind::WorkerLost { worker, reason } = &change.kind {
            let reason = encode::reason_name(*reason);
            self.run(
                "UPDATE worker_data SET ended_unix_ns = ?, reason = ? WHERE id = ?",
                params![at.0, reason, worker.as_u32()],
            )?;
            let data = json!({"id": worker.as_u32(), "reason": reason});
            self.event(at, "worker-lost", None, Some(*worker), &data)?;
        }
        Ok(())
    }

    fn apply_job(&mut self, change: &Change) -> rusqlite::Result<()> {
        let at = change.at;
        match &change.kind {
            ChangeKind::JobOpened {
                job,
                name,
                max_fails,
            } => {
                self.add_job(at, *job, name, *max_fails, true)?;
                let data = json!({"job_id": job.as_u32(), "name": name, "max_fails": max_fails});
                self.event(at, "job-open", Some(*job), None, &data)
            }
            ChangeKind::Submitted { .. } => self.submit(change),
            ChangeKind::JobClosed(job) => {
                self.run(
                    "UPDATE job_data SET is_open = 0 WHERE id = ?",
                    [job.as_u32()],
                )?;
                self.event(
                    at,
                    "job-close",
                    Some(*job),
                    None,
                    &json!({"job_id": job.as_u32()}),
                )
            }
            ChangeKind::JobCanceled { job, reason } => {
                let kept = (!reason.is_empty()).then_some(reason);
                let sql =
                    "UPDATE job_data SET cancel_reason = coalesce(?, cancel_reason) WHERE id = ?";
                self.run(sql, params![kept, job.as_u32()])?;
                let data = json!({"job_id": job.as_u32(), "reason": reason});
                self.event(at, "job-cancel", Some(*job), None, &data)
            }
            ChangeKind::JobCompleted(job) => {
                let sql = "UPDATE job_data SET completed_unix_ns = ? WHERE id = ?";
                self.run(sql, params![at.0, job.as_u32()])?;
                self.event(
                    at,
                    "job-completed",
                    Some(*job),
                    None,
                    &json!({"job": job.as_u32()}),
                )
            }
            ChangeKind::JobsForgotten(jobs) => {
                for job in jobs {
                    let sql = "UPDATE job_data SET is_forgotten = 1 WHERE id = ?";
                    self.run(sql, [job.as_u32()])?;
                }
                Ok(())
            }
            ChangeKind::TaskStarted { .. }
            | ChangeKind::TaskEnded { .. }
            | ChangeKind::TaskRequeued { .. }
            | ChangeKind::TasksDropped { .. }
            | ChangeKind::WorkerConnected { .. }
            | ChangeKind::WorkerLost { .. } => Ok(()),
        }
    }

    fn add_job(
        &mut self,
        at: Timestamp,
        job: JobId,
        name: &str,
        max_fails: Option<u32>,
        is_open: bool,
    ) -> rusqlite::Result<()> {
        self.run(
            "INSERT OR REPLACE INTO job_data VALUES (?, ?, ?, ?, NULL, ?, NULL, 0)",
            params![job.as_u32(), name, max_fails, is_open, at.0],
        )?;
        set_number(self.connection, "last_job", i64::from(job.as_u32()))
    }

    fn submit(&mut self, change: &Change) -> rusqlite::Result<()> {
        let ChangeKind::Submitted {
            job,
            is_new,
            name,
            max_fails,
            number,
            ids,
            spec,
        } = &change.kind
        else {
            return Ok(());
        };
        if *is_new {
            self.add_job(change.at, *job, name, *max_fails, false)?;
        }
        let bytes = encode::spec_bytes(*job, spec, ids);
        self.run(
            "INSERT OR REPLACE INTO submit_data VALUES (?, ?, ?, ?, ?)",
            params![job.as_u32(), number, change.at.0, ids.len(), bytes],
        )?;
        let data = json!({
            "job": job.as_u32(),
            "closed_job": is_new,
            "job_desc": {"name": name, "max_fails": max_fails},
            "submit_desc": encode::submit_json(spec, ids),
        });
        self.event(change.at, "job-created", Some(*job), None, &data)
    }

    fn write_starts(&mut self) -> rusqlite::Result<()> {
        for (task, start) in std::mem::take(&mut self.starts) {
            self.write_start(task, &start)?;
        }
        Ok(())
    }

    fn write_start(&self, task: TaskKey, start: &Start) -> rusqlite::Result<()> {
        let (job, id) = (task.job.as_u32(), task.task.as_u32());
        // An instance that was cut off by the end of a server has left its row behind.
        self.run(
            "INSERT OR IGNORE INTO attempt_data SELECT job, task, instance, worker, variant, \
             started_unix_ns, start_seq FROM task_data \
             WHERE job = ? AND task = ? AND state = 1 AND instance <> ?",
            params![job, id, start.instance.as_u32()],
        )?;
        self.run(
            "INSERT INTO task_data (job, task, state, instance, crash_count, worker, variant, \
             started_unix_ns, start_seq) VALUES (?1, ?2, 1, ?3, 0, ?4, ?5, ?6, ?7) \
             ON CONFLICT DO UPDATE SET state = 1, instance = ?3, worker = ?4, variant = ?5, \
             started_unix_ns = ?6, start_seq = ?7",
            params![
                job,
                id,
                start.instance.as_u32(),
                start.worker.as_u32(),
                start.variant,
                start.at.0,
                start.seq
            ],
        )?;
        Ok(())
    }

    fn write_end(
        &mut self,
        task: TaskKey,
        (instance, worker, crash_count): (InstanceId, WorkerId, u32),
        end: &TaskEnd,
        is_finished: bool,
    ) -> rusqlite::Result<()> {
        let start = self.starts.remove(&task);
        let seq = self.next_seq();
        let state = if is_finished {
            TaskState::Finished
        } else {
            TaskState::Failed
        };
        let (code, message) = encode::outcome_code(&end.outcome);
        let millis = |d: Duration| u32::try_from(d.as_millis()).unwrap_or(u32::MAX);
        let started = end.at.minus(end.run).0;
        self.run(
            "INSERT INTO task_data VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, \
             ?14, ?15, ?16) ON CONFLICT DO UPDATE SET state = ?3, instance = ?4, crash_count = ?5, \
             worker = ?6, started_unix_ns = ?8, run_us = ?9, outcome = ?10, message = ?11, \
             max_rss_kib = ?12, user_ms = ?13, system_ms = ?14, \
             start_seq = coalesce(?15, start_seq), end_seq = ?16",
            params![
                task.job.as_u32(),
                task.task.as_u32(),
                encode::number_of(state),
                instance.as_u32(),
                crash_count,
                worker.as_u32(),
                start.as_ref().map_or(0, |start| start.variant),
                started,
                i64::try_from(end.run.as_micros()).unwrap_or(i64::MAX),
                code,
                message,
                u32::try_from(end.usage.max_rss_kib).unwrap_or(u32::MAX),
                millis(end.usage.user),
                millis(end.usage.system),
                start.map(|start| start.seq),
                seq
            ],
        )?;
        Ok(())
    }

    fn requeue(&self, task: TaskKey, next: InstanceId, crashes: u32) -> rusqlite::Result<()> {
        let (job, id) = (task.job.as_u32(), task.task.as_u32());
        self.run(
            "INSERT OR IGNORE INTO attempt_data SELECT job, task, instance, worker, variant, \
             started_unix_ns, start_seq FROM task_data WHERE job = ? AND task = ? AND state = 1",
            params![job, id],
        )?;
        self.run(
            "UPDATE task_data SET state = 0, instance = ?, crash_count = ?, start_seq = NULL \
             WHERE job = ? AND task = ?",
            params![next.as_u32(), crashes, job, id],
        )?;
        Ok(())
    }

    fn drop_tasks(
        &mut self,
        at: Timestamp,
        job: JobId,
        ids: &hq_core::range::IdArray,
        to: TaskState,
    ) -> rusqlite::Result<()> {
        let state = encode::number_of(to);
        let seq = *self.seq;
        let mut ranges = Vec::new();
        for range in ids.ranges() {
            let (first, count, step) = (range.first(), range.count(), range.step());
            self.run(
                "INSERT INTO dropped_data VALUES (?, ?, ?, ?, ?, ?, ?)",
                params![seq, job.as_u32(), first, count, step, state, at.0],
            )?;
            self.run(
                "UPDATE task_data SET state = ? WHERE job = ? AND task BETWEEN ? AND ? \
                 AND state < 2 AND (task - ?) % ? = 0",
                params![state, job.as_u32(), first, range.last(), first, step],
            )?;
            ranges.push(json!([first, count, step]));
        }
        let kind = if to == TaskState::Canceled {
            "task-canceled"
        } else {
            "task-aborted"
        };
        self.event(
            at,
            kind,
            Some(job),
            None,
            &json!({"job": job.as_u32(), "ranges": ranges}),
        )
    }
}
