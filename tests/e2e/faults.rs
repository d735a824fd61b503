//! Bad input and broken peers cause clear errors and no further damage.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use hq_core::worker_config::SILENT_PERIODS_MAX;

use crate::harness::{Env, processes_with, signal, wait_for};

#[test]
fn tasks_of_a_killed_worker_run_elsewhere() {
    let mut env = Env::with_worker(4);
    let script = "echo $HQ_TASK_ID $HQ_INSTANCE_ID >> starts; setsid sleep 98771 & sleep 98772 & \
                  until [ -e go ]; do sleep 0.05; done";
    let job = env.submit(&[
        "--array=1-4",
        "--stdout=none",
        "--stderr=none",
        "--",
        "bash",
        "-c",
        script,
    ]);
    env.wait_lines("starts", 4);
    env.wait_running(&job, 4);
    let first_worker = env.json(&["worker", "info", "1"]);
    let pid = worker_pid(&env, "1");
    assert_eq!(first_worker[0]["id"], 1);
    signal(pid, "KILL");
    wait_for("nothing of the killed worker is alive", || {
        let left = [processes_with("sleep 98771"), processes_with("sleep 98772")].concat();
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("{left:?}"))
        }
    });
    wait_for("the worker is listed as lost", || {
        let states = env.workers();
        if states == ["CONNECTION LOST"] {
            Ok(())
        } else {
            Err(format!("{states:?}"))
        }
    });
    env.start_worker(4);
    let starts = env.wait_lines("starts", 8);
    let mut second: Vec<&str> = starts.lines().skip(4).collect();
    second.sort_unstable();
    assert_eq!(second, ["1 1", "2 1", "3 1", "4 1"]);
    env.write("go", "");
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 4);
}

#[test]
fn what_tasks_leave_behind_is_said_once_for_a_submit() {
    let env = Env::with_worker(2);
    let left = format!("sleep {}", 7_000_000 + std::process::id());
    let job = env.submit(&["--array=1-5", "--", "sh", "-c", &format!("{left} &")]);
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 5);
    wait_for("nothing is left", || {
        let left = processes_with(&left);
        left.is_empty()
            .then_some(())
            .ok_or_else(|| format!("{left:?}"))
    });
    let log = env.read("worker1.log");
    assert_eq!(log.matches("left processes behind").count(), 1, "{log}");
}

#[test]
fn what_outlives_a_worker_and_its_front_is_ended_by_the_next_worker() {
    let mut env = Env::with_worker(1);
    // The shell dies with the worker, but its child does not.
    let script = "echo >> starts; sleep 98773; true";
    env.submit(&["--stdout=none", "--stderr=none", "--", "bash", "-c", script]);
    env.wait_lines("starts", 1);
    let survivors = || processes_with("sleep 98773");
    wait_for("the shell and its child run", || {
        let both = survivors();
        (both.len() == 2)
            .then_some(())
            .ok_or_else(|| format!("{both:?}"))
    });
    let first = survivors();
    let front = worker_pid(&env, "1");
    let children = std::fs::read_to_string(format!("/proc/{front}/task/{front}/children"));
    let worker = children.expect("the front").trim().parse().expect("a pid");
    // Both are suspended first, so that neither has time to kill the processes that the other one
    // leaves.
    for name in ["STOP", "KILL"] {
        signal(worker, name);
        signal(front, name);
    }
    wait_for("the worker is listed as lost", || {
        let states = env.workers();
        if states == ["CONNECTION LOST"] {
            Ok(())
        } else {
            Err(format!("{states:?}"))
        }
    });
    // Otherwise the child lives on. A worker of another test may already have killed it.
    env.start_worker_with(&["--cpus=1"]);
    // The task runs again, in other processes.
    wait_for("the leftover is ended", || {
        let now = survivors();
        if first.iter().any(|pid| now.contains(pid)) {
            Err(format!("{now:?}"))
        } else {
            Ok(())
        }
    });
}

