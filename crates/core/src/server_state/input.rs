//! Inputs of the server's state: the closed set of events for [`super::ServerState::apply`].

use std::collections::BTreeMap;
use std::time::Duration;

use crate::hardware::HardwareUsage;
use crate::id::{InstanceId, JobId, TaskKey, WorkerId};
use crate::node_check::NodeFault;
use crate::outcome::{LostReason, Outcome, Usage};
use crate::range::{IdArray, IndexSet};
use crate::resize::NewRequest;
use crate::scheduler::demand::WorkerKind;
use crate::selector::Selector;
use crate::task::TaskState;
use crate::template::SubmitSpec;
use crate::time::{Time, Timestamp};
use crate::worker::{LinkEnd, Unkillable};
use crate::worker_config::WorkerConfig;

/// Id of a client's request until its answer; chosen by the shell, unique.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// Id of a connection that wants to become a worker; chosen by the shell, unique.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId(pub u64);

/// One thing that happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// A request of a client; answered by effects with the same id.
    Request(RequestId, Command),
    /// A submit: like [`Command::Submit`] and [`Command::SubmitAll`], prepared outside the state.
    Submit(RequestId, Box<super::Submission>),
    /// A resubmission: like [`Command::Resubmit`] and [`Command::ResubmitTasks`], with large jobs
    /// prepared outside the state.
    Resubmit(RequestId, Box<super::Again>),
    /// The client of a request is gone; only matters for [`Command::Watch`].
    RequestGone(RequestId),
    /// A worker wants to register.
    WorkerConnected(LinkId, WorkerConfig),
    /// A worker that lost its connection wants to continue.
    WorkerReattached(LinkId, WorkerConfig, Box<Reattach>),
    /// A worker said something.
    WorkerMessage(WorkerId, WorkerMessage),
    /// The current connection of a worker ended. The shell filters messages and ends of older
    /// connections.
    WorkerGone(WorkerId, LinkEnd),
    /// Outcome of a notification.
    Notified {
        /// The notification that was sent, or given up.
        key: super::NoticeKey,
        /// Attempts that it took.
        attempts: u32,
        /// Why delivery failed for good; `None` = delivered.
        error: Option<Box<str>>,
    },
    /// Kinds of workers that automatic allocation can request now.
    QueueOffers(Vec<WorkerKind>),
    /// The server shuts down: no more tasks are dispatched.
    Ending {
        /// Workers wait for the next server; otherwise they are asked to end as well.
        keep_workers: bool,
    },
    /// The server ends now, even if some workers have not left.
    Ended,
    /// [`super::ServerState::next_deadline`] has passed.
    Timer,
    /// Timer while messages of workers are queued: all that arrived until this time are handled.
    TimerBehind(Time),
    /// Timer while the store is stalled: overdue workers are spared, because their loss could not
    /// be recorded.
    TimerHeld,
}

/// Rows of inputs after which the state must be settled before it takes more, so that a client does
/// not wait for hundreds of long reports. A few milliseconds of work.
pub const ROWS_PER_ROUND_MAX: usize = 1_024;

/// Limit of tasks canceled one by one in one command. A millisecond of work.
pub const CANCELED_MAX: usize = 1_000;

impl Input {
    /// Approximate cost, in rows of reports.
    #[must_use]
    pub fn rows(&self) -> usize {
        match self {
            Self::WorkerMessage(_, message) => message.rows(),
            Self::WorkerReattached(_, _, reattach) => {
                1 + reattach.launching.len() + reattach.report.rows()
            }
            // Its first step is done at once.
            Self::Resubmit(..) => ROWS_PER_ROUND_MAX,
            // A large one is queued in portions, and a long list is processed in steps.
            Self::Submit(_, submission) => submission.cost().min(ROWS_PER_ROUND_MAX),
            Self::Request(_, Command::CancelTasks { tasks, .. }) => {
                1 + usize::try_from(tasks.len())
                    .map_or(CANCELED_MAX, |count| count.min(CANCELED_MAX))
            }
            Self::Request(..)
            | Self::RequestGone(_)
            | Self::WorkerConnected(..)
            | Self::WorkerGone(..)
            | Self::Notified { .. }
            | Self::QueueOffers(_)
            | Self::Ending { .. }
            | Self::Ended
            | Self::Timer
            | Self::TimerBehind(_)
            | Self::TimerHeld => 1,
        }
    }
}

