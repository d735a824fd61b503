//! Serves the embedded files of the web dashboard, and controls access to them.
//!
//! Without a token, only the login page is served, which contains no data. A request with the token
//! sets a cookie that gives access to the files of the dashboard and to nothing else. For data, the
//! page signs each request with the token. All ports of a machine share cookies, so another user's
//! server may see this one, but it is worthless there.

use std::sync::Arc;

use axum::Json;
use axum::Router;
use axum::extract::{Path, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Deserialize;
use serde_json::json;

use super::packed::Packed;
use super::{App, auth, now_ms};

/// The content security policy of a page. It loads only its own files, and text never becomes
/// script or markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
                      require-trusted-types-for 'script'; trusted-types 'none'";

/// The maximum length of the nonce in a request for a proof, twice the necessary length.
const NONCE_LEN_MAX: usize = 128;

/// The files of the dashboard, sorted by their paths.
const FILES: &[(&str, Packed)] = include!(concat!(env!("OUT_DIR"), "/pages.rs"));

/// Returns the routes of all pages, except the API.
pub(super) fn router() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(home))
        .route("/login", get(login_page).post(log_in))
        .route("/login/proof", get(prove))
        .route(
            "/login.css",
            get(async |h: HeaderMap| file("login.css", &h)),
        )
        .route("/key.js", get(async |h: HeaderMap| file("key.js", &h)))
        .route("/login.js", get(async |h: HeaderMap| file("login.js", &h)))
        .route("/app/{*path}", get(part))
}

async fn home(State(app): State<Arc<App>>, request: Request) -> Response {
    if is_known(&app, &request) {
        app.parts.stats.http_requests.inc();
        file("index.html", request.headers())
    } else {
        app.parts.stats.http_refused.inc();
        login_page(request).await
    }
}

async fn login_page(request: Request) -> Response {
    let mut headers = request.headers().clone();
    // A client without a token always gets the page, because a 304 would become a 401 without
    // content.
    headers.remove(header::IF_NONE_MATCH);
    let mut response = file("login.html", &headers);
    *response.status_mut() = StatusCode::UNAUTHORIZED;
    response
}

/// Exchanges the token for the cookie.
async fn log_in(State(app): State<Arc<App>>, request: Request) -> Response {
    if let Err(refusal) = app.admits(&request) {
        return refused(&app, *refusal);
    }
    app.parts.stats.http_requests.inc();
    let cookie = format!(
        "{}={}; HttpOnly; SameSite=Strict; Path=/",
        cookie_name(&app),
        app.page_key.as_str()
    );
    let mut response = (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]).into_response();
    protect(&mut response);
    response
}

async fn part(State(app): State<Arc<App>>, Path(path): Path<String>, request: Request) -> Response {
    if is_known(&app, &request) {
        app.parts.stats.http_requests.inc();
        file(&path, request.headers())
    } else {
        refused(&app, auth::refusal())
    }
}

#[derive(Deserialize)]
struct Challenge {
    nonce: String,
}

/// Proves to a page that this server has its token, and sends the time for the page's signatures.
/// This needs no token, because the reply is useless to other clients.
async fn prove(State(app): State<Arc<App>>, Query(challenge): Query<Challenge>) -> Response {
    let nonce = &challenge.nonce;
    if nonce.len() > NONCE_LEN_MAX {
        return (StatusCode::BAD_REQUEST, "the nonce is too long\n").into_response();
    }
    let now_ms = now_ms();
    let [proof, read_proof] = app.entrance.prove(nonce, now_ms);
    let proofs = json!({"now_ms": now_ms, "proof": proof, "read_proof": read_proof});
    let mut response = Json(proofs).into_response();
    protect(&mut response);
    response
}

fn refused(app: &App, mut response: Response) -> Response {
    app.parts.stats.http_refused.inc();
    protect(&mut response);
    response
}

/// Returns the name of the cookie, which differs between the servers on a machine.
fn cookie_name(app: &App) -> String {
    let uid = &app.parts.info.server_uid;
    let word: String = uid.chars().filter(char::is_ascii_alphanumeric).collect();
    format!("hq-page-{}", word.to_ascii_lowercase())
}

/// Returns whether a request has the cookie or the token itself.
fn is_known(app: &App, request: &Request) -> bool {
    let name = cookie_name(app);
    let cookies = request.headers().get_all(header::COOKIE).iter();
    let mut pairs = cookies
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .filter_map(|pair| pair.trim().split_once('='));
    let has_cookie = pairs.any(|(key, value)| key == name && app.page_key.matches(value));
    has_cookie || app.admits(request).is_ok()
}

/// Returns a file, or status 304 if the browser's copy is current.
fn file(path: &str, headers: &HeaderMap) -> Response {
    let Some((_, found)) = FILES.iter().find(|(name, _)| *name == path) else {
        return (StatusCode::NOT_FOUND, "there is nothing here\n").into_response();
    };
    let tag = found.tag(headers);
    let known = headers
        .get(header::IF_NONE_MATCH)
        .and_then(|value| value.to_str().ok());
    let is_known =
        known.is_some_and(|value| value.split(',').any(|one| one.trim().ends_with(&tag)));
    let mut response = if is_known {
        StatusCode::NOT_MODIFIED.into_response()
    } else {
        let mut response = found.response(headers);
        let kind = HeaderValue::from_static(kind(path));
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        response
    };
    let headers = response.headers_mut();
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    protect(&mut response);
    response
}

