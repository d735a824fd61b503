//! `hq job tail`: shows output over the network while it is written.

use serde_json::json;

use crate::harness::{Env, signal, wait_for};

/// Prints a line, waits for a file, and prints another line.
const TWO_STEPS: &str = "echo begun; while [ ! -e go ]; do sleep 0.01; done; echo ended";

/// Follows a running task, lets it end, and compares the output before and after the end.
fn check_follow(options: &[&str]) {
    let mut env = Env::with_worker(1);
    env.submit(&[options, &["--", "bash", "-c", TWO_STEPS]].concat());
    env.spawn("tail", &["job", "tail", "-f", "1"]);
    wait_for("the first line is shown", || {
        let shown = env.read("tail.log");
        if shown == "begun\n" {
            Ok(())
        } else {
            Err(shown)
        }
    });
    env.write("go", "");
    assert_eq!(env.wait_exit("tail"), Some(0));
    assert_eq!(env.read("tail.log"), "begun\nended\n");
    assert_eq!(env.hq(&["job", "tail", "-n1", "last"]).ok(), "ended\n");
}

#[test]
fn output_in_files_is_shown_live() {
    check_follow(&["--stderr=none"]);
}

#[test]
fn output_in_streams_is_shown_live() {
    check_follow(&["--stream=%{SUBMIT_DIR}/log-%{JOB_ID}"]);
}

#[test]
fn the_last_lines_of_each_task_name_their_task() {
    let env = Env::with_worker(2);
    let script = "seq $((HQ_TASK_ID * 10)) $((HQ_TASK_ID * 10 + 5)); echo trouble >&2; printf open";
    let job = env.submit(&["--array=1-3", "--wait", "--", "bash", "-c", script]);
    let tail = |args: &[&str]| env.hq(&[&["job", "tail"], args].concat());
    assert_eq!(
        tail(&["-n2", &job]).ok(),
        "1.1:0> 15\n1.1:1> trouble\n1.1:0> open\n\
         1.2:0> 25\n1.2:1> trouble\n1.2:0> open\n\
         1.3:0> 35\n1.3:1> trouble\n1.3:0> open\n"
    );
    let one = tail(&["-n3", "1.2"]);
    assert_eq!(
        one.says("trouble").ok(),
        "24\n25\nopen",
        "one task as it is"
    );
    assert_eq!(
        tail(&["--channel=stderr", "1.1,3"]).ok(),
        "1.1:1> trouble\n1.3:1> trouble\n"
    );
    assert_eq!(tail(&["-f", "-n0", &job]).ok(), "", "all have ended");
    let lines = tail(&["-n1", "1.1", "--channel=stdout", "--output-mode=json"]).ok();
    let line: serde_json::Value = serde_json::from_str(&lines).expect("one object");
    assert_eq!(
        line,
        json!({ "channel": "stdout", "instance": 0, "job": 1, "line": "open", "task": 1 })
    );
    tail(&["1.9"])
        .says("Task 9 of job 1 not found")
        .exits_with(1);
    tail(&["7"]).says("Job 7 was not found").exits_with(1);
    tail(&["1.x"]).exits_with(2);
}

#[test]
fn tasks_that_start_later_are_followed_from_their_beginning() {
    let mut env = Env::with_worker(1);
    let script = "while [ ! -e go ]; do sleep 0.01; done; seq 1 20 | sed \"s/^/$HQ_TASK_ID-/\"";
    env.submit(&["--array=1-40", "--", "bash", "-c", script]);
    env.spawn("tail", &["job", "tail", "-f", "-n99", "last"]);
    env.spawn("one", &["job", "tail", "-f", "-n99", "last.39"]);
    env.write("go", "");
    assert_eq!(env.wait_exit("tail"), Some(0));
    assert_eq!(env.wait_exit("one"), Some(0));
    let shown = env.read("tail.log");
    for task in 1..=40 {
        let prefix = format!("1.{task}:0> ");
        let of_task = shown.lines().filter_map(|line| line.strip_prefix(&prefix));
        let expected: Vec<String> = (1..=20).map(|line| format!("{task}-{line}")).collect();
        assert_eq!(of_task.collect::<Vec<_>>(), expected, "task {task}");
    }
    let one: String = (1..=20).map(|line| format!("39-{line}\n")).collect();
    assert_eq!(env.read("one.log"), one);
}

