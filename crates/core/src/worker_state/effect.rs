//! Effects of a worker's state, for its shell to carry out.

use std::sync::Arc;
use std::time::Duration;

use super::input::{InstanceKey, LaunchToken, WorkTemplate};
use crate::id::TaskId;
use crate::job::TemplateId;
use crate::limits::{KEY_BYTES, REPORT_BYTES, START_BYTES, VARIANT_BYTES, end_bytes};
use crate::outcome::{Outcome, Usage};
use crate::resource::pool::Grant;
use crate::template::Entries;

/// One action of the shell. Effects of one input are carried out in order.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Launches these, in order. Each token gets exactly one `Failed` or `Exited` event in return.
    Launch(Vec<LaunchTask>),
    /// Fails these as canceled, unless their turn in the lane has come: those continue.
    Withdraw(Vec<LaunchToken>),
    /// Sends the template's signal to the process group, and SIGKILL to leftovers after the grace
    /// period.
    Terminate(LaunchToken),
    /// Sends SIGKILL to the whole task, now.
    Kill(LaunchToken),
    /// Tell the server.
    Report(Report),
    /// No later launch uses this template.
    DropTemplate(TemplateId),
    /// Says goodbye to the server, which shuts down: tasks continue here, but it gets no further
    /// reports.
    Farewell,
    /// Kills leftovers, says goodbye, exits. Nothing follows.
    Exit(ExitReason),
}

/// One instance to launch.
#[derive(Clone, Debug)]
pub struct LaunchTask {
    /// It came with many others at once, so no client waits for each end.
    pub is_one_of_many: bool,
    /// Name of the launch.
    pub token: LaunchToken,
    /// Token of the first launch of its lane: launches of one lane share a grant and run one after
    /// the other, in the order of launching.
    pub lane: LaunchToken,
    /// The task to launch.
    pub template: Arc<WorkTemplate>,
    /// Task and instance.
    pub key: InstanceKey,
    /// Variant of the resource request, valid for the template.
    pub variant: u32,
    /// Resources that it may use.
    pub grant: Arc<Grant>,
    /// Entries of its assignment and its position among them.
    pub entries: Option<(Entries, u32)>,
    /// Host names of a multi-node task, the root first; empty for others.
    pub nodes: Arc<[Box<str>]>,
}

impl LaunchTask {
    /// `HQ_ENTRY` of the task.
    #[must_use]
    pub fn entry(&self) -> Option<&[u8]> {
        self.entries
            .as_ref()
            .and_then(|(entries, position)| entries.get(*position))
    }

    /// Id of the task inside its job.
    #[must_use]
    pub const fn task_id(&self) -> TaskId {
        self.key.task.task
    }
}

/// Why a worker ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ExitReason {
    /// The server said so.
    Stopped,
    /// Idle for longer than the idle timeout.
    IdleTimeout,
    /// The worker's own time limit.
    TimeLimit,
    /// A signal, or a person.
    Interrupted,
    /// The batch system ended the allocation.
    Preempted,
    /// The server is gone.
    ServerLost,
    /// The server shut down, and learned of the end of the worker.
    ServerEnded,
}

/// One batch of news for the server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Number of the report, counting reports with ends from 1; the worker keeps these reports
    /// until the server acknowledges the number. 0 = no ends.
    pub seq: u64,
    /// Instances that started and, as far as known, still run.
    pub started: Vec<StartedRow>,
    /// Instances that ended. One that is in no `started` list started and ended since the last
    /// report.
    pub ended: Vec<EndedRow>,
    /// Instances that have not started and will not: retracted by the server, or returned because
    /// they cannot start here.
    pub retracted: Vec<InstanceKey>,
}

impl Report {
    /// Whether there is nothing to say.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.started.is_empty() && self.ended.is_empty() && self.retracted.is_empty()
    }
}

impl Report {
    /// Upper bound of the bytes of its message.
    #[must_use]
    pub fn wire_bytes(&self) -> usize {
        let ended = self.ended.iter().map(|row| end_bytes(&row.outcome));
        ended.sum::<usize>()
            + self.started.len() * START_BYTES
            + self.retracted.len() * KEY_BYTES
            + REPORT_BYTES
    }
}

/// All tasks of a worker, for the server that it reconnects to; by job and task.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Holding {
    /// Handed to the launcher, and may start any moment; or ended, which a later report contains.
    pub launching: Vec<InstanceKey>,
    /// All that runs.
    pub started: Vec<StartedRow>,
    /// Variants of the resource request, for instances with another than the first.
    pub variants: Vec<(InstanceKey, u32)>,
}

impl Holding {
    /// Upper bound of the encoded registration with all this, without the configuration.
    #[must_use]
    pub fn wire_bytes(&self) -> usize {
        self.launching.len() * KEY_BYTES
            + self.started.len() * START_BYTES
            + self.variants.len() * VARIANT_BYTES
            + REPORT_BYTES
    }
}

/// Start of an instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StartedRow {
    /// Task and instance.
    pub key: InstanceKey,
    /// How long before the report.
    pub age: Duration,
}

/// End of an instance.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndedRow {
    /// Task and instance.
    pub key: InstanceKey,
    /// Outcome.
    pub outcome: Outcome,
    /// How long before the report.
    pub age: Duration,
    /// Run time; zero if it never started.
    pub run: Duration,
    /// Resource usage.
    pub usage: Usage,
}
