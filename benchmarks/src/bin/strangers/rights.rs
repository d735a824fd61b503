//! Measures what the holder of a lesser right can take from the owner.

#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use hq_benchmarks::cluster::{Cluster, resident_kib};
use hq_protocol::access::AccessFile;
use hq_protocol::client::{self, request::Request};
use hq_protocol::{Plane, SecretKey};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};

use super::Options;

/// The pause between two commands of the owner.
const OWNER_PAUSE: Duration = Duration::from_millis(20);
/// The number of the owner's commands between the starts of two workers.
const WORKER_EVERY: usize = 200;
/// How long to wait for a worker.
const WORKER_TIMEOUT: Duration = Duration::from_secs(20);
/// The number of connections that the program other than hq keeps open.
const SINK_KEEPS: usize = 1_024;

/// A role below the owner's.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Right {
    Stranger,
    WorkerKey,
    ClientKey,
    ReadToken,
    SubmitToken,
}

impl Right {
    const ALL: [Self; 5] = [
        Self::Stranger,
        Self::WorkerKey,
        Self::ClientKey,
        Self::ReadToken,
        Self::SubmitToken,
    ];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Stranger => "stranger",
            Self::WorkerKey => "worker",
            Self::ClientKey => "client",
            Self::ReadToken => "read",
            Self::SubmitToken => "submit",
        }
    }

    /// Returns the role with this name, or all of them.
    pub(super) fn parse(name: &str) -> Result<Vec<Self>> {
        let named = Self::ALL.into_iter();
        let named: Vec<Self> = named
            .filter(|right| name == "all" || right.name() == name)
            .collect();
        ensure!(!named.is_empty(), "--right does not take '{name}'");
        Ok(named)
    }
}

/// What each connection of the load does.
#[derive(Clone)]
struct Load {
    right: Right,
    /// The ports for clients, workers and HTTP.
    ports: [u16; 3],
    key: Option<SecretKey>,
    token: String,
}

impl Load {
    /// Runs this many connections, each with a number, until dropped.
    fn start(&self, count: usize) -> Result<Runtime> {
        let runtime = runtime()?;
        for number in 0..count {
            let load = self.clone();
            runtime.spawn(async move {
                loop {
                    // The connection was closed or rejected. It is opened again.
                    let _ = load.connect(number).await;
                    tokio::task::yield_now().await;
                }
            });
        }
        Ok(runtime)
    }

    /// Runs one connection until it is closed.
    async fn connect(&self, number: usize) -> Result<()> {
        let [clients, workers, http] = self.ports;
        match self.right {
            Right::Stranger => {
                let mut stream = dial(self.ports[number % 3]).await?;
                if number.is_multiple_of(2) {
                    stream
                        .write_all(super::GARBAGE.repeat(8).as_bytes())
                        .await?;
                }
                until_closed(&mut stream).await
            }
            Right::WorkerKey => self.with_key(Plane::Worker, workers, None).await,
            Right::ClientKey => {
                let all = Some(client::selector::Selector::All(client::Empty {}));
                let watch = client::Watch {
                    jobs: Some(client::Selector { selector: all }),
                    ..client::Watch::default()
                };
                let request = match number % 3 {
                    0 => None,
                    1 => Some(Request::Watch(watch)),
                    _ => Some(Request::ServerInfo(client::Empty {})),
                };
                self.with_key(Plane::Client, clients, request).await
            }
            Right::ReadToken | Right::SubmitToken => self.with_token(http, number % 3).await,
        }
    }

    /// Repeats a request, or sends nothing after the handshake.
    async fn with_key(&self, plane: Plane, port: u16, request: Option<Request>) -> Result<()> {
        let stream = dial(port).await?;
        let connection = hq_protocol::connect(stream, plane, self.key.as_ref()).await?;
        let (mut reader, mut writer) = connection.split();
        while request.is_some() {
            let request = request.clone();
            writer.send(&client::Request { request }).await?;
            let answer = reader.next::<client::Reply>().await?;
            answer.context("closed")?;
        }
        reader.next::<client::Reply>().await?.context("closed")?;
        Ok(())
    }

