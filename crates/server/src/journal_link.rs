//! Requests about the journal: read on threads of their own, never on the core's.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use hq_protocol::client::{self, reply::Reply};
use hq_protocol::convert::JournalAction;
use hq_store::StoreClient;
use hq_store::reader::{self, EventLine, QueryLimits};
use tokio::sync::mpsc;

/// Lines per message.
const LINES_PER_MESSAGE: usize = 512;
/// Messages that may wait for a reader; then its thread waits, and the writer cuts it off in the end.
const MESSAGES_WAITING: usize = 16;
/// Events that a reader who can do without them is sent after an interruption.
const MISSED_MAX: usize = 10_000;
/// How often a silent stream looks whether its reader is still there.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Upper bounds of what a client can ask for.
const QUERY_TIME_MAX: Duration = Duration::from_secs(600);
const QUERY_ROWS_MAX: u64 = 1_000_000;

/// What a reader gets.
#[derive(Debug)]
pub(crate) enum Part {
    /// Events in order.
    Lines(client::JournalLines),
    /// Events up to this number are left out: what was read before is to be read anew.
    Skipped(u64),
}

impl From<client::JournalLines> for Part {
    fn from(lines: client::JournalLines) -> Self {
        Self::Lines(lines)
    }
}

/// Starts to read all events behind `after`, from the file if need be, which passes over all tasks. The channel ends
/// behind the message that is `done`, or with the server.
pub(crate) fn read<T>(
    store: StoreClient,
    after: i64,
    is_live: bool,
) -> mpsc::Receiver<Result<T, String>>
where
    T: From<client::JournalLines> + Send + 'static,
{
    start(move |tx| feed(&store, after, is_live, tx))
}

/// Starts to follow the events behind `after`, if they are not long ago and not many, or is told that they are left
/// out; `None` = from now on. It costs what it sends.
pub(crate) fn follow(
    store: StoreClient,
    after: Option<i64>,
) -> mpsc::Receiver<Result<Part, String>> {
    start(move |tx| feed_near(&store, after, tx))
}

type Sender<T> = mpsc::Sender<Result<T, String>>;

fn start<T: Send + 'static>(
    feed: impl FnOnce(&Sender<T>) -> Result<(), String> + Send + 'static,
) -> mpsc::Receiver<Result<T, String>> {
    let (tx, rx) = mpsc::channel(MESSAGES_WAITING);
    tokio::task::spawn_blocking(move || {
        if let Err(text) = feed(&tx) {
            // If the client is gone, nobody needs to know.
            let _ = tx.blocking_send(Err(text));
        }
    });
    rx
}

fn closed() -> String {
    "Error: the journal is closed".to_owned()
}

fn feed_near(store: &StoreClient, after: Option<i64>, tx: &Sender<Part>) -> Result<(), String> {
    let seen = store.subscribe(after).ok_or_else(closed)?;
    let is_near = |missed: &Vec<EventLine>| missed.len() <= MISSED_MAX;
    let missed = match after {
        None => Some(Vec::new()),
        // The number of another journal.
        Some(after) if after > seen.upto => None,
        Some(_) => seen.missed.filter(is_near),
    };
    let Some(missed) = missed else {
        let skipped = Part::Skipped(seen.upto.unsigned_abs());
        if tx.blocking_send(Ok(skipped)).is_ok() {
            follow_live(&seen.live, tx);
        }
        return Ok(());
    };
    let mut missed = missed.into_iter().peekable();
    while missed.peek().is_some() {
        let mut message = client::JournalLines::default();
        for event in missed.by_ref().take(LINES_PER_MESSAGE) {
            push(&mut message, event);
        }
        if tx.blocking_send(Ok(message.into())).is_err() {
            return Ok(());
        }
    }
    follow_live(&seen.live, tx);
    Ok(())
}

fn feed<T: From<client::JournalLines>>(
    store: &StoreClient,
    after: i64,
    is_live: bool,
    tx: &Sender<T>,
) -> Result<(), String> {
    let seen = store.subscribe(Some(after)).ok_or_else(closed)?;
    let live = is_live.then_some(seen.live);
    let mut message = client::JournalLines::default();
    let mut is_wanted = true;
    let mut take = |event| {
        push(&mut message, event);
        if message.lines.len() >= LINES_PER_MESSAGE {
            let full = std::mem::take(&mut message).into();
            is_wanted = tx.blocking_send(Ok(full)).is_ok();
        }
        is_wanted
    };
    match seen.missed {
        Some(missed) => {
            let _ = missed
                .into_iter()
                .try_for_each(|event| take(event).then_some(()));
        }
        None => {
            let connection =
                reader::open_for_reading(store.path()).map_err(|e| format!("Error: {e}"))?;
            reader::lines_since(&connection, after, seen.upto, &mut take)
                .map_err(|e| format!("Error: the journal cannot be read: {e}"))?;
        }
    }
    message.done = live.is_none();
    if !is_wanted || tx.blocking_send(Ok(message.into())).is_err() {
        return Ok(());
    }
    if let Some(live) = live {
        follow_live(&live, tx);
    }
    Ok(())
}

fn follow_live<T: From<client::JournalLines>>(live: &Receiver<EventLine>, tx: &Sender<T>) {
    loop {
        let first = match live.recv_timeout(LOOK_INTERVAL) {
            Ok(first) => first,
            Err(RecvTimeoutError::Timeout) if tx.is_closed() => return,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) => return,
        };
        let mut message = client::JournalLines::default();
        for event in std::iter::once(first).chain(live.try_iter().take(LINES_PER_MESSAGE)) {
            push(&mut message, event);
        }
        if tx.blocking_send(Ok(message.into())).is_err() {
            return;
        }
    }
}

fn push(message: &mut client::JournalLines, event: EventLine) {
    message.lines.push(event.line);
    message.seqs.push(event.seq.unsigned_abs());
}

/// Prunes or flushes.
pub(crate) async fn act(store: StoreClient, action: JournalAction) -> Reply {
    let work = move || match action {
        JournalAction::Prune => store.prune().map(|_| ()),
        JournalAction::Flush | JournalAction::Replay | JournalAction::Stream => {
            if store.flush() {
                Ok(())
            } else {
                Err("the state cannot be written at present".to_owned())
            }
        }
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(())) => Reply::Done(client::Empty {}),
        Ok(Err(text)) => error(format!("Error: {text}")),
        Err(_) => error("Error: the journal was not reached".to_owned()),
    }
}

/// Runs a query of a user.
pub(crate) async fn query(store: StoreClient, asked: client::SqlQuery) -> Reply {
    let limits = QueryLimits {
        time: Duration::from_nanos(asked.time_limit_ns).min(QUERY_TIME_MAX),
        rows: asked.row_limit.min(QUERY_ROWS_MAX),
    };
    let work = move || {
        let connection = reader::open_for_reading(store.path()).map_err(|e| e.to_string())?;
        reader::query(&connection, &asked.sql, limits)
    };
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(table)) => Reply::SqlTable(client::SqlTable {
            columns: table.columns,
            rows_json: serde_json::Value::from(
                table
                    .rows
                    .into_iter()
                    .map(serde_json::Value::from)
                    .collect::<Vec<_>>(),
            )
            .to_string(),
            is_cut: table.is_cut,
        }),
        Ok(Err(text)) => error(format!("Error: the query failed: {text}")),
        Err(_) => error("Error: the journal was not reached".to_owned()),
    }
}

fn error(message: String) -> Reply {
    Reply::Error(client::Error { message })
}
