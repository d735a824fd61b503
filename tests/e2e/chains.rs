//! Tests jobs that wait for other jobs, and resubmitted jobs.

use serde_json::json;

use crate::harness::{Env, signal, wait_for};

fn state(env: &Env, job: &str) -> String {
    let list = env
        .hq(&["job", "list", "--all", "--output-mode=quiet"])
        .ok();
    let line = list
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{job} ")));
    line.unwrap_or("absent").to_owned()
}

#[test]
fn a_job_starts_when_the_one_before_has_finished() {
    let env = Env::with_worker(4);
    let gate = "until [ -e go ]; do sleep 0.02; done; echo first >> order";
    let first = env.submit(&["--", "bash", "-c", gate]);
    let second = env.submit(&[
        "--after=last",
        "--array=1-3",
        "--",
        "bash",
        "-c",
        "echo second >> order",
    ]);
    let third = env.submit(&[
        "--after",
        &format!("{first},{second}"),
        "--",
        "bash",
        "-c",
        "echo third >> order",
    ]);
    let explained = env.hq(&["task", "explain", &third, "0"]).ok();
    assert!(
        explained.contains("is not ready to run, because 2/2 dependencies are not finished"),
        "{explained}"
    );
    let info = env.hq(&["task", "info", &third, "0"]).ok();
    assert!(info.contains("| Dependencies | job 1,job 2 "), "{info}");
    assert_eq!(state(&env, &second), "WAITING");
    env.write("go", "");
    env.wait_job(&third);
    assert_eq!(env.read("order"), "first\nsecond\nsecond\nsecond\nthird\n");
    // A job that has ended does not block other jobs.
    let late = env.submit(&["--after", &first, "--wait", "--", "true"]);
    assert_eq!(state(&env, &late), "FINISHED");
}

#[test]
fn what_waits_for_a_failure_is_aborted_unless_any_end_will_do() {
    let mut env = Env::new();
    env.start_server();
    let bad = env.submit(&["--", "false"]);
    let strict = env.submit(&["--after", &bad, "--array=1-1000000", "--", "true"]);
    let behind = env.submit(&["--after", &strict, "--", "true"]);
    let relaxed = env.submit(&["--after", &format!("{bad}:any"), "--", "true"]);
    env.start_worker(1);
    env.wait_job("all");
    assert_eq!(state(&env, &strict), "ABORTED");
    assert_eq!(state(&env, &behind), "ABORTED");
    assert_eq!(state(&env, &relaxed), "FINISHED");
    assert_eq!(env.stats(&strict)["aborted"], 1_000_000);
    let info = env.hq(&["job", "info", &strict]).ok();
    assert!(
        info.contains("Job 1, which it waits for, did not finish"),
        "{info}"
    );
    // The same happens if the failure came first.
    let late = env.submit(&["--after", &bad, "--wait", "--", "true"]);
    assert_eq!(state(&env, &late), "ABORTED");
}

#[test]
fn each_task_follows_the_one_with_its_id() {
    let env = Env::with_worker(6);
    let script = "until [ -e go-$HQ_TASK_ID ]; do sleep 0.02; done; exit $((HQ_TASK_ID == 3))";
    let first = env.submit(&["--array=1-5:2", "--", "bash", "-c", script]);
    let second = env.submit(&[
        "--after-each",
        &first,
        "--",
        "bash",
        "-c",
        "echo $HQ_TASK_ID >> ran",
    ]);
    let third = env.submit(&[
        "--after-each",
        &format!("{second}:any"),
        "--",
        "bash",
        "-c",
        "echo $HQ_TASK_ID >> last",
    ]);
    assert_eq!(env.hq(&["job", "task-ids", &third]).ok(), "1,3,5\n");
    env.write("go-3", "");
    env.wait_lines("last", 1);
    assert_eq!(env.read("last"), "3\n");
    assert_eq!(env.stats(&second)["aborted"], 1);
    env.write("go-1", "");
    env.wait_lines("last", 2);
    assert_eq!(env.read("ran"), "1\n", "the first job still runs");
    env.hq(&["job", "cancel", &first]).ok();
    env.wait_job("all");
    assert_eq!(env.read("ran"), "1\n");
    assert_eq!(env.read("last").lines().count(), 3);
    assert_eq!(
        (state(&env, &second), state(&env, &third)),
        ("ABORTED".into(), "FINISHED".into())
    );
}

