//! Tests commands and options that have no separate file: access files, selectors, unknown ids,
//! completions, output of tasks, placeholders, error files, limits of accepted input.

use std::io::Write as _;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::harness::{Env, wait_for};

#[test]
fn access_files_are_made_once_and_start_servers() {
    let mut env = Env::new();
    let make = [
        "server",
        "generate-access",
        "full.json",
        "--client-port=1",
        "--worker-port=2",
        "--client-file=client.json",
        "--worker-file=worker.json",
        "--host=h1",
        "--worker-host=h2",
    ];
    env.hq(&make)
        .says("Storing access file as 'full.json'")
        .ok();
    let read = |name: &str| serde_json::from_str::<Value>(&env.read(name)).expect("JSON");
    let keys = |value: &Value| -> Vec<String> {
        value.as_object().expect("object").keys().cloned().collect()
    };
    let full = read("full.json");
    assert_eq!(keys(&full), ["client", "server_uid", "version", "worker"]);
    assert_eq!(
        (&full["client"]["host"], &full["client"]["port"]),
        (&json!("h1"), &json!(1))
    );
    assert_eq!(
        (&full["worker"]["host"], &full["worker"]["port"]),
        (&json!("h2"), &json!(2))
    );
    assert_eq!(keys(&read("client.json")), ["client", "version"]);
    for plane in ["client", "worker"] {
        let mut part = read(&format!("{plane}.json"))[plane].clone();
        let key = full[plane]["secret_key"].as_str().expect("a key");
        assert_eq!(part["secret_key"], key[..128], "without the private key");
        part["secret_key"] = key.into();
        assert_eq!(part, full[plane]);
    }
    env.hq(&make)
        .exits_with(1)
        .says("Cannot create \"full.json\"");
    env.hq(&["server", "generate-access", "x.json", "--client-port=1"])
        .exits_with(2)
        .says("--worker-port <PORT>");
    env.start_server_with(&[
        "--access-file=full.json",
        "--host=localhost",
        "--client-port=0",
        "--worker-port=0",
    ]);
    assert_eq!(
        env.json(&["server", "info"])["server_uid"],
        full["server_uid"]
    );
    let access: Value =
        serde_json::from_str(&env.read("server/hq-current/access.json")).expect("JSON");
    for plane in ["client", "worker"] {
        assert_eq!(access[plane]["secret_key"], full[plane]["secret_key"]);
    }
}

