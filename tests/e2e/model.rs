//! Tests notifications, retries, stop signals, ids as written, and absurd sizes.

use serde_json::json;

use crate::harness::{Env, wait_for};

#[test]
fn notifications_run_the_program_of_those_who_wait() {
    let env = Env::with_worker(2);
    let script = "$HQ task notify 'first words'; $HQ task notify second";
    let ran = env.hq(&[
        "submit",
        "--wait",
        "--on-notify=bash -c 'echo got \"$1\" from $HQ_JOB_ID.$HQ_TASK_ID on $HQ_WORKER_ID' x",
        "--array=7",
        "--",
        "bash",
        "-c",
        script,
    ]);
    let out = ran.ok();
    assert!(
        out.ends_with("got first words from 1.7 on 1\ngot second from 1.7 on 1\n"),
        "{out}"
    );
    let long = "x".repeat(1025);
    let job = env.submit(&[
        "--wait",
        "--",
        "bash",
        "-c",
        &format!("$HQ task notify {long}"),
    ]);
    let said = env.hq(&["job", "cat", &job, "stderr"]).ok();
    assert!(
        said.contains("Notify message limit exceeded, message len: 1025, limit: 1024"),
        "{said}"
    );
    assert_eq!(env.stats(&job)["failed"], 1);
}

#[test]
fn a_notification_reaches_its_program_as_data_too() {
    let env = Env::with_worker(1);
    // As an argument, this text would be an option of the program.
    let ran = env.hq(&[
        "submit",
        "--wait",
        "--on-notify=bash -c 'echo \"message: $HQ_NOTIFY_MESSAGE\"' x",
        "--",
        "bash",
        "-c",
        "$HQ task notify -- --version",
    ]);
    let out = ran.ok();
    assert!(out.ends_with("message: --version\n"), "{out}");
}

#[test]
fn notify_outside_of_a_task_says_why_it_cannot() {
    let env = Env::new();
    env.hq(&["task", "notify", "x"])
        .exits_with(1)
        .says("HQ_ACCESS_KEY variable not found. Are you running this command inside a task?");
    let output = env
        .command(&["task", "notify", "x"])
        .env("HQ_ACCESS_KEY", "nonsense")
        .output()
        .expect("hq runs");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        text.contains("Value of HQ_ACCESS_KEY has a wrong format"),
        "{text}"
    );
}

#[test]
fn failed_tasks_are_tried_again_and_earlier_output_is_kept() {
    let env = Env::with_worker(2);
    let script = "echo attempt $HQ_INSTANCE_ID; [ $HQ_INSTANCE_ID = 2 ]";
    let job = env.submit(&[
        "--retries=3",
        "--retry-delay=10ms",
        "--wait",
        "--",
        "bash",
        "-c",
        script,
    ]);
    assert_eq!(env.stats(&job)["finished"], 1);
    let path = |suffix: &str| format!("job-{job}/0.stdout{suffix}");
    assert_eq!(env.read(&path("")), "attempt 2\n");
    assert_eq!(env.read(&path(".attempt-0")), "attempt 0\n");
    assert_eq!(env.read(&path(".attempt-1")), "attempt 1\n");
    let info = env.json(&["task", "info", &job, "0", "-v"]);
    assert_eq!(info[0]["instance"], 2);
    let errors: Vec<_> = info[0]["attempts"]
        .as_array()
        .expect("attempts")
        .iter()
        .map(|attempt| attempt["error"].clone())
        .collect();
    assert_eq!(
        errors,
        vec![json!("Program terminated with exit code 1."); 2]
    );
    assert!(info[0]["usage"]["max_rss_kib"].as_u64() > Some(0), "{info}");
    let plain = env.json(&["task", "info", &job, "0"]);
    assert!(plain[0].get("attempts").is_none(), "only with -v: {plain}");
}

