//! Tests with many simultaneous peers, and with silent peers.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;

use super::*;

/// Returns the port of a listener and the number of peers that it has admitted.
async fn listening() -> (u16, Arc<AtomicUsize>, tokio::task::JoinHandle<()>) {
    let listener = bind(None, None).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let served = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&served);
    let serve = move |_connection, _permit| {
        let count = Arc::clone(&count);
        async move {
            count.fetch_add(1, Ordering::Relaxed);
        }
    };
    let listening = Listening {
        listener,
        socket: None,
        plane: Plane::Worker,
        key: None,
        relayed: None,
    };
    let running = run(listening, PlaneStats::default(), serve);
    (port, served, tokio::spawn(running))
}

async fn silent(port: u16, count: usize) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    for _ in 0..count {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await;
        streams.push(stream.expect("the kernel's queue is long"));
    }
    streams
}

fn unproven() -> usize {
    Share::workers(descriptors()).unproven
}

#[tokio::test]
async fn a_burst_comes_in_as_a_whole() {
    let (port, served, listener) = listening().await;
    // All peers have connected before the first one sends anything.
    let count = unproven().min(300);
    let streams = silent(port, count).await;
    let peers = streams.into_iter();
    let peers = peers.map(|stream| hq_protocol::connect(stream, Plane::Worker, None));
    let refused = join_all(peers).await.into_iter().filter(Result::is_err);
    assert_eq!(refused.count(), 0, "of {count}");
    while served.load(Ordering::Relaxed) < count {
        tokio::task::yield_now().await;
    }
    listener.abort();
}

#[tokio::test]
async fn those_who_say_nothing_make_room_at_once() {
    let (port, _, listener) = listening().await;
    let _strangers = silent(port, unproven() + 40).await;
    let begin = std::time::Instant::now();
    let stream = silent(port, 1).await.pop().expect("one");
    let connected = hq_protocol::connect(stream, Plane::Worker, None).await;
    assert!(connected.is_ok(), "{:?}", connected.err());
    let took = begin.elapsed();
    assert!(took < Duration::from_millis(900), "{took:?}");
    listener.abort();
}
