//! The token that every request shows: `Authorization: Bearer …`.

use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};

/// Random bytes of a token; it is twice as many hexadecimal digits.
const TOKEN_LEN: usize = 32;
/// What is cut off a token file before it is compared: nobody's token is longer.
const FILE_LEN_MAX: usize = 512;

/// A secret text.
#[derive(Clone)]
pub(crate) struct Token(Box<str>);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Token {
    /// The token of the file, or a new one in a file that only its owner can read.
    pub(super) fn load_or_create(path: &Path) -> io::Result<Self> {
        match std::fs::read_to_string(path) {
            Ok(text) if is_token(text.trim()) => return Ok(Self(text.trim().into())),
            Ok(_) => {
                return Err(io::Error::other(format!(
                    "expected a token of {} hexadecimal digits in '{}'; remove the file for a new one",
                    2 * TOKEN_LEN,
                    path.display()
                )));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let token = Self::random()?;
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        options.open(path)?.write_all(token.0.as_bytes())?;
        Ok(token)
    }

    /// A new one.
    pub(super) fn random() -> io::Result<Self> {
        let mut bytes = [0; TOKEN_LEN];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(Self(text.into()))
    }

    /// The secret itself.
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether a request shows it.
    pub(super) fn is_shown(&self, headers: &HeaderMap) -> bool {
        let shown = headers
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        let bearer = shown.and_then(|value| {
            let (scheme, token) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
        });
        bearer.is_some_and(|token| self.matches(token))
    }

    /// Compares in a time that does not tell how much is right.
    pub(super) fn matches(&self, shown: &str) -> bool {
        let (ours, shown) = (self.0.as_bytes(), shown.as_bytes());
        let differences = ours.iter().zip(shown).fold(0, |sum, (a, b)| sum | (a ^ b));
        ours.len() == shown.len() && differences == 0
    }
}

fn is_token(text: &str) -> bool {
    text.len() == 2 * TOKEN_LEN
        && text.len() <= FILE_LEN_MAX
        && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The answer to a request without the token.
pub(super) fn refusal() -> Response {
    let how = [(header::WWW_AUTHENTICATE, "Bearer realm=\"hq\"")];
    let text = "the token is missing or wrong; send `Authorization: Bearer TOKEN` with the content of \
                the file http-token of the running server's directory\n";
    (StatusCode::UNAUTHORIZED, how, text).into_response()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn with(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(
            header::AUTHORIZATION,
            HeaderValue::from_str(value).expect("a header"),
        );
        headers
    }

    #[test]
    fn only_the_whole_token_opens() {
        let token = Token("a".repeat(64).into());
        assert!(token.is_shown(&with(&format!("Bearer {}", "a".repeat(64)))));
        assert!(token.is_shown(&with(&format!("bearer {}", "a".repeat(64)))));
        for wrong in [
            "Bearer ",
            "Bearer a",
            "Basic YTph",
            &format!("Bearer {}", "a".repeat(65)),
            &"a".repeat(64),
        ] {
            assert!(!token.is_shown(&with(wrong)), "{wrong}");
        }
        assert!(!token.is_shown(&HeaderMap::new()));
    }

    #[test]
    fn a_token_lives_as_long_as_its_file_and_is_private() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("token");
        let first = Token::load_or_create(&path).expect("a new token");
        let again = Token::load_or_create(&path).expect("the same token");
        assert_eq!(first.0, again.0);
        let mode = std::fs::metadata(&path)
            .expect("the file")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        std::fs::write(&path, "short").expect("write");
        assert!(Token::load_or_create(&path).is_err());
    }
}
