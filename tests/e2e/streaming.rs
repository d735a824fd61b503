//! Output of tasks in stream files.

use serde_json::json;

use crate::harness::{Env, wait_for};

#[test]
fn streamed_output_is_found_again() {
    let env = Env::with_worker(2);
    let script = "echo out $HQ_TASK_ID; echo err $HQ_TASK_ID >&2";
    let job = env.submit(&[
        "--stream=log",
        "--array=1-2",
        "--wait",
        "--",
        "bash",
        "-c",
        script,
    ]);
    assert_eq!(job, "1");
    let cat = |args: &[&str]| env.hq(&[&["output-log", "log"], args].concat());
    assert_eq!(cat(&["cat", "1", "stdout"]).ok(), "out 1\nout 2\n");
    assert_eq!(
        cat(&["cat", "1", "stderr", "--task=2,1"]).ok(),
        "err 2\nerr 1\n"
    );
    assert_eq!(cat(&["jobs"]).ok(), "1\n");
    let shown = cat(&["show", "--channel=stdout"]).ok();
    let mut lines: Vec<&str> = shown.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["1.1:0> out 1", "1.2:0> out 2"]);
    let exported = cat(&["export", "1", "--task=1"]).ok();
    let exported: serde_json::Value = serde_json::from_str(&exported).expect("JSON");
    assert_eq!(
        exported,
        json!([{ "finished": true, "id": 1, "stdout": "out 1\n" }])
    );
    let summary = env.json(&["output-log", "log", "summary"]);
    assert_eq!(
        summary,
        json!({ "filename": "log", "summary": {
            "n_files": 1, "n_jobs": 1, "n_opened": 0, "n_streams": 2, "n_superseded": 0, "n_tasks": 2,
            "stderr_size": 12, "stdout_size": 12,
            "superseded_stderr_size": 0, "superseded_stdout_size": 0 } })
    );
    let table = cat(&["summary"]).ok();
    assert!(
        table.contains("| Stdout/stderr size            | 12 B / 12 B |"),
        "{table}"
    );
    cat(&["cat", "7", "stdout"])
        .exits_with(1)
        .says("Job 7 not found");
    cat(&["cat", "1", "stdout", "--task=9"])
        .exits_with(1)
        .says("Task 9 not found");
    env.hq(&["output-log", ".", "summary"])
        .exits_with(1)
        .says("Error: No log files found");
    assert!(!env.path("job-1").exists(), "no files per task");
}

#[test]
fn a_running_task_can_be_read_and_ends_only_with_its_output() {
    let env = Env::with_worker(1);
    let script = "echo begun; while [ ! -e go ]; do sleep 0.01; done; seq 1 100000";
    let job = env.submit(&[
        "--stream=%{SUBMIT_DIR}/s-%{JOB_ID}",
        "--",
        "bash",
        "-c",
        script,
    ]);
    let read = || {
        env.hq(&[
            "output-log",
            "s-1",
            "cat",
            &job,
            "stdout",
            "--allow-unfinished",
        ])
    };
    wait_for("the first line", || {
        let ran = read();
        if ran.stdout == "begun\n" {
            Ok(())
        } else {
            Err(ran.stderr)
        }
    });
    env.hq(&["output-log", "s-1", "cat", &job, "stdout"])
        .exits_with(1)
        .says("Stream for task 0 is not finished");
    assert_eq!(
        env.json(&["output-log", "s-1", "summary"])["summary"]["n_opened"],
        1
    );
    env.write("go", "");
    env.wait_job(&job);
    assert_eq!(read().ok().lines().count(), 100_001);
}

#[test]
fn ten_thousand_tasks_share_one_file() {
    let env = Env::new();
    env.hq(&[
        "run",
        "--stream=log",
        "--array=1-10000",
        "--",
        &env.quick_printenv(),
        "HQ_TASK_ID",
    ])
    .ok();
    let summary = &env.json(&["output-log", "log", "summary"])["summary"];
    let counts = ["n_files", "n_tasks", "n_opened"].map(|key| &summary[key]);
    assert_eq!(counts, [1, 10_000, 0], "{summary}");
    let expected: String = (1..=10_000).map(|id| format!("{id}\n")).collect();
    let cat = env.hq(&["output-log", "log", "cat", "1", "stdout"]);
    assert_eq!(cat.ok(), expected);
    let here = std::fs::read_dir(env.path("")).expect("directory");
    let here: Vec<_> = here
        .map(|entry| entry.expect("entry").file_name())
        .collect();
    assert!(here.iter().any(|name| name == "log"), "{here:?}");
    assert!(!env.path("job-1").exists(), "no files per task: {here:?}");
}

