//! The connections of the HTTP listener.
//!
//! A connection is unauthenticated until a request on it contains a token. From then on, it counts
//! toward that token.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hq_protocol::admission::{Permit, Pool, Share, descriptors, port};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};

/// How long a request may take to arrive, and how long a connection may be idle.
const REQUEST_WAIT_MAX: Duration = Duration::from_secs(20);
/// The maximum size of an incomplete request without its body, in bytes.
const REQUEST_HEAD_MAX: usize = 64 << 10;

/// Accepts connections until the future is dropped, which ends all of them.
pub(super) async fn serve(listener: TcpListener, router: Router) {
    let pool = Pool::new(Share::http(descriptors()));
    let serve = |stream, peer, permit| connection(stream, peer, router.clone(), permit);
    match port::serve(listener, pool, "HTTP", serve).await {}
}

fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
    permit: Permit,
) -> impl Future<Output = ()> + Send {
    let permit = Arc::new(permit);
    let routes = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(Arc::clone(&permit));
        routes.call(request)
    });
    async move {
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(REQUEST_WAIT_MAX)
            .max_buf_size(REQUEST_HEAD_MAX);
        let served = builder.serve_connection(TokioIo::new(stream), service);
        if let Err(error) = served.await {
            tracing::debug!(%peer, %error, "an HTTP connection ended");
        }
    }
}
