//! Effects: actions that the server's state requests of its shell.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::change::Change;
use super::input::{JobResult, LinkId, RequestId};
use super::prepared::{Prepared, is_large};
use super::refusal::SubmitRefusal;
use crate::autoalloc;
use crate::id::{InstanceId, JobId, QueueId, TaskId, TaskKey, WorkerId};
use crate::job::{Job, SharedTemplate, TemplateId};
use crate::limits::{ASSIGNMENT_BYTES, ITEM_BYTES, KEY_BYTES, RANGE_BYTES, template_bytes};
use crate::range::{IdArray, IdRange};
use crate::refusal::Refusal;
use crate::selector::Selected;
use crate::template::Entries;
use crate::worker::AwaitedEnds;

/// One action of the shell. The effects of one input are carried out in order.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Stores a change. Later effects may reveal the change; for those that must wait until it is
    /// stored, see [`super::ChangeKind::is_urgent`].
    Persist(Change),
    /// Answers a request.
    Reply(RequestId, Reply),
    /// Sends news to a watching client.
    WatchUpdate(RequestId, WatchUpdate),
    /// A worker is registered. From now on, its connection is known by the worker id and replaces
    /// an older connection of the same worker.
    Registered {
        /// The id of the connection.
        link: LinkId,
        /// The id of the worker.
        worker: WorkerId,
        /// Whether the worker was recognized. Otherwise all of its tasks are void.
        reattached: bool,
    },
    /// Sends a message to a worker.
    ToWorker(WorkerId, WorkerCommand),
    /// Sends a notification of a job. The answer is [`super::Input::Notified`].
    Notify(super::NoticeKey),
    /// Runs commands of a batch system for automatic allocation, or notes the end of an allocation.
    /// The answer is [`super::Input::Allocation`].
    Allocate(autoalloc::Effect),
    /// The worker is lost. Closes its connection, if there is one.
    DropWorker(WorkerId),
    /// Frees a large value. No other effect waits for it.
    Free(Freed),
}

/// Answers to [`super::Command`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// A job was created or extended.
    Submitted(JobId),
    /// The outcomes of several submits.
    SubmittedAll(Vec<Result<JobId, SubmitRefusal>>),
    /// The submit was rejected and nothing has changed.
    Refused(SubmitRefusal),
    /// The answer to a close or cancel command, with a row for each job.
    Jobs(Selected<JobResult>),
    /// The answer to a signal command.
    Signaled(Signaled),
    /// The answer to a change of a limit.
    Limit(Result<(), Refusal>),
    /// The answer to a hold, release or change of tasks.
    Changed(Result<ChangedTasks, Refusal>),
    /// The answer to a resubmit command, with a row for each job.
    Resubmitted(Selected<Resubmitted>),
    /// The answer to a forget command.
    Forgotten {
        /// The number of forgotten jobs.
        forgotten: u32,
        /// The number of jobs that are unknown or in another state.
        ignored: u32,
    },
    /// The answer to a change of a queue, with the id of a new queue.
    Queue(Result<Option<QueueId>, Refusal>),
    /// The answer to a stop or drain of workers, with a row for each worker.
    Workers(Selected<(WorkerId, StopResult)>),
}

/// The tasks of one job that a signal command named. Other tasks are unknown or did not run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Signaled {
    /// The tasks whose workers were told to send the signal.
    pub sent: IdArray,
    /// The running tasks that are Python calls, or whose workers are disconnected or too old to send
    /// signals.
    pub unable: IdArray,
}

/// The tasks of one job that a command named which holds, releases or changes tasks. Other tasks
/// are unknown or have ended, or were not held.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ChangedTasks {
    /// The tasks that are held, released or changed now. They include running tasks, whose next attempt is
    /// held, if the whole job is held.
    pub changed: IdArray,
    /// Those of them that workers have received, which may still start as they were.
    pub sent: IdArray,
    /// The running tasks, which cannot be held and keep their resources.
    pub running: IdArray,
}

/// The result of resubmitting one job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Resubmitted {
    /// A new job was created.
    Ok {
        /// The old job.
        job: JobId,
        /// The new job.
        new: JobId,
        /// The number of tasks in the new job.
        task_count: u32,
    },
    /// None of the job's tasks is in the chosen states.
    Nothing(JobId),
    /// The job cannot be submitted like this.
    Refused(JobId, SubmitRefusal),
}

/// The outcome of a stop, drain or release of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopResult {
    /// The worker was asked to end.
    Stopped,
    /// The worker stops when its running tasks have ended.
    Draining,
    /// The worker has already ended.
    AlreadyStopped,
    /// The worker is in quarantine.
    Quarantined,
    /// The worker gets tasks again.
    Released,
    /// The worker was not in quarantine.
    NotQuarantined,
}

/// Changes for a watching client. The counts are read from the state when the update is sent.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WatchUpdate {
    /// The changed jobs. The first and the last update contain all jobs.
    pub jobs: Vec<WatchedJob>,
    /// Whether every watched job has ended, so that no more updates follow.
    pub done: bool,
    /// The unknown ids of the request. Only set in the first update.
    pub not_found: IdArray,
    /// The messages that tasks sent with `hq task notify`, in order.
    pub notifications: Vec<Notification>,
}

