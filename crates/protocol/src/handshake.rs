//! Negotiates protocol version, role and keys. A state machine without I/O.
//!
//! ```text
//! connecting side                      accepting side
//!   hello  ───────────────────────────▶  checks magic, role, encryption, versions
//!   checks the same  ◀────────────────  hello            (or refusal, and closes)
//!   [psk, e] ─────────────────────────▶  checks the secret  (only with a key)
//!   checks the server ◀───────────────  [e, ee, es]      (or refusal, and closes)
//! ```
//!
//! With a key, the exchange is `Noise_NK1psk0_25519_AESGCM_SHA256` (Noise Protocol Framework,
//! revision 34). Both sides prove that they hold the shared secret, the accepting side proves that
//! it is the server, and every connection has fresh keys (forward secrecy). The server performs no
//! expensive computation before it knows that the peer has the secret. If the key names no server
//! (relays, values, workers of version 2), the exchange is `Noise_NNpsk0_25519_AESGCM_SHA256`.
//!
//! The version selects one of the two. The connecting side offers only the version that its key
//! requires, so no attacker can downgrade it. Both hellos form the prologue of the exchange, so a
//! modified version, role or flag makes the exchange fail. Each hello has a random nonce, so no
//! exchange can be replayed. The implementation has not been formally audited.
//!
//! This module uses no sockets and no clock: [`crate::connection`] drives it and limits its
//! duration. A peer that breaks a rule gets only a short constant code. See `docs/protocol.md`.

mod error;
mod resolver;

use std::fmt;
use std::time::Duration;

use bytes::{Buf, BytesMut};
use prost::Message;
use snow::{HandshakeState, StatelessTransportState};

use crate::generated::hq::handshake::v1 as wire;
use crate::key::{KEY_LEN, PROVEN_SUITE, SecretKey};
pub use error::HandshakeError;
use resolver::Resolver;
use wire::handshake::Frame;
use wire::refusal::Code;

/// How long a whole handshake may take, on either side. Long enough for a loaded login node on a
/// slow link (two round trips), and short enough that idle strangers do not pile up.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The maximum size of a frame's body in bytes before the peer is authenticated.
pub const HANDSHAKE_FRAME_MAX: usize = 1024;

/// The versions that this program speaks, both inclusive. [`versions`] selects those of a
/// connection.
///
/// Version 1 was never released. Its workers reject messages above 16 MiB. Its answers about ids
/// that do not exist have another form, which the other side would interpret as success.
pub const VERSIONS: VersionRange = VersionRange {
    min: 2,
    max: PROVEN,
};

/// The first version in which the server proves that it has the private key for the public key that
/// the other side knows.
const PROVEN: u32 = 3;

/// The first bytes of every handshake frame. No text protocol begins with the first byte, and the
/// line feed reveals connections that translate line endings.
const MAGIC: [u8; 4] = *b"\x8fhq\n";
/// The magic and a `u16` length.
const HEADER_LEN: usize = MAGIC.len() + 2;
const NONCE_LEN: usize = 16;
const SHARED_SUITE: &str = "Noise_NNpsk0_25519_AESGCM_SHA256";
/// Domain separator for the handshake.
const PROLOGUE_LABEL: &[u8] = b"hq handshake 1";

/// The role of a connection. Each plane has its own port and key.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Plane {
    /// Commands of users.
    Client,
    /// Workers.
    Worker,
    /// Workers that connect to a relay, see [`crate::relay`]. Uses the key of the worker plane.
    Relay,
}

impl fmt::Display for Plane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::Worker => "worker",
            Self::Relay => "relay",
        })
    }
}

/// A range of protocol versions, both ends inclusive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VersionRange {
    /// The oldest version.
    pub min: u32,
    /// The newest version.
    pub max: u32,
}

impl VersionRange {
    /// Returns the newest version in both ranges.
    #[must_use]
    pub fn common(self, other: Self) -> Option<u32> {
        let newest = self.max.min(other.max);
        (newest >= self.min && newest >= other.min).then_some(newest)
    }
}

impl fmt::Display for VersionRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.min == self.max {
            return write!(f, "{}", self.max);
        }
        write!(f, "{} to {}", self.min, self.max)
    }
}

/// The result of a completed handshake.
pub struct Session {
    /// The negotiated protocol version.
    pub version: u32,
    /// The keys of both directions. `None` if the connection is unencrypted.
    pub(crate) keys: Option<StatelessTransportState>,
    /// Whether the connecting side has proven that it has the full key. Without a key, all peers
    /// have all rights.
    pub(crate) is_owner: bool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("version", &self.version)
            .field("encrypted", &self.keys.is_some())
            .finish()
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Connecting,
    Accepting,
}

