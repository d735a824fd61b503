//! What the shell remembers of a launched instance: what to clean up and how to name it in errors.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use hq_core::worker_state::{LaunchToken, WorkTemplate};

use crate::output::Cleanup;

/// One launched instance.
#[derive(Debug)]
pub(crate) struct RunningTask {
    pub(crate) template: Arc<WorkTemplate>,
    pub(crate) cwd: PathBuf,
    /// `None` = nothing to do, which is the usual case.
    pub(crate) cleanup: Option<Cleanup>,
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

    pub(crate) fn remove(&mut self, token: LaunchToken) -> Option<RunningTask> {
        self.0.remove(&token)
    }
}
