//! Live events with a cursor, so that a reader that reconnects continues where it stopped.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::sse::{Event, KeepAlive, Sse};
use futures_util::stream::{self, Stream, StreamExt as _};
use hq_core::refusal::Refusal;
use hq_protocol::admission::{Permit, actor};
use tokio::sync::mpsc::Receiver;

use super::described::query;
use super::{ApiError, Parameters, parameters};
use crate::http::App;
use crate::journal_link::{self, Part};
use crate::request_shares::STREAMS;

/// The maximum length of a line in bytes. For a longer line, only the fact that the event happened
/// is sent.
const LINE_LEN_MAX: usize = 64 * 1024;

type Parts = Receiver<Result<Part, Refusal>>;

query! {
    /// Where the stream starts.
    EventsQuery {
        /// Only events after this number. Without it, only new events are sent.
        after: Option<u64>,
        /// Whether events may be skipped if they are old or very many.
        resync: Option<bool>,
    }
}

/// Streams events. The number of an event is its `id`, so that a browser that reconnects sends it
/// as `Last-Event-ID`.
pub(in crate::http) async fn stream(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    asked: Parameters<EventsQuery>,
) -> Result<Sse<impl Stream<Item = Result<Event, Infallible>>>, ApiError> {
    let asked = parameters(asked)?;
    let last = headers
        .get("last-event-id")
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse::<u64>().ok());
    let Some(store) = app.parts.store.clone() else {
        return Err(ApiError::not_found(
            "this server keeps its state in memory only",
        ));
    };
    let Ok(permit) = STREAMS.try_enter(actor()) else {
        return Err(ApiError::busy(
            "too many readers follow the events, with this token or in total. Try again later",
        ));
    };
    let after = last
        .or(asked.after)
        .and_then(|after| i64::try_from(after).ok());
    let parts = if after.is_none() || asked.resync == Some(true) {
        journal_link::follow(store, after, line)
    } else {
        journal_link::read(store, after.unwrap_or(i64::MAX), true, line)
    };
    let batches = stream::unfold((parts, permit), next_batch);
    let mut ended = app.ended.clone();
    let over = async move {
        // No value is ever sent. This returns when the listener ends.
        let _ = ended.changed().await;
    };
    let events = batches.flat_map(stream::iter).take_until(over);
    Ok(Sse::new(events).keep_alive(KeepAlive::default()))
}

/// Returns the next lines. The stream ends if the journal cannot be read or this reader is too
/// slow. The reader then reconnects with its cursor.
async fn next_batch(
    (mut parts, permit): (Parts, Permit),
) -> Option<(Vec<Result<Event, Infallible>>, (Parts, Permit))> {
    let part = parts.recv().await?.ok()?;
    Some((events(part), (parts, permit)))
}

fn events(part: Part) -> Vec<Result<Event, Infallible>> {
    let event = |seq: u64| Event::default().id(seq.to_string());
    match part {
        Part::Lines(batch) => {
            let pairs = batch.lines.into_iter().zip(batch.seqs);
            pairs.map(|(line, seq)| Ok(event(seq).data(line))).collect()
        }
        Part::Skipped(seq) => vec![Ok(event(seq).event("resync").data("{}"))],
    }
}

fn line(event: &hq_store::event::Event) -> String {
    event.bounded_line(LINE_LEN_MAX)
}