/// Returns the pid of the worker itself, not of its front process.
fn worker_pid(env: &Env, id: &str) -> u32 {
    let table = env.hq(&["worker", "info", id]).ok();
    let row = table
        .lines()
        .find(|line| line.contains("Process pid"))
        .expect("pid row");
    let pid = row.split('|').nth(2).expect("value");
    pid.trim().parse().expect("a pid")
}

#[test]
fn nothing_of_200_tasks_survives_a_killed_worker() {
    const TASKS: usize = 200;
    /// The promised limit. It is only checked in a watched run, which has the machine to itself.
    const LIMIT: Duration = Duration::from_secs(2);
    let repeats = std::env::var("HQ_TEST_REPEATS").ok();
    let repeats = repeats.map(|text| text.parse::<u32>().expect("a number"));
    let mut env = Env::new();
    env.start_server();
    let marker = format!("sleep {}", 1_000_000 + std::process::id());
    // Every other task leaves two processes in separate sessions, whose parents are gone.
    let script = format!(
        "[ $((HQ_TASK_ID % 2)) = 0 ] && (setsid sh -c 'setsid {marker} & exec {marker}' &); exec {marker}"
    );
    for round in 1..=repeats.unwrap_or(1) {
        env.start_worker(u32::try_from(TASKS).expect("small"));
        let array = format!("--array=1-{TASKS}");
        let job = env.submit(&[
            &array,
            "--stdout=none",
            "--stderr=none",
            "--",
            "sh",
            "-c",
            &script,
        ]);
        wait_for("all processes of the tasks run", || {
            let count = processes_with(&marker).len();
            if count >= TASKS / 2 + TASKS / 2 * 3 {
                Ok(())
            } else {
                Err(format!("{count}"))
            }
        });
        env.wait_running(&job, u32::try_from(TASKS).expect("small"));
        let pid = worker_pid(&env, &round.to_string());
        let killed_at = Instant::now();
        signal(pid, "KILL");
        wait_for("nothing of the killed worker is alive", || {
            let left = processes_with(&marker).len();
            if left == 0 {
                Ok(())
            } else {
                Err(format!("{left}"))
            }
        });
        let took = killed_at.elapsed();
        println!("round {round}: nothing survived {took:?} after the worker");
        assert!(repeats.is_none() || took < LIMIT, "it took {took:?}");
        env.hq(&["job", "cancel", &job]).ok();
    }
}

#[test]
fn the_server_survives_everything_in_one_run() {
    let mut env = Env::with_worker(2);
    let info = env.json(&["server", "info"]);
    let ports = ["client_port", "worker_port"]
        .map(|key| u16::try_from(info[key].as_u64().expect("a port")).expect("a port"));
    for port in ports {
        for garbage in [
            &b"GET / HTTP/1.0\r\n\r\n"[..],
            &[0xff; 4096],
            &[0, 0, 0, 0],
            &[],
        ] {
            let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the port is open");
            // The server may close the connection while we are still writing.
            let _ = stream.write_all(garbage);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let mut answer = Vec::new();
            let _ = stream.read_to_end(&mut answer);
            assert!(answer.len() < 1_024, "short answers to strangers");
        }
    }
    // Try a wrong key.
    let access = std::fs::read_to_string(env.server_dir().join("hq-current/access.json"));
    let access: serde_json::Value =
        serde_json::from_str(&access.expect("access file")).expect("JSON");
    let mut wrong = access.clone();
    for plane in ["client", "worker"] {
        wrong[plane]["secret_key"] = serde_json::Value::String("00".repeat(32));
    }
    std::fs::create_dir(env.path("wrong")).expect("directory");
    let path = env.write("wrong/access.json", wrong.to_string());
    std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o400))
        .expect("mode");
    let dir = format!("--server-dir={}", env.path("wrong").display());
    env.hq(&["job", "list", &dir]).exits_with(1);
    // Kill a client while it waits.
    env.submit(&["--", "bash", "-c", "until [ -e go ]; do sleep 0.01; done"]);
    let waiting = env.spawn("waiting", &["job", "wait", "1"]);
    signal(waiting, "KILL");
    env.wait_exit("waiting");
    // Start a second server in the same directory.
    env.hq(&["server", "start"])
        .exits_with(1)
        .says("is already online, please stop it first");
    env.write("go", "");
    env.wait_job("1");
    let job = env.submit(&["--array=1-20", "--wait", "--", "true"]);
    assert_eq!(env.stats(&job)["finished"], 20);
}

