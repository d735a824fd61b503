//! Creates one process. One function hides the ladder of mechanisms.
//!
//! | rung | created by | ended child noticed by |
//! |---|---|---|
//! | [`Backend::ClonePidfd`] | `clone3` or `clone(VM, VFORK, PIDFD)` | the pidfd of the clone |
//! | [`Backend::PosixSpawnWait`] | `posix_spawn` | a thread that waits for any child |
//! | [`Backend::Fork`] | `fork`, `execve` | the same thread |
//!
//! `posix_spawn` cannot express every plan (parent-death signal, limits, …) and does not report the
//! failed step. Plans that it cannot express, or that fail in it, run the child of `child.rs` on a
//! `clone` without pidfd, which every kernel has, and if that is refused, on `fork`. So each rung
//! behaves the same.

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
    /// `None`: the caller must wait for it by its id.
    pub(crate) pidfd: Option<OwnedFd>,
    /// Whether it is known to have ended, without being reaped yet.
    pub(crate) ended: bool,
}

/// A step that failed.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) stage: Stage,
    pub(crate) errno: i32,
    /// The ended child's pidfd. Close it only after the child has left the table of children.
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

/// Creates the process that `child` describes. The calling thread has the signal mask of a spawner.
/// With `patience` it may wait that long for the end of the child.
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
    // Without a pidfd nothing is written to it.
    match clone_vfork::spawn(child, stack, Pidfd::No, &InFlight::default()) {
        Err(Failure {
            stage: Stage::Clone,
            errno: libc::ENOSYS | libc::EPERM | libc::EINVAL,
            ..
        }) => fork::spawn(child),
        result => result,
    }
}
