//! Requests about the journal, which never wait for the core's thread.
//!
//! The file is read on separate threads. Readers that only wait for new events occupy no thread, so
//! that a hundred unread streams cannot block queries.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hq_core::refusal::Refusal;
use hq_protocol::admission::{Pool, acting_as, actor};
use hq_protocol::client::{self, reply::Reply};
use hq_protocol::convert::JournalAction;
use hq_protocol::limits::QUERY_BYTES_MAX;
use hq_store::event::{self, Event};
use hq_store::reader::{self, QueryLimits};
use hq_store::{FlushError, Live, StoreClient};
use tokio::sync::mpsc;

use crate::request_shares::{FILES, QUERIES, READS, READS_MAX};

/// The maximum number of lines per message, and the number of bytes at which a message is full.
const LINES_PER_MESSAGE: usize = 512;
const MESSAGE_LEN: usize = 256 << 10;
/// The maximum number of queued messages per reader. A reader whose queue is full gets no more
/// messages, and the writer eventually disconnects it.
const MESSAGES_WAITING: usize = 16;
/// The maximum number of missed events that are sent after an interruption to a reader that can
/// skip events.
const MISSED_MAX: usize = 10_000;
/// The upper bounds for the limits that a client requests.
const QUERY_TIME_MAX: Duration = Duration::from_secs(600);
const QUERY_ROWS_MAX: u64 = 1_000_000;

/// How often a slow read checks whether the writer hangs.
const WATCH_PAUSE: Duration = Duration::from_secs(1);
/// How long to wait for other reads to end.
const SEAT_PATIENCE: Duration = Duration::from_secs(4);
/// How long a flush waits for readers of the file, and how often it retries.
const READER_WAIT: Duration = Duration::from_secs(5);
const READER_CHECK: Duration = Duration::from_millis(50);

/// Converts an event to a line.
pub(crate) type Format = fn(&Event) -> String;

/// A message to a reader.
#[derive(Debug)]
pub(crate) enum Part {
    /// Events, in order.
    Lines(client::JournalLines),
    /// Events up to this number are skipped, so the client must reload its data.
    Skipped(u64),
}

impl From<client::JournalLines> for Part {
    fn from(lines: client::JournalLines) -> Self {
        Self::Lines(lines)
    }
}

type Sender<T> = mpsc::Sender<Result<T, Refusal>>;
type Receiver<T> = mpsc::Receiver<Result<T, Refusal>>;

/// Starts to read all events after `after`. If they must be read from the file, this scans all
/// tasks. The channel ends after the message that is `done`, or when the server ends.
pub(crate) fn read<T>(store: StoreClient, after: i64, is_live: bool, format: Format) -> Receiver<T>
where
    T: From<client::JournalLines> + Send + 'static,
{
    start(format, move |batch| feed(store, after, is_live, batch))
}

/// Starts to follow the events after `after` if they are recent and few. Otherwise reports that
/// they are skipped. `None` means only new events. The cost is proportional to the number of sent
/// events.
pub(crate) fn follow(store: StoreClient, after: Option<i64>, format: Format) -> Receiver<Part> {
    start(format, move |batch| feed_near(store, after, batch))
}

