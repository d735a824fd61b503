//! `clone` with shared memory and a suspended parent.
//!
//! The child runs on a separate stack in the parent's address space until its exec, so no page
//! table is copied and the cost does not depend on the parent's size. `CLONE_VFORK` suspends only
//! the calling thread meanwhile. See clone(2) and the design notes of glibc's posix_spawn since
//! 2.24.
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

/// Creates the process. Returns when it executes its program, or when it has failed to and is
/// reaped.
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
    // space. The kernel writes the pidfd to `in_flight`, whose memory is that of an int and lives
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

/// Flags of the clone, without those for the thread's behavior meanwhile and without the signal at
/// the child's end.
pub(super) fn flags(child: &ChildPlan<'_>, pidfd: Pidfd) -> libc::c_int {
    let mut flags = libc::CLONE_VM;
    if pidfd == Pidfd::Yes {
        flags |= libc::CLONE_PIDFD;
    }
    if matches!(child.descriptors, Descriptors::UnshareFrom(_)) {
        flags |= libc::CLONE_FILES;
    }
    flags
}

/// After the child has left this memory: takes the pidfd and reaps a child that has failed.
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
        // It has called _exit already; this never waits long.
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
