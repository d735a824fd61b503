//! Automatic allocation on a real Slurm with four virtual nodes, started for each test.
//!
//! These tests are skipped without Slurm, or without permission to start it. `.ci/run` installs it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::harness::{Env, processes_with, signal, skip, wait_for, wait_for_up_to};

/// Lost messages between Slurm's daemons are repeated after a minute, possibly several times. Nodes
/// that do not answer are given up after five minutes (`SlurmdTimeout`).
const PATIENCE: Duration = Duration::from_secs(420);

/// The programs that the fixture needs.
const NEEDED: [&str; 4] = ["slurmctld", "slurmd", "munged", "sbatch"];

/// A Slurm, and the environment of a server that finds its commands behind `liar.sh`.
struct Slurm {
    dir: tempfile::TempDir,
}

impl Slurm {
    /// Returns `None` if this is not possible here. The reason has been printed.
    fn start() -> Option<Self> {
        if let Err(reason) = can_start() {
            skip(&reason);
            return None;
        }
        let dir = tempfile::Builder::new()
            .prefix("hq-slurm-")
            .tempdir()
            .expect("temporary directory");
        let up = script("up.sh")
            .arg(dir.path())
            .arg(free_ports(5).to_string())
            .output()
            .expect("bash can be run");
        let slurm = Self { dir };
        assert!(
            up.status.success(),
            "{}",
            String::from_utf8_lossy(&up.stderr)
        );
        Some(slurm)
    }

    /// Returns the output of a Slurm command.
    fn run(&self, program: &str, args: &[&str]) -> String {
        let output = Command::new(program)
            .args(args)
            .env("SLURM_CONF", self.dir.path().join("slurm.conf"))
            .output()
            .expect("Slurm is installed");
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Returns the ids of the jobs that are queued or running.
    fn jobs(&self) -> Vec<String> {
        let text = self.run("squeue", &["--noheader", "--format=%i"]);
        text.lines().map(str::to_owned).collect()
    }

    /// Creates an environment whose server uses this Slurm and polls often. Its calls are recorded.
    fn env(&self) -> Env {
        let mut env = Env::new();
        env.set_patience(PATIENCE);
        let bin = env.path("bin");
        std::fs::create_dir(&bin).expect("create a directory");
        for name in ["sbatch", "scontrol", "scancel", "squeue"] {
            let link = bin.join(name);
            std::os::unix::fs::symlink(script_path("liar.sh"), link).expect("make a link");
        }
        std::fs::write(env.path("calls"), "").expect("create the log");
        let search = format!(
            "{}:{}",
            bin.display(),
            std::env::var("PATH").unwrap_or_default()
        );
        env.set("PATH", &search);
        env.set(
            "SLURM_CONF",
            &self.dir.path().join("slurm.conf").to_string_lossy(),
        );
        env.set("HQ_AUTOALLOC_SCHEDULE_TICK_INTERVAL_MS", "200");
        env.set("HQ_AUTOALLOC_MAX_SCHEDULE_DELAY_MS", "1000");
        env.set("HQ_AUTOALLOC_REFRESH_INTERVAL_MS", "1000");
        env
    }

    fn stop_controller(&self) {
        let pid = std::fs::read_to_string(self.dir.path().join("slurmctld.pid")).expect("its pid");
        let pid: u32 = pid.trim().parse().expect("a number");
        // A controller that is killed may have forgotten the jobs of the last seconds, and then
        // ends them.
        signal(pid, "TERM");
        wait_for("slurmctld has ended", || {
            let left = processes_with(&format!("slurmctld -f {}", self.dir.path().display()));
            if left.is_empty() {
                Ok(())
            } else {
                Err(format!("{left:?}"))
            }
        });
    }

    fn start_controller(&self) {
        let path = format!(
            "{}:/usr/sbin:/sbin",
            std::env::var("PATH").unwrap_or_default()
        );
        let status = Command::new("slurmctld")
            .arg("-f")
            .arg(self.dir.path().join("slurm.conf"))
            .env("PATH", path)
            .status();
        assert!(status.expect("slurmctld can be run").success());
    }

    fn wait_empty(&self) {
        wait_for_up_to(PATIENCE, "no job is left", || {
            if self.jobs().is_empty() {
                Ok(())
            } else {
                let format = "--format=%i %T %M %r";
                Err(self.run("squeue", &["--noheader", format]))
            }
        });
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        // Best effort, because the test already has its result.
        let _ = script("down.sh").arg(self.dir.path()).status();
    }
}

fn script(name: &str) -> Command {
    let mut command = Command::new("bash");
    command.arg(script_path(name));
    command
}

fn script_path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/slurm")
        .join(name)
}

