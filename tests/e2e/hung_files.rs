//! Files that never answer: a hanging file system, and FIFOs where files are expected. Everything
//! else must continue.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use crate::dashboard::Screen;
use crate::harness::{Env, processes_with, skip, wait_for};

/// A file system that blocks writers in the kernel, beyond the reach of SIGKILL, while it is
/// frozen.
struct HungDisk {
    path: PathBuf,
    /// A process that thaws and unmounts it on request, or when the test's process ends in any way.
    guard: Child,
}

impl HungDisk {
    /// Returns `None` and prints a reason if it cannot be created here.
    fn mount(env: &Env, name: &str) -> Option<Self> {
        let path = env.path(name);
        std::fs::create_dir(&path).expect("directory");
        let image = env.write(&format!("{name}.image"), "");
        let script = "truncate -s 8M \"$1\" && mkfs.ext4 -q -O ^has_journal \"$1\" && mount -o loop \"$1\" \"$2\" && \
                      fsfreeze -f \"$2\" && fsfreeze -u \"$2\"";
        let made = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(&image)
            .arg(&path)
            .output();
        match made {
            Ok(output) if output.status.success() => {}
            other => {
                let _ = Command::new("umount").arg("-l").arg(&path).output();
                skip(&format!(
                    "a file system that can be frozen cannot be made: {other:?}"
                ));
                return None;
            }
        }
        let end = "read -r line; fsfreeze -u \"$1\"; umount -l \"$1\"";
        let guard = Command::new("setsid")
            .args(["sh", "-c", end, "sh"])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let guard = guard.expect("a shell can be run");
        Some(Self { path, guard })
    }

    fn set_frozen(&self, is_frozen: bool) {
        let option = if is_frozen { "-f" } else { "-u" };
        let done = Command::new("fsfreeze")
            .arg(option)
            .arg(&self.path)
            .status();
        assert!(done.expect("it could be run before").success());
    }
}

impl Drop for HungDisk {
    fn drop(&mut self) {
        if let Some(mut stdin) = self.guard.stdin.take() {
            let _ = stdin.write_all(b"\n");
        }
        let _ = self.guard.wait();
    }
}

/// Waits until a running and a canceled task are reported as unkillable, including by `worker
/// stop`.
fn expect_unkillable(env: &Env, writing: &str, creating: &str) -> String {
    wait_for("the tasks that outlive SIGKILL are reported", || {
        let info = env.hq(&["worker", "info", "1"]).ok();
        let explained = env.hq(&["task", "explain", writing, "0"]).ok();
        let canceled = env.hq(&["task", "explain", creating, "1"]);
        let is_told = info.contains("Unkillable tasks") && info.contains(&format!("{writing}.0"));
        if is_told
            && explained.contains("unkillable on node")
            && canceled.stderr.contains("unkillable on node")
        {
            Ok(())
        } else {
            Err(format!("{info}\n{explained}\n{}", canceled.stderr))
        }
    });
    let server = env.read("server.log");
    assert!(server.contains("A task cannot be killed"), "{server}");
    let whole = env.submit(&["--cpus=5", "--", "true"]);
    let explained = env.hq(&["task", "explain", "-v", &whole, "0"]).ok();
    let why = format!("task {writing}.0 keeps its resources");
    assert!(explained.contains(&why), "{explained}");
    whole
}

#[test]
fn doctor_ends_and_names_the_file_system_that_hangs() {
    let env = Env::new();
    let Some(disk) = HungDisk::mount(&env, "disk") else {
        return;
    };
    let dir = disk.path.join("server");
    let dir = dir.to_str().expect("a path in Unicode");
    env.hq(&["doctor", "--server-dir", dir])
        .says("ok      file locks")
        // The file system is tiny.
        .says("FAILED  room for the journal")
        .exits_with(1);
    disk.set_frozen(true);
    // Uses a longer path than the mount's, so that the mount is named.
    let seen = env.hq(&["doctor", "--server-dir", dir]);
    disk.set_frozen(false);
    let mount = format!("on {}", disk.path.display());
    seen.says("FAILED  server directory")
        .says("no answer within")
        .says(&mount)
        // The other parts are not delayed.
        .says("ok      processes")
        .exits_with(1);
}

