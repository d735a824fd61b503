//! A table that tests every behavior of a child with every backend.

use std::fs;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use hq_spawn::{
    ArgBlock, Backend, CpuSet, EnvBlock, Event, ExitStatus, Rlimit, SpawnPlan, Stdio, TaskEnv,
};
use tempfile::TempDir;

use crate::harness::{End, Rig, command, eventually, has, is_alive, sh, stat_fields};
use crate::skip::skip;

/// A behavior to test. The function decides whether plans have a parent-death signal, which
/// `posix_spawn` does not support: only without it does that backend really use posix_spawn.
type Behaviour = fn(&mut Rig, fn(SpawnPlan) -> SpawnPlan);

macro_rules! table {
    ($($name:ident),* $(,)?) => {
        table!(@backend clone_pidfd, Backend::ClonePidfd, $($name),*);
        table!(@backend posix_spawn_wait, Backend::PosixSpawnWait, $($name),*);
        table!(@backend fork, Backend::Fork, $($name),*);
    };
    (@backend $module:ident, $backend:expr, $($name:ident),*) => {
        mod $module {
            use super::*;

            $(#[test]
            fn $name() {
                check($backend, super::$name);
            })*
        }
    };
}

table! {
    exit_status_and_signal,
    environment_is_exactly_the_plans,
    standard_streams_are_null_by_default,
    output_files_are_created_with_the_umask,
    both_outputs_can_be_one_file,
    texts_without_a_first_line_are_scripts_of_the_shell,
    relative_files_are_relative_to_the_directory,
    input_from_bytes_and_file,
    descriptors_are_handed_over,
    session_and_group,
    group_without_session,
    parent_death_signal,
    signals_are_reset,
    limits_and_priorities,
    all_cpus_of_the_launcher,
    program_from_path,
    usage_and_times,
    missing_directories_are_created_on_demand,
    adopted_children_are_not_mixed_up,
}

fn check(backend: Backend, behaviour: Behaviour) {
    if !has(backend) {
        return skip(&format!("this kernel has no {}", backend.name()));
    }
    let mut rig = Rig::new(backend);
    assert_eq!(rig.launcher.backend(), backend);
    behaviour(&mut rig, |plan| plan);
    behaviour(&mut rig, |plan| plan.death_signal(None));
}

/// Returns the output of a plan, written to a file.
#[track_caller]
fn output(rig: &mut Rig, plan: SpawnPlan) -> String {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("out");
    rig.succeed(plan.stdout(Stdio::File { path: path.clone() }));
    fs::read_to_string(path).unwrap()
}

fn exit_status_and_signal(rig: &mut Rig, with: fn(SpawnPlan) -> SpawnPlan) {
    for (script, expected) in [
        ("exit 0", ExitStatus::Code(0)),
        ("exit 255", ExitStatus::Code(255)),
        (
            "kill -9 $$",
            ExitStatus::Signal {
                signal: 9,
                core_dumped: false,
            },
        ),
    ] {
        match rig.run(with(sh(script))) {
            End::Exited(status, _) => assert_eq!(status, expected, "{script}"),
            End::Failed(error) => panic!("{error}"),
        }
    }
}

fn environment_is_exactly_the_plans(rig: &mut Rig, with: fn(SpawnPlan) -> SpawnPlan) {
    let block = EnvBlock::empty()
        .overlay([("A".into(), "block".into()), ("B".into(), "b=\n".into())])
        .unwrap();
    let mut task = TaskEnv::new();
    task.set("A", "task").unwrap();
    task.set_display("C", 3).unwrap();
    let argv = ArgBlock::new(["/usr/bin/env", "-0"]).unwrap();
    let plan = SpawnPlan::new(argv, block).task_env(task);
    assert_eq!(output(rig, with(plan)), "A=task\0B=b=\n\0C=3\0");
}

fn standard_streams_are_null_by_default(rig: &mut Rig, with: fn(SpawnPlan) -> SpawnPlan) {
    let dir = TempDir::new().unwrap();
    let script = format!(
        "for fd in 0 1 2; do readlink /proc/$$/fd/$fd; done > {}/out",
        dir.path().display()
    );
    rig.succeed(with(sh(&script)));
    let text = fs::read_to_string(dir.path().join("out")).unwrap();
    // The redirection only applies to readlink; the links belong to the shell itself.
    assert_eq!(
        text.lines().filter(|line| *line == "/dev/null").count(),
        2,
        "{text}"
    );
}

