//! Identifiers of jobs, tasks, instances, workers and allocations.
//!
//! All are dense `u32` counters. Job and worker ids start at 1 and are never reused within the life
//! of a server; task ids are chosen by the user inside a job; instance ids count the starts of a
//! task.

use std::fmt;

macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub struct $name(pub u32);

        impl $name {
            /// The id as the plain number that users see.
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
    /// Names a job; starts at 1, grows, is never reused.
    JobId
);
id_type!(
    /// Names a task inside its job; chosen by the user or assigned at submit.
    TaskId
);
id_type!(
    /// Counts the starts of one task from 0 and fences results of superseded starts.
    InstanceId
);
id_type!(
    /// Names a worker; starts at 1, grows, is never reused.
    WorkerId
);
id_type!(
    /// Names a queue of automatic allocation; starts at 1, grows, is never reused.
    QueueId
);

/// An allocation of a queue, numbered from 1 in the order of submission.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct AllocationKey {
    /// Queue it belongs to.
    pub queue: QueueId,
    /// Number within the queue.
    pub number: u32,
}

impl fmt::Display for AllocationKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.queue, self.number)
    }
}

/// A task in the whole server: job and task id, shown as `JOB@TASK`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TaskKey {
    /// Job the task belongs to.
    pub job: JobId,
    /// Id of the task inside the job.
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
    /// The instance of the next start; saturates instead of wrapping.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}
