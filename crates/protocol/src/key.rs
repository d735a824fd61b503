//! The shared secret of a plane: 32 random bytes, written as 64 hex digits in the access file.
//!
//! A key never appears in logs: `Debug` hides it. Memory is not wiped on drop (that would need unsafe
//! code); other processes of the same user are outside the threat model.

use std::fmt;

/// Bytes in a key.
pub const KEY_LEN: usize = 32;

/// Pre-shared key of one plane.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretKey([u8; KEY_LEN]);

/// A key that cannot be made or read.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// Not 64 hex digits; the text is not repeated, it may be most of a key.
    #[error("expected a key of 64 hexadecimal digits, found {0} characters that are not one")]
    NotHex(usize),
    /// The system has no random numbers.
    #[error("cannot read random numbers from the system")]
    Random(#[source] std::io::Error),
}

impl SecretKey {
    /// Draws a new key from the system's random source.
    ///
    /// # Errors
    ///
    /// [`KeyError::Random`] if the system has none.
    pub fn generate() -> Result<Self, KeyError> {
        let mut bytes = [0; KEY_LEN];
        random_bytes(&mut bytes).map_err(KeyError::Random)?;
        Ok(Self(bytes))
    }

    /// A key from its bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; KEY_LEN]) -> Self {
        Self(bytes)
    }

    /// Reads 64 hex digits of either case.
    ///
    /// # Errors
    ///
    /// [`KeyError::NotHex`] for anything else.
    pub fn from_hex(text: &str) -> Result<Self, KeyError> {
        let refused = || KeyError::NotHex(text.chars().count());
        let digits = text.as_bytes();
        if digits.len() != 2 * KEY_LEN {
            return Err(refused());
        }
        let mut bytes = [0; KEY_LEN];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = match (hex_value(pair[0]), hex_value(pair[1])) {
                (Some(high), Some(low)) => high << 4 | low,
                (None, _) | (_, None) => return Err(refused()),
            };
        }
        Ok(Self(bytes))
    }

    /// The key as 64 lower-case hex digits; for the access file only.
    #[must_use]
    pub fn to_hex(&self) -> String {
        self.0
            .iter()
            .flat_map(|byte| [byte >> 4, byte & 15])
            .filter_map(|digit| char::from_digit(u32::from(digit), 16))
            .collect()
    }

    /// The bytes, for the handshake.
    #[must_use]
    pub(crate) const fn as_bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretKey(hidden)")
    }
}

/// Fills `bytes` from the system's random source.
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
        let key = SecretKey::generate().expect("random numbers");
        let hex = key.to_hex();
        assert_eq!(hex.len(), 64);
        assert_eq!(SecretKey::from_hex(&hex).expect("own key"), key);
        assert_eq!(
            SecretKey::from_hex(&hex.to_uppercase()).expect("own key"),
            key
        );
        assert!(!format!("{key:?}").contains(&hex[..4]));
    }

    #[test]
    fn refuses_what_is_no_key() {
        for text in ["", "00", &"g".repeat(64), &"0".repeat(63), &"é".repeat(32)] {
            assert!(SecretKey::from_hex(text).is_err(), "{text}");
        }
    }
}
