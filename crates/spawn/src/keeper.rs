//! Ensures that no process survives the worker: a small front process outlives it and kills the
//! processes that it leaves behind.
//!
//! ```text
//!   shell ── front P (the process that was started; single-threaded, only waits)
//!                └── worker W (runs the actual program)
//!                       ├── tasks, each in its own session
//!                       └── orphans of tasks: W is a child subreaper
//! ```
//!
//! * **W dies, even by SIGKILL**: P is a child subreaper too, so all descendants of W become
//!   children of P. P kills them until none is left, and then ends in the same way as W: with the
//!   same exit status or signal.
//! * **P dies, even by SIGKILL**: W notices this through a pipe, stops spawning, kills all its
//!   descendants and ends.
//! * **Both die at once** (a signal to all processes of that name): direct children are killed by
//!   their parent-death signal. [`crate::leftovers`] kills their descendants at the next start. P
//!   renames itself so that `killall NAME` only affects W. W has its own process group, so a signal
//!   to the group of P, even SIGKILL, does not affect both.
//!
//! **Signals.** W is not in the terminal's foreground group. P receives the signals sent by the
//! terminal and the user and forwards each of them to W once; they never end P itself. ^Z stops W
//! and then P, so the shell sees that its job has stopped; SIGCONT continues both. W can write to
//! the terminal (SIGTTOU is ignored), but it cannot read from it (SIGTTIN is ignored, so reads fail
//! with EIO).
//!
//! This module is independent of what the worker does. It must be used before the process has a
//! second thread.
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

/// The process name of the front. It differs from the program's name, so that killing by that name
/// does not affect the front.
pub(crate) const FRONT_NAME: &std::ffi::CStr = c"hq-keeper";

/// How long to kill descendants before giving up on processes in uninterruptible sleep.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// How long every check must have found all remaining descendants asleep in the kernel before they
/// are no longer waited for. They have a pending SIGKILL and will not execute any more of their
/// program; they end when their file server responds.
const HUNG_PATIENCE: Duration = Duration::from_millis(500);

/// The interval at which the front checks whether the worker has ended except for a hanging thread,
/// which the kernel does not report. A check reads one small file.
const HUNG_LOOK: libc::timespec = libc::timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// The grace period for such a worker. The threads of a healthy worker end within a millisecond of
/// each other.
const HUNG_WORKER_PATIENCE: Duration = Duration::from_millis(200);

/// The pause between two rounds of killing. SIGKILL takes effect within a fraction of a
/// millisecond.
const ROUND_PAUSE: Duration = Duration::from_millis(1);

/// Set when the worker process is ending because its front died. From then on, it must not spawn
/// anything.
static HALTED: AtomicBool = AtomicBool::new(false);

/// Returns whether this process must not spawn anymore.
pub(crate) fn is_halted() -> bool {
    HALTED.load(Ordering::Acquire)
}

/// The worker process's view of its front process.
#[derive(Debug)]
pub struct KeeperContext {
    /// The process id of the front, which is the process that was started.
    pub front_pid: u32,
    /// Becomes readable (end of file) when the front process has ended. The worker ends without the
    /// help of this descriptor; it is for other observers.
    pub front_pidfd: OwnedFd,
}

impl KeeperContext {
    /// Returns whether the front process was stopped (SIGSTOP). The worker should then appear to be
    /// stopped as well.
    #[must_use]
    pub fn front_is_stopped(&self) -> bool {
        libc::pid_t::try_from(self.front_pid)
            .ok()
            .and_then(Process::read)
            .is_some_and(|front| matches!(front.state, b'T' | b't'))
    }
}

