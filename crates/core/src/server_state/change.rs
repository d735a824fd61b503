//! Changes of the durable state, which consists of everything that must survive the server.
//!
//! The state machine emits a [`Change`] in an [`super::Effect::Persist`] before any effect that
//! reveals the change. [`super::restore`] rebuilds the state from the stored changes in order.

use std::sync::Arc;

use super::SubmitKey;
use crate::autoalloc::{AllocationEvent, QueueRecord};
use crate::batch::QueueParams;
use crate::bound::Bound;
use crate::growth::Grant;
use crate::hardware::HardwareUsage;
use crate::id::{InstanceId, JobId, QueueId, TaskKey, WorkerId};
use crate::job::{Held, JobRevised};
use crate::outcome::LostReason;
use crate::quarantine::Quarantine;
use crate::range::{IdArray, IndexSet};
use crate::task::{Attempt, TaskEnd, TaskState};
use crate::template::{NotifyEvent, SubmitSpec};
use crate::time::Timestamp;
use crate::worker_config::WorkerConfig;

/// A change of the durable state.
#[derive(Clone, Debug)]
pub struct Change {
    /// The time of the change.
    pub at: Timestamp,
    /// The kind of the change, with its data.
    pub kind: ChangeKind,
}

/// The kind of a change, with its data.
#[derive(Clone, Debug)]
pub enum ChangeKind {
    /// A worker registered.
    WorkerConnected {
        /// The id assigned to the worker.
        worker: WorkerId,
        /// The configuration that the worker reported.
        config: Arc<WorkerConfig>,
    },
    /// A worker was lost.
    WorkerLost {
        /// The id of the lost worker.
        worker: WorkerId,
        /// The reason for the loss.
        reason: LostReason,
    },
    /// A worker is being drained: it gets no new tasks and stops when its tasks have ended.
    WorkerDraining(WorkerId),
    /// A worker was put into quarantine.
    WorkerQuarantined(Box<Quarantine>),
    /// The quarantine of a worker ended, or another worker took it over.
    WorkerReleased {
        /// The id of the worker.
        worker: WorkerId,
        /// The reason, as a sentence without a full stop.
        why: Box<str>,
    },
    /// A worker seems broken but still gets tasks. This is reported, not stored.
    WorkerSuspected {
        /// The id of the worker.
        worker: WorkerId,
        /// The reason, as a sentence without a full stop.
        why: Box<str>,
    },
    /// A worker reported the load of its machine.
    WorkerOverview {
        /// The worker that runs on the machine.
        worker: WorkerId,
        /// The measured usage.
        usage: Box<HardwareUsage>,
    },
    /// An open job without tasks was created.
    JobOpened {
        /// The id assigned to the job.
        job: JobId,
        /// The name of the job.
        name: Box<str>,
        /// The number of failed tasks that the job tolerates.
        max_fails: Option<u32>,
    },
    /// Tasks were added. The first submit of a new, closed job also creates the job.
    Submitted {
        /// The id of the job.
        job: JobId,
        /// Whether this submit created the job.
        is_new: bool,
        /// The name of the job.
        name: Box<str>,
        /// The number of failed tasks that the job tolerates.
        max_fails: Option<u32>,
        /// The position of the submit within the job.
        number: u32,
        /// The ids assigned to the tasks.
        ids: IdArray,
        /// The submit as requested.
        spec: Arc<SubmitSpec>,
        /// The body encoded for the store, if it was encoded beforehand.
        encoded: Option<super::EncodedBody>,
    },
    /// A later attempt of a task repeated an earlier submit, which is not added again.
    SubmitRepeated {
        /// The job that contains both the task and its submit.
        job: JobId,
        /// The position of the submit within the job.
        number: u32,
        /// The latest attempt that made the submit.
        instance: InstanceId,
    },
    /// The arguments of calls that have ended were dropped.
    EntriesDropped {
        /// The job of the calls.
        job: JobId,
        /// The position of the submit within the job.
        number: u32,
        /// The positions of the calls within the submit.
        calls: IndexSet,
    },
    /// The submit before this change has a key.
    SubmitKeyed {
        /// The job that the submit created or extended.
        job: JobId,
        /// The key of the submit.
        key: SubmitKey,
    },
    /// An open job was closed.
    JobClosed(JobId),
    /// A cancel ended tasks of a job, which follow as [`ChangeKind::TasksDropped`].
    JobCanceled {
        /// The id of the job.
        job: JobId,
        /// The reason that the user gave, which may be empty.
        reason: Box<str>,
    },
    /// All tasks of a closed job have ended.
    JobCompleted(JobId),
    /// A notification was delivered or given up.
    JobNotified {
        /// The key of the notification, which includes its job.
        key: super::NoticeKey,
        /// The event that caused the notification.
        event: NotifyEvent,
        /// The outcome of the notification.
        outcome: super::NoticeOutcome,
    },
    /// A job has no waiting or running tasks left. This is published as an event, not stored.
    JobIdle(JobId),
    /// Tasks of a job were submitted again.
    JobResubmitted {
        /// The job that contains the tasks.
        job: JobId,
        /// The job that resubmits the tasks.
        new: JobId,
    },
    /// A problem was acknowledged, or its acknowledgement was withdrawn.
    ProblemAcknowledged {
        /// The id of the problem.
        problem: Box<str>,
        /// The extent of the problem at that time, or `None` if the acknowledgement was withdrawn.
        part: Option<u64>,
    },
    /// A token for programs was created or revoked.
    TokenChanged {
        /// The name of the token.
        name: Box<str>,
        /// The record of the token, which is opaque to the core, or `None` if the token was
        /// revoked.
        record: Option<Box<str>>,
    },
    /// Jobs were forgotten.
    JobsForgotten(Vec<JobId>),
    /// An instance started.
    TaskStarted {
        /// The job and id of the task.
        task: TaskKey,
        /// The number of the instance.
        instance: InstanceId,
        /// The number of the variant of the task's resource request.
        variant: u32,
        /// The worker that runs the task, or the root of a multi-node task.
        worker: WorkerId,
        /// All workers of a multi-node task, root first. Empty for other tasks.
        nodes: Box<[WorkerId]>,
    },
    /// A multi-node task is about to be sent. Its workers are reserved from now on.
    NodesAssigned {
        /// The job and id of the task.
        task: TaskKey,
        /// The number of the instance.
        instance: InstanceId,
        /// The number of the variant of the task's resource request.
        variant: u32,
        /// The workers of the task, root first.
        nodes: Box<[WorkerId]>,
    },
    /// A task finished or failed.
    TaskEnded {
        /// The job and id of the task.
        task: TaskKey,
        /// The number of the last instance.
        instance: InstanceId,
        /// The worker that ran the task.
        worker: WorkerId,
        /// The number of worker losses that counted against the task.
        crash_count: u32,
        /// The result of the task.
        end: TaskEnd,
        /// Whether the task counts as finished. Otherwise, it counts as failed.
        is_finished: bool,
        /// Which tasks the completion of this task can release.
        awaited: EndAwaited,
    },
    /// An instance that had started or had nodes was given up. The task waits again.
    TaskRequeued {
        /// The job and id of the task.
        task: TaskKey,
        /// The number of the next instance.
        instance: InstanceId,
        /// The number of worker losses that counted against the task.
        crash_count: u32,
        /// The number of attempts that were caused by failures.
        retry_count: u32,
        /// The outcome of the last attempt, if known.
        attempt: Option<Attempt>,
        /// The grant of the next instance, if it is larger than the last one.
        grown: Option<Grant>,
    },
    /// Unfinished tasks ended without their own outcome.
    TasksDropped {
        /// The id of the job.
        job: JobId,
        /// The ids of the tasks.
        ids: IdArray,
        /// The new state, `Canceled` or `Aborted`.
        to: TaskState,
    },
    /// A task sent a message. This is published as an event, not stored.
    TaskNotified {
        /// The job and id of the task.
        task: TaskKey,
        /// The worker that runs the task.
        worker: WorkerId,
        /// The text of the message, which may contain any bytes.
        message: Arc<[u8]>,
    },
    /// Whether instances may have started unnoticed. `true` if a worker of an earlier run was given
    /// up, together with instances that it may have started. `false` if all waiting tasks have
    /// received other instances since then.
    StartsUnknown(bool),
    /// A user has set, changed or removed a limit of the server.
    LimitChanged {
        /// The name of the limit.
        name: Box<str>,
        /// The limit before and now. `None` means that there is none.
        bounds: [Option<Bound>; 2],
    },
    /// A user has changed a job or its tasks.
    JobRevised(Box<JobRevised>),
    /// A user has held or released tasks of this job.
    TasksHeld(JobId, Held),
    /// The next instances of all waiting tasks of a submit were advanced.
    WaitingSuperseded {
        /// The id of the job.
        job: JobId,
        /// The position of the submit within the job.
        number: u32,
        /// The first instance number of tasks that have never been dispatched.
        first: InstanceId,
    },
    /// A change to automatic allocation, which manages its own state.
    Allocation(AllocationChange),
}

