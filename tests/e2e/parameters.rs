//! `--param`: one task per combination of values, determined by its id.

use serde_json::{Value, json};

use crate::harness::Env;

fn json_of(env: &Env, args: &[&str]) -> Value {
    let text = env.hq(&[&["--output-mode=json"], args].concat()).ok();
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn each_combination_has_its_values_in_arguments_paths_and_variables() {
    let env = Env::with_worker(4);
    let script = "echo {lr} $HQ_PARAM_LR ${HQ_PARAM_SEED} $HQ_PARAM_TAG {print} %{HTTP}; echo bad >&2; test {seed} != 2";
    env.hq(&[
        "submit",
        "--name=s-{seed}",
        "--param=lr=0.1,\"a, b\"",
        "--param=seed=1-3",
        "--param=+tag=x,y,z",
        "--stdout=out/{lr}-%{seed}.txt",
        "--wait=ok",
        "--",
        "bash",
        "-c",
        script,
    ])
    .exits_with(1)
    .says("(lr=0.1, seed=2, tag=y)");
    assert_eq!(env.read("out/0.1-1.txt"), "0.1 0.1 1 x {print} %{HTTP}\n");
    assert_eq!(
        env.read("out/a, b-3.txt"),
        "a, b a, b 3 z {print} %{HTTP}\n"
    );
    let info = env.hq(&["job", "info", "1"]).ok();
    for said in [
        "s-1-3",
        "lr: 0.1,a, b",
        "seed: 1-3",
        "lr=a, b, seed=2, tag=y",
    ] {
        assert!(info.contains(said), "{said}: {info}");
    }
    let list = env.hq(&["task", "list", "1"]).ok();
    assert!(
        list.contains("Parameters") && list.contains("lr=0.1, seed=3, tag=z"),
        "{list}"
    );
    env.hq(&["job", "failures", "1"]).says("with seed=2, tag=y");
    let task = env.hq(&["task", "info", "1", "4"]).ok();
    assert!(task.contains("test 2 != 2"), "{task}");
    let rows = json_of(&env, &["task", "info", "1", "5"]);
    assert_eq!(
        rows[0]["params"],
        json!({"lr": "a, b", "seed": "3", "tag": "z"})
    );
    assert!(
        rows[0]["stdout"]
            .as_str()
            .is_some_and(|path| path.ends_with("out/a, b-3.txt"))
    );
}

#[test]
fn values_stay_with_their_ids_in_open_jobs_resubmits_and_after_a_restart() {
    let mut env = Env::new();
    let journal = ["--journal=j.db"];
    env.start_server_with(&journal);
    env.hq(&["job", "open"]).ok();
    let submit = ["submit", "--job=1", "--param=a=x,y", "--param=b=1-2"];
    let behind = ["--", "bash", "-c", "test {a} = x"];
    env.hq(&[&submit[..], &behind].concat()).ok();
    env.hq(&[&submit[..], &["--array=6-7"][..], &behind].concat())
        .exits_with(1)
        .says("0 to 3, found 7");
    env.hq(&[&submit[..], &behind].concat()).ok();
    env.hq(&["job", "close", "1"]).ok();
    let of = |env: &Env, job: &str| -> Vec<String> {
        let rows = json_of(env, &["task", "list", job]);
        let rows = rows[job].as_array().cloned().unwrap_or_default();
        rows.iter()
            .map(|row| format!("{} {}", row["id"], row["params"]))
            .collect()
    };
    let before = of(&env, "1");
    assert_eq!(before.len(), 8);
    assert_eq!(before[6], r#"6 {"a":"y","b":"1"}"#);
    env.hq(&["server", "stop"]).ok();
    env.wait_exit("server");
    env.start_server_with(&journal);
    assert_eq!(of(&env, "1"), before);
    env.start_worker(2);
    env.wait_job("1");
    env.hq(&["job", "resubmit", "1", "--filter=failed"]).ok();
    let again: Vec<String> = [2, 3, 6, 7].map(|at: usize| before[at].clone()).to_vec();
    assert_eq!(of(&env, "2"), again);
}

#[test]
fn a_row_of_a_table_is_a_task_and_its_columns_are_parameters() {
    let env = Env::with_worker(4);
    env.write("t.csv", "lr,tag\r\n0.1,\"a, b\"\r\n0.2,c\r\n0.3,d\r\n");
    let script = "echo {lr} $HQ_PARAM_LR \"$HQ_PARAM_TAG\"; test {lr} != 0.2";
    let command = ["--stdout=out/%{tag}", "--", "bash", "-c", script];
    let submit = ["submit", "--wait=ok", "--each-row=t.csv"];
    env.hq(&[&submit[..], &command].concat())
        .exits_with(1)
        .says("(lr=0.2, tag=c)");
    assert_eq!(env.read("out/a, b"), "0.1 0.1 a, b\n");
    assert_eq!(env.read("out/d"), "0.3 0.3 d\n");
    let list = env.hq(&["task", "list", "1"]).ok();
    assert!(list.contains("lr=0.3, tag=d"), "{list}");
    env.hq(&[&submit[..], &["--array=2-9"], &command].concat())
        .ok();
    let rows = json_of(&env, &["task", "list", "2"]);
    assert_eq!(rows["2"][0]["id"], 2);
    assert_eq!(rows["2"][0]["params"], json!({"lr": "0.3", "tag": "d"}));
    env.hq(&["job", "resubmit", "1", "--filter=failed"]).ok();
    env.wait_job("3");
    let rows = json_of(&env, &["task", "list", "3"]);
    assert_eq!(rows["3"][0]["params"], json!({"lr": "0.2", "tag": "c"}));
    env.write(
        "t.jsonl",
        "{\"n\": 1, \"s\": null}\n{\"n\": 2.50, \"s\": true}\n",
    );
    env.write(
        "run.sh",
        "#!/bin/sh\n#HQ --each-row t.jsonl\necho $HQ_PARAM_N-$HQ_PARAM_S\n",
    );
    assert_eq!(env.hq(&["run", "--", "./run.sh"]).ok(), "1-\n2.50-true\n");
    env.write("bad.csv", "lr,tag\n0.1,a\n0.2\n");
    env.hq(&["submit", "--each-row=bad.csv", "--", "true"])
        .exits_with(1)
        .says("bad.csv: line 3: expected 2 fields, as in the header, found 1: `tag` has none");
    let count = json_of(&env, &["job", "list", "--all"]);
    assert_eq!(count.as_array().map(Vec::len), Some(3));
}

#[test]
fn lines_that_end_with_nul_are_entries() {
    let env = Env::new();
    env.write("list", "a\nb\0c\0");
    let run = [
        "run",
        "--each-line=list",
        "--null",
        "--",
        "printf",
        "<%s>",
        "{}",
    ];
    assert_eq!(env.hq(&run).ok(), "<a\nb><c>");
}

#[test]
fn a_value_can_be_a_whole_path() {
    let env = Env::with_worker(4);
    let elsewhere = env.path("elsewhere");
    env.write("dirs", format!("{}/a\nb\n", elsewhere.display()));
    let submit = [
        "submit",
        "--param=dir=@dirs",
        "--cwd={dir}",
        "--stderr={dir}.err",
        "--",
        "bash",
        "-c",
        "pwd; echo {dir} >&2",
    ];
    env.hq(&submit).ok();
    env.wait_job("1");
    let outputs = [("elsewhere/a", 0), ("b", 1)];
    for (dir, task) in outputs {
        let dir_path = env.path(dir);
        assert_eq!(
            env.read(&format!("{dir}/job-1/{task}.stdout")),
            format!("{}\n", dir_path.display())
        );
    }
    // A relative path starts at the working directory, like output paths.
    assert_eq!(env.read("b/b.err"), "b\n");
    assert!(env.path("elsewhere/a.err").exists());
    let plan = json_of(&env, &[&["submit", "--dry-run"], &submit[1..]].concat());
    assert_eq!(plan["first"]["cwd"], json!(env.path("elsewhere/a")));
    assert_eq!(plan["last"]["cwd"], json!(env.path("b")));
    assert_eq!(
        plan["last"]["stdout"],
        json!(env.path("b/job-%{JOB_ID}/1.stdout"))
    );
}

#[test]
fn ten_million_combinations_are_one_description() {
    let mut env = Env::new();
    env.start_server();
    env.hq(&[
        "submit",
        "--param=a=1-10000",
        "--param=b=0-0.999:0.001",
        "--",
        "./x",
        "{a}",
    ])
    .ok();
    let rows = json_of(&env, &["task", "info", "1", "0,1234567,9999999"]);
    let shown: Vec<&Value> = (0..3).map(|at: usize| &rows[at]["params"]).collect();
    let expected = [
        json!({"a": "1", "b": "0.000"}),
        json!({"a": "1235", "b": "0.567"}),
        json!({"a": "10000", "b": "0.999"}),
    ];
    assert_eq!(shown, expected.iter().collect::<Vec<_>>());
}

#[test]
fn scripts_and_runs_have_parameters_and_a_dry_run_shows_them() {
    let env = Env::new();
    env.write("names", "one\ntwo words\n");
    env.write(
        "a.sh",
        "#!/bin/bash\n#HQ --param n=1,2 --param name=@names\necho \"$1 $HQ_PARAM_N $HQ_PARAM_NAME\"\n",
    );
    let out = env.hq(&["run", "--param=n=7", "./a.sh", "{n}/{name}"]).ok();
    assert_eq!(out, "7/one 7 one\n7/two words 7 two words\n");
    let plan = json_of(
        &env,
        &["submit", "--dry-run", "--array=1-2", "./a.sh", "{name}"],
    );
    assert_eq!(plan["ids"], "1-2");
    assert_eq!(
        plan["first"]["params"],
        json!({"n": "1", "name": "two words"})
    );
    assert_eq!(
        plan["last"]["command"],
        json!(["/bin/bash", "./a.sh", "one"])
    );
    env.hq(&[
        "submit",
        "--dry-run",
        "--param=seed=1-2",
        "--",
        "./x",
        "{sed}",
    ])
    .says("did you mean `{seed}`?");
    let run = env.hq(&[
        "run",
        "--param=n=1-2",
        "--",
        "bash",
        "-c",
        "exit $((2 - {n}))",
    ]);
    run.exits_with(1).says("Task 0 (n=1) failed");
    // Lines about failures do not repeat a whole value.
    let long = format!("--param=n={}", "x".repeat(10_000));
    let failed = env.hq(&["run", &long, "--", "false"]).exits_with(1);
    let text = failed.stderr;
    assert!(text.contains("(n=xxx") && text.len() < 1_000, "{text}");
}

#[test]
fn what_cannot_be_combined_is_refused() {
    let env = Env::new();
    let refused = |options: &[&str], text: &str| {
        let args = [&["submit", "--dry-run"], options, &["--", "true"]].concat();
        let output = env.hq(&args);
        assert_ne!(output.code, Some(0), "{options:?}");
        output.says(text);
    };
    refused(
        &["--param=a=1-100000", "--param=b=1-100000"],
        "more than 4294967295 tasks",
    );
    refused(&["--param=a=1", "--each-line=x"], "cannot be used with");
    refused(&["--param=a=1", "--from-json=x"], "cannot be used with");
    refused(&["--each-row=a", "--each-line=x"], "cannot be used with");
    refused(&["--each-row=a", "--from-json=x"], "cannot be used with");
    refused(&["--null"], "--each-line");
    refused(&["--each-row=missing.csv"], "No such file or directory");
    refused(&["--param=a=1-2", "--param=+b=1-3"], "needs as many values");
    refused(&["--param=a=1", "--param=A=2"], "would both be HQ_PARAM_A");
    refused(&["--param=a=1", "--param=a=2"], "one list, such as `a=1,2`");
    refused(&["--param=task_id=1"], "placeholder of paths");
    refused(&["--param=a=0.1-0.5"], "needs a step");
    refused(
        &["--param=a=1-2", "--stream=log-{a}"],
        "one directory for all tasks",
    );
    refused(&["--param=a=@missing"], "missing");
    env.write("dos", "one\r\ntwo\r\n");
    env.hq(&["submit", "--dry-run", "--param=a=@dos", "--", "{a}"])
        .says("`a` end with a carriage return");
}