/// The reason why a keeper could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeeperError {
    /// A system call failed.
    #[error("set up the keeper process: {step}")]
    Os {
        /// The step that failed.
        step: &'static str,
        /// The error reported by the operating system.
        #[source]
        source: io::Error,
    },
    /// `/proc` shows another pid namespace, so the descendants of this process cannot be
    /// identified.
    #[error(
        "set up the keeper process: expected a /proc of this pid namespace, found one of another namespace. Mount it, for example with `unshare --pid --fork --mount-proc`"
    )]
    ForeignProc,
    /// The process already has more than one thread.
    #[error("set up the keeper process: expected one thread, found {found}")]
    Threads {
        /// The number of threads.
        found: usize,
    },
}

/// Splits the process in two: the front stays in this process and watches, and `body` runs in a
/// child.
///
/// Returns only in the worker process, with the result of `body`; the front ends on its own, in the
/// same way as the worker. A thread of the worker waits for the front to die, then kills all
/// descendants and ends the process.
///
/// # Errors
///
/// If the process already has several threads, if `/proc` shows another pid namespace, or if the
/// process cannot fork.
pub fn run(body: impl FnOnce(KeeperContext) -> ExitCode) -> Result<ExitCode, KeeperError> {
    split().map(body)
}

/// Does the same as [`run`], but returns in the worker process instead of calling a `body`.
///
/// # Errors
///
/// Same as [`run`].
pub fn split() -> Result<KeeperContext, KeeperError> {
    let os = |step| move |source| KeeperError::Os { step, source };
    let threads = own_threads().map_err(os("count threads"))?;
    if threads != 1 {
        return Err(KeeperError::Threads { found: threads });
    }
    // The listed processes will be killed. Process ids from another namespace would refer to
    // unrelated processes, or to this one.
    if !procfs::shows_this_namespace() {
        return Err(KeeperError::ForeignProc);
    }
    let front = sys::getpid();
    let (read_end, write_end) = sys::pipe().map_err(os("create a pipe"))?;
    let watcher = read_end.try_clone().map_err(os("duplicate a descriptor"))?;
    // This precedes the fork, so that no descendant of the worker can ever escape.
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

/// Returns the number of threads of this process that run the program.
fn own_threads() -> io::Result<usize> {
    let all = std::fs::read_dir("/proc/self/task")?.count();
    // An emulator of a single process has an additional thread, which does not run the program and
    // is set up again after a fork.
    let is_emulated = all > 1 && !probe::features().shared_memory;
    Ok(all - usize::from(is_emulated))
}

/// Makes orphaned descendants children of this process, if the kernel supports it.
fn adopt_orphans() -> io::Result<()> {
    match sys::adopt_orphans() {
        // Emulators of a single process reject the call. The launcher then kills the process groups
        // of tasks and their known descendants, as in any process that does not adopt orphans; a
        // daemon can escape.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(()),
        result => result,
    }
}

/// Kills every descendant of this process, repeatedly as new ones appear, for at most `limit`. It
/// does not wait for processes that hang in the kernel.
///
/// Use it only when the process is about to end, because other threads may still spawn. Returns the
/// number of descendants that are still alive. They are not reaped.
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
        // A process may escape a scan by forking while the list is being read.
        if is_over || Instant::now() >= deadline {
            return alive.count;
        }
        sys::pause(ROUND_PAUSE);
    }
}

/// Describes the remaining descendants if none of them can be killed: they sleep in the kernel,
/// have ended except for threads that do, or belong to another user. Returns `None` if there are no
/// descendants, or if some of them can be killed.
///
/// For a brief moment, this can also be true of healthy processes, so check several times.
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

/// The maximum number of processes named in a message.
const NAMED_MAX: usize = 5;

/// Returns the process id, the program and the user, for a message.
fn name_of(pid: libc::pid_t) -> String {
    let program = procfs::program_of(pid).unwrap_or_default();
    let user =
        procfs::status(pid).map_or_else(String::new, |status| format!(" of user {}", status.user));
    format!("{pid} ({program}){user}")
}

/// Explains why a process has outlived SIGKILL.
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

/// Tracks how long all remaining processes have been observed to hang.
#[derive(Debug, Default)]
pub(crate) struct Hung(Option<Instant>);