/// A change to an allocation queue or to one of its allocations.
#[derive(Clone, Debug)]
pub enum AllocationChange {
    /// A queue was created.
    QueueCreated {
        /// The id assigned to the queue.
        queue: QueueId,
        /// The parameters of the queue.
        params: Arc<QueueParams>,
    },
    /// The complete state of a queue was stored.
    QueueStored {
        /// The id of the queue.
        queue: QueueId,
        /// The state. `None` if the queue was removed and its allocations have ended.
        record: Option<Box<QueueRecord>>,
    },
    /// A user removed a queue. Its id is not reused.
    QueueRemoved(QueueId),
    /// An event in the life of an allocation.
    Event(AllocationEvent),
}

/// Which tasks the completion of a task can release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndAwaited {
    /// No tasks.
    No,
    /// Tasks of the same job. They may start immediately on the same worker. If that worker is lost
    /// before it has reported the completion, everything that followed there is lost as well.
    ByTasks,
    /// Another job, or tasks of another job.
    ByJobs,
}

impl ChangeKind {
    /// Returns whether the change can release a task for a worker that does not know of the
    /// completion.
    pub(super) const fn frees_tasks(&self) -> bool {
        matches!(
            self,
            Self::TaskEnded {
                awaited: EndAwaited::ByTasks,
                ..
            }
        )
    }

    /// Returns whether the change must be durable before dependent effects are released, because
    /// their recipients do not keep the change. Other changes can wait for a batch, because a
    /// worker repeats them until they are acknowledged.
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
            | Self::TasksHeld(..)
            | Self::JobRevised(_)
            | Self::LimitChanged { .. }
            | Self::Allocation(_) => true,
            Self::TaskEnded { awaited, .. } => matches!(awaited, EndAwaited::ByJobs),
            Self::JobCompleted(_)
            | Self::EntriesDropped { .. }
            | Self::JobNotified { .. }
            | Self::JobIdle(_)
            | Self::TaskStarted { .. }
            | Self::TaskNotified { .. }
            | Self::WorkerSuspected { .. }
            | Self::WorkerOverview { .. } => false,
        }
    }
}
