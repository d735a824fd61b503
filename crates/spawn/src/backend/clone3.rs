//! Creates processes with `clone3`, which supports flags that the older `clone` lacks.
//!
//! `CLONE_CLEAR_SIGHAND` (Linux 5.5) gives the child default dispositions, which saves one system
//! call per signal. `CLONE_INTO_CGROUP` (Linux 5.7) starts the child inside a control group: it
//! never runs outside the group, and no move has to lock the whole control group tree. The C
//! library has no function for `clone3` that starts the child on a new stack, and a function that
//! returns on the parent's stack would return twice. A few instructions of assembly are therefore
//! needed. See clone(2).
//!
//! A thread that waits for its child to exit anyway does not have to wake up at the child's exec:
//! it continues right after the clone and waits for the exit, which saves two thread switches.
//! `CLONE_CHILD_CLEARTID` reports that the child has left this memory. Its exit alone does not.
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

/// Set if `clone3` turns out to be missing, too old or filtered.
static ABSENT: AtomicBool = AtomicBool::new(false);

/// Creates the process, inside its control group if it has one. Falls back to a clone whose child
/// does all steps itself.
pub(super) fn spawn(
    child: &mut ChildPlan<'_>,
    stack: &ChildStack,
    in_flight: &InFlight,
    patience: Option<Duration>,
) -> Result<Created, Failure> {
    // The kernel's OOM killer exempts a child between clone and exec, and the processes that share
    // its memory, only after a clone with CLONE_VFORK. Without this flag, a child that reaches its
    // control group's limit in execve would make the kernel kill all processes that share its
    // memory, including this one. An OOM score that such a child sets would also apply to all of
    // them.
    let alone = child.cgroup < 0 && child.oom_score.is_empty();
    let patience = patience.filter(|_| raw::LEAVES_ERRNO && alone);
    let inside = AtomicU32::new(1);
    if !ABSENT.load(Ordering::Relaxed) {
        match by_clone3(child, stack, in_flight, patience.map(|_| &inside)) {
            // `clone3` is missing, filtered or not permitted, or the path is not a control group. A
            // child that moves itself into the group either succeeds or reports the failed step.
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

/// Creates the process. The thread sleeps until the child has left this memory or, with `inside`,
/// continues immediately. The kernel then zeroes `inside` when the child leaves, and wakes threads
/// that wait on it.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
fn by_clone3(
    child: &mut ChildPlan<'_>,
    stack: &ChildStack,
    in_flight: &InFlight,
    inside: Option<&AtomicU32>,
) -> Result<libc::pid_t, Failure> {
    /// These constants come from the kernel's `sched.h`; the C library's flag type is too small for
    /// them.
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
    // SAFETY: the stack is mapped, private to this thread and not in use, because the thread has
    // waited until every earlier child on it had left. The plan and `inside` outlive the child's
    // time in this memory: either this function returns only afterwards, or `spawn` waits for the
    // child. The kernel writes the pidfd to `in_flight`, which has the layout of an int. The child
    // does not touch data that the thread uses in the meantime (see `child.rs`).
    let result = unsafe { raw::clone3(&arguments, child_main, plan.cast()) };
    result.map_err(|errno| {
        child.cgroup = cgroup;
        child.reset_signals = signal::ALL_SIGNALS;
        Failure::new(crate::error::Stage::Clone, errno)
    })
}