#[test]
fn waiting_for_what_never_comes_is_refused() {
    let env = Env::with_worker(1);
    let open = env.hq(&["job", "open", "--output-mode=quiet"]).ok();
    let open = open.trim();
    let refuse = |args: &[&str], words: &str| {
        let ran = env.hq(&[&["submit"], args, &["--", "true"]].concat());
        ran.exits_with(1).says(words);
    };
    refuse(&["--after=99"], "Job 99 not found.");
    refuse(&["--after-each=99"], "Job 99 not found.");
    refuse(&["--job", open, "--after", open], "neither would ever run");
    let behind = env.submit(&["--after", open, "--array=4-6", "--", "true"]);
    refuse(
        &["--job", open, "--after", &behind],
        "neither would ever run",
    );
    refuse(
        &["--after-each", &behind, "--array=5-7"],
        "has no task 7 to wait for",
    );
    env.hq(&["submit", "--after=1:maybe", "--", "true"])
        .exits_with(2)
        .says("expected `ok` or `any` after the job, found `maybe`");
    assert_eq!(
        env.json(&["job", "list", "--all"]).as_array().map(Vec::len),
        Some(2)
    );
    env.hq(&["job", "close", open]).ok();
    env.wait_job(&behind);
    assert_eq!(state(&env, &behind), "FINISHED");
}

#[test]
fn failed_tasks_are_submitted_again_with_their_entries() {
    let env = Env::with_worker(2);
    env.write("entries", "a\nb\nc\nd\n");
    let script = "echo $HQ_ENTRY; [ -e fixed ] || [ $HQ_ENTRY = a ]";
    let job = env.submit(&[
        "--each-line=entries",
        "--name=again",
        "--max-fails=9",
        "--env=X=1",
        "--",
        "bash",
        "-c",
        script,
    ]);
    env.wait_job(&job);
    std::fs::remove_file(env.path("entries")).expect("just written");
    env.write("fixed", "");
    let said = env
        .hq(&["job", "resubmit", &job, "--filter=failed,canceled"])
        .ok();
    assert_eq!(
        said,
        "Job 1 resubmitted successfully, job ID: 2 (3 tasks)\n"
    );
    env.wait_job("2");
    assert_eq!(env.hq(&["job", "task-ids", "2"]).ok(), "1-3\n");
    assert_eq!(env.hq(&["job", "cat", "2", "stdout"]).ok(), "b\nc\nd\n");
    let (old, new) = (
        env.json(&["job", "info", "1"]),
        env.json(&["job", "info", "2"]),
    );
    assert_eq!(new[0]["info"]["name"], "again");
    assert_eq!(new[0]["max_fails"], 9);
    let program = |info: &serde_json::Value| info[0]["submits"][0]["array"]["program"].clone();
    assert_eq!(program(&old)["env"], program(&new)["env"]);
    assert!(
        program(&new)["stdout"]
            .as_str()
            .is_some_and(|path| path.ends_with("/job-2/%{TASK_ID}.stdout")),
        "placeholders stand for the new job: {new}"
    );
    let all = env.json(&["job", "resubmit", "2"]);
    assert_eq!(all, json!([{"id": 3, "resubmitted": 2, "task_count": 3}]));
    env.hq(&["job", "resubmit", "2", "--filter=failed"])
        .exits_with(1)
        .says("Resubmitting job 2 failed; no task is in the selected states");
    env.hq(&["job", "resubmit", "77"])
        .exits_with(1)
        .says("Resubmitting job 77 failed; job not found");
    env.wait_job("all");
    assert_eq!(
        env.hq(&["job", "resubmit", "1-3", "--output-mode=quiet"])
            .ok(),
        "4\n5\n6\n"
    );
    env.wait_job("all");
}

#[test]
fn what_waited_for_a_job_waits_for_it_again() {
    let env = Env::with_worker(4);
    let script = "until [ -e go ]; do sleep 0.02; done; echo $HQ_TASK_ID >> ends; [ -e fixed ]";
    let first = env.submit(&["--array=1-3", "--", "bash", "-c", script]);
    let note = ["--", "bash", "-c", "echo later >> ends"];
    let each = env.submit(&[&["--after-each", &first], &note[..]].concat());
    let whole = env.submit(&[&["--after", &first], &note[..]].concat());
    env.write("go", "");
    env.wait_job("all");
    assert_eq!(state(&env, &whole), "ABORTED");
    let alone = env.hq(&["job", "resubmit", &each, "--filter=aborted"]);
    alone.exits_with(1).says(
        "Job 2 waits for job 1, which did not finish; submit both again: `hq job resubmit 1,2`",
    );
    assert_eq!(env.read("ends").lines().count(), 3);
    for gone in ["go", "ends"] {
        std::fs::remove_file(env.path(gone)).expect("a file");
    }
    env.write("fixed", "");
    env.hq(&["job", "resubmit", "1-3"]).ok();
    let waiting = [state(&env, "5"), state(&env, "6")];
    assert_eq!(waiting, ["WAITING", "WAITING"]);
    env.write("go", "");
    env.wait_job("all");
    for job in ["4", "5", "6"] {
        assert_eq!(state(&env, job), "FINISHED");
    }
    let ends = env.read("ends");
    assert_ne!(ends.lines().next(), Some("later"), "{ends}");
    assert_eq!(ends.lines().last(), Some("later"), "{ends}");
    assert_eq!(ends.lines().count(), 7, "{ends}");
}

