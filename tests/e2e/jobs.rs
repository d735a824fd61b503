//! Tests submits: outputs, environments, entries, scripts, job files, errors of tasks.

use serde_json::json;

use crate::harness::Env;

#[test]
fn outputs_hold_exactly_what_each_task_wrote() {
    let env = Env::with_worker(4);
    let script = "echo out $HQ_TASK_ID; echo err $HQ_TASK_ID >&2";
    let job = env.submit(&["--array=1-500", "--wait", "--", "bash", "-c", script]);
    for task in 1..=500 {
        assert_eq!(
            env.read(&format!("job-{job}/{task}.stdout")),
            format!("out {task}\n")
        );
        assert_eq!(
            env.read(&format!("job-{job}/{task}.stderr")),
            format!("err {task}\n")
        );
    }
    let cat = env.hq(&["job", "cat", &job, "--tasks=7-8", "stdout"]).ok();
    assert_eq!(cat, "out 7\nout 8\n");
}

#[test]
fn tasks_see_their_environment() {
    let env = Env::with_worker(2);
    let script = "echo $HQ_JOB_ID,$HQ_TASK_ID,$HQ_INSTANCE_ID,$HQ_SUBMIT_DIR,$A,$HQ_CPUS,$OMP_NUM_THREADS,$PWD";
    std::fs::create_dir(env.path("sub")).expect("directory");
    env.submit(&[
        "--env=A=b c",
        "--cwd=sub",
        "--stdout=%{JOB_ID}.txt",
        "--wait",
        "--",
        "bash",
        "-c",
        script,
    ]);
    let dir = env.path("").canonicalize().expect("test directory");
    let dir = dir.to_str().expect("text");
    let seen = env.read("sub/1.txt");
    let fields: Vec<&str> = seen.trim().split(',').collect();
    assert_eq!(&fields[..5], ["1", "0", "0", dir, "b c"]);
    assert!(["0", "1"].contains(&fields[5]), "{seen}");
    assert_eq!(fields[6..], ["1", &format!("{dir}/sub")]);
}

