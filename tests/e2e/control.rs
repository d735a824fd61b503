//! Tests waiting, canceling, listing and stopping.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use crate::durable::kill_server;
use crate::harness::{Env, processes_with, signal, wait_for};

#[test]
fn cancel_ends_tasks_and_their_children() {
    let env = Env::with_worker(2);
    let script = "sleep 98761 & setsid sleep 98762 & wait";
    let job = env.submit(&["--array=1-10", "--", "bash", "-c", script]);
    wait_for("two tasks run", || {
        let count = processes_with("sleep 98762").len();
        if count >= 2 {
            Ok(())
        } else {
            Err(format!("{count}"))
        }
    });
    env.hq(&["job", "cancel", &job, "--reason=enough"])
        .says(&format!(
            "Job {job} canceled (10 tasks canceled, 0 tasks already finished)"
        ))
        .ok();
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["canceled"], 10);
    wait_for("nothing of the tasks is alive", || {
        let left = [processes_with("sleep 98761"), processes_with("sleep 98762")].concat();
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("{left:?}"))
        }
    });
    let list = env.json(&["job", "list", "--all"]);
    assert_eq!(list[0]["cancel_reason"], "enough");
    env.hq(&["job", "cancel", &job])
        .says("failed; all tasks are already finished")
        .ok();
    env.hq(&["job", "cancel", "99"])
        .says("Canceling job 99 failed; job not found")
        .exits_with(1);
    let after = env.submit(&["--wait", "--", "true"]);
    assert_eq!(env.stats(&after)["finished"], 1, "the slots are free again");
}

#[test]
fn single_tasks_are_canceled_and_the_rest_goes_on() {
    let env = Env::with_worker(1);
    let script = r#"[ $HQ_TASK_ID != 1 ] || { echo here > running; sleep 98763 & wait; }"#;
    let job = env.submit(&["--array=1-2000", "--", "bash", "-c", script]);
    env.wait_lines("running", 1);
    env.hq(&["task", "cancel", &format!("{job}.2-1500")])
        .says(&format!("Canceled tasks 2-1500 of job {job}"))
        .ok();
    // One task runs, one was canceled before, one waits, and one does not exist.
    env.hq(&["task", "cancel", "last", "1501,1,7,9999"])
        .says(&format!("Canceled tasks 1,1501 of job {job}"))
        .says(&format!(
            "Canceling task 7 of job {job} failed; already finished"
        ))
        .says("Canceling task 9999 failed; task not found")
        .says(&format!("job {job} has these tasks: 1-2000"))
        .exits_with(1);
    env.wait_job(&job);
    let stats = env.stats(&job);
    assert_eq!(
        (&stats["canceled"], &stats["finished"]),
        (&json!(1501), &json!(499))
    );
    assert!(processes_with("sleep 98763").is_empty());
    env.hq(&["task", "cancel", "99.1"])
        .says("Canceling tasks of job 99 failed; job not found")
        .exits_with(1);
    env.hq(&["task", "cancel", &job])
        .says("the ids of the tasks are missing")
        .exits_with(2);
}

