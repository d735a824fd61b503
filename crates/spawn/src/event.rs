//! Events of a launcher: a started child, a failed spawn, an ended child.
//!
//! Events are plain values, independent of how children are created or waited for. For each token
//! `Started` precedes `Exited`, and `Failed` or `Exited` is the last event. `Stalled` and
//! `Unkillable` are warnings in between that need no reaction: the last event still comes.

use std::fmt;

use crate::error::SpawnError;

/// The caller's identifier of one child.
///
/// The launcher never interprets it. A token may be reused after its last event was delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// A point on the machine's monotonic clock (`CLOCK_MONOTONIC`), in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct MonotonicNs(pub u64);

impl MonotonicNs {
    /// Nanoseconds from `earlier` to `self`; zero when `earlier` is the later one.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ExitStatus {
    /// It called `exit` with this status (0 to 255).
    Code(i32),
    /// A signal ended it.
    Signal {
        /// The signal's number.
        signal: i32,
        /// Whether the kernel wrote a core dump.
        core_dumped: bool,
    },
}

impl ExitStatus {
    /// Whether the process ended with exit status 0.
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

/// Resource usage that the kernel accounted to a child and to the descendants it waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ResourceUsage {
    /// Largest resident set in KiB.
    pub max_rss_kib: u64,
    /// CPU time in user mode, microseconds.
    pub user_us: u64,
    /// CPU time in the kernel, microseconds.
    pub system_us: u64,
    /// Page faults served without I/O.
    pub minor_faults: u64,
    /// Page faults that needed I/O.
    pub major_faults: u64,
    /// Context switches because the process waited.
    pub voluntary_switches: u64,
    /// Context switches because its time slice ended or a process of higher priority was ready.
    pub involuntary_switches: u64,
}

/// One report of a launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The program runs: `execve` has succeeded.
    ///
    /// It may be delivered a few milliseconds late, together with later events, so that a short
    /// task costs the consumer one wake-up instead of two.
    Started {
        /// The caller's identifier of the child.
        token: Token,
        /// Process id; also the id of its session and process group unless the plan said otherwise.
        pid: u32,
        /// When the spawn began.
        at: MonotonicNs,
    },
    /// The creation of the process has been running for longer than a second.
    ///
    /// Either the child waits for a file (an input that is a FIFO, a file system that does not
    /// respond), or this process does before the clone. Another thread of the launcher has replaced
    /// the hanging one. Comes at most once per creation; `Started`, `Failed` or
    /// [`Event::Unkillable`] may follow at any time.
    Stalled {
        /// The caller's identifier of the child.
        token: Token,
        /// Process id of the hanging child; `None` if it is unknown or there is no child yet.
        pid: Option<u32>,
    },
    /// The child was sent SIGKILL ten seconds ago ([`crate::LauncherConfig::unkillable_after`]) and
    /// still exists.
    ///
    /// Almost always it is in an uninterruptible sleep in the kernel, waiting for a file system or
    /// a device that does not respond, and its resources are not free. Comes at most once per
    /// child; `Exited` or `Failed` follows if the child ever ends.
    Unkillable {
        /// The caller's identifier of the child.
        token: Token,
        /// Process id of the child; `None` if it hangs in its creation and is unknown.
        pid: Option<u32>,
    },
    /// There is no process, and there will be none for this request.
    Failed {
        /// The caller's identifier of the child.
        token: Token,
        /// The failed step and its error.
        error: SpawnError,
    },
    /// The child ended and was reaped.
    Exited {
        /// The caller's identifier of the child.
        token: Token,
        /// Exit status or signal.
        status: ExitStatus,
        /// Resource usage.
        usage: ResourceUsage,
        /// When the spawn began.
        started: MonotonicNs,
        /// When the launcher noticed the end.
        ended: MonotonicNs,
        /// Descendants that were still alive when the child ended, and were therefore killed. If
        /// this process does not adopt orphans, descendants that ended at once may be missing.
        leaked: u32,
    },
}

impl Event {
    /// The token this event is about.
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
