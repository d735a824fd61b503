//! Tests a relay between workers and a scripted server.

use std::path::Path;
use std::sync::Arc;

use hq_core::worker_state::ExitReason;
use hq_protocol::access::announced_relays;
use hq_protocol::convert::FromWorker;
use hq_protocol::relay::{ChannelStream, EntryError, RelayLink, Side, enter};
use hq_protocol::worker::{Heartbeat, Refused, ToServer, ToWorker, to_server, to_worker};
use hq_protocol::{Connection, Plane, SecretKey, accept, connect, connect_tcp};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener as Listener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle as Task;

use super::*;
use crate::server_link::Retry;

const KEY: SecretKey = SecretKey::from_bytes([5; 32]);
const OTHER: SecretKey = SecretKey::from_bytes([6; 32]);

fn runtime() -> io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
}

/// The port of a server, and the directory of its instance.
struct Server {
    listener: Listener,
    dir: tempfile::TempDir,
}

type Channels = mpsc::UnboundedReceiver<ChannelStream>;

impl Server {
    async fn new() -> Self {
        Self {
            listener: Listener::bind("127.0.0.1:0").await.expect("a free port"),
            dir: tempfile::tempdir().expect("temporary directory"),
        }
    }

    fn place(&self) -> Connector {
        let port = self.listener.local_addr().expect("bound").port();
        let retry = Retry {
            attempts: 1,
            pause: Duration::from_millis(1),
        };
        Connector {
            instance: Some(self.dir.path().to_path_buf()),
            connect_retry: retry,
            register_retry: retry,
            ..Connector::new("127.0.0.1", port, Some(KEY))
        }
    }

    async fn start_relay(&self) -> Result<Relay, RelayError> {
        let options = RelayOptions {
            port: 0,
            host: Some("127.0.0.1".to_owned()),
            hostname: "node1".to_owned(),
        };
        let (place, again) = (self.place(), self.place());
        let find = move || ServerLocation::At(Box::new(again.clone()));
        Relay::start(options, &place, find, runtime).await
    }

    async fn accept(&self) -> Connection<TcpStream> {
        let (stream, _) = self.listener.accept().await.expect("a connection");
        accept(stream, Plane::Worker, Some(&KEY))
            .await
            .expect("the same key")
    }

    /// Accepts a relay. The link lasts as long as the returned task.
    async fn take_relay(&self) -> (Channels, Task<()>) {
        let (mut reader, mut writer) = self.accept().await.split();
        let first: ToServer = reader.next().await.expect("valid").expect("a message");
        let Ok(FromWorker::Relay(request)) = FromWorker::try_from(first) else {
            panic!("expected a relay");
        };
        // This must be an address that users can pass to `--via`. The host name may not resolve
        // there.
        assert!(request.address.starts_with("127.0.0.1:"));
        let opened = ToWorker::from(Terms::OURS);
        writer.send(&opened).await.expect("open");
        let (tx, channels) = mpsc::unbounded_channel();
        let link = RelayLink::new(Side::Server, Terms::OURS, Terms::OURS);
        let task = tokio::spawn(async move {
            let opened = |stream, peer: String| {
                assert!(peer.starts_with("127.0.0.1:"), "{peer}");
                let _ = tx.send(stream);
            };
            link.run(reader, writer, opened).await;
        });
        (channels, task)
    }

    async fn with_relay(&self) -> (Relay, Channels, Task<()>) {
        let (relay, (channels, link)) = tokio::join!(self.start_relay(), self.take_relay());
        (relay.expect("a relay"), channels, link)
    }
}

async fn reach(relay: &Relay, key: &SecretKey) -> Result<TcpStream, EntryError> {
    let port = relay.address().port;
    let stream = connect_tcp("127.0.0.1", port).await.expect("it listens");
    enter(stream, Some(key)).await
}

