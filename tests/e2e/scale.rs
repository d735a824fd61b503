//! Tests many tasks, and many waiting tasks.

use crate::harness::{Env, signal, wait_for};

#[test]
fn a_large_array_on_two_workers_finishes_completely() {
    let mut env = Env::with_worker(2);
    env.start_worker(2);
    let job = env.submit(&[
        "--array=1-20000",
        "--stdout=none",
        "--stderr=none",
        "--wait",
        "--",
        &env.quick_printenv(),
    ]);
    assert_eq!(env.stats(&job)["finished"], 20_000);
    let info = env.hq(&["job", "info", &job]).ok();
    assert!(info.contains("20000; Ids: 1-20000"), "{info}");
}

#[test]
fn a_million_waiting_tasks_cost_little_and_cancel_at_once() {
    let mut env = Env::with_worker(1);
    env.spawn("followed", &["journal", "stream"]);
    wait_for("the stream follows", || {
        let text = env.read("followed.log");
        text.contains("worker-connected").then_some(()).ok_or(text)
    });
    let pid = env.json(&["server", "info"])["pid"]
        .as_u64()
        .expect("a pid");
    let resident = || memory(pid, "VmRSS");
    let before = resident();
    let job = env.submit(&["--array=0-999999", "--cpus=50", "--", "true"]);
    let grown = resident().saturating_sub(before);
    assert!(grown < 40_000_000, "40 bytes a task; grown by {grown}");
    let info = env.hq(&["job", "info", &job]).ok();
    assert!(info.contains("WAITING (1000000)"), "{info}");
    env.hq(&["job", "cancel", &job])
        .says("1000000 tasks canceled")
        .ok();
    let canceled = env.json(&["job", "list", "--all"]);
    assert_eq!(canceled[0]["task_stats"]["canceled"], 1_000_000);
    let some = env.json(&["task", "list", &job, "--tasks=5-6"]);
    assert_eq!(some[&job][1]["state"], "canceled");
    // The stream lists each of them, but the server never did.
    let grown = resident().saturating_sub(before);
    assert!(grown < 60_000_000, "grown by {grown}");
    env.hq(&["server", "stop"]).ok();
    assert_eq!(env.wait_exit("followed"), Some(0));
    let followed = env.read("followed.log");
    let canceled = followed
        .lines()
        .filter(|line| line.contains("task-canceled"));
    let named = canceled.map(|line| line.matches("\"job_task_id\":").count());
    assert_eq!(named.sum::<usize>(), 1_000_000);
}

/// The user notices a typing error only after the job has started, so the job is not canceled as a
/// whole.
#[test]
fn a_giant_array_that_had_begun_is_canceled_and_comes_back_in_little_memory() {
    let mut env = Env::new();
    let server = env.start_server();
    env.start_worker(1);
    let job = env.submit(&[
        "--array=0-999999999",
        "--stdout=none",
        "--stderr=none",
        "true",
    ]);
    wait_for("some tasks have finished", || {
        let stats = env.stats(&job);
        (stats["finished"].as_u64() > Some(600))
            .then_some(())
            .ok_or(stats.to_string())
    });
    env.hq(&["job", "cancel", &job]).ok();
    let before = env.stats(&job);
    signal(server, "KILL");
    env.wait_exit("server");
    let server = env.start_server_with(&["--resume"]);
    assert_eq!(env.stats(&job), before);
    let peak = memory(u64::from(server), "VmHWM");
    assert!(peak < 150_000_000, "{peak} bytes");
}

#[test]
fn what_a_large_graph_took_is_given_back_to_the_system() {
    let mut env = Env::new();
    env.start_server();
    let pid = env.json(&["server", "info"])["pid"]
        .as_u64()
        .expect("a pid");
    let tasks = (0..300_000).map(|id: u32| {
        let deps = [id.saturating_sub(2), id.saturating_sub(1)];
        let deps: Vec<u32> = deps.into_iter().filter(|dep| *dep < id).collect();
        serde_json::json!({"id": id, "command": ["true"], "deps": deps})
    });
    let file = serde_json::json!({"name": "large", "task": tasks.collect::<Vec<_>>()});
    env.write("large.json", file.to_string());
    env.hq(&["job", "submit-file", "large.json"]).ok();
    // This is an upper bound, because some memory may already have been returned to the system.
    let most = memory(pid, "VmHWM") - memory(pid, "RssFile");
    wait_for("the memory is the system's again", || {
        let now = memory(pid, "RssAnon");
        let report = format!("{now} bytes of {most}");
        (now * 3 < most * 2).then_some(()).ok_or(report)
    });
    let stats = env.stats("1");
    assert_eq!(stats["waiting"], 300_000, "they wait there");
}

/// Returns the memory of a process in bytes.
fn memory(pid: u64, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with(field));
    let value = line.and_then(|line| line.split_whitespace().nth(1));
    let kib: u64 = value.expect("a value").parse().expect("KiB");
    kib * 1024
}