#[test]
fn signals_reach_running_tasks_and_the_others_are_named() {
    let env = Env::with_worker(2);
    // A child in the task's process group gets the signal, too.
    let child = "trap 'echo child >> got; exit' USR1; while :; do sleep 0.1; done";
    let script = format!(
        r#"[ $HQ_TASK_ID != 1 ] || exit 0; trap 'echo main >> got' USR1; bash -c "{child}" & echo up >> up; wait; wait"#
    );
    let job = env.submit(&["--array=1-4", "--", "bash", "-c", &script]);
    env.wait_lines("up", 2);
    let finished = |count: u64| match env.stats(&job)["finished"].as_u64() {
        Some(found) if found == count => Ok(()),
        found => Err(format!("{found:?}")),
    };
    env.wait_for("the first task ends", || finished(1));
    env.hq(&["task", "signal", &format!("{job}.3,1-2,4-9"), "-s", "usr1"])
        .says(&format!("Sent SIGUSR1 to tasks 2-3 of job {job}"))
        .says(&format!(
            "Signaling task 1 of job {job} failed; no longer running"
        ))
        .says(&format!(
            "Signaling task 4 of job {job} failed; not running yet"
        ))
        .says("Signaling task 9 failed; task not found")
        .exits_with(1);
    env.wait_lines("got", 4);
    env.wait_for("the signaled tasks end", || finished(3));
    let name = format!("{job}.4");
    env.wait_lines("up", 3);
    env.hq(&["task", "signal", &name, "--signal", "KILL"]).ok();
    env.wait_job(&job);
    env.hq(&["task", "info", &name]).says("SIGKILL").ok();
    env.hq(&["task", "signal", &name, "-s", "USR1"])
        .says("no longer running")
        .exits_with(1);
    env.hq(&["task", "signal", &job, "-s", "USR1"])
        .says(&format!("`hq job task-ids {job} --filter running`"))
        .exits_with(2);
    env.hq(&["task", "signal", &name, "-s", "FOO"])
        .says("found `FOO`")
        .exits_with(2);
    env.hq(&["task", "signal", "99.1", "-s", "USR1"])
        .says("Signaling tasks of job 99 failed; job not found")
        .exits_with(1);
}

#[test]
fn held_tasks_wait_for_their_release_also_after_a_restart() {
    let mut env = Env::new();
    let server = env.start_server_with(&["--journal", "journal"]);
    let script = "echo $HQ_TASK_ID >> ran";
    let job = env.submit(&["--array=1-6", "--", "bash", "-c", script]);
    env.hq(&["task", "hold", &format!("{job}.2,4-5,9")])
        .says(&format!("Held tasks 2,4-5 of job {job}"))
        .says("Holding task 9 failed; task not found")
        .exits_with(1);
    env.hq(&["task", "release", &job, "3-4"])
        .says(&format!("Released task 4 of job {job}"))
        .says(&format!("Releasing task 3 of job {job} failed; not held"))
        .ok();
    let other = env.submit(&["--", "bash", "-c", "echo other >> ran"]);
    env.hq(&["job", "hold", &other])
        .says(&format!("Job {other} held: 1 task will wait"))
        .ok();
    kill_server(&mut env, server);
    env.start_server_with(&["--journal", "journal"]);
    env.start_worker(2);
    env.wait_lines("ran", 4);
    env.hq(&["job", "info", "-v", &job])
        .says("2 tasks: 2,5")
        .ok();
    env.hq(&["task", "explain", &format!("{job}.5")])
        .says("because a user holds it; `hq task release 1.5`")
        .ok();
    env.hq(&["job", "release", "all"])
        .says(&format!("Job {job} released: 2 tasks"))
        .says(&format!("Job {other} released: 1 task"))
        .ok();
    env.wait_job(&job);
    env.wait_job(&other);
    env.hq(&["task", "hold", &format!("{job}.5")])
        .says("already ended")
        .exits_with(1);
    env.hq(&["job", "hold", &job])
        .says(&format!("Holding job {job} failed; it has ended"))
        .exits_with(1);
    env.hq(&["job", "release", "99"])
        .says("Releasing job 99 failed; job not found")
        .exits_with(1);
}

