//! The keys of a plane: its shared secret and the server's identity. The access file stores them as
//! one string.
//!
//! | digits | content | where |
//! |---|---|---|
//! | 64 | shared secret | value ports; files of earlier releases |
//! | 128 | also the server's public key | files for clients and for workers |
//! | 192 | also the server's private key | the full file, which a server needs |
//!
//! A key never appears in logs, because `Debug` hides it. Memory is not wiped on drop, which would
//! need unsafe code. Other processes of the same user are outside the threat model.

use std::fmt;

use curve25519_dalek::montgomery::MontgomeryPoint;
use snow::params::HashChoice;
use snow::resolvers::{CryptoResolver as _, DefaultResolver};

/// The size of a key in bytes.
pub const KEY_LEN: usize = 32;

/// The Noise suite in which the server proves its identity. It determines the type of the key pair.
pub(crate) const PROVEN_SUITE: &str = "Noise_NK1psk0_25519_AESGCM_SHA256";

/// The valid numbers of hex digits.
const LENGTHS: [usize; 3] = [64, 128, 192];

/// Domain separator for the owner's secret.
const OWNER_LABEL: &[u8] = b"hq owner 1";

type Bytes = [u8; KEY_LEN];

/// The keys of one plane.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretKey {
    shared: Bytes,
    server: Option<ServerKey>,
}

/// A server's static key pair, or only its public key.
#[derive(Clone, PartialEq, Eq)]
pub struct ServerKey {
    public: Bytes,
    private: Option<Bytes>,
}

/// A key that cannot be generated or parsed.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The text is not a known number of hex digits. The error does not repeat it, because it may
    /// be most of a key.
    #[error("expected a key of 64, 128 or 192 hexadecimal digits, found {0} characters{rest}", rest = if LENGTHS.contains(.0) { ", some of them not hexadecimal" } else { "" })]
    NotHex(usize),
    /// The system cannot provide random numbers.
    #[error("cannot read random numbers from the system")]
    Random(#[source] std::io::Error),
}

impl ServerKey {
    /// Generates a new key pair.
    ///
    /// # Errors
    ///
    /// Returns [`KeyError::Random`] if the system cannot provide random numbers.
    pub fn generate() -> Result<Self, KeyError> {
        let half = |bytes: &[u8]| bytes.try_into().map_err(|_| snow::Error::Input);
        let generate = || {
            let pair = snow::Builder::new(PROVEN_SUITE.parse()?).generate_keypair()?;
            Ok(Self {
                public: half(&pair.public)?,
                private: Some(half(&pair.private)?),
            })
        };
        generate().map_err(|error: snow::Error| KeyError::Random(std::io::Error::other(error)))
    }
}

impl SecretKey {
    /// Generates a shared secret from the system's random source.
    ///
    /// # Errors
    ///
    /// Returns [`KeyError::Random`] if the system cannot provide random numbers.
    pub fn generate() -> Result<Self, KeyError> {
        let mut bytes = [0; KEY_LEN];
        random_bytes(&mut bytes).map_err(KeyError::Random)?;
        Ok(Self::from_bytes(bytes))
    }

    /// Creates a shared secret from its bytes.
    #[must_use]
    pub const fn from_bytes(shared: [u8; KEY_LEN]) -> Self {
        Self {
            shared,
            server: None,
        }
    }

    /// Returns these keys with the server's key pair added.
    #[must_use]
    pub fn with_server(self, server: &ServerKey) -> Self {
        let server = Some(server.clone());
        Self { server, ..self }
    }

    /// Returns a copy without the server's private key, for connecting.
    #[must_use]
    pub fn to_connect(&self) -> Self {
        let public_half = |server: &ServerKey| ServerKey {
            private: None,
            ..server.clone()
        };
        Self {
            shared: self.shared,
            server: self.server().map(public_half),
        }
    }

    /// Returns the SHA-256 of the shared secret, which identifies its holder.
    #[must_use]
    pub fn digest(&self) -> Option<[u8; KEY_LEN]> {
        digest(&self.shared)
    }

    /// Returns the server's key pair, or only its public key.
    #[must_use]
    pub const fn server(&self) -> Option<&ServerKey> {
        self.server.as_ref()
    }

