//! Events of a launcher: a started child, a spawn that failed, a child that ended.
//!
//! Plain values only. Nothing here knows how a child is created or waited for. For one token the order is
//! always `Started` before `Exited`, and either `Failed` or `Exited` is the last event of that token. `Stalled` and
//! `Unkillable` are warnings in between: nothing has to be done about them, and the last event still comes.

use std::fmt;

use crate::error::SpawnError;

/// The caller's name for one child.
///
/// The launcher never interprets it. A token may be used again once its last event was delivered.
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
    /// Context switches because its time slice ended or somebody more important was ready.
    pub involuntary_switches: u64,
}

/// One report of a launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The program runs: `execve` has succeeded.
    ///
    /// It may be delivered a few milliseconds late, together with later events, so that short tasks cost
    /// one wake-up of the consumer and not two.
    Started {
        /// The caller's name for the child.
        token: Token,
        /// Process id; also the id of its session and process group unless the plan said otherwise.
        pid: u32,
        /// When the spawn began.
        at: MonotonicNs,
    },
    /// The creation of the process has taken longer than a second and has not come to an end.
    ///
    /// Either the child waits for a file (an input that is a FIFO, a file system that does not answer), or this
    /// process does, on the way to it. Another thread of the launcher has taken over the place of the one that
    /// hangs. At most once for a creation; `Started`, `Failed` or [`Event::Unkillable`] may follow at any time.
    Stalled {
        /// The caller's name for the child.
        token: Token,
        /// Process id of the child that hangs; `None` if it is not known, or there is none yet.
        pid: Option<u32>,
    },
    /// The child was sent SIGKILL ten seconds ago ([`crate::LauncherConfig::unkillable_after`]) and still exists.
    ///
    /// Almost always it sleeps in the kernel without being interruptible, for a file system or a device that does
    /// not answer, and what it uses is not free. At most once for a child; `Exited` or `Failed` follows if it ever ends.
    Unkillable {
        /// The caller's name for the child.
        token: Token,
        /// Process id of the child; `None` if it hangs in its creation and is not known.
        pid: Option<u32>,
    },
    /// There is no process, and there will be none for this request.
    Failed {
        /// The caller's name for the child.
        token: Token,
        /// The failed step and its error.
        error: SpawnError,
    },
    /// The child ended and was reaped.
    Exited {
        /// The caller's name for the child.
        token: Token,
        /// Exit status or signal.
        status: ExitStatus,
        /// Resource usage.
        usage: ResourceUsage,
        /// When the spawn began.
        started: MonotonicNs,
        /// When its end was observed.
        ended: MonotonicNs,
        /// Descendants that were still alive when the child ended, and were killed for it. If orphans do not come to
        /// this process, those that are gone at once may be missing.
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
