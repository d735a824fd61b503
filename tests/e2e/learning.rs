//! Tests requests that are derived from what tasks needed.

use crate::harness::Env;

/// Returns a command that holds this many MiB for this many seconds. `dd` fills its buffer and
/// waits for the reader, without using CPU time, so it does not take longer on a busy machine.
fn hold(mebibytes: &str, seconds: &str) -> String {
    format!("dd if=/dev/zero bs=$(({mebibytes}))M count=1 2> /dev/null | sleep $(({seconds}))")
}

#[test]
fn what_would_have_fitted_is_suggested() {
    let mut env = Env::new();
    env.start_server();
    env.start_worker_with(&["--cpus=4", "--resource=mem=sum(8000)"]);
    // The large task also takes longer, but that must not have much effect.
    let tell = "echo $HQ_RESOURCE_REQUEST_mem >> sizes-$HQ_JOB_ID; ".to_owned();
    let script = tell + &hold("HQ_TASK_ID == 7 ? 300 : 80", "1");
    let mut submit = vec!["--array=1-40", "--resource=mem=900", "--wait", "--"];
    submit.extend(["bash", "-c", &script]);
    let job = env.submit(&submit);
    let found = env.json(&["job", "stats", &job, "--suggest"]);
    let [one] = found.as_array().expect("a list").as_slice() else {
        panic!("one kind of task: {found}");
    };
    assert_eq!(one["finished"], 40, "{one}");
    let options = one["memory"].as_array().expect("a list");
    assert_eq!(options.len(), 2, "{one}");
    assert_eq!(options[0]["again"], 1, "{one}");
    let text = options[0]["options"].as_str().expect("text");
    assert!(text.contains("--retry-grow mem="), "{text}");
    let saved = |option: &serde_json::Value| option["saved"].as_f64().expect("it is known");
    assert!(
        saved(&options[0]) > saved(&options[1]) && saved(&options[1]) > 0.2,
        "{one}"
    );
    // The suggested options can be typed.
    let options = env
        .hq(&["--output-mode=quiet", "job", "stats", &job, "--suggest"])
        .ok();
    let words: Vec<&str> = options.split_whitespace().collect();
    let again = [&words[..], &["--array=1-3", "--wait=ok", "--", "true"]].concat();
    env.submit(&again);
    let table = env.hq(&["job", "stats", &job, "--suggest"]).ok();
    assert!(
        table.contains("1 task runs twice") && table.contains("fits all of them"),
        "{table}"
    );
    // The suggestion can also be requested directly.
    let again = env.hq(&[
        "--output-mode=quiet",
        "job",
        "resubmit",
        &job,
        "--suggested",
    ]);
    let again = again.says("--retry-grow mem=").ok().trim().to_owned();
    env.wait_job(&again);
    assert_eq!(env.stats(&again)["finished"], 40);
    let sizes = env.read(&format!("sizes-{again}"));
    // The size is followed by how it was chosen.
    let size = |line: &str| line.split(' ').next().and_then(|size| size.parse().ok());
    let is_small = |line: &str| size(line).is_some_and(|size: f64| size < 120.0);
    assert!(sizes.lines().all(is_small), "{sizes}");
    // The needs of a job without finished tasks are unknown.
    let failed = env.submit(&["--wait", "--", "false"]);
    env.hq(&["job", "resubmit", &failed, "--suggested"])
        .says("their needs are unknown")
        .exits_with(1);
}

