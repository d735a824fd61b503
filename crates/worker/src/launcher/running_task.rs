//! The shell's record of a launched instance: what to clean up and how to name it in errors.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use hq_core::template::{ByteText, Entries};
use hq_core::worker_state::{InstanceKey, LaunchToken, WorkTemplate};

use super::amounts::Given;
use super::control_group::TaskGroup;
use super::memory::MemoryOveruse;
use crate::output::Cleanup;

/// One launched instance.
#[derive(Debug)]
pub(super) struct RunningTask {
    pub(super) key: InstanceKey,
    pub(super) template: Arc<WorkTemplate>,
    /// Entries of its assignment and its position among them.
    pub(super) entries: Option<(Entries, u32)>,
    pub(super) cwd: PathBuf,
    /// `None` = nothing to do, which is the usual case.
    pub(super) cleanup: Option<Cleanup>,
    /// Memory it may use, in KiB; `None` = not watched.
    pub(super) memory_limit: Option<u64>,
    /// Beside which its use over time is shown.
    pub(super) given: Given,
    /// Where the kernel holds it to that.
    pub(super) group: Option<TaskGroup>,
    /// Processes that the kernel had killed for lack of memory when it was launched.
    pub(super) oom_kills_before: u64,
    /// It was killed for using more.
    pub(super) excess: Option<MemoryOveruse>,
}

impl RunningTask {
    /// `HQ_ENTRY` of the task.
    pub(super) fn entry(&self) -> Option<&[u8]> {
        let (entries, position) = self.entries.as_ref()?;
        entries.get(*position)
    }

    /// Program and arguments with the values of the task.
    pub(super) fn args(&self) -> Vec<ByteText> {
        let template = &self.template.task;
        template.filled_args(&template.arg_values(self.key.task.task, self.entry()))
    }
}

/// All launched instances whose last launcher event has not been seen.
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