fn can_start() -> Result<(), String> {
    let dirs = format!(
        "{}:/usr/sbin:/sbin",
        std::env::var("PATH").unwrap_or_default()
    );
    let is_there = |program: &str| {
        dirs.split(':')
            .any(|dir| PathBuf::from(dir).join(program).exists())
    };
    if let Some(missing) = NEEDED.iter().find(|program| !is_there(program)) {
        return Err(format!(
            "`{missing}` is not installed (Debian: slurm-wlm, munge)"
        ));
    }
    let id = Command::new("id")
        .arg("-u")
        .output()
        .expect("id can be run");
    if String::from_utf8_lossy(&id.stdout).trim() != "0" {
        return Err("a Slurm can only be started by root".to_owned());
    }
    Ok(())
}

/// Returns the first of several consecutive unused ports.
fn free_ports(count: u16) -> u16 {
    let is_free = |port: u16| std::net::TcpListener::bind(("127.0.0.1", port)).is_ok();
    // Chosen below the ephemeral ports, and spread over test processes.
    let start = 12_000 + u16::try_from(std::process::id() % 1_500).unwrap_or(0) * 10;
    let salt = {
        use std::sync::atomic::{AtomicU16, Ordering};
        static NEXT: AtomicU16 = AtomicU16::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) * 10
    };
    (0..1_000)
        .map(|step| start + salt + step * 10)
        .find(|first| (*first..first + count).all(is_free))
        .expect("free ports")
}

/// Returns the number of calls of `sbatch`.
fn submissions(env: &Env) -> usize {
    let calls = env.read("calls");
    calls
        .lines()
        .filter(|call| call.starts_with("sbatch "))
        .count()
}

/// Returns the allocations of queue 1.
fn allocations(env: &Env) -> Vec<serde_json::Value> {
    let found = env.json(&["alloc", "info", "1"]);
    found.as_array().expect("a list").clone()
}

#[test]
fn tasks_bring_their_own_allocations() {
    let Some(slurm) = Slurm::start() else { return };
    let mut env = slurm.env();
    env.start_server();
    env.hq(&[
        "alloc",
        "add",
        "slurm",
        "--time-limit",
        "5m",
        "--idle-timeout",
        "2s",
    ])
    .says("A trial allocation was submitted successfully")
    .says("Allocation queue 1 successfully created")
    .ok();
    // The trial allocation is canceled, which a busy controller shows with a delay.
    slurm.wait_empty();
    let job = env.submit(&["--array=1-2000", "--stdout=none", "--stderr=none", "true"]);
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 2_000);
    slurm.wait_empty();
    env.wait_for("all allocations are over", || {
        let all = allocations(&env);
        if all.iter().all(|a| a["status"] == "finished") {
            Ok(())
        } else {
            Err(format!("{all:?}"))
        }
    });
    let all = allocations(&env);
    assert_eq!(
        submissions(&env),
        all.len() + 1,
        "one call each, and the trial"
    );
    assert!(
        all.iter()
            .all(|a| a["started_at"].is_string() && a["ended_at"].is_string())
    );
    let first = all[0]["id"].as_str().expect("an id");
    env.hq(&["alloc", "log", first, "stderr"])
        .says("Worker stopped: idle timeout reached")
        .ok();
    let script = Path::new(all[0]["workdir"].as_str().expect("a path")).join("hq-submit.sh");
    assert!(script.exists());
}