#[test]
fn streamed_and_other_tasks_share_a_worker() {
    let env = Env::with_worker(1);
    let streamed = env.submit(&["--stream=log", "--array=1-300", "--", "echo", "streamed"]);
    let plain = env.submit(&[
        "--array=1-300",
        "--stdout=none",
        "--stderr=none",
        "--",
        "true",
    ]);
    let gone = env.submit(&["--stream=log", "--array=1-300", "--", "sleep", "1000"]);
    env.wait_job(&streamed);
    // Whichever of the other tasks runs now, the first of them would run for a long time.
    env.hq(&["job", "cancel", &gone]).ok();
    env.wait_job(&gone);
    env.wait_job(&plain);
    assert_eq!(env.stats(&streamed)["finished"], 300);
    assert_eq!(env.stats(&plain)["finished"], 300);
    assert_eq!(env.stats(&gone)["canceled"], 300);
    let cat = env.hq(&["output-log", "log", "cat", &streamed, "stdout"]);
    assert_eq!(cat.ok(), "streamed\n".repeat(300));
}

#[test]
fn a_file_that_was_cut_anywhere_stays_readable() {
    let env = Env::new();
    let script = "seq $HQ_TASK_ID 1000 3000; echo end $HQ_TASK_ID";
    env.hq(&[
        "run",
        "--stream=log",
        "--array=1-50",
        "--",
        "bash",
        "-c",
        script,
    ])
    .ok();
    let file = std::fs::read_dir(env.path("log"))
        .expect("directory")
        .map(|entry| entry.expect("entry").path())
        .next()
        .expect("one file");
    let whole = std::fs::read(&file).expect("readable");
    let cat = || {
        env.hq(&[
            "output-log",
            "log",
            "cat",
            "1",
            "stdout",
            "--allow-unfinished",
        ])
    };
    let all = cat().ok();
    let lines: std::collections::BTreeSet<&str> = all.lines().collect();
    for tenth in (1..10).rev() {
        let length = whole.len() * tenth / 10 + tenth;
        std::fs::write(&file, &whole[..length]).expect("written");
        let cut = cat().ok();
        assert!(!cut.is_empty() && cut.len() < all.len(), "{tenth} tenths");
        // Blocks are complete, and short tasks write one block each.
        assert!(cut.lines().all(|line| lines.contains(line)), "{cut}");
        let summary = &env.json(&["output-log", "log", "summary"])["summary"];
        assert_eq!(summary["stdout_size"], cut.len());
    }
    // Damage in the middle only loses the damaged part, and is reported.
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    damaged[middle..middle + 300].fill(b'x');
    std::fs::write(&file, &damaged).expect("written");
    let rest = cat();
    assert!(rest.stderr.contains("damaged"), "{}", rest.stderr);
    assert!(rest.ok().ends_with("end 50\n"));
    std::fs::write(&file, &whole[..100]).expect("written");
    env.hq(&["output-log", "log", "jobs"])
        .exits_with(1)
        .says("Error: No log files found");
}

#[test]
fn job_cat_reads_the_stream() {
    let env = Env::with_worker(2);
    let script = "echo out $HQ_TASK_ID; echo err $HQ_TASK_ID >&2; exit $((HQ_TASK_ID == 2))";
    for dir in ["log", "s-%{JOB_ID}"] {
        env.submit(&[
            &format!("--stream={dir}"),
            "--array=1-3",
            "--wait",
            "--",
            "bash",
            "-c",
            script,
        ]);
    }
    let cat = |args: &[&str]| env.hq(&[&["job", "cat"], args].concat()).ok();
    assert_eq!(cat(&["1", "stdout"]), "out 1\nout 2\nout 3\n");
    let both = cat(&["1-2", "stderr", "--tasks=1,3", "--print-task-header"]);
    let of = |job| format!("# Job {job}, task 1\nerr 1\n# Job {job}, task 3\nerr 3\n");
    assert_eq!(both, of(1) + &of(2));
    assert_eq!(cat(&["last", "stdout", "--task-status=failed"]), "out 2\n");
    std::fs::rename(env.path("log"), env.path("moved")).expect("renamed");
    let ran = env.hq(&["job", "cat", "1", "stdout"]);
    let ran = ran.says("`hq job tail` reads it on the nodes of the tasks");
    assert_eq!(ran.stderr.matches("WARN").count(), 1, "{}", ran.stderr);
    assert_eq!(ran.ok(), "");
}

