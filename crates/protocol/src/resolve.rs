//! Name resolution, with one thread per lookup, and TCP connections.
//!
//! The resolver of the C library blocks. tokio's own lookup uses a blocking thread and panics if
//! the user's process limit prevents a new one. This module returns an error instead.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use crate::HandshakeError;

/// How long to wait for an address before the next one is tried in parallel. Modeled on RFC 8305,
/// whose 250 ms would open needless connections to a busy server.
const NEXT_ADDRESS_AFTER: Duration = Duration::from_secs(2);
/// How long to wait for another address after a failed handshake.
const ANOTHER_MAX: Duration = Duration::from_secs(10);
/// How long a connection stays silent before the kernel probes it.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// How long data or probes stay unanswered before the kernel ends the connection, because the other
/// machine has vanished. The kernel also ends a connection whose peer is alive but reads nothing
/// for this long, such as a server that delays a large request.
const UNANSWERED_MAX: Duration = Duration::from_secs(90);

/// Returns all addresses of a host, at least one.
///
/// # Errors
///
/// Returns an error if the name service fails or no thread can be created.
pub async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let (tx, rx) = oneshot::channel();
    let host = host.to_owned();
    // The thread is never joined, because a hanging name service must not delay the exit of the
    // process.
    std::thread::Builder::new()
        .name("resolve".into())
        .spawn(move || {
            let found = (host.as_str(), port).to_socket_addrs();
            // The caller may have dropped the receiver.
            let _ = tx.send(found.map(Iterator::collect::<Vec<_>>));
        })
        .map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("cannot start a thread to look up the host name: {error}"),
            )
        })?;
    let mut found = rx
        .await
        .unwrap_or_else(|_| Err(io::Error::other("the name service did not answer")))?;
    ipv4_first(&mut found);
    if found.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the host has no address",
        ));
    }
    Ok(found)
}

/// Sorts IPv4 addresses first. The ports of a server listen on IPv4, so any user of its machine can
/// take the same port on IPv6.
fn ipv4_first(found: &mut [SocketAddr]) {
    found.sort_by_key(SocketAddr::is_ipv6);
}

/// Connects to the first address of a host that answers. If the host is this machine's own name and
/// no other address answers, it also tries the loopback address. Sets socket options for small
/// messages and for detecting vanished machines.
///
/// # Errors
///
/// Returns the error of the last address, or of [`resolve`].
pub async fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    connect_to(&addresses_of(host, port).await?).await
}

/// Returns the addresses that [`connect_tcp`] tries, in this order.
///
/// # Errors
///
/// Returns the error of [`resolve`] unless the host is this machine.
pub async fn addresses_of(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    let is_own = rustix::system::uname().nodename().to_bytes() == host.as_bytes();
    match resolve(host, port).await {
        Ok(mut found) => {
            found.extend(is_own.then_some(SocketAddr::from((Ipv4Addr::LOCALHOST, port))));
            Ok(found)
        }
        Err(_) if is_own => Ok(vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port))]),
        Err(error) => Err(error),
    }
}

async fn connect_to(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let stream = connect_any(addresses).await?;
    // Without these options the connection works but is slower.
    let _ = set_options(&stream);
    Ok(stream)
}

/// The peers at addresses of a host with which no connection came about, because another program
/// listens there. Shown as a list of addresses with errors, to be put behind the last error.
#[derive(Debug, Default)]
pub struct Strangers {
    tried: Vec<SocketAddr>,
    errors: String,
}

impl Strangers {
    /// Connects to another address of the host after a failed handshake. Returns `None` if no other
    /// address answers.
    pub async fn another(
        &mut self,
        (host, port): (&str, u16),
        peer: SocketAddr,
        error: &HandshakeError,
    ) -> Option<TcpStream> {
        let addresses = addresses_of(host, port).await.ok()?;
        self.another_of(addresses, peer, error).await
    }

    async fn another_of(
        &mut self,
        mut addresses: Vec<SocketAddr>,
        peer: SocketAddr,
        error: &HandshakeError,
    ) -> Option<TcpStream> {
        self.tried.push(peer);
        addresses.retain(|address| !self.tried.contains(address));
        let connect = connect_to(&addresses);
        let stream = tokio::time::timeout(ANOTHER_MAX, connect)
            .await
            .ok()?
            .ok()?;
        self.errors += &format!(" (at {peer}: {error})");
        Some(stream)
    }
}

impl fmt::Display for Strangers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.errors)
    }
}