#[test]
fn changed_tasks_start_and_end_as_changed_also_after_a_kill_of_the_server() {
    let mut env = Env::new();
    let server = env.start_server_with(&["--journal", "journal"]);
    env.start_worker(2);
    let script = "echo $HQ_TASK_ID $HQ_CPUS >> ran; while [ ! -e go ]; do sleep 0.05; done";
    let job = env.submit(&["--array=1-6", "--", "bash", "-c", script]);
    env.wait_lines("ran", 2);
    env.hq(&["job", "set", &job, "--tasks=2-4,9", "--time-limit=100ms"])
        .says(&format!("Job {job} changed: 3 tasks"))
        .says("Changing task 9 failed; task not found")
        .exits_with(1);
    env.wait_lines("ran", 3);
    env.hq(&["worker", "stop", "all"]).ok();
    let rest = ["--tasks=5-6", "--cpus=2", "--priority=3"];
    env.hq(&[&["job", "set", &job], &rest[..]].concat()).ok();
    env.hq(&["job", "set", &job, "--name=other"])
        .says(&format!("Job {job} changed"))
        .ok();
    kill_server(&mut env, server);
    env.start_server_with(&["--journal", "journal"]);
    env.hq(&["job", "info", "-v", &job])
        .says("| Name                 | other")
        .says("tasks 5-6: priority 3, cpus 2 compact")
        .ok();
    std::fs::write(env.path("go"), "").expect("writable");
    env.start_worker(2);
    env.wait_job(&job);
    let ran = std::fs::read_to_string(env.path("ran")).expect("it exists");
    let later: Vec<&str> = ran
        .lines()
        .filter(|line| line.starts_with(['5', '6']))
        .collect();
    assert_eq!(later, ["5 0,1", "6 0,1"]);
    env.hq(&["journal", "export", "journal"])
        .says("{\"after\":{\"name\":\"other\"},\"before\":[{\"name\":\"bash\"}]")
        .ok();
    env.hq(&["job", "set", &job, "--priority=1"])
        .says(&format!("Changing job {job} failed; it has ended"))
        .exits_with(1);
    env.hq(&["job", "set", &job])
        .says("say what to change")
        .exits_with(2);
}

#[test]
fn no_more_tasks_run_than_limits_allow_also_through_kills() {
    let mut env = Env::new();
    let server = env.start_server_with(&["--journal", "journal"]);
    env.hq(&["submit", "--limit", "db", "--", "true"])
        .says("There is no limit \"db\"; no limit is set")
        .exits_with(1);
    env.hq(&["limit", "set", "db", "2"])
        .says("Limit db is 2")
        .ok();
    // Each task holds one of two locks while it runs, and fails if both are taken.
    let script =
        "for lock in a b; do exec 9> $lock; flock -n 9 && { sleep 0.02; exit; }; done; exit 1";
    let job = env.submit(&["--limit=db", "--array=1-60", "--", "bash", "-c", script]);
    // The places of its tasks stay taken until its server has been silent for too long.
    let worker = env.start_worker_with(&["--cpus=4", "--heartbeat=500ms"]);
    env.start_worker(4);
    wait_for(
        "some tasks have finished",
        || match env.stats(&job)["finished"].as_u64().unwrap_or(0) {
            10.. => Ok(()),
            count => Err(format!("{count}")),
        },
    );
    env.hq(&["limit", "list"]).says("| db   | 2 ").ok();
    env.hq(&["limit", "remove", "db"])
        .says("unfinished tasks of job 1 count toward limit \"db\"")
        .exits_with(1);
    signal(worker, "KILL");
    kill_server(&mut env, server);
    env.start_server_with(&["--journal", "journal"]);
    env.wait_job(&job);
    assert_eq!(
        env.stats(&job)["finished"],
        60,
        "no task found both locks taken"
    );
    env.hq(&["limit", "remove", "db"])
        .says("Limit db removed")
        .ok();
}

#[test]
fn limits_that_tasks_wait_for_are_named() {
    let env = Env::with_worker(4);
    env.hq(&["limit", "set", "db", "2"]).ok();
    let job = env.submit(&["--limit=db=2", "--array=1-3%2", "--", "sleep", "600"]);
    let waits = format!("limit db: 2 of 2 in use by job {job} (2); a task counts 2");
    wait_for("tasks wait for the limit", || {
        let info = env.hq(&["job", "info", "-v", &job]).ok();
        let is_told = info.contains(&format!("| waits for {waits} "));
        is_told.then_some(()).ok_or(info)
    });
    env.hq(&["job", "info", "-v", &job])
        .says("| Limits               | --limit db=2 ")
        .says("| --max-running 2 ")
        .ok();
    env.hq(&["status"])
        .says(&format!("Limits    2 tasks wait for {waits}"))
        .ok();
    let plain = env.hq(&["job", "info", &job]).ok();
    assert!(!plain.contains("Limits"), "its rows are fixed: {plain}");
    let info = env.json(&["job", "info", "-v", &job]);
    assert_eq!(info[0]["limits"][0]["name"], "db");
    assert_eq!(info[0]["max_running"], 2);
    assert_eq!(info[0]["waits"][0], *waits);
}

