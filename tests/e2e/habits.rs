//! Tests habits from other tools that are valid here: the warnings, who receives them, and where
//! they are stored.

use std::io::{Read as _, Write as _};
use std::process::Stdio;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::harness::{Env, signal, wait_for};

/// Runs a command with a terminal as standard error and a file as standard output; returns what it wrote to the terminal.
fn on_terminal(env: &Env, args: &[&str]) -> String {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
    grantpt(&master).expect("its rights");
    unlockpt(&master).expect("its other end");
    let name = ptsname(&master, Vec::new()).expect("its name");
    let slave = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(name.to_str().expect("a path"))
        .expect("the other end");
    let status = env
        .command(args)
        .stdout(std::fs::File::create(env.path("printed")).expect("a file"))
        .stderr(slave)
        .status();
    status.expect("the program can be run");
    let mut text = Vec::new();
    // When the last writer is gone, reading ends with an error here instead of end of file.
    let _ = std::fs::File::from(master).read_to_end(&mut text);
    String::from_utf8_lossy(&text).replace("\r\n", "\n")
}

/// Runs a command with some bytes as standard input.
fn with_input(env: &Env, args: &[&str], input: &[u8]) -> (Option<i32>, String) {
    let mut child = env
        .command(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program can be run");
    let mut stdin = child.stdin.take().expect("a pipe");
    // A program that rejects its arguments does not read its input.
    let _ = stdin.write_all(input);
    drop(stdin);
    let output = child.wait_with_output().expect("an end");
    let printed = [output.stdout, output.stderr].concat();
    let printed = String::from_utf8_lossy(&printed).into_owned();
    (output.status.code(), printed)
}

#[test]
fn braces_are_the_line_in_a_run() {
    let env = Env::new();
    env.write("list", "a b\n{}\nc;d\n");
    env.write("items.json", "[1, {\"x\": \"y\"}]");
    for (args, printed) in [
        (
            &["run", "--each-line", "list", "--", "echo", "<{}>", "x{}"][..],
            "<a b> xa b\n<{}> x{}\n<c;d> xc;d\n",
        ),
        (
            &["run", "--each-line", "list", "--", "sh", "-c", "echo '{}'"],
            "a b\n{}\nc;d\n",
        ),
        (
            &["run", "--from-json", "items.json", "--", "echo", "{}"],
            "1\n{\"x\":\"y\"}\n",
        ),
        (
            &[
                "run",
                "--each-line",
                "list",
                "--array",
                "2",
                "--",
                "echo",
                "{}",
            ],
            "c;d\n",
        ),
        // These programs use braces themselves.
        (
            &[
                "run",
                "--each-line",
                "list",
                "--array",
                "0",
                "--",
                "find",
                "list",
                "-exec",
                "echo",
                "{}",
                ";",
            ],
            "list\n",
        ),
    ] {
        assert_eq!(env.hq(args).ok(), printed, "{args:?}");
    }
    env.hq(&[
        "run",
        "--each-line",
        "list",
        "--dry-run",
        "--",
        "echo",
        "{}",
    ])
    .exits_with(0)
    .says("echo 'a b'");
}

#[test]
fn a_dash_is_standard_input_wherever_a_file_is_read() {
    let mut env = Env::new();
    env.start_server();
    let sge = env.hq(&["alloc", "template", "sge"]).ok();
    let toml = "[[task]]\ncommand = [\"echo\", \"from toml\"]\n";
    let yaml = "task:\n  - command: [echo, from yaml]\n";
    let json = "{\"task\": [{\"command\": [\"echo\", \"from json\"]}]}";
    for (args, input, printed) in [
        (
            &["run", "--each-line", "-", "--", "echo", "{}"][..],
            "a\nb\n",
            "a\nb\n",
        ),
        (
            &["run", "--from-json", "-", "--", "echo", "{}"],
            "[1, 2]",
            "1\n2\n",
        ),
        (
            &["run", "--param", "x=@-", "--", "echo", "{x}"],
            "a\nb\n",
            "a\nb\n",
        ),
        (&["run", "-"], toml, "from toml\n"),
        (&["run", "-"], yaml, "from yaml\n"),
        (&["run", "-"], json, "from json\n"),
        (&["job", "submit-file", "--dry-run", "-"], toml, "from toml"),
        (&["query", "-"], "SELECT 'from' || ' sql' AS n", "from sql"),
        (
            &[
                "alloc",
                "add",
                "other",
                "--time-limit=1h",
                "--no-dry-run",
                "--template=-",
            ],
            &sge,
            "",
        ),
    ] {
        let (code, found) = with_input(&env, args, input.as_bytes());
        assert_eq!(code, Some(0), "{args:?}: {found}");
        assert!(found.contains(printed), "{args:?}: {found}");
    }
    for args in [
        &["run", "--param", "x=@-", "--param", "y=@-", "--", "true"][..],
        &["run", "--stdin", "--each-line", "-", "--", "true"],
    ] {
        let (code, found) = with_input(&env, args, b"a\n");
        assert_eq!(code, Some(1), "{args:?}");
        assert!(found.contains("can be read only once"), "{found}");
    }
}

#[test]
fn a_run_does_not_write_all_lines_to_one_file() {
    let env = Env::new();
    env.write("list", "a\nb\n");
    for option in ["--stdout=o-{}.txt", "--stderr=o-{}.txt", "--cwd=d/{}"] {
        env.hq(&["run", "--each-line", "list", option, "--", "echo", "{}"])
            .exits_with(1)
            .says("`{}` is not replaced in `")
            .says("%{TASK_ID}");
    }
    assert!(!env.path("o-{}.txt").exists());
}

#[test]
fn notes_go_to_a_terminal_and_stay_with_the_job() {
    let mut env = Env::new();
    let server = env.start_server();
    env.write("list", "a\nb\n");
    let typed = ["submit", "--each-line", "list", "--", "echo", "{}"];
    let note = "`{}` is not replaced; the line of a task is in `$HQ_ENTRY`";
    let told = on_terminal(&env, &typed);
    assert!(told.contains(" WARN ") && told.contains(note), "{told}");
    assert!(told.contains("`hq job cat 1 stdout` prints it"), "{told}");
    // A script sees the same as before.
    let ran = env
        .hq(&[&typed[..1], &["--output-mode=json"], &typed[1..]].concat())
        .exits_with(0);
    assert_eq!(
        (ran.stdout.as_str(), ran.stderr.as_str()),
        ("{\n  \"id\": 2\n}\n", "")
    );
    let ran = env.hq(&typed).exits_with(0);
    assert!(!ran.stderr.contains("is not replaced"), "{}", ran.stderr);
    env.submit(&["--", "true"]);
    let shows = |env: &Env| {
        env.hq(&["job", "info", "-v", "3"]).exits_with(0).says(note);
        let plain = env.hq(&["job", "info", "3"]).ok();
        assert!(!plain.contains("Notes"), "{plain}");
        assert_eq!(
            env.json(&["job", "info", "4", "-v"])[0]["notes"],
            serde_json::json!([])
        );
        let noted = env.json(&["job", "info", "3", "-v"]);
        assert!(
            noted[0]["notes"][0]
                .as_str()
                .is_some_and(|text| text.contains(note)),
            "{noted}"
        );
        assert!(env.json(&["job", "info", "3"])[0].get("notes").is_none());
        env.hq(&["problems"])
            .exits_with(0)
            .says("Doubtful job 3 echo: `{}` is not replaced")
            .says("`hq job info -v 3` shows it");
    };
    shows(&env);
    // The warnings are stored.
    signal(server, "KILL");
    env.wait_exit_of(server);
    env.start_server_with(&["--resume"]);
    shows(&env);
    env.hq(&["job", "cancel", "all"]).ok();
    wait_for("nothing needs anybody", || {
        let told = env.hq(&["problems"]).ok();
        told.contains("Nothing is wrong").then_some(()).ok_or(told)
    });
}

#[test]
fn short_clock_times_and_empty_lists_are_told_on_a_terminal() {
    let mut env = Env::new();
    env.start_server();
    env.write("list", "a\nb\n");
    env.write("none", "");
    env.write("none.json", "[]");
    for (args, part) in [
        (
            &["server", "wait", "--timeout", "0:09"][..],
            "`--timeout 0:09` is 0 min 9 s",
        ),
        (
            &["submit", "--each-line=none", "--", "true"],
            "none is empty, so there are no tasks",
        ),
        (
            &["submit", "--from-json=none.json", "--", "true"],
            "none.json is empty, so",
        ),
        (
            &["submit", "--each-line=list", "--array=7-9", "--", "true"],
            "the list has 2 items",
        ),
    ] {
        let told = on_terminal(&env, args);
        assert!(told.contains(part), "{args:?}: {told}");
    }
}

#[test]
fn what_is_hidden_or_set_elsewhere_is_told_on_a_terminal() {
    let mut env = Env::new();
    env.start_server_with(&["--host=127.0.0.1"]);
    wait_for("the server warns of its host", || {
        let log = env.read("server.log");
        let has_it = log.contains("only this machine reaches the server");
        has_it.then_some(()).ok_or(log)
    });
    env.hq(&["doctor", "net"])
        .says("only this machine reaches the server");
    env.submit(&["--cpus=64", "--", "true"]);
    env.hq(&["job", "cancel", "1"]).ok();
    for (name, lines) in [
        ("limit.sh", "#HQ --time-limit 60\ntrue\n"),
        ("lower.sh", "#hq --cpus 64\n# HQ --array 1-3\ntrue\n"),
        ("end.sh", "true\nsleep 1 &\n"),
    ] {
        env.write(name, format!("#!/bin/bash\n{lines}"));
    }
    let mut wrong = Vec::new();
    let mut tell = |env: &Env, line: &str, part: &str| {
        let words = shlex::split(line).expect("closed quotes");
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let told = on_terminal(env, &words);
        if !told.contains(part) {
            wrong.push(format!("{line}: {told}"));
        }
    };
    for (line, part) in [
        ("job list", "without 1 job in other states"),
        (
            "job cat 1 stdout",
            "canceled before it started, so it wrote nothing",
        ),
        (
            "query \"select * from tasks where state = 'waiting'\"",
            "only tasks that have started",
        ),
        ("submit limit.sh", "`--time-limit 60min` in the `#HQ` line"),
        (
            "submit lower.sh",
            "write it as `#HQ --cpus 64`; line 3, `# HQ --array 1-3`, too",
        ),
        ("submit end.sh", "add `wait`"),
    ] {
        tell(&env, line, part);
    }
    env.write("config.toml", "[submit]\ntime-limit = 60\n");
    env.set("HQ_CONFIG", "config.toml");
    tell(&env, "submit true", "in the file that `hq config` shows");
    let told = on_terminal(&env, &["submit", "--time-limit=90s", "true"]);
    assert!(!told.contains("hq config"), "{told}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_job_file_that_is_submitted_as_a_program_is_a_job_file() {
    let mut env = Env::new();
    env.start_server();
    env.write(
        "wf.toml",
        "[[task]]\ncommand = [\"echo\", \"{}\"]\n[[task]]\ncommand = [\"true\"]\n",
    );
    env.write("wf", "name = \"plain\"\n[[task]]\ncommand = [\"true\"]\n");
    env.write("typo.yaml", "task:\n  - comand: [true]\n");
    env.write("list", "name = \"x\"\n");
    env.hq(&["submit", "wf.toml"]).exits_with(0);
    env.hq(&["submit", "wf"]).exits_with(0);
    env.hq(&["job", "submit", "--dry-run", "wf.toml"])
        .exits_with(0)
        .says("echo '{}'");
    let listed = env.hq(&["job", "list"]).ok();
    assert!(
        listed.contains("| plain |") || listed.contains("plain"),
        "{listed}"
    );
    assert_eq!(env.json(&["job", "info", "1"])[0]["info"]["task_count"], 2);
    env.hq(&["submit", "typo.yaml"])
        .exits_with(1)
        .says("did you mean `command`?");
    for (verb, option) in [
        ("submit", "--cpus=2"),
        ("submit", "--array=1-3"),
        ("run", "--cpus=2"),
    ] {
        env.hq(&[verb, option, "wf.toml"])
            .exits_with(1)
            .says("applies to a command, but wf.toml is a job file");
    }
    for words in [
        &["submit", "wf.toml", "--wait"][..],
        &["run", "wf.toml", "-j", "4"],
    ] {
        env.hq(words).exits_with(1).says("comes after it");
    }
    // This is not a job file but a program, as before.
    env.hq(&["submit", "list"]).exits_with(0);
    assert_eq!(
        env.json(&["job", "info", "last"])[0]["info"]["name"],
        "list"
    );
}

#[test]
fn a_tilde_is_the_home_directory_where_no_shell_replaces_it() {
    let mut env = Env::with_worker(1);
    let home = env.path("home");
    std::fs::create_dir(&home).expect("a directory");
    env.set("HOME", home.to_str().expect("a path"));
    env.write("home/list", "a\nb\n");
    env.submit(&["--wait=ok", "--cwd=~/x", "--stdout=~/o", "--", "pwd"]);
    assert_eq!(
        env.read("home/o").trim(),
        home.join("x").to_str().expect("a path")
    );
    env.submit(&[
        "--wait=ok",
        "--each-line=~/list",
        "--stdout=~/%{TASK_ID}",
        "--",
        "true",
    ]);
    env.write(
        "job.toml",
        "[[task]]\ncommand = [\"pwd\"]\ncwd = \"~/y\"\nstdout = \"~/file\"\n",
    );
    env.hq(&["job", "submit-file", "--wait=ok", "job.toml"])
        .ok();
    assert_eq!(
        env.read("home/file").trim(),
        home.join("y").to_str().expect("a path")
    );
    assert!(!env.path("~").exists(), "a directory named `~`");
}

#[test]
fn a_string_that_is_too_long_is_named() {
    let env = Env::with_worker(1);
    env.write("long", format!("{}\n", "x".repeat(140_000)));
    let long = "y".repeat(140_000);
    let task = |rest: &str| format!("[[task]]\n{rest}\n").replace("LONG", &long);
    env.write(
        "env.toml",
        task("command = [\"true\"]\nenv = { V = \"LONG\" }"),
    );
    env.write("arg.toml", task("command = [\"echo\", \"a\", \"LONG\"]"));
    for (args, named) in [
        (
            &["--each-line=long", "true"][..],
            "the variable HQ_ENTRY has 140009 bytes",
        ),
        (&["env.toml"], "the variable V has 140002 bytes"),
        (&["arg.toml"], "argument 2 has 140000 bytes"),
    ] {
        env.hq(&[&["submit", "--wait"], args].concat()).ok();
        let told = &env.json(&["job", "info", "last"])[0]["tasks"][0]["error"];
        let told = told.as_str().unwrap_or_default();
        assert!(told.contains(named), "{named}: {told}");
    }
}

#[test]
fn what_is_no_program_says_what_it_is() {
    let env = Env::with_worker(1);
    std::fs::create_dir(env.path("dir")).expect("a directory");
    for (program, hint) in [
        ("echo hi | wc -l", "`bash -c 'LINE'`"),
        ("FOO=1", "`--env FOO=1 -- PROGRAM`"),
        ("cd", "`--cwd DIR`"),
        ("./dir", "this is a directory"),
    ] {
        env.submit(&["--wait", "--", program]);
        let told = env.json(&["job", "info", "last"])[0]["tasks"][0]["error"].to_string();
        assert!(told.contains(hint), "{program}: {told}");
        env.hq(&["run", "--", program]).exits_with(1);
    }
}

#[test]
fn resources_of_the_command_line_win_over_those_of_a_script() {
    let mut env = Env::new();
    env.start_server();
    env.write(
        "job.sh",
        "#!/bin/sh\n#HQ --resource gpus/nvidia=1 --resource mem=100 --cpus 2\ntrue\n",
    );
    for (options, expected) in [
        (&["--resource", "gpus/nvidia=2"][..], "gpus/nvidia: 2"),
        (&["--resource", "cpus=4"], "cpus: 4"),
    ] {
        env.submit(&[options, &["./job.sh"]].concat());
        let told = env.hq(&["job", "info", "last"]).ok();
        assert!(told.contains(expected), "{told}");
    }
}
