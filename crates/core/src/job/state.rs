//! The states of a job. Each display has its own words for them.

/// The state of a job, derived from its tasks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum JobState {
    /// Some tasks are waiting, and none is running.
    Waiting,
    /// Some tasks are running.
    Running,
    /// All tasks have finished, or the job is closed and has no tasks.
    Finished,
    /// Some tasks have failed.
    Failed,
    /// Some tasks have been canceled.
    Canceled,
    /// Some tasks have been aborted.
    Aborted,
    /// The job is open and has no unfinished tasks.
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

    /// Returns the word that users see.
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

    /// Returns the state with this [`name`](Self::name).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Returns whether some tasks have not ended. `job list` shows such jobs by default.
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
