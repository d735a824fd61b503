//! Tests of connections over in-memory pipes and TCP.

use std::time::Duration;

use tokio::io::{DuplexStream, duplex};

use super::*;
use crate::common::{Entries, IdRange};
use crate::limits;
use crate::worker::{Ended, Report, ToServer, to_server};

const KEY: SecretKey = SecretKey::from_bytes([7; 32]);
const PIPE: usize = 4096;

type Pair<T> = (T, T);

fn entries(size: usize) -> Entries {
    let data: Vec<u8> = (0..=250).cycle().take(size).collect();
    Entries {
        data: data.into(),
        lengths: Vec::new(),
    }
}

async fn pair(key: Option<&SecretKey>, pipe: usize) -> Pair<Connection<DuplexStream>> {
    let (left, right) = duplex(pipe);
    let (left, right) = tokio::join!(
        connect(left, Plane::Worker, key),
        accept(right, Plane::Worker, key)
    );
    (
        left.expect("connecting side"),
        right.expect("accepting side"),
    )
}

/// Runs the connecting side against bytes that are not a handshake.
async fn accept_bytes(bytes: &[u8]) -> HandshakeError {
    let (mut left, right) = duplex(PIPE);
    left.write_all(bytes).await.expect("fits the pipe");
    left.shutdown().await.expect("open pipe");
    accept(right, Plane::Client, Some(&KEY))
        .await
        .expect_err("no handshake")
}

#[tokio::test]
async fn messages_go_both_ways_with_and_without_key() {
    for key in [Some(&KEY), None] {
        let (left, right) = pair(key, PIPE).await;
        assert_eq!(
            (left.is_encrypted(), left.version()),
            (key.is_some(), crate::handshake::VERSIONS.min)
        );
        let (mut left_rx, mut left_tx) = left.split();
        let (mut right_rx, mut right_tx) = right.split();
        left_tx.send(&entries(10)).await.expect("open");
        right_tx
            .send(&IdRange {
                first: 1,
                count: 2,
                step: 3,
                slack: 0,
            })
            .await
            .expect("open");
        assert_eq!(right_rx.next().await.expect("valid"), Some(entries(10)));
        let range: Option<IdRange> = left_rx.next().await.expect("valid");
        assert_eq!(
            range,
            Some(IdRange {
                first: 1,
                count: 2,
                step: 3,
                slack: 0,
            })
        );
        left_tx.shutdown().await.expect("open");
        assert_eq!(right_rx.next::<Entries>().await.expect("orderly end"), None);
    }
}

#[tokio::test]
async fn large_messages_pass_if_the_limit_allows() {
    for key in [Some(&KEY), None] {
        let (mut left, mut right) = pair(key, 1 << 20).await;
        let size = frame::FRAME_MAX + 100_000;
        let limits = |message_max| Limits {
            message_max,
            send_max: frame::MESSAGE_MAX,
            decoded: None,
        };
        left.set_limits(limits(0));
        right.set_limits(limits(2 * frame::FRAME_MAX));
        let (_left_rx, mut tx) = left.split();
        let (mut rx, _right_tx) = right.split();
        let send = async {
            tx.send(&entries(size)).await.expect("open");
            tx.send(&entries(3)).await.expect("open");
            tx.send(&entries(size)).await.expect("open");
        };
        let receive = async {
            assert!(rx.next().await.expect("valid") == Some(entries(size)));
            assert_eq!(rx.next().await.expect("valid"), Some(entries(3)));
            rx.set_limits(limits(frame::FRAME_MAX));
            let refused = rx.next::<Entries>().await.expect_err("too large now");
            assert!(matches!(
                refused,
                ReadError::Frame(FrameError::MessageTooLarge { .. })
            ));
            drop(rx);
            drop(_right_tx);
        };
        tokio::select! {
            () = receive => {}
            () = async { send.await; std::future::pending().await } => {}
        }
    }
}

#[tokio::test]
async fn a_message_that_the_peer_would_refuse_is_not_sent() {
    let (left, right) = pair(None, PIPE).await;
    let (_left_rx, mut tx) = left.split();
    let (mut rx, _right_tx) = right.split();
    let refused = tx
        .feed(&entries(limits::TO_SERVER_MAX))
        .expect_err("too large");
    let (found, limit) = refused.too_large().expect("says how large");
    assert!(found > limit && limit == limits::TO_SERVER_MAX);
    tx.send(&entries(3)).await.expect("the connection goes on");
    assert_eq!(rx.next().await.expect("valid"), Some(entries(3)));
}

