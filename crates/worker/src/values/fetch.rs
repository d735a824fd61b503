//! Fetches values from the worker that holds them, and asks it to drop them. Used by workers and by
//! clients' bridges.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::time::Duration;

use hq_protocol::worker::{FromHolder, HeldNames, ToHolder, from_holder, to_holder};
use hq_protocol::{MessageReader, MessageWriter, Plane};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::task::{JoinHandle, spawn_blocking};

use super::value_server::LIMITS;
use super::{NoRoom, Reference};

/// How long to wait for a connection to one address.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait for the first reply. A holder serves a few dozen peers at a time, and each peer
/// may fetch a long value.
const TURN_TIMEOUT: Duration = Duration::from_mins(2);
/// How long to wait for the next bytes.
const STALL_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum number of names in one message.
const NAMES_MAX: usize = 1_000;

/// Why a value cannot be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The holder no longer has the value.
    #[error("the worker that made it no longer holds it")]
    Gone,
    /// The holder does not answer, because it has ended or the network is blocked.
    #[error("the worker that made it cannot be reached: {0}")]
    Unreachable(String),
    /// The value cannot be stored locally.
    #[error("cannot write its {size} bytes to {place}: {error}")]
    Local {
        /// The size of the value.
        size: u64,
        /// The path where the value should have been stored.
        place: String,
        /// The error.
        error: io::Error,
    },
}

impl FetchError {
    /// Returns whether other values take up the space.
    pub(crate) fn is_no_room(&self) -> bool {
        let Self::Local { error, .. } = self else {
            return false;
        };
        error.get_ref().is_some_and(|error| error.is::<NoRoom>())
    }
}

type Line = (MessageReader<OwnedReadHalf>, MessageWriter<OwnedWriteHalf>);

/// Connects to the first reachable address of a holder.
async fn dial(reference: &Reference) -> Result<Line, FetchError> {
    let mut tried = Vec::new();
    for (host, port) in &reference.at {
        match tokio::time::timeout(CONNECT_TIMEOUT, dial_one(reference, host, *port)).await {
            Ok(Ok(line)) => return Ok(line),
            // If another process listens there, it has another key.
            Ok(Err(reason)) => tried.push(format!("{host}:{port}: {reason}")),
            Err(_) => tried.push(format!("{host}:{port}: no answer")),
        }
    }
    Err(FetchError::Unreachable(tried.join(", ")))
}

async fn dial_one(reference: &Reference, host: &str, port: u16) -> Result<Line, String> {
    let stream = hq_protocol::connect_tcp(host, port)
        .await
        .map_err(|error| error.to_string())?;
    let mut connection = hq_protocol::connect(stream, Plane::Worker, Some(&reference.key))
        .await
        .map_err(|error| error.to_string())?;
    connection.set_limits(LIMITS);
    Ok(connection.split_tcp())
}

async fn next(
    reader: &mut MessageReader<OwnedReadHalf>,
    patience: Duration,
) -> Result<from_holder::Message, FetchError> {
    let unreachable = |text: String| FetchError::Unreachable(text);
    let read = tokio::time::timeout(patience, reader.next::<FromHolder>()).await;
    let read = read.map_err(|_| unreachable("it says nothing".to_owned()))?;
    let message = read.map_err(|error| unreachable(error.to_string()))?;
    message
        .and_then(|message| message.message)
        .ok_or_else(|| unreachable("it has closed the connection".to_owned()))
}

/// Fetches a value into a new file, which is removed on failure.
///
/// # Errors
///
/// Returns a [`FetchError`] after a single failed attempt.
pub async fn fetch(reference: &Reference, to: &Path) -> Result<(), FetchError> {
    let (mut reader, mut writer) = dial(reference).await?;
    let get = ToHolder {
        message: Some(to_holder::Message::Get(reference.name.clone())),
    };
    let sent = writer.send(&get).await;
    sent.map_err(|error| FetchError::Unreachable(error.to_string()))?;
    match next(&mut reader, TURN_TIMEOUT).await? {
        from_holder::Message::Size(size) if size == reference.size => {}
        from_holder::Message::Size(_)
        | from_holder::Message::Chunk(_)
        | from_holder::Message::Gone(_)
        | from_holder::Message::Dropped(_) => return Err(FetchError::Gone),
    }
    let local = |error| FetchError::Local {
        size: reference.size,
        place: to.display().to_string(),
        error,
    };
    let file = hq_private::new_file(to).map_err(local)?;
    let mut unfinished = Unfinished(Some(to));
    let mut writing = None;
    let mut left = reference.size;
    let mut file = Some(file);
    while left > 0 {
        let from_holder::Message::Chunk(chunk) = next(&mut reader, STALL_TIMEOUT).await? else {
            return Err(FetchError::Gone);
        };
        left = left
            .checked_sub(chunk.len() as u64)
            .ok_or(FetchError::Gone)?;
        // The next chunk is decrypted while this one is written.
        if let Some(before) = writing.take() {
            file = Some(written(before).await.map_err(local)?);
        }
        if let Some(mut file) = file.take() {
            writing = Some(spawn_blocking(move || {
                file.write_all(&chunk).map(|()| file)
            }));
        }
    }
    if let Some(last) = writing {
        written(last).await.map_err(local)?;
    }
    unfinished.0 = None;
    Ok(())
}

async fn written(writing: JoinHandle<io::Result<File>>) -> io::Result<File> {
    writing
        .await
        .unwrap_or_else(|_| Err(io::Error::other("the thread that writes has ended")))
}

/// A file that is removed unless it is complete.
struct Unfinished<'a>(Option<&'a Path>);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(path) = self.0 {
            // An error is ignored, because the file is useless anyway.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Asks a holder to drop values. All must have the same holder.
///
/// # Errors
///
/// Returns [`FetchError::Unreachable`]. In that case, the holder keeps the values until it ends.
pub async fn drop_values(references: &[Reference]) -> Result<(), FetchError> {
    let Some(first) = references.first() else {
        return Ok(());
    };
    let (mut reader, mut writer) = dial(first).await?;
    for part in references.chunks(NAMES_MAX) {
        let names = part.iter().map(|one| one.name.clone()).collect();
        let message = ToHolder {
            message: Some(to_holder::Message::Drop(HeldNames { names })),
        };
        let sent = writer.send(&message).await;
        sent.map_err(|error| FetchError::Unreachable(error.to_string()))?;
        next(&mut reader, TURN_TIMEOUT).await?;
    }
    Ok(())
}
