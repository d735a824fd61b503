//! The server's record of a task that it sent to a worker.

use super::Worker;
use crate::bound::SetId;
use crate::class::QueueKey;
use crate::id::{InstanceId, JobId, TaskId, TaskKey};
use crate::job::TaskSlot;
use crate::time::Time;

/// Whether a task on a worker waits for its predecessor there.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Turn {
    /// The task does not wait, and can start when the resources are free.
    #[default]
    Now,
    /// The predecessor has not finished.
    Later,
    /// Like [`Self::Later`], but further successors are sent when the task's turn comes.
    LaterWithMore,
}

/// The ends of dependencies that must be on disk before a task is sent.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum AwaitedEnds {
    /// No ends of dependencies need to be on disk. If the worker is lost together with its report
    /// of such ends, all tasks that followed there are lost as well.
    None,
    /// The ends of dependencies on other workers must be on disk.
    Elsewhere,
    /// The ends of all dependencies must be on disk. Those on the worker itself may be lost too,
    /// because it does not keep them until they are stored.
    All,
}

/// A task on a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Assigned {
    /// The position of the task in its job.
    pub slot: TaskSlot,
    /// The queue that the task came from.
    pub key: QueueKey,
    /// The chosen variant.
    pub variant: u32,
    /// The dispatched instance.
    pub instance: InstanceId,
    /// Whether the task's resources count as used. Otherwise, the task is in the backlog, unless
    /// its turn comes later.
    pub placed: bool,
    /// Whether the task waits for a predecessor there, whose place it will take.
    pub turn: Turn,
    /// Whether the worker has reported the start.
    pub started: bool,
    /// The ends of dependencies for which the task's message may still have to wait. Successors
    /// sent after it wait for the same ends.
    pub awaits: AwaitedEnds,
    /// Whether the task is being retracted.
    pub retracting: bool,
    /// When the task was sent or placed, or when its turn came.
    pub at: Time,
    /// The limits whose places the task takes when it is its turn.
    pub limits: SetId,
}

impl Assigned {
    /// Creates the record of a task that a worker of an earlier server run has, or may have.
    pub(crate) const fn restored(
        slot: TaskSlot,
        key: QueueKey,
        variant: u32,
        instance: InstanceId,
        limits: SetId,
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
            // The task was sent long ago. The monotonic clock of the earlier run is not comparable.
            at: Time(0),
            limits,
        }
    }

    /// Returns whether an earlier server run sent the task.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn was_restored(&self) -> bool {
        self.at == Time(0)
    }
}

impl Worker {
    /// Returns the tasks of a job on this worker, to change them.
    pub(crate) fn assigned_of_mut(
        &mut self,
        job: JobId,
    ) -> impl Iterator<Item = (&TaskKey, &mut Assigned)> {
        let [first, last] = [0, u32::MAX].map(|task| TaskKey::new(job, TaskId(task)));
        self.assigned.range_mut(first..=last)
    }

    /// Returns the tasks of a job on this worker.
    pub(crate) fn assigned_of(&self, job: JobId) -> impl Iterator<Item = (&TaskKey, &Assigned)> {
        let [first, last] = [0, u32::MAX].map(|task| TaskKey::new(job, TaskId(task)));
        self.assigned.range(first..=last)
    }
}
