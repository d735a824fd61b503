//! Tests that count descriptors, zombies and threads, or that limit the process. Each of them
//! executes the test binary again and runs alone in the new process.

#![expect(clippy::print_stdout, reason = "passes on what a test says in there")]
#![expect(unsafe_code, reason = "limits of the test process")]

use std::fs;
use std::os::fd::OwnedFd;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use hq_spawn::{Backend, SpawnErrorKind, Stage, Stdio, Termination};

use crate::harness::{End, Rig, best, command, eventually, rungs, sh};
use crate::skip::skip;

/// Set in a process that runs only one test.
const ALONE: &str = "HQ_SPAWN_TEST_ALONE";

/// Much longer than any of the tests takes on a busy machine.
const ALONE_LIMIT: Duration = Duration::from_secs(300);

/// Returns whether this process runs only one test.
pub(crate) fn is_alone() -> bool {
    std::env::var_os(ALONE).is_some()
}

/// Runs `body` in a process without other tests. `prefix` is a command that runs the test binary.
pub(crate) fn alone(name: &str, prefix: &[&str], body: fn()) {
    if is_alone() {
        return body();
    }
    let own = std::env::current_exe().unwrap();
    let own = own.to_str().unwrap();
    let argv = [prefix, &[own, "--exact", name, "--nocapture"]].concat();
    let limit = ALONE_LIMIT.as_secs().to_string();
    // This kills a process that hangs, so that the test fails and shows the output so far.
    let output = Command::new("timeout")
        .args(["--signal=KILL", &limit])
        .args(&argv)
        .env(ALONE, "1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{argv:?}: {}\n{text}",
        output.status
    );
    assert!(text.contains("1 passed"), "the test did not run: {text}");
    // Shows which parts were skipped, and figures, for runs with `--nocapture`.
    print!("{text}");
}

pub(crate) fn descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

pub(crate) fn threads() -> usize {
    fs::read_dir("/proc/self/task").unwrap().count()
}

/// Returns the ids of all children of this process, including zombies.
pub(crate) fn children() -> Vec<String> {
    let own = std::process::id();
    fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|entry| {
            let thread = entry.unwrap().file_name().into_string().unwrap();
            fs::read_to_string(format!("/proc/{own}/task/{thread}/children")).ok()
        })
        .flat_map(|text| {
            text.split_whitespace()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn used_up_descriptors_only_slow_the_launcher_down() {
    let name = "isolated::used_up_descriptors_only_slow_the_launcher_down";
    alone(name, &["prlimit", "--nofile=40:40"], || {
        let mut rig = Rig::with(|config| {
            config.transient_limit = Duration::from_secs(60);
        });
        // Each holds a pidfd. They cannot all be alive at once, but all must run.
        let tokens: Vec<_> = (0..100)
            .map(|_| rig.spawn(command(&["/bin/sleep", "0.02"])))
            .collect();
        for end in rig.ends(&tokens).into_values() {
            assert!(
                matches!(end, End::Exited(status, _) if status.success()),
                "{end:?}"
            );
        }
    });
}

#[test]
fn used_up_descriptors_are_reported_as_transient_in_the_end() {
    let name = "isolated::used_up_descriptors_are_reported_as_transient_in_the_end";
    alone(name, &["prlimit", "--nofile=40:40"], || {
        if best() == Backend::PosixSpawnWait {
            return skip("no rung of this kernel needs a descriptor for a process");
        }
        let mut rig = Rig::with(|config| config.transient_limit = Duration::from_millis(50));
        let mut hoard = Vec::new();
        while let Ok(file) = fs::File::open("/dev/null") {
            hoard.push(file);
        }
        let error = rig.fail(command(&["/bin/true"]));
        assert_eq!(error.kind(), SpawnErrorKind::Transient, "{error}");
        drop(hoard);
        rig.succeed(command(&["/bin/true"]));
    });
}

#[test]
fn a_process_that_ignores_sigchld_still_gets_exit_statuses() {
    let name = "isolated::a_process_that_ignores_sigchld_still_gets_exit_statuses";
    // The shell's trap makes the test binary start with SIGCHLD ignored.
    let wrapper = ["sh", "-c", "trap '' CHLD; exec \"$@\"", "sh"];
    alone(name, &wrapper, || {
        let mut rig = Rig::new(best());
        assert!(matches!(
            rig.run(sh("exit 9")),
            End::Exited(hq_spawn::ExitStatus::Code(9), _)
        ));
    });
}

#[test]
fn closed_standard_streams_of_the_launcher_do_no_harm() {
    let name = "isolated::closed_standard_streams_of_the_launcher_do_no_harm";
    let wrapper = ["sh", "-c", "exec \"$@\" <&-", "sh"];
    alone(name, &wrapper, || {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("in");
        fs::write(&path, "text").unwrap();
        let out = dir.path().join("out");
        for backend in rungs() {
            let mut rig = Rig::new(backend);
            let plan = command(&["cat"])
                .stdin(Stdio::File { path: path.clone() })
                .stdout(Stdio::File { path: out.clone() });
            rig.succeed(plan);
            assert_eq!(fs::read_to_string(&out).unwrap(), "text");
        }
    });
}

#[test]
fn spawning_from_many_threads_while_others_allocate() {
    let name = "isolated::spawning_from_many_threads_while_others_allocate";
    alone(name, &[], || {
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        std::hint::black_box(vec![0_u8; 100_000]);
                        std::thread::yield_now();
                    }
                });
            }
            let mut rig = Rig::with(|config| config.threads = 8);
            let tokens: Vec<_> = (0..500)
                .map(|_| rig.spawn(command(&["/bin/true"])))
                .collect();
            for end in rig.ends(&tokens).into_values() {
                assert!(
                    matches!(end, End::Exited(status, _) if status.success()),
                    "{end:?}"
                );
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        eventually("no child is left", || children().is_empty().then_some(()));
    });
}

