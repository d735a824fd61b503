//! Signal masks and dispositions of the parent.
//!
//! Spawner threads keep every signal blocked for their whole life: a handler must not run in a child that shares
//! the parent's memory, and with the mask set once no spawn pays for it.
#![expect(unsafe_code, reason = "system calls")]

use std::io;
use std::mem::MaybeUninit;
use std::ptr;

/// The kernel's signal set: 64 signals on every architecture this crate supports.
pub(crate) type KernelSigset = u64;

/// Size of [`KernelSigset`] as the kernel's calls want it.
pub(crate) const SIGSET_BYTES: usize = size_of::<KernelSigset>();

/// Replaces the calling thread's signal mask and returns the old one.
///
/// Uses the system call itself, because the C library leaves its internal signals unblocked.
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

/// Blocks every signal in the calling thread for good. For threads of this crate only.
pub(crate) fn block_all() {
    set_mask(KernelSigset::MAX);
}

/// All signals blocked in the calling thread until this value is dropped.
pub(crate) struct Blocked(KernelSigset);

impl Blocked {
    pub(crate) fn all() -> Self {
        Self(set_mask(KernelSigset::MAX))
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        set_mask(self.0);
    }
}

/// Makes sure that ended children wait to be reaped.
///
/// A process that ignores SIGCHLD (some parents leave it so) would lose every exit status.
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
    // SAFETY: `action` is the current action with a disposition and a flag changed; the old one is not asked for.
    if unsafe { libc::sigaction(libc::SIGCHLD, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Ignores a signal in this process.
pub(crate) fn ignore(signal: libc::c_int) -> io::Result<()> {
    set_disposition(signal, libc::SIG_IGN)
}

/// Gives a signal its default action in this process.
pub(crate) fn reset(signal: libc::c_int) -> io::Result<()> {
    set_disposition(signal, libc::SIG_DFL)
}

fn set_disposition(signal: libc::c_int, handler: libc::sighandler_t) -> io::Result<()> {
    let action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a sigaction of all zeroes is valid: default action, no flags, empty mask.
    let mut action = unsafe { action.assume_init() };
    action.sa_sigaction = handler;
    // SAFETY: `action` is valid, and its handler is one of the two constants; the old one is not asked for.
    if unsafe { libc::sigaction(signal, &raw const action, ptr::null_mut()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
