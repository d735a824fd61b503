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
use crate::child::ChildPlan;
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
    let result = unsafe { clone3(&arguments, plan.cast()) };
    if result < 0 {
        child.cgroup = cgroup;
        child.reset_signals = signal::ALL_SIGNALS;
        let errno = i32::try_from(-result).unwrap_or(libc::EIO);
        return Err(Failure::new(crate::error::Stage::Clone, errno));
    }
    Ok(libc::pid_t::try_from(result).unwrap_or(0))
}

/// The system call. In the child it continues with `child_main(plan)` on the new stack and never comes back; in the
/// parent it answers with the child's id or a negative errno.
///
/// # Safety
///
/// `arguments` name a stack that nobody uses, and `plan` is what `child_main` expects; both stay valid until the
/// child has executed its program or ended.
#[cfg(target_arch = "x86_64")]
unsafe fn clone3(arguments: &libc::clone_args, plan: *mut libc::c_void) -> libc::c_long {
    let result: libc::c_long;
    // SAFETY: in the parent these are a system call and a branch; what the call clobbers is declared. The child
    // has a copy of the registers, a fresh 16-byte aligned stack, and calls a function that does not return.
    unsafe {
        core::arch::asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r13",
            "call r12",
            "ud2",
            "2:",
            inlateout("rax") libc::SYS_clone3 => result,
            in("rdi") arguments,
            in("rsi") size_of::<libc::clone_args>(),
            in("r12") crate::child::child_main as extern "C" fn(*mut libc::c_void) -> libc::c_int,
            in("r13") plan,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}

/// As for x86-64.
///
/// # Safety
///
/// As for x86-64.
#[cfg(target_arch = "aarch64")]
unsafe fn clone3(arguments: &libc::clone_args, plan: *mut libc::c_void) -> libc::c_long {
    let result: libc::c_long;
    // SAFETY: in the parent these are a system call and a branch. The child has a copy of the registers, a fresh
    // 16-byte aligned stack, and calls a function that does not return.
    unsafe {
        core::arch::asm!(
            "svc #0",
            "cbnz x0, 2f",
            "mov x29, xzr",
            "mov x0, x21",
            "blr x20",
            "brk #1",
            "2:",
            inlateout("x0") arguments => result,
            in("x1") size_of::<libc::clone_args>(),
            in("x8") libc::SYS_clone3,
            in("x20") crate::child::child_main as extern "C" fn(*mut libc::c_void) -> libc::c_int,
            in("x21") plan,
        );
    }
    result
}
