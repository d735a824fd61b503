//! Kills servers and workers at random moments, with real processes.
//!
//! Every test run includes a short version. To run the full campaign:
//!
//! ```sh
//! HQ_FAULT_TASKS=10000 HQ_FAULT_KILLS=100 cargo test --release -p hq-cli --test e2e \
//!     campaign::the_server -- --nocapture
//! HQ_FAULT_TASKS=2000 HQ_FAULT_KILLS=50 cargo test --release -p hq-cli --test e2e \
//!     campaign::the_worker -- --nocapture
//! HQ_FAULT_TASKS=2000 HQ_FAULT_SECONDS=30 cargo test --release -p hq-cli --test e2e \
//!     campaign::the_disk -- --nocapture
//! HQ_FAULT_TASKS=5000 HQ_FAULT_SECONDS=60 cargo test --release -p hq-cli --test e2e \
//!     campaign::strangers -- --nocapture
//! ```
//!
//! `HQ_FAULT_SEED` repeats the moments of a run. Each run prints its seed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use crate::damage::{SmallDisk, Submitted, refused_submit, submit_to_full_disk};
use crate::harness::{Env, processes_with, signal, wait_for};

/// How long a process may outlive its worker.
const OUTLIVES_MAX: Duration = Duration::from_secs(2);

/// Reads a number from the environment.
pub(crate) fn setting(name: &str, default: u64) -> u64 {
    let text = std::env::var(name).ok();
    text.map_or(default, |text| text.parse().expect("a number"))
}

/// Random moments from a printed seed (splitmix64).
pub(crate) struct Moments(u64);

impl Moments {
    pub(crate) fn new(what: &str) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = now.expect("a clock").subsec_nanos();
        let seed = setting("HQ_FAULT_SEED", u64::from(now));
        eprintln!("{what}: HQ_FAULT_SEED={seed}");
        Self(seed)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    /// Waits for a random time. A fixed sleep is intended here, because the moment must be random.
    pub(crate) fn pass(&mut self, millis_max: u64) {
        std::thread::sleep(Duration::from_millis(self.below(millis_max)));
    }
}

/// Counts how often each line occurs in a file.
fn counts(text: &str) -> BTreeMap<&str, u32> {
    let mut counts = BTreeMap::new();
    for line in text.lines() {
        *counts.entry(line).or_insert(0) += 1;
    }
    counts
}

