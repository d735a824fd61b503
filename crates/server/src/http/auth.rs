//! Authentication: every request contains a token (`Authorization: Bearer TOKEN`) or is signed with
//! one.
//!
//! After the server has ended, any user can listen on its port. On the far side of an `ssh -L`,
//! this is always possible. A dashboard reconnects automatically for days, so it never sends the
//! token. Instead, the server first proves that it has the token (`/login/proof`). After that,
//! requests carry a signature that is valid for one request, one minute, and one run of the server.
//!
//! Programs such as Prometheus send the token itself to any listener, so each run of the server has
//! a new one. Tokens that users create for programs ([`Tokens`]) remain valid in later runs, so
//! they should be sent only to a port that certainly belongs to the server.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hq_protocol::admission::Holder;
use hq_protocol::convert::Role;
use ring::hmac;

use super::api::{ApiError, Error, ErrorKind, has_body};
use super::secret::{Token, from_hex, hex};
use super::tokens::{IssuedToken, Tokens};

/// The maximum clock difference of a signed request in milliseconds. The page uses the server's
/// clock.
const FRESH_MS: u64 = 60_000;
/// The maximum number of recent signed requests that change something. Users do not click this
/// often.
const USED_MAX: usize = 1_024;

/// Signatures with their times.
type Used = VecDeque<(i64, Box<str>)>;

/// The signed parts of a request, and its headers.
#[derive(Clone, Copy, Debug)]
pub(super) struct SignedRequest<'a> {
    pub(super) method: &'a Method,
    /// The path and query, as the client wrote them.
    pub(super) target: &'a str,
    pub(super) headers: &'a HeaderMap,
}

/// An admitted request.
#[derive(Clone, Debug)]
pub(super) struct Admission {
    /// The role of the client.
    pub(super) role: Role,
    /// The request's token, if it can be revoked.
    pub(super) issued: Option<Arc<IssuedToken>>,
    /// The holder whose limits apply to the connection and its requests.
    pub(super) holder: Holder,
}

/// The prefix of paths that only change jobs.
const JOBS_PATH: &str = "/api/v1/jobs";

/// Returns the role that a request needs, for all routes. Reading needs any role, changing jobs the
/// submit role, and everything else, including future routes, the full role. The path is compared
/// as the client wrote it, as in routing, so no other route has this prefix.
pub(super) fn needed(method: &Method, path: &str) -> Role {
    if *method == Method::GET || *method == Method::HEAD {
        return Role::Read;
    }
    match path.strip_prefix(JOBS_PATH) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => Role::Submit,
        Some(_) | None => Role::Full,
    }
}

/// Checks tokens: two tokens of this run of the server, and the tokens that users created.
pub(crate) struct Authenticator {
    tokens: Arc<Tokens>,
    token: Token,
    /// The read-only token.
    read_token: Token,
    /// The signatures of requests that change something, with their times, because each is valid
    /// only once. Each token has its own list, so that requests with one cannot fill the list of
    /// the other.
    used: [Mutex<Used>; 2],
}

impl Authenticator {
    pub(super) fn new(token: Token, read_token: Token, tokens: Arc<Tokens>) -> Self {
        Self {
            tokens,
            token,
            read_token,
            used: Default::default(),
        }
    }

    /// Proves to a client that this server has the token, before the client sends a request. There
    /// is one proof per token, because the client does not reveal which one it has.
    pub(super) fn prove(&self, nonce: &str, now_ms: i64) -> [String; 2] {
        let text = format!("hq-server\n{nonce}\n{now_ms}");
        let proof = |token: &Token| hex(hmac::sign(&token.key(), text.as_bytes()).as_ref());
        [proof(&self.token), proof(&self.read_token)]
    }

