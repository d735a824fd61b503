//! The inputs of the server's state: all events that [`super::ServerState::apply`] handles.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::autoalloc::{self, QueueCommand};
use crate::bound::LimitChange;
use crate::hardware::HardwareUsage;
use crate::id::{InstanceId, JobId, TaskKey, WorkerId};
use crate::job::JobChange;
use crate::node_check::NodeFault;
use crate::outcome::{LostReason, Outcome, Usage};
use crate::range::{IdArray, IndexSet};
use crate::resize::NewRequest;
use crate::selector::Selector;
use crate::task::TaskState;
use crate::template::SubmitSpec;
use crate::time::{Time, Timestamp};
use crate::worker::{LinkEnd, Unkillable};
use crate::worker_config::WorkerConfig;

/// The id of a client's request until it is answered. The shell chooses unique ids.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// The id of a connection that wants to become a worker. The shell chooses unique ids.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId(pub u64);

/// An event.
#[derive(Clone, Debug)]
pub enum Input {
    /// A client's request. The effects that answer it have the same id.
    Request(RequestId, Command),
    /// A submit that was prepared outside the state. Otherwise like [`Command::Submit`] and
    /// [`Command::SubmitAll`].
    Submit(RequestId, Box<super::Submission>),
    /// A resubmission whose large jobs were prepared outside the state. Otherwise like
    /// [`Command::Resubmit`] and [`Command::ResubmitTasks`].
    Resubmit(RequestId, Box<super::Again>),
    /// The client of a request has disconnected. This matters only for [`Command::Watch`].
    RequestGone(RequestId),
    /// A worker wants to register.
    WorkerConnected(LinkId, WorkerConfig),
    /// A worker that lost its connection wants to continue.
    WorkerReattached(LinkId, WorkerConfig, Box<Reattach>),
    /// A worker has sent a message.
    WorkerMessage(WorkerId, WorkerMessage),
    /// The current connection of a worker has ended. The shell filters out the messages and ends of
    /// older connections.
    WorkerGone(WorkerId, LinkEnd),
    /// The outcome of a notification.
    Notified {
        /// The notification that was sent or given up.
        key: super::NoticeKey,
        /// The number of attempts.
        attempts: u32,
        /// Why delivery finally failed. `None` if the notification was delivered.
        error: Option<Box<str>>,
    },
    /// Answers to [`super::Effect::Allocate`].
    Allocation(Vec<autoalloc::Input>),
    /// The server is shutting down. No more tasks are dispatched.
    Ending {
        /// Whether the workers wait for the next server. Otherwise they are asked to end as well.
        keep_workers: bool,
    },
    /// The server ends now, even if some workers have not left.
    Ended,
    /// The time of [`super::ServerState::next_deadline`] has passed.
    Timer,
    /// A timer while messages of workers are queued. All messages that arrived until this time have
    /// been handled.
    TimerBehind(Time),
    /// A timer while the store is stalled. Overdue workers are spared, because their loss could not
    /// be recorded.
    TimerHeld,
}

/// The number of input rows after which the state must be settled before it takes more, so that a
/// client does not wait for hundreds of long reports. This is a few milliseconds of work.
pub const ROWS_PER_ROUND_MAX: usize = 1_024;

/// The maximum number of tasks that one command can cancel or signal individually, or whose
/// arguments it can drop. This is a millisecond of work.
pub const CANCELED_MAX: usize = 1_000;

/// The maximum number of consecutive ranges of tasks that one command can hold or release. This is
/// a few milliseconds of work.
pub const HELD_RANGES_MAX: usize = 4_096;

impl Input {
    /// Returns the approximate cost in rows of reports.
    #[must_use]
    pub fn rows(&self) -> usize {
        match self {
            Self::WorkerMessage(_, message) => message.rows(),
            Self::WorkerReattached(_, _, reattach) => {
                1 + reattach.launching.len() + reattach.report.rows()
            }
            // The first step is done immediately.
            Self::Resubmit(..) => ROWS_PER_ROUND_MAX,
            // A large submit is queued in portions, and a long list is processed in steps.
            Self::Submit(_, submission) => submission.cost().min(ROWS_PER_ROUND_MAX),
            Self::Request(
                _,
                Command::CancelTasks { tasks, .. }
                | Command::SignalTasks { tasks, .. }
                | Command::DropEntries { tasks, .. },
            ) => {
                1 + usize::try_from(tasks.len())
                    .map_or(CANCELED_MAX, |count| count.min(CANCELED_MAX))
            }
            Self::Allocation(inputs) => inputs.len().min(ROWS_PER_ROUND_MAX),
            Self::Request(..)
            | Self::RequestGone(_)
            | Self::WorkerConnected(..)
            | Self::WorkerGone(..)
            | Self::Notified { .. }
            | Self::Ending { .. }
            | Self::Ended
            | Self::Timer
            | Self::TimerBehind(_)
            | Self::TimerHeld => 1,
        }
    }
}

