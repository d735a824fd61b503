//! Automatic allocation with a stand-in for OpenPBS, `tests/pbs/pbs.py`, that answers like a real
//! one.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{Env, skip, wait_for};

/// Creates a server whose PBS is the stand-in. Without Python, skips the test and returns `None`.
pub(crate) fn env_with_pbs() -> Option<Env> {
    env_that_asks_every("1000")
}

/// Like `env_with_pbs`, with this pause in milliseconds between status requests.
fn env_that_asks_every(refresh: &str) -> Option<Env> {
    let Some(python) = interpreter() else {
        skip("the stand-in for PBS needs `python3`");
        return None;
    };
    let mut env = Env::new();
    let bin = env.path("bin");
    std::fs::create_dir(&bin).expect("create a directory");
    std::os::unix::fs::symlink(python, bin.join("python3")).expect("make a link");
    let standin = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/pbs/pbs.py");
    for name in ["qsub", "qstat", "qselect", "qdel", "pbsnodes", "pbsdsh"] {
        std::os::unix::fs::symlink(&standin, bin.join(name)).expect("make a link");
    }
    let search = format!(
        "{}:{}",
        bin.display(),
        std::env::var("PATH").unwrap_or_default()
    );
    let root = env.path("pbs");
    std::fs::create_dir(&root).expect("create a directory");
    env.set("PATH", &search);
    env.set("PBS_STANDIN", &root.to_string_lossy());
    env.set("HQ_AUTOALLOC_SCHEDULE_TICK_INTERVAL_MS", "200");
    env.set("HQ_AUTOALLOC_MAX_SCHEDULE_DELAY_MS", "1000");
    env.set("HQ_AUTOALLOC_REFRESH_INTERVAL_MS", refresh);
    env.start_server();
    Some(env)
}

/// Returns the real interpreter behind `python3`. `python3` may be the script of a version manager,
/// and then each call of the stand-in would start a dozen shells.
fn interpreter() -> Option<PathBuf> {
    let mut python = Command::new("python3");
    let output = python.args(["-c", "import sys; print(sys.executable)"]);
    let output = output.output().ok()?;
    let path = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| path.trim_end().into())
}

/// Returns all jobs that the stand-in has ever had.
fn jobs(env: &Env) -> Vec<serde_json::Value> {
    let text = std::fs::read_to_string(env.path("pbs/state.json")).unwrap_or_default();
    let Ok(state) = serde_json::from_str::<serde_json::Value>(&text) else {
        return Vec::new();
    };
    let jobs = state["jobs"].as_object().expect("jobs by id");
    jobs.values().cloned().collect()
}

fn calls(env: &Env, command: &str) -> usize {
    let calls = env.read("pbs/calls");
    calls
        .lines()
        .filter(|call| call.split(' ').next() == Some(command))
        .count()
}

fn wait_over(env: &Env) {
    wait_for("all allocations are over", || {
        let all = env.json(&["alloc", "info", "1"]);
        let is_over = |a: &serde_json::Value| a["status"] == "finished" || a["status"] == "failed";
        if all.as_array().expect("a list").iter().all(is_over) {
            Ok(())
        } else {
            Err(all.to_string())
        }
    });
}

#[test]
fn tasks_bring_their_own_allocations() {
    let Some(env) = env_with_pbs() else { return };
    env.hq(&[
        "alloc",
        "add",
        "pbs",
        "-t",
        "5m",
        "--idle-timeout=2s",
        "--",
        "-q",
        "qexp",
    ])
    .says("A trial allocation was submitted successfully")
    .ok();
    let trial = jobs(&env).remove(0);
    assert_eq!(
        (&trial["hold"], &trial["state"]),
        (&true.into(), &"F".into()),
        "{trial}"
    );
    let job = env.submit(&["--array=1-200", "--stdout=none", "--stderr=none", "true"]);
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 200);
    // An allocation that is being submitted is not in the list yet, and on a slow machine the tasks
    // may be faster.
    wait_for("one call each, and the trial", || {
        wait_over(&env);
        let all = env.json(&["alloc", "info", "1"]);
        let count = all.as_array().expect("a list").len() + 1;
        let found = calls(&env, "qsub");
        (found == count)
            .then_some(())
            .ok_or(format!("{found} calls for {all}"))
    });
    wait_over(&env);
    let all = env.json(&["alloc", "info", "1"]);
    let all = all.as_array().expect("a list");
    assert!(all.iter().all(|a| a["status"] == "finished"), "{all:?}");
    let id = all[0]["id"].as_str().expect("an id");
    assert!(id.ends_with(".pbshost"));
    env.hq(&["alloc", "log", id, "stderr"])
        .says("PBS environment detected")
        .ok();
    let list = env.json(&["alloc", "list"]);
    assert_eq!(list[0]["manager"], "PBS");
    assert!(list[0]["known_worker_resources"].is_object());
}

