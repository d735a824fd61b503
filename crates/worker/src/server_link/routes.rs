//! Tries each route to the server once: directly, and through each known relay.
//!
//! Routes are tried in order. Each starts a moment after the previous one, without waiting for it
//! to end, because a firewall that drops packets would cost ten seconds per route. The first route
//! that connects wins; the others are dropped. Once the peer of one route has answered, no other
//! route is started: a server with a thousand returning workers is slow, and would get several
//! connections from each.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hq_core::error_chain::ErrorChain;
use hq_protocol::access::RelayAddress;
use hq_protocol::{Connection, HandshakeError, Plane, relay};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tracing::Level;

use super::{ConnectError, Connector, set_options_at_relay};

/// The head start of the direct route over relays, and of a relay that the user named over the next
/// one. This is enough for a busy or distant server.
const HEAD_START: Duration = Duration::from_secs(3);
const HEAD_START_OF_NAMED: Duration = Duration::from_secs(1);
/// The head start of an announced address. Most machines have several, and some do not work.
const HEAD_START_OF_ANNOUNCED: Duration = Duration::from_millis(200);

/// The timeout of the TCP connection to a relay, which is nearby.
const RELAY_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum number of announced addresses per attempt, chosen randomly.
const ANNOUNCED_MAX: usize = 24;

/// A route to the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Route {
    Direct,
    Relay(RelayAddress),
}

impl fmt::Display for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct => f.write_str("directly"),
            Self::Relay(address) => write!(f, "through the relay {address}"),
        }
    }
}

/// Why a relay cannot be used.
#[derive(Debug, thiserror::Error)]
enum RelayRouteError {
    #[error("connect to it")]
    Tcp(#[source] std::io::Error),
    #[error("get into it")]
    Entry(#[source] relay::EntryError),
    #[error("agree with the server behind it on a connection")]
    Handshake(#[source] HandshakeError),
}

/// The outcome of one attempt.
enum AttemptOutcome {
    Connected(Box<Connection<TcpStream>>, Route),
    Blocked(ConnectError),
    Unusable(RelayAddress, RelayRouteError),
}

/// Connects. `last` is the route used before, which may be lost or bad, so it is tried last among
/// the relays.
///
/// # Errors
///
/// Returns the error of the direct route if no route connects. Errors of relays are logged.
///
/// # Cancel safety
///
/// Dropping the future drops all attempts.
pub(crate) async fn connect(
    place: &Connector,
    last: Option<&Route>,
    level: Level,
) -> Result<(Connection<TcpStream>, Route), ConnectError> {
    let mut routes = in_order(place, last).into_iter();
    if routes.len() == 1 {
        let connection = place.connect_directly().await?;
        return Ok((connection, Route::Direct));
    }
    let mut attempts: JoinSet<AttemptOutcome> = JoinSet::new();
    let (mut next_at, mut blocked) = (Instant::now(), None);
    let answered = AnsweredRoutes::default();
    loop {
        let is_more = routes.len() > 0;
        if !is_more && attempts.is_empty() {
            // This includes the direct route.
            return Err(blocked.unwrap_or(ConnectError::Gone));
        }
        tokio::select! {
            Some(ended) = attempts.join_next() => match ended {
                Ok(AttemptOutcome::Connected(connection, route)) => {
                    tracing::info!("Reached the server {route}");
                    return Ok((*connection, route));
                }
                Ok(AttemptOutcome::Blocked(error)) => {
                    tracing::debug!("the server is not reached directly: {}", ErrorChain(&error));
                    blocked = Some(error);
                    next_at = Instant::now();
                }
                Ok(AttemptOutcome::Unusable(address, error)) => {
                    log_unusable(place, &address, &error, level);
                    next_at = Instant::now();
                }
                // Unreachable: the task cannot panic.
                Err(_) => {}
            },
            () = sleep_until(next_at), if is_more => {
                let answered = answered.clone();
                if answered.is_any() {
                    next_at = Instant::now() + HEAD_START_OF_ANNOUNCED;
                } else if let Some((route, head_start)) = routes.next() {
                    next_at = Instant::now() + head_start;
                    attempts.spawn(attempt(place.clone(), route, answered));
                }
            }
        }
    }
}

/// Logs a problem with a relay. It matters to the user only if the user named the address, because
/// some announced addresses never work.
fn log_unusable(place: &Connector, address: &RelayAddress, error: &RelayRouteError, level: Level) {
    if level == Level::WARN && place.via.contains(address) {
        tracing::warn!("The relay {address} cannot be used: {}", ErrorChain(error));
    } else {
        tracing::debug!("the relay {address} cannot be used: {}", ErrorChain(error));
    }
}

/// Returns all routes, each with its head start.
fn in_order(place: &Connector, last: Option<&Route>) -> Vec<(Route, Duration)> {
    let relays = |addresses: &[RelayAddress], head_start: Duration| {
        let mut routes: Vec<(Route, Duration)> = Vec::new();
        for address in shuffled(addresses) {
            routes.push((Route::Relay(address), head_start));
        }
        // The sort is stable.
        routes.sort_by_key(|(route, _)| Some(route) == last);
        routes
    };
    let named = relays(&place.via, HEAD_START_OF_NAMED);
    let mut announced = relays(&place.relays, HEAD_START_OF_ANNOUNCED);
    announced.retain(|(route, _)| named.iter().all(|(other, _)| other != route));
    announced.truncate(ANNOUNCED_MAX);
    // A worker that used a relay probably has no direct route. The direct route is tried, but gets
    // no long head start.
    let head_start = match last {
        Some(Route::Relay(_)) => HEAD_START_OF_ANNOUNCED,
        Some(Route::Direct) | None => HEAD_START,
    };
    let direct = vec![(Route::Direct, head_start)];
    if named.is_empty() {
        [direct, announced].concat()
    } else {
        [named, announced, direct].concat()
    }
}

/// Returns the addresses in random order, so that workers that a batch system started together are
/// spread over the relays.
fn shuffled(addresses: &[RelayAddress]) -> Vec<RelayAddress> {
    let random = RandomState::new();
    let mut addresses = addresses.to_vec();
    addresses.sort_by_cached_key(|address| random.hash_one(address));
    addresses.dedup();
    addresses
}

/// The number of routes whose peer has answered and whose handshake is not yet complete.
#[derive(Clone, Default)]
struct AnsweredRoutes(Arc<AtomicUsize>);

impl AnsweredRoutes {
    fn is_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0
    }

    /// Counts one route until the guard is dropped.
    fn count(&self) -> AnsweredGuard<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        AnsweredGuard(self)
    }
}

struct AnsweredGuard<'a>(&'a AnsweredRoutes);

