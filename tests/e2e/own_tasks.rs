//! Tasks that add tasks to their own job.

use crate::harness::{Env, signal, wait_for};

#[test]
fn a_task_that_is_killed_between_its_submits_adds_each_child_once() {
    let mut env = Env::new();
    let journal = ["--journal=state/journal.db"];
    std::fs::create_dir(env.path("state")).expect("directory");
    let server = env.start_server_with(&journal);
    let worker = env.start_worker_with(&["--cpus=1", "--on-server-lost=stop"]);
    // The first attempt gets as far as its second child.
    env.write(
        "parent.sh",
        "for child in 1 2 3; do\n\
         test ! -e blocked && test $child = 3 && touch blocked && sleep 1000\n\
         $HQ submit --job $HQ_JOB_ID --array $child -- \
         sh -c 'echo $HQ_TASK_ID >> ran' || exit 1\n\
         done\n",
    );
    let submit = ["submit", "--open", "--max-tasks=4", "--", "sh", "parent.sh"];
    env.hq(&[&submit[..]].concat()).ok();
    wait_for("two children", || {
        let is_there = env.path("blocked").exists();
        is_there.then_some(()).ok_or_else(|| "no".to_owned())
    });
    let job = &env.json(&["job", "info", "1"])[0]["info"];
    assert_eq!(job["is_open"], true, "{job}");
    // Worker and server are lost one after the other.
    signal(worker, "KILL");
    env.wait_exit("worker1");
    signal(server, "KILL");
    env.wait_exit("server");
    env.start_server_with(&journal);
    env.spawn("again", &["worker", "start", "--cpus=2"]);
    env.wait_job("1");
    let mut ran: Vec<String> = env.read("ran").lines().map(str::to_owned).collect();
    ran.sort();
    assert_eq!(ran, ["1", "2", "3"]);
    let job = &env.json(&["job", "info", "1"])[0]["info"];
    assert_eq!(job["is_open"], false, "it closed by itself: {job}");
    assert_eq!(job["task_stats"]["finished"], 4, "{job}");
    let tasks = env.json(&["task", "info", "1", "0,3"]);
    assert_eq!(tasks[0].get("submitted_by"), None);
    assert_eq!(tasks[1]["submitted_by"], 0, "{tasks}");
    env.hq(&["task", "info", "1", "3"]).says("1.0");
    env.hq(&["submit", "--job=1", "--", "true"])
        .exits_with(1)
        .says("Job 1 is not opened.");
}

#[test]
fn generations_wait_for_the_last_one_up_to_a_limit() {
    let env = Env::with_worker(2);
    env.write(
        "next.sh",
        "next=$((HQ_TASK_ID + 1))\n\
         printf '[[task]]\\nid = %s\\ndeps = [%s]\\ncommand = [\"sh\", \"next.sh\"]\\n' \
         $next $HQ_TASK_ID > $next.toml\n\
         test ! -e ended-$HQ_TASK_ID && $HQ job submit-file --job $HQ_JOB_ID --once next $next.toml \
         2> said-$HQ_TASK_ID; touch ended-$HQ_TASK_ID\n",
    );
    env.hq(&[
        "submit",
        "--open",
        "--max-tasks=6",
        "--wait=ok",
        "--",
        "sh",
        "next.sh",
    ])
    .ok();
    assert_eq!(env.stats("1")["finished"], 6);
    let said = env.read("said-5");
    assert!(said.contains("at most 6 tasks (--max-tasks)"), "{said}");
    let last = &env.json(&["task", "info", "1", "5"])[0];
    assert_eq!(last["submitted_by"], 4, "{last}");
    env.hq(&["submit", "--once=x", "--job=1", "--", "true"])
        .exits_with(1)
        .says("in a task");
    env.hq(&["submit", "--open", "--job=1", "--", "true"])
        .exits_with(2);
}