fn output_files_are_created_with_the_umask(rig: &mut Rig, with: fn(SpawnPlan) -> SpawnPlan) {
    let dir = TempDir::new().unwrap();
    let (out, err) = (dir.path().join("out"), dir.path().join("err"));
    fs::write(&out, "old content that is longer").unwrap();
    let plan = sh("echo out; echo err >&2; umask")
        .umask(0o037)
        .stdout(Stdio::File { path: out.clone() })
        .stderr(Stdio::File { path: err.clone() });
    rig.succeed(with(plan));
    assert_eq!(fs::read_to_string(&out).unwrap(), "out\n0037\n");
    assert_eq!(fs::read_to_string(&err).unwrap(), "err\n");
    let mode = fs::metadata(&err).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o640);
}

fn both_outputs_can_be_one_file(rig: &mut Rig, with: fn(SpawnPlan) -> SpawnPlan) {
    let dir = TempDir::new().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::os::unix::fs::symlink("both", path("link")).unwrap();
    fs::create_dir(path("d")).unwrap();
    for other in ["both", "d/../both", "link", "./both"] {
        let plan = sh("echo 1; echo 2 >&2; echo 3")
            .stdout(Stdio::File { path: path("both") })
            .stderr(Stdio::File { path: path(other) });
        rig.succeed(with(plan));
        let text = fs::read_to_string(path("both")).unwrap();
        assert_eq!(text, "1\n2\n3\n", "{other}");
    }
}

fn texts_without_a_first_line_are_scripts_of_the_shell(
    rig: &mut Rig,
    with: fn(SpawnPlan) -> SpawnPlan,
) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("tool");
    for (text, expected) in [
        ("echo \"$0|$#|$2\"\n", format!("{}|2|a b\n", path.display())),
        ("# comment\necho $1", "x\n".to_owned()),
        (
            "\n\nexec echo $PWD\n",
            format!("{}\n", dir.path().display()),
        ),
        ("#!\necho still\n", "still\n".to_owned()),
        ("", String::new()),
    ] {
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let search = format!("{}:/usr/bin:/bin", dir.path().display());
        let env = EnvBlock::capture().overlay([("PATH".into(), search.into())]);
        // The program is given by its absolute path, by a relative path, and by a name found in
        // PATH.
        for name in [path.to_str().unwrap(), "./tool", "tool"] {
            let argv = ArgBlock::new([name, "x", "a b"]).unwrap();
            let plan = SpawnPlan::new(argv, env.clone().unwrap()).cwd(dir.path());
            let found = output(rig, with(plan));
            let expected = if name == "./tool" && text.contains("$0") {
                "./tool|2|a b\n"
            } else {
                &expected
            };
            assert_eq!(found, expected, "{name} {text:?}");
        }
    }
}

fn relative_files_are_relative_to_the_directory(rig: &mut Rig, with: fn(SpawnPlan) -> SpawnPlan) {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("in"), "input").unwrap();
    let plan = sh("cat; pwd -P")
        .cwd(dir.path())
        .stdin(Stdio::File { path: "in".into() })
        .stdout(Stdio::File { path: "out".into() });
    rig.succeed(with(plan));
    let expected = format!("input{}\n", dir.path().canonicalize().unwrap().display());
    assert_eq!(
        fs::read_to_string(dir.path().join("out")).unwrap(),
        expected
    );
    // A program name with a slash is also relative to it.
    fs::copy("/bin/true", dir.path().join("program")).unwrap();
    rig.succeed(with(command(&["./program"]).cwd(dir.path())));
}

fn input_from_bytes_and_file(rig: &mut Rig, with: fn(SpawnPlan) -> SpawnPlan) {
    let large: Arc<[u8]> = vec![b'x'; 300_000].into();
    let plan = command(&["wc", "-c"]).stdin(Stdio::Bytes(large));
    assert_eq!(output(rig, with(plan)).trim(), "300000");
    let plan = command(&["wc", "-c"]).stdin(Stdio::Bytes(Arc::from([])));
    assert_eq!(output(rig, with(plan)).trim(), "0");
}

