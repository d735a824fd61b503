//! Tests of a link with real tokio tasks on both sides, and of connections whose bytes are modified
//! in transit.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::sync::mpsc;

use super::*;
use crate::common::Entries;
use crate::connection::{Connection, ReadError, accept, connect};
use crate::handshake::{HandshakeError, Plane};
use crate::key::SecretKey;

const KEY: SecretKey = SecretKey::from_bytes([7; 32]);
const OTHER: SecretKey = SecretKey::from_bytes([8; 32]);

type Opened = mpsc::UnboundedReceiver<(ChannelStream, String)>;

/// Returns both ends of a link, each driven by a task. The link breaks when the sender is dropped.
async fn linked() -> (RelayLink, Opened, mpsc::Sender<()>) {
    let (near, far) = duplex(10_000);
    let (ours, theirs) = tokio::join!(
        connect(near, Plane::Worker, Some(&KEY)),
        accept(far, Plane::Worker, Some(&KEY))
    );
    let relay = RelayLink::new(Side::Relay, Terms::OURS, Terms::OURS);
    let server = RelayLink::new(Side::Server, Terms::OURS, Terms::OURS);
    let (tx, opened) = mpsc::unbounded_channel();
    let (alive, mut broken) = mpsc::channel(1);
    let run = relay.clone();
    tokio::spawn(async move {
        let (reader, writer) = ours.expect("the same key").split();
        tokio::select! {
            _ = run.run(reader, writer, |_, _| panic!("the server opens none")) => {}
            _ = broken.recv() => {}
        }
    });
    tokio::spawn(async move {
        let (reader, writer) = theirs.expect("the same key").split();
        let opened = |stream, peer| {
            let _ = tx.send((stream, peer));
        };
        server.run(reader, writer, opened).await;
    });
    (relay, opened, alive)
}

#[tokio::test]
async fn who_does_not_read_holds_up_nobody_else() {
    let (relay, mut opened, _alive) = linked().await;
    let mut slow = relay.open("10.0.0.1:1").expect("room");
    let (slow_end, peer) = opened.recv().await.expect("opened");
    assert_eq!(peer, "10.0.0.1:1");
    let stuck = tokio::spawn(async move {
        let written = slow.write_all(&vec![1; 10 << 20]).await;
        (slow, written)
    });
    let mut quick = relay.open("10.0.0.2:1").expect("room");
    let (mut quick_end, _) = opened.recv().await.expect("opened");
    let data: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[1]).collect();
    let echo = async {
        let mut got = vec![0; data.len()];
        quick_end.read_exact(&mut got).await.expect("all of it");
        quick_end.write_all(&got[..1_000_000]).await.expect("open");
        quick_end.shutdown().await.expect("open");
        got
    };
    let ask = async {
        quick.write_all(&data).await.expect("open");
        let mut back = Vec::new();
        quick.read_to_end(&mut back).await.expect("an end");
        back
    };
    let (got, back) = tokio::join!(echo, ask);
    assert!(got == data && back == data[..1_000_000]);
    assert!(!stuck.is_finished(), "nobody has read it");
    // The stuck writer gets an error when the other end is dropped.
    drop(slow_end);
    let (slow, written) = stuck.await.expect("no panic");
    written.expect_err("nobody will read it");
    drop((slow, quick, quick_end));
    while !relay.is_settled() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_lost_link_breaks_channels_on_both_sides() {
    let (relay, mut opened, alive) = linked().await;
    let mut stream = relay.open("10.0.0.1:1").expect("room");
    let (mut end, _) = opened.recv().await.expect("opened");
    // The link breaks in the middle of a message.
    stream.write_all(b"half a mess").await.expect("open");
    let mut half = [0; 11];
    end.read_exact(&mut half).await.expect("it has arrived");
    drop(alive);
    let aborted = std::io::ErrorKind::ConnectionAborted;
    for stream in [&mut stream, &mut end] {
        let error = stream.read_u8().await.expect_err("it is lost");
        assert_eq!(error.kind(), aborted);
        stream.write_u8(1).await.expect_err("it is lost");
    }
    assert!(relay.open("10.0.0.1:1").is_none());
}

#[tokio::test]
async fn both_ends_of_a_channel_are_told_how_it_ended() {
    let (relay, mut opened, _alive) = linked().await;
    let stream = relay.open("10.0.0.1:1").expect("room");
    let (mut end, _) = opened.recv().await.expect("opened");
    stream.aborter().peer_reset();
    let error = end.read_u8().await.expect_err("the worker was killed");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    drop(stream);
    let stream = relay.open("10.0.0.2:1").expect("room");
    let (mut end, _) = opened.recv().await.expect("opened");
    stream.aborter().peer_lost();
    let error = end.read_u8().await.expect_err("its network is gone");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionAborted);
}

