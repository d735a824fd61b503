//! Tests the HTTP listener: metrics, the API of dashboards, and access rights.

use std::io::{BufRead as _, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;

use crate::exposition;
use crate::harness::{Env, wait_for};

/// The answer to a request.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    /// Returns the body as JSON.
    pub(crate) fn value(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|e| panic!("{}: {e}", self.body))
    }
}

/// A server with an HTTP listener.
pub(crate) struct Site {
    pub(crate) address: String,
    pub(crate) token: String,
}

impl Site {
    /// Returns the site of this environment's running server.
    pub(crate) fn of(env: &Env) -> Self {
        let address = wait_for("the server says where it serves HTTP", || {
            let log = env.read("server.log");
            let found = log
                .split_once("http://")
                .and_then(|(_, rest)| rest.split_once('/'));
            found.map(|(address, _)| address.to_owned()).ok_or(log)
        });
        let token = std::fs::read_to_string(token_path(env)).expect("the token");
        Self { address, token }
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send(&format!(
            "GET {path} HTTP/1.1\r\nAuthorization: Bearer {}\r\n",
            self.token
        ))
    }

    /// Returns the JSON at this path.
    #[track_caller]
    pub(crate) fn json(&self, path: &str) -> serde_json::Value {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        answer.value()
    }

    pub(crate) fn post(&self, path: &str) -> Answer {
        self.send(&format!(
            "POST {path} HTTP/1.1\r\nAuthorization: Bearer {}\r\nContent-Length: 0\r\n",
            self.token
        ))
    }

    /// Reads a stream until a line contains `last`.
    pub(crate) fn lines(&self, path: &str, last: &str) -> Vec<String> {
        let mut stream = TcpStream::connect(&self.address).expect("the listener answers");
        let timeout = std::time::Duration::from_secs(60);
        stream.set_read_timeout(Some(timeout)).expect("a limit");
        let (token, address) = (&self.token, &self.address);
        let request = format!(
            "GET {path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\n\r\n"
        );
        stream
            .write_all(request.as_bytes())
            .expect("send a request");
        let mut lines = Vec::new();
        for line in std::io::BufReader::new(stream).lines() {
            let line = line.expect("the stream goes on");
            let is_last = line.contains(last);
            lines.push(line);
            if is_last {
                return lines;
            }
        }
        panic!("the stream ended: {lines:?}");
    }

    /// Submits the description of a job. `more` contains further lines of the request.
    pub(crate) fn submit(&self, path: &str, more: &str, body: &str) -> Answer {
        self.send_body("POST", path, more, body)
    }

    fn send_body(&self, method: &str, path: &str, more: &str, body: &str) -> Answer {
        let lines = format!(
            "{method} {path} HTTP/1.1\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n{more}",
            self.token,
            body.len()
        );
        self.send_with(&lines, body)
    }

    /// Sends a request without a body.
    pub(crate) fn send(&self, lines: &str) -> Answer {
        self.send_with(lines, "")
    }

    fn send_with(&self, lines: &str, body: &str) -> Answer {
        let mut stream = TcpStream::connect(&self.address).expect("the listener answers");
        let address = &self.address;
        let request = format!("{lines}Host: {address}\r\nConnection: close\r\n\r\n{body}");
        stream
            .write_all(request.as_bytes())
            .expect("send a request");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|word| word.parse().ok())
            .expect("a status");
        Answer {
            status,
            head: head.to_ascii_lowercase(),
            body: body.to_owned(),
        }
    }

    /// Returns the value of one sample.
    #[track_caller]
    fn metric(&self, name: &str) -> f64 {
        let answer = self.get("/metrics");
        assert_eq!(answer.status, 200, "{}", answer.body);
        let line = answer
            .body
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = line.and_then(|value| value.parse().ok());
        value.unwrap_or_else(|| panic!("no {name} in:\n{}", answer.body))
    }
}

