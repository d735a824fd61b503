//! The states of a task: internal and visible ones.

/// The visible state of a task.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum TaskState {
    /// The task is blocked by dependencies, has no suitable worker, or is queued on a worker.
    #[default]
    Waiting,
    /// The task is on a worker with room for it. Its program runs or is about to run.
    Running,
    /// The task ended with exit code 0.
    Finished,
    /// The task ended by itself in any other way.
    Failed,
    /// The user canceled the task.
    Canceled,
    /// The server aborted the task.
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

    /// Returns the number in rows of the store and in the web interface. It never changes, because
    /// files contain it.
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

    /// Returns the state with this [`number`](Self::number).
    #[must_use]
    pub fn from_number(number: i64) -> Option<Self> {
        Self::ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Returns the name for users and programs, such as `finished`.
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

    /// Returns the state with this [`name`](Self::name).
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.name() == name)
    }
}

/// The state of a task inside the server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// The task is blocked or ready.
    Waiting,
    /// The task is on a worker, where it waits for other tasks.
    Queued,
    /// The task is on a worker that has room for it, but its start has not been reported.
    Placed,
    /// The task was reported as started.
    Running,
    /// The task ended with exit code 0.
    Finished,
    /// The task ended by itself in any other way.
    Failed,
    /// The user canceled the task.
    Canceled,
    /// The server aborted the task.
    Aborted,
}

impl Phase {
    /// Returns the state that users see.
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

    /// Returns whether a worker has the task but has not reported its start.
    #[must_use]
    pub const fn is_sent(self) -> bool {
        matches!(self, Self::Queued | Self::Placed)
    }

    /// Returns whether the task has ended and will not change anymore.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(
            self,
            Self::Finished | Self::Failed | Self::Canceled | Self::Aborted
        )
    }
}
