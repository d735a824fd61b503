//! Typed, framed and (with a key) encrypted connections over any byte stream.
//!
//! [`connect`] and [`accept`] perform the handshake. [`Connection::split`] returns a
//! [`MessageReader`] and a [`MessageWriter`], which can be used in different tasks. Messages that
//! are queued between two flushes share records and writes. This module does not interpret
//! messages. See `docs/protocol.md`.
//!
//! The end of a stream is not authenticated between two messages: an attacker on the path can cut a
//! connection there. Peers that must distinguish a cut from a regular end send a goodbye message.

mod writer;

use std::fmt;
use std::io;

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::admission::Holder;
use crate::frame::{self, FrameDecoder, FrameError, RECORD_HEADER_LEN, RECORD_MAX, RecordOpener};
use crate::handshake::{
    HANDSHAKE_FRAME_MAX, HANDSHAKE_TIMEOUT, Handshake, HandshakeError, Plane, Session,
};
use crate::key::{SecretKey, random_bytes};
use crate::limits::{Limits, Shape};
pub use writer::{MessageWriter, WriteError};

/// The buffer space for a read while little data arrives. A server has thousands of connections
/// that only send heartbeats.
const READ_SPACE_MIN: usize = 2 << 10;

/// The buffer space for a read while much data arrives: one whole record.
const READ_SPACE_MAX: usize = RECORD_HEADER_LEN + RECORD_MAX;

/// The factor by which the space grows. Three full reads lead from the smallest size to the
/// largest.
const READ_SPACE_STEP: usize = 4;

/// The number of consecutive reads that leave most of their space empty before the space shrinks
/// again. One small message between large ones is not enough.
const SMALL_READS_MAX: u32 = 8;

/// The largest buffer that is kept after a large message. Larger ones are freed.
const BUFFER_KEPT_MAX: usize = 1 << 20;

/// Why reading ended.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The connection broke.
    #[error("cannot read from the connection")]
    Io(#[source] io::Error),
    /// The stream ended inside a message.
    #[error("the connection ended inside a message")]
    Truncated,
    /// The peer broke a rule of framing or encryption.
    #[error("the peer sent an invalid frame")]
    Frame(#[source] FrameError),
    /// The content is not a message of the expected type.
    #[error("the peer sent a malformed message")]
    Decode(#[source] prost::DecodeError),
    /// The decoded message would take too much memory.
    #[error(
        "the peer sent a message that takes {found} bytes of memory; at most {limit} are allowed"
    )]
    TooManyElements {
        /// The memory it would take, in bytes.
        found: usize,
        /// The maximum memory, in bytes.
        limit: usize,
    },
}

/// A connection whose peer is authenticated if there is a key; without a key, the peer at least
/// speaks our protocol.
pub struct Connection<S> {
    stream: S,
    session: Session,
    plane: Plane,
    /// Bytes that arrived after the handshake.
    rest: BytesMut,
    limits: Limits,
}

impl<S> fmt::Debug for Connection<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("plane", &self.plane)
            .field("session", &self.session)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

/// Opens a connection as the dialing side. Without a key the connection is unencrypted, and a peer
/// that has a key rejects it.
///
/// # Errors
///
/// See [`HandshakeError`]. Fails after [`HANDSHAKE_TIMEOUT`] at the latest.
///
/// # Cancel safety
///
/// If the future is dropped, the stream is dropped.
pub async fn connect<S>(
    stream: S,
    plane: Plane,
    key: Option<&SecretKey>,
) -> Result<Connection<S>, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    run_in_time(
        stream,
        (plane, Limits::connecting(plane)),
        Handshake::connecting(plane, key, random_nonce()?),
    )
    .await
}

/// Opens a connection as the listening side.
///
/// # Errors
///
/// See [`HandshakeError`]. Fails after [`HANDSHAKE_TIMEOUT`] at the latest. Where it helps, the
/// peer gets a short code.
///
/// # Cancel safety
///
/// If the future is dropped, the stream is dropped.
pub async fn accept<S>(
    stream: S,
    plane: Plane,
    key: Option<&SecretKey>,
) -> Result<Connection<S>, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    run_in_time(
        stream,
        (plane, Limits::accepting(plane)),
        Handshake::accepting(plane, key, random_nonce()?),
    )
    .await
}

