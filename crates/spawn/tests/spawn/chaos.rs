//! Tests many spawns with random failures: every error names the step and the path, and nothing is
//! left behind.
#![expect(unsafe_code, reason = "limits and user of the test process")]
#![expect(clippy::print_stdout, reason = "says what failed how often")]

use std::path::Path;
use std::time::Duration;

use hq_spawn::{Backend, ExitStatus, SpawnError, SpawnPlan, Stage, Stdio};

use crate::harness::{End, Rig, best, command, number_from_env, rungs, sh};
use crate::isolated::{alone, children, descriptors, threads};
use crate::skip::skip;

/// The number of requests made at once. Limits change between two waves.
const WAVE: usize = 100;
/// Short enough that some transient failures are reported, but long enough that most are retried
/// successfully.
const TRANSIENT_LIMIT: Duration = Duration::from_millis(10);

/// The expected result of a request.
#[derive(Debug, Clone, Copy)]
enum Expected {
    Exit(ExitStatus),
    Fails(Stage, i32, &'static str),
}

/// The resource that the machine lacks during a wave, and how much of it is left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shortage {
    None,
    Descriptors(usize),
    Processes(u64),
}

#[test]
fn random_failures_are_named_and_leave_nothing_behind() {
    let name = "chaos::random_failures_are_named_and_leave_nothing_behind";
    alone(name, &[], || {
        let spawns = number_from_env("HQ_SPAWN_TEST_SPAWNS", 2000);
        let seed = number_from_env("HQ_SPAWN_TEST_SEED", 0x5eed);
        println!("HQ_SPAWN_TEST_SEED={seed}");
        let mut random = Random(seed as u64 | 1);
        let limited = become_somebody_new();
        if !limited {
            skip("a limit of processes needs root, to become a user without other processes");
        }
        for backend in rungs() {
            // Only the first backend is tested fully, because a fork of a process with a long
            // history is slow.
            let spawns = if backend == best() {
                spawns
            } else {
                spawns / 10
            };
            run(backend, spawns, limited, &mut random);
        }
    });
}

fn run(backend: Backend, spawns: usize, limited: bool, random: &mut Random) {
    hq_spawn::prepare_process().unwrap();
    let (descriptors_before, threads_before) = (descriptors(), threads());
    let mut rig = Rig::with(|config| {
        config.backend = Some(backend);
        config.transient_limit = TRANSIENT_LIMIT;
    });
    let mut short = [0_usize; 2];
    let (mut left, mut waves) = (spawns, 0_u32);
    while left > 0 {
        // Both shortages must occur, however short the run is.
        let shortage = match (waves, random.below(8)) {
            (0, _) => Shortage::Descriptors(0),
            (1, _) if limited => Shortage::Processes(0),
            (_, 0) => Shortage::Descriptors(usize::from(random.below(2) == 1)),
            (_, 1) if limited => Shortage::Processes(random.below(2)),
            _ => Shortage::None,
        };
        waves += 1;
        // If nothing is left, each request fails only after its full time.
        let size = match shortage {
            Shortage::Descriptors(0) | Shortage::Processes(0) => 4,
            Shortage::Descriptors(_) | Shortage::Processes(_) => WAVE / 4,
            Shortage::None => WAVE,
        };
        let size = size.min(left);
        left -= size;
        let cases: Vec<(SpawnPlan, Expected)> = (0..size).map(|_| case(random)).collect();
        impose(shortage);
        let tokens = rig.spawn_batch(cases.iter().map(|(plan, _)| plan.clone()));
        let ends = rig.ends(&tokens);
        lift(shortage);
        for (token, (_, expected)) in tokens.iter().zip(&cases) {
            short[usize::from(matches!(shortage, Shortage::Processes(_)))] +=
                usize::from(check(&ends[token], *expected, shortage, backend));
        }
        rig.forget();
    }
    println!(
        "{}: {spawns} spawns, failed without descriptors, processes: {short:?}",
        backend.name()
    );
    // One backend needs no descriptor per process.
    assert!(short[0] > 0 || backend == Backend::PosixSpawnWait);
    assert!(short[1] > 0 || !limited);
    assert_eq!(rig.launcher.pending(), 0);
    assert_eq!(children(), Vec::<String>::new(), "{backend:?}");
    drop(rig);
    assert_eq!(threads(), threads_before, "{backend:?}");
    assert_eq!(descriptors(), descriptors_before, "{backend:?}");
}

