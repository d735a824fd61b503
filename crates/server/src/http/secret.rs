//! Secret texts, and the conversion of bytes to text.

use std::io;
use std::path::Path;

use ring::hmac;

/// The number of random bytes in a token. Its text has twice as many hexadecimal digits.
const TOKEN_LEN: usize = 32;

/// A secret text.
#[derive(Clone)]
pub(crate) struct Token(pub(super) Box<str>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Token {
    /// Writes the secret to a file that only its owner can read, replacing the file of an earlier
    /// run.
    pub(super) fn store(&self, path: &Path) -> io::Result<()> {
        // The file is replaced atomically, so that a scraper reads either the old or the new token.
        hq_private::replace_file(path, self.0.as_bytes())
    }

    /// Generates a random token. Each run has a new one, so a client that sends the token of an
    /// earlier run to another program on the server's old port reveals nothing.
    pub(super) fn random() -> io::Result<Self> {
        let mut bytes = [0; TOKEN_LEN];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self(text.into()))
    }

    /// Returns the secret itself.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Compares a text with the secret in constant time.
    pub(super) fn matches(&self, shown: &str) -> bool {
        let (ours, shown) = (self.0.as_bytes(), shown.as_bytes());
        let differences = ours.iter().zip(shown).fold(0, |sum, (a, b)| sum | (a ^ b));
        ours.len() == shown.len() && differences == 0
    }

    /// Returns the key for signatures.
    pub(super) fn key(&self) -> hmac::Key {
        hmac::Key::new(hmac::HMAC_SHA256, self.0.as_bytes())
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let byte = |[high, low]: &[u8; 2]| u8::try_from(digit(*high)? * 16 + digit(*low)?).ok();
    rest.is_empty().then(|| pairs.iter().map(byte).collect())?
}