#[test]
fn requests_are_cancelled_while_queued_and_while_being_created() {
    let name = "isolated::requests_are_cancelled_while_queued_and_while_being_created";
    alone(name, &[], || {
        for backend in rungs() {
            let dir = tempfile::tempdir().unwrap();
            let fifo = dir.path().join("fifo");
            let made = Command::new("mkfifo").arg(&fifo).status().unwrap();
            assert!(made.success());
            let mut rig = Rig::with(|config| {
                config.threads = 1;
                config.backend = Some(backend);
            });
            // Opening a FIFO for reading blocks the only spawner thread until a writer opens it.
            let blocked = rig.spawn(sh("exit 3").stdin(Stdio::File { path: fifo.clone() }));
            eventually("the child exists", || {
                (!children().is_empty()).then_some(())
            });
            let queued: Vec<_> = (0..3).map(|_| rig.spawn(command(&["/bin/true"]))).collect();
            rig.launcher.terminate(queued[1], Termination::KILL);
            match rig.end(queued[1]) {
                End::Failed(error) => {
                    assert_eq!(error.kind(), SpawnErrorKind::Cancelled);
                    assert!(error.to_string().contains("cancelled before start"));
                }
                End::Exited(..) => panic!("a cancelled request ran"),
            }
            rig.launcher.terminate(blocked, Termination::KILL);
            if backend != Backend::ClonePidfd {
                // Only the pidfd returned by the clone is known before the program runs.
                drop(fs::OpenOptions::new().write(true).open(&fifo).unwrap());
            }
            match rig.end(blocked) {
                End::Failed(error) => assert_eq!(error.kind(), SpawnErrorKind::Cancelled),
                End::Exited(status, _) => assert!(!status.success(), "{status}"),
            }
            for token in [queued[0], queued[2]] {
                assert!(matches!(rig.end(token), End::Exited(status, _) if status.success()));
            }
        }
    });
}