#[test]
fn tasks_on_a_hung_file_system_hold_up_nobody_else() {
    let mut env = Env::new();
    // Created before the processes that hang on it, so that it is thawed when these must end.
    let Some(disk) = HungDisk::mount(&env, "disk") else {
        return;
    };
    env.start_server();
    env.start_worker_with(&["--cpus=5", "--heartbeat=500ms"]);
    disk.set_frozen(true);
    let creating = env.submit(&["--array=1-2", "--stdout=disk/%{TASK_ID}", "--", "true"]);
    let script = "echo x > here; echo x > disk/there";
    let writing = env.submit(&[
        "--time-limit=1s",
        "--stop-signal=SIGKILL",
        "--",
        "sh",
        "-c",
        script,
    ]);
    env.wait_lines("here", 1);
    let others = env.submit(&["--array=1-20", "--", "true"]);
    env.wait_job(&others);
    assert_eq!(env.stats(&others)["finished"], 20);
    env.hq(&["job", "cancel", &creating]).ok();
    wait_for("the cancelled tasks are done for their user", || {
        let stats = env.stats(&creating);
        if stats["canceled"] == 2 {
            Ok(())
        } else {
            Err(stats.to_string())
        }
    });
    let after = env.submit(&["--task-dir", "--", "sh", "-c", "exit 3"]);
    env.wait_job(&after);
    assert_eq!(env.stats(&after)["failed"], 1);
    assert_eq!(env.workers(), ["RUNNING"]);
    let whole = expect_unkillable(&env, &writing, &creating);
    disk.set_frozen(false);
    env.wait_job(&whole);
    env.wait_job(&writing);
    wait_for("ended tasks are not reported any more", || {
        let info = env.hq(&["worker", "info", "1"]).ok();
        if info.contains("Unkillable") {
            Err(info)
        } else {
            Ok(())
        }
    });
    let all = env.submit(&["--cpus=5", "--", "true"]);
    env.wait_job(&all);
    assert_eq!(env.stats(&all)["finished"], 1, "everything is free again");
    assert_eq!(env.workers(), ["RUNNING"]);
    env.hq(&["worker", "stop", "all"]).ok();
    env.wait_exit("worker1");
}

/// Python calls around a hang of the worker's work directory. The first interpreter exists
/// before; the payloads are too long for a packet.
const CALLS: &str = r#"
import os, sys, time
os.environ["HQ_BINARY"] = sys.argv[1]
import hq
with hq.Executor() as executor:
    executor.submit(len, b"").result()
    print("ready", flush=True)
    while not os.path.exists("frozen"):
        time.sleep(0.01)
    calls = [executor.submit(len, bytes(50_000)) for _ in range(2)]
    calls[0].result()
    print("in the hang", flush=True)
    print([call.result() for call in calls], flush=True)
"#;

#[test]
fn a_hung_work_directory_stops_neither_limits_nor_cancels_nor_heartbeats_nor_calls() {
    let mut env = Env::new();
    let Some(disk) = HungDisk::mount(&env, "disk") else {
        return;
    };
    env.start_server();
    env.start_worker_with(&["--cpus=6", "--heartbeat=500ms", "--work-dir=disk"]);
    let sleeping = ["--stdout=none", "--stderr=none", "--", "sleep", "600"];
    let limited = env.submit(&[&["--time-limit=3s"], &sleeping[..]].concat());
    let canceled = env.submit(&sleeping);
    env.wait_running(&limited, 1);
    env.wait_running(&canceled, 1);
    let package = concat!(env!("CARGO_MANIFEST_DIR"), "/../../python");
    env.set("PYTHONPATH", package);
    env.spawn_behind(&["python3", "-c", CALLS], "calls", &[]);
    env.wait_lines("calls.log", 1);
    disk.set_frozen(true);
    env.write("frozen", "");
    assert!(env.wait_lines("calls.log", 2).ends_with("in the hang\n"));
    // More than the process-creating threads of a small machine.
    let hung = env.submit(&["--task-dir", "--array=1-4", "--", "true"]);
    wait_for("the tasks hang", || {
        let log = env.read("worker1.log");
        log.contains("The start of a task hangs")
            .then_some(())
            .ok_or(log)
    });
    wait_for("the user is told", || {
        let told = env.hq(&["task", "explain", &hung, "1"]).ok();
        let is_told = told.contains("but has not started it");
        is_told.then_some(()).ok_or(told)
    });
    env.hq(&["job", "cancel", &canceled]).ok();
    env.wait_job(&canceled);
    env.wait_job(&limited);
    let error = env.tasks(&limited)[0]["error"].to_string();
    assert!(error.contains("Time limit"), "{error}");
    let others = env.submit(&["--array=1-4", "--", "true"]);
    env.wait_job(&others);
    assert_eq!(env.stats(&others)["finished"], 4);
    assert_eq!(env.workers(), ["RUNNING"]);
    disk.set_frozen(false);
    env.wait_job(&hung);
    assert_eq!(env.stats(&hung)["finished"], 4);
    let calls = env.wait_lines("calls.log", 3);
    assert!(calls.ends_with("[50000, 50000]\n"), "{calls}");
    // Nor the goodbye of the worker, whose directory is there.
    disk.set_frozen(true);
    env.hq(&["worker", "stop", "all"]).ok();
    wait_for("the worker says goodbye", || {
        let states = env.workers();
        (states == ["STOPPED"])
            .then_some(())
            .ok_or_else(|| format!("{states:?}"))
    });
    disk.set_frozen(false);
    env.wait_exit("worker1");
}