impl Drop for AnsweredGuard<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn attempt(place: Connector, route: Route, answered: AnsweredRoutes) -> AttemptOutcome {
    match &route {
        Route::Direct => match directly(&place, &answered).await {
            Ok(connection) => AttemptOutcome::Connected(Box::new(connection), route),
            Err(error) => AttemptOutcome::Blocked(error),
        },
        Route::Relay(address) => match through(&place, address, &answered).await {
            Ok(connection) => AttemptOutcome::Connected(Box::new(connection), route),
            Err(error) => AttemptOutcome::Unusable(address.clone(), error),
        },
    }
}

async fn directly(
    place: &Connector,
    answered: &AnsweredRoutes,
) -> Result<Connection<TcpStream>, ConnectError> {
    let stream = place.reach().await?;
    let _counted = answered.count();
    place.agree(stream).await
}

/// Connects to the relay, and through it to the server.
async fn through(
    place: &Connector,
    address: &RelayAddress,
    answered: &AnsweredRoutes,
) -> Result<Connection<TcpStream>, RelayRouteError> {
    let stream = enter(place, address).await?;
    // The route is counted only now, because another program may listen at the address.
    let _counted = answered.count();
    hq_protocol::connect(stream, Plane::Worker, place.key.as_ref())
        .await
        .map_err(RelayRouteError::Handshake)
}

async fn enter(place: &Connector, address: &RelayAddress) -> Result<TcpStream, RelayRouteError> {
    let connect = hq_protocol::connect_tcp(&address.host, address.port);
    let stream = timeout(RELAY_CONNECT_TIMEOUT, connect)
        .await
        .unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into()))
        .map_err(RelayRouteError::Tcp)?;
    set_options_at_relay(&stream).map_err(RelayRouteError::Tcp)?;
    relay::enter(stream, place.key.as_ref())
        .await
        .map_err(RelayRouteError::Entry)
}