/// Connects a worker to the server through the relay.
async fn pass(
    relay: &Relay,
    channels: &mut Channels,
) -> (Connection<TcpStream>, Connection<ChannelStream>) {
    let worker = reach(relay, &KEY).await.expect("the same key");
    let end = channels.recv().await.expect("a channel");
    let (worker, server) = tokio::join!(
        connect(worker, Plane::Worker, Some(&KEY)),
        accept(end, Plane::Worker, Some(&KEY))
    );
    (worker.expect("the same key"), server.expect("the same key"))
}

/// Polls until a condition holds.
async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..6_000 {
        if is_so() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("gave up waiting: {what}");
}

fn is_announced(instance: &Path) -> bool {
    !announced_relays(instance).is_empty()
}

fn heartbeat() -> ToServer {
    ToServer {
        message: Some(to_server::Message::Heartbeat(Heartbeat::default())),
    }
}

#[tokio::test]
async fn those_with_the_key_reach_the_server_and_nobody_else() {
    let server = Server::new().await;
    let (relay, mut channels, _link) = server.with_relay().await;
    until("it is announced", || is_announced(server.dir.path())).await;
    let announced = announced_relays(server.dir.path());
    assert_eq!(announced[0][0].port, relay.address().port);
    let error = reach(&relay, &OTHER).await.expect_err("another key");
    assert!(matches!(error, EntryError::Handshake(_)), "{error}");
    let mut stranger = connect_tcp("127.0.0.1", relay.address().port)
        .await
        .expect("it listens");
    stranger
        .write_all(b"GET / HTTP/1.1\r\n\r\n")
        .await
        .expect("open");
    let mut answer = Vec::new();
    // The relay may reset the connection, because it has not read all the data.
    let _ = stranger.read_to_end(&mut answer).await;
    assert!(answer.is_empty(), "a stranger gets no data");
    let (worker, end) = pass(&relay, &mut channels).await;
    assert!(channels.try_recv().is_err(), "the server heard of no other");
    let (_, mut writer) = worker.split_tcp();
    let (mut reader, _) = end.split();
    writer.send(&heartbeat()).await.expect("open");
    let got = reader.next::<ToServer>().await.expect("valid");
    assert_eq!(got, Some(heartbeat()));
    relay.finish().await;
    assert!(!is_announced(server.dir.path()), "no worker finds it");
}

#[test]
fn workers_behind_a_relay_leave_descriptors_to_it() {
    let taken = [0, 64, 128, 1_024, 1 << 20, u64::MAX].map(channels_max);
    assert_eq!(taken, [4, 4, 32, 480, CHANNELS_MAX, CHANNELS_MAX]);
}

#[tokio::test]
async fn many_who_say_nothing_do_not_keep_a_worker_away() {
    let server = Server::new().await;
    let (relay, mut channels, _link) = server.with_relay().await;
    let mut silent = Vec::new();
    for _ in 0..200 {
        let stream = connect_tcp("127.0.0.1", relay.address().port).await;
        silent.push(stream.expect("the queue of the kernel is long"));
    }
    pass(&relay, &mut channels).await;
}

#[tokio::test]
async fn a_lost_server_cuts_workers_off_and_a_new_one_is_found() {
    let server = Server::new().await;
    let (relay, mut channels, link) = server.with_relay().await;
    let (worker, end) = pass(&relay, &mut channels).await;
    until("it is announced", || is_announced(server.dir.path())).await;
    link.abort();
    let (mut reader, _writer) = worker.split_tcp();
    let read = reader.next::<ToWorker>().await;
    assert!(!matches!(read, Ok(Some(_))), "{read:?}");
    let (mut reader, _writer) = end.split();
    let error = reader.next::<ToServer>().await.expect_err("the link broke");
    let aborted = |error: &io::Error| error.kind() == io::ErrorKind::ConnectionAborted;
    assert!(matches!(&error, hq_protocol::ReadError::Io(error) if aborted(error)));
    until("it is not announced", || !is_announced(server.dir.path())).await;
    let error = reach(&relay, &KEY).await.expect_err("no server");
    assert!(matches!(error, EntryError::NoServer), "{error}");
    // The relay's attempts may have arrived earlier and waited.
    let (mut channels, _link) = server.take_relay().await;
    until("it is announced again", || is_announced(server.dir.path())).await;
    pass(&relay, &mut channels).await;
}

