//! Tests the backends without some system calls: a filter responds to them like an old kernel or a
//! container.

use std::fs;

use hq_spawn::{Backend, Stdio, Termination};

use crate::filter::{Deny, WITHOUT_ADOPTION, deny, has_filters};
use crate::harness::{End, Rig, command, has, rungs, sh};
use crate::isolated::{alone, is_alone};
use crate::skip::skip;

const PIDFD_OPEN: Deny = Deny::Call(libc::SYS_pidfd_open);
const CLOSE_RANGE: Deny = Deny::Call(libc::SYS_close_range);
const CLONE3: Deny = Deny::Call(libc::SYS_clone3);
const CLONE_PIDFD: Deny = Deny::Bits(libc::SYS_clone, libc::CLONE_PIDFD as u32);
const WAIT_PIDFD: Deny = Deny::First(libc::SYS_waitid, libc::P_PIDFD);

/// Runs a test that installs filters in a separate process.
fn filtered(name: &str, body: fn()) {
    if !is_alone() && !has_filters() {
        return skip("no filters of system calls here");
    }
    alone(name, &[], body);
}

/// Checks that tasks run, fail, are killed and leave nothing behind.
fn everything_works(rig: &mut Rig) {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    for index in 0..20 {
        let plan = sh(&format!("echo {index}; sleep 1000 &"))
            .stdout(Stdio::File { path: out.clone() })
            .death_signal((index % 2 == 0).then_some(libc::SIGKILL));
        rig.succeed(plan);
        assert_eq!(fs::read_to_string(&out).unwrap(), format!("{index}\n"));
    }
    assert_eq!(rig.fail(command(&["/no/such"])).errno, libc::ENOENT);
    let token = rig.spawn(command(&["/bin/sleep", "1000"]));
    rig.pid(token);
    rig.launcher.terminate(token, Termination::KILL);
    assert!(matches!(rig.end(token), End::Exited(..)));
}

fn expect_backend(denied: &[Deny], errno: i32, expected: Backend) {
    deny(denied, errno);
    let mut rig = Rig::with(|_| {});
    assert_eq!(rig.launcher.backend(), expected);
    everything_works(&mut rig);
}

macro_rules! ladder {
    ($($name:ident: $denied:expr, $errno:ident => $expected:ident;)*) => {
        $(#[test]
        fn $name() {
            let expected = Backend::$expected;
            // This is checked in the unfiltered process, because the result of the probe is
            // remembered.
            if !is_alone() && !has(expected) {
                return skip(&format!("this kernel has no {}", expected.name()));
            }
            filtered(concat!("seccomp::", stringify!($name)), || {
                expect_backend($denied, libc::$errno, Backend::$expected);
            });
        })*
    };
}

ladder! {
    without_clone3_pidfd_open_close_range: &[CLONE3, PIDFD_OPEN, CLOSE_RANGE], ENOSYS => ClonePidfd;
    // If clone3 returns EPERM, the C library can no longer create threads; that case follows below.
    with_pidfd_open_and_close_range_forbidden: &[PIDFD_OPEN, CLOSE_RANGE], EPERM => ClonePidfd;
    without_waiting_on_pidfds: &[WAIT_PIDFD], EINVAL => ClonePidfd;
    without_clone_pidfd: &[CLONE_PIDFD], EINVAL => PosixSpawnWait;
    with_clone_pidfd_forbidden: &[CLONE_PIDFD], EPERM => PosixSpawnWait;
    without_any_pidfd: &[CLONE_PIDFD, PIDFD_OPEN, WAIT_PIDFD], EINVAL => PosixSpawnWait;
    without_anything_new: &[CLONE_PIDFD, PIDFD_OPEN, WAIT_PIDFD, CLOSE_RANGE, CLONE3], ENOSYS => PosixSpawnWait;
}

#[test]
fn close_range_without_its_later_flag() {
    let name = "seccomp::close_range_without_its_later_flag";
    filtered(name, || {
        // This is how Linux 5.9 and 5.10 behave.
        let flag = Deny::Third(libc::SYS_close_range, libc::CLOSE_RANGE_CLOEXEC);
        deny(&[flag], libc::EINVAL);
        for backend in rungs() {
            everything_works(&mut Rig::new(backend));
        }
    });
}