#[test]
fn an_array_limits_running_tasks_as_in_slurm() {
    let env = Env::with_worker(4);
    env.write("a.sh", "#!/bin/bash\n#HQ --array 1-9%3\nsleep 600\n");
    for (args, limit) in [
        (&["--array=1-9%2", "--", "sleep", "600"][..], Some(2)),
        (&["a.sh"][..], Some(3)),
        (&["--max-running=1", "a.sh"][..], Some(1)),
        (&["--array=1-5%4", "a.sh"][..], Some(4)),
        (&["--array=1-5", "a.sh"][..], None),
    ] {
        let job = env.submit(args);
        let info = env.json(&["job", "info", "-v", &job]);
        assert_eq!(info[0]["max_running"].as_u64(), limit, "{args:?}");
    }
    env.hq(&["submit", "--array=1-9%2", "--max-running=2", "--", "true"])
        .says("`%2` in --array means --max-running 2")
        .exits_with(1);
    env.hq(&["job", "cancel", "1-2%2"])
        .says("only in --array of a submit")
        .exits_with(2);
}

#[test]
fn all_limits_are_removed_that_can_be() {
    let env = Env::with_worker(1);
    for name in ["a", "b", "c"] {
        env.hq(&["limit", "set", name, "1"]).ok();
    }
    env.submit(&["--limit=b", "--", "sleep", "600"]);
    env.hq(&["limit", "remove", "a", "no", "b", "c"])
        .says("Limit a removed")
        .says("There is no limit \"no\"")
        .says("1 unfinished tasks of job 1 count toward limit \"b\"")
        .says("Limit c removed")
        .exits_with(1);
    let left = env.hq(&["limit", "list", "--output-mode=quiet"]).ok();
    assert_eq!(left, "b 1\n");
}

#[test]
fn max_fails_aborts_the_rest() {
    let env = Env::with_worker(1);
    let job = env.submit(&[
        "--array=0-99",
        "--max-fails=2",
        "--wait",
        "--stdout=none",
        "--stderr=none",
        "--",
        "false",
    ]);
    let stats = env.stats(&job);
    assert!(
        stats["failed"].as_u64() >= Some(3) && stats["aborted"].as_u64() > Some(0),
        "{stats}"
    );
}

#[test]
fn open_jobs_take_submits_until_closed() {
    let env = Env::with_worker(2);
    let job = env
        .hq(&["job", "open", "--name=sweep", "--output-mode=quiet"])
        .ok();
    let job = job.trim();
    let attach = format!("--job={job}");
    env.submit(&[&attach, "--array=2-3", "--", "true"]);
    env.submit(&[&attach, "--", "true"]);
    env.hq(&["submit", &attach, "--array=3", "--", "true"])
        .exits_with(1)
        .says(&format!("Task 3 already exists in job {job}."));
    env.hq(&["job", "wait", "--without-close", job]).ok();
    assert_eq!(env.hq(&["job", "task-ids", job]).ok(), "2-4\n");
    env.hq(&["job", "list"])
        .says(&format!("*{job}"))
        .says("* = Open jobs")
        .ok();
    env.hq(&["job", "close", job])
        .says(&format!("Job {job} closed"))
        .ok();
    env.wait_job(job);
    env.hq(&["submit", &attach, "--", "true"])
        .exits_with(1)
        .says(&format!("Job {job} is not opened."));
    env.hq(&["submit", "--job=77", "--", "true"])
        .exits_with(1)
        .says("Job 77 not found.");
}

