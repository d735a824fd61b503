//! Multiplexes many channels over one connection. A state machine without I/O.
//!
//! Both sides use the same state machine. Incoming frames go to [`Mux::receive`], outgoing frames
//! come from [`Mux::next_frame`], and the ends of channels call the `poll` functions. The content
//! of channels is opaque.
//!
//! Invariants: a channel buffers at most one window of received data and [`OUTBOUND_MAX`] bytes of
//! unsent data, so an end that does not read blocks only its own channel and takes bounded memory.
//! Each channel with something to send is in `ready` exactly once, and the channels take turns.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::ReadBuf;

use super::{CHUNK_MAX, WINDOWS};
use crate::generated::hq::worker::v1 as wire;
use wire::RelayFrame;
use wire::relay_frame::{Frame, Reset};

/// How many bytes an end may write ahead of the connection. This is several frames, so that a
/// channel does not miss its turn.
const OUTBOUND_MAX: usize = 64 << 10;

/// The largest buffer that is kept when it is empty. Most channels carry only an occasional
/// heartbeat.
const BUFFER_KEPT_MAX: usize = 16 << 10;

/// Which side of the connection this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The side that opens channels.
    Relay,
    /// The side that accepts channels.
    Server,
}

/// A rule that the other side violated. The connection cannot be used afterwards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MuxError {
    /// The frame is of a kind that this release does not know.
    #[error("a frame of an unknown kind")]
    UnknownFrame,
    /// The frame belongs to a channel that was never opened.
    #[error("a frame of channel {0}, which was not opened")]
    UnknownChannel(u32),
    /// The number of a new channel is not above all others, or the wrong side opened the channel.
    #[error("channel {0} cannot be opened")]
    CannotOpen(u32),
    /// The other side sent more data than its credit allowed.
    #[error("more data on channel {0} than it was given credit for")]
    Overrun(u32),
    /// Data follows the end of a channel.
    #[error("data behind the end of channel {0}")]
    BehindEnd(u32),
    /// The other side gave more credit than any channel may have.
    #[error("more credit for channel {0} than allowed")]
    TooMuchCredit(u32),
    /// The other side repeatedly opened more channels than announced.
    #[error("more channels than allowed")]
    TooManyChannels,
}

/// The state of all channels of one connection.
#[derive(Debug)]
pub(super) struct Mux {
    side: Side,
    /// The number of bytes that this side accepts per channel before it gives credit.
    window: u32,
    /// The same for the other side.
    peer_window: u32,
    channels_max: usize,
    channels: BTreeMap<u32, Channel>,
    /// The highest channel number so far, 0 if there is none.
    last: u32,
    /// The channels with something to send, each of them once.
    ready: VecDeque<u32>,
    /// Resets to send for channels that no longer exist.
    resets: VecDeque<(u32, Reset)>,
    is_lost: bool,
}

/// The state of the direction to the other side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SendState {
    Open,
    /// Our end has no more data. Written data may be unsent.
    Ending,
    /// The other side has been notified of the end.
    Ended,
}