/// Connects to the first of several addresses that answers. Each address is tried when the previous
/// one has failed or has not answered for two seconds.
///
/// # Errors
///
/// Returns the error of the address that failed last.
pub async fn connect_any(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut rest = addresses.iter();
    let mut attempts = JoinSet::new();
    let mut failed = io::Error::new(io::ErrorKind::NotFound, "the host has no address");
    loop {
        let is_last = match rest.next() {
            Some(address) => {
                attempts.spawn(TcpStream::connect(*address));
                rest.len() == 0
            }
            None => true,
        };
        let ended = if is_last {
            attempts.join_next().await
        } else {
            match tokio::time::timeout(NEXT_ADDRESS_AFTER, attempts.join_next()).await {
                Ok(ended) => ended,
                Err(_) => continue,
            }
        };
        match ended {
            Some(Ok(Ok(stream))) => return Ok(stream),
            Some(Ok(Err(error))) => failed = error,
            Some(Err(error)) => failed = io::Error::other(error),
            None => return Err(failed),
        }
    }
}

fn set_options(stream: &TcpStream) -> io::Result<()> {
    sockopt::set_tcp_nodelay(stream, true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE / 3)?;
    let milliseconds = u32::try_from(UNANSWERED_MAX.as_millis()).unwrap_or(u32::MAX);
    sockopt::set_tcp_user_timeout(stream, milliseconds)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a listener whose queue is full, so that it does not answer connections.
    fn silent() -> (std::net::TcpListener, Vec<std::net::TcpStream>) {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        rustix::net::listen(&listener, 0).expect("a queue");
        let address = listener.local_addr().expect("bound");
        let moment = Duration::from_millis(100);
        let connect = || std::net::TcpStream::connect_timeout(&address, moment).ok();
        let held = std::iter::from_fn(connect).take(64).collect();
        (listener, held)
    }

    #[tokio::test]
    async fn an_address_that_refuses_or_does_not_answer_does_not_keep_the_next_from_being_tried() {
        let good = tokio::net::TcpListener::bind("127.0.0.1:0")
            .await
            .expect("a port");
        let good = good
            .local_addr()
            .map(|address| (good, address))
            .expect("bound");
        let (quiet, _held) = silent();
        let quiet = quiet
            .local_addr()
            .map(|address| (quiet, address))
            .expect("bound");
        let closed = std::net::TcpListener::bind("127.0.0.1:0")
            .expect("a port")
            .local_addr();
        let closed = closed.expect("bound");
        for before in [vec![], vec![closed], vec![quiet.1], vec![quiet.1, closed]] {
            let all = [before.as_slice(), &[good.1]].concat();
            let stream = connect_any(&all).await.expect("one answers");
            assert_eq!(stream.peer_addr().expect("connected"), good.1, "{all:?}");
        }
        let error = connect_any(&[closed, closed])
            .await
            .expect_err("nobody is there");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        let stream = connect_tcp("127.0.0.1", good.1.port())
            .await
            .expect("it answers");
        assert!(sockopt::socket_keepalive(&stream).expect("readable"));
        let unanswered_max = sockopt::tcp_user_timeout(&stream).expect("readable");
        assert_eq!(unanswered_max, 90_000, "within two minutes");
    }

    #[tokio::test]
    async fn after_a_stranger_the_other_addresses_of_the_host_are_tried() {
        let listeners =
            [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").expect("a port"));
        let all: Vec<SocketAddr> = listeners
            .iter()
            .map(|listener| listener.local_addr().expect("bound"))
            .collect();
        let (first, second) = (all[0], all[1]);
        let mut strangers = Strangers::default();
        let error = HandshakeError::NotOurProtocol;
        let other = strangers.another_of(all.clone(), first, &error).await;
        let other = other.expect("the second listens");
        assert_eq!(other.peer_addr().expect("connected"), second);
        assert!(strangers.another_of(all, second, &error).await.is_none());
        let named = format!(" (at {first}: {error})");
        assert_eq!(
            strangers.to_string(),
            named,
            "the second is that of the last error"
        );
    }

    #[test]
    fn a_port_of_a_server_is_looked_for_on_ipv4_first() {
        let parsed = |texts: [&str; 3]| texts.map(|text| text.parse().expect("an address"));
        let mut found = parsed(["[::1]:1", "10.0.0.2:1", "10.0.0.1:1"]).to_vec();
        ipv4_first(&mut found);
        assert_eq!(found, parsed(["10.0.0.2:1", "10.0.0.1:1", "[::1]:1"]));
    }

    #[tokio::test]
    async fn names_and_addresses_are_resolved() {
        for (host, expected) in [
            ("127.0.0.1", "127.0.0.1:80"),
            ("::1", "[::1]:80"),
            ("localhost", ":80"),
        ] {
            let found = resolve(host, 80).await.expect("known everywhere");
            assert!(found[0].to_string().ends_with(expected), "{found:?}");
        }
        let error = resolve("no.such.host.invalid", 80).await;
        error.expect_err("reserved for that");
    }
}