/// Returns the resources of the interface that have a method, filled in with job, task, worker and
/// queue 1.
pub(crate) fn resources(method: &str) -> Vec<String> {
    let description = include_str!("../../docs/openapi.yaml");
    let (mut path, mut found) = ("", Vec::new());
    for line in description.lines() {
        if let Some(named) = line.strip_prefix("  /") {
            path = named.trim_end_matches(':');
        } else if line == format!("    {method}:") {
            let parts = path.split('/');
            let parts = parts.map(|part| if part.starts_with('{') { "1" } else { part });
            let path = parts.collect::<Vec<_>>().join("/");
            found.push(format!("/api/v1/{path}"));
        }
    }
    assert!(found.len() >= 8, "{method}: {found:?}");
    found
}

fn token_path(env: &Env) -> PathBuf {
    let entries = std::fs::read_dir(env.server_dir()).expect("server directory");
    let paths = entries
        .flatten()
        .map(|entry| entry.path().join("http-token"));
    paths
        .into_iter()
        .find(|path| path.exists())
        .expect("a file with the token")
}

const STATES: [&str; 6] = [
    "waiting", "running", "finished", "failed", "canceled", "aborted",
];

/// Requires that the metrics count the tasks that `job list` shows.
#[track_caller]
fn assert_agreement(env: &Env, site: &Site) {
    let jobs = env.json(&["job", "list", "--all"]);
    let jobs = jobs.as_array().expect("jobs");
    for state in STATES {
        let listed: u64 = jobs
            .iter()
            .map(|job| job["task_stats"][state].as_u64().unwrap_or(0))
            .sum();
        let shown = site.metric(&format!("hq_tasks{{state=\"{state}\"}}"));
        assert_eq!(shown, listed as f64, "{state} tasks");
    }
}

#[test]
fn the_metrics_agree_with_the_list_of_jobs() {
    let mut env = Env::new();
    env.start_server_with(&["--http"]);
    let site = Site::of(&env);
    assert_eq!(site.metric("hq_workers{state=\"connected\"}"), 0.0);
    env.start_worker(4);
    env.submit(&["--array=1-40", "--wait", "--", "true"]);
    let script = "exit $((HQ_TASK_ID % 2))";
    let half = env.submit(&["--array=1-10", "--", "bash", "-c", script]);
    let waiting = env.submit(&["--array=1-1000000", "--cpus=99", "--", "true"]);
    let dropped = env.submit(&["--array=1-7", "--cpus=99", "--", "true"]);
    env.hq(&["job", "cancel", &dropped]).ok();
    env.wait_job(&half);
    assert_agreement(&env, &site);
    assert_eq!(
        site.metric("hq_tasks{state=\"waiting\"}"),
        1_000_000.0,
        "those of job {waiting}"
    );
    assert_eq!(
        site.metric("hq_tasks_ended_total{state=\"finished\"}"),
        45.0
    );
    assert_eq!(site.metric("hq_tasks_ended_total{state=\"failed\"}"), 5.0);
    assert_eq!(site.metric("hq_tasks_ended_total{state=\"canceled\"}"), 7.0);
    assert_eq!(site.metric("hq_instances_started_total"), 50.0);
    assert_eq!(site.metric("hq_resource_offered{resource=\"cpus\"}"), 4.0);
    assert_eq!(site.metric("hq_resource_used{resource=\"cpus\"}"), 0.0);
    assert_eq!(site.metric("hq_jobs{state=\"canceled\"}"), 1.0);
    assert!(site.metric("hq_store_commit_seconds_count") >= 4.0);
    let samples = exposition::parse(&site.get("/metrics").body);
    assert_eq!(samples["hq_resource_offered{resource=\"cpus\"}"], 4.0);
    env.hq(&["job", "forget", "--filter=failed", &half]).ok();
    assert_agreement(&env, &site);
    assert_eq!(site.metric("hq_tasks{state=\"failed\"}"), 0.0);
    assert_eq!(site.metric("hq_tasks_ended_total{state=\"failed\"}"), 5.0);
}

