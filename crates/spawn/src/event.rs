//! The events of a launcher: a child started, a spawn failed, or a child exited.
//!
//! Events are plain values that do not depend on how children are created or waited for. For each
//! token, `Started` precedes `Exited`, and `Failed` or `Exited` is the last event. `Stalled` and
//! `Unkillable` are warnings in between that require no reaction: the last event still follows.

use std::fmt;

use crate::error::SpawnError;

/// The caller's identifier of a child.
///
/// The launcher never interprets it. A token may be reused after its last event has been delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// A point on the machine's monotonic clock (`CLOCK_MONOTONIC`), in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MonotonicNs(pub u64);

impl MonotonicNs {
    /// Returns the nanoseconds from `earlier` to `self`, or zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExitStatus {
    /// The process called `exit` with this status (0 to 255).
    Code(i32),
    /// A signal ended the process.
    Signal {
        /// The number of the signal.
        signal: i32,
        /// Whether the kernel wrote a core dump.
        core_dumped: bool,
    },
}

impl ExitStatus {
    /// Returns whether the process ended with exit status 0.
    #[must_use]
    pub const fn success(self) -> bool {
        matches!(self, Self::Code(0))
    }
}

impl fmt::Display for ExitStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit status {code}"),
            Self::Signal {
                signal,
                core_dumped: false,
            } => write!(f, "signal {signal}"),
            Self::Signal {
                signal,
                core_dumped: true,
            } => write!(f, "signal {signal} (core dumped)"),
        }
    }
}

/// The resource usage that the kernel accounted to a child and to the descendants that the child
/// waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResourceUsage {
    /// The largest resident set size in KiB.
    pub max_rss_kib: u64,
    /// The CPU time in user mode, in microseconds.
    pub user_us: u64,
    /// The CPU time in the kernel, in microseconds.
    pub system_us: u64,
    /// The number of page faults served without I/O.
    pub minor_faults: u64,
    /// The number of page faults that required I/O.
    pub major_faults: u64,
    /// The number of context switches that occurred because the process waited.
    pub voluntary_switches: u64,
    /// The number of context switches that occurred because its time slice ended or a process with
    /// a higher priority was ready.
    pub involuntary_switches: u64,
}

/// A report of a launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The program is running: `execve` has succeeded.
    ///
    /// This event may be delivered a few milliseconds late, together with later events, so that a
    /// short task costs the consumer one wake-up instead of two.
    Started {
        /// The caller's identifier of the child.
        token: Token,
        /// The process id. It is also the id of the session and process group unless the plan
        /// specified otherwise.
        pid: u32,
        /// When the spawn began.
        at: MonotonicNs,
    },
    /// Creating the process has taken longer than a second.
    ///
    /// Either the child waits for a file (an input that is a FIFO, or a file system that does not
    /// respond), or this process does so before the clone. Another thread of the launcher has
    /// replaced the hanging one. This event is reported at most once per creation; `Started`,
    /// `Failed` or [`Event::Unkillable`] may follow at any time.
    Stalled {
        /// The caller's identifier of the child.
        token: Token,
        /// The process id of the hanging child; `None` if it is unknown or if there is no child
        /// yet.
        pid: Option<u32>,
    },
    /// The child was sent SIGKILL some time ago (by default ten seconds; see
    /// [`crate::LauncherConfig::unkillable_after`]) and still exists.
    ///
    /// Almost always, the child is in uninterruptible sleep in the kernel, waiting for a file
    /// system or a device that does not respond. Its resources have not been released. This event
    /// is reported at most once per child; `Exited` or `Failed` follows if the child ever ends.
    Unkillable {
        /// The caller's identifier of the child.
        token: Token,
        /// The process id of the child; `None` if the child hangs during its creation and the id is
        /// unknown.
        pid: Option<u32>,
    },
    /// No process was created, and none will be for this request.
    Failed {
        /// The caller's identifier of the child.
        token: Token,
        /// The failed step and its error.
        error: SpawnError,
    },
    /// The child exited and was reaped.
    Exited {
        /// The caller's identifier of the child.
        token: Token,
        /// The exit status or the signal.
        status: ExitStatus,
        /// The resource usage.
        usage: ResourceUsage,
        /// When the spawn began.
        started: MonotonicNs,
        /// When the launcher noticed the exit.
        ended: MonotonicNs,
        /// The number of descendants that were still alive when the child exited and were therefore
        /// killed. If this process does not adopt orphans, descendants that ended immediately may
        /// not be counted.
        leaked: u32,
    },
}

impl Event {
    /// Returns the token of the child that this event is about.
    #[must_use]
    pub const fn token(&self) -> Token {
        match self {
            Self::Started { token, .. }
            | Self::Stalled { token, .. }
            | Self::Unkillable { token, .. }
            | Self::Failed { token, .. }
            | Self::Exited { token, .. } => *token,
        }
    }
}