impl Hung {
    /// Records an observation, and returns whether all processes have been hanging long enough.
    pub(crate) fn lasts(&mut self, is_hung: bool) -> bool {
        if !is_hung {
            self.0 = None;
            return false;
        }
        self.0.get_or_insert_with(Instant::now).elapsed() >= HUNG_PATIENCE
    }
}

/// The living descendants that a round has found.
struct Alive {
    count: usize,
    /// The number of descendants that do not sleep in the kernel.
    reachable: usize,
}

/// Sends SIGKILL to all descendants once, and returns how many were alive.
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
                // Its parent may have just died; in that case, this process has adopted it.
                .is_some_and(|now| now.parent == process.parent || now.parent == own)
        });
    }
    alive
}

/// The first steps of the worker process.
fn become_worker(front: libc::pid_t, mask: signal::KernelSigset) -> io::Result<()> {
    // The front does the same, so the group is set no matter which process runs first.
    sys::set_group(0, 0)?;
    adopt_orphans()?;
    // The worker is not in the foreground. Reading from or writing to the terminal must not stop
    // it.
    signal::ignore(libc::SIGTTOU)?;
    signal::ignore(libc::SIGTTIN)?;
    signal::set_mask(mask);
    if sys::parent() != front {
        // The front died before it could do anything, so there is nothing to clean up yet.
        return Err(io::Error::from_raw_os_error(libc::ESRCH));
    }
    Ok(())
}

/// Starts the thread that ends the worker process when the front has ended.
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
            // Exit handlers are skipped, because other threads still use the objects that they
            // would destroy.
            sys::exit_now(128 + libc::SIGKILL)
        })
        .map(drop)
}

/// The main loop of the front. All signals are blocked and accepted one by one.
fn be_front(worker: libc::pid_t, mask: signal::KernelSigset, alive: OwnedFd) -> ! {
    // This fails if the worker was faster or has already ended; both are fine.
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
                // Stops here until SIGCONT arrives, which is then the next signal.
                let _ = sys::kill(sys::getpid(), libc::SIGSTOP);
            }
            // These signals concern I/O of the front, which does none, so they are not forwarded.
            libc::SIGTTIN | libc::SIGTTOU | libc::SIGPIPE => {}
            // The worker is an unreaped child, so its process id cannot have been reused.
            signal => {
                let _ = sys::kill(worker, signal);
            }
        }
    };
    kill_children();
    // Until now, the open pipe has shown the worker that the front is alive.
    drop(alive);
    end_like(status, mask)
}

/// Returns the next signal, or `None` if none arrives within [`HUNG_LOOK`].
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

/// Returns how the worker ended, if its only remaining threads hang in the kernel. The worker
/// cannot be reaped before these threads end, which may never happen.
fn hung_end_of(worker: libc::pid_t) -> Option<ExitStatus> {
    let has_ended = || Process::read(worker).is_some_and(|process| process.is_dead());
    if !has_ended() {
        return None;
    }
    // A worker whose threads are about to end can be reaped in a moment.
    sys::pause(HUNG_WORKER_PATIENCE);
    if let Some(status) = reap_until(worker) {
        return Some(status);
    }
    has_ended()
        .then(|| procfs::exit_status(worker).unwrap_or(ExitStatus::Code(128 + libc::SIGKILL)))
}

/// Reaps ended children, and returns the worker's status if it is among them.
fn reap_until(worker: libc::pid_t) -> Option<ExitStatus> {
    while let Ok(Some(waited)) = sys::wait(WaitFor::OwnThread, libc::WNOHANG) {
        if waited.pid == worker {
            return Some(waited.status);
        }
    }
    None
}

/// Kills and reaps children until none is left, or none that can be killed. Every descendant
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
        // A dead process that cannot be reaped also counts as hanging.
        if hung.lasts(alive.reachable == 0) || Instant::now() >= deadline {
            return;
        }
        sys::pause(ROUND_PAUSE);
    }
}

/// Ends this process in the same way as the worker ended.
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
