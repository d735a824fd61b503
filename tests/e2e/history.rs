//! Tasks that were canceled while they were running stay in every history.

use serde_json::Value;

use crate::harness::{Env, signal, wait_for};
use crate::http::Site;

/// The number of tasks that are running when the job is canceled, one per cpu.
const RAN: usize = 3;
/// The number of tasks in the job.
const TASKS: usize = 5;

/// Returns the rows of the job's tasks that ran, by SQL: state, worker, end, and run time in ns.
fn rows(env: &Env) -> Vec<(String, i64, i64, i64)> {
    let sql = "SELECT state, worker, ended_unix_ns - started_unix_ns AS span, run_us * 1000 AS run \
               FROM tasks WHERE job = 1 AND started_unix_ns IS NOT NULL ORDER BY task";
    let found = env.json(&["query", sql]);
    let number = |row: &Value, name: &str| row[name].as_i64().expect("a number");
    let row = |row: &Value| {
        (
            row["state"].as_str().expect("a state").to_owned(),
            number(row, "worker"),
            number(row, "span"),
            number(row, "run"),
        )
    };
    found.as_array().expect("rows").iter().map(row).collect()
}

/// Checks every task as shown by `task list` and `task info`.
fn tasks_are_shown(env: &Env) {
    let listed = env.tasks("1");
    let shown = env.json(&["task", "info", "1", "0-4"]);
    assert_eq!(shown.as_array().map(Vec::len), Some(TASKS));
    for (task, number) in listed.iter().zip(0..) {
        assert_eq!(task["state"], "canceled");
        let has = ["worker", "started_at", "finished_at"].map(|key| task[key].is_null());
        assert_eq!(has, [number >= RAN; 3], "{task}");
        assert_eq!(shown[number]["finished_at"], task["finished_at"]);
    }
    let table = env.hq(&["task", "info", "1", "0"]).ok();
    for label in ["Worker", "Start", "End", "Makespan"] {
        let line = table.lines().find(|line| line.contains(label));
        let cell = line.and_then(|line| line.split('|').nth(2));
        assert!(cell.is_some_and(|cell| !cell.trim().is_empty()), "{table}");
    }
}

#[test]
fn what_was_canceled_while_it_ran_stays_in_every_history() {
    let mut env = Env::new();
    let server = env.start_server_with(&["--http"]);
    env.start_worker(3);
    let job = env.submit(&["--array=0-4", "--", "sleep", "1000"]);
    env.wait_running(&job, 3);
    // This is longer than any rounding error.
    wait_for("a second has passed", || {
        let sql =
            "SELECT count(*) FROM tasks WHERE started_unix_ns / 1e9 < strftime('%s', 'now') - 1";
        let count = env.json(&["query", sql])[0]["count(*)"].as_u64();
        (count == Some(3))
            .then_some(())
            .ok_or(count)
            .map_err(|count| format!("{count:?}"))
    });
    env.hq(&["job", "cancel", &job]).ok();
    env.wait_job(&job);

    tasks_are_shown(&env);
    let ran = rows(&env);
    assert_eq!(ran.len(), RAN, "{ran:?}");
    let sql = "SELECT count(*) AS n FROM attempts WHERE state = 'canceled' AND run_us > 1000000";
    assert_eq!(env.json(&["query", sql])[0]["n"], RAN);
    for (state, worker, span, run) in &ran {
        assert_eq!((&state[..], *worker, span), ("canceled", 1, run));
        assert!(*run > 1_000_000_000, "{ran:?}");
    }
    let stats = env.json(&["job", "stats", &job]);
    assert_eq!(stats["run_until_cancel"]["count"], RAN);
    assert!(
        stats["run_until_cancel"]["min"].as_f64() > Some(1.0),
        "{stats}"
    );
    assert_eq!(stats["run_time"]["count"], 0, "{stats}");

    let site = Site::of(&env);
    let span = "from_ms=0&to_ms=4000000000000";
    let bars = site.json(&format!("/api/v1/timeline?{span}"));
    let bars = bars["tasks"].as_array().expect("bars");
    assert_eq!(bars.len(), RAN, "{bars:?}");
    assert!(
        bars.iter()
            .all(|bar| bar[0] == 1 && bar[2].as_f64() > Some(1_000.0))
    );
    let history = site.json(&format!("/api/v1/history?{span}"));
    let sum = |name: &str| -> u64 {
        let steps = history[name].as_array().expect("steps");
        steps.iter().filter_map(Value::as_u64).sum()
    };
    assert_eq!((sum("started"), sum("canceled")), (3, 3), "{history}");

    // A killed server has the same data after its restart.
    let before = env.tasks("1");
    signal(server, "KILL");
    env.wait_exit("server");
    env.start_server_with(&["--resume"]);
    assert_eq!(env.tasks("1"), before);
    assert_eq!(rows(&env), ran);
}

