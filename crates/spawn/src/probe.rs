//! Detects features of this kernel, C library and sandbox by trying them, once per process.
//!
//! A missing feature (because of an old kernel, or a seccomp filter that returns ENOSYS or EPERM)
//! is remembered. A temporary failure (no descriptors, no processes) is not: this launcher assumes
//! that all features exist, and the next one probes again.
#![expect(unsafe_code, reason = "probes make raw calls")]

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::LauncherError;
use crate::mechanism::Backend;
use crate::raw;
use crate::signal::Blocked;
use crate::stack::ChildStack;
use crate::sys::{self, WaitFor};

/// The features of this kernel and sandbox for creating processes and waiting for them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Features {
    /// `clone` supports `CLONE_PIDFD` (Linux 5.2).
    pub clone_pidfd: bool,
    /// `pidfd_open` exists (Linux 5.3).
    pub pidfd_open: bool,
    /// `waitid` accepts a pidfd (Linux 5.4).
    pub wait_pidfd: bool,
    /// `close_range` supports `CLOSE_RANGE_UNSHARE` (Linux 5.9).
    pub close_range: bool,
    /// `clone` supports `CLONE_VM`. Emulators of a single process copy the memory instead, without
    /// reporting an error. A child's failure report is then lost, even with the C library's
    /// `posix_spawn`.
    pub shared_memory: bool,
    /// A process can adopt its orphaned descendants (`PR_SET_CHILD_SUBREAPER`, Linux 3.4).
    /// Emulators of a single process do not implement it.
    pub adoption: bool,
}

impl Features {
    /// Returns the best backend for these features.
    #[must_use]
    pub const fn best(self) -> Backend {
        if !self.shared_memory {
            Backend::Fork
        } else if self.clone_pidfd {
            Backend::ClonePidfd
        } else {
            Backend::PosixSpawnWait
        }
    }

    /// Checks that a backend works with these features.
    pub(crate) fn check(self, backend: Backend) -> Result<(), LauncherError> {
        let reason = match backend {
            Backend::ClonePidfd | Backend::PosixSpawnWait if !self.shared_memory => {
                "this system's clone shares no memory"
            }
            Backend::ClonePidfd if !self.clone_pidfd => "this system's clone has no CLONE_PIDFD",
            Backend::ClonePidfd | Backend::PosixSpawnWait | Backend::Fork => return Ok(()),
        };
        Err(LauncherError::BackendUnavailable {
            backend: backend.name(),
            reason,
        })
    }
}

/// Returns the features of this environment. They are detected once, by creating a process.
pub fn features() -> Features {
    static KNOWN: OnceLock<Features> = OnceLock::new();
    if let Some(known) = KNOWN.get() {
        return *known;
    }
    let (features, certain) = probe();
    if certain {
        tracing::debug!(?features, "probed process features");
        return *KNOWN.get_or_init(|| features);
    }
    features
}

/// Returns whether an error means that the call does not exist here.
const fn is_absent(errno: i32) -> bool {
    matches!(
        errno,
        libc::ENOSYS | libc::EPERM | libc::EINVAL | libc::EACCES
    )
}

fn probe() -> (Features, bool) {
    let mut certain = true;
    let (pidfd_open, wait_own) = match sys::pidfd_open(sys::getpid()) {
        Ok(own) => (true, knows_pidfds(&own)),
        Err(error) if is_absent(error.raw_os_error().unwrap_or(0)) => (false, false),
        Err(_) => {
            certain = false;
            (true, false)
        }
    };
    let clone = match ChildStack::new() {
        Ok(stack) => {
            let mut answer = probe_clone(&stack, libc::CLONE_FILES | libc::CLONE_PIDFD);
            if answer == CloneAnswer::Absent {
                // Emulators only accept the flags of a vfork.
                answer = without_its_flags(probe_clone(&stack, 0));
            }
            answer
        }
        Err(_) => CloneAnswer::NotNow,
    };
    let found = Features {
        pidfd_open,
        wait_pidfd: wait_own,
        shared_memory: true,
        adoption: sys::knows_adoption(),
        ..Features::default()
    };
    let features = match clone {
        CloneAnswer::Absent => found,
        CloneAnswer::NotNow => {
            certain = false;
            Features {
                clone_pidfd: true,
                wait_pidfd: false,
                ..found
            }
        }
        CloneAnswer::Works(clone) => Features {
            pidfd_open,
            wait_pidfd: clone.wait_pidfd || wait_own,
            adoption: found.adoption,
            ..clone
        },
    };
    (features, certain)
}

