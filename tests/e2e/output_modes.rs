//! The contents of standard output in the three modes.

use crate::harness::Env;

/// Commands whose only output is a sentence for users.
fn silent_commands(job: &str) -> Vec<Vec<String>> {
    [
        format!("job wait {job}"),
        format!("job cancel {job}"),
        format!("job close {job}"),
        "job wait 999".into(),
        "job cancel 999".into(),
        "job forget 999".into(),
        "worker stop 999".into(),
    ]
    .iter()
    .map(|line| line.split(' ').map(str::to_owned).collect())
    .collect()
}

fn in_mode<'a>(mode: &'a str, words: &'a [String]) -> Vec<&'a str> {
    let mut args: Vec<&str> = words.iter().map(String::as_str).collect();
    args.push(mode);
    args
}

#[test]
fn sentences_never_reach_standard_output_of_programs() {
    let env = Env::with_worker(1);
    let job = env.submit(&["--wait", "--", "true"]);
    for words in silent_commands(&job) {
        let json = env.hq(&in_mode("--output-mode=json", &words)).ok();
        assert_eq!(json.trim(), "{}", "{words:?}");
        let quiet = env.hq(&in_mode("--output-mode=quiet", &words)).ok();
        assert_eq!(quiet, "", "{words:?}");
        // The exit code also reports unknown ids. `forget` counts the ignored ones instead.
        let is_missing = words[1] != "forget" && words[2] == "999";
        let code = i32::from(is_missing);
        let cli = env.hq(&in_mode("--output-mode=cli", &words));
        let cli = cli.exits_with(code).stdout;
        assert_eq!(cli, "", "a log line is no output: {words:?}");
    }
}

#[test]
fn every_query_is_one_json_value_and_has_no_escape_sequence_without_a_terminal() {
    let env = Env::with_worker(1);
    let failing = [
        "--array=1-3",
        "--wait",
        "--",
        "bash",
        "-c",
        "exit $HQ_TASK_ID",
    ];
    let job = env.submit(&failing);
    env.submit(&["--stream=log", "--wait", "--", "true"]);
    env.submit(&["--cpus=64", "--", "true"]);
    let queries = [
        "server info".to_owned(),
        "worker list".into(),
        "worker info 1".into(),
        "worker hwdetect".into(),
        "job list --all".into(),
        "job summary".into(),
        format!("job info {job}"),
        format!("job task-ids {job}"),
        format!("job stats {job}"),
        format!("task list {job}"),
        format!("task info {job} 1-3"),
        "task explain 3 0".into(),
        "output-log log summary".into(),
        "output-log log export 2".into(),
    ];
    for query in queries {
        let words: Vec<String> = query.split(' ').map(str::to_owned).collect();
        let cli = env.hq(&in_mode("--output-mode=cli", &words)).ok();
        assert!(!cli.is_empty() && !cli.contains('\x1b'), "{query}: {cli}");
        let json = env.hq(&in_mode("--output-mode=json", &words)).ok();
        let value: Result<serde_json::Value, _> = serde_json::from_str(&json);
        assert!(value.is_ok(), "{query}: {json}");
        let quiet = env.hq(&in_mode("--output-mode=quiet", &words)).ok();
        assert!(!quiet.contains("+--"), "{query}: {quiet}");
        let mut words = words;
        words.push("--colors=always".into());
        let json = env.hq(&in_mode("--output-mode=json", &words)).ok();
        assert!(!json.contains('\x1b'), "{query}: colours in JSON");
    }
    let mut colored = env.command(&["job", "list", "--all", "--colors=always"]);
    let colored = colored.env("NO_COLOR", "1").output().expect("can be run");
    let colored = String::from_utf8_lossy(&colored.stdout);
    assert!(colored.contains('\x1b'), "an option counts more: {colored}");
}

#[test]
fn the_bar_of_a_wait_has_no_control_characters_in_a_file() {
    let env = Env::with_worker(1);
    let ran = env.hq(&["submit", "--progress", "--", "true"]).ok();
    assert!(!ran.contains(['\x1b', '\r']), "{ran}");
    let json = env
        .hq(&["submit", "--wait", "--output-mode=json", "--", "true"])
        .ok();
    let value: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(value, serde_json::json!({ "id": 2 }));
}

#[test]
fn json_is_json_while_jobs_are_followed() {
    let env = Env::with_worker(1);
    let json = |args: &[&str]| -> serde_json::Value {
        let text = env.hq(&[args, &["--output-mode=json"]].concat()).ok();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
    };
    // The program of a notification also writes to standard output.
    let callback = "--on-notify=echo callback";
    let task = ["--", "bash", "-c", "$HQ task notify hello"];
    let follow = |how: &'static str| {
        let options = ["submit", "--output-mode=json", how, callback];
        let ran = env.hq(&[&options[..], &task].concat());
        let noise = ran.stderr.clone();
        let text = ran.ok();
        let value: Result<serde_json::Value, _> = serde_json::from_str(&text);
        assert!(value.is_ok(), "{text}");
        assert!(noise.contains("callback hello"), "{noise}");
    };
    follow("--progress");
    follow("--wait");
    assert_eq!(json(&["job", "progress", "1"]), serde_json::json!({}));
}

#[test]
fn a_bar_in_a_file_is_its_last_line() {
    let env = Env::with_worker(4);
    let ran = env
        .hq(&["submit", "--progress", "--array=1-300", "--", "true"])
        .ok();
    assert!(
        ran.trim_end()
            .ends_with("1/1 jobs, 300/300 tasks 300 FINISHED"),
        "{ran}"
    );
    assert_eq!(
        ran.lines().count(),
        2,
        "the id of the job and the bar: {ran:?}"
    );
}