/// Runs `feed` until the reader disconnects.
fn start<T, F>(format: Format, feed: impl FnOnce(Batch<T>) -> F + Send + 'static) -> Receiver<T>
where
    T: Send + 'static,
    F: Future<Output = Result<(), Refusal>> + Send,
{
    let (tx, rx) = mpsc::channel(MESSAGES_WAITING);
    let reading = async move {
        let batch = Batch {
            message: client::JournalLines::default(),
            len: 0,
            format,
            tx: tx.clone(),
        };
        tokio::select! {
            fed = feed(batch) => if let Err(refusal) = fed {
                // This fails only if the client has disconnected.
                let _ = tx.send(Err(refusal)).await;
            },
            () = tx.closed() => {}
        }
    };
    tokio::spawn(acting_as(actor(), reading));
    rx
}

/// Lines that are collected for a reader.
struct Batch<T> {
    message: client::JournalLines,
    /// The total size of its lines in bytes.
    len: usize,
    format: Format,
    tx: Sender<T>,
}

impl<T: From<client::JournalLines>> Batch<T> {
    /// Adds an event. Returns whether the message is full.
    fn push(&mut self, event: &Event) -> bool {
        let line = (self.format)(event);
        self.len += line.len();
        self.message.lines.push(line);
        self.message.seqs.push(event.seq().unsigned_abs());
        self.message.lines.len() >= LINES_PER_MESSAGE || self.len >= MESSAGE_LEN
    }

    fn message(&mut self) -> Result<T, Refusal> {
        self.len = 0;
        Ok(std::mem::take(&mut self.message).into())
    }

    /// Sends the collected events. Returns `false` if the reader has disconnected.
    async fn send(&mut self) -> bool {
        let message = self.message();
        self.tx.send(message).await.is_ok()
    }

    /// Sends events. Some may be kept for the next message. Returns `false` if the reader has
    /// disconnected.
    async fn send_all(&mut self, events: &[Arc<Event>]) -> bool {
        for event in events {
            if self.push(event) && !self.send().await {
                return false;
            }
        }
        true
    }

    /// Sends live events until the journal ends or the reader disconnects.
    async fn follow(mut self, mut live: Live) {
        loop {
            let events = live.next(LINES_PER_MESSAGE).await;
            if events.is_empty() || !self.send_all(&events).await {
                return;
            }
            if !self.message.lines.is_empty() && !self.send().await {
                return;
            }
        }
    }
}

fn closed() -> Refusal {
    Refusal::unavailable("the journal is closed")
}

/// Asks the writer, which may be waiting for the disk.
async fn ask_writer<T: Send + 'static>(
    store: &StoreClient,
    question: impl FnOnce(&StoreClient) -> Option<T> + Send + 'static,
) -> Result<T, Refusal> {
    refuse_if_it_hangs(store)?;
    let asked = store.clone();
    let answer = tokio::task::spawn_blocking(move || question(&asked)).await;
    answer.ok().flatten().ok_or_else(|| silent(store))
}

/// Immediately rejects a request if the writer is known to hang, because the request would block a
/// thread.
fn refuse_if_it_hangs(store: &StoreClient) -> Result<(), Refusal> {
    match store.hangs_for() {
        Some(_) => Err(hangs()),
        None => Ok(()),
    }
}

/// Returns why the writer gave no answer.
fn silent(store: &StoreClient) -> Refusal {
    refuse_if_it_hangs(store).err().unwrap_or_else(closed)
}

/// Reads the store on a separate thread, without a time limit. If the writer hangs, the disk hangs
/// as well, and the caller stops waiting. Later requests are rejected immediately, so that threads
/// do not pile up.
///
/// # Errors
///
/// Returns an error if the journal hangs or is closed.
pub(crate) async fn read_unless_it_hangs<T: Send + 'static>(
    store: StoreClient,
    work: impl FnOnce(&StoreClient) -> T + Send + 'static,
) -> Result<T, Refusal> {
    read_in(&READS, store, work).await
}

async fn read_in<T: Send + 'static>(
    pool: &Pool,
    store: StoreClient,
    work: impl FnOnce(&StoreClient) -> T + Send + 'static,
) -> Result<T, Refusal> {
    refuse_if_it_hangs(&store)?;
    let Ok(permit) = tokio::time::timeout(SEAT_PATIENCE, pool.enter(actor())).await else {
        return Err(Refusal::unavailable(format!(
            "{READS_MAX} reads of the journal are in progress, or as many as one key or token may have, and none has ended for {} s: many dashboards read at once, or the disk is very slow or hangs. Try again later",
            SEAT_PATIENCE.as_secs()
        )));
    };
    let reader = store.clone();
    let reading = tokio::task::spawn_blocking(move || {
        let _permit = permit;
        work(&reader)
    });
    tokio::select! {
        read = reading => read.map_err(|_| closed()),
        () = writer_hangs(&store) => Err(hangs()),
    }
}

/// Returns when the writer hangs.
async fn writer_hangs(store: &StoreClient) {
    while store.hangs_for().is_none() {
        tokio::time::sleep(WATCH_PAUSE).await;
    }
}

fn hangs() -> Refusal {
    Refusal::unavailable(
        "the journal does not answer: its disk or file system hangs. `hq status`, `hq job list` and `hq worker list` work without it",
    )
}

async fn feed_near(
    store: StoreClient,
    after: Option<i64>,
    mut batch: Batch<Part>,
) -> Result<(), Refusal> {
    let seen = ask_writer(&store, move |store| store.subscribe(after)).await?;
    let is_near = |missed: &Vec<Arc<Event>>| missed.len() <= MISSED_MAX;
    let missed = match after {
        None => Some(Vec::new()),
        // The number is from another journal.
        Some(after) if after > seen.past.upto => None,
        Some(_) => seen.past.missed.filter(is_near),
    };
    let is_there = match missed {
        Some(missed) => {
            batch.send_all(&missed).await && (batch.message.lines.is_empty() || batch.send().await)
        }
        None => {
            let skipped = Part::Skipped(seen.past.upto.unsigned_abs());
            batch.tx.send(Ok(skipped)).await.is_ok()
        }
    };
    if is_there {
        batch.follow(seen.live).await;
    }
    Ok(())
}

