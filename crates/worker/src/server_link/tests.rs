//! Tests the registration over TCP.

use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use hq_core::testing::worker_config;
use hq_core::worker_config::OnServerLost;
use hq_protocol::accept;
use hq_protocol::worker::{Ping, Refused, Registered, to_worker};
use tokio::net::TcpListener;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;

use super::*;
use crate::config::{DataProvider, WorkDir, WorkerParams};
use crate::registration::RegisteredWorker;

const KEY: SecretKey = SecretKey::from_bytes([9; 32]);

fn params() -> WorkerParams {
    WorkerParams {
        config: worker_config(1),
        hq_path: "/opt/hq".into(),
        work_dir: WorkDir::create(None).expect("temporary directory"),
        keeper: None,
        spawn_threads: Some(1),
        values_limit: None,
    }
}

/// Simulates a server directory that names no other location.
fn stays() -> ServerLocation {
    ServerLocation::Unknown
}

/// Returns interrupts that never arrive.
fn quiet() -> mpsc::Receiver<Interrupt> {
    mpsc::channel(1).1
}

async fn register_at(
    connector: &Connector,
    find: impl Fn() -> ServerLocation + Send + Sync + 'static,
) -> Result<RegisteredWorker<TcpStream>, RegisterError> {
    connector.register(params(), find, &mut quiet()).await
}

/// Returns a connector with short timeouts, and the listener on its port.
async fn connector() -> (Connector, TcpListener) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("bound").port();
    let retry = Retry {
        attempts: 3,
        pause: Duration::from_millis(1),
    };
    let connector = Connector {
        connect_retry: retry,
        register_retry: retry,
        ..Connector::new("localhost", port, Some(KEY))
    };
    (connector, listener)
}

#[test]
fn those_who_were_turned_away_together_do_not_come_back_together() {
    let pause = Duration::from_secs(10);
    let pauses: std::collections::BTreeSet<Duration> = (0..100).map(|_| spread(pause)).collect();
    assert!(pauses.len() > 50, "{pauses:?}");
    let first = pauses.first().expect("some");
    let last = pauses.last().expect("some");
    assert!(*first >= pause / 2 && *last <= pause * 3 / 2, "{pauses:?}");
}

type Accepted = (MessageReader<OwnedReadHalf>, MessageWriter<OwnedWriteHalf>);

/// Accepts one worker and answers its registration with `message`.
async fn answer(listener: &TcpListener, message: to_worker::Message) -> Accepted {
    let (stream, _) = listener.accept().await.expect("a connection");
    let connection = accept(stream, Plane::Worker, Some(&KEY))
        .await
        .expect("the same key");
    let (mut reader, mut writer) = connection.split_tcp();
    reader
        .next::<ToServer>()
        .await
        .expect("valid")
        .expect("a registration");
    writer
        .send(&ToWorker {
            message: Some(message),
        })
        .await
        .expect("open");
    (reader, writer)
}

fn registered() -> to_worker::Message {
    let server_uid = "abcdef".to_string();
    to_worker::Message::Registered(Registered {
        worker_id: 7,
        server_uid,
        default_idle_timeout_ns: Some(1_000_000),
        reattached: false,
        server_wait_ns: 0,
    })
}

#[tokio::test]
async fn registers_after_a_server_that_hung_up() {
    let (connector, listener) = connector().await;
    let server = async {
        drop(listener.accept().await.expect("the first attempt"));
        answer(&listener, registered()).await
    };
    let (worker, _connection) = tokio::join!(register_at(&connector, stays), server);
    let worker = worker.expect("the second attempt");
    assert_eq!((worker.id().as_u32(), worker.server_uid()), (7, "abcdef"));
    let (_control, interrupts) = mpsc::channel(1);
    let end = Box::pin(worker.run(interrupts)).await;
    assert_eq!(
        end,
        crate::WorkerEnd::IdleTimeout,
        "the server's default applies"
    );
}

#[tokio::test]
async fn gives_up_when_nobody_listens() {
    let (connector, listener) = connector().await;
    drop(listener);
    let error = register_at(&connector, stays)
        .await
        .map(|_| ())
        .expect_err("nobody listens");
    assert!(error.is_retryable());
    assert!(
        error
            .to_string()
            .starts_with("connect to the server at localhost:"),
        "{error}"
    );
    assert!(
        error
            .source()
            .is_some_and(|cause| cause.to_string().contains("refused"))
    );
}