#[test]
fn server_wait_ends_with_the_server_or_the_time() {
    let mut env = Env::new();
    env.hq(&["server", "wait", "--timeout=300ms"])
        .exits_with(1)
        .says("Timeout after 300ms: Could not connect to server at");
    env.spawn("waiting", &["server", "wait"]);
    env.start_server();
    assert_eq!(env.wait_exit("waiting"), Some(0));
    let log = env.read("waiting.log");
    assert!(
        log.contains("Waiting for server to become available (timeout: 5m)..."),
        "{log}"
    );
    assert!(log.contains("Successfully connected to server"), "{log}");
    env.hq(&["server", "start"])
        .exits_with(1)
        .says("is already online, please stop it first");
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn unknown_ids_are_told_and_exit_as_documented() {
    let env = Env::with_worker(1);
    env.submit(&["--wait", "--", "true"]);
    let cases: &[(&[&str], i32, &str)] = &[
        (&["job", "info", "9"], 1, "ERROR Job 9 not found"),
        (&["task", "list", "9"], 1, "WARN Job 9 not found"),
        (
            &["job", "cat", "9", "stdout"],
            1,
            "ERROR Job 9 was not found",
        ),
        (
            &["job", "cancel", "9"],
            1,
            "ERROR Canceling job 9 failed; job not found",
        ),
        (
            &["job", "cancel", "1"],
            0,
            "ERROR Canceling job 1 failed; all tasks are already finished",
        ),
        (
            &["job", "cancel", "all"],
            0,
            "INFO There is nothing to cancel",
        ),
        (
            &["job", "close", "9"],
            1,
            "ERROR Closing job 9 failed; job not found",
        ),
        (
            &["job", "close", "1"],
            0,
            "ERROR Closing job 1 failed; job is already closed",
        ),
        (
            &["job", "close", "all"],
            0,
            "INFO There is nothing to close",
        ),
        (
            &["job", "forget", "9"],
            0,
            "INFO 0 jobs were forgotten, 1 were ignored due to wrong state or invalid ID",
        ),
        (&["job", "wait", "9"], 1, "ERROR Job 9 not found"),
        (&["--output-mode=quiet", "job", "wait", "9"], 0, ""),
        (
            &["job", "progress", "9"],
            1,
            "WARN There are no jobs to wait for",
        ),
        (&["job", "task-ids", "9"], 1, "Error: Job Id not found"),
        (&["task", "info", "9", "0"], 1, "ERROR Cannot find job 9"),
        (&["task", "info", "1", "9"], 1, "WARN Task 9 not found"),
        (&["task", "explain", "9", "0"], 1, "Error: Job not found"),
        (&["task", "explain", "1", "9"], 1, "Error: Task not found"),
        (
            &["task", "explain", "1", "0"],
            1,
            "Error: Explain command works only for tasks in WAITING or RUNNING state",
        ),
        (&["worker", "info", "9"], 1, "ERROR Worker 9 not found"),
        (
            &["worker", "stop", "9"],
            1,
            "ERROR Stopping worker 9 failed; worker not found",
        ),
        (&["worker", "address", "9"], 1, "Worker 9 not found"),
        (&["submit", "--job=9", "--", "true"], 1, "Job 9 not found."),
        (
            &["submit", "--job=1", "--", "true"],
            1,
            "Job 1 is not opened.",
        ),
        (
            &["submit", "--job=1", "--name=x", "--", "true"],
            1,
            "Parameter --name is not allowed when submitting to an open job.",
        ),
        (
            &["job", "submit-file", "none.toml"],
            1,
            "Cannot read none.toml: No such file",
        ),
    ];
    for (args, code, words) in cases {
        env.hq(args).exits_with(*code).says(words);
    }
}

/// Users write the range of all possible ids to select everything.
#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn a_range_of_ids_costs_what_exists() {
    let env = Env::with_worker(1);
    env.submit(&["--array=5-7", "--wait", "--", "true"]);
    env.submit(&["--cpus=9", "--", "true"]);
    let all = "2-4294967295";
    let cases: &[(&[&str], i32, &str)] = &[
        (
            &["job", "info", all],
            1,
            "ERROR Jobs 3-4294967295 not found",
        ),
        (
            &["job", "cancel", all],
            1,
            "ERROR Canceling jobs 3-4294967295 failed; jobs not found",
        ),
        (
            &["job", "close", all],
            1,
            "ERROR Closing jobs 3-4294967295 failed; jobs not found",
        ),
        (
            &["job", "resubmit", "3-4294967295"],
            1,
            "ERROR Resubmitting jobs 3-4294967295 failed; jobs not found",
        ),
        (
            &["job", "stats", all],
            1,
            "ERROR Jobs 3-4294967295 not found",
        ),
        (
            &["job", "wait", all],
            1,
            "ERROR Jobs 3-4294967295 not found",
        ),
        (
            &["job", "progress", all],
            1,
            "ERROR Jobs 3-4294967295 not found",
        ),
        (
            &["job", "cat", all, "stdout"],
            1,
            "ERROR Jobs 3-4294967295 were not found",
        ),
        (&["job", "task-ids", all], 1, "Error: Job Id not found"),
        (
            &["job", "cat", "1", "stdout", "--tasks=7-4294967295"],
            1,
            "WARN Tasks 8-4294967295 of job 1 not found",
        ),
        (
            &["job", "tail", "1.7-4294967295"],
            1,
            "WARN Tasks 8-4294967295 of job 1 not found",
        ),
        (
            &["task", "info", "1", "0-4294967293:2"],
            1,
            "WARN Tasks 0-4:2,8-4294967292:2 not found",
        ),
        (
            &["task", "list", all],
            1,
            "WARN Jobs 3-4294967295 not found",
        ),
        (
            &["task", "list", "1", "--tasks=0-4294967294"],
            1,
            "WARN Tasks 0-4,8-4294967294 of job 1 not found",
        ),
        (
            &["worker", "info", all],
            1,
            "ERROR Workers 2-4294967295 not found",
        ),
        (
            &["worker", "drain", all],
            1,
            "ERROR Draining workers 2-4294967295 failed; workers not found",
        ),
        (
            &["worker", "stop", all],
            1,
            "ERROR Stopping workers 2-4294967295 failed; workers not found",
        ),
        (
            &["job", "forget", all],
            0,
            "INFO 1 job were forgotten, 4294967293 were ignored",
        ),
    ];
    for (args, code, words) in cases {
        let run = env.hq(args).exits_with(*code).says(words);
        let printed = run.stdout.len() + run.stderr.len();
        assert!(printed < 8_000, "{args:?} printed {printed} bytes");
    }
    assert_eq!(env.json(&["job", "info", "3-4294967295"]), json!([]));
    assert_eq!(env.json(&["worker", "stop", all]), json!({}));
}

