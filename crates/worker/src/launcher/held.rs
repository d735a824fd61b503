//! Tasks that are held to the memory that they asked for, by the kernel or by looking at them.

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
        // Before the signal: the end must not come back without its reason.
        task.excess = Some(excess);
        self.kill(excess.token);
    }

    /// Memory in KiB that a task may use; `None` = any.
    pub(super) fn memory_limit(&self, task: &LaunchTask, pools: &PoolSet) -> Option<u64> {
        let watch = self.memory.as_ref()?;
        let is_limit = task.template.task.enforce_memory;
        let limit = memory_of(task, pools).filter(|_| is_limit)?;
        watch.protect_worker();
        Some(limit)
    }

    /// Looks after the memory of a task that has started.
    pub(super) fn watch_memory(&self, token: LaunchToken, pid: u32) {
        let Some(watch) = &self.memory else { return };
        // The kernel holds those in groups, and better than a look now and then.
        let task = self.running.get(token).filter(|task| task.group.is_none());
        if let Some(limit) = task.and_then(|task| task.memory_limit) {
            watch.add(token, pid, limit);
        }
    }

    /// Looks no longer after the memory of a task; returns whether it was ended for that.
    pub(super) fn stop_watching(&self, token: LaunchToken) -> Option<MemoryOveruse> {
        let task = self.running.get(token)?;
        // At the end and not later: the number of its process may soon be somebody else's.
        if let (Some(watch), Some(_)) = (&self.memory, task.memory_limit) {
            watch.remove(token);
        }
        task.excess
    }

    /// Whether the kernel has ended a task that ended by SIGKILL.
    pub(super) fn is_oom_victim(&mut self, token: LaunchToken) -> bool {
        let before = self
            .running
            .get(token)
            .map_or(0, |task| task.oom_kills_before);
        self.oom.has_struck(before)
    }

    /// Removes the control group of a task, if it has one; returns whether it used too much.
    pub(super) fn leave_group(&mut self, token: LaunchToken) -> Option<MemoryOveruse> {
        let group = self.running.get_mut(token)?.group.take()?;
        let used = group.excess();
        let limit = group.limit;
        if let Some(groups) = &mut self.groups {
            groups.take_back(group, used.is_some());
        }
        used.map(|used| MemoryOveruse { token, used, limit })
    }

    /// Has a task held to its memory from its start on.
    pub(super) fn hold(&self, mut plan: SpawnPlan, group: Option<&TaskGroup>) -> SpawnPlan {
        if let Some(score) = self.memory.as_ref().and_then(MemoryWatch::task_score) {
            // By the child itself: what it starts before we hear of it would keep the worker's score.
            plan = plan.oom_score_adj(score);
        }
        if let Some(group) = group {
            plan = plan.cgroup(Arc::clone(&group.fd));
        }
        plan
    }

    /// A control group for a task; `None` = it is watched.
    pub(super) fn make_group(&mut self, token: LaunchToken, limit: u64) -> Option<TaskGroup> {
        let made = self.groups.as_mut()?.get(&token.0.to_string(), limit);
        made.inspect_err(|error| {
            tracing::warn!("a task is watched, because it can have no control group: {error}");
        })
        .ok()
    }
}