#[test]
fn lists_and_summaries_agree() {
    let env = Env::with_worker(2);
    env.submit(&["--wait", "--", "true"]);
    env.submit(&["--wait", "--", "false"]);
    env.submit(&["--cpus=100", "--", "true"]);
    let quiet = env
        .hq(&["job", "list", "--all", "--output-mode=quiet"])
        .ok();
    assert_eq!(quiet, "1 FINISHED\n2 FAILED\n3 WAITING\n");
    let summary = env.json(&["job", "summary"]);
    assert_eq!(summary["Finished"], 1);
    assert_eq!(summary["Failed"], 1);
    assert_eq!(summary["Waiting"], 1);
    env.hq(&["job", "list"])
        .says("There are 3 jobs in total. Use `--all` to display all jobs.")
        .ok();
    env.hq(&["task", "explain", "3", "0"])
        .says("There is no worker where the task can run.")
        .ok();
    env.hq(&["job", "info", "42"])
        .says("Job 42 not found")
        .exits_with(1);
    assert_eq!(env.json(&["job", "info", "42"]), json!([]));
    env.hq(&["job", "forget", "all"])
        .says("2 jobs were forgotten")
        .ok();
    assert_eq!(
        env.hq(&["job", "list", "--all", "--output-mode=quiet"])
            .ok(),
        "3 WAITING\n"
    );
}

#[test]
fn progress_shows_counts_and_ends() {
    let env = Env::with_worker(2);
    let ran = env
        .hq(&["submit", "--array=1-4", "--progress", "--", "true"])
        .exits_with(0);
    assert!(
        ran.stdout.contains("1/1 jobs, 4/4 tasks") && ran.stdout.contains("4 FINISHED"),
        "{}",
        ran.stdout
    );
    let ran = env.hq(&["job", "progress", "1"]).exits_with(0);
    assert!(
        ran.stderr.contains("There are no jobs to wait for") || ran.stdout.contains("1/1 jobs"),
        "{}",
        ran.stderr
    );
}

#[test]
fn progress_tells_that_nobody_works() {
    let mut env = Env::new();
    env.start_server();
    env.spawn("client", &["submit", "--progress", "--", "true"]);
    wait_for("a word about workers", || {
        let log = env.read("client.log");
        let is_there = log.contains("No worker is connected");
        is_there.then_some(()).ok_or(log)
    });
    assert!(
        !env.read("client.log").contains('\x1b'),
        "{}",
        env.read("client.log")
    );
    env.start_worker(1);
    assert_eq!(env.wait_exit("client"), Some(0));
    let ran = env.hq(&["submit", "--progress", "--", "true"]).ok();
    assert!(!ran.contains("No worker"), "{ran}");
}

#[test]
fn workers_stop_on_request_and_give_tasks_back() {
    let mut env = Env::with_worker(1);
    let job = env.submit(&[
        "--",
        "bash",
        "-c",
        "echo $HQ_INSTANCE_ID >> starts; until [ -e go ]; do sleep 0.01; done",
    ]);
    env.wait_lines("starts", 1);
    env.hq(&["worker", "stop", "1"])
        .says("Worker 1 stopped")
        .ok();
    assert_eq!(env.wait_exit("worker1"), Some(0));
    wait_for("the worker is listed as stopped", || {
        let states = env.workers();
        if states == ["STOPPED"] {
            Ok(())
        } else {
            Err(format!("{states:?}"))
        }
    });
    env.hq(&["worker", "stop", "1-2"])
        .says("Stopping worker 1 failed; worker is already stopped")
        .says("Stopping worker 2 failed; worker not found")
        .exits_with(1);
    env.start_worker(1);
    assert_eq!(env.wait_lines("starts", 2), "0\n1\n");
    env.write("go", "");
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 1);
}