/// Adjusts the result of a clone that only works with the flags of a vfork: whether the child could
/// close its parent's descriptors is then irrelevant.
fn without_its_flags(answer: CloneAnswer) -> CloneAnswer {
    match answer {
        CloneAnswer::Works(Features { shared_memory, .. }) => CloneAnswer::Works(Features {
            shared_memory,
            ..Features::default()
        }),
        CloneAnswer::Absent | CloneAnswer::NotNow => answer,
    }
}

/// Returns whether `waitid` accepts pidfds. Linux 5.3 can open pidfds but not wait for them. This
/// process is not its own child, but that error is only returned if pidfds are accepted.
fn knows_pidfds(own: &OwnedFd) -> bool {
    let waited = sys::wait(WaitFor::Pidfd(own.as_fd()), libc::WNOHANG);
    waited.is_err_and(|error| error.raw_os_error() == Some(libc::ECHILD))
}

#[derive(Debug, PartialEq, Eq)]
enum CloneAnswer {
    Absent,
    NotNow,
    /// The features found by the clone.
    Works(Features),
}

/// Creates a child that writes to this process's memory, tries `close_range` and ends. Kernels
/// before 5.2 ignore the pidfd flag, so they do not write a descriptor.
fn probe_clone(stack: &ChildStack, more_flags: c_int) -> CloneAnswer {
    let _blocked = Blocked::all();
    let mut fd: c_int = -1;
    let is_written = AtomicBool::new(false);
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | more_flags;
    // SAFETY: the stack is fresh and stays mapped until the child has ended; the child gets the
    // flag that it expects, which lives until then, and makes two system calls; `fd` receives the
    // pidfd.
    let pid = unsafe {
        raw::clone(
            flags | libc::SIGCHLD,
            stack.top(),
            &raw mut fd,
            probe_child,
            is_written.as_ptr().cast(),
        )
    };
    let pid = match pid {
        Ok(pid) => pid,
        Err(errno) if is_absent(errno) => return CloneAnswer::Absent,
        Err(_) => return CloneAnswer::NotNow,
    };
    let pidfd = (fd >= 0).then(|| {
        // SAFETY: the kernel has just installed this descriptor, and no other code knows it.
        unsafe { OwnedFd::from_raw_fd(fd) }
    });
    let by_pidfd = pidfd
        .as_ref()
        .map(|fd| sys::wait(WaitFor::Pidfd(fd.as_fd()), 0));
    let (wait_pidfd, waited) = match by_pidfd {
        Some(Ok(waited)) => (true, Ok(waited)),
        Some(Err(_)) | None => (false, sys::wait(WaitFor::Pid(pid), 0)),
    };
    let close_range = matches!(waited, Ok(Some(waited)) if waited.status.success());
    CloneAnswer::Works(Features {
        clone_pidfd: pidfd.is_some(),
        wait_pidfd,
        close_range,
        shared_memory: is_written.load(Ordering::Acquire),
        ..Features::default()
    })
}

/// Shares the parent's memory, and its descriptors if the kernel supports that. Reports through the
/// shared memory and the exit status.
extern "C" fn probe_child(is_written: *mut c_void) -> c_int {
    // SAFETY: it is the parent's flag, and the parent waits.
    let is_written = unsafe { AtomicBool::from_ptr(is_written.cast()) };
    is_written.store(true, Ordering::Release);
    // SAFETY: close_range takes plain numbers. It gives this child its own table and closes none of
    // the parent's descriptors.
    let result = unsafe {
        libc::syscall(
            libc::SYS_close_range,
            3,
            libc::c_uint::MAX,
            libc::CLOSE_RANGE_UNSHARE,
        )
    };
    let code = if result == 0 { 0 } else { 1 };
    // SAFETY: _exit runs no handler of the parent and does not return.
    unsafe { libc::_exit(code) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_for_pidfds_that_the_kernel_ignores_is_noticed() {
        // Without the flag, the kernel behaves as if it ignored it: Linux 3.10 to 5.1 create the
        // child but no descriptor.
        let ignored = probe_clone(&ChildStack::new().unwrap(), libc::CLONE_FILES);
        let CloneAnswer::Works(features) = ignored else {
            // An emulator of a single process does not support such a clone.
            return assert_eq!(ignored, CloneAnswer::Absent);
        };
        assert!(
            !features.clone_pidfd && !features.wait_pidfd,
            "{features:?}"
        );
    }

    #[test]
    fn where_a_clone_copies_the_memory_only_a_fork_tells_of_failures() {
        let all = features();
        let copied = Features {
            shared_memory: false,
            ..all
        };
        assert_eq!(copied.best(), Backend::Fork);
        for backend in Backend::ALL {
            assert_eq!(copied.check(backend).is_ok(), backend == Backend::Fork);
        }
    }
}