#[tokio::test]
async fn an_older_server_is_an_error_that_says_so() {
    let server = Server::new().await;
    let refuse = async {
        let (mut reader, mut writer) = server.accept().await.split();
        // This simulates a server that does not know this message.
        reader.next::<ToServer>().await.expect("valid");
        let reason = "field `message` is missing".to_owned();
        let refused = to_worker::Message::Refused(Refused { reason });
        let message = ToWorker {
            message: Some(refused),
        };
        writer.send(&message).await.expect("open");
    };
    let (relay, ()) = tokio::join!(server.start_relay(), refuse);
    let error = relay.expect_err("refused");
    assert_eq!(
        error.to_string(),
        "be a relay: the server does not support relays (field `message` is missing). Update the server, or \
         start the worker without --relay"
    );
    assert!(!is_announced(server.dir.path()));
}

#[tokio::test]
async fn a_relay_that_ends_with_its_workers_carries_their_last_words() {
    let server = Server::new().await;
    let (mut relay, mut channels, _link) = server.with_relay().await;
    let (worker, end) = pass(&relay, &mut channels).await;
    let mut watched = Some(relay);
    assert!(Relay::changed(&mut watched).await, "somebody needs it");
    relay = watched.expect("still there");
    let port = relay.address().port;
    let ending = tokio::spawn(Relay::end(Some(relay), ExitReason::Preempted));
    // The relay rejects new workers but still carries existing ones.
    while connect_tcp("127.0.0.1", port).await.is_ok() {
        tokio::task::yield_now().await;
    }
    let (_reader, mut writer) = worker.split_tcp();
    writer.feed(&heartbeat()).expect("small");
    writer.shutdown().await.expect("carried");
    drop((_reader, writer));
    let (mut reader, _) = end.split();
    assert_eq!(
        reader.next::<ToServer>().await.expect("valid"),
        Some(heartbeat())
    );
    assert_eq!(reader.next::<ToServer>().await.expect("a good end"), None);
    drop(reader);
    ending.await.expect("no panic");
}

#[tokio::test]
async fn who_goes_without_a_word_keeps_no_room_until_the_server_has_time() {
    let server = Server::new().await;
    let (relay, mut channels, _link) = server.with_relay().await;
    let visitor = reach(&relay, &KEY).await.expect("the same key");
    let _busy = channels.recv().await.expect("a channel");
    let workers = relay.workers.clone();
    until("it is counted", || *workers.borrow() == 1).await;
    drop(visitor);
    until("it has gone", || *workers.borrow() == 0).await;
}

#[tokio::test]
async fn a_relay_that_has_ended_lets_its_workers_go() {
    let server = Server::new().await;
    let (relay, mut channels, _link) = server.with_relay().await;
    let (worker, end) = pass(&relay, &mut channels).await;
    relay.finish().await;
    let (mut reader, _writer) = worker.split_tcp();
    let read = reader.next::<ToWorker>().await;
    assert!(!matches!(read, Ok(Some(_))), "{read:?}");
    let (mut reader, _writer) = end.split();
    // The server must not count the relay as dead, because it reconnects.
    let error = reader.next::<ToServer>().await.expect_err("the link broke");
    assert!(matches!(error, hq_protocol::ReadError::Io(error)
        if error.kind() == io::ErrorKind::ConnectionAborted));
}

#[tokio::test]
async fn a_port_that_is_taken_is_an_error() {
    let server = Server::new().await;
    let taken = TcpListener::bind("[::]:0").or_else(|_| TcpListener::bind("0.0.0.0:0"));
    let taken = Arc::new(taken.expect("a free port"));
    let options = RelayOptions {
        port: taken.local_addr().expect("bound").port(),
        host: None,
        hostname: "node1".to_owned(),
    };
    let find = || ServerLocation::Unknown;
    let error = Relay::start(options, &server.place(), find, runtime).await;
    assert!(matches!(error, Err(RelayError::Listen { .. })));
}
