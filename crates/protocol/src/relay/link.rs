//! The connection between a relay and its server, and the streams on this connection.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use super::mux::{Mux, MuxError, Side};
use super::{CHUNK_MAX, Terms};
use crate::connection::{MessageReader, MessageWriter, ReadError, WriteError};
use crate::generated::hq::worker::v1 as wire;
use crate::limits::Limits;
use wire::RelayFrame;
use wire::relay_frame::Reset;

/// The maximum number of frames that are handled in one turn.
const FRAMES_PER_TURN: usize = 64;

/// The maximum number of bytes per write: many frames, but few enough that every channel soon has
/// its turn.
const FLUSH_BYTES: usize = 256 << 10;

/// How long a side may read nothing before it counts as suspended or dead. Workers then look for
/// another route.
const STALL_MAX: Duration = Duration::from_secs(30);

/// The maximum size of a frame in bytes: the data of one turn, or the address of a peer, and the
/// channel number.
const FRAME_MAX: usize = CHUNK_MAX + 1024;

/// The reason why a link has ended.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The other side ended it.
    #[error("the other side closed the connection")]
    Closed,
    /// Reading failed.
    #[error("read from the connection")]
    Read(#[source] ReadError),
    /// Writing failed.
    #[error("write to the connection")]
    Write(#[source] WriteError),
    /// The other side violated a rule.
    #[error("the other side broke a rule")]
    Rule(#[source] MuxError),
    /// The other side reads nothing.
    #[error("the other side has read nothing for {} s", STALL_MAX.as_secs())]
    Stalled,
}

struct Shared {
    mux: Mutex<Mux>,
    /// Notified when there may be frames to send.
    work: Notify,
    /// Whether all frames have left this process.
    is_flushed: AtomicBool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Mux> {
        // Each call leaves the state consistent, so a poisoned lock is usable.
        self.mux.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One side of a link. Clones refer to the same one.
#[derive(Clone)]
pub struct RelayLink(Arc<Shared>);

impl fmt::Debug for RelayLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RelayLink")
            .field("channels", &self.len())
            .finish_non_exhaustive()
    }
}

impl RelayLink {
    /// Creates a link without channels.
    #[must_use]
    pub fn new(side: Side, ours: Terms, theirs: Terms) -> Self {
        let channels_max = ours.channels_max.min(theirs.channels_max);
        Self(Arc::new(Shared {
            mux: Mutex::new(Mux::new(side, ours.window, theirs.window, channels_max)),
            work: Notify::new(),
            is_flushed: AtomicBool::new(true),
        }))
    }

    /// Returns the number of channels that are open or whose last frames are unsent.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.lock().len()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether no channel is open and all frames have left this process.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let is_empty = self.0.lock().len() == 0;
        is_empty && self.0.is_flushed.load(Ordering::Relaxed)
    }

    /// Opens a channel for a peer that the relay has admitted. Returns `None` if the limit is
    /// reached or the link has ended.
    #[must_use]
    pub fn open(&self, peer: &str) -> Option<ChannelStream> {
        let id = self.0.lock().open(peer)?;
        self.0.work.notify_one();
        Some(self.stream(id))
    }

    fn stream(&self, id: u32) -> ChannelStream {
        ChannelStream {
            shared: Arc::clone(&self.0),
            id,
        }
    }

    /// Transfers frames until the link ends. Then all channels break. `opened` receives each
    /// channel that the other side opens, with the address of its peer, and must not block.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, all channels break.
    pub async fn run<R, W>(
        &self,
        mut reader: MessageReader<R>,
        mut writer: MessageWriter<W>,
        opened: impl FnMut(ChannelStream, String),
    ) -> LinkError
    where
        R: AsyncRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let _lost = LoseOnDrop(&self.0);
        reader.set_limits(Limits {
            message_max: FRAME_MAX,
            send_max: FRAME_MAX,
            decoded: None,
        });
        tokio::select! {
            error = self.receive(&mut reader, opened) => error,
            error = self.send(&mut writer) => error,
        }
    }

    async fn receive<R: AsyncRead + Unpin>(
        &self,
        reader: &mut MessageReader<R>,
        mut opened: impl FnMut(ChannelStream, String),
    ) -> LinkError {
        let mut frames: Vec<RelayFrame> = Vec::new();
        loop {
            match reader.next_batch(FRAMES_PER_TURN, &mut frames).await {
                Ok(true) => {}
                Ok(false) => return LinkError::Closed,
                Err(error) => return LinkError::Read(error),
            }
            let mut new = Vec::new();
            let result = {
                let mut mux = self.0.lock();
                frames.drain(..).try_for_each(|frame| {
                    new.extend(mux.receive(frame)?);
                    Ok(())
                })
            };
            self.0.work.notify_one();
            for (id, peer) in new {
                opened(self.stream(id), peer);
            }
            if let Err(error) = result {
                return LinkError::Rule(error);
            }
        }
    }

    async fn send<W: AsyncWrite + Unpin>(&self, writer: &mut MessageWriter<W>) -> LinkError {
        loop {
            let fed = self.feed(writer);
            if let Err(error) = fed {
                return LinkError::Write(error);
            }
            if writer.buffered() == 0 {
                self.0.is_flushed.store(true, Ordering::Relaxed);
                self.0.work.notified().await;
                continue;
            }
            match tokio::time::timeout(STALL_MAX, writer.flush()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return LinkError::Write(error),
                Err(_) => return LinkError::Stalled,
            }
        }
    }

    /// Queues pending frames, up to [`FLUSH_BYTES`].
    fn feed<W: AsyncWrite + Unpin>(&self, writer: &mut MessageWriter<W>) -> Result<(), WriteError> {
        let mut mux = self.0.lock();
        // Set under the lock, so that the end of a channel is either sent or in this batch.
        self.0.is_flushed.store(false, Ordering::Relaxed);
        while writer.buffered() < FLUSH_BYTES
            && let Some(frame) = mux.next_frame()
        {
            writer.feed(&frame)?;
        }
        Ok(())
    }
}

