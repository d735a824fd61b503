//! Everything that a server has acknowledged or reported survives, no matter how the server ends.

use crate::harness::{Env, signal, wait_for};

/// Kills the server and waits until it is gone.
pub(crate) fn kill_server(env: &mut Env, pid: u32) {
    signal(pid, "KILL");
    env.wait_exit("server");
}

#[test]
fn a_killed_server_comes_back_with_jobs_results_and_ids() {
    let mut env = Env::new();
    let journal = ["--journal=state/journal.db"];
    std::fs::create_dir(env.path("state")).expect("directory");
    let server = env.start_server_with(&journal);
    env.start_worker_with(&["--cpus=2", "--on-server-lost=stop"]);
    let uid = env.json(&["server", "info"])["server_uid"].clone();
    let done = env.submit(&["--array=1-3", "--", "sh", "-c", "exit $((HQ_TASK_ID - 1))"]);
    env.wait_job(&done);
    let open = env
        .hq(&["job", "open", "--name=series", "--output-mode=quiet"])
        .ok();
    let open = open.trim();
    env.submit(&["--job", open, "--", "true"]);
    let running = env.submit(&["--", "sh", "-c", "echo $HQ_INSTANCE_ID >> runs; sleep 1000"]);
    env.wait_lines("runs", 1);
    let waiting = env.submit(&["--cpus=50", "--array=1-1000000", "--", "false"]);
    let canceled = env.submit(&["--cpus=50", "--", "false"]);
    env.hq(&["job", "cancel", &canceled]).ok();
    let before = env.tasks(&done);
    kill_server(&mut env, server);

    let server = env.start_server_with(&journal);
    assert_eq!(env.json(&["server", "info"])["server_uid"], uid);
    assert_eq!(env.tasks(&done), before, "results stay as they were");
    assert_eq!(env.stats(&canceled)["canceled"], 1);
    assert_eq!(env.stats(&waiting)["waiting"].as_u64(), Some(1_000_000));
    assert_eq!(env.stats(&running)["waiting"], 1);
    env.submit(&["--job", open, "--", "true"]);
    assert_eq!(
        env.stats(open)["waiting"].as_u64().map(|count| count > 0),
        Some(true)
    );
    assert_eq!(env.submit(&["--", "true"]), "6", "ids go on");
    env.hq(&["job", "cancel", &waiting]).ok();

    // The server ends cleanly, then once more. The running task gets its next instance.
    env.hq(&["server", "stop"]).ok();
    env.wait_exit("server");
    let _ = server;
    env.start_server_with(&journal);
    assert_eq!(env.stats(&waiting)["canceled"].as_u64(), Some(1_000_000));
    env.spawn(
        "late",
        &["worker", "start", "--cpus=8", "--detect-resources=cpus"],
    );
    let runs = env.wait_lines("runs", 2);
    assert_eq!(runs.lines().collect::<Vec<_>>(), ["0", "1"]);
    env.hq(&["job", "close", open]).ok();
    env.wait_job(open);
    env.hq(&["job", "cancel", &running]).ok();
}

#[test]
fn a_chain_goes_on_through_a_kill_each_link_once_and_in_order() {
    let mut env = Env::new();
    let journal = ["--journal=j.db"];
    let server = env.start_server_with(&journal);
    env.start_worker(2);
    let link = |id: u32| {
        let deps = id.checked_sub(1).map_or(vec![], |before| vec![before]);
        format!(
            "[[task]]\nid = {id}\ndeps = {deps:?}\nstdout = \"none\"\nstderr = \"none\"\n\
             command = [\"sh\", \"-c\", \"echo $HQ_TASK_ID >> order\"]\n"
        )
    };
    env.write("chain.toml", (0..400).map(link).collect::<String>());
    let job = env
        .hq(&["job", "submit-file", "chain.toml", "--output-mode=quiet"])
        .ok();
    // Kill it in the middle of the job, with unstarted tasks on the worker.
    env.wait_lines("order", 100);
    kill_server(&mut env, server);
    env.start_server_with(&journal);
    env.wait_job(job.trim());
    let order = env.read("order");
    let order: Vec<u32> = order.lines().flat_map(str::parse).collect();
    assert_eq!(order, Vec::from_iter(0..400));
}

#[test]
fn a_multi_node_task_keeps_its_nodes_through_a_restart() {
    let mut env = Env::new();
    let journal = ["--journal=j.db"];
    let server = env.start_server_with(&journal);
    for _ in 0..2 {
        env.start_worker(1);
    }
    let script = "echo $HQ_INSTANCE_ID >> starts; until test -e go; do sleep 0.05; done";
    let gang = env.submit(&["--nodes=2", "--", "sh", "-c", script]);
    env.wait_lines("starts", 1);
    let small = env.submit(&["--", "sh", "-c", "test -e go"]);
    kill_server(&mut env, server);
    env.start_server_with(&journal);
    wait_for("the task that goes on", || {
        let stats = env.stats(&gang);
        (stats["running"] == 1)
            .then_some(())
            .ok_or_else(|| stats.to_string())
    });
    let workers = serde_json::json!([1, 2]);
    assert_eq!(env.tasks(&gang)[0]["workers"], workers);
    env.write("go", "");
    env.wait_job(&gang);
    env.wait_job(&small);
    assert_eq!(env.stats(&gang)["finished"], 1);
    assert_eq!(env.stats(&small)["finished"], 1, "it waited for a node");
    assert_eq!(env.read("starts"), "0\n", "it was not started again");
    env.hq(&["journal", "flush"]).ok();
    let events = env.hq(&["journal", "export", "j.db"]).ok();
    let started = events.lines().find(|line| line.contains("task-started"));
    let started: serde_json::Value =
        serde_json::from_str(started.expect("an event")).expect("JSON");
    assert_eq!(started["event"]["workers"], workers);
}

