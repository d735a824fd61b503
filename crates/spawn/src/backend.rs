//! Creates a process, with the best available mechanism.
//!
//! | rung | process created by | exit detected by |
//! |---|---|---|
//! | [`Backend::ClonePidfd`] | `clone3` or `clone(VM, VFORK, PIDFD)` | the pidfd of the clone |
//! | [`Backend::PosixSpawnWait`] | `posix_spawn` | a thread that waits for any child |
//! | [`Backend::Fork`] | `fork`, `execve` | the same thread |
//!
//! `posix_spawn` does not support every plan (parent-death signal, limits, …) and does not report
//! which step failed. If a plan is not supported, or `posix_spawn` fails, the code of `child.rs`
//! runs on a `clone` without a pidfd, which every kernel supports. If the clone is refused, the
//! code runs on `fork`. All rungs therefore behave the same.

use std::os::fd::OwnedFd;
use std::time::Duration;

use clone_vfork::Pidfd;

use crate::child::ChildPlan;
use crate::error::Stage;
use crate::live::InFlight;
use crate::mechanism::Backend;
use crate::stack::ChildStack;

mod clone3;
mod clone_vfork;
mod fork;
mod posix_spawn;

/// A process that executes its program.
#[derive(Debug)]
pub(crate) struct Created {
    pub(crate) pid: libc::pid_t,
    /// `None` if the caller must wait for the process by its id.
    pub(crate) pidfd: Option<OwnedFd>,
    /// Whether the process is known to have ended. It has not been reaped yet.
    pub(crate) ended: bool,
}

/// A step that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) stage: Stage,
    pub(crate) errno: i32,
    /// The pidfd of the ended child. Close it only after the child has left the table of children.
    pub(crate) pidfd: Option<OwnedFd>,
}

impl Failure {
    const fn new(stage: Stage, errno: i32) -> Self {
        Self {
            stage,
            errno,
            pidfd: None,
        }
    }
}

/// Creates the process that `child` describes. The calling thread must have the signal mask of a
/// spawner. With `patience`, this function may wait that long for the child to exit.
pub(crate) fn create(
    backend: Backend,
    child: &mut ChildPlan<'_>,
    stack: &ChildStack,
    in_flight: &InFlight,
    patience: Option<Duration>,
) -> Result<Created, Failure> {
    match backend {
        Backend::ClonePidfd => clone3::spawn(child, stack, in_flight, patience),
        Backend::PosixSpawnWait => create_portably(child, stack),
        Backend::Fork => fork::spawn(child),
    }
}

fn create_portably(child: &mut ChildPlan<'_>, stack: &ChildStack) -> Result<Created, Failure> {
    if let Some(created) = posix_spawn::spawn(child) {
        return Ok(created);
    }
    // Without a pidfd, the kernel does not write to it.
    match clone_vfork::spawn(child, stack, Pidfd::No, &InFlight::default()) {
        Err(Failure {
            stage: Stage::Clone,
            errno: libc::ENOSYS | libc::EPERM | libc::EINVAL,
            ..
        }) => fork::spawn(child),
        result => result,
    }
}
