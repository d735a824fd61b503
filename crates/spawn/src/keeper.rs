//! No survivor: a small front process that outlives the worker and ends what it leaves behind.

use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::time::Duration;

/// What the worker process knows about its front process.
#[derive(Debug)]
pub struct KeeperContext {
    /// Process id of the front, the process the user started.
    pub front_pid: u32,
    /// Readable once the front process is gone.
    pub front_pidfd: OwnedFd,
}

impl KeeperContext {
    /// Whether somebody has stopped the front process (SIGSTOP, ^Z).
    #[must_use]
    pub fn front_is_stopped(&self) -> bool {
        false
    }
}

/// A keeper that could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeeperError {
    /// A system call failed.
    #[error("set up the keeper process: {step}")]
    Os {
        /// What was being set up.
        step: &'static str,
        /// The operating system's answer.
        #[source]
        source: std::io::Error,
    },
    /// The process has more than one thread already.
    #[error("set up the keeper process: expected one thread, found {found}")]
    Threads {
        /// Number of threads.
        found: usize,
    },
}

/// Splits the process in two: the front stays here and watches, `body` runs in a child of it.
///
/// Returns in the worker process only, with what `body` returned.
///
/// # Errors
///
/// When the process already has several threads, or cannot fork.
pub fn run(_body: impl FnOnce(KeeperContext) -> ExitCode) -> Result<ExitCode, KeeperError> {
    Err(KeeperError::Threads { found: 0 })
}

/// Kills every descendant of this process; returns how many are left after `deadline`.
pub fn kill_descendants(_deadline: Duration) -> usize {
    0
}
