//! The ids of jobs, tasks, instances, workers and allocations.
//!
//! All ids are dense `u32` counters. Job and worker ids start at 1 and are never reused during the
//! life of a server. Users choose task ids within a job. Instance ids count the starts of a task.

use std::fmt;

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(pub u32);

        impl $name {
            /// Returns the id as the plain number that users see.
            #[must_use]
            pub const fn as_u32(self) -> u32 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl From<u32> for $name {
            fn from(value: u32) -> Self {
                Self(value)
            }
        }
    };
}

id_type!(
    /// The id of a job. Ids start at 1, increase, and are never reused.
    JobId
);
id_type!(
    /// The id of a task in its job. The user chooses it, or the server assigns it at submission.
    TaskId
);
id_type!(
    /// The number of a start of a task, counted from 0. It identifies results of superseded starts.
    InstanceId
);
id_type!(
    /// The id of a worker. Ids start at 1, increase, and are never reused.
    WorkerId
);
id_type!(
    /// The id of a queue of automatic allocation. Ids start at 1, increase, and are never reused.
    QueueId
);

/// An allocation of a queue, numbered from 1 in the order of submission.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AllocationKey {
    /// The queue of the allocation.
    pub queue: QueueId,
    /// The number in the queue.
    pub number: u32,
}

impl fmt::Display for AllocationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.queue, self.number)
    }
}

/// A task in the whole server: the job and task id, shown as `JOB@TASK`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TaskKey {
    /// The job of the task.
    pub job: JobId,
    /// The id of the task in the job.
    pub task: TaskId,
}

impl TaskKey {
    /// Combines the two ids.
    #[must_use]
    pub const fn new(job: JobId, task: TaskId) -> Self {
        Self { job, task }
    }
}

impl fmt::Display for TaskKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.job, self.task)
    }
}

impl InstanceId {
    /// Returns the instance of the next start. Saturates instead of wrapping.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}