#[test]
fn a_descriptor_that_is_not_close_on_exec_is_not_inherited() {
    let name = "isolated::a_descriptor_that_is_not_close_on_exec_is_not_inherited";
    let wrapper = [
        "bash",
        "-c",
        "exec \"$@\" 3</etc/passwd 200</etc/passwd",
        "bash",
    ];
    alone(name, &wrapper, || {
        assert!(fs::exists("/proc/self/fd/200").unwrap());
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        for backend in rungs() {
            let mut rig = Rig::new(backend);
            // The source of a stream has a higher number than 3, so the child copies both.
            let pipe = std::io::pipe().unwrap();
            for stderr in [Stdio::Null, Stdio::Fd(Arc::new(pipe.1.into()))] {
                let plan = command(&["ls", "/proc/self/fd"])
                    .stdout(Stdio::File { path: out.clone() })
                    .stderr(stderr);
                rig.succeed(plan.clone());
                rig.succeed(plan.death_signal(None));
                let text = fs::read_to_string(&out).unwrap();
                // Descriptor 3 is the directory that ls reads.
                assert_eq!(
                    text.split_whitespace().collect::<Vec<_>>(),
                    ["0", "1", "2", "3"]
                );
            }
        }
    });
}

/// Creates a cgroup v2 control group if this user may do so.
pub(crate) fn control_group() -> Option<std::path::PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap();
    let root = mounts.lines().find_map(|line| {
        let fields: Vec<_> = line.split(' ').collect();
        (fields[2] == "cgroup2").then(|| std::path::PathBuf::from(fields[1]))
    })?;
    let group = root.join(format!("hq-spawn-test-{}", std::process::id()));
    fs::create_dir(&group).ok()?;
    Some(group)
}

#[test]
fn a_child_starts_in_its_control_group() {
    let name = "isolated::a_child_starts_in_its_control_group";
    alone(name, &[], || {
        let Some(group) = control_group() else {
            skip("this user cannot create control groups");
            return;
        };
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let directory = Arc::new(OwnedFd::from(fs::File::open(&group).unwrap()));
        for backend in rungs() {
            let mut rig = Rig::new(backend);
            let plan = |program: &str| {
                command(&[program, "/proc/self/cgroup"])
                    .cgroup(Arc::clone(&directory))
                    .stdout(Stdio::File { path: out.clone() })
            };
            rig.succeed(plan("cat"));
            let text = fs::read_to_string(&out).unwrap();
            let name = group.file_name().unwrap().to_str().unwrap();
            let line = text.lines().find(|line| line.starts_with("0::")).unwrap();
            assert!(line.ends_with(name), "{backend:?}: {text}");
            // Later steps fail as usual.
            assert_eq!(rig.fail(plan("/no/such")).stage, Stage::Exec);
            let wrong = Arc::new(OwnedFd::from(fs::File::open(dir.path()).unwrap()));
            let error = rig.fail(command(&["true"]).cgroup(wrong));
            assert_eq!((error.stage, error.errno), (Stage::Cgroup, libc::ENOENT));
        }
        eventually("the group is empty", || fs::remove_dir(&group).ok());
    });
}

#[test]
fn a_raised_descriptor_limit_is_not_passed_on() {
    let name = "isolated::a_raised_descriptor_limit_is_not_passed_on";
    alone(name, &["prlimit", "--nofile=100:1000"], || {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let mut rig = Rig::with(|config| config.raise_descriptor_limit = true);
        let plan = sh("ulimit -n; ulimit -Hn").stdout(Stdio::File { path: out.clone() });
        rig.succeed(plan);
        assert_eq!(fs::read_to_string(&out).unwrap(), "100\n1000\n");
        let tokens: Vec<_> = (0..200)
            .map(|_| rig.spawn(command(&["/bin/sleep", "1000"])))
            .collect();
        for token in &tokens {
            rig.pid(*token);
        }
        assert_eq!(rig.launcher.pending(), 200);
    });
}

#[test]
fn a_low_descriptor_limit_of_children_does_not_keep_them_from_opening_files() {
    let name = "isolated::a_low_descriptor_limit_of_children_does_not_keep_them_from_opening_files";
    alone(name, &["prlimit", "--nofile=32:1000"], || {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        for backend in rungs() {
            let mut rig = Rig::with(|config| {
                config.backend = Some(backend);
                config.raise_descriptor_limit = true;
                config.transient_limit = Duration::from_millis(50);
            });
            // The child's table contains copies of all descriptors up to that of the pipe, which
            // are more than its limit allows.
            let hoard: Vec<_> = (0..64)
                .map(|_| fs::File::open("/dev/null").unwrap())
                .collect();
            let pipe = std::io::pipe().unwrap();
            let plan = sh("ulimit -n")
                .stdout(Stdio::File { path: out.clone() })
                .stderr(Stdio::Fd(Arc::new(pipe.1.into())));
            rig.succeed(plan);
            assert_eq!(fs::read_to_string(&out).unwrap(), "32\n", "{backend:?}");
            drop(hoard);
            drop(rig);
            // The next launcher raises the limit again.
            let limit = libc::rlimit {
                rlim_cur: 32,
                rlim_max: 1000,
            };
            // SAFETY: the limit is valid for reads.
            let result = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
            assert_eq!(result, 0);
        }
    });
}