#[test]
fn what_ran_out_of_memory_does_not_do_so_again_with_what_is_suggested() {
    let mut env = Env::new();
    env.start_server();
    env.start_worker_with(&["--cpus=2", "--resource=mem=sum(2000)", "--enforce-memory"]);
    let script = hold("HQ_TASK_ID == 1 ? 500 : 20", "HQ_TASK_ID == 1 ? 5 : 1");
    let mut submit = vec!["--array=1-4", "--resource=mem=250", "--wait", "--"];
    submit.extend(["bash", "-c", &script]);
    env.submit(&submit);
    let found = env.json(&["job", "stats", "last", "--suggest"]);
    assert_eq!(
        (&found[0]["finished"], &found[0]["out_of_memory"]),
        (&3.into(), &1.into())
    );
    env.hq(&[
        "job",
        "resubmit",
        "last",
        "--suggested",
        "--filter=failed",
        "--wait",
    ])
    .ok();
    assert_eq!(env.stats("2")["finished"], 1, "{:?}", env.tasks("2"));
}

#[test]
fn memory_follows_from_what_the_first_tasks_needed() {
    let mut env = Env::new();
    env.start_server();
    env.start_worker_with(&["--cpus=2", "--resource=mem=sum(2000)", "--enforce-memory"]);
    // The other tasks must also take some time, because the server weighs by time which size is
    // worth reserving for all.
    let script = format!(
        "echo $HQ_TASK_ID $HQ_RESOURCE_REQUEST_mem >> sizes; {}",
        hold("HQ_TASK_ID == 24 ? 300 : 80", "HQ_TASK_ID == 24 ? 4 : 1")
    );
    let mut submit = vec!["--array=1-24", "--resource=mem=auto", "--retry-delay=10ms"];
    submit.extend(["--stdout=none", "--", "bash", "-c", &script]);
    let job = env.submit(&submit);
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 24, "{:?}", env.tasks(&job));
    let sizes = env.read("sizes");
    let of = |task: &str| -> Vec<f64> {
        let lines = sizes
            .lines()
            .filter(|line| line.starts_with(&format!("{task} ")));
        lines
            .map(|line| {
                line.split(' ')
                    .nth(1)
                    .expect("a size")
                    .parse()
                    .expect("a number")
            })
            .collect()
    };
    // The first tasks have an equal share. The large task ran out of the memory that was learned.
    assert_eq!(of("1"), [1000.0], "{sizes}");
    let last = of("24");
    assert!(
        last.len() >= 2 && (80.0..300.0).contains(&last[0]),
        "{sizes}"
    );
    assert!(last[last.len() - 1] >= 300.0, "{sizes}");
    // The next job starts with what was learned.
    let next = [
        "--resource=mem=auto",
        "--learn-from=last",
        "--wait=ok",
        "--",
    ];
    env.submit(
        &[
            &next[..],
            &["bash", "-c", "echo next $HQ_RESOURCE_REQUEST_mem >> next"],
        ]
        .concat(),
    );
    let text = env.read("next");
    let size: f64 = text
        .split(' ')
        .nth(1)
        .and_then(|size| size.parse().ok())
        .expect("a size");
    assert!((size - last[0]).abs() < last[0] / 4.0, "{text} {sizes}");
}

#[test]
fn what_cannot_be_learned_is_refused() {
    let mut env = Env::new();
    env.start_server();
    for (options, code, wanted) in [
        (
            &["--resource=mem=auto", "--resource=mem=5"][..],
            1,
            "more than once",
        ),
        (&["--resource=mem=auto", "--nodes=2"], 1, "part of one node"),
        (
            &["--resource=mem=auto", "--retries=0"],
            1,
            "another attempt",
        ),
        (&["--learn-from=1"], 1, "add --resource mem=auto"),
        (&["--resource=mem=auto", "--learn-from=99"], 1, "not found"),
        (&["--resource=cpus=auto"], 2, "number"),
        (&["--predict=95"], 2, "a share above 0 and up to 1"),
        (
            &["--time-request=1h", "--predict=0.9"],
            1,
            "--time-request auto",
        ),
        (&["--time-request=auto", "--no-predict"], 1, "contradict"),
    ] {
        let submit = [&["submit"], options, &["--", "true"]].concat();
        env.hq(&submit).exits_with(code).says(wanted);
    }
}
