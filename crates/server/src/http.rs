//! The HTTP listener, which serves the web dashboard, its API, and metrics for Prometheus. Without
//! a token, only the login page is served.
//!
//! It reads the state through [`CoreHandle::query`](crate::core_handle::CoreHandle::query) and the
//! store on separate threads, so that no request can delay the core.

mod api;
mod auth;
mod connections;
mod door;
mod figures;
mod kept;
mod packed;
mod pages;
mod report;
mod revocable;
mod secret;
mod tokens;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hq_protocol::admission::{Permit, ShareFull, acting_as};
use tokio::net::TcpListener;
use tokio::sync::watch;

use crate::metrics;
use crate::parts::Parts;
use crate::request_shares::LOOKS;
pub use api::{JobFormat, JobText, ReadJob};
use auth::{Admission, Authenticator, SignedRequest};
pub(crate) use door::{HttpControl, HttpControlRx, door, keep};
pub use report::report;
pub(crate) use secret::Token;
pub(crate) use tokens::Tokens;

/// The name of the file with the token, in the instance directory.
const TOKEN_FILE_NAME: &str = "http-token";
/// The name of the file with the address.
const ADDRESS_FILE_NAME: &str = "http-address";
/// The name of the file with the read-only token.
const READ_TOKEN_FILE_NAME: &str = "http-read-token";

/// An open listener with its state.
pub(crate) struct HttpServer {
    listener: TcpListener,
    address: SocketAddr,
    token: Token,
    read_token: Token,
    page_key: Token,
    /// The instance directory.
    dir: PathBuf,
}

impl HttpServer {
    /// Opens the listener and generates a new token, which is secret until [`Self::publish`]. Does
    /// not change any file.
    ///
    /// # Errors
    ///
    /// Returns an error if the address cannot be bound, or the system cannot provide random
    /// numbers.
    pub(crate) async fn open(address: SocketAddr, instance: &Path) -> io::Result<Self> {
        let listener = TcpListener::bind(address).await?;
        Ok(Self {
            address: listener.local_addr()?,
            listener,
            token: Token::random()?,
            read_token: Token::random()?,
            page_key: Token::random()?,
            dir: instance.to_path_buf(),
        })
    }

    /// Writes the tokens to files that only their owner can read. This replaces those of an earlier
    /// run, so the instance must belong to this server.
    ///
    /// # Errors
    ///
    /// Returns an error if a file cannot be written.
    pub(crate) fn publish(&self) -> io::Result<()> {
        let address = self.address.to_string();
        hq_private::replace_file(&self.dir.join(ADDRESS_FILE_NAME), address.as_bytes())?;
        self.token.store(&self.dir.join(TOKEN_FILE_NAME))?;
        self.read_token.store(&self.dir.join(READ_TOKEN_FILE_NAME))
    }

    /// Logs the address and how to open it.
    pub(crate) fn announce(&self, host: &str) {
        let address = self.address;
        tracing::info!(
            "Dashboard at http://{address}/ and metrics at http://{address}/metrics, with the token in '{}'; \
             `hq dashboard --web` prints a link that logs in",
            self.dir.join(TOKEN_FILE_NAME).display()
        );
        if address.ip().is_loopback() {
            let port = address.port();
            tracing::info!("From another machine: ssh -N -L {port}:{address} {host}");
        } else {
            tracing::warn!(
                "The HTTP address {address} is reachable from other machines, and everything, including the token, crosses the network unencrypted"
            );
        }
    }

    /// Serves requests until the future is dropped.
    pub(crate) async fn run(self, parts: HttpParts) {
        // Event streams hold a handle to the core. They end when this sender is dropped.
        let (_alive, ended) = watch::channel(());
        let tokens = (self.token, self.read_token, self.page_key);
        let app = Arc::new(App::new(parts, tokens, ended));
        connections::serve(self.listener, router(app)).await;
    }
}

/// The parts of the server that the listener needs.
#[derive(Clone)]
pub(crate) struct HttpParts {
    pub(crate) parts: Arc<Parts>,
    /// The tokens that users have created for programs.
    pub(crate) tokens: Arc<Tokens>,
    /// Parses descriptions of jobs.
    pub(crate) read_job: Option<ReadJob>,
}

/// The state that all requests share.
pub(crate) struct App {
    parts: Arc<Parts>,
    read_job: Option<ReadJob>,
    entrance: Authenticator,
    /// Closed when the listener ends.
    ended: watch::Receiver<()>,
    /// The key of the cookie that gives access to the files of the web dashboard, and to nothing
    /// else.
    page_key: Token,
    kept: kept::ResponseCache,
    graphs: api::Graphs,
}

