//! Handshake.

use std::time::Duration;

/// Longest time a whole handshake may take, on either side.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Role of a connection; each plane has its own port and key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Plane {
    /// Commands of users.
    Client,
    /// Workers.
    Worker,
}

/// Why no connection came about.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// See the variants to come.
    #[error("the peer speaks another protocol")]
    NotOurProtocol,
}
