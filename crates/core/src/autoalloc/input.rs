//! The inputs and effects of automatic allocation.

use std::sync::Arc;
use std::time::Duration;

use crate::batch::QueueParams;
use crate::id::{AllocationKey, QueueId, WorkerId};
use crate::scheduler::demand::{QueueDemand, QueueQuery};
use crate::worker_config::WorkerConfig;

/// A change of a queue that a user requests.
#[derive(Clone, PartialEq, Debug)]
pub enum QueueCommand {
    /// Creates a queue.
    Add(Arc<QueueParams>),
    /// Removes a queue and cancels its allocations.
    Remove {
        /// The queue to remove.
        queue: QueueId,
        /// Removes the queue even if allocations are running.
        force: bool,
    },
    /// Stops submitting allocations.
    Pause(QueueId),
    /// Resumes submitting allocations.
    Resume(QueueId),
}

/// An event.
#[derive(Clone, Debug)]
pub enum Input {
    /// Tasks were submitted, or the workers changed.
    Changed,
    /// The scheduler's answer to [`Effect::AskDemand`].
    Demand(Vec<QueueDemand>),
    /// The outcome of [`Effect::Submit`].
    Submitted(AllocationKey, SubmitOutcome),
    /// The outcome of [`Effect::Look`].
    Looked(AllocationKey, LookupOutcome),
    /// The batch system's answer to [`Effect::Poll`], for each allocation.
    Reported(AllocationKey, Report),
    /// The outcome of [`Effect::Cancel`]. An unknown job counts as canceled.
    Canceled(AllocationKey, Result<(), Box<str>>),
    /// The stopping server has canceled the allocation. This counts as no failure.
    Closed(AllocationKey),
    /// A worker in a batch job connected.
    WorkerConnected {
        /// The batch system's id of the job.
        job: Box<str>,
        /// The worker.
        worker: WorkerId,
        /// The configuration of the worker.
        config: Arc<WorkerConfig>,
    },
    /// A worker in a batch job is gone.
    WorkerLost {
        /// The batch system's id of its job.
        job: Box<str>,
        /// The worker.
        worker: WorkerId,
        /// Whether it left without a goodbye.
        crashed: bool,
        /// How long it was connected.
        lived: Duration,
        /// Whether it received at least one task.
        used: bool,
    },
    /// [`super::AutoallocState::next_deadline`] has passed.
    Timer,
}

/// The outcome of a submission.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SubmitOutcome {
    /// The submission was accepted with this id.
    Accepted(Box<str>),
    /// The submission was rejected, and certainly no job exists.
    Refused(Box<str>),
    /// The batch system could not be reached: no job exists, and no job was rejected.
    Unreachable(Box<str>),
    /// There was no answer, or an unreadable one, so a job may exist.
    Unclear(Box<str>),
}

/// The outcome of a search for a job by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LookupOutcome {
    /// The job has this id.
    Found(Box<str>),
    /// The batch system answered and has no such job.
    Absent,
    /// The batch system did not answer.
    Error(Box<str>),
}

/// The state of a job according to the batch system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Report {
    /// The job waits (or is held, or requeued), with the reason if it is known.
    Queued(Box<str>),
    /// The job is running.
    Running,
    /// The job has nodes, but its processes are suspended. With the batch system's words.
    Suspended(Box<str>),
    /// The job is about to end or to be requeued. With the batch system's words.
    Completing(Box<str>),
    /// The job succeeded. With the batch system's words.
    Finished(Box<str>),
    /// The job failed or was canceled.
    Failed {
        /// The reason.
        text: Box<str>,
        /// Whether the batch system may start the job again.
        may_return: bool,
    },
    /// The batch system says explicitly that it does not know this id.
    Missing,
    /// The id belongs to a job with another name or directory, given in the text.
    Foreign(Box<str>),
    /// The answer does not mention the id, which does not prove that the job is gone.
    Silent,
    /// The batch system knows the job, but the rest of the answer is unreadable.
    Unreadable(Box<str>),
    /// There was no answer, or an unreadable one.
    Error(Box<str>),
}

impl Report {
    /// Returns what the batch system says about the job. `None` if it says nothing new.
    pub(super) fn words(&self) -> Option<&str> {
        match self {
            Self::Queued(words)
            | Self::Suspended(words)
            | Self::Completing(words)
            | Self::Finished(words)
            | Self::Failed { text: words, .. }
            | Self::Foreign(words) => Some(words),
            Self::Running => Some(""),
            Self::Missing | Self::Silent | Self::Unreadable(_) | Self::Error(_) => None,
        }
    }
}

/// An event of an allocation that is recorded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AllocationEvent {
    /// The batch system accepted the allocation.
    Queued {
        /// The allocation.
        key: AllocationKey,
        /// The batch system's id.
        job: Box<str>,
        /// The number of requested workers.
        workers: u32,
    },
    /// The first worker of the allocation connected.
    Started {
        /// The allocation.
        key: AllocationKey,
        /// The batch system's id.
        job: Box<str>,
    },
    /// The allocation has ended.
    Finished {
        /// The allocation.
        key: AllocationKey,
        /// The batch system's id.
        job: Box<str>,
    },
}

/// An action for the shell.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// Queries the scheduler. [`Input::Demand`] is the answer.
    AskDemand(Vec<QueueQuery>),
    /// Records the allocation and then submits it. [`Input::Submitted`] is the answer.
    Submit {
        /// The allocation to submit.
        key: AllocationKey,
        /// The number of workers, one per node.
        workers: u32,
    },
    /// Searches for a submission's job by name. [`Input::Looked`] is the answer.
    Look(AllocationKey),
    /// Queries the states of jobs. Each of them is answered by an [`Input::Reported`].
    Poll {
        /// The queue of the jobs.
        queue: QueueId,
        /// The allocations, with the batch system's ids.
        jobs: Vec<(AllocationKey, Box<str>)>,
    },
    /// Cancels a job. [`Input::Canceled`] is the answer.
    Cancel {
        /// The allocation to cancel.
        key: AllocationKey,
        /// The batch system's id.
        job: Box<str>,
    },
    /// Records an event.
    Event(AllocationEvent),
    /// An allocation has ended or was refused. Its directory is kept for a while.
    Retire(Box<[u8]>),
    /// Stores the queue and its allocations again, because something changed.
    Changed(QueueId),
}
