//! The launcher's record of a launched instance: what to clean up, and how to name it in errors.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use hq_core::template::{ByteText, Entries};
use hq_core::worker_state::{InstanceKey, LaunchToken, WorkTemplate};

use super::amounts::GrantedAmounts;
use super::control_group::TaskGroup;
use super::memory::MemoryOveruse;
use crate::output::Cleanup;

/// One launched instance.
#[derive(Debug)]
pub(super) struct RunningTask {
    pub(super) key: InstanceKey,
    pub(super) template: Arc<WorkTemplate>,
    /// The entries of its assignment, and the task's position among them.
    pub(super) entries: Option<(Entries, u32)>,
    pub(super) cwd: PathBuf,
    /// `None` if there is nothing to clean up, which is the usual case.
    pub(super) cleanup: Option<Cleanup>,
    /// The memory that the task may use, in KiB. `None` if it is not watched.
    pub(super) memory_limit: Option<u64>,
    /// The granted amounts, shown next to the usage curve of the task.
    pub(super) given: GrantedAmounts,
    /// The control group that enforces the limit.
    pub(super) group: Option<TaskGroup>,
    /// The number of OOM kills before the launch.
    pub(super) oom_kills_before: u64,
    /// Set if the task was killed for using too much memory.
    pub(super) excess: Option<MemoryOveruse>,
}

impl RunningTask {
    /// Returns the value of `HQ_ENTRY` for the task.
    pub(super) fn entry(&self) -> Option<&[u8]> {
        let (entries, position) = self.entries.as_ref()?;
        entries.get(*position)
    }

    /// Returns the program and its arguments with the task's parameters filled in.
    pub(super) fn args(&self) -> Vec<ByteText> {
        let template = &self.template.task;
        template.filled_args(&template.arg_values(self.key.task.task, self.entry()))
    }
}

/// All launched instances for which more launcher events will follow.
#[derive(Debug, Default)]
pub(super) struct RunningTasks(BTreeMap<LaunchToken, RunningTask>);

impl RunningTasks {
    pub(super) fn insert(&mut self, token: LaunchToken, task: RunningTask) {
        self.0.insert(token, task);
    }

    pub(super) fn get(&self, token: LaunchToken) -> Option<&RunningTask> {
        self.0.get(&token)
    }

    pub(super) fn get_mut(&mut self, token: LaunchToken) -> Option<&mut RunningTask> {
        self.0.get_mut(&token)
    }

    pub(super) fn remove(&mut self, token: LaunchToken) -> Option<RunningTask> {
        self.0.remove(&token)
    }
}