/// Request of a client. Queries are not here: the shell answers them from the state.
#[derive(Clone, Debug)]
pub enum Command {
    /// Adds tasks.
    Submit(Box<SubmitSpec>),
    /// Several submits in order, each accepted or rejected by itself.
    SubmitAll(Vec<SubmitSpec>),
    /// Opens a job.
    OpenJob {
        /// Name of the job.
        name: Box<str>,
        /// Failed tasks tolerated.
        max_fails: Option<u32>,
        /// Idempotency key that identifies a repetition.
        key: Option<super::SubmitKey>,
    },
    /// Closes open jobs; `All` = all open ones.
    CloseJobs(Selector),
    /// Cancels jobs; `All` = unfinished and open jobs.
    CancelJobs {
        /// Jobs to cancel.
        jobs: Selector,
        /// Kept if something was canceled and the text is not empty.
        reason: Box<str>,
    },
    /// Cancels some tasks of a job, which continues; aborts their dependents.
    CancelTasks {
        /// Id of the job.
        job: JobId,
        /// Ids of the tasks, at most [`CANCELED_MAX`].
        tasks: IdArray,
        /// Whether running tasks are spared.
        keep_running: bool,
    },
    /// Drops completed jobs in these states.
    ForgetJobs {
        /// Jobs to forget.
        jobs: Selector,
        /// Derived states that may be dropped.
        states: Vec<TaskState>,
    },
    /// Resubmits the tasks of jobs, each as a new job.
    Resubmit {
        /// The jobs to resubmit.
        jobs: Selector,
        /// States of the tasks to take; empty = all tasks.
        states: Vec<TaskState>,
        /// New requests for tasks of some kinds.
        requests: Vec<NewRequest>,
    },
    /// Resubmits some tasks of a job as a new job. Their dependencies outside the selection count
    /// as done.
    ResubmitTasks {
        /// The job.
        job: JobId,
        /// Positions of the tasks, for each of its submits in order; none of further submits.
        positions: Vec<IndexSet>,
    },
    /// Stops workers; `All` = all connected ones.
    StopWorkers(Selector),
    /// Drains workers: they get no new tasks and stop when their tasks have ended. `All` = as
    /// above.
    DrainWorkers(Selector),
    /// Puts workers into quarantine; `All` = as above.
    QuarantineWorkers {
        /// The workers.
        workers: Selector,
        /// Length of the quarantine.
        span: Duration,
        /// Reason; may be empty.
        why: Box<str>,
    },
    /// Releases workers from quarantine; `All` = all of those.
    ReleaseWorkers(Selector),
    /// Follows jobs; answered by [`super::Effect::WatchUpdate`] until the last one.
    Watch(WatchSpec),
}

/// Subject and detail of a watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchSpec {
    /// The jobs; `All` = all that are unfinished now.
    pub jobs: Selector,
    /// An open job without unfinished tasks counts as ended.
    pub until_idle: bool,
    /// Report changes of counts, not only the end.
    pub with_progress: bool,
    /// Name the tasks that ended.
    pub with_outcomes: bool,
    /// Whether to forward messages from `hq task notify`, at once.
    pub with_notifications: bool,
    /// Least time between two updates.
    pub interval: Duration,
}

/// Message from a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WorkerMessage {
    /// It lives.
    Heartbeat {
        /// All unkillable instances there.
        unkillable: Vec<Unkillable>,
        /// Jobs whose values it holds, or some of them.
        held: Vec<JobId>,
        /// All problems of its node that it knows.
        faults: Vec<NodeFault>,
        /// Send time by the node's clock; `None` = not given.
        sent: Option<Timestamp>,
    },
    /// Starts, ends and returned tasks since the last report.
    Report(Report),
    /// One of its tasks sends a message to clients that wait for its job.
    Notify(TaskKey, std::sync::Arc<[u8]>),
    /// Hardware usage of its machine.
    Overview(Box<HardwareUsage>),
    /// It is about to end; its connection closes next.
    Goodbye(LostReason),
}

/// State that a reconnecting worker reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reattach {
    /// The id it was given.
    pub worker: WorkerId,
    /// The server that gave it.
    pub server_uid: Box<str>,
    /// Instances that are being started.
    pub launching: Vec<(TaskKey, InstanceId)>,
    /// All running instances, and all unacknowledged ends. The worker has no others.
    pub report: Report,
    /// Variants of the resource request, for instances with another than the first.
    pub variants: BTreeMap<TaskKey, u32>,
    /// Number of this registration of a worker process, from 1; 0 = not counted.
    pub number: u64,
}

/// One batch of news from a worker.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Number of the report in the worker's life. The worker keeps the ends until it is
    /// acknowledged; 0 = no acknowledgement needed.
    pub seq: u64,
    /// Instances that started.
    pub started: Vec<StartedRow>,
    /// Instances that ended.
    pub ended: Vec<EndedRow>,
    /// Instances that were retracted before their start.
    pub retracted: Vec<(TaskKey, InstanceId)>,
}

impl WorkerMessage {
    /// A heartbeat without other content.
    #[must_use]
    pub const fn heartbeat() -> Self {
        Self::Heartbeat {
            unkillable: Vec::new(),
            held: Vec::new(),
            faults: Vec::new(),
            sent: None,
        }
    }

    /// Approximate cost, in rows of reports.
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
    /// Number of instances that it reports about.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.started.len() + self.ended.len() + self.retracted.len()
    }
}

/// Start of an instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StartedRow {
    /// Job and id of the task.
    pub task: TaskKey,
    /// Number of the instance.
    pub instance: InstanceId,
    /// How long ago.
    pub age: Duration,
}

/// End of an instance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndedRow {
    /// Job and id of the task.
    pub task: TaskKey,
    /// Number of the instance.
    pub instance: InstanceId,
    /// Outcome.
    pub outcome: Outcome,
    /// How long ago it ended.
    pub age: Duration,
    /// Run time; zero if it could not start.
    pub run: Duration,
    /// Resources that it used.
    pub usage: Usage,
}

/// Jobs named in an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JobResult {
    /// Done.
    Ok {
        /// Id of the job.
        job: JobId,
        /// Tasks that were canceled by it.
        canceled: u32,
        /// Tasks that had ended before.
        already_finished: u32,
        /// Tasks in the grace period of an earlier cancel, which get SIGKILL now.
        killed: u32,
    },
    /// Nothing to do: already closed, or every task had ended.
    Already(JobId),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{JobId, TaskId};

    /// By this the server shares its turns among its peers, and ends none before its time.
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
