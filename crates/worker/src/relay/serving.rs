//! The thread of a relay: it accepts workers, keeps a connection to the server, and announces
//! itself.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use hq_core::error_chain::ErrorChain;
use hq_protocol::access::RelayAddress;
use hq_protocol::admission::{Pool, Share, descriptors, port};
use hq_protocol::convert::{FromServer, RelayRequest};
use hq_protocol::relay::{RelayLink, Side, Terms};
use hq_protocol::worker::{ToServer, ToWorker};
use hq_protocol::{Connection, MessageReader, MessageWriter};
use tokio::io::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout};

use super::announcer::Announcer;
use super::state::{Never, State};
use super::{RelayError, peer, terms};
use crate::server_link::{Search, set_options_at_relay, spread};

/// How long workers have to say goodbye when they end together with the relay. This is longer than
/// they need to kill tasks that ignore the stop signal.
pub(super) const LINGER_MAX: Duration = Duration::from_secs(7);
/// The pause between two checks whether all workers have left.
const LINGER_STEP: Duration = Duration::from_millis(20);

/// How long to wait for the server's answer to a relay.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(15);

/// The pause between attempts to reach a lost server doubles from this value up to the maximum.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// How a relay ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stop {
    /// The relay ends at once. Connected workers look for another route.
    Now,
    /// The relay ends when all workers have left, or after [`LINGER_MAX`].
    Linger,
}

/// The arguments of the thread.
pub(super) struct Serving {
    pub(super) search: Search,
    pub(super) request: RelayRequest,
    pub(super) addresses: Vec<RelayAddress>,
    pub(super) workers: watch::Sender<usize>,
    pub(super) stopped: oneshot::Receiver<Stop>,
}

type Halves = (
    MessageReader<ReadHalf<TcpStream>>,
    MessageWriter<WriteHalf<TcpStream>>,
    Terms,
);

/// The main function of the thread. It reports to `started` whether the relay works, and if not,
/// why.
pub(super) fn run(
    serving: Serving,
    listener: StdListener,
    runtime: fn() -> io::Result<Runtime>,
    started: oneshot::Sender<Result<(), RelayError>>,
) {
    match runtime() {
        Ok(runtime) => {
            runtime.block_on(serve(serving, listener, started));
            // A hanging file system must not block the shutdown.
            runtime.shutdown_background();
        }
        Err(error) => drop(started.send(Err(RelayError::Thread(error)))),
    }
}

async fn serve(
    serving: Serving,
    listener: StdListener,
    started: oneshot::Sender<Result<(), RelayError>>,
) {
    let Serving {
        mut search,
        request,
        addresses,
        workers,
        mut stopped,
    } = serving;
    let state = Arc::new(State::new(workers));
    let opened = tokio::select! {
        opened = first_link(&mut search, &request, listener) => opened,
        _ = &mut stopped => return,
    };
    let (listener, halves) = match opened {
        Ok(opened) => opened,
        Err(error) => return drop(started.send(Err(error))),
    };
    if started.send(Ok(())).is_err() {
        return;
    }
    let mut announcer = Announcer::new(&request, addresses);
    let mut linked = std::pin::pin!(keep_link(halves, &mut search, &request, &state));
    let how = tokio::select! {
        never = accept(listener, &state) => match never {},
        never = announcer.keep(&state) => match never {},
        never = &mut linked => match never {},
        how = &mut stopped => how.unwrap_or(Stop::Now),
    };
    // The port is already closed, so the announcement must go, and new workers choose another
    // route.
    announcer.withdraw().await;
    tracing::debug!(?how, "the relay ends");
    if how == Stop::Linger && !state.is_unused() {
        tracing::info!(
            "The relay stays up to {} s for the workers behind it",
            LINGER_MAX.as_secs()
        );
        tokio::select! {
            never = linked => match never {},
            () = all_gone(&state) => {}
        }
    }
}

