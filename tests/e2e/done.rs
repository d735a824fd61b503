//! A submit leaves out work that is already done: `--inputs`, `--outputs`, `--skip-done`.

use std::time::{Duration, SystemTime};

use crate::harness::{Env, signal};

fn touch(env: &Env, name: &str, at: SystemTime) {
    let file = std::fs::File::options().write(true).open(env.path(name));
    file.expect("a file").set_modified(at).expect("a time");
}

#[test]
fn what_is_done_is_left_out_through_a_restart_and_what_changed_runs_again() {
    let mut env = Env::new();
    let journal = ["--journal=j.db"];
    let server = env.start_server_with(&journal);
    env.start_worker(4);
    std::fs::create_dir(env.path("out")).expect("directory");
    for id in 1..=30 {
        env.write(&format!("in-{id}"), format!("{id}\n"));
    }
    let script = "echo $HQ_TASK_ID >> ran; test $HQ_TASK_ID != 30 -o -e fixed && cp in-$HQ_TASK_ID out/$HQ_TASK_ID";
    let array = [
        "submit",
        "--array=1-30",
        "--inputs=in-%{TASK_ID}",
        "--outputs=out/%{TASK_ID}",
        "--skip-done",
        "--wait",
        "--",
        "sh",
        "-c",
        script,
    ];
    let ran = |env: &Env| {
        let mut ran: Vec<u32> = env
            .read("ran")
            .lines()
            .filter_map(|l| l.parse().ok())
            .collect();
        std::fs::remove_file(env.path("ran")).expect("it was there");
        ran.sort_unstable();
        ran
    };
    env.hq(&array).ok();
    assert_eq!(ran(&env).len(), 30);
    assert!(env.path("out/.1.hq-done").exists());
    assert!(!env.path("out/.30.hq-done").exists(), "it failed");
    // Another server has no record of the work, and needs none.
    signal(server, "KILL");
    env.wait_exit("server");
    std::fs::remove_file(env.path("j.db")).expect("the journal");
    env.start_server_with(&["--fresh"]);
    env.start_worker(4);
    env.write("fixed", "");
    env.hq(&array)
        .says("29 of 30 tasks already done and left out");
    assert_eq!(ran(&env), [30]);
    // Nothing is left to do, so the job has no tasks and finishes at once.
    let job = env
        .hq(&[&["--output-mode=quiet"], &array[..]].concat())
        .ok();
    let info = &env.json(&["job", "info", job.trim()])[0]["info"];
    assert_eq!(
        (&info["task_count"], &info["is_open"]),
        (&0.into(), &false.into()),
        "{info}"
    );
    // An older time also counts as a change, because clocks differ.
    touch(
        &env,
        "in-7",
        SystemTime::now() - Duration::from_secs(1_000_000),
    );
    std::fs::remove_file(env.path("out/9")).expect("an output");
    env.write("out/11", "");
    env.hq(&array).ok();
    assert_eq!(ran(&env), [7, 9, 11]);
    let mut other = array;
    other[8] = "-ec";
    env.hq(&other).ok();
    assert_eq!(ran(&env).len(), 30, "the command is another one");
}

#[test]
fn what_would_run_is_told_with_changed_only() {
    let env = Env::new();
    for other in [&[][..], &["--filter=failed"], &["--suggested"]] {
        env.hq(&[&["job", "resubmit", "1", "--dry-run"], other].concat())
            .exits_with(2)
            .says("--dry-run needs --changed");
    }
}

