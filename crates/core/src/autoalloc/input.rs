//! Inputs and effects of automatic allocation: closed sets.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::id::{AllocationKey, QueueId, WorkerId};
use crate::scheduler::demand::{QueueDemand, QueueQuery};

/// One thing that happened.
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
    /// The batch system's answer to [`Effect::Poll`], for one allocation.
    Reported(AllocationKey, Report),
    /// Outcome of [`Effect::Cancel`]: an unknown job counts as canceled.
    Canceled(AllocationKey, Result<(), Box<str>>),
    /// A worker connected from inside a job.
    WorkerConnected {
        /// The batch system's id of the job.
        job: Box<str>,
        /// The worker.
        worker: WorkerId,
        /// Units it offers, by name.
        resources: BTreeMap<Box<str>, u64>,
        /// How long it will live; `None` = as long as its allocation.
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
        /// It was given a task at least once.
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
    /// There is no job, for certain.
    Refused(Box<str>),
    /// The batch system could not be asked: there is no job, and nobody said no.
    Unreachable(Box<str>),
    /// There may be one: no answer, or none that makes sense.
    Unclear(Box<str>),
}

/// Outcome of the search for a job by its name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LookupOutcome {
    /// There is one with this id.
    Found(Box<str>),
    /// The batch system answered and knows none.
    Absent,
    /// It did not answer.
    Error(Box<str>),
}

/// State of a job according to the batch system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Report {
    /// It waits (or is held, or requeued); the text says why, if known.
    Queued(Box<str>),
    /// It runs.
    Running,
    /// It has nodes, and its processes are stopped for a while.
    Suspended,
    /// It is about to end, or to be requeued.
    Completing,
    /// It ended well.
    Finished,
    /// It ended otherwise.
    Failed {
        /// How.
        text: Box<str>,
        /// The batch system may start it again by itself.
        may_return: bool,
    },
    /// The batch system says of this id that it does not know it.
    Missing,
    /// The id belongs to a job of another name or directory, which the text names.
    Foreign(Box<str>),
    /// It answered, and said nothing of the id. That is no evidence that there is no such job.
    Silent,
    /// It knows the job, and the rest of the answer cannot be read.
    Unreadable(Box<str>),
    /// It did not answer, or not in a way that makes sense.
    Error(Box<str>),
}

/// How loudly to tell.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// Everything is as it should be.
    Info,
    /// Somebody may want to look.
    Warn,
    /// Something did not work.
    Error,
}

/// Recorded events of an allocation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AllocationEvent {
    /// The batch system took it.
    Queued {
        /// Number of the allocation in its queue.
        key: AllocationKey,
        /// The batch system's id.
        job: Box<str>,
        /// Workers asked for.
        workers: u32,
    },
    /// Its first worker connected.
    Started {
        /// The allocation that runs.
        key: AllocationKey,
        /// The batch system's id.
        job: Box<str>,
    },
    /// It is over.
    Finished {
        /// The allocation that is over.
        key: AllocationKey,
        /// The batch system's id.
        job: Box<str>,
    },
}

/// Actions that the shell has to carry out.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// Ask the scheduler; answered by [`Input::Demand`].
    AskDemand(Vec<QueueQuery>),
    /// Record the allocation, then submit it; answered by [`Input::Submitted`].
    Submit {
        /// The allocation to submit.
        key: AllocationKey,
        /// Workers, one a node.
        workers: u32,
    },
    /// Look for the job of a submission by its name; answered by [`Input::Looked`].
    Look(AllocationKey),
    /// Ask for the states of jobs; answered by [`Input::Reported`] for each.
    Poll {
        /// Queue of all of them.
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
    /// Record.
    Event(AllocationEvent),
    /// A queue or an allocation changed: what is stored of it is out of date.
    Changed(QueueId),
    /// Tell people.
    Tell(Level, String),
}
