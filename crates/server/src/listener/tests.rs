//! Many peers at once, and peers that say nothing.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;

use super::*;

/// A listener that counts who came in, and its port.
async fn listening() -> (u16, Arc<AtomicUsize>, tokio::task::JoinHandle<()>) {
    let listener = bind(None).expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let served = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&served);
    let serve = move |_connection| {
        let count = Arc::clone(&count);
        async move {
            count.fetch_add(1, Ordering::Relaxed);
        }
    };
    let listening = Listening {
        listener,
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

#[tokio::test]
async fn a_burst_comes_in_as_a_whole() {
    let (port, served, listener) = listening().await;
    // More than may be in the handshake; all have connected before one says a word.
    let count = descriptors::share(UNAUTHENTICATED_MAX) + 80;
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
async fn those_who_say_nothing_make_room() {
    let (port, _, listener) = listening().await;
    let count = descriptors::share(UNAUTHENTICATED_MAX) + 40;
    let _strangers = silent(port, count).await;
    let stream = silent(port, 1).await.pop().expect("one");
    let connected = hq_protocol::connect(stream, Plane::Worker, None).await;
    assert!(connected.is_ok(), "{:?}", connected.err());
    listener.abort();
}

#[tokio::test]
async fn the_address_with_most_handshakes_loses_its_oldest_one() {
    let now = Instant::now();
    let address = |last| IpAddr::from([10, 0, 0, last]);
    let mut tasks = JoinSet::new();
    let mut waiting = Waiting {
        queue: VecDeque::new(),
        max: 4,
    };
    for (from, age) in [(1, 3_000), (2, 2_500), (2, 2_000), (2, 100)] {
        waiting.queue.push_back(Handshake {
            task: tasks.spawn(std::future::pending::<()>()),
            since: now - Duration::from_millis(age),
            from: address(from),
            is_dropped: false,
        });
    }
    let mut left = || {
        waiting.drop_one(now);
        waiting.queue.retain(|handshake| !handshake.is_dropped);
        let queue = waiting.queue.iter();
        queue
            .map(|one| (one.from, now.duration_since(one.since).as_millis()))
            .collect::<Vec<_>>()
    };
    let all = [(1, 3_000), (2, 2_500), (2, 2_000), (2, 100)];
    let all = all.map(|(from, age)| (address(from), age));
    assert_eq!(left(), [all[0], all[2], all[3]]);
    assert_eq!(left(), [all[0], all[3]]);
    assert_eq!(left(), [all[3]], "the rest is young");
    assert_eq!(left(), [all[3]]);
}