/// Connects for the first time, with the same retries as a worker that registers.
async fn first_link(
    search: &mut Search,
    request: &RelayRequest,
    listener: StdListener,
) -> Result<(TcpListener, Halves), RelayError> {
    let listener = TcpListener::from_std(listener).map_err(RelayError::Thread)?;
    let retry = search.place().register_retry;
    let mut attempt = 1;
    loop {
        let opened = match search.connect().await {
            Ok(connection) => open(connection, request).await,
            Err(error) => Err(RelayError::Connect(error)),
        };
        match opened {
            Ok(halves) => return Ok((listener, halves)),
            Err(error) if attempt >= retry.attempts || !error.is_retryable() => return Err(error),
            Err(error) => {
                tracing::warn!("Not a relay yet, will try again: {}", ErrorChain(&error));
            }
        }
        attempt += 1;
        tokio::time::sleep(spread(retry.pause)).await;
        search.look().await;
    }
}

/// Introduces this connection to the server as a relay's connection.
async fn open(
    connection: Connection<TcpStream>,
    request: &RelayRequest,
) -> Result<Halves, RelayError> {
    set_options_at_relay(connection.stream()).map_err(RelayError::Thread)?;
    let (mut reader, mut writer) = connection.split();
    let asked = writer.send(&ToServer::from(request)).await;
    asked.map_err(|_| RelayError::NoAnswer)?;
    let answer = timeout(ANSWER_TIMEOUT, reader.next::<ToWorker>()).await;
    let Ok(Ok(Some(answer))) = answer else {
        return Err(RelayError::NoAnswer);
    };
    match FromServer::try_from(answer) {
        Ok(FromServer::RelayOpened(terms)) => Ok((reader, writer, terms)),
        Ok(FromServer::Refused(reason)) => Err(RelayError::Refused(reason)),
        Ok(_) | Err(_) => Err(RelayError::NoAnswer),
    }
}

/// Carries messages between workers and server, and reconnects when the server is lost.
async fn keep_link(
    first: Halves,
    search: &mut Search,
    request: &RelayRequest,
    state: &State,
) -> Never {
    let mut halves = Some(first);
    let mut pause = PAUSE_MIN;
    loop {
        if let Some((reader, writer, theirs)) = halves.take() {
            pause = PAUSE_MIN;
            let link = RelayLink::new(Side::Relay, terms(), theirs);
            state.set_link(Some(link.clone()), search);
            let error = link.run(reader, writer, |_, _| {}).await;
            state.set_link(None, search);
            tracing::warn!(
                "The relay has lost the server; its workers look for another route: {}",
                ErrorChain(&error)
            );
        }
        tokio::time::sleep(spread(pause)).await;
        pause = (pause * 2).min(PAUSE_MAX);
        search.look().await;
        let place = search.place().clone();
        let connected = place.connect_directly().await;
        let opened = match connected {
            Ok(connection) => open(connection, request).await,
            Err(error) => Err(RelayError::Connect(error)),
        };
        match opened {
            Ok(opened) => {
                tracing::info!("The relay has reached the server again");
                halves = Some(opened);
            }
            Err(RelayError::Refused(reason)) if state.is_time_to_complain() => {
                tracing::error!("{}", RelayError::Refused(reason));
            }
            Err(error) => tracing::debug!("the relay cannot reach the server: {error}"),
        }
    }
}

async fn accept(listener: TcpListener, state: &Arc<State>) -> Infallible {
    let share = Share::relay(descriptors(), terms().channels_max);
    let serve = |stream, peer: SocketAddr, permit| {
        // An IPv4 address is logged as such and not in its IPv6 form.
        let peer = SocketAddr::new(peer.ip().to_canonical(), peer.port());
        let state = Arc::clone(state);
        async move {
            if let Some(stream) = peer::admit(stream, &state).await {
                // This runs as a separate task, because workers stay connected after the relay
                // stops accepting.
                drop(tokio::spawn(peer::carry(stream, peer, state, permit)));
            }
        }
    };
    port::serve(listener, Pool::new(share), "workers to the relay", serve).await
}

/// Waits for a bounded time until all workers have left and the last bytes are sent.
async fn all_gone(state: &State) {
    let start = Instant::now();
    while start.elapsed() < LINGER_MAX {
        let is_settled = state.link().is_none_or(|link| link.is_settled());
        if state.is_unused() && is_settled {
            return;
        }
        tokio::time::sleep(LINGER_STEP).await;
    }
}
