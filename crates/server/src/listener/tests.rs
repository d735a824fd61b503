//! Many peers at once, and peers that say nothing.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::future::join_all;
use hq_protocol::ServerKey;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::aside::tests::runtime;

/// A listener of workers that counts who came in.
struct Listener {
    port: u16,
    served: Arc<AtomicUsize>,
    aside: Aside,
    task: tokio::task::JoinHandle<()>,
}

impl Listener {
    fn start(key: Option<SecretKey>) -> Self {
        let port = bind(None, runtime).expect("a port");
        let (address, aside) = (port.listener.local_addr(), port.aside.clone());
        let served = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&served);
        let serve = move |_connection, _permit| {
            count.fetch_add(1, Ordering::Relaxed);
            std::future::ready(())
        };
        let listening = Listening {
            port,
            plane: Plane::Worker,
            key,
            relayed: None,
        };
        Self {
            port: address.expect("an address").port(),
            served,
            aside,
            task: tokio::spawn(run(listening, PlaneStats::default(), serve)),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.task.abort();
    }
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
    let listener = Listener::start(None);
    // All have connected before one says a word.
    let count = unproven().min(300);
    let streams = silent(listener.port, count).await;
    let peers = streams.into_iter();
    let peers = peers.map(|stream| hq_protocol::connect(stream, Plane::Worker, None));
    let refused = join_all(peers).await.into_iter().filter(Result::is_err);
    assert_eq!(refused.count(), 0, "of {count}");
    while listener.served.load(Ordering::Relaxed) < count {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn those_who_say_nothing_make_room_at_once() {
    let listener = Listener::start(None);
    let _strangers = silent(listener.port, unproven() + 40).await;
    let begin = std::time::Instant::now();
    let stream = silent(listener.port, 1).await.pop().expect("one");
    let connected = hq_protocol::connect(stream, Plane::Worker, None).await;
    assert!(connected.is_ok(), "{:?}", connected.err());
    let took = begin.elapsed();
    assert!(took < Duration::from_millis(900), "{took:?}");
}

#[tokio::test]
async fn the_owner_does_not_wait_for_key_agreements_with_others() {
    let pair = ServerKey::generate().expect("random numbers");
    let full = SecretKey::from_bytes([7; 32]).with_server(&pair);
    let lesser = full.to_connect();
    let listener = Listener::start(Some(full.clone()));
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let aside = listener.aside.clone();
    tokio::spawn(async move { aside.run(async move { wait.recv() }).await });
    let mut streams = silent(listener.port, 31).await;
    let owner = streams.pop().expect("one");
    let others = streams
        .into_iter()
        .map(|stream| hq_protocol::connect(stream, Plane::Worker, Some(&lesser)));
    let mut others = std::pin::pin!(join_all(others));
    let served = || listener.served.load(Ordering::Relaxed);
    tokio::select! {
        biased;
        _ = &mut others => panic!("nobody agrees on keys with them yet"),
        owner = hq_protocol::connect(owner, Plane::Worker, Some(&full)) => assert!(owner.is_ok()),
    }
    while served() == 0 {
        tokio::task::yield_now().await;
    }
    assert_eq!(served(), 1);
    go.send(()).expect("it waits");
    let refused = others.await.into_iter().filter(Result::is_err);
    assert_eq!(refused.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_refused_peer_does_not_come_again_at_once() {
    let listener = Listener::start(None);
    let begin = Instant::now();
    let mut stream = silent(listener.port, 1).await.pop().expect("one");
    stream
        .write_all(b"GET / HTTP/1.1")
        .await
        .expect("it is open");
    let read = stream.read(&mut [0; 8]).await;
    assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    assert!(begin.elapsed() >= REFUSED_PAUSE);
}
