//! Many tasks, many waiting tasks.

use crate::harness::{Env, wait_for};

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
    let resident = || {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("server runs");
        let line = status
            .lines()
            .find(|line| line.starts_with("VmRSS"))
            .expect("VmRSS")
            .to_owned();
        line.split_whitespace()
            .nth(1)
            .expect("value")
            .parse::<u64>()
            .expect("KiB")
            * 1024
    };
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
    // The stream names each of them; the server never did.
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