#[test]
fn a_restarted_server_counts_what_it_restored() {
    let mut env = Env::new();
    env.start_server_with(&["--http"]);
    let before = Site::of(&env);
    env.submit(&["--array=1-500", "--", "true"]);
    assert_agreement(&env, &before);
    env.hq(&["server", "stop"]).ok();
    assert_eq!(env.wait_exit("server"), Some(0));
    env.start_server_with(&["--http", "--resume"]);
    let after = Site::of(&env);
    assert_ne!(
        after.token, before.token,
        "a token that reached another program is void"
    );
    let old = Site {
        address: after.address.clone(),
        token: before.token,
    };
    assert_eq!(old.get("/api/v1/summary").status, 401);
    assert_agreement(&env, &after);
    assert_eq!(after.metric("hq_tasks{state=\"waiting\"}"), 500.0);
    assert_eq!(
        after.metric("hq_tasks_ended_total{state=\"finished\"}"),
        0.0
    );
}

#[test]
fn nothing_is_served_without_the_token() {
    let mut env = Env::new();
    env.start_server_with(&["--http=0"]);
    let site = Site::of(&env);
    for (path, header) in [
        ("/metrics", String::new()),
        ("/metrics", "Authorization: Bearer 0000\r\n".to_owned()),
        ("/", format!("Authorization: Basic {}\r\n", site.token)),
        (&format!("/metrics?token={}", site.token)[..], String::new()),
        ("/api/v1/jobs", String::new()),
    ] {
        let answer = site.send(&format!("GET {path} HTTP/1.1\r\n{header}"));
        assert_eq!(answer.status, 401, "{path}");
        assert!(!answer.body.contains("hq_tasks"), "{}", answer.body);
        assert!(
            answer
                .head
                .contains("content-security-policy: default-src 'none'")
        );
    }
    assert_eq!(site.get("/nowhere").status, 404);
    assert_eq!(site.metric("hq_http_requests_refused_total"), 5.0);
    // Prometheus requests the newer format and gets it.
    let open = site.send(&format!(
        "GET /metrics HTTP/1.1\r\nAuthorization: Bearer {}\r\nAccept: application/openmetrics-text;version=1.0.0\r\n",
        site.token
    ));
    assert!(
        open.head
            .contains("content-type: application/openmetrics-text")
    );
    assert!(open.body.ends_with("# EOF\n"), "{}", open.body);
}

#[test]
fn an_address_that_cannot_be_used_is_refused() {
    let env = Env::new();
    env.hq(&["server", "start", "--http=nonsense"])
        .exits_with(2)
        .says("expected PORT, or the address of an interface");
    env.hq(&["server", "start", "--http=192.0.2.1:9"])
        .exits_with(1)
        .says("Cannot serve HTTP at 192.0.2.1:9");
}

#[test]
fn the_interface_follows_a_run_to_its_end() {
    let mut env = Env::new();
    env.start_server_with(&["--http"]);
    env.start_worker(2);
    let site = Site::of(&env);
    let script = "echo out; echo why >&2; exit $((HQ_TASK_ID == 3 ? 9 : 0))";
    let name = "--name=<script>alert(1)</script>";
    let job = env.submit(&["--array=1-5", name, "--", "bash", "-c", script]);
    env.wait_job(&job);
    let jobs = site.json("/api/v1/jobs");
    assert_eq!(jobs["jobs"][0]["name"], "<script>alert(1)</script>");
    assert_eq!(jobs["jobs"][0]["tasks"]["finished"], 4);
    assert_eq!(jobs["jobs"][0]["state"], "failed");
    assert_eq!(jobs["next_before"], serde_json::Value::Null);
    let failed = site.json(&format!("/api/v1/jobs/{job}/tasks?state=failed"));
    let task = &failed["tasks"][0];
    assert_eq!((&task["id"], &task["state"]), (&3.into(), &"failed".into()));
    assert!(
        task["error"]
            .as_str()
            .is_some_and(|error| error.contains('9')),
        "{task}"
    );
    let output = site.json(&format!("/api/v1/jobs/{job}/tasks/3/output?stream=stderr"));
    assert_eq!(output["text"], "why\n");
    let page = site.json(&format!("/api/v1/jobs/{job}/tasks?limit=2"));
    let next = format!(
        "/api/v1/jobs/{job}/tasks?limit=2&cursor={}",
        page["next_cursor"]
    );
    assert_eq!(site.json(&next)["tasks"][0]["id"], 3);
    assert_eq!(site.json("/api/v1/summary")["tasks"]["failed"], 1);
    assert_eq!(
        site.json("/api/v1/workers")["workers"][0]["state"],
        "connected"
    );
    assert_eq!(site.json("/api/v1/queues")["queues"], serde_json::json!([]));
    let now = jobs["jobs"][0]["id"]
        .as_u64()
        .map(|_| site.json("/api/v1/summary"));
    let now = now
        .and_then(|summary| summary["now_ms"].as_i64())
        .expect("a time");
    let history = format!(
        "/api/v1/history?from_ms={}&to_ms={}&steps=7",
        now - 600_000,
        now + 1_000
    );
    let sum = |name: &str| -> i64 {
        let series = site.json(&history)[name].clone();
        series
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(serde_json::Value::as_i64)
            .sum()
    };
    assert_eq!((sum("started"), sum("finished"), sum("failed")), (5, 4, 1));
    let again = site.post(&format!("/api/v1/jobs/{job}/resubmit"));
    assert_eq!(
        (again.status, again.value()["task_count"].as_u64()),
        (200, Some(1))
    );
    env.wait_job(&again.value()["job"].to_string());
    let waiting = env.submit(&["--array=1-9", "--cpus=99", "--", "true"]);
    let cancel = |path: &str| site.post(&format!("/api/v1/jobs/{waiting}{path}/cancel"));
    for (path, canceled) in [("/tasks/3", 1), ("/tasks/3", 0), ("", 8)] {
        assert_eq!(cancel(path).value()["canceled"], canceled, "{path}");
    }
    assert_eq!(cancel("/tasks/10").status, 404);
    assert_eq!(site.post("/api/v1/workers/1/stop").value()["stopped"], true);
}

