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

/// One thing to do. Effects of one input are carried out in order.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Launch these, in this order. Each token gets exactly one `Failed` or `Exited` event in return.
    Launch(Vec<LaunchTask>),
    /// Fail these as cancelled, unless their turn in the lane has come: those go on.
    Withdraw(Vec<LaunchToken>),
    /// The template's signal to the process group, SIGKILL to all that is left of it after its grace.
    Terminate(LaunchToken),
    /// SIGKILL to all that is left of it, now.
    Kill(LaunchToken),
    /// Tell the server.
    Report(Report),
    /// No later launch uses this template.
    DropTemplate(TemplateId),
    /// Say goodbye to the server, which ends: tasks go on here, and it must wait for no other word of them. No report
    /// follows.
    Farewell,
    /// Kill what is left, say goodbye, end. Nothing follows.
    Exit(ExitReason),
}

/// One instance to launch.
#[derive(Clone, Debug)]
pub struct LaunchTask {
    /// It came with many others at once, so that nobody waits for the end of each.
    pub is_one_of_many: bool,
    /// Name of the launch.
    pub token: LaunchToken,
    /// Token of the first launch of its lane: launches of one lane share a grant and run one after the other,
    /// in the order in which they were handed over.
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
    /// Nothing to do for longer than the idle timeout.
    IdleTimeout,
    /// The worker's own time limit.
    TimeLimit,
    /// A signal, or a person.
    Interrupted,
    /// The batch system ended the allocation.
    Preempted,
    /// The server is gone.
    ServerLost,
    /// The server said that it ends, and was told of the end of the worker.
    ServerEnded,
}

/// One batch of news for the server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Counts reports with ends, from 1; they are kept until the server acknowledges the number. 0 =
    /// the report has none.
    pub seq: u64,
    /// Instances that started and, as far as is known, still run.
    pub started: Vec<StartedRow>,
    /// Instances that ended. One that is not listed in any `started` ran and ended since the last report.
    pub ended: Vec<EndedRow>,
    /// Instances that have not started and will not: asked back by the server, or returned unasked
    /// because they cannot start here (any more).
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

/// Everything that a worker has, for a server that it returns to; by job and task.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Holding {
    /// Handed to the launcher, and may run any moment; or ended, which a later report tells.
    pub launching: Vec<InstanceKey>,
    /// All that runs.
    pub started: Vec<StartedRow>,
    /// Variants of the resource request of those that have not the first one.
    pub variants: Vec<(InstanceKey, u32)>,
}

impl Holding {
    /// Upper bound of the bytes of the registration that names all this, without the configuration of the worker.
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
    /// How long it ran; zero if it never started.
    pub run: Duration,
    /// Resource usage.
    pub usage: Usage,
}