#[tokio::test]
async fn a_message_that_decodes_to_too_much_is_refused_before() {
    let (mut left, right) = pair(None, 1 << 20).await;
    left.set_limits(Limits {
        send_max: frame::MESSAGE_MAX,
        ..Limits::connecting(Plane::Worker)
    });
    let (_left_rx, mut tx) = left.split();
    let (mut rx, _right_tx) = right.split();
    // Each element takes two bytes on the wire and two hundred in memory.
    let hostile = |count| ToServer {
        message: Some(to_server::Message::Report(Report {
            ended: vec![Ended::default(); count],
            ..Report::default()
        })),
    };
    let count = limits::TO_SERVER_DECODED_MAX / size_of::<Ended>();
    let sent = async {
        tx.send(&hostile(count / 2)).await.expect("open");
        tx.send(&hostile(count + 1)).await.expect("open");
    };
    let received = async {
        let message: Option<ToServer> = rx.next().await.expect("not too much");
        assert!(message.is_some());
        rx.next::<ToServer>().await.expect_err("too much")
    };
    let ((), refused) = tokio::join!(sent, received);
    assert!(
        matches!(refused, ReadError::TooManyElements { found, limit } if found > limit),
        "{refused}"
    );
}

#[tokio::test]
async fn fed_messages_share_a_record_and_arrive_as_a_batch() {
    let (left, right) = pair(Some(&KEY), 1 << 20).await;
    let (_left_rx, mut tx) = left.split();
    let (mut rx, _right_tx) = right.split();
    for _ in 0..1000 {
        tx.feed(&entries(4)).expect("small");
    }
    tx.flush().await.expect("open");
    assert_eq!(tx.buffered(), 0);
    let mut batch: Vec<Entries> = Vec::new();
    assert!(rx.next_batch(600, &mut batch).await.expect("valid"));
    assert_eq!(batch.len(), 600);
    assert!(rx.next_batch(1000, &mut batch).await.expect("valid"));
    assert_eq!(batch.len(), 1000);
    assert_eq!(rx.try_next::<Entries>().expect("valid"), None);
}

