//! Tests spawns while signals are constantly sent to the launcher's process and to the children
//! that it is creating.
#![expect(unsafe_code, reason = "signal handlers, and signals to single threads")]

use std::fs;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};

use hq_spawn::{ExitStatus, SpawnErrorKind, Stdio, Strategy};
use tempfile::TempDir;

use crate::harness::{End, Rig, command, number_from_env, rungs, sh};
use crate::isolated::{alone, children};

/// Signals with a handler that interrupts system calls. By default, they are ignored, so they do
/// not harm programs.
const SIGNALS: [libc::c_int; 3] = [libc::SIGCHLD, libc::SIGURG, libc::SIGWINCH];

static OWN: AtomicI32 = AtomicI32::new(0);
static HANDLED: AtomicU64 = AtomicU64::new(0);
/// Counts calls of a handler in a process other than the launcher's: a child that shares its
/// memory.
static ABROAD: AtomicU64 = AtomicU64::new(0);

extern "C" fn on_signal(_: libc::c_int) {
    // SAFETY: getpid has no preconditions and may be called by a handler.
    let here = unsafe { libc::getpid() } == OWN.load(Ordering::Relaxed);
    let counter = if here { &HANDLED } else { &ABROAD };
    counter.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn a_storm_of_signals_changes_nothing() {
    alone("storm::a_storm_of_signals_changes_nothing", &[], || {
        OWN.store(std::process::id().cast_signed(), Ordering::Relaxed);
        SIGNALS.into_iter().for_each(handle);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| storm(&stop));
            // Also ends the storm when a check fails.
            let _calm = Calm(&stop);
            let rounds = number_from_env("HQ_SPAWN_TEST_REPEATS", 2);
            for _ in 0..rounds {
                for backend in rungs() {
                    everything_works(|| Rig::new(backend));
                }
                borrowed_threads();
            }
        });
        assert!(HANDLED.load(Ordering::Relaxed) > 1000, "{HANDLED:?}");
        assert_eq!(ABROAD.load(Ordering::Relaxed), 0);
        assert_eq!(children(), Vec::<String>::new());
    });
}

#[cfg(feature = "tokio")]
fn borrowed_threads() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap();
    let _inside = runtime.enter();
    everything_works(|| Rig::with(|config| config.strategy = Strategy::SpawnBlocking));
}

#[cfg(not(feature = "tokio"))]
fn borrowed_threads() {
    everything_works(|| Rig::with(|config| config.strategy = Strategy::Single));
}

fn everything_works(rig: impl Fn() -> Rig) {
    let dir = TempDir::new().unwrap();
    let mut rig = rig();
    let out = |index: usize| dir.path().join(index.to_string());
    let tokens = rig.spawn_batch((0..60).map(|index| {
        match index % 4 {
            0 => sh("exit 3"),
            1 => command(&["/no/such"]),
            2 => sh("cat; echo done")
                .stdin(Stdio::Bytes(vec![b'x'; 100_000].into()))
                .stdout(Stdio::File { path: out(index) }),
            _ => command(&["/bin/true"]).new_session(false),
        }
    }));
    let ends = rig.ends(&tokens);
    for (index, token) in tokens.iter().enumerate() {
        match (index % 4, &ends[token]) {
            (1, End::Failed(error)) => assert_eq!(error.kind(), SpawnErrorKind::NotFound),
            (0, End::Exited(status, _)) => assert_eq!(*status, ExitStatus::Code(3)),
            (2, End::Exited(status, _)) => {
                assert!(status.success(), "{status}");
                assert_eq!(fs::read(out(index)).unwrap().len(), 100_005);
            }
            (3, End::Exited(status, _)) => assert!(status.success(), "{status}"),
            (_, end) => panic!("{index}: {end:?}"),
        }
    }
}

/// Sends signals to the process, to each of its threads and to each of its children until `stop` is
/// set.
fn storm(stop: &AtomicBool) {
    block_all();
    let own = OWN.load(Ordering::Relaxed);
    while !stop.load(Ordering::Relaxed) {
        for signal in SIGNALS {
            let target = |id: &str| id.parse::<libc::pid_t>().unwrap();
            // SAFETY: kill takes plain numbers.
            unsafe { libc::kill(own, signal) };
            for thread in fs::read_dir("/proc/self/task").unwrap() {
                let thread = target(thread.unwrap().file_name().to_str().unwrap());
                // SAFETY: tgkill takes plain numbers; it cannot reach any process except this one.
                unsafe { libc::syscall(libc::SYS_tgkill, own, thread, signal) };
            }
            for child in children() {
                // SAFETY: takes plain numbers. Even if the child has ended and its id was reused,
                // programs ignore the signal.
                unsafe { libc::kill(target(&child), signal) };
            }
        }
    }
}

struct Calm<'a>(&'a AtomicBool);

impl Drop for Calm<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn handle(signal: libc::c_int) {
    let action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a sigaction of all zeroes is valid. Without SA_RESTART, calls are interrupted.
    let mut action = unsafe { action.assume_init() };
    action.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as libc::sighandler_t;
    // SAFETY: the action is valid, and its handler does only what a handler may do.
    let result = unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
    assert_eq!(result, 0);
}

fn block_all() {
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: the set is valid for writes.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the set was filled above; the old one is not requested.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut()) };
}