#[test]
fn jobs_are_selected_listed_and_forgotten() {
    let env = Env::with_worker(2);
    let quiet = |args: &[&str]| env.hq(&[&["--output-mode=quiet"], args].concat()).ok();
    env.submit(&["--wait", "--", "true"]);
    env.submit(&["--wait", "--", "false"]);
    env.hq(&["job", "open", "--name=series", "--max-fails=3"])
        .ok();
    let long = "ä".repeat(60);
    let canceled = env.submit(&["--cpus=9", "--name", &long, "--", "true"]);
    env.hq(&["job", "cancel", &canceled, "--reason=no such machine"])
        .ok();
    assert_eq!(quiet(&["job", "list"]), "3 OPENED\n");
    assert_eq!(
        quiet(&["job", "list", "--filter=failed,canceled"]),
        "2 FAILED\n4 CANCELED\n"
    );
    let all = env.hq(&["job", "list", "--all", "--verbose"]).ok();
    let cut = format!("{}...{}", "ä".repeat(24), "ä".repeat(23));
    assert!(
        all.contains(&cut) && all.contains("| no such machine |"),
        "{all}"
    );
    assert_eq!(env.json(&["job", "info", "3"])[0]["max_fails"], 3);
    env.hq(&["job", "forget", "all", "--filter=failed,canceled"])
        .says("2 jobs were forgotten, 2 were ignored due to wrong state or invalid ID")
        .ok();
    env.hq(&["job", "forget", "1-4"])
        .says("1 job were forgotten, 3 were ignored")
        .ok();
    assert_eq!(quiet(&["job", "list", "--all"]), "3 OPENED\n");
    env.hq(&["job", "info", "last"])
        .says("Job 4 not found")
        .exits_with(1);
    env.hq(&["job", "close", "all"]).says("Job 3 closed").ok();
    assert_eq!(quiet(&["job", "list", "--all"]), "3 FINISHED\n");
    let failed = ["job", "list", "--all", "--filter=failed"];
    assert_eq!(quiet(&failed), "", "a filter also holds with --all");
    assert_eq!(env.submit(&["--", "true"]), "5", "ids are not used again");
}

