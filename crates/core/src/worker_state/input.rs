//! The inputs of a worker, all handled by [`super::WorkerState::apply`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::id::{InstanceId, JobId, TaskId, TaskKey};
use crate::job::TemplateId;
use crate::outcome::Usage;
use crate::range::IdArray;
use crate::template::{ByteText, Entries, TaskTemplate};
use crate::time::Time;

/// One start of one task, which is the unit that is assigned, retracted, killed and reported.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct InstanceKey {
    /// The job and id of the task.
    pub task: TaskKey,
    /// The number of the instance.
    pub instance: InstanceId,
}

impl InstanceKey {
    /// Creates a key from a job, a task id and an instance.
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

/// Identifies a launched instance between the state and the shell. A state never reuses a token.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LaunchToken(pub u64);

/// The common properties of the tasks of one submit, as a worker keeps them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkTemplate {
    /// The number of the template on the wire.
    pub id: TemplateId,
    /// The job of the tasks.
    pub job: JobId,
    /// The name of the job.
    pub job_name: Box<str>,
    /// The absolute directory from which the user submitted.
    pub submit_dir: ByteText,
    /// The stream directory with placeholders, if output is streamed.
    pub stream_dir: Option<ByteText>,
    /// The part of the template that the user specified.
    pub task: Arc<TaskTemplate>,
}

/// Tasks that have the same template, instance and variant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WorkAssignment {
    /// The template of the tasks.
    pub template: TemplateId,
    /// The ids of the tasks.
    pub ids: IdArray,
    /// The number of the instance, which is the same for all tasks.
    pub instance: InstanceId,
    /// The number of the variant of the resource request.
    pub variant: u32,
    /// One entry per task, if the submit has entries.
    pub entries: Option<Entries>,
    /// The host names of a multi-node task, root first. Empty for other tasks.
    pub nodes: Arc<[Box<str>]>,
    /// The predecessor of the only task, if it has one. It is an instance of the same job on this
    /// worker.
    pub follows: Option<(TaskId, InstanceId)>,
}

/// An event that the worker reacts to.
#[derive(Clone, Debug)]
pub enum Input {
    /// The server assigns tasks. Templates are added before the assignments are handled.
    Assign {
        /// The templates that are new to the worker.
        templates: Vec<Arc<WorkTemplate>>,
        /// The assigned tasks.
        assignments: Vec<WorkAssignment>,
        /// Templates that no later assignment refers to.
        drop_templates: Vec<TemplateId>,
    },
    /// The server retracts tasks that have not started.
    Retract(Vec<InstanceKey>),
    /// The server asks the worker to end these tasks.
    Kill(Vec<InstanceKey>),
    /// The server kills these tasks immediately, even within their grace period.
    KillNow(Vec<InstanceKey>),
    /// The server sends this signal to these tasks.
    Signal(Vec<InstanceKey>, i32),
    /// The server changes the time limit of these tasks. It counts from their starts.
    TimeLimit(Vec<InstanceKey>, Option<Duration>),
    /// Whether the worker is a node of a multi-node task that runs on another worker. As such a
    /// node, it has no idle timeout.
    Hold(bool),
    /// Whether other workers reach the server through this worker. As a relay, it has no idle
    /// timeout.
    Relaying(bool),
    /// The server wants the worker to end.
    Stop,
    /// The server shuts down, and the worker must not wait for it.
    ServerEnds,
    /// The launcher reports events of launched instances.
    Launcher(Vec<LaunchEvent>),
    /// The deadline returned by [`super::WorkerState::next_deadline`] has passed.
    Timer,
    /// The connection to the server was lost.
    ServerLost,
    /// The lost server cannot come back, because the directory with its location no longer exists.
    ServerGone,
    /// The worker has registered again.
    ServerBack {
        /// Whether the server recognized the worker. Otherwise, all its tasks are void.
        reattached: bool,
    },
    /// The server has stored the reports up to this number.
    Acknowledged(u64),
    /// A user or the batch system asks the worker to end.
    Interrupt(Interrupt),
}

/// How a user or the batch system asks the worker to end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Interrupt {
    /// The worker ends its tasks and then exits. A second interrupt ends everything immediately.
    Terminate,
    /// The worker starts no more tasks, lets running tasks finish, and then exits.
    Drain,
    /// The batch system ends the allocation. This is like `Terminate`, but the tasks are not to
    /// blame.
    Preempt,
    /// A signal arrived in an allocation. Another interrupt follows as soon as the batch system
    /// gives the reason.
    Signalled,
}

/// An event of a launched instance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LaunchEvent {
    /// The program has started.
    Started {
        /// The token of the launch.
        token: LaunchToken,
        /// The time of the start.
        at: Time,
    },
    /// The instance never ran and will not run.
    Failed {
        /// The token of the launch.
        token: LaunchToken,
        /// The reason for the failure.
        failure: LaunchFailure,
    },
    /// The instance has ended, and no process is left.
    Exited {
        /// The token of the launch.
        token: LaunchToken,
        /// The exit status.
        status: ExitStatus,
        /// The time of the end.
        ended: Time,
        /// The run time.
        run: Duration,
        /// The resource usage.
        usage: Usage,
        /// The error message of the task itself or of the worker, which is ignored on success.
        message: Option<Box<str>>,
    },
}

/// The reason why an instance could not be launched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LaunchFailure {
    /// The task is at fault. The text is shown to users.
    Permanent(Box<str>),
    /// The node lacks a resource. The task can run on another node or later.
    Transient,
    /// The instance was asked to end before it started.
    Cancelled,
}

/// How a process ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitStatus {
    /// The exit code, 0 to 255.
    Code(i32),
    /// The number of the signal.
    Signal(i32),
    /// The kernel killed the process because it was out of memory.
    OutOfMemory,
    /// The worker killed the process for using more memory than requested. The message contains the
    /// amount.
    ExceededMemory,
}
