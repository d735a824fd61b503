//! The stream of a peer: a TCP connection, a Unix socket, or a channel of a relay.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use hq_protocol::relay::ChannelStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::mpsc;

/// The maximum number of channels that wait for their handshake, the same as for connections in the
/// kernel's queue.
const RELAYED_WAITING_MAX: usize = 1_024;

/// A worker that is connected through a relay.
#[derive(Debug)]
pub(crate) struct Relayed {
    pub(crate) stream: ChannelStream,
    /// The worker's address, as the relay reports it.
    pub(crate) from: IpAddr,
    /// The address of the relay, for display.
    pub(crate) relay: Box<str>,
    /// The address of the relay.
    pub(crate) relay_ip: IpAddr,
}

/// The queue of channels from relays.
pub(crate) type RelayedTx = mpsc::Sender<Relayed>;

/// Creates a queue from relays to the listener.
pub(crate) fn relayed() -> (RelayedTx, mpsc::Receiver<Relayed>) {
    mpsc::channel(RELAYED_WAITING_MAX)
}

/// The stream of a peer.
#[derive(Debug)]
pub(crate) enum PeerStream {
    Tcp(TcpStream),
    /// A connection from the owner, on this machine.
    Unix(UnixStream),
    /// A channel of a relay, with the relay's address for display.
    Relayed(ChannelStream, Box<str>),
}

impl PeerStream {
    /// Returns the address of the relay, if the peer is connected through one.
    pub(crate) fn relay(&self) -> Option<&str> {
        match self {
            Self::Tcp(_) | Self::Unix(_) => None,
            Self::Relayed(_, relay) => Some(relay),
        }
    }

    /// Returns the address of a peer that is not connected through a relay.
    pub(crate) fn direct_ip(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(stream) => Some(stream.peer_addr().ok()?.ip().to_canonical()),
            Self::Unix(_) | Self::Relayed(..) => None,
        }
    }
}

impl AsyncRead for PeerStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
            Self::Relayed(stream, _) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for PeerStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(cx, data),
            Self::Unix(stream) => Pin::new(stream).poll_write(cx, data),
            Self::Relayed(stream, _) => Pin::new(stream).poll_write(cx, data),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Self::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Self::Relayed(stream, _) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Relayed(stream, _) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
