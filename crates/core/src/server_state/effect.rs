//! What the server's state asks its shell to do.

use std::sync::Arc;

use super::input::{JobResult, LinkId, RequestId};
use crate::id::{InstanceId, JobId, TaskId, TaskKey, WorkerId};
use crate::job::{GraphError, SharedTemplate, TemplateId};
use crate::limits::TooLarge;
use crate::range::IdArray;
use crate::selector::Selected;
use crate::template::Entries;

/// One thing to do. Effects of one input are carried out in order.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Store this. What follows tells of it: see [`super::ChangeKind::is_urgent`] for what has to wait.
    Persist(super::Change),
    /// Answers a request.
    Reply(RequestId, Reply),
    /// News for a watching client.
    WatchUpdate(RequestId, WatchUpdate),
    /// A worker is registered; its connection is from now on known by the id and replaces an older
    /// one of the same worker.
    Registered {
        /// The connection.
        link: LinkId,
        /// The worker.
        worker: WorkerId,
        /// It goes on as the worker that it was; otherwise all that it still has is void.
        reattached: bool,
    },
    /// Something for a worker.
    ToWorker(WorkerId, WorkerCommand),
    /// Tell somebody of a job; answered by [`super::Input::Notified`].
    Notify(super::NoticeKey),
    /// The worker is lost: close its connection, if there is one.
    DropWorker(WorkerId),
}

/// Answers to [`super::Command`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// A job was made or extended.
    Submitted(JobId),
    /// What became of several submits.
    SubmittedAll(Vec<Result<JobId, SubmitRefusal>>),
    /// The submit was refused; nothing of it remains.
    Refused(SubmitRefusal),
    /// Answer to close and cancel, a row a job.
    Jobs(Selected<JobResult>),
    /// Answer to resubmit, a row a job.
    Resubmitted(Selected<Resubmitted>),
    /// Answer to forget.
    Forgotten {
        /// Dropped jobs.
        forgotten: u32,
        /// Jobs that are unknown or in another state.
        ignored: u32,
    },
    /// Answer to worker stop and drain, a row a worker.
    Workers(Selected<(WorkerId, StopResult)>),
}

/// What became of one job that was to be submitted again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Resubmitted {
    /// A new job was made.
    Ok {
        /// The old job.
        job: JobId,
        /// The new one.
        new: JobId,
        /// Tasks of the new one.
        task_count: u32,
    },
    /// None of its tasks is in the chosen states.
    Nothing(JobId),
    /// It cannot be submitted like this.
    Refused(JobId, SubmitRefusal),
}

/// What a stop request found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopResult {
    /// It was asked to end.
    Stopped,
    /// It will be when what runs on it has ended.
    Draining,
    /// It has ended already.
    AlreadyStopped,
}

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

/// What changed for a watching client; counts are read from the state when it is sent.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WatchUpdate {
    /// Jobs that changed; all of them in the first and the last update.
    pub jobs: Vec<WatchedJob>,
    /// Every watched job has ended; nothing follows.
    pub done: bool,
    /// Ids of the request that do not exist; in the first update only.
    pub not_found: IdArray,
    /// What tasks wanted to be told, in order.
    pub notifications: Vec<Notification>,
}

/// A message that a task sent for those who wait for its job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notification {
    /// Which task.
    pub task: TaskKey,
    /// Where it runs.
    pub worker: WorkerId,
    /// Its words, any bytes.
    pub message: Arc<[u8]>,
}

/// One job of a [`WatchUpdate`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchedJob {
    /// Which.
    pub job: JobId,
    /// Nothing will change any more, as far as this client is concerned.
    pub ended: bool,
    /// Tasks that ended since the last update, in the order in which they did.
    pub ended_tasks: Vec<TaskId>,
}

/// What a worker is told.
#[derive(Clone, Debug)]
pub enum WorkerCommand {
    /// New work.
    Assign {
        /// Templates the worker does not know yet.
        templates: Vec<Arc<SharedTemplate>>,
        /// The tasks.
        assignments: Vec<Assignment>,
    },
    /// No task will name these templates again.
    DropTemplates(Vec<TemplateId>),
    /// Give these back if they have not started.
    Retract(Vec<(TaskKey, InstanceId)>),
    /// End these, started or not.
    Kill(Vec<(TaskKey, InstanceId)>),
    /// Whether the worker is a node of a multi-node task that runs elsewhere: it must not idle out.
    Hold(bool),
    /// End.
    Stop,
    /// The server ends in an orderly way: do not wait for it.
    ServerEnds,
    /// What reports up to this number said is recorded.
    Acknowledge(u64),
    /// The server lives; answers a heartbeat.
    Ping,
}

/// Tasks that share template, instance and variant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assignment {
    /// What they share.
    pub template: TemplateId,
    /// Which tasks.
    pub ids: IdArray,
    /// Instance of all of them.
    pub instance: InstanceId,
    /// Variant of the resource request.
    pub variant: u32,
    /// An entry each, if the submit has entries.
    pub entries: Option<Entries>,
    /// Host names of a multi-node task, the root first; empty for others.
    pub nodes: Vec<Box<str>>,
}
