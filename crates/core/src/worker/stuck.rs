//! Tasks that a worker should have started and did not: there is less room than the server counts.

use std::time::Duration;

use super::{Assigned, Worker};
use crate::class::{ClassId, Classes};
use crate::id::{InstanceId, TaskKey};
use crate::time::Time;

/// The age at which a placed task that has not started counts as stuck. In that case there is less
/// room than counted, for example because of fractions of several items or partly used groups.
pub(crate) const STUCK_AFTER: Duration = Duration::from_millis(500);

impl Worker {
    /// Returns whether tasks of a variant were counted as fitting but did not start.
    #[must_use]
    pub fn is_stuck(&self, class: ClassId, variant: u32) -> bool {
        // The set is nearly always empty, and this is called for every pair of a round.
        !self.stuck.is_empty() && self.stuck.contains(&(class, variant))
    }

    pub(crate) fn is_any_stuck(&self) -> bool {
        !self.stuck.is_empty()
    }

    /// Returns the tasks to retract: those placed before `sent_before` that have not started
    /// although other tasks are running.
    pub(crate) fn recall_unstarted(&mut self, sent_before: Time) -> Vec<(TaskKey, InstanceId)> {
        // If no task is running, the worker is about to start these tasks. A disconnected worker
        // cannot report a start.
        if self.placed_len <= self.running
            || self.running == 0
            || self.node().is_some()
            || self.is_away()
        {
            return Vec::new();
        }
        let mut recalled = Vec::new();
        for (task, assigned) in &mut self.assigned {
            let is_late = assigned.placed && !assigned.started && assigned.at < sent_before;
            if is_late && !assigned.retracting {
                assigned.retracting = true;
                recalled.push((*task, assigned.instance));
            }
        }
        recalled
    }

    /// Removes a task that the worker returned unstarted, whether requested or not. If the worker
    /// had time to start it, there is less room than counted. In that case, rounds do not count on
    /// that variant again until a task ends on the worker or leaves its backlog. A task that hangs
    /// during its start is not returned.
    pub(crate) fn remove_unstarted(
        &mut self,
        task: TaskKey,
        instance: InstanceId,
        now: Time,
        classes: &Classes,
    ) -> Option<Assigned> {
        let was_idle = self.running == 0;
        let assigned = self.take_out(task, instance, classes)?;
        // The worker may have kept room for a task that waited there.
        if !assigned.placed || was_idle {
            self.stuck.clear();
        }
        let had_time = assigned.at + STUCK_AFTER <= now;
        if assigned.placed && assigned.retracting && had_time && self.running > 0 {
            self.stuck.insert((assigned.key.class, assigned.variant));
        }
        Some(assigned)
    }

    /// Returns whether some placed tasks have not started although other tasks are running.
    pub(crate) fn may_be_stuck(&self) -> bool {
        self.running > 0 && self.placed_len > self.running
    }
}
