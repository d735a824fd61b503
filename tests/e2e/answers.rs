//! Edge cases of answers: spellings of ids, empty results, aborted tasks, unknown names.

use crate::harness::Env;

/// Task 3 fails, task 4 depends on it, and task 5 depends on task 4. Task 1 finishes.
const GRAPH: &str = r#"
name = "g"
[[task]]
id = 1
command = ["true"]
[[task]]
id = 3
command = ["bash", "-c", "echo no index >&2; exit 3"]
deps = [1]
[[task]]
id = 4
command = ["true"]
deps = [3]
[[task]]
id = 5
command = ["true"]
deps = [4]
"#;

fn with_graph() -> Env {
    let env = Env::with_worker(2);
    env.write("g.toml", GRAPH);
    env.hq(&["job", "submit-file", "--wait", "g.toml"]).ok();
    env
}

#[test]
fn a_task_has_one_spelling_and_old_ones_are_understood() {
    let env = with_graph();
    let id = "| Task ID      | 3 ";
    for words in [
        &["task", "info", "1.3"][..],
        &["task", "info", "last.3"],
        &["task", "info", "1", "3"],
        &["task", "info", "1@3"],
        &["task", "info", "-v", "1.3"],
    ] {
        let shown = env.hq(words).ok();
        assert!(shown.contains(id), "{words:?}: {shown}");
    }
    let listed = |words: &[&str]| env.hq(words).ok().matches("| FAILED").count();
    for words in [
        &["task", "list", "1.3"][..],
        &["task", "list", "1", "--tasks=3"],
        &["task", "list", "1", "--filter=failed"],
        &["task", "list", "1", "--task-status=failed"],
    ] {
        assert_eq!(listed(words), 1, "{words:?}");
    }
    assert_eq!(env.hq(&["job", "cat", "1.3", "stderr"]).ok(), "no index\n");
    let ids = env.hq(&["job", "task-ids", "1", "--task-status=failed"]);
    assert_eq!(ids.ok(), "3\n");
    env.hq(&["task", "explain", "1.3"])
        .says("`hq task info 1.3` shows how it ended")
        .exits_with(1);
    for words in [
        &["task", "info", "1"][..],
        &["task", "info", "1.3", "3"],
        &["task", "list", "1.3", "--tasks=3"],
        &["job", "cat", "1.3", "stderr", "--tasks=3"],
        &["task", "explain", "1.3-4"],
    ] {
        env.hq(words).says("error: ").exits_with(2);
    }
}

#[test]
fn aborted_tasks_and_failed_ones_say_why() {
    let env = with_graph();
    for (task, why) in [
        ("1.4", "Aborted: task 3, on which task 4 depends, failed"),
        (
            "1.5",
            "Aborted: task 3, on which task 5 depends through task 4, failed",
        ),
    ] {
        let shown = env.hq(&["task", "info", task]).ok();
        assert!(shown.contains(why), "{shown}");
    }
    // JSON keeps its documented keys.
    let task = &env.json(&["task", "info", "1.4"])[0];
    assert_eq!(*task, serde_json::json!({ "id": 4, "state": "aborted" }));
    let failures = env.hq(&["job", "failures", "1"]).ok();
    let aborted = "2 tasks aborted, for example task 4: task 3, on which task 4 depends, failed";
    assert!(failures.contains(aborted), "{failures}");
    let shown = env.hq(&["task", "info", "-v", "1.3"]).ok();
    assert!(shown.contains("Last words: no index"), "{shown}");
    let shown = env.hq(&["task", "info", "1.3"]).ok();
    assert!(!shown.contains("Last words"), "{shown}");
    let fails = env.submit(&[
        "--max-fails=0",
        "--cpus=2",
        "--array=1-3",
        "--wait",
        "--",
        "false",
    ]);
    let shown = env.hq(&["task", "info", &format!("{fails}.3")]).ok();
    assert!(
        shown.contains("failed than --max-fails 0 allows"),
        "{shown}"
    );
    let after = env.submit(&["--after", &fails, "--wait", "--", "true"]);
    let shown = env.hq(&["task", "info", &format!("{after}.0")]).ok();
    let why = format!("Aborted: job {fails}, a dependency, failed");
    assert!(shown.contains(&why), "{shown}");
}

#[test]
fn counts_of_jobs_add_up_in_sql_and_unknown_names_are_answered() {
    let env = with_graph();
    let sql = "select state, finished, failed, aborted, waiting, task_count from jobs";
    let rows = env.hq(&["--output-mode=quiet", "query", sql]).ok();
    assert_eq!(rows, "failed\t1\t1\t2\t0\t4\n");
    let sql = "select count(*) from jobs where submitted like '20__-__-__T__:__:__.___Z'";
    let rows = env.hq(&["--output-mode=quiet", "query", sql]).ok();
    assert_eq!(rows, "1\n");
    env.hq(&["query", "select id from tasks"])
        .says("no such column: id")
        .says("`tasks` has job, task, state, ")
        .exits_with(1);
}

#[test]
fn the_last_server_is_reported_without_naming_its_journal() {
    let mut env = with_graph();
    let page = |env: &Env, words: &[&str], name: &str| {
        env.hq(words).says("Wrote the report to").ok();
        env.read(name)
    };
    let running = page(&env, &["report"], "hq-report.html");
    assert!(running.contains("<title>") && !running.contains("state.db"));
    env.hq(&["worker", "stop", "all"]).ok();
    env.hq(&["server", "stop"]).ok();
    env.wait_exit("server");
    page(&env, &["report", "last.html"], "last.html");
    let dir = env.server_dir();
    let dir = dir.to_str().expect("UTF-8");
    page(
        &env,
        &["journal", "report", dir, "named.html"],
        "named.html",
    );
    env.hq(&["journal", "check", dir]).ok();
    env.hq(&["journal", "report"])
        .says("`hq report [OUTPUT]` writes the page of the running or the last server")
        .exits_with(2);
    env.hq(&["journal", "export", "."])
        .says("no server has kept its state there")
        .exits_with(1);
}

#[test]
fn last_and_all_of_nothing_are_answered() {
    let mut env = Env::new();
    env.start_server();
    for words in [
        &["job", "info", "last"][..],
        &["job", "wait", "last"],
        &["job", "failures", "last"],
        &["worker", "info", "last"],
        &["worker", "stop", "last"],
    ] {
        env.hq(words).says("ERROR There ").exits_with(1);
        let quiet = env.hq(&[&["--output-mode=quiet"], words].concat());
        assert_eq!(quiet.stderr, "", "{words:?}");
        quiet.ok();
    }
    env.hq(&["worker", "stop", "all"])
        .says("There is no worker")
        .ok();
    env.start_worker(1);
    let job = env.submit(&["--wait", "--array=1-2", "--", "false"]);
    env.hq(&["job", "progress", &job])
        .says("There are no jobs to wait for")
        .says(&format!("Job {job} failed: 2 of 2 tasks failed; "))
        .ok();
}

#[test]
fn a_server_directory_that_is_no_name_is_refused_and_one_with_blanks_is_quoted() {
    let mut env = Env::new();
    for (dir, expected) in [
        ("", "the server directory is empty"),
        ("  ", "it has nothing but blanks"),
    ] {
        env.set("HQ_SERVER_DIR", dir);
        env.hq(&["job", "list"])
            .says(expected)
            .says("the variable HQ_SERVER_DIR names it")
            .exits_with(2);
    }
    env.set("HQ_SERVER_DIR", "/no such/dir");
    env.hq(&["job", "list"])
        .says("`hq server start --server-dir \"/no such/dir\"`")
        .exits_with(1);
}
