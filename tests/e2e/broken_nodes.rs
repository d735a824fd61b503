//! Nodes on which tasks fail that succeed elsewhere: several workers on this machine, one of which
//! cannot find the program.

use std::os::unix::fs::PermissionsExt as _;

use crate::harness::{Env, skip, wait_for};

/// Starts a server with these arguments, one worker that cannot find `tool`, and three that can.
fn with_broken_worker(args: &[&str]) -> Env {
    let mut env = Env::new();
    env.start_server_with(args);
    std::fs::create_dir(env.path("bin")).expect("it is new");
    let tool = env.write("bin/tool", "#!/bin/sh\nsleep 0.01\n");
    std::fs::set_permissions(&tool, std::fs::Permissions::from_mode(0o755)).expect("it is ours");
    let system = std::env::var("PATH").expect("there is one");
    for number in 1..=4 {
        let path = match number {
            1 => format!("PATH={system}"),
            _ => format!("PATH={}:{system}", env.path("bin").display()),
        };
        let host = format!("--hostname=node{number}");
        env.start_worker_behind(&["env", &path], &["--cpus=2", &host]);
    }
    env
}

/// Returns the worker and the reason of each event of a type.
fn events(env: &Env, kind: &str) -> Vec<String> {
    let sql = format!(
        "SELECT worker || ': ' || json_extract(data, '$.reason') AS said FROM events WHERE type = '{kind}'"
    );
    let rows = env.json(&["query", &sql]);
    let rows = rows.as_array().expect("rows").iter();
    rows.map(|row| row["said"].as_str().expect("a text").to_owned())
        .collect()
}

#[test]
fn a_worker_that_fails_what_others_do_well_is_set_aside_until_it_is_released() {
    let notify = "--notify=cmd:cat >> told; echo \" $HQ_WORKER_HOST\" >> told";
    let mut env = with_broken_worker(&["--quarantine=act", notify]);
    let job = env.submit(&["--array=1-2000", "tool"]);
    env.wait_job(&job);
    let stats = env.stats(&job);
    let failed = stats["failed"].as_u64().expect("a number");
    // How many tasks fail before other workers have finished any depends on the load of the
    // machine.
    assert!(failed <= 100, "it would fail nearly all of them: {stats}");
    assert_eq!(env.workers()[0], "QUARANTINED");
    let told = events(&env, "worker-quarantined");
    assert!(
        told[0].starts_with("1: ") && told[0].contains("tasks failed there"),
        "{told:?}"
    );
    env.hq(&["problems"])
        .says("node1")
        .says("it gets no tasks until a probe task succeeds there")
        .ok();
    wait_for("somebody is told", || {
        let told = std::fs::read_to_string(env.server_dir().join("told")).unwrap_or_default();
        let has_all = ["\"worker-quarantined\"", "tasks failed there", " node1\n"]
            .iter()
            .all(|part| told.contains(part));
        if has_all { Ok(()) } else { Err(told) }
    });
    let worker = &env.json(&["worker", "info", "1"])[0];
    assert_eq!(worker["quarantine"]["stage"], "quarantined", "{worker}");
    // Users see the reason as well.
    env.hq(&["worker", "info", "1"])
        .says("until one is tried at")
        .says("tasks failed there")
        .ok();
    // Repeated attempts stay in the store.
    let sql = "SELECT count(*) AS n FROM attempts a JOIN tasks t USING (job, task) \
               WHERE a.worker = 1 AND a.state = 'failed' AND t.state = 'finished' AND t.retry_count = 0";
    let again = &env.json(&["query", sql])[0]["n"];
    assert!(again.as_u64().is_some_and(|count| count >= 3), "{again}");
    // The quarantine survives the server.
    env.hq(&["server", "stop", "--keep-workers"]).ok();
    env.wait_exit("server");
    env.start_server_with(&["--resume", "--quarantine=act"]);
    wait_for("the workers are back", || {
        let states = env.workers();
        if states == ["QUARANTINED", "RUNNING", "RUNNING", "RUNNING"] {
            Ok(())
        } else {
            Err(format!("{states:?}"))
        }
    });
    env.hq(&["worker", "release", "all"])
        .says("Worker 1 gets tasks again")
        .ok();
    assert_eq!(env.workers()[0], "RUNNING");
    assert_eq!(events(&env, "worker-released"), ["1: somebody released it"]);
}

