//! Ensures that no process survives: a small front process outlives the worker and kills the
//! processes that it leaves behind.
//!
//! ```text
//!   shell ── front P (the process that was started, single-threaded, only waits)
//!                └── worker W (runs the program's real work)
//!                       ├── tasks, each in a session of its own
//!                       └── orphans of tasks: W is a child subreaper
//! ```
//!
//! * **W dies, SIGKILL included**: P is a child subreaper too, so all descendants of W become
//!   children of P. P kills until it has no child left, then ends as W ended: same exit status,
//!   same signal.
//! * **P dies, SIGKILL included**: W notices through a pipe, stops spawning, kills all its
//!   descendants and ends.
//! * **Both at once** (a signal to all processes of that name): direct children die by their
//!   parent-death signal. [`crate::leftovers`] kills their descendants at the next start. P renames
//!   itself so that `killall NAME` only hits W. W has a separate process group, so a signal to the
//!   group of P, SIGKILL included, does not hit both.
//!
//! **Signals.** W is not in the terminal's foreground group. P receives signals of the terminal and
//! the user and forwards each once to W; P itself never dies of them. ^Z stops W, then P, so the
//! shell sees its job stop; SIGCONT continues both. W can write to the terminal (SIGTTOU is
//! ignored) but not read from it (SIGTTIN is ignored, reads fail with EIO).
//!
//! This module does not know the worker's task. It must run before the process has a second thread.
#![expect(unsafe_code, reason = "fork and signal handling")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::event::ExitStatus;
use crate::probe;
use crate::procfs::{self, Families, Process};
use crate::signal;
use crate::sys::{self, WaitFor};

/// Process name of the front, so that a kill by the program's name does not hit it.
pub(crate) const FRONT_NAME: &std::ffi::CStr = c"hq-keeper";

/// How long to kill descendants before giving up on processes in uninterruptible waits.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// How long all remaining descendants must have been asleep in the kernel, at every check, before
/// they are no longer waited for. They have a pending SIGKILL and run no more instructions of their
/// program; they end when their file server responds.
const HUNG_PATIENCE: Duration = Duration::from_millis(500);

/// Interval at which the front checks whether the worker has ended except for a hanging thread,
/// which the kernel does not report. A check reads one small file.
const HUNG_LOOK: libc::timespec = libc::timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// Grace period for such a worker: the threads of a healthy one end within a millisecond of each
/// other.
const HUNG_WORKER_PATIENCE: Duration = Duration::from_millis(200);

/// Pause between two rounds of killing. SIGKILL takes effect within a fraction of a millisecond.
const ROUND_PAUSE: Duration = Duration::from_millis(1);

/// Set once the worker process is ending because its front died: it must spawn nothing any more.
static HALTED: AtomicBool = AtomicBool::new(false);

/// Whether spawning is over for this process.
pub(crate) fn is_halted() -> bool {
    HALTED.load(Ordering::Acquire)
}

/// The worker process's view of its front process.
#[derive(Debug)]
pub struct KeeperContext {
    /// Process id of the front, the process that was started.
    pub front_pid: u32,
    /// Readable (end of file) once the front process is gone. The worker ends without it; the
    /// descriptor is for other observers.
    pub front_pidfd: OwnedFd,
}

impl KeeperContext {
    /// Whether the front process was stopped (SIGSTOP). The worker should then appear stopped as
    /// well.
    #[must_use]
    pub fn front_is_stopped(&self) -> bool {
        libc::pid_t::try_from(self.front_pid)
            .ok()
            .and_then(Process::read)
            .is_some_and(|front| matches!(front.state, b'T' | b't'))
    }
}

/// A keeper that could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeeperError {
    /// A system call failed.
    #[error("set up the keeper process: {step}")]
    Os {
        /// The step that failed.
        step: &'static str,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The descendants of this process cannot be distinguished from others.
    #[error(
        "set up the keeper process: expected a /proc of this pid namespace, found one of another namespace. Mount it, for example with `unshare --pid --fork --mount-proc`"
    )]
    ForeignProc,
    /// The process has more than one thread already.
    #[error("set up the keeper process: expected one thread, found {found}")]
    Threads {
        /// Number of threads.
        found: usize,
    },
}

