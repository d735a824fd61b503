//! Serves one worker behind the relay: admits it, then carries its connection until either end
//! closes.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hq_protocol::admission::{Holder, Permit};
use hq_protocol::relay::{self, Admission, ChannelStream};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::state::State;
use crate::server_link::set_options_at_relay;

/// The number of bytes copied at a time.
const COPY_BYTES: usize = 8 << 10;

/// How long a worker has to accept the one byte of the answer. After that, it counts as gone.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Which end of a connection failed.
enum Failed {
    /// The worker closed the connection without sending anything, as a liveness probe does.
    Silent,
    Worker(io::Error),
    Server,
}

/// Performs the handshake with a new connection. Returns `None` if the peer does not have the key.
pub(super) async fn admit(stream: TcpStream, state: &State) -> Option<TcpStream> {
    set_options_at_relay(&stream).ok()?;
    let key = state.key();
    match relay::admit(stream, key.as_ref()).await {
        Ok(stream) => Some(stream),
        Err(error) => {
            tracing::debug!("a connection to the relay: {error}");
            None
        }
    }
}

/// Carries the connection of an admitted worker.
pub(super) async fn carry(
    mut stream: TcpStream,
    peer: SocketAddr,
    state: Arc<State>,
    permit: Permit,
) {
    let has_room = permit.prove(Holder::Other(0)).is_ok();
    let (answer, channel) = match state.link() {
        None => (Admission::NoServer, None),
        Some(link) => match has_room.then(|| link.open(&peer.to_string())).flatten() {
            None => (Admission::Full, None),
            Some(channel) => (Admission::Open, Some(channel)),
        },
    };
    if answer == Admission::Full {
        state.warn_full();
    }
    let told = timeout(ANSWER_TIMEOUT, relay::answer(&mut stream, answer)).await;
    let (Some(channel), Ok(Ok(()))) = (channel, told) else {
        return;
    };
    let _carried = state.count();
    tracing::debug!(%peer, "a worker comes through this relay");
    let how = exchange(&mut stream, channel).await;
    tracing::debug!(%peer, how, "a worker has gone from this relay");
}

/// Copies bytes both ways until both directions have ended or one side fails.
async fn exchange(stream: &mut TcpStream, channel: ChannelStream) -> &'static str {
    let aborter = channel.aborter();
    let (mut from_worker, mut to_worker) = stream.split();
    let (mut from_server, mut to_server) = tokio::io::split(channel);
    let up = async {
        match copy(&mut from_worker, &mut to_server).await {
            // The channel is closed here at once, because a busy server would be slow to close it,
            // and it is needed for real workers.
            Ok(0) => Err(Failed::Silent),
            Ok(_) => Ok(()),
            Err(CopyError::Read(error)) => Err(Failed::Worker(error)),
            Err(CopyError::Write(_)) => Err(Failed::Server),
        }
    };
    let down = async {
        copy(&mut from_server, &mut to_worker)
            .await
            .map_err(|error| match error {
                CopyError::Read(_) => Failed::Server,
                CopyError::Write(error) => Failed::Worker(error),
            })
    };
    match tokio::try_join!(up, down) {
        Ok(_) => "both ends were done",
        Err(Failed::Silent) => "it said nothing",
        Err(Failed::Server) => "the server or the connection to it was lost",
        // The worker's kernel sends a reset if the process is killed while data is unread.
        Err(Failed::Worker(error)) if error.kind() == io::ErrorKind::ConnectionReset => {
            aborter.peer_reset();
            "its connection was reset"
        }
        Err(Failed::Worker(_)) => {
            aborter.peer_lost();
            "its connection broke"
        }
    }
}

enum CopyError {
    Read(io::Error),
    Write(io::Error),
}

/// Copies until the end of `from`, then shuts `to` down. Returns the number of bytes. Reads no more
/// than it can write.
async fn copy<R, W>(from: &mut R, to: &mut W) -> Result<u64, CopyError>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut buffer = vec![0; COPY_BYTES];
    let mut total = 0;
    loop {
        let count = from.read(&mut buffer).await.map_err(CopyError::Read)?;
        if count == 0 {
            to.shutdown().await.map_err(CopyError::Write)?;
            return Ok(total);
        }
        total += count as u64;
        to.write_all(&buffer[..count])
            .await
            .map_err(CopyError::Write)?;
    }
}
