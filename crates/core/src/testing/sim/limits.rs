//! Limits on running tasks, seen from the processes.

use std::collections::BTreeMap;

use super::World;
use crate::bound::Bound;
use crate::id::JobId;
use crate::worker::Worker;

impl World {
    /// Panics if more tasks run on live workers than their limits allow. Tasks that were asked to
    /// end do not count: this world lets them live longer than a worker does.
    pub(super) fn check_limits(&mut self) {
        // After a limit of a job was lowered, more tasks than it allows may have been sent.
        let (state, nodes) = (&self.state, &self.nodes);
        self.lowered.retain(|id| {
            let placed = state.workers().values().flat_map(Worker::placed_tasks);
            let placed = placed.filter(|task| task.job == *id).count();
            let processes = nodes.values().flat_map(|node| node.processes.values());
            let launched = processes.filter(|process| process.key.task.job == *id);
            let sent = placed.max(launched.count());
            let max = state.jobs().get(id).and_then(|job| job.max_running);
            max.is_some_and(|max| sent > max as usize)
        });
        let mut running: BTreeMap<JobId, u32> = BTreeMap::new();
        let mut fixed = 0;
        let live = self.state.workers();
        let nodes = self.nodes.values();
        let nodes = nodes.filter(|node| node.id.is_some_and(|id| live.contains_key(&id)));
        for process in nodes.flat_map(|node| node.processes.values()) {
            let key = process.key.task;
            let Some(job) = self.state.jobs().get(&key.job).filter(|_| process.runs()) else {
                continue;
            };
            *running.entry(key.job).or_default() += 1;
            let submit = job.find(key.task).and_then(|slot| job.submit(slot));
            let uses = submit.map_or(&[][..], |submit| &submit.limits.uses);
            let part = uses.iter().find(|part| &*part.name == "fixed");
            fixed += part.map_or(0, |part| part.amount);
        }
        if let Some(Bound::Running(max)) = self.state.task_limits().bound("fixed") {
            assert!(
                fixed <= max,
                "{fixed} of {max} places of the limit are used"
            );
        }
        running.retain(|id, _| !self.lowered.contains(id));
        for (id, count) in running {
            let max = self.state.jobs()[&id].max_running;
            assert!(
                max.is_none_or(|max| count <= max),
                "{count} tasks of job {id} run"
            );
        }
    }
}