#[test]
fn clients_without_a_server_are_told_what_to_do() {
    let env = Env::new();
    env.hq(&["job", "list"])
        .exits_with(1)
        .says("Invalid server directory")
        .says("is not a directory");
    std::fs::create_dir(env.server_dir()).expect("directory");
    env.hq(&["job", "list"])
        .exits_with(1)
        .says("No running instance of HQ found at")
        .says("Try to start the server: `hq server start --server-dir");
    let json = env.hq(&["job", "list", "--output-mode=json"]).exits_with(1);
    let error: serde_json::Value = serde_json::from_str(&json.stdout).expect("an error object");
    assert!(
        error["error"]
            .as_str()
            .is_some_and(|text| text.contains("No running instance"))
    );
    env.hq(&["server", "wait", "--timeout=1s"])
        .exits_with(1)
        .says("Could not connect to server");
}

#[test]
fn bad_arguments_are_refused_with_their_reason() {
    let env = Env::with_worker(1);
    for (args, text) in [
        (
            &["submit", "--array=3-1", "--", "true"][..],
            "invalid value '3-1' for '--array <IDS>'",
        ),
        (
            &["submit", "--array=0-4294967295", "--", "true"],
            "Invalid range: it has more than 4294967295 ids",
        ),
        (&["submit", "--array=1,1-3", "--", "true"], "Ranges overlap"),
        (&["submit", "--array=x", "--", "true"], "Unexpected token"),
        (
            &["submit", "--cpus=0", "--", "true"],
            "Zero resources cannot be requested",
        ),
        (
            &["submit", "--crash-limit=0", "--", "true"],
            "Crash limit cannot be 0",
        ),
        (
            &["submit", "--wait", "--progress", "--", "true"],
            "cannot be used with",
        ),
        (&["submit"], "required arguments were not provided"),
        (&["job", "cancel", "1", "2"], "unexpected argument"),
        (&["nonsense"], "unrecognized subcommand"),
    ] {
        env.hq(args).exits_with(2).says(text);
    }
    env.hq(&["submit", "--each-line=nope", "--", "true"])
        .exits_with(1)
        .says("No such file");
    env.write("object.json", "{}");
    env.hq(&["submit", "--from-json=object.json", "--", "true"])
        .exits_with(1)
        .says("has to be an array");
    env.hq(&["submit", "--cwd=%{CWD}", "--", "true"])
        .exits_with(1)
        .says("placeholder");
    assert_eq!(env.json(&["job", "list", "--all"]), serde_json::json!([]));
}

/// Waits until all workers are in these states, ordered by id.
fn wait_states(env: &Env, what: &str, expected: &[&str]) {
    wait_for(what, || {
        let states = env.workers();
        (states == expected)
            .then_some(())
            .ok_or(format!("{states:?}"))
    });
}

