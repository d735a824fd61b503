//! Tokens that users create for programs: the rights of each role, and revocation.

use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::time::{Duration, Instant};

use crate::harness::{Env, wait_for};
use crate::http::{Site, resources};

pub(crate) fn made(env: &Env, site: &Site, name: &str, role: &str) -> Site {
    let printed = env.hq(&["token", "create", name, "--role", role]).ok();
    Site {
        address: site.address.clone(),
        token: printed.trim().to_owned(),
    }
}

/// Returns which paths that change something are rejected.
fn refused(site: &Site, kind: &str) -> Vec<String> {
    let mut refused = resources("post");
    refused.retain(|path| {
        let answer = site.post(path);
        assert_ne!(answer.status, 401, "{path}");
        if answer.status == 403 {
            assert_eq!(answer.value()["kind"], kind, "{path}");
        }
        answer.status == 403
    });
    refused
}

#[test]
fn a_token_may_do_what_its_role_says() {
    let mut env = Env::new();
    env.start_server_with(&["--http"]);
    let owner = Site::of(&env);
    env.submit(&["--", "sleep", "1000"]);
    let reader = made(&env, &owner, "look", "read");
    let all = resources("post");
    assert_eq!(refused(&reader, "read-only"), all);
    assert_eq!(env.stats("1")["canceled"], 0);
    for path in resources("get") {
        if path.ends_with("/events") {
            continue;
        }
        // The job never ends.
        let wait = if path.ends_with("/wait") {
            "?timeout_ms=0"
        } else {
            ""
        };
        let path = format!("{path}{wait}");
        let (ours, theirs) = (owner.get(&path), reader.get(&path));
        assert_eq!(theirs.status, ours.status, "{path}: {}", theirs.body);
    }
    assert_eq!(reader.get("/metrics").status, 200);
    let server = reader.json("/api/v1/server");
    assert_eq!(
        (&server["is_read_only"], &server["role"]),
        (&true.into(), &"read".into())
    );
    let submitter = made(&env, &owner, "ci", "submit");
    let (jobs, others): (Vec<String>, Vec<String>) = all
        .into_iter()
        .partition(|path| path.starts_with("/api/v1/jobs"));
    assert!(jobs.len() >= 2 && others.len() >= 6, "{jobs:?} {others:?}");
    assert_eq!(refused(&submitter, "forbidden"), others);
    assert_eq!(env.stats("1")["canceled"], 1);
    let full = made(&env, &owner, "all", "full");
    assert_eq!(refused(&full, ""), Vec::<String>::new());
    env.hq(&["token", "create", "ci"])
        .exits_with(1)
        .says("the token `ci` exists already");
    env.hq(&["token", "create", "a b"])
        .exits_with(1)
        .says("letters, digits");
    let listed = env.hq(&["--output-mode=quiet", "token", "list"]).ok();
    assert_eq!(listed, "all full\nci submit\nlook read\n");
    let listed = env.json(&["token", "list"]);
    assert!(listed[0]["used_at"].is_string(), "{listed}");
}

#[test]
fn a_revoked_token_is_dead_and_the_others_live_on() {
    let mut env = Env::new();
    env.start_server_with(&["--http", "--journal=state.db"]);
    let owner = Site::of(&env);
    let (first, second) = (
        made(&env, &owner, "first", "read"),
        made(&env, &owner, "second", "full"),
    );
    env.hq(&["job", "open"]).ok();
    // A client is following the events.
    let mut stream = std::net::TcpStream::connect(&owner.address).expect("the listener answers");
    let request = format!(
        "GET /api/v1/events?after=0 HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\r\n",
        owner.address, first.token
    );
    std::io::Write::write_all(&mut stream, request.as_bytes()).expect("it listens");
    let follows = stream.try_clone().expect("a stream");
    let following = std::thread::spawn(move || {
        let mut seen = Vec::new();
        // The stream is cut off in the middle. Whether that is an error does not matter.
        let _ = (&follows).read_to_end(&mut seen);
        (String::from_utf8_lossy(&seen).into_owned(), Instant::now())
    });
    first.lines("/api/v1/events?after=0", "job-open");
    let began = Instant::now();
    env.hq(&["token", "revoke", "first"]).ok();
    assert_eq!(first.get("/api/v1/server").status, 401);
    let (seen, at) = following.join().expect("no panic");
    assert!(seen.starts_with("HTTP/1.1 200"), "{seen}");
    let took = at.saturating_duration_since(began);
    assert!(took < Duration::from_secs(1), "{took:?}");
    env.hq(&["token", "revoke", "first"])
        .exits_with(1)
        .says("there is no token `first`");
    // The next server with this state accepts the same token. The file does not reveal the token.
    env.hq(&["server", "stop"]).ok();
    assert_eq!(env.wait_exit("server"), Some(0));
    let file = env.path("state.db");
    let bytes = std::fs::read(&file).expect("the journal");
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.contains("token_second") && !text.contains("token_first"));
    assert!(!text.contains(&second.token[3..]));
    let mode = std::fs::metadata(&file).expect("the journal").mode();
    assert_eq!(mode & 0o077, 0, "{mode:o}");
    env.start_server_with(&["--http", "--journal=state.db"]);
    let now = Site::of(&env);
    let status = |token: &str| {
        let (address, token) = (now.address.clone(), token.to_owned());
        Site { address, token }.post("/api/v1/jobs/1/cancel").status
    };
    assert_eq!((status(&first.token), status(&second.token)), (401, 200));
}

#[test]
fn a_revoked_token_starts_nothing_whose_body_is_still_being_sent() {
    let mut env = Env::new();
    env.start_server_with(&["--http"]);
    let owner = Site::of(&env);
    let late = made(&env, &owner, "late", "submit");
    let body = r#"{"name":"late","task":[{"command":["true"]}]}"#;
    let mut stream = std::net::TcpStream::connect(&late.address).expect("the listener answers");
    let begun = format!(
        "POST /api/v1/jobs?submit_dir=/ HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n\
         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{}",
        late.address,
        late.token,
        body.len(),
        &body[..9]
    );
    std::io::Write::write_all(&mut stream, begun.as_bytes()).expect("it listens");
    wait_for("the request is admitted", || {
        let listed = env.json(&["token", "list"]);
        let tokens = listed.as_array().expect("a list").iter();
        let used = tokens
            .clone()
            .any(|token| token["name"] == "late" && token["used_at"].is_string());
        used.then_some(()).ok_or(listed.to_string())
    });
    env.hq(&["token", "revoke", "late"]).ok();
    // The server may have closed the connection already.
    let _ = std::io::Write::write_all(&mut stream, &body.as_bytes()[9..]);
    let mut seen = Vec::new();
    let _ = stream.read_to_end(&mut seen);
    let seen = String::from_utf8_lossy(&seen);
    assert!(
        seen.is_empty() || seen.starts_with("HTTP/1.1 401"),
        "{seen}"
    );
    let jobs = owner.get("/api/v1/jobs?all=true").body;
    assert!(!jobs.contains("late"), "{jobs}");
}
