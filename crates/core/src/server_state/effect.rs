//! Effects: actions that the server's state requests of its shell.

use std::collections::VecDeque;
use std::sync::Arc;

use super::change::Change;
use super::input::{JobResult, LinkId, RequestId};
use super::refusal::SubmitRefusal;
use crate::id::{InstanceId, JobId, TaskId, TaskKey, WorkerId};
use crate::job::{SharedTemplate, TemplateId};
use crate::limits::{ASSIGNMENT_BYTES, ITEM_BYTES, KEY_BYTES, RANGE_BYTES, template_bytes};
use crate::range::{IdArray, IdRange};
use crate::selector::Selected;
use crate::template::Entries;
use crate::worker::AwaitedEnds;

/// One thing to do. Effects of one input are carried out in order.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Store this. What follows tells of it: see [`super::ChangeKind::is_urgent`] for what has to wait.
    Persist(Change),
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
    /// Outcomes of several submits.
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

/// Outcome of submitting one job again.
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
    /// It will be when what runs on it has ended.
    Draining,
    /// It has ended already.
    AlreadyStopped,
    /// It gets no tasks for a while.
    Quarantined,
    /// It gets tasks again.
    Released,
    /// It gets tasks and was not set aside.
    NotQuarantined,
}

/// Changes for a watching client; counts are read from the state when it is sent.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WatchUpdate {
    /// Jobs that changed; all of them in the first and the last update.
    pub jobs: Vec<WatchedJob>,
    /// Every watched job has ended; nothing follows.
    pub done: bool,
    /// Ids of the request that do not exist; in the first update only.
    pub not_found: IdArray,
    /// Messages that tasks sent with `hq task notify`, in order.
    pub notifications: Vec<Notification>,
}

/// A message that a task sent for those who wait for its job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Notification {
    /// Job and id of the task.
    pub task: TaskKey,
    /// Where it runs.
    pub worker: WorkerId,
    /// Text of the message, any bytes.
    pub message: Arc<[u8]>,
}

/// One job of a [`WatchUpdate`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchedJob {
    /// The job that changed.
    pub job: JobId,
    /// Nothing will change any more, as far as this client is concerned.
    pub ended: bool,
    /// Tasks that ended since the last update, in the order in which they did.
    pub ended_tasks: VecDeque<IdRange>,
}

/// Message to a worker.
#[derive(Clone, Debug)]
pub enum WorkerCommand {
    /// New work.
    Assign {
        /// Templates the worker does not know yet.
        templates: Vec<Arc<SharedTemplate>>,
        /// The tasks.
        assignments: Vec<Assignment>,
        /// Ends that they go on from.
        awaits: AwaitedEnds,
    },
    /// No task will name these templates again.
    DropTemplates(Vec<TemplateId>),
    /// Give these back if they have not started.
    Retract(Vec<(TaskKey, InstanceId)>),
    /// End these, started or not.
    Kill(Vec<(TaskKey, InstanceId)>),
    /// End these at once, also those that are in their grace period.
    KillNow(Vec<(TaskKey, InstanceId)>),
    /// Whether the worker is a node of a multi-node task that runs elsewhere: it must not idle out.
    Hold(bool),
    /// End.
    Stop,
    /// End, as nothing is left to do for one that was drained.
    StopDrained,
    /// The server ends in an orderly way: do not wait for it.
    ServerEnds,
    /// The reports up to this number are recorded.
    Acknowledge(u64),
    /// The server lives; answers a heartbeat. Names jobs of which the worker holds values that nobody can ask for any more,
    /// because they were forgotten.
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
    /// The instance of the same job that its one task goes on from, which has not finished on that worker.
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
