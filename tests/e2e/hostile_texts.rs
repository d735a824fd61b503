//! Texts from tasks, workers, files and users that would move the cursor of a terminal.

use crate::dashboard::Screen;
use crate::harness::{Env, wait_for};

/// Sets the title, clears the screen and writes backwards, followed by two one-byte control
/// characters.
const HOSTILE: &str = "\u{1b}]0;x\u{7}\u{1b}[2J\u{202e}\u{9b}1m\u{1}end";

/// Returns the remaining cursor movements in a text. Colors are allowed.
fn hidden_in(text: &str) -> String {
    let text = text.replace("\r\n", "\n");
    let mut parts = text.split("\u{1b}[");
    let mut left = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_color = |text: &str| {
            text.bytes()
                .all(|byte| byte.is_ascii_digit() || byte == b';')
        };
        match part.split_once('m') {
            Some((numbers, rest)) if is_color(numbers) => left.push_str(rest),
            Some(_) | None => left.push_str(&format!("\u{1b}[{part}")),
        }
    }
    let is_shown = |c: &char| *c == '\n' || *c == '\t' || !(c.is_control() || *c == '\u{202e}');
    left.chars().filter(|c| !is_shown(c)).collect()
}

/// Checks that no command moves the cursor.
fn check(env: &Env, commands: &[&[&str]]) {
    for args in commands {
        let mut screen = Screen::start(env, args);
        screen.end();
        let what = format!("{args:?} has printed something");
        let text = wait_for(&what, || {
            Some(screen.written())
                .filter(|text| !text.is_empty())
                .ok_or(String::new())
        });
        assert_eq!(hidden_in(&text), "", "{args:?}: {text:?}");
    }
}

#[test]
fn texts_of_others_move_no_cursor() {
    let mut env = Env::new();
    let named = |option: &str| format!("--{option}={HOSTILE}");
    env.start_server();
    env.start_worker_with(&["--cpus=2", &named("hostname"), &named("group")]);
    let lines = format!("lines{HOSTILE}");
    env.write(&lines, format!("{HOSTILE}\n"));
    let fails = format!("echo '{HOSTILE}' | tee $HQ_ERROR_FILENAME >&2; exit 3");
    let job = env.submit(&[
        &named("name"),
        &format!("--each-line={lines}"),
        &format!("--stderr={HOSTILE}.%{{TASK_ID}}"),
        &named("env=A"),
        "--task-dir",
        "--",
        "bash",
        "-c",
        &fails,
        HOSTILE,
    ]);
    env.submit(&["--cpus=9", "--name=waits", "--", "true"]);
    env.submit(&[&format!("--param=x=a,{HOSTILE}"), "--", HOSTILE]);
    for job in [&job, "3"] {
        env.wait_job(job);
    }
    env.hq(&["worker", "quarantine", "1", &named("reason")])
        .ok();
    env.hq(&["job", "cancel", "2", &named("reason")]).ok();

    let (job, run) = (job.as_str(), format!("/none{HOSTILE}"));
    let commands: &[&[&str]] = &[
        &["job", "list", "--all", "--verbose"],
        &["job", "info", job, "-v"],
        &["job", "failures", job],
        &["job", "failures", "3", "--output-mode=quiet"],
        &["job", "stats", job],
        &["task", "list", "1-3", "-v"],
        &["task", "info", "1.0", "-v"],
        &["task", "info", "1.0", "--output-mode=json"],
        &["task", "explain", "2.0", "-v"],
        &["worker", "list"],
        &["worker", "info", "1"],
        &["worker", "info", "1", "--output-mode=json"],
        &["problems"],
        &["status"],
        &["journal", "replay"],
        &["query", "select 1 as \"a\u{1b}[2J\""],
        &["query", "select * from jobs", "--csv"],
        &["query", "select * from jobs", "--output-mode=quiet"],
        &["submit", "--dry-run", &named("name"), "--", HOSTILE],
        // Errors of the program itself.
        &[HOSTILE],
        &["submit", "--cpus", HOSTILE, "true"],
        &["job", "info", HOSTILE],
        &["submit", HOSTILE, HOSTILE],
        &["output-log", HOSTILE, "summary"],
        &["--server-dir", HOSTILE, "job", "list"],
        &["run", "--output-mode=json", "--", &run],
    ];
    check(&env, commands);
    for name in ["server.log", "worker1.log"] {
        assert_eq!(hidden_in(&env.read(name)), "", "{name}");
    }
}

#[test]
fn lines_of_tasks_behind_prefixes_move_no_cursor() {
    let mut env = Env::new();
    env.start_server();
    env.start_worker(2);
    let prints = format!("printf '\\033[31mred\\033[0m%s\\r\\n' '{HOSTILE}'");
    for (job, target) in [("1", "--stdout=%{TASK_ID}.out"), ("2", "--stream=stream")] {
        env.submit(&["--array=1-2", target, "--", "sh", "-c", &prints]);
        env.wait_job(job);
    }
    let commands: &[&[&str]] = &[
        &["job", "tail", "1"],
        &["job", "tail", "2"],
        &["output-log", "stream", "show"],
    ];
    check(&env, commands);
    // The output of one task, and output for a program, is not changed.
    let expected = format!("\u{1b}[31mred\u{1b}[0m{HOSTILE}\r\n");
    assert_eq!(env.hq(&["job", "cat", "1.1", "stdout"]).ok(), expected);
    let tail = env.hq(&["job", "tail", "1"]).ok();
    assert!(tail.contains(&expected), "{tail:?}");
}