/// Splits the process in two: the front stays here and watches, `body` runs in its child.
///
/// Returns only in the worker process, with the result of `body`; the front ends by itself, as the
/// worker ended. A thread of the worker waits for the front's death, kills all descendants and ends
/// the process.
///
/// # Errors
///
/// When the process already has several threads, `/proc` shows another pid namespace, or the
/// process cannot fork.
pub fn run(body: impl FnOnce(KeeperContext) -> ExitCode) -> Result<ExitCode, KeeperError> {
    split().map(body)
}

/// As [`run`], but returns in the worker process without a `body`.
///
/// # Errors
///
/// As [`run`].
pub fn split() -> Result<KeeperContext, KeeperError> {
    let os = |step| move |source| KeeperError::Os { step, source };
    let threads = own_threads().map_err(os("count threads"))?;
    if threads != 1 {
        return Err(KeeperError::Threads { found: threads });
    }
    // The listed processes get killed. Ids of another namespace would belong to unrelated
    // processes, or to this one.
    if !procfs::shows_this_namespace() {
        return Err(KeeperError::ForeignProc);
    }
    let front = sys::getpid();
    let (read_end, write_end) = sys::pipe().map_err(os("create a pipe"))?;
    let watcher = read_end.try_clone().map_err(os("duplicate a descriptor"))?;
    // Before the fork: no descendant of the worker can escape from the start.
    adopt_orphans().map_err(os("become child subreaper"))?;
    signal::keep_zombies().map_err(os("keep ended children until they are reaped"))?;
    let mask = signal::set_mask(signal::KernelSigset::MAX);
    // SAFETY: the process has one thread, so the child is a complete copy, and every function may
    // be called there.
    let pid = unsafe { libc::fork() };
    match pid {
        0 => {
            drop(write_end);
            become_worker(front, mask).map_err(os("set up the worker process"))?;
            end_with_front(watcher).map_err(os("start the thread that watches the front"))?;
            Ok(KeeperContext {
                front_pid: front.unsigned_abs(),
                front_pidfd: read_end,
            })
        }
        pid if pid > 0 => {
            drop((read_end, watcher));
            be_front(pid, mask, write_end)
        }
        _ => {
            let source = io::Error::last_os_error();
            signal::set_mask(mask);
            Err(KeeperError::Os {
                step: "fork",
                source,
            })
        }
    }
}

/// Threads of this process that run the program.
fn own_threads() -> io::Result<usize> {
    let all = std::fs::read_dir("/proc/self/task")?.count();
    // An emulator of a single process has a thread of its own, which runs none of the program and
    // is set up again after a fork.
    let is_emulated = all > 1 && !probe::features().shared_memory;
    Ok(all - usize::from(is_emulated))
}

/// Makes orphaned descendants children of this process, where the kernel supports it.
fn adopt_orphans() -> io::Result<()> {
    match sys::adopt_orphans() {
        // Emulators of a single process refuse it. The launcher then kills the process groups of
        // tasks and their known descendants, as in any process that adopts no orphans; a daemon can
        // escape.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        result => result,
    }
}

/// Kills every descendant of this process, repeatedly as new ones appear, for at most `limit`. Does
/// not wait for processes that hang in the kernel.
///
/// Meant for the end of a process, because other threads may still spawn. Returns the number of
/// descendants alive at the end. Does not reap them.
#[must_use = "descendants that cannot be killed are left"]
pub fn kill_descendants(limit: Duration) -> usize {
    let deadline = Instant::now() + limit;
    let own = sys::getpid();
    let mut clean_rounds = 0;
    let mut hung = Hung::default();
    loop {
        let alive = kill_round(own);
        clean_rounds = if alive.count == 0 {
            clean_rounds + 1
        } else {
            0
        };
        let is_over = clean_rounds == 2 || alive.count > 0 && hung.lasts(alive.reachable == 0);
        // A process may hide from one scan by forking while the list is being read.
        if is_over || Instant::now() >= deadline {
            return alive.count;
        }
        sys::pause(ROUND_PAUSE);
    }
}

