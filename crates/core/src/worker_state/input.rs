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

/// Names a launched instance between state and shell; never used twice by one state.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LaunchToken(pub u64);

/// The part that tasks of one submit share, as a worker keeps it.
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
    /// The instance of the same job that its one task goes on from, once that has finished here.
    pub follows: Option<(TaskId, InstanceId)>,
}

/// One thing that happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// The server hands out work. Templates are known before the assignments are looked at.
    Assign {
        /// Templates the worker does not know yet.
        templates: Vec<Arc<WorkTemplate>>,
        /// The tasks.
        assignments: Vec<WorkAssignment>,
        /// No later assignment names these.
        drop_templates: Vec<TemplateId>,
    },
    /// The server wants back what has not started.
    Retract(Vec<InstanceKey>),
    /// The server wants these to end.
    Kill(Vec<InstanceKey>),
    /// The server wants these to end at once, also those that are in their grace period.
    KillNow(Vec<InstanceKey>),
    /// Whether the worker is a node of a multi-node task that runs elsewhere: it does not idle out.
    Hold(bool),
    /// Whether other workers reach the server through this one: it does not idle out.
    Relaying(bool),
    /// The server wants the worker to end.
    Stop,
    /// The server is about to end, and not to be waited for.
    ServerEnds,
    /// News of launched processes.
    Launcher(Vec<LaunchEvent>),
    /// [`super::WorkerState::next_deadline`] has passed.
    Timer,
    /// The connection to the server is gone.
    ServerLost,
    /// The lost server cannot come back: what told where it is no longer exists.
    ServerGone,
    /// The worker is registered again.
    ServerBack {
        /// The server knows it as the worker that it was; otherwise all that it has is void.
        reattached: bool,
    },
    /// The server has recorded what reports up to this number said.
    Acknowledged(u64),
    /// A person or the batch system wants the worker to end.
    Interrupt(Interrupt),
}

/// How somebody on the node wants the worker to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interrupt {
    /// End the tasks, then the worker; a second one ends everything at once.
    Terminate,
    /// Start nothing new, let running tasks end, then end.
    Drain,
    /// The batch system ends the allocation: as `Terminate`, and no task is to blame.
    Preempt,
    /// A signal arrived in an allocation; another interrupt follows as soon as the batch system has said why.
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
    /// It ended and nothing of it is left.
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
        /// The task's own words about its failure, or the worker's; ignored if it succeeded.
        message: Option<Box<str>>,
    },
}

/// Why an instance could not be launched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LaunchFailure {
    /// The task's fault; the text is shown to users.
    Permanent(Box<str>),
    /// The node is short of something; the task can run elsewhere or later.
    Transient,
    /// It was told to end before it started.
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
    /// Killed by the worker for using more memory than it asked for; the message says how much.
    ExceededMemory,
}