#[test]
fn a_job_is_submitted_again_without_what_is_done() {
    let mut env = Env::new();
    env.start_server_with(&["--journal=j.db"]);
    env.start_worker(4);
    let task = |name: &str, input: &str, script: &str| {
        format!(
            "[[task]]\ncommand = [\"sh\", \"-ec\", \"echo {name} >> ran; {script}\"]\n\
             inputs = [\"{input}\"]\noutputs = [\"{name}\"]\n"
        )
    };
    let file = [
        task("a", "src", "cat src > a"),
        task("b", "a", "test -e fixed; cat a > b"),
        task("c", "b", "cat b > c"),
        task("d", "other", "cat other > d"),
    ];
    env.write("make.toml", file.concat());
    env.write("src", "1");
    env.write("other", "2");
    env.hq(&["job", "submit-file", "make.toml", "--wait"])
        .says("Job 1 failed");
    let again = |env: &Env, job: &str| {
        let _ = std::fs::remove_file(env.path("ran"));
        let ran = env.hq(&["job", "resubmit", job, "--changed", "--wait"]);
        let mut names: Vec<String> = match env.path("ran").exists() {
            true => env.read("ran").lines().map(str::to_owned).collect(),
            false => Vec::new(),
        };
        names.sort();
        (ran, names.concat())
    };
    env.write("fixed", "");
    let plan = &env.json(&["job", "resubmit", "1", "--changed", "--dry-run"])[0];
    assert_eq!(plan["left_out"], 2, "{plan}");
    assert_eq!(plan["runs"][1]["why"], "it depends on task 2, which runs");
    let (first, names) = again(&env, "1");
    first.says("2 of 4 tasks already done and left out").ok();
    assert_eq!(names, "bc");
    // In the old job, `b` failed and `c` was aborted. Since then, both were completed by other
    // means, which also counts for their dependents.
    std::fs::remove_file(env.path("c")).expect("an output");
    let (second, names) = again(&env, "1");
    second.ok();
    assert_eq!(names, "c");
    let (third, names) = again(&env, "1");
    third.says("There is nothing to resubmit").ok();
    assert_eq!(names, "");
    env.write("src", "3");
    let (fourth, names) = again(&env, "1");
    fourth.ok();
    assert_eq!((names.as_str(), env.read("c").as_str()), ("abc", "3"));
    let job = env.hq(&[
        "--output-mode=quiet",
        "submit",
        "--outputs=x",
        "--",
        "sleep",
        "100",
    ]);
    let job = job.ok();
    env.hq(&["job", "resubmit", job.trim(), "--changed"])
        .says("it has not ended")
        .exits_with(1);
    env.hq(&["job", "cancel", job.trim()]).ok();
    env.submit(&["--", "true"]);
    env.wait_job("last");
    env.hq(&["job", "resubmit", "last", "--changed"])
        .says("none of its tasks names its outputs")
        .exits_with(1);
}

#[test]
fn what_is_being_done_again_is_not_begun_a_second_time() {
    let mut env = Env::new();
    env.start_server();
    env.start_worker(2);
    env.write("in", "1");
    let script = "cp in out; while [ -e hold ]; do sleep 0.05; done";
    env.submit(&["--inputs=in", "--outputs=out", "--", "sh", "-c", script]);
    env.wait_job("1");
    env.write("in", "2");
    env.write("hold", "");
    let again = ["job", "resubmit", "1", "--changed"];
    env.hq(&again).ok();
    env.hq(&again)
        .says("it was already resubmitted as job 2: 1 task has not ended")
        .exits_with(1);
    std::fs::remove_file(env.path("hold")).expect("it is there");
    env.wait_job("2");
    env.hq(&again).says("There is nothing to resubmit").ok();
}

#[test]
fn tasks_that_were_added_by_tasks_are_left_to_those_when_they_run_again() {
    let mut env = Env::new();
    env.start_server();
    env.start_worker(2);
    env.write("in", "1");
    // Each task adds the next one, down to task 2.
    let script = r#"echo $HQ_TASK_ID >> ran
        next=$((HQ_TASK_ID + 1))
        test $next = 3 || $HQ submit --job $HQ_JOB_ID --array $next --outputs out-$next -- sh run.sh || exit 1
        cp in out-$HQ_TASK_ID"#;
    env.write("run.sh", script);
    let first = ["--open", "--array=0", "--inputs=in", "--outputs=out-0"];
    env.submit(&[&first[..], &["--", "sh", "run.sh"]].concat());
    env.wait_job("1");
    let again = ["job", "resubmit", "1", "--changed", "--wait"];
    env.hq(&again).says("There is nothing to resubmit").ok();
    env.write("in", "2");
    env.hq(&again)
        .says("0 of 1 task already done and left out")
        .ok();
    let totals = &env.json(&["job", "info", "2"])[0]["info"];
    assert_eq!(totals["task_count"], 3, "{totals}");
    assert_eq!(env.read("ran"), "0\n1\n2\n0\n1\n2\n");
}

#[test]
fn files_with_other_times_are_the_same_by_their_contents() {
    let mut env = Env::new();
    env.start_server();
    env.start_worker(2);
    env.write("in", "abc");
    let submit = |env: &Env| {
        let _ = std::fs::remove_file(env.path("ran"));
        let args = [
            "submit",
            "--inputs=in",
            "--outputs=out",
            "--by-content",
            "--skip-done",
            "--wait",
            "--",
            "sh",
            "-c",
            "echo x >> ran; cp in out",
        ];
        env.hq(&args).ok();
        env.path("ran").exists()
    };
    assert!(submit(&env));
    assert!(env.read(".out.hq-done").starts_with("hq-done 4\n"));
    assert!(!submit(&env));
    let now = SystemTime::now();
    touch(&env, "in", now);
    touch(&env, "out", now - Duration::from_secs(50));
    assert!(!submit(&env), "the contents are as they were");
    env.hq(&["job", "resubmit", "1", "--changed"])
        .says("1 of 1 task already done and left out")
        .ok();
    env.write("in", "abd");
    assert!(submit(&env), "as many bytes, and others");
}

