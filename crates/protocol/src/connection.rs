//! Typed, framed and (with a key) encrypted connections over any byte stream.
//!
//! [`connect`] and [`accept`] run the handshake; [`Connection::split`] yields a [`MessageReader`]
//! and a [`MessageWriter`] that can live in different tasks. Messages that are fed between two
//! flushes share records and writes. This file does not know what messages mean. See
//! `docs/protocol.md`.
//!
//! An end of the stream between two messages is not authenticated: an attacker on the path can cut
//! a connection there. Peers that must distinguish a cut from a goodbye send a goodbye message.

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

/// Buffer space for a read while little arrives: a server has thousands of connections that only
/// send heartbeats.
const READ_SPACE_MIN: usize = 2 << 10;

/// Buffer space for a read while much arrives: a whole record.
const READ_SPACE_MAX: usize = RECORD_HEADER_LEN + RECORD_MAX;

/// Factor between two sizes: three full reads lead from the smallest to the largest.
const READ_SPACE_STEP: usize = 4;

/// Consecutive reads that left most of their space empty, after which it shrinks again. One small
/// message between large ones does not count.
const SMALL_READS_MAX: u32 = 8;

/// A buffer that grew beyond this for a large message is freed afterwards.
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
    /// The content is no message of the expected type.
    #[error("the peer sent a malformed message")]
    Decode(#[source] prost::DecodeError),
    /// The message would take too much memory.
    #[error(
        "the peer sent a message that takes {found} bytes of memory; at most {limit} are allowed"
    )]
    TooManyElements {
        /// Bytes of memory.
        found: usize,
        /// Most bytes of memory that are allowed.
        limit: usize,
    },
}

/// A connection whose peer is authenticated (with a key) or at least speaks our protocol (without).
pub struct Connection<S> {
    stream: S,
    session: Session,
    plane: Plane,
    /// Bytes that arrived behind the handshake.
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

/// Opens a connection as the dialing side. Without a key it is unencrypted; a peer with a key
/// rejects it.
///
/// # Errors
///
/// See [`HandshakeError`]; at the latest after [`HANDSHAKE_TIMEOUT`].
///
/// # Cancel safety
///
/// Dropping the future drops the stream.
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

/// Opens a connection as the listening side. Does no work for the peer before it returns.
///
/// # Errors
///
/// See [`HandshakeError`]; at the latest after [`HANDSHAKE_TIMEOUT`]. The peer gets a short code
/// where that makes sense.
///
/// # Cancel safety
///
/// Dropping the future drops the stream.
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
    // Bounds the memory that a stranger can occupy: no read may start with more than one frame
    // unread.
    let mut input = BytesMut::with_capacity(2 * HANDSHAKE_FRAME_MAX);
    loop {
        let result = machine.receive(&mut input);
        let sent = send_output(&mut stream, &machine.take_output()).await;
        // The first failure explains the second.
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
        // A peer that rejected us has closed its side: its message matters more than the write
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
    /// Replaces the limits of the plane.
    pub const fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
    }

    /// Whether messages are encrypted.
    #[must_use]
    pub const fn is_encrypted(&self) -> bool {
        self.session.keys.is_some()
    }

    /// Protocol version both sides agreed on.
    #[must_use]
    pub const fn version(&self) -> u32 {
        self.session.version
    }

    /// Role of the connection.
    #[must_use]
    pub const fn plane(&self) -> Plane {
        self.plane
    }

    /// The proven role of the connecting side. All holders of a key other than the owner's count as
    /// one.
    #[must_use]
    pub const fn holder(&self) -> Holder {
        if self.session.is_owner {
            Holder::Owner
        } else {
            Holder::Other(0)
        }
    }

    /// The underlying stream, for its addresses and options; reading or writing it breaks the
    /// connection.
    #[must_use]
    pub const fn stream(&self) -> &S {
        &self.stream
    }

    /// The underlying stream, without the keys of this connection, and the bytes that arrived after
    /// the handshake.
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
        // Without encryption the arriving bytes are decoded directly.
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
    /// Takes the two directions apart.
    pub fn split(self) -> (MessageReader<ReadHalf<S>>, MessageWriter<WriteHalf<S>>) {
        self.split_with(tokio::io::split)
    }
}

impl Connection<TcpStream> {
    /// Like [`Connection::split`], without a lock between the two halves; the stream is shut down
    /// for writing when the writer is dropped.
    pub fn split_tcp(self) -> (MessageReader<OwnedReadHalf>, MessageWriter<OwnedWriteHalf>) {
        self.split_with(TcpStream::into_split)
    }
}

