//! Admission of a worker to a relay. Both prove that they have the key, then the relay accepts or
//! rejects the worker.
//!
//! This keeps strangers away from the relay and from the server, and protects nothing else. The
//! worker's regular connection to the server follows, with its own handshake, and the relay cannot
//! decrypt it.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use crate::connection;
use crate::handshake::{HANDSHAKE_TIMEOUT, HandshakeError, Plane};
use crate::key::SecretKey;

/// Timeout for the relay's answer, which the relay can give immediately.
const ANSWER_TIMEOUT: Duration = HANDSHAKE_TIMEOUT;

/// A relay's answer to a worker that has the key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// All further bytes are exchanged with the server.
    Open,
    /// The relay has no room for another worker.
    Full,
    /// The relay currently has no connection to the server.
    NoServer,
}

impl Admission {
    const fn code(self) -> u8 {
        match self {
            Self::Open => 1,
            Self::Full => 2,
            Self::NoServer => 3,
        }
    }
}

/// The reason why a relay did not admit this worker.
#[derive(Debug, thiserror::Error)]
pub enum EntryError {
    /// The handshake failed.
    #[error("agree with the relay on a connection")]
    Handshake(#[source] HandshakeError),
    /// The connection broke.
    #[error("read the answer of the relay")]
    Io(#[source] io::Error),
    /// The relay did not answer.
    #[error("no answer from the relay for {} s", ANSWER_TIMEOUT.as_secs())]
    Timeout,
    /// The relay has no room for another worker.
    #[error("the relay has its maximum of workers")]
    Full,
    /// The relay currently has no connection to the server.
    #[error("the relay has no connection to the server")]
    NoServer,
    /// The relay sent an unknown answer.
    #[error("the relay gave an unknown reply ({0}); it may be of a later release")]
    Unknown(u8),
}

/// Asks a relay to forward a stream to its server. The result is equivalent to a new TCP connection
/// to the server.
///
/// # Errors
///
/// See [`EntryError`]. Fails after ten seconds at the latest.
pub async fn enter<S>(stream: S, key: Option<&SecretKey>) -> Result<S, EntryError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let connection = connection::connect(stream, Plane::Relay, key)
        .await
        .map_err(EntryError::Handshake)?;
    let (mut stream, rest) = connection.into_stream();
    let answer = match *rest {
        // The answer may arrive together with the end of the handshake.
        [answer] => answer,
        [] => tokio::time::timeout(ANSWER_TIMEOUT, stream.read_u8())
            .await
            .map_err(|_| EntryError::Timeout)?
            .map_err(EntryError::Io)?,
        // Neither the relay nor the server sends anything else before the worker does.
        _ => return Err(EntryError::Handshake(HandshakeError::Malformed)),
    };
    match answer {
        answer if answer == Admission::Open.code() => Ok(stream),
        answer if answer == Admission::Full.code() => Err(EntryError::Full),
        answer if answer == Admission::NoServer.code() => Err(EntryError::NoServer),
        answer => Err(EntryError::Unknown(answer)),
    }
}

/// Checks that a worker has the key. The worker then waits for [`answer`].
///
/// # Errors
///
/// See [`HandshakeError`]. Fails after [`HANDSHAKE_TIMEOUT`] at the latest.
pub async fn admit<S>(stream: S, key: Option<&SecretKey>) -> Result<S, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    let connection = connection::accept(stream, Plane::Relay, key).await?;
    let (stream, rest) = connection.into_stream();
    // A worker sends nothing before it receives the answer.
    let is_silent = rest.is_empty();
    is_silent.then_some(stream).ok_or(HandshakeError::Malformed)
}

/// Answers a worker that was admitted by [`admit`].
///
/// # Errors
///
/// Returns an error if the connection broke.
pub async fn answer<S: AsyncWrite + Unpin>(stream: &mut S, answer: Admission) -> io::Result<()> {
    stream.write_all(&[answer.code()]).await?;
    stream.flush().await
}