#[test]
fn entries_come_from_lines_and_json() {
    let env = Env::with_worker(2);
    env.write("lines", "a b\n\nlast without newline");
    env.write("items.json", r#"[{"b": 1, "a": [1, 2]}, "x", 3.0, null]"#);
    let show = [
        "--wait",
        "--stderr=none",
        "--",
        "bash",
        "-c",
        "printf '%s' \"$HQ_ENTRY\"",
    ];
    let lines = env.submit(&[&["--each-line=lines"], &show[..]].concat());
    let items = env.submit(&[&["--from-json=items.json", "--array=0,2-9"], &show[..]].concat());
    let read = |job: &str, task: u32| env.read(&format!("job-{job}/{task}.stdout"));
    assert_eq!(
        [read(&lines, 0), read(&lines, 1), read(&lines, 2)],
        ["a b", "", "last without newline"]
    );
    assert_eq!(
        [read(&items, 0), read(&items, 2), read(&items, 3)],
        [r#"{"a":[1,2],"b":1}"#, "3.0", "null"]
    );
    assert_eq!(env.hq(&["job", "task-ids", &items]).ok(), "0,2-3\n");
}

#[test]
fn directives_of_a_script_are_options() {
    let env = Env::with_worker(2);
    env.write("job.sh", "#!/bin/bash\n#HQ --name=it's --array 1-3\n#HQ --stdout %{TASK_ID}.txt\necho $1 $HQ_TASK_ID\n");
    let job = env.submit(&["--wait", "job.sh", "hello"]);
    assert_eq!(env.read("2.txt"), "hello 2\n");
    let info = env.json(&["job", "info", &job]);
    assert_eq!(info[0]["info"]["name"], "it's");
    env.write("bad.sh", "#!/bin/bash\n#HQ --foo\ntrue\n");
    env.hq(&["submit", "bad.sh"])
        .exits_with(1)
        .says("You have used invalid parameter(s) after a #HQ directive.")
        .says("unexpected argument '--foo'");
}

#[test]
fn a_diamond_of_dependencies_runs_in_order() {
    let env = Env::with_worker(4);
    let task = |id: u32, deps: &str| {
        format!(
            "[[task]]\nid = {id}\ndeps = {deps}\nstdout = \"none\"\nstderr = \"none\"\n\
             command = [\"bash\", \"-c\", \"echo {id} >> order\"]\n"
        )
    };
    let file = [
        task(4, "[2, 3]"),
        task(1, "[]"),
        task(2, "[1]"),
        task(3, "[1]"),
    ]
    .concat();
    env.write("job.toml", format!("name = \"diamond\"\n{file}"));
    let job = env
        .hq(&["job", "submit-file", "job.toml", "--output-mode=quiet"])
        .ok();
    env.wait_job(job.trim());
    let order = env.read("order");
    let lines: Vec<&str> = order.lines().collect();
    assert_eq!((lines[0], lines[3]), ("1", "4"));
    assert_eq!(env.stats(job.trim())["finished"], 4);
}

#[test]
fn dependents_of_a_failed_task_are_aborted() {
    let env = Env::with_worker(2);
    let file = "[[task]]\nid = 0\ncommand = [\"false\"]\n\
                [[task]]\nid = 1\ncommand = [\"true\"]\ndeps = [0]\n\
                [[task]]\nid = 2\ncommand = [\"true\"]\ndeps = [1]\n\
                [[task]]\nid = 3\ncommand = [\"true\"]\n";
    env.write("job.toml", file);
    let job = env
        .hq(&["job", "submit-file", "job.toml", "--output-mode=quiet"])
        .ok();
    env.wait_job(job.trim());
    let states: Vec<_> = env
        .tasks(job.trim())
        .iter()
        .map(|t| t["state"].clone())
        .collect();
    assert_eq!(
        states,
        [
            json!("failed"),
            json!("aborted"),
            json!("aborted"),
            json!("finished")
        ]
    );
}

#[test]
fn job_file_mistakes_are_shown_with_their_place() {
    let env = Env::with_worker(1);
    env.write(
        "job.toml",
        "name = \"x\"\n[[task]]\ncommand = [\"true\"]\ncomand = 1\n",
    );
    let ran = env.hq(&["job", "submit-file", "job.toml"]).exits_with(1);
    assert!(
        ran.stderr.contains("comand") && ran.stderr.contains("4"),
        "{}",
        ran.stderr
    );
    let task = |id: u32, deps: &str| format!("[[task]]\nid={id}\ndeps=[{deps}]\ncommand=[\"x\"]\n");
    let graph = "is part of dependency cycle or has an invalid dependencies\n";
    for (tasks, told) in [
        (
            [task(1, "2"), task(2, "1")],
            format!("Error: Task 1 {graph}job.toml, line 3, column 7: tasks wait for each other: 1 -> 2 -> 1"),
        ),
        (
            [task(1, ""), task(2, "1, 99999")],
            format!("Error: Task 2 {graph}job.toml, line 7, column 10: task 99999 does not exist in this file"),
        ),
        (
            [task(5, ""), task(5, "")],
            "Error: Task 5 is defined multiple times\njob.toml, line 6, column 4: an earlier task already has the id 5".to_owned(),
        ),
    ] {
        // A large file is read in parts, and errors have the same positions.
        for others in [0, 30_000] {
            let others = (10..10 + others).map(|id| task(id, ""));
            let content: Vec<String> = tasks.iter().cloned().chain(others).collect();
            env.write("job.toml", content.concat());
            env.hq(&["job", "submit-file", "job.toml"])
                .exits_with(1)
                .says(&told);
        }
    }
    env.write("job.toml", b"[[task]]\ncommand = [\"\xff\"]\n");
    env.hq(&["job", "submit-file", "job.toml"])
        .exits_with(1)
        .says("Cannot read job.toml: expected UTF-8, found the byte 0xff in line 2, column 13");
    assert_eq!(
        env.json(&["job", "list", "--all"]),
        json!([]),
        "a refused submit leaves nothing"
    );
}

#[test]
fn failures_say_what_happened() {
    let env = Env::with_worker(2);
    env.write("here", "");
    env.write("noexec.sh", "true\n");
    let error = |args: &[&str]| {
        let job = env.submit(&[&["--wait", "--stdout=none", "--stderr=none"], args].concat());
        env.tasks(&job)[0]["error"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    assert_eq!(
        error(&["--", "bash", "-c", "exit 7"]),
        "Program terminated with exit code 7."
    );
    assert_eq!(
        error(&["--", "bash", "-c", "kill -9 $$"]),
        "Program terminated with exit code -1. Received signal 9 (SIGKILL)."
    );
    assert_eq!(
        error(&["--time-limit=200ms", "--", "sleep", "1000"]),
        "Time limit reached"
    );
    let missing = error(&["--", "here", "x"]);
    assert!(
        missing.contains("Cannot execute \"here x\": No such file or directory (os error 2)"),
        "{missing}"
    );
    assert!(
        missing.contains("maybe you have meant `./here` instead?"),
        "{missing}"
    );
    let denied = error(&["--directives=off", "--", "./noexec.sh"]);
    assert!(
        denied.contains(
            "The script that you have tried to execute (`./noexec.sh`) is not executable."
        ),
        "{denied}"
    );
    let unwritable = env.submit(&["--wait", "--stdout=/proc/nope/x", "--", "true"]);
    let text = env.tasks(&unwritable)[0]["error"].to_string();
    assert!(text.contains("/proc/nope"), "{text}");
}

#[test]
fn missing_working_directories_are_created_and_files_removed_on_success() {
    let env = Env::with_worker(1);
    let job = env.submit(&[
        "--wait",
        "--cwd=new/%{TASK_ID}",
        "--stdout=deep/out:rm-if-finished",
        "--stderr=deep/err",
        "--array=1-2",
        "--",
        "bash",
        "-c",
        "pwd; exit $((HQ_TASK_ID - 1))",
    ]);
    assert!(!env.path("new/1/deep/out").exists());
    assert!(env.read("new/2/deep/out").trim().ends_with("/new/2"));
    assert_eq!(env.stats(&job)["failed"], 1);
}

#[test]
fn stdin_and_time_limits_and_priorities_work() {
    let env = Env::with_worker(1);
    let mut command = env.command(&["submit", "--wait", "--stdin", "--stdout=in", "--", "cat"]);
    let mut child = command
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("hq runs");
    std::io::Write::write_all(&mut child.stdin.take().expect("piped"), b"fed").expect("write");
    assert!(child.wait().expect("ends").success());
    assert_eq!(env.read("in"), "fed");
    env.submit(&["--", "bash", "-c", "until [ -e go ]; do sleep 0.01; done"]);
    let append = |p: &str| format!("echo {p} >> order");
    for priority in ["0", "3", "-2", "1"] {
        env.submit(&[
            &format!("--priority={priority}"),
            "--",
            "bash",
            "-c",
            &append(priority),
        ]);
    }
    env.write("go", "");
    env.hq(&["job", "wait", "all"]).ok();
    assert_eq!(env.read("order"), "3\n1\n0\n-2\n");
}

#[test]
fn multi_node_task_gets_whole_workers_of_one_group() {
    let mut env = Env::new();
    env.start_server();
    for (host, group) in [("a1.x", "a"), ("b1.x", "b"), ("a2.x", "a"), ("a3.x", "a")] {
        env.start_worker_with(&[
            "--cpus=2",
            &format!("--hostname={host}"),
            &format!("--group={group}"),
        ]);
    }
    let script = "echo $HQ_NUM_NODES; cat $HQ_NODE_FILE $HQ_HOST_FILE; echo \"[$HQ_CPUS]\"; touch up; \
                  until [ -e go ]; do sleep 0.01; done";
    let job = env.submit(&["--nodes=3", "--stdout=out", "--", "bash", "-c", script]);
    let hosts = "3\na1\na2\na3\na1.x\na2.x\na3.x\n[]\n";
    assert_eq!(env.wait_lines("out", 8), hosts);
    let info = env.json(&["worker", "info", "1,3"]);
    assert_eq!(
        info[0]["runtime_info"],
        serde_json::json!({ "MultiNodeTask": { "main_node": true } })
    );
    assert_eq!(
        info[1]["runtime_info"],
        serde_json::json!({ "MultiNodeTask": { "main_node": false } })
    );
    assert_eq!(env.tasks(&job)[0]["workers"], serde_json::json!([1, 3, 4]));
    // Nothing else runs on these nodes meanwhile, but the other group is free.
    let small = env.submit(&["--array=1-4", "--", "true"]);
    env.wait_job(&small);
    for task in env.tasks(&small) {
        assert_eq!(task["worker"], 2);
    }
    env.write("go", "");
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 1);
}

#[test]
fn multi_node_task_is_not_starved_by_small_ones() {
    let mut env = Env::with_worker(1);
    env.start_worker(1);
    let small = env.submit(&["--array=1-400", "--", "sleep", "0.05"]);
    let gang = env.submit(&["--nodes=2", "--", "true"]);
    env.wait_job(&gang);
    let left = env.stats(&small)["waiting"].as_u64().expect("a count");
    assert!(
        left > 100,
        "the small tasks were not waited for: {left} left"
    );
    env.hq(&["job", "cancel", &small]).ok();
}

#[test]
fn a_gang_of_four_waits_only_for_what_runs_when_it_comes() {
    let mut env = Env::new();
    env.start_server();
    for _ in 0..4 {
        env.start_worker(1);
    }
    let script =
        "echo small >> order; [ $HQ_TASK_ID -gt 4 ] || until [ -e go ]; do sleep 0.01; done";
    let small = ["--", "bash", "-c", script];
    let first = env.submit(&[&["--array=1-400"], &small[..]].concat());
    env.wait_running(&first, 4);
    let gang = env.submit(&["--nodes=4", "--", "bash", "-c", "echo gang >> order"]);
    // More small tasks arrive while the multi-node task waits.
    let second = env.submit(&[&["--array=5-404"], &small[..]].concat());
    env.write("go", "");
    env.wait_job(&gang);
    let order = env.read("order");
    let before = order.lines().position(|line| line == "gang");
    // These are tasks that ran, and possibly one per worker that started before it could be
    // retracted.
    assert!(
        before.is_some_and(|before| before <= 8),
        "{before:?} before"
    );
    env.hq(&["job", "cancel", &format!("{first},{second}")])
        .ok();
}

#[test]
fn thousands_of_tasks_end_in_the_order_of_their_priorities() {
    let env = Env::with_worker(1);
    env.submit(&["--", "bash", "-c", "until [ -e go ]; do sleep 0.01; done"]);
    // The least urgent task is submitted first, and is overtaken by all later ones. There are more
    // tasks than are sent to a worker ahead of time, but few enough for a busy machine.
    for priority in 0..10 {
        env.submit(&[
            "--array=1-200",
            &format!("--priority={priority}"),
            "--stdout=none",
            "--stderr=none",
            "--",
            "sh",
            "-c",
            &format!("echo {priority} >> order"),
        ]);
    }
    env.write("go", "");
    env.hq(&["job", "wait", "all"]).ok();
    let order = env.read("order");
    let order: Vec<u32> = order
        .lines()
        .map(|line| line.parse().expect("a priority"))
        .collect();
    assert_eq!(order.len(), 2_000);
    // The last submit is answered before its tasks are on the worker, which may have started others
    // by then.
    let early = order.iter().take_while(|priority| **priority != 9).count();
    assert!(early <= 8, "{early} before the most urgent");
    let overtook = order[early..].windows(2).position(|two| two[0] < two[1]);
    assert_eq!(overtook, None, "position of the first that overtook");
}

#[test]
fn jobs_of_equal_priority_run_in_the_order_in_which_they_came() {
    let env = Env::with_worker(1);
    env.submit(&["--", "bash", "-c", "until [ -e go ]; do sleep 0.01; done"]);
    // The requests differ, and the first of these has been seen before.
    let requests = [
        "--time-request=2s",
        "--time-request=1s",
        "--time-request=0s",
    ];
    for (job, request) in ["a", "b", "c"].iter().zip(requests) {
        let script = format!("echo {job}$HQ_TASK_ID >> order");
        env.submit(&["--array=1-50", request, "--", "sh", "-c", &script]);
    }
    env.write("go", "");
    env.hq(&["job", "wait", "all"]).ok();
    let expected: String = ["a", "b", "c"]
        .iter()
        .flat_map(|job| (1..=50).map(move |task| format!("{job}{task}\n")))
        .collect();
    assert_eq!(env.read("order"), expected);
}

/// Scripts poll the list until nothing is running, and then stop the workers.
#[test]
fn a_job_that_runs_is_never_listed_as_waiting() {
    let mut env = Env::new();
    env.start_server();
    env.start_worker(1);
    for sleep in ["0", "0.03"] {
        let array = ["--array=1-20", "--stdout=none", "--stderr=none"];
        let job = env.submit(&[&array[..], &["--", "sleep", sleep]].concat());
        let running = format!("{job} RUNNING");
        let mut states = Vec::new();
        while states.last().is_none_or(|state| *state == running) {
            let list = ["job", "list", "--all", "--output-mode=quiet"];
            let listed = env.hq(&list).ok();
            let mut lines = listed.lines();
            let line = lines.find(|line| line.starts_with(&format!("{job} ")));
            states.push(line.expect("the job is listed").to_owned());
        }
        assert_eq!(states.pop(), Some(format!("{job} FINISHED")), "{states:?}");
    }
}

#[test]
fn names_of_steps_are_shown_with_v_only() {
    let env = Env::with_worker(2);
    env.write(
        "job.toml",
        "[[task]]\nid = \"merge\"\ndeps = [\"prep\"]\nshell = \"cat n | wc -l\"\n\
         [[task]]\nid = \"prep\"\nshell = \"seq 10 > n\"\ncpus = 1\n",
    );
    env.hq(&["submit", "--wait", "true"]).ok();
    env.hq(&["job", "submit-file", "job.toml", "--wait"]).ok();
    assert_eq!(env.hq(&["job", "cat", "2", "stdout"]).ok(), "10\n");
    let plain = env.hq(&["task", "list", "2"]).ok();
    assert!(!plain.contains("merge"), "{plain}");
    assert!(
        env.json(&["task", "list", "2"])["2"][0]
            .get("name")
            .is_none()
    );
    let verbose = env.hq(&["task", "list", "2", "-v"]).ok();
    assert!(verbose.contains("| Name"), "{verbose}");
    assert!(verbose.contains("| merge"), "{verbose}");
    let names = |tasks: &serde_json::Value| {
        let tasks = tasks.as_array().expect("tasks").iter();
        let pairs = tasks.map(|task| (task["id"].clone(), task["name"].clone()));
        pairs.collect::<Vec<_>>()
    };
    let wanted = [(1.into(), "merge".into()), (2.into(), "prep".into())];
    assert_eq!(names(&env.json(&["task", "list", "2", "-v"])["2"]), wanted);
    assert_eq!(
        names(&env.json(&["task", "info", "2", "1-2", "-v"])),
        wanted
    );
    let info = env.hq(&["task", "info", "2", "1", "-v"]).ok();
    assert!(info.contains("| Name"), "{info}");
    env.hq(&["job", "resubmit", "2", "--wait"]).ok();
    assert_eq!(
        names(&env.json(&["task", "list", "3", "-v"])["3"]),
        wanted,
        "names stay"
    );
    let list = env.hq(&["task", "list", "1", "-v"]).ok();
    assert!(!list.contains("Name"), "{list}");
    env.write(
        "wide.toml",
        "[[task]]\nid = \"wide\"\ncommand = [\"true\"]\ncpus = 99\n",
    );
    env.hq(&["job", "submit-file", "wide.toml"]).ok();
    for (args, text) in [
        (
            &["task", "explain", "4.1", "-v"][..],
            "Task 4@1 (wide) is ready",
        ),
        (&["task", "explain", "4.1"], "Task 4@1 is ready"),
    ] {
        env.hq(args).says(text).ok();
    }
}
