//! Limits that an ordinary user has and root does not: processes, descriptors, memory files and
//! disks.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::harness::{Env, processes_with, signal, skip, wait_for};

/// Prevents a running process from starting processes or threads, until dropped.
struct ProcessLimit<'a> {
    env: &'a Env,
    pids: Vec<u32>,
}

impl<'a> ProcessLimit<'a> {
    /// Applies the limit to a process and its children, such as the worker behind its front
    /// process.
    fn on(env: &'a Env, pid: u32) -> Self {
        let children = Path::new("/proc").join(format!("{pid}/task/{pid}/children"));
        let children = std::fs::read_to_string(children).unwrap_or_default();
        let children = children
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok());
        let pids: Vec<u32> = std::iter::once(pid).chain(children).collect();
        for pid in &pids {
            set_processes_max(env, *pid, "1");
        }
        Self { env, pids }
    }
}

impl Drop for ProcessLimit<'_> {
    fn drop(&mut self) {
        for pid in &self.pids {
            let option = format!("--pid={pid}");
            let words = [
                "prlimit",
                &option,
                "--nproc",
                "--noheadings",
                "--output=HARD",
            ];
            let hard = self.env.user_command(&words).output();
            let hard = hard.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
            // A process that has ended has no limits. The test will notice that.
            if let Some(hard) = hard.ok().filter(|hard| !hard.is_empty()) {
                set_processes_max(self.env, *pid, &hard);
            }
        }
    }
}

/// Sets the soft limit of a process. The hard limit stays, so that the soft one can be raised
/// again.
fn set_processes_max(env: &Env, pid: u32, limit: &str) {
    let (pid, limit) = (format!("--pid={pid}"), format!("--nproc={limit}:"));
    let set = env.user_command(&["prlimit", &pid, &limit]).output();
    let set = set.expect("prlimit can be run");
    assert!(set.status.success(), "{set:?}");
}

#[test]
fn a_worker_at_the_limit_of_processes_ends_tasks_and_starts_others_later() {
    let Some(mut env) = Env::of_ordinary_user() else {
        return;
    };
    env.start_server();
    let worker = env.start_worker(2);
    let script = "until [ -e go ]; do sleep 0.01; done; echo said > $HQ_ERROR_FILENAME; exit 3";
    let ending = env.submit(&["--task-dir", "--", "bash", "-c", script]);
    env.wait_running(&ending, 1);
    let limit = ProcessLimit::on(&env, worker);
    env.write("go", "");
    env.wait_job(&ending);
    let error = env.tasks(&ending)[0]["error"].to_string();
    assert!(error.contains("said"), "{error}");
    // The first streamed task of a worker needs a thread.
    let streamed = env.submit(&["--stream=streams", "--", "echo", "x"]);
    let later = env.submit(&["--array=1-3", "--", "true"]);
    // Reading output needs a thread as well.
    env.hq(&["job", "tail", &ending]).ok();
    assert_eq!(env.workers(), ["RUNNING"]);
    drop(limit);
    env.wait_job(&later);
    assert_eq!(env.stats(&later)["finished"], 3);
    env.wait_job(&streamed);
    assert_eq!(env.stats(&streamed)["finished"], 1);
}

#[test]
fn a_server_at_the_limit_of_processes_answers_everything() {
    let Some(mut env) = Env::of_ordinary_user() else {
        return;
    };
    let server = env.start_server();
    env.start_worker(1);
    let limit = ProcessLimit::on(&env, server);
    let rows = env.hq(&["query", "select count(*) from jobs"]).ok();
    assert!(rows.contains('0'), "{rows}");
    let job = env.submit(&["--", "true"]);
    env.wait_job(&job);
    let events = env.hq(&["journal", "replay"]).ok();
    assert!(events.contains("task-finished"), "{events}");
    drop(limit);
    env.hq(&["server", "stop"]).ok();
    assert_eq!(env.wait_exit("server"), Some(0));
}

