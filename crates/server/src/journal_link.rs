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
/// How often a silent stream looks whether its reader is still there.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Upper bounds of what a client can ask for.
const QUERY_TIME_MAX: Duration = Duration::from_secs(600);
const QUERY_ROWS_MAX: u64 = 1_000_000;

/// Starts to read; the channel ends behind the message that is `done`, or with the server.
pub(crate) fn read(
    store: StoreClient,
    after: i64,
    is_live: bool,
) -> mpsc::Receiver<Result<client::JournalLines, String>> {
    let (tx, rx) = mpsc::channel(MESSAGES_WAITING);
    tokio::task::spawn_blocking(move || {
        if let Err(text) = feed(&store, after, is_live, &tx) {
            // If the client is gone, nobody needs to know.
            let _ = tx.blocking_send(Err(text));
        }
    });
    rx
}

type Sender = mpsc::Sender<Result<client::JournalLines, String>>;

fn feed(store: &StoreClient, after: i64, is_live: bool, tx: &Sender) -> Result<(), String> {
    let seen = store
        .subscribe(Some(after))
        .ok_or_else(|| "Error: the journal is closed".to_owned())?;
    let live = is_live.then_some(seen.live);
    let mut message = client::JournalLines::default();
    let mut is_wanted = true;
    let mut take = |event| {
        push(&mut message, event);
        if message.lines.len() >= LINES_PER_MESSAGE {
            is_wanted = tx.blocking_send(Ok(std::mem::take(&mut message))).is_ok();
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
    if !is_wanted || tx.blocking_send(Ok(message)).is_err() {
        return Ok(());
    }
    if let Some(live) = live {
        follow(&live, tx);
    }
    Ok(())
}

fn follow(live: &Receiver<EventLine>, tx: &Sender) {
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
        if tx.blocking_send(Ok(message)).is_err() {
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
