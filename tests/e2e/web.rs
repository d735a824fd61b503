//! The web dashboard: its pages, and its behavior in a browser, if available.

use std::io::{Read as _, Write as _};
use std::process::Command;

use crate::harness::{Env, skip};
use crate::http::{Site, resources};

/// Names a Python with Playwright and schemathesis. `.ci/run` creates one.
const PYTHON: &str = "HQ_WEB_PYTHON";

/// Names the directory of the tools that tests/web/tools/check fetched. They are used together with
/// a browser.
const TOOLS: &str = "HQ_WEB_TOOLS";

#[test]
fn pages_need_the_token_and_are_kept_by_browsers() {
    let mut env = Env::new();
    env.start_server_with(&["--http"]);
    let site = Site::of(&env);
    let plain = |path: &str, more: &str| site.send(&format!("GET {path} HTTP/1.1\r\n{more}"));
    let page = plain("/", "");
    assert_eq!(page.status, 401);
    assert!(page.body.contains("<title>hq: log in</title>"));
    assert!(
        page.head
            .contains("content-security-policy: default-src 'none'")
    );
    assert_eq!(plain("/app/js/main.js", "").status, 401);
    assert_eq!(
        plain("/app/js/main.js", "Cookie: hq-page-x=0\r\n").status,
        401
    );
    let wrong = "POST /login HTTP/1.1\r\nAuthorization: Bearer 00\r\nContent-Length: 0\r\n";
    assert_eq!(site.send(wrong).status, 401);
    let answer = site.post("/login");
    assert_eq!(answer.status, 204, "{}", answer.body);
    let cookie = answer
        .head
        .lines()
        .find_map(|line| line.strip_prefix("set-cookie: "));
    let cookie = cookie.expect("a cookie");
    assert!(cookie.contains("httponly") && cookie.contains("samesite=strict"));
    assert!(!cookie.contains(&site.token), "it is not the token");
    let (pair, _) = cookie.split_once(';').expect("attributes");
    let known = format!("Cookie: other=1; {pair}\r\n");
    let page = plain("/", &known);
    assert_eq!(page.status, 200);
    assert!(page.body.contains("/app/js/main.js"));
    let tag = page
        .head
        .lines()
        .find_map(|line| line.strip_prefix("etag: "));
    let again = format!("{known}If-None-Match: {}\r\n", tag.expect("a tag"));
    assert_eq!(plain("/", &again).status, 304);
    assert_eq!(plain("/app/js/nothing.js", &known).status, 404);
    // The server's proof needs no token, and grants nothing.
    let proof = plain("/login/proof?nonce=0123", "");
    assert_eq!(proof.status, 200);
    let proof = proof.value()["proof"].as_str().expect("text").to_owned();
    assert_ne!(proof, site.token);
    let shown = format!("Authorization: HQ {proof}\r\n");
    assert_eq!(plain("/api/v1/jobs", &shown).status, 401);
    let long = "0".repeat(129);
    assert_eq!(plain(&format!("/login/proof?nonce={long}"), "").status, 400);
    // The cookie gives access to pages, not to data.
    assert_eq!(plain("/api/v1/jobs", &known).status, 401);
    assert_eq!(plain("/metrics", &known).status, 401);
}

#[test]
fn a_running_server_is_asked_for_its_dashboard() {
    let mut env = Env::new();
    env.start_server();
    let printed = env.hq(&["dashboard", "--web"]).ok();
    let (link, ssh) = printed.trim().split_once('\n').expect("two lines");
    let (address, token) = link
        .strip_prefix("http://")
        .and_then(|rest| rest.split_once("/login#token="))
        .expect("a link");
    assert!(
        ssh.contains(": ssh -N -L ") && ssh.contains(address),
        "{ssh}"
    );
    let (address, token) = (address.to_owned(), token.to_owned());
    let site = Site { address, token };
    assert_eq!(site.get("/api/v1/server").status, 200);
    let stranger = site.send("GET /api/v1/server HTTP/1.1\r\n");
    assert_eq!(stranger.status, 401);
    // The next call prints the same.
    assert_eq!(env.hq(&["dashboard", "--web"]).ok(), printed);
    let reading = env.hq(&["dashboard", "--web", "--read-only"]).ok();
    let link_of = |printed: &str| {
        printed
            .split_once("#token=")
            .map(|(_, rest)| rest[..64].to_owned())
    };
    let read_token = link_of(&reading).expect("a link");
    assert_ne!(read_token, site.token);
    let reader = Site {
        address: site.address.clone(),
        token: read_token,
    };
    assert_eq!(reader.get("/api/v1/server").value()["is_read_only"], true);
    assert_eq!(site.get("/api/v1/server").value()["is_read_only"], false);
    assert_eq!(reader.get("/metrics").status, 200);
    env.submit(&["--", "sleep", "1000"]);
    // Every change is rejected.
    for path in resources("post") {
        let answer = reader.post(&path);
        assert_eq!(answer.status, 403, "{path}: {}", answer.body);
        assert_eq!(answer.value()["kind"], "read-only");
    }
    assert_eq!(env.stats("1")["canceled"], 0);
    let quiet = env.hq(&["--output-mode=quiet", "dashboard", "--web"]).ok();
    assert_eq!(quiet.trim(), link);
    // A client that follows the events does not delay the end of the server.
    let mut stream = std::net::TcpStream::connect(&site.address).expect("the listener answers");
    let (address, token) = (&site.address, &site.token);
    let asked = format!(
        "GET /api/v1/events HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n"
    );
    stream.write_all(asked.as_bytes()).expect("send a request");
    let mut head = [0; 12];
    stream.read_exact(&mut head).expect("an answer");
    assert_eq!(&head, b"HTTP/1.1 200");
    env.hq(&["server", "stop"]).ok();
    assert_eq!(env.wait_exit("server"), Some(0));
}