#[test]
fn the_last_server_of_a_directory_is_resumed() {
    let mut env = Env::new();
    env.hq(&["server", "start", "--resume"])
        .exits_with(1)
        .says("Nothing to resume");
    let server = env.start_server();
    let job = env.submit(&["--name=kept", "--", "true"]);
    let ports = env.json(&["server", "info"])["worker_port"].clone();
    kill_server(&mut env, server);
    env.start_server_with(&["--resume"]);
    assert_eq!(env.json(&["server", "info"])["worker_port"], ports);
    assert_eq!(env.json(&["job", "info", &job])[0]["info"]["name"], "kept");
}

#[test]
fn a_new_server_says_how_to_go_on_with_what_the_last_one_left() {
    let mut env = Env::new();
    env.start_server();
    let job = env.submit(&["--name=left", "--", "true"]);
    env.hq(&["server", "stop"]).ok();
    env.wait_exit("server");
    let server = env.start_server();
    let log = env.read("server.log");
    let told = log
        .lines()
        .find(|line| line.contains("left 1 unfinished job,"));
    let told = told.unwrap_or_else(|| panic!("it does not say what is left aside: {log}"));
    let command = told.split('`').nth(1).expect("a command in back quotes");
    assert_eq!(env.json(&["job", "list", "--all"]), serde_json::json!([]));
    kill_server(&mut env, server);
    let args = command.strip_prefix("hq server start ").expect("a start");
    let args: Vec<_> = args.split(' ').map(|word| word.trim_matches('"')).collect();
    env.start_server_with(&args);
    assert_eq!(env.json(&["job", "info", &job])[0]["info"]["name"], "left");
    env.start_worker(1);
    env.wait_job(&job);
}

#[test]
fn acknowledged_submits_survive_a_kill_in_the_middle_of_a_stream_of_them() {
    let mut env = Env::new();
    let journal = env.path("j.db");
    let journal = format!("--journal={}", journal.display());
    let server = env.start_server_with(&[&journal]);
    let mut acknowledged = Vec::new();
    let mut submit = env.command(&["submit", "--output-mode=quiet", "--", "true"]);
    for round in 0..12 {
        if round == 8 {
            signal(server, "KILL");
        }
        let output = submit.output().expect("the program can be run");
        if output.status.success() {
            acknowledged.push(String::from_utf8_lossy(&output.stdout).trim().to_owned());
        }
    }
    env.wait_exit("server");
    env.start_server_with(&[&journal]);
    assert!(acknowledged.len() >= 8);
    for job in &acknowledged {
        assert_eq!(env.stats(job)["waiting"], 1, "job {job}");
    }
}

#[test]
fn a_second_server_does_not_get_the_journal() {
    let mut env = Env::new();
    let server = env.start_server_with(&["--journal=j.db"]);
    let other = env.path("other");
    let refused = env.hq(&[
        "--server-dir",
        &other.to_string_lossy(),
        "server",
        "start",
        "--journal=j.db",
    ]);
    refused.exits_with(1).says("used by another server");
    kill_server(&mut env, server);
    env.start_server_with(&["--journal=j.db"]);
}

#[test]
fn files_that_are_no_journal_are_refused_and_left_alone() {
    let env = Env::new();
    let file = env.write("notes.txt", "These are notes, not a journal. ".repeat(10));
    env.hq(&["server", "start", "--journal=notes.txt"])
        .exits_with(1)
        .says("not an SQLite database");
    assert!(
        std::fs::read_to_string(file)
            .expect("still there")
            .starts_with("These are")
    );
    env.hq(&["server", "start", "--journal=no/such/dir/j"])
        .exits_with(1)
        .says("Cannot create event log file at `no/such/dir/j`");
    wait_for("no server is left", || {
        let ran = env.hq(&["server", "info"]);
        if ran.code == Some(0) {
            Err(ran.stdout)
        } else {
            Ok(())
        }
    });
}

