//! Repeats the requests of an open web page.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};

/// The pause between two rounds. After events, the page sends its requests again at most this
/// often.
const ROUND_INTERVAL: Duration = Duration::from_millis(400);
/// The timeout for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// The requests of the overview and of the view of a job. The array is the first job.
const PATHS: [&str; 8] = [
    "/summary",
    "/jobs?limit=1000",
    "/workers",
    "/problems",
    "/ended",
    "/jobs/1",
    "/jobs/1/strip?bins=600",
    "/jobs/1/tasks?limit=100",
];

/// The durations of answers in ascending order, by path.
pub(crate) type Answers = Vec<(&'static str, Vec<Duration>)>;

/// The path that reads old data. The page requests it less often.
const HISTORY: &str = "/history";
/// The page requests it once a minute, or after this multiple of the time that the answer took.
const HISTORY_INTERVAL: Duration = Duration::from_secs(60);
const HISTORY_FACTOR: u32 = 400;

/// Returns a free port for the page.
pub(crate) fn free_port() -> Result<u16> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    Ok(listener.local_addr()?.port())
}

/// Repeats all requests of one open page until `has_ended`.
pub(crate) fn ask_until(server_dir: &Path, port: u16, has_ended: &AtomicBool) -> Result<Answers> {
    let token = std::fs::read_to_string(server_dir.join("hq-current/http-token"))
        .context("no token for the page")?;
    let mut answers: Answers = PATHS.map(|path| (path, Vec::new())).into();
    let (mut history, mut history_due) = (Vec::new(), Instant::now());
    while !has_ended.load(Ordering::Relaxed) {
        let round = Instant::now();
        for (path, took) in &mut answers {
            took.push(ask(port, token.trim(), path)?);
        }
        if round >= history_due {
            let to = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis();
            let from = to.saturating_sub(600_000);
            let path = format!("{HISTORY}?from_ms={from}&to_ms={to}&steps=120");
            let took = ask(port, token.trim(), &path)?;
            history.push(took);
            history_due = round + HISTORY_INTERVAL.max(took * HISTORY_FACTOR);
        }
        std::thread::sleep(ROUND_INTERVAL.saturating_sub(round.elapsed()));
    }
    answers.push((HISTORY, history));
    for (_, took) in &mut answers {
        took.sort_unstable();
    }
    Ok(answers)
}

/// Sends one request. Returns the time until the answer was complete.
fn ask(port: u16, token: &str, path: &str) -> Result<Duration> {
    let begun = Instant::now();
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
    let request = format!(
        "GET /api/v1{path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n\
         Accept-Encoding: gzip\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    ensure!(
        answer.starts_with(b"HTTP/1.1 200 "),
        "GET {path}: {}",
        String::from_utf8_lossy(answer.get(..200).unwrap_or(&answer))
    );
    Ok(begun.elapsed())
}