fn random_nonce<const N: usize>() -> Result<[u8; N], HandshakeError> {
    let mut nonce = [0; N];
    random_bytes(&mut nonce).map_err(|error| HandshakeError::Crypto(error.into()))?;
    Ok(nonce)
}

async fn run_in_time<S>(
    stream: S,
    role: (Plane, Limits),
    machine: Handshake,
) -> Result<Connection<S>, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    tokio::time::timeout(HANDSHAKE_TIMEOUT, run(stream, role, machine))
        .await
        .map_err(|_| HandshakeError::Timeout)?
}

async fn run<S>(
    mut stream: S,
    (plane, limits): (Plane, Limits),
    mut machine: Handshake,
) -> Result<Connection<S>, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    // Bounds the memory that a stranger can occupy: a read starts with at most one unprocessed
    // frame in the buffer.
    let mut input = BytesMut::with_capacity(2 * HANDSHAKE_FRAME_MAX);
    loop {
        let result = machine.receive(&mut input);
        let sent = send_output(&mut stream, &machine.take_output()).await;
        // If both failed, the error of `result` is the cause.
        if let Some(session) = result? {
            sent.map_err(HandshakeError::Io)?;
            return Ok(Connection {
                stream,
                session,
                plane,
                rest: input,
                limits,
            });
        }
        // A peer that rejected us has closed its side. Its message is more useful than the write
        // error.
        if input.capacity() == input.len() {
            input.reserve(HANDSHAKE_FRAME_MAX);
        }
        let count = stream
            .read_buf(&mut input)
            .await
            .map_err(HandshakeError::Io)?;
        if count == 0 {
            sent.map_err(HandshakeError::Io)?;
            return Err(HandshakeError::Closed);
        }
    }
}

async fn send_output<S: AsyncWrite + Unpin>(stream: &mut S, output: &[u8]) -> io::Result<()> {
    if output.is_empty() {
        return Ok(());
    }
    stream.write_all(output).await?;
    stream.flush().await
}

impl<S> Connection<S> {
    /// Replaces the default limits of the plane.
    pub const fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Returns whether messages are encrypted.
    #[must_use]
    pub const fn is_encrypted(&self) -> bool {
        self.session.keys.is_some()
    }

    /// Returns the protocol version that both sides agreed on.
    #[must_use]
    pub const fn version(&self) -> u32 {
        self.session.version
    }

    /// Returns the role of the connection.
    #[must_use]
    pub const fn plane(&self) -> Plane {
        self.plane
    }

    /// Returns the role that the connecting side has proven. All holders of a key other than the
    /// owner's count as one.
    #[must_use]
    pub const fn holder(&self) -> Holder {
        if self.session.is_owner {
            Holder::Owner
        } else {
            Holder::Other(0)
        }
    }

    /// Returns the underlying stream, for its addresses and options. Reading from it or writing to
    /// it breaks the connection.
    #[must_use]
    pub const fn stream(&self) -> &S {
        &self.stream
    }

    /// Returns the underlying stream without the keys of this connection, and the bytes that
    /// arrived after the handshake.
    pub(crate) fn into_stream(self) -> (S, BytesMut) {
        (self.stream, self.rest)
    }

    fn split_with<R, W>(
        self,
        split: impl FnOnce(S) -> (R, W),
    ) -> (MessageReader<R>, MessageWriter<W>) {
        let (sealer, opener) = match self.session.keys {
            Some(keys) => {
                let (sealer, opener) = frame::record_halves(keys);
                (Some(sealer), Some(opener))
            }
            None => (None, None),
        };
        // Without encryption, the received bytes are frames already.
        let (raw, plain) = match &opener {
            Some(_) => (self.rest, BytesMut::new()),
            None => (BytesMut::new(), self.rest),
        };
        let decoder = FrameDecoder::new(self.limits.message_max);
        let (read, write) = split(self.stream);
        let reader = MessageReader {
            stream: read,
            opener,
            decoder,
            decoded: self.limits.decoded,
            received: 0,
            space: READ_SPACE_MIN,
            small_reads: 0,
            raw,
            plain,
        };
        let writer = MessageWriter {
            stream: write,
            sealer,
            message_max: self.limits.send_max,
            plain: BytesMut::new(),
            out: BytesMut::new(),
        };
        (reader, writer)
    }
}

