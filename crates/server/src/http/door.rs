//! Opens the listener on demand while the server runs.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use hq_core::refusal::Refusal;
use hq_protocol::client;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::{HttpParts, HttpServer};

/// The maximum number of clients that wait for the listener at the same time.
const ASKS_MAX: usize = 16;

type Ask = oneshot::Sender<Result<client::HttpOpened, Refusal>>;

/// The handle for requesting the listener.
#[derive(Clone)]
pub(crate) struct HttpControl(mpsc::Sender<Ask>);

/// The receiving end of [`HttpControl`].
pub(crate) struct HttpControlRx(mpsc::Receiver<Ask>);

/// Creates both ends.
pub(crate) fn door() -> (HttpControl, HttpControlRx) {
    let (tx, rx) = mpsc::channel(ASKS_MAX);
    (HttpControl(tx), HttpControlRx(rx))
}

impl HttpControl {
    /// Opens the listener for this machine only, unless it is already open. Returns its address.
    ///
    /// # Errors
    ///
    /// Returns an error if the listener cannot be opened, or the server ends.
    pub(crate) async fn open(&self) -> Result<client::HttpOpened, Refusal> {
        let (tx, rx) = oneshot::channel();
        self.0
            .send(tx)
            .await
            .map_err(|_| Refusal::shutting_down())?;
        rx.await.map_err(|_| Refusal::shutting_down())?
    }
}

/// Serves the open listener, or opens it on demand, until the future is dropped.
pub(crate) async fn keep(
    opened: Option<HttpServer>,
    instance: PathBuf,
    mut asks: HttpControlRx,
    parts: HttpParts,
) {
    let mut serving = JoinSet::new();
    let mut known = opened.map(|server| begin(server, &parts, &mut serving));
    while let Some(ask) = asks.0.recv().await {
        if known.is_none() {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
            let opened = HttpServer::open(address, &instance).await;
            match opened.and_then(|server| server.publish().map(|()| server)) {
                Ok(server) => known = Some(begin(server, &parts, &mut serving)),
                Err(error) => {
                    // The client may have disconnected.
                    let _ = ask.send(Err(Refusal::failed(format!(
                        "cannot listen for HTTP: {error}"
                    ))));
                    continue;
                }
            }
        }
        if let Some(opened) = &known {
            let _ = ask.send(Ok(opened.clone()));
        }
    }
    while serving.join_next().await.is_some() {}
}

fn begin(server: HttpServer, parts: &HttpParts, serving: &mut JoinSet<()>) -> client::HttpOpened {
    server.announce(&parts.parts.info.client_host);
    let opened = client::HttpOpened {
        address: server.address.to_string(),
        token: server.token.as_str().to_owned(),
        read_token: server.read_token.as_str().to_owned(),
    };
    serving.spawn(server.run(parts.clone()));
    opened
}