    async fn with_token(&self, port: u16, kind: usize) -> Result<()> {
        let mut stream = dial(port).await?;
        let token = &self.token;
        let head = format!("HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n");
        let (request, is_repeated) = match (self.right, kind) {
            (Right::SubmitToken, 0 | 1) => {
                let path = "/api/v1/jobs?submit_dir=/tmp";
                let body = "Content-Type: application/json\r\nContent-Length: 60000000\r\n\r\n[";
                (format!("POST {path} {head}{body}"), false)
            }
            (_, 0) => (format!("GET /api/v1/events {head}\r\n"), false),
            (_, 1) => {
                let path = "/api/v1/jobs/1/wait?timeout_ms=600000";
                (format!("GET {path} {head}\r\n"), false)
            }
            _ => (format!("GET /api/v1/jobs {head}\r\n"), true),
        };
        let mut answer = vec![0; 16 << 10];
        loop {
            stream.write_all(request.as_bytes()).await?;
            if !is_repeated {
                return until_closed(&mut stream).await;
            }
            // One read returns an answer about a few jobs.
            ensure!(stream.read(&mut answer).await? > 0, "closed");
        }
    }
}

fn runtime() -> std::io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
}

async fn dial(port: u16) -> std::io::Result<TcpStream> {
    TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], port))).await
}

async fn until_closed(stream: &mut TcpStream) -> Result<()> {
    let mut bytes = [0; 4_096];
    while stream.read(&mut bytes).await? > 0 {}
    Ok(())
}

/// A program other than hq that takes the load. It completes the handshake, answers repeated
/// requests, and closes the oldest connections.
async fn sink(listener: TcpListener, plane: Option<Plane>, key: Option<SecretKey>) {
    let mut kept = VecDeque::new();
    loop {
        if let Ok((stream, _)) = listener.accept().await {
            let key = key.clone();
            kept.push_back(tokio::spawn(async move {
                // An error ends the connection as well.
                let _ = match plane {
                    Some(plane) => answer_messages(stream, plane, key).await,
                    None => answer_requests(stream).await,
                };
            }));
        }
        if kept.len() > SINK_KEEPS
            && let Some(oldest) = kept.pop_front()
        {
            oldest.abort();
        }
        tokio::task::yield_now().await;
    }
}

async fn answer_requests(mut stream: TcpStream) -> Result<()> {
    let mut bytes = [0; 4_096];
    while stream.read(&mut bytes).await? > 0 {
        if bytes.starts_with(b"GET /api/v1/jobs HTTP") {
            let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
            stream.write_all(answer).await?;
        }
    }
    Ok(())
}

async fn answer_messages(stream: TcpStream, plane: Plane, key: Option<SecretKey>) -> Result<()> {
    let connection = hq_protocol::accept(stream, plane, key.as_ref()).await?;
    let (mut reader, mut writer) = connection.split();
    while let Some(request) = reader.next::<client::Request>().await? {
        if !matches!(request.request, Some(Request::Watch(_))) {
            writer.send(&client::Reply::default()).await?;
        }
    }
    Ok(())
}

/// Runs the owner's commands for this time. Returns their sorted durations, and the registration
/// times of workers if any are started.
fn observe(
    cluster: &mut Cluster,
    time: Duration,
    with_workers: bool,
) -> Result<(Vec<Duration>, Vec<Duration>, u64)> {
    let begin = Instant::now();
    let (mut lists, mut workers, mut peak) = (Vec::new(), Vec::new(), 0);
    while begin.elapsed() < time {
        lists.push(cluster.time(&["job", "list"])?);
        peak = peak.max(resident_kib(cluster.server_pid())?);
        if with_workers && lists.len() % WORKER_EVERY == WORKER_EVERY / 2 {
            workers.push(register(cluster)?);
        }
        std::thread::sleep(OWNER_PAUSE);
    }
    lists.sort_unstable();
    Ok((lists, workers, peak))
}

/// Starts one more worker. Returns how long it takes until the server lists it.
fn register(cluster: &mut Cluster) -> Result<Duration> {
    let list = ["worker", "list", "--output-mode=quiet"];
    let count = |cluster: &Cluster| -> Result<usize> {
        let output = cluster.command(&list).output()?;
        Ok(String::from_utf8_lossy(&output.stdout).lines().count())
    };
    let before = count(cluster)?;
    let begin = Instant::now();
    cluster.start_worker(&["--cpus=1"])?;
    while begin.elapsed() < WORKER_TIMEOUT {
        if count(cluster)? > before {
            return Ok(begin.elapsed());
        }
    }
    bail!("no worker registered within {WORKER_TIMEOUT:?}")
}

