//! Enforces memory limits of tasks, with control groups or by watching processes.

use std::sync::Arc;

use hq_core::resource::pool::PoolSet;
use hq_core::worker_state::{LaunchTask, LaunchToken};
use hq_spawn::SpawnPlan;

use super::amounts::memory_of;
use super::control_group::TaskGroup;
use super::memory::{MemoryOveruse, MemoryWatch};
use super::{TaskLauncher, calls};

impl TaskLauncher {
    pub(super) fn end_for_memory(&mut self, excess: MemoryOveruse) {
        if calls::is_interpreter(excess.token.0) {
            self.end_interpreter_for_memory(excess);
            return;
        }
        let Some(task) = self.running.get_mut(excess.token) else {
            return;
        };
        // The reason is set before the signal is sent, so that the end event does not arrive
        // without it.
        task.excess = Some(excess);
        self.kill(excess.token);
    }

    /// Returns the memory in KiB that a task may use, or `None` if it is unlimited.
    pub(super) fn memory_limit(&self, task: &LaunchTask, pools: &PoolSet) -> Option<u64> {
        let watch = self.memory.as_ref()?;
        let is_limit = task.template.task.enforce_memory;
        let limit = memory_of(task, pools).filter(|_| is_limit)?;
        watch.protect_worker();
        Some(limit)
    }

    /// Starts to watch the memory of a task.
    pub(super) fn watch_memory(&self, token: LaunchToken, pid: u32) {
        let Some(watch) = &self.memory else { return };
        // The kernel enforces the limits of groups better than sampling could.
        let task = self.running.get(token).filter(|task| task.group.is_none());
        if let Some(limit) = task.and_then(|task| task.memory_limit) {
            watch.add(token, pid, limit);
        }
    }

    /// Stops watching the memory of a task. Returns the excess if the task was killed because of
    /// it.
    pub(super) fn stop_watching(&self, token: LaunchToken) -> Option<MemoryOveruse> {
        let task = self.running.get(token)?;
        // This is done immediately when the task ends, because the pid may soon be reused.
        if let (Some(watch), Some(_)) = (&self.memory, task.memory_limit) {
            watch.remove(token);
        }
        task.excess
    }

    /// Returns whether the OOM killer ended a task that died by SIGKILL.
    pub(super) fn is_oom_victim(&mut self, token: LaunchToken) -> bool {
        let before = self
            .running
            .get(token)
            .map_or(0, |task| task.oom_kills_before);
        self.oom.has_struck(before)
    }

    /// Removes a task from its control group, if it has one. Returns the excess if it used too much
    /// memory.
    pub(super) fn leave_group(&mut self, token: LaunchToken) -> Option<MemoryOveruse> {
        let group = self.running.get_mut(token)?.group.take()?;
        let used = group.excess();
        let limit = group.limit;
        if let Some(groups) = &mut self.groups {
            groups.take_back(group, used.is_some());
        }
        used.map(|used| MemoryOveruse { token, used, limit })
    }

    /// Adds the enforcement of the memory limit to a plan.
    pub(super) fn hold(&self, mut plan: SpawnPlan, group: Option<&TaskGroup>) -> SpawnPlan {
        if let Some(score) = self.memory.as_ref().and_then(MemoryWatch::task_score) {
            // The child itself sets the score. Otherwise, processes that it starts early would
            // inherit the worker's score.
            plan = plan.oom_score_adj(score);
        }
        if let Some(group) = group {
            plan = plan.cgroup(Arc::clone(&group.fd));
        }
        plan
    }

    /// Returns a control group for a task, or `None` if the task must be watched instead.
    pub(super) fn make_group(&mut self, token: LaunchToken, limit: u64) -> Option<TaskGroup> {
        let made = self.groups.as_mut()?.get(&token.0.to_string(), limit);
        made.inspect_err(|error| {
            tracing::warn!("a task is sampled, because it cannot have a control group: {error}");
        })
        .ok()
    }
}
