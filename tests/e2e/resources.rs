//! Tests resources that workers offer and that tasks may use.

use std::process::Command;

use crate::harness::{Env, skip};

/// Holds 150 MB until it is sampled. A worker on a busy machine only samples every two seconds.
const HOLD_150_MB: &str = "(head -c 150000000 /dev/zero; sleep 60) | tail -n 1 > /dev/null";

#[test]
fn a_task_that_uses_more_memory_than_it_asked_for_ends_as_oom() {
    let mut env = Env::new();
    env.start_server();
    env.start_worker_with(&["--cpus=4", "--resource=mem=sum(4000)", "--enforce-memory"]);
    let others = env.submit(&["--array=1-2", "--resource=mem=100", "--", "sleep", "2"]);
    let greedy = env.submit(&["--resource=mem=100", "--", "bash", "-c", HOLD_150_MB]);
    let modest = env.submit(&[
        "--resource=mem=1000",
        "--",
        "bash",
        "-c",
        "head -c 400000000 /dev/zero | tail | wc -c",
    ]);
    env.wait_job(&greedy);
    let error = env.tasks(&greedy)[0]["error"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    assert!(error.starts_with("Out of memory: used "), "{error}");
    assert!(error.contains(" of 100 MiB"), "{error}");
    for job in [&others, &modest] {
        env.wait_job(job);
        assert_eq!(env.stats(job)["failed"], 0);
    }
    assert_eq!(env.workers(), ["RUNNING"], "the worker goes on");
}

/// Uses 150 MB and ends.
const TAKE_150_MB: &str = "head -c 150000000 /dev/zero | tail -n 1 > /dev/null";

#[test]
fn memory_is_a_limit_where_it_was_detected_unless_it_is_turned_off() {
    let mut env = Env::new();
    env.start_server();
    let config = env.write("off.toml", "[submit]\nenforce-memory = false\n");
    let of_workers = env.write("workers.toml", "[worker.start]\nenforce-memory = false\n");
    let none = std::path::PathBuf::from("/dev/null");
    for (number, (place, option, config)) in [
        ("detected", None, &none),
        ("off", Some("--enforce-memory=no"), &none),
        ("declared", Some("--resource=mem=sum(999)"), &none),
        ("offbyfile", None, &of_workers),
        ("onagain", Some("--enforce-memory"), &of_workers),
    ]
    .into_iter()
    .enumerate()
    {
        env.set("HQ_CONFIG", &config.to_string_lossy());
        let resource = format!("--resource={place}=sum(9)");
        let mut args = vec!["worker", "start", "--cpus=2", &resource];
        args.extend(option);
        env.spawn(place, &args);
        let count = (number + 1).to_string();
        env.hq(&["worker", "wait", &count]).ok();
    }
    env.set("HQ_CONFIG", &none.to_string_lossy());
    let problems = || env.hq(&["problems"]).stdout;
    // No task requests memory.
    assert!(!problems().contains("No memory limits"));
    let mut jobs = Vec::new();
    for (place, option, config, is_limit) in [
        ("detected=1", None, None, true),
        ("detected=1", Some("--enforce-memory=no"), None, false),
        ("detected=1", None, Some(&config), false),
        ("detected=1", Some("--enforce-memory"), Some(&config), true),
        ("off=1", Some("--enforce-memory"), None, false),
        ("declared=1", None, None, false),
        ("offbyfile=1", Some("--enforce-memory"), None, false),
        ("onagain=1", None, None, true),
    ] {
        let resource = format!("--resource={place}");
        let mut args = vec![
            "submit",
            "--output-mode=quiet",
            "--resource=mem=50",
            &resource,
        ];
        args.extend(option);
        let script = if is_limit { HOLD_150_MB } else { TAKE_150_MB };
        args.extend(["--", "bash", "-c", script]);
        let mut command = env.command(&args);
        if let Some(config) = config {
            command.env("HQ_CONFIG", config);
        }
        let job = String::from_utf8(command.output().expect("it runs").stdout).expect("a number");
        jobs.push((args.join(" "), job.trim().to_owned(), is_limit));
    }
    for (what, job, is_limit) in jobs {
        env.wait_job(&job);
        let error = env.tasks(&job)[0]["error"].to_string();
        let is_ended = error.contains("Out of memory: used ") && error.contains(" of 50 MiB");
        assert_eq!(is_ended, is_limit, "{what}: {error}");
        assert!(is_limit || error == "null", "{what}: {error}");
    }
    let problems = problems();
    let declared = "No memory limits on worker 3 (";
    assert!(problems.contains(declared), "{problems}");
    assert!(
        !problems.contains("more workers"),
        "what is turned off is no problem: {problems}"
    );
}

#[test]
fn oom_is_a_cause_for_another_attempt() {
    let mut env = Env::new();
    env.start_server();
    env.start_worker_with(&["--cpus=1", "--resource=mem=sum(1000)", "--enforce-memory"]);
    let script = format!("if [ $HQ_INSTANCE_ID = 0 ]; then {HOLD_150_MB}; fi");
    let job = env.submit(&[
        "--resource=mem=100",
        "--retries=1",
        "--retry-on=oom",
        "--",
        "bash",
        "-c",
        &script,
    ]);
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 1);
}

