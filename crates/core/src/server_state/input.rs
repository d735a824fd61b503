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

/// Names a request of a client until it is answered; chosen by the shell, unique.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// Names a connection that wants to become a worker; chosen by the shell, unique.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId(pub u64);

/// One thing that happened.
#[derive(Clone, Debug)]
pub enum Input {
    /// A client asks for something; answered by effects that carry the same id.
    Request(RequestId, Command),
    /// A client submits: as [`Command::Submit`] and [`Command::SubmitAll`], but what does not need the state is
    /// done.
    Submit(RequestId, Box<super::Submission>),
    /// A client submits jobs again: as [`Command::Resubmit`] and [`Command::ResubmitTasks`], but large ones were looked at.
    Resubmit(RequestId, Box<super::Again>),
    /// The client of a request is gone; only matters for [`Command::Watch`].
    RequestGone(RequestId),
    /// A worker wants to register.
    WorkerConnected(LinkId, WorkerConfig),
    /// A worker that lost its connection wants to go on where it was.
    WorkerReattached(LinkId, WorkerConfig, Box<Reattach>),
    /// A worker said something.
    WorkerMessage(WorkerId, WorkerMessage),
    /// The current connection of a worker ended. What an older connection still says or does is kept
    /// away by the shell.
    WorkerGone(WorkerId, LinkEnd),
    /// Outcome of a notification.
    Notified {
        /// The notification that was sent, or given up.
        key: super::NoticeKey,
        /// Attempts that it took.
        attempts: u32,
        /// Why it was given up; `None` = it was delivered.
        error: Option<Box<str>>,
    },
    /// Kinds of workers that automatic allocation can ask for now.
    QueueOffers(Vec<WorkerKind>),
    /// The server is to end: nothing is handed out any more.
    Ending {
        /// Workers wait for the next server; otherwise they are told to end, too.
        keep_workers: bool,
    },
    /// The server ends now, whether all workers that were told to end have done so or not.
    Ended,
    /// [`super::ServerState::next_deadline`] has passed.
    Timer,
    /// The same while messages of workers wait for their turn: all that arrived until this time had it.
    TimerBehind(Time),
    /// The same while the store takes nothing: the loss of a worker could not be stored, so nobody is lost.
    TimerHeld,
}

/// Rows of inputs after which the state must be settled before it takes more, so that a client that waits for
/// an answer does not wait for hundreds of long reports. A few milliseconds of work.
pub const ROWS_PER_ROUND_MAX: usize = 1_024;

/// Tasks that are canceled by one command, each of them by itself. A millisecond of work.
pub const CANCELED_MAX: usize = 1_000;

