//! Embedded files, compressed by `build.rs`, and their responses.

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hasher as _};

use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse as _, Response};

/// The number of bytes before and after the compressed data in a gzip file. `build.rs` writes no
/// optional parts.
const HEADER: usize = 10;
const TRAILER: usize = 8;
/// The maximum size of a file, so that a damaged program does not allocate all memory.
const SIZE_MAX: usize = 4 * 1024 * 1024;

/// An embedded file.
pub(super) struct Packed {
    gzip: &'static [u8],
}

impl Packed {
    pub(super) const fn new(gzip: &'static [u8]) -> Self {
        Self { gzip }
    }

    /// Returns the uncompressed content.
    pub(super) fn plain(&self) -> Vec<u8> {
        let end = self.gzip.len().saturating_sub(TRAILER);
        let deflated = self.gzip.get(HEADER..end).unwrap_or_default();
        match miniz_oxide::inflate::decompress_to_vec_with_limit(deflated, SIZE_MAX) {
            Ok(bytes) => bytes,
            Err(error) => {
                hq_core::bug!("a file of the program cannot be unpacked: {error}");
                Vec::new()
            }
        }
    }

    /// Returns the response for a client, compressed if the client accepts that.
    pub(super) fn response(&self, headers: &HeaderMap) -> Response {
        let is_packed = takes_gzip(headers);
        let body = if is_packed {
            Cow::Borrowed(self.gzip)
        } else {
            Cow::Owned(self.plain())
        };
        let mut response = body.into_response();
        if is_packed {
            let value = HeaderValue::from_static("gzip");
            response
                .headers_mut()
                .insert(header::CONTENT_ENCODING, value);
        }
        response
    }

    /// Returns the entity tag, which differs for the compressed form.
    pub(super) fn tag(&self, headers: &HeaderMap) -> String {
        let mut hasher = DefaultHasher::new();
        hasher.write(self.gzip);
        let form = if takes_gzip(headers) { "-gzip" } else { "" };
        format!("\"{:016x}{form}\"", hasher.finish())
    }
}

/// Returns whether a client accepts gzip: `gzip, deflate, br;q=0.5`.
fn takes_gzip(headers: &HeaderMap) -> bool {
    let listed = headers.get_all(header::ACCEPT_ENCODING).iter();
    let mut codings = listed
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    codings.any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        // A weight of zero means that the client rejects it.
        let weight = weight.trim().strip_prefix("q=");
        let is_refused = weight.is_some_and(|weight| weight.trim().parse() == Ok(0.0_f32));
        name.trim().eq_ignore_ascii_case("gzip") && !is_refused
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_takes_gzip_gets_it() {
        for (said, expected) in [
            ("gzip", true),
            ("deflate, GZIP;q=0.8, br", true),
            ("gzip;q=1.0", true),
            ("gzip;q=0", false),
            ("gzip; q=0.000", false),
            ("br", false),
            ("x-gzip2, identity", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static(said));
            assert_eq!(takes_gzip(&headers), expected, "{said:?}");
        }
        assert!(!takes_gzip(&HeaderMap::new()));
    }

    #[test]
    fn the_two_forms_have_two_tags() {
        let file = Packed::new(&[0; 20]);
        let mut headers = HeaderMap::new();
        let plain = file.tag(&headers);
        headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        assert_ne!(plain, file.tag(&headers));
    }
}
