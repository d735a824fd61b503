//! The signal masks and dispositions of the parent.
//!
//! Spawner threads block signals for as long as they live: a handler must not run in a child that
//! shares the parent's memory, and a permanent mask adds no cost to a spawn. SIGCHLD is not blocked
//! while the process has no handler for it. The kernel sends it to the thread that created the
//! child. If its action is the default and that thread does not block it, the kernel drops it
//! immediately. If it were blocked, it would be queued and would wake up another thread of the
//! process unnecessarily.
#![expect(unsafe_code, reason = "system calls")]

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::time::{Duration, Instant};

/// The kernel's signal set: 64 signals on every architecture that this crate supports.
pub(crate) type KernelSigset = u64;

/// The size of [`KernelSigset`], as passed to the kernel.
pub(crate) const SIGSET_BYTES: usize = size_of::<KernelSigset>();

/// Every signal.
pub(crate) const ALL_SIGNALS: KernelSigset = KernelSigset::MAX;

/// Returns the set that contains only this signal.
const fn only(signal: libc::c_int) -> KernelSigset {
    1 << (signal - 1)
}

/// The signals that this process ignores, read at intervals.
#[derive(Debug, Default)]
pub(crate) struct Ignored {
    signals: KernelSigset,
    looked_at: Option<Instant>,
}

impl Ignored {
    /// Returns the signals that this process ignores. A change may go unnoticed for a tenth of a
    /// second; until then, children inherit a newly ignored signal.
    pub(crate) fn signals(&mut self) -> KernelSigset {
        /// The minimum interval between reads. Reading takes 64 system calls, as many as it saves
        /// for one child.
        const LOOK_AGAIN: Duration = Duration::from_millis(100);
        let now = Instant::now();
        let fresh = |at: Instant| now.saturating_duration_since(at) < LOOK_AGAIN;
        if !self.looked_at.is_some_and(fresh) {
            self.looked_at = Some(now);
            self.signals = ignored();
        }
        self.signals
    }
}

fn ignored() -> KernelSigset {
    (1..=64).fold(0, |found, signal| match action(signal) {
        Some([libc::SIG_IGN, ..]) => found | only(signal),
        _ => found,
    })
}

/// Returns the disposition of a signal in the kernel's layout. The handler is the first word.
fn action(signal: libc::c_int) -> Option<[usize; 8]> {
    let mut action = [0; 8];
    // SAFETY: a null new action only queries; `action` is larger than any layout and valid for
    // writes.
    let result = unsafe {
        libc::syscall(
            libc::SYS_rt_sigaction,
            signal,
            ptr::null::<usize>(),
            action.as_mut_ptr(),
            SIGSET_BYTES,
        )
    };
    (result == 0).then_some(action)
}

/// Replaces the calling thread's signal mask and returns the old one.
///
/// This makes the system call directly, because the C library leaves its internal signals
/// unblocked.
pub(crate) fn set_mask(new: KernelSigset) -> KernelSigset {
    let mut old: KernelSigset = 0;
    // SAFETY: both sets are eight bytes as announced by the last argument and valid for the access.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const new,
            &raw mut old,
            SIGSET_BYTES,
        )
    };
    old
}

/// Blocks every signal in the calling thread permanently. Only for threads of this crate.
pub(crate) fn block_all() {
    set_mask(ALL_SIGNALS);
}

/// Returns the signals that a thread that creates processes must block.
fn spawner_mask() -> KernelSigset {
    match action(libc::SIGCHLD) {
        Some([libc::SIG_DFL, ..]) => ALL_SIGNALS & !only(libc::SIGCHLD),
        _ => ALL_SIGNALS,
    }
}

/// Holds the signal mask of a thread that creates processes, until this value is dropped.
pub(crate) struct Blocked(KernelSigset);

impl Blocked {
    pub(crate) fn for_spawner() -> Self {
        Self(set_mask(spawner_mask()))
    }

    pub(crate) fn all() -> Self {
        Self(set_mask(ALL_SIGNALS))
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        set_mask(self.0);
    }
}

/// Ensures that ended children remain until they are reaped.
///
/// A process that ignores SIGCHLD (some parents start programs this way) would lose every exit
/// status.
pub(crate) fn keep_zombies() -> io::Result<()> {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: `action` is valid for writes of a sigaction; a null new action only queries.
    if unsafe { libc::sigaction(libc::SIGCHLD, ptr::null(), action.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above succeeded and filled it; all zeroes was valid before already.
    let mut action = unsafe { action.assume_init() };
    if action.sa_sigaction != libc::SIG_IGN && action.sa_flags & libc::SA_NOCLDWAIT == 0 {
        return Ok(());
    }
    if action.sa_sigaction == libc::SIG_IGN {
        action.sa_sigaction = libc::SIG_DFL;
    }
    action.sa_flags &= !libc::SA_NOCLDWAIT;
    // SAFETY: `action` is the current action with a disposition and a flag changed; the old one is
    // not requested.
    if unsafe { libc::sigaction(libc::SIGCHLD, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Ignores a signal in this process.
pub(crate) fn ignore(signal: libc::c_int) -> io::Result<()> {
    set_disposition(signal, libc::SIG_IGN)
}

/// Resets a signal to its default action in this process.
pub(crate) fn reset(signal: libc::c_int) -> io::Result<()> {
    set_disposition(signal, libc::SIG_DFL)
}

fn set_disposition(signal: libc::c_int, handler: libc::sighandler_t) -> io::Result<()> {
    let action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a sigaction of all zeroes is valid: default action, no flags, empty mask.
    let mut action = unsafe { action.assume_init() };
    action.sa_sigaction = handler;
    // SAFETY: `action` is valid, and its handler is one of the two constants; the old one is not
    // requested.
    if unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_found() {
        // Every Rust program ignores SIGPIPE; no code here ignores SIGSEGV.
        assert_eq!(ignored() & only(libc::SIGPIPE), only(libc::SIGPIPE));
        assert_eq!(ignored() & only(libc::SIGSEGV), 0);
    }
}