/// A client's request that changes the state. The shell itself answers queries.
#[derive(Clone, Debug)]
pub enum Command {
    /// Adds tasks.
    Submit(Box<SubmitSpec>),
    /// Sends several submits in order. Each is accepted or rejected individually.
    SubmitAll(Vec<SubmitSpec>),
    /// Opens a job.
    OpenJob {
        /// The name of the job.
        name: Box<str>,
        /// The number of failed tasks that are tolerated.
        max_fails: Option<u32>,
        /// The idempotency key, which identifies a repeated command.
        key: Option<super::SubmitKey>,
    },
    /// Closes open jobs. `All` selects all open jobs.
    CloseJobs(Selector),
    /// Cancels jobs. `All` selects the unfinished and the open jobs.
    CancelJobs {
        /// The jobs to cancel.
        jobs: Selector,
        /// The reason. It is kept if tasks were canceled and the text is not empty.
        reason: Box<str>,
    },
    /// Cancels some tasks of a job, and aborts their dependents. The job continues.
    CancelTasks {
        /// The id of the job.
        job: JobId,
        /// The ids of the tasks, at most [`CANCELED_MAX`].
        tasks: IdArray,
        /// Whether running tasks are spared.
        keep_running: bool,
    },
    /// Sends a signal to running tasks of a job.
    SignalTasks {
        /// The id of the job.
        job: JobId,
        /// The ids of the tasks, at most [`CANCELED_MAX`].
        tasks: IdArray,
        /// The number of the signal, one of [`crate::outcome::SIGNALS`].
        signal: i32,
    },
    /// Holds unfinished tasks of a job, which then do not start, or releases them.
    HoldTasks {
        /// The id of the job.
        job: JobId,
        /// The ids of the tasks, in at most [`HELD_RANGES_MAX`] consecutive ranges. `None` means all
        /// tasks, and also those that are submitted later.
        tasks: Option<IdArray>,
        /// Whether to hold the tasks. `false` releases them.
        is_held: bool,
    },
    /// Changes a job and its unfinished tasks.
    ChangeJob {
        /// The id of the job.
        job: JobId,
        /// The ids of the tasks, in at most [`HELD_RANGES_MAX`] consecutive ranges. `None` means all
        /// tasks.
        tasks: Option<IdArray>,
        /// The new values.
        change: Box<JobChange>,
    },
    /// Sets, changes or removes a limit of the server.
    Limit(LimitChange),
    /// Drops the arguments of calls that have ended. Other tasks keep theirs.
    DropEntries {
        /// The id of the job.
        job: JobId,
        /// The ids of the tasks, at most [`CANCELED_MAX`].
        tasks: IdArray,
    },
    /// Forgets completed jobs in these states.
    ForgetJobs {
        /// The jobs to forget.
        jobs: Selector,
        /// The derived states of jobs to forget.
        states: Vec<TaskState>,
    },
    /// Resubmits the tasks of jobs. Each job becomes a new job.
    Resubmit {
        /// The jobs to resubmit.
        jobs: Selector,
        /// The states of the tasks to resubmit. If empty, all tasks are resubmitted.
        states: Vec<TaskState>,
        /// New requests for certain kinds of tasks.
        requests: Vec<NewRequest>,
    },
    /// Resubmits some tasks of a job as a new job. Their dependencies outside the selection count
    /// as done.
    ResubmitTasks {
        /// The job.
        job: JobId,
        /// The positions of the tasks, for each submit of the job in order. Submits beyond the end
        /// of the list have none.
        positions: Vec<IndexSet>,
    },
    /// Creates or changes a queue of automatic allocation.
    Queue(QueueCommand),
    /// Stops workers. `All` selects all connected workers.
    StopWorkers(Selector),
    /// Drains workers: they get no new tasks and stop when their tasks have ended. `All` selects
    /// all connected workers.
    DrainWorkers(Selector),
    /// Puts workers into quarantine. `All` selects all connected workers.
    QuarantineWorkers {
        /// The workers.
        workers: Selector,
        /// The length of the quarantine.
        span: Duration,
        /// The reason, which may be empty.
        why: Box<str>,
    },
    /// Releases workers from quarantine. `All` selects all workers in quarantine.
    ReleaseWorkers(Selector),
    /// Watches jobs. The answers are [`super::Effect::WatchUpdate`]s until the last one.
    Watch(WatchSpec),
}

/// The subject and the level of detail of a watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchSpec {
    /// The jobs. `All` selects all jobs that are currently unfinished.
    pub jobs: Selector,
    /// Whether an open job without unfinished tasks counts as ended.
    pub until_idle: bool,
    /// Whether to report changes of counts, and not only the end.
    pub with_progress: bool,
    /// Whether to name the tasks that have ended.
    pub with_outcomes: bool,
    /// Whether to forward messages from `hq task notify` immediately.
    pub with_notifications: bool,
    /// The minimum time between two updates.
    pub interval: Duration,
}

