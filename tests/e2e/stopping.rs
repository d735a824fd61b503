//! Stopping a server on request: workers end with it, or wait for the next one, which may be of
//! another release.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use crate::harness::{Env, processes_with, signal, wait_for};

/// Records where it starts, and runs until it is released.
const PATIENT: &str =
    "echo $HQ_TASK_ID $HQ_INSTANCE_ID >> starts; until test -e go; do sleep 0.05; done";

#[test]
fn workers_end_with_their_server_and_what_they_ran_waits() {
    let mut env = Env::new();
    env.start_server();
    for policy in [
        "reconnect",
        "stop",
        "reconnect",
        "reconnect",
        "stop",
        "reconnect",
    ] {
        env.start_worker_with(&["--cpus=1", &format!("--on-server-lost={policy}")]);
    }
    // One of the tasks ignores the signal.
    let script = format!("test $HQ_TASK_ID = 1 && trap '' INT; {PATIENT}; : sleep-57113");
    let job = env.submit(&["--array=0-2", "--", "bash", "-c", &script]);
    env.wait_lines("starts", 3);
    env.hq(&["server", "stop"]).says("Stopping server").ok();
    assert_eq!(env.wait_exit("server"), Some(0));
    for number in 1..=6 {
        let name = format!("worker{number}");
        assert_eq!(env.wait_exit(&name), Some(1), "{name}");
        let log = env.read(&format!("{name}.log"));
        assert!(log.contains("Server connection closed"), "{log}");
    }
    assert!(processes_with("sleep-57113").is_empty());

    env.start_server_with(&["--resume"]);
    assert!(env.workers().is_empty(), "nobody is waited for");
    assert_eq!(env.stats(&job)["waiting"], 3, "nothing failed");
    env.start_worker(3);
    let starts = env.wait_lines("starts", 6);
    let mut again: Vec<&str> = starts.lines().skip(3).collect();
    again.sort_unstable();
    assert_eq!(again, ["0 1", "1 1", "2 1"]);
    env.write("go", "");
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 3);
}

#[test]
fn a_worker_that_is_to_finish_does_so_without_its_server() {
    let mut env = Env::new();
    env.start_server();
    env.start_worker_with(&["--cpus=1", "--on-server-lost=finish-running"]);
    let script = format!("{PATIENT}; touch end-$HQ_TASK_ID");
    env.submit(&["--array=0-1", "--", "bash", "-c", &script]);
    env.wait_lines("starts", 1);
    env.hq(&["server", "stop"]).ok();
    assert_eq!(env.wait_exit("server"), Some(0));
    env.write("go", "");
    assert_eq!(env.wait_exit("worker1"), Some(1));
    assert!(env.path("end-0").exists(), "it was left to end");
    assert_eq!(env.read("starts").lines().count(), 1, "nothing new started");
}

#[test]
fn a_worker_that_was_stopped_just_before_its_server_is_recorded_as_stopped() {
    let mut env = Env::with_worker(1);
    let job = env.submit(&["--", "bash", "-c", PATIENT]);
    env.wait_running(&job, 1);
    env.hq(&["worker", "stop", "all"]).ok();
    env.hq(&["server", "stop", "--keep-workers"]).ok();
    assert_eq!(env.wait_exit("server"), Some(0));
    assert_eq!(env.wait_exit("worker1"), Some(0));
    let events = env.hq(&["journal", "export", "server/001/state.db"]).ok();
    let lost = events.lines().find(|line| line.contains("worker-lost"));
    let lost = lost.expect("it is recorded");
    assert!(lost.contains("Stopped"), "{lost}");
    env.start_server_with(&["--resume"]);
    assert_eq!(env.stats(&job)["waiting"], 1);
}

/// Returns the program disguised as another release: its version is replaced in the binary.
fn other_release(env: &Env) -> PathBuf {
    let version = env.hq(&["--version"]).ok();
    let version = version.trim().rsplit(' ').next().expect("hq VERSION");
    let last = version.chars().last().expect("not empty");
    let other = format!(
        "{}{}",
        &version[..version.len() - 1],
        if last == 'x' { 'y' } else { 'x' }
    );
    let pattern = format!("s/{}/{other}/g", version.replace('.', "\\."));
    let edited = Command::new("sed")
        .env("LC_ALL", "C")
        .args([&pattern, env!("CARGO_BIN_EXE_hq")])
        .output();
    let path = env.write("hq-other", edited.expect("sed can be run").stdout);
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).expect("mode");
    path
}

/// Ends a server in some way, starts one of another release in its place, and requires that nothing
/// is lost.
fn update(end: impl Fn(&Env, u32)) {
    let mut env = Env::new();
    let server = env.start_server();
    for _ in 0..2 {
        env.start_worker(2);
    }
    let job = env.submit(&["--array=0-5", "--", "bash", "-c", PATIENT]);
    env.wait_running(&job, 4);
    let other = other_release(&env);
    env.use_program(other);
    env.hq(&["job", "list"])
        .exits_with(1)
        .says("version mismatch");
    end(&env, server);
    assert_eq!(env.wait_exit("server"), Some(0));
    assert_eq!(env.read("starts").lines().count(), 4);

    env.start_server_with(&["--resume"]);
    wait_for("both workers are back", || {
        let states = env.workers();
        (states == ["RUNNING"; 2])
            .then_some(())
            .ok_or(format!("{states:?}"))
    });
    assert_eq!(env.stats(&job)["running"], 4, "they go on");
    env.write("go", "");
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 6);
    let mut starts: Vec<String> = env.read("starts").lines().map(str::to_owned).collect();
    starts.sort_unstable();
    let expected: Vec<String> = (0..6).map(|id| format!("{id} 0")).collect();
    assert_eq!(starts, expected, "each task started once");
    let late = env.submit(&["--wait", "--", "true"]);
    assert_eq!(env.stats(&late)["finished"], 1);
    env.hq(&["server", "stop"]).ok();
    assert_eq!(env.wait_exit("worker1"), Some(1));
    assert_eq!(env.wait_exit("worker2"), Some(1));
}

#[test]
fn a_server_is_updated_under_running_tasks() {
    update(|env, _| {
        env.hq(&["server", "stop", "--keep-workers"]).ok();
    });
}

#[test]
fn a_server_that_its_machine_ends_keeps_its_workers() {
    update(|_, server| signal(server, "TERM"));
}

/// Starts a worker without a server, and waits until the worker has noticed that.
fn start_worker_too_early(env: &mut Env) -> u32 {
    let server = env.start_server();
    signal(server, "KILL");
    env.wait_exit("server");
    let worker = env.spawn("worker1", &["worker", "start", "--cpus=1"]);
    wait_for("the worker waits for its server", || {
        let log = env.read("worker1.log");
        log.contains("will try again").then_some(()).ok_or(log)
    });
    worker
}

#[test]
fn a_worker_that_waits_for_its_server_ends_when_told_to() {
    let mut env = Env::new();
    let worker = start_worker_too_early(&mut env);
    signal(worker, "TERM");
    let code = env.wait_exit("worker1");
    let log = env.read("worker1.log");
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("received a signal"), "{log}");
}

#[test]
fn a_worker_that_waits_for_its_server_finds_it_at_its_new_place() {
    let mut env = Env::new();
    start_worker_too_early(&mut env);
    // The new server has another port and other keys.
    env.start_server();
    wait_for("the worker is registered", || {
        let workers = env.workers();
        (workers == ["RUNNING"])
            .then_some(())
            .ok_or_else(|| env.read_so_far("worker1.log"))
    });
}