/// Receiving half.
pub struct MessageReader<R> {
    stream: R,
    opener: Option<RecordOpener>,
    decoder: FrameDecoder,
    decoded: Option<(usize, &'static Shape)>,
    /// Bytes that arrived so far.
    received: u64,
    /// Offered to the next read.
    space: usize,
    /// Number of consecutive reads that left most of their space empty.
    small_reads: u32,
    /// Encrypted bytes; unused without a key.
    raw: BytesMut,
    /// Frames.
    plain: BytesMut,
}

/// Next item to arrive.
#[derive(Debug)]
pub enum Incoming {
    /// A whole message.
    Message(Undecoded),
    /// The beginning of a large message.
    Large,
    /// The peer ended the stream between messages.
    End,
}

/// A message as it arrived.
#[derive(Debug)]
pub struct Undecoded {
    body: Bytes,
    /// See [`Limits::decoded`].
    limit: Option<(usize, &'static Shape)>,
}

impl Undecoded {
    /// Its bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.body.len()
    }

    /// The message; its `bytes` fields are slices of the receive buffer.
    ///
    /// # Errors
    ///
    /// See [`ReadError`]; the connection is of no further use.
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
    /// Sets the limits for messages of the peer from now on.
    pub fn set_limits(&mut self, limits: Limits) {
        self.decoder.set_message_max(limits.message_max);
        self.decoded = limits.decoded;
    }

    /// Bytes received so far: grows while a large message arrives.
    #[must_use]
    pub const fn received(&self) -> u64 {
        self.received
    }

    /// Next message; `None` if the peer ended the stream between messages.
    ///
    /// Its `bytes` fields are slices of the receive buffer: copy what is kept for long.
    ///
    /// # Errors
    ///
    /// See [`ReadError`]; the connection is of no further use.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if the future is dropped.
    pub async fn next<M: Message + Default>(&mut self) -> Result<Option<M>, ReadError> {
        let message = self.next_undecoded().await?;
        message.map(Undecoded::decode).transpose()
    }

    /// Like [`Self::next`], without decoding, which takes long for a large message.
    ///
    /// # Errors
    ///
    /// See [`ReadError`]; the connection is of no further use.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn next_undecoded(&mut self) -> Result<Option<Undecoded>, ReadError> {
        match self.next_or_large(usize::MAX).await? {
            Incoming::Message(message) => Ok(Some(message)),
            Incoming::Large | Incoming::End => Ok(None),
        }
    }

    /// Next message, or the fact that more than `max` bytes of an incomplete message have arrived;
    /// a later call continues.
    ///
    /// # Errors
    ///
    /// See [`ReadError`]; the connection is of no further use.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
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

    /// Next complete message in the buffer, without waiting and reading; `None` if there is none.
    ///
    /// # Errors
    ///
    /// See [`ReadError`]; the connection is of no further use.
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
            // The message shares this buffer's memory; moves the few bytes after it out.
            self.plain = BytesMut::from(&self.plain[..]);
        }
        let limit = self.decoded;
        Ok(Some(Undecoded { body, limit }))
    }

    /// Waits for a message and appends it and the messages that arrived with it to `batch`, at most
    /// `max` (and at least 1) in total. `false` if the peer ended the stream between messages.
    ///
    /// # Errors
    ///
    /// See [`ReadError`]; `batch` holds the messages before the failure.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
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

    /// Reads once; `false` at an orderly end.
    async fn fill(&mut self) -> Result<bool, ReadError> {
        let buffer = if self.opener.is_some() {
            &mut self.raw
        } else {
            &mut self.plain
        };
        buffer.reserve(self.space);
        // A larger buffer is not filled in one read, so few bytes follow a message.
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

    /// Increases the space of the next read if this one filled it, and shrinks it if the last ones
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
        // The start of a slow large message is not copied repeatedly: its end comes first.
        let waiting = self.raw.len() + self.plain.len();
        if self.small_reads >= SMALL_READS_MAX && waiting <= READ_SPACE_MAX {
            self.small_reads = 0;
            self.space = READ_SPACE_MIN;
            // Copied, because a cleared buffer remembers its capacity and grows back to it.
            self.raw = BytesMut::from(&self.raw[..]);
            self.plain = BytesMut::from(&self.plain[..]);
        }
    }
}

#[cfg(test)]
mod tests;
