//! Question: what do a thousand unauthenticated connections cost a busy server?
//!
//! Half of the connections send garbage, and half send nothing. A connection that the server closes
//! is reopened a second later. Both ports are used. Meanwhile a job runs repeatedly, alternating
//! with the same job without the connections. The benchmark also prints the server's memory before,
//! at its peak and afterwards; its memory after one more wave without a job, because jobs also
//! leave something in memory; and whether its log contains received bytes.
//!
//! With `--right`, the question is: what can the holder of a lesser role take from the owner? The
//! roles are `stranger`, `worker` or `client` (with that key), `read` or `submit` (with a token),
//! or `all` of them in turn. Connections of that role send long-lasting requests, nothing, or
//! incomplete requests, and reconnect when they are closed. Another program gets the same load for
//! the same time. The benchmark prints the durations of the owner's `job list` for both, and for hq
//! also a worker's registration time and the memory. Run it on one cpu: `taskset -c 0`.
//!
//! ```text
//! cargo run --release -p hq-benchmarks --bin strangers -- [--hq PATH] [--count N] [--connections N]
//!     [--seconds N] [--right NAME]
//! ```

#![forbid(unsafe_code)]

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hq_benchmarks::cluster::{Cluster, resident_kib};
use hq_benchmarks::stats::Rounds;
use hq_benchmarks::{options, scratch_dir};

/// Bytes that only strangers send.
const GARBAGE: &str = "garbage-that-no-log-may-contain";
/// The number of threads that hold the strangers' connections.
const THREADS: usize = 4;
/// The pause before a stranger that was rejected tries again.
const REOPEN_PAUSE: Duration = Duration::from_secs(1);
/// The pause between two passes over all connections of a thread.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// How long the wave without a job takes.
const IDLE_WAVE: Duration = Duration::from_secs(10);
/// The pause between closing the connections and measuring the memory.
const SETTLE: Duration = Duration::from_secs(8);

#[path = "strangers/rights.rs"]
mod rights;

struct Options {
    /// The rights to try instead of measuring throughput.
    rights: Vec<rights::Right>,
    hq: PathBuf,
    count: u32,
    connections: usize,
    time: Duration,
}

fn main() -> Result<()> {
    let options = parse(std::env::args().skip(1))?;
    let dir = scratch_dir("strangers", &std::env::temp_dir())?;
    if options.rights.is_empty() {
        return run(&options, dir.path());
    }
    for right in &options.rights {
        let dir = dir.path().join(right.name());
        std::fs::create_dir(&dir)?;
        rights::run(*right, &options, &dir)?;
    }
    Ok(())
}