/// Waits for a job that may take longer than a single command, as long as it makes progress.
fn wait_long(env: &Env, job: &str) {
    loop {
        let before = env.stats(job);
        if before["waiting"] == 0 && before["running"] == 0 {
            return;
        }
        wait_for("the job gets on", || {
            let now = env.stats(job);
            if now == before {
                Err(now.to_string())
            } else {
                Ok(())
            }
        });
        // Checking takes time that the tasks could use.
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn the_server_is_killed_and_no_task_notices() {
    let tasks = setting("HQ_FAULT_TASKS", 120);
    let kills = setting("HQ_FAULT_KILLS", 5);
    let mut moments = Moments::new("server killed");
    let mut env = Env::new();
    let mut server = env.start_server();
    for _ in 0..2 {
        env.start_worker_with(&["--cpus=4"]);
    }
    let script = "echo $HQ_TASK_ID $HQ_INSTANCE_ID >> log; sleep 0.$((RANDOM % 4))$((RANDOM % 10))";
    let array = format!("--array=1-{tasks}");
    let job = env.submit(&[
        &array,
        "--stdout=none",
        "--stderr=none",
        "--",
        "bash",
        "-c",
        script,
    ]);
    let mut acknowledged = Vec::new();
    // The kills are spread over the whole run: eight parallel tasks take a fifth of a second each.
    let pause_max = (tasks * 50 / kills.max(1)).max(1_000);
    for kill in 1..=kills {
        moments.pass(pause_max);
        let small = env.hq(&[
            "submit",
            "--output-mode=quiet",
            "--stdout=none",
            "--stderr=none",
            "--",
            "true",
        ]);
        acknowledged.push(small.ok().trim().to_owned());
        signal(server, "KILL");
        env.wait_exit("server");
        server = env.start_server_with(&["--resume"]);
        if kill.is_multiple_of(10) {
            println!("{kill} kills, {}", env.stats(&job));
        }
    }
    wait_long(&env, &job);
    assert_eq!(env.stats(&job)["finished"].as_u64(), Some(tasks));
    for small in &acknowledged {
        env.wait_job(small);
        assert_eq!(env.stats(small)["finished"], 1, "acknowledged job {small}");
    }
    assert_eq!(env.workers(), ["RUNNING", "RUNNING"], "the same workers");
    let log = env.read("log");
    let expected: Vec<String> = (1..=tasks).map(|id| format!("{id} 0")).collect();
    let expected: BTreeMap<&str, u32> = expected.iter().map(|line| (line.as_str(), 1)).collect();
    assert_eq!(
        counts(&log),
        expected,
        "each task ran once, as its first instance"
    );
    let sql =
        format!("SELECT count(*) AS n FROM events WHERE type = 'task-finished' AND job = {job}");
    assert_eq!(
        env.json(&["query", &sql])[0]["n"].as_u64(),
        Some(tasks),
        "recorded once"
    );
    println!(
        "{tasks} tasks, {kills} kills, {} acknowledged submits: nothing lost",
        acknowledged.len()
    );
}

#[test]
fn the_worker_is_killed_and_every_task_succeeds() {
    let tasks = setting("HQ_FAULT_TASKS", 60);
    let kills = setting("HQ_FAULT_KILLS", 3);
    let mut moments = Moments::new("worker killed");
    let mut env = Env::new();
    env.start_server();
    // A lock detects two simultaneous instances. The kernel releases it when the last process is
    // gone.
    let script = "exec 9>lock-$HQ_TASK_ID; flock -n 9 || echo $HQ_TASK_ID >> overlaps; \
                  sleep 0.2$((RANDOM % 10))7431";
    let array = format!("--array=1-{tasks}");
    let job = env.submit(&[
        &array,
        "--crash-limit=unlimited",
        "--stdout=none",
        "--stderr=none",
        "--",
        "bash",
        "-c",
        script,
    ]);
    for _ in 0..kills {
        let front = env.start_worker_with(&["--cpus=4", "--heartbeat=500ms"]);
        moments.pass(1_200);
        let children = std::fs::read_to_string(format!("/proc/{front}/task/{front}/children"));
        let inner = children.unwrap_or_default();
        let inner = inner
            .split_whitespace()
            .next()
            .and_then(|pid| pid.parse().ok());
        // Kill either the visible front process or the process behind it.
        let victim = inner.filter(|_| moments.below(2) == 0).unwrap_or(front);
        signal(victim, "KILL");
        let killed = Instant::now();
        wait_for("nothing of the worker is left", || {
            let left = processes_with("7431");
            let is_mine = |pid: &u32| {
                let cwd = std::fs::read_link(format!("/proc/{pid}/cwd"));
                cwd.is_ok_and(|cwd| cwd == env.path(""))
            };
            let left: Vec<u32> = left.into_iter().filter(is_mine).collect();
            if left.is_empty() {
                Ok(())
            } else {
                Err(format!("{left:?}"))
            }
        });
        let outlived = killed.elapsed();
        assert!(
            outlived < OUTLIVES_MAX,
            "something lived for {outlived:?} more"
        );
    }
    env.start_worker_with(&["--cpus=4"]);
    wait_long(&env, &job);
    assert_eq!(env.stats(&job)["finished"].as_u64(), Some(tasks));
    assert!(
        !env.path("overlaps").exists(),
        "two instances ran at one time: {}",
        env.read("overlaps")
    );
    println!("{tasks} tasks, {kills} killed workers: every task succeeded, none twice at a time");
}

/// Waits until `hq problems` reports that the journal cannot be written, or no longer does.
fn wait_until_unwritable(env: &Env, is_unwritable: bool) {
    wait_for("what `hq problems` says of the journal", || {
        let problems = env.hq(&["problems"]).stdout;
        let is_right = problems.contains("Unwritable journal") == is_unwritable;
        is_right.then_some(()).ok_or(problems)
    });
}

#[test]
fn the_disk_is_full_for_a_while_and_nothing_is_lost() {
    let tasks = setting("HQ_FAULT_TASKS", 100);
    // The outage is longer than a worker tolerates silence.
    let outage = Duration::from_secs(setting("HQ_FAULT_SECONDS", 3));
    let mut env = Env::new();
    let Some(disk) = SmallDisk::mount(env.path("disk")) else {
        return;
    };
    let server = env.start_server_with(&["--journal=disk/j.db"]);
    env.start_worker_with(&["--cpus=4", "--heartbeat=200ms"]);
    let array = format!("--array=1-{tasks}");
    let script = "echo $HQ_TASK_ID $HQ_INSTANCE_ID >> log; sleep 0.05";
    let job = env.submit(&[
        &array,
        "--stdout=none",
        "--stderr=none",
        "--",
        "bash",
        "-c",
        script,
    ]);
    env.wait_lines("log", 10);
    let filler = disk.fill();
    let full = Instant::now();
    let (refusal, mut waiting) = refused_submit(&env);
    let reason = "cannot write its state to disk";
    assert!(refusal.contains(reason), "{refusal}");
    let mut refused = 1;
    while full.elapsed() < outage {
        match submit_to_full_disk(&env, "small") {
            Submitted::Refused(refusal) => {
                assert!(refusal.contains(reason), "{refusal}");
                refused += 1;
            }
            Submitted::Waits(submit) => waiting.push(submit),
            // A part of the log was moved to its place in the file, and the log starts over at the
            // same place.
            Submitted::Accepted => {}
        }
        env.hq(&["job", "list", "--all"]).ok();
        std::thread::sleep(Duration::from_millis(250));
    }
    let during = env.read("log").lines().count();
    wait_until_unwritable(&env, true);
    std::fs::remove_file(&filler).expect("the filler");
    let waited = waiting.len();
    for mut submit in waiting {
        assert!(
            submit.wait().expect("it ends").success(),
            "it only had to wait"
        );
    }
    wait_long(&env, &job);
    wait_until_unwritable(&env, false);
    let late = env.submit(&["--wait", "--", "true"]);
    let log = env.read("log");
    let expected: Vec<String> = (1..=tasks).map(|id| format!("{id} 0")).collect();
    let expected: BTreeMap<&str, u32> = expected.iter().map(|line| (line.as_str(), 1)).collect();
    assert_eq!(counts(&log), expected, "each task ran once");
    assert_eq!(env.workers().len(), 1, "the worker was never lost");
    signal(server, "KILL");
    env.wait_exit("server");
    env.start_server_with(&["--journal=disk/j.db"]);
    assert_eq!(env.stats(&job)["finished"].as_u64(), Some(tasks));
    assert_eq!(env.stats(&late)["finished"], 1);
    println!(
        "full for {:?}: {refused} submits refused, {waited} waited; {during} of {tasks} tasks had \
         started when there was room again; nothing lost",
        outage.max(Duration::from_secs(1))
    );
    env.hq(&["worker", "stop", "all"]).ok();
    env.hq(&["server", "stop"]).ok();
    env.wait_exit("server");
}

#[test]
fn a_worker_can_be_stopped_while_the_disk_is_full() {
    let mut env = Env::new();
    let Some(disk) = SmallDisk::mount(env.path("disk")) else {
        return;
    };
    env.start_server_with(&["--journal=disk/j.db"]);
    let worker = env.start_worker_with(&["--cpus=4", "--heartbeat=200ms"]);
    let job = env.submit(&["--stdout=none", "--stderr=none", "--", "sleep", "1000"]);
    env.wait_running(&job, 1);
    let filler = disk.fill();
    let (_, waiting) = refused_submit(&env);
    wait_until_unwritable(&env, true);
    // The answer waits until there is space.
    env.spawn("stop", &["worker", "stop", "all"]);
    env.wait_exit_of(worker);
    std::fs::remove_file(&filler).expect("the filler");
    assert_eq!(env.wait_exit("stop"), Some(0));
    for mut submit in waiting {
        assert!(submit.wait().expect("it ends").success());
    }
    assert_eq!(env.stats(&job)["waiting"], 1, "it runs on the next one");
    env.hq(&["server", "stop"]).ok();
    env.wait_exit("server");
}

/// Returns the resident memory of a process in KiB.
pub(crate) fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1));
    number.and_then(|text| text.parse().ok()).expect("a number")
}