fn quantile(sorted: &[Duration], part: f64) -> Duration {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "an index"
    )]
    let at = (sorted.len() as f64 * part) as usize;
    sorted
        .get(at.min(sorted.len().saturating_sub(1)))
        .copied()
        .unwrap_or_default()
}

/// Returns the load of a role on a server, and the same load on another port, with the key that it
/// needs there.
fn loads(
    right: Right,
    cluster: &Cluster,
    dir: &Path,
) -> Result<(Load, Option<(Plane, SecretKey)>)> {
    let [clients, workers] = super::ports(cluster)?;
    let instance = cluster.server_dir().join("hq-current");
    let full = AccessFile::load_any(&instance.join("access.json"))?;
    let log = std::fs::read_to_string(dir.join("server.log"))?;
    let http = log.split_once("Dashboard at http://127.0.0.1:");
    let http = http.and_then(|(_, rest)| rest.split_once('/'));
    let http = http.context("no HTTP address")?.0.parse()?;
    let (lesser, all) = match right {
        Right::WorkerKey => (
            full.worker_only().worker,
            full.worker.map(|a| (Plane::Worker, a)),
        ),
        Right::ClientKey => (
            full.client_only().client,
            full.client.map(|a| (Plane::Client, a)),
        ),
        Right::Stranger | Right::ReadToken | Right::SubmitToken => (None, None),
    };
    let token = match right {
        Right::ReadToken => std::fs::read_to_string(instance.join("http-read-token"))?,
        Right::SubmitToken => {
            let create = [
                "token",
                "create",
                "ci",
                "--role=submit",
                "--output-mode=quiet",
            ];
            String::from_utf8(cluster.command(&create).output()?.stdout)?
        }
        Right::Stranger | Right::WorkerKey | Right::ClientKey => String::new(),
    };
    let load = Load {
        right,
        ports: [clients, workers, http],
        key: lesser.and_then(|access| access.key),
        token: token.trim().to_owned(),
    };
    let sink = all.and_then(|(plane, access)| Some((plane, access.key?)));
    Ok((load, sink))
}

#[expect(
    clippy::print_stdout,
    reason = "the figures are the product of this program"
)]
pub(super) fn run(right: Right, options: &Options, dir: &Path) -> Result<()> {
    let mut cluster = Cluster::start(&options.hq, dir, 1, &["--http=127.0.0.1:0"])?;
    cluster.time(&["submit", "--", "sleep", "100000"])?;
    let (load, sink_key) = loads(right, &cluster, dir)?;
    let (quiet, quiet_workers, quiet_peak) = observe(&mut cluster, options.time / 4, true)?;
    let server = runtime()?;
    let listener = server.block_on(TcpListener::bind("127.0.0.1:0"))?;
    let ports = [listener.local_addr()?.port(); 3];
    let (plane, key) = sink_key.unzip();
    server.spawn(sink(listener, plane, key));
    let running = Load {
        ports,
        ..load.clone()
    }
    .start(options.connections)?;
    let (control, _, _) = observe(&mut cluster, options.time, false)?;
    running.shutdown_background();
    server.shutdown_background();
    let running = load.start(options.connections)?;
    let (among, among_workers, peak) = observe(&mut cluster, options.time, true)?;
    running.shutdown_background();
    let told = |name: &str, lists: &[Duration]| {
        let [median, p99] = [0.5, 0.99].map(|part| quantile(lists, part));
        println!(
            "  job list, {name}: median {median:.1?}, p99 {p99:.1?} ({} times)",
            lists.len()
        );
        p99.as_secs_f64()
    };
    println!(
        "{}: {} connections, {:?}",
        right.name(),
        options.connections,
        options.time
    );
    told("without a load", &quiet);
    let base = told("the load at another program", &control);
    let ratio = told("the load at hq", &among) / base;
    println!("  p99 ratio: {ratio:.2}");
    let slowest = |times: &[Duration]| times.iter().max().copied().unwrap_or_default();
    println!(
        "  worker registered: {:.2?} without, {:.2?} with",
        slowest(&quiet_workers),
        slowest(&among_workers)
    );
    println!(
        "  memory of the server: {} MiB more",
        peak.saturating_sub(quiet_peak) >> 10
    );
    Ok(())
}
