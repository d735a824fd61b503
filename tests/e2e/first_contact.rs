//! The first minutes of a new user: commands of the manual are pasted into a shell unchanged.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::harness::{Env, wait_for};

/// Returns the first shell block after a heading of a page.
fn block(page: &str, heading: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(page);
    let text = std::fs::read_to_string(&path).expect("a page");
    let (_, behind) = text.split_once(heading).expect("the heading");
    let (_, block) = behind.split_once("```sh\n").expect("a block");
    block.split("```").next().unwrap_or_default().to_owned()
}

/// Pastes a block into a shell with an empty home directory. Returns its output.
fn paste(block: &str) -> String {
    let home = tempfile::tempdir().expect("a directory");
    let program = Path::new(env!("CARGO_BIN_EXE_hq"));
    let folder = program.parent().expect("a folder").display();
    let path = std::env::var("PATH").unwrap_or_default();
    let output = Command::new("timeout")
        .args(["120", "bash", "-e", "-c", block])
        .env_clear()
        .env("PATH", format!("{folder}:{path}"))
        .env("HOME", home.path())
        .current_dir(home.path())
        .stdin(Stdio::null())
        .output()
        .expect("a shell");
    let printed = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    // A failed block must not leave anything behind either.
    let _ = Command::new(program)
        .args(["server", "stop"])
        .env("HOME", home.path())
        .output();
    assert!(output.status.success(), "{block}\n{printed}");
    let place = format!("HOME={}", home.path().display());
    wait_for("nothing of it is left", || {
        let left = processes_of(&place);
        left.is_empty().then_some(()).ok_or(format!("{left:?}"))
    });
    printed
}

#[test]
fn the_quick_start_can_be_pasted_as_one_block() {
    let printed = paste(&block("docs/quickstart.md", "## On several machines"));
    for text in [
        "The server runs in the background",
        "Job submitted successfully, job ID: 1",
        "2\n4\n6\n",
    ] {
        assert!(printed.contains(text), "{text}: {printed}");
    }
}

#[test]
fn the_readme_can_be_pasted_as_one_block() {
    let printed = paste(&block("README.md", "## On several machines"));
    assert!(printed.contains("\n2\n4\n6\n"), "{printed}");
    let page = include_str!("../../README.md");
    assert!(page.split_whitespace().count() <= 700, "it is an overview");
}

/// Returns the processes with this variable.
fn processes_of(variable: &str) -> Vec<String> {
    let entries = std::fs::read_dir("/proc").expect("/proc").flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names
        .filter(|pid| {
            let variables = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            variables
                .split(|byte| *byte == 0)
                .any(|one| one == variable.as_bytes())
        })
        .collect()
}

#[test]
fn a_job_that_runs_says_how_long_it_still_takes() {
    let env = Env::with_worker(2);
    let job = env.submit(&[
        "--array=1-5000",
        "--stdout=none",
        "--stderr=none",
        "--",
        "sleep",
        "0.05",
    ]);
    wait_for("some tasks have ended", || {
        let stats = env.stats(&job);
        let is_some = stats["finished"].as_u64() >= Some(20);
        is_some.then_some(()).ok_or(stats.to_string())
    });
    let is_estimate = |text: String| {
        let is_one = text.contains(" tasks/s, ")
            && text.contains(" elapsed, ")
            && text.contains(" left, until ");
        is_one.then_some(()).ok_or(text)
    };
    // No estimate is shown while running tasks have already taken far longer than ended ones, which
    // happens on a busy machine.
    wait_for("an estimate about the job", || {
        is_estimate(env.hq(&["job", "info", &job]).exits_with(0).stderr)
    });
    wait_for("an estimate in the overview", || {
        is_estimate(env.hq(&["status"]).ok())
    });
    wait_for("an estimate as a number", || {
        let status = env.json(&["status"]);
        let left = status["unfinished_jobs"][0]["left"].as_f64();
        (left > Some(1.0)).then_some(()).ok_or(status.to_string())
    });
    let json = env.hq(&["job", "info", &job, "--output-mode=json"]);
    assert_eq!(json.exits_with(0).stderr, "");
    env.hq(&["job", "cancel", &job]).ok();
}

#[test]
fn manual_pages_and_completion_help_with_real_commands() {
    let env = Env::with_worker(1);
    env.submit(&["--wait", "--", "true"]);
    env.hq(&["generate-man", "man"]).ok();
    let page = env.read("man/hq-submit.1");
    assert!(page.contains(".SH EXAMPLES\n.nf"), "{page}");
    assert!(page.contains("hq submit \\-\\-array 1\\-100"), "{page}");
    let script = env.hq(&["generate-completion", "bash"]).ok();
    let folder = Path::new(env!("CARGO_BIN_EXE_hq"))
        .parent()
        .expect("a folder");
    let path = std::env::var("PATH").unwrap_or_default();
    let complete = format!(
        "PATH={}:{path}\n{script}\nCOMP_WORDS=(hq job info '') COMP_CWORD=3 COMP_LINE='hq job info '\n_hq_with_ids hq '' info\necho \"${{COMPREPLY[@]}}\"",
        folder.display()
    );
    // The script is longer than an argument may be.
    let script = env.write("complete.sh", complete);
    let output = Command::new("bash")
        .arg(script)
        .env("HQ_SERVER_DIR", env.server_dir())
        .output()
        .expect("a shell");
    assert_eq!(
        String::from_utf8_lossy(&output.stdout),
        "last 1\n",
        "{output:?}"
    );
}
