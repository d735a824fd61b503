//! Programs that submit jobs over HTTP.

use std::process::Command;

use serde_json::json;

use crate::harness::{Env, signal, skip};
use crate::http::{Answer, Site};
use crate::web::python_with;

const JSON: &str = "Content-Type: application/json\r\n";

fn submitted(env: &Env, site: &Site, more: &str, body: &str) -> Answer {
    let dir = env.path("");
    let path = format!("/api/v1/jobs?submit_dir={}", dir.display());
    site.submit(&path, more, body)
}

#[test]
fn a_program_submits_waits_and_cancels() {
    let mut env = Env::new();
    env.start_server_with(&["--http"]);
    env.start_worker(2);
    let owner = Site::of(&env);
    let token = env.hq(&["token", "create", "ci", "--role=submit"]).ok();
    let (address, token) = (owner.address, token.trim().to_owned());
    let site = Site { address, token };
    let graph = json!({"name": "graph", "task": [
        {"id": 1, "command": ["bash", "-c", "echo one > made"]},
        {"id": 2, "command": ["bash", "-c", "cat made; exit 3"], "stdout": "seen", "deps": [1]}]});
    let answer = submitted(&env, &site, JSON, &graph.to_string());
    assert_eq!(
        (answer.status, answer.value()["job"].as_u64()),
        (200, Some(1)),
        "{}",
        answer.body
    );
    let ended = site.json("/api/v1/jobs/1/wait?timeout_ms=60000");
    assert_eq!(ended["is_ended"], true);
    assert_eq!(
        (&ended["job"]["name"], &ended["job"]["tasks"]["failed"]),
        (&"graph".into(), &1.into())
    );
    assert_eq!(env.read("seen"), "one\n");
    let file = "[array]\nids = \"1-1000000\"\ncommand = [\"true\"]\n\n[[array.request]]\nresources = { cpus = 99 }\n";
    let answer = submitted(
        &env,
        &site,
        "Content-Type: application/toml; charset=utf-8\r\n",
        file,
    );
    assert_eq!(answer.value()["job"], 2, "{}", answer.body);
    let waited = site.json("/api/v1/jobs/2/wait?timeout_ms=1");
    assert_eq!(waited["is_ended"], false);
    let waiting = std::thread::spawn({
        let (address, token) = (site.address.clone(), site.token.clone());
        move || Site { address, token }.json("/api/v1/jobs/2/wait?timeout_ms=60000")
    });
    assert_eq!(
        site.post("/api/v1/jobs/2/cancel").value()["canceled"],
        1_000_000
    );
    assert_eq!(waiting.join().expect("an answer")["is_ended"], true);
    assert_eq!(site.get("/api/v1/jobs/9/wait").status, 404);
}

#[test]
fn a_repeated_submit_is_submitted_once_also_by_the_next_server() {
    let mut env = Env::new();
    env.start_server_with(&["--http"]);
    let site = Site::of(&env);
    let keyed = |key: &str| format!("{JSON}Idempotency-Key: {key}\r\n");
    let body = json!({"task": [{"command": ["true"]}]}).to_string();
    let job =
        |site: &Site, key: &str| submitted(&env, site, &keyed(key), &body).value()["job"].as_u64();
    assert_eq!(
        (job(&site, "a"), job(&site, "b"), job(&site, "a")),
        (Some(1), Some(2), Some(1))
    );
    let other = json!({"task": [{"command": ["false"]}]}).to_string();
    let refused = submitted(&env, &site, &keyed("a"), &other);
    assert_eq!(
        (refused.status, &refused.value()["kind"]),
        (409, &"conflict".into()),
        "{}",
        refused.body
    );
    assert_eq!(submitted(&env, &site, &keyed("\u{e4}"), &body).status, 400);
    env.hq(&["server", "stop"]).ok();
    assert_eq!(env.wait_exit("server"), Some(0));
    env.start_server_with(&["--http", "--resume"]);
    let site = Site::of(&env);
    let job = |key: &str| submitted(&env, &site, &keyed(key), &body).value()["job"].as_u64();
    assert_eq!((job("b"), job("c"), job("a")), (Some(2), Some(3), Some(1)));
    // The key is valid as long as the job is known.
    env.hq(&["job", "cancel", "all"]).ok();
    env.hq(&["job", "forget", "1"]).ok();
    assert_eq!((job("a"), job("b")), (Some(4), Some(2)));
    env.hq(&["server", "stop"]).ok();
    assert_eq!(env.wait_exit("server"), Some(0));
    env.start_server_with(&["--http", "--resume"]);
    let site = Site::of(&env);
    let job = |key: &str| submitted(&env, &site, &keyed(key), &body).value()["job"].as_u64();
    assert_eq!((job("a"), job("b"), job("c")), (Some(4), Some(2), Some(3)));
}