#[derive(Debug)]
struct Channel {
    /// The peer's address, which has to be sent first.
    open: Option<String>,
    inbound: BytesMut,
    /// How many more bytes may arrive.
    allowed: u32,
    /// The number of bytes that our end has read and that are not yet returned as credit.
    consumed: u32,
    /// Set when no more data arrives.
    is_inbound_ended: bool,
    /// Set once the channel is reset.
    reset: Option<Reset>,
    outbound: BytesMut,
    /// The number of bytes that may still be sent.
    credit: u32,
    outward: SendState,
    /// Our end is gone, but written data is still sent.
    is_dropped: bool,
    is_ready: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Channel {
    fn new(open: Option<String>, allowed: u32, credit: u32) -> Self {
        Self {
            open,
            inbound: BytesMut::new(),
            allowed,
            consumed: 0,
            is_inbound_ended: false,
            reset: None,
            outbound: BytesMut::new(),
            credit,
            outward: SendState::Open,
            is_dropped: false,
            is_ready: false,
            reader: None,
            writer: None,
        }
    }

    fn wake(&mut self) {
        for waker in [self.reader.take(), self.writer.take()]
            .into_iter()
            .flatten()
        {
            waker.wake();
        }
    }

    /// Returns whether to give credit now: not for every byte, and not if no data can arrive. A
    /// dropped end, which discards arriving data, also gives credit. Otherwise two dropped ends
    /// with unsent data would wait for each other forever.
    fn owes_credit(&self, window: u32) -> bool {
        !self.is_inbound_ended && self.consumed >= (window / 2).max(1)
    }

    fn has_frame(&self, window: u32) -> bool {
        let can_send = self.credit > 0 && !self.outbound.is_empty();
        let can_end =
            self.outbound.is_empty() && (self.outward == SendState::Ending || self.is_dropped);
        self.open.is_some() || self.owes_credit(window) || can_send || can_end
    }

    /// Returns whether neither side has anything left to send.
    fn is_over(&self) -> bool {
        let is_done = self.is_inbound_ended && self.outward == SendState::Ended;
        self.is_dropped && (is_done || self.reset.is_some())
    }

    /// Returns the next frame. A dropped channel ends with a reset unless both directions ended
    /// cleanly.
    fn next_frame(&mut self, window: u32) -> Option<Frame> {
        if let Some(peer) = self.open.take() {
            return Some(Frame::Open(peer));
        }
        if self.owes_credit(window) {
            self.allowed += self.consumed;
            return Some(Frame::Credit(std::mem::take(&mut self.consumed)));
        }
        if !self.outbound.is_empty() {
            return self.next_data().map(Frame::Data);
        }
        if self.outward == SendState::Ending {
            self.outward = SendState::Ended;
            return Some(Frame::End(true));
        }
        if self.is_dropped && !self.is_over() {
            self.reset = Some(Reset::Dropped);
            return Some(Frame::Reset(Reset::Dropped.into()));
        }
        None
    }

    fn next_data(&mut self) -> Option<Bytes> {
        let credit = usize::try_from(self.credit).unwrap_or(usize::MAX);
        let count = self.outbound.len().min(credit).min(CHUNK_MAX);
        if count == 0 {
            return None;
        }
        self.credit -= u32::try_from(count).unwrap_or(self.credit);
        let data = self.outbound.split_to(count).freeze();
        if self.outbound.is_empty() {
            // The outgoing data keeps the memory alive until it is sent.
            self.outbound = BytesMut::new();
        }
        if let Some(writer) = self.writer.take() {
            writer.wake();
        }
        Some(data)
    }

    /// The other side reset the channel. Data that was received before can still be read.
    fn on_reset(&mut self, reset: Reset) {
        self.reset = Some(reset);
        self.open = None;
        self.outbound = BytesMut::new();
        self.wake();
    }
}

impl Mux {
    pub(super) fn new(side: Side, window: u32, peer_window: u32, channels_max: usize) -> Self {
        Self {
            side,
            window,
            peer_window,
            channels_max,
            channels: BTreeMap::new(),
            last: 0,
            ready: VecDeque::new(),
            resets: VecDeque::new(),
            is_lost: false,
        }
    }

    /// Returns the number of channels that are open or whose last frames are unsent.
    pub(super) fn len(&self) -> usize {
        self.channels.len()
    }

    /// Opens a channel for a peer. Returns `None` if the limit is reached, no number is left, or
    /// the connection is lost.
    pub(super) fn open(&mut self, peer: &str) -> Option<u32> {
        if self.is_lost || self.side != Side::Relay || self.channels.len() >= self.channels_max {
            return None;
        }
        let id = self.last.checked_add(1)?;
        self.last = id;
        let channel = Channel::new(Some(peer.to_owned()), self.window, self.peer_window);
        self.channels.insert(id, channel);
        self.note_ready(id);
        Some(id)
    }