#[test]
fn strangers_who_connect_and_send_garbage_change_nothing() {
    let tasks = setting("HQ_FAULT_TASKS", 300);
    let seconds = setting("HQ_FAULT_SECONDS", 2);
    let mut moments = Moments::new("strangers");
    let mut env = Env::new();
    // The log must not contain bytes that strangers send.
    env.set("RUST_LOG", "debug");
    let server = env.start_server();
    env.start_worker_with(&["--cpus=4"]);
    let array = format!("--array=1-{tasks}");
    let run = |env: &Env| {
        let start = Instant::now();
        let job = env.submit(&[&array, "--stdout=none", "--stderr=none", "--", "true"]);
        env.wait_job(&job);
        assert_eq!(env.stats(&job)["finished"].as_u64(), Some(tasks));
        start.elapsed()
    };
    let alone = run(&env);
    let info = env.json(&["server", "info"]);
    let port = |name: &str| u16::try_from(info[name].as_u64().expect("a port")).expect("a port");
    let ports = [port("client_port"), port("worker_port")];
    let before = resident(server);
    let until = Instant::now() + Duration::from_secs(seconds);
    let mark = "garbage-that-no-log-may-contain";
    let mut strangers = Vec::new();
    let mut connections = 0_u32;
    let mut among = Vec::new();
    while Instant::now() < until || connections < 1_000 {
        for port in ports {
            let Ok(mut stranger) = std::net::TcpStream::connect(("127.0.0.1", port)) else {
                continue;
            };
            connections += 1;
            if moments.below(3) > 0 {
                let garbage = mark.repeat(1 + usize::try_from(moments.below(200)).expect("small"));
                // The server may already have closed the connection.
                let _ = std::io::Write::write_all(&mut stranger, garbage.as_bytes());
            }
            strangers.push(stranger);
        }
        if strangers.len() > 500 {
            strangers.drain(..250);
        }
        if connections.is_multiple_of(500) {
            among.push(run(&env));
        }
    }
    drop(strangers);
    among.push(run(&env));
    among.sort_unstable();
    let median = among[among.len() / 2];
    let after = resident(server);
    println!(
        "{connections} strangers; {tasks} tasks: {alone:?} alone, {median:?} among them; \
         server {before} KiB before, {after} KiB after"
    );
    assert!(
        !env.read("server.log").contains("garbage"),
        "received bytes are not logged"
    );
    assert!(
        after < before + 32 * 1024,
        "memory stays: {before} KiB, then {after} KiB"
    );
    assert_eq!(env.workers(), ["RUNNING"]);
}