fn descriptors_are_handed_over(rig: &mut Rig, with: fn(SpawnPlan) -> SpawnPlan) {
    let (mut reader, writer) = std::io::pipe().unwrap();
    let writer = Arc::new(OwnedFd::from(writer));
    let plan = sh("echo out; echo err >&2")
        .stdout(Stdio::Fd(Arc::clone(&writer)))
        .stderr(Stdio::Fd(writer));
    rig.succeed(with(plan));
    let mut text = String::new();
    // This ends because no process holds the write end anymore.
    reader.read_to_string(&mut text).unwrap();
    assert_eq!(text, "out\nerr\n");
}

fn session_and_group(rig: &mut Rig, with: fn(SpawnPlan) -> SpawnPlan) {
    let token = rig.spawn(with(command(&["/bin/sleep", "1000"])));
    let pid = rig.pid(token);
    let fields = stat_fields(pid).unwrap();
    let own = stat_fields(std::process::id()).unwrap();
    assert_eq!(fields[1], std::process::id().to_string());
    assert_eq!(
        (fields[2].as_str(), fields[3].as_str()),
        (pid.to_string().as_str(), pid.to_string().as_str())
    );
    rig.launcher.terminate(token, hq_spawn::Termination::KILL);
    rig.end(token);

    let token = rig.spawn(with(command(&["/bin/sleep", "1000"]).new_session(false)));
    let pid = rig.pid(token);
    let fields = stat_fields(pid).unwrap();
    assert_eq!(fields[2..4], own[2..4]);
    rig.launcher.terminate(token, hq_spawn::Termination::KILL);
    rig.end(token);
    assert!(!is_alive(pid));
}

fn group_without_session(rig: &mut Rig, with: fn(SpawnPlan) -> SpawnPlan) {
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("out");
    let plan = sh("sleep 1000 & echo $!; exec sleep 1000")
        .stdout(Stdio::File { path: out.clone() })
        .new_group();
    let token = rig.spawn(with(plan));
    let pid = rig.pid(token);
    let member: u32 = crate::harness::eventually_lines(&out, 1)[0]
        .parse()
        .unwrap();
    let session = &stat_fields(std::process::id()).unwrap()[3];
    for id in [pid, member] {
        let fields = stat_fields(id).unwrap();
        assert_eq!((&fields[2], &fields[3]), (&pid.to_string(), session));
    }
    // The process group ends with it.
    rig.launcher.terminate(token, hq_spawn::Termination::KILL);
    rig.end(token);
    eventually("the group ends", || (!is_alive(member)).then_some(()));
}

fn parent_death_signal(rig: &mut Rig, with: fn(SpawnPlan) -> SpawnPlan) {
    // Another test kills a launcher to see the effect. This one only checks that the program can
    // start.
    rig.succeed(with(sh("exit 0")));
}

fn signals_are_reset(rig: &mut Rig, with: fn(SpawnPlan) -> SpawnPlan) {
    // Every Rust program ignores SIGPIPE, and spawner threads block all signals.
    let text = output(rig, with(command(&["cat", "/proc/self/status"])));
    for name in ["SigBlk:", "SigIgn:", "SigCgt:"] {
        let mask = text
            .lines()
            .find_map(|line| line.strip_prefix(name))
            .unwrap();
        let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
        // In posix_spawn, glibc leaves its two internal signals, 32 and 33, ignored.
        assert_eq!(mask & !(0b11 << 31), 0, "{name} {mask:x}");
    }
}

fn limits_and_priorities(rig: &mut Rig, with: fn(SpawnPlan) -> SpawnPlan) {
    let cpu = *allowed_cpus().last().unwrap();
    let plan = sh("ulimit -n; ulimit -Hn; nice; cat /proc/self/oom_score_adj; grep Cpus_allowed_list /proc/self/status")
        .rlimit(Rlimit {
            resource: 7, // RLIMIT_NOFILE
            soft: 100,
            hard: 200,
        })
        .nice(7)
        .oom_score_adj(321)
        .affinity(CpuSet::from_iter([cpu]));
    let text = output(rig, with(plan));
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines[..4], ["100", "200", "7", "321"]);
    assert_eq!(lines[4], format!("Cpus_allowed_list:\t{cpu}"));
}