#[test]
fn job_cat_prints_what_is_asked_for() {
    let env = Env::with_worker(2);
    let script = "echo out $HQ_TASK_ID; echo err $HQ_TASK_ID >&2; exit $((HQ_TASK_ID == 2))";
    let job = env.submit(&["--array=1-3", "--wait", "--", "bash", "-c", script]);
    let cat = |args: &[&str]| env.hq(&[&["job", "cat", &job], args].concat());
    assert_eq!(cat(&["stdout", "--tasks=3,1"]).ok(), "out 3\nout 1\n");
    assert_eq!(
        cat(&["stderr", "--task-status=failed", "--print-task-header"]).ok(),
        format!("# Job {job}, task 2\nerr 2\n")
    );
    cat(&["stdout", "--tasks=7"])
        .says(&format!("WARN Task 7 of job {job} not found"))
        .exits_with(1);
    cat(&["stdout", "--task-status=canceled"])
        .says(&format!(
            "No tasks were selected for job {job}, there is nothing to print"
        ))
        .ok();
    std::fs::remove_file(env.path(&format!("job-{job}/1.stdout"))).expect("it was printed above");
    cat(&["stdout", "--tasks=1"])
        .says("cannot be opened: ")
        .ok();
    let silent = env.submit(&["--stdout=none", "--wait", "--", "true"]);
    env.hq(&["job", "cat", &silent, "stdout"])
        .says("Task 0 has no `stdout` stream associated with it")
        .ok();
}

#[test]
fn paths_follow_their_placeholders() {
    let env = Env::with_worker(1);
    let uid = env.json(&["server", "info"])["server_uid"]
        .as_str()
        .expect("text")
        .to_owned();
    let job = env.submit(&[
        "--wait",
        "--array=5",
        "--cwd=d/%{TASK_ID}/%{SERVER_UID}",
        "--stdout=%{SUBMIT_DIR}/o-%{JOB_ID}-%{INSTANCE_ID}",
        "--stderr=%{CWD}/e%%{WHAT}",
        "--",
        "pwd",
    ]);
    let cwd = env.path(&format!("d/5/{uid}"));
    assert_eq!(
        env.read(&format!("o-{job}-0")).trim(),
        cwd.to_str().expect("text")
    );
    assert!(cwd.join("e%%{WHAT}").exists(), "unknown ones stay");
    let shown = env.json(&["job", "info", &job]);
    let program = &shown[0]["submits"][0]["array"]["program"];
    let text = |key: &str| program[key].as_str().unwrap_or_default().to_owned();
    assert!(
        text("cwd").ends_with(&format!("d/%{{TASK_ID}}/{uid}")),
        "{program}"
    );
    assert!(
        text("stdout").ends_with(&format!("/o-{job}-%{{INSTANCE_ID}}")),
        "{program}"
    );
    let relative = env.submit(&["--cwd=sub", "--stdout=out/x", "--", "true"]);
    let wanted = env.path("sub/out/x").display().to_string();
    let shown = env.json(&["job", "info", &relative]);
    assert_eq!(
        shown[0]["submits"][0]["array"]["program"]["stdout"],
        json!(wanted)
    );
    env.hq(&["job", "info", &relative]).says(&wanted).ok();
    env.hq(&["submit", "--stdout=%{A}-%{B}", "--", "true"])
        .says("WARN Found unknown placeholders `A, B` in stdout path")
        .ok();
    env.hq(&["submit", "--cwd=%{CWD}/x", "--", "true"])
        .exits_with(1)
        .says("Working directory path cannot contain the working directory placeholder `%{CWD}`.");
    env.hq(&["submit", "--array=1-2", "--stdout=x", "--", "true"])
        .says("You have submitted an array job, but the `stdout` path does not contain the task ID placeholder.")
        .ok();
    env.hq(&["submit", "--array=1-1000", "--cpus=99", "--", "true"])
        .says("The job will create 2000 files for stdout and stderr.")
        .ok();
    env.hq(&[
        "submit",
        "--env=A=1",
        "--env=A=2",
        "--cpus=99",
        "--",
        "true",
    ])
    .says("Some environment variables were ignored.")
    .ok();
}