/// The user suspends the front process, but the worker below it continues.
#[test]
fn a_stopped_worker_is_declared_lost_by_heartbeat() {
    let mut env = Env::new();
    env.start_server();
    let heartbeat = Duration::from_secs(1);
    let option = format!("--heartbeat={}s", heartbeat.as_secs());
    let pid = env.start_worker_with(&["--cpus=1", &option]);
    let script = "echo $HQ_INSTANCE_ID >> starts; until test -e go; do sleep 0.05; done";
    let job = env.submit(&["--", "bash", "-c", script]);
    env.wait_lines("starts", 1);
    signal(pid, "STOP");
    wait_states(&env, "the heartbeat is missed", &["HEARTBEAT LOST"]);

    // While it is suspended, it does not come back, neither as itself nor as another worker.
    // Meanwhile another worker runs tasks for one and a half times the silence limit.
    let task = Duration::from_millis(100);
    let silence_max = heartbeat * SILENT_PERIODS_MAX;
    let count = (silence_max * 3 / 2).as_millis().div_ceil(task.as_millis());
    env.start_worker(1);
    env.wait_lines("starts", 2);
    env.write("go", "");
    env.wait_job(&job);
    let array = format!("--array=1-{count}");
    let sleep = task.as_secs_f64().to_string();
    let others = env.submit(&[&array, "--", "sleep", &sleep]);
    env.wait_job(&others);
    assert_eq!(env.workers(), ["HEARTBEAT LOST", "RUNNING"]);
    assert_eq!(env.read("starts"), "0\n1\n", "started once on each worker");

    signal(pid, "CONT");
    let back = ["HEARTBEAT LOST", "RUNNING", "RUNNING"];
    wait_states(&env, "it registers once", &back);
    assert_eq!(env.stats(&job)["finished"], 1);
}

#[test]
fn crash_limit_ends_a_task_that_kills_its_workers() {
    let mut env = Env::new();
    env.start_server();
    let job = env.submit(&[
        "--crash-limit=2",
        "--",
        "bash",
        "-c",
        "echo x >> starts; sleep 98781",
    ]);
    for start in 1..=2 {
        let pid = env.start_worker(1);
        env.wait_lines("starts", start);
        env.wait_running(&job, 1);
        signal(pid, "KILL");
        env.wait_exit(&format!("worker{start}"));
    }
    env.wait_job(&job);
    let error = env.tasks(&job)[0]["error"].to_string();
    assert!(
        error.contains("the task has occurred 2 times in this situation"),
        "{error}"
    );
}

/// If a task ends its worker before its start is reported, the task still stops at its crash limit.
#[test]
fn a_task_that_ends_its_worker_at_once_takes_no_more_workers_than_its_limit() {
    let mut env = Env::new();
    env.start_server();
    for _ in 0..6 {
        env.start_worker_with(&["--cpus=1", "--heartbeat=500ms"]);
    }
    let mut lost = 0;
    for (options, limit) in [(&["--crash-limit=1"][..], 1), (&[], 5)] {
        let kill = ["--", "bash", "-c", "kill -9 $PPID"];
        let job = env.submit(&[options, &kill].concat());
        env.wait_job(&job);
        lost += limit;
        let error = env.tasks(&job)[0]["error"].to_string();
        assert!(
            error.contains(&format!("has occurred {limit} times")),
            "{error}"
        );
        let states = env.workers();
        let gone = states.iter().filter(|state| *state == "CONNECTION LOST");
        assert_eq!(gone.count(), lost, "{states:?}");
    }
}

/// This happens after a live migration. The deadline of a worker may fall on any moment of the
/// suspension, even the last.
#[test]
fn a_server_that_stands_still_for_a_moment_loses_no_worker() {
    const HEARTBEAT: Duration = Duration::from_millis(500);
    let mut env = Env::new();
    let server = env.start_server();
    for _ in 0..6 {
        env.start_worker_with(&["--cpus=1", "--heartbeat=500ms"]);
    }
    for tenth in [13, 15, 17, 18, 19] {
        // The last heartbeats have different ages, up to almost a period.
        std::thread::sleep(HEARTBEAT * 9 / 10);
        signal(server, "STOP");
        // This is how long the server is suspended.
        std::thread::sleep(HEARTBEAT * tenth / 10);
        signal(server, "CONT");
        assert_eq!(env.workers(), ["RUNNING"; 6]);
    }
}