/// Describes the remaining descendants if none of them can be killed: they sleep in the kernel,
/// have ended except for threads that do, or belong to another user. `None` if there are others, or
/// none.
///
/// This can hold briefly for healthy processes as well: check several times.
#[must_use]
pub fn unreachable_descendants() -> Option<String> {
    let processes = procfs::all_processes();
    let left = Families::new(&processes).take_descendants(sys::getpid());
    let is_lost = |process: &Process| process.is_unreachable() || process.is_dead();
    if left.is_empty() || !left.iter().all(is_lost) {
        return None;
    }
    let (others, hung): (Vec<&Process>, Vec<&Process>) = left
        .iter()
        .partition(|process| process.is_of_another_user());
    let mut texts: Vec<String> = others.iter().map(|process| name_of(process.pid)).collect();
    let more = texts.len().saturating_sub(NAMED_MAX);
    texts.truncate(NAMED_MAX);
    if more > 0 {
        texts.push(format!("{more} more of other users"));
    }
    if !hung.is_empty() {
        texts.push(format!(
            "{} that hang in the kernel, for example on a file system that does not answer",
            hung.len()
        ));
    }
    Some(texts.join(", "))
}

/// Maximum number of processes in a message.
const NAMED_MAX: usize = 5;

/// Process id, program and user, for a message.
fn name_of(pid: libc::pid_t) -> String {
    let program = procfs::program_of(pid).unwrap_or_default();
    let user =
        procfs::status(pid).map_or_else(String::new, |status| format!(" of user {}", status.user));
    format!("{pid} ({program}){user}")
}

/// Why a process has outlived SIGKILL.
#[must_use]
pub fn why_unkillable(pid: Option<u32>) -> String {
    let process = pid.and_then(|pid| Process::read(pid.cast_signed()));
    match process.filter(Process::is_of_another_user) {
        Some(process) => format!(
            "process {} belongs to another user, and only that user and root can end it",
            name_of(process.pid)
        ),
        None => {
            "it sleeps in the kernel, most likely for a file system that does not answer".to_owned()
        }
    }
}

/// Since when all remaining processes hang, as far as observed.
#[derive(Debug, Default)]
pub(crate) struct Hung(Option<Instant>);

impl Hung {
    /// Records an observation; returns whether the state has lasted long enough.
    pub(crate) fn lasts(&mut self, is_hung: bool) -> bool {
        if !is_hung {
            self.0 = None;
            return false;
        }
        self.0.get_or_insert_with(Instant::now).elapsed() >= HUNG_PATIENCE
    }
}

/// Living descendants found by one round.
struct Alive {
    count: usize,
    /// Descendants that do not sleep in the kernel.
    reachable: usize,
}

/// Sends SIGKILL to all descendants once; returns how many were alive.
fn kill_round(own: libc::pid_t) -> Alive {
    let mut alive = Alive {
        count: 0,
        reachable: 0,
    };
    for process in Families::new(&procfs::all_processes()).take_descendants(own) {
        if process.is_dead() {
            continue;
        }
        alive.count += 1;
        alive.reachable += usize::from(!process.is_unreachable());
        procfs::kill_if(process.pid, || {
            Process::read(process.pid)
                // Its parent may have died a moment ago; then this process has adopted it.
                .is_some_and(|now| now.parent == process.parent || now.parent == own)
        });
    }
    alive
}