#[test]
fn tasks_explain_their_failure_in_a_file() {
    let env = Env::with_worker(1);
    let error = |script: &str| {
        let job = env.submit(&["--task-dir", "--wait", "--", "bash", "-c", script]);
        let error = env.tasks(&job)[0]["error"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        let dir = env.read(&format!("job-{job}/0.stdout"));
        assert!(
            !std::path::Path::new(dir.trim()).exists(),
            "the directory goes with the task"
        );
        error
    };
    assert_eq!(
        error("echo $HQ_TASK_DIR; echo my words > $HQ_ERROR_FILENAME; exit 1").trim(),
        "my words"
    );
    assert_eq!(
        error("echo $HQ_TASK_DIR; : > $HQ_ERROR_FILENAME; exit 1"),
        "Task created an error file, but it is empty"
    );
    let long = error("echo $HQ_TASK_DIR; printf '%03000d' 7 > $HQ_ERROR_FILENAME; exit 1");
    assert!(
        long.starts_with("000") && long.ends_with("\n[The message was truncated]"),
        "{long}"
    );
    assert_eq!(long.len(), 2048 + "\n[The message was truncated]".len());
    assert_eq!(
        error("echo $HQ_TASK_DIR; echo x > $HQ_ERROR_FILENAME"),
        "",
        "only failures count"
    );
}

#[test]
fn pinned_tasks_know_their_cpus() {
    let env = Env::with_worker(2);
    let show = "echo $HQ_PIN $HQ_CPUS $OMP_NUM_THREADS $OMP_PROC_BIND $OMP_PLACES \
                \"$HQ_RESOURCE_REQUEST_cpus\" $HQ_RESOURCE_VALUES_cpus $HQ_ENTRY; taskset -pc $$";
    let omp = env.submit(&["--pin=omp", "--cpus=2", "--wait", "--", "bash", "-c", show]);
    let seen = env.hq(&["job", "cat", &omp, "stdout"]).ok();
    assert!(
        seen.starts_with("omp 0,1 2 close {0,1} 2 compact 0,1\n"),
        "{seen}"
    );
    let set = env.submit(&[
        "--pin=taskset",
        "--cpus=1",
        "--env=OMP_NUM_THREADS=7",
        "--wait",
        "--",
        "bash",
        "-c",
        show,
    ]);
    let seen = env.hq(&["job", "cat", &set, "stdout"]).ok();
    assert!(
        seen.starts_with("taskset 0 7 1 compact 0\n")
            || seen.starts_with("taskset 1 7 1 compact 1\n"),
        "{seen}"
    );
    let cpu = &seen["taskset ".len()..="taskset ".len()];
    assert!(
        seen.trim().ends_with(&format!("affinity list: {cpu}")),
        "{seen}"
    );
}

#[test]
fn job_files_have_every_key() {
    let env = Env::with_worker(2);
    env.write(
        "array.toml",
        "[array]\nids = \"1-3:2\"\nentries = [\"a\", \"b\"]\ncommand = [\"bash\", \"-c\", \"cat; echo $HQ_ENTRY $X\"]\n\
         stdin = \"in \"\nenv = { X = \"1\" }\ncwd = \"w\"\nstdout = { path = \"%{TASK_ID}.out\", on_close = \"none\" }\n\
         stderr = \"none\"\ntask_dir = true\ntime_limit = \"1min 30s\"\npriority = -2\ncrash_limit = 3\ndata_layer = true\n\
         [[array.request]]\nresources = { cpus = 1 }\n",
    );
    env.hq(&["job", "submit-file", "array.toml"]).ok();
    env.wait_job("1");
    assert_eq!(
        (env.read("w/1.out"), env.read("w/3.out")),
        ("in a 1\n".into(), "in b 1\n".into())
    );
    let info = env.json(&["job", "info", "1"]);
    assert_eq!(info[0]["info"]["name"], "");
    let array = &info[0]["submits"][0]["array"];
    assert_eq!(
        (
            &array["time_limit"],
            &array["priority"],
            &array["crash_limit"],
            &array["task_dir"]
        ),
        (&json!(90.0), &json!(-2), &json!(3), &json!(true))
    );
    let open = env.hq(&["job", "open", "--output-mode=quiet"]).ok();
    env.write(
        "again.toml",
        "name = \"x\"\nmax_fails = 2\n[[task]]\nid = 7\ncommand = [\"true\"]\n",
    );
    env.hq(&["job", "submit-file", "--job", open.trim(), "again.toml"])
        .ok();
    env.hq(&["job", "submit-file", "--job", open.trim(), "again.toml"])
        .exits_with(1)
        .says("Task 7 already exists in job 2.");
    let submit =
        |extra: &[&str]| env.submit(&[&["--job", open.trim()], extra, &["--", "true"]].concat());
    env.write("lines", "a\nb\n");
    submit(&[]);
    submit(&["--each-line=lines"]);
    submit(&["--array=100"]);
    assert_eq!(env.hq(&["job", "task-ids", "2"]).ok(), "7-10,100\n");
    assert_eq!(env.json(&["job", "info", "2"])[0]["info"]["name"], "job");
    env.hq(&["job", "wait", "--without-close", "2"]).ok();
    assert_eq!(env.stats("2")["finished"], 5);
}

#[test]
fn empty_input_is_a_job_without_tasks() {
    let env = Env::with_worker(1);
    env.write("empty", "");
    env.write("empty.json", "[]");
    for option in ["--each-line=empty", "--from-json=empty.json"] {
        let job = env.submit(&[option, "--wait", "--", "true"]);
        let info = env.hq(&["job", "info", &job]).ok();
        assert!(info.contains("| Tasks                | 0  "), "{info}");
        let list = env
            .hq(&["job", "list", "--all", "--output-mode=quiet"])
            .ok();
        assert!(list.contains(&format!("{job} FINISHED\n")), "{list}");
    }
    env.write("object.json", "{}");
    env.hq(&["submit", "--from-json=object.json", "--", "true"])
        .exits_with(1)
        .says("The top element of the provided JSON file has to be an array");
}

#[test]
fn help_completions_and_topics_are_printed() {
    let env = Env::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let ran = env.hq(&["generate-completion", shell]);
        assert!(
            ran.stderr
                .contains(&format!("Generating completion file for {shell}..."))
        );
        let script = ran.ok();
        assert!(
            script.contains("submit-file") && script.contains("after-each"),
            "{shell}"
        );
    }
    for (topic, heading) in [
        ("tasks", "# Jobs"),
        ("slurm", "# hq on Slurm"),
        ("faq", "# "),
        ("quickstart", "# Quick start"),
        ("retries", "# When tasks fail"),
        ("python", "# Python"),
        ("snakemake", "# Snakemake"),
    ] {
        let page = env.hq(&["doc", topic]).ok();
        assert!(page.starts_with(heading), "{topic}: {page}");
    }
    assert!(env.hq(&["doc"]).ok().contains("\nresources  "));
    for (query, words) in [
        (&["memory", "limit"][..], "hq doc resources – "),
        (&["memory limit"], "hq doc resources – "),
        (&["--search", "slurm"], "\n  * "),
        (&["walltimes"], "walltime"),
    ] {
        let found = env.hq(&[&["doc"], query].concat()).ok();
        let starts = found.starts_with("hq doc ");
        assert!(starts && found.contains(words), "{query:?}: {found}");
    }
    assert!(
        env.hq(&["doc", "slurm", "--output-mode=json"])
            .ok()
            .ends_with("\n{}\n")
    );
    let nothing = env.hq(&[]).exits_with(2);
    assert!(nothing.stdout.is_empty() && nothing.stderr.contains("Usage: hq"));
    env.hq(&["help"])
        .exits_with(2)
        .says("unrecognized subcommand 'help'");
    env.hq(&["job", "cancel", "1", "2"])
        .exits_with(2)
        .says("unexpected argument '2' found");
    env.hq(&["submit", "--cpus=1", "--cpus=2", "--", "true"])
        .exits_with(2)
        .says("cannot be used multiple times");
    assert!(
        env.hq(&["submit", "--help"])
            .ok()
            .contains("GLOBAL OPTIONS:")
    );
    assert!(!env.hq(&["submit", "-h"]).ok().contains("GLOBAL OPTIONS:"));
    assert!(env.hq(&["--version"]).ok().starts_with("hq "));
    env.hq(&["--version", "--verbose"])
        .says("\nlibc: ")
        .says("\ncommit: ")
        .ok();
}

