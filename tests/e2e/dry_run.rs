//! `--dry-run`: shows what would be submitted, and submits nothing.

use crate::harness::{Env, signal};

/// Returns the files and directories here, without logs and the server directory.
fn made(env: &Env) -> Vec<String> {
    let entries = std::fs::read_dir(env.path("")).expect("a directory");
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names
        .filter(|name| name != "server" && !name.ends_with(".log"))
        .collect();
    names.sort_unstable();
    names
}

/// Returns the JSON output. Options after the command would belong to the command.
fn json(env: &Env, args: &[&str]) -> serde_json::Value {
    let text = env.hq(&[&["--output-mode=json"], args].concat()).ok();
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{text}: {e}"))
}

#[test]
fn nothing_is_made_and_what_would_be_is_shown() {
    let env = Env::new();
    env.write(
        "a.sh",
        "#!/bin/bash -x\n#HQ --array 5-10000004 --cwd d/%{TASK_ID} --resource mem=2G\ntrue\n",
    );
    env.write("list", "first\nlast\n");
    env.write(
        "g.toml",
        "[[task]]\nid = 3\ncommand = [\"./a\"]\n[[task]]\nid = 9\ncommand = [\"./b\"]\ndeps = [3]\n",
    );
    let dry = ["submit", "--dry-run", "--stream=log", "a.sh", "x y"];
    let text = env.hq(&dry).ok();
    for said in [
        "10000000; Ids: 5-10000004",
        "command: /bin/bash -x a.sh 'x y'",
        "/d/10000004",
        "mem: 2048 compact",
        "not known: no server",
        "Nothing was submitted.",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    env.write(
        "s.toml",
        "[[task]]\nid = \"align\"\ncommand = [\"./a\"]\n[[task]]\nid = \"merge\"\ncommand = [\"./b\"]\n",
    );
    env.hq(&["submit", "--dry-run", "s.toml"])
        .says(" (align)")
        .says(" (merge)")
        .ok();
    env.hq(&["submit", "--dry-run", "--after=last", "--", "true"])
        .exits_with(1)
        .says("No server is running");
    env.hq(&["submit", "--dry-run", "-"])
        .exits_with(1)
        .says("`-` reads many");
    assert_eq!(made(&env), ["a.sh", "g.toml", "list", "s.toml"]);
    with_workers(env, &dry);
}

/// Checks a dry run with a server, which must not receive anything.
fn with_workers(mut env: Env, dry: &[&str]) {
    let server = env.start_server();
    env.start_worker_with(&["--cpus=2", "--resource=mem=1G"]);
    env.start_worker_with(&["--cpus=2", "--resource=mem=3G"]);
    let plan = json(&env, dry);
    let fits: Vec<_> = plan["workers"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|worker| &worker["fits"])
        .collect();
    assert_eq!(fits, [false, true]);
    assert_eq!(
        (&plan["first"]["id"], &plan["last"]["id"]),
        (&5.into(), &10_000_004.into())
    );
    let entries = json(
        &env,
        &[
            "submit",
            "--dry-run",
            "--each-line=list",
            "--stdout=%{TASK_ID}.o",
            "--",
            "./x",
        ],
    );
    assert_eq!(entries["last"]["entry"], "last");
    assert!(
        entries["last"]["stdout"]
            .as_str()
            .is_some_and(|path| path.ends_with("/1.o")),
        "{entries}"
    );
    let graph = json(&env, &["job", "submit-file", "--dry-run", "g.toml"]);
    assert_eq!(
        (&graph["ids"], &graph["last"]["deps"]),
        (&"3,9".into(), &[3].as_slice().into())
    );
    // Tasks of different kinds do not have to fit on the same worker.
    let kinds = "[[task]]\ncommand = [\"./a\"]\n[[task.request]]\nresources = { mem = \"2G\" }\n\
                 [[task]]\ncommand = [\"./b\"]\n[[task.request]]\nresources = { cpus = 3 }\n";
    env.write("list", kinds);
    let text = env.hq(&["job", "submit-file", "--dry-run", "list"]).ok();
    assert!(
        text.contains("1 of 2 workers: 2") && text.contains("cpus: 3 compact"),
        "{text}"
    );
    assert_eq!(
        env.hq(&["job", "list", "--all", "--output-mode=quiet"])
            .ok(),
        ""
    );
    assert_eq!(made(&env), ["a.sh", "g.toml", "list", "s.toml"]);
    // The files still name a server.
    signal(server, "KILL");
    env.wait_exit("server");
    env.hq(dry)
        .says("cannot be queried for its workers")
        .says("no server to ask");
}

#[test]
fn a_run_shows_its_tasks_or_why_they_cannot_run_here() {
    let env = Env::new();
    env.write("list", "one\ntwo\nthree\n");
    let text = env
        .hq(&[
            "run",
            "--dry-run",
            "--each-line=list",
            "--",
            "touch",
            "made",
        ])
        .ok();
    assert!(
        text.contains("3; Ids: 0-2") && text.contains("HQ_ENTRY: three"),
        "{text}"
    );
    assert!(text.contains("this machine"), "{text}");
    env.hq(&["run", "--dry-run", "--resource", "none=1", "--", "true"])
        .exits_with(1)
        .says("A task needs 1 of none, but this machine has none");
    let count = env.hq(&[
        "run",
        "--dry-run",
        "--output-mode=quiet",
        "--array=1-7",
        "--",
        "true",
    ]);
    assert_eq!(count.ok(), "7\n");
    assert_eq!(made(&env), ["list"]);
}