/// First steps of the worker process.
fn become_worker(front: libc::pid_t, mask: signal::KernelSigset) -> io::Result<()> {
    // The front does the same, so that it is done whichever comes first.
    sys::set_group(0, 0)?;
    adopt_orphans()?;
    // Not in the foreground: writing to the terminal must not stop the worker, nor should reading.
    signal::ignore(libc::SIGTTOU)?;
    signal::ignore(libc::SIGTTIN)?;
    signal::set_mask(mask);
    if sys::parent() != front {
        // The front died before it could do anything. There is nothing to clean up yet.
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(())
}

/// Starts the thread that ends the worker process when the front is gone.
fn end_with_front(front: OwnedFd) -> io::Result<()> {
    std::thread::Builder::new()
        .name("keeper-watch".to_owned())
        .spawn(move || {
            signal::block_all();
            while let Err(error) = sys::wait_readable(front.as_fd()) {
                tracing::error!(%error, "cannot watch the front process");
                sys::pause(Duration::from_secs(1));
            }
            HALTED.store(true, Ordering::Release);
            let left = kill_descendants(KILL_LIMIT);
            if left > 0 {
                tracing::error!(left, "descendants cannot be killed");
            }
            // Without exit handlers: other threads still use the objects that these would destroy.
            sys::exit_now(128 + libc::SIGKILL)
        })
        .map(drop)
}

/// Main loop of the front. All signals are blocked and taken one by one.
fn be_front(worker: libc::pid_t, mask: signal::KernelSigset, alive: OwnedFd) -> ! {
    // Fails if the worker was faster or is gone; both are fine.
    let _ = sys::set_group(worker, worker);
    sys::set_thread_name(FRONT_NAME);
    let status = loop {
        let Some(signal) = next_signal() else {
            if let Some(status) = hung_end_of(worker) {
                break status;
            }
            continue;
        };
        match signal {
            libc::SIGCHLD => {
                if let Some(status) = reap_until(worker) {
                    break status;
                }
            }
            libc::SIGTSTP => {
                let _ = sys::kill(worker, libc::SIGTSTP);
                // Stops here until a SIGCONT, which is then the next signal.
                let _ = sys::kill(sys::getpid(), libc::SIGSTOP);
            }
            // Not for the worker: these concern I/O of the front, which does none.
            libc::SIGTTIN | libc::SIGTTOU | libc::SIGPIPE => {}
            // The worker is an unreaped child, so its id is not reused.
            signal => {
                let _ = sys::kill(worker, signal);
            }
        }
    };
    kill_children();
    // Until now the pipe has told the worker that the front lives.
    drop(alive);
    end_like(status, mask)
}

/// Takes the next signal; `None` if none arrived within [`HUNG_LOOK`].
fn next_signal() -> Option<libc::c_int> {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: `set` is valid for writes.
    unsafe { libc::sigfillset(set.as_mut_ptr()) };
    let pause = HUNG_LOOK;
    loop {
        // SAFETY: the set was filled above; the signal's details are not requested.
        let signal =
            unsafe { libc::sigtimedwait(set.as_ptr(), std::ptr::null_mut(), &raw const pause) };
        if signal > 0 {
            return Some(signal);
        }
        if io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN) {
            return None;
        }
    }
}

/// How the worker ended, if the only remaining threads hang in the kernel. It cannot be reaped
/// before these end, which may be never.
fn hung_end_of(worker: libc::pid_t) -> Option<ExitStatus> {
    let has_ended = || Process::read(worker).is_some_and(|process| process.is_dead());
    if !has_ended() {
        return None;
    }
    // A worker whose threads are just ending can be reaped in a moment.
    sys::pause(HUNG_WORKER_PATIENCE);
    if let Some(status) = reap_until(worker) {
        return Some(status);
    }
    has_ended()
        .then(|| procfs::exit_status(worker).unwrap_or(ExitStatus::Code(128 + libc::SIGKILL)))
}

/// Reaps ended children; returns the worker's status if it is among them.
fn reap_until(worker: libc::pid_t) -> Option<ExitStatus> {
    while let Ok(Some(waited)) = sys::wait(WaitFor::OwnThread, libc::WNOHANG) {
        if waited.pid == worker {
            return Some(waited.status);
        }
    }
    None
}

/// Kills and reaps until there is no child left, or none that can be killed. Every descendant
/// becomes a child of this process when its parent dies, so all descendants end.
fn kill_children() {
    let deadline = Instant::now() + KILL_LIMIT;
    let own = sys::getpid();
    let mut hung = Hung::default();
    loop {
        loop {
            match sys::wait(WaitFor::OwnThread, libc::WNOHANG) {
                Ok(Some(_)) => {}
                Ok(None) => break,
                // No child is left.
                Err(_) => return,
            }
        }
        let alive = kill_round(own);
        // A dead process that cannot be reaped hangs as well.
        if hung.lasts(alive.reachable == 0) || Instant::now() >= deadline {
            return;
        }
        sys::pause(ROUND_PAUSE);
    }
}

/// Ends this process as the worker ended.
fn end_like(status: ExitStatus, mask: signal::KernelSigset) -> ! {
    match status {
        ExitStatus::Code(code) => sys::exit_now(code),
        ExitStatus::Signal { signal, .. } => {
            // Only the worker's core dump is useful.
            sys::forbid_core();
            let _ = signal::reset(signal);
            signal::set_mask(mask & !(1 << (signal - 1)));
            let _ = sys::kill(sys::getpid(), signal);
            // The default action of this signal does not end a process, so the kill above had no
            // effect.
            sys::exit_now(128 + signal)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_with_several_threads_is_not_split() {
        // Tests run in threads.
        let error = run(|_| ExitCode::SUCCESS).unwrap_err();
        assert!(
            matches!(error, KeeperError::Threads { found: 2.. }),
            "{error}"
        );
    }
}