#[test]
fn a_drained_worker_ends_what_runs_and_takes_nothing_new() {
    let mut env = Env::new();
    let server = env.start_server();
    env.start_worker(1);
    let job = env.submit(&[
        "--array=1-3",
        "--",
        "bash",
        "-c",
        "echo $HQ_TASK_ID@$HQ_INSTANCE_ID >> starts; until [ -e go ]; do sleep 0.01; done",
    ]);
    env.wait_lines("starts", 1);
    env.hq(&["worker", "drain", "1"])
        .says("Worker 1 gets no new tasks and stops when its running ones have ended")
        .ok();
    assert_eq!(env.workers(), ["DRAINING"]);
    assert_eq!(env.json(&["worker", "list"])[0]["is_draining"], true);
    env.hq(&["task", "explain", "-v", &job, "3"])
        .says("the worker is being drained")
        .ok();
    // The worker is still draining after a restart of the server.
    signal(server, "KILL");
    env.wait_exit("server");
    env.start_server_with(&["--resume"]);
    wait_for("the worker is back", || {
        let states = env.workers();
        if states == ["DRAINING"] {
            Ok(())
        } else {
            Err(format!("{states:?}"))
        }
    });
    env.write("go", "");
    assert_eq!(env.wait_exit("worker1"), Some(0));
    assert_eq!(
        env.wait_lines("starts", 1),
        "1@0\n",
        "it ran on, and nothing after it"
    );
    env.hq(&["worker", "drain", "1-2"])
        .says("Draining worker 1 failed; worker is already stopped")
        .says("Draining worker 2 failed; worker not found")
        .exits_with(1);
    env.start_worker(1);
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 3);
}

#[test]
fn worker_info_shows_what_it_offers() {
    let mut env = Env::new();
    env.start_server();
    env.start_worker_with(&[
        "--cpus=2x2",
        "--resource=foo=[a,b]",
        "--resource=mem=sum(100.5)",
        "--hostname=node7",
        "--time-limit=1h 30m",
    ]);
    let list = env.json(&["worker", "list"]);
    assert_eq!(list[0]["configuration"]["hostname"], "node7");
    assert_eq!(list[0]["configuration"]["time_limit"], 5400.0);
    assert_eq!(
        list[0]["configuration"]["resources"]["resources"][0],
        json!({"kind": "groups", "name": "cpus", "groups": [["0", "1"], ["2", "3"]]})
    );
    let table = env.hq(&["worker", "list"]).ok();
    assert!(table.contains("cpus 2x2; foo 2; mem 100.50 MiB"), "{table}");
    env.hq(&["worker", "info", "1"])
        .says("assigned tasks: 0")
        .ok();
    assert_eq!(env.hq(&["worker", "address", "1"]).ok(), "node7\n");
    env.hq(&["worker", "address", "5"])
        .exits_with(1)
        .says("Worker 5 not found");
    env.hq(&["worker", "info", "5"])
        .says("Worker 5 not found")
        .exits_with(1);
}

#[test]
fn server_stops_cleanly() {
    let mut env = Env::new();
    env.start_server();
    env.start_worker_with(&["--cpus=1", "--on-server-lost=stop"]);
    let link = env.server_dir().join("hq-current");
    assert!(link.is_symlink());
    env.submit(&["--", "sleep", "98763"]);
    env.hq(&["server", "stop"]).says("Stopping server").ok();
    assert_eq!(env.wait_exit("server"), Some(0));
    assert!(!link.is_symlink());
    assert!(env.server_dir().join("001").join("access.json").exists());
    assert_eq!(env.wait_exit("worker1"), Some(1));
    wait_for("its task is gone", || {
        let left = processes_with("sleep 98763");
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("{left:?}"))
        }
    });
}

#[test]
fn doctor_says_what_is_blocked() {
    let mut env = Env::new();
    env.hq(&["doctor", "net"])
        .says("FAILED  access file")
        .exits_with(1);
    let pid = env.start_server();
    env.hq(&["doctor", "net"])
        .says("ok      worker handshake: the server answers")
        .says("ok      client handshake: the server answers")
        .ok();
    signal(pid, "KILL");
    env.wait_exit("server");
    env.hq(&["doctor", "net"])
        .says("nothing listens there")
        .exits_with(1);
    let all = env
        .hq(&["doctor", "net", "--output-mode=json"])
        .exits_with(1);
    let all: serde_json::Value = serde_json::from_str(&all.stdout).expect("JSON");
    assert_eq!(all[0]["ok"], true);
}