    /// Handles a frame. Returns the number and the peer of a channel that the frame opens.
    pub(super) fn receive(&mut self, frame: RelayFrame) -> Result<Option<(u32, String)>, MuxError> {
        let id = frame.channel;
        match frame.frame.ok_or(MuxError::UnknownFrame)? {
            Frame::Open(peer) => self.on_open(id, peer),
            frame @ (Frame::Data(_) | Frame::Credit(_) | Frame::End(_) | Frame::Reset(_)) => {
                self.on_frame(id, frame).map(|()| None)
            }
        }
    }

    fn on_open(&mut self, id: u32, peer: String) -> Result<Option<(u32, String)>, MuxError> {
        if self.side != Side::Server || id <= self.last {
            return Err(MuxError::CannotOpen(id));
        }
        self.last = id;
        if self.channels.len() < self.channels_max {
            let channel = Channel::new(None, self.window, self.peer_window);
            self.channels.insert(id, channel);
            return Ok(Some((id, peer)));
        }
        // One side counts a closing channel longer than the other side, so one channel too many is
        // not a violation. A peer that does not read the answers must not exhaust the memory.
        if self.resets.len() >= self.channels_max {
            return Err(MuxError::TooManyChannels);
        }
        self.resets.push_back((id, Reset::Dropped));
        Ok(None)
    }

    fn on_frame(&mut self, id: u32, frame: Frame) -> Result<(), MuxError> {
        if id == 0 || id > self.last {
            return Err(MuxError::UnknownChannel(id));
        }
        // The other side sent the frame before it knew that the channel was closed.
        let Some(channel) = self.channels.get_mut(&id) else {
            return Ok(());
        };
        match frame {
            Frame::Data(data) => Self::on_data(channel, id, &data)?,
            Frame::Credit(more) => {
                channel.credit = channel
                    .credit
                    .checked_add(more)
                    .filter(|credit| credit <= WINDOWS.end())
                    .ok_or(MuxError::TooMuchCredit(id))?;
            }
            Frame::End(_) => {
                channel.is_inbound_ended = true;
                if let Some(reader) = channel.reader.take() {
                    reader.wake();
                }
            }
            Frame::Reset(reset) => {
                // A later release may send an unknown reason.
                channel.on_reset(Reset::try_from(reset).unwrap_or(Reset::Dropped));
            }
            Frame::Open(_) => return Err(MuxError::CannotOpen(id)),
        }
        if channel.is_over() {
            self.channels.remove(&id);
        } else {
            self.note_ready(id);
        }
        Ok(())
    }

    fn on_data(channel: &mut Channel, id: u32, data: &[u8]) -> Result<(), MuxError> {
        if channel.is_inbound_ended || channel.reset.is_some() {
            return Err(MuxError::BehindEnd(id));
        }
        let count = u32::try_from(data.len()).unwrap_or(u32::MAX);
        channel.allowed = channel
            .allowed
            .checked_sub(count)
            .ok_or(MuxError::Overrun(id))?;
        if channel.is_dropped {
            channel.consumed += count;
            return Ok(());
        }
        channel.inbound.extend_from_slice(data);
        if let Some(reader) = channel.reader.take() {
            reader.wake();
        }
        Ok(())
    }

    fn note_ready(&mut self, id: u32) {
        let window = self.window;
        if let Some(channel) = self.channels.get_mut(&id)
            && !channel.is_ready
            && channel.reset.is_none()
            && channel.has_frame(window)
        {
            channel.is_ready = true;
            self.ready.push_back(id);
        }
    }