/// One side of a handshake.
///
/// Pass received bytes to [`Handshake::receive`] and send the bytes that [`Handshake::take_output`]
/// returns, also after an error.
pub struct Handshake {
    side: Side,
    plane: Plane,
    key: Option<SecretKey>,
    versions: VersionRange,
    our_hello: Vec<u8>,
    state: State,
    output: Vec<u8>,
}

enum State {
    /// Waits for the peer's hello.
    Hello,
    /// Waits for the peer's Noise message.
    Noise {
        version: u32,
        noise: Box<HandshakeState>,
        /// The peer's hello, if the peer may have a key other than the full one, which is tried
        /// first.
        hello: Option<Vec<u8>>,
    },
    /// Completed or failed.
    Over,
}

impl fmt::Debug for Handshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handshake")
            .field("side", &self.side)
            .field("plane", &self.plane)
            .finish_non_exhaustive()
    }
}

impl Handshake {
    /// Creates the side that dials. `nonce` must be random and never used before.
    #[must_use]
    pub fn connecting(plane: Plane, key: Option<&SecretKey>, nonce: [u8; NONCE_LEN]) -> Self {
        let side = Side::Connecting;
        Self::new(side, plane, key, nonce, versions(side, plane, key))
    }

    /// Creates the side that listens. `nonce` must be random and never used before.
    #[must_use]
    pub fn accepting(plane: Plane, key: Option<&SecretKey>, nonce: [u8; NONCE_LEN]) -> Self {
        let side = Side::Accepting;
        Self::new(side, plane, key, nonce, versions(side, plane, key))
    }

    fn new(
        side: Side,
        plane: Plane,
        key: Option<&SecretKey>,
        nonce: [u8; NONCE_LEN],
        versions: VersionRange,
    ) -> Self {
        let hello = wire::Hello {
            version_min: versions.min,
            version_max: versions.max,
            role: role_of(plane).into(),
            encrypted: key.is_some(),
            nonce: nonce.to_vec().into(),
        };
        let our_hello = encode_frame(Frame::Hello(hello));
        let output = match side {
            Side::Connecting => our_hello.clone(),
            Side::Accepting => Vec::new(),
        };
        Self {
            side,
            plane,
            key: key.cloned(),
            versions,
            our_hello,
            state: State::Hello,
            output,
        }
    }

    /// Returns the bytes to send now, which may be empty.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Consumes complete frames from the front of `input`. Returns the session when it is
    /// established. Bytes that follow the handshake stay in `input`.
    ///
    /// # Errors
    ///
    /// See [`HandshakeError`]. The handshake has ended then, but there may be output that explains
    /// the failure to the peer.
    pub fn receive(&mut self, input: &mut BytesMut) -> Result<Option<Session>, HandshakeError> {
        let result = self.advance(input);
        if let Err(error) = &result {
            self.state = State::Over;
            if let (Side::Accepting, Some(code)) = (self.side, error.refusal_code()) {
                self.refuse(code);
            }
        }
        result
    }

    fn advance(&mut self, input: &mut BytesMut) -> Result<Option<Session>, HandshakeError> {
        while let Some(raw) = take_frame(input)? {
            let message = wire::Handshake::decode(&raw[HEADER_LEN..])
                .map_err(|_| HandshakeError::Malformed)?;
            let frame = message.frame.ok_or(HandshakeError::Malformed)?;
            if let Some(session) = self.on_frame(frame, &raw)? {
                return Ok(Some(session));
            }
        }
        Ok(None)
    }

    fn on_frame(&mut self, frame: Frame, raw: &[u8]) -> Result<Option<Session>, HandshakeError> {
        match (frame, std::mem::replace(&mut self.state, State::Over)) {
            (Frame::Hello(hello), State::Hello) => self.on_hello(&hello, raw),
            (
                Frame::Noise(message),
                State::Noise {
                    version,
                    noise,
                    hello,
                },
            ) => self.on_noise(&message, version, (noise, hello)).map(Some),
            (Frame::Refusal(refusal), State::Hello | State::Noise { .. })
                if self.side == Side::Connecting =>
            {
                Err(self.refused(&refusal))
            }
            (Frame::Hello(_) | Frame::Noise(_) | Frame::Refusal(_), _) => {
                Err(HandshakeError::Malformed)
            }
        }
    }

