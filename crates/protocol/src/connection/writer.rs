//! The sending half of a connection.

use std::fmt;
use std::io;

use bytes::BytesMut;
use prost::Message;
use tokio::io::{AsyncWrite, AsyncWriteExt};

use super::BUFFER_KEPT_MAX;
use crate::frame::{self, FrameError, RecordSealer};

/// How many encrypted bytes are prepared for one write. Bounds the second copy of a large message.
const WRITE_AHEAD: usize = 256 << 10;

/// The reason why a write failed.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The connection broke.
    #[error("cannot write to the connection")]
    Io(#[source] io::Error),
    /// The message is too large, or the keys are used up.
    #[error("cannot frame the message")]
    Frame(#[source] FrameError),
}

impl WriteError {
    /// Returns the size and the limit of a message that was too large to send. The connection can
    /// still be used.
    #[must_use]
    pub const fn too_large(&self) -> Option<(usize, usize)> {
        match self {
            Self::Frame(FrameError::MessageTooLarge { found, limit }) => Some((*found, *limit)),
            Self::Frame(_) | Self::Io(_) => None,
        }
    }
}

/// The sending half of a connection.
pub struct MessageWriter<W> {
    pub(super) stream: W,
    pub(super) sealer: Option<RecordSealer>,
    /// The maximum size of a message that the peer accepts.
    pub(super) message_max: usize,
    /// Frames that are not encrypted yet or, without a key, not written yet.
    pub(super) plain: BytesMut,
    /// Records that are not written yet.
    pub(super) out: BytesMut,
}

impl<W> fmt::Debug for MessageWriter<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageWriter")
            .field("encrypted", &self.sealer.is_some())
            .field("buffered", &(self.plain.len() + self.out.len()))
            .finish_non_exhaustive()
    }
}

impl<W: AsyncWrite + Unpin> MessageWriter<W> {
    /// Queues a message. [`MessageWriter::flush`] encrypts and writes it. The queue is unbounded,
    /// so the caller has to flush in time, see [`MessageWriter::buffered`].
    ///
    /// # Errors
    ///
    /// Returns [`WriteError::Frame`] if the message exceeds the peer's limit. In that case nothing
    /// is queued, and smaller messages can still be sent.
    pub fn feed<M: Message>(&mut self, message: &M) -> Result<(), WriteError> {
        frame::encode_message(message, self.message_max, &mut self.plain).map_err(WriteError::Frame)
    }

    /// Returns the number of bytes that are queued and not yet written.
    #[must_use]
    pub fn buffered(&self) -> usize {
        self.plain.len() + self.out.len()
    }

    /// Writes all queued messages.
    ///
    /// # Errors
    ///
    /// See [`WriteError`]. The connection cannot be used afterwards.
    ///
    /// # Cancel safety
    ///
    /// Unwritten messages stay queued, in order.
    pub async fn flush(&mut self) -> Result<(), WriteError> {
        while !self.plain.is_empty() || !self.out.is_empty() {
            if let Some(sealer) = &mut self.sealer {
                while !self.plain.is_empty() && self.out.len() < WRITE_AHEAD {
                    sealer
                        .seal(&mut self.plain, &mut self.out)
                        .map_err(WriteError::Frame)?;
                }
            }
            let next = if self.out.is_empty() {
                &mut self.plain
            } else {
                &mut self.out
            };
            if self.stream.write_buf(next).await.map_err(WriteError::Io)? == 0 {
                return Err(WriteError::Io(io::ErrorKind::WriteZero.into()));
            }
        }
        if self.plain.capacity() > BUFFER_KEPT_MAX {
            self.plain = BytesMut::new();
        }
        self.stream.flush().await.map_err(WriteError::Io)
    }

    /// Queues a message and writes all queued messages.
    ///
    /// # Errors
    ///
    /// See [`MessageWriter::feed`] and [`MessageWriter::flush`].
    pub async fn send<M: Message>(&mut self, message: &M) -> Result<(), WriteError> {
        self.feed(message)?;
        self.flush().await
    }

    /// Writes all queued messages and ends the stream. The peer reads `None` after the last
    /// message.
    ///
    /// # Errors
    ///
    /// See [`MessageWriter::flush`].
    pub async fn shutdown(&mut self) -> Result<(), WriteError> {
        self.flush().await?;
        self.stream.shutdown().await.map_err(WriteError::Io)
    }
}
