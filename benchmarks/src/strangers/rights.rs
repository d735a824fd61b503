//! Measures what the holder of a lesser right can take from the owner.

use std::collections::VecDeque;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use hq_protocol::access::AccessFile;
use hq_protocol::client::{self, request::Request};
use hq_protocol::{Plane, SecretKey};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::Options;
use super::load::{Load, Right, runtime};
use crate::figures::quantile;
use crate::processes::{Cluster, resident_kib};

/// The pause between two commands of the owner.
const OWNER_PAUSE: Duration = Duration::from_millis(20);
/// The number of the owner's commands between the starts of two workers.
const WORKER_EVERY: usize = 200;
/// How long to wait for a worker.
const WORKER_TIMEOUT: Duration = Duration::from_secs(20);
/// The number of connections that the program other than hq keeps open.
const SINK_KEEPS: usize = 1_024;

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
    let count = |cluster: &Cluster| -> Result<usize> { Ok(cluster.output(&list)?.lines().count()) };
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

/// Returns the load of a role on a server, and the same load on another port, with the key that it
/// needs there.
fn loads(right: Right, cluster: &Cluster) -> Result<(Load, Option<(Plane, SecretKey)>)> {
    let [clients, workers] = super::ports(cluster)?;
    let instance = cluster.server_dir().join("hq-current");
    let full = AccessFile::load_any(&instance.join("access.json"))?;
    let log = cluster.log()?;
    let http = log.split_once("Dashboard at http://127.0.0.1:");
    let http = http.and_then(|(_, rest)| rest.split_once('/'));
    let http = http.context("no HTTP address")?.0.parse()?;
    let (lesser, all) = match right {
        Right::Worker => (
            full.worker_only().worker,
            full.worker.map(|a| (Plane::Worker, a)),
        ),
        Right::Client => (
            full.client_only().client,
            full.client.map(|a| (Plane::Client, a)),
        ),
        Right::Stranger | Right::Read | Right::Submit => (None, None),
    };
    let token = match right {
        Right::Read => std::fs::read_to_string(instance.join("http-read-token"))?,
        Right::Submit => {
            let create = [
                "token",
                "create",
                "ci",
                "--role=submit",
                "--output-mode=quiet",
            ];
            cluster.output(&create)?
        }
        Right::Stranger | Right::Worker | Right::Client => String::new(),
    };
    let load = Load {
        right,
        ports: vec![clients, workers, http],
        key: lesser.and_then(|access| access.key),
        token: token.trim().to_owned(),
        ..Load::default()
    };
    let sink = all.and_then(|(plane, access)| Some((plane, access.key?)));
    Ok((load, sink))
}

pub(super) fn run(right: Right, options: &Options, dir: &Path) -> Result<()> {
    let mut cluster = Cluster::start(&options.hq.path()?, dir, 1, &["--http=127.0.0.1:0"])?;
    cluster.time(&["submit", "--", "sleep", "100000"])?;
    let (load, sink_key) = loads(right, &cluster)?;
    let (quiet, quiet_workers, quiet_peak) = observe(&mut cluster, options.time() / 4, true)?;
    let server = runtime()?;
    let listener = server.block_on(TcpListener::bind("127.0.0.1:0"))?;
    let ports = vec![listener.local_addr()?.port(); 3];
    let (plane, key) = sink_key.unzip();
    server.spawn(sink(listener, plane, key));
    let running = Load {
        ports,
        ..load.clone()
    }
    .start(options.connections)?;
    let (control, _, _) = observe(&mut cluster, options.time(), false)?;
    running.shutdown_background();
    server.shutdown_background();
    let running = load.start(options.connections)?;
    let (among, among_workers, peak) = observe(&mut cluster, options.time(), true)?;
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
        options.time()
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
