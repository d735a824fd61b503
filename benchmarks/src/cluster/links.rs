//! Slow links: data arrives later and in order. "Lost" data arrives after TCP has sent it again.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::figures::unit;

/// Any byte stream.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// The stream between a worker and its server.
pub(super) type Wire = Box<dyn Stream>;

/// The size of one piece, and the maximum number of pieces in transit per direction.
const PIECE_LEN: usize = 8 << 10;
const PIECES_MAX: usize = 256;
/// Linux's minimum retransmission time, which is added to a round trip.
const RETRANSMIT_MIN: Duration = Duration::from_millis(200);

/// How slow the link between a worker and its server is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SlowLink {
    /// The one-way delay.
    pub(crate) delay: Duration,
    /// The fraction of the pieces that are lost at first, from 0 to 1.
    pub(crate) loss: f64,
}

impl SlowLink {
    /// Connects to a server behind the link.
    pub(super) async fn connect(self, server: SocketAddr) -> io::Result<Wire> {
        if self.delay.is_zero() && self.loss <= 0.0 {
            let stream = TcpStream::connect(server).await?;
            stream.set_nodelay(true)?;
            return Ok(Box::new(stream));
        }
        tokio::time::sleep(self.delay * 2).await;
        let stream = TcpStream::connect(server).await?;
        stream.set_nodelay(true)?;
        let seed = u64::from(stream.local_addr()?.port()) ^ u64::from(std::process::id());
        let (near, far) = tokio::io::duplex(PIECE_LEN * 8);
        let (from_server, to_server) = stream.into_split();
        let (from_worker, to_worker) = tokio::io::split(far);
        tokio::spawn(async move {
            tokio::select! {
                // If the server has closed the connection, its last data still arrives. A worker
                // that is gone sends no more.
                () = self.carry(from_server, to_worker, seed) => {}
                () = self.carry(from_worker, to_server, !seed) => {}
            }
        });
        Ok(Box::new(near))
    }

    /// Carries bytes in one direction until either end closes.
    async fn carry(
        self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        seed: u64,
    ) {
        let (sender, mut pieces) = mpsc::channel::<(Instant, Box<[u8]>)>(PIECES_MAX);
        let read = async move {
            let mut space = vec![0; PIECE_LEN];
            let (mut due, mut chance) = (Instant::now(), seed);
            while let Ok(length @ 1..) = from.read(&mut space).await {
                let piece = space.get(..length).unwrap_or_default().into();
                // A piece waits for earlier pieces that have to be sent again.
                due = due.max(Instant::now() + self.travel(&mut chance));
                if sender.send((due, piece)).await.is_err() {
                    return;
                }
            }
        };
        let write = async move {
            while let Some((due, piece)) = pieces.recv().await {
                tokio::time::sleep_until(due).await;
                if to.write_all(&piece).await.is_err() {
                    return;
                }
            }
            // The peer may already have closed it.
            let _ = to.shutdown().await;
        };
        tokio::join!(read, write);
    }

    /// Returns the travel time of a piece.
    fn travel(self, chance: &mut u64) -> Duration {
        // A linear congruence (Knuth's MMIX): its high bits are random enough.
        *chance = chance
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        if unit(*chance) < self.loss {
            self.delay * 3 + RETRANSMIT_MIN
        } else {
            self.delay
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connects to a listener over a link. Returns both ends.
    async fn linked(link: SlowLink) -> (Wire, TcpStream) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        let near = link.connect(address).await.expect("it listens");
        (near, listener.accept().await.expect("it is connected").0)
    }

    #[tokio::test]
    async fn what_is_lost_arrives_later_and_nothing_overtakes() {
        for (loss, expected) in [(0.0, 50), (1.0, 350)] {
            let delay = Duration::from_millis(50);
            let (mut near, mut far) = linked(SlowLink { delay, loss }).await;
            let begun = Instant::now();
            for word in [b"one ", b"two ", b"end."] {
                near.write_all(word).await.expect("room");
            }
            let mut said = [0; 12];
            far.read_exact(&mut said).await.expect("it arrives");
            assert_eq!(&said, b"one two end.");
            let took = begun.elapsed().as_millis();
            assert!(took >= expected, "{took} ms");
        }
    }

    #[tokio::test]
    async fn a_server_that_goes_is_lost_with_its_last_words() {
        let delay = Duration::from_millis(5);
        let (mut near, mut far) = linked(SlowLink { delay, loss: 0.0 }).await;
        far.write_all(b"bye").await.expect("room");
        drop(far);
        let mut said = Vec::new();
        near.read_to_end(&mut said).await.expect("a clean end");
        assert_eq!(said, b"bye");
    }
}
