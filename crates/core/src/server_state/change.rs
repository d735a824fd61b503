//! Changes of durable state, as values: everything that must survive the server.
//!
//! The state machine emits a [`Change`] in an [`super::Effect::Persist`] before any effect that
//! reveals it. [`super::restore`] rebuilds the state from the stored changes in order.

use std::sync::Arc;

use super::SubmitKey;
use crate::autoalloc::AllocationEvent;
use crate::growth::Grant;
use crate::hardware::HardwareUsage;
use crate::id::{InstanceId, JobId, QueueId, TaskKey, WorkerId};
use crate::outcome::LostReason;
use crate::quarantine::Quarantine;
use crate::range::IdArray;
use crate::task::{Attempt, TaskEnd, TaskState};
use crate::template::{NotifyEvent, SubmitSpec};
use crate::time::Timestamp;
use crate::worker_config::WorkerConfig;

/// One change of durable state.
#[derive(Clone, Debug)]
pub struct Change {
    /// When it happened.
    pub at: Timestamp,
    /// Kind of the change, with its data.
    pub kind: ChangeKind,
}

/// Kind of a change, with its data.
#[derive(Clone, Debug)]
pub enum ChangeKind {
    /// A worker registered.
    WorkerConnected {
        /// Id that it got.
        worker: WorkerId,
        /// Configuration that it reported.
        config: Arc<WorkerConfig>,
    },
    /// A worker is gone.
    WorkerLost {
        /// The worker that is gone.
        worker: WorkerId,
        /// Reason of the loss.
        reason: LostReason,
    },
    /// A worker is drained: it gets no new tasks and ends when its tasks have ended.
    WorkerDraining(WorkerId),
    /// A worker is in quarantine.
    WorkerQuarantined(Box<Quarantine>),
    /// The quarantine of a worker is over, or another worker took it over.
    WorkerReleased {
        /// Id of the worker.
        worker: WorkerId,
        /// Why, a sentence without full stop.
        why: Box<str>,
    },
    /// A worker seems broken but still gets tasks; reported, not stored.
    WorkerSuspected {
        /// Id of the worker.
        worker: WorkerId,
        /// Why, a sentence without full stop.
        why: Box<str>,
    },
    /// A worker reported the load of its machine.
    WorkerOverview {
        /// The worker on that machine.
        worker: WorkerId,
        /// The usage that it measured.
        usage: Box<HardwareUsage>,
    },
    /// An open job without tasks was created.
    JobOpened {
        /// Id that it got.
        job: JobId,
        /// Name of the job.
        name: Box<str>,
        /// Failed tasks tolerated.
        max_fails: Option<u32>,
    },
    /// Tasks were added; a new, closed job is created by its first submit.
    Submitted {
        /// Id of the job.
        job: JobId,
        /// Whether this submit created the job.
        is_new: bool,
        /// Name of the job.
        name: Box<str>,
        /// Failed tasks tolerated by the job.
        max_fails: Option<u32>,
        /// Position of the submit in the job.
        number: u32,
        /// Ids that the tasks got.
        ids: IdArray,
        /// The submit as requested.
        spec: Arc<SubmitSpec>,
        /// Its body as encoded for the store, if that was done before.
        encoded: Option<super::EncodedBody>,
    },
    /// A later attempt of a task repeated its submit: it is not added again.
    SubmitRepeated {
        /// Job of the task and of its submit.
        job: JobId,
        /// Position of the submit in the job.
        number: u32,
        /// The latest attempt that made it.
        instance: InstanceId,
    },
    /// The submit before this has a key.
    SubmitKeyed {
        /// The created or extended job.
        job: JobId,
        /// Key of the submit.
        key: SubmitKey,
    },
    /// An open job was closed.
    JobClosed(JobId),
    /// A cancel ended tasks of a job; the tasks follow as [`ChangeKind::TasksDropped`].
    JobCanceled {
        /// Id of the job.
        job: JobId,
        /// Reason of the user; may be empty.
        reason: Box<str>,
    },
    /// A closed job has no unfinished task any more.
    JobCompleted(JobId),
    /// A notification was delivered or given up.
    JobNotified {
        /// The notification and its job.
        key: super::NoticeKey,
        /// Event of the notification.
        event: NotifyEvent,
        /// Outcome of the notification.
        outcome: super::NoticeOutcome,
    },
    /// A job has no waiting or running tasks left; published as an event, not stored.
    JobIdle(JobId),
    /// Tasks of a job were submitted again.
    JobResubmitted {
        /// Job that they are of.
        job: JobId,
        /// The job that resubmits them.
        new: JobId,
    },
    /// A problem was acknowledged, or the acknowledgement was withdrawn.
    ProblemAcknowledged {
        /// Id of the problem.
        problem: Box<str>,
        /// Its extent at that time; `None` = withdrawn.
        part: Option<u64>,
    },
    /// A token for programs was created or revoked.
    TokenChanged {
        /// Name of the token.
        name: Box<str>,
        /// Record of the token, opaque to the core; `None` = revoked.
        record: Option<Box<str>>,
    },
    /// Jobs were forgotten.
    JobsForgotten(Vec<JobId>),
    /// An instance started.
    TaskStarted {
        /// Job and id of the task.
        task: TaskKey,
        /// Number of the instance.
        instance: InstanceId,
        /// Variant of its resource request.
        variant: u32,
        /// Where; of a multi-node task the root.
        worker: WorkerId,
        /// All workers of a multi-node task, the root first; empty for others.
        nodes: Box<[WorkerId]>,
    },
    /// A multi-node task is about to be sent: its workers are reserved from now on.
    NodesAssigned {
        /// Job and id of the task.
        task: TaskKey,
        /// Number of the instance.
        instance: InstanceId,
        /// Variant of its resource request.
        variant: u32,
        /// Workers of the task, the root first.
        nodes: Box<[WorkerId]>,
    },
    /// A task finished or failed.
    TaskEnded {
        /// Job and id of the task.
        task: TaskKey,
        /// Last instance.
        instance: InstanceId,
        /// Where it ran.
        worker: WorkerId,
        /// Losses of workers that counted.
        crash_count: u32,
        /// End of the task.
        end: TaskEnd,
        /// Whether it counts as finished; otherwise as failed.
        is_finished: bool,
        /// Which tasks it can release.
        awaited: EndAwaited,
    },
    /// A started instance, or one with nodes, was given up; the task waits again.
    TaskRequeued {
        /// Job and id of the task.
        task: TaskKey,
        /// The next instance.
        instance: InstanceId,
        /// Losses of workers that counted.
        crash_count: u32,
        /// Attempts that failures led to.
        retry_count: u32,
        /// Outcome of the last one, if known.
        attempt: Option<Attempt>,
        /// Grant of the next instance, if larger than that of the last.
        grown: Option<Grant>,
    },
    /// Unfinished tasks ended without an outcome of their own.
    TasksDropped {
        /// Id of the job.
        job: JobId,
        /// Ids of the tasks.
        ids: IdArray,
        /// `Canceled` or `Aborted`.
        to: TaskState,
    },
    /// A task sent a message; published as an event, not stored.
    TaskNotified {
        /// Job and id of the task.
        task: TaskKey,
        /// Where it runs.
        worker: WorkerId,
        /// Text of the message, any bytes.
        message: Arc<[u8]>,
    },
    /// A worker of an earlier run was given up, and with it instances that it may have started
    /// (`true`); or all waiting tasks have other instances since (`false`).
    StartsUnknown(bool),
    /// The next instances of all waiting tasks of a submit were advanced.
    WaitingSuperseded {
        /// Id of the job.
        job: JobId,
        /// Position of the submit in the job.
        number: u32,
        /// First instance of tasks that were never dispatched.
        first: InstanceId,
    },
    /// A change of automatic allocation, which keeps its own state.
    Allocation(AllocationChange),
}

