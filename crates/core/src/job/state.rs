//! States of a job; each display has its own words for them.

/// Derived state of a job.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum JobState {
    /// Some task waits, none runs.
    Waiting,
    /// Some task runs.
    Running,
    /// All tasks finished; also a closed job without tasks.
    Finished,
    /// Some task failed.
    Failed,
    /// Some task was canceled.
    Canceled,
    /// Some task was given up.
    Aborted,
    /// Open and without unfinished tasks.
    Opened,
}

impl JobState {
    /// All states, in the order of their declaration.
    pub const ALL: [Self; 7] = [
        Self::Waiting,
        Self::Running,
        Self::Finished,
        Self::Failed,
        Self::Canceled,
        Self::Aborted,
        Self::Opened,
    ];

    /// The word that people see.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
            Self::Aborted => "aborted",
            Self::Opened => "opened",
        }
    }

    /// Inverse of [`name`](Self::name).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Whether some task has not ended: `job list` shows such jobs by default.
    #[must_use]
    pub const fn is_unfinished(self) -> bool {
        match self {
            Self::Waiting | Self::Running => true,
            Self::Finished | Self::Failed | Self::Canceled | Self::Aborted | Self::Opened => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_state_is_listed_once_in_the_order_of_declaration() {
        for (index, state) in JobState::ALL.into_iter().enumerate() {
            assert_eq!(state as usize, index);
            assert_eq!(JobState::from_name(state.name()), Some(state));
        }
    }
}
