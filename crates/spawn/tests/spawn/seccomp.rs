//! The ladder where system calls are missing: a filter answers for them, as an old kernel or a container would.
#![expect(unsafe_code, reason = "installing a seccomp filter")]

use std::fs;

use hq_spawn::{Backend, Stdio, Termination};
use libc::{
    BPF_ABS, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, c_long, sock_filter,
};

use crate::harness::{End, Rig, command, has, rungs, sh};
use crate::isolated::{alone, is_alone};
use crate::skip::skip;

/// What is refused, and when.
#[derive(Clone, Copy)]
enum Deny {
    /// Every use of a call.
    Call(c_long),
    /// A call whose first argument has any of these bits.
    Bits(c_long, u32),
    /// A call whose first argument is this number.
    First(c_long, u32),
    /// A call whose third argument is this number.
    Third(c_long, u32),
}

const PIDFD_OPEN: Deny = Deny::Call(libc::SYS_pidfd_open);
const CLOSE_RANGE: Deny = Deny::Call(libc::SYS_close_range);
const CLONE3: Deny = Deny::Call(libc::SYS_clone3);
const CLONE_PIDFD: Deny = Deny::Bits(libc::SYS_clone, libc::CLONE_PIDFD as u32);
const WAIT_PIDFD: Deny = Deny::First(libc::SYS_waitid, libc::P_PIDFD);

/// Installs the filter for all threads of this process and everything below it.
fn deny(calls: &[Deny], errno: i32) {
    let code = |parts: u32| u16::try_from(parts).unwrap();
    let statement = |parts, k| sock_filter {
        code: code(parts),
        jt: 0,
        jf: 0,
        k,
    };
    let jump = |parts, k, jt, jf| sock_filter {
        code: code(parts),
        jt,
        jf,
        k,
    };
    // The number is at offset 0, the low half of the first argument at 16 (little-endian).
    let load = |offset| statement(BPF_LD | BPF_W | BPF_ABS, offset);
    let refuse = statement(
        BPF_RET | BPF_K,
        libc::SECCOMP_RET_ERRNO | errno.unsigned_abs(),
    );
    let mut program = Vec::new();
    for call in calls {
        let (Deny::Call(number)
        | Deny::Bits(number, _)
        | Deny::First(number, _)
        | Deny::Third(number, _)) = *call;
        let number = u32::try_from(number).unwrap();
        program.push(load(0));
        match *call {
            Deny::Call(_) => program.push(jump(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1)),
            Deny::Bits(_, value) | Deny::First(_, value) | Deny::Third(_, value) => {
                let test = if matches!(call, Deny::Bits(..)) {
                    BPF_JSET
                } else {
                    BPF_JEQ
                };
                program.push(jump(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 3));
                let is_third = matches!(call, Deny::Third(..));
                program.push(load(if is_third { 32 } else { 16 }));
                program.push(jump(BPF_JMP | test | BPF_K, value, 0, 1));
            }
        }
        program.push(refuse);
    }
    program.push(statement(BPF_RET | BPF_K, libc::SECCOMP_RET_ALLOW));
    let filter = libc::sock_fprog {
        len: u16::try_from(program.len()).unwrap(),
        filter: program.as_mut_ptr(),
    };
    // SAFETY: takes plain numbers.
    let result = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(result, 0);
    // SAFETY: the filter points to `len` instructions that live until the call returns.
    let result = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &raw const filter,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Whether filters can be installed. An emulator of one process has none, as it would be filtered itself.
fn has_filters() -> bool {
    let allow = libc::SECCOMP_RET_ALLOW;
    // SAFETY: only asks; `allow` is valid for reads.
    let asked = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_GET_ACTION_AVAIL,
            0,
            &raw const allow,
        )
    };
    asked == 0
}

/// A test that installs filters, in a process of its own.
fn filtered(name: &str, body: fn()) {
    if !is_alone() && !has_filters() {
        return skip("no filters of system calls here");
    }
    alone(name, &[], body);
}

/// Tasks run, fail, are killed and leave nothing behind.
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
            // Asked by the process that has no filter: what is found out is remembered.
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
    // With EPERM for clone3 the C library cannot create threads any more; that case follows below.
    with_pidfd_open_and_close_range_forbidden: &[PIDFD_OPEN, CLOSE_RANGE], EPERM => ClonePidfd;
    without_waiting_on_pidfds: &[WAIT_PIDFD], EINVAL => ClonePidfd;
    without_clone_pidfd: &[CLONE_PIDFD], EINVAL => PosixSpawnPidfd;
    with_clone_pidfd_forbidden: &[CLONE_PIDFD], EPERM => PosixSpawnPidfd;
    without_any_pidfd: &[CLONE_PIDFD, PIDFD_OPEN, WAIT_PIDFD], EINVAL => PosixSpawnWait;
    without_anything_new: &[CLONE_PIDFD, PIDFD_OPEN, WAIT_PIDFD, CLOSE_RANGE, CLONE3], ENOSYS => PosixSpawnWait;
}

#[test]
fn close_range_without_its_later_flag() {
    let name = "seccomp::close_range_without_its_later_flag";
    filtered(name, || {
        // As on Linux 5.9 and 5.10.
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
    // As on Linux 5.3 and 5.4, which do not know CLONE_CLEAR_SIGHAND. The C library's threads do without it.
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
            for backend in [Backend::ClonePidfd, Backend::PosixSpawnPidfd] {
                let mut config = hq_spawn::LauncherConfig::new(std::sync::Arc::new(|| {}));
                config.backend = Some(backend);
                let error = hq_spawn::Launcher::start(config).err().unwrap().to_string();
                assert!(error.contains(backend.name()), "{error}");
            }
            everything_works(&mut Rig::new(Backend::Fork));
        },
    );
}

#[test]
fn the_environment_variable_forces_a_backend() {
    if !has(Backend::PosixSpawnWait) {
        return skip("only a fork tells of failures here");
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
