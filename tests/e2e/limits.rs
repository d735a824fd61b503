//! A lack of descriptors, processes or shared memory only makes hq pause; no process ends. Large
//! data is delivered, or rejected with its size.

use std::fs::File;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::{Env, signal, skip, wait_for};
use crate::http::Site;

#[test]
fn a_server_without_descriptors_waits_until_there_are_some() {
    let mut env = Env::new();
    let pid = env.start_server_behind(&["prlimit", "--nofile=60:60"], &[]);
    env.start_worker(2);
    let pid = pid.to_string();
    let limit = |count: &str| {
        let status = Command::new("prlimit")
            .args(["--pid", &pid, &format!("--nofile={count}:60")])
            .status();
        assert!(status.expect("prlimit can be run").success());
    };
    let info = env.json(&["server", "info"]);
    let port = u16::try_from(info["client_port"].as_u64().expect("a port")).expect("a port");
    limit("10");
    let caller = TcpStream::connect(("127.0.0.1", port)).expect("the kernel takes it");
    wait_for("the server has no descriptor left", || {
        let log = env.read("server.log");
        if log.contains("cannot accept a connection") {
            Ok(())
        } else {
            Err(log)
        }
    });
    drop(caller);
    limit("60");
    let job = env.submit(&["--array=1-20", "--", "true"]);
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 20);
    assert_eq!(env.workers(), ["RUNNING"]);
}

/// Any user of the machine can open these connections: to every port, silent, or without a line
/// ending after their first line.
#[test]
fn strangers_at_the_ports_leave_room_for_everybody_else() {
    use std::io::Write as _;
    let mut env = Env::new();
    env.start_server_behind(&["prlimit", "--nofile=128:128"], &["--http"]);
    let site = Site::of(&env);
    let mut strangers: Vec<TcpStream> = Vec::new();
    for _ in 0..200 {
        let mut stream = TcpStream::connect(&site.address).expect("the kernel takes it");
        // A connection that was closed to make room cannot be written to.
        let _ = stream.write_all(b"GET / HTTP/1.1\r\nX: ");
        strangers.push(stream);
    }
    let info = env.json(&["server", "info"]);
    for name in ["client_port", "worker_port"] {
        let port = u16::try_from(info[name].as_u64().expect("a port")).expect("a port");
        let streams = (0..60).map(|_| TcpStream::connect(("127.0.0.1", port)));
        strangers.extend(streams.map(|stream| stream.expect("the kernel takes it")));
    }
    env.start_worker(2);
    let job = env.submit(&["--array=1-20", "--", "true"]);
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 20);
    assert_eq!(site.get("/api/v1/summary").status, 200);
    let log = env.read("server.log");
    assert!(!log.contains("cannot accept"), "{log}");
}

#[test]
fn a_worker_with_few_descriptors_runs_more_tasks_than_it_could_at_once() {
    let mut env = Env::new();
    env.start_server();
    env.start_worker_behind(&["prlimit", "--nofile=64:64"], &["--cpus=100"]);
    let script = "echo $HQ_TASK_ID; sleep 0.1";
    let job = env.submit(&["--array=1-300", "--", "sh", "-c", script]);
    env.wait_job(&job);
    assert_eq!(
        env.stats(&job)["finished"],
        300,
        "no task is charged for what the worker lacks"
    );
    assert_eq!(env.workers(), ["RUNNING"]);
}

/// Submits with a file of zeros, which takes no space, as standard input.
fn submit_zeros(env: &Env, bytes: u64, args: &[&str]) -> std::process::Output {
    let file = File::create(env.path("zeros")).expect("writable");
    file.set_len(bytes).expect("room");
    let mut command = env.command(args);
    command.stdin(File::open(env.path("zeros")).expect("just made"));
    command.output().expect("hq runs")
}

#[test]
fn twenty_megabytes_of_standard_input_reach_a_task() {
    let env = Env::with_worker(1);
    let args = [
        "submit",
        "--wait",
        "--stdin",
        "--stdout=count",
        "--",
        "wc",
        "-c",
    ];
    let ran = submit_zeros(&env, 20_000_000, &args);
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(env.read("count"), "20000000\n");
    assert_eq!(env.workers(), ["RUNNING"]);
    let args = ["run", "--stdin", "--", "wc", "-c"];
    let ran = submit_zeros(&env, 20_000_000, &args);
    assert_eq!(
        String::from_utf8_lossy(&ran.stdout),
        "20000000\n",
        "{ran:?}"
    );
}