/// Adds a task with this id to a job.
fn added(env: &Env, site: &Site, job: u64, (key, id): (&str, u32)) -> Answer {
    let dir = env.path("");
    let path = format!("/api/v1/jobs/{job}/tasks?submit_dir={}", dir.display());
    let more = format!("{JSON}Idempotency-Key: {key}\r\n");
    let deps: &[u32] = if id == 1 { &[] } else { &[1] };
    let command = format!("echo {id} >> ran");
    let body = json!({"task": [{"id": id, "command": ["bash", "-c", command], "deps": deps, "stdout": "none"}]});
    site.submit(&path, &more, &body.to_string())
}

#[track_caller]
fn assert_refused(answer: &Answer, status: u16, words: &str) {
    let told = answer.value()["error"].to_string();
    assert_eq!(answer.status, status, "{told}");
    assert!(told.contains(words), "{told}");
}

/// Sends submits that the open jobs 1 and 2 must reject. Task 1 was added with the key `first`.
fn assert_adds_nothing(env: &Env, site: &Site) {
    assert_refused(
        &added(env, site, 1, ("again", 1)),
        409,
        "Task 1 already exists in job 1",
    );
    assert_refused(
        &added(env, site, 1, ("first", 2)),
        409,
        "was that of another one",
    );
    assert_refused(
        &added(env, site, 2, ("first", 1)),
        409,
        "was that of another one",
    );
    assert_refused(&added(env, site, 9, ("none", 1)), 404, "Job 9 not found");
}

#[test]
fn a_job_is_opened_filled_and_closed_over_http_also_if_the_server_is_killed_between() {
    let mut env = Env::new();
    let server = env.start_server_with(&["--http"]);
    let site = Site::of(&env);
    let open = |site: &Site, key: &str| {
        let path = "/api/v1/jobs/open?name=sweep&max_fails=3";
        site.submit(path, &format!("Idempotency-Key: {key}\r\n"), "")
    };
    let opened = open(&site, "open");
    assert_eq!(opened.value(), json!({"job": 1}), "{}", opened.body);
    let first = added(&env, &site, 1, ("first", 1));
    assert_eq!(first.value(), json!({"job": 1, "warnings": []}));
    signal(server, "KILL");
    env.wait_exit("server");
    let server = env.start_server_with(&["--http", "--resume"]);
    let site = Site::of(&env);
    // A client that does not know whether its request was accepted repeats it.
    assert_eq!(open(&site, "open").value()["job"], 1);
    assert_eq!(open(&site, "other").value()["job"], 2);
    assert_eq!(added(&env, &site, 1, ("first", 1)).value()["job"], 1);
    assert_adds_nothing(&env, &site);
    let file =
        "[array]\nids = \"5-6\"\ncommand = [\"true\"]\nstdout = \"none\"\nstderr = \"none\"\n";
    let path = "/api/v1/jobs/1/tasks?submit_dir=/tmp";
    let answer = site.submit(path, "Content-Type: application/toml\r\n", file);
    assert_eq!(answer.value()["job"], 1, "{}", answer.body);
    assert_eq!(added(&env, &site, 1, ("second", 2)).value()["job"], 1);
    env.start_worker(2);
    env.hq(&["job", "wait", "--without-close", "1"]).ok();
    assert_eq!(env.read("ran"), "1\n2\n");
    let job = site.json("/api/v1/jobs/1/wait?timeout_ms=0");
    assert_eq!(
        (
            &job["is_ended"],
            &job["job"]["is_open"],
            &job["job"]["name"]
        ),
        (&false.into(), &true.into(), &"sweep".into())
    );
    let close = |site: &Site, job: u32| site.post(&format!("/api/v1/jobs/{job}/close"));
    assert_eq!(close(&site, 1).value(), json!({"closed": true}));
    signal(server, "KILL");
    env.wait_exit("server");
    env.start_server_with(&["--http", "--resume"]);
    let site = Site::of(&env);
    assert_eq!(close(&site, 1).value(), json!({"closed": false}));
    assert_refused(&close(&site, 9), 404, "there is no job 9");
    assert_refused(
        &added(&env, &site, 1, ("late", 7)),
        409,
        "Job 1 is not opened",
    );
    // This submit was accepted while that was possible.
    assert_eq!(added(&env, &site, 1, ("second", 2)).value()["job"], 1);
    assert_eq!(
        site.json("/api/v1/jobs/1/wait?timeout_ms=60000")["is_ended"],
        true
    );
    assert_eq!(env.stats("1")["finished"], 4);
    assert_eq!(site.json("/api/v1/jobs/2")["task_count"], 0);
}

