//! Usage of tasks over time is measured, stored, shown, kept across a restart, and forgotten with
//! the job.

use crate::harness::{Env, signal, wait_for};
use crate::http::Site;
use crate::web::{recorded, rendered};

/// Holds 40 MiB of memory below a shell and keeps one cpu busy for six seconds.
const SCRIPT: &str = "python3 -c '
import time
held = bytearray(40 << 20)
for at in range(0, len(held), 4096): held[at] = 1
until = time.time() + 6
while time.time() < until: pass
'; true";

fn numbers(list: &serde_json::Value) -> Vec<f64> {
    let list = list.as_array().expect("a list");
    list.iter().map(|n| n.as_f64().expect("a number")).collect()
}

fn most(list: &serde_json::Value) -> f64 {
    numbers(list).into_iter().fold(0.0, f64::max)
}

#[test]
fn what_a_task_used_over_time_is_shown_beside_what_it_asked_for() {
    let mut env = Env::new();
    let server = env.start_server_with(&["--http"]);
    env.start_worker_with(&["--cpus=2", "--resource", "mem=sum(1024)"]);
    let job = env.submit(&["--resource=mem=200MiB", "--", "sh", "-c", SCRIPT]);
    let short = env.submit(&["--", "true"]);
    env.wait_job(&job);
    env.wait_job(&short);
    let check = |env: &Env| {
        let task = &env.json(&["task", "info", &job, "0", "-v"])[0];
        let usage = &task["usage_over_time"];
        // The shell is small, so this is the memory of its child.
        let peak = most(&usage["memory_mib"]);
        assert!((40.0..120.0).contains(&peak), "{usage}");
        let cpus = numbers(&usage["cpus"]);
        assert!(cpus.len() >= 3, "{usage}");
        // Other processes use the machine as well, so the values vary.
        assert!(cpus.iter().sum::<f64>() > 0.2, "{usage}");
        assert!(cpus.iter().all(|busy| *busy < 1.5), "{usage}");
        assert_eq!(usage["memory_asked_mib"], 200.0, "{usage}");
        assert_eq!(usage["cpus_asked"], 1.0, "{usage}");
        let short = &env.json(&["task", "info", &short, "0", "-v"])[0];
        assert!(short["usage_over_time"].is_null(), "{short}");
    };
    check(&env);
    env.hq(&["task", "info", &job, "0", "-v"])
        .says("Memory over time")
        .says("of 200.00 MiB asked for")
        .ok();
    let told = env.hq(&["task", "info", &short, "0", "-v"]).ok();
    assert!(!told.contains("over time"), "{told}");
    let usage = &Site::of(&env).json(&format!("/api/v1/jobs/{job}/tasks/0"))["usage"];
    assert_eq!(usage["memory_asked_bytes"], 200 << 20, "{usage}");
    assert!(most(&usage["memory_bytes"]) > 4e7, "{usage}");
    let sql = "SELECT max(memory_mib) > 40, max(memory_asked_mib), count(DISTINCT job) FROM usage";
    let row = env.hq(&["--output-mode=quiet", "query", sql]).ok();
    assert_eq!(row.trim(), "1\t200.0\t1");

    // The curve was stored with the end of the task, so the worker does not have to send it again.
    signal(server, "KILL");
    env.wait_exit("server");
    env.start_server_with(&["--resume", "--http"]);
    check(&env);
    let page = env.path("report.html");
    let page = page.to_str().expect("a path");
    let journal = env.server_dir().join("hq-current/state.db");
    let journal = journal.to_str().expect("a path");
    env.hq(&["journal", "report", journal, page]).ok();
    let costs = &recorded(&env.read("report.html"))["answers"]["/costs"];
    let usage = &costs["slowest"][0]["usage"];
    assert_eq!(usage["memory_asked_bytes"], 200 << 20, "{costs}");
    if let Some(shown) = rendered(&env, "report.html", "costs") {
        assert!(shown.contains("Memory over time"), "{shown}");
        assert!(shown.contains(" of 200.0 MiB"), "{shown}");
    }

    env.hq(&["job", "forget", &job]).ok();
    wait_for("its rows go with the job", || {
        let count = ["--output-mode=quiet", "query", "SELECT count(*) FROM usage"];
        match env.hq(&count).ok().trim() {
            "0" => Ok(()),
            other => Err(other.to_owned()),
        }
    });
}
