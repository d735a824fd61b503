//! Converts the demand to the sizes of allocations to request.

use std::collections::VecDeque;

use super::{AutoallocState, Effect, Queue, QueueState};
use crate::scheduler::demand::{QueueDemand, WorkerKind};
use crate::time::Now;

impl AutoallocState {
    /// Queries the scheduler on behalf of all queues that may submit.
    pub(super) fn ask_demand(&mut self, now: Now, effects: &mut Vec<Effect>) {
        self.dirty_since = None;
        self.last_try = Some(now.mono);
        let is_open = self.queues().any(|queue| {
            queue.state() == QueueState::Active
                && (queue.gate(now.mono).is_none() || queue.has_waiting())
        });
        if is_open {
            // Queues that cannot submit now are included. Otherwise, other queues would request
            // allocations for tasks that their allocations will take.
            let active = self
                .queues()
                .filter(|queue| queue.state() == QueueState::Active);
            let queries = active.map(|queue| queue.query(now.mono)).collect();
            effects.push(Effect::AskDemand(queries));
        }
    }

    /// Returns the worker kinds of the active queues, including queues that currently cannot
    /// submit.
    #[must_use]
    pub fn worker_kinds(&self) -> Vec<WorkerKind> {
        let active = self
            .queues()
            .filter(|queue| queue.state() == QueueState::Active);
        active.flat_map(|queue| queue.kinds().0).collect()
    }

    pub(super) fn on_demand(
        &mut self,
        now: Now,
        answers: Vec<QueueDemand>,
        effects: &mut Vec<Effect>,
    ) {
        let fails_max = self.limits.allocation_fails_max;
        for answer in answers {
            let Some(queue) = self.queue_mut(answer.queue) else {
                continue;
            };
            queue.cancel_unneeded(now, &answer.unneeded, effects);
            let still_waits = answer.wants_workers() || answer.larger.is_some();
            if let Some(text) = queue.find_useless(now.mono, still_waits, &answer.unused) {
                let text = why_useless(text, &answer);
                queue.on_allocation_failed(now, &text, fails_max);
                effects.push(Effect::Changed(answer.queue));
            }
            if queue.gate(now.mono).is_none() {
                queue.plan = match answer.larger {
                    Some(nodes)
                        if !answer.wants_workers() && queue.may_probe(now.mono, &answer) =>
                    {
                        sizes(queue, &[nodes], 0)
                    }
                    Some(_) | None => sizes(queue, &answer.gangs, answer.workers),
                };
            }
            queue.demand = Some(answer);
            queue.submit_next(now, effects);
        }
    }
}

/// Adds figures to a text, if they are known.
fn why_useless(text: String, answer: &QueueDemand) -> String {
    match &answer.unfit {
        Some(unfit) => format!("{text}: {unfit}"),
        None => text,
    }
}

/// Returns the sizes of the allocations: first one for each multi-node task, then packed ones for
/// single workers.
fn sizes(queue: &Queue, gangs: &[u32], mut workers: u32) -> VecDeque<u32> {
    let params = queue.params();
    let mut places = params.backlog.saturating_sub(queue.waiting());
    let alive = queue.workers_alive();
    let max = params.max_worker_count.unwrap_or(u32::MAX);
    let mut room = max.saturating_sub(alive);
    let mut sizes = VecDeque::new();
    for nodes in gangs {
        if places > 0 && *nodes <= room && *nodes <= params.max_workers_per_alloc {
            sizes.push_back(*nodes);
            places -= 1;
            room -= *nodes;
        }
    }
    while workers > 0 && places > 0 && room > 0 {
        let size = workers.min(params.max_workers_per_alloc).min(room);
        sizes.push_back(size);
        places -= 1;
        room -= size;
        workers -= size;
    }
    sizes
}