#[test]
fn a_reader_that_goes_ends_the_client_quietly() {
    let env = Env::with_worker(1);
    env.submit(&["--array=1-20000", "--cpus=9", "--", "true"]);
    let mut list = env
        .command(&["task", "list", "1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("hq runs");
    drop(list.stdout.take());
    let output = list.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn submit_never_reads_an_open_standard_input() {
    let env = Env::with_worker(1);
    let mut child = env
        .command(&["submit", "--wait", "--output-mode=json", "--", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("hq runs");
    // The pipe stays open until the command has ended.
    let stdin = child.stdin.take();
    let output = child.wait_with_output().expect("it ends");
    drop(stdin);
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "{\n  \"id\": 1\n}\n"
    );
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

#[test]
fn absurd_input_is_handled_or_refused_at_once() {
    let mut env = Env::new();
    env.start_server();
    let many: Vec<String> = (0..1_000_000).map(|id| (id * 2).to_string()).collect();
    env.write("lines", "x\n".repeat(1_000_000));
    let job = env.submit(&["--each-line=lines", "--", "true"]);
    assert_eq!(env.stats(&job)["waiting"], 1_000_000);
    // One task has a million dependencies, and its ids are in a million pieces.
    let mut file =
        std::io::BufWriter::new(std::fs::File::create(env.path("wide.toml")).expect("file"));
    for id in 0..20_000 {
        writeln!(file, "[[task]]\nid = {id}\ncommand = [\"true\"]").expect("write");
    }
    let deps: Vec<String> = (0..20_000).map(|id| id.to_string()).collect();
    writeln!(
        file,
        "[[task]]\nid = 20000\ncommand = [\"true\"]\ndeps = [{}]",
        deps.join(",")
    )
    .expect("write");
    file.flush().expect("write");
    drop(file);
    let job = env
        .hq(&["job", "submit-file", "wide.toml", "--output-mode=quiet"])
        .ok();
    let explained = env.hq(&["task", "explain", job.trim(), "20000"]).ok();
    assert!(
        explained.contains("20000/20000 dependencies are not finished"),
        "{explained}"
    );
    let ids = many[..20_000].join(",");
    let job = env.submit(&[&format!("--array={ids}"), "--", "true"]);
    assert_eq!(env.stats(&job)["waiting"], 20_000);
    env.write("bytes", b"\xff\xfe");
    let mut command = Command::new(env!("CARGO_BIN_EXE_hq"));
    let odd: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"\xff/\xfe");
    let output = command
        .args(["submit", "--output-mode=quiet", "--stdout"])
        .arg(odd)
        .args(["--", "printf"])
        .arg(odd)
        .env("HQ_SERVER_DIR", env.server_dir())
        .current_dir(env.path(""))
        .output()
        .expect("hq runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    env.hq(&["job", "cancel", "1-3"]).ok();
    env.start_worker(1);
    let job = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    env.wait_job(&job);
    wait_for("bytes arrive as they are", || {
        let path: std::path::PathBuf = env.path("").join(odd);
        let printed = std::fs::read(&path).map_err(|e| e.to_string())?;
        (printed == b"\xff/\xfe")
            .then_some(())
            .ok_or(format!("{printed:?}"))
    });
}

#[test]
fn words_that_are_no_text_are_refused_by_name() {
    let odd: &std::ffi::OsStr = std::os::unix::ffi::OsStrExt::from_bytes(b"\xff/\xfe");
    let refused = Command::new(env!("CARGO_BIN_EXE_hq"))
        .args(["submit", "--cwd"])
        .arg(odd)
        .arg("--name")
        .arg(odd)
        .args(["--", "true"])
        .output()
        .expect("hq runs");
    assert_eq!(refused.status.code(), Some(2));
    let told = String::from_utf8_lossy(&refused.stderr);
    let wanted = "error: invalid value '\\xff/\\xfe' for '--name': expected valid UTF-8";
    assert!(told.starts_with(wanted), "{told}");
}