/// Returns whether a relay answers a new connection. The content of its reply does not matter, and
/// neither does the server behind it. A suspended process does not answer, although its kernel
/// still accepts connections and data.
pub(super) async fn is_relay_alive(place: &Connector, address: &RelayAddress) -> bool {
    match enter(place, address).await {
        Ok(_) => true,
        Err(RelayRouteError::Tcp(error)) => !is_silence(&error),
        Err(RelayRouteError::Entry(error)) => match error {
            relay::EntryError::Timeout => false,
            relay::EntryError::Handshake(error) => !matches!(error, HandshakeError::Timeout),
            relay::EntryError::Io(_)
            | relay::EntryError::Full
            | relay::EntryError::NoServer
            | relay::EntryError::Unknown(_) => true,
        },
        Err(RelayRouteError::Handshake(_)) => true,
    }
}

/// Returns whether an error means that the host is silent. A host with a closed port does answer: a
/// relay that ends still carries the goodbyes of its workers, and connections of a killed relay
/// break by themselves. A failed name lookup or a lack of descriptors here says nothing about the
/// relay, and without this connection there might be no other.
fn is_silence(error: &std::io::Error) -> bool {
    use std::io::ErrorKind;
    matches!(
        error.kind(),
        ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(via: &[&str], relays: &[&str]) -> Connector {
        let parsed = |texts: &[&str]| {
            let texts = texts.iter();
            texts
                .map(|text| text.parse().expect("an address"))
                .collect()
        };
        Connector {
            via: parsed(via),
            relays: parsed(relays),
            ..Connector::new("server", 1, None)
        }
    }

    fn order(place: &Connector, last: Option<&Route>) -> Vec<String> {
        let routes = in_order(place, last).into_iter();
        routes.map(|(route, _)| route.to_string()).collect()
    }

    #[test]
    fn the_direct_route_is_first_unless_relays_are_named() {
        assert_eq!(order(&place(&[], &[]), None), ["directly"]);
        let found = order(&place(&[], &["a:1", "b:1"]), None);
        assert_eq!((found.len(), found[0].as_str()), (3, "directly"));
        let found = order(&place(&["n:1"], &["a:1", "n:1"]), None);
        let expected = ["through the relay n:1", "through the relay a:1", "directly"];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_worker_that_came_through_a_relay_does_not_wait_for_the_direct_route() {
        let place = place(&[], &["a:1", "b:1"]);
        let lost = Route::Relay("b:1".parse().expect("an address"));
        let pauses = |last| {
            let routes = in_order(&place, last).into_iter();
            routes.map(|(_, pause)| pause).collect::<Vec<_>>()
        };
        assert_eq!(pauses(Some(&lost)), [HEAD_START_OF_ANNOUNCED; 3]);
        assert_eq!(pauses(Some(&Route::Direct))[0], HEAD_START);
    }

    #[test]
    fn a_relay_that_was_lost_comes_last_and_the_others_by_chance() {
        let names: Vec<String> = (0..100).map(|number| format!("r{number}:1")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let many = place(&[], &names);
        assert_eq!(order(&many, None).len(), 1 + ANNOUNCED_MAX);
        assert_ne!(order(&many, None), order(&many, None));
        let few = place(&["a:1", "b:1", "c:1"], &[]);
        let lost = Route::Relay("b:1".parse().expect("an address"));
        for _ in 0..20 {
            let found = order(&few, Some(&lost));
            assert_eq!(found[2..], ["through the relay b:1", "directly"]);
        }
    }

    #[tokio::test]
    async fn only_silence_says_that_a_relay_is_dead() {
        let nobody = place(&[], &[]);
        let alive = async |port: u16| {
            let address = RelayAddress {
                host: "127.0.0.1".to_owned(),
                port,
            };
            let asked = is_relay_alive(&nobody, &address);
            timeout(Duration::from_millis(500), asked).await
        };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("bound").port();
        assert!(alive(port).await.is_err(), "it is suspended");
        drop(listener);
        assert_eq!(alive(port).await, Ok(true), "it ends");
        let unknown = is_silence(&std::io::Error::other("the name service did not answer"));
        assert!(!unknown, "nothing is known of the relay");
        assert!(is_silence(&std::io::ErrorKind::TimedOut.into()));
    }
}