#[test]
fn nobody_polls_while_children_run() {
    let name = "isolated::nobody_polls_while_children_run";
    alone(name, &[], || {
        let wake_ups = || -> u64 {
            let entries = fs::read_dir("/proc/self/task").unwrap();
            let of_thread = |entry: std::io::Result<fs::DirEntry>| {
                let status = fs::read_to_string(entry.unwrap().path().join("status")).unwrap();
                let line = status
                    .lines()
                    .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
                line.unwrap().trim().parse::<u64>().unwrap()
            };
            entries.map(of_thread).sum()
        };
        for backend in rungs() {
            let mut rig = Rig::new(backend);
            // An unreaped child of other code must not cost much either.
            let mut foreign = Command::new("true").spawn().unwrap();
            let tokens = [(); 4].map(|()| rig.spawn(command(&["/bin/sleep", "1000"])));
            rig.wait_started(&tokens);
            let before = wake_ups();
            std::thread::sleep(Duration::from_millis(500));
            let count = wake_ups() - before;
            assert!(count < 40, "{backend:?}: {count} in half a second");
            rig.launcher.terminate(tokens[0], Termination::KILL);
            rig.end(tokens[0]);
            assert!(foreign.wait().unwrap().success(), "it was left alone");
        }
    });
}

#[test]
fn no_thread_stays_on_the_cpu_it_spawned_from() {
    let name = "isolated::no_thread_stays_on_the_cpu_it_spawned_from";
    alone(name, &["/usr/bin/env"], || {
        let allowed = |thread: &str| {
            let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap();
            let line = status
                .lines()
                .find(|line| line.starts_with("Cpus_allowed_list:"));
            line.unwrap().to_owned()
        };
        let before = allowed("self");
        let mut rig = Rig::new(best());
        let tokens: Vec<_> = (0..200)
            .map(|index| {
                rig.spawn(match index % 4 {
                    0 => command(&["/no/such/program"]),
                    1 => sh("").cwd("/no/such/directory"),
                    2 => sh("").affinity([9000].into_iter().collect()),
                    _ => command(&["/bin/true"]),
                })
            })
            .collect();
        rig.ends(&tokens);
        for entry in fs::read_dir("/proc/self/task").unwrap() {
            let thread = entry.unwrap().file_name().into_string().unwrap();
            assert_eq!(allowed(&format!("self/task/{thread}")), before);
        }
    });
}

#[cfg(feature = "tokio")]
#[test]
fn children_of_a_thread_that_ended_are_no_orphans() {
    let name = "isolated::children_of_a_thread_that_ended_are_no_orphans";
    alone(name, &[], || {
        // SAFETY: takes plain numbers. From now on, this process adopts orphans.
        let result = unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) };
        assert_eq!(result, 0);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .thread_keep_alive(Duration::from_millis(1))
            .build()
            .unwrap();
        let _inside = runtime.enter();
        let mut rig = Rig::with(|config| config.strategy = hq_spawn::Strategy::SpawnBlocking);
        let before = threads();
        let dir = tempfile::tempdir().unwrap();
        let wait = format!(
            "while [ ! -e {}/go ]; do sleep 0.01; done; exit 3",
            dir.path().display()
        );
        let tokens = rig.spawn_batch((0..10).map(|_| sh(&wait)));
        rig.wait_started(&tokens);
        eventually("the threads that created them end", || {
            (threads() <= before).then_some(())
        });
        fs::write(dir.path().join("go"), "").unwrap();
        for end in rig.ends(&tokens).into_values() {
            match end {
                End::Exited(status, _) => assert_eq!(status, hq_spawn::ExitStatus::Code(3)),
                End::Failed(error) => panic!("{error}"),
            }
        }
    });
}