#[test]
fn a_token_for_reading_neither_opens_nor_fills_nor_closes_a_job() {
    let mut env = Env::new();
    env.start_server_with(&["--http"]);
    let owner = Site::of(&env);
    let with = |role: &str| Site {
        address: owner.address.clone(),
        token: env
            .hq(&["token", "create", role, "--role", role])
            .ok()
            .trim()
            .to_owned(),
    };
    let (reader, submitter) = (with("read"), with("submit"));
    let all = |site: &Site| {
        [
            site.post("/api/v1/jobs/open").status,
            added(&env, site, 1, ("key", 1)).status,
            site.post("/api/v1/jobs/1/close").status,
        ]
    };
    assert_eq!(all(&reader), [403; 3]);
    assert_eq!(site_jobs(&owner), 0);
    assert_eq!(all(&submitter), [200; 3]);
    assert_eq!(site_jobs(&owner), 1);
}

fn site_jobs(site: &Site) -> usize {
    site.json("/api/v1/jobs")["jobs"]
        .as_array()
        .map_or(0, Vec::len)
}

#[test]
fn what_no_job_can_be_opened_with_is_refused() {
    let mut env = Env::new();
    env.start_server_with(&["--http"]);
    let site = Site::of(&env);
    for (query, words) in [
        ("name=a%0Ab", "without newlines"),
        ("max_fails=-1", "max_fails"),
        ("open=true", "unknown field"),
    ] {
        let answer = site.post(&format!("/api/v1/jobs/open?{query}"));
        assert_refused(&answer, 400, words);
    }
    let answer = site.submit("/api/v1/jobs/open", "", r#"{"max_fails": 3}"#);
    assert_refused(&answer, 400, "expected no body");
    assert_refused(&site.post("/api/v1/jobs/x/close"), 400, "expected a number");
    assert_eq!(site_jobs(&site), 0);
    assert_eq!(site.post("/api/v1/jobs/open").value()["job"], 1);
    assert_eq!(site.json("/api/v1/jobs/1")["name"], "job");
}

#[test]
fn descriptions_that_make_no_sense_are_refused_as_on_the_command_line() {
    let mut env = Env::new();
    env.start_server_with(&["--http"]);
    let site = Site::of(&env);
    let path = "/api/v1/jobs?submit_dir=/tmp";
    for (path, kind, body, status, words) in [
        (
            path,
            JSON,
            "{\"task\": [\n{\"comand\": []}]}",
            400,
            "unknown field `comand`",
        ),
        (
            path,
            JSON,
            "{\"task\": [\n{\"comand\": []}]}",
            400,
            "line 2, column",
        ),
        (path, JSON, "", 400, "Deserialization error"),
        (
            path,
            JSON,
            "{\"task\": [{\"command\": [\"a\\u0000b\"]}]}",
            400,
            "NUL",
        ),
        (
            path,
            JSON,
            "{\"array\": {\"command\": [\"a\"]}}",
            400,
            "'ids', 'entries'",
        ),
        (
            path,
            "",
            "{}",
            415,
            "expected application/json, application/toml or",
        ),
        ("/api/v1/jobs", JSON, "{}", 400, "submit_dir"),
        (
            "/api/v1/jobs?submit_dir=here",
            JSON,
            "{}",
            400,
            "expected an absolute path",
        ),
    ] {
        let answer = site.submit(path, kind, body);
        assert_eq!(answer.status, status, "{body}: {}", answer.body);
        let error = answer.value()["error"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        assert!(error.contains(words), "{body}: {error}");
    }
    // The server does not wait for a body that it is going to reject.
    let token = &site.token;
    let answer = site.send(&format!(
        "POST {path} HTTP/1.1\r\nAuthorization: Bearer {token}\r\n{JSON}Content-Length: 99999999\r\n"
    ));
    assert_eq!(answer.status, 413, "{}", answer.body);
    assert_eq!(
        env.hq(&["--output-mode=quiet", "job", "list", "--all"])
            .ok(),
        ""
    );
}

#[test]
fn a_client_that_was_generated_from_the_description_drives_a_server() {
    let module = "openapi_python_client";
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
    let owner = Site::of(&env);
    let token = env.hq(&["token", "create", "ci", "--role=submit"]).ok();
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    std::fs::create_dir(env.path("client")).expect("a directory");
    let mut generating = Command::new(&python);
    generating
        .args(["-m", module, "generate", "--meta", "none", "--overwrite"])
        .args(["--path", &format!("{root}docs/openapi.yaml")])
        .arg("--output-path")
        .arg(env.path("client/hq_client"))
        .current_dir(env.path(""));
    let made = generating.output().expect("it can be run");
    let driven = Command::new(&python)
        .arg(format!("{root}tests/web/generated_client.py"))
        .arg(format!("http://{}/api/v1", owner.address))
        .args([token.trim(), &env.path("").display().to_string()])
        .env("PYTHONPATH", env.path("client"))
        .output()
        .expect("it can be run");
    let told = String::from_utf8_lossy(&driven.stderr).into_owned();
    let made = String::from_utf8_lossy(&made.stdout).into_owned();
    assert!(driven.status.success(), "{made}\n{told}");
}