#[tokio::test]
async fn nobody_gets_in_without_the_key_and_all_are_told_why_not() {
    let entry = |worker: Option<SecretKey>, relay: Option<SecretKey>, says| async move {
        let (near, far) = duplex(4_096);
        let admit = async {
            let mut stream = admit(far, relay.as_ref()).await?;
            let _ = answer(&mut stream, says).await;
            Ok::<_, HandshakeError>(stream)
        };
        tokio::join!(enter(near, worker.as_ref()), admit)
    };
    let (entered, admitted) = entry(Some(KEY), Some(KEY), Admission::Open).await;
    let (mut worker, mut relay) = (entered.expect("same key"), admitted.expect("same key"));
    worker.write_all(b"x").await.expect("open");
    assert_eq!(relay.read_u8().await.expect("raw bytes"), b'x');
    let (entered, _) = entry(None, None, Admission::Open).await;
    entered.expect("no key on either side");
    let (entered, admitted) = entry(Some(OTHER), Some(KEY), Admission::Open).await;
    assert!(matches!(admitted, Err(HandshakeError::WrongKey { .. })));
    let wrong = HandshakeError::WrongKey {
        plane: Plane::Relay,
    };
    assert!(
        matches!(entered, Err(EntryError::Handshake(ref error)) if error.to_string() == wrong.to_string())
    );
    let (entered, _) = entry(Some(KEY), Some(KEY), Admission::Full).await;
    assert!(matches!(entered, Err(EntryError::Full)));
    let (entered, _) = entry(Some(KEY), Some(KEY), Admission::NoServer).await;
    assert!(matches!(entered, Err(EntryError::NoServer)));
}

#[tokio::test]
async fn a_server_is_no_relay_and_a_relay_no_server() {
    let (near, far) = duplex(4_096);
    let (entered, accepted) = tokio::join!(
        enter(near, Some(&KEY)),
        accept(far, Plane::Worker, Some(&KEY))
    );
    let is_wrong_plane =
        |error: &HandshakeError| matches!(error, HandshakeError::WrongPlane { .. });
    assert!(matches!(&entered, Err(EntryError::Handshake(error)) if is_wrong_plane(error)));
    assert!(accepted.is_err_and(|error| is_wrong_plane(&error)));
    let (near, far) = duplex(4_096);
    let (connected, admitted) = tokio::join!(
        connect(near, Plane::Worker, Some(&KEY)),
        admit(far, Some(&KEY))
    );
    assert!(connected.is_err_and(|error| is_wrong_plane(&error)));
    assert!(admitted.is_err_and(|error| is_wrong_plane(&error)));
}

/// Changes that a compromised relay makes, starting at a position.
#[derive(Clone, Debug)]
enum Tamper {
    Flip {
        at: usize,
        bit: u8,
    },
    Drop {
        at: usize,
        count: usize,
    },
    Repeat {
        at: usize,
        count: usize,
    },
    Insert {
        at: usize,
        bytes: Vec<u8>,
    },
    Swap {
        at: usize,
        count: usize,
    },
    /// Repeats all bytes from the first one.
    Replay {
        at: usize,
    },
}

impl Tamper {
    fn apply(&self, wire: &[u8]) -> Vec<u8> {
        let len = wire.len();
        let cut = |at: usize, count: usize| (at % len, (at % len + count).min(len));
        match self {
            Self::Flip { at, bit } => {
                let mut wire = wire.to_vec();
                wire[at % len] ^= 1 << (bit % 8);
                wire
            }
            Self::Drop { at, count } => {
                let (from, to) = cut(*at, *count);
                [&wire[..from], &wire[to..]].concat()
            }
            Self::Repeat { at, count } => {
                let (from, to) = cut(*at, *count);
                [&wire[..to], &wire[from..to], &wire[to..]].concat()
            }
            Self::Insert { at, bytes } => {
                let (from, _) = cut(*at, 0);
                [&wire[..from], bytes, &wire[from..]].concat()
            }
            Self::Swap { at, count } => {
                let (from, middle) = cut(*at, *count);
                let to = (middle + count).min(len);
                [
                    &wire[..from],
                    &wire[middle..to],
                    &wire[from..middle],
                    &wire[to..],
                ]
                .concat()
            }
            Self::Replay { at } => {
                let (from, _) = cut(*at, 0);
                [&wire[..from], &wire[..from], &wire[from..]].concat()
            }
        }
    }
}

fn tamper() -> impl Strategy<Value = Tamper> {
    let at = || any::<usize>();
    let count = || 1..400_usize;
    prop_oneof![
        (at(), any::<u8>()).prop_map(|(at, bit)| Tamper::Flip { at, bit }),
        (at(), count()).prop_map(|(at, count)| Tamper::Drop { at, count }),
        (at(), count()).prop_map(|(at, count)| Tamper::Repeat { at, count }),
        (at(), vec(any::<u8>(), 1..50)).prop_map(|(at, bytes)| Tamper::Insert { at, bytes }),
        (at(), count()).prop_map(|(at, count)| Tamper::Swap { at, count }),
        at().prop_map(|at| Tamper::Replay { at }),
    ]
}

fn message(number: usize) -> Entries {
    let text = format!("report {number} ").repeat(number % 13 + 1);
    Entries {
        data: text.into_bytes().into(),
        ..Entries::default()
    }
}

