//! What the shell remembers of a launched instance: what to clean up and how to name it in errors.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use hq_core::worker_state::{InstanceKey, LaunchToken, WorkTemplate};

use crate::launcher::{Excess, TaskGroup};
use crate::output::Cleanup;

/// One launched instance.
#[derive(Debug)]
pub(crate) struct RunningTask {
    pub(crate) key: InstanceKey,
    pub(crate) template: Arc<WorkTemplate>,
    pub(crate) cwd: PathBuf,
    /// `None` = nothing to do, which is the usual case.
    pub(crate) cleanup: Option<Cleanup>,
    /// Memory it may use, in KiB; `None` = not watched.
    pub(crate) memory_limit: Option<u64>,
    /// Where the kernel holds it to that.
    pub(crate) group: Option<TaskGroup>,
    /// Processes that the kernel had killed for lack of memory when it was launched.
    pub(crate) oom_kills_before: u64,
    /// It was killed for using more.
    pub(crate) excess: Option<Excess>,
}

/// All launched instances whose last launcher event has not been seen.
#[derive(Debug, Default)]
pub(crate) struct RunningTasks(BTreeMap<LaunchToken, RunningTask>);

impl RunningTasks {
    pub(crate) fn insert(&mut self, token: LaunchToken, task: RunningTask) {
        self.0.insert(token, task);
    }

    pub(crate) fn get(&self, token: LaunchToken) -> Option<&RunningTask> {
        self.0.get(&token)
    }

    pub(crate) fn get_mut(&mut self, token: LaunchToken) -> Option<&mut RunningTask> {
        self.0.get_mut(&token)
    }

    pub(crate) fn remove(&mut self, token: LaunchToken) -> Option<RunningTask> {
        self.0.remove(&token)
    }
}