#[test]
fn queues_are_listed_paused_and_removed() {
    let Some(slurm) = Slurm::start() else { return };
    let mut env = slurm.env();
    env.start_server();
    env.hq(&[
        "alloc",
        "add",
        "slurm",
        "-t",
        "1h",
        "--",
        "--partition=nosuch",
    ])
    .says("Dry-run (test allocation submission) has failed")
    .says("Could not submit allocation: sbatch execution failed")
    .says("You can find the submitted script at")
    .exits_with(1);
    assert_eq!(env.json(&["alloc", "list"]), serde_json::json!([]));
    add_queue(&env, "-t 1h --cpus=1 --name=foo -b2 -m2 -- --partition=p");
    let queue = env.json(&["alloc", "list"])[0].clone();
    assert_eq!(
        queue,
        serde_json::json!({
            "additional_args": ["--partition=p"], "backlog": 2, "id": 1,
            "known_worker_resources": null, "manager": "Slurm", "max_worker_count": null,
            "max_workers_per_alloc": 2, "name": "foo", "state": "Active", "timelimit": 3600.0,
            "worker_args": ["--cpus", "\"1\"", "--on-server-lost", "\"finish-running\"",
                            "--time-limit", "\"1h\""],
        })
    );
    env.hq(&["alloc", "pause", "1"])
        .says("Allocation queue 1 successfully paused")
        .ok();
    let job = env.submit(&["sleep", "1000"]);
    env.hq(&["alloc", "info", "1"])
        .says("paused by `hq alloc pause`")
        .ok();
    env.hq(&["alloc", "pause", "7"])
        .says("Error: Queue 7 that should have been paused was not found")
        .exits_with(1);
    env.hq(&["alloc", "resume", "1"]).ok();
    env.wait_running(&job, 1);
    env.hq(&["alloc", "remove", "1"])
        .says("Error: Allocation queue has running jobs, so it will not be removed")
        .exits_with(1);
    env.hq(&["alloc", "remove", "1", "--force"])
        .says("Allocation queue 1 successfully removed")
        .ok();
    slurm.wait_empty();
    env.hq(&["alloc", "info", "1"])
        .says("Error: Queue 1 not found")
        .exits_with(1);
    env.hq(&["alloc", "remove", "1"])
        .says("Error: Allocation queue not found")
        .exits_with(1);
    env.hq(&["alloc", "log", "77", "stdout"])
        .says("Error: Allocation 77 not found")
        .exits_with(1);
}

#[test]
fn a_server_that_stops_cancels_its_allocations() {
    let Some(slurm) = Slurm::start() else { return };
    let mut env = slurm.env();
    env.start_server();
    env.hq(&["alloc", "add", "slurm", "-t", "1h", "-m2", "-b1"])
        .ok();
    let job = env.submit(&["--array=1-2", "sleep", "1000"]);
    env.wait_running(&job, 1);
    assert!(!slurm.jobs().is_empty());
    env.hq(&["server", "stop"]).ok();
    assert_eq!(env.wait_exit("server"), Some(0));
    assert!(env.read("server.log").contains("was removed"));
    slurm.wait_empty();
}

/// Adds a queue of allocations with these options.
fn add_queue(env: &Env, options: &str) {
    let words = ["alloc", "add", "slurm"].into_iter();
    let words: Vec<&str> = words.chain(options.split(' ')).collect();
    env.hq(&words).ok();
}

/// Returns the tasks for which the loss of a worker was counted.
fn charged(env: &Env) -> Vec<serde_json::Value> {
    let sql = "SELECT task, crash_count FROM tasks WHERE crash_count > 0";
    let rows = env.json(&["query", sql]);
    rows.as_array().expect("rows").clone()
}

#[test]
fn a_canceled_allocation_costs_no_task() {
    let Some(slurm) = Slurm::start() else { return };
    let mut env = slurm.env();
    env.start_server();
    add_queue(&env, "-t 5m -b4 --idle-timeout=3s -- --cpus-per-task=2");
    let script = "echo up >>up-$HQ_TASK_ID; until test -e go; do sleep 0.05; done";
    let job = env.submit(&[
        "--array=1-6",
        "--stdout=none",
        "--crash-limit=1",
        "--",
        "bash",
        "-c",
        script,
    ]);
    env.wait_running(&job, 6);
    let victim = allocations(&env)
        .iter()
        .find(|a| a["status"] == "running")
        .map(|a| a["id"].as_str().expect("an id").to_owned())
        .expect("one runs");
    slurm.run("scancel", &[&victim]);
    env.wait_for("the tasks of the canceled allocation run again", || {
        let again = (1..=6).filter(|task| {
            let up = std::fs::read_to_string(env.path(&format!("up-{task}")));
            up.unwrap_or_default().lines().count() > 1
        });
        if again.count() >= 2 {
            Ok(())
        } else {
            Err(env.stats(&job).to_string())
        }
    });
    env.write("go", "");
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 6);
    assert_eq!(charged(&env), Vec::<serde_json::Value>::new());
    slurm.wait_empty();
}

