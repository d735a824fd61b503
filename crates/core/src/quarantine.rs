//! Workers in quarantine: tasks fail there that succeed elsewhere, or a user requested it. Values.

use crate::id::WorkerId;
use crate::time::Timestamp;

/// Reaction of a server to such workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum QuarantineMode {
    /// No observation at all.
    Off,
    /// Reports such workers.
    #[default]
    Tell,
    /// Sends them no tasks for a while, and reruns elsewhere what failed there.
    Act,
}

impl QuarantineMode {
    /// All modes, with their names.
    pub const ALL: [(&'static str, Self); 3] =
        [("off", Self::Off), ("tell", Self::Tell), ("act", Self::Act)];

    /// Name on the command line.
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
    /// Id of the worker.
    pub worker: WorkerId,
    /// Since when.
    pub since: Timestamp,
    /// Time of the next probe task.
    pub until: Timestamp,
    /// Number of consecutive quarantines: each is twice as long as the previous one.
    pub round: u32,
    /// Whether a user requested it; otherwise the server found the problem.
    pub is_asked: bool,
    /// Reason as a sentence without full stop; may be empty for a requested one.
    pub why: Box<str>,
}

impl Quarantine {
    /// Text about a requested quarantine: `on request until TIME: its fan is loud`.
    #[must_use]
    pub fn on_request(&self, until: &str) -> String {
        let why = if self.why.is_empty() { "" } else { ": " };
        format!("on request until {until}{why}{}", self.why)
    }
}

/// Suspicion against a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Suspicion {
    /// Since when.
    pub since: Timestamp,
    /// Why, a sentence without full stop.
    pub why: Box<str>,
}