impl App {
    fn new(
        parts: HttpParts,
        (token, read_token, page_key): (Token, Token, Token),
        ended: watch::Receiver<()>,
    ) -> Self {
        Self {
            entrance: Authenticator::new(token, read_token, parts.tokens),
            read_job: parts.read_job,
            parts: parts.parts,
            ended,
            page_key,
            kept: kept::ResponseCache::default(),
            graphs: api::Graphs::default(),
        }
    }

    /// Returns the role of a request that contains a token or is signed with one. Its connection
    /// then counts toward the token, and no longer yields to other connections.
    ///
    /// # Errors
    ///
    /// Returns the response for an unknown token, or for a token with too many connections.
    fn admits(&self, request: &Request) -> Result<Admission, Box<Response>> {
        let asked = SignedRequest {
            method: request.method(),
            target: request
                .uri()
                .path_and_query()
                .map_or("", |target| target.as_str()),
            headers: request.headers(),
        };
        let admission = self.entrance.admits(asked, now_ms());
        let admission = admission.ok_or_else(|| Box::new(auth::refusal()))?;
        let permit = request.extensions().get::<Arc<Permit>>();
        match permit.map(|permit| permit.prove(admission.holder)) {
            Some(Err(ShareFull)) => Err(Box::new(auth::crowded())),
            Some(Ok(())) | None => Ok(admission),
        }
    }
}

/// Returns the wall-clock time in milliseconds, the unit that JavaScript uses.
fn now_ms() -> i64 {
    jiff::Timestamp::now().as_millisecond()
}

fn router(app: Arc<App>) -> Router {
    Router::new()
        .route("/metrics", get(show_metrics))
        .nest("/api/v1", api::router())
        .fallback(async || (StatusCode::NOT_FOUND, "there is nothing here\n"))
        .layer(middleware::from_fn_with_state(Arc::clone(&app), guard))
        .merge(pages::router())
        .with_state(app)
}

/// Admits requests with a sufficient token, and restricts what browsers may do.
async fn guard(State(app): State<Arc<App>>, mut request: Request, next: Next) -> Response {
    let stats = &app.parts.stats;
    let answering = &app.parts.answering;
    let being_answered = (!request.method().is_safe()).then(|| answering.count());
    let needed = auth::needed(request.method(), request.uri().path());
    let mut response = match app.admits(&request) {
        Ok(Admission {
            role,
            issued,
            holder,
        }) if role >= needed => {
            stats.http_requests.inc();
            request.extensions_mut().insert(role);
            let is_action = !request.method().is_safe();
            let looks = request.method().is_safe() && !api::is_waiting(request.uri().path());
            let answer = async {
                let _permit = match looks {
                    true => Some(LOOKS.enter(holder).await),
                    false => None,
                };
                match issued {
                    Some(issued) => revocable::run(request, next, &issued).await,
                    None => next.run(request).await,
                }
            };
            let response = acting_as(holder, answer).await;
            // A rejected request has not changed anything.
            if is_action && response.status().is_success() {
                app.kept.forget().await;
            }
            response
        }
        Ok(Admission { role, .. }) => {
            stats.http_refused.inc();
            auth::forbidden(role)
        }
        Err(refusal) => {
            stats.http_refused.inc();
            *refusal
        }
    };
    let headers = response.headers_mut();
    for (name, value) in [
        (header::CACHE_CONTROL, "no-store"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    headers
        .entry(header::CONTENT_SECURITY_POLICY)
        .or_insert(HeaderValue::from_static("default-src 'none'"));
    match being_answered {
        Some(counted) => response.map(|body| revocable::holding(counted, body)),
        None => response,
    }
}

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const CLASSIC: &str = "text/plain; version=0.0.4; charset=utf-8";

async fn show_metrics(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    let Ok(figures) = app.parts.core.query(metrics::read).await else {
        return (
            StatusCode::SERVICE_UNAVAILABLE,
            "the server is shutting down\n",
        )
            .into_response();
    };
    let around = figures::around(&app.parts).await;
    let text = metrics::render(&figures, &around, &app.parts.stats);
    let accepted = headers
        .get(header::ACCEPT)
        .and_then(|value| value.to_str().ok());
    let wants_open = accepted.is_some_and(|value| value.contains("application/openmetrics-text"));
    if wants_open {
        ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response()
    } else {
        (
            [(header::CONTENT_TYPE, CLASSIC)],
            metrics::as_classic(&text),
        )
            .into_response()
    }
}
