//! Inputs and effects of automatic allocation.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::id::{AllocationKey, QueueId, WorkerId};
use crate::scheduler::demand::{QueueDemand, QueueQuery};

/// One event.
#[derive(Clone, Debug)]
pub enum Input {
    /// Tasks were submitted, or the workers changed.
    Changed,
    /// The scheduler's answer to [`Effect::AskDemand`].
    Demand(Vec<QueueDemand>),
    /// Outcome of [`Effect::Submit`].
    Submitted(AllocationKey, SubmitOutcome),
    /// Outcome of [`Effect::Look`].
    Looked(AllocationKey, LookupOutcome),
    /// The batch system's answer to [`Effect::Poll`], per allocation.
    Reported(AllocationKey, Report),
    /// Outcome of [`Effect::Cancel`]: an unknown job counts as canceled.
    Canceled(AllocationKey, Result<(), Box<str>>),
    /// A worker in a batch job connected.
    WorkerConnected {
        /// The batch system's id of the job.
        job: Box<str>,
        /// The worker.
        worker: WorkerId,
        /// Offered units by name.
        resources: BTreeMap<Box<str>, u64>,
        /// Its lifetime; `None` = as long as its allocation.
        lifetime: Option<Duration>,
    },
    /// A worker is gone.
    WorkerLost {
        /// The batch system's id of its job.
        job: Box<str>,
        /// The worker.
        worker: WorkerId,
        /// It went without a goodbye.
        crashed: bool,
        /// How long it was connected.
        lived: Duration,
        /// It received a task at least once.
        used: bool,
    },
    /// [`super::AutoallocState::next_deadline`] has passed.
    Timer,
}

/// Outcome of a submission.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SubmitOutcome {
    /// The batch system's id of the job.
    Accepted(Box<str>),
    /// No job exists, for certain.
    Refused(Box<str>),
    /// The batch system is unreachable: no job exists, and none was rejected.
    Unreachable(Box<str>),
    /// A job may exist: no answer, or an unreadable one.
    Unclear(Box<str>),
}

/// Outcome of a search for a job by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LookupOutcome {
    /// The job has this id.
    Found(Box<str>),
    /// The batch system answered and has no such job.
    Absent,
    /// It did not answer.
    Error(Box<str>),
}

/// State of a job according to the batch system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Report {
    /// It waits (or is held, or requeued), with the reason if known.
    Queued(Box<str>),
    /// It runs.
    Running,
    /// It has nodes, and its processes are suspended.
    Suspended,
    /// It is about to end, or to be requeued.
    Completing,
    /// It succeeded.
    Finished,
    /// It failed or was canceled.
    Failed {
        /// Reason.
        text: Box<str>,
        /// The batch system may start it again.
        may_return: bool,
    },
    /// The batch system explicitly does not know this id.
    Missing,
    /// The id belongs to a job with another name or directory, given in the text.
    Foreign(Box<str>),
    /// The answer does not mention the id, which does not prove that the job is gone.
    Silent,
    /// It knows the job, but the rest of the answer is unreadable.
    Unreadable(Box<str>),
    /// No answer, or an unreadable one.
    Error(Box<str>),
}

/// Level of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// Normal operation.
    Info,
    /// Worth a look.
    Warn,
    /// A failure.
    Error,
}

/// Recorded events of an allocation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AllocationEvent {
    /// The batch system accepted it.
    Queued {
        /// Number of the allocation in its queue.
        key: AllocationKey,
        /// The batch system's id.
        job: Box<str>,
        /// Requested workers.
        workers: u32,
    },
    /// Its first worker connected.
    Started {
        /// The allocation that runs.
        key: AllocationKey,
        /// The batch system's id.
        job: Box<str>,
    },
    /// It has ended.
    Finished {
        /// The ended allocation.
        key: AllocationKey,
        /// The batch system's id.
        job: Box<str>,
    },
}

/// Actions for the shell.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// Query the scheduler; answered by [`Input::Demand`].
    AskDemand(Vec<QueueQuery>),
    /// Record the allocation, then submit it; answered by [`Input::Submitted`].
    Submit {
        /// The allocation to submit.
        key: AllocationKey,
        /// Workers, one per node.
        workers: u32,
    },
    /// Search for a submission's job by name; answered by [`Input::Looked`].
    Look(AllocationKey),
    /// Query the states of jobs; answered by one [`Input::Reported`] each.
    Poll {
        /// Their queue.
        queue: QueueId,
        /// Keys of the allocations, with the batch system's ids.
        jobs: Vec<(AllocationKey, Box<str>)>,
    },
    /// Cancel a job; answered by [`Input::Canceled`].
    Cancel {
        /// The allocation to cancel.
        key: AllocationKey,
        /// The batch system's id.
        job: Box<str>,
    },
    /// Record an event.
    Event(AllocationEvent),
    /// Store the queue and its allocations again: something changed.
    Changed(QueueId),
    /// Log a message for users.
    Tell(Level, String),
}
