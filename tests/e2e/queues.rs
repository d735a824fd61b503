//! A queue of automatic allocation without allocations, as shown and paused in the dashboards.

use std::os::unix::fs::PermissionsExt as _;

use crate::dashboard::Screen;
use crate::harness::{Env, wait_for};
use crate::http::Site;
use crate::web::recorded;

/// A server whose Slurm rejects every job, with a queue and tasks that need it.
fn starving() -> Env {
    let mut env = Env::new();
    std::fs::create_dir(env.path("bin")).expect("create a directory");
    let refusal =
        "#!/bin/sh\necho 'sbatch: error: invalid partition specified: gpux' >&2\nexit 1\n";
    let sbatch = env.write("bin/sbatch", refusal);
    std::fs::set_permissions(&sbatch, std::fs::Permissions::from_mode(0o755)).expect("a program");
    let others = std::env::var("PATH").unwrap_or_default();
    env.set("PATH", &format!("{}:{others}", env.path("bin").display()));
    env.start_server_with(&["--http"]);
    env.hq(&[
        "alloc",
        "add",
        "slurm",
        "--time-limit=1h",
        "--name=gpu",
        "--no-dry-run",
    ])
    .ok();
    env.submit(&["--array=1-9", "--", "true"]);
    env
}

fn state(env: &Env) -> String {
    env.json(&["alloc", "list"])[0]["state"].to_string()
}

#[test]
fn a_queue_is_paused_and_resumed_from_the_terminal() {
    let env = starving();
    let mut screen = Screen::start(&env, &["dashboard"]);
    // The first screen shows the reason.
    screen.shows(&["Starving queue 1 gpu: gets no allocations", "gpux"]);
    screen.press("4");
    screen.shows(&["Allocation queues (1)", "refused", "specified: gpux"]);
    screen.press("p");
    screen.shows(&["Pause queue 1 gpu? It asks for no more allocations."]);
    screen.press("n");
    assert_eq!(state(&env), "\"Active\"");
    screen.press("py");
    screen.shows(&["paused"]);
    assert_eq!(state(&env), "\"Paused\"");
    screen.press("1");
    screen.shows(&["Starving queue 1 gpu: asks for no allocations"]);
    screen.press("4");
    // Until the server answers, the last known state is shown.
    screen.shows(&["paused by `hq alloc pause`"]);
    screen.press("p");
    screen.shows(&["Let queue 1 gpu ask for allocations again?"]);
    screen.press("y");
    wait_for("the queue goes on", || match state(&env) {
        state if state == "\"Active\"" => Ok(()),
        state => Err(state),
    });
    screen.press("q");
    assert_eq!(screen.end(), Some(0));
}

#[test]
fn a_report_names_the_queue_that_starves() {
    let mut env = starving();
    let screen = Screen::start(&env, &["dashboard"]);
    screen.shows(&["Starving queue 1 gpu"]);
    env.hq(&["server", "stop"]).ok();
    assert_eq!(env.wait_exit("server"), Some(0));
    let journal = "server/001/state.db";
    env.hq(&["journal", "report", journal, "run.html"]).ok();
    let problems = &recorded(&env.read("run.html"))["answers"]["/problems"]["problems"];
    let wanted = "gets no allocations: sbatch: error: invalid partition specified: gpux";
    let list = problems.as_array().expect("a list");
    let is_named = list.iter().any(|problem| problem["text"] == wanted);
    assert!(is_named, "{problems}");
    // The problem is also shown when the dashboard reads a journal.
    let mut screen = Screen::start(&env, &["dashboard", "--journal", journal]);
    screen.shows(&["Starving queue 1 gpu: gets no allocations"]);
    screen.press("4");
    screen.shows(&["refused", "specified: gpux"]);
    screen.press("q");
    assert_eq!(screen.end(), Some(0));
}

#[test]
fn a_queue_is_paused_and_resumed_over_http() {
    let env = starving();
    let site = Site::of(&env);
    wait_for("the problem is named", || {
        let found = site.json("/api/v1/problems")["problems"].to_string();
        if found.contains("invalid partition specified") {
            Ok(())
        } else {
            Err(found)
        }
    });
    for (action, is_paused) in [("pause", true), ("resume", false)] {
        let answer = site.post(&format!("/api/v1/queues/1/{action}"));
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(
            site.json("/api/v1/queues")["queues"][0]["is_paused"],
            is_paused
        );
        let expected = if is_paused {
            "\"Paused\""
        } else {
            "\"Active\""
        };
        assert_eq!(state(&env), expected);
    }
    assert_eq!(site.post("/api/v1/queues/7/pause").status, 404);
    assert_eq!(site.get("/api/v1/queues/1/pause").status, 405);
}
