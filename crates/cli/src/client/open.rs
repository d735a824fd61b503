//! Opens streams to a server, before the handshake.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hq_protocol::access::{Access, AccessError, AccessFile, OwnerSocket, ServerDir};
use tokio::net::TcpStream;

use super::{BoxedStream, access_error, unanswered};
use crate::error::{CliError, CliResult};

/// How long a server may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A stream to a server, and the peer at its port.
type Opened = (BoxedStream, Option<SocketAddr>);

/// Refuses an access file of an earlier build whose key does not identify the server. No server
/// accepts a client with it, but an impostor would, and would get its commands.
pub(super) fn check_key(access: &Result<(PathBuf, AccessFile), AccessError>) -> CliResult<()> {
    let Ok((path, file)) = access else {
        return Ok(());
    };
    let key = file.client.as_ref().and_then(|access| access.key.as_ref());
    if key.is_none_or(|key| key.server().is_some()) {
        return Ok(());
    }
    let text = format!(
        "The access file '{}' is from an earlier release and lacks the server's public key, so another holder of the file could impersonate the server",
        path.display()
    );
    Err(CliError::refused(&text).with_help("replace the file with the server's current one"))
}

/// Connects to the server: on its machine through the socket of the instance, else to its port.
pub(super) async fn open(
    dir: &ServerDir,
    instance: Option<&Path>,
    access: &Access,
) -> CliResult<Opened> {
    if let Some(instance) = instance
        && let Ok(socket) = OwnerSocket::new(instance, access.port)
        && let Ok(stream) = socket.connect().await
    {
        return Ok((Box::new(stream), None));
    }
    Ok(with_peer(open_port(dir, access).await?))
}

pub(super) fn with_peer(stream: TcpStream) -> Opened {
    let peer = stream.peer_addr().ok();
    (Box::new(stream), peer)
}

async fn open_port(dir: &ServerDir, access: &Access) -> CliResult<TcpStream> {
    let (host, port) = (access.host.as_str(), access.port);
    let unreachable = |error: std::io::Error| {
        let error = access_error(&dir.unreachable(host, port, error));
        error.with_help(unanswered(dir, access))
    };
    let attempt = tokio::time::timeout(CONNECT_TIMEOUT, connect_tcp(host, port)).await;
    let timed_out = |_| Err(std::io::ErrorKind::TimedOut.into());
    attempt.unwrap_or_else(timed_out).map_err(unreachable)
}

async fn connect_tcp(host: &str, port: u16) -> std::io::Result<TcpStream> {
    // This machine's own name leads to this machine, so no lookup is needed. The name service may
    // be slow or may not know the name.
    if rustix::system::uname().nodename().to_bytes() == host.as_bytes()
        && let Ok(stream) = hq_protocol::connect_tcp("127.0.0.1", port).await
    {
        return Ok(stream);
    }
    hq_protocol::connect_tcp(host, port).await
}