fn input_without_files_in_memory(errno: i32) {
    deny(&[Deny::Call(libc::SYS_memfd_create)], errno);
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let text = vec![b'x'; 200_000];
    for backend in rungs() {
        let plan = command(&["cat"])
            .stdin(Stdio::Bytes(text.clone().into()))
            .stdout(Stdio::File { path: out.clone() });
        Rig::new(backend).succeed(plan);
        assert_eq!(fs::read(&out).unwrap(), text, "{backend:?}");
    }
}

#[test]
fn input_where_the_kernel_has_no_files_in_memory() {
    let name = "seccomp::input_where_the_kernel_has_no_files_in_memory";
    filtered(name, || input_without_files_in_memory(libc::ENOSYS));
}

#[test]
fn input_where_files_in_memory_are_forbidden() {
    let name = "seccomp::input_where_files_in_memory_are_forbidden";
    filtered(name, || input_without_files_in_memory(libc::EACCES));
}

fn refuse_clone3_to_running_launchers(errno: i32) {
    let mut rigs: Vec<_> = rungs().into_iter().map(Rig::new).collect();
    deny(&[CLONE3], errno);
    for rig in &mut rigs {
        everything_works(rig);
    }
}

#[test]
fn clone3_forbidden_under_a_running_launcher() {
    let name = "seccomp::clone3_forbidden_under_a_running_launcher";
    filtered(name, || {
        refuse_clone3_to_running_launchers(libc::EPERM);
    });
}

#[test]
fn clone3_without_its_later_flags() {
    // This is how Linux 5.3 and 5.4 behave, which lack CLONE_CLEAR_SIGHAND. The C library's threads
    // do not need it.
    filtered("seccomp::clone3_without_its_later_flags", || {
        refuse_clone3_to_running_launchers(libc::EINVAL);
    });
}

#[test]
fn a_forced_backend_that_does_not_work_is_refused() {
    filtered(
        "seccomp::a_forced_backend_that_does_not_work_is_refused",
        || {
            deny(&[CLONE_PIDFD, PIDFD_OPEN], libc::ENOSYS);
            let mut config = hq_spawn::LauncherConfig::new(std::sync::Arc::new(|| {}));
            config.backend = Some(Backend::ClonePidfd);
            let error = hq_spawn::Launcher::start(config).err().unwrap().to_string();
            assert!(error.contains(Backend::ClonePidfd.name()), "{error}");
            everything_works(&mut Rig::new(Backend::Fork));
        },
    );
}

#[test]
fn the_environment_variable_forces_a_backend() {
    if !has(Backend::PosixSpawnWait) {
        return skip("only a fork reports failures here");
    }
    let name = "seccomp::the_environment_variable_forces_a_backend";
    alone(name, &["env", "HQ_SPAWN_BACKEND=posix-spawn-wait"], || {
        assert_eq!(
            Rig::new(Backend::Fork).launcher.backend(),
            Backend::PosixSpawnWait
        );
    });
}

#[test]
fn an_unknown_backend_in_the_environment_is_an_error() {
    let name = "seccomp::an_unknown_backend_in_the_environment_is_an_error";
    alone(name, &["env", "HQ_SPAWN_BACKEND=vfork"], || {
        let config = hq_spawn::LauncherConfig::new(std::sync::Arc::new(|| {}));
        let error = hq_spawn::Launcher::start(config).err().unwrap().to_string();
        assert!(
            error.contains("\"vfork\"") && error.contains("clone-pidfd"),
            "{error}"
        );
    });
}

#[test]
fn orphans_that_cannot_be_adopted_are_known_about() {
    let name = "seccomp::orphans_that_cannot_be_adopted_are_known_about";
    filtered(name, || {
        deny(&WITHOUT_ADOPTION, libc::EINVAL);
        assert!(!hq_spawn::features().adoption);
        everything_works(&mut Rig::with(|_| {}));
    });
}