#[test]
fn a_stop_does_not_wait_for_what_hangs_in_the_kernel() {
    let mut env = Env::new();
    let Some(disk) = HungDisk::mount(&env, "disk") else {
        return;
    };
    env.start_server();
    env.start_worker(3);
    disk.set_frozen(true);
    // One task hangs in its program, and one hangs while it is created. In the latter case, a
    // thread of the worker hangs with it.
    env.submit(&["--", "sh", "-c", "echo x > here; echo x > disk/there"]);
    env.submit(&["--stdout=disk/%{TASK_ID}", "--", "true"]);
    env.submit(&["--", "sh", "-c", "echo x > other; exec sleep 62317"]);
    env.wait_lines("here", 1);
    env.wait_lines("other", 1);
    wait_for("the other one hangs, too", || {
        let log = env.read("worker1.log");
        let hangs = log.contains("The start of a task hangs");
        hangs.then_some(()).ok_or(log)
    });
    env.hq(&["server", "stop"]).ok();
    assert_eq!(env.wait_exit("server"), Some(0));
    // The disk is frozen all the time.
    assert_eq!(env.wait_exit("worker1"), Some(1));
    let log = env.read("worker1.log");
    assert!(log.contains("hang in the kernel"), "{log}");
    assert!(processes_with("sleep 62317").is_empty());
    disk.set_frozen(false);
}

#[test]
fn a_journal_that_hangs_holds_up_neither_looks_nor_the_end_of_its_server() {
    let mut env = Env::new();
    let Some(disk) = HungDisk::mount(&env, "disk") else {
        return;
    };
    env.start_server_with(&["--journal=disk/state.db"]);
    env.submit(&["--name=kept", "--", "true"]);
    let mut screen = Screen::start(&env, &["dashboard"]);
    screen.press("2");
    screen.shows(&["kept"]);
    disk.set_frozen(true);
    let start_submit = |name: &str| {
        let mut submit = env.command(&["submit", name, "--", "true"]);
        let submit = submit.stdout(Stdio::piped()).stderr(Stdio::piped());
        submit.spawn().expect("the program can be run")
    };
    let submit = start_submit("--name=hanging");
    wait_for("the change is known", || {
        let jobs = env.hq(&["job", "list", "--all"]).ok();
        jobs.contains("hanging").then_some(()).ok_or(jobs)
    });
    env.hq(&["worker", "list"]).ok();
    env.hq(&["alloc", "list"]).ok();
    // A dashboard continues while its request is waiting.
    screen.shows(&["hanging"]);
    screen.press("c");
    screen.shows(&["Cancel job 2 `hanging`?"]);
    screen.press("y");
    screen.shows(&["the server is slow to answer"]);
    let mut later = start_submit("--name=later");
    screen.shows(&["later"]);
    screen.press("q");
    screen.shows(&["Waiting for the server to do what was asked for last"]);
    assert_eq!(screen.end(), Some(1));
    screen.shows(&["what was asked for last may not be done"]);
    // Everything known is shown, with the hanging file as the first problem.
    for look in ["status", "problems"] {
        wait_for("it is told what hangs", || {
            let shown = env.hq(&[look]).ok();
            let is_told = shown.contains("Hanging journal") && shown.contains("disk/state.db");
            is_told.then_some(()).ok_or(shown)
        });
    }
    let status = env.hq(&["status"]).ok();
    assert!(status.contains("kept"), "{status}");
    // From then on, requests that need the file are rejected at once.
    for asked in [&["query", "select 1"][..], &["journal", "flush"]] {
        env.hq(asked)
            .exits_with(1)
            .says("the journal does not answer");
    }
    env.hq(&["server", "stop"]).ok();
    let told = submit.wait_with_output().expect("its output can be read");
    let text = String::from_utf8_lossy(&told.stderr);
    assert!(
        text.contains("before the change is known to be stored"),
        "{text}"
    );
    assert_eq!(told.status.code(), Some(1));
    let told = later.wait().expect("it ends");
    assert_eq!(told.code(), Some(1));
    // Until then the kernel keeps the process.
    disk.set_frozen(false);
    env.wait_exit("server");
    env.start_server_with(&["--journal=disk/state.db"]);
    let jobs = env.hq(&["job", "list", "--all"]).ok();
    assert!(jobs.contains("kept"), "{jobs}");
}