#[test]
fn a_server_tells_of_a_broken_worker_and_leaves_the_rest_to_people() {
    let env = with_broken_worker(&[]);
    let job = env.submit(&["--array=1-600", "tool"]);
    env.wait_job(&job);
    // The last successful task may only just have ended.
    let told = wait_for("somebody is told", || {
        let told = events(&env, "worker-suspected");
        if told.is_empty() {
            Err(env.stats(&job).to_string())
        } else {
            Ok(told)
        }
    });
    assert!(told.len() == 1 && told[0].starts_with("1: "), "{told:?}");
    assert_eq!(env.workers()[0], "RUNNING");
    env.hq(&["problems"])
        .says("node1")
        .says("it gets tasks all the same")
        .ok();
    env.hq(&[
        "worker",
        "quarantine",
        "1",
        "--for=30min",
        "--reason=its PATH is wrong",
    ])
    .says("Worker 1 gets no new tasks until `hq worker release 1`")
    .ok();
    assert_eq!(env.workers()[0], "QUARANTINED");
    let job = env.submit(&["--array=1-40", "tool"]);
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 40);
    let worker = &env.json(&["worker", "info", "1"])[0];
    assert_eq!(worker["quarantine"]["reason"], "its PATH is wrong");
    env.hq(&["worker", "quarantine", "1", "--for", "0s"])
        .says("expected a second to a year, found `0s`; `hq worker release` ends a quarantine")
        .exits_with(2);
    env.hq(&["worker", "quarantine", "7"])
        .says("worker not found")
        .exits_with(1);
    env.hq(&["worker", "release", "2"])
        .says("it was not in quarantine")
        .ok();
}

#[test]
fn a_worker_that_somebody_set_aside_is_told_of_as_that() {
    let env = Env::with_worker(1);
    let aside = ["worker", "quarantine", "1", "--for=1h", "--reason=its fan"];
    env.hq(&aside).ok();
    let job = env.submit(&["--", "true"]);
    let explained = env.hq(&["task", "explain", &job, "0", "-v"]).ok();
    let problems = env.hq(&["problems"]).ok();
    let status = env.hq(&["status"]).ok();
    for (said, words) in [
        (
            &explained,
            "the worker is in quarantine on request until 20",
        ),
        (&problems, "Node set aside"),
        (&problems, "on request until 20"),
        (&status, "worker 1 is in quarantine on request until 20"),
    ] {
        assert!(said.contains(words), "{words}: {said}");
        assert!(said.contains(" UTC: its fan"), "{said}");
        assert!(!said.contains("tasks fail"), "{said}");
        assert!(!said.contains("Broken node"), "{said}");
        assert!(!said.contains("other tasks use the resources"), "{said}");
    }
    env.hq(&["worker", "release", "1"]).ok();
    env.wait_job(&job);
}

#[test]
fn a_worker_whose_disk_is_full_gets_nothing_until_there_is_room() {
    let mut env = Env::new();
    std::fs::create_dir(env.path("small")).expect("it is new");
    let small = env.path("small").display().to_string();
    let script = format!("mount -t tmpfs -o size=4m small '{small}' && exec \"$@\"");
    let behind = ["unshare", "-m", "sh", "-c", &script, "sh"];
    let tried = std::process::Command::new(behind[0])
        .args([&behind[1..], &["true"]].concat())
        .output();
    if !tried.as_ref().is_ok_and(|output| output.status.success()) {
        skip(&format!("no file system can be mounted: {tried:?}"));
        return;
    }
    env.start_server_with(&["--quarantine=act"]);
    let work_dir = format!("--work-dir={small}");
    let fills = ["--cpus=1", "--resource=disk=sum(1)", "--heartbeat=500ms"];
    env.start_worker_behind(&behind, &[&fills[..], &[&work_dir]].concat());
    env.start_worker_with(&["--cpus=1"]);
    let fill = "dd if=/dev/zero of=small/f bs=64k 2> /dev/null; until [ -e go ]; do sleep 0.02; done; rm small/f";
    let filling = ["--resource=disk=1", "--", "sh", "-c", fill];
    let filling = env.submit(&filling);
    wait_for("the worker finds its disk full", || {
        let worker = &env.json(&["worker", "info", "1"])[0];
        if worker["quarantine"]["stage"] == "unfit" {
            Ok(())
        } else {
            Err(format!("{worker}"))
        }
    });
    assert_eq!(env.workers(), ["UNFIT", "RUNNING"]);
    let full = format!("left in {small}");
    env.hq(&["worker", "info", "1"]).says(&full).ok();
    env.hq(&["problems"])
        .says(&full)
        .says("it gets no tasks until that is over")
        .ok();
    let others = env.submit(&["--array=1-4", "--", "true"]);
    env.wait_job(&others);
    let sql = format!("SELECT DISTINCT worker FROM tasks WHERE job = {others}");
    assert_eq!(env.json(&["query", &sql])[0]["worker"], 2);
    env.write("go", "");
    env.wait_job(&filling);
    wait_for("the worker gets tasks again", || {
        let states = env.workers();
        if states[0] == "RUNNING" {
            Ok(())
        } else {
            Err(format!("{states:?}"))
        }
    });
    let told = events(&env, "worker-suspected");
    assert!(told.len() == 1 && told[0].contains(&full), "{told:?}");
    let back = "1: nothing is wrong with its node any more";
    assert_eq!(events(&env, "worker-released"), [back]);
    let again = env.submit(&["--resource=disk=1", "--", "true"]);
    env.wait_job(&again);
    assert_eq!(env.stats(&again)["finished"], 1);
}
