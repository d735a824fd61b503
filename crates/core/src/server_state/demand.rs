//! Computes the demand for workers for automatic allocation.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::ServerState;
use crate::class::{ClassId, QueueKey};
use crate::id::WorkerId;
use crate::scheduler::demand::{QueueDemand, QueueQuery, demand};
use crate::scheduler::queue::QUEUES_SEEN_MAX;
use crate::scheduler::window::{MULTI_NODE_MAX, able};
use crate::time::{Time, nanos};
use crate::worker::TrialPlacement;

/// Tasks that a worker starts within this time need no other worker.
const SOON: Duration = Duration::from_secs(1);
/// The maximum number of requests examined per queue. Hardly more workers are requested at a time.
const REQUESTS_MAX: usize = 512;
/// The maximum number of searches for room on workers per answer, which takes a few milliseconds.
const LOOKS_MAX: usize = 65_536;

impl ServerState {
    /// Returns whether the answer of [`ServerState::demand`] is incomplete now, because a large job
    /// is not fully queued, or because canceled tasks hide others. The caller should ask again
    /// later.
    #[must_use]
    pub fn is_demand_partial(&self) -> bool {
        self.dispatcher.is_unsettled()
    }

    /// Returns how many more workers of each queue would get tasks that existing workers cannot
    /// take now. Counts ready tasks and tasks that were sent ahead to a busy worker, unless another
    /// worker has room and will take them over.
    #[must_use]
    pub fn demand(&self, now: Time, queries: &[QueueQuery]) -> Vec<QueueDemand> {
        let mut ahead = BTreeMap::new();
        for worker in self.workers.live().values() {
            let mut surplus = u64::try_from(worker.surplus(now, SOON)).unwrap_or(u64::MAX);
            for (key, count) in worker.waiting_last() {
                // Tasks are counted from the end of the backlog, except those that the worker will
                // start soon.
                let count = u64::from(count).min(surplus);
                surplus -= count;
                if count == 0 {
                    break;
                }
                *ahead.entry(key).or_default() += count;
            }
        }
        self.take_rooms(&mut ahead, now);
        let mut waiting = self.waiting_for(queries);
        for (key, count) in ahead {
            *waiting.entry(key).or_default() += count;
        }
        let by_class: Vec<(ClassId, u64)> = waiting
            .into_iter()
            .map(|(key, count)| (key.class, count))
            .collect();
        let mut found = demand(&by_class, self.dispatcher.classes(), queries);
        for (answer, query) in found.iter_mut().zip(queries) {
            let is_unused = |id: &&WorkerId| {
                let worker = self.workers.live().get(id);
                worker.is_some_and(|worker| !worker.was_used())
            };
            answer.unused = query.connected.iter().filter(is_unused).copied().collect();
            // If there are very many requests, only some of them were considered, but the number of
            // waiting tasks includes all.
            answer.waiting = answer.waiting.max(self.ready_len());
        }
        found
    }

    /// Subtracts tasks sent ahead that other workers have room for. Most of these are new workers
    /// that have not received the tasks yet.
    fn take_rooms(&self, ahead: &mut BTreeMap<QueueKey, u64>, now: Time) {
        let mut looks_left = LOOKS_MAX;
        for worker in self.workers.live().values() {
            if ahead.is_empty() || looks_left == 0 {
                // The remaining tasks count as demand, because one worker too many is better than
                // one too few.
                return;
            }
            let Some(mut room) = TrialPlacement::of(worker) else {
                continue;
            };
            // The most urgent tasks come first, because they would also be moved first.
            for (key, count) in &mut *ahead {
                let class = self.dispatcher.classes().get(key.class);
                let variants = class.map_or(&[][..], |class| &class.variants);
                for (number, variant) in (0..).zip(variants) {
                    looks_left = looks_left.saturating_sub(1);
                    let can_run =
                        worker.has_time(variant, now) && !worker.is_stuck(key.class, number);
                    if can_run {
                        *count -= room.take(variant, *count);
                    }
                }
            }
            ahead.retain(|_, count| *count > 0);
        }
    }

    /// Returns the ready tasks that are relevant to the answer. If there are very many requests,
    /// these are the most urgent and valuable ones that the queues' workers could run. The others
    /// become relevant when workers for these have been requested.
    fn waiting_for(&self, queries: &[QueueQuery]) -> BTreeMap<QueueKey, u64> {
        let ready = self.dispatcher.ready();
        if let Some(first) = self.dispatcher.first_leaving() {
            // Ended tasks that have not left the queue yet need no worker. Tasks that they hide
            // will be counted soon.
            let stays = |(key, _): &(QueueKey, u64)| key.priority < first;
            return ready
                .needed(ready.keys())
                .take_while(stays)
                .take(REQUESTS_MAX)
                .collect();
        }
        if ready.queue_count() <= QUEUES_SEEN_MAX {
            return ready.needed(ready.keys()).collect();
        }
        let mut keys: BTreeSet<QueueKey> = ready.multi_node().take(MULTI_NODE_MAX).collect();
        for query in queries {
            for kind in &query.kinds {
                let offers = kind.offers(self.dispatcher.classes());
                keys.extend(able(ready, &offers, REQUESTS_MAX, nanos(kind.time_limit)));
            }
            // The most urgent tasks may request more nodes than an allocation has, and must not
            // hide smaller tasks.
            let sizes = ready.multi_node_up_to(query.nodes_max);
            keys.extend(sizes.take(MULTI_NODE_MAX));
        }
        if keys.is_empty() {
            // No request fits. The answer says why.
            return ready.counts().take(1).collect();
        }
        ready.needed(keys.into_iter()).collect()
    }
}