#[test]
fn a_task_that_runs_again_is_shown_again() {
    let mut env = Env::with_worker(1);
    let script = "echo instance $HQ_INSTANCE_ID; [ $HQ_INSTANCE_ID = 1 ] || sleep 1000";
    env.submit(&["--", "bash", "-c", script]);
    env.wait_running("1", 1);
    env.spawn("tail", &["job", "tail", "-f", "1"]);
    wait_for("the first instance is shown", || {
        let shown = env.read("tail.log");
        if shown == "instance 0\n" {
            Ok(())
        } else {
            Err(shown)
        }
    });
    env.start_worker(1);
    env.hq(&["worker", "stop", "1"]).ok();
    assert_eq!(env.wait_exit("tail"), Some(0));
    let shown = env.read("tail.log");
    assert_eq!(
        shown.matches("runs again (instance 1)").count(),
        1,
        "{shown}"
    );
    assert!(shown.ends_with("instance 1\n"), "{shown}");
}

#[test]
fn following_goes_on_after_a_restart_of_the_server() {
    let mut env = Env::with_worker(2);
    let script = "echo begun; until [ -e go-$HQ_TASK_ID ]; do sleep 0.01; done; echo ended";
    env.submit(&["--array=1-3", "--", "bash", "-c", script]);
    env.wait_running("1", 2);
    env.spawn("tail", &["job", "tail", "-f", "1"]);
    let shown = |env: &Env| {
        let log = env.read("tail.log");
        let lines = log.lines().filter(|line| line.contains(":0> "));
        let mut lines: Vec<String> = lines.map(str::to_owned).collect();
        lines.sort();
        lines
    };
    wait_for("the first lines are shown", || {
        let lines = shown(&env);
        let begun = ["1.1:0> begun", "1.2:0> begun"];
        if lines == begun {
            Ok(())
        } else {
            Err(lines.join("\n"))
        }
    });
    env.hq(&["server", "stop", "--keep-workers"]).ok();
    assert_eq!(env.wait_exit("server"), Some(0));
    // One task ends while there is no server, one ends after that, and one starts then.
    env.write("go-1", "");
    env.start_server_with(&["--resume"]);
    wait_for("the third task has begun", || {
        let lines = shown(&env);
        if lines.len() == 4 {
            Ok(())
        } else {
            Err(lines.join("\n"))
        }
    });
    env.write("go-2", "");
    env.write("go-3", "");
    assert_eq!(env.wait_exit("tail"), Some(0), "{}", env.read("tail.log"));
    let expected =
        (1..=3).flat_map(|task| ["begun", "ended"].map(|word| format!("1.{task}:0> {word}")));
    assert_eq!(shown(&env), expected.collect::<Vec<_>>());
    assert_eq!(env.read("tail.log").matches("Lost the server").count(), 1);
}

#[test]
fn output_outlives_its_worker() {
    let mut env = Env::new();
    env.start_server();
    let worker = env.start_worker(1);
    env.submit(&["--wait", "--", "echo", "in a file"]);
    env.submit(&["--stream=log", "--wait", "--", "echo", "in a stream"]);
    signal(worker, "KILL");
    wait_for("the worker is lost", || {
        let workers = env.workers();
        if workers == ["CONNECTION LOST"] {
            Ok(())
        } else {
            Err(format!("{workers:?}"))
        }
    });
    assert_eq!(env.hq(&["job", "tail", "1"]).ok(), "in a file\n");
    assert_eq!(env.hq(&["job", "tail", "-f", "2"]).ok(), "in a stream\n");
    std::fs::remove_dir_all(env.path("log")).expect("removed");
    env.hq(&["job", "tail", "2"])
        .says("its worker is gone")
        .ok();
}