#[test]
fn an_attempt_gets_more_of_what_the_one_before_ran_out_of() {
    let mut env = Env::new();
    env.start_server();
    env.start_worker_with(&["--cpus=2", "--resource=mem=sum(1000)", "--enforce-memory"]);
    let hold = "x=$(head -c 60000000 /dev/zero | tr '\\0' a); [ $HQ_INSTANCE_ID = 1 ] || sleep 60";
    let script = ["--", "bash", "-c", hold];
    let greedy = [&["--resource=mem=30", "--retry-grow=mem=50"], &script[..]].concat();
    let slow = [
        "--time-limit=1s",
        "--retry-grow=time=100,max=70s",
        "--",
        "sleep",
        "2",
    ];
    let (greedy, slow) = (env.submit(&greedy), env.submit(&slow));
    for job in [&greedy, &slow] {
        env.wait_job(job);
        assert_eq!(env.stats(job)["finished"], 1, "{:?}", env.tasks(job));
    }
    let attempt = |job: &str| {
        let found = env.json(&["task", "info", job, "0", "-v"]);
        let attempts = found[0]["attempts"].as_array().expect("a list").clone();
        assert_eq!(attempts.len(), 1, "{found}");
        attempts[0].clone()
    };
    assert_eq!(attempt(&greedy)["memory_mib"], 30.0);
    assert_eq!(attempt(&slow)["time_limit"], 1.0);
    // The worker has no more than a thousand, and no request grows beyond its bound.
    let sql = "SELECT job, instance, memory_mib, time_limit_s FROM grown ORDER BY job";
    let rows = env.json(&["query", sql]);
    let rows = rows.as_array().expect("a list");
    assert_eq!(rows[0]["memory_mib"].as_f64().map(f64::round), Some(1000.0));
    assert_eq!(rows[1]["time_limit_s"], 70.0);
}

#[test]
fn nothing_grows_that_was_not_asked_for() {
    let mut env = Env::new();
    env.start_server();
    for (grow, code, wanted) in [
        ("--retry-grow=mem=2", 1, "Add --resource mem=SIZE"),
        ("--retry-grow=time=2", 1, "Add --time-limit DURATION"),
        ("--retry-grow=mem=1", 2, "a factor above 1"),
    ] {
        let output = env.hq(&["submit", grow, "--", "true"]);
        output.exits_with(code).says(wanted);
    }
}

#[test]
fn the_kernel_ends_tasks_before_their_worker_from_the_first_moment() {
    let mut env = Env::new();
    env.start_server();
    env.spawn("detecting", &["worker", "start", "--cpus=2"]);
    let script = "read score < /proc/self/oom_score_adj; echo $score >> scores";
    let tasks = ["--array=1-20", "--stdout=none", "--", "bash", "-c", script];
    let job = env.submit(&[&["--resource=mem=50M"], &tasks[..]].concat());
    env.wait_job(&job);
    // The kernel must not spare tasks without a limit as it spares the worker, either.
    let job = env.submit(&tasks);
    env.wait_job(&job);
    let scores = env.wait_lines("scores", 40);
    let of_tasks = |score: &str| score.parse::<i32>().is_ok_and(|score| score >= 500);
    assert!(scores.lines().all(of_tasks), "{scores}");
}

#[test]
fn coupled_groups_are_given_together() {
    let mut env = Env::new();
    env.start_server();
    env.start_worker_with(&[
        "--cpus=2x2",
        "--resource=gpus=[[a],[b]]",
        "--coupling=cpus[0]:gpus[1],cpus[1]:gpus[0]",
    ]);
    let script = "echo $HQ_RESOURCE_VALUES_cpus $HQ_RESOURCE_VALUES_gpus >> pairs; \
                  until [ $(wc -l < pairs) = 2 ]; do sleep 0.01; done";
    let job = env.submit(&[
        "--array=1-2",
        "--resource=cpus=2 compact!",
        "--resource=gpus=1 compact",
        "--",
        "bash",
        "-c",
        script,
    ]);
    env.wait_job(&job);
    let pairs = env.read("pairs");
    let mut lines: Vec<&str> = pairs.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0,1 b", "2,3 a"]);
}