#[test]
fn several_nodes_are_asked_for_at_once() {
    let Some(env) = env_with_pbs() else { return };
    let marks = env.path("marks");
    let start = format!("echo 'it'\\''s up' >>{}", marks.display());
    let add = [
        "alloc",
        "add",
        "pbs",
        "-t5m",
        "-m2",
        "--cpus=1",
        "--idle-timeout=30s",
    ];
    env.hq(&[&add[..], &["--worker-start-cmd", &start]].concat())
        .ok();
    let job = env.submit(&["--array=1-2", "--stdout=none", "sleep", "1"]);
    env.wait_job(&job);
    // The first worker may have run both tasks before the second one started.
    let marks = env.wait_lines("marks", 2);
    assert_eq!(marks, "it's up\nit's up\n");
    let all = env.json(&["alloc", "info", "1"]);
    assert_eq!(all[0]["target_worker_count"], 2);
    assert_eq!(all.as_array().map(Vec::len), Some(1), "{all}");
}

#[test]
fn refusals_are_told_with_their_reason() {
    let Some(env) = env_with_pbs() else { return };
    env.hq(&["alloc", "dry-run", "pbs", "-t", "1h", "--", "-q", "nosuch"])
        .says("Error: Could not submit allocation: qsub execution failed")
        .says("Exit code: 170")
        .says("qsub: Unknown queue")
        .says(&format!(
            "You can find the submitted script at {}/",
            env.server_dir().display()
        ))
        .exits_with(1);
    env.hq(&["alloc", "dry-run", "pbs", "-t", "1h"]).ok();
    env.write("pbs/lies", "qdel fail\n");
    env.hq(&["alloc", "add", "pbs", "-t", "1h"])
        .says("Could not cancel allocation 2.pbshost: qdel execution failed")
        .exits_with(1);
    assert_eq!(env.json(&["alloc", "list"]), serde_json::json!([]));
}

#[test]
fn a_pbs_that_lies_gets_no_allocation_too_many() {
    let Some(env) = env_with_pbs() else { return };
    let add = [
        "alloc",
        "add",
        "pbs",
        "-t5m",
        "-b1",
        "--max-worker-count=2",
        "--no-dry-run",
    ];
    env.hq(&[&add[..], &["--cpus=1", "--idle-timeout=3s"]].concat())
        .ok();
    let lies = "qsub lost\nqsub silent\nqstat truncate\nqstat empty\nqstat unknown\nqstat fail\n\
                qstat unknown\nqstat silent\nqselect fail\nqselect empty\nqdel fail\n";
    env.write("pbs/lies", lies);
    let job = env.submit(&[
        "--array=1-30",
        "--stdout=none",
        "--stderr=none",
        "sleep",
        "0.2",
    ]);
    wait_for("the job has ended", || {
        let alive = jobs(&env).iter().filter(|job| job["state"] != "F").count();
        assert!(alive <= 2, "{:?}", jobs(&env));
        let stats = env.stats(&job);
        if stats["finished"] == 30 {
            Ok(())
        } else {
            Err(stats.to_string())
        }
    });
    wait_over(&env);
    let mut names: Vec<String> = jobs(&env)
        .iter()
        .map(|job| job["name"].to_string())
        .collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count, "each allocation was submitted once");
}