#[test]
fn a_slurm_that_is_away_delays_and_breaks_nothing() {
    let Some(slurm) = Slurm::start() else { return };
    let mut env = slurm.env();
    env.start_server();
    add_queue(&env, "-t 5m -b2 --idle-timeout=3s");
    let job = env.submit(&[
        "--array=1-20",
        "--stdout=none",
        "--stderr=none",
        "sleep",
        "0.5",
    ]);
    env.wait_running(&job, 1);
    slurm.stop_controller();
    // Slurm's own commands retry for a long time, so there may be only one request.
    env.wait_for("Slurm was asked in vain", || {
        let calls = env.read("calls");
        let count = |start: &str| calls.lines().filter(|call| call.starts_with(start)).count();
        let (asked, answered) = (count("scontrol "), count("answered scontrol"));
        if asked > answered {
            Ok(())
        } else {
            Err(format!("{asked} questions, {answered} answers"))
        }
    });
    slurm.start_controller();
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 20);
    slurm.wait_empty();
    assert_eq!(env.json(&["alloc", "list"])[0]["state"], "Active");
}

#[test]
fn a_restarted_server_finds_its_allocations_again() {
    let Some(slurm) = Slurm::start() else { return };
    let mut env = slurm.env();
    let pid = env.start_server();
    add_queue(
        &env,
        "-t 5m -b2 --name=x --on-server-lost=reconnect --idle-timeout=3s",
    );
    let script = "echo up >>up-$HQ_TASK_ID; until test -e go; do sleep 0.05; done";
    let job = env.submit(&["--array=1-2", "--stdout=none", "--", "bash", "-c", script]);
    env.wait_running(&job, 2);
    let mut before = slurm.jobs();
    let submitted = submissions(&env);
    signal(pid, "KILL");
    env.wait_exit("server");
    env.start_server_with(&["--resume"]);
    let queue = env.json(&["alloc", "list"])[0].clone();
    assert_eq!((&queue["id"], &queue["name"]), (&1.into(), &"x".into()));
    let mut known: Vec<String> = allocations(&env)
        .iter()
        .filter(|a| a["status"] == "running" || a["status"] == "queued")
        .map(|a| a["id"].as_str().expect("an id").to_owned())
        .collect();
    known.sort();
    before.sort();
    assert_eq!(known, before);
    env.write("go", "");
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 2);
    slurm.wait_empty();
    env.wait_for("all allocations are over", || {
        let all = allocations(&env);
        if all.iter().all(|a| a["status"] == "finished") {
            Ok(())
        } else {
            Err(format!("{all:?}"))
        }
    });
    assert_eq!(submissions(&env), submitted, "nothing was asked for twice");
    env.hq(&["alloc", "remove", "1"]).ok();
    env.hq(&["alloc", "add", "slurm", "-t", "5m", "--no-dry-run"])
        .says("Allocation queue 2 successfully created")
        .ok();
}

#[test]
fn a_worker_near_its_end_starts_nothing_long_and_lets_tasks_say_goodbye() {
    let Some(slurm) = Slurm::start() else { return };
    let mut env = slurm.env();
    env.start_server();
    // A minute is the shortest time that Slurm supports.
    let hq = env!("CARGO_BIN_EXE_hq");
    let dir = env.server_dir();
    let start = format!("{hq} worker start --server-dir {}", dir.display());
    let output = env.path("worker.out");
    slurm.run(
        "sbatch",
        &[
            "--time=1",
            "--cpus-per-task=2",
            "--output",
            &output.to_string_lossy(),
            "--wrap",
            &start,
        ],
    );
    env.wait_for("the worker is registered", || {
        if env.workers().is_empty() {
            Err(slurm.run("squeue", &[]))
        } else {
            Ok(())
        }
    });
    let long = env.submit(&["--time-request=90s", "--stdout=none", "true"]);
    let short = env.submit(&["--time-request=20s", "--stdout=none", "true"]);
    env.wait_job(&short);
    let script =
        "trap 'sleep 1; echo saved >saved; exit 0' USR1; echo up >up; while :; do sleep 0.05; done";
    let stop = ["--stop-signal=USR1", "--stop-grace=4s", "--stdout=none"];
    let job = env.submit(&[&stop[..], &["--", "bash", "-c", script]].concat());
    env.wait_lines("up", 1);
    env.hq(&["task", "explain", &long, "0"]).ok();
    assert_eq!(env.stats(&long)["waiting"], 1);
    env.wait_lines("saved", 1);
    env.wait_for("the worker has left", || {
        let states = env.workers();
        if states == ["TIME LIMIT REACHED"] {
            Ok(())
        } else {
            Err(format!("{states:?}"))
        }
    });
    assert_eq!(env.stats(&long)["waiting"], 1);
    // Tasks that did not end by themselves run again elsewhere, and no crash is counted.
    let stats = env.stats(&job);
    assert_eq!(
        (&stats["failed"], &stats["canceled"]),
        (&0.into(), &0.into())
    );
    assert_eq!(charged(&env), Vec::<serde_json::Value>::new());
}

