//! The server's record of a task that it sent to a worker.

use super::Worker;
use crate::class::QueueKey;
use crate::id::{InstanceId, JobId, TaskId, TaskKey};
use crate::job::TaskSlot;
use crate::time::Time;

/// Whether a task on a worker waits for its predecessor there.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Turn {
    /// No: it can start when the resources are free.
    #[default]
    Now,
    /// The predecessor has not finished.
    Later,
    /// Like [`Self::Later`]; at its turn further successors are sent.
    LaterWithMore,
}

/// Ends of dependencies that must be on disk before a task is sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum AwaitedEnds {
    /// None. Ends on the worker itself need not be: if it is lost with its report of them,
    /// everything that followed there is lost as well.
    None,
    /// Ends on other workers.
    Elsewhere,
    /// All: its own may be lost as well, because it does not keep them until they are stored.
    All,
}

/// A task on a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Assigned {
    /// Where the task is in its job.
    pub slot: TaskSlot,
    /// Queue it came from.
    pub key: QueueKey,
    /// Chosen variant.
    pub variant: u32,
    /// Instance that was handed out.
    pub instance: InstanceId,
    /// Whether its resources count as used; otherwise it is in the backlog, unless its turn is
    /// later.
    pub placed: bool,
    /// Whether it waits for a predecessor there, whose place it will take.
    pub turn: Turn,
    /// Whether the worker reported its start.
    pub started: bool,
    /// Ends that its message may still wait for. Successors sent after it wait for the same.
    pub awaits: AwaitedEnds,
    /// Whether it is being retracted.
    pub retracting: bool,
    /// Time of its sending, of its placement, or of its turn.
    pub at: Time,
}

impl Assigned {
    /// A task that a worker of an earlier run of the server has, or may have.
    pub(crate) const fn restored(
        slot: TaskSlot,
        key: QueueKey,
        variant: u32,
        instance: InstanceId,
    ) -> Self {
        Self {
            slot,
            key,
            variant,
            instance,
            placed: false,
            turn: Turn::Now,
            started: false,
            awaits: AwaitedEnds::None,
            retracting: false,
            // Long ago; the monotonic clock of the earlier run is not comparable.
            at: Time(0),
        }
    }

    /// Whether an earlier run of the server sent it.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn was_restored(&self) -> bool {
        self.at == Time(0)
    }
}

impl Worker {
    /// Tasks of a job on it.
    pub(crate) fn assigned_of(&self, job: JobId) -> impl Iterator<Item = (&TaskKey, &Assigned)> {
        let [first, last] = [0, u32::MAX].map(|task| TaskKey::new(job, TaskId(task)));
        self.assigned.range(first..=last)
    }
}
