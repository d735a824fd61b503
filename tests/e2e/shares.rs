//! Lesser roles and strangers can only take the rest of their own share from the owner and the
//! workers.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hq_protocol::Plane;
use hq_protocol::access::AccessFile;

use crate::harness::{Env, wait_for};
use crate::http::Site;
use crate::impostors::{PUBLIC, copy_of_access};
use crate::tokens::made;

/// How long the owner may have to wait. It took several times as long when each silent stranger had
/// a second before it yielded.
const PATIENCE: Duration = Duration::from_secs(3);

fn port(env: &Env, plane: &str) -> u16 {
    let info = env.json(&["server", "info"]);
    let port = info[format!("{plane}_port")].as_u64();
    port.and_then(|port| port.try_into().ok()).expect("a port")
}

/// Silent connections that are reopened as soon as they are closed, until dropped.
struct Flood {
    is_over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Flood {
    fn start(port: u16, count: usize) -> Self {
        let (is_over, opened) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicUsize::new(0)),
        );
        let (over, counted) = (Arc::clone(&is_over), Arc::clone(&opened));
        let thread = std::thread::spawn(move || {
            let mut streams: Vec<Option<TcpStream>> = Vec::new();
            streams.resize_with(count, || None);
            while !over.load(Ordering::Relaxed) {
                for slot in &mut streams {
                    let is_open = slot.as_mut().is_some_and(|stream| {
                        let read = stream.read(&mut [0; 64]);
                        read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
                    });
                    if !is_open {
                        *slot = TcpStream::connect(("127.0.0.1", port)).ok();
                        let set = |stream: &TcpStream| stream.set_nonblocking(true);
                        slot.as_ref().map(set).transpose().expect("an option");
                        counted.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        });
        wait_for("all strangers have come", || {
            let count_now = opened.load(Ordering::Relaxed);
            (count_now >= count)
                .then_some(())
                .ok_or(count_now.to_string())
        });
        Self {
            is_over,
            thread: Some(thread),
        }
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread does not panic.
            let _ = thread.join();
        }
    }
}

#[test]
fn strangers_that_come_again_keep_neither_owner_nor_workers_waiting() {
    let mut env = Env::new();
    env.start_server();
    let listed = |env: &Env| {
        let begin = Instant::now();
        env.hq(&["job", "list"]).ok();
        begin.elapsed()
    };
    // The machine may be busy with other tests.
    let patience = PATIENCE + 10 * listed(&env);
    let flood = Flood::start(port(&env, "client"), 1_500);
    for _ in 0..3 {
        let took = listed(&env);
        assert!(took < patience, "{took:?} of {patience:?}");
    }
    drop(flood);
    let _flood = Flood::start(port(&env, "worker"), 1_500);
    let begin = Instant::now();
    env.start_worker(1);
    assert!(begin.elapsed() < 2 * patience, "{:?}", begin.elapsed());
}

#[test]
fn silent_holders_of_a_key_yield_to_workers_that_register() {
    let mut env = Env::new();
    env.start_server_behind(&["prlimit", "--nofile=256:256"], &[]);
    let file = AccessFile::load_any(&env.path("server/hq-current/access.json"));
    let file = file.expect("ours").worker_only();
    let access = file.worker.expect("the part of workers");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let connect = async || {
        let stream = hq_protocol::connect_tcp(&access.host, access.port).await;
        let stream = stream.expect("it listens");
        hq_protocol::connect(stream, Plane::Worker, access.key.as_ref()).await
    };
    let _silent: Vec<_> = (0..150)
        .map(|_| runtime.block_on(connect()).expect("a worker's key"))
        .collect();
    env.start_worker(1);
    assert_eq!(env.workers(), ["RUNNING"]);
}

#[test]
fn waiting_clients_with_the_key_of_clients_leave_room_for_the_owner_and_for_workers() {
    let mut env = Env::new();
    env.start_server_behind(&["prlimit", "--nofile=128:128"], &[]);
    env.submit(&["--", "sleep", "1000"]);
    let dir = copy_of_access(&env, "client", PUBLIC, Some("client"));
    for number in 0..24 {
        env.spawn(&format!("waits{number}"), &["job", "wait", "1", &dir]);
    }
    let refused = |env: &Env| {
        let logs = (0..24).map(|number| env.read(&format!("waits{number}.log")));
        logs.filter(|log| log.contains("too many clients are connected"))
            .count()
    };
    // Three quarters of 20 requests wait.
    wait_for("the others are refused", || {
        (refused(&env) == 9)
            .then_some(())
            .ok_or(refused(&env).to_string())
    });
    env.hq(&["job", "list", &dir])
        .says("too many clients")
        .exits_with(1);
    env.hq(&["job", "list"]).ok();
    env.start_worker(1);
    env.wait_running("1", 1);
}

/// Sends requests whose answers are not read.
fn held(site: &Site, count: usize, lines: &str, body: &str) -> Vec<TcpStream> {
    let request = format!(
        "{lines} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n{body}",
        site.address, site.token
    );
    let send = |_| {
        let mut stream = TcpStream::connect(&site.address).expect("the listener answers");
        stream
            .write_all(request.as_bytes())
            .expect("send a request");
        stream
    };
    (0..count).map(send).collect()
}

#[test]
fn a_token_takes_nothing_of_the_owners_share() {
    let mut env = Env::new();
    env.start_server_behind(&["prlimit", "--nofile=2048:2048"], &["--http"]);
    let owner = Site::of(&env);
    env.submit(&["--", "sleep", "1000"]);
    let reader = made(&env, &owner, "look", "read");
    let other = made(&env, &owner, "other", "read");
    let submitter = made(&env, &owner, "ci", "submit");
    let crowded = |site: &Site, path: &str| {
        wait_for("the share of the token is used up", || {
            let status = site.get(path).status;
            (status == 503).then_some(()).ok_or(status.to_string())
        });
    };
    // This is half of three quarters of 192 connections.
    let waits = held(
        &reader,
        72,
        "GET /api/v1/jobs/1/wait?timeout_ms=600000",
        "\r\n",
    );
    crowded(&reader, "/api/v1/jobs");
    assert_eq!(owner.get("/api/v1/jobs").status, 200);
    assert_eq!(other.get("/api/v1/jobs").status, 200, "a share of its own");
    drop(waits);
    let is_answered = |stream: &TcpStream| {
        let mut begin = [0; 12];
        let (mut stream, limit) = (stream, Some(PATIENCE));
        stream.set_read_timeout(limit).expect("a limit");
        stream.read_exact(&mut begin).expect("an answer");
        begin == *b"HTTP/1.1 200"
    };
    let events = wait_for("the places of the waits are free", || {
        let events = held(&reader, 32, "GET /api/v1/events", "\r\n");
        let are_answered = events.iter().all(is_answered);
        are_answered
            .then_some(events)
            .ok_or("some are refused".to_owned())
    });
    assert_eq!(reader.get("/api/v1/events").status, 503);
    let mine = held(&owner, 1, "GET /api/v1/events", "\r\n");
    assert!(mine.iter().all(is_answered));
    drop((events, mine));
    let slow = "Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{";
    let _bodies = held(&submitter, 8, "POST /api/v1/jobs?submit_dir=/tmp", slow);
    let begin = Instant::now();
    let json = "Content-Type: application/json\r\n";
    let job = r#"{"task":[{"command":["true"]}]}"#;
    let answer = owner.submit("/api/v1/jobs?submit_dir=/tmp", json, job);
    assert_eq!(answer.status, 200, "{}", answer.body);
    // The slow requests have a minute to arrive.
    assert!(begin.elapsed() < Duration::from_secs(30));
}

/// Any user can fill the kernel's queue of connections to a port.
#[test]
fn on_the_machine_of_the_server_the_owner_needs_no_port() {
    let mut env = Env::new();
    env.start_server();
    let sockets = |env: &Env| {
        let entries = std::fs::read_dir(env.path("server/001")).expect("an instance");
        let names = entries.map(|entry| entry.expect("an entry").path());
        names
            .filter(|path| path.extension().is_some_and(|end| end == "sock"))
            .collect::<Vec<_>>()
    };
    let file = env.path("server/001/access.json");
    let given = std::fs::read_to_string(&file).expect("an access file");
    let mut access: serde_json::Value = serde_json::from_str(&given).expect("JSON");
    access["client"]["host"] = "nowhere.invalid".into();
    let rewrite = |content: &str| {
        std::fs::remove_file(&file).expect("ours");
        std::fs::write(&file, content).expect("room");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o400)).expect("ours");
    };
    rewrite(&access.to_string());
    env.hq(&["job", "list"]).ok();
    rewrite(&given);
    let found = sockets(&env);
    assert_eq!(found.len(), 1, "{found:?}");
    // A client that finds none, or that of a server on another machine, uses the port.
    std::fs::remove_file(&found[0]).expect("ours");
    env.hq(&["job", "list"]).ok();
    drop(std::os::unix::net::UnixListener::bind(&found[0]).expect("a socket"));
    env.hq(&["job", "list"]).ok();
    rewrite(&access.to_string());
    env.hq(&["job", "list"]).exits_with(1);
    rewrite(&given);
    env.hq(&["server", "stop"]).ok();
    env.wait_exit("server");
    assert!(sockets(&env).is_empty());
}