impl<S: AsyncRead + AsyncWrite> Connection<S> {
    /// Splits the connection into its two directions.
    pub fn split(self) -> (MessageReader<ReadHalf<S>>, MessageWriter<WriteHalf<S>>) {
        self.split_with(tokio::io::split)
    }
}

impl Connection<TcpStream> {
    /// Like [`Connection::split`], but without a lock between the two halves. The stream is shut
    /// down for writing when the writer is dropped.
    pub fn split_tcp(self) -> (MessageReader<OwnedReadHalf>, MessageWriter<OwnedWriteHalf>) {
        self.split_with(TcpStream::into_split)
    }
}

/// The receiving half of a connection.
pub struct MessageReader<R> {
    stream: R,
    opener: Option<RecordOpener>,
    decoder: FrameDecoder,
    decoded: Option<(usize, &'static Shape)>,
    /// The number of bytes received so far.
    received: u64,
    /// The buffer space of the next read.
    space: usize,
    /// The number of consecutive reads that left most of their space empty.
    small_reads: u32,
    /// Encrypted bytes. Unused without a key.
    raw: BytesMut,
    /// Frames.
    plain: BytesMut,
}

/// The next item from the peer.
#[derive(Debug)]
pub enum Incoming {
    /// A complete message.
    Message(Undecoded),
    /// The beginning of a large message.
    Large,
    /// The peer ended the stream between messages.
    End,
}

/// A received message that is not decoded yet.
#[derive(Debug)]
pub struct Undecoded {
    body: Bytes,
    /// See [`Limits::decoded`].
    limit: Option<(usize, &'static Shape)>,
}

impl Undecoded {
    /// Returns its size in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.body.len()
    }

    /// Decodes the message. Its `bytes` fields are slices of the receive buffer.
    ///
    /// # Errors
    ///
    /// See [`ReadError`]. The connection cannot be used afterwards.
    pub fn decode<M: Message + Default>(self) -> Result<M, ReadError> {
        if let Some((limit, shape)) = self.limit {
            let found = shape.decoded_bytes(&self.body);
            if found > limit {
                return Err(ReadError::TooManyElements { found, limit });
            }
        }
        M::decode(self.body).map_err(ReadError::Decode)
    }
}

impl<R> fmt::Debug for MessageReader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageReader")
            .field("encrypted", &self.opener.is_some())
            .field("buffered", &(self.raw.len() + self.plain.len()))
            .finish_non_exhaustive()
    }
}

impl<R: AsyncRead + Unpin> MessageReader<R> {
    /// Sets the limits for messages that arrive later.
    pub fn set_limits(&mut self, limits: Limits) {
        self.decoder.set_message_max(limits.message_max);
        self.decoded = limits.decoded;
    }

    /// Returns the number of bytes received so far. It grows while a large message arrives.
    #[must_use]
    pub const fn received(&self) -> u64 {
        self.received
    }

    /// Receives the next message. Returns `None` if the peer ended the stream between messages.
    ///
    /// The message's `bytes` fields are slices of the receive buffer, so copy what is kept for
    /// long.
    ///
    /// # Errors
    ///
    /// See [`ReadError`]. The connection cannot be used afterwards.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, no data is lost.
    pub async fn next<M: Message + Default>(&mut self) -> Result<Option<M>, ReadError> {
        let message = self.next_undecoded().await?;
        message.map(Undecoded::decode).transpose()
    }

    /// Like [`Self::next`], but does not decode the message, which takes long if it is large.
    ///
    /// # Errors
    ///
    /// See [`ReadError`]. The connection cannot be used afterwards.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, no data is lost.
    pub async fn next_undecoded(&mut self) -> Result<Option<Undecoded>, ReadError> {
        match self.next_or_large(usize::MAX).await? {
            Incoming::Message(message) => Ok(Some(message)),
            Incoming::Large | Incoming::End => Ok(None),
        }
    }

