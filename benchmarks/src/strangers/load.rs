//! Connections with a right below the owner's.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::ValueEnum;
use hq_protocol::client::{self, request::Request};
use hq_protocol::{Plane, SecretKey};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};

/// Bytes that only strangers send.
pub(super) const GARBAGE: &str = "garbage-that-no-log-may-contain";

/// A right below the owner's: none, that of a key, or that of a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Right {
    #[default]
    Stranger,
    Worker,
    Client,
    Read,
    Submit,
}

impl Right {
    pub(super) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

/// The behavior of each connection of the load.
#[derive(Clone, Default)]
pub(super) struct Load {
    pub(super) right: Right,
    /// The ports for clients, workers and, except for plain strangers, HTTP.
    pub(super) ports: Vec<u16>,
    pub(super) key: Option<SecretKey>,
    pub(super) token: String,
    /// The pause before a connection that was closed is opened again.
    pub(super) pause: Duration,
    /// The number of strangers' connections so far.
    pub(super) opened: Arc<AtomicUsize>,
}

impl Load {
    /// Runs this many connections, each with a number, until dropped.
    pub(super) fn start(&self, count: usize) -> Result<Runtime> {
        let runtime = runtime()?;
        for number in 0..count {
            let load = self.clone();
            runtime.spawn(async move {
                loop {
                    // The connection was closed or rejected. It is opened again.
                    let _ = load.connect(number).await;
                    tokio::task::yield_now().await;
                    if !load.pause.is_zero() {
                        tokio::time::sleep(load.pause).await;
                    }
                }
            });
        }
        Ok(runtime)
    }

    pub(super) fn opened(&self) -> usize {
        self.opened.load(Ordering::Relaxed)
    }

    /// Runs one connection until it is closed.
    async fn connect(&self, number: usize) -> Result<()> {
        match self.right {
            Right::Stranger => {
                let mut stream = self.dial(number % self.ports.len()).await?;
                self.opened.fetch_add(1, Ordering::Relaxed);
                if number % 4 < 2 {
                    stream.write_all(GARBAGE.repeat(8).as_bytes()).await?;
                }
                until_closed(&mut stream).await
            }
            Right::Worker => self.with_key(Plane::Worker, 1, None).await,
            Right::Client => {
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
                self.with_key(Plane::Client, 0, request).await
            }
            Right::Read | Right::Submit => self.with_token(number % 3).await,
        }
    }

    /// Repeats a request, or sends nothing after the handshake.
    async fn with_key(&self, plane: Plane, port: usize, request: Option<Request>) -> Result<()> {
        let stream = self.dial(port).await?;
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

    async fn with_token(&self, kind: usize) -> Result<()> {
        let mut stream = self.dial(2).await?;
        let token = &self.token;
        let head = format!("HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n");
        let (request, is_repeated) = match (self.right, kind) {
            (Right::Submit, 0 | 1) => {
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

    async fn dial(&self, port: usize) -> Result<TcpStream> {
        let port = *self.ports.get(port).context("no such port")?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        Ok(TcpStream::connect(address).await?)
    }
}

pub(super) fn runtime() -> std::io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
}

async fn until_closed(stream: &mut TcpStream) -> Result<()> {
    let mut bytes = [0; 4_096];
    while stream.read(&mut bytes).await? > 0 {}
    Ok(())
}
