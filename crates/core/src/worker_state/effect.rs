//! The effects of a worker's state, which its shell carries out.

use std::sync::Arc;
use std::time::Duration;

use super::input::{InstanceKey, LaunchToken, WorkTemplate};
use crate::id::TaskId;
use crate::job::TemplateId;
use crate::limits::{KEY_BYTES, REPORT_BYTES, START_BYTES, VARIANT_BYTES, end_bytes};
use crate::outcome::{Outcome, Usage};
use crate::resource::pool::Grant;
use crate::template::Entries;
use crate::time::Time;

/// An action for the shell. The effects of one input are carried out in order.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Launches these instances in order. Each token gets exactly one `Failed` or `Exited` event in
    /// return.
    Launch(Vec<LaunchTask>),
    /// Fails these instances as canceled, unless their turn in the lane has come. In that case,
    /// they continue.
    Withdraw(Vec<LaunchToken>),
    /// Sends the template's signal to the process group. After the grace period, sends SIGKILL to
    /// the processes that are left.
    Terminate(LaunchToken),
    /// Sends SIGKILL to the whole task immediately.
    Kill(LaunchToken),
    /// Sends a signal to the process group of the task.
    Signal(LaunchToken, i32),
    /// Sends a report to the server.
    Report(Report),
    /// Drops a template that no later launch uses.
    DropTemplate(TemplateId),
    /// Says goodbye to a server that shuts down. The tasks continue, but this server gets no
    /// further reports.
    Farewell,
    /// Kills remaining processes, says goodbye and exits. No effect follows.
    Exit(ExitReason),
}

/// An instance to launch.
#[derive(Clone, Debug)]
pub struct LaunchTask {
    /// Whether the task arrived together with many others, so that no client waits for this task
    /// alone.
    pub is_one_of_many: bool,
    /// The token of the launch.
    pub token: LaunchToken,
    /// The token of the first launch in the lane. The launches of a lane share a grant and run one
    /// after the other, in launch order.
    pub lane: LaunchToken,
    /// The task to launch.
    pub template: Arc<WorkTemplate>,
    /// The task and instance.
    pub key: InstanceKey,
    /// The variant of the resource request, which is valid for the template.
    pub variant: u32,
    /// The resources that the task may use.
    pub grant: Arc<Grant>,
    /// The entries of the assignment, and the position of the task among them.
    pub entries: Option<(Entries, u32)>,
    /// The host names of a multi-node task, root first. Empty for other tasks.
    pub nodes: Arc<[Box<str>]>,
}

impl LaunchTask {
    /// Returns the value of `HQ_ENTRY` for the task.
    #[must_use]
    pub fn entry(&self) -> Option<&[u8]> {
        self.entries
            .as_ref()
            .and_then(|(entries, position)| entries.get(*position))
    }

    /// Returns the id of the task within its job.
    #[must_use]
    pub const fn task_id(&self) -> TaskId {
        self.key.task.task
    }
}

/// The reason why a worker ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitReason {
    /// The server stopped the worker.
    Stopped,
    /// The worker was idle for longer than its idle timeout.
    IdleTimeout,
    /// The worker's own time limit expired.
    TimeLimit,
    /// A signal or a user interrupted the worker.
    Interrupted,
    /// The batch system ended the allocation.
    Preempted,
    /// The server was lost.
    ServerLost,
    /// The server shut down and knows that the worker ends.
    ServerEnded,
}

/// A batch of events for the server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// The number of the report. Reports with completions are numbered from 1, and the worker keeps
    /// them until the server acknowledges their number. The number is 0 if there are no
    /// completions.
    pub seq: u64,
    /// When the report was made.
    pub sent: Option<Time>,
    /// The instances that have started and are still running as far as the worker knows.
    pub started: Vec<StartedRow>,
    /// The instances that have ended. An instance that is in no `started` list has started and
    /// ended since the last report.
    pub ended: Vec<EndedRow>,
    /// The instances that have not started and will not start, because the server retracted them or
    /// because they cannot start on this worker.
    pub retracted: Vec<InstanceKey>,
}

impl Report {
    /// Returns whether the report is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.started.is_empty() && self.ended.is_empty() && self.retracted.is_empty()
    }
}

impl Report {
    /// Returns an upper bound on the size of the report's message in bytes.
    #[must_use]
    pub fn wire_bytes(&self) -> usize {
        let ended = self.ended.iter().map(|row| end_bytes(&row.outcome));
        ended.sum::<usize>()
            + self.started.len() * START_BYTES
            + self.retracted.len() * KEY_BYTES
            + REPORT_BYTES
    }
}

/// All tasks of a worker, sorted by job and task, for the server that it reconnects to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Holding {
    /// The instances that were passed to the launcher and may start at any moment, and completed
    /// instances that a later report contains.
    pub launching: Vec<InstanceKey>,
    /// The running instances.
    pub started: Vec<StartedRow>,
    /// The variants of the resource request, for instances that do not use the first one.
    pub variants: Vec<(InstanceKey, u32)>,
}

impl Holding {
    /// Returns an upper bound on the size of the encoded registration in bytes, without the
    /// configuration.
    #[must_use]
    pub fn wire_bytes(&self) -> usize {
        self.launching.len() * KEY_BYTES
            + self.started.len() * START_BYTES
            + self.variants.len() * VARIANT_BYTES
            + REPORT_BYTES
    }
}

/// The start of an instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StartedRow {
    /// The task and instance.
    pub key: InstanceKey,
    /// How long before the report the instance started.
    pub age: Duration,
}

/// The completion of an instance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndedRow {
    /// The task and instance.
    pub key: InstanceKey,
    /// The outcome.
    pub outcome: Outcome,
    /// How long before the report the instance ended.
    pub age: Duration,
    /// The run time, or zero if the instance never started.
    pub run: Duration,
    /// The resource usage.
    pub usage: Usage,
}
