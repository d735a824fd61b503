//! From demand to the sizes of the allocations to ask for.

use std::collections::VecDeque;

use super::{AutoallocState, Effect, Queue, QueueState};
use crate::scheduler::demand::{QueueDemand, WorkerKind};
use crate::time::Now;

impl AutoallocState {
    /// Asks the scheduler for all queues that may submit.
    pub(super) fn ask_demand(&mut self, now: Now, effects: &mut Vec<Effect>) {
        self.dirty_since = None;
        self.last_try = Some(now.mono);
        self.asked_at = None;
        let open = self.queues().filter(|queue| {
            queue.state() == QueueState::Active
                && queue.gate(now.mono).is_none()
                && queue.plan.is_empty()
        });
        let queries: Vec<_> = open.map(Queue::query).collect();
        if !queries.is_empty() {
            self.asked_at = Some(now.mono);
            effects.push(Effect::AskDemand(queries));
        }
    }

    /// Workers of the queues that submit, whether they can at this moment or not.
    #[must_use]
    pub fn worker_kinds(&self) -> Vec<WorkerKind> {
        let active = self
            .queues()
            .filter(|queue| queue.state() == QueueState::Active);
        active.map(|queue| queue.query().kind).collect()
    }

    pub(super) fn on_demand(
        &mut self,
        now: Now,
        answers: Vec<QueueDemand>,
        effects: &mut Vec<Effect>,
    ) {
        self.asked_at = None;
        for answer in answers {
            let Some(queue) = self.queue_mut(answer.queue) else {
                continue;
            };
            if queue.plan.is_empty() && queue.gate(now.mono).is_none() {
                queue.plan = sizes(queue, &answer);
            }
            queue.demand = Some(answer);
            queue.submit_next(now, effects);
        }
    }
}

/// Multi-node tasks first, each with an allocation of its own; then single workers, packed.
fn sizes(queue: &Queue, demand: &QueueDemand) -> VecDeque<u32> {
    let spec = queue.spec();
    let mut places = spec.backlog.saturating_sub(queue.waiting());
    let alive = queue.workers_alive();
    let max = spec.max_worker_count.unwrap_or(u32::MAX);
    let mut room = max.saturating_sub(alive);
    let mut sizes = VecDeque::new();
    for nodes in &demand.gangs {
        if places > 0 && *nodes <= room && *nodes <= spec.max_workers_per_alloc {
            sizes.push_back(*nodes);
            places -= 1;
            room -= *nodes;
        }
    }
    let mut workers = demand.workers;
    while workers > 0 && places > 0 && room > 0 {
        let size = workers.min(spec.max_workers_per_alloc).min(room);
        sizes.push_back(size);
        places -= 1;
        room -= size;
        workers -= size;
    }
    sizes
}
