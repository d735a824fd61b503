//! Reasons for a failed handshake, as text for users and as a code for the peer.

use super::wire::refusal::Code;
use super::{HANDSHAKE_FRAME_MAX, HANDSHAKE_TIMEOUT, Plane, VersionRange};

/// The reason why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The first bytes are not hq's. The peer is another program, or a device in between changes
    /// bytes.
    #[error("the peer does not speak the hq protocol; check host and port")]
    NotOurProtocol,
    /// A frame that no correct peer sends at this point.
    #[error("the peer sent a malformed handshake message")]
    Malformed,
    /// A frame announces more than [`HANDSHAKE_FRAME_MAX`] bytes.
    #[error(
        "the peer announced a handshake frame of {found} bytes, at most {HANDSHAKE_FRAME_MAX} are allowed"
    )]
    FrameTooLarge {
        /// The announced length.
        found: usize,
    },
    /// The sides have no common version.
    #[error(
        "no common protocol version: this side speaks {ours}, the peer {theirs}; use the same program on both sides \
         (builds of one release can differ) and the server's current access file"
    )]
    VersionMismatch {
        /// The versions that this program speaks.
        ours: VersionRange,
        /// The versions that the peer speaks.
        theirs: VersionRange,
    },
    /// A worker connected to the client port, or the reverse.
    #[error(
        "wrong role: this side is on the {ours} plane, and the peer is not. Check which port of the access file it uses"
    )]
    WrongPlane {
        /// Our plane.
        ours: Plane,
    },
    /// One side has a key and the other has none.
    #[error("the {plane} key of this side is {}, and the peer's is not. Use the server's current access file", if *.we_have_key { "set" } else { "null" })]
    EncryptionMismatch {
        /// Our plane.
        plane: Plane,
        /// Whether this side has the key.
        we_have_key: bool,
    },
    /// The sides hold different keys.
    #[error("wrong {plane} key: the peer has another one. Use the server's current access file")]
    WrongKey {
        /// Our plane.
        plane: Plane,
    },
    /// The peer does not have the private key of the server.
    #[error(
        "the peer cannot prove that it is the server of the access file: it is another server, or an impostor. Use the server's current access file"
    )]
    NotTheServer {
        /// Our plane.
        plane: Plane,
    },
    /// The peer refused for a reason that this program does not know.
    #[error("the peer refused the connection (code {code})")]
    Refused {
        /// The code of the reason.
        code: i32,
    },
    /// The handshake did not complete within [`HANDSHAKE_TIMEOUT`].
    #[error("the peer did not complete the handshake within {} s", HANDSHAKE_TIMEOUT.as_secs())]
    Timeout,
    /// The peer closed the connection before the handshake completed.
    #[error("the peer closed the connection during the handshake")]
    Closed,
    /// The connection broke.
    #[error("the connection failed during the handshake")]
    Io(#[source] std::io::Error),
    /// Random numbers or the cipher are unavailable.
    #[error("cannot set up the encryption")]
    Crypto(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl HandshakeError {
    /// Returns whether a later attempt with the same key may succeed.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Timeout | Self::Closed | Self::Io(_) => true,
            Self::NotOurProtocol
            | Self::Malformed
            | Self::FrameTooLarge { .. }
            | Self::VersionMismatch { .. }
            | Self::WrongPlane { .. }
            | Self::EncryptionMismatch { .. }
            | Self::WrongKey { .. }
            | Self::NotTheServer { .. }
            | Self::Refused { .. }
            | Self::Crypto(_) => false,
        }
    }

    /// Returns the code that the peer may know.
    pub(super) const fn refusal_code(&self) -> Option<Code> {
        match self {
            Self::VersionMismatch { .. } => Some(Code::Version),
            Self::WrongPlane { .. } => Some(Code::Role),
            Self::EncryptionMismatch { .. } => Some(Code::Encryption),
            Self::WrongKey { .. } | Self::NotTheServer { .. } => Some(Code::Key),
            Self::Malformed | Self::FrameTooLarge { .. } | Self::Crypto(_) => Some(Code::Other),
            // The peer is a stranger, or there is no peer to notify.
            Self::NotOurProtocol
            | Self::Refused { .. }
            | Self::Timeout
            | Self::Closed
            | Self::Io(_) => None,
        }
    }

    pub(super) fn crypto(error: snow::Error) -> Self {
        Self::Crypto(error.into())
    }
}
