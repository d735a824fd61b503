//! Names of values that are sent as numbers, for users and programs.

use crate::client::{job_notice, notify_target};

impl notify_target::Event {
    /// `end`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::End => "end",
            Self::Failure => "failure",
        }
    }
}

impl job_notice::State {
    /// `given-up`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Owed => "owed",
            Self::Delivered => "delivered",
            Self::GivenUp => "given-up",
        }
    }
}
