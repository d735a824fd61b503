//! `hq doctor`: reports problems of an installation, and their remedies.

use std::process::Command;

use serde_json::Value;

use crate::harness::{Env, Ran, signal, skip};

/// Returns the check whose name has this prefix.
#[track_caller]
fn find<'a>(checks: &'a Value, name: &str) -> &'a Value {
    let all = checks.as_array().expect("a list of checks");
    let named = |check: &&Value| {
        check["check"]
            .as_str()
            .is_some_and(|what| what.starts_with(name))
    };
    all.iter()
        .find(named)
        .unwrap_or_else(|| panic!("no check {name:?} in {checks}"))
}

/// Returns the output in JSON mode, run through another program, with any exit code.
fn json_behind(env: &Env, prefix: &[&str]) -> (Value, Option<i32>) {
    let program = env!("CARGO_BIN_EXE_hq");
    let words = [prefix, &[program, "doctor", "--output-mode=json"]].concat();
    let mut command = env.user_command(&words);
    let output = command
        .env("HQ_SERVER_DIR", env.server_dir())
        .output()
        .expect("it can be run");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text:?}: {error}"));
    (value, output.status.code())
}

#[test]
fn doctor_finds_nothing_that_prevents_work_before_the_first_start() {
    let env = Env::new();
    let found = env.json(&["doctor"]);
    assert_eq!(find(&found, "program")["state"], "good");
    // An old kernel creates processes more slowly.
    assert_ne!(find(&found, "processes")["state"], "broken", "{found}");
    assert_eq!(find(&found, "file locks")["state"], "good");
    let server = find(&found, "access file");
    assert_eq!(
        (&server["ok"], &server["state"]),
        (&Value::Null, &"unknown".into())
    );
    assert!(
        server["advice"]
            .as_str()
            .is_some_and(|text| text.contains("hq server start"))
    );
    env.hq(&["doctor"])
        .says("unknown access file")
        .says("could not be checked")
        .ok();
    let quiet = env.hq(&["doctor", "--output-mode=quiet"]).ok();
    assert!(
        quiet.lines().any(|line| line == "good file locks"),
        "{quiet}"
    );
    assert!(!env.path("server").exists(), "it only looks");
}

#[test]
fn doctor_compares_itself_with_the_server_and_tells_when_that_is_silent() {
    let mut env = Env::new();
    let pid = env.start_server();
    let good = env.json(&["doctor"]);
    assert_eq!(find(&good, "client handshake")["state"], "good");
    assert_eq!(find(&good, "server")["state"], "good");
    assert_eq!(
        find(&good, "clock of the server")["found"],
        "agrees with ours"
    );
    signal(pid, "STOP");
    let silent: Ran = env.hq(&["doctor"]);
    signal(pid, "CONT");
    silent
        .says("FAILED  client handshake: no answer within")
        .says("prevent work")
        .exits_with(1);
    let access = env.path("server/hq-current/access.json");
    let text = std::fs::read_to_string(&access).expect("it is ours");
    let mut file: Value = serde_json::from_str(&text).expect("JSON");
    file["version"] = "0.0.1".into();
    // The file is not writable, but it can be replaced.
    std::fs::remove_file(&access).expect("ours");
    env.write("server/hq-current/access.json", file.to_string());
    set_private(&access);
    env.hq(&["doctor"])
        .says("the server is of release 0.0.1")
        .says("hq server stop --keep-workers")
        .exits_with(1);
}

fn set_private(path: &std::path::Path) {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::Permissions::from_mode(0o400);
    std::fs::set_permissions(path, mode).expect("ours");
}

#[test]
fn doctor_judges_the_tight_limits_of_an_ordinary_user() {
    let Some(env) = Env::of_ordinary_user() else {
        return;
    };
    let tight = ["prlimit", "--nofile=40", "--cpu=600", "--fsize=100000"];
    let (found, code) = json_behind(&env, &tight);
    assert_eq!(code, Some(1), "{found}");
    assert_eq!(find(&found, "open files")["state"], "broken", "{found}");
    assert_eq!(find(&found, "cpu time")["state"], "poor", "{found}");
    assert_eq!(find(&found, "size of files")["state"], "broken", "{found}");
    assert_eq!(
        find(&found, "processes of this user")["state"],
        "good",
        "{found}"
    );
}

#[test]
fn doctor_ends_where_no_process_can_be_started() {
    let Some(env) = Env::of_ordinary_user() else {
        return;
    };
    if rustix::process::geteuid().is_root() {
        // There is room for two processes: this one, but not for all its parts and threads.
        let (found, code) = json_behind(&env, &["prlimit", "--nproc=2"]);
        assert_eq!(code, Some(1), "{found}");
    }
}

#[test]
fn doctor_tells_of_a_file_system_without_locks() {
    let env = Env::new();
    let trace = env.path("trace");
    let trace = trace.to_str().expect("a path in Unicode");
    let works = Command::new("strace").args(["-o", trace, "true"]).output();
    if !works.is_ok_and(|output| output.status.success()) {
        skip("strace cannot be used here");
        return;
    }
    let inject = "inject=flock:error=ENOLCK";
    let (found, code) = json_behind(&env, &["strace", "-f", "-o", trace, "-e", inject]);
    assert_eq!(code, Some(1), "{found}");
    let locks = find(&found, "file locks");
    assert_eq!(locks["state"], "broken", "{found}");
    assert!(
        locks["advice"]
            .as_str()
            .is_some_and(|text| text.contains("--journal"))
    );
}
