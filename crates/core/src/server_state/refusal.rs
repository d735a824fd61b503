//! Why the state refuses a submit.

use crate::id::{JobId, TaskId};
use crate::job::GraphError;
use crate::limits::TooLarge;

/// Why a submit was refused. `Display` is the text for users.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SubmitRefusal {
    /// The job to attach to does not exist.
    #[error("Job {0} not found.")]
    JobNotFound(JobId),
    /// The job to attach to is closed.
    #[error("Job {0} is not opened.")]
    JobNotOpen(JobId),
    /// An id exists already.
    #[error("Task {0} already exists in job {1}.")]
    TaskExists(TaskId, JobId),
    /// Two tasks of a graph with one id.
    #[error("Error: Task {0} is defined multiple times")]
    TaskTwice(TaskId),
    /// A task of a graph can never run.
    #[error("Error: Task {0} is part of dependency cycle or has an invalid dependencies")]
    Cycle(TaskId),
    /// More ids than fit `u32`.
    #[error("Error: the job would have more task ids than 4294967295; use fewer or lower ids")]
    TooManyTasks,
    /// All job ids are used up.
    #[error("Error: all job ids are used up; start a new server")]
    TooManyJobs,
    /// The job to wait for waits for this one.
    #[error("Error: Job {0} waits for this job, so neither would ever run")]
    AfterCycle(JobId),
    /// A task has no counterpart to wait for.
    #[error("Error: Job {1} has no task {0} to wait for; use --after to wait for the whole job")]
    AfterNoTask(TaskId, JobId),
    /// Too many tasks wait one by one.
    #[error(
        "Error: at most 16777216 tasks can wait task by task; use --after to wait for the whole job"
    )]
    TooManyAfter,
    /// Too many notifications.
    #[error("Error: a job can have at most 64 notifications (--notify)")]
    TooManyNotices,
    /// Something could not be sent to a worker, or not be started there.
    #[error("Error: {0}")]
    TooLarge(TooLarge),
    /// What a chosen task depends on did not finish and is not chosen.
    #[error(
        "Task {0} depends on task {1}, which has not finished and is not selected; add its state to --filter"
    )]
    DependencyNotChosen(TaskId, TaskId),
}

impl From<GraphError> for SubmitRefusal {
    fn from(error: GraphError) -> Self {
        match error {
            GraphError::Duplicate(task) => Self::TaskTwice(task),
            GraphError::Cycle(task) => Self::Cycle(task),
        }
    }
}