async fn feed<T>(
    store: StoreClient,
    after: i64,
    is_live: bool,
    mut batch: Batch<T>,
) -> Result<(), Refusal>
where
    T: From<client::JournalLines> + Send + 'static,
{
    let (past, live) = if is_live {
        let seen = ask_writer(&store, move |store| store.subscribe(Some(after))).await?;
        (seen.past, Some(seen.live))
    } else {
        let past = ask_writer(&store, move |store| store.position(after)).await?;
        (past, None)
    };
    let is_there = match past.missed {
        Some(missed) => batch.send_all(&missed).await,
        None => {
            let _permit = FILES.enter(actor()).await;
            let work = move || read_file(&store, after, past.upto, batch);
            let (read, is_there) = tokio::task::spawn_blocking(work)
                .await
                .map_err(|_| closed())??;
            batch = read;
            is_there
        }
    };
    batch.message.done = live.is_none();
    if is_there
        && batch.send().await
        && let Some(live) = live
    {
        batch.follow(live).await;
    }
    Ok(())
}

/// Sends events from the file. Some may be kept for the next message. Returns `false` if the reader
/// has disconnected.
fn read_file<T: From<client::JournalLines>>(
    store: &StoreClient,
    after: i64,
    upto: i64,
    mut batch: Batch<T>,
) -> Result<(Batch<T>, bool), Refusal> {
    let connection = store.read().map_err(Refusal::failed)?;
    let mut is_there = true;
    let mut take = |event: Event| {
        if batch.push(&event) {
            let message = batch.message();
            is_there = batch.tx.blocking_send(message).is_ok();
        }
        is_there
    };
    event::events_since(&connection, after, upto, &mut take)
        .map_err(|e| Refusal::failed(format!("the journal cannot be read: {e}")))?;
    Ok((batch, is_there))
}

/// Prunes or flushes the journal.
pub(crate) async fn act(store: StoreClient, action: JournalAction) -> Reply {
    if let Err(refusal) = refuse_if_it_hangs(&store) {
        return refusal.into();
    }
    let work = move || match action {
        JournalAction::Prune => store.prune().map(|_| ()),
        JournalAction::Flush | JournalAction::Replay | JournalAction::Stream => flush(&store),
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(())) => Reply::Done(client::Empty {}),
        Ok(Err(text)) => Refusal::failed(text).into(),
        Err(_) => Refusal::unavailable("the journal is unreachable").into(),
    }
}

/// Moves everything from the log into the file. Waits a while for readers of the file.
fn flush(store: &StoreClient) -> Result<(), String> {
    let end = Instant::now() + READER_WAIT;
    loop {
        match store.flush() {
            Err(FlushError::Reader(_)) if Instant::now() < end => std::thread::sleep(READER_CHECK),
            flushed => return flushed.map_err(|error| error.to_string()),
        }
    }
}

/// Runs a user's query.
pub(crate) async fn query(store: StoreClient, asked: client::SqlQuery) -> Reply {
    let limits = QueryLimits {
        time: Duration::from_nanos(asked.time_limit_ns).min(QUERY_TIME_MAX),
        rows: asked.row_limit.min(QUERY_ROWS_MAX),
        bytes: reader::RESULT_LEN_MAX,
    };
    let work = move |store: &StoreClient| {
        let connection = store.read()?;
        reader::query(&connection, &asked.sql, limits)
    };
    match read_in(&QUERIES, store, work).await {
        Ok(Ok(table)) => {
            let rows = table.rows.into_iter().map(serde_json::Value::from);
            let rows_json = serde_json::Value::from_iter(rows).to_string();
            if rows_json.len() > QUERY_BYTES_MAX {
                return Refusal::too_large(format!(
                    "the result has {} bytes, and at most {QUERY_BYTES_MAX} are allowed. Select fewer columns or rows",
                    rows_json.len()
                ))
                .into();
            }
            Reply::SqlTable(client::SqlTable {
                columns: table.columns,
                rows_json,
                is_cut: table.is_cut,
            })
        }
        Ok(Err(text)) => Refusal::failed(format!("the query failed: {text}")).into(),
        Err(refusal) => refusal.into(),
    }
}