#[test]
fn hwdetect_tells_what_the_affinity_mask_leaves() {
    let env = Env::new();
    let online = std::thread::available_parallelism().map_or(1, usize::from);
    let all = env.json(&["worker", "hwdetect"]);
    assert_eq!(cpus_of(&all), online);
    let output = Command::new("taskset")
        .args(["-c", "0", env!("CARGO_BIN_EXE_hq")])
        .args(["worker", "hwdetect", "--output-mode=json"])
        .output()
        .expect("taskset can be run");
    let one = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(cpus_of(&one), 1);
}

#[test]
fn hwdetect_tells_what_the_kernel_tells() {
    let env = Env::new();
    let found = env.json(&["worker", "hwdetect"]);
    let status = std::fs::read_to_string("/proc/self/status").expect("readable");
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let count: usize = mask
        .expect("a mask")
        .trim()
        .split(',')
        .map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let number = |text: &str| text.parse::<usize>().expect("a number");
            number(last) - number(first) + 1
        })
        .sum();
    assert!(cpus_of(&found) <= count, "the mask limits: {found}");
    let meminfo = std::fs::read_to_string("/proc/meminfo").expect("readable");
    let total = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .and_then(|rest| rest.trim().strip_suffix(" kB"));
    let total: u64 = total.and_then(|kb| kb.parse().ok()).expect("an amount");
    // The amount is in ten-thousandths of a MiB.
    assert!(memory_of(&found) <= total * 10_000 / 1024, "{found}");
}

#[test]
fn hwdetect_tells_what_a_control_group_leaves() {
    let env = Env::new();
    let Some(group) = ControlGroup::with_memory(1 << 30) else {
        skip("a control group with a memory limit cannot be made");
        return;
    };
    let script = format!(
        "echo $$ > {}/cgroup.procs && exec {} worker hwdetect --output-mode=json",
        group.0.display(),
        env!("CARGO_BIN_EXE_hq")
    );
    let mut command = Command::new("sh");
    let output = command.args(["-c", &script]).output().expect("sh runs");
    assert!(output.status.success(), "{output:?}");
    let found: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(memory_of(&found), 1024 * 10_000);
    let all = env.json(&["worker", "hwdetect"]);
    assert!(memory_of(&all) > 1024 * 10_000, "we are not in it: {all}");
}

/// A control group that is removed on drop.
struct ControlGroup(std::path::PathBuf);

impl ControlGroup {
    /// Creates a group with a limit in bytes below the root of either version. Returns `None` if
    /// that is not permitted.
    fn with_memory(limit: u64) -> Option<Self> {
        let name = format!("hq-e2e-{}", std::process::id());
        let roots = [
            ("/sys/fs/cgroup", "memory.max"),
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
        ];
        roots.into_iter().find_map(|(root, file)| {
            let group = Self(std::path::Path::new(root).join(&name));
            // Outside a control group, a file with any name could be created.
            let is_group = std::path::Path::new(root).join("cgroup.procs").exists();
            is_group.then(|| std::fs::create_dir(&group.0).ok())??;
            std::fs::write(group.0.join(file), limit.to_string()).ok()?;
            Some(group)
        })
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}

fn memory_of(hardware: &serde_json::Value) -> u64 {
    let items = hardware["resources"].as_array().expect("a list");
    let memory = items.iter().find(|item| item["name"] == "mem");
    memory.expect("memory")["size"].as_u64().expect("an amount")
}

fn cpus_of(hardware: &serde_json::Value) -> usize {
    let items = hardware["resources"].as_array().expect("a list");
    let cpus = items
        .iter()
        .find(|item| item["name"] == "cpus")
        .expect("cpus");
    let list = |key: &str| cpus[key].as_array();
    match (list("groups"), list("values"), cpus["start"].as_u64()) {
        (Some(groups), ..) => groups
            .iter()
            .map(|group| group.as_array().map_or(0, Vec::len))
            .sum(),
        (None, Some(values), _) => values.len(),
        (None, None, Some(start)) => {
            let end = cpus["end"].as_u64().expect("an end");
            usize::try_from(end - start + 1).expect("few")
        }
        (None, None, None) => panic!("{cpus}"),
    }
}
