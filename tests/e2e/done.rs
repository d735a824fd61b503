//! Work that is done is left out of the next submit: `--inputs`, `--outputs`, `--skip-done`.

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
    // Another server knows nothing of it, and need not.
    signal(server, "KILL");
    env.wait_exit("server");
    std::fs::remove_file(env.path("j.db")).expect("the journal");
    env.start_server();
    env.start_worker(4);
    env.write("fixed", "");
    env.hq(&array).says("29 of 30 tasks are done and left out");
    assert_eq!(ran(&env), [30]);
    // Nothing is left: a job without tasks, finished at once.
    let job = env
        .hq(&[&["--output-mode=quiet"], &array[..]].concat())
        .ok();
    let info = &env.json(&["job", "info", job.trim()])[0]["info"];
    assert_eq!(
        (&info["task_count"], &info["is_open"]),
        (&0.into(), &false.into()),
        "{info}"
    );
    // Also older than before: clocks differ.
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
fn files_order_the_tasks_of_a_job_file_also_without_a_server() {
    let env = Env::new();
    let task = |name: &str, inputs: &str, script: &str| {
        format!(
            "[[task]]\ncommand = [\"sh\", \"-ec\", \"echo {name} >> ran; {script}\"]\n\
             inputs = [{inputs}]\noutputs = [\"{name}\"]\ncheck_outputs = true\n"
        )
    };
    // In the wrong order: files decide.
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
    second.says("5 of 5 tasks are done and left out").ok();
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
    // A task that leaves its output missing fails, if that is asked.
    std::fs::remove_file(env.path("b1")).expect("an output");
    let broken = std::fs::read_to_string(env.path("make.toml")).expect("the file");
    env.write("make.toml", broken.replace("cat a1 > b1", "true"));
    let (fourth, order) = run();
    fourth.exits_with(1).says("its output");
    assert_eq!(order, "b1\n", "nothing behind it runs");
}