#[test]
fn only_the_chosen_failures_are_tried_again() {
    let env = Env::with_worker(2);
    let instance = |args: &[&str], script: &str| {
        let options = ["--retries=1", "--retry-delay=0s", "--wait"];
        let job = env.submit(&[&options[..], args, &["--", "bash", "-c", script]].concat());
        let info = env.json(&["task", "info", &job, "0", "-v"]);
        assert_eq!(info[0]["state"], "failed");
        info[0]["instance"].clone()
    };
    assert_eq!(instance(&["--retry-on=3-5,SIGKILL"], "exit 4"), 1);
    assert_eq!(instance(&["--retry-on=3-5,SIGKILL"], "exit 6"), 0);
    assert_eq!(instance(&["--retry-on=3-5,SIGKILL"], "kill -9 $$"), 1);
    assert_eq!(
        instance(&["--retry-on=timeout", "--time-limit=100ms"], "sleep 100"),
        1
    );
    assert_eq!(
        instance(&["--retry-on=exit", "--time-limit=100ms"], "sleep 100"),
        0
    );
    env.hq(&["submit", "--retries=1", "--retry-on=foo", "--", "true"])
        .exits_with(2)
        .says("invalid value 'foo' for '--retry-on <CAUSES>'");
}

#[test]
fn canceling_ends_the_wait_for_another_attempt() {
    let env = Env::with_worker(1);
    let job = env.submit(&[
        "--retries=9",
        "--retry-delay=1h",
        "--",
        "bash",
        "-c",
        "echo x >> ran; false",
    ]);
    env.wait_lines("ran", 1);
    wait_for("the task waits again", || {
        let stats = env.stats(&job);
        (stats["waiting"] == 1)
            .then_some(())
            .ok_or(stats.to_string())
    });
    env.hq(&["task", "explain", &job, "0"])
        .says("Its last attempt failed; the next one begins in 9m");
    env.hq(&["job", "cancel", &job])
        .says("1 tasks canceled")
        .ok();
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["canceled"], 1);
    assert_eq!(env.read("ran"), "x\n");
}

#[test]
fn a_chosen_signal_and_a_grace_period_come_before_the_kill() {
    let env = Env::with_worker(1);
    let script = "trap 'echo term; sleep 1.2; echo saved; exit 0' TERM; echo up; while :; do sleep 0.02; done";
    let job = env.submit(&[
        "--time-limit=500ms",
        "--stop-signal=SIGTERM",
        "--stop-grace=30s",
        "--wait",
        "--",
        "bash",
        "-c",
        script,
    ]);
    assert_eq!(
        env.hq(&["job", "cat", &job, "stdout"]).ok(),
        "up\nterm\nsaved\n"
    );
    assert_eq!(env.tasks(&job)[0]["error"], "Time limit reached");
}

#[test]
fn a_second_cancel_kills_what_is_in_its_grace_period() {
    let env = Env::with_worker(1);
    let script = "trap '' INT; echo $$ > pid; while :; do sleep 0.02; done";
    let command = ["--stop-grace=1h", "--", "bash", "-c", script];
    let job = env.submit(&command);
    let pid = env.wait_lines("pid", 1);
    env.hq(&["job", "cancel", &job]).says("1 tasks canceled");
    let is_there = || std::fs::exists(format!("/proc/{}", pid.trim())).expect("readable");
    assert!(is_there(), "it ignores its signal");
    env.hq(&["job", "cancel", &job])
        .says("1 task in the grace period got SIGKILL");
    wait_for("the end of the task", || match is_there() {
        true => Err(format!("{pid} is there")),
        false => Ok(()),
    });
}

#[test]
fn ids_are_shown_as_they_were_written() {
    let env = Env::with_worker(2);
    let job = env.submit(&["--array=1-10:2,20", "--wait", "--", "true"]);
    let info = env.hq(&["job", "info", &job]).ok();
    assert!(info.contains("6; Ids: 1-10:2,20"), "{info}");
    assert_eq!(env.hq(&["job", "task-ids", &job]).ok(), "1,3,5,7,9,20\n");
}

#[test]
fn the_largest_array_costs_nothing_while_it_waits() {
    let mut env = Env::new();
    env.start_server();
    let job = env.submit(&["--array=0-4294967294", "--", "true"]);
    let info = env.hq(&["job", "info", &job]).ok();
    assert!(info.contains("WAITING (4294967295)"), "{info}");
    let pid = env.json(&["server", "info"])["pid"].clone();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("server runs");
    let resident = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"))
        .and_then(|text| text.trim().parse::<u64>().ok())
        .expect("VmRSS");
    assert!(resident < 100_000, "{resident} KiB");
    env.hq(&["job", "cancel", &job])
        .says("4294967295 tasks canceled");
    env.hq(&["submit", "--array=0-4294967295", "--", "true"])
        .exits_with(2)
        .says("Invalid range");
}

