//! `hq run` needs no server and no configuration.

use crate::damage::SmallDisk;
use crate::harness::{Env, processes_with, signal, wait_for};

#[test]
fn runs_a_line_each_and_prints_in_order() {
    let env = Env::new();
    let files: Vec<String> = (0..200)
        .map(|i| {
            let name = format!("f{i}");
            env.write(&name, format!("content {i}\n").repeat(i));
            name
        })
        .collect();
    env.write("list", files.join("\n") + "\n");
    let ran = env.hq(&[
        "run",
        "--each-line=list",
        "--",
        "bash",
        "-c",
        "cksum \"$HQ_ENTRY\"",
    ]);
    let ours = ran.ok();
    let direct = std::process::Command::new("cksum")
        .args(&files)
        .current_dir(env.path(""))
        .output()
        .expect("cksum");
    assert_eq!(ours, String::from_utf8_lossy(&direct.stdout));
}

#[test]
fn names_failures_and_exits_with_one() {
    let env = Env::new();
    env.write("list", "list\nmissing-file\n");
    let ran = env.hq(&[
        "run",
        "--each-line=list",
        "--",
        "bash",
        "-c",
        "cat \"$HQ_ENTRY\"",
    ]);
    let ran = ran.exits_with(1).says("missing-file").says("exit code 1");
    assert!(ran.stdout.starts_with("list\n"), "{}", ran.stdout);
    env.hq(&["run", "--", "no-such-program"])
        .exits_with(1)
        .says("no-such-program");
    env.hq(&["run", "--array=1-3", "--", "true"]).exits_with(0);
}

#[test]
fn memory_that_a_task_asks_for_is_a_limit() {
    let env = Env::new();
    let hold = "x=$(head -c 150000000 /dev/zero | tr '\\0' a); sleep 60";
    let run = ["run", "--resource=mem=50"];
    env.hq(&[&run[..], &["--", "bash", "-c", hold]].concat())
        .exits_with(1)
        .says("Out of memory: used ")
        .says(" of 50 MiB");
    let ends = hold.replace("60", "0");
    env.hq(&[
        &run[..],
        &["--enforce-memory=no", "--", "bash", "-c", &ends],
    ]
    .concat())
        .ok();
}

#[test]
fn runs_a_job_file() {
    let env = Env::new();
    env.write(
        "job.toml",
        "[[task]]\nid = 1\ncommand = [\"bash\", \"-c\", \"echo $A > one\"]\nenv = { A = \"x\" }\n\
         [[task]]\nid = 2\ndeps = [1]\ncommand = [\"cat\", \"one\"]\n",
    );
    assert_eq!(env.hq(&["run", "job.toml"]).ok(), "x\n");
    env.write("bad.toml", "[[task]]\ncommand = 3\n");
    env.hq(&["run", "bad.toml"]).exits_with(1).says("command");
}

#[test]
fn first_interrupt_drains_second_kills() {
    let mut env = Env::new();
    let script =
        "echo $HQ_TASK_ID >> started; until [ -e go ]; do sleep 0.01; done; echo end >> ended";
    let pid = env.spawn(
        "run",
        &["run", "-j", "2", "--array=1-50", "--", "bash", "-c", script],
    );
    env.wait_lines("started", 2);
    signal(pid, "INT");
    wait_for("it says that it drains", || {
        let log = env.read("run.log");
        if log.to_lowercase().contains("interrupt") {
            Ok(())
        } else {
            Err(log)
        }
    });
    env.write("go", "");
    assert_eq!(env.wait_exit("run"), Some(130));
    assert_eq!(env.read("started").lines().count(), 2, "no new task starts");
    assert_eq!(env.read("ended").lines().count(), 2, "running tasks finish");
    let pid = env.spawn(
        "hard",
        &[
            "run",
            "--",
            "bash",
            "-c",
            "echo x > hard-started; sleep 98791",
        ],
    );
    env.wait_lines("hard-started", 1);
    signal(pid, "INT");
    wait_for("it says that it drains", || {
        let log = env.read("hard.log");
        if log.to_lowercase().contains("interrupt") {
            Ok(())
        } else {
            Err(log)
        }
    });
    signal(pid, "INT");
    assert_eq!(env.wait_exit("hard"), Some(130));
    assert_eq!(processes_with("sleep 98791"), [] as [u32; 0]);
}

