//! What the server knows of a task that it handed to a worker.

use super::Worker;
use crate::class::QueueKey;
use crate::id::{InstanceId, JobId, TaskId, TaskKey};
use crate::job::TaskSlot;
use crate::time::Time;

/// Whether a task that was handed out waits for one that it goes on from, on the same worker.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Turn {
    /// It can start as soon as there is room.
    #[default]
    Now,
    /// The other one has not finished.
    Later,
    /// The same, and when it is its turn more is sent.
    LaterWithMore,
}

/// Ends of other tasks that have to be on disk before a worker is sent what goes on from them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum AwaitedEnds {
    /// None. Those of the worker itself need not be: one that is lost with its report of them is lost with all that followed there.
    None,
    /// Those of tasks that ran on other workers.
    Elsewhere,
    /// All: its own may be lost as well, because it does not keep them until they are stored.
    All,
}

/// One task handed to a worker.
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
    /// Whether its resources are counted as taken; otherwise it is in the backlog, unless its turn is later.
    pub placed: bool,
    /// Whether it has to wait for another one there, of which it takes the place.
    pub turn: Turn,
    /// Whether the worker reported its start.
    pub started: bool,
    /// Ends that its message may still wait for. What is sent ahead of its turn behind it waits for the same.
    pub awaits: AwaitedEnds,
    /// Whether the worker was asked to give it back.
    pub retracting: bool,
    /// When it was handed out, or counted as placed, or when its turn came.
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
            // Long ago; the clock of that time is not ours.
            at: Time(0),
        }
    }

    /// Whether an earlier run of the server handed it out.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn was_restored(&self) -> bool {
        self.at == Time(0)
    }
}

impl Worker {
    /// Tasks of a job handed to it.
    pub(crate) fn assigned_of(&self, job: JobId) -> impl Iterator<Item = (&TaskKey, &Assigned)> {
        let [first, last] = [0, u32::MAX].map(|task| TaskKey::new(job, TaskId(task)));
        self.assigned.range(first..=last)
    }
}
