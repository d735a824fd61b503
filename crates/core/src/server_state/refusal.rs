//! The reasons why the state refuses a submit.

use crate::bound::{Bound, known};
use crate::id::{InstanceId, JobId, TaskId};
use crate::job::GraphError;
use crate::limits::TooLarge;
use crate::refusal::{Refusal, RefusalKind};

/// Why a submit was rejected. `Display` is the text for users, which is sent as a [`Refusal`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SubmitRefusal {
    /// The job to attach to does not exist.
    #[error("Job {0} not found.")]
    JobNotFound(JobId),
    /// The job to attach to is closed.
    #[error("Job {0} is not opened.")]
    JobNotOpen(JobId),
    /// A task with the same id already exists.
    #[error("Task {0} already exists in job {1}.")]
    TaskExists(TaskId, JobId),
    /// Two tasks of a graph have the same id.
    #[error("Task {0} is defined multiple times")]
    TaskTwice(TaskId),
    /// A task of a graph can never run.
    #[error("Task {0} is part of dependency cycle or has an invalid dependencies")]
    Cycle(TaskId),
    /// A task of a graph depends on a task that is neither in the submit nor in its open job. The
    /// text starts like that of a cycle, because scripts look for it.
    #[error(
        "Task {0} is part of dependency cycle or has an invalid dependencies: task {1} is neither in this submit nor in job {2}"
    )]
    DependencyUnknown(TaskId, TaskId, JobId),
    /// The job would have more ids than fit into a `u32`.
    #[error("the job would have more task ids than 4294967295; use fewer or lower ids")]
    TooManyTasks,
    /// A job that submits to itself has reached its task limit.
    #[error(
        "the job may have at most {max} tasks (--max-tasks); it has {known}, and this submit has {new}"
    )]
    TasksMax {
        /// The maximum number of tasks over the lifetime of the job.
        max: u32,
        /// The number of tasks that the job already has.
        known: u32,
        /// The number of tasks in the submit.
        new: u32,
    },
    /// The submitting task has ended, or another attempt of it runs.
    #[error(
        "attempt {2} of task {0}.{1} is over or was replaced, so that it can add no tasks; only the attempt that runs can"
    )]
    OriginOver(JobId, TaskId, InstanceId),
    /// An earlier attempt submitted something else at this point.
    #[error(
        "task {0}.{1} is tried again, and this submit is none of those that its earlier attempts made and this one has not \
         repeated; say with --once NAME, in every attempt, which submits are the same"
    )]
    OriginDiffers(JobId, TaskId),
    /// All job ids are used up.
    #[error("all job ids are used up; start a new server")]
    TooManyJobs,
    /// The awaited job itself waits for this one.
    #[error("Job {0} waits for this job, so neither would ever run")]
    AfterCycle(JobId),
    /// There is no task with the same id to wait for in the other job.
    #[error("Job {1} has no task {0} to wait for; use --after to wait for the whole job")]
    AfterNoTask(TaskId, JobId),
    /// Too many tasks wait for single tasks.
    #[error("at most 16777216 tasks can wait task by task; use --after to wait for the whole job")]
    TooManyAfter,
    /// Too many tasks of earlier submits are named. Each of them is examined in one step.
    #[error(
        "the tasks of one submit can name at most 65536 tasks of earlier submits in their deps; let one task wait for those, and \
         the others for it"
    )]
    TooManyEarlier,
    /// The submit names a limit that does not exist.
    #[error("There is no limit {name:?}{}", known(.names))]
    UnknownLimit {
        /// The given name.
        name: Box<str>,
        /// The names that exist.
        names: Vec<Box<str>>,
    },
    /// A task counts more toward a limit than the limit allows.
    #[error("each task counts {amount} toward limit {name:?}, which is {bound}")]
    LimitTooSmall {
        /// The name of the limit.
        name: Box<str>,
        /// How much a task counts.
        amount: u32,
        /// The limit.
        bound: Bound,
    },
    /// The job would have too many notifications.
    #[error("a job can have at most 64 notifications (--notify)")]
    TooManyNotices,
    /// The key was already used for a different submit.
    #[error(
        "the key of this submit was that of another one, which became job {0}; use a new key for each submit"
    )]
    KeyTaken(JobId),
    /// A part of the submit is too large to be sent to a worker or started there.
    #[error("{0}")]
    TooLarge(TooLarge),
    /// A selected task depends on a task that did not finish and is not selected.
    #[error(
        "Task {0} depends on task {1}, which has not finished and is not selected; add its state to --filter"
    )]
    DependencyNotChosen(TaskId, TaskId),
    /// A selected task depends on a task that will not exist yet at the time of the submit.
    #[error(
        "Task {0} depends on task {1}, which is added only by a task that runs again; submit task {0} by hand when it is there"
    )]
    DependencyAddedAgain(TaskId, TaskId),
    /// A selected call has ended, and its arguments were dropped.
    #[error(
        "Task {0} is a call that has ended, and its arguments were dropped; make the call again"
    )]
    ArgumentsDropped(TaskId),
    /// The first job, which would be resubmitted, waits for a job that did not finish and is not
    /// resubmitted.
    #[error(
        "Job {0} waits for job {1}, which did not finish; submit both again: `hq job resubmit {1},{0}`"
    )]
    AfterNotFinished(JobId, JobId),
    /// The first job, which would be resubmitted, waits for a job that has not ended and is not
    /// resubmitted.
    #[error(
        "Job {0} waits for job {1}, which has not ended; wait for it with `hq job wait {1}`, or submit both again: `hq job resubmit {1},{0}`"
    )]
    AfterNotEnded(JobId, JobId),
    /// The first job, which would be resubmitted, waits for a task of the other job that did not
    /// finish and was not resubmitted with that job.
    #[error(
        "Job {0} waits for task {1} of job {2}, which did not finish and was not submitted again; submit both again: `hq job resubmit \
         {2},{0}`, with the state of that task in --filter, if you use it"
    )]
    AfterNotChosen(JobId, TaskId, JobId),
}