#[test]
fn runs_inside_a_task_without_its_variables() {
    let env = Env::new();
    env.write("list", "outer\n");
    let inner = "\"$HQ\" run --output-mode=quiet -- bash -c 'echo ${HQ_ENTRY-unset} $HQ_TASK_ID'";
    let ran = env.hq(&["run", "--each-line=list", "--", "bash", "-c", inner]);
    assert_eq!(ran.ok(), "unset 0\n");
    let inner = inner.replace("HQ_ENTRY", "HQ_PARAM_N");
    let ran = env.hq(&["run", "--param=n=7", "--", "bash", "-c", &inner]);
    assert_eq!(ran.ok(), "unset 0\n");
}

#[test]
fn output_that_found_no_room_is_no_success() {
    let mut env = Env::new();
    let Some(disk) = SmallDisk::mount(env.path("disk")) else {
        return;
    };
    env.set("TMPDIR", &disk.0.to_string_lossy());
    // Like `sort | head` and many other programs, it ignores write errors.
    let write = |bytes: &str| {
        let script = format!("head -c {bytes} /dev/zero; exit 0");
        env.hq(&["run", "--array=0-2", "--", "bash", "-c", &script])
    };
    let ran = write("5000000").exits_with(1);
    assert!(ran.stdout.len() < 15_000_000);
    assert!(
        ran.stderr.contains("may be incomplete") && ran.stderr.contains(&*disk.0.to_string_lossy()),
        "{}",
        ran.stderr
    );
    assert_eq!(write("500000").ok().len(), 1_500_000);
    let json = env.hq(&[
        "run",
        "--output-mode=json",
        "--",
        "bash",
        "-c",
        // This is far more than fits, because reading frees space.
        "head -c 100000000 /dev/zero; exit 0",
    ]);
    let ran = json.exits_with(1);
    let value: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
    assert_eq!(value["output_complete"], false);
    assert_eq!(value["task_stats"]["finished"], 1);
}

#[test]
fn failures_that_are_alike_are_one_and_the_rest_can_run_again() {
    let env = Env::new();
    let script = "echo \"try $HQ_INSTANCE_ID of $HQ_TASK_ID\"; [ $((HQ_TASK_ID % 4)) != 3 ] || \
                  { echo \"ValueError: seed $HQ_TASK_ID\" >&2; exit 1; }; [ $HQ_TASK_ID != 5 ] || kill -9 $$";
    let run = |ids: &str, more: &[&str]| {
        let array = ["--array", ids, "--retries=2", "--", "bash", "-c", script];
        env.hq(&[&["run"], more, &array].concat())
    };
    let ran = run("1-11", &[])
        .exits_with(1)
        .says("Task 3 and 2 like it (7,11) failed after 3 attempts: ")
        .says("    ValueError: seed 3\n")
        .says("Task 5 failed after 3 attempts: ")
        .says("Task 3, attempt 1 of 3:\ntry 0 of 3\nValueError: seed 3\n")
        .says("Task 3, attempt 2 of 3:\ntry 1 of 3\n")
        .says("run --array 3,5,7,11 --retries=2 -- bash -c ");
    assert_eq!(
        ran.stderr.matches("ValueError: seed 7").count(),
        3,
        "{}",
        ran.stderr
    );
    let results: Vec<&str> = ran.stdout.lines().collect();
    assert_eq!(results.len(), 11, "one attempt of each: {results:?}");
    assert_eq!(results[2], "try 2 of 3");
    // All tasks failed, so the same command retries them.
    let ran = run("3", &[]).exits_with(1);
    assert!(!ran.stderr.contains("again: "), "{}", ran.stderr);
    let ran = run("1-11", &["--output-mode=json"]).exits_with(1);
    let value: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let group = &value["failures"][0];
    assert_eq!(
        (&group["count"], &group["tasks"], &group["attempts"]),
        (&3.into(), &"3,7,11".into(), &3.into()),
        "{value}"
    );
}

#[test]
fn steps_of_a_job_file_are_called_by_their_names() {
    let env = Env::new();
    env.write(
        "job.yaml",
        "task:\n  - id: prep\n    shell: echo $HQ_CPUS > prep.txt\n    outputs: [prep.txt]\n    cpus: 1\n\
         \x20 - id: bad\n    deps: [prep]\n    shell: cat prep.txt | grep -q nothing\n",
    );
    env.hq(&["run", "job.yaml"])
        .exits_with(1)
        .says("Task 2 (bad) failed: ")
        .says("run --skip-done job.yaml");
    assert_eq!(env.read("prep.txt"), "0\n");
}
