//! From a host and a port to a TCP connection, with a thread of its own for the name service.
//!
//! The resolver of the C library blocks. A runtime's own look-up borrows one of its blocking threads, and ends the
//! process with a panic if it has none and the user's limit of processes lets it start none. Here that is an error.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};

use tokio::net::TcpStream;
use tokio::sync::oneshot;

/// All addresses of a host; at least one.
///
/// # Errors
///
/// As the name service says, or if there is no thread to ask it.
pub async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let (tx, rx) = oneshot::channel();
    let host = host.to_owned();
    // Nobody joins it: a name service that does not answer must not hold up the end of the process.
    std::thread::Builder::new()
        .name("resolve".into())
        .spawn(move || {
            let found = (host.as_str(), port).to_socket_addrs();
            // Who waited for it may be gone.
            let _ = tx.send(found.map(Iterator::collect::<Vec<_>>));
        })
        .map_err(|error| {
            io::Error::new(
                error.kind(),
                format!("no thread to look up the name of the host: {error}"),
            )
        })?;
    let found = rx
        .await
        .unwrap_or_else(|_| Err(io::Error::other("the name service gave no answer")))?;
    if found.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::NotFound,
            "the host has no address",
        ));
    }
    Ok(found)
}

/// Connects to the first address of a host that answers.
///
/// # Errors
///
/// That of the last address, or of [`resolve`].
pub async fn connect_tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    TcpStream::connect(&*resolve(host, port).await?).await
}

#[cfg(test)]
mod tests {
    use super::*;

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