#[tokio::test]
async fn refusal_and_nonsense_are_not_retried() {
    let refused = to_worker::Message::Refused(Refused {
        reason: "too late".to_string(),
    });
    for message in [refused, to_worker::Message::Ping(Ping::default())] {
        let (connector, listener) = connector().await;
        let (worker, _connection) =
            tokio::join!(register_at(&connector, stays), answer(&listener, message));
        let error = worker.map(|_| ()).expect_err("no registration");
        assert!(!error.is_retryable(), "{error}");
    }
}

#[tokio::test]
async fn wrong_key_is_not_retried() {
    let (connector, listener) = connector().await;
    let server = async {
        let (stream, _) = listener.accept().await.expect("a connection");
        let other = SecretKey::from_bytes([1; 32]);
        accept(stream, Plane::Worker, Some(&other))
            .await
            .map(|_| ())
            .expect_err("another key")
    };
    let (worker, _) = tokio::join!(register_at(&connector, stays), server);
    let error = worker.map(|_| ()).expect_err("another key");
    assert!(!error.is_retryable(), "{error}");
}

#[tokio::test]
async fn a_server_that_was_started_again_is_found_with_its_new_port_and_key() {
    let (connector, first) = connector().await;
    let second = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = second.local_addr().expect("bound").port();
    let other = SecretKey::from_bytes([1; 32]);
    let server = async {
        // By now, another server with other keys has the first port.
        let (stream, _) = first.accept().await.expect("the first attempt");
        let refused = accept(stream, Plane::Worker, Some(&other)).await;
        refused.map(drop).expect_err("another key");
        answer(&second, registered()).await
    };
    let find = move || ServerLocation::At(Box::new(Connector::new("localhost", port, Some(KEY))));
    let (worker, _connection) = tokio::join!(register_at(&connector, find), server);
    assert_eq!(worker.expect("it is there").id().as_u32(), 7);
}

#[tokio::test]
async fn a_server_that_was_found_elsewhere_is_sought_there_again() {
    let (connector, first) = connector().await;
    let second = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = second.local_addr().expect("bound").port();
    let looks = AtomicUsize::new(0);
    // The file that named the second location is unreadable afterwards.
    let find = move || match looks.fetch_add(1, Ordering::Relaxed) {
        0 => ServerLocation::At(Box::new(Connector::new("localhost", port, Some(KEY)))),
        _ => ServerLocation::Unknown,
    };
    let server = async {
        drop(first.accept().await.expect("the first attempt"));
        let mut registered = registered();
        if let to_worker::Message::Registered(registered) = &mut registered {
            registered.default_idle_timeout_ns = None;
        }
        answer(&second, registered).await
    };
    let mut params = params();
    params.config.on_server_lost = OnServerLost::Reconnect;
    let mut none = quiet();
    let (worker, connection) = tokio::join!(connector.register(params, find, &mut none), server);
    let worker = worker.expect("it is there");
    drop(connection);
    let found = tokio::select! {
        end = worker.run(none) => panic!("it does not end: {end:?}"),
        _ = first.accept() => "where it was not",
        _ = second.accept() => "where it was",
    };
    assert_eq!(found, "where it was");
}