    /// Returns whether the server's private key, if present, belongs to its public key.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        self.server_private().is_none_or(|private| {
            let public = MontgomeryPoint::mul_base_clamped(*private);
            self.server_public() == Some(public.as_bytes())
        })
    }

    /// Returns whether the server's public key is present but not the private one.
    #[must_use]
    pub fn is_for_connecting(&self) -> bool {
        self.server_public().is_some() && self.server_private().is_none()
    }

    /// Parses 64, 128 or 192 hex digits, upper-case or lower-case.
    ///
    /// # Errors
    ///
    /// Returns [`KeyError::NotHex`] for any other text.
    pub fn from_hex(text: &str) -> Result<Self, KeyError> {
        let read = |pair: &[u8]| match pair {
            [high, low] => Some(hex_value(*high)? << 4 | hex_value(*low)?),
            _ => None,
        };
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(read).collect();
        let (keys, rest) = bytes.as_deref().unwrap_or_default().as_chunks();
        let server = match (keys, rest) {
            ([_], []) => None,
            ([_, public], []) => Some((*public, None)),
            ([_, public, private], []) => Some((*public, Some(*private))),
            _ => return Err(KeyError::NotHex(text.chars().count())),
        };
        Ok(Self {
            shared: keys[0],
            server: server.map(|(public, private)| ServerKey { public, private }),
        })
    }

    /// Returns the keys as lower-case hex digits. Only for the access file.
    #[must_use]
    pub fn to_hex(&self) -> String {
        let server = self.server();
        let keys = [
            Some(&self.shared),
            server.map(|server| &server.public),
            server.and_then(|server| server.private.as_ref()),
        ];
        keys.into_iter()
            .flatten()
            .flatten()
            .flat_map(|byte| [byte >> 4, byte & 15])
            .filter_map(|digit| char::from_digit(u32::from(digit), 16))
            .collect()
    }

    /// Returns the shared secret for the handshake.
    #[must_use]
    pub(crate) const fn shared(&self) -> &Bytes {
        &self.shared
    }

    /// Returns the owner's secret, which is derived from the server's private key as well. `None`
    /// if this is not a full key.
    #[must_use]
    pub(crate) fn owner(&self) -> Option<Bytes> {
        let private = self.server_private()?;
        digest(&[OWNER_LABEL, &self.shared[..], &private[..]].concat())
    }

    /// Returns the public key whose private key the server must prove to have.
    #[must_use]
    pub(crate) fn server_public(&self) -> Option<&Bytes> {
        self.server().map(|server| &server.public)
    }

    /// Returns the private key that proves the server's identity.
    #[must_use]
    pub(crate) fn server_private(&self) -> Option<&Bytes> {
        self.server()?.private.as_ref()
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey(hidden)")
    }
}

impl fmt::Debug for ServerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerKey(hidden)")
    }
}

/// Returns the SHA-256 of `bytes`.
pub(crate) fn digest(bytes: &[u8]) -> Option<[u8; KEY_LEN]> {
    let mut hash = DefaultResolver.resolve_hash(&HashChoice::SHA256)?;
    hash.input(bytes);
    let mut digest = [0; KEY_LEN];
    hash.result(&mut digest);
    Some(digest)
}

/// Fills `bytes` with random numbers from the system.
pub(crate) fn random_bytes(bytes: &mut [u8]) -> std::io::Result<()> {
    getrandom::fill(bytes).map_err(|error| match error.raw_os_error() {
        Some(code) => std::io::Error::from_raw_os_error(code),
        None => std::io::Error::other(error.to_string()),
    })
}

fn hex_value(digit: u8) -> Option<u8> {
    char::from(digit)
        .to_digit(16)
        .and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_goes_both_ways_and_debug_shows_nothing() {
        let shared = SecretKey::generate().expect("random numbers");
        let pair = ServerKey::generate().expect("random numbers");
        let full = shared.clone().with_server(&pair);
        for (key, digits) in [
            (shared.clone(), 64),
            (full.to_connect(), 128),
            (full.clone(), 192),
        ] {
            let hex = key.to_hex();
            assert_eq!(hex.len(), digits);
            assert!(hex.starts_with(&shared.to_hex()));
            for text in [&hex, &hex.to_uppercase()] {
                assert_eq!(&SecretKey::from_hex(text).expect("own key"), &key);
            }
            assert_eq!(key.is_for_connecting(), digits == 128);
            assert!(key.is_consistent());
            assert!(!format!("{key:?} {pair:?}").contains(&hex[..4]));
        }
    }

    #[test]
    fn a_public_key_of_another_pair_is_noticed() {
        let mut pair = ServerKey::generate().expect("random numbers");
        pair.public = ServerKey::generate().expect("random numbers").public;
        let key = SecretKey::from_bytes([7; KEY_LEN]).with_server(&pair);
        assert!(!key.is_consistent());
        assert!(key.to_connect().is_consistent());
    }

    #[test]
    fn refuses_what_is_no_key() {
        let texts = [0, 2, 63, 65, 66, 126, 130, 190, 194, 256].map(|length| "0".repeat(length));
        for text in texts.into_iter().chain(["g".repeat(64), "é".repeat(32)]) {
            let error = SecretKey::from_hex(&text).expect_err("no key").to_string();
            let is_length_right = error.contains("some of them not hexadecimal");
            assert_eq!(is_length_right, text.starts_with('g'), "{text}: {error}");
        }
    }
}