    /// Returns the role of a request that contains a token (`Bearer`) or is signed with one of this
    /// run (`HQ`). Returns `None` if it is rejected. For created tokens only a hash is known, which
    /// cannot verify signatures.
    pub(super) fn admits(&self, asked: SignedRequest<'_>, now_ms: i64) -> Option<Admission> {
        let shown = asked.headers.get(header::AUTHORIZATION);
        let (scheme, shown) = shown
            .and_then(|value| value.to_str().ok())?
            .split_once(' ')?;
        let is_bearer = scheme.eq_ignore_ascii_case("bearer");
        let [used, read_used] = &self.used;
        let kinds = [
            (&self.token, used, Role::Full, Holder::Owner),
            (&self.read_token, read_used, Role::Read, Holder::Other(0)),
        ];
        let is_shown = |token: &Token, used| {
            if is_bearer {
                token.matches(shown.trim())
            } else {
                scheme == "HQ" && is_signed(token, used, (asked, shown), now_ms)
            }
        };
        let mut kinds = kinds.into_iter();
        if let Some((.., role, holder)) = kinds.find(|(token, used, ..)| is_shown(token, used)) {
            return Some(Admission {
                role,
                issued: None,
                holder,
            });
        }
        let issued = self.tokens.find(shown.trim()).filter(|_| is_bearer)?;
        Some(Admission {
            role: issued.role(),
            holder: Holder::Other(issued.number()),
            issued: Some(issued),
        })
    }
}