fn works(command: &mut Command) -> bool {
    command.output().is_ok_and(|out| out.status.success())
}

/// Returns a Python interpreter that has the module, or the reason why there is none.
pub(crate) fn python_with(module: &str) -> Result<String, String> {
    let python = std::env::var(PYTHON).unwrap_or_else(|_| "python3".to_owned());
    if works(Command::new(&python).args(["-c", &format!("import {module}")])) {
        return Ok(python);
    }
    Err(format!("`{python}` has no {module}; {PYTHON} names one"))
}

/// Returns Python and Chromium, or why there are none.
fn browser() -> Result<String, String> {
    let python = python_with("playwright.sync_api")?;
    if std::env::var_os(TOOLS).is_none() {
        return Err(format!(
            "{TOOLS} names no folder that tests/web/tools/check has filled"
        ));
    }
    let chromium = std::env::var("HQ_CHROMIUM").unwrap_or_else(|_| "chromium".to_owned());
    if !works(Command::new(&chromium).arg("--version")) {
        return Err(format!("there is no `{chromium}`; HQ_CHROMIUM names one"));
    }
    Ok(python)
}

/// Returns what a report contains: its notes, and the answers of `/api/v1` by path.
pub(crate) fn recorded(page: &str) -> serde_json::Value {
    let begin = "<script id=\"recorded\" type=\"application/json\">";
    let (_, rest) = page.split_once(begin).expect("the data of a report");
    let (text, _) = rest.split_once("</script>").expect("their end");
    serde_json::from_str(text).expect("JSON")
}

/// Returns a view of a report in a browser without network, as markup. `None` without a browser.
pub(crate) fn rendered(env: &Env, page: &str, view: &str) -> Option<String> {
    let chromium = std::env::var("HQ_CHROMIUM").unwrap_or_else(|_| "chromium".to_owned());
    if !works(Command::new(&chromium).arg("--version")) {
        skip(&format!("there is no `{chromium}`; HQ_CHROMIUM names one"));
        return None;
    }
    let mut command = Command::new(chromium);
    command
        .args(["--headless", "--disable-gpu", "--virtual-time-budget=20000"])
        .arg(format!("--user-data-dir={}", env.path("browser").display()))
        .arg("--proxy-server=127.0.0.1:9")
        .args(["--dump-dom"])
        .arg(format!("file://{}#/{view}", env.path(page).display()));
    if rustix::process::geteuid().is_root() {
        command.arg("--no-sandbox");
    }
    let out = command.output().expect("it can be run");
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let shown = text.split_once("<main").map(|(_, main)| main.to_owned());
    Some(shown.unwrap_or_else(|| panic!("{text}\n{}", String::from_utf8_lossy(&out.stderr))))
}

/// Runs a program that must succeed. Returns its output.
#[track_caller]
fn run(command: &mut Command, env: &Env) -> String {
    let out = command.output().expect("python can be run");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let printed = text(&out.stdout);
    let said = text(&out.stderr);
    let log = env.read("server.log");
    assert!(out.status.success(), "{printed}\n{said}\n{log}");
    printed
}

