//! `--notify`: runs commands, and sends requests to a web server in the test.

use std::io::{self, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use serde_json::Value;

use crate::harness::{Env, signal, wait_for};

/// How long to wait for a request.
const PATIENCE: Duration = Duration::from_secs(60);

/// A web server that answers with these statuses, repeating the last one, and forwards the requests
/// to the test.
struct Web {
    address: String,
    requests: Receiver<(String, Value)>,
}

impl Web {
    fn new(statuses: &'static [u16]) -> Self {
        Self::start(statuses, None)
    }

    fn start(statuses: &'static [u16], tls: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let scheme = if tls.is_some() { "https" } else { "http" };
        let (tx, requests) = channel();
        std::thread::spawn(move || {
            let last = *statuses.last().expect("a status");
            let statuses = statuses.iter().copied().chain(std::iter::repeat(last));
            for (connection, status) in listener.incoming().zip(statuses) {
                let request = connection.and_then(|connection| match &tls {
                    None => answer(connection, status),
                    Some(config) => {
                        let session = ServerConnection::new(Arc::clone(config));
                        let session = session.map_err(io::Error::other)?;
                        answer(StreamOwned::new(session, connection), status)
                    }
                });
                // The receiver ends with the test. A client that does not trust the certificate
                // sends nothing.
                if request.is_ok_and(|request| tx.send(request).is_err()) {
                    return;
                }
            }
        });
        Self {
            address: format!("{scheme}://localhost:{port}"),
            requests,
        }
    }

    fn next(&self) -> (String, Value) {
        self.requests.recv_timeout(PATIENCE).expect("a request")
    }
}

/// Returns the certificate of a private authority as PEM, and the configuration of a server that it
/// certifies as `localhost`.
fn authority() -> (String, Arc<ServerConfig>) {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let key = KeyPair::generate().expect("a key");
    let root = params.self_signed(&key).expect("a certificate").pem();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(["localhost".to_owned()]).expect("a name");
    let certificate = params.signed_by(&key, &issuer).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions of TLS")
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.into()],
            PrivatePkcs8KeyDer::from(key.serialize_der()).into(),
        )
        .expect("they belong together");
    (root, Arc::new(config))
}

fn answer(mut connection: impl Read + Write, status: u16) -> io::Result<(String, Value)> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let count = connection.read(&mut buffer)?;
        bytes.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            if count == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            continue;
        };
        let length = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length")
                .then(|| value.trim().parse::<usize>().expect("a length"))
        });
        if body.len() >= length.expect("a length") {
            let reply = format!(
                "HTTP/1.1 {status} X\r\nlocation: /elsewhere\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
            );
            connection.write_all(reply.as_bytes())?;
            connection.flush()?;
            return Ok((head.to_owned(), serde_json::from_str(body).expect("JSON")));
        }
    }
}

fn states(env: &Env, job: &str) -> Vec<String> {
    let info = env.json(&["job", "info", job]);
    let all = info[0]["notifications"].as_array().expect("notifications");
    let state = |found: &Value| {
        format!(
            "{} {}",
            found["event"].as_str().unwrap_or_default(),
            found["state"].as_str().unwrap_or_default()
        )
    };
    all.iter().map(state).collect()
}

#[track_caller]
fn wait_states(env: &Env, job: &str, wanted: &[&str]) {
    wait_for("the notifications are as they should be", || {
        let found = states(env, job);
        if found == wanted {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    });
}

#[test]
fn a_web_server_hears_of_the_first_failure_and_of_the_end() {
    let env = Env::with_worker(1);
    let web = Web::new(&[204]);
    let hook = format!("{}/hooks/secret?x=1", web.address);
    let script = "[ $HQ_TASK_ID = 1 ] && exit 7; until [ -e go ]; do sleep 0.01; done";
    let job = env.submit(&[
        "--array=1-2",
        "--name=a \"b\" <c>",
        "--notify",
        &hook,
        "--notify-on=end,failure",
        "--",
        "bash",
        "-c",
        script,
    ]);
    let (head, body) = web.next();
    assert!(
        head.starts_with("POST /hooks/secret?x=1 HTTP/1.1"),
        "{head}"
    );
    assert!(
        head.to_lowercase()
            .contains("content-type: application/json")
    );
    assert_eq!(body["event"], "failure");
    assert_eq!(body["job"]["name"], "a \"b\" <c>");
    assert_eq!(body["failure"]["task"], 1);
    assert_eq!(
        body["failure"]["error"],
        "Program terminated with exit code 7."
    );
    env.write("go", "");
    let (_, body) = web.next();
    assert_eq!(body["event"], "end");
    assert_eq!(body["job"]["state"], "failed");
    assert_eq!(body["job"]["tasks"]["finished"], 1);
    wait_states(&env, &job, &["end delivered", "failure delivered"]);
    let shown = env.hq(&["job", "info", &job]).ok();
    assert!(shown.contains(": delivered at "), "{shown}");
    assert!(!shown.contains("secret"), "addresses have secrets: {shown}");
    assert!(!env.read("server.log").contains("secret"));
    let rows = env.hq(&[
        "query",
        "--csv",
        "SELECT event, state, attempts FROM notifications",
    ]);
    rows.says("end,delivered,1").ok();
    assert!(web.requests.try_recv().is_err(), "each is told once");
}

#[test]
fn a_notification_has_the_last_words_of_a_failed_task() {
    let env = Env::with_worker(1);
    let web = Web::new(&[204]);
    let script = "echo no index of chr7 >&2; exit 7";
    // If a worker is too busy to answer in time, the last words are left out.
    wait_for("the words are told", || {
        env.submit(&["--notify", &web.address, "--", "bash", "-c", script]);
        let failure = web.next().1["failure"].clone();
        let is_told = failure["last_words"] == "no index of chr7";
        is_told.then_some(()).ok_or(failure.to_string())
    });
}

#[test]
fn what_fails_is_tried_again_and_a_redirect_is_no_success() {
    let env = Env::with_worker(1);
    let web = Web::new(&[500, 302, 200]);
    let job = env.submit(&["--notify", &web.address, "--", "true"]);
    for _ in 0..3 {
        assert_eq!(web.next().1["job"]["state"], "finished");
    }
    wait_states(&env, &job, &["end delivered"]);
    assert_eq!(
        env.json(&["job", "info", &job])[0]["notifications"][0]["attempts"],
        3
    );
    assert!(env.read("server.log").contains("the response was 500"));
}

/// A web server that never answers uses only its share of the delivery slots.
#[test]
fn a_place_that_hangs_does_not_hold_up_others() {
    let env = Env::with_worker(2);
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}/", silent.local_addr().expect("an address"));
    for _ in 0..9 {
        env.submit(&["--notify", &address, "--wait", "--", "true"]);
    }
    let job = env.submit(&["--notify=cmd:touch told", "--wait", "--", "true"]);
    wait_states(&env, &job, &["end delivered"]);
    assert!(env.path("told").exists());
}