    fn on_hello(
        &mut self,
        hello: &wire::Hello,
        raw: &[u8],
    ) -> Result<Option<Session>, HandshakeError> {
        let version = self.check_hello(hello)?;
        if self.side == Side::Accepting {
            self.output.extend_from_slice(&self.our_hello);
        }
        let Some(key) = &self.key else {
            return Ok(Some(Session {
                version,
                keys: None,
                is_owner: true,
            }));
        };
        let owner = key.owner().filter(|_| version >= PROVEN);
        let secret = owner.as_ref().unwrap_or(key.shared());
        let hellos = [&self.our_hello[..], raw];
        let mut noise = start_noise(self.side, (key, version), secret, hellos)?;
        if self.side == Side::Connecting {
            let message = write_noise(&mut noise)?;
            self.output.extend(message);
        }
        self.state = State::Noise {
            version,
            noise,
            hello: owner.map(|_| raw.to_vec()),
        };
        Ok(None)
    }

    /// The order determines the message that users see: a role mismatch usually implies a wrong key
    /// as well.
    fn check_hello(&self, hello: &wire::Hello) -> Result<u32, HandshakeError> {
        let theirs = VersionRange {
            min: hello.version_min,
            max: hello.version_max,
        };
        let ours = self.versions;
        let version = ours
            .common(theirs)
            .ok_or(HandshakeError::VersionMismatch { ours, theirs })?;
        if hello.role() != role_of(self.plane) {
            return Err(HandshakeError::WrongPlane { ours: self.plane });
        }
        let we_have_key = self.key.is_some();
        if hello.encrypted != we_have_key {
            return Err(HandshakeError::EncryptionMismatch {
                plane: self.plane,
                we_have_key,
            });
        }
        if hello.nonce.len() != NONCE_LEN {
            return Err(HandshakeError::Malformed);
        }
        Ok(version)
    }

    fn on_noise(
        &mut self,
        message: &[u8],
        version: u32,
        (mut noise, hello): (Box<HandshakeState>, Option<Vec<u8>>),
    ) -> Result<Session, HandshakeError> {
        let mut payload = [0; HANDSHAKE_FRAME_MAX];
        let mut read = noise.read_message(message, &mut payload);
        let mut is_owner = hello.is_some();
        // Most connections are commands of the owner, so the owner's key is tried first and other
        // keys need a second attempt.
        if let (Side::Accepting, Err(_), Some(hello), Some(key)) =
            (self.side, &read, hello, &self.key)
        {
            let hellos = [&self.our_hello[..], &hello];
            noise = start_noise(self.side, (key, version), key.shared(), hellos)?;
            read = noise.read_message(message, &mut payload);
            is_owner = false;
        }
        let length = read.map_err(|_| self.unproven(version))?;
        if length != 0 {
            return Err(HandshakeError::Malformed);
        }
        if self.side == Side::Accepting {
            let answer = write_noise(&mut noise)?;
            self.output.extend(answer);
        }
        let keys = noise
            .into_stateless_transport_mode()
            .map_err(HandshakeError::crypto)?;
        Ok(Session {
            version,
            keys: Some(keys),
            is_owner,
        })
    }

    /// Returns the error for a Noise message of the peer that does not match our key.
    const fn unproven(&self, version: u32) -> HandshakeError {
        let plane = self.plane;
        match self.side {
            // The peer would have rejected us if the secrets differed.
            Side::Connecting if version >= PROVEN => HandshakeError::NotTheServer { plane },
            Side::Connecting | Side::Accepting => HandshakeError::WrongKey { plane },
        }
    }

    fn refused(&self, refusal: &wire::Refusal) -> HandshakeError {
        let theirs = VersionRange {
            min: refusal.version_min,
            max: refusal.version_max,
        };
        let plane = self.plane;
        match Code::try_from(refusal.code) {
            Ok(Code::Version) => HandshakeError::VersionMismatch {
                ours: self.versions,
                theirs,
            },
            Ok(Code::Role) => HandshakeError::WrongPlane { ours: plane },
            Ok(Code::Encryption) => HandshakeError::EncryptionMismatch {
                plane,
                we_have_key: self.key.is_some(),
            },
            Ok(Code::Key) => HandshakeError::WrongKey { plane },
            Ok(Code::Other) | Err(_) => HandshakeError::Refused { code: refusal.code },
        }
    }

