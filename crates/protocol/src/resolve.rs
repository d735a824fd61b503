//! Name resolution, with one thread per lookup, and TCP connections.
//!
//! The resolver of the C library blocks. tokio's own lookup uses a blocking thread and panics if
//! the user's process limit prevents a new one. This module returns an error instead.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs as _};
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// How long to wait for an address before the next one is tried in parallel. Modeled on RFC 8305,
/// whose 250 ms would open needless connections to a busy server.
const NEXT_ADDRESS_AFTER: Duration = Duration::from_secs(2);
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
    let found = rx
        .await
        .unwrap_or_else(|_| Err(io::Error::other("the name service did not answer")))?;
    if found.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the host has no address",
        ));
    }
    Ok(found)
}

/// Connects to the first address of a host that answers. If the host is this machine's own name and
/// no other address answers, it also tries the loopback address. Sets socket options for small
/// messages and for detecting vanished machines.
///
/// # Errors
///
/// Returns the error of the last address, or of [`resolve`].
pub async fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let is_own = rustix::system::uname().nodename().to_bytes() == host.as_bytes();
    let addresses = match resolve(host, port).await {
        Ok(mut found) => {
            found.extend(is_own.then_some(SocketAddr::from((Ipv4Addr::LOCALHOST, port))));
            found
        }
        Err(_) if is_own => vec![SocketAddr::from((Ipv4Addr::LOCALHOST, port))],
        Err(error) => return Err(error),
    };
    let stream = connect_any(&addresses).await?;
    // Without these options the connection works but is slower.
    let _ = set_options(&stream);
    Ok(stream)
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