fn case(random: &mut Random) -> (SpawnPlan, Expected) {
    let fails = |plan, stage, errno, path| (plan, Expected::Fails(stage, errno, path));
    let succeeds = |plan| (plan, Expected::Exit(ExitStatus::Code(0)));
    let killed = ExitStatus::Signal {
        signal: libc::SIGKILL,
        core_dumped: false,
    };
    let no_file = |path: &str| Stdio::File { path: path.into() };
    match random.below(16) {
        0 => fails(
            command(&["no-such-program"]),
            Stage::Resolve,
            libc::ENOENT,
            "no-such-program",
        ),
        1 => fails(
            command(&["/proc/no-such"]),
            Stage::Exec,
            libc::ENOENT,
            "/proc/no-such",
        ),
        2 => fails(
            command(&["/etc/passwd"]),
            Stage::Exec,
            libc::EACCES,
            "/etc/passwd",
        ),
        3 => fails(
            sh("").cwd("/proc/no-such"),
            Stage::Chdir,
            libc::ENOENT,
            "/proc/no-such",
        ),
        4 => fails(
            sh("").cwd("/etc/passwd"),
            Stage::Chdir,
            libc::ENOTDIR,
            "/etc/passwd",
        ),
        5 => fails(
            sh("").stdin(no_file("/proc/no-such/file")),
            Stage::Stdin,
            libc::ENOENT,
            "/proc/no-such/file",
        ),
        6 => fails(
            sh("").stdout(no_file("/proc/no-such/file")),
            Stage::Stdout,
            libc::ENOENT,
            "/proc/no-such/file",
        ),
        7 => (sh("kill -9 $$"), Expected::Exit(killed)),
        8 => succeeds(command(&["/bin/true"]).stdin(Stdio::Bytes(b"input".as_slice().into()))),
        9 => succeeds(command(&["true"])),
        10 => (
            command(&["/bin/false"]),
            Expected::Exit(ExitStatus::Code(1)),
        ),
        _ => succeeds(command(&["/bin/true"]).death_signal(None)),
    }
}

/// Checks how a child ended. Returns whether it failed because of the shortage.
#[track_caller]
fn check(end: &End, expected: Expected, shortage: Shortage, backend: Backend) -> bool {
    let context = format!("{backend:?} {shortage:?} {expected:?}");
    match (end, expected) {
        (End::Exited(status, _), Expected::Exit(expected)) => {
            assert_eq!(*status, expected, "{context}")
        }
        (End::Failed(error), Expected::Fails(stage, errno, path)) if !error.is_transient() => {
            assert_eq!(
                (error.stage, error.errno),
                (stage, errno),
                "{context}: {error}"
            );
            assert_eq!(error.path(), Some(Path::new(path)), "{context}");
            names_step_and_path(error);
        }
        (End::Failed(error), _) => {
            assert!(
                shortage != Shortage::None && error.is_transient(),
                "{context}: {error}"
            );
            names_step_and_path(error);
            return true;
        }
        (End::Exited(..), Expected::Fails(..)) => panic!("{context}: it ran: {end:?}"),
    }
    false
}

#[track_caller]
fn names_step_and_path(error: &SpawnError) {
    let text = error.to_string();
    assert!(text.starts_with(error.stage.describe()), "{text}");
    match error.path() {
        Some(path) => assert!(text.contains(path.to_str().unwrap()), "{text}"),
        // Input from memory has no path.
        None => assert_eq!(error.stage, Stage::Stdin, "{text}"),
    }
    assert!(error.errno > 0, "{text}");
}

fn impose(shortage: Shortage) {
    match shortage {
        Shortage::None => {}
        Shortage::Descriptors(spare) => {
            set_soft_limit(libc::RLIMIT_NOFILE, Some(limit_of_descriptors(spare)));
        }
        Shortage::Processes(spare) => {
            set_soft_limit(libc::RLIMIT_NPROC, Some(threads() as u64 + spare))
        }
    }
}

/// Returns the limit at which `spare` descriptors are free.
fn limit_of_descriptors(spare: usize) -> u64 {
    let used = |number: &u64| Path::new(&format!("/proc/self/fd/{number}")).is_symlink();
    (0..).filter(|number| !used(number)).nth(spare).unwrap()
}

fn lift(shortage: Shortage) {
    match shortage {
        Shortage::None => {}
        Shortage::Descriptors(_) => set_soft_limit(libc::RLIMIT_NOFILE, None),
        Shortage::Processes(_) => set_soft_limit(libc::RLIMIT_NPROC, None),
    }
}

/// Sets a soft limit; `None` sets it to the hard limit. glibc and musl use different types for
/// resource numbers.
fn set_soft_limit(resource: impl Into<i64>, soft: Option<u64>) {
    let resource: i64 = resource.into();
    let mut limit = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    let none = std::ptr::null_mut::<libc::rlimit64>();
    // SAFETY: `limit` is valid for writes, and nothing is read.
    let read = unsafe { libc::syscall(libc::SYS_prlimit64, 0_i64, resource, none, &raw mut limit) };
    assert_eq!(read, 0);
    limit.rlim_cur = soft.unwrap_or(limit.rlim_max).min(limit.rlim_max);
    // SAFETY: `limit` is valid for reads, and nothing is written.
    let set =
        unsafe { libc::syscall(libc::SYS_prlimit64, 0_i64, resource, &raw const limit, none) };
    assert_eq!(set, 0);
}

/// Changes from root to a user without other processes, because the number of root's processes is
/// not limited.
fn become_somebody_new() -> bool {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        return false;
    }
    let user = 1_000_000 + std::process::id();
    // SAFETY: takes plain numbers; the C library changes all threads.
    if unsafe { libc::setresuid(user, user, user) } != 0 {
        return false;
    }
    // Otherwise, the entries of this process in /proc would belong to root, as for a set-user-id
    // program.
    let yes = libc::c_ulong::from(true);
    // SAFETY: takes a plain number.
    let result = unsafe { libc::prctl(libc::PR_SET_DUMPABLE, yes) };
    assert_eq!(result, 0);
    true
}

/// xorshift64*: good enough to mix cases, and identical on all machines.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }
}