#[test]
fn debug_dump_writes_what_the_server_knows() {
    let env = Env::with_worker(2);
    env.submit(&["--array=1-3", "--wait", "--", "true"]);
    let path = env.path("dump.json");
    let ask = ["server", "debug-dump", path.to_str().expect("text")];
    env.hq(&ask)
        .says(&format!("Dump finished: '{}'", path.display()))
        .ok();
    let dump: serde_json::Value = serde_json::from_str(&env.read("dump.json")).expect("JSON");
    assert_eq!(dump["tako"]["workers"][0]["id"], 1);
    assert_eq!(dump["tako"]["worker_groups"]["default"], json!([1]));
    assert_eq!(
        dump["tako"]["tasks"][0],
        json!({"job": 1, "first": 1, "last": 3, "count": 3, "state": "finished"})
    );
    use std::os::unix::fs::PermissionsExt as _;
    let mode = std::fs::metadata(&path)
        .expect("the file")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let before = env.read("dump.json");
    env.hq(&ask).exits_with(1).says("File exists");
    assert_eq!(env.read("dump.json"), before, "nothing is overwritten");
    env.hq(&["server", "debug-dump", "/nonexistent/x"])
        .exits_with(1)
        .says("Cannot write /nonexistent/x");
}

#[test]
fn many_submissions_go_over_one_connection() {
    let env = Env::with_worker(2);
    let lines = [
        r#"{"command": ["bash", "-c", "echo $A $HQ_ENTRY"], "name": "first", "env": {"A": "x"}, "stdout": "first"}"#,
        "",
        r#"{"command": ["true"], "array": "1-3", "wait": true}"#,
        r#"{"command": ["true"], "cpus": 0}"#,
        "nonsense",
        r#"{"command": ["true"], "array": "1-10:2"}"#,
    ];
    env.write("lines", lines.join("\n"));
    let mut command = env.command(&["submit", "-"]);
    let input = std::fs::File::open(env.path("lines")).expect("just written");
    let output = command.stdin(input).output().expect("hq runs");
    assert_eq!(output.status.code(), Some(1), "some lines were refused");
    let text = String::from_utf8(output.stdout).expect("text");
    let results: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("a result a line"))
        .collect();
    assert_eq!(
        (&results[0], &results[4]),
        (&json!({"id": 1}), &json!({"id": 2}))
    );
    for (index, words) in [
        (1, "`wait` is not allowed"),
        (2, "Zero resources cannot be requested"),
        (3, "Expected a JSON object"),
    ] {
        let error = results[index]["error"].as_str().expect("an error");
        assert!(error.contains(words), "{error}");
    }
    env.hq(&["job", "wait", "all"]).ok();
    assert_eq!(env.read("first"), "x\n");
    assert_eq!(env.json(&["job", "info", "1"])[0]["info"]["name"], "first");
}

#[test]
fn statistics_tell_what_tasks_took() {
    let env = Env::with_worker(2);
    let job = env.submit(&[
        "--array=1-4",
        "--wait",
        "--",
        "bash",
        "-c",
        "exit $((HQ_TASK_ID / 4))",
    ]);
    let stats = env.json(&["job", "stats", &job]);
    assert_eq!(stats["run_time"]["count"], 4);
    assert!(
        stats["max_rss"]["p50"].as_f64() > Some(100_000.0),
        "{stats}"
    );
    assert!(stats["waiting_time"]["max"].as_f64() >= stats["waiting_time"]["min"].as_f64());
    let csv = env.hq(&["job", "stats", &job, "--csv"]).ok();
    assert!(
        csv.starts_with("metric,count,min,p25,p50,p75,p90,p99,max,mean\nrun_time,4,"),
        "{csv}"
    );
    let table = env.hq(&["job", "stats", &job]).ok();
    let row = |line: &str| -> Vec<String> {
        let cells = line.split('|').map(|cell| cell.trim().to_owned());
        cells.filter(|cell| !cell.is_empty()).collect()
    };
    let rows: Vec<Vec<String>> = table.lines().map(row).collect();
    let names = [
        "run_time",
        "waiting_time",
        "max_rss",
        "cpu_efficiency",
        "run_until_cancel",
    ];
    assert_eq!(rows[1], names, "{table}");
    assert_eq!(rows[3], ["tasks", "4", "4", "4", "4", "0"], "{table}");
    assert_eq!(rows[11][0], "mean", "{table}");
    env.hq(&["job", "stats", "99"])
        .says("Job 99 not found")
        .exits_with(1);
}