impl From<GraphError> for SubmitRefusal {
    fn from(error: GraphError) -> Self {
        match error {
            GraphError::Duplicate(task) => Self::TaskTwice(task),
            GraphError::Cycle(task) => Self::Cycle(task),
        }
    }
}

impl SubmitRefusal {
    /// Returns the kind of the refusal, which depends on what the client can do about it.
    #[must_use]
    pub const fn kind(&self) -> RefusalKind {
        match self {
            Self::JobNotFound(_) => RefusalKind::NotFound,
            Self::JobNotOpen(_)
            | Self::TaskExists(..)
            | Self::OriginOver(..)
            | Self::OriginDiffers(..)
            | Self::DependencyNotChosen(..)
            | Self::DependencyAddedAgain(..)
            | Self::ArgumentsDropped(_)
            | Self::AfterNotFinished(..)
            | Self::AfterNotEnded(..)
            | Self::AfterNotChosen(..)
            | Self::KeyTaken(_) => RefusalKind::Conflict,
            Self::TaskTwice(_)
            | Self::Cycle(_)
            | Self::DependencyUnknown(..)
            | Self::AfterCycle(_)
            | Self::UnknownLimit { .. }
            | Self::LimitTooSmall { .. }
            | Self::AfterNoTask(..) => RefusalKind::Invalid,
            Self::TooManyTasks
            | Self::TasksMax { .. }
            | Self::TooManyEarlier
            | Self::TooManyAfter
            | Self::TooManyNotices
            | Self::TooLarge(_) => RefusalKind::TooLarge,
            Self::TooManyJobs => RefusalKind::Unavailable,
        }
    }

    /// Returns the job and the task concerned. For a rejected submit, these are the requested ids.
    const fn about(&self) -> (Option<JobId>, Option<TaskId>) {
        match *self {
            Self::JobNotFound(job)
            | Self::JobNotOpen(job)
            | Self::AfterNotFinished(_, job)
            | Self::AfterNotEnded(_, job)
            | Self::AfterCycle(job)
            | Self::KeyTaken(job) => (Some(job), None),
            Self::TaskExists(task, job)
            | Self::AfterNoTask(task, job)
            | Self::AfterNotChosen(_, task, job)
            | Self::OriginOver(job, task, _)
            | Self::OriginDiffers(job, task) => (Some(job), Some(task)),
            Self::TaskTwice(task)
            | Self::Cycle(task)
            | Self::DependencyUnknown(task, ..)
            | Self::DependencyNotChosen(task, _)
            | Self::DependencyAddedAgain(task, _)
            | Self::ArgumentsDropped(task) => (None, Some(task)),
            Self::TooManyTasks
            | Self::TasksMax { .. }
            | Self::TooManyEarlier
            | Self::TooManyJobs
            | Self::TooManyAfter
            | Self::UnknownLimit { .. }
            | Self::LimitTooSmall { .. }
            | Self::TooManyNotices
            | Self::TooLarge(_) => (None, None),
        }
    }

    /// Returns whether the text is a complete sentence, which is shown unchanged for compatibility.
    const fn is_bare(&self) -> bool {
        let is_new = matches!(
            self,
            Self::OriginOver(..) | Self::OriginDiffers(..) | Self::KeyTaken(_)
        );
        matches!(self.kind(), RefusalKind::NotFound | RefusalKind::Conflict) && !is_new
    }
}

impl From<&SubmitRefusal> for Refusal {
    fn from(refusal: &SubmitRefusal) -> Self {
        let (job, task) = refusal.about();
        Self {
            is_bare: refusal.is_bare(),
            ..Self::new(refusal.kind(), refusal.to_string()).about(job, task)
        }
    }
}