/// Verifies `TIME.RANDOM.SIGNATURE`. The signature covers method, target, time and random text,
/// which is the whole request. Bodies are not accepted, so that a forwarding program (such as
/// `ssh -L`, or an impostor) cannot add content to a signed request.
fn is_signed(
    token: &Token,
    used: &Mutex<Used>,
    (asked, shown): (SignedRequest<'_>, &str),
    now_ms: i64,
) -> bool {
    if has_body(asked.headers) {
        return false;
    }
    let Some((stamp, signature)) = shown.rsplit_once('.') else {
        return false;
    };
    let at = stamp.split_once('.').and_then(|(at, _)| at.parse().ok());
    let is_fresh = |at: &i64| now_ms.abs_diff(*at) <= FRESH_MS;
    let Some(at) = at.filter(is_fresh) else {
        return false;
    };
    let Some(signature) = from_hex(signature) else {
        return false;
    };
    let SignedRequest { method, target, .. } = asked;
    let text = format!("hq-request\n{method}\n{target}\n{stamp}");
    let is_ours = hmac::verify(&token.key(), text.as_bytes(), &signature).is_ok();
    is_ours && (*method == Method::GET || is_first(used, at, stamp, now_ms))
}

/// Returns whether a signed request that changes something arrives for the first time.
fn is_first(used: &Mutex<Used>, at: i64, stamp: &str, now_ms: i64) -> bool {
    let mut used = used.lock().unwrap_or_else(PoisonError::into_inner);
    used.retain(|(at, _)| now_ms.abs_diff(*at) <= FRESH_MS);
    let is_first = used.len() < USED_MAX && !used.iter().any(|(_, known)| **known == *stamp);
    if is_first {
        used.push_back((at, stamp.into()));
    }
    is_first
}
/// Returns the response to a request that its token does not permit.
pub(super) fn forbidden(role: Role) -> Response {
    let (kind, text) = match role {
        Role::Read => (
            ErrorKind::ReadOnly,
            "this token is read-only. `hq dashboard --web` prints a link with full rights, and `hq token create` creates tokens for programs",
        ),
        Role::Submit | Role::Full => (
            ErrorKind::Forbidden,
            "this token can only read, and change jobs. `hq token create --role full` creates one with all rights",
        ),
    };
    let body = Error {
        error: text.to_owned(),
        kind: Some(kind),
    };
    (StatusCode::FORBIDDEN, axum::Json(body)).into_response()
}

/// Returns the response to a request whose token has too many connections.
pub(super) fn crowded() -> Response {
    let busy = ApiError::busy(
        "too many connections are open with this token, or in total. Try again later",
    );
    ([(header::CONNECTION, "close")], busy).into_response()
}

/// Returns the response to a request without a token.
pub(super) fn refusal() -> Response {
    let how = [(header::WWW_AUTHENTICATE, "Bearer realm=\"hq\"")];
    let text = "the token is missing, wrong or revoked; send `Authorization: Bearer TOKEN` with a token from `hq token create`, or with the content of the file http-token in the running server's directory\n";
    (StatusCode::UNAUTHORIZED, how, text).into_response()
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;
    use crate::core_handle::CoreHandle;

    fn entrance() -> Authenticator {
        with_token("a")
    }

    fn with_token(letter: &str) -> Authenticator {
        let read_token = Token("r".repeat(64).into());
        let (core, _) = CoreHandle::new();
        let tokens = Arc::new(Tokens::new(core, Vec::new()));
        Authenticator::new(Token(letter.repeat(64).into()), read_token, tokens)
    }

    fn with(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(
            header::AUTHORIZATION,
            HeaderValue::from_str(value).expect("a header"),
        );
        headers
    }

    fn admits(
        entrance: &Authenticator,
        method: &Method,
        target: &str,
        value: &str,
        now: i64,
    ) -> bool {
        let asked = SignedRequest {
            method,
            target,
            headers: &with(value),
        };
        entrance.admits(asked, now).is_some()
    }

    /// Returns the header that the page sends.
    fn signed(entrance: &Authenticator, method: &Method, target: &str, stamp: &str) -> String {
        let text = format!("hq-request\n{method}\n{target}\n{stamp}");
        let signature = hmac::sign(&entrance.token.key(), text.as_bytes());
        format!("HQ {stamp}.{}", hex(signature.as_ref()))
    }

    #[test]
    fn only_the_whole_token_opens() {
        let entrance = entrance();
        let opens = |value: &str| admits(&entrance, &Method::GET, "/metrics", value, 0);
        assert!(opens(&format!("Bearer {}", "a".repeat(64))));
        assert!(opens(&format!("bearer {}", "a".repeat(64))));
        for wrong in [
            "Bearer ",
            "Bearer a",
            "Basic YTph",
            &format!("Bearer {}", "a".repeat(65)),
            &"a".repeat(64),
            &format!("HQ {}", "a".repeat(64)),
            "HQ 0.1.zz",
            "HQ ",
        ] {
            assert!(!opens(wrong), "{wrong}");
        }
        let nothing = SignedRequest {
            method: &Method::GET,
            target: "/",
            headers: &HeaderMap::new(),
        };
        assert!(entrance.admits(nothing, 0).is_none());
    }

    #[test]
    fn a_signature_is_good_for_one_request_and_a_minute() {
        let (entrance, now) = (entrance(), 1_000_000);
        let get = signed(&entrance, &Method::GET, "/api/v1/jobs?limit=2", "999000.ab");
        let check =
            |method, target, value: &str, now| admits(&entrance, method, target, value, now);
        assert!(check(&Method::GET, "/api/v1/jobs?limit=2", &get, now));
        assert!(!check(&Method::GET, "/api/v1/jobs?limit=3", &get, now));
        assert!(!check(&Method::POST, "/api/v1/jobs?limit=2", &get, now));
        assert!(!check(
            &Method::GET,
            "/api/v1/jobs?limit=2",
            &get,
            now + 60_001
        ));
        assert!(!check(&Method::GET, "/api/v1/jobs?limit=2", &get, 900_000));
        let other = with_token("b");
        assert!(!admits(
            &other,
            &Method::GET,
            "/api/v1/jobs?limit=2",
            &get,
            now
        ));
    }

    #[test]
    fn a_signature_covers_all_that_a_request_says() {
        let (entrance, now) = (entrance(), 1_000_000);
        let path = "/api/v1/jobs/3/cancel";
        let admits_with = |stamp: &str, name, value| {
            let mut headers = with(&signed(&entrance, &Method::POST, path, stamp));
            headers.insert(name, HeaderValue::from_static(value));
            let asked = SignedRequest {
                method: &Method::POST,
                target: path,
                headers: &headers,
            };
            entrance.admits(asked, now).is_some()
        };
        assert!(admits_with("1000000.aa", header::CONTENT_LENGTH, "0"));
        assert!(!admits_with("1000000.bb", header::CONTENT_LENGTH, "12"));
        assert!(!admits_with(
            "1000000.cc",
            header::TRANSFER_ENCODING,
            "chunked"
        ));
        assert!(admits_with(
            "1000000.dd",
            header::ORIGIN,
            "http://localhost"
        ));
    }

    #[test]
    fn a_token_for_reading_lets_look_and_no_more() {
        let entrance = entrance();
        let access = |token: &str| {
            let value = format!("Bearer {}", token.repeat(64));
            let asked = SignedRequest {
                method: &Method::POST,
                target: "/api/v1/jobs/3/cancel",
                headers: &with(&value),
            };
            let admission = entrance.admits(asked, 0);
            admission.map(|admission| (admission.role, admission.holder))
        };
        assert_eq!(access("a"), Some((Role::Full, Holder::Owner)));
        assert_eq!(access("r"), Some((Role::Read, Holder::Other(0))));
        assert_eq!(access("x"), None);
        let [_, proof] = entrance.prove("00ff", 5);
        let key = hmac::Key::new(hmac::HMAC_SHA256, "r".repeat(64).as_bytes());
        let bytes = from_hex(&proof).expect("hexadecimal digits");
        hmac::verify(&key, b"hq-server\n00ff\n5", &bytes).expect("the proof of this token");
    }

    #[test]
    fn a_route_that_nobody_thought_of_takes_all_rights() {
        let jobs = ["/api/v1/jobs", "/api/v1/jobs/3/cancel"];
        let others = [
            "/api/v1/jobsters",
            "/api/v1/workers/1/stop",
            "/api/v1/%6aobs",
            "/metrics",
            "",
        ];
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            for route in jobs {
                assert_eq!(needed(&method, route), Role::Submit, "{method} {route}");
            }
            for route in others {
                assert_eq!(needed(&method, route), Role::Full, "{method} {route}");
            }
        }
        for method in [Method::GET, Method::HEAD] {
            assert_eq!(needed(&method, ""), Role::Read);
        }
        assert_eq!(needed(&Method::OPTIONS, ""), Role::Full);
        assert!(Role::Read < Role::Submit && Role::Submit < Role::Full);
    }

    #[test]
    fn what_changes_something_counts_once() {
        let (entrance, now) = (entrance(), 1_000_000);
        let path = "/api/v1/jobs/3/resubmit";
        let send = |stamp: &str, now| {
            let value = signed(&entrance, &Method::POST, path, stamp);
            admits(&entrance, &Method::POST, path, &value, now)
        };
        assert!(send("1000000.aa", now));
        assert!(!send("1000000.aa", now));
        assert!(send("1000000.bb", now));
        for number in 0..USED_MAX {
            send(&format!("1000001.{number:x}"), now);
        }
        assert!(!send("1000002.ff", now), "the memory for them is bounded");
        assert!(send("1070000.ff", now + 70_000), "and empties with time");
        // Requests signed with the read token do not fill the list.
        let key = hmac::Key::new(hmac::HMAC_SHA256, "r".repeat(64).as_bytes());
        for number in 0..USED_MAX {
            let stamp = format!("1140000.{number:x}");
            let text = format!("hq-request\nPOST\n{path}\n{stamp}");
            let signature = hex(hmac::sign(&key, text.as_bytes()).as_ref());
            let value = format!("HQ {stamp}.{signature}");
            assert!(admits(
                &entrance,
                &Method::POST,
                path,
                &value,
                now + 140_000
            ));
        }
        assert!(
            send("1140000.ffff", now + 140_000),
            "each token has its own"
        );
    }

    /// Checks the values that `crypto.subtle` returns for these texts.
    #[test]
    fn the_proof_is_an_hmac_over_nonce_and_time() {
        let [proof, read_proof] = entrance().prove("00ff", 5);
        assert_ne!(proof, read_proof);
        let key = hmac::Key::new(hmac::HMAC_SHA256, "a".repeat(64).as_bytes());
        let bytes = from_hex(&proof).expect("hexadecimal digits");
        hmac::verify(&key, b"hq-server\n00ff\n5", &bytes).expect("the same");
        assert_eq!(proof.len(), 64);
    }

    #[test]
    fn each_start_has_a_new_token_and_it_is_private() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("token");
        let first = Token::random().expect("a token");
        first.store(&path).expect("room");
        let second = Token::random().expect("another token");
        second.store(&path).expect("room");
        assert_ne!(first.0, second.0);
        let kept = std::fs::read_to_string(&path).expect("the file");
        assert_eq!(kept, *second.0);
        let mode = std::fs::metadata(&path)
            .expect("the file")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o600);
        let files = std::fs::read_dir(dir.path()).expect("the directory");
        assert_eq!(files.count(), 1);
    }
}