fn all_cpus_of_the_launcher(rig: &mut Rig, with: fn(SpawnPlan) -> SpawnPlan) {
    let own = fs::read_to_string("/proc/self/status").unwrap();
    let line = own
        .lines()
        .find(|line| line.starts_with("Cpus_allowed:"))
        .unwrap();
    for _ in 0..10 {
        // A child that fails halfway must leave its thread unchanged for the next one.
        rig.fail(with(sh("").cwd("/no/such/directory")));
        let text = output(rig, with(command(&["cat", "/proc/self/status"])));
        assert!(text.lines().any(|other| other == line), "{line}\n{text}");
    }
}

fn allowed_cpus() -> Vec<u32> {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .unwrap();
    list.trim()
        .split(',')
        .flat_map(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            first.parse::<u32>().unwrap()..=last.parse::<u32>().unwrap()
        })
        .collect()
}

fn program_from_path(rig: &mut Rig, with: fn(SpawnPlan) -> SpawnPlan) {
    let dir = TempDir::new().unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    for directory in [&first, &second] {
        fs::create_dir(directory).unwrap();
    }
    let install = |directory: &std::path::Path, text: &str| {
        let path = directory.join("tool");
        let temporary = directory.join("tool.new");
        fs::write(&temporary, format!("#!/bin/sh\necho {text} $0\n")).unwrap();
        fs::set_permissions(&temporary, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(&temporary, &path).unwrap();
        path
    };
    let search = format!("{}:{}", first.display(), second.display());
    let env = EnvBlock::empty()
        .overlay([("PATH".into(), search.into())])
        .unwrap();
    let plan = || SpawnPlan::new(ArgBlock::new(["tool"]).unwrap(), env.clone());

    let gone = install(&first, "one");
    assert_eq!(
        output(rig, with(plan())),
        format!("one {}\n", gone.display())
    );
    // The cached path is outdated and is looked up again.
    fs::remove_file(&gone).unwrap();
    let moved = install(&second, "two");
    assert_eq!(
        output(rig, with(plan())),
        format!("two {}\n", moved.display())
    );
}

fn usage_and_times(rig: &mut Rig, with: fn(SpawnPlan) -> SpawnPlan) {
    let script = "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done; exit 3";
    match rig.run(with(sh(script))) {
        End::Exited(
            ExitStatus::Code(3),
            Event::Exited {
                usage,
                started,
                ended,
                leaked,
                ..
            },
        ) => {
            assert!(usage.max_rss_kib > 100, "{usage:?}");
            assert!(usage.minor_faults > 10, "{usage:?}");
            let cpu_us = usage.user_us + usage.system_us;
            assert!(cpu_us > 1000, "{usage:?}");
            // The CPU time of all cores is added up, but only one was used; allow for the clock's
            // tick.
            assert!(ended.since(started) / 1000 + 20_000 > cpu_us, "{usage:?}");
            assert_eq!(leaked, 0);
        }
        other @ (End::Exited(..) | End::Failed(_)) => panic!("{other:?}"),
    }
}

fn missing_directories_are_created_on_demand(rig: &mut Rig, with: fn(SpawnPlan) -> SpawnPlan) {
    let dir = TempDir::new().unwrap();
    let cwd = dir.path().join("a/b");
    let plan = sh("echo out; echo err >&2")
        .cwd(&cwd)
        .stdout(Stdio::File {
            path: "x/y/out".into(),
        })
        .stderr(Stdio::File {
            path: dir.path().join("z/err"),
        });
    let error = rig.fail(with(plan.clone()));
    assert_eq!(
        (error.stage, error.path()),
        (hq_spawn::Stage::Chdir, Some(cwd.as_path()))
    );
    rig.succeed(with(plan.create_dirs(true)));
    assert_eq!(fs::read_to_string(cwd.join("x/y/out")).unwrap(), "out\n");
    assert_eq!(
        fs::read_to_string(dir.path().join("z/err")).unwrap(),
        "err\n"
    );
}

fn adopted_children_are_not_mixed_up(rig: &mut Rig, with: fn(SpawnPlan) -> SpawnPlan) {
    // Children that other parts of the process created keep their status.
    let mut foreign = std::process::Command::new("/bin/sh")
        .args(["-c", "exit 5"])
        .spawn()
        .unwrap();
    for _ in 0..20 {
        rig.succeed(with(command(&["/bin/true"])));
    }
    let status = eventually("the foreign child ends", || foreign.try_wait().unwrap());
    assert_eq!(status.code(), Some(5));
}