    /// Receives the next message, or reports that more than `max` bytes of an incomplete message
    /// have arrived. A later call continues to receive that message.
    ///
    /// # Errors
    ///
    /// See [`ReadError`]. The connection cannot be used afterwards.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, no data is lost.
    pub async fn next_or_large(&mut self, max: usize) -> Result<Incoming, ReadError> {
        loop {
            if let Some(message) = self.try_next_undecoded()? {
                return Ok(Incoming::Message(message));
            }
            if self.raw.len() + self.plain.len() + self.decoder.fragments_len() > max {
                return Ok(Incoming::Large);
            }
            if !self.fill().await? {
                return Ok(Incoming::End);
            }
        }
    }

    /// Returns the next complete message in the buffer without reading. `None` if there is none.
    ///
    /// # Errors
    ///
    /// See [`ReadError`]. The connection cannot be used afterwards.
    pub fn try_next<M: Message + Default>(&mut self) -> Result<Option<M>, ReadError> {
        let message = self.try_next_undecoded()?;
        message.map(Undecoded::decode).transpose()
    }

    fn try_next_undecoded(&mut self) -> Result<Option<Undecoded>, ReadError> {
        let body = loop {
            if let Some(body) = self
                .decoder
                .decode(&mut self.plain)
                .map_err(ReadError::Frame)?
            {
                break body;
            }
            let Some(opener) = &mut self.opener else {
                return Ok(None);
            };
            if !opener
                .open(&mut self.raw, &mut self.plain)
                .map_err(ReadError::Frame)?
            {
                return Ok(None);
            }
        };
        if body.len() > BUFFER_KEPT_MAX {
            // The message shares the memory of this buffer, so move the few bytes after it to a new
            // one.
            self.plain = BytesMut::from(&self.plain[..]);
        }
        let limit = self.decoded;
        Ok(Some(Undecoded { body, limit }))
    }

    /// Waits for a message and appends it to `batch`, together with messages that arrived with it:
    /// at most `max` (but at least 1) in total. Returns `false` if the peer ended the stream
    /// between messages.
    ///
    /// # Errors
    ///
    /// See [`ReadError`]. `batch` holds the messages that arrived before the failure.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, no data is lost.
    pub async fn next_batch<M: Message + Default>(
        &mut self,
        max: usize,
        batch: &mut Vec<M>,
    ) -> Result<bool, ReadError> {
        let Some(first) = self.next().await? else {
            return Ok(false);
        };
        batch.push(first);
        for _ in 1..max {
            let Some(message) = self.try_next()? else {
                break;
            };
            batch.push(message);
        }
        Ok(true)
    }

    /// Reads once. Returns `false` if the stream ended between messages.
    async fn fill(&mut self) -> Result<bool, ReadError> {
        let buffer = if self.opener.is_some() {
            &mut self.raw
        } else {
            &mut self.plain
        };
        buffer.reserve(self.space);
        // The read is limited to `space` even if the buffer is larger, so few bytes follow a
        // message.
        let count = self
            .stream
            .read_buf(&mut buffer.limit(self.space))
            .await
            .map_err(ReadError::Io)?;
        if count > 0 {
            self.received += count as u64;
            self.adapt(count);
            return Ok(true);
        }
        let is_between =
            self.raw.is_empty() && self.plain.is_empty() && self.decoder.fragments_len() == 0;
        if is_between {
            Ok(false)
        } else {
            Err(ReadError::Truncated)
        }
    }

    /// Increases the space of the next read if this one filled it, and shrinks it if the last reads
    /// needed little.
    fn adapt(&mut self, count: usize) {
        if count >= self.space {
            self.small_reads = 0;
            self.space = (self.space * READ_SPACE_STEP).min(READ_SPACE_MAX);
            return;
        }
        if self.space == READ_SPACE_MIN || count > self.space / READ_SPACE_STEP {
            self.small_reads = 0;
            return;
        }
        self.small_reads += 1;
        // Waits for the end of a large message that arrives slowly, so that its beginning is not
        // copied repeatedly.
        let waiting = self.raw.len() + self.plain.len();
        if self.small_reads >= SMALL_READS_MAX && waiting <= READ_SPACE_MAX {
            self.small_reads = 0;
            self.space = READ_SPACE_MIN;
            // New buffers are needed, because a cleared buffer keeps its capacity and grows back to
            // it.
            self.raw = BytesMut::from(&self.raw[..]);
            self.plain = BytesMut::from(&self.plain[..]);
        }
    }
}

#[cfg(test)]
mod tests;