struct LoseOnDrop<'a>(&'a Shared);

impl Drop for LoseOnDrop<'_> {
    fn drop(&mut self) {
        self.0.lock().lose();
    }
}

/// One end of a channel, which can be used like any stream.
///
/// Reading fails with `ConnectionReset` if the peer at the other end broke its connection with
/// unread data, and with `ConnectionAborted` if the link broke or the other side dropped the
/// channel. Written data is sent even after the stream is dropped.
pub struct ChannelStream {
    shared: Arc<Shared>,
    id: u32,
}

impl fmt::Debug for ChannelStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ChannelStream").field(&self.id).finish()
    }
}

impl ChannelStream {
    /// Returns a handle that ends the channel while its halves are in use elsewhere.
    #[must_use]
    pub fn aborter(&self) -> Aborter {
        Aborter {
            shared: Arc::clone(&self.shared),
            id: self.id,
        }
    }
}

/// A handle that ends a channel.
pub struct Aborter {
    shared: Arc<Shared>,
    id: u32,
}

impl fmt::Debug for Aborter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Aborter").field(&self.id).finish()
    }
}

impl Aborter {
    /// The peer broke its connection: notifies the other side and drops unsent data.
    pub fn peer_reset(&self) {
        self.abort(Reset::ByPeer);
    }

    /// The route to the peer broke. The peer may be alive and reconnect.
    pub fn peer_lost(&self) {
        self.abort(Reset::Dropped);
    }

    fn abort(&self, reset: Reset) {
        self.shared.lock().abort(self.id, reset);
        self.shared.work.notify_one();
    }
}

impl AsyncRead for ChannelStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = self.shared.lock().poll_read(self.id, cx, buffer);
        if read.is_ready() {
            // Reading may have made credit due.
            self.shared.work.notify_one();
        }
        read
    }
}

impl AsyncWrite for ChannelStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = self.shared.lock().poll_write(self.id, cx, data);
        if written.is_ready() {
            self.shared.work.notify_one();
        }
        written
    }

    /// Written data counts as sent, like data in the buffer of a socket.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.shared.lock().end(self.id);
        self.shared.work.notify_one();
        Poll::Ready(Ok(()))
    }
}

impl Drop for ChannelStream {
    fn drop(&mut self) {
        self.shared.lock().drop_end(self.id);
        self.shared.work.notify_one();
    }
}
