//! Changes of durable state, as values: all that must outlive the server.
//!
//! The state machine emits a [`Change`] in an [`super::Effect::Persist`] ahead of everything that
//! reveals it. Applying the stored changes in order, through [`super::restore`], gives the state again.

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
    /// A worker gets no new tasks and ends when what runs on it has ended.
    WorkerDraining(WorkerId),
    /// A worker gets no new tasks for a while.
    WorkerQuarantined(Box<Quarantine>),
    /// A worker that was set aside gets tasks again, or is gone and another one came in its place.
    WorkerReleased {
        /// Id of the worker.
        worker: WorkerId,
        /// Why, a sentence without full stop.
        why: Box<str>,
    },
    /// A worker seems broken, and gets tasks all the same; told, not kept.
    WorkerSuspected {
        /// Id of the worker.
        worker: WorkerId,
        /// Why, a sentence without full stop.
        why: Box<str>,
    },
    /// A worker told what its machine is busy with.
    WorkerOverview {
        /// The worker on that machine.
        worker: WorkerId,
        /// The usage that it measured.
        usage: Box<HardwareUsage>,
    },
    /// An open job without tasks was made.
    JobOpened {
        /// Id that it got.
        job: JobId,
        /// Name of the job.
        name: Box<str>,
        /// Failed tasks tolerated.
        max_fails: Option<u32>,
    },
    /// Tasks were added; a new, closed job is made with its first submit.
    Submitted {
        /// Id of the job.
        job: JobId,
        /// Whether this submit made the job.
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
        /// Its body as the store keeps it, if that was made before.
        encoded: Option<super::EncodedBody>,
    },
    /// A submit of a task was made once more, by a later attempt of it: it is not added a second time.
    SubmitRepeated {
        /// Job of the task and of its submit.
        job: JobId,
        /// Position of the submit in the job.
        number: u32,
        /// The attempt that made it last.
        instance: InstanceId,
    },
    /// The submit before this has a key.
    SubmitKeyed {
        /// The job that it made or extended.
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
    /// No task of a job is waiting or running any more; told to those who listen, not stored.
    JobIdle(JobId),
    /// Tasks of a job were submitted again.
    JobResubmitted {
        /// Job that they are of.
        job: JobId,
        /// The job that they are in now, too.
        new: JobId,
    },
    /// Somebody knows of a problem, or does not any more.
    ProblemAcknowledged {
        /// Id of the problem.
        problem: Box<str>,
        /// How much of it there was; `None` = taken back.
        part: Option<u64>,
    },
    /// A token for programs was made or revoked.
    TokenChanged {
        /// Name of the token.
        name: Box<str>,
        /// Record of the token, which only the shell understands; `None` = revoked.
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
    /// A multi-node task is about to be handed out: from now on its workers are kept for it.
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
        /// Whether it counts as finished, otherwise as failed.
        is_finished: bool,
        /// Who can go on because of it.
        awaited: EndAwaited,
    },
    /// An instance that had started, or that had nodes, was given up; the task waits again.
    TaskRequeued {
        /// Job and id of the task.
        task: TaskKey,
        /// The next instance.
        instance: InstanceId,
        /// Losses of workers that counted.
        crash_count: u32,
        /// Attempts that failures led to.
        retry_count: u32,
        /// How the last one ended, if that is known.
        attempt: Option<Attempt>,
        /// Grant of the next instance, if that is more than the last one had.
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
    /// A task sent a message; told to those who listen, not stored.
    TaskNotified {
        /// Job and id of the task.
        task: TaskKey,
        /// Where it runs.
        worker: WorkerId,
        /// Text of the message, any bytes.
        message: Arc<[u8]>,
    },
    /// A worker of an earlier run was given up, and with it what it may have started (`true`); or all that waits is at another
    /// instance since (`false`).
    StartsUnknown(bool),
    /// All that waits of a submit starts as a later instance than before.
    WaitingSuperseded {
        /// Id of the job.
        job: JobId,
        /// Position of the submit in the job.
        number: u32,
        /// First instance of tasks that were never handed out.
        first: InstanceId,
    },
    /// Something about automatic allocation, which keeps its own state.
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
    /// Everything that is to be kept of a queue.
    QueueStored {
        /// Queue id.
        queue: QueueId,
        /// Bytes that only automatic allocation understands.
        record: Box<[u8]>,
    },
    /// A queue was removed; its id is not used again.
    QueueRemoved(QueueId),
    /// Something in the life of an allocation.
    Event(AllocationEvent),
}

/// Who can go on because a task has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndAwaited {
    /// Nobody.
    No,
    /// Tasks of the same job. Where the task ran they may start at once: a worker that is lost with its report of this end is lost
    /// with all that followed from it there.
    ByTasks,
    /// Another job, or tasks of it.
    ByJobs,
}

impl ChangeKind {
    /// Whether a task can run on account of it that may be sent to a worker which does not know of it.
    pub(super) const fn frees_tasks(&self) -> bool {
        matches!(
            self,
            Self::TaskEnded {
                awaited: EndAwaited::ByTasks,
                ..
            }
        )
    }

    /// Whether it must be durable before dependent effects are released: somebody hears of it who does not keep it. The
    /// others can wait for a batch, because a worker repeats them until they are acknowledged.
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