#[test]
fn commands_at_the_limit_of_processes_work_or_say_so() {
    let Some(mut env) = Env::of_ordinary_user() else {
        return;
    };
    env.start_server();
    // A client must not need another thread, for example to cancel the tasks that use them all.
    let client = ["prlimit", "--nproc=1:1"];
    env.spawn_behind(&client, "client", &["job", "cancel", "all"]);
    assert_eq!(
        env.wait_exit("client"),
        Some(0),
        "{}",
        env.read("client.log")
    );
    for (name, args) in [
        ("second", &["server", "start", "--server-dir=second"][..]),
        ("worker", &["worker", "start"]),
    ] {
        env.spawn_behind(&client, name, args);
        let code = env.wait_exit(name);
        let said = env.read(&format!("{name}.log"));
        assert_eq!(code, Some(1), "{said}");
        assert!(!said.contains("crashed"), "{said}");
        assert!(said.contains("Resource temporarily unavailable"), "{said}");
    }
    wait_for("the server is as before", || {
        let ran = env.hq(&["server", "info"]);
        (ran.code == Some(0)).then_some(()).ok_or(ran.stderr)
    });
}

#[test]
fn a_worker_started_with_nohup_outlives_the_terminal_and_obeys_the_batch_system() {
    let mut env = Env::new();
    env.start_server();
    let worker = env.start_worker_behind(&["nohup"], &["--cpus=1"]);
    signal(worker, "HUP");
    let job = env.submit(&["--", "true"]);
    env.wait_job(&job);
    assert_eq!(env.workers(), ["RUNNING"]);
    // On request, batch systems send this signal some time before the end of an allocation.
    signal(worker, "USR1");
    assert_eq!(
        env.wait_exit("worker1"),
        Some(0),
        "{}",
        env.read("worker1.log")
    );
}

#[test]
fn few_descriptors_and_a_higher_hard_limit_are_enough_for_many_streamed_tasks() {
    let mut env = Env::new();
    env.start_server();
    env.start_worker_behind(&["prlimit", "--nofile=64:128"], &["--cpus=40"]);
    let job = env.submit(&[
        "--array=1-80",
        "--stream=streams",
        "--stderr=e-%{TASK_ID}",
        "--",
        "sh",
        "-c",
        "echo $HQ_TASK_ID",
    ]);
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 80);
    assert_eq!(env.workers(), ["RUNNING"]);
}

#[test]
fn a_task_that_became_another_user_does_not_hold_up_the_end_of_its_worker() {
    let Some(mut env) = Env::of_ordinary_user() else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        return skip("only root can make a setuid program");
    }
    let found = Command::new("sh")
        .args(["-c", "command -v setpriv"])
        .output();
    let found = String::from_utf8(found.expect("a shell").stdout).expect("a path");
    let become_root = env.path("become");
    std::fs::copy(found.trim(), &become_root).expect("room");
    std::fs::set_permissions(&become_root, Permissions::from_mode(0o4755)).expect("it is ours");
    env.start_server();
    let worker = env.start_worker(1);
    let task = [
        "./become",
        "--reuid=0",
        "--regid=0",
        "--clear-groups",
        "sleep",
        "61843",
    ];
    env.submit(&[&["--"], &task[..]].concat());
    let other = wait_for("the task is root", || {
        let pids = processes_with("sleep 61843");
        let is_root = |pid: &&u32| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
            status.is_ok_and(|text| text.contains("Uid:\t0\t0"))
        };
        let found = pids.iter().find(is_root).copied();
        found.ok_or_else(|| env.read_so_far("job-1/0.stderr"))
    });
    let begin = Instant::now();
    signal(worker, "TERM");
    env.wait_exit("worker1");
    let took = begin.elapsed();
    let log = env.read("worker1.log");
    let is_named = log.contains(&format!("cannot be killed: {other} (sleep) of user 0"));
    signal(other, "KILL");
    assert!(is_named, "{log}");
    // It used to wait for eighteen seconds.
    assert!(took < Duration::from_secs(10), "{took:?}");
}

/// Go leaves its module cache in this state.
#[test]
fn a_task_directory_without_write_permission_is_removed() {
    let Some(mut env) = Env::of_ordinary_user() else {
        return;
    };
    env.start_server();
    env.start_worker(1);
    let script =
        "cd $HQ_TASK_DIR && mkdir -p a/b && touch a/b/c && chmod 500 a/b && chmod 0 a && pwd";
    let job = env.submit(&["--task-dir", "--", "bash", "-c", script]);
    env.wait_job(&job);
    let output = env.read(&format!("job-{job}/0.stdout"));
    let dir = Path::new(output.trim());
    wait_for("the directory is gone", || {
        (!dir.exists()).then_some(()).ok_or(output.clone())
    });
    assert!(!env.read("worker1.log").contains("cannot clean up"));
}