impl Input {
    /// About how much there is to do about it, in rows of reports.
    #[must_use]
    pub fn rows(&self) -> usize {
        match self {
            Self::WorkerMessage(_, message) => message.rows(),
            Self::WorkerReattached(_, _, reattach) => {
                1 + reattach.launching.len() + reattach.report.rows()
            }
            // Its first portion is done at once.
            Self::Resubmit(..) => ROWS_PER_ROUND_MAX,
            // Of a large one there is only a portion to do at a time.
            Self::Submit(_, submission) => submission.size().min(ROWS_PER_ROUND_MAX),
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

/// Request of a client. Queries are answered by the shell from the state and are not here.
#[derive(Clone, Debug)]
pub enum Command {
    /// Adds tasks.
    Submit(Box<SubmitSpec>),
    /// Several submits in order, each of which is accepted or refused by itself.
    SubmitAll(Vec<SubmitSpec>),
    /// Opens a job.
    OpenJob {
        /// Name of the job.
        name: Box<str>,
        /// Failed tasks tolerated.
        max_fails: Option<u32>,
        /// Key by which it is recognised when the client asks once more.
        key: Option<super::SubmitKey>,
    },
    /// Closes open jobs; `All` = those that are open.
    CloseJobs(Selector),
    /// Cancels jobs; `All` = those that have unfinished tasks or are open.
    CancelJobs {
        /// Jobs to cancel.
        jobs: Selector,
        /// Kept if something was canceled and the text is not empty.
        reason: Box<str>,
    },
    /// Cancels some tasks of a job, which goes on; what depends on them is aborted.
    CancelTasks {
        /// Id of the job.
        job: JobId,
        /// Ids of the tasks, at most [`CANCELED_MAX`].
        tasks: IdArray,
        /// Whether those that run go on.
        keep_running: bool,
    },
    /// Drops completed jobs in these states.
    ForgetJobs {
        /// Jobs to forget.
        jobs: Selector,
        /// Derived states that may be dropped.
        states: Vec<TaskState>,
    },
    /// Submits the tasks of jobs again, each as a new job.
    Resubmit {
        /// Jobs whose tasks are submitted again.
        jobs: Selector,
        /// States of the tasks to take; empty = all tasks.
        states: Vec<TaskState>,
        /// What tasks of some kinds ask for instead of what they did.
        requests: Vec<NewRequest>,
    },
    /// Submits some tasks of a job again, as a new job. What they depended on besides each other is done.
    ResubmitTasks {
        /// The job.
        job: JobId,
        /// Of each of its submits, in their order, the positions of the tasks; of further ones none.
        positions: Vec<IndexSet>,
    },
    /// Asks workers to end; `All` = those that are connected.
    StopWorkers(Selector),
    /// Has workers end once what runs on them has ended; they get no new tasks. `All` = as above.
    DrainWorkers(Selector),
    /// Gives workers no tasks for a while; `All` = as above.
    QuarantineWorkers {
        /// The workers.
        workers: Selector,
        /// Length of the quarantine.
        span: Duration,
        /// Reason; may be empty.
        why: Box<str>,
    },
    /// Gives tasks again to workers that were set aside; `All` = all of those.
    ReleaseWorkers(Selector),
    /// Follows jobs; answered by [`super::Effect::WatchUpdate`] until the last one.
    Watch(WatchSpec),
}

/// Subject and detail of a watch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WatchSpec {
    /// The jobs; `All` = those that are unfinished now.
    pub jobs: Selector,
    /// An open job without unfinished tasks counts as ended.
    pub until_idle: bool,
    /// Report changes of counts, not only the end.
    pub with_progress: bool,
    /// Name the tasks that ended.
    pub with_outcomes: bool,
    /// Pass on what tasks send with `hq task notify`, at once.
    pub with_notifications: bool,
    /// Least time between two updates.
    pub interval: Duration,
}

/// Message from a worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WorkerMessage {
    /// It lives.
    Heartbeat {
        /// All instances there that cannot be killed.
        unkillable: Vec<Unkillable>,
        /// Jobs of which it holds values, or some of them.
        held: Vec<JobId>,
        /// All that is wrong with its node, as far as it can tell.
        faults: Vec<NodeFault>,
        /// When it was sent, by the clock of the node; `None` = it does not say.
        sent: Option<Timestamp>,
    },
    /// Starts, ends and returned tasks since the last report.
    Report(Report),
    /// One of its tasks has something to say to those who wait.
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
    /// Instances that are being started and may run any moment.
    pub launching: Vec<(TaskKey, InstanceId)>,
    /// All instances that run, and all ends that were not acknowledged. Nothing else is there.
    pub report: Report,
    /// Variants of the resource request of those that have not the first one.
    pub variants: BTreeMap<TaskKey, u32>,
    /// Counts such registrations of one worker process from 1; 0 = it does not count them.
    pub number: u64,
}

/// One batch of news from a worker.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Number of the report in the life of the worker, which keeps the ends until the number is
    /// acknowledged; 0 = nothing to acknowledge.
    pub seq: u64,
    /// Instances that started.
    pub started: Vec<StartedRow>,
    /// Instances that ended.
    pub ended: Vec<EndedRow>,
    /// Instances that were asked back and had not started.
    pub retracted: Vec<(TaskKey, InstanceId)>,
}

impl WorkerMessage {
    /// A heartbeat with nothing else to say.
    #[must_use]
    pub const fn heartbeat() -> Self {
        Self::Heartbeat {
            unkillable: Vec::new(),
            held: Vec::new(),
            faults: Vec::new(),
            sent: None,
        }
    }

    /// About how much there is to do about it, in rows of reports.
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
    /// How many instances it says something about.
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
    /// How long it ran; zero if it could not start.
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
        /// Tasks that an earlier cancel left to their grace period, and that get SIGKILL now.
        killed: u32,
    },
    /// Nothing to do: closed already, or every task had ended.
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
