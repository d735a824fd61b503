//! Effects: actions that the server's state requests of its shell.

use std::collections::VecDeque;
use std::sync::Arc;

use super::change::Change;
use super::input::{JobResult, LinkId, RequestId};
use super::prepared::{Prepared, is_large};
use super::refusal::SubmitRefusal;
use crate::id::{InstanceId, JobId, TaskId, TaskKey, WorkerId};
use crate::job::{Job, SharedTemplate, TemplateId};
use crate::limits::{ASSIGNMENT_BYTES, ITEM_BYTES, KEY_BYTES, RANGE_BYTES, template_bytes};
use crate::range::{IdArray, IdRange};
use crate::selector::Selected;
use crate::template::Entries;
use crate::worker::AwaitedEnds;

/// One action of the shell. Effects of one input are carried out in order.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Stores a change. Later effects reveal it: see [`super::ChangeKind::is_urgent`] for those
    /// that must wait.
    Persist(Change),
    /// Answers a request.
    Reply(RequestId, Reply),
    /// News for a watching client.
    WatchUpdate(RequestId, WatchUpdate),
    /// A worker is registered; from now on its connection is known by the id and replaces an older
    /// one of the same worker.
    Registered {
        /// The connection.
        link: LinkId,
        /// The worker.
        worker: WorkerId,
        /// Whether it was recognized; otherwise all its tasks are void.
        reattached: bool,
    },
    /// Something for a worker.
    ToWorker(WorkerId, WorkerCommand),
    /// Sends a notification of a job; answered by [`super::Input::Notified`].
    Notify(super::NoticeKey),
    /// The worker is lost: closes its connection, if there is one.
    DropWorker(WorkerId),
    /// Frees something large, which no other effect waits for.
    Free(Freed),
}

/// Answers to [`super::Command`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// A job was made or extended.
    Submitted(JobId),
    /// Outcomes of several submits.
    SubmittedAll(Vec<Result<JobId, SubmitRefusal>>),
    /// The submit was rejected without a trace.
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

/// Result of resubmitting one job.
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

/// Outcome of a stop, drain or release of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopResult {
    /// It was asked to end.
    Stopped,
    /// It stops when its running tasks have ended.
    Draining,
    /// It has ended already.
    AlreadyStopped,
    /// It is in quarantine.
    Quarantined,
    /// It gets tasks again.
    Released,
    /// It was not in quarantine.
    NotQuarantined,
}

/// Changes for a watching client; counts are read from the state when it is sent.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WatchUpdate {
    /// Changed jobs; all jobs in the first and the last update.
    pub jobs: Vec<WatchedJob>,
    /// Every watched job has ended; nothing follows.
    pub done: bool,
    /// Unknown ids of the request; in the first update only.
    pub not_found: IdArray,
    /// Messages that tasks sent with `hq task notify`, in order.
    pub notifications: Vec<Notification>,
}

/// A message from a task to clients that wait for its job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notification {
    /// Job and id of the task.
    pub task: TaskKey,
    /// Where it runs.
    pub worker: WorkerId,
    /// Text of the message, any bytes.
    pub message: Arc<[u8]>,
}

/// Something without a user that may take long to free.
#[derive(Clone, Debug)]
pub enum Freed {
    /// A submit that was not accepted.
    Submit(Box<Prepared>),
    /// A forgotten job.
    Job(Box<Job>),
}

impl Freed {
    /// Whether that takes long.
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
    /// Tasks that ended since the last update, in order.
    pub ended_tasks: VecDeque<IdRange>,
}

/// Message to a worker.
#[derive(Clone, Debug)]
pub enum WorkerCommand {
    /// New work.
    Assign {
        /// Templates that are new to the worker.
        templates: Vec<Arc<SharedTemplate>>,
        /// The tasks.
        assignments: Vec<Assignment>,
        /// Ends of their dependencies.
        awaits: AwaitedEnds,
    },
    /// Forget these templates: no further task uses them.
    DropTemplates(Vec<TemplateId>),
    /// Return these tasks if they have not started.
    Retract(Vec<(TaskKey, InstanceId)>),
    /// End these, started or not.
    Kill(Vec<(TaskKey, InstanceId)>),
    /// Kill these at once, even within their grace period.
    KillNow(Vec<(TaskKey, InstanceId)>),
    /// Whether the worker is a node of a multi-node task that runs elsewhere: it must not idle out.
    Hold(bool),
    /// End.
    Stop,
    /// End, as a drained worker without tasks.
    StopDrained,
    /// The server shuts down: do not wait for it.
    ServerEnds,
    /// The reports up to this number are recorded.
    Acknowledge(u64),
    /// Reply to a heartbeat. Names forgotten jobs whose values the worker may delete.
    Ping(Vec<JobId>),
}

impl WorkerCommand {
    /// Upper bound of the bytes of its message.
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
            Self::Retract(tasks) | Self::Kill(tasks) | Self::KillNow(tasks) => {
                ITEM_BYTES + tasks.len() * KEY_BYTES
            }
            Self::Ping(forgotten) => ASSIGNMENT_BYTES + ITEM_BYTES * forgotten.len(),
            Self::Hold(_)
            | Self::Stop
            | Self::StopDrained
            | Self::ServerEnds
            | Self::Acknowledge(_) => ASSIGNMENT_BYTES,
        }
    }
}

/// Tasks that share template, instance and variant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assignment {
    /// Template that they share.
    pub template: TemplateId,
    /// Ids of the tasks.
    pub ids: IdArray,
    /// Instance of all of them.
    pub instance: InstanceId,
    /// Variant of the resource request.
    pub variant: u32,
    /// An entry each, if the submit has entries.
    pub entries: Option<Entries>,
    /// Host names of a multi-node task, the root first; empty for others.
    pub nodes: Vec<Box<str>>,
    /// Unfinished dependency of its only task: an instance of the same job on that worker.
    pub follows: Option<(TaskId, InstanceId)>,
}

impl Assignment {
    /// Upper bound of its bytes in a message.
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
