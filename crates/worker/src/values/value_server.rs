//! Serves this worker's values to clients that have a reference.
//!
//! Any client that has the worker's key for values and the name of a value may read and drop it.
//! Only references contain both.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hq_protocol::admission::{Holder, Permit, Pool, Share, descriptors, port};
use hq_protocol::worker::{FromHolder, ToHolder, from_holder, to_holder};
use hq_protocol::{Connection, Limits, MessageWriter, Plane, SecretKey};
use rustix::buffer::spare_capacity;
use rustix::io::pread;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::cache::{ValueCache, ValueFile};

/// The size in bytes of the part of a value that fits into one message. Its encryption occupies the
/// worker's main thread for a fraction of a millisecond.
const CHUNK: usize = 512 << 10;
/// The limits for both sides of a connection. A message contains a chunk or names.
pub(super) const LIMITS: Limits = Limits {
    message_max: 1 << 20,
    send_max: 1 << 20,
    decoded: None,
};
/// The maximum number of peers that are served at the same time. Each costs a descriptor and a few
/// buffers.
const SERVED_MAX: usize = 64;
/// How long a peer may neither send nor read before it is dropped.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Serves connections until it is aborted.
pub(super) async fn serve(listener: TcpListener, key: SecretKey, cache: Arc<ValueCache>) {
    let pool = Pool::new(Share::values(descriptors()));
    let serving = Arc::new(Semaphore::new(SERVED_MAX));
    let serve = |stream, _, permit: Permit| {
        let (key, cache, serving) = (key.clone(), Arc::clone(&cache), Arc::clone(&serving));
        async move {
            let accepted = hq_protocol::accept(stream, Plane::Worker, Some(&key)).await;
            let connection = match accepted {
                Ok(connection) if permit.prove(Holder::Silent).is_ok() => connection,
                Ok(_) => return,
                Err(error) => return tracing::debug!("a connection for values: {error}"),
            };
            if let Err(error) = answer_all(connection, &cache, &serving, permit).await {
                tracing::debug!("a connection for values has ended: {error}");
            }
        }
    };
    match port::serve(listener, pool, "values", serve).await {}
}

async fn answer_all(
    mut connection: Connection<TcpStream>,
    cache: &ValueCache,
    serving: &Semaphore,
    permit: Permit,
) -> Result<(), String> {
    let holder = connection.holder();
    let text = |error: &dyn std::error::Error| error.to_string();
    connection.set_limits(LIMITS);
    let (mut reader, mut writer) = connection.split_tcp();
    loop {
        let read = tokio::time::timeout(SILENCE_MAX, reader.next::<ToHolder>());
        let read = read.await.map_err(|_| "it says nothing".to_owned())?;
        let Some(message) = read.map_err(|error| text(&error))? else {
            return Ok(());
        };
        let is_full = |_| "too many peers are connected".to_owned();
        permit.prove(holder).map_err(is_full)?;
        let _turn = serving.acquire().await.map_err(|error| text(&error))?;
        match message.message {
            Some(to_holder::Message::Get(name)) => give(&mut writer, cache.own(&name)).await?,
            Some(to_holder::Message::Drop(names)) => {
                let paths = cache.take(&names.names);
                // The file system may be slow.
                let removed = spawn_blocking(move || paths.iter().for_each(remove));
                let _ = removed.await;
                say(&mut writer, from_holder::Message::Dropped(true)).await?;
            }
            None => return Err("an unknown message".to_owned()),
        }
    }
}

fn remove(path: &PathBuf) {
    if let Err(error) = std::fs::remove_file(path) {
        tracing::warn!("cannot remove an unused value: {error}");
    }
}

async fn give(
    writer: &mut MessageWriter<OwnedWriteHalf>,
    value: Option<(Arc<ValueFile>, u64)>,
) -> Result<(), String> {
    // The value is not evicted while this variable exists.
    let Some((value, size)) = value else {
        return say(writer, from_holder::Message::Gone(true)).await;
    };
    let path = value.path().to_owned();
    let file = match spawn_blocking(move || hq_private::read_file(&path)).await {
        Ok(Ok(file)) => Arc::new(file),
        Ok(Err(_)) | Err(_) => return say(writer, from_holder::Message::Gone(true)).await,
    };
    say(writer, from_holder::Message::Size(size)).await?;
    let mut ahead = Some(read(&file, 0, size));
    let mut from = 0;
    while let Some(reading) = ahead.take() {
        let chunk = reading.await.map_err(|error| error.to_string())?;
        let chunk = chunk.map_err(|error| error.to_string())?;
        from += chunk.len() as u64;
        // The next chunk is read while this one is encrypted.
        ahead = (from < size).then(|| read(&file, from, size));
        say(writer, from_holder::Message::Chunk(chunk)).await?;
        // This lets the worker do other work.
        tokio::task::yield_now().await;
    }
    Ok(())
}

fn read(file: &Arc<File>, from: u64, size: u64) -> tokio::task::JoinHandle<io::Result<Bytes>> {
    let file = Arc::clone(file);
    let len = usize::try_from(size - from).unwrap_or(CHUNK).min(CHUNK);
    spawn_blocking(move || {
        // The buffer is not zeroed first, because that would cost a tenth of the time.
        let mut chunk = Vec::with_capacity(len);
        while chunk.len() < len {
            let offset = from + chunk.len() as u64;
            if pread(&*file, spare_capacity(&mut chunk), offset)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        // The buffer may contain more than was requested.
        chunk.truncate(len);
        Ok(chunk.into())
    })
}

async fn say(
    writer: &mut MessageWriter<OwnedWriteHalf>,
    message: from_holder::Message,
) -> Result<(), String> {
    let message = FromHolder {
        message: Some(message),
    };
    let sent = tokio::time::timeout(SILENCE_MAX, writer.send(&message)).await;
    sent.map_err(|_| "it takes nothing".to_owned())?
        .map_err(|error| error.to_string())
}