#[test]
fn a_run_is_watched_and_mended_in_a_browser() {
    let python = match browser() {
        Ok(python) => python,
        Err(reason) => {
            skip(&reason);
            return;
        }
    };
    let mut env = Env::new();
    env.start_server_with(&["--http"]);
    env.start_worker_with(&["--cpus=2", "--hostname=the-only-host"]);
    let site = Site::of(&env);
    let read_token = env.read("server/hq-current/http-read-token");
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/web/dashboard.py");
    let url = format!("http://{}", site.address);
    let mut command = Command::new(python);
    command
        .arg(script)
        .args([&url, &site.token, &read_token])
        .arg(env.path(""))
        .env("HQ", env!("CARGO_BIN_EXE_hq"))
        .env("HQ_SERVER_DIR", env.server_dir());
    run(&mut command, &env);
}

#[test]
fn the_pictures_of_the_manual_can_be_made() {
    let python = match browser() {
        Ok(python) => python,
        Err(reason) => {
            skip(&reason);
            return;
        }
    };
    let env = Env::new();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/web/pictures.py");
    let mut command = Command::new(python);
    command
        .args([script, env!("CARGO_BIN_EXE_hq")])
        .arg(env.path("pictures"))
        .arg("--quick")
        .env_remove("HQ_SERVER_DIR");
    let out = command.output().expect("python can be run");
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    for (folder, page) in [
        ("web/", include_str!("../../docs/web.md")),
        ("dashboard/", include_str!("../../docs/dashboard.md")),
        ("report/", include_str!("../../docs/report.md")),
    ] {
        let link = format!("({folder}");
        let shown = page.split(&link).skip(1);
        let names = shown.filter_map(|rest| rest.split(')').next());
        let names: Vec<_> = names.filter(|name| !name.contains("-dark")).collect();
        assert!(!names.is_empty(), "{folder}");
        for name in names {
            let path = env.path("pictures").join(folder).join(name);
            assert!(path.exists(), "{folder}{name}");
        }
    }
}

/// The port of an ended server belongs to the first process that takes it, and an open page keeps
/// reconnecting.
#[test]
fn a_stranger_who_takes_the_port_of_an_open_page_learns_nothing() {
    let python = match browser() {
        Ok(python) => python,
        Err(reason) => {
            skip(&reason);
            return;
        }
    };
    let mut env = Env::new();
    let pid = env.start_server_with(&["--http"]);
    let before = Site::of(&env);
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/web/stranger.py");
    let url = format!("http://{}", before.address);
    let mut command = Command::new(python);
    command
        .arg(script)
        .args([&url, &before.token, &pid.to_string()]);
    let got = run(&mut command, &env);
    assert_eq!(env.wait_exit("server"), None, "it was killed");
    // The data that the stranger got, and even the token itself, grant nothing when the server is
    // back.
    let (_, port) = before.address.rsplit_once(':').expect("a port");
    env.start_server_with(&["--resume", &format!("--http={port}")]);
    let after = Site::of(&env);
    assert_eq!(after.address, before.address);
    let bearer = format!("Bearer {}", before.token);
    for shown in got.lines().chain([&*bearer]) {
        for path in ["/api/v1/summary", "/api/v1/events?resync=true", "/metrics"] {
            let answer = after.send(&format!(
                "GET {path} HTTP/1.1\r\nAuthorization: {shown}\r\n"
            ));
            assert_eq!(answer.status, 401, "{path} {shown}");
        }
    }
    assert_eq!(after.get("/api/v1/summary").status, 200);
}

#[test]
fn the_interface_is_what_its_description_says() {
    let module = "schemathesis.cli";
    let python = match python_with(module) {
        Ok(python) => python,
        Err(reason) => {
            skip(&reason);
            return;
        }
    };
    let mut env = Env::new();
    env.start_server_with(&["--http"]);
    env.start_worker(2);
    let site = Site::of(&env);
    // Creates an example of each kind, to have data to show.
    let script = "echo out; echo err >&2; exit $((HQ_TASK_ID % 2))";
    env.submit(&["--array=1-9", "--wait", "--", "bash", "-c", script]);
    env.submit(&["--array=1-4", "--resource=gpus/none=4", "--", "true"]);
    env.submit(&["--notify=cmd:true", "--", "sleep", "1000"]);
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    let config = format!("{root}tests/web/schemathesis.toml");
    let mut command = Command::new(python);
    command
        .args(["-m", module, "--config-file", &config, "run"])
        .arg(format!("{root}docs/openapi.yaml"))
        .args(["--url", &format!("http://{}/api/v1", site.address)])
        .args(["-H", &format!("Authorization: Bearer {}", site.token)])
        .args(["--phases", "examples,coverage,fuzzing", "-n", "12"])
        .args(["--generation-deterministic", "--no-color"])
        .current_dir(env.path(""));
    run(&mut command, &env);
    assert!(!env.read("server.log").contains("panicked"));
}