#[test]
fn what_is_too_large_for_a_worker_is_refused_with_its_size() {
    let mut env = Env::new();
    env.start_server();
    let ran = submit_zeros(&env, (64 << 20) + 1, &["submit", "--stdin", "--", "cat"]);
    assert_eq!(ran.status.code(), Some(1));
    let said = String::from_utf8_lossy(&ran.stderr);
    let expected = "the data for standard input (--stdin) has 67108865 bytes, at most 67108864";
    assert!(said.contains(expected), "{said}");
    assert_eq!(env.json(&["job", "list", "--all"]), serde_json::json!([]));
}

#[test]
fn entries_that_exceed_a_message_reach_their_tasks() {
    let mut env = Env::new();
    env.start_server();
    env.start_worker_with(&["--cpus=250"]);
    let zeros = "0".repeat(99_997);
    let lines: Vec<String> = (0..250).map(|n| format!("{zeros}{n:03}\n")).collect();
    env.write("lines", lines.concat());
    let script = "echo ${#HQ_ENTRY} $((10#$HQ_ENTRY)) >> seen";
    let job = env.submit(&["--each-line=lines", "--", "bash", "-c", script]);
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["finished"], 250);
    let mut seen: Vec<String> = env.read("seen").lines().map(str::to_owned).collect();
    seen.sort();
    let mut expected: Vec<String> = (0..250).map(|n| format!("100000 {n}")).collect();
    expected.sort();
    assert_eq!(seen, expected);
    assert_eq!(env.workers(), ["RUNNING"]);
}

/// A control group that limits the number of processes and threads, as containers and batch systems
/// do. It must outlive the processes in it.
struct ProcessGroup(PathBuf);

impl ProcessGroup {
    /// Returns `None` and prints a reason if it cannot be created.
    fn make(name: &str) -> Option<Self> {
        let name = format!("hq-test-{name}-{}", std::process::id());
        let bases = ["/sys/fs/cgroup", "/sys/fs/cgroup/pids"].map(Path::new);
        let made = bases.iter().map(|base| base.join(&name)).find(|group| {
            std::fs::create_dir(group).is_ok()
                && (group.join("pids.max").exists() || {
                    let _ = std::fs::remove_dir(group);
                    false
                })
        });
        if made.is_none() {
            skip("no control group with a limit of processes can be made");
        }
        made.map(Self)
    }

    /// Returns the prefix of a command that runs in the group.
    fn prefix(&self) -> [String; 4] {
        let procs = self.0.join("cgroup.procs");
        let script = format!("echo $$ > {} && exec \"$@\"", procs.display());
        ["sh".into(), "-c".into(), script, "sh".into()]
    }

    /// Leaves room for this many processes in addition to the threads of hq. hq starts threads on
    /// demand and keeps them, so this must be called repeatedly.
    fn set_room(&self, room: usize) {
        let members = std::fs::read_to_string(self.0.join("cgroup.procs")).expect("is there");
        let is_hq = |process: &Path| {
            let program = std::fs::read_link(process.join("exe"));
            program.is_ok_and(|program| program.ends_with("hq"))
        };
        let threads = members.lines().map(|pid| {
            let process = Path::new("/proc").join(pid);
            let threads = is_hq(&process).then(|| std::fs::read_dir(process.join("task")));
            threads.map_or(0, |threads| threads.map_or(0, Iterator::count))
        });
        let max = threads.sum::<usize>() + room;
        std::fs::write(self.0.join("pids.max"), max.to_string()).expect("it is ours");
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        wait_for("the control group is empty", || {
            std::fs::remove_dir(&self.0).map_err(|error| error.to_string())
        });
    }
}

