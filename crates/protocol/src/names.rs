//! Names, for users and programs, of enum values that are sent as numbers.

use crate::client::{job_notice, notify_target};

impl notify_target::Event {
    /// Returns the name, such as `end`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::End => "end",
            Self::Failure => "failure",
        }
    }
}

impl job_notice::State {
    /// Returns the name, such as `given-up`.
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