#[test]
fn programs_signal_running_tasks() {
    let mut env = Env::new();
    env.start_server_with(&["--http"]);
    env.start_worker(1);
    let site = Site::of(&env);
    let sleeping = env.submit(&["--", "sleep", "1000"]);
    env.wait_running(&sleeping, 1);
    let signal = |task: &str, query: &str| {
        let path = format!("/api/v1/jobs/{sleeping}/tasks/{task}/signal{query}");
        site.post(&path).status
    };
    let asked = [("0", ""), ("0", "?signal=FOO"), ("1", "?signal=TERM")];
    assert_eq!(
        asked.map(|(task, query)| signal(task, query)),
        [400, 400, 409]
    );
    let hold = |path: &str| {
        let answer = site.post(&format!("/api/v1/jobs/{path}"));
        (answer.status, answer.body)
    };
    let first = hold(&format!("{sleeping}/tasks/0/hold"));
    assert_eq!(first, (200, r#"{"changed":0,"running":1}"#.into()));
    assert_eq!(hold(&format!("{sleeping}/tasks/7/hold")).0, 409);
    let waiting = env.submit(&["--array=1-3", "--", "true"]);
    for (path, changed, held) in [
        ("tasks/2/hold", 1, 1),
        ("hold", 3, 3),
        ("tasks/1/release", 1, 2),
        ("release", 2, 0),
    ] {
        let answer = hold(&format!("{waiting}/{path}"));
        let expected = format!(r#"{{"changed":{changed},"running":0}}"#);
        assert_eq!(answer, (200, expected), "{path}");
        let job = site.get(&format!("/api/v1/jobs/{waiting}")).value();
        assert_eq!(job["held_count"], held, "{path}");
    }
    assert_eq!(hold("99/hold").0, 404);
    assert_eq!(signal("0", "?signal=TERM"), 200);
    env.wait_job(&waiting);
    env.wait_job(&sleeping);
    assert_eq!(env.stats(&sleeping)["failed"], 1);
}

#[test]
fn tasks_and_failures_are_told_apart_by_parameters() {
    let mut env = Env::new();
    env.start_server_with(&["--http"]);
    env.start_worker(2);
    let site = Site::of(&env);
    let script = "[ {seed} != 3 ] || { echo \"seed {seed} is unlucky\" >&2; exit 1; }";
    let params = ["--param=lr=0.1,0.01", "--param=seed=1-3"];
    let job = env.submit(&[&params[..], &["--", "bash", "-c", script]].concat());
    env.wait_job(&job);
    let of_job = |path: &str| site.json(&format!("/api/v1/jobs/{job}/{path}"));
    let table = of_job("parameters")["parameters"].clone();
    let value = |param: usize, value: usize| {
        let value = &table[param]["values"][value];
        let tasks = |state: &str| value["tasks"][state].as_u64();
        let name = value["value"].as_str().map(str::to_owned);
        (name, tasks("finished"), tasks("failed"))
    };
    assert_eq!(table[0]["name"], "lr");
    assert_eq!(value(0, 1), (Some("0.01".to_owned()), Some(2), Some(1)));
    assert_eq!(table[1]["value_count"], 3);
    assert_eq!(value(1, 0), (Some("1".to_owned()), Some(2), Some(0)));
    assert_eq!(value(1, 2), (Some("3".to_owned()), Some(0), Some(2)));
    assert_eq!(of_job("failures")["failures"][0]["params"]["seed"], "3");
    let signatures = of_job("signatures");
    let group = &signatures["groups"][0];
    assert_eq!(
        group["params"],
        serde_json::json!({"seed": "3"}),
        "what both share"
    );
    assert_eq!(group["last_words"], "seed # is unlucky");
    assert_eq!(group["example"], "seed 3 is unlucky");
    let found = |search: &str| of_job(&format!("tasks?q={search}"))["tasks"].clone();
    assert_eq!(found("seed%3D3").as_array().map(Vec::len), Some(2));
    let none = env.submit(&["--", "true"]);
    let table = site.json(&format!("/api/v1/jobs/{none}/parameters"));
    assert_eq!(table["parameters"], serde_json::json!([]));
    assert_eq!(site.get("/api/v1/jobs/99/parameters").status, 404);
}

#[test]
fn events_go_on_behind_a_cursor() {
    let mut env = Env::new();
    env.start_server_with(&["--http"]);
    let site = Site::of(&env);
    let first = env.submit(&["--name=before", "--", "true"]);
    env.hq(&["job", "cancel", &first]).ok();
    let kinds = |after: i64, last: &str| {
        let (mut seen, mut seq) = (Vec::new(), after);
        let lines = site.lines(
            &format!("/api/v1/events?after={after}"),
            &format!("\"{last}\""),
        );
        for line in lines {
            if let Some(id) = line.strip_prefix("id: ") {
                seq = id.parse().expect("a number");
            } else if let Some(data) = line.strip_prefix("data: ") {
                let event: serde_json::Value = serde_json::from_str(data).expect("an event");
                seen.push(event["event"]["type"].as_str().expect("a type").to_owned());
            }
        }
        (seen, seq)
    };
    let (seen, seq) = kinds(0, "job-completed");
    assert_eq!(seen.first().map(String::as_str), Some("server-start"));
    assert!(seen.contains(&"job-created".to_owned()), "{seen:?}");
    env.hq(&["job", "open"]).ok();
    let (seen, _) = kinds(seq, "job-open");
    assert_eq!(seen, ["job-open"]);
}

#[test]
fn who_can_do_without_old_events_is_told_of_the_gap() {
    let mut env = Env::new();
    env.start_server_with(&["--http"]);
    let site = Site::of(&env);
    env.hq(&["job", "open", "--name=before"]).ok();
    // Events without followers are only in the file, and the number of another journal is invalid.
    for after in ["0", "123456789"] {
        let path = format!("/api/v1/events?resync=true&after={after}");
        let lines = site.lines(&path, "data: ");
        assert!(lines.contains(&"event: resync".to_owned()), "{lines:?}");
        let id = lines.iter().find_map(|line| line.strip_prefix("id: "));
        let id = id.expect("where to go on").to_owned();
        env.hq(&["job", "open", "--name=after"]).ok();
        let path = format!("/api/v1/events?resync=true&after={id}");
        let lines = site.lines(&path, "job-open");
        assert!(!lines.contains(&"event: resync".to_owned()), "{lines:?}");
    }
}

#[test]
fn limits_are_set_and_removed_as_with_commands() {
    let mut env = Env::new();
    env.start_server_with(&["--http"]);
    let site = Site::of(&env);
    let put = |name: &str, body: &str| {
        let answer = site.send_body("PUT", &format!("/api/v1/limits/{name}"), "", body);
        (answer.status, answer.body)
    };
    let done = (200, "{\"done\":true}".to_owned());
    assert_eq!(put("db", "1\n"), done);
    assert_eq!(put("api?bound=50%2Fs", ""), done);
    for (name, body, words) in [
        ("db", "0", "expected a whole number above 0"),
        ("db", "", "expected a whole number above 0"),
        ("db", &"1".repeat(300), "in at most 256 bytes"),
        ("db?bound=2", "2", "found both"),
        ("7%20b", "2", "found `7 b`"),
    ] {
        let (status, error) = put(name, body);
        assert!(status == 400 && error.contains(words), "{error}");
    }
    env.start_worker(2);
    let job = env.submit(&["--limit=db", "--array=1-3", "--", "sleep", "600"]);
    let limits = || site.json("/api/v1/limits")["limits"].clone();
    let waits = format!("limit db: 1 of 1 in use by job {job} (1)");
    wait_for("tasks wait for the limit", || {
        let found = limits()[1]["waits"].clone();
        (found == *waits).then_some(()).ok_or(found.to_string())
    });
    let expected = serde_json::json!([
        {"name": "api", "bound": "50/s", "used": 0, "jobs": [], "lost": 0, "ready": 0, "waiting": 0, "waits": null},
        {"name": "db", "bound": "1", "used": 1, "jobs": [{"job": 1, "used": 1}], "lost": 0, "ready": 2, "waiting": 2, "waits": waits},
    ]);
    assert_eq!(limits(), expected);
    let delete = |path: &str| site.send_body("DELETE", path, "", "");
    let refused = delete("/api/v1/limits/db");
    assert_eq!(refused.status, 409);
    assert_eq!(refused.value()["kind"], "conflict");
    assert!(refused.body.contains("with force=true"), "{}", refused.body);
    assert_eq!(delete("/api/v1/limits/db?force=true").status, 200);
    assert_eq!(delete("/api/v1/limits/db").status, 404);
    env.hq(&["limit", "list"]).says("| api  | 50/s ").ok();
    let file = |name| std::fs::read_to_string(token_path(&env).with_file_name(name));
    let read = file("http-read-token");
    let reader = Site {
        address: file("http-address").expect("the address"),
        token: read.expect("the token for reading"),
    };
    assert_eq!(reader.get("/api/v1/limits").status, 200);
    let refused = reader.send_body("PUT", "/api/v1/limits/db", "", "1");
    assert_eq!(refused.status, 403);
}

#[test]
fn requests_that_make_no_sense_are_refused_with_a_sentence() {
    let mut env = Env::new();
    env.start_server_with(&["--http"]);
    let site = Site::of(&env);
    for (path, status, words) in [
        (
            "/api/v1/jobs/x",
            400,
            "expected a number as the id of a job",
        ),
        ("/api/v1/jobs/7", 404, "there is no job 7"),
        ("/api/v1/jobs/7/tasks", 404, "there is no job 7"),
        ("/api/v1/jobs/7/tasks/1/explain", 404, "Job not found"),
        ("/api/v1/jobs/7/tasks?state=odd", 400, "found `odd`"),
        ("/api/v1/jobs?limit=-1", 400, "limit"),
        (
            "/api/v1/history?from_ms=5&to_ms=4",
            400,
            "expected from_ms below to_ms",
        ),
        (
            "/api/v1/history?from_ms=0&to_ms=9223372036854775807",
            400,
            "expected from_ms",
        ),
        ("/api/v1/nothing", 404, "this resource does not exist"),
        ("/api/v1/jobs/1/cancel", 405, "does not support the method"),
    ] {
        let answer = site.get(path);
        assert_eq!(answer.status, status, "{path}: {}", answer.body);
        let error = answer.value()["error"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        assert!(error.contains(words), "{path}: {error}");
        let kind = (status == 404).then_some("not-found");
        assert_eq!(answer.value()["kind"].as_str(), kind, "{path}");
    }
    assert_eq!(site.post("/api/v1/jobs/7/cancel").status, 404);
    assert!(
        site.get("/api/v1/openapi.yaml")
            .body
            .starts_with("openapi: 3.1.0")
    );
}
