//! Options of servers and workers that no other test uses.

use serde_json::{Value, json};

use crate::harness::{Env, wait_for};

#[test]
fn planes_without_keys_take_everybody() {
    let mut env = Env::new();
    env.start_server_with(&[
        "--disable-client-authentication-and-encryption",
        "--disable-worker-authentication-and-encryption",
        "--journal-flush-period=1s",
        "--scheduler-time-limit=1s",
    ]);
    let access: Value =
        serde_json::from_str(&env.read("server/hq-current/access.json")).expect("JSON");
    for plane in ["client", "worker"] {
        assert_eq!(access[plane]["secret_key"], Value::Null, "{access}");
    }
    assert!(env.read("server.log").contains("WARN"), "a warning");
    env.start_worker(1);
    let job = env.submit(&["--", "true"]);
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 1);
}

/// The batch system chooses the ids of jobs: arrays, federations and simulators do not only use
/// numbers.
#[test]
fn the_id_of_a_batch_job_is_any_word() {
    let mut env = Env::new();
    env.start_server();
    for (id, number) in ["abcd", "1.job", "123_4", "123+0", "123;cluster"]
        .into_iter()
        .zip(1..)
    {
        env.set("SLURM_JOB_ID", id);
        env.start_worker_with(&["--cpus=1", "--time-limit=1h"]);
        let worker = env.json(&["worker", "info", &number.to_string()])[0].clone();
        assert_eq!(worker["allocation"], json!({"id": id, "manager": "Slurm"}));
    }
    env.set("SLURM_JOB_ID", "");
    env.start_worker_with(&["--cpus=1"]);
    assert_eq!(
        env.json(&["worker", "info", "6"])[0]["allocation"],
        Value::Null
    );
}

#[test]
fn workers_are_what_their_options_say() {
    let mut env = Env::new();
    env.set("SLURM_JOB_ID", "77");
    env.start_server();
    let dir = env.path("local").display().to_string();
    env.start_worker_with(&[
        "--cpus=2",
        "--manager=none",
        "--hostname=node7",
        "--group=front",
        "--heartbeat=2s",
        "--idle-timeout=1h",
        "--time-limit=02:00:00",
        "--retract-check-interval=10s",
        "--min-utilization=0.5",
        "--no-hyper-threading",
        "--on-server-lost=finish-running",
        &format!("--work-dir={dir}"),
    ]);
    let worker = env.json(&["worker", "info", "1"])[0].clone();
    assert_eq!(
        worker["allocation"],
        Value::Null,
        "no batch system was looked for"
    );
    let configuration = &worker["configuration"];
    for (key, value) in [
        ("hostname", json!("node7")),
        ("group", json!("front")),
        ("heartbeat_interval", json!(2.0)),
        ("idle_timeout", json!(3600.0)),
        ("time_limit", json!(7200.0)),
        ("min_utilization", json!(0.5)),
        ("on_server_lost", json!("finish-running")),
    ] {
        assert_eq!(configuration[key], value, "{key}");
    }
    let work_dir = configuration["work_dir"].as_str().expect("a path");
    assert!(work_dir.starts_with(&dir), "{work_dir}");
    let connected = env.hq(&["journal", "replay"]).ok();
    assert!(
        connected.contains("\"retract_check_interval\":{\"nanos\":0,\"secs\":10}"),
        "{connected}"
    );
    let script = "echo $HQ_TASK_DIR";
    let job = env.submit(&[
        "--cpus=2",
        "--task-dir",
        "--stdout=out",
        "--",
        "sh",
        "-c",
        script,
    ]);
    env.wait_job(&job);
    let task_dir = env.read("out");
    assert!(task_dir.starts_with(&dir), "{task_dir}");
}

#[test]
fn idle_workers_leave_after_the_time_of_the_server() {
    let mut env = Env::new();
    env.start_server_with(&["--idle-timeout=500ms"]);
    env.spawn(
        "idle",
        &["worker", "start", "--cpus=1", "--detect-resources=cpus"],
    );
    wait_for("the worker has left", || {
        let states = env.workers();
        (states == ["IDLE TIMEOUT"])
            .then_some(())
            .ok_or_else(|| states.join(","))
    });
    assert_eq!(env.wait_exit("idle"), Some(0));
    let listed = |args: &[&str]| {
        let list = env.json(&[&["worker", "list"], args].concat());
        list.as_array().map_or(0, Vec::len)
    };
    assert_eq!(listed(&[]), 0, "only those that run");
    assert_eq!(listed(&["--all"]), 1);
    assert_eq!(listed(&["--filter=offline"]), 1);
    assert_eq!(listed(&["--filter=running"]), 0);
    env.hq(&["worker", "list", "--all", "--filter=running"])
        .says("cannot be used with")
        .exits_with(2);
}