/// Records the bytes of a connection after the handshake. Also returns the receiver of another
/// connection.
async fn recorded(count: usize) -> (Vec<u8>, Connection<DuplexStream>, DuplexStream) {
    let (near, relay_near) = duplex(1 << 20);
    let (relay_far, far) = duplex(1 << 20);
    let (mut near_read, mut near_write) = tokio::io::split(relay_near);
    let (mut far_read, far_write) = tokio::io::split(relay_far);
    let far_write = Arc::new(Mutex::new(Some(far_write)));
    // Does not change any bytes during the handshake.
    let carry = async {
        let mut far_write = far_write.lock().expect("one user").take().expect("once");
        let up = tokio::io::copy(&mut near_read, &mut far_write);
        let down = tokio::io::copy(&mut far_read, &mut near_write);
        let shaken = async {
            tokio::join!(
                connect(near, Plane::Worker, Some(&KEY)),
                accept(far, Plane::Worker, Some(&KEY))
            )
        };
        let shaken = tokio::select! {
            shaken = shaken => shaken,
            _ = async { tokio::join!(up, down) } => unreachable!("both are open"),
        };
        (shaken, far_write)
    };
    let ((ours, theirs), far_write) = carry.await;
    let (_reader, mut writer) = ours.expect("honest so far").split();
    for number in 0..count {
        writer.send(&message(number)).await.expect("room");
    }
    drop((writer, _reader));
    let mut wire = Vec::new();
    near_read.read_to_end(&mut wire).await.expect("an end");
    let to_server = far_read.unsplit(far_write);
    (wire, theirs.expect("honest so far"), to_server)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    /// A relay may change the bytes in any way. The server accepts only messages that were sent, in
    /// order, until it detects the change.
    #[test]
    fn what_a_relay_changes_drops_repeats_or_reorders_is_noticed(how in tamper(), count in 2..12_usize) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let (changed, taken, end) = runtime.block_on(async {
            let (wire, connection, mut to_server) = recorded(count).await;
            let bad = how.apply(&wire);
            to_server.write_all(&bad).await.expect("room");
            drop(to_server);
            let (mut reader, _writer) = connection.split();
            let mut taken = Vec::new();
            let end = loop {
                match reader.next::<Entries>().await {
                    Ok(Some(message)) => taken.push(message),
                    Ok(None) => break None,
                    Err(error) => break Some(error),
                }
            };
            (bad != wire, taken, end)
        });
        prop_assert!(taken.len() <= count);
        for (number, message) in taken.iter().enumerate() {
            prop_assert_eq!(message, &self::message(number));
        }
        if changed && taken.len() == count {
            // All sent messages arrived, and everything after them was rejected.
            prop_assert!(end.is_some());
        }
        if let Some(error) = end {
            prop_assert!(matches!(error, ReadError::Frame(_) | ReadError::Truncated), "{error}");
        }
    }
}

/// Replaying a recorded connection fails, because the handshake differs.
#[tokio::test(start_paused = true)]
async fn a_recorded_connection_cannot_be_played_again() {
    let (near, relay_near) = duplex(1 << 20);
    let (relay_far, far) = duplex(1 << 20);
    let (mut near_read, mut near_write) = tokio::io::split(relay_near);
    let (mut far_read, mut far_write) = tokio::io::split(relay_far);
    let record = async {
        let mut record = Vec::new();
        let mut buffer = [0; 4_096];
        loop {
            let count = near_read.read(&mut buffer).await.expect("open");
            if count == 0 {
                return record;
            }
            record.extend_from_slice(&buffer[..count]);
            far_write.write_all(&buffer[..count]).await.expect("open");
        }
    };
    let back = async {
        let _ = tokio::io::copy(&mut far_read, &mut near_write).await;
    };
    let worker = async {
        let connection = connect(near, Plane::Worker, Some(&KEY)).await;
        let (_reader, mut writer) = connection.expect("the same key").split();
        writer.send(&message(1)).await.expect("open");
    };
    let server = async {
        let connection = accept(far, Plane::Worker, Some(&KEY)).await;
        let (mut reader, _writer) = connection.expect("the same key").split();
        let first = reader.next::<Entries>().await.expect("valid");
        assert_eq!(first, Some(message(1)));
    };
    let (record, (), (), ()) = tokio::join!(record, back, worker, server);
    let (mut replayed, far) = duplex(1 << 20);
    replayed.write_all(&record).await.expect("room");
    let error = accept(far, Plane::Worker, Some(&KEY)).await;
    assert!(matches!(error, Err(HandshakeError::WrongKey { .. })));
    // A peer that falls silent in the middle does not occupy its place forever.
    let (mut silent, far) = duplex(1 << 20);
    silent.write_all(&record[..40]).await.expect("room");
    let slow = tokio::time::timeout(
        Duration::from_secs(60),
        accept(far, Plane::Worker, Some(&KEY)),
    );
    let error = slow.await.expect("it has a limit of its own");
    assert!(matches!(error, Err(HandshakeError::Timeout)));
}