/// A server whose parent is not the test. It is killed on drop.
struct Detached(u32);

impl Drop for Detached {
    fn drop(&mut self) {
        signal(self.0, "KILL");
    }
}

#[test]
fn a_server_in_the_background_outlives_its_terminal() {
    let mut env = Env::new();
    env.hq(&["server", "start", "--background"]).ok();
    let pid = env.json(&["server", "info"])["pid"].as_u64();
    let server = Detached(u32::try_from(pid.expect("a pid")).expect("a pid"));
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", server.0)).expect("it lives");
    let session = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.split_whitespace().nth(3));
    assert_eq!(
        session,
        Some(server.0.to_string().as_str()),
        "a session of its own"
    );
    let log = std::fs::metadata(env.path("server/server.log")).expect("its messages");
    assert_eq!(log.permissions().mode() & 0o777, 0o600);
    signal(server.0, "HUP");
    env.start_worker(1);
    let job = env.submit(&["--wait", "--", "true"]);
    assert_eq!(env.stats(&job)["finished"], 1);
    env.hq(&["server", "start", "--background"])
        .exits_with(1)
        .says("The server did not start")
        .says("is already online");
    env.hq(&["worker", "stop", "all"]).ok();
    env.hq(&["server", "stop"]).ok();
    wait_for("the server has ended", || {
        if std::path::Path::new(&format!("/proc/{}", server.0)).exists() {
            Err("it lives".to_owned())
        } else {
            Ok(())
        }
    });
    std::mem::forget(server);
}

#[test]
fn a_server_in_the_background_whose_name_leads_elsewhere_is_refused() {
    let env = Env::new();
    for host in ["--host=", "--host=a b"] {
        env.hq(&["server", "start", "--background", host])
            .exits_with(2)
            .says("expected a host name");
    }
    let host = "nosuch.invalid";
    env.hq(&["server", "start", "--background", "--host", host])
        .exits_with(1)
        .says(host)
        .says("--host");
    let named = processes_with(&format!("--detached --host {host}"));
    assert!(named.is_empty(), "no server is left: {named:?}");
}

#[test]
fn a_server_whose_host_is_an_ipv6_address_listens_there() {
    let mut env = Env::new();
    env.start_server_with(&["--host=::1"]);
    env.start_worker(1);
    let job = env.submit(&["--stdout=none", "--stderr=none", "true"]);
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 1);
    let checks = env.hq(&["doctor", "net"]);
    assert!(checks.stdout.contains("[::1]"), "{}", checks.stdout);
    env.hq(&["server", "stop"]).ok();
}

#[test]
fn a_server_in_the_background_warns_on_the_terminal() {
    let mut env = Env::new();
    let first = env.start_server();
    env.submit(&["--", "true"]);
    signal(first, "KILL");
    env.wait_exit("server");
    env.hq(&["server", "start", "--background"])
        .says("1 unfinished job continues")
        .says("--fresh")
        .ok();
    env.hq(&["server", "stop"]).ok();
}

#[test]
fn a_server_without_a_journal_works_and_leaves_nothing() {
    let mut env = Env::new();
    env.start_server_with(&["--no-journal"]);
    env.start_worker(1);
    let job = env.submit(&["--wait", "--", "true"]);
    assert_eq!(env.stats(&job)["finished"], 1);
    env.hq(&["journal", "flush"]).ok();
    env.hq(&["journal", "prune"]).ok();
    env.hq(&["journal", "replay"])
        .exits_with(1)
        .says("in memory only");
    env.hq(&["worker", "stop", "all"]).ok();
    env.hq(&["server", "stop"]).ok();
    env.wait_exit("server");
    assert!(!env.path("server/001/state.db").exists());
    env.hq(&["server", "start", "--resume"])
        .exits_with(1)
        .says("Nothing to resume");
}