fn protect(response: &mut Response) {
    let headers = response.headers_mut();
    for (name, value) in [
        // Browsers revalidate each time, because a new server may have other files.
        (header::CACHE_CONTROL, "private, no-cache"),
        (header::VARY, "cookie, accept-encoding"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    for name in ["cross-origin-opener-policy", "cross-origin-resource-policy"] {
        headers.insert(name, HeaderValue::from_static("same-origin"));
    }
}

fn kind(path: &str) -> &'static str {
    match path.rsplit_once('.').map_or("", |(_, end)| end) {
        "css" => "text/css; charset=utf-8",
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "svg" => "image/svg+xml",
        _ => "application/octet-stream",
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;

    fn on_disk(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(dir).expect("the folder of the pages") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                on_disk(&path, found);
            } else {
                found.push(path);
            }
        }
    }

    /// Returns all files with their contents.
    fn texts() -> impl Iterator<Item = (&'static str, String)> {
        let unpacked = |file: &Packed| String::from_utf8(file.plain()).expect("text");
        FILES
            .iter()
            .map(move |(path, file)| (*path, unpacked(file)))
    }

    #[test]
    fn every_file_is_served_as_it_is() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("web");
        let mut found = Vec::new();
        on_disk(&root, &mut found);
        found.sort();
        let served: Vec<_> = texts().collect();
        assert_eq!(found.len(), served.len());
        for (on_disk, (path, text)) in found.iter().zip(served) {
            assert_eq!(*on_disk, root.join(path));
            let expected = std::fs::read_to_string(on_disk).expect("a page");
            assert!(text == expected, "{path} is not as it is on disk");
        }
    }

    #[tokio::test]
    async fn the_login_page_has_a_body_for_who_has_it_already() {
        let login = async |tag: Option<&HeaderValue>| {
            let mut request = Request::new(axum::body::Body::empty());
            if let Some(tag) = tag {
                request
                    .headers_mut()
                    .insert(header::IF_NONE_MATCH, tag.clone());
            }
            let response = login_page(request).await;
            assert_eq!(response.status(), StatusCode::UNAUTHORIZED);
            let tag = response.headers().get(header::ETAG).cloned();
            let body = axum::body::to_bytes(response.into_body(), usize::MAX).await;
            (tag, body.expect("a body"))
        };
        let (tag, page) = login(None).await;
        assert!(!page.is_empty());
        assert_eq!(login(tag.as_ref()).await.1, page);
    }

    #[test]
    fn every_module_that_is_imported_is_there() {
        for (name, text) in texts().filter(|(path, _)| path.ends_with(".js")) {
            let dir = Path::new(name).parent().expect("a folder");
            for line in text.lines().filter(|line| line.starts_with("import ")) {
                let module = line.split('"').nth(1).expect("the name of a module");
                let mut path = PathBuf::from(dir);
                for part in Path::new(module.trim_start_matches("./")) {
                    if part == ".." {
                        path.pop();
                    } else {
                        path.push(part);
                    }
                }
                let is_there = FILES.iter().any(|(file, _)| Path::new(file) == path);
                assert!(is_there, "{name}: {module}");
            }
        }
    }

    #[test]
    fn nothing_turns_text_into_markup_or_script_or_comes_from_elsewhere() {
        let banned = [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "new Function",
            "style=\"",
            "https://",
        ];
        for (path, text) in texts() {
            for word in banned {
                assert!(!text.contains(word), "{path}: {word}");
            }
        }
    }

    #[test]
    fn a_browser_that_has_a_file_is_not_sent_it_again() {
        let first = file("app.css", &HeaderMap::new());
        assert_eq!(first.status(), StatusCode::OK);
        let tag = first.headers().get(header::ETAG).expect("a tag").clone();
        let mut headers = HeaderMap::new();
        headers.insert(header::IF_NONE_MATCH, tag);
        assert_eq!(file("app.css", &headers).status(), StatusCode::NOT_MODIFIED);
        headers.insert(header::IF_NONE_MATCH, HeaderValue::from_static("\"other\""));
        assert_eq!(file("app.css", &headers).status(), StatusCode::OK);
        assert_eq!(file("../auth.rs", &headers).status(), StatusCode::NOT_FOUND);
    }

    #[test]
    fn a_file_is_compressed_for_those_who_take_that() {
        let mut headers = HeaderMap::new();
        let plain = file("app.css", &headers);
        headers.insert(
            header::ACCEPT_ENCODING,
            HeaderValue::from_static("gzip, br"),
        );
        let packed = file("app.css", &headers);
        let header_of = |response: &Response, name| response.headers().get(name).cloned();
        assert_eq!(header_of(&plain, header::CONTENT_ENCODING), None);
        let coding = header_of(&packed, header::CONTENT_ENCODING);
        assert_eq!(coding, Some(HeaderValue::from_static("gzip")));
        let kinds = [&plain, &packed].map(|one| header_of(one, header::CONTENT_TYPE));
        assert_eq!(kinds[0], kinds[1]);
        // A cache in between must not mix them up.
        let vary = header_of(&plain, header::VARY).expect("a cache is told");
        assert!(
            vary.to_str()
                .is_ok_and(|vary| vary.contains("accept-encoding"))
        );
        let tag = header_of(&packed, header::ETAG).expect("a tag");
        assert_ne!(Some(&tag), header_of(&plain, header::ETAG).as_ref());
        headers.insert(header::IF_NONE_MATCH, tag);
        assert_eq!(file("app.css", &headers).status(), StatusCode::NOT_MODIFIED);
    }
}
