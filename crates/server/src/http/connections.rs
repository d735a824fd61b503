//! The connections of the HTTP listener: how many there may be, and for how long a peer may say nothing.
//!
//! Any user of the machine can connect. Descriptors are shared with the planes of clients and workers, so that a
//! stranger who opens connections and sends nothing must not be able to take them all: there is a limit, and at
//! the limit those who have not shown the token make room, the oldest first.

use std::collections::VecDeque;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

use crate::descriptors;

/// Most connections; a browser has up to six, of which one follows the events.
const CONNECTIONS_MAX: usize = 256;
/// How long a request may take to arrive, and how long a connection is kept without one.
const REQUEST_WAIT_MAX: Duration = Duration::from_secs(20);
/// Pause after a failed accept, e.g. when no descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Least time between two messages about that.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(10);

/// Whether a request on a connection was admitted; part of each request.
#[derive(Clone, Default)]
pub(super) struct Admitted(Arc<AtomicBool>);

impl Admitted {
    pub(super) fn note(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_known(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Open connections, the oldest first.
struct Open {
    connections: VecDeque<(Admitted, AbortHandle)>,
    tasks: JoinSet<()>,
    max: usize,
}

impl Open {
    /// Forgets connections that have ended; returns the number of the others.
    fn forget_ended(&mut self) -> usize {
        while self.tasks.try_join_next().is_some() {}
        self.connections.retain(|(_, task)| !task.is_finished());
        self.tasks.len()
    }

    /// Makes room for one more. If everybody there has shown the token, the newcomer has to go.
    async fn make_room(&mut self) -> bool {
        // The descriptor is free when the task is gone, which is a moment after it was told to end.
        while self.forget_ended() >= self.max {
            let mut open = self.connections.iter();
            let stranger = open.position(|(admitted, _)| !admitted.is_known());
            let Some((_, task)) = stranger.and_then(|found| self.connections.remove(found)) else {
                return false;
            };
            task.abort();
            self.tasks.join_next().await;
        }
        true
    }
}

/// Accepts until dropped, which ends all connections.
pub(super) async fn serve(listener: TcpListener, router: Router) {
    let mut open = Open {
        connections: VecDeque::new(),
        tasks: JoinSet::new(),
        max: descriptors::share(CONNECTIONS_MAX),
    };
    let mut complained: Option<Instant> = None;
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    if !open.make_room().await {
                        tracing::debug!(%peer, "too many HTTP connections");
                        continue;
                    }
                    let admitted = Admitted::default();
                    let connection = connection(stream, peer, router.clone(), admitted.clone());
                    let task = open.tasks.spawn(connection);
                    open.connections.push_back((admitted, task));
                }
                Err(error) => {
                    let is_news = complained.is_none_or(|at| at.elapsed() >= COMPLAINT_INTERVAL);
                    if is_news {
                        complained = Some(Instant::now());
                        tracing::warn!(%error, "cannot accept an HTTP connection; trying again");
                    }
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_) = open.tasks.join_next() => {
                open.forget_ended();
            }
        }
    }
}

fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    router: Router,
    admitted: Admitted,
) -> impl Future<Output = ()> + Send {
    let routes = TowerToHyperService::new(router);
    let service = service_fn(move |mut request: hyper::Request<Incoming>| {
        request.extensions_mut().insert(admitted.clone());
        routes.call(request)
    });
    async move {
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(REQUEST_WAIT_MAX);
        let served = builder.serve_connection(TokioIo::new(stream), service);
        if let Err(error) = served.await {
            tracing::debug!(%peer, %error, "an HTTP connection ended");
        }
    }
}