#[test]
fn a_full_control_group_of_processes_makes_tasks_wait() {
    let Some(group) = ProcessGroup::make("tasks") else {
        return;
    };
    let mut env = Env::new();
    env.start_server();
    let prefix = group.prefix();
    let prefix = prefix.each_ref().map(String::as_str);
    env.start_worker_behind(&prefix, &["--cpus=4"]);
    // By now the worker has started all the threads that it needs.
    let first = env.submit(&["--task-dir", "--", "true"]);
    env.wait_job(&first);
    group.set_room(0);
    let job = env.submit(&["--array=1-6", "--task-dir", "--", "true"]);
    wait_for("the worker says that nothing can start", || {
        let log = env.read("worker1.log");
        log.contains("cannot create processes at present")
            .then_some(())
            .ok_or(log)
    });
    assert_eq!(env.workers(), ["RUNNING"]);
    // One process at a time is enough.
    wait_for("all tasks ran", || {
        group.set_room(1);
        let stats = env.stats(&job);
        (stats["finished"] == 6)
            .then_some(())
            .ok_or(stats.to_string())
    });
    assert_eq!(env.workers(), ["RUNNING"]);
}

/// The advice at the end of each refusal.
const REFUSED: &str = "the system allows no further threads";

#[test]
fn a_server_without_room_for_all_its_threads_says_so() {
    let Some(group) = ProcessGroup::make("server") else {
        return;
    };
    let prefix = group.prefix();
    let prefix = prefix.each_ref().map(String::as_str);
    for max in 1.. {
        let mut env = Env::new();
        std::fs::write(group.0.join("pids.max"), max.to_string()).expect("it is ours");
        env.spawn_behind(&prefix, "server", &["server", "start"]);
        let said = env.wait_for("it runs or says why not", || {
            let said = env.read("server.log");
            let is_over = said.contains(REFUSED) || env.hq(&["server", "info"]).code == Some(0);
            is_over.then_some(said).ok_or(max.to_string())
        });
        if !said.contains(REFUSED) {
            assert!(max <= 12, "it needs {max} threads");
            env.hq(&["server", "stop"]).ok();
            assert_eq!(env.wait_exit("server"), Some(0));
            break;
        }
        assert!(
            !said.contains("panicked") && !said.contains("crashed"),
            "{max}: {said}"
        );
        assert_eq!(env.wait_exit("server"), Some(1), "{max}: {said}");
    }
}

#[test]
fn nothing_of_ours_needs_shared_memory_of_the_system() {
    let script = "mount -t tmpfs -o size=16k shm /dev/shm && exec \"$@\"";
    let small = ["unshare", "-m", "sh", "-c", script, "sh"];
    let tried = Command::new(small[0])
        .args([&small[1..], &["true"]].concat())
        .output();
    if !tried.as_ref().is_ok_and(|output| output.status.success()) {
        skip(&format!("/dev/shm cannot be replaced: {tried:?}"));
        return;
    }
    let mut env = Env::new();
    env.write("input", vec![b'x'; 1 << 20]);
    env.start_server_behind(&small, &[]);
    env.start_worker_behind(&small, &["--cpus=4"]);
    let fills = "cat input > /dev/shm/f";
    let full = env.submit(&["--", "sh", "-c", fills]);
    env.wait_job(&full);
    assert_eq!(
        env.stats(&full)["failed"],
        1,
        "only the task is out of room"
    );
    let name = format!("{}", env.path("input").display());
    let submit = [
        "submit",
        "--output-mode=quiet",
        "--stdin",
        "--stream=streams",
        "--task-dir",
    ];
    let command = ["--", "sh", "-c", "wc -c > counted"];
    let mut submit = env.command(&[&submit[..], &command].concat());
    let input = File::open(name).expect("written above");
    let ran = submit.stdin(input).output().expect("it can be run");
    assert!(ran.status.success(), "{ran:?}");
    assert_eq!(env.wait_lines("counted", 1).trim(), "1048576");
    let rows = env.hq(&["query", "select count(*) from jobs"]).ok();
    assert!(rows.contains('2'), "{rows}");
}

/// Returns the words before a program that must not write files beyond a size in KiB.
fn with_file_limit(kib: u32) -> [String; 3] {
    [
        "bash".to_owned(),
        "-c".to_owned(),
        format!("ulimit -f {kib}; exec \"$0\" \"$@\""),
    ]
}

