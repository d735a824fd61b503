//! A node whose shared file system hangs, next to healthy nodes.

use crate::harness::{Env, skip, wait_for, wait_for_up_to};
use crate::silent_disk::SilentDisk;

/// How long to wait until a node has detected a hanging file system. The node has 20 s for that.
const FOUND: std::time::Duration = std::time::Duration::from_secs(120);

/// Starts a server that acts, and three workers with a directory `shared`, which is on the hanging
/// file system for the first one. Returns `None` and prints a reason if that cannot be created
/// here.
fn with_nodes() -> Option<(Env, SilentDisk)> {
    let mut env = Env::new();
    let shared = env.path("shared");
    std::fs::create_dir(&shared).expect("it is new");
    let disk = SilentDisk::mount(&env, "silent")?;
    let script = format!(
        "mount --bind '{}' '{}' && exec \"$@\"",
        disk.path.display(),
        shared.display()
    );
    let behind = ["unshare", "-m", "sh", "-c", &script, "sh"];
    let tried = std::process::Command::new(behind[0])
        .args([&behind[1..], &["true"]].concat())
        .output();
    if !tried.as_ref().is_ok_and(|output| output.status.success()) {
        skip(&format!("no file system can be mounted: {tried:?}"));
        return None;
    }
    env.start_server_with(&["--quarantine=act"]);
    let args = ["--cpus=2", "--heartbeat=500ms"];
    env.start_worker_behind(&behind, &[&args[..], &["--hostname=node1"]].concat());
    env.start_worker_with(&[&args[..], &["--hostname=node2"]].concat());
    env.start_worker_with(&[&args[..], &["--hostname=node3"]].concat());
    Some((env, disk))
}

/// Submits tasks in the shared directory.
fn submit(env: &Env, count: u32, script: &str) -> String {
    let array = format!("--array=1-{count}");
    let words = ["--cwd=shared", "--stdout=none", "--stderr=none", &array];
    env.submit(&[&words[..], &["--", "sh", "-c", script]].concat())
}

/// Waits until the first node has detected the problem, and users can see it everywhere.
fn wait_for_reason(env: &Env) {
    let reason = format!(
        "the file system of {} does not answer there",
        env.path("shared").display()
    );
    wait_for_up_to(FOUND, "the node finds its file system dead", || {
        let info = env.hq(&["worker", "info", "1"]).ok();
        info.contains(&reason).then_some(()).ok_or(info)
    });
    let told = env.hq(&["problems"]).ok();
    assert!(told.contains("Broken node node1"), "{told}");
    assert!(told.contains(&reason), "{told}");
    let worker = &env.json(&["worker", "info", "1"])[0];
    assert!(
        worker["node_faults"].to_string().contains(&reason),
        "{worker}"
    );
    let sql = "SELECT worker, json_extract(data, '$.reason') AS said FROM events WHERE type = 'worker-suspected'";
    let events = env.json(&["query", sql]);
    assert!(events.to_string().contains(&reason), "{events}");
}

#[test]
fn a_node_on_which_tasks_fail_for_a_file_system_that_hangs_says_so_and_stops_on_demand() {
    let Some((mut env, disk)) = with_nodes() else {
        return;
    };
    // This program gives up if a file does not answer for a second.
    let script = "cat data & sleep 1; kill -0 $! 2> /dev/null && exit 7; true";
    let well = submit(&env, 6, script);
    env.wait_job(&well);
    assert_eq!(env.stats(&well)["finished"], 6);
    disk.set_silent(true);
    // There are so many tasks that others are still running when the node is detected.
    let job = submit(&env, 120, script);
    wait_for("the node is set aside for its failures", || {
        let states = env.workers();
        let is_aside = states == ["QUARANTINED", "RUNNING", "RUNNING"];
        is_aside.then_some(()).ok_or_else(|| format!("{states:?}"))
    });
    env.hq(&["worker", "info", "1"])
        .says("tasks failed there")
        .ok();
    wait_for_reason(&env);
    env.wait_job(&job);
    let stats = env.stats(&job);
    let failed = stats["failed"].as_u64().expect("a number");
    assert!((1..=10).contains(&failed), "{stats}");
    assert!(disk.waiting() > 0, "a check always waits");
    assert_eq!(env.workers(), ["QUARANTINED", "RUNNING", "RUNNING"]);
    // The file system does not recover before the worker ends.
    env.hq(&["worker", "stop", "1"]).ok();
    wait_for("the worker says goodbye", || {
        let states = env.workers();
        let is_over = states[0] == "STOPPED";
        is_over.then_some(()).ok_or_else(|| format!("{states:?}"))
    });
    assert_eq!(env.wait_exit("worker1"), Some(0));
    let log = env.read("worker1.log");
    assert!(
        log.contains("Worker stopped: the server asked for it"),
        "{log}"
    );
    assert!(disk.waiting() > 0, "it was dead all the time");
}

#[test]
fn a_node_on_which_tasks_hang_gets_none_until_its_file_system_answers_again() {
    let Some((env, disk)) = with_nodes() else {
        return;
    };
    disk.set_silent(true);
    let job = submit(&env, 30, "cat data; sleep 0.1");
    wait_for_reason(&env);
    assert_eq!(env.workers(), ["UNFIT", "RUNNING", "RUNNING"]);
    // Tasks that hang stay, and all others run elsewhere.
    let others = submit(&env, 10, "true");
    env.wait_job(&others);
    let sql = format!("SELECT count(*) AS n FROM tasks WHERE job = {others} AND worker = 1");
    assert_eq!(env.json(&["query", &sql])[0]["n"], 0);
    wait_for("only what hangs is left", || {
        let stats = env.stats(&job);
        (stats["finished"] == 28)
            .then_some(())
            .ok_or_else(|| stats.to_string())
    });
    disk.set_silent(false);
    env.wait_job(&job);
    wait_for("the node gets tasks again", || {
        let states = env.workers();
        let is_back = states == ["RUNNING"; 3];
        is_back.then_some(()).ok_or_else(|| format!("{states:?}"))
    });
    let told = env.hq(&["problems"]).ok();
    assert!(!told.contains("does not answer there"), "{told}");
}