#[test]
fn a_journal_that_hung_for_a_while_leaves_no_cpu_idle() {
    let mut env = Env::new();
    let Some(disk) = HungDisk::mount(&env, "disk") else {
        return;
    };
    env.start_server_with(&["--journal=disk/state.db"]);
    env.start_worker(6);
    env.start_worker(6);
    // One task runs on each worker, which has room for two more.
    let long = env.submit(&["--array=1-2", "--cpus=4", "--", "sleep", "1000"]);
    env.wait_running(&long, 2);
    disk.set_frozen(true);
    // They are dispatched, and wait for the disk until it is reported as hanging.
    let mut submit = env.command(&["submit", "--array=1-3", "--", "sleep", "1000"]);
    let submit = submit.stdout(Stdio::null()).spawn();
    let mut submit = submit.expect("the program can be run");
    wait_for("it is told what hangs", || {
        let status = env.hq(&["status"]).ok();
        let is_told = status.contains("Hanging journal");
        is_told.then_some(()).ok_or(status)
    });
    disk.set_frozen(false);
    assert!(submit.wait().expect("it ends").success());
    // No task ends, but there is room for one more anyway.
    env.hq(&["submit", "--wait", "--", "true"]).ok();
}

#[test]
fn fifos_in_place_of_files_hold_up_nobody() {
    let env = Env::with_worker(4);
    // The task's message is in a FIFO.
    let script = "[ $HQ_TASK_ID = 2 ] || mkfifo $HQ_ERROR_FILENAME; exit 3";
    let job = env.submit(&["--array=1-2", "--task-dir", "--", "sh", "-c", script]);
    env.wait_job(&job);
    assert_eq!(env.stats(&job)["failed"], 2);
    let error = env.tasks(&job)[0]["error"].to_string();
    assert!(error.contains("it is not a regular file"), "{error}");
    // The output goes to a FIFO, at the start and later, for more tasks than there are concurrent
    // reads.
    let make = Command::new("mkfifo").arg(env.path("fifo")).status();
    assert!(make.expect("mkfifo can be run").success());
    let stuck = env.submit(&["--array=1-2", "--stdout=fifo", "--", "echo", "x"]);
    env.wait_job(&stuck);
    let error = env.tasks(&stuck)[0]["error"].to_string();
    assert!(
        error.contains("needs a reader before the task starts"),
        "{error}"
    );
    let script = "rm out; mkfifo out; echo x > made; until [ -e go ]; do sleep 0.01; done";
    let job = env.submit(&["--stdout=out", "--stderr=none", "--", "sh", "-c", script]);
    env.wait_lines("made", 1);
    for _ in 0..9 {
        let _ = env.hq(&["job", "tail", &job]).says("not a regular file");
    }
    env.write("go", "");
    env.wait_job(&job);
    // The directory of a task and that of a worker are FIFOs.
    let inside = env.submit(&["--cwd=fifo", "--stdout=none", "--stderr=none", "--", "true"]);
    env.wait_job(&inside);
    let error = env.tasks(&inside)[0]["error"].to_string();
    assert!(error.contains("Not a directory"), "{error}");
    env.hq(&["worker", "start", "--work-dir=fifo"])
        .exits_with(1)
        .says("Cannot prepare the working directory");
    let next = env.submit(&["--array=1-8", "--", "true"]);
    env.wait_job(&next);
    assert_eq!(env.stats(&next)["finished"], 8);
    // Directories and files that commands read contain FIFOs.
    for (dir, name) in [("streams", "x.hqs"), ("access", "access.json")] {
        std::fs::create_dir(env.path(dir)).expect("directory");
        let path = env.path(dir).join(name);
        let make = Command::new("mkfifo").arg(path).status();
        assert!(make.expect("mkfifo can be run").success());
    }
    env.hq(&["output-log", "streams", "summary"])
        .exits_with(1)
        .says("No log files found");
    let dir = format!("--server-dir={}", env.path("access").display());
    for command in [&["job", "list"][..], &["worker", "start"]] {
        env.hq(&[command, &[&dir]].concat())
            .exits_with(1)
            .says("expected a regular file");
    }
    assert_eq!(env.workers(), ["RUNNING"]);
}