#[test]
fn running_tasks_and_waiting_clients_go_on_through_a_restart() {
    let mut env = Env::new();
    let server = env.start_server();
    env.start_worker(2);
    let script = "echo $HQ_TASK_ID $HQ_INSTANCE_ID >> starts; \
                  until [ -e go-$HQ_TASK_ID ]; do sleep 0.02; done; echo $HQ_TASK_ID >> ends";
    let job = env.submit(&["--array=1-6", "--", "bash", "-c", script]);
    env.wait_running(&job, 2);
    env.spawn("waiter", &["job", "progress", &job]);
    env.wait_lines("waiter.log", 1);
    kill_server(&mut env, server);
    // One task ends while there is no server. The other one continues.
    env.write("go-1", "");
    env.wait_lines("ends", 1);
    let server = env.start_server_with(&["--resume"]);
    env.write("go-3", "");
    env.wait_lines("ends", 2);
    assert_eq!(env.workers(), ["RUNNING"], "it is the same worker");
    // If the server ends cleanly, the tasks are left alone as well.
    signal(server, "TERM");
    env.wait_exit("server");
    for task in [2, 4, 5, 6] {
        env.write(&format!("go-{task}"), "");
    }
    env.start_server_with(&["--resume"]);
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 6);
    assert_eq!(env.wait_exit("waiter"), Some(0));
    let mut starts: Vec<String> = env.read("starts").lines().map(str::to_owned).collect();
    starts.sort();
    assert_eq!(
        starts,
        ["1 0", "2 0", "3 0", "4 0", "5 0", "6 0"],
        "each ran once"
    );
    let sql = "SELECT count(*) AS n FROM events WHERE type = 'task-finished'";
    assert_eq!(
        env.json(&["query", sql])[0]["n"],
        6,
        "each success is recorded once"
    );
}

#[test]
fn what_ran_on_a_worker_that_does_not_come_back_runs_again() {
    let mut env = Env::new();
    let server = env.start_server();
    let worker = env.start_worker_with(&["--cpus=1", "--heartbeat=500ms"]);
    let script = "echo $HQ_INSTANCE_ID >> starts; until [ -e go ]; do sleep 0.02; done";
    let job = env.submit(&["--crash-limit=1", "--", "bash", "-c", script]);
    // The task counts as running before its process starts.
    env.wait_lines("starts", 1);
    kill_server(&mut env, server);
    signal(worker, "KILL");
    env.start_server_with(&["--resume"]);
    let late = env.submit(&["--name=late", "--", "true"]);
    env.start_worker(1);
    env.wait_job(&late);
    assert_eq!(env.wait_lines("starts", 2), "0\n1\n", "the next instance");
    env.write("go", "");
    env.wait_job(&job);
    assert_eq!(
        env.stats(&job)["finished"],
        1,
        "the end of a server is no crash of the task"
    );
}

/// Returns the types of the events that a command printed.
fn types(text: &str) -> Vec<String> {
    let events = text
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("a line of JSON"));
    events
        .map(|event| event["event"]["type"].as_str().expect("a type").to_owned())
        .collect()
}

#[test]
fn the_journal_is_exported_streamed_pruned_and_queried() {
    let mut env = Env::new();
    env.start_server_with(&["--journal=j.db"]);
    env.start_worker(1);
    env.spawn("live", &["journal", "stream"]);
    let job = env.submit(&["--array=1-2", "--", "sh", "-c", "exit $((HQ_TASK_ID - 1))"]);
    env.wait_job(&job);
    env.hq(&["journal", "flush"]).ok();
    let exported = env.hq(&["journal", "export", "j.db"]);
    let exported = exported.says("Outputted").ok();
    let found = types(&exported);
    for expected in [
        "server-start",
        "worker-connected",
        "job-created",
        "job-completed",
    ] {
        assert_eq!(
            found.iter().filter(|kind| *kind == expected).count(),
            1,
            "{expected}"
        );
    }
    assert_eq!(
        found.iter().filter(|kind| *kind == "task-started").count(),
        2
    );
    assert!(exported.contains("Program terminated with exit code 1."));
    assert_eq!(types(&env.hq(&["journal", "replay"]).ok()), found);
    wait_for("the live stream has everything", || {
        let text = env.read("live.log");
        let seen = text.lines().filter(|line| line.starts_with('{')).count();
        if seen >= found.len() {
            Ok(())
        } else {
            Err(text)
        }
    });

    let sql = "SELECT task, state, exit_code FROM tasks WHERE job = 1 ORDER BY task";
    let rows = env.json(&["query", sql]);
    assert_eq!(rows[1]["state"], "failed");
    assert_eq!(rows[1]["exit_code"], 1);
    let csv = env.hq(&["query", "--csv", "--journal=j.db", sql]).ok();
    assert_eq!(csv, "task,state,exit_code\n1,finished,0\n2,failed,1\n");
    let listed = env.hq(&["query", "--list"]).says("crash_count").ok();
    assert!(!listed.contains("_data"), "{listed}");
    for refused in [
        "DELETE FROM job_data",
        "ATTACH 'x.db' AS x",
        "PRAGMA user_version = 9",
    ] {
        env.hq(&["query", refused])
            .exits_with(1)
            .says("only SELECT");
    }

    env.hq(&["journal", "prune"]).ok();
    let left = types(&env.hq(&["journal", "replay"]).ok());
    assert_eq!(left, ["server-start", "worker-connected"]);
    env.hq(&["journal", "check", "j.db"]).ok();
    env.hq(&["server", "stop"]).ok();
    assert_eq!(
        env.wait_exit("live"),
        Some(0),
        "a stream ends with its server"
    );
}
