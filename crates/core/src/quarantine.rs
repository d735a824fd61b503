//! Workers that are set aside because tasks fail there that go well elsewhere, or because somebody asked for it: values.

use crate::id::WorkerId;
use crate::time::Timestamp;

/// Reaction of a server to such workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum QuarantineMode {
    /// Nothing: it does not even look.
    Off,
    /// It tells of them.
    #[default]
    Tell,
    /// It gives them no tasks for a while, and runs elsewhere what failed there.
    Act,
}

impl QuarantineMode {
    /// All of them, with their names.
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

/// A worker that is set aside, or was until its time was over and it has not shown yet that it works.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Quarantine {
    /// Id of the worker.
    pub worker: WorkerId,
    /// Since when.
    pub since: Timestamp,
    /// When a task is tried on it again.
    pub until: Timestamp,
    /// How many times in a row: each one is twice as long as the last.
    pub round: u32,
    /// Whether somebody asked for it, otherwise the server found it.
    pub is_asked: bool,
    /// Why, a sentence without full stop; may be empty if somebody asked for it.
    pub why: Box<str>,
}

impl Quarantine {
    /// What is said of one that somebody asked for: `on request until TIME: its fan is loud`.
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