/// A message from a task to clients that wait for its job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notification {
    /// The job and the id of the task.
    pub task: TaskKey,
    /// The worker on which the task runs.
    pub worker: WorkerId,
    /// The text of the message, which may contain any bytes.
    pub message: Arc<[u8]>,
}

/// An unused value that may take long to free.
#[derive(Clone, Debug)]
pub enum Freed {
    /// A submit that was not accepted.
    Submit(Box<Prepared>),
    /// A forgotten job.
    Job(Box<Job>),
}

impl Freed {
    /// Returns whether freeing the value takes long.
    pub(super) fn is_large(&self) -> bool {
        match self {
            Self::Submit(prepared) => is_large(prepared.graph_len()),
            Self::Job(job) => is_large(job.counts().total() as usize),
        }
    }
}

/// One job of a [`WatchUpdate`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchedJob {
    /// The job that changed.
    pub job: JobId,
    /// Whether no further update of this job will follow.
    pub ended: bool,
    /// The tasks that have ended since the last update, in order.
    pub ended_tasks: VecDeque<IdRange>,
}

/// A message to a worker.
#[derive(Clone, Debug)]
pub enum WorkerCommand {
    /// Assigns new tasks.
    Assign {
        /// The templates that are new to the worker.
        templates: Vec<Arc<SharedTemplate>>,
        /// The tasks.
        assignments: Vec<Assignment>,
        /// The ends of dependencies that the message waits for.
        awaits: AwaitedEnds,
    },
    /// The worker should forget these templates, because no further task uses them.
    DropTemplates(Vec<TemplateId>),
    /// The worker should return these tasks if they have not started.
    Retract(Vec<(TaskKey, InstanceId)>),
    /// The worker should end these tasks, whether started or not.
    Kill(Vec<(TaskKey, InstanceId)>),
    /// The worker should kill these tasks immediately, even within their grace period.
    KillNow(Vec<(TaskKey, InstanceId)>),
    /// The worker should send this signal to these tasks.
    Signal(Vec<(TaskKey, InstanceId)>, i32),
    /// These tasks have this time limit from now on, counted from their starts.
    TimeLimit(Vec<(TaskKey, InstanceId)>, Option<Duration>),
    /// Whether the worker is a node of a multi-node task that runs elsewhere, so that it must not
    /// stop for being idle.
    Hold(bool),
    /// The worker should end.
    Stop,
    /// The worker should end because it is drained and has no tasks.
    StopDrained,
    /// The server is shutting down. The worker should not wait for it.
    ServerEnds,
    /// The reports up to this number have been recorded.
    Acknowledge(u64),
    /// The reply to a heartbeat. Names forgotten jobs whose values the worker may delete.
    Ping(Vec<JobId>),
}

impl WorkerCommand {
    /// Returns an upper bound for the size of the command's message in bytes.
    #[must_use]
    pub fn wire_bytes(&self) -> usize {
        match self {
            Self::Assign {
                templates,
                assignments,
                awaits: _,
            } => {
                let templates = templates.iter().map(|template| template_bytes(template));
                let assignments = assignments.iter().map(Assignment::wire_bytes);
                templates.sum::<usize>() + assignments.sum::<usize>()
            }
            Self::DropTemplates(templates) => ITEM_BYTES * (1 + templates.len()),
            Self::Retract(tasks)
            | Self::Kill(tasks)
            | Self::KillNow(tasks)
            | Self::Signal(tasks, _)
            | Self::TimeLimit(tasks, _) => ITEM_BYTES + tasks.len() * KEY_BYTES,
            Self::Ping(forgotten) => ASSIGNMENT_BYTES + ITEM_BYTES * forgotten.len(),
            Self::Hold(_)
            | Self::Stop
            | Self::StopDrained
            | Self::ServerEnds
            | Self::Acknowledge(_) => ASSIGNMENT_BYTES,
        }
    }
}

/// Tasks that share a template, an instance number and a variant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assignment {
    /// The template of the tasks.
    pub template: TemplateId,
    /// The ids of the tasks.
    pub ids: IdArray,
    /// The instance number of all of the tasks.
    pub instance: InstanceId,
    /// The variant of the resource request.
    pub variant: u32,
    /// One entry for each task, if the submit has entries.
    pub entries: Option<Entries>,
    /// The host names of a multi-node task's nodes, the root first. Empty for other tasks.
    pub nodes: Vec<Box<str>>,
    /// The unfinished dependency of the only task: an instance of the same job on the same worker.
    pub follows: Option<(TaskId, InstanceId)>,
}

impl Assignment {
    /// Returns an upper bound for the assignment's size in a message, in bytes.
    #[must_use]
    pub fn wire_bytes(&self) -> usize {
        let nodes = self.nodes.iter().map(|node| node.len() + ITEM_BYTES);
        let entries = self
            .entries
            .as_ref()
            .map_or(0, |entries| entries.data_len() + entries.len() * ITEM_BYTES);
        ASSIGNMENT_BYTES + self.ids.ranges().len() * RANGE_BYTES + entries + nodes.sum::<usize>()
    }
}