#[tokio::test]
async fn reading_and_writing_can_be_canceled_anywhere() {
    for key in [Some(&KEY), None] {
        let (left, right) = pair(key, 7).await;
        let (_left_rx, mut tx) = left.split();
        let (mut rx, _right_tx) = right.split();
        for size in 0..40 {
            tx.feed(&entries(size * 10)).expect("small");
        }
        let mut received: Vec<Entries> = Vec::new();
        while received.len() < 40 {
            // Each iteration drops the unfinished future.
            tokio::select! {
                biased;
                result = tx.flush(), if tx.buffered() > 0 => result.expect("open"),
                result = rx.next() => received.extend(result.expect("valid")),
                () = tokio::task::yield_now() => {}
            }
        }
        let sizes: Vec<usize> = received.iter().map(|message| message.data.len()).collect();
        assert_eq!(sizes, (0..40).map(|size| size * 10).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn halves_of_a_tcp_stream_work_apart() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0")
        .await
        .expect("a port");
    let address = listener.local_addr().expect("bound");
    let dial = async {
        let stream = TcpStream::connect(address).await.expect("listening");
        connect(stream, Plane::Client, Some(&KEY))
            .await
            .expect("connecting side")
    };
    let listen = async {
        let (stream, _) = listener.accept().await.expect("a peer");
        accept(stream, Plane::Client, Some(&KEY))
            .await
            .expect("accepting side")
    };
    let (left, right) = tokio::join!(dial, listen);
    let (mut left_rx, mut left_tx) = left.split_tcp();
    let (mut right_rx, mut right_tx) = right.split_tcp();
    left_tx.send(&entries(5)).await.expect("open");
    drop(left_tx);
    assert_eq!(right_rx.next().await.expect("valid"), Some(entries(5)));
    assert_eq!(right_rx.next::<Entries>().await.expect("orderly end"), None);
    right_tx.send(&entries(6)).await.expect("still open");
    assert_eq!(left_rx.next().await.expect("valid"), Some(entries(6)));
}

#[tokio::test]
async fn wrong_peers_get_distinct_errors() {
    let other = SecretKey::from_bytes([9; 32]);
    let check = async |left_plane, left_key, right_key| {
        let (left, right) = duplex(PIPE);
        let (left, right) = tokio::join!(
            connect(left, left_plane, left_key),
            accept(right, Plane::Client, right_key)
        );
        (
            left.expect_err("connecting side"),
            right.expect_err("accepting side"),
        )
    };
    use HandshakeError::{EncryptionMismatch, WrongKey, WrongPlane};
    let (left, right) = check(Plane::Client, Some(&other), Some(&KEY)).await;
    assert!(
        matches!((&left, &right), (WrongKey { .. }, WrongKey { .. })),
        "{left}; {right}"
    );
    let (left, right) = check(Plane::Worker, Some(&KEY), Some(&KEY)).await;
    assert!(
        matches!((&left, &right), (WrongPlane { .. }, WrongPlane { .. })),
        "{left}; {right}"
    );
    let (left, right) = check(Plane::Client, None, Some(&KEY)).await;
    assert!(
        matches!(
            left,
            EncryptionMismatch {
                we_have_key: false,
                ..
            }
        ),
        "{left}"
    );
    assert!(
        matches!(
            right,
            EncryptionMismatch {
                we_have_key: true,
                ..
            }
        ),
        "{right}"
    );
    let (left, right) = check(Plane::Client, Some(&KEY), None).await;
    assert!(
        matches!(
            left,
            EncryptionMismatch {
                we_have_key: true,
                ..
            }
        ),
        "{left}"
    );
    assert!(
        matches!(
            right,
            EncryptionMismatch {
                we_have_key: false,
                ..
            }
        ),
        "{right}"
    );
}

#[tokio::test]
async fn garbage_and_oversize_first_frames_are_refused() {
    let error = accept_bytes(b"GET / HTTP/1.1\r\n\r\n").await;
    assert!(matches!(error, HandshakeError::NotOurProtocol));
    let error = accept_bytes(b"\x8fhq\n\xff\xff").await;
    assert!(matches!(
        error,
        HandshakeError::FrameTooLarge { found: 65_535 }
    ));
    let error = accept_bytes(b"\x8fhq\n\x01\x00\xff").await;
    assert!(matches!(error, HandshakeError::Malformed));
}

#[tokio::test(start_paused = true)]
async fn silent_and_slow_peers_are_cut_off() {
    let started = tokio::time::Instant::now();
    let (_silent, right) = duplex(PIPE);
    let error = accept(right, Plane::Client, Some(&KEY))
        .await
        .expect_err("nobody there");
    assert!(matches!(error, HandshakeError::Timeout));
    assert_eq!(started.elapsed(), HANDSHAKE_TIMEOUT);

    // Sending one correct byte per second does not extend the limit.
    let hello = Handshake::connecting(Plane::Client, Some(&KEY), [0; 16]).take_output();
    let (mut slow, right) = duplex(PIPE);
    let drip = async {
        for byte in hello {
            if slow.write_all(&[byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let (result, ()) = tokio::join!(accept(right, Plane::Client, Some(&KEY)), drip);
    assert!(matches!(
        result.expect_err("too slow"),
        HandshakeError::Timeout
    ));
}

#[tokio::test]
async fn a_stream_cut_at_any_byte_never_yields_a_wrong_message() {
    for key in [Some(&KEY), None] {
        let (wire, accepting_side) = record_connection(key).await;
        for cut in 0..wire.len() {
            let (mut left, right) = duplex(PIPE);
            left.write_all(&wire[..cut]).await.expect("fits");
            left.shutdown().await.expect("open");
            let machine = accepting_side();
            let Ok(connection) = run(
                right,
                (Plane::Worker, Limits::accepting(Plane::Worker)),
                machine,
            )
            .await
            else {
                continue;
            };
            // A recorded handshake works a second time only without a key.
            assert!(key.is_none());
            let (mut rx, _tx) = connection.split();
            let mut count = 0;
            let end = loop {
                match rx.next::<Entries>().await {
                    Ok(Some(message)) => assert_eq!(message, entries(20)),
                    other => break other,
                }
                count += 1;
            };
            let is_between = (wire.len() - cut).is_multiple_of(entries(20).encoded_len() + 4);
            assert_eq!(
                end.is_ok(),
                is_between,
                "cut at {cut} after {count} messages"
            );
        }
    }
}

/// Records everything that a connecting side sends for two messages. Also returns a function that
/// creates a handshake that expects it.
async fn record_connection(key: Option<&SecretKey>) -> (Vec<u8>, impl Fn() -> Handshake) {
    let (left, middle_left) = duplex(PIPE);
    let (middle_right, right) = duplex(PIPE);
    let (mut from_left, mut to_left) = tokio::io::split(middle_left);
    let (mut from_right, mut to_right) = tokio::io::split(middle_right);
    let tap = async {
        let mut seen = Vec::new();
        let mut buffer = [0; 512];
        while let Ok(count @ 1..) = from_left.read(&mut buffer).await {
            seen.extend_from_slice(&buffer[..count]);
            to_right.write_all(&buffer[..count]).await.expect("open");
        }
        to_right.shutdown().await.expect("open");
        seen
    };
    let back = async { tokio::io::copy(&mut from_right, &mut to_left).await };
    let dial = async {
        let connection = connect(left, Plane::Worker, key)
            .await
            .expect("connecting side");
        let (_rx, mut tx) = connection.split();
        tx.feed(&entries(20)).expect("small");
        tx.feed(&entries(20)).expect("small");
        tx.shutdown().await.expect("open");
    };
    let listen = async {
        let connection = accept(right, Plane::Worker, key)
            .await
            .expect("accepting side");
        let (mut rx, _tx) = connection.split();
        let mut batch: Vec<Entries> = Vec::new();
        while rx.next_batch(10, &mut batch).await.expect("valid") {}
        assert_eq!(batch.len(), 2);
    };
    let (seen, _, (), ()) = tokio::join!(tap, back, dial, listen);
    let key = key.cloned();
    (seen, move || {
        Handshake::accepting(Plane::Worker, key.as_ref(), [5; 16])
    })
}

#[tokio::test]
async fn a_damaged_encrypted_stream_is_noticed() {
    let (left, right) = pair(Some(&KEY), PIPE).await;
    let mut raw = left.stream;
    // This record was never sealed.
    raw.write_all(&[20, 0]).await.expect("open");
    raw.write_all(&[1; 20]).await.expect("open");
    let (mut rx, _tx) = right.split();
    let error = rx.next::<Entries>().await.expect_err("forged");
    assert!(matches!(error, ReadError::Frame(FrameError::Forged)));
}

#[tokio::test]
async fn an_announced_length_allocates_nothing() {
    let (left, mut right) = pair(None, PIPE).await;
    right.set_limits(Limits::connecting(Plane::Worker));
    let mut raw = left.stream;
    let header = u32::try_from(frame::FRAME_MAX).expect("fits").to_le_bytes();
    raw.write_all(&header).await.expect("open");
    raw.shutdown().await.expect("open");
    let (mut rx, _tx) = right.split();
    let error = rx.next::<Entries>().await.expect_err("cut off");
    assert!(matches!(error, ReadError::Truncated));
    assert!(rx.plain.capacity() <= 2 * READ_SPACE_MAX);
}

#[tokio::test]
async fn a_connection_that_says_little_takes_little_memory() {
    for key in [Some(&KEY), None] {
        let (left, right) = pair(key, 1 << 20).await;
        let (_left_rx, mut tx) = left.split();
        let (mut rx, _right_tx) = right.split();
        let memory = |rx: &MessageReader<_>| rx.raw.capacity() + rx.plain.capacity();
        let small = entries(20);
        for _ in 0..1_000 {
            tx.send(&small).await.expect("open");
            assert_eq!(rx.next().await.expect("valid"), Some(small.clone()));
            assert!(memory(&rx) <= 4 * READ_SPACE_MIN, "{}", memory(&rx));
        }
        // Reads are large while much data arrives.
        let large = entries(300_000);
        tx.send(&large).await.expect("open");
        assert_eq!(rx.next().await.expect("valid"), Some(large));
        assert_eq!(rx.space, READ_SPACE_MAX);
        for _ in 0..SMALL_READS_MAX + 1 {
            tx.send(&small).await.expect("open");
            assert_eq!(rx.next().await.expect("valid"), Some(small.clone()));
        }
        assert!(memory(&rx) <= 4 * READ_SPACE_MIN, "{}", memory(&rx));
    }
}
