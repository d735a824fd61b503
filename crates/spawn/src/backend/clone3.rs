//! `clone3`: what the older `clone` has no flags for.
//!
//! `CLONE_CLEAR_SIGHAND` (Linux 5.5) gives the child default dispositions, which saves it a system call for every
//! signal. `CLONE_INTO_CGROUP` (Linux 5.7) has it start inside a control group: it is never outside, and no lock of
//! the whole control group tree is taken for a move. The C library has no function for `clone3` that starts on a new
//! stack, and one that returned on the parent's would return twice; hence a few instructions of assembly. See
//! clone(2).
//!
//! A thread that waits for the end of its child in any case does not have to wake up when the child executes its
//! program: it goes on after the clone and waits for the end at once, which saves two switches to another thread
//! and back. That the child has left this memory is told by `CLONE_CHILD_CLEARTID`, since an end does not say how
//! it came about.
#![expect(unsafe_code, reason = "clone3")]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use super::{Created, Failure, Pidfd, clone_vfork};
use crate::child::{ChildPlan, child_main};
use crate::live::InFlight;
use crate::raw;
use crate::signal;
use crate::stack::ChildStack;
use crate::sys;

/// Set once it turned out to be missing, too old or filtered.
static ABSENT: AtomicBool = AtomicBool::new(false);

/// Creates the process, in its control group if it has one. Falls back to a clone whose child does it all itself.
pub(super) fn spawn(
    child: &mut ChildPlan<'_>,
    stack: &ChildStack,
    in_flight: &InFlight,
    patience: Option<Duration>,
) -> Result<Created, Failure> {
    // The kernel spares a child between clone and exec, and what shares its memory, only if the clone said vfork. In a
    // control group of its own the child may meet the group's limit in execve, and the kernel ends all that share the
    // victim's memory: this process. And a score that such a child sets is set for all that share its memory, too.
    let alone = child.cgroup < 0 && child.oom_score.is_empty();
    let patience = patience.filter(|_| raw::LEAVES_ERRNO && alone);
    let inside = AtomicU32::new(1);
    if !ABSENT.load(Ordering::Relaxed) {
        match by_clone3(child, stack, in_flight, patience.map(|_| &inside)) {
            // Missing, filtered, not permitted, not a control group: the child that moves itself works or names it.
            Err(failure)
                if failure.stage == crate::error::Stage::Clone
                    && !matches!(
                        failure.errno,
                        libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE
                    ) =>
            {
                if child.cgroup < 0 {
                    tracing::debug!(errno = failure.errno, "clone3 cannot be used here");
                    ABSENT.store(true, Ordering::Relaxed);
                }
            }
            Err(failure) => return Err(failure),
            Ok(pid) => {
                let ended = patience.is_some_and(|patience| {
                    let ended = sys::wait_readable_for(in_flight.pidfd(), patience);
                    sys::wait_until_zero(&inside);
                    ended
                });
                let created = clone_vfork::collect(child, pid, in_flight)?;
                return Ok(Created { ended, ..created });
            }
        }
    }
    clone_vfork::spawn(child, stack, Pidfd::Yes, in_flight)
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn by_clone3(
    _: &mut ChildPlan<'_>,
    _: &ChildStack,
    _: &InFlight,
    _: Option<&AtomicU32>,
) -> Result<libc::pid_t, Failure> {
    Err(Failure::new(crate::error::Stage::Clone, libc::ENOSYS))
}

/// The thread sleeps until the child has left this memory, or, with `inside`, goes on at once; then the kernel sets
/// that to zero when the child leaves, and wakes up who waits for it.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn by_clone3(
    child: &mut ChildPlan<'_>,
    stack: &ChildStack,
    in_flight: &InFlight,
    inside: Option<&AtomicU32>,
) -> Result<libc::pid_t, Failure> {
    /// From the kernel's `sched.h`; the C library's type for flags is too small for them.
    const CLONE_CLEAR_SIGHAND: u64 = 1 << 32;
    const CLONE_INTO_CGROUP: u64 = 1 << 33;

    in_flight.forget();
    let cgroup = std::mem::replace(&mut child.cgroup, -1);
    child.reset_signals = child.ignored_signals;
    let flags = u64::from(clone_vfork::flags(child, Pidfd::Yes).unsigned_abs());
    let into = if cgroup >= 0 { CLONE_INTO_CGROUP } else { 0 };
    let meanwhile = match inside {
        Some(_) => libc::CLONE_CHILD_CLEARTID,
        None => libc::CLONE_VFORK,
    };
    let arguments = libc::clone_args {
        flags: flags | CLONE_CLEAR_SIGHAND | into | u64::from(meanwhile.unsigned_abs()),
        pidfd: in_flight.as_ptr() as u64,
        child_tid: inside.map_or(0, |inside| inside.as_ptr() as u64),
        parent_tid: 0,
        exit_signal: u64::from(libc::SIGCHLD.unsigned_abs()),
        stack: stack.bottom() as u64,
        stack_size: ChildStack::SIZE as u64,
        tls: 0,
        set_tid: 0,
        set_tid_size: 0,
        cgroup: u64::try_from(cgroup).unwrap_or(0),
    };
    let plan: *mut ChildPlan<'_> = child;
    // SAFETY: the stack is mapped, private to this thread and not in use, because the thread has waited until every
    // earlier child on it had left. The plan and `inside` outlive the child's time in this memory: either this
    // returns only after it, or `spawn` waits for it. The kernel writes the pidfd to `in_flight`, whose memory is
    // that of an int. The child does not touch what the thread uses meanwhile (see `child.rs`).
    let result = unsafe { raw::clone3(&arguments, child_main, plan.cast()) };
    result.map_err(|errno| {
        child.cgroup = cgroup;
        child.reset_signals = signal::ALL_SIGNALS;
        Failure::new(crate::error::Stage::Clone, errno)
    })
}
