//! Typed, framed and (with a key) encrypted connections over any byte stream.

use std::marker::PhantomData;

use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use crate::handshake::{HandshakeError, Plane};
use crate::key::SecretKey;

/// Limits of a connection after the handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Largest message that is accepted from the peer, in bytes.
    pub message_max: usize,
}

/// Why reading ended.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// See the variants to come.
    #[error("cannot read from the connection")]
    Io(#[source] std::io::Error),
}

/// Why writing failed.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// See the variants to come.
    #[error("cannot write to the connection")]
    Io(#[source] std::io::Error),
}

/// An authenticated connection.
#[derive(Debug)]
pub struct Connection<S> {
    stream: S,
}

/// Opens a connection as the side that dialed.
///
/// # Errors
///
/// See [`HandshakeError`].
pub async fn connect<S>(
    stream: S,
    plane: Plane,
    key: Option<&SecretKey>,
) -> Result<Connection<S>, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let _ = (stream, plane, key);
    Err(HandshakeError::NotOurProtocol)
}

/// Opens a connection as the side that listens.
///
/// # Errors
///
/// See [`HandshakeError`].
pub async fn accept<S>(
    stream: S,
    plane: Plane,
    key: Option<&SecretKey>,
) -> Result<Connection<S>, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let _ = (stream, plane, key);
    Err(HandshakeError::NotOurProtocol)
}

impl<S> Connection<S> {
    /// Sets what is accepted from the peer from now on.
    pub fn set_limits(&mut self, limits: Limits) {
        let _ = limits;
    }

    /// Whether messages are encrypted.
    #[must_use]
    pub fn is_encrypted(&self) -> bool {
        false
    }

    /// Protocol version both sides agreed on.
    #[must_use]
    pub fn version(&self) -> u32 {
        1
    }
}

impl<S: AsyncRead + AsyncWrite> Connection<S> {
    /// Takes the two directions apart.
    pub fn split(self) -> (MessageReader<ReadHalf<S>>, MessageWriter<WriteHalf<S>>) {
        let (_r, _w) = tokio::io::split(self.stream);
        (
            MessageReader {
                _stream: PhantomData,
            },
            MessageWriter {
                _stream: PhantomData,
            },
        )
    }
}

impl Connection<TcpStream> {
    /// As [`Connection::split`], without a lock between the two halves.
    pub fn split_tcp(self) -> (MessageReader<OwnedReadHalf>, MessageWriter<OwnedWriteHalf>) {
        (
            MessageReader {
                _stream: PhantomData,
            },
            MessageWriter {
                _stream: PhantomData,
            },
        )
    }
}

/// Receiving half.
#[derive(Debug)]
pub struct MessageReader<R> {
    _stream: PhantomData<R>,
}

impl<R: AsyncRead + Unpin> MessageReader<R> {
    /// Sets what is accepted from the peer from now on.
    pub fn set_limits(&mut self, limits: Limits) {
        let _ = limits;
    }

    /// Next message; `None` if the peer ended the stream between messages.
    ///
    /// # Errors
    ///
    /// See [`ReadError`]; the connection is of no further use.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if the future is dropped.
    pub async fn next<M: Message + Default>(&mut self) -> Result<Option<M>, ReadError> {
        Ok(None)
    }

    /// Next message that has arrived completely, without waiting.
    ///
    /// # Errors
    ///
    /// See [`ReadError`].
    pub fn try_next<M: Message + Default>(&mut self) -> Result<Option<M>, ReadError> {
        Ok(None)
    }
}

/// Sending half.
#[derive(Debug)]
pub struct MessageWriter<W> {
    _stream: PhantomData<W>,
}

impl<W: AsyncWrite + Unpin> MessageWriter<W> {
    /// Queues a message; nothing is written before [`MessageWriter::flush`].
    ///
    /// # Errors
    ///
    /// [`WriteError`] if the message is too large.
    pub fn feed<M: Message>(&mut self, message: &M) -> Result<(), WriteError> {
        let _ = message;
        Ok(())
    }

    /// Bytes queued and not yet written.
    #[must_use]
    pub fn buffered(&self) -> usize {
        0
    }

    /// Writes everything queued.
    ///
    /// # Errors
    ///
    /// [`WriteError::Io`]; the connection is of no further use.
    ///
    /// # Cancel safety
    ///
    /// What is not written stays queued.
    pub async fn flush(&mut self) -> Result<(), WriteError> {
        Ok(())
    }

    /// Queues a message and writes everything queued.
    ///
    /// # Errors
    ///
    /// As [`MessageWriter::feed`] and [`MessageWriter::flush`].
    pub async fn send<M: Message>(&mut self, message: &M) -> Result<(), WriteError> {
        self.feed(message)?;
        self.flush().await
    }

    /// Writes everything queued and ends the stream.
    ///
    /// # Errors
    ///
    /// As [`MessageWriter::flush`].
    pub async fn shutdown(&mut self) -> Result<(), WriteError> {
        Ok(())
    }
}