/// A message from a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WorkerMessage {
    /// The worker is alive.
    Heartbeat {
        /// All unkillable instances on the worker.
        unkillable: Vec<Unkillable>,
        /// The jobs whose values the worker holds. The list may be incomplete.
        held: Vec<JobId>,
        /// All known problems of the worker's node.
        faults: Vec<NodeFault>,
        /// When the message was sent, by the node's clock, if given.
        sent: Option<Timestamp>,
    },
    /// The tasks that have started, ended or been returned since the last report.
    Report(Report),
    /// A task of the worker sends a message to clients that wait for its job.
    Notify(TaskKey, std::sync::Arc<[u8]>),
    /// The hardware usage of the worker's machine.
    Overview(Box<HardwareUsage>),
    /// The worker is about to end. Its connection closes next.
    Goodbye(LostReason),
}

/// The state that a reconnecting worker reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reattach {
    /// The worker id that it was assigned.
    pub worker: WorkerId,
    /// The uid of the server that assigned it.
    pub server_uid: Box<str>,
    /// The instances that are being started.
    pub launching: Vec<(TaskKey, InstanceId)>,
    /// All running instances and all unacknowledged ends. The worker has no others.
    pub report: Report,
    /// The variants of the resource request, for instances that do not use the first variant.
    pub variants: BTreeMap<TaskKey, u32>,
    /// The number of this registration of a worker process, starting at 1. 0 means that
    /// registrations are not counted.
    pub number: u64,
}

/// A batch of news from a worker.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// The number of the report in the worker's life. The worker keeps the ends until the report is
    /// acknowledged. 0 means that no acknowledgement is needed.
    pub seq: u64,
    /// When the worker made the report, by its own clock. `None` from older workers.
    pub sent: Option<Time>,
    /// The instances that have started.
    pub started: Vec<StartedRow>,
    /// The instances that have ended.
    pub ended: Vec<EndedRow>,
    /// The instances that were retracted before they started.
    pub retracted: Vec<(TaskKey, InstanceId)>,
}

impl WorkerMessage {
    /// Returns a heartbeat without other content.
    #[must_use]
    pub const fn heartbeat() -> Self {
        Self::Heartbeat {
            unkillable: Vec::new(),
            held: Vec::new(),
            faults: Vec::new(),
            sent: None,
        }
    }

    /// Returns the approximate cost in rows of reports.
    #[must_use]
    pub fn rows(&self) -> usize {
        match self {
            Self::Report(report) => 1 + report.rows(),
            Self::Heartbeat {
                unkillable,
                held,
                faults,
                sent: _,
            } => 1 + unkillable.len() + held.len() + faults.len(),
            Self::Notify(..) | Self::Overview(_) | Self::Goodbye(_) => 1,
        }
    }
}

impl Report {
    /// Returns the number of instances that the report mentions.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.started.len() + self.ended.len() + self.retracted.len()
    }
}

/// Reports that an instance has started.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StartedRow {
    /// The job and the id of the task.
    pub task: TaskKey,
    /// The number of the instance.
    pub instance: InstanceId,
    /// How long ago the instance started.
    pub age: Duration,
}

/// Reports that an instance has ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndedRow {
    /// The job and the id of the task.
    pub task: TaskKey,
    /// The number of the instance.
    pub instance: InstanceId,
    /// The outcome of the instance.
    pub outcome: Outcome,
    /// How long ago the instance ended.
    pub age: Duration,
    /// The run time. Zero if the instance could not start.
    pub run: Duration,
    /// The resources that the instance used.
    pub usage: Usage,
}

/// The result of a command for one job of the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobResult {
    /// The command was carried out.
    Ok {
        /// The id of the job.
        job: JobId,
        /// The number of tasks that the command canceled.
        canceled: u32,
        /// The number of tasks that had already ended.
        already_finished: u32,
        /// The number of tasks in the grace period of an earlier cancel, which now get SIGKILL.
        killed: u32,
    },
    /// There was nothing to do: the job was already closed, or every task had ended.
    Already(JobId),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{JobId, TaskId};

    /// The server uses this cost to share its turns among its peers, and ends no turn early.
    #[test]
    fn a_message_counts_once_and_with_each_row_that_it_tells() {
        let row = |id| (TaskKey::new(JobId(1), TaskId(id)), InstanceId(0));
        let report = |count| Report {
            retracted: (0..count).map(row).collect(),
            ..Report::default()
        };
        assert_eq!(WorkerMessage::Report(report(0)).rows(), 1);
        assert_eq!(WorkerMessage::Report(report(3)).rows(), 4);
        assert_eq!(WorkerMessage::heartbeat().rows(), 1);
    }
}