/// Change of an allocation queue or of one of its allocations.
#[derive(Clone, Debug)]
pub enum AllocationChange {
    /// A queue was made.
    QueueCreated {
        /// Id that it got.
        queue: QueueId,
        /// Parameters for the journal, an object in JSON.
        params: Box<str>,
    },
    /// The complete stored state of a queue.
    QueueStored {
        /// Queue id.
        queue: QueueId,
        /// Bytes that only automatic allocation understands; `None` = it was removed, and its
        /// allocations are over.
        record: Option<Box<[u8]>>,
    },
    /// A user removed a queue; its id is not reused.
    QueueRemoved(QueueId),
    /// Something in the life of an allocation.
    Event(AllocationEvent),
}

/// Which tasks can be released by the end of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndAwaited {
    /// None.
    No,
    /// Tasks of the same job. They may start at once on the same worker: if that is lost together
    /// with its report of this end, everything that followed there is lost as well.
    ByTasks,
    /// Another job, or tasks of it.
    ByJobs,
}

impl ChangeKind {
    /// Whether it can release a task for a worker that does not know of this end.
    pub(super) const fn frees_tasks(&self) -> bool {
        matches!(
            self,
            Self::TaskEnded {
                awaited: EndAwaited::ByTasks,
                ..
            }
        )
    }

    /// Whether it must be durable before dependent effects are released, because their recipient
    /// does not keep it. The others can wait for a batch, because a worker repeats them until they
    /// are acknowledged.
    #[must_use]
    pub const fn is_urgent(&self) -> bool {
        match self {
            Self::WorkerConnected { .. }
            | Self::WorkerLost { .. }
            | Self::WorkerDraining(_)
            | Self::WorkerQuarantined(_)
            | Self::WorkerReleased { .. }
            | Self::JobOpened { .. }
            | Self::Submitted { .. }
            | Self::SubmitRepeated { .. }
            | Self::SubmitKeyed { .. }
            | Self::JobClosed(_)
            | Self::JobCanceled { .. }
            | Self::JobsForgotten(_)
            | Self::JobResubmitted { .. }
            | Self::ProblemAcknowledged { .. }
            | Self::TokenChanged { .. }
            | Self::NodesAssigned { .. }
            | Self::TaskRequeued { .. }
            | Self::TasksDropped { .. }
            | Self::StartsUnknown(_)
            | Self::WaitingSuperseded { .. }
            | Self::Allocation(_) => true,
            Self::TaskEnded { awaited, .. } => matches!(awaited, EndAwaited::ByJobs),
            Self::JobCompleted(_)
            | Self::JobNotified { .. }
            | Self::JobIdle(_)
            | Self::TaskStarted { .. }
            | Self::TaskNotified { .. }
            | Self::WorkerSuspected { .. }
            | Self::WorkerOverview { .. } => false,
        }
    }
}