#[test]
fn a_piece_that_ends_in_mid_line_waits_for_the_next_one() {
    let env = Env::with_worker(2);
    // The other task writes between the two pieces, and the line on standard error is separate.
    let script = "has() { until grep -aq \"$1\" log/*.hqs; do sleep 0.01; done; }; \
                  if [ $HQ_TASK_ID = 2 ]; then has 'one '; has 'of err '; echo other; exit; fi; \
                  printf 'one '; printf 'of err ' >&2; has other; echo line";
    env.submit(&[
        "--stream=log",
        "--array=1-2",
        "--wait",
        "--",
        "bash",
        "-c",
        script,
    ]);
    let shown = env.hq(&["output-log", "log", "show"]).ok();
    let mut lines: Vec<&str> = shown.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["1.1:0> one line", "1.1:1> of err ", "1.2:0> other"]);
}

#[test]
fn channels_can_be_taken_out_of_the_stream() {
    let env = Env::with_worker(1);
    let script = "echo out; echo err >&2";
    env.submit(&[
        "--stream=log",
        "--stdout=plain",
        "--wait",
        "--",
        "bash",
        "-c",
        script,
    ]);
    assert_eq!(env.read("plain"), "out\n");
    assert_eq!(
        env.hq(&["output-log", "log", "cat", "1", "stdout"]).ok(),
        ""
    );
    assert_eq!(
        env.hq(&["output-log", "log", "cat", "1", "stderr"]).ok(),
        "err\n"
    );
    env.hq(&["job", "info", "1"]).says("<Stream>").ok();
}

#[test]
fn an_unwritable_directory_fails_the_task_with_a_reason() {
    let env = Env::with_worker(1);
    env.submit(&["--stream=/proc/no/such", "--wait", "--", "true"]);
    assert_eq!(env.stats("1")["failed"], 1);
    let error = env.tasks("1")[0]["error"].to_string();
    assert!(error.contains("Streaming: "), "{error}");
    env.submit(&["--wait", "--", "true"]);
    assert_eq!(env.stats("2")["finished"], 1, "the worker goes on");
}

#[test]
fn restarted_tasks_supersede_and_servers_are_told_apart() {
    let mut env = Env::with_worker(1);
    let script = "echo instance $HQ_INSTANCE_ID; [ $HQ_INSTANCE_ID = 1 ] || sleep 1000";
    let job = env.submit(&["--stream=log", "--", "bash", "-c", script]);
    wait_for("the first instance writes", || {
        let ran = env.hq(&[
            "output-log",
            "log",
            "cat",
            "1",
            "stdout",
            "--allow-unfinished",
        ]);
        if ran.stdout == "instance 0\n" {
            Ok(())
        } else {
            Err(ran.stderr)
        }
    });
    env.start_worker(1);
    env.hq(&["worker", "stop", "1"]).ok();
    env.wait_job(&job);
    assert_eq!(
        env.hq(&["output-log", "log", "cat", "1", "stdout"]).ok(),
        "instance 1\n"
    );
    let summary = &env.json(&["output-log", "log", "summary"])["summary"];
    assert_eq!(
        [&summary["n_superseded"], &summary["n_files"]],
        [1, 2],
        "{summary}"
    );
    assert_eq!(summary["superseded_stdout_size"], 11);

    let other = Env::with_worker(1);
    let log = format!("--stream={}", env.path("log").display());
    other.submit(&[&log, "--wait", "--", "echo", "other"]);
    let uid = other.json(&["server", "info"])["server_uid"]
        .as_str()
        .expect("uid")
        .to_owned();
    env.hq(&["output-log", "log", "jobs"])
        .exits_with(1)
        .says("Error: Found streams from multiple server instances:")
        .says("Use --server-uid=... to specify server uid");
    let text = env
        .hq(&[
            "output-log",
            "log",
            "--server-uid",
            &uid,
            "cat",
            "1",
            "stdout",
        ])
        .ok();
    assert_eq!(text, "other\n");
}