#[test]
fn resubmit_waits_for_the_new_job() {
    let env = Env::with_worker(2);
    let script = "[ -e fixed ] || [ $HQ_TASK_ID = 1 ]";
    let job = env.submit(&["--array=1-3", "--", "bash", "-c", script]);
    env.wait_job(&job);
    env.hq(&["job", "resubmit", &job, "--wait"]).exits_with(0);
    assert_eq!(env.stats("2")["failed"], 2, "it is over by now");
    env.write("fixed", "");
    let again = ["job", "resubmit", &job, "--filter=failed", "--wait"];
    env.hq(&again).exits_with(0);
    assert_eq!(env.stats("3")["finished"], 2);
}

#[test]
fn a_graph_is_resubmitted_without_what_has_finished() {
    let env = Env::with_worker(2);
    env.write(
        "graph.toml",
        r#"
[[task]]
id = 1
command = ["bash", "-c", "echo 1 >> ran"]
[[task]]
id = 2
deps = [1]
command = ["bash", "-c", "echo 2 >> ran; [ -e fixed ]"]
[[task]]
id = 3
deps = [1, 2]
command = ["bash", "-c", "echo 3 >> ran"]
"#,
    );
    env.hq(&["job", "submit-file", "graph.toml"]).ok();
    env.wait_job("1");
    env.hq(&["job", "resubmit", "1", "--filter=aborted"])
        .exits_with(1)
        .says("Task 3 depends on task 2, which has not finished and is not selected");
    std::fs::remove_file(env.path("graph.toml")).expect("just written");
    env.write("fixed", "");
    env.hq(&["job", "resubmit", "1", "--filter=failed,aborted"])
        .ok();
    env.wait_job("2");
    assert_eq!(env.read("ran"), "1\n2\n2\n3\n");
    assert_eq!(env.stats("2")["finished"], 2);
}

#[test]
fn an_open_job_with_several_submits_becomes_one_closed_job() {
    let env = Env::with_worker(2);
    let open = env.hq(&["job", "open", "--output-mode=quiet"]).ok();
    let open = open.trim();
    env.submit(&["--job", open, "--array=1-2", "--", "true"]);
    env.submit(&[
        "--job",
        open,
        "--cpus=2",
        "--array=7",
        "--",
        "bash",
        "-c",
        "exit 3",
    ]);
    wait_for("all tasks ended", || {
        let stats = env.stats(open);
        (stats["failed"] == 1 && stats["finished"] == 2)
            .then_some(())
            .ok_or(stats.to_string())
    });
    env.hq(&["job", "resubmit", open]).ok();
    env.wait_job("2");
    let info = env.json(&["job", "info", "2"]);
    assert_eq!(info[0]["submits"].as_array().map(Vec::len), Some(2));
    assert_eq!(info[0]["info"]["is_open"], false);
    assert_eq!(env.hq(&["job", "task-ids", "2"]).ok(), "1-2,7\n");
}

#[test]
fn what_waits_goes_on_waiting_after_a_restart_of_the_server() {
    let mut env = Env::new();
    let server = env.start_server_with(&["--journal=j"]);
    let first = env.submit(&[
        "--array=1-2",
        "--stdout=out-%{JOB_ID}-%{TASK_ID}",
        "--",
        "bash",
        "-c",
        "exit $((HQ_TASK_ID - 1))",
    ]);
    let whole = env.submit(&["--after", &first, "--", "bash", "-c", "echo whole >> ran"]);
    let any = env.submit(&[
        "--after",
        &format!("{first}:any"),
        "--",
        "bash",
        "-c",
        "echo any >> ran",
    ]);
    let each = env.submit(&[
        "--after-each",
        &first,
        "--",
        "bash",
        "-c",
        "echo $HQ_TASK_ID >> ran",
    ]);
    signal(server, "KILL");
    env.wait_exit("server");
    env.start_server_with(&["--journal=j"]);
    env.start_worker(1);
    env.wait_job("all");
    let mut ran: Vec<String> = env.read("ran").lines().map(str::to_owned).collect();
    ran.sort();
    assert_eq!(ran, ["1", "any"]);
    let states = [&whole, &any, &each].map(|job| state(&env, job));
    assert_eq!(states, ["ABORTED", "FINISHED", "ABORTED"]);
    env.hq(&["job", "resubmit", &first]).ok();
    env.wait_job("5");
    assert!(
        env.path("out-5-1").exists(),
        "placeholders are kept over the restart"
    );
}
