//! Workers in quarantine, because tasks that succeed elsewhere fail there, or because a user
//! requested it.

use crate::id::WorkerId;
use crate::time::Timestamp;

/// How a server reacts to such workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum QuarantineMode {
    /// The server does not look for them.
    Off,
    /// The server reports them.
    #[default]
    Tell,
    /// The server sends them no tasks for a while, and reruns tasks that failed there elsewhere.
    Act,
}

impl QuarantineMode {
    /// All modes, with their names.
    pub const ALL: [(&'static str, Self); 3] =
        [("off", Self::Off), ("tell", Self::Tell), ("act", Self::Act)];

    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Tell => "tell",
            Self::Act => "act",
        }
    }
}

/// A worker in quarantine, or on probation after its quarantine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Quarantine {
    /// The id of the worker.
    pub worker: WorkerId,
    /// When the quarantine began.
    pub since: Timestamp,
    /// When the next probe task is due.
    pub until: Timestamp,
    /// The number of consecutive quarantines. Each one is twice as long as the previous one.
    pub round: u32,
    /// Whether a user requested the quarantine. Otherwise, the server found the problem.
    pub is_asked: bool,
    /// The reason, as a sentence without a final period. May be empty if a user requested the
    /// quarantine.
    pub why: Box<str>,
}

impl Quarantine {
    /// Returns the text about a requested quarantine, such as `on request until TIME: its fan is
    /// loud`.
    #[must_use]
    pub fn on_request(&self, until: &str) -> String {
        let why = if self.why.is_empty() { "" } else { ": " };
        format!("on request until {until}{why}{}", self.why)
    }
}

/// A suspicion about a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Suspicion {
    /// When the suspicion arose.
    pub since: Timestamp,
    /// The reason, as a sentence without a final period.
    pub why: Box<str>,
}
