//! Creates processes with a `clone` that shares memory and suspends the parent.
//!
//! The child runs on a separate stack in the parent's address space until its exec, so no page
//! table is copied and the cost does not depend on the parent's size. Meanwhile, `CLONE_VFORK`
//! suspends only the calling thread. See clone(2) and the design notes of `posix_spawn` in glibc
//! since 2.24.
#![expect(unsafe_code, reason = "clone")]

use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;

use super::{Created, Failure};
use crate::child::{ChildPlan, Descriptors, child_main};
use crate::error::Stage;
use crate::live::InFlight;
use crate::raw;
use crate::stack::ChildStack;
use crate::sys::{self, WaitFor};

/// Whether the clone returns a descriptor of the new process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pidfd {
    Yes,
    No,
}

/// Creates the process. Returns when the process executes its program, or when it has failed to do
/// so and has been reaped.
pub(super) fn spawn(
    child: &mut ChildPlan<'_>,
    stack: &ChildStack,
    pidfd: Pidfd,
    in_flight: &InFlight,
) -> Result<Created, Failure> {
    in_flight.forget();
    // SAFETY: the stack is mapped, private to this thread and not in use, because the thread has
    // waited until every earlier child on it had left. `child_main` gets the ChildPlan it expects,
    // which stays borrowed until this call returns, and by then the child has left this address
    // space. The kernel writes the pidfd to `in_flight`, which has the layout of an int and lives
    // as long.
    let pid = unsafe {
        raw::clone(
            flags(child, pidfd) | libc::CLONE_VFORK | libc::SIGCHLD,
            stack.top(),
            in_flight.as_ptr(),
            child_main,
            ptr::from_mut(child).cast(),
        )
    };
    let pid = pid.map_err(|errno| Failure::new(Stage::Clone, errno))?;
    collect(child, pid, in_flight)
}

/// Returns the flags of the clone, except those that control what the thread does in the meantime
/// and the exit signal.
pub(super) fn flags(child: &ChildPlan<'_>, pidfd: Pidfd) -> libc::c_int {
    let mut flags = libc::CLONE_VM;
    if pidfd == Pidfd::Yes {
        flags |= libc::CLONE_PIDFD;
    }
    if matches!(child.descriptors, Descriptors::Unshare { .. }) {
        flags |= libc::CLONE_FILES;
    }
    flags
}

/// Takes the pidfd after the child has left this memory, and reaps a child that has failed.
pub(super) fn collect(
    child: &ChildPlan<'_>,
    pid: libc::pid_t,
    in_flight: &InFlight,
) -> Result<Created, Failure> {
    let fd = in_flight.pidfd();
    let pidfd = (fd >= 0).then(|| {
        // SAFETY: the kernel has just installed this descriptor, and no other code knows it.
        unsafe { OwnedFd::from_raw_fd(fd) }
    });
    let report = child.report.get();
    if let Some(stage) = Stage::from_number(report.stage) {
        // The child has already called _exit, so this never waits long.
        let _ = sys::wait(WaitFor::Pid(pid), 0);
        return Err(Failure {
            stage,
            errno: report.errno,
            pidfd,
        });
    }
    Ok(Created {
        pid,
        pidfd,
        ended: false,
    })
}
