//! States of a task: internal and visible ones.

/// Visible state of a task.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum TaskState {
    /// Blocked by dependencies, without a fitting worker, or queued on a worker.
    #[default]
    Waiting,
    /// On a worker with room for it: its program runs, or is about to.
    Running,
    /// Exit code 0.
    Finished,
    /// Any other end of its own.
    Failed,
    /// Ended by the user.
    Canceled,
    /// Given up by the server.
    Aborted,
}

impl TaskState {
    /// All states, indexed by number.
    pub const ALL: [Self; 6] = [
        Self::Waiting,
        Self::Running,
        Self::Finished,
        Self::Failed,
        Self::Canceled,
        Self::Aborted,
    ];

    /// Number in rows of the store and in the web interface; it never changes, because files
    /// contain it.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Waiting => 0,
            Self::Running => 1,
            Self::Finished => 2,
            Self::Failed => 3,
            Self::Canceled => 4,
            Self::Aborted => 5,
        }
    }

    /// Inverse of [`number`](Self::number).
    #[must_use]
    pub fn from_number(number: i64) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Word for users and programs: `finished`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Finished => "finished",
            Self::Failed => "failed",
            Self::Canceled => "canceled",
            Self::Aborted => "aborted",
        }
    }

    /// Inverse of [`name`](Self::name).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

/// State of a task inside the server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// Blocked or ready.
    Waiting,
    /// On a worker, where it waits for other tasks.
    Queued,
    /// On a worker that has room for it; its start was not reported yet.
    Placed,
    /// Reported as started.
    Running,
    /// Exit code 0.
    Finished,
    /// Any other end of its own.
    Failed,
    /// Ended by the user.
    Canceled,
    /// Given up by the server.
    Aborted,
}

impl Phase {
    /// State as users see it.
    #[must_use]
    pub const fn state(self) -> TaskState {
        match self {
            Self::Waiting | Self::Queued => TaskState::Waiting,
            Self::Placed | Self::Running => TaskState::Running,
            Self::Finished => TaskState::Finished,
            Self::Failed => TaskState::Failed,
            Self::Canceled => TaskState::Canceled,
            Self::Aborted => TaskState::Aborted,
        }
    }

    /// Whether a worker has the task without a reported start.
    #[must_use]
    pub const fn is_sent(self) -> bool {
        matches!(self, Self::Queued | Self::Placed)
    }

    /// Whether the task has ended for good.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(
            self,
            Self::Finished | Self::Failed | Self::Canceled | Self::Aborted
        )
    }
}