#[tokio::test]
async fn an_interrupted_registration_removes_its_directory_beside_the_loop() {
    const FILES: usize = 20_000;
    let (connector, _listener) = connector().await;
    let params = params();
    let dir = params.work_dir.path().to_path_buf();
    for file in 0..FILES {
        std::fs::write(dir.join(file.to_string()), "").expect("writable");
    }
    let (interrupt, mut interrupts) = mpsc::channel(1);
    interrupt.try_send(Interrupt::Terminate).expect("room");
    let mut seen = Vec::new();
    let registered = tokio::select! {
        registered = connector.register(params, stays, &mut interrupts) => registered,
        () = async {
            loop {
                seen.push(std::fs::read_dir(&dir).map_or(0, Iterator::count));
                tokio::task::yield_now().await;
            }
        } => unreachable!(),
    };
    let error = registered.map(drop).expect_err("interrupted");
    assert!(
        matches!(error, RegisterError::Interrupted(Interrupt::Terminate)),
        "{error}"
    );
    // On a slow machine, the removal may take longer than the worker waits, but it still continues.
    let gone = async {
        while dir.exists() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let gone = tokio::time::timeout(Duration::from_secs(60), gone).await;
    gone.expect("the directory is removed");
    // Other tasks made progress while the directory was removed.
    assert!(
        seen.iter().any(|left| (1..FILES).contains(left)),
        "{seen:?}"
    );
}

#[tokio::test]
async fn a_worker_that_the_server_knows_already_is_not_dropped_for_an_interrupt() {
    let (connector, listener) = connector().await;
    let (interrupt, mut interrupts) = mpsc::channel(1);
    let server = async {
        let connection = answer(&listener, registered()).await;
        // Both are ready at the worker's next poll.
        tokio::task::yield_now().await;
        interrupt.try_send(Interrupt::Terminate).expect("room");
        connection
    };
    let register = connector.register(params(), stays, &mut interrupts);
    let ((mut reader, writer), worker) = tokio::join!(biased; server, register);
    let worker = worker.expect("the answer has come");
    let said = async {
        let said = reader.next::<ToServer>().await;
        drop(writer);
        said
    };
    let (end, said) = tokio::join!(worker.run(interrupts), said);
    assert_eq!(end, crate::WorkerEnd::Interrupted);
    assert!(said.expect("valid").is_some(), "it takes leave");
}

#[tokio::test]
async fn connection_has_the_socket_options() {
    let (connector, _listener) = connector().await;
    let stream = connector.connect_tcp().await.expect("somebody listens");
    assert!(sockopt::tcp_nodelay(&stream).expect("readable"));
    assert!(sockopt::socket_keepalive(&stream).expect("readable"));
    assert_eq!(
        sockopt::tcp_user_timeout(&stream).expect("readable"),
        30_000
    );
}

#[tokio::test]
async fn data_provider_closes_connections() {
    use tokio::io::AsyncReadExt;

    let provider = DataProvider::bind().await.expect("a free port");
    let mut stream = TcpStream::connect(("127.0.0.1", provider.port()))
        .await
        .expect("somebody listens");
    assert_eq!(stream.read(&mut [0; 1]).await.expect("closed in order"), 0);
}

#[tokio::test]
async fn a_server_directory_that_does_not_answer_holds_up_nothing_else() {
    let (answer, wait) = std::sync::mpsc::channel();
    let wait = std::sync::Mutex::new(wait);
    // The port is closed.
    let connector = Connector::new("127.0.0.1", 1, None);
    let search = Search::new(&connector, move || {
        let answered = wait.lock().map(|wait| wait.recv());
        match answered {
            Ok(Ok(())) => ServerLocation::Gone,
            Ok(Err(_)) | Err(_) => ServerLocation::Unknown,
        }
    });
    let mut redial = search.redial();
    let attempt = tokio::spawn(redial.dial());
    let others = Instant::now();
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert!(others.elapsed() < FIND_TIMEOUT && !attempt.is_finished());
    let error = attempt.await.expect("it ends").map(drop);
    assert!(
        matches!(error, Err(ConnectError::Tcp { .. })),
        "the last place is tried"
    );
    answer.send(()).expect("it still waits");
    let error = redial.dial().await.map(drop);
    assert!(
        matches!(error, Err(ConnectError::Gone)),
        "the late answer counts"
    );
}

#[tokio::test]
async fn a_look_that_hangs_is_not_made_twice() {
    let (answer, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let looks = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&looks);
    let mut search = Search::new(&Connector::new("127.0.0.1", 1, None), move || {
        counted.fetch_add(1, Ordering::Relaxed);
        let answered = wait.lock().map(|wait| wait.recv());
        drop(answered);
        ServerLocation::Gone
    });
    for _ in 0..3 {
        // The caller gives up.
        let look = tokio::time::timeout(Duration::from_millis(20), search.look());
        look.await.expect_err("nobody answers");
    }
    answer.send(()).expect("it still waits");
    assert!(search.look().await, "the answer of the only one");
    assert_eq!(looks.load(Ordering::Relaxed), 1);
}