/// Three allocations wait and are polled repeatedly. None is deleted, even if PBS omits them from
/// its answers.
fn waiting_allocations_survive(modes: &str) {
    let Some(env) = env_that_asks_every("100") else {
        return;
    };
    env.write("pbs/modes", format!("no-scheduling\n{modes}\n"));
    let add = ["alloc", "add", "pbs", "-t5m", "-b3", "--no-dry-run"];
    env.hq(&[&add[..], &["--cpus=1"]].concat()).ok();
    // One submission is not answered. The job is found by its name, and the submission is not
    // repeated.
    env.write("pbs/lies", "qsub lost\n");
    let job = env.submit(&["--array=1-3", "--stdout=none", "--stderr=none", "true"]);
    wait_for("three jobs wait", || match jobs(&env).len() {
        3 => Ok(()),
        other => Err(other.to_string()),
    });
    let before = calls(&env, "qstat");
    // With the default timers, these polls would take many minutes. Two polls used to be enough to
    // lose an allocation.
    wait_for("they were asked for often", || {
        match calls(&env, "qstat") - before {
            many if many >= 25 => Ok(()),
            few => Err(few.to_string()),
        }
    });
    let states: Vec<_> = jobs(&env).iter().map(|job| job["state"].clone()).collect();
    assert_eq!(states, ["Q", "Q", "Q"]);
    assert_eq!((calls(&env, "qsub"), calls(&env, "qdel")), (3, 0));
    // Wrappers and stand-ins of batch systems expect an id after `-f`.
    let all = std::fs::read_to_string(env.path("pbs/calls")).expect("there are calls");
    for call in all.lines() {
        for (option, value) in call.split(' ').zip(call.split(' ').skip(1)) {
            assert!(option != "-f" || value.ends_with(".pbshost"), "{call}");
        }
    }
    let all = env.json(&["alloc", "info", "1"]);
    let all = all.as_array().expect("a list");
    assert_eq!(all.len(), 3);
    assert!(all.iter().all(|a| a["status"] == "queued"), "{all:?}");
    env.write("pbs/modes", format!("{modes}\n"));
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 3);
}

#[test]
fn waiting_allocations_survive_a_qstat_that_shows_only_the_first() {
    waiting_allocations_survive("first-only");
}

#[test]
fn waiting_allocations_survive_a_pbs_that_keeps_no_history() {
    waiting_allocations_survive("no-history first-only");
}

#[test]
fn without_history_an_allocation_that_is_gone_is_noticed() {
    let Some(env) = env_with_pbs() else { return };
    env.write("pbs/modes", "no-scheduling\nno-history\n");
    env.hq(&["alloc", "add", "pbs", "-t5m", "--no-dry-run", "--cpus=1"])
        .ok();
    env.submit(&["--stdout=none", "--stderr=none", "true"]);
    wait_for("a job waits", || match jobs(&env).len() {
        1 => Ok(()),
        other => Err(other.to_string()),
    });
    // The job is deleted by another program.
    let qdel = env.path("bin/qdel");
    let mut command = Command::new(qdel);
    command.env("PBS_STANDIN", env.path("pbs")).arg("1.pbshost");
    assert!(command.status().expect("it runs").success());
    wait_over(&env);
    assert_eq!(env.json(&["alloc", "info", "1"])[0]["status"], "failed");
}

#[test]
fn the_older_dialect_comes_as_a_file() {
    let Some(env) = env_with_pbs() else { return };
    let older = env.hq(&["alloc", "template", "pbs-nodes"]).ok();
    env.write("older.toml", older);
    env.hq(&[
        "alloc",
        "add",
        "pbs",
        "-t5m",
        "--template=older.toml",
        "--idle-timeout=2s",
    ])
    .ok();
    let job = env.submit(&["--stdout=none", "true"]);
    env.wait_job(&job);
    let all = env.json(&["alloc", "info", "1"]);
    let script = Path::new(all[0]["workdir"].as_str().expect("a path")).join("hq-submit.sh");
    let script = std::fs::read_to_string(script).expect("the script is kept");
    assert!(script.contains("#PBS -l nodes=1\n"), "{script}");
    env.hq(&["alloc", "add", "other", "-t5m"])
        .says("needs --template FILE")
        .exits_with(1);
}