#[test]
fn files_order_the_tasks_of_a_job_file_also_without_a_server() {
    let env = Env::new();
    let task = |name: &str, inputs: &str, script: &str| {
        format!(
            "[[task]]\ncommand = [\"sh\", \"-ec\", \"echo {name} >> ran; {script}\"]\n\
             inputs = [{inputs}]\noutputs = [\"{name}\"]\ncheck_outputs = true\n"
        )
    };
    // The tasks are in the wrong order, so their files determine the dependencies.
    let file = [
        task("all", "\\\"b1\\\", \\\"./b2\\\"", "cat b1 b2 > all").replace('\\', ""),
        task("b1", "\"a1\"", "cat a1 > b1"),
        task("b2", "\"a2\"", "cat a2 > b2"),
        task("a1", "\"src1\"", "cat src1 > a1"),
        task("a2", "\"src2\"", "cat src2 > a2"),
    ];
    env.write("make.toml", file.concat());
    env.write("src1", "1");
    env.write("src2", "2");
    let run = || {
        let ran = env.hq(&["run", "--skip-done", "make.toml"]);
        let order = if env.path("ran").exists() {
            env.read("ran")
        } else {
            String::new()
        };
        let _ = std::fs::remove_file(env.path("ran"));
        (ran, order)
    };
    let (first, order) = run();
    first.ok();
    assert_eq!(
        (order.lines().count(), env.read("all").as_str()),
        (5, "12"),
        "{order}"
    );
    let (second, order) = run();
    second.says("5 of 5 tasks already done and left out").ok();
    assert_eq!(order, "");
    env.write("src2", "3");
    let args = [
        "--output-mode=json",
        "run",
        "--dry-run",
        "--skip-done",
        "make.toml",
    ];
    let plan: serde_json::Value = serde_json::from_str(&env.hq(&args).ok()).expect("JSON");
    assert_eq!(plan["left_out"], 2, "{plan}");
    let (third, order) = run();
    third.ok();
    assert_eq!(
        (order.as_str(), env.read("all").as_str()),
        ("a2\nb2\nall\n", "13")
    );
    // A task with a missing output fails if this is requested.
    std::fs::remove_file(env.path("b1")).expect("an output");
    let broken = std::fs::read_to_string(env.path("make.toml")).expect("the file");
    env.write("make.toml", broken.replace("cat a1 > b1", "true"));
    let (fourth, order) = run();
    fourth.exits_with(1).says("its output");
    assert_eq!(order, "b1\n", "nothing behind it runs");
}

#[test]
fn what_waits_runs_and_a_later_attempt_of_a_task_submits_the_same() {
    let mut env = Env::new();
    env.start_server();
    env.start_worker(2);
    let submit = |job: &[&str], input: &str, output: &str, script: &str| {
        let inputs = format!("--inputs={input}");
        let outputs = format!("--outputs={output}");
        let files = [inputs.as_str(), &outputs, "--skip-done"];
        let command = ["--", "sh", "-ec", script];
        [&["submit"], job, &files[..], &command[..]]
            .concat()
            .into_iter()
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let run = |words: Vec<String>| env.hq(&words.iter().map(String::as_str).collect::<Vec<_>>());
    let script = "while ! test -e go; do sleep 0.05; done; cp in mid";
    let first = || submit(&[], "in", "mid", script);
    let second = |job: &[&str]| submit(job, "mid", "fin", "cp mid fin");
    env.write("go", "");
    env.write("in", "old");
    run(first()).ok();
    run(second(&["--after-each=last", "--wait=ok"])).ok();
    assert_eq!(env.read("fin"), "old");
    run(second(&["--wait=ok"])).says("1 of 1 task already done and left out");
    // While the first task waits to write, the input of the second one is unchanged.
    env.write("in", "newer");
    std::fs::remove_file(env.path("go")).expect("it was there");
    run(first()).says("0 of 1 task already done and left out");
    run(second(&["--after=last", "--dry-run"])).says("it waits for job 4");
    let told = run(second(&["--after-each=last", "--output-mode=quiet"])).ok();
    env.write("go", "");
    env.wait_job(told.trim());
    assert_eq!(env.read("fin"), "newer");
    run(second(&["--after=4"])).says("1 of 1 task already done and left out");

    // The second attempt finds that the submits of the first one are done.
    env.write(
        "parent.sh",
        "$HQ submit --job $HQ_JOB_ID --array 10-13 --outputs 'o-%{TASK_ID}' --skip-done -- \
         sh -c 'touch o-$HQ_TASK_ID' || exit 3\n\
         while ! test -e .o-10.hq-done; do sleep 0.05; done\n\
         test $HQ_INSTANCE_ID = 1\n",
    );
    let parent = ["submit", "--open", "--retries=3", "--retry-delay=10ms"];
    let parent = [&parent[..], &["--wait=ok", "--", "sh", "parent.sh"]].concat();
    env.hq(&parent).ok();
    let job = &env.json(&["job", "info", "last"])[0]["info"];
    assert_eq!(job["task_stats"]["finished"], 5, "{job}");
}
