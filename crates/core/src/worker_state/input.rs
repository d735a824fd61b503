//! Inputs of a worker: the closed set of [`super::WorkerState::apply`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::id::{InstanceId, JobId, TaskId, TaskKey};
use crate::job::TemplateId;
use crate::outcome::Usage;
use crate::range::IdArray;
use crate::template::{ByteText, Entries, TaskTemplate};
use crate::time::Time;

/// One start of one task: the unit that is assigned, retracted, killed and reported.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct InstanceKey {
    /// Job and id of the task.
    pub task: TaskKey,
    /// Number of the instance.
    pub instance: InstanceId,
}

impl InstanceKey {
    /// Combines the ids.
    #[must_use]
    pub const fn new(job: JobId, task: u32, instance: InstanceId) -> Self {
        Self {
            task: TaskKey::new(job, TaskId(task)),
            instance,
        }
    }
}

impl fmt::Display for InstanceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.task, self.instance)
    }
}

/// Id of a launched instance between state and shell; never reused by one state.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LaunchToken(pub u64);

/// The shared part of the tasks of one submit, as a worker keeps it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkTemplate {
    /// Number of the template on the wire.
    pub id: TemplateId,
    /// Job of the tasks.
    pub job: JobId,
    /// Name of the job.
    pub job_name: Box<str>,
    /// Where the user submitted; absolute.
    pub submit_dir: ByteText,
    /// Stream directory with placeholders, if output is streamed.
    pub stream_dir: Option<ByteText>,
    /// The user's part.
    pub task: Arc<TaskTemplate>,
}

/// Tasks that share template, instance and variant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkAssignment {
    /// Their template.
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
    pub nodes: Arc<[Box<str>]>,
    /// Predecessor of its only task, an instance of the same job on this worker.
    pub follows: Option<(TaskId, InstanceId)>,
}

/// One thing that happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// The server assigns tasks. Templates are added before the assignments are handled.
    Assign {
        /// Templates that are new to the worker.
        templates: Vec<Arc<WorkTemplate>>,
        /// The tasks.
        assignments: Vec<WorkAssignment>,
        /// No later assignment names these.
        drop_templates: Vec<TemplateId>,
    },
    /// The server retracts unstarted tasks.
    Retract(Vec<InstanceKey>),
    /// The server ends these tasks.
    Kill(Vec<InstanceKey>),
    /// The server kills these at once, even within their grace period.
    KillNow(Vec<InstanceKey>),
    /// Whether the worker is a node of a multi-node task that runs elsewhere: then it does not idle
    /// out.
    Hold(bool),
    /// Whether other workers reach the server through this one: then it does not idle out.
    Relaying(bool),
    /// The server wants the worker to end.
    Stop,
    /// The server shuts down: the worker does not wait for it.
    ServerEnds,
    /// News of launched processes.
    Launcher(Vec<LaunchEvent>),
    /// [`super::WorkerState::next_deadline`] has passed.
    Timer,
    /// The connection to the server is gone.
    ServerLost,
    /// The lost server cannot come back: the directory with its location no longer exists.
    ServerGone,
    /// The worker is registered again.
    ServerBack {
        /// Whether the server recognized the worker; otherwise all its tasks are void.
        reattached: bool,
    },
    /// The server has stored the reports up to this number.
    Acknowledged(u64),
    /// A user or the batch system asks the worker to end.
    Interrupt(Interrupt),
}

/// How the worker is asked to end, from its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interrupt {
    /// Ends the tasks, then the worker; a second one ends everything at once.
    Terminate,
    /// Starts no more tasks, lets running ones end, then ends.
    Drain,
    /// The batch system ends the allocation: as `Terminate`, and no task is to blame.
    Preempt,
    /// A signal arrived in an allocation; another interrupt follows as soon as the batch system
    /// gives the reason.
    Signalled,
}

/// News of one launched instance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LaunchEvent {
    /// Its program runs.
    Started {
        /// Token of the launch.
        token: LaunchToken,
        /// Time of the start.
        at: Time,
    },
    /// It never ran, and will not.
    Failed {
        /// Token of the launch.
        token: LaunchToken,
        /// Reason of the failure.
        failure: LaunchFailure,
    },
    /// It ended without leftovers.
    Exited {
        /// Token of the launch.
        token: LaunchToken,
        /// Exit status.
        status: ExitStatus,
        /// Time of the end.
        ended: Time,
        /// How long it ran.
        run: Duration,
        /// Resource usage.
        usage: Usage,
        /// The task's own error message, or the worker's; ignored on success.
        message: Option<Box<str>>,
    },
}

/// Why an instance could not be launched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LaunchFailure {
    /// The task's fault; the text is shown to users.
    Permanent(Box<str>),
    /// The node lacks a resource; the task can run elsewhere or later.
    Transient,
    /// It was asked to end before it started.
    Cancelled,
}

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitStatus {
    /// Exit code, 0 to 255.
    Code(i32),
    /// Signal number.
    Signal(i32),
    /// Killed by the kernel, which was out of memory.
    OutOfMemory,
    /// Killed by the worker for using more memory than requested; the message gives the amount.
    ExceededMemory,
}