#[test]
fn a_server_is_told_whom_to_trust_and_trusts_nobody_else() {
    let (root, config) = authority();
    let web = Web::start(&[204], Some(config));
    let mut env = Env::new();
    let root = env.write("authority.pem", root);
    // The system does not trust the certificate.
    env.start_server();
    env.start_worker(1);
    let job = env.submit(&["--notify", &web.address, "--wait", "--", "true"]);
    wait_for("the certificate is refused", || {
        let log = env.read("server.log");
        if log.contains("invalid peer certificate: UnknownIssuer") {
            Ok(())
        } else {
            Err(log)
        }
    });
    assert!(web.requests.try_recv().is_err(), "nothing was sent");
    // A server that trusts the certificate sends the pending notifications.
    env.hq(&["server", "stop"]).ok();
    assert_eq!(env.wait_exit("server"), Some(0));
    env.set("SSL_CERT_FILE", &root.to_string_lossy());
    env.start_server_with(&["--resume"]);
    let (head, body) = web.next();
    assert!(head.starts_with("POST / HTTP/1.1"), "{head}");
    assert_eq!(body["job"]["id"].to_string(), job);
    wait_states(&env, &job, &["end delivered"]);
}

#[test]
fn a_command_gets_the_message_and_survives_hostile_names() {
    let env = Env::with_worker(1);
    let job = env.submit(&[
        "--name=$(touch hacked)`touch hacked`",
        "--notify",
        "cmd:cat > told.json; printf '%s %s %s' \"$HQ_JOB_ID\" \"$HQ_JOB_STATE\" \"$HQ_JOB_NAME\" > told.txt",
        "--",
        "true",
    ]);
    wait_states(&env, &job, &["end delivered"]);
    assert_eq!(
        env.read("told.txt"),
        format!("{job} finished $(touch hacked)`touch hacked`")
    );
    let told: Value = serde_json::from_str(&env.read("told.json")).expect("JSON");
    assert_eq!(told["job"]["id"].to_string(), job);
    assert!(!env.path("hacked").exists());
}

#[test]
fn what_is_owed_is_sent_after_the_server_was_killed() {
    let mut env = Env::new();
    let server = env.start_server();
    env.start_worker(1);
    // The target fails until the server is gone.
    let line = "cmd:[ -e up ] || exit 3; echo told >> told";
    let job = env.submit(&["--notify", line, "--wait", "--", "true"]);
    wait_for("a first attempt failed", || {
        let log = env.read("server.log");
        if log.contains("ended with exit code 3") {
            Ok(())
        } else {
            Err(log)
        }
    });
    signal(server, "KILL");
    env.wait_exit("server");
    env.write("up", "");
    let server = env.start_server_with(&["--resume"]);
    wait_states(&env, &job, &["end delivered"]);
    assert_eq!(env.read("told"), "told\n");
    // Delivered notifications are not sent again.
    signal(server, "KILL");
    env.wait_exit("server");
    env.start_server_with(&["--resume"]);
    assert_eq!(states(&env, &job), ["end delivered"]);
    assert_eq!(env.read("told"), "told\n");
}

#[test]
fn mistakes_are_told_before_anything_is_submitted() {
    let env = Env::with_worker(1);
    for (wrong, words) in [
        ("mail me", "expected `cmd:COMMAND`"),
        ("cmd:", "expected a command after `cmd:`"),
        ("ftp://x/", "expected `cmd:COMMAND`"),
    ] {
        let ran = env.hq(&["submit", "--notify", wrong, "--", "true"]);
        ran.says(words).exits_with(2);
    }
    let ran = env.hq(&["submit", "--notify-on=end", "--", "true"]);
    ran.says("--notify").exits_with(2);
    let ran = env.hq(&["submit", "--on-notify=true", "--", "true"]);
    ran.says("--wait").exits_with(2);
    assert_eq!(env.json(&["job", "list", "--all"]), serde_json::json!([]));
}

#[test]
fn a_caller_that_ignores_the_end_of_its_children_changes_nothing() {
    let mut env = Env::with_worker(1);
    let submit = [
        "submit",
        "--wait",
        "--on-notify=true",
        "--",
        "bash",
        "-c",
        "$HQ task notify x",
    ];
    let ignoring = ["env", "--ignore-signal=CHLD"];
    let pid = env.spawn_behind(&ignoring, "submit", &submit);
    assert_eq!(env.wait_exit_of(pid), Some(0));
    let log = env.read("submit.log");
    assert!(!log.contains("Failed to run"), "{log}");
}