#[test]
fn a_slurm_that_lies_gets_no_allocation_too_many() {
    let Some(slurm) = Slurm::start() else { return };
    let mut env = slurm.env();
    env.start_server();
    add_queue(
        &env,
        "-t 5m -b1 --max-worker-count=2 --idle-timeout=3s --no-dry-run",
    );
    // The answers to two submissions are lost in different ways, and there are useless answers of
    // all kinds.
    let lies = "sbatch lost\nsbatch silent\nscontrol truncate\nscontrol empty\nscontrol unknown\n\
                scontrol foreign\nscontrol fail\nsqueue empty\nsqueue fail\nscancel fail\n";
    env.write("lies", lies);
    let job = env.submit(&[
        "--array=1-30",
        "--stdout=none",
        "--stderr=none",
        "sleep",
        "0.2",
    ]);
    env.wait_for("the job has ended", || {
        let jobs = slurm.jobs();
        assert!(jobs.len() <= 2, "{jobs:?}");
        let stats = env.stats(&job);
        if stats["finished"] == 30 {
            Ok(())
        } else {
            Err(stats.to_string())
        }
    });
    slurm.wait_empty();
    let names = slurm.run("squeue", &["--noheader", "--states=all", "--format=%j"]);
    let mut names: Vec<&str> = names.lines().collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count, "each allocation was submitted once");
}

const HELLO: &str = r#"
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
int main(int argc, char **argv) {
    int rank, size, sum, one = 1;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    const char *node = getenv("SLURMD_NODENAME");
    printf("rank %d of %d on %s, %d together\n", rank, size, node ? node : "?", sum);
    MPI_Finalize();
    return 0;
}
"#;

/// The recipe in `docs/slurm.md`.
const MPI_TASK: &str = r#"
export SLURM_JOBID=$SLURM_JOB_ID SLURM_TASKS_PER_NODE="1(x$HQ_NUM_NODES)"
export SLURM_NODELIST=$(squeue --noheader --job="$SLURM_JOB_ID" --format=%N)
exec mpirun -np "$HQ_NUM_NODES" --map-by node ./hello
"#;

#[test]
fn a_gang_says_hello_by_mpi_from_both_nodes() {
    let Some(slurm) = Slurm::start() else { return };
    let mut env = slurm.env();
    let source = env.write("hello.c", HELLO);
    let compiler = Command::new("mpicc")
        .arg(&source)
        .arg("-o")
        .arg(env.path("hello"))
        .output();
    let Ok(compiled) = compiler else {
        skip("`mpicc` is not installed (Debian: openmpi-bin, libopenmpi-dev)");
        return;
    };
    assert!(
        compiled.status.success(),
        "{}",
        String::from_utf8_lossy(&compiled.stderr)
    );
    env.start_server();
    add_queue(&env, "-t 5m -m2 --idle-timeout=3s");
    let job = env.submit(&[
        "--nodes=2",
        // This test may run as root. For other users, the variables are harmless.
        "--env=OMPI_ALLOW_RUN_AS_ROOT=1",
        "--env=OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1",
        "--stdout=out",
        "--stderr=err",
        "--",
        "bash",
        "-c",
        MPI_TASK,
    ]);
    env.wait_job(&job);
    let errors = std::fs::read_to_string(env.path("err")).unwrap_or_default();
    assert_eq!(env.stats(&job)["finished"], 1, "{errors}");
    let text = env.read("out");
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    let nodes: Vec<&str> = lines
        .iter()
        .filter_map(|line| line.split(' ').nth(5))
        .collect();
    assert_eq!(lines.len(), 2, "{text}");
    assert!(lines[0].starts_with("rank 0 of 2 on n") && lines[1].starts_with("rank 1 of 2 on n"));
    assert!(
        nodes[0] != nodes[1] && text.contains("2 together"),
        "{text}"
    );
}