    fn refuse(&mut self, code: Code) {
        let VersionRange { min, max } = self.versions;
        let refusal = wire::Refusal {
            code: code.into(),
            version_min: min,
            version_max: max,
        };
        // A hello that was not sent yet would only confuse the peer.
        self.output = encode_frame(Frame::Refusal(refusal));
    }
}

const fn role_of(plane: Plane) -> wire::Role {
    match plane {
        Plane::Client => wire::Role::Client,
        Plane::Worker => wire::Role::Worker,
        Plane::Relay => wire::Role::Relay,
    }
}

/// Returns the versions to offer. If the key identifies a server, the connecting side offers only
/// the version in which the server proves itself. An accepting server also accepts workers of the
/// previous release, which lack such a key, so that it can be updated while their tasks run.
fn versions(side: Side, plane: Plane, key: Option<&SecretKey>) -> VersionRange {
    let proof = key.and_then(|key| match side {
        Side::Connecting => key.server_public(),
        Side::Accepting => key.server_private(),
    });
    let (min, max) = match (side, plane, proof) {
        // A relay is not a server.
        (_, Plane::Relay, _) | (.., None) => (VERSIONS.min, VERSIONS.min),
        (Side::Accepting, Plane::Worker, Some(_)) => (VERSIONS.min, PROVEN),
        (_, Plane::Client | Plane::Worker, Some(_)) => (PROVEN, PROVEN),
    };
    VersionRange { min, max }
}

fn start_noise(
    side: Side,
    (key, version): (&SecretKey, u32),
    secret: &[u8; KEY_LEN],
    [our_hello, their_hello]: [&[u8]; 2],
) -> Result<Box<HandshakeState>, HandshakeError> {
    let (first, second) = match side {
        Side::Connecting => (our_hello, their_hello),
        Side::Accepting => (their_hello, our_hello),
    };
    // Frames contain their lengths, so the concatenation is unambiguous.
    let prologue = [PROLOGUE_LABEL, first, second].concat();
    let build = || {
        let is_proven = version >= PROVEN;
        let suite = if is_proven {
            PROVEN_SUITE
        } else {
            SHARED_SUITE
        };
        let resolver = Box::new(Resolver::new(key));
        let builder = snow::Builder::with_resolver(suite.parse()?, resolver)
            .prologue(&prologue)?
            .psk(0, secret)?;
        match (side, key.server_public(), key.server_private()) {
            (Side::Connecting, Some(public), _) if is_proven => {
                builder.remote_public_key(public)?.build_initiator()
            }
            (Side::Accepting, _, Some(private)) if is_proven => {
                builder.local_private_key(private)?.build_responder()
            }
            // If the proof needs a missing key, the exchange fails later.
            (Side::Connecting, ..) => builder.build_initiator(),
            (Side::Accepting, ..) => builder.build_responder(),
        }
    };
    build().map(Box::new).map_err(HandshakeError::crypto)
}

fn write_noise(noise: &mut HandshakeState) -> Result<Vec<u8>, HandshakeError> {
    let mut message = vec![0; HANDSHAKE_FRAME_MAX];
    let length = noise
        .write_message(&[], &mut message)
        .map_err(HandshakeError::crypto)?;
    message.truncate(length);
    Ok(encode_frame(Frame::Noise(message.into())))
}

fn encode_frame(frame: Frame) -> Vec<u8> {
    let body = wire::Handshake { frame: Some(frame) }.encode_to_vec();
    // Our own frames are far below the limit.
    let length = u16::try_from(body.len()).unwrap_or(u16::MAX);
    [&MAGIC, &length.to_le_bytes()[..], &body].concat()
}

/// Removes a complete frame, including its header, from the front of `input`. Rejects wrong bytes
/// as soon as the first of them arrives.
fn take_frame(input: &mut BytesMut) -> Result<Option<BytesMut>, HandshakeError> {
    let seen = input.len().min(MAGIC.len());
    if input[..seen] != MAGIC[..seen] {
        return Err(HandshakeError::NotOurProtocol);
    }
    let Some(mut length) = input.get(MAGIC.len()..HEADER_LEN) else {
        return Ok(None);
    };
    let length = usize::from(length.get_u16_le());
    if length > HANDSHAKE_FRAME_MAX {
        return Err(HandshakeError::FrameTooLarge { found: length });
    }
    let total = HEADER_LEN + length;
    Ok((input.len() >= total).then(|| input.split_to(total)))
}

#[cfg(test)]
mod tests;