#[test]
fn failures_with_one_reason_are_one_group() {
    let env = Env::with_worker(2);
    let script = "if [ $HQ_TASK_ID = 9 ]; then exit 0; elif [ $HQ_TASK_ID = 4 ]; then exit 3; fi; \
                  echo 'reading' >&2; echo \"ValueError: no index for chr$HQ_TASK_ID\" >&2; exit 2";
    let job = env.submit(&["--array=1-9", "--wait", "--", "bash", "-c", script]);
    env.hq(&["job", "failures", &job])
        .says("8 of 9 tasks of job 1 `bash` failed")
        .says("7  exit code 2: ValueError: no index for chr1, and 6 like it")
        .says("tasks 1-3,5-8 on ")
        .says("1  exit code 3; no output")
        .ok();
    let found = env.json(&["job", "failures", &job, "--read=4"]);
    assert_eq!(
        (&found[0]["failed"], &found[0]["read"]),
        (&8.into(), &4.into())
    );
    let groups = found[0]["groups"].as_array().expect("groups");
    let sum = |name: &str| -> u64 { groups.iter().filter_map(|one| one[name].as_u64()).sum() };
    // Outputs that were not read count toward the group with the same error, if enough of these
    // were read.
    assert_eq!((sum("count"), sum("read")), (8, 4), "{found}");
    let quiet = env
        .hq(&["job", "failures", &job, "--output-mode=quiet"])
        .ok();
    let first = quiet.lines().next();
    assert_eq!(
        first,
        Some("1 7 exit code 2: ValueError: no index for chr1, and 6 like it")
    );
    let by = |what: &str| env.json(&["job", "failures", &job, "--group-by", what]);
    let nodes = &by("node")[0];
    assert_eq!(nodes["group_by"], "node", "{nodes}");
    let groups = nodes["groups"].as_array().expect("groups");
    assert_eq!(
        (groups.len(), &groups[0]["count"]),
        (1, &8.into()),
        "{nodes}"
    );
    assert_eq!(groups[0]["reasons"][0]["count"], 7, "{nodes}");
    let codes = by("exit-code");
    let codes = codes[0]["groups"].as_array().expect("groups");
    let codes: Vec<_> = codes
        .iter()
        .map(|one| (&one["name"], &one["tasks"]))
        .collect();
    let (two, three) = ("exit code 2".into(), "exit code 3".into());
    assert_eq!(codes, [(&two, &"1-3,5-8".into()), (&three, &"4".into())]);
    env.hq(&["job", "failures", &job, "--group-by=exit-code"])
        .says("7  exit code 2\n")
        .says("7  exit code 2: ValueError: no index for chr1, and 6 like it")
        .ok();
    let fine = env.submit(&["--wait", "--", "true"]);
    env.hq(&["job", "failures", &fine])
        .says("No task of job 2 `true` has failed.")
        .ok();
    env.hq(&["job", "failures", "7"])
        .says("Job 7 not found")
        .exits_with(1);
}

#[test]
fn problems_have_an_age_and_are_acknowledged_until_there_is_more() {
    let mut env = Env::new();
    let server = env.start_server_with(&["--http"]);
    env.start_worker(2);
    env.hq(&["job", "open", "--name=align"]).ok();
    let fail = [
        "--",
        "bash",
        "-c",
        "echo \"no index for chr$HQ_TASK_ID\" >&2; exit 2",
    ];
    let submit = |env: &Env, ids: &str| {
        env.submit(&[&["--job=1", ids], &fail[..]].concat());
        env.hq(&["job", "wait", "1", "--without-close"]).ok();
    };
    submit(&env, "--array=1-3");
    env.hq(&["problems"])
        .says("error    Failing job 1 align: 3 of 3 tasks failed, mostly: exit code 2; the last words: no index for chr1; ")
        .says("ago\n")
        .says("`hq problems --acknowledge job-1-failures` hides it")
        .ok();
    env.hq(&["problems", "--acknowledge", "job-7-failures"])
        .says("there is no problem `job-7-failures`")
        .exits_with(1);
    env.hq(&["problems", "--acknowledge=job-1-failures"])
        .says("Nothing is wrong.")
        .says("1 acknowledged; `hq problems --all` shows them")
        .ok();
    let site = Site::of(&env);
    wait_for("the API tells the same", || {
        let found = site.json("/api/v1/problems");
        let problem = &found["problems"][0];
        let is_known = problem["is_acknowledged"] == true && found["open_count"] == 0;
        (is_known && problem["cause"] == "no index for chr1" && problem["last_ms"].is_i64())
            .then_some(())
            .ok_or(found.to_string())
    });
    // The next server has the history as well.
    signal(server, "KILL");
    env.wait_exit("server");
    env.start_server_with(&["--resume"]);
    wait_for("the worker is back", || {
        let text = env.hq(&["problems"]).ok();
        text.contains("1 acknowledged").then_some(()).ok_or(text)
    });
    submit(&env, "--array=4");
    env.hq(&["problems"]).says("4 of 4 tasks failed").ok();
    env.hq(&["problems", "--take-back=job-1-failures"])
        .says("4 of 4 tasks failed")
        .ok();
    env.hq(&["problems", "--take-back=job-1-failures"])
        .says("is not acknowledged")
        .exits_with(1);
    env.hq(&["job", "close", "1"]).ok();
    env.hq(&["job", "resubmit", "1", "--filter=failed"]).ok();
    env.wait_job("2");
    let found = env.json(&["problems"]);
    let first = found
        .as_array()
        .into_iter()
        .flatten()
        .find(|one| one["id"] == 1);
    let shown = first.map(|one| (one["is_over"].clone(), one["resubmitted_as"].clone()));
    assert_eq!(shown, Some((true.into(), 2.into())), "{found}");
    env.hq(&["problems", "--all"])
        .says("submitted again as job 2")
        .ok();
}