    /// Returns the next frame to send, or `None` if there is none.
    pub(super) fn next_frame(&mut self) -> Option<RelayFrame> {
        if let Some((channel, reset)) = self.resets.pop_front() {
            return Some(RelayFrame {
                channel,
                frame: Some(Frame::Reset(reset.into())),
            });
        }
        while let Some(id) = self.ready.pop_front() {
            let Some(channel) = self.channels.get_mut(&id) else {
                continue;
            };
            channel.is_ready = false;
            // The other side reset the channel after it became ready.
            if channel.reset.is_some() {
                continue;
            }
            let frame = channel.next_frame(self.window);
            if channel.is_over() {
                self.channels.remove(&id);
            } else {
                // The channel moves to the end of the queue, because channels take turns.
                self.note_ready(id);
            }
            if frame.is_some() {
                return Some(RelayFrame { channel: id, frame });
            }
        }
        None
    }

    /// Reads received data of a channel. An empty result means that the other end has no more data.
    pub(super) fn poll_read(
        &mut self,
        id: u32,
        cx: &Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let is_lost = self.is_lost;
        let Some(channel) = self.channels.get_mut(&id) else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
        };
        if !channel.inbound.is_empty() {
            let count = channel.inbound.len().min(buffer.remaining());
            buffer.put_slice(&channel.inbound[..count]);
            channel.inbound.advance(count);
            channel.consumed += u32::try_from(count).unwrap_or(u32::MAX);
            if channel.inbound.is_empty() && channel.inbound.capacity() > BUFFER_KEPT_MAX {
                channel.inbound = BytesMut::new();
            }
            self.note_ready(id);
            return Poll::Ready(Ok(()));
        }
        if channel.is_inbound_ended {
            return Poll::Ready(Ok(()));
        }
        match channel.reset {
            Some(Reset::ByPeer) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
            Some(Reset::Dropped) => Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into())),
            None if is_lost => Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into())),
            None => {
                channel.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Accepts as much data as there is room for.
    pub(super) fn poll_write(
        &mut self,
        id: u32,
        cx: &Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let is_lost = self.is_lost;
        let Some(channel) = self.channels.get_mut(&id) else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        if is_lost || channel.reset.is_some() || channel.outward != SendState::Open {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let count = (OUTBOUND_MAX - channel.outbound.len().min(OUTBOUND_MAX)).min(data.len());
        if count == 0 && !data.is_empty() {
            channel.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        channel.outbound.extend_from_slice(&data[..count]);
        self.note_ready(id);
        Poll::Ready(Ok(count))
    }

    /// Our end has no more data.
    pub(super) fn end(&mut self, id: u32) {
        if let Some(channel) = self.channels.get_mut(&id)
            && channel.outward == SendState::Open
        {
            channel.outward = SendState::Ending;
            self.note_ready(id);
        }
    }

    /// Our end is gone. Written data is still sent.
    pub(super) fn drop_end(&mut self, id: u32) {
        let is_lost = self.is_lost;
        let Some(channel) = self.channels.get_mut(&id) else {
            return;
        };
        channel.is_dropped = true;
        let unread = std::mem::take(&mut channel.inbound).len();
        channel.consumed += u32::try_from(unread).unwrap_or(u32::MAX);
        if is_lost || channel.is_over() {
            self.channels.remove(&id);
        } else {
            self.note_ready(id);
        }
    }

    /// Our end is gone, and written data is discarded.
    pub(super) fn abort(&mut self, id: u32, reset: Reset) {
        let Some(channel) = self.channels.remove(&id) else {
            return;
        };
        // No reset is needed if the other side never learned of the channel or has reset it.
        if channel.open.is_none() && channel.reset.is_none() && !self.is_lost {
            self.resets.push_back((id, reset));
        }
    }

    /// The connection is lost, so all channels break.
    pub(super) fn lose(&mut self) {
        self.is_lost = true;
        self.resets.clear();
        self.ready.clear();
        self.channels.retain(|_, channel| {
            channel.outbound = BytesMut::new();
            channel.wake();
            !channel.is_dropped
        });
    }
}

#[cfg(test)]
mod tests;