fn parse(args: impl Iterator<Item = String>) -> Result<Options> {
    let mut chosen = Options {
        rights: Vec::new(),
        hq: options::hq_beside()?,
        count: 5_000,
        connections: 1_000,
        time: Duration::from_secs(60),
    };
    options::each(args, |name, value| {
        match name {
            "--hq" => chosen.hq = value.file()?,
            "--count" => chosen.count = value.get()?,
            "--connections" => chosen.connections = value.get()?,
            "--right" => chosen.rights = rights::Right::parse(&value.get::<String>()?)?,
            "--seconds" => chosen.time = Duration::from_secs(value.get()?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    Ok(chosen)
}

#[expect(
    clippy::print_stdout,
    reason = "the figures are the product of this program"
)]
fn run(options: &Options, dir: &Path) -> Result<()> {
    let cluster = Cluster::start(&options.hq, dir, 2, &[])?;
    let ports = ports(&cluster)?;
    let array = format!("--array=1-{}", options.count);
    let submit = [
        "submit",
        &array,
        "--stdout=none",
        "--stderr=none",
        "--wait",
        "--",
        "/bin/true",
    ];
    cluster.time_tasks(&submit, options.count)?;
    let before = resident_kib(cluster.server_pid())?;
    let (mut alone, mut among) = (Rounds::default(), Rounds::default());
    let (mut peak, mut opened, mut under_siege) = (before, 0, Duration::ZERO);
    while under_siege < options.time {
        alone.push(cluster.time_tasks(&submit, options.count)?);
        let start = Instant::now();
        let strangers = Strangers::start(ports, options.connections);
        // Wait until all connections have been opened once.
        while strangers.opened() < options.connections as u64 {
            std::thread::sleep(LOOK_INTERVAL);
        }
        among.push(cluster.time_tasks(&submit, options.count)?);
        peak = peak.max(resident_kib(cluster.server_pid())?);
        opened += strangers.end();
        under_siege += start.elapsed();
    }
    std::thread::sleep(SETTLE);
    let after = resident_kib(cluster.server_pid())?;
    let strangers = Strangers::start(ports, options.connections);
    std::thread::sleep(IDLE_WAVE);
    opened += strangers.end();
    std::thread::sleep(SETTLE);
    let after_idle = resident_kib(cluster.server_pid())?;
    let log = std::fs::read_to_string(dir.join("server.log"))?;
    let rate = |rounds: &Rounds| -> Result<f64> {
        let (_, median, _) = rounds.spread().context("no rounds")?;
        Ok(f64::from(options.count) / median.as_secs_f64())
    };
    println!(
        "{} tasks: {:.0} /s alone, {:.0} /s among {} strangers ({opened} connections in {under_siege:.0?})",
        options.count,
        rate(&alone)?,
        rate(&among)?,
        options.connections
    );
    println!("ratio: {:.2}", among.ratio_to(&alone).unwrap_or_default());
    println!(
        "server: {before} KiB before, {peak} KiB among them, {after} KiB after, {after_idle} KiB after one more wave"
    );
    println!("received bytes in its log: {}", log.contains(GARBAGE));
    Ok(())
}

/// Returns the client port and the worker port.
fn ports(cluster: &Cluster) -> Result<[u16; 2]> {
    let output = cluster
        .command(&["server", "info", "--output-mode=json"])
        .output()?;
    let info: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let port = |name: &str| -> Result<u16> {
        let number = info[name].as_u64().context("no port")?;
        Ok(u16::try_from(number)?)
    };
    Ok([port("client_port")?, port("worker_port")?])
}

/// Connections that are held and reopened until they are asked to end.
struct Strangers {
    is_over: Arc<AtomicBool>,
    opened: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Strangers {
    fn start(ports: [u16; 2], count: usize) -> Self {
        let (is_over, opened) = (Arc::default(), Arc::default());
        let threads = (0..THREADS)
            .map(|_| {
                let (is_over, opened) = (Arc::clone(&is_over), Arc::clone(&opened));
                std::thread::spawn(move || besiege(ports, count / THREADS, &is_over, &opened))
            })
            .collect();
        Self {
            is_over,
            opened,
            threads,
        }
    }

    /// Returns the number of connections so far.
    fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Closes all connections and returns how many there were.
    fn end(self) -> u64 {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            // The thread does not panic.
            let _ = thread.join();
        }
        self.opened.load(Ordering::Relaxed)
    }
}

/// A connection, or the time of its next attempt.
enum Stranger {
    Here(TcpStream),
    Away(Instant),
}

fn besiege(ports: [u16; 2], count: usize, is_over: &AtomicBool, opened: &AtomicU64) {
    let mut strangers: Vec<Stranger> = (0..count).map(|_| Stranger::Away(Instant::now())).collect();
    while !is_over.load(Ordering::Relaxed) {
        for (index, stranger) in strangers.iter_mut().enumerate() {
            let is_silent = index % 4 < 2;
            match stranger {
                Stranger::Here(stream) => {
                    if is_closed(stream) {
                        *stranger = Stranger::Away(Instant::now() + REOPEN_PAUSE);
                    }
                }
                Stranger::Away(until) if *until <= Instant::now() => {
                    if let Ok(stream) = open(ports[index % 2], is_silent) {
                        opened.fetch_add(1, Ordering::Relaxed);
                        *stranger = Stranger::Here(stream);
                    } else {
                        *stranger = Stranger::Away(Instant::now() + REOPEN_PAUSE);
                    }
                }
                Stranger::Away(_) => {}
            }
        }
        std::thread::sleep(LOOK_INTERVAL);
    }
}

fn open(port: u16, is_silent: bool) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    if !is_silent {
        // The server may already have closed the connection.
        let _ = stream.write_all(GARBAGE.repeat(8).as_bytes());
    }
    stream.set_nonblocking(true)?;
    Ok(stream)
}

fn is_closed(stream: &mut TcpStream) -> bool {
    let mut bytes = [0; 256];
    match stream.read(&mut bytes) {
        Ok(count) => count == 0,
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}