#[test]
fn a_worker_with_a_limit_of_file_sizes_fails_the_task_and_lives() {
    let mut env = Env::new();
    env.start_server();
    let behind = with_file_limit(16);
    env.start_worker_behind(&behind.each_ref().map(String::as_str), &["--cpus=2"]);
    let beside = env.submit(&["--", "sleep", "1000"]);
    env.wait_running(&beside, 1);
    let large = env.submit(&["--stream=st", "--", "head", "-c", "100000", "/dev/zero"]);
    env.hq(&["job", "wait", &large]).says("File too large");
    assert_eq!(env.stats(&large)["failed"], 1);
    // In the executed program, the signal has its default action: it is bit 24 of the masks.
    let ignores = env.submit(&[
        "--stdout=ignored",
        "--",
        "grep",
        "SigIgn",
        "/proc/self/status",
    ]);
    env.wait_job(&ignores);
    let text = env.read("ignored");
    let mask = text.trim().rsplit('\t').next().unwrap_or_default();
    let mask = u64::from_str_radix(mask, 16).expect("a mask");
    assert_eq!(mask & (1 << 24), 0, "{text}");
    assert_eq!(env.workers(), ["RUNNING"]);
    assert_eq!(
        env.stats(&beside)["running"],
        1,
        "nothing has happened to it"
    );
}

#[test]
fn a_server_with_a_limit_of_file_sizes_goes_on() {
    let mut env = Env::new();
    let behind = with_file_limit(1_000);
    env.start_server_behind(&behind.each_ref().map(String::as_str), &[]);
    let text = "x".repeat(100_000);
    for _ in 0..12 {
        let submit = ["submit", "--", "echo", &text];
        let mut waiting = env.command(&submit).spawn().expect("it starts");
        // The submit waits, as on a full disk.
        for _ in 0..20 {
            if waiting.try_wait().expect("ours").is_some() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        let _ = waiting.kill();
        let _ = waiting.wait();
    }
    env.hq(&["submit", "--", "true"])
        .exits_with(1)
        .says("cannot write its state to disk");
    env.hq(&["server", "info"]).ok();
}

#[test]
fn what_announces_an_end_stops_servers_and_workers_cleanly() {
    for name in ["USR1", "USR2", "XCPU", "ALRM"] {
        let mut env = Env::new();
        let server = env.start_server();
        let worker = env.start_worker(1);
        signal(worker, name);
        assert_eq!(env.wait_exit("worker1"), Some(0), "{name}");
        signal(server, name);
        assert_eq!(env.wait_exit("server"), Some(0), "{name}");
    }
}

#[test]
fn a_state_that_does_not_fit_into_memory_is_refused_and_ends_no_server() {
    const REFUSED: &str = "is too large for the available memory";
    let mut env = Env::new();
    let server = env.start_server();
    let task = |id| format!("{{\"id\": {id}, \"command\": [\"true\", \"{id}\"]}}");
    let tasks: Vec<String> = (0..60_000).map(task).collect();
    env.write("graph.json", format!("{{\"task\": [{}]}}", tasks.join(",")));
    env.hq(&["job", "submit-file", "graph.json"]).ok();
    signal(server, "KILL");
    env.wait_exit("server");
    let mut refusals = 0;
    for mib in [240, 320, 480] {
        let limit = format!("--as={}", mib << 20);
        let tight = env.spawn_behind(&["prlimit", &limit], "tight", &["server", "start"]);
        let log = env.wait_for("it is ready or has ended", || {
            let log = env.read("tight.log");
            let is_known = ["is ready", REFUSED, "memory allocation of"]
                .iter()
                .any(|text| log.contains(text));
            if is_known { Ok(log) } else { Err(log) }
        });
        if log.contains("is ready") {
            signal(tight, "KILL");
            env.wait_exit("tight");
            continue;
        }
        assert_eq!(env.wait_exit("tight"), Some(1), "{mib} MiB: {log}");
        assert!(log.contains(REFUSED) && log.contains("--fresh"), "{log}");
        refusals += 1;
    }
    assert!(refusals > 0, "the smallest limit is too small");
}
